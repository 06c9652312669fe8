/* SPDX-License-Identifier: Apache-2.0 */
/* admin - what people do to a database, beside a relay that may be running. */
#include "source/sqlite/sqlite.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define BUSY_MS 5000       /* people wait longer than a relay may */
#define SILENT_MS STALE_MS /* an owner that did not beat for so long is not running */

static void admin_close(struct ob_admin *a)
{
    if (!a)
        return;
    ob_sqlite_db_close(&a->db);
    free(a->path);
    free(a->pipeline);
    free(a);
}

/* Opens nothing yet: `schema` may have to make the file first. */
static enum ob_status admin_open(const char *pipeline, const void *conf,
                                 const struct ob_clock *clock, struct ob_admin **out,
                                 struct ob_err *err)
{
    const struct sqlite_conf *c = conf;
    struct ob_admin *a = calloc(1, sizeof(*a));

    if (a) {
        a->path = strdup(c->path);
        a->pipeline = strdup(pipeline);
        a->clock = clock ? clock : &ob_clock_system;
    }
    if (!a || !a->path || !a->pipeline) {
        admin_close(a);
        return ob_err_set(err, OB_DOWN, "no memory");
    }
    *out = a;
    return OB_OK;
}

static void glob(sqlite3_context *ctx, int n, sqlite3_value **v)
{
    struct ob_str s[2];

    (void)n;
    for (int i = 0; i < 2; i++) {
        s[i].p = (const char *)sqlite3_value_text(v[i]);
        s[i].n = (size_t)sqlite3_value_bytes(v[i]);
    }
    sqlite3_result_int(ctx, ob_glob(s[0], s[1]));
}

enum ob_status ob_sqlite_admin_need(struct ob_admin *a, struct ob_err *err)
{
    enum ob_status st;
    int rc;

    if (a->db.h && ob_sqlite_db_same(&a->db, a->path))
        return OB_OK;
    ob_sqlite_db_close(&a->db);
    st = ob_sqlite_db_open(&a->db, a->path, OPEN_PEOPLE, BUSY_MS, err);
    if (st != OB_OK)
        return st;
    rc = sqlite3_create_function_v2(a->db.h, "outbox_glob", 2, SQLITE_UTF8 | SQLITE_DETERMINISTIC,
                                    NULL, glob, NULL, NULL, NULL);
    return rc == SQLITE_OK ? OB_OK : ob_sqlite_fail(err, a->db.h, rc, "opening");
}

void ob_sqlite_filter_sql(struct ob_buf *sql, const struct ob_filter *f, const char *t,
                          const char *key, const char *time)
{
    if (f->id)
        ob_buf_printf(sql, " AND %s.id = :id", t);
    if (f->type)
        ob_buf_printf(sql, " AND outbox_glob(:type, %s.type)", t);
    if (f->key)
        ob_buf_printf(sql, " AND outbox_glob(:key, %s)", key);
    if (f->tenant)
        ob_buf_printf(sql, " AND outbox_glob(:tenant, coalesce(%s.tenant, ''))", t);
    if (f->since_us)
        ob_buf_printf(sql, " AND %s >= :since", time);
    if (f->until_us)
        ob_buf_printf(sql, " AND %s < :until", time);
}

static void bind_named(sqlite3_stmt *st, const char *name, const char *text)
{
    int i = text ? sqlite3_bind_parameter_index(st, name) : 0;

    if (i)
        ob_sqlite_bind_str(st, i, ob_str_c(text));
}

static void bind_time(sqlite3_stmt *st, const char *name, int64_t us)
{
    int i = us ? sqlite3_bind_parameter_index(st, name) : 0;

    if (i)
        sqlite3_bind_int64(st, i, us / 1000);
}

void ob_sqlite_filter_bind(sqlite3_stmt *st, const struct ob_filter *f)
{
    bind_named(st, ":id", f->id);
    bind_named(st, ":type", f->type);
    bind_named(st, ":key", f->key);
    bind_named(st, ":tenant", f->tenant);
    bind_named(st, ":reason", f->reason);
    bind_time(st, ":since", f->since_us);
    bind_time(st, ":until", f->until_us);
}

