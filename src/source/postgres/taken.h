/* SPDX-License-Identifier: Apache-2.0 */
/* taken - the rows of a mapped table that are in the window, by the hash of their id: a pass leaves
 * them out. 128 bits, so that two ids are never the same. */
#ifndef OB_SOURCE_POSTGRES_TAKEN_H
#define OB_SOURCE_POSTGRES_TAKEN_H

#include "core/err.h"
#include "core/str.h"

enum taken_state {
    TAKEN_FREE = 0,
    TAKEN_OURS,    /* in the window */
    TAKEN_SETTLED, /* settled while a pass was under way, whose snapshot may be older */
    TAKEN_FOREIGN, /* another shard's */
    TAKEN_REFUSED, /* settled, and the server did not let us mark it */
};

struct taken {
    uint64_t hash[2];
    char *id; /* only where claims are shown, else NULL */
    int64_t since_ms;
    uint32_t pass; /* the last that saw it */
    uint8_t state;
    bool claimed; /* the table says so */
};

struct taken_set {
    struct taken *at;
    size_t cap, n; /* cap: a power of two */
    size_t n_foreign;
};

void ob_pg_taken_hash(struct ob_str id, uint64_t hash[2]);
/* NULL: it is not in it. */
struct taken *ob_pg_taken_find(struct taken_set *set, const uint64_t hash[2]);
/* Adds it, or gives the one that is there. NULL: no memory. Others may move. */
struct taken *ob_pg_taken_add(struct taken_set *set, const uint64_t hash[2]);
/* Removes it; others may move. */
void ob_pg_taken_remove(struct taken_set *set, struct taken *t);
/* Removes all of a state that were last seen before `pass` (UINT32_MAX: all). */
void ob_pg_taken_purge(struct taken_set *set, enum taken_state state, uint32_t pass);
void ob_pg_taken_clear(struct taken_set *set);

#endif
