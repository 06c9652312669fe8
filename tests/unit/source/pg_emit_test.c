/* SPDX-License-Identifier: Apache-2.0 */
/* pg_emit_test - `emit` by people: the native outbox, and a table that the config describes. */
#include "pg_harness.h"

#include <stdio.h>
#include <stdlib.h>

static struct bench shared;

static int setup(void **state)
{
    *state = &shared;
    memset(&shared.conf.mapping, 0, sizeof(shared.conf.mapping));
    return 0;
}

static void emit_events(struct bench *b, const struct ob_emit *events, size_t n, char (*ids)[64],
                        enum ob_status want, const char *why)
{
    struct ob_admin *a = open_admin(b);
    struct ob_err err = {.text = ""};
    enum ob_status st = ob_pg_admin.emit(a, events, n, ids, &err);

    if (st != want || !strstr(err.text, why))
        fail_msg("status %d, not %d: %s", (int)st, (int)want, err.text);
    ob_pg_admin.close(a);
}

#define NONE .entity_version = OB_NO_VERSION, .schema_version = OB_NO_VERSION

static void native_all_or_none(void **state)
{
    struct bench *b = *state;
    struct ob_emit e[3] = {
        {.type = OB_STR("a"), .payload = OB_STR("[1, 2]"), .key = OB_STR("k"), NONE},
        {.type = OB_STR("b"), .payload_kind = OB_PAYLOAD_BYTES, .payload = {"\0\xff", 2}, NONE},
        {.type = OB_STR("c"), .payload_kind = OB_PAYLOAD_NULL, .id = OB_STR("no uuid"), NONE},
    };
    char ids[3][64], got[200];

    emit_events(b, e, 3, ids, OB_REJECT, "event 3");
    assert_int_equal(num(b, "select count(*) from outbox.event"), 0);
    e[2].id = (struct ob_str){0};
    e[2].entity_version = 7;
    emit_events(b, e, 3, ids, OB_OK, "");
    emit_events(b, e, 0, NULL, OB_OK, "");
    text(b, got, sizeof(got),
         "select string_agg(concat_ws(':', type, payload_kind, coalesce(encode(payload, 'hex'), "
         "'-'), entity_version, key), ',' order by seq) from outbox.event");
    assert_string_equal(got, "a:j:5b312c20325d:k,b:b:00ff,c:j:-:7");
    assert_int_equal(
        num(b, "select count(*) from outbox.event where id = '%s' and type = 'c'", ids[2]), 1);
}

static void mapped_with_status_and_optional_columns(void **state)
{
    static const char *values[] = {"Pending", "0"};
    static const struct {
        const char *name, *type, *want;
    } rows[] = {{"text", "text", "Pending"}, {"integer", "int", "0"}};
    struct bench *b = *state;
    struct ob_mapping *m = &b->conf.mapping;
    const struct ob_emit e = {
        .type = OB_STR("A, B"), .payload = OB_STR("{ }"), .tenant = OB_STR("t"), NONE};
    struct ob_emit bad = e;
    char ids[1][64];

    bad.headers = OB_STR("{\"h\":1}");
    m->schema = "public";
    m->table = "OutboxMessage";
    m->col[OB_MAP_ID] = "Id";
    m->col[OB_MAP_TYPE] = "EventType";
    m->col[OB_MAP_PAYLOAD] = "Payload";
    m->col[OB_MAP_STATUS] = "Status";
    m->col[OB_MAP_CREATED] = "CreatedAt";
    m->col[OB_MAP_HEADERS] = "Headers?";
    m->col[OB_MAP_TENANT] = "Tenant?";
    m->pending = (struct ob_opt_list){.values = values, .n = 2};
    for (size_t i = 0; i < ROWS(rows); i++) {
        sql(b, "drop table if exists \"OutboxMessage\"");
        sql(b,
            "create table \"OutboxMessage\" (\"Id\" uuid primary key, \"EventType\" text, "
            "\"Payload\" text, \"Status\" %s not null, \"CreatedAt\" timestamptz not null, "
            "\"Tenant\" text)",
            rows[i].type);
        emit_events(b, &e, 1, ids, OB_OK, "");
        row_int(rows[i].name, "rows",
                num(b,
                    "select count(*) from \"OutboxMessage\" where \"Status\" = '%s' and \"Id\" = "
                    "'%s' and \"Payload\" = '{ }' and \"Tenant\" = 't' and \"EventType\" = 'A, B'",
                    rows[i].want, ids[0]),
                1);
        emit_events(b, &bad, 1, ids, OB_REJECT, "headers");
    }
    m->col[OB_MAP_HEADERS] = "Headers";
    emit_events(b, &e, 1, ids, OB_FATAL, "Headers");
    m->table = "Nowhere";
    emit_events(b, &e, 1, ids, OB_FATAL, "Nowhere");
}

static void mapped_with_streams(void **state)
{
    static const char *keys[] = {"payout", "agent.run"}, *values[] = {"P", "A"};
    struct bench *b = *state;
    struct ob_mapping *m = &b->conf.mapping;
    const struct ob_emit e[] = {{.type = OB_STR("agent.run.x"), .payload = OB_STR("1"), NONE},
                                {.type = OB_STR("payout"), .payload = OB_STR("2"), NONE}};
    const struct ob_emit bad = {.type = OB_STR("agent.x"), .payload = OB_STR("1"), NONE};
    char got[64];

    sql(b, "create table mine (id text primary key, stream text not null, topic text not null, "
           "payload jsonb, processed bool)");
    m->schema = "public";
    m->table = "mine";
    m->col[OB_MAP_ID] = "id";
    m->col[OB_MAP_STREAM] = "stream";
    m->col[OB_MAP_TOPIC] = "topic";
    m->col[OB_MAP_PAYLOAD] = "payload";
    m->col[OB_MAP_DONE] = "processed";
    m->streams = (struct ob_opt_map){.keys = keys, .values = values, .n = 2};
    emit_events(b, e, 2, NULL, OB_OK, "");
    emit_events(b, &bad, 1, NULL, OB_REJECT, "no stream");
    text(b, got, sizeof(got),
         "select string_agg(concat_ws(' ', stream, topic, processed), ',' order by id) from mine");
    assert_string_equal(got, "A agent.run.x f,P payout f");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(native_all_or_none, setup),
        cmocka_unit_test_setup(mapped_with_status_and_optional_columns, setup),
        cmocka_unit_test_setup(mapped_with_streams, setup),
    };

    if (server_missing())
        return 0;
    bench_init(&shared);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    bench_clear(&shared);
    return failed;
}
