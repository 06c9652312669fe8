/* SPDX-License-Identifier: Apache-2.0 */
/* pump_state - what the two halves of the pump share: pump.c for the shard's thread and for
 * whoever has a verdict, pump_thread.c for the hidden thread. Nobody else includes it.
 *
 * A slot is FREE, QUEUED (accepted), SENT (taken by the thread) or DONE (has its verdict, waits for
 * poll()). Two rings of slot numbers: `queue` from the shard to the thread, `over` back. */
#ifndef OB_SINK_PUMP_STATE_H
#define OB_SINK_PUMP_STATE_H

#include "core/rand.h"
#include "sink/pump.h"

#include <pthread.h>

/* Failures closer together than this count as one row of failures for the back-off. */
#define CALM_MS 10000

enum slot_state { FREE, QUEUED, SENT, DONE };

struct slot {
    uint64_t ticket, token;
    const struct ob_msg *msg;
    char *why; /* NULL: the connection's reason */
    enum slot_state state;
    enum ob_verdict verdict;
    bool cancel;
};

struct ob_pump {
    struct ob_sink_env env;
    const struct ob_pump_ops *ops;
    void *user;
    size_t cap;
    int fd, wake_fd;
    pthread_t thread;
    bool started;

    pthread_mutex_t lock;
    /* Under the lock: */
    struct slot *slots;
    uint32_t *queue, *over, *free;
    uint64_t queued, taken; /* put into and taken out of `queue` so far */
    uint64_t ended, reaped; /* likewise `over`; reaped by the shard's thread */
    uint64_t barrier;       /* nothing is accepted before so many were reaped */
    size_t n_free, n_cancel;
    uint64_t round; /* of the tickets */
    bool down, held, ready, reset, stopping;
    bool signalled, woken;
    uint64_t failures;
    int64_t stop_ms;
    struct ob_err why;

    /* The hidden thread only: */
    bool connected;
    int64_t retry_ms, failed_ms;
    uint32_t row;
    struct ob_rand rand;
    struct hand {
        uint64_t ticket;
        const struct ob_msg *msg;
    } hand[OB_PUMP_HAND];
    size_t hand_at, hand_n;

    /* The shard's thread only: */
    uint64_t seen;
    enum { UNKNOWN, SAID_UP, SAID_DOWN } said;
};

/* With the lock held, all of these. */
void ob_pump_signal_shard(struct ob_pump *p);
void ob_pump_wake_thread(struct ob_pump *p);
void ob_pump_finish(struct ob_pump *p, struct slot *s, enum ob_verdict verdict, const char *why);
/* Those in flight in the order in which they were submitted; the caller frees. */
struct slot **ob_pump_in_flight(struct ob_pump *p, size_t *n);
void ob_pump_silence(int fd);

/* The thread's function; arg is the pump. */
void *ob_pump_run(void *arg);

#endif
