/* SPDX-License-Identifier: Apache-2.0 */
/* driver - the Kafka sink as the relay sees it: submit, poll, states, reset, close. */
#include "sink/kafka/kafka.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define SCAN_MS 500   /* how often the age of what is in flight is looked at */
#define STILL_MS 1000 /* nothing of a partition was acknowledged for so long: look at it */

extern const struct ob_sink_driver ob_sink_kafka;

/* ---- verdicts ---- */

void ob__kafka_done(struct ob_sink *s, uint32_t i, enum ob_verdict v, const char *why)
{
    struct kafka_slot *slot = &s->slots[i];
    uint64_t token = slot->token;
    struct ob_err err;
    slot->msg = NULL;
    slot->next = s->free;
    s->free = i;
    s->n_busy--;
    if (s->closing)
        return;
    if (v == OB_V_DELIVERED) {
        s->env.events->done(s->env.user, token, v, NULL);
        return;
    }
    ob_err_set(&err, v == OB_V_REJECT ? OB_REJECT : OB_RETRY, "%s", why ? why : "no memory");
    s->env.events->done(s->env.user, token, v, &err);
}

static void give_answers(struct ob_sink *s)
{
    uint32_t i;
    while ((i = ob__kafka_fifo_get(s, &s->answers)) != KAFKA_NIL) {
        char *why = s->slots[i].why;
        s->slots[i].why = NULL;
        ob__kafka_done(s, i, s->slots[i].verdict, why);
        free(why);
    }
}

/* ---- up and down ---- */

static void say(struct ob_sink *s, int up, const char *why)
{
    struct ob_err err;
    if (s->up == up || s->closing)
        return;
    s->up = up;
    ob_err_set(&err, OB_DOWN, "%s", why && *why ? why : "no broker answers");
    s->env.events->state(s->env.user, up ? OB_SINK_UP : OB_SINK_DOWN, 0, up ? NULL : &err);
}

/* Down: nobody answers the scout, or all connections of the main lane broke while something was in
 * flight. Up: the scout got an answer and there is a producer. */
static void judge(struct ob_sink *s)
{
    if (s->main.all_down && s->main.n > 0 && s->up == 1) {
        s->reached = false;
        ob__kafka_scout_pace(s->scout, 250, true, false);
    }
    s->main.all_down = s->side.all_down = false;
    bool broken = s->main.state == KAFKA_L_REST && s->main.fails > 2;
    if (!s->reached && (s->misses > 1 || s->up == 1))
        say(s, 0, s->why);
    else if (broken)
        say(s, 0, s->main.why);
    else if (s->reached && s->main.state == KAFKA_L_RUN)
        say(s, 1, NULL);
}

static void take_reports(struct ob_sink *s)
{
    for (struct kafka_report *r = ob__kafka_scout_take(s->scout), *next; r; r = next) {
        next = r->next;
        s->misses = r->ok ? 0 : s->misses + 1;
        if (r->ok)
            s->reached = true;
        else if (s->misses > 2 || s->up != 1)
            s->reached = false;
        if (r->ok)
            s->why[0] = '\0';
        else if (r->told || !s->why[0])
            snprintf(s->why, sizeof(s->why), "%s", r->why);
        for (size_t i = 0; i < r->n; i++)
            ob__kafka_topic_view(s, &r->views[i]);
        ob__kafka_report_free(r);
        s->fresh = true;
    }
}

/* How closely the scout should look, by what stands still. */
static void scan(struct ob_sink *s)
{
    bool still = false, blocked = false, few = false;
    s->scan_ms = s->now_ms + SCAN_MS;
    for (uint32_t i = 0; i < s->n_topics; i++) {
        const struct kafka_topic *t = s->topics[i];
        blocked = blocked || t->state != KAFKA_T_FINE;
        for (int p = 0; p < t->n_parts; p++) {
            const struct kafka_part *part = &t->parts[p];
            blocked = blocked || part->blocked;
            few = few || part->few;
            still = still || ((part->n_main > 0 || part->side_busy) &&
                              s->now_ms - part->moved_ms > STILL_MS);
        }
        still = still || (t->any.n_main > 0 && s->now_ms - t->any.moved_ms > STILL_MS);
    }
    int every = s->up != 1 ? 250 : still || s->misses > 0 ? 500 : blocked ? 1000 : 10000;
    if (every != s->every_ms || few) /* how many are needed may be changed meanwhile */
        ob__kafka_scout_pace(s->scout, every, false, few);
    s->every_ms = every;
}

/* ---- the driver ---- */

static void release_all(struct ob_sink *s)
{
    for (uint32_t i = 0; i < s->n_topics; i++)
        ob__kafka_release(s, s->topics[i]);
    s->fresh = false;
}

