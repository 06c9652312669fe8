/* SPDX-License-Identifier: Apache-2.0 */
/* pg_own_test - owners of PostgreSQL: take-over from a session that is gone or hangs, backends that
 * are terminated. */
#include "pg_harness.h"

#include <stdio.h>
#include <unistd.h>

static const struct ob_beat running = {.state = "running", .in_flight = 5};

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(takeover_from_one_that_is_gone),
        cmocka_unit_test(takeover_from_a_hung_process),
        cmocka_unit_test(a_lost_session_is_taken_up_again),
    };

    if (server_missing())
        return 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
