/* SPDX-License-Identifier: Apache-2.0 */
/* str_test - hashes that never change, UTF-8, globs, edit distance. */
#include "core/str.h"

#include "../rows.h"

#include "core/utf8.h"

#include <stdio.h>
#include <stdlib.h>

/* These numbers stand in databases: a change here loses the hold on parked keys. The lengths cover
 * every branch of XXH3. */
static void test_hash_is_stable(void **state)
{
    static const struct {
        const char *name;
        size_t n;
        uint64_t want;
    } cases[] = {
        {"0 bytes", 0, UINT64_C(0x2d06800538d394c2)},
        {"1 bytes", 1, UINT64_C(0x13e608bc156defed)},
        {"3 bytes", 3, UINT64_C(0xa9088dda485b481c)},
        {"4 bytes", 4, UINT64_C(0x6d9253b16c8b1ed3)},
        {"8 bytes", 8, UINT64_C(0x60539db630471163)},
        {"9 bytes", 9, UINT64_C(0xfeff668361d723a8)},
        {"16 bytes", 16, UINT64_C(0xb8c859b0f030b585)},
        {"17 bytes", 17, UINT64_C(0x714a04408e79b80f)},
        {"128 bytes", 128, UINT64_C(0x67425a03650261bf)},
        {"129 bytes", 129, UINT64_C(0xc664bf3311c6abc4)},
        {"240 bytes", 240, UINT64_C(0x64556dc6b462a6cf)},
        {"241 bytes", 241, UINT64_C(0x8beadd3a8874fe17)},
        {"1000 bytes", 1000, UINT64_C(0x6c4f14bd97bd9e82)},
    };
    unsigned char bytes[1000];

    (void)state;
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (unsigned char)(i * 7 + 3);
    for (size_t i = 0; i < ROWS(cases); i++)
        row_int(cases[i].name, "hash", (int64_t)ob_hash64(bytes, cases[i].n),
                (int64_t)cases[i].want);
    assert_true(ob_hash64(NULL, 0) == ob_hash64("", 0));
    assert_true(ob_hash64("order-1", 7) == UINT64_C(0x5fc46503368e2876));
}

/* Names that all have the same place in a table of 4096 by the hash that never changes, as an
 * attacker chooses them, are spread by the other one. */
static void test_secret_hash_spreads_chosen_names(void **state)
{
    bool taken[4096] = {false};
    size_t n = 0, places = 0;
    char name[24];

    (void)state;
    for (unsigned i = 0; n < 512; i++) {
        int len = snprintf(name, sizeof(name), "n%u", i);
        if ((ob_hash64(name, (size_t)len) & 4095) != 0)
            continue;
        size_t at = ob_hash64_secret(name, (size_t)len) & 4095;
        places += !taken[at];
        taken[at] = true;
        n++;
    }
    assert_true(places > 256);
    assert_true(ob_hash64_secret("a", 1) == ob_hash64_secret("a", 1));
}

static void test_utf8(void **state)
{
    static const struct {
        const char *name;
        struct ob_str s;
        bool valid;
    } cases[] = {
        {"empty", {NULL, 0}, true},
        {"ASCII", {"abc", 3}, true},
        {"NUL byte", {"a\0b", 3}, true},
        {"two bytes", {"\xc2\x80", 2}, true},
        {"three bytes", {"\xe2\x82\xac", 3}, true},
        {"before the surrogates", {"\xed\x9f\xbf", 3}, true},
        {"behind the surrogates", {"\xee\x80\x80", 3}, true},
        {"last of all", {"\xf4\x8f\xbf\xbf", 4}, true},
        {"after eight ASCII", {"12345678\xc3\xa9", 10}, true},
        {"continuation alone", {"\x80", 1}, false},
        {"cut two", {"\xc3", 1}, false},
        {"cut three", {"\xe2\x82", 2}, false},
        {"cut four", {"\xf0\x9f\x98", 3}, false},
        {"overlong slash", {"\xc0\xaf", 2}, false},
        {"overlong in two", {"\xc1\xbf", 2}, false},
        {"overlong in three", {"\xe0\x9f\xbf", 3}, false},
        {"overlong in four", {"\xf0\x8f\xbf\xbf", 4}, false},
        {"first surrogate", {"\xed\xa0\x80", 3}, false},
        {"last surrogate", {"\xed\xbf\xbf", 3}, false},
        {"above U+10FFFF", {"\xf4\x90\x80\x80", 4}, false},
        {"F5", {"\xf5\x80\x80\x80", 4}, false},
        {"FF", {"\xff", 1}, false},
        {"ASCII instead of continuation", {"\xe2\x82z", 3}, false},
        {"bad after sixteen ASCII", {"1234567812345678\xff", 17}, false},
        {"bad in the middle of a word",
         {"1234\xff"
          "5678",
          9},
         false},
    };

    (void)state;
    for (size_t i = 0; i < ROWS(cases); i++)
        row_int(cases[i].name, "valid", ob_utf8_valid(cases[i].s), cases[i].valid);
}

