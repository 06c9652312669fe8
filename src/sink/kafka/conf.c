/* SPDX-License-Identifier: Apache-2.0 */
/* conf - the options, the properties of librdkafka that pass through, and those that do not because
 * they would break a promise. */
#include "sink/kafka/kafka.h"

#include "config/load.h"
#include "config/units.h"

#include <stdio.h>
#include <stdlib.h>

#define AT(field) offsetof(struct kafka_conf, field)
#define KAFKA_SCOUT_SOCKET_MS "4000"

const struct ob_opt ob__kafka_opts[] = {
    {.type = OB_OPT_STR,
     .name = "brokers",
     .offset = AT(brokers),
     .flags = OB_OPT_REQUIRED,
     .help = "Bootstrap servers: host:port, separated by commas; ssl://host:port asks for TLS."},
    {.type = OB_OPT_BOOL,
     .name = "tls",
     .def = "false",
     .offset = AT(tls),
     .help = "Use TLS and verify the certificates of the brokers. Also on with an ssl:// broker, "
             "ca_file, cert_file, key_file or a property `ssl.…`."},
    {.type = OB_OPT_STR,
     .name = "ca_file",
     .offset = AT(ca_file),
     .help = "The certificate authority of the brokers; without it those of the system."},
    {.type = OB_OPT_STR,
     .name = "cert_file",
     .offset = AT(cert_file),
     .help = "The client's own certificate, PEM."},
    {.type = OB_OPT_STR,
     .name = "key_file",
     .offset = AT(key_file),
     .help = "The key of that certificate, PEM."},
    {.type = OB_OPT_STR,
     .name = "key_password",
     .offset = AT(key_password),
     .flags = OB_OPT_SECRET,
     .help = "What the key is encrypted with."},
    {.type = OB_OPT_ENUM,
     .name = "sasl",
     .def = "none",
     .choices = "none|plain|scram-sha-256|scram-sha-512",
     .offset = AT(sasl),
     .help = "How to log in. Other mechanisms: `properties`."},
    {.type = OB_OPT_STR, .name = "username", .offset = AT(username), .help = "Who logs in."},
    {.type = OB_OPT_STR,
     .name = "password",
     .offset = AT(password),
     .flags = OB_OPT_SECRET,
     .help = "And with what."},
    {.type = OB_OPT_BOOL,
     .name = "create_topics",
     .def = "off",
     .offset = AT(create_topics),
     .help = "Create a missing topic. Off: its events wait until the topic exists."},
    {.type = OB_OPT_INT,
     .name = "create_topics_max",
     .def = "100",
     .offset = AT(create_topics_max),
     .min = 0,
     .max = 1000000,
     .help = "Topics that a process creates at most; events to further missing topics wait, with "
             "the reason logged. 0: no limit."},
    {.type = OB_OPT_INT,
     .name = "partitions",
     .def = "0",
     .offset = AT(partitions),
     .min = 0,
     .max = 10000,
     .help = "Partitions of topics that are made; 0: the broker's default."},
    {.type = OB_OPT_INT,
     .name = "replicas",
     .def = "0",
     .offset = AT(replicas),
     .min = 0,
     .max = 100,
     .help = "Replicas of topics that are made; 0: the broker's default."},
    {.type = OB_OPT_BYTES,
     .name = "max_message",
     .def = "0",
     .offset = AT(max_message),
     .min = 0,
     .max = (int64_t)KAFKA_HARD_MAX,
     .help = "Larger values are rejected; 0: what the topic takes, as its broker says."},
    {.type = OB_OPT_STR,
     .name = "id_header",
     .def = "id",
     .offset = AT(id_header),
     .help = "Header with the event's id, unless a header of the route has it; `none`: no."},
    {.type = OB_OPT_STR,
     .name = "content_type_header",
     .def = "content-type",
     .offset = AT(content_type_header),
     .help =
         "Header with the type of the value, unless the route gives one of that name; `none`: no."},
    {.type = OB_OPT_MAP,
     .name = "properties",
     .offset = AT(properties),
     .hide = "password|passphrase|secret|key.pem|oauthbearer.config",
     .help = "Any property of librdkafka, except those that would lose, repeat or reorder events. "
             "Secrets among them are never shown."},
    {0},
};

/* ---- properties ---- */

