/* SPDX-License-Identifier: Apache-2.0 */
/* mongodb - writing events into the transaction that is started on the caller's session of
 * libmongoc. Outside of one they are refused: an event that is committed by itself tells of a
 * change that may never be. */
#include "produce/mongodb.h"

#include "core/clock.h"
#include "event/bson.h"

#include <stdlib.h>

#define BYTES_MAX ((size_t)512 << 20) /* of all events of one call */

/* events or collector. */
struct input {
    const struct outbox_event *events;
    const struct outbox_collector *collector;
    size_t n;
};

static const struct outbox_event *event_of(const struct input *in, size_t i)
{
    return in->collector ? ob_collector_event(in->collector, i) : &in->events[i];
}

/* Documents on their way: one behind the other in bytes. */
struct batch {
    struct ob_buf bytes;
    struct ob_str *keys; /* what serialize takes the turn of */
    char (*ids)[OUTBOX_ID_SIZE];
    bson_t *docs;
    const bson_t **list; /* as libmongoc takes them */
    size_t n;
};

static void batch_clear(struct batch *b)
{
    ob_buf_clear(&b->bytes);
    free(b->keys);
    free(b->ids);
    free(b->docs);
    free(b->list);
}

static enum ob_status batch_init(struct batch *b, size_t n, struct ob_err *err)
{
    *b = (struct batch){.n = n};
    ob_buf_init(&b->bytes, BYTES_MAX);
    b->keys = calloc(n, sizeof(*b->keys));
    b->ids = calloc(n, sizeof(*b->ids));
    b->docs = aligned_alloc(_Alignof(bson_t), n * sizeof(*b->docs));
    b->list = calloc(n, sizeof(*b->list));
    if (b->keys && b->ids && b->docs && b->list)
        return OB_OK;
    batch_clear(b);
    return ob_err_set(err, OB_DOWN, "no memory");
}

/* The documents are where they stay only when all are written. */
static enum ob_status batch_list(struct batch *b, struct ob_err *err)
{
    size_t at = 0;

    for (size_t i = 0; i < b->n; i++) {
        size_t n = ob_bson_u32(b->bytes.p + at);
        if (!bson_init_static(&b->docs[i], (const uint8_t *)b->bytes.p + at, n))
            return ob_err_set(err, OB_FATAL, "libbson does not take document %zu", i);
        b->list[i] = &b->docs[i];
        at += n;
    }
    return OB_OK;
}

static enum ob_status batch_fill(struct batch *b, const struct outbox_mongo_target *target,
                                 const struct outbox_ctx *ctx, const struct input *in,
                                 struct ob_err *err)
{
    int64_t now_ms = ob_clock_wall_us(&ob_clock_system) / 1000;
    struct ob_buf metadata;
    enum ob_status st = OB_OK;

    ob_buf_init(&metadata, 0);
    for (size_t i = 0; i < in->n && st == OB_OK; i++) {
        struct ob_row row;
        st = ob_produce_row(ctx, event_of(in, i), &metadata, &row, err);
        if (st == OB_OK)
            st = ob_mongo_doc(&target->shape, &row, now_ms, &b->bytes, b->ids[i], err);
        if (st == OB_OK)
            b->keys[i] = ob_mongo_key(&row); /* a text of the event: it stays */
        else if (in->n > 1)
            ob_err_prefix(err, "event %zu of %zu", i + 1, in->n);
    }
    ob_buf_clear(&metadata);
    return st == OB_OK ? batch_list(b, err) : st;
}

/* {"sessionId": …}, and without the driver's own look at names: an empty one is legal in a payload,
 * and UTF-8 was looked at. */
static enum ob_status options(const mongoc_client_session_t *session, bson_t *opts,
                              struct ob_err *err)
{
    bson_error_t e;

    bson_init(opts);
    if (mongoc_client_session_append(session, opts, &e))
        return OB_OK;
    bson_destroy(opts);
    return ob_err_set(err, OB_REJECT, "%s", e.message);
}

static enum ob_status insert(mongoc_client_session_t *session,
                             const struct outbox_mongo_target *target, struct batch *b,
                             struct ob_err *err)
{
    mongoc_collection_t *coll = NULL;
    bson_t opts, reply;
    bson_error_t e;
    enum ob_status st = ob_produce_mongo_collection(session, target, "", &coll, err);

