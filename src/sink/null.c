/* SPDX-License-Identifier: Apache-2.0 */
/* null - delivers at once and keeps nothing; for benchmarks. With latency_us a message is delivered
 * that long after it was accepted; with refuse a file says which ones are not. */
#include "sink/refuse.h"
#include "sink/sink.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define CAP ((size_t)16384)

struct null_conf {
    int64_t latency_us;
    const char *refuse; /* NULL: none */
};

struct ob_sink {
    struct ob_sink_env env;
    int64_t latency_us;
    const char *refuse_path;
    struct ob_refuse refuse;
    int timer; /* -1 without latency */
    bool reset;
    bool said_up;
    uint64_t head, tail; /* accepted and delivered so far */
    struct null_item {
        uint64_t token;
        int64_t due_us;
        enum ob_verdict verdict;
    } ring[CAP];
};

static const struct ob_opt null_opts[] = {
    {.type = OB_OPT_INT,
     .name = "latency_us",
     .def = "0",
     .offset = offsetof(struct null_conf, latency_us),
     .min = 0,
     .max = 60000000,
     .help = "Microseconds between accepting a message and delivering it."},
    {.type = OB_OPT_STR,
     .name = "refuse",
     .offset = offsetof(struct null_conf, refuse),
     .help = "A file of lines `retry|reject|blocked|returned GLOB`, read before each batch: "
             "messages whose "
             "topic, key or id matches are answered so. To rehearse a broker's refusals."},
    {0},
};

static enum ob_status null_open(const struct ob_sink_env *env, const void *conf,
                                struct ob_sink **out, struct ob_sink_caps *caps, struct ob_err *err)
{
    const struct null_conf *c = conf;
    struct ob_sink *s = calloc(1, sizeof(*s));
    if (!s)
        return ob_err_set(err, OB_FATAL, "no memory");
    s->env = *env;
    s->latency_us = c->latency_us;
    s->refuse_path = c->refuse;
    s->timer = -1;
    if (s->latency_us > 0) {
        s->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
        if (s->timer < 0) {
            free(s);
            return ob_err_set(err, OB_FATAL, "timerfd: %s", strerror(errno));
        }
    }
    /* Who refuses one of a key may have taken the next already: that is not in order. */
    *caps = (struct ob_sink_caps){.ordered = !c->refuse, .max_in_flight = CAP};
    *out = s;
    return OB_OK;
}

static int null_wait_fd(const struct ob_sink *s)
{
    return s->timer;
}

static bool waits(const struct ob_sink *s)
{
    return s->tail < s->head;
}

static int64_t null_wake_at(const struct ob_sink *s)
{
    return !s->said_up || (waits(s) && (s->timer < 0 || s->reset)) ? 0 : INT64_MAX;
}

/* Rings when the oldest message is due; never when there is none. */
static void arm(struct ob_sink *s, int64_t now)
{
    if (s->timer < 0)
        return;
    struct itimerspec when = {0};
    if (waits(s)) {
        int64_t us = s->ring[s->tail % CAP].due_us - now;
        us = us < 1 ? 1 : us;
        when.it_value.tv_sec = us / 1000000;
        when.it_value.tv_nsec = us % 1000000 * 1000;
    }
    timerfd_settime(s->timer, 0, &when, NULL); /* also takes back what rang */
}

static enum ob_status null_submit(struct ob_sink *s, const struct ob_msg *const *msgs,
                                  const uint64_t *tokens, size_t *n, struct ob_err *err)
{
    (void)err;
    size_t room = s->reset ? 0 : CAP - (size_t)(s->head - s->tail);
    size_t taken = *n < room ? *n : room;
    bool idle = !waits(s);
    int64_t now = s->latency_us > 0 ? s->env.clock->mono_us(s->env.clock->user) : 0;
    if (s->refuse_path && taken > 0)
        ob_refuse_read(&s->refuse, s->refuse_path);
    for (size_t i = 0; i < taken; i++)
        s->ring[s->head++ % CAP] = (struct null_item){
            tokens[i], now + s->latency_us,
            s->refuse.n ? ob_refuse_verdict(&s->refuse, msgs[i]) : OB_V_DELIVERED};
    if (idle && taken > 0)
        arm(s, now);
    *n = taken;
    return OB_OK;
}

static void give_back(struct ob_sink *s)
{
    struct ob_err why;
    ob_err_set(&why, OB_DOWN, "given back: the sink was reset");
    for (; waits(s); s->tail++)
        s->env.events->done(s->env.user, s->ring[s->tail % CAP].token, OB_V_RETURNED, &why);
    s->reset = false;
    arm(s, 0);
}

static void null_poll(struct ob_sink *s)
{
    const struct ob_sink_events *ev = s->env.events;
    if (s->reset)
        give_back(s);
    if (!s->said_up) {
        s->said_up = true;
        ev->state(s->env.user, OB_SINK_UP, 0, NULL);
    }
    if (!waits(s))
        return;
    int64_t now = s->latency_us > 0 ? s->env.clock->mono_us(s->env.clock->user) : INT64_MAX;
    struct ob_err why;
    ob_err_set(&why, OB_REJECT, "refused, as the file says");
    for (; waits(s) && s->ring[s->tail % CAP].due_us <= now; s->tail++) {
        const struct null_item *item = &s->ring[s->tail % CAP];
        ev->done(s->env.user, item->token, item->verdict,
                 item->verdict == OB_V_DELIVERED ? NULL : &why);
    }
    arm(s, now);
}

static void null_reset(struct ob_sink *s)
{
    s->reset = waits(s);
    s->said_up = false; /* whoever reset it is told when it may be used again */
}

static void null_close(struct ob_sink *s, int grace_ms)
{
    (void)grace_ms;
    if (!s)
        return;
    if (s->timer >= 0)
        close(s->timer);
    ob_refuse_clear(&s->refuse);
    free(s);
}

const struct ob_sink_driver ob_sink_null = {
    .name = "null",
    .summary = "Delivers at once and keeps nothing; for benchmarks.",
    .opts = null_opts,
    .conf_size = sizeof(struct null_conf),
    .open = null_open,
    .wait_fd = null_wait_fd,
    .wake_at = null_wake_at,
    .submit = null_submit,
    .poll = null_poll,
    .reset = null_reset,
    .close = null_close,
};
