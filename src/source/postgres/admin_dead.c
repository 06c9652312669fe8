/* SPDX-License-Identifier: Apache-2.0 */
/* admin_dead - dead events: listed, retried, discarded. A retried one goes back among the parked
 * with its own number, so that within a key the order stays what it was (test: "dead retry keeps
 * the order of a key"). */
#include "core/json.h"
#include "source/postgres/admin.h"
#include "source/postgres/native.h"

#include <stdio.h>

#define PAGE 500 /* rows of one statement */
#define OWN 10   /* columns before the event's */

/* Conditions of the filter, behind "… from outbox.dead d". */
static void where(struct ob_admin *a, struct pg_where *w, const struct ob_filter *f)
{
    ob_buf_printf(&a->sql, " where d.pipeline = $%zu and d.state = 'dead'",
                  ob_pg_where_text(w, a->pipeline));
    ob_pg_where_filter(a, w, f, "d", "d.key", "d.at");
    if (f->reason)
        ob_pg_where_glob(a, w, "d.error", f->reason);
    if (f->dlt)
        ob_buf_c(&a->sql, " and d.n in (select q.n from outbox.dlt q where q.pipeline = $1)");
    if (f->n_not_to > 0) {
        struct ob_buf *text = &a->text[w->n_text++];
        ob_json_texts(text, f->not_to, f->n_not_to);
        ob_buf_printf(&a->sql,
                      " and not coalesce(d.destination, '') = any (array(select "
                      "jsonb_array_elements_text($%zu::jsonb)))",
                      ob_pg_where_text(w, ob_buf_z(text)));
    }
}

/* The event is in its table, or with the dead row when that has outlived its partition. */
static enum ob_status read_page(struct ob_admin *a, const struct ob_filter *f, bool full,
                                int64_t after, int64_t limit, PGresult **out, struct ob_err *err)
{
    struct pg_where w = {0};
    ob_buf_reset(&a->sql);
    ob_buf_printf(&a->sql,
                  "select d.n, d.id, d.key, d.type, d.destination, d.error, d.attempts, d.at, "
                  "d.history::text, d.event is not null%s%s from outbox.dead d",
                  full ? ", " : "", full ? PG_EVENT_COLUMNS : "");
    if (full)
        ob_buf_c(&a->sql, " left join lateral (select * from outbox.event x where x.seq = d.seq "
                          "and d.event is null union all select * from outbox.unpack(d.event, "
                          "d.payload, d.seq) u where d.event is not null) e on true");
    where(a, &w, f);
    ob_buf_printf(&a->sql, " and d.n > $%zu::bigint order by d.n", ob_pg_where_num(&w, after));
    ob_buf_printf(&a->sql, " limit $%zu::bigint", ob_pg_where_num(&w, limit));
    return ob_pg_query(&a->db, ob_buf_z(&a->sql), w.p, w.n, true, out, err);
}

/* The event by itself. */
static enum ob_status read_event(struct ob_admin *a, const struct ob_filter *f, const PGresult *res,
                                 int row, struct ob_arena *arena, struct ob_event *ev,
                                 struct ob_err *err)
{
    char n[24];
    if (!ob_pg_bool(res, row, 9))
        return ob_pg_event_fetch(&a->db, (int64_t)ev->seq, true, ob_filter_limits(f), arena, ev,
                                 err);
    snprintf(n, sizeof(n), "%lld", (long long)ob_pg_i64(res, row, 0));
    const struct pg_event_from from = {
        .sql = "outbox.dead d cross join lateral outbox.unpack(d.event, d.payload, d.seq) e where "
               "d.pipeline = $4 and d.n = $5::bigint",
        .params = {a->pipeline, n},
        .n = 2};
    return ob_pg_event_read(&a->db, &from, true, ob_filter_limits(f), arena, ev, err);
}

static enum ob_status show(struct ob_admin *a, const struct ob_filter *f, const PGresult *res,
                           int row, bool full, struct ob_arena *arena, ob_dead_fn *fn, void *user,
                           bool *more, struct ob_err *err)
{
    struct ob_event ev = {0};
    enum ob_status st = OB_OK;
    struct ob_dead d = {
        .n = ob_pg_i64(res, row, 0),
        .id = ob_pg_str(res, row, 1),
        .key = ob_pg_str(res, row, 2),
        .type = ob_pg_str(res, row, 3),
        .destination = ob_pg_str(res, row, 4),
        .error = ob_pg_str(res, row, 5),
        .attempts = (uint32_t)ob_pg_i64(res, row, 6),
        .at_us = ob_pg_time_us(res, row, 7),
        .history = ob_pg_str(res, row, 8),
    };
    if (full && !ob_pg_null(res, row, OWN)) {
        ob_arena_reset(arena);
        if (!ob_pg_event(res, row, OWN, arena, &ev))
            return ob_err_set(err, OB_DOWN, "no memory");
        if (ob_pg_event_partial(res, row, OWN, true))
            st = read_event(a, f, res, row, arena, &ev, err);
        ev.attempts = d.attempts;
        d.event = &ev;
    } else if (full && ob_pg_admin_mapped(a)) {
        bool found = false;
        ob_arena_reset(arena);
        st = ob_pg_map_whole(a, f, d.id, arena, &ev, &found, err);
        ev.attempts = d.attempts;
        d.event = found ? &ev : NULL;
    }
    if (st == OB_OK)
        *more = fn(user, &d);
    return st;
}