/* All three-byte starts against the rule written the slow way. */
static void test_utf8_all_pairs(void **state)
{
    (void)state;
    for (unsigned a = 0; a < 256; a++)
        for (unsigned b = 0; b < 256; b++)
            for (unsigned c = 0; c < 256; c += 15) {
                char s[3] = {(char)a, (char)b, (char)c};
                uint32_t v = (a & 15u) << 12 | (b & 63u) << 6 | (c & 63u);
                bool lone = a < 0x80, two = a >= 0xc2 && a < 0xe0 && b >> 6 == 2;
                bool three = a >> 4 == 14 && b >> 6 == 2 && c >> 6 == 2 && v >= 0x800 &&
                             (v < 0xd800 || v > 0xdfff);
                int step = ob_utf8_step(s, s + 3);

                if (lone || two || three)
                    assert_int_equal(step, lone ? 1 : two ? 2 : 3);
                else
                    assert_in_range(-step, 1, 3);
            }
}

static void test_utf8_cut(void **state)
{
    static const struct {
        const char *name;
        struct ob_str s;
        size_t want;
    } cases[] = {
        {"empty", {"", 0}, 0},
        {"whole", {"a\xc3\xa9", 3}, 3},
        {"half of two", {"a\xc3", 2}, 1},
        {"two of three", {"a\xe2\x82", 3}, 1},
        {"three of four", {"a\xf0\x9f\x98", 4}, 1},
        {"only a start", {"\xf0", 1}, 0},
        {"not UTF-8: left alone", {"\x80\x80\x80\x80\x80", 5}, 5},
    };

    (void)state;
    for (size_t i = 0; i < ROWS(cases); i++)
        row_int(cases[i].name, "length", (int64_t)ob_utf8_cut(cases[i].s.p, cases[i].s.n),
                (int64_t)cases[i].want);
}

static void test_glob(void **state)
{
    static const struct {
        const char *name, *pattern, *text;
        bool want;
    } cases[] = {
        {"both empty", "", "", true},
        {"empty pattern", "", "a", false},
        {"empty text", "a", "", false},
        {"star takes nothing", "*", "", true},
        {"star takes all", "*", "order.paid", true},
        {"same", "order.paid", "order.paid", true},
        {"longer text", "order", "order.paid", false},
        {"longer pattern", "order.paid", "order", false},
        {"end", "order.*", "order.paid", true},
        {"end takes nothing", "order.*", "order.", true},
        {"end, no match", "order.*", "order", false},
        {"start", "*.paid", "order.paid", true},
        {"start, repeated", "*.paid", "order.paid.paid", true},
        {"start, no match", "*.paid", "order.paid.x", false},
        {"middle", "a*b*c", "aXbYbZc", true},
        {"middle, no match", "a*b*c", "aXbYbZ", false},
        {"stars together", "a***b", "ab", true},
        {"one byte", "a?c", "abc", true},
        {"one byte, none there", "a?", "a", false},
        {"one byte after star", "*?", "", false},
        {"one byte after star, there", "*?", "x", true},
        {"star is literal", "a\\*", "a*", true},
        {"star is literal, no match", "a\\*", "ab", false},
        {"question mark is literal", "\\?", "?", true},
        {"question mark is literal, no match", "\\?", "x", false},
        {"backslash is literal", "\\\\", "\\", true},
        {"backslash before a plain byte", "\\a", "a", true},
        {"backslash at the end", "a\\", "a\\", true},
        {"literal star behind a star", "*\\*", "ab*", true},
        {"case counts", "A", "a", false},
    };

    (void)state;
    for (size_t i = 0; i < ROWS(cases); i++)
        row_int(cases[i].name, "match",
                ob_glob(ob_str_c(cases[i].pattern), ob_str_c(cases[i].text)), cases[i].want);
}

