/* SPDX-License-Identifier: Apache-2.0 */
/* log - mode log: order is the number, visibility decides the set (docs/sources/postgres.md has the
 * proof).
 *
 * The position is (pos, snap) and, while a pass over late rows takes several pages, (late_pos,
 * late_snap). A round is one REPEATABLE READ transaction on its own session, pipelined in one round
 * trip: LATE (numbers at or below pos that became visible since snap), then MAIN (numbers above
 * pos). LATE comes before MAIN, always. The next round is asked for as soon as a full page is here,
 * so the server works while the events are routed.
 *
 * Each claimed event has an ordinal (its ref); `entries` maps it to the cursor that is valid once
 * everything up to it is settled. */
#include "source/postgres/log.h"

#include "core/uuid.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define INLINE_MAX                                                                                 \
    "8192" /* larger payloads are fetched one by one, so that a page has a size that is known */
#define COLUMNS                                                                                    \
    "e.seq, e.id, e.type, e.aggregate_type, e.aggregate_id, e.key, e.tenant, e.topic, "            \
    "case when octet_length(e.payload) <= " INLINE_MAX                                             \
    " then e.payload end, octet_length(e.payload), "                                               \
    "e.payload_kind, e.headers, e.metadata, e.entity_version, e.schema_version, e.max_attempts, "  \
    "e.created_at, e.xid"

static const char *const statements[][2] = {
    {"late_first",
     "with l as materialized (select x from pg_snapshot_xip($2::pg_snapshot) x where "
     "pg_visible_in_snapshot(x, "
     "pg_current_snapshot()) union select xid from outbox.event where xid >= "
     "pg_snapshot_xmax($2::pg_snapshot) and "
     "xid < least(pg_snapshot_xmax(pg_current_snapshot()), $4::text::xid8) and seq <= $1::bigint) "
     "select " COLUMNS " from l cross join lateral (select * from outbox.event where (xid, seq) > "
                       "(l.x, $3::bigint) and "
     "(xid, seq) <= (l.x, $1::bigint) order by xid, seq limit $5::bigint) e order by e.seq limit "
     "$5::bigint"},
    {"late_next",
     "with l as materialized (select x from pg_snapshot_xip($2::pg_snapshot) x where "
     "pg_visible_in_snapshot(x, "
     "$6::pg_snapshot) union select xid from outbox.event where xid >= "
     "pg_snapshot_xmax($2::pg_snapshot) and "
     "xid < least(pg_snapshot_xmax($6::pg_snapshot), $4::text::xid8) and seq <= $1::bigint and "
     "pg_visible_in_snapshot(xid, $6::pg_snapshot)) "
     "select " COLUMNS " from l cross join lateral (select * from outbox.event where (xid, seq) > "
                       "(l.x, $3::bigint) and "
     "(xid, seq) <= (l.x, $1::bigint) order by xid, seq limit $5::bigint) e order by e.seq limit "
     "$5::bigint"},
    {"main", "select " COLUMNS
             " from outbox.event e where e.seq > $1::bigint order by e.seq limit $2::bigint"},
    {"snapshot", "select pg_current_snapshot()::text"},
    {"begin", "begin isolation level repeatable read read only"},
    {"commit", "commit"},
};
#define N_STATEMENTS (sizeof(statements) / sizeof(statements[0]))

/* ---- snapshots and rounds ---- */

static struct snap *snap_new(const char *text)
{
    size_t n = strlen(text);
    struct snap *x = malloc(sizeof(*x) + n + 1);
    if (x) {
        x->refs = 1;
        memcpy(x->text, text, n + 1);
    }
    return x;
}

static struct snap *snap_ref(struct snap *x)
{
    if (x)
        x->refs++;
    return x;
}

static void snap_unref(struct snap *x)
{
    if (x && --x->refs == 0)
        free(x);
}

static void snap_set(struct snap **at, struct snap *x)
{
    snap_ref(x);
    snap_unref(*at);
    *at = x;
}

static void place_clear(struct place *p)
{
    snap_unref(p->snap);
    snap_unref(p->late_snap);
    *p = (struct place){0};
}

static void place_set(struct place *to, const struct place *from)
{
    snap_set(&to->snap, from->snap);
    snap_set(&to->late_snap, from->late_snap);
    to->pos = from->pos;
    to->late_pos = from->late_pos;
}

