/* SPDX-License-Identifier: Apache-2.0 */
/* wal - mode wal: events in the order of commits, as they are committed.
 *
 * The position that the server is told, and that it may forget WAL below, is the one in our cursor
 * row: it moves only with the transaction that settles what stands before it, and is sent when that
 * is committed and on the server's disk (test: "kill -9 again and again"). The slot therefore never
 * stands ahead of the cursor; one that does was moved by somebody else and is not followed. */
#include "source/postgres/wal.h"
#include "source/postgres/rows.h"
#include "source/postgres/whole.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define ASK_MS 100

static void wal_stop(struct ob_source *s)
{
    struct wal_state *w = wal_of(s);
    if (!w)
        return;
    ob_pg_wal_close(s);
    if (w->table_reader)
        w->table_reader->stop(s);
    ob_arena_unref(w->arena);
    ob_pg_wal_rows_clear(w);
    ob_pg_wal_past_clear(w);
    ob_pg_wal_ahead_clear(w);
    ob_pg_snap_unref(w->seen);
    ob_pg_snap_unref(w->visible);
    ob_pg_snap_unref(w->anchor_snap);
    free(w->ring.of);
    ob_pg_map_close(w->map);
    free(w->more_at);
    free(w->room);
    free(w->events);
    free(w);
    s->wal = NULL;
}

/* ---- reading ---- */

static bool reaches(const struct wal_state *w)
{
    return w->streaming && w->read.lsn >= w->target;
}

static enum ob_status sweep(struct ob_source *s, size_t max, struct ob_batch **out,
                            struct ob_err *err)
{
    enum ob_status st = ob_pg_wal_rows_sweep(s, max, out, err);
    if (st == OB_OK || st == OB_AGAIN || st == OB_FENCED)
        return st;
    ob_pg_lost(s); /* some may count as taken already */
    err->status = OB_FENCED;
    return OB_FENCED;
}

static enum ob_status wal_claim(struct ob_source *s, size_t max, size_t max_bytes,
                                struct ob_batch **out, struct ob_err *err)
{
    struct wal_state *w = wal_of(s);
    if (max == 0)
        return OB_AGAIN;
    if (!wal_streams(w))
        return ob_pg_wal_table_claim(s, max, max_bytes, out, err);
    enum ob_status st = w->streaming ? OB_OK : ob_pg_wal_open(s, err);
    if (st == OB_OK)
        st = ob_pg_wal_read(s, max, max_bytes, out, err);
    if (st == OB_AGAIN && w->rows)
        st = sweep(s, max, out, err);
    /* Until we have seen what was there when we came: the server tells how far it is when asked. */
    int64_t now = ob_clock_mono_ms(s->clock);
    if (st == OB_AGAIN && s->wal && w->streaming && !reaches(w) && now >= w->ask_at) {
        ob_pg_wal_report(s, true);
        w->ask_at = now + ASK_MS;
    }
    return st;
}

static int wal_wait_fd(const struct ob_source *s)
{
    const struct wal_state *w = wal_of(s);
    if (!wal_streams(w))
        return w->table_reader && ob_handover_reads(&w->handover) ? w->table_reader->wait_fd(s)
                                                                  : -1;
    return w->streaming && !w->waiting ? ob_pg_fd(&w->repl) : -1;
}

static int64_t wal_wake_at(const struct ob_source *s)
{
    const struct wal_state *w = wal_of(s);
    if (!wal_streams(w)) {
        bool reads = w->table_reader && ob_handover_reads(&w->handover);
        int64_t at = reads ? w->table_reader->wake_at(s) : INT64_MAX;
        return at < w->open_at ? at : w->open_at;
    }
    if (!w->streaming)
        return w->open_at;
    if (w->waiting)
        return w->visible_at;
    return reaches(w) ? INT64_MAX : w->ask_at;
}

