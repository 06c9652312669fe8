/* SPDX-License-Identifier: Apache-2.0 */
/* contract_settle_test - what a settle records, whatever the source: cursor, parked and dead rows,
 * keys that are held; all of it or nothing, and the same when repeated. */
#include "world.h"

#include <stdio.h>
#include <stdlib.h>

static void park_drain_publish(void **state)
{
    struct bench b;
    struct ob_source *s;
    struct ob_batch *batch, *got;
    struct ob_settle_op *op;
    int64_t next;

    (void)state;
    bench_init(&b);
    s = open_own(&b);
    batch = claimed(&b, s, 4, 2);
    op = park(&batch->events[0], 10, 0, DUE);
    op->attempts = 1;
    op->spent = true;
    park(&batch->events[1], 11, 77, DUE);
    park(&batch->events[2], 10, 0, 0);
    park(&batch->events[3], UINT64_MAX - 5, 78, 0);
    g.s.moved = true;
    g.s.ref = 4;
    ok(s);
    for (int i = 0; i < 4; i++)
        assert_int_equal(g.ops[i].park_n, i + 1);
    assert_int_equal(g.out.n_released, 0);
    assert_int_equal(g.out.next_due_ms, DUE);
    assert_int_equal(cursor_pos(&b), HAS_CURSOR ? 4 : -1);
    assert_int_equal(n_published(&b), 0);
    assert_int_equal(n_parked(&b), 4);
    assert_true(is_held(s, 10) && is_held(s, 11) && is_held(s, UINT64_MAX - 5) && !is_held(s, 12));
    assert_side_tables(&b);
    claim(s, 10, OB_AGAIN); /* they are not new once more */

    drain(s, 0, DUE - 1, 10, 10, NULL, &next, OB_AGAIN);
    assert_int_equal(next, DUE);
    got = drain(s, 0, DUE, 10, 10, NULL, &next, OB_OK);
    assert_int_equal(got->n, 2); /* the whole key, although its second row was due before */
    assert_int_equal(got->events[0].park_n, 1);
    assert_int_equal(got->events[0].attempts, 1);
    assert_int_equal(got->events[0].park_hash, 10);
    assert_int_equal(got->events[1].park_n, 3);
    assert_int_equal(got->n_drained, 1);
    assert_true(got->drained[0].hash == 10 && !got->drained[0].more);
    assert_true(next == INT64_MAX);

    settling_reset(&g);
    op_add(&g, OB_SETTLE_PUBLISHED, &got->events[0], 10);
    ok(s);
    assert_int_equal(g.out.n_released, 0); /* one row is left */
    settling_reset(&g);
    op_add(&g, OB_SETTLE_PUBLISHED, &got->events[1], 10);
    ok(s);
    assert_true(released(&g, 10) && g.out.n_released == 1);
    assert_false(is_held(s, 10));
    assert_side_tables(&b);
    ob_batch_unref(got);
    ob_batch_unref(batch);
    SOURCE.close(s);
    bench_clear(&b);
}

static void drain_limits_and_skips(void **state)
{
    struct bench b;
    struct ob_source *s;
    struct ob_batch *batch, *got;
    const struct skips skip2 = {.hash = {2}, .n = 1}, skip_all = {.hash = {1, 2, 3}, .n = 3};
    int64_t next;

    (void)state;
    bench_init(&b);
    s = open_own(&b);
    batch = claimed(&b, s, 9, 3);
    for (size_t i = 0; i < 9; i++) /* keys 1, 2, 3 in turn; key 3 is due last */
        park(&batch->events[i], i % 3 + 1, 0, DUE + (int64_t)(i % 3));
    ok(s);
    static const struct {
        const char *name;
        size_t max, per_key, n, hashes;
        bool more;
    } rows[] = {
        {"all", 100, 100, 9, 3, false},
        {"two of each", 100, 2, 6, 3, true},
        {"one of each", 100, 1, 3, 3, true},
        {"cut by max", 4, 100, 4, 2, true},
    };
    for (size_t i = 0; i < ROWS(rows); i++) {
        got = drain(s, 0, DUE + 10, rows[i].max, rows[i].per_key, NULL, &next, OB_OK);
        row_int(rows[i].name, "n", (int64_t)got->n, (int64_t)rows[i].n);
        row_int(rows[i].name, "hashes", (int64_t)got->n_drained, (int64_t)rows[i].hashes);
        row_int(rows[i].name, "more", got->drained[got->n_drained - 1].more, rows[i].more);
        for (size_t j = 1; j < got->n; j++)
            if (got->events[j].park_hash == got->events[j - 1].park_hash)
                ROW_TRUE(rows[i].name, got->events[j].park_n > got->events[j - 1].park_n);
        ob_batch_unref(got);
    }
    got = drain(s, 0, DUE + 1, 100, 100, &skip2, &next, OB_OK);
    assert_int_equal(got->n, 3); /* key 1; 2 is skipped, 3 is not due */
    assert_int_equal(next, DUE + 2);
    ob_batch_unref(got);
    drain(s, 0, DUE + 10, 100, 100, &skip_all, &next, OB_AGAIN);
    assert_true(next == INT64_MAX); /* all in the window: nothing to wake up for */
    got = drain(s, 0, DUE + 10, 3, 100, NULL, &next, OB_OK);
    assert_int_equal(next, DUE + 1); /* key 2 is left behind and due */
    ob_batch_unref(got);
    ob_batch_unref(batch);
    SOURCE.close(s);
    bench_clear(&b);
}

