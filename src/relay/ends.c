/* SPDX-License-Identifier: Apache-2.0 */
/* ends - a shard's memory, and opening and closing what it stands between: source, flow and sink.
 */
#include "relay/shard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

void ob__shard_close_sink(struct shard *s, int grace_ms)
{
    if (s->sink)
        s->conf->sink->close(s->sink, grace_ms);
    s->sink = NULL;
    s->n_verdicts = 0;
    ob__shard_dlt_forget(s);
}

/* Nothing of the window is needed any more: the sink must not hold a message. */
void ob__shard_forget(struct shard *s)
{
    if (s->flow) {
        ob__shard_count_overtaken(s);
        s->flow_overtaken = s->flow_returned = 0;
        ob_flow_reset(s->flow);
        ob__shard_collect(s);
    }
    ob_flow_free(s->flow);
    s->flow = NULL;
    ob_batch_unref(s->kept);
    s->kept = NULL;
    s->settle_open = false;
}

void ob__shard_close_source(struct shard *s)
{
    if (s->source)
        s->conf->source->close(s->source);
    s->source = NULL;
}

enum ob_status ob__shard_open_source(struct shard *s, struct ob_err *err)
{
    const struct ob_backoff retry = {.first_ms = (uint32_t)s->conf->retry_first_ms,
                                     .factor_pct = (uint32_t)s->conf->retry_factor_pct,
                                     .max_ms = (uint32_t)s->conf->retry_max_ms};
    struct ob_source_env env = {.pipeline = s->conf->name,
                                .shard = s->no,
                                .shards = (unsigned)s->conf->shards,
                                .key_rules = ob_routes_key_rules(s->routes),
                                .owner = s->owner,
                                .retry = &retry,
                                .limits = &s->conf->limits,
                                .clock = s->clock,
                                .log = &s->log,
                                .dlt = s->conf->dlt,
                                .accept_loss = s->relay->opts.accept_loss};
    memset(&s->source_caps, 0, sizeof(s->source_caps));
    enum ob_status st =
        s->conf->source->open(&env, s->conf->source_conf, &s->source, &s->source_caps, err);
    if (st == OB_OK && (s->source_caps.page == 0 || s->source_caps.page > s->window))
        s->source_caps.page = s->window;
    return st;
}

/* Once per pipeline, however often the sink is opened. */
static void warn_exposed(struct shard *s)
{
    struct ob_wire w = {.network = false};
    char what[OB_HOST_MAX + 80];
    if (!s->conf->sink->wire || s->no != 0 || s->warned_exposed)
        return;
    s->warned_exposed = true;
    s->conf->sink->wire(s->conf->sink_conf, &w);
    if (ob_wire_exposed(&w, what, sizeof(what)))
        ob_log(&s->log, OB_LOG_WARN, "sink.plaintext", OB_KC("error", what));
}

enum ob_status ob__shard_open_sink(struct shard *s, struct ob_err *err)
{
    warn_exposed(s);
    struct ob_sink_env env = {.pipeline = s->conf->name,
                              .shard = s->no,
                              .shards = (unsigned)s->conf->shards,
                              .strict = s->conf->order == OB_ORDER_STRICT,
                              .clock = s->clock,
                              .log = &s->log,
                              .events = &ob__shard_sink_events,
                              .user = s};
    memset(&s->sink_caps, 0, sizeof(s->sink_caps));
    return s->conf->sink->open(&env, s->conf->sink_conf, &s->sink, &s->sink_caps, err);
}

