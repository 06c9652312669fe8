/* SPDX-License-Identifier: Apache-2.0 */
/* wal_start - where a shard in mode wal begins: on the stream, where our row and the slot agree, or
 * in the table. Where no table can serve, what a lost slot held is lost, and never without a word
 * from a person. */
#include "source/postgres/rows.h"
#include "source/postgres/wal.h"

#include <stdio.h>
#include <stdlib.h>

/* What our row and the server say. */
struct standing {
    bool lsn; /* the row has a position of a stream */
    enum wal_slot_record record;
    char slot[WAL_NAME]; /* the recorded one */
    bool at_rest;        /* the table's cursor is not inside a pass */
    struct wal_pos pos;
    char mark[160];
    uint64_t now; /* the WAL's end */
};

static enum ob_status load(struct ob_source *s, struct standing *out, struct ob_err *err)
{
    struct wal_state *w = wal_of(s);
    char shard[12];
    PGresult *res = NULL;
    snprintf(shard, sizeof(shard), "%u", s->shard);
    const struct pg_param p[] = {PG_TEXT(s->pipeline), PG_TEXT(shard)};
    enum ob_status st = ob_pg_query(
        &s->sql,
        "select coalesce(lsn, '0/0'), rows_done, lsn is not null, wal, late_snap is null and "
        "adopt_pos is null, snap::text, pg_current_wal_insert_lsn(), system_id, timeline, "
        "slot_state, coalesce(slot, '') from "
        "outbox.cursor where pipeline = $1 and shard = $2::int",
        p, 2, true, &res, err);
    if (st != OB_OK)
        return st;
    if (PQntuples(res) != 1) {
        PQclear(res);
        return ob_err_set(err, OB_RETRY, "outbox.cursor has lost its row");
    }
    *out = (struct standing){
        .pos = {(uint64_t)ob_pg_i64(res, 0, 0), (uint64_t)ob_pg_i64(res, 0, 1)},
        .lsn = ob_pg_bool(res, 0, 2),
        .record = ob_slot_record(ob_pg_str(res, 0, 9)),
        .at_rest = ob_pg_bool(res, 0, 4),
        .now = (uint64_t)ob_pg_i64(res, 0, 6),
    };
    struct ob_str mark = ob_pg_str(res, 0, 3), snap = ob_pg_str(res, 0, 5);
    struct ob_str system = ob_pg_str(res, 0, 7), name = ob_pg_str(res, 0, 10);
    char *text = malloc(snap.n + 1);
    snprintf(out->mark, sizeof(out->mark), "%.*s", OB_STR_ARG(mark));
    snprintf(out->slot, sizeof(out->slot), "%.*s", OB_STR_ARG(name));
    snprintf(w->system_id, sizeof(w->system_id), "%.*s", OB_STR_ARG(system));
    w->timeline = ob_pg_i64(res, 0, 8);
    if (text) {
        memcpy(text, snap.p, snap.n);
        text[snap.n] = '\0';
        const char *xmax = strchr(text, ':');
        w->seen = ob_pg_snap_new(text);
        w->seen_xmax = xmax ? strtoull(xmax + 1, NULL, 10) : 0;
    }
    free(text);
    PQclear(res);
    return w->seen ? OB_OK : ob_err_set(err, OB_DOWN, "no memory");
}

/* Why the stream cannot go on where the row stands; NULL: it can. */
static const char *gap(const struct ob_source *s, const struct standing *at,
                       const struct wal_slot *slot)
{
    const struct wal_state *w = wal_of(s);
    if (at->record == SLOT_MOVING)
        return w->table_reader ? "the number of shards was changed"
                               : "no slot holds the WAL from the recorded position";
    if (!at->lsn)
        return at->record == SLOT_CREATED    ? "the position in the stream was given up"
               : at->record == SLOT_CREATING ? "the slot was not read yet"
                                             : "there is no slot yet";
    if (s->moved)
        return "the position is of another cluster";
    if (s->timeline_changed)
        return "the server was promoted or restored";
    if (w->table_reader && !w->rows && !at->at_rest)
        return "the table is not read up";
    if (!slot->there)
        return "the slot is gone";
    if (!slot->ours)
        return "the slot is of another kind";
    if (slot->lost)
        return "the server has given up the slot's WAL (max_slot_wal_keep_size)";
    if (ob_pg_wal_table_name(s) && strcmp(at->mark, w->mark) != 0)
        return "the publication was changed";
    if (slot->confirmed > at->pos.lsn)
        return "the slot was moved by another program";
    if (!w->table_reader)
        return NULL;
    if (s->conf->wal_budget > 0 && slot->retained > s->conf->wal_budget)
        return "the slot is over wal_budget";
    if (s->conf->catch_up > 0 && at->now > at->pos.lsn &&
        at->now - at->pos.lsn > (uint64_t)s->conf->catch_up)
        return "the stream is farther behind than catch_up";
    return NULL;
}

/* Without a table what the slot lost is lost: never without a word from a person. */
static enum ob_status lost(struct ob_source *s, const struct standing *at, const char *why,
                           struct ob_err *err)
{
    char from[PGO_LSN_TEXT], to[PGO_LSN_TEXT];
    ob_pgo_lsn_format(at->pos.lsn, from);
    ob_pgo_lsn_format(at->now, to);
    if (!s->accept_loss)
        return ob_err_set(err, OB_FATAL,
                          "%s: events that were written from LSN %s to %s are lost; `outbox run "
                          "--accept-loss` goes on behind them",
                          why, at->lsn ? from : "(unknown)", to);
    ob_log(s->log, OB_LOG_ERROR, "wal.loss", OB_KC("error", why),
           OB_KC("from", at->lsn ? from : "unknown"), OB_KC("to", to));
    return OB_OK;
}

