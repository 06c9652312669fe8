/* SPDX-License-Identifier: Apache-2.0 */
/* node - one owner: flow, its client library, and the glue between them and the database. The round
 * is the one that flow.h describes; a crash may come between any two of its steps. */
#include "node.h"

#include <string.h>

struct sim_tok *sim_tok_find(struct sim_node *n, uint64_t token)
{
    for (unsigned i = 0; i < n->n_tok; i++)
        if (n->tok[i].token == token)
            return &n->tok[i];
    return NULL;
}

/* ---- beginning and end of an instance ---- */

/* What this instance sent and no settle has recorded will be sent again by the next. */
static void excuse_unsettled(struct sim *w, const struct sim_node *n)
{
    for (unsigned i = 0; i < w->n_ev; i++)
        if (n->seen[i].sent && !sim_settled(w, &w->ev[i]))
            w->ev[i].excuse = true;
}

static void forget(struct sim_node *n)
{
    n->n_tok = 0;
    memset(n->seen, 0, sizeof n->seen);
    memset(n->acked_order, 0, sizeof n->acked_order);
    n->down_probes = 0;
    n->settling = false;
    n->claim_ref = 0;
    n->load_dests = true;
    n->load_after = 0;
    n->closing = 0;
}

void sim_node_start(struct sim *w, struct sim_node *n)
{
    for (unsigned i = 0; i < SIM_NODES; i++)
        if (w->node[i].running)
            excuse_unsettled(w, &w->node[i]); /* a zombie from now on */
    forget(n);
    sim_lib_clear(&n->lib);
    if (!n->flow) {
        struct ob_flow_conf c = w->conf.flow;
        c.seed += w->now ? (uint64_t)w->now : 0;
        n->flow = ob_flow_new(&c, NULL);
        n->last_token = 0;
        n->down_told = false;
    }
    if (!n->flow) {
        sim_fail(w, "memory", "no flow");
        return;
    }
    sim_source_own(w, n);
    n->running = true;
    n->hung_until = 0;
    n->wake = n->next_due = n->scan_at = w->now;
    if (w->broker.down && !w->broker.quiet)
        n->lib.tell_sink = -1;
    else if (n->down_told)
        n->lib.tell_sink = 1;
    SIM_TRACE(w, "owner %u starts, epoch %llu", n->id, (unsigned long long)n->epoch);
}

void sim_node_crash(struct sim *w, struct sim_node *n)
{
    SIM_TRACE(w, "owner %u crashes", n->id);
    w->crashes++;
    excuse_unsettled(w, n);
    sim_lib_disconnect(w, n, true);
    ob_flow_free(n->flow);
    n->flow = NULL;
    n->running = false;
    if (n->epoch == w->db.epoch)
        w->restart_at = w->now + sim_delay(w, 3000);
}

/* Another owner took over, or it is not known what was recorded: forget everything. */
static void lose(struct sim *w, struct sim_node *n)
{
    excuse_unsettled(w, n);
    FLOW(ob_flow_reset(n->flow));
    n->n_tok = 0; /* their tokens come out of ob_flow_freed() all the same */
    sim_lib_disconnect(w, n, false);
    uint64_t t[SIM_WINDOW];
    while (ob_flow_freed(n->flow, t, SIM_WINDOW) > 0)
        ;
}

void sim_node_fenced(struct sim *w, struct sim_node *n)
{
    SIM_TRACE(w, "owner %u is fenced", n->id);
    w->fenced++;
    lose(w, n);
    sim_lib_disconnect(w, n, true);
    n->running = false; /* stands by */
}

static void reload(struct sim *w, struct sim_node *n)
{
    SIM_TRACE(w, "owner %u reloads", n->id);
    lose(w, n);
    forget(n);
    sim_source_own(w, n);
    n->next_due = w->now;
}

/* ---- a clean end: no event that is settled may come again ---- */

void sim_node_close(struct sim *w, struct sim_node *n, enum sim_fault_kind kind)
{
    if (n->closing)
        return;
    SIM_TRACE(w, "owner %u begins to close", n->id);
    n->closing = kind;
    n->close_at = kind == SIM_F_RELOAD ? SIM_NEVER : w->now + w->conf.grace_ms;
    n->wake = w->now;
}

