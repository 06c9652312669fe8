/* SPDX-License-Identifier: Apache-2.0 */
/* status - numbers for people. The event table is never counted: what is pending is the last number
 * minus the cursor; parked and dead events are counted where they change. */
#include "source/postgres/admin.h"

#include <inttypes.h>
#include <stdio.h>

#define SILENT_MS 10000  /* an owner that did not beat for so long is not running */
#define COUNT_MAX 100000 /* of one shard's parked events: no more are counted */

/* Of cursor position $1: how many wait at least, and how old the oldest is (also a parked one). */
#define PENDING(pos)                                                                               \
    "greatest(0, (select case when is_called then last_value else 0 end from "                     \
    "outbox.event_seq_seq) - (" pos "))"
#define OLDEST(pos, pipeline)                                                                      \
    "(select (extract(epoch from clock_timestamp() - min(t)) * 1000)::bigint from (select "        \
    "(select created_at from outbox.event where seq > (" pos ") order by seq limit 1) as t union " \
    "all select (select e.created_at from outbox.parked p join outbox.event e on e.seq = p.seq "   \
    "where p.pipeline = " pipeline " order by p.n limit 1)) o where isfinite(t))"
#define SOME(pos) "exists (select 1 from outbox.event where seq > (" pos ") limit 1)"

static enum ob_status side_tables(struct pg_session *conn, const char *pipeline,
                                  struct ob_source_status *out, struct ob_err *err)
{
    PGresult *res = NULL;
    const struct pg_param p[] = {PG_TEXT(pipeline)};
    enum ob_status st = ob_pg_query(
        conn,
        "select parked, dead, paused, exists (select 1 from outbox.parked_key where pipeline = $1) "
        "from outbox.pipeline where name = $1",
        p, 1, true, &res, err);
    if (st == OB_OK && PQntuples(res) == 1) {
        out->parked = ob_pg_i64(res, 0, 0);
        out->dead = ob_pg_i64(res, 0, 1);
        out->paused = ob_pg_bool(res, 0, 2);
        out->held = ob_pg_bool(res, 0, 3);
    }
    PQclear(res);
    return st;
}

/* With several shards each has its own part of the side tables. */
static enum ob_status count_shard(struct pg_session *conn, const char *pipeline, unsigned shard,
                                  unsigned shards, struct ob_source_status *out, struct ob_err *err)
{
    char no[12], of[12], max[12];
    PGresult *res = NULL;
    if (shards <= 1)
        return OB_OK;
    snprintf(no, sizeof(no), "%u", shard);
    snprintf(of, sizeof(of), "%u", shards);
    snprintf(max, sizeof(max), "%d", COUNT_MAX);
    const struct pg_param p[] = {PG_TEXT(pipeline), PG_TEXT(of), PG_TEXT(no), PG_TEXT(max)};
    enum ob_status st = ob_pg_query(
        conn,
        "select (select count(*) from (select 1 from outbox.parked where pipeline = $1 and " PG_MINE
        " limit $4::bigint) t), (select count(*) from (select 1 from outbox.dead where pipeline = "
        "$1 and state = 'dead' and " PG_MINE " limit $4::bigint) t)",
        p, 4, true, &res, err);
    if (st == OB_OK) {
        out->parked = ob_pg_i64(res, 0, 0);
        out->dead = ob_pg_i64(res, 0, 1);
    }
    PQclear(res);
    return st;
}

enum ob_status ob_pg_status_native(struct pg_session *conn, const char *pipeline, int64_t pos,
                                   struct ob_source_status *out, struct ob_err *err)
{
    char text[24];
    PGresult *res = NULL;
    snprintf(text, sizeof(text), "%" PRId64, pos);
    const struct pg_param p[] = {PG_TEXT(text), PG_TEXT(pipeline)};
    enum ob_status st = ob_pg_query(
        conn,
        "select " PENDING("$1::bigint") ", " OLDEST("$1::bigint", "$2") ", " SOME("$1::bigint"), p,
        2, true, &res, err);
    if (st == OB_OK) {
        int64_t lag = ob_pg_null(res, 0, 1) ? 0 : ob_pg_i64(res, 0, 1);
        out->lag_ms = lag > 0 ? lag : 0;
        /* Numbers that were rolled back are no events. */
        out->pending = ob_pg_bool(res, 0, 2) ? ob_pg_i64(res, 0, 0) : 0;
    }
    PQclear(res);
    return st;
}

