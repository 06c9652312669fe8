/* SPDX-License-Identifier: Apache-2.0 */
/* demo_writer - the application of the demo. It uses nothing of Outbox but the table: plain
 * INSERTs, as a program in any language would. */
#include "cli/demo_writer.h"

#include "core/clock.h"
#include "core/rand.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define OPEN_ORDERS 64       /* orders that may still change */
#define ROLL_BACK_PERCENT 10 /* of transactions after everything was written, and half as many */
                             /* between the order and its event */
#define LAST_VERSION 4       /* placed, paid, packed, shipped */

struct order {
    int64_t id;
    unsigned key, version;
};

struct ob_demo_writer {
    sqlite3 *db;
    sqlite3_stmt *insert, *update, *emit;
    pthread_t thread;
    bool started;
    struct ob_rand rand;
    unsigned rate;
    /* Only the thread: */
    struct order open[OPEN_ORDERS];
    size_t n_open;
    int64_t next_order;
    pthread_mutex_t lock; /* all below */
    pthread_cond_t wake;
    bool stop;
    struct ob_demo_counts counts;
    int64_t *when[OB_DEMO_KEYS];
    size_t cap[OB_DEMO_KEYS];
};

static bool exec(struct ob_demo_writer *w, const char *sql)
{
    return sqlite3_exec(w->db, sql, NULL, NULL, NULL) == SQLITE_OK;
}

static bool step(sqlite3_stmt *st)
{
    bool ok = sqlite3_step(st) == SQLITE_DONE;
    sqlite3_reset(st);
    return ok;
}

static bool write_order(struct ob_demo_writer *w, const struct order *o, const char *customer)
{
    sqlite3_stmt *st = o->version == 1 ? w->insert : w->update;
    sqlite3_bind_int64(st, 1, o->id);
    sqlite3_bind_text(st, 2, customer, -1, SQLITE_TRANSIENT);
    sqlite3_bind_int64(st, 3, o->version);
    return step(st);
}

/* One change of an order and its event. */
static bool change(struct ob_demo_writer *w, const struct order *o, uint64_t no, bool with_event)
{
    static const char *const types[] = {"order.placed", "order.paid", "order.packed",
                                        "order.shipped"};
    char customer[16], id[32], payload[256];
    snprintf(customer, sizeof customer, "c%u", o->key);
    snprintf(id, sizeof id, "%" PRId64, o->id);
    snprintf(payload, sizeof payload,
             "{\"order\":%" PRId64 ",\"customer\":\"%s\",\"no\":%" PRIu64
             ",\"version\":%u,\"total\":%" PRIu64 ".50}",
             o->id, customer, no, o->version, ob_rand_below(&w->rand, 500));
    if (!write_order(w, o, customer))
        return false;
    if (!with_event)
        return true;
    sqlite3_bind_text(w->emit, 1, types[o->version - 1], -1, SQLITE_STATIC);
    sqlite3_bind_text(w->emit, 2, id, -1, SQLITE_TRANSIENT);
    sqlite3_bind_text(w->emit, 3, customer, -1, SQLITE_TRANSIENT);
    sqlite3_bind_text(w->emit, 4, payload, -1, SQLITE_TRANSIENT);
    return step(w->emit);
}

/* Chooses an open order to change, or a new one. */
static struct order choose(struct ob_demo_writer *w, size_t *at)
{
    bool fresh = w->n_open == 0 || (w->n_open < OPEN_ORDERS && ob_rand_below(&w->rand, 3) == 0);
    struct order o = {.id = w->next_order, .version = 1};
    *at = w->n_open;
    if (fresh) {
        o.key = (unsigned)ob_rand_below(&w->rand, OB_DEMO_KEYS);
        return o;
    }
    *at = (size_t)ob_rand_below(&w->rand, w->n_open);
    o = w->open[*at];
    o.version++;
    return o;
}

static bool remember_when(struct ob_demo_writer *w, unsigned key, uint64_t no, int64_t now)
{
    if (no >= w->cap[key]) {
        size_t cap = w->cap[key] ? w->cap[key] * 2 : 256;
        int64_t *when = realloc(w->when[key], cap * sizeof *when);
        if (!when)
            return false;
        w->when[key] = when;
        w->cap[key] = cap;
    }
    w->when[key][no] = now;
    return true;
}

static void committed(struct ob_demo_writer *w, const struct order *o, size_t at,
                      unsigned first_version, uint64_t no)
{
    int64_t now = ob_clock_mono_ms(&ob_clock_system);
    pthread_mutex_lock(&w->lock);
    w->counts.transactions++;
    w->counts.orders += first_version == 1 ? 1 : 0;
    for (unsigned v = first_version; v <= o->version; v++) {
        w->counts.events++;
        w->counts.by_key[o->key]++;
        if (!remember_when(w, o->key, no + (v - first_version), now))
            w->counts.failed = true;
    }
    pthread_mutex_unlock(&w->lock);
    if (first_version == 1) {
        w->next_order++;
        w->n_open++;
    }
    w->open[at] = *o;
    if (o->version == LAST_VERSION)
        w->open[at] = w->open[--w->n_open];
}

/* One transaction of one or two changes; sometimes it is rolled back although all was written.
 * False: the database does not work. */
