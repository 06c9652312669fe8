/* SPDX-License-Identifier: Apache-2.0 */
/* clock_test - RFC 3339 there and back, with offsets, leap days and leap seconds. */
#include "core/clock.h"

#include "../rows.h"

#include "core/rand.h"

#include <stdio.h>
#include <time.h>

#define US INT64_C(1000000)

static void test_format(void **state)
{
    static const struct {
        const char *name;
        int64_t us;
        const char *want;
    } cases[] = {
        {"epoch", 0, "1970-01-01T00:00:00.000Z"},
        {"before the epoch", -1, "1969-12-31T23:59:59.999Z"},
        {"microseconds are cut", 1999, "1970-01-01T00:00:00.001Z"},
        {"a day of ours", 1770091506789000, "2026-02-03T04:05:06.789Z"},
        {"leap day", 951782400 * US, "2000-02-29T00:00:00.000Z"},
        {"no leap day in 1900", -2203891200 * US, "1900-03-01T00:00:00.000Z"},
        {"last second of a year", 1798761599 * US, "2026-12-31T23:59:59.000Z"},
        {"year 1", -62135596800 * US, "0001-01-01T00:00:00.000Z"},
        {"year 0", -62167219200 * US, "0000-01-01T00:00:00.000Z"},
        {"before year 0", -62167219201 * US, "0000-01-01T00:00:00.000Z"},
        {"year 9999", 253402300799 * US + 999999, "9999-12-31T23:59:59.999Z"},
        {"behind year 9999", 253402300800 * US, "9999-12-31T23:59:59.999Z"},
        {"the least", INT64_MIN, "0000-01-01T00:00:00.000Z"},
        {"the most", INT64_MAX, "9999-12-31T23:59:59.999Z"},
    };
    char text[OB_RFC3339_MAX];

    (void)state;
    for (size_t i = 0; i < ROWS(cases); i++) {
        size_t n = ob_rfc3339(cases[i].us, text);

        row_str(cases[i].name, "text", (struct ob_str){text, n}, ob_str_c(cases[i].want));
        row_int(cases[i].name, "end", text[n], 0);
    }
}

static void test_parse(void **state)
{
    static const struct {
        const char *name, *text;
        int64_t want;
    } cases[] = {
        {"UTC", "2026-02-03T04:05:06Z", 1770091506 * US},
        {"small letters", "2026-02-03t04:05:06z", 1770091506 * US},
        {"a space", "2026-02-03 04:05:06Z", 1770091506 * US},
        {"one digit", "1970-01-01T00:00:00.5Z", 500000},
        {"three digits", "1970-01-01T00:00:00.123Z", 123000},
        {"six digits", "1970-01-01T00:00:00.123456Z", 123456},
        {"nine digits", "1970-01-01T00:00:00.123456999Z", 123456},
        {"thirty digits", "1970-01-01T00:00:00.123456999999999999999999999999Z", 123456},
        {"east", "1970-01-01T01:00:00+01:00", 0},
        {"west", "1969-12-31T16:00:00-08:00", 0},
        {"half an hour", "1970-01-01T05:30:00+05:30", 0},
        {"unknown offset", "1970-01-01T00:00:00-00:00", 0},
        {"largest offset", "1970-01-01T23:59:00+23:59", 0},
        {"fraction and offset", "1996-12-19T16:39:57.25-08:00", 851042397 * US + 250000},
        {"before the epoch", "1969-12-31T23:59:59.999999Z", -1},
        {"leap day", "2000-02-29T00:00:00Z", 951782400 * US},
        {"leap second", "1990-12-31T23:59:60Z", 662688000 * US},
        {"leap second elsewhere", "1990-12-31T15:59:60-08:00", 662688000 * US},
        {"year 0 with offset", "0000-01-01T00:00:00+01:00", -62167222800 * US},
        {"end of time", "9999-12-31T23:59:59.999999Z", 253402300799 * US + 999999},
    };

    (void)state;
    for (size_t i = 0; i < ROWS(cases); i++) {
        int64_t us = 7;

        row_int(cases[i].name, "result",
                ob_rfc3339_parse(cases[i].text, strlen(cases[i].text), &us), 0);
        row_int(cases[i].name, "time", us, cases[i].want);
    }
}

