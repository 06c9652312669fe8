/* SPDX-License-Identifier: Apache-2.0 */
/* bson_json_test - every type in every form (tests/golden/bson), hostile documents, and libbson's
 * own opinion on random ones. */
#include "event/bson_json.h"

#include "../rows.h"
#include "core/jscan.h"
#include "core/rand.h"
#include "ob_build.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#if OB_HAVE_MONGODB
#include <bson/bson.h>
#endif

static const char *const form_names[] = {"plain", "relaxed", "canonical"};

/* ---- making documents by hand ---- */

static void le32(struct ob_buf *b, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        ob_buf_char(b, (char)(v >> 8 * i));
}

static void fix32(struct ob_buf *b, size_t at, uint32_t v)
{
    for (size_t i = 0; i < 4; i++)
        b->p[at + i] = (char)(v >> 8 * i);
}

static size_t doc_open(struct ob_buf *b)
{
    size_t at = b->n;
    le32(b, 0);
    return at;
}

static void doc_close(struct ob_buf *b, size_t at)
{
    ob_buf_char(b, '\0');
    fix32(b, at, (uint32_t)(b->n - at));
}

static void field(struct ob_buf *b, unsigned char type, const char *name)
{
    ob_buf_char(b, (char)type);
    ob_buf_put(b, name, strlen(name) + 1);
}

static void hex(struct ob_buf *b, const char *digits)
{
    for (const char *p = digits; *p;) {
        char two[3] = {p[0], p[1], '\0'};
        if (*p == ' ') {
            p++;
            continue;
        }
        ob_buf_char(b, (char)strtoul(two, NULL, 16));
        p += 2;
    }
}

/* ---- golden ---- */

static json_t *load(void)
{
    json_error_t why;
    json_t *all = json_load_file(GOLDEN "/bson/values.json", JSON_ALLOW_NUL, &why);

    if (!all)
        fail_msg("%s: line %d: %s", GOLDEN "/bson/values.json", why.line, why.text);
    return all;
}

static const char *cell(const json_t *row, size_t i)
{
    const char *text = json_string_value(json_array_get(row, i));

    assert_non_null(text);
    return text;
}

static void one(const json_t *row, enum ob_bson_form form)
{
    struct ob_buf doc, out, want;
    struct ob_err err = {.text = ""};
    const char *name = cell(row, 0);
    size_t at;

    ob_buf_init(&doc, 0);
    ob_buf_init(&out, 0);
    ob_buf_init(&want, 0);
    at = doc_open(&doc);
    field(&doc, (unsigned char)strtoul(cell(row, 1), NULL, 16), "v");
    hex(&doc, cell(row, 2));
    doc_close(&doc, at);
    if (ob_bson_json(ob_buf_view(&doc), form, &out, &err) != OB_OK)
        fail_msg("%s, %s: %s", name, form_names[form], err.text);
    ob_buf_printf(&want, "{\"v\":%s}", cell(row, 3 + (size_t)form));
    row_str(name, form_names[form], ob_buf_view(&out), ob_buf_view(&want));
    ROW_TRUE(name, ob_json_check(ob_buf_view(&out), NULL, &err) == OB_OK);
    ob_buf_clear(&doc);
    ob_buf_clear(&out);
    ob_buf_clear(&want);
}

static void test_every_type_in_every_form(void **state)
{
    json_t *all = load();
    bool seen[256] = {false};
    size_t i;
    const json_t *row;

    (void)state;
    json_array_foreach(all, i, row)
    {
        seen[strtoul(cell(row, 1), NULL, 16) & 255] = true;
        for (int form = 0; form < 3; form++)
            one(row, (enum ob_bson_form)form);
    }
    for (unsigned type = 1; type <= 0x13; type++)
        assert_true(seen[type]);
    assert_true(seen[0xff] && seen[0x7f]);
    json_decref(all);
}

static void test_forms_have_names(void **state)
{
    enum ob_bson_form form;

    (void)state;
    for (int i = 0; i < 3; i++) {
        assert_true(ob_bson_form_named(form_names[i], &form));
        assert_int_equal(form, i);
    }
    assert_false(ob_bson_form_named("Plain", &form));
}

/* ---- what is no BSON ---- */

