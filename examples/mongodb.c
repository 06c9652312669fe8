/* SPDX-License-Identifier: Apache-2.0 */
/* mongodb - an order and its events in one MongoDB transaction, tried again when another
 * transaction or a new primary was in the way.
 *
 *     cc mongodb.c $(pkg-config --cflags --libs outbox libmongoc-1.0) -o mongodb
 *     ./mongodb "mongodb://127.0.0.1/shop?replicaSet=rs0"
 *
 * With a second argument the events go into the collection of an existing system:
 *
 *     ./mongodb "mongodb://127.0.0.1/shop?replicaSet=rs0" sc
 */
#include <mongoc/mongoc.h>
#include <outbox/mongodb.h>
#include <stdio.h>

struct order {
    const char *id;
    int pieces;
    struct outbox_collector *events;
    mongoc_collection_t *orders;
};

/* The order itself, as part of the session's transaction. */
static enum outbox_status insert(mongoc_client_session_t *session, const struct order *o,
                                 struct outbox_error *err)
{
    bson_t *doc = BCON_NEW("_id", BCON_UTF8(o->id), "pieces", BCON_INT32(o->pieces));
    bson_t opts = BSON_INITIALIZER, reply = BSON_INITIALIZER;
    bson_error_t e;
    enum outbox_status st = OUTBOX_OK;

    if (!mongoc_client_session_append(session, &opts, &e) ||
        (bson_destroy(&reply), !mongoc_collection_insert_one(o->orders, doc, &opts, &reply, &e)))
        st = outbox_mongo_result(&e, &reply, err); /* what to do: retry, reject, … */
    bson_destroy(doc);
    bson_destroy(&opts);
    bson_destroy(&reply);
    return st;
}

/* Runs inside the transaction; anything but OUTBOX_OK takes back the order and its events. */
static enum outbox_status save(mongoc_client_session_t *session, void *user,
                               struct outbox_error *err)
{
    struct order *o = user;
    static const int64_t first = 1;
    char payload[64];
    struct outbox_event placed = {.type = "order.placed",
                                  .aggregate_type = "order",
                                  .aggregate_id = o->id,
                                  .entity_version = &first,
                                  .payload = payload};
    enum outbox_status st = insert(session, o, err);

    snprintf(payload, sizeof(payload), "{\"order\":\"%s\",\"pieces\":%d}", o->id, o->pieces);
    if (st == OUTBOX_OK)
        st = outbox_collector_raise(o->events, &placed, NULL, err);
    return st;
}

static int place(mongoc_client_session_t *session, const struct outbox_mongo_target *target,
                 const struct outbox_ctx *ctx, struct order *o)
{
    struct outbox_error err = {.text = ""};

    switch (outbox_mongo_transaction(session, target, ctx, o->events, NULL, save, o, &err)) {
    case OUTBOX_OK:
        printf("placed: %s\n", o->id);
        return 0;
    case OUTBOX_REJECT: /* a duplicate: neither the order nor its event is there */
        printf("refused: %s\n", o->id);
        return 0;
    default:
        fprintf(stderr, "%s: %s\n", o->id, err.text);
        return 1;
    }
}

static int work(mongoc_client_t *client, const char *database, const char *profile)
{
    struct outbox_error err = {.text = "no memory"};
    struct outbox_ctx *ctx = outbox_ctx_new();
    struct outbox_collector *events = outbox_collector_new();
    const struct outbox_mongo_options options = {.profile = profile};
    struct outbox_mongo_target *target = NULL; /* the native collection */
    mongoc_client_session_t *session = mongoc_client_start_session(client, NULL, NULL);
    mongoc_collection_t *orders = mongoc_client_get_collection(client, database, "orders");
    int failed = 1;

    if (!ctx || !events || !session ||
        (profile && outbox_mongo_target_open(&options, &target, &err) != OUTBOX_OK)) {
        fprintf(stderr, "%s\n", err.text);
        goto done;
    }
    if (outbox_ctx_set(ctx, OUTBOX_CTX_USER, "anna") != OUTBOX_OK)
        goto done;
    failed = place(session, target, ctx, &(struct order){"o-1", 3, events, orders}) ||
             place(session, target, ctx, &(struct order){"o-1", 4, events, orders}) ||
             place(session, target, ctx, &(struct order){"o-2", 2, events, orders});
done:
    mongoc_collection_destroy(orders);
    mongoc_client_session_destroy(session);
    outbox_mongo_target_close(target);
    outbox_collector_free(events);
    outbox_ctx_free(ctx);
    return failed;
}

int main(int argc, char **argv)
{
    const char *uri = argc > 1 ? argv[1] : "mongodb://127.0.0.1/shop?replicaSet=rs0";
    mongoc_client_t *client;
    const char *database;
    int failed = 1;

    mongoc_init();
    client = mongoc_client_new(uri);
    database = client ? mongoc_uri_get_database(mongoc_client_get_uri(client)) : NULL;
    if (database)
        failed = work(client, database, argc > 2 ? argv[2] : NULL);
    else
        fprintf(stderr, "this URI names no database: %s\n", uri);
    mongoc_client_destroy(client);
    mongoc_cleanup();
    return failed;
}
