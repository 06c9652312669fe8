/* SPDX-License-Identifier: Apache-2.0 */
/* scout - a thread that asks the brokers what there is: topics, leaders, replicas in sync, limits.
 * It makes topics where that is wanted, and buries handles, because all of that blocks. Thread:
 * ob__kafka_scout_* from the shard's; run() and what it calls is the scout's own, with a handle of
 * its own; `lock` guards what both see. */
#include "sink/kafka/kafka.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define LOOK_MS 1000
#define LEARN_MS 2000
#define LEARN_EVERY 60 /* seconds */
#define DEAD_MAX 64

struct asked {
    const char *name;
    uint32_t topic;
    rd_kafka_topic_t *rkt; /* the scout's: it makes the name known to its handle */
    bool learned;
    int64_t limit, learned_ms;
    int min_isr;
    char *refused; /* why it cannot be made; NULL: nobody tried, or it could */
};

struct kafka_scout {
    const struct kafka_conf *conf;
    rd_kafka_t *rk;
    int event_fd;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t cond;
    /* Both see. */
    bool stop, now, learn;
    int every_ms;
    struct asked *fresh;
    size_t n_fresh, cap_fresh;
    struct kafka_report *first, **last;
    rd_kafka_t *dead[DEAD_MAX];
    size_t n_dead;
    /* The scout's. */
    struct asked *topics;
    size_t n, cap;
    time_t learned_at;
};

/* ---- limits ---- */

/* Those that are there and not known yet, together. What the broker does not tell stays unknown. */
static void learn(struct kafka_scout *s, const struct kafka_report *r)
{
    const char **names = calloc(s->n + 1, sizeof(*names));
    struct asked **who = calloc(s->n + 1, sizeof(struct asked *));
    int64_t *limits = calloc(s->n + 1, sizeof(*limits));
    int *min_isrs = calloc(s->n + 1, sizeof(*min_isrs));
    size_t n = 0;
    int64_t now = ob_clock_mono_ms(&ob_clock_system);
    for (size_t i = 0; i < r->n && names && who && limits && min_isrs; i++) {
        struct asked *a = &s->topics[i];
        if (r->views[i].err != RD_KAFKA_RESP_ERR_NO_ERROR || a->learned)
            continue;
        names[n] = a->name;
        limits[n] = a->limit;
        min_isrs[n] = a->min_isr;
        who[n++] = a;
    }
    if (n > 0)
        ob__kafka_learn(s->rk, names, n, limits, min_isrs, LEARN_MS);
    for (size_t i = 0; i < n; i++) {
        who[i]->learned = true;
        who[i]->learned_ms = now;
        who[i]->limit = limits[i];
        who[i]->min_isr = min_isrs[i];
    }
    for (size_t i = 0; i < r->n; i++) {
        r->views[i].learned = s->topics[i].learned;
        r->views[i].learned_ms = s->topics[i].learned_ms;
        r->views[i].limit = s->topics[i].limit;
        r->views[i].min_isr = s->topics[i].min_isr;
    }
    free(names);
    free(who);
    free(limits);
    free(min_isrs);
}

/* ---- topics ---- */

static const struct rd_kafka_metadata_topic *find(const struct rd_kafka_metadata *md,
                                                  const char *name)
{
    for (int i = 0; i < md->topic_cnt; i++)
        if (strcmp(md->topics[i].topic, name) == 0)
            return &md->topics[i];
    return NULL;
}

static void read_topic(const struct rd_kafka_metadata_topic *t, struct kafka_view *v)
{
    v->err = t->err;
    if (t->err == RD_KAFKA_RESP_ERR_NO_ERROR && t->partition_cnt == 0)
        v->err = RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART;
    if (t->partition_cnt <= 0)
        return;
    v->parts = calloc((size_t)t->partition_cnt, sizeof(*v->parts));
    v->n_parts = v->parts ? t->partition_cnt : 0;
    for (int p = 0; p < v->n_parts; p++)
        v->parts[p].leader = -1;
    for (int p = 0; p < t->partition_cnt; p++) {
        const struct rd_kafka_metadata_partition *part = &t->partitions[p];
        if (part->id < 0 || part->id >= v->n_parts)
            continue;
        v->parts[part->id].leader = part->leader;
        v->parts[part->id].isr = part->isr_cnt;
    }
}