enum ob_status ob__shard_open_flow(struct shard *s, struct ob_err *err)
{
    const struct ob_pipeline_conf *c = s->conf;
    size_t flight = s->sink_caps.max_in_flight;
    if (c->dlt && flight > 2 * DLT_MAX)
        flight -= DLT_MAX; /* places of their own */
    struct ob_flow_conf f = {
        .window_events = (uint32_t)s->window,
        .window_bytes = (uint64_t)c->window_bytes,
        .max_in_flight = flight > 0 && flight < s->window ? (uint32_t)flight : (uint32_t)s->window,
        .order = (enum ob_order)c->order,
        .on_dead = (enum ob_on_dead)c->on_dead,
        .ordered_sink = s->sink_caps.ordered,
        .log_source = s->source_caps.log,
        .max_attempts = (uint32_t)c->max_attempts,
        .max_attempts_cap = (uint32_t)(c->max_attempts > c->max_attempts_cap ? c->max_attempts
                                                                             : c->max_attempts_cap),
        .retry = {.first_ms = (uint32_t)c->retry_first_ms,
                  .factor_pct = (uint32_t)c->retry_factor_pct,
                  .max_ms = (uint32_t)c->retry_max_ms,
                  .jitter_pct = (uint32_t)c->retry_jitter_pct},
        .probe = {.first_ms = 200, .factor_pct = 200, .max_ms = 10000, .jitter_pct = 20},
        .park_after_ms = (uint32_t)c->park_after_ms,
        .publish_timeout_ms = (uint32_t)c->publish_timeout_ms,
        .blocked_max_ms = c->blocked_max_ms,
        .settle_every_ms = s->source_caps.settle_every_ms,
        .ahead_max = 32768,
        .held_max = 8192,
        .dest_max = 1024,
        .seed = ob_rand_next(&s->rand),
    };
    s->flow = ob_flow_new(&f, err);
    return s->flow ? OB_OK : OB_FATAL;
}

enum ob_status ob__shard_init(struct shard *s, struct ob_relay *relay,
                              const struct ob_pipeline_conf *conf, unsigned no, struct ob_err *err)
{
    memset(s, 0, sizeof(*s));
    s->relay = relay;
    s->conf = conf;
    s->no = no;
    s->clock = relay->opts.clock;
    s->log = *relay->opts.log;
    s->log.pipeline = conf->name;
    s->log.shard = conf->shards > 1 ? (int)no : -1;
    s->window = (size_t)conf->window;
    s->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    ob_buf_init(&s->scratch, 0);
    s->rand.state = (uint64_t)ob_clock_wall_us(s->clock) ^ ((uint64_t)getpid() << 32) ^ no;
    char host[64] = "localhost";
    gethostname(host, sizeof(host) - 1);
    snprintf(s->owner, sizeof(s->owner), "%s:%d:%08x", host, (int)getpid(), relay->id);
    size_t w = s->window;
    s->entries = calloc(w, sizeof(*s->entries));
    s->claimed = calloc(w, sizeof(*s->claimed));
    s->tokens = calloc(w, sizeof(*s->tokens));
    s->hashes = calloc(w, sizeof(*s->hashes));
    s->released = calloc(w, sizeof(*s->released));
    s->held = calloc(w, sizeof(*s->held));
    s->verdicts = calloc(w, sizeof(*s->verdicts));
    s->msgs = calloc(w, sizeof(*s->msgs));
    s->ops = calloc(w, sizeof(*s->ops));
    if (s->wake_fd < 0 || !s->entries || !s->claimed || !s->tokens || !s->hashes || !s->released ||
        !s->held || !s->verdicts || !s->msgs || !s->ops)
        return ob_err_set(err, OB_FATAL, "pipeline %s: no memory for a window of %zu events",
                          conf->name, w);
    return ob_routes_new(&conf->route, &s->routes, err);
}

void ob__shard_clear(struct shard *s)
{
    ob__shard_dlt_close(s);
    ob_routes_free(s->routes);
    ob_buf_clear(&s->scratch);
    if (s->wake_fd >= 0)
        close(s->wake_fd);
    free(s->entries);
    free(s->claimed);
    free(s->tokens);
    free(s->hashes);
    free(s->released);
    free(s->held);
    free(s->verdicts);
    free(s->msgs);
    free(s->ops);
}
