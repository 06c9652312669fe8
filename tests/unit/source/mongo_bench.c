/* SPDX-License-Identifier: Apache-2.0 */
/* mongo_bench - a database of a real replica set with the native collections for each test, a
 * source on it, a clock that can be moved. What is recorded is in mongo_answers.c. */
#include "mongo_bench.h"

#include "../produce/mongo_server.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static unsigned made;
static char spare[32]; /* a database that a test has left empty, with its collections */

static int64_t now_of(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static int64_t mono(void *user)
{
    const struct fake *f = user;
    return now_of(CLOCK_MONOTONIC) + f->ahead_us;
}

static int64_t wall(void *user)
{
    (void)user;
    return now_of(CLOCK_REALTIME);
}

bool server_missing(void)
{
    server_start("");
    return false; /* else it has ended the program */
}

/* ---- databases ---- */

static void connect_app(struct bench *b)
{
    mongoc_uri_t *uri = mongoc_uri_new(b->on->uri);
    mongoc_uri_set_option_as_utf8(uri, MONGOC_URI_W, "majority");
    mongoc_uri_set_option_as_utf8(uri, MONGOC_URI_READCONCERNLEVEL, "majority");
    b->app = mongoc_client_new_from_uri(uri);
    mongoc_uri_destroy(uri);
    assert_non_null(b->app);
    mongoc_client_set_error_api(b->app, MONGOC_ERROR_API_VERSION_2);
}

static void apply_schema(struct bench *b)
{
    struct ob_buf out;
    struct ob_err err;
    unsigned changed = 0;
    struct ob_admin *a = open_admin(b);
    ob_buf_init(&out, 0);
    if (ob_mongo_admin.schema(a, false, &out, &changed, &err) != OB_OK)
        fail_msg("%s", err.text);
    ob_buf_clear(&out);
    ob_mongo_admin.close(a);
}

void bench_init(struct bench *b)
{
    bool made_before = spare[0];
    struct ground *on = calloc(1, sizeof(*on));
    assert_non_null(on);
    *b = (struct bench){.on = on};
    if (made_before)
        memcpy(on->name, spare, sizeof(spare));
    else
        snprintf(on->name, sizeof(on->name), "t%d_%u", (int)getpid(), made++);
    spare[0] = '\0';
    server_uri(on->name, on->uri, sizeof(on->uri));
    on->fake.clock = (struct ob_clock){.mono_us = mono, .wall_us = wall, .user = &on->fake};
    on->conf = (struct mongo_conf){.uri = on->uri,
                                   .database = on->name,
                                   .collection = "outbox_events",
                                   .worker_id = "",
                                   .poll_max_ms = 20,
                                   .timeout_ms = 10000,
                                   .lease_ms = 15000,
                                   .page = 1000};
    connect_app(b);
    if (!made_before)
        apply_schema(b);
}

/* A test that fails does not come here: the next one has a new database. */
void bench_clear(struct bench *b)
{
    mongoc_database_t *db = mongoc_client_get_database(b->app, b->on->name);
    bson_t all = BSON_INITIALIZER;
    bson_error_t e;
    char **names = mongoc_database_get_collection_names_with_opts(db, NULL, &e);
    for (size_t i = 0; names && names[i]; i++) {
        mongoc_collection_t *coll = mongoc_database_get_collection(db, names[i]);
        if (!mongoc_collection_delete_many(coll, &all, NULL, NULL, &e))
            fail_msg("%s", e.message);
        mongoc_collection_destroy(coll);
    }
    bson_strfreev(names);
    mongoc_database_destroy(db);
    mongoc_client_destroy(b->app);
    memcpy(spare, b->on->name, sizeof(spare));
    free(b->on);
}

/* ---- events ---- */

static bson_t *document(int number, const char *type, const char *key, int64_t created_ms)
{
    bson_t *d = bson_new();
    char id[64];
    snprintf(id, sizeof(id), "00000000-0000-7000-8000-%012d", number);
    BSON_APPEND_UTF8(d, "_id", id);
    BSON_APPEND_TIMESTAMP(d, "seq", 0, 0);
    BSON_APPEND_UTF8(d, "type", type);
    if (key) {
        BSON_APPEND_UTF8(d, "aggregate_type", "order");
        BSON_APPEND_UTF8(d, "aggregate_id", key);
        BSON_APPEND_UTF8(d, "key", key);
    }
    BSON_APPEND_UTF8(d, "status", "pending");
    BSON_APPEND_DATE_TIME(d, "created_at", created_ms);
    return d;
}

/* In one transaction. They are destroyed. */
static void insert(struct bench *b, bson_t **docs, size_t n)
{
    mongoc_client_session_t *session = mongoc_client_start_session(b->app, NULL, NULL);
    mongoc_collection_t *coll = mongoc_client_get_collection(b->app, b->on->name, "outbox_events");
    bson_t opts = BSON_INITIALIZER;
    bson_error_t e;
    assert_non_null(session);
    if (!mongoc_client_session_append(session, &opts, &e) ||
        !mongoc_client_session_start_transaction(session, NULL, &e) ||
        !mongoc_collection_insert_many(coll, (const bson_t **)(uintptr_t)docs, n, &opts, NULL,
                                       &e) ||
        !mongoc_client_session_commit_transaction(session, NULL, &e))
        fail_msg("%s", e.message);
    for (size_t i = 0; i < n; i++)
        bson_destroy(docs[i]);
    bson_destroy(&opts);
    mongoc_collection_destroy(coll);
    mongoc_client_session_destroy(session);
}

void emit(struct bench *b, size_t n, size_t keys)
{
    bson_t **docs = calloc(n, sizeof(bson_t *));
    assert_non_null(docs);
    for (size_t i = 0; i < n; i++) {
        char key[32];
        snprintf(key, sizeof(key), "k%zu", i % keys);
        docs[i] = document(++b->emitted, "order.placed", key, wall(NULL) / 1000);
        BCON_APPEND(docs[i], "payload", "{", "i", BCON_INT32((int32_t)i), "}");
    }
    insert(b, docs, n);
    free(docs);
}

void emit_numbered(struct bench *b, int i)
{
    char type[16], key[16], tenant[16], payload[16];
    snprintf(type, sizeof(type), "t%d", i);
    snprintf(key, sizeof(key), "k%d", i);
    snprintf(tenant, sizeof(tenant), "ten%d", i);
    snprintf(payload, sizeof(payload), "\"p%d\"", i);
    bson_t *d = document(i, type, key, INT64_C(1000) * i);
    BSON_APPEND_UTF8(d, "tenant", tenant);
    BSON_APPEND_UTF8(d, "payload", payload);
    b->emitted = i;
    insert(b, &d, 1);
}

void emit_large(struct bench *b)
{
    const uint32_t n = 9000000;
    uint8_t *bytes = calloc(1, n);
    assert_non_null(bytes);
    bson_t *d = document(++b->emitted, "t", NULL, wall(NULL) / 1000);
    BSON_APPEND_BINARY(d, "payload", BSON_SUBTYPE_BINARY, bytes, n);
    free(bytes);
    insert(b, &d, 1);
}

/* ---- sources ---- */

struct ob_admin *open_admin(struct bench *b)
{
    struct ob_admin *a = NULL;
    struct ob_err err;
    assert_int_equal(ob_mongo_admin.open(PIPE, &b->on->conf, &b->on->fake.clock, &a, &err), OB_OK);
    return a;
}

enum ob_status try_shard(struct bench *b, unsigned shard, unsigned shards, const char *owner,
                         struct ob_source **out, struct ob_err *err)
{
    struct ob_source_env env = {.pipeline = PIPE,
                                .shard = shard,
                                .shards = shards,
                                .owner = owner,
                                .clock = &b->on->fake.clock};
    struct ob_source_caps caps;
    return ob_source_mongodb.open(&env, &b->on->conf, out, &caps, err);
}

void move_clock(struct bench *b, int64_t us)
{
    b->on->fake.ahead_us += us;
}

void look_now(struct ob_source *s)
{
    ob_mongo_reader_kick(s->reader, NULL);
}

bool is_idle(struct ob_source *s)
{
    return !ob_source_mongodb.looking(s);
}

uint64_t number_of(const struct ob_event *ev)
{
    char digits[13] = "";
    if (ev->id.n == 36)
        memcpy(digits, ev->id.p + 24, 12);
    return strtoull(digits, NULL, 10);
}
