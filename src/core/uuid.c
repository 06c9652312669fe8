/* SPDX-License-Identifier: Apache-2.0 */
/* uuid - version 7, strictly rising within a process, across its threads and forks.
 *
 * 48 bits of milliseconds, a 26-bit counter that starts anywhere in its lower half each
 * millisecond, 48 random bits. If the clock stands or goes back, or the counter is full, the time
 * of the last one goes on. The state is one per process by its nature and behind a lock. */
#include "core/uuid.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#define COUNTER_MAX ((1u << 26) - 1)

static struct {
    pthread_mutex_t lock;
    uint64_t last_ms;
    uint32_t counter;
    uint64_t pool[32]; /* random numbers, read in one system call */
    unsigned left;
} state = {.lock = PTHREAD_MUTEX_INITIALIZER};
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void before_fork(void)
{
    pthread_mutex_lock(&state.lock);
}

static void after_fork_parent(void)
{
    pthread_mutex_unlock(&state.lock);
}

/* The child keeps the counter (it goes on rising) but must not use its parent's random numbers. */
static void after_fork_child(void)
{
    memset(state.pool, 0, sizeof(state.pool));
    state.left = 0;
    pthread_mutex_unlock(&state.lock);
}

static void watch_forks(void)
{
    pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

static uint64_t now_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_REALTIME, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* Only on kernels without getrandom(2): time, process and a step that mixes well. */
static void weak_random(uint64_t *out, size_t n)
{
    uint64_t x = now_ns() ^ ((uint64_t)getpid() << 40);

    for (size_t i = 0; i < n; i++) {
        x += 0x9e3779b97f4a7c15u;
        out[i] = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9u;
        out[i] ^= out[i] >> 32;
    }
}

static uint64_t random64(void)
{
    if (state.left == 0) {
        ssize_t got;

        do
            got = getrandom(state.pool, sizeof(state.pool), 0);
        while (got < 0 && errno == EINTR);
        if (got != (ssize_t)sizeof(state.pool))
            weak_random(state.pool, sizeof(state.pool) / sizeof(state.pool[0]));
        state.left = sizeof(state.pool) / sizeof(state.pool[0]);
    }
    return state.pool[--state.left];
}

void ob_uuid7(uint8_t out[16])
{
    uint64_t ms, bits;
    int saved = errno;

    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&state.lock);
    ms = now_ns() / 1000000u;
    if (ms <= state.last_ms && state.counter < COUNTER_MAX) {
        state.counter++;
    } else {
        state.last_ms = ms > state.last_ms ? ms : state.last_ms + 1;
        state.counter = (uint32_t)(random64() & (COUNTER_MAX >> 1));
    }
    bits = random64();
    ob_uuid7_make(state.last_ms, state.counter, bits, out);
    pthread_mutex_unlock(&state.lock);
    errno = saved;
}

void ob_uuid7_make(uint64_t unix_ms, uint32_t counter26, uint64_t random48, uint8_t out[16])
{
    uint64_t high = (unix_ms << 16) | 0x7000u | ((counter26 >> 14) & 0xfffu);
    uint64_t low = (UINT64_C(2) << 62) | ((uint64_t)(counter26 & 0x3fffu) << 48) |
                   (random48 & 0xffffffffffffu);

    for (int i = 0; i < 8; i++) {
        out[i] = (uint8_t)(high >> (56 - 8 * i));
        out[8 + i] = (uint8_t)(low >> (56 - 8 * i));
    }
}

void ob_uuid_format(const uint8_t in[16], char out[OB_UUID_TEXT])
{
    static const char hex[] = "0123456789abcdef";
    char *p = out;

    for (int i = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            *p++ = '-';
        *p++ = hex[in[i] >> 4];
        *p++ = hex[in[i] & 15];
    }
    *p = '\0';
}

void ob_uuid7_text(char out[OB_UUID_TEXT])
{
    uint8_t id[16];

    ob_uuid7(id);
    ob_uuid_format(id, out);
}