static void end_owner(struct sim *w, struct sim_node *n, bool clean)
{
    bool yields = n->closing == SIM_F_YIELD;
    SIM_TRACE(w, "owner %u stops%s", n->id, clean ? "" : ", its grace time is over");
    if (!clean)
        excuse_unsettled(w, n);
    sim_lib_disconnect(w, n, true);
    ob_flow_free(n->flow);
    n->flow = NULL;
    n->running = false;
    if (n->epoch == w->db.epoch)
        w->restart_at = yields ? w->now : w->now + sim_delay(w, 3000);
}

static void reload_cleanly(struct sim *w, struct sim_node *n)
{
    SIM_TRACE(w, "owner %u reloads its routes", n->id);
    uint64_t t[SIM_WINDOW];
    FLOW(ob_flow_reset(n->flow));
    while (ob_flow_freed(n->flow, t, SIM_WINDOW) > 0)
        ;
    forget(n);
    sim_source_rewind(w, n);
    n->next_due = n->wake = w->now;
}

/* Nothing is in flight and everything is recorded, or the time is over. */
static void finish_close(struct sim *w, struct sim_node *n)
{
    struct ob_flow_stats st;
    ob_flow_stats(n->flow, &st);
    bool quiet = st.in_flight == 0 && !n->settling && ob_flow_settle_at(n->flow) == SIM_NEVER;
    if (!quiet && w->now < n->close_at)
        return;
    w->closed += quiet;
    if (n->closing == SIM_F_RELOAD)
        reload_cleanly(w, n);
    else
        end_owner(w, n, quiet);
}

bool sim_point(struct sim *w, struct sim_node *n)
{
    if (w->failed)
        return true;
    w->points++;
    bool dies = w->crash_at ? w->points == w->crash_at
                            : w->phase == SIM_CHAOS && w->conf.crash_ppm &&
                                  ob_rand_below(&w->rand, 1000000) < w->conf.crash_ppm;
    if (dies)
        sim_node_crash(w, n);
    return dies;
}

/* ---- what the sink said ---- */

static void note_verdict(struct sim *w, struct sim_node *n, const struct ob_flow_verdict *v)
{
    struct sim_tok *t = sim_tok_find(n, v->token);
    if (!t || !t->in_flight)
        return;
    struct sim_event *e = &w->ev[t->ev];
    struct sim_seen *seen = &n->seen[t->ev];
    SIM_TRACE(
        w, "owner %u hears of event %u key %u: %s", n->id, t->ev, e->key,
        (const char *const[]){"delivered", "retry", "reject", "blocked", "returned"}[v->verdict]);
    t->in_flight = seen->in_flight = false;
    seen->answered = true;
    seen->last = v->verdict;
    if (t->down_probe && n->down_probes)
        n->down_probes--;
    t->down_probe = false;
    if (v->verdict != OB_V_RETURNED) {
        n->down_told = false;
        if (t->not_up == n->not_up)
            n->not_up = 0;
        w->dones++;
        if (t->order > n->acked_order[e->dest_i])
            n->acked_order[e->dest_i] = t->order;
    }
    t->blocked = v->verdict == OB_V_BLOCKED || (v->verdict == OB_V_RETRY && t->cancelled);
    if (t->blocked && e->blocked_at == SIM_NEVER)
        e->blocked_at = w->now;
    seen->returns = v->verdict == OB_V_RETURNED && !n->not_up ? seen->returns + 1 : 0;
    switch (v->verdict) {
    case OB_V_RETRY:
        if (w->mutant == SIM_M_OUTAGE_IS_RETRY)
            break;
        if (t->cancelled)
            t->maybe += t->blamed;
        else
            t->spent++;
        t->unsaved += !t->cancelled;
        if (!t->cancelled)
            seen->retry_at = w->now;
        else
            seen->last = OB_V_RETURNED; /* no back-off is due if nobody is to blame */
        break;
    case OB_V_REJECT:
        t->rejected = true;
        break;
    case OB_V_BLOCKED:
    case OB_V_DELIVERED:
    case OB_V_RETURNED:
        break;
    }
    t->cancelled = false;
}

