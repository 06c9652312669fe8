/* SPDX-License-Identifier: Apache-2.0 */
/* read - an owner's claims and drains: from the fake database into flow. */
#include "node.h"

static struct ob_claimed claimed(const struct sim *w, unsigned ev, uint64_t ref)
{
    const struct sim_event *e = &w->ev[ev];
    return (struct ob_claimed){.ref = ref,
                               .hash = e->hash,
                               .dest = e->dest,
                               .bytes = e->bytes,
                               .max_attempts = e->max_attempts,
                               .flags = (e->skip ? OB_CLAIM_SKIP : 0) |
                                        (e->kind == SIM_K_POISON ? OB_CLAIM_POISON : 0)};
}

static void add_token(struct sim *w, struct sim_node *n, uint64_t token, unsigned ev,
                      const struct ob_claimed *c)
{
    if (token <= n->last_token || n->n_tok >= w->conf.flow.window_events) {
        sim_fail(w, token <= n->last_token ? "token" : "window",
                 "token %llu after %llu, %u live tokens", (unsigned long long)token,
                 (unsigned long long)n->last_token, n->n_tok);
        return;
    }
    n->last_token = token;
    if (c->park_n && c->attempts < w->ev[ev].recorded)
        sim_fail(w, "attempts", "event %u: %u of %u recorded attempts are left", ev, c->attempts,
                 w->ev[ev].recorded);
    n->seen[ev].drained |= c->park_n != 0;
    n->seen[ev].returns = 0;
    n->tok[n->n_tok++] = (struct sim_tok){.token = token,
                                          .ev = ev,
                                          .poison = c->flags & OB_CLAIM_POISON,
                                          .drained = c->park_n != 0,
                                          .claim_attempts = c->attempts,
                                          .park_n = c->park_n,
                                          .claimed_at = w->now};
    SIM_TRACE(w, "owner %u %s event %u key %u hash %llx dest %u%s", n->id,
              c->park_n ? "drains" : "claims", ev, w->ev[ev].key,
              (unsigned long long)w->ev[ev].hash, w->ev[ev].dest_i,
              c->flags & OB_CLAIM_HELD ? " (held)" : "");
}

bool sim_node_claim(struct sim *w, struct sim_node *n, bool *more)
{
    unsigned evs[SIM_WINDOW];
    uint64_t tokens[SIM_WINDOW], bytes = 0;
    struct ob_claimed c[SIM_WINDOW];
    size_t k = 0, room = ob_flow_room(n->flow, &bytes);
    if (room > w->conf.page)
        room = w->conf.page;
    *more = false;
    if (!room || w->db.paused_until > w->now)
        return true;
    enum ob_status st = sim_source_claim(w, n, room, bytes, evs, &k);
    if (st == OB_FENCED) {
        sim_node_fenced(w, n);
        return false;
    }
    if (st != OB_OK)
        return true;
    bool lookup = ob_flow_needs_lookup(n->flow);
    for (size_t i = 0; i < k; i++) {
        n->claim_ref = w->conf.flow.log_source ? w->ev[evs[i]].ref : n->claim_ref + 1;
        c[i] = claimed(w, evs[i], n->claim_ref);
        if (w->ev[evs[i]].parked || w->ev[evs[i]].dead || w->ev[evs[i]].discarded ||
            w->db.ahead[evs[i]])
            c[i].flags = OB_CLAIM_PASSED; /* recorded ahead of the cursor: that only passes it */
        if (lookup && w->mutant != SIM_M_FORGET_HOLDS && sim_held(w, c[i].hash))
            c[i].flags |= OB_CLAIM_HELD;
    }
    FLOW(ob_flow_claim(n->flow, w->now, c, k, tokens));
    for (size_t i = 0; i < k; i++)
        if (!(c[i].flags & (OB_CLAIM_SKIP | OB_CLAIM_PASSED)))
            add_token(w, n, tokens[i], evs[i], &c[i]);
    *more = true;
    return true;
}

