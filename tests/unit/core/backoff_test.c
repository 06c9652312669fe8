/* SPDX-License-Identifier: Apache-2.0 */
/* backoff_test - waits grow, stop growing, and stay within their jitter. */
#include "core/backoff.h"

#include "../rows.h"

static void test_without_jitter(void **state)
{
    static const struct {
        const char *name;
        struct ob_backoff b;
        uint32_t failures, want;
    } cases[] = {
        {"first", {1000, 200, 60000, 0}, 1, 1000},
        {"second doubles", {1000, 200, 60000, 0}, 2, 2000},
        {"sixth", {1000, 200, 60000, 0}, 6, 32000},
        {"seventh is at the most", {1000, 200, 60000, 0}, 7, 60000},
        {"billionth", {1000, 200, 60000, 0}, 4000000000u, 60000},
        {"fixed", {500, 100, 60000, 0}, 1000000000u, 500},
        {"slow growth from 1 ms", {1, 110, 1000, 0}, 30, 15},
        {"slow growth goes on", {1, 101, 1000, 0}, 4000000000u, 1000},
        {"shrinks", {1000, 50, 60000, 0}, 3, 250},
        {"shrinks to nothing", {1000, 50, 60000, 0}, 100, 0},
        {"factor 0", {1000, 0, 60000, 0}, 2, 0},
        {"first above the most", {9000, 200, 5000, 0}, 1, 5000},
        {"no wait", {0, 200, 60000, 0}, 10, 0},
        {"no failure counts as one", {1000, 200, 60000, 0}, 0, 1000},
        {"largest", {UINT32_MAX, 200, UINT32_MAX, 0}, 5, UINT32_MAX},
    };

    (void)state;
    for (size_t i = 0; i < ROWS(cases); i++) {
        struct ob_rand rand = {1};

        row_int(cases[i].name, "wait", ob_backoff_ms(&cases[i].b, cases[i].failures, NULL),
                cases[i].want);
        row_int(cases[i].name, "wait with a generator",
                ob_backoff_ms(&cases[i].b, cases[i].failures, &rand), cases[i].want);
    }
}

static void test_jitter(void **state)
{
    static const struct {
        const char *name;
        struct ob_backoff b;
        uint32_t failures, least, most;
    } cases[] = {
        {"20 per cent", {1000, 200, 60000, 20}, 1, 800, 1200},
        {"20 per cent of the most", {1000, 200, 60000, 20}, 50, 48000, 72000},
        {"all of it", {1000, 200, 60000, 100}, 1, 0, 2000},
        {"more than all is all", {1000, 200, 60000, 500}, 1, 0, 2000},
        {"too small to share", {3, 200, 60000, 20}, 1, 3, 3},
        {"does not overflow", {UINT32_MAX, 200, UINT32_MAX, 20}, 1, UINT32_MAX / 5 * 4, UINT32_MAX},
    };

    (void)state;
    for (size_t i = 0; i < ROWS(cases); i++) {
        struct ob_rand rand = {7};
        uint32_t low = UINT32_MAX, high = 0;

        for (int n = 0; n < 5000; n++) {
            uint32_t ms = ob_backoff_ms(&cases[i].b, cases[i].failures, &rand);

            low = ms < low ? ms : low;
            high = ms > high ? ms : high;
        }
        ROW_TRUE(cases[i].name, low >= cases[i].least && high <= cases[i].most);
        /* It uses nearly all of its room. */
        ROW_TRUE(cases[i].name, high - low >= (cases[i].most - cases[i].least) / 10 * 9);
    }
}

static void test_same_seed_same_waits(void **state)
{
    const struct ob_backoff b = {1000, 200, 60000, 20};
    struct ob_rand one = {99}, two = {99};

    (void)state;
    for (uint32_t i = 1; i < 100; i++)
        assert_int_equal(ob_backoff_ms(&b, i, &one), ob_backoff_ms(&b, i, &two));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_without_jitter),
        cmocka_unit_test(test_jitter),
        cmocka_unit_test(test_same_seed_same_waits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
