/* SPDX-License-Identifier: Apache-2.0 */
/* jscan_test - what is JSON and what is not, tokens as slices, whole values, escapes. */
#include "core/jscan.h"

#include "../rows.h"

#include <stdlib.h>

#include "jansson_agree.h"

static void test_accepts(void **state)
{
    static const struct {
        const char *name, *text;
        enum ob_jtype type;
    } cases[] = {
        {"object", "{}", OB_J_OBJECT},
        {"array", "[]", OB_J_ARRAY},
        {"string", "\"\"", OB_J_STRING},
        {"number", "0", OB_J_NUMBER},
        {"minus zero", "-0", OB_J_NUMBER},
        {"negative", "-12", OB_J_NUMBER},
        {"fraction", "0.50", OB_J_NUMBER},
        {"exponent", "1e5", OB_J_NUMBER},
        {"exponent with signs", "-1.5E-05", OB_J_NUMBER},
        {"exponent plus", "1E+5", OB_J_NUMBER},
        {"number beyond doubles", "1e400", OB_J_NUMBER},
        {"number of many digits", "123456789012345678901234567890.0123456789", OB_J_NUMBER},
        {"true", "true", OB_J_TRUE},
        {"false", "false", OB_J_FALSE},
        {"null", "null", OB_J_NULL},
        {"spaces around", " \t\r\n1 \t\r\n", OB_J_NUMBER},
        {"spaces inside", "{ \"a\" : [ 1 , 2 ] , \"b\" : null }", OB_J_OBJECT},
        {"nested", "[[],{},[{\"a\":[{}]}]]", OB_J_ARRAY},
        {"empty key", "{\"\":1}", OB_J_OBJECT},
        {"same key twice", "{\"a\":1,\"a\":2}", OB_J_OBJECT},
        {"all escapes", "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\\uABCD\"", OB_J_STRING},
        {"escaped NUL", "\"\\u0000\"", OB_J_STRING},
        {"surrogates", "\"\\ud83d\\ude00\"", OB_J_STRING},
        {"surrogate alone", "\"\\ud83d\"", OB_J_STRING},
        {"UTF-8", "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\"", OB_J_STRING},
        {"delete", "\"\x7f\"", OB_J_STRING},
    };

    (void)state;
    for (size_t i = 0; i < ROWS(cases); i++) {
        struct ob_err err = {.text = ""};
        enum ob_jtype type = OB_J_END;
        enum ob_status st = ob_json_check(ob_str_c(cases[i].text), &type, &err);

        row_str(cases[i].name, "error", ob_str_c(err.text), OB_STR(""));
        row_int(cases[i].name, "status", st, OB_OK);
        row_int(cases[i].name, "type", (int)type, (int)cases[i].type);
        ROW_TRUE(cases[i].name, jansson_agrees(ob_str_c(cases[i].text), st, &err));
    }
}