/* 1,000 rows of 1 MB do not come into memory at once. */
static void drain_is_bounded_by_bytes(void **state)
{
    struct bench b;
    struct ob_source *s;
    struct ob_batch *batch, *got;
    int64_t next;

    (void)state;
    bench_init(&b);
    s = open_own(&b);
    for (int i = 0; i < 3; i++)
        emit_large(&b);
    settling_reset(&g);
    for (int i = 0; i < 3; i++) {
        batch = claim(s, 1, OB_OK);
        settling_reset(&g);
        park(&batch->events[0], 5, 0, 0);
        ok(s);
        ob_batch_unref(batch);
    }
    got = drain(s, 0, DUE, 100, 100, NULL, &next, OB_OK);
    assert_int_equal(got->n, 1);
    assert_true(got->drained[0].more);
    ob_batch_unref(got);
    SOURCE.close(s);
    bench_clear(&b);
}

static void blocked_destinations_rise_unsigned(void **state)
{
    static const uint64_t dests[] = {1, 5, INT64_MAX, (uint64_t)INT64_MAX + 1, UINT64_MAX - 1};
    struct bench b;
    struct ob_source *s;
    struct ob_batch *batch;
    uint64_t got[8];
    size_t n;
    struct ob_err err;

    (void)state;
    bench_init(&b);
    s = open_own(&b);
    batch = claimed(&b, s, 12, 1);
    for (size_t i = 0; i < 5; i++) {
        park(&batch->events[2 * i], 100 + i, dests[4 - i], 0);
        park(&batch->events[2 * i + 1], 200 + i, dests[i], 0);
    }
    park(&batch->events[10], 300, 0, 0);
    op_add(&g, OB_SETTLE_DEAD, &batch->events[11], 400)->hold = true;
    ok(s);
    assert_int_equal(SOURCE.blocked(s, 0, got, 8, &n, &err), OB_OK);
    assert_int_equal(n, 5);
    for (size_t i = 0; i < 5; i++)
        assert_true(got[i] == dests[i]);
    assert_int_equal(SOURCE.blocked(s, 5, got, 2, &n, &err), OB_OK);
    assert_int_equal(n, 2);
    assert_true(got[0] == dests[2] && got[1] == dests[3]);
    assert_int_equal(SOURCE.blocked(s, UINT64_MAX - 1, got, 8, &n, &err), OB_OK);
    assert_int_equal(n, 0);
    ob_batch_unref(batch);
    SOURCE.close(s);
    bench_clear(&b);
}