enum ob_status ob_pg_status(struct ob_source *s, struct ob_source_status *out, struct ob_err *err)
{
    struct ob_source_status got = {.pending = -1, .lag_ms = -1};
    enum ob_status st = ob_pg_owned(s, err);
    if (st == OB_OK)
        st = side_tables(&s->sql, s->pipeline, &got, err);
    if (st == OB_OK)
        st = count_shard(&s->sql, s->pipeline, s->shard, s->shards, &got, err);
    if (st == OB_OK)
        st = s->reader->status(s, &got, err);
    if (st == OB_OK)
        *out = got;
    return st;
}

/* ---- for people ---- */

static void read_shard(const PGresult *res, int row, struct ob_shard_status *out)
{
    struct ob_str owner = ob_pg_str(res, row, 2), state = ob_pg_str(res, row, 4);
    *out = (struct ob_shard_status){
        .shard = (unsigned)ob_pg_i64(res, row, 0),
        .shards = (unsigned)ob_pg_i64(res, row, 1),
        .beat_age_ms = ob_pg_null(res, row, 3) ? -1 : ob_pg_i64(res, row, 3),
        .published = ob_pg_i64(res, row, 5),
        .failed = ob_pg_i64(res, row, 6),
        .in_flight = ob_pg_i64(res, row, 7),
    };
    snprintf(out->owner, sizeof(out->owner), "%.*s", OB_STR_ARG(owner));
    snprintf(out->state, sizeof(out->state), "%.*s", OB_STR_ARG(state));
    if (out->beat_age_ms > SILENT_MS || out->beat_age_ms < 0)
        snprintf(out->state, sizeof(out->state), "stopped");
}

/* ahead: how many are settled ahead of the cursor. */
static enum ob_status fill(struct ob_admin *a, int64_t pos, int64_t ahead,
                           struct ob_shard_status *out, struct ob_err *err)
{
    out->source = (struct ob_source_status){0};
    enum ob_status st = side_tables(&a->db, a->pipeline, &out->source, err);
    if (st == OB_OK)
        st = count_shard(&a->db, a->pipeline, out->shard, out->shards, &out->source, err);
    if (ob_pg_admin_stream(a)) { /* only the server knows, in bytes: see `check` */
        out->source.pending = out->source.lag_ms = -1;
        return st;
    }
    if (st == OB_OK)
        st = ob_pg_admin_mapped(a)
                 ? ob_pg_map_status(a, &out->source, err)
                 : ob_pg_status_native(&a->db, a->pipeline, pos, &out->source, err);
    if (st == OB_OK && !ob_pg_admin_mapped(a))
        out->source.pending -= out->source.pending < ahead ? out->source.pending : ahead;
    return st;
}

struct shard_rows {
    struct ob_shard_status *of;
    size_t n;
};

static void add_finding(void *user, unsigned shard, const char *what, const char *fix)
{
    struct shard_rows *rows = user;
    for (size_t i = 0; i < rows->n; i++)
        if (rows->of[i].shard == shard && !rows->of[i].finding[0])
            snprintf(rows->of[i].finding, sizeof(rows->of[i].finding), "%s: %s", what, fix);
}

enum ob_status ob_pg_admin_status(struct ob_admin *a, struct ob_shard_status *out, size_t max,
                                  size_t *n, struct ob_err *err)
{
    PGresult *res = NULL;
    size_t got = 0;
    enum ob_status st = ob_pg_admin_need(a, err);
    const struct pg_param p[] = {PG_TEXT(a->pipeline)};
    if (st == OB_OK)
        st = ob_pg_query(
            &a->db,
            "select shard, shards, owner, greatest(0, (extract(epoch from "
            "clock_timestamp() - beat_at) * 1000))::bigint, state, published, failed, "
            "in_flight, pos, ahead_n from outbox.cursor where pipeline = $1 order by shard",
            p, 1, true, &res, err);
    if (st != OB_OK)
        return st;
    for (int i = 0; i < PQntuples(res) && got < max && st == OB_OK; i++) {
        read_shard(res, i, &out[got]);
        st = fill(a, ob_pg_i64(res, i, 8), ob_pg_i64(res, i, 9), &out[got++], err);
    }
    if (st == OB_OK && got == 0 && max > 0) { /* never ran: all is pending */
        out[0] = (struct ob_shard_status){.shards = 1, .beat_age_ms = -1, .state = "stopped"};
        st = fill(a, 0, 0, &out[0], err);
        got = 1;
    }
    struct shard_rows rows = {out, got};
    if (st == OB_OK && a->conf->mode == PG_WAL)
        st = ob_pg_check_slots(a, add_finding, &rows, err);
    if (st == OB_OK)
        *n = got;
    PQclear(res);
    return st;
}
