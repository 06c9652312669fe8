/* SPDX-License-Identifier: Apache-2.0 */
/* postgres_test - the public calls that write events over libpq into the native outbox: inside a
 * transaction that can write, or not at all. */
#include "outbox/postgres.h"
#include "pg_harness.h"

#include <stdio.h>
#include <stdlib.h>

static struct bench shared; /* one database for all: each test starts with clean tables */

static int setup(void **state)
{
    struct bench *b = *state = &shared;

    sql(b, "truncate outbox.event restart identity; drop table if exists orders; update "
           "outbox.meta set value = '0' "
           "where name = 'hard_limit'");
    sql(b, "create table orders (id int primary key)");
    return 0;
}

static const struct outbox_event placed = {.type = "order.placed",
                                           .aggregate_type = "order",
                                           .aggregate_id = "42",
                                           .payload = "{\"total\" : 3}"};

static void assert_text(struct bench *b, const char *query, const char *want)
{
    char got[1024];

    text(b, got, sizeof(got), query);
    assert_string_equal(got, want);
}

#define EVENTS "select count(*) from outbox.event"

static void refused_outside_a_transaction(void **state)
{
    struct bench *b = *state;
    struct outbox_error err;
    struct outbox_collector *c = outbox_collector_new();

    assert_int_equal(outbox_pg_emit(b->app, NULL, NULL, &placed, NULL, &err), OUTBOX_REJECT);
    assert_int_equal(err.status, OUTBOX_REJECT);
    assert_non_null(strstr(err.text, "no transaction"));
    assert_int_equal(outbox_collector_raise(c, &placed, NULL, &err), OUTBOX_OK);
    assert_int_equal(outbox_pg_write(b->app, NULL, NULL, c, NULL), OUTBOX_REJECT);
    assert_int_equal(outbox_collector_count(c), 1);
    assert_int_equal(num(b, EVENTS), 0);
    outbox_collector_free(c);
}

/* In each of these the connection is as it was before. */
static void refused_where_it_cannot_be(void **state)
{
    struct bench *b = *state;
    struct outbox_error err;

    sql(b, "begin");
    PQclear(PQexec(b->app, "select 1/0"));
    assert_int_equal(outbox_pg_emit(b->app, NULL, NULL, &placed, NULL, &err), OUTBOX_REJECT);
    assert_non_null(strstr(err.text, "failed"));
    sql(b, "rollback");

    sql(b, "begin read only");
    assert_int_equal(outbox_pg_emit(b->app, NULL, NULL, &placed, NULL, &err), OUTBOX_REJECT);
    assert_non_null(strstr(err.text, "READ WRITE"));
    sql(b, "rollback");

    sql(b, "begin");
    assert_int_equal(PQsendQuery(b->app, "select 1"), 1);
    assert_int_equal(outbox_pg_emit(b->app, NULL, NULL, &placed, NULL, &err), OUTBOX_REJECT);
    assert_non_null(strstr(err.text, "running"));
    PGresult *res = PQgetResult(b->app);
    assert_string_equal(PQgetvalue(res, 0, 0), "1"); /* it was not touched */
    PQclear(res);
    PQclear(PQgetResult(b->app));

    assert_int_equal(PQenterPipelineMode(b->app), 1);
    assert_int_equal(outbox_pg_emit(b->app, NULL, NULL, &placed, NULL, &err), OUTBOX_REJECT);
    assert_non_null(strstr(err.text, "pipeline"));
    assert_int_equal(PQexitPipelineMode(b->app), 1);

    assert_int_equal(PQsetClientEncoding(b->app, "LATIN1"), 0);
    assert_int_equal(outbox_pg_emit(b->app, NULL, NULL, &placed, NULL, &err), OUTBOX_REJECT);
    assert_non_null(strstr(err.text, "UTF8"));
    assert_int_equal(PQsetClientEncoding(b->app, "UTF8"), 0);

    assert_int_equal(outbox_pg_emit(b->app, NULL, NULL, &placed, NULL, &err), OUTBOX_OK);
    sql(b, "commit");
    assert_int_equal(num(b, EVENTS), 1);
    assert_int_equal(outbox_pg_emit(NULL, NULL, NULL, &placed, NULL, &err), OUTBOX_DOWN);
}

