/* SPDX-License-Identifier: Apache-2.0 */
/* tmpl_test - text templates: fields, pointers, columns, defaults, escapes, refusals. */
#include "route/tmpl.h"

#include "fixture.h"

static struct ob_col cols[] = {
    {S("region"), S("eu"), OB_COL_TEXT},  {S("amount"), S("1.20"), OB_COL_NUMBER},
    {S("vip"), S("true"), OB_COL_BOOL},   {S("gone"), S(""), OB_COL_NULL},
    {S("doc"), S("[1, 2]"), OB_COL_JSON}, {S("od}d"), S("odd"), OB_COL_TEXT},
};

/* An event with something in every field. */
static struct ob_event full_event(void)
{
    struct ob_event ev = order_event();
    ev.key = (struct ob_str)S("k");
    ev.topic = (struct ob_str)S("row.topic");
    ev.stream = (struct ob_str)S("row.stream");
    ev.headers = (struct ob_str)S("{\"a\":{\"b\":[10,\"x\"]},\"e\":\"\"}");
    ev.schema_version = -2;
    ev.cols = cols;
    ev.n_cols = sizeof cols / sizeof cols[0];
    return ev;
}

static struct ob_event bare_event(void)
{
    return (struct ob_event){.id = S("i"),
                             .payload_kind = OB_PAYLOAD_NULL,
                             .entity_version = OB_NO_VERSION,
                             .schema_version = OB_NO_VERSION};
}

static enum ob_status render_with(const char *text, const struct ob_event *ev,
                                  enum ob_missing missing, bool epoch_ms, struct fixture *f,
                                  struct ob_str *out)
{
    struct ob_tmpl t;
    struct ob_rctx c = {.ev = ev,
                        .now_us = NOW_US,
                        .arena = f->arena,
                        .scratch = &f->scratch,
                        .service = OB_STR("shop"),
                        .epoch_ms = epoch_ms,
                        .missing = missing};
    enum ob_status st = ob_tmpl_compile(f->conf, text, NULL, &t, &f->err);
    if (st == OB_OK)
        st = ob_tmpl_text(&c, &t, out, NULL, &f->err);
    if (st == OB_OK)
        assert_int_equal(f->scratch.n, 0); /* what was appended was cut off again */
    ob_buf_reset(&f->scratch);
    return st;
}

static const struct {
    const char *name, *text, *want;
} full[] = {
    {"nothing", "", ""},
    {"only text", "orders", "orders"},
    {"up to a character", "${topic%%.*}", "row"},
    {"up to a character that is not there", "${topic%%,*}", "row.topic"},
    {"up to a text", "a ${topic%%.top*}", "a row"},
    {"up to the very first character", "${topic%%row*:-none}", "none"},
    {"up to an escaped character", "${topic%%\\.*}", "row"},
    {"id", "${id}", "0194c9a7-0000-7000-8000-000000000001"},
    {"type", "${type}", "order.placed"},
    {"aggregate type", "${aggregate_type}", "order"},
    {"aggregate id", "${aggregate_id}", "o-7"},
    {"key", "${key}", "k"},
    {"tenant", "${tenant}", "acme"},
    {"topic", "${topic}", "row.topic"},
    {"stream", "${stream}", "row.stream"},
    {"service", "${service}", "shop"},
    {"entity version", "${entity_version}", "3"},
    {"schema version below zero", "${schema_version}", "-2"},
    {"number of the row", "${seq}", "42"},
    {"now", "${now}", "2026-02-03T04:05:06.789Z"},
    {"created", "${created}", "2026-02-03T04:05:05.001Z"},
    {"now and created", "${now} ${created}", "2026-02-03T04:05:06.789Z 2026-02-03T04:05:05.001Z"},
    {"text around", "shop.${type}.v1", "shop.order.placed.v1"},
    {"two side by side", "${tenant}${type}", "acmeorder.placed"},
    {"payload verbatim", "${payload}", "{\"orderId\": 7,\"total\":12.50,\"note\":\"a\\u0062\"}"},
    {"payload by an empty pointer", "${payload:}",
     "{\"orderId\": 7,\"total\":12.50,\"note\":\"a\\u0062\"}"},
    {"number in the payload as written", "${payload:/total}", "12.50"},
    {"string in the payload without its escapes", "${payload:/note}", "ab"},
    {"string with escapes among text", "<${payload:/note}>", "<ab>"},
    {"metadata pointer", "${metadata:/traceId}", "t-1"},
    {"metadata", "${metadata}", "{\"traceId\":\"t-1\",\"userId\":null,\"n\":3}"},
    {"pointer into an array", "${headers:/a/b/0}", "10"},
    {"string in an array", "${headers:/a/b/1}", "x"},
    {"array as JSON", "${headers:/a/b}", "[10,\"x\"]"},
    {"text column", "${col:region}", "eu"},
    {"number column", "${col:amount}", "1.20"},
    {"boolean column", "${col:vip}", "true"},
    {"JSON column", "${col:doc}", "[1, 2]"},
    {"column with a brace in its name", "${col:od\\}d}", "odd"},
    {"NULL column is missing", "<${col:gone}>", "<>"},
    {"no such column", "<${col:nope}>", "<>"},
    {"default not needed", "${type:-x}", "order.placed"},
    {"default of a column", "${col:gone:-none}", "none"},
    {"default of a pointer", "${payload:/nope:-none}", "none"},
    {"null counts as missing for a default", "${metadata:/userId:-nobody}", "nobody"},
    {"null without default is no text", "<${metadata:/userId}>", "<>"},
    {"empty default", "<${payload:/nope:-}>", "<>"},
    {"empty string counts as missing for a default", "${headers:/e:-none}", "none"},
    {"empty string without default", "<${headers:/e}>", "<>"},
    {"default with a field in it", "${payload:/nope:-${tenant}}", "acme"},
    {"default with text and a field", "${payload:/nope:-t.${tenant}.x}", "t.acme.x"},
    {"defaults in defaults", "${payload:/a:-${payload:/b:-${payload:/orderId}}}", "7"},
    {"braces in a default", "${payload:/a:-{}}", "{}"},
    {"braces around a field in a default", "${payload:/a:-{${tenant}}}!", "{acme}!"},
    {"escaped brace in a default", "${payload:/a:-\\}}!", "}!"},
    {"colon in a default", "${payload:/a:-x:-y}", "x:-y"},
    {"literal", "$${type}", "${type}"},
    {"literal in a default", "${payload:/a:-$${x}", "${x"},
    {"dollar alone", "$ $type $", "$ $type $"},
    {"two dollars", "$$", "$$"},
    {"three dollars", "$$${type}", "$${type}"},
    {"closing brace alone", "a}b", "a}b"},
    {"backslash in text", "a\\b", "a\\b"},
    {"UTF-8", "ü.${tenant}", "ü.acme"},
};

