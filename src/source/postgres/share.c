/* SPDX-License-Identifier: Apache-2.0 */
/* share - which shards a process takes when several processes run one pipeline: ceil(shards /
 * members). (tests/e2e/test_postgres_shards.py)
 *
 * Every session of a member holds a shared advisory lock (pipeline, process), so pg_locks lists the
 * members, and their locks end with their sessions. A member counts while one of its sessions was
 * used within LIVES: a hung process keeps its sessions, not its share. Locks of sessions whose role
 * is not a relay's do not count. An owner with more than its share gives up one shard at a time,
 * the highest, after it has settled. A shard that stays free for LEFT_MS is taken regardless of
 * shares: a member that cannot work must not keep it from the others. Shares only spread the work;
 * the cursor row guards it (holder.c). */
#include "source/postgres/pg.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define LIVES "interval '5 s'"
#define LEFT_MS 3000
#define KEEP_MS 60000 /* a shard that nobody else wanted is not offered again so soon */
#define LOOK_MS 2000  /* between two looks of an owner */
#define JOIN_TRIES 8

/* The two halves of the lock: the pipeline, and the process without what differs between shards.
 * salt: 0, or another number where a foreign session holds the usual lock. */
static void make_keys(const struct ob_source *s, uint32_t *pipeline, uint32_t *process)
{
    char name[160];
    int n = snprintf(name, sizeof(name), "outbox member/%.120s", s->pipeline);
    *pipeline = (uint32_t)ob_hash64(name, (size_t)n);
    *process = (uint32_t)ob_hash64(s->owner, strlen(s->owner)) ^ s->member_salt;
}

void ob_pg_member_key(const struct ob_source *s, char out[16])
{
    uint32_t pipeline, process;
    make_keys(s, &pipeline, &process);
    snprintf(out, 16, "%" PRIu32, pipeline);
}

static enum ob_status try_join(struct ob_source *s, bool *got, struct ob_err *err)
{
    char a[16], b[16];
    uint32_t pipeline, process;
    PGresult *res = NULL;
    make_keys(s, &pipeline, &process);
    snprintf(a, sizeof(a), "%" PRId32, (int32_t)pipeline);
    snprintf(b, sizeof(b), "%" PRId32, (int32_t)process);
    const struct pg_param p[] = {PG_TEXT(a), PG_TEXT(b)};
    enum ob_status st = ob_pg_query(&s->sql, "select pg_try_advisory_lock_shared($1::int, $2::int)",
                                    p, 2, true, &res, err);
    *got = st == OB_OK && ob_pg_bool(res, 0, 0);
    PQclear(res);
    return st;
}

/* A foreign session can hold, or wait for, an exclusive lock with these numbers. The process then
 * joins under others: it counts as one more member, which costs evenness and nothing else. */
enum ob_status ob_pg_join(struct ob_source *s, struct ob_err *err)
{
    bool got = s->joined;
    enum ob_status st = OB_OK;
    for (int i = 0; i < JOIN_TRIES && st == OB_OK && !got; i++) {
        st = try_join(s, &got, err);
        if (st == OB_OK && !got)
            s->member_salt =
                s->member_salt * 1664525U + 1013904223U + (uint32_t)ob_clock_mono_ms(s->clock);
    }
    s->joined = got;
    if (st == OB_OK && !got)
        st = ob_err_set(err, OB_AGAIN, "foreign sessions hold the member locks of the pipeline");
    return st;
}

struct view {
    int64_t members, mine, top; /* top: the highest shard of this process, -1: none */
    bool held;                  /* another session has this shard */
};

