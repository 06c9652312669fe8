/* SPDX-License-Identifier: Apache-2.0 */
/* mongodb_test - the public calls that write events with libmongoc: inside a transaction, or not at
 * all. */
#include "mongo_harness.h"
#include "outbox/mongodb.h"

#include <stdio.h>
#include <stdlib.h>

static int setup(void **state)
{
    static struct bench b;

    bench_init(&b);
    *state = &b;
    return 0;
}

static int teardown(void **state)
{
    bench_clear(*state);
    return 0;
}

#define EVENTS "outbox_events"
#define BY_SEQ "{\"seq\":1}"

static const struct outbox_event placed = {.type = "order.placed",
                                           .aggregate_type = "order",
                                           .aggregate_id = "42",
                                           .payload = "{\"total\" : 3.10}"};

static void ok(enum outbox_status st, const struct outbox_error *err)
{
    if (st != OUTBOX_OK)
        fail_msg("%d: %s", (int)st, err->text);
}

static void refused_outside_a_transaction(void **state)
{
    struct bench *b = *state;
    struct outbox_error err;
    struct outbox_collector *c = outbox_collector_new();

    assert_int_equal(outbox_mongo_emit(b->session, NULL, NULL, &placed, NULL, &err), OUTBOX_REJECT);
    assert_int_equal(err.status, OUTBOX_REJECT);
    assert_non_null(strstr(err.text, "no transaction"));
    ok(outbox_collector_raise(c, &placed, NULL, &err), &err);
    assert_int_equal(outbox_mongo_write(b->session, NULL, NULL, c, NULL), OUTBOX_REJECT);
    assert_int_equal(outbox_collector_count(c), 1);
    begin(b);
    undo(b);
    assert_int_equal(outbox_mongo_emit(b->session, NULL, NULL, &placed, NULL, &err), OUTBOX_REJECT);
    begin(b);
    assert_true(put(b, "orders", "{\"_id\":1}", NULL, NULL));
    commit(b);
    assert_int_equal(outbox_mongo_emit(b->session, NULL, NULL, &placed, NULL, &err), OUTBOX_REJECT);
    assert_non_null(strstr(err.text, "no transaction"));
    assert_int_equal(outbox_mongo_emit(NULL, NULL, NULL, &placed, NULL, &err), OUTBOX_REJECT);
    assert_int_equal(count(b, EVENTS, "{}"), 0);
    outbox_collector_free(c);
}

static void emitted_with_the_change_or_not_at_all(void **state)
{
    struct bench *b = *state;
    struct outbox_error err;
    char id[OUTBOX_ID_SIZE], gone[OUTBOX_ID_SIZE], text[1024], want[1024];
    bool there = false;

    begin(b);
    assert_true(put(b, "orders", "{\"_id\":1}", NULL, NULL));
    ok(outbox_mongo_emit(b->session, NULL, NULL, &placed, gone, &err), &err);
    ok(outbox_mongo_exists(b->session, NULL, gone, &there, &err), &err);
    assert_true(there);
    undo(b);
    ok(outbox_mongo_exists(b->session, NULL, gone, &there, &err), &err);
    assert_false(there);
    assert_int_equal(outbox_mongo_exists(b->session, NULL, "", &there, &err), OUTBOX_REJECT);
    assert_int_equal(count(b, "orders", "{}"), 0);

    begin(b); /* an event may be the first that is written */
    ok(outbox_mongo_emit(b->session, NULL, NULL, &placed, id, &err), &err);
    assert_true(put(b, "orders", "{\"_id\":1}", NULL, NULL));
    assert_int_equal(count(b, EVENTS, "{}"), 0);
    commit(b);
    ok(outbox_mongo_exists(b->session, NULL, id, &there, &err), &err);
    assert_true(there);
    assert_int_equal(strlen(id), 36);
    assert_int_equal(id[14], '7');
    assert_true(strcmp(gone, id) < 0); /* ids rise */
    assert_int_equal(count(b, "orders", "{}"), 1);
    document(b, EVENTS, BY_SEQ, 0, text, sizeof(text));
    snprintf(
        want, sizeof(want),
        "{ \"_id\" : \"%s\", \"type\" : \"order.placed\", \"aggregate_type\" : \"order\", "
        "\"aggregate_id\" : \"42\", \"key\" : \"42\", \"payload\" : \"{\\\"total\\\" : 3.10}\", "
        "\"payload_kind\" : \"json\", \"status\" : \"pending\", "
        "\"attempts\" : { \"$numberInt\" : \"0\" } }",
        id);
    assert_string_equal(text, want);
}

