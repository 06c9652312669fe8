/* SPDX-License-Identifier: Apache-2.0 */
/* key - order within a key: whose turn it is, and what is held back behind a failure. */
#include "flow/internal.h"

static uint32_t bucket(const struct ob_flow *f, uint64_t hash)
{
    return (uint32_t)((hash * 0x9e3779b97f4a7c15u) >> 32) & f->key_mask;
}

uint32_t ob__key_find(const struct ob_flow *f, uint64_t hash)
{
    uint32_t k = f->key_bucket[bucket(f, hash)];
    while (k != NIL && f->keys[k].hash != hash)
        k = f->keys[k].chain;
    return k;
}

/* There is always place: one per slot, and held_max beyond. */
uint32_t ob__key_get(struct ob_flow *f, uint64_t hash)
{
    uint32_t k = ob__key_find(f, hash);
    if (k != NIL)
        return k;
    if (f->key_free != NIL) {
        k = f->key_free;
        f->key_free = f->keys[k].chain;
    } else {
        k = f->key_fresh++;
    }
    uint32_t *b = &f->key_bucket[bucket(f, hash)];
    f->keys[k] = (struct key){
        .hash = hash, .chain = *b, .head = NIL, .tail = NIL, .next = NIL, .used = true};
    *b = k;
    return k;
}

/* A held key without slots stays in the cache while there is place; beyond that claims are looked
 * up. */
void ob__key_drop_if_idle(struct ob_flow *f, uint32_t ki)
{
    struct key *k = &f->keys[ki];
    if (k->n_slots > 0 || k->dirty)
        return;
    if (k->durable) {
        if (f->n_idle_held < f->c.held_max) {
            f->n_idle_held++;
            return;
        }
        f->incomplete = !OB_MUTANT(M_OVERFLOW_FORGOTTEN);
    }
    uint32_t *at = &f->key_bucket[bucket(f, k->hash)];
    while (*at != ki)
        at = &f->keys[*at].chain;
    *at = k->chain;
    k->used = false;
    k->chain = f->key_free;
    f->key_free = ki;
}

bool ob__key_held(const struct ob_flow *f, const struct key *k)
{
    return k->durable || k->n_parking > 0 || (k->n_dying > 0 && f->c.on_dead == OB_ON_DEAD_PARK);
}

void ob__key_insert_before(struct ob_flow *f, uint32_t ki, uint32_t before, uint32_t i)
{
    struct key *k = &f->keys[ki];
    struct slot *s = &f->slots[i];
    s->next = before;
    s->prev = before == NIL ? k->tail : f->slots[before].prev;
    if (s->prev == NIL)
        k->head = i;
    else
        f->slots[s->prev].next = i;
    if (before == NIL)
        k->tail = i;
    else
        f->slots[before].prev = i;
}

void ob__key_append(struct ob_flow *f, uint32_t ki, uint32_t i)
{
    ob__key_insert_before(f, ki, NIL, i);
    if (f->keys[ki].next == NIL)
        f->keys[ki].next = i;
}

void ob__key_unlink(struct ob_flow *f, uint32_t i)
{
    struct slot *s = &f->slots[i];
    struct key *k = &f->keys[s->key];
    if (k->next == i)
        k->next = s->next;
    if (s->prev == NIL)
        k->head = s->next;
    else
        f->slots[s->prev].next = s->next;
    if (s->next == NIL)
        k->tail = s->prev;
    else
        f->slots[s->next].prev = s->prev;
    s->next = s->prev = NIL;
}

static bool many_per_key(const struct ob_flow *f)
{
    if (OB_MUTANT(M_MANY_PER_KEY))
        return true;
    return f->c.order == OB_ORDER_PIPELINED ||
           (f->c.ordered_sink && f->c.on_dead == OB_ON_DEAD_CONTINUE);
}

/* May the slot at key->next follow the one before it? */
static bool may_follow(const struct ob_flow *f, const struct slot *s)
{
    if (s->prev == NIL)
        return true;
    const struct slot *before = &f->slots[s->prev];
    return many_per_key(f) && (before->dest == s->dest || OB_MUTANT(M_CROSS_DEST));
}

/* The one row that finds out whether a blocked destination is free again stays in the window. */
static bool is_probe(const struct ob_flow *f, const struct slot *s)
{
    const struct dest *d = &f->dests[s->dest];
    return s->park_n != 0 && d->rhead == NIL && d->probe == NIL &&
           f->blocked_live <= ob__blocked_share(f);
}

static void hold_from(struct ob_flow *f, uint32_t i, bool rows);

/* Keeps the key although its slots may go; whoever calls it has the key in the dirty list or a slot
 * of it. */
