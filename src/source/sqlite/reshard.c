/* SPDX-License-Identifier: Apache-2.0 */
/* reshard - a changed number of shards. The new cursors start at the lowest position of the old
 * ones; where the others stood is remembered, so that what they had settled is not delivered
 * again. What the old ones had settled ahead of their cursors is settled for every new one. */
#include "source/sqlite/sqlite.h"

#include <stdlib.h>

static enum ob_status run(struct ob_source *s, const char *text, struct ob_err *err)
{
    sqlite3_stmt *st = NULL;
    enum ob_status ret = OB_OK;
    int rc = sqlite3_prepare_v2(s->db.h, text, -1, &st, NULL);

    if (rc == SQLITE_OK) {
        ob_sqlite_bind_str(st, 1, ob_str_c(s->pipeline));
        sqlite3_bind_int64(st, 2, s->shards);
        if (s->ahead_bytes.n)
            sqlite3_bind_blob64(st, 3, s->ahead_bytes.p, s->ahead_bytes.n, SQLITE_STATIC);
        rc = sqlite3_step(st);
    }
    if (rc != SQLITE_DONE)
        ret = ob_sqlite_fail(err, s->db.h, rc, "changing the number of shards");
    sqlite3_finalize(st);
    return ret;
}

enum ob_status ob_sqlite_other_keys(struct ob_source *s, unsigned shards, bool *out,
                                    struct ob_err *err)
{
    sqlite3_stmt *st = NULL;
    enum ob_status ret = OB_OK;
    *out = false;
    if (s->key_rules == 0 || shards == 0)
        return OB_OK;
    int rc = sqlite3_prepare_v2(s->db.h,
                                "SELECT 1 FROM outbox_pipeline WHERE name = ?1 AND key_rules <> ?2"
                                " AND (?3 > 1 OR EXISTS (SELECT 1 FROM outbox_past"
                                " WHERE pipeline = ?1))",
                                -1, &st, NULL);
    if (rc == SQLITE_OK) {
        ob_sqlite_bind_str(st, 1, ob_str_c(s->pipeline));
        sqlite3_bind_int64(st, 2, (sqlite3_int64)s->key_rules);
        sqlite3_bind_int64(st, 3, shards);
        rc = sqlite3_step(st);
    }
    *out = rc == SQLITE_ROW;
    if (rc != SQLITE_ROW && rc != SQLITE_DONE)
        ret = ob_sqlite_fail(err, s->db.h, rc, "reading the key rules");
    sqlite3_finalize(st);
    return ret;
}

enum ob_status ob_sqlite_forget_past(struct ob_source *s, struct ob_err *err)
{
    return run(s, "DELETE FROM outbox_past WHERE pipeline = ?1", err);
}

enum ob_status ob_sqlite_reshard(struct ob_source *s, struct ob_err *err)
{
    static const char *const steps[] = {
        "INSERT INTO outbox_past (pipeline, generation, shard, shards, pos)"
        " SELECT pipeline, 1 + coalesce((SELECT max(generation) FROM outbox_past"
        " WHERE pipeline = ?1), 0), shard, shards, pos FROM outbox_cursor WHERE pipeline = ?1",
        /* Shard 0 first takes what all of them were: it alone is left. */
        "UPDATE outbox_cursor SET shards = ?2,"
        " pos = (SELECT min(pos) FROM outbox_cursor WHERE pipeline = ?1),"
        " epoch = (SELECT max(epoch) FROM outbox_cursor WHERE pipeline = ?1) + 1,"
        " published = (SELECT sum(published) FROM outbox_cursor WHERE pipeline = ?1),"
        " failed = (SELECT sum(failed) FROM outbox_cursor WHERE pipeline = ?1),"
        " ahead = ?3, ahead_n = (SELECT sum(ahead_n) FROM outbox_cursor WHERE pipeline = ?1),"
        " state = 'stopped', owner = '', in_flight = 0"
        " WHERE pipeline = ?1 AND shard = 0",
        "DELETE FROM outbox_cursor WHERE pipeline = ?1 AND shard > 0",
        "WITH RECURSIVE i (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM i WHERE n + 1 < ?2)"
        " INSERT INTO outbox_cursor (pipeline, shard, shards, pos, epoch, ahead, ahead_n)"
        " SELECT ?1, i.n, ?2, c.pos, c.epoch, c.ahead, c.ahead_n FROM i JOIN outbox_cursor AS c"
        " ON c.pipeline = ?1 AND c.shard = 0 WHERE i.n < ?2",
    };
    enum ob_status st = ob_sqlite_ahead_gather(s, err);

    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]) && st == OB_OK; i++)
        st = run(s, steps[i], err);
    return st;
}

