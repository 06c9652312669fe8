/* SPDX-License-Identifier: Apache-2.0 */
/* envelope_test - whole messages: address, headers and value, byte for byte. */
#include "fixture.h"

#define ID "0194c9a7-0000-7000-8000-000000000001"

static const char polyshop[] =
    "envelope:\n"
    "  template:\n"
    "    eventId: ${id}\n"
    "    timestamp: ${created}\n"
    "    eventType: ${type}\n"
    "    version: ${schema_version:-1}\n"
    "    source: ${service}\n"
    "    data: ${payload}\n"
    "    metadata:\n"
    "      traceId: ${metadata:/traceId:-${payload:/metadata/traceId}}\n"
    "      correlationId: ${metadata:/correlationId:-${payload:/metadata/correlationId}}\n"
    "      idempotencyKey: "
    "${metadata:/idempotencyKey:-${payload:/metadata/idempotencyKey:-${id}}}\n"
    "      userId: ${metadata:/userId:-${payload:/metadata/userId}}\n"
    "routes:\n"
    "  - match: {type: 'payment.*'}\n"
    "    topic: ${type}\n"
    "    key: ${payload:/orderId}\n"
    "  - topic: ${type}\n"
    "    key: ${aggregate_id}\n";

#define ORION_HEADERS                                                                              \
    "headers: {x-tenant-id: '${tenant}', x-event-type: '${type}', "                                \
    "x-correlation-id: '${metadata:/correlationId:-}'}"

static const char orion[] =
    "envelope:\n"
    "  template:\n"
    "    eventId: ${id}\n"
    "    eventType: ${type}\n"
    "    aggregateType: ${aggregate_type}\n"
    "    aggregateId: ${aggregate_id}\n"
    "    payload: ${payload}\n"
    "    metadata:\n"
    "      $merge: [\"${metadata}\", {tenantId: \"${tenant}\"}]\n"
    "    timestamp: ${now}\n"
    "routes:\n"
    "  - match: {type: [rfq.created, rfq.quoted, rfq.executed, trade.executed, trade.confirmed,\n"
    "                   order.created, order.filled]}\n"
    "    topic: orion.${type}\n"
    "    " ORION_HEADERS "\n"
    "  - {match: {type: tenant.created}, topic: orion.tenant.events, " ORION_HEADERS "}\n"
    "  - {match: {type: instrument.created}, topic: orion.instrument.events, " ORION_HEADERS "}\n"
    "  - {topic: orion.events.default, " ORION_HEADERS "}\n";

static const char sc[] = "envelope: none\n"
                         "routes:\n"
                         "  - topic: '${topic:-sc.domain.${aggregate_type}}'\n"
                         "    headers:\n"
                         "      event_id: ${id}\n"
                         "      event_type: ${type}\n"
                         "      entity_type: ${aggregate_type}\n"
                         "      entity_id: ${aggregate_id}\n"
                         "      entity_version: ${entity_version}\n";

/* The router's `table.fields.additional.placement`: type to a header, tenant into the value. */
static const char debezium_placed[] = "envelope:\n"
                                      "  template: {payload: '${payload}', tenant: '${tenant}'}\n"
                                      "routes:\n"
                                      "  - topic: outbox.event.${aggregate_type}\n"
                                      "    key: ${aggregate_id}\n"
                                      "    headers: {id: '${id}', eventType: '${type}'}\n";

