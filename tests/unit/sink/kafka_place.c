/* SPDX-License-Identifier: Apache-2.0 */
/* kafka_place - see kafka_place.h. */
#include "kafka_place.h"
#include "proxy.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define READ_MAX 400000

bool kafka_place_skipped(void)
{
#ifdef __SANITIZE_THREAD__
    puts("1..1\nok 1 - librdkafka # SKIP ThreadSanitizer does not know the library's C11 threads");
    return true;
#else
    return false;
#endif
}

/* Ends with this process. False: there is none to be had. *proxy: NULL if it was started by
 * somebody else. */
static bool start_real(char *brokers, size_t size, struct proxy **proxy)
{
    static struct proxy *between;
    static char known[256];
    static bool tried;
    char command[512], line[512];
    const char *given = getenv("OUTBOX_TEST_KAFKA");
    if (given)
        snprintf(known, sizeof(known), "%s", given);
    if (!tried && !given) {
        between = proxy_new();
        snprintf(command, sizeof(command), "%s start --while %d --proxied %d", KAFKA_SCRIPT,
                 (int)getpid(), proxy_port(between));
        FILE *out = popen(command, "r");
        assert_non_null(out);
        while (fgets(line, sizeof(line), out)) {
            if (strncmp(line, "KAFKA_BROKERS=", 14) == 0)
                snprintf(known, sizeof(known), "%.*s", (int)strcspn(line + 14, "\n"), line + 14);
            else if (strncmp(line, "KAFKA_PROXIED_PORT=", 19) == 0)
                proxy_aim(between, atoi(line + 19));
            else if (strncmp(line, "skipped:", 8) == 0)
                print_message("%s", line);
        }
        pclose(out);
    }
    tried = true;
    *proxy = between;
    snprintf(brokers, size, "%s", known);
    return known[0] != '\0';
}

static rd_kafka_t *client(const char *brokers, rd_kafka_type_t type)
{
    char text[256];
    rd_kafka_conf_t *rc = rd_kafka_conf_new();
    rd_kafka_conf_set(rc, "log_level", "0", NULL, 0);
    if (brokers)
        rd_kafka_conf_set(rc, "bootstrap.servers", brokers, NULL, 0);
    if (type == RD_KAFKA_CONSUMER) {
        rd_kafka_conf_set(rc, "group.id", "reader", NULL, 0);
        rd_kafka_conf_set(rc, "fetch.message.max.bytes", "67108864", NULL, 0);
        rd_kafka_conf_set(rc, "fetch.wait.max.ms", "50", NULL, 0);
        rd_kafka_conf_set(rc, "receive.message.max.bytes", "200000000", NULL, 0);
    }
    rd_kafka_t *rk = rd_kafka_new(type, rc, text, sizeof(text));
    assert_non_null(rk);
    return rk;
}

void kafka_place_topic(const struct kafka_place *k, const char *name, int parts, int64_t limit)
{
    char text[128], bytes[24];
    if (k->mock) {
        rd_kafka_mock_topic_create(k->mock, name, parts, 1);
        return;
    }
    rd_kafka_NewTopic_t *t = rd_kafka_NewTopic_new(name, parts, 1, text, sizeof(text));
    snprintf(bytes, sizeof(bytes), "%lld", (long long)limit);
    if (limit > 0)
        rd_kafka_NewTopic_set_config(t, "max.message.bytes", bytes);
    rd_kafka_queue_t *q = rd_kafka_queue_new(k->rk);
    rd_kafka_CreateTopics(k->rk, &t, 1, NULL, q);
    rd_kafka_event_t *ev = rd_kafka_queue_poll(q, WAIT_MS);
    assert_non_null(ev);
    rd_kafka_event_destroy(ev);
    rd_kafka_NewTopic_destroy(t);
    rd_kafka_queue_destroy(q);
}

void kafka_place_ends(const struct kafka_place *k, const char *topic, int parts, int64_t *ends)
{
    for (int p = 0; p < parts; p++) {
        int64_t low = 0;
        rd_kafka_resp_err_t err = RD_KAFKA_RESP_ERR__TIMED_OUT;
        for (int tries = 0; tries < 100 && err != RD_KAFKA_RESP_ERR_NO_ERROR; tries++) {
            err = rd_kafka_query_watermark_offsets(k->rk, topic, p, &low, &ends[p], 5000);
            if (err != RD_KAFKA_RESP_ERR_NO_ERROR)
                usleep(100000); /* a topic that was just made has no leader yet */
        }
        assert_int_equal(err, RD_KAFKA_RESP_ERR_NO_ERROR);
    }
}