    if (st == OB_OK)
        st = options(session, &opts, err);
    if (st == OB_OK) {
        BSON_APPEND_BOOL(&opts, "validate", false);
        if (!mongoc_collection_insert_many(coll, b->list, b->n, &opts, &reply, &e))
            st = ob_produce_mongo_meaning(&e, &reply, err);
        bson_destroy(&reply);
        bson_destroy(&opts);
    }
    mongoc_collection_destroy(coll);
    return st;
}

/* ---- serialize ---- */

static int by_bytes(const void *a, const void *b)
{
    const struct ob_str *x = a, *y = b;
    size_t n = x->n < y->n ? x->n : y->n;
    int order = n ? memcmp(x->p, y->p, n) : 0;

    return order ? order : (x->n > y->n) - (x->n < y->n);
}

static bool add_turn(mongoc_bulk_operation_t *bulk, struct ob_str key)
{
    bson_t filter = BSON_INITIALIZER, opts = BSON_INITIALIZER, *update;
    bson_error_t e;
    bool ok;

    update = BCON_NEW("$inc", "{", "n", BCON_INT64(1), "}");
    bson_append_utf8(&filter, "_id", 3, key.n ? key.p : "", (int)key.n);
    BSON_APPEND_BOOL(&opts, "upsert", true);
    ok = mongoc_bulk_operation_update_one_with_opts(bulk, &filter, update, &opts, &e);
    bson_destroy(&filter);
    bson_destroy(&opts);
    bson_destroy(update);
    return ok;
}

/* Each key once, and always in the same order. */
static enum ob_status take_turns(mongoc_client_session_t *session,
                                 const struct outbox_mongo_target *target, struct batch *b,
                                 struct ob_err *err)
{
    mongoc_collection_t *coll = NULL;
    mongoc_bulk_operation_t *bulk;
    bson_t opts, reply;
    bson_error_t e;
    enum ob_status st = ob_produce_mongo_collection(session, target, "_keys", &coll, err);

    if (st == OB_OK)
        st = options(session, &opts, err);
    if (st == OB_OK) {
        bulk = mongoc_collection_create_bulk_operation_with_opts(coll, &opts);
        qsort(b->keys, b->n, sizeof(*b->keys), by_bytes);
        for (size_t i = 0; i < b->n && st == OB_OK; i++)
            if ((i == 0 || !ob_str_eq(b->keys[i], b->keys[i - 1])) && !add_turn(bulk, b->keys[i]))
                st = ob_err_set(err, OB_REJECT, "a key cannot be serialised");
        if (st == OB_OK) {
            if (!mongoc_bulk_operation_execute(bulk, &reply, &e))
                st = ob_produce_mongo_meaning(&e, &reply, err);
            bson_destroy(&reply);
        }
        mongoc_bulk_operation_destroy(bulk);
        bson_destroy(&opts);
    }
    mongoc_collection_destroy(coll);
    return st;
}

/* ---- the calls ---- */

static enum ob_status emit(mongoc_client_session_t *session,
                           const struct outbox_mongo_target *target, const struct outbox_ctx *ctx,
                           const struct input *in, char (*ids)[OUTBOX_ID_SIZE], struct ob_err *err)
{
    struct batch b;
    enum ob_status st = ob_produce_mongo_ready(session, err);

    if (st != OB_OK || in->n == 0)
        return st;
    if (!target)
        target = &ob_produce_mongo_native;
    st = batch_init(&b, in->n, err);
    if (st != OB_OK)
        return st;
    st = batch_fill(&b, target, ctx, in, err);
    if (st == OB_OK && target->serialize)
        st = take_turns(session, target, &b, err);
    if (st == OB_OK)
        st = insert(session, target, &b, err);
    if (st == OB_OK && ids)
        memcpy(ids, b.ids, in->n * sizeof(*ids));
    batch_clear(&b);
    return st;
}

enum outbox_status outbox_mongo_emit_many(mongoc_client_session_t *session,
                                          const struct outbox_mongo_target *target,
                                          const struct outbox_ctx *ctx,
                                          const struct outbox_event *events, size_t n,
                                          char (*ids)[OUTBOX_ID_SIZE], struct outbox_error *err)
{
    const struct input in = {.events = events, .n = n};
    struct ob_err why = {.text = ""};

    return ob_produce_give(emit(session, target, ctx, &in, ids, &why), &why, err);
}

