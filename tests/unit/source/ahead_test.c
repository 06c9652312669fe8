/* SPDX-License-Identifier: Apache-2.0 */
/* ahead_test - the set of events that are settled ahead of a cursor, as it is stored. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "core/rand.h"
#include "source/ahead.h"

static void add(struct ob_ahead *set, uint64_t hi, uint64_t lo)
{
    assert_true(ob_ahead_add(set, hi, lo, 0));
}

/* Writes the set, reads it into another and compares. Returns the bytes it took. */
static size_t round_trip(struct ob_ahead *set)
{
    struct ob_ahead back = {0};
    struct ob_buf bytes;
    struct ob_err err;
    ob_buf_init(&bytes, 0);
    ob_ahead_sort(set);
    ob_ahead_write(set, &bytes);
    assert_int_equal(ob_ahead_read(&back, ob_buf_view(&bytes), &err), OB_OK);
    assert_int_equal(back.n, set->n);
    for (size_t i = 0; i < set->n; i++)
        assert_true(back.at[i].hi == set->at[i].hi && back.at[i].lo == set->at[i].lo);
    size_t n = bytes.n;
    ob_buf_clear(&bytes);
    ob_ahead_free(&back);
    return n;
}

static void exact_and_small(void **state)
{
    (void)state;
    struct ob_ahead set = {0};
    assert_int_equal(round_trip(&set), 0);
    add(&set, 0, 7);
    assert_in_range(round_trip(&set), 1, 8);
    for (uint64_t i = 0; i < 10000; i++)
        add(&set, 0, 1000000 + i); /* one run */
    assert_in_range(round_trip(&set), 1, 16);
    assert_null(ob_ahead_find(&set, 0, 8));
    assert_null(ob_ahead_find(&set, 1, 7));
    assert_non_null(ob_ahead_find(&set, 0, 1000005));
    ob_ahead_reset(&set);
    for (uint64_t i = 0; i < 8000; i++)
        add(&set, 0, 5 + 2 * i); /* every other number: a bit for each */
    assert_in_range(round_trip(&set), 2000, 2100);
    ob_ahead_reset(&set);
    for (uint64_t i = 0; i < 100; i++)
        add(&set, 0, i * 1000000007); /* far apart: no bitmap of the gaps */
    assert_in_range(round_trip(&set), 100, 700);
    ob_ahead_free(&set);
}

static void any_order_and_twice(void **state)
{
    (void)state;
    struct ob_ahead set = {0};
    add(&set, 9, 1);
    add(&set, 0, UINT64_MAX);
    add(&set, 9, 0);
    add(&set, 9, 1);
    add(&set, UINT64_MAX, 3);
    round_trip(&set);
    assert_int_equal(set.n, 4);
    assert_non_null(ob_ahead_find(&set, 0, UINT64_MAX));
    ob_ahead_free(&set);
}

static void two_written_one_after_the_other(void **state)
{
    (void)state;
    struct ob_ahead a = {0}, b = {0}, both = {0};
    struct ob_buf bytes;
    struct ob_err err;
    ob_buf_init(&bytes, 0);
    add(&a, 0, 3);
    add(&a, 0, 5);
    add(&b, 0, 4);
    add(&b, 0, 5);
    ob_ahead_write(&a, &bytes);
    ob_ahead_write(&b, &bytes);
    assert_int_equal(ob_ahead_read(&both, ob_buf_view(&bytes), &err), OB_OK);
    assert_int_equal(both.n, 3);
    ob_buf_clear(&bytes);
    ob_ahead_free(&a);
    ob_ahead_free(&b);
    ob_ahead_free(&both);
}

static void random_sets(void **state)
{
    (void)state;
    struct ob_rand r = {42};
    for (int i = 0; i < 300; i++) {
        struct ob_ahead set = {0};
        uint64_t n = ob_rand_below(&r, 400), spread = 1 + ob_rand_below(&r, 2000);
        uint64_t his = 1 + ob_rand_below(&r, 5), base = ob_rand_next(&r) >> ob_rand_below(&r, 64);
        for (uint64_t k = 0; k < n; k++)
            add(&set, ob_rand_below(&r, his), base / 2 + ob_rand_below(&r, spread));
        round_trip(&set);
        ob_ahead_free(&set);
    }
}

/* Whatever is stored: no crash, and no member that is not in it. */
static void damaged(void **state)
{
    (void)state;
    struct ob_rand r = {7};
    struct ob_err err;
    assert_int_equal(ob_ahead_read(&(struct ob_ahead){0}, OB_STR("B\1\2\0\1\1"), &err), OB_REJECT);
    for (int i = 0; i < 20000; i++) {
        struct ob_ahead set = {0};
        char bytes[24];
        size_t n = (size_t)ob_rand_below(&r, sizeof(bytes));
        for (size_t k = 0; k < n; k++)
            bytes[k] = (char)ob_rand_below(&r, 150);
        if (n > 0)
            bytes[0] = 'A';
        enum ob_status st = ob_ahead_read(&set, (struct ob_str){bytes, n}, &err);
        assert_true(st == OB_OK || st == OB_REJECT);
        ob_ahead_free(&set);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact_and_small),
        cmocka_unit_test(any_order_and_twice),
        cmocka_unit_test(two_written_one_after_the_other),
        cmocka_unit_test(random_sets),
        cmocka_unit_test(damaged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
