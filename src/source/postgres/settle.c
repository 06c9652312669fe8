/* SPDX-License-Identifier: Apache-2.0 */
/* settle - the one transaction that records what became of events: cursor, marks, parked and dead
 * rows change together or not at all. Its first statement is the fence: the cursor's row under our
 * epoch.
 *
 * Where nothing but the cursor moves, that one statement is the whole transaction: one round trip.
 * When a commit's outcome is not known the session is gone, and with it everything in memory: own.c
 * loads what was committed. */
#include "source/postgres/pg.h"

#include <inttypes.h>
#include <stdio.h>

#define PLACE PG_PLACE("$6", "$7", "$8", "$9", "$12")

static uint64_t count_failed(const struct ob_settle *settle)
{
    uint64_t n = 0;
    for (size_t i = 0; i < settle->n; i++)
        n += settle->ops[i].kind != OB_SETTLE_PUBLISHED && settle->ops[i].spent;
    return n;
}

/* *xid: of this transaction; it counts as a fence only when it is committed. */
static enum ob_status fence(struct ob_source *s, const struct ob_settle *settle, uint64_t *xid,
                            struct ob_err *err)
{
    struct pg_cursor c = {0};
    char shard[12], epoch[24], delivered[24], failed[24];
    PGresult *res = NULL;
    s->reader->cursor(s, settle, &c);
    snprintf(shard, sizeof(shard), "%u", s->shard);
    snprintf(epoch, sizeof(epoch), "%" PRId64, s->epoch);
    snprintf(delivered, sizeof(delivered), "%" PRIu64, settle->delivered);
    snprintf(failed, sizeof(failed), "%" PRIu64, count_failed(settle));
    const struct pg_param p[] = {PG_TEXT(s->pipeline), PG_TEXT(shard),       PG_TEXT(epoch),
                                 PG_TEXT(delivered),   PG_TEXT(failed),      PG_TEXT(c.pos),
                                 PG_TEXT(c.snap),      PG_TEXT(c.late_pos),  PG_TEXT(c.late_snap),
                                 PG_TEXT(c.lsn),       PG_TEXT(c.rows_done), PG_TEXT(c.adopt_pos),
                                 PG_TEXT(c.ahead),     PG_TEXT(c.ahead_n)};
    enum ob_status st = ob_pg_query(
        &s->sql,
        "update outbox.cursor set settle_no = settle_no + 1, beat = beat + 1, beat_at = "
        "clock_timestamp(), published = published + $4::bigint, failed = failed + $5::bigint, "
        "lsn = coalesce($10::pg_lsn, lsn), rows_done = coalesce($11::bigint, rows_done), "
        "ahead = case when $14::bigint is null then ahead else nullif($13::bytea, '') end, "
        "ahead_n = coalesce($14::bigint, ahead_n), " PLACE
        " where pipeline = $1 and shard = $2::int and epoch = "
        "$3::bigint returning pg_current_xact_id()",
        p, 14, true, &res, err);
    if (st != OB_OK)
        return st;
    if (PQntuples(res) == 0)
        st = ob_err_set(err, OB_FENCED, "another owner took over: nothing was recorded");
    else
        *xid = (uint64_t)ob_pg_i64(res, 0, 0);
    PQclear(res);
    return st;
}

enum ob_status ob_pg_settle(struct ob_source *s, struct ob_settle *settle, struct ob_settled *out,
                            struct ob_err *err)
{
    enum ob_status st = ob_pg_owned(s, err);
    uint64_t xid = 0;
    out->n_released = 0;
    out->next_due_ms = INT64_MAX;
    if (st != OB_OK)
        return st;
    bool alone = settle->n == 0;
    if (!alone)
        st = ob_pg_exec(&s->sql, "begin", err);
    if (st == OB_OK)
        st = fence(s, settle, &xid, err);
    if (st == OB_OK && !alone && s->reader->mark)
        st = s->reader->mark(s, settle, err);
    if (st == OB_OK && !alone)
        st = ob_pg_record(s, settle, out, err);
    if (st == OB_OK && !alone)
        st = ob_pg_exec(&s->sql, "commit", err);
    if (st != OB_OK) {
        struct ob_err gone;
        out->n_released = 0;
        ob_pg_rollback(&s->sql);
        if (st == OB_FENCED)
            ob_pg_lost(s);
        else if (ob_pg_owned(s, &gone) != OB_OK)
            st = OB_FENCED; /* err tells why the session ended */
        return st;
    }
    ob_pg_fence_note(s, xid);
    if (s->reader->settled)
        s->reader->settled(s, settle);
    return OB_OK;
}
