/* SPDX-License-Identifier: Apache-2.0 */
/* admin_dead - dead events: listed, retried, discarded. A retried one goes back among the parked
 * with its own number, so that within a key the order stays what it was (test: "dead retry keeps
 * the order of a key"). */
#include "core/json.h"
#include "source/sqlite/sqlite.h"

#include <stdlib.h>

#define RELAY_BUSY_MS 250

/* The dead events that the filter names, lowest number first. */
static enum ob_status prepare(struct ob_admin *a, const char *columns, const struct ob_filter *f,
                              sqlite3_stmt **out, struct ob_err *err)
{
    struct ob_buf sql;
    sqlite3_stmt *st = NULL;
    int rc;

    ob_buf_init(&sql, 8192);
    ob_buf_printf(&sql,
                  "SELECT %s FROM outbox_dead AS d LEFT JOIN outbox_event AS e ON e.seq = d.seq"
                  " WHERE d.pipeline = :pipeline AND d.state = 'dead' AND d.n > :after",
                  columns);
    ob_sqlite_filter_sql(&sql, f, "d", "d.key", "d.at");
    if (f->reason)
        ob_buf_c(&sql, " AND outbox_glob(:reason, d.error)");
    if (f->dlt)
        ob_buf_c(&sql,
                 " AND d.n IN (SELECT q.n FROM outbox_dlt AS q WHERE q.pipeline = :pipeline)");
    if (f->n_not_to > 0)
        ob_buf_c(&sql,
                 " AND coalesce(d.destination, '') NOT IN (SELECT value FROM json_each(:not))");
    ob_buf_c(&sql, " ORDER BY d.n LIMIT :limit");
    rc = sqlite3_prepare_v2(a->db.h, ob_buf_z(&sql), -1, &st, NULL);
    ob_buf_clear(&sql);
    if (rc != SQLITE_OK)
        return ob_sqlite_fail(err, a->db.h, rc, "reading dead events");
    ob_sqlite_filter_bind(st, f);
    ob_sqlite_bind_str(st, sqlite3_bind_parameter_index(st, ":pipeline"), ob_str_c(a->pipeline));
    sqlite3_bind_int64(st, sqlite3_bind_parameter_index(st, ":after"), (int64_t)f->after);
    sqlite3_bind_int64(st, sqlite3_bind_parameter_index(st, ":limit"),
                       f->limit ? (int64_t)f->limit : -1);
    if (f->n_not_to > 0) {
        ob_buf_init(&sql, 0);
        ob_json_texts(&sql, f->not_to, f->n_not_to);
        sqlite3_bind_text(st, sqlite3_bind_parameter_index(st, ":not"), ob_buf_z(&sql), -1,
                          SQLITE_TRANSIENT);
        ob_buf_clear(&sql);
    }
    *out = st;
    return OB_OK;
}

#define DEAD_COLUMNS                                                                               \
    "d.n, d.id, d.key, d.type, d.destination, d.error, d.attempts, d.at, "                         \
    "d.history, e.seq"
#define N_DEAD_COLUMNS 9

static enum ob_status show(struct ob_admin *a, const struct ob_filter *f, sqlite3_stmt *st,
                           bool full, struct ob_arena *arena, ob_dead_fn *fn, void *user,
                           bool *more, struct ob_err *err)
{
    struct ob_event ev = {0};
    struct ob_dead d = {
        .n = sqlite3_column_int64(st, 0),
        .id = ob_sqlite_column_str(&a->db, st, 1),
        .key = ob_sqlite_column_str(&a->db, st, 2),
        .type = ob_sqlite_column_str(&a->db, st, 3),
        .destination = ob_sqlite_column_str(&a->db, st, 4),
        .error = ob_sqlite_column_str(&a->db, st, 5),
        .attempts = (uint32_t)sqlite3_column_int64(st, 6),
        .at_us = sqlite3_column_int64(st, 7) * 1000,
        .history = ob_sqlite_column_str(&a->db, st, 8),
    };
    enum ob_status ret = OB_OK;

    if (full && sqlite3_column_type(st, N_DEAD_COLUMNS) != SQLITE_NULL) {
        ob_arena_reset(arena);
        ret = ob_sqlite_read_event(&a->db, ob_filter_limits(f),
                                   (uint64_t)sqlite3_column_int64(st, N_DEAD_COLUMNS), true,
                                   SIZE_MAX, arena, &ev, err);
        ev.attempts = d.attempts;
        d.event = ev.id.p ? &ev : NULL;
    }
    if (ret == OB_OK)
        *more = fn(user, &d);
    return ret;
}

