/* SPDX-License-Identifier: Apache-2.0 */
/* own - who may write: the cursor row names the owner's backend and epoch, and every write of an
 * owner is fenced by the epoch.
 *
 * A session ends with its process; keepalives on both sides end the session of a vanished host
 * within seconds. A process that hangs keeps its session: when its beat has not advanced for 10 s
 * of a stand-by's monotonic clock, that backend is terminated, or passed by the epoch (holder.c).
 *
 * Exclusion is exact without any advisory lock: the row changes hands only in write_owner(), which
 * locks it and then asks again whether the session that it names is alive. Of two that try, the
 * second waits for the row and finds the first one's session there. The row lock is held for that
 * transaction only: one that was held for life would hold back the xmin horizon.
 * (tests/e2e/test_postgres_owner.py, test_postgres_lock.py) */
#include "source/postgres/pg.h"
#include "source/postgres/schema.h"
#include "source/postgres/wal.h"

#include <inttypes.h>
#include <stdio.h>

#define PLACE PG_PLACE("$6", "$7", "$8", "$9", "$10")
#define MAINTAIN_MS 10000
#define ADOPT_MS 3600000
#define SHARDS_MAX 64

void ob_pg_fence_note(struct ob_source *s, uint64_t xid)
{
    s->fence = xid;
    if (s->fence_first == 0)
        s->fence_first = xid;
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
                      "the session with the server was lost, and the shard with it");
}

static void number(char out[12], unsigned v)
{
    snprintf(out, 12, "%u", v);
}

/* ---- locks ---- */

/* Locks are counted: one that was kept through a lost reader must not remain. */
static void unlock_all(struct ob_source *s)
{
    struct ob_err ignored;
    s->joined = false;
    s->lock_bits = 0;
    if (s->sql.c && ob_pg_exec(&s->sql, "select pg_advisory_unlock_all()", &ignored) != OB_OK)
        ob_pg_close(&s->sql);
}

/* What the cursor rows were written under. */
struct before {
    unsigned shards; /* 0: no rows */
    bool other_keys; /* other key rules, and that matters: several shards, or positions of earlier
                        ones */
};

static enum ob_status read_before(struct ob_source *s, struct before *out, struct ob_err *err)
{
    char keys[24];
    PGresult *res = NULL;
    snprintf(keys, sizeof(keys), "%" PRId64, (int64_t)s->key_rules);
    const struct pg_param p[] = {PG_TEXT(s->pipeline), PG_TEXT(s->key_rules ? keys : NULL)};
    enum ob_status st = ob_pg_query(
        &s->sql,
        "select coalesce(max(c.shards), 0), coalesce((select k.key_rules <> $2::bigint from "
        "outbox.pipeline k where k.name = $1), false) and (max(c.shards) > 1 or exists (select 1 "
        "from outbox.past g where g.pipeline = $1)) from outbox.cursor c where c.pipeline = $1",
        p, 2, true, &res, err);
    if (st == OB_OK)
        *out = (struct before){(unsigned)ob_pg_i64(res, 0, 0), ob_pg_bool(res, 0, 1)};
    PQclear(res);
    return st;
}

/* How many old shards must be free before this one can start. */
static unsigned must_be_free(const struct ob_source *s, const struct before *old)
{
    return old->shards != s->shards || old->other_keys ? old->shards : 0;
}

/* The shards that must be free: this one; for a changed number of shards, or other key rules, also
 * all old ones, in rising order, so that of two processes that try one gets through. *held: how
 * many from 0 up. */
static enum ob_status take_shards(struct ob_source *s, const struct before *old, unsigned *held,
                                  struct ob_err *err)
{
    unsigned n = must_be_free(s, old);
    enum ob_status st = OB_OK;
    for (*held = 0; *held < n && st == OB_OK; *held += st == OB_OK)
        st = ob_pg_holder_try(s, *held, err);
    if (n && st == OB_AGAIN && n == s->shards)
        ob_err_prefix(err, "the routes have other keys, which apply when all %u shards are free",
                      n);
    else if (n && st == OB_AGAIN)
        ob_err_prefix(err, "the number of shards changes from %u to %u when all have stopped", n,
                      s->shards);
    if (st == OB_OK && s->shard >= n)
        st = ob_pg_holder_try(s, s->shard, err);
    return st;
}

/* ---- becoming the owner ---- */

