/* SPDX-License-Identifier: Apache-2.0 */
/* admin_events - events listed for people, with what became of each in one pipeline. */
#include "source/postgres/admin.h"
#include "source/postgres/native.h"

#include <inttypes.h>
#include <stdio.h>

#define PAGE 500 /* rows of one statement */

#define KEY "coalesce(nullif(e.key, ''), e.aggregate_id)"

/* The number behind which the newest `limit` of the filter start. */
static enum ob_status find_newest(struct ob_admin *a, const struct ob_filter *f, int64_t *after,
                                  struct ob_err *err)
{
    struct pg_where w = {0};
    PGresult *res = NULL;
    ob_buf_reset(&a->sql);
    ob_buf_c(&a->sql, "select min(seq) - 1 from (select e.seq from outbox.event e where true");
    ob_pg_where_filter(a, &w, f, "e", KEY, "e.created_at");
    ob_buf_printf(&a->sql, " order by e.seq desc limit $%zu::bigint) t",
                  ob_pg_where_num(&w, (int64_t)f->limit));
    enum ob_status st = ob_pg_query(&a->db, ob_buf_z(&a->sql), w.p, w.n, true, &res, err);
    if (st == OB_OK && !ob_pg_null(res, 0, 0))
        *after = ob_pg_i64(res, 0, 0);
    PQclear(res);
    return st;
}

static enum ob_status read_page(struct ob_admin *a, const struct pg_span *span, bool payload,
                                int64_t limit, PGresult **out, struct ob_err *err)
{
    struct pg_where w = {0};
    size_t pipeline = ob_pg_where_text(&w, a->pipeline);
    ob_buf_reset(&a->sql);
    ob_buf_printf(
        &a->sql,
        "select %s, case when w.n is not null then 'parked' when d.state in ('dead', 'discarded') "
        "then d.state when exists (select 1 from outbox.cursor c where c.pipeline = $%zu) and not "
        "exists (select 1 from outbox.cursor c where c.pipeline = $%zu and not outbox.settled(c, "
        "e.seq, e.xid)) then 'published' else 'pending' end from outbox.event e "
        "left join outbox.parked w on w.pipeline = $%zu and w.seq = e.seq "
        "left join lateral (select state from outbox.dead where pipeline = $%zu and seq = e.seq "
        "order by n desc limit 1) d on true where e.seq > $%zu::bigint",
        payload ? PG_EVENT_COLUMNS : PG_EVENT_BARE, pipeline, pipeline, pipeline, pipeline,
        ob_pg_where_num(&w, span->after));
    if (span->numbers)
        ob_buf_printf(&a->sql, " and e.seq = any ($%zu::bigint[])",
                      ob_pg_where_text(&w, span->numbers));
    if (span->visible)
        ob_buf_printf(&a->sql, " and pg_visible_in_snapshot(e.xid, $%zu::pg_snapshot)",
                      ob_pg_where_text(&w, span->visible));
    if (span->filter)
        ob_pg_where_filter(a, &w, span->filter, "e", KEY, "e.created_at");
    ob_buf_printf(&a->sql, " order by e.seq limit $%zu::bigint", ob_pg_where_num(&w, limit));
    return ob_pg_query(&a->db, ob_buf_z(&a->sql), w.p, w.n, true, out, err);
}

static enum ob_status show_row(struct ob_admin *a, const PGresult *res, int row,
                               struct ob_arena *arena, struct pg_show *show, struct ob_err *err)
{
    struct ob_event ev;
    char state[16];
    struct ob_str s = ob_pg_str(res, row, PG_EVENT_N);
    enum ob_status st = OB_OK;
    ob_arena_reset(arena);
    if (!ob_pg_event(res, row, 0, arena, &ev))
        return ob_err_set(err, OB_DOWN, "no memory");
    if (ob_pg_event_partial(res, row, 0, show->payload))
        st = ob_pg_event_fetch(&a->db, (int64_t)ev.seq, show->payload, &ob_limits_shown, arena, &ev,
                               err);
    ev.ref = ev.seq;
    snprintf(state, sizeof(state), "%.*s", OB_STR_ARG(s));
    if (st == OB_OK)
        show->more = show->fn(show->user, &ev, state);
    return st == OB_AGAIN ? OB_OK : st; /* retired meanwhile */
}

enum ob_status ob_pg_events_page(struct ob_admin *a, const struct pg_span *span, int64_t limit,
                                 struct pg_show *show, int64_t *after, int *n, struct ob_err *err)
{
    struct ob_arena *arena = ob_arena_new(4096, 0);
    PGresult *res = NULL;
    enum ob_status st = arena ? read_page(a, span, show->payload, limit, &res, err)
                              : ob_err_set(err, OB_DOWN, "no memory");
    int rows = st == OB_OK ? PQntuples(res) : 0;
    for (int i = 0; i < rows && st == OB_OK && show->more; i++) {
        st = show_row(a, res, i, arena, show, err);
        if (st == OB_OK)
            *after = ob_pg_i64(res, i, 0);
    }
    if (n)
        *n = rows;
    PQclear(res);
    ob_arena_unref(arena);
    return st;
}

enum ob_status ob_pg_events(struct ob_admin *a, const struct ob_filter *f, bool payload,
                            ob_event_fn *fn, void *user, struct ob_err *err)
{
    struct pg_show show = {payload, fn, user, true};
    int64_t after = (int64_t)f->after, left = f->limit ? (int64_t)f->limit : INT64_MAX;
    enum ob_status st = ob_pg_admin_need(a, err);
    if (st != OB_OK)
        return st;
    if (ob_pg_admin_mapped(a))
        return ob_pg_map_events(a, f, payload, fn, user, err);
    if (ob_pg_admin_stream(a))
        return ob_pg_stream_events(a, f, payload, fn, user, err);
    if (f->limit && !f->after) /* no place to go on from: the newest ones */
        st = find_newest(a, f, &after, err);
    for (int n = PAGE; st == OB_OK && show.more && left > 0 && n == PAGE; left -= n)
        st = ob_pg_events_page(a, &(struct pg_span){.after = after, .filter = f},
                               left < PAGE ? left : PAGE, &show, &after, &n, err);
    return st;
}
