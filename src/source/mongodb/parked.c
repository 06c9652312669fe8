/* SPDX-License-Identifier: Apache-2.0 */
/* parked - events that wait are brought back: keys that are due or whose destination is free, their
 * first parked ones in order, the documents of these claimed again.
 *
 * A document's own fields are right where the two differ: one that was published by other hands
 * leaves the parked ones, one that they have made dead is dead, one that is locked by others stays
 * and holds up its key. One that is gone from the collection is dead with that reason, not
 * forgotten. */
#include "source/mongodb/parked.h"

#include <inttypes.h>
#include <stdlib.h>

#define FETCH_BYTES ((size_t)8 << 20)
#define ROWS_MAX 1000

static enum ob_status cursor_end(mongoc_cursor_t *c, enum ob_status st, struct ob_err *err)
{
    bson_error_t e;
    if (st == OB_OK && mongoc_cursor_error(c, &e))
        st = ob_mongo_fail(err, "parked events", &e, NULL);
    mongoc_cursor_destroy(c);
    return st;
}

/* ---- keys ---- */

/* Keys that wait for dest and may be tried, earliest first. *next: time of the first that is not
 * due. Those in the window come first and are passed over. */
static enum ob_status find_keys(struct mongo_drain *d, uint64_t dest, int64_t now_ms,
                                bool (*skip)(void *, uint64_t), void *user, int64_t *next,
                                struct ob_err *err)
{
    mongoc_collection_t *coll = ob_mongo_coll(d->s, d->s->model->held);
    bson_t *filter = BCON_NEW("blocked_dest", BCON_INT64((int64_t)dest));
    bson_t *opts = BCON_NEW("sort", "{", "blocked_dest", BCON_INT32(1), "due_at", BCON_INT32(1),
                            "}", "batchSize", BCON_INT32(MONGO_KEYS));
    const bson_t *doc;
    bson_iter_t it;
    bool left = false;
    *next = INT64_MAX;
    mongoc_cursor_t *c = mongoc_collection_find_with_opts(coll, filter, opts, NULL);
    while (!left && mongoc_cursor_next(c, &doc)) {
        int64_t hash = ob_mongo_i64(doc, "_id", 0), due = 0;
        if (skip && skip(user, (uint64_t)hash))
            continue;
        if (bson_iter_init_find(&it, doc, "due_at") && BSON_ITER_HOLDS_DATE_TIME(&it))
            due = bson_iter_date_time(&it);
        left = (dest == 0 && due > now_ms) || d->n_keys == MONGO_KEYS || d->n_keys == d->max;
        if (left) {
            *next = due;
        } else {
            d->due[d->n_keys] = due;
            d->keys[d->n_keys++] = hash;
        }
    }
    bson_destroy(filter);
    bson_destroy(opts);
    enum ob_status st = cursor_end(c, OB_OK, err);
    mongoc_collection_destroy(coll);
    return st;
}

static size_t key_place(const struct mongo_drain *d, int64_t hash)
{
    size_t i = 0;
    while (i < d->n_keys && d->keys[i] != hash)
        i++;
    return i;
}

static void append_hashes(const struct mongo_drain *d, const bool *done, bson_t *filter)
{
    bson_t in, list;
    BSON_APPEND_DOCUMENT_BEGIN(filter, "hash", &in);
    BSON_APPEND_ARRAY_BEGIN(&in, "$in", &list);
    for (size_t i = 0; i < d->n_keys; i++)
        if (!done || !done[i])
            bson_append_int64(&list, "0", 1, d->keys[i]);
    bson_append_array_end(&in, &list);
    bson_append_document_end(filter, &in);
}

static mongoc_cursor_t *by_hash(const struct mongo_drain *d, mongoc_collection_t *coll,
                                const bson_t *filter)
{
    bson_t *opts =
        BCON_NEW("sort", "{", "hash", BCON_INT32(1), "_id", BCON_INT32(1), "}", "projection", "{",
                 "hash", BCON_INT32(1), "ref", BCON_INT32(1), "attempts", BCON_INT32(1),
                 "blocked_dest", BCON_INT32(1), "due_at", BCON_INT32(1), "}");
    mongoc_cursor_t *c = mongoc_collection_find_with_opts(coll, filter, opts, NULL);
    bson_destroy(opts);
    (void)d;
    return c;
}

