/* SPDX-License-Identifier: Apache-2.0 */
/* wal_table - no slot continues at the cursor: the table's own reader goes on from there while a
 * slot is created, which waits for every running transaction. wal_handover.h has the states from
 * there to the stream; transactions that the last round saw are skipped in the stream. */
#include "source/postgres/log.h"
#include "source/postgres/rows.h"
#include "source/postgres/wal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define SAY_AFTER_MS 5000 /* a slot that is not made by then: who is in the way */
#define SAY_MS 60000

uint64_t ob_pg_wal_table_rounds(const struct ob_source *s)
{
    const struct log_state *l = s->state;
    if (wal_of(s)->rows)
        return ob_pg_wal_rows_passes(s);
    return l ? l->rounds : 0;
}

/* What the table's reader has read; place: of its cursor if all of that is settled. */
static void report_reading(struct ob_source *s, struct wal_reading *out, struct pg_cursor *place)
{
    const struct wal_state *w = wal_of(s);
    const struct log_state *l = s->state;
    if (w->rows)
        ob_pg_wal_rows_reading(s, out);
    else if (!w->table_reader)
        *out = (struct wal_reading){UINT64_MAX, true, true};
    else
        *out = (struct wal_reading){.complete = l ? l->complete : 0,
                                    .at_complete = l && ob_pg_place_same(&l->at, &l->complete_at),
                                    .settled = l && w->table_reader->rest(s, place)};
}

static enum ob_status begin_slot(struct ob_source *s, struct ob_err *err)
{
    struct wal_state *w = wal_of(s);
    struct ob_buf sql;
    int64_t now = ob_clock_mono_ms(s->clock);
    if (now < w->open_at)
        return OB_AGAIN;
    w->open_at = now + 100;
    uint64_t use = 0;
    w->made_at = now;
    enum ob_status st = ob_pg_wal_ready_slot(s, &use, err);
    if (st == OB_OK && use != 0) {
        ob_handover_created(&w->handover, use, ob_pg_wal_table_rounds(s));
        return OB_OK;
    }
    if (st == OB_OK)
        st = ob_pg_wal_connect(s, err);
    if (st != OB_OK)
        return st;
    ob_buf_init(&sql, 1024);
    ob_buf_c(&sql, "CREATE_REPLICATION_SLOT ");
    ob_pg_ident(&sql, w->slot);
    ob_buf_c(&sql, " LOGICAL pgoutput NOEXPORT_SNAPSHOT");
    if (sql.failed || PQsendQuery(w->repl.c, ob_buf_z(&sql)) != 1 || PQflush(w->repl.c) < 0)
        st = ob_pg_fail(&w->repl, NULL, "creating a slot", err);
    ob_buf_clear(&sql);
    if (st == OB_OK) {
        ob_handover_creating(&w->handover);
        w->said_at = now + SAY_AFTER_MS;
    } else {
        ob_pg_wal_close(s);
    }
    return st;
}

/* Making a slot waits for all that run, also in other databases. */
static void say_blocker(struct ob_source *s)
{
    PGresult *res = NULL;
    struct ob_err ignored;
    struct wal_state *w = wal_of(s);
    int64_t now = ob_clock_mono_ms(s->clock);
    if (now < w->said_at)
        return;
    w->said_at = now + SAY_MS;
    if (ob_pg_query(&s->sql,
                    "select format('backend %s (%s, %s, %s) since %s', pid, usename, datname, "
                    "coalesce(nullif(application_name, ''), 'no name'), date_trunc('second', "
                    "clock_timestamp() - xact_start)) as t, backend_xid::text::bigint as x from "
                    "pg_stat_activity where backend_xid is not null and pid <> pg_backend_pid() "
                    "union all select format('prepared transaction %s', gid), "
                    "transaction::text::bigint from pg_prepared_xacts order by x limit 1",
                    NULL, 0, false, &res, &ignored) == OB_OK &&
        PQntuples(res) == 1)
        ob_log(s->log, OB_LOG_WARN, "wal.slot", OB_KC("waits_for", PQgetvalue(res, 0, 0)));
    PQclear(res);
}

static enum ob_status check_slot(struct ob_source *s, struct ob_err *err)
{
    struct wal_state *w = wal_of(s);
    enum ob_status st = OB_AGAIN;
    uint64_t lsn = 0;
    if (!PQconsumeInput(w->repl.c)) {
        st = ob_pg_fail(&w->repl, NULL, "creating a slot", err);
    } else if (PQisBusy(w->repl.c)) {
        say_blocker(s);
        w->open_at = ob_clock_mono_ms(s->clock) + 20;
    } else {
        PGresult *res = PQgetResult(w->repl.c);
        if (PQresultStatus(res) != PGRES_TUPLES_OK || PQntuples(res) != 1)
            st = ob_pg_fail(&w->repl, res, "creating a slot", err);
        else if (!ob_pgo_lsn_parse(PQgetvalue(res, 0, 1), &lsn))
            st = ob_err_set(err, OB_DOWN, "a slot at %s", PQgetvalue(res, 0, 1));
        else
            st = OB_OK;
        PQclear(res);
    }
    if (st == OB_AGAIN)
        return st;
    ob_handover_not_created(&w->handover);
    ob_pg_wal_close(s);
    if (st == OB_OK)
        ob_handover_created(&w->handover, lsn, ob_pg_wal_table_rounds(s));
    w->open_at = st == OB_OK ? 0 : ob_clock_mono_ms(s->clock) + 1000;
    return st;
}