static void lost_connection_is_down(void **state)
{
    struct bench *b = *state;
    struct outbox_error err;
    PGconn *c = session(b);

    sql_on(c, "begin");
    sql(b, "select pg_terminate_backend(%d)", PQbackendPID(c));
    assert_int_equal(outbox_pg_emit(c, NULL, NULL, &placed, NULL, &err), OUTBOX_DOWN);
    assert_true(err.text[0] != '\0');
    assert_int_equal(outbox_pg_emit(c, NULL, NULL, &placed, NULL, &err), OUTBOX_DOWN);
    PQfinish(c);
}

static void emitted_with_the_change_or_not_at_all(void **state)
{
    struct bench *b = *state;
    struct outbox_error err;
    char id[OUTBOX_ID_SIZE], gone[OUTBOX_ID_SIZE];
    bool there;

    sql(b, "begin; insert into orders values (1)");
    assert_int_equal(outbox_pg_emit(b->app, NULL, NULL, &placed, gone, &err), OUTBOX_OK);
    assert_int_equal(outbox_pg_exists(b->app, NULL, gone, &there, &err), OUTBOX_OK);
    assert_true(there);
    sql(b, "rollback");
    assert_int_equal(outbox_pg_exists(b->app, NULL, gone, &there, &err), OUTBOX_OK);
    assert_false(there);
    assert_int_equal(outbox_pg_exists(b->app, NULL, "no uuid", &there, &err), OUTBOX_REJECT);
    sql(b, "begin; insert into orders values (1)");
    assert_int_equal(outbox_pg_emit(b->app, NULL, NULL, &placed, id, &err), OUTBOX_OK);
    sql(b, "commit");
    assert_int_equal(strlen(id), 36);
    assert_int_equal(id[14], '7');
    assert_true(strcmp(gone, id) < 0); /* ids rise */
    assert_text(b, "select id from outbox.event", id);
    assert_text(b,
                "select concat_ws('|', type, aggregate_type, aggregate_id, convert_from(payload, "
                "'UTF8'), payload_kind, metadata is null, key is null, entity_version is null) "
                "from outbox.event",
                "order.placed|order|42|{\"total\" : 3}|j|t|t|t");
}

/* The change fails: neither the row nor the event is there. */
static void failing_constraint_leaves_neither(void **state)
{
    struct bench *b = *state;
    struct outbox_error err;

    sql(b, "insert into orders values (1)");
    sql(b, "begin");
    assert_int_equal(outbox_pg_emit(b->app, NULL, NULL, &placed, NULL, &err), OUTBOX_OK);
    PGresult *res = PQexec(b->app, "insert into orders values (1)");
    assert_int_equal(outbox_pg_result(b->app, res, &err), OUTBOX_REJECT);
    assert_non_null(strstr(err.text, "23505"));
    PQclear(res);
    assert_int_equal(outbox_pg_emit(b->app, NULL, NULL, &placed, NULL, &err), OUTBOX_REJECT);
    res = PQexec(b->app, "commit");
    assert_string_equal(PQcmdStatus(res), "ROLLBACK");
    PQclear(res);
    assert_int_equal(num(b, "select count(*) from orders"), 1);
    assert_int_equal(num(b, EVENTS), 0);
}

