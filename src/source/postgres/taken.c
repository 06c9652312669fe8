/* SPDX-License-Identifier: Apache-2.0 */
/* taken - a hash set with open addressing; removing moves what stands behind up, so that there are
 * no tombstones. */
#include "source/postgres/taken.h"

#include <stdlib.h>
#include <xxhash.h>

void ob_pg_taken_hash(struct ob_str id, uint64_t hash[2])
{
    XXH128_hash_t h = XXH3_128bits(id.p ? id.p : "", id.n);
    hash[0] = h.low64;
    hash[1] = h.high64;
}

static size_t place(const struct taken_set *set, const uint64_t hash[2])
{
    size_t i = (size_t)hash[0] & (set->cap - 1);
    while (set->at[i].state != TAKEN_FREE &&
           (set->at[i].hash[0] != hash[0] || set->at[i].hash[1] != hash[1]))
        i = (i + 1) & (set->cap - 1);
    return i;
}

struct taken *ob_pg_taken_find(struct taken_set *set, const uint64_t hash[2])
{
    if (set->n == 0)
        return NULL;
    struct taken *t = &set->at[place(set, hash)];
    return t->state == TAKEN_FREE ? NULL : t;
}

static bool grow(struct taken_set *set)
{
    struct taken_set more = {.cap = set->cap ? set->cap * 2 : 1024};
    more.at = calloc(more.cap, sizeof(*more.at));
    if (!more.at)
        return false;
    for (size_t i = 0; i < set->cap; i++)
        if (set->at[i].state != TAKEN_FREE)
            more.at[place(&more, set->at[i].hash)] = set->at[i];
    more.n = set->n;
    more.n_foreign = set->n_foreign;
    free(set->at);
    *set = more;
    return true;
}

struct taken *ob_pg_taken_add(struct taken_set *set, const uint64_t hash[2])
{
    struct taken *t = ob_pg_taken_find(set, hash);
    if (t)
        return t;
    if (2 * (set->n + 1) > set->cap && !grow(set))
        return NULL;
    t = &set->at[place(set, hash)];
    *t = (struct taken){.hash = {hash[0], hash[1]}, .state = TAKEN_OURS};
    set->n++;
    return t;
}

void ob_pg_taken_remove(struct taken_set *set, struct taken *t)
{
    size_t mask = set->cap - 1, hole = (size_t)(t - set->at);
    set->n_foreign -= t->state == TAKEN_FOREIGN;
    free(t->id); /* NOLINT(clang-analyzer-unix.Malloc): what moves leaves its old place empty */
    t->id = NULL;
    set->n--;
    for (size_t i = (hole + 1) & mask; set->at[i].state != TAKEN_FREE; i = (i + 1) & mask) {
        size_t home = (size_t)set->at[i].hash[0] & mask;
        /* It may stand in the hole if its home is not between the hole and where it stands. */
        if (((i - home) & mask) >= ((i - hole) & mask)) {
            set->at[hole] = set->at[i];
            hole = i;
        }
    }
    set->at[hole] = (struct taken){0};
}

void ob_pg_taken_purge(struct taken_set *set, enum taken_state state, uint32_t pass)
{
    for (size_t i = 0; i < set->cap;) {
        struct taken *t = &set->at[i];
        if (t->state == state && (pass == UINT32_MAX || t->pass < pass))
            ob_pg_taken_remove(set, t); /* another one may stand here now */
        else
            i++;
    }
}

void ob_pg_taken_clear(struct taken_set *set)
{
    for (size_t i = 0; i < set->cap; i++)
        free(set->at[i].id);
    free(set->at);
    *set = (struct taken_set){0};
}
