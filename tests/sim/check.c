/* SPDX-License-Identifier: Apache-2.0 */
/* check - the oracle: what must hold at every step and at the end. It knows the world, not flow. */
#include "sim.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void sim_fail(struct sim *w, const char *invariant, const char *fmt, ...)
{
    struct ob_err why;
    va_list ap;
    if (w->failed)
        return; /* the first one tells the story */
    va_start(ap, fmt);
    ob_err_vset(&why, OB_FATAL, fmt, ap);
    va_end(ap);
    memcpy(w->why, why.text, sizeof w->why - 1);
    w->failed = true;
    snprintf(w->invariant, sizeof w->invariant, "%s", invariant);
    SIM_TRACE(w, "*** %s: %s", w->invariant, w->why);
}

static unsigned index_of(const struct sim *w, const struct sim_event *e)
{
    return (unsigned)(e - w->ev);
}

/* The two named exceptions: on_dead: continue passed over a dead one; a person took it away. */
bool sim_out_of_the_way(const struct sim *w, const struct sim_event *q)
{
    if (q->stored)
        return true;
    return w->conf.flow.on_dead == OB_ON_DEAD_CONTINUE ? q->was_dead : q->discarded;
}

static bool many_per_key(const struct sim *w)
{
    const struct ob_flow_conf *c = &w->conf.flow;
    return c->order == OB_ORDER_PIPELINED || (c->ordered_sink && c->on_dead == OB_ON_DEAD_CONTINUE);
}

static void check_turn(struct sim *w, const struct sim_node *n, const struct sim_event *e,
                       bool dies)
{
    const struct ob_flow_conf *c = &w->conf.flow;
    bool many = many_per_key(w);
    for (int p = e->prev; p >= 0; p = w->ev[p].prev) {
        const struct sim_event *q = &w->ev[p];
        if (sim_out_of_the_way(w, q))
            continue;
        if (many && n->seen[p].in_flight && q->dest_i == e->dest_i)
            continue;
        if ((q->by_hand || e->by_hand) && c->order == OB_ORDER_PIPELINED)
            continue; /* they died out of order, and are retried in the order in which they died */
        if (dies && n->seen[p].dies && c->on_dead == OB_ON_DEAD_CONTINUE)
            continue; /* earlier in the same transaction */
        sim_fail(w, "order", "event %u of key %u %s before event %d", index_of(w, e), e->key,
                 dies ? "dies" : "is sent", p);
        return;
    }
}

void sim_check_stored(struct sim *w, struct sim_event *e)
{
    unsigned i = index_of(w, e);
    if (!sim_committed(w, e) || e->skip)
        sim_fail(w, "phantom", "event %u was %s, and the broker has it", i,
                 e->skip ? "another shard's" : "never committed");
    if (e->stored) {
        w->repeats++;
        if (!e->excuse)
            sim_fail(w, "repeat", "event %u was delivered again without a named reason", i);
        return;
    }
    if (w->conf.flow.order == OB_ORDER_PIPELINED)
        return; /* what overtakes after a failure is counted, not forbidden */
    for (int p = e->prev; p >= 0; p = w->ev[p].prev)
        if (!sim_out_of_the_way(w, &w->ev[p])) {
            sim_fail(w, "order", "event %u of key %u was delivered before event %d", i, e->key, p);
            return;
        }
}

/* A retried dead event comes first in its hash. A page goes by the time of its first row; where
 * many of a key are in flight a later row of it may have failed too. */
static bool by_hand(const struct sim *w, uint64_t hash)
{
    for (unsigned i = 0; i < w->n_ev; i++)
        if (w->ev[i].by_hand && w->ev[i].hash == hash)
            return true;
    return false;
}

void sim_forget_returns(struct sim_node *n)
{
    for (unsigned i = 0; i < SIM_EVENTS; i++)
        n->seen[i].returns = 0;
}