static enum ob_status reshard(struct ob_source *s, bool other_keys, struct ob_err *err)
{
    char shards[12];
    PGresult *res = NULL, *ahead = NULL;
    number(shards, s->shards);
    const struct pg_param p[] = {PG_TEXT(s->pipeline), PG_TEXT(shards)};
    enum ob_status st = ob_pg_query(&s->sql,
                                    "select bool_or(adopt_pos is not null and native), "
                                    "bool_or(shards <> $2::int), max(shards) filter "
                                    "(where mode = 'wal') from outbox.cursor where pipeline = $1",
                                    p, 2, true, &res, err);
    if (st != OB_OK)
        return st;
    bool adopting = ob_pg_bool(res, 0, 0), differs = ob_pg_bool(res, 0, 1);
    unsigned before = ob_pg_null(res, 0, 2) ? 0 : (unsigned)ob_pg_i64(res, 0, 2);
    PQclear(res);
    if (!differs && !other_keys) /* another process was faster */
        return OB_OK;
    if (adopting)
        return ob_err_set(err, OB_FATAL,
                          "the outbox was restored and is not read up yet: run it once with the "
                          "old number of shards, then change it");
    if (before > 0 && before <= SHARDS_MAX && s->conf->mode == PG_WAL)
        st = ob_pg_wal_name_slots(s, before, err);
    if (st == OB_OK)
        st = ob_pg_ahead_gather(s, &ahead, err);
    if (st == OB_OK)
        st = ob_pg_query(&s->sql, "select outbox.reshard($1, $2::int)", p, 2, false, NULL, err);
    if (st == OB_OK)
        st = ob_pg_ahead_spread(s, ahead, err);
    if (st == OB_OK && before <= SHARDS_MAX)
        s->slots_before = before;
    PQclear(ahead);
    return st;
}

/* The row of every shard, so that a pipeline is always complete; with the cluster that gives the
 * transaction ids. */
static enum ob_status make_rows(struct ob_source *s, struct ob_err *err)
{
    char shards[12];
    number(shards, s->shards);
    const struct pg_param p[] = {PG_TEXT(s->pipeline), PG_TEXT(shards), PG_TEXT(s->reader->name)};
    enum ob_status st = ob_pg_query(
        &s->sql,
        s->dlt
            ? "insert into outbox.pipeline as p (name, dlt) values ($1, true) on conflict (name) "
              "do update set dlt = true where not p.dlt"
            : "insert into outbox.pipeline as p (name) values ($1) on conflict (name) do update "
              "set dlt = false where p.dlt",
        p, 1, false, NULL, err);
    if (st == OB_OK)
        st = ob_pg_query(
            &s->sql,
            "insert into outbox.cursor (pipeline, shard, shards, mode, system_id, db_oid, "
            "timeline) select $1, i, $2::int, $3, " PG_CLUSTER
            " from generate_series(0, $2::int - 1) i on conflict do nothing",
            p, 3, false, NULL, err);
    return st;
}

/* Is the cursor of this cluster? After a dump and restore it is not, and is adopted. */
static enum ob_status check_cluster(struct ob_source *s, struct ob_err *err)
{
    char shard[12];
    PGresult *res = NULL;
    number(shard, s->shard);
    const struct pg_param p[] = {PG_TEXT(s->pipeline), PG_TEXT(shard), PG_TEXT(s->reader->name)};
    enum ob_status st = ob_pg_query(
        &s->sql,
        "select c.system_id <> n.id or c.db_oid <> n.oid, c.timeline <> n.line, n.id, n.oid::text, "
        "c.timeline, n.line, c.epoch > 0 and (c.mode = 'rows') <> ($3 = 'rows'), c.mode from "
        "outbox.cursor c, (select " PG_CLUSTER
        ") n(id, oid, line) where c.pipeline = $1 and c.shard = $2::int",
        p, 3, true, &res, err);
    if (st != OB_OK)
        return st;
    s->moved = PQntuples(res) == 1 && ob_pg_bool(res, 0, 0);
    s->timeline_changed = PQntuples(res) == 1 && ob_pg_bool(res, 0, 1);
    if (PQntuples(res) == 1 && ob_pg_bool(res, 0, 6)) {
        struct ob_str was = ob_pg_str(res, 0, 7);
        ob_log(s->log, OB_LOG_WARN, "source.mode", OB_KS("from", was), OB_KC("to", s->reader->name),
               OB_KC("error", "a pipeline of this name has read another table: two that run at the "
                              "same time must have two names"));
    }
    if (s->moved) {
        const struct pg_param q[] = {PG_TEXT(PQgetvalue(res, 0, 2)),
                                     PG_TEXT(PQgetvalue(res, 0, 3))};
        ob_log(s->log, OB_LOG_WARN, "source.restored",
               OB_KC("error", "the cursor is of another cluster: what it had not read is decided "
                              "by the old transaction ids, once"));
        int64_t was = s->sql.timeout_ms;
        s->sql.timeout_ms = ADOPT_MS; /* a big backlog takes its time; nobody is kept waiting */
        st = ob_pg_query(&s->sql, "select outbox.adopt($1, $2::oid)", q, 2, false, NULL, err);
        s->sql.timeout_ms = was;
    } else if (s->timeline_changed) {
        ob_log(s->log, OB_LOG_WARN, "source.timeline", OB_KI("from", ob_pg_i64(res, 0, 4)),
               OB_KI("to", ob_pg_i64(res, 0, 5)));
    }
    PQclear(res);
    return st;
}

