/* SPDX-License-Identifier: Apache-2.0 */
/* pg_own_test - one owner at a time: take-over from one that is gone or hangs, fencing of who comes
 * back, a changed number of shards, a cursor of another cluster. */
#include "pg_harness.h"

#include <stdio.h>
#include <unistd.h>

static const struct ob_beat running = {.state = "running", .in_flight = 5};

static enum ob_status own(struct ob_source *s, struct ob_err *err)
{
    err->text[0] = '\0';
    return ob_source_postgres.own(s, err);
}

/* A backend that was told to end needs a moment. */
static enum ob_status own_soon(struct ob_source *s, struct ob_err *err)
{
    enum ob_status st = OB_AGAIN;
    for (int i = 0; i < 2000 && st == OB_AGAIN; i++) {
        st = own(s, err);
        if (st == OB_AGAIN)
            usleep(2000);
    }
    return st;
}

static int64_t epoch(struct bench *b)
{
    return num(b, "SELECT max(epoch) FROM outbox.cursor WHERE pipeline = '" PIPE "'");
}

static void second_one_stands_by(void **state)
{
    struct bench b;
    struct ob_source *s, *t;
    struct ob_err err;

    (void)state;
    bench_init(&b);
    s = open_shard(&b, 0, 1, "host:1:aa");
    t = open_shard(&b, 0, 1, "host:2:bb");
    assert_int_equal(own(s, &err), OB_OK);
    assert_int_equal(own(s, &err), OB_OK); /* still */
    assert_int_equal(epoch(&b), 1);
    assert_int_equal(own(t, &err), OB_AGAIN);
    assert_non_null(strstr(err.text, "host:1:aa"));
    emit(&b, 3, 1);
    assert_int_equal(deliver_all(s), 3);
    ob_source_postgres.disown(s);
    assert_int_equal(own(t, &err), OB_OK);
    assert_int_equal(epoch(&b), 2);
    claim(t, 10, OB_AGAIN); /* the position came along */
    claim(s, 10, OB_FENCED);
    ob_source_postgres.close(s);
    ob_source_postgres.close(t);
    bench_clear(&b);
}

static void takeover_from_one_that_is_gone(void **state)
{
    struct bench b;
    struct ob_source *s, *t;
    struct ob_err err;

    (void)state;
    bench_init(&b);
    emit(&b, 2, 1);
    s = open_own(&b);
    t = open_shard(&b, 0, 1, "second");
    assert_int_equal(own(t, &err), OB_AGAIN);
    ob_pg_close(&s->sql); /* what kill -9 does to a session */
    assert_int_equal(own_soon(t, &err), OB_OK);
    assert_int_equal(deliver_all(t), 2);
    ob_source_postgres.close(s);
    ob_source_postgres.close(t);
    bench_clear(&b);
}

/* Looks of a stand-by, `step_ms` apart on its own clock, until the owner's backend was ended. */
static void takeover_from_a_hung_process(void **state)
{
    static const struct {
        const char *name;
        int64_t step_ms;
    } rows[] = {{"half a second", 500}, {"a second", 1000}, {"five seconds", 5000}};

    (void)state;
    for (size_t i = 0; i < ROWS(rows); i++) {
        struct bench b;
        struct ob_source *s, *t;
        struct ob_err err;
        struct ob_settle one = {.moved = true, .ref = 1, .delivered = 1};
        struct ob_settled out = {0};
        struct ob_batch *batch;
        int64_t took = 0;
        bool paused;

        bench_init(&b);
        emit(&b, 2, 1);
        s = open_own(&b);
        batch = claim(s, 10, OB_OK);
        assert_int_equal(ob_source_postgres.beat(s, &running, &paused, &err), OB_OK);
        t = open_shard(&b, 0, 1, "second");
        int64_t began = ob_clock_mono_ms(&b.fake.clock); /* with what really passes, too */
        while (own(t, &err) == OB_AGAIN && took <= 30000) {
            usleep(20000); /* a backend that was told to end needs a moment */
            b.fake.ahead_us += rows[i].step_ms * 1000;
            took = ob_clock_mono_ms(&b.fake.clock) - began;
        }
        if (took < 10000 || took > 30000)
            fail_msg("row '%s': took %lld ms", rows[i].name, (long long)took);
        assert_int_equal(epoch(&b), 2);
        /* The zombie comes back: it changes nothing and learns that it is fenced. */
        assert_int_equal(ob_source_postgres.settle(s, &one, &out, &err), OB_FENCED);
        assert_int_equal(num(&b, "SELECT pos FROM outbox.cursor"), 0);
        assert_int_equal(num(&b, "SELECT published FROM outbox.cursor"), 0);
        assert_int_equal(own(s, &err), OB_AGAIN);
        assert_int_equal(deliver_all(t), 2);
        ob_batch_unref(batch);
        ob_source_postgres.close(s);
        ob_source_postgres.close(t);
        bench_clear(&b);
    }
}