/* Remembers what the cursor is once event number `ordinal` and all before it are settled. */
static bool entry_add(struct log_state *l, const struct place *at)
{
    if (l->tail - l->head == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 4096;
        struct place *grown = calloc(cap, sizeof(*grown));
        if (!grown)
            return false;
        for (uint64_t i = l->head; i < l->tail; i++)
            grown[i % cap] = l->entries[i % l->cap];
        free(l->entries);
        l->entries = grown;
        l->cap = cap;
    }
    struct place *e = &l->entries[l->tail % l->cap];
    *e = (struct place){0};
    place_set(e, at);
    l->tail++;
    return true;
}

static void entries_drop(struct log_state *l, uint64_t to)
{
    for (; l->head < to && l->head < l->tail; l->head++)
        place_clear(&l->entries[l->head % l->cap]);
}

/* ---- pages ---- */

static void page_drop(void *arg)
{
    PQclear(arg);
}

static struct ob_str text(const PGresult *res, int row, int col)
{
    return ob_pg_null(res, row, col) ? (struct ob_str){0} : ob_pg_str(res, row, col);
}

static int64_t version(const PGresult *res, int row, int col)
{
    return ob_pg_null(res, row, col) ? OB_NO_VERSION : ob_pg_i64(res, row, col);
}

/* Fills ev from a row of COLUMNS; slices point into the result, which the batch keeps. */
static bool row_event(const PGresult *res, int row, struct ob_arena *arena, struct ob_event *ev)
{
    char *id = ob_arena_alloc(arena, OB_UUID_TEXT);
    if (!id)
        return false;
    ob_uuid_format((const uint8_t *)PQgetvalue(res, row, 1), id);
    char kind = PQgetlength(res, row, 10) == 1 ? PQgetvalue(res, row, 10)[0] : 'b';
    bool none = ob_pg_null(res, row, 9);
    *ev = (struct ob_event){
        .seq = (uint64_t)ob_pg_i64(res, row, 0),
        .id = {id, 36},
        .type = text(res, row, 2),
        .aggregate_type = text(res, row, 3),
        .aggregate_id = text(res, row, 4),
        .key = text(res, row, 5),
        .tenant = text(res, row, 6),
        .topic = text(res, row, 7),
        .payload = text(res, row, 8),
        .payload_kind = none          ? OB_PAYLOAD_NULL
                        : kind == 'j' ? OB_PAYLOAD_JSON
                        : kind == 't' ? OB_PAYLOAD_TEXT
                                      : OB_PAYLOAD_BYTES,
        .headers = text(res, row, 11),
        .metadata = text(res, row, 12),
        .entity_version = version(res, row, 13),
        .schema_version = version(res, row, 14),
        .max_attempts = ob_pg_null(res, row, 15) ? 0 : (uint32_t)ob_pg_i64(res, row, 15),
        .created_us = ob_pg_time_us(res, row, 16),
    };
    return true;
}

/* A payload that was too large for the page. */
static enum ob_status fetch_big(struct pg_conn *conn, int64_t seq, struct ob_arena *arena,
                                struct ob_event *ev, struct ob_err *err)
{
    char number[24];
    PGresult *res = NULL;
    snprintf(number, sizeof(number), "%" PRId64, seq);
    const struct pg_param p[] = {PG_TEXT(number)};
    enum ob_status st = ob_pg_query(conn, "select payload from outbox.event where seq = $1::bigint",
                                    p, 1, true, &res, err);
    if (st == OB_OK && PQntuples(res) == 1) {
        ev->payload = ob_arena_copy(arena, ob_pg_str(res, 0, 0));
        if (!ev->payload.p)
            st = ob_err_set(err, OB_DOWN, "no memory for a payload of %d bytes",
                            PQgetlength(res, 0, 0));
    }
    PQclear(res);
    return st;
}

static bool is_big(const PGresult *res, int row)
{
    return ob_pg_null(res, row, 8) && !ob_pg_null(res, row, 9);
}

/* Rows [*row, …) of a result as a batch: at most max, and about max_bytes. The batch takes the
 * result when it has all of the rest. */
