/* SPDX-License-Identifier: Apache-2.0 */
/* wal_rows - mode wal of a table with state columns. Rows come through the stream, in the order of
 * commits; what becomes of them is written as in mode rows, by its reader, which stays beside the
 * stream all the time.
 *
 * Each row says itself whether it waits, so nothing hangs on the position: what the stream does not
 * bring is found by the sweep. Once a second, when the stream is read to the end, it notes the ids
 * that wait and are not in the window. When the stream has been read behind that look, those that
 * still wait and are not in the window were written before the slot, or released by an UPDATE: they
 * are taken as in mode rows. Rows that the stream brings again (after a start) are looked up: only
 * those that wait and stand nowhere else are taken. */
#include "source/postgres/rows.h"
#include "source/postgres/wal.h"

#include <stdio.h>
#include <stdlib.h>

#define SWEEP_MAX "1000" /* rows of one sweep */

/* ---- the settled prefix ---- */

static bool make_room(struct wal_state *w)
{
    size_t need = (size_t)(w->given - w->settled) + 1;
    if (need <= w->done_cap)
        return true;
    size_t cap = w->done_cap ? w->done_cap * 2 : 4096;
    while (cap < need)
        cap *= 2;
    unsigned char *more = calloc(cap, 1);
    if (!more)
        return false;
    for (uint64_t r = w->settled + 1; w->done_cap && r <= w->given && r - w->settled <= w->done_cap;
         r++)
        more[r % cap] = w->done[r % w->done_cap];
    free(w->done);
    w->done = more;
    w->done_cap = cap;
    return true;
}

static void mark_done(struct wal_state *w, uint64_t ref)
{
    if (ref > w->settled && ref <= w->given && ref - w->settled <= w->done_cap)
        w->done[ref % w->done_cap] = 1;
}

/* Over all that is settled from the start; the position there is the one that may be told. */
static void move_on(struct wal_state *w)
{
    uint64_t at = w->settled;
    while (at < w->given && w->done[(at + 1) % w->done_cap])
        w->done[++at % w->done_cap] = 0;
    if (at == w->settled)
        return;
    if (ob_pg_wal_at(w, at, &w->reached))
        ob_pg_wal_settled(w, at);
    w->settled = at;
}

void ob_pg_wal_rows_settled(struct ob_source *s, const struct ob_settle *settle)
{
    struct wal_state *w = wal_of(s);
    for (size_t i = 0; i < settle->n; i++)
        mark_done(w, settle->ops[i].event->ref);
    move_on(w);
}

/* ---- what is taken ---- */

static bool in_window(struct rows_state *r, struct ob_str id)
{
    uint64_t hash[2];
    ob_pg_taken_hash(id, hash);
    return ob_pg_taken_find(&r->taken, hash) != NULL;
}

static bool take_in(struct ob_source *s, const struct ob_event *ev, bool claimed)
{
    struct rows_state *r = s->state;
    uint64_t hash[2];
    ob_pg_taken_hash(ev->id, hash);
    struct taken *t = ob_pg_taken_add(&r->taken, hash);
    if (!t)
        return false;
    t->since_ms = ob_clock_mono_ms(s->clock);
    t->state = TAKEN_OURS;
    t->claimed = claimed;
    r->lazy_claims = r->lazy_claims || (r->map->claims && !claimed);
    if (!r->map->claims || t->id)
        return true;
    t->id = strndup(ev->id.p, ev->id.n);
    return t->id != NULL;
}

/* Which of these ids wait, and stand nowhere else. *out: their places, from 1, rising. */
static enum ob_status waiting(struct ob_source *s, const char *ids, PGresult **out,
                              struct ob_err *err)
{
    const struct rows_state *r = s->state;
    const struct pg_map *m = r->map;
    const struct pg_column *id = m->col[OB_MAP_ID];
    struct ob_buf sql;
    ob_buf_init(&sql, 1 << 20);
    ob_buf_printf(&sql,
                  "select k.i from unnest($1::%s[]) with ordinality as k(id, i) join %s t on t.%s "
                  "= k.id where %s and not exists (select 1 from outbox.parked p where p.pipeline "
                  "= %s and p.ref = t.%s::text) and not exists (select 1 from outbox.dead d where "
                  "d.pipeline = %s and d.ref = t.%s::text and d.state in ('dead', 'discarded')) "
                  "order by k.i",
                  id->type, m->table, id->ident, m->ready, m->pipeline, id->ident, m->pipeline,
                  id->ident);
    const struct pg_param p[] = {PG_TEXT(ids)};
    enum ob_status st = sql.failed ? ob_err_set(err, OB_DOWN, "no memory")
                                   : ob_pg_query(&s->sql, ob_buf_z(&sql), p, 1, true, out, err);
    ob_buf_clear(&sql);
    return st;
}

