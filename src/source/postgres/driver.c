/* SPDX-License-Identifier: Apache-2.0 */
/* driver - the PostgreSQL source as the registry sees it. */
#include "source/postgres/admin.h"
#include "source/postgres/pg.h"
#include "source/postgres/schema.h"

#include <stdlib.h>

static const struct ob_opt opts[] = {
    {.type = OB_OPT_STR,
     .name = "dsn",
     .def = "",
     .offset = offsetof(struct pg_conf, dsn),
     .help = "A libpq connection string or URI; what it leaves out comes from PGHOST, PGSERVICE, a "
             "password file and so on.",
     .flags = OB_OPT_SECRET},
    {.type = OB_OPT_ENUM,
     .name = "mode",
     .def = "log",
     .offset = offsetof(struct pg_conf, mode),
     .choices = "log|wal|rows",
     .help =
         "`log`: the native table by number and snapshot. `wal`: logical replication. `rows`: a "
         "table of your own by its state columns, see `mapping`."},
    {.type = OB_OPT_MS,
     .name = "poll_max",
     .def = "20ms",
     .offset = offsetof(struct pg_conf, poll_max_ms),
     .min = 1,
     .max = 60000,
     .help = "An idle source is looked at again after at most so long."},
    {.type = OB_OPT_ENUM,
     .name = "wake",
     .def = "poll",
     .offset = offsetof(struct pg_conf, wake),
     .choices = "poll|notify",
     .help = "log and rows: `notify` also listens on `channel`; a NOTIFY that an application sends "
             "in its transaction ends the wait for the next look. `outbox.emit()` sends none: it "
             "would make commits wait for each other."},
    {.type = OB_OPT_STR,
     .name = "channel",
     .def = "outbox",
     .offset = offsetof(struct pg_conf, channel),
     .help = "The channel of `wake: notify`."},
    {.type = OB_OPT_MS,
     .name = "timeout",
     .def = "10s",
     .offset = offsetof(struct pg_conf, timeout_ms),
     .min = 100,
     .max = 600000,
     .help = "A server that does not answer a statement within this time is taken for gone."},
    {.type = OB_OPT_INT,
     .name = "page",
     .def = "1000",
     .offset = offsetof(struct pg_conf, page),
     .min = 1,
     .max = 10000,
     .help = "Events of one round trip."},
    {.type = OB_OPT_BOOL,
     .name = "require_flushed",
     .def = "false",
     .offset = offsetof(struct pg_conf, require_flushed),
     .help = "log: an event is delivered only when its commit is on the server's disk. For "
             "applications with `synchronous_commit = off`: without it a crash of the server can "
             "take back what was already delivered."},
    {.type = OB_OPT_GROUP,
     .name = "mapping",
     .offset = offsetof(struct pg_conf, mapping),
     .group = ob_mapping_opts,
     .help = "A table of your own in place of the native one: which column is what; see below."},
    {.type = OB_OPT_STR,
     .name = "slot",
     .def = "",
     .offset = offsetof(struct pg_conf, slot),
     .help = "wal: the replication slot; with several shards `_0`, `_1` … behind it. Empty: made "
             "from the names of database, pipeline and shard."},
    {.type = OB_OPT_STR,
     .name = "publication",
     .def = "",
     .offset = offsetof(struct pg_conf, publication),
     .help = "wal: the publication. Empty: made from the pipeline's name."},
    {.type = OB_OPT_STR,
     .name = "message_prefix",
     .def = "",
     .offset = offsetof(struct pg_conf, message_prefix),
     .help = "wal: events are transactional `pg_logical_emit_message` calls with this prefix, and "
             "no table has them."},
    {.type = OB_OPT_BYTES,
     .name = "wal_budget",
     .def = "10G",
     .offset = offsetof(struct pg_conf, wal_budget),
     .min = 0,
     .max = INT64_MAX,
     .help = "wal: a slot that holds more WAL than this is dropped and the table is read in its "
             "place. 0: never."},
    {.type = OB_OPT_BYTES,
     .name = "catch_up",
     .def = "1G",
     .offset = offsetof(struct pg_conf, catch_up),
     .min = 0,
     .max = INT64_MAX,
     .help = "wal: a stream that is farther behind than this at start is left for the table, which "
             "is read faster. 0: never."},
    {.type = OB_OPT_ENUM,
     .name = "wait_visible",
     .def = "auto",
     .offset = offsetof(struct pg_conf, wait_visible),
     .choices = "auto|on|off",
     .help = "wal: an event is delivered only when SQL shows its transaction. `auto`: where there "
             "are synchronous stand-bys."},
    {0},
};

static const struct pg_reader *const readers[] = {
    [PG_LOG] = &ob_pg_log, [PG_WAL] = &ob_pg_wal, [PG_ROWS] = &ob_pg_rows};

