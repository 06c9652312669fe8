/* SPDX-License-Identifier: Apache-2.0 */
/* route_test - which route, which address, which order; and what a config may not say. */
#include "fixture.h"

#include "route/rule.h"

static void load(struct fixture *f, const char *yaml)
{
    fixture_init(f);
    if (fixture_load(f, yaml, "shop") != OB_OK)
        fail_msg("%s: %s", yaml, f->err.text);
}

/* ---- match ---- */

static const char rules[] = "envelope: none\n"
                            "routes:\n"
                            "  - {match: {type: order.placed}, topic: exact}\n"
                            "  - {match: {type: 'order.*', tenant: [acme, 'b?b']}, topic: both}\n"
                            "  - {match: {type: 'order.*'}, topic: prefix}\n"
                            "  - {match: {aggregate_type: '*-view'}, topic: suffix}\n"
                            "  - {match: {topic: ['a.*.z', 'q']}, topic: 'by-${topic}'}\n"
                            "  - {match: {tenant: ''}, topic: no-tenant}\n"
                            "  - {match: {type: 'lit\\*'}, topic: star}\n";

static const struct {
    const char *name;
    struct ob_event ev;
    const char *want; /* NULL: no route */
} matches[] = {
    {"exact", {.type = S("order.placed"), .tenant = S("acme")}, "exact"},
    {"first match wins", {.type = S("order.paid"), .tenant = S("acme")}, "both"},
    {"any of a list", {.type = S("order.paid"), .tenant = S("bob")}, "both"},
    {"all fields must match", {.type = S("order.paid"), .tenant = S("other")}, "prefix"},
    {"prefix of nothing more", {.type = S("order."), .tenant = S("x")}, "prefix"},
    {"prefix needs its dot", {.type = S("orders"), .tenant = S("x")}, NULL},
    {"case counts", {.type = S("Order.placed"), .tenant = S("x")}, NULL},
    {"suffix", {.aggregate_type = S("user-view"), .tenant = S("x")}, "suffix"},
    {"in the middle", {.topic = S("a.b.c.z"), .tenant = S("x")}, "by-a.b.c.z"},
    {"second of a list", {.topic = S("q"), .tenant = S("x")}, "by-q"},
    {"empty pattern for an empty field", {.type = S("other")}, "no-tenant"},
    {"escaped star", {.type = S("lit*"), .tenant = S("x")}, "star"},
    {"escaped star is no glob", {.type = S("lite"), .tenant = S("x")}, NULL},
    {"nothing at all", {.tenant = S("x")}, NULL},
};

static void first_match_wins(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof matches / sizeof matches[0]; i++) {
        const char *name = matches[i].name;
        struct fixture f;
        load(&f, rules);
        enum ob_status st = fixture_route(&f, &matches[i].ev);
        if (st != (matches[i].want ? OB_OK : OB_REJECT))
            fail_msg("%s: %s", name, ob_status_name(st));
        if (matches[i].want != NULL)
            assert_text(f.msg.topic, matches[i].want);
        fixture_clear(&f);
    }
}

static void unmatched_is_rejected_and_keeps_its_key(void **state)
{
    (void)state;
    const char *name = "unmatched";
    struct ob_event ev = order_event();
    struct fixture f;
    load(&f, "routes: [{match: {type: x}, topic: t}]\n");
    assert_int_equal(fixture_route(&f, &ev), OB_REJECT);
    assert_says(&f.err, "no route matches type \"order.placed\" (aggregate_type \"order\", tenant "
                        "\"acme\", topic \"\")");
    assert_text(f.msg.destination, "outbox");
    assert_true(f.msg.key_hash == ob_hash64("o-7", 3));
    assert_true(f.msg.dest_hash == ob_hash64("outbox", 6));
    fixture_clear(&f);
}

/* ---- address ---- */