/* Not even with its session alive can an owner of an old epoch write anything. */
static void the_epoch_fences(void **state)
{
    static struct settling g;
    struct bench b;
    struct ob_source *s;
    struct ob_batch *batch;
    struct ob_err err;
    bool paused;

    (void)state;
    bench_init(&b);
    emit(&b, 3, 1);
    s = open_own(&b);
    batch = claim(s, 10, OB_OK);
    settling_reset(&g);
    op_add(&g, OB_SETTLE_PARK, &batch->events[0], 1);
    op_add(&g, OB_SETTLE_DEAD, &batch->events[1], 2);
    g.s.moved = true;
    g.s.ref = 3;
    g.s.delivered = 1;
    sql(&b, "update outbox.cursor set epoch = epoch + 1");
    assert_int_equal(settle(s, &g), OB_FENCED);
    assert_int_equal(num(&b, "select count(*) from outbox.parked"), 0);
    assert_int_equal(num(&b, "select count(*) from outbox.dead"), 0);
    assert_int_equal(num(&b, "select pos + published from outbox.cursor"), 0);
    assert_int_equal(ob_source_postgres.beat(s, &running, &paused, &err), OB_FENCED);
    ob_batch_unref(batch);
    ob_source_postgres.close(s);

    s = open_own(&b);
    sql(&b, "update outbox.cursor set epoch = epoch + 1");
    assert_int_equal(ob_source_postgres.beat(s, &running, &paused, &err), OB_FENCED);
    ob_source_postgres.close(s);
    bench_clear(&b);
}

static void a_beating_owner_stays(void **state)
{
    struct bench b;
    struct ob_source *s, *t;
    struct ob_err err;
    bool paused;

    (void)state;
    bench_init(&b);
    s = open_own(&b);
    t = open_shard(&b, 0, 1, "second");
    for (int i = 0; i < 40; i++) { /* 80 s of our clock; it beats every 8 s */
        if (i % 4 == 0)
            assert_int_equal(ob_source_postgres.beat(s, &running, &paused, &err), OB_OK);
        assert_int_equal(own(t, &err), OB_AGAIN);
        b.fake.ahead_us += 2000000;
    }
    assert_int_equal(ob_source_postgres.beat(s, &running, &paused, &err), OB_OK);
    ob_source_postgres.close(s);
    ob_source_postgres.close(t);
    bench_clear(&b);
}

/* A terminated backend, of either session, costs a reconnect and nothing else. */
static void a_lost_session_is_taken_up_again(void **state)
{
    static const char *const names[] = {"outbox", "outbox reader"};

    (void)state;
    for (size_t i = 0; i < ROWS(names); i++) {
        struct bench b;
        struct ob_source *s;
        struct ob_err err;
        struct ob_batch *batch = NULL;
        enum ob_status st = OB_AGAIN;
        bench_init(&b);
        s = open_own(&b);
        emit(&b, 5, 1);
        batch = claim(s, 10, OB_OK); /* and not settled */
        ob_batch_unref(batch);
        batch = NULL;
        sql(&b,
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity where datname = "
            "current_database() and application_name = '%s'",
            names[i]);
        ((struct log_state *)s->state)->poll_at = 0;
        for (int k = 0; k < 1000 && st == OB_AGAIN; k++) {
            struct ob_beat beat = running;
            bool paused;
            st = ob_source_postgres.claim(s, 10, 1 << 20, &batch, &err);
            if (st == OB_AGAIN)
                st = ob_source_postgres.beat(s, &beat, &paused, &err);
            st = st == OB_OK ? OB_AGAIN : st;
            usleep(1000);
        }
        row_int(names[i], "status", st, OB_FENCED);
        ob_source_postgres.disown(s);
        row_int(names[i], "owner again", own_soon(s, &err), OB_OK);
        row_int(names[i], "events", (int64_t)deliver_all(s), 5);
        ob_source_postgres.disown(s); /* its session lives and holds nothing */
        row_int(names[i], "locks",
                num(&b, "select count(*) from pg_locks where locktype = "
                        "'advisory' and database = (select oid from "
                        "pg_database where datname = current_database())"),
                0);
        ob_source_postgres.close(s);
        bench_clear(&b);
    }
}