static void pg_close(struct ob_source *s)
{
    if (!s)
        return;
    ob_pg_disown(s);
    ob_pg_close(&s->sql);
    for (size_t i = 0; i < sizeof(s->array) / sizeof(s->array[0]); i++)
        ob_buf_clear(&s->array[i]);
    free(s->pipeline);
    free(s->owner);
    free(s);
}

static enum ob_status pg_open(const struct ob_source_env *env, const void *conf,
                              struct ob_source **out, struct ob_source_caps *caps,
                              struct ob_err *err)
{
    const struct pg_conf *c = conf;
    struct ob_source *s = calloc(1, sizeof(*s));
    if (!s)
        return ob_err_set(err, OB_DOWN, "no memory");
    s->conf = c;
    s->reader = readers[c->mode];
    if (c->mode == PG_WAL && c->mapping.table &&
        (c->mapping.col[OB_MAP_DONE] || c->mapping.col[OB_MAP_STATUS]))
        s->reader = &ob_pg_wal_rows;
    s->native =
        c->mode != PG_ROWS && !c->mapping.table && !(c->mode == PG_WAL && c->message_prefix[0]);
    s->whole = s->reader == &ob_pg_wal && !s->native;
    s->shard = env->shard;
    s->shards = env->shards;
    s->key_rules = env->key_rules;
    s->clock = env->clock;
    s->log = env->log;
    s->accept_loss = env->accept_loss;
    s->dlt = env->dlt;
    s->limits = env->limits ? *env->limits : ob_limits_default;
    s->pipeline = strdup(env->pipeline);
    s->owner = strdup(env->owner);
    for (size_t i = 0; i < sizeof(s->array) / sizeof(s->array[0]); i++)
        ob_buf_init(&s->array[i], (size_t)256 << 20);
    enum ob_status st = s->pipeline && s->owner ? OB_OK : ob_err_set(err, OB_DOWN, "no memory");
    if (st == OB_OK && c->mode == PG_LOG && c->mapping.table)
        st = ob_err_set(err, OB_FATAL,
                        "mode log reads the native table only; a mapped one is read by mode rows "
                        "or wal");
    /* Refused before anything is written. */
    if (st == OB_OK && s->reader == &ob_pg_wal_rows && s->shards > 1)
        st =
            ob_err_set(err, OB_FATAL,
                       "shards: mode wal of a table with state columns has one shard: set `shards: "
                       "1`, or `mode: rows`");
    if (st == OB_OK && c->mode == PG_WAL && c->mapping.table && c->message_prefix[0])
        st = ob_err_set(err, OB_FATAL, "message_prefix and mapping exclude each other");
    if (st == OB_OK)
        st = ob_pg_connect(&s->sql, c->dsn, "outbox", false, s->clock, c->timeout_ms, err);
    if (st == OB_OK)
        st = ob_pg_schema_need(&s->sql, err);
    if (st != OB_OK) {
        pg_close(s);
        return st;
    }
    const char *weak = s->shard == 0 ? ob_pg_weak_tls(&s->sql) : NULL;
    if (weak)
        ob_log(s->log, OB_LOG_WARN, "source.tls", OB_KC("error", weak));
    *caps = (struct ob_source_caps){
        .log = s->reader->log, .settle_every_ms = 20, .page = (size_t)c->page};
    *out = s;
    return OB_OK;
}

static int pg_wait_fd(const struct ob_source *s)
{
    return s->owned ? s->reader->wait_fd(s) : -1;
}

static int64_t pg_wake_at(const struct ob_source *s)
{
    return s->owned ? s->reader->wake_at(s) : INT64_MAX;
}

static enum ob_status pg_claim(struct ob_source *s, size_t max, size_t max_bytes,
                               struct ob_batch **out, struct ob_err *err)
{
    enum ob_status st = ob_pg_owned(s, err);
    return st == OB_OK ? s->reader->claim(s, max, max_bytes, out, err) : st;
}

static bool pg_looking(const struct ob_source *s)
{
    return s->owned && s->reader->looking && s->reader->looking(s);
}

static void pg_rewind(struct ob_source *s)
{
    if (s->owned)
        s->reader->rewind(s);
}

static bool pg_already(const struct ob_source *s, uint64_t ref, uint64_t hash)
{
    return s->reader->already && s->reader->already(s, ref, hash);
}

const struct ob_source_driver ob_source_postgres = {
    .name = "postgres",
    .summary = "PostgreSQL: the native outbox table.",
    .opts = opts,
    .conf_size = sizeof(struct pg_conf),
    .open = pg_open,
    .close = pg_close,
    .wait_fd = pg_wait_fd,
    .wake_at = pg_wake_at,
    .own = ob_pg_own,
    .beat = ob_pg_beat,
    .disown = ob_pg_disown,
    .claim = pg_claim,
    .looking = pg_looking,
    .rewind = pg_rewind,
    .already = pg_already,
    .held = ob_pg_held,
    .drain = ob_pg_drain,
    .blocked = ob_pg_blocked,
    .settle = ob_pg_settle,
    .settle_finish = NULL,
    .status = ob_pg_status,
    .admin = &ob_pg_admin,
};