/* Rows that may have been settled before we came: only those that wait stay. */
static enum ob_status verify(struct ob_source *s, bool *stays, struct ob_err *err)
{
    struct wal_state *w = wal_of(s);
    PGresult *res = NULL;
    ob_pg_array_begin(&s->array[0]);
    for (size_t i = 0; i < w->n_events; i++)
        ob_pg_array_add(&s->array[0], w->events[i].id);
    enum ob_status st = waiting(s, ob_pg_array_end(&s->array[0]), &res, err);
    memset(stays, 0, w->n_events);
    for (int i = 0; st == OB_OK && i < PQntuples(res); i++)
        stays[ob_pg_i64(res, i, 0) - 1] = true;
    PQclear(res);
    return st;
}

enum ob_status ob_pg_wal_rows_keep(struct ob_source *s, struct ob_err *err)
{
    struct wal_state *w = wal_of(s);
    struct rows_state *r = s->state;
    enum ob_status st = OB_OK;
    size_t n = 0;
    if (w->n_events == 0)
        return OB_OK;
    bool *stays = malloc(w->n_events);
    if (!stays || !make_room(w)) {
        free(stays);
        return ob_err_set(err, OB_DOWN, "no memory for a page of events");
    }
    memset(stays, 1, w->n_events);
    if (w->verify)
        st = verify(s, stays, err);
    w->verify = false;
    for (size_t i = 0; st == OB_OK && i < w->n_events; i++) {
        struct ob_event *ev = &w->events[i];
        if (!stays[i] || in_window(r, ev->id)) {
            mark_done(w, ev->ref);
            continue;
        }
        if (!take_in(s, ev, false))
            st = ob_err_set(err, OB_DOWN, "no memory for a page of events");
        w->events[n++] = *ev;
    }
    w->n_events = n;
    free(stays);
    move_on(w);
    if (st == OB_OK && r->lazy_claims)
        st = ob_pg_rows_claims(s, true, err);
    return st;
}

/* ---- the sweep ---- */

static void drop_sweep(struct wal_state *w)
{
    PQclear(w->sweep);
    w->sweep = NULL;
    w->sweep_row = 0;
}

static enum ob_status release(struct ob_source *s, const PGresult *res, struct ob_err *err)
{
    struct rows_state *r = s->state;
    for (int i = 0; i < PQntuples(res); i++)
        if (ob_pg_bool(res, i, 1) && !ob_pg_rows_note_released(r, ob_pg_str(res, i, 0)))
            return ob_err_set(err, OB_DOWN, "no memory");
    return r->n_released > 0 ? ob_pg_rows_release(s, err) : OB_OK;
}

enum ob_status ob_pg_wal_rows_look(struct ob_source *s, struct ob_err *err)
{
    struct wal_state *w = wal_of(s);
    struct rows_state *r = s->state;
    const struct pg_param p[] = {PG_TEXT(SWEEP_MAX)};
    PGresult *res = NULL;
    /* Behind: all that waits is in the stream, or in the sweep that is under way. */
    if (w->sweep || w->in_txn || w->read.lsn < w->verified)
        return OB_OK;
    enum ob_status st = ob_pg_query(&s->sql, r->map->sql[PG_MAP_SIDE], p, 1, true, &res, err);
    if (st == OB_OK)
        st = release(s, res, err);
    if (st == OB_OK && PQntuples(res) > 0) {
        w->sweep = res;
        w->sweep_lsn = 0; /* the tick that called us puts the WAL's end here */
        res = NULL;
    }
    PQclear(res);
    return st;
}