static void retry_keeps_history_and_attempts(void **state)
{
    struct bench b;
    struct ob_source *s;
    struct ob_batch *batch, *got;
    struct ob_settle_op *op;
    char history[1024];
    int64_t next;

    (void)state;
    bench_init(&b);
    s = open_own(&b);
    batch = claimed(&b, s, 1, 1);
    op = park(&batch->events[0], 1, 0, DUE);
    op->attempts = 1;
    op->spent = true;
    op->reason = "first \"quoted\"";
    ok(s);
    for (uint32_t attempt = 2; attempt <= 3; attempt++) {
        got = drain(s, 0, DUE, 1, 1, NULL, &next, OB_OK);
        assert_int_equal(got->events[0].attempts, attempt - 1);
        settling_reset(&g);
        op = attempt < 3 ? park(&got->events[0], 1, 0, DUE)
                         : op_add(&g, OB_SETTLE_DEAD, &got->events[0], 1);
        op->attempts = attempt;
        op->spent = true;
        op->reason = attempt == 2 ? "second" : "third";
        ok(s);
        ob_batch_unref(got);
    }
    assert_true(released(&g, 1));
    assert_int_equal(n_parked(&b), 0);
    assert_int_equal(dead_number(&b, 3, "third"), 1);
    beat(s); /* some count only then */
    assert_int_equal(n_failed(&b), 3);
    dead_history(&b, history, sizeof(history));
    assert_string_equal(history, "1first \"quoted\",2second,3third");
    assert_side_tables(&b);
    ob_batch_unref(batch);
    SOURCE.close(s);
    bench_clear(&b);
}

static void history_has_a_ceiling(void **state)
{
    struct bench b;
    struct ob_source *s;
    struct ob_batch *batch, *got;
    char *long_reason = malloc(5001);
    int64_t next;

    (void)state;
    memset(long_reason, '"', 5000); /* escaped it doubles */
    long_reason[5000] = '\0';
    bench_init(&b);
    s = open_own(&b);
    batch = claimed(&b, s, 1, 1);
    park(&batch->events[0], 1, 0, 0);
    ok(s);
    for (uint32_t attempt = 1; attempt <= HISTORY_FULL; attempt++) {
        got = drain(s, 0, DUE, 1, 1, NULL, &next, OB_OK);
        settling_reset(&g);
        struct ob_settle_op *op = park(&got->events[0], 1, 0, 0);
        op->attempts = attempt;
        op->spent = true;
        op->reason = long_reason;
        ok(s);
        ob_batch_unref(got);
        assert_in_range(history_size(&b), 2, HISTORY_BYTES);
    }
    assert_int_equal(last_attempt(&b), HISTORY_FULL);
    free(long_reason);
    ob_batch_unref(batch);
    SOURCE.close(s);
    bench_clear(&b);
}

/* Trap: attempts kept in memory make poison immortal. The cursor may stand below parked and dead
 * events when the relay dies; the next owner finds them as they were and claims them not again. */
static void restart_keeps_attempts(void **state)
{
    struct bench b;
    struct ob_source *s;
    struct ob_batch *batch, *got;
    struct ob_settle_op *op;
    int64_t next;

    (void)state;
    bench_init(&b);
    s = open_own(&b);
    batch = claimed(&b, s, 5, 5);
    had_attempts(&b, &batch->events[1], 3);
    op = park(&batch->events[1], 1, 0, 0);
    op->attempts = 4;
    op->spent = true;
    op_add(&g, OB_SETTLE_DEAD, &batch->events[3], 3)->attempts = 9;
    g.s.moved = false; /* event 0 is still in flight: the cursor stays */
    ok(s);
    ob_batch_unref(batch);
    SOURCE.close(s); /* as after a crash: nothing else was recorded */

    s = open_own(&b);
    got = claim(s, 10, OB_OK);
    assert_int_equal(got->n, 3);
    assert_int_equal(number_of(&got->events[0]), 1);
    assert_int_equal(number_of(&got->events[1]), 3);
    assert_int_equal(number_of(&got->events[2]), 5);
    ob_batch_unref(got);
    claim(s, 10, OB_AGAIN);
    got = drain(s, 0, DUE, 10, 10, NULL, &next, OB_OK);
    assert_int_equal(got->n, 1);
    assert_int_equal(number_of(&got->events[0]), 2);
    assert_int_equal(got->events[0].attempts, 4);
    ob_batch_unref(got);
    SOURCE.rewind(s); /* likewise */
    got = claim(s, 10, OB_OK);
    assert_int_equal(got->n, 3);
    ob_batch_unref(got);
    claim(s, 10, OB_AGAIN);
    SOURCE.close(s);
    bench_clear(&b);
}

/* Closes the source as a crash does, and claims what the next owner gets. */
static struct ob_batch *claim_after_restart(struct bench *b, struct ob_source **s)
{
    SOURCE.close(*s);
    *s = open_own(b);
    return claim(*s, 10, OB_OK);
}

