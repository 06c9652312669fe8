/* SPDX-License-Identifier: Apache-2.0 */
/* set - values by their hash, with a number beside each; open addressing. */
#include "source/mongodb/mongo.h"

#include <stdlib.h>

static size_t set_place(const struct mongo_set *set, const uint64_t h[2])
{
    size_t i = (size_t)h[0] & (set->cap - 1);
    while ((set->at[i][0] || set->at[i][1]) && (set->at[i][0] != h[0] || set->at[i][1] != h[1]))
        i = (i + 1) & (set->cap - 1);
    return i;
}

static bool set_grow(struct mongo_set *set)
{
    struct mongo_set more = {.cap = set->cap ? set->cap * 2 : 1024};
    more.at = calloc(more.cap, sizeof(*more.at));
    more.value = calloc(more.cap, sizeof(*more.value));
    if (!more.at || !more.value) {
        free(more.at);
        free(more.value);
        return false;
    }
    for (size_t i = 0; i < set->cap; i++)
        if (set->at[i][0] || set->at[i][1]) {
            size_t to = set_place(&more, set->at[i]);
            memcpy(more.at[to], set->at[i], sizeof(*more.at));
            more.value[to] = set->value[i];
        }
    free(set->at);
    free(set->value);
    set->at = more.at;
    set->value = more.value;
    set->cap = more.cap;
    return true;
}

int ob_mongo_set_add(struct mongo_set *set, const uint64_t h[2], uint32_t value)
{
    if (2 * (set->n + 1) > set->cap && !set_grow(set))
        return -1;
    size_t i = set_place(set, h);
    if (set->at[i][0] || set->at[i][1])
        return 0;
    memcpy(set->at[i], h, sizeof(set->at[i]));
    set->value[i] = value;
    set->n++;
    return 1;
}

bool ob_mongo_set_has(const struct mongo_set *set, const uint64_t h[2], uint32_t *value)
{
    if (set->n == 0)
        return false;
    size_t i = set_place(set, h);
    if (!set->at[i][0] && !set->at[i][1])
        return false;
    if (value)
        *value = set->value[i];
    return true;
}

void ob_mongo_set_remove(struct mongo_set *set, const uint64_t h[2])
{
    if (!ob_mongo_set_has(set, h, NULL))
        return;
    size_t hole = set_place(set, h), mask = set->cap - 1;
    /* What was put behind it because it stood there moves up. */
    for (size_t i = (hole + 1) & mask; set->at[i][0] || set->at[i][1]; i = (i + 1) & mask) {
        size_t home = (size_t)set->at[i][0] & mask;
        if (((i - home) & mask) < ((i - hole) & mask))
            continue;
        memcpy(set->at[hole], set->at[i], sizeof(set->at[i]));
        set->value[hole] = set->value[i];
        hole = i;
    }
    memset(set->at[hole], 0, sizeof(set->at[hole]));
    set->n--;
}

void ob_mongo_set_clear(struct mongo_set *set)
{
    free(set->at);
    free(set->value);
    *set = (struct mongo_set){0};
}
