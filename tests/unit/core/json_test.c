/* SPDX-License-Identifier: Apache-2.0 */
/* json_test - commas, escapes, numbers, raw parts, the depth, base64. */
#include "core/json.h"

#include "../rows.h"

#include <float.h>
#include <jansson.h>
#include <math.h>

static void test_whole_document(void **state)
{
    struct ob_buf buf;
    struct ob_json j;

    (void)state;
    ob_buf_init(&buf, 0);
    ob_json_init(&j, &buf);
    ob_json_open(&j, '{');
    ob_json_keyc(&j, "id");
    ob_json_strc(&j, "a\"b");
    ob_json_key(&j, OB_STR("k\n"));
    ob_json_open(&j, '[');
    ob_json_int(&j, INT64_MIN);
    ob_json_uint(&j, UINT64_MAX);
    ob_json_open(&j, '{');
    ob_json_close(&j, '}');
    ob_json_open(&j, '[');
    ob_json_close(&j, ']');
    ob_json_bool(&j, true);
    ob_json_bool(&j, false);
    ob_json_null(&j);
    ob_json_strc(&j, NULL);
    ob_json_str(&j, (struct ob_str){NULL, 0});
    ob_json_close(&j, ']');
    ob_json_keyc(&j, "raw");
    ob_json_raw(&j, OB_STR("{ \"n\" : 1.0e0 }"));
    ob_json_keyc(&j, "last");
    ob_json_int(&j, 0);
    ob_json_close(&j, '}');
    assert_false(buf.failed);
    assert_string_equal(ob_buf_z(&buf),
                        "{\"id\":\"a\\\"b\",\"k\\n\":[-9223372036854775808,18446744073709551615,{},"
                        "[],true,false,null,null,\"\"],\"raw\":{ \"n\" : 1.0e0 },\"last\":0}");
    ob_buf_clear(&buf);
}

static void test_values_at_the_top_stand_alone(void **state)
{
    struct ob_buf buf;
    struct ob_json j;

    (void)state;
    ob_buf_init(&buf, 0);
    ob_json_init(&j, &buf);
    for (int i = 0; i < 2; i++) {
        ob_json_open(&j, '[');
        ob_json_int(&j, i);
        ob_json_close(&j, ']');
        ob_buf_char(&buf, '\n');
    }
    assert_string_equal(ob_buf_z(&buf), "[0]\n[1]\n");
    ob_buf_clear(&buf);
}

