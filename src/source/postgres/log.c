/* SPDX-License-Identifier: Apache-2.0 */
/* log - mode log: order is the number, visibility decides the set (docs/sources/postgres.md has the
 * proof).
 *
 * The position is (pos, snap) and, while a pass over late rows takes several pages, (late_pos,
 * late_snap). round.c reads pages and moves it; here they are handed out and settled. The next
 * round is asked for as soon as a full page is handed out, so the server works while the events are
 * routed.
 *
 * Each row that was read has an ordinal, which is the event's ref; the ring maps it to the cursor
 * that is valid once everything up to it is settled. */
#include "source/postgres/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define FETCH_BYTES ((size_t)8 << 20) /* of parked events that come into memory at once */

static void page_drop(void *arg)
{
    PQclear(arg);
}

/* ---- rows that are recorded already ---- */

/* After a restart the cursor may stand below events that are parked or dead already: those have
 * their attempts there and must not start anew (test: "restart keeps attempts"). Others are stored
 * as settled ahead of the cursor. */
static enum ob_status load_recorded(struct ob_source *s, struct ob_err *err)
{
    struct log_state *l = s->state;
    PGresult *res = NULL;
    const struct pg_param p[] = {PG_TEXT(s->pipeline)};
    enum ob_status st = ob_pg_query(
        &s->sql,
        "select greatest((select seq from outbox.parked where pipeline = $1 and seq is not null "
        "order by seq desc limit 1), (select seq from outbox.dead where pipeline = $1 and seq is "
        "not null order by seq desc limit 1), 0)",
        p, 1, true, &res, err);
    if (st == OB_OK)
        l->recorded_max = ob_pg_i64(res, 0, 0);
    PQclear(res);
    return st;
}

static bool skip_row(struct log_state *l, int row)
{
    if (!l->skip)
        l->skip = calloc((size_t)PQntuples(l->page), sizeof(*l->skip));
    if (l->skip)
        l->skip[row] = true;
    return l->skip != NULL;
}

/* Marks the rows of the page that have a parked or dead row, or are in the set. */
static enum ob_status find_recorded(struct ob_source *s, struct ob_err *err)
{
    struct log_state *l = s->state;
    int n = PQntuples(l->page);
    PGresult *res = NULL;
    bool any = false, ok = true;
    free(l->skip);
    l->skip = NULL;
    ob_pg_array_begin(&s->array[0]);
    for (int i = 0; i < n && ok; i++) {
        int64_t seq = ob_pg_i64(l->page, i, 0);
        any = any || seq <= l->recorded_max;
        ob_pg_array_int(&s->array[0], seq);
        if (ob_ahead_find(&l->ahead.set, 0, (uint64_t)seq))
            ok = skip_row(l, i);
    }
    if (!any || !ok)
        return ok ? OB_OK : ob_err_set(err, OB_DOWN, "no memory");
    const struct pg_param p[] = {PG_TEXT(s->pipeline), PG_TEXT(ob_pg_array_end(&s->array[0]))};
    enum ob_status st = ob_pg_query(
        &s->sql,
        "select t.i from unnest($2::bigint[]) with ordinality as t(seq, i) where exists (select 1 "
        "from outbox.parked p where p.pipeline = $1 and p.seq = t.seq) or exists (select 1 from "
        "outbox.dead d where d.pipeline = $1 and d.seq = t.seq)",
        p, 2, true, &res, err);
    for (int i = 0; st == OB_OK && i < PQntuples(res); i++) {
        int64_t at = ob_pg_i64(res, i, 0) - 1;
        if (at >= 0 && at < n && !skip_row(l, (int)at))
            st = ob_err_set(err, OB_DOWN, "no memory");
    }
    PQclear(res);
    return st;
}

/* ---- handing out ---- */