static const struct golden {
    const char *name, *yaml, *service;
    struct ob_event ev;
    const char *want;
} golden[] = {
    {"none",
     "envelope: none\n",
     "shop",
     {.id = S(ID), .type = S("t"), .aggregate_id = S("a"), .payload = S("{ \"x\" :1}\n")},
     "outbox key=a type=application/json\n\n{ \"x\" :1}\n"},
    {"json: verbatim",
     "envelope: json\n",
     "shop",
     {.id = S(ID),
      .type = S("t"),
      .aggregate_id = S("a"),
      .payload = S("{ \"x\" :1}\n"),
      .payload_kind = OB_PAYLOAD_TEXT},
     "outbox key=a type=application/json\n\n{ \"x\" :1}\n"},
    {"none: row's own topic, key and stream",
     "envelope: none\n",
     "shop",
     {.id = S(ID),
      .topic = S("payout.generated"),
      .stream = S("STREAM_PAYOUT"),
      .key = S("k"),
      .aggregate_id = S("a"),
      .payload = S("{}")},
     "payout.generated stream=STREAM_PAYOUT key=k type=application/json\n\n{}"},
    {"none: no payload at all",
     "envelope: none\n",
     "shop",
     {.id = S(ID), .payload_kind = OB_PAYLOAD_NULL},
     "outbox key=" ID " type=\n\n(null)"},
    {"none: invalid JSON is the reader's business",
     "envelope: none\n",
     "shop",
     {.id = S(ID), .payload = S("{")},
     "outbox key=" ID " type=application/json\n\n{"},
    {"none: empty JSON verbatim",
     "envelope: none\n",
     "shop",
     {.id = S(ID), .payload = S("")},
     "outbox key=" ID " type=application/json\n\n"},
    {"none: bytes",
     "envelope: none\n",
     "shop",
     {.id = S(ID), .payload = S("\xff"), .payload_kind = OB_PAYLOAD_BYTES},
     "outbox key=" ID " type=application/octet-stream\n\n\xff"},
    {"cloudevents is the default",
     "",
     "shop",
     {.id = S(ID),
      .type = S("order.placed"),
      .aggregate_id = S("o-7"),
      .payload = S("{}"),
      .entity_version = OB_NO_VERSION,
      .schema_version = OB_NO_VERSION},
     "outbox key=o-7 type=application/json\n"
     "ce_specversion: 1.0\n"
     "ce_id: " ID "\n"
     "ce_source: shop\n"
     "ce_type: order.placed\n"
     "ce_subject: o-7\n"
     "\n{}"},
    {"cloudevents: everything",
     "envelope: cloudevents\n",
     "shop",
     {.id = S(ID),
      .type = S("order.placed"),
      .aggregate_type = S("order"),
      .aggregate_id = S("o-7"),
      .tenant = S("acme"),
      .payload = S("text"),
      .payload_kind = OB_PAYLOAD_TEXT,
      .metadata = S("{\"correlationId\":\"c-1\",\"traceparent\":"
                    "\"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\","
                    "\"tracestate\":\"a=b\"}"),
      .headers = S("{\"x\":1,\"ce_id\":\"forged\"}"),
      .entity_version = 3,
      .schema_version = 2,
      .created_us = CREATED_US},
     "outbox key=o-7 type=text/plain; charset=utf-8\n"
     "ce_specversion: 1.0\n"
     "ce_id: " ID "\n"
     "ce_source: shop\n"
     "ce_type: order.placed\n"
     "ce_subject: o-7\n"
     "ce_time: 2026-02-03T04:05:05.001Z\n"
     "ce_aggregatetype: order\n"
     "ce_entityversion: 3\n"
     "ce_schemaversion: 2\n"
     "ce_tenant: acme\n"
     "ce_correlationid: c-1\n"
     "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\n"
     "tracestate: a=b\n"
     "x: 1\n"
     "\ntext"},
    {"cloudevents: options",
     "envelope:\n"
     "  cloudevents:\n"
     "    prefix: ce-\n"
     "    source: /shop/${tenant}\n"
     "    type: com.example.${type}\n"
     "    subject: ''\n"
     "    extensions: {region: '${col:region}', gone: '${col:gone}'}\n"
     "routes:\n"
     "  - {topic: t, content_type: application/x-thing, time: epoch_ms}\n",
     "shop",
     {.id = S(ID),
      .type = S("a"),
      .aggregate_id = S("o-7"),
      .tenant = S("acme"),
      .payload = S("1"),
      .entity_version = OB_NO_VERSION,
      .schema_version = OB_NO_VERSION,
      .created_us = CREATED_US,
      .cols = &(struct ob_col){S("region"), S("eu"), OB_COL_TEXT},
      .n_cols = 1},
     "t key=o-7 type=application/x-thing\n"
     "ce-specversion: 1.0\n"
     "ce-id: " ID "\n"
     "ce-source: /shop/acme\n"
     "ce-type: com.example.a\n"
     "ce-time: 2026-02-03T04:05:05.001Z\n"
     "ce-tenant: acme\n"
     "ce-region: eu\n"
     "\n1"},
    {"structured: JSON",
     "envelope: cloudevents-structured\n",
     "shop",
     {.id = S(ID),
      .type = S("order.placed"),
      .aggregate_type = S("order"),
      .aggregate_id = S("o\"7"),
      .tenant = S("acme"),
      .payload = S("{\"a\": 1}"),
      .metadata = S("{\"correlation_id\":\"c-1\"}"),
      .headers = S("{\"traceparent\":"
                   "\"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\"}"),
      .entity_version = 3,
      .schema_version = INT64_C(4294967296),
      .created_us = CREATED_US},
     "outbox key=o\"7 type=application/cloudevents+json\n"
     "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\n\n"
     "{\"specversion\":\"1.0\",\"id\":\"" ID "\",\"source\":\"shop\",\"type\":\"order.placed\","
     "\"subject\":\"o\\\"7\",\"time\":\"2026-02-03T04:05:05.001Z\",\"aggregatetype\":\"order\","
     "\"entityversion\":3,\"schemaversion\":\"4294967296\",\"tenant\":\"acme\","
     "\"correlationid\":\"c-1\","
     "\"traceparent\":\"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\","
     "\"datacontenttype\":\"application/json\",\"data\":{\"a\": 1}}"},
    {"structured: text",
     "envelope: {cloudevents-structured: {extensions: {region: eu}}}\n",
     "shop",
     {.id = S(ID),
      .type = S("t"),
      .payload = S("a\"b"),
      .payload_kind = OB_PAYLOAD_TEXT,
      .entity_version = OB_NO_VERSION,
      .schema_version = OB_NO_VERSION},
     "outbox key=" ID " type=application/cloudevents+json\n\n"
     "{\"specversion\":\"1.0\",\"id\":\"" ID "\",\"source\":\"shop\",\"type\":\"t\","
     "\"region\":\"eu\",\"datacontenttype\":\"text/plain; charset=utf-8\",\"data\":\"a\\\"b\"}"},
    {"structured: text that JSON cannot hold",
     "envelope: cloudevents-structured\n",
     "shop",
     {.id = S(ID),
      .type = S("t"),
      .payload = S("\xff"),
      .payload_kind = OB_PAYLOAD_TEXT,
      .entity_version = OB_NO_VERSION,
      .schema_version = OB_NO_VERSION},
     "outbox key=" ID " type=application/cloudevents+json\n\n"
     "{\"specversion\":\"1.0\",\"id\":\"" ID "\",\"source\":\"shop\",\"type\":\"t\","
     "\"datacontenttype\":\"text/plain; charset=utf-8\",\"data_base64\":\"/w==\"}"},
    {"structured: bytes",
     "envelope: cloudevents-structured\nroutes: [{topic: t, content_type: image/png}]\n",
     "shop",
     {.id = S(ID),
      .type = S("t"),
      .payload = S("\0\1"),
      .payload_kind = OB_PAYLOAD_BYTES,
      .entity_version = OB_NO_VERSION,
      .schema_version = OB_NO_VERSION},
     "t key=" ID " type=application/cloudevents+json\n\n"
     "{\"specversion\":\"1.0\",\"id\":\"" ID "\",\"source\":\"shop\",\"type\":\"t\","
     "\"datacontenttype\":\"image/png\",\"data_base64\":\"AAE=\"}"},
    {"structured: no payload",
     "envelope: cloudevents-structured\n",
     "shop",
     {.id = S(ID),
      .type = S("t"),
      .payload_kind = OB_PAYLOAD_NULL,
      .entity_version = OB_NO_VERSION,
      .schema_version = OB_NO_VERSION},
     "outbox key=" ID " type=application/cloudevents+json\n\n"
     "{\"specversion\":\"1.0\",\"id\":\"" ID "\",\"source\":\"shop\",\"type\":\"t\"}"},
    {"debezium",
     "envelope: debezium\n",
     "shop",
     {.id = S(ID),
      .type = S("OrderCreated"),
      .aggregate_type = S("Order"),
      .aggregate_id = S("1"),
      .payload = S("{\"id\": 1}")},
     "outbox.event.Order key=1 type=application/json\nid: " ID "\n\n{\"id\": 1}"},
    {"debezium: fields placed",
     debezium_placed,
     "shop",
     {.id = S(ID),
      .type = S("OrderCreated"),
      .aggregate_type = S("Order"),
      .aggregate_id = S("1"),
      .tenant = S("acme"),
      .payload = S("{\"id\": 1}")},
     "outbox.event.Order key=1 type=application/json\nid: " ID "\neventType: OrderCreated\n\n"
     "{\"payload\":{\"id\": 1},\"tenant\":\"acme\"}"},
    {"polyshop: without metadata",
     polyshop,
     "order-service",
     {.id = S(ID),
      .type = S("order.order.placed.v1"),
      .aggregate_id = S("o-7"),
      .payload = S("{\"orderId\": \"o-7\", \"total\": 12.50}"),
      .entity_version = OB_NO_VERSION,
      .schema_version = 1,
      .created_us = CREATED_US},
     "order.order.placed.v1 key=o-7 type=application/json\n\n"
     "{\"eventId\":\"" ID "\",\"timestamp\":\"2026-02-03T04:05:05.001Z\","
     "\"eventType\":\"order.order.placed.v1\",\"version\":1,\"source\":\"order-service\","
     "\"data\":{\"orderId\": \"o-7\", \"total\": 12.50},"
     "\"metadata\":{\"traceId\":null,\"correlationId\":null,\"idempotencyKey\":\"" ID
     "\",\"userId\":null}}"},
    {"polyshop: metadata column, payment keyed by its order",
     polyshop,
     "payment-service",
     {.id = S(ID),
      .type = S("payment.payment.captured.v1"),
      .aggregate_id = S("p-1"),
      .payload = S("{\"orderId\":\"o-7\"}"),
      .metadata = S("{\"userId\":5,\"traceId\":\"t-1\",\"correlationId\":\"c-1\","
                    "\"idempotencyKey\":\"i-1\"}"),
      .entity_version = OB_NO_VERSION,
      .schema_version = 2,
      .created_us = CREATED_US},
     "payment.payment.captured.v1 key=o-7 type=application/json\n\n"
     "{\"eventId\":\"" ID "\",\"timestamp\":\"2026-02-03T04:05:05.001Z\","
     "\"eventType\":\"payment.payment.captured.v1\",\"version\":2,\"source\":\"payment-service\","
     "\"data\":{\"orderId\":\"o-7\"},"
     "\"metadata\":{\"traceId\":\"t-1\",\"correlationId\":\"c-1\",\"idempotencyKey\":\"i-1\","
     "\"userId\":5}}"},
    {"polyshop: metadata in the payload",
     polyshop,
     "auth-service",
     {.id = S(ID),
      .type = S("auth.user.created.v1"),
      .aggregate_id = S("u-1"),
      .payload = S("{\"metadata\":{\"traceId\":\"t-2\",\"userId\":\"u-1\"}}"),
      .entity_version = OB_NO_VERSION,
      .schema_version = OB_NO_VERSION,
      .created_us = CREATED_US},
     "auth.user.created.v1 key=u-1 type=application/json\n\n"
     "{\"eventId\":\"" ID "\",\"timestamp\":\"2026-02-03T04:05:05.001Z\","
     "\"eventType\":\"auth.user.created.v1\",\"version\":1,\"source\":\"auth-service\","
     "\"data\":{\"metadata\":{\"traceId\":\"t-2\",\"userId\":\"u-1\"}},"
     "\"metadata\":{\"traceId\":\"t-2\",\"correlationId\":null,\"idempotencyKey\":\"" ID
     "\",\"userId\":\"u-1\"}}"},
    {"sc",
     sc,
     "sc",
     {.id = S(ID),
      .type = S("user.created"),
      .aggregate_type = S("user"),
      .aggregate_id = S("65a1b2c3d4e5f60718293a4b"),
      .payload = S("{\"b\":1,\"a\":2}"),
      .entity_version = 4,
      .schema_version = OB_NO_VERSION},
     "sc.domain.user key=65a1b2c3d4e5f60718293a4b type=application/json\n"
     "event_id: " ID "\n"
     "event_type: user.created\n"
     "entity_type: user\n"
     "entity_id: 65a1b2c3d4e5f60718293a4b\n"
     "entity_version: 4\n"
     "\n{\"b\":1,\"a\":2}"},
    {"orion: listed type",
     orion,
     "rfq",
     {.id = S(ID),
      .type = S("rfq.created"),
      .aggregate_type = S("rfq"),
      .aggregate_id = S("r-1"),
      .tenant = S("t-9"),
      .payload = S("{\"qty\":  10}"),
      .metadata = S("{\"tenantId\":\"wrong\",\"userId\":\"u\",\"correlationId\":\"c-1\"}"),
      .created_us = CREATED_US},
     "orion.rfq.created key=r-1 type=application/json\n"
     "x-tenant-id: t-9\n"
     "x-event-type: rfq.created\n"
     "x-correlation-id: c-1\n\n"
     "{\"eventId\":\"" ID "\",\"eventType\":\"rfq.created\",\"aggregateType\":\"rfq\","
     "\"aggregateId\":\"r-1\",\"payload\":{\"qty\":  10},"
     "\"metadata\":{\"tenantId\":\"t-9\",\"userId\":\"u\",\"correlationId\":\"c-1\"},"
     "\"timestamp\":\"2026-02-03T04:05:06.789Z\"}"},
    {"orion: tenant.created, empty metadata",
     orion,
     "rfq",
     {.id = S(ID),
      .type = S("tenant.created"),
      .aggregate_type = S("tenant"),
      .aggregate_id = S("t-9"),
      .tenant = S("t-9"),
      .payload = S("{}"),
      .metadata = S("{}"),
      .created_us = CREATED_US},
     "orion.tenant.events key=t-9 type=application/json\n"
     "x-tenant-id: t-9\n"
     "x-event-type: tenant.created\n"
     "x-correlation-id: \n\n"
     "{\"eventId\":\"" ID "\",\"eventType\":\"tenant.created\",\"aggregateType\":\"tenant\","
     "\"aggregateId\":\"t-9\",\"payload\":{},\"metadata\":{\"tenantId\":\"t-9\"},"
     "\"timestamp\":\"2026-02-03T04:05:06.789Z\"}"},
    {"orion: anything else",
     orion,
     "rfq",
     {.id = S(ID),
      .type = S("rfq.expired"),
      .aggregate_type = S("rfq"),
      .aggregate_id = S("r-1"),
      .tenant = S("t-9"),
      .payload = S("[]"),
      .metadata = S("{\"a\":1}"),
      .created_us = CREATED_US},
     "orion.events.default key=r-1 type=application/json\n"
     "x-tenant-id: t-9\n"
     "x-event-type: rfq.expired\n"
     "x-correlation-id: \n\n"
     "{\"eventId\":\"" ID "\",\"eventType\":\"rfq.expired\",\"aggregateType\":\"rfq\","
     "\"aggregateId\":\"r-1\",\"payload\":[],\"metadata\":{\"a\":1,\"tenantId\":\"t-9\"},"
     "\"timestamp\":\"2026-02-03T04:05:06.789Z\"}"},
};