void sim_check_submit(struct sim *w, struct sim_node *n, const struct sim_tok *t)
{
    const struct sim_event *e = &w->ev[t->ev];
    const struct sim_seen *seen = &n->seen[t->ev];
    const struct ob_backoff *b = &w->conf.flow.retry;
    if (!sim_committed(w, e) || e->skip)
        sim_fail(w, "phantom", "event %u is sent and was never committed, or is not ours", t->ev);
    if (t->poison)
        sim_fail(w, "poison", "event %u is sent although routing refused it", t->ev);
    if (t->in_flight || seen->in_flight)
        sim_fail(w, "repeat", "event %u is sent again before its verdict", t->ev);
    if (seen->answered && seen->last == OB_V_DELIVERED)
        sim_fail(w, "repeat", "event %u is sent again after it was delivered", t->ev);
    if (n->epoch == w->db.epoch && sim_settled(w, e))
        sim_fail(w, "repeat", "event %u is sent although it is settled", t->ev);
    if (seen->answered && seen->last == OB_V_RETRY && !many_per_key(w) && !by_hand(w, e->hash) &&
        w->now < seen->retry_at + (int64_t)b->first_ms * (100 - b->jitter_pct) / 100 - 1)
        sim_fail(w, "back-off", "event %u failed at %lld and is sent again at once", t->ev,
                 (long long)seen->retry_at);
    if (seen->returns >= w->conf.flow.max_attempts)
        sim_fail(w, "returned", "event %u is sent again after %u returns in a row", t->ev,
                 seen->returns);
    check_turn(w, n, e, false);
}

static uint32_t max_attempts(const struct sim *w, const struct sim_event *e)
{
    uint32_t cap = w->conf.flow.max_attempts_cap;
    if (!e->max_attempts)
        return w->conf.flow.max_attempts;
    return cap && e->max_attempts > cap ? cap : e->max_attempts;
}

/* Dead because of blocked_max: its destination was found blocked, for so long, and no outage that
 * flow was told of is part of that time. */
static void check_blocked(struct sim *w, const struct sim_node *n, const struct ob_settle_op *op,
                          const struct sim_tok *t)
{
    int64_t max = w->conf.flow.blocked_max_ms, at = w->ev[t->ev].blocked_at;
    if (max == 0 || op->blocked_ms < max || !t->blocked)
        sim_fail(w, "blocked", "event %u is dead after %lld ms, its destination is not blocked",
                 t->ev, (long long)op->blocked_ms);
    if (w->now < at || op->blocked_ms > w->now - at + 1) /* one that was just parked counts as 1 */
        sim_fail(w, "blocked", "event %u: blocked for %lld ms, known for %lld", t->ev,
                 (long long)op->blocked_ms, (long long)(w->now - at));
    if (op->blocked_ms > w->now - n->up_at)
        sim_fail(w, "blocked", "event %u: the time of an outage counts for blocked_max", t->ev);
}

static void check_op(struct sim *w, struct sim_node *n, const struct ob_settle_op *op,
                     struct sim_tok *t)
{
    struct sim_event *e = &w->ev[t->ev];
    uint32_t least = t->claim_attempts + t->spent, most = least + t->maybe + t->rejected;
    if (op->hash != e->hash || op->park_n != t->park_n)
        sim_fail(w, "settle", "event %u: hash %llx, row %lld are not its own", t->ev,
                 (unsigned long long)op->hash, (long long)op->park_n);
    if (op->kind == OB_SETTLE_PUBLISHED) {
        if (!e->stored)
            sim_fail(w, "loss", "event %u is recorded as published, the broker never had it",
                     t->ev);
        return;
    }
    t->saving = t->unsaved;
    if (op->attempts > most)
        sim_fail(w, "attempts", "event %u: %u attempts recorded, at most %u were spent", t->ev,
                 op->attempts, most);
    if (op->attempts < least)
        sim_fail(w, "attempts", "event %u: %u attempts recorded, %u were spent", t->ev,
                 op->attempts, least);
    if (t->unsaved && !op->spent)
        sim_fail(w, "attempts", "event %u: a spent attempt is not in its history", t->ev);
    if (op->kind == OB_SETTLE_PARK) {
        if (op->attempts >= max_attempts(w, e))
            sim_fail(w, "attempts", "event %u has %u attempts and does not die", t->ev,
                     op->attempts);
        if (op->blocked_dest && op->blocked_dest != e->dest)
            sim_fail(w, "settle", "event %u waits for a destination that is not its own", t->ev);
        return;
    }
    if (op->blocked_ms)
        check_blocked(w, n, op, t);
    else if (!t->rejected && !t->poison && op->attempts < max_attempts(w, e))
        sim_fail(w, "dead", "event %u dies without a reason after %u attempts", t->ev,
                 op->attempts);
    if (op->hold != (w->conf.flow.on_dead == OB_ON_DEAD_PARK))
        sim_fail(w, "dead", "event %u: hold is not what on_dead says", t->ev);
    if (t->poison || w->conf.flow.order == OB_ORDER_STRICT)
        check_turn(w, n, e, true);
    n->seen[t->ev].dies = true;
}