static enum ob_status rows_to_batch(struct ob_source *s, PGresult *res, int from, size_t max,
                                    size_t max_bytes, struct ob_batch **out, struct ob_err *err)
{
    struct log_state *l = s->state;
    int total = PQntuples(res), n = 0;
    size_t bytes = 0;
    while (from + n < total && (size_t)n < max) {
        bytes += 64 + (size_t)(ob_pg_null(res, from + n, 9) ? 0 : ob_pg_i64(res, from + n, 9));
        if (n > 0 && bytes > max_bytes)
            break;
        n++;
    }
    struct ob_batch *batch = ob_batch_new((size_t)n, (size_t)2 << 30);
    if (!batch)
        return ob_err_set(err, OB_DOWN, "no memory for %d events", n);
    for (int i = 0; i < n; i++) {
        struct ob_event *ev = &batch->events[i];
        enum ob_status st = row_event(res, from + i, batch->arena, ev) ? OB_OK : OB_DOWN;
        if (st == OB_OK && is_big(res, from + i))
            st = fetch_big(&s->sql, ob_pg_i64(res, from + i, 0), batch->arena, ev, err);
        if (st != OB_OK) {
            ob_batch_unref(batch);
            return st;
        }
        ev->ref = l->given + (uint64_t)i + 1;
    }
    batch->n = (size_t)n;
    *out = batch;
    return OB_OK;
}

/* ---- a round ---- */

static enum ob_status lost(struct ob_source *s, const char *what, struct ob_err *err)
{
    struct log_state *l = s->state;
    ob_pg_fail(&l->rd, NULL, what, err);
    ob_pg_lost(s);
    err->status = OB_FENCED;
    return OB_FENCED;
}

static bool send_named(struct log_state *l, const char *name, int n, const char *const *values,
                       int binary)
{
    return PQsendQueryPrepared(l->rd.c, name, n, values, NULL, NULL, binary) == 1;
}

static enum ob_status send_round(struct ob_source *s, struct ob_err *err)
{
    struct log_state *l = s->state;
    char pos[24], late_pos[24], fence[24], page[24];
    const struct place *at = &l->at;
    bool pass = at->late_snap != NULL;
    snprintf(pos, sizeof(pos), "%" PRId64, at->pos);
    snprintf(late_pos, sizeof(late_pos), "%" PRId64, pass ? at->late_pos : l->base);
    snprintf(fence, sizeof(fence), "%" PRIu64, s->fence);
    snprintf(page, sizeof(page), "%" PRId64, s->conf->page);
    /* A fence counts for snapshots that were read before it was given. */
    const char *bound = s->fence > l->fence_seen ? fence : NULL;
    const char *const late[] = {pos,   at->snap->text, late_pos,
                                bound, page,           pass ? at->late_snap->text : NULL};
    const char *const main_values[] = {pos, page};
    bool ok = send_named(l, "begin", 0, NULL, 0) &&
              send_named(l, pass ? "late_next" : "late_first", pass ? 6 : 5, late, 1) &&
              send_named(l, "snapshot", 0, NULL, 0) &&
              (pass || send_named(l, "main", 2, main_values, 1)) &&
              send_named(l, "commit", 0, NULL, 0) && PQpipelineSync(l->rd.c) == 1 &&
              PQflush(l->rd.c) >= 0;
    if (!ok)
        return lost(s, "asking for events", err);
    l->fence_asked = s->fence;
    l->asked = true;
    l->asked_pass = pass;
    l->step = 0;
    return OB_OK;
}

/* Takes what has come. OB_AGAIN: not all yet. */
static enum ob_status receive(struct ob_source *s, struct ob_err *err)
{
    struct log_state *l = s->state;
    if (!PQconsumeInput(l->rd.c) || PQflush(l->rd.c) < 0)
        return lost(s, "reading events", err);
    for (;;) {
        if (PQisBusy(l->rd.c))
            return OB_AGAIN;
        PGresult *res = PQgetResult(l->rd.c);
        if (!res)
            continue; /* the end of one statement */
        ExecStatusType got = PQresultStatus(res);
        if (got == PGRES_PIPELINE_SYNC) {
            PQclear(res);
            l->asked = false;
            return OB_OK;
        }
        if (got != PGRES_TUPLES_OK && got != PGRES_COMMAND_OK) {
            if (got != PGRES_PIPELINE_ABORTED && l->failed == OB_OK)
                l->failed = ob_pg_fail(&l->rd, res, "reading events", &l->why);
            PQclear(res);
            continue;
        }
        int step = l->step++;
        PGresult **keep = step == 1                     ? &l->late
                          : step == 2                   ? &l->snap_res
                          : step == 3 && !l->asked_pass ? &l->main
                                                        : NULL;
        if (keep) {
            PQclear(*keep);
            *keep = res;
        } else {
            PQclear(res);
        }
    }
}