static void hear_states(struct sim *w, struct sim_node *n)
{
    struct sim_lib *lib = &n->lib;
    if (lib->tell_sink) {
        SIM_TRACE(w, "owner %u hears that the sink is %s", n->id,
                  lib->tell_sink > 0 ? "up" : "down");
        FLOW(ob_flow_sink(n->flow, w->now, lib->tell_sink > 0));
        n->down_at = n->down_told ? n->down_at : w->now;
        if (n->down_told && lib->tell_sink > 0)
            n->up_at = w->now;
        n->not_up = lib->tell_sink < 0 ? ++n->outages : 0;
        if (n->not_up)
            sim_forget_returns(n);
        n->down_told = lib->tell_sink < 0;
        n->down_probes = 0;
        lib->tell_sink = 0;
    }
    for (unsigned d = 0; d < w->conf.dests; d++) {
        if (!lib->tell_dest[d])
            continue;
        struct ob_rand r = {d + 5};
        SIM_TRACE(w, "owner %u hears that destination %u is %s", n->id, d,
                  lib->tell_dest[d] > 0 ? "free" : "blocked");
        FLOW(ob_flow_dest(n->flow, w->now, ob_rand_next(&r) | 1, lib->tell_dest[d] > 0));
        lib->tell_dest[d] = 0;
    }
}

/* Verdicts for tokens that are over: they must change nothing. */
static void echo(struct sim *w, struct sim_node *n)
{
    struct ob_flow_verdict v[4];
    size_t k = 0;
    for (unsigned i = 0; i < n->lib.n_echo; i++) {
        const struct sim_tok *t = sim_tok_find(n, n->lib.echoes[i]);
        if (t && t->in_flight)
            continue; /* sent again under the same token */
        v[k++] = (struct ob_flow_verdict){.token = n->lib.echoes[i],
                                          .verdict = (enum ob_verdict)ob_rand_below(&w->rand, 5)};
    }
    if (k)
        FLOW(ob_flow_verdicts(n->flow, w->now, v, k));
    n->lib.n_echo = 0;
}

static void hear(struct sim *w, struct sim_node *n)
{
    struct ob_flow_verdict v[SIM_LIB];
    bool states_first = sim_chance(w, 500);
    if (states_first)
        hear_states(w, n);
    size_t k = sim_lib_poll(w, n, v, SIM_LIB);
    for (size_t i = 0; i < k; i++)
        note_verdict(w, n, &v[i]);
    size_t cut = k ? (size_t)ob_rand_below(&w->rand, k + 1) : 0;
    if (cut)
        FLOW(ob_flow_verdicts(n->flow, w->now, v, cut));
    if (k - cut)
        FLOW(ob_flow_verdicts(n->flow, w->now, v + cut, k - cut));
    if (!states_first)
        hear_states(w, n);
    if (w->conf.echo && n->lib.n_echo && sim_chance(w, w->conf.echo))
        echo(w, n);
}

/* ---- settle ---- */

static void settle_begin(struct sim *w, struct sim_node *n)
{
    memset(n->ops, 0x5a, sizeof n->ops);
    n->settle = (struct ob_settle){.ops = n->ops};
    bool any;
    FLOW(any = ob_flow_settle_begin(n->flow, w->now, &n->settle));
    if (!any)
        return;
    for (unsigned i = 0; i < w->n_ev; i++)
        n->known[i] = n->seen[i].answered && n->seen[i].last == OB_V_DELIVERED;
    n->settling = true;
    n->settle_done = w->now;
    sim_check_ops(w, n, &n->settle);
    if (w->phase == SIM_CHAOS && sim_chance(w, w->conf.settle_slow))
        n->settle_done += sim_delay(w, 1000);
}

