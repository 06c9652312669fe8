/* SPDX-License-Identifier: Apache-2.0 */
/* dial - makes a session: hosts in turn, TLS, what a role or a database may have set, poolers.
 *
 * libpq's own time-out per host does not exist for connections that are polled, so a host that
 * takes the connection and says nothing is passed over here: what the string has behind it is
 * tried. A host that does not even answer fails by tcp_user_timeout, and libpq goes on by itself.
 * (tests/e2e/test_postgres_connect.py) */
#include "config/address.h"
#include "config/wire.h"
#include "core/buf.h"
#include "source/postgres/conn.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

#define MAX_HOSTS 64

/* ---- the connection string ---- */

static bool is_string(const char *dsn)
{
    return strchr(dsn, '=') || strncmp(dsn, "postgres://", 11) == 0 ||
           strncmp(dsn, "postgresql://", 13) == 0;
}

/* libpq quotes what it does not understand, and that may be a password. */
static void mask(char *text)
{
    char *to = text;
    bool inside = false;
    for (const char *p = text; *p; p++) {
        if (*p == '"') {
            inside = !inside;
            *to++ = '"';
            if (inside)
                *to++ = '.';
        } else if (!inside) {
            *to++ = *p;
        }
    }
    *to = '\0';
}

/* A quote inside what is quoted would open what should be hidden: then nothing is shown. */
static enum ob_status check_string(const char *dsn, struct ob_err *err)
{
    char *why = NULL;
    if (!is_string(dsn))
        return OB_OK;
    /* libpq would take what follows the first '@' for the host, and show it in its errors. */
    if (ob_address_is_ambiguous(dsn))
        return ob_err_set(err, OB_FATAL,
                          "dsn: the user or password has an '@' or '/' that is not escaped; write "
                          "%%40 or %%2F (the string is not shown: it holds a password)");
    PQconninfoOption *o = PQconninfoParse(dsn, &why);
    if (o) {
        PQconninfoFree(o);
        return OB_OK;
    }
    if (why && !strchr(dsn, '"') && strstr(why, "URI") == NULL) {
        ob_pg_one_line(why);
        mask(why);
    } else if (why) {
        why[0] = '\0';
    }
    ob_err_set(err, OB_FATAL,
               "dsn: this is no connection string%s%s (it is not shown: it may hold a password; a "
               "value with spaces or quotes stands in '…', in a URI special characters are "
               "written %%xx)",
               why && why[0] ? ": " : "", why ? why : "");
    PQfreemem(why);
    return OB_FATAL;
}

static const char *value_of(const PQconninfoOption *info, const char *keyword)
{
    for (; info && info->keyword; info++)
        if (strcmp(info->keyword, keyword) == 0)
            return info->val ? info->val : "";
    return "";
}

/* The i-th part of a list with commas; out holds at least size bytes. False: it has no such part.
 */
static bool part(const char *list, size_t i, char *out, size_t size)
{
    for (; i > 0; i--) {
        list = strchr(list, ',');
        if (!list)
            return false;
        list++;
    }
    size_t n = strcspn(list, ",");
    n = n < size - 1 ? n : size - 1;
    memcpy(out, list, n);
    out[n] = '\0';
    return true;
}

/* Every host of the string is this machine. */
static bool all_local(const PQconninfoOption *info)
{
    const char *list = value_of(info, "hostaddr");
    char host[256];
    if (!*list)
        list = value_of(info, "host");
    for (size_t i = 0; i < MAX_HOSTS && part(list, i, host, sizeof(host)); i++)
        if (!ob_host_is_local(host))
            return false;
    return true;
}

/* ---- what went wrong, and what to do about it ---- */

static const struct {
    const char *says, *hint;
} hints[] = {
    {"root certificate file",
     "give the CA of the server with sslrootcert=FILE; TLS with verification is what a server on "
     "another machine gets unless the connection string has another sslmode"},
    {"server does not support SSL",
     "switch TLS on at the server (ssl = on); to go without it the connection string must say "
     "sslmode=disable"},
    {"certificate has expired", "the server needs a new certificate"},
    {"certificate verify failed",
     "the server's certificate is not signed by the CA in sslrootcert, or has expired"},
    {"does not match host name",
     "connect by a name that the server's certificate has, or give it one with this name"},
    {"certificate authentication failed",
     "the client certificate (sslcert, sslkey) must be for the user of the connection string"},
    {"requires a valid client certificate", "give sslcert=FILE and sslkey=FILE"},
    {"password authentication failed",
     "check user and password: password in the connection string, PGPASSWORD, or passfile"},
    {"no password supplied",
     "give one: password in the connection string, PGPASSWORD, or passfile (mode 0600)"},
    {"no pg_hba.conf entry", "the server lets this host, user and database in by pg_hba.conf"},
    {"too many clients", "raise max_connections, or close other sessions"},
    {"connection slots are reserved", "raise max_connections, or close other sessions"},
    {"too many connections", "raise the limit of the role or database"},
    {"session is read-only", "no host of the connection string is a primary now"},
    {"server is in hot standby mode", "no host of the connection string is a primary now"},
    {"unsupported startup parameter: replication",
     "a pooler carries no replication: in mode wal connect to PostgreSQL directly"},
    {"must be superuser or replication role", "ALTER ROLE the relay's REPLICATION"},
    {"definition of service", "it stands in ~/.pg_service.conf, PGSERVICEFILE or PGSYSCONFDIR"},
};

