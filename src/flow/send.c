/* SPDX-License-Identifier: Apache-2.0 */
/* send - what goes to the sink, and what its verdicts do. */
#include "flow/internal.h"

int64_t ob__sent_eff(const struct ob_flow *f, const struct slot *s)
{
    return s->sent_ms > f->up_ms ? s->sent_ms : f->up_ms;
}

static uint32_t pick(struct ob_flow *f, const struct dest *d, uint32_t take, size_t max)
{
    uint32_t n = 0;
    for (uint32_t i = d->rhead; i != NIL && n < take && f->n_picked < max; i = f->slots[i].rnext) {
        f->picked[f->n_picked++] = i;
        n++;
    }
    return n;
}

/* Destinations take turns; a blocked one gives a single event when its probe is due. */
static void pick_all(struct ob_flow *f, int64_t now, size_t max)
{
    uint32_t start = f->ahead, di = start, cap = ob__dest_cap(f);
    do {
        struct dest *d = &f->dests[di];
        uint32_t take = cap > d->n_sent ? cap - d->n_sent : 0;
        if (d->blocked)
            take = now >= d->probe_at && d->probe == NIL ? 1 : 0;
        pick(f, d, take, max);
        di = d->anext;
    } while (di != start && f->n_picked < max);
    f->ahead = di == start ? f->dests[start].anext : di;
}

size_t ob_flow_submit(struct ob_flow *f, int64_t now, uint64_t *tokens, size_t max)
{
    f->n_picked = 0;
    if (f->ahead == NIL)
        return 0;
    uint32_t left = f->c.max_in_flight > f->n_in_flight ? f->c.max_in_flight - f->n_in_flight : 0;
    if (max > left)
        max = left;
    if (max == 0)
        return 0;
    if (!f->down) {
        pick_all(f, now, max);
    } else if (f->probe == NIL && now >= f->probe_at) {
        pick(f, &f->dests[f->ahead], 1, 1);
        f->ahead = f->dests[f->ahead].anext; /* the next probe is another destination's */
    }
    for (uint32_t n = 0; n < f->n_picked; n++)
        tokens[n] = f->slots[f->picked[n]].token;
    return f->n_picked;
}

static void flight_append(struct ob_flow *f, uint32_t i)
{
    struct slot *s = &f->slots[i];
    s->fnext = NIL;
    s->fprev = f->ftail;
    if (f->ftail == NIL)
        f->fhead = i;
    else
        f->slots[f->ftail].fnext = i;
    f->ftail = i;
    f->n_in_flight++;
    f->keys[s->key].n_sent++;
    f->dests[s->dest].n_sent++;
}

static void flight_unlink(struct ob_flow *f, uint32_t i)
{
    struct slot *s = &f->slots[i];
    if (s->fprev == NIL)
        f->fhead = s->fnext;
    else
        f->slots[s->fprev].fnext = s->fnext;
    if (s->fnext == NIL)
        f->ftail = s->fprev;
    else
        f->slots[s->fnext].fprev = s->fprev;
    s->fnext = s->fprev = NIL;
    f->n_in_flight--;
    f->keys[s->key].n_sent--;
    f->dests[s->dest].n_sent--;
}

void ob_flow_accepted(struct ob_flow *f, int64_t now, size_t n)
{
    for (size_t p = 0; p < n && p < f->n_picked; p++) {
        uint32_t i = f->picked[p];
        struct slot *s = &f->slots[i];
        ob__ready_unlink(f, i);
        ob__move(f, s, ON_ACCEPT);
        s->sent_ms = now;
        s->submit_no = ++f->submit_no;
        flight_append(f, i);
        if (f->dests[s->dest].blocked)
            f->dests[s->dest].probe = i;
        if (f->down)
            f->probe = i;
        f->st.accepted++;
    }
    if (n == 0 && f->n_picked > 0 && f->down)
        f->probe_at = now + ob_backoff_ms(&f->c.probe, ++f->fails, &f->rand);
    f->n_picked = 0;
}