static void golden_messages(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof golden / sizeof golden[0]; i++) {
        const struct golden *g = &golden[i];
        const char *name = g->name;
        struct fixture f;
        fixture_init(&f);
        if (fixture_load(&f, g->yaml, g->service) != OB_OK)
            fail_msg("%s: %s", name, f.err.text);
        if (fixture_route(&f, &g->ev) != OB_OK)
            fail_msg("%s: %s", name, f.err.text);
        assert_text(ob_str_c(dump(&f)), g->want);
        fixture_clear(&f);
    }
}

/* The same shape as a library makes it: keys, order and types. */
static void jansson_agrees_with_polyshop(void **state)
{
    (void)state;
    const char *name = "polyshop";
    struct fixture f;
    struct ob_event ev = order_event();
    fixture_init(&f);
    assert_int_equal(fixture_load(&f, polyshop, "order-service"), OB_OK);
    assert_int_equal(fixture_route(&f, &ev), OB_OK);
    json_t *want =
        json_pack("{s:s,s:s,s:s,s:i,s:s,s:{s:i,s:f,s:s},s:{s:s,s:n,s:s,s:n}}", "eventId", ID,
                  "timestamp", "2026-02-03T04:05:05.001Z", "eventType", "order.placed", "version",
                  1, "source", "order-service", "data", "orderId", 7, "total", 12.5, "note", "ab",
                  "metadata", "traceId", "t-1", "correlationId", "idempotencyKey", ID, "userId");
    json_t *got = json_loadb(f.msg.value.p, f.msg.value.n, 0, NULL);
    assert_non_null(want);
    assert_true(json_equal(got, want));
    char *got_text = json_dumps(got, JSON_COMPACT), *want_text = json_dumps(want, JSON_COMPACT);
    assert_text(ob_str_c(got_text), want_text); /* in the same order */
    free(got_text);
    free(want_text);
    json_decref(got);
    json_decref(want);
    fixture_clear(&f);
}