static void all_fields(void **state)
{
    struct bench *b = *state;
    const int64_t entity = 0, schema = INT64_MAX;
    const struct outbox_event e = {.type = "t'\"\\$1",
                                   .id = "01920000-0000-7000-8000-00000000ABCD",
                                   .key = "k\xc3\xa9y",
                                   .tenant = "ten",
                                   .topic = "top",
                                   .payload = "abcd",
                                   .payload_size = 3,
                                   .payload_kind = OUTBOX_TEXT,
                                   .headers = "{ \"h\" : 1}",
                                   .metadata = "{\"m\":1, \"m\":2}",
                                   .entity_version = &entity,
                                   .schema_version = &schema,
                                   .max_attempts = 4};
    char id[OUTBOX_ID_SIZE];
    struct outbox_error err;
    bool there;

    sql(b, "begin");
    if (outbox_pg_emit(b->app, NULL, NULL, &e, id, &err) != OUTBOX_OK)
        fail_msg("%s", err.text);
    sql(b, "commit");
    assert_string_equal(id, e.id);
    assert_int_equal(outbox_pg_exists(b->app, NULL, id, &there, NULL), OUTBOX_OK);
    assert_true(there);
    assert_text(b,
                "select concat_ws('|', type, id, key, tenant, topic, convert_from(payload, 'UTF8'),"
                " payload_kind, headers, metadata, entity_version, schema_version, max_attempts) "
                "from outbox.event",
                "t'\"\\$1|01920000-0000-7000-8000-00000000abcd|k\xc3\xa9y|ten|top|abc|t|"
                "{ \"h\" : 1}|{\"m\":1, \"m\":2}|0|9223372036854775807|4");
}

static void payload_kinds(void **state)
{
    static const struct {
        const char *name;
        const void *payload;
        size_t size;
        enum outbox_payload kind;
        enum outbox_status st;
        const char *want;
    } rows[] = {
        {"JSON", " [1 ,1e400]\n", 0, OUTBOX_JSON, OUTBOX_OK, "j:205b31202c31653430305d0a"},
        {"a part of it", "[1]]", 3, OUTBOX_JSON, OUTBOX_OK, "j:5b315d"},
        {"broken JSON", "{a", 0, OUTBOX_JSON, OUTBOX_REJECT, NULL},
        {"empty JSON", "", 0, OUTBOX_JSON, OUTBOX_REJECT, NULL},
        {"JSON that is not UTF-8", "\"\xff\"", 0, OUTBOX_JSON, OUTBOX_REJECT, NULL},
        {"empty text", "", 0, OUTBOX_TEXT, OUTBOX_OK, "t:"},
        {"text", "\\x41'\n", 0, OUTBOX_TEXT, OUTBOX_OK, "t:5c783431270a"},
        {"text with NUL", "a\0b", 3, OUTBOX_TEXT, OUTBOX_REJECT, NULL},
        {"text that is not UTF-8", "a\xff", 0, OUTBOX_TEXT, OUTBOX_REJECT, NULL},
        {"bytes", "\0\xff\\\x01", 4, OUTBOX_BYTES, OUTBOX_OK, "b:00ff5c01"},
        {"no bytes", "x", 0, OUTBOX_BYTES, OUTBOX_OK, "b:"},
        {"null", NULL, 0, OUTBOX_JSON, OUTBOX_OK, "j:null"},
        {"null as said", "ignored", 0, OUTBOX_NULL, OUTBOX_OK, "j:null"},
        {"no such kind", "x", 1, (enum outbox_payload)9, OUTBOX_REJECT, NULL},
        {"a document of MongoDB", "\x05\0\0\0", 0, OUTBOX_BSON, OUTBOX_REJECT, NULL},
    };
    struct bench *b = *state;

    for (size_t i = 0; i < ROWS(rows); i++) {
        struct outbox_event e = {.type = "t",
                                 .payload = rows[i].payload,
                                 .payload_size = rows[i].size,
                                 .payload_kind = rows[i].kind};
        struct outbox_error err = {.text = ""};
        char got[128];
        sql(b, "begin");
        row_int(rows[i].name, "status", outbox_pg_emit(b->app, NULL, NULL, &e, NULL, &err),
                rows[i].st);
        ROW_TRUE(rows[i].name, (rows[i].st == OUTBOX_OK) == (err.text[0] == '\0'));
        sql(b, "commit"); /* a refused one leaves the transaction as it was */
        text(b, got, sizeof(got),
             "select payload_kind::text || ':' || coalesce(encode(payload, 'hex'), 'null') from "
             "outbox.event order by seq desc limit 1");
        if (rows[i].want)
            row_str(rows[i].name, "stored", ob_str_c(got), ob_str_c(rows[i].want));
    }
}

