/* SPDX-License-Identifier: Apache-2.0 */
/* topic - what is known of topics and their partitions: which are there, which can take messages,
 * how large. */
#include "sink/kafka/kafka.h"

#include <stdio.h>
#include <stdlib.h>

#define BUCKETS (sizeof(((struct ob_sink *)0)->topic_bucket) / sizeof(uint32_t))
#define STICKY 128 /* messages without key that go to one partition before the next is chosen */

static struct kafka_topic *topic_new(struct ob_sink *s, struct ob_str name, uint64_t hash)
{
    if (s->n_topics == s->topics_cap) {
        uint32_t cap = s->topics_cap ? s->topics_cap * 2 : 64;
        struct kafka_topic **more = realloc(s->topics, cap * sizeof(*more));
        if (!more)
            return NULL;
        s->topics = more;
        s->topics_cap = cap;
    }
    struct kafka_topic *t = calloc(1, sizeof(*t));
    char *copy = t ? calloc(1, name.n + 1) : NULL; /* name.p has no NUL at its end */
    if (copy && name.n)
        memcpy(copy, name.p, name.n);
    if (!copy || !ob__kafka_scout_ask(s->scout, s->n_topics, copy)) {
        free(copy);
        free(t);
        return NULL;
    }
    uint32_t *bucket = &s->topic_bucket[hash % BUCKETS];
    *t = (struct kafka_topic){.name = copy, .hash = hash, .no = s->n_topics, .chain = *bucket};
    t->wait = t->any.q = (struct kafka_fifo){KAFKA_NIL, KAFKA_NIL};
    *bucket = s->n_topics;
    s->topics[s->n_topics++] = t;
    return t;
}

static bool is(const struct kafka_topic *t, struct ob_str name)
{
    return strncmp(t->name, name.p, name.n) == 0 && t->name[name.n] == '\0';
}

struct kafka_topic *ob__kafka_topic(struct ob_sink *s, struct ob_str name)
{
    if (s->last && is(s->last, name))
        return s->last;
    uint64_t hash = ob_hash64(name.p, name.n);
    uint32_t i = s->topic_bucket[hash % BUCKETS];
    while (i != KAFKA_NIL && !is(s->topics[i], name))
        i = s->topics[i]->chain;
    struct kafka_topic *t = i != KAFKA_NIL                   ? s->topics[i]
                            : s->n_topics < KAFKA_TOPICS_MAX ? topic_new(s, name, hash)
                                                             : NULL;
    if (t)
        s->last = t;
    return t;
}

void ob__kafka_topics_free(struct ob_sink *s)
{
    for (uint32_t i = 0; i < s->n_topics; i++) {
        free(s->topics[i]->parts);
        free(s->topics[i]->name);
        free(s->topics[i]);
    }
    free(s->topics);
    s->topics = NULL;
    s->n_topics = 0;
}

/* Neither 0 ("the whole broker") nor the highest ("behind a dead event"). */
uint64_t ob__kafka_dest(const struct kafka_topic *t, int32_t part)
{
    uint64_t h = t->hash ^ ((uint64_t)(part + 1) * 0x9e3779b97f4a7c15u);
    return h == 0 ? 1 : h == UINT64_MAX ? UINT64_MAX - 1 : h;
}

struct kafka_part *ob__kafka_part(struct kafka_topic *t, int32_t part)
{
    return part < 0 ? &t->any : &t->parts[part];
}

int32_t ob__kafka_choose(const struct ob_sink *s, struct kafka_topic *t, struct ob_str key,
                         bool take)
{
    if (!s->ours || t->n_parts == 0)
        return -1;
    if (key.n > 0 || s->empty_hashed)
        return (int32_t)((ob__kafka_murmur2(key.p, key.n) & 0x7fffffff) % (uint32_t)t->n_parts);
    if (!take)
        return -1;
    if (t->sticky_left > 0 && t->sticky < t->n_parts && !t->parts[t->sticky].blocked) {
        t->sticky_left--;
        return t->sticky;
    }
    for (int i = 1; i <= t->n_parts; i++) {
        int p = (t->sticky + i) % t->n_parts;
        if (t->parts[p].blocked)
            continue;
        t->sticky = p;
        t->sticky_left = STICKY;
        return p;
    }
    return -1;
}

/* ---- what the scout saw ---- */

static void tell(struct ob_sink *s, const struct kafka_topic *t, int32_t part, bool up,
                 const char *why)
{
    struct ob_err err;
    ob_err_set(&err, OB_DOWN, "%s", why);
    if (!s->closing)
        s->env.events->state(s->env.user, up ? OB_SINK_UP : OB_SINK_DOWN, ob__kafka_dest(t, part),
                             up ? NULL : &err);
}