/* One look. The report is the caller's, also when it says that nobody answers. */
static struct kafka_report *look(struct kafka_scout *s)
{
    const struct rd_kafka_metadata *md = NULL;
    struct kafka_report *r = calloc(1, sizeof(*r));
    if (!r)
        return NULL;
    rd_kafka_resp_err_t err = rd_kafka_metadata(s->rk, 0, NULL, &md, LOOK_MS);
    r->ok = err == RD_KAFKA_RESP_ERR_NO_ERROR;
    if (!r->ok) {
        snprintf(r->why, sizeof(r->why), "no broker answers: %s", rd_kafka_err2str(err));
        return r;
    }
    r->views = calloc(s->n + 1, sizeof(*r->views));
    r->n = r->views ? s->n : 0;
    for (size_t i = 0; i < r->n; i++) {
        const struct rd_kafka_metadata_topic *t = find(md, s->topics[i].name);
        r->views[i].topic = s->topics[i].topic;
        r->views[i].err = RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART;
        if (t)
            read_topic(t, &r->views[i]);
    }
    rd_kafka_metadata_destroy(md);
    return r;
}

/* Creates a topic unless create_topics_max are created already: topics come from rows, so that a
 * writer could fill the cluster with them. */
static bool create_topic(const struct kafka_scout *s, const char *name, char why[KAFKA_REFUSED])
{
    struct kafka_conf *c = (struct kafka_conf *)s->conf; /* only for its counter */
    int64_t before = atomic_fetch_add(&c->topics_created, 1);
    enum kafka_created made = KAFKA_NOT_CREATED;
    if (c->create_topics_max > 0 && before >= c->create_topics_max)
        snprintf(why, KAFKA_REFUSED,
                 "this process has created %lld topics, which is create_topics_max; create it "
                 "yourself, or raise create_topics_max",
                 (long long)before);
    else
        made = ob__kafka_create(s->rk, c, name, false, LEARN_MS, why, KAFKA_REFUSED);
    if (made != KAFKA_CREATED)
        atomic_fetch_sub(&c->topics_created, 1);
    return made != KAFKA_NOT_CREATED;
}

/* Whether one was made, so that it pays to look again. Why another was not stays with its topic. */
static bool create_missing(struct kafka_scout *s, const struct kafka_report *r)
{
    bool made = false;
    for (size_t i = 0; i < r->n && s->conf->create_topics; i++) {
        struct asked *a = &s->topics[i];
        char why[KAFKA_REFUSED] = "";
        free(a->refused);
        a->refused = NULL;
        if (r->views[i].err != RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART)
            continue;
        if (create_topic(s, a->name, why))
            made = true;
        else
            a->refused = strdup(why);
        a->learned = false;
    }
    return made;
}

static void tell_refusals(const struct kafka_scout *s, struct kafka_report *r)
{
    for (size_t i = 0; i < r->n; i++)
        if (s->topics[i].refused && r->views[i].err == RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART)
            r->views[i].refused = strdup(s->topics[i].refused);
}

void ob__kafka_report_free(struct kafka_report *r)
{
    for (size_t i = 0; r && i < r->n; i++) {
        free(r->views[i].parts);
        free(r->views[i].refused);
    }
    if (r)
        free(r->views);
    free(r);
}

/* ---- the thread ---- */

/* Its own events are read only so that they do not pile up; the last error says why nobody answers.
 */
