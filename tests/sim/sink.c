/* SPDX-License-Identifier: Apache-2.0 */
/* sink - a fake broker, and one client library per owner.
 *
 * A library takes messages, the broker decides about each at some time (stored, failed, rejected,
 * destination blocked), and the answer travels back late, out of order, or not at all. An ordered
 * library keeps acceptance order per destination (or key and destination); a failed message gives
 * back all that stand behind it, in the same poll. A lost connection gives back everything without
 * an answer, and some of that arrives at the broker all the same. */
#include "sim.h"

#include <string.h>

void sim_lib_clear(struct sim_lib *lib)
{
    memset(lib, 0, sizeof *lib);
}

/* A broker that is slower than publish_timeout is one of the faults. */
static int64_t latency(struct sim *w)
{
    unsigned most = w->conf.latency_ms, calm = w->conf.flow.publish_timeout_ms / 4;
    return sim_delay(w, w->phase != SIM_CHAOS && most > calm ? calm : most);
}

static void store(struct sim *w, unsigned ev)
{
    struct sim_event *e = &w->ev[ev];
    SIM_TRACE(w, "broker takes event %u key %u dest %u%s", ev, e->key, e->dest_i,
              e->stored ? " again" : "");
    sim_check_stored(w, e);
    if (!e->stored || !w->conf.dedupe)
        e->stored++;
    w->progress_at = w->now;
}

/* Behind the same failure: same destination, and with fifo_key the same key. */
static bool same_line(const struct sim *w, unsigned a, unsigned b)
{
    const struct sim_event *x = &w->ev[a], *y = &w->ev[b];
    return x->dest_i == y->dest_i && (x->key == y->key || !w->conf.fifo_key);
}

static bool failing(const struct sim_msg *m)
{
    return m->decided && !m->silent && m->verdict != OB_V_DELIVERED;
}

/* An ordered library gives back what stands behind m; it is told in the same poll. */
static void give_back_behind(const struct sim *w, struct sim_lib *lib, const struct sim_msg *m)
{
    if (!w->conf.flow.ordered_sink)
        return;
    for (struct sim_msg *b = lib->m + (m - lib->m) + 1; b < lib->m + lib->n; b++) {
        if (b->decided || !same_line(w, m->ev, b->ev))
            continue;
        /* One that is returned each time takes only its key with it, else no other could pass. */
        if (m->verdict == OB_V_RETURNED && w->ev[m->ev].key != w->ev[b->ev].key)
            continue;
        b->decided = true;
        b->verdict = OB_V_RETURNED;
        b->ack_at = m->ack_at;
    }
}

/* Would the broker store it now? */
static bool would_take(const struct sim *w, const struct sim_event *e)
{
    return w->broker.blocked_until[e->dest_i] <= w->now &&
           (e->kind == SIM_K_NORMAL || (e->kind == SIM_K_FLAKY && !e->fails_left));
}

static enum ob_verdict broker_says(struct sim *w, struct sim_event *e)
{
    const struct sim_conf *c = &w->conf;
    if (w->broker.blocked_until[e->dest_i] > w->now)
        return OB_V_BLOCKED;
    switch (e->kind) {
    case SIM_K_OVERSIZE:
    case SIM_K_POISON: /* never gets here; check.c sees to that */
        return OB_V_REJECT;
    case SIM_K_HOPELESS:
        return OB_V_RETRY;
    case SIM_K_FLAKY:
        if (e->fails_left) {
            e->fails_left--;
            return OB_V_RETRY;
        }
        break;
    case SIM_K_BOUNCED:
        return OB_V_RETURNED;
    case SIM_K_NORMAL:
        break;
    }
    return w->phase == SIM_CHAOS && sim_chance(w, c->fail) ? OB_V_RETRY : OB_V_DELIVERED;
}