static void settled_ahead_is_not_claimed_again(void **state)
{
    struct bench b;
    struct ob_source *s;
    struct ob_batch *batch, *got;
    uint64_t ahead[2];
    int64_t next;

    (void)state;
    bench_init(&b);
    s = open_own(&b);
    batch = claimed(&b, s, 6, 6);
    ahead[0] = batch->events[1].ref;
    ahead[1] = batch->events[4].ref;
    g.s.ahead = ahead;
    g.s.n_ahead = 2;
    g.s.claimed = batch->events[5].ref;
    park(&batch->events[3], 1, 0, 0); /* ahead too, but left out of the set */
    g.s.moved = false;
    ok(s);
    ob_batch_unref(batch);
    got = claim_after_restart(&b, &s);
    assert_int_equal(got->n, 3); /* 1, 3 and 6: the number between 2 and 5 is not covered */
    assert_int_equal(number_of(&got->events[0]), 1);
    assert_int_equal(number_of(&got->events[1]), 3);
    assert_int_equal(number_of(&got->events[2]), 6);
    ob_batch_unref(got);

    /* A parked row that goes before the flow has claimed its event: the set has it from then on,
     * and what it had about unclaimed events. */
    got = drain(s, 0, DUE, 10, 10, NULL, &next, OB_OK);
    settling_reset(&g);
    op_add(&g, OB_SETTLE_PUBLISHED, &got->events[0], 1);
    ok(s);
    ob_batch_unref(got);
    got = claim_after_restart(&b, &s);
    assert_int_equal(got->n, 3);

    /* The cursor moves: what it has passed leaves the set, and no event comes again. */
    settling_reset(&g);
    g.s.moved = true;
    g.s.ref = g.s.claimed = got->events[2].ref;
    ok(s);
    ob_batch_unref(got);
    SOURCE.close(s);
    s = open_own(&b);
    claim(s, 10, OB_AGAIN);
    SOURCE.close(s);
    bench_clear(&b);
}

static void hold_behind_a_dead_event(void **state)
{
    struct bench b;
    struct ob_source *s;
    struct ob_batch *batch, *got;
    struct ob_source_status status;
    struct ob_err err;
    int64_t next;

    (void)state;
    bench_init(&b);
    s = open_own(&b);
    batch = claimed(&b, s, 4, 1);
    op_add(&g, OB_SETTLE_DEAD, &batch->events[0], 1)->hold = true;
    op_add(&g, OB_SETTLE_DEAD, &batch->events[1], 2);
    ok(s);
    assert_int_equal(g.ops[0].park_n, 1);
    assert_int_equal(g.ops[1].park_n, 2);
    assert_true(released(&g, 2) && !released(&g, 1));
    assert_true(is_held(s, 1) && !is_held(s, 2));
    assert_int_equal(SOURCE.status(s, &status, &err), OB_OK);
    assert_true(status.held && status.parked == 0 && status.dead == 2);
    settling_reset(&g);
    park(&batch->events[2], 1, 0, 0);
    park(&batch->events[3], 1, 77, 0);
    ok(s);
    assert_int_equal(g.ops[0].park_n, 3);
    drain(s, 0, DUE, 10, 10, NULL, &next, OB_AGAIN);
    assert_true(next == INT64_MAX);
    drain(s, 77, DUE, 10, 10, NULL, &next, OB_AGAIN);
    assert_side_tables(&b);

    /* Retried: the whole key comes in its old order. */
    {
        struct ob_admin *a = open_admin(&b);
        const struct ob_filter f = {.limit = 1};
        size_t n;
        assert_int_equal(ADMIN.dead_do(a, OB_DEAD_RETRY, &f, false, &n, &err), OB_OK);
        assert_int_equal(n, 1);
        ADMIN.close(a);
    }
    got = drain(s, 0, DUE, 10, 10, NULL, &next, OB_OK);
    assert_int_equal(got->n, 3);
    assert_int_equal(number_of(&got->events[0]), 1);
    assert_int_equal(number_of(&got->events[1]), 3);
    assert_int_equal(number_of(&got->events[2]), 4);
    assert_int_equal(got->events[0].attempts, 0);
    assert_int_equal(got->events[0].park_n, 1);
    assert_side_tables(&b);

    /* It dies again: held again, under the same number, and what was drained behind it waits. */
    settling_reset(&g);
    op_add(&g, OB_SETTLE_DEAD, &got->events[0], 1)->hold = true;
    ok(s);
    assert_true(is_held(s, 1));
    drain(s, 0, DUE, 10, 10, NULL, &next, OB_AGAIN);
    assert_int_equal(n_dead(&b, "dead"), 2);
    assert_side_tables(&b);
    ob_batch_unref(got);
    ob_batch_unref(batch);
    SOURCE.close(s);
    bench_clear(&b);
}

