/* SPDX-License-Identifier: Apache-2.0 */
/* record - parked and dead events beside the documents, and what their keys wait for. All inside
 * the settle's transaction. An event is named by its document's `_id` ("ref"); nothing of its
 * payload is copied.
 *
 * C_held has one document per key hash: what its first parked event waits for, or -1 where a dead
 * one holds it. It is derived anew for every hash that a settle touched. */
#include "source/mongodb/mongo.h"

#include "core/utf8.h"

#include <inttypes.h>
#include <stdlib.h>

#define REASON_MAX 1000
#define HISTORY_MAX 100 /* attempts; then the oldest is forgotten */

/* One settle being recorded. */
struct record {
    struct ob_source *s;
    struct ob_settle *settle;
    mongoc_client_session_t *session;
    int64_t *numbers; /* one per op */
    int64_t *touched; /* hashes */
    size_t n_touched;
    int64_t now_ms; /* wall: shown to people only */
};

static void append_text(bson_t *b, const char *field, struct ob_str s)
{
    if (s.n > REASON_MAX)
        s.n = ob_utf8_cut(s.p, REASON_MAX);
    if (!ob_utf8_valid(s))
        s = OB_STR("(not text)");
    bson_append_utf8(b, field, -1, s.p ? s.p : "", (int)s.n);
}

static void append_attempt(const struct record *r, const struct ob_settle_op *op, bson_t *to)
{
    BSON_APPEND_DATE_TIME(to, "at", r->now_ms);
    BSON_APPEND_INT64(to, "attempt", op->attempts);
    append_text(to, "error", ob_str_c(op->reason));
}

static mongoc_bulk_operation_t *bulk_on(struct record *r, const char *name,
                                        mongoc_collection_t **coll)
{
    bson_t opts;
    *coll = ob_mongo_coll(r->s, name);
    ob_mongo_write_opts(&opts, r->s->conf->timeout_ms, r->session);
    mongoc_bulk_operation_t *bulk = mongoc_collection_create_bulk_operation_with_opts(*coll, &opts);
    bson_destroy(&opts);
    return bulk;
}

static enum ob_status run(mongoc_bulk_operation_t *bulk, mongoc_collection_t *coll, size_t n,
                          size_t *upserted, struct ob_err *err)
{
    bson_t reply;
    bson_error_t e;
    enum ob_status st = OB_OK;
    if (n > 0) {
        if (!mongoc_bulk_operation_execute(bulk, &reply, &e))
            st = ob_mongo_fail(err, "recording", &e, &reply);
        *upserted = (size_t)ob_mongo_i64(&reply, "nUpserted", 0);
        bson_destroy(&reply);
    }
    mongoc_bulk_operation_destroy(bulk);
    mongoc_collection_destroy(coll);
    return st;
}

/* ---- parked ---- */

static void append_park(const struct record *r, const struct ob_settle_op *op, bson_t *update)
{
    bson_t set, push, list, one, each;
    BSON_APPEND_DOCUMENT_BEGIN(update, "$set", &set);
    BSON_APPEND_INT64(&set, "attempts", op->attempts);
    BSON_APPEND_DATE_TIME(&set, "due_at", op->due_ms);
    BSON_APPEND_INT64(&set, "blocked_dest", (int64_t)op->blocked_dest);
    append_text(&set, "reason", ob_str_c(op->reason));
    append_text(&set, "destination", op->destination);
    bson_append_document_end(update, &set);
    if (!op->spent)
        return;
    BSON_APPEND_DOCUMENT_BEGIN(update, "$push", &push);
    BSON_APPEND_DOCUMENT_BEGIN(&push, "history", &each);
    BSON_APPEND_ARRAY_BEGIN(&each, "$each", &list);
    BSON_APPEND_DOCUMENT_BEGIN(&list, "0", &one);
    append_attempt(r, op, &one);
    bson_append_document_end(&list, &one);
    bson_append_array_end(&each, &list);
    BSON_APPEND_INT32(&each, "$slice", -HISTORY_MAX);
    bson_append_document_end(&push, &each);
    bson_append_document_end(update, &push);
}