/* The change fails: neither the document nor the event is there. */
static void failing_unique_index_leaves_neither(void **state)
{
    struct bench *b = *state;
    struct outbox_error err;
    bson_error_t e;
    bson_t reply;

    begin(b);
    assert_true(put(b, "orders", "{\"_id\":1,\"by\":\"first\"}", NULL, NULL));
    commit(b);
    begin(b);
    ok(outbox_mongo_emit(b->session, NULL, NULL, &placed, NULL, &err), &err);
    assert_false(put(b, "orders", "{\"_id\":1,\"by\":\"second\"}", &e, &reply));
    assert_int_equal(outbox_mongo_result(&e, &reply, &err), OUTBOX_REJECT);
    assert_null(strstr(err.text, "dup key")); /* no values in messages */
    bson_destroy(&reply);
    undo(b);
    assert_int_equal(count(b, EVENTS, "{}"), 0);
    assert_int_equal(count(b, "orders", "{\"by\":\"second\"}"), 0);
}

/* And an id that is there already leaves no change. */
static void the_same_id_is_stored_once(void **state)
{
    struct bench *b = *state;
    struct outbox_event event = placed;
    struct outbox_error err;

    event.id = "order-42-placed";
    begin(b);
    ok(outbox_mongo_emit(b->session, NULL, NULL, &event, NULL, &err), &err);
    commit(b);
    begin(b);
    assert_true(put(b, "orders", "{\"_id\":1}", NULL, NULL));
    assert_int_equal(outbox_mongo_emit(b->session, NULL, NULL, &event, NULL, &err), OUTBOX_REJECT);
    assert_non_null(strstr(err.text, "11000"));
    undo(b);
    assert_int_equal(count(b, EVENTS, "{}"), 1);
    assert_int_equal(count(b, "orders", "{}"), 0);
}

/* ---- many ---- */

static unsigned inserts; /* commands that were sent */

static void sent(const mongoc_apm_command_started_t *e)
{
    inserts += strcmp(mongoc_apm_command_started_get_command_name(e), "insert") == 0;
}

#define MANY 2500

static void many_in_order_in_one_insert(void **state)
{
    struct bench *b = *state;
    struct outbox_error err;
    static struct outbox_event events[MANY];
    static char ids[MANY][OUTBOX_ID_SIZE], key[MANY][16];
    mongoc_apm_callbacks_t *watch = mongoc_apm_callbacks_new();
    char text[64];

    for (int i = 0; i < MANY; i++) {
        snprintf(key[i], sizeof(key[i]), "%d", i);
        events[i] = placed;
        events[i].aggregate_id = key[i];
    }
    begin(b); /* makes the collection: that is another command */
    ok(outbox_mongo_emit(b->session, NULL, NULL, &placed, NULL, &err), &err);
    commit(b);
    mongoc_apm_set_command_started_cb(watch, sent);
    mongoc_client_set_apm_callbacks(b->client, watch, NULL);
    inserts = 0;
    begin(b);
    ok(outbox_mongo_emit_many(b->session, NULL, NULL, events, MANY, ids, &err), &err);
    assert_int_equal(inserts, 1);
    ok(outbox_mongo_emit_many(b->session, NULL, NULL, events, 0, ids, &err), &err);
    assert_int_equal(inserts, 1);
    commit(b);
    assert_int_equal(count(b, EVENTS, "{}"), MANY + 1);
    for (int i = 0; i < MANY; i += 499) { /* the server's numbers are in the order of the array */
        field_of(b, EVENTS, BY_SEQ, i + 1, "aggregate_id", text, sizeof(text));
        assert_string_equal(text, key[i]);
        field_of(b, EVENTS, BY_SEQ, i + 1, "_id", text, sizeof(text));
        assert_string_equal(text, ids[i]);
    }
    assert_int_equal(count(b, EVENTS, "{\"seq\":{\"$timestamp\":{\"t\":0,\"i\":0}}}"), 0);
    mongoc_apm_callbacks_destroy(watch);
}

