/* SPDX-License-Identifier: Apache-2.0 */
/* units_test - numbers as people write them. */
#include "config/units.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static const struct {
    const char *text;
    enum ob_opt_type type;
    enum ob_units result;
    int64_t want;
} cases[] = {
    {"42", OB_OPT_INT, OB_UNITS_OK, 42},
    {"-7", OB_OPT_INT, OB_UNITS_OK, -7},
    {"+7", OB_OPT_INT, OB_UNITS_OK, 7},
    {"007", OB_OPT_INT, OB_UNITS_OK, 7},
    {"9223372036854775807", OB_OPT_INT, OB_UNITS_OK, INT64_MAX},
    {"9223372036854775808", OB_OPT_INT, OB_UNITS_RANGE, 0},
    {"99999999999999999999999999999", OB_OPT_INT, OB_UNITS_RANGE, 0},
    {"", OB_OPT_INT, OB_UNITS_FORM, 0},
    {"-", OB_OPT_INT, OB_UNITS_FORM, 0},
    {"1.0", OB_OPT_INT, OB_UNITS_FORM, 0},
    {"1k", OB_OPT_INT, OB_UNITS_FORM, 0},
    {"0x10", OB_OPT_INT, OB_UNITS_FORM, 0},
    {" 1", OB_OPT_INT, OB_UNITS_FORM, 0},
    {"1 ", OB_OPT_INT, OB_UNITS_FORM, 0},
    {"1e3", OB_OPT_INT, OB_UNITS_FORM, 0},
    {"250", OB_OPT_MS, OB_UNITS_OK, 250},
    {"250ms", OB_OPT_MS, OB_UNITS_OK, 250},
    {"5s", OB_OPT_MS, OB_UNITS_OK, 5000},
    {"1.5s", OB_OPT_MS, OB_UNITS_OK, 1500},
    {"0.001s", OB_OPT_MS, OB_UNITS_OK, 1},
    {"0.0001s", OB_OPT_MS, OB_UNITS_FORM, 0},
    {"2m", OB_OPT_MS, OB_UNITS_OK, 120000},
    {"1h", OB_OPT_MS, OB_UNITS_OK, 3600000},
    {"7d", OB_OPT_MS, OB_UNITS_OK, 604800000},
    {"5 s", OB_OPT_MS, OB_UNITS_FORM, 0},
    {"5sec", OB_OPT_MS, OB_UNITS_FORM, 0},
    {".5s", OB_OPT_MS, OB_UNITS_FORM, 0},
    {"5.s", OB_OPT_MS, OB_UNITS_FORM, 0},
    {"1.2.3s", OB_OPT_MS, OB_UNITS_FORM, 0},
    {"9223372036854775807d", OB_OPT_MS, OB_UNITS_RANGE, 0},
    {"4096", OB_OPT_BYTES, OB_UNITS_OK, 4096},
    {"64k", OB_OPT_BYTES, OB_UNITS_OK, 65536},
    {"64K", OB_OPT_BYTES, OB_UNITS_OK, 65536},
    {"16M", OB_OPT_BYTES, OB_UNITS_OK, 16777216},
    {"16MiB", OB_OPT_BYTES, OB_UNITS_OK, 16777216},
    {"1.5G", OB_OPT_BYTES, OB_UNITS_OK, 1610612736},
    {"1GB", OB_OPT_BYTES, OB_UNITS_FORM, 0},
    {"20%", OB_OPT_PCT, OB_UNITS_OK, 20},
    {"0.2", OB_OPT_PCT, OB_UNITS_OK, 20},
    {"2", OB_OPT_PCT, OB_UNITS_OK, 200},
    {"1.5", OB_OPT_PCT, OB_UNITS_OK, 150},
    {"0.001", OB_OPT_PCT, OB_UNITS_FORM, 0},
    {"20 %", OB_OPT_PCT, OB_UNITS_FORM, 0},
};

static void test_parse(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int64_t out = 4711;
        print_message("# '%s' type %d\n", cases[i].text, (int)cases[i].type);
        assert_int_equal(ob_units_parse(cases[i].type, cases[i].text, &out), cases[i].result);
        assert_int_equal(out, cases[i].result == OB_UNITS_OK ? cases[i].want : 4711);
    }
}

static void test_show(void **state)
{
    (void)state;
    static const struct {
        enum ob_opt_type type;
        int64_t value;
        const char *want;
    } rows[] = {
        {OB_OPT_INT, 16, "16"},
        {OB_OPT_INT, -1, "-1"},
        {OB_OPT_MS, 0, "0"},
        {OB_OPT_MS, 1, "1ms"},
        {OB_OPT_MS, 1500, "1500ms"},
        {OB_OPT_MS, 5000, "5s"},
        {OB_OPT_MS, 90000, "90s"},
        {OB_OPT_MS, 3600000, "1h"},
        {OB_OPT_MS, 172800000, "2d"},
        {OB_OPT_BYTES, 100, "100"},
        {OB_OPT_BYTES, 65536, "64k"},
        {OB_OPT_BYTES, 8 << 20, "8M"},
        {OB_OPT_BYTES, 1ll << 40, "1024G"},
        {OB_OPT_PCT, 150, "150%"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char out[OB_UNITS_MAX];
        int64_t back = 0;
        assert_string_equal(ob_units_show(rows[i].type, rows[i].value, out), rows[i].want);
        assert_int_equal(ob_units_parse(rows[i].type, out, &back), OB_UNITS_OK);
        assert_int_equal(back, rows[i].value);
    }
}

static void test_words(void **state)
{
    (void)state;
    bool b = false;
    assert_true(ob_bool_parse("Yes", &b) && b);
    assert_true(ob_bool_parse("on", &b) && b);
    assert_true(ob_bool_parse("TRUE", &b) && b);
    assert_true(ob_bool_parse("off", &b) && !b);
    assert_true(ob_bool_parse("no", &b) && !b);
    assert_true(ob_bool_parse("false", &b) && !b);
    assert_false(ob_bool_parse("1", &b));
    assert_false(ob_bool_parse("", &b));
    assert_int_equal(ob_choice_find("log|wal|rows", "log"), 0);
    assert_int_equal(ob_choice_find("log|wal|rows", "rows"), 2);
    assert_int_equal(ob_choice_find("log|wal|rows", "row"), -1);
    assert_int_equal(ob_choice_find("log|wal|rows", ""), -1);
    assert_int_equal(ob_choice_find("log|wal|rows", "log|wal"), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse),
        cmocka_unit_test(test_show),
        cmocka_unit_test(test_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