enum ob_status ob_sqlite_dead_list(struct ob_admin *a, const struct ob_filter *f, bool full,
                                   ob_dead_fn *fn, void *user, struct ob_err *err)
{
    struct ob_arena *arena = NULL;
    sqlite3_stmt *st = NULL;
    bool more = true;
    int rc = SQLITE_DONE;
    enum ob_status ret = ob_sqlite_admin_need(a, err);

    if (ret == OB_OK)
        ret = prepare(a, DEAD_COLUMNS, f, &st, err);
    if (ret != OB_OK)
        return ret;
    arena = ob_arena_new(4096, 0);
    if (!arena)
        ret = ob_err_set(err, OB_DOWN, "no memory");
    while (ret == OB_OK && more && (rc = sqlite3_step(st)) == SQLITE_ROW)
        ret = show(a, f, st, full, arena, fn, user, &more, err);
    if (ret == OB_OK && more && rc != SQLITE_DONE)
        ret = ob_sqlite_fail(err, a->db.h, rc, "reading dead events");
    sqlite3_finalize(st);
    ob_arena_unref(arena);
    return ret;
}

struct one {
    int64_t n;
    uint64_t hash;
};

struct many {
    struct one *of;
    size_t n, cap;
};

static enum ob_status collect(struct ob_admin *a, const struct ob_filter *f, struct many *m,
                              struct ob_err *err)
{
    sqlite3_stmt *st = NULL;
    enum ob_status ret = prepare(a, "d.n, d.hash", f, &st, err);
    int rc = SQLITE_DONE;

    while (ret == OB_OK && (rc = sqlite3_step(st)) == SQLITE_ROW) {
        if (m->n == m->cap) {
            size_t cap = m->cap ? 2 * m->cap : 256;
            struct one *of = realloc(m->of, cap * sizeof(*of));
            if (!of) {
                ret = ob_err_set(err, OB_DOWN, "no memory for so many; use a limit");
                break;
            }
            m->of = of;
            m->cap = cap;
        }
        m->of[m->n++] =
            (struct one){sqlite3_column_int64(st, 0), (uint64_t)sqlite3_column_int64(st, 1)};
    }
    if (ret == OB_OK && rc != SQLITE_DONE)
        ret = ob_sqlite_fail(err, a->db.h, rc, "reading dead events");
    sqlite3_finalize(st);
    return ret;
}

static enum ob_status run_for_each(struct ob_admin *a, const char *text, const struct many *m,
                                   struct ob_err *err)
{
    sqlite3_stmt *st = NULL;
    enum ob_status ret = OB_OK;
    int rc = sqlite3_prepare_v2(a->db.h, text, -1, &st, NULL);

    if (rc != SQLITE_OK)
        ret = ob_sqlite_fail(err, a->db.h, rc, "changing dead events");
    for (size_t i = 0; i < m->n && ret == OB_OK; i++) {
        ob_sqlite_bind_str(st, 1, ob_str_c(a->pipeline));
        sqlite3_bind_int64(st, 2, m->of[i].n);
        sqlite3_bind_int64(st, 3, ob_clock_wall_us(a->clock) / 1000);
        rc = sqlite3_step(st);
        if (rc != SQLITE_DONE)
            ret = ob_sqlite_fail(err, a->db.h, rc, "changing dead events");
        sqlite3_reset(st);
    }
    sqlite3_finalize(st);
    return ret;
}

