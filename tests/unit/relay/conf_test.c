/* SPDX-License-Identifier: Apache-2.0 */
/* conf_test - whole config files: values, mistakes with their place, variables, explain. */
#include "conf_fixture.h"

#include "flow/flow.h"

static const struct {
    const char *name, *text, *want;
} bad[] = {
    {"empty", "", "f: the file is empty"},
    {"an empty document", "---\n",
     "f:2:1: 'pipelines' is missing: A map of pipelines by name; a "
     "name is 1 to 64 of A-Z a-z 0-9 _ . -"},
    {"text", "hello\n", "f:1:1: needs a map, here is text"},
    {"a list", "- a\n", "f:1:1: needs a map, here is a list"},
    {"binary",
     "\x7f"
     "ELF\x02\x01\x01",
     "f:1:1: this is not UTF-8 text (control characters are not allowed)"},
    {"no pipelines", "log: {level: info}\n",
     "f:1:1: 'pipelines' is missing: A map of pipelines by name; a name is 1 to 64 of A-Z a-z 0-9 "
     "_ . -"},
    {"empty pipelines", "pipelines: {}\n", "f:1:12: pipelines: needs a map with at least one name"},
    {"a list of pipelines", "pipelines: [a]\n",
     "f:1:12: pipelines: needs a map with at least one name"},
    {"unknown at the top", "pipeline: {}\n" GOOD,
     "f:1:1: unknown key 'pipeline'; did you mean 'pipelines'?"},
    {"not there yet", "http: {listen: x}\n" GOOD,
     "f:1:1: unknown key 'http'; known: log, pipelines"},
    {"log level", "log: {level: inf}\n" GOOD,
     "f:1:14: log.level: 'inf' is none of debug|info|warn|error|off; did you mean 'info'?"},
    {"log as text", "log: json\n" GOOD, "f:1:6: log: needs a map, here is text"},
    {"log key", "log: {colour: red}\n" GOOD,
     "f:1:7: unknown key 'colour' in log; known: format, level"},
    {"a pipeline without anything", "pipelines:\n  p:\n",
     "f:2:3: pipelines.p: 'source' is missing: Where events are read; `type` and the options of "
     "that source.\n"
     "f:2:3: pipelines.p: 'sink' is missing: Where events are sent; `type` and the options of that "
     "sink."},
    {"a pipeline that is text", "pipelines: {p: x}\n",
     "f:1:16: pipelines.p: needs a map, here is text"},
    {"a bad name", "pipelines:\n  a b: {}\n",
     "f:2:3: 'a b' is no name for a pipeline; take 1 to 64 of A-Z a-z 0-9 _ . -"},
    {"an empty name", "pipelines:\n  '': {}\n",
     "f:2:3: '' is no name for a pipeline; take 1 to 64 of A-Z a-z 0-9 _ . -"},
    {"a long name",
     "pipelines:\n  aaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeeffffffffffggggg: {}\n",
     "f:2:3: 'aaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeeffffffffff...' is no name for a "
     "pipeline; take 1 to 64 of A-Z a-z 0-9 _ . -"},
    {"twice the same name", "pipelines:\n  p: {}\n  p: {}\n",
     "f:3:3: duplicate key 'p'; it is already at line 2, column 3"},
    {"no sink", "pipelines:\n  p: {source: {type: db, path: x}}\n",
     "f:2:6: pipelines.p: 'sink' is missing: Where events are sent; `type` and the options of that "
     "sink."},
    {"no type", "pipelines:\n  p: {source: {path: x}, sink: {type: out}}\n",
     "f:2:15: pipelines.p.source: 'type' is missing; this build has: db"},
    {"null as a type", "pipelines:\n  p: {source: {type: db, path: x}, sink: {type: null}}\n",
     "f:2:49: pipelines.p.sink.type has no value: null without quotes is YAML's null; write "
     "\"null\" for the text; this build has: out, bare"},
    {"a type without value", "pipelines:\n  p: {source: {type: ~, path: x}, sink: {type: out}}\n",
     "f:2:22: pipelines.p.source.type has no value; this build has: db"},
    {"a truth as a type", "pipelines:\n  p: {source: {type: no, path: x}, sink: {type: out}}\n",
     "f:2:22: pipelines.p.source.type: 'no' is not in this build: there is no such type; it has: "
     "db"},
    {"a type that is no text", "pipelines:\n  p: {source: {type: [db]}, sink: {type: out}}\n",
     "f:2:22: pipelines.p.source.type: needs text; this build has: db"},
    {"an unknown type", "pipelines:\n  p: {source: {type: db, path: x}, sink: {type: kafka}}\n",
     "f:2:49: pipelines.p.sink.type: 'kafka' is not in this build: there is no such type; it has: "
     "out, bare"},
    {"nearly a type", "pipelines:\n  p: {source: {type: db, path: x}, sink: {type: bar}}\n",
     "f:2:49: pipelines.p.sink.type: 'bar' is not in this build: there is no such type; it has: "
     "out, bare; did you mean 'bare'?"},
    {"a type left out of the build", "pipelines:\n  p: {source: {type: lake}, sink: {type: out}}\n",
     "f:2:22: pipelines.p.source.type: 'lake' is not in this build: it was built without water; it "
     "has: db"},
    {"a sink that is text", "pipelines:\n  p: {source: {type: db, path: x}, sink: out}\n",
     "f:2:42: pipelines.p.sink: needs a map with a type"},
    {"an unknown key of a sink",
     "pipelines:\n  p: {source: {type: db, path: x}, sink: {type: out, pth: x}}\n",
     "f:2:54: unknown key 'pth' in pipelines.p.sink; did you mean 'path'?"},
    {"an option that a sink without options does not have",
     "pipelines:\n  p: {source: {type: db, path: x}, sink: {type: bare, path: x}}\n",
     "f:2:55: unknown key 'path' in pipelines.p.sink; known: type, require_tls, "
     "topics"},
    {"a source's option out of range",
     "pipelines:\n  p: {source: {type: db, path: x, page: 0}, sink: {type: out}}\n",
     "f:2:41: pipelines.p.source.page: 0 is out of range; allowed is 1 to 1000"},
    {"a required option of a source", "pipelines:\n  p: {source: {type: db}, sink: {type: out}}\n",
     "f:2:15: pipelines.p.source: 'path' is missing: The database."},
    {"unknown in a pipeline", PIPE "shard: 2}\n",
     "f:4:5: unknown key 'shard' in pipelines.p; did you mean 'shards'?"},
    {"shards", PIPE "shards: 17}\n",
     "f:4:13: pipelines.p.shards: 17 is out of range; allowed is 1 to 16"},
    {"window", PIPE "window: 0}\n",
     "f:4:13: pipelines.p.window: 0 is out of range; allowed is 1 to 1000000"},
    {"window_bytes", PIPE "window_bytes: 1k}\n",
     "f:4:19: pipelines.p.window_bytes: 1k is out of range; allowed is 64k to 4G"},
    {"order", PIPE "order: lose}\n",
     "f:4:12: pipelines.p.order: 'lose' is none of strict|pipelined"},
    {"on_dead", PIPE "on_dead: parked}\n",
     "f:4:14: pipelines.p.on_dead: 'parked' is none of continue|park; did you mean 'park'?"},
    {"max_attempts", PIPE "max_attempts: many}\n",
     "f:4:19: pipelines.p.max_attempts: 'many' is no whole number"},
    {"publish_timeout", PIPE "publish_timeout: 99}\n",
     "f:4:22: pipelines.p.publish_timeout: 99 is out of range; allowed is 100ms to 1h"},
    {"retry as text", PIPE "retry: 1s}\n", "f:4:12: pipelines.p.retry: needs a map, here is text"},
    {"retry key", PIPE "retry: {frist: 1s}}\n",
     "f:4:13: unknown key 'frist' in pipelines.p.retry; did you mean 'first'?"},
    {"retry jitter", PIPE "retry: {jitter: 20}}\n",
     "f:4:21: pipelines.p.retry.jitter: 20 is out of range; allowed is 0% to 100%"},
    {"retry factor", PIPE "retry: {factor: 0.5}}\n",
     "f:4:21: pipelines.p.retry.factor: 0.5 is out of range; allowed is 100% to 10000%"},
    {"first and max", PIPE "retry: {first: 2m}}\n",
     "f:4:20: pipelines.p.retry: first is longer than max"},
    {"max and first", PIPE "retry: {max: 10ms}}\n",
     "f:4:18: pipelines.p.retry: first is longer than max"},
    {"a variable", PIPE "service: \"${OB_TEST_UNSET}\"}\n",
     "f:4:14: environment variable OB_TEST_UNSET is not set; set it or write "
     "${OB_TEST_UNSET:-default}"},
    {"a profile that is not there", PIPE "profile: ../p}\n",
     "f:4:14: pipelines.p.profile: there is no profile '../p' in /nonexistent/profiles"},
    {"a list of profiles", PIPE "profile: [a]}\n",
     "f:4:14: pipelines.p.profile: needs text, here is a list"},
    {"two pipelines, two mistakes",
     "pipelines:\n  a: {source: {type: db, path: x}, sink: {type: out}, window: x}\n"
     "  b: {source: {type: db, pat: x}, sink: {type: out}}\n",
     "f:2:63: pipelines.a.window: 'x' is no whole number\n"
     "f:3:15: pipelines.b.source: 'path' is missing: The database.\n"
     "f:3:26: unknown key 'pat' in pipelines.b.source; did you mean 'path'?"},
};

