/* SPDX-License-Identifier: Apache-2.0 */
/* alloc_test - what happens when there is no memory: the n-th allocation fails, for every n.
 * malloc and realloc of the library under test are wrapped by the linker. */
#include "core/arena.h"
#include "core/json.h"
#include "event/event.h"

#include "../rows.h"

#include <stdlib.h>

static int until_failure = -1; /* calls that still succeed; -1: all */

void *__real_malloc(size_t n);
void *__real_realloc(void *p, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_realloc(void *p, size_t n);

static bool fails(void)
{
    if (until_failure < 0)
        return false;
    if (until_failure == 0)
        return true;
    until_failure--;
    return false;
}

void *__wrap_malloc(size_t n)
{
    return fails() ? NULL : __real_malloc(n);
}

void *__wrap_realloc(void *p, size_t n)
{
    return fails() ? NULL : __real_realloc(p, n);
}

/* Each runs to its end with everything given back; true if nothing failed. */
static bool use_arena(void)
{
    struct ob_arena *arena = ob_arena_new(256, 0);
    bool ok = arena != NULL;

    for (int i = 0; ok && i < 40; i++) {
        size_t before = ob_arena_used(arena);
        char *p = ob_arena_alloc(arena, 50);

        ok = p && ob_arena_copy(arena, OB_STR("text")).p && ob_arena_zalloc(arena, 500) &&
             ob_arena_printf(arena, "%0200d", i);
        if (p)
            memset(p, 1, 50);
        if (!p)
            assert_int_equal(ob_arena_used(arena), before);
    }
    ob_arena_unref(arena);
    return ok;
}

static bool use_buf(void)
{
    struct ob_buf buf;
    struct ob_json j;
    bool ok;

    ob_buf_init(&buf, 0);
    ob_json_init(&j, &buf);
    ob_json_open(&j, '[');
    for (int i = 0; i < 200; i++)
        ob_json_strc(&j, "what is lost is lost whole");
    ob_json_close(&j, ']');
    ok = !buf.failed;
    if (ok)
        assert_int_equal(buf.n, 200 * 29 + 1);
    assert_true(strlen(ob_buf_z(&buf)) == buf.n);
    ob_buf_clear(&buf);
    return ok;
}

static bool use_batch(void)
{
    struct ob_batch *batch = ob_batch_new(1000, 0);
    bool ok = batch && ob_arena_copy(batch->arena, OB_STR("payload")).p;

    ob_batch_unref(batch);
    return ok;
}

static void test_every_allocation_may_fail(void **state)
{
    static const struct {
        const char *name;
        bool (*use)(void);
        int least; /* allocations there are at least */
    } cases[] = {{"arena", use_arena, 20}, {"buf", use_buf, 5}, {"batch", use_batch, 2}};

    (void)state;
    for (size_t i = 0; i < ROWS(cases); i++) {
        int n = 0;
        bool ok = false;

        for (; !ok && n < 1000; n++) {
            until_failure = n;
            ok = cases[i].use();
        }
        until_failure = -1;
        ROW_TRUE(cases[i].name, ok);
        ROW_TRUE(cases[i].name, n > cases[i].least);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_allocation_may_fail),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
