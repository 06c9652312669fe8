/* SPDX-License-Identifier: Apache-2.0 */
/* shape_test - JSON templates: types kept, key order, $merge, what is missing; byte for byte. */
#include "fixture.h"

static struct ob_col cols[] = {
    {S("region"), S("eu"), OB_COL_TEXT},
    {S("amount"), S("1.20"), OB_COL_NUMBER},
    {S("nan"), S("NaN"), OB_COL_NUMBER},
    {S("list"), S("[1]"), OB_COL_NUMBER},
    {S("vip"), S("true"), OB_COL_BOOL},
    {S("old"), S("false"), OB_COL_BOOL},
    {S("gone"), S(""), OB_COL_NULL},
    {S("empty"), S(""), OB_COL_TEXT},
    {S("doc"), S("{ \"a\" : 1 }"), OB_COL_JSON},
    {S("quote"), S("a\"\n"), OB_COL_TEXT},
    {S("bad"), S("\xff"), OB_COL_TEXT},
};

static struct ob_event shape_event(void)
{
    struct ob_event ev = order_event();
    ev.cols = cols;
    ev.n_cols = sizeof cols / sizeof cols[0];
    return ev;
}

/* `template` is the YAML below envelope: {template: …}, indented by four. */
static enum ob_status render(struct fixture *f, const char *more, const char *template,
                             const struct ob_event *ev)
{
    char yaml[4096];
    snprintf(yaml, sizeof yaml, "envelope:\n  template:\n    %s\nroutes:\n  - topic: t\n%s",
             template, more);
    if (fixture_load(f, yaml, "shop") != OB_OK)
        return OB_FATAL;
    return fixture_route(f, ev);
}

#define PAYLOAD "{\"orderId\": 7,\"total\":12.50,\"note\":\"a\\u0062\"}"

