/* SPDX-License-Identifier: Apache-2.0 */
/* pump - a queue into a hidden thread that holds a connection, and verdicts out of it.
 *
 * A slot is FREE, QUEUED (accepted), SENT (taken by the thread) or DONE (has its verdict, waits for
 * poll()). Two rings of slot numbers: `queue` from the shard to the thread, `over` back. */
#include "sink/pump.h"

#include "core/backoff.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

/* Failures closer together than this count as one row of failures for the back-off. */
#define CALM_MS 10000
/* Messages that the thread takes at once. */
#define HAND 256

static const struct ob_backoff backoff_down = {100, 200, 5000, 20};

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
    } hand[HAND];
    size_t hand_at, hand_n;

    /* The shard's thread only: */
    uint64_t seen;
    enum { UNKNOWN, SAID_UP, SAID_DOWN } said;
};

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

static void silence(int fd)
{
    uint64_t count;
    ssize_t n = read(fd, &count, sizeof(count));
    (void)n;
}

/* With the lock held. */
static void signal_shard(struct ob_pump *p)
{
    if (p->signalled)
        return;
    p->signalled = true;
    ring(p->fd);
}

static void wake(struct ob_pump *p)
{
    if (p->woken)
        return;
    p->woken = true;
    ring(p->wake_fd);
}

static void finish(struct ob_pump *p, struct slot *s, enum ob_verdict verdict, const char *why)
{
    s->state = DONE;
    s->verdict = verdict;
    s->why = why ? strdup(why) : NULL;
    p->n_cancel -= s->cancel;
    s->cancel = false;
    p->over[p->ended++ % p->cap] = (uint32_t)(s - p->slots);
    signal_shard(p);
}

static int by_ticket(const void *a, const void *b)
{
    const struct slot *const *x = a, *const *y = b;
    return (*x)->ticket < (*y)->ticket ? -1 : (*x)->ticket > (*y)->ticket;
}

/* Those in flight in the order in which they were submitted; the caller frees. */
static struct slot **in_flight(struct ob_pump *p, size_t *n)
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

/* The connection is gone: no borrowed byte of what is given back is being read. */
static void give_back(struct ob_pump *p)
{
    size_t n;
    struct slot **live = in_flight(p, &n);
    for (size_t i = 0; i < n; i++)
        finish(p, live[i], OB_V_RETURNED, NULL);
    if (!live) { /* no memory: in any order is better than never */
        for (size_t i = 0; i < p->cap; i++)
            if (p->slots[i].state == QUEUED || p->slots[i].state == SENT)
                finish(p, &p->slots[i], OB_V_RETURNED, NULL);
    }
    free(live);
    p->taken = p->queued;
    p->hand_at = p->hand_n = 0;
    p->barrier = p->ended;
    p->held = false;
}

/* ---- the hidden thread ---- */

static void lost(struct ob_pump *p, const struct ob_err *err)
{
    int64_t now = ob_pump_now_ms();
    if (p->connected)
        p->ops->disconnect(p->user);
    p->connected = false;
    p->row = now - p->failed_ms < CALM_MS ? p->row + 1 : 1;
    p->failed_ms = now;
    p->retry_ms = now + ob_backoff_ms(&backoff_down, p->row, &p->rand);
    pthread_mutex_lock(&p->lock);
    p->why = *err;
    p->ready = false;
    if (!p->down || p->held)
        p->failures++;
    p->down = true;
    give_back(p);
    signal_shard(p);
    pthread_mutex_unlock(&p->lock);
}

static void try_connect(struct ob_pump *p)
{
    struct ob_err err = {.text = ""};
    if (p->ops->connect(p->user, &err) != OB_OK) {
        p->failed_ms =
            p->row > 0 ? ob_pump_now_ms() : p->failed_ms; /* slow failures are a row too */
        lost(p, &err);
        return;
    }
    p->connected = true;
    pthread_mutex_lock(&p->lock);
    p->down = false;
    p->ready = true;
    signal_shard(p);
    pthread_mutex_unlock(&p->lock);
}

