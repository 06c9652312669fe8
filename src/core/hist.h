/* SPDX-License-Identifier: Apache-2.0 */
/* hist - a histogram of whole numbers: eight buckets per power of two, so 12 % at worst. One
 * writer; a reader in another thread sees numbers that are each whole, not all of one moment. */
#ifndef OB_CORE_HIST_H
#define OB_CORE_HIST_H

#include <stdatomic.h>
#include <stdint.h>

#define OB_HIST_BUCKETS 320

struct ob_hist {
    _Atomic uint64_t count[OB_HIST_BUCKETS];
    _Atomic uint64_t n, sum;
};

static inline unsigned ob_hist_bucket(uint64_t v)
{
    if (v < 8)
        return (unsigned)v;
    unsigned top = 63u - (unsigned)__builtin_clzll(v);
    unsigned b = (top - 2) * 8 + (unsigned)((v >> (top - 3)) & 7);
    return b < OB_HIST_BUCKETS ? b : OB_HIST_BUCKETS - 1;
}

static inline void ob_hist_bump(_Atomic uint64_t *c, uint64_t v)
{
    atomic_store_explicit(c, atomic_load_explicit(c, memory_order_relaxed) + v,
                          memory_order_relaxed);
}

static inline void ob_hist_add(struct ob_hist *h, uint64_t v)
{
    ob_hist_bump(&h->count[ob_hist_bucket(v)], 1);
    ob_hist_bump(&h->n, 1);
    ob_hist_bump(&h->sum, v);
}

/* Adds b to a. */
void ob_hist_merge(struct ob_hist *a, const struct ob_hist *b);
/* The value that per_mille of 1000 are at or below (upper edge of its bucket). 0 if empty. */
uint64_t ob_hist_quantile(const struct ob_hist *h, unsigned per_mille);

#endif
