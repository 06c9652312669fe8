/* SPDX-License-Identifier: Apache-2.0 */
/* dest - destinations: who has something ready, who is blocked, probed, parked and drained again.
 */
#include "flow/internal.h"

static uint32_t bucket(const struct ob_flow *f, uint64_t hash)
{
    return (uint32_t)((hash * 0x9e3779b97f4a7c15u) >> 32) & f->dest_mask;
}

uint32_t ob__dest_find(const struct ob_flow *f, uint64_t hash)
{
    uint32_t d = f->dest_bucket[bucket(f, hash)];
    while (d != NIL && f->dests[d].hash != hash)
        d = f->dests[d].chain;
    return d;
}

uint32_t ob__dest_get(struct ob_flow *f, uint64_t hash)
{
    uint32_t d = ob__dest_find(f, hash);
    if (d != NIL)
        return d;
    if (f->dest_free != NIL) {
        d = f->dest_free;
        f->dest_free = f->dests[d].chain;
    } else if (f->dest_fresh < f->n_dests_cap) {
        d = f->dest_fresh++;
    } else {
        return NIL;
    }
    uint32_t *b = &f->dest_bucket[bucket(f, hash)];
    f->dests[d] = (struct dest){.hash = hash,
                                .chain = *b,
                                .rhead = NIL,
                                .rtail = NIL,
                                .anext = NIL,
                                .aprev = NIL,
                                .bnext = NIL,
                                .bprev = NIL,
                                .probe = NIL,
                                .ack_ms = -1,
                                .used = true};
    *b = d;
    return d;
}

static void list_trouble(struct ob_flow *f, uint32_t di)
{
    struct dest *d = &f->dests[di];
    if (d->listed)
        return;
    d->listed = true;
    d->bprev = NIL;
    d->bnext = f->bhead;
    if (f->bhead != NIL)
        f->dests[f->bhead].bprev = di;
    f->bhead = di;
    if (d->n_slots == 0)
        f->n_idle_dests++;
}

static void unlist_trouble(struct ob_flow *f, uint32_t di)
{
    struct dest *d = &f->dests[di];
    if (!d->listed)
        return;
    d->listed = false;
    if (d->bprev == NIL)
        f->bhead = d->bnext;
    else
        f->dests[d->bprev].bnext = d->bnext;
    if (d->bnext != NIL)
        f->dests[d->bnext].bprev = d->bprev;
    d->bnext = d->bprev = NIL;
    if (d->n_slots == 0)
        f->n_idle_dests--;
}

/* Forgets a destination that nobody needs. A blocked one without slots is kept (dest_max of them);
 * the rows of one that is forgotten are found again through the source's blocked(). */
void ob__dest_drop_if_idle(struct ob_flow *f, uint32_t di)
{
    struct dest *d = &f->dests[di];
    if (d->n_slots > 0)
        return;
    if (d->listed) {
        f->n_idle_dests++;
        if (f->n_idle_dests <= f->c.dest_max)
            return;
        if (d->blocked)
            f->n_blocked--;
        unlist_trouble(f, di);
    }
    uint32_t *at = &f->dest_bucket[bucket(f, d->hash)];
    while (*at != di)
        at = &f->dests[*at].chain;
    *at = d->chain;
    d->used = false;
    d->chain = f->dest_free;
    f->dest_free = di;
}

/* How many events of blocked destinations the window may hold. */
uint32_t ob__blocked_share(const struct ob_flow *f)
{
    return f->c.window_events > 1 ? f->c.window_events / 2 : 1;
}

/* A share for each destination such that all that ever get stuck hold less than half the window. */
uint32_t ob__dest_cap(const struct ob_flow *f)
{
    uint32_t half = f->c.window_events / 2;
    uint32_t left = half > f->blocked_live ? half - f->blocked_live : 0;
    return left / 2 > 0 ? left / 2 : 1;
}

