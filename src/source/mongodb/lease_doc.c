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

#define OVER "over"         /* of read_lease() */
#define MAX_TIME_EXPIRED 50 /* of a write: another one has the document, and does not end */

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
    bson_t reply, update, opts, *stage = ob_mongo_bson("[{\"$set\":%s}]", set);
    bson_iter_t it;
    bson_error_t e;
    bson_init(out);
    if (!stage)
        return ob_err_set(err, OB_DOWN, "no memory");
    bson_init(&update);
    BSON_APPEND_UTF8(&update, "findAndModify", s->model->lease);
    BSON_APPEND_DOCUMENT(&update, "query", query);
    BSON_APPEND_ARRAY(&update, "update", stage);
    BSON_APPEND_BOOL(&update, "new", true);
    BSON_APPEND_INT64(&update, "maxTimeMS", s->conf->lease_ms / 2); /* in time for another try */
    ob_mongo_write_opts(&opts, s->conf->timeout_ms, NULL);
    enum ob_status st = OB_OK;
    if (!mongoc_client_write_command_with_opts(s->client, s->conf->database, &update, &opts, &reply,
                                               &e)) {
        st = ob_mongo_fail(err, "the lease", &e, &reply);
        if (e.code == MAX_TIME_EXPIRED)
            st = ob_err_set(err, OB_AGAIN,
                            "the lease document of collection %s is locked by an open transaction",
                            s->model->events);
    }
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
    bson_destroy(&opts);
    bson_destroy(stage);
    return st;
}

/* ---- whose it is ---- */

static const char *text_in(const bson_t *doc, const char *field)
{
    bson_iter_t it;
    return bson_iter_init_find(&it, doc, field) && BSON_ITER_HOLDS_UTF8(&it)
               ? bson_iter_utf8(&it, NULL)
               : "";
}

/* The document, and whether it is over by the server's clock; empty: there is none. A read does not
 * wait for a transaction that has changed it. */
static enum ob_status read_lease(struct ob_source *s, bson_t *out, struct ob_err *err)
{
    mongoc_collection_t *coll = ob_mongo_coll(s, s->model->lease);
    bson_t *filter = BCON_NEW("_id", BCON_UTF8("lease"));
    bson_t *opts =
        ob_mongo_bson("{\"projection\":{\"owner\":1,\"pipeline\":1,\"session\":1,\"admin\":1,"
                      "\"" OVER "\":{\"$lt\":[\"$until\",\"$$NOW\"]}}}");
    const bson_t *doc;
    mongoc_cursor_t *c = mongoc_collection_find_with_opts(coll, filter, opts, NULL);
    bson_init(out);
    if (mongoc_cursor_next(c, &doc))
        bson_concat(out, doc);
    enum ob_status st = ob_mongo_cursor(c, "the lease", err);
    mongoc_cursor_destroy(c);
    bson_destroy(filter);
    bson_destroy(opts);
    mongoc_collection_destroy(coll);
    return st;
}

static enum ob_status end_session(const struct ob_source *s, const bson_iter_t *at,
                                  struct ob_err *err)
{
    uint32_t len = 0;
    const uint8_t *data = NULL;
    bson_t name;
    if (!BSON_ITER_HOLDS_DOCUMENT(at))
        return OB_OK;
    bson_iter_document(at, &len, &data);
    return bson_init_static(&name, data, len)
               ? ob_mongo_session_kill(s->client, &name, s->session_name, err)
               : OB_OK;
}

enum ob_status ob_mongo_lease_vacant(struct ob_source *s, struct ob_err *unended,
                                     struct ob_err *err)
{
    bson_t lease;
    bson_iter_t it;
    enum ob_status st = read_lease(s, &lease, err);
    if (st == OB_OK && bson_empty(&lease)) {
        s->ready = false; /* what was dropped is made anew with the next try */
        st = ob_err_set(err, OB_AGAIN, "the lease of collection %s is gone", s->model->events);
    } else if (st == OB_OK) {
        bool ours = strcmp(text_in(&lease, "owner"), s->token) == 0;
        bool over = bson_iter_init_find(&it, &lease, OVER) && bson_iter_as_bool(&it);
        if (!ours && !over)
            st =
                ob_err_set(err, OB_AGAIN, "collection %s is worked on by %s (pipeline %s)",
                           s->model->events, text_in(&lease, "owner"), text_in(&lease, "pipeline"));
        else if (bson_iter_init_find(&it, &lease, "session") &&
                 end_session(s, &it, unended) != OB_OK && !unended->text[0])
            ob_err_set(unended, OB_DOWN, "ending a session failed");
    }
    bson_destroy(&lease);
    return st;
}

void ob_mongo_lease_unlock(struct ob_source *s)
{
    struct ob_err err = {.text = ""};
    bson_t lease;
    bson_iter_t it, list;
    enum ob_status st = ob_mongo_session_kill(s->client, s->session_name, s->session_name, &err);
    if (st == OB_OK)
        st = read_lease(s, &lease, &err);
    else
        bson_init(&lease);
    if (st == OB_OK && bson_iter_init_find(&it, &lease, "admin") && bson_iter_recurse(&it, &list))
        while (bson_iter_next(&list)) {
            enum ob_status ended = end_session(s, &list, &err);
            st = st == OB_OK ? ended : st;
        }
    if (st != OB_OK)
        ob_log(s->log, OB_LOG_WARN, "source.orphan", OB_KC("error", err.text));
    bson_destroy(&lease);
}

enum ob_status ob_mongo_lease_admin(mongoc_client_t *client, const struct mongo_conf *conf,
                                    const struct mongo_model *m, const bson_t *name, bool begins,
                                    struct ob_err *err)
{
    mongoc_collection_t *coll = mongoc_client_get_collection(client, conf->database, m->lease);
    bson_t opts, update, list, one, *filter = BCON_NEW("_id", BCON_UTF8("lease"));
    bson_iter_t it;
    bson_error_t e;
    bson_init(&update);
    BSON_APPEND_DOCUMENT_BEGIN(&update, begins ? "$push" : "$pull", &list);
    if (begins) {
        BSON_APPEND_DOCUMENT(&list, "admin", name);
    } else {
        BSON_APPEND_DOCUMENT_BEGIN(&list, "admin", &one);
        if (bson_iter_init_find(&it, name, "id"))
            bson_append_iter(&one, "id", -1, &it);
        bson_append_document_end(&list, &one);
    }
    bson_append_document_end(&update, &list);
    ob_mongo_write_opts(&opts, conf->timeout_ms, NULL);
    enum ob_status st = OB_OK;
    if (!mongoc_collection_update_one(coll, filter, &update, &opts, NULL, &e))
        st = ob_mongo_fail(err, "the lease", &e, NULL);
    bson_destroy(&update);
    bson_destroy(&opts);
    bson_destroy(filter);
    mongoc_collection_destroy(coll);
    return st;
}

/* ---- making it ---- */

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
