/* SPDX-License-Identifier: Apache-2.0 */
/* lane - a producer of librdkafka: its events, and its end. A producer that failed for good is
 * emptied, buried and replaced; what it had goes back without a verdict on it (contract_test: reset
 * gives back; kafka_mock_test). What was in flight then may be stored twice, with the same id. */
#include "sink/kafka/kafka.h"

#include <stdio.h>
#include <stdlib.h>

#define GENTLE_MS 500 /* for answers that are on their way, before those are given up too */
#define SOLO_MORE 64u /* messages that go alone after a failure, for each time it happened */
#define SOLO_MAX 4096u
#define SIDE_IDLE_MS 30000
#define SPARE_IDLE_MS 60000
#define BULK_FROM 2000 /* so many in flight or offered are a backlog */
#define BULK_LEAST 1000
#define DRY_MS 200 /* main is empty by then, or something hangs in it */
#define STAY_MS 5000
#define BULK_STAY_MS 1000 /* in bulk for so long at least */

enum ob_status ob__kafka_lane_open(struct ob_sink *s, struct kafka_lane *l, struct ob_err *err)
{
    static const uint64_t one = 1;
    enum ob_status st = ob__kafka_handle(s->conf, l->bulk ? KAFKA_BULK : l->role, s->env.strict,
                                         s->batch, &l->rk, err);
    if (st != OB_OK)
        return st;
    l->queue = rd_kafka_queue_get_main(l->rk);
    rd_kafka_queue_io_event_enable(l->queue, s->event_fd, &one, sizeof(one));
    l->state = KAFKA_L_RUN;
    l->idle_ms = ob__kafka_now(s);
    return OB_OK;
}

static void let_go(struct ob_sink *s, enum kafka_role role, rd_kafka_queue_t **queue)
{
    for (uint32_t i = 0; i < s->n_topics; i++) {
        rd_kafka_topic_t **rkt = &s->topics[i]->rkt[role];
        if (*rkt)
            rd_kafka_topic_destroy(*rkt);
        *rkt = NULL;
    }
    if (*queue) {
        rd_kafka_queue_io_event_enable(*queue, -1, NULL, 0);
        rd_kafka_queue_destroy(*queue);
    }
    *queue = NULL;
}

static void drop_spare(struct ob_sink *s)
{
    if (!s->spare.rk)
        return;
    let_go(s, KAFKA_BULK, &s->spare.queue);
    ob__kafka_scout_bury(s->scout, s->spare.rk);
    s->spare.rk = NULL;
}

/* It is empty: nothing that was lent is looked at by it any more. */
static void bury(struct ob_sink *s, struct kafka_lane *l, int64_t wait_ms)
{
    let_go(s, l->role, &l->queue);
    ob__kafka_scout_bury(s->scout, l->rk);
    if (l->role == KAFKA_MAIN)
        drop_spare(s); /* what was wrong with one, or has changed, is so for both */
    l->rk = NULL;
    l->state = KAFKA_L_REST;
    l->revive_ms = ob__kafka_now(s) + wait_ms;
}

void ob__kafka_lane_close(struct ob_sink *s, struct kafka_lane *l)
{
    if (l->role == KAFKA_MAIN)
        drop_spare(s);
    if (!l->rk)
        return;
    let_go(s, l->role, &l->queue);
    rd_kafka_destroy(l->rk);
    l->rk = NULL;
}

/* ---- at once, or in bulk ---- */

static void change_over(struct ob_sink *s)
{
    struct kafka_lane *l = &s->main;
    struct kafka_lane other = {.role = KAFKA_MAIN, .bulk = !l->bulk};
    struct ob_err err;
    if (s->spare.rk) {
        other.rk = s->spare.rk;
        other.queue = s->spare.queue;
    } else if (ob__kafka_lane_open(s, &other, &err) != OB_OK) {
        s->stay_ms = s->now_ms + STAY_MS;
        return;
    }
    s->spare.rk = l->rk;
    s->spare.queue = l->queue;
    s->spare.since_ms = s->now_ms;
    l->rk = other.rk;
    l->queue = other.queue;
    l->bulk = !l->bulk;
    s->stay_ms = l->bulk ? s->now_ms + BULK_STAY_MS : 0;
    for (uint32_t i = 0; i < s->n_topics; i++) {
        struct kafka_topic *t = s->topics[i];
        rd_kafka_topic_t *rkt = t->rkt[KAFKA_MAIN];
        t->rkt[KAFKA_MAIN] = t->rkt[KAFKA_BULK];
        t->rkt[KAFKA_BULK] = rkt;
    }
    ob_log(s->env.log, OB_LOG_DEBUG, "kafka.pace", OB_KB("bulk", l->bulk));
}

