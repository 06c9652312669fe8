/* SPDX-License-Identifier: Apache-2.0 */
/* driver - the SQLite source as the registry sees it. */
#include "source/sqlite/sqlite.h"

#include <stdlib.h>

static const struct ob_opt opts[] = {
    {.type = OB_OPT_STR,
     .name = "path",
     .offset = offsetof(struct sqlite_conf, path),
     .help = "Path of the database file.",
     .flags = OB_OPT_REQUIRED},
    {.type = OB_OPT_MS,
     .name = "busy_timeout",
     .def = "250ms",
     .offset = offsetof(struct sqlite_conf, busy_ms),
     .min = 1,
     .max = 5000,
     .help = "How long a settle waits for the write lock before it is put off."},
    {0},
};

static void sqlite_close(struct ob_source *s)
{
    if (!s)
        return;
    ob_sqlite_disown(s);
    ob_sqlite_wake_close(&s->wake);
    ob_sqlite_db_close(&s->db);
    ob_buf_clear(&s->history);
    ob_buf_clear(&s->ahead_bytes);
    ob_ahead_free(&s->ahead);
    ob_ahead_free(&s->ahead_next);
    free(s->past);
    free(s->touched);
    free(s->given);
    free(s->path);
    free(s->pipeline);
    free(s->owner);
    free(s);
}

static enum ob_status sqlite_open(const struct ob_source_env *env, const void *conf,
                                  struct ob_source **out, struct ob_source_caps *caps,
                                  struct ob_err *err)
{
    const struct sqlite_conf *c = conf;
    struct ob_source *s;
    enum ob_status st = OB_OK;

    if (env->shards < 1 || env->shards > SHARDS_MAX || env->shard >= env->shards)
        return ob_err_set(err, OB_FATAL, "shard %u of %u: at most %d", env->shard, env->shards,
                          SHARDS_MAX);
    s = calloc(1, sizeof(*s));
    if (!s)
        return ob_err_set(err, OB_DOWN, "no memory");
    s->lock.fd = -1;
    s->wake = (struct wake){.ep = -1, .in = -1, .timer = -1, .wal_wd = -1, .dir_wd = -1};
    s->shard = env->shard;
    s->shards = env->shards;
    s->key_rules = env->key_rules;
    s->dlt = env->dlt;
    s->limits = env->limits ? *env->limits : ob_limits_default;
    s->clock = env->clock ? env->clock : &ob_clock_system;
    s->log = env->log;
    s->busy_ms = c->busy_ms > 0 ? c->busy_ms : 250;
    ob_buf_init(&s->history, (size_t)64 << 10);
    ob_buf_init(&s->ahead_bytes, 0);
    s->path = strdup(c->path);
    s->pipeline = strdup(env->pipeline);
    s->owner = strdup(env->owner ? env->owner : "");
    if (!s->path || !s->pipeline || !s->owner)
        st = ob_err_set(err, OB_DOWN, "no memory");
    if (st == OB_OK)
        st = ob_sqlite_wake_open(&s->wake, s->path, err);
    if (st == OB_OK)
        st = ob_sqlite_db_open(&s->db, s->path, OPEN_RELAY, s->busy_ms, err);
    if (st != OB_OK) {
        sqlite_close(s);
        return st;
    }
    *caps = (struct ob_source_caps){.log = true, .settle_every_ms = SETTLE_EVERY_MS, .page = PAGE};
    *out = s;
    return OB_OK;
}

static int sqlite_wait_fd(const struct ob_source *s)
{
    return s->wake.ep;
}

static int64_t sqlite_wake_at(const struct ob_source *s)
{
    return s->owned ? s->look_at_ms : INT64_MAX;
}

const struct ob_source_driver ob_source_sqlite = {
    .name = "sqlite",
    .summary = "The native outbox table in a SQLite database file.",
    .opts = opts,
    .conf_size = sizeof(struct sqlite_conf),
    .open = sqlite_open,
    .close = sqlite_close,
    .wait_fd = sqlite_wait_fd,
    .wake_at = sqlite_wake_at,
    .own = ob_sqlite_own,
    .beat = ob_sqlite_beat,
    .disown = ob_sqlite_disown,
    .claim = ob_sqlite_claim,
    .rewind = ob_sqlite_rewind,
    .already = ob_sqlite_already,
    .held = ob_sqlite_held,
    .drain = ob_sqlite_drain,
    .blocked = ob_sqlite_blocked,
    .settle = ob_sqlite_settle,
    .settle_finish = NULL,
    .status = ob_sqlite_status,
    .admin = &ob_sqlite_admin,
};