/* The sink is there again: what should have been parked meanwhile is looked at now. */
void ob__up(struct ob_flow *f, int64_t now)
{
    if (!f->down)
        return;
    f->down = f->self_down = false;
    f->fails = 0;
    f->probe = NIL;
    f->up_ms = now;
    for (uint32_t k = 0; k < f->key_fresh; k++)
        if (f->keys[k].used && f->keys[k].next != NIL)
            ob__key_dirty(f, k);
    for (uint32_t d = f->bhead; d != NIL; d = f->dests[d].bnext)
        f->dests[d].parking = false; /* the next tick parks what became ready meanwhile, in order */
}

static void go_down(struct ob_flow *f, int64_t now)
{
    if (f->down)
        return;
    f->down = true;
    f->down_no++;
    f->fails = 1;
    f->probe = NIL;
    f->probe_at = now + ob_backoff_ms(&f->c.probe, 1, &f->rand);
}

void ob_flow_sink(struct ob_flow *f, int64_t now, bool up)
{
    if (up) {
        ob__up(f, now);
        ob__key_clean(f);
        return;
    }
    go_down(f, now);
    f->self_down = true;
}

static bool in_flight(const struct slot *s)
{
    return s->state == S_SENT || s->state == S_OVERDUE;
}

/* In strict order only a sink that stays in order has many of a key: one before what it delivered
 * was taken, and only its acknowledgement is lost. */
static bool may_overtake(const struct ob_flow *f)
{
    return f->c.order == OB_ORDER_PIPELINED;
}

/* Slot i and n - 1 that went ahead of it are past it, delivered, or i is dead and n were ahead of
 * it: whether they overtook anybody is known when those before them have their verdicts. */
static void went_ahead(struct ob_flow *f, uint32_t i, uint32_t n)
{
    struct slot *s = &f->slots[i];
    if (s->passing)
        f->st.overtaken += n;
    else if (s->prev != NIL && in_flight(&f->slots[s->prev]) && may_overtake(f))
        f->slots[s->prev].ahead += n;
    s->ahead = 0;
    s->passing = false;
}

/* It is to be sent again: what was sent behind it and is delivered already overtook it, and so does
 * what is delivered of those that are in flight (nothing of the key is sent before they have their
 * verdicts). Behind one that is marked or was not sent everything in flight is marked. */
static void came_back(struct ob_flow *f, uint32_t i)
{
    if (!may_overtake(f))
        return;
    f->st.overtaken += f->slots[i].ahead;
    f->slots[i].ahead = 0;
    f->slots[i].passing = false;
    for (uint32_t j = f->slots[i].next; j != NIL; j = f->slots[j].next) {
        if (!in_flight(&f->slots[j]) || f->slots[j].passing)
            break;
        f->slots[j].passing = true;
    }
}

static void on_delivered(struct ob_flow *f, uint32_t i)
{
    struct slot *s = &f->slots[i];
    if (s->state == S_OVERDUE)
        f->keys[s->key].n_parking--;
    went_ahead(f, i, s->ahead + 1);
    ob__key_dirty(f, s->key);
    ob__key_unlink(f, i);
    ob__slot_live(f, s, -1);
    ob__move(f, s, ON_DELIVERED);
    f->st.delivered++;
    f->delivered_new++;
    if (f->c.log_source && s->park_n == 0 && !(s->flags & F_TODO))
        ob__slot_over(f, i, ON_RECORDED); /* nothing to record but the cursor: R1 */
    else
        ob__slot_todo(f, i);
}

static void on_failed(struct ob_flow *f, int64_t now, uint32_t i, bool reject)
{
    struct slot *s = &f->slots[i];
    uint32_t k = s->key;
    s->attempts++;
    s->was_blocked = false; /* its destination is not */
    s->flags |= F_SPENT;
    if (reject) {
        f->st.rejected++;
        went_ahead(f, i, s->ahead); /* past a dead one is not overtaking */
        ob__slot_die(f, i, ON_REJECT);
    } else if (s->attempts >= s->max_attempts && !OB_MUTANT(M_NO_MAX_ATTEMPTS)) {
        f->st.retried++;
        s->exhausted = true;
        went_ahead(f, i, s->ahead);
        ob__slot_die(f, i, ON_EXHAUSTED);
    } else {
        f->st.retried++;
        came_back(f, i);
        int64_t wait = ob_backoff_ms(&f->c.retry, s->attempts, &f->rand);
        ob__slot_park(f, i, ON_RETRY, OB_MUTANT(M_NO_BACKOFF) ? now : now + wait);
        ob__key_hold(f, k, true);
    }
    ob__key_dirty(f, k);
}

