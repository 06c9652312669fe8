/* SPDX-License-Identifier: Apache-2.0 */
/* sqlite_crash_test - processes that are killed at any moment, between and inside transactions: the
 * side tables stay whole, and every event is delivered, parked or dead exactly once. */
#include "core/rand.h"
#include "sqlite_harness.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define EVENTS 4000
#define KILLS 12

/* Hashes of eight keys, some of them "negative" as stored. */
static uint64_t hash_of(const struct ob_event *ev)
{
    return ob_hash64(ev->aggregate_id.p, ev->aggregate_id.n);
}

/* Settles a page with a mixture of ends; drains now and then. */
static void work(struct ob_source *s, struct ob_rand *r)
{
    struct ob_batch *batch = NULL;
    struct ob_err err;
    int64_t next;

    settling_reset(&g);
    if (ob_rand_below(r, 3) == 0) {
        if (ob_source_sqlite.drain(s, 0, INT64_MAX, 20, 5, NULL, NULL, &batch, &next, &err) !=
            OB_OK)
            return;
        for (size_t i = 0; i < batch->n; i++)
            op_add(&g, ob_rand_below(r, 4) ? OB_SETTLE_PUBLISHED : OB_SETTLE_DEAD,
                   &batch->events[i], batch->events[i].park_hash);
    } else {
        if (ob_source_sqlite.claim(s, 1 + ob_rand_below(r, 30), 1 << 20, &batch, &err) != OB_OK)
            return;
        for (size_t i = 0; i < batch->n; i++) {
            uint64_t dice = ob_rand_below(r, 10);
            if (dice < 3)
                op_add(&g, OB_SETTLE_PARK, &batch->events[i], hash_of(&batch->events[i]));
            else if (dice == 3)
                op_add(&g, OB_SETTLE_DEAD, &batch->events[i], hash_of(&batch->events[i]))->hold =
                    ob_rand_below(r, 2);
        }
        g.s.moved = true;
        g.s.ref = batch->events[batch->n - 1].ref;
        g.s.delivered = batch->n - g.s.n;
    }
    if (settle(s, &g) != OB_OK && g.err.status != OB_RETRY)
        _exit(3);
    if (g.err.status == OB_RETRY)
        ob_source_sqlite.rewind(s);
    ob_batch_unref(batch);
}

static void worker(struct bench *b, uint64_t seed, int out)
{
    struct ob_rand r = {seed};
    struct ob_source *s = open_shard(b, 0, 1, "worker");
    struct ob_err err;

    prctl(PR_SET_PDEATHSIG, SIGKILL);              /* a failed test leaves nothing behind */
    while (ob_source_sqlite.own(s, &err) != OB_OK) /* busy: the writer writes without a pause */
        ;
    if (write(out, "o", 1) != 1)
        _exit(4);
    for (;;)
        work(s, &r);
}

static void writer(struct bench *b)
{
    sqlite3 *db;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    sqlite3_open(b->path, &db);
    sqlite3_busy_timeout(db, 10000);
    sqlite3_exec(db, "PRAGMA synchronous = OFF", NULL, NULL, NULL);
    for (int i = 0; i < EVENTS; i++) {
        char *q = sqlite3_mprintf("INSERT INTO outbox_event (type, aggregate_id, payload) VALUES"
                                  " ('t', 'k%d', '%d')",
                                  i % 8, i);
        if (sqlite3_exec(db, q, NULL, NULL, NULL) != SQLITE_OK)
            _exit(2);
        sqlite3_free(q);
    }
    sqlite3_close(db);
    _exit(0);
}

