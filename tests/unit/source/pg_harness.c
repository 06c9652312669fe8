/* SPDX-License-Identifier: Apache-2.0 */
/* pg_harness - a real server for a test program, a database with the schema for each test, a source
 * on it, a clock that can be moved. */
#include "pg_harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char dir[200], port[16], admin_dsn[256];
static unsigned made;

static int64_t now_of(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static int64_t mono(void *user)
{
    const struct fake *f = user;
    return now_of(CLOCK_MONOTONIC) + f->ahead_us;
}

static int64_t wall(void *user)
{
    (void)user;
    return now_of(CLOCK_REALTIME);
}

/* ---- the server ---- */

static const char *services(void)
{
    const char *folder = getenv("OUTBOX_SERVICES");
    return folder ? folder : "tests/services";
}

static void server_stop(void)
{
    char command[512];
    snprintf(command, sizeof(command), "%s/postgres stop %s immediate >/dev/null 2>&1", services(),
             dir);
    if (dir[0] && system(command) != 0)
        fprintf(stderr, "# %s\n", command);
}

static void read_setting(const char *line, const char *name, char *out, size_t size)
{
    size_t n = strlen(name);
    if (strncmp(line, name, n) == 0 && line[n] == '=')
        snprintf(out, size, "%.*s", (int)strcspn(line + n + 1, "\n"), line + n + 1);
}

bool server_missing(void)
{
    char command[512], line[256], last[256] = "";
    snprintf(command, sizeof(command), "%s/postgres start --while %d", services(), (int)getpid());
    FILE *f = popen(command, "r");
    while (f && fgets(line, sizeof(line), f)) {
        snprintf(last, sizeof(last), "%s", line);
        read_setting(line, "PGDIR", dir, sizeof(dir));
        read_setting(line, "PGPORT", port, sizeof(port));
    }
    int code = f ? pclose(f) : -1;
    if (code != 0 || !port[0]) {
        bool none = WIFEXITED(code) && WEXITSTATUS(code) == 77;
        printf(none ? "1..0 # SKIP %s" : "Bail out! no server: %s\n", last);
        exit(none ? 0 : 1);
    }
    atexit(server_stop);
    snprintf(admin_dsn, sizeof(admin_dsn), "host=127.0.0.1 port=%s user=postgres dbname=postgres",
             port);
    /* One database is migrated; those of the tests are copies of it. */
    struct bench b;
    struct ob_buf out;
    struct ob_err err;
    unsigned changed = 0;
    bench_empty(&b);
    struct ob_admin *a = open_admin(&b);
    ob_buf_init(&out, 0);
    if (ob_pg_admin.schema(a, false, &out, &changed, &err) != OB_OK) {
        printf("Bail out! %s\n", err.text);
        exit(1);
    }
    ob_buf_clear(&out);
    ob_pg_admin.close(a);
    PQfinish(b.app);
    return false;
}

const char *server_dsn(void)
{
    return admin_dsn;
}

/* ---- databases ---- */

static void on_server(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void on_server(const char *fmt, ...)
{
    char query[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(query, sizeof(query), fmt, ap);
    va_end(ap);
    PGconn *c = PQconnectdb(admin_dsn);
    PGresult *res = PQexec(c, query);
    if (PQresultStatus(res) != PGRES_COMMAND_OK) {
        fprintf(stderr, "# %s: %s\n", query, PQerrorMessage(c));
        exit(1);
    }
    PQclear(res);
    PQfinish(c);
}

static void bench_make(struct bench *b, const char *template)
{
    memset(b, 0, sizeof(*b));
    snprintf(b->name, sizeof(b->name), "t%u", made++);
    snprintf(b->dsn, sizeof(b->dsn), "host=127.0.0.1 port=%s user=postgres dbname=%s", port,
             b->name);
    on_server("create database %s template %s", b->name, template);
    b->app = PQconnectdb(b->dsn);
    b->fake.clock = (struct ob_clock){.mono_us = mono, .wall_us = wall};
    b->conf = (struct pg_conf){.dsn = b->dsn,
                               .mode = PG_LOG,
                               .poll_max_ms = 1,
                               .timeout_ms = 10000,
                               .page = 1000,
                               .slot = "",
                               .publication = "",
                               .message_prefix = ""};
}

void bench_init(struct bench *b)
{
    bench_make(b, "t0");
}

void bench_empty(struct bench *b)
{
    bench_make(b, "template1");
}

void bench_clear(struct bench *b)
{
    PQfinish(b->app);
    on_server("drop database %s with (force)", b->name);
}

PGconn *session(struct bench *b)
{
    PGconn *c = PQconnectdb(b->dsn);
    if (PQstatus(c) != CONNECTION_OK)
        fail_msg("%s", PQerrorMessage(c));
    return c;
}

static PGresult *query(PGconn *c, const char *fmt, va_list ap)
    __attribute__((format(printf, 2, 0)));
static PGresult *query(PGconn *c, const char *fmt, va_list ap)
{
    char q[8192];
    vsnprintf(q, sizeof(q), fmt, ap);
    PGresult *res = PQexec(c, q);
    ExecStatusType st = PQresultStatus(res);
    if (st != PGRES_COMMAND_OK && st != PGRES_TUPLES_OK)
        fail_msg("%s: %s", q, PQerrorMessage(c));
    return res;
}

void sql(struct bench *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    PQclear(query(b->app, fmt, ap));
    va_end(ap);
}

void sql_on(PGconn *c, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    PQclear(query(c, fmt, ap));
    va_end(ap);
}

int64_t num(struct bench *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    PGresult *res = query(b->app, fmt, ap);
    va_end(ap);
    int64_t v = PQntuples(res) > 0 && !PQgetisnull(res, 0, 0)
                    ? strtoll(PQgetvalue(res, 0, 0), NULL, 10)
                    : -1;
    PQclear(res);
    return v;
}

void text(struct bench *b, char *out, size_t size, const char *q)
{
    PGresult *res = PQexec(b->app, q);
    if (PQresultStatus(res) != PGRES_TUPLES_OK)
        fail_msg("%s: %s", q, PQerrorMessage(b->app));
    snprintf(out, size, "%s", PQntuples(res) > 0 ? PQgetvalue(res, 0, 0) : "");
    PQclear(res);
}

void emit(struct bench *b, size_t n, size_t keys)
{
    sql(b,
        "select outbox.emit(type => 'order.placed', aggregate_type => 'order', aggregate_id => 'k' "
        "|| i %% %zu, payload => format('{\"i\":%%s}', i)) from generate_series(0, %zu - 1) i",
        keys, n);
}

void emit_numbered(struct bench *b, int i)
{
    sql(b,
        "INSERT INTO outbox.event (id, type, aggregate_id, tenant, payload, created_at) VALUES"
        " ('00000000-0000-7000-8000-00000000000%d', 't%d', 'k%d', 'ten%d', '\"p%d\"',"
        " to_timestamp(%d))",
        i, i, i, i, i, i);
}

void emit_large(struct bench *b)
{
    sql(b, "INSERT INTO outbox.event (type, payload) VALUES ('t', repeat('x', 9000000)::bytea)");
}

/* ---- sources ---- */

struct ob_admin *open_admin(struct bench *b)
{
    struct ob_admin *a = NULL;
    struct ob_err err;
    b->fake.clock.user = &b->fake;
    assert_int_equal(ob_pg_admin.open(PIPE, &b->conf, &b->fake.clock, &a, &err), OB_OK);
    return a;
}

enum ob_status try_shard(struct bench *b, unsigned shard, unsigned shards, const char *owner,
                         struct ob_source **out, struct ob_err *err)
{
    struct ob_source_env env = {.pipeline = PIPE,
                                .shard = shard,
                                .shards = shards,
                                .owner = owner,
                                .clock = &b->fake.clock};
    struct ob_source_caps caps;
    b->fake.clock.user = &b->fake;
    return ob_source_postgres.open(&env, &b->conf, out, &caps, err);
}

void move_clock(struct bench *b, int64_t us)
{
    b->fake.ahead_us += us;
}

void grow_silent(struct bench *b)
{
    sql(b, "update outbox.cursor set beat_at = beat_at - interval '20 s'");
}

void look_now(struct ob_source *s)
{
    struct log_state *l = s->state;
    if (l)
        l->poll_at = 0;
}

bool is_idle(struct ob_source *s)
{
    return !ob_source_postgres.looking(s) && ((struct log_state *)s->state)->idle_ms > 0;
}

uint64_t number_of(const struct ob_event *ev)
{
    return ev->seq;
}

void dead_history(struct bench *b, char *out, size_t size)
{
    text(b, out, size,
         "SELECT string_agg((h ->> 'attempt') || (h ->> 'error'), ',') FROM outbox.dead,"
         " jsonb_array_elements(history) AS h");
}

/* Every held hash and what its lowest row waits for, without outbox.parked_key. */
#define DERIVED                                                                                    \
    "select distinct on (pipeline, hash) pipeline, hash, dest, due from (select pipeline, hash, "  \
    "n, blocked_dest as dest, due_at as due from outbox.parked union all select pipeline, hash, "  \
    "n, -1, 'infinity' from outbox.dead where hold) a order by pipeline, hash, n"
#define KEPT "select pipeline, hash, blocked_dest, due_at from outbox.parked_key"

void assert_side_tables(struct bench *b)
{
    assert_int_equal(num(b, "select count(*) from ((" DERIVED ") except " KEPT ") t"), 0);
    assert_int_equal(num(b, "select count(*) from (" KEPT " except (" DERIVED ")) t"), 0);
    assert_int_equal(num(b, "select count(*) from outbox.pipeline p where p.parked <> (select "
                            "count(*) from outbox.parked where pipeline = p.name)"),
                     0);
    assert_int_equal(num(b, "select count(*) from outbox.pipeline p where p.dead <> (select "
                            "count(*) from outbox.dead where pipeline = p.name and state = "
                            "'dead')"),
                     0);
}
