/* SPDX-License-Identifier: Apache-2.0 */
/* conn - one libpq connection: every call has a deadline, every failure says what to do.
 *
 * Thread: one at a time. The calls wait, at most until their deadline; a statement that does not
 * come back in time ends the connection (its outcome is then unknown to us, and says so). */
#ifndef OB_SOURCE_POSTGRES_CONN_H
#define OB_SOURCE_POSTGRES_CONN_H

#include "core/clock.h"
#include "core/err.h"
#include "core/str.h"

#include <libpq-fe.h>
#include <stdbool.h>

struct pg_session {
    PGconn *c; /* NULL: not connected */
    const struct ob_clock *clock;
    int64_t timeout_ms; /* of one statement */
};

/* A parameter; NULL p is NULL. Text unless binary. */
struct pg_param {
    const char *p;
    int n; /* binary only */
    bool binary;
};

#define PG_TEXT(z) ((struct pg_param){.p = (z)})
#define PG_BIN(ptr, len)                                                                           \
    ((struct pg_param){.p = (const char *)(ptr), .n = (int)(len), .binary = true})
#define PG_NULL ((struct pg_param){0})
#define PG_MAX_PARAMS 24

/* Connects (dial.c): each host of the connection string in turn, with keepalives on both sides; TLS
 * that is verified unless the server is on this machine or the string says otherwise. Then settles
 * the session: time zone UTC, search_path empty, no time-outs of a role but ours. replication: a
 * walsender for logical decoding. OB_DOWN: not reachable, or refused (password, certificate);
 * OB_FATAL: it never will do (a bad string, a pooler in transaction mode, a server that is too
 * old). The text has the way out and never a secret. */
enum ob_status ob_pg_connect(struct pg_session *conn, const char *dsn, const char *name,
                             bool replication, const struct ob_clock *clock, int64_t timeout_ms,
                             struct ob_err *err) OB_MUST_CHECK;
/* NULL: nobody can listen to or stand in for the server. Else what the connection string gave up.
 */
const char *ob_pg_weak_tls(const struct pg_session *conn);
void ob_pg_close(struct pg_session *conn);
/* PQsocket, or -1. */
int ob_pg_fd(const struct pg_session *conn);

/* One statement; several without parameters. *out (may be NULL) belongs to the caller (PQclear).
 * rows: binary results. */
enum ob_status ob_pg_query(struct pg_session *conn, const char *sql, const struct pg_param *params,
                           size_t n, bool binary, PGresult **out, struct ob_err *err) OB_MUST_CHECK;
enum ob_status ob_pg_exec(struct pg_session *conn, const char *sql,
                          struct ob_err *err) OB_MUST_CHECK;
enum ob_status ob_pg_prepare(struct pg_session *conn, const char *name, const char *sql,
                             struct ob_err *err) OB_MUST_CHECK;
/* Rolls back if a transaction is open; harmless otherwise. */
void ob_pg_rollback(struct pg_session *conn);

/* Waits until the connection has a whole result, at most until the deadline (mono ms). OB_DOWN: it
 * is gone or late; the connection is closed. */
enum ob_status ob_pg_wait(struct pg_session *conn, int64_t deadline_ms,
                          struct ob_err *err) OB_MUST_CHECK;
/* poll(2) on the socket until the deadline (mono ms). */
bool ob_pg_wait_socket(const struct pg_session *conn, short events, int64_t deadline_ms);
/* Sets err from a failed result (res NULL: from the connection) and says what to do, by SQLSTATE.
 */
enum ob_status ob_pg_fail(const struct pg_session *conn, const PGresult *res, const char *what,
                          struct ob_err *err);
/* True: the failure means that the client had no memory for the answer. */
bool ob_pg_no_memory(const struct ob_err *err);
void ob_pg_one_line(char *text); /* libpq's messages have several */
/* SQLSTATE of a result, "" if none. */
const char *ob_pg_state(const PGresult *res);

/* Values of binary results. */
bool ob_pg_null(const PGresult *res, int row, int col);
int64_t ob_pg_i64(const PGresult *res, int row, int col); /* int2, int4, int8, oid, xid8, pg_lsn */
struct ob_str ob_pg_str(const PGresult *res, int row, int col);
struct ob_str ob_pg_text(const PGresult *res, int row, int col); /* NULL: no pointer */
int64_t ob_pg_time_us(const PGresult *res, int row, int col);    /* timestamptz as Unix µs */
bool ob_pg_bool(const PGresult *res, int row, int col);

/* Arrays as parameters, in text form; buf is reset first. NULL p in strs: NULL. */
struct ob_buf;
void ob_pg_array_i64(struct ob_buf *buf, const int64_t *v, size_t n);
void ob_pg_array_begin(struct ob_buf *buf);
void ob_pg_array_add(struct ob_buf *buf, struct ob_str s); /* quoted; always good UTF-8 */
void ob_pg_array_int(struct ob_buf *buf, int64_t v);
void ob_pg_array_bytes(struct ob_buf *buf, struct ob_str s); /* of bytea */
void ob_pg_array_add_null(struct ob_buf *buf);
const char *ob_pg_array_end(struct ob_buf *buf);
/* "name" with quotes doubled; for identifiers that come from a config file. */
void ob_pg_ident(struct ob_buf *buf, const char *name);

#endif