static int64_t last_seq(const PGresult *res)
{
    return ob_pg_i64(res, PQntuples(res) - 1, 0);
}

static bool add_entries(struct log_state *l, const PGresult *res, bool late, struct place *at)
{
    for (int i = 0; i < PQntuples(res); i++) {
        int64_t seq = ob_pg_i64(res, i, 0);
        if (late)
            at->late_pos = seq;
        else
            at->pos = at->late_pos = seq;
        if (!entry_add(l, at))
            return false;
    }
    return true;
}

/* The round is here: moves the reading position and remembers what each row's cursor is. */
static enum ob_status finish_round(struct ob_source *s, struct ob_err *err)
{
    struct log_state *l = s->state;
    if (l->failed != OB_OK) {
        enum ob_status st = l->failed;
        *err = l->why;
        l->failed = OB_OK;
        return st;
    }
    bool full = PQntuples(l->late) >= s->conf->page, ok = true;
    struct snap *q =
        l->asked_pass ? snap_ref(l->at.late_snap) : snap_new(PQgetvalue(l->snap_res, 0, 0));
    if (!q)
        return ob_err_set(err, OB_DOWN, "no memory");
    struct place at = {0};
    place_set(&at, &l->at);
    snap_set(&at.late_snap, q);
    ok = add_entries(l, l->late, true, &at);
    if (full) { /* go on with this pass; MAIN is not looked at */
        at.late_pos = last_seq(l->late);
        PQclear(l->main);
        l->main = NULL;
    } else if (l->asked_pass) { /* the pass is over; MAIN waits a round */
        snap_set(&at.snap, q);
        snap_set(&at.late_snap, NULL);
    } else {
        snap_set(&at.snap, q);
        snap_set(&at.late_snap, NULL);
        ok = ok && add_entries(l, l->main, false, &at);
        l->fence_seen = l->fence_asked;
    }
    if (!ok) {
        place_clear(&at);
        snap_unref(q);
        return lost(s, "no memory for a page of events", err);
    }
    l->more = full || l->asked_pass || (l->main && PQntuples(l->main) >= s->conf->page);
    place_set(&l->at, &at);
    place_clear(&at);
    snap_unref(q);
    return OB_OK;
}

static void set_page(struct log_state *l)
{
    if (l->late && PQntuples(l->late) > 0) {
        l->page = l->late;
        l->late = NULL;
    } else if (l->main && PQntuples(l->main) > 0) {
        l->page = l->main;
        l->main = NULL;
    }
    l->row = 0;
}

/* ---- the reader ---- */

static enum ob_status log_claim(struct ob_source *s, size_t max, size_t max_bytes,
                                struct ob_batch **out, struct ob_err *err)
{
    struct log_state *l = s->state;
    enum ob_status st = ob_pg_owned(s, err);
    if (st != OB_OK)
        return st;
    int64_t now = ob_clock_mono_ms(s->clock);
    if (!l->page)
        set_page(l);
    if (!l->page && !l->asked && now >= l->poll_at) {
        st = send_round(s, err);
        if (st != OB_OK)
            return st;
    }
    if (!l->page && l->asked) {
        st = receive(s, err);
        if (st == OB_OK)
            st = finish_round(s, err);
        if (st != OB_OK)
            return st;
        set_page(l);
        if (!l->page) { /* nothing: wait longer each time */
            l->idle_ms = l->more ? 0 : l->idle_ms ? l->idle_ms * 2 : 2;
            l->idle_ms = l->idle_ms > s->conf->poll_max_ms ? s->conf->poll_max_ms : l->idle_ms;
            l->poll_at = ob_clock_mono_ms(s->clock) + l->idle_ms;
            return OB_AGAIN;
        }
    }
    if (!l->page)
        return OB_AGAIN;
    st = rows_to_batch(s, l->page, l->row, max, max_bytes, out, err);
    if (st != OB_OK)
        return st;
    l->row += (int)(*out)->n;
    l->given += (*out)->n;
    l->idle_ms = 0;
    l->poll_at = now + 2;
    if (l->row >= PQntuples(l->page)) {
        if (!ob_arena_keep((*out)->arena, page_drop, l->page, PQresultMemorySize(l->page)))
            return lost(s, "no memory for a page of events", err);
        l->page = NULL;
        set_page(l);
        /* The server works on the next page meanwhile. A failure to ask shows with the next claim.
         */
        if (!l->page && l->more && !l->asked)
            (void)!send_round(s, err);
        return OB_OK;
    }
    /* The rest of the page stays here: this batch needs bytes of its own. */
    for (size_t i = 0; i < (*out)->n; i++)
        if (!ob_event_own(&(*out)->events[i], (*out)->arena))
            return ob_err_set(err, OB_FENCED, "no memory for a page of events");
    return OB_OK;
}

