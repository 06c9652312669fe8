/* SPDX-License-Identifier: Apache-2.0 */
/* held - one document per key hash that waits: {_id: hash, blocked_dest, due_at}. So neither a
 * look-up nor a drain depends on how many events wait behind the first. */
#include "source/mongodb/mongo.h"

#include <inttypes.h>
#include <stdlib.h>

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

/* What is known of one hash. */
struct key {
    int64_t hash, n, due_ms, dest, holder; /* n, holder 0: none */
};

static struct key *key_of(struct key *keys, size_t n, int64_t hash)
{
    size_t low = 0, high = n;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (keys[mid].hash < hash)
            low = mid + 1;
        else
            high = mid;
    }
    return low < n && keys[low].hash == hash ? &keys[low] : NULL;
}

struct rekey {
    mongoc_client_t *client;
    const char *database;
    const struct mongo_model *m;
    int64_t timeout_ms;
    mongoc_client_session_t *session;
    struct key *keys;
    size_t n;
};

/* The first of each hash: an aggregation over an index that begins with it. */
static enum ob_status firsts(struct rekey *r, const char *name, bool hold, struct ob_err *err)
{
    mongoc_collection_t *coll = mongoc_client_get_collection(r->client, r->database, name);
    bson_t all, list, stage, match, in, hashes, opts;
    bson_error_t e;
    const bson_t *doc;
    enum ob_status st = OB_OK;
    bson_init(&all);
    bson_init(&opts);
    BSON_APPEND_ARRAY_BEGIN(&all, "pipeline", &list);
    BSON_APPEND_DOCUMENT_BEGIN(&list, "0", &stage);
    BSON_APPEND_DOCUMENT_BEGIN(&stage, "$match", &match);
    BSON_APPEND_DOCUMENT_BEGIN(&match, "hash", &in);
    BSON_APPEND_ARRAY_BEGIN(&in, "$in", &hashes);
    for (size_t i = 0; i < r->n; i++)
        bson_append_int64(&hashes, "0", 1, r->keys[i].hash);
    bson_append_array_end(&in, &hashes);
    bson_append_document_end(&match, &in);
    if (hold)
        BSON_APPEND_BOOL(&match, "hold", true);
    bson_append_document_end(&stage, &match);
    bson_append_document_end(&list, &stage);
    BSON_APPEND_DOCUMENT_BEGIN(&list, "1", &stage);
    BCON_APPEND(&stage, "$sort", "{", "hash", BCON_INT32(1), "_id", BCON_INT32(1), "}");
    bson_append_document_end(&list, &stage);
    BSON_APPEND_DOCUMENT_BEGIN(&list, "2", &stage);
    BCON_APPEND(&stage, "$group", "{", "_id", "$hash", "n", "{", "$first", "$_id", "}", "due", "{",
                "$first", "$due_at", "}", "dest", "{", "$first", "$blocked_dest", "}", "}");
    bson_append_document_end(&list, &stage);
    bson_append_array_end(&all, &list);
    if (r->session && !mongoc_client_session_append(r->session, &opts, &e))
        st = ob_mongo_fail(err, "keys that wait", &e, NULL);
    mongoc_cursor_t *c = mongoc_collection_aggregate(coll, MONGOC_QUERY_NONE, &all, &opts, NULL);
    while (st == OB_OK && mongoc_cursor_next(c, &doc)) {
        bson_iter_t it;
        struct key *k = key_of(r->keys, r->n, ob_mongo_i64(doc, "_id", 0));
        if (!k)
            continue;
        if (hold) {
            k->holder = ob_mongo_i64(doc, "n", 0);
            continue;
        }
        k->n = ob_mongo_i64(doc, "n", 0);
        k->dest = ob_mongo_i64(doc, "dest", 0);
        if (bson_iter_init_find(&it, doc, "due") && BSON_ITER_HOLDS_DATE_TIME(&it))
            k->due_ms = bson_iter_date_time(&it);
    }
    if (st == OB_OK && mongoc_cursor_error(c, &e))
        st = ob_mongo_fail(err, "keys that wait", &e, NULL);
    mongoc_cursor_destroy(c);
    bson_destroy(&all);
    bson_destroy(&opts);
    mongoc_collection_destroy(coll);
    return st;
}

#define NEVER_MS INT64_C(253370764800000) /* the year 9999 */

