/* SPDX-License-Identifier: Apache-2.0 */
/* snap - snapshots as the server writes them, and the places of a cursor that share them. */
#include "source/postgres/snap.h"

#include <stdlib.h>
#include <string.h>

struct snap *ob_pg_snap_new(const char *text)
{
    size_t n = strlen(text);
    struct snap *x = malloc(sizeof(*x) + n + 1);
    if (x) {
        x->refs = 1;
        memcpy(x->text, text, n + 1);
    }
    return x;
}

struct snap *ob_pg_snap_ref(struct snap *x)
{
    if (x)
        x->refs++;
    return x;
}

void ob_pg_snap_unref(struct snap *x)
{
    if (x && --x->refs == 0)
        free(x);
}

void ob_pg_snap_set(struct snap **at, struct snap *x)
{
    ob_pg_snap_ref(x);
    ob_pg_snap_unref(*at);
    *at = x;
}

bool ob_pg_snap_shows(const char *snap, uint64_t xid)
{
    char *end;
    uint64_t xmin = strtoull(snap, &end, 10);
    if (xid < xmin || *end != ':')
        return xid < xmin;
    uint64_t xmax = strtoull(end + 1, &end, 10);
    if (xid >= xmax)
        return false;
    while (*end == ':' || *end == ',') { /* rising: those that were running */
        if (end[1] == '\0')
            break;
        uint64_t x = strtoull(end + 1, &end, 10);
        if (x >= xid)
            return x != xid;
    }
    return true;
}

void ob_pg_place_clear(struct place *p)
{
    ob_pg_snap_unref(p->snap);
    ob_pg_snap_unref(p->late_snap);
    *p = (struct place){.adopt_pos = -1};
}

void ob_pg_place_set(struct place *to, const struct place *from)
{
    ob_pg_snap_set(&to->snap, from->snap);
    ob_pg_snap_set(&to->late_snap, from->late_snap);
    to->pos = from->pos;
    to->late_pos = from->late_pos;
    to->adopt_pos = from->adopt_pos;
}

static bool same_snap(const struct snap *a, const struct snap *b)
{
    return a == b || (a && b && strcmp(a->text, b->text) == 0);
}

bool ob_pg_place_same(const struct place *a, const struct place *b)
{
    return a->pos == b->pos && a->late_pos == b->late_pos && a->adopt_pos == b->adopt_pos &&
           same_snap(a->snap, b->snap) && same_snap(a->late_snap, b->late_snap);
}

static bool grow(struct place_ring *r)
{
    uint64_t cap = r->cap ? r->cap * 2 : 4096;
    struct place_entry *of = calloc(cap, sizeof(*of));
    if (!of)
        return false;
    for (uint64_t i = r->head; r->cap && i < r->tail; i++)
        of[i % cap] = r->of[i % r->cap];
    free(r->of);
    r->of = of;
    r->cap = cap;
    return true;
}

bool ob_pg_ring_add(struct place_ring *r, const struct place *at, int64_t seq, uint64_t xid)
{
    if (r->tail - r->head == r->cap && !grow(r))
        return false;
    struct place_entry *e = &r->of[r->tail % r->cap];
    *e = (struct place_entry){.seq = seq, .xid = xid};
    ob_pg_place_set(&e->at, at);
    r->tail++;
    return true;
}

const struct place_entry *ob_pg_ring_at(const struct place_ring *r, uint64_t ordinal)
{
    if (ordinal <= r->head || ordinal > r->tail)
        return NULL;
    return &r->of[(ordinal - 1) % r->cap];
}

void ob_pg_ring_drop(struct place_ring *r, uint64_t to)
{
    for (; r->head < to && r->head < r->tail; r->head++)
        ob_pg_place_clear(&r->of[r->head % r->cap].at);
}

void ob_pg_ring_clear(struct place_ring *r)
{
    ob_pg_ring_drop(r, r->tail);
    free(r->of);
    *r = (struct place_ring){0};
}
