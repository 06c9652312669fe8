/* SPDX-License-Identifier: Apache-2.0 */
/* pg_claim_test - the log cursor, step by step: which transaction is visible when is decided here,
 * not by chance. What chance finds is in tests/e2e/test_postgres_stress.py. */
#include "pg_harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Claims all that is there into "1 2 5" and settles it. */
static void take(struct ob_source *s, char *out, size_t size)
{
    struct ob_err err = {.text = ""};
    out[0] = '\0';
    ((struct log_state *)s->state)->poll_at = 0;
    ((struct log_state *)s->state)->idle_ms = 0;
    for (int i = 0; i < 20000; i++) {
        struct ob_batch *batch = NULL;
        enum ob_status st = ob_source_postgres.claim(s, 100, (size_t)8 << 20, &batch, &err);
        if (st == OB_AGAIN && !ob_source_postgres.looking(s) &&
            ((struct log_state *)s->state)->idle_ms > 0)
            return;
        if (st == OB_AGAIN) {
            usleep(200);
            continue;
        }
        if (st != OB_OK)
            fail_msg("%s", err.text);
        for (size_t k = 0; k < batch->n; k++) {
            size_t at = strlen(out);
            snprintf(out + at, size - at, "%s%llu", at ? " " : "",
                     (unsigned long long)batch->events[k].seq);
        }
        struct ob_settle one = {
            .moved = true, .ref = batch->events[batch->n - 1].ref, .delivered = batch->n};
        struct ob_settled done = {0};
        if (ob_source_postgres.settle(s, &one, &done, &err) != OB_OK)
            fail_msg("%s", err.text);
        ob_batch_unref(batch);
    }
    fail_msg("never idle");
}

#define TAKES(s, want)                                                                             \
    do {                                                                                           \
        char got_[8192];                                                                           \
        take((s), got_, sizeof(got_));                                                             \
        assert_string_equal(got_, (want));                                                         \
    } while (0)

static void put(PGconn *c)
{
    sql_on(c, "select outbox.emit('t', '{}')");
}

/* Trap: `id > last` loses what commits late. Once it is read, the snapshot has it. */
static void a_lower_number_that_commits_later(void **state)
{
    static const int pages[] = {1, 2, 1000};

    (void)state;
    for (size_t i = 0; i < ROWS(pages); i++) {
        struct bench b;
        bench_init(&b);
        b.conf.page = pages[i];
        struct ob_source *s = open_own(&b);
        PGconn *slow = session(&b), *slower = session(&b);
        sql_on(slow, "begin");
        put(slow); /* 1 */
        sql_on(slower, "begin");
        put(slower); /* 2 */
        put(b.app);  /* 3 */
        TAKES(s, "3");
        put(slow);  /* 4 */
        put(b.app); /* 5 */
        TAKES(s, "5");
        sql_on(slow, "commit");
        TAKES(s, "1 4");
        TAKES(s, "");
        sql_on(slower, "rollback");
        put(b.app); /* 6 */
        TAKES(s, "6");
        PQfinish(slow);
        PQfinish(slower);
        ob_source_postgres.close(s);
        bench_clear(&b);
    }
}

/* snapshot.xmax is the last completed id + 1: who has an id at or above it may hold a number that
 * is lower than one that was read. */
static void late_transactions_above_xmax(void **state)
{
    struct bench b;

    (void)state;
    bench_init(&b);
    struct ob_source *s = open_own(&b);
    PGconn *early = session(&b), *late = session(&b);
    sql_on(early, "begin; select pg_current_xact_id()");
    sql_on(late, "begin; select pg_current_xact_id()");
    put(late);  /* 1 by the higher id */
    put(early); /* 2 by the lower one */
    sql_on(early, "commit");
    TAKES(s, "2"); /* xmax is the id of `late`, which is not in xip */
    sql_on(late, "commit");
    TAKES(s, "1");
    TAKES(s, "");
    PQfinish(early);
    PQfinish(late);
    ob_source_postgres.close(s);
    bench_clear(&b);
}

