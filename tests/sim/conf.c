/* SPDX-License-Identifier: Apache-2.0 */
/* conf - what a seed decides: the configuration of flow, the events, the plan of faults.
 *
 * Every schedule switches on only some kinds of trouble (and some at rates that hurt): a world in
 * which everything fails at once hides the bugs that need one thing to go wrong at a time. */
#include "sim.h"

#include <stdlib.h>
#include <string.h>

static unsigned below(struct ob_rand *r, unsigned n)
{
    return (unsigned)ob_rand_below(r, n);
}

static unsigned between(struct ob_rand *r, unsigned lo, unsigned hi)
{
    return lo + below(r, hi - lo + 1);
}

#define PICK(r, ...)                                                                               \
    (((const uint32_t[]){__VA_ARGS__})[ob_rand_below(                                              \
        (r), sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t))])

/* 0 in most schedules, else up to max per mille. */
static unsigned rate(struct ob_rand *r, unsigned one_in, unsigned max)
{
    return below(r, one_in) ? 0 : between(r, 1, max);
}

static struct ob_backoff backoff(struct ob_rand *r)
{
    struct ob_backoff b = {.first_ms = PICK(r, 1, 10, 100, 1000),
                           .factor_pct = PICK(r, 100, 150, 200, 300),
                           .jitter_pct = PICK(r, 0, 10, 20)};
    b.max_ms = b.first_ms * PICK(r, 1, 4, 20, 60);
    return b;
}

static void make_flow(struct ob_flow_conf *f, struct ob_rand *r)
{
    f->window_events = below(r, 4) ? between(r, 4, SIM_WINDOW) : between(r, 1, 4);
    f->window_bytes = below(r, 4) ? 1u << 20 : between(r, 50, 3000);
    f->max_in_flight = below(r, 3) ? between(r, 1, SIM_WINDOW) : f->window_events;
    f->order = below(r, 4) ? OB_ORDER_STRICT : OB_ORDER_PIPELINED;
    f->on_dead = below(r, 3) ? OB_ON_DEAD_CONTINUE : OB_ON_DEAD_PARK;
    f->ordered_sink = below(r, 2);
    f->log_source = below(r, 3) != 0;
    f->max_attempts = between(r, 1, 10);
    f->retry = backoff(r);
    f->probe = backoff(r);
    f->park_after_ms = PICK(r, 20, 200, 2000, 2000);
    f->publish_timeout_ms = f->park_after_ms + PICK(r, 100, 1000, 5000, 30000);
    f->settle_every_ms = PICK(r, 0, 1, 10, 100, 1000);
    f->ahead_max = below(r, 4) ? 8 * SIM_WINDOW : between(r, 0, 8);
    f->held_max = below(r, 2) ? between(r, 1, 4) : 64;
    f->dest_max = below(r, 2) ? between(r, 1, 2) : 16;
    f->seed = ob_rand_next(r);
}

void sim_conf_make(struct sim_conf *c, uint64_t seed)
{
    struct ob_rand rand = {seed * 0x2545f4914f6cdd1du + 0x1234567}, *r = &rand;
    memset(c, 0, sizeof *c);
    c->seed = seed;
    make_flow(&c->flow, r);
    c->events = between(r, 50, 160);
    c->keys = below(r, 3) ? between(r, 2, 20) : between(r, 20, 100);
    c->dests = between(r, 1, SIM_DESTS);
    c->hash_bits = below(r, 4) ? 64 : PICK(r, 0, 1, 2, 4, 4, 4);
    c->shards = below(r, 6) ? 1 : between(r, 2, 4);
    c->page = below(r, 3) ? between(r, 8, 64) : between(r, 1, 8);
    c->per_key = below(r, 2) ? between(r, 1, 4) : 64;
    c->late_events = between(r, 5, 25);
    c->chaos_ms = PICK(r, 2000, 10000, 60000);
    c->poll_ms = below(r, 3) ? (int64_t)PICK(r, 200, 1000, 5000) : SIM_NEVER;
    c->latency_ms = PICK(r, 0, 2, 5, 50, 500);
    c->quantum_ms = PICK(r, 1, 5, 20);
    c->rollback = rate(r, 2, 200);
    c->poison = rate(r, 3, 60);
    c->oversize = rate(r, 3, 60);
    c->flaky = rate(r, 3, 150);
    c->hopeless = rate(r, 3, 80);
    c->own_max = rate(r, 4, 300);
    c->fail = rate(r, 3, 100);
    c->lost_ack = rate(r, 3, 60);
    c->late_ack = rate(r, 3, 60);
    c->stored_fail = rate(r, 3, 300);
    c->ghost = rate(r, 2, 1000);
    c->echo = rate(r, 3, 100);
    c->crash_ppm = below(r, 3) ? 0 : PICK(r, 100, 1000, 4000);
    c->settle_fail = rate(r, 4, 400);
    c->settle_unknown = rate(r, 6, 80);
    c->settle_slow = rate(r, 3, 700);
    c->faults = below(r, 5) ? between(r, 0, 14) : 0;
    c->fault_kinds = below(r, 1u << SIM_F_KINDS);
    c->fifo_key = below(r, 2);
    c->dedupe = below(r, 2);
    c->drain_first = below(r, 2);
    c->time_first = below(r, 2);
    c->grace_ms = PICK(r, 0, 500, 10000, 60000);
    c->flow.blocked_max_ms = below(r, 2) ? 0 : PICK(r, 100, 300, 1000, 5000);
    c->flow.max_attempts_cap = below(r, 3) ? 0 : between(r, 1, 4);
    c->bounced = rate(r, 4, 40);
    if (c->flow.retry.first_ms < 100)
        c->bounced = 0; /* they would come back without a pause */
    /* Probes that never pause, and events that are returned without end, leave no place for others
     * where they are larger than the window. */
    bool pauses = c->flow.window_bytes > 10000 || (c->flow.probe.first_ms >= 100 && !c->bounced);
    c->neighbours =
        below(r, 2) && pauses && c->flow.window_events >= 8 && c->flow.max_in_flight >= 8;
}