static void one_at_fault_and_none_is_sent(void **state)
{
    struct bench *b = *state;
    struct outbox_error err;
    struct outbox_event events[3] = {placed, placed, placed};

    static char wide[65537 + 1];
    memset(wide, 'x', sizeof(wide) - 1);
    events[1].topic = wide;
    begin(b);
    assert_int_equal(outbox_mongo_emit_many(b->session, NULL, NULL, events, 3, NULL, &err),
                     OUTBOX_REJECT);
    assert_non_null(strstr(err.text, "event 2 of 3"));
    assert_non_null(strstr(err.text, "topic is too large: 65537 bytes, the limit is 65536"));
    undo(b);
    events[1].topic = NULL;
    events[1].payload = "{";
    begin(b);
    assert_int_equal(outbox_mongo_emit_many(b->session, NULL, NULL, events, 3, NULL, &err),
                     OUTBOX_REJECT);
    assert_non_null(strstr(err.text, "event 2 of 3"));
    assert_true(put(b, "orders", "{\"_id\":1}", NULL, NULL)); /* the transaction is as it was */
    commit(b);
    assert_int_equal(count(b, EVENTS, "{}"), 0);
    assert_int_equal(count(b, "orders", "{}"), 1);
}

/* ---- context and collector ---- */

static void context_is_stamped_and_collected_events_keep_their_ids(void **state)
{
    struct bench *b = *state;
    struct outbox_error err;
    struct outbox_ctx *ctx = outbox_ctx_new();
    struct outbox_collector *c = outbox_collector_new();
    char ids[2][OUTBOX_ID_SIZE], text[64];

    assert_int_equal(outbox_ctx_set(ctx, OUTBOX_CTX_TENANT, "acme"), OUTBOX_OK);
    assert_int_equal(outbox_ctx_set(ctx, OUTBOX_CTX_USER, "anna"), OUTBOX_OK);
    ok(outbox_collector_raise(c, &placed, ids[0], &err), &err);
    ok(outbox_collector_raise(c, &placed, ids[1], &err), &err);
    for (int i = 0; i < 2; i++) {
        begin(b);
        ok(outbox_mongo_write(b->session, NULL, ctx, c, &err), &err);
        assert_int_equal(outbox_collector_count(c), 2);
        if (i == 0)
            undo(b);
    }
    commit(b);
    for (int i = 0; i < 2; i++) {
        field_of(b, EVENTS, BY_SEQ, i, "_id", text, sizeof(text));
        assert_string_equal(text, ids[i]);
    }
    assert_int_equal(count(b, EVENTS,
                           "{\"metadata.userId\":\"anna\",\"metadata.tenantId\":\"acme\","
                           "\"tenant\":\"acme\",\"metadata.timestamp\":{\"$gt\":\"2\"}}"),
                     2);
    outbox_collector_free(c);
    outbox_ctx_free(ctx);
}

/* ---- targets ---- */

static struct outbox_mongo_target *target(const struct outbox_mongo_options *o)
{
    struct outbox_mongo_target *t = NULL;
    struct outbox_error err;

    ok(outbox_mongo_target_open(o, &t, &err), &err);
    return t;
}

