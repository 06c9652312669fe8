/* SPDX-License-Identifier: Apache-2.0 */
/* pump_thread - the hidden thread of a pump: connects, sends, listens, waits. */
#include "core/backoff.h"
#include "sink/pump_state.h"

#include <stdlib.h>

static const struct ob_backoff backoff_down = {100, 200, 5000, 20};

/* The connection is gone: no borrowed byte of what is given back is being read. */
static void give_back(struct ob_pump *p)
{
    size_t n;
    struct slot **live = ob_pump_in_flight(p, &n);
    for (size_t i = 0; i < n; i++)
        ob_pump_finish(p, live[i], OB_V_RETURNED, NULL);
    if (!live) { /* no memory: in any order is better than never */
        for (size_t i = 0; i < p->cap; i++)
            if (p->slots[i].state == QUEUED || p->slots[i].state == SENT)
                ob_pump_finish(p, &p->slots[i], OB_V_RETURNED, NULL);
    }
    free(live);
    p->taken = p->queued;
    p->hand_at = p->hand_n = 0;
    p->barrier = p->ended;
    p->held = false;
}

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
    ob_pump_signal_shard(p);
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
    ob_pump_signal_shard(p);
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
    ob_pump_signal_shard(p);
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
        ob_pump_finish(p, s, OB_V_RETRY, "no acknowledgement within publish_timeout");
    }
    pthread_mutex_unlock(&p->lock);
}

/* Takes the next ones if the last are all sent. Whether there are some that may be sent. */
static bool take_hand(struct ob_pump *p)
{
    bool next = p->hand_at == p->hand_n;
    if (next)
        p->hand_at = p->hand_n = 0;
    pthread_mutex_lock(&p->lock);
    bool held = p->held;
    for (; next && p->taken < p->queued && p->hand_n < p->ops->hand && !held; p->taken++) {
        uint32_t i = p->queue[p->taken % p->cap];
        if (i == UINT32_MAX)
            continue; /* cancelled */
        p->slots[i].state = SENT;
        p->hand[p->hand_n++] = (struct hand){p->slots[i].ticket, p->slots[i].msg};
    }
    pthread_mutex_unlock(&p->lock);
    return p->hand_at < p->hand_n && !held;
}

/* Sends and listens until there is nothing to send or no room. */
static void serve(struct ob_pump *p)
{
    for (;;) {
        struct ob_err err = {.text = ""};
        enum ob_status st = OB_OK;
        bool some = take_hand(p);
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
        ob_pump_silence(p->wake_fd);
        p->woken = false;
    }
    pthread_mutex_unlock(&p->lock);
}

/* What the shard wants, looked at in one step. end: with nothing to wait for, or no time left. */
struct wishes {
    bool end, reset, cancel;
};

static struct wishes look(struct ob_pump *p)
{
    struct wishes w;
    pthread_mutex_lock(&p->lock);
    bool idle = p->n_free + (size_t)(p->ended - p->reaped) == p->cap;
    w.end = p->stopping && (idle || p->down || ob_pump_now_ms() >= p->stop_ms);
    w.reset = p->reset;
    w.cancel = p->n_cancel > 0;
    pthread_mutex_unlock(&p->lock);
    return w;
}

void *ob_pump_run(void *arg)
{
    struct ob_pump *p = arg;
    for (struct wishes w = look(p); !w.end; w = look(p)) {
        if (w.reset)
            do_reset(p);
        else if (w.cancel)
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