static void test_escape(void **state)
{
    static const struct {
        const char *name;
        struct ob_str in;
        const char *want;
    } cases[] = {
        {"empty", {NULL, 0}, ""},
        {"plain", {"the quick brown fox", 19}, "the quick brown fox"},
        {"quote and backslash", {"a\"b\\c", 5}, "a\\\"b\\\\c"},
        {"slash stays", {"a/b", 3}, "a/b"},
        {"short escapes", {"\b\f\n\r\t", 5}, "\\b\\f\\n\\r\\t"},
        {"other controls", {"\x01\x1f\x0b", 3}, "\\u0001\\u001f\\u000b"},
        {"NUL byte", {"a\0b", 3}, "a\\u0000b"},
        {"delete stays", {"\x7f", 1}, "\x7f"},
        {"UTF-8 stays",
         {"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", 9},
         "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"},
        {"line separator stays", {"\xe2\x80\xa8", 3}, "\xe2\x80\xa8"},
        {"one bad byte",
         {"a\xff"
          "b",
          3},
         "a\xef\xbf\xbd"
         "b"},
        {"bad bytes, one each", {"\xff\xfe", 2}, "\xef\xbf\xbd\xef\xbf\xbd"},
        {"cut character is one", {"\xf0\x9f\x98", 3}, "\xef\xbf\xbd"},
        {"cut character, then text", {"\xe2\x82z", 3}, "\xef\xbf\xbdz"},
        {"overlong is two", {"\xc0\xaf", 2}, "\xef\xbf\xbd\xef\xbf\xbd"},
        {"surrogate is three", {"\xed\xa0\x80", 3}, "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
        {"behind eight plain bytes", {"12345678\n", 9}, "12345678\\n"},
        {"in the eighth byte", {"1234567\"", 8}, "1234567\\\""},
    };

    (void)state;
    for (size_t i = 0; i < ROWS(cases); i++) {
        struct ob_buf buf;

        ob_buf_init(&buf, 0);
        ob_json_escape(&buf, cases[i].in);
        row_str(cases[i].name, "escaped", ob_buf_view(&buf), ob_str_c(cases[i].want));
        ob_buf_clear(&buf);
    }
}

/* Every byte at every place of a word, so that the fast way cannot miss one. */
static void test_escape_every_byte_everywhere(void **state)
{
    (void)state;
    for (unsigned c = 0; c < 256; c++)
        for (size_t at = 0; at < 17; at++) {
            char in[17];
            struct ob_buf buf;
            bool plain = c >= 0x20 && c < 0x80 && c != '"' && c != '\\';

            memset(in, 'x', sizeof(in));
            in[at] = (char)c;
            ob_buf_init(&buf, 0);
            ob_json_escape(&buf, (struct ob_str){in, sizeof(in)});
            assert_int_equal(buf.n == sizeof(in), plain);
            assert_true(ob_utf8_valid(ob_buf_view(&buf)));
            assert_null(memchr(buf.p, c < 0x20 ? (int)c : 0xff, buf.n));
            ob_buf_clear(&buf);
        }
}

static void test_double(void **state)
{
    static const struct {
        const char *name;
        double v;
        const char *want;
    } cases[] = {
        {"zero", 0, "0"},
        {"minus zero", -0.0, "-0"},
        {"one", 1, "1"},
        {"a tenth", 0.1, "0.1"},
        {"sum of tenths", 0.1 + 0.2, "0.30000000000000004"},
        {"third", 1.0 / 3, "0.3333333333333333"},
        {"large", 1e300, "1e+300"},
        {"largest", DBL_MAX, "1.7976931348623157e+308"},
        {"least normal", DBL_MIN, "2.2250738585072014e-308"},
        {"least", 4.9406564584124654e-324, "4.94065645841247e-324"},
        {"infinite", INFINITY, "null"},
        {"minus infinite", -INFINITY, "null"},
        {"no number", NAN, "null"},
    };

    (void)state;
    for (size_t i = 0; i < ROWS(cases); i++) {
        struct ob_buf buf;
        struct ob_json j;

        ob_buf_init(&buf, 0);
        ob_json_init(&j, &buf);
        ob_json_double(&j, cases[i].v);
        row_str(cases[i].name, "text", ob_buf_view(&buf), ob_str_c(cases[i].want));
        ob_buf_clear(&buf);
    }
}

static void test_depth(void **state)
{
    struct ob_buf buf;
    struct ob_json j;
    json_t *doc;

    (void)state;
    ob_buf_init(&buf, 0);
    ob_json_init(&j, &buf);
    for (int i = 0; i < 64; i++) {
        ob_json_open(&j, '[');
        ob_json_int(&j, i);
    }
    for (int i = 0; i < 64; i++) {
        ob_json_int(&j, i);
        ob_json_close(&j, ']');
    }
    assert_false(buf.failed);
    doc = json_loadb(buf.p, buf.n, 0, NULL);
    assert_non_null(doc);
    assert_int_equal(json_array_size(doc), 3);
    json_decref(doc);
    ob_json_close(&j, ']');
    assert_true(buf.failed); /* more closed than opened */
    ob_buf_reset(&buf);
    ob_json_init(&j, &buf);
    for (int i = 0; i < 65; i++)
        ob_json_open(&j, '[');
    assert_true(buf.failed);
    ob_buf_clear(&buf);
}

static void test_base64(void **state)
{
    static const struct {
        const char *name;
        struct ob_str in;
        const char *want;
    } cases[] = {
        {"empty", {NULL, 0}, ""},
        {"one", {"f", 1}, "Zg=="},
        {"two", {"fo", 2}, "Zm8="},
        {"three", {"foo", 3}, "Zm9v"},
        {"four", {"foob", 4}, "Zm9vYg=="},
        {"five", {"fooba", 5}, "Zm9vYmE="},
        {"six", {"foobar", 6}, "Zm9vYmFy"},
        {"last letters", {"\xfb\xff\xfe", 3}, "+//+"},
        {"NUL bytes", {"\0\0\0\0", 4}, "AAAAAA=="},
    };

    (void)state;
    for (size_t i = 0; i < ROWS(cases); i++) {
        struct ob_buf buf;

        ob_buf_init(&buf, 0);
        ob_base64(&buf, cases[i].in);
        row_str(cases[i].name, "base64", ob_buf_view(&buf), ob_str_c(cases[i].want));
        ob_buf_clear(&buf);
    }
}

/* Around the size of its inner block: length, padding and every character. */
static void test_base64_long(void **state)
{
    static const char abc[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char in[1600];

    (void)state;
    for (size_t i = 0; i < sizeof(in); i++)
        in[i] = (char)(i * 37 + 11);
    for (size_t n = 760; n < sizeof(in); n += 1 + n / 800 * 97) {
        struct ob_buf buf;

        ob_buf_init(&buf, 0);
        ob_base64(&buf, (struct ob_str){in, n});
        assert_int_equal(buf.n, (n + 2) / 3 * 4);
        for (size_t bit = 0; bit < n * 8; bit++) {
            size_t v = (size_t)(strchr(abc, buf.p[bit / 6]) - abc);

            assert_int_equal(v >> (5 - bit % 6) & 1,
                             (unsigned char)in[bit / 8] >> (7 - bit % 8) & 1);
        }
        ob_buf_clear(&buf);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole_document), cmocka_unit_test(test_values_at_the_top_stand_alone),
        cmocka_unit_test(test_escape),         cmocka_unit_test(test_escape_every_byte_everywhere),
        cmocka_unit_test(test_double),         cmocka_unit_test(test_depth),
        cmocka_unit_test(test_base64),         cmocka_unit_test(test_base64_long),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
