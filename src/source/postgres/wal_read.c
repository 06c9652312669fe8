/* SPDX-License-Identifier: Apache-2.0 */
/* wal_read - from frames to a batch of events, in the order of commits.
 *
 * Each row of ours has an ordinal, which is the event's ref. Transactions that have events in
 * flight stand in a ring; it maps an ordinal to the position that is settled with it: inside a
 * transaction (its commit record, and how many of its rows), or behind it. The same two numbers
 * tell where to go on after a lost connection: the server sends a transaction always whole and in
 * the same order. */
#include "source/postgres/wal.h"

#include <stdlib.h>

#define CHUNK_MIN ((size_t)2 << 10)
#define CHUNK_MAX ((size_t)64 << 10)
#define KEEP_BYTES                                                                                 \
    ((size_t)16 << 10) /* larger frames are kept as they came, smaller ones copied                 \
                        */
#define EVENT_BYTES 64 /* what an event costs beside its frame, roughly */

/* ---- the ring ---- */

static struct wal_txn *last_txn(struct wal_ring *r)
{
    return r->n ? &r->of[(r->head + r->n - 1) % r->cap] : NULL;
}

static bool ring_add(struct wal_ring *r, struct wal_txn txn)
{
    if (!r->of || r->n == r->cap) {
        size_t cap = r->cap ? r->cap * 2 : 256;
        struct wal_txn *of = malloc(cap * sizeof(*of));
        if (!of)
            return false;
        for (size_t i = 0; r->of && i < r->n; i++)
            of[i] = r->of[(r->head + i) % r->cap];
        free(r->of);
        *r = (struct wal_ring){.of = of, .cap = cap, .n = r->n};
    }
    r->of[(r->head + r->n++) % r->cap] = txn;
    return true;
}

