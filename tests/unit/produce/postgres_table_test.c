/* SPDX-License-Identifier: Apache-2.0 */
/* postgres_table_test - events into the tables of existing systems: each column as its owner
 * expects it of a new row. */
#include "outbox/postgres.h"
#include "pg_harness.h"

#include <stdio.h>
#include <stdlib.h>

static struct bench shared; /* one database for all: each test starts with clean tables */

static int setup(void **state)
{
    struct bench *b = *state = &shared;

    sql(b, "drop schema public cascade; create schema public; drop schema if exists "
           "\"an\"\"other\" cascade");
    return 0;
}

static struct outbox_pg_target *target(struct bench *b, const struct outbox_pg_options *o)
{
    struct outbox_pg_target *t = NULL;
    struct outbox_error err;

    if (outbox_pg_target_open(b->app, o, &t, &err) != OUTBOX_OK)
        fail_msg("%s", err.text);
    return t;
}

static struct outbox_pg_target *profile(struct bench *b, const char *name)
{
    const struct outbox_pg_options o = {.profile = name};

    return target(b, &o);
}

static void write_one(struct bench *b, const struct outbox_pg_target *t,
                      const struct outbox_ctx *ctx, const struct outbox_event *e, char *id)
{
    struct outbox_error err;

    sql(b, "begin");
    if (outbox_pg_emit(b->app, t, ctx, e, id, &err) != OUTBOX_OK)
        fail_msg("%s", err.text);
    sql(b, "commit");
}

static void refuse(struct bench *b, const struct outbox_pg_target *t, const char *row,
                   const struct outbox_event *e, const char *why)
{
    struct outbox_error err = {.text = ""};

    sql(b, "begin");
    row_int(row, "status", outbox_pg_emit(b->app, t, NULL, e, NULL, &err), OUTBOX_REJECT);
    if (!strstr(err.text, why))
        fail_msg("row '%s': %s", row, err.text);
    row_int(row, "transaction", PQtransactionStatus(b->app), PQTRANS_INTRANS);
    sql(b, "rollback");
}

static void assert_text(struct bench *b, const char *query, const char *want)
{
    char got[1024];

    text(b, got, sizeof(got), query);
    assert_string_equal(got, want);
}

#define UUID "01920000-0000-7000-8000-000000000001"
#define TRACE "4bf92f3577b34da6a3ce929d0e0e4736"
#define PARENT "00-" TRACE "-00f067aa0ba902b7-01"

static void polyshop(void **state)
{
    static const char *const forms[] = {
        "create table outbox_events (id uuid primary key, aggregate_id text not null, event_type "
        "text not null, version int not null default 1, payload jsonb not null, created_at "
        "timestamptz not null default now(), processed boolean not null default false, "
        "processed_at timestamptz, error_message text)",
        "create table outbox_events (id uuid primary key, aggregate_id uuid not null, event_type "
        "text not null, version int not null default 1, payload json not null, created_at "
        "timestamptz not null default now(), processed boolean not null default false, "
        "processed_at timestamptz, error_message text, metadata jsonb)",
    };
    const int64_t three = 3;
    const struct outbox_event many[] = {
        {.type = "order.order.placed.v1", .aggregate_id = UUID, .payload = "{\"a\":1}"},
        {.type = "b", .aggregate_id = UUID, .payload = "2", .schema_version = &three},
    };
    struct bench *b = *state;
    struct outbox_ctx *ctx = outbox_ctx_new();
    struct outbox_error err;
    char ids[2][OUTBOX_ID_SIZE];

    assert_int_equal(outbox_ctx_set(ctx, OUTBOX_CTX_USER, "anna"), OUTBOX_OK);
    for (size_t i = 0; i < ROWS(forms); i++) {
        bool there;
        sql(b, "drop table if exists outbox_events");
        sql(b, "%s", forms[i]);
        struct outbox_pg_target *t = profile(b, "polyshop");
        sql(b, "begin");
        if (outbox_pg_emit_many(b->app, t, ctx, many, 2, ids, &err) != OUTBOX_OK)
            fail_msg("%s", err.text);
        sql(b, "commit");
        assert_int_equal(outbox_pg_exists(b->app, t, ids[1], &there, &err), OUTBOX_OK);
        assert_true(there);
        assert_int_equal(outbox_pg_exists(b->app, t, UUID, &there, &err), OUTBOX_OK);
        assert_false(there);
        assert_text(
            b,
            "select string_agg(concat_ws('|', aggregate_id, event_type, version, case when "
            "position('metadata' in payload::text) > 0 then (payload::jsonb - 'metadata')::text "
            "else payload::text end, processed, coalesce(processed_at::text, '-'), "
            "coalesce(error_message, '-'), "
            "created_at = (select max(created_at) from outbox_events)), ';' order by "
            "event_type desc) from outbox_events",
            i ? UUID "|order.order.placed.v1|1|{\"a\":1}|f|-|-|t;" UUID "|b|3|2|f|-|-|t"
              : UUID "|order.order.placed.v1|1|{\"a\": 1}|f|-|-|t;" UUID "|b|3|2|f|-|-|t");
        if (i) /* metadata where the table has such a column, else in the payload */
            assert_int_equal(num(b, "select count(*) from outbox_events where metadata ->> "
                                    "'userId' = 'anna'"),
                             2);
        outbox_pg_target_close(t);
    }
    outbox_ctx_free(ctx);
}

