/* SPDX-License-Identifier: Apache-2.0 */
/* parked - reading events that wait. outbox.parked_key has one row per held hash, so that neither a
 * look-up nor a drain depends on how many events wait behind the first. */
#include "source/postgres/pg.h"

#include <inttypes.h>
#include <stdio.h>

#define KEYS 512 /* keys looked at in one statement */

static void shard_params(const struct ob_source *s, char shards[12], char shard[12])
{
    snprintf(shards, 12, "%u", s->shards);
    snprintf(shard, 12, "%u", s->shard);
}

enum ob_status ob_pg_held(struct ob_source *s, const uint64_t *hashes, size_t n, bool *held,
                          struct ob_err *err)
{
    enum ob_status st = ob_pg_owned(s, err);
    PGresult *res = NULL;
    if (st != OB_OK)
        return st;
    ob_pg_array_i64(&s->array[0], (const int64_t *)hashes, n);
    const struct pg_param p[] = {PG_TEXT(s->pipeline), PG_TEXT(ob_buf_z(&s->array[0]))};
    st = ob_pg_query(&s->sql,
                     "select t.i from unnest($2::bigint[]) with ordinality as t(hash, i) "
                     "where exists (select 1 from outbox.parked_key k where k.pipeline = $1 and "
                     "k.hash = t.hash)",
                     p, 2, true, &res, err);
    for (size_t i = 0; st == OB_OK && i < n; i++)
        held[i] = false;
    for (int i = 0; st == OB_OK && i < PQntuples(res); i++)
        held[ob_pg_i64(res, i, 0) - 1] = true;
    PQclear(res);
    return st;
}

static int64_t due_of(const PGresult *res, int row, int col)
{
    int64_t us = ob_pg_i64(res, row, col);
    return us == INT64_MAX || us == INT64_MIN ? INT64_MAX : ob_pg_time_us(res, row, col) / 1000;
}

enum ob_status ob_pg_next_due(struct ob_source *s, int64_t *due_ms, struct ob_err *err)
{
    char shards[12], shard[12];
    PGresult *res = NULL;
    shard_params(s, shards, shard);
    const struct pg_param p[] = {PG_TEXT(s->pipeline), PG_TEXT(shards), PG_TEXT(shard)};
    enum ob_status st = ob_pg_query(
        &s->sql,
        "select due_at from outbox.parked_key where pipeline = $1 and blocked_dest = 0 and " PG_MINE
        " order by due_at limit 1",
        p, 3, true, &res, err);
    if (st == OB_OK)
        *due_ms = PQntuples(res) > 0 ? due_of(res, 0, 0) : INT64_MAX;
    PQclear(res);
    return st;
}

/* One drain under way. */
struct drain {
    size_t max, per_key, n_keys;
    uint64_t keys[KEYS];
    int64_t due[KEYS];
};

/* Keys that wait for dest and may be tried, earliest first. *next: time of the first that is not
 * due. */
static enum ob_status find_keys(struct ob_source *s, uint64_t dest, int64_t now_ms,
                                bool (*skip)(void *, uint64_t), void *user, struct drain *d,
                                int64_t *next, struct ob_err *err)
{
    char shards[12], shard[12], dest_text[24], limit[12];
    shard_params(s, shards, shard);
    snprintf(dest_text, sizeof(dest_text), "%" PRId64, (int64_t)dest);
    size_t look = KEYS;
    *next = INT64_MAX;
    for (;
         ;) { /* those in the window come first and are passed over: look further if they are all */
        PGresult *res = NULL;
        snprintf(limit, sizeof(limit), "%zu", look);
        const struct pg_param p[] = {PG_TEXT(s->pipeline), PG_TEXT(shards), PG_TEXT(shard),
                                     PG_TEXT(dest_text), PG_TEXT(limit)};
        enum ob_status st = ob_pg_query(
            &s->sql,
            "select hash, due_at from outbox.parked_key where pipeline = $1 and "
            "blocked_dest = $4::bigint and " PG_MINE " order by due_at limit $5::bigint",
            p, 5, true, &res, err);
        if (st != OB_OK)
            return st;
        int rows = PQntuples(res);
        bool left = false; /* one that is not due, or does not fit */
        d->n_keys = 0;
        for (int i = 0; i < rows && !left; i++) {
            uint64_t hash = (uint64_t)ob_pg_i64(res, i, 0);
            int64_t due = due_of(res, i, 1);
            if (skip && skip(user, hash))
                continue;
            left = (dest == 0 && due > now_ms) || d->n_keys == KEYS || d->n_keys == d->max;
            if (left) {
                *next = due;
            } else {
                d->due[d->n_keys] = due;
                d->keys[d->n_keys++] = hash;
            }
        }
        PQclear(res);
        if (d->n_keys > 0 || left || (size_t)rows < look || look >= (1u << 20))
            return OB_OK;
        look *= 8;
    }
}