static enum ob_status act(struct ob_admin *a, enum ob_dead_action action, const struct many *m,
                          struct ob_err *err)
{
    enum ob_status st = OB_OK;
    bool held;

    if (action == OB_DEAD_RETRY) {
        st = run_for_each(a,
                          "INSERT INTO outbox_parked (pipeline, n, hash, seq, attempts, due_ms,"
                          " blocked_dest, reason, history, destination, parked_at)"
                          " SELECT pipeline, n, hash, seq, 0, ?3, 0, 'retried by a person',"
                          " history, destination, ?3 FROM outbox_dead"
                          " WHERE pipeline = ?1 AND n = ?2 ON CONFLICT DO NOTHING",
                          m, err);
        if (st == OB_OK)
            st = run_for_each(a,
                              "UPDATE outbox_dead SET state = 'retried', hold = 0"
                              " WHERE pipeline = ?1 AND n = ?2",
                              m, err);
    } else {
        st = run_for_each(a,
                          "UPDATE outbox_dead SET state = 'discarded', hold = 0"
                          " WHERE pipeline = ?1 AND n = ?2",
                          m, err);
    }
    for (size_t i = 0; i < m->n && st == OB_OK; i++)
        st = ob_sqlite_rekey(&a->db, a->pipeline, m->of[i].hash, &held, err);
    return st;
}

enum ob_status ob_sqlite_dead_do(struct ob_admin *a, enum ob_dead_action action,
                                 const struct ob_filter *f, bool dry, size_t *n, struct ob_err *err)
{
    struct many m = {0};
    enum ob_status st = ob_sqlite_admin_need(a, err);

    if (st == OB_OK && !dry)
        st = ob_sqlite_begin(&a->db, err);
    if (st == OB_OK)
        st = collect(a, f, &m, err);
    if (st == OB_OK && !dry)
        st = act(a, action, &m, err);
    if (st == OB_OK && !dry)
        st = ob_sqlite_commit(&a->db, err);
    if (st == OB_OK)
        *n = m.n;
    ob_sqlite_rollback(&a->db);
    free(m.of);
    return st;
}

/* On the relay's own thread: the lock is waited for no longer than a relay may. */
enum ob_status ob_sqlite_dlt_done(struct ob_admin *a, const int64_t *numbers, size_t n,
                                  struct ob_err *err)
{
    sqlite3_stmt *st = NULL;
    enum ob_status ret = ob_sqlite_admin_need(a, err);

    if (ret != OB_OK)
        return ret;
    sqlite3_busy_timeout(a->db.h, RELAY_BUSY_MS);
    ret = ob_sqlite_begin(&a->db, err);
    if (ret == OB_OK &&
        sqlite3_prepare_v2(a->db.h, "DELETE FROM outbox_dlt WHERE pipeline = ?1 AND n = ?2", -1,
                           &st, NULL) != SQLITE_OK)
        ret = ob_sqlite_fail(err, a->db.h, sqlite3_errcode(a->db.h), "marking dead letters");
    for (size_t i = 0; i < n && ret == OB_OK; i++) {
        ob_sqlite_bind_str(st, 1, ob_str_c(a->pipeline));
        sqlite3_bind_int64(st, 2, numbers[i]);
        int rc = sqlite3_step(st);
        if (rc != SQLITE_DONE)
            ret = ob_sqlite_fail(err, a->db.h, rc, "marking dead letters");
        sqlite3_reset(st);
    }
    sqlite3_finalize(st);
    if (ret == OB_OK)
        ret = ob_sqlite_commit(&a->db, err);
    ob_sqlite_rollback(&a->db);
    return ret;
}