/* A context in a table without a metadata column: in the payload's member metadata, where the
 * profile's envelope finds it. What the payload says itself stays, byte for byte. */
static void a_context_goes_into_the_payload(void **state)
{
    static const struct {
        const char *name, *payload, *want; /* <t>: the time */
    } rows[] = {
        {"an object", "{\"a\":1.50}",
         "{\"metadata\":{\"userId\":\"anna\",\"traceparent\":\"" PARENT "\",\"traceId\":\"" TRACE
         "\",\"timestamp\":<t>},\"a\":1.50}"},
        {"an empty object", " { } ",
         "{\"metadata\":{\"userId\":\"anna\",\"traceparent\":\"" PARENT "\",\"traceId\":\"" TRACE
         "\",\"timestamp\":<t>}}"},
        {"metadata of its own",
         "{\"b\": 1, \"metadata\" : {\"userId\": 7, \"traceId\":\"x\"}, \"c\":2}",
         "{\"b\": 1, \"metadata\" : {\"traceparent\":\"" PARENT
         "\",\"timestamp\":<t>,\"userId\": 7, \"traceId\":\"x\"}, \"c\":2}"},
        {"metadata that is no object", "{\"metadata\":\"m\"}", "{\"metadata\":\"m\"}"},
        {"a list", "[1]", "[1]"},
        {"a number", "2", "2"},
    };
    struct bench *b = *state;
    struct outbox_ctx *ctx = outbox_ctx_new();

    assert_int_equal(outbox_ctx_set(ctx, OUTBOX_CTX_USER, "anna"), OUTBOX_OK);
    assert_int_equal(outbox_ctx_set(ctx, OUTBOX_CTX_TRACEPARENT, PARENT), OUTBOX_OK);
    sql(b, "create table outbox_events (id uuid primary key, aggregate_id text not null, "
           "event_type text not null, version int not null default 1, payload json not null, "
           "created_at timestamptz not null default now(), processed boolean not null default "
           "false, processed_at timestamptz, error_message text)");
    struct outbox_pg_target *t = profile(b, "polyshop");
    for (size_t i = 0; i < ROWS(rows); i++) {
        const struct outbox_event e = {
            .type = "order.paid", .aggregate_id = "7", .payload = rows[i].payload};
        char got[1024];
        write_one(b, t, ctx, &e, NULL);
        text(b, got, sizeof(got),
             "with gone as (delete from outbox_events returning payload) select "
             "regexp_replace(payload::text, '\"[-0-9]+T[:.0-9]+Z\"', '<t>') from gone");
        row_str(rows[i].name, "payload", ob_str_c(got), ob_str_c(rows[i].want));
    }
    outbox_pg_target_close(t);
    outbox_ctx_free(ctx);
}

#define ORION                                                                                      \
    "create table outbox (id uuid primary key default gen_random_uuid(), tenant_id uuid not null," \
    " aggregate_type varchar(100) not null, aggregate_id uuid not null, event_type varchar(100) "  \
    "not null, payload jsonb not null, metadata jsonb not null default '{}', created_at "          \
    "timestamptz not null default now(), processed_at timestamptz, retry_count int not null "      \
    "default 0, last_error text, sequence_number bigserial)"