static void large_payload(void **state)
{
    struct bench *b = *state;
    size_t n = (size_t)16 << 20;
    char *bytes = malloc(n);
    const struct outbox_event e = {
        .type = "t", .payload = bytes, .payload_size = n, .payload_kind = OUTBOX_BYTES};

    for (size_t i = 0; i < n; i++)
        bytes[i] = (char)(i * 7);
    sql(b, "begin");
    assert_int_equal(outbox_pg_emit(b->app, NULL, NULL, &e, NULL, NULL), OUTBOX_OK);
    sql(b, "commit");
    assert_int_equal(num(b, "select length(payload) from outbox.event"), n);
    assert_int_equal(num(b, "select get_byte(payload, 16777215) from outbox.event"),
                     (unsigned char)bytes[n - 1]);
    free(bytes);
}

static void refused_events(void **state)
{
    static const struct {
        const char *name;
        struct outbox_event e;
        const char *text;
    } rows[] = {
        {"no type", {.payload = "{}"}, "type"},
        {"headers no JSON", {.type = "t", .headers = "{"}, "headers"},
        {"headers no object", {.type = "t", .headers = "[1]"}, "object"},
        {"metadata no JSON", {.type = "t", .metadata = "nope"}, "metadata"},
        {"id no UUID", {.type = "t", .id = "same"}, "UUID"},
        {"key not UTF-8", {.type = "t", .key = "\xff"}, "key"},
        {"type not UTF-8", {.type = "\xc3"}, "type"},
        {"too many attempts", {.type = "t", .max_attempts = UINT32_MAX}, "max_attempts"},
    };
    struct bench *b = *state;
    struct outbox_error err;
    const struct outbox_event fine = {.type = "t"};

    sql(b, "begin");
    for (size_t i = 0; i < ROWS(rows); i++) {
        err.text[0] = '\0';
        row_int(rows[i].name, "status", outbox_pg_emit(b->app, NULL, NULL, &rows[i].e, NULL, &err),
                OUTBOX_REJECT);
        ROW_TRUE(rows[i].name, strstr(err.text, rows[i].text) != NULL);
    }
    /* The transaction goes on, without the refused ones. */
    assert_int_equal(outbox_pg_emit(b->app, NULL, NULL, &fine, NULL, &err), OUTBOX_OK);
    sql(b, "commit");
    assert_int_equal(num(b, EVENTS), 1);
}

static void same_id_twice_is_refused_by_the_server(void **state)
{
    struct bench *b = *state;
    const struct outbox_event same = {.type = "t", .id = "01920000-0000-7000-8000-000000000001"};
    struct outbox_error err;

    sql(b, "begin");
    assert_int_equal(outbox_pg_emit(b->app, NULL, NULL, &same, NULL, &err), OUTBOX_OK);
    sql(b, "savepoint mine");
    assert_int_equal(outbox_pg_emit(b->app, NULL, NULL, &same, NULL, &err), OUTBOX_REJECT);
    assert_non_null(strstr(err.text, "23505"));
    assert_int_equal(outbox_pg_emit(b->app, NULL, NULL, &same, NULL, &err), OUTBOX_REJECT);
    assert_non_null(strstr(err.text, "failed"));
    sql(b, "rollback to mine");
    sql(b, "commit");
    assert_int_equal(num(b, EVENTS), 1);
}

#define MANY 5000