static void decide(struct sim *w, struct sim_lib *lib, struct sim_msg *m)
{
    struct sim_event *e = &w->ev[m->ev];
    const struct sim_conf *c = &w->conf;
    bool chaos = w->phase == SIM_CHAOS;
    m->decided = true;
    m->verdict = broker_says(w, e);
    m->ack_at = w->now + latency(w);
    if (chaos && sim_chance(w, c->late_ack))
        m->ack_at += sim_delay(w, c->flow.publish_timeout_ms * 2);
    if (m->verdict == OB_V_DELIVERED) {
        m->stored = true;
        store(w, m->ev);
        if (chaos && sim_chance(w, c->lost_ack))
            m->silent = e->excuse = true;
        return;
    }
    if (m->verdict == OB_V_RETRY && e->kind == SIM_K_FLAKY && chaos &&
        sim_chance(w, c->stored_fail)) {
        e->excuse = m->stored = true; /* "timed out", but it was stored */
        store(w, m->ev);
    }
    give_back_behind(w, lib, m);
}

static void lib_run(struct sim *w, struct sim_lib *lib)
{
    const struct sim_broker *b = &w->broker;
    uint64_t busy_dest = 0, busy_key = 0;
    for (unsigned i = 0; i < lib->n && !w->failed; i++) {
        struct sim_msg *m = &lib->m[i];
        const struct sim_event *e = &w->ev[m->ev];
        uint64_t key_bit = 1ull << (e->key & 63), dest_bit = 1ull << e->dest_i;
        if (m->decided)
            continue;
        bool behind = w->conf.flow.ordered_sink &&
                      (w->conf.fifo_key ? busy_key & key_bit : busy_dest & dest_bit);
        bool stuck =
            b->down || (b->blocked_until[e->dest_i] > w->now && b->blocked_quiet[e->dest_i]);
        if (behind || stuck || m->deliver_at > w->now) {
            busy_dest |= dest_bit;
            busy_key |= key_bit;
            continue;
        }
        decide(w, lib, m);
    }
}

void sim_broker_run(struct sim *w)
{
    struct sim_broker *b = &w->broker;
    unsigned k = 0;
    for (unsigned i = 0; i < b->n_wire && !w->failed; i++) {
        if (b->wire[i].at <= w->now)
            store(w, b->wire[i].ev);
        else
            b->wire[k++] = b->wire[i];
    }
    b->n_wire = k;
    for (unsigned i = 0; i < SIM_NODES && !w->failed; i++)
        if (w->node[i].running)
            lib_run(w, &w->node[i].lib);
}

int64_t sim_broker_wake(const struct sim *w)
{
    const struct sim_broker *b = &w->broker;
    int64_t at = SIM_NEVER;
    for (unsigned i = 0; i < b->n_wire; i++)
        if (b->wire[i].at < at)
            at = b->wire[i].at;
    if (b->down)
        return at < b->down_until ? at : b->down_until;
    for (unsigned d = 0; d < w->conf.dests; d++)
        if (b->blocked_until[d] > w->now && b->blocked_until[d] < at)
            at = b->blocked_until[d];
    for (unsigned i = 0; i < SIM_NODES; i++) {
        const struct sim_lib *lib = &w->node[i].lib;
        for (unsigned j = 0; w->node[i].running && j < lib->n; j++)
            if (!lib->m[j].decided && lib->m[j].deliver_at > w->now && lib->m[j].deliver_at < at)
                at = lib->m[j].deliver_at;
    }
    return at;
}

/* ---- what a library does for its owner ---- */

