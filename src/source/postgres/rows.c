/* SPDX-License-Identifier: Apache-2.0 */
/* rows - mode rows: a table with state columns of its own (mapping.h). Ids in order first, then
 * whole events by id, a page at a time; published outside any transaction; marked by id and "still
 * pending" in the settle's transaction (rows_mark.c).
 *
 * Three kinds of rows look as if they waited and are left out of a pass (rows_read.c): those in the
 * window (taken.h), those parked and those dead (an anti-join). So rows in back-off hide nothing
 * (tests/e2e/test_profile_orion.py::test_rows_in_back_off_do_not_hide_the_next).
 *
 * What the table has no column for is in outbox.parked and outbox.dead, written in the same
 * transaction as the marks. Where the two differ the table is right. */
#include "source/postgres/rows.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define FETCH_BYTES ((size_t)8 << 20) /* of parked events that come into memory at once */
#define STATUS_MAX "10001"            /* pending rows are counted up to here */

static void page_drop(void *arg)
{
    PQclear(arg);
}

/* ---- handing out ---- */

/* The row by itself. Without memory for it the batch ends before it; one that is the first of its
 * batch several times is dead. OB_RETRY: the batch ends here. */
static enum ob_status read_alone(struct ob_source *s, bool first, size_t size,
                                 struct ob_arena *arena, struct ob_event *ev, struct ob_err *err)
{
    const struct rows_state *r = s->state;
    enum ob_status st = OB_REJECT;
    bool unfit = ob_unfit_is(&s->unfit, ev->id);
    if (!unfit)
        st = ob_pg_map_event_read(&s->sql, r->map, true, &s->limits, arena, ev, err);
    if (st != OB_REJECT)
        return st;
    if (!first && !unfit)
        return OB_RETRY;
    if (!unfit && !ob_unfit_note(&s->unfit, ev->id))
        return ob_err_set(err, OB_DOWN, "no memory for event %.*s: %zu bytes", OB_STR_ARG(ev->id),
                          size);
    ev->id = ob_arena_copy(arena, ev->id);
    return ev->id.p && ob_limits_no_memory(ev, size, arena) ? OB_OK
                                                            : ob_err_set(err, OB_DOWN, "no memory");
}

static int count_rows(const struct ob_source *s, size_t max, size_t max_bytes)
{
    const struct rows_state *r = s->state;
    int total = PQntuples(r->page), n = 0;
    size_t bytes = 0;
    while (r->row + n < total && (size_t)n < max) {
        bytes += 64 + ob_pg_map_event_size(r->map, r->page, r->row + n, &s->limits);
        if (n > 0 && bytes > max_bytes)
            break;
        n++;
    }
    return n;
}

static bool note_last(struct rows_state *r, size_t n)
{
    r->n_last = 0;
    if (n > r->cap_last) {
        uint64_t(*more)[2] = realloc(r->last, n * sizeof(*more));
        if (!more)
            return false;
        r->last = more;
        r->cap_last = n;
    }
    r->last_ref = r->given + 1;
    return true;
}

/* It is in the window from now on. claimed: the table says so already. */
static bool take_in(struct ob_source *s, struct ob_str id, const uint64_t hash[2], bool claimed)
{
    struct rows_state *r = s->state;
    struct taken *t = ob_pg_taken_add(&r->taken, hash);
    if (!t)
        return false;
    t->since_ms = ob_clock_mono_ms(s->clock);
    t->pass = r->pass;
    t->state = TAKEN_OURS;
    t->claimed = claimed;
    r->lazy_claims = r->lazy_claims || (r->map->claims && !claimed);
    if (!r->map->claims || t->id)
        return true;
    t->id = strndup(id.p, id.n);
    return t->id != NULL;
}

static bool own_events(struct ob_batch *batch)
{
    for (size_t i = 0; i < batch->n; i++)
        if (!ob_event_own(&batch->events[i], batch->arena))
            return false;
    return true;
}

