/* SPDX-License-Identifier: Apache-2.0 */
/* lease_doc - the one document of C_lease: how it is made, and how it is changed by whoever it
 * names.
 *
 * It may disappear while a relay works (the database was dropped, and written anew). What is made
 * in its place goes on above what there was: the epoch begins with the server's time, so that a
 * worker of before is never taken for one of now, and numbers above those that parked and dead
 * events have
 * (tests/e2e/test_mongodb_owner.py::test_a_lease_that_is_dropped_is_made_anew_above_the_old_one).
 */
#include "source/mongodb/mongo.h"

#include <inttypes.h>

bson_t *ob_mongo_fence(int64_t epoch, const char *owner)
{
    bson_t *query = BCON_NEW("_id", BCON_UTF8("lease"));
    if (epoch >= 0)
        BSON_APPEND_INT64(query, "epoch", epoch);
    if (epoch >= 0 && owner)
        BSON_APPEND_UTF8(query, "owner", owner);
    return query;
}

enum ob_status ob_mongo_lease_change(struct ob_source *s, const bson_t *query, const char *set,
                                     bson_t *out, struct ob_err *err)
{
    bson_t reply, update, *stage = ob_mongo_bson("[{\"$set\":%s}]", set);
    bson_iter_t it;
    bson_init(out);
    if (!stage)
        return ob_err_set(err, OB_DOWN, "no memory");
    bson_init(&update);
    BSON_APPEND_UTF8(&update, "findAndModify", s->model->lease);
    BSON_APPEND_DOCUMENT(&update, "query", query);
    BSON_APPEND_ARRAY(&update, "update", stage);
    BSON_APPEND_BOOL(&update, "new", true);
    enum ob_status st = ob_mongo_write(s->client, s->conf->database, &update, s->conf->timeout_ms,
                                       NULL, &reply, "the lease", err);
    if (st == OB_OK && bson_iter_init_find(&it, &reply, "value") && BSON_ITER_HOLDS_DOCUMENT(&it)) {
        uint32_t len;
        const uint8_t *data;
        bson_iter_document(&it, &len, &data);
        bson_t doc;
        if (bson_init_static(&doc, data, len))
            bson_concat(out, &doc);
    }
    bson_destroy(&reply);
    bson_destroy(&update);
    bson_destroy(stage);
    return st;
}

/* The largest _id of a collection whose ids are numbers, if it is larger than *n. */
static enum ob_status largest(mongoc_client_t *client, const char *database, const char *name,
                              int64_t *n, struct ob_err *err)
{
    mongoc_collection_t *coll = mongoc_client_get_collection(client, database, name);
    bson_t all = BSON_INITIALIZER,
           *opts = BCON_NEW("sort", "{", "_id", BCON_INT32(-1), "}", "limit", BCON_INT64(1));
    const bson_t *doc;
    mongoc_cursor_t *c = mongoc_collection_find_with_opts(coll, &all, opts, NULL);
    if (mongoc_cursor_next(c, &doc) && ob_mongo_i64(doc, "_id", 0) > *n)
        *n = ob_mongo_i64(doc, "_id", 0);
    enum ob_status st = ob_mongo_cursor(c, "the lease", err);
    mongoc_cursor_destroy(c);
    bson_destroy(opts);
    mongoc_collection_destroy(coll);
    return st;
}

#define ZERO "{\"$numberLong\":\"0\"}"

enum ob_status ob_mongo_lease_make(mongoc_client_t *client, const char *database,
                                   const struct mongo_model *m, int64_t timeout_ms,
                                   struct ob_err *err)
{
    int64_t n = 0;
    enum ob_status st = largest(client, database, m->parked, &n, err);
    if (st == OB_OK)
        st = largest(client, database, m->dead, &n, err);
    if (st != OB_OK)
        return st;
    bson_t opts, *filter = BCON_NEW("_id", BCON_UTF8("lease"));
    bson_t *make = ob_mongo_bson(
        "[{\"$replaceWith\":{\"$mergeObjects\":[{\"owner\":\"\",\"worker\":\"\",\"epoch\":"
        "{\"$toLong\":\"$$NOW\"},\"until\":{\"$date\":{\"$numberLong\":\"0\"}},\"previous\":[],"
        "\"paused\":false,\"last_n\":{\"$numberLong\":\"%" PRId64 "\"},\"published\":" ZERO
        ",\"failed\":" ZERO ",\"fenced\":" ZERO "},\"$$ROOT\"]}}]",
        n);
    mongoc_collection_t *coll = mongoc_client_get_collection(client, database, m->lease);
    bson_error_t e;
    ob_mongo_write_opts(&opts, timeout_ms, NULL);
    BSON_APPEND_BOOL(&opts, "upsert", true);
    if (!make)
        st = ob_err_set(err, OB_DOWN, "no memory");
    else if (!mongoc_collection_update_one(coll, filter, make, &opts, NULL, &e) && e.code != 11000)
        st = ob_mongo_fail(err, "the lease", &e, NULL);
    bson_destroy(&opts);
    bson_destroy(filter);
    bson_destroy(make);
    mongoc_collection_destroy(coll);
    return st;
}
