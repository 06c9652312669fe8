/* SPDX-License-Identifier: Apache-2.0 */
/* status - counts for `status` and the metrics. All of one answer are read in one snapshot, so that
 * an event that becomes parked or claimed meanwhile is counted once. Counting stops at COUNT_MAX.
 */
#include "source/mongodb/mongo.h"

#define COUNT_MAX 10001
#define TRIES 3 /* in a snapshot: one is refused right after a collection or an index was made */

struct reading {
    mongoc_client_t *client;
    const char *database;
    const struct mongo_model *m;
    mongoc_client_session_t *session; /* of the snapshot; NULL: each query by itself */
};

static mongoc_collection_t *open_coll(const struct reading *r, const char *name)
{
    return mongoc_client_get_collection(r->client, r->database, name);
}

static void append_session(const struct reading *r, bson_t *opts)
{
    bson_error_t e;
    if (r->session && !mongoc_client_session_append(r->session, opts, &e))
        bson_reinit(opts);
}

static enum ob_status count(const struct reading *r, const char *name, const bson_t *filter,
                            int64_t *out, struct ob_err *err)
{
    mongoc_collection_t *coll = open_coll(r, name);
    bson_t *opts = BCON_NEW("limit", BCON_INT64(COUNT_MAX));
    bson_error_t e;
    append_session(r, opts);
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
static enum ob_status first_of(const struct reading *r, const bson_t *filter, int64_t *created_ms,
                               struct ob_err *err)
{
    const char *created = r->m->f[OB_MAP_CREATED];
    mongoc_collection_t *coll = open_coll(r, r->m->events);
    bson_t opts;
    const bson_t *doc;
    bson_iter_t it, at;
    bson_init(&opts);
    append_session(r, &opts);
    BSON_APPEND_DOCUMENT(&opts, "sort", r->m->sort_page);
    BSON_APPEND_INT64(&opts, "limit", 1);
    BCON_APPEND(&opts, "projection", "{", created, BCON_INT32(1), "}");
    mongoc_cursor_t *c = mongoc_collection_find_with_opts(coll, filter, &opts, NULL);
    if (mongoc_cursor_next(c, &doc) && bson_iter_init(&it, doc) &&
        bson_iter_find_descendant(&it, created, &at) && BSON_ITER_HOLDS_DATE_TIME(&at) &&
        bson_iter_date_time(&at) < *created_ms)
        *created_ms = bson_iter_date_time(&at);
    enum ob_status st = ob_mongo_cursor(c, "status", err);
    mongoc_cursor_destroy(c);
    bson_destroy(&opts);
    mongoc_collection_destroy(coll);
    return st;
}

/* The same of the parked one that has waited longest. */
static enum ob_status first_parked(const struct reading *r, int64_t *created_ms, struct ob_err *err)
{
    mongoc_collection_t *coll = open_coll(r, r->m->parked);
    bson_t filter = BSON_INITIALIZER, none = BSON_INITIALIZER, opts = BSON_INITIALIZER;
    const bson_t *doc;
    bson_iter_t it;
    append_session(r, &opts);
    BCON_APPEND(&opts, "sort", "{", "_id", BCON_INT32(1), "}", "limit", BCON_INT64(1));
    mongoc_cursor_t *c = mongoc_collection_find_with_opts(coll, &none, &opts, NULL);
    if (mongoc_cursor_next(c, &doc) && bson_iter_init_find(&it, doc, "ref"))
        bson_append_iter(&filter, "_id", -1, &it);
    enum ob_status st = ob_mongo_cursor(c, "status", err);
    if (st == OB_OK && !bson_empty(&filter))
        st = first_of(r, &filter, created_ms, err);
    mongoc_cursor_destroy(c);
    bson_destroy(&filter);
    bson_destroy(&opts);
    mongoc_collection_destroy(coll);
    return st;
}

/* Age of the oldest that is not settled: pending, in flight or parked. */
static enum ob_status oldest(const struct reading *r, const struct ob_clock *clock, int64_t *lag_ms,
                             struct ob_err *err)
{
    bson_t *in_flight = BCON_NEW(r->m->f[OB_MAP_STATUS], BCON_UTF8(r->m->claimed));
    int64_t created = INT64_MAX, now = ob_clock_wall_us(clock) / 1000;
    enum ob_status st = first_of(r, r->m->q_pending, &created, err);
    if (st == OB_OK)
        st = first_of(r, in_flight, &created, err);
    if (st == OB_OK)
        st = first_parked(r, &created, err);
    if (st == OB_OK)
        *lag_ms = created < now ? now - created : 0;
    bson_destroy(in_flight);
    return st;
}

/* Parked events whose document is pending or claimed: those without an attempt, and those that are
 * being sent again. They are counted as parked and not as pending. */
static enum ob_status count_both(const struct reading *r, const bson_t *open, int64_t *out,
                                 struct ob_err *err)
{
    mongoc_collection_t *coll = open_coll(r, r->m->parked);
    bson_t opts = BSON_INITIALIZER;
    const bson_t *doc;
    bson_t *pipe =
        BCON_NEW("pipeline", "[", "{", "$limit", BCON_INT32(COUNT_MAX), "}", "{", "$lookup", "{",
                 "from", BCON_UTF8(r->m->events), "localField", "ref", "foreignField", "_id",
                 "pipeline", "[", "{", "$match", BCON_DOCUMENT(open), "}", "{", "$project", "{",
                 "_id", BCON_INT32(1), "}", "}", "]", "as", "open", "}", "}", "{", "$match", "{",
                 "open", "{", "$ne", "[", "]", "}", "}", "}", "{", "$count", "n", "}", "]");
    *out = 0;
    append_session(r, &opts);
    mongoc_cursor_t *c = mongoc_collection_aggregate(coll, MONGOC_QUERY_NONE, pipe, &opts, NULL);
    if (mongoc_cursor_next(c, &doc))
        *out = ob_mongo_i64(doc, "n", 0);
    enum ob_status st = ob_mongo_cursor(c, "status", err);
    mongoc_cursor_destroy(c);
    bson_destroy(pipe);
    bson_destroy(&opts);
    mongoc_collection_destroy(coll);
    return st;
}

static enum ob_status read_numbers(const struct reading *r, const struct ob_clock *clock,
                                   struct ob_source_status *out, struct ob_err *err)
{
    const struct mongo_model *m = r->m;
    bson_t none = BSON_INITIALIZER, *dead = BCON_NEW("state", "dead"),
           *open = BCON_NEW(m->f[OB_MAP_STATUS], "{", "$in", "[", BCON_UTF8(m->pending),
                            BCON_UTF8(m->claimed), "]", "}");
    int64_t held = 0, both = 0;
    enum ob_status st = count(r, m->events, open, &out->pending, err);
    if (st == OB_OK)
        st = oldest(r, clock, &out->lag_ms, err);
    if (st == OB_OK)
        st = count(r, m->parked, &none, &out->parked, err);
    if (st == OB_OK && out->parked > 0)
        st = count_both(r, open, &both, err);
    if (st == OB_OK)
        st = count(r, m->dead, dead, &out->dead, err);
    if (st == OB_OK)
        st = count(r, m->held, &none, &held, err);
    out->held = held > 0;
    out->pending = out->pending > both ? out->pending - both : 0;
    bson_destroy(dead);
    bson_destroy(open);
    return st;
}

enum ob_status ob_mongo_numbers(mongoc_client_t *client, const char *database,
                                const struct mongo_model *m, const struct ob_clock *clock,
                                struct ob_source_status *out, struct ob_err *err)
{
    enum ob_status st = OB_RETRY;
    for (int i = 0; i <= TRIES && st != OB_OK; i++) {
        struct reading r = {client, database, m, NULL};
        mongoc_session_opt_t *opts = mongoc_session_opts_new();
        bson_error_t e;
        mongoc_session_opts_set_snapshot(opts, true);
        if (i < TRIES)
            r.session = mongoc_client_start_session(client, opts, &e);
        mongoc_session_opts_destroy(opts);
        st = read_numbers(&r, clock, out, err);
        if (r.session)
            mongoc_client_session_destroy(r.session);
        if (st == OB_DOWN || st == OB_FATAL)
            break;
    }
    return st;
}

enum ob_status ob_mongo_status(struct ob_source *s, struct ob_source_status *out,
                               struct ob_err *err)
{
    *out = (struct ob_source_status){.pending = -1, .lag_ms = -1, .parked = -1, .dead = -1};
    return ob_mongo_numbers(s->client, s->conf->database, s->model, s->clock, out, err);
}
