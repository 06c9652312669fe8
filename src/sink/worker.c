/* SPDX-License-Identifier: Apache-2.0 */
/* worker - a ring and hidden threads behind an eventfd, for sinks whose writes block.
 *
 * The ring is one array in order of acceptance:
 *     reaped <= finished <= taken <= head
 * reaped: done() was called; finished: has its verdict; taken: in a batch; head: accepted. */
#include "sink/worker.h"

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

static const struct ob_backoff backoff_down = {100, 200, 5000, 20};
/* Two writers that fence each other must not flood the folder with files set aside. */
static const struct ob_backoff backoff_fenced = {250, 200, 60000, 20};

struct ob_worker {
    struct ob_sink_env env;
    const struct ob_worker_ops *ops;
    void *user;
    size_t cap;
    struct ob_worker_item *ring;
    int fd;
    pthread_t threads[OB_WORKER_BATCHES];
    struct seat {
        struct ob_worker *w;
        unsigned batch;
    } seats[OB_WORKER_BATCHES];
    unsigned n_threads;

    pthread_mutex_t lock;
    pthread_cond_t cond;
    /* Under the lock: */
    uint64_t head, taken, finished;
    bool preparing, committing; /* some thread does; preparing also covers probe and give-back */
    bool give_back;             /* all without verdict are to be RETURNED */
    bool release;               /* and the outside is to be let go */
    bool probed, down;
    bool stopping;
    bool signalled; /* the eventfd is readable */
    uint64_t failures;
    uint32_t row;      /* failures in a row */
    int64_t failed_ms; /* the last one */
    int64_t probe_ms, stop_ms;
    struct ob_err why; /* of the last failure or reset */
    struct ob_rand rand;

    /* The shard's thread only: */
    uint64_t reaped, seen, barrier;
    enum { UNKNOWN, SAID_UP, SAID_DOWN } said;
};