/* Trap: an id that was taken early is no order. T2 holds the row's lock before T1. */
static void order_is_the_number_not_the_id(void **state)
{
    struct bench b;

    (void)state;
    bench_init(&b);
    struct ob_source *s = open_own(&b);
    PGconn *t1 = session(&b), *t2 = session(&b), *other = session(&b);
    sql_on(t1, "begin; select pg_current_xact_id()");
    sql_on(other, "begin; select pg_current_xact_id()"); /* open for the whole time */
    sql_on(t2, "begin");
    put(t2);
    sql_on(t2, "commit");
    put(t1);
    sql_on(t1, "commit");
    TAKES(s, "1 2");
    PQfinish(t1);
    PQfinish(t2);
    PQfinish(other);
    ob_source_postgres.close(s);
    bench_clear(&b);
}

/* A late transaction of many rows takes several pages; each place on the way can be gone on from,
 * by a new owner too. */
static void a_late_pass_of_several_pages(void **state)
{
    struct bench b;
    char got[256], all[2048] = "";

    (void)state;
    bench_init(&b);
    b.conf.page = 3;
    struct ob_source *s = open_own(&b);
    PGconn *slow = session(&b), *second = session(&b);
    sql_on(slow, "begin");
    sql_on(second, "begin");
    for (int i = 0; i < 5; i++) {
        put(slow);   /* 1 4 7 10 13 */
        put(second); /* 2 5 8 11 14 */
        put(b.app);  /* 3 6 9 12 15 */
    }
    TAKES(s, "3 6 9 12 15");
    sql_on(slow, "commit");
    sql_on(second, "commit");
    put(b.app);                    /* 16 */
    for (int i = 0; i < 40; i++) { /* one event, settled, then another owner */
        struct ob_batch *batch = NULL;
        struct ob_err err;
        struct ob_settled done = {0};
        ((struct log_state *)s->state)->poll_at = 0;
        enum ob_status st = OB_AGAIN;
        for (int k = 0; k < 300 && st == OB_AGAIN; k++) {
            st = ob_source_postgres.claim(s, 1, 1 << 20, &batch, &err);
            if (st == OB_AGAIN)
                usleep(500);
        }
        if (st == OB_AGAIN)
            break;
        assert_int_equal(st, OB_OK);
        assert_int_equal(batch->n, 1);
        snprintf(got, sizeof(got), "%d ", (int)batch->events[0].seq);
        strcat(all, got);
        struct ob_settle one = {.moved = true, .ref = batch->events[0].ref};
        assert_int_equal(ob_source_postgres.settle(s, &one, &done, &err), OB_OK);
        ob_batch_unref(batch);
        ob_source_postgres.close(s);
        s = open_own(&b);
    }
    assert_string_equal(all, "1 2 4 5 7 8 10 11 13 14 16 ");
    PQfinish(slow);
    PQfinish(second);
    ob_source_postgres.close(s);
    bench_clear(&b);
}

/* Nothing settled is read again, nothing unsettled is lost, wherever it is rewound. */
static void rewind_goes_back_to_what_is_settled(void **state)
{
    struct bench b;
    struct ob_batch *batch;
    struct ob_err err;
    struct ob_settled done = {0};

    (void)state;
    bench_init(&b);
    struct ob_source *s = open_own(&b);
    PGconn *slow = session(&b);
    sql_on(slow, "begin");
    put(slow); /* 1 */
    for (int i = 0; i < 5; i++)
        put(b.app); /* 2 … 6 */
    batch = claim(s, 10, OB_OK);
    assert_int_equal(batch->n, 5);
    struct ob_settle one = {.moved = true, .ref = batch->events[2].ref};
    assert_int_equal(ob_source_postgres.settle(s, &one, &done, &err), OB_OK);
    ob_batch_unref(batch);
    sql_on(slow, "commit");
    ob_source_postgres.rewind(s);
    TAKES(s, "1 5 6");
    ob_source_postgres.rewind(s);
    TAKES(s, "");
    PQfinish(slow);
    ob_source_postgres.close(s);
    bench_clear(&b);
}

/* A prepared transaction is running until it is committed, over a restart of the relay too. */
static void prepared_transactions(void **state)
{
    struct bench b;

    (void)state;
    bench_init(&b);
    struct ob_source *s = open_own(&b);
    PGconn *c = session(&b);
    sql_on(c, "begin");
    put(c); /* 1 */
    sql_on(c, "prepare transaction 'p'");
    put(b.app); /* 2 */
    TAKES(s, "2");
    ob_source_postgres.close(s);
    s = open_own(&b);
    TAKES(s, "");
    sql_on(c, "commit prepared 'p'");
    TAKES(s, "1");
    PQfinish(c);
    ob_source_postgres.close(s);
    bench_clear(&b);
}