static const struct {
    const char *name, *template, *want;
} cases[] = {
    {"empty map", "{}", "{}"},
    {"empty list", "[]", "[]"},
    {"constants", "{i: 1, f: -1.5e3, t: true, f2: false, n: null, n2: ~, s: text}",
     "{\"i\":1,\"f\":-1.5e3,\"t\":true,\"f2\":false,\"n\":null,\"n2\":null,\"s\":\"text\"}"},
    {"nothing is null", "{a: , b: 1}", "{\"a\":null,\"b\":1}"},
    {"quoted constants are strings", "{a: '1', b: \"true\", c: 'null', d: ''}",
     "{\"a\":\"1\",\"b\":\"true\",\"c\":\"null\",\"d\":\"\"}"},
    {"what JSON cannot write is a string", "{a: 01, b: 0x1f, c: .5, d: +1, e: yes, f: .inf}",
     "{\"a\":\"01\",\"b\":\"0x1f\",\"c\":\".5\",\"d\":\"+1\",\"e\":\"yes\",\"f\":\".inf\"}"},
    {"order as written", "{z: 1, a: 2, m: 3}", "{\"z\":1,\"a\":2,\"m\":3}"},
    {"nested", "{a: {b: [1, {c: '${id}'}]}}",
     "{\"a\":{\"b\":[1,{\"c\":\"0194c9a7-0000-7000-8000-000000000001\"}]}}"},
    {"constant within", "{a: {b: [1, {c: d}]}, e: '${type}'}",
     "{\"a\":{\"b\":[1,{\"c\":\"d\"}]},\"e\":\"order.placed\"}"},
    {"key that needs escapes", "{\"a\\\"b\": 1}", "{\"a\\\"b\":1}"},
    {"text field", "{a: '${type}'}", "{\"a\":\"order.placed\"}"},
    {"text around", "{a: 'x.${type}'}", "{\"a\":\"x.order.placed\"}"},
    {"literal", "{a: '$${type}'}", "{\"a\":\"${type}\"}"},
    {"version is a number", "{a: '${entity_version}'}", "{\"a\":3}"},
    {"version among text is text", "{a: 'v${entity_version}'}", "{\"a\":\"v3\"}"},
    {"row's number", "{a: '${seq}'}", "{\"a\":42}"},
    {"payload verbatim, spaces too", "{a: '${payload}'}", "{\"a\":" PAYLOAD "}"},
    {"payload twice", "['${payload}', '${payload}']", "[" PAYLOAD "," PAYLOAD "]"},
    {"only the payload", "'${payload}'", PAYLOAD},
    {"payload as text", "{a: ' ${payload}'}",
     "{\"a\":\" {\\\"orderId\\\": 7,\\\"total\\\":12.50,\\\"note\\\":\\\"a\\\\u0062\\\"}\"}"},
    {"number by pointer as written", "{a: '${payload:/total}'}", "{\"a\":12.50}"},
    {"string by pointer, escapes as written", "{a: '${payload:/note}'}", "{\"a\":\"a\\u0062\"}"},
    {"string by pointer among text", "{a: '<${payload:/note}>'}", "{\"a\":\"<ab>\"}"},
    {"null by pointer", "{a: '${metadata:/userId}'}", "{\"a\":null}"},
    {"text column", "{a: '${col:region}'}", "{\"a\":\"eu\"}"},
    {"number column", "{a: '${col:amount}'}", "{\"a\":1.20}"},
    {"number that JSON has not", "{a: '${col:nan}'}", "{\"a\":\"NaN\"}"},
    {"number column that is none", "{a: '${col:list}'}", "{\"a\":\"[1]\"}"},
    {"boolean columns", "{a: '${col:vip}', b: '${col:old}'}", "{\"a\":true,\"b\":false}"},
    {"NULL column", "{a: '${col:gone}'}", "{\"a\":null}"},
    {"empty column", "{a: '${col:empty}'}", "{\"a\":\"\"}"},
    {"JSON column", "{a: '${col:doc}'}", "{\"a\":{ \"a\" : 1 }}"},
    {"column to be escaped", "{a: '${col:quote}'}", "{\"a\":\"a\\\"\\n\"}"},
    {"column that is not UTF-8", "{a: '${col:bad}'}", "{\"a\":\"\xef\xbf\xbd\"}"},
    {"times", "{now: '${now}', created: '${created}'}",
     "{\"now\":\"2026-02-03T04:05:06.789Z\",\"created\":\"2026-02-03T04:05:05.001Z\"}"},
    {"service", "{source: '${service}'}", "{\"source\":\"shop\"}"},
    {"missing is null", "{a: '${schema_version}', b: '${headers}', c: '${payload:/x}'}",
     "{\"a\":null,\"b\":null,\"c\":null}"},
    {"default: text", "{a: '${payload:/x:-none}'}", "{\"a\":\"none\"}"},
    {"default: a number", "{a: '${schema_version:-1}'}", "{\"a\":1}"},
    {"default: a boolean", "{a: '${payload:/x:-false}'}", "{\"a\":false}"},
    {"default: null", "{a: '${payload:/x:-null}'}", "{\"a\":null}"},
    {"default: an object", "{a: '${headers:-{}}'}", "{\"a\":{}}"},
    {"default: a quoted number is text", "{a: '${payload:/x:-\"1\"}'}", "{\"a\":\"1\"}"},
    {"default: of a text field is text", "{a: '${key:-1}'}", "{\"a\":\"1\"}"},
    {"default: empty", "{a: '${payload:/x:-}'}", "{\"a\":\"\"}"},
    {"default: a field with its type", "{a: '${payload:/x:-${entity_version}}'}", "{\"a\":3}"},
    {"default: a field in text", "{a: '${payload:/x:-v${entity_version}}'}", "{\"a\":\"v3\"}"},
    {"default: of null", "{a: '${metadata:/userId:-${id}}'}",
     "{\"a\":\"0194c9a7-0000-7000-8000-000000000001\"}"},
    {"merge: later wins, place of the first", "{$merge: [{a: 1, b: 2}, {c: 3, a: 4}]}",
     "{\"a\":4,\"b\":2,\"c\":3}"},
    {"merge: metadata and a field", "{m: {$merge: ['${metadata}', {tenantId: '${tenant}'}]}}",
     "{\"m\":{\"traceId\":\"t-1\",\"userId\":null,\"n\":3,\"tenantId\":\"acme\"}}"},
    {"merge: field replaced in place", "{$merge: ['${metadata}', {userId: '${tenant}'}]}",
     "{\"traceId\":\"t-1\",\"userId\":\"acme\",\"n\":3}"},
    {"merge: bytes of values are kept", "{$merge: ['${col:doc}', '${payload}']}",
     "{\"a\":1,\"orderId\":7,\"total\":12.50,\"note\":\"a\\u0062\"}"},
    {"merge: missing and null add nothing", "{$merge: ['${headers}', ~, {a: 1}]}", "{\"a\":1}"},
    {"merge: nothing at all", "{$merge: ['${headers}']}", "{}"},
    {"merge: within merge", "{$merge: [{$merge: [{a: 1}, {b: 2}]}, {a: 3}]}", "{\"a\":3,\"b\":2}"},
    {"merge: of deep values is shallow", "{$merge: [{a: {x: 1}}, {a: {y: 2}}]}",
     "{\"a\":{\"y\":2}}"},
    {"merge: in a list", "[1, {$merge: [{a: 1}, {b: '${seq}'}]}, 2]", "[1,{\"a\":1,\"b\":42},2]"},
    {"a key that is not $merge", "{$schema: x}", "{\"$schema\":\"x\"}"},
};