/* With going back to every star this would take longer than the universe has existed. */
static void test_glob_is_not_exponential(void **state)
{
    char pattern[2 * 60 + 2], text[4096];

    (void)state;
    for (size_t i = 0; i < 60; i++)
        memcpy(pattern + 2 * i, "*a", 2);
    memcpy(pattern + 120, "*b", 2);
    memset(text, 'a', sizeof(text));
    assert_false(
        ob_glob((struct ob_str){pattern, sizeof(pattern)}, (struct ob_str){text, sizeof(text)}));
}

static void test_distance(void **state)
{
    static const struct {
        const char *name, *a, *b;
        unsigned max, want;
    } cases[] = {
        {"same", "brokers", "brokers", 3, 0},
        {"both empty", "", "", 0, 0},
        {"one empty", "", "abc", 3, 3},
        {"one empty, too far", "", "abcd", 3, 4},
        {"one changed", "topic", "tepic", 3, 1},
        {"one missing", "brokers", "brokrs", 3, 1},
        {"one more", "path", "paths", 3, 1},
        {"two swapped", "brokers", "brokres", 3, 2},
        {"kitten", "kitten", "sitting", 3, 3},
        {"kitten, bounded", "kitten", "sitting", 2, 3},
        {"nothing in common", "abcdef", "uvwxyz", 2, 3},
        {"max 0", "a", "b", 0, 1},
    };

    (void)state;
    for (size_t i = 0; i < ROWS(cases); i++) {
        struct ob_str a = ob_str_c(cases[i].a), b = ob_str_c(cases[i].b);

        row_int(cases[i].name, "distance", ob_distance(a, b, cases[i].max), cases[i].want);
        row_int(cases[i].name, "other way", ob_distance(b, a, cases[i].max), cases[i].want);
    }
}

static void test_distance_of_long_words(void **state)
{
    char a[300], b[300];

    (void)state;
    memset(a, 'a', sizeof(a));
    memset(b, 'a', sizeof(b));
    b[0] = 'b';
    assert_int_equal(ob_distance((struct ob_str){a, 255}, (struct ob_str){b, 255}, 2), 1);
    assert_int_equal(ob_distance((struct ob_str){a, 256}, (struct ob_str){b, 256}, 2), 3);
    assert_int_equal(ob_distance((struct ob_str){a, 300}, (struct ob_str){a, 300}, 2), 0);
}

static void test_equal(void **state)
{
    (void)state;
    assert_true(ob_str_eq((struct ob_str){NULL, 0}, OB_STR("")));
    assert_false(ob_str_eq(OB_STR("a\0b"), OB_STR("a\0c")));
    assert_true(ob_str_eqc(OB_STR("abc"), "abc"));
    assert_false(ob_str_eqc(OB_STR("abc\0"), "abc"));
    assert_int_equal(ob_str_c(NULL).n, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hash_is_stable),
        cmocka_unit_test(test_secret_hash_spreads_chosen_names),
        cmocka_unit_test(test_utf8),
        cmocka_unit_test(test_utf8_all_pairs),
        cmocka_unit_test(test_utf8_cut),
        cmocka_unit_test(test_glob),
        cmocka_unit_test(test_glob_is_not_exponential),
        cmocka_unit_test(test_distance),
        cmocka_unit_test(test_distance_of_long_words),
        cmocka_unit_test(test_equal),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