static const struct {
    const char *name, *yaml, *says;
    struct ob_event ev;
} rejected[] = {
    {"json that is none",
     "envelope: json\n",
     "payload is not valid JSON: byte",
     {.id = S("i"), .type = S("t"), .payload = S("{x}")}},
    {"json without payload",
     "envelope: json\n",
     "payload is not valid JSON",
     {.id = S("i"), .type = S("t"), .payload_kind = OB_PAYLOAD_NULL}},
    {"cloudevents without id", "", "need an id", {.type = S("t"), .payload = S("{}")}},
    {"cloudevents without type", "", "need a type", {.id = S("i"), .payload = S("{}")}},
    {"cloudevents with an empty source",
     "envelope: {cloudevents: {source: '${tenant}'}}\n",
     "need a source",
     {.id = S("i"), .type = S("t"), .payload = S("{}")}},
    {"cloudevents with broken metadata",
     "",
     "metadata is not valid JSON: byte 1",
     {.id = S("i"), .type = S("t"), .payload = S("{}"), .metadata = S("{")}},
    {"metadata that is a list",
     "",
     "metadata is JSON but no object",
     {.id = S("i"), .type = S("t"), .payload = S("{}"), .metadata = S("[]")}},
    {"structured with broken payload",
     "envelope: cloudevents-structured\n",
     "payload is not valid JSON: byte 1",
     {.id = S("i"), .type = S("t"), .payload = S("{a")}},
    {"structured with empty payload",
     "envelope: cloudevents-structured\n",
     "payload is not valid JSON: byte 0",
     {.id = S("i"), .type = S("t")}},
    {"debezium without aggregate type",
     "envelope: debezium\n",
     "topic: ${aggregate_type} finds nothing",
     {.id = S("i"), .type = S("t"), .payload = S("{}")}},
};

