/* SPDX-License-Identifier: Apache-2.0 */
/* kafka_bench - the Kafka sink by itself, and a bare loop on the same library with the same
 * settings and messages. Prints events per second, or with --rate the latency of acknowledgements.
 *
 *   kafka-bench raw|ours BROKERS TOPIC EVENTS [RATE] */
#include "core/clock.h"
#include "sink/kafka/kafka.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#define PAYLOAD 300
#define KEYS 1000
#define WINDOW 10000

extern const struct ob_sink_driver ob_sink_kafka;

struct bench {
    const char *brokers, *topic;
    size_t n, done, failed;
    int64_t rate; /* events a second; 0: as fast as it goes */
    struct ob_msg *msgs;
    struct ob_event event;
    char (*ids)[48], (*keys)[16], value[PAYLOAD];
    int64_t *sent_us;
    int64_t *took_us;
    int up;
};

static int64_t now_us(void)
{
    return ob_clock_system.mono_us(ob_clock_system.user);
}

static void make_messages(struct bench *b)
{
    b->msgs = calloc(b->n, sizeof(*b->msgs));
    b->ids = calloc(b->n, sizeof(*b->ids));
    b->keys = calloc(KEYS, sizeof(*b->keys));
    b->sent_us = calloc(b->n, sizeof(*b->sent_us));
    b->took_us = calloc(b->n, sizeof(*b->took_us));
    if (!b->msgs || !b->ids || !b->keys || !b->sent_us || !b->took_us)
        abort();
    memset(b->value, 'x', sizeof(b->value));
    b->value[0] = b->value[PAYLOAD - 1] = '"';
    for (size_t i = 0; i < KEYS; i++)
        snprintf(b->keys[i], sizeof(b->keys[i]), "key-%zu", i);
    for (size_t i = 0; i < b->n; i++) {
        snprintf(b->ids[i], sizeof(b->ids[i]), "0190a0b0-0000-7000-8000-%012zx", i);
        b->msgs[i] = (struct ob_msg){.event = &b->event,
                                     .id = ob_str_c(b->ids[i]),
                                     .topic = ob_str_c(b->topic),
                                     .destination = ob_str_c(b->topic),
                                     .key = ob_str_c(b->keys[i % KEYS]),
                                     .value = {b->value, PAYLOAD},
                                     .content_type = OB_STR("application/json"),
                                     .dest_hash = 1};
    }
}

/* How many may have been sent by now. */
static size_t allowed(const struct bench *b, int64_t start)
{
    if (b->rate == 0)
        return b->n;
    int64_t n = (now_us() - start) * b->rate / 1000000 + 1;
    return n < (int64_t)b->n ? (size_t)n : b->n;
}

/* ---- the sink ---- */

static void on_done(void *user, uint64_t token, enum ob_verdict verdict, const struct ob_err *why)
{
    struct bench *b = user;
    if (verdict != OB_V_DELIVERED && b->failed++ == 0)
        fprintf(stderr, "kafka-bench: %s\n", why ? why->text : "");
    b->took_us[token] = now_us() - b->sent_us[token];
    b->done++;
}

static void on_state(void *user, enum ob_sink_state state, uint64_t dest, const struct ob_err *why)
{
    struct bench *b = user;
    (void)why;
    if (dest == 0)
        b->up = state == OB_SINK_UP;
}

static void ours(struct bench *b)
{
    static const struct ob_sink_events events = {.done = on_done, .state = on_state};
    struct kafka_conf conf = {
        .brokers = b->brokers, .id_header = "id", .content_type_header = "content-type"};
    struct ob_sink_env env = {.pipeline = "bench",
                              .shards = 1,
                              .strict = true,
                              .clock = &ob_clock_system,
                              .events = &events,
                              .user = b};
    struct ob_sink *s = NULL;
    struct ob_sink_caps caps;
    struct ob_err err;
    if (ob_sink_kafka.open(&env, &conf, &s, &caps, &err) != OB_OK) {
        fprintf(stderr, "kafka-bench: %s\n", err.text);
        exit(1);
    }
    const struct ob_msg *batch[512];
    uint64_t tokens[512];
    size_t sent = 0;
    int64_t start = now_us();
    while (b->done < b->n) {
        size_t may = allowed(b, start), n = 0, taken;
        while (sent + n < may && n < 512 && sent + n - b->done < WINDOW) {
            batch[n] = &b->msgs[sent + n];
            tokens[n] = sent + n;
            b->sent_us[sent + n] = now_us();
            n++;
        }
        taken = n;
        if (n > 0 && ob_sink_kafka.submit(s, batch, tokens, &taken, &err) == OB_OK)
            sent += taken;
        struct pollfd fd = {.fd = ob_sink_kafka.wait_fd(s), .events = POLLIN};
        poll(&fd, 1, n > 0 && taken == n && sent < may ? 0 : 1);
        ob_sink_kafka.poll(s);
    }
    ob_sink_kafka.close(s, 0);
}