/* Nothing of its hash is held, in flight or about to be recorded: it may be sent. */
static bool may_go(const struct sim *w, const struct sim_node *n, const struct ob_settle *s,
                   uint64_t hash)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->ops[i].hash == hash)
            return false;
    for (unsigned i = 0; i < n->n_tok; i++)
        if (n->tok[i].in_flight && w->ev[n->tok[i].ev].hash == hash)
            return false;
    return !sim_held(w, hash);
}

/* While the sink is down nothing is parked, unless everything in the window stands behind parked
 * rows: so nothing that came since, beside something that could have probed all the time. */
static void check_outage(struct sim *w, const struct sim_node *n, const struct ob_settle *s)
{
    const struct sim_tok *parked = NULL;
    bool could_probe = false;
    for (unsigned i = 0; n->down_told && i < n->n_tok; i++) {
        const struct sim_tok *t = &n->tok[i];
        if (t->claimed_at > n->down_at && !t->drained && !n->seen[t->ev].sent) {
            for (size_t j = 0; j < s->n; j++)
                if (s->ops[j].token == t->token && s->ops[j].kind == OB_SETTLE_PARK)
                    parked = t;
        } else if (t->claimed_at < n->down_at && !t->in_flight && !t->drained && !t->poison) {
            could_probe = could_probe || may_go(w, n, s, w->ev[t->ev].hash);
        }
    }
    if (parked && could_probe)
        sim_fail(w, "outage", "event %u is parked while the sink is down", parked->ev);
}

void sim_check_ops(struct sim *w, struct sim_node *n, const struct ob_settle *s)
{
    uint64_t last = 0;
    if (s->n > w->conf.flow.window_events)
        sim_fail(w, "memory", "%zu ops in a window of %u", s->n, w->conf.flow.window_events);
    for (unsigned i = 0; i < n->n_tok; i++)
        n->tok[i].saving = 0;
    for (size_t i = 0; i < s->n && !w->failed; i++) {
        struct sim_tok *t = sim_tok_find(n, s->ops[i].token);
        if (!t || s->ops[i].token <= last) {
            sim_fail(w, "settle", "op %zu: its token is not live, or not in claim order", i);
            return;
        }
        last = s->ops[i].token;
        check_op(w, n, &s->ops[i], t);
    }
    check_outage(w, n, s);
    for (unsigned i = 0; i < n->n_tok && !w->failed; i++)
        if (n->tok[i].unsaved > n->tok[i].saving)
            sim_fail(w, "attempts", "event %u: a spent attempt is not part of the next settle",
                     n->tok[i].ev);
}

/* The cursor has passed what nobody will ever look at again. */
void sim_check_cursor(struct sim *w, uint64_t from, uint64_t to)
{
    if (to < from) {
        sim_fail(w, "settle", "the cursor goes back from %llu to %llu", (unsigned long long)from,
                 (unsigned long long)to);
        return;
    }
    for (unsigned i = 0; i < w->n_ev; i++) {
        const struct sim_event *e = &w->ev[i];
        if (e->ref <= from || e->ref > to || e->rolled_back || e->skip)
            continue;
        if (!e->stored && !e->parked && !e->dead && !e->discarded) {
            sim_fail(w, "loss", "the cursor passed event %u, neither delivered nor parked nor dead",
                     i);
            return;
        }
    }
}

void sim_check_ahead(struct sim *w, const struct sim_node *n, const struct ob_settle *s)
{
    for (unsigned i = 0; i < w->n_ev && !w->failed; i++) {
        const struct sim_event *e = &w->ev[i];
        bool over = e->stored || e->parked || e->dead || e->discarded;
        if (w->db.ahead[i] && !over && !e->skip && !e->rolled_back)
            sim_fail(w, "loss", "event %u is stored as settled ahead of the cursor and is not", i);
        else if (n->known[i] && !sim_settled(w, e) && !e->parked &&
                 s->n_ahead < w->conf.flow.ahead_max)
            sim_fail(w, "ahead", "event %u was delivered before the settle, which leaves it out",
                     i);
    }
}