/* The next page of what was read: LATE before MAIN. */
static enum ob_status next_page(struct ob_source *s, struct ob_err *err)
{
    struct log_state *l = s->state;
    PGresult **from = l->late ? &l->late : &l->main;
    while (*from && PQntuples(*from) == 0) {
        PQclear(*from);
        *from = NULL;
        from = &l->main;
    }
    l->page = *from;
    *from = NULL;
    l->row = 0;
    enum ob_status st = l->page ? find_recorded(s, err) : OB_AGAIN;
    if (st != OB_OK && l->page) { /* the page is asked again, from the durable place */
        PQclear(l->page);
        l->page = NULL;
        ob_pg_lost(s);
        return ob_err_set(err, OB_FENCED, "looking for parked events failed");
    }
    return st;
}

/* How many rows of the page fit. */
static int count_rows(const struct ob_source *s, size_t max, size_t max_bytes)
{
    const struct log_state *l = s->state;
    int total = PQntuples(l->page), n = 0;
    size_t bytes = 0;
    while (l->row + n < total && (size_t)n < max) {
        int row = l->row + n;
        if (!l->skip || !l->skip[row])
            bytes += 64 + ob_pg_event_size(l->page, row, 0, &s->limits);
        if (n > 0 && bytes > max_bytes)
            break;
        n++;
    }
    return n;
}

/* Of an event that is settled only the cursor's place is needed. */
static void fill_settled(struct log_state *l, int row, uint64_t ref, struct ob_event *ev)
{
    struct ob_ahead_at *member =
        ob_ahead_find(&l->ahead.set, 0, (uint64_t)ob_pg_i64(l->page, row, 0));
    if (member)
        member->ref = ref;
    *ev = (struct ob_event){.ref = ref, .settled = true};
}

static bool own_events(struct ob_batch *batch)
{
    for (size_t i = 0; i < batch->n; i++)
        if (!ob_event_own(&batch->events[i], batch->arena))
            return false;
    return true;
}

/* The row by itself. Without memory for it the batch ends before it; one that is the first of its
 * batch several times is dead. OB_RETRY: the batch ends here. */
static enum ob_status read_alone(struct ob_source *s, bool first, size_t size,
                                 struct ob_arena *arena, struct ob_event *ev, struct ob_err *err)
{
    enum ob_status st = OB_REJECT;
    bool unfit = ob_unfit_is(&s->unfit, ev->id);
    if (!unfit)
        st = ob_pg_event_fetch(&s->sql, (int64_t)ev->seq, true, &s->limits, arena, ev, err);
    if (st != OB_REJECT)
        return st;
    if (!first && !unfit)
        return OB_RETRY;
    if (!unfit && !ob_unfit_note(&s->unfit, ev->id))
        return ob_err_set(err, OB_DOWN, "no memory for event %.*s: %zu bytes", OB_STR_ARG(ev->id),
                          size);
    return ob_limits_no_memory(ev, size, arena) ? OB_OK : ob_err_set(err, OB_DOWN, "no memory");
}

/* Takes the next *rows rows of the page, or the first of them. */
static enum ob_status fill_batch(struct ob_source *s, int *rows, struct ob_batch *batch,
                                 struct ob_err *err)
{
    struct log_state *l = s->state;
    bool all = l->row + *rows >= PQntuples(l->page);
    for (int i = 0; i < *rows; i++) {
        int row = l->row + i;
        enum ob_status st = OB_OK;
        uint64_t ref = l->given + (uint64_t)i + 1;
        struct ob_event *ev = &batch->events[batch->n];
        if (l->skip && l->skip[row]) {
            fill_settled(l, row, ref, ev);
            batch->n++;
            continue;
        }
        bool ok = ob_pg_event(l->page, row, 0, batch->arena, ev);
        if (ok && ob_pg_event_partial(l->page, row, 0, true))
            st = read_alone(s, batch->n == 0, ob_pg_event_size(l->page, row, 0, &s->limits),
                            batch->arena, ev, err);
        else if (ok && !all) /* the page stays with the source */
            ok = ob_event_own(ev, batch->arena);
        if (ok && st == OB_RETRY) {
            *rows = i;
            return !all || own_events(batch) ? OB_OK : ob_err_set(err, OB_DOWN, "no memory");
        }
        if (!ok)
            return ob_err_set(err, OB_RETRY, "no memory for %d events", *rows);
        if (st != OB_OK)
            return st;
        ev->ref = ref;
        batch->n++;
    }
    return OB_OK;
}