static const struct {
    const char *name, *route; /* the route's flow map, or NULL: no routes at all */
    struct ob_event ev;
    const char *topic, *key, *stream, *destination, *order_by;
} addresses[] = {
    {"all defaults", NULL, {.id = S("i")}, "outbox", "i", "", "outbox", "i"},
    {"row's topic", NULL, {.id = S("i"), .topic = S("t")}, "t", "i", "", "t", "i"},
    {"aggregate id",
     NULL,
     {.id = S("i"), .aggregate_id = S("a")},
     "outbox",
     "a",
     "",
     "outbox",
     "a"},
    {"row's key",
     NULL,
     {.id = S("i"), .aggregate_id = S("a"), .key = S("k")},
     "outbox",
     "k",
     "",
     "outbox",
     "k"},
    {"row's stream", NULL, {.id = S("i"), .stream = S("s")}, "outbox", "i", "s", "s/outbox", "i"},
    {"route's stream",
     "{topic: t, stream: 'x.${stream}'}",
     {.id = S("i"), .stream = S("s")},
     "t",
     "i",
     "x.s",
     "x.s/t",
     "i"},
    {"no stream",
     "{topic: t, stream: ''}",
     {.id = S("i"), .stream = S("s")},
     "t",
     "i",
     "",
     "t",
     "i"},
    {"route's key",
     "{topic: t, key: '${tenant}/${aggregate_id}'}",
     {.id = S("i"), .tenant = S("x"), .aggregate_id = S("a")},
     "t",
     "x/a",
     "",
     "t",
     "x/a"},
    {"no key: each is its own",
     "{topic: t, key: ''}",
     {.id = S("i"), .aggregate_id = S("a")},
     "t",
     "",
     "",
     "t",
     "i"},
    {"key that finds nothing: its own",
     "{topic: t, key: '${tenant}'}",
     {.id = S("i"), .aggregate_id = S("a")},
     "t",
     "",
     "",
     "t",
     "i"},
    {"parked row keeps its hash",
     "{topic: t, key: '${tenant}'}",
     {.id = S("i"), .tenant = S("x"), .park_n = 5, .park_hash = 99},
     "t",
     "x",
     "",
     "t",
     NULL},
};

static void addresses_and_hashes(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof addresses / sizeof addresses[0]; i++) {
        const char *name = addresses[i].name, *by = addresses[i].order_by;
        char yaml[256] = "envelope: none\n";
        struct fixture f;
        if (addresses[i].route != NULL)
            snprintf(yaml, sizeof yaml, "envelope: none\nroutes:\n  - %s\n", addresses[i].route);
        load(&f, yaml);
        if (fixture_route(&f, &addresses[i].ev) != OB_OK)
            fail_msg("%s: %s", name, f.err.text);
        assert_text(f.msg.topic, addresses[i].topic);
        assert_text(f.msg.key, addresses[i].key);
        assert_text(f.msg.stream, addresses[i].stream);
        assert_text(f.msg.destination, addresses[i].destination);
        assert_text(f.msg.id, "i");
        assert_ptr_equal(f.msg.event, &addresses[i].ev);
        if (f.msg.key_hash != (by ? ob_hash64(by, strlen(by)) : 99))
            fail_msg("%s: key_hash", name);
        assert_true(f.msg.dest_hash ==
                    ob_hash64(addresses[i].destination, strlen(addresses[i].destination)));
        fixture_clear(&f);
    }
}

static void default_topic_of_the_pipeline(void **state)
{
    (void)state;
    const char *name = "default topic";
    struct ob_event ev = order_event();
    struct fixture f;
    fixture_init(&f);
    struct ob_route_conf conf = {.default_topic = "all.${tenant}"};
    assert_int_equal(ob_routes_new(&conf, &f.routes, &f.err), OB_OK);
    assert_int_equal(fixture_route(&f, &ev), OB_OK);
    assert_text(f.msg.topic, "all.acme");
    assert_text(header_of(&f.msg, "ce_source"), "outbox"); /* no service given */
    ob_routes_free(f.routes);
    f.routes = NULL;
    conf.default_topic = "all.${tennant}";
    assert_int_equal(ob_routes_new(&conf, &f.routes, &f.err), OB_FATAL);
    assert_says(&f.err, "did you mean \"tenant\"?");
    fixture_clear(&f);
}

static char long_text[70000];

