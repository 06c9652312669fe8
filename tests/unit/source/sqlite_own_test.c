/* SPDX-License-Identifier: Apache-2.0 */
/* sqlite_own_test - owners of a file: take-over after kill -9 and from a hung process, a lock file
 * that is removed, a file that is replaced. Other owners are other processes. */
#include "sqlite_harness.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* A process that owns shard 0 of 1, beats, and says so through a pipe; then waits for commands:
 * 'b' beat, 's' settle one event; answers the status as one byte. */
struct other {
    pid_t pid;
    int to, from;
};

static void other_main(struct bench *b, int in, int out)
{
    struct ob_source *s = open_shard(b, 0, 1, "other");
    struct ob_err err;
    struct ob_beat beat = {.state = "running"};
    struct ob_settle one = {.moved = true, .ref = 1, .delivered = 1};
    struct ob_settled got = {0};
    char answer, c;
    bool paused;

    b->fake.real = true;
    answer = (char)own(s, &err);
    if (write(out, &answer, 1) != 1)
        _exit(1);
    while (read(in, &c, 1) == 1) {
        answer = (char)(c == 'b' ? ob_source_sqlite.beat(s, &beat, &paused, &err)
                                 : ob_source_sqlite.settle(s, &one, &got, &err));
        if (write(out, &answer, 1) != 1)
            _exit(1);
    }
    _exit(0);
}

static struct other other_start(struct bench *b)
{
    struct other o;
    int to[2], from[2];
    char answer = 99;

    assert_int_equal(pipe(to), 0);
    assert_int_equal(pipe(from), 0);
    o.pid = fork();
    assert_true(o.pid >= 0);
    if (o.pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* a failed test leaves nothing behind */
        close(to[1]);
        close(from[0]);
        b->app = NULL; /* a connection must not cross a fork */
        other_main(b, to[0], from[1]);
    }
    close(to[0]);
    close(from[1]);
    o.to = to[1];
    o.from = from[0];
    assert_int_equal(read(o.from, &answer, 1), 1);
    assert_int_equal(answer, OB_OK);
    return o;
}

static enum ob_status other_do(struct other *o, char what)
{
    char answer = 99;

    assert_int_equal(write(o->to, &what, 1), 1);
    assert_int_equal(read(o->from, &answer, 1), 1);
    return (enum ob_status)answer;
}

static void other_end(struct other *o, int sig)
{
    if (sig)
        kill(o->pid, sig);
    close(o->to);
    close(o->from);
    waitpid(o->pid, NULL, 0);
}

static void takeover_after_kill(void **state)
{
    struct bench b;
    struct other o;
    struct ob_source *s;
    struct ob_err err;
    struct timespec a, z;

    (void)state;
    bench_init(&b);
    emit(&b, 2, 1);
    sqlite3_close(b.app);
    b.app = NULL;
    o = other_start(&b);
    assert_int_equal(sqlite3_open(b.path, &b.app), SQLITE_OK);
    s = open_shard(&b, 0, 1, "me");
    assert_int_equal(own(s, &err), OB_AGAIN);
    clock_gettime(CLOCK_MONOTONIC, &a);
    other_end(&o, SIGKILL);
    assert_int_equal(own(s, &err), OB_OK); /* the kernel freed the lock: at once */
    clock_gettime(CLOCK_MONOTONIC, &z);
    assert_true(z.tv_sec - a.tv_sec < 5);
    assert_int_equal(deliver_all(s), 2);
    ob_source_sqlite.close(s);
    bench_clear(&b);
}

/* Looks of a stand-by, `step_ms` apart on its own clock, until it owns; returns the ms it took. */
static int64_t until_owner(struct bench *b, struct ob_source *s, int64_t step_ms, int64_t max_ms)
{
    int64_t begin = b->fake.mono_us / 1000;
    struct ob_err err;

    while (own(s, &err) == OB_AGAIN && b->fake.mono_us / 1000 - begin < max_ms)
        b->fake.mono_us += step_ms * 1000;
    return b->fake.mono_us / 1000 - begin;
}