static void do_reset(struct ob_pump *p)
{
    if (p->connected)
        p->ops->disconnect(p->user);
    p->connected = false;
    p->retry_ms = 0;
    pthread_mutex_lock(&p->lock);
    if (p->held)
        p->down = false;
    if (!p->down)
        ob_err_set(&p->why, OB_DOWN, "given back: the sink was reset");
    p->ready = false;
    give_back(p);
    p->reset = false;
    signal_shard(p);
    pthread_mutex_unlock(&p->lock);
}

/* Only the thread ends a wait, so that nobody frees a message that it is about to send. */
static void do_cancel(struct ob_pump *p)
{
    pthread_mutex_lock(&p->lock);
    for (size_t i = 0; i < p->cap && p->n_cancel > 0; i++) {
        struct slot *s = &p->slots[i];
        if (!s->cancel)
            continue;
        for (size_t h = p->hand_at; h < p->hand_n; h++)
            if (p->hand[h].ticket == s->ticket)
                p->hand[h].msg = NULL;
        for (uint64_t q = p->taken; q < p->queued; q++)
            if (&p->slots[p->queue[q % p->cap]] == s)
                p->queue[q % p->cap] = UINT32_MAX;
        finish(p, s, OB_V_RETRY, "no acknowledgement within publish_timeout");
    }
    pthread_mutex_unlock(&p->lock);
}

static void take_hand(struct ob_pump *p)
{
    p->hand_at = p->hand_n = 0;
    pthread_mutex_lock(&p->lock);
    for (; p->taken < p->queued && p->hand_n < HAND && !p->held; p->taken++) {
        uint32_t i = p->queue[p->taken % p->cap];
        if (i == UINT32_MAX)
            continue; /* cancelled */
        p->slots[i].state = SENT;
        p->hand[p->hand_n++] = (struct hand){p->slots[i].ticket, p->slots[i].msg};
    }
    pthread_mutex_unlock(&p->lock);
}

static bool is_held(struct ob_pump *p)
{
    pthread_mutex_lock(&p->lock);
    bool held = p->held;
    pthread_mutex_unlock(&p->lock);
    return held;
}

/* Sends and listens until there is nothing to send or no room. */
static void serve(struct ob_pump *p)
{
    for (;;) {
        struct ob_err err = {.text = ""};
        enum ob_status st = OB_OK;
        if (p->hand_at == p->hand_n)
            take_hand(p);
        bool some = p->hand_at < p->hand_n && !is_held(p);
        while (some && st == OB_OK && p->hand_at < p->hand_n) {
            struct hand *h = &p->hand[p->hand_at];
            if (h->msg)
                st = p->ops->send(p->user, h->ticket, h->msg, &err);
            p->hand_at += st == OB_OK;
        }
        if (st == OB_OK || st == OB_AGAIN) {
            enum ob_status in = p->ops->turn(p->user, &err);
            st = in == OB_OK ? st : in;
        }
        if (st != OB_OK && st != OB_AGAIN) {
            lost(p, &err);
            return;
        }
        if (!some || st == OB_AGAIN)
            return;
    }
}

static void wait_change(struct ob_pump *p)
{
    struct pollfd fds[2] = {{.fd = p->wake_fd, .events = POLLIN}, {.fd = -1}};
    int64_t until = INT64_MAX, now = ob_pump_now_ms();
    if (p->connected)
        p->ops->wait(p->user, &fds[1], &until);
    else
        until = p->retry_ms;
    pthread_mutex_lock(&p->lock);
    if (p->stopping && p->stop_ms < until)
        until = p->stop_ms;
    pthread_mutex_unlock(&p->lock);
    int64_t ms = until == INT64_MAX ? -1 : until > now ? until - now : 0;
    poll(fds, 2, ms > 60000 ? 60000 : (int)ms);
    pthread_mutex_lock(&p->lock);
    if (p->woken) {
        silence(p->wake_fd);
        p->woken = false;
    }
    pthread_mutex_unlock(&p->lock);
}

/* With nothing to wait for, or no time left. */
static bool at_end(struct ob_pump *p)
{
    pthread_mutex_lock(&p->lock);
    bool idle = p->n_free + (size_t)(p->ended - p->reaped) == p->cap;
    bool end = p->stopping && (idle || p->down || ob_pump_now_ms() >= p->stop_ms);
    pthread_mutex_unlock(&p->lock);
    return end;
}