/* The reason, and key_hash, dest_hash and destination although it is rejected. */
static const struct {
    const char *name, *route;
    struct ob_event ev;
    const char *says, *destination, *order_by; /* order_by NULL: the long text */
} rejects[] = {
    {"hole in a topic",
     "{topic: 'a.${tenant}'}",
     {.id = S("i"), .topic = S("own")},
     "topic: ${tenant} finds nothing",
     "own",
     "i"},
    {"empty topic", "{topic: ''}", {.id = S("i")}, "topic is empty", "outbox", "i"},
    {"topic from broken JSON",
     "{topic: '${payload:/t}', key: '${aggregate_id}'}",
     {.id = S("i"), .payload = S("{"), .aggregate_id = S("a")},
     "topic: payload is not valid JSON: byte 1",
     "outbox",
     "a"},
    {"key from broken JSON",
     "{topic: t, key: '${payload:/k}'}",
     {.id = S("i"), .payload = S("{"), .aggregate_id = S("a")},
     "key: payload is not valid JSON: byte 1",
     "t",
     "a"},
    {"key that must be there",
     "{topic: t, key: '${tenant}', missing: reject}",
     {.id = S("i"), .aggregate_id = S("a")},
     "key: ${tenant} finds nothing",
     "t",
     "a"},
    {"header that must be there",
     "{topic: t, headers: {x: '${tenant}'}, missing: reject}",
     {.id = S("i")},
     "header x: ${tenant} finds nothing",
     "t",
     "i"},
    {"topic with a line's end",
     "{topic: '${topic}'}",
     {.id = S("i"), .topic = S("a\r\nPUB b")},
     "topic has a control character",
     "a\r\nPUB b",
     "i"},
    {"topic with a NUL",
     "{topic: '${topic}'}",
     {.id = S("i"), .topic = S("a\0")},
     "topic has a control character",
     NULL,
     "i"},
    {"stream with a line's end",
     "{topic: t}",
     {.id = S("i"), .stream = S("a\n")},
     "stream has a control character",
     "a\n/t",
     "i"},
    {"id with a line's end",
     "{topic: t}",
     {.id = S("i\n")},
     "id has a control character",
     "t",
     "i\n"},
    {"topic too long",
     "{topic: '${topic}'}",
     {.id = S("i"), .topic = {long_text, 32768}},
     "topic has 32768 bytes; at most 32767",
     NULL,
     "i"},
    {"topic of 64 KB",
     "{topic: '${topic}'}",
     {.id = S("i"), .topic = {long_text, 65536}},
     "topic has 65536 bytes; at most 32767",
     NULL,
     "i"},
    {"stream too long",
     "{topic: t}",
     {.id = S("i"), .stream = {long_text, 32768}},
     "stream has 32768 bytes; at most 32767",
     NULL,
     "i"},
    {"key of 64 KB",
     "{topic: t}",
     {.id = S("i"), .key = {long_text, 65536}},
     "key has 65536 bytes; at most 65535",
     "t",
     NULL},
    {"header too long",
     "{topic: t, headers: {x: '${tenant}'}}",
     {.id = S("i"), .tenant = {long_text, 65536}},
     "header x has 65536 bytes; at most 65535",
     "t",
     "i"},
    {"content type too long",
     "{topic: t, content_type: '${tenant}'}",
     {.id = S("i"), .tenant = {long_text, 256}},
     "content_type: longer than 255",
     "t",
     "i"},
};

static void rejects_keep_key_and_destination(void **state)
{
    (void)state;
    memset(long_text, 'x', sizeof long_text);
    for (size_t i = 0; i < sizeof rejects / sizeof rejects[0]; i++) {
        const char *name = rejects[i].name, *by = rejects[i].order_by;
        char yaml[256];
        struct fixture f;
        snprintf(yaml, sizeof yaml, "envelope: none\nroutes:\n  - %s\n", rejects[i].route);
        load(&f, yaml);
        if (fixture_route(&f, &rejects[i].ev) != OB_REJECT)
            fail_msg("%s: taken", name);
        assert_says(&f.err, rejects[i].says);
        if (rejects[i].destination != NULL)
            assert_text(f.msg.destination, rejects[i].destination);
        assert_in_range(f.msg.destination.n, 1, 256);
        assert_true(f.msg.dest_hash == ob_hash64(f.msg.destination.p, f.msg.destination.n));
        if (f.msg.key_hash != (by ? ob_hash64(by, strlen(by)) : ob_hash64(long_text, 65536)))
            fail_msg("%s: key_hash", name);
        fixture_clear(&f);
    }
}

static void longest_names_are_taken(void **state)
{
    (void)state;
    memset(long_text, 'x', sizeof long_text);
    struct ob_event ev = {.id = S("i"),
                          .topic = {long_text, 32767},
                          .stream = {long_text, 32767},
                          .key = {long_text, 65535}};
    struct fixture f;
    load(&f, "envelope: none\n");
    assert_int_equal(fixture_route(&f, &ev), OB_OK);
    assert_int_equal(f.msg.destination.n, 65535);
    assert_ptr_equal(f.msg.key.p, long_text); /* borrowed */
    fixture_clear(&f);
}