static void test_parse_refuses(void **state)
{
    static const struct {
        const char *name, *text;
    } cases[] = {
        {"empty", ""},
        {"only a date", "2026-02-03"},
        {"no offset", "2026-02-03T04:05:06"},
        {"no offset, fraction", "2026-02-03T04:05:06.789"},
        {"point without digits", "2026-02-03T04:05:06.Z"},
        {"comma", "2026-02-03T04:05:06,5Z"},
        {"month 0", "2026-00-03T04:05:06Z"},
        {"month 13", "2026-13-03T04:05:06Z"},
        {"day 0", "2026-01-00T04:05:06Z"},
        {"day 32", "2026-01-32T04:05:06Z"},
        {"31 April", "2026-04-31T04:05:06Z"},
        {"no leap year", "2026-02-29T04:05:06Z"},
        {"1900 was none", "1900-02-29T04:05:06Z"},
        {"hour 24", "2026-02-03T24:00:00Z"},
        {"minute 60", "2026-02-03T04:60:06Z"},
        {"second 61", "2026-12-31T23:59:61Z"},
        {"leap second at noon", "2026-02-03T12:00:60Z"},
        {"leap second by local time only", "1990-12-31T23:59:60-08:00"},
        {"offset hour 24", "2026-02-03T04:05:06+24:00"},
        {"offset minute 60", "2026-02-03T04:05:06+01:60"},
        {"offset without colon", "2026-02-03T04:05:06+0100"},
        {"offset cut", "2026-02-03T04:05:06+01"},
        {"offset without sign", "2026-02-03T04:05:0601:00"},
        {"behind the end", "2026-02-03T04:05:06Z "},
        {"before the start", " 2026-02-03T04:05:06Z"},
        {"sign in a number", "2026-02-03T04:05:+6Z"},
        {"negative year", "-026-02-03T04:05:06Z"},
        {"letters", "YYYY-MM-DDTHH:MM:SSZ"},
        {"underscore for T", "2026-02-03_04:05:06Z"},
        {"slashes", "2026/02/03T04:05:06Z"},
        {"dots in the time", "2026-02-03T04.05.06Z"},
    };

    (void)state;
    for (size_t i = 0; i < ROWS(cases); i++) {
        int64_t us = 7;

        row_int(cases[i].name, "result",
                ob_rfc3339_parse(cases[i].text, strlen(cases[i].text), &us), -1);
        row_int(cases[i].name, "untouched", us, 7);
    }
}

/* Any cut of a good text is refused and nothing behind it is read. */
static void test_parse_cut(void **state)
{
    const char *text = "2026-02-03T04:05:06+01:00";
    int64_t us;

    (void)state;
    for (size_t n = 0; n < strlen(text); n++)
        assert_int_equal(ob_rfc3339_parse(text, n, &us), -1);
    assert_int_equal(ob_rfc3339_parse(text, strlen(text), &us), 0);
}

/* Against the C library, over all years that have a text. */
static void test_against_gmtime(void **state)
{
    struct ob_rand rand = {42};

    (void)state;
    for (int i = 0; i < 20000; i++) {
        int64_t s = (int64_t)ob_rand_below(&rand, 315569520000) - 62167219200, back = 0;
        time_t t = (time_t)s;
        char want[80], got[OB_RFC3339_MAX];
        struct tm tm;

        gmtime_r(&t, &tm);
        snprintf(want, sizeof(want), "%04d-%02d-%02dT%02d:%02d:%02d.000Z", tm.tm_year + 1900,
                 tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec);
        ob_rfc3339(s * US, got);
        assert_string_equal(got, want);
        assert_int_equal(ob_rfc3339_parse(got, strlen(got), &back), 0);
        assert_true(back == s * US);
    }
}

static void test_system(void **state)
{
    const struct ob_clock *c = &ob_clock_system;
    int64_t a = c->mono_us(c->user), b = c->mono_us(c->user);

    (void)state;
    assert_true(b >= a);
    assert_true(ob_clock_mono_ms(c) >= a / 1000);
    assert_true(ob_clock_wall_us(c) / US >= (int64_t)time(NULL) - 1);
    assert_true(ob_clock_wall_us(c) / US <= (int64_t)time(NULL) + 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_format),         cmocka_unit_test(test_parse),
        cmocka_unit_test(test_parse_refuses),  cmocka_unit_test(test_parse_cut),
        cmocka_unit_test(test_against_gmtime), cmocka_unit_test(test_system),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