static void test_bad_documents_are_refused_with_the_place(void **state)
{
    static const struct {
        const char *name, *bytes, *want;
    } cases[] = {
        {"nothing", "", "byte 0: the length of a document is wrong"},
        {"four bytes", "04000000", "byte 0: the length of a document is wrong"},
        {"longer than it is", "06000000 00", "byte 0: the length of a document is wrong"},
        {"shorter than it is", "05000000 00 00", "byte 0: the length of a document is wrong"},
        {"no NUL at the end", "05000000 01", "byte 4: a document does not end with a NUL"},
        {"no such type", "08000000 14 61 00 00", "byte 4: there is no such type of value"},
        {"type 0", "08000000 00 61 00 00", "byte 4: there is no such type of value"},
        {"a name without end", "07000000 0a 61 00", "byte 5: the name of a field does not end"},
        {"a double cut off", "0c000000 01 61 00 01020304 00", "byte 7: a value is not whole"},
        {"a string of length 0", "0c000000 02 61 00 00000000 00", "byte 7: a value is not whole"},
        {"a string over the end", "0d000000 02 61 00 03000000 61 00",
         "byte 7: a value is not whole"},
        {"a string without NUL", "0e000000 02 61 00 02000000 61 62 00",
         "byte 7: a value is not whole"},
        {"a string of 4 GiB", "0d000000 02 61 00 ffffffff 00 00", "byte 7: a value is not whole"},
        {"bytes of 4 GiB", "0d000000 05 61 00 ffffffff 00 00", "byte 7: a value is not whole"},
        {"a document over its parent's end", "0d000000 03 61 00 06000000 00 00",
         "byte 7: a value is not whole"},
        {"inside a document", "10000000 03 61 00 08000000 20 62 00 00 00",
         "byte 11: there is no such type of value"},
        {"half a regular expression", "0a000000 0b 61 00 62 63 00", "byte 7: a value is not whole"},
        {"a scope that is not filled",
         "1a000000 0f 61 00 12000000 02000000 61 00 05000000 00 000000 00",
         "byte 7: a value is not whole"},
        {"old bytes with a wrong length", "11000000 05 61 00 04000000 02 05000000 00",
         "the second length of a binary is wrong"},
    };
    struct ob_buf doc, out;

    (void)state;
    ob_buf_init(&doc, 0);
    ob_buf_init(&out, 0);
    ob_buf_c(&out, "kept");
    for (size_t i = 0; i < ROWS(cases); i++) {
        struct ob_err err = {.text = ""};
        ob_buf_reset(&doc);
        hex(&doc, cases[i].bytes);
        row_int(cases[i].name, "status", ob_bson_json(ob_buf_view(&doc), OB_BSON_PLAIN, &out, &err),
                OB_REJECT);
        row_str(cases[i].name, "text", ob_str_c(err.text), ob_str_c(cases[i].want));
        row_str(cases[i].name, "what was there before", ob_buf_view(&out), OB_STR("kept"));
    }
    ob_buf_clear(&doc);
    ob_buf_clear(&out);
}

/* ---- depth and size ---- */

/* A document that has n documents (or codes with such a scope) in it. */
static void nest(struct ob_buf *b, unsigned n, unsigned char type)
{
    static size_t open[OB_BSON_DEPTH + 2], whole[OB_BSON_DEPTH + 2];
    unsigned i;

    open[0] = doc_open(b);
    for (i = 1; i <= n; i++) {
        field(b, type, "a");
        whole[i] = b->n;
        if (type == OB_BSON_CODE_SCOPE) {
            le32(b, 0);
            hex(b, "01000000 00");
        }
        open[i] = doc_open(b);
    }
    for (i = n + 1; i-- > 0;) {
        doc_close(b, open[i]);
        if (i && type == OB_BSON_CODE_SCOPE)
            fix32(b, whole[i], (uint32_t)(b->n - whole[i]));
    }
}

static void test_depth_has_a_limit(void **state)
{
    static const unsigned char types[] = {OB_BSON_DOCUMENT, OB_BSON_ARRAY, OB_BSON_CODE_SCOPE};
    struct ob_buf doc, out;
    struct ob_err err;

    (void)state;
    ob_buf_init(&doc, 0);
    ob_buf_init(&out, 0);
    for (size_t i = 0; i < ROWS(types); i++) {
        for (int form = 0; form < 3; form++) {
            ob_buf_reset(&doc);
            ob_buf_reset(&out);
            nest(&doc, OB_BSON_DEPTH - 1, types[i]);
            assert_int_equal(ob_bson_json(ob_buf_view(&doc), (enum ob_bson_form)form, &out, &err),
                             OB_OK);
            assert_int_equal(ob_json_check(ob_buf_view(&out), NULL, &err), OB_OK);
            ob_buf_reset(&doc);
            nest(&doc, OB_BSON_DEPTH, types[i]);
            assert_int_equal(ob_bson_json(ob_buf_view(&doc), (enum ob_bson_form)form, &out, &err),
                             OB_REJECT);
            assert_non_null(strstr(err.text, "nested deeper than 250"));
        }
    }
    ob_buf_clear(&doc);
    ob_buf_clear(&out);
}

