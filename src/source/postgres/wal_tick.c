/* SPDX-License-Identifier: Apache-2.0 */
/* wal_tick - once a second: a sign of life to the server, the anchor, the state of slot and
 * publication; and what SQL shows already.
 *
 * The anchor maps a position of the stream to one of the table. One statement gives a snapshot, the
 * last number and, behind both, the WAL's end: all that the snapshot shows was committed below it.
 * When the stream's position has reached that end, (number, snapshot) is stored as the ordinary
 * cursor of mode log: what it shows is settled. It is taken only while the publication is the one
 * that the slot began with, and that is read in the same snapshot: rows that a changed publication
 * left out are never behind an anchor. */
#include "source/postgres/wal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define VISIBLE_MAX_MS 50
#define SAY_MS 60000
#define INVISIBLE_MS 3000 /* a commit that stays invisible for so long is told of */

bool ob_pg_wal_anchor(struct wal_state *w, struct wal_pos at, struct pg_cursor *out)
{
    if (!w->anchor_snap || at.lsn < w->anchor_lsn)
        return false;
    snprintf(w->texts[2], sizeof(w->texts[2]), "%" PRId64, w->anchor_pos);
    out->pos = out->late_pos = w->texts[2];
    out->snap = w->anchor_snap->text;
    return true;
}

/* The slot cannot be followed any more: the shard is taken again, from the table. Without a table
 * the cursor goes back to the last position at which the publication was complete, never forward:
 * what is not settled must be part of the range that is reported as lost. */
static enum ob_status fall(struct ob_source *s, bool drop, const char *why, struct ob_err *err)
{
    struct wal_state *w = wal_of(s);
    char shard[12], epoch[24], lsn[PGO_LSN_TEXT];
    struct ob_err ignored;
    snprintf(shard, sizeof(shard), "%u", s->shard);
    snprintf(epoch, sizeof(epoch), "%" PRId64, s->epoch);
    ob_pgo_lsn_format(w->verified, lsn);
    const struct pg_param p[] = {PG_TEXT(s->pipeline), PG_TEXT(shard), PG_TEXT(epoch),
                                 PG_TEXT(w->table_reader || !w->verified ? NULL : lsn)};
    bool table = w->table_reader != NULL;
    ob_pg_wal_close(s);
    enum ob_status st = ob_pg_query(
        &s->sql,
        table ? "update outbox.cursor set lsn = $4::pg_lsn, rows_done = 0 where pipeline = $1 and "
                "shard = $2::int and epoch = $3::bigint"
              : "update outbox.cursor set lsn = least(lsn, $4::pg_lsn), rows_done = case when "
                "$4::pg_lsn < lsn then 0 else rows_done end where pipeline = $1 and shard = "
                "$2::int and epoch = $3::bigint",
        p, 4, false, NULL, err);
    /* If it is still held, it is dropped when the shard is taken again. */
    if (st == OB_OK && drop && ob_pg_wal_drop_slot(s, &ignored) == OB_FATAL)
        ob_log(s->log, OB_LOG_WARN, "wal.drop", OB_KC("error", ignored.text));
    ob_pg_lost(s);
    return ob_err_set(err, OB_FENCED, "%s%s", why,
                      table ? ": the table is read in place of the stream" : "");
}

struct found {
    const char *mark, *status;
    int64_t retained;
};

static enum ob_status judge(struct ob_source *s, const struct found *f, struct ob_err *err)
{
    struct wal_state *w = wal_of(s);
    char why[200];
    int64_t now = ob_clock_mono_ms(s->clock);
    bool over = s->conf->wal_budget > 0 && f->retained > s->conf->wal_budget;
    if (over)
        snprintf(why, sizeof(why), "slot %s holds %" PRId64 " bytes of WAL, wal_budget is %" PRId64,
                 w->slot, f->retained, s->conf->wal_budget);
    if (!w->table_reader) { /* nothing but the stream has the events: it is never given up */
        if (over && now >= w->said_at) {
            ob_log(s->log, OB_LOG_ERROR, "wal.budget", OB_KC("error", why));
            w->said_at = now + SAY_MS;
        }
        if (ob_pg_wal_table_name(s) && (!f->mark || strcmp(f->mark, w->mark) != 0))
            return fall(s, false, "the publication was changed", err);
        return OB_OK;
    }
    if (over)
        return fall(s, true, why, err);
    if (!f->mark || strcmp(f->mark, w->mark) != 0)
        return fall(s, true, "the publication was changed", err);
    if (!f->status)
        return fall(s, false, "the slot is gone", err);
    if (strcmp(f->status, "lost") == 0)
        return fall(s, true, "the server has given up the slot's WAL (max_slot_wal_keep_size)",
                    err);
    return OB_OK;
}