/* ---- the bare loop ---- */

static void report(rd_kafka_t *rk, const rd_kafka_message_t *m, void *user)
{
    struct bench *b = user;
    size_t i = (size_t)(uintptr_t)m->_private;
    (void)rk;
    b->failed += m->err != RD_KAFKA_RESP_ERR_NO_ERROR;
    b->took_us[i] = now_us() - b->sent_us[i];
    b->done++;
}

static rd_kafka_t *bare_handle(struct bench *b)
{
    static const char *const set[][2] = {
        {"enable.idempotence", "true"},   {"acks", "all"},
        {"message.timeout.ms", "0"},      {"linger.ms", "0"},
        {"socket.nagle.disable", "true"}, {"partitioner", "murmur2_random"},
    };
    char text[256];
    rd_kafka_conf_t *rc = rd_kafka_conf_new();
    for (size_t i = 0; i < sizeof(set) / sizeof(set[0]); i++)
        rd_kafka_conf_set(rc, set[i][0], set[i][1], text, sizeof(text));
    rd_kafka_conf_set(rc, "bootstrap.servers", b->brokers, text, sizeof(text));
    rd_kafka_conf_set_dr_msg_cb(rc, report);
    rd_kafka_conf_set_opaque(rc, b);
    rd_kafka_t *rk = rd_kafka_new(RD_KAFKA_PRODUCER, rc, text, sizeof(text));
    if (!rk) {
        fprintf(stderr, "kafka-bench: %s\n", text);
        exit(1);
    }
    return rk;
}

static void raw(struct bench *b)
{
    rd_kafka_t *rk = bare_handle(b);
    size_t sent = 0;
    int64_t start = now_us();
    while (b->done < b->n) {
        size_t may = allowed(b, start);
        if (sent >= may || sent - b->done >= WINDOW) {
            rd_kafka_poll(rk, 1);
            continue;
        }
        const struct ob_msg *m = &b->msgs[sent];
        b->sent_us[sent] = now_us();
        rd_kafka_resp_err_t err = rd_kafka_producev(
            rk, RD_KAFKA_V_TOPIC(b->topic), RD_KAFKA_V_KEY(m->key.p, m->key.n),
            RD_KAFKA_V_VALUE(b->value, PAYLOAD), RD_KAFKA_V_HEADER("id", m->id.p, (ssize_t)m->id.n),
            RD_KAFKA_V_HEADER("content-type", m->content_type.p, (ssize_t)m->content_type.n),
            RD_KAFKA_V_OPAQUE((void *)(uintptr_t)sent), RD_KAFKA_V_END);
        if (err == RD_KAFKA_RESP_ERR_NO_ERROR)
            sent++;
        rd_kafka_poll(rk, 0);
    }
    rd_kafka_destroy(rk);
}

static int by_size(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    if (argc < 5) {
        fprintf(stderr, "kafka-bench raw|ours BROKERS TOPIC EVENTS [RATE]\n");
        return 64;
    }
    struct bench b = {.brokers = argv[2],
                      .topic = argv[3],
                      .n = strtoull(argv[4], NULL, 10),
                      .rate = argc > 5 ? atoll(argv[5]) : 0};
    make_messages(&b);
    int64_t start = now_us();
    if (strcmp(argv[1], "ours") == 0)
        ours(&b);
    else
        raw(&b);
    double seconds = (double)(now_us() - start) / 1e6;
    size_t skip = b.rate > 0 && b.n > 500 ? 500 : 0; /* connecting is not latency */
    qsort(b.took_us + skip, b.n - skip, sizeof(*b.took_us), by_size);
    size_t left = b.n - skip;
    printf("events_s=%.0f p50_ms=%.3f p99_ms=%.3f failed=%zu\n", (double)b.n / seconds,
           (double)b.took_us[skip + left / 2] / 1000,
           (double)b.took_us[skip + left * 99 / 100] / 1000, b.failed);
    return b.failed > 0;
}
