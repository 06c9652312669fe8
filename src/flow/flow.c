/* SPDX-License-Identifier: Apache-2.0 */
/* flow - memory, claims, drains and time. The rules of keys, destinations, verdicts and settles
 * have their own files. */
#include "flow/internal.h"

#include <stdlib.h>
#include <string.h>

#ifdef OB_FLOW_MUTANTS
unsigned ob_flow_mutant;
#endif

/* Delivered events leave the window at once; until the next settle only their place in the cursor's
 * order is kept. So a source that settles ten times a second does not make the window the limit of
 * its speed. */
#define RING_FACTOR 8

static uint32_t pow2(uint32_t n)
{
    uint32_t p = 16;
    while (p < n)
        p *= 2;
    return p;
}

/* Everything empty; counters, time and the state of the sink stay. */
static void forget(struct ob_flow *f)
{
    memset(f->keys, 0, f->key_fresh * sizeof(*f->keys));
    memset(f->dests, 0, f->dest_fresh * sizeof(*f->dests));
    memset(f->slots, 0, f->slot_fresh * sizeof(*f->slots));
    f->key_free = f->dest_free = f->slot_free = NIL;
    f->key_fresh = f->dest_fresh = f->slot_fresh = 0;
    memset(f->key_bucket, 0xff, ((size_t)f->key_mask + 1) * sizeof(uint32_t));
    memset(f->dest_bucket, 0xff, ((size_t)f->dest_mask + 1) * sizeof(uint32_t));
    f->ring_head = f->ring_tail = f->ring_cut = f->passed = f->passed_cut = 0;
    f->n_ahead = f->ahead_no = f->ahead_cut = f->ahead_ok = f->claim_ref = 0;
    f->omitted = f->omits = false;
    f->n_used = f->n_todo = f->n_dirty = f->n_picked = f->n_over = f->over_at = f->n_cancel = 0;
    f->fhead = f->ftail = f->ahead = f->bhead = f->probe = NIL;
    f->n_in_flight = f->n_ready = f->n_rows = f->n_idle_held = f->n_idle_dests = 0;
    f->n_blocked = f->blocked_live = 0;
    f->bytes = f->delivered_new = 0;
    f->settling = f->wants_reset = false;
    f->incomplete = true;
}

static bool allocate(struct ob_flow *f)
{
    uint32_t w = f->c.window_events;
    f->n_keys_cap = w + f->c.held_max + 1;
    f->n_dests_cap = w + f->c.dest_max + 1;
    f->key_mask = pow2(f->n_keys_cap) - 1;
    f->dest_mask = pow2(f->n_dests_cap) - 1;
    f->slots = calloc(w, sizeof(*f->slots));
    f->keys = calloc(f->n_keys_cap, sizeof(*f->keys));
    f->dests = calloc(f->n_dests_cap, sizeof(*f->dests));
    f->key_bucket = calloc((size_t)f->key_mask + 1, sizeof(uint32_t));
    f->dest_bucket = calloc((size_t)f->dest_mask + 1, sizeof(uint32_t));
    f->ring_cap = RING_FACTOR * w;
    f->ring = calloc(f->ring_cap, sizeof(*f->ring));
    f->ahead_refs = calloc(f->c.log_source ? f->ring_cap : 1, sizeof(uint64_t));
    f->todo = calloc(w, sizeof(uint32_t));
    f->picked = calloc(w, sizeof(uint32_t));
    f->dirty = calloc(f->n_keys_cap, sizeof(uint32_t));
    f->over = calloc(w, sizeof(uint64_t));
    f->cancel = calloc(w, sizeof(uint64_t));
    return f->slots && f->keys && f->dests && f->key_bucket && f->dest_bucket && f->ring &&
           f->ahead_refs && f->todo && f->picked && f->dirty && f->over && f->cancel;
}

struct ob_flow *ob_flow_new(const struct ob_flow_conf *conf, struct ob_err *err)
{
    if (conf->window_events == 0 || conf->window_events >= 1u << OB_FLOW_SLOT_BITS ||
        conf->max_in_flight == 0 || conf->max_attempts == 0) {
        ob_err_set(err, OB_FATAL,
                   "flow: window must be 1 to %u, max_in_flight and max_attempts at least 1",
                   (1u << OB_FLOW_SLOT_BITS) - 1);
        return NULL;
    }
    struct ob_flow *f = calloc(1, sizeof(*f));
    if (f)
        f->c = *conf;
    if (!f || !allocate(f)) {
        ob_err_set(err, OB_FATAL, "flow: no memory for a window of %u events", conf->window_events);
        ob_flow_free(f);
        return NULL;
    }
    f->rand.state = conf->seed;
    f->ack_ms = -1;
    ob__states_init(f);
    forget(f);
    return f;
}

void ob_flow_free(struct ob_flow *f)
{
    if (!f)
        return;
    free(f->slots);
    free(f->keys);
    free(f->dests);
    free(f->key_bucket);
    free(f->dest_bucket);
    free(f->ring);
    free(f->ahead_refs);
    free(f->todo);
    free(f->picked);
    free(f->dirty);
    free(f->over);
    free(f->cancel);
    free(f);
}