static void read_events(struct kafka_scout *s, char *why, size_t size)
{
    rd_kafka_queue_t *q = rd_kafka_queue_get_main(s->rk);
    rd_kafka_event_t *ev;
    while ((ev = rd_kafka_queue_poll(q, 0)) != NULL) {
        if (rd_kafka_event_type(ev) == RD_KAFKA_EVENT_ERROR &&
            rd_kafka_event_error(ev) != RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN)
            snprintf(why, size, "%.200s", rd_kafka_event_error_string(ev));
        rd_kafka_event_destroy(ev);
    }
    rd_kafka_queue_destroy(q);
}

static void post(struct kafka_scout *s, struct kafka_report *r)
{
    uint64_t one = 1;
    pthread_mutex_lock(&s->lock);
    *s->last = r;
    s->last = &r->next;
    pthread_mutex_unlock(&s->lock);
    ssize_t put = write(s->event_fd, &one, sizeof(one));
    (void)put;
}

static void take_fresh(struct kafka_scout *s)
{
    if (s->n + s->n_fresh > s->cap) {
        size_t cap = (s->n + s->n_fresh) * 2;
        struct asked *more = realloc(s->topics, cap * sizeof(*more));
        if (!more)
            return; /* at the next look */
        s->topics = more;
        s->cap = cap;
    }
    for (size_t i = 0; i < s->n_fresh; i++) {
        s->topics[s->n] = s->fresh[i];
        s->topics[s->n].rkt = rd_kafka_topic_new(s->rk, s->fresh[i].name, NULL);
        s->n++;
    }
    s->n_fresh = 0;
}

/* Waits for the next look. False: stop. */
static bool wait_turn(struct kafka_scout *s)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    int64_t ns = until.tv_nsec + (int64_t)s->every_ms * 1000000;
    until.tv_sec += ns / 1000000000;
    until.tv_nsec = ns % 1000000000;
    while (!s->stop && !s->now && s->n_fresh == 0 && s->n_dead == 0) {
        if (pthread_cond_timedwait(&s->cond, &s->lock, &until) == ETIMEDOUT)
            break;
    }
    s->now = false;
    return !s->stop;
}

static void bury(struct kafka_scout *s)
{
    while (s->n_dead > 0) {
        rd_kafka_t *rk = s->dead[--s->n_dead];
        pthread_mutex_unlock(&s->lock);
        rd_kafka_destroy(rk);
        pthread_mutex_lock(&s->lock);
    }
}

/* Whether limits must be asked for. */
static bool unknown(const struct kafka_scout *s, const struct kafka_report *r)
{
    for (size_t i = 0; i < r->n; i++)
        if (r->views[i].err == RD_KAFKA_RESP_ERR_NO_ERROR && !s->topics[i].learned)
            return true;
    return false;
}

static void look_and_post(struct kafka_scout *s)
{
    struct kafka_report *r = look(s);
    if (r && r->ok && create_missing(s, r)) {
        ob__kafka_report_free(r);
        r = look(s);
    }
    if (!r)
        return;
    if (r->ok) {
        if (unknown(s, r)) {
            struct kafka_report *first = calloc(1, sizeof(*first));
            if (first) {
                first->ok = true; /* there is an answer; what it says comes with the limits */
                post(s, first);
            }
        }
        tell_refusals(s, r);
        learn(s, r);
        read_events(s, r->why, sizeof(r->why));
    } else {
        char why[200] = "";
        read_events(s, why, sizeof(why));
        if (why[0])
            snprintf(r->why, sizeof(r->why), "%s", why);
        r->told = why[0] != '\0';
    }
    post(s, r);
}