static void renders_byte_for_byte(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *name = cases[i].name;
        struct ob_event ev = shape_event();
        struct fixture f;
        fixture_init(&f);
        if (render(&f, "", cases[i].template, &ev) != OB_OK)
            fail_msg("%s: %s", name, f.err.text);
        assert_text(f.msg.value, cases[i].want);
        assert_json(f.msg.value);
        fixture_clear(&f);
    }
}

static const struct {
    const char *name, *more, *template, *want; /* want NULL: rejected */
} missing[] = {
    {"omit a key", "    missing: omit\n", "{a: 1, b: '${headers}', c: 2}", "{\"a\":1,\"c\":2}"},
    {"omit the first", "    missing: omit\n", "{b: '${headers}', c: 2}", "{\"c\":2}"},
    {"omit all", "    missing: omit\n", "{b: '${headers}', c: '${payload:/x}'}", "{}"},
    {"omit in a list", "    missing: omit\n", "['${headers}', 1, '${headers}']", "[1]"},
    {"omit leaves null that is there", "    missing: omit\n", "{a: '${metadata:/userId}'}",
     "{\"a\":null}"},
    {"omit a NULL column", "    missing: omit\n", "{a: '${col:gone}', b: '${col:empty}'}",
     "{\"b\":\"\"}"},
    {"omit has no part in text", "    missing: omit\n", "{a: 'x${headers}'}", "{\"a\":\"x\"}"},
    {"omit the top", "    missing: omit\n", "'${headers}'", "null"},
    {"null", "    missing: null\n", "{a: '${headers}'}", "{\"a\":null}"},
    {"null in quotes", "    missing: 'null'\n", "{a: '${headers}'}", "{\"a\":null}"},
    {"reject", "    missing: reject\n", "{a: '${payload:/x}'}", NULL},
    {"reject in text", "    missing: reject\n", "{a: 'x${payload:/x}'}", NULL},
    {"reject takes a default", "    missing: reject\n", "{a: '${payload:/x:-1}'}", "{\"a\":1}"},
    {"reject takes null that is there", "    missing: reject\n", "{a: '${metadata:/userId}'}",
     "{\"a\":null}"},
    {"time as a number", "    time: epoch_ms\n", "{a: '${now}', b: 'x${created}'}",
     "{\"a\":1770091506789,\"b\":\"x1770091505001\"}"},
};

static void missing_null_omit_reject(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof missing / sizeof missing[0]; i++) {
        const char *name = missing[i].name;
        struct ob_event ev = shape_event();
        struct fixture f;
        fixture_init(&f);
        enum ob_status st = render(&f, missing[i].more, missing[i].template, &ev);
        if (st != (missing[i].want ? OB_OK : OB_REJECT))
            fail_msg("%s: %s: %s", name, ob_status_name(st), f.err.text);
        if (missing[i].want != NULL)
            assert_text(f.msg.value, missing[i].want);
        else
            assert_says(&f.err, "${payload:/x} finds nothing");
        fixture_clear(&f);
    }
}