/* Tokens keep rising: a verdict of before the reset finds nobody. */
void ob_flow_reset(struct ob_flow *f)
{
    uint32_t fresh = f->slot_fresh, n = 0;
    for (uint32_t i = 0; i < fresh; i++)
        if (f->slots[i].token)
            f->over[n++] = f->slots[i].token;
    forget(f);
    /* Every slot that was used comes out of ob_flow_freed() before it is used again. */
    for (uint32_t p = 0; p < n; p++) {
        struct slot *s = &f->slots[OB_FLOW_SLOT(f->over[p])];
        s->token = f->over[p];
        s->state = S_OVER;
    }
    f->slot_fresh = fresh;
    for (uint32_t i = fresh; i-- > 0;) {
        if (f->slots[i].token)
            continue;
        f->slots[i].next = f->slot_free;
        f->slot_free = i;
    }
    f->n_over = f->n_used = n;
}

size_t ob_flow_room(const struct ob_flow *f, uint64_t *bytes)
{
    uint32_t w = f->c.window_events, free_slots = w - f->n_used;
    uint64_t ring = f->c.log_source ? f->ring_cap - (f->ring_tail - f->ring_head) : w;
    size_t room = ring < free_slots ? (size_t)ring : free_slots;
    uint64_t left = f->c.window_bytes > f->bytes ? f->c.window_bytes - f->bytes : 0;
    if (f->down) { /* enough to probe with and to start again with */
        uint32_t half = w / 2 > 0 ? w / 2 : 1;
        size_t most = half > f->n_used ? half - f->n_used : 0;
        room = room < most ? room : most;
    }
    if (left == 0 && f->n_used > 0 && !OB_MUTANT(M_WINDOW_UNBOUNDED))
        room = 0;
    if (bytes)
        *bytes = left > 0 ? left : 1;
    return room;
}

bool ob_flow_needs_lookup(const struct ob_flow *f)
{
    return f->incomplete;
}

void ob_flow_parked_empty(struct ob_flow *f)
{
    f->incomplete = false;
}

static void claim_one(struct ob_flow *f, int64_t now, const struct ob_claimed *c, uint64_t *token)
{
    uint32_t i = ob__slot_take(f, now, c), ki = f->slots[i].key;
    struct slot *s = &f->slots[i];
    struct key *k = &f->keys[ki];
    *token = s->token;
    f->st.claimed++;
    if (f->c.log_source) {
        s->ring = f->ring_tail++;
        f->ring[s->ring % f->ring_cap] = (struct ring){.ref = c->ref, .slot = i};
    }
    ob__key_append(f, ki, i);
    if ((c->flags & OB_CLAIM_HELD) && !k->durable)
        k->durable = true;
    if (ob__key_held(f, k) && !k->last_page && !OB_MUTANT(M_IGNORE_HOLD) &&
        (!f->down || OB_MUTANT(M_DOWN_PARKS))) {
        ob__key_hold(f, ki, false); /* also those that came before it was known to be held */
        return;
    }
    ob__key_advance(f, ki);
}

void ob_flow_claim(struct ob_flow *f, int64_t now, const struct ob_claimed *c, size_t n,
                   uint64_t *tokens)
{
    for (size_t p = 0; p < n; p++) {
        f->claim_ref = c[p].ref;
        if (!(c[p].flags & (OB_CLAIM_SKIP | OB_CLAIM_PASSED))) {
            claim_one(f, now, &c[p], &tokens[p]);
            continue;
        }
        tokens[p] = 0;
        f->st.claimed++;
        if (!f->c.log_source)
            continue;
        bool foreign = !(c[p].flags & OB_CLAIM_PASSED) || OB_MUTANT(M_AHEAD_FORGOTTEN);
        f->ring[f->ring_tail++ % f->ring_cap] =
            (struct ring){.ref = c[p].ref, .slot = NIL, .foreign = foreign};
        f->n_ahead += !foreign;
    }
}

size_t ob_flow_drain_room(const struct ob_flow *f)
{
    uint32_t w = f->c.window_events, half = w / 2 > 0 ? w / 2 : 1;
    if (f->n_rows >= half || f->bytes >= f->c.window_bytes)
        return 0;
    uint32_t left = w - f->n_used;
    if (f->down) /* one row to probe with, if the window has nothing */
        return left > 0 && f->n_ready == 0 && f->probe == NIL && f->n_rows == 0 ? 1 : 0;
    return left < half - f->n_rows ? left : half - f->n_rows;
}

bool ob_flow_drain_skip(const struct ob_flow *f, uint64_t hash)
{
    uint32_t ki = ob__key_find(f, hash);
    if (ki == NIL)
        return false;
    const struct key *k = &f->keys[ki];
    return k->n_rows > 0 || k->n_parking > 0 || k->n_dying > 0 || k->n_sent > 0;
}

static bool more_left(const struct ob_drained *drained, size_t n, uint64_t hash)
{
    for (size_t p = 0; p < n; p++)
        if (drained[p].hash == hash)
            return drained[p].more;
    return true;
}

