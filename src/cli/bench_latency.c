/* SPDX-License-Identifier: Apache-2.0 */
/* bench_latency - from the return of COMMIT in a writer to the verdict `delivered` in a relay, in
 * one process so that one clock measures both. A broker's sink is used as it is, with a look at its
 * verdicts: then that is its acknowledgement. */
#include "cli/bench.h"

#include "core/hist.h"
#include "flow/flow.h"
#include "relay/relay.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The sink of this measurement: takes the time and delivers at the next poll. */
struct ob_sink {
    struct ob_sink_env env;
    uint64_t tokens[10000], numbers[10000];
    size_t n;
};

static _Atomic int64_t *committed_us; /* by number; 0: not yet */
static _Atomic int64_t *delivered_us;
static uint64_t most;

static enum ob_status sink_open(const struct ob_sink_env *env, const void *conf,
                                struct ob_sink **out, struct ob_sink_caps *caps, struct ob_err *err)
{
    (void)conf;
    struct ob_sink *s = calloc(1, sizeof(*s));
    if (!s)
        return ob_err_set(err, OB_FATAL, "no memory");
    s->env = *env;
    *caps = (struct ob_sink_caps){.ordered = true, .max_in_flight = 10000};
    *out = s;
    return OB_OK;
}

/* The payload begins with its number: {"n":17, */
static uint64_t number_of(struct ob_str payload)
{
    uint64_t n = 0;
    for (size_t i = 5; i < payload.n && payload.p[i] >= '0' && payload.p[i] <= '9'; i++)
        n = n * 10 + (uint64_t)(payload.p[i] - '0');
    return n;
}

static int sink_fd(const struct ob_sink *s)
{
    (void)s;
    return -1;
}

static int64_t sink_wake(const struct ob_sink *s)
{
    return s->n > 0 ? 0 : INT64_MAX;
}

static enum ob_status sink_submit(struct ob_sink *s, const struct ob_msg *const *msgs,
                                  const uint64_t *tokens, size_t *n, struct ob_err *err)
{
    (void)err;
    for (size_t i = 0; i < *n; i++) {
        s->tokens[s->n] = tokens[i];
        s->numbers[s->n++] = number_of(msgs[i]->event->payload);
    }
    return OB_OK;
}

static void sink_poll(struct ob_sink *s)
{
    int64_t now = s->n > 0 ? ob_clock_system.mono_us(NULL) : 0;
    for (size_t i = 0; i < s->n; i++) {
        if (s->numbers[i] < most)
            atomic_store(&delivered_us[s->numbers[i]], now);
        s->env.events->done(s->env.user, s->tokens[i], OB_V_DELIVERED, NULL);
    }
    s->n = 0;
}

static void sink_reset(struct ob_sink *s)
{
    sink_poll(s);
}

static void sink_close(struct ob_sink *s, int grace_ms)
{
    (void)grace_ms;
    free(s);
}

static const struct ob_sink_driver timed_sink = {
    .name = "timed",
    .open = sink_open,
    .wait_fd = sink_fd,
    .wake_at = sink_wake,
    .submit = sink_submit,
    .poll = sink_poll,
    .reset = sink_reset,
    .close = sink_close,
};

/* ---- the sink of a broker, watched ---- */

static const struct ob_sink_driver *inner;
static struct ob_sink *inner_sink;
static struct ob_sink_env outer;
static uint64_t *number_at; /* by the slot of a token */

static void seen(void *user, uint64_t token, enum ob_verdict verdict, const struct ob_err *why)
{
    uint64_t n = number_at[OB_FLOW_SLOT(token)];
    (void)user;
    if (verdict == OB_V_DELIVERED && n < most)
        atomic_store(&delivered_us[n], ob_clock_system.mono_us(NULL));
    outer.events->done(outer.user, token, verdict, why);
}

static void heard(void *user, enum ob_sink_state state, uint64_t dest, const struct ob_err *why)
{
    (void)user;
    outer.events->state(outer.user, state, dest, why);
}

static enum ob_status around_open(const struct ob_sink_env *env, const void *conf,
                                  struct ob_sink **out, struct ob_sink_caps *caps,
                                  struct ob_err *err)
{
    static const struct ob_sink_events events = {.done = seen, .state = heard};
    struct ob_sink_env own = *env;
    outer = *env;
    own.events = &events;
    enum ob_status st = inner->open(&own, conf, &inner_sink, caps, err);
    *out = inner_sink;
    return st;
}

static enum ob_status around_submit(struct ob_sink *s, const struct ob_msg *const *msgs,
                                    const uint64_t *tokens, size_t *n, struct ob_err *err)
{
    for (size_t i = 0; i < *n; i++)
        number_at[OB_FLOW_SLOT(tokens[i])] = number_of(msgs[i]->event->payload);
    return inner->submit(s, msgs, tokens, n, err);
}