/* The number of the dead event that holds a key: what stands behind that is not there for us. */
static enum ob_status find_holders(struct mongo_drain *d, struct ob_err *err)
{
    mongoc_collection_t *coll = ob_mongo_coll(d->s, d->s->model->dead);
    const bson_t *doc;
    bson_t filter;
    bson_init(&filter);
    append_hashes(d, NULL, &filter);
    BSON_APPEND_BOOL(&filter, "hold", true);
    mongoc_cursor_t *c = by_hash(d, coll, &filter);
    while (mongoc_cursor_next(c, &doc)) {
        size_t key = key_place(d, ob_mongo_i64(doc, "hash", 0));
        if (key < d->n_keys && !d->holder[key])
            d->holder[key] = ob_mongo_i64(doc, "_id", 0);
    }
    bson_destroy(&filter);
    enum ob_status st = cursor_end(c, OB_OK, err);
    mongoc_collection_destroy(coll);
    return st;
}

/* ---- rows ---- */

/* Reads on until a key has more than its share: then it is asked again without it. */
static enum ob_status read_some(struct mongo_drain *d, mongoc_collection_t *coll, bool *done,
                                bool *again, struct ob_err *err)
{
    bson_t filter;
    const bson_t *doc;
    bson_iter_t it;
    size_t key = MONGO_KEYS, in_key = 0;
    *again = false;
    bson_init(&filter);
    append_hashes(d, done, &filter);
    mongoc_cursor_t *c = by_hash(d, coll, &filter);
    while (!*again && mongoc_cursor_next(c, &doc)) {
        size_t at = key_place(d, ob_mongo_i64(doc, "hash", 0));
        int64_t n = ob_mongo_i64(doc, "_id", 0);
        if (at >= d->n_keys)
            continue;
        in_key = at == key ? in_key + 1 : 1;
        key = at;
        done[key] = true;
        bool behind = d->holder[key] && n > d->holder[key];
        if (behind || in_key > d->per_key || d->n_rows >= d->max) {
            d->more[key] = true;
            *again = d->n_rows < d->max;
            if (d->n_rows >= d->max)
                break;
            continue;
        }
        struct mongo_row *row = &d->rows[d->n_rows++];
        *row = (struct mongo_row){.n = n, .hash = d->keys[key]};
        row->attempts = (uint32_t)ob_mongo_i64(doc, "attempts", 0);
        row->dest = ob_mongo_i64(doc, "blocked_dest", 0);
        if (bson_iter_init_find(&it, doc, "due_at") && BSON_ITER_HOLDS_DATE_TIME(&it))
            row->due_ms = bson_iter_date_time(&it);
        if (bson_iter_init_find(&it, doc, "ref"))
            bson_value_copy(bson_iter_value(&it), &row->ref);
    }
    bson_destroy(&filter);
    return cursor_end(c, OB_OK, err);
}

static enum ob_status find_rows(struct mongo_drain *d, struct ob_err *err)
{
    mongoc_collection_t *coll = ob_mongo_coll(d->s, d->s->model->parked);
    bool done[MONGO_KEYS] = {false}, again = true;
    enum ob_status st = OB_OK;
    while (st == OB_OK && again) {
        bool left = false;
        for (size_t i = 0; i < d->n_keys; i++)
            left = left || !done[i];
        again = false;
        if (left)
            st = read_some(d, coll, done, &again, err);
    }
    mongoc_collection_destroy(coll);
    return st;
}

/* ---- documents ---- */

static void append_refs(const struct mongo_drain *d, bool used, bson_t *filter)
{
    bson_t in, list;
    BSON_APPEND_DOCUMENT_BEGIN(filter, "_id", &in);
    BSON_APPEND_ARRAY_BEGIN(&in, "$in", &list);
    for (size_t i = 0; i < d->n_rows; i++)
        if (!used || d->rows[i].use)
            bson_append_value(&list, "0", 1, &d->rows[i].ref);
    bson_append_array_end(&in, &list);
    bson_append_document_end(filter, &in);
}

static struct mongo_row *row_of(const struct mongo_drain *d, const bson_t *doc)
{
    bson_iter_t it;
    uint64_t h[2], x[2];
    if (!bson_iter_init_find(&it, doc, "_id"))
        return NULL;
    ob_mongo_hash(bson_iter_value(&it), h);
    for (size_t i = 0; i < d->n_rows; i++) {
        ob_mongo_hash(&d->rows[i].ref, x);
        if (memcmp(h, x, sizeof(h)) == 0)
            return &d->rows[i];
    }
    return NULL;
}