/* The fence may only be one that was given after the snapshot: writes of ours that were under way
 * when it was taken are none. */
static void the_fence_is_later_than_the_snapshot(void **state)
{
    struct bench b;
    struct ob_err err;
    const struct ob_beat beat = {.state = "running"};
    bool paused;

    (void)state;
    bench_init(&b);
    struct ob_source *s = open_own(&b);
    PGconn *late = session(&b), *early = session(&b);
    struct log_state *l = s->state;
    l->poll_at = 0;
    for (int i = 0; i < 30; i++) {
        /* An id above xmax with the lowest number, then beats around the look. */
        sql_on(early, "begin; select pg_current_xact_id()");
        sql_on(late, "begin; select pg_current_xact_id()");
        put(late);
        put(early);
        sql_on(early, "commit");
        struct ob_batch *batch = NULL;
        l->poll_at = 0;
        enum ob_status st = OB_AGAIN;
        while (st == OB_AGAIN) { /* asked; a beat while it is under way; then taken */
            st = ob_source_postgres.claim(s, 10, 1 << 20, &batch, &err);
            if (st == OB_AGAIN)
                assert_int_equal(ob_source_postgres.beat(s, &beat, &paused, &err), OB_OK);
        }
        assert_int_equal(batch->n, 1);
        struct ob_settle one = {.moved = true, .ref = batch->events[0].ref};
        struct ob_settled done = {0};
        assert_int_equal(ob_source_postgres.settle(s, &one, &done, &err), OB_OK);
        ob_batch_unref(batch);
        sql_on(late, "commit");
        assert_int_equal(deliver_all(s), 1);
    }
    PQfinish(early);
    PQfinish(late);
    ob_source_postgres.close(s);
    bench_clear(&b);
}

static void events_are_as_they_were_written(void **state)
{
    struct bench b;
    struct ob_batch *batch;

    (void)state;
    bench_init(&b);
    struct ob_source *s = open_own(&b);
    sql(&b,
        "begin; select outbox.emit('order.placed', '{\"a\":  1}', 'order', '42', key => 'k', id => "
        "'01234567-89ab-7def-8123-456789abcdef', tenant => 'acme', topic => 't', headers => "
        "'{\"h\": 1}', metadata => '{\"m\": 2}', entity_version => 7, schema_version => 2, "
        "max_attempts => 3); select outbox.emit('x', '\\x00ff'::bytea); select outbox.emit('x'); "
        "select outbox.emit('x', repeat('y', 100000), kind => 'text'); commit");
    batch = claim(s, 10, OB_OK);
    assert_int_equal(batch->n, 4);
    const struct ob_event *e = batch->events;
    row_str("all", "id", e->id, OB_STR("01234567-89ab-7def-8123-456789abcdef"));
    row_str("all", "type", e->type, OB_STR("order.placed"));
    row_str("all", "aggregate type", e->aggregate_type, OB_STR("order"));
    row_str("all", "aggregate id", e->aggregate_id, OB_STR("42"));
    row_str("all", "key", e->key, OB_STR("k"));
    row_str("all", "tenant", e->tenant, OB_STR("acme"));
    row_str("all", "topic", e->topic, OB_STR("t"));
    row_str("all", "payload", e->payload, OB_STR("{\"a\":  1}"));
    row_str("all", "headers", e->headers, OB_STR("{\"h\": 1}"));
    row_str("all", "metadata", e->metadata, OB_STR("{\"m\": 2}"));
    assert_true(e->payload_kind == OB_PAYLOAD_JSON && e->entity_version == 7 &&
                e->schema_version == 2 && e->max_attempts == 3 && e->seq == 1);
    assert_in_range(ob_clock_wall_us(&ob_clock_system) - e->created_us, 0, 60000000);
    e++;
    row_str("bytes", "payload", e->payload, (struct ob_str){"\0\xff", 2});
    assert_true(e->payload_kind == OB_PAYLOAD_BYTES && e->entity_version == OB_NO_VERSION &&
                e->schema_version == OB_NO_VERSION && e->max_attempts == 0 && e->key.n == 0);
    e++;
    assert_true(e->payload_kind == OB_PAYLOAD_NULL && e->payload.n == 0);
    e++;
    assert_true(e->payload_kind == OB_PAYLOAD_TEXT && e->payload.n == 100000 &&
                e->payload.p[99999] == 'y');
    ob_batch_unref(batch);
    ob_source_postgres.close(s);
    bench_clear(&b);
}