/* An event that has a row already keeps it: by its `ref`, not by a number. */
static void park_new(struct record *r, size_t i, mongoc_bulk_operation_t *bulk)
{
    const struct ob_settle_op *op = &r->settle->ops[i];
    bson_t filter, update, made, *opts = BCON_NEW("upsert", BCON_BOOL(true));
    bson_iter_t id;
    bson_init(&filter);
    bson_init(&update);
    if (ob_mongo_ref(op->event, &id))
        bson_append_iter(&filter, "ref", -1, &id);
    append_park(r, op, &update);
    BSON_APPEND_DOCUMENT_BEGIN(&update, "$setOnInsert", &made);
    BSON_APPEND_INT64(&made, "_id", r->numbers[i]);
    BSON_APPEND_INT64(&made, "hash", (int64_t)op->hash);
    append_text(&made, "id", op->event->id);
    bson_append_document_end(&update, &made);
    mongoc_bulk_operation_update_one_with_opts(bulk, &filter, &update, opts, NULL);
    bson_destroy(&filter);
    bson_destroy(&update);
    bson_destroy(opts);
}

static void park_again(struct record *r, size_t i, mongoc_bulk_operation_t *bulk)
{
    const struct ob_settle_op *op = &r->settle->ops[i];
    bson_t filter, update;
    bson_init(&filter);
    bson_init(&update);
    BSON_APPEND_INT64(&filter, "_id", op->park_n);
    append_park(r, op, &update);
    mongoc_bulk_operation_update_one_with_opts(bulk, &filter, &update, NULL, NULL);
    bson_destroy(&filter);
    bson_destroy(&update);
}

static void unpark(mongoc_bulk_operation_t *bulk, int64_t n)
{
    bson_t *filter = BCON_NEW("_id", BCON_INT64(n));
    mongoc_bulk_operation_remove_one_with_opts(bulk, filter, NULL, NULL);
    bson_destroy(filter);
}

/* Some of the new ones had a row already: theirs is the number of that. */
static enum ob_status read_numbers(struct record *r, struct ob_err *err)
{
    mongoc_collection_t *coll = ob_mongo_coll(r->s, r->s->model->parked);
    enum ob_status st = OB_OK;
    for (size_t i = 0; st == OB_OK && i < r->settle->n; i++) {
        const struct ob_settle_op *op = &r->settle->ops[i];
        bson_t filter, opts;
        bson_iter_t id;
        bson_error_t e;
        const bson_t *doc;
        if (op->kind != OB_SETTLE_PARK || op->park_n != 0 || !ob_mongo_ref(op->event, &id))
            continue;
        bson_init(&filter);
        bson_init(&opts);
        bson_append_iter(&filter, "ref", -1, &id);
        if (!mongoc_client_session_append(r->session, &opts, &e))
            st = ob_mongo_fail(err, "recording", &e, NULL);
        mongoc_cursor_t *c = mongoc_collection_find_with_opts(coll, &filter, &opts, NULL);
        if (mongoc_cursor_next(c, &doc))
            r->numbers[i] = ob_mongo_i64(doc, "_id", r->numbers[i]);
        else if (mongoc_cursor_error(c, &e))
            st = ob_mongo_fail(err, "recording", &e, NULL);
        mongoc_cursor_destroy(c);
        bson_destroy(&filter);
        bson_destroy(&opts);
    }
    mongoc_collection_destroy(coll);
    return st;
}

static enum ob_status record_parked(struct record *r, struct ob_err *err)
{
    mongoc_collection_t *coll;
    mongoc_bulk_operation_t *bulk = bulk_on(r, r->s->model->parked, &coll);
    size_t n = 0, fresh = 0, made = 0;
    for (size_t i = 0; i < r->settle->n; i++) {
        const struct ob_settle_op *op = &r->settle->ops[i];
        bool is_new = op->kind == OB_SETTLE_PARK && op->park_n == 0;
        fresh += is_new;
        if (is_new)
            park_new(r, i, bulk);
        else if (op->kind == OB_SETTLE_PARK)
            park_again(r, i, bulk);
        else if (op->park_n != 0)
            unpark(bulk, op->park_n);
        else
            continue;
        n++;
    }
    enum ob_status st = run(bulk, coll, n, &made, err);
    return st == OB_OK && made < fresh ? read_numbers(r, err) : st;
}

/* New ones that were there already have their old number; and the hash under which an event was
 * parked counts, not the op's: routes may have changed. */