/* The batch takes the page when it has all of its rest. */
static bool keep_page(struct log_state *l, struct ob_batch *batch)
{
    if (l->row < PQntuples(l->page))
        return true;
    if (!ob_arena_keep(batch->arena, page_drop, l->page, PQresultMemorySize(l->page)))
        return false;
    l->page = NULL;
    return true;
}

static enum ob_status hand_out(struct ob_source *s, size_t max, size_t max_bytes,
                               struct ob_batch **out, struct ob_err *err)
{
    struct log_state *l = s->state;
    int rows = count_rows(s, max, max_bytes);
    struct ob_batch *batch = ob_batch_new((size_t)rows, (size_t)2 << 30);
    enum ob_status st = batch ? fill_batch(s, &rows, batch, err)
                              : ob_err_set(err, OB_RETRY, "no memory for %d events", rows);
    if (st != OB_OK) {
        ob_batch_unref(batch);
        /* A row that was read and is gone: somebody truncated the table. Look again. */
        return st == OB_AGAIN ? ob_pg_round_lost(s, err->text, err) : st;
    }
    l->row += rows;
    l->given += (uint64_t)rows;
    l->last_ref = batch->events[batch->n - 1].ref;
    if (!keep_page(l, batch)) {
        ob_batch_unref(batch);
        return ob_pg_round_lost(s, "no memory for a page of events", err);
    }
    *out = batch;
    return OB_OK;
}

static enum ob_status pages(struct ob_source *s, size_t max, size_t max_bytes,
                            struct ob_batch **out, struct ob_err *err)
{
    struct log_state *l = s->state;
    enum ob_status st = OB_AGAIN;
    while (st == OB_AGAIN) {
        st = l->page ? OB_OK : next_page(s, err);
        if (st == OB_AGAIN)
            break;
        if (st == OB_OK)
            st = hand_out(s, max, max_bytes, out, err);
        for (size_t n = max / 2; st == OB_RETRY && n > 0; n /= 2) /* no memory for so many */
            st = hand_out(s, n, max_bytes / (max / n), out, err);
    }
    return st;
}

/* A commit with synchronous_commit = off is visible before it is on disk. The server's WAL writer
 * brings it there, and so does every beat of ours (test: only_what_is_on_disk). */
static enum ob_status flushed(struct ob_source *s, struct ob_err *err)
{
    struct log_state *l = s->state;
    PGresult *res = NULL;
    const struct pg_param p[] = {PG_TEXT(l->need_lsn)};
    if (!l->unflushed || (!l->page && (!l->late || PQntuples(l->late) == 0) &&
                          (!l->main || PQntuples(l->main) == 0)))
        return OB_OK;
    enum ob_status st = ob_pg_query(&s->sql, "select pg_current_wal_flush_lsn() >= $1::pg_lsn", p,
                                    1, true, &res, err);
    if (st != OB_OK)
        return st;
    l->unflushed = !ob_pg_bool(res, 0, 0);
    PQclear(res);
    if (!l->unflushed)
        return OB_OK;
    l->poll_at = ob_clock_mono_ms(s->clock) + 2;
    return OB_AGAIN;
}

/* Nothing was there: wait longer each time. */
static void go_idle(struct ob_source *s)
{
    struct log_state *l = s->state;
    l->idle_ms = l->more ? 0 : l->idle_ms ? l->idle_ms * 2 : 2;
    l->idle_ms = l->idle_ms > s->conf->poll_max_ms ? s->conf->poll_max_ms : l->idle_ms;
    l->poll_at = ob_clock_mono_ms(s->clock) + l->idle_ms;
    if (ob_pg_rung(s, &l->rd)) /* after that look was asked for */
        l->poll_at = l->idle_ms = 0;
}

