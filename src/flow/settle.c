/* SPDX-License-Identifier: Apache-2.0 */
/* settle - what is to be recorded at the source, and what follows when it is. */
#include "flow/internal.h"

static bool passable(const struct ob_flow *f, const struct ring *r)
{
    if (r->slot == NIL)
        return true;
    const struct slot *s = &f->slots[r->slot];
    if ((OB_MUTANT(M_SETTLE_BEFORE_ACK) && s->state == S_SENT) ||
        (OB_MUTANT(M_CURSOR_PASSES_WAITING) && s->state == S_WAITING))
        return true;
    /* All of these are in this settle, or have their row already. */
    return s->state == S_PARKING || s->state == S_DYING || s->state == S_DELIVERED ||
           s->state == S_OVERDUE || (s->state == S_SENT && s->park_n != 0);
}

void ob__ring_pass(struct ob_flow *f)
{
    if (f->settling) /* its prefix is still to be popped */
        return;
    for (; f->ring_head < f->ring_tail; f->ring_head++) {
        const struct ring *r = &f->ring[f->ring_head % f->ring_cap];
        if (r->slot != NIL)
            break;
        f->passed_ref = r->ref;
        f->passed++;
        f->n_ahead -= !r->foreign;
    }
}

void ob_flow_close(struct ob_flow *f, bool closing)
{
    f->closing = closing;
}

/* Something was settled ahead of the cursor that is not recorded as such. */
static bool ahead_due(const struct ob_flow *f)
{
    if (f->n_ahead == 0 || OB_MUTANT(M_AHEAD_NOT_STORED))
        return false;
    return f->ahead_no != f->ahead_ok || (f->closing && f->omitted && !OB_MUTANT(M_AHEAD_CUT));
}

int64_t ob_flow_settle_at(const struct ob_flow *f)
{
    if (f->settling)
        return FOREVER;
    bool prefix = f->passed > 0 || (f->ring_head < f->ring_tail &&
                                    passable(f, &f->ring[f->ring_head % f->ring_cap]));
    return f->n_todo > 0 || prefix || ahead_due(f) ? f->settle_ms : FOREVER;
}

static void fill(const struct ob_flow *f, int64_t now, const struct slot *s,
                 struct ob_settle_op *op)
{
    const struct dest *d = &f->dests[s->dest];
    *op = (struct ob_settle_op){
        .token = s->token,
        .hash = f->keys[s->key].hash,
        .park_n = s->park_n,
        .attempts = s->attempts - (OB_MUTANT(M_ATTEMPT_FORGOTTEN) && (s->flags & F_SPENT)),
        .spent = (s->flags & F_SPENT) != 0,
    };
    switch (s->state) {
    case S_DELIVERED:
        op->kind = OB_SETTLE_PUBLISHED;
        if (OB_MUTANT(M_ROW_KEPT))
            op->park_n = 0;
        break;
    case S_DYING:
        op->kind = OB_SETTLE_DEAD;
        op->exhausted = s->exhausted;
        op->blocked_ms = s->blocked_ms;
        op->hold = f->c.on_dead == OB_ON_DEAD_PARK;
        break;
    case S_OVERDUE:
        /* Still in flight. This owner does not drain it (ob_flow_drain_skip()); the row is for the
         * next one, which sends it as soon as everything else that was in flight. */
        op->kind = OB_SETTLE_PARK;
        op->due_ms = now;
        break;
    default:
        op->kind = OB_SETTLE_PARK;
        op->due_ms = s->due_ms > now ? s->due_ms : now;
        op->blocked_dest = s->flags & F_WAITS_DEST ? d->hash : 0;
        /* Due since it is blocked: the row keeps the age that blocked_max is compared with. */
        if (op->blocked_dest && s->was_blocked && f->c.blocked_max_ms > 0)
            op->due_ms = s->blocked_at;
        break;
    }
}

static void sift(const struct ob_flow *f, uint32_t at, uint32_t n)
{
    for (uint32_t child; (child = 2 * at + 1) < n; at = child) {
        const struct slot *slots = f->slots;
        if (child + 1 < n && slots[f->todo[child]].token < slots[f->todo[child + 1]].token)
            child++;
        if (slots[f->todo[at]].token >= slots[f->todo[child]].token)
            return;
        uint32_t t = f->todo[at];
        f->todo[at] = f->todo[child];
        f->todo[child] = t;
    }
}