/* ---- headers ---- */

static const struct {
    const char *name, *route;
    struct ob_str headers;
    const char *want; /* "name=value;…"; NULL: rejected */
    const char *says;
} heads[] = {
    {"none", "{topic: t}", S(""), "", NULL},
    {"null", "{topic: t}", S("null"), "", NULL},
    {"empty", "{topic: t}", S("{}"), "", NULL},
    {"strings as they are, others as JSON", "{topic: t}",
     S("{\"s\":\"a\\u0062\",\"n\":1.50,\"b\":true,\"z\":null,\"o\":{\"x\": [1]}}"),
     "s=ab;n=1.50;b=true;o={\"x\": [1]};", NULL},
    {"twice: the last", "{topic: t}", S("{\"a\":1,\"b\":2,\"a\":3}"), "a=3;b=2;", NULL},
    {"escaped name", "{topic: t}", S("{\"\\u0061\":1,\"a\":2}"), "a=2;", NULL},
    {"route's before row's", "{topic: t, headers: {x: '${tenant}'}}", S("{\"a\":1}"), "x=acme;a=1;",
     NULL},
    {"route's wins", "{topic: t, headers: {a: '${tenant}'}}", S("{\"a\":1,\"b\":2}"), "a=acme;b=2;",
     NULL},
    {"row's not wanted", "{topic: t, row_headers: false, headers: {c: d}}", S("{\"a\":1}"), "c=d;",
     NULL},
    {"row's not wanted, not even looked at", "{topic: t, row_headers: no}", S("{"), "", NULL},
    {"missing is empty", "{topic: t, headers: {x: '${key}', y: 1}}", S(""), "x=;y=1;", NULL},
    {"missing left out", "{topic: t, missing: omit, headers: {x: '${key}', y: '<${key}>'}}", S(""),
     "y=<>;", NULL},
    {"control characters become spaces", "{topic: t}", S("{\"a\":\"x\\r\\ny\\u0000\\u007f\\tz\"}"),
     "a=x  y   z;", NULL},
    {"in the route's too", "{topic: t, headers: {x: '${headers:/a}'}, row_headers: false}",
     S("{\"a\":\"x\\ny\"}"), "x=x y;", NULL},
    {"other bytes stay", "{topic: t}", S("{\"\xc3\xbc\":\"\xc3\xbc \\u20ac\"}"),
     "\xc3\xbc=\xc3\xbc \xe2\x82\xac;", NULL},
    {"newline in a name", "{topic: t}", S("{\"a\\nb\":1}"), NULL, "name has a control character"},
    {"NUL in a name", "{topic: t}", S("{\"a\\u0000\":1}"), NULL, "name has a control character"},
    {"DEL in a long name", "{topic: t}", S("{\"abcdefghij\x7f\":1}"), NULL,
     "name has a control character"},
    {"no name", "{topic: t}", S("{\"\":1}"), NULL, "has no name"},
    {"a list", "{topic: t}", S("[1]"), NULL, "headers is JSON but no object"},
    {"a string", "{topic: t}", S("\"x\""), NULL, "headers is JSON but no object"},
    {"broken", "{topic: t}", S("{\"a\":1"), NULL, "headers is not valid JSON: byte 6"},
    {"more behind", "{topic: t}", S("{\"a\":1} x"), NULL, "headers is not valid JSON: byte 8"},
};

static void headers_of_route_and_row(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        const char *name = heads[i].name;
        struct ob_event ev = order_event();
        char yaml[256];
        struct fixture f;
        struct ob_buf b;
        ob_buf_init(&b, 0);
        ev.headers = heads[i].headers;
        snprintf(yaml, sizeof yaml, "envelope: none\nroutes:\n  - %s\n", heads[i].route);
        load(&f, yaml);
        enum ob_status st = fixture_route(&f, &ev);
        if (st != (heads[i].want ? OB_OK : OB_REJECT))
            fail_msg("%s: %s: %s", name, ob_status_name(st), f.err.text);
        for (size_t h = 0; st == OB_OK && h < f.msg.n_headers; h++)
            ob_buf_printf(&b, "%.*s=%.*s;", OB_STR_ARG(f.msg.headers[h].name),
                          OB_STR_ARG(f.msg.headers[h].value));
        if (heads[i].want != NULL)
            assert_text(ob_buf_view(&b), heads[i].want);
        else
            assert_says(&f.err, heads[i].says);
        ob_buf_clear(&b);
        fixture_clear(&f);
    }
}

