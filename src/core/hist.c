/* SPDX-License-Identifier: Apache-2.0 */
/* hist - reading a histogram. */
#include "core/hist.h"

void ob_hist_merge(struct ob_hist *a, const struct ob_hist *b)
{
    for (unsigned i = 0; i < OB_HIST_BUCKETS; i++)
        ob_hist_bump(&a->count[i], atomic_load_explicit(&b->count[i], memory_order_relaxed));
    ob_hist_bump(&a->n, atomic_load_explicit(&b->n, memory_order_relaxed));
    ob_hist_bump(&a->sum, atomic_load_explicit(&b->sum, memory_order_relaxed));
}

static uint64_t upper_edge(unsigned b)
{
    if (b < 8)
        return b;
    unsigned top = b / 8 + 2;
    return ((uint64_t)1 << top) + ((uint64_t)(b % 8 + 1) << (top - 3)) - 1;
}

uint64_t ob_hist_quantile(const struct ob_hist *h, unsigned per_mille)
{
    uint64_t n = atomic_load_explicit(&h->n, memory_order_relaxed), seen = 0;
    if (n == 0)
        return 0;
    uint64_t want = (n * per_mille + 999) / 1000;
    for (unsigned i = 0; i < OB_HIST_BUCKETS; i++) {
        seen += atomic_load_explicit(&h->count[i], memory_order_relaxed);
        if (seen >= want && seen > 0)
            return upper_edge(i);
    }
    return upper_edge(OB_HIST_BUCKETS - 1);
}
