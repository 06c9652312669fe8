/* SPDX-License-Identifier: Apache-2.0 */
/* backoff - how long to wait before the n-th try. Pure: the caller brings the randomness. */
#ifndef OB_CORE_BACKOFF_H
#define OB_CORE_BACKOFF_H

#include "core/rand.h"

#include <stdint.h>

struct ob_backoff {
    uint32_t first_ms;   /* wait after the first failure */
    uint32_t factor_pct; /* 200 doubles, 100 is fixed */
    uint32_t max_ms;
    uint32_t jitter_pct; /* ± this share, applied last; never above max_ms + jitter */
};

/* failures >= 1: how many there were. rand may be NULL: no jitter. */
uint32_t ob_backoff_ms(const struct ob_backoff *b, uint32_t failures, struct ob_rand *rand);

#endif