static enum ob_status take_anchor(struct wal_state *w, const PGresult *res, struct ob_err *err)
{
    if (!ob_pgo_lsn_parse(PQgetvalue(res, 0, 2), &w->verified))
        w->verified = 0;
    if (w->sweep && w->sweep_lsn == 0)
        w->sweep_lsn = w->verified;
    if (w->anchor_snap || !w->table_reader || w->rows)
        return OB_OK;
    w->anchor_snap = ob_pg_snap_new(PQgetvalue(res, 0, 0));
    if (!w->anchor_snap)
        return ob_err_set(err, OB_DOWN, "no memory");
    w->anchor_pos = strtoll(PQgetvalue(res, 0, 1), NULL, 10);
    w->anchor_lsn = w->verified ? w->verified : UINT64_MAX;
    return OB_OK;
}

enum ob_status ob_pg_wal_tick(struct ob_source *s, struct ob_err *err)
{
    struct wal_state *w = wal_of(s);
    PGresult *res = NULL;
    if (!wal_streams(w))
        return OB_OK;
    ob_pg_wal_report(s, true);
    enum ob_status st = w->rows ? ob_pg_wal_rows_look(s, err) : OB_OK;
    if (st != OB_OK)
        return ob_pg_owned(s, &(struct ob_err){0}) == OB_OK ? st : OB_FENCED;
    const struct pg_param p[] = {PG_TEXT(w->publication), PG_TEXT(ob_pg_wal_table_name(s)),
                                 PG_TEXT(w->slot)};
    st = ob_pg_query(
        &s->sql,
        "select pg_current_snapshot()::text, (select case when is_called then last_value else 0 "
        "end from outbox.event_seq_seq), pg_current_wal_insert_lsn()::text, "
        "current_setting('synchronous_standby_names') <> '', " PG_WAL_MARK
        ", r.wal_status, coalesce(pg_wal_lsn_diff(pg_current_wal_insert_lsn(), r.restart_lsn), "
        "0)::bigint from (values (1)) v left join pg_replication_slots r on r.slot_name = $3",
        p, 3, false, &res, err);
    if (st != OB_OK)
        return ob_pg_owned(s, &(struct ob_err){0}) == OB_OK ? st : OB_FENCED;
    struct found f = {.mark = PQgetisnull(res, 0, 4) ? NULL : PQgetvalue(res, 0, 4),
                      .status = PQgetisnull(res, 0, 5) ? NULL : PQgetvalue(res, 0, 5),
                      .retained = strtoll(PQgetvalue(res, 0, 6), NULL, 10)};
    /* Rows that SQL does not show cannot be marked. */
    w->wait_visible = (w->rows && s->conf->wait_visible != PG_WAIT_OFF) ||
                      s->conf->wait_visible == PG_WAIT_ON ||
                      (s->conf->wait_visible == PG_WAIT_AUTO && PQgetvalue(res, 0, 3)[0] == 't');
    st = judge(s, &f, err);
    if (st == OB_OK)
        st = take_anchor(w, res, err);
    PQclear(res);
    return st;
}

/* Held back for long: once, until it is over. */
static void tell_invisible(struct ob_source *s, int64_t now)
{
    struct wal_state *w = wal_of(s);
    if (w->invisible_since == 0)
        w->invisible_since = now;
    if (w->told_invisible || now - w->invisible_since < INVISIBLE_MS)
        return;
    w->told_invisible = true;
    ob_log(s->log, OB_LOG_WARN, "wal.invisible", OB_KI("xid", (int64_t)w->txn_xid),
           OB_KI("waited_ms", now - w->invisible_since),
           OB_KC("error", "a commit waits for a synchronous stand-by and nobody sees it yet, so "
                          "nothing is delivered: start the stand-by, or see "
                          "synchronous_standby_names; `outbox check` tells who is connected"));
}

/* With synchronous stand-bys a commit is decoded before the session that made it, and anybody else,
 * sees it. */
enum ob_status ob_pg_wal_visible(struct ob_source *s, struct ob_err *err)
{
    struct wal_state *w = wal_of(s);
    PGresult *res = NULL;
    int64_t now = ob_clock_mono_ms(s->clock);
    if (!w->visible || !ob_pg_snap_shows(w->visible->text, w->txn_xid)) {
        if (now < w->visible_at)
            return OB_AGAIN;
        enum ob_status st =
            ob_pg_query(&s->sql, "select pg_current_snapshot()::text", NULL, 0, false, &res, err);
        if (st != OB_OK)
            return st;
        ob_pg_snap_unref(w->visible);
        w->visible = ob_pg_snap_new(PQgetvalue(res, 0, 0));
        PQclear(res);
        if (!w->visible)
            return ob_err_set(err, OB_DOWN, "no memory");
        if (!ob_pg_snap_shows(w->visible->text, w->txn_xid)) {
            w->visible_ms = w->visible_ms ? w->visible_ms * 2 : 1;
            w->visible_ms = w->visible_ms > VISIBLE_MAX_MS ? VISIBLE_MAX_MS : w->visible_ms;
            w->visible_at = now + w->visible_ms;
            tell_invisible(s, now);
            return OB_AGAIN;
        }
    }
    w->waiting = w->told_invisible = false;
    w->invisible_since = 0;
    w->visible_ms = 0;
    w->visible_at = 0;
    return OB_OK;
}