static void test_refuses(void **state)
{
    static const struct {
        const char *name;
        struct ob_str text;
        const char *why;
    } cases[] = {
        {"empty", {NULL, 0}, "byte 0: value expected, the text ends"},
        {"only spaces", {"  ", 2}, "byte 2: value expected, the text ends"},
        {"two values", {"1 2", 3}, "byte 2: something follows the value"},
        {"two objects", {"{}{}", 4}, "byte 2: something follows the value"},
        {"closed twice", {"[]]", 3}, "byte 2: something follows the value"},
        {"NUL behind", {"1\0", 2}, "byte 1: something follows the value"},
        {"byte order mark", {"\xef\xbb\xbf{}", 5}, "byte 0: value expected"},
        {"word", {"hello", 5}, "byte 0: value expected"},
        {"capital", {"True", 4}, "byte 0: value expected"},
        {"word cut", {"tru", 3}, "byte 0: value expected"},
        {"word too long", {"nulll", 5}, "byte 4: something follows the value"},
        {"NaN", {"NaN", 3}, "byte 0: value expected"},
        {"single quotes", {"'a'", 3}, "byte 0: value expected"},
        {"comment", {"/**/1", 5}, "byte 0: value expected"},
        {"leading zero", {"01", 2}, "byte 1: number with a leading zero"},
        {"leading zero behind minus", {"-00", 3}, "byte 2: number with a leading zero"},
        {"plus", {"+1", 2}, "byte 0: value expected"},
        {"minus alone", {"-", 1}, "byte 1: digit expected"},
        {"point alone", {".5", 2}, "byte 0: value expected"},
        {"nothing behind point", {"1.", 2}, "byte 2: digit expected"},
        {"exponent behind point", {"1.e5", 4}, "byte 2: digit expected"},
        {"nothing behind e", {"1e", 2}, "byte 2: digit expected"},
        {"nothing behind e+", {"1e+", 3}, "byte 3: digit expected"},
        {"hexadecimal", {"0x10", 4}, "byte 1: something follows the value"},
        {"string without end", {"\"abc", 4}, "byte 0: string without its end"},
        {"string ends in escape", {"\"abc\\", 5}, "byte 4: bad escape"},
        {"unknown escape", {"\"\\x\"", 4}, "byte 1: bad escape"},
        {"escape cut", {"\"\\u12\"", 6}, "byte 1: bad escape"},
        {"escape not hexadecimal", {"\"\\u12g4\"", 8}, "byte 1: bad escape"},
        {"newline in string", {"\"a\nb\"", 5}, "byte 2: control character in a string"},
        {"NUL in string", {"\"a\0b\"", 5}, "byte 2: control character in a string"},
        {"bad byte", {"\"\xff\"", 3}, "byte 1: not UTF-8"},
        {"overlong", {"\"\xc0\xaf\"", 4}, "byte 1: not UTF-8"},
        {"surrogate in UTF-8", {"\"\xed\xa0\x80\"", 5}, "byte 1: not UTF-8"},
        {"above U+10FFFF", {"\"\xf4\x90\x80\x80\"", 6}, "byte 1: not UTF-8"},
        {"character cut by the quote", {"\"\xe2\x82\"", 4}, "byte 1: not UTF-8"},
        {"character cut by the end", {"\"\xe2\x82", 3}, "byte 1: not UTF-8"},
        {"bad byte in a key", {"{\"\x80\":1}", 7}, "byte 2: not UTF-8"},
        {"bad byte outside", {"[\xff]", 3}, "byte 1: value expected"},
        {"array without end", {"[1", 2}, "byte 2: the text ends inside a value"},
        {"array, nothing behind comma", {"[1,", 3}, "byte 3: value expected, the text ends"},
        {"comma at the end", {"[1,]", 4}, "byte 3: value expected"},
        {"comma at the start", {"[,1]", 4}, "byte 1: value expected"},
        {"no comma", {"[1 2]", 5}, "byte 3: ',' or ']' expected"},
        {"wrong bracket", {"[1}", 3}, "byte 2: ',' or ']' expected"},
        {"wrong bracket at once", {"[}", 2}, "byte 1: value expected"},
        {"object without end", {"{", 1}, "byte 1: key expected"},
        {"object, wrong bracket", {"{\"a\":1]", 7}, "byte 6: ',' or '}' expected"},
        {"object, comma at the end", {"{\"a\":1,}", 8}, "byte 7: key expected"},
        {"key without value", {"{\"a\"}", 5}, "byte 4: ':' expected"},
        {"key without value, colon", {"{\"a\":}", 6}, "byte 5: value expected"},
        {"key is a number", {"{1:2}", 5}, "byte 1: key expected"},
        {"key without quotes", {"{a:2}", 5}, "byte 1: key expected"},
        {"two colons", {"{\"a\"::1}", 8}, "byte 5: value expected"},
        {"colon in an array", {"[\"a\":1]", 7}, "byte 4: ',' or ']' expected"},
        {"vertical tab is no space", {"\v1", 2}, "byte 0: value expected"},
        {"no-break space is none",
         {"\xc2\xa0"
          "1",
          3},
         "byte 0: value expected"},
    };

    (void)state;
    for (size_t i = 0; i < ROWS(cases); i++) {
        struct ob_err err = {.text = ""};
        enum ob_jtype type = OB_J_END;
        enum ob_status st = ob_json_check(cases[i].text, &type, &err);

        row_int(cases[i].name, "status", st, OB_REJECT);
        row_str(cases[i].name, "why", ob_str_c(err.text), ob_str_c(cases[i].why));
        row_int(cases[i].name, "type is untouched", (int)type, OB_J_END);
        ROW_TRUE(cases[i].name, jansson_agrees(cases[i].text, st, &err));
    }
}

/* n times open, then n times close, '{' with a key each. */
static struct ob_str nested(char *out, size_t n, bool object)
{
    size_t at = 0;

    for (size_t i = 0; i < n; i++)
        if (object && i + 1 < n) {
            memcpy(out + at, "{\"k\":", 5);
            at += 5;
        } else {
            out[at++] = object ? '{' : '[';
        }
    memset(out + at, object ? '}' : ']', n);
    return (struct ob_str){out, at + n};
}