/* A dead event in the middle: what stands before it may go, what stands behind it may not. */
static void drain_stops_at_a_dead_event_that_holds(void **state)
{
    struct bench b;
    struct ob_source *s;
    struct ob_batch *batch, *got;
    int64_t next;

    (void)state;
    bench_init(&b);
    s = open_own(&b);
    batch = claimed(&b, s, 3, 1);
    park(&batch->events[0], 1, 0, 0);
    op_add(&g, OB_SETTLE_DEAD, &batch->events[1], 1)->hold = true;
    park(&batch->events[2], 1, 0, 0);
    ok(s);
    got = drain(s, 0, DUE, 10, 10, NULL, &next, OB_OK);
    assert_int_equal(got->n, 1);
    assert_true(got->drained[0].more);
    settling_reset(&g);
    op_add(&g, OB_SETTLE_PUBLISHED, &got->events[0], 1);
    ok(s);
    assert_false(released(&g, 1));
    drain(s, 0, DUE, 10, 10, NULL, &next, OB_AGAIN);
    assert_side_tables(&b);
    ob_batch_unref(got);
    ob_batch_unref(batch);
    SOURCE.close(s);
    bench_clear(&b);
}

/* The cursor never goes back. */
static void cursor_only_rises(void **state)
{
    struct bench b;
    struct ob_source *s;
    struct ob_batch *batch;

    (void)state;
    bench_init(&b);
    s = open_own(&b);
    batch = claimed(&b, s, 9, 1);
    g.s.moved = true;
    g.s.ref = 9;
    ok(s);
    settling_reset(&g);
    g.s.moved = true;
    g.s.ref = 3;
    ok(s);
    settling_reset(&g);
    g.s.ref = 5; /* not moved */
    ok(s);
    assert_int_equal(cursor_pos(&b), 9);
    ob_batch_unref(batch);
    SOURCE.close(s);
    bench_clear(&b);
}

static void many_ops_and_numbers_in_op_order(void **state)
{
    struct bench b;
    struct ob_source *s;
    struct ob_batch *batch;
    bool held[1000];
    uint64_t hashes[1000];
    struct ob_err err;

    (void)state;
    bench_init(&b);
    s = open_own(&b);
    batch = claimed(&b, s, 1000, 10);
    for (size_t i = 0; i < 1000; i++) {
        if (i % 3 == 0)
            op_add(&g, OB_SETTLE_DEAD, &batch->events[i], i % 10);
        else if (i % 3 == 1)
            park(&batch->events[i], i % 10, i % 4, (int64_t)i);
        else
            op_add(&g, OB_SETTLE_PUBLISHED, &batch->events[i], i % 10);
        hashes[i] = i % 20;
    }
    ok(s);
    for (size_t i = 0, n = 0; i < 1000; i++)
        assert_int_equal(g.ops[i].park_n, i % 3 == 2 ? 0 : ++n);
    assert_side_tables(&b);
    assert_int_equal(SOURCE.held(s, hashes, 1000, held, &err), OB_OK);
    for (size_t i = 0; i < 1000; i++)
        assert_int_equal(held[i], hashes[i] < 10);
    ob_batch_unref(batch);
    SOURCE.close(s);
    bench_clear(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(park_drain_publish),
        cmocka_unit_test(drain_limits_and_skips),
        cmocka_unit_test(drain_is_bounded_by_bytes),
        cmocka_unit_test(blocked_destinations_rise_unsigned),
        cmocka_unit_test(retry_keeps_history_and_attempts),
        cmocka_unit_test(history_has_a_ceiling),
        cmocka_unit_test(restart_keeps_attempts),
        cmocka_unit_test(hold_behind_a_dead_event),
        cmocka_unit_test(drain_stops_at_a_dead_event_that_holds),
        CASE_IF(HAS_CURSOR, cursor_only_rises, "there is no cursor"),
        CASE_IF(HAS_CURSOR, settled_ahead_is_not_claimed_again, "there is no cursor"),
        cmocka_unit_test(many_ops_and_numbers_in_op_order),
    };

    if (server_missing())
        return 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
