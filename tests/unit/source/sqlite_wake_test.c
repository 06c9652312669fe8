/* SPDX-License-Identifier: Apache-2.0 */
/* sqlite_wake_test - commits of other processes are noticed within milliseconds, and an idle relay
 * does next to nothing. Waits are for a condition with a deadline, never a fixed sleep. */
#include "sqlite_harness.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int64_t now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* What a relay does while it has room: waits for the descriptor or wake_at, then claims. Returns
 * how often it looked; ends at `until_us` or when n events came. */
static unsigned run(struct ob_source *s, int64_t until_us, size_t n, size_t *got)
{
    unsigned looks = 0;
    int64_t beat_at = 0;

    *got = 0;
    while (now_us() < until_us && *got < n) {
        struct pollfd p = {.fd = ob_source_sqlite.wait_fd(s), .events = POLLIN};
        int64_t at = ob_source_sqlite.wake_at(s), wait = at - now_us() / 1000;
        struct ob_batch *batch = NULL;
        struct ob_err err;
        bool paused;

        if (now_us() >= beat_at) {
            const struct ob_beat beat = {.state = "running"};
            enum ob_status st = ob_source_sqlite.beat(s, &beat, &paused, &err);
            assert_true(st == OB_OK || st == OB_RETRY);
            beat_at = now_us() + 1000000;
        }
        if (wait > (beat_at - now_us()) / 1000)
            wait = (beat_at - now_us()) / 1000 + 1;
        poll(&p, 1, wait < 0 ? 0 : (int)wait);
        looks++;
        if (ob_source_sqlite.claim(s, 1000, (size_t)1 << 20, &batch, &err) == OB_OK) {
            *got += batch->n;
            ob_batch_unref(batch);
        }
    }
    return looks;
}

static void commits_of_another_process_wake(void **state)
{
    enum { EVENTS = 40 };
    struct bench b;
    struct ob_source *s;
    size_t got;
    pid_t pid;

    (void)state;
    bench_init(&b);
    b.fake.real = true;
    s = open_own(&b);
    assert_true(ob_source_sqlite.wait_fd(s) >= 0);
    run(s, now_us() + 100000, 1, &got);
    assert_int_equal(got, 0);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        sqlite3 *db;
        sqlite3_open(b.path, &db);
        sqlite3_busy_timeout(db, 5000);
        for (int i = 0; i < EVENTS; i++) {
            const struct timespec gap = {.tv_nsec = 20000000};
            if (sqlite3_exec(db, "INSERT INTO outbox_event (type) VALUES ('t')", NULL, NULL, NULL))
                _exit(1);
            nanosleep(&gap, NULL);
        }
        _exit(0);
    }
    /* Each found as it comes: with only the look of every second it would take far longer. */
    for (int i = 0; i < EVENTS; i++) {
        run(s, now_us() + 800000, 1, &got);
        if (got == 0)
            fail_msg("event %d was not noticed within 0.8 s", i);
        i += (int)got - 1;
    }
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    ob_source_sqlite.close(s);
    bench_clear(&b);
}

/* A commit may become visible long after the log was written (a slow fsync), and then nothing tells
 * of it: after one write there is a handful of looks, spread over half a second, then silence. */
static void looks_again_after_a_write(void **state)
{
    struct bench b;
    struct wake w;
    struct ob_err err;
    struct pollfd p;
    char wal[160];
    FILE *f;
    int64_t begin, last = 0;
    unsigned looks = 0;

    (void)state;
    bench_dir(&b);
    snprintf(wal, sizeof(wal), "%s-wal", b.path);
    f = fopen(wal, "w");
    assert_non_null(f);
    assert_int_equal(ob_sqlite_wake_open(&w, b.path, &err), OB_OK);
    ob_sqlite_wake_watch(&w);
    p = (struct pollfd){.fd = w.ep, .events = POLLIN};
    fputs("x", f);
    fflush(f);
    begin = now_us();
    while (poll(&p, 1, 1500) == 1) {
        ob_sqlite_wake_again(&w, ob_sqlite_wake_take(&w));
        last = now_us() - begin;
        looks++;
    }
    assert_in_range(looks, 5, 10);
    assert_true(last >= 400000);
    fclose(f);
    ob_sqlite_wake_close(&w);
    bench_clear(&b);
}