static void orion_stamps_its_context(void **state)
{
    const struct outbox_event created = {.type = "rfq.created",
                                         .aggregate_type = "rfq",
                                         .aggregate_id = UUID,
                                         .payload = "{\"n\":1}"};
    struct outbox_event own = created;
    struct bench *b = *state;
    struct outbox_ctx *ctx = outbox_ctx_new();

    assert_int_equal(outbox_ctx_set(ctx, OUTBOX_CTX_TENANT, "01920000-0000-7000-8000-00000000000a"),
                     OUTBOX_OK);
    assert_int_equal(outbox_ctx_set(ctx, OUTBOX_CTX_USER, "anna"), OUTBOX_OK);
    assert_int_equal(outbox_ctx_set(ctx, OUTBOX_CTX_CORRELATION_ID, "c-1"), OUTBOX_OK);
    sql(b, ORION);
    struct outbox_pg_target *t = profile(b, "orion");
    write_one(b, t, ctx, &created, NULL);
    assert_text(b,
                "select concat_ws('|', tenant_id, aggregate_type, aggregate_id, event_type, "
                "payload, retry_count, processed_at is null, last_error is null, sequence_number, "
                "metadata - 'timestamp', metadata ->> 'timestamp' ~ '^[-0-9]+T[:0-9]+.[0-9]+Z$') "
                "from outbox",
                "01920000-0000-7000-8000-00000000000a|rfq|" UUID "|rfq.created|{\"n\": 1}|0|t|t|1|"
                "{\"userId\": \"anna\", \"tenantId\": \"01920000-0000-7000-8000-00000000000a\", "
                "\"correlationId\": \"c-1\"}|t");
    own.tenant = "01920000-0000-7000-8000-00000000000b";
    own.metadata = "{\"correlationId\":\"mine\"}";
    write_one(b, t, ctx, &own, NULL);
    assert_text(b,
                "select tenant_id || '|' || (metadata ->> 'correlationId') from outbox where "
                "sequence_number = 2",
                "01920000-0000-7000-8000-00000000000b|mine");
    own.metadata = NULL;
    write_one(b, t, NULL, &own, NULL); /* without a context: the table's own default */
    assert_text(b, "select metadata from outbox where sequence_number = 3", "{}");
    refuse(b, t, "no tenant", &created, "tenant");
    outbox_pg_target_close(t);
    outbox_ctx_free(ctx);
}

/* Thousands in one statement get their numbers in order, with defaults where a field is left out.
 */
static void many_in_order(void **state)
{
    enum { N = 3000 };
    struct bench *b = *state;
    struct outbox_event *events = calloc(N, sizeof(*events));
    char(*payloads)[16] = calloc(N, sizeof(*payloads));
    struct outbox_error err;

    sql(b, ORION);
    struct outbox_pg_target *t = profile(b, "orion");
    for (int i = 0; i < N; i++) {
        snprintf(payloads[i], sizeof(payloads[i]), "%d", i);
        events[i] = (struct outbox_event){.type = "t",
                                          .aggregate_type = "rfq",
                                          .aggregate_id = UUID,
                                          .tenant = UUID,
                                          .payload = payloads[i],
                                          .metadata = i % 2 ? "{\"odd\":1}" : NULL};
    }
    sql(b, "begin");
    if (outbox_pg_emit_many(b->app, t, NULL, events, N, NULL, &err) != OUTBOX_OK)
        fail_msg("%s", err.text);
    sql(b, "commit");
    assert_int_equal(num(b, "select count(*) from outbox where payload::text::int = "
                            "sequence_number - 1 and metadata = case when sequence_number %% 2 = 0 "
                            "then '{\"odd\":1}' else '{}' end::jsonb"),
                     N);
    outbox_pg_target_close(t);
    free(events);
    free(payloads);
}