static void test_depth(void **state)
{
    size_t huge = 5000000;
    char *text = malloc(huge * 2);
    struct ob_err err;

    (void)state;
    for (int object = 0; object < 2; object++) {
        assert_int_equal(ob_json_check(nested(text, 512, object), NULL, &err), OB_OK);
        assert_int_equal(ob_json_check(nested(text, 513, object), NULL, &err), OB_REJECT);
        assert_non_null(strstr(err.text, "nested too deep"));
    }
    memset(text, '[', huge);
    assert_int_equal(ob_json_check((struct ob_str){text, huge}, NULL, &err), OB_REJECT);
    assert_string_equal(err.text, "byte 512: nested too deep");
    free(text);
}

static void test_tokens(void **state)
{
    static const struct {
        enum ob_jtype type;
        const char *raw, *text;
        bool escaped;
    } want[] = {
        {OB_J_OBJECT, "{", "{", false},
        {OB_J_KEY, "\"a\"", "a", false},
        {OB_J_ARRAY, "[", "[", false},
        {OB_J_NUMBER, "-1.50", "-1.50", false},
        {OB_J_TRUE, "true", "true", false},
        {OB_J_FALSE, "false", "false", false},
        {OB_J_NULL, "null", "null", false},
        {OB_J_ARRAY_END, "]", "]", false},
        {OB_J_KEY, "\"b\\n\"", "b\\n", true},
        {OB_J_STRING, "\"\\u0041\"", "\\u0041", true},
        {OB_J_KEY, "\"c\"", "c", false},
        {OB_J_OBJECT, "{", "{", false},
        {OB_J_OBJECT_END, "}", "}", false},
        {OB_J_OBJECT_END, "}", "}", false},
        {OB_J_END, "", "", false},
        {OB_J_END, "", "", false},
    };
    struct ob_str text =
        OB_STR(" {\"a\" : [-1.50,true, false,null ] ,\"b\\n\":\"\\u0041\",\"c\":{} } ");
    struct ob_jscan s;

    (void)state;
    ob_jscan_init(&s, text);
    for (size_t i = 0; i < ROWS(want); i++) {
        struct ob_jtok tok;

        assert_int_equal(ob_jscan_next(&s, &tok, NULL), OB_OK);
        row_int(want[i].raw, "type", (int)tok.type, (int)want[i].type);
        row_str(want[i].raw, "raw", tok.raw, ob_str_c(want[i].raw));
        row_str(want[i].raw, "text", tok.text, ob_str_c(want[i].text));
        row_int(want[i].raw, "escaped", tok.escaped, want[i].escaped);
        ROW_TRUE(want[i].raw, tok.raw.p >= text.p && tok.raw.p + tok.raw.n <= text.p + text.n);
    }
}

static void test_broken_stays_broken(void **state)
{
    struct ob_jscan s;
    struct ob_jtok tok = {.type = OB_J_TRUE};
    struct ob_err err;

    (void)state;
    ob_jscan_init(&s, OB_STR("[1,x,2]"));
    assert_int_equal(ob_jscan_next(&s, &tok, &err), OB_OK);
    assert_int_equal(ob_jscan_next(&s, &tok, &err), OB_OK);
    assert_int_equal(ob_jscan_next(&s, &tok, &err), OB_REJECT);
    assert_int_equal(tok.type, OB_J_NUMBER); /* as it was */
    for (int i = 0; i < 5; i++)
        assert_int_equal(ob_jscan_next(&s, &tok, &err), OB_REJECT);
    ob_jscan_init(&s, OB_STR("{\"a\" \"b\":1}")); /* it must not go on with "b" */
    assert_int_equal(ob_jscan_next(&s, &tok, &err), OB_OK);
    for (int i = 0; i < 5; i++)
        assert_int_equal(ob_jscan_next(&s, &tok, &err), OB_REJECT);
    assert_int_equal(tok.type, OB_J_OBJECT);
}