static void schema_print(struct ob_buf *out)
{
    for (unsigned i = 0; i < ob_sqlite_n_migrations; i++)
        ob_buf_c(out, ob_sqlite_migrations[i]);
    ob_buf_printf(out,
                  "INSERT OR REPLACE INTO outbox_meta (name, value) VALUES ('version', '%u');\n"
                  "PRAGMA journal_mode = WAL;\n",
                  ob_sqlite_n_migrations);
}

static enum ob_status schema(struct ob_admin *a, bool dry, struct ob_buf *out, unsigned *changed,
                             struct ob_err *err)
{
    struct db db;
    enum ob_status st;

    if (dry && access(a->path, F_OK) != 0) {
        ob_buf_printf(out, "create %s\n", a->path);
        for (unsigned i = 0; i < ob_sqlite_n_migrations; i++)
            ob_buf_printf(out, "%s\n", ob_sqlite_migration_names[i]);
        *changed = ob_sqlite_n_migrations;
        return OB_OK;
    }
    st = ob_sqlite_db_open(&db, a->path, dry ? OPEN_ANY : OPEN_MAKE, BUSY_MS, err);
    if (st != OB_OK)
        return st;
    st = ob_sqlite_table_migrate(db.h, dry, out, changed, err);
    if (st != OB_OK)
        ob_err_prefix(err, "sqlite %s", a->path);
    ob_sqlite_db_close(&db);
    return st;
}

static enum ob_status emit_all(struct ob_admin *a, const struct ob_emit *events, size_t n,
                               char (*ids)[64], struct ob_err *err)
{
    sqlite3_stmt *insert = NULL;
    enum ob_status st = ob_sqlite_insert_prepare(a->db.h, &insert, err);

    for (size_t i = 0; i < n && st == OB_OK; i++) {
        const struct ob_emit *e = &events[i];
        const struct ob_row row = {
            .id = e->id,
            .type = e->type,
            .aggregate_type = e->aggregate_type,
            .aggregate_id = e->aggregate_id,
            .key = e->key,
            .tenant = e->tenant,
            .topic = e->topic,
            .payload = e->payload,
            .headers = e->headers,
            .metadata = e->metadata,
            .payload_kind = e->payload_kind,
            .entity_version = e->entity_version,
            .schema_version = e->schema_version,
        };
        st = ob_sqlite_insert(insert, &row, ids ? ids[i] : NULL, err);
        if (st != OB_OK && n > 1)
            ob_err_prefix(err, "event %zu", i + 1);
    }
    sqlite3_finalize(insert);
    return st;
}

static enum ob_status emit(struct ob_admin *a, const struct ob_emit *events, size_t n,
                           char (*ids)[64], struct ob_err *err)
{
    enum ob_status st = ob_sqlite_admin_need(a, err);

    if (st == OB_OK)
        st = ob_sqlite_begin(&a->db, err);
    if (st != OB_OK)
        return st;
    st = emit_all(a, events, n, ids, err);
    if (st == OB_OK)
        st = ob_sqlite_commit(&a->db, err);
    ob_sqlite_rollback(&a->db);
    return st;
}

static enum ob_status pause_pipeline(struct ob_admin *a, bool paused, struct ob_err *err)
{
    sqlite3_stmt *st = NULL;
    enum ob_status ret = ob_sqlite_admin_need(a, err);
    int rc;

    if (ret != OB_OK)
        return ret;
    rc = sqlite3_prepare_v2(a->db.h,
                            "INSERT INTO outbox_pipeline (name, paused) VALUES (?1, ?2)"
                            " ON CONFLICT DO UPDATE SET paused = ?2",
                            -1, &st, NULL);
    if (rc == SQLITE_OK) {
        ob_sqlite_bind_str(st, 1, ob_str_c(a->pipeline));
        sqlite3_bind_int(st, 2, paused);
        rc = sqlite3_step(st);
    }
    if (rc != SQLITE_DONE)
        ret = ob_sqlite_fail(err, a->db.h, rc, paused ? "pausing" : "resuming");
    sqlite3_finalize(st);
    return ret;
}