static enum ob_status refused(struct pg_session *conn, struct ob_err *err)
{
    const char *text = PQerrorMessage(conn->c);
    const char *hint = NULL;
    for (size_t i = 0; !hint && i < sizeof(hints) / sizeof(hints[0]); i++)
        if (strstr(text, hints[i].says))
            hint = hints[i].hint;
    char line[360];
    size_t n = strlen(text);
    n = n < sizeof(line) - 1 ? n : sizeof(line) - 1;
    memcpy(line, text, n);
    line[n] = '\0';
    ob_pg_one_line(line);
    return ob_err_set(err, OB_DOWN, "connecting: %s%s%s", line, hint ? "; " : "", hint ? hint : "");
}

/* ---- connecting ---- */

struct call {
    const char *dsn, *name;
    bool replication;
    const char *sslmode;                /* NULL: as the string says */
    bool primary;                       /* only a host that can be written to */
    struct ob_buf host, hostaddr, port; /* what is left of the hosts, if left_only */
    bool left_only;
};

/* libpq would print them; what matters in them comes as an error too. */
static void hush(void *user, const char *message)
{
    (void)user;
    (void)message;
}

static enum ob_status begin(struct pg_session *conn, struct call *call, struct ob_err *err)
{
    /* dbname first: it may be a whole connection string; what stands behind it wins over what it
     * says. */
    const char *keys[20], *values[20];
    size_t n = 0;
#define SET(k, v) (keys[n] = (k), values[n++] = (v))
    SET("dbname", call->dsn);
    SET("fallback_application_name", call->name);
    SET("keepalives", "1");
    SET("keepalives_idle", "3");
    SET("keepalives_interval", "1");
    SET("keepalives_count", "3");
    SET("tcp_user_timeout", "6000");
    SET("client_encoding", "UTF8");
    if (call->replication)
        SET("replication", "database");
    if (call->sslmode)
        SET("sslmode", call->sslmode);
    if (call->primary)
        SET("target_session_attrs", "read-write");
    if (call->left_only) {
        SET("host", ob_buf_z(&call->host));
        SET("hostaddr", ob_buf_z(&call->hostaddr));
        SET("port", ob_buf_z(&call->port));
    }
    SET(NULL, NULL);
#undef SET
    ob_pg_close(conn);
    conn->c = PQconnectStartParams(keys, values, 1);
    if (!conn->c)
        return ob_err_set(err, OB_DOWN, "no memory for a connection");
    PQsetNoticeProcessor(conn->c, hush, NULL);
    if (PQstatus(conn->c) != CONNECTION_BAD)
        return OB_OK;
    const char *why = PQerrorMessage(conn->c);
    bool tried = strstr(why, "connection to server") || strstr(why, "could not translate");
    enum ob_status st = refused(conn, err);
    return tried ? st : ob_err_set(err, OB_FATAL, "%s", err->text); /* it makes no sense */
}

/* libpq's own defaults will not do: it goes on with anybody's certificate, or without TLS at all,
 * and of several hosts it takes the first that answers, also one that cannot be written to. */
static enum ob_status decide(struct pg_session *conn, struct call *call, struct ob_err *err)
{
    PQconninfoOption *info = PQconninfo(conn->c);
    const char *mode = value_of(info, "sslmode");
    bool undecided = strcmp(mode, "prefer") == 0 || strcmp(mode, "allow") == 0;
    if (info && undecided && !all_local(info))
        call->sslmode = "verify-full";
    call->primary =
        (strchr(value_of(info, "host"), ',') || strchr(value_of(info, "hostaddr"), ',')) &&
        strcmp(value_of(info, "target_session_attrs"), "any") == 0;
    PQconninfoFree(info);
    return call->sslmode || call->primary ? begin(conn, call, err) : OB_OK;
}

const char *ob_pg_weak_tls(const struct pg_session *conn)
{
    PQconninfoOption *info = conn->c ? PQconninfo(conn->c) : NULL;
    const char *mode = value_of(info, "sslmode"), *why = NULL;
    if (info && !all_local(info)) {
        if (strcmp(mode, "disable") == 0)
            why = "sslmode=disable: passwords and events go over the network for everybody to read";
        else if (strcmp(mode, "require") == 0 && !*value_of(info, "sslrootcert"))
            why = "sslmode=require: the server's certificate is not verified, anybody can stand in "
                  "for it";
        else if (strcmp(mode, "verify-full") != 0)
            why = "the server's name is not verified: whoever has any certificate of that CA can "
                  "stand in for it";
    }
    PQconninfoFree(info);
    return why;
}

