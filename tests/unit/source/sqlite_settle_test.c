/* SPDX-License-Identifier: Apache-2.0 */
/* sqlite_settle_test - what a settle records: cursor, parked and dead rows, keys that are held; all
 * of it or nothing, and the same when repeated. */
#include "sqlite_harness.h"

#include <stdio.h>
#include <stdlib.h>

static struct settling g;

#define DUE (INT64_C(1770000000000) + 1000) /* a second after the bench's clock */

/* A batch of n events that stays in memory, with the cursor before it. */
static struct ob_batch *claimed(struct bench *b, struct ob_source *s, size_t n, size_t keys)
{
    emit(b, n, keys);
    settling_reset(&g);
    return claim(s, n, OB_OK);
}

static struct ob_settle_op *park(const struct ob_event *ev, uint64_t hash, uint64_t dest,
                                 int64_t due)
{
    struct ob_settle_op *op = op_add(&g, OB_SETTLE_PARK, ev, hash);

    op->blocked_dest = dest;
    op->due_ms = due;
    return op;
}

static void ok(struct ob_source *s)
{
    if (settle(s, &g) != OB_OK)
        fail_msg("%s", g.err.text);
}

struct skips {
    uint64_t hash[8];
    size_t n;
};

static bool passed_over(void *user, uint64_t hash)
{
    const struct skips *k = user;

    for (size_t i = 0; i < k->n; i++)
        if (k->hash[i] == hash)
            return true;
    return false;
}

static struct ob_batch *drain(struct ob_source *s, uint64_t dest, int64_t now, size_t max,
                              size_t per_key, const struct skips *k, int64_t *next,
                              enum ob_status want)
{
    static const struct skips none;
    struct ob_batch *batch = NULL;
    struct ob_err err = {.text = ""};
    enum ob_status st =
        ob_source_sqlite.drain(s, dest, now, max, per_key, passed_over,
                               (void *)(uintptr_t)(k ? k : &none), &batch, next, &err);

    if (st != want)
        fail_msg("drain: %s: %s", ob_status_name(st), err.text);
    return batch;
}

static bool is_held(struct ob_source *s, uint64_t hash)
{
    struct ob_err err;
    bool held = false;

    assert_int_equal(ob_source_sqlite.held(s, &hash, 1, &held, &err), OB_OK);
    return held;
}

static void park_drain_publish(void **state)
{
    struct bench b;
    struct ob_source *s;
    struct ob_batch *batch, *got;
    int64_t next;

    (void)state;
    bench_init(&b);
    s = open_own(&b);
    batch = claimed(&b, s, 4, 2);
    park(&batch->events[0], 10, 0, DUE)->attempts = 1;
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
    assert_int_equal(num(&b, "SELECT pos FROM outbox_cursor"), 4);
    assert_true(is_held(s, 10) && is_held(s, 11) && is_held(s, UINT64_MAX - 5) && !is_held(s, 12));
    assert_side_tables(&b);

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
    ob_source_sqlite.close(s);
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
    ob_source_sqlite.close(s);
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
        sql(&b, "INSERT INTO outbox_event (type, payload) VALUES ('t', zeroblob(5000000))");
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
    ob_source_sqlite.close(s);
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
    assert_int_equal(ob_source_sqlite.blocked(s, 0, got, 8, &n, &err), OB_OK);
    assert_int_equal(n, 5);
    for (size_t i = 0; i < 5; i++)
        assert_true(got[i] == dests[i]);
    assert_int_equal(ob_source_sqlite.blocked(s, 5, got, 2, &n, &err), OB_OK);
    assert_int_equal(n, 2);
    assert_true(got[0] == dests[2] && got[1] == dests[3]);
    assert_int_equal(ob_source_sqlite.blocked(s, UINT64_MAX - 1, got, 8, &n, &err), OB_OK);
    assert_int_equal(n, 0);
    ob_batch_unref(batch);
    ob_source_sqlite.close(s);
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
    assert_int_equal(num(&b, "SELECT count(*) FROM outbox_parked"), 0);
    assert_int_equal(num(&b, "SELECT n FROM outbox_dead WHERE attempts = 3 AND error = 'third'"),
                     1);
    assert_int_equal(num(&b, "SELECT failed FROM outbox_cursor"), 3);
    text(&b, history, sizeof(history),
         "SELECT group_concat(json_extract(value, '$.attempt') || json_extract(value, '$.error'))"
         " FROM outbox_dead, json_each(history)");
    assert_string_equal(history, "1first \"quoted\",2second,3third");
    assert_side_tables(&b);
    ob_batch_unref(batch);
    ob_source_sqlite.close(s);
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
    for (uint32_t attempt = 1; attempt <= 60; attempt++) {
        got = drain(s, 0, DUE, 1, 1, NULL, &next, OB_OK);
        settling_reset(&g);
        struct ob_settle_op *op = park(&got->events[0], 1, 0, 0);
        op->attempts = attempt;
        op->spent = true;
        op->reason = long_reason;
        ok(s);
        ob_batch_unref(got);
        assert_in_range(num(&b, "SELECT length(history) FROM outbox_parked"), 2, 40000);
    }
    assert_int_equal(num(&b, "SELECT json_valid(history) FROM outbox_parked"), 1);
    assert_int_equal(num(&b, "SELECT json_extract(history, '$[#-1].attempt') FROM outbox_parked"),
                     60);
    free(long_reason);
    ob_batch_unref(batch);
    ob_source_sqlite.close(s);
    bench_clear(&b);
}