enum outbox_status outbox_mongo_emit(mongoc_client_session_t *session,
                                     const struct outbox_mongo_target *target,
                                     const struct outbox_ctx *ctx, const struct outbox_event *event,
                                     char *id, struct outbox_error *err)
{
    return outbox_mongo_emit_many(session, target, ctx, event, 1,
                                  (char(*)[OUTBOX_ID_SIZE])(void *)id, err);
}

enum ob_status ob_produce_mongo_collected(mongoc_client_session_t *session,
                                          const struct outbox_mongo_target *target,
                                          const struct outbox_ctx *ctx,
                                          const struct outbox_collector *c, struct ob_err *err)
{
    const struct input in = {.collector = c, .n = outbox_collector_count(c)};

    return emit(session, target, ctx, &in, NULL, err);
}

enum outbox_status outbox_mongo_write(mongoc_client_session_t *session,
                                      const struct outbox_mongo_target *target,
                                      const struct outbox_ctx *ctx,
                                      const struct outbox_collector *collector,
                                      struct outbox_error *err)
{
    struct ob_err why = {.text = ""};

    return ob_produce_give(ob_produce_mongo_collected(session, target, ctx, collector, &why), &why,
                           err);
}

/* Outside a transaction only what a majority has counts: the rest may be undone. */
static enum ob_status find_options(const mongoc_client_session_t *session, bson_t *opts,
                                   struct ob_err *err)
{
    mongoc_read_concern_t *majority = mongoc_read_concern_new();
    enum ob_status st = options(session, opts, err);

    if (st == OB_OK) {
        BSON_APPEND_INT64(opts, "limit", 1);
        mongoc_read_concern_set_level(majority, MONGOC_READ_CONCERN_LEVEL_MAJORITY);
        if (!ob_produce_mongo_started(session) && !mongoc_read_concern_append(majority, opts)) {
            bson_destroy(opts);
            st = ob_err_set(err, OB_DOWN, "no memory");
        }
    }
    mongoc_read_concern_destroy(majority);
    return st;
}

static enum ob_status look(mongoc_collection_t *coll, const bson_t *filter, const bson_t *opts,
                           bool *found, struct ob_err *err)
{
    mongoc_cursor_t *cursor = mongoc_collection_find_with_opts(coll, filter, opts, NULL);
    const bson_t *doc, *reply;
    bson_error_t e;
    bool any = mongoc_cursor_next(cursor, &doc);
    enum ob_status st = OB_OK;

    if (mongoc_cursor_error_document(cursor, &e, &reply))
        st = ob_produce_mongo_meaning(&e, reply, err);
    else
        *found = any;
    mongoc_cursor_destroy(cursor);
    return st;
}

static enum ob_status exists(mongoc_client_session_t *session,
                             const struct outbox_mongo_target *target, const char *id, bool *found,
                             struct ob_err *err)
{
    mongoc_collection_t *coll = NULL;
    bson_t opts, filter = BSON_INITIALIZER;
    enum ob_status st = OB_OK;

    if (!session)
        return ob_err_set(err, OB_REJECT, "there is no session");
    if (!id || !*id || !ob_utf8_valid(ob_str_c(id)))
        return ob_err_set(err, OB_REJECT, "an event has an id, in UTF-8");
    if (!target)
        target = &ob_produce_mongo_native;
    st = ob_produce_mongo_collection(session, target, "", &coll, err);
    if (st == OB_OK)
        st = find_options(session, &opts, err);
    if (st == OB_OK) {
        BSON_APPEND_UTF8(&filter, target->shape.map->col[OB_MAP_ID], id);
        st = look(coll, &filter, &opts, found, err);
        bson_destroy(&opts);
    }
    bson_destroy(&filter);
    mongoc_collection_destroy(coll);
    return st;
}

enum outbox_status outbox_mongo_exists(mongoc_client_session_t *session,
                                       const struct outbox_mongo_target *target, const char *id,
                                       bool *found, struct outbox_error *err)
{
    struct ob_err why = {.text = ""};

    return ob_produce_give(exists(session, target, id, found, &why), &why, err);
}
