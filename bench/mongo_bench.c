/* SPDX-License-Identifier: Apache-2.0 */
/* mongo_bench - what the MongoDB source is measured against: the same statements by libmongoc
 * alone.
 *
 *     mongo-bench drain URI DATABASE    claims and marks everything pending; prints events and
 * seconds mongo-bench watch URI DATABASE    prints the event id of every insert that its change
 * stream brings */
#include <mongoc/mongoc.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define PAGE 1000

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static bson_t *json(const char *text)
{
    bson_error_t e;
    bson_t *b = bson_new_from_json((const uint8_t *)text, -1, &e);
    if (!b)
        fprintf(stderr, "%s: %s\n", text, e.message);
    return b;
}

/* {_id: {$in: ids}, …more} */
static void by_ids(bson_t *filter, const bson_t *ids, const char *more)
{
    bson_t in, *rest = json(more);
    bson_init(filter);
    BSON_APPEND_DOCUMENT_BEGIN(filter, "_id", &in);
    BSON_APPEND_ARRAY(&in, "$in", ids);
    bson_append_document_end(filter, &in);
    bson_concat(filter, rest);
    bson_destroy(rest);
}

static bool update(mongoc_collection_t *coll, const bson_t *ids, const char *more,
                   const char *pipeline)
{
    bson_t filter, *set = json(pipeline), *opts = json("{\"writeConcern\":{\"w\":\"majority\"}}");
    bson_error_t e;
    by_ids(&filter, ids, more);
    bool ok = mongoc_collection_update_many(coll, &filter, set, opts, NULL, &e);
    if (!ok)
        fprintf(stderr, "update: %s\n", e.message);
    bson_destroy(&filter);
    bson_destroy(set);
    bson_destroy(opts);
    return ok;
}

static size_t find_page(mongoc_collection_t *coll, bson_t *ids)
{
    bson_t *filter = json("{\"status\":\"pending\"}"),
           *opts = json("{\"sort\":{\"created_at\":1},\"limit\":1000,\"batchSize\":1000,"
                        "\"projection\":{\"_id\":1},\"readConcern\":{\"level\":\"majority\"}}");
    const bson_t *doc;
    bson_iter_t it;
    size_t n = 0;
    mongoc_cursor_t *c = mongoc_collection_find_with_opts(coll, filter, opts, NULL);
    bson_init(ids);
    while (mongoc_cursor_next(c, &doc))
        if (bson_iter_init_find(&it, doc, "_id")) {
            bson_append_iter(ids, "0", 1, &it);
            n++;
        }
    mongoc_cursor_destroy(c);
    bson_destroy(filter);
    bson_destroy(opts);
    return n;
}

static size_t fetch(mongoc_collection_t *coll, const bson_t *ids)
{
    bson_t filter, *opts = json("{\"batchSize\":1000,\"readConcern\":{\"level\":\"majority\"}}");
    const bson_t *doc;
    size_t n = 0;
    by_ids(&filter, ids, "{\"status\":\"processing\",\"locked_by\":\"bench\"}");
    mongoc_cursor_t *c = mongoc_collection_find_with_opts(coll, &filter, opts, NULL);
    while (mongoc_cursor_next(c, &doc))
        n++;
    mongoc_cursor_destroy(c);
    bson_destroy(&filter);
    bson_destroy(opts);
    return n;
}

static int drain(mongoc_collection_t *coll)
{
    size_t total = 0, n;
    double began = now();
    bson_t ids;
    for (bool ok = true; ok && (n = find_page(coll, &ids)) > 0; bson_destroy(&ids)) {
        ok =
            update(coll, &ids, "{\"status\":\"pending\"}",
                   "[{\"$set\":{\"status\":\"processing\",\"locked_by\":\"bench\",\"locked_until\":"
                   "{\"$add\":[\"$$NOW\",60000]},\"processing_started_at\":\"$$NOW\"}}]");
        total += fetch(coll, &ids);
        ok =
            ok && update(coll, &ids, "{\"status\":\"processing\",\"locked_by\":\"bench\"}",
                         "[{\"$set\":{\"status\":\"published\",\"locked_by\":null,\"locked_until\":"
                         "null,\"published_at\":\"$$NOW\"}}]");
    }
    printf("%zu %.6f\n", total, now() - began);
    return 0;
}

static int watch(mongoc_collection_t *coll)
{
    bson_t *pipeline = json("{\"pipeline\":[{\"$match\":{\"operationType\":\"insert\"}}]}"),
           *opts = json("{\"maxAwaitTimeMS\":500}");
    const bson_t *doc;
    bson_error_t e;
    bson_iter_t it, id;
    mongoc_change_stream_t *cs = mongoc_collection_watch(coll, pipeline, opts);
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (bool said = false;; said = true) {
        bool got = mongoc_change_stream_next(cs, &doc);
        if (!got && mongoc_change_stream_error_document(cs, &e, NULL)) {
            fprintf(stderr, "%s\n", e.message);
            return 1;
        }
        if (!said)
            puts("ready");
        if (got && bson_iter_init(&it, doc) &&
            bson_iter_find_descendant(&it, "fullDocument.event_id", &id))
            puts(bson_iter_utf8(&id, NULL));
    }
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 64;
    mongoc_init();
    mongoc_client_t *client = mongoc_client_new(argv[2]);
    if (!client)
        return 1;
    mongoc_collection_t *coll = mongoc_client_get_collection(client, argv[3], "outbox");
    int code = strcmp(argv[1], "drain") == 0 ? drain(coll) : watch(coll);
    mongoc_collection_destroy(coll);
    mongoc_client_destroy(client);
    mongoc_cleanup();
    return code;
}