/* Claim order; tokens rise with claims. In place: qsort() may take memory. */
static void sort_todo(struct ob_flow *f)
{
    uint32_t n = 1;
    while (n < f->n_todo && f->slots[f->todo[n - 1]].token < f->slots[f->todo[n]].token)
        n++;
    if (n >= f->n_todo)
        return;
    for (uint32_t i = f->n_todo / 2; i-- > 0;)
        sift(f, i, f->n_todo);
    for (uint32_t end = f->n_todo; end-- > 1;) {
        uint32_t t = f->todo[0];
        f->todo[0] = f->todo[end];
        f->todo[end] = t;
        sift(f, 0, end);
    }
}

/* The refs behind the prefix whose events are settled with this settle, or are already. */
static void collect_ahead(struct ob_flow *f, struct ob_settle *s)
{
    uint64_t max = f->closing && !OB_MUTANT(M_AHEAD_CUT) ? f->ring_cap : f->c.ahead_max;
    f->ahead_cut = f->ahead_no;
    f->omits = false;
    s->ahead = f->ahead_refs;
    s->claimed = f->claim_ref;
    if ((f->n_ahead == 0 && s->n == 0 && f->n_rows == 0) || OB_MUTANT(M_AHEAD_NOT_STORED))
        return;
    for (uint64_t i = f->ring_cut; i < f->ring_tail; i++) {
        const struct ring *r = &f->ring[i % f->ring_cap];
        bool sent = r->slot != NIL && f->slots[r->slot].state == S_SENT;
        if (r->foreign || !(passable(f, r) || (OB_MUTANT(M_AHEAD_IN_FLIGHT) && sent)))
            continue;
        if (s->n_ahead == max) {
            f->omits = true;
            return;
        }
        f->ahead_refs[s->n_ahead++] = r->ref;
    }
}

bool ob_flow_settle_begin(struct ob_flow *f, int64_t now, struct ob_settle *s)
{
    if (ob_flow_settle_at(f) == FOREVER)
        return false;
    *s = (struct ob_settle){.ops = s->ops, .delivered = f->delivered_new};
    sort_todo(f);
    for (uint32_t n = 0; n < f->n_todo; n++) {
        uint32_t i = f->todo[n];
        struct slot *t = &f->slots[i];
        t->flags &= (uint8_t)~F_TODO;
        if (t->state == S_DELIVERED && t->park_n == 0 && f->c.log_source) {
            ob__slot_over(f, i, ON_RECORDED); /* was overdue; the verdict came before its row */
            continue;
        }
        t->flags |= F_SETTLING;
        fill(f, now, t, &s->ops[s->n++]);
    }
    f->n_todo = 0;
    f->passed_cut = f->passed;
    s->ref = f->passed > 0 ? f->passed_ref : 0;
    f->ring_cut = f->ring_head;
    while (f->ring_cut < f->ring_tail && passable(f, &f->ring[f->ring_cut % f->ring_cap]))
        s->ref = f->ring[f->ring_cut++ % f->ring_cap].ref;
    s->moved = f->passed > 0 || f->ring_cut > f->ring_head;
    bool due = ahead_due(f);
    collect_ahead(f, s);
    f->settling = s->n > 0 || s->moved || due;
    return f->settling;
}

/* Nothing was recorded: everything is offered again. */
static void undo(struct ob_flow *f, const struct ob_settle *s, int64_t now)
{
    for (size_t n = 0; n < s->n; n++) {
        uint32_t i = OB_FLOW_SLOT(s->ops[n].token);
        struct slot *t = &f->slots[i];
        t->flags &= (uint8_t)~F_SETTLING;
        ob__slot_todo(f, i);
        if (t->flags & F_LATE) {
            t->flags &= (uint8_t)~F_LATE;
            ob__verdict(f, now, i, (enum ob_verdict)t->late);
        }
    }
    f->settle_ms = now + (f->c.settle_every_ms > 100 ? f->c.settle_every_ms : 100);
}