static void drop_results(struct log_state *l)
{
    PGresult **const all[] = {&l->late, &l->main, &l->snap_res, &l->page};
    for (size_t i = 0; i < 4; i++) {
        PQclear(*all[i]);
        *all[i] = NULL;
    }
}

static void log_stop(struct ob_source *s)
{
    struct log_state *l = s->state;
    if (!l)
        return;
    drop_results(l);
    entries_drop(l, l->tail);
    free(l->entries);
    place_clear(&l->at);
    place_clear(&l->durable);
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
        "select pos, snap::text, late_pos, late_snap::text, base, coalesce(fence::text, '0') from "
        "outbox.cursor where pipeline = $1 and shard = $2::int",
        p, 2, false, &res, err);
    if (st != OB_OK)
        return st;
    l->durable.pos = strtoll(PQgetvalue(res, 0, 0), NULL, 10);
    l->durable.snap = snap_new(PQgetvalue(res, 0, 1));
    l->durable.late_pos = strtoll(PQgetvalue(res, 0, 2), NULL, 10);
    l->durable.late_snap = PQgetisnull(res, 0, 3) ? NULL : snap_new(PQgetvalue(res, 0, 3));
    l->base = strtoll(PQgetvalue(res, 0, 4), NULL, 10);
    uint64_t fence = strtoull(PQgetvalue(res, 0, 5), NULL, 10);
    if (fence > 0)
        s->fence = fence; /* given with this very cursor: the closest bound there is */
    PQclear(res);
    place_set(&l->at, &l->durable);
    return l->durable.snap ? OB_OK : ob_err_set(err, OB_DOWN, "no memory");
}

static enum ob_status log_start(struct ob_source *s, struct ob_err *err)
{
    struct log_state *l = calloc(1, sizeof(*l));
    if (!l)
        return ob_err_set(err, OB_DOWN, "no memory");
    s->state = l;
    enum ob_status st = load_place(s, err);
    if (st == OB_OK)
        st = ob_pg_connect(&l->rd, s->conf->dsn, "outbox reader", false, s->clock,
                           s->conf->timeout_ms, err);
    for (size_t i = 0; st == OB_OK && i < N_STATEMENTS; i++) {
        PGresult *res = PQprepare(l->rd.c, statements[i][0], statements[i][1], 0, NULL);
        if (PQresultStatus(res) != PGRES_COMMAND_OK)
            st = ob_pg_fail(&l->rd, res, statements[i][0], err);
        PQclear(res);
    }
    if (st == OB_OK && PQenterPipelineMode(l->rd.c) != 1)
        st = ob_err_set(err, OB_DOWN, "cannot pipeline");
    return st;
}

static int log_wait_fd(const struct ob_source *s)
{
    const struct log_state *l = s->state;
    return l ? ob_pg_fd(&l->rd) : -1;
}

static int64_t log_wake_at(const struct ob_source *s)
{
    const struct log_state *l = s->state;
    if (!l || !s->owned)
        return INT64_MAX;
    return l->asked ? INT64_MAX : l->poll_at;
}

/* Back to the durable place; a round that is under way is waited for and thrown away. */
static void log_rewind(struct ob_source *s)
{
    struct log_state *l = s->state;
    struct ob_err err;
    if (!l)
        return;
    int64_t until = ob_clock_mono_ms(s->clock) + s->conf->timeout_ms;
    while (l->asked && receive(s, &err) == OB_AGAIN)
        if (ob_pg_wait(&l->rd, until, &err) != OB_OK) {
            ob_pg_lost(s);
            return;
        }
    if (!s->state)
        return;
    l->failed = OB_OK;
    drop_results(l);
    entries_drop(l, l->tail);
    l->given = l->tail;
    l->more = false;
    l->poll_at = 0;
    l->fence_seen = s->fence; /* no bound until the next one is given */
    place_set(&l->at, &l->durable);
}

