/* SPDX-License-Identifier: Apache-2.0 */
/* send - from the caller into a lane, or back with a verdict. A message waits here while its topic
 * is looked up, and while those before it in its partition go one by one. */
#include "sink/kafka/kafka.h"

#include <stdio.h>
#include <stdlib.h>

#define FRESH_MS 1000       /* what was told of a topic may be relied on for so long */
#define USUAL_LIMIT 1048588 /* a topic whose limit nobody tells probably has Kafka's default */

/* ---- queues of slots ---- */

void ob__kafka_fifo_put(struct ob_sink *s, struct kafka_fifo *f, uint32_t i)
{
    s->slots[i].next = KAFKA_NIL;
    if (f->head == KAFKA_NIL)
        f->head = i;
    else
        s->slots[f->tail].next = i;
    f->tail = i;
}

uint32_t ob__kafka_fifo_get(struct ob_sink *s, struct kafka_fifo *f)
{
    uint32_t i = f->head;
    if (i != KAFKA_NIL)
        f->head = s->slots[i].next;
    return i;
}

static void put_front(struct ob_sink *s, struct kafka_fifo *f, uint32_t i)
{
    s->slots[i].next = f->head;
    if (f->head == KAFKA_NIL)
        f->tail = i;
    f->head = i;
}

void ob__kafka_answer(struct ob_sink *s, uint32_t i, enum ob_verdict v, const char *why)
{
    struct kafka_slot *slot = &s->slots[i];
    slot->where = KAFKA_S_ANSWER;
    slot->verdict = v;
    slot->why = strdup(why);
    ob__kafka_fifo_put(s, &s->answers, i);
}

void ob__kafka_give_back(struct ob_sink *s, struct kafka_fifo *f, const char *why)
{
    uint32_t i;
    while ((i = ob__kafka_fifo_get(s, f)) != KAFKA_NIL)
        ob__kafka_answer(s, i, OB_V_RETURNED, why);
}

/* ---- into a lane ---- */

static rd_kafka_topic_t *handle_of(struct kafka_lane *l, struct kafka_topic *t)
{
    rd_kafka_topic_t **rkt = &t->rkt[l->role];
    if (!*rkt)
        *rkt = rd_kafka_topic_new(l->rk, t->name, NULL);
    return *rkt;
}

/* The value is borrowed until the report; key and headers are copied by the library. */
static rd_kafka_resp_err_t produce(struct ob_sink *s, struct kafka_lane *l, uint32_t i)
{
    struct kafka_slot *slot = &s->slots[i];
    const struct ob_msg *m = slot->msg;
    bool ok = true;
    rd_kafka_topic_t *rkt = handle_of(l, slot->topic);
    rd_kafka_headers_t *headers = rkt ? ob__kafka_headers(m, s->conf, &ok) : NULL;
    if (!rkt || !ok)
        return RD_KAFKA_RESP_ERR__QUEUE_FULL; /* no memory: not now */
    rd_kafka_vu_t vu[6] = {
        {.vtype = RD_KAFKA_VTYPE_RKT, .u.rkt = rkt},
        {.vtype = RD_KAFKA_VTYPE_PARTITION, .u.i32 = slot->part},
        {.vtype = RD_KAFKA_VTYPE_OPAQUE, .u.ptr = slot},
        {.vtype = RD_KAFKA_VTYPE_VALUE},
        {.vtype = RD_KAFKA_VTYPE_KEY},
        {.vtype = RD_KAFKA_VTYPE_HEADERS, .u.headers = headers},
    };
    vu[3].u.mem.ptr = m->value_null ? NULL : (void *)(m->value.p ? m->value.p : "");
    vu[3].u.mem.size = m->value_null ? 0 : m->value.n;
    vu[4].u.mem.ptr = m->key.n > 0 ? (void *)m->key.p : NULL;
    vu[4].u.mem.size = m->key.n;
    rd_kafka_error_t *error = rd_kafka_produceva(l->rk, vu, headers ? 6 : 5);
    if (!error)
        return RD_KAFKA_RESP_ERR_NO_ERROR;
    rd_kafka_resp_err_t code = rd_kafka_error_code(error);
    rd_kafka_error_destroy(error);
    if (headers)
        rd_kafka_headers_destroy(headers);
    return code;
}

/* The library would not even take it. */
static void refused(struct ob_sink *s, struct kafka_lane *l, uint32_t i, rd_kafka_resp_err_t code)
{
    char why[256];
    snprintf(why, sizeof(why), "%s (%s)", rd_kafka_err2str(code), rd_kafka_err2name(code));
    ob__kafka_answer(s, i, ob__kafka_verdict(code, RD_KAFKA_MSG_STATUS_NOT_PERSISTED, true), why);
    enum kafka_class class = ob__kafka_class(code);
    if (class == KAFKA_C_BROKEN)
        ob__kafka_lane_break(s, l, why);
    else if (class == KAFKA_C_DEST)
        ob__kafka_lane_renew(s, l); /* it knows less than the scout: start afresh */
}

/* False: not now; the slot is in no queue. */
static bool into(struct ob_sink *s, struct kafka_lane *l, uint32_t i)
{
    struct kafka_slot *slot = &s->slots[i];
    struct kafka_part *p = ob__kafka_part(slot->topic, slot->part);
    if (l->state != KAFKA_L_RUN)
        return false;
    rd_kafka_resp_err_t code = produce(s, l, i);
    if (code == RD_KAFKA_RESP_ERR__QUEUE_FULL)
        return false;
    if (code != RD_KAFKA_RESP_ERR_NO_ERROR) {
        refused(s, l, i, code);
        return true;
    }
    slot->where = l->role == KAFKA_MAIN ? KAFKA_S_MAIN : KAFKA_S_SIDE;
    if (p->n_main == 0 && !p->side_busy)
        p->moved_ms = ob__kafka_now(s);
    if (l->role == KAFKA_MAIN)
        p->n_main++;
    else
        p->side_busy = true;
    slot->topic->n_flight++;
    l->n++;
    return true;
}