static void pause_is_read_with_the_beat(void **state)
{
    struct bench b;
    struct ob_source *s;
    struct ob_admin *a;
    struct ob_err err;
    bool paused = true;

    (void)state;
    bench_init(&b);
    s = open_own(&b);
    a = open_admin(&b);
    assert_int_equal(ob_source_postgres.beat(s, &running, &paused, &err), OB_OK);
    assert_false(paused);
    assert_int_equal(ob_pg_admin.pause(a, true, &err), OB_OK);
    assert_int_equal(ob_source_postgres.beat(s, &running, &paused, &err), OB_OK);
    assert_true(paused);
    assert_int_equal(ob_pg_admin.pause(a, false, &err), OB_OK);
    assert_int_equal(ob_source_postgres.beat(s, &running, &paused, &err), OB_OK);
    assert_false(paused);
    assert_int_equal(num(&b, "SELECT in_flight FROM outbox.cursor"), 5);
    ob_pg_admin.close(a);
    ob_source_postgres.close(s);
    bench_clear(&b);
}

/* ---- shards ---- */

/* What the relay does: claims all, keeps what is this shard's and not settled before. */
static size_t deliver_shard(struct ob_source *s, unsigned shard, unsigned shards, uint8_t *seen,
                            uint64_t upto)
{
    size_t n = 0;
    for (bool more = true; more;) {
        struct ob_batch *batch = NULL;
        struct ob_err err = {.text = ""};
        struct ob_settle one = {.moved = true};
        struct ob_settled out = {0};
        enum ob_status st;
        while ((st = ob_source_postgres.claim(s, 50, (size_t)1 << 20, &batch, &err)) == OB_AGAIN &&
               ob_source_postgres.looking(s))
            usleep(200);
        if (st == OB_AGAIN && ((struct log_state *)s->state)->idle_ms > 0)
            break;
        if (st == OB_AGAIN)
            continue;
        assert_int_equal(st, OB_OK);
        for (size_t i = 0; i < batch->n; i++) {
            const struct ob_event *ev = &batch->events[i];
            uint64_t hash = ob_hash64(ev->aggregate_id.p, ev->aggregate_id.n);
            if (ev->seq > upto) {
                more = false;
                break;
            }
            if (ob_shard_of(hash, shards) == shard &&
                !ob_source_postgres.already(s, ev->ref, hash)) {
                seen[ev->seq]++;
                n++;
            }
            one.ref = ev->ref;
        }
        if (one.ref && ob_source_postgres.settle(s, &one, &out, &err) != OB_OK)
            fail_msg("%s", err.text);
        ob_batch_unref(batch);
    }
    return n;
}

/* 1 shard, then 3, then 2, with cursors at different places: every event exactly once. */
static void changed_number_of_shards(void **state)
{
    static const struct {
        unsigned shards;
        uint64_t upto[3];
    } stages[] = {{1, {100, 0, 0}}, {3, {150, 400, 220}}, {2, {300, 250, 0}}, {3, {600, 600, 600}}};
    struct bench b;
    uint8_t seen[601] = {0};

    (void)state;
    bench_init(&b);
    emit(&b, 600, 37);
    for (size_t i = 0; i < ROWS(stages); i++) {
        struct ob_source *s[3];
        struct ob_err err;
        for (unsigned k = 0; k < stages[i].shards; k++) {
            s[k] = open_shard(&b, k, stages[i].shards, "me");
            assert_int_equal(own(s[k], &err), OB_OK);
        }
        for (unsigned k = 0; k < stages[i].shards; k++)
            deliver_shard(s[k], k, stages[i].shards, seen, stages[i].upto[k]);
        for (unsigned k = 0; k < stages[i].shards; k++)
            ob_source_postgres.close(s[k]);
        assert_int_equal(num(&b, "SELECT count(*) FROM outbox.cursor"), stages[i].shards);
    }
    for (size_t i = 1; i <= 600; i++)
        if (seen[i] != 1)
            fail_msg("event %zu was delivered %u times", i, seen[i]);
    { /* Old positions are forgotten once all have passed them. */
        struct ob_source *s = open_shard(&b, 0, 3, "me");
        struct ob_err err;
        assert_int_equal(own(s, &err), OB_OK);
        assert_int_equal(num(&b, "SELECT count(*) FROM outbox.past"), 0);
        ob_source_postgres.close(s);
    }
    bench_clear(&b);
}