static void microdao_finds_the_stream(void **state)
{
    static const struct {
        const char *type, *stream;
    } rows[] = {
        {"agent.run.started", "STREAM_AGENT_RUN"},
        {"agent.run", "STREAM_AGENT_RUN"},
        {"embassy.opened", "STREAM_EMBASSY"},
        {"rwa.inventory.updated", "STREAM_RWA"},
        {"payout.generated", "STREAM_PAYOUT"},
        {"payouts", NULL},
        {"agent.runner", NULL},
        {"agent", NULL},
    };
    static const struct outbox_pg_stream own[] = {
        {"", "REST"}, {"agent", "A"}, {"agent.run", "AR"}};
    struct bench *b = *state;
    char id[OUTBOX_ID_SIZE], got[256], want[256];

    sql(b, "create table outbox_events (id text primary key, stream text not null, topic text not "
           "null, payload jsonb not null, created_at timestamptz default now(), processed bool "
           "default false, processed_at timestamptz, error text)");
    struct outbox_pg_target *t = profile(b, "microdao");
    for (size_t i = 0; i < ROWS(rows); i++) {
        const struct outbox_event e = {.type = rows[i].type, .payload = "{}"};
        if (!rows[i].stream) {
            refuse(b, t, rows[i].type, &e, "no stream");
            continue;
        }
        write_one(b, t, NULL, &e, id);
        snprintf(want, sizeof(want), "%s|%s|%s|{}|f|t|t", id, rows[i].stream, rows[i].type);
        text(b, got, sizeof(got),
             "select concat_ws('|', id, stream, topic, payload, processed, error is null, "
             "created_at is not null) from outbox_events order by id desc limit 1");
        row_str(rows[i].type, "row", ob_str_c(got), ob_str_c(want));
    }
    const struct outbox_event snowflake = {
        .type = "payout.generated", .topic = "payout.generated", .id = "7012", .payload = "1"};
    write_one(b, t, NULL, &snowflake, id);
    assert_string_equal(id, "7012");
    const struct outbox_event other = {.type = "a", .topic = "payout.b", .payload = "1"};
    refuse(b, t, "type and topic differ", &other, "type");
    outbox_pg_target_close(t);
    /* A map of one's own; the longest prefix wins. */
    const struct outbox_pg_options o = {.profile = "microdao", .streams = own, .n_streams = 3};
    t = target(b, &o);
    const struct outbox_event run = {.type = "agent.run.x", .payload = "1", .id = "o1"};
    const struct outbox_event agent = {.type = "agent.x", .payload = "1", .id = "o2"};
    const struct outbox_event rest = {.type = "z", .payload = "1", .id = "o3"};
    write_one(b, t, NULL, &run, NULL);
    write_one(b, t, NULL, &agent, NULL);
    write_one(b, t, NULL, &rest, NULL);
    assert_text(b,
                "select string_agg(stream, ',' order by id) from outbox_events where id like "
                "'o%'",
                "AR,A,REST");
    outbox_pg_target_close(t);
}

static void farmwise_starts_pending(void **state)
{
    static const struct {
        const char *name, *status, *created, *want;
    } rows[] = {
        {"text", "text not null", "timestamptz not null", "Pending"},
        {"varchar", "varchar(20)", "timestamp not null", "Pending"},
        {"integer", "integer not null", "timestamptz not null default now()", "0"},
        {"with a default of its own", "integer not null default 3", "timestamptz", "0"},
    };
    struct bench *b = *state;
    const struct outbox_event e = {
        .type = "FarmManagement.Fields.FieldCreated, FarmManagement.Domain, Version=1.0.0.0",
        .payload = "{ \"FieldId\" : 1 }"};

    for (size_t i = 0; i < ROWS(rows); i++) {
        char got[256], want[256];
        sql(b, "drop table if exists \"OutboxMessage\"");
        sql(b,
            "create table \"OutboxMessage\" (\"Id\" uuid primary key, \"EventType\" text not null, "
            "\"Payload\" text not null, \"Status\" %s, \"CreatedAt\" %s, \"ProcessedAt\" "
            "timestamptz, \"RetryCount\" int %s, \"Error\" text)",
            rows[i].status, rows[i].created, i ? "not null" : "default 0");
        struct outbox_pg_target *t = profile(b, "farmwise");
        write_one(b, t, NULL, &e, NULL);
        text(b, got, sizeof(got),
             "select concat_ws('|', \"EventType\", \"Payload\", \"Status\", \"RetryCount\", "
             "\"ProcessedAt\" is null, \"CreatedAt\" > now() - interval '1 day') from "
             "\"OutboxMessage\"");
        snprintf(want, sizeof(want), "%s|%s|%s|0|t|t", e.type, (const char *)e.payload,
                 rows[i].want);
        row_str(rows[i].name, "row", ob_str_c(got), ob_str_c(want));
        outbox_pg_target_close(t);
    }
}