/* Whether it may fail for its size: then it must not take others with it. */
static bool heavy(const struct ob_sink *s, const struct kafka_slot *slot)
{
    const struct kafka_topic *t = slot->topic;
    size_t limit = t->limit > 0 ? (size_t)t->limit : USUAL_LIMIT;
    return ob__kafka_weight(slot->msg, s->conf) > limit;
}

void ob__kafka_pump(struct ob_sink *s, struct kafka_topic *t, int32_t part)
{
    struct kafka_part *p = ob__kafka_part(t, part);
    while (p->q.head != KAFKA_NIL && !p->side_busy) {
        bool alone = p->solo > 0 || heavy(s, &s->slots[p->q.head]);
        if (alone && p->n_main > 0)
            return;
        uint32_t i = ob__kafka_fifo_get(s, &p->q);
        struct ob_err err;
        if (alone && s->side.state == KAFKA_L_REST && ob__kafka_now(s) >= s->side.revive_ms &&
            ob__kafka_lane_open(s, &s->side, &err) != OB_OK)
            ob_log(s->env.log, OB_LOG_ERROR, "kafka.side", OB_KC("error", err.text));
        if (!into(s, alone ? &s->side : &s->main, i)) {
            put_front(s, &p->q, i);
            return;
        }
    }
}

/* Before something is dead for its size, the topic's limit is asked for once more: it may have been
 * raised since. Its messages wait so long (test_kafka: a_limit_that_was_raised_holds_at_once). */
static bool ask_again(struct ob_sink *s, struct kafka_topic *t)
{
    int64_t now = ob_clock_mono_ms(&ob_clock_system);
    if (now - t->limit_ms < FRESH_MS)
        return false;
    t->asked_ms = now;
    t->state = KAFKA_T_ASKED;
    s->every_ms = 1000;
    ob__kafka_scout_pace(s->scout, s->every_ms, true, true);
    return true;
}

/* True: it has its verdict, or (later) none before the topic was asked for again. */
static bool oversize(struct ob_sink *s, uint32_t i, bool *later)
{
    const struct kafka_slot *slot = &s->slots[i];
    struct kafka_topic *t = slot->topic;
    char why[256];
    size_t weight = ob__kafka_weight(slot->msg, s->conf), limit = (size_t)t->limit;
    size_t own = (size_t)s->conf->max_message;
    bool over = limit > 0 && weight > limit && !s->compressed;
    *later = false;
    if (own > 0 && slot->msg->value.n > own)
        snprintf(why, sizeof(why), "too large: %zu bytes, max_message is %zu", slot->msg->value.n,
                 own);
    else if (over && ask_again(s, t))
        *later = true;
    else if (over)
        snprintf(why, sizeof(why),
                 "too large: %zu bytes with key and headers, topic %.100s takes %zu "
                 "(max.message.bytes)",
                 weight, t->name, limit);
    else if (weight > KAFKA_HARD_MAX)
        snprintf(why, sizeof(why), "too large: %zu bytes, no broker takes more than %zu", weight,
                 KAFKA_HARD_MAX);
    else
        return false;
    if (!*later)
        ob__kafka_answer(s, i, OB_V_REJECT, why);
    return true;
}

/* Of a topic that is known. False: not now; the slot is in no queue. */
static bool dispatch(struct ob_sink *s, uint32_t i)
{
    struct kafka_slot *slot = &s->slots[i];
    struct kafka_topic *t = slot->topic;
    if (t->state == KAFKA_T_MISSING) {
        ob__kafka_answer(s, i, OB_V_BLOCKED, t->why);
        return true;
    }
    slot->part = ob__kafka_choose(s, t, slot->msg->key, true);
    if (s->ours && slot->part < 0) {
        ob__kafka_answer(s, i, OB_V_BLOCKED, t->parts[0].why);
        return true;
    }
    struct kafka_part *p = ob__kafka_part(t, slot->part);
    if (p->blocked) {
        ob__kafka_answer(s, i, OB_V_BLOCKED, p->why);
        return true;
    }
    bool later;
    if (oversize(s, i, &later))
        return !later;
    if (p->solo == 0 && !p->side_busy && p->q.head == KAFKA_NIL && !heavy(s, slot))
        return into(s, &s->main, i);
    slot->where = KAFKA_S_QUEUED;
    ob__kafka_fifo_put(s, &p->q, i);
    ob__kafka_pump(s, t, slot->part);
    return true;
}

bool ob__kafka_send(struct ob_sink *s, uint32_t i)
{
    struct kafka_slot *slot = &s->slots[i];
    struct kafka_topic *t = slot->topic;
    if (t->state != KAFKA_T_ASKED && t->wait.head == KAFKA_NIL)
        return dispatch(s, i);
    slot->where = KAFKA_S_WAIT;
    ob__kafka_fifo_put(s, &t->wait, i);
    return true;
}

void ob__kafka_release(struct ob_sink *s, struct kafka_topic *t)
{
    while (t->state != KAFKA_T_ASKED && t->wait.head != KAFKA_NIL && s->main.state == KAFKA_L_RUN) {
        uint32_t i = ob__kafka_fifo_get(s, &t->wait);
        if (!dispatch(s, i)) {
            put_front(s, &t->wait, i);
            return;
        }
    }
    for (int p = -1; p < t->n_alloc; p++)
        if (ob__kafka_part(t, p)->q.head != KAFKA_NIL)
            ob__kafka_pump(s, t, p);
}
