/* SPDX-License-Identifier: Apache-2.0 */
/* status - numbers for people. The event table is never counted: what is pending is the last number
 * minus the cursor, less those that are settled ahead of it. */
#include "source/sqlite/sqlite.h"

#define COUNT_EVERY_MS 5000

/* OB_AGAIN: no row, or NULL in it. */
static enum ob_status number(struct db *db, enum stmt which, const char *pipeline, int64_t *out,
                             struct ob_err *err)
{
    sqlite3_stmt *st = db->st[which];
    enum ob_status ret = OB_AGAIN;
    int rc;

    if (pipeline)
        ob_sqlite_bind_str(st, 1, ob_str_c(pipeline));
    rc = sqlite3_step(st);
    if (rc == SQLITE_ROW && sqlite3_column_type(st, 0) != SQLITE_NULL) {
        *out = sqlite3_column_int64(st, 0);
        ret = OB_OK;
    } else if (rc != SQLITE_ROW && rc != SQLITE_DONE) {
        ret = ob_sqlite_fail(err, db->h, rc, "reading the status");
    }
    sqlite3_reset(st);
    return ret;
}

static enum ob_status oldest(struct db *db, const char *pipeline, uint64_t pos, int64_t *created,
                             struct ob_err *err)
{
    sqlite3_stmt *st = db->st[ST_OLDEST];
    int64_t parked = INT64_MAX;
    enum ob_status ret;

    sqlite3_bind_int64(st, 1, (int64_t)pos);
    *created = INT64_MAX;
    ret = number(db, ST_OLDEST, NULL, created, err);
    if (ret == OB_OK || ret == OB_AGAIN)
        ret = number(db, ST_OLDEST_PARKED, pipeline, &parked, err);
    if (parked < *created)
        *created = parked;
    return ret == OB_AGAIN ? OB_OK : ret;
}

static enum ob_status counts(struct db *db, const char *pipeline, struct ob_source_status *out,
                             struct ob_err *err)
{
    sqlite3_stmt *st = db->st[ST_COUNTS];
    int rc;

    ob_sqlite_bind_str(st, 1, ob_str_c(pipeline));
    rc = sqlite3_step(st);
    if (rc == SQLITE_ROW) {
        out->paused = sqlite3_column_int(st, 0) != 0;
        out->parked = sqlite3_column_int64(st, 1);
        out->dead = sqlite3_column_int64(st, 2);
        out->held = sqlite3_column_int(st, 3) != 0;
    }
    sqlite3_reset(st);
    return rc == SQLITE_ROW || rc == SQLITE_DONE
               ? OB_OK
               : ob_sqlite_fail(err, db->h, rc, "reading the status");
}

enum ob_status ob_sqlite_status_of(struct db *db, const char *pipeline, uint64_t pos, int64_t ahead,
                                   int64_t wall_ms, struct ob_source_status *out,
                                   struct ob_err *err)
{
    struct ob_source_status got = {0};
    int64_t last = 0, created = INT64_MAX;
    enum ob_status st = number(db, ST_PENDING, NULL, &last, err);

    if (st == OB_OK || st == OB_AGAIN)
        st = oldest(db, pipeline, pos, &created, err);
    if (st == OB_OK)
        st = counts(db, pipeline, &got, err);
    if (st != OB_OK)
        return st;
    got.pending = last > (int64_t)pos + ahead ? last - (int64_t)pos - ahead : 0;
    got.lag_ms = created < wall_ms ? wall_ms - created : 0;
    *out = got;
    return OB_OK;
}

static enum ob_status count_hashes(struct db *db, enum stmt which, const char *pipeline,
                                   unsigned shard, unsigned shards, int64_t *out,
                                   struct ob_err *err)
{
    sqlite3_stmt *st = db->st[which];
    int64_t n = 0;
    int rc;

    ob_sqlite_bind_str(st, 1, ob_str_c(pipeline));
    while ((rc = sqlite3_step(st)) == SQLITE_ROW)
        n += ob_shard_of((uint64_t)sqlite3_column_int64(st, 0), shards) == shard;
    sqlite3_reset(st);
    if (rc != SQLITE_DONE)
        return ob_sqlite_fail(err, db->h, rc, "reading the status");
    *out = n;
    return OB_OK;
}

enum ob_status ob_sqlite_count_shard(struct db *db, const char *pipeline, unsigned shard,
                                     unsigned shards, int64_t *parked, int64_t *dead,
                                     struct ob_err *err)
{
    enum ob_status st = count_hashes(db, ST_PARKED_HASHES, pipeline, shard, shards, parked, err);

    return st == OB_OK ? count_hashes(db, ST_DEAD_HASHES, pipeline, shard, shards, dead, err) : st;
}

enum ob_status ob_sqlite_status(struct ob_source *s, struct ob_source_status *out,
                                struct ob_err *err)
{
    int64_t now = ob_clock_mono_ms(s->clock);
    enum ob_status st;

    if (!s->db.h)
        return ob_err_set(err, OB_DOWN, "not connected");
    st = ob_sqlite_status_of(&s->db, s->pipeline, s->pos, (int64_t)s->ahead.n, ob_sqlite_wall_ms(s),
                             out, err);
    if (st != OB_OK || s->shards == 1)
        return st;
    if (!s->counted_ms || now - s->counted_ms >= COUNT_EVERY_MS) {
        st = ob_sqlite_count_shard(&s->db, s->pipeline, s->shard, s->shards, &s->parked, &s->dead,
                                   err);
        s->counted_ms = now;
    }
    out->parked = s->parked;
    out->dead = s->dead;
    return st;
}