/* The first rows of these keys, and of each key the number of the dead event that holds it: rows
 * behind that are not there for us. */
static enum ob_status find_rows(struct ob_source *s, const struct drain *d, PGresult **out,
                                struct ob_err *err)
{
    char per_key[24], max[24];
    ob_pg_array_i64(&s->array[0], (const int64_t *)d->keys, d->n_keys);
    snprintf(per_key, sizeof(per_key), "%zu",
             d->per_key + 1); /* one more tells whether more are left */
    snprintf(max, sizeof(max), "%zu", d->max + 1);
    const struct pg_param p[] = {PG_TEXT(s->pipeline), PG_TEXT(ob_buf_z(&s->array[0])),
                                 PG_TEXT(per_key), PG_TEXT(max)};
    return ob_pg_query(
        &s->sql,
        "select p.n, p.hash, p.attempts, p.ref, h.n is not null, p.blocked_dest, (extract(epoch "
        "from "
        "p.due_at) * 1000)::bigint from unnest($2::bigint[]) with "
        "ordinality as k(hash, i) left join lateral (select n from outbox.dead where pipeline = $1 "
        "and hash = k.hash and hold order by n limit 1) h on true "
        "cross join lateral (select n, hash, attempts, ref, blocked_dest, due_at from "
        "outbox.parked where pipeline = $1 "
        "and hash = k.hash and n < coalesce(h.n, 9223372036854775807) order by n limit "
        "$3::bigint) p order by k.i, p.n limit $4::bigint",
        p, 4, true, out, err);
}

/* Chooses the rows that fit and says of each hash whether rows are left behind, or a dead event
 * that holds it. Returns how many. */
static size_t choose(const struct drain *d, const PGresult *rows, struct ob_batch *batch,
                     struct ob_str *refs, int *from)
{
    size_t n = 0, in_key = 0;
    int total = PQntuples(rows);
    for (int i = 0; i < total; i++) {
        uint64_t hash = (uint64_t)ob_pg_i64(rows, i, 1);
        struct ob_drained *last = batch->n_drained ? &batch->drained[batch->n_drained - 1] : NULL;
        bool first = !last || last->hash != hash;
        in_key = first ? 0 : in_key;
        if (n >= d->max || in_key >= d->per_key) {
            if (!first)
                last->more = true;
            if (n >= d->max)
                break;
            continue;
        }
        if (first)
            batch->drained[batch->n_drained++] =
                (struct ob_drained){.hash = hash, .more = ob_pg_bool(rows, i, 4)};
        refs[n] = ob_pg_str(rows, i, 3);
        from[n++] = i;
        in_key++;
    }
    return n;
}

static void attach(const PGresult *rows, const int *from, size_t n, struct ob_batch *batch,
                   bool own_attempts)
{
    for (size_t i = 0; i < n; i++) {
        struct ob_event *ev = &batch->events[i];
        ev->park_n = ob_pg_i64(rows, from[i], 0);
        ev->park_hash = (uint64_t)ob_pg_i64(rows, from[i], 1);
        if (!own_attempts)
            ev->attempts = (uint32_t)ob_pg_i64(rows, from[i], 2);
        ev->park_dest = (uint64_t)ob_pg_i64(rows, from[i], 5);
        ev->park_due_ms = ob_pg_i64(rows, from[i], 6);
    }
}