static bool wal_looking(const struct ob_source *s)
{
    const struct wal_state *w = wal_of(s);
    enum wal_handover_state at = w->handover.state;
    if (at == HANDOVER_STREAM)
        return !reaches(w) || w->waiting || w->in_txn;
    bool creating = (at == HANDOVER_CREATING || at == HANDOVER_CATCHING_UP) &&
                    ob_clock_mono_ms(s->clock) < w->made_at + 2000;
    return creating || at == HANDOVER_SETTLING || !w->table_reader ||
           (w->table_reader->looking && w->table_reader->looking(s));
}

static void wal_rewind(struct ob_source *s)
{
    struct wal_state *w = wal_of(s);
    struct ob_err err;
    if (!wal_streams(w)) {
        if (w->table_reader)
            w->table_reader->rewind(s);
        if (s->wal) /* what was read so far counts for nothing */
            ob_handover_rewind(&w->handover, ob_pg_wal_table_rounds(s));
        return;
    }
    ob_pg_wal_close(s);
    ob_pg_wal_ahead_rewind(w);
    w->read = w->durable;
    w->ring.head = w->ring.n = 0;
    w->handed = w->settled = w->given;
    w->open_at = 0;
    if (w->rows) {
        w->table_reader->rewind(s);
        if (s->wal)
            ob_pg_wal_rows_rewind(s);
        return;
    }
    if (ob_pg_wal_recorded(s, &err) != OB_OK)
        w->recorded_max = INT64_MAX; /* every page is looked up */
}

static bool wal_already(const struct ob_source *s, uint64_t ref, uint64_t hash)
{
    const struct wal_state *w = wal_of(s);
    if (!w)
        return false;
    if (wal_streams(w))
        return ob_pg_wal_past_settled(w, ref, hash);
    return w->table_reader && w->table_reader->already && w->table_reader->already(s, ref, hash);
}

/* ---- settling ---- */

static void write_pos(struct wal_state *w, struct wal_pos at, struct pg_cursor *out)
{
    ob_pgo_lsn_format(at.lsn, w->texts[0]);
    snprintf(w->texts[1], sizeof(w->texts[1]), "%" PRIu64, at.rows);
    *out = (struct pg_cursor){.lsn = w->texts[0], .rows_done = w->texts[1]};
    w->writing = at;
    w->anchor_written = ob_pg_wal_anchor(w, at, out);
}

static void wrote_pos(struct wal_state *w)
{
    w->durable = w->writing;
    if (w->anchor_written) {
        ob_pg_snap_unref(w->anchor_snap);
        w->anchor_snap = NULL;
        w->anchor_written = false;
    }
}

static void wal_cursor(struct ob_source *s, const struct ob_settle *settle, struct pg_cursor *out)
{
    struct wal_state *w = wal_of(s);
    struct wal_pos at;
    if (!wal_streams(w)) {
        if (w->table_reader)
            w->table_reader->cursor(s, settle, out);
        return;
    }
    if (w->rows) {
        if (wal_behind(w->durable, w->reached)) /* what the settles before this one came to */
            write_pos(w, w->reached, out);
        else
            w->writing = w->durable;
        return;
    }
    if (settle->moved && ob_pg_wal_at(w, settle->ref, &at))
        write_pos(w, at, out);
    else
        at = w->durable;
    ob_pg_wal_ahead_write(s, settle, at, out);
}

static void wal_settled(struct ob_source *s, const struct ob_settle *settle)
{
    struct wal_state *w = wal_of(s);
    struct wal_pos at;
    if (!wal_streams(w)) {
        if (w->table_reader)
            w->table_reader->settled(s, settle);
        return;
    }
    if (w->rows) {
        w->table_reader->settled(s, settle);
        wrote_pos(w);
        ob_pg_wal_rows_settled(s, settle);
        return;
    }
    ob_pg_ahead_stored(&w->ahead);
    if (!settle->moved || !ob_pg_wal_at(w, settle->ref, &at))
        return;
    wrote_pos(w);
    ob_pg_wal_settled(w, settle->ref);
}

/* Everything that was handed out is settled: what was read is, and the slot moves on although
 * nothing of ours comes (test: "an idle outbox does not hold the WAL"). */