static void read_shard(struct ob_admin *a, sqlite3_stmt *st, struct ob_shard_status *out)
{
    int64_t now = ob_clock_wall_us(a->clock) / 1000, at = sqlite3_column_int64(st, 4);
    bool beaten = sqlite3_column_type(st, 4) != SQLITE_NULL;

    *out = (struct ob_shard_status){
        .shard = (unsigned)sqlite3_column_int(st, 0),
        .shards = (unsigned)sqlite3_column_int(st, 1),
        .beat_age_ms = !beaten    ? -1
                       : at < now ? now - at
                                  : 0,
        .published = sqlite3_column_int64(st, 6),
        .failed = sqlite3_column_int64(st, 7),
        .in_flight = sqlite3_column_int64(st, 8),
    };
    snprintf(out->owner, sizeof(out->owner), "%s", (const char *)sqlite3_column_text(st, 3));
    snprintf(out->state, sizeof(out->state), "%s", (const char *)sqlite3_column_text(st, 5));
    if (out->beat_age_ms > SILENT_MS)
        snprintf(out->state, sizeof(out->state), "stopped");
}

static enum ob_status fill_shard(struct ob_admin *a, sqlite3_stmt *st, struct ob_shard_status *out,
                                 struct ob_err *err)
{
    int64_t now = ob_clock_wall_us(a->clock) / 1000;
    enum ob_status ret;

    read_shard(a, st, out);
    ret = ob_sqlite_status_of(&a->db, a->pipeline, (uint64_t)sqlite3_column_int64(st, 2),
                              sqlite3_column_int64(st, 9), now, &out->source, err);
    if (ret == OB_OK && out->shards > 1)
        ret = ob_sqlite_count_shard(&a->db, a->pipeline, out->shard, out->shards,
                                    &out->source.parked, &out->source.dead, err);
    return ret;
}

static enum ob_status status_rows(struct ob_admin *a, sqlite3_stmt *st, struct ob_shard_status *out,
                                  size_t max, size_t *n, struct ob_err *err)
{
    enum ob_status ret = OB_OK;
    size_t got = 0;
    int rc = SQLITE_DONE;

    ob_sqlite_bind_str(st, 1, ob_str_c(a->pipeline));
    while (ret == OB_OK && got < max && (rc = sqlite3_step(st)) == SQLITE_ROW)
        ret = fill_shard(a, st, &out[got++], err);
    if (ret == OB_OK && rc != SQLITE_ROW && rc != SQLITE_DONE)
        ret = ob_sqlite_fail(err, a->db.h, rc, "reading the status");
    if (ret == OB_OK && got == 0 && max > 0) { /* never ran: all is pending */
        out[0] = (struct ob_shard_status){.shards = 1, .beat_age_ms = -1, .state = "stopped"};
        ret = ob_sqlite_status_of(&a->db, a->pipeline, 0, 0, ob_clock_wall_us(a->clock) / 1000,
                                  &out[0].source, err);
        got = 1;
    }
    if (ret == OB_OK)
        *n = got;
    return ret;
}

static enum ob_status status(struct ob_admin *a, struct ob_shard_status *out, size_t max, size_t *n,
                             struct ob_err *err)
{
    sqlite3_stmt *st = NULL;
    enum ob_status ret = ob_sqlite_admin_need(a, err);
    int rc;

    if (ret != OB_OK)
        return ret;
    rc = sqlite3_prepare_v2(
        a->db.h,
        "SELECT shard, shards, pos, owner, beat_at, state, published, failed,"
        " in_flight, ahead_n FROM outbox_cursor WHERE pipeline = ?1 ORDER BY shard",
        -1, &st, NULL);
    ret = rc == SQLITE_OK ? status_rows(a, st, out, max, n, err)
                          : ob_sqlite_fail(err, a->db.h, rc, "reading the status");
    sqlite3_finalize(st);
    return ret;
}

const struct ob_source_admin ob_sqlite_admin = {
    .open = admin_open,
    .close = admin_close,
    .schema = schema,
    .schema_print = schema_print,
    .check = ob_sqlite_check,
    .emit = emit,
    .events = ob_sqlite_events,
    .dead_list = ob_sqlite_dead_list,
    .dead_do = ob_sqlite_dead_do,
    .dlt_done = ob_sqlite_dlt_done,
    .pause = pause_pipeline,
    .status = status,
};