/* Eight bytes at a time finds what one at a time does: every byte, at every place. */
static void control_characters_anywhere(void **state)
{
    (void)state;
    for (size_t n = 1; n <= 17; n++)
        for (size_t at = 0; at < n; at++)
            for (int byte = 0; byte < 256; byte++) {
                char text[17];
                memset(text, at % 2 ? 0x80 : 0xff, sizeof text);
                text[at] = (char)byte;
                if (ob_has_control((struct ob_str){text, n}) != (byte < 0x20 || byte == 0x7f))
                    fail_msg("byte %d at %zu of %zu", byte, at, n);
            }
}

static void too_many_and_too_long_headers(void **state)
{
    (void)state;
    const char *name = "headers";
    struct ob_event ev = order_event();
    struct fixture f;
    struct ob_buf b;
    load(&f, "envelope: none\n");
    ob_buf_init(&b, 0);
    for (int i = 0; i < 128; i++)
        ob_buf_printf(&b, "%c\"h%d\":%d", i ? ',' : '{', i, i);
    ob_buf_c(&b, "}");
    ev.headers = ob_buf_view(&b);
    assert_int_equal(fixture_route(&f, &ev), OB_OK);
    assert_int_equal(f.msg.n_headers, 128);
    b.n--;
    ob_buf_c(&b, ",\"h5\":\"again\"}"); /* replaces one: not one more */
    ev.headers = ob_buf_view(&b);
    assert_int_equal(fixture_route(&f, &ev), OB_OK);
    assert_text(header_of(&f.msg, "h5"), "again");
    b.n--;
    ob_buf_c(&b, ",\"one\":1}");
    ev.headers = ob_buf_view(&b);
    assert_int_equal(fixture_route(&f, &ev), OB_REJECT);
    assert_says(&f.err, "more than 128 headers");
    ob_buf_reset(&b);
    ob_buf_printf(&b, "{\"%0256d\":1}", 0);
    ev.headers = ob_buf_view(&b);
    assert_int_equal(fixture_route(&f, &ev), OB_REJECT);
    assert_says(&f.err, "name has 256 bytes; at most 255");
    ob_buf_clear(&b);
    fixture_clear(&f);
}

/* ---- trace id ---- */

#define PARENT "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

static const struct {
    const char *name, *yaml;
    struct ob_str headers, metadata;
    const char *want;
} traces[] = {
    {"none", "", S(""), S(""), ""},
    {"of the headers", "", S("{\"traceparent\":\"" PARENT "\"}"), S(""),
     "0af7651916cd43dd8448eb211c80319c"},
    {"of the metadata", "", S(""), S("{\"traceparent\":\"" PARENT "\"}"),
     "0af7651916cd43dd8448eb211c80319c"},
    {"malformed", "", S("{\"traceparent\":\"00-0af7-b7ad-01\"}"), S(""), ""},
    {"not hex", "",
     S("{\"traceparent\":\"00-0af7651916cd43dd8448eb211c80319X-b7ad6b7169203331-01\"}"), S(""), ""},
    {"broken headers", "", S("{"), S(""), ""},
    {"route's own", "routes: [{topic: t, trace_id: '${metadata:/traceId}'}]\n", S(""),
     S("{\"traceId\":\"t-1\"}"), "t-1"},
    {"route's own finds nothing", "routes: [{topic: t, trace_id: '${metadata:/x}'}]\n",
     S("{\"traceparent\":\"" PARENT "\"}"), S(""), ""},
};

static void trace_id(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof traces / sizeof traces[0]; i++) {
        const char *name = traces[i].name;
        struct ob_event ev = order_event();
        struct fixture f;
        ev.headers = traces[i].headers;
        ev.metadata = traces[i].metadata;
        load(&f, traces[i].yaml);
        assert_text(ob_route_trace_id(f.routes, &ev, NOW_US, f.arena, &f.scratch), traces[i].want);
        fixture_clear(&f);
    }
}

/* ---- what a config may not say ---- */