/* The pipeline's own sink, watched; or, of those that write no further than this machine, a timed
 * one in its place. */
static const struct ob_sink_driver *watch(const struct ob_sink_driver *own,
                                          struct ob_sink_driver *around)
{
    if (strcmp(own->name, "null") == 0 || strcmp(own->name, "file") == 0)
        return &timed_sink;
    inner = own;
    *around = *own;
    around->open = around_open;
    around->submit = around_submit;
    return around;
}

/* ---- the measurement ---- */

static void sleep_until_us(int64_t at)
{
    int64_t left = at - ob_clock_system.mono_us(NULL);
    if (left <= 0)
        return;
    struct timespec ts = {.tv_sec = left / 1000000, .tv_nsec = (left % 1000000) * 1000};
    nanosleep(&ts, NULL);
}

static enum ob_status write_events(const struct ob_bench_writer *w, unsigned rate, unsigned seconds,
                                   struct ob_err *err)
{
    char payload[OB_BENCH_PAYLOAD + 1];
    enum ob_status st = OB_OK;
    int64_t start = ob_clock_system.mono_us(NULL), step = 1000000 / (int64_t)rate;
    for (uint64_t i = 0; st == OB_OK && i < (uint64_t)rate * seconds; i++) {
        int n = snprintf(payload, sizeof(payload), "{\"n\":%llu,\"pad\":\"", (unsigned long long)i);
        memset(payload + n, 'x', OB_BENCH_PAYLOAD - (size_t)n);
        memcpy(payload + OB_BENCH_PAYLOAD - 2, "\"}", 3);
        sleep_until_us(start + (int64_t)i * step);
        st = w->write(w->user, payload, err);
        if (st == OB_OK)
            atomic_store(&committed_us[i], ob_clock_system.mono_us(NULL));
    }
    return st;
}

static void *run_relay(void *arg)
{
    struct ob_err err;
    return ob_relay_run(arg, &err) == OB_OK ? NULL : arg;
}

static void sum_up(struct ob_bench_latency *out)
{
    struct ob_hist h;
    memset(&h, 0, sizeof(h));
    int64_t worst = 0;
    for (uint64_t i = 0; i < most; i++) {
        int64_t from = atomic_load(&committed_us[i]), to = atomic_load(&delivered_us[i]);
        if (from == 0 || to == 0)
            continue;
        int64_t us = to > from ? to - from : 0;
        worst = us > worst ? us : worst;
        ob_hist_add(&h, (uint64_t)us);
    }
    out->events = atomic_load(&h.n);
    out->p50_ms = (double)ob_hist_quantile(&h, 500) / 1000;
    out->p99_ms = (double)ob_hist_quantile(&h, 990) / 1000;
    out->max_ms = (double)worst / 1000;
}

enum ob_status ob_bench_latency(const char *config, const struct ob_bench_writer *writer,
                                unsigned rate, unsigned seconds, struct ob_bench_latency *out,
                                struct ob_err *err)
{
    struct ob_config *conf = NULL;
    struct ob_relay *relay = NULL;
    struct ob_sink_driver around;
    pthread_t thread;
    most = (uint64_t)rate * seconds + 1000;
    committed_us = calloc(most, sizeof(*committed_us));
    delivered_us = calloc(most, sizeof(*delivered_us));
    number_at = calloc((size_t)1 << OB_FLOW_SLOT_BITS, sizeof(*number_at));
    enum ob_status st =
        committed_us && delivered_us && number_at ? OB_OK : ob_err_set(err, OB_FATAL, "no memory");
    if (st == OB_OK)
        st = ob_config_load(config, &conf, err);
    if (st == OB_OK) {
        conf->pipelines[0].sink = watch(conf->pipelines[0].sink, &around);
        struct ob_relay_opts opts = {.log = NULL};
        st = ob_relay_new(conf, &opts, &relay, err);
    }
    if (st == OB_OK && pthread_create(&thread, NULL, run_relay, relay) != 0) {
        st = ob_err_set(err, OB_FATAL, "cannot start a thread");
    } else if (st == OB_OK) {
        sleep_until_us(ob_clock_system.mono_us(NULL) + 1500000); /* it has begun to read */
        st = write_events(writer, rate, seconds, err);
        sleep_until_us(ob_clock_system.mono_us(NULL) + 1500000);
        ob_relay_stop(relay);
        pthread_join(thread, NULL);
        sum_up(out);
    }
    ob_relay_free(relay);
    ob_config_free(conf);
    free(committed_us);
    free(delivered_us);
    free(number_at);
    committed_us = delivered_us = NULL;
    return st;
}