static void test_bad(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct ob_config *c = NULL;
        struct ob_err err = {0};
        struct ob_buf all;
        ob_buf_init(&all, 0);
        print_message("# %s\n", bad[i].name);
        enum ob_status st = ob_config_parse("f", ob_str_c(bad[i].text), &c, &all, &err);
        assert_string_equal(ob_buf_z(&all), bad[i].want);
        assert_int_equal(st, OB_FATAL);
        assert_memory_equal(err.text, bad[i].want, 20);
        assert_null(c);
        ob_buf_clear(&all);
    }
}

/* What is wrong inside routes and envelopes is said at load time, with its place. */
static void test_bad_routes(void **state)
{
    (void)state;
    static const struct {
        const char *name, *text, *place;
    } rows[] = {
        {"unknown field", PIPE "routes: [{topic: \"${tpye}\"}]}\n", "f:4:25: unknown field"},
        {"no list", PIPE "routes: {topic: x}}\n", "f:4:13:"},
        {"unknown key", PIPE "routes: [{tpoic: x}]}\n", "f:4:15: unknown key"},
        {"unknown envelope", PIPE "envelope: no-such-thing}\n", "f:4:15: unknown envelope"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct ob_config *c = NULL;
        struct ob_err err = {0};
        print_message("# %s\n", rows[i].name);
        assert_int_equal(ob_config_parse("f", ob_str_c(rows[i].text), &c, NULL, &err), OB_FATAL);
        assert_memory_equal(err.text, rows[i].place, strlen(rows[i].place));
        assert_null(strstr(err.text, "f:4:13: f:4")); /* the place stands there once */
    }
}

static void test_defaults(void **state)
{
    (void)state;
    struct ob_config *c = parse(GOOD);
    assert_int_equal(c->log_format, OB_LOG_LOGFMT);
    assert_int_equal(c->log_level, OB_LOG_INFO);
    assert_int_equal(c->n, 1);
    const struct ob_pipeline_conf *p = ob_config_pipeline(c, NULL);
    assert_string_equal(p->name, "p");
    assert_string_equal(p->service, "p");
    assert_string_equal(p->route.service, "p");
    assert_null(p->profile);
    assert_ptr_equal(p->source, &db);
    assert_ptr_equal(p->sink, &out_sink);
    assert_string_equal(((const struct db_conf *)p->source_conf)->path, "x");
    assert_int_equal(((const struct db_conf *)p->source_conf)->page, 500);
    assert_int_equal(((const struct out_conf *)p->sink_conf)->max, 1 << 20);
    assert_null(p->route.routes);
    assert_null(p->route.envelope);
    assert_int_equal(p->shards, 1);
    assert_int_equal(p->window, 10000);
    assert_int_equal(p->window_bytes, 8 << 20);
    assert_int_equal(p->max_attempts, 10);
    assert_int_equal(p->retry_first_ms, 1000);
    assert_int_equal(p->retry_max_ms, 60000);
    assert_int_equal(p->retry_factor_pct, 200);
    assert_int_equal(p->retry_jitter_pct, 20);
    assert_int_equal(p->publish_timeout_ms, 30000);
    assert_int_equal(p->park_after_ms, 2000);
    assert_int_equal(p->stuck_after_ms, 60000);
    assert_int_equal(p->grace_ms, 10000);
    assert_int_equal(p->order, OB_ORDER_STRICT);
    assert_int_equal(p->on_dead, OB_ON_DEAD_CONTINUE);
    ob_config_free(c);
    ob_config_free(NULL);
}

static void test_values(void **state)
{
    (void)state;
    setenv("OB_TEST_SET", "from env", 1);
    struct ob_config *c = parse(
        "log: {format: json, level: warn}\n"
        "pipelines:\n"
        "  a.b_c-1:\n"
        "    service: ${OB_TEST_SET}\n"
        "    source: {type: db, path: \"${OB_TEST_UNSET:-here.db}\", page: 7}\n"
        "    sink: {type: out, props: {linger.ms: 5, acks: all}, max: 2k}\n"
        "    routes:\n"
        "      - {match: {type: \"o.*\"}, topic: \"shop.${type}\", key: \"${aggregate_id}\"}\n"
        "      - {topic: \"x\"}\n"
        "    envelope: none\n"
        "    shards: 16\n"
        "    window: 5\n"
        "    window_bytes: 1M\n"
        "    order: pipelined\n"
        "    on_dead: park\n"
        "    max_attempts: 3\n"
        "    retry: {first: 10s, max: 10s, factor: 1, jitter: 0%}\n"
        "    publish_timeout: 5s\n"
        "    park_after: 100ms\n"
        "    stuck_after: 2m\n"
        "    grace: 0\n"
        "  second: {source: {type: db, path: y}, sink: {type: bare}}\n");
    assert_int_equal(c->log_format, OB_LOG_JSON);
    assert_int_equal(c->log_level, OB_LOG_WARN);
    assert_int_equal(c->n, 2);
    assert_null(ob_config_pipeline(c, NULL)); /* there are several */
    assert_null(ob_config_pipeline(c, "third"));
    assert_ptr_equal(ob_config_pipeline(c, "second")->sink, &bare);
    const struct ob_pipeline_conf *p = ob_config_pipeline(c, "a.b_c-1");
    assert_non_null(p);
    assert_int_equal(p->pos.line, 3);
    assert_string_equal(p->service, "from env");
    assert_string_equal(p->route.service, "from env");
    assert_string_equal(((const struct db_conf *)p->source_conf)->path, "here.db");
    assert_int_equal(((const struct db_conf *)p->source_conf)->page, 7);
    const struct out_conf *o = p->sink_conf;
    assert_int_equal(o->props.n, 2);
    assert_string_equal(o->props.keys[0], "linger.ms");
    assert_string_equal(o->props.values[0], "5");
    assert_int_equal(o->max, 2048);
    assert_int_equal(p->route.routes->n, 2);
    assert_string_equal(ob_node_get(p->route.routes->items[0], "topic")->text, "shop.${type}");
    assert_string_equal(p->route.envelope->text, "none");
    assert_int_equal(p->shards, 16);
    assert_int_equal(p->window, 5);
    assert_int_equal(p->window_bytes, 1 << 20);
    assert_int_equal(p->order, OB_ORDER_PIPELINED);
    assert_int_equal(p->on_dead, OB_ON_DEAD_PARK);
    assert_int_equal(p->max_attempts, 3);
    assert_int_equal(p->retry_first_ms, 10000);
    assert_int_equal(p->retry_factor_pct, 100);
    assert_int_equal(p->retry_jitter_pct, 0);
    assert_int_equal(p->publish_timeout_ms, 5000);
    assert_int_equal(p->park_after_ms, 100);
    assert_int_equal(p->stuck_after_ms, 120000);
    assert_int_equal(p->grace_ms, 0);
    ob_config_free(c);
}

static void explain(const struct ob_config *c, struct ob_buf *out)
{
    ob_buf_reset(out);
    ob_config_explain(c, out);
}

/* Removes every comment: where a value came from is not the same when read back. */
static void cut_comments(struct ob_buf *buf)
{
    size_t n = 0;
    bool comment = false;
    for (size_t i = 0; i < buf->n; i++) {
        if (i + 1 < buf->n && buf->p[i] == ' ' && buf->p[i + 1] == '#')
            comment = true;
        if (buf->p[i] == '\n')
            comment = false;
        if (!comment && buf->p[i] != ' ')
            buf->p[n++] = buf->p[i];
    }
    buf->n = n;
}

static void test_explain(void **state)
{
    (void)state;
    static const char text[] =
        "pipelines:\n"
        "  orders:\n"
        "    source: {type: db, path: \"a b\", password: hunter2}\n"
        "    sink: {type: out, path: \"$${x}\"}\n"
        "    routes: [{topic: \"${type}\", match: {type: [a, \"b*\"]}}, {topic: x}]\n"
        "    envelope: {template: {a: \"1\", b: 1, c: [\"${id}\", {}]}}\n";
    struct ob_buf first, again;
    ob_buf_init(&first, 0);
    ob_buf_init(&again, 0);
    struct ob_config *c = parse(text);
    explain(c, &first);
    const char *z = ob_buf_z(&first);
    assert_null(strstr(z, "hunter2"));
    assert_non_null(strstr(z, "log:\n  format: logfmt                             # default\n"));
    assert_non_null(strstr(z, "pipelines:\n  orders:\n    profile: ~"));
    assert_non_null(strstr(z, "    service: orders                          # default\n"));
    assert_non_null(strstr(z, "    source:\n      type: db                               # from "
                              "f:3:20\n      path: \"a b\""));
    assert_non_null(strstr(z, "      password: (hidden)                     # from f:3:47\n"));
    assert_non_null(strstr(z, "      path: \"$${x}\"                          # from f:4:29\n"));
    assert_non_null(strstr(z, "    routes:\n      - topic: \"${type}\"                     # from "
                              "f:5:22\n        match:\n          type:\n            - a"));
    struct ob_config *back = parse(z);
    explain(back, &again);
    cut_comments(&first);
    cut_comments(&again);
    assert_string_equal(ob_buf_z(&again), ob_buf_z(&first));
    ob_config_free(back);
    ob_buf_reset(&again);
    ob_config_explain_json(c, &again);
    z = ob_buf_z(&again);
    assert_null(strstr(z, "hunter2"));
    assert_non_null(strstr(z,
                           "{\"path\":\"pipelines.orders.source.password\",\"value\":\"(hidden)\","
                           "\"from\":\"f:3:47\"}"));
    assert_non_null(
        strstr(z, "{\"path\":\"pipelines.orders.envelope.template.a\",\"value\":\"1\","));
    assert_non_null(strstr(z, "{\"path\":\"pipelines.orders.envelope.template.b\",\"value\":1,"));
    assert_non_null(
        strstr(z, "{\"path\":\"pipelines.orders.routes[0].match.type[1]\",\"value\":\"b*\""));
    assert_non_null(
        strstr(z, "{\"path\":\"pipelines.orders.shards\",\"value\":1,\"from\":\"default\"}"));
    ob_config_free(c);
    ob_buf_clear(&first);
    ob_buf_clear(&again);
}

static void test_which_file(void **state)
{
    (void)state;
    struct folder f;
    struct ob_config *c = NULL;
    struct ob_err err = {0};
    struct ob_buf all;
    ob_buf_init(&all, 0);
    enter(&f);
    unsetenv("OUTBOX_CONFIG");
    if (access("/etc/outbox/outbox.yaml", F_OK) != 0) {
        assert_int_equal(ob_config_load_all(NULL, &c, &all, &err), OB_FATAL);
        assert_string_equal(err.text, "no config file: neither ./outbox.yaml nor "
                                      "/etc/outbox/outbox.yaml is there; give one with -c FILE or "
                                      "$OUTBOX_CONFIG");
        assert_string_equal(ob_buf_z(&all), err.text);
    }
    put_file("outbox.yaml", GOOD);
    assert_int_equal(ob_config_load(NULL, &c, &err), OB_OK);
    assert_string_equal(c->file, "outbox.yaml");
    ob_config_free(c);
    setenv("OUTBOX_CONFIG", "gone.yaml", 1);
    assert_int_equal(ob_config_load(NULL, &c, &err), OB_FATAL);
    assert_string_equal(err.text, "gone.yaml: cannot open: No such file or directory");
    put_file("other.yaml", GOOD);
    assert_int_equal(ob_config_load("other.yaml", &c, &err), OB_OK);
    assert_string_equal(c->file, "other.yaml");
    ob_config_free(c);
    unsetenv("OUTBOX_CONFIG");
    ob_buf_clear(&all);
    leave(&f);
}

/* Large and deep files end in a message, in little time and memory. */
static void test_large(void **state)
{
    (void)state;
    struct ob_buf text;
    ob_buf_init(&text, 0);
    static const struct {
        const char *name, *head, *unit;
        size_t times;
        const char *want;
    } rows[] = {
        {"ten MiB", "", "#23456789abcdef\n", 10 << 16, "larger than 1 MiB"},
        {"deep", "pipelines: ", "[", 1000000, "nested deeper than 64 levels"},
        {"deep maps", "pipelines: ", "{a: ", 1000, "nested deeper than 64 levels"},
        {"many values", "pipelines:\n", "- a\n", 200000, "more than 100000 values"},
        {"a long name", "pipelines: {", "a", 1000000, "not valid YAML"},
        {"a long variable", "pipelines: ${", "A", 1000000, "'${' has no '}'"},
        {"many variables", "pipelines: ", "${OB_TEST_UNSET:-x}", 50000, "needs a map"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct ob_config *c = NULL;
        struct ob_err err = {0};
        print_message("# %s\n", rows[i].name);
        ob_buf_reset(&text);
        ob_buf_c(&text, rows[i].head);
        for (size_t k = 0; k < rows[i].times; k++)
            ob_buf_c(&text, rows[i].unit);
        assert_int_equal(ob_config_parse("f", ob_buf_view(&text), &c, NULL, &err), OB_FATAL);
        assert_non_null(strstr(err.text, rows[i].want));
    }
    ob_buf_reset(&text);
    ob_buf_c(&text, "pipelines:\n");
    for (unsigned i = 0; i < 256; i++)
        ob_buf_printf(&text, "  p%u: {source: {type: db, path: x}, sink: {type: out}}\n", i);
    struct ob_config *c = NULL;
    struct ob_err err = {0};
    assert_int_equal(ob_config_parse("f", ob_buf_view(&text), &c, NULL, &err), OB_OK);
    assert_int_equal(c->n, 256);
    ob_config_free(c);
    ob_buf_c(&text, "  more: {}\n");
    assert_int_equal(ob_config_parse("f", ob_buf_view(&text), &c, NULL, &err), OB_FATAL);
    assert_string_equal(err.text, "f:258:3: pipelines: more than 256 are too many for one process");
    ob_buf_clear(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad),      cmocka_unit_test(test_bad_routes),
        cmocka_unit_test(test_defaults), cmocka_unit_test(test_values),
        cmocka_unit_test(test_explain),  cmocka_unit_test(test_which_file),
        cmocka_unit_test(test_large),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