/* Rows stand before the fresh ones of their key, in their own order. */
static void insert_row(struct ob_flow *f, uint32_t ki, uint32_t i)
{
    uint32_t before = f->keys[ki].head;
    while (before != NIL && f->slots[before].park_n != 0)
        before = f->slots[before].next;
    ob__key_insert_before(f, ki, before, i);
    ob__key_dirty(f, ki);
}

void ob_flow_drained(struct ob_flow *f, int64_t now, const struct ob_claimed *c, size_t n,
                     const struct ob_drained *drained, size_t n_drained, uint64_t *tokens)
{
    uint64_t taking = 0; /* the hash whose rows are being taken: they come together */
    bool take = false;
    for (size_t p = 0; p < n; p++) {
        tokens[p] = 0;
        if (p == 0 || c[p].hash != taking) {
            taking = c[p].hash;
            take = !ob_flow_drain_skip(f, taking);
        }
        bool full =
            f->n_used == f->c.window_events || (f->bytes >= f->c.window_bytes && f->n_used > 0);
        if (!take || full) {
            take = false; /* nothing behind a refused one */
            uint32_t ki = ob__key_find(f, taking);
            if (ki != NIL)
                f->keys[ki].last_page = false;
            continue;
        }
        uint32_t i = ob__slot_take(f, now, &c[p]), ki = f->slots[i].key;
        struct key *k = &f->keys[ki];
        if (k->n_rows == 1)
            k->drop = false; /* nothing earlier of it is left here */
        k->durable = true;
        k->last_page = !more_left(drained, n_drained, taking);
        insert_row(f, ki, i);
        tokens[p] = f->slots[i].token;
        f->st.drained++;
    }
    ob__key_clean(f);
}

/* The sink is down and everything in the window stands behind parked rows or dead ones: nothing
 * could ever probe. Then, and only then, these are parked during an outage. */
static void find_probe(struct ob_flow *f, int64_t now)
{
    if (!f->down || f->probe != NIL || f->n_ready > 0 || f->n_todo > 0 || f->settling ||
        f->n_used == f->n_in_flight || OB_MUTANT(M_NO_PROBE_FOUND))
        return;
    if (ob_flow_room(f, NULL) > 0 && now < f->probe_at + f->c.park_after_ms)
        return;
    f->no_probe = true;
    for (uint32_t k = 0; k < f->key_fresh; k++)
        if (f->keys[k].used && f->keys[k].next != NIL && ob__key_held(f, &f->keys[k]))
            ob__key_hold(f, k, false);
    f->no_probe = false;
}

void ob_flow_tick(struct ob_flow *f, int64_t now)
{
    ob__ring_pass(f);
    ob__flight_tick(f, now);
    ob__dest_tick(f, now);
    find_probe(f, now);
}

static int64_t earlier(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* What is due by now was done in this round, or could not be: then it is looked at again soon, not
 * at once. */
static int64_t soon(int64_t at, int64_t now)
{
    return at > now ? at : now + 20;
}

int64_t ob_flow_wake_at(const struct ob_flow *f, int64_t now)
{
    int64_t at = ob_flow_settle_at(f);
    if (f->down) {
        if (f->probe == NIL && f->n_ready > 0)
            at = earlier(at, soon(f->probe_at, now));
        else if (f->probe != NIL && !f->self_down)
            at = earlier(at, soon(f->slots[f->probe].sent_ms + f->c.publish_timeout_ms, now));
        if (f->probe == NIL && f->n_ready == 0 && f->n_used > f->n_in_flight) {
            int64_t park = f->probe_at + f->c.park_after_ms; /* find_probe() */
            at = earlier(at, park > now ? park : now + 1000);
        }
        if (ob_flow_drain_room(f) == 0)
            return at;
    }
    if (f->fhead != NIL && !f->down)
        at = earlier(at, soon(ob__sent_eff(f, &f->slots[f->fhead]) + f->c.park_after_ms, now));
    for (uint32_t di = f->bhead; di != NIL; di = f->dests[di].bnext) {
        const struct dest *d = &f->dests[di];
        if (!d->blocked) {
            at = earlier(at, soon(d->drain_at, now));
            continue;
        }
        if (d->probe == NIL && !OB_MUTANT(M_SLEEPS))
            at = earlier(at, soon(d->probe_at, now));
        if (!d->parking)
            at = earlier(at, soon(d->since_ms + f->c.park_after_ms, now));
    }
    return at;
}

bool ob_flow_idle(const struct ob_flow *f)
{
    return f->n_used == 0 && f->ring_head == f->ring_tail && f->passed == 0 && !f->settling &&
           f->n_over == 0;
}

void ob_flow_stats(const struct ob_flow *f, struct ob_flow_stats *out)
{
    *out = f->st;
    out->in_window = f->n_used;
    out->in_flight = f->n_in_flight;
    out->held = f->n_idle_held;
    out->blocked_dests = f->n_blocked;
    out->window_bytes = f->bytes;
    out->down = f->down;
}
