/* SPDX-License-Identifier: Apache-2.0 */
/* conn - one libpq connection with deadlines: statements, failures, values. dial.c makes it. */
#include "source/postgres/conn.h"

#include "core/buf.h"
#include "core/utf8.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <string.h>

#define EPOCH_2000_US 946684800000000LL

const char *ob_pg_state(const PGresult *res)
{
    const char *state = res ? PQresultErrorField(res, PG_DIAG_SQLSTATE) : NULL;
    return state ? state : "";
}

/* What to do about a SQLSTATE. Sorted by how specific they are; the first that is a prefix counts.
 */
static const struct {
    const char *prefix;
    enum ob_status status;
} classes[] = {
    {"40", OB_RETRY},    /* serialization failure, deadlock */
    {"55P03", OB_RETRY}, /* lock not available */
    {"57014", OB_RETRY}, /* cancelled: statement_timeout */
    {"55006", OB_RETRY}, /* object in use: a slot that another one holds */
    {"57P", OB_DOWN},    /* shutdown, crash, cannot connect now */
    {"08", OB_DOWN},     /* connection */
    {"53", OB_DOWN},     /* too many connections, disk full, out of memory */
    {"58", OB_DOWN},     /* system error */
    {"25006", OB_DOWN},  /* read-only: a stand-by; another host may be primary soon */
    {"XX", OB_DOWN},     /* internal error */
    {"28", OB_FATAL},    /* not authorised */
    {"3D", OB_FATAL},    /* no such database */
    {"42", OB_FATAL},    /* syntax, missing table or right */
    {"22", OB_REJECT},   /* bad value */
    {"23", OB_REJECT},   /* constraint */
    {"54", OB_REJECT},   /* too large */
    {"P0", OB_REJECT},   /* raised by a trigger of the table */
};

void ob_pg_one_line(char *text)
{
    size_t n = strlen(text);
    while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == ' '))
        text[--n] = '\0';
    for (char *p = text; *p; p++)
        if (*p == '\n' || *p == '\t')
            *p = ' ';
}

enum ob_status ob_pg_fail(const struct pg_session *conn, const PGresult *res, const char *what,
                          struct ob_err *err)
{
    const char *state = ob_pg_state(res);
    enum ob_status st = OB_FATAL;
    if (!*state) {
        st = OB_DOWN;
    } else {
        for (size_t i = 0; i < sizeof(classes) / sizeof(classes[0]); i++) {
            if (strncmp(state, classes[i].prefix, strlen(classes[i].prefix)) == 0) {
                st = classes[i].status;
                break;
            }
        }
    }
    if (conn->c && PQstatus(conn->c) == CONNECTION_BAD)
        st = OB_DOWN;
    const char *message = res ? PQresultErrorField(res, PG_DIAG_MESSAGE_PRIMARY) : NULL;
    const char *hint = res ? PQresultErrorField(res, PG_DIAG_MESSAGE_HINT) : NULL;
    if (!message)
        message = conn->c ? PQerrorMessage(conn->c) : "not connected";
    /* The same for every statement that meets the lock: it is one reason, and said once. */
    if (strcmp(state, "55P03") == 0)
        return ob_err_set(err, st,
                          "a session holds a lock for longer than we wait: `outbox check` names it "
                          "(SQLSTATE 55P03)");
    ob_err_set(err, st, "%s: %s%s%s%s%s%s", what, message, *state ? " (SQLSTATE " : "", state,
               *state ? ")" : "", hint ? "; " : "", hint ? hint : "");
    if (err)
        ob_pg_one_line(err->text);
    return st;
}

/* libpq has no code for these. The second is what it reports when its input buffer cannot grow to
 * the length of a message. */
bool ob_pg_no_memory(const struct ob_err *err)
{
    return strstr(err->text, "out of memory") || strstr(err->text, "lost synchronization with") ||
           strstr(err->text, "annot allocate memory");
}

void ob_pg_close(struct pg_session *conn)
{
    if (conn->c)
        PQfinish(conn->c);
    conn->c = NULL;
}

int ob_pg_fd(const struct pg_session *conn)
{
    return conn->c ? PQsocket(conn->c) : -1;
}

