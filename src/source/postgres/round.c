/* SPDX-License-Identifier: Apache-2.0 */
/* round - one look at the table: a REPEATABLE READ transaction on the reader's own session,
 * pipelined in one round trip, so that all its statements share one snapshot Q.
 *
 * LATE: numbers at or below pos that were not visible in snap and are in Q. They belong to
 * transactions that were running when snap was taken (its xip), or that already had an id and had
 * not been seen by it: snapshot.xmax is the last *completed* id + 1, so ids at or above it can be
 * running and can hold lower numbers (the second arm; without it events are lost: test "late
 * transactions above xmax").
 * MAIN: numbers above pos. Only when LATE was exhausted, and always behind it: whoever sees an
 * event then also saw, earlier, every event that its transaction could see. ADOPT: after a restore
 * into another cluster, once: what the old snapshots do not show.
 *
 * The fence bounds the second arm: an id that was given after snap was taken cannot have a number
 * at or below pos. `s->fence_first` is the first one known to be later than snap.
 *
 * PEEK: while nothing happens only the snapshot is asked for. If it is the one that the last whole
 * round had, no transaction has ended since, so there is nothing to see, and an idle outbox costs a
 * server next to nothing (test: "an idle source only peeks").
 *
 * The row comparison (xid, seq) > … forces the index on (xid, seq); with xid = … order by seq limit
 * the planner walks the index on seq over the whole table. */
#include "source/postgres/log.h"

#include <inttypes.h>
#include <stdio.h>

#define PAGE_BYTES ((size_t)8 << 20)

#define LATE(now, also)                                                                            \
    "with l as materialized (select x from pg_snapshot_xip($2::pg_snapshot) x where "              \
    "pg_visible_in_snapshot(x, " now ") union select xid from outbox.event where xid >= "          \
    "pg_snapshot_xmax($2::pg_snapshot) and xid < least(pg_snapshot_xmax(" now                      \
    "), $4::text::xid8) and seq <= $1::bigint" also ") select " PG_EVENT_COLUMNS                   \
    " from l cross join lateral (select * from outbox.event where (xid, seq) > (l.x, $3::bigint) " \
    "and (xid, seq) <= (l.x, $1::bigint) order by xid, seq limit $5::bigint) e "                   \
    "order by e.seq limit $5::bigint"

static const char *const statements[][2] = {
    {"late_first", LATE("pg_current_snapshot()", "")},
    {"late_next", LATE("$6::pg_snapshot", " and pg_visible_in_snapshot(xid, $6::pg_snapshot)")},
    {"adopt", "select " PG_EVENT_COLUMNS
              " from outbox.event e where e.seq > $1::bigint and e.seq <= $2::bigint and not "
              "pg_visible_in_snapshot(e.xid, $3::pg_snapshot) and not ($5::pg_snapshot is not null "
              "and e.seq <= $4::bigint and pg_visible_in_snapshot(e.xid, $5::pg_snapshot)) "
              "order by e.seq limit $6::bigint"},
    {"main", "select " PG_EVENT_COLUMNS
             " from outbox.event e where e.seq > $1::bigint order by e.seq limit $2::bigint"},
    /* The LSN is read behind the snapshot: whatever that shows was committed below it. */
    {"snapshot", "select pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text"},
    {"begin", "begin isolation level repeatable read read only"},
    {"commit", "commit"},
    {"rollback", "rollback"},
};

/* One plan for ever, by the indexes: what the planner would otherwise guess changes with statistics
 * that an outbox never has. */
#define SESSION                                                                                    \
    "set plan_cache_mode = force_generic_plan; set enable_seqscan = off; set enable_bitmapscan = " \
    "off; set enable_sort = on; set jit = off; set max_parallel_workers_per_gather = 0"

enum ob_status ob_pg_round_prepare(struct log_state *l, struct ob_err *err)
{
    enum ob_status st = ob_pg_exec(&l->rd, SESSION, err);
    for (size_t i = 0; st == OB_OK && i < sizeof(statements) / sizeof(statements[0]); i++)
        st = ob_pg_prepare(&l->rd, statements[i][0], statements[i][1], err);
    if (st == OB_OK && PQenterPipelineMode(l->rd.c) != 1)
        st = ob_err_set(err, OB_DOWN, "the connection cannot pipeline");
    return st;
}