static void kafka_poll(struct ob_sink *s)
{
    uint64_t count;
    ssize_t got = read(s->event_fd, &count, sizeof(count));
    (void)got;
    s->now_ms = ob__kafka_now(s);
    take_reports(s);
    enum kafka_lane_state before = s->main.state, side = s->side.state;
    ob__kafka_lane_poll(s, &s->main);
    ob__kafka_lane_poll(s, &s->side);
    ob__kafka_lane_step(s, &s->main, s->now_ms);
    ob__kafka_lane_step(s, &s->side, s->now_ms);
    if (s->fresh || before != s->main.state || side != s->side.state)
        release_all(s);
    give_answers(s);
    judge(s);
    if (s->fresh || s->now_ms >= s->scan_ms)
        scan(s);
}

static int kafka_wait_fd(const struct ob_sink *s)
{
    return s->event_fd;
}

static int64_t kafka_wake_at(const struct ob_sink *s)
{
    int64_t at = INT64_MAX;
    if (s->answers.head != KAFKA_NIL || (s->up != 1 && s->reached && s->main.state == KAFKA_L_RUN))
        return 0;
    if (s->n_busy > 0)
        at = s->scan_ms;
    if (s->dry_ms > 0 && s->dry_ms < at)
        at = s->dry_ms;
    if (s->main.state == KAFKA_L_PURGE || s->side.state == KAFKA_L_PURGE ||
        s->main.state == KAFKA_L_DRAIN)
        at = s->now_ms + 20 < at ? s->now_ms + 20 : at;
    if (s->main.state == KAFKA_L_REST && s->main.revive_ms < at)
        at = s->main.revive_ms;
    return at;
}

static bool take(struct ob_sink *s, const struct ob_msg *m, uint64_t token)
{
    uint32_t i = s->free;
    if (i == KAFKA_NIL)
        return false;
    struct kafka_slot *slot = &s->slots[i];
    uint32_t next = slot->next;
    *slot = (struct kafka_slot){.token = token, .msg = m, .part = -1};
    if (!ob__kafka_topic_valid(m->topic)) {
        char why[200];
        snprintf(why, sizeof(why), "'%.*s' is no name for a topic: " KAFKA_TOPIC_RULE,
                 (int)(m->topic.n < 80 ? m->topic.n : 80), m->topic.p ? m->topic.p : "");
        ob__kafka_answer(s, i, OB_V_REJECT, why);
    } else if (!(slot->topic = ob__kafka_topic(s, m->topic))) {
        ob__kafka_answer(s, i, OB_V_BLOCKED, "no place for another topic");
    } else if (!ob__kafka_send(s, i)) {
        slot->msg = NULL;
        slot->next = next;
        return false;
    }
    s->free = next;
    s->n_busy++;
    return true;
}

static enum ob_status kafka_submit(struct ob_sink *s, const struct ob_msg *const *msgs,
                                   const uint64_t *tokens, size_t *n, struct ob_err *err)
{
    size_t taken = 0;
    if (s->up == 0) {
        *n = 0;
        return ob_err_set(err, OB_DOWN, "%s", s->why[0] ? s->why : "no broker answers");
    }
    s->now_ms = ob__kafka_now(s);
    if (ob__kafka_lane_turn(s, *n)) {
        *n = 0;
        return OB_OK;
    }
    /* What was given back in this round is still to be told: nothing may overtake it. */
    while (taken < *n && s->main.state == KAFKA_L_RUN && take(s, msgs[taken], tokens[taken]))
        taken++;
    *n = taken;
    return OB_OK;
}

static uint64_t kafka_aim(struct ob_sink *s, const struct ob_msg *m)
{
    struct kafka_topic *t = ob__kafka_topic_valid(m->topic) ? ob__kafka_topic(s, m->topic) : NULL;
    return t ? ob__kafka_dest(t, ob__kafka_choose(s, t, m->key, false)) : m->dest_hash;
}

/* Only a new producer forgets a message; the others that it had go back as well. Probes of that
 * partition go alone from now on, so that the next cancel costs nobody else anything. */
static void kafka_cancel(struct ob_sink *s, uint64_t token)
{
    for (uint32_t i = 0; i < KAFKA_CAP; i++) {
        struct kafka_slot *slot = &s->slots[i];
        if (!slot->msg || slot->token != token || slot->where == KAFKA_S_ANSWER)
            continue;
        const char *why = "no acknowledgement within publish_timeout";
        struct kafka_part *p = ob__kafka_part(slot->topic, slot->part);
        p->solo = p->solo > 16 ? p->solo : 16;
        if (slot->where == KAFKA_S_WAIT)
            ob__kafka_give_back(s, &slot->topic->wait, why);
        else if (slot->where == KAFKA_S_QUEUED)
            ob__kafka_give_back(s, &p->q, why);
        else
            ob__kafka_lane_break(s, slot->where == KAFKA_S_MAIN ? &s->main : &s->side, why);
        return;
    }
}

static void kafka_reset(struct ob_sink *s)
{
    s->up = -1;
    if (s->n_busy == 0)
        return;
    s->now_ms = ob__kafka_now(s);
    ob__kafka_lane_break(s, &s->main, "the sink was reset");
    if (s->side.n > 0)
        ob__kafka_lane_break(s, &s->side, "the sink was reset");
}