static void debezium_by_the_type_of_its_payload(void **state)
{
    static const struct {
        const char *name, *id, *payload;
        struct outbox_event e;
        const char *want; /* NULL: refused */
    } rows[] = {
        {"jsonb", "uuid", "jsonb", {.payload = "{\"a\":1}"}, "{\"a\": 1}"},
        {"json", "uuid", "json", {.payload = "{\"a\":1}"}, "{\"a\":1}"},
        {"text",
         "varchar(255)",
         "text",
         {.payload = "plain", .payload_kind = OUTBOX_TEXT},
         "plain"},
        {"bytes",
         "uuid",
         "bytea",
         {.payload = "\0\xff", .payload_size = 2, .payload_kind = OUTBOX_BYTES},
         "\\x00ff"},
        {"a tombstone", "uuid", "jsonb", {.payload = NULL}, ""},
        {"text for jsonb", "uuid", "jsonb", {.payload = "x", .payload_kind = OUTBOX_TEXT}, NULL},
        {"bytes for text",
         "uuid",
         "text",
         {.payload = "x", .payload_size = 1, .payload_kind = OUTBOX_BYTES},
         NULL},
    };
    struct bench *b = *state;

    for (size_t i = 0; i < ROWS(rows); i++) {
        struct outbox_event e = rows[i].e;
        char got[256];
        e.type = "OrderPlaced";
        e.aggregate_type = "order";
        e.aggregate_id = "7";
        sql(b, "drop table if exists outbox");
        sql(b,
            "create table outbox (id %s primary key, aggregatetype varchar(255) not null, "
            "aggregateid varchar(255) not null, type varchar(255) not null, payload %s)",
            rows[i].id, rows[i].payload);
        struct outbox_pg_target *t = profile(b, "debezium");
        if (rows[i].want) {
            write_one(b, t, NULL, &e, NULL);
            text(b, got, sizeof(got),
                 "select payload from outbox where aggregatetype = 'order' "
                 "and aggregateid = '7' and type = 'OrderPlaced'");
            row_str(rows[i].name, "payload", ob_str_c(got), ob_str_c(rows[i].want));
        } else {
            refuse(b, t, rows[i].name, &e, "payload");
        }
        outbox_pg_target_close(t);
    }
}

/* Nothing that was said is dropped in silence, except what a context alone says. */
static void fields_without_a_column(void **state)
{
    const int64_t one = 1;
    const struct {
        const char *name;
        struct outbox_event e;
    } rows[] = {
        {"aggregate_type", {.aggregate_type = "x"}},
        {"tenant", {.tenant = "x"}},
        {"aggregate_id", {.aggregate_id = "x"}},
        {"topic", {.topic = "x"}},
        {"key", {.key = "x"}},
        {"headers", {.headers = "{}"}},
        {"metadata", {.metadata = "{}"}},
        {"entity_version", {.entity_version = &one}},
        {"max_attempts", {.max_attempts = 3}},
        {"schema_version", {.schema_version = &one}},
    };
    static const struct outbox_pg_column columns[] = {
        {"id", "i d"}, {"type", "t\"y"}, {"payload", "p"}};
    const struct outbox_pg_options o = {
        .schema = "an\"other", .table = "a table", .columns = columns, .n_columns = 3};
    struct bench *b = *state;
    struct outbox_ctx *ctx = outbox_ctx_new();

    sql(b, "create schema \"an\"\"other\"; create table \"an\"\"other\".\"a table\" (\"i d\" "
           "bigint, \"t\"\"y\" text, p text)");
    struct outbox_pg_target *t = target(b, &o);
    for (size_t i = 0; i < ROWS(rows); i++) {
        struct outbox_event e = rows[i].e;
        e.type = "t";
        e.payload = "{}";
        refuse(b, t, rows[i].name, &e, rows[i].name);
    }
    const struct outbox_event fine = {.type = "t", .payload = "{}", .id = "12"};
    assert_int_equal(outbox_ctx_set(ctx, OUTBOX_CTX_TENANT, "x"), OUTBOX_OK);
    write_one(b, t, ctx, &fine, NULL);
    assert_int_equal(num(b, "select \"i d\" from \"an\"\"other\".\"a table\""), 12);
    outbox_ctx_free(ctx);
    outbox_pg_target_close(t);
}