/* The same with a transaction that spills into the log before it commits. */
static void a_commit_that_becomes_visible_late(void **state)
{
    struct bench b;
    struct ob_source *s;
    size_t got;
    int64_t begin;

    (void)state;
    bench_init(&b);
    b.fake.real = true;
    s = open_own(&b);
    run(s, now_us() + 700000, 1, &got); /* all quiet */
    /* Pages of an open transaction spill into the log: it is written, nothing is visible. */
    sql(&b, "PRAGMA cache_size = 2; BEGIN IMMEDIATE");
    for (int i = 0; i < 50; i++)
        sql(&b, "INSERT INTO outbox_event (type, payload) VALUES ('t', zeroblob(3000))");
    run(s, now_us() + 30000, 1, &got);
    assert_int_equal(got, 0);
    sql(&b, "COMMIT");
    begin = now_us();
    run(s, now_us() + 950000, 50, &got);
    assert_int_equal(got, 50);
    assert_true(now_us() - begin < 600000);
    ob_source_sqlite.close(s);
    bench_clear(&b);
}

/* The log is made anew (a vacuum into place, the last reader gone): the watch follows. */
static void watch_follows_a_new_log(void **state)
{
    struct bench b;
    struct wake w;
    struct ob_err err;
    struct pollfd p;
    char wal[160];

    (void)state;
    bench_dir(&b);
    snprintf(wal, sizeof(wal), "%s-wal", b.path);
    assert_int_equal(ob_sqlite_wake_open(&w, b.path, &err), OB_OK);
    p = (struct pollfd){.fd = w.ep, .events = POLLIN};
    ob_sqlite_wake_watch(&w); /* no log yet: the folder tells of its first creation */
    assert_int_equal(poll(&p, 1, 0), 0);
    for (int round = 0; round < 3; round++) {
        FILE *f = fopen(wal, "w");
        assert_non_null(f);
        assert_int_equal(poll(&p, 1, 2000), 1);
        while (ob_sqlite_wake_take(&w))
            ;
        assert_int_equal(poll(&p, 1, 0), 0);
        fputs("x", f);
        fflush(f);
        assert_int_equal(poll(&p, 1, 2000), 1);
        assert_true(ob_sqlite_wake_take(&w));
        fclose(f);
        assert_int_equal(unlink(wal), 0);
        while (ob_sqlite_wake_take(&w))
            ;
    }
    ob_sqlite_wake_unwatch(&w);
    assert_int_equal(poll(&p, 1, 0), 0);
    ob_sqlite_wake_close(&w);
    bench_clear(&b);
}

static int64_t cpu_us(void)
{
    struct rusage u;

    getrusage(RUSAGE_SELF, &u);
    return (int64_t)u.ru_utime.tv_sec * 1000000 + u.ru_utime.tv_usec +
           (int64_t)u.ru_stime.tv_sec * 1000000 + u.ru_stime.tv_usec;
}

/* Its own beats write the log that it watches: they must not keep it awake. */
static void idle_relay_sleeps(void **state)
{
    struct bench b;
    struct ob_source *s;
    int64_t before;
    unsigned looks;
    size_t got;

    (void)state;
    bench_init(&b);
    b.fake.real = true;
    s = open_own(&b);
    before = cpu_us();
    looks = run(s, now_us() + 3000000, 1, &got);
    assert_int_equal(got, 0);
    assert_true(looks < 60); /* a few for each of three beats */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    assert_true(cpu_us() - before < 60000); /* 2 % of a core; usually far less */
#else
    (void)before;
#endif
    ob_source_sqlite.close(s);
    bench_clear(&b);
}

static void stand_by_is_silent(void **state)
{
    struct bench b;
    struct ob_source *s, *t;
    struct ob_err err;
    struct pollfd p;

    (void)state;
    bench_init(&b);
    s = open_own(&b);
    t = open_shard(&b, 0, 1, "second");
    assert_int_equal(ob_source_sqlite.own(t, &err), OB_AGAIN);
    emit(&b, 10, 1);
    p = (struct pollfd){.fd = ob_source_sqlite.wait_fd(t), .events = POLLIN};
    assert_int_equal(poll(&p, 1, 50), 0);
    p.fd = ob_source_sqlite.wait_fd(s);
    assert_int_equal(poll(&p, 1, 1000), 1);
    ob_source_sqlite.disown(s);
    assert_int_equal(poll(&p, 1, 50), 0);
    ob_source_sqlite.close(s);
    ob_source_sqlite.close(t);
    bench_clear(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(commits_of_another_process_wake),
        cmocka_unit_test(looks_again_after_a_write),
        cmocka_unit_test(a_commit_that_becomes_visible_late),
        cmocka_unit_test(watch_follows_a_new_log),
        cmocka_unit_test(idle_relay_sleeps),
        cmocka_unit_test(stand_by_is_silent),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
