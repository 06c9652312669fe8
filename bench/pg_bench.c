/* SPDX-License-Identifier: Apache-2.0 */
/* pg_bench - the bare work that the relay stands on, and the time from commit to delivery.
 *
 *     pg-bench page DSN PAGE            bare keyset paging of outbox.event over libpq
 *     pg-bench rows DSN PAGE            the bare two steps of mode rows on orion's table, and the
 * marks pg-bench write FILE LINES BYTES   a bare writev + fdatasync loop pg-bench latency CONFIG
 * DSN EVENTS_A_SECOND SECONDS
 *
 * Used by bench/postgres.py. Each looks at every value and throws it away. */
#include "cli/bench.h"

#include <fcntl.h>
#include <libpq-fe.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#define IDS 50000 /* of one page of ids, as mode rows reads them */

static int complain(const char *what, const char *why)
{
    fprintf(stderr, "pg-bench: %s: %s\n", what, why);
    return 1;
}

static PGconn *dial(const char *dsn)
{
    PGconn *c = PQconnectdb(dsn);
    if (PQstatus(c) == CONNECTION_OK)
        return c;
    complain("connect", PQerrorMessage(c));
    PQfinish(c);
    return NULL;
}

static bool prepare(PGconn *c, const char *name, const char *sql)
{
    PGresult *r = PQprepare(c, name, sql, 0, NULL);
    bool ok = PQresultStatus(r) == PGRES_COMMAND_OK;
    if (!ok)
        complain(name, PQerrorMessage(c));
    PQclear(r);
    return ok;
}

static bool simple(PGconn *c, const char *sql)
{
    PGresult *r = PQexec(c, sql);
    bool ok = PQresultStatus(r) == PGRES_COMMAND_OK;
    if (!ok)
        complain(sql, PQerrorMessage(c));
    PQclear(r);
    return ok;
}

/* Every value, as a reader would look at it. */
static size_t look(const PGresult *r)
{
    size_t bytes = 0;
    for (int i = 0; i < PQntuples(r); i++)
        for (int k = 0; k < PQnfields(r); k++)
            if (!PQgetisnull(r, i, k))
                bytes += (size_t)PQgetlength(r, i, k) + (PQgetvalue(r, i, k)[0] != 0);
    return bytes;
}

static int64_t big_endian(const char *p)
{
    uint64_t v = 0;
    for (int i = 0; i < 8; i++)
        v = v << 8 | (unsigned char)p[i];
    return (int64_t)v;
}

static int page(const char *dsn, const char *size)
{
    PGconn *c = dial(dsn);
    size_t bytes = 0, rows = 0;
    char pos[24] = "0";
    bool more = c && prepare(c, "page",
                             "select seq, id, type, aggregate_type, aggregate_id, key, tenant, "
                             "topic, payload, payload_kind, headers, metadata, entity_version, "
                             "schema_version, max_attempts, created_at, xid from outbox.event "
                             "where seq > $1::bigint order by seq limit $2::bigint");
    bool ok = more;
    while (more) {
        const char *const values[] = {pos, size};
        PGresult *r = PQexecPrepared(c, "page", 2, values, NULL, NULL, 1);
        ok = PQresultStatus(r) == PGRES_TUPLES_OK;
        int n = ok ? PQntuples(r) : 0;
        bytes += look(r);
        rows += (size_t)n;
        if (n > 0)
            snprintf(pos, sizeof(pos), "%lld", (long long)big_endian(PQgetvalue(r, n - 1, 0)));
        if (!ok)
            complain("page", PQerrorMessage(c));
        more = n == atoi(size);
        PQclear(r);
    }
    PQfinish(c);
    printf("rows=%zu bytes=%zu\n", rows, bytes);
    return ok ? 0 : 1;
}

/* {…} of the ids i … i + n - 1. */
static char *array_of(const PGresult *ids, int i, int n)
{
    char *text = malloc((size_t)n * 40 + 3), *p = text;
    if (!text)
        return NULL;
    *p++ = '{';
    for (int k = 0; k < n; k++)
        p += sprintf(p, k ? ",%s" : "%s", PQgetvalue(ids, i + k, 0));
    memcpy(p, "}", 2);
    return text;
}

/* Payloads by primary key, then the marks. */
static bool fetch_and_mark(PGconn *c, const PGresult *ids, int i, int n, size_t *bytes)
{
    char *array = array_of(ids, i, n);
    const char *const values[] = {array};
    bool ok = array != NULL;
    for (int step = 0; ok && step < 2; step++) {
        PGresult *r = PQexecPrepared(c, step ? "mark" : "fetch", 1, values, NULL, NULL, 1);
        ok = PQresultStatus(r) == (step ? PGRES_COMMAND_OK : PGRES_TUPLES_OK);
        if (!ok)
            complain(step ? "mark" : "fetch", PQerrorMessage(c));
        *bytes += look(r);
        PQclear(r);
    }
    free(array);
    return ok;
}

