/* SPDX-License-Identifier: Apache-2.0 */
/* own - who may write: a session's advisory lock keeps others out, the epoch in the cursor row
 * keeps a zombie out.
 *
 * The lock is freed by the server when the session ends; keepalives on both sides end the session
 * of a vanished host within seconds. A process that hangs keeps its session: a beat that stands for
 * 10 s of a stand-by's monotonic clock gets that backend terminated, if it is still the same one.
 * (tests/e2e/test_postgres_owner.py) */
#include "source/postgres/pg.h"

#include <inttypes.h>
#include <stdio.h>

#define STALE_MS 10000

int64_t ob_pg_wall_ms(const struct ob_source *s)
{
    return ob_clock_wall_us(s->clock) / 1000;
}

void ob_pg_lost(struct ob_source *s)
{
    if (s->reader->stop)
        s->reader->stop(s);
    s->owned = false;
}

enum ob_status ob_pg_owned(struct ob_source *s, struct ob_err *err)
{
    if (s->owned && s->sql.c && PQstatus(s->sql.c) == CONNECTION_OK)
        return OB_OK;
    ob_pg_lost(s);
    return ob_err_set(err, OB_FENCED,
                      "the session with the server was lost, and the shard's lock with it");
}

static void lock_key(const struct ob_source *s, char out[24])
{
    char name[160];
    int n = snprintf(name, sizeof(name), "outbox/%s/%u", s->pipeline, s->shard);
    snprintf(out, 24, "%" PRId64, (int64_t)ob_hash64(name, (size_t)n));
}

static void ids(const struct ob_source *s, char shard[12], char shards[12])
{
    snprintf(shard, 12, "%u", s->shard);
    snprintf(shards, 12, "%u", s->shards);
}

/* Somebody else has the lock: who, and does he live? */
static enum ob_status look_at_owner(struct ob_source *s, const char *key, struct ob_err *err)
{
    char shard[12], shards[12];
    PGresult *res = NULL;
    ids(s, shard, shards);
    const struct pg_param p[] = {PG_TEXT(s->pipeline), PG_TEXT(shard), PG_TEXT(key)};
    enum ob_status st = ob_pg_query(
        &s->sql,
        "select c.owner, c.epoch, c.beat, l.pid, coalesce(host(a.client_addr), 'local') "
        "from (select pid from pg_locks where locktype = 'advisory' and granted and objsubid = 1 "
        "and "
        "      database = (select oid from pg_database where datname = current_database()) and "
        "      (classid::bigint << 32 | objid::bigint) = $3::bigint limit 1) l "
        "left join outbox.cursor c on c.pipeline = $1 and c.shard = $2::int "
        "left join pg_stat_activity a on a.pid = l.pid",
        p, 3, true, &res, err);
    if (st != OB_OK)
        return st;
    if (PQntuples(res) == 0) {
        PQclear(res);
        return ob_err_set(err, OB_AGAIN, "the shard's lock was just given back");
    }
    int64_t epoch = ob_pg_null(res, 0, 1) ? 0 : ob_pg_i64(res, 0, 1);
    int64_t beat = ob_pg_null(res, 0, 2) ? 0 : ob_pg_i64(res, 0, 2);
    int64_t now = ob_clock_mono_ms(s->clock), pid = ob_pg_i64(res, 0, 3);
    struct ob_str owner = ob_pg_str(res, 0, 0), host = ob_pg_str(res, 0, 4);
    if (epoch != s->seen_epoch || beat != s->seen_beat || s->seen_ms == 0) {
        s->seen_epoch = epoch;
        s->seen_beat = beat;
        s->seen_ms = now;
    }
    int64_t quiet = now - s->seen_ms;
    st = ob_err_set(err, OB_AGAIN, "shard %u is owned by %.*s (backend %" PRId64 ", %.*s)",
                    s->shard, OB_STR_ARG(owner), pid, OB_STR_ARG(host));
    PQclear(res);
    if (quiet < STALE_MS)
        return st;
    char text[24];
    struct ob_err ignored;
    snprintf(text, sizeof(text), "%" PRId64, pid);
    const struct pg_param q[] = {PG_TEXT(text), PG_TEXT(s->pipeline), PG_TEXT(shard)};
    ob_log(s->log, OB_LOG_WARN, "owner.terminate", OB_KI("backend", pid), OB_KI("quiet_ms", quiet));
    /* The same backend that wrote the row, not a newcomer with its number. */
    if (ob_pg_query(
            &s->sql,
            "select pg_terminate_backend(a.pid) from pg_stat_activity a join outbox.cursor c "
            "on c.backend_pid = a.pid and c.backend_start = a.backend_start "
            "where a.pid = $1::int and c.pipeline = $2 and c.shard = $3::int",
            q, 3, false, NULL, &ignored) != OB_OK)
        ob_log(s->log, OB_LOG_ERROR, "owner.terminate", OB_KC("error", ignored.text));
    s->seen_ms = now - STALE_MS + 1000; /* again in a second, if it is still there */
    return st;
}