/* One transaction, under our epoch like every other write. */
static enum ob_status bury_rows(struct ob_source *s, const char *numbers, struct ob_err *err)
{
    char shard[12], epoch[24];
    PGresult *res = NULL;
    snprintf(shard, sizeof(shard), "%u", s->shard);
    snprintf(epoch, sizeof(epoch), "%" PRId64, s->epoch);
    const struct pg_param mine[] = {PG_TEXT(s->pipeline), PG_TEXT(shard), PG_TEXT(epoch)};
    const struct pg_param rows[] = {PG_TEXT(s->pipeline), PG_TEXT(numbers)};
    enum ob_status st = ob_pg_exec(&s->sql, "begin", err);
    if (st == OB_OK)
        st = ob_pg_query(&s->sql,
                         "select 1 from outbox.cursor where pipeline = $1 and shard = $2::int and "
                         "epoch = $3::bigint for update",
                         mine, 3, true, &res, err);
    if (st == OB_OK && PQntuples(res) == 0)
        st = ob_err_set(err, OB_FENCED, "another owner took over");
    PQclear(res);
    res = NULL;
    if (st == OB_OK)
        st = ob_pg_query(
            &s->sql,
            "with gone as (delete from outbox.parked where pipeline = $1 and n = any($2::bigint[]) "
            "returning *) insert into outbox.dead as d (pipeline, n, ref, seq, hash, id, type, "
            "key, tenant, attempts, error, history, destination, state) select pipeline, n, ref, "
            "seq, hash, ref, '', '', '', attempts, 'its row is gone from the table: ' || reason, "
            "history, destination, 'dead' from gone on conflict (pipeline, n) do update set error "
            "= excluded.error, at = clock_timestamp(), hold = false, state = 'dead' returning hash",
            rows, 2, true, &res, err);
    if (st == OB_OK) {
        ob_pg_array_begin(&s->array[1]);
        for (int i = 0; i < PQntuples(res); i++)
            ob_pg_array_int(&s->array[1], ob_pg_i64(res, i, 0));
        const struct pg_param p[] = {PG_TEXT(s->pipeline), PG_TEXT(ob_pg_array_end(&s->array[1]))};
        st = ob_pg_query(&s->sql, "select outbox.rekey($1, $2::bigint[])", p, 2, false, NULL, err);
    }
    PQclear(res);
    if (st == OB_OK)
        st = ob_pg_exec(&s->sql, "commit", err);
    ob_pg_rollback(&s->sql);
    if (st == OB_FENCED)
        ob_pg_lost(s);
    return st;
}

/* A row whose event is gone from its table cannot be delivered: it is dead with that reason, not
 * forgotten. */
static enum ob_status bury_gone(struct ob_source *s, const struct ob_batch *batch, size_t n,
                                struct ob_err *err)
{
    size_t gone = 0;
    ob_pg_array_begin(&s->array[0]);
    for (size_t i = 0; i < n; i++) {
        if (batch->events[i].id.p)
            continue;
        ob_pg_array_int(&s->array[0], batch->events[i].park_n);
        gone++;
    }
    const char *numbers = ob_pg_array_end(&s->array[0]);
    if (gone == 0)
        return OB_OK;
    ob_log(s->log, OB_LOG_ERROR, "source.gone", OB_KI("events", gone));
    return bury_rows(s, numbers, err);
}

/* Events that are gone leave the batch. */
static void squeeze(struct ob_batch *batch, size_t n)
{
    batch->n = 0;
    for (size_t i = 0; i < n; i++)
        if (batch->events[i].id.p)
            batch->events[batch->n++] = batch->events[i];
}

