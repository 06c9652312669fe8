/* SPDX-License-Identifier: Apache-2.0 */
/* kafka_bench - the Kafka sink by itself, and a bare loop on the same library with the same
 * settings and messages.
 *
 *   kafka-bench raw|ours|gate BROKERS TOPIC EVENTS [RATE] */
#include "loop.h"
#include "sink/kafka/kafka.h"

#include <stdio.h>
#include <stdlib.h>

#define WINDOW 10000

extern const struct ob_sink_driver ob_sink_kafka;

static void ours(struct bench *b)
{
    struct kafka_conf conf = {
        .brokers = b->server, .id_header = "id", .content_type_header = "content-type"};
    bench_sink(b, &ob_sink_kafka, &conf);
}

static void report(rd_kafka_t *rk, const rd_kafka_message_t *m, void *user)
{
    (void)rk;
    bench_acked(user, (size_t)(uintptr_t)m->_private, m->err == RD_KAFKA_RESP_ERR_NO_ERROR);
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
    rd_kafka_conf_set(rc, "bootstrap.servers", b->server, text, sizeof(text));
    rd_kafka_conf_set_dr_msg_cb(rc, report);
    rd_kafka_conf_set_opaque(rc, b);
    rd_kafka_t *rk = rd_kafka_new(RD_KAFKA_PRODUCER, rc, text, sizeof(text));
    if (!rk) {
        fprintf(stderr, "%s: %s\n", b->program, text);
        exit(1);
    }
    return rk;
}

static void raw(struct bench *b)
{
    rd_kafka_t *rk = bare_handle(b);
    size_t sent = 0;
    int64_t start = bench_now_us();
    while (b->done < b->n) {
        size_t may = bench_allowed(b, start);
        if (sent >= may || sent - b->done >= b->window) {
            rd_kafka_poll(rk, 1);
            continue;
        }
        const struct ob_msg *m = &b->msgs[sent];
        b->sent_us[sent] = bench_now_us();
        rd_kafka_resp_err_t err = rd_kafka_producev(
            rk, RD_KAFKA_V_TOPIC(b->place), RD_KAFKA_V_KEY(m->key.p, m->key.n),
            RD_KAFKA_V_VALUE(b->value, BENCH_PAYLOAD),
            RD_KAFKA_V_HEADER("id", m->id.p, (ssize_t)m->id.n),
            RD_KAFKA_V_HEADER("content-type", m->content_type.p, (ssize_t)m->content_type.n),
            RD_KAFKA_V_OPAQUE((void *)(uintptr_t)sent), RD_KAFKA_V_END);
        if (err == RD_KAFKA_RESP_ERR_NO_ERROR)
            sent++;
        rd_kafka_poll(rk, 0);
    }
    rd_kafka_destroy(rk);
}

int main(int argc, char **argv)
{
    return bench_main(argc, argv, WINDOW, raw, ours);
}