static void no_such_target(void **state)
{
    static const struct outbox_pg_column wrong[] = {{"colour", "c"}};
    static const struct outbox_pg_column only_id[] = {{"id", "id"}};
    static const struct outbox_pg_column more[] = {
        {"id", "id"}, {"type", "id"}, {"payload", "nope"}};
    static const struct outbox_pg_column three[] = {
        {"id", "id"}, {"type", "id"}, {"payload", "id"}};
    const struct {
        const char *name;
        struct outbox_pg_options o;
        enum outbox_status st;
        const char *text;
    } rows[] = {
        {"no such profile", {.profile = "orio"}, OUTBOX_REJECT, "polyshop"},
        {"no such table", {.profile = "orion"}, OUTBOX_FATAL, "no table outbox"},
        {"not in that schema", {.profile = "orion", .schema = "s"}, OUTBOX_FATAL, "s.outbox"},
        {"no such field",
         {.table = "a", .columns = wrong, .n_columns = 1},
         OUTBOX_REJECT,
         "colour"},
        {"too few columns",
         {.table = "a", .columns = only_id, .n_columns = 1},
         OUTBOX_FATAL,
         "payload"},
        {"a column that is not there",
         {.table = "a", .columns = more, .n_columns = 3},
         OUTBOX_FATAL,
         "nope"},
        {"a column that nobody fills",
         {.table = "b", .columns = three, .n_columns = 3},
         OUTBOX_FATAL,
         "must have a value"},
        {"no table", {.columns = three, .n_columns = 3}, OUTBOX_REJECT, "table"},
    };
    struct bench *b = *state;

    sql(b, "create table a (id text); create table b (id text, other int not null)");
    for (size_t i = 0; i < ROWS(rows); i++) {
        struct outbox_pg_target *t = NULL;
        struct outbox_error err = {.text = ""};
        row_int(rows[i].name, "status", outbox_pg_target_open(b->app, &rows[i].o, &t, &err),
                rows[i].st);
        if (!strstr(err.text, rows[i].text))
            fail_msg("row '%s': %s", rows[i].name, err.text);
        ROW_TRUE(rows[i].name, t == NULL);
    }
}

/* A value that does not fit is an error and never cut. */
static void too_long_is_refused(void **state)
{
    struct bench *b = *state;
    char type[102];
    const struct outbox_event e = {.type = type,
                                   .aggregate_type = "rfq",
                                   .aggregate_id = UUID,
                                   .tenant = UUID,
                                   .payload = "1"};
    struct outbox_error err;

    memset(type, 'x', 101);
    type[101] = '\0';
    sql(b, ORION);
    struct outbox_pg_target *t = profile(b, "orion");
    sql(b, "begin");
    assert_int_equal(outbox_pg_emit(b->app, t, NULL, &e, NULL, &err), OUTBOX_REJECT);
    assert_non_null(strstr(err.text, "22001"));
    sql(b, "rollback");
    type[100] = '\0';
    write_one(b, t, NULL, &e, NULL);
    assert_int_equal(num(b, "select length(event_type) from outbox"), 100);
    outbox_pg_target_close(t);
}

static void serialize_holds_the_key(void **state)
{
    const struct outbox_pg_options o = {.profile = "orion", .flags = OUTBOX_PG_SERIALIZE};
    const struct outbox_event e = {
        .type = "t", .aggregate_type = "rfq", .aggregate_id = UUID, .tenant = UUID, .payload = "1"};
    struct bench *b = *state;
    struct outbox_error err;
    PGconn *other = session(b);

    sql(b, ORION);
    struct outbox_pg_target *t = target(b, &o);
    sql(b, "begin");
    assert_int_equal(outbox_pg_emit(b->app, t, NULL, &e, NULL, &err), OUTBOX_OK);
    sql_on(other, "set lock_timeout = '50ms'; begin");
    assert_int_equal(outbox_pg_emit(other, t, NULL, &e, NULL, &err), OUTBOX_RETRY);
    sql_on(other, "rollback");
    /* It drew no number: the lock comes first. */
    assert_int_equal(num(b, "select last_value from outbox_sequence_number_seq"), 1);
    sql(b, "commit");
    sql_on(other, "begin");
    assert_int_equal(outbox_pg_emit(other, t, NULL, &e, NULL, &err), OUTBOX_OK);
    sql_on(other, "commit");
    PQfinish(other);
    outbox_pg_target_close(t);
}

#define T(name) cmocka_unit_test_setup(name, setup)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(polyshop),
        T(a_context_goes_into_the_payload),
        T(orion_stamps_its_context),
        T(many_in_order),
        T(microdao_finds_the_stream),
        T(farmwise_starts_pending),
        T(debezium_by_the_type_of_its_payload),
        T(fields_without_a_column),
        T(no_such_target),
        T(too_long_is_refused),
        T(serialize_holds_the_key),
    };

    if (server_missing())
        return 0;
    bench_empty(&shared);
    sql(&shared, "set client_min_messages = warning");
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    bench_clear(&shared);
    return failed;
}
