/* SPDX-License-Identifier: Apache-2.0 */
/* backoff - how long to wait before the n-th try. */
#include "core/backoff.h"

/* The loop is short whatever the number of failures: it ends at max_ms, below 1 ms, or at once if
 * nothing changes. A factor of 101 needs about 2200 turns from 1 ms to the largest wait. */
uint32_t ob_backoff_ms(const struct ob_backoff *b, uint32_t failures, struct ob_rand *rand)
{
    double wait = b->first_ms, factor = b->factor_pct / 100.0;
    uint32_t jitter_pct = b->jitter_pct < 100 ? b->jitter_pct : 100;
    uint64_t ms, spread;

    if (b->factor_pct != 100)
        for (uint32_t i = 1; i < failures && wait < b->max_ms && wait >= 1; i++)
            wait *= factor;
    ms = wait < b->max_ms ? (uint64_t)wait : b->max_ms;
    spread = ms * jitter_pct / 100;
    if (rand && spread)
        ms = ms - spread + ob_rand_below(rand, 2 * spread + 1);
    return ms < UINT32_MAX ? (uint32_t)ms : UINT32_MAX;
}
