/* SPDX-License-Identifier: Apache-2.0 */
/* jansson_test - thousands of generated texts: the scanner, the writer and pointers against
 * jansson. jansson_agree.h says where the two may differ. A failure prints the seed and the text.
 */
#include "core/json.h"
#include "core/rand.h"

#include "../rows.h"

#include <stdlib.h>

#include "jansson_agree.h"

#define SEEDS 4000

/* Pieces of strings as they stand in a text; all are fine there. */
static const char *const pieces[] = {
    "a",
    "key",
    "the quick brown fox ",
    "\\n",
    "\\\"",
    "\\\\",
    "\\/",
    "\\u00e9",
    "\\uD83D\\uDE00",
    "\xc3\xa9",
    "\xe2\x82\xac",
    "\xf0\x9f\x98\x80",
    "~",
    "/",
    "\\t",
    " ",
    "\\u0041",
    "\x7f",
    "0",
};
static const char *const numbers[] = {
    "0",
    "-0",
    "1",
    "-1",
    "10",
    "1.5",
    "-0.25",
    "1e3",
    "1E-3",
    "1.25e+2",
    "9007199254740993",
    "-9223372036854775808",
    "9223372036854775807",
    "0.1",
    "123456.789e-7",
};
static const char *const keys[] = {"a", "b", "a/b", "m~n", "", "0", "1", "\\u0061", "\xc3\xa9"};
static const char *const spaces[] = {"", "", "", " ", "\n", "\t ", "\r\n"};

#define PICK(r, list) (list)[ob_rand_below((r), ROWS(list))]

static void put_string(struct ob_rand *r, struct ob_buf *out)
{
    ob_buf_char(out, '"');
    for (uint64_t n = ob_rand_below(r, 6); n > 0; n--)
        ob_buf_c(out, PICK(r, pieces));
    ob_buf_char(out, '"');
}

static void put_value(struct ob_rand *r, struct ob_buf *out, int depth)
{
    static const char *const words[] = {"true", "false", "null"};
    uint64_t kind = ob_rand_below(r, depth > 5 ? 3 : 5), n;

    ob_buf_c(out, PICK(r, spaces));
    if (kind == 0)
        put_string(r, out);
    if (kind == 1)
        ob_buf_c(out, PICK(r, numbers));
    if (kind == 2)
        ob_buf_c(out, PICK(r, words));
    if (kind >= 3) {
        ob_buf_char(out, kind == 3 ? '{' : '[');
        n = ob_rand_below(r, 5);
        for (uint64_t i = 0; i < n; i++) {
            if (i)
                ob_buf_char(out, ',');
            ob_buf_c(out, PICK(r, spaces));
            if (kind == 3) {
                ob_buf_printf(out, "\"%s\"", PICK(r, keys));
                ob_buf_c(out, PICK(r, spaces));
                ob_buf_char(out, ':');
            }
            put_value(r, out, depth + 1);
        }
        ob_buf_char(out, kind == 3 ? '}' : ']');
    }
    ob_buf_c(out, PICK(r, spaces));
}

/* One or two bytes changed, removed or added: mostly no JSON any more. */
static void damage(struct ob_rand *r, struct ob_buf *text)
{
    static const char bytes[] = "{}[]\",:\\0123456789-+.eEtrufalsn \n\x01\x80\xc3\xed\xff/u";

    for (uint64_t n = 1 + ob_rand_below(r, 2); n > 0 && text->n > 0; n--) {
        size_t at = (size_t)ob_rand_below(r, text->n);
        char c = bytes[ob_rand_below(r, sizeof(bytes) - 1)];

        switch (ob_rand_below(r, 3)) {
        case 0:
            text->p[at] = c;
            break;
        case 1:
            memmove(text->p + at, text->p + at + 1, --text->n - at);
            break;
        default:
            ob_buf_char(text, c);
            memmove(text->p + at + 1, text->p + at, text->n - 1 - at);
            text->p[at] = c;
        }
    }
}

static void check_text(uint64_t seed, struct ob_str text)
{
    struct ob_err err = {.text = ""};
    enum ob_status st = ob_json_check(text, NULL, &err);

    if (!jansson_agrees(text, st, &err))
        fail_msg("seed %llu: %.*s", (unsigned long long)seed, OB_STR_ARG(text));
}

static void test_accept_and_refuse(void **state)
{
    size_t good = 0, bad = 0;
    struct ob_buf text;

    (void)state;
    ob_buf_init(&text, 0);
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct ob_rand r = {seed};

        ob_buf_reset(&text);
        put_value(&r, &text, 0);
        if (ob_json_check(ob_buf_view(&text), NULL, NULL) != OB_OK)
            fail_msg("seed %llu is JSON: %s", (unsigned long long)seed, ob_buf_z(&text));
        check_text(seed, ob_buf_view(&text));
        for (int i = 0; i < 5; i++) {
            damage(&r, &text);
            check_text(seed, ob_buf_view(&text));
            if (ob_json_check(ob_buf_view(&text), NULL, NULL) == OB_OK)
                good++;
            else
                bad++;
        }
    }
    assert_true(good > 500 && bad > 5000); /* both kinds were there */
    ob_buf_clear(&text);
}