static void test_whole_values(void **state)
{
    static const struct {
        enum ob_jtype type;
        const char *raw;
    } want[] = {
        {OB_J_NUMBER, "1"},       {OB_J_OBJECT, "{\"a\" : [ {} ]}"},
        {OB_J_ARRAY, "[[ ], 2]"}, {OB_J_STRING, "\"x]\""},
        {OB_J_NULL, "null"},      {OB_J_ARRAY_END, "]"},
        {OB_J_END, ""},
    };
    struct ob_jscan s;
    struct ob_jtok tok;

    (void)state;
    ob_jscan_init(&s, OB_STR("[1, {\"a\" : [ {} ]} ,[[ ], 2],\"x]\",null] "));
    assert_int_equal(ob_jscan_next(&s, &tok, NULL), OB_OK);
    for (size_t i = 0; i < ROWS(want); i++) {
        struct ob_str raw;
        enum ob_jtype type;

        assert_int_equal(ob_jscan_value(&s, &raw, &type, NULL), OB_OK);
        row_int(want[i].raw, "type", (int)type, (int)want[i].type);
        row_str(want[i].raw, "raw", raw, ob_str_c(want[i].raw));
    }
}

static void test_whole_value_broken(void **state)
{
    struct ob_str raw = OB_STR("as it was");
    enum ob_jtype type = OB_J_TRUE;
    struct ob_jscan s;
    struct ob_err err;

    (void)state;
    ob_jscan_init(&s, OB_STR("[1, [2"));
    assert_int_equal(ob_jscan_value(&s, &raw, &type, &err), OB_REJECT);
    assert_string_equal(err.text, "byte 6: the text ends inside a value");
    assert_string_equal(raw.p, "as it was");
    assert_int_equal(type, OB_J_TRUE);
}

static void test_unescape(void **state)
{
    static const struct {
        const char *name;
        struct ob_str in, want;
    } cases[] = {
        {"empty", {NULL, 0}, {"", 0}},
        {"plain", {"abc", 3}, {"abc", 3}},
        {"short ones", {"\\\"\\\\\\/\\b\\f\\n\\r\\t", 16}, {"\"\\/\b\f\n\r\t", 8}},
        {"one byte", {"\\u0041", 6}, {"A", 1}},
        {"NUL", {"a\\u0000b", 8}, {"a\0b", 3}},
        {"two bytes", {"\\u00e9", 6}, {"\xc3\xa9", 2}},
        {"two bytes, last", {"\\u07FF", 6}, {"\xdf\xbf", 2}},
        {"three bytes", {"\\u20AC", 6}, {"\xe2\x82\xac", 3}},
        {"three bytes, last", {"\\uffff", 6}, {"\xef\xbf\xbf", 3}},
        {"pair", {"\\ud83d\\ude00", 12}, {"\xf0\x9f\x98\x80", 4}},
        {"first pair", {"\\ud800\\udc00", 12}, {"\xf0\x90\x80\x80", 4}},
        {"last pair", {"\\udbff\\udfff", 12}, {"\xf4\x8f\xbf\xbf", 4}},
        {"high alone", {"\\ud800", 6}, {"\xef\xbf\xbd", 3}},
        {"low alone", {"\\udc00", 6}, {"\xef\xbf\xbd", 3}},
        {"high before text", {"\\ud800x", 7}, {"\xef\xbf\xbdx", 4}},
        {"high before another escape", {"\\ud800\\n", 8}, {"\xef\xbf\xbd\n", 4}},
        {"high before a letter",
         {"\\ud800\\u0041", 12},
         {"\xef\xbf\xbd"
          "A",
          4}},
        {"high before a pair", {"\\ud83d\\ud83d\\ude00", 18}, {"\xef\xbf\xbd\xf0\x9f\x98\x80", 7}},
        {"wrong way round", {"\\ude00\\ud83d", 12}, {"\xef\xbf\xbd\xef\xbf\xbd", 6}},
        {"low before low", {"\\ude00\\ude00", 12}, {"\xef\xbf\xbd\xef\xbf\xbd", 6}},
        {"between text", {"a\\tb\\tc", 7}, {"a\tb\tc", 5}},
        {"no escape",
         {"a\\xb", 4},
         {"a\xef\xbf\xbd"
          "b",
          5}},
        {"cut",
         {"a\\u12", 5},
         {"a\xef\xbf\xbd"
          "12",
          6}},
        {"backslash at the end", {"a\\", 2}, {"a\xef\xbf\xbd", 4}},
    };

    (void)state;
    for (size_t i = 0; i < ROWS(cases); i++) {
        struct ob_buf buf;

        ob_buf_init(&buf, 0);
        ob_jscan_unescape(&buf, cases[i].in);
        row_str(cases[i].name, "text", ob_buf_view(&buf), cases[i].want);
        ob_buf_clear(&buf);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accepts),
        cmocka_unit_test(test_refuses),
        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_broken_stays_broken),
        cmocka_unit_test(test_whole_values),
        cmocka_unit_test(test_whole_value_broken),
        cmocka_unit_test(test_unescape),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