/* Trap: attempts kept in memory make poison immortal. The cursor may stand below parked and dead
 * events when the relay dies; the next owner finds them as they were and claims them not again. */
static void restart_keeps_attempts(void **state)
{
    struct bench b;
    struct ob_source *s;
    struct ob_batch *batch, *got;
    int64_t next;

    (void)state;
    bench_init(&b);
    s = open_own(&b);
    batch = claimed(&b, s, 5, 5);
    park(&batch->events[1], 1, 0, 0)->attempts = 4;
    op_add(&g, OB_SETTLE_DEAD, &batch->events[3], 3)->attempts = 9;
    g.s.moved = false; /* event 0 is still in flight: the cursor stays */
    ok(s);
    ob_batch_unref(batch);
    ob_source_sqlite.close(s); /* as after a crash: nothing else was recorded */

    s = open_own(&b);
    got = claim(s, 10, OB_OK);
    assert_int_equal(got->n, 3);
    assert_int_equal(got->events[0].ref, 1);
    assert_int_equal(got->events[1].ref, 3);
    assert_int_equal(got->events[2].ref, 5);
    ob_batch_unref(got);
    got = drain(s, 0, DUE, 10, 10, NULL, &next, OB_OK);
    assert_int_equal(got->n, 1);
    assert_int_equal(got->events[0].ref, 2);
    assert_int_equal(got->events[0].attempts, 4);
    ob_batch_unref(got);
    ob_source_sqlite.rewind(s); /* likewise */
    got = claim(s, 10, OB_OK);
    assert_int_equal(got->n, 3);
    ob_batch_unref(got);
    ob_source_sqlite.close(s);
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
    assert_int_equal(ob_source_sqlite.status(s, &status, &err), OB_OK);
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
        assert_int_equal(ob_sqlite_admin.dead_do(a, OB_DEAD_RETRY, &f, false, &n, &err), OB_OK);
        assert_int_equal(n, 1);
        ob_sqlite_admin.close(a);
    }
    got = drain(s, 0, DUE, 10, 10, NULL, &next, OB_OK);
    assert_int_equal(got->n, 3);
    assert_int_equal(got->events[0].ref, 1);
    assert_int_equal(got->events[1].ref, 3);
    assert_int_equal(got->events[2].ref, 4);
    assert_int_equal(got->events[0].attempts, 0);
    assert_int_equal(got->events[0].park_n, 1);
    assert_side_tables(&b);

    /* It dies again: held again, under the same number, and what was drained behind it waits. */
    settling_reset(&g);
    op_add(&g, OB_SETTLE_DEAD, &got->events[0], 1)->hold = true;
    ok(s);
    assert_true(is_held(s, 1));
    drain(s, 0, DUE, 10, 10, NULL, &next, OB_AGAIN);
    assert_int_equal(num(&b, "SELECT count(*) FROM outbox_dead WHERE state = 'dead'"), 2);
    assert_side_tables(&b);
    ob_batch_unref(got);
    ob_batch_unref(batch);
    ob_source_sqlite.close(s);
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
    ob_source_sqlite.close(s);
    bench_clear(&b);
}

/* The commit may have reached the disk although it was reported as failed: the same again changes
 * nothing more and gives the same numbers. */
static void a_settle_whose_outcome_is_not_known(void **state)
{
    struct bench b;
    struct ob_source *s;
    struct ob_batch *batch;

    (void)state;
    bench_init(&b);
    s = open_own(&b);
    batch = claimed(&b, s, 4, 4);
    g.s.moved = true;
    g.s.ref = 4;
    g.s.delivered = 2;
    struct ob_settle_op *op = park(&batch->events[1], 1, 0, DUE);
    op->attempts = 1;
    op->spent = true;
    op_add(&g, OB_SETTLE_DEAD, &batch->events[2], 2)->attempts = 1;
    ok(s);
    for (int again = 0; again < 2; again++) {
        s->unsure = true; /* what a failed COMMIT leaves */
        s->credit = again ? (struct counted){2, 1} : (struct counted){0};
        g.ops[0].park_n = g.ops[1].park_n = 0;
        ok(s);
        assert_int_equal(g.ops[0].park_n, 1);
        assert_int_equal(g.ops[1].park_n, 2);
        assert_true(released(&g, 2) && !released(&g, 1));
        assert_int_equal(num(&b, "SELECT published FROM outbox_cursor"), 2);
        assert_int_equal(num(&b, "SELECT failed FROM outbox_cursor"), 1);
        assert_int_equal(num(&b, "SELECT count(*) FROM outbox_parked"), 1);
        assert_int_equal(num(&b, "SELECT count(*) FROM outbox_dead"), 1);
        assert_int_equal(num(&b, "SELECT json_array_length(history) FROM outbox_parked"), 1);
        assert_side_tables(&b);
    }
    /* Not committed after all: everything is counted once. */
    s->unsure = true;
    s->settle_no += 7;
    g.s.delivered = 3;
    ok(s);
    assert_int_equal(num(&b, "SELECT published FROM outbox_cursor"), 5);
    ob_batch_unref(batch);
    ob_source_sqlite.close(s);
    bench_clear(&b);
}