/* Back to its place in the key; no attempt is spent. */
static void on_back(struct ob_flow *f, uint32_t i, enum on on)
{
    struct slot *s = &f->slots[i];
    ob__key_dirty(f, s->key);
    came_back(f, i);
    if (s->state == S_OVERDUE)
        ob__slot_park(f, i, on, 0);
    else
        ob__move(f, s, on);
}

/* A sink that is up and returns an event each time would be given it again without end. */
static bool returned_too_often(struct ob_flow *f, struct slot *s)
{
    if (f->down)
        return false;
    if (s->down_no != f->down_no)
        s->returns = 0;
    s->down_no = f->down_no;
    return ++s->returns >= f->c.max_attempts && !OB_MUTANT(M_RETURNED_WITHOUT_END);
}

/* The event and its key wait, others of its destination go on. No attempt is spent. */
static void on_returned_too_often(struct ob_flow *f, int64_t now, uint32_t i)
{
    struct slot *s = &f->slots[i];
    uint32_t k = s->key;
    came_back(f, i);
    f->st.returned_often++;
    f->st.returned_token = s->token;
    int64_t wait = ob_backoff_ms(&f->c.retry, s->returns, &f->rand);
    ob__slot_park(f, i, ON_RETURNED_OFTEN, now + wait);
    ob__key_hold(f, k, true);
    ob__key_dirty(f, k);
}