static bool wal_rest(struct ob_source *s, struct pg_cursor *out)
{
    struct wal_state *w = wal_of(s);
    if (!wal_streams(w))
        return w->table_reader && w->table_reader->rest && w->table_reader->rest(s, out);
    if (w->settled < w->handed)
        return false;
    write_pos(w, w->read, out);
    return true;
}

static void wal_rested(struct ob_source *s)
{
    struct wal_state *w = wal_of(s);
    if (!wal_streams(w)) {
        if (w->table_reader && w->table_reader->rested)
            w->table_reader->rested(s);
        return;
    }
    wrote_pos(w);
    ob_pg_wal_settled(w, w->settled);
}

/* ---- the rest ---- */

static void wal_ref(const struct ob_source *s, const struct ob_event *ev, struct ob_buf *out)
{
    (void)s;
    ob_buf_printf(out, "%" PRIu64, ev->seq);
}

static enum ob_status wal_fetch(struct ob_source *s, const struct ob_str *refs, size_t n,
                                struct ob_batch *batch, struct ob_err *err)
{
    return s->whole ? ob_pg_whole_fetch(s, refs, n, batch, err)
                    : ob_pg_native_fetch(s, refs, n, batch, err);
}

static enum ob_status wal_status(struct ob_source *s, struct ob_source_status *out,
                                 struct ob_err *err)
{
    char shard[12];
    PGresult *res = NULL;
    snprintf(shard, sizeof(shard), "%u", s->shard);
    const struct pg_param p[] = {PG_TEXT(s->pipeline), PG_TEXT(shard)};
    if (!wal_of(s)->table_reader)
        return OB_OK;
    enum ob_status st = ob_pg_query(
        &s->sql, "select pos from outbox.cursor where pipeline = $1 and shard = $2::int", p, 2,
        true, &res, err);
    int64_t pos = st == OB_OK && PQntuples(res) == 1 ? ob_pg_i64(res, 0, 0) : 0;
    PQclear(res);
    if (st == OB_OK)
        st = ob_pg_status_native(&s->sql, s->pipeline, pos, out, err);
    int64_t ahead = (int64_t)wal_of(s)->ahead.set.n;
    if (st == OB_OK)
        out->pending -= out->pending < ahead ? out->pending : ahead;
    return st;
}

const struct pg_reader ob_pg_wal = {
    .name = "wal",
    .log = true,
    .start = ob_pg_wal_start,
    .stop = wal_stop,
    .wait_fd = wal_wait_fd,
    .wake_at = wal_wake_at,
    .claim = wal_claim,
    .looking = wal_looking,
    .rewind = wal_rewind,
    .already = wal_already,
    .cursor = wal_cursor,
    .settled = wal_settled,
    .rest = wal_rest,
    .rested = wal_rested,
    .tick = ob_pg_wal_tick,
    .ref = wal_ref,
    .fetch = wal_fetch,
    .status = wal_status,
};

/* ---- a table with state columns ---- */

static void rows_ref(const struct ob_source *s, const struct ob_event *ev, struct ob_buf *out)
{
    ob_pg_rows.ref(s, ev, out);
}

static enum ob_status rows_fetch(struct ob_source *s, const struct ob_str *refs, size_t n,
                                 struct ob_batch *batch, struct ob_err *err)
{
    return ob_pg_rows.fetch(s, refs, n, batch, err);
}

static enum ob_status rows_status(struct ob_source *s, struct ob_source_status *out,
                                  struct ob_err *err)
{
    return ob_pg_rows.status(s, out, err);
}

const struct pg_reader ob_pg_wal_rows = {
    .name = "wal",
    .log = false,
    .start = ob_pg_wal_start,
    .stop = wal_stop,
    .wait_fd = wal_wait_fd,
    .wake_at = wal_wake_at,
    .claim = wal_claim,
    .looking = wal_looking,
    .rewind = wal_rewind,
    .already = wal_already,
    .cursor = wal_cursor,
    .mark = ob_pg_rows_mark,
    .settled = wal_settled,
    .rest = wal_rest,
    .rested = wal_rested,
    .beat = ob_pg_rows_beat,
    .tick = ob_pg_wal_tick,
    .ref = rows_ref,
    .fetch = rows_fetch,
    .status = rows_status,
};