static void log_cursor(struct ob_source *s, const struct ob_settle *settle, struct pg_cursor *out)
{
    struct log_state *l = s->state;
    if (!settle->moved || settle->ref <= l->head || settle->ref > l->tail)
        return;
    const struct place *at = &l->entries[(settle->ref - 1) % l->cap];
    snprintf(l->pos_text, sizeof(l->pos_text), "%" PRId64, at->pos);
    snprintf(l->late_text, sizeof(l->late_text), "%" PRId64, at->late_pos);
    *out = (struct pg_cursor){.pos = l->pos_text,
                              .snap = at->snap->text,
                              .late_pos = l->late_text,
                              .late_snap = at->late_snap ? at->late_snap->text : NULL};
}

static void log_settled(struct ob_source *s, const struct ob_settle *settle)
{
    struct log_state *l = s->state;
    if (!settle->moved || settle->ref <= l->head || settle->ref > l->tail)
        return;
    place_set(&l->durable, &l->entries[(settle->ref - 1) % l->cap]);
    entries_drop(l, settle->ref);
}

static void log_ref(const struct ob_source *s, const struct ob_event *ev, struct ob_buf *out)
{
    (void)s;
    ob_buf_printf(out, "%" PRIu64, ev->seq);
}

static enum ob_status log_fetch(struct ob_source *s, const struct ob_str *refs, size_t n,
                                struct ob_batch *batch, struct ob_err *err)
{
    PGresult *res = NULL;
    ob_pg_array_begin(&s->array[0]);
    for (size_t i = 0; i < n; i++)
        ob_pg_array_add(&s->array[0], refs[i]);
    const struct pg_param p[] = {PG_TEXT(ob_pg_array_end(&s->array[0]))};
    enum ob_status st = ob_pg_query(&s->sql,
                                    "select " COLUMNS
                                    ", t.i from unnest($1::bigint[]) with ordinality as t(seq, i) "
                                    "join outbox.event e on e.seq = t.seq",
                                    p, 1, true, &res, err);
    for (size_t i = 0; i < n; i++)
        batch->events[i] = (struct ob_event){0};
    for (int row = 0; st == OB_OK && row < PQntuples(res); row++) {
        struct ob_event *ev = &batch->events[ob_pg_i64(res, row, 18) - 1];
        if (!row_event(res, row, batch->arena, ev))
            st = ob_err_set(err, OB_DOWN, "no memory");
        else if (is_big(res, row))
            st = fetch_big(&s->sql, ob_pg_i64(res, row, 0), batch->arena, ev, err);
    }
    if (st == OB_OK && ob_arena_keep(batch->arena, page_drop, res, PQresultMemorySize(res)))
        return OB_OK;
    PQclear(res);
    return st == OB_OK ? ob_err_set(err, OB_DOWN, "no memory for a page of events") : st;
}

static enum ob_status log_status(struct ob_source *s, struct ob_source_status *out,
                                 struct ob_err *err)
{
    const struct log_state *l = s->state;
    PGresult *res = NULL;
    char pos[24];
    snprintf(pos, sizeof(pos), "%" PRId64, l->durable.pos);
    const struct pg_param p[] = {PG_TEXT(pos)};
    enum ob_status st =
        ob_pg_query(&s->sql,
                    "select greatest(0, coalesce((select last_value from pg_sequences where "
                    "schemaname = 'outbox' and sequencename = "
                    "'event_seq_seq'), 0) - $1::bigint)::bigint, (select (extract(epoch from "
                    "clock_timestamp() - created_at) * "
                    "1000)::bigint from outbox.event where seq > $1::bigint order by seq limit 1)",
                    p, 1, true, &res, err);
    if (st == OB_OK) {
        out->lag_ms = ob_pg_null(res, 0, 1) ? 0 : ob_pg_i64(res, 0, 1);
        out->pending = ob_pg_null(res, 0, 1) ? 0 : ob_pg_i64(res, 0, 0);
    }
    PQclear(res);
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
    .rewind = log_rewind,
    .cursor = log_cursor,
    .settled = log_settled,
    .ref = log_ref,
    .fetch = log_fetch,
    .status = log_status,
};