static void a_claim_is_bounded_by_bytes(void **state)
{
    struct bench b;
    struct ob_batch *batch = NULL;
    struct ob_err err;

    (void)state;
    bench_init(&b);
    struct ob_source *s = open_own(&b);
    sql(&b, "select outbox.emit('x', repeat('y', 1000), kind => 'text') from generate_series(1, "
            "10)");
    for (int n = 0; n < 10;) {
        enum ob_status st = ob_source_postgres.claim(s, 100, 3000, &batch, &err);
        if (st == OB_AGAIN) {
            usleep(500);
            continue;
        }
        assert_int_equal(st, OB_OK);
        assert_in_range(batch->n, 1, 2); /* with what it costs beside its bytes */
        for (size_t i = 0; i < batch->n; i++)
            assert_int_equal(batch->events[i].seq, ++n);
        ob_batch_unref(batch);
    }
    ob_source_postgres.close(s);
    bench_clear(&b);
}

/* With nothing to do the stored snapshot moves on, or old partitions would never go. */
static void an_idle_cursor_moves_on(void **state)
{
    struct bench b;
    struct ob_err err;
    const struct ob_beat beat = {.state = "running"};
    struct ob_batch *batch;
    bool paused;
    char before[128], after[128];

    (void)state;
    bench_init(&b);
    struct ob_source *s = open_own(&b);
    emit(&b, 3, 1);
    assert_int_equal(deliver_all(s), 3);
    text(&b, before, sizeof(before), "select snap::text from outbox.cursor");
    sql(&b, "create table t (); drop table t");
    claim(s, 10, OB_AGAIN);
    assert_int_equal(ob_source_postgres.beat(s, &beat, &paused, &err), OB_OK);
    text(&b, after, sizeof(after), "select snap::text from outbox.cursor");
    assert_string_not_equal(before, after);
    /* But not over what is in flight. */
    emit(&b, 2, 1);
    batch = claim(s, 10, OB_OK);
    assert_int_equal(ob_source_postgres.beat(s, &beat, &paused, &err), OB_OK);
    assert_int_equal(num(&b, "select pos from outbox.cursor"), 3);
    ob_batch_unref(batch);
    ob_source_postgres.close(s);
    s = open_own(&b);
    assert_int_equal(deliver_all(s), 2);
    ob_source_postgres.close(s);
    bench_clear(&b);
}

/* What PostgreSQL says of a snapshot, we say. */
static void snapshots_show_what_the_server_says(void **state)
{
    static const char *const snaps[] = {
        "10:10:",      "10:12:10",       "10:20:10,12,19",
        "5:100:5,6,7", "7:8:",           "3:3:",
        "1:2:1",       "10:20:11,13,15", "4294967300:4294967310:4294967305"};
    struct bench b;

    (void)state;
    bench_init(&b);
    for (size_t i = 0; i < ROWS(snaps); i++)
        for (uint64_t k = 1; k < 130; k++) {
            uint64_t x = i == 8 ? 4294967240 + k : k;
            bool want = num(&b, "select pg_visible_in_snapshot('%llu', '%s')::int",
                            (unsigned long long)x, snaps[i]) == 1;
            if (ob_pg_snap_shows(snaps[i], x) != want)
                fail_msg("%s: %llu", snaps[i], (unsigned long long)x);
        }
    bench_clear(&b);
}

/* With synchronous_commit = off a commit is visible before it is on disk; with require_flushed it
 * is handed out only when it is. The server's WAL writer is made slow, so that the difference
 * shows. */