/* Takes the next *rows rows of the page, or the first of them. */
static enum ob_status fill_batch(struct ob_source *s, int *rows, struct ob_batch *batch,
                                 struct ob_err *err)
{
    struct rows_state *r = s->state;
    bool all = r->row + *rows >= PQntuples(r->page);
    if (!note_last(r, (size_t)*rows))
        return ob_err_set(err, OB_DOWN, "no memory for %d events", *rows);
    for (int i = 0; i < *rows; i++) {
        struct ob_event *ev = &batch->events[batch->n];
        enum ob_status st = OB_OK;
        bool ok = ob_pg_map_event(r->map, r->page, r->row + i, batch->arena, ev);
        if (ok && ob_pg_map_event_partial(r->map, r->page, r->row + i, true))
            st = read_alone(s, batch->n == 0,
                            ob_pg_map_event_size(r->map, r->page, r->row + i, &s->limits),
                            batch->arena, ev, err);
        else if (ok && !all) /* the page stays with the source */
            ok = ob_event_own(ev, batch->arena);
        if (!ok)
            return ob_err_set(err, OB_DOWN, "no memory for %d events", *rows);
        if (st == OB_RETRY) {
            *rows = i;
            return !all || own_events(batch) ? OB_OK : ob_err_set(err, OB_DOWN, "no memory");
        }
        if (st == OB_AGAIN) /* deleted meanwhile */
            continue;
        if (st != OB_OK)
            return st;
        ev->ref = r->given + batch->n + 1;
        ob_pg_taken_hash(ev->id, r->last[r->n_last]);
        if (!take_in(s, ev->id, r->last[r->n_last++], s->shards == 1))
            return ob_err_set(err, OB_DOWN, "no memory for %d events", *rows);
        batch->n++;
    }
    return OB_OK;
}

/* The batch takes the page when it has all of its rest. */
static bool keep_page(struct rows_state *r, struct ob_batch *batch)
{
    if (r->row < PQntuples(r->page))
        return true;
    if (!ob_arena_keep(batch->arena, page_drop, r->page, PQresultMemorySize(r->page)))
        return false;
    r->page = NULL;
    return true;
}

/* OB_AGAIN: none of the page's rows is left. */
static enum ob_status hand_out(struct ob_source *s, size_t max, size_t max_bytes,
                               struct ob_batch **out, struct ob_err *err)
{
    struct rows_state *r = s->state;
    int rows = count_rows(s, max, max_bytes);
    if (rows == 0) {
        PQclear(r->page);
        r->page = NULL;
        return OB_AGAIN;
    }
    struct ob_batch *batch = ob_batch_new((size_t)rows, (size_t)2 << 30);
    enum ob_status st = batch ? fill_batch(s, &rows, batch, err)
                              : ob_err_set(err, OB_DOWN, "no memory for %d events", rows);
    if (st == OB_OK) {
        r->row += rows;
        r->given += batch->n;
        if (!keep_page(r, batch))
            st = ob_err_set(err, OB_DOWN, "no memory for a page of events");
    }
    if (st == OB_OK && batch->n > 0) {
        *out = batch;
        return OB_OK;
    }
    ob_batch_unref(batch);
    if (st == OB_OK)
        return OB_AGAIN;
    /* Some may count as taken already: begin anew, with a smaller page in case there was no memory
     * for this one. */
    s->page_rows = r->limit > 1 ? r->limit / 2 : 1;
    ob_pg_lost(s);
    err->status = OB_FENCED;
    return OB_FENCED;
}

/* ---- claiming ---- */

static void go_idle(struct ob_source *s)
{
    struct rows_state *r = s->state;
    r->idle_ms = r->idle_ms ? r->idle_ms * 2 : 2;
    r->idle_ms = r->idle_ms > s->conf->poll_max_ms ? s->conf->poll_max_ms : r->idle_ms;
    r->poll_at = ob_clock_mono_ms(s->clock) + r->idle_ms;
    if (ob_pg_rung(s, &r->rd)) /* after that look was asked for */
        r->poll_at = r->idle_ms = 0;
}

/* Asks for what comes next, if anything is known to come. */
static enum ob_status ask_next(struct ob_source *s, struct ob_err *err)
{
    struct rows_state *r = s->state;
    if (r->asked != ASKED_NOTHING || r->page)
        return OB_OK;
    if (r->list.next < r->list.n)
        return ob_pg_rows_ask_events(s, (size_t)r->limit, err);
    if (ob_clock_mono_ms(s->clock) >= r->poll_at)
        return ob_pg_rows_ask_ids(s, err);
    return OB_OK;
}

