/* SPDX-License-Identifier: Apache-2.0 */
/* admin_events - listing events with what became of them in one pipeline. */
#include "source/sqlite/sqlite.h"

static void events_sql(struct ob_buf *sql, const struct ob_filter *f)
{
    /* Without a place to go on from, a limit means the newest ones. */
    bool newest = f->limit && !f->after;

    ob_buf_printf(sql,
                  "SELECT * FROM (SELECT e.seq, CASE WHEN w.seq IS NOT NULL THEN 'parked'"
                  " WHEN d.state IN ('dead', 'discarded') THEN d.state WHEN e.seq > (SELECT"
                  " coalesce(min(c.pos), 0) FROM outbox_cursor AS c WHERE c.pipeline = :pipeline)"
                  " THEN 'pending' ELSE 'published' END FROM outbox_event AS e"
                  " LEFT JOIN outbox_parked AS w ON w.pipeline = :pipeline AND w.seq = e.seq"
                  " LEFT JOIN outbox_dead AS d ON d.pipeline = :pipeline AND d.seq = e.seq"
                  " WHERE e.seq > :after");
    ob_sqlite_filter_sql(sql, f, "e", "coalesce(nullif(e.key, ''), e.aggregate_id)",
                         "e.created_at");
    ob_buf_printf(sql, " ORDER BY e.seq%s LIMIT :limit) ORDER BY 1", newest ? " DESC" : "");
}

static enum ob_status each(struct ob_admin *a, const struct ob_filter *f, bool payload,
                           sqlite3_stmt *st, ob_event_fn *fn, void *user, struct ob_err *err)
{
    struct ob_arena *arena = ob_arena_new(4096, 0);
    enum ob_status ret = arena ? OB_OK : ob_err_set(err, OB_DOWN, "no memory");
    bool more = true;
    int rc = SQLITE_DONE;

    while (ret == OB_OK && more && (rc = sqlite3_step(st)) == SQLITE_ROW) {
        struct ob_event ev = {0};
        ob_arena_reset(arena);
        ret =
            ob_sqlite_read_event(&a->db, ob_filter_limits(f), (uint64_t)sqlite3_column_int64(st, 0),
                                 payload, SIZE_MAX, arena, &ev, err);
        if (ret == OB_OK && ev.id.p)
            more = fn(user, &ev, (const char *)sqlite3_column_text(st, 1));
    }
    if (ret == OB_OK && more && rc != SQLITE_DONE)
        ret = ob_sqlite_fail(err, a->db.h, rc, "reading events");
    ob_arena_unref(arena);
    return ret;
}

enum ob_status ob_sqlite_events(struct ob_admin *a, const struct ob_filter *f, bool payload,
                                ob_event_fn *fn, void *user, struct ob_err *err)
{
    struct ob_buf sql;
    sqlite3_stmt *st = NULL;
    enum ob_status ret = ob_sqlite_admin_need(a, err);
    int rc;

    if (ret != OB_OK)
        return ret;
    ob_buf_init(&sql, 8192);
    events_sql(&sql, f);
    rc = sqlite3_prepare_v2(a->db.h, ob_buf_z(&sql), -1, &st, NULL);
    if (rc == SQLITE_OK) {
        ob_sqlite_filter_bind(st, f);
        ob_sqlite_bind_str(st, sqlite3_bind_parameter_index(st, ":pipeline"),
                           ob_str_c(a->pipeline));
        sqlite3_bind_int64(st, sqlite3_bind_parameter_index(st, ":after"), (int64_t)f->after);
        sqlite3_bind_int64(st, sqlite3_bind_parameter_index(st, ":limit"),
                           f->limit ? (int64_t)f->limit : -1);
        ret = each(a, f, payload, st, fn, user, err);
    } else {
        ret = ob_sqlite_fail(err, a->db.h, rc, "reading events");
    }
    sqlite3_finalize(st);
    ob_buf_clear(&sql);
    return ret;
}
