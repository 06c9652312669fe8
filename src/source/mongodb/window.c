/* SPDX-License-Identifier: Apache-2.0 */
/* window - documents that were handed out and are not settled. An event's ref rises with every
 * claim and has its place here in the low bits. */
#include "source/mongodb/mongo.h"

#include <stdlib.h>

#define SLOT_BITS 21
#define SLOT_OF(ref) ((size_t)((ref) & ((1u << SLOT_BITS) - 1)))

static bool grow(struct mongo_window *w)
{
    size_t cap = w->cap ? w->cap * 2 : 1024;
    if (cap > (size_t)1 << SLOT_BITS)
        return false;
    struct mongo_slot *at = realloc(w->at, cap * sizeof(*at));
    if (!at)
        return false;
    w->at = at;
    for (size_t i = w->cap; i < cap; i++)
        at[i] = (struct mongo_slot){.next = i + 1 < cap ? (uint32_t)(i + 1) : UINT32_MAX};
    w->free = (uint32_t)w->cap;
    w->cap = cap;
    return true;
}

uint64_t ob_mongo_window_add(struct mongo_window *w, bson_value_t *id, int64_t now_ms)
{
    if ((w->n == w->cap && !grow(w)) || !ob_mongo_ours_add(w->ours, id))
        return 0;
    uint32_t place = w->free;
    struct mongo_slot *slot = &w->at[place];
    w->free = slot->next;
    w->n++;
    *slot =
        (struct mongo_slot){.ref = ++w->given << SLOT_BITS | place, .id = *id, .since_ms = now_ms};
    memset(id, 0, sizeof(*id));
    return slot->ref;
}

struct mongo_slot *ob_mongo_window_find(struct mongo_window *w, uint64_t ref)
{
    size_t place = SLOT_OF(ref);
    return ref != 0 && place < w->cap && w->at[place].ref == ref ? &w->at[place] : NULL;
}

void ob_mongo_window_remove(struct mongo_window *w, uint64_t ref)
{
    struct mongo_slot *slot = ob_mongo_window_find(w, ref);
    if (!slot)
        return;
    ob_mongo_ours_remove(w->ours, &slot->id);
    bson_value_destroy(&slot->id);
    *slot = (struct mongo_slot){.next = w->free};
    w->free = (uint32_t)(slot - w->at);
    w->n--;
}

void ob_mongo_window_clear(struct mongo_window *w)
{
    uint64_t given = w->given;
    for (size_t i = 0; i < w->cap; i++)
        if (w->at[i].ref) {
            ob_mongo_ours_remove(w->ours, &w->at[i].id);
            bson_value_destroy(&w->at[i].id);
        }
    free(w->at);
    *w = (struct mongo_window){.given = given, .ours = w->ours}; /* a ref is never used twice */
}
