/* SPDX-License-Identifier: Apache-2.0 */
/* batch - events and everything decoded for them, in one arena. The batch itself stands in it too,
 * so the arena's count is the batch's. */
#include "event/event.h"

#define CHUNK ((size_t)64 << 10)

struct ob_batch *ob_batch_new(size_t cap, size_t ceiling)
{
    struct ob_batch *batch = ob_batch_new_raw(cap, ceiling);

    if (batch)
        memset(batch->events, 0, cap * sizeof(*batch->events));
    return batch;
}

struct ob_batch *ob_batch_new_raw(size_t cap, size_t ceiling)
{
    size_t own = sizeof(struct ob_batch), events;
    struct ob_arena *arena;
    struct ob_batch *batch;

    if (__builtin_mul_overflow(cap, sizeof(struct ob_event), &events) ||
        __builtin_add_overflow(own, events, &own))
        return NULL;
    /* The ceiling is for what the events hold: their own places come on top. */
    if (ceiling && __builtin_add_overflow(ceiling, own, &ceiling))
        ceiling = 0;
    arena = ob_arena_new(CHUNK, ceiling);
    if (!arena)
        return NULL;
    batch = ob_arena_zalloc(arena, sizeof(*batch));
    if (batch) {
        batch->arena = arena;
        batch->events = ob_arena_alloc(arena, events);
    }
    if (!batch || !batch->events) {
        ob_arena_unref(arena);
        return NULL;
    }
    return batch;
}

struct ob_batch *ob_batch_ref(struct ob_batch *batch)
{
    ob_arena_ref(batch->arena);
    return batch;
}

void ob_batch_unref(struct ob_batch *batch)
{
    if (batch)
        ob_arena_unref(batch->arena);
}

bool ob_event_own(struct ob_event *ev, struct ob_arena *arena)
{
    struct ob_str *const all[] = {
        &ev->id,    &ev->type,   &ev->aggregate_type, &ev->aggregate_id, &ev->tenant,  &ev->key,
        &ev->topic, &ev->stream, &ev->payload,        &ev->headers,      &ev->metadata};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        if (!all[i]->p)
            continue;
        *all[i] = ob_arena_copy(arena, *all[i]);
        if (!all[i]->p)
            return false;
    }
    for (size_t i = 0; i < ev->n_cols; i++) {
        struct ob_str *value = &ev->cols[i].value;
        if (!value->p)
            continue;
        *value = ob_arena_copy(arena, *value);
        if (!value->p)
            return false;
    }
    return true;
}
