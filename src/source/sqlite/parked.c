/* SPDX-License-Identifier: Apache-2.0 */
/* parked - reading events that wait. outbox_parked_key has one row per held hash, so that neither a
 * lookup nor a drain depends on how many events wait behind the first. */
#include "source/sqlite/sqlite.h"

#define LOST_MAX 64

/* One drain under way. */
struct drain {
    struct ob_source *s;
    struct ob_batch *batch;
    size_t max, per_key;
    size_t bytes; /* so far, at most DRAIN_BYTES */
    bool full;    /* a row did not fit */
    bool (*skip)(void *user, uint64_t hash);
    void *user;
    int64_t lost[LOST_MAX]; /* rows whose event is gone */
    size_t n_lost;
};

static enum ob_status lookup(struct ob_source *s, const uint64_t *hashes, size_t n, bool *held,
                             struct ob_err *err)
{
    sqlite3_stmt *any = s->db.st[ST_ANY_KEY], *one = s->db.st[ST_HELD];
    int rc;

    memset(held, 0, n * sizeof(*held));
    ob_sqlite_bind_str(any, 1, ob_str_c(s->pipeline));
    rc = sqlite3_step(any); /* not reset yet: one read transaction for all */
    if (rc == SQLITE_ROW) {
        ob_sqlite_bind_str(one, 1, ob_str_c(s->pipeline));
        for (size_t i = 0; i < n && (rc == SQLITE_ROW || rc == SQLITE_DONE); i++) {
            sqlite3_bind_int64(one, 2, (int64_t)hashes[i]);
            rc = sqlite3_step(one);
            held[i] = rc == SQLITE_ROW;
            sqlite3_reset(one);
        }
    }
    sqlite3_reset(any);
    return rc == SQLITE_ROW || rc == SQLITE_DONE
               ? OB_OK
               : ob_sqlite_fail(err, s->db.h, rc, "looking up held keys");
}

enum ob_status ob_sqlite_held(struct ob_source *s, const uint64_t *hashes, size_t n, bool *held,
                              struct ob_err *err)
{
    enum ob_status st = ob_sqlite_owned(s, err);

    return st == OB_OK ? lookup(s, hashes, n, held, err) : st;
}

/* Anything of the hash behind number n? */
static enum ob_status more_behind(struct ob_source *s, uint64_t hash, int64_t n, bool *more,
                                  struct ob_err *err)
{
    sqlite3_stmt *st = s->db.st[ST_KEY_MORE];
    int rc;

    ob_sqlite_bind_str(st, 1, ob_str_c(s->pipeline));
    sqlite3_bind_int64(st, 2, (int64_t)hash);
    sqlite3_bind_int64(st, 3, n);
    rc = sqlite3_step(st);
    *more = rc == SQLITE_ROW;
    sqlite3_reset(st);
    return rc == SQLITE_ROW || rc == SQLITE_DONE
               ? OB_OK
               : ob_sqlite_fail(err, s->db.h, rc, "reading parked events");
}

/* Takes one row. OB_AGAIN: stop at this one, it is for the next drain. */
static enum ob_status take_row(struct drain *d, sqlite3_stmt *st, uint64_t hash, struct ob_err *err)
{
    struct ob_event *ev = &d->batch->events[d->batch->n];
    int64_t n = sqlite3_column_int64(st, 0), attempts = sqlite3_column_int64(st, 1);
    size_t bytes, left = DRAIN_BYTES - d->bytes;
    enum ob_status ret =
        ob_sqlite_read_event(&d->s->db, &d->s->limits, (uint64_t)sqlite3_column_int64(st, 2), true,
                             d->batch->n ? left : SIZE_MAX, d->batch->arena, ev, err);

    if (ret == OB_REJECT && d->batch->n > 0)
        ret = OB_AGAIN;
    if (ret == OB_REJECT)
        ret =
            ob_sqlite_unfit(d->s, (uint64_t)sqlite3_column_int64(st, 2), d->batch->arena, ev, err);
    if (ret != OB_OK) {
        d->full = ret == OB_AGAIN;
        return ret;
    }
    if (!ev->id.p) { /* no event of that number */
        if (d->n_lost == LOST_MAX)
            return OB_AGAIN;
        d->lost[d->n_lost++] = n;
        return OB_OK;
    }
    bytes = ob_event_bytes(ev);
    d->bytes += bytes < left ? bytes : left;
    ev->attempts = attempts < 0 ? 0 : (uint32_t)attempts;
    ev->park_n = n;
    ev->park_hash = hash;
    ev->park_dest = (uint64_t)sqlite3_column_int64(st, 3);
    ev->park_due_ms = sqlite3_column_int64(st, 4);
    d->batch->n++;
    return OB_OK;
}

