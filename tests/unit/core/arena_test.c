/* SPDX-License-Identifier: Apache-2.0 */
/* arena_test - alignment, the ceiling, chunks, and the count across threads. */
#include "core/arena.h"

#include "../rows.h"

#include <pthread.h>

static void test_alignment_and_no_overlap(void **state)
{
    struct ob_arena *arena = ob_arena_new(512, 0);
    unsigned char *parts[400];
    size_t sizes[400];

    (void)state;
    assert_non_null(arena);
    for (size_t i = 0; i < ROWS(parts); i++) {
        sizes[i] = i * 13 % 300; /* 0 bytes, small ones, and larger than a quarter of a chunk */
        parts[i] = ob_arena_alloc(arena, sizes[i]);
        assert_non_null(parts[i]);
        assert_int_equal((uintptr_t)parts[i] % 16, 0);
        memset(parts[i], (int)(i & 255), sizes[i]);
        assert_int_equal(ob_arena_copy(arena, OB_STR("odd")).n, 3); /* unaligned neighbours */
    }
    for (size_t i = 0; i < ROWS(parts); i++)
        for (size_t k = 0; k < sizes[i]; k++)
            assert_int_equal(parts[i][k], i & 255);
    ob_arena_unref(arena);
}

static void test_empty_parts_differ(void **state)
{
    struct ob_arena *arena = ob_arena_new(0, 0);
    void *a = ob_arena_alloc(arena, 0), *b = ob_arena_alloc(arena, 0);

    (void)state;
    assert_non_null(a);
    assert_non_null(b);
    assert_ptr_not_equal(a, b);
    ob_arena_unref(arena);
}

static void test_ceiling(void **state)
{
    static const struct {
        const char *name;
        size_t chunk, ceiling, first, second;
        bool first_fits, second_fits;
    } cases[] = {
        {"exactly full", 256, 1000, 400, 600, true, true},
        {"one byte too many", 256, 1000, 400, 601, true, false},
        {"chunk larger than the ceiling", 65536, 100, 100, 1, true, false},
        {"more than all at once", 256, 100, 101, 100, false, true},
        {"no ceiling", 256, 0, 100000, 100000, true, true},
        {"as much as there is", 256, 0, SIZE_MAX, 1, false, true},
        {"half of what there is", 256, 0, SIZE_MAX / 2, 1, false, true},
        {"all but a header", 256, 0, SIZE_MAX - 16, 1, false, true},
    };

    (void)state;
    for (size_t i = 0; i < ROWS(cases); i++) {
        struct ob_arena *arena = ob_arena_new(cases[i].chunk, cases[i].ceiling);
        void *a = ob_arena_alloc(arena, cases[i].first);
        void *b = ob_arena_alloc(arena, cases[i].second);
        size_t used = (a ? cases[i].first : 0) + (b ? cases[i].second : 0);

        row_int(cases[i].name, "first", a != NULL, cases[i].first_fits);
        row_int(cases[i].name, "second", b != NULL, cases[i].second_fits);
        row_int(cases[i].name, "used", (int64_t)ob_arena_used(arena), (int64_t)used);
        ob_arena_unref(arena);
    }
}

static void test_copy(void **state)
{
    struct ob_arena *arena = ob_arena_new(256, 16);
    struct ob_str s = ob_arena_copy(arena, OB_STR("a\0b"));

    (void)state;
    assert_int_equal(s.n, 3);
    assert_memory_equal(s.p, "a\0b\0", 4);
    s = ob_arena_copy(arena, (struct ob_str){NULL, 0});
    assert_non_null(s.p);
    assert_int_equal(s.p[0], '\0');
    s = ob_arena_copy(arena, OB_STR("twelve bytes")); /* 4 + 1 + 13 are more than 16 */
    assert_null(s.p);
    assert_int_equal(s.n, 0);
    s = ob_arena_copy(arena, (struct ob_str){"", SIZE_MAX});
    assert_null(s.p);
    assert_null(ob_arena_printf(arena, "%s", "twelve bytes"));
    assert_string_equal(ob_arena_printf(arena, "%d-%s", 42, "x"), "42-x");
    ob_arena_unref(arena);
}

static void test_zeroed_after_reset(void **state)
{
    static const unsigned char zero[64];
    struct ob_arena *arena = ob_arena_new(256, 4096);

    (void)state;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 60; i++) {
            unsigned char *p = ob_arena_zalloc(arena, sizeof(zero));

            assert_non_null(p);
            assert_memory_equal(p, zero, sizeof(zero));
            memset(p, 0xee, sizeof(zero));
        }
        assert_int_equal(ob_arena_used(arena), 60 * sizeof(zero));
        ob_arena_reset(arena);
        assert_int_equal(ob_arena_used(arena), 0);
    }
    ob_arena_unref(arena);
    ob_arena_unref(NULL);
}

struct reader {
    struct ob_arena *arena;
    const char *text;
    int same;
};

static void *read_and_let_go(void *arg)
{
    struct reader *r = arg;

    for (int i = 0; i < 1000; i++)
        ob_arena_unref(ob_arena_ref(r->arena));
    r->same = strcmp(r->text, "shared") == 0;
    ob_arena_unref(r->arena);
    return NULL;
}

/* The last to let go frees, whoever it is (a sanitizer sees a leak or a use after free). */
static void test_count_across_threads(void **state)
{
    struct ob_arena *arena = ob_arena_new(256, 0);
    const char *text = ob_arena_copy(arena, OB_STR("shared")).p;
    struct reader readers[4];
    pthread_t threads[4];

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        readers[i] = (struct reader){ob_arena_ref(arena), text, 0};
        assert_int_equal(pthread_create(&threads[i], NULL, read_and_let_go, &readers[i]), 0);
    }
    ob_arena_unref(arena);
    for (size_t i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        assert_true(readers[i].same);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alignment_and_no_overlap),
        cmocka_unit_test(test_empty_parts_differ),
        cmocka_unit_test(test_ceiling),
        cmocka_unit_test(test_copy),
        cmocka_unit_test(test_zeroed_after_reset),
        cmocka_unit_test(test_count_across_threads),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