static int64_t now_ms(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

/* ---- the hidden threads; all with the lock held ---- */

static void signal_shard(struct ob_worker *w)
{
    if (w->signalled)
        return;
    w->signalled = true;
    uint64_t one = 1;
    ssize_t n = write(w->fd, &one, sizeof(one)); /* cannot fail: the count is at most 1 */
    (void)n;
}

static bool expired(const struct ob_worker *w)
{
    return w->stopping && now_ms() >= w->stop_ms;
}

/* Until something changes, or until the next thing that is due by time. */
static void wait_change(struct ob_worker *w)
{
    int64_t until = INT64_MAX;
    if (w->down && !w->preparing && !w->committing && !w->give_back)
        until = w->probe_ms;
    if (w->stopping && w->stop_ms < until)
        until = w->stop_ms;
    if (until == INT64_MAX) {
        pthread_cond_wait(&w->cond, &w->lock);
        return;
    }
    struct timespec ts = {.tv_sec = until / 1000, .tv_nsec = (until % 1000) * 1000000};
    pthread_cond_timedwait(&w->cond, &w->lock, &ts);
}

static void fail(struct ob_worker *w, enum ob_status st, const struct ob_err *err)
{
    int64_t now = now_ms();
    w->row = now - w->failed_ms < CALM_MS ? w->row + 1 : 1;
    w->failed_ms = now;
    w->probe_ms =
        now + ob_backoff_ms(st == OB_FENCED ? &backoff_fenced : &backoff_down, w->row, &w->rand);
    w->why = *err;
    if (!w->down) {
        w->down = true;
        w->failures++;
        w->give_back = true;
    }
    signal_shard(w);
}

/* Nobody prepares or commits: no borrowed byte of what is given back is being read. */
static void give_back(struct ob_worker *w)
{
    while (w->release) {
        w->release = false;
        pthread_mutex_unlock(&w->lock);
        w->ops->release(w->user);
        pthread_mutex_lock(&w->lock);
    }
    for (uint64_t i = w->finished; i < w->head; i++)
        w->ring[i % w->cap].verdict = OB_V_RETURNED;
    w->finished = w->taken = w->head;
    w->give_back = false;
    signal_shard(w);
}

static void probe(struct ob_worker *w)
{
    struct ob_err err = {0};
    pthread_mutex_unlock(&w->lock);
    enum ob_status st = w->ops->probe(w->user, &err);
    pthread_mutex_lock(&w->lock);
    w->probed = true;
    if (st != OB_OK) {
        fail(w, st, &err);
        return;
    }
    w->down = false;
    signal_shard(w);
}

/* Adds what was submitted to the batch until it may be committed. False: it must not be. */
static bool prepare(struct ob_worker *w, unsigned batch)
{
    bool full = false;
    while (!w->give_back && !expired(w)) {
        if (!full && w->taken < w->head) {
            size_t at = w->taken % w->cap, n = w->head - w->taken;
            if (n > w->cap - at)
                n = w->cap - at;
            size_t want = n;
            struct ob_err err = {0};
            pthread_mutex_unlock(&w->lock);
            enum ob_status st = w->ops->prepare(w->user, batch, w->ring + at, &n, &err);
            pthread_mutex_lock(&w->lock);
            w->taken += n;
            full = n < want;
            if (st != OB_OK && !w->down)
                fail(w, st, &err);
        } else if (w->committing) {
            wait_change(w);
        } else {
            return true;
        }
    }
    return false;
}

/* Has the right to prepare; passes it on while it commits. */
static void run_batch(struct ob_worker *w, unsigned batch)
{
    bool ready = prepare(w, batch);
    uint64_t end = w->taken;
    struct ob_err err = {0};
    enum ob_status st = OB_AGAIN;
    w->committing = w->committing || ready;
    if (ready) {
        w->preparing = false;
        pthread_cond_broadcast(&w->cond);
    }
    pthread_mutex_unlock(&w->lock);
    if (ready)
        st = w->ops->commit(w->user, batch, &err);
    if (st != OB_OK)
        w->ops->discard(w->user, batch);
    pthread_mutex_lock(&w->lock);
    if (!ready) {
        w->preparing = false;
        return;
    }
    w->committing = false;
    if (st == OB_OK) {
        w->finished = end;
        signal_shard(w);
    } else {
        fail(w, st, &err);
    }
}

enum work { WAIT, END, GIVE_BACK, PROBE, BATCH };

static enum work choose(const struct ob_worker *w)
{
    if (w->stopping && (w->down || w->give_back || w->taken == w->head || expired(w)))
        return END;
    if (w->preparing)
        return WAIT;
    if (w->give_back)
        return w->committing ? WAIT : GIVE_BACK;
    if (!w->probed || (w->down && now_ms() >= w->probe_ms))
        return PROBE;
    return !w->down && w->taken < w->head ? BATCH : WAIT;
}

static void *run(void *arg)
{
    struct seat *seat = arg;
    struct ob_worker *w = seat->w;
    pthread_mutex_lock(&w->lock);
    for (enum work work = choose(w); work != END; work = choose(w)) {
        if (work == WAIT) {
            wait_change(w);
            continue;
        }
        w->preparing = true;
        if (work == BATCH) {
            run_batch(w, seat->batch);
        } else {
            if (work == PROBE)
                probe(w);
            else
                give_back(w);
            w->preparing = false;
        }
        pthread_cond_broadcast(&w->cond);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

/* ---- the shard's thread ---- */

static enum ob_status start(struct ob_worker *w, struct ob_err *err)
{
    /* Signals belong to the program's own threads; SIGPIPE stays pending here and ends nobody. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = 0;
    for (unsigned i = 0; i < OB_WORKER_BATCHES && rc == 0; i++) {
        w->seats[i] = (struct seat){w, i};
        rc = pthread_create(&w->threads[i], NULL, run, &w->seats[i]);
        w->n_threads += rc == 0;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0)
        return ob_err_set(err, OB_FATAL, "cannot start a thread: %s", strerror(rc));
    return OB_OK;
}

enum ob_status ob_worker_open(const struct ob_sink_env *env, const struct ob_worker_ops *ops,
                              void *user, size_t cap, struct ob_worker **out, struct ob_err *err)
{
    struct ob_worker *w = calloc(1, sizeof(*w));
    struct ob_worker_item *ring = calloc(cap, sizeof(*ring));
    int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (!w || !ring || fd < 0) {
        free(w);
        free(ring);
        if (fd >= 0)
            close(fd);
        return ob_err_set(err, OB_FATAL, "cannot start a writer: %s",
                          fd < 0 ? strerror(errno) : "no memory");
    }
    w->env = *env;
    w->ops = ops;
    w->user = user;
    w->cap = cap;
    w->ring = ring;
    w->fd = fd;
    w->failed_ms = -CALM_MS;
    w->rand.state = (uint64_t)now_ms() ^ (uint64_t)(uintptr_t)w;
    pthread_mutex_init(&w->lock, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&w->cond, &attr);
    pthread_condattr_destroy(&attr);
    enum ob_status st = start(w, err);
    if (st != OB_OK) {
        ob_worker_close(w, 0);
        return st;
    }
    *out = w;
    return OB_OK;
}

int ob_worker_fd(const struct ob_worker *w)
{
    return w->fd;
}

enum ob_status ob_worker_submit(struct ob_worker *w, const struct ob_msg *const *msgs,
                                const uint64_t *tokens, size_t *n, struct ob_err *err)
{
    enum ob_status st = OB_OK;
    size_t taken = 0;
    pthread_mutex_lock(&w->lock);
    if (w->down || w->failures != w->seen) {
        st = ob_err_set(err, OB_DOWN, "%s", w->why.text);
    } else if (!w->give_back && w->reaped >= w->barrier) {
        /* Else some are on their way back, and what is taken now would overtake them. */
        size_t room = w->cap - (size_t)(w->head - w->reaped);
        taken = *n < room ? *n : room;
        for (size_t i = 0; i < taken; i++)
            w->ring[(w->head + i) % w->cap] =
                (struct ob_worker_item){.msg = msgs[i], .token = tokens[i]};
        w->head += taken;
        if (taken > 0)
            pthread_cond_broadcast(&w->cond);
    }
    pthread_mutex_unlock(&w->lock);
    *n = taken;
    return st;
}

static void done(struct ob_worker *w, const struct ob_worker_item *item, const struct ob_err *why)
{
    struct ob_err err;
    switch (item->verdict) {
    case OB_V_DELIVERED:
        w->env.events->done(w->env.user, item->token, OB_V_DELIVERED, NULL);
        break;
    case OB_V_REJECT:
        ob_err_set(&err, OB_REJECT, "its line of %zu bytes would be longer than max_line",
                   item->size);
        w->env.events->done(w->env.user, item->token, OB_V_REJECT, &err);
        break;
    default:
        w->env.events->done(w->env.user, item->token, item->verdict, why);
    }
}

void ob_worker_poll(struct ob_worker *w)
{
    pthread_mutex_lock(&w->lock);
    uint64_t finished = w->finished, failures = w->failures;
    bool up = w->probed && !w->down, returned = !w->give_back;
    struct ob_err why = w->why;
    if (w->signalled) {
        uint64_t count;
        ssize_t n = read(w->fd, &count, sizeof(count));
        (void)n;
        w->signalled = false;
    }
    pthread_mutex_unlock(&w->lock);

    /* The state first: whoever is given something back knows already that it is of no use to submit
     * it again at once. */
    if (failures != w->seen && w->said != SAID_DOWN) {
        w->said = SAID_DOWN;
        w->env.events->state(w->env.user, OB_SINK_DOWN, 0, &why);
    }
    for (; w->reaped < finished; w->reaped++)
        done(w, &w->ring[w->reaped % w->cap], &why);
    if (returned) /* all of it is known, so what is submitted from now on stands behind it */
        w->seen = failures;
    if (up && returned && w->said != SAID_UP) {
        w->said = SAID_UP;
        w->env.events->state(w->env.user, OB_SINK_UP, 0, NULL);
    }
}

void ob_worker_reset(struct ob_worker *w)
{
    pthread_mutex_lock(&w->lock);
    w->barrier = w->head;
    w->give_back = w->release = true;
    if (w->said == SAID_UP)
        w->said = UNKNOWN; /* whoever reset it is told when it may be used again */
    if (!w->down)
        ob_err_set(&w->why, OB_DOWN, "given back: the sink was reset");
    pthread_cond_broadcast(&w->cond);
    pthread_mutex_unlock(&w->lock);
}

bool ob_worker_expired(struct ob_worker *w)
{
    pthread_mutex_lock(&w->lock);
    bool yes = expired(w);
    pthread_mutex_unlock(&w->lock);
    return yes;
}

void ob_worker_close(struct ob_worker *w, int grace_ms)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->stopping = true;
    w->stop_ms = now_ms() + grace_ms;
    pthread_cond_broadcast(&w->cond);
    pthread_mutex_unlock(&w->lock);
    for (unsigned i = 0; i < w->n_threads; i++)
        pthread_join(w->threads[i], NULL);
    pthread_cond_destroy(&w->cond);
    pthread_mutex_destroy(&w->lock);
    close(w->fd);
    free(w->ring);
    free(w);
}
