/* SPDX-License-Identifier: Apache-2.0 */
/* status - numbers for people; counts stop where they get expensive. */
#include "source/mongodb/mongo.h"

#define COUNT_MAX 10001

static enum ob_status count(mongoc_client_t *client, const char *database, const char *name,
                            const bson_t *filter, int64_t *out, struct ob_err *err)
{
    mongoc_collection_t *coll = mongoc_client_get_collection(client, database, name);
    bson_t *opts = BCON_NEW("limit", BCON_INT64(COUNT_MAX));
    bson_error_t e;
    int64_t n = mongoc_collection_count_documents(coll, filter, opts, NULL, NULL, &e);
    bson_destroy(opts);
    mongoc_collection_destroy(coll);
    if (n < 0)
        return ob_mongo_fail(err, "status", &e, NULL);
    *out = n;
    return OB_OK;
}

/* The first of these documents that is found, as it was created; *created_ms stays where there is
 * none, or an older one was found before. */
static enum ob_status first_of(mongoc_client_t *client, const char *database,
                               const struct mongo_model *m, const bson_t *filter,
                               int64_t *created_ms, struct ob_err *err)
{
    mongoc_collection_t *coll = mongoc_client_get_collection(client, database, m->events);
    bson_t opts;
    const bson_t *doc;
    bson_iter_t it, at;
    bson_init(&opts);
    BSON_APPEND_DOCUMENT(&opts, "sort", m->sort_page);
    BSON_APPEND_INT64(&opts, "limit", 1);
    BCON_APPEND(&opts, "projection", "{", m->f[OB_MAP_CREATED], BCON_INT32(1), "}");
    mongoc_cursor_t *c = mongoc_collection_find_with_opts(coll, filter, &opts, NULL);
    if (mongoc_cursor_next(c, &doc) && bson_iter_init(&it, doc) &&
        bson_iter_find_descendant(&it, m->f[OB_MAP_CREATED], &at) &&
        BSON_ITER_HOLDS_DATE_TIME(&at) && bson_iter_date_time(&at) < *created_ms)
        *created_ms = bson_iter_date_time(&at);
    enum ob_status st = ob_mongo_cursor(c, "status", err);
    mongoc_cursor_destroy(c);
    bson_destroy(&opts);
    mongoc_collection_destroy(coll);
    return st;
}

/* The same of the parked one that has waited longest. */
static enum ob_status first_parked(mongoc_client_t *client, const char *database,
                                   const struct mongo_model *m, int64_t *created_ms,
                                   struct ob_err *err)
{
    mongoc_collection_t *coll = mongoc_client_get_collection(client, database, m->parked);
    bson_t filter = BSON_INITIALIZER, none = BSON_INITIALIZER,
           *opts = BCON_NEW("sort", "{", "_id", BCON_INT32(1), "}", "limit", BCON_INT64(1));
    const bson_t *doc;
    bson_iter_t it;
    mongoc_cursor_t *c = mongoc_collection_find_with_opts(coll, &none, opts, NULL);
    if (mongoc_cursor_next(c, &doc) && bson_iter_init_find(&it, doc, "ref"))
        bson_append_iter(&filter, "_id", -1, &it);
    enum ob_status st = ob_mongo_cursor(c, "status", err);
    if (st == OB_OK && !bson_empty(&filter))
        st = first_of(client, database, m, &filter, created_ms, err);
    mongoc_cursor_destroy(c);
    bson_destroy(&filter);
    bson_destroy(opts);
    mongoc_collection_destroy(coll);
    return st;
}

/* Age of the oldest that is not settled: it waits, is in flight or stands among the parked. */
static enum ob_status oldest(mongoc_client_t *client, const char *database,
                             const struct mongo_model *m, const struct ob_clock *clock,
                             int64_t *lag_ms, struct ob_err *err)
{
    bson_t *in_flight = BCON_NEW(m->f[OB_MAP_STATUS], BCON_UTF8(m->claimed));
    int64_t created = INT64_MAX, now = ob_clock_wall_us(clock) / 1000;
    enum ob_status st = first_of(client, database, m, m->q_pending, &created, err);
    if (st == OB_OK)
        st = first_of(client, database, m, in_flight, &created, err);
    if (st == OB_OK)
        st = first_parked(client, database, m, &created, err);
    if (st == OB_OK)
        *lag_ms = created < now ? now - created : 0;
    bson_destroy(in_flight);
    return st;
}

/* Parked ones whose document says pending: no attempt of them was spent. */
static enum ob_status count_untried(mongoc_client_t *client, const char *database,
                                    const struct mongo_model *m, int64_t *out, struct ob_err *err)
{
    mongoc_collection_t *coll = mongoc_client_get_collection(client, database, m->parked);
    bson_t *pipe = ob_mongo_bson("{\"pipeline\":[{\"$limit\":%d},{\"$match\":{\"attempts\":0}},"
                                 "{\"$count\":\"n\"}]}",
                                 COUNT_MAX);
    const bson_t *doc;
    enum ob_status st = pipe ? OB_OK : ob_err_set(err, OB_DOWN, "no memory");
    *out = 0;
    if (pipe) {
        mongoc_cursor_t *c = mongoc_collection_aggregate(coll, MONGOC_QUERY_NONE, pipe, NULL, NULL);
        if (mongoc_cursor_next(c, &doc))
            *out = ob_mongo_i64(doc, "n", 0);
        st = ob_mongo_cursor(c, "status", err);
        mongoc_cursor_destroy(c);
    }
    bson_destroy(pipe);
    mongoc_collection_destroy(coll);
    return st;
}

enum ob_status ob_mongo_numbers(mongoc_client_t *client, const char *database,
                                const struct mongo_model *m, const struct ob_clock *clock,
                                struct ob_source_status *out, struct ob_err *err)
{
    bson_t none = BSON_INITIALIZER, *dead = BCON_NEW("state", "dead"),
           *open = BCON_NEW(m->f[OB_MAP_STATUS], "{", "$in", "[", BCON_UTF8(m->pending),
                            BCON_UTF8(m->claimed), "]", "}");
    int64_t held = 0, untried = 0;
    enum ob_status st = count(client, database, m->events, open, &out->pending, err);
    if (st == OB_OK)
        st = oldest(client, database, m, clock, &out->lag_ms, err);
    if (st == OB_OK)
        st = count(client, database, m->parked, &none, &out->parked, err);
    if (st == OB_OK && out->parked > 0)
        st = count_untried(client, database, m, &untried, err);
    if (st == OB_OK)
        st = count(client, database, m->dead, dead, &out->dead, err);
    if (st == OB_OK)
        st = count(client, database, m->held, &none, &held, err);
    out->held = held > 0;
    out->pending = out->pending > untried ? out->pending - untried : 0; /* each is counted once */
    bson_destroy(dead);
    bson_destroy(open);
    return st;
}

enum ob_status ob_mongo_status(struct ob_source *s, struct ob_source_status *out,
                               struct ob_err *err)
{
    *out = (struct ob_source_status){.pending = -1, .lag_ms = -1, .parked = -1, .dead = -1};
    return ob_mongo_numbers(s->client, s->conf->database, s->model, s->clock, out, err);
}