/* No table has the events: a first start, or events are lost. */
static enum ob_status start_anew(struct ob_source *s, const struct standing *at,
                                 const struct wal_slot *slot, const char *why, struct ob_err *err)
{
    struct wal_slot_case c = {
        .there = slot->there, .ours = slot->ours, .lost = slot->lost, .record = at->record};
    return ob_slot_rule(&c) == SLOT_KEEP ? lost(s, at, why, err) : OB_OK;
}

/* The stream goes on where the cursor is. */
static enum ob_status resume(struct ob_source *s, const struct standing *at, struct ob_err *err)
{
    struct wal_state *w = wal_of(s);
    enum ob_status st = OB_OK;
    if (at->record != SLOT_CREATED || strcmp(at->slot, w->slot) != 0)
        st = ob_pg_wal_record_slot(s, err);
    if (st == OB_OK && s->whole)
        st = ob_pg_wal_past_load(s, err);
    if (st == OB_OK)
        st = ob_pg_wal_ahead_load(s, at->now, err);
    return st == OB_OK && !w->rows ? ob_pg_wal_recorded(s, err) : st;
}

/* Where only the stream has the events: after a change of the number of shards, or of the slot's
 * name, the old slots are copied first. */
static enum ob_status load_moved(struct ob_source *s, struct standing *at, struct ob_err *err)
{
    struct wal_state *w = wal_of(s);
    enum ob_status st = load(s, at, err);
    if (st != OB_OK || w->table_reader)
        return st;
    bool renamed =
        at->record == SLOT_CREATED && at->lsn && at->slot[0] && strcmp(at->slot, w->slot) != 0;
    if (!renamed && at->record != SLOT_MOVING)
        return st;
    if (renamed)
        st = ob_pg_wal_record_move(s, err);
    if (st == OB_OK)
        st = ob_pg_wal_move_slots(s, err);
    ob_pg_snap_unref(w->seen);
    w->seen = NULL;
    return st == OB_OK ? load(s, at, err) : st;
}

static enum ob_status choose(struct ob_source *s, struct ob_err *err)
{
    struct wal_state *w = wal_of(s);
    struct standing at;
    struct wal_slot slot;
    enum ob_status st = load_moved(s, &at, err);
    if (st == OB_OK)
        st = ob_pg_wal_slot(s, &slot, err);
    if (st != OB_OK)
        return st;
    const char *why = gap(s, &at, &slot);
    if (why || w->rows || !w->table_reader) { /* only the cursor of the native table has seen any */
        ob_pg_snap_unref(w->seen);
        w->seen = NULL;
        w->seen_xmax = 0;
    }
    ob_handover_init(&w->handover, !why);
    if (!why) {
        w->durable = w->read = w->reached = at.pos;
        w->check_all = w->rows;
        return resume(s, &at, err);
    }
    if (!w->table_reader)
        return start_anew(s, &at, &slot, why, err);
    ob_log(s->log, at.record == SLOT_NEVER ? OB_LOG_INFO : OB_LOG_WARN, "wal.table",
           OB_KC("reason", why));
    if (w->rows)
        return OB_OK;
    /* The table's cursor will see transactions that it has not read: a stream that went on at the
     * old position would skip them (test_mode_log_leaves_no_position_in_the_stream). */
    st = at.lsn ? ob_pg_wal_leave_stream(s, err) : OB_OK;
    return st == OB_OK ? w->table_reader->start(s, err) : st;
}

/* A table with state columns has the reader of mode rows beside the stream. */
static enum ob_status open_map(struct ob_source *s, struct ob_err *err)
{
    struct wal_state *w = wal_of(s);
    enum ob_status st = OB_OK;
    if (w->rows)
        st = ob_pg_rows.start(s, err);
    if (st == OB_OK && w->rows) {
        w->map = ((struct rows_state *)s->state)->map;
        ob_arena_ref(w->map->arena);
    } else if (st == OB_OK) {
        st = ob_pg_map_open_stream(&s->sql, &s->conf->mapping, s->pipeline, s->owner, &w->map, err);
    }
    if (st != OB_OK)
        return st;
    w->more_at = calloc(w->map->n_more + 1, sizeof(*w->more_at));
    return w->more_at ? OB_OK : ob_err_set(err, OB_DOWN, "no memory");
}

enum ob_status ob_pg_wal_start(struct ob_source *s, struct ob_err *err)
{
    struct wal_state *w = calloc(1, sizeof(*w));
    if (!w)
        return ob_err_set(err, OB_DOWN, "no memory");
    s->wal = w;
    enum ob_status st = OB_OK;
    w->rows = s->reader == &ob_pg_wal_rows;
    if (s->conf->mapping.table)
        st = open_map(s, err);
    if (st != OB_OK)
        return st;
    w->table_reader = s->whole ? NULL : w->rows ? &ob_pg_rows : &ob_pg_log;
    w->room = malloc(sizeof(*w->room));
    w->events = malloc((size_t)s->conf->page * sizeof(*w->events));
    if (!w->room || !w->events)
        return ob_err_set(err, OB_DOWN, "no memory");
    w->wait_visible = s->conf->wait_visible != PG_WAIT_OFF; /* until the first tick knows better */
    st = ob_pg_wal_names(s, err);
    /* On this server's disk before the server is told: `local`, because that is where the slot is,
     * and because a stand-by that is away must not stop us. */
    if (st == OB_OK)
        st = ob_pg_exec(&s->sql, "set synchronous_commit = local", err);
    if (st == OB_OK)
        st = ob_pg_wal_publication(s, err);
    if (st == OB_OK)
        st = choose(s, err);
    if (st == OB_OK && !wal_streams(wal_of(s)))
        ob_pg_wal_drop_others(s);
    return st;
}