static void renders_every_field(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof full / sizeof full[0]; i++) {
        const char *name = full[i].name;
        struct ob_event ev = full_event();
        struct fixture f;
        struct ob_str out = {NULL, 0};
        fixture_init(&f);
        if (render_with(full[i].text, &ev, OB_MISSING_NULL, false, &f, &out) != OB_OK)
            fail_msg("%s: %s", name, f.err.text);
        assert_text(out, full[i].want);
        fixture_clear(&f);
    }
}

static const struct {
    const char *name, *text, *want; /* want NULL: rejected when missing is `reject` */
} bare[] = {
    {"no type", "${type}", NULL},
    {"no tenant among text", "a.${tenant}", NULL},
    {"no payload", "${payload}", NULL},
    {"nothing to point into", "${payload:/a}", NULL},
    {"no metadata", "${metadata:/a}", NULL},
    {"no headers", "${headers}", NULL},
    {"no entity version", "${entity_version}", NULL},
    {"no schema version", "${schema_version}", NULL},
    {"no time of creation", "${created}", NULL},
    {"no column", "${col:a}", NULL},
    {"default that is missing too", "${type:-${tenant}}", NULL},
    {"default with a hole", "${type:-x.${tenant}}", NULL},
    {"empty default", "${type:-}", ""},
    {"the key's usual default", "${key:-${aggregate_id:-${id}}}", "i"},
    {"the topic's usual default", "${topic:-outbox}", "outbox"},
    {"default of a version", "${entity_version:-1}", "1"},
};

static void missing_is_rejected_only_where_asked(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bare / sizeof bare[0]; i++) {
        const char *name = bare[i].name;
        struct ob_event ev = bare_event();
        struct fixture f;
        struct ob_str out = {NULL, 0};
        fixture_init(&f);
        enum ob_status st = render_with(bare[i].text, &ev, OB_MISSING_REJECT, false, &f, &out);
        if (bare[i].want == NULL) {
            assert_int_equal(st, OB_REJECT);
            assert_says(&f.err, "finds nothing in this event and has no default");
            assert_int_equal(render_with(bare[i].text, &ev, OB_MISSING_NULL, false, &f, &out),
                             OB_OK);
        } else {
            assert_int_equal(st, OB_OK);
            assert_text(out, bare[i].want);
        }
        fixture_clear(&f);
    }
}