/* Returns false when this instance is over. */
static bool settle_finish(struct sim *w, struct sim_node *n)
{
    uint64_t released[SIM_WINDOW + 8];
    size_t n_released = 0;
    bool chaos = w->phase == SIM_CHAOS;
    enum ob_status st = OB_OK;
    bool unknown = chaos && sim_chance(w, w->conf.settle_unknown);
    bool recorded = !unknown || sim_chance(w, 500);
    n->settling = false;
    if (w->db.down_until > w->now || (chaos && sim_chance(w, w->conf.settle_fail)))
        st = sim_chance(w, 500) ? OB_RETRY : OB_DOWN;
    else if (recorded)
        st = sim_source_settle(w, n, &n->settle, released, &n_released);
    if (sim_point(w, n)) /* committed, and nobody was told */
        return false;
    if (st == OB_FENCED) {
        sim_node_fenced(w, n);
        return false;
    }
    if (unknown && st == OB_OK) {
        SIM_TRACE(w, "owner %u does not know whether it settled", n->id);
        if (w->mutant == SIM_M_UNKNOWN_SETTLE_IS_RETRY) {
            FLOW(ob_flow_settle_end(n->flow, w->now, OB_RETRY, &n->settle, released, 0));
            return true;
        }
        reload(w, n);
        return true;
    }
    if (w->mutant == SIM_M_FAILED_SETTLE_IS_OK)
        st = OB_OK;
    if (st == OB_OK) {
        n->next_due = sim_source_next_due(w);
        for (size_t i = 0; i < n->settle.n; i++) {
            struct sim_tok *t = sim_tok_find(n, n->ops[i].token);
            if (!t)
                continue;
            t->unsaved -= t->saving;
            t->park_n = n->ops[i].park_n;
        }
    }
    FLOW(ob_flow_settle_end(n->flow, w->now, st, &n->settle, released, n_released));
    return true;
}

static bool settle(struct sim *w, struct sim_node *n)
{
    if (!n->settling && ob_flow_settle_at(n->flow) <= w->now)
        settle_begin(w, n);
    if (sim_point(w, n))
        return false;
    if (n->settling && n->settle_done <= w->now)
        return settle_finish(w, n);
    return true;
}

static int64_t earlier(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static void sleep_until(struct sim *w, struct sim_node *n, bool again)
{
    n->wake = ob_flow_wake_at(n->flow, w->now);
    n->wake = earlier(n->wake, n->settling ? n->settle_done : ob_flow_settle_at(n->flow));
    n->wake = earlier(n->wake, n->next_due);
    if (w->conf.poll_ms != SIM_NEVER)
        n->wake = earlier(n->wake, w->now + w->conf.poll_ms);
    if (n->load_dests)
        n->wake = earlier(n->wake, w->now + 200);
    uint64_t dest; /* without rows that wait for a destination the scan would only hide a bug */
    if (sim_source_blocked(w, 0, &dest, 1) > 0)
        n->wake = earlier(n->wake, n->scan_at > w->now ? n->scan_at : w->now + 100);
    if (again)
        n->wake = w->now;
}

/* Only verdicts, settles and the end of the grace time matter. */
static void sleep_closing(struct sim *w, struct sim_node *n)
{
    int64_t at = n->settling ? n->settle_done : ob_flow_settle_at(n->flow);
    n->wake = earlier(at > w->now ? at : w->now + 1, w->now + 20);
    if (n->close_at > w->now)
        n->wake = earlier(n->wake, n->close_at);
}

void sim_node_round(struct sim *w, struct sim_node *n)
{
    bool claimed_some = false;
    size_t sent = 0;
    FLOW(ob_flow_close(n->flow, n->closing));
    hear(w, n);
    if (sim_point(w, n))
        return;
    FLOW(ob_flow_tick(n->flow, w->now));
    if (!settle(w, n) || sim_point(w, n))
        return;
    sim_node_collect(w, n);
    if (n->closing) {
        sim_node_ask_sink(w, n);
        sleep_closing(w, n);
        finish_close(w, n);
        return;
    }
    if (w->conf.drain_first && !sim_node_drains(w, n))
        return;
    if (!sim_node_claim(w, n, &claimed_some) || sim_point(w, n))
        return;
    if (!w->conf.drain_first && !sim_node_drains(w, n))
        return;
    if (sim_point(w, n) || !sim_node_submit(w, n, &sent) || sim_point(w, n))
        return;
    sim_node_ask_sink(w, n);
    sim_node_collect(w, n);
    sim_check_bounds(w, n);
    sleep_until(w, n, claimed_some || sent > 0);
}
