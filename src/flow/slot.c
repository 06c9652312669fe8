/* SPDX-License-Identifier: Apache-2.0 */
/* slot - what happens to one event of the window: taken, parked, dying, over. */
#include "flow/internal.h"

/* WAITING, READY and in flight: what stands in the way of a blocked destination's share of the
 * window. */
void ob__slot_live(struct ob_flow *f, struct slot *s, int delta)
{
    struct dest *d = &f->dests[s->dest];
    d->n_live = (uint32_t)((int64_t)d->n_live + delta);
    if (d->blocked)
        f->blocked_live = (uint32_t)((int64_t)f->blocked_live + delta);
}

/* The number that the event has of its own comes from a writer: the cap bounds it. */
static uint32_t attempts_allowed(const struct ob_flow *f, uint32_t own)
{
    if (own == 0)
        return f->c.max_attempts;
    uint32_t cap = f->c.max_attempts_cap;
    return cap > 0 && own > cap && !OB_MUTANT(M_CAP_IGNORED) ? cap : own;
}

uint32_t ob__slot_take(struct ob_flow *f, int64_t now, const struct ob_claimed *c)
{
    uint32_t i = f->slot_free != NIL ? f->slot_free : f->slot_fresh++;
    struct slot *s = &f->slots[i];
    if (i == f->slot_free)
        f->slot_free = s->next;
    f->n_used++;
    f->bytes += c->bytes;
    uint64_t no = ++f->claim_no;
    *s = (struct slot){
        .token = no << OB_FLOW_SLOT_BITS | i,
        .claim_no = no,
        .ring = UINT64_MAX,
        .park_n = c->park_n,
        .key = ob__key_get(f, c->hash),
        .dest = ob__dest_get(f, c->dest ? c->dest : 1),
        .next = NIL,
        .prev = NIL,
        .rnext = NIL,
        .rprev = NIL,
        .fnext = NIL,
        .fprev = NIL,
        .bytes = c->bytes,
        .attempts = c->attempts,
        .max_attempts = attempts_allowed(f, c->max_attempts),
        .blocked_at = now - c->blocked_ms,
        .was_blocked = c->blocked_ms > 0,
        .state = S_FREE,
        .flags = c->flags & OB_CLAIM_POISON ? F_POISON : 0,
    };
    struct key *k = &f->keys[s->key];
    if (k->n_slots++ == 0 && k->durable)
        f->n_idle_held--;
    struct dest *d = &f->dests[s->dest];
    if (d->n_slots++ == 0 && d->listed)
        f->n_idle_dests--;
    if (s->park_n) {
        k->n_rows++;
        f->n_rows++;
    }
    ob__move(f, s, ON_CLAIM);
    ob__slot_live(f, s, 1);
    return i;
}

void ob__slot_todo(struct ob_flow *f, uint32_t i)
{
    if (f->slots[i].flags & F_TODO)
        return;
    f->slots[i].flags |= F_TODO;
    f->todo[f->n_todo++] = i;
}

static bool is_live(uint8_t state)
{
    return state == S_WAITING || state == S_READY || state == S_SENT || state == S_OVERDUE;
}

/* Out of the key's and the ready list. The flight list is its owner's business. */
static void leave(struct ob_flow *f, uint32_t i)
{
    struct slot *s = &f->slots[i];
    if (s->state == S_READY)
        ob__ready_unlink(f, i);
    ob__key_unlink(f, i);
    ob__slot_live(f, s, -1);
}

void ob__slot_over(struct ob_flow *f, uint32_t i, enum on on)
{
    struct slot *s = &f->slots[i];
    if (is_live(s->state))
        leave(f, i);
    if (s->state != S_OVER)
        ob__move(f, s, on);
    if (s->ring != UINT64_MAX && s->ring >= f->ring_head) {
        f->ring[s->ring % f->ring_cap].slot = NIL; /* R1: the caller has seen to it */
        f->n_ahead++;
        f->ahead_no++;
        s->ring = UINT64_MAX;
    }
    struct key *k = &f->keys[s->key];
    if (s->park_n) {
        f->n_rows--;
        k->n_rows--;
    }
    if (k->n_rows == 0 && k->n_parking == 0 && k->n_sent == 0)
        k->drop = false; /* nothing is left that could come back with a row */
    k->n_slots--;
    f->dests[s->dest].n_slots--;
    f->bytes -= s->bytes;
    f->over[(f->over_at + f->n_over++) % f->c.window_events] = s->token;
    if (k->n_slots == 0)
        ob__key_drop_if_idle(f, s->key);
    if (f->dests[s->dest].n_slots == 0)
        ob__dest_drop_if_idle(f, s->dest);
}