static bool same(const char *a, const char *b)
{
    return strcmp(a ? a : "", b ? b : "") == 0;
}

static void add_rest(struct ob_buf *to, const char *list, size_t from)
{
    char one[256];
    ob_buf_reset(to);
    for (size_t i = from; part(list, i, one, sizeof(one)); i++) {
        if (i > from)
            ob_buf_char(to, ',');
        ob_buf_c(to, one);
    }
}

/* The hosts behind the one that said nothing. False: there are none. */
static bool rest_of_hosts(const struct pg_session *conn, struct call *call)
{
    PQconninfoOption *info = PQconninfo(conn->c);
    const char *hosts = value_of(info, "host"), *addrs = value_of(info, "hostaddr");
    const char *ports = value_of(info, "port");
    char host[256], port[32], first_port[32] = "";
    bool found = false;
    size_t i = 0;
    part(ports, 0, first_port, sizeof(first_port));
    for (; !found && part(*hosts ? hosts : addrs, i, host, sizeof(host)); i++) {
        if (!part(ports, i, port, sizeof(port)))
            memcpy(port, first_port, sizeof(port));
        found = same(host, PQhost(conn->c)) && same(port, PQport(conn->c));
    }
    bool more = found && part(*hosts ? hosts : addrs, i, host, sizeof(host));
    if (more) {
        bool one_port = !strchr(ports, ',');
        add_rest(&call->host, hosts, *hosts ? i : 0);
        add_rest(&call->hostaddr, addrs, *addrs ? i : 0);
        add_rest(&call->port, ports, one_port ? 0 : i);
        call->left_only = true;
    }
    PQconninfoFree(info);
    return more;
}

static int64_t patience_ms(const struct pg_session *conn)
{
    PQconninfoOption *info = PQconninfo(conn->c);
    long s = strtol(value_of(info, "connect_timeout"), NULL, 10);
    PQconninfoFree(info);
    return s > 0 && s * 1000 < conn->timeout_ms ? s * 1000 : conn->timeout_ms;
}

/* OB_AGAIN: a host has not answered in time. */
static enum ob_status poll_connect(struct pg_session *conn, struct ob_err *err)
{
    int64_t patience = patience_ms(conn), deadline = ob_clock_mono_ms(conn->clock) + patience;
    PostgresPollingStatusType p = PGRES_POLLING_WRITING;
    char host[256], port[32];
    part(PQhost(conn->c), 0, host, sizeof(host));
    part(PQport(conn->c), 0, port, sizeof(port));
    while (p != PGRES_POLLING_OK && p != PGRES_POLLING_FAILED) {
        if (!ob_pg_wait_socket(conn, p == PGRES_POLLING_READING ? POLLIN : POLLOUT, deadline))
            return ob_err_set(err, OB_AGAIN, "connecting: %s port %s: no answer within %lld ms",
                              host, port, (long long)patience);
        p = PQconnectPoll(conn->c);
        if (!same(host, PQhost(conn->c)) ||
            !same(port, PQport(conn->c))) { /* the next one's turn */
            part(PQhost(conn->c), 0, host, sizeof(host));
            part(PQport(conn->c), 0, port, sizeof(port));
            deadline = ob_clock_mono_ms(conn->clock) + patience;
        }
    }
    return p == PGRES_POLLING_OK ? OB_OK : refused(conn, err);
}

/* What a role or a database may have set must not end our statements or sessions, and a vanished
 * host of ours must free its locks in seconds. */
static enum ob_status settle_session(struct pg_session *conn, struct ob_err *err)
{
    enum ob_status st = ob_pg_exec(
        conn,
        "set statement_timeout = 0; set lock_timeout = 5000; set time zone 'UTC'; set search_path "
        "= "
        "pg_catalog; set datestyle = iso; set idle_in_transaction_session_timeout = 0; set "
        "default_transaction_isolation = 'read committed'; set default_transaction_deferrable = "
        "off; set tcp_keepalives_idle = 3; set tcp_keepalives_interval = 1; set "
        "tcp_keepalives_count = 3; set tcp_user_timeout = 6000; set extra_float_digits = 1",
        err);
    if (st == OB_OK && PQserverVersion(conn->c) >= 140000)
        st = ob_pg_exec(conn, "set idle_session_timeout = 0", err);
    if (st == OB_OK && PQserverVersion(conn->c) >= 170000)
        st = ob_pg_exec(conn, "set transaction_timeout = 0", err);
    return st;
}

