/* SPDX-License-Identifier: Apache-2.0 */
/* own - who owns the shard. The lock file excludes, the epoch in the cursor row fences: each owner
 * raises it, and a write under an older one changes no row.
 *
 * A lock that is held belongs to a process that lives, but it may hang. A stand-by takes over only
 * after it saw the beat stand for STALE_MS of its own monotonic clock, in looks at which it could
 * itself get the write lock (else the application may have kept the owner from beating). Then it
 * replaces the lock file and raises the epoch in one write transaction; when the hung process goes
 * on, its settles are refused. */
#include "source/sqlite/sqlite.h"

#include <stdio.h>
#include <stdlib.h>

struct cursor {
    unsigned shards;
    int64_t epoch, beat;
    char owner[128];
    bool there;
};

struct cursors {
    struct cursor of[SHARDS_MAX];
    unsigned shards; /* 0: none yet */
    bool other_keys; /* written under other key rules */
};

struct takeover {
    struct cursors seen;
    struct lock locks[SHARDS_MAX];
    bool stale[SHARDS_MAX];
};

bool ob_sqlite_mine(const struct ob_source *s, uint64_t hash)
{
    return s->shards == 1 || ob_shard_of(hash, s->shards) == s->shard;
}

int64_t ob_sqlite_wall_ms(const struct ob_source *s)
{
    return ob_clock_wall_us(s->clock) / 1000;
}

enum ob_status ob_sqlite_owned(struct ob_source *s, struct ob_err *err)
{
    return s->owned ? OB_OK : ob_err_set(err, OB_FENCED, "the shard is not owned");
}

void ob_sqlite_lost(struct ob_source *s)
{
    s->owned = false;
    s->unsure = false;
    s->credit = (struct counted){0};
    ob_sqlite_unlock(&s->lock);
    ob_sqlite_wake_unwatch(&s->wake);
}

static enum ob_status read_cursors(struct ob_source *s, struct cursors *out, struct ob_err *err)
{
    sqlite3_stmt *st = s->db.st[ST_CURSORS];
    enum ob_status ret = OB_OK;
    int rc;

    *out = (struct cursors){0};
    ob_sqlite_bind_str(st, 1, ob_str_c(s->pipeline));
    while ((rc = sqlite3_step(st)) == SQLITE_ROW) {
        int64_t shard = sqlite3_column_int64(st, 0), shards = sqlite3_column_int64(st, 1);
        if (shard < 0 || shard >= SHARDS_MAX || shards <= shard || shards > SHARDS_MAX) {
            ret = ob_err_set(err, OB_FATAL, "outbox_cursor has shard %lld of %lld of pipeline %s",
                             (long long)shard, (long long)shards, s->pipeline);
            break;
        }
        struct cursor *c = &out->of[shard];
        c->there = true;
        c->shards = out->shards = (unsigned)shards;
        c->epoch = sqlite3_column_int64(st, 3);
        c->beat = sqlite3_column_int64(st, 4);
        snprintf(c->owner, sizeof(c->owner), "%s", (const char *)sqlite3_column_text(st, 5));
    }
    if (ret == OB_OK && rc != SQLITE_DONE)
        ret = ob_sqlite_fail(err, s->db.h, rc, "reading the cursors");
    sqlite3_reset(st);
    if (ret == OB_OK)
        ret = ob_sqlite_other_keys(s, out->shards, &out->other_keys, err);
    return ret;
}

/* Could the owner write, if it lived? Takes the write lock for a moment. */
static bool could_write(struct ob_source *s)
{
    struct ob_err ignored;

    if (ob_sqlite_begin(&s->db, &ignored) != OB_OK)
        return false;
    ob_sqlite_rollback(&s->db);
    return true;
}

static bool is_stale(struct ob_source *s, unsigned shard, const struct cursor *c)
{
    struct watch *w = &s->watch[shard];
    int64_t now = ob_clock_mono_ms(s->clock), passed = now - w->seen_ms;

    if (!w->seen || w->epoch != c->epoch || w->beat != c->beat) {
        *w = (struct watch){.epoch = c->epoch, .beat = c->beat, .seen_ms = now, .seen = true};
        return false;
    }
    if (passed < 1000)
        return false;
    w->seen_ms = now;
    if (!could_write(s))
        return false;
    /* A long pause of our own proves little about the owner's. */
    w->quiet_ms += passed > 5000 ? 5000 : passed;
    return w->quiet_ms >= STALE_MS;
}