enum ob_status ob_pg_round_lost(struct ob_source *s, const char *what, struct ob_err *err)
{
    struct log_state *l = s->state;
    if (l)
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

static bool send_rows(struct ob_source *s)
{
    struct log_state *l = s->state;
    char pos[24], from[24], fence[24], page[24], late_pos[24];
    const struct place *at = &l->at;
    const char *later = at->late_snap ? at->late_snap->text : NULL;
    snprintf(pos, sizeof(pos), "%" PRId64, at->pos);
    snprintf(from, sizeof(from), "%" PRId64,
             l->kind == ROUND_ADOPT  ? at->adopt_pos
             : l->kind == ROUND_NEXT ? at->late_pos
                                     : l->base);
    snprintf(late_pos, sizeof(late_pos), "%" PRId64, at->late_pos);
    snprintf(fence, sizeof(fence), "%" PRIu64, s->fence_first);
    snprintf(page, sizeof(page), "%" PRId64, l->limit);
    const char *bound = s->fence_first ? fence : NULL;
    const char *const late[] = {pos, at->snap->text, from, bound, page, later};
    const char *const adopt[] = {from, pos, at->snap->text, late_pos, later, page};
    const char *const main_values[] = {pos, page};
    switch (l->kind) {
    case ROUND_ADOPT:
        return send_named(l, "adopt", 6, adopt, 1) && send_named(l, "snapshot", 0, NULL, 0);
    case ROUND_NEXT:
        return send_named(l, "late_next", 6, late, 1) && send_named(l, "snapshot", 0, NULL, 0);
    case ROUND_FIRST:
    case ROUND_PEEK:
        break;
    }
    return send_named(l, "late_first", 5, late, 1) && send_named(l, "snapshot", 0, NULL, 0) &&
           send_named(l, "main", 2, main_values, 1);
}

/* Idle for a while, and the last round saw all there was. A server whose snapshots change all the
 * time for other reasons gets whole rounds for a second. */
static bool wants_peek(const struct ob_source *s, struct log_state *l)
{
    if (l->no_peek > 0) {
        l->no_peek--;
        return false;
    }
    return !l->aborted && l->complete == l->rounds && l->rounds > 0 &&
           l->idle_ms >= s->conf->poll_max_ms && l->at.adopt_pos < 0 && !l->at.late_snap;
}

static bool send_whole(struct ob_source *s, struct log_state *l)
{
    l->kind = l->at.adopt_pos >= 0 ? ROUND_ADOPT : l->at.late_snap ? ROUND_NEXT : ROUND_FIRST;
    l->step = l->aborted ? -1 : 0;
    return (!l->aborted || send_named(l, "rollback", 0, NULL, 0)) &&
           send_named(l, "begin", 0, NULL, 0) && send_rows(s) &&
           send_named(l, "commit", 0, NULL, 0);
}

static bool send_peek(struct log_state *l)
{
    l->kind = ROUND_PEEK;
    l->step = 2; /* where the snapshot's answer stands */
    return send_named(l, "snapshot", 0, NULL, 0);
}

static enum ob_status ask(struct ob_source *s, bool peek, struct ob_err *err)
{
    struct log_state *l = s->state;
    l->rounds++;
    if (!(peek ? send_peek(l) : send_whole(s, l)) || PQpipelineSync(l->rd.c) != 1 ||
        PQflush(l->rd.c) < 0)
        return ob_pg_round_lost(s, "asking for events", err);
    l->asked = true;
    s->rung = false;
    /* Looking for what a restore left unread may pass over the whole table. */
    l->answer_by =
        l->kind == ROUND_ADOPT ? INT64_MAX : ob_clock_mono_ms(s->clock) + 6 * s->conf->timeout_ms;
    return OB_OK;
}

enum ob_status ob_pg_round_send(struct ob_source *s, struct ob_err *err)
{
    return ask(s, wants_peek(s, s->state), err);
}

/* The answers in the order of the statements: (rollback,) begin, rows, snapshot, main. */
static void keep_result(struct log_state *l, PGresult *res)
{
    PGresult **const places[] = {NULL, &l->late, &l->snap_res,
                                 l->kind == ROUND_FIRST ? &l->main : NULL};
    int step = l->step++;
    PGresult **at =
        step >= 0 && step < (int)(sizeof(places) / sizeof(places[0])) ? places[step] : NULL;
    if (at) {
        PQclear(*at);
        *at = res;
    } else {
        PQclear(res);
    }
}

/* Its backend may hang although the server and our other session live. */
static enum ob_status overdue(struct ob_source *s, struct ob_err *err)
{
    const struct log_state *l = s->state;
    if (ob_clock_mono_ms(s->clock) < l->answer_by)
        return OB_AGAIN;
    ob_pg_lost(s);
    return ob_err_set(err, OB_FENCED, "reading events: no answer from the server within %lld ms",
                      6 * (long long)s->conf->timeout_ms);
}

/* Takes what has come. OB_AGAIN: not all yet. */
static enum ob_status receive(struct ob_source *s, struct ob_err *err)
{
    struct log_state *l = s->state;
    if (!PQconsumeInput(l->rd.c) || PQflush(l->rd.c) < 0)
        return ob_pg_round_lost(s, "reading events", err);
    while (!PQisBusy(l->rd.c)) {
        PGresult *res = PQgetResult(l->rd.c);
        if (!res)
            continue; /* the end of one statement */
        switch (PQresultStatus(res)) {
        case PGRES_PIPELINE_SYNC:
            PQclear(res);
            l->asked = false;
            return OB_OK;
        case PGRES_TUPLES_OK:
        case PGRES_COMMAND_OK:
            keep_result(l, res);
            break;
        case PGRES_PIPELINE_ABORTED:
            PQclear(res);
            break;
        default:
            if (l->failed == OB_OK)
                l->failed = ob_pg_fail(&l->rd, res, "reading events", &l->why);
            l->no_memory = l->no_memory || ob_pg_no_memory(&l->why);
            PQclear(res);
            if (PQstatus(l->rd.c) == CONNECTION_BAD)
                return ob_pg_round_lost(s, "reading events", err);
        }
    }
    return overdue(s, err);
}

enum step_of { STEP_LATE, STEP_MAIN, STEP_ADOPT };

/* Remembers what the cursor is behind each row. */
static bool add_entries(struct log_state *l, const PGresult *res, enum step_of step,
                        struct place *at)
{
    for (int i = 0; i < PQntuples(res); i++) {
        int64_t seq = ob_pg_i64(res, i, 0);
        if (step == STEP_LATE)
            at->late_pos = seq;
        else if (step == STEP_ADOPT)
            at->adopt_pos = seq;
        else
            at->pos = at->late_pos = seq;
        if (!ob_pg_ring_add(&l->ring, at, seq, ob_pg_event_xid(res, i, 0)))
            return false;
    }
    return true;
}

/* Moves `at` over the rows of the round. q: its snapshot. */
static bool move(struct ob_source *s, struct log_state *l, struct place *at, struct snap *q)
{
    bool full = PQntuples(l->late) >= l->limit;
    enum step_of first = l->kind == ROUND_ADOPT ? STEP_ADOPT : STEP_LATE;
    if (l->kind == ROUND_FIRST)
        ob_pg_snap_set(&at->late_snap, q);
    if (!add_entries(l, l->late, first, at))
        return false;
    l->more = full || l->kind != ROUND_FIRST;
    l->complete = 0;
    if (full) { /* go on with this pass; MAIN is not looked at */
        PQclear(l->main);
        l->main = NULL;
        return true;
    }
    if (l->kind == ROUND_ADOPT)
        at->adopt_pos = -1;
    /* The pass is over. One of several pages ends with the snapshot it began with, and MAIN waits a
     * round. */
    ob_pg_snap_set(&at->snap, l->kind == ROUND_NEXT ? at->late_snap : q);
    ob_pg_snap_set(&at->late_snap, NULL);
    s->fence_first = 0; /* those before may be older than the snapshot */
    if (l->kind != ROUND_FIRST)
        return true;
    l->more = PQntuples(l->main) >= l->limit;
    l->complete = l->more ? 0 : l->rounds;
    return add_entries(l, l->main, STEP_MAIN, at);
}

static void drop_round(struct log_state *l)
{
    PGresult **const all[] = {&l->late, &l->main, &l->snap_res};
    for (size_t i = 0; i < 3; i++) {
        PQclear(*all[i]);
        *all[i] = NULL;
    }
}

#define PEEKS_IN_VAIN 3
#define WHOLE_ROUNDS 50

/* OB_OK: nothing has changed. OB_AGAIN: a whole round was asked for. */
static enum ob_status peeked(struct ob_source *s, struct log_state *l, struct ob_err *err)
{
    bool same = strcmp(PQgetvalue(l->snap_res, 0, 0), l->at.snap->text) == 0;
    drop_round(l);
    if (same) {
        l->peeks = 0;
        l->quiet++;
        l->complete = l->rounds;
        return OB_OK;
    }
    if (++l->peeks >= PEEKS_IN_VAIN) {
        l->peeks = 0;
        l->no_peek = WHOLE_ROUNDS;
    }
    enum ob_status st = ask(s, false, err);
    return st == OB_OK ? OB_AGAIN : st;
}

/* Rows of the next round: as many as fit into PAGE_BYTES if they are like those of this one. */
static void set_limit(const struct ob_source *s, struct log_state *l)
{
    size_t bytes = PQresultMemorySize(l->late) + (l->main ? PQresultMemorySize(l->main) : 0);
    int64_t rows = PQntuples(l->late) + (l->main ? PQntuples(l->main) : 0);
    if (rows > 1 && bytes > PAGE_BYTES)
        l->limit = 1 + (int64_t)(PAGE_BYTES / (bytes / (size_t)rows + 1));
    else if (l->limit < s->conf->page && bytes < PAGE_BYTES / 2)
        l->limit = 2 * l->limit < s->conf->page ? 2 * l->limit : s->conf->page;
}

/* There was no memory for the answer: ask for half as many rows, down to one. */
static enum ob_status halve_limit(struct ob_source *s, struct log_state *l, enum ob_status st)
{
    l->no_memory = false;
    if (l->limit <= 1)
        return st;
    l->limit /= 2;
    l->poll_at = 0;
    ob_log(s->log, OB_LOG_WARN, "source.page", OB_KI("rows", l->limit),
           OB_KC("error", "no memory for a page of events: reading fewer rows at a time"));
    return OB_AGAIN;
}

enum ob_status ob_pg_round_take(struct ob_source *s, struct ob_err *err)
{
    struct log_state *l = s->state;
    enum ob_status st = receive(s, err);
    if (st != OB_OK)
        return st;
    if (l->kind == ROUND_PEEK && l->failed == OB_OK && l->snap_res)
        return peeked(s, l, err);
    l->aborted = l->failed != OB_OK && l->kind != ROUND_PEEK;
    if (l->failed != OB_OK || !l->late || !l->snap_res || (l->kind == ROUND_FIRST && !l->main)) {
        st = l->failed;
        if (st != OB_OK)
            *err = l->why;
        else
            st = ob_err_set(err, OB_RETRY, "the server answered %d statements of a round", l->step);
        l->failed = OB_OK;
        drop_round(l); /* half of a round has no place in the ring */
        return l->no_memory ? halve_limit(s, l, st) : st;
    }
    struct snap *q = ob_pg_snap_new(PQgetvalue(l->snap_res, 0, 0));
    snprintf(l->need_lsn, sizeof(l->need_lsn), "%s", PQgetvalue(l->snap_res, 0, 1));
    l->unflushed = s->conf->require_flushed;
    struct place at = {.adopt_pos = -1};
    ob_pg_place_set(&at, &l->at);
    bool ok = q && move(s, l, &at, q);
    if (ok) {
        ob_pg_place_set(&l->at, &at);
        set_limit(s, l);
        l->at_own = true;
    }
    if (ok && l->complete)
        ob_pg_place_set(&l->complete_at, &at);
    ob_pg_place_clear(&at);
    ob_pg_snap_unref(q);
    return ok ? OB_OK : ob_pg_round_lost(s, "no memory for a page of events", err);
}

void ob_pg_round_cancel(struct ob_source *s)
{
    struct log_state *l = s->state;
    struct ob_err err;
    int64_t until = ob_clock_mono_ms(s->clock) + s->conf->timeout_ms;
    while (s->state && l->asked && receive(s, &err) == OB_AGAIN)
        if (ob_pg_wait(&l->rd, until, &err) != OB_OK)
            ob_pg_lost(s);
}
