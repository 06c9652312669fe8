/* SPDX-License-Identifier: Apache-2.0 */
/* sqlite_settle_test - settles of SQLite alone: an outcome that is not known, a database that is
 * locked, who deletes events beside the relay. */
#include "sqlite_harness.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_settle_whose_outcome_is_not_known),
        cmocka_unit_test(busy_is_retry_and_changes_nothing),
        cmocka_unit_test(delete_keeps_what_waits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