static void drain(struct ob_sink *s, int64_t until)
{
    struct pollfd fd = {.fd = s->event_fd, .events = POLLIN};
    while (s->n_busy > 0 && ob__kafka_now(s) < until) {
        kafka_poll(s);
        if (s->n_busy > 0)
            poll(&fd, 1, 20);
    }
}

static void kafka_close(struct ob_sink *s, int grace_ms)
{
    if (!s)
        return;
    s->closing = true;
    if (grace_ms > 0 && s->scout)
        drain(s, ob__kafka_now(s) + grace_ms);
    struct kafka_lane *lanes[] = {&s->main, &s->side};
    for (unsigned i = 0; i < 2; i++) {
        int64_t until = ob__kafka_now(s) + 2000;
        while (lanes[i]->rk && lanes[i]->n > 0 && ob__kafka_now(s) < until) {
            rd_kafka_purge(lanes[i]->rk, RD_KAFKA_PURGE_F_QUEUE | RD_KAFKA_PURGE_F_INFLIGHT);
            lanes[i]->state = KAFKA_L_PURGE;
            ob__kafka_lane_poll(s, lanes[i]);
        }
        ob__kafka_lane_close(s, lanes[i]); /* after it nothing looks at a message */
    }
    ob__kafka_scout_stop(s->scout);
    for (uint32_t i = 0; i < KAFKA_CAP; i++)
        free(s->slots[i].why);
    ob__kafka_topics_free(s);
    if (s->event_fd >= 0)
        close(s->event_fd);
    free(s);
}

static bool is_set(const char *value, const char *what)
{
    return value && strcmp(value, what) == 0;
}

static void read_conf(struct ob_sink *s, const struct kafka_conf *c)
{
    const char *how = ob__kafka_property(c, "partitioner");
    const char *packed = ob__kafka_property(c, "compression.type");
    packed = packed ? packed : ob__kafka_property(c, "compression.codec");
    const char *batch = ob__kafka_property(c, "batch.size");
    s->own_linger =
        ob__kafka_property(c, "linger.ms") || ob__kafka_property(c, "queue.buffering.max.ms");
    s->empty_hashed = is_set(how, "murmur2");
    s->ours = !how || is_set(how, "murmur2_random") || s->empty_hashed;
    s->compressed = packed && !is_set(packed, "none");
    s->batch = batch && atoll(batch) > 0 ? atoll(batch) : KAFKA_BATCH_BYTES;
}

static enum ob_status kafka_open(const struct ob_sink_env *env, const void *conf,
                                 struct ob_sink **out, struct ob_sink_caps *caps,
                                 struct ob_err *err)
{
    const struct kafka_conf *c = conf;
    enum ob_status st = ob__kafka_validate(c, NULL, err);
    struct ob_sink *s = st == OB_OK ? calloc(1, sizeof(*s)) : NULL;
    if (!s)
        return st != OB_OK ? st : ob_err_set(err, OB_FATAL, "no memory");
    s->env = *env;
    s->conf = c;
    s->up = -1;
    s->every_ms = 250;
    s->side.role = KAFKA_SIDE;
    s->side.state = KAFKA_L_REST;
    s->answers = (struct kafka_fifo){KAFKA_NIL, KAFKA_NIL};
    memset(s->topic_bucket, 0xff, sizeof(s->topic_bucket));
    for (uint32_t i = 0; i < KAFKA_CAP; i++)
        s->slots[i].next = i + 1 < KAFKA_CAP ? i + 1 : KAFKA_NIL;
    read_conf(s, c);
    s->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->event_fd < 0)
        st = ob_err_set(err, OB_FATAL, "eventfd: %s", strerror(errno));
    if (st == OB_OK)
        st = ob__kafka_lane_open(s, &s->main, err);
    if (st == OB_OK)
        st = ob__kafka_scout_start(c, s->event_fd, &s->scout, err);
    if (st != OB_OK) {
        kafka_close(s, 0);
        return st;
    }
    *caps = (struct ob_sink_caps){
        .ordered = true, .max_in_flight = KAFKA_CAP, .max_bytes = (size_t)c->max_message};
    *out = s;
    return OB_OK;
}

const struct ob_sink_driver ob_sink_kafka = {
    .name = "kafka",
    .summary = "Apache Kafka, by librdkafka: idempotent, acknowledged by all replicas in sync.",
    .opts = ob__kafka_opts,
    .conf_size = sizeof(struct kafka_conf),
    .validate = ob__kafka_validate,
    .wire = ob__kafka_wire,
    .open = kafka_open,
    .check = ob__kafka_check,
    .wait_fd = kafka_wait_fd,
    .wake_at = kafka_wake_at,
    .aim = kafka_aim,
    .submit = kafka_submit,
    .poll = kafka_poll,
    .cancel = kafka_cancel,
    .reset = kafka_reset,
    .close = kafka_close,
};
