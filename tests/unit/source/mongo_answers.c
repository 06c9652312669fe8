/* SPDX-License-Identifier: Apache-2.0 */
/* mongo_answers - what is recorded in the native collections, asked of the server. */
#include "mongo_bench.h"

#include <stdio.h>

/* Collections are named by what stands behind "outbox_events". */
#define EVENTS ""
#define LEASE "_lease"
#define PARKED "_parked"
#define HELD "_held"
#define DEAD "_dead"
#define LEASE_OF_ALL "{\"_id\":\"lease\"}"

static bson_t *json(const char *fmt, va_list ap) __attribute__((format(printf, 1, 0)));
static bson_t *json(const char *fmt, va_list ap)
{
    char text[2048];
    bson_error_t e;
    vsnprintf(text, sizeof(text), fmt, ap);
    bson_t *b = bson_new_from_json((const uint8_t *)text, -1, &e);
    if (!b)
        fail_msg("%s: %s", text, e.message);
    return b;
}

static bson_t *made_of(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static bson_t *made_of(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    bson_t *b = json(fmt, ap);
    va_end(ap);
    return b;
}

static mongoc_collection_t *collection(struct bench *b, const char *which)
{
    char name[64];
    snprintf(name, sizeof(name), "outbox_events%s", which);
    return mongoc_client_get_collection(b->app, b->on->name, name);
}

static int64_t count(struct bench *b, const char *which, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static int64_t count(struct bench *b, const char *which, const char *fmt, ...)
{
    mongoc_collection_t *coll = collection(b, which);
    va_list ap;
    bson_error_t e;
    va_start(ap, fmt);
    bson_t *filter = json(fmt, ap);
    va_end(ap);
    int64_t n = mongoc_collection_count_documents(coll, filter, NULL, NULL, NULL, &e);
    if (n < 0)
        fail_msg("%s", e.message);
    bson_destroy(filter);
    mongoc_collection_destroy(coll);
    return n;
}

/* The first document of a pipeline; NULL: none. The caller's. */
static bson_t *first(struct bench *b, const char *which, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static bson_t *first(struct bench *b, const char *which, const char *fmt, ...)
{
    mongoc_collection_t *coll = collection(b, which);
    va_list ap;
    bson_error_t e;
    const bson_t *doc;
    va_start(ap, fmt);
    bson_t *pipeline = json(fmt, ap);
    va_end(ap);
    mongoc_cursor_t *c = mongoc_collection_aggregate(coll, MONGOC_QUERY_NONE, pipeline, NULL, NULL);
    bson_t *out = mongoc_cursor_next(c, &doc) ? bson_copy(doc) : NULL;
    if (mongoc_cursor_error(c, &e))
        fail_msg("%s", e.message);
    mongoc_cursor_destroy(c);
    bson_destroy(pipeline);
    mongoc_collection_destroy(coll);
    return out;
}

/* A number in that document; -1: it has none, or there is none. It is destroyed. */
static int64_t number_in(bson_t *doc, const char *field)
{
    bson_iter_t it;
    int64_t n = -1;
    if (doc && bson_iter_init_find(&it, doc, field) && BSON_ITER_HOLDS_NUMBER(&it))
        n = bson_iter_as_int64(&it);
    bson_destroy(doc);
    return n;
}

static void change(struct bench *b, const char *which, bson_t *filter, bson_t *update)
{
    mongoc_collection_t *coll = collection(b, which);
    bson_error_t e;
    if (!mongoc_collection_update_one(coll, filter, update, NULL, NULL, &e))
        fail_msg("%s", e.message);
    bson_destroy(filter);
    bson_destroy(update);
    mongoc_collection_destroy(coll);
}

/* ---- the worker ---- */

static int64_t lease(struct bench *b, const char *field)
{
    return number_in(first(b, LEASE, "{\"pipeline\":[{\"$match\":" LEASE_OF_ALL "}]}"), field);
}

int64_t epoch(struct bench *b)
{
    return lease(b, "epoch");
}

void raise_epoch(struct bench *b)
{
    change(b, LEASE, made_of(LEASE_OF_ALL), made_of("{\"$inc\":{\"epoch\":1}}"));
}

void grow_silent(struct bench *b)
{
    change(b, LEASE, made_of(LEASE_OF_ALL),
           made_of("{\"0\":{\"$set\":{\"until\":{\"$subtract\":[\"$until\",20000]},\"beat_at\":{"
                   "\"$subtract\":[\"$beat_at\",20000]}}}}"));
}

int64_t n_failed(struct bench *b)
{
    return lease(b, "failed");
}

int64_t in_flight(struct bench *b)
{
    return lease(b, "in_flight");
}

int64_t cursor_pos(struct bench *b)
{
    (void)b;
    return -1;
}

int64_t n_cursors(struct bench *b, unsigned shards)
{
    (void)b;
    (void)shards;
    return -1;
}

int64_t n_past(struct bench *b)
{
    (void)b;
    return -1;
}

/* ---- events ---- */

int64_t n_published(struct bench *b)
{
    return count(b, EVENTS, "{\"status\":\"published\",\"published_at\":{\"$ne\":null}}");
}

int64_t n_events(struct bench *b)
{
    return count(b, EVENTS, "{}");
}

static bson_t *event(struct bench *b, const char *id)
{
    return first(b, EVENTS, "{\"pipeline\":[{\"$match\":{\"_id\":\"%s\"}}]}", id);
}

uint64_t ref_of(struct bench *b, uint64_t number)
{
    char id[64];
    bson_iter_t it;
    uint32_t t = 0, i = 0;
    snprintf(id, sizeof(id), "00000000-0000-7000-8000-%012d", (int)number);
    bson_t *doc = event(b, id);
    if (doc && bson_iter_init_find(&it, doc, "seq") && BSON_ITER_HOLDS_TIMESTAMP(&it))
        bson_iter_timestamp(&it, &t, &i);
    bson_destroy(doc);
    assert_true(t > 0); /* the server has given it */
    return (uint64_t)t << 32 | i;
}

struct stored stored_event(struct bench *b, const char *id)
{
    bson_t *doc = event(b, id);
    bson_iter_t it;
    struct stored s = {.there = doc, .entity_version = OB_NO_VERSION};
    if (doc && bson_iter_init_find(&it, doc, "entity_version"))
        s.entity_version = bson_iter_as_int64(&it);
    s.text = doc && bson_iter_init_find(&it, doc, "payload_kind") && BSON_ITER_HOLDS_UTF8(&it) &&
             strcmp(bson_iter_utf8(&it, NULL), "text") == 0;
    bson_destroy(doc);
    return s;
}

void had_attempts(struct bench *b, const struct ob_event *ev, uint32_t n)
{
    change(b, EVENTS, made_of("{\"_id\":\"%.*s\"}", OB_STR_ARG(ev->id)),
           made_of("{\"$set\":{\"attempts\":%u}}", n));
}

/* ---- beside them ---- */

int64_t n_parked(struct bench *b)
{
    return count(b, PARKED, "{}");
}

int64_t n_held(struct bench *b)
{
    return count(b, HELD, "{}");
}

int64_t n_dead(struct bench *b, const char *state)
{
    return state ? count(b, DEAD, "{\"state\":\"%s\"}", state) : count(b, DEAD, "{}");
}

int64_t dead_number(struct bench *b, int64_t attempts, const char *error)
{
    return number_in(first(b, DEAD,
                           "{\"pipeline\":[{\"$match\":{\"attempts\":%lld,\"error\":\"%s\"}}]}",
                           (long long)attempts, error),
                     "_id");
}

void dead_history(struct bench *b, char *out, size_t size)
{
    bson_t *doc = first(
        b, DEAD,
        "{\"pipeline\":[{\"$project\":{\"all\":{\"$reduce\":{\"input\":\"$history\","
        "\"initialValue\":\"\",\"in\":{\"$concat\":[\"$$value\",{\"$cond\":[{\"$eq\":[\"$$value\","
        "\"\"]},\"\",\",\"]},{\"$toString\":\"$$this.attempt\"},\"$$this.error\"]}}}}}]}");
    bson_iter_t it;
    out[0] = '\0';
    if (doc && bson_iter_init_find(&it, doc, "all") && BSON_ITER_HOLDS_UTF8(&it))
        snprintf(out, size, "%s", bson_iter_utf8(&it, NULL));
    bson_destroy(doc);
}

int64_t history_size(struct bench *b)
{
    return number_in(first(b, PARKED,
                           "{\"pipeline\":[{\"$project\":{\"n\":{\"$bsonSize\":{\"h\":\"$history\"}"
                           "}}}]}"),
                     "n");
}

int64_t last_attempt(struct bench *b)
{
    return number_in(first(b, PARKED,
                           "{\"pipeline\":[{\"$project\":{\"n\":{\"$last\":\"$history.attempt\"}}}]"
                           "}"),
                     "n");
}

/* Every held hash and what its lowest event waits for, without the collection of held ones. */
#define DERIVED                                                                                    \
    "{\"$project\":{\"hash\":1,\"dest\":\"$blocked_dest\",\"due\":\"$due_at\"}},"                  \
    "{\"$unionWith\":{\"coll\":\"outbox_events_dead\",\"pipeline\":[{\"$match\":{\"hold\":true}}," \
    "{\"$project\":{\"hash\":1,\"dest\":{\"$literal\":-1}}}]}},"                                   \
    "{\"$sort\":{\"hash\":1,\"_id\":1}},"                                                          \
    "{\"$group\":{\"_id\":\"$hash\",\"dest\":{\"$first\":\"$dest\"},\"due\":{\"$first\":"          \
    "\"$due\"}}}"
#define KEPT                                                                                       \
    "{\"$lookup\":{\"from\":\"outbox_events_held\",\"localField\":\"_id\",\"foreignField\":"       \
    "\"_id\",\"as\":\"kept\"}},{\"$set\":{\"kept\":{\"$first\":\"$kept\"}}}"
#define DIFFERS                                                                                    \
    "{\"$match\":{\"$expr\":{\"$or\":[{\"$ne\":[\"$kept.blocked_dest\",\"$dest\"]},{\"$and\":["    \
    "{\"$ne\":[\"$dest\",-1]},{\"$ne\":[\"$kept.due_at\",\"$due\"]}]}]}}}"
/* Of events that stand aside: with the status of their documents. */
#define WITH_STATUS                                                                                \
    "{\"$lookup\":{\"from\":\"outbox_events\",\"localField\":\"ref\",\"foreignField\":\"_id\","    \
    "\"as\":\"doc\"}},{\"$set\":{\"status\":{\"$first\":\"$doc.status\"}}}"

static void assert_none(const char *what, bson_t *doc)
{
    char *text = doc ? bson_as_relaxed_extended_json(doc, NULL) : NULL;
    if (doc)
        fail_msg("%s: %s", what, text);
}

void assert_side_tables(struct bench *b)
{
    int64_t keys =
        number_in(first(b, PARKED, "{\"pipeline\":[" DERIVED ",{\"$count\":\"n\"}]}"), "n");
    assert_int_equal(n_held(b), keys < 0 ? 0 : keys);
    assert_none("a key that waits otherwise",
                first(b, PARKED, "{\"pipeline\":[" DERIVED "," KEPT "," DIFFERS "]}"));
    assert_none("parked, and not open",
                first(b, PARKED,
                      "{\"pipeline\":[" WITH_STATUS ",{\"$match\":{\"status\":{\"$nin\":"
                      "[\"pending\",\"processing\",\"failed\"]}}}]}"));
    assert_none("dead, and not shown so",
                first(b, DEAD,
                      "{\"pipeline\":[{\"$match\":{\"state\":\"dead\"}}," WITH_STATUS
                      ",{\"$match\":{\"status\":{\"$ne\":\"failed\"}}}]}"));
}