static enum ob_status dial(struct pg_session *conn, struct call *call, struct ob_err *err)
{
    enum ob_status st = begin(conn, call, err);
    if (st == OB_OK)
        st = decide(conn, call, err);
    if (st == OB_OK)
        st = poll_connect(conn, err);
    while (st == OB_AGAIN && rest_of_hosts(conn, call)) {
        st = begin(conn, call, err);
        if (st == OB_OK)
            st = poll_connect(conn, err);
    }
    if (st == OB_AGAIN) {
        st = OB_DOWN;
        err->status = OB_DOWN;
    }
    if (st == OB_OK && PQsetnonblocking(conn->c, 1) != 0)
        st = ob_err_set(err, OB_DOWN, "connection: cannot be made non-blocking");
    if (st == OB_OK && PQserverVersion(conn->c) < 130000)
        st = ob_err_set(err, OB_FATAL, "PostgreSQL %d is too old: 13 or later is needed",
                        PQserverVersion(conn->c));
    if (st == OB_OK && !call->replication)
        st = settle_session(conn, err);
    if (st != OB_OK)
        ob_pg_close(conn);
    return st;
}

/* ---- poolers ---- */

#define LOOKS 12 /* in a busy pool the first one may get its own backend back by chance */
#define MARK "select set_config('outbox.probe', $1, false)"
#define LOOK "select coalesce(current_setting('outbox.probe', true), '')"

static enum ob_status text_of(struct pg_session *conn, const char *sql, const struct pg_param *p,
                              size_t n, char out[32], struct ob_err *err)
{
    PGresult *res = NULL;
    enum ob_status st = ob_pg_query(conn, sql, p, n, false, &res, err);
    if (st == OB_OK)
        part(PQgetvalue(res, 0, 0), 0, out, 32);
    PQclear(res);
    return st;
}

static enum ob_status pooled(struct ob_err *err)
{
    return ob_err_set(err, OB_FATAL,
                      "a pooler in transaction mode stands before the server; the relay needs "
                      "sessions of its own: connect to PostgreSQL directly, or through a pool with "
                      "pool_mode = session");
}

/* A pooler invents the backend's number that libpq is told. In session mode two sessions have two
 * backends and keep them; in transaction mode a second session is given the backend that the first
 * one has just left, or the first one another when it comes back. */
static enum ob_status check_pooler(struct pg_session *conn, struct call *call, struct ob_err *err)
{
    struct pg_session second = {.clock = conn->clock, .timeout_ms = conn->timeout_ms};
    char pid[32] = "", told[32], seen[32] = "", mine[32] = "";
    enum ob_status st = text_of(conn, "select pg_backend_pid()::text", NULL, 0, pid, err);
    if (st != OB_OK || atoi(pid) == PQbackendPID(conn->c))
        return st;
    const struct pg_param mark[] = {PG_TEXT(pid)};
    st = text_of(conn, MARK, mark, 1, told, err);
    if (st == OB_OK)
        st = dial(&second, call, err);
    if (st == OB_OK)
        st = ob_pg_exec(&second, "begin", err); /* keeps its backend to the end */
    if (st != OB_OK && strstr(err->text, "pooling mode"))
        st = pooled(err); /* of single statements */
    if (st == OB_FATAL)
        goto done;
    if (st == OB_OK)
        st = text_of(&second, LOOK, NULL, 0, seen, err);
    bool moved = strcmp(seen, pid) == 0;
    for (int i = 0; i < LOOKS && st == OB_OK && !moved; i++) {
        st = text_of(conn, LOOK, NULL, 0, mine, err);
        moved = strcmp(mine, pid) != 0;
    }
    if (st == OB_OK && moved)
        st = pooled(err);
    else if (st != OB_OK)
        ob_err_prefix(err, "through a pooler");
done:
    ob_pg_close(&second);
    return st;
}

enum ob_status ob_pg_connect(struct pg_session *conn, const char *dsn, const char *name,
                             bool replication, const struct ob_clock *clock, int64_t timeout_ms,
                             struct ob_err *err)
{
    struct call call = {.dsn = dsn, .name = name, .replication = replication};
    struct ob_buf *const bufs[] = {&call.host, &call.hostaddr, &call.port};
    for (size_t i = 0; i < 3; i++)
        ob_buf_init(bufs[i], 16384);
    conn->clock = clock;
    conn->timeout_ms = timeout_ms;
    conn->c = NULL;
    enum ob_status st = check_string(dsn, err);
    if (st == OB_OK)
        st = dial(conn, &call, err);
    if (st == OB_OK && !replication)
        st = check_pooler(conn, &call, err);
    if (st != OB_OK)
        ob_pg_close(conn);
    for (size_t i = 0; i < 3; i++)
        ob_buf_clear(bufs[i]);
    return st;
}
