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

static enum ob_status oldest(mongoc_client_t *client, const char *database,
                             const struct mongo_model *m, const struct ob_clock *clock,
                             int64_t *lag_ms, struct ob_err *err)
{
    mongoc_collection_t *coll = mongoc_client_get_collection(client, database, m->events);
    bson_t opts;
    const bson_t *doc;
    bson_error_t e;
    bson_iter_t it;
    enum ob_status st = OB_OK;
    bson_init(&opts);
    BSON_APPEND_DOCUMENT(&opts, "sort", m->sort_page);
    BSON_APPEND_INT64(&opts, "limit", 1);
    BCON_APPEND(&opts, "projection", "{", m->f[OB_MAP_CREATED], BCON_INT32(1), "}");
    mongoc_cursor_t *c = mongoc_collection_find_with_opts(coll, m->q_pending, &opts, NULL);
    *lag_ms = 0;
    if (mongoc_cursor_next(c, &doc)) {
        if (bson_iter_init_find(&it, doc, m->f[OB_MAP_CREATED]) && BSON_ITER_HOLDS_DATE_TIME(&it))
            *lag_ms = ob_clock_wall_us(clock) / 1000 - bson_iter_date_time(&it);
    } else if (mongoc_cursor_error(c, &e)) {
        st = ob_mongo_fail(err, "status", &e, NULL);
    }
    mongoc_cursor_destroy(c);
    bson_destroy(&opts);
    mongoc_collection_destroy(coll);
    return st;
}

enum ob_status ob_mongo_numbers(mongoc_client_t *client, const char *database,
                                const struct mongo_model *m, const struct ob_clock *clock,
                                struct ob_source_status *out, struct ob_err *err)
{
    bson_t none = BSON_INITIALIZER, *dead = BCON_NEW("state", "dead"),
           *open = ob_mongo_bson("{\"%s\":{\"$in\":[\"%s\",\"%s\"]}}", m->f[OB_MAP_STATUS],
                                 m->pending, m->claimed);
    int64_t held = 0;
    enum ob_status st = open ? count(client, database, m->events, open, &out->pending, err)
                             : ob_err_set(err, OB_DOWN, "no memory");
    if (st == OB_OK)
        st = oldest(client, database, m, clock, &out->lag_ms, err);
    if (st == OB_OK)
        st = count(client, database, m->parked, &none, &out->parked, err);
    if (st == OB_OK)
        st = count(client, database, m->dead, dead, &out->dead, err);
    if (st == OB_OK)
        st = count(client, database, m->held, &none, &held, err);
    out->held = held > 0;
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