static int64_t later_of(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Whether blocked_max is exceeded. The time of an outage that this flow has seen does not count,
 * and a destination that is blocked only for a moment makes no event dead, however long its row has
 * waited. Only the first of its key: those before it must be settled in order. */
static bool blocked_too_long(struct ob_flow *f, int64_t now, struct slot *s)
{
    const struct dest *d = &f->dests[s->dest];
    int64_t max = f->c.blocked_max_ms;
    bool outage = f->down_no > 0 && !OB_MUTANT(M_BLOCKED_MAX_IN_OUTAGE);
    int64_t up = outage ? f->up_ms : INT64_MIN;
    if (!s->was_blocked)
        s->blocked_at = now;
    s->was_blocked = true;
    bool parking = f->keys[s->key].n_parking > (s->state == S_OVERDUE);
    if (max == 0 || f->down || s->prev != NIL || parking)
        return false;
    int64_t least = max < f->c.park_after_ms ? max : f->c.park_after_ms;
    int64_t age = now - later_of(s->blocked_at, up);
    if (age < max || now - later_of(d->since_ms, up) < least)
        return false;
    s->blocked_ms = age;
    return true;
}

/* Dead; the next event of its destination is tried without a pause, so that many of them do not
 * hold up their keys one after the other. */
static void on_blocked_too_long(struct ob_flow *f, int64_t now, uint32_t i)
{
    struct slot *s = &f->slots[i];
    uint32_t k = s->key;
    f->dests[s->dest].probe_at = now;
    went_ahead(f, i, s->ahead);
    ob__slot_die(f, i, ON_BLOCKED_TOO_LONG);
    ob__key_dirty(f, k);
}

/* A row that only probes must not keep out its neighbours, nor the probes of others: where place is
 * scarce it comes back when its next probe is due. */
static void make_room(struct ob_flow *f, uint32_t i)
{
    struct slot *s = &f->slots[i];
    uint32_t k = s->key;
    bool scarce = f->bytes > f->c.window_bytes / 2 || f->blocked_live >= ob__blocked_share(f);
    if (!s->park_n || !f->dests[s->dest].parking || f->down || !scarce ||
        OB_MUTANT(M_PROBE_KEEPS_PLACE))
        return;
    s->flags |= F_WAITS_DEST;
    ob__slot_park(f, i, ON_HOLD, 0);
    ob__key_hold(f, k, true);
}

static void note_ack(struct ob_flow *f, int64_t now, const struct slot *s)
{
    struct dest *d = &f->dests[s->dest];
    f->ack_ms = d->ack_ms = now;
    if (s->submit_no > f->acked_no)
        f->acked_no = s->submit_no;
    if (s->submit_no > d->acked_no)
        d->acked_no = s->submit_no;
}

void ob__verdict(struct ob_flow *f, int64_t now, uint32_t i, enum ob_verdict v)
{
    struct slot *s = &f->slots[i];
    uint32_t di = s->dest;
    bool probe = f->dests[di].probe == i, sink_probe = f->probe == i;
    flight_unlink(f, i);
    if (probe)
        f->dests[di].probe = NIL;
    if (sink_probe)
        f->probe = NIL;
    if (v == OB_V_RETRY && (s->flags & F_UNBLAMED) && !OB_MUTANT(M_BLAMES_ANYBODY))
        v = OB_V_BLOCKED;
    s->flags &= (uint8_t) ~(F_CANCEL | F_UNBLAMED);
    if (OB_MUTANT(M_RETURNED_LOST) && v == OB_V_RETURNED)
        v = OB_V_DELIVERED;
    if ((OB_MUTANT(M_OUTAGE_SPENDS) && v == OB_V_RETURNED) ||
        (OB_MUTANT(M_BLOCKED_SPENDS) && v == OB_V_BLOCKED))
        v = OB_V_RETRY;
    if (v != OB_V_RETURNED) {
        note_ack(f, now, s);
        if (sink_probe)
            ob__up(f, now);
    } else if (sink_probe) {
        f->probe_at = now + ob_backoff_ms(&f->c.probe, ++f->fails, &f->rand);
    }
    bool often = v == OB_V_RETURNED && returned_too_often(f, s);
    if (v == OB_V_BLOCKED || (v == OB_V_RETURNED && probe && !f->down && !often))
        ob__dest_block(f, now, di, probe);
    f->dests[di].n_slots++; /* stays while the slot may go */
    switch (v) {
    case OB_V_DELIVERED:
        on_delivered(f, i);
        break;
    case OB_V_RETRY:
    case OB_V_REJECT:
        on_failed(f, now, i, v == OB_V_REJECT);
        break;
    case OB_V_BLOCKED:
        if (blocked_too_long(f, now, s)) {
            on_blocked_too_long(f, now, i);
            break;
        }
        on_back(f, i, ON_BLOCKED);
        if (s->state == S_WAITING)
            make_room(f, i);
        break;
    case OB_V_RETURNED:
        f->st.returned++;
        if (often)
            on_returned_too_often(f, now, i);
        else
            on_back(f, i, ON_RETURNED);
        break;
    }
    /* A probe that is returned each time proves nothing: other events find out. */
    if (probe && v != OB_V_BLOCKED && (v != OB_V_RETURNED || often))
        ob__dest_unblock(f, now, di);
    if (--f->dests[di].n_slots == 0)
        ob__dest_drop_if_idle(f, di);
}

void ob_flow_verdicts(struct ob_flow *f, int64_t now, const struct ob_flow_verdict *v, size_t n)
{
    for (size_t p = 0; p < n; p++) {
        uint32_t i = OB_FLOW_SLOT(v[p].token);
        struct slot *s = i < f->c.window_events ? &f->slots[i] : NULL;
        bool ours = s && (s->token == v[p].token || OB_MUTANT(M_STALE_TOKEN)) &&
                    (s->state == S_SENT || s->state == S_OVERDUE) && !(s->flags & F_LATE);
        if (!ours) {
            f->st.late++;
        } else if (s->flags & F_SETTLING) {
            /* Its row is being written: ob_flow_settle_end() comes back to it. */
            s->flags |= OB_MUTANT(M_LATE_VERDICT_LOST) ? 0 : F_LATE;
            s->late = (uint8_t)v[p].verdict;
            if (v[p].verdict != OB_V_RETURNED)
                note_ack(f, now, s);
        } else {
            ob__verdict(f, now, i, v[p].verdict);
        }
    }
    ob__key_clean(f);
}

static void overdue(struct ob_flow *f, uint32_t i)
{
    uint32_t k = f->slots[i].key;
    ob__slot_overdue(f, i);
    ob__key_hold(f, k, true);
    ob__key_dirty(f, k);
}

static void ask_cancel(struct ob_flow *f, int64_t now, struct slot *s, unsigned flags)
{
    s->flags |= (uint8_t)(F_CANCEL | flags);
    s->sent_ms =
        now; /* it has another publish_timeout to answer; its place in the flight list stays */
    f->cancel[f->n_cancel++] = s->token;
    f->st.cancelled++;
}

/* On a sink that stays in order it is the one before it that is stuck. */
static bool stands_behind(const struct ob_flow *f, const struct slot *s)
{
    if (!f->c.ordered_sink || s->prev == NIL)
        return false;
    const struct slot *before = &f->slots[s->prev];
    return before->dest == s->dest && (before->state == S_SENT || before->state == S_OVERDUE);
}

/* No acknowledgement within publish_timeout. Returns false when the whole sink is to blame. */
static bool timed_out(struct ob_flow *f, int64_t now, struct slot *s)
{
    struct dest *d = &f->dests[s->dest];
    int64_t sent = ob__sent_eff(f, s);
    if (f->ack_ms <= sent || (s->flags & F_CANCEL)) {
        f->wants_reset = true;
        f->st.resets++;
        go_down(f, now);
        return false;
    }
    bool later = d->acked_no > s->submit_no;
    /* Only earlier ones of it were acknowledged since: then silence counts from the last of them.
     */
    bool silent = !later && d->ack_ms <= now - (int64_t)f->c.publish_timeout_ms;
    if (d->ack_ms <= sent || silent) {
        ob__dest_block(f, now, s->dest, false);
        ask_cancel(f, now, s, F_UNBLAMED);
    } else if (later && !stands_behind(f, s)) {
        ask_cancel(f, now, s, 0);
    }
    return true;
}

void ob__flight_tick(struct ob_flow *f, int64_t now)
{
    if (f->down) {
        if (f->probe != NIL && !f->self_down &&
            now - f->slots[f->probe].sent_ms >= f->c.publish_timeout_ms) {
            f->slots[f->probe].sent_ms = now;
            f->wants_reset = true;
        }
        return;
    }
    if (now < f->check_ms)
        return;
    f->check_ms = now + 20;
    for (uint32_t i = f->fhead, next; i != NIL; i = next) {
        struct slot *s = &f->slots[i];
        next = s->fnext;
        if (s->flags & F_LATE)
            continue; /* answered */
        int64_t age = now - ob__sent_eff(f, s);
        if (age < f->c.park_after_ms && !(s->flags & F_CANCEL))
            break;
        if (age >= f->c.publish_timeout_ms && !timed_out(f, now, s))
            return;
        /* Something sent later is acknowledged: this one must not hold up the cursor and its key.
         */
        if (s->state != S_SENT || f->acked_no <= s->submit_no)
            continue;
        if (OB_MUTANT(M_RESEND_ACCEPTED))
            ob__verdict(f, now, i, OB_V_RETURNED);
        else if (s->park_n == 0)
            overdue(f, i);
        else
            ob__key_no_wait(f, i);
    }
}

size_t ob_flow_cancel(struct ob_flow *f, uint64_t *tokens, size_t max)
{
    size_t n = f->n_cancel < max ? f->n_cancel : max;
    for (size_t p = 0; p < n; p++)
        tokens[p] = f->cancel[--f->n_cancel];
    return n;
}

bool ob_flow_wants_reset(struct ob_flow *f)
{
    bool wants = f->wants_reset;
    f->wants_reset = false;
    return wants;
}