/* It stays in flight and gets a row: the cursor can pass it, and its key is held behind it. So do
 * those before it (R2), else they would be numbered behind it if they failed. */
void ob__slot_overdue(struct ob_flow *f, uint32_t i)
{
    struct key *k = &f->keys[f->slots[i].key];
    k->last_page = false;
    for (; i != NIL; i = f->slots[i].prev) {
        struct slot *s = &f->slots[i];
        if (s->state == S_OVERDUE || s->park_n != 0)
            return;
        if (s->state != S_SENT)
            continue;
        ob__move(f, s, ON_OVERDUE);
        k->n_parking++;
        s->due_ms = 0;
        ob__slot_todo(f, i);
    }
}

/* R2 for those that wait before it. When the sink is up ob__key_hold() parks them anyway, in the
 * same settle. */
static void park_before(struct ob_flow *f, uint32_t i)
{
    for (uint32_t j = f->keys[f->slots[i].key].head, next; f->down && j != i; j = next) {
        next = f->slots[j].next;
        if (f->slots[j].park_n == 0 &&
            (f->slots[j].state == S_WAITING || f->slots[j].state == S_READY))
            ob__slot_park(f, j, ON_HOLD, 0);
    }
}

/* Its row is written with the next settle; the key is held from now on. */
void ob__slot_park(struct ob_flow *f, uint32_t i, enum on on, int64_t due_ms)
{
    struct slot *s = &f->slots[i];
    struct key *k = &f->keys[s->key];
    if (s->state == S_OVERDUE)
        k->n_parking--; /* counted when it became overdue */
    if (s->park_n || s->state == S_SENT || s->state == S_OVERDUE || k->n_sent > 0)
        k->drop = !OB_MUTANT(M_ROWS_OVERTAKE);
    if (s->prev != NIL && !OB_MUTANT(M_NUMBERED_LATE)) {
        ob__slot_overdue(f, s->prev);
        park_before(f, i);
    }
    leave(f, i);
    ob__move(f, s, on);
    s->due_ms = due_ms;
    k->n_parking++;
    k->last_page = false;
    ob__slot_todo(f, i);
}

void ob__slot_die(struct ob_flow *f, uint32_t i, enum on on)
{
    struct slot *s = &f->slots[i];
    if (s->state == S_OVERDUE)
        f->keys[s->key].n_parking--;
    leave(f, i);
    ob__move(f, s, on);
    f->keys[s->key].n_dying++;
    ob__slot_todo(f, i);
    if (f->c.on_dead == OB_ON_DEAD_PARK) {
        f->keys[s->key].drop = true;
        f->keys[s->key].last_page = false;
        ob__key_hold(f, s->key, true);
        return;
    }
    /* Dead only when recorded: what was ready behind it waits for the commit. */
    for (uint32_t j = f->keys[s->key].head; j != NIL && !OB_MUTANT(M_DEAD_UNRECORDED);
         j = f->slots[j].next) {
        if (f->slots[j].state != S_READY)
            continue;
        ob__ready_unlink(f, j);
        ob__move(f, &f->slots[j], ON_BACK);
        ob__key_dirty(f, s->key);
    }
}

void ob__slot_drop(struct ob_flow *f, uint32_t i)
{
    struct key *k = &f->keys[f->slots[i].key];
    k->last_page = false; /* its row is left behind */
    if (k->n_sent > 0)
        k->drop = true; /* and what is in flight behind it must not go again before it */
    ob__slot_over(f, i, ON_DROP);
}