static PGresult *next_ids(PGconn *c)
{
    if (!simple(c, "begin isolation level repeatable read read only"))
        return NULL;
    PGresult *r = PQexecPrepared(c, "ids", 0, NULL, NULL, NULL, 0);
    if (PQresultStatus(r) != PGRES_TUPLES_OK || !simple(c, "commit")) {
        complain("ids", PQerrorMessage(c));
        PQclear(r);
        return NULL;
    }
    return r;
}

static int rows(const char *dsn, const char *size)
{
    PGconn *c = dial(dsn);
    int step = atoi(size);
    size_t bytes = 0, done = 0;
    bool ok =
        c && step > 0 && simple(c, "set synchronous_commit = off") &&
        prepare(c, "ids",
                "select id, aggregate_id from public.outbox where processed_at is null order "
                "by sequence_number limit 50000") &&
        prepare(c, "fetch",
                "select id, tenant_id, aggregate_type, aggregate_id, event_type, payload, "
                "metadata, created_at, retry_count, sequence_number from public.outbox "
                "where id = any($1::uuid[])") &&
        prepare(c, "mark",
                "update public.outbox set processed_at = now() where id = any($1::uuid[]) and "
                "processed_at is null");
    for (bool more = ok; ok && more;) {
        PGresult *ids = next_ids(c);
        int n = ids ? PQntuples(ids) : 0;
        ok = ids != NULL;
        for (int i = 0; ok && i < n; i += step)
            ok = fetch_and_mark(c, ids, i, n - i < step ? n - i : step, &bytes);
        done += (size_t)n;
        more = n == IDS;
        PQclear(ids);
    }
    PQfinish(c);
    printf("rows=%zu bytes=%zu\n", done, bytes);
    return ok ? 0 : 1;
}

static int write_lines(const char *path, const char *lines, const char *bytes)
{
    enum { AT_ONCE = 1000 };
    static char line[65536];
    struct iovec iov[AT_ONCE];
    size_t left = strtoul(lines, NULL, 10), size = strtoul(bytes, NULL, 10);
    if (size == 0 || size > sizeof(line))
        return complain("write", "1 to 65536 bytes");
    memset(line, 'y', sizeof(line));
    line[size - 1] = '\n';
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
    while (fd >= 0 && left > 0) {
        size_t n = left < AT_ONCE ? left : AT_ONCE;
        for (size_t k = 0; k < n; k++)
            iov[k] = (struct iovec){.iov_base = line, .iov_len = size};
        ssize_t put = writev(fd, iov, (int)n);
        if (put < 0 || (size_t)put != n * size || fdatasync(fd) != 0)
            break;
        left -= n;
    }
    if (fd >= 0)
        close(fd);
    return left == 0 ? 0 : complain(path, "cannot write");
}

static enum ob_status emit(void *user, const char *payload, struct ob_err *err)
{
    PGconn *c = user;
    const char *const values[] = {payload};
    PGresult *r = PQexecPrepared(c, "emit", 1, values, NULL, NULL, 1);
    enum ob_status st = PQresultStatus(r) == PGRES_TUPLES_OK
                            ? OB_OK
                            : ob_err_set(err, OB_FATAL, "emit: %s", PQerrorMessage(c));
    PQclear(r);
    return st;
}

static int latency(const char *config, const char *dsn, const char *rate, const char *seconds)
{
    PGconn *c = dial(dsn);
    struct ob_bench_writer w = {.write = emit, .user = c};
    struct ob_bench_latency got = {0};
    struct ob_err err = {.text = ""};
    if (!c || !prepare(c, "emit",
                       "select outbox.emit(type => 'order.placed', aggregate_type => 'order', "
                       "aggregate_id => (random() * 1000)::int::text, payload => $1::text::json)"))
        return 1;
    enum ob_status st =
        ob_bench_latency(config, &w, (unsigned)atoi(rate), (unsigned)atoi(seconds), &got, &err);
    PQfinish(c);
    if (st != OB_OK)
        return complain("latency", err.text);
    printf("p50_ms=%.2f p99_ms=%.2f max_ms=%.2f events=%llu\n", got.p50_ms, got.p99_ms, got.max_ms,
           (unsigned long long)got.events);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "page") == 0)
        return page(argv[2], argv[3]);
    if (argc == 4 && strcmp(argv[1], "rows") == 0)
        return rows(argv[2], argv[3]);
    if (argc == 5 && strcmp(argv[1], "write") == 0)
        return write_lines(argv[2], argv[3], argv[4]);
    if (argc == 6 && strcmp(argv[1], "latency") == 0)
        return latency(argv[2], argv[3], argv[4], argv[5]);
    return complain("usage", "see the head of bench/pg_bench.c");
}