static void times_as_epoch(void **state)
{
    (void)state;
    const char *name = "epoch";
    struct ob_event ev = full_event();
    struct fixture f;
    struct ob_str out = {NULL, 0};
    fixture_init(&f);
    assert_int_equal(render_with("${now} ${created}", &ev, OB_MISSING_NULL, true, &f, &out), OB_OK);
    assert_text(out, "1770091506789 1770091505001");
    ev.created_us = -1; /* downwards, also before 1970 */
    assert_int_equal(render_with("${created}", &ev, OB_MISSING_NULL, true, &f, &out), OB_OK);
    assert_text(out, "-1");
    fixture_clear(&f);
}

static const struct {
    const char *name, *text;
    unsigned column; /* of the error when the scalar starts at column 4 */
    const char *says;
} bad[] = {
    {"unknown field", "'${tipe}'", 7, "unknown field \"tipe\" (did you mean \"type\"?)"},
    {"unknown field, nothing near", "'${zzzzzz}'", 7, "known are id, type, aggregate_type"},
    {"old spelling", "'${aggregatetype}'", 7, "did you mean \"aggregate_type\"?"},
    {"behind text", "'order.${typ}'", 13, "did you mean \"type\"?"},
    {"without quotes", "order.${typ}", 12, "did you mean \"type\"?"},
    {"in a default", "'${type:-${tennant}}'", 15, "did you mean \"tenant\"?"},
    {"upper case", "'${Type}'", 7, "did you mean \"type\"?"},
    {"empty", "'${}'", 7, "names no field"},
    {"a cut without its star", "'${type%%,}'", 11, "write %%TEXT*"},
    {"a cut with one sign", "'${type%,*}'", 11, "write %%TEXT*"},
    {"a cut of nothing", "'${type%%*}'", 11, "write %%TEXT*"},
    {"a cut of no text", "'${payload%%,*}'", 14, "payload is no text"},
    {"open", "'${type'", 5, "has no closing }"},
    {"open at the name", "'a${ty'", 8, "has no closing }"},
    {"open in a default", "'${type:-x'", 5, "has no closing }"},
    {"argument where none is", "'${type:/a}'", 12, "type takes no argument"},
    {"default without its dash", "'${tenant:x}'", 14, "${tenant:-"},
    {"pointer without slash", "'${payload:a}'", 15, "it starts with /"},
    {"pointer with a bad tilde", "'${payload:/a~2}'", 15, "write ~0 for ~ and ~1 for /"},
    {"pointer with a tilde at its end", "'${metadata:/a~}'", 16, "write ~0 for ~ and ~1 for /"},
    {"column without name", "'${col}'", 10, "${col:NAME}"},
    {"column with an empty name", "'${col:}'", 11, "${col:NAME}"},
    {"spaces in a name", "'${ type }'", 7, "unknown field \" type \""},
};

static void errors_name_the_place(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const char *name = bad[i].name;
        struct fixture f;
        char yaml[200], place[40];
        struct ob_node *top;
        struct ob_tmpl t;
        fixture_init(&f);
        snprintf(yaml, sizeof yaml, "x: 1\na: %s\n", bad[i].text);
        assert_int_equal(ob_yaml_parse(f.conf, "f", ob_str_c(yaml), NULL, &top, &f.err), OB_OK);
        const struct ob_node *scalar = ob_node_get(top, "a");
        assert_int_equal(ob_tmpl_compile(f.conf, scalar->text, scalar, &t, &f.err), OB_FATAL);
        snprintf(place, sizeof place, "f:2:%u: ", bad[i].column);
        if (strncmp(f.err.text, place, strlen(place)) != 0)
            fail_msg("%s: %s, want %s", name, f.err.text, place);
        assert_says(&f.err, bad[i].says);
        fixture_clear(&f);
    }
}

static void too_deep_and_too_long(void **state)
{
    (void)state;
    const char *name = "limits";
    struct fixture f;
    struct ob_tmpl t;
    struct ob_buf b;
    fixture_init(&f);
    ob_buf_init(&b, 0);
    for (int i = 0; i < 17; i++)
        ob_buf_c(&b, "${type:-");
    for (int i = 0; i < 17; i++)
        ob_buf_c(&b, "}");
    assert_int_equal(ob_tmpl_compile(f.conf, ob_buf_z(&b), NULL, &t, &f.err), OB_FATAL);
    assert_says(&f.err, "nested more than 16 deep");
    ob_buf_reset(&b);
    while (b.n <= 65536)
        ob_buf_c(&b, "x${id}${type:-y}");
    assert_int_equal(ob_tmpl_compile(f.conf, ob_buf_z(&b), NULL, &t, &f.err), OB_FATAL);
    assert_says(&f.err, "at most 65536 bytes");
    b.n = 65536;
    assert_int_equal(ob_tmpl_compile(f.conf, ob_buf_z(&b), NULL, &t, &f.err), OB_OK);
    assert_int_equal(t.n, 65536 / 16 * 3);
    assert_true(ob_arena_used(f.conf) < ((size_t)8 << 20)); /* linear in its length */
    ob_buf_clear(&b);
    fixture_clear(&f);
}

