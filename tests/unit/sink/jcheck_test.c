/* SPDX-License-Identifier: Apache-2.0 */
/* jcheck_test - the fast check takes what the scanner and a library take, and nothing else. */
#include "core/jscan.h"
#include "core/rand.h"
#include "harness.h"
#include "sink/jcheck.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

static const struct {
    const char *name;
    struct ob_str text;
    bool want;
} cases[] = {
    {"object", {"{\"a\":1}", 7}, true},
    {"empty object", {"{}", 2}, true},
    {"empty array", {"[ ]", 3}, true},
    {"nested", {"[{\"a\":[[],{}]},[1,2]]", 21}, true},
    {"spaces and tabs", {" \t{ \"a\" : [ 1 , 2 ] } \t", 23}, true},
    {"top string", {"\"x\"", 3}, true},
    {"top number", {"-12.5e+3", 8}, true},
    {"zero", {"0", 1}, true},
    {"minus zero", {"-0", 2}, true},
    {"words", {"[true,false,null]", 17}, true},
    {"escapes", {"\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00fF\"", 24}, true},
    {"UTF-8", {"\"\xc3\xa4\xe2\x82\xac\xf0\x9f\x93\xa6\"", 11}, true},
    {"long string", {"\"abcdefghijklmnopqrstuvwxyz0123456789\"", 38}, true},
    {"empty", {"", 0}, false},
    {"only space", {"  ", 2}, false},
    {"line break in white space", {"{\n}", 3}, false},
    {"carriage return in white space", {"[1,\r2]", 6}, false},
    {"line break behind", {"{}\n", 3}, false},
    {"two values", {"1 2", 3}, false},
    {"comma behind", {"[1,]", 4}, false},
    {"comma in front", {"[,1]", 4}, false},
    {"comma in object", {"{\"a\":1,}", 8}, false},
    {"key without colon", {"{\"a\" 1}", 7}, false},
    {"key without value", {"{\"a\":}", 6}, false},
    {"number as key", {"{1:2}", 5}, false},
    {"wrong bracket", {"[1}", 3}, false},
    {"wrong bracket after nesting", {"{\"a\":[1]]", 9}, false},
    {"not closed", {"[1", 2}, false},
    {"not opened", {"1]", 2}, false},
    {"closed twice", {"[]]", 3}, false},
    {"string not closed", {"\"abc", 4}, false},
    {"escape at the end", {"\"\\", 2}, false},
    {"bad escape", {"\"\\x\"", 4}, false},
    {"escape of NUL", {"\"\\\0\"", 4}, false},
    {"short \\u", {"\"\\u12\"", 6}, false},
    {"bad hex", {"\"\\u12g4\"", 8}, false},
    {"control in string", {"\"a\x01\"", 4}, false},
    {"line break in string", {"\"a\nb\"", 5}, false},
    {"NUL in string", {"\"a\0b\"", 5}, false},
    {"not UTF-8", {"\"\xff\"", 3}, false},
    {"surrogate", {"\"\xed\xa0\x80\"", 5}, false},
    {"UTF-8 cut off", {"\"\xe2\x82", 3}, false},
    {"leading zero", {"01", 2}, false},
    {"plus", {"+1", 2}, false},
    {"only minus", {"-", 1}, false},
    {"point at the end", {"1.", 2}, false},
    {"point in front", {".5", 2}, false},
    {"exponent without digits", {"1e", 2}, false},
    {"exponent sign only", {"1e-", 3}, false},
    {"word cut off", {"tru", 3}, false},
    {"word too long", {"nulll", 5}, false},
    {"byte order mark", {"\xef\xbb\xbf{}", 5}, false},
    {"NaN", {"NaN", 3}, false},
};

static void table(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        /* In memory of exactly this size, so that the sanitizer sees a step too far. */
        char *p = malloc(cases[i].text.n ? cases[i].text.n : 1);
        assert_non_null(p);
        memcpy(p, cases[i].text.p, cases[i].text.n);
        if (ob_jcheck_line((struct ob_str){p, cases[i].text.n}, OB_JCHECK_DEPTH) != cases[i].want)
            fail_msg("%s: not %s", cases[i].name, cases[i].want ? "taken" : "refused");
        free(p);
    }
}