static const char *text_in(const bson_t *doc, const char *field)
{
    bson_iter_t it;
    return bson_iter_init_find(&it, doc, field) && BSON_ITER_HOLDS_UTF8(&it)
               ? bson_iter_utf8(&it, NULL)
               : "";
}

/* What the documents of the rows say of themselves. */
static enum ob_status look(struct mongo_drain *d, struct ob_err *err)
{
    const struct mongo_model *m = d->s->model;
    mongoc_collection_t *coll = ob_mongo_coll(d->s, m->events);
    bson_t filter, opts;
    const bson_t *doc;
    bson_iter_t it;
    bson_init(&filter);
    bson_init(&opts);
    append_refs(d, false, &filter);
    BSON_APPEND_DOCUMENT(&opts, "projection", m->meta);
    mongoc_cursor_t *c = mongoc_collection_find_with_opts(coll, &filter, &opts, NULL);
    while (mongoc_cursor_next(c, &doc)) {
        struct mongo_row *row = row_of(d, doc);
        const char *status = text_in(doc, META_STATUS);
        if (!row)
            continue;
        row->size = (size_t)ob_mongo_i64(doc, META_SIZE, 0);
        bool ready = bson_iter_init_find(&it, doc, META_READY) && bson_iter_as_bool(&it);
        bool dead = m->f[OB_MAP_ATTEMPTS] && bson_iter_init_find(&it, doc, META_DEAD) &&
                    bson_iter_as_bool(&it);
        if (dead)
            row->state = ROW_DEAD;
        else if (strcmp(status, m->pending) == 0 || strcmp(status, m->failed) == 0)
            row->state = ROW_READY;
        else if (strcmp(status, m->claimed) == 0)
            row->state =
                ready || strcmp(text_in(doc, META_OWNER), d->s->owner) == 0 ? ROW_READY : ROW_BUSY;
        else
            row->state = ROW_SETTLED;
    }
    bson_destroy(&filter);
    bson_destroy(&opts);
    enum ob_status st = cursor_end(c, OB_OK, err);
    mongoc_collection_destroy(coll);
    return st;
}

/* Those that fit, in order; a key ends at the first that cannot be had. */
static size_t choose(struct mongo_drain *d)
{
    size_t bytes = 0, n = 0;
    int64_t shut = 0;
    bool closed = false;
    for (size_t i = 0; i < d->n_rows; i++) {
        struct mongo_row *row = &d->rows[i];
        if (row->state != ROW_BUSY && row->state != ROW_READY)
            continue;
        if (closed && shut == row->hash)
            continue;
        if (row->state == ROW_BUSY || (n > 0 && bytes + row->size > FETCH_BYTES)) {
            closed = true;
            shut = row->hash;
            d->more[key_place(d, row->hash)] = true;
            continue;
        }
        bytes += row->size;
        row->use = true;
        n++;
    }
    return n;
}

/* only: that row, NULL: all that were chosen. */
static void append_refs_of(const struct mongo_drain *d, const struct mongo_row *only,
                           bson_t *filter)
{
    if (only)
        BSON_APPEND_VALUE(filter, "_id", &only->ref);
    else
        append_refs(d, true, filter);
}

static enum ob_status lock(struct mongo_drain *d, mongoc_collection_t *coll,
                           const struct mongo_row *only, struct ob_err *err)
{
    const struct mongo_model *m = d->s->model;
    bson_t filter, either, one;
    bson_init(&filter);
    append_refs_of(d, only, &filter);
    BSON_APPEND_ARRAY_BEGIN(&filter, "$or", &either);
    BSON_APPEND_DOCUMENT(&either, "0", m->q_alive);
    BSON_APPEND_DOCUMENT_BEGIN(&either, "1", &one);
    BCON_APPEND(&one, m->f[OB_MAP_STATUS], BCON_UTF8(m->claimed), m->f[OB_MAP_LOCKED_BY],
                BCON_UTF8(d->s->owner));
    bson_append_document_end(&either, &one);
    BSON_APPEND_DOCUMENT(&either, "2", m->q_ready);
    bson_append_array_end(&filter, &either);
    enum ob_status st = ob_mongo_update_many(coll, &filter, m->u_claim, d->s->conf->timeout_ms,
                                             NULL, NULL, "claiming parked events", err);
    bson_destroy(&filter);
    return st;
}