/* A new epoch: the previous owner can write nothing more. Mode log moves the cursor of the native
 * table away from its position in the stream (wal_start.c). */
static enum ob_status raise_epoch(struct ob_source *s, struct ob_err *err)
{
    char shard[12];
    PGresult *res = NULL;
    number(shard, s->shard);
    const struct pg_param p[] = {PG_TEXT(s->pipeline), PG_TEXT(shard), PG_TEXT(s->owner),
                                 PG_TEXT(s->reader->name), PG_TEXT(s->native ? "t" : "f")};
    enum ob_status st = ob_pg_query(
        &s->sql,
        "update outbox.cursor c set epoch = c.epoch + 1, beat = c.beat + 1, owner = $3, mode = $4, "
        "native = $5::boolean, lsn = case when $4 = 'log' and c.native then null else c.lsn end, "
        "backend_pid = a.pid, backend_start = a.backend_start, beat_at = clock_timestamp(), state "
        "= 'running', in_flight = 0, (system_id, db_oid, timeline) = (select " PG_CLUSTER
        ") from pg_stat_activity a where a.pid = pg_backend_pid() and c.pipeline = $1 and c.shard "
        "= $2::int returning c.epoch, pg_current_xact_id()",
        p, 5, true, &res, err);
    if (st != OB_OK)
        return st;
    if (PQntuples(res) == 1) {
        s->epoch = ob_pg_i64(res, 0, 0);
        s->fence = (uint64_t)ob_pg_i64(res, 0, 1);
        s->fence_first = 0;
    } else {
        st = ob_err_set(err, OB_AGAIN, "another process has just changed the shards");
    }
    PQclear(res);
    return st;
}

/* Locks the cursor row of this shard, or of all where their number changes, and asks again whether
 * it may change hands. The cursor row comes first, as in a settle: a fenced owner that is still at
 * work must not deadlock with its successor. */
static enum ob_status lock_rows(struct ob_source *s, unsigned n_old, struct ob_err *err)
{
    char shard[12];
    number(shard, s->shard);
    const struct pg_param p[] = {PG_TEXT(s->pipeline), PG_TEXT(n_old ? NULL : shard)};
    enum ob_status st = ob_pg_query(&s->sql,
                                    "select 1 from outbox.cursor where pipeline = $1 and ($2::int "
                                    "is null or shard = $2::int) order by shard for update",
                                    p, 2, true, NULL, err);
    for (unsigned i = 0; i < n_old && st == OB_OK; i++)
        st = ob_pg_holder_confirm(s, i, err);
    if (st == OB_OK && !n_old)
        st = ob_pg_holder_confirm(s, s->shard, err);
    return st;
}

/* Under other key rules the positions of earlier shards do not show which events they cover:
 * nothing counts as settled because of them. */
static enum ob_status forget_past(struct ob_source *s, struct ob_err *err)
{
    const struct pg_param p[] = {PG_TEXT(s->pipeline)};
    ob_log(s->log, OB_LOG_WARN, "source.keys",
           OB_KC("error", "the key expressions of the routes changed: all shards start from the "
                          "position of the slowest, and what others had settled is repeated"));
    return ob_pg_query(&s->sql,
                       "update outbox.past set pos = 0, late_pos = 0, rows_done = 0, lsn = case "
                       "when lsn is not null then '0/0'::pg_lsn end where pipeline = $1",
                       p, 1, false, NULL, err);
}

/* The rows are locked: the key rules can change no more before the commit. */
static enum ob_status check_before(struct ob_source *s, const struct before *old,
                                   struct ob_err *err)
{
    struct before now = {0};
    enum ob_status st = read_before(s, &now, err);
    if (st == OB_OK && now.other_keys && !must_be_free(s, old))
        return ob_err_set(err, OB_AGAIN, "another process has just changed the key rules");
    return st;
}