static void what_an_envelope_cannot_hold(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rejected / sizeof rejected[0]; i++) {
        const char *name = rejected[i].name;
        struct fixture f;
        fixture_init(&f);
        assert_int_equal(fixture_load(&f, rejected[i].yaml, "s"), OB_OK);
        if (fixture_route(&f, &rejected[i].ev) != OB_REJECT)
            fail_msg("%s: taken", name);
        assert_says(&f.err, rejected[i].says);
        fixture_clear(&f);
    }
}

/* 16 MB in: verbatim without a copy; inside an envelope whole. */
static void large_payload(void **state)
{
    (void)state;
    size_t n = (size_t)16 << 20;
    char *big = malloc(n);
    assert_non_null(big);
    memset(big, 'a', n);
    big[0] = big[n - 1] = '"';
    struct ob_event ev = order_event();
    ev.payload = (struct ob_str){big, n};
    struct fixture f;
    fixture_init(&f);
    assert_int_equal(fixture_load(&f, "envelope: none\n", "s"), OB_OK);
    assert_int_equal(fixture_route(&f, &ev), OB_OK);
    assert_ptr_equal(f.msg.value.p, big);
    assert_true(ob_arena_used(f.arena) < 1024);
    ob_routes_free(f.routes);
    f.routes = NULL;
    assert_int_equal(fixture_load(&f, "envelope: {template: {p: '${payload}'}}\n", "s"), OB_OK);
    assert_int_equal(fixture_route(&f, &ev), OB_OK);
    assert_int_equal(f.msg.value.n, n + strlen("{\"p\":}"));
    assert_memory_equal(f.msg.value.p + 5, big, n);
    assert_true(f.scratch.cap <= (size_t)1 << 20); /* a large event leaves no large buffer behind */
    fixture_clear(&f);
    free(big);
}