static void documents_of_sc(void **state)
{
    struct bench *b = *state;
    struct outbox_error err;
    const int64_t version = 7;
    struct outbox_event event = {.id = "0190a0b0-0000-7000-8000-000000000001",
                                 .type = "user.created",
                                 .aggregate_type = "user",
                                 .aggregate_id = "56e1fc72e0c917e9c4714161",
                                 .entity_version = &version,
                                 .payload = "{\"event_id\":\"x\",\"data\":{\"n\":1,\"\":[1.5]}}"};
    struct outbox_mongo_target *sc = target(&(struct outbox_mongo_options){.profile = "sc"});
    char text[2048];
    bool there;

    begin(b);
    ok(outbox_mongo_emit(b->session, sc, NULL, &event, NULL, &err), &err);
    event.entity_version = NULL;
    assert_int_equal(outbox_mongo_emit(b->session, sc, NULL, &event, NULL, &err), OUTBOX_REJECT);
    event.entity_version = &version;
    ok(outbox_mongo_emit(b->session, sc, NULL, &event, NULL, &err), &err); /* legal: not unique */
    commit(b);
    ok(outbox_mongo_exists(b->session, sc, event.id, &there, &err), &err);
    assert_true(there);
    assert_int_equal(
        count(b, "outbox", "{\"_id\":{\"$gt\":{\"$oid\":\"000000000000000000000000\"}}}"), 2);
    document(b, "outbox", "{\"_id\":1}", 0, text, sizeof(text));
    assert_non_null(strstr(
        text,
        "\"event_id\" : \"0190a0b0-0000-7000-8000-000000000001\", \"event_type\" : "
        "\"user.created\", \"entity_type\" : \"user\", \"entity_id\" : "
        "\"56e1fc72e0c917e9c4714161\", \"entity_version\" : { \"$numberInt\" : \"7\" }, "
        "\"topic\" : \"sc.domain.user\", \"partition_key\" : \"56e1fc72e0c917e9c4714161\", "
        "\"payload\" : { \"event_id\" : \"x\", \"data\" : { \"n\" : { \"$numberInt\" : \"1\" }, "
        "\"\" : [ { \"$numberDouble\" : \"1.5\" } ] } }, \"status\" : \"pending\", "
        "\"retry_count\" : { \"$numberInt\" : \"0\" }, \"max_retries\" : { \"$numberInt\" : \"5\" "
        "}, \"last_error\" : null, \"last_error_at\" : null, \"processing_started_at\" : null, "
        "\"published_at\" : null, \"locked_by\" : null, \"locked_until\" : null }"));
    assert_int_equal(
        count(b, "outbox", "{\"created_at\":{\"$gt\":{\"$date\":{\"$numberLong\":\"0\"}}}}"), 2);
    outbox_mongo_target_close(sc);
}

static void any_collection_and_fields(void **state)
{
    struct bench *b = *state;
    struct outbox_error err;
    const struct outbox_mongo_field fields[] = {
        {"aggregate_id", "entity"}, {"status", "state"}, {"tenant", NULL}};
    char database[64], uri[512];
    struct outbox_mongo_target *t;
    mongoc_client_t *client;

    snprintf(database, sizeof(database), "%s", b->name);
    t = target(&(struct outbox_mongo_options){.database = database,
                                              .collection = "mine",
                                              .fields = fields,
                                              .n_fields = ROWS(fields),
                                              .pending = "new",
                                              .flags = OUTBOX_MONGO_DOCUMENT});
    server_uri("", uri, sizeof(uri)); /* a client that names no database */
    client = mongoc_client_new(uri);
    struct bench mine = {.client = client,
                         .session = mongoc_client_start_session(client, NULL, NULL)};
    begin(&mine);
    assert_int_equal(outbox_mongo_emit(mine.session, NULL, NULL, &placed, NULL, &err),
                     OUTBOX_REJECT);
    assert_non_null(strstr(err.text, "no database"));
    ok(outbox_mongo_emit(mine.session, t, NULL, &placed, NULL, &err), &err);
    commit(&mine);
    assert_int_equal(
        count(b, "mine", "{\"entity\":\"42\",\"state\":\"new\",\"payload\":{\"total\":3.1}}"), 1);
    begin(&mine);
    struct outbox_event event = placed;
    event.tenant = "acme";
    assert_int_equal(outbox_mongo_emit(mine.session, t, NULL, &event, NULL, &err), OUTBOX_REJECT);
    assert_non_null(strstr(err.text, "tenant has no field"));
    undo(&mine);
    mongoc_client_session_destroy(mine.session);
    mongoc_client_destroy(client);
    outbox_mongo_target_close(t);
}

