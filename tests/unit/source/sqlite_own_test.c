/* SPDX-License-Identifier: Apache-2.0 */
/* sqlite_own_test - one owner at a time: take-over after kill -9, from a hung process, fencing of
 * who comes back, a changed number of shards. Other owners are other processes. */
#include "sqlite_harness.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static enum ob_status own(struct ob_source *s, struct ob_err *err)
{
    err->text[0] = '\0';
    return ob_source_sqlite.own(s, err);
}

static int64_t epoch(struct bench *b)
{
    return num(b, "SELECT max(epoch) FROM outbox_cursor WHERE pipeline = '" PIPE "'");
}

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
    ob_source_sqlite.disown(s);
    assert_int_equal(own(t, &err), OB_OK);
    assert_int_equal(epoch(&b), 2);
    claim(t, 10, OB_AGAIN); /* the position came along */
    claim(s, 10, OB_FENCED);
    ob_source_sqlite.close(s);
    ob_source_sqlite.close(t);
    bench_clear(&b);
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

static void a_beating_owner_stays(void **state)
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
    s = open_shard(&b, 0, 1, "me");
    for (int i = 0; i < 40; i++) { /* 80 s of our clock; it beats every 8 s */
        if (i % 4 == 0)
            assert_int_equal(other_do(&o, 'b'), OB_OK);
        assert_int_equal(own(s, &err), OB_AGAIN);
        b.fake.mono_us += 2000000;
    }
    other_end(&o, SIGKILL);
    ob_source_sqlite.close(s);
    bench_clear(&b);
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

static void pause_is_read_with_the_beat(void **state)
{
    struct bench b;
    struct ob_source *s;
    struct ob_admin *a;
    struct ob_err err;
    struct ob_beat beat = {.state = "running", .in_flight = 5};
    bool paused = true;

    (void)state;
    bench_init(&b);
    s = open_own(&b);
    a = open_admin(&b);
    assert_int_equal(ob_source_sqlite.beat(s, &beat, &paused, &err), OB_OK);
    assert_false(paused);
    assert_int_equal(ob_sqlite_admin.pause(a, true, &err), OB_OK);
    assert_int_equal(ob_source_sqlite.beat(s, &beat, &paused, &err), OB_OK);
    assert_true(paused);
    assert_int_equal(ob_sqlite_admin.pause(a, false, &err), OB_OK);
    assert_int_equal(ob_source_sqlite.beat(s, &beat, &paused, &err), OB_OK);
    assert_false(paused);
    assert_int_equal(num(&b, "SELECT in_flight FROM outbox_cursor"), 5);
    ob_sqlite_admin.close(a);
    ob_source_sqlite.close(s);
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

/* ---- shards ---- */

/* What the relay does: claims all, keeps what is this shard's and not settled before. */
static size_t deliver_shard(struct ob_source *s, unsigned shard, unsigned shards, uint8_t *seen,
                            uint64_t upto)
{
    struct ob_batch *batch = NULL;
    struct ob_err err;
    size_t n = 0;

    while (ob_source_sqlite.claim(s, 50, (size_t)1 << 20, &batch, &err) == OB_OK) {
        struct ob_settle one = {.moved = true};
        struct ob_settled out = {0};
        for (size_t i = 0; i < batch->n && batch->events[i].ref <= upto; i++) {
            const struct ob_event *ev = &batch->events[i];
            uint64_t hash = ob_hash64(ev->aggregate_id.p, ev->aggregate_id.n);
            if (ob_shard_of(hash, shards) == shard && !ob_source_sqlite.already(s, ev->ref, hash)) {
                seen[ev->ref]++;
                n++;
            }
            one.ref = ev->ref;
        }
        if (ob_source_sqlite.settle(s, &one, &out, &err) != OB_OK)
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
            ob_source_sqlite.close(s[k]);
        assert_int_equal(num(&b, "SELECT count(*) FROM outbox_cursor"), stages[i].shards);
    }
    for (size_t i = 1; i <= 600; i++)
        if (seen[i] != 1)
            fail_msg("event %zu was delivered %u times", i, seen[i]);
    { /* Old positions are forgotten once all have passed them. */
        struct ob_source *s = open_shard(&b, 0, 3, "me");
        struct ob_err err;
        assert_int_equal(own(s, &err), OB_OK);
        assert_int_equal(num(&b, "SELECT count(*) FROM outbox_past"), 0);
        ob_source_sqlite.close(s);
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
    ob_source_sqlite.disown(a0);
    assert_int_equal(own(n0, &err), OB_AGAIN);
    assert_non_null(strstr(err.text, "old1"));
    assert_int_equal(own(a0, &err), OB_OK); /* the refused one let go of what it had locked */
    ob_source_sqlite.disown(a0);
    ob_source_sqlite.disown(a1);
    assert_int_equal(own(n0, &err), OB_OK);
    assert_int_equal(num(&b, "SELECT count(*) FROM outbox_cursor WHERE shards = 3"), 3);
    assert_int_equal(own(a1, &err), OB_AGAIN);
    ob_source_sqlite.close(a0);
    ob_source_sqlite.close(a1);
    ob_source_sqlite.close(n0);
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
    ob_source_sqlite.close(s);
    for (unsigned k = 0; k < 3; k++) {
        struct ob_source_status status;
        size_t mine = 0;
        s = open_shard(&b, k, 3, "me");
        assert_int_equal(own(s, &err), OB_OK);
        if (ob_source_sqlite.drain(s, 0, INT64_MAX, 100, 10, NULL, NULL, &got, &next, &err) ==
            OB_OK) {
            for (size_t i = 0; i < got->n; i++)
                assert_int_equal(ob_shard_of(got->events[i].park_hash, 3), k);
            mine += got->n;
            ob_batch_unref(got);
        }
        assert_int_equal(ob_source_sqlite.blocked(s, 0, dests, 8, &n, &err), OB_OK);
        for (size_t i = 0; i < n; i++) {
            assert_int_equal(
                ob_source_sqlite.drain(s, dests[i], 0, 100, 10, NULL, NULL, &got, &next, &err),
                OB_OK);
            for (size_t j = 0; j < got->n; j++)
                assert_int_equal(ob_shard_of(got->events[j].park_hash, 3), k);
            mine += got->n;
            ob_batch_unref(got);
        }
        assert_int_equal(ob_source_sqlite.status(s, &status, &err), OB_OK);
        assert_int_equal(status.parked, mine);
        seen += mine;
        ob_source_sqlite.close(s);
    }
    assert_int_equal(seen, 8);
    bench_clear(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(second_one_stands_by),
        cmocka_unit_test(takeover_after_kill),
        cmocka_unit_test(takeover_from_a_hung_process),
        cmocka_unit_test(a_beating_owner_stays),
        cmocka_unit_test(no_takeover_while_the_database_is_locked),
        cmocka_unit_test(lock_file_that_was_removed),
        cmocka_unit_test(pause_is_read_with_the_beat),
        cmocka_unit_test(replaced_file),
        cmocka_unit_test(changed_number_of_shards),
        cmocka_unit_test(shards_change_only_when_all_have_stopped),
        cmocka_unit_test(parked_rows_follow_their_hash),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