static bool transaction(struct ob_demo_writer *w)
{
    size_t at;
    struct order o = choose(w, &at);
    unsigned first = o.version;
    uint64_t no = w->counts.by_key[o.key] + 1; /* only this thread writes it */
    uint64_t dice = ob_rand_below(&w->rand, 200);
    bool undo_early = dice < ROLL_BACK_PERCENT, undo = dice < 3 * ROLL_BACK_PERCENT;
    if (!exec(w, "BEGIN IMMEDIATE"))
        return false;
    bool ok = change(w, &o, no, !undo_early);
    if (ok && !undo_early && o.version < LAST_VERSION && ob_rand_below(&w->rand, 4) == 0) {
        o.version++;
        ok = change(w, &o, no + 1, true);
    }
    if (ok && !undo) {
        ok = exec(w, "COMMIT");
        if (ok)
            committed(w, &o, at, first, no);
        return ok;
    }
    if (!exec(w, "ROLLBACK") || !ok)
        return false;
    pthread_mutex_lock(&w->lock);
    w->counts.rolled_back++;
    pthread_mutex_unlock(&w->lock);
    return true;
}

/* Waits until the next transaction is due. True: stop. */
static bool wait_next(struct ob_demo_writer *w, struct timespec *due)
{
    due->tv_nsec += 1000000000L / w->rate;
    while (due->tv_nsec >= 1000000000L) {
        due->tv_nsec -= 1000000000L;
        due->tv_sec++;
    }
    pthread_mutex_lock(&w->lock);
    int rc = 0;
    while (!w->stop && rc != ETIMEDOUT)
        rc = pthread_cond_timedwait(&w->wake, &w->lock, due);
    bool stop = w->stop;
    pthread_mutex_unlock(&w->lock);
    return stop;
}

static void *write_all(void *arg)
{
    struct ob_demo_writer *w = arg;
    struct timespec due;
    clock_gettime(CLOCK_MONOTONIC, &due);
    while (!wait_next(w, &due)) {
        if (transaction(w))
            continue;
        pthread_mutex_lock(&w->lock);
        w->counts.failed = true;
        snprintf(w->counts.error, sizeof w->counts.error, "%s", sqlite3_errmsg(w->db));
        pthread_mutex_unlock(&w->lock);
        break;
    }
    return NULL;
}

static bool prepare(struct ob_demo_writer *w, const char *db)
{
    return sqlite3_open_v2(db, &w->db, SQLITE_OPEN_READWRITE, NULL) == SQLITE_OK &&
           sqlite3_busy_timeout(w->db, 20000) == SQLITE_OK &&
           exec(w, "PRAGMA synchronous=NORMAL") &&
           exec(w, "CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT NOT NULL,"
                   " version INTEGER NOT NULL)") &&
           sqlite3_prepare_v2(w->db,
                              "INSERT INTO orders (id, customer, version) VALUES (?1, ?2, ?3)", -1,
                              &w->insert, NULL) == SQLITE_OK &&
           sqlite3_prepare_v2(w->db,
                              "UPDATE orders SET version = ?3 WHERE id = ?1 AND customer = ?2", -1,
                              &w->update, NULL) == SQLITE_OK &&
           sqlite3_prepare_v2(w->db,
                              "INSERT INTO outbox_event (type, aggregate_type, aggregate_id, key,"
                              " payload) VALUES (?1, 'order', ?2, ?3, ?4)",
                              -1, &w->emit, NULL) == SQLITE_OK;
}

enum ob_status ob_demo_writer_start(const char *db, unsigned rate, uint64_t seed,
                                    struct ob_demo_writer **out, struct ob_err *err)
{
    pthread_condattr_t attr;
    struct ob_demo_writer *w = calloc(1, sizeof *w);
    if (!w)
        return ob_err_set(err, OB_FATAL, "no memory");
    w->rate = rate ? rate : 1;
    w->rand.state = seed;
    w->next_order = 1;
    pthread_mutex_init(&w->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&w->wake, &attr);
    pthread_condattr_destroy(&attr);
    if (!prepare(w, db)) {
        enum ob_status st = ob_err_set(err, OB_FATAL, "%s: %s", db, sqlite3_errmsg(w->db));
        ob_demo_writer_free(w);
        return st;
    }
    if (pthread_create(&w->thread, NULL, write_all, w) != 0) {
        ob_demo_writer_free(w);
        return ob_err_set(err, OB_FATAL, "cannot start a thread");
    }
    w->started = true;
    *out = w;
    return OB_OK;
}

void ob_demo_writer_counts(struct ob_demo_writer *w, struct ob_demo_counts *out)
{
    pthread_mutex_lock(&w->lock);
    *out = w->counts;
    pthread_mutex_unlock(&w->lock);
}

int64_t ob_demo_writer_when(struct ob_demo_writer *w, unsigned key, uint64_t no)
{
    int64_t when = 0;
    pthread_mutex_lock(&w->lock);
    if (key < OB_DEMO_KEYS && no >= 1 && no <= w->counts.by_key[key])
        when = w->when[key][no];
    pthread_mutex_unlock(&w->lock);
    return when;
}

void ob_demo_writer_stop(struct ob_demo_writer *w)
{
    if (!w->started)
        return;
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    w->started = false;
}

void ob_demo_writer_free(struct ob_demo_writer *w)
{
    if (!w)
        return;
    ob_demo_writer_stop(w);
    sqlite3_finalize(w->insert);
    sqlite3_finalize(w->update);
    sqlite3_finalize(w->emit);
    sqlite3_close(w->db);
    for (unsigned k = 0; k < OB_DEMO_KEYS; k++)
        free(w->when[k]);
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->wake);
    free(w);
}