static void targets_that_are_refused(void **state)
{
    static const struct outbox_mongo_field nested[] = {{"key", "meta.key"}},
                                           none[] = {{"nope", "x"}};
    static const struct {
        const char *name;
        struct outbox_mongo_options options;
        const char *want;
    } cases[] = {
        {"profile", {.profile = "orion"}, "there is sc"},
        {"flags", {.flags = 64}, "flags 0x40"},
        {"a field of nothing", {.fields = none, .n_fields = 1}, "no field 'nope'"},
        {"a nested field", {.fields = nested, .n_fields = 1}, "meta.key"},
        {"no name", {.collection = ""}, "1 to 200 bytes"},
    };

    (void)state;
    for (size_t i = 0; i < ROWS(cases); i++) {
        struct outbox_mongo_target *t = NULL;
        struct outbox_error err = {.text = ""};
        row_int(cases[i].name, "status", outbox_mongo_target_open(&cases[i].options, &t, &err),
                OUTBOX_REJECT);
        ROW_TRUE(cases[i].name, t == NULL && strstr(err.text, cases[i].want));
    }
    outbox_mongo_target_close(NULL);
}

/* Two transactions that emit for one key before they change anything: only one may go on. */
static void serialised_keys(void **state)
{
    struct bench *b = *state, second;
    struct outbox_error err;
    struct outbox_mongo_target *t = target(
        &(struct outbox_mongo_options){.database = b->name, .flags = OUTBOX_MONGO_SERIALIZE});
    struct outbox_event events[3] = {placed, placed, placed};

    events[1].aggregate_id = "43";
    bench_init(&second);
    begin(b); /* makes the collections */
    ok(outbox_mongo_emit_many(b->session, t, NULL, events, 3, NULL, &err), &err);
    commit(b);
    assert_int_equal(count(b, EVENTS "_keys", "{\"_id\":\"42\",\"n\":1}"), 1);
    begin(b);
    begin(&second);
    ok(outbox_mongo_emit(b->session, t, NULL, &placed, NULL, &err), &err);
    assert_int_equal(outbox_mongo_emit(second.session, t, NULL, &placed, NULL, &err), OUTBOX_RETRY);
    commit(b);
    undo(&second);
    begin(&second);
    ok(outbox_mongo_emit(second.session, t, NULL, &placed, NULL, &err), &err);
    commit(&second);
    assert_int_equal(count(b, EVENTS "_keys", "{\"_id\":\"42\",\"n\":3}"), 1);
    assert_int_equal(count(b, EVENTS, "{}"), 5);
    bench_clear(&second);
    outbox_mongo_target_close(t);
}

/* ---- payloads ---- */

