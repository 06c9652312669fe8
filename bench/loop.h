/* SPDX-License-Identifier: Apache-2.0 */
/* loop - what the benchmarks of sinks share: messages, a pace, the loop over a sink, figures.
 *
 *   PROGRAM raw|ours|gate SERVER PLACE EVENTS [RATE]
 *
 * gate: raw, but when all is prepared it says "ready" and waits for a line on its input, so that
 * another program can start at the same time. */
#ifndef OB_BENCH_LOOP_H
#define OB_BENCH_LOOP_H

#include "sink/sink.h"

#include <stdatomic.h>

#define BENCH_PAYLOAD 300
#define BENCH_WINDOW 4096

struct bench {
    const char *program, *server, *place;
    size_t n, failed;
    atomic_size_t done; /* the bare loops have it raised by a thread of their library */
    int64_t rate;       /* events a second; 0: as fast as it goes */
    size_t window;      /* sent and not acknowledged, at most */
    struct ob_msg *msgs;
    struct ob_event event;
    char (*ids)[48], (*keys)[16], value[BENCH_PAYLOAD];
    int64_t *sent_us, *took_us;
};

int64_t bench_now_us(void);
/* How many may have been sent by now. */
size_t bench_allowed(const struct bench *b, int64_t start_us);
void bench_acked(struct bench *b, size_t i, bool ok);
/* The sink, as a shard uses it: submit what fits, poll, wait. */
void bench_sink(struct bench *b, const struct ob_sink_driver *driver, const void *conf);
/* Runs what the arguments say and prints the figures; the exit code. */
int bench_main(int argc, char **argv, size_t window, void (*raw)(struct bench *b),
               void (*ours)(struct bench *b));

#endif