void ob__ready_append(struct ob_flow *f, uint32_t i)
{
    struct slot *s = &f->slots[i];
    struct dest *d = &f->dests[s->dest];
    s->rnext = NIL;
    s->rprev = d->rtail;
    if (d->rtail == NIL)
        d->rhead = i;
    else
        f->slots[d->rtail].rnext = i;
    d->rtail = i;
    f->n_ready++;
    if (d->active)
        return;
    d->active = true; /* into the ring, before its head: served last */
    if (f->ahead == NIL) {
        d->anext = d->aprev = f->ahead = s->dest;
    } else {
        struct dest *h = &f->dests[f->ahead];
        d->anext = f->ahead;
        d->aprev = h->aprev;
        f->dests[h->aprev].anext = s->dest;
        h->aprev = s->dest;
    }
}

void ob__ready_unlink(struct ob_flow *f, uint32_t i)
{
    struct slot *s = &f->slots[i];
    struct dest *d = &f->dests[s->dest];
    if (s->rprev == NIL)
        d->rhead = s->rnext;
    else
        f->slots[s->rprev].rnext = s->rnext;
    if (s->rnext == NIL)
        d->rtail = s->rprev;
    else
        f->slots[s->rnext].rprev = s->rprev;
    s->rnext = s->rprev = NIL;
    f->n_ready--;
    if (d->rhead != NIL)
        return;
    d->active = false;
    if (d->anext == s->dest) {
        f->ahead = NIL;
    } else {
        f->dests[d->anext].aprev = d->aprev;
        f->dests[d->aprev].anext = d->anext;
        if (f->ahead == s->dest)
            f->ahead = d->anext;
    }
    d->anext = d->aprev = NIL;
}

void ob__dest_block(struct ob_flow *f, int64_t now, uint32_t di, bool probe_failed)
{
    struct dest *d = &f->dests[di];
    if (d->blocked && !probe_failed)
        return;
    if (!d->blocked) {
        d->blocked = true;
        d->parking = false;
        d->since_ms = now;
        d->fails = 0;
        f->n_blocked++;
        f->blocked_live += d->n_live;
        f->st.blocked++;
        list_trouble(f, di);
    }
    d->fails++;
    d->probe_at = now + ob_backoff_ms(&f->c.probe, d->fails, &f->rand);
}

void ob__dest_unblock(struct ob_flow *f, int64_t now, uint32_t di)
{
    struct dest *d = &f->dests[di];
    if (!d->blocked)
        return;
    d->blocked = d->parking = false;
    d->fails = 0;
    d->probe = NIL;
    d->drain_at = now;
    f->n_blocked--;
    f->blocked_live -= d->n_live;
    if (!d->rows) {
        unlist_trouble(f, di);
        ob__dest_drop_if_idle(f, di);
    }
}

/* The source has rows that wait for this destination. */
void ob__dest_rows(struct ob_flow *f, int64_t now, uint32_t di)
{
    struct dest *d = &f->dests[di];
    d->rows = true;
    d->drain_at = now;
    list_trouble(f, di);
}

/* From now on its events are parked as they come; those that are ready now, at once. */
void ob__dest_park(struct ob_flow *f, uint32_t di)
{
    struct dest *d = &f->dests[di];
    if (f->down || OB_MUTANT(M_BLOCKED_FILLS))
        return;
    d->parking = true;
    d->n_slots++; /* stays while its slots go */
    while (d->rhead != NIL) {
        uint32_t i = d->rhead, k = f->slots[i].key;
        f->slots[i].flags |= F_WAITS_DEST;
        ob__slot_park(f, i, ON_HOLD, 0);
        ob__key_hold(f, k, true);
        ob__key_dirty(f, k);
    }
    d->n_slots--;
}

void ob__dest_tick(struct ob_flow *f, int64_t now)
{
    for (uint32_t di = f->bhead, next; di != NIL; di = next) {
        struct dest *d = &f->dests[di];
        next = d->bnext;
        if (!d->blocked || f->down)
            continue;
        bool long_ago = now - d->since_ms >= f->c.park_after_ms;
        bool too_much = f->blocked_live > ob__blocked_share(f);
        if (!d->parking && (long_ago || too_much))
            ob__dest_park(f, di);
        else if (d->parking && d->rhead != NIL && d->probe_at > now)
            ob__key_no_wait(f, d->rhead); /* its probe may take long */
    }
    ob__key_clean(f);
}