static enum ob_status write_key_rules(struct ob_source *s, struct ob_err *err)
{
    char keys[24];
    snprintf(keys, sizeof(keys), "%" PRId64, (int64_t)s->key_rules);
    const struct pg_param p[] = {PG_TEXT(s->pipeline), PG_TEXT(keys)};
    if (s->key_rules == 0)
        return OB_OK;
    return ob_pg_query(&s->sql,
                       "update outbox.pipeline set key_rules = $2::bigint where name = $1 and "
                       "key_rules is distinct from $2::bigint",
                       p, 2, false, NULL, err);
}

static enum ob_status write_owner(struct ob_source *s, const struct before *old, struct ob_err *err)
{
    unsigned n_old = must_be_free(s, old);
    enum ob_status st = ob_pg_exec(&s->sql, "begin", err);
    if (st == OB_OK)
        st = lock_rows(s, n_old, err);
    if (st == OB_OK)
        st = check_before(s, old, err);
    if (st == OB_OK && n_old)
        st = reshard(s, old->other_keys, err);
    if (st == OB_OK && old->other_keys)
        st = forget_past(s, err);
    if (st == OB_OK)
        st = make_rows(s, err);
    if (st == OB_OK)
        st = write_key_rules(s, err);
    if (st == OB_OK && (n_old || old->shards == 0)) /* rows that were not there to be locked */
        st = lock_rows(s, 0, err);
    if (st == OB_OK)
        st = check_cluster(s, err);
    if (st == OB_OK)
        st = raise_epoch(s, err);
    if (st == OB_OK)
        st = ob_pg_exec(&s->sql, "commit", err);
    ob_pg_rollback(&s->sql);
    return st;
}

static enum ob_status connect_again(struct ob_source *s, struct ob_err *err)
{
    if (s->sql.c && PQstatus(s->sql.c) == CONNECTION_OK)
        return OB_OK;
    ob_pg_close(&s->sql);
    s->joined = s->seen = s->recorded = false;
    s->lock_bits = 0;
    enum ob_status st =
        ob_pg_connect(&s->sql, s->conf->dsn, "outbox", false, s->clock, s->conf->timeout_ms, err);
    if (st == OB_OK)
        st = ob_pg_schema_need(&s->sql, err);
    return st;
}

/* The row must not say that the shard runs: it is not ours, or not any more. */
static enum ob_status write_stopped(struct ob_source *s, struct ob_err *err)
{
    char shard[12], epoch[24];
    number(shard, s->shard);
    snprintf(epoch, sizeof(epoch), "%" PRId64, s->epoch);
    const struct pg_param p[] = {PG_TEXT(s->pipeline), PG_TEXT(shard), PG_TEXT(epoch)};
    return ob_pg_query(&s->sql,
                       "update outbox.cursor set state = 'stopped', in_flight = 0 where pipeline = "
                       "$1 and shard = $2::int and epoch = $3::bigint",
                       p, 3, false, NULL, err);
}

/* The session was an owner's and may still be in the cursor row: a stand-by would wait for it. */
static void forget_owner(struct ob_source *s)
{
    struct ob_err ignored;
    if (s->recorded && s->sql.c && write_stopped(s, &ignored) != OB_OK)
        ob_pg_close(&s->sql);
    s->recorded = false;
    if (s->lock_bits || s->joined)
        unlock_all(s);
}

/* Becomes the owner of a shard that is free. */
static enum ob_status start_owner(struct ob_source *s, const struct before *old, struct ob_err *err)
{
    enum ob_status st = write_owner(s, old, err);
    if (st != OB_OK)
        return st;
    struct ob_err ignored;
    s->recorded = true;
    st = ob_pg_fit(s, err);
    if (st == OB_OK)
        st = s->reader->start(s, err);
    if (st != OB_OK) {
        if (s->sql.c && write_stopped(s, &ignored) != OB_OK)
            ob_pg_rollback(&s->sql);
        else
            s->recorded = false;
    }
    return st;
}

enum ob_status ob_pg_own(struct ob_source *s, struct ob_err *err)
{
    unsigned held = 0;
    struct before old = {0};
    if (s->owned && ob_pg_owned(s, err) == OB_OK)
        return OB_OK;
    enum ob_status st = connect_again(s, err);
    if (st == OB_OK && (s->recorded || s->lock_bits))
        forget_owner(s);
    if (st == OB_OK)
        st = connect_again(s, err); /* unless forgetting cost the session */
    if (st == OB_OK)
        st = ob_pg_join(s, err);
    if (st == OB_OK)
        st = read_before(s, &old, err);
    if (st == OB_OK && !must_be_free(s, &old))
        st = ob_pg_share(s, err);
    if (st != OB_OK)
        return st;
    st = take_shards(s, &old, &held, err);
    if (st == OB_OK)
        st = start_owner(s, &old, err);
    for (unsigned i = 0; i < held; i++)
        if (i != s->shard)
            ob_pg_holder_unlock(s, i);
    if (st != OB_OK) {
        s->reader->stop(s);
        ob_pg_holder_unlock(s, s->shard);
        return st;
    }
    s->owned = true;
    s->seen = false;
    s->share_at = 0;
    s->maintain_at = s->months_at = 0;
    return OB_OK;
}

