/* SPDX-License-Identifier: Apache-2.0 */
/* run - one schedule: trouble; then only a blocked destination and poison, and everything else must
 * flow; then nothing wrong at all, and everything must settle; then a person takes care of the dead
 * ones that hold their keys. */
#include "sim.h"

#include <string.h>

int64_t sim_delay(struct sim *w, unsigned max_ms)
{
    int64_t d = (int64_t)ob_rand_below(&w->rand, (uint64_t)max_ms + 1), q = w->conf.quantum_ms;
    return (d + q - 1) / q * q;
}

static struct sim_node *owner(struct sim *w)
{
    for (unsigned i = 0; i < SIM_NODES; i++)
        if (w->node[i].running && w->node[i].epoch == w->db.epoch)
            return &w->node[i];
    return NULL;
}

static struct sim_node *spare(struct sim *w)
{
    unsigned from = (unsigned)ob_rand_below(&w->rand, SIM_NODES);
    for (unsigned i = 0; i < SIM_NODES; i++)
        if (!w->node[(from + i) % SIM_NODES].running)
            return &w->node[(from + i) % SIM_NODES];
    return NULL;
}

static void wake_all(struct sim *w)
{
    for (unsigned i = 0; i < SIM_NODES; i++)
        w->node[i].wake = w->node[i].next_due = w->now;
}

static void strike(struct sim *w, const struct sim_fault *f)
{
    struct sim_node *o = owner(w), *s;
    switch (f->kind) {
    case SIM_F_CRASH:
        if (o)
            sim_node_crash(w, o);
        break;
    case SIM_F_TAKEOVER:
        if (o && (f->arg & 3) == 0)
            o->hung_until = w->now + f->len;
        s = spare(w);
        if (s && o)
            sim_node_start(w, s);
        break;
    case SIM_F_HANG:
        if (o)
            o->hung_until = w->now + f->len;
        break;
    case SIM_F_OUTAGE:
        sim_broker_outage(w, f->len, f->arg);
        break;
    case SIM_F_BLOCK:
        sim_broker_block(w, f->arg / 8 % w->conf.dests, w->now + f->len, f->arg);
        break;
    case SIM_F_SOURCE:
        w->db.down_until = w->now + f->len;
        SIM_TRACE(w, "the database is away for %lld ms", (long long)f->len);
        break;
    case SIM_F_PAUSE:
        w->db.paused_until = w->now + f->len;
        SIM_TRACE(w, "paused for %lld ms", (long long)f->len);
        break;
    case SIM_F_OPERATOR:
        sim_operator(w, f->arg & 1);
        wake_all(w);
        break;
    case SIM_F_STOP:
    case SIM_F_RELOAD:
    case SIM_F_YIELD:
        if (o)
            sim_node_close(w, o, f->kind);
        break;
    case SIM_F_KINDS:
        break;
    }
}

/* ---- phases ---- */

/* No more faults; what was held back is committed. */
static void end_chaos(struct sim *w)
{
    int64_t last = w->now;
    for (unsigned i = 0; i < w->conf.events; i++)
        last = w->ev[i].commit_at > last ? w->ev[i].commit_at : last;
    for (unsigned i = w->conf.events; i < w->n_ev; i++)
        w->ev[i].commit_at += last + 1 - SIM_NEVER / 2;
    w->broker.down_until = w->now;
    w->broker.tell_up = true;
    w->db.down_until = w->db.paused_until = w->now;
    for (unsigned i = 0; i < SIM_NODES; i++) {
        struct sim_node *n = &w->node[i];
        n->hung_until = 0;
        if (n->running && n->epoch != w->db.epoch)
            sim_node_fenced(w, n); /* its next beat tells it */
    }
    for (unsigned d = 0; d < w->conf.dests; d++)
        if (w->broker.blocked_until[d] > w->now)
            w->broker.blocked_until[d] = w->now;
    sim_broker_heal(w);
    wake_all(w);
}

/* Events that must flow: no event of their hash is blocked, failing or dead. */
static void watch(struct sim *w)
{
    for (unsigned i = 0; i < w->n_ev; i++) {
        const struct sim_event *e = &w->ev[i];
        w->watched[i] = !e->rolled_back && !e->skip && !sim_settled(w, e);
        for (unsigned j = 0; j < w->n_ev && w->watched[i]; j++) {
            const struct sim_event *o = &w->ev[j];
            if (o->hash != e->hash || o->rolled_back)
                continue;
            bool held = o->dead && w->conf.flow.on_dead == OB_ON_DEAD_PARK;
            if (held || (!sim_settled(w, o) &&
                         (o->kind != SIM_K_NORMAL || w->broker.blocked_until[o->dest_i] > w->now)))
                w->watched[i] = false;
        }
    }
}

