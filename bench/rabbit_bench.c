/* SPDX-License-Identifier: Apache-2.0 */
/* rabbit_bench - the RabbitMQ sink by itself, and a bare loop on the same library: publishes with
 * confirms, as many at once as the sink's window, with the properties that the sink sets (a server
 * pays for properties of more than 64 bytes, see docs/benchmarks.md).
 *
 *   rabbit-bench raw|ours URL ROUTING_KEY EVENTS [RATE]      to the exchange "bench" */
#include "loop.h"
#include "sink/rabbitmq/rabbit.h"

#include <amqp_framing.h>
#include <amqp_tcp_socket.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/time.h>

static amqp_connection_state_t dial(const struct bench *b)
{
    char url[256];
    struct amqp_connection_info at;
    snprintf(url, sizeof(url), "%s", b->server);
    amqp_connection_state_t c = amqp_new_connection();
    amqp_socket_t *s = amqp_tcp_socket_new(c);
    int one = 1;
    if (amqp_parse_url(url, &at) != AMQP_STATUS_OK ||
        amqp_socket_open(s, at.host, at.port) != AMQP_STATUS_OK ||
        amqp_login(c, "/", 0, 131072, 0, AMQP_SASL_METHOD_PLAIN, at.user, at.password).reply_type !=
            AMQP_RESPONSE_NORMAL ||
        !amqp_channel_open(c, 1) || !amqp_confirm_select(c, 1)) {
        fprintf(stderr, "%s: cannot connect\n", b->program);
        exit(1);
    }
    setsockopt(amqp_get_sockfd(c), IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    return c;
}

/* Confirms that are there, or come within so long. *low: the first tag without one. */
static void take_acks(struct bench *b, amqp_connection_state_t c, uint64_t *low, int wait_us)
{
    for (;;) {
        amqp_frame_t f;
        struct timeval tv = {0, wait_us};
        int rc = amqp_simple_wait_frame_noblock(c, &f, &tv);
        if (rc == AMQP_STATUS_TIMEOUT)
            return;
        if (rc != AMQP_STATUS_OK || f.frame_type != AMQP_FRAME_METHOD ||
            f.payload.method.id != AMQP_BASIC_ACK_METHOD) {
            fprintf(stderr, "%s: something else than an ack\n", b->program);
            exit(1);
        }
        const amqp_basic_ack_t *a = f.payload.method.decoded;
        for (uint64_t t = a->multiple ? *low : a->delivery_tag; t <= a->delivery_tag; t++)
            if (b->took_us[t - 1] == 0)
                bench_acked(b, t - 1, true);
        while (*low <= b->n && b->took_us[*low - 1] != 0)
            ++*low;
        amqp_maybe_release_buffers(c);
        wait_us = 0;
    }
}

static void raw(struct bench *b)
{
    amqp_connection_state_t c = dial(b);
    amqp_bytes_t exchange = amqp_cstring_bytes("bench"), key = amqp_cstring_bytes(b->place);
    size_t sent = 0;
    uint64_t low = 1;
    int64_t start = bench_now_us();
    while (b->done < b->n) {
        size_t may = bench_allowed(b, start), end = sent + 64;
        for (; sent < may && sent < end && sent - b->done < BENCH_WINDOW; sent++) {
            amqp_basic_properties_t p = {._flags = AMQP_BASIC_DELIVERY_MODE_FLAG |
                                                   AMQP_BASIC_MESSAGE_ID_FLAG |
                                                   AMQP_BASIC_CONTENT_TYPE_FLAG |
                                                   AMQP_BASIC_TYPE_FLAG | AMQP_BASIC_TIMESTAMP_FLAG,
                                         .delivery_mode = 2,
                                         .type = amqp_cstring_bytes("bench"),
                                         .timestamp = (uint64_t)b->event.created_us / 1000000,
                                         .message_id = amqp_cstring_bytes(b->ids[sent]),
                                         .content_type = amqp_cstring_bytes("application/json")};
            amqp_bytes_t body = {BENCH_PAYLOAD, b->value};
            b->sent_us[sent] = bench_now_us();
            if (amqp_basic_publish(c, 1, exchange, key, 1, 0, &p, body) != AMQP_STATUS_OK)
                exit(1);
        }
        bool more = sent < may && sent - b->done < BENCH_WINDOW;
        take_acks(b, c, &low, more ? 0 : b->rate > 0 ? 200 : 5000);
    }
    amqp_destroy_connection(c);
}

static void ours(struct bench *b)
{
    struct ob_sink_rabbit_conf conf = {.url = b->server,
                                       .name = "bench",
                                       .verify = true,
                                       .durable = true,
                                       .exchange = "bench",
                                       .exchange_type = "topic",
                                       .window = BENCH_WINDOW,
                                       .max_message = 16 << 20,
                                       .connect_timeout_ms = 5000,
                                       .heartbeat_ms = 10000};
    bench_sink(b, &ob_sink_rabbitmq, &conf);
}

int main(int argc, char **argv)
{
    return bench_main(argc, argv, BENCH_WINDOW, raw, ours);
}
