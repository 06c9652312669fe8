/* SPDX-License-Identifier: Apache-2.0 */
/* worker - a ring and hidden threads behind an eventfd, for sinks whose writes block.
 *
 * Two threads take turns: while one commits (writes and syncs) a batch, the other prepares the next
 * from what has been submitted meanwhile. Commits are one at a time and in order. After a failed
 * commit nothing is committed until everything accepted was given back in poll(), so that no later
 * message overtakes (worker_test: nothing_overtakes_a_failed_batch).
 * Thread: ob_worker_* from the shard's thread; the ops from the hidden ones, never two ops at once
 * except prepare/discard of one batch beside commit of the other. */
#ifndef OB_SINK_WORKER_H
#define OB_SINK_WORKER_H

#include "sink/sink.h"

#define OB_WORKER_BATCHES 2

struct ob_worker;

struct ob_worker_item {
    const struct ob_msg *msg;
    uint64_t token;
    size_t size; /* REJECT: bytes of the line */
    enum ob_verdict verdict;
};

struct ob_worker_ops {
    /* Adds items to a batch and sets each one's verdict (DELIVERED or REJECT) to what it becomes
     * when the commit succeeds. *n: how many were added; fewer than given: the batch is full. */
    enum ob_status (*prepare)(void *user, unsigned batch, struct ob_worker_item *items, size_t *n,
                              struct ob_err *err);
    void (*discard)(void *user, unsigned batch);
    /* Makes the batch durable and empties it. Not OB_OK: none of it counts as delivered and the
     * sink is down; OB_FENCED backs off longer. */
    enum ob_status (*commit)(void *user, unsigned batch, struct ob_err *err);
    /* At start, and while down after each back-off: may it be tried (again)? */
    enum ob_status (*probe)(void *user, struct ob_err *err);
    /* Lets go of what is held outside (file, lock). Used again after the next probe or commit. */
    void (*release)(void *user);
};

/* cap: messages accepted and without verdict. */
enum ob_status ob_worker_open(const struct ob_sink_env *env, const struct ob_worker_ops *ops,
                              void *user, size_t cap, struct ob_worker **out,
                              struct ob_err *err) OB_MUST_CHECK;
int ob_worker_fd(const struct ob_worker *w);
enum ob_status ob_worker_submit(struct ob_worker *w, const struct ob_msg *const *msgs,
                                const uint64_t *tokens, size_t *n, struct ob_err *err);
void ob_worker_poll(struct ob_worker *w);
void ob_worker_reset(struct ob_worker *w);
/* Commits what is queued for at most grace_ms, then ends the threads. A commit under way ends
 * first. NULL is fine. */
void ob_worker_close(struct ob_worker *w, int grace_ms);
/* For ops that can stop half way: close() was called and its grace is over. */
bool ob_worker_expired(struct ob_worker *w);

#endif