static void many_in_order_all_or_none(void **state)
{
    struct bench *b = *state;
    struct outbox_event *events = calloc(MANY, sizeof(*events));
    char(*ids)[OUTBOX_ID_SIZE] = calloc(MANY, sizeof(*ids));
    char(*types)[16] = calloc(MANY, sizeof(*types));
    struct outbox_error err;

    for (int i = 0; i < MANY; i++) {
        snprintf(types[i], sizeof(types[i]), "t%d", i);
        events[i] = (struct outbox_event){
            .type = types[i], .payload = i % 3 ? "{}" : NULL, .key = i % 5 ? types[i] : NULL};
    }
    sql(b, "begin; insert into orders values (1)");
    events[30].metadata = "broken";
    assert_int_equal(outbox_pg_emit_many(b->app, NULL, NULL, events, MANY, ids, &err),
                     OUTBOX_REJECT);
    assert_non_null(strstr(err.text, "event 31 of 5000"));
    assert_int_equal(num(b, EVENTS), 0);
    events[30].metadata = NULL;
    if (outbox_pg_emit_many(b->app, NULL, NULL, events, MANY, ids, &err) != OUTBOX_OK)
        fail_msg("%s", err.text);
    assert_int_equal(outbox_pg_emit_many(b->app, NULL, NULL, events, 0, NULL, &err), OUTBOX_OK);
    sql(b, "commit");
    assert_int_equal(num(b, "select count(*) from orders"), 1);
    assert_int_equal(num(b, "select count(*) from (select type, row_number() over (order by seq) "
                            "- 1 as i from outbox.event) t where type = 't' || i"),
                     MANY);
    assert_int_equal(num(b, "select count(*) from outbox.event where payload is null"),
                     (MANY + 2) / 3);
    assert_int_equal(num(b, "select count(*) from outbox.event where key is null"), MANY / 5);
    for (int i = 0; i < MANY; i++)
        assert_true(i == 0 || strcmp(ids[i - 1], ids[i]) < 0);
    assert_int_equal(
        num(b, "select count(*) from outbox.event where id = '%s' and type = 't4321'", ids[4321]),
        1);
    free(events);
    free(ids);
    free(types);
}

/* Thousands of events are one statement, so one round trip. */
static void many_is_one_statement(void **state)
{
    struct bench *b = *state;
    struct outbox_event *events = calloc(MANY, sizeof(*events));

    for (int i = 0; i < MANY; i++)
        events[i] = (struct outbox_event){.type = "t"};
    FILE *trace = tmpfile();
    sql(b, "begin");
    PQtrace(b->app, trace);
    assert_int_equal(outbox_pg_emit_many(b->app, NULL, NULL, events, MANY, NULL, NULL), OUTBOX_OK);
    PQuntrace(b->app);
    sql(b, "commit");
    rewind(trace);
    int syncs = 0;
    char *line = NULL;
    size_t cap = 0;
    while (getline(&line, &cap, trace) > 0)
        syncs += strstr(line, "\tF\t") && strstr(line, "\tSync") ? 1 : 0;
    assert_int_equal(syncs, 1);
    free(line);
    fclose(trace);
    free(events);
}