/* Returns how many rows the source had. */
static size_t drain(struct sim *w, struct sim_node *n, uint64_t dest, size_t max)
{
    const struct sim_row *rows[SIM_WINDOW];
    struct ob_drained drained[SIM_WINDOW];
    struct ob_claimed c[SIM_WINDOW];
    uint64_t tokens[SIM_WINDOW];
    size_t n_drained = 0, k = sim_source_drain(w, n, dest, max, rows, drained, &n_drained);
    if (!k)
        return 0;
    for (size_t i = 0; i < k; i++) {
        c[i] = claimed(w, rows[i]->ev, 0);
        c[i].attempts = rows[i]->attempts;
        c[i].park_n = rows[i]->n;
        if (rows[i]->blocked && rows[i]->blocked == c[i].dest)
            c[i].blocked_ms = w->now > rows[i]->due ? w->now - rows[i]->due : 1;
    }
    FLOW(ob_flow_drained(n->flow, w->now, c, k, drained, n_drained, tokens));
    for (size_t i = 0; i < k; i++)
        if (tokens[i])
            add_token(w, n, tokens[i], rows[i]->ev, &c[i]);
    return k;
}

static void load_dests(struct sim *w, struct sim_node *n)
{
    uint64_t dests[4];
    size_t k = sim_source_blocked(w, n->load_after, dests, 4);
    for (size_t i = 0; i < k; i++) {
        bool took;
        FLOW(took = ob_flow_dest_parked(n->flow, w->now, dests[i]));
        if (!took)
            return; /* no place: again in the next round */
        n->load_after = dests[i];
    }
    if (k < 4) {
        n->load_dests = false;
        n->load_after = 0;
    }
}

static void drain_dests(struct sim *w, struct sim_node *n)
{
    uint64_t dests[SIM_DESTS + 2];
    bool one[SIM_DESTS + 2];
    size_t k = 0;
    FLOW(k = ob_flow_drain_dests(n->flow, w->now, dests, one, SIM_DESTS + 2));
    for (size_t i = 0; i < k; i++) {
        size_t room = ob_flow_drain_room(n->flow);
        if (room && !drain(w, n, dests[i], one[i] ? 1 : room))
            FLOW(ob_flow_drain_none(n->flow, w->now, dests[i]));
    }
}

static void drain_due(struct sim *w, struct sim_node *n)
{
    if (n->next_due > w->now)
        return;
    size_t room = ob_flow_drain_room(n->flow);
    if (room) {
        drain(w, n, 0, room);
        n->next_due = sim_source_next_due(w);
    }
    if (n->next_due <= w->now)
        n->next_due = w->now + 100; /* in the window, or no room */
}

/* Nothing is held: no parked row, no dead event that holds its key, none of them on its way. */
static void tell_empty(struct sim *w, struct sim_node *n)
{
    bool empty = w->db.n_parked == 0 && !n->settling;
    for (unsigned i = 0; i < w->db.n_dead && empty && w->mutant != SIM_M_FORGET_DEAD_HOLDS; i++)
        empty = !w->db.dead[i].hold;
    if (w->mutant == SIM_M_FORGET_HOLDS || (empty && sim_chance(w, 500)))
        FLOW(ob_flow_parked_empty(n->flow));
}

bool sim_node_drains(struct sim *w, struct sim_node *n)
{
    if (w->db.down_until > w->now || w->db.paused_until > w->now) {
        if (n->next_due <= w->now)
            n->next_due = w->now + 100;
        return true;
    }
    if (n->epoch != w->db.epoch && w->mutant != SIM_M_ZOMBIE_CLAIMS) {
        sim_node_fenced(w, n); /* like a claim, it checks the epoch that it reads under */
        return false;
    }
    if (n->scan_at <= w->now) {
        n->scan_at = w->now + 10000;
        n->load_dests = true;
    }
    if (n->load_dests)
        load_dests(w, n);
    if (w->conf.time_first)
        drain_due(w, n);
    drain_dests(w, n);
    if (!w->conf.time_first)
        drain_due(w, n);
    tell_empty(w, n);
    return true;
}