static void begin_neighbours(struct sim *w)
{
    unsigned block = (unsigned)ob_rand_next(&w->rand);
    for (unsigned d = 0; d + 1 < w->conf.dests; d++)
        if (block & 1u << d)
            sim_broker_block(w, d, SIM_NEVER, block >> 8);
    watch(w);
    SIM_TRACE(w, "---- only blocked destinations and poison from here");
}

static bool holds(const struct sim *w, uint64_t hash)
{
    for (unsigned i = 0; i < w->db.n_dead; i++)
        if (w->db.dead[i].hold && w->ev[w->db.dead[i].ev].hash == hash)
            return true;
    return false;
}

/* It flowed; or it died meanwhile of what happened before, or stands behind one that did. */
static bool flowed(const struct sim *w, const struct sim_event *e)
{
    return e->stored || sim_settled(w, e) || holds(w, e->hash);
}

static bool neighbours_done(const struct sim *w)
{
    for (unsigned i = 0; i < w->n_ev; i++)
        if (w->watched[i] && !flowed(w, &w->ev[i]))
            return false;
    return true;
}

static void begin_calm(struct sim *w)
{
    for (unsigned i = 0; i < w->n_ev; i++)
        if (w->ev[i].kind == SIM_K_BOUNCED)
            w->ev[i].kind = SIM_K_NORMAL;
    for (unsigned d = 0; d < w->conf.dests; d++)
        if (w->broker.blocked_until[d] > w->now)
            w->broker.blocked_until[d] = w->now;
    sim_broker_heal(w);
    wake_all(w);
    SIM_TRACE(w, "---- nothing is wrong from here");
}

/* All is settled but what stands behind a dead one. */
static bool calm_done(struct sim *w)
{
    const struct sim_node *o = owner(w);
    if (!o || o->settling || !ob_flow_idle(o->flow) || w->broker.n_wire)
        return false;
    for (unsigned i = 0; i < w->n_ev; i++) {
        const struct sim_event *e = &w->ev[i];
        if (e->rolled_back || e->skip)
            continue;
        if (!sim_committed(w, e) || (!sim_settled(w, e) && !(e->parked && holds(w, e->hash))))
            return false;
    }
    return true;
}

static bool any_hold(const struct sim *w)
{
    for (unsigned i = 0; i < w->db.n_dead; i++)
        if (w->db.dead[i].hold)
            return true;
    return false;
}

static void next_phase(struct sim *w)
{
    bool chaos_over = w->now >= w->conf.chaos_ms && w->next_fault == w->n_fault;
    if (w->phase == SIM_CHAOS && chaos_over) {
        end_chaos(w);
        w->phase = w->conf.neighbours ? SIM_NEIGHBOURS : SIM_CALM;
        if (w->phase == SIM_NEIGHBOURS)
            begin_neighbours(w);
        else
            begin_calm(w);
    } else if (w->phase == SIM_NEIGHBOURS && neighbours_done(w)) {
        w->phase = SIM_CALM;
        begin_calm(w);
    } else if ((w->phase == SIM_CALM || w->phase == SIM_OPERATOR) && calm_done(w)) {
        if (!any_hold(w)) {
            w->phase = SIM_OVER;
            return;
        }
        w->phase = SIM_OPERATOR;
        sim_operator(w, true);
        wake_all(w);
    } else {
        return;
    }
    w->phase_at = w->progress_at = w->now;
}

/* ---- time ---- */

