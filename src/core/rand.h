/* SPDX-License-Identifier: Apache-2.0 */
/* rand - a small seeded generator (splitmix64), for jitter and for simulations; not for secrets. */
#ifndef OB_CORE_RAND_H
#define OB_CORE_RAND_H

#include <stdint.h>

struct ob_rand {
    uint64_t state;
};

static inline uint64_t ob_rand_next(struct ob_rand *r)
{
    uint64_t z = (r->state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* 0 .. n-1; 0 if n is 0. */
static inline uint64_t ob_rand_below(struct ob_rand *r, uint64_t n)
{
    return n ? ob_rand_next(r) % n : 0;
}

#endif
