/* SPDX-License-Identifier: Apache-2.0 */
/* wal_stream - the replication connection. Frames are read only when the relay has room for events:
 * what is not read stays in the socket, and the server waits. The server hears from us every second
 * whether or not we read (wal_tick.c), so it never takes us for dead. */
#include "source/postgres/wal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define BUSY_MS 300 /* a slot is held so long before we look who holds it */
#define GIVE_UP_MS 10000
#define FAILURES_MAX 5 /* in a row: start anew */

void ob_pg_wal_close(struct ob_source *s)
{
    struct wal_state *w = wal_of(s);
    struct ob_err ignored;
    if (w->streaming && w->repl.c && PQstatus(w->repl.c) == CONNECTION_OK) {
        ob_pg_wal_report(s, false); /* the last position (test: "clean stop") */
        if (PQputCopyEnd(w->repl.c, NULL) == 1)
            PQflush(w->repl.c);
    } else if (w->repl.c && w->handover.state == HANDOVER_CREATING) {
        char text[128];
        PGcancel *cancel = PQgetCancel(w->repl.c); /* else the server goes on waiting */
        if (cancel && !PQcancel(cancel, text, sizeof(text)))
            ob_err_set(&ignored, OB_DOWN, "%s", text);
        PQfreeCancel(cancel);
    }
    ob_pg_close(&w->repl);
    w->streaming = w->in_txn = w->skip_txn = w->waiting = false;
    w->table.known = false;
}

void ob_pg_wal_report(struct ob_source *s, bool reply)
{
    struct wal_state *w = wal_of(s);
    char status[PGO_STATUS_SIZE];
    if (!w->streaming || !w->repl.c)
        return;
    ob_pgo_status(w->durable.lsn, w->durable.lsn, ob_clock_wall_us(s->clock), reply, status);
    if (PQputCopyData(w->repl.c, status, PGO_STATUS_SIZE) == 1)
        PQflush(w->repl.c); /* a failure shows with the next read */
}

/* Both sessions must be on one server: a connection string may name several. */
static enum ob_status identify(struct ob_source *s, struct ob_err *err)
{
    struct wal_state *w = wal_of(s);
    PGresult *res = NULL;
    enum ob_status st = ob_pg_query(&w->repl, "IDENTIFY_SYSTEM", NULL, 0, false, &res, err);
    if (st != OB_OK)
        return st;
    if (PQntuples(res) != 1 || PQnfields(res) < 3)
        st = ob_err_set(err, OB_DOWN, "the server does not say who it is");
    else if (strcmp(PQgetvalue(res, 0, 0), w->system_id) != 0 ||
             strtoll(PQgetvalue(res, 0, 1), NULL, 10) != w->timeline)
        st = ob_err_set(err, OB_DOWN,
                        "the replication connection reached another server than the session");
    PQclear(res);
    return st;
}

enum ob_status ob_pg_wal_connect(struct ob_source *s, struct ob_err *err)
{
    struct wal_state *w = wal_of(s);
    ob_pg_close(&w->repl);
    enum ob_status st = ob_pg_connect(&w->repl, s->conf->dsn, "outbox wal", true, s->clock,
                                      s->conf->timeout_ms, err);
    if (st == OB_OK)
        st = identify(s, err);
    /* Values may come as text. */
    if (st == OB_OK)
        st = ob_pg_exec(&w->repl,
                        "set timezone = 'UTC'; set datestyle = 'ISO'; set bytea_output = 'hex'; "
                        "set statement_timeout = 0",
                        err);
    if (st != OB_OK)
        ob_pg_close(&w->repl);
    return st;
}

static void start_command(const struct ob_source *s, struct ob_buf *sql)
{
    const struct wal_state *w = wal_of(s);
    char lsn[PGO_LSN_TEXT];
    ob_pgo_lsn_format(w->resume.lsn, lsn);
    ob_buf_c(sql, "START_REPLICATION SLOT ");
    ob_pg_ident(sql, w->slot);
    ob_buf_printf(sql, " LOGICAL %s (proto_version '1', publication_names '", lsn);
    for (const char *p = w->publication; *p; p++) { /* quoted once as a name, once as a string */
        if (p == w->publication)
            ob_buf_char(sql, '"');
        ob_buf_char(sql, *p);
        if (*p == '\'' || *p == '"')
            ob_buf_char(sql, *p);
    }
    ob_buf_c(sql, "\"'");
    if (PQserverVersion(w->repl.c) >= 140000 && !s->whole && !w->map)
        ob_buf_c(sql, ", binary 'true'");
    if (s->conf->message_prefix[0])
        ob_buf_c(sql, ", messages 'true'");
    ob_buf_char(sql, ')');
}