static enum ob_status look(struct ob_source *s, struct view *v, struct ob_err *err)
{
    char a[16], b[16], no[12], key[24];
    uint32_t pipeline, process;
    PGresult *res = NULL;
    make_keys(s, &pipeline, &process);
    snprintf(a, sizeof(a), "%" PRIu32, pipeline);
    snprintf(b, sizeof(b), "%" PRIu32, process);
    snprintf(no, sizeof(no), "%u", s->shard);
    ob_pg_array_begin(&s->array[0]);
    for (unsigned i = 0; i < s->shards; i++) {
        ob_pg_lock_key(s, i, key);
        ob_pg_array_add(&s->array[0], (struct ob_str){key, strlen(key)});
    }
    const struct pg_param p[] = {PG_TEXT(a), PG_TEXT(b), PG_TEXT(ob_pg_array_end(&s->array[0])),
                                 PG_TEXT(no), PG_TEXT(s->pipeline)};
    /* A shard is taken where a relay's session holds its lock, or where the cursor row names a
     * member's session: an owner may be without the lock. */
    enum ob_status st = ob_pg_query(
        &s->sql,
        "with l as materialized (select l.pid, l.objsubid, l.classid, l.objid, l.mode, "
        "l.classid::bigint << 32 | l.objid::bigint as key, a.state, a.state_change from pg_locks l "
        "join pg_stat_activity a on a.pid = l.pid where l.locktype = 'advisory' and l.granted and "
        "l.database = (select oid from pg_database where datname = current_database()) and "
        "outbox.is_relay(a.usesysid)), "
        "member as materialized (select pid, objid, state, state_change from l where objsubid = 2 "
        "and classid = $1::text::oid), "
        "owned as (select k.i - 1 as shard, m.objid from unnest($3::bigint[]) with ordinality as "
        "k(key, i) join l on l.key = k.key and l.objsubid = 1 and l.mode = 'ExclusiveLock' left "
        "join member m on m.pid = l.pid union select c.shard, m.objid from outbox.cursor c join "
        "member m on m.pid = c.backend_pid where c.pipeline = $5 and c.state <> 'stopped') "
        "select (select count(distinct m.objid) from member m where m.state_change is null or "
        "m.state = 'active' or m.state_change > clock_timestamp() - " LIVES "), "
        "(select count(*) from owned where objid = $2::text::oid), "
        "(select coalesce(max(shard), -1) from owned where objid = $2::text::oid), "
        "exists (select 1 from owned where shard = $4::int)",
        p, 5, true, &res, err);
    if (st == OB_OK)
        *v = (struct view){.members = ob_pg_i64(res, 0, 0),
                           .mine = ob_pg_i64(res, 0, 1),
                           .top = ob_pg_i64(res, 0, 2),
                           .held = ob_pg_bool(res, 0, 3)};
    PQclear(res);
    return st;
}

static int64_t share_of(const struct ob_source *s, const struct view *v)
{
    int64_t members = v->members > 0 ? v->members : 1;
    return (s->shards + members - 1) / members;
}

enum ob_status ob_pg_share(struct ob_source *s, struct ob_err *err)
{
    struct view v = {0};
    int64_t now = ob_clock_mono_ms(s->clock);
    if (s->shards <= 1)
        return OB_OK;
    enum ob_status st = look(s, &v, err);
    if (st != OB_OK)
        return st;
    if (v.held || v.mine < share_of(s, &v)) {
        s->free_since = 0;
        s->keep_until = 0;
        return OB_OK;
    }
    if (s->free_since == 0)
        s->free_since = now;
    if (now - s->free_since < LEFT_MS)
        return ob_err_set(err, OB_AGAIN,
                          "shard %u is left to another of %" PRId64
                          " processes; this one has %" PRId64 " of %u",
                          s->shard, v.members, v.mine, s->shards);
    s->free_since = 0;
    s->keep_until = now + KEEP_MS;
    return OB_OK;
}

bool ob_pg_share_over(struct ob_source *s)
{
    struct view v = {0};
    struct ob_err ignored;
    int64_t now = ob_clock_mono_ms(s->clock);
    if (s->shards <= 1 || now < s->share_at || now < s->keep_until)
        return false;
    s->share_at = now + LOOK_MS;
    return look(s, &v, &ignored) == OB_OK && v.mine > share_of(s, &v) && v.top == (int64_t)s->shard;
}