static void takeover_from_a_hung_process(void **state)
{
    static const struct {
        const char *name;
        int64_t step_ms;
    } rows[] = {{"half a second", 500}, {"a second", 1000}, {"five seconds", 5000}};

    (void)state;
    for (size_t i = 0; i < ROWS(rows); i++) {
        struct bench b;
        struct other o;
        struct ob_source *s, *t;
        struct ob_err err;
        int64_t took;

        bench_init(&b);
        emit(&b, 2, 1);
        sqlite3_close(b.app);
        b.app = NULL;
        o = other_start(&b);
        assert_int_equal(sqlite3_open(b.path, &b.app), SQLITE_OK);
        s = open_shard(&b, 0, 1, "me");
        t = open_shard(&b, 0, 1, "third");
        assert_int_equal(other_do(&o, 'b'), OB_OK);
        kill(o.pid, SIGSTOP);
        took = until_owner(&b, s, rows[i].step_ms, 60000);
        if (took < 10000 || took > 15000)
            fail_msg("row '%s': took %lld ms", rows[i].name, (long long)took);
        assert_int_equal(epoch(&b), 2);
        /* A third one finds the new owner's lock, not the hung one's. */
        assert_int_equal(own(t, &err), OB_AGAIN);
        assert_non_null(strstr(err.text, "me"));
        /* The zombie comes back: it changes nothing and learns that it is fenced. */
        kill(o.pid, SIGCONT);
        assert_int_equal(other_do(&o, 's'), OB_FENCED);
        assert_int_equal(num(&b, "SELECT pos FROM outbox_cursor"), 0);
        assert_int_equal(num(&b, "SELECT published FROM outbox_cursor"), 0);
        assert_int_equal(deliver_all(s), 2);
        other_end(&o, SIGKILL);
        assert_int_equal(own(t, &err), OB_AGAIN); /* its death frees nothing of ours */
        ob_source_sqlite.close(s);
        ob_source_sqlite.close(t);
        bench_clear(&b);
    }
}

/* While the application keeps the write lock, the owner cannot beat: that is not its fault. */
static void no_takeover_while_the_database_is_locked(void **state)
{
    struct bench b;
    struct other o;
    struct ob_source *s;
    struct ob_err err;

    (void)state;
    bench_init(&b);
    sqlite3_close(b.app);
    b.app = NULL;
    o = other_start(&b);
    assert_int_equal(sqlite3_open(b.path, &b.app), SQLITE_OK);
    s = open_shard(&b, 0, 1, "me");
    sql(&b, "BEGIN IMMEDIATE");
    for (int i = 0; i < 30; i++) {
        assert_int_equal(own(s, &err), OB_AGAIN);
        b.fake.mono_us += 1000000;
    }
    sql(&b, "COMMIT");
    assert_int_equal(own(s, &err), OB_AGAIN);
    assert_int_equal(other_do(&o, 'b'), OB_OK);
    b.fake.mono_us += 1000000;
    assert_int_equal(own(s, &err), OB_AGAIN);
    other_end(&o, SIGKILL);
    ob_source_sqlite.close(s);
    bench_clear(&b);
}

static void lock_file_that_was_removed(void **state)
{
    struct bench b;
    struct ob_source *s, *t;
    struct ob_err err;
    struct ob_beat beat = {.state = "running"};
    char path[160];
    bool paused;

    (void)state;
    bench_init(&b);
    s = open_own(&b);
    t = open_shard(&b, 0, 1, "second");
    snprintf(path, sizeof(path), "%s-outbox-" PIPE "-0.lock", b.path);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(own(t, &err), OB_OK); /* it cannot know; the epoch fences the first */
    assert_int_equal(ob_source_sqlite.beat(s, &beat, &paused, &err), OB_FENCED);
    assert_int_equal(own(s, &err), OB_AGAIN);
    ob_source_sqlite.close(s);
    ob_source_sqlite.close(t);
    bench_clear(&b);
}

/* The file is replaced under a running relay: it lets go, then owns the new one from its own
 * cursor. */
static void replaced_file(void **state)
{
    struct bench b, fresh;
    struct ob_source *s;
    struct ob_err err;
    struct ob_beat beat = {.state = "running"};
    bool paused;

    (void)state;
    bench_init(&b);
    bench_init(&fresh);
    emit(&b, 5, 1);
    s = open_own(&b);
    assert_int_equal(deliver_all(s), 5);
    emit(&fresh, 3, 1);
    sqlite3_close(b.app);
    sqlite3_close(fresh.app);
    fresh.app = NULL;
    for (size_t i = 0; i < 3; i++) { /* the log goes with its database */
        static const char *const ends[] = {"", "-wal", "-shm"};
        char from[160], to[160];
        snprintf(from, sizeof(from), "%s%s", b.path, ends[i]);
        snprintf(to, sizeof(to), "%s.old%s", b.path, ends[i]);
        assert_int_equal(rename(from, to), 0);
    }
    assert_int_equal(rename(fresh.path, b.path), 0);
    assert_int_equal(sqlite3_open(b.path, &b.app), SQLITE_OK);
    assert_int_equal(ob_source_sqlite.beat(s, &beat, &paused, &err), OB_FENCED);
    assert_non_null(strstr(err.text, "replaced"));
    assert_int_equal(own(s, &err), OB_OK);
    assert_int_equal(deliver_all(s), 3);
    ob_source_sqlite.close(s);
    bench_clear(&b);
    bench_clear(&fresh);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(takeover_after_kill),
        cmocka_unit_test(takeover_from_a_hung_process),
        cmocka_unit_test(no_takeover_while_the_database_is_locked),
        cmocka_unit_test(lock_file_that_was_removed),
        cmocka_unit_test(replaced_file),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