/* Tokens of the text written anew must be the same document for jansson. */
static void copy_tokens(struct ob_str text, struct ob_buf *out)
{
    struct ob_buf inside;
    struct ob_jscan s;
    struct ob_jtok tok = {.type = OB_J_NULL};
    struct ob_json j;

    ob_buf_init(&inside, 0);
    ob_jscan_init(&s, text);
    ob_json_init(&j, out);
    while (ob_jscan_next(&s, &tok, NULL) == OB_OK && tok.type != OB_J_END) {
        ob_buf_reset(&inside);
        if (tok.type == OB_J_KEY || tok.type == OB_J_STRING)
            ob_jscan_unescape(&inside, tok.text);
        if (tok.type == OB_J_OBJECT || tok.type == OB_J_ARRAY)
            ob_json_open(&j, *tok.raw.p);
        else if (tok.type == OB_J_OBJECT_END || tok.type == OB_J_ARRAY_END)
            ob_json_close(&j, *tok.raw.p);
        else if (tok.type == OB_J_KEY)
            ob_json_key(&j, ob_buf_view(&inside));
        else if (tok.type == OB_J_STRING)
            ob_json_str(&j, ob_buf_view(&inside));
        else
            ob_json_raw(&j, tok.raw);
    }
    assert_int_equal(tok.type, OB_J_END);
    ob_buf_clear(&inside);
}

static void test_same_document(void **state)
{
    struct ob_buf text, copy;

    (void)state;
    ob_buf_init(&text, 0);
    ob_buf_init(&copy, 0);
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct ob_rand r = {seed};
        json_t *a, *b;

        ob_buf_reset(&text);
        ob_buf_reset(&copy);
        put_value(&r, &text, 0);
        copy_tokens(ob_buf_view(&text), &copy);
        a = json_loadb(text.p, text.n, JANSSON_FLAGS, NULL);
        b = json_loadb(copy.p, copy.n, JANSSON_FLAGS, NULL);
        if (!a || !b || !json_equal(a, b))
            fail_msg("seed %llu: %s", (unsigned long long)seed, ob_buf_z(&text));
        json_decref(a);
        json_decref(b);
    }
    ob_buf_clear(&text);
    ob_buf_clear(&copy);
}

static void test_same_values(void **state)
{
    static const char *const tokens[] = {"/a", "/b", "/a~1b", "/m~0n",    "/",
                                         "/0", "/1", "/3",    "/\xc3\xa9"};
    struct ob_buf text, pointer;
    size_t found = 0;

    (void)state;
    ob_buf_init(&text, 0);
    ob_buf_init(&pointer, 0);
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct ob_rand r = {seed};

        ob_buf_reset(&text);
        put_value(&r, &text, 0);
        for (int i = 0; i < 20; i++) {
            struct ob_str raw = {NULL, 0};
            enum ob_jtype type;
            enum ob_status st;

            ob_buf_reset(&pointer);
            for (uint64_t n = ob_rand_below(&r, 4); n > 0; n--)
                ob_buf_c(&pointer, PICK(&r, tokens));
            st = ob_json_pointer(ob_buf_view(&text), ob_str_c(ob_buf_z(&pointer)), &raw, &type,
                                 NULL);
            found += st == OB_OK && pointer.n > 0;
            if (!jansson_same_at(ob_buf_view(&text), ob_str_c(ob_buf_z(&pointer)), raw))
                fail_msg("seed %llu: %s in %s", (unsigned long long)seed, ob_buf_z(&pointer),
                         ob_buf_z(&text));
        }
    }
    assert_true(found > 1000);
    ob_buf_clear(&text);
    ob_buf_clear(&pointer);
}

/* Where jansson refuses and the RFC does not: each difference by its name. */
static void test_known_differences(void **state)
{
    static const struct {
        const char *name;
        struct ob_str text;
        bool ours, theirs;
    } cases[] = {
        {"number beyond doubles", {"1e400", 5}, true, false},
        {"integer beyond 64 bits", {"9223372036854775808", 19}, true, false},
        {"high surrogate alone", {"\"\\ud800\"", 8}, true, false},
        {"low surrogate alone", {"\"\\udc00\"", 8}, true, false},
        {"NUL in a key", {"{\"\\u0000\":1}", 12}, true, false},
        {"NUL in a string", {"\"\\u0000\"", 8}, true, true},
        {"NUL behind the value", {"1\0", 2}, false, true},
    };

    (void)state;
    for (size_t i = 0; i < ROWS(cases); i++) {
        json_t *doc = json_loadb(cases[i].text.p, cases[i].text.n, JANSSON_FLAGS, NULL);

        row_int(cases[i].name, "jansson", doc != NULL, cases[i].theirs);
        row_int(cases[i].name, "scanner", ob_json_check(cases[i].text, NULL, NULL) == OB_OK,
                cases[i].ours);
        json_decref(doc);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accept_and_refuse),
        cmocka_unit_test(test_same_document),
        cmocka_unit_test(test_same_values),
        cmocka_unit_test(test_known_differences),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
