/* SPDX-License-Identifier: Apache-2.0 */
/* sqlite_harness - a database in a temporary folder, a source on it, a clock that can be moved. */
#include "sqlite_harness.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static int64_t now_of(clockid_t id)
{
    struct timespec t;

    clock_gettime(id, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static int64_t mono(void *user)
{
    const struct fake *f = user;

    return f->real ? now_of(CLOCK_MONOTONIC) : f->mono_us;
}

static int64_t wall(void *user)
{
    const struct fake *f = user;

    return f->real ? now_of(CLOCK_REALTIME) : f->wall_us;
}

bool server_missing(void)
{
    return false; /* it needs none */
}

void bench_dir(struct bench *b)
{
    const char *tmp = getenv("TMPDIR");

    memset(b, 0, sizeof(*b));
    snprintf(b->dir, sizeof(b->dir), "%.40s/obsqlXXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(b->dir));
    snprintf(b->path, sizeof(b->path), "%s/app.db", b->dir);
    b->fake = (struct fake){.mono_us = 5000000, .wall_us = 1770000000000000};
    b->fake.clock = (struct ob_clock){.mono_us = mono, .wall_us = wall};
}

static void attach(struct bench *b)
{
    b->fake.clock.user = &b->fake;
}

struct ob_admin *open_admin(struct bench *b)
{
    const struct sqlite_conf conf = {.path = b->path};
    struct ob_admin *a = NULL;
    struct ob_err err;

    attach(b);
    assert_int_equal(ob_sqlite_admin.open(PIPE, &conf, &b->fake.clock, &a, &err), OB_OK);
    return a;
}

void bench_init(struct bench *b)
{
    struct ob_admin *a;
    struct ob_buf out;
    struct ob_err err;
    unsigned changed = 0;

    bench_dir(b);
    a = open_admin(b);
    ob_buf_init(&out, 0);
    if (ob_sqlite_admin.schema(a, false, &out, &changed, &err) != OB_OK)
        fail_msg("%s", err.text);
    assert_int_equal(changed, ob_sqlite_n_migrations);
    ob_buf_clear(&out);
    ob_sqlite_admin.close(a);
    assert_int_equal(sqlite3_open(b->path, &b->app), SQLITE_OK);
    sqlite3_busy_timeout(b->app, 5000);
}

static int remove_one(const char *path, const struct stat *sb, int type, struct FTW *ftw)
{
    (void)sb;
    (void)type;
    (void)ftw;
    return remove(path);
}

void bench_clear(struct bench *b)
{
    sqlite3_close(b->app);
    nftw(b->dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

void sql(struct bench *b, const char *fmt, ...)
{
    char *text_z, *why = NULL;
    va_list ap;

    va_start(ap, fmt);
    text_z = sqlite3_vmprintf(fmt, ap);
    va_end(ap);
    if (sqlite3_exec(b->app, text_z, NULL, NULL, &why) != SQLITE_OK)
        fail_msg("%s: %s", text_z, why);
    sqlite3_free(text_z);
}

int64_t num(struct bench *b, const char *fmt, ...)
{
    sqlite3_stmt *st = NULL;
    int64_t v = -1;
    char *text_z;
    va_list ap;

    va_start(ap, fmt);
    text_z = sqlite3_vmprintf(fmt, ap);
    va_end(ap);
    if (sqlite3_prepare_v2(b->app, text_z, -1, &st, NULL) != SQLITE_OK)
        fail_msg("%s: %s", text_z, sqlite3_errmsg(b->app));
    if (sqlite3_step(st) == SQLITE_ROW)
        v = sqlite3_column_int64(st, 0);
    sqlite3_finalize(st);
    sqlite3_free(text_z);
    return v;
}

void text(struct bench *b, char *out, size_t size, const char *query)
{
    sqlite3_stmt *st = NULL;

    out[0] = '\0';
    assert_int_equal(sqlite3_prepare_v2(b->app, query, -1, &st, NULL), SQLITE_OK);
    if (sqlite3_step(st) == SQLITE_ROW)
        snprintf(out, size, "%s", (const char *)sqlite3_column_text(st, 0));
    sqlite3_finalize(st);
}

void emit(struct bench *b, size_t n, size_t keys)
{
    sql(b, "BEGIN IMMEDIATE");
    for (size_t i = 0; i < n; i++)
        sql(b,
            "INSERT INTO outbox_event (type, aggregate_type, aggregate_id, payload)"
            " VALUES ('order.placed', 'order', 'k%d', '{\"i\":%d}')",
            (int)(i % keys), (int)i);
    sql(b, "COMMIT");
}

void emit_numbered(struct bench *b, int i)
{
    sql(b,
        "INSERT INTO outbox_event (id, type, aggregate_id, tenant, payload, created_at)"
        " VALUES ('id%d', 't%d', 'k%d', 'ten%d', '\"p%d\"', %d)",
        i, i, i, i, i, 1000 * i);
}

void emit_large(struct bench *b)
{
    sql(b, "INSERT INTO outbox_event (type, payload) VALUES ('t', zeroblob(5000000))");
}

enum ob_status try_shard(struct bench *b, unsigned shard, unsigned shards, const char *owner,
                         struct ob_source **out, struct ob_err *err)
{
    const struct sqlite_conf conf = {.path = b->path, .busy_ms = 100};
    struct ob_source_env env = {.pipeline = PIPE,
                                .shard = shard,
                                .shards = shards,
                                .owner = owner,
                                .clock = &b->fake.clock};
    struct ob_source_caps caps;

    attach(b);
    return ob_source_sqlite.open(&env, &conf, out, &caps, err);
}

enum ob_status try_open(struct bench *b, struct ob_err *err)
{
    struct ob_source *s = NULL;
    enum ob_status st = try_shard(b, 0, 1, "me", &s, err);

    if (st == OB_OK)
        ob_source_sqlite.close(s);
    else
        assert_null(s);
    return st;
}

void move_clock(struct bench *b, int64_t us)
{
    b->fake.mono_us += us;
}

void grow_silent(struct bench *b)
{
    b->fake.wall_us += 20000000;
}

void look_now(struct ob_source *s)
{
    (void)s; /* every claim looks */
}

bool is_idle(struct ob_source *s)
{
    (void)s; /* a claim has looked at everything */
    return true;
}

uint64_t number_of(const struct ob_event *ev)
{
    return ev->ref;
}

void dead_history(struct bench *b, char *out, size_t size)
{
    text(b, out, size,
         "SELECT group_concat(json_extract(value, '$.attempt') || json_extract(value, '$.error'))"
         " FROM outbox_dead, json_each(history)");
}

/* Every held hash and what its lowest row waits for, without outbox_parked_key. */
#define DERIVED                                                                                    \
    "SELECT pipeline, hash, dest, due FROM (SELECT pipeline, hash, n, blocked_dest AS dest,"       \
    " due_ms AS due FROM outbox_parked UNION ALL SELECT pipeline, hash, n, -1, 0 FROM outbox_dead" \
    " WHERE hold = 1) AS a WHERE n = (SELECT min(n) FROM (SELECT pipeline, hash, n FROM"           \
    " outbox_parked UNION ALL SELECT pipeline, hash, n FROM outbox_dead WHERE hold = 1) AS b"      \
    " WHERE b.pipeline = a.pipeline AND b.hash = a.hash)"
#define KEPT "SELECT pipeline, hash, blocked_dest, due_ms FROM outbox_parked_key"

void assert_side_tables(struct bench *b)
{
    assert_int_equal(num(b, "SELECT count(*) FROM (" DERIVED " EXCEPT " KEPT ")"), 0);
    assert_int_equal(num(b, "SELECT count(*) FROM (" KEPT " EXCEPT " DERIVED ")"), 0);
    assert_int_equal(num(b, "SELECT count(*) FROM outbox_pipeline AS p WHERE p.parked <> (SELECT"
                            " count(*) FROM outbox_parked WHERE pipeline = p.name)"),
                     0);
    assert_int_equal(num(b, "SELECT count(*) FROM outbox_pipeline AS p WHERE p.dead <> (SELECT"
                            " count(*) FROM outbox_dead WHERE pipeline = p.name AND state ="
                            " 'dead')"),
                     0);
}