void kafka_place_open(struct kafka_place *k, bool mock)
{
    memset(k, 0, sizeof(*k));
    k->real = !mock && start_real(k->brokers, sizeof(k->brokers), &k->proxy);
    k->rk = client(k->real ? k->brokers : NULL, RD_KAFKA_PRODUCER);
    if (!k->real) {
        k->mock = rd_kafka_mock_cluster_new(k->rk, 1);
        assert_non_null(k->mock);
        snprintf(k->brokers, sizeof(k->brokers), "%s", rd_kafka_mock_cluster_bootstraps(k->mock));
    }
    kafka_place_topic(k, "orders", KAFKA_PARTS, (int64_t)26 << 20);
    if (k->real)
        kafka_place_ends(k, "orders", KAFKA_PARTS, k->from);
}

void kafka_place_close(struct kafka_place *k)
{
    if (k->mock)
        rd_kafka_mock_cluster_destroy(k->mock);
    rd_kafka_destroy(k->rk);
}

void kafka_place_conf(const struct kafka_place *k, struct kafka_conf *conf)
{
    *conf = (struct kafka_conf){
        .brokers = k->brokers, .id_header = "id", .content_type_header = "content-type"};
}

/* ---- reading ---- */

struct reading {
    struct readback *out;
    char *seen[READ_MAX]; /* ids, open addressing */
    size_t cap;
};

static struct ob_str keep(struct reading *r, const void *p, size_t n)
{
    struct ob_str copy = ob_arena_copy(r->out->arena, (struct ob_str){p, n});
    assert_non_null(copy.p);
    return copy;
}

static bool seen_before(struct reading *r, const char *id)
{
    size_t at = ob_hash64(id, strlen(id)) % READ_MAX;
    while (r->seen[at] && strcmp(r->seen[at], id) != 0)
        at = (at + 1) % READ_MAX;
    if (r->seen[at])
        return true;
    r->seen[at] = strdup(id);
    return false;
}

static void take(struct reading *r, const char *topic, const rd_kafka_message_t *m)
{
    struct got g = {.n_headers = 0};
    rd_kafka_headers_t *h = NULL;
    const char *name;
    const void *value;
    size_t n;
    assert_int_equal(rd_kafka_message_headers(m, &h), RD_KAFKA_RESP_ERR_NO_ERROR);
    for (size_t i = 0; rd_kafka_header_get_all(h, i, &name, &value, &n) == 0; i++) {
        if (strcmp(name, "id") == 0)
            g.id = keep(r, value, n);
        else if (strcmp(name, "content-type") != 0 && g.n_headers < 4)
            g.header[g.n_headers++] =
                (struct ob_header){keep(r, name, strlen(name)), keep(r, value, n)};
    }
    assert_non_null(g.id.p);
    struct readback *out = r->out;
    if (seen_before(r, g.id.p))
        return;
    g.topic = keep(r, topic, strlen(topic));
    g.key = keep(r, m->key, m->key_len);
    g.value = keep(r, m->payload, m->len);
    if (out->n == r->cap) {
        r->cap = r->cap ? r->cap * 2 : 1024;
        out->got = realloc(out->got, r->cap * sizeof(*out->got));
        assert_non_null(out->got);
    }
    out->got[out->n++] = g;
}

static void read_part(struct reading *r, rd_kafka_t *rk, const char *topic, int p, int64_t from,
                      int64_t end)
{
    rd_kafka_topic_partition_list_t *l = rd_kafka_topic_partition_list_new(1);
    rd_kafka_topic_partition_list_add(l, topic, p)->offset = from;
    rd_kafka_assign(rk, l);
    rd_kafka_topic_partition_list_destroy(l);
    while (from < end) {
        rd_kafka_message_t *m = rd_kafka_consumer_poll(rk, WAIT_MS);
        assert_non_null(m);
        if (m->err == RD_KAFKA_RESP_ERR_NO_ERROR) {
            take(r, topic, m);
            from = m->offset + 1;
        }
        rd_kafka_message_destroy(m);
    }
}

void kafka_place_read(const struct kafka_place *k, const char *topic, int parts,
                      const int64_t *from, struct readback *out)
{
    int64_t ends[16];
    struct reading *r = calloc(1, sizeof(*r));
    assert_non_null(r);
    r->out = out;
    out->arena = ob_arena_new(1 << 20, (size_t)1 << 30);
    assert_non_null(out->arena);
    kafka_place_ends(k, topic, parts, ends);
    rd_kafka_t *rk = client(k->brokers, RD_KAFKA_CONSUMER);
    rd_kafka_poll_set_consumer(rk);
    for (int p = 0; p < parts; p++)
        read_part(r, rk, topic, p, from[p], ends[p]);
    rd_kafka_consumer_close(rk);
    rd_kafka_destroy(rk);
    for (size_t i = 0; i < READ_MAX; i++)
        free(r->seen[i]);
    free(r);
}