static enum ob_status lock_one(struct ob_source *s, struct takeover *t, unsigned shard,
                               struct ob_err *err)
{
    const struct cursor *c = &t->seen.of[shard];
    enum ob_status st = ob_sqlite_lock(&t->locks[shard], s->path, s->pipeline, shard, err);

    if (st != OB_AGAIN)
        return st;
    if (c->there && is_stale(s, shard, c)) {
        t->stale[shard] = true;
        return OB_OK;
    }
    return ob_err_set(err, OB_AGAIN, "shard %u of %u is owned by %s", shard,
                      c->there ? c->shards : s->shards, c->owner[0] ? c->owner : "a new owner");
}

static bool changes_shards(const struct ob_source *s, const struct takeover *t)
{
    return t->seen.shards && (t->seen.shards != s->shards || t->seen.other_keys);
}

/* The locks that are needed: our own; for a changed number of shards, or other key rules, also
 * those of all old ones, in rising order, so that of two who try one gets through. */
static enum ob_status lock_all(struct ob_source *s, struct takeover *t, struct ob_err *err)
{
    unsigned n = changes_shards(s, t) ? t->seen.shards : 0;
    enum ob_status st = OB_OK;

    for (unsigned i = 0; i < n && st == OB_OK; i++)
        st = lock_one(s, t, i, err);
    if (n && st == OB_AGAIN && n == s->shards)
        ob_err_prefix(err, "the routes have other keys, which apply when all %u shards are free",
                      n);
    else if (n && st == OB_AGAIN)
        ob_err_prefix(err, "the number of shards changes from %u to %u when all have stopped", n,
                      s->shards);
    if (st == OB_OK && s->shard >= n)
        st = lock_one(s, t, s->shard, err);
    return st;
}

/* Nothing may have moved between the look and the write lock. */
static enum ob_status same_as_seen(struct ob_source *s, const struct takeover *t,
                                   struct ob_err *err)
{
    struct cursors now;
    enum ob_status st = read_cursors(s, &now, err);

    if (st != OB_OK)
        return st;
    if (now.shards != t->seen.shards || now.other_keys != t->seen.other_keys)
        return ob_err_set(err, OB_AGAIN, "another process has just changed the shards");
    for (unsigned i = 0; i < SHARDS_MAX; i++)
        if (t->stale[i] &&
            (now.of[i].epoch != t->seen.of[i].epoch || now.of[i].beat != t->seen.of[i].beat))
            return ob_err_set(err, OB_AGAIN, "shard %u lives after all", i);
    return OB_OK;
}

static enum ob_status replace_stale(struct ob_source *s, struct takeover *t, struct ob_err *err)
{
    enum ob_status st = OB_OK;

    for (unsigned i = 0; i < SHARDS_MAX && st == OB_OK; i++)
        if (t->stale[i]) {
            st = ob_sqlite_lock_replace(&t->locks[i], s->path, s->pipeline, i, err);
            if (st == OB_AGAIN)
                ob_err_set(err, OB_AGAIN, "another process took over shard %u", i);
        }
    return st;
}

/* One statement with pipeline, shard, shards, owner and time as parameters; not prepared for long:
 * owners change rarely. */
static enum ob_status once(struct ob_source *s, const char *text, struct ob_err *err)
{
    sqlite3_stmt *st = NULL;
    enum ob_status ret = OB_OK;
    int rc = sqlite3_prepare_v2(s->db.h, text, -1, &st, NULL);

    if (rc == SQLITE_OK) {
        ob_sqlite_bind_str(st, 1, ob_str_c(s->pipeline));
        sqlite3_bind_int64(st, 2, s->shard);
        sqlite3_bind_int64(st, 3, s->shards);
        ob_sqlite_bind_str(st, 4, ob_str_c(s->owner));
        sqlite3_bind_int64(st, 5, ob_sqlite_wall_ms(s));
        sqlite3_bind_int64(st, 6, (sqlite3_int64)s->key_rules);
        rc = sqlite3_step(st);
    }
    if (rc != SQLITE_DONE)
        ret = ob_sqlite_fail(err, s->db.h, rc, "becoming the owner");
    sqlite3_finalize(st);
    return ret;
}