static enum ob_status log_claim(struct ob_source *s, size_t max, size_t max_bytes,
                                struct ob_batch **out, struct ob_err *err)
{
    struct log_state *l = s->state;
    if (max == 0)
        return OB_AGAIN;
    if (ob_pg_rung(s, &l->rd) && !l->asked)
        l->poll_at = l->idle_ms = 0;
    /* While a round is under way there is no page, only parts of the round. */
    enum ob_status st = l->asked ? OB_OK : flushed(s, err);
    if (st != OB_OK)
        return st;
    st = l->asked ? OB_AGAIN : pages(s, max, max_bytes, out, err);
    if (st == OB_AGAIN && !l->asked && ob_clock_mono_ms(s->clock) >= l->poll_at) {
        st = ob_pg_round_send(s, err);
        if (st != OB_OK)
            return st;
        st = OB_AGAIN;
    }
    if (st == OB_AGAIN && l->asked) {
        st = ob_pg_round_take(s, err);
        if (st == OB_OK)
            st = flushed(s, err);
        if (st != OB_OK)
            return st;
        st = pages(s, max, max_bytes, out, err);
        if (st == OB_AGAIN)
            go_idle(s);
    }
    if (st != OB_OK)
        return st;
    l->idle_ms = 0;
    l->poll_at = ob_clock_mono_ms(s->clock) + 2;
    /* The server works on the next page meanwhile. A failure to ask shows with the next claim. */
    struct ob_err later;
    if (!l->page && !l->late && !l->main && l->more && !l->asked &&
        ob_pg_round_send(s, &later) != OB_OK)
        ob_log(s->log, OB_LOG_WARN, "source.read", OB_KC("error", later.text));
    return OB_OK;
}

/* ---- start and stop ---- */

static void drop_results(struct log_state *l)
{
    PGresult **const all[] = {&l->late, &l->main, &l->snap_res, &l->page};
    for (size_t i = 0; i < 4; i++) {
        PQclear(*all[i]);
        *all[i] = NULL;
    }
    free(l->skip);
    l->skip = NULL;
    l->unflushed = false;
}

static void log_stop(struct ob_source *s)
{
    struct log_state *l = s->state;
    if (!l)
        return;
    drop_results(l);
    ob_pg_ring_clear(&l->ring);
    ob_pg_past_clear(l);
    ob_pg_ahead_clear(&l->ahead);
    ob_pg_place_clear(&l->at);
    ob_pg_place_clear(&l->durable);
    ob_pg_place_clear(&l->complete_at);
    ob_pg_close(&l->rd);
    free(l);
    s->state = NULL;
}

static enum ob_status load_place(struct ob_source *s, struct ob_err *err)
{
    struct log_state *l = s->state;
    char shard[12];
    PGresult *res = NULL;
    snprintf(shard, sizeof(shard), "%u", s->shard);
    const struct pg_param p[] = {PG_TEXT(s->pipeline), PG_TEXT(shard)};
    enum ob_status st = ob_pg_query(
        &s->sql,
        "select pos, snap::text, late_pos, late_snap::text, base, coalesce(fence::text, '0'), "
        "coalesce(adopt_pos, -1) from outbox.cursor where pipeline = $1 and shard = $2::int",
        p, 2, false, &res, err);
    if (st != OB_OK)
        return st;
    if (PQntuples(res) != 1) {
        PQclear(res);
        return ob_err_set(err, OB_RETRY, "outbox.cursor has lost its row");
    }
    bool late = !PQgetisnull(res, 0, 3);
    l->durable = (struct place){
        .pos = strtoll(PQgetvalue(res, 0, 0), NULL, 10),
        .snap = ob_pg_snap_new(PQgetvalue(res, 0, 1)),
        .late_pos = strtoll(PQgetvalue(res, 0, 2), NULL, 10),
        .late_snap = late ? ob_pg_snap_new(PQgetvalue(res, 0, 3)) : NULL,
        .adopt_pos = strtoll(PQgetvalue(res, 0, 6), NULL, 10),
    };
    l->base = strtoll(PQgetvalue(res, 0, 4), NULL, 10);
    l->durable_fence = strtoull(PQgetvalue(res, 0, 5), NULL, 10);
    PQclear(res);
    if (!l->durable.snap || (late && !l->durable.late_snap))
        return ob_err_set(err, OB_DOWN, "no memory");
    /* The one that was given with this very cursor is the closest bound there is; else that of our
     * epoch, which is later than any stored snapshot. */
    s->fence_first = l->durable_fence ? l->durable_fence : s->fence;
    ob_pg_place_set(&l->at, &l->durable);
    return OB_OK;
}