static void depth(void **state)
{
    (void)state;
    char text[2 * (OB_JCHECK_DEPTH + 1)];
    for (unsigned d = OB_JCHECK_DEPTH - 1; d <= OB_JCHECK_DEPTH + 1; d++) {
        memset(text, '[', d);
        memset(text + d, ']', d);
        struct ob_str s = {text, 2 * d};
        assert_int_equal(ob_jcheck_line(s, OB_JCHECK_DEPTH), d <= OB_JCHECK_DEPTH);
        assert_int_equal(ob_jcheck_line(s, OB_JCHECK_DEPTH - 1), d <= OB_JCHECK_DEPTH - 1);
    }
    assert_true(ob_jcheck_line(OB_STR("[[1],[2]]"), 2));
    assert_false(ob_jcheck_line(OB_STR("[[1],[[2]]]"), 2));
}

static bool scanner(struct ob_str s)
{
    return s.n > 0 && !memchr(s.p, '\n', s.n) && !memchr(s.p, '\r', s.n) &&
           ob_json_check(s, NULL, NULL) == OB_OK;
}

/* jansson refuses a few texts that RFC 8259 allows: numbers out of range, \u0000 in a key, lone
 * surrogates. So it is only asked whether what we refuse is refused there too. */
static bool library(struct ob_str s)
{
    json_error_t err;
    json_t *j = json_loadb(s.p, s.n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &err);
    json_decref(j);
    return j && !memchr(s.p, '\n', s.n) && !memchr(s.p, '\r', s.n);
}

/* Pieces that make both whole and nearly whole texts likely. */
static const char *const pieces[] = {
    "{",        "}",       "[",
    "]",        ",",       ":",
    "\"",       "\"a\"",   "\"key\":",
    "1",        "-0.5e3",  "true",
    "false",    "null",    " ",
    "\t",       "\n",      "\r",
    "\\",       "\\u00e4", "0",
    "12345678", "{}",      "[]",
    "\xc3\xa4", "\xff",    "\"long string of text\"",
    "e",        ".",       "-",
    "\x01",     "x",
};

static size_t make(struct ob_rand *r, char *out, size_t room)
{
    size_t n = 0;
    for (uint64_t k = ob_rand_below(r, 12) + 1; k > 0; k--) {
        const char *p = pieces[ob_rand_below(r, sizeof(pieces) / sizeof(pieces[0]))];
        size_t len = strlen(p);
        if (n + len > room)
            break;
        memcpy(out + n, p, len);
        n += len;
    }
    return n;
}

static const char sample[] = "{\"id\":\"7\",\"list\":[1,2.5,-3e2,true,null,{\"deep\":[[],{}]}],"
                             "\"text\":\"\\u00e4 \xc3\xa4 \\n\"}";

static void same_as_the_scanner(void **state)
{
    (void)state;
    struct ob_rand r = {1};
    size_t taken = 0;
    for (int i = 0; i < 200000; i++) {
        char text[512];
        size_t n;
        if (i % 2) {
            n = make(&r, text, sizeof(text));
        } else { /* a good text with one to three bytes changed, cut or doubled */
            n = sizeof(sample) - 1;
            memcpy(text, sample, n);
            for (uint64_t k = ob_rand_below(&r, 3); k > 0; k--)
                text[ob_rand_below(&r, n)] = (char)ob_rand_next(&r);
            if (ob_rand_below(&r, 4) == 0)
                n = (size_t)ob_rand_below(&r, n) + 1;
        }
        struct ob_str s = {text, n};
        bool got = ob_jcheck_line(s, OB_JCHECK_DEPTH);
        taken += got;
        if (got != scanner(s) || (!got && library(s)))
            fail_msg("differs: %.*s", (int)n, text);
    }
    assert_true(taken > 10000); /* the texts are not all broken */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table),
        cmocka_unit_test(depth),
        cmocka_unit_test(same_as_the_scanner),
    };
    return cmocka_run_group_tests_name("jcheck", tests, NULL, NULL);
}
