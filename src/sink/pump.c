/* SPDX-License-Identifier: Apache-2.0 */
/* pump - a queue into a hidden thread that holds a connection, and verdicts out of it: the sides of
 * the shard and of whoever has a verdict. */
#include "sink/pump_state.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

int64_t ob_pump_now_ms(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

static void ring(int fd)
{
    uint64_t one = 1;
    ssize_t n = write(fd, &one, sizeof(one)); /* cannot fail: the count stays small */
    (void)n;
}

void ob_pump_silence(int fd)
{
    uint64_t count;
    ssize_t n = read(fd, &count, sizeof(count));
    (void)n;
}

void ob_pump_signal_shard(struct ob_pump *p)
{
    if (p->signalled)
        return;
    p->signalled = true;
    ring(p->fd);
}

void ob_pump_wake_thread(struct ob_pump *p)
{
    if (p->woken)
        return;
    p->woken = true;
    ring(p->wake_fd);
}

void ob_pump_finish(struct ob_pump *p, struct slot *s, enum ob_verdict verdict, const char *why)
{
    s->state = DONE;
    s->verdict = verdict;
    s->why = why ? strdup(why) : NULL;
    p->n_cancel -= s->cancel;
    s->cancel = false;
    p->over[p->ended++ % p->cap] = (uint32_t)(s - p->slots);
    ob_pump_signal_shard(p);
}

static int by_ticket(const void *a, const void *b)
{
    const struct slot *const *x = a, *const *y = b;
    return (*x)->ticket < (*y)->ticket ? -1 : (*x)->ticket > (*y)->ticket;
}

struct slot **ob_pump_in_flight(struct ob_pump *p, size_t *n)
{
    struct slot **live = malloc(p->cap * sizeof(struct slot *));
    *n = 0;
    for (size_t i = 0; live && i < p->cap; i++)
        if (p->slots[i].state == QUEUED || p->slots[i].state == SENT)
            live[(*n)++] = &p->slots[i];
    if (live)
        qsort(live, *n, sizeof(struct slot *), by_ticket);
    return live;
}

/* ---- verdicts, from any thread ---- */

bool ob_pump_done(struct ob_pump *p, uint64_t ticket, enum ob_verdict verdict, const char *why)
{
    pthread_mutex_lock(&p->lock);
    struct slot *s = &p->slots[ticket % p->cap];
    bool mine = s->ticket == ticket && s->state == SENT;
    if (mine)
        ob_pump_finish(p, s, verdict, why);
    pthread_mutex_unlock(&p->lock);
    return mine;
}

bool ob_pump_waits(struct ob_pump *p, uint64_t ticket)
{
    pthread_mutex_lock(&p->lock);
    const struct slot *s = &p->slots[ticket % p->cap];
    bool waits = s->ticket == ticket && s->state == SENT;
    pthread_mutex_unlock(&p->lock);
    return waits;
}

void ob_pump_delivered(struct ob_pump *p, const uint64_t *tickets, size_t n)
{
    pthread_mutex_lock(&p->lock);
    for (size_t i = 0; i < n; i++) {
        struct slot *s = &p->slots[tickets[i] % p->cap];
        if (s->ticket == tickets[i] && s->state == SENT)
            ob_pump_finish(p, s, OB_V_DELIVERED, NULL);
    }
    pthread_mutex_unlock(&p->lock);
}

void ob_pump_wake(struct ob_pump *p)
{
    pthread_mutex_lock(&p->lock);
    ob_pump_wake_thread(p);
    pthread_mutex_unlock(&p->lock);
}

void ob_pump_hold(struct ob_pump *p, const struct ob_err *why)
{
    pthread_mutex_lock(&p->lock);
    if (!p->down) {
        p->down = p->held = true;
        p->failures++;
        p->why = *why;
        ob_pump_signal_shard(p);
    }
    pthread_mutex_unlock(&p->lock);
}

void ob_pump_unhold(struct ob_pump *p)
{
    pthread_mutex_lock(&p->lock);
    if (p->held) {
        p->down = p->held = false;
        ob_pump_signal_shard(p);
        ob_pump_wake_thread(p);
    }
    pthread_mutex_unlock(&p->lock);
}

void ob_pump_each(struct ob_pump *p, void (*fn)(void *arg, uint64_t ticket, const struct ob_msg *m),
                  void *arg)
{
    size_t n;
    pthread_mutex_lock(&p->lock);
    struct slot **live = ob_pump_in_flight(p, &n);
    for (size_t i = 0; i < n; i++)
        if (live[i]->state == SENT)
            fn(arg, live[i]->ticket, live[i]->msg);
    pthread_mutex_unlock(&p->lock);
    free(live);
}

uint64_t ob_pump_fence(struct ob_pump *p, const char *why)
{
    pthread_mutex_lock(&p->lock);
    for (size_t h = p->hand_at; h < p->hand_n; h++) {
        struct slot *s = &p->slots[p->hand[h].ticket % p->cap];
        if (p->hand[h].msg && s->ticket == p->hand[h].ticket && s->state == SENT)
            ob_pump_finish(p, s, OB_V_RETURNED, why);
        p->hand[h].msg = NULL;
    }
    for (; p->taken < p->queued; p->taken++)
        if (p->queue[p->taken % p->cap] != UINT32_MAX)
            ob_pump_finish(p, &p->slots[p->queue[p->taken % p->cap]], OB_V_RETURNED, why);
    p->barrier = p->ended;
    uint64_t last = p->round * p->cap + p->cap - 1;
    pthread_mutex_unlock(&p->lock);
    return last;
}

/* ---- the shard's thread ---- */

static enum ob_status start(struct ob_pump *p, struct ob_err *err)
{
    /* Signals belong to the program's own threads; SIGPIPE stays pending here and ends nobody. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&p->thread, NULL, ob_pump_run, p);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0)
        return ob_err_set(err, OB_DOWN, "cannot start a thread: %s", strerror(rc));
    p->started = true;
    return OB_OK;
}

enum ob_status ob_pump_open(const struct ob_sink_env *env, const struct ob_pump_ops *ops,
                            void *user, size_t cap, struct ob_pump **out, struct ob_err *err)
{
    struct ob_pump *p = calloc(1, sizeof(*p));
    if (!p)
        return ob_err_set(err, OB_DOWN, "not enough memory for the sink's queue");
    p->env = *env;
    p->ops = ops;
    p->user = user;
    p->cap = p->n_free = cap;
    p->failed_ms = -CALM_MS;
    p->rand.state = (uint64_t)ob_pump_now_ms() ^ (uint64_t)(uintptr_t)p;
    pthread_mutex_init(&p->lock, NULL);
    p->slots = calloc(cap, sizeof(*p->slots));
    p->queue = calloc(cap, sizeof(*p->queue));
    p->over = calloc(cap, sizeof(*p->over));
    p->free = calloc(cap, sizeof(*p->free));
    p->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    p->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    enum ob_status st = OB_OK;
    if (!p->slots || !p->queue || !p->over || !p->free || p->fd < 0 || p->wake_fd < 0)
        st = ob_err_set(err, OB_DOWN, "cannot create the sink's queue: %s", strerror(errno));
    for (size_t i = 0; st == OB_OK && i < cap; i++)
        p->free[i] = (uint32_t)(cap - 1 - i);
    *out = p; /* before its thread, which calls what uses it */
    if (st == OB_OK)
        st = start(p, err);
    if (st != OB_OK) {
        *out = NULL;
        ob_pump_close(p, 0);
    }
    return st;
}

int ob_pump_fd(const struct ob_pump *p)
{
    return p->fd;
}

enum ob_status ob_pump_submit(struct ob_pump *p, const struct ob_msg *const *msgs,
                              const uint64_t *tokens, size_t *n, struct ob_err *err)
{
    enum ob_status st = OB_OK;
    size_t taken = 0;
    pthread_mutex_lock(&p->lock);
    if (p->down || p->failures != p->seen) {
        st = ob_err_set(err, OB_DOWN, "%s", p->why.text);
    } else if (!p->reset && p->reaped >= p->barrier) {
        /* Else some are on their way back, and what is taken now would overtake them. */
        for (; taken < *n && p->n_free > 0; taken++) {
            uint32_t i = p->free[--p->n_free];
            p->slots[i] = (struct slot){.ticket = ++p->round * p->cap + i,
                                        .token = tokens[taken],
                                        .msg = msgs[taken],
                                        .state = QUEUED};
            p->queue[p->queued++ % p->cap] = i;
        }
        if (taken > 0)
            ob_pump_wake_thread(p);
    }
    pthread_mutex_unlock(&p->lock);
    *n = taken;
    return st;
}

static void tell(struct ob_pump *p, const struct slot *s, const struct ob_err *why)
{
    struct ob_err own;
    if (s->verdict == OB_V_DELIVERED && !s->why) {
        p->env.events->done(p->env.user, s->token, s->verdict, NULL);
        return;
    }
    if (s->why) {
        ob_err_set(&own, s->verdict == OB_V_REJECT ? OB_REJECT : OB_RETRY, "%s", s->why);
        why = &own;
    }
    p->env.events->done(p->env.user, s->token, s->verdict, why);
}

void ob_pump_poll(struct ob_pump *p)
{
    pthread_mutex_lock(&p->lock);
    uint64_t ended = p->ended, failures = p->failures, reaped = p->reaped;
    bool up = p->ready && !p->down && !p->reset && ended >= p->barrier;
    struct ob_err why = p->why;
    if (p->signalled) {
        ob_pump_silence(p->fd);
        p->signalled = false;
    }
    pthread_mutex_unlock(&p->lock);
    if (!why.text[0])
        ob_err_set(&why, OB_DOWN, "given back");

    /* The state first: whoever is given something back knows already that it is of no use to submit
     * it again at once. */
    if (failures != p->seen && p->said != SAID_DOWN) {
        p->said = SAID_DOWN;
        p->env.events->state(p->env.user, OB_SINK_DOWN, 0, &why);
    }
    for (uint64_t i = reaped; i < ended; i++) { /* DONE slots belong to this thread */
        struct slot *s = &p->slots[p->over[i % p->cap]];
        tell(p, s, &why);
        free(s->why);
        s->why = NULL;
    }
    pthread_mutex_lock(&p->lock);
    for (; p->reaped < ended; p->reaped++) {
        uint32_t i = p->over[p->reaped % p->cap];
        p->slots[i].state = FREE;
        p->free[p->n_free++] = i;
    }
    p->seen = failures;
    pthread_mutex_unlock(&p->lock);
    if (up && p->said != SAID_UP) {
        p->said = SAID_UP;
        p->env.events->state(p->env.user, OB_SINK_UP, 0, NULL);
    }
}

void ob_pump_cancel(struct ob_pump *p, uint64_t token)
{
    pthread_mutex_lock(&p->lock);
    for (size_t i = 0; i < p->cap; i++) {
        struct slot *s = &p->slots[i];
        if (s->token != token || s->cancel || (s->state != QUEUED && s->state != SENT))
            continue;
        s->cancel = true;
        p->n_cancel++;
        ob_pump_wake_thread(p);
    }
    pthread_mutex_unlock(&p->lock);
}

void ob_pump_reset(struct ob_pump *p)
{
    pthread_mutex_lock(&p->lock);
    p->reset = true;
    if (p->said == SAID_UP)
        p->said = UNKNOWN; /* whoever reset it is told when it may be used again */
    ob_pump_wake_thread(p);
    pthread_mutex_unlock(&p->lock);
}

void ob_pump_close(struct ob_pump *p, int grace_ms)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->stopping = true;
    p->stop_ms = ob_pump_now_ms() + grace_ms;
    ob_pump_wake_thread(p);
    pthread_mutex_unlock(&p->lock);
    if (p->started)
        pthread_join(p->thread, NULL);
    pthread_mutex_destroy(&p->lock);
    for (size_t i = 0; p->slots && i < p->cap; i++)
        free(p->slots[i].why);
    if (p->fd >= 0)
        close(p->fd);
    if (p->wake_fd >= 0)
        close(p->wake_fd);
    free(p->slots);
    free(p->queue);
    free(p->over);
    free(p->free);
    free(p);
}