static void context_is_stamped(void **state)
{
    static const struct {
        const char *name, *metadata, *query, *want;
    } rows[] = {
        {"all of it", NULL,
         "concat_ws('|', metadata ->> 'tenantId', metadata ->> 'userId', metadata ->> "
         "'correlationId', metadata ->> 'traceparent', coalesce(metadata ->> 'source', '-'), "
         "tenant)",
         "ten|use\"r|cor|00-1-2-01|-|ten"},
        {"the time, now", "{}",
         "(metadata ->> 'timestamp')::timestamptz between now() - interval '1 hour' and now() + "
         "interval '1 hour'",
         "t"},
        {"beside the event's own", " { \"a\" : [1, 2] }\n",
         "concat(metadata -> 'a' ->> 1, metadata ->> 'userId', strpos(metadata::text, '\"a\" : [1, "
         "2]') > 0)",
         "2use\"rt"},
        {"the event's own wins", "{\"userId\":\"root\",\"timestamp\":\"then\"}",
         "concat(metadata ->> 'userId', metadata ->> 'timestamp', (select count(*) from "
         "json_object_keys(metadata)))",
         "rootthen5"},
    };
    struct bench *b = *state;
    struct outbox_ctx *ctx = outbox_ctx_new();
    struct outbox_event e = {.type = "t"};

    assert_int_equal(outbox_ctx_set(ctx, OUTBOX_CTX_TENANT, "ten"), OUTBOX_OK);
    assert_int_equal(outbox_ctx_set(ctx, OUTBOX_CTX_USER, "use\"r"), OUTBOX_OK);
    assert_int_equal(outbox_ctx_set(ctx, OUTBOX_CTX_CORRELATION_ID, "cor"), OUTBOX_OK);
    assert_int_equal(outbox_ctx_set(ctx, OUTBOX_CTX_TRACEPARENT, "00-1-2-01"), OUTBOX_OK);
    for (size_t i = 0; i < ROWS(rows); i++) {
        char query[600], got[256];
        e.metadata = rows[i].metadata;
        sql(b, "begin");
        row_int(rows[i].name, "status", outbox_pg_emit(b->app, NULL, ctx, &e, NULL, NULL),
                OUTBOX_OK);
        sql(b, "commit");
        snprintf(query, sizeof(query), "select %s from outbox.event order by seq desc limit 1",
                 rows[i].query);
        text(b, got, sizeof(got), query);
        row_str(rows[i].name, "metadata", ob_str_c(got), ob_str_c(rows[i].want));
    }
    e.tenant = "its own";
    sql(b, "begin; select outbox.set_context(source => 'sql', \"user\" => 'not this')");
    assert_int_equal(outbox_pg_emit(b->app, NULL, ctx, &e, NULL, NULL), OUTBOX_OK);
    sql(b, "commit");
    /* The transaction's own context fills what is left. */
    assert_text(b,
                "select tenant || (metadata ->> 'source') || (metadata ->> 'userId') from "
                "outbox.event order by seq desc limit 1",
                "its ownsqlroot");
    outbox_ctx_free(ctx);
}

/* A writer needs nothing but outbox_writer. */
static void least_privilege(void **state)
{
    struct bench *b = *state;
    const struct outbox_event two[] = {{.type = "a", .payload = "1"}, {.type = "b"}};
    struct outbox_error err;
    char ids[2][OUTBOX_ID_SIZE];
    bool there;

    sql(b, "drop role if exists app_%s", b->name);
    sql(b, "create role app_%s", b->name);
    sql(b, "set role app_%s", b->name);
    sql(b, "begin");
    assert_int_equal(outbox_pg_emit_many(b->app, NULL, NULL, two, 2, ids, &err), OUTBOX_FATAL);
    assert_non_null(strstr(err.text, "outbox_writer"));
    sql(b, "rollback; reset role; grant outbox_writer to app_%s; set role app_%s", b->name,
        b->name);
    sql(b, "begin");
    if (outbox_pg_emit_many(b->app, NULL, NULL, two, 2, ids, &err) != OUTBOX_OK)
        fail_msg("%s", err.text);
    assert_int_equal(outbox_pg_exists(b->app, NULL, ids[1], &there, &err), OUTBOX_OK);
    assert_true(there);
    sql(b, "commit");
    PGresult *res = PQexec(b->app, "select * from outbox.event");
    assert_int_equal(outbox_pg_result(b->app, res, &err), OUTBOX_FATAL);
    PQclear(res);
    sql(b, "reset role; drop role app_%s", b->name);
    assert_int_equal(num(b, EVENTS), 2);
}