static void op_done(struct ob_flow *f, int64_t now, const struct ob_settle_op *op)
{
    uint32_t i = OB_FLOW_SLOT(op->token);
    struct slot *t = &f->slots[i];
    struct key *k = &f->keys[t->key];
    t->flags &= (uint8_t) ~(F_SETTLING | F_SPENT);
    ob__key_dirty(f, t->key);
    f->st.settled += !f->c.log_source || t->park_n != 0; /* else the cursor counts it */
    if (op->kind == OB_SETTLE_PARK) {
        k->n_parking--;
        k->durable = true;
        f->st.parked++;
        if (op->blocked_dest) {
            struct dest *d = &f->dests[t->dest];
            ob__dest_rows(f, now, t->dest);
            if (d->blocked && d->probe_at <= now)
                d->probe_at = now + ob_backoff_ms(&f->c.probe, d->fails, &f->rand);
            if (t->park_n) /* it made room: others use that before the next one probes */
                f->gap_ms = now + f->c.probe.first_ms;
        }
    } else if (op->kind == OB_SETTLE_DEAD) {
        k->n_dying--;
        k->durable = k->durable || op->hold;
        f->st.dead++;
    }
    if (t->state != S_OVERDUE) {
        uint64_t no = f->ahead_no;
        ob__slot_over(f, i, ON_RECORDED);
        f->ahead_ok += f->ahead_no - no; /* this settle had it already */
        return;
    }
    ob__move(f, t, ON_RECORDED);
    t->park_n = op->park_n;
    k->n_rows++;
    f->n_rows++;
    if (t->flags & F_LATE) {
        t->flags &= (uint8_t)~F_LATE;
        ob__verdict(f, now, i, (enum ob_verdict)t->late);
    }
}

static void release(struct ob_flow *f, uint64_t hash)
{
    uint32_t ki = ob__key_find(f, hash);
    if (ki == NIL)
        return;
    struct key *k = &f->keys[ki];
    if (k->n_slots == 0 && k->durable && !k->dirty)
        f->n_idle_held--;
    k->durable = k->last_page = false;
    if (OB_MUTANT(M_RELEASE_EARLY))
        k->n_parking = 0;
    ob__key_dirty(f, ki);
}

static void pop_prefix(struct ob_flow *f)
{
    f->st.settled += f->passed_cut;
    f->passed -= f->passed_cut;
    for (; f->ring_head < f->ring_cut; f->ring_head++) {
        struct ring *r = &f->ring[f->ring_head % f->ring_cap];
        if (r->slot != NIL)
            f->slots[r->slot].ring = UINT64_MAX; /* in flight with a row of its own */
        else
            f->n_ahead -= !r->foreign;
        f->st.settled++;
    }
}

void ob_flow_settle_end(struct ob_flow *f, int64_t now, enum ob_status status,
                        const struct ob_settle *s, const uint64_t *released, size_t n_released)
{
    f->settling = false;
    f->settle_ms = now + f->c.settle_every_ms;
    if (status != OB_OK && !OB_MUTANT(M_SETTLE_FAILED_OK)) {
        undo(f, s, now);
        ob__key_clean(f);
        return;
    }
    f->delivered_new -= s->delivered;
    f->ahead_ok = f->ahead_cut;
    f->omitted = f->omits;
    for (size_t n = 0; n < s->n; n++)
        op_done(f, now, &s->ops[n]);
    pop_prefix(f);
    for (size_t n = 0; n < n_released; n++)
        release(f, released[n]);
    for (uint32_t n = 0; n < f->n_dirty; n++) {
        struct key *k = &f->keys[f->dirty[n]];
        if (k->durable && k->n_rows == 0)
            k->last_page = false; /* more rows are left than the last page had */
    }
    ob__key_clean(f);
}

size_t ob_flow_freed(struct ob_flow *f, uint64_t *tokens, size_t max)
{
    size_t n = 0;
    for (; n < max && f->n_over > 0; n++, f->n_over--) {
        uint64_t token = f->over[f->over_at];
        f->over_at = (f->over_at + 1) % f->c.window_events;
        struct slot *s = &f->slots[OB_FLOW_SLOT(token)];
        ob__move(f, s, ON_COLLECTED);
        s->token = 0;
        s->next = f->slot_free;
        f->slot_free = (uint32_t)(s - f->slots);
        f->n_used--;
        tokens[n] = token;
    }
    return n;
}