static enum ob_status log_start(struct ob_source *s, struct ob_err *err)
{
    struct log_state *l = calloc(1, sizeof(*l));
    if (!l)
        return ob_err_set(err, OB_DOWN, "no memory");
    l->at.adopt_pos = l->durable.adopt_pos = -1;
    l->limit = s->conf->page;
    s->state = l;
    enum ob_status st = load_place(s, err);
    if (st == OB_OK)
        st = ob_pg_ahead_load(s, &l->ahead, err);
    if (st == OB_OK)
        st = load_recorded(s, err);
    if (st == OB_OK)
        st = ob_pg_past_load(s, err);
    if (st == OB_OK)
        st = ob_pg_connect(&l->rd, s->conf->dsn, "outbox reader", false, s->clock,
                           s->conf->timeout_ms, err);
    if (st == OB_OK)
        st = ob_pg_listen(s, &l->rd, err);
    if (st == OB_OK)
        st = ob_pg_round_prepare(l, err);
    if (st == OB_OK && s->conf->require_flushed)
        st = ob_pg_exec(&s->sql, "set synchronous_commit = on", err); /* a beat flushes */
    return st;
}

static int log_wait_fd(const struct ob_source *s)
{
    const struct log_state *l = s->state;
    return l && (l->asked || s->conf->wake == PG_WAKE_NOTIFY) ? ob_pg_fd(&l->rd) : -1;
}

static int64_t log_wake_at(const struct ob_source *s)
{
    const struct log_state *l = s->state;
    if (!l)
        return INT64_MAX;
    return l->asked ? l->answer_by : l->poll_at;
}

static bool log_looking(const struct ob_source *s)
{
    const struct log_state *l = s->state;
    return l && (l->asked || l->more || l->page || l->late || l->main);
}

/* Back to the durable place; a round that is under way is waited for and thrown away. */
static void log_rewind(struct ob_source *s)
{
    struct log_state *l = s->state;
    struct ob_err err;
    if (!l)
        return;
    ob_pg_round_cancel(s);
    if (!s->state)
        return;
    l->failed = OB_OK;
    drop_results(l);
    ob_pg_ring_drop(&l->ring, l->ring.tail);
    l->given = l->last_ref = l->ring.tail;
    l->more = false;
    l->complete = 0; /* a peek compares with a complete round: there is none now */
    l->poll_at = l->idle_ms = 0;
    s->fence_first = l->durable_fence;
    ob_pg_place_set(&l->at, &l->durable);
    ob_ahead_unclaimed(&l->ahead.set);
    l->at_own = false;
    if (load_recorded(s, &err) != OB_OK)
        l->recorded_max = INT64_MAX; /* every page is looked up */
}

/* ---- settling ---- */

static void write_place(struct log_state *l, const struct place *at, struct pg_cursor *out)
{
    snprintf(l->numbers[0], sizeof(l->numbers[0]), "%" PRId64, at->pos);
    snprintf(l->numbers[1], sizeof(l->numbers[1]), "%" PRId64, at->late_pos);
    snprintf(l->numbers[2], sizeof(l->numbers[2]), "%" PRId64, at->adopt_pos);
    *out = (struct pg_cursor){.pos = l->numbers[0],
                              .snap = at->snap->text,
                              .late_pos = l->numbers[1],
                              .late_snap = at->late_snap ? at->late_snap->text : NULL,
                              .adopt_pos = at->adopt_pos >= 0 ? l->numbers[2] : NULL};
}

static void log_cursor(struct ob_source *s, const struct ob_settle *settle, struct pg_cursor *out)
{
    struct log_state *l = s->state;
    const struct place_entry *e = settle->moved ? ob_pg_ring_at(&l->ring, settle->ref) : NULL;
    if (e)
        write_place(l, &e->at, out);
    const struct place *at = e ? &e->at : l->own_place ? &l->durable : NULL;
    ob_pg_ahead_next(&l->ahead, ob_pg_log_ahead(l, settle, at), out);
}