/* Takes what has come, and goes on while that leads to something. */
static enum ob_status step(struct ob_source *s, struct ob_err *err)
{
    struct rows_state *r = s->state;
    enum ob_status st = ask_next(s, err);
    while (st == OB_OK && r->asked != ASKED_NOTHING) {
        bool ids = r->asked == ASKED_IDS;
        st = ob_pg_rows_take(s, err);
        if (st != OB_OK)
            return st;
        if (r->n_released > 0)
            st = ob_pg_rows_release(s, err);
        if (st != OB_OK || r->page)
            return st;
        if (ids && r->list.n == 0) {
            go_idle(s);
            return OB_AGAIN;
        }
        st = ask_next(s, err);
    }
    return st == OB_OK ? OB_AGAIN : st;
}

static enum ob_status rows_claim(struct ob_source *s, size_t max, size_t max_bytes,
                                 struct ob_batch **out, struct ob_err *err)
{
    struct rows_state *r = s->state;
    enum ob_status st = OB_AGAIN;
    if (max == 0)
        return OB_AGAIN;
    if (ob_pg_rung(s, &r->rd) && r->asked == ASKED_NOTHING)
        r->poll_at = r->idle_ms = 0;
    if (r->lazy_claims) {
        st = ob_pg_rows_claims(s, true, err);
        if (st != OB_OK)
            return st;
        st = OB_AGAIN;
    }
    while (st == OB_AGAIN) {
        if (!r->page) {
            st = step(s, err);
            if (st != OB_OK)
                return st;
        }
        st = hand_out(s, max, max_bytes, out, err);
    }
    if (st != OB_OK)
        return st;
    r->idle_ms = 0;
    r->poll_at = ob_clock_mono_ms(s->clock) + (r->full ? 0 : 2);
    /* The server works on the next page meanwhile. */
    struct ob_err later;
    if (ask_next(s, &later) != OB_OK && !s->state) /* shows with the next claim */
        ob_log(s->log, OB_LOG_WARN, "source.read", OB_KC("error", later.text));
    return OB_OK;
}

static int rows_wait_fd(const struct ob_source *s)
{
    const struct rows_state *r = s->state;
    return r && (r->asked != ASKED_NOTHING || s->conf->wake == PG_WAKE_NOTIFY) ? ob_pg_fd(&r->rd)
                                                                               : -1;
}

static int64_t rows_wake_at(const struct ob_source *s)
{
    const struct rows_state *r = s->state;
    if (!r || r->asked != ASKED_NOTHING)
        return INT64_MAX;
    return r->page || r->list.next < r->list.n ? 0 : r->poll_at;
}

static bool rows_looking(const struct ob_source *s)
{
    const struct rows_state *r = s->state;
    return r && (r->asked != ASKED_NOTHING || r->page || r->list.next < r->list.n);
}

/* Of another shard: it stays in the table, and passes leave it out until that shard has marked it.
 */
static bool rows_already(const struct ob_source *s, uint64_t ref, uint64_t hash)
{
    struct rows_state *r = s->state;
    if (!r || s->shards <= 1 || ob_shard_of(hash, s->shards) == s->shard || ref < r->last_ref ||
        ref - r->last_ref >= r->n_last)
        return false;
    struct taken *t = ob_pg_taken_find(&r->taken, r->last[ref - r->last_ref]);
    if (t && t->state == TAKEN_OURS) {
        t->state = TAKEN_FOREIGN;
        r->taken.n_foreign++;
    }
    return false;
}

/* ---- start and stop ---- */

static void drop_results(struct rows_state *r)
{
    PQclear(r->page);
    PQclear(r->answer);
    r->page = r->answer = NULL;
    for (size_t i = 0; i < r->n_released; i++)
        free(r->released[i]);
    r->n_released = 0;
    free(r->last_id);
    r->last_id = NULL;
    ob_pg_rows_list_clear(r);
}

static void rows_stop(struct ob_source *s)
{
    struct rows_state *r = s->state;
    struct ob_err ignored;
    if (!r)
        return;
    s->state = NULL; /* what fails below must not come here again */
    if (r->map && r->map->claims && s->owned && s->sql.c && PQstatus(s->sql.c) == CONNECTION_OK) {
        s->state = r;
        ob_pg_rollback(&s->sql);
        if (ob_pg_rows_claims(s, false, &ignored) != OB_OK)
            ob_log(s->log, OB_LOG_WARN, "source.claims", OB_KC("error", ignored.text));
        s->state = NULL;
    }
    drop_results(r);
    ob_pg_taken_clear(&r->taken);
    ob_buf_clear(&r->ids);
    ob_buf_clear(&r->list.text);
    free(r->list.ends);
    free(r->released);
    free(r->last);
    free(r->refused);
    ob_pg_close(&r->rd);
    ob_pg_map_close(r->map);
    free(r);
}