/* One that is so large that its lock does not fit is handed out without, to be dead. */
static enum ob_status claim_rows(struct mongo_drain *d, struct ob_err *err)
{
    mongoc_collection_t *coll = ob_mongo_coll(d->s, d->s->model->events);
    enum ob_status st = lock(d, coll, NULL, err);
    bool each = st == OB_REJECT;
    st = each ? OB_OK : st;
    for (size_t i = 0; each && st == OB_OK && i < d->n_rows; i++)
        if (d->rows[i].use) {
            st = lock(d, coll, &d->rows[i], err);
            d->rows[i].refused = st == OB_REJECT;
            st = d->rows[i].refused ? OB_OK : st;
        }
    mongoc_collection_destroy(coll);
    return st;
}

/* Events at the places of their rows. refused: of that row, which could not be locked. */
static enum ob_status fetch_some(struct mongo_drain *d, mongoc_collection_t *coll,
                                 const struct mongo_row *refused, struct ob_batch *batch, bool *got,
                                 struct ob_err *err)
{
    const struct mongo_model *m = d->s->model;
    bson_t filter, *opts = BCON_NEW("readConcern", "{", "level", "majority", "}");
    const bson_t *doc;
    enum ob_status st = OB_OK;
    bson_init(&filter);
    append_refs_of(d, refused, &filter);
    if (refused) {
        bson_concat(&filter, m->q_alive);
    } else {
        BSON_APPEND_UTF8(&filter, m->f[OB_MAP_STATUS], m->claimed);
        BSON_APPEND_UTF8(&filter, m->f[OB_MAP_LOCKED_BY], d->s->owner);
    }
    mongoc_cursor_t *c = mongoc_collection_find_with_opts(coll, &filter, opts, NULL);
    while (st == OB_OK && mongoc_cursor_next(c, &doc)) {
        struct mongo_row *row = row_of(d, doc);
        size_t i = row ? (size_t)(row - d->rows) : 0;
        if (!row)
            continue;
        if (!ob_mongo_event(m, d->s->conf->payload_json, doc, batch->arena, &batch->events[i]) &&
            (d->n_rows > 1 || !ob_mongo_event_too_large(doc, batch->arena, &batch->events[i]))) {
            d->s->drain_one = true;
            st = ob_err_set(err, OB_DOWN, "no memory for parked events");
        }
        if (refused)
            batch->events[i].fault = OB_STR(MONGO_NO_ROOM);
        got[i] = true;
    }
    st = cursor_end(c, st, err);
    bson_destroy(&filter);
    bson_destroy(opts);
    return st;
}

static enum ob_status fetch(struct mongo_drain *d, struct ob_batch *batch, bool *got,
                            struct ob_err *err)
{
    mongoc_collection_t *coll = ob_mongo_coll(d->s, d->s->model->events);
    enum ob_status st = fetch_some(d, coll, NULL, batch, got, err);
    for (size_t i = 0; st == OB_OK && i < d->n_rows; i++)
        if (d->rows[i].refused)
            st = fetch_some(d, coll, &d->rows[i], batch, got, err);
    mongoc_collection_destroy(coll);
    return st;
}

/* What came, whole keys in order; what did not ends its key. */
static enum ob_status hand_out(struct mongo_drain *d, struct ob_batch *batch, const bool *got,
                               struct ob_err *err)
{
    int64_t now = ob_clock_mono_ms(d->s->clock), shut = 0;
    bool closed = false;
    for (size_t i = 0; i < d->n_rows; i++) {
        struct mongo_row *row = &d->rows[i];
        if (!row->use)
            continue;
        if (!got[i] || (closed && shut == row->hash)) {
            closed = true;
            shut = row->hash;
            d->more[key_place(d, row->hash)] = true;
            continue;
        }
        struct ob_event *ev = &batch->events[batch->n];
        *ev = batch->events[i];
        ev->park_n = row->n;
        ev->park_hash = (uint64_t)row->hash;
        ev->park_dest = (uint64_t)row->dest;
        ev->park_due_ms = row->due_ms;
        if (!d->s->model->f[OB_MAP_ATTEMPTS])
            ev->attempts = row->attempts;
        ev->ref = ob_mongo_window_add(&d->s->window, &row->ref, now);
        if (!ev->ref)
            return ob_err_set(err, OB_DOWN, "no memory for the window");
        struct ob_drained *last = batch->n_drained ? &batch->drained[batch->n_drained - 1] : NULL;
        if (!last || last->hash != (uint64_t)row->hash)
            batch->drained[batch->n_drained++].hash = (uint64_t)row->hash;
        batch->n++;
    }
    for (size_t i = 0; i < batch->n_drained; i++)
        batch->drained[i].more = d->more[key_place(d, (int64_t)batch->drained[i].hash)];
    return OB_OK;
}