static void busy_is_retry_and_changes_nothing(void **state)
{
    struct bench b;
    struct ob_source *s;
    struct ob_batch *batch;
    bool paused;
    struct ob_err err;
    const struct ob_beat beat = {.state = "running"};

    (void)state;
    bench_init(&b);
    s = open_own(&b);
    batch = claimed(&b, s, 2, 2);
    park(&batch->events[0], 1, 0, DUE);
    g.s.moved = true;
    g.s.ref = 2;
    sql(&b, "BEGIN IMMEDIATE");
    assert_int_equal(settle(s, &g), OB_RETRY);
    assert_int_equal(g.ops[0].park_n, 0);
    assert_int_equal(ob_source_sqlite.beat(s, &beat, &paused, &err), OB_RETRY);
    claim(s, 10, OB_AGAIN); /* reading goes on beside a writer */
    sql(&b, "COMMIT");
    ok(s);
    assert_int_equal(g.ops[0].park_n, 1);
    ob_batch_unref(batch);
    ob_source_sqlite.close(s);
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
    assert_int_equal(num(&b, "SELECT pos FROM outbox_cursor"), 9);
    ob_batch_unref(batch);
    ob_source_sqlite.close(s);
    bench_clear(&b);
}

/* Who cleans up cannot take away what waits or is dead. */
static void delete_keeps_what_waits(void **state)
{
    struct bench b;
    struct ob_source *s;
    struct ob_batch *batch, *got;
    int64_t next;

    (void)state;
    bench_init(&b);
    s = open_own(&b);
    batch = claimed(&b, s, 4, 1);
    park(&batch->events[0], 1, 0, 0);
    op_add(&g, OB_SETTLE_DEAD, &batch->events[1], 2);
    g.s.moved = true;
    g.s.ref = 2;
    ok(s);
    sql(&b, "DELETE FROM outbox_event WHERE seq < 4");
    assert_int_equal(
        num(&b, "SELECT group_concat(seq, '') FROM (SELECT seq FROM outbox_event ORDER BY seq)"),
        124);
    got = drain(s, 0, DUE, 10, 10, NULL, &next, OB_OK);
    assert_string_equal(got->events[0].payload.p, "{\"i\":0}");
    ob_batch_unref(got);

    /* Number 3 was claimed and deleted since: there is nothing that could wait. */
    settling_reset(&g);
    park(&batch->events[2], 3, 0, 0);
    ok(s);
    assert_true(released(&g, 3) && !is_held(s, 3));
    assert_int_equal(num(&b, "SELECT count(*) FROM outbox_dead WHERE seq = 3 AND state ="
                             " 'discarded' AND error LIKE '%%deleted%%'"),
                     1);

    /* By force, with the trigger gone: dead with its reason, and what stands behind goes on. */
    settling_reset(&g);
    park(&batch->events[3], 1, 0, 0);
    ok(s);
    sql(&b, "DROP TRIGGER outbox_event_keep; DELETE FROM outbox_event WHERE seq = 1");
    got = drain(s, 0, DUE, 10, 10, NULL, &next, OB_OK);
    assert_int_equal(got->n, 1);
    assert_int_equal(got->events[0].ref, 4);
    ob_batch_unref(got);
    assert_int_equal(num(&b, "SELECT count(*) FROM outbox_dead WHERE seq = 1 AND state = 'dead'"),
                     1);
    assert_side_tables(&b);
    ob_batch_unref(batch);
    ob_source_sqlite.close(s);
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
    assert_int_equal(ob_source_sqlite.held(s, hashes, 1000, held, &err), OB_OK);
    for (size_t i = 0; i < 1000; i++)
        assert_int_equal(held[i], hashes[i] < 10);
    ob_batch_unref(batch);
    ob_source_sqlite.close(s);
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
        cmocka_unit_test(a_settle_whose_outcome_is_not_known),
        cmocka_unit_test(busy_is_retry_and_changes_nothing),
        cmocka_unit_test(cursor_only_rises),
        cmocka_unit_test(delete_keeps_what_waits),
        cmocka_unit_test(many_ops_and_numbers_in_op_order),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