static void shards_change_only_when_all_have_stopped(void **state)
{
    struct bench b;
    struct ob_source *a0, *a1, *n0;
    struct ob_err err;

    (void)state;
    bench_init(&b);
    emit(&b, 10, 3);
    a0 = open_shard(&b, 0, 2, "old0");
    a1 = open_shard(&b, 1, 2, "old1");
    n0 = open_shard(&b, 0, 3, "new0");
    assert_int_equal(own(a0, &err), OB_OK);
    assert_int_equal(own(a1, &err), OB_OK);
    assert_int_equal(own(n0, &err), OB_AGAIN);
    assert_non_null(strstr(err.text, "from 2 to 3"));
    ob_source_postgres.disown(a0);
    assert_int_equal(own(n0, &err), OB_AGAIN);
    assert_non_null(strstr(err.text, "old1"));
    assert_int_equal(own(a0, &err), OB_OK); /* the refused one let go of what it had locked */
    ob_source_postgres.disown(a0);
    ob_source_postgres.disown(a1);
    assert_int_equal(own(n0, &err), OB_OK);
    assert_int_equal(num(&b, "SELECT count(*) FROM outbox.cursor WHERE shards = 3"), 3);
    assert_int_equal(own(a1, &err), OB_AGAIN);
    ob_source_postgres.close(a0);
    ob_source_postgres.close(a1);
    ob_source_postgres.close(n0);
    bench_clear(&b);
}

/* Parked rows belong to the shard of their hash, whatever the number of shards is. */
static void parked_rows_follow_their_hash(void **state)
{
    static struct settling g;
    struct bench b;
    struct ob_source *s;
    struct ob_batch *batch, *got;
    struct ob_err err;
    uint64_t dests[8];
    size_t n, seen = 0;
    int64_t next;

    (void)state;
    bench_init(&b);
    emit(&b, 8, 8);
    s = open_own(&b);
    batch = claim(s, 10, OB_OK);
    settling_reset(&g);
    for (size_t i = 0; i < 8; i++) {
        struct ob_settle_op *op =
            op_add(&g, OB_SETTLE_PARK, &batch->events[i], i < 4 ? i : UINT64_MAX - i);
        op->blocked_dest = i % 2 ? 100 + i : 0;
    }
    g.s.moved = true;
    g.s.ref = 8;
    assert_int_equal(settle(s, &g), OB_OK);
    ob_batch_unref(batch);
    ob_source_postgres.close(s);
    for (unsigned k = 0; k < 3; k++) {
        struct ob_source_status status;
        size_t mine = 0;
        s = open_shard(&b, k, 3, "me");
        assert_int_equal(own(s, &err), OB_OK);
        if (ob_source_postgres.drain(s, 0, INT64_MAX, 100, 10, NULL, NULL, &got, &next, &err) ==
            OB_OK) {
            for (size_t i = 0; i < got->n; i++)
                assert_int_equal(ob_shard_of(got->events[i].park_hash, 3), k);
            mine += got->n;
            ob_batch_unref(got);
        }
        assert_int_equal(ob_source_postgres.blocked(s, 0, dests, 8, &n, &err), OB_OK);
        for (size_t i = 0; i < n; i++) {
            assert_int_equal(
                ob_source_postgres.drain(s, dests[i], 0, 100, 10, NULL, NULL, &got, &next, &err),
                OB_OK);
            for (size_t j = 0; j < got->n; j++)
                assert_int_equal(ob_shard_of(got->events[j].park_hash, 3), k);
            mine += got->n;
            ob_batch_unref(got);
        }
        assert_int_equal(ob_source_postgres.status(s, &status, &err), OB_OK);
        assert_int_equal(status.parked, mine);
        seen += mine;
        ob_source_postgres.close(s);
    }
    assert_int_equal(seen, 8);
    bench_clear(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(second_one_stands_by),
        cmocka_unit_test(takeover_from_one_that_is_gone),
        cmocka_unit_test(takeover_from_a_hung_process),
        cmocka_unit_test(the_epoch_fences),
        cmocka_unit_test(a_beating_owner_stays),
        cmocka_unit_test(a_lost_session_is_taken_up_again),
        cmocka_unit_test(pause_is_read_with_the_beat),
        cmocka_unit_test(changed_number_of_shards),
        cmocka_unit_test(shards_change_only_when_all_have_stopped),
        cmocka_unit_test(parked_rows_follow_their_hash),
    };

    if (server_missing())
        return 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