size_t sim_lib_submit(struct sim *w, struct sim_node *n, const uint64_t *tokens, size_t max,
                      bool *down)
{
    struct sim_lib *lib = &n->lib;
    struct sim_broker *b = &w->broker;
    size_t take = max;
    *down = b->down && !b->quiet && b->refuse == 0;
    if (*down)
        return 0;
    if (w->phase == SIM_CHAOS && sim_chance(w, 200))
        take = (size_t)ob_rand_below(&w->rand, max + 1);
    if (take > SIM_LIB - lib->n)
        take = SIM_LIB - lib->n;
    for (size_t i = 0; i < take; i++) {
        const struct sim_tok *t = sim_tok_find(n, tokens[i]);
        struct sim_msg *m = &lib->m[lib->n++];
        *m = (struct sim_msg){.token = tokens[i], .ev = t->ev, .sent_at = w->now};
        m->deliver_at = w->now + latency(w);
        if (b->down && !b->quiet && b->refuse == 2) {
            m->decided = true;
            m->verdict = OB_V_RETURNED;
            m->ack_at = w->now;
        }
        for (unsigned j = 0; w->conf.flow.ordered_sink && j + 1 < lib->n && !m->decided; j++)
            if (failing(&lib->m[j]) && same_line(w, lib->m[j].ev, m->ev)) {
                m->decided = true;
                m->verdict = OB_V_RETURNED;
                m->ack_at = lib->m[j].ack_at;
            }
    }
    return take;
}

static void haunt(struct sim *w, unsigned ev, int64_t at)
{
    struct sim_broker *b = &w->broker;
    if (b->n_wire < SIM_WIRE)
        b->wire[b->n_wire++] = (struct sim_ghost){.ev = ev, .at = at};
    w->ev[ev].excuse = true;
}

void sim_lib_cancel(struct sim *w, struct sim_node *n, uint64_t token)
{
    struct sim_lib *lib = &n->lib;
    for (unsigned i = 0; i < lib->n; i++) {
        struct sim_msg *m = &lib->m[i];
        if (m->token != token)
            continue;
        w->ev[m->ev].excuse = true;
        if (m->decided && !m->silent)
            return;        /* the verdict came first */
        bool first = true; /* an ordered sink never lets it overtake one before it */
        for (unsigned j = 0; j < i && w->conf.flow.ordered_sink; j++)
            first = first && !(same_line(w, lib->m[j].ev, m->ev) &&
                               (!lib->m[j].decided || failing(&lib->m[j])));
        if (!m->decided && first && would_take(w, &w->ev[m->ev]) && sim_chance(w, w->conf.ghost))
            haunt(w, m->ev, w->now + sim_delay(w, 5000));
        m->decided = true;
        m->silent = false;
        m->verdict = OB_V_RETRY;
        m->ack_at = w->now;
        give_back_behind(w, lib, m);
        return;
    }
}

void sim_lib_disconnect(struct sim *w, struct sim_node *n, bool dying)
{
    struct sim_lib *lib = &n->lib;
    bool chaos = w->phase == SIM_CHAOS, cut = !chaos;
    int64_t at = w->now;
    for (unsigned i = 0; i < lib->n; i++) {
        struct sim_msg *m = &lib->m[i];
        struct sim_event *e = &w->ev[m->ev];
        if (m->decided && !m->silent && !dying)
            continue;
        e->excuse = true;
        if (!m->decided) {
            /* An ordered connection delivers a prefix of what was written to it. */
            bool arrives = !cut && would_take(w, e) && sim_chance(w, w->conf.ghost);
            if (arrives) {
                at = (w->conf.flow.ordered_sink ? at : w->now) + sim_delay(w, 3000);
                haunt(w, m->ev, at);
            } else if (w->conf.flow.ordered_sink) {
                cut = true;
            }
        } else if (failing(m) && w->conf.flow.ordered_sink) {
            cut = true;
        }
        m->decided = true;
        m->silent = false;
        m->verdict = w->mutant == SIM_M_DROP_ON_RECONNECT ? OB_V_DELIVERED : OB_V_RETURNED;
        if (w->mutant == SIM_M_OUTAGE_IS_RETRY)
            m->verdict = OB_V_RETRY;
        m->ack_at = w->now;
    }
    SIM_TRACE(w, "owner %u's connection is lost", n->id);
    if (dying)
        lib->n = 0;
}

