/* SPDX-License-Identifier: Apache-2.0 */
/* kafka_codes_test - the table of codes, the partitioner, weights, names of topics, properties
 * and which of these are secret. */
#include "kafka_place.h"

#include "config/load.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- codes ---- */

#define E(name) RD_KAFKA_RESP_ERR_##name
#define NOT RD_KAFKA_MSG_STATUS_NOT_PERSISTED
#define MAYBE RD_KAFKA_MSG_STATUS_POSSIBLY_PERSISTED
#define YES RD_KAFKA_MSG_STATUS_PERSISTED

static const struct {
    const char *name;
    rd_kafka_resp_err_t code;
    rd_kafka_msg_status_t status;
    enum ob_verdict among, alone; /* several in its request; nothing else in it */
} verdicts[] = {
    {"no error", E(NO_ERROR), YES, OB_V_DELIVERED, OB_V_DELIVERED},
    {"an error, and stored", E(REQUEST_TIMED_OUT), YES, OB_V_DELIVERED, OB_V_DELIVERED},
    {"too large", E(MSG_SIZE_TOO_LARGE), NOT, OB_V_RETURNED, OB_V_REJECT},
    {"invalid record", E(INVALID_RECORD), NOT, OB_V_RETURNED, OB_V_REJECT},
    {"too large, possibly persisted", E(MSG_SIZE_TOO_LARGE), MAYBE, OB_V_RETURNED, OB_V_RETURNED},
    {"topic is missing", E(UNKNOWN_TOPIC_OR_PART), NOT, OB_V_BLOCKED, OB_V_BLOCKED},
    {"topic is missing, says the library", E(_UNKNOWN_TOPIC), NOT, OB_V_BLOCKED, OB_V_BLOCKED},
    {"forbidden", E(TOPIC_AUTHORIZATION_FAILED), NOT, OB_V_BLOCKED, OB_V_BLOCKED},
    {"not enough replicas", E(NOT_ENOUGH_REPLICAS), NOT, OB_V_BLOCKED, OB_V_BLOCKED},
    {"not enough replicas after append", E(NOT_ENOUGH_REPLICAS_AFTER_APPEND), MAYBE, OB_V_BLOCKED,
     OB_V_BLOCKED},
    {"no leader", E(LEADER_NOT_AVAILABLE), NOT, OB_V_BLOCKED, OB_V_BLOCKED},
    {"no connection", E(_TRANSPORT), NOT, OB_V_RETURNED, OB_V_RETURNED},
    {"timed out", E(_MSG_TIMED_OUT), MAYBE, OB_V_RETURNED, OB_V_RETURNED},
    {"login refused", E(SASL_AUTHENTICATION_FAILED), NOT, OB_V_RETURNED, OB_V_RETURNED},
    {"sequence numbers", E(OUT_OF_ORDER_SEQUENCE_NUMBER), NOT, OB_V_RETURNED, OB_V_RETURNED},
    {"purged from the queue", E(_PURGE_QUEUE), NOT, OB_V_RETURNED, OB_V_RETURNED},
    {"purged in flight", E(_PURGE_INFLIGHT), MAYBE, OB_V_RETURNED, OB_V_RETURNED},
    {"fatal", E(_FATAL), NOT, OB_V_RETURNED, OB_V_RETURNED},
    {"a code of tomorrow", (rd_kafka_resp_err_t)4711, NOT, OB_V_RETURNED, OB_V_RETRY},
    {"a code of tomorrow, possibly persisted", (rd_kafka_resp_err_t)4711, MAYBE, OB_V_RETURNED,
     OB_V_RETURNED},
};

static void verdict_of_each_code(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(verdicts) / sizeof(verdicts[0]); i++) {
        enum ob_verdict among = ob__kafka_verdict(verdicts[i].code, verdicts[i].status, false);
        enum ob_verdict alone = ob__kafka_verdict(verdicts[i].code, verdicts[i].status, true);
        if (among != verdicts[i].among || alone != verdicts[i].alone)
            fail_msg("%s: %s among others, %s alone", verdicts[i].name, ob_verdict_name(among),
                     ob_verdict_name(alone));
    }
}

static void each_code_stands_once(void **state)
{
    (void)state;
    for (size_t i = 0; i < ob__kafka_n_codes; i++)
        for (size_t j = i + 1; j < ob__kafka_n_codes; j++)
            if (ob__kafka_codes[i].code == ob__kafka_codes[j].code)
                fail_msg("%s stands twice", rd_kafka_err2name(ob__kafka_codes[i].code));
}

/* No row may reject what was among others, or spend an attempt on an outage. */
static void no_row_blames_a_neighbour(void **state)
{
    (void)state;
    for (size_t i = 0; i < ob__kafka_n_codes; i++) {
        enum ob_verdict v = ob__kafka_verdict(ob__kafka_codes[i].code, NOT, false);
        assert_true(v == OB_V_RETURNED || v == OB_V_BLOCKED);
    }
}

