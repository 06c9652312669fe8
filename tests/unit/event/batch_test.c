/* SPDX-License-Identifier: Apache-2.0 */
/* batch_test - a batch lives as long as any of its events is needed; its ceiling is for content. */
#include "event/event.h"

#include "../rows.h"

#include "event/settle.h"

#include <pthread.h>

static void test_empty_places(void **state)
{
    struct ob_batch *batch = ob_batch_new(100, 0);

    (void)state;
    assert_non_null(batch);
    assert_non_null(batch->arena);
    assert_int_equal(batch->n, 0);
    assert_int_equal(batch->n_drained, 0);
    for (size_t i = 0; i < 100; i++) {
        assert_int_equal(batch->events[i].id.n, 0);
        assert_null(batch->events[i].cols);
        batch->events[i].id = ob_arena_copy(batch->arena, OB_STR("id"));
    }
    ob_batch_unref(batch);
    ob_batch_unref(NULL);
}

static void test_ceiling_is_for_content(void **state)
{
    static const struct {
        const char *name;
        size_t cap, ceiling, content;
        bool fits;
    } cases[] = {
        {"exactly full", 1000, 4096, 4095, true}, /* a copy has a NUL behind it */
        {"one too many", 1000, 4096, 4096, false},
        {"no places", 0, 4096, 4000, true},
        {"no ceiling", 10, 0, 1 << 20, true},
        {"ceiling beyond all", 10, SIZE_MAX, 1 << 20, true},
    };
    static char content[1 << 20];

    (void)state;
    for (size_t i = 0; i < ROWS(cases); i++) {
        struct ob_batch *batch = ob_batch_new(cases[i].cap, cases[i].ceiling);

        ROW_TRUE(cases[i].name, batch != NULL);
        row_int(cases[i].name, "fits",
                ob_arena_copy(batch->arena, (struct ob_str){content, cases[i].content}).p != NULL,
                cases[i].fits);
        ob_batch_unref(batch);
    }
    assert_null(ob_batch_new(SIZE_MAX, 0));
    assert_null(ob_batch_new(SIZE_MAX / sizeof(struct ob_event), 0));
    assert_null(ob_batch_new(SIZE_MAX / sizeof(struct ob_event) + 2, 0)); /* would wrap to a few */
}

struct holder {
    struct ob_batch *batch;
    size_t event;
    bool same;
};

static void *settle_one(void *arg)
{
    struct holder *h = arg;

    h->same = ob_str_eqc(h->batch->events[h->event].payload, "payload");
    ob_batch_unref(h->batch);
    return NULL;
}

/* The maker lets go first; the events' own references keep everything. */
static void test_last_reference_frees(void **state)
{
    struct ob_batch *batch = ob_batch_new(4, 0);
    struct holder holders[4];
    pthread_t threads[4];

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        batch->events[batch->n++].payload = ob_arena_copy(batch->arena, OB_STR("payload"));
        holders[i] = (struct holder){ob_batch_ref(batch), i, false};
    }
    ob_batch_unref(batch);
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, settle_one, &holders[i]), 0);
    for (size_t i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        assert_true(holders[i].same);
    }
}

static void test_verdict_names(void **state)
{
    (void)state;
    assert_string_equal(ob_verdict_name(OB_V_DELIVERED), "delivered");
    assert_string_equal(ob_verdict_name(OB_V_RETRY), "retry");
    assert_string_equal(ob_verdict_name(OB_V_REJECT), "reject");
    assert_string_equal(ob_verdict_name(OB_V_BLOCKED), "blocked");
    assert_string_equal(ob_verdict_name(OB_V_RETURNED), "returned");
    assert_string_equal(ob_verdict_name((enum ob_verdict)99), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_empty_places),
        cmocka_unit_test(test_ceiling_is_for_content),
        cmocka_unit_test(test_last_reference_frees),
        cmocka_unit_test(test_verdict_names),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