/* We have the lock: a new epoch, so that whoever had it before can write nothing more. */
static enum ob_status raise_epoch(struct ob_source *s, struct ob_err *err)
{
    char shard[12], shards[12];
    PGresult *res = NULL;
    ids(s, shard, shards);
    const struct pg_param p[] = {PG_TEXT(s->pipeline), PG_TEXT(shard), PG_TEXT(shards),
                                 PG_TEXT(s->owner), PG_TEXT(s->reader->name)};
    const struct pg_param name[] = {PG_TEXT(s->pipeline)};
    enum ob_status st = ob_pg_query(
        &s->sql, "insert into outbox.pipeline (name) values ($1) on conflict do nothing", name, 1,
        false, NULL, err);
    if (st == OB_OK)
        st = ob_pg_query(
            &s->sql,
            "insert into outbox.cursor as c (pipeline, shard, shards, mode, owner, epoch, "
            "backend_pid, "
            "backend_start, beat_at, state) select $1, $2::int, $3::int, $5, $4, 1, pid, "
            "backend_start, "
            "clock_timestamp(), 'running' from pg_stat_activity where pid = pg_backend_pid() "
            "on conflict (pipeline, shard) do update set epoch = c.epoch + 1, beat = c.beat + 1, "
            "owner = $4, mode = $5, backend_pid = excluded.backend_pid, "
            "backend_start = excluded.backend_start, beat_at = clock_timestamp(), state = "
            "'running' "
            "returning c.epoch, c.shards, pg_current_xact_id()::text::bigint",
            p, 5, true, &res, err);
    if (st != OB_OK)
        return st;
    int64_t was = ob_pg_i64(res, 0, 1);
    s->epoch = ob_pg_i64(res, 0, 0);
    s->fence = (uint64_t)ob_pg_i64(res, 0, 2);
    PQclear(res);
    if (was != (int64_t)s->shards)
        return ob_err_set(err, OB_FATAL, "the cursor is of %" PRId64 " shards, the config says %u",
                          was, s->shards);
    return OB_OK;
}

static enum ob_status unlock(struct ob_source *s, const char *key, enum ob_status st)
{
    struct ob_err ignored;
    const struct pg_param p[] = {PG_TEXT(key)};
    if (s->sql.c && ob_pg_query(&s->sql, "select pg_advisory_unlock($1::bigint)", p, 1, false, NULL,
                                &ignored) != OB_OK)
        ob_pg_close(&s->sql);
    return st;
}

enum ob_status ob_pg_own(struct ob_source *s, struct ob_err *err)
{
    char key[24];
    enum ob_status st = OB_OK;
    if (s->owned && ob_pg_owned(s, err) == OB_OK)
        return OB_OK;
    if (!s->sql.c || PQstatus(s->sql.c) != CONNECTION_OK) {
        ob_pg_close(&s->sql);
        st = ob_pg_connect(&s->sql, s->conf->dsn, "outbox", false, s->clock, s->conf->timeout_ms,
                           err);
    }
    if (st != OB_OK)
        return st;
    lock_key(s, key);
    PGresult *res = NULL;
    const struct pg_param p[] = {PG_TEXT(key)};
    st = ob_pg_query(&s->sql, "select pg_try_advisory_lock($1::bigint)", p, 1, true, &res, err);
    if (st != OB_OK)
        return st;
    bool got = ob_pg_bool(res, 0, 0);
    PQclear(res);
    if (!got)
        return look_at_owner(s, key, err);
    st = raise_epoch(s, err);
    if (st == OB_OK)
        st = s->reader->start(s, err);
    if (st != OB_OK) {
        s->reader->stop(s);
        return unlock(s, key, st);
    }
    s->owned = true;
    s->seen_ms = 0;
    return OB_OK;
}

enum ob_status ob_pg_beat(struct ob_source *s, const struct ob_beat *beat, bool *paused,
                          struct ob_err *err)
{
    char shard[12], shards[12], epoch[24], flight[24];
    PGresult *res = NULL;
    enum ob_status st = ob_pg_owned(s, err);
    if (st != OB_OK)
        return st;
    ids(s, shard, shards);
    snprintf(epoch, sizeof(epoch), "%" PRId64, s->epoch);
    snprintf(flight, sizeof(flight), "%" PRId64, beat->in_flight);
    const struct pg_param p[] = {PG_TEXT(s->pipeline), PG_TEXT(shard), PG_TEXT(epoch),
                                 PG_TEXT(beat->state), PG_TEXT(flight)};
    st = ob_pg_query(
        &s->sql,
        "update outbox.cursor set beat = beat + 1, beat_at = clock_timestamp(), state = $4, "
        "in_flight = $5::bigint where pipeline = $1 and shard = $2::int and epoch = $3::bigint "
        "returning pg_current_xact_id()::text::bigint, "
        "(select paused from outbox.pipeline where name = $1)",
        p, 5, true, &res, err);
    if (st != OB_OK)
        return st;
    if (PQntuples(res) == 0) {
        st = ob_err_set(err, OB_FENCED, "another owner took over");
        ob_pg_lost(s);
    } else {
        s->fence = (uint64_t)ob_pg_i64(res, 0, 0);
        *paused = !ob_pg_null(res, 0, 1) && ob_pg_bool(res, 0, 1);
    }
    PQclear(res);
    return st;
}

void ob_pg_disown(struct ob_source *s)
{
    char key[24], shard[12], shards[12], epoch[24];
    struct ob_err ignored;
    bool was = s->owned;
    ob_pg_lost(s);
    if (!was || !s->sql.c)
        return;
    ids(s, shard, shards);
    snprintf(epoch, sizeof(epoch), "%" PRId64, s->epoch);
    const struct pg_param p[] = {PG_TEXT(s->pipeline), PG_TEXT(shard), PG_TEXT(epoch)};
    if (ob_pg_query(
            &s->sql,
            "update outbox.cursor set state = 'stopped', in_flight = 0 where pipeline = $1 and "
            "shard = $2::int and epoch = $3::bigint",
            p, 3, false, NULL, &ignored) != OB_OK)
        ob_pg_close(&s->sql);
    lock_key(s, key);
    unlock(s, key, OB_OK);
}