static enum ob_status write_keys(struct rekey *r, struct ob_err *err)
{
    mongoc_collection_t *coll = mongoc_client_get_collection(r->client, r->database, r->m->held);
    bson_t opts, reply, *upsert = BCON_NEW("upsert", BCON_BOOL(true));
    bson_error_t e;
    enum ob_status st = OB_OK;
    ob_mongo_write_opts(&opts, r->timeout_ms, r->session);
    BSON_APPEND_BOOL(&opts, "ordered", false);
    mongoc_bulk_operation_t *bulk = mongoc_collection_create_bulk_operation_with_opts(coll, &opts);
    for (size_t i = 0; i < r->n; i++) {
        const struct key *k = &r->keys[i];
        bson_t *filter = BCON_NEW("_id", BCON_INT64(k->hash)), *update = NULL;
        bool behind = k->holder && (!k->n || k->holder < k->n);
        if (!k->n && !k->holder) {
            mongoc_bulk_operation_remove_one_with_opts(bulk, filter, NULL, NULL);
        } else {
            update = BCON_NEW("$set", "{", "blocked_dest", BCON_INT64(behind ? -1 : k->dest),
                              "due_at", BCON_DATE_TIME(behind ? NEVER_MS : k->due_ms), "}");
            mongoc_bulk_operation_update_one_with_opts(bulk, filter, update, upsert, NULL);
        }
        bson_destroy(filter);
        bson_destroy(update);
    }
    if (!mongoc_bulk_operation_execute(bulk, &reply, &e))
        st = ob_mongo_fail(err, "keys that wait", &e, &reply);
    bson_destroy(&reply);
    mongoc_bulk_operation_destroy(bulk);
    bson_destroy(upsert);
    bson_destroy(&opts);
    mongoc_collection_destroy(coll);
    return st;
}

enum ob_status ob_mongo_rekey(mongoc_client_t *client, const char *database,
                              const struct mongo_model *m, int64_t timeout_ms,
                              mongoc_client_session_t *session, const int64_t *hashes, size_t n,
                              uint64_t *released, size_t max, size_t *n_released,
                              struct ob_err *err)
{
    struct rekey r = {client, database, m, timeout_ms, session, NULL, 0};
    int64_t *sorted = n ? malloc(n * sizeof(*sorted)) : NULL;
    *n_released = 0;
    if (n == 0)
        return OB_OK;
    r.keys = calloc(n, sizeof(*r.keys));
    if (!sorted || !r.keys) {
        free(sorted);
        free(r.keys);
        return ob_err_set(err, OB_RETRY, "no memory");
    }
    memcpy(sorted, hashes, n * sizeof(*sorted));
    qsort(sorted, n, sizeof(*sorted), by_value);
    for (size_t i = 0; i < n; i++)
        if (i == 0 || sorted[i] != sorted[i - 1])
            r.keys[r.n++].hash = sorted[i];
    enum ob_status st = firsts(&r, m->parked, false, err);
    if (st == OB_OK)
        st = firsts(&r, m->dead, true, err);
    if (st == OB_OK)
        st = write_keys(&r, err);
    for (size_t i = 0; st == OB_OK && i < r.n && *n_released < max; i++)
        if (!r.keys[i].n && !r.keys[i].holder)
            released[(*n_released)++] = (uint64_t)r.keys[i].hash;
    free(sorted);
    free(r.keys);
    return st;
}

/* ---- looking ---- */

enum ob_status ob_mongo_held(struct ob_source *s, const uint64_t *hashes, size_t n, bool *held,
                             struct ob_err *err)
{
    enum ob_status st = ob_mongo_owned(s, err);
    if (st != OB_OK)
        return st;
    for (size_t i = 0; i < n; i++)
        held[i] = false;
    if (!atomic_load(&s->side) || n == 0)
        return OB_OK;
    mongoc_collection_t *coll = ob_mongo_coll(s, s->model->held);
    bson_t filter, in, list, *opts = BCON_NEW("projection", "{", "_id", BCON_INT32(1), "}");
    bson_error_t e;
    const bson_t *doc;
    bson_init(&filter);
    BSON_APPEND_DOCUMENT_BEGIN(&filter, "_id", &in);
    BSON_APPEND_ARRAY_BEGIN(&in, "$in", &list);
    for (size_t i = 0; i < n; i++)
        bson_append_int64(&list, "0", 1, (int64_t)hashes[i]);
    bson_append_array_end(&in, &list);
    bson_append_document_end(&filter, &in);
    mongoc_cursor_t *c = mongoc_collection_find_with_opts(coll, &filter, opts, NULL);
    while (mongoc_cursor_next(c, &doc)) {
        uint64_t hash = (uint64_t)ob_mongo_i64(doc, "_id", 0);
        for (size_t i = 0; i < n; i++)
            held[i] = held[i] || hashes[i] == hash;
    }
    if (mongoc_cursor_error(c, &e))
        st = ob_mongo_fail(err, "keys that wait", &e, NULL);
    mongoc_cursor_destroy(c);
    bson_destroy(&filter);
    bson_destroy(opts);
    mongoc_collection_destroy(coll);
    return st;
}