static enum ob_status add(struct ob_source *s, int64_t generation, int64_t *last, unsigned shards,
                          struct ob_err *err)
{
    struct past *more;

    if (s->n_past && *last == generation)
        return OB_OK;
    more = realloc(s->past, (s->n_past + 1) * sizeof(*more));
    if (!more)
        return ob_err_set(err, OB_DOWN, "no memory");
    s->past = more;
    s->past[s->n_past++] = (struct past){.shards = shards};
    *last = generation;
    return OB_OK;
}

static enum ob_status load(struct ob_source *s, sqlite3_stmt *st, struct ob_err *err)
{
    enum ob_status ret = OB_OK;
    int64_t last = 0;
    int rc;

    ob_sqlite_bind_str(st, 1, ob_str_c(s->pipeline));
    while (ret == OB_OK && (rc = sqlite3_step(st)) == SQLITE_ROW) {
        int64_t shard = sqlite3_column_int64(st, 1), shards = sqlite3_column_int64(st, 2);
        uint64_t pos = (uint64_t)sqlite3_column_int64(st, 3);
        if (shards < 1 || shards > SHARDS_MAX || shard < 0 || shard >= shards)
            continue;
        ret = add(s, sqlite3_column_int64(st, 0), &last, (unsigned)shards, err);
        if (ret == OB_OK)
            s->past[s->n_past - 1].pos[shard] = pos;
        if (pos > s->past_max)
            s->past_max = pos;
    }
    if (ret == OB_OK && rc != SQLITE_DONE)
        ret = ob_sqlite_fail(err, s->db.h, rc, "reading old positions");
    return ret;
}

enum ob_status ob_sqlite_past_load(struct ob_source *s, struct ob_err *err)
{
    sqlite3_stmt *st = NULL;
    enum ob_status ret;
    int rc;

    free(s->past);
    s->past = NULL;
    s->n_past = 0;
    s->past_max = 0;
    /* Generations that every cursor has passed are over. */
    ret = run(s,
              "DELETE FROM outbox_past WHERE pipeline = ?1 AND generation IN"
              " (SELECT generation FROM outbox_past WHERE pipeline = ?1 GROUP BY generation"
              " HAVING max(pos) <= (SELECT min(pos) FROM outbox_cursor WHERE pipeline = ?1))",
              err);
    if (ret != OB_OK)
        return ret;
    rc = sqlite3_prepare_v2(s->db.h,
                            "SELECT generation, shard, shards, pos FROM outbox_past"
                            " WHERE pipeline = ?1 ORDER BY generation, shard",
                            -1, &st, NULL);
    ret = rc == SQLITE_OK ? load(s, st, err)
                          : ob_sqlite_fail(err, s->db.h, rc, "reading old positions");
    sqlite3_finalize(st);
    return ret;
}

bool ob_sqlite_already(const struct ob_source *s, uint64_t ref, uint64_t hash)
{
    if (ref > s->past_max)
        return false;
    for (size_t i = 0; i < s->n_past; i++)
        if (ref <= s->past[i].pos[ob_shard_of(hash, s->past[i].shards)])
            return true;
    return false;
}
