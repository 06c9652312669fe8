/* SPDX-License-Identifier: Apache-2.0 */
/* holder - which session has a shard, and whether it is still alive.
 *
 * The cursor row decides: it names the owner's backend and epoch, only a relay's role can write it,
 * and it changes hands under its row lock after this file found its session gone or silent. The
 * shard's advisory lock is taken as well where it is free: it tells the stand-bys in one statement
 * that the shard is taken. Any role that can connect may take that lock, so a holder of another
 * role does not count, and an owner may be without it.
 *
 * A session counts as alive while it holds an advisory lock of the pipeline (the shard's, or the
 * member lock of share.c): the server frees both when the session ends or a pooler resets it.
 * (tests/e2e/test_postgres_lock.py, tests/unit/source/pg_own_test.c) */
#include "source/postgres/pg.h"

#include <inttypes.h>
#include <stdio.h>

#define STALE_MS 10000
#define STEAL_MS 2000 /* after the first attempt to terminate a silent owner's backend */

/* A row of outbox.shard_holder(). */
struct holder {
    int64_t epoch, beat, pid, started;
    bool owns, holds, active;
    bool none; /* no other session has the shard or its lock */
    char owner[96], who[224];
};

void ob_pg_lock_key(const struct ob_source *s, unsigned shard, char out[24])
{
    char name[160];
    int n = snprintf(name, sizeof(name), "outbox/%.120s/%u", s->pipeline, shard);
    snprintf(out, 24, "%" PRId64, (int64_t)ob_hash64(name, (size_t)n));
}

static void copy_text(char *out, size_t size, PGresult *res, int column)
{
    struct ob_str text = ob_pg_str(res, 0, column);
    snprintf(out, size, "%.*s", OB_STR_ARG(text));
}

static enum ob_status read_holder(struct ob_source *s, unsigned shard, struct holder *out,
                                  struct ob_err *err)
{
    char no[12], key[24], member[16];
    PGresult *res = NULL;
    snprintf(no, sizeof(no), "%u", shard);
    ob_pg_lock_key(s, shard, key);
    ob_pg_member_key(s, member);
    const struct pg_param p[] = {PG_TEXT(s->pipeline), PG_TEXT(no), PG_TEXT(key), PG_TEXT(member)};
    enum ob_status st =
        ob_pg_query(&s->sql,
                    "select owner, epoch, beat, owns, holds, pid, started, active, who from "
                    "outbox.shard_holder($1, $2::int, $3::bigint, $4::text::oid)",
                    p, 4, true, &res, err);
    if (st != OB_OK)
        return st;
    *out = (struct holder){.epoch = ob_pg_i64(res, 0, 1),
                           .beat = ob_pg_i64(res, 0, 2),
                           .owns = ob_pg_bool(res, 0, 3),
                           .holds = ob_pg_bool(res, 0, 4),
                           .pid = ob_pg_null(res, 0, 5) ? 0 : ob_pg_i64(res, 0, 5),
                           .started = ob_pg_i64(res, 0, 6),
                           .active = ob_pg_bool(res, 0, 7),
                           .none = ob_pg_null(res, 0, 8)};
    copy_text(out->owner, sizeof(out->owner), res, 0);
    copy_text(out->who, sizeof(out->who), res, 8);
    PQclear(res);
    return OB_OK;
}

/* Only the backend that was observed, never a newer one with the same pid. Without the right to see
 * backend_start there is no right to terminate the backend either. */
static void terminate_backend(struct ob_source *s, const struct holder *h, int64_t quiet_ms)
{
    char pid[24], started[24];
    struct ob_err why;
    snprintf(pid, sizeof(pid), "%" PRId64, h->pid);
    snprintf(started, sizeof(started), "%" PRId64, h->started);
    const struct pg_param p[] = {PG_TEXT(pid), PG_TEXT(started)};
    ob_log(s->log, OB_LOG_WARN, "owner.terminate", OB_KI("backend", h->pid),
           OB_KI("quiet_ms", quiet_ms), OB_KC("holder", h->who));
    if (ob_pg_query(&s->sql,
                    "select pg_terminate_backend(a.pid) from pg_stat_activity a where a.pid = "
                    "$1::int and (extract(epoch from a.backend_start) * 1000000)::bigint = "
                    "$2::bigint",
                    p, 2, false, NULL, &why) != OB_OK)
        ob_log(s->log, OB_LOG_ERROR, "owner.terminate", OB_KC("error", why.text));
}

/* How long the holder has been silent, on this process's monotonic clock, from the first of
 * consecutive observations that were all the same. A session that is not in the cursor row yet and
 * runs a statement is not silent: it may adopt a large table. */