#define BIG ((size_t)16 << 20) /* the largest document of a server */

static void test_16_megabytes(void **state)
{
    struct ob_buf doc, out;
    struct ob_err err;
    size_t at, n = BIG - 64;
    char *text = malloc(n);

    (void)state;
    assert_non_null(text);
    memset(text, '\1', n); /* six bytes each in JSON: the worst */
    ob_buf_init(&doc, 2 * BIG);
    ob_buf_init(&out, 6 * BIG);
    at = doc_open(&doc);
    field(&doc, OB_BSON_STRING, "s");
    le32(&doc, (uint32_t)n + 1);
    ob_buf_put(&doc, text, n);
    ob_buf_char(&doc, '\0');
    doc_close(&doc, at);
    assert_int_equal(ob_bson_json(ob_buf_view(&doc), OB_BSON_PLAIN, &out, &err), OB_OK);
    assert_int_equal(out.n, 6 * n + strlen("{\"s\":\"\"}"));
    assert_memory_equal(out.p, "{\"s\":\"\\u0001\\u0001", 18);
    ob_buf_clear(&out);
    ob_buf_init(&out, BIG); /* a ceiling is kept, and what failed leaves nothing behind */
    ob_buf_c(&out, "kept");
    assert_int_equal(ob_bson_json(ob_buf_view(&doc), OB_BSON_PLAIN, &out, &err), OB_DOWN);
    assert_false(out.failed);
    assert_string_equal(ob_buf_z(&out), "kept");
    ob_buf_clear(&doc);
    ob_buf_clear(&out);
    free(text);
}

/* ---- fields and payloads ---- */

static void test_fields_are_found_by_name(void **state)
{
    struct ob_buf doc;
    struct ob_bson f;
    struct ob_err err;
    size_t at;

    (void)state;
    ob_buf_init(&doc, 0);
    at = doc_open(&doc);
    field(&doc, OB_BSON_INT32, "a");
    le32(&doc, 7);
    field(&doc, OB_BSON_NULL, "ab");
    field(&doc, OB_BSON_INT32, "a");
    le32(&doc, 8);
    doc_close(&doc, at);
    assert_int_equal(ob_bson_find(ob_buf_view(&doc), "a", &f, &err), OB_OK);
    assert_int_equal(ob_bson_u32(f.value.p), 7);
    assert_int_equal(ob_bson_find(ob_buf_view(&doc), "ab", &f, &err), OB_OK);
    assert_int_equal(f.type, OB_BSON_NULL);
    assert_int_equal(ob_bson_find(ob_buf_view(&doc), "b", &f, &err), OB_AGAIN);
    doc.p[4] = 0x15;
    assert_int_equal(ob_bson_find(ob_buf_view(&doc), "ab", &f, &err), OB_REJECT);
    ob_buf_clear(&doc);
}

static void test_payloads(void **state)
{
    static const struct {
        const char *name, *type, *value, *want;
        enum ob_payload_kind kind;
    } cases[] = {
        {"a string goes as it is", "02", "0c000000 7b2261223a312e30307d20 00", "{\"a\":1.00} ",
         OB_PAYLOAD_JSON},
        {"bytes go as they are", "05", "03000000 00 616263", "abc", OB_PAYLOAD_BYTES},
        {"a document is written", "03", "0c000000 10 61 00 01000000 00", "{\"a\":1}",
         OB_PAYLOAD_JSON},
        {"an array too", "04", "0c000000 10 30 00 01000000 00", "[1]", OB_PAYLOAD_JSON},
        {"a number too", "10", "2a000000", "42", OB_PAYLOAD_JSON},
        {"null is none", "0a", "", "", OB_PAYLOAD_NULL},
    };
    struct ob_buf doc, scratch;

    (void)state;
    ob_buf_init(&doc, 0);
    ob_buf_init(&scratch, 0);
    ob_buf_c(&scratch, "before");
    for (size_t i = 0; i < ROWS(cases); i++) {
        struct ob_err err = {.text = ""};
        struct ob_bson f;
        struct ob_str payload;
        enum ob_payload_kind kind;
        size_t at;
        ob_buf_reset(&doc);
        at = doc_open(&doc);
        field(&doc, (unsigned char)strtoul(cases[i].type, NULL, 16), "payload");
        hex(&doc, cases[i].value);
        doc_close(&doc, at);
        row_int(cases[i].name, "find", ob_bson_find(ob_buf_view(&doc), "payload", &f, &err), OB_OK);
        row_int(cases[i].name, "status",
                ob_bson_payload(&f, OB_BSON_PLAIN, &scratch, &payload, &kind, &err), OB_OK);
        row_int(cases[i].name, "kind", kind, cases[i].kind);
        row_str(cases[i].name, "payload", payload, ob_str_c(cases[i].want));
    }
    ob_buf_clear(&doc);
    ob_buf_clear(&scratch);
}