static void *run(void *arg)
{
    struct ob_pump *p = arg;
    while (!at_end(p)) {
        pthread_mutex_lock(&p->lock);
        bool reset = p->reset, cancel = p->n_cancel > 0;
        pthread_mutex_unlock(&p->lock);
        if (reset)
            do_reset(p);
        else if (cancel)
            do_cancel(p);
        if (!p->connected && ob_pump_now_ms() >= p->retry_ms)
            try_connect(p);
        if (p->connected)
            serve(p);
        wait_change(p);
    }
    if (p->connected)
        p->ops->disconnect(p->user);
    p->connected = false;
    return NULL;
}

bool ob_pump_done(struct ob_pump *p, uint64_t ticket, enum ob_verdict verdict, const char *why)
{
    pthread_mutex_lock(&p->lock);
    struct slot *s = &p->slots[ticket % p->cap];
    bool mine = s->ticket == ticket && s->state == SENT;
    if (mine)
        finish(p, s, verdict, why);
    pthread_mutex_unlock(&p->lock);
    return mine;
}

void ob_pump_wake(struct ob_pump *p)
{
    pthread_mutex_lock(&p->lock);
    wake(p);
    pthread_mutex_unlock(&p->lock);
}

void ob_pump_hold(struct ob_pump *p, const struct ob_err *why)
{
    pthread_mutex_lock(&p->lock);
    if (!p->down) {
        p->down = p->held = true;
        p->failures++;
        p->why = *why;
        signal_shard(p);
    }
    pthread_mutex_unlock(&p->lock);
}

void ob_pump_unhold(struct ob_pump *p)
{
    pthread_mutex_lock(&p->lock);
    if (p->held) {
        p->down = p->held = false;
        signal_shard(p);
        wake(p);
    }
    pthread_mutex_unlock(&p->lock);
}

void ob_pump_each(struct ob_pump *p, void (*fn)(void *arg, uint64_t ticket, const struct ob_msg *m),
                  void *arg)
{
    size_t n;
    pthread_mutex_lock(&p->lock);
    struct slot **live = in_flight(p, &n);
    for (size_t i = 0; i < n; i++)
        if (live[i]->state == SENT)
            fn(arg, live[i]->ticket, live[i]->msg);
    pthread_mutex_unlock(&p->lock);
    free(live);
}

/* ---- the shard's thread ---- */

static enum ob_status start(struct ob_pump *p, struct ob_err *err)
{
    /* Signals belong to the program's own threads; SIGPIPE stays pending here and ends nobody. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&p->thread, NULL, run, p);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0)
        return ob_err_set(err, OB_FATAL, "cannot start a thread: %s", strerror(rc));
    p->started = true;
    return OB_OK;
}

enum ob_status ob_pump_open(const struct ob_sink_env *env, const struct ob_pump_ops *ops,
                            void *user, size_t cap, struct ob_pump **out, struct ob_err *err)
{
    struct ob_pump *p = calloc(1, sizeof(*p));
    if (!p)
        return ob_err_set(err, OB_FATAL, "no memory");
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
        st = ob_err_set(err, OB_FATAL, "cannot make its queue: %s", strerror(errno));
    for (size_t i = 0; st == OB_OK && i < cap; i++)
        p->free[i] = (uint32_t)(cap - 1 - i);
    if (st == OB_OK)
        st = start(p, err);
    if (st != OB_OK) {
        ob_pump_close(p, 0);
        return st;
    }
    *out = p;
    return OB_OK;
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
            wake(p);
    }
    pthread_mutex_unlock(&p->lock);
    *n = taken;
    return st;
}

static void tell(struct ob_pump *p, const struct slot *s, const struct ob_err *why)
{
    struct ob_err own;
    if (s->verdict == OB_V_DELIVERED) {
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
        silence(p->fd);
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
        wake(p);
    }
    pthread_mutex_unlock(&p->lock);
}

void ob_pump_reset(struct ob_pump *p)
{
    pthread_mutex_lock(&p->lock);
    p->reset = true;
    if (p->said == SAID_UP)
        p->said = UNKNOWN; /* whoever reset it is told when it may be used again */
    wake(p);
    pthread_mutex_unlock(&p->lock);
}

void ob_pump_close(struct ob_pump *p, int grace_ms)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->stopping = true;
    p->stop_ms = ob_pump_now_ms() + grace_ms;
    wake(p);
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