static int64_t quiet_for(struct ob_source *s, unsigned shard, const struct holder *h)
{
    int64_t now = ob_clock_mono_ms(s->clock);
    bool busy = !h->owns && h->active;
    if (!s->seen || busy || shard != s->seen_shard || h->epoch != s->seen_epoch ||
        h->beat != s->seen_beat || h->pid != s->seen_pid || h->started != s->seen_start) {
        s->seen = true;
        s->seen_shard = shard;
        s->seen_epoch = h->epoch;
        s->seen_beat = h->beat;
        s->seen_pid = h->pid;
        s->seen_start = h->started;
        s->seen_ms = now;
        s->terminate_at = 0;
    }
    return now - s->seen_ms;
}

/* Another relay's session has the shard. OB_OK: it has been silent for too long and its backend
 * could not be terminated (it is of another role, or stuck): the epoch fences it. */
static enum ob_status watch_holder(struct ob_source *s, unsigned shard, const struct holder *h,
                                   struct ob_err *err)
{
    int64_t quiet = quiet_for(s, shard, h), now = ob_clock_mono_ms(s->clock);
    if (quiet >= STALE_MS && now >= s->terminate_at) {
        terminate_backend(s, h, quiet);
        if (s->terminate_at == 0)
            s->steal_at = now + STEAL_MS;
        s->terminate_at = now + 1000;
    } else if (quiet >= STALE_MS && now >= s->steal_at) {
        return OB_OK;
    }
    if (h->owns)
        return ob_err_set(err, OB_AGAIN, "shard %u is owned by %s (%s)", shard, h->owner, h->who);
    return ob_err_set(err, OB_AGAIN, "shard %u is being taken by another relay (%s)", shard,
                      h->who);
}

static enum ob_status try_lock(struct ob_source *s, unsigned shard, bool *got, struct ob_err *err)
{
    char key[24];
    PGresult *res = NULL;
    ob_pg_lock_key(s, shard, key);
    const struct pg_param p[] = {PG_TEXT(key)};
    enum ob_status st =
        ob_pg_query(&s->sql, "select pg_try_advisory_lock($1::bigint)", p, 1, true, &res, err);
    *got = st == OB_OK && ob_pg_bool(res, 0, 0);
    PQclear(res);
    if (*got)
        s->lock_bits |= 1U << shard;
    return st;
}

void ob_pg_holder_unlock(struct ob_source *s, unsigned shard)
{
    char key[24];
    struct ob_err ignored;
    if (!(s->lock_bits & 1U << shard))
        return;
    s->lock_bits &= ~(1U << shard);
    ob_pg_lock_key(s, shard, key);
    const struct pg_param p[] = {PG_TEXT(key)};
    if (s->sql.c && ob_pg_query(&s->sql, "select pg_advisory_unlock($1::bigint)", p, 1, false, NULL,
                                &ignored) != OB_OK)
        ob_pg_close(&s->sql);
}

enum ob_status ob_pg_holder_try(struct ob_source *s, unsigned shard, struct ob_err *err)
{
    struct holder h;
    bool got = false;
    enum ob_status st = try_lock(s, shard, &got, err);
    if (st == OB_OK)
        st = read_holder(s, shard, &h, err);
    if (st != OB_OK) {
        s->seen = false; /* silence cannot be measured across a failed observation */
    } else if (h.owns || h.holds) {
        st = watch_holder(s, shard, &h, err);
    } else if (!got && h.none) {
        st = ob_err_set(err, OB_AGAIN, "the lock of shard %u was just released", shard);
    } else if (!got) {
        ob_log(s->log, OB_LOG_WARN, "owner.foreign_lock", OB_KI("shard", shard),
               OB_KC("holder", h.who),
               OB_KC("error", "a session that is not a relay's holds the shard's advisory lock: "
                              "ignored, the epoch decides; end that session, and REVOKE CONNECT "
                              "from its role if it has no business in this database"));
    }
    if (st != OB_OK)
        ob_pg_holder_unlock(s, shard);
    return st;
}

/* Whether the shard may still change hands, now that its cursor row is locked by this transaction.
 * The only session that may be named there and alive is the silent one that was observed. */
enum ob_status ob_pg_holder_confirm(struct ob_source *s, unsigned shard, struct ob_err *err)
{
    struct holder h;
    enum ob_status st = read_holder(s, shard, &h, err);
    if (st != OB_OK || !h.owns)
        return st;
    bool silent = s->seen && shard == s->seen_shard && h.epoch == s->seen_epoch &&
                  h.beat == s->seen_beat && h.pid == s->seen_pid && h.started == s->seen_start &&
                  ob_clock_mono_ms(s->clock) - s->seen_ms >= STALE_MS;
    if (silent)
        return OB_OK;
    return ob_err_set(err, OB_AGAIN, "shard %u has just been taken by %s (%s)", shard, h.owner,
                      h.who);
}

void ob_pg_holder_relock(struct ob_source *s)
{
    bool got = false;
    struct ob_err ignored;
    if (s->lock_bits & 1U << s->shard)
        return;
    if (try_lock(s, s->shard, &got, &ignored) == OB_OK && got)
        ob_log(s->log, OB_LOG_INFO, "owner.lock", OB_KI("shard", s->shard));
}