static void no_schema(void **state)
{
    struct outbox_error err;
    struct bench b;
    bool there;

    (void)state;
    bench_empty(&b);
    assert_int_equal(
        outbox_pg_exists(b.app, NULL, "01920000-0000-7000-8000-000000000001", &there, &err),
        OUTBOX_FATAL);
    assert_non_null(strstr(err.text, "outbox schema --apply"));
    sql(&b, "begin");
    assert_int_equal(outbox_pg_emit(b.app, NULL, NULL, &placed, NULL, &err), OUTBOX_FATAL);
    assert_non_null(strstr(err.text, "outbox schema --apply"));
    sql(&b, "rollback");
    bench_clear(&b);
}

static void the_hard_limit_is_retry(void **state)
{
    struct bench *b = *state;
    struct outbox_error err;

    sql(b, "update outbox.meta set value = '3' where name = 'hard_limit'");
    sql(b, "begin");
    for (int i = 0; i < 3; i++)
        assert_int_equal(outbox_pg_emit(b->app, NULL, NULL, &placed, NULL, &err), OUTBOX_OK);
    assert_int_equal(outbox_pg_emit(b->app, NULL, NULL, &placed, NULL, &err), OUTBOX_RETRY);
    assert_non_null(strstr(err.text, "hard limit"));
    sql(b, "rollback");
}

/* serialize: whoever emits first for a key holds it to the end of his transaction. */
static void serialize_holds_the_key(void **state)
{
    struct bench *b = *state;
    const struct outbox_pg_options o = {.flags = OUTBOX_PG_SERIALIZE};
    const struct outbox_pg_options bad = {.flags = 64};
    const struct outbox_event ab[] = {{.type = "t", .key = "a"},
                                      {.type = "t", .aggregate_id = "b"}};
    const struct outbox_event ba[] = {{.type = "t", .key = "b"}, {.type = "t", .key = "a"}};
    struct outbox_pg_target *t = NULL;
    struct outbox_error err;
    PGconn *other = session(b);

    assert_int_equal(outbox_pg_target_open(b->app, &bad, &t, &err), OUTBOX_REJECT);
    assert_null(t);
    assert_int_equal(outbox_pg_target_open(b->app, &o, &t, &err), OUTBOX_OK);
    sql(b, "begin");
    assert_int_equal(outbox_pg_emit_many(b->app, t, NULL, ab, 2, NULL, &err), OUTBOX_OK);
    sql_on(other, "set lock_timeout = '50ms'; begin");
    assert_int_equal(outbox_pg_emit_many(other, t, NULL, ba, 1, NULL, &err), OUTBOX_RETRY);
    sql_on(other, "rollback; begin");
    assert_int_equal(outbox_pg_emit_many(other, NULL, NULL, ba, 2, NULL, &err), OUTBOX_OK);
    sql_on(other, "commit");
    assert_int_equal(num(b, "select count(*) from pg_locks where locktype = 'advisory' and pid = "
                            "pg_backend_pid()"),
                     2);
    sql(b, "commit");
    sql_on(other, "begin");
    assert_int_equal(outbox_pg_emit_many(other, t, NULL, ba, 2, NULL, &err), OUTBOX_OK);
    sql_on(other, "commit");
    PQfinish(other);
    outbox_pg_target_close(t);
    outbox_pg_target_close(NULL);
}

#define T(name) cmocka_unit_test_setup(name, setup)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(refused_outside_a_transaction),
        T(refused_where_it_cannot_be),
        T(lost_connection_is_down),
        T(emitted_with_the_change_or_not_at_all),
        T(failing_constraint_leaves_neither),
        T(all_fields),
        T(payload_kinds),
        T(large_payload),
        T(refused_events),
        T(same_id_twice_is_refused_by_the_server),
        T(many_in_order_all_or_none),
        T(many_is_one_statement),
        T(context_is_stamped),
        T(least_privilege),
        cmocka_unit_test(no_schema),
        T(the_hard_limit_is_retry),
        T(serialize_holds_the_key),
    };

    if (server_missing())
        return 0;
    bench_init(&shared);
    sql(&shared, "set client_min_messages = warning");
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    bench_clear(&shared);
    return failed;
}