static void only_what_is_on_disk(void **state)
{
    struct bench b;

    (void)state;
    bench_init(&b);
    sql(&b, "alter system set wal_writer_delay = '10s'");
    sql(&b, "select pg_reload_conf()");
    for (int required = 0; required < 2; required++) {
        struct ob_source *s;
        struct ob_batch *batch = NULL;
        struct ob_err err = {.text = ""};
        char lsn[64];
        enum ob_status st = OB_AGAIN;
        bool waited = false;
        b.conf.require_flushed = required;
        s = open_own(&b);
        claim(s, 10, OB_AGAIN);
        sql(&b, "set synchronous_commit = off");
        emit(&b, 3, 1);
        text(&b, lsn, sizeof(lsn), "select pg_current_wal_insert_lsn()");
        ((struct log_state *)s->state)->poll_at = 0;
        for (int i = 0; i < 30000 && st == OB_AGAIN; i++) {
            st = ob_source_postgres.claim(s, 10, (size_t)1 << 20, &batch, &err);
            waited = waited || ((struct log_state *)s->state)->unflushed;
            if (st == OB_AGAIN && waited && i > 50) { /* as a beat does */
                bool paused;
                struct ob_beat beat = {.state = "running"};
                assert_int_equal(ob_source_postgres.beat(s, &beat, &paused, &err), OB_OK);
            }
            if (st == OB_AGAIN)
                usleep(1000);
        }
        row_int("claim", "status", st, OB_OK);
        row_int("claim", "events", (int64_t)batch->n, 3);
        bool there = num(&b, "select (pg_current_wal_flush_lsn() >= '%s')::int", lsn) == 1;
        row_int(required ? "required" : "not required", "on disk", there, required);
        row_int(required ? "required" : "not required", "waited", waited, required);
        struct ob_settle one = {.moved = true, .ref = batch->events[2].ref, .delivered = 3};
        struct ob_settled done = {0};
        assert_int_equal(ob_source_postgres.settle(s, &one, &done, &err), OB_OK);
        ob_batch_unref(batch);
        ob_source_postgres.close(s);
    }
    sql(&b, "set synchronous_commit = on");
    sql(&b, "alter system reset wal_writer_delay");
    sql(&b, "select pg_reload_conf()");
    bench_clear(&b);
}

/* Claims until `n` peeks have seen nothing. */
static void until_quiet(struct ob_source *s, uint64_t n)
{
    struct log_state *l = s->state;
    struct ob_batch *batch = NULL;
    struct ob_err err;
    uint64_t want = l->quiet + n;
    for (int i = 0; i < 60000 && l->quiet < want; i++) {
        assert_int_equal(ob_source_postgres.claim(s, 100, 1 << 20, &batch, &err), OB_AGAIN);
        usleep(500);
    }
    assert_true(l->quiet >= want);
}

/* Claims without being told anything until this number comes. */
static void until_claimed(struct ob_source *s, uint64_t seq)
{
    struct ob_batch *batch = NULL;
    struct ob_err err;
    for (int i = 0; i < 60000 && !batch; i++) {
        enum ob_status st = ob_source_postgres.claim(s, 100, 1 << 20, &batch, &err);
        assert_true(st == OB_AGAIN || st == OB_OK);
        usleep(500);
    }
    assert_non_null(batch);
    assert_int_equal(batch->n, 1);
    assert_int_equal(batch->events[0].seq, seq);
    ob_batch_unref(batch);
}

static void an_idle_source_only_peeks(void **state)
{
    (void)state;
    struct bench b;
    bench_init(&b);
    PGconn *late = session(&b);
    struct ob_source *s = open_own(&b);
    until_quiet(s, 3);
    put(b.app); /* 1 */
    until_claimed(s, 1);
    sql_on(late, "begin");
    put(late); /* 2, not visible */
    until_quiet(s, 3);
    put(b.app); /* 3 */
    until_claimed(s, 3);
    until_quiet(s, 3);
    sql_on(late, "commit");
    until_claimed(s, 2);
    until_quiet(s, 1);
    ob_source_postgres.close(s);
    PQfinish(late);
    bench_clear(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lower_number_that_commits_later),
        cmocka_unit_test(late_transactions_above_xmax),
        cmocka_unit_test(order_is_the_number_not_the_id),
        cmocka_unit_test(a_late_pass_of_several_pages),
        cmocka_unit_test(rewind_goes_back_to_what_is_settled),
        cmocka_unit_test(prepared_transactions),
        cmocka_unit_test(the_fence_is_later_than_the_snapshot),
        cmocka_unit_test(events_are_as_they_were_written),
        cmocka_unit_test(a_claim_is_bounded_by_bytes),
        cmocka_unit_test(an_idle_cursor_moves_on),
        cmocka_unit_test(snapshots_show_what_the_server_says),
        cmocka_unit_test(only_what_is_on_disk),
        cmocka_unit_test(an_idle_source_only_peeks),
    };

    if (server_missing())
        return 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