/* The first rows of one hash. */
static enum ob_status drain_key(struct drain *d, uint64_t hash, struct ob_err *err)
{
    struct ob_source *s = d->s;
    sqlite3_stmt *st = s->db.st[ST_KEY_ROWS];
    size_t room = d->max - d->batch->n, before = d->batch->n;
    struct ob_drained *to;
    enum ob_status ret = OB_OK;
    int rc = SQLITE_DONE;

    ob_sqlite_bind_str(st, 1, ob_str_c(s->pipeline));
    sqlite3_bind_int64(st, 2, (int64_t)hash);
    sqlite3_bind_int64(st, 3, (int64_t)(room < d->per_key ? room : d->per_key));
    while (ret == OB_OK && (rc = sqlite3_step(st)) == SQLITE_ROW)
        ret = take_row(d, st, hash, err);
    if (ret == OB_OK && rc != SQLITE_DONE)
        ret = ob_sqlite_fail(err, s->db.h, rc, "reading parked events");
    sqlite3_reset(st);
    if (ret == OB_AGAIN)
        ret = OB_OK;
    if (ret != OB_OK || d->batch->n == before)
        return ret;
    to = &d->batch->drained[d->batch->n_drained++];
    to->hash = hash;
    return more_behind(s, hash, d->batch->events[d->batch->n - 1].park_n, &to->more, err);
}

/* Walks the keys that wait for dest, earliest first. With a batch: drains those that are due and
 * gives in *next the time of the first one that was left. Without: only that. */
static enum ob_status walk(struct drain *d, uint64_t dest, int64_t now, int64_t *next,
                           struct ob_err *err)
{
    struct ob_source *s = d->s;
    sqlite3_stmt *st = s->db.st[ST_KEYS];
    enum ob_status ret = OB_OK;
    int rc = SQLITE_DONE;

    *next = INT64_MAX;
    ob_sqlite_bind_str(st, 1, ob_str_c(s->pipeline));
    sqlite3_bind_int64(st, 2, (int64_t)dest);
    while (ret == OB_OK && (rc = sqlite3_step(st)) == SQLITE_ROW) {
        uint64_t hash = (uint64_t)sqlite3_column_int64(st, 0);
        int64_t due = sqlite3_column_int64(st, 1);
        if (!ob_sqlite_mine(s, hash) || (d->skip && d->skip(d->user, hash)))
            continue;
        if (!d->batch || (dest == 0 && due > now) || d->batch->n >= d->max || d->full ||
            d->n_lost == LOST_MAX) {
            *next = due;
            break;
        }
        ret = drain_key(d, hash, err);
    }
    if (ret == OB_OK && rc != SQLITE_ROW && rc != SQLITE_DONE)
        ret = ob_sqlite_fail(err, s->db.h, rc, "reading parked keys");
    sqlite3_reset(st);
    return ret;
}

enum ob_status ob_sqlite_next_due(struct ob_source *s, bool (*skip)(void *user, uint64_t hash),
                                  void *user, int64_t *due_ms, struct ob_err *err)
{
    struct drain d = {.s = s, .skip = skip, .user = user};

    return walk(&d, 0, 0, due_ms, err);
}

static enum ob_status new_batch(struct drain *d, struct ob_err *err)
{
    d->batch = ob_batch_new(d->max, (size_t)2 << 30);
    if (d->batch)
        d->batch->drained = ob_arena_alloc(d->batch->arena, d->max * sizeof(*d->batch->drained));
    if (!d->batch || !d->batch->drained)
        return ob_err_set(err, OB_DOWN, "no memory for %zu parked events", d->max);
    return OB_OK;
}

/* In the batch that is being handed out: in the window as soon as the caller has it. */
struct skip_both {
    struct drain *d;
    const struct ob_batch *batch;
};

static bool skip_both(void *user, uint64_t hash)
{
    const struct skip_both *both = user;

    for (size_t i = 0; i < both->batch->n_drained; i++)
        if (both->batch->drained[i].hash == hash)
            return true;
    return both->d->skip && both->d->skip(both->d->user, hash);
}

static enum ob_status drain(struct drain *d, uint64_t dest, int64_t now, int64_t *next,
                            struct ob_err *err)
{
    enum ob_status st = new_batch(d, err);