static void killed_at_any_moment(void **state)
{
    struct bench b;
    struct ob_rand r = {4242};
    struct ob_source *s;
    pid_t w;
    int status;

    (void)state;
    bench_init(&b);
    sqlite3_close(b.app);
    b.app = NULL;
    w = fork();
    if (w == 0)
        writer(&b);
    for (int i = 0; i < KILLS; i++) {
        const struct timespec some = {.tv_nsec = (long)(5 + ob_rand_below(&r, 60)) * 1000000};
        int owns[2];
        char c;
        pid_t pid;
        assert_int_equal(pipe(owns), 0);
        pid = fork();
        if (pid == 0)
            worker(&b, ob_rand_next(&r), owns[1]);
        assert_int_equal(read(owns[0], &c, 1), 1);
        close(owns[0]);
        close(owns[1]);
        nanosleep(&some, NULL); /* the moment of the kill is what is tried */
        kill(pid, SIGKILL);
        waitpid(pid, &status, 0);
        assert_true(WIFSIGNALED(status)); /* it did not end by itself */
        assert_int_equal(sqlite3_open(b.path, &b.app), SQLITE_OK);
        sqlite3_busy_timeout(b.app, 10000);
        assert_side_tables(&b);
        sqlite3_close(b.app);
        b.app = NULL;
    }
    waitpid(w, &status, 0);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_int_equal(sqlite3_open(b.path, &b.app), SQLITE_OK);
    s = open_own(&b);
    assert_int_equal(num(&b, "SELECT epoch FROM outbox_cursor"), KILLS + 1);
    deliver_all(s);
    assert_side_tables(&b);
    /* Cursor at the end; published + parked + dead is all there is. */
    assert_int_equal(num(&b, "SELECT pos FROM outbox_cursor"), EVENTS);
    assert_int_equal(num(&b, "SELECT count(*) FROM outbox_parked AS p JOIN outbox_dead AS d"
                             " ON d.seq = p.seq WHERE d.state = 'dead'"),
                     0);
    assert_int_equal(num(&b, "PRAGMA quick_check"), 0); /* "ok" */
    ob_source_sqlite.close(s);
    bench_clear(&b);
}

static int synchronous(struct ob_source *s)
{
    sqlite3_stmt *st = NULL;
    int got = -1;

    assert_int_equal(sqlite3_prepare_v2(s->db.h, "PRAGMA synchronous", -1, &st, NULL), SQLITE_OK);
    if (sqlite3_step(st) == SQLITE_ROW)
        got = sqlite3_column_int(st, 0);
    sqlite3_finalize(st);
    return got;
}

/* What only a power cut could take back, and would then only be repeated, waits for no disk while
 * it holds the write lock. Attempts and owners do. */
static void only_a_moving_cursor_waits_for_no_disk(void **state)
{
    const struct ob_beat beat = {.state = "running"};
    enum { NORMAL = 1, FULL = 2 };
    struct ob_batch *batch;
    struct ob_source *s;
    struct ob_err err;
    struct bench b;
    bool paused;

    (void)state;
    bench_init(&b);
    s = open_own(&b);
    assert_int_equal(synchronous(s), FULL);
    emit(&b, 4, 4);
    settling_reset(&g);
    batch = claim(s, 4, OB_OK);
    g.s.moved = true;
    g.s.ref = 1;
    assert_int_equal(settle(s, &g), OB_OK);
    assert_int_equal(synchronous(s), NORMAL);
    settling_reset(&g);
    op_add(&g, OB_SETTLE_PARK, &batch->events[1], 1)->spent = true;
    assert_int_equal(settle(s, &g), OB_OK);
    assert_int_equal(synchronous(s), FULL);
    assert_int_equal(ob_source_sqlite.beat(s, &beat, &paused, &err), OB_OK);
    assert_int_equal(synchronous(s), NORMAL);
    ob_source_sqlite.disown(s);
    assert_int_equal(ob_source_sqlite.own(s, &err), OB_OK);
    assert_int_equal(synchronous(s), FULL);
    ob_batch_unref(batch);
    ob_source_sqlite.close(s);
    bench_clear(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_at_any_moment),
        cmocka_unit_test(only_a_moving_cursor_waits_for_no_disk),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