/* The ids of the sweep that still wait, at most max, into refs. */
static enum ob_status sweep_ids(struct ob_source *s, size_t max, struct ob_str *refs, size_t *n,
                                struct ob_err *err)
{
    struct wal_state *w = wal_of(s);
    PGresult *res = NULL;
    size_t k = 0;
    ob_pg_array_begin(&s->array[0]);
    for (; w->sweep_row < PQntuples(w->sweep) && k < max; w->sweep_row++) {
        struct ob_str id = ob_pg_str(w->sweep, w->sweep_row, 0);
        if (ob_pg_bool(w->sweep, w->sweep_row, 1) || in_window(s->state, id))
            continue;
        ob_pg_array_add(&s->array[0], id);
        refs[k++] = id;
    }
    const char *ids = ob_pg_array_end(&s->array[0]);
    *n = 0;
    if (k == 0)
        return OB_OK;
    enum ob_status st = waiting(s, ids, &res, err);
    for (int i = 0; st == OB_OK && i < PQntuples(res); i++)
        refs[(*n)++] = refs[ob_pg_i64(res, i, 0) - 1];
    PQclear(res);
    return st;
}

/* Events that were fetched by id take their place behind all that was read. */
static enum ob_status hand_over(struct ob_source *s, struct ob_batch *batch, size_t n,
                                struct ob_err *err)
{
    struct wal_state *w = wal_of(s);
    const struct rows_state *r = s->state;
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        struct ob_event *ev = &batch->events[i];
        if (!ev->id.p)
            continue;
        ev->ref = ++w->given;
        if (!make_room(w) || !take_in(s, ev, r->map->claims))
            return ob_err_set(err, OB_DOWN, "no memory for %zu events", n);
        batch->events[k++] = *ev;
    }
    batch->n = k;
    if (k == 0)
        return OB_AGAIN;
    w->handed = w->given;
    return ob_pg_wal_ring_note(w, w->given - k + 1, w->given)
               ? OB_OK
               : ob_err_set(err, OB_DOWN, "no memory");
}

enum ob_status ob_pg_wal_rows_sweep(struct ob_source *s, size_t max, struct ob_batch **out,
                                    struct ob_err *err)
{
    struct wal_state *w = wal_of(s);
    if (!w->sweep || w->in_txn || w->sweep_lsn == 0 || w->read.lsn < w->sweep_lsn)
        return OB_AGAIN;
    max = max < 500 ? max : 500;
    int from = w->sweep_row;
    struct ob_batch *batch = ob_batch_new(max, (size_t)2 << 30);
    struct ob_str *refs = batch ? ob_arena_alloc(batch->arena, max * sizeof(*refs)) : NULL;
    size_t n = 0;
    enum ob_status st = refs ? sweep_ids(s, max, refs, &n, err)
                             : ob_err_set(err, OB_DOWN, "no memory for %zu events", max);
    if (st == OB_OK && n > 0)
        st = w->table_reader->fetch(s, refs, n, batch, err);
    if (st == OB_OK && n > 0) {
        if (batch->n > 0 && batch->n < n) { /* too large together: the rest comes next time */
            n = batch->n;
            w->sweep_row = from; /* those that are taken are passed over then */
        }
        st = hand_over(s, batch, n, err);
    } else if (st == OB_OK) {
        st = OB_AGAIN;
    }
    if (w->sweep_row >= PQntuples(w->sweep))
        drop_sweep(w);
    if (st == OB_OK)
        *out = batch;
    else
        ob_batch_unref(batch);
    return st;
}

/* ---- the phase before ---- */

void ob_pg_wal_rows_reading(const struct ob_source *s, struct wal_reading *out)
{
    const struct rows_state *r = s->state;
    *out = (struct wal_reading){.at_complete = r != NULL, .settled = r != NULL};
    if (r && r->asked == ASKED_NOTHING && !r->page && r->list.next >= r->list.n && r->idle_ms > 0 &&
        !r->deep)
        out->complete = r->pass;
    for (size_t i = 0; r && i < r->taken.cap; i++)
        if (r->taken.at[i].state == TAKEN_OURS)
            out->settled = false;
}

uint64_t ob_pg_wal_rows_passes(const struct ob_source *s)
{
    const struct rows_state *r = s->state;
    return r ? r->pass : 0;
}

void ob_pg_wal_rows_clear(struct wal_state *w)
{
    drop_sweep(w);
    free(w->done);
    w->done = NULL;
    w->done_cap = 0;
}

/* After a rewind everything is read again, and looked up. */
void ob_pg_wal_rows_rewind(struct ob_source *s)
{
    struct wal_state *w = wal_of(s);
    drop_sweep(w);
    if (w->done)
        memset(w->done, 0, w->done_cap);
    w->check_lsn = UINT64_MAX;
}