static const struct {
    const char *name;
    enum ob_payload_kind kind;
    struct ob_str payload;
    const char *want, *says; /* want NULL: rejected */
} payloads[] = {
    {"text", OB_PAYLOAD_TEXT, S("a\"b\n\0c"), "{\"p\":\"a\\\"b\\n\\u0000c\"}", NULL},
    {"empty text", OB_PAYLOAD_TEXT, S(""), "{\"p\":\"\"}", NULL},
    {"text that is not UTF-8", OB_PAYLOAD_TEXT, S("a\xff"), NULL, "payload is text but not UTF-8"},
    {"bytes", OB_PAYLOAD_BYTES, S("\0\xff\x10"), "{\"p\":\"AP8Q\"}", NULL},
    {"no bytes", OB_PAYLOAD_BYTES, S(""), "{\"p\":\"\"}", NULL},
    {"no payload", OB_PAYLOAD_NULL, S(""), "{\"p\":null}", NULL},
    {"white space around", OB_PAYLOAD_JSON, S(" 1\n"), "{\"p\": 1\n}", NULL},
    {"a string", OB_PAYLOAD_JSON, S("\"\\u00fc\""), "{\"p\":\"\\u00fc\"}", NULL},
    {"null", OB_PAYLOAD_JSON, S("null"), "{\"p\":null}", NULL},
    {"a number beyond every type", OB_PAYLOAD_JSON, S("123456789012345678901234567890"),
     "{\"p\":123456789012345678901234567890}", NULL},
    {"empty where JSON is promised", OB_PAYLOAD_JSON, S(""), NULL,
     "payload is not valid JSON: byte 0"},
    {"cut", OB_PAYLOAD_JSON, S("{\"a\":[1,2"), NULL, "payload is not valid JSON: byte 9"},
    {"two values", OB_PAYLOAD_JSON, S("{} {}"), NULL, "payload is not valid JSON: byte 3"},
    {"not UTF-8", OB_PAYLOAD_JSON, S("\"\xff\""), NULL, "payload is not valid JSON: byte 1"},
    {"NUL in it", OB_PAYLOAD_JSON, S("[1,\0]"), NULL, "payload is not valid JSON: byte 3"},
    {"injection", OB_PAYLOAD_JSON, S("1},\"admin\":{\"x\":1"), NULL, "byte 1"},
};

static void payload_of_every_kind(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof payloads / sizeof payloads[0]; i++) {
        const char *name = payloads[i].name;
        struct ob_event ev = shape_event();
        struct fixture f;
        fixture_init(&f);
        ev.payload = payloads[i].payload;
        ev.payload_kind = payloads[i].kind;
        enum ob_status st = render(&f, "", "{p: '${payload}'}", &ev);
        if (st != (payloads[i].want ? OB_OK : OB_REJECT))
            fail_msg("%s: %s: %s", name, ob_status_name(st), f.err.text);
        if (payloads[i].want != NULL)
            assert_text(f.msg.value, payloads[i].want);
        else
            assert_says(&f.err, payloads[i].says);
        fixture_clear(&f);
    }
}

static const struct {
    const char *name, *template, *place, *says;
} bad[] = {
    {"unknown field", "{a: 1, b: '${tipe}'}", "f:3:18: ", "did you mean \"type\"?"},
    {"field in a key", "{'${type}': 1}", "f:3:6: ", "keys are literal"},
    {"merge beside others", "{a: 1, $merge: [{b: 1}]}", "f:3:12: ", "only key of its map"},
    {"nearly merge", "{$merg: [{b: 1}]}", "f:3:6: ", "did you mean \"$merge\"?"},
    {"merge of no list", "{$merge: {a: 1}}", "f:3:14: ", "wants a list"},
    {"merge of nothing", "{$merge: []}", "f:3:14: ", "wants a list"},
    {"merge of text", "{$merge: [{a: 1}, 'x ${metadata}']}", "f:3:23: ", "takes objects"},
    {"merge of a number", "{$merge: [1]}", "f:3:15: ", "takes objects"},
    {"merge of a list", "{$merge: [[1]]}", "f:3:15: ", "takes objects"},
    {"open expression", "{a: ['${type']}", "f:3:11: ", "no closing }"},
};