static const struct {
    const char *name, *text, *says;
    struct ob_event ev;
} broken[] = {
    {"payload",
     "${payload:/a}",
     "payload is not valid JSON: byte 5",
     {.payload = S("{\"a\":}"), .payload_kind = OB_PAYLOAD_JSON}},
    {"empty payload",
     "${payload:/a}",
     "payload is not valid JSON: byte 0",
     {.payload_kind = OB_PAYLOAD_JSON}},
    {"whole payload",
     "${payload}",
     "payload is not valid JSON: byte 2",
     {.payload = S("{}}"), .payload_kind = OB_PAYLOAD_JSON}},
    {"metadata", "${metadata:/a}", "metadata is not valid JSON: byte 0", {.metadata = S("x")}},
    {"headers", "${headers}", "headers is not valid JSON: byte 1", {.headers = S("[")}},
    {"default of a broken one", "${metadata:/a:-x}", "metadata", {.metadata = S("x")}},
};

static void broken_json_is_rejected_with_its_byte(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) {
        const char *name = broken[i].name;
        struct fixture f;
        struct ob_str out = {NULL, 0};
        fixture_init(&f);
        if (render_with(broken[i].text, &broken[i].ev, OB_MISSING_NULL, false, &f, &out) !=
            OB_REJECT)
            fail_msg("%s: taken", name);
        assert_says(&f.err, broken[i].says);
        fixture_clear(&f);
    }
}

/* A text that was never promised to be JSON may be JSON or not. */
static void pointers_into_text(void **state)
{
    (void)state;
    const char *name = "text";
    struct ob_event ev = bare_event();
    struct fixture f;
    struct ob_str out = {NULL, 0};
    fixture_init(&f);
    ev.payload_kind = OB_PAYLOAD_TEXT;
    ev.payload = OB_STR("{\"FieldId\":\"f1\"}");
    assert_int_equal(render_with("${payload:/FieldId}", &ev, OB_MISSING_NULL, false, &f, &out),
                     OB_OK);
    assert_text(out, "f1");
    ev.payload = OB_STR("hello");
    assert_int_equal(
        render_with("${payload:/FieldId:-none}", &ev, OB_MISSING_NULL, false, &f, &out), OB_OK);
    assert_text(out, "none");
    fixture_clear(&f);
}

/* The whole payload as text is its bytes, also where it is a JSON string. */
static void whole_payload_is_verbatim(void **state)
{
    (void)state;
    const char *name = "string payload";
    struct ob_event ev = bare_event();
    struct fixture f;
    struct ob_str out = {NULL, 0};
    fixture_init(&f);
    ev.payload_kind = OB_PAYLOAD_JSON;
    ev.payload = OB_STR("\"a\\u0062\"");
    assert_int_equal(render_with("${payload}", &ev, OB_MISSING_NULL, false, &f, &out), OB_OK);
    assert_text(out, "\"a\\u0062\"");
    assert_int_equal(render_with("${payload:}", &ev, OB_MISSING_NULL, false, &f, &out), OB_OK);
    assert_text(out, "ab"); /* a pointer finds a value: as text it has no quotes */
    fixture_clear(&f);
}

/* What is one slice of the event is not copied. */
static void slices_are_borrowed(void **state)
{
    (void)state;
    struct ob_event ev = full_event();
    struct fixture f;
    struct ob_str out = {NULL, 0};
    fixture_init(&f);
    size_t used = ob_arena_used(f.arena);
    static const char *const texts[] = {"${type}",           "${payload}",
                                        "${payload:/total}", "${metadata:/traceId}",
                                        "${col:region}",     "literal"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        assert_int_equal(render_with(texts[i], &ev, OB_MISSING_NULL, false, &f, &out), OB_OK);
        assert_int_equal(ob_arena_used(f.arena), used);
    }
    assert_int_equal(render_with("${payload:/note}", &ev, OB_MISSING_NULL, false, &f, &out), OB_OK);
    assert_int_not_equal(ob_arena_used(f.arena), used);
    fixture_clear(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(renders_every_field),
        cmocka_unit_test(missing_is_rejected_only_where_asked),
        cmocka_unit_test(times_as_epoch),
        cmocka_unit_test(errors_name_the_place),
        cmocka_unit_test(too_deep_and_too_long),
        cmocka_unit_test(broken_json_is_rejected_with_its_byte),
        cmocka_unit_test(pointers_into_text),
        cmocka_unit_test(whole_payload_is_verbatim),
        cmocka_unit_test(slices_are_borrowed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
