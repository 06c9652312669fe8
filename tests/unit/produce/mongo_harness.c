/* SPDX-License-Identifier: Apache-2.0 */
/* mongo_harness - a database of a real replica set for each test. */
#include "mongo_harness.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static unsigned made;

void bench_init(struct bench *b)
{
    char text[512];
    mongoc_uri_t *parsed;

    memset(b, 0, sizeof(*b));
    snprintf(b->name, sizeof(b->name), "t%d_%u", (int)getpid(), made++);
    server_uri(b->name, text, sizeof(text));
    b->client = mongoc_client_new(text);
    parsed = mongoc_uri_new(text);
    mongoc_uri_set_option_as_utf8(parsed, MONGOC_URI_W, "majority");
    mongoc_uri_set_option_as_utf8(parsed, MONGOC_URI_READCONCERNLEVEL, "majority");
    b->other = mongoc_client_new_from_uri(parsed);
    mongoc_uri_destroy(parsed);
    assert_non_null(b->client);
    assert_non_null(b->other);
    mongoc_client_set_error_api(b->client, MONGOC_ERROR_API_VERSION_2);
    b->session = mongoc_client_start_session(b->client, NULL, NULL);
    assert_non_null(b->session);
}

void bench_clear(struct bench *b)
{
    mongoc_database_t *db = mongoc_client_get_database(b->other, b->name);

    mongoc_client_session_destroy(b->session);
    mongoc_database_drop(db, NULL);
    mongoc_database_destroy(db);
    mongoc_client_destroy(b->client);
    mongoc_client_destroy(b->other);
}

static bson_t *parse(const char *json)
{
    bson_error_t e;
    bson_t *doc = bson_new_from_json((const uint8_t *)json, -1, &e);

    if (!doc)
        fail_msg("%s: %s", json, e.message);
    return doc;
}

void begin(struct bench *b)
{
    bson_error_t e;

    if (!mongoc_client_session_start_transaction(b->session, NULL, &e))
        fail_msg("%s", e.message);
}

void commit(struct bench *b)
{
    bson_error_t e;

    if (!mongoc_client_session_commit_transaction(b->session, NULL, &e))
        fail_msg("%s", e.message);
}

void undo(struct bench *b)
{
    bson_error_t e;

    if (!mongoc_client_session_abort_transaction(b->session, &e))
        fail_msg("%s", e.message);
}

bool put(struct bench *b, const char *collection, const char *json, bson_error_t *e, bson_t *reply)
{
    mongoc_collection_t *coll = mongoc_client_get_collection(b->client, b->name, collection);
    bson_t *doc = parse(json), opts = BSON_INITIALIZER;
    bson_error_t unseen;
    bool ok = mongoc_client_session_append(b->session, &opts, &unseen) &&
              mongoc_collection_insert_one(coll, doc, &opts, reply, e ? e : &unseen);

    bson_destroy(doc);
    bson_destroy(&opts);
    mongoc_collection_destroy(coll);
    return ok;
}

int64_t count(struct bench *b, const char *collection, const char *filter)
{
    mongoc_collection_t *coll = mongoc_client_get_collection(b->other, b->name, collection);
    bson_t *f = parse(filter);
    bson_error_t e;
    int64_t n = mongoc_collection_count_documents(coll, f, NULL, NULL, NULL, &e);

    if (n < 0)
        fail_msg("%s", e.message);
    bson_destroy(f);
    mongoc_collection_destroy(coll);
    return n;
}

static mongoc_cursor_t *nth(mongoc_collection_t *coll, const char *sort, int64_t n)
{
    char json[256];
    bson_t *opts, *all = bson_new();
    mongoc_cursor_t *c;

    snprintf(json, sizeof(json), "{\"sort\":%s,\"skip\":%lld,\"limit\":1}", sort, (long long)n);
    opts = parse(json);
    c = mongoc_collection_find_with_opts(coll, all, opts, NULL);
    bson_destroy(opts);
    bson_destroy(all);
    return c;
}

void document(struct bench *b, const char *collection, const char *sort, int64_t n, char *out,
              size_t size)
{
    mongoc_collection_t *coll = mongoc_client_get_collection(b->other, b->name, collection);
    mongoc_cursor_t *c = nth(coll, sort, n);
    const bson_t *doc;
    char *json;

    if (!mongoc_cursor_next(c, &doc))
        fail_msg("%s has no document %lld", collection, (long long)n);
    bson_t copy = BSON_INITIALIZER;
    bson_copy_to_excluding_noinit(doc, &copy, "created_at", "seq", NULL);
    json = bson_as_canonical_extended_json(&copy, NULL);
    snprintf(out, size, "%s", json);
    bson_free(json);
    bson_destroy(&copy);
    mongoc_cursor_destroy(c);
    mongoc_collection_destroy(coll);
}

void field_of(struct bench *b, const char *collection, const char *sort, int64_t n,
              const char *field, char *out, size_t size)
{
    mongoc_collection_t *coll = mongoc_client_get_collection(b->other, b->name, collection);
    mongoc_cursor_t *c = nth(coll, sort, n);
    const bson_t *doc;
    bson_iter_t it;

    if (!mongoc_cursor_next(c, &doc) || !bson_iter_init_find(&it, doc, field))
        fail_msg("%s: no document %lld with %s", collection, (long long)n, field);
    else if (BSON_ITER_HOLDS_UTF8(&it))
        snprintf(out, size, "%s", bson_iter_utf8(&it, NULL));
    else
        snprintf(out, size, "%lld", (long long)bson_iter_as_int64(&it));
    mongoc_cursor_destroy(c);
    mongoc_collection_destroy(coll);
}

bool admin(struct bench *b, const char *json)
{
    bson_t *command = parse(json);
    bson_error_t e;
    bool ok = mongoc_client_command_simple(b->other, "admin", command, NULL, NULL, &e);

    if (!ok)
        fprintf(stderr, "# %s: %s\n", json, e.message);
    bson_destroy(command);
    return ok;
}