bool ob__kafka_lane_turn(struct ob_sink *s, size_t offered)
{
    const struct kafka_lane *l = &s->main;
    bool bulk = l->n + offered >= (l->bulk ? BULK_LEAST : BULK_FROM);
    if ((bulk == l->bulk && s->dry_ms == 0) || l->state != KAFKA_L_RUN || s->own_linger ||
        s->now_ms < s->stay_ms) {
        s->dry_ms = 0;
        return false;
    }
    if (l->n == 0) {
        s->dry_ms = 0;
        change_over(s);
        return false;
    }
    if (s->dry_ms == 0)
        s->dry_ms = s->now_ms + DRY_MS;
    if (s->now_ms < s->dry_ms)
        return true;
    s->dry_ms = 0;
    s->stay_ms = s->now_ms + STAY_MS;
    return false;
}

/* Queues stand behind what is in the main lane: they go back with it, or they would overtake. */
static void give_back_queues(struct ob_sink *s, const char *why)
{
    for (uint32_t i = 0; i < s->n_topics; i++) {
        struct kafka_topic *t = s->topics[i];
        for (int p = -1; p < t->n_alloc; p++)
            ob__kafka_give_back(s, &ob__kafka_part(t, p)->q, why);
        ob__kafka_give_back(s, &t->wait, why);
    }
}

void ob__kafka_lane_break(struct ob_sink *s, struct kafka_lane *l, const char *why)
{
    if (l->state == KAFKA_L_PURGE || l->state == KAFKA_L_REST)
        return;
    snprintf(l->why, sizeof(l->why), "%s", why);
    l->state = KAFKA_L_PURGE;
    l->purge_ms = ob__kafka_now(s);
    ob_log(s->env.log, OB_LOG_DEBUG, "kafka.renew", OB_KI("in_flight", l->n),
           OB_KC("error", l->why));
    rd_kafka_purge(l->rk, RD_KAFKA_PURGE_F_QUEUE | RD_KAFKA_PURGE_F_NON_BLOCKING);
    if (l->role == KAFKA_MAIN)
        give_back_queues(s, l->why);
}

void ob__kafka_lane_renew(struct ob_sink *s, struct kafka_lane *l)
{
    (void)s;
    if (l->state == KAFKA_L_RUN)
        l->state = KAFKA_L_DRAIN;
}

static int64_t rest_ms(const struct kafka_lane *l)
{
    unsigned n = l->fails > 7 ? 7 : l->fails;
    return l->fails < 2 ? 0 : (int64_t)100 << n;
}

void ob__kafka_lane_step(struct ob_sink *s, struct kafka_lane *l, int64_t now)
{
    struct ob_err err;
    bool side_idle = l->role == KAFKA_SIDE && l->state == KAFKA_L_RUN && l->n == 0 &&
                     now - l->idle_ms > SIDE_IDLE_MS;
    if (l->n > 0)
        l->idle_ms = now;
    if (l->role == KAFKA_MAIN && s->spare.rk && now - s->spare.since_ms > SPARE_IDLE_MS)
        drop_spare(s);
    if (side_idle || (l->state == KAFKA_L_DRAIN && l->n == 0))
        bury(s, l, 0);
    if (l->state == KAFKA_L_PURGE && l->n == 0)
        bury(s, l, rest_ms(l));
    if (l->state == KAFKA_L_PURGE && now - l->purge_ms > GENTLE_MS)
        rd_kafka_purge(l->rk, RD_KAFKA_PURGE_F_QUEUE | RD_KAFKA_PURGE_F_INFLIGHT |
                                  RD_KAFKA_PURGE_F_NON_BLOCKING);
    if (l->state != KAFKA_L_REST || l->role == KAFKA_SIDE || now < l->revive_ms)
        return; /* the side lane is made when it is needed */
    if (ob__kafka_lane_open(s, l, &err) != OB_OK) {
        snprintf(l->why, sizeof(l->why), "%.255s", err.text);
        l->fails++;
        l->revive_ms = now + 1000;
    }
}

/* ---- events ---- */

/* Those of its request go one by one from now on, so that the one at fault is found. */
static void suspect(struct kafka_topic *t, struct kafka_part *p, bool first)
{
    if (first) {
        t->strikes += t->strikes < SOLO_MAX / SOLO_MORE;
        p->solo += SOLO_MORE * t->strikes;
    }
    p->solo = p->solo + 1 > SOLO_MAX ? SOLO_MAX : p->solo + 1;
}

static void explain(const rd_kafka_message_t *m, char *why, size_t size)
{
    const char *unsure = rd_kafka_message_status(m) == RD_KAFKA_MSG_STATUS_POSSIBLY_PERSISTED
                             ? ", possibly stored"
                             : "";
    snprintf(why, size, "%s (%s%s)", rd_kafka_err2str(m->err), rd_kafka_err2name(m->err), unsure);
}