static void payload_of_bson(void **state)
{
    struct bench *b = *state;
    struct outbox_error err;
    bson_t *doc =
        BCON_NEW("at", BCON_DATE_TIME(5), "deep", "{", "$x", BCON_NULL, "a.b", BCON_INT32(1), "}");
    struct outbox_event event = {
        .type = "t", .payload = bson_get_data(doc), .payload_kind = OUTBOX_BSON};
    struct outbox_collector *c = outbox_collector_new();

    ok(outbox_collector_raise(c, &event, NULL, &err), &err);
    begin(b);
    ok(outbox_mongo_write(b->session, NULL, NULL, c, &err), &err);
    commit(b);
    assert_int_equal(count(b, EVENTS,
                           "{\"payload\":{\"at\":{\"$date\":{\"$numberLong\":\"5\"}},"
                           "\"deep\":{\"$x\":null,\"a.b\":1}}}"),
                     1);
    event.payload = "\x05\0\0\0\1";
    assert_int_equal(outbox_collector_raise(c, &event, NULL, &err), OUTBOX_REJECT);
    assert_non_null(strstr(err.text, "payload is not BSON"));
    outbox_collector_free(c);
    bson_destroy(doc);
}

static void up_to_16_megabytes(void **state)
{
    struct bench *b = *state;
    struct outbox_error err;
    size_t n = ((size_t)16 << 20) - 512;
    char *big = malloc(n + 1024);
    struct outbox_event event = {
        .type = "t", .aggregate_id = "1", .payload = big, .payload_kind = OUTBOX_BYTES};

    assert_non_null(big);
    memset(big, 'x', n + 1024);
    begin(b);
    event.payload_size = n + 1024;
    assert_int_equal(outbox_mongo_emit(b->session, NULL, NULL, &event, NULL, &err), OUTBOX_REJECT);
    assert_non_null(strstr(err.text, "16 MiB"));
    event.payload_size = n;
    ok(outbox_mongo_emit(b->session, NULL, NULL, &event, NULL, &err), &err);
    commit(b);
    assert_int_equal(count(b, EVENTS, "{}"), 1);
    free(big);
}

static void as_deep_as_a_server_takes(void **state)
{
    struct bench *b = *state;
    struct outbox_error err;
    struct outbox_mongo_target *t =
        target(&(struct outbox_mongo_options){.flags = OUTBOX_MONGO_DOCUMENT});
    char deep[2 * 179 + 1];
    struct outbox_event event = {.type = "t", .payload = deep};

    memset(deep, '[', 179);
    memset(deep + 179, ']', 179);
    deep[2 * 179] = '\0';
    begin(b);
    ok(outbox_mongo_emit(b->session, t, NULL, &event, NULL, &err), &err);
    commit(b);
    assert_int_equal(count(b, EVENTS, "{}"), 1);
    outbox_mongo_target_close(t);
}

/* ---- a server that is not there ---- */

static void a_server_that_cannot_be_reached_may_be_there_later(void **state)
{
    struct outbox_error err;
    mongoc_client_t *client =
        mongoc_client_new("mongodb://127.0.0.1:1/x?replicaSet=rs0&serverSelectionTimeoutMS=200");
    mongoc_client_session_t *s = mongoc_client_start_session(client, NULL, NULL);

    (void)state;
    if (s) { /* a session is made without a server */
        assert_true(mongoc_client_session_start_transaction(s, NULL, NULL));
        assert_int_equal(outbox_mongo_emit(s, NULL, NULL, &placed, NULL, &err), OUTBOX_RETRY);
        assert_true(err.text[0] != '\0');
        mongoc_client_session_destroy(s);
    }
    mongoc_client_destroy(client);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define ONE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
        ONE(refused_outside_a_transaction),
        ONE(emitted_with_the_change_or_not_at_all),
        ONE(failing_unique_index_leaves_neither),
        ONE(the_same_id_is_stored_once),
        ONE(many_in_order_in_one_insert),
        ONE(one_at_fault_and_none_is_sent),
        ONE(context_is_stamped_and_collected_events_keep_their_ids),
        ONE(documents_of_sc),
        ONE(any_collection_and_fields),
        ONE(targets_that_are_refused),
        ONE(serialised_keys),
        ONE(payload_of_bson),
        ONE(up_to_16_megabytes),
        ONE(as_deep_as_a_server_takes),
        ONE(a_server_that_cannot_be_reached_may_be_there_later),
    };
    int failed;

    server_start("");
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    server_end();
    mongoc_cleanup();
    return failed;
}