/* ---- random numbers read back ---- */

static void test_doubles_read_back(void **state)
{
    struct ob_rand r;
    char text[OB_BSON_TEXT_MAX];

    (void)state;
    r.state = 20261;
    for (int i = 0; i < 200000; i++) {
        uint64_t bits = ob_rand_next(&r);
        double v;
        memcpy(&v, &bits, sizeof(v));
        if (!isfinite(v))
            continue;
        for (int js = 0; js < 2; js++) {
            size_t n = ob_bson_double_text(v, js, text);
            assert_true(n < sizeof(text) && n == strlen(text));
            assert_true(strtod(text, NULL) == v);
        }
    }
}

#if OB_HAVE_MONGODB
/* ---- a second opinion ---- */

static void random_value(bson_t *doc, struct ob_rand *r, unsigned depth);

static void random_fields(bson_t *doc, struct ob_rand *r, unsigned depth)
{
    for (unsigned n = (unsigned)ob_rand_below(r, 6); n; n--)
        random_value(doc, r, depth);
}

static void random_nested(bson_t *doc, struct ob_rand *r, unsigned depth, const char *key)
{
    bson_t sub;

    switch (depth < 5 ? ob_rand_below(r, 3) : 3) {
    case 0:
        bson_append_document_begin(doc, key, -1, &sub);
        random_fields(&sub, r, depth + 1);
        bson_append_document_end(doc, &sub);
        break;
    case 1:
        bson_append_array_begin(doc, key, -1, &sub);
        random_fields(&sub, r, depth + 1);
        bson_append_array_end(doc, &sub);
        break;
    case 2:
        bson_init(&sub);
        random_fields(&sub, r, depth + 1);
        bson_append_code_with_scope(doc, key, -1, "f()", &sub);
        bson_destroy(&sub);
        break;
    default:
        bson_append_null(doc, key, -1);
    }
}

/* Long enough a mix of sizes: one byte, four, or all. */
static int64_t random_number(struct ob_rand *r)
{
    int64_t v = (int64_t)ob_rand_next(r);

    return ob_rand_below(r, 2) ? v : v >> 40;
}

static void random_scalar(bson_t *doc, struct ob_rand *r, const char *key)
{
    uint8_t bytes[16];
    bson_oid_t oid;
    bson_decimal128_t dec = {.high = ob_rand_next(r), .low = ob_rand_next(r)};
    double d;

    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)ob_rand_next(r);
    bson_oid_init_from_data(&oid, bytes);
    memcpy(&d, bytes, sizeof(d));
    switch (ob_rand_below(r, 18)) {
    case 0:
        bson_append_double(doc, key, -1, d);
        break;
    case 1:
        bson_append_double(doc, key, -1, (double)(random_number(r) >> 30) / 8);
        break;
    case 2:
        bson_append_utf8(doc, key, -1, "a\"\\\n\xc3\xa9", 6);
        break;
    case 3:
        bson_append_binary(doc, key, -1, (bson_subtype_t)(bytes[0] % 8), bytes, 16);
        break;
    case 4:
        bson_append_undefined(doc, key, -1);
        break;
    case 5:
        bson_append_oid(doc, key, -1, &oid);
        break;
    case 6:
        bson_append_bool(doc, key, -1, bytes[0] & 1);
        break;
    case 7: /* libbson writes years after 9999 its own way: see the golden file */
        bson_append_date_time(doc, key, -1, random_number(r) >> 17);
        break;
    case 8:
        bson_append_regex(doc, key, -1, "^a.*b$", "imx");
        break;
    case 9:
        bson_append_dbpointer(doc, key, -1, "db.c", &oid);
        break;
    case 10:
        bson_append_code(doc, key, -1, "return 1");
        break;
    case 11:
        bson_append_symbol(doc, key, -1, "sym", 3);
        break;
    case 12:
        bson_append_int32(doc, key, -1, (int32_t)random_number(r));
        break;
    case 13:
        bson_append_timestamp(doc, key, -1, (uint32_t)random_number(r), (uint32_t)dec.low);
        break;
    case 14:
        bson_append_int64(doc, key, -1, random_number(r));
        break;
    case 15: /* more than 34 digits are 0, see the golden file; libbson writes 35 */
        dec.high &= ~((uint64_t)1 << 48);
        bson_append_decimal128(doc, key, -1, &dec);
        break;
    case 16:
        bson_append_minkey(doc, key, -1);
        break;
    default:
        bson_append_maxkey(doc, key, -1);
    }
}