static void log_settled(struct ob_source *s, const struct ob_settle *settle)
{
    struct log_state *l = s->state;
    const struct place_entry *e = settle->moved ? ob_pg_ring_at(&l->ring, settle->ref) : NULL;
    ob_pg_ahead_stored(&l->ahead);
    if (!e)
        return;
    ob_pg_place_set(&l->durable, &e->at);
    l->own_place = !l->durable.late_snap && l->durable.adopt_pos < 0;
    l->durable_fence = s->fence;
    ob_pg_ring_drop(&l->ring, settle->ref);
}

/* Everything that was handed out is settled, so what was read is: the snapshot moves on although
 * nothing comes, and old partitions can go. */
static bool log_rest(struct ob_source *s, struct pg_cursor *out)
{
    struct log_state *l = s->state;
    bool handed =
        !l->page && (!l->late || PQntuples(l->late) == 0) && (!l->main || PQntuples(l->main) == 0);
    if (!handed || l->ring.head < l->last_ref)
        return false;
    write_place(l, &l->at, out);
    return true;
}

static void log_rested(struct ob_source *s)
{
    struct log_state *l = s->state;
    ob_pg_place_set(&l->durable, &l->at);
    l->own_place = (l->at_own || l->own_place) && !l->durable.late_snap && l->durable.adopt_pos < 0;
    l->durable_fence = s->fence;
    ob_pg_ring_drop(&l->ring, l->ring.tail);
}

static bool log_already(const struct ob_source *s, uint64_t ref, uint64_t hash)
{
    const struct log_state *l = s->state;
    if (!l || l->n_past == 0)
        return false;
    const struct place_entry *e = ob_pg_ring_at(&l->ring, ref);
    return e && ob_pg_past_settled(l, e->seq, e->xid, hash);
}

/* ---- parked events ---- */

static void log_ref(const struct ob_source *s, const struct ob_event *ev, struct ob_buf *out)
{
    (void)s;
    ob_buf_printf(out, "%" PRIu64, ev->seq);
}

/* Rows of a result whose column after the event's is its place in the batch, rising. *bytes: of
 * all their columns; when they are enough, batch->n is the place of the last one taken. */
static enum ob_status take_rows(struct ob_source *s, PGresult *res, struct ob_batch *batch,
                                size_t *bytes, struct ob_err *err)
{
    enum ob_status st = OB_OK;
    if (!ob_arena_keep(batch->arena, page_drop, res, PQresultMemorySize(res))) {
        PQclear(res);
        return ob_err_set(err, OB_DOWN, "no memory for a page of events");
    }
    for (int row = 0; st == OB_OK && row < PQntuples(res) && batch->n == 0; row++) {
        size_t place = (size_t)ob_pg_i64(res, row, PG_EVENT_N);
        struct ob_event *ev = &batch->events[place - 1];
        size_t size = ob_pg_event_size(res, row, 0, &s->limits);
        if (!ob_pg_event(res, row, 0, batch->arena, ev))
            st = ob_err_set(err, OB_DOWN, "no memory");
        else if (ob_pg_event_partial(res, row, 0, true))
            st = read_alone(s, place == 1, size, batch->arena, ev, err);
        if (st == OB_AGAIN) {
            *ev = (struct ob_event){0};
            st = OB_OK;
        }
        if (st == OB_RETRY) { /* those before it are enough */
            batch->n = place - 1;
            return OB_OK;
        }
        *bytes += size;
        if (*bytes >= FETCH_BYTES && row + 1 < PQntuples(res))
            batch->n = place;
    }
    return st;
}

/* One of them by itself. */
static enum ob_status read_gone(struct ob_source *s, struct ob_str ref, struct ob_arena *arena,
                                struct ob_event *ev, struct ob_err *err)
{
    struct ob_str z = ob_arena_copy(arena, ref);
    const struct pg_event_from from = {
        .sql = "outbox.parked p cross join lateral outbox.unpack(p.event, p.payload, p.seq) e "
               "where p.pipeline = $4 and p.ref = $5",
        .params = {s->pipeline, z.p},
        .n = 2};
    if (!z.p)
        return ob_err_set(err, OB_DOWN, "no memory");
    return ob_pg_event_read(&s->sql, &from, true, &s->limits, arena, ev, err);
}

