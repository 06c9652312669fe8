/* SPDX-License-Identifier: Apache-2.0 */
/* send - from flow to an owner's client library, and what flow lets go of. */
#include "node.h"

static void note_sent(struct sim *w, struct sim_node *n, struct sim_tok *t)
{
    struct sim_event *e = &w->ev[t->ev];
    sim_check_submit(w, n, t);
    t->in_flight = true;
    t->cancelled = false;
    t->sent_at = w->now;
    t->order = ++n->submits;
    n->seen[t->ev].sent = n->seen[t->ev].in_flight = true;
    n->seen[t->ev].answered = false;
    t->down_probe = n->down_told;
    t->not_up = n->not_up;
    if (t->down_probe && ++n->down_probes > 1)
        sim_fail(w, "probe", "event %u is sent to a sink that is down, beside its probe", t->ev);
    unsigned running = 0;
    for (unsigned i = 0; i < SIM_NODES; i++)
        running += w->node[i].running;
    if (running > 1)
        e->excuse = true; /* a take-over is under way */
    SIM_TRACE(w, "owner %u sends event %u key %u dest %u", n->id, t->ev, e->key, e->dest_i);
}

bool sim_node_submit(struct sim *w, struct sim_node *n, size_t *sent)
{
    uint64_t tokens[SIM_WINDOW];
    size_t k = 0, taken = 0;
    bool down = false;
    *sent = 0;
    FLOW(k = ob_flow_submit(n->flow, w->now, tokens, SIM_WINDOW));
    for (size_t i = 0; i < k; i++)
        if (!sim_tok_find(n, tokens[i])) {
            sim_fail(w, "token", "a token that is not live is sent");
            return false;
        }
    if (k)
        taken = sim_lib_submit(w, n, tokens, k, &down);
    if (sim_point(w, n)) /* sent, and nobody knows */
        return false;
    for (size_t i = 0; i < taken && !w->failed; i++)
        note_sent(w, n, sim_tok_find(n, tokens[i]));
    FLOW(ob_flow_accepted(n->flow, w->now, taken));
    if (down && !n->down_told)
        n->lib.tell_sink = -1;
    *sent = taken;
    if (w->mutant == SIM_M_ACCEPTED_IS_DELIVERED)
        for (size_t i = 0; i < taken; i++) {
            struct ob_flow_verdict v = {.token = tokens[i], .verdict = OB_V_DELIVERED};
            sim_tok_find(n, tokens[i])->in_flight = false;
            FLOW(ob_flow_verdicts(n->flow, w->now, &v, 1));
        }
    return true;
}

void sim_node_ask_sink(struct sim *w, struct sim_node *n)
{
    uint64_t tokens[SIM_WINDOW];
    size_t k = 0;
    bool reset = false;
    FLOW(k = ob_flow_cancel(n->flow, tokens, SIM_WINDOW));
    for (size_t i = 0; i < k; i++) {
        struct sim_tok *t = sim_tok_find(n, tokens[i]);
        if (!t || !t->in_flight)
            continue; /* its verdict was in the same round */
        t->cancelled = true;
        t->blamed = n->acked_order[w->ev[t->ev].dest_i] > t->order;
        SIM_TRACE(w, "owner %u cancels event %u%s", n->id, t->ev, t->blamed ? "" : " (unblamed)");
        sim_check_cancel(w, n, t);
        sim_lib_cancel(w, n, tokens[i]);
    }
    FLOW(reset = ob_flow_wants_reset(n->flow));
    if (!reset)
        return;
    SIM_TRACE(w, "owner %u resets the sink", n->id);
    sim_forget_returns(n);
    n->not_up = ++n->outages;
    sim_lib_disconnect(w, n, false);
    /* Where the only event that could probe is returned each time, the sink's own word is needed; a
     * real one always reports that it is up after a reset. */
    if (!w->broker.down && (w->conf.bounced || sim_chance(w, 500)))
        n->lib.tell_sink = 1;
}

void sim_node_collect(struct sim *w, struct sim_node *n)
{
    uint64_t tokens[SIM_WINDOW];
    size_t k = 0;
    do {
        FLOW(k = ob_flow_freed(n->flow, tokens, SIM_WINDOW));
        for (size_t i = 0; i < k; i++) {
            struct sim_tok *t = sim_tok_find(n, tokens[i]);
            if (!t || t->in_flight) {
                sim_fail(w, "token", "a token is freed that is %s", t ? "in flight" : "not live");
                return;
            }
            SIM_TRACE(w, "owner %u lets go of event %u", n->id, t->ev);
            *t = n->tok[--n->n_tok];
        }
    } while (k == SIM_WINDOW);
}