/* ---- partitions ---- */

/* As org.apache.kafka.common.utils.Utils.murmur2 gives them. */
static const struct {
    struct ob_str key;
    uint32_t want;
} hashes[] = {
    {{"21", 2}, (uint32_t)-973932308},
    {{"foobar", 6}, (uint32_t)-790332482},
    {{"a-little-bit-long-string", 24}, (uint32_t)-985981536},
    {{"a-little-bit-longer-string", 26}, (uint32_t)-1486304829},
    {{"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", 48}, (uint32_t)-58897971},
    {{"abc", 3}, 479470107},
};

static void partitions_as_java_chooses(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(hashes) / sizeof(hashes[0]); i++)
        assert_int_equal(ob__kafka_murmur2(hashes[i].key.p, hashes[i].key.n), hashes[i].want);
}

/* ---- names ---- */

static const struct {
    const char *name;
    struct ob_str topic;
    bool fine;
} names[] = {
    {"plain", {"shop.order_placed-1", 19}, true},
    {"empty", {"", 0}, false},
    {"a dot", {".", 1}, false},
    {"two dots", {"..", 2}, false},
    {"a slash", {"a/b", 3}, false},
    {"a NUL", {"a\0b", 3}, false},
    {"a space", {"a b", 3}, false},
    {"not ASCII", {"\xc3\xa4", 2}, false},
};

static void names_of_topics(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (ob__kafka_topic_valid(names[i].topic) != names[i].fine)
            fail_msg("%s", names[i].name);
    char longest[251];
    memset(longest, 'x', sizeof(longest));
    assert_true(ob__kafka_topic_valid((struct ob_str){longest, 249}));
    assert_false(ob__kafka_topic_valid((struct ob_str){longest, 250}));
}

/* ---- headers ---- */

static void headers_of_a_message(void **state)
{
    (void)state;
    struct kafka_conf c = {.id_header = "id", .content_type_header = "content-type"};
    struct message *m = message_new(7, OB_STR("k"), NULL);
    bool ok = false;
    const void *value;
    size_t n;
    rd_kafka_headers_t *h = ob__kafka_headers(&m->msg, &c, &ok);
    assert_true(ok && h);
    assert_int_equal(rd_kafka_header_cnt(h), 3);
    assert_int_equal(rd_kafka_header_get_last(h, "id", &value, &n), RD_KAFKA_RESP_ERR_NO_ERROR);
    assert_true(ob_str_eqc((struct ob_str){value, n}, m->id));
    rd_kafka_headers_destroy(h);
    /* The route has the id under a name of its own: once is enough. */
    struct ob_str before = m->header[0].value;
    m->header[0].value = m->msg.id;
    h = ob__kafka_headers(&m->msg, &c, &ok);
    assert_true(ok && h);
    assert_int_equal(rd_kafka_header_cnt(h), 2);
    rd_kafka_headers_destroy(h);
    m->header[0].value = before;
    /* None wanted, none there. */
    c.id_header = c.content_type_header = "none";
    m->msg.n_headers = 0;
    assert_null(ob__kafka_headers(&m->msg, &c, &ok));
    assert_true(ok);
    m->msg.n_headers = 1;
    message_free(m);
}

/* ---- properties ---- */

static const struct {
    const char *key, *value;
    const char *want; /* part of the message; NULL: it is fine */
} properties[] = {
    {"linger.ms", "5", NULL},
    {"compression.type", "zstd", NULL},
    {"acks", "all", NULL},
    {"linger.msec", "5", "did you mean 'linger.ms'"},
    {"linger.ms", "soon", "linger.ms"},
    {"acks", "1", "an acknowledged event can be lost"},
    {"enable.idempotence", "false", "repeat and reorder"},
    {"max.in.flight", "6", "cannot be kept in order"},
    {"max.in.flight", "5", NULL},
    {"message.timeout.ms", "300000", "leaves a gap"},
    {"delivery.timeout.ms", "1000", "leaves a gap"},
    {"retries", "3", "an outage would spend them"},
    {"transactional.id", "x", "transactions"},
    {"bootstrap.servers", "x:1", "`brokers`"},
    {"sasl.password", "x", "never shown"},
    {"delivery.report.only.error", "true", "count as delivered"},
    {"partitioner", "random", "one partition"},
    {"partitioner", "consistent", NULL},
    {"partitioner", "consistent_random", NULL},
    {"partitioner", "murmur2", NULL},
    {"partitioner", "murmur2_random", NULL},
    {"partitioner", "fnv1a", NULL},
    {"partitioner", "fnv1a_random", NULL},
    {"queuing.strategy", "lifo", "overtake"},
    {"queuing.strategy", "fifo", NULL},
    {"queue.buffering.backpressure.threshold", "10", "idempotent"},
};

