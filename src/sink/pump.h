/* SPDX-License-Identifier: Apache-2.0 */
/* pump - a queue into a hidden thread that holds a connection, and verdicts out of it in any order,
 * behind an eventfd; for brokers that acknowledge messages one by one.
 *
 * A ticket names one message from submit() to its done(); tickets are never used twice, so that an
 * acknowledgement that comes after a cancel belongs to nobody. When the connection is lost all that
 * has no verdict is given back, in the order in which it was submitted, and nothing is taken until
 * the shard has heard of it (pump_test: what_is_given_back_is_not_overtaken).
 * Thread: the first group from the shard's thread; the ops, hold(), free() and fence() from the
 * hidden one; done(), waits(), delivered() and wake() from
 * any. */
#ifndef OB_SINK_PUMP_H
#define OB_SINK_PUMP_H

#include "sink/sink.h"

#include <poll.h>

struct ob_pump;

struct ob_pump_ops {
    /* Blocks for a bounded time. Not OB_OK: down; tried again after a back-off. */
    enum ob_status (*connect)(void *user, struct ob_err *err);
    /* After it nothing of that connection touches a message or calls ob_pump_done(). */
    void (*disconnect)(void *user);
    /* OB_OK: the verdict follows, or was given inside. OB_AGAIN: no room now, to be given again
     * after the next turn(). OB_DOWN: the connection is lost. */
    enum ob_status (*send)(void *user, uint64_t ticket, const struct ob_msg *msg,
                           struct ob_err *err);
    /* After some were sent, and whenever woken: what came in. OB_DOWN: the connection is lost. */
    enum ob_status (*turn)(void *user, struct ob_err *err);
    /* What to wait for besides new messages; fd starts as -1, *until_ms (monotonic) as INT64_MAX.
     */
    void (*wait)(void *user, struct pollfd *fd, int64_t *until_ms);
    /* So many at most are sent before the next turn(), up to OB_PUMP_HAND. */
    size_t hand;
};

#define OB_PUMP_HAND 256

/* cap: messages accepted and without verdict. OB_DOWN: no memory, file descriptor or thread now. */
enum ob_status ob_pump_open(const struct ob_sink_env *env, const struct ob_pump_ops *ops,
                            void *user, size_t cap, struct ob_pump **out,
                            struct ob_err *err) OB_MUST_CHECK;
int ob_pump_fd(const struct ob_pump *p);
enum ob_status ob_pump_submit(struct ob_pump *p, const struct ob_msg *const *msgs,
                              const uint64_t *tokens, size_t *n, struct ob_err *err);
void ob_pump_poll(struct ob_pump *p);
void ob_pump_cancel(struct ob_pump *p, uint64_t token);
void ob_pump_reset(struct ob_pump *p);
/* Waits for what is under way for at most grace_ms and ends the thread. NULL is fine. */
void ob_pump_close(struct ob_pump *p, int grace_ms);

/* why: NULL when delivered (but see struct ob_sink_events). A ticket that is over already changes
 * nothing: false. */
bool ob_pump_done(struct ob_pump *p, uint64_t ticket, enum ob_verdict verdict, const char *why);
/* Whether a message that was sent has no verdict yet: it may have been cancelled. */
bool ob_pump_waits(struct ob_pump *p, uint64_t ticket);
/* Many that are delivered, in one step. */
void ob_pump_delivered(struct ob_pump *p, const uint64_t *tickets, size_t n);
void ob_pump_wake(struct ob_pump *p);
/* The broker asks for silence: down, but the connection and what is in flight stay. */
void ob_pump_hold(struct ob_pump *p, const struct ob_err *why);
void ob_pump_unhold(struct ob_pump *p);
/* The messages in flight, in order of their tickets; fn must not call the pump. */
void ob_pump_each(struct ob_pump *p, void (*fn)(void *arg, uint64_t ticket, const struct ob_msg *m),
                  void *arg);
/* Everything that was accepted and not sent yet is given back, in order, and nothing is accepted
 * until the shard has heard of that and of all verdicts before it: what it would submit meanwhile
 * stands behind these. Returns the last ticket so far. From the hidden thread; a message that is
 * being sent is among them, and its bytes must not be touched any more. */
uint64_t ob_pump_fence(struct ob_pump *p, const char *why);
int64_t ob_pump_now_ms(void);

#endif