/* ---- being it ---- */

/* Partitions ahead, old ones away. Each step is its own transaction; one that finds something to do
 * is followed by another with the next beat. */
static void maintain(struct ob_source *s)
{
    PGresult *res = NULL;
    struct ob_err err = {.text = ""};
    int64_t now = ob_clock_mono_ms(s->clock);
    if (s->shard != 0 || now < s->maintain_at)
        return;
    s->maintain_at = now + MAINTAIN_MS;
    if (ob_pg_query(&s->sql, "select outbox.maintain()", NULL, 0, false, &res, &err) != OB_OK) {
        ob_log(s->log, OB_LOG_WARN, "source.maintain", OB_KC("error", err.text));
        return;
    }
    if (PQntuples(res) == 1 && !PQgetisnull(res, 0, 0)) {
        ob_log(s->log, OB_LOG_INFO, "source.maintain", OB_KC("done", PQgetvalue(res, 0, 0)));
        s->maintain_at = now;
    }
    PQclear(res);
}

enum ob_status ob_pg_beat(struct ob_source *s, const struct ob_beat *beat, bool *paused,
                          struct ob_err *err)
{
    char shard[12], epoch[24], flight[24];
    struct pg_cursor c = {0};
    PGresult *res = NULL;
    enum ob_status st = ob_pg_owned(s, err);
    if (st == OB_OK && s->reader->tick)
        st = s->reader->tick(s, err);
    if (st != OB_OK)
        return st;
    bool rests = s->reader->rest && s->reader->rest(s, &c);
    number(shard, s->shard);
    snprintf(epoch, sizeof(epoch), "%" PRId64, s->epoch);
    snprintf(flight, sizeof(flight), "%" PRId64, beat->in_flight);
    const struct pg_param p[] = {PG_TEXT(s->pipeline), PG_TEXT(shard),      PG_TEXT(epoch),
                                 PG_TEXT(beat->state), PG_TEXT(flight),     PG_TEXT(c.pos),
                                 PG_TEXT(c.snap),      PG_TEXT(c.late_pos), PG_TEXT(c.late_snap),
                                 PG_TEXT(c.adopt_pos), PG_TEXT(c.lsn),      PG_TEXT(c.rows_done)};
    st = ob_pg_query(
        &s->sql,
        "update outbox.cursor set beat = beat + 1, beat_at = clock_timestamp(), state = $4, "
        "in_flight = $5::bigint, lsn = coalesce($11::pg_lsn, lsn), rows_done = "
        "coalesce($12::bigint, rows_done), " PLACE " where pipeline = $1 and shard = $2::int and "
        "epoch = $3::bigint returning pg_current_xact_id(), (select paused from outbox.pipeline "
        "where name = $1), pg_backend_pid() = backend_pid",
        p, 12, true, &res, err);
    if (st != OB_OK)
        return ob_pg_owned(s, &(struct ob_err){0}) == OB_OK ? st : OB_FENCED;
    if (PQntuples(res) == 0) {
        st = ob_err_set(err, OB_FENCED, "another owner took over");
        ob_pg_lost(s);
    } else if (!ob_pg_bool(res, 0, 2)) { /* the cursor row names another backend */
        st = ob_err_set(err, OB_FENCED,
                        "the session has got another backend: a pooler in transaction mode?");
        ob_pg_lost(s);
        ob_pg_close(&s->sql);
    } else {
        ob_pg_fence_note(s, (uint64_t)ob_pg_i64(res, 0, 0));
        *paused = !ob_pg_null(res, 0, 1) && ob_pg_bool(res, 0, 1);
        if (rests)
            s->reader->rested(s);
    }
    PQclear(res);
    if (st == OB_OK && s->reader->beat)
        s->reader->beat(s, beat);
    if (st == OB_OK) {
        ob_pg_holder_relock(s);
        maintain(s);
        ob_pg_months(s);
    }
    if (st == OB_OK && ob_pg_share_over(s))
        st = ob_err_set(err, OB_AGAIN, "another process takes its share of the shards");
    return st;
}

void ob_pg_disown(struct ob_source *s)
{
    ob_pg_lost(s);
    forget_owner(s);
}