/* Rows that outlived their partition: few. */
static enum ob_status take_gone(struct ob_source *s, const struct ob_str *refs, PGresult *res,
                                struct ob_batch *batch, struct ob_err *err)
{
    if (!ob_arena_keep(batch->arena, page_drop, res, PQresultMemorySize(res))) {
        PQclear(res);
        return ob_err_set(err, OB_DOWN, "no memory for a page of events");
    }
    enum ob_status st = OB_OK;
    for (int row = 0; st == OB_OK && row < PQntuples(res); row++) {
        size_t place = (size_t)ob_pg_i64(res, row, PG_EVENT_N) - 1;
        struct ob_event *ev = &batch->events[place];
        if (!ob_pg_event(res, row, 0, batch->arena, ev))
            return ob_err_set(err, OB_DOWN, "no memory");
        if (ob_pg_event_partial(res, row, 0, true))
            st = read_gone(s, refs[place], batch->arena, ev, err);
    }
    return st == OB_REJECT ? OB_DOWN : st;
}

enum ob_status ob_pg_native_fetch(struct ob_source *s, const struct ob_str *refs, size_t n,
                                  struct ob_batch *batch, struct ob_err *err)
{
    PGresult *res = NULL;
    bool missing = false;
    size_t bytes = 0;
    for (size_t i = 0; i < n; i++)
        batch->events[i] = (struct ob_event){0};
    ob_pg_array_begin(&s->array[0]);
    for (size_t i = 0; i < n; i++)
        ob_pg_array_add(&s->array[0], refs[i]);
    const char *array = ob_pg_array_end(&s->array[0]);
    const struct pg_param p[] = {PG_TEXT(s->pipeline), PG_TEXT(array)};
    enum ob_status st = ob_pg_query(&s->sql,
                                    "select " PG_EVENT_COLUMNS
                                    ", t.i from unnest($2::bigint[]) with ordinality as t(seq, i) "
                                    "join outbox.event e on e.seq = t.seq where $1::text <> '' "
                                    "order by t.i",
                                    p, 2, true, &res, err);
    if (st == OB_OK)
        st = take_rows(s, res, batch, &bytes, err);
    for (size_t i = 0; i < (batch->n ? batch->n : n); i++)
        missing = missing || !batch->events[i].id.p;
    if (st != OB_OK || !missing)
        return st;
    /* Those whose partition was retired have their event with them. */
    res = NULL;
    st = ob_pg_query(&s->sql,
                     "select " PG_EVENT_COLUMNS
                     ", t.i from unnest($2::text[]) with ordinality as t(ref, i) join "
                     "outbox.parked p on p.pipeline = $1 and p.ref = t.ref and p.event is not null "
                     "cross join lateral outbox.unpack(p.event, p.payload, p.seq) e order by t.i",
                     p, 2, true, &res, err);
    return st == OB_OK ? take_gone(s, refs, res, batch, err) : st;
}

static enum ob_status log_status(struct ob_source *s, struct ob_source_status *out,
                                 struct ob_err *err)
{
    const struct log_state *l = s->state;
    enum ob_status st = ob_pg_status_native(&s->sql, s->pipeline, l->durable.pos, out, err);
    int64_t ahead = (int64_t)l->ahead.set.n;
    if (st == OB_OK)
        out->pending -= out->pending < ahead ? out->pending : ahead;
    return st;
}

const struct pg_reader ob_pg_log = {
    .name = "log",
    .log = true,
    .start = log_start,
    .stop = log_stop,
    .wait_fd = log_wait_fd,
    .wake_at = log_wake_at,
    .claim = log_claim,
    .looking = log_looking,
    .rewind = log_rewind,
    .already = log_already,
    .cursor = log_cursor,
    .settled = log_settled,
    .rest = log_rest,
    .rested = log_rested,
    .ref = log_ref,
    .fetch = ob_pg_native_fetch,
    .status = log_status,
};