bool ob_pg_wait_socket(const struct pg_session *conn, short events, int64_t deadline_ms)
{
    for (;;) {
        int64_t left = deadline_ms - ob_clock_mono_ms(conn->clock);
        struct pollfd p = {.fd = PQsocket(conn->c), .events = events};
        if (left <= 0 || p.fd < 0)
            return false;
        int n = poll(&p, 1, left > 60000 ? 60000 : (int)left);
        if (n > 0)
            return true;
        if (n < 0 && errno != EINTR)
            return false;
    }
}

enum ob_status ob_pg_wait(struct pg_session *conn, int64_t deadline_ms, struct ob_err *err)
{
    for (;;) {
        int left = PQflush(conn->c);
        if (left < 0)
            break;
        if (left == 0 && !PQisBusy(conn->c))
            return OB_OK;
        if (!ob_pg_wait_socket(conn, left > 0 ? POLLIN | POLLOUT : POLLIN, deadline_ms)) {
            ob_err_set(err, OB_DOWN, "no answer from the server within %lld ms",
                       (long long)conn->timeout_ms);
            ob_pg_close(conn);
            return OB_DOWN;
        }
        if (!PQconsumeInput(conn->c))
            break;
    }
    ob_pg_fail(conn, NULL, "connection", err);
    ob_pg_close(conn);
    return OB_DOWN;
}

/* Takes all results; the last one, or the first that failed, is the answer. */
static enum ob_status collect(struct pg_session *conn, const char *what, PGresult **out,
                              struct ob_err *err)
{
    int64_t deadline = ob_clock_mono_ms(conn->clock) + conn->timeout_ms;
    PGresult *keep = NULL;
    enum ob_status st = OB_OK;
    bool demoted = false;
    for (;;) {
        enum ob_status waited = ob_pg_wait(conn, deadline, err);
        if (waited != OB_OK) {
            PQclear(keep);
            return waited;
        }
        PGresult *res = PQgetResult(conn->c);
        if (!res)
            break;
        ExecStatusType got = PQresultStatus(res);
        if (st == OB_OK && got != PGRES_TUPLES_OK && got != PGRES_COMMAND_OK &&
            got != PGRES_SINGLE_TUPLE)
            st = ob_pg_fail(conn, res, what, err);
        demoted = demoted || strcmp(ob_pg_state(res), "25006") == 0;
        PQclear(keep);
        keep = res;
        if (got == PGRES_COPY_BOTH || got == PGRES_COPY_OUT || got == PGRES_COPY_IN)
            break;
    }
    if (st == OB_OK && out)
        *out = keep;
    else
        PQclear(keep);
    if (demoted) /* read-only now: another host of the connection string may be the primary */
        ob_pg_close(conn);
    return st;
}

enum ob_status ob_pg_query(struct pg_session *conn, const char *sql, const struct pg_param *params,
                           size_t n, bool binary, PGresult **out, struct ob_err *err)
{
    const char *values[PG_MAX_PARAMS];
    int lengths[PG_MAX_PARAMS], formats[PG_MAX_PARAMS];
    if (!conn->c)
        return ob_err_set(err, OB_DOWN, "not connected");
    if (n > PG_MAX_PARAMS)
        return ob_err_set(err, OB_FATAL, "too many parameters");
    for (size_t i = 0; i < n; i++) {
        values[i] = params[i].p;
        lengths[i] = params[i].n;
        formats[i] = params[i].binary;
    }
    int sent = n == 0 && !binary ? PQsendQuery(conn->c, sql)
                                 : PQsendQueryParams(conn->c, sql, (int)n, NULL, values, lengths,
                                                     formats, binary);
    if (!sent) {
        enum ob_status st = ob_pg_fail(conn, NULL, "sending", err);
        if (PQstatus(conn->c) == CONNECTION_BAD)
            ob_pg_close(conn);
        return st;
    }
    char what[40];
    size_t k = strcspn(sql, "\n(");
    k = k < sizeof(what) - 1 ? k : sizeof(what) - 1;
    memcpy(what, sql, k);
    what[k] = '\0';
    return collect(conn, what, out, err);
}

enum ob_status ob_pg_exec(struct pg_session *conn, const char *sql, struct ob_err *err)
{
    return ob_pg_query(conn, sql, NULL, 0, false, NULL, err);
}

enum ob_status ob_pg_prepare(struct pg_session *conn, const char *name, const char *sql,
                             struct ob_err *err)
{
    if (!conn->c)
        return ob_err_set(err, OB_DOWN, "not connected");
    if (!PQsendPrepare(conn->c, name, sql, 0, NULL))
        return ob_pg_fail(conn, NULL, name, err);
    return collect(conn, name, NULL, err);
}