static enum ob_status rows_start(struct ob_source *s, struct ob_err *err)
{
    struct rows_state *r = calloc(1, sizeof(*r));
    if (!r)
        return ob_err_set(err, OB_DOWN, "no memory");
    s->state = r;
    r->limit = s->page_rows > 0 ? s->page_rows : s->conf->page;
    s->page_rows = 0;
    r->ids_limit = ROWS_IDS;
    ob_buf_init(&r->ids, (size_t)64 << 20);
    ob_buf_init(&r->list.text, (size_t)64 << 20);
    enum ob_status st = ob_pg_exec(&s->sql, "set synchronous_commit = off", err);
    if (st == OB_OK)
        st = ob_pg_map_open(&s->sql, &s->conf->mapping, s->pipeline, s->owner, &r->map, err);
    if (st == OB_OK)
        st = ob_pg_rows_look_aside(s, err);
    if (st == OB_OK)
        st = ob_pg_connect(&r->rd, s->conf->dsn, "outbox reader", false, s->clock,
                           s->conf->timeout_ms, err);
    if (st == OB_OK)
        st = ob_pg_listen(s, &r->rd, err);
    if (st == OB_OK)
        st = ob_pg_rows_prepare(s, err);
    if (st != OB_OK)
        return st;
    s->own_attempts = r->map->col[OB_MAP_ATTEMPTS] != NULL;
    if (r->map->row_security)
        ob_log(s->log, OB_LOG_WARN, "source.row_security", OB_KC("table", r->map->table),
               OB_KC("error", "row-level security may hide rows from the relay's role"));
    return OB_OK;
}

/* Everything in the window is forgotten: the next pass finds it again. */
static void rows_rewind(struct ob_source *s)
{
    struct rows_state *r = s->state;
    if (!r)
        return;
    if (r->asked != ASKED_NOTHING || r->deep)
        ob_pg_rows_cancel(s);
    if (!s->state)
        return;
    if (r->deep) {
        ob_pg_lost(s);
        return;
    }
    drop_results(r);
    ob_pg_taken_clear(&r->taken);
    r->n_last = 0;
    r->poll_at = 0;
    r->lazy_claims = false;
}

/* ---- settling ---- */

static void rows_cursor(struct ob_source *s, const struct ob_settle *settle, struct pg_cursor *out)
{
    (void)s;
    (void)settle;
    (void)out; /* there is none: each row is marked */
}

static void rows_ref(const struct ob_source *s, const struct ob_event *ev, struct ob_buf *out)
{
    (void)s;
    ob_buf_str(out, ev->id);
}

/* ---- parked events ---- */

static enum ob_status take_rows(struct ob_source *s, PGresult *res, struct ob_batch *batch,
                                struct ob_err *err)
{
    const struct rows_state *r = s->state;
    size_t bytes = 0;
    if (!ob_arena_keep(batch->arena, page_drop, res, PQresultMemorySize(res))) {
        PQclear(res);
        return ob_err_set(err, OB_DOWN, "no memory for a page of events");
    }
    for (int row = 0; row < PQntuples(res) && batch->n == 0; row++) {
        size_t place = (size_t)ob_pg_i64(res, row, PG_F_PLACE);
        struct ob_event *ev = &batch->events[place - 1];
        enum ob_status st = OB_OK;
        if (!ob_pg_map_event(r->map, res, row, batch->arena, ev))
            return ob_err_set(err, OB_DOWN, "no memory");
        size_t size = ob_pg_map_event_size(r->map, res, row, &s->limits);
        if (ob_pg_map_event_partial(r->map, res, row, true))
            st = read_alone(s, place == 1, size, batch->arena, ev, err);
        if (st == OB_RETRY) { /* those before it are enough */
            *ev = (struct ob_event){0};
            batch->n = place - 1;
            return OB_OK;
        }
        if (st == OB_AGAIN)
            *ev = (struct ob_event){0};
        else if (st != OB_OK)
            return st;
        uint64_t hash[2];
        ob_pg_taken_hash(ev->id, hash);
        if (ev->id.p && r->map->claims && !take_in(s, ev->id, hash, true))
            return ob_err_set(err, OB_DOWN, "no memory");
        bytes += size;
        if (bytes >= FETCH_BYTES && row + 1 < PQntuples(res))
            batch->n = place;
    }
    return OB_OK;
}

