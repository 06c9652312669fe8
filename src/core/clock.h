/* SPDX-License-Identifier: Apache-2.0 */
/* clock - time that tests can inject. Monotonic for waiting, wall for what is shown and stored. */
#ifndef OB_CORE_CLOCK_H
#define OB_CORE_CLOCK_H

#include <stddef.h>
#include <stdint.h>

struct ob_clock {
    int64_t (*mono_us)(void *user);
    int64_t (*wall_us)(void *user); /* since 1970, UTC */
    void *user;
};

extern const struct ob_clock ob_clock_system;

static inline int64_t ob_clock_mono_ms(const struct ob_clock *c)
{
    return c->mono_us(c->user) / 1000;
}
static inline int64_t ob_clock_wall_us(const struct ob_clock *c)
{
    return c->wall_us(c->user);
}

/* Milliseconds of any value as microseconds, at most what 64 bits hold. */
static inline int64_t ob_us_of_ms(int64_t ms)
{
    int64_t us;
    return !__builtin_mul_overflow(ms, 1000, &us) ? us : ms < 0 ? INT64_MIN : INT64_MAX;
}

#define OB_RFC3339_MAX 32
/* "2026-02-03T04:05:06.789Z" (milliseconds, UTC). Returns the length. */
size_t ob_rfc3339(int64_t wall_us, char out[OB_RFC3339_MAX]);
/* Reads RFC 3339 with any offset, fraction optional, 'T' or ' '. Returns 0, or -1 if it is none. */
int ob_rfc3339_parse(const char *p, size_t n, int64_t *wall_us);

#endif