static void errors_name_the_place(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const char *name = bad[i].name;
        struct ob_event ev = shape_event();
        struct fixture f;
        fixture_init(&f);
        if (render(&f, "", bad[i].template, &ev) != OB_FATAL)
            fail_msg("%s: taken", name);
        if (strncmp(f.err.text, bad[i].place, strlen(bad[i].place)) != 0)
            fail_msg("%s: %s, want %s", name, f.err.text, bad[i].place);
        assert_says(&f.err, bad[i].says);
        fixture_clear(&f);
    }
}

static const struct {
    const char *name;
    struct ob_str metadata;
    const char *want, *says;
} merges[] = {
    {"same key twice", S("{\"a\":1,\"b\":2,\"a\":3}"), "{\"a\":3,\"b\":2,\"t\":\"acme\"}", NULL},
    {"same key, written in two ways", S("{\"t\":1,\"\\u0074\":2}"), "{\"t\":\"acme\"}", NULL},
    {"first way of writing stays", S("{\"\\u0074\":1}"), "{\"\\u0074\":\"acme\"}", NULL},
    {"spaces between, not within", S(" { \"a\" : { \"b\" : 1 } } "),
     "{\"a\":{ \"b\" : 1 },\"t\":\"acme\"}", NULL},
    {"empty key", S("{\"\":1}"), "{\"\":1,\"t\":\"acme\"}", NULL},
    {"null", S("null"), "{\"t\":\"acme\"}", NULL},
    {"list", S("[1]"), NULL, "$merge: part 1 is not an object but an array"},
    {"string", S("\"x\""), NULL, "$merge: part 1 is not an object but a string"},
    {"number", S("1"), NULL, "$merge: part 1 is not an object but a number"},
    {"boolean", S("true"), NULL, "$merge: part 1 is not an object but a boolean"},
    {"broken", S("{\"a\":1"), NULL, "metadata is not valid JSON: byte 6"},
};

static void merge_of_what_rows_bring(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof merges / sizeof merges[0]; i++) {
        const char *name = merges[i].name;
        struct ob_event ev = shape_event();
        struct fixture f;
        fixture_init(&f);
        ev.metadata = merges[i].metadata;
        enum ob_status st = render(&f, "", "{$merge: ['${metadata}', {t: '${tenant}'}]}", &ev);
        if (st != (merges[i].want ? OB_OK : OB_REJECT))
            fail_msg("%s: %s: %s", name, ob_status_name(st), f.err.text);
        if (merges[i].want != NULL)
            assert_text(f.msg.value, merges[i].want);
        else
            assert_says(&f.err, merges[i].says);
        fixture_clear(&f);
    }
}

/* n keys, each twice; those of the second round win. */
static void many_keys(struct ob_buf *b, unsigned n)
{
    for (unsigned i = 0; i < 2 * n; i++)
        ob_buf_printf(b, "%c\"k%u\":%u", i ? ',' : '{', i % n, i);
    ob_buf_char(b, '}');
}

static void merge_of_many_keys(void **state)
{
    (void)state;
    const char *name = "many";
    struct ob_event ev = shape_event();
    struct fixture f;
    struct ob_buf b, want;
    fixture_init(&f);
    ob_buf_init(&b, 0);
    ob_buf_init(&want, 0);
    many_keys(&b, 16384);
    for (unsigned i = 0; i < 16384; i++)
        ob_buf_printf(&want, "%c\"k%u\":%u", i ? ',' : '{', i, i + 16384);
    ob_buf_char(&want, '}');
    ev.metadata = ob_buf_view(&b);
    assert_int_equal(render(&f, "", "{$merge: ['${metadata}']}", &ev), OB_OK);
    assert_true(ob_str_eq(f.msg.value, ob_buf_view(&want)));
    ob_buf_reset(&b);
    many_keys(&b, 16385);
    ev.metadata = ob_buf_view(&b);
    assert_int_equal(fixture_route(&f, &ev), OB_REJECT);
    assert_says(&f.err, "more than 16384 keys");
    ob_buf_clear(&b);
    ob_buf_clear(&want);
    fixture_clear(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(renders_byte_for_byte),    cmocka_unit_test(missing_null_omit_reject),
        cmocka_unit_test(payload_of_every_kind),    cmocka_unit_test(errors_name_the_place),
        cmocka_unit_test(merge_of_what_rows_bring), cmocka_unit_test(merge_of_many_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