static const struct {
    const char *name, *yaml, *want;
} bad[] = {
    {"unknown key", "routes:\n  - {topc: t}\n",
     "f:2:6: unknown key \"topc\" in a route (did you mean \"topic\"?)"},
    {"unknown key, nothing near", "routes:\n  - {zzzzzzzz: t}\n",
     "f:2:6: unknown key \"zzzzzzzz\" in a route; known are match, topic, key, stream, headers, "
     "envelope, missing, content_type, time, trace_id, row_headers"},
    {"unknown key in match", "routes:\n  - match: {tpe: x}\n",
     "f:2:13: unknown key \"tpe\" in match (did you mean \"type\"?)"},
    {"unknown field in a topic", "routes:\n  - topic: shop.${tpye}\n",
     "f:2:19: unknown field \"tpye\" (did you mean \"type\"?)"},
    {"unknown field in a header", "routes:\n  - {topic: t, headers: {x: '${tipe}'}}\n",
     "f:2:32: unknown field \"tipe\" (did you mean \"type\"?)"},
    {"unreachable", "routes:\n  - {topic: t}\n  - {match: {type: x}, topic: u}\n",
     "f:3:5: this route is never reached: the one before it has no match and takes everything"},
    {"routes as a map", "routes: {topic: t}\n",
     "f:1:9: routes wants a list; leave it out to send everything to one topic"},
    {"no routes in the list", "routes: []\n",
     "f:1:9: routes wants a list; leave it out to send everything to one topic"},
    {"route as text", "routes: [t]\n",
     "f:1:10: a route wants a map like {match: {type: \"order.*\"}, topic: orders}"},
    {"match as text", "routes: [{match: x, topic: t}]\n",
     "f:1:18: match wants a map like {type: \"order.*\"}; leave it out for the default route"},
    {"empty match", "routes: [{match: {}, topic: t}]\n",
     "f:1:18: match wants a map like {type: \"order.*\"}; leave it out for the default route"},
    {"empty list of globs", "routes: [{match: {type: []}, topic: t}]\n",
     "f:1:25: match: type has an empty list, which matches nothing"},
    {"glob that is a map", "routes: [{match: {type: [{a: b}]}, topic: t}]\n",
     "f:1:26: match: type wants a glob or a list of globs"},
    {"topic as a list", "routes: [{topic: [a]}]\n",
     "f:1:18: topic wants one text, like \"orders.${type}\""},
    {"headers as a list", "routes: [{topic: t, headers: [a]}]\n",
     "f:1:30: headers wants a map of names to templates, at most 64"},
    {"header that is a map", "routes: [{topic: t, headers: {a: {b: c}}}]\n",
     "f:1:34: a header wants one text, like \"orders.${type}\""},
    {"header with a newline in its name", "routes: [{topic: t, headers: {\"a\\nb\": c}}]\n",
     "f:1:31: a header's name has 1 to 255 bytes and no control characters"},
    {"header without name", "routes: [{topic: t, headers: {'': c}}]\n",
     "f:1:31: a header's name has 1 to 255 bytes and no control characters"},
    {"missing", "routes: [{topic: t, missing: nil}]\n", "f:1:30: missing is null, omit or reject"},
    {"time", "routes: [{topic: t, time: unix}]\n", "f:1:27: time is rfc3339 or epoch_ms"},
    {"row_headers", "routes: [{topic: t, row_headers: maybe}]\n",
     "f:1:34: row_headers is true or false"},
    {"unknown envelope", "envelope: cloudevent\n",
     "f:1:11: unknown envelope \"cloudevent\" (did you mean \"cloudevents\"?); known are none, "
     "cloudevents, cloudevents-structured, debezium, template, json"},
    {"envelope in a route", "routes: [{topic: t, envelope: nil}]\n", "f:1:31: unknown envelope"},
    {"template without its shape", "envelope: template\n",
     "f:1:11: envelope: template wants its JSON shape: {template: {…}}"},
    {"unknown envelope in a map", "envelope: {tmplate: {}}\n",
     "f:1:12: unknown key \"tmplate\" in envelope (did you mean \"template\"?)"},
    {"two envelopes", "envelope: {template: {}, none: {}}\n",
     "f:1:11: envelope wants one name, or a map of one name to its options"},
    {"options of none", "envelope: {none: {a: b}}\n", "f:1:18: envelope: none has no options"},
    {"options of cloudevents", "envelope: {cloudevents: {sorce: x}}\n",
     "f:1:26: unknown key \"sorce\" in the options of cloudevents (did you mean \"source\"?)"},
    {"options of cloudevents as text", "envelope: {cloudevents: x}\n",
     "f:1:25: cloudevents wants a map of options"},
    {"prefix", "envelope: {cloudevents: {prefix: [a]}}\n", "f:1:34: prefix is a short text"},
    {"extension in upper case", "envelope: {cloudevents: {extensions: {Tenant: x}}}\n",
     "f:1:39: an extension's name is 1 to 20 lower case letters and digits"},
    {"extension that is taken", "envelope: {cloudevents: {extensions: {id: x}}}\n",
     "f:1:39: \"id\" is set already"},
    {"extension data", "envelope: {cloudevents: {extensions: {data: x}}}\n",
     "f:1:39: \"data\" is set already"},
};