static int64_t earlier(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t node_due(const struct sim *w, const struct sim_node *n)
{
    if (!n->running)
        return SIM_NEVER;
    int64_t at = earlier(n->wake, sim_lib_wake(w, n));
    return at > n->hung_until ? at : n->hung_until;
}

static int64_t next_time(const struct sim *w)
{
    int64_t at = sim_broker_wake(w);
    if (w->next_fault < w->n_fault)
        at = earlier(at, w->fault[w->next_fault].at);
    if (w->phase == SIM_CHAOS && w->next_fault == w->n_fault)
        at = earlier(at, w->conf.chaos_ms);
    if (w->restart_at != SIM_NEVER)
        at = earlier(at, w->restart_at);
    for (unsigned i = 0; i < w->n_ev; i++)
        if (w->ev[i].commit_at > w->now)
            at = earlier(at, w->ev[i].commit_at);
    for (unsigned i = 0; i < SIM_NODES; i++)
        at = earlier(at, node_due(w, &w->node[i]));
    if (w->db.down_until > w->now)
        at = earlier(at, w->db.down_until);
    if (w->db.paused_until > w->now)
        at = earlier(at, w->db.paused_until);
    return at > w->now ? at : w->now;
}

static void advance(struct sim *w, int64_t to)
{
    int64_t from = w->now;
    w->now = to;
    bool told = (w->db.down_until > from && w->db.down_until <= to) ||
                (w->db.paused_until > from && w->db.paused_until <= to);
    for (unsigned i = 0; i < w->n_ev && !told; i++)
        told = w->ev[i].commit_at > from && w->ev[i].commit_at <= to;
    for (unsigned i = 0; i < SIM_NODES && told; i++)
        w->node[i].wake = earlier(w->node[i].wake, to);
}

/* Longer than any back-off and time-out that a healthy world can still have before it. */
static int64_t patience(const struct sim *w)
{
    const struct ob_flow_conf *c = &w->conf.flow;
    int64_t longest = (int64_t)c->retry.max_ms + c->probe.max_ms;
    return 30000 + 3 * longest + 6 * ((int64_t)c->publish_timeout_ms + c->park_after_ms) +
           10 * (int64_t)c->settle_every_ms;
}

static void check_progress(struct sim *w)
{
    if (w->phase == SIM_NEIGHBOURS &&
        w->now - w->phase_at >
            patience(w) + (int64_t)w->n_ev * (2000 + w->conf.flow.settle_every_ms)) {
        for (unsigned i = 0; i < w->n_ev; i++)
            if (w->watched[i] && !flowed(w, &w->ev[i])) {
                sim_fail(w, "neighbours",
                         "event %u of key %u is stopped by a blocked destination or poison", i,
                         w->ev[i].key);
                return;
            }
    }
    if ((w->phase == SIM_CALM || w->phase == SIM_OPERATOR) && w->now - w->progress_at > patience(w))
        sim_fail(w, "settles", "nothing is wrong, and nothing has moved for %lld ms",
                 (long long)(w->now - w->progress_at));
    if (w->rounds > 400000)
        sim_fail(w, "settles", "no end after %llu rounds", (unsigned long long)w->rounds);
}

static void step(struct sim *w)
{
    int64_t at = next_time(w);
    if (at == SIM_NEVER) {
        if (w->phase == SIM_NEIGHBOURS || w->phase == SIM_CHAOS)
            w->phase_at = w->now = w->now + patience(w) * 2;
        sim_fail(w, "settles", "nobody will ever wake up again");
        return;
    }
    advance(w, at);
    sim_broker_heal(w);
    while (w->next_fault < w->n_fault && w->fault[w->next_fault].at <= w->now)
        strike(w, &w->fault[w->next_fault++]);
    if (w->restart_at <= w->now) {
        w->restart_at = SIM_NEVER;
        struct sim_node *s = owner(w) ? NULL : spare(w);
        if (s)
            sim_node_start(w, s);
    }
    sim_broker_run(w);
    unsigned first = (unsigned)ob_rand_below(&w->rand, SIM_NODES);
    for (unsigned i = 0; i < SIM_NODES && !w->failed; i++) {
        struct sim_node *n = &w->node[(first + i) % SIM_NODES];
        if (node_due(w, n) <= w->now) {
            w->rounds++;
            sim_node_round(w, n);
            if (!w->failed)
                sim_broker_run(w);
        }
    }
    next_phase(w);
    check_progress(w);
}

bool sim_run(struct sim *w, uint64_t seed, unsigned mutant, uint64_t crash_at,
             struct sim_trace *trace)
{
    memset(w, 0, sizeof *w);
    w->mutant = mutant;
    w->crash_at = crash_at;
    w->trace = trace;
    sim_conf_make(&w->conf, seed);
    w->rand.state = seed ^ 0x5eed5eed5eed5eedu;
    w->restart_at = SIM_NEVER;
    sim_in_flow = sim_flow_allocated = false;
    sim_plan(w);
    for (unsigned i = 0; i < SIM_NODES; i++)
        w->node[i].id = i + 1;
    sim_node_start(w, &w->node[0]);
    while (!w->failed && w->phase != SIM_OVER)
        step(w);
    if (!w->failed)
        sim_check_end(w);
    for (unsigned i = 0; i < SIM_NODES; i++)
        ob_flow_free(w->node[i].flow);
    return !w->failed;
}