enum ob_status ob_pg_dead_list(struct ob_admin *a, const struct ob_filter *f, bool full,
                               ob_dead_fn *fn, void *user, struct ob_err *err)
{
    struct ob_arena *arena = ob_arena_new(4096, 0);
    enum ob_status st = arena ? ob_pg_admin_need(a, err) : ob_err_set(err, OB_DOWN, "no memory");
    int64_t after = (int64_t)f->after, left = f->limit ? (int64_t)f->limit : INT64_MAX;
    bool more = true;
    while (st == OB_OK && more && left > 0) {
        PGresult *res = NULL;
        int64_t page = left < PAGE ? left : PAGE;
        st = read_page(a, f, full, after, page, &res, err);
        int rows = st == OB_OK ? PQntuples(res) : 0;
        for (int i = 0; i < rows && st == OB_OK && more; i++)
            st = show(a, f, res, i, full, arena, fn, user, &more, err);
        if (rows > 0)
            after = ob_pg_i64(res, rows - 1, 0);
        left -= rows;
        more = more && rows == page;
        PQclear(res);
    }
    ob_arena_unref(arena);
    return st;
}

static void act_sql(struct ob_admin *a, struct pg_where *w, enum ob_dead_action action,
                    const struct ob_filter *f)
{
    ob_buf_reset(&a->sql);
    ob_buf_c(&a->sql, "with chosen as (select d.n from outbox.dead d");
    where(a, w, f);
    ob_buf_printf(&a->sql, " order by d.n limit $%zu::bigint for update), ",
                  ob_pg_where_num(w, f->limit ? (int64_t)f->limit : INT64_MAX));
    ob_buf_printf(&a->sql,
                  "changed as (update outbox.dead d set state = '%s', hold = false from chosen "
                  "where d.pipeline = $1 and d.n = chosen.n returning d.*)",
                  action == OB_DEAD_RETRY ? "retried" : "discarded");
    if (action == OB_DEAD_RETRY)
        ob_buf_c(&a->sql,
                 ", parked as (insert into outbox.parked (pipeline, n, hash, ref, seq, event, "
                 "payload, attempts, due_at, blocked_dest, reason, history, destination) select "
                 "pipeline, n, hash, ref, seq, event, payload, 0, clock_timestamp(), 0, 'retried "
                 "by a person', history, destination from changed on conflict do nothing)");
    ob_buf_c(&a->sql, " select count(*), coalesce(array_agg(distinct hash), '{}')::text, "
                      "coalesce(array_agg(ref), '{}')::text from changed");
}

/* What holds a key has changed: its row is derived again, and the relay finds it within a second.
 */
static enum ob_status act(struct ob_admin *a, enum ob_dead_action action, const struct ob_filter *f,
                          size_t *n, struct ob_err *err)
{
    struct pg_where w = {0};
    PGresult *res = NULL;
    act_sql(a, &w, action, f);
    enum ob_status st = ob_pg_query(&a->db, ob_buf_z(&a->sql), w.p, w.n, true, &res, err);
    if (st == OB_OK) {
        *n = (size_t)ob_pg_i64(res, 0, 0);
        const struct pg_param p[] = {PG_TEXT(a->pipeline), PG_TEXT(PQgetvalue(res, 0, 1))};
        st = ob_pg_query(&a->db, "select outbox.rekey($1, $2::bigint[])", p, 2, false, NULL, err);
    }
    if (st == OB_OK && action == OB_DEAD_RETRY && *n > 0 && ob_pg_admin_mapped(a))
        st = ob_pg_map_release(a, PQgetvalue(res, 0, 2), err);
    PQclear(res);
    return st;
}

static enum ob_status count(struct ob_admin *a, const struct ob_filter *f, size_t *n,
                            struct ob_err *err)
{
    struct pg_where w = {0};
    PGresult *res = NULL;
    ob_buf_reset(&a->sql);
    ob_buf_c(&a->sql, "select count(*) from (select 1 from outbox.dead d");
    where(a, &w, f);
    ob_buf_printf(&a->sql, " limit $%zu::bigint) t",
                  ob_pg_where_num(&w, f->limit ? (int64_t)f->limit : INT64_MAX));
    enum ob_status st = ob_pg_query(&a->db, ob_buf_z(&a->sql), w.p, w.n, true, &res, err);
    if (st == OB_OK)
        *n = (size_t)ob_pg_i64(res, 0, 0);
    PQclear(res);
    return st;
}

enum ob_status ob_pg_dead_do(struct ob_admin *a, enum ob_dead_action action,
                             const struct ob_filter *f, bool dry, size_t *n, struct ob_err *err)
{
    size_t found = 0;
    enum ob_status st = ob_pg_admin_need(a, err);
    if (st == OB_OK && dry)
        st = count(a, f, &found, err);
    if (st == OB_OK && !dry) {
        st = ob_pg_exec(&a->db, "begin", err);
        if (st == OB_OK)
            st = act(a, action, f, &found, err);
        if (st == OB_OK)
            st = ob_pg_exec(&a->db, "commit", err);
        ob_pg_rollback(&a->db);
    }
    if (st == OB_OK)
        *n = found;
    return st;
}

enum ob_status ob_pg_dlt_done(struct ob_admin *a, const int64_t *numbers, size_t n,
                              struct ob_err *err)
{
    struct ob_buf list;
    enum ob_status st = ob_pg_admin_need(a, err);
    ob_buf_init(&list, 0);
    for (size_t i = 0; i < n; i++)
        ob_buf_printf(&list, "%s%lld", i == 0 ? "{" : ",", (long long)numbers[i]);
    ob_buf_c(&list, n == 0 ? "{}" : "}");
    const struct pg_param p[] = {PG_TEXT(a->pipeline), PG_TEXT(ob_buf_z(&list))};
    if (st == OB_OK)
        st = ob_pg_query(&a->db,
                         "delete from outbox.dlt where pipeline = $1 and n = any($2::bigint[])", p,
                         2, false, NULL, err);
    ob_buf_clear(&list);
    return st;
}