void sim_check_cancel(struct sim *w, struct sim_node *n, const struct sim_tok *t)
{
    (void)n;
    if (w->now - t->sent_at < w->conf.flow.publish_timeout_ms)
        sim_fail(w, "attempts", "event %u is cancelled after %lld ms", t->ev,
                 (long long)(w->now - t->sent_at));
}

void sim_check_bounds(struct sim *w, struct sim_node *n)
{
    const struct ob_flow_conf *c = &w->conf.flow;
    struct ob_flow_stats st;
    unsigned in_flight = 0, unsaved = 0;
    uint64_t bytes = 0, largest = 0;
    ob_flow_stats(n->flow, &st);
    for (unsigned i = 0; i < n->n_tok; i++) {
        uint32_t b = w->ev[n->tok[i].ev].bytes;
        in_flight += n->tok[i].in_flight;
        unsaved += n->tok[i].unsaved;
        bytes += b;
        largest = b > largest ? b : largest;
    }
    /* A verdict for an event whose row is just being written is looked at when that is over. */
    bool flights = n->settling ? st.in_flight >= in_flight : st.in_flight == in_flight;
    if (st.in_window != n->n_tok || !flights || st.window_bytes != bytes)
        sim_fail(w, "window", "flow counts %u events, %u in flight, %llu bytes; it is %u, %u, %llu",
                 st.in_window, st.in_flight, (unsigned long long)st.window_bytes, n->n_tok,
                 in_flight, (unsigned long long)bytes);
    if (n->n_tok > c->window_events || in_flight > c->max_in_flight)
        sim_fail(w, "window", "%u events of %u, %u in flight of %u", n->n_tok, c->window_events,
                 in_flight, c->max_in_flight);
    if (n->n_tok > 1 && bytes > c->window_bytes + largest)
        sim_fail(w, "window", "%llu bytes in a window of %llu", (unsigned long long)bytes,
                 (unsigned long long)c->window_bytes);
    if (c->order == OB_ORDER_STRICT && st.overtaken > 0)
        sim_fail(w, "order", "%llu overtook in strict order", (unsigned long long)st.overtaken);
    if (st.held > c->held_max || st.blocked_dests > c->dest_max + c->window_events)
        sim_fail(w, "memory", "%u held hashes, %u blocked destinations", st.held, st.blocked_dests);
    if (sim_flow_allocated)
        sim_fail(w, "memory", "flow took memory after its start");
    int64_t probe = (int64_t)c->probe.max_ms * (100 + c->probe.jitter_pct) / 100;
    probe += (int64_t)c->publish_timeout_ms + c->park_after_ms + 1000;
    if (st.blocked_dests && !st.down && ob_flow_wake_at(n->flow, w->now) > w->now + probe)
        sim_fail(w, "wake", "a blocked destination is not looked at within %lld ms",
                 (long long)probe);
    int64_t soon = c->settle_every_ms > 1000 ? c->settle_every_ms : 1000;
    if (unsaved && !n->settling && ob_flow_settle_at(n->flow) > w->now + soon)
        sim_fail(w, "attempts", "a spent attempt is not recorded within %lld ms", (long long)soon);
}

void sim_check_end(struct sim *w)
{
    for (unsigned i = 0; i < w->n_ev && !w->failed; i++) {
        const struct sim_event *e = &w->ev[i];
        if (!sim_committed(w, e) || e->skip) {
            if (e->stored)
                sim_fail(w, "phantom", "event %u was never committed, and the broker has it", i);
            continue;
        }
        if (!e->stored && !e->dead && !e->discarded)
            sim_fail(w, "loss",
                     "event %u of key %u was committed and is neither delivered nor dead", i,
                     e->key);
        else if (!sim_settled(w, e))
            sim_fail(w, "settles", "event %u of key %u is not settled", i, e->key);
    }
    if (w->db.n_parked && !w->failed)
        sim_fail(w, "settles", "%u events are still parked", w->db.n_parked);
}