    if (st == OB_OK)
        st = walk(d, dest, now, next, err);
    if (st == OB_OK && dest != 0) {
        struct skip_both both = {d, d->batch};
        st = ob_sqlite_next_due(d->s, skip_both, &both, next, err);
    }
    if (st == OB_OK && d->n_lost) {
        st = ob_sqlite_settle_lost(d->s, d->lost, d->n_lost, err);
        *next = now; /* what stood behind them may come forward */
        if (st == OB_RETRY || st == OB_DOWN) {
            *next = now + 1000;
            st = OB_OK; /* the next drain tries again */
        }
    }
    return st;
}

enum ob_status ob_sqlite_drain(struct ob_source *s, uint64_t dest, int64_t now_wall_ms, size_t max,
                               size_t per_key, bool (*skip)(void *user, uint64_t hash), void *user,
                               struct ob_batch **out, int64_t *next_due_ms, struct ob_err *err)
{
    struct drain d = {.s = s,
                      .max = max > PAGE ? PAGE : max,
                      .per_key = per_key ? per_key : 1,
                      .skip = skip,
                      .user = user};
    int64_t next = INT64_MAX;
    enum ob_status st = ob_sqlite_owned(s, err);

    if (st == OB_OK && max == 0)
        return OB_AGAIN;
    if (st == OB_OK)
        st = drain(&d, dest, now_wall_ms, &next, err);
    if (st == OB_OK)
        *next_due_ms = next;
    if (st == OB_OK && d.batch->n) {
        *out = d.batch;
        return OB_OK;
    }
    ob_batch_unref(d.batch);
    return st == OB_OK ? OB_AGAIN : st;
}

/* The lowest destination in lo..hi (as stored) that keys wait for. */
static enum ob_status next_dest(struct ob_source *s, int64_t lo, int64_t hi, int64_t *dest,
                                struct ob_err *err)
{
    sqlite3_stmt *st = s->db.st[ST_DEST_NEXT];
    enum ob_status ret = OB_AGAIN;
    int rc;

    if (lo > hi)
        return OB_AGAIN;
    ob_sqlite_bind_str(st, 1, ob_str_c(s->pipeline));
    sqlite3_bind_int64(st, 2, lo);
    sqlite3_bind_int64(st, 3, hi);
    rc = sqlite3_step(st);
    if (rc != SQLITE_ROW) {
        ret = ob_sqlite_fail(err, s->db.h, rc, "reading blocked destinations");
    } else if (sqlite3_column_type(st, 0) != SQLITE_NULL) {
        *dest = sqlite3_column_int64(st, 0);
        ret = OB_OK;
    }
    sqlite3_reset(st);
    return ret;
}

/* Does a key of this shard wait for dest? */
static enum ob_status dest_is_mine(struct ob_source *s, int64_t dest, bool *mine,
                                   struct ob_err *err)
{
    sqlite3_stmt *st;
    int rc = SQLITE_ROW;

    *mine = s->shards == 1;
    if (*mine)
        return OB_OK;
    st = s->db.st[ST_DEST_KEYS];
    ob_sqlite_bind_str(st, 1, ob_str_c(s->pipeline));
    sqlite3_bind_int64(st, 2, dest);
    while (!*mine && (rc = sqlite3_step(st)) == SQLITE_ROW)
        *mine = ob_sqlite_mine(s, (uint64_t)sqlite3_column_int64(st, 0));
    sqlite3_reset(st);
    return rc == SQLITE_ROW || rc == SQLITE_DONE
               ? OB_OK
               : ob_sqlite_fail(err, s->db.h, rc, "reading blocked destinations");
}

enum ob_status ob_sqlite_blocked(struct ob_source *s, uint64_t after, uint64_t *dests, size_t max,
                                 size_t *n, struct ob_err *err)
{
    enum ob_status st = ob_sqlite_owned(s, err);
    size_t found = 0;

    /* Rising as unsigned numbers: first the positive ones as stored, then the negative. */
    while (st == OB_OK && found < max && after < OB_DEST_DEAD - 1) {
        int64_t lo = (int64_t)(after + 1), dest = 0;
        bool mine = false;
        st = next_dest(s, lo, lo > 0 ? INT64_MAX : -2, &dest, err);
        if (st == OB_AGAIN && lo > 0)
            st = next_dest(s, INT64_MIN, -2, &dest, err);
        if (st == OB_OK)
            st = dest_is_mine(s, dest, &mine, err);
        if (st == OB_OK && mine)
            dests[found++] = (uint64_t)dest;
        after = (uint64_t)dest;
    }
    if (st == OB_AGAIN)
        st = OB_OK;
    if (st == OB_OK)
        *n = found;
    return st;
}