static enum ob_status load(struct ob_source *s, struct drain *d, const PGresult *rows,
                           struct ob_batch **out, struct ob_err *err)
{
    size_t cap = (size_t)PQntuples(rows);
    struct ob_batch *batch = ob_batch_new(cap ? cap : 1, (size_t)2 << 30);
    enum ob_status st = OB_OK;
    struct ob_str *refs = batch ? ob_arena_alloc(batch->arena, (cap + 1) * sizeof(*refs)) : NULL;
    int *from = batch ? ob_arena_alloc(batch->arena, (cap + 1) * sizeof(*from)) : NULL;
    if (batch)
        batch->drained = ob_arena_zalloc(batch->arena, (cap + 1) * sizeof(*batch->drained));
    if (!refs || !from || !batch->drained) {
        st = ob_err_set(err, OB_DOWN, "no memory for %zu parked events", cap);
        goto done;
    }
    size_t n = choose(d, rows, batch, refs, from);
    st = s->reader->fetch(s, refs, n, batch, err);
    if (st != OB_OK)
        goto done;
    if (batch->n > 0 && batch->n < n) { /* the rest is too large for now */
        d->max = batch->n;
        batch->n_drained = 0;
        n = choose(d, rows, batch, refs, from);
    }
    attach(rows, from, n, batch, s->own_attempts);
    st = bury_gone(s, batch, n, err);
    squeeze(batch, n);
done:
    if (st == OB_OK && batch->n > 0) {
        *out = batch;
        return OB_OK;
    }
    ob_batch_unref(batch);
    return st == OB_OK ? OB_AGAIN : st;
}

enum ob_status ob_pg_drain(struct ob_source *s, uint64_t dest, int64_t now_wall_ms, size_t max,
                           size_t per_key, bool (*skip)(void *user, uint64_t hash), void *user,
                           struct ob_batch **out, int64_t *next_due_ms, struct ob_err *err)
{
    struct drain d = {.max = max > 1000 ? 1000 : max, .per_key = per_key ? per_key : 1};
    enum ob_status st = ob_pg_owned(s, err);
    PGresult *rows = NULL;
    if (st != OB_OK)
        return st;
    if (max == 0)
        return OB_AGAIN;
    int64_t next = INT64_MAX;
    st = find_keys(s, dest, now_wall_ms, skip, user, &d, &next, err);
    if (st == OB_OK && dest != 0)
        st = ob_pg_next_due(s, &next, err);
    if (st != OB_OK)
        return st;
    if (d.n_keys == 0) {
        *next_due_ms = next;
        return OB_AGAIN;
    }
    st = find_rows(s, &d, &rows, err);
    if (st == OB_OK)
        st = load(s, &d, rows, out, err);
    PQclear(rows);
    /* Keys that did not fit any more are due as they were. */
    size_t taken = st == OB_OK ? (*out)->n_drained : d.n_keys;
    if (dest == 0 && taken < d.n_keys)
        next = d.due[taken];
    if (st == OB_OK || st == OB_AGAIN)
        *next_due_ms = next;
    return st;
}

enum ob_status ob_pg_blocked(struct ob_source *s, uint64_t after, uint64_t *dests, size_t max,
                             size_t *n, struct ob_err *err)
{
    char shards[12], shard[12], after_text[24], limit[24];
    PGresult *res = NULL;
    enum ob_status st = ob_pg_owned(s, err);
    if (st != OB_OK)
        return st;
    shard_params(s, shards, shard);
    /* Unsigned order: flip the sign bit. A loose scan: one probe of the index per destination. */
    snprintf(after_text, sizeof(after_text), "%" PRId64, (int64_t)(after ^ ((uint64_t)1 << 63)));
    snprintf(limit, sizeof(limit), "%zu", max);
    const struct pg_param p[] = {PG_TEXT(s->pipeline), PG_TEXT(shards), PG_TEXT(shard),
                                 PG_TEXT(after_text), PG_TEXT(limit)};
    st = ob_pg_query(
        &s->sql,
        "with recursive d(dest) as ((select blocked_dest from outbox.parked_key where pipeline = "
        "$1 order by "
        "blocked_dest limit 1) union all select (select blocked_dest from outbox.parked_key where "
        "pipeline = $1 and blocked_dest > d.dest order by blocked_dest limit 1) from d where "
        "d.dest is "
        "not null) select dest from d where dest not in (0, -1) and "
        "(dest # (-9223372036854775808)::bigint) > $4::bigint and exists (select 1 from "
        "outbox.parked_key "
        "where pipeline = $1 and blocked_dest = dest and " PG_MINE ") "
        "order by dest # (-9223372036854775808)::bigint limit $5::bigint",
        p, 5, true, &res, err);
    if (st == OB_OK) {
        *n = 0;
        for (int i = 0; i < PQntuples(res) && *n < max; i++)
            dests[(*n)++] = (uint64_t)ob_pg_i64(res, i, 0);
    }
    PQclear(res);
    return st;
}