static bool grow(struct kafka_topic *t, int n)
{
    if (n <= t->n_alloc)
        return true;
    struct kafka_part *more = realloc(t->parts, (size_t)n * sizeof(*more));
    if (!more)
        return false;
    t->parts = more;
    for (int p = t->n_alloc; p < n; p++)
        t->parts[p] = (struct kafka_part){.q = {KAFKA_NIL, KAFKA_NIL}};
    t->n_alloc = n;
    return true;
}

static void block_queue(struct ob_sink *s, struct kafka_fifo *q, const char *why)
{
    uint32_t i;
    while ((i = ob__kafka_fifo_get(s, q)) != KAFKA_NIL)
        ob__kafka_answer(s, i, OB_V_BLOCKED, why);
}

static void missing(const struct ob_sink *s, struct kafka_topic *t, const struct kafka_view *v)
{
    rd_kafka_resp_err_t err = v->err ? v->err : RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART;
    const char *fix = "", *more = "";
    if (err == RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART && v->refused) {
        fix = "; it cannot be made: ";
        more = v->refused;
    } else if (err == RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART) {
        fix = s->conf->create_topics ? "; it is being made" : "; make it, or set create_topics: on";
    } else if (err == RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED) {
        fix = "; this user needs Describe and Write on it";
    }
    snprintf(t->why, sizeof(t->why), "topic %.100s: %s%s%s", t->name, rd_kafka_err2name(err), fix,
             more);
}

static void gone(struct ob_sink *s, struct kafka_topic *t)
{
    bool was = t->state == KAFKA_T_FINE;
    t->state = KAFKA_T_MISSING;
    block_queue(s, &t->wait, t->why);
    for (int p = -1; p < t->n_alloc; p++)
        block_queue(s, &ob__kafka_part(t, p)->q, t->why);
    tell(s, t, -1, false, t->why);
    for (int p = 0; p < t->n_parts && was; p++)
        tell(s, t, p, false, t->why);
}

static void see_part(struct ob_sink *s, struct kafka_topic *t, int p, const struct kafka_view *v,
                     bool back)
{
    struct kafka_part *part = &t->parts[p];
    bool few = v->parts[p].leader >= 0 && v->min_isr > 0 && v->parts[p].isr < v->min_isr;
    bool blocked = v->parts[p].leader < 0 || few, was = part->blocked;
    part->blocked = blocked;
    part->few = few;
    if (few)
        snprintf(part->why, sizeof(part->why),
                 "partition %d of topic %.60s has %d replicas in sync, %d are needed", p, t->name,
                 v->parts[p].isr, v->min_isr);
    else if (blocked)
        snprintf(part->why, sizeof(part->why), "partition %d of topic %.60s has no leader", p,
                 t->name);
    if (blocked)
        block_queue(s, &part->q, part->why);
    if (blocked && !was)
        tell(s, t, p, false, part->why);
    else if (!blocked && (was || back))
        tell(s, t, p, true, "");
    if (!blocked && was)
        part->moved_ms = ob__kafka_now(s);
}

void ob__kafka_topic_view(struct ob_sink *s, const struct kafka_view *v)
{
    struct kafka_topic *t = s->topics[v->topic];
    if (v->err != RD_KAFKA_RESP_ERR_NO_ERROR || v->n_parts == 0 || !grow(t, v->n_parts)) {
        missing(s, t, v);
        if (t->state != KAFKA_T_MISSING)
            gone(s, t);
        return;
    }
    bool back = t->state == KAFKA_T_MISSING, free_one = false;
    if (t->asked_ms <= v->learned_ms) /* else the answer is still under way */
        t->state = KAFKA_T_FINE;
    t->n_parts = v->n_parts;
    if (v->learned)
        t->limit = v->limit;
    if (v->learned && v->learned_ms > t->learned_ms) {
        t->learned_ms = v->learned_ms;
        t->limit_ms = ob_clock_mono_ms(&ob_clock_system);
    }
    if (t->limit > 0 && t->limit < s->batch) {
        s->batch = t->limit;
        ob__kafka_lane_renew(s, &s->main);
    }
    bool all = true;
    for (int p = 0; p < t->n_parts; p++) {
        free_one = free_one || (t->parts[p].blocked && v->parts[p].leader >= 0);
        see_part(s, t, p, v, back);
        all = all && t->parts[p].blocked;
    }
    if (back || (free_one && !all))
        tell(s, t, -1, true, "");
}