static void *run(void *arg)
{
    struct kafka_scout *s = arg;
    struct timespec now;
    pthread_mutex_lock(&s->lock);
    do {
        bury(s);
        if (s->stop)
            break;
        take_fresh(s);
        clock_gettime(CLOCK_MONOTONIC, &now);
        bool again = s->learn || now.tv_sec - s->learned_at >= LEARN_EVERY;
        s->learn = false;
        pthread_mutex_unlock(&s->lock);
        for (size_t i = 0; again && i < s->n; i++)
            s->topics[i].learned = false;
        if (again)
            s->learned_at = now.tv_sec;
        look_and_post(s);
        pthread_mutex_lock(&s->lock);
    } while (wait_turn(s));
    bury(s);
    pthread_mutex_unlock(&s->lock);
    for (size_t i = 0; i < s->n; i++) {
        rd_kafka_topic_destroy(s->topics[i].rkt);
        free(s->topics[i].refused);
    }
    rd_kafka_destroy(s->rk);
    return NULL;
}

/* ---- from the shard ---- */

enum ob_status ob__kafka_scout_start(const struct kafka_conf *c, int event_fd,
                                     struct kafka_scout **out, struct ob_err *err)
{
    struct kafka_scout *s = calloc(1, sizeof(*s));
    if (!s)
        return ob_err_set(err, OB_FATAL, "no memory");
    enum ob_status st = ob__kafka_handle(c, KAFKA_SCOUT, false, KAFKA_BATCH_BYTES, &s->rk, err);
    if (st != OB_OK) {
        free(s);
        return st;
    }
    pthread_condattr_t attr;
    s->conf = c;
    s->event_fd = event_fd;
    s->every_ms = 250;
    s->last = &s->first;
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&s->cond, &attr);
    pthread_condattr_destroy(&attr);
    if (pthread_create(&s->thread, NULL, run, s) != 0) {
        rd_kafka_destroy(s->rk);
        free(s);
        return ob_err_set(err, OB_FATAL, "kafka: no thread");
    }
    *out = s;
    return OB_OK;
}

bool ob__kafka_scout_ask(struct kafka_scout *s, uint32_t topic, const char *name)
{
    bool fine = true;
    pthread_mutex_lock(&s->lock);
    if (s->n_fresh == s->cap_fresh) {
        size_t cap = s->cap_fresh ? s->cap_fresh * 2 : 16;
        struct asked *more = realloc(s->fresh, cap * sizeof(*more));
        fine = more != NULL;
        if (more) {
            s->fresh = more;
            s->cap_fresh = cap;
        }
    }
    if (fine)
        s->fresh[s->n_fresh++] = (struct asked){.name = name, .topic = topic};
    pthread_cond_signal(&s->cond);
    pthread_mutex_unlock(&s->lock);
    return fine;
}

void ob__kafka_scout_pace(struct kafka_scout *s, int every_ms, bool now, bool learn)
{
    pthread_mutex_lock(&s->lock);
    bool faster = every_ms < s->every_ms;
    s->every_ms = every_ms;
    s->now = s->now || now || faster;
    s->learn = s->learn || learn;
    if (s->now)
        pthread_cond_signal(&s->cond);
    pthread_mutex_unlock(&s->lock);
}

struct kafka_report *ob__kafka_scout_take(struct kafka_scout *s)
{
    pthread_mutex_lock(&s->lock);
    struct kafka_report *r = s->first;
    s->first = NULL;
    s->last = &s->first;
    pthread_mutex_unlock(&s->lock);
    return r;
}

void ob__kafka_scout_bury(struct kafka_scout *s, rd_kafka_t *rk)
{
    pthread_mutex_lock(&s->lock);
    bool place = s->n_dead < DEAD_MAX;
    if (place)
        s->dead[s->n_dead++] = rk;
    pthread_cond_signal(&s->cond);
    pthread_mutex_unlock(&s->lock);
    if (!place)
        rd_kafka_destroy(rk);
}

void ob__kafka_scout_stop(struct kafka_scout *s)
{
    if (!s)
        return;
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    pthread_cond_signal(&s->cond);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    for (struct kafka_report *r = s->first, *next; r; r = next) {
        next = r->next;
        ob__kafka_report_free(r);
    }
    pthread_cond_destroy(&s->cond);
    pthread_mutex_destroy(&s->lock);
    free(s->fresh);
    free(s->topics);
    free(s);
}