static void errors_name_place_and_nearest(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const char *name = bad[i].name;
        struct fixture f;
        fixture_init(&f);
        if (fixture_load(&f, bad[i].yaml, "s") != OB_FATAL)
            fail_msg("%s: taken", name);
        assert_null(f.routes);
        if (strncmp(f.err.text, bad[i].want, strlen(bad[i].want)) != 0)
            fail_msg("%s:\n says %s\n want %s", name, f.err.text, bad[i].want);
        fixture_clear(&f);
    }
}

static void nulls_are_as_if_not_there(void **state)
{
    (void)state;
    const char *name = "nulls";
    struct ob_event ev = order_event();
    struct fixture f;
    load(&f, "envelope: ~\nroutes: [{match: , topic: ~, key: null, headers: , envelope: none}]\n");
    assert_int_equal(fixture_route(&f, &ev), OB_OK);
    assert_text(f.msg.topic, "outbox");
    assert_text(f.msg.key, "o-7");
    fixture_clear(&f);
    load(&f, "envelope: ~\nroutes: ~\n");
    assert_int_equal(fixture_route(&f, &ev), OB_OK);
    assert_text(header_of(&f.msg, "ce_id"), "0194c9a7-0000-7000-8000-000000000001");
    fixture_clear(&f);
    ob_routes_free(NULL);
}

/* Each route has its own envelope, the pipeline's otherwise. */
static void envelope_per_route(void **state)
{
    (void)state;
    const char *name = "envelopes";
    struct ob_event ev = order_event();
    struct fixture f;
    load(&f, "envelope: {template: {a: 1}}\n"
             "routes:\n"
             "  - {match: {type: x}, topic: t, envelope: debezium, headers: {h: v}}\n"
             "  - {topic: t}\n");
    assert_int_equal(fixture_route(&f, &ev), OB_OK);
    assert_text(f.msg.value, "{\"a\":1}");
    assert_int_equal(f.msg.n_headers, 0);
    ev.type = OB_STR("x");
    assert_int_equal(fixture_route(&f, &ev), OB_OK);
    assert_ptr_equal(f.msg.value.p, ev.payload.p);
    assert_text(header_of(&f.msg, "id"), "0194c9a7-0000-7000-8000-000000000001");
    assert_text(header_of(&f.msg, "h"), "v");
    fixture_clear(&f);
}

/* The usual way takes nothing from the arena and copies no payload. */
static void plain_route_copies_nothing(void **state)
{
    (void)state;
    struct ob_event ev = order_event();
    struct fixture f;
    load(&f, "envelope: none\n");
    size_t used = ob_arena_used(f.arena);
    assert_int_equal(fixture_route(&f, &ev), OB_OK);
    assert_int_equal(ob_arena_used(f.arena), used);
    assert_ptr_equal(f.msg.value.p, ev.payload.p);
    assert_ptr_equal(f.msg.key.p, ev.aggregate_id.p);
    assert_null(f.scratch.p);
    fixture_clear(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_match_wins),
        cmocka_unit_test(unmatched_is_rejected_and_keeps_its_key),
        cmocka_unit_test(addresses_and_hashes),
        cmocka_unit_test(default_topic_of_the_pipeline),
        cmocka_unit_test(rejects_keep_key_and_destination),
        cmocka_unit_test(longest_names_are_taken),
        cmocka_unit_test(headers_of_route_and_row),
        cmocka_unit_test(control_characters_anywhere),
        cmocka_unit_test(too_many_and_too_long_headers),
        cmocka_unit_test(trace_id),
        cmocka_unit_test(errors_name_place_and_nearest),
        cmocka_unit_test(nulls_are_as_if_not_there),
        cmocka_unit_test(envelope_per_route),
        cmocka_unit_test(plain_route_copies_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