void ob_pg_rollback(struct pg_session *conn)
{
    struct ob_err err;
    if (conn->c && PQtransactionStatus(conn->c) != PQTRANS_IDLE &&
        ob_pg_exec(conn, "rollback", &err) != OB_OK)
        ob_pg_close(conn);
}

/* ---- values ---- */

bool ob_pg_null(const PGresult *res, int row, int col)
{
    return PQgetisnull(res, row, col) != 0;
}

struct ob_str ob_pg_str(const PGresult *res, int row, int col)
{
    return (struct ob_str){PQgetvalue(res, row, col), (size_t)PQgetlength(res, row, col)};
}

struct ob_str ob_pg_text(const PGresult *res, int row, int col)
{
    struct ob_str none = {0};
    return ob_pg_null(res, row, col) ? none : ob_pg_str(res, row, col);
}

int64_t ob_pg_i64(const PGresult *res, int row, int col)
{
    const unsigned char *p = (const unsigned char *)PQgetvalue(res, row, col);
    int n = PQgetlength(res, row, col);
    uint64_t v = 0;
    for (int i = 0; i < n && i < 8; i++)
        v = v << 8 | p[i];
    if (n == 2)
        return (int16_t)v;
    if (n == 4)
        return (int32_t)v;
    return (int64_t)v;
}

int64_t ob_pg_time_us(const PGresult *res, int row, int col)
{
    int64_t us;
    return __builtin_add_overflow(ob_pg_i64(res, row, col), EPOCH_2000_US, &us) ? INT64_MAX : us;
}

bool ob_pg_bool(const PGresult *res, int row, int col)
{
    return PQgetlength(res, row, col) == 1 && PQgetvalue(res, row, col)[0] == 1;
}

void ob_pg_array_begin(struct ob_buf *buf)
{
    ob_buf_reset(buf);
    ob_buf_char(buf, '{');
}

static void comma(struct ob_buf *buf)
{
    if (buf->n > 1)
        ob_buf_char(buf, ',');
}

/* The server refuses text that is no UTF-8, and a settle that it refuses would be tried for ever.
 */
void ob_pg_array_add(struct ob_buf *buf, struct ob_str s)
{
    const char *end = s.p + s.n;
    comma(buf);
    ob_buf_char(buf, '"');
    for (const char *p = s.p; p < end;) {
        int n = ob_utf8_step(p, end);
        if (*p == '"' || *p == '\\')
            ob_buf_char(buf, '\\');
        if (n < 0)
            ob_buf_c(buf, OB_UTF8_REPLACEMENT);
        else if (*p != '\0') /* a text in PostgreSQL cannot hold it */
            ob_buf_put(buf, p, (size_t)n);
        p += n < 0 ? -n : n;
    }
    ob_buf_char(buf, '"');
}

void ob_pg_array_int(struct ob_buf *buf, int64_t v)
{
    comma(buf);
    ob_buf_printf(buf, "%lld", (long long)v);
}

void ob_pg_array_bytes(struct ob_buf *buf, struct ob_str s)
{
    static const char hex[] = "0123456789abcdef";
    comma(buf);
    ob_buf_c(buf, "\"\\\\x");
    if (ob_buf_grow(buf, 2 * s.n + 1)) {
        for (size_t i = 0; i < s.n; i++) {
            unsigned c = (unsigned char)s.p[i];
            ob_buf_char(buf, hex[c >> 4]);
            ob_buf_char(buf, hex[c & 15]);
        }
    }
    ob_buf_char(buf, '"');
}

void ob_pg_array_add_null(struct ob_buf *buf)
{
    comma(buf);
    ob_buf_c(buf, "NULL");
}

const char *ob_pg_array_end(struct ob_buf *buf)
{
    ob_buf_char(buf, '}');
    return ob_buf_z(buf);
}

void ob_pg_array_i64(struct ob_buf *buf, const int64_t *v, size_t n)
{
    ob_pg_array_begin(buf);
    for (size_t i = 0; i < n; i++)
        ob_pg_array_int(buf, v[i]);
    ob_pg_array_end(buf);
}

void ob_pg_ident(struct ob_buf *buf, const char *name)
{
    ob_buf_char(buf, '"');
    for (; *name; name++) {
        if (*name == '"')
            ob_buf_char(buf, '"');
        ob_buf_char(buf, *name);
    }
    ob_buf_char(buf, '"');
}