static enum ob_status read_parked(struct record *r, struct ob_err *err)
{
    mongoc_collection_t *coll = ob_mongo_coll(r->s, r->s->model->parked);
    bson_t filter, either, one, in, list, opts;
    bson_error_t e;
    const bson_t *doc;
    enum ob_status st = OB_OK;
    size_t n = 0;
    bson_init(&filter);
    bson_init(&opts);
    BSON_APPEND_ARRAY_BEGIN(&filter, "$or", &either);
    for (int by = 0; by < 2; by++) { /* by ref, by number */
        BSON_APPEND_DOCUMENT_BEGIN(&either, by ? "1" : "0", &one);
        BSON_APPEND_DOCUMENT_BEGIN(&one, by ? "_id" : "ref", &in);
        BSON_APPEND_ARRAY_BEGIN(&in, "$in", &list);
        for (size_t i = 0; i < r->settle->n; i++) {
            const struct ob_settle_op *op = &r->settle->ops[i];
            bson_iter_t id;
            if (by == 0 && op->kind == OB_SETTLE_PARK && op->park_n == 0 &&
                ob_mongo_ref(op->event, &id))
                bson_append_iter(&list, "0", 1, &id);
            else if (by == 1 && op->park_n != 0)
                bson_append_int64(&list, "0", 1, op->park_n);
            else
                continue;
            n++;
        }
        bson_append_array_end(&in, &list);
        bson_append_document_end(&one, &in);
        bson_append_document_end(&either, &one);
    }
    bson_append_array_end(&filter, &either);
    if (n > 0 && !mongoc_client_session_append(r->session, &opts, &e))
        st = ob_mongo_fail(err, "recording", &e, NULL);
    BCON_APPEND(&opts, "projection", "{", "hash", BCON_INT32(1), "}");
    if (st == OB_OK && n > 0) {
        mongoc_cursor_t *c = mongoc_collection_find_with_opts(coll, &filter, &opts, NULL);
        while (mongoc_cursor_next(c, &doc) && r->n_touched < 3 * r->settle->n)
            r->touched[r->n_touched++] = ob_mongo_i64(doc, "hash", 0);
        if (mongoc_cursor_error(c, &e))
            st = ob_mongo_fail(err, "recording", &e, NULL);
        mongoc_cursor_destroy(c);
    }
    bson_destroy(&filter);
    bson_destroy(&opts);
    mongoc_collection_destroy(coll);
    return st;
}

/* ---- dead ---- */

/* Histories of those that were parked before they died. */
static enum ob_status read_history(struct record *r, size_t i, bson_t *out, struct ob_err *err)
{
    mongoc_collection_t *coll = ob_mongo_coll(r->s, r->s->model->parked);
    bson_t *filter = BCON_NEW("_id", BCON_INT64(r->settle->ops[i].park_n)), opts;
    const bson_t *doc;
    bson_error_t e;
    bson_iter_t it;
    enum ob_status st = OB_OK;
    bson_init(&opts);
    if (!mongoc_client_session_append(r->session, &opts, &e))
        st = ob_mongo_fail(err, "recording", &e, NULL);
    mongoc_cursor_t *c = mongoc_collection_find_with_opts(coll, filter, &opts, NULL);
    if (st == OB_OK && mongoc_cursor_next(c, &doc)) {
        if (bson_iter_init_find(&it, doc, "history") && BSON_ITER_HOLDS_ARRAY(&it)) {
            uint32_t len;
            const uint8_t *data;
            bson_t list;
            bson_iter_array(&it, &len, &data);
            if (bson_init_static(&list, data, len))
                bson_concat(out, &list);
        }
    } else if (st == OB_OK && mongoc_cursor_error(c, &e)) {
        st = ob_mongo_fail(err, "recording", &e, NULL);
    }
    mongoc_cursor_destroy(c);
    bson_destroy(filter);
    bson_destroy(&opts);
    mongoc_collection_destroy(coll);
    return st;
}

