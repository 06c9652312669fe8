/* SPDX-License-Identifier: Apache-2.0 */
/* rights - whether this user may write to a topic, asked without writing. librdkafka 2.0 cannot ask
 * for rights; but a broker looks at them before it looks at a record's size. So one record is sent
 * that is larger than the topic takes, as its broker has just said: it is refused for the one or
 * for the other, and never stored (test_kafka: check_sees_who_may_not_write). It is neither
 * compressed nor could it be: its bytes are noise. */
#include "sink/kafka/kafka.h"

#include <stdio.h>
#include <stdlib.h>

#define WAIT_MS 5000
#define PURGE_MS 1000
#define OVER 4096 /* bytes above the limit */

static char *noise(size_t n)
{
    char *p = malloc(n);
    uint64_t x = 0x9e3779b97f4a7c15u;
    for (size_t i = 0; p && i < n; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        p[i] = (char)(x >> 32);
    }
    return p;
}

/* The report on the one message, or what ended the producer before it. */
static enum kafka_right reported(rd_kafka_t *rk, rd_kafka_event_t *ev, char why[200])
{
    const rd_kafka_message_t *m = rd_kafka_event_message_next(ev);
    rd_kafka_resp_err_t err = m ? m->err : RD_KAFKA_RESP_ERR__NOENT;
    snprintf(why, 200, "%s", rd_kafka_err2name(err));
    if (err == RD_KAFKA_RESP_ERR_NO_ERROR)
        return KAFKA_RIGHT_STORED;
    if (err == RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE)
        return KAFKA_RIGHT_YES;
    if (err == RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED)
        return KAFKA_RIGHT_NO;
    char text[200];
    rd_kafka_resp_err_t fatal = rd_kafka_fatal_error(rk, text, sizeof(text));
    if (fatal != RD_KAFKA_RESP_ERR_NO_ERROR)
        snprintf(why, 200, "%.60s: %.120s", rd_kafka_err2name(fatal), text);
    return fatal == RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED ? KAFKA_RIGHT_NONE
                                                                   : KAFKA_RIGHT_UNKNOWN;
}

/* Waits for the report. The message's bytes are ours again when it has come. */
static bool wait_report(rd_kafka_t *rk, int timeout_ms, enum kafka_right *out, char why[200])
{
    rd_kafka_queue_t *q = rd_kafka_queue_get_main(rk);
    bool done = false;
    int64_t until = ob_clock_mono_ms(&ob_clock_system) + timeout_ms, left = timeout_ms;
    while (!done && left > 0) {
        rd_kafka_event_t *ev = rd_kafka_queue_poll(q, (int)left);
        if (ev && rd_kafka_event_type(ev) == RD_KAFKA_EVENT_DR) {
            *out = reported(rk, ev, why);
            done = true;
        }
        rd_kafka_event_destroy(ev);
        left = until - ob_clock_mono_ms(&ob_clock_system);
    }
    rd_kafka_queue_destroy(q);
    return done;
}

enum kafka_right ob__kafka_may_write(const struct kafka_conf *c, const char *topic, int64_t limit,
                                     char why[200])
{
    enum kafka_right may = KAFKA_RIGHT_UNKNOWN;
    rd_kafka_t *rk = NULL;
    struct ob_err err = {.text = ""};
    size_t n = (size_t)limit + OVER;
    char *bytes = NULL;
    snprintf(why, 200, "its limit is not known, or too large to be passed for a question");
    if (limit <= 0 || limit > KAFKA_PROBE_MAX)
        return may;
    bytes = noise(n);
    if (!bytes || ob__kafka_handle(c, KAFKA_PROBE, false, (int64_t)n, &rk, &err) != OB_OK) {
        snprintf(why, 200, "%.190s", bytes ? err.text : "no memory");
        goto done;
    }
    rd_kafka_resp_err_t sent = rd_kafka_producev(
        rk, RD_KAFKA_V_TOPIC(topic), RD_KAFKA_V_PARTITION(0), RD_KAFKA_V_VALUE(bytes, n),
        RD_KAFKA_V_KEY("outbox-check", 12), RD_KAFKA_V_MSGFLAGS(0), RD_KAFKA_V_END);
    if (sent != RD_KAFKA_RESP_ERR_NO_ERROR) { /* the client's own limit is smaller */
        snprintf(why, 200, "%s", rd_kafka_err2name(sent));
        goto done;
    }
    if (!wait_report(rk, WAIT_MS, &may, why)) {
        rd_kafka_purge(rk, RD_KAFKA_PURGE_F_QUEUE | RD_KAFKA_PURGE_F_INFLIGHT);
        wait_report(rk, PURGE_MS, &may, why);
        may = KAFKA_RIGHT_UNKNOWN;
        snprintf(why, 200, "no answer within %d s", WAIT_MS / 1000);
    }
done:
    if (rk)
        rd_kafka_destroy(rk);
    free(bytes);
    return may;
}
