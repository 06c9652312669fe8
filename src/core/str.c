/* SPDX-License-Identifier: Apache-2.0 */
/* str - a borrowed slice of bytes: hash, UTF-8, glob, edit distance. */
#include "core/str.h"

#include "core/utf8.h"
#include "core/uuid.h"

#include <pthread.h>
#include <xxhash.h>

/* XXH3 with 64 bits and no seed. Keys are parked under this number: it must never change
 * (tests/unit/core/str_test.c holds known values). */
uint64_t ob_hash64(const void *p, size_t n)
{
    return XXH3_64bits(n ? p : "", n);
}

static uint64_t secret;

static void make_secret(void)
{
    uint8_t id[16]; /* random but for its first half */
    ob_uuid7(id);
    memcpy(&secret, id + 8, sizeof(secret));
}

uint64_t ob_hash64_secret(const void *p, size_t n)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_secret);
    return XXH3_64bits_withSeed(n ? p : "", n, secret);
}

bool ob_utf8_valid(struct ob_str s)
{
    const char *p = s.p, *end = s.n ? s.p + s.n : s.p;

    while (p < end) {
        uint64_t w;
        int step;

        while (end - p >= 8 && (memcpy(&w, p, 8), (w & 0x8080808080808080u) == 0))
            p += 8;
        if (p == end)
            break;
        step = ob_utf8_step(p, end);
        if (step < 0)
            return false;
        p += step;
    }
    return true;
}

/* Only the last '*' is ever gone back to: at worst pattern times text, never exponential. */
bool ob_glob(struct ob_str pattern, struct ob_str text)
{
    size_t i = 0, t = 0, star = SIZE_MAX, star_t = 0;

    while (t < text.n || i < pattern.n) {
        if (i < pattern.n && pattern.p[i] == '*') {
            star = ++i;
            star_t = t;
            continue;
        }
        if (i < pattern.n && t < text.n) {
            bool literal = pattern.p[i] == '\\' && i + 1 < pattern.n;
            char c = pattern.p[i + (literal ? 1 : 0)];

            if ((!literal && c == '?') || c == text.p[t]) {
                i += literal ? 2 : 1;
                t++;
                continue;
            }
        }
        if (star == SIZE_MAX || star_t >= text.n)
            return false;
        i = star;
        t = ++star_t;
    }
    return true;
}

#define DISTANCE_LEN 255 /* longer words are no typing mistakes of each other */

unsigned ob_distance(struct ob_str a, struct ob_str b, unsigned max)
{
    unsigned row[DISTANCE_LEN + 1];

    if (ob_str_eq(a, b))
        return 0;
    if (a.n > DISTANCE_LEN || b.n > DISTANCE_LEN)
        return max + 1;
    if ((a.n > b.n ? a.n - b.n : b.n - a.n) > max)
        return max + 1;
    for (size_t j = 0; j <= b.n; j++)
        row[j] = (unsigned)j;
    for (size_t i = 1; i <= a.n; i++) {
        unsigned diagonal = row[0], best = row[0] = (unsigned)i;

        for (size_t j = 1; j <= b.n; j++) {
            unsigned change = diagonal + (a.p[i - 1] != b.p[j - 1]);
            unsigned least = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;

            diagonal = row[j];
            row[j] = change < least ? change : least;
            if (row[j] < best)
                best = row[j];
        }
        if (best > max)
            return max + 1;
    }
    return row[b.n] <= max ? row[b.n] : max + 1;
}