void ob__key_advance(struct ob_flow *f, uint32_t ki)
{
    struct key *k = &f->keys[ki];
    while (k->next != NIL && !k->stall) {
        uint32_t i = k->next;
        struct slot *s = &f->slots[i];
        /* Dead only when recorded: what stands behind waits for the commit. */
        if (k->n_dying > 0 && !OB_MUTANT(M_DEAD_UNRECORDED))
            return;
        if (s->park_n == 0 && ob__key_held(f, k) && !k->last_page && !OB_MUTANT(M_IGNORE_HOLD))
            return; /* K2: the sink is down; it is parked when that is over */
        if (s->park_n != 0 && k->drop) {
            k->n_slots++;
            ob__slot_drop(f, i); /* an earlier row waits again: this one comes after it */
            k->n_slots--;
            continue;
        }
        if (s->flags & F_POISON) {
            if (s->prev == NIL)
                ob__slot_die(f, i, ON_REJECT);
            return;
        }
        if (!may_follow(f, s))
            return;
        if (f->dests[s->dest].parking && !f->down && !is_probe(f, s)) {
            if (s->park_n == 0 || s->prev == NIL) { /* else its row stays behind the probe's */
                s->flags |= F_WAITS_DEST;
                uint32_t next = s->next;
                ob__slot_park(f, i, ON_HOLD, 0);
                i = next;
            }
            hold_from(f, i, true);
            return;
        }
        k->next = s->next;
        ob__move(f, s, ON_TURN);
        ob__ready_append(f, i);
    }
}

void ob__key_recompute(struct ob_flow *f, uint32_t ki)
{
    struct key *k = &f->keys[ki];
    uint32_t i = k->head;
    while (i != NIL && f->slots[i].state != S_WAITING)
        i = f->slots[i].next;
    k->next = i;
    k->stall = false;
    for (; i != NIL; i = f->slots[i].next) {
        struct slot *s = &f->slots[i];
        if (s->state == S_READY) {
            ob__ready_unlink(f, i);
            ob__move(f, s, ON_BACK);
        } else if (s->state != S_WAITING) {
            k->stall = true;
        }
    }
}

void ob__key_dirty(struct ob_flow *f, uint32_t ki)
{
    if (f->keys[ki].dirty)
        return;
    f->keys[ki].dirty = true;
    f->dirty[f->n_dirty++] = ki;
}

void ob__key_clean(struct ob_flow *f)
{
    for (uint32_t n = 0; n < f->n_dirty; n++) {
        uint32_t ki = f->dirty[n];
        struct key *k = &f->keys[ki];
        ob__key_recompute(f, ki);
        if (ob__key_held(f, k) && !k->last_page)
            ob__key_hold(f, ki, false);
        ob__key_advance(f, ki);
        k->dirty = false;
        if (k->n_slots == 0)
            ob__key_drop_if_idle(f, ki);
    }
    f->n_dirty = 0;
}

/* While the sink is down nothing is parked (but see find_probe()): what must not go now waits, and
 * ob__up() comes back to it. */
static void hold_fresh(struct ob_flow *f, uint32_t i)
{
    if (!f->down || f->no_probe || OB_MUTANT(M_DOWN_PARKS)) {
        ob__slot_park(f, i, ON_HOLD, 0);
    } else if (f->slots[i].state == S_READY && !OB_MUTANT(M_READY_IN_OUTAGE)) {
        ob__ready_unlink(f, i);
        ob__move(f, &f->slots[i], ON_BACK);
    }
}

/* From slot i of the key to its end. */
static void hold_from(struct ob_flow *f, uint32_t i, bool rows)
{
    for (uint32_t next; i != NIL; i = next) {
        struct slot *s = &f->slots[i];
        next = s->next;
        if (s->state != S_WAITING && s->state != S_READY)
            continue;
        if (s->park_n == 0)
            hold_fresh(f, i);
        else if (rows)
            ob__slot_drop(f, i);
    }
}

void ob__key_hold(struct ob_flow *f, uint32_t ki, bool rows)
{
    if (OB_MUTANT(M_FORGET_FOLLOWERS))
        return;
    struct key *k = &f->keys[ki];
    k->n_slots++; /* keeps the key while its slots go */
    hold_from(f, k->head, rows);
    ob__key_recompute(f, ki);
    if (--k->n_slots == 0)
        ob__key_drop_if_idle(f, ki);
}

void ob__key_no_wait(struct ob_flow *f, uint32_t i)
{
    uint32_t ki = f->slots[i].key;
    if (f->slots[i].next == NIL && !f->keys[ki].last_page)
        return;
    f->keys[ki].last_page = false;
    ob__key_dirty(f, ki);
    hold_from(f, f->slots[i].next, true);
}