static enum ob_status load_cursor(struct ob_source *s, struct ob_err *err)
{
    sqlite3_stmt *st = s->db.st[ST_CURSOR];
    enum ob_status ret = OB_OK;
    int rc;

    ob_sqlite_bind_str(st, 1, ob_str_c(s->pipeline));
    sqlite3_bind_int64(st, 2, s->shard);
    rc = sqlite3_step(st);
    if (rc == SQLITE_ROW) {
        s->epoch = sqlite3_column_int64(st, 0);
        s->pos = (uint64_t)sqlite3_column_int64(st, 1);
        s->settle_no = sqlite3_column_int64(st, 2);
    } else {
        ret = ob_sqlite_fail(err, s->db.h, rc, "reading the cursor");
    }
    sqlite3_reset(st);
    return ret;
}

static enum ob_status raise_epoch(struct ob_source *s, const struct takeover *t, struct ob_err *err)
{
    enum ob_status st = once(s,
                             s->dlt ? "INSERT INTO outbox_pipeline (name, dlt) VALUES (?1, 1)"
                                      " ON CONFLICT DO UPDATE SET dlt = 1 WHERE dlt <> 1"
                                    : "INSERT INTO outbox_pipeline (name) VALUES (?1)"
                                      " ON CONFLICT DO UPDATE SET dlt = 0 WHERE dlt <> 0",
                             err);

    if (st == OB_OK && changes_shards(s, t))
        st = ob_sqlite_reshard(s, err);
    if (st == OB_OK && t->seen.other_keys)
        st = ob_sqlite_forget_past(s, err);
    if (st == OB_OK && s->key_rules)
        st = once(s,
                  "UPDATE outbox_pipeline SET key_rules = ?6 WHERE name = ?1"
                  " AND key_rules IS NOT ?6",
                  err);
    /* All rows at once, so that the shards of a pipeline are always complete. */
    if (st == OB_OK)
        st = once(s,
                  "WITH RECURSIVE i (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM i"
                  " WHERE n + 1 < ?3) INSERT INTO outbox_cursor (pipeline, shard, shards)"
                  " SELECT ?1, n, ?3 FROM i WHERE true ON CONFLICT DO NOTHING",
                  err);
    if (st == OB_OK)
        st = once(s,
                  "UPDATE outbox_cursor SET epoch = epoch + 1, owner = ?4, beat = beat + 1,"
                  " beat_at = ?5, state = 'running', in_flight = 0"
                  " WHERE pipeline = ?1 AND shard = ?2",
                  err);
    if (st == OB_OK)
        st = load_cursor(s, err);
    if (st == OB_OK)
        st = ob_sqlite_ahead_load(s, err);
    if (st == OB_OK)
        st = ob_sqlite_past_load(s, err);
    return st;
}

static enum ob_status write_owner(struct ob_source *s, struct takeover *t, struct ob_err *err)
{
    enum ob_status st = ob_sqlite_sync(&s->db, false, err);

    if (st == OB_OK)
        st = ob_sqlite_begin(&s->db, err);
    if (st == OB_OK)
        st = same_as_seen(s, t, err);
    if (st == OB_OK)
        st = replace_stale(s, t, err);
    if (st == OB_OK)
        st = raise_epoch(s, t, err);
    if (st == OB_OK)
        st = ob_sqlite_commit(&s->db, err);
    ob_sqlite_rollback(&s->db);
    return st;
}

/* A file that was moved away or replaced is not the one that writers write. */
static enum ob_status connect_again(struct ob_source *s, struct ob_err *err)
{
    if (s->db.h && ob_sqlite_db_same(&s->db, s->path))
        return OB_OK;
    ob_sqlite_db_close(&s->db);
    return ob_sqlite_db_open(&s->db, s->path, OPEN_RELAY, s->busy_ms, err);
}