static void properties_pass_or_say_why(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(properties) / sizeof(properties[0]); i++) {
        const char *key = properties[i].key, *value = properties[i].value;
        struct ob_opt_pos pos = {"outbox.yaml", 7, 12};
        struct kafka_conf c = {.brokers = "x:1", .properties = {&key, &value, &pos, 1}};
        struct ob_err err = {.text = ""};
        enum ob_status st = ob__kafka_validate(&c, NULL, &err);
        const char *want = properties[i].want;
        if ((st == OB_OK) != (want == NULL) ||
            (want && (!strstr(err.text, want) || strncmp(err.text, "outbox.yaml:7:12: ", 18) != 0)))
            fail_msg("%s=%s: %s", key, value, err.text);
    }
}

/* ---- secrets ---- */

static char logged[1 << 15];

static void keep_log(const rd_kafka_t *rk, int level, const char *facility, const char *text)
{
    (void)rk;
    (void)level;
    (void)facility;
    size_t n = strlen(logged);
    snprintf(logged + n, sizeof(logged) - n, "%s\n", text);
}

/* Whether the library leaves the value of a property out when it writes its own settings down. */
static bool library_hides(const char *name)
{
    char text[256], line[200];
    rd_kafka_conf_t *rc = rd_kafka_conf_new();
    bool set = rd_kafka_conf_set(rc, name, "opensesame", text, sizeof(text)) == RD_KAFKA_CONF_OK;
    rd_kafka_conf_set(rc, "debug", "conf", text, sizeof(text));
    rd_kafka_conf_set_log_cb(rc, keep_log);
    logged[0] = '\0';
    rd_kafka_t *rk = set ? rd_kafka_new(RD_KAFKA_PRODUCER, rc, text, sizeof(text)) : NULL;
    if (rk)
        rd_kafka_destroy(rk);
    else
        rd_kafka_conf_destroy(rc);
    snprintf(line, sizeof(line), "%s = [redacted]", name);
    return strstr(logged, line) != NULL;
}

static bool we_hide(const char *name)
{
    char text[300];
    struct ob_arena *arena = ob_arena_new(4096, 1 << 20);
    struct ob_problems problems = {.n = 0};
    struct ob_explain explain;
    struct ob_loader l = {.arena = arena, .problems = &problems, .explain = &explain};
    struct kafka_conf conf = {0};
    const struct ob_opt_part part = {ob__kafka_opts, &conf};
    struct ob_node *root = NULL;
    struct ob_err err = {.text = ""};
    struct ob_buf out;
    ob_buf_init(&out, 0);
    ob_explain_init(&explain, arena);
    snprintf(text, sizeof(text), "{brokers: x, properties: {%s: opensesame}}", name);
    assert_int_equal(ob_yaml_parse(arena, "f", ob_str_c(text), NULL, &root, &err), OB_OK);
    ob_load_parts(&l, "", 0, root, NULL, &part, 1);
    ob_explain_yaml(&explain, &out);
    assert_non_null(strstr(ob_buf_z(&out), name));
    bool hidden = !strstr(ob_buf_z(&out), "opensesame");
    ob_buf_clear(&out);
    ob_arena_unref(arena);
    return hidden;
}

/* Also those that this build of the library does not have. */
static void secrets_of_the_library_are_hidden(void **state)
{
    static const char *const ours[] = {"sasl.oauthbearer.client.secret", "ssl.key.pem",
                                       "ssl.keystore.password", "sasl.oauthbearer.config",
                                       "sasl.oauthbearer.assertion.private.key.passphrase"};
    static const char shown[] = "|sasl.username|ssl.key.location|ssl.ca.pem|"; /* no secrets */
    (void)state;
#ifdef __SANITIZE_THREAD__
    skip(); /* it does not know the library's C11 threads */
#endif
    char *table = NULL, name[128], marked[160];
    size_t n = 0, found = 0;
    FILE *f = open_memstream(&table, &n);
    assert_non_null(f);
    rd_kafka_conf_properties_show(f);
    fclose(f);
    for (char *rest = table, *line; (line = strsep(&rest, "\n")) != NULL;) {
        if (!strchr(line, '|') || sscanf(line, "%127s", name) != 1 || !library_hides(name))
            continue;
        found++;
        snprintf(marked, sizeof(marked), "|%s|", name);
        if (!strstr(shown, marked) && !we_hide(name))
            fail_msg("%s would be shown", name);
    }
    free(table);
    assert_true(found > 4); /* else it is not asked as it should be */
    for (size_t i = 0; i < sizeof(ours) / sizeof(ours[0]); i++)
        assert_true(we_hide(ours[i]));
    assert_false(we_hide("linger.ms"));
    assert_false(we_hide("ssl.certificate.pem"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(verdict_of_each_code),
        cmocka_unit_test(each_code_stands_once),
        cmocka_unit_test(no_row_blames_a_neighbour),
        cmocka_unit_test(partitions_as_java_chooses),
        cmocka_unit_test(names_of_topics),
        cmocka_unit_test(headers_of_a_message),
        cmocka_unit_test(properties_pass_or_say_why),
        cmocka_unit_test(secrets_of_the_library_are_hidden),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