/* When it may be asked for rows: a free one to drain, a blocked one for a row to probe with. */
static bool wants_rows(int64_t now, const struct dest *d, bool place)
{
    if (!d->blocked)
        return now >= d->drain_at;
    return place && now >= d->probe_at && d->probe == NIL && d->rhead == NIL;
}

static int64_t waits_since(const struct dest *d)
{
    return d->blocked ? d->probe_at : d->drain_at;
}

/* Free ones before blocked ones, then those first that wait longest: where there is room for one
 * row only, each gets its turn. */
size_t ob_flow_drain_dests(struct ob_flow *f, int64_t now, uint64_t *dests, bool *one, size_t max)
{
    size_t n = 0;
    if (ob_flow_drain_room(f) == 0 || max == 0)
        return 0;
    bool place = f->blocked_live < ob__blocked_share(f) && now >= f->gap_ms;
    for (uint32_t di = f->bhead; di != NIL; di = f->dests[di].bnext) {
        const struct dest *d = &f->dests[di];
        if (!wants_rows(now, d, place))
            continue;
        size_t at = n;
        while (at > 0) { /* insertion: the list is short, and mostly in order */
            const struct dest *before = &f->dests[ob__dest_find(f, dests[at - 1])];
            if (before->blocked < d->blocked ||
                (before->blocked == d->blocked && waits_since(before) <= waits_since(d)))
                break;
            if (at < max)
                dests[at] = dests[at - 1];
            at--;
        }
        if (at >= max)
            continue;
        dests[at] = d->hash;
        n += n < max;
    }
    for (size_t i = 0; i < n; i++)
        one[i] = f->dests[ob__dest_find(f, dests[i])].blocked;
    return n;
}

void ob_flow_drain_none(struct ob_flow *f, int64_t now, uint64_t dest)
{
    uint32_t di = ob__dest_find(f, dest);
    if (di == NIL)
        return;
    struct dest *d = &f->dests[di];
    bool wanted = d->n_slots == 0 && f->n_idle_dests >= f->c.dest_max; /* its place is */
    if (!wanted && (f->n_rows > 0 || f->n_todo > 0 || f->settling)) {
        /* Its rows may be those in the window, or on their way: look again. */
        if (d->blocked)
            d->probe_at = now + 100;
        else
            d->drain_at = now + 100;
        return;
    }
    d->rows = false;
    if (d->blocked) {
        if (d->n_slots > 0) {
            d->probe_at = now + 100;
            return; /* what is in the window will be parked or probes */
        }
        ob__dest_unblock(f, now, di); /* nobody waits for it: the next event finds out */
        return;
    }
    unlist_trouble(f, di);
    ob__dest_drop_if_idle(f, di);
}

bool ob_flow_dest_parked(struct ob_flow *f, int64_t now, uint64_t dest)
{
    uint32_t di = ob__dest_find(f, dest);
    if (di == NIL) {
        if (f->n_idle_dests >= f->c.dest_max || (di = ob__dest_get(f, dest)) == NIL)
            return false;
        /* Blocked until a probe says otherwise: one row, not a page. */
        ob__dest_block(f, now, di, false);
        f->dests[di].parking = true;
        f->dests[di].probe_at = now;
    }
    if (!f->dests[di].rows)
        ob__dest_rows(f, now, di);
    return true;
}

void ob_flow_dest(struct ob_flow *f, int64_t now, uint64_t dest, bool up)
{
    uint32_t di = ob__dest_find(f, dest);
    if (up) {
        if (di != NIL)
            ob__dest_unblock(f, now, di);
        return;
    }
    if (di == NIL && f->n_idle_dests < f->c.dest_max)
        di = ob__dest_get(f, dest);
    if (di != NIL)
        ob__dest_block(f, now, di, false);
}