static enum ob_status still_owner(struct ob_source *s, struct ob_err *err)
{
    int64_t mine = s->epoch;
    uint64_t pos = s->pos;
    int64_t settle_no = s->settle_no;
    enum ob_status st = load_cursor(s, err);
    bool other = st == OB_OK && s->epoch != mine;

    s->epoch = mine;
    s->pos = pos;
    s->settle_no = settle_no;
    if (!other)
        return st;
    ob_sqlite_lost(s);
    return ob_err_set(err, OB_FENCED, "another owner took over");
}

enum ob_status ob_sqlite_own(struct ob_source *s, struct ob_err *err)
{
    struct takeover t = {0};
    enum ob_status st;

    if (s->owned)
        return still_owner(s, err);
    for (unsigned i = 0; i < SHARDS_MAX; i++)
        t.locks[i].fd = -1;
    st = connect_again(s, err);
    if (st == OB_OK)
        st = read_cursors(s, &t.seen, err);
    if (st == OB_OK)
        st = lock_all(s, &t, err);
    if (st == OB_OK)
        st = write_owner(s, &t, err);
    if (st == OB_RETRY)
        st = ob_err_set(err, OB_AGAIN, "the database is busy");
    if (st == OB_OK) {
        s->lock = t.locks[s->shard];
        t.locks[s->shard].fd = -1;
        s->owned = true;
        memset(s->watch, 0, sizeof(s->watch));
        ob_sqlite_rewind(s);
        ob_sqlite_wake_watch(&s->wake);
    }
    for (unsigned i = 0; i < SHARDS_MAX; i++)
        ob_sqlite_unlock(&t.locks[i]);
    return st;
}

static enum ob_status write_beat(struct ob_source *s, const struct ob_beat *beat,
                                 struct ob_err *err)
{
    sqlite3_stmt *st = s->db.st[ST_BEAT];
    enum ob_status ret;

    ob_sqlite_bind_str(st, 1, ob_str_c(s->pipeline));
    sqlite3_bind_int64(st, 2, s->shard);
    sqlite3_bind_int64(st, 3, s->epoch);
    sqlite3_bind_int64(st, 4, ob_sqlite_wall_ms(s));
    ob_sqlite_bind_str(st, 5, ob_str_c(beat->state));
    sqlite3_bind_int64(st, 6, beat->in_flight);
    ret = ob_sqlite_sync(&s->db, true, err);
    if (ret == OB_OK)
        ret = ob_sqlite_run(&s->db, ST_BEAT, err);
    sqlite3_clear_bindings(st);
    if (ret == OB_OK && sqlite3_changes(s->db.h) == 0) {
        ob_sqlite_lost(s);
        ret = ob_err_set(err, OB_FENCED, "another owner took over");
    }
    return ret;
}

enum ob_status ob_sqlite_beat(struct ob_source *s, const struct ob_beat *beat, bool *paused,
                              struct ob_err *err)
{
    sqlite3_stmt *st;
    enum ob_status ret = ob_sqlite_owned(s, err);

    if (ret == OB_OK && !ob_sqlite_db_same(&s->db, s->path)) {
        ob_sqlite_lost(s);
        ret = ob_err_set(err, OB_FENCED, "sqlite %s: the file was moved or replaced", s->path);
    }
    if (ret == OB_OK)
        ret = write_beat(s, beat, err);
    if (ret != OB_OK)
        return ret;
    ob_sqlite_wake_watch(&s->wake);
    st = s->db.st[ST_PAUSED];
    ob_sqlite_bind_str(st, 1, ob_str_c(s->pipeline));
    *paused = sqlite3_step(st) == SQLITE_ROW && sqlite3_column_int(st, 0) != 0;
    sqlite3_reset(st);
    return OB_OK;
}

void ob_sqlite_disown(struct ob_source *s)
{
    const struct ob_beat stopped = {.state = "stopped"};
    struct ob_err ignored;

    if (!s->owned)
        return;
    /* Only for people: the lock is what counts, and it is let go in any case. */
    write_beat(s, &stopped, &ignored);
    ob_sqlite_lost(s);
}