/* OB_RETRY: the slot is held. */
static enum ob_status start(struct ob_source *s, struct ob_err *err)
{
    struct wal_state *w = wal_of(s);
    struct ob_buf sql;
    PGresult *res = NULL;
    ob_buf_init(&sql, 4096);
    start_command(s, &sql);
    enum ob_status st = OB_OK;
    if (sql.failed || PQsendQuery(w->repl.c, ob_buf_z(&sql)) != 1)
        st = ob_pg_fail(&w->repl, NULL, "START_REPLICATION", err);
    if (st == OB_OK)
        st = ob_pg_wait(&w->repl, ob_clock_mono_ms(s->clock) + s->conf->timeout_ms, err);
    if (st == OB_OK) {
        res = PQgetResult(w->repl.c);
        if (PQresultStatus(res) != PGRES_COPY_BOTH)
            st = ob_pg_fail(&w->repl, res, "START_REPLICATION", err);
    }
    PQclear(res);
    ob_buf_clear(&sql);
    return st;
}

/* Where the server stands now: what was committed before is below. */
static enum ob_status look_ahead(struct ob_source *s, struct ob_err *err)
{
    struct wal_state *w = wal_of(s);
    PGresult *res = NULL;
    enum ob_status st =
        ob_pg_query(&s->sql, "select pg_current_wal_insert_lsn()", NULL, 0, true, &res, err);
    if (st == OB_OK)
        w->target = (uint64_t)ob_pg_i64(res, 0, 0);
    if (st == OB_OK && w->check_all) {
        w->check_lsn = w->target;
        w->check_all = false;
    }
    PQclear(res);
    return st;
}

static enum ob_status held(struct ob_source *s, struct ob_err *err)
{
    struct wal_state *w = wal_of(s);
    int64_t now = ob_clock_mono_ms(s->clock);
    if (w->busy_since == 0)
        w->busy_since = now;
    w->open_at = now + 50;
    if (now - w->busy_since < BUSY_MS)
        return OB_AGAIN;
    enum ob_status st = ob_pg_wal_free_slot(s, w->slot, err);
    if (st == OB_OK)
        return now - w->busy_since < GIVE_UP_MS
                   ? OB_AGAIN
                   : ob_err_set(err, OB_RETRY, "slot %s stays held", w->slot);
    w->open_at = now + 1000;
    return st;
}

enum ob_status ob_pg_wal_open(struct ob_source *s, struct ob_err *err)
{
    struct wal_state *w = wal_of(s);
    if (ob_clock_mono_ms(s->clock) < w->open_at)
        return OB_AGAIN;
    w->resume = w->read;
    enum ob_status st = look_ahead(s, err);
    if (st == OB_OK)
        st = ob_pg_wal_connect(s, err);
    if (st == OB_OK)
        st = start(s, err);
    if (st == OB_OK) {
        w->streaming = true;
        w->in_txn = w->skip_txn = w->waiting = w->table.known = false;
        w->busy_since = 0;
        ob_pg_wal_report(s, true);
        return OB_OK;
    }
    ob_pg_wal_close(s);
    if (st == OB_RETRY)
        return held(s, err);
    if (st == OB_FATAL || ++w->failures > FAILURES_MAX) {
        ob_pg_lost(s); /* what stands in the way is found when the shard is taken again */
        err->status = OB_FENCED;
        return OB_FENCED;
    }
    w->open_at = ob_clock_mono_ms(s->clock) + 100 * w->failures;
    return st == OB_DOWN ? OB_AGAIN : st;
}

/* The stream has ended, or failed. What was handed out is not touched by that: the next connection
 * goes on behind it. */
static enum ob_status ended(struct ob_source *s, struct ob_err *err)
{
    struct wal_state *w = wal_of(s);
    PGresult *res = w->repl.c ? PQgetResult(w->repl.c) : NULL;
    enum ob_status st = ob_pg_fail(&w->repl, res, "replication", err);
    PQclear(res);
    ob_log(s->log, OB_LOG_WARN, "wal.ended", OB_KC("error", err->text));
    w->streaming = false;
    ob_pg_wal_close(s);
    w->open_at = ob_clock_mono_ms(s->clock) + 20;
    if (st != OB_FATAL && ++w->failures <= FAILURES_MAX)
        return OB_AGAIN;
    ob_pg_lost(s);
    err->status = OB_FENCED;
    return OB_FENCED;
}

enum ob_status ob_pg_wal_frame(struct ob_source *s, char **buf, size_t *n, struct ob_err *err)
{
    struct wal_state *w = wal_of(s);
    int got = PQgetCopyData(w->repl.c, buf, 1);
    /* An encrypted record may hold more than one read takes out of it. */
    for (int i = PQsslInUse(w->repl.c) ? 3 : 1; got == 0 && i > 0; i--) {
        if (!PQconsumeInput(w->repl.c))
            return ended(s, err);
        got = PQgetCopyData(w->repl.c, buf, 1);
    }
    if (got == 0)
        return OB_AGAIN;
    if (got < 0)
        return ended(s, err);
    *n = (size_t)got;
    return OB_OK;
}
