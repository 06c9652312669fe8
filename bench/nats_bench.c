/* SPDX-License-Identifier: Apache-2.0 */
/* nats_bench - the NATS sink by itself, and a bare loop on the same library: asynchronous publishes
 * with Msg-Id, acknowledgements by callback.
 *
 *   nats-bench raw|ours URL SUBJECT EVENTS [RATE] */
#include "loop.h"
#include "sink/nats/nats.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void must(const struct bench *b, natsStatus st)
{
    if (st == NATS_OK)
        return;
    fprintf(stderr, "%s: %s\n", b->program, nats_GetLastError(NULL));
    exit(1);
}

/* In the library's thread; acknowledgements come in the order of the publishes. */
static void on_ack(jsCtx *js, natsMsg *msg, jsPubAck *pa, jsPubAckErr *pae, void *closure)
{
    struct bench *b = closure;
    (void)js;
    (void)pa;
    bench_acked(b, b->done, pae == NULL);
    natsMsg_Destroy(msg);
}

static void raw(struct bench *b)
{
    natsConnection *nc = NULL;
    jsCtx *js = NULL;
    jsOptions o;
    jsPubOptions p;
    size_t sent = 0;
    must(b, natsConnection_ConnectTo(&nc, b->server));
    jsOptions_Init(&o);
    o.PublishAsync.MaxPending = BENCH_WINDOW;
    o.PublishAsync.StallWait = 60000;
    o.PublishAsync.AckHandler = on_ack;
    o.PublishAsync.AckHandlerClosure = b;
    must(b, natsConnection_JetStream(&js, nc, &o));
    jsPubOptions_Init(&p);
    int64_t start = bench_now_us();
    while (sent < b->n) {
        if (sent >= bench_allowed(b, start)) {
            usleep(100);
            continue;
        }
        natsMsg *m = NULL;
        p.MsgId = b->ids[sent];
        must(b, natsMsg_Create(&m, b->place, NULL, b->value, BENCH_PAYLOAD));
        b->sent_us[sent] = bench_now_us();
        must(b, js_PublishMsgAsync(js, &m, &p));
        sent++;
    }
    must(b, js_PublishAsyncComplete(js, NULL));
    while (b->done < b->n)
        usleep(50);
    jsCtx_Destroy(js);
    natsConnection_Destroy(nc);
}

static void ours(struct bench *b)
{
    struct ob_sink_nats_conf conf = {.url = b->server,
                                     .name = "bench",
                                     .verify = true,
                                     .inbox_prefix = "_INBOX",
                                     .content_type_header = OB_NATS_CT_NEVER,
                                     .window = BENCH_WINDOW,
                                     .connect_timeout_ms = 2000,
                                     .ping_interval_ms = 5000};
    bench_sink(b, &ob_sink_nats, &conf);
}

int main(int argc, char **argv)
{
    return bench_main(argc, argv, BENCH_WINDOW, raw, ours);
}