/* The cursor gets its lsn: from here on it is the stream's. */
static enum ob_status write_switch(struct ob_source *s, const struct pg_cursor *c,
                                   struct ob_err *err)
{
    struct wal_state *w = wal_of(s);
    char shard[12], epoch[24], lsn[PGO_LSN_TEXT];
    PGresult *res = NULL;
    snprintf(shard, sizeof(shard), "%u", s->shard);
    snprintf(epoch, sizeof(epoch), "%" PRId64, s->epoch);
    ob_pgo_lsn_format(w->handover.anchor, lsn);
    const struct pg_param p[] = {PG_TEXT(s->pipeline),  PG_TEXT(shard),        PG_TEXT(epoch),
                                 PG_TEXT(c->pos),       PG_TEXT(c->snap),      PG_TEXT(c->late_pos),
                                 PG_TEXT(c->late_snap), PG_TEXT(c->adopt_pos), PG_TEXT(lsn),
                                 PG_TEXT(w->mark),      PG_TEXT(w->slot)};
    enum ob_status st = ob_pg_query(
        &s->sql,
        "update outbox.cursor set lsn = $9::pg_lsn, rows_done = 0, wal = $10, slot = $11, "
        "slot_state = 'created', ahead = null, ahead_n = 0, " PG_PLACE(
            "$4", "$5", "$6", "$7",
            "$8") " where pipeline = $1 and shard = $2::int and epoch = $3::bigint returning "
                  "pg_current_xact_id()",
        p, 11, true, &res, err);
    if (st == OB_OK && PQntuples(res) == 0) {
        ob_pg_lost(s);
        st = ob_err_set(err, OB_FENCED, "another owner took over");
    } else if (st == OB_OK) {
        ob_pg_fence_note(s, (uint64_t)ob_pg_i64(res, 0, 0));
    }
    PQclear(res);
    return st;
}

static uint64_t parse_xmax(const char *snap)
{
    const char *p = strchr(snap, ':');
    return p ? strtoull(p + 1, NULL, 10) : 0;
}

/* The ordinals go on in the stream; what the last round saw is skipped there. */
static struct snap *leave_table(struct ob_source *s)
{
    struct wal_state *w = wal_of(s);
    struct snap *seen = NULL;
    if (w->rows) {
        const struct rows_state *r = s->state;
        w->given = w->handed = w->settled = r->given;
        w->check_all = true;
    } else if (w->table_reader) {
        const struct log_state *l = s->state;
        seen = ob_pg_snap_ref(l->at.snap);
        w->given = w->handed = w->settled = l->ring.tail;
        w->table_reader->stop(s);
    }
    return seen;
}

/* All that was read is settled: the cursor and the stream change over. */
static enum ob_status begin_stream(struct ob_source *s, const struct wal_reading *r,
                                   const struct pg_cursor *place, struct ob_err *err)
{
    struct wal_state *w = wal_of(s);
    enum ob_status st = ob_handover_check(&w->handover, r, err);
    if (st == OB_OK)
        st = write_switch(s, place, err);
    if (st != OB_OK)
        return st;
    struct snap *seen = leave_table(s);
    ob_pg_snap_unref(w->seen);
    w->seen = seen;
    w->seen_xmax = seen ? parse_xmax(seen->text) : 0;
    w->durable = w->read = w->reached = (struct wal_pos){w->handover.anchor, 0};
    ob_handover_done(&w->handover);
    w->open_at = 0;
    char lsn[PGO_LSN_TEXT];
    ob_pgo_lsn_format(w->handover.anchor, lsn);
    ob_log(s->log, OB_LOG_INFO, "wal.stream", OB_KC("slot", w->slot), OB_KC("lsn", lsn));
    return ob_pg_wal_recorded(s, err);
}

static enum ob_status advance(struct ob_source *s, struct ob_err *err)
{
    struct wal_state *w = wal_of(s);
    struct wal_reading reading;
    struct pg_cursor place = {0};
    enum ob_status st = OB_AGAIN;
    if (w->handover.state == HANDOVER_TABLE) {
        bool busy = w->table_reader && w->table_reader->looking && w->table_reader->looking(s);
        st = busy ? OB_AGAIN : begin_slot(s, err);
    } else if (w->handover.state == HANDOVER_CREATING) {
        st = check_slot(s, err);
    }
    if (st != OB_OK && st != OB_AGAIN)
        return st;
    report_reading(s, &reading, &place);
    if (ob_handover_ready(&w->handover, &reading) || w->handover.state == HANDOVER_FAILED)
        return begin_stream(s, &reading, &place, err);
    if (w->handover.state == HANDOVER_SETTLING)
        w->open_at = ob_clock_mono_ms(s->clock) + 5;
    return st;
}

enum ob_status ob_pg_wal_table_claim(struct ob_source *s, size_t max, size_t max_bytes,
                                     struct ob_batch **out, struct ob_err *err)
{
    struct wal_state *w = wal_of(s);
    enum ob_status st = OB_AGAIN;
    if (w->table_reader && ob_handover_reads(&w->handover))
        st = w->table_reader->claim(s, max, max_bytes, out, err);
    if (st != OB_AGAIN)
        return st;
    st = advance(s, err);
    if (st == OB_OK || st == OB_AGAIN || st == OB_FENCED)
        return st == OB_FENCED ? st : OB_AGAIN;
    if (!w->table_reader || w->handover.state == HANDOVER_FAILED)
        return st; /* nothing else is read */
    /* The table goes on being read; said once, and tried again. */
    int64_t now = ob_clock_mono_ms(s->clock);
    if (now >= w->said_at) {
        ob_log(s->log, OB_LOG_ERROR, "wal.slot", OB_KC("error", err->text));
        w->said_at = now + SAY_MS;
    }
    w->open_at = now + 1000;
    return OB_AGAIN;
}