/* Rows that are there and do not wait any more were settled by other hands: no event is left. */
static enum ob_status close_settled(struct ob_source *s, const struct ob_str *refs, size_t n,
                                    const struct ob_batch *batch, struct ob_err *err)
{
    const struct rows_state *r = s->state;
    PGresult *res = NULL;
    size_t missing = 0;
    ob_pg_array_begin(&s->array[0]);
    for (size_t i = 0; i < (batch->n ? batch->n : n); i++) {
        if (batch->events[i].id.p)
            continue;
        ob_pg_array_add(&s->array[0], refs[i]);
        missing++;
    }
    const struct pg_param p[] = {PG_TEXT(ob_pg_array_end(&s->array[0]))};
    if (missing == 0)
        return OB_OK;
    enum ob_status st = ob_pg_query(&s->sql, r->map->sql[PG_MAP_THERE], p, 1, true, &res, err);
    if (st != OB_OK)
        return st;
    bool *there = calloc(missing + 1, sizeof(*there));
    if (!there)
        st = ob_err_set(err, OB_DOWN, "no memory");
    for (int i = 0; there && i < PQntuples(res); i++)
        there[ob_pg_i64(res, i, 0) - 1] = true;
    int found = PQntuples(res);
    PQclear(res);
    ob_pg_array_begin(&s->array[1]);
    for (size_t i = 0, k = 0; there && i < (batch->n ? batch->n : n); i++)
        if (!batch->events[i].id.p && there[k++])
            ob_pg_array_add(&s->array[1], refs[i]);
    free(there);
    return st == OB_OK && found > 0 ? ob_pg_rows_close(s, ob_pg_array_end(&s->array[1]), err) : st;
}

static enum ob_status rows_fetch(struct ob_source *s, const struct ob_str *refs, size_t n,
                                 struct ob_batch *batch, struct ob_err *err)
{
    const struct rows_state *r = s->state;
    char shard[12], epoch[24];
    PGresult *res = NULL;
    for (size_t i = 0; i < n; i++)
        batch->events[i] = (struct ob_event){0};
    ob_pg_array_begin(&s->array[0]);
    for (size_t i = 0; i < n; i++)
        ob_pg_array_add(&s->array[0], refs[i]);
    snprintf(shard, sizeof(shard), "%u", s->shard);
    snprintf(epoch, sizeof(epoch), "%" PRId64, s->epoch);
    const struct pg_param p[] = {PG_TEXT(ob_pg_array_end(&s->array[0])), PG_TEXT(shard),
                                 PG_TEXT(epoch)};
    enum ob_status st =
        ob_pg_query(&s->sql, r->map->sql[PG_MAP_FETCH], p, r->map->claims ? 3 : 1, true, &res, err);
    if (st == OB_OK)
        st = take_rows(s, res, batch, err);
    return st == OB_OK ? close_settled(s, refs, n, batch, err) : st;
}

static enum ob_status rows_status(struct ob_source *s, struct ob_source_status *out,
                                  struct ob_err *err)
{
    const struct rows_state *r = s->state;
    PGresult *res = NULL;
    const struct pg_param p[] = {PG_TEXT(STATUS_MAX)};
    enum ob_status st = ob_pg_query(&s->sql, r->map->sql[PG_MAP_PENDING], p, 1, true, &res, err);
    if (st == OB_OK) {
        out->pending = ob_pg_i64(res, 0, 0);
        out->lag_ms = ob_pg_null(res, 0, 1) ? 0 : ob_pg_i64(res, 0, 1);
    }
    PQclear(res);
    return st;
}

const struct pg_reader ob_pg_rows = {
    .name = "rows",
    .log = false,
    .start = rows_start,
    .stop = rows_stop,
    .wait_fd = rows_wait_fd,
    .wake_at = rows_wake_at,
    .claim = rows_claim,
    .looking = rows_looking,
    .rewind = rows_rewind,
    .already = rows_already,
    .cursor = rows_cursor,
    .mark = ob_pg_rows_mark,
    .settled = ob_pg_rows_settled,
    .beat = ob_pg_rows_beat,
    .ref = rows_ref,
    .fetch = rows_fetch,
    .status = rows_status,
};
