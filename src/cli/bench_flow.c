/* SPDX-License-Identifier: Apache-2.0 */
/* bench_flow - the flow alone, between two ends that cost nothing. */
#include "cli/bench.h"

#include "flow/flow.h"

#include <stdlib.h>
#include <time.h>

#define WINDOW 10000
#define PAGE 1000

struct work {
    struct ob_flow *flow;
    struct ob_claimed claimed[PAGE];
    uint64_t tokens[WINDOW];
    struct ob_flow_verdict verdicts[WINDOW];
    struct ob_settle_op ops[WINDOW];
};

/* One round of the relay: claim, submit, delivered, settle, forget. */
static void turn(struct work *w, struct ob_rand *rand, int64_t now, uint64_t *ref, uint64_t keys)
{
    size_t room = ob_flow_room(w->flow, NULL);
    size_t n = room < PAGE ? room : PAGE;
    for (size_t i = 0; i < n; i++) {
        uint64_t key = ob_rand_below(rand, keys);
        w->claimed[i] = (struct ob_claimed){
            .ref = ++*ref, .hash = key * 0x9e3779b97f4a7c15u, .dest = 1 + key % 8, .bytes = 300};
    }
    ob_flow_claim(w->flow, now, w->claimed, n, w->tokens);
    n = ob_flow_submit(w->flow, now, w->tokens, WINDOW);
    ob_flow_accepted(w->flow, now, n);
    for (size_t i = 0; i < n; i++)
        w->verdicts[i] = (struct ob_flow_verdict){.token = w->tokens[i], .verdict = OB_V_DELIVERED};
    ob_flow_verdicts(w->flow, now, w->verdicts, n);
    ob_flow_tick(w->flow, now);
    struct ob_settle s = {.ops = w->ops};
    if (now >= ob_flow_settle_at(w->flow) && ob_flow_settle_begin(w->flow, now, &s))
        ob_flow_settle_end(w->flow, now, OB_OK, &s, NULL, 0);
    while (ob_flow_freed(w->flow, w->tokens, WINDOW) > 0)
        ;
}

/* Of this thread: what else the machine does is not the flow's. */
static int64_t cpu_us(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (int64_t)ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}

double ob_bench_flow(uint64_t events, bool ordered, uint64_t keys)
{
    struct ob_flow_conf c = {
        .window_events = WINDOW,
        .window_bytes = 64u << 20,
        .max_in_flight = WINDOW,
        .ordered_sink = ordered,
        .log_source = true,
        .max_attempts = 10,
        .retry = {.first_ms = 1000, .factor_pct = 200, .max_ms = 60000},
        .probe = {.first_ms = 1000, .factor_pct = 200, .max_ms = 60000},
        .park_after_ms = 2000,
        .publish_timeout_ms = 30000,
        .settle_every_ms = 1,
        .held_max = 1024,
        .dest_max = 64,
    };
    struct work *w = calloc(1, sizeof(*w));
    double rate = 0;
    if (w && (w->flow = ob_flow_new(&c, NULL))) {
        struct ob_rand rand = {.state = 1};
        struct ob_flow_stats st;
        uint64_t ref = 0;
        int64_t start = cpu_us(), now = 1;
        ob_flow_parked_empty(w->flow);
        do {
            turn(w, &rand, now++, &ref, keys);
            ob_flow_stats(w->flow, &st);
        } while (st.delivered < events);
        int64_t took = cpu_us() - start;
        rate = (double)st.delivered * 1e6 / (double)(took > 0 ? took : 1);
        ob_flow_free(w->flow);
    }
    free(w);
    return rate;
}