static const struct {
    const char *name, *allowed, *why; /* allowed: values that break nothing, "a|b"; NULL: none */
} refused[] = {
    {"bootstrap.servers", NULL, "the option `brokers` says where"},
    {"metadata.broker.list", NULL, "the option `brokers` says where"},
    {"enable.idempotence", "true", "without it a retry can repeat and reorder events"},
    {"acks", "all", "with less an acknowledged event can be lost with its broker"},
    {"request.required.acks", "all", "with less an acknowledged event can be lost with its broker"},
    {"message.timeout.ms", "0", "a message that times out leaves a gap that others pass"},
    {"delivery.timeout.ms", "0", "a message that times out leaves a gap that others pass"},
    {"retries", NULL, "an outage would spend them; retries are the relay's (`retry`)"},
    {"message.send.max.retries", NULL, "an outage would spend them; retries are the relay's"},
    {"enable.gapless.guarantee", NULL, "it follows from the pipeline's `order`"},
    {"transactional.id", NULL, "events are not published in transactions of Kafka"},
    {"delivery.report.only.error", "false", "nothing would ever count as delivered"},
    {"log.queue", NULL, "the log is read by the relay"},
    {"partitioner", "murmur2_random|murmur2|consistent_random|consistent|fnv1a_random|fnv1a",
     "a key must stay in one partition, or its events are not in order"},
    {"queue.buffering.backpressure.threshold", "1", "an idempotent producer has no other"},
    {"queuing.strategy", "fifo", "later events would overtake earlier ones"},
    {"opaque", NULL, "it belongs to the program"},
    {"test.mock.num.brokers", NULL, "it replaces the brokers"},
    {"sasl.password", NULL, "use `password` or `password_file`, which are never shown"},
    {"ssl.key.password", NULL, "use `key_password` or `key_password_file`, which are never shown"},
};

const char *ob__kafka_property(const struct kafka_conf *c, const char *name)
{
    for (size_t i = 0; i < c->properties.n; i++)
        if (strcmp(c->properties.keys[i], name) == 0)
            return c->properties.values[i];
    return NULL;
}

static enum ob_status placed(const struct ob_opt_pos *pos, struct ob_err *err, const char *key,
                             const char *text, const char *more)
{
    return ob_err_set(err, OB_FATAL, "%s:%u:%u: properties.%s: %s%s",
                      pos && pos->file ? pos->file : "config", pos ? pos->line : 0,
                      pos ? pos->column : 0, key, text, more);
}

static enum ob_status unknown(const struct ob_opt_pos *pos, const char *key, rd_kafka_conf_t *rc,
                              struct ob_err *err)
{
    /* Second names, which the library does not list. */
    static const char *const also[] = {"linger.ms", "compression.type", "max.in.flight",
                                       "sasl.mechanism"};
    size_t n = 0, n_also = sizeof(also) / sizeof(also[0]), k = 0;
    char hint[160] = "";
    const char **dump = rd_kafka_conf_dump(rc, &n);
    const char **names = calloc(n / 2 + n_also + 1, sizeof(*names));
    for (size_t i = 0; names && i + 1 < n; i += 2)
        names[k++] = dump[i];
    for (size_t i = 0; names && i < n_also; i++)
        names[k++] = also[i];
    const char *near = names ? ob_nearest(key, names, k) : NULL;
    if (near)
        snprintf(hint, sizeof(hint), "; did you mean '%.100s'?", near);
    enum ob_status st =
        placed(pos, err, key, "this version of librdkafka has no such property", hint);
    free(names);
    rd_kafka_conf_dump_free(dump, n);
    return st;
}

static enum ob_status check_property(const struct kafka_conf *c, size_t i, rd_kafka_conf_t *rc,
                                     struct ob_err *err)
{
    const char *key = c->properties.keys[i], *value = c->properties.values[i];
    const struct ob_opt_pos *pos = c->properties.pos ? &c->properties.pos[i] : NULL;
    char text[256];
    for (size_t r = 0; r < sizeof(refused) / sizeof(refused[0]); r++) {
        if (strcmp(refused[r].name, key) != 0 ||
            (refused[r].allowed && ob_choice_find(refused[r].allowed, value) >= 0))
            continue;
        return placed(pos, err, key, "is not for the config: ", refused[r].why);
    }
    rd_kafka_conf_res_t res = rd_kafka_conf_set(rc, key, value, text, sizeof(text));
    if (res == RD_KAFKA_CONF_UNKNOWN)
        return unknown(pos, key, rc, err);
    if (res != RD_KAFKA_CONF_OK)
        return placed(pos, err, key, text, "");
    bool flight = strcmp(key, "max.in.flight") == 0 ||
                  strcmp(key, "max.in.flight.requests.per.connection") == 0;
    if (flight && (atoi(value) < 1 || atoi(value) > 5))
        return placed(pos, err, key, "more than 5 cannot be kept in order", "");
    return OB_OK;
}

enum ob_status ob__kafka_validate(const void *conf, const struct ob_node *map, struct ob_err *err)
{
    const struct kafka_conf *c = conf;
    if (ob__kafka_validate_wire(c, map, err) != OB_OK)
        return OB_FATAL;
    rd_kafka_conf_t *rc = rd_kafka_conf_new();
    enum ob_status st = OB_OK;
    for (size_t i = 0; i < c->properties.n && st == OB_OK; i++)
        st = check_property(c, i, rc, err);
    rd_kafka_conf_destroy(rc);
    return st;
}

/* ---- a handle ---- */

