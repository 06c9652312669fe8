/* SPDX-License-Identifier: Apache-2.0 */
/* known - the exchanges that need not be looked for again on this connection. */
#include "sink/rabbitmq/rabbit.h"

#include <stdlib.h>

/* Names may come out of events: beyond so many it begins anew. */
#define KNOWN_MAX 65536

/* The place of a hash, or where it would stand. */
static size_t place(const struct rabbit_known *k, uint64_t hash)
{
    size_t from = 0, to = k->n;
    while (from < to) {
        size_t mid = from + (to - from) / 2;
        if (k->hashes[mid] < hash)
            from = mid + 1;
        else
            to = mid;
    }
    return from;
}

bool ob_rabbit_knows(const struct rabbit_known *k, uint64_t hash)
{
    size_t at = place(k, hash);
    return at < k->n && k->hashes[at] == hash;
}

void ob_rabbit_learn(struct rabbit_known *k, uint64_t hash)
{
    if (ob_rabbit_knows(k, hash))
        return;
    if (k->n == KNOWN_MAX)
        k->n = 0;
    if (k->n == k->cap) {
        size_t cap = k->cap > 0 ? k->cap * 2 : 16;
        uint64_t *more = realloc(k->hashes, cap * sizeof(*more));
        if (!more)
            return; /* then it is looked for again */
        k->hashes = more;
        k->cap = cap;
    }
    size_t at = place(k, hash);
    memmove(k->hashes + at + 1, k->hashes + at, (k->n++ - at) * sizeof(*k->hashes));
    k->hashes[at] = hash;
}

void ob_rabbit_forget(struct rabbit_known *k, uint64_t hash)
{
    size_t at = place(k, hash);
    if (at < k->n && k->hashes[at] == hash)
        memmove(k->hashes + at, k->hashes + at + 1, (--k->n - at) * sizeof(*k->hashes));
}