/* ---- all of it ---- */

static enum ob_status load(struct mongo_drain *d, struct ob_batch **out, struct ob_err *err)
{
    struct ob_batch *batch = ob_batch_new(d->n_rows ? d->n_rows : 1, (size_t)2 << 30);
    bool *got = calloc(d->n_rows + 1, sizeof(*got));
    if (batch)
        batch->drained = ob_arena_zalloc(batch->arena, (d->n_rows + 1) * sizeof(*batch->drained));
    enum ob_status st = batch && got && batch->drained
                            ? OB_OK
                            : ob_err_set(err, OB_DOWN, "no memory for parked events");
    if (st == OB_OK)
        st = look(d, err);
    if (st == OB_OK)
        st = ob_mongo_close_rows(d, err);
    if (st == OB_OK && choose(d) > 0) {
        st = claim_rows(d, err);
        if (st == OB_OK)
            st = fetch(d, batch, got, err);
        d->s->probed = d->s->probed || d->s->shown_back;
        if (st == OB_OK)
            st = ob_mongo_in_time(d->s, err);
        if (st == OB_OK)
            st = hand_out(d, batch, got, err);
    }
    free(got);
    if (st == OB_OK && batch->n > 0) {
        *out = batch;
        return OB_OK;
    }
    ob_batch_unref(batch);
    return st == OB_OK ? OB_AGAIN : st;
}

enum ob_status ob_mongo_drain(struct ob_source *s, uint64_t dest, int64_t now_wall_ms, size_t max,
                              size_t per_key, bool (*skip)(void *user, uint64_t hash), void *user,
                              struct ob_batch **out, int64_t *next_due_ms, struct ob_err *err)
{
    struct mongo_drain d = {
        .s = s, .max = max > ROWS_MAX ? ROWS_MAX : max, .per_key = per_key ? per_key : 1};
    if (s->drain_one && d.max > 1)
        d.max = 1;
    int64_t next = INT64_MAX;
    enum ob_status st = ob_mongo_owned(s, err);
    if (st != OB_OK)
        return st;
    if (max == 0 || !atomic_load(&s->side)) {
        *next_due_ms = INT64_MAX;
        return OB_AGAIN;
    }
    st = find_keys(&d, dest, now_wall_ms, skip, user, &next, err);
    if (st == OB_OK && dest != 0)
        st = ob_mongo_next_due(s, NULL, &next, err);
    if (st != OB_OK)
        return st;
    if (d.n_keys == 0) {
        *next_due_ms = next;
        return OB_AGAIN;
    }
    d.rows = calloc(d.max, sizeof(*d.rows));
    st = d.rows ? find_holders(&d, err) : ob_err_set(err, OB_DOWN, "no memory");
    if (st == OB_OK)
        st = find_rows(&d, err);
    if (st == OB_OK)
        st = load(&d, out, err);
    if (st == OB_OK)
        s->drain_one = false;
    for (size_t i = 0; i < d.n_keys && dest == 0; i++) { /* keys that did not fit are due */
        bool taken = false;
        for (size_t k = 0; st == OB_OK && k < (*out)->n_drained && !taken; k++)
            taken = (*out)->drained[k].hash == (uint64_t)d.keys[i];
        if (!taken && d.due[i] < next)
            next = d.due[i];
    }
    for (size_t i = 0; i < d.n_rows; i++)
        bson_value_destroy(&d.rows[i].ref);
    free(d.rows);
    if (st == OB_OK || st == OB_AGAIN)
        *next_due_ms = next;
    return st;
}