static const struct {
    const char *name, *value;
} usual[] =
    {
        /* What a user may change. */
        {"client.id", "outbox"},
        {"linger.ms", "0"},
        {"socket.nagle.disable", "true"},
        {"socket.keepalive.enable", "true"},
        /* A half-open connection answers nothing: it is given up after this time, and its requests
         * are sent again with the same sequence numbers (test_kafka_silence). request.timeout.ms is
         * shorter, so that a broker that waits for a slow replica answers before. */
        {"socket.timeout.ms", "8000"},
        {"request.timeout.ms", "6000"},
        {"socket.connection.setup.timeout.ms", "6000"},
        {"reconnect.backoff.ms", "100"},
        {"reconnect.backoff.max.ms", "1000"},
        {"topic.metadata.propagation.max.ms", "10000"},
        {"allow.auto.create.topics", "false"},
        {"queue.buffering.max.kbytes", "2097151"}, /* the relay's window bounds it */
        {"message.max.bytes", "1000000000"},       /* topics have their own limits */
        {"partitioner", "murmur2_random"},         /* as Java clients */
},
  fixed[] = {
      {"enable.idempotence", "true"},
      {"acks", "all"},
      {"message.timeout.ms", "0"},
      {"log.queue", "true"},
};

struct making {
    rd_kafka_conf_t *rc;
    enum ob_status st;
    struct ob_err *err;
};

static void set(struct making *m, const char *name, const char *value)
{
    char text[256];
    if (m->st == OB_OK && value &&
        rd_kafka_conf_set(m->rc, name, value, text, sizeof(text)) != RD_KAFKA_CONF_OK)
        m->st = ob_err_set(m->err, OB_FATAL, "%s: %s", name, text);
}

static void set_wire(struct making *m, const struct kafka_conf *c)
{
    static const char *const mechanisms[] = {NULL, "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"};
    struct ob_buf brokers;
    const char *protocol = NULL;
    ob_buf_init(&brokers, 1 << 20);
    if (m->st == OB_OK)
        m->st = ob__kafka_addresses(c, &brokers, &protocol, m->err);
    if (m->st == OB_OK) {
        set(m, "bootstrap.servers", brokers.p);
        set(m, "security.protocol", protocol);
    }
    ob_buf_clear(&brokers);
    set(m, "sasl.mechanism", mechanisms[c->sasl]);
    set(m, "sasl.username", c->username);
    set(m, "sasl.password", c->password);
    set(m, "ssl.ca.location", c->ca_file);
    set(m, "ssl.certificate.location", c->cert_file);
    set(m, "ssl.key.location", c->key_file);
    set(m, "ssl.key.password", c->key_password);
}

enum ob_status ob__kafka_handle(const struct kafka_conf *c, enum kafka_role role, bool strict,
                                int64_t batch, rd_kafka_t **out, struct ob_err *err)
{
    struct making m = {.rc = rd_kafka_conf_new(), .st = OB_OK, .err = err};
    char text[256], number[24];
    const char *user_batch = ob__kafka_property(c, "batch.size");
    for (size_t i = 0; i < sizeof(usual) / sizeof(usual[0]); i++)
        set(&m, usual[i].name, usual[i].value);
    if (role == KAFKA_SCOUT) /* its answers decide whether the sink is up */
        set(&m, "socket.timeout.ms", KAFKA_SCOUT_SOCKET_MS);
    for (size_t i = 0; i < c->properties.n; i++)
        set(&m, c->properties.keys[i], c->properties.values[i]);
    for (size_t i = 0; i < sizeof(fixed) / sizeof(fixed[0]); i++)
        set(&m, fixed[i].name, fixed[i].value);
    set_wire(&m, c);
    if (!user_batch || atoll(user_batch) > batch) {
        snprintf(number, sizeof(number), "%lld", (long long)batch);
        set(&m, "batch.size", number);
    }
    /* What stands behind a failed request must not be delivered before it. The side lane has
     * nothing behind. */
    set(&m, "enable.gapless.guarantee",
        strict && (role == KAFKA_MAIN || role == KAFKA_BULK) ? "true" : "false");
    if (role == KAFKA_BULK)
        set(&m, "linger.ms", KAFKA_BULK_MS);
    if (role == KAFKA_SIDE || role == KAFKA_PROBE)
        set(&m, "batch.num.messages", "1");
    if (role == KAFKA_PROBE) {
        set(&m, "compression.codec", "none"); /* it must stay as large as it is */
        set(&m, "client.id", "outbox-check"); /* and not be counted with the relay's quota */
    }
    if (m.st == OB_OK)
        rd_kafka_conf_set_events(m.rc,
                                 RD_KAFKA_EVENT_DR | RD_KAFKA_EVENT_ERROR | RD_KAFKA_EVENT_LOG);
    rd_kafka_t *rk =
        m.st == OB_OK ? rd_kafka_new(RD_KAFKA_PRODUCER, m.rc, text, sizeof(text)) : NULL;
    if (!rk) {
        rd_kafka_conf_destroy(m.rc);
        return m.st != OB_OK ? m.st : ob_err_set(err, OB_FATAL, "kafka: %s", text);
    }
    rd_kafka_set_log_queue(rk, NULL);
    *out = rk;
    return OB_OK;
}