static void random_value(bson_t *doc, struct ob_rand *r, unsigned depth)
{
    static const char *const keys[] = {"a", "b.c", "$d", "", "e\"f", "\xc3\xa9"};
    const char *key = keys[ob_rand_below(r, ROWS(keys))];

    if (ob_rand_below(r, 3) == 0)
        random_nested(doc, r, depth, key);
    else
        random_scalar(doc, r, key);
}

/* {"$numberDouble": text}: both texts become what they stand for. */
static bool same_double(const json_t *a, const json_t *b)
{
    const char *x = json_string_value(json_object_get(a, "$numberDouble"));
    const char *y = json_string_value(json_object_get(b, "$numberDouble"));

    return x && y && (strcmp(x, y) == 0 || strtod(x, NULL) == strtod(y, NULL));
}

/* The same JSON, numbers by value: libbson writes doubles with twenty digits. A name that appears
 * twice is one in both. */
static bool same_json(const json_t *a, const json_t *b) // NOLINT(misc-no-recursion)
{
    void *i = json_object_iter((json_t *)(uintptr_t)a);
    bool same = json_typeof(a) == json_typeof(b);

    if (!same || same_double(a, b))
        return same;
    if (json_is_array(a)) {
        same = json_array_size(a) == json_array_size(b);
        for (size_t n = 0; same && n < json_array_size(a); n++)
            same = same_json(json_array_get(a, n), json_array_get(b, n));
        return same;
    }
    if (!json_is_object(a))
        return json_equal(a, b);
    same = json_object_size(a) == json_object_size(b);
    for (; same && i; i = json_object_iter_next((json_t *)(uintptr_t)a, i)) {
        const json_t *other = json_object_get(b, json_object_iter_key(i));
        same = other && same_json(json_object_iter_value(i), other);
    }
    return same;
}

static void agree(char *theirs, struct ob_str ours, unsigned long seed)
{
    json_error_t why;
    json_t *a = json_loads(theirs, JSON_ALLOW_NUL, &why);
    json_t *b = json_loadb(ours.p, ours.n, JSON_ALLOW_NUL, &why);

    if (!a || !b || !same_json(a, b))
        fail_msg("document %lu: theirs %s, ours %.*s", seed, theirs, OB_STR_ARG(ours));
    json_decref(a);
    json_decref(b);
    bson_free(theirs);
}

static void test_libbson_says_the_same(void **state)
{
    struct ob_buf out;
    struct ob_err err;

    (void)state;
    ob_buf_init(&out, 0);
    for (unsigned long seed = 1; seed <= 3000; seed++) {
        struct ob_rand r;
        bson_t doc = BSON_INITIALIZER;
        struct ob_str bytes;
        r.state = seed;
        random_fields(&doc, &r, 0);
        bytes = (struct ob_str){(const char *)bson_get_data(&doc), doc.len};
        ob_buf_reset(&out);
        assert_int_equal(ob_bson_json(bytes, OB_BSON_RELAXED, &out, &err), OB_OK);
        agree(bson_as_relaxed_extended_json(&doc, NULL), ob_buf_view(&out), seed);
        ob_buf_reset(&out);
        assert_int_equal(ob_bson_json(bytes, OB_BSON_CANONICAL, &out, &err), OB_OK);
        agree(bson_as_canonical_extended_json(&doc, NULL), ob_buf_view(&out), seed);
        bson_destroy(&doc);
    }
    ob_buf_clear(&out);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_type_in_every_form),
        cmocka_unit_test(test_forms_have_names),
        cmocka_unit_test(test_bad_documents_are_refused_with_the_place),
        cmocka_unit_test(test_depth_has_a_limit),
        cmocka_unit_test(test_16_megabytes),
        cmocka_unit_test(test_fields_are_found_by_name),
        cmocka_unit_test(test_payloads),
        cmocka_unit_test(test_doubles_read_back),
#if OB_HAVE_MONGODB
        cmocka_unit_test(test_libbson_says_the_same),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