static void failed(struct ob_sink *s, struct kafka_lane *l, uint32_t i, const rd_kafka_message_t *m)
{
    struct kafka_slot *slot = &s->slots[i];
    struct kafka_part *p = ob__kafka_part(slot->topic, slot->part);
    enum kafka_class class = ob__kafka_class(m->err);
    enum ob_verdict v =
        ob__kafka_verdict(m->err, rd_kafka_message_status(m), l->role == KAFKA_SIDE);
    char why[256];
    explain(m, why, sizeof(why));
    bool purged =
        m->err == RD_KAFKA_RESP_ERR__PURGE_QUEUE || m->err == RD_KAFKA_RESP_ERR__PURGE_INFLIGHT;
    if (purged && l->why[0])
        snprintf(why, sizeof(why), "given back: %.230s", l->why);
    ob__kafka_answer(s, i, v, why);
    if (l->role == KAFKA_SIDE && v != OB_V_REJECT)
        ob__kafka_give_back(s, &p->q, why); /* behind it, in its partition */
    if (class == KAFKA_C_EVENT || class == KAFKA_C_ODD || class == KAFKA_C_DEST)
        suspect(slot->topic, p, l->role == KAFKA_MAIN && l->state != KAFKA_L_PURGE);
    if (purged || class == KAFKA_C_AWAY)
        return;
    if (class == KAFKA_C_EVENT) { /* perhaps a limit was changed */
        s->every_ms = 1000;       /* the next scan sets the usual pace again */
        ob__kafka_scout_pace(s->scout, s->every_ms, true, true);
    }
    if (l->role == KAFKA_MAIN || class == KAFKA_C_BROKEN)
        ob__kafka_lane_break(s, l, why);
}

static void reported(struct ob_sink *s, struct kafka_lane *l, const rd_kafka_message_t *m)
{
    struct kafka_slot *slot = m->_private;
    uint32_t i = (uint32_t)(slot - s->slots);
    struct kafka_topic *t = slot->topic;
    struct kafka_part *p = ob__kafka_part(t, slot->part);
    l->n--;
    t->n_flight--;
    if (l->role == KAFKA_MAIN)
        p->n_main--;
    else
        p->side_busy = false;
    bool fine = m->err == RD_KAFKA_RESP_ERR_NO_ERROR ||
                rd_kafka_message_status(m) == RD_KAFKA_MSG_STATUS_PERSISTED;
    if (fine) {
        l->fails = 0;
        p->moved_ms = s->now_ms;
        if (l->role == KAFKA_SIDE && p->solo > 0 && --p->solo == 0)
            t->strikes = 0;
        ob__kafka_done(s, i, OB_V_DELIVERED, NULL);
    } else {
        failed(s, l, i, m);
    }
    if (p->q.head != KAFKA_NIL)
        ob__kafka_pump(s, t, slot->part);
}

static void error_event(struct ob_sink *s, struct kafka_lane *l, rd_kafka_event_t *ev)
{
    rd_kafka_resp_err_t code = rd_kafka_event_error(ev);
    const char *text = rd_kafka_event_error_string(ev);
    char fatal[200];
    if (code == RD_KAFKA_RESP_ERR__FATAL || rd_kafka_event_error_is_fatal(ev)) {
        rd_kafka_resp_err_t why = rd_kafka_fatal_error(l->rk, fatal, sizeof(fatal));
        char full[256];
        snprintf(full, sizeof(full), "%s: %s", rd_kafka_err2name(why), fatal);
        if (l->state == KAFKA_L_RUN || l->state == KAFKA_L_DRAIN)
            l->fails++;
        ob__kafka_lane_break(s, l, full);
    } else if (code == RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN) {
        l->all_down = true;
    } else {
        snprintf(s->why, sizeof(s->why), "%.255s", text ? text : rd_kafka_err2str(code));
    }
}

static void log_event(const struct ob_sink *s, rd_kafka_event_t *ev)
{
    const char *fac = NULL, *text = NULL;
    int level = 0;
    if (rd_kafka_event_log(ev, &fac, &text, &level) == 0)
        ob_log(s->env.log, OB_LOG_DEBUG, "kafka.log", OB_KC("facility", fac), OB_KC("text", text));
}

/* It has no messages; what else it has to say is not news. */
static void poll_spare(struct ob_sink *s)
{
    rd_kafka_event_t *ev;
    bool fatal = false;
    while (s->spare.queue && (ev = rd_kafka_queue_poll(s->spare.queue, 0)) != NULL) {
        fatal = fatal || (rd_kafka_event_type(ev) == RD_KAFKA_EVENT_ERROR &&
                          rd_kafka_event_error_is_fatal(ev));
        if (rd_kafka_event_type(ev) == RD_KAFKA_EVENT_LOG)
            log_event(s, ev);
        rd_kafka_event_destroy(ev);
    }
    if (fatal)
        drop_spare(s);
}

void ob__kafka_lane_poll(struct ob_sink *s, struct kafka_lane *l)
{
    if (l->role == KAFKA_MAIN)
        poll_spare(s);
    rd_kafka_event_t *ev;
    const rd_kafka_message_t *m;
    while (l->queue && (ev = rd_kafka_queue_poll(l->queue, 0)) != NULL) {
        switch (rd_kafka_event_type(ev)) {
        case RD_KAFKA_EVENT_DR:
            while ((m = rd_kafka_event_message_next(ev)) != NULL)
                reported(s, l, m);
            break;
        case RD_KAFKA_EVENT_ERROR:
            error_event(s, l, ev);
            break;
        case RD_KAFKA_EVENT_LOG:
            log_event(s, ev);
            break;
        default:
            break;
        }
        rd_kafka_event_destroy(ev);
    }
}