static uint64_t mix(uint64_t x)
{
    struct ob_rand r = {x};
    return ob_rand_next(&r);
}

static void plan_event(struct sim *w, unsigned i, int64_t commit_at, bool rolled_back)
{
    struct sim_conf *c = &w->conf;
    struct ob_rand *r = &w->rand;
    struct sim_event *e = &w->ev[i];
    *e = (struct sim_event){
        .num = i + 1, .key = below(r, c->keys), .prev = -1, .blocked_at = SIM_NEVER};
    e->hash = mix(c->seed * 1000 + e->key);
    if (c->hash_bits < 64)
        e->hash &= (1u << c->hash_bits) - 1;
    /* Most keys have one destination; some wander. */
    e->dest_i = (unsigned)(mix(e->key) % c->dests);
    if (mix(e->key + 77) % 4 == 0)
        e->dest_i = below(r, c->dests);
    e->dest = mix(e->dest_i + 5) | 1;
    e->bytes = below(r, 10) ? between(r, 0, 100) : between(r, 100, 4000);
    if (sim_chance(w, c->own_max))
        e->max_attempts = between(r, 1, 5);
    e->kind = sim_chance(w, c->poison)     ? SIM_K_POISON
              : sim_chance(w, c->oversize) ? SIM_K_OVERSIZE
              : sim_chance(w, c->hopeless) ? SIM_K_HOPELESS
              : sim_chance(w, c->flaky)    ? SIM_K_FLAKY
              : sim_chance(w, c->bounced)  ? SIM_K_BOUNCED
                                           : SIM_K_NORMAL;
    e->fails_left = e->kind == SIM_K_FLAKY ? between(r, 1, 4) : 0;
    e->skip = c->shards > 1 && c->flow.log_source && mix(e->hash) % c->shards != 0;
    e->rolled_back = rolled_back;
    e->commit_at = commit_at;
}

static int by_commit(const void *a, const void *b, void *events)
{
    const struct sim_event *ev = events;
    const struct sim_event *x = &ev[*(const unsigned *)a], *y = &ev[*(const unsigned *)b];
    if (x->commit_at != y->commit_at)
        return x->commit_at < y->commit_at ? -1 : 1;
    return x->num < y->num ? -1 : 1;
}

/* Transactions of one to five events; numbers are drawn before the commit, so that a later number
 * may be visible first; within a key transactions follow each other. */
static void plan_events(struct sim *w)
{
    struct sim_conf *c = &w->conf;
    struct ob_rand *r = &w->rand;
    int64_t key_at[128] = {0};
    int last[128];
    int64_t begin = 0;
    memset(last, -1, sizeof last);
    w->n_ev = c->events + c->late_events;
    for (unsigned i = 0; i < w->n_ev;) {
        bool late = i >= c->events;
        begin = late ? SIM_NEVER / 2
                     : (int64_t)ob_rand_below(r, (uint64_t)c->chaos_ms * (i + 1) / c->events);
        bool rolled_back = sim_chance(w, c->rollback);
        unsigned len = between(r, 1, 5), first = i;
        int64_t at = begin + sim_delay(w, below(r, 4) ? 1 : 3000);
        for (; i < w->n_ev && i < first + len && (late || i < c->events); i++) {
            plan_event(w, i, at, rolled_back);
            if (!rolled_back && key_at[w->ev[i].key] > at)
                at = key_at[w->ev[i].key];
        }
        for (unsigned j = first; j < i; j++) {
            struct sim_event *e = &w->ev[j];
            e->commit_at = at;
            if (e->rolled_back)
                continue;
            key_at[e->key] = at;
            e->prev = last[e->key];
            last[e->key] = (int)j;
        }
    }
    for (unsigned i = 0; i < w->n_ev; i++)
        w->db.order[i] = i;
    if (w->mutant != SIM_M_NUMBER_CURSOR)
        qsort_r(w->db.order, w->n_ev, sizeof w->db.order[0], by_commit, w->ev);
    for (unsigned i = 0; i < w->n_ev; i++)
        w->ev[w->db.order[i]].ref = i * 2 + (i > 20 ? 6 : 1);
}

static int by_at(const void *a, const void *b)
{
    const struct sim_fault *x = a, *y = b;
    return x->at < y->at ? -1 : x->at > y->at;
}

void sim_plan(struct sim *w)
{
    struct sim_conf *c = &w->conf;
    struct ob_rand *r = &w->rand;
    plan_events(w);
    for (unsigned i = 0; i < c->faults; i++) {
        enum sim_fault_kind kind = (enum sim_fault_kind)below(r, SIM_F_KINDS);
        if (!(c->fault_kinds & 1u << kind))
            continue;
        w->fault[w->n_fault++] =
            (struct sim_fault){.at = (int64_t)ob_rand_below(r, (uint64_t)c->chaos_ms),
                               .len = (int64_t)PICK(r, 10, 200, 3000, 20000, 70000),
                               .kind = kind,
                               .arg = (unsigned)ob_rand_next(r)};
    }
    qsort(w->fault, w->n_fault, sizeof w->fault[0], by_at);
}
