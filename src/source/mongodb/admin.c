/* SPDX-License-Identifier: Apache-2.0 */
/* admin - what people do to a MongoDB source, beside a relay that may be running. */
#include "source/mongodb/admin.h"

#include <stdio.h>
#include <stdlib.h>

static void admin_close(struct ob_admin *a)
{
    if (!a)
        return;
    if (a->client)
        mongoc_client_pool_push(a->pool, a->client);
    if (a->pool)
        mongoc_client_pool_destroy(a->pool);
    ob_mongo_model_free(a->model);
    free(a->pipeline);
    free(a);
}

/* Connects nowhere yet. */
static enum ob_status admin_open(const char *pipeline, const void *conf,
                                 const struct ob_clock *clock, struct ob_admin **out,
                                 struct ob_err *err)
{
    struct ob_admin *a = calloc(1, sizeof(*a));
    if (!a)
        return ob_err_set(err, OB_DOWN, "no memory");
    a->conf = conf;
    a->clock = clock ? clock : &ob_clock_system;
    a->pipeline = strdup(pipeline);
    enum ob_status st = a->pipeline ? ob_mongo_model_new(conf, "admin", NULL, NULL, &a->model, err)
                                    : ob_err_set(err, OB_DOWN, "no memory");
    if (st == OB_OK)
        st = ob_mongo_pool(conf, &a->pool, err);
    if (st != OB_OK) {
        admin_close(a);
        return st;
    }
    a->client = mongoc_client_pool_pop(a->pool);
    *out = a;
    return OB_OK;
}

enum ob_status ob_mongo_admin_need(struct ob_admin *a, struct ob_err *err)
{
    if (a->looked)
        return OB_OK;
    enum ob_status st = ob_mongo_server(a->client, a->conf->database, err);
    a->looked = st == OB_OK;
    return st;
}

mongoc_collection_t *ob_mongo_admin_coll(const struct ob_admin *a, const char *name)
{
    return mongoc_client_get_collection(a->client, a->conf->database, name);
}

enum ob_status ob_mongo_cursor_end(mongoc_cursor_t *c, const char *what, struct ob_err *err)
{
    bson_error_t e;
    enum ob_status st = OB_OK;
    if (mongoc_cursor_error(c, &e))
        st = ob_mongo_fail(err, what, &e, NULL);
    mongoc_cursor_destroy(c);
    return st;
}

/* ---- status ---- */

static void copy_text(const bson_t *doc, const char *field, char *out, size_t size)
{
    bson_iter_t it;
    if (bson_iter_init_find(&it, doc, field) && BSON_ITER_HOLDS_UTF8(&it))
        snprintf(out, size, "%s", bson_iter_utf8(&it, NULL));
}

static bool flag(const bson_t *doc, const char *field)
{
    bson_iter_t it;
    return bson_iter_init_find(&it, doc, field) && bson_iter_as_bool(&it);
}

/* The worker, by the server's clock. */
static enum ob_status worker(struct ob_admin *a, struct ob_shard_status *out, struct ob_err *err)
{
    mongoc_collection_t *coll = ob_mongo_admin_coll(a, a->model->lease);
    bson_t *pipe = ob_mongo_bson(
        "{\"pipeline\":[{\"$match\":{\"_id\":\"lease\"}},{\"$set\":{\"live\":{\"$gt\":[\"$until\","
        "\"$$NOW\"]},\"age\":{\"$cond\":[{\"$eq\":[{\"$type\":\"$beat_at\"},\"date\"]},"
        "{\"$subtract\":[\"$$NOW\",\"$beat_at\"]},-1]}}}]}");
    const bson_t *doc;
    if (!pipe) {
        mongoc_collection_destroy(coll);
        return ob_err_set(err, OB_DOWN, "no memory");
    }
    mongoc_cursor_t *c = mongoc_collection_aggregate(coll, MONGOC_QUERY_NONE, pipe, NULL, NULL);
    if (mongoc_cursor_next(c, &doc)) {
        copy_text(doc, "owner", out->owner, sizeof(out->owner));
        if (flag(doc, "live"))
            copy_text(doc, "state", out->state, sizeof(out->state));
        out->beat_age_ms = ob_mongo_i64(doc, "age", -1);
        out->published = ob_mongo_i64(doc, "published", 0);
        out->failed = ob_mongo_i64(doc, "failed", 0);
        out->in_flight = flag(doc, "live") ? ob_mongo_i64(doc, "in_flight", 0) : 0;
        out->source.paused = flag(doc, "paused");
    }
    enum ob_status st = ob_mongo_cursor_end(c, "status", err);
    bson_destroy(pipe);
    mongoc_collection_destroy(coll);
    return st;
}

static enum ob_status admin_status(struct ob_admin *a, struct ob_shard_status *out, size_t max,
                                   size_t *n, struct ob_err *err)
{
    *n = 0;
    if (max == 0)
        return OB_OK;
    *out = (struct ob_shard_status){.shards = 1, .beat_age_ms = -1, .state = "stopped"};
    enum ob_status st = ob_mongo_admin_need(a, err);
    if (st == OB_OK)
        st = ob_mongo_numbers(a->client, a->conf->database, a->model, a->clock, &out->source, err);
    if (st == OB_OK)
        st = worker(a, out, err);
    *n = st == OB_OK;
    return st;
}

/* ---- pause ---- */

/* The relay sees it with its next beat. A lease that nobody had yet is made as the relay does. */
static enum ob_status admin_pause(struct ob_admin *a, bool paused, struct ob_err *err)
{
    mongoc_collection_t *coll = ob_mongo_admin_coll(a, a->model->lease);
    bson_t opts, *filter = BCON_NEW("_id", BCON_UTF8("lease"));
    bson_t *update = BCON_NEW("$set", "{", "paused", BCON_BOOL(paused), "}");
    bson_error_t e;
    enum ob_status st = ob_mongo_admin_need(a, err);
    if (st == OB_OK)
        st = ob_mongo_lease_make(a->client, a->conf->database, a->model, a->conf->timeout_ms, err);
    ob_mongo_write_opts(&opts, a->conf->timeout_ms, NULL);
    if (st == OB_OK && !mongoc_collection_update_one(coll, filter, update, &opts, NULL, &e))
        st = ob_mongo_fail(err, paused ? "pause" : "resume", &e, NULL);
    bson_destroy(&opts);
    bson_destroy(filter);
    bson_destroy(update);
    mongoc_collection_destroy(coll);
    return st;
}

const struct ob_source_admin ob_mongo_admin = {
    .open = admin_open,
    .close = admin_close,
    .schema = ob_mongo_schema,
    .schema_print = ob_mongo_schema_print,
    .profile_print = ob_mongo_profile_print,
    .profile_apply = ob_mongo_profile_apply,
    .check = ob_mongo_check,
    .emit = ob_mongo_admin_emit,
    .events = ob_mongo_events,
    .dead_list = ob_mongo_dead_list,
    .dead_do = ob_mongo_dead_do,
    .dlt_done = ob_mongo_dlt_done,
    .pause = admin_pause,
    .status = admin_status,
};