enum ob_status ob_mongo_next_due(struct ob_source *s, mongoc_client_session_t *session,
                                 int64_t *due_ms, struct ob_err *err)
{
    mongoc_collection_t *coll = ob_mongo_coll(s, s->model->held);
    bson_t *filter = BCON_NEW("blocked_dest", BCON_INT64(0));
    bson_t *opts = BCON_NEW("sort", "{", "blocked_dest", BCON_INT32(1), "due_at", BCON_INT32(1),
                            "}", "limit", BCON_INT64(1));
    bson_error_t e;
    bson_iter_t it;
    const bson_t *doc;
    enum ob_status st = OB_OK;
    *due_ms = INT64_MAX;
    if (session && !mongoc_client_session_append(session, opts, &e))
        st = ob_mongo_fail(err, "keys that wait", &e, NULL);
    mongoc_cursor_t *c = mongoc_collection_find_with_opts(coll, filter, opts, NULL);
    if (st == OB_OK && mongoc_cursor_next(c, &doc)) {
        if (bson_iter_init_find(&it, doc, "due_at") && BSON_ITER_HOLDS_DATE_TIME(&it))
            *due_ms = bson_iter_date_time(&it);
    } else if (st == OB_OK && mongoc_cursor_error(c, &e)) {
        st = ob_mongo_fail(err, "keys that wait", &e, NULL);
    }
    mongoc_cursor_destroy(c);
    bson_destroy(filter);
    bson_destroy(opts);
    mongoc_collection_destroy(coll);
    return st;
}

static int by_unsigned(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

#define DESTS_MAX 65536

enum ob_status ob_mongo_blocked(struct ob_source *s, uint64_t after, uint64_t *dests, size_t max,
                                size_t *n, struct ob_err *err)
{
    enum ob_status st = ob_mongo_owned(s, err);
    *n = 0;
    if (st != OB_OK || !atomic_load(&s->side))
        return st;
    mongoc_collection_t *coll = ob_mongo_coll(s, s->model->held);
    bson_t *pipe = ob_mongo_bson(
        "{\"pipeline\":[{\"$sort\":{\"blocked_dest\":1,\"due_at\":1}},{\"$group\":{\"_id\":"
        "\"$blocked_dest\"}},{\"$match\":{\"_id\":{\"$nin\":[0,-1]}}},{\"$limit\":%d}]}",
        DESTS_MAX);
    uint64_t *all = calloc(DESTS_MAX, sizeof(*all));
    size_t found = 0;
    bson_error_t e;
    const bson_t *doc;
    if (!all || !pipe)
        st = ob_err_set(err, OB_DOWN, "no memory");
    mongoc_cursor_t *c =
        st == OB_OK ? mongoc_collection_aggregate(coll, MONGOC_QUERY_NONE, pipe, NULL, NULL) : NULL;
    while (c && found < DESTS_MAX && mongoc_cursor_next(c, &doc)) {
        uint64_t dest = (uint64_t)ob_mongo_i64(doc, "_id", 0);
        if (dest > after)
            all[found++] = dest;
    }
    if (c && mongoc_cursor_error(c, &e))
        st = ob_mongo_fail(err, "blocked destinations", &e, NULL);
    if (st == OB_OK) {
        qsort(all, found, sizeof(*all), by_unsigned);
        for (; *n < max && *n < found; (*n)++)
            dests[*n] = all[*n];
    }
    if (c)
        mongoc_cursor_destroy(c);
    bson_destroy(pipe);
    free(all);
    mongoc_collection_destroy(coll);
    return st;
}