size_t sim_lib_poll(struct sim *w, struct sim_node *n, struct ob_flow_verdict *v, size_t max)
{
    struct sim_lib *lib = &n->lib;
    size_t k = 0;
    unsigned left = 0;
    for (unsigned i = 0; i < lib->n; i++) {
        const struct sim_msg *m = &lib->m[i];
        if (k == max || !m->decided || m->silent || m->ack_at > w->now) {
            if (left != i)
                lib->m[left] = *m;
            left++;
            continue;
        }
        v[k++] = (struct ob_flow_verdict){.token = m->token, .verdict = m->verdict};
        if (w->conf.echo && lib->n_echo < 4)
            lib->echoes[lib->n_echo++] = m->token;
    }
    lib->n = left;
    for (size_t i = k; i > 1; i--) { /* acknowledgements come in any order */
        size_t j = (size_t)ob_rand_below(&w->rand, i);
        struct ob_flow_verdict t = v[i - 1];
        v[i - 1] = v[j];
        v[j] = t;
    }
    return k;
}

int64_t sim_lib_wake(const struct sim *w, const struct sim_node *n)
{
    const struct sim_lib *lib = &n->lib;
    int64_t at = SIM_NEVER;
    for (unsigned i = 0; i < lib->n; i++)
        if (lib->m[i].decided && !lib->m[i].silent && lib->m[i].ack_at < at)
            at = lib->m[i].ack_at;
    if (lib->tell_sink)
        at = w->now;
    for (unsigned d = 0; d < w->conf.dests; d++)
        if (lib->tell_dest[d])
            at = w->now;
    return at;
}

/* ---- faults of the broker ---- */

void sim_broker_outage(struct sim *w, int64_t len, unsigned arg)
{
    struct sim_broker *b = &w->broker;
    if (b->down)
        return;
    b->down = true;
    b->down_until = w->now + len;
    b->quiet = arg & 1;
    b->keep = arg & 2;
    b->tell_up = !b->quiet || (arg & 4); /* a sink that said it is down says when it is back */
    b->refuse = arg / 8 % 3;
    SIM_TRACE(w, "broker goes down for %lld ms%s%s", (long long)len, b->quiet ? ", silently" : "",
              b->keep ? ", libraries keep what they have" : "");
    for (unsigned i = 0; i < SIM_NODES; i++) {
        if (!w->node[i].running)
            continue;
        if (!b->quiet)
            w->node[i].lib.tell_sink = -1;
        if (!b->keep)
            sim_lib_disconnect(w, &w->node[i], false);
    }
}

void sim_broker_block(struct sim *w, unsigned dest, int64_t until, unsigned arg)
{
    struct sim_broker *b = &w->broker;
    b->blocked_until[dest] = until;
    b->blocked_quiet[dest] = (arg & 1) && w->phase == SIM_CHAOS;
    SIM_TRACE(w, "destination %u is blocked%s", dest, b->blocked_quiet[dest] ? ", silently" : "");
    for (unsigned i = 0; i < SIM_NODES; i++)
        if (arg & 2 && w->node[i].running && !b->blocked_quiet[dest])
            w->node[i].lib.tell_dest[dest] = -1;
}

void sim_broker_heal(struct sim *w)
{
    struct sim_broker *b = &w->broker;
    if (b->down && b->down_until <= w->now) {
        b->down = false;
        SIM_TRACE(w, "broker is back%s", b->tell_up ? " and says so" : "");
        for (unsigned i = 0; i < SIM_NODES; i++)
            if (b->tell_up && w->node[i].running)
                w->node[i].lib.tell_sink = 1;
    }
    for (unsigned d = 0; d < w->conf.dests; d++) {
        if (!b->blocked_until[d] || b->blocked_until[d] > w->now)
            continue;
        b->blocked_until[d] = 0;
        SIM_TRACE(w, "destination %u is free", d);
        for (unsigned i = 0; i < SIM_NODES; i++)
            if (sim_chance(w, 500) && w->node[i].running && !b->blocked_quiet[d])
                w->node[i].lib.tell_dest[d] = 1;
    }
}