static void append_dead(const struct record *r, size_t i, const bson_t *history, bson_t *update)
{
    const struct ob_settle_op *op = &r->settle->ops[i];
    const struct ob_event *ev = op->event;
    bson_t set, list, one;
    bson_iter_t id;
    char text[16];
    const char *at;
    BSON_APPEND_DOCUMENT_BEGIN(update, "$set", &set);
    if (ob_mongo_ref(ev, &id))
        bson_append_iter(&set, "ref", -1, &id);
    BSON_APPEND_INT64(&set, "hash",
                      op->park_n && ev->park_hash ? (int64_t)ev->park_hash : (int64_t)op->hash);
    append_text(&set, "id", ev->id);
    append_text(&set, "type", ev->type);
    append_text(&set, "key", ev->key.n ? ev->key : ev->aggregate_id);
    append_text(&set, "tenant", ev->tenant);
    append_text(&set, "destination", op->destination);
    append_text(&set, "error", ob_str_c(op->reason));
    BSON_APPEND_INT64(&set, "attempts", op->attempts);
    BSON_APPEND_DATE_TIME(&set, "at", r->now_ms);
    BSON_APPEND_BOOL(&set, "hold", op->hold);
    BSON_APPEND_UTF8(&set, "state", "dead");
    BSON_APPEND_BOOL(&set, "dlt", r->s->dlt); /* still to be published to the dead-letter topic */
    BSON_APPEND_ARRAY_BEGIN(&set, "history", &list);
    bson_concat(&list, history);
    if (op->spent) {
        uint32_t n = bson_count_keys(history);
        size_t len = bson_uint32_to_string(n, &at, text, sizeof(text));
        bson_append_document_begin(&list, at, (int)len, &one);
        append_attempt(r, op, &one);
        bson_append_document_end(&list, &one);
    }
    bson_append_array_end(&set, &list);
    bson_append_document_end(update, &set);
}

static enum ob_status record_dead(struct record *r, struct ob_err *err)
{
    mongoc_collection_t *coll;
    mongoc_bulk_operation_t *bulk = bulk_on(r, r->s->model->dead, &coll);
    bson_t *opts = BCON_NEW("upsert", BCON_BOOL(true));
    enum ob_status st = OB_OK;
    size_t n = 0;
    for (size_t i = 0; st == OB_OK && i < r->settle->n; i++) {
        const struct ob_settle_op *op = &r->settle->ops[i];
        bson_t history, update, *filter;
        if (op->kind != OB_SETTLE_DEAD)
            continue;
        bson_init(&history);
        bson_init(&update);
        filter = BCON_NEW("_id", BCON_INT64(op->park_n ? op->park_n : r->numbers[i]));
        if (op->park_n)
            st = read_history(r, i, &history, err);
        append_dead(r, i, &history, &update);
        mongoc_bulk_operation_update_one_with_opts(bulk, filter, &update, opts, NULL);
        bson_destroy(&history);
        bson_destroy(&update);
        bson_destroy(filter);
        n++;
    }
    bson_destroy(opts);
    size_t made = 0;
    enum ob_status ran = run(bulk, coll, st == OB_OK ? n : 0, &made, err);
    return st == OB_OK ? ran : st;
}

/* ---- numbers ---- */

static void draw_numbers(struct record *r, int64_t first)
{
    for (size_t i = 0; i < r->settle->n; i++) {
        const struct ob_settle_op *op = &r->settle->ops[i];
        r->numbers[i] = op->park_n;
        if (op->kind != OB_SETTLE_PUBLISHED && op->park_n == 0)
            r->numbers[i] = ++first;
        if (op->kind != OB_SETTLE_PUBLISHED || op->park_n != 0)
            r->touched[r->n_touched++] = (int64_t)op->hash;
    }
}

enum ob_status ob_mongo_record(struct ob_source *s, struct ob_settle *settle,
                               mongoc_client_session_t *session, int64_t first_n, int64_t *numbers,
                               struct ob_settled *out, struct ob_err *err)
{
    struct record r = {.s = s,
                       .settle = settle,
                       .session = session,
                       .numbers = numbers,
                       .touched = calloc(3 * settle->n + 1, sizeof(*r.touched)),
                       .now_ms = ob_clock_wall_us(s->clock) / 1000};
    enum ob_status st = r.touched ? OB_OK : ob_err_set(err, OB_RETRY, "no memory");
    if (st == OB_OK) {
        draw_numbers(&r, first_n);
        st = read_parked(&r, err); /* before rows of it go */
    }
    if (st == OB_OK)
        st = record_dead(&r, err);
    if (st == OB_OK)
        st = record_parked(&r, err);
    if (st == OB_OK)
        st =
            ob_mongo_rekey(s->client, s->conf->database, s->model, s->conf->timeout_ms, session,
                           r.touched, r.n_touched, out->released, settle->n, &out->n_released, err);
    if (st == OB_OK)
        st = ob_mongo_next_due(s, session, &out->next_due_ms, err);
    free(r.touched);
    return st;
}