/* Beyond the buffer's ceiling an event is rejected; without memory it is only put off. */
static void output_has_a_ceiling(void **state)
{
    (void)state;
    const char *name = "ceiling";
    struct ob_event ev = order_event();
    struct fixture f;
    fixture_init(&f);
    ob_buf_init(&f.scratch, 100);
    assert_int_equal(fixture_load(&f, "envelope: {template: ['${payload}','${payload}']}\n", "s"),
                     OB_OK);
    ev.payload = OB_STR("[\"1234567890123456789012345678901234567890123\"]");
    assert_int_equal(ev.payload.n, 47);
    assert_int_equal(fixture_route(&f, &ev), OB_OK);
    assert_int_equal(f.msg.value.n, 97);
    ev.payload = OB_STR("[\"12345678901234567890123456789012345678901234567\"]");
    assert_int_equal(fixture_route(&f, &ev), OB_REJECT);
    assert_says(&f.err, "larger than 100 bytes");
    ob_arena_unref(f.arena);
    f.arena = ob_arena_new(256, 256);
    ob_buf_clear(&f.scratch);
    ob_buf_init(&f.scratch, 0);
    char text[400];
    memset(text, '1', sizeof text);
    ev.payload = (struct ob_str){text, sizeof text};
    assert_int_equal(fixture_route(&f, &ev), OB_RETRY);
    assert_says(&f.err, "no memory");
    assert_int_not_equal(f.msg.dest_hash, 0);
    fixture_clear(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_messages),
        cmocka_unit_test(jansson_agrees_with_polyshop),
        cmocka_unit_test(what_an_envelope_cannot_hold),
        cmocka_unit_test(large_payload),
        cmocka_unit_test(output_has_a_ceiling),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