/* The first transaction whose last ordinal is at or behind ref; r->n: none. */
static size_t ring_find(const struct wal_ring *r, uint64_t ref)
{
    size_t lo = 0, hi = r->n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (r->of[(r->head + mid) % r->cap].last < ref)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

bool ob_pg_wal_at(const struct wal_state *w, uint64_t ref, struct wal_pos *out)
{
    const struct wal_ring *r = &w->ring;
    size_t i = ring_find(r, ref);
    if (i == r->n)
        return false;
    const struct wal_txn *t = &r->of[(r->head + i) % r->cap];
    if (ref < t->first)
        return false;
    if (ref == t->last && t->end_lsn)
        *out = (struct wal_pos){t->end_lsn, 0};
    else
        *out = (struct wal_pos){t->lsn, t->rows + (ref - t->first) + 1};
    return true;
}

bool ob_pg_wal_row(const struct wal_state *w, uint64_t ref, struct wal_pos *out)
{
    const struct wal_ring *r = &w->ring;
    size_t i = ring_find(r, ref);
    const struct wal_txn *t = i < r->n ? &r->of[(r->head + i) % r->cap] : NULL;
    if (!t || ref < t->first)
        return false;
    *out = (struct wal_pos){t->lsn, t->rows + (ref - t->first) + 1};
    return true;
}

void ob_pg_wal_settled(struct wal_state *w, uint64_t ref)
{
    struct wal_ring *r = &w->ring;
    w->settled = ref > w->settled ? ref : w->settled;
    while (r->n > 0) { /* one that is still read stays: its rows have one entry */
        const struct wal_txn *t = &r->of[r->head];
        if (t->last > ref || !t->end_lsn)
            return;
        r->head = (r->head + 1) % r->cap;
        r->n--;
    }
}

bool ob_pg_wal_ring_note(struct wal_state *w, uint64_t first, uint64_t last)
{
    return ring_add(
        &w->ring,
        (struct wal_txn){.first = first, .last = last, .lsn = w->read.lsn, .end_lsn = w->read.lsn});
}

/* A row of the transaction that is being read. False: no memory. */
static bool count_row(struct wal_state *w)
{
    struct wal_txn *t = last_txn(&w->ring);
    w->given++;
    w->read = (struct wal_pos){w->txn_lsn, w->txn_rows};
    if (t && t->lsn == w->txn_lsn && !t->end_lsn) {
        t->last = w->given;
        return true;
    }
    return ring_add(&w->ring, (struct wal_txn){.first = w->given,
                                               .last = w->given,
                                               .lsn = w->txn_lsn,
                                               .rows = w->txn_rows - 1});
}

/* ---- messages ---- */

static void begin(struct ob_source *s, const struct pgo_msg *m)
{
    struct wal_state *w = wal_of(s);
    w->in_txn = true;
    w->txn_lsn = m->lsn;
    w->txn_rows = 0;
    w->txn_time_us = m->time_us;
    w->txn_xid = ob_pgo_xid(m->xid, s->fence);
    w->skip_txn = m->lsn < w->resume.lsn || (w->seen && w->txn_xid < w->seen_xmax &&
                                             ob_pg_snap_shows(w->seen->text, w->txn_xid));
    w->waiting = w->wait_visible && !w->skip_txn;
}

static void commit(struct wal_state *w, const struct pgo_msg *m)
{
    struct wal_txn *t = last_txn(&w->ring);
    struct wal_pos behind = {m->end_lsn, 0};
    w->in_txn = w->waiting = false;
    if (t && t->lsn == m->lsn)
        t->end_lsn = m->end_lsn;
    if (wal_behind(w->read, behind))
        w->read = behind;
}

static enum ob_status relation(struct ob_source *s, const struct pgo_msg *m, struct ob_err *err)
{
    struct wal_state *w = wal_of(s);
    const struct ob_mapping *map = &s->conf->mapping;
    if (s->conf->message_prefix[0] || !ob_str_eqc(m->space, w->map ? map->schema : "outbox") ||
        !ob_str_eqc(m->name, w->map ? map->table : "event"))
        return OB_OK;
    return w->map ? ob_pg_wal_map_table(w, m, err) : ob_pg_wal_map_native(&w->table, m, err);
}

/* A row that was handed out before this connection, or read from the table. */
static bool passed(const struct wal_state *w)
{
    return w->skip_txn || (w->txn_lsn == w->resume.lsn && w->txn_rows <= w->resume.rows);
}

/* Rows of tables that are not ours come with a publication that has more than ours. */
static void other_table(struct ob_source *s)
{
    struct wal_state *w = wal_of(s);
    if (!w->told_other)
        ob_log(s->log, OB_LOG_WARN, "wal.other",
               OB_KC("error", "the publication has rows of other tables; they are passed over"));
    w->told_other = true;
}

static bool mine(struct ob_source *s, const struct pgo_msg *m)
{
    struct wal_state *w = wal_of(s);
    if (m->kind == PGO_INSERT) {
        bool ours = w->table.known && m->relation == w->table.relation;
        if (!ours)
            other_table(s);
        return ours && w->in_txn;
    }
    if (m->kind != PGO_MESSAGE || !s->conf->message_prefix[0] ||
        !ob_str_eqc(m->name, s->conf->message_prefix))
        return false;
    if (!m->transactional && !w->told_plain) {
        w->told_plain = true;
        ob_log(s->log, OB_LOG_WARN, "wal.message",
               OB_KC("error", "a message that is not transactional is no event: it would be there "
                              "although its transaction was rolled back"));
    }
    return m->transactional && w->in_txn;
}

static enum ob_status add_event(struct ob_source *s, const struct pgo_msg *m, struct ob_err *err)
{
    struct wal_state *w = wal_of(s);
    struct ob_event *ev = &w->events[w->n_events];
    enum ob_status st = m->kind == PGO_MESSAGE
                            ? ob_pg_wal_message(m, w->txn_time_us, &s->limits, w->arena, ev, err)
                        : w->map ? ob_pg_wal_mapped(w, m, &s->limits, w->arena, ev, err)
                                 : ob_pg_wal_native(&w->table, m, &s->limits, w->arena, ev, err);
    if (st == OB_OK && (!count_row(w) || !ob_pg_wal_ahead_note(s, ev)))
        st = ob_err_set(err, OB_DOWN, "no memory for a transaction");
    if (st != OB_OK)
        return st;
    ev->ref = w->given;
    w->verify = w->verify || w->txn_lsn < w->check_lsn;
    w->n_events++;
    return OB_OK;
}

static enum ob_status handle(struct ob_source *s, struct ob_str data, uint64_t lsn,
                             struct ob_err *err)
{
    struct wal_state *w = wal_of(s);
    struct pgo_msg m;
    enum ob_status st = ob_pgo_decode(data, w->room, &m, err);
    if (st != OB_OK)
        return st;
    switch (m.kind) {
    case PGO_BEGIN:
        begin(s, &m);
        return OB_OK;
    case PGO_COMMIT:
        commit(w, &m);
        return OB_OK;
    case PGO_RELATION:
        return relation(s, &m, err);
    case PGO_INSERT:
    case PGO_MESSAGE:
        if (!mine(s, &m))
            return OB_OK;
        w->txn_rows++;
        w->row_no = w->row_lsn == lsn && w->txn_rows > 1 ? w->row_no + 1 : 0;
        w->row_lsn = lsn;
        return passed(w) ? OB_OK : add_event(s, &m, err);
    case PGO_ORIGIN:
    case PGO_TYPE:
    case PGO_UPDATE:   /* of the table: an event is what was inserted */
    case PGO_DELETE:   /* likewise (test: "rows may be changed and deleted") */
    case PGO_TRUNCATE: /* likewise */
        return OB_OK;
    }
    return OB_OK;
}

static void frame_drop(void *buf)
{
    PQfreemem(buf);
}

/* There is no memory for this event: after several times in a row it is dead. */
static enum ob_status mark_unfit(struct ob_source *s, struct ob_event *ev, size_t n,
                                 struct ob_err *err)
{
    struct wal_state *w = wal_of(s);
    /* Counted for all: several such events in one page would hide each other. */
    bool dead = ob_unfit_note(&s->unfit, OB_STR("wal"));
    ev->id = ob_arena_copy(w->arena, ev->id);
    if (!dead || !ev->id.p || !ob_limits_no_memory(ev, n, w->arena))
        return ob_err_set(err, OB_DOWN, "no memory for an event of %zu bytes", n);
    return OB_OK;
}

/* A large frame belongs to the arena if the event needs it. Of an event over a limit only little is
 * left, which is copied. */
static enum ob_status take_large(struct ob_source *s, char *buf, size_t n,
                                 const struct pgo_frame *f, struct ob_err *err)
{
    struct wal_state *w = wal_of(s);
    size_t before = w->n_events;
    enum ob_status st = handle(s, f->data, f->start, err);
    if (st != OB_OK || w->n_events == before) {
        PQfreemem(buf);
        return st;
    }
    struct ob_event *ev = &w->events[before];
    if (ev->settled) {
        PQfreemem(buf);
        return OB_OK;
    }
    bool ok = ob_limits_check(&s->limits, ev, w->arena);
    size_t bytes = ob_event_bytes(ev);
    if (ok && bytes >= n / 2 && ob_arena_keep(w->arena, frame_drop, buf, n)) {
        w->bytes += n;
        return OB_OK;
    }
    if (!ok || bytes >= n / 2 || !ob_event_own(ev, w->arena))
        st = mark_unfit(s, ev, n, err);
    w->bytes += bytes;
    PQfreemem(buf);
    return st;
}

/* Rows are decoded where they stay: in the batch's arena, or in the frame itself. */
static enum ob_status take_data(struct ob_source *s, char *buf, size_t n, const struct pgo_frame *f,
                                struct ob_err *err)
{
    struct wal_state *w = wal_of(s);
    struct ob_str data = f->data;
    bool row = data.n > 0 && (data.p[0] == PGO_INSERT || data.p[0] == PGO_MESSAGE);
    enum ob_status st;
    if (!row || w->skip_txn) {
        st = handle(s, data, f->start, err);
        PQfreemem(buf);
        return st;
    }
    w->bytes += EVENT_BYTES;
    if (n >= KEEP_BYTES)
        return take_large(s, buf, n, f, err);
    w->bytes += n;
    data = ob_arena_copy(w->arena, data);
    PQfreemem(buf);
    if (!data.p)
        return ob_err_set(err, OB_DOWN, "no memory for an event of %zu bytes", n);
    return handle(s, data, f->start, err);
}

static enum ob_status take_frame(struct ob_source *s, char *buf, size_t n, struct ob_err *err)
{
    struct wal_state *w = wal_of(s);
    struct pgo_frame f;
    enum ob_status st = ob_pgo_frame((struct ob_str){buf, n}, &f, err);
    if (st == OB_OK && !f.keepalive)
        return take_data(s, buf, n, &f, err);
    PQfreemem(buf);
    if (st != OB_OK)
        return st;
    /* All that was committed below this was sent before it. */
    if (!w->in_txn && w->read.lsn < f.end)
        w->read = (struct wal_pos){f.end, 0};
    if (f.reply)
        ob_pg_wal_report(s, false);
    return OB_OK;
}

/* ---- batches ---- */

enum ob_status ob_pg_wal_recorded(struct ob_source *s, struct ob_err *err)
{
    struct wal_state *w = wal_of(s);
    PGresult *res = NULL;
    const struct pg_param p[] = {PG_TEXT(s->pipeline)};
    enum ob_status st = ob_pg_query(
        &s->sql,
        "select greatest((select seq from outbox.parked where pipeline = $1 and seq is not null "
        "order by seq desc limit 1), (select seq from outbox.dead where pipeline = $1 and seq is "
        "not null order by seq desc limit 1), 0)",
        p, 1, true, &res, err);
    if (st == OB_OK)
        w->recorded_max = ob_pg_i64(res, 0, 0);
    PQclear(res);
    return st;
}

/* Events that were parked or are dead already, before the position passed them, are settled: their
 * rows have the attempts. */
static enum ob_status find_recorded(struct ob_source *s, struct ob_err *err)
{
    struct wal_state *w = wal_of(s);
    PGresult *res = NULL;
    bool any = false;
    for (size_t i = 0; i < w->n_events && !any; i++)
        any = !w->events[i].settled && w->events[i].seq <= (uint64_t)w->recorded_max;
    if (!any)
        return OB_OK;
    ob_pg_array_begin(&s->array[0]);
    for (size_t i = 0; i < w->n_events; i++)
        ob_pg_array_int(&s->array[0], (int64_t)w->events[i].seq);
    const struct pg_param p[] = {PG_TEXT(s->pipeline), PG_TEXT(ob_pg_array_end(&s->array[0]))};
    enum ob_status st = ob_pg_query(
        &s->sql,
        "select t.i from unnest($2::bigint[]) with ordinality as t(seq, i) where exists (select 1 "
        "from outbox.parked p where p.pipeline = $1 and p.seq = t.seq) or exists (select 1 from "
        "outbox.dead d where d.pipeline = $1 and d.seq = t.seq)",
        p, 2, true, &res, err);
    for (int i = 0; st == OB_OK && i < PQntuples(res); i++) {
        struct ob_event *ev = &w->events[ob_pg_i64(res, i, 0) - 1];
        *ev = (struct ob_event){.ref = ev->ref, .settled = true};
    }
    PQclear(res);
    return st;
}

static void map_drop(void *arena)
{
    ob_arena_unref(arena);
}

/* The events go into their arena, and the batch with them. Names of columns are the mapping's,
 * which lives as long. */
static struct ob_batch *make_batch(struct wal_state *w)
{
    struct ob_batch *batch = ob_arena_zalloc(w->arena, sizeof(*batch));
    struct ob_event *events = ob_arena_alloc(w->arena, w->n_events * sizeof(*events));
    if (!batch || !events)
        return NULL;
    if (w->map && !ob_arena_keep(w->arena, map_drop, ob_arena_ref(w->map->arena), 0)) {
        ob_arena_unref(w->map->arena);
        return NULL;
    }
    memcpy(events, w->events, w->n_events * sizeof(*events));
    batch->arena = w->arena;
    batch->events = events;
    batch->n = w->n_events;
    w->handed = events[batch->n - 1].ref;
    w->last_used = ob_arena_used(w->arena);
    w->arena = NULL;
    return batch;
}

static enum ob_status read_frames(struct ob_source *s, size_t max, size_t max_bytes,
                                  struct ob_err *err)
{
    struct wal_state *w = wal_of(s);
    enum ob_status st = OB_OK;
    while (st == OB_OK && w->n_events < max && (w->n_events == 0 || w->bytes < max_bytes)) {
        char *buf = NULL;
        size_t n = 0;
        if (w->waiting)
            st = ob_pg_wal_visible(s, err);
        if (st == OB_OK)
            st = ob_pg_wal_frame(s, &buf, &n, err);
        if (st == OB_OK)
            st = take_frame(s, buf, n, err);
    }
    return st;
}

static bool take_arena(struct wal_state *w)
{
    size_t chunk = w->last_used < CHUNK_MIN   ? CHUNK_MIN
                   : w->last_used > CHUNK_MAX ? CHUNK_MAX
                                              : w->last_used;
    if (w->arena)
        ob_arena_reset(w->arena); /* rows that were passed over */
    else
        w->arena = ob_arena_new(chunk, (size_t)2 << 30);
    return w->arena != NULL;
}

enum ob_status ob_pg_wal_read(struct ob_source *s, size_t max, size_t max_bytes,
                              struct ob_batch **out, struct ob_err *err)
{
    struct wal_state *w = wal_of(s);
    enum ob_status got = OB_OK, st = OB_OK;
    struct ob_batch *batch = NULL;
    max = max < (size_t)s->conf->page ? max : (size_t)s->conf->page;
    do {
        w->n_events = w->bytes = 0;
        got = take_arena(w) ? read_frames(s, max, max_bytes, err)
                            : ob_err_set(err, OB_DOWN, "no memory for events");
        if (!s->wal) /* the shard is lost, and all this with it */
            return got;
        if (got != OB_OK && got != OB_AGAIN)
            break;
        st = w->rows ? ob_pg_wal_rows_keep(s, err) : find_recorded(s, err);
    } while (st == OB_OK && w->n_events == 0 && got == OB_OK);
    if (st == OB_OK && w->n_events == 0 && got == OB_AGAIN)
        return OB_AGAIN;
    if (st == OB_OK && (got == OB_OK || got == OB_AGAIN))
        batch = make_batch(w);
    if (!batch) { /* what was read and is not handed out is read again */
        if (st == OB_OK && (got == OB_OK || got == OB_AGAIN))
            ob_err_set(err, OB_DOWN, "no memory for events");
        ob_pg_lost(s);
        err->status = OB_FENCED;
        return OB_FENCED;
    }
    *out = batch;
    w->failures = 0;
    return OB_OK;
}
