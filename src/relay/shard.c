/* SPDX-License-Identifier: Apache-2.0 */
/* shard - the thread of one shard: opens both ends, becomes owner, goes round on poll(2), ends in
 * order. */
#include "relay/shard.h"

#include "source/admin.h"

#include <poll.h>
#include <string.h>
#include <unistd.h>

static const struct ob_backoff reopen = {
    .first_ms = 200, .factor_pct = 200, .max_ms = 10000, .jitter_pct = 20};
/* A session that was there comes back sooner than something that was never right. */
static const struct ob_backoff reconnect = {
    .first_ms = 200, .factor_pct = 200, .max_ms = 3000, .jitter_pct = 20};

#define AGAIN_MS 10000 /* what happens again within this time is the same trouble */

void ob__shard_stage(struct shard *s, const char *stage)
{
    atomic_store_explicit(&s->stage, stage, memory_order_relaxed);
}

static void set_phase(struct shard *s, enum shard_phase phase)
{
    s->phase = phase;
    atomic_store(&s->phase_seen, (int)phase);
}

/* Was this said already since all was well? Two texts that take turns are no news either. */
static bool said_before(struct shard *s, const char *event, const char *text)
{
    uint64_t hash = ob_hash64(text, strlen(text)) ^ ob_hash64(event, strlen(event));
    size_t n = sizeof(s->said) / sizeof(s->said[0]);
    for (size_t i = 0; i < n && i < s->n_said; i++)
        if (s->said[i] == hash)
            return true;
    s->said[s->n_said++ % n] = hash;
    return false;
}

static void all_well(struct shard *s)
{
    s->last.text[0] = '\0';
    s->n_said = 0;
}

/* A failure that repeats is said once; a new text is said again. */
static void say_once(struct shard *s, const char *event, const struct ob_err *err)
{
    s->last = *err;
    if (said_before(s, event, err->text))
        return;
    s->loud = true;
    ob_log(&s->log, err->status == OB_AGAIN ? OB_LOG_INFO : OB_LOG_ERROR, event,
           OB_KC("error", err->text));
}

static void try_later(struct shard *s)
{
    s->failures++;
    s->retry_at = s->now + ob_backoff_ms(&reopen, s->failures, &s->rand);
}

void ob__shard_source_failed(struct shard *s, const struct ob_err *err)
{
    s->source_down = true;
    say_once(s, "source.down", err);
    s->failures++;
    s->retry_at = s->now + ob_backoff_ms(&reconnect, s->failures, &s->rand);
}

void ob__shard_source_fine(struct shard *s)
{
    if (!s->source_down)
        return;
    s->source_down = false;
    s->failures = 0;
    all_well(s);
    ob_log(&s->log, OB_LOG_INFO, "source.up", OB_KC("source", s->conf->source->name));
}

/* Back to standing by; whoever is next starts with what is recorded. */
static void give_up(struct shard *s, int64_t wait_ms)
{
    ob__shard_close_sink(s, 0);
    ob__shard_forget(s);
    s->conf->source->disown(s->source);
    s->yielding = false;
    s->own_at = s->now + wait_ms;
    set_phase(s, PHASE_STANDBY);
}

/* Sessions that are ended twice a second are one trouble and not a hundred lines. */
void ob__shard_fenced(struct shard *s, const struct ob_err *why)
{
    bool again = s->fenced_ms > 0 && s->now - s->fenced_ms < AGAIN_MS;
    bool said = said_before(s, "relay.fenced", why->text) && again;
    ob_log(&s->log, said ? OB_LOG_DEBUG : OB_LOG_WARN, "relay.fenced", OB_KC("error", why->text));
    s->loud = s->loud || !said;
    s->fenced_ms = s->now;
    give_up(s, again ? 300 : 100);
}

/* ---- phases ---- */

static void finish(struct shard *s, enum ob_status result)
{
    s->result = result;
    set_phase(s, PHASE_ENDED);
}

static void phase_opening(struct shard *s)
{
    struct ob_err err = {.text = ""};
    if (s->now < s->retry_at)
        return;
    ob__shard_stage(s, "open source");
    enum ob_status st = ob__shard_open_source(s, &err);
    if (st == OB_OK) {
        s->failures = 0;
        s->own_at = s->now;
        set_phase(s, PHASE_STANDBY);
        return;
    }
    err.status = st;
    say_once(s, "source.open", &err);
    if (s->relay->opts.once && st == OB_FATAL)
        finish(s, st);
    try_later(s);
}

static void start_running(struct shard *s)
{
    struct ob_err err = {.text = ""};
    ob__shard_stage(s, "open sink");
    enum ob_status st = ob__shard_open_sink(s, &err); /* its caps shape the flow */
    if (st == OB_OK)
        st = ob__shard_open_flow(s, &err);
    if (st != OB_OK) {
        say_once(s, "sink.open", &err);
        ob__shard_close_sink(s, 0);
        ob__shard_forget(s);
        s->conf->source->disown(s->source);
        if (s->relay->opts.once && st == OB_FATAL)
            finish(s, st);
        try_later(s);
        s->own_at = s->retry_at;
        return;
    }
    bool again = s->fenced_ms > 0 && s->now - s->fenced_ms < AGAIN_MS;
    s->failures = 0;
    if (!again)
        all_well(s);
    s->sink_down = s->source_down = s->paused = s->yielding = false;
    s->stuck_said = 0;
    s->claim_ready = true;
    s->beat_at = s->scan_at = s->due_at = s->progress_ms = s->now;
    set_phase(s, PHASE_RUNNING);
    ob_log(&s->log, again && !s->loud ? OB_LOG_DEBUG : OB_LOG_INFO, "relay.start",
           OB_KC("source", s->conf->source->name), OB_KC("sink", s->conf->sink->name),
           OB_KC("owner", s->owner));
    s->loud = false;
    if (s->conf->dlt && !(s->conf->source->admin && s->conf->source->admin->dlt_done))
        ob_log(&s->log, OB_LOG_ERROR, "dlt.off", OB_KC("source", s->conf->source->name),
               OB_KC("error", "this source does not note which letters are to be sent"));
}

static void take_routes(struct shard *s);

static void phase_standby(struct shard *s)
{
    struct ob_err err = {.text = ""};
    if (atomic_load(&s->reload))
        take_routes(s);
    if (s->phase != PHASE_STANDBY || s->now < s->own_at)
        return;
    ob__shard_stage(s, "own");
    enum ob_status st = s->conf->source->own(s->source, &err);
    if (st == OB_OK) {
        start_running(s);
        return;
    }
    err.status = st;
    if (st == OB_AGAIN && s->failures > 0)
        all_well(s);
    say_once(s, st == OB_AGAIN ? "relay.standby" : "source.own", &err);
    s->failures = st == OB_AGAIN ? 0 : s->failures + 1;
    s->own_at = s->now + (st == OB_AGAIN ? 500 : ob_backoff_ms(&reconnect, s->failures, &s->rand));
    if (st == OB_FATAL) { /* reopen from the start: the file may be another one by then */
        ob__shard_close_source(s);
        if (s->relay->opts.once)
            finish(s, st);
        else
            set_phase(s, PHASE_OPENING);
        try_later(s);
    }
}

static const char *state_name(const struct shard *s)
{
    if (atomic_load(&s->stop) || s->yielding)
        return "draining";
    return s->paused ? "paused" : s->sink_down ? "down" : "running";
}

static void beat(struct shard *s)
{
    struct ob_flow_stats st;
    ob_flow_stats(s->flow, &st);
    struct ob_beat b = {.state = state_name(s),
                        .in_flight = st.in_flight,
                        .published = (int64_t)atomic_load(&s->delivered),
                        .failed = (int64_t)atomic_load(&s->failed),
                        .retried = (int64_t)st.retried};
    struct ob_err err = {.text = ""};
    bool paused = s->paused;
    ob__shard_stage(s, "beat");
    enum ob_status got = s->conf->source->beat(s->source, &b, &paused, &err);
    s->beat_at = s->now + 1000;
    if (got == OB_FENCED) {
        ob__shard_fenced(s, &err);
        return;
    }
    if (got != OB_OK && got != OB_AGAIN) {
        ob__shard_source_failed(s, &err);
        return;
    }
    if (got == OB_AGAIN && !s->yielding) {
        s->yielding = true;
        s->yield_at = s->now + s->conf->grace_ms;
        ob_log(&s->log, OB_LOG_INFO, "relay.yield", OB_KI("in_flight", st.in_flight),
               OB_KC("error", err.text));
    }
    if (paused != s->paused) {
        s->beat_at = s->now; /* tells the new state */
        ob_log(&s->log, OB_LOG_INFO, paused ? "relay.paused" : "relay.resumed",
               OB_KI("in_flight", st.in_flight));
    }
    s->paused = paused;
    s->due_at = s->now; /* a person may have retried dead events: one look a second */
}

/* Names the stage that does not move while there is work, each stage once until something moves. */
static void watch(struct shard *s)
{
    static const char *const stages[] = {
        "settle: the source does not take it", "sink: down",
        "sink: no acknowledgement comes",      "destination: blocked",
        "submit: the sink takes nothing",
    };
    struct ob_flow_stats st;
    if (s->now - s->progress_ms < s->conf->stuck_after_ms) {
        s->stuck_said = 0;
        return;
    }
    ob_flow_stats(s->flow, &st);
    unsigned at = s->source_down ? 0 : st.down ? 1 : st.in_flight ? 2 : st.blocked_dests ? 3 : 4;
    if ((s->stuck_said & 1u << at) != 0 || st.in_window == 0 || s->paused)
        return;
    s->stuck_said |= 1u << at;
    ob_log(&s->log, OB_LOG_ERROR, "relay.stuck", OB_KC("stage", stages[at]),
           OB_KI("in_window", st.in_window), OB_KI("in_flight", st.in_flight),
           OB_KI("since_ms", s->now - s->progress_ms),
           OB_KC("error", at == 1 ? s->sink_why.text : s->last.text));
}

static void end_running(struct shard *s, int grace_ms, enum ob_status result)
{
    ob__shard_close_sink(s, grace_ms);
    ob__shard_forget(s);
    s->conf->source->disown(s->source);
    ob_log(&s->log, OB_LOG_INFO, "relay.stop", OB_KI("published", atomic_load(&s->delivered)),
           OB_KI("failed", atomic_load(&s->failed)), OB_KI("overtaken", atomic_load(&s->overtaken)),
           OB_KI("unroutable", atomic_load(&s->unroutable)));
    finish(s, result);
}

/* No new work; what is in flight is waited for and recorded. True when all is. */
static bool quiet(struct shard *s)
{
    struct ob_flow_stats st;
    ob_flow_stats(s->flow, &st);
    return st.in_flight == 0 && !s->settle_open && ob_flow_settle_at(s->flow) == INT64_MAX &&
           ob__shard_dlt_quiet(s);
}

/* The routes of the config that waits; NULL: they cannot be used, which was logged. */
static struct ob_routes *new_routes(struct shard *s)
{
    struct ob_routes *routes = NULL;
    struct ob_err err = {.text = ""};
    pthread_mutex_lock(&s->relay->reload_lock);
    const struct ob_config *config = atomic_exchange(&s->reload, NULL);
    const struct ob_pipeline_conf *c = config ? ob_config_pipeline(config, s->conf->name) : NULL;
    if (!c || ob_routes_new(&c->route, &routes, &err) != OB_OK) {
        routes = NULL;
        ob_log(&s->log, OB_LOG_ERROR, "relay.reload",
               OB_KC("error",
                     c ? err.text : "the pipeline is not in the new file; the old routes stay"));
    }
    pthread_mutex_unlock(&s->relay->reload_lock);
    return routes;
}

/* Other key expressions assign events to other shards. No shard may apply them while another still
 * uses the old ones: an event could belong to neither. The source is opened again; own() waits
 * until every shard is free and lets all of them start from the position of the slowest
 * (tests/e2e/test_key_rules.py). */
static void change_keys(struct shard *s)
{
    if (s->phase == PHASE_RUNNING) {
        ob__shard_close_sink(s, 0);
        ob__shard_forget(s);
        s->conf->source->disown(s->source);
    }
    ob__shard_close_source(s);
    s->yielding = false;
    s->retry_at = s->now;
    set_phase(s, PHASE_OPENING);
}

static void take_routes(struct shard *s)
{
    struct ob_routes *routes = new_routes(s);
    if (!routes)
        return;
    bool keys = ob_routes_key_rules(routes) != ob_routes_key_rules(s->routes);
    if (s->phase == PHASE_RUNNING) {
        ob_flow_reset(s->flow);
        ob__shard_collect(s);
        ob_batch_unref(s->kept);
        s->kept = NULL;
        s->conf->source->rewind(s->source);
        s->claim_ready = true;
        s->scan_at = s->due_at = s->now;
    }
    ob_routes_free(s->routes);
    s->routes = routes;
    ob_log(&s->log, OB_LOG_INFO, "relay.reload", OB_KB("ok", true), OB_KB("keys_changed", keys));
    if (keys)
        change_keys(s);
}

/* `once`: nothing to claim, nothing in the window, nothing due. Or it cannot be done now. */
static void check_once(struct shard *s)
{
    if (!s->relay->opts.once || atomic_load(&s->stop))
        return;
    if (!s->claim_ready && !shard_looking(s) && !s->kept && ob_flow_idle(s->flow) &&
        s->due_at > s->now + 50 && ob__shard_dlt_idle(s))
        end_running(s, 0, OB_OK);
    else if ((s->sink_down || s->source_down || s->paused) &&
             s->now - s->progress_ms > s->conf->grace_ms)
        end_running(s, 0, OB_DOWN);
}

static void phase_running(struct shard *s)
{
    bool stopping = atomic_load(&s->stop) > 0, reloading = atomic_load(&s->reload) != NULL;
    if (s->yielding && !stopping && (quiet(s) || s->now >= s->yield_at)) {
        give_up(s, 1000);
        return;
    }
    if (s->now >= s->beat_at)
        beat(s);
    if (s->phase != PHASE_RUNNING)
        return;
    ob_flow_close(s->flow, stopping || reloading || s->paused || s->yielding);
    ob__shard_poll_sink(s);
    ob_flow_tick(s->flow, s->now);
    if (!s->source_down || s->now >= s->retry_at)
        ob__shard_settle(s);
    if (s->phase != PHASE_RUNNING)
        return;
    ob__shard_collect(s);
    if (!stopping && !reloading && !s->paused && !s->yielding) {
        if (!s->source_down || s->now >= s->retry_at) {
            if (s->now >= s->scan_at)
                ob__shard_scan(s);
            ob__shard_drain(s);
            if (s->phase == PHASE_RUNNING)
                ob__shard_claim(s);
        }
        if (s->phase != PHASE_RUNNING)
            return;
        ob__shard_submit(s);
        ob__shard_dlt(s, true);
    } else {
        ob__shard_chase(s);
        ob__shard_dlt(s, false);
    }
    if (reloading && !stopping && !s->yielding && quiet(s))
        take_routes(s);
    if (s->phase != PHASE_RUNNING)
        return;
    ob__shard_report(s);
    watch(s);
    check_once(s);
}

/* ---- waiting ---- */

static int64_t earlier(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static bool wants_claim(const struct shard *s)
{
    return !s->paused && !s->yielding && !atomic_load(&s->stop) && !atomic_load(&s->reload) &&
           ob__shard_claim_room(s, NULL) > 0;
}

static int64_t running_wake(const struct shard *s)
{
    int64_t at = earlier(s->beat_at, ob_flow_wake_at(s->flow, s->now));
    at = earlier(at, s->conf->sink->wake_at(s->sink));
    if (s->source_down)
        at = earlier(s->beat_at, s->retry_at > s->now ? s->retry_at : s->now + 20);
    else if (wants_claim(s))
        at = s->claim_ready ? s->now : earlier(at, s->conf->source->wake_at(s->source));
    else if (s->pace.until > s->now)
        at = earlier(at, s->pace.until);
    if (!s->source_down && !s->paused && ob_flow_drain_room(s->flow) > 0)
        at = earlier(at, earlier(s->due_at, s->scan_at));
    if (!s->source_down && !s->paused && !s->sink_down)
        at = earlier(at, ob__shard_dlt_at(s));
    if (atomic_load(&s->stop) || atomic_load(&s->reload) || s->relay->opts.once || s->yielding)
        at = earlier(at, s->now + 20);
    return at;
}

static int64_t wake_at(const struct shard *s)
{
    switch (s->phase) {
    case PHASE_OPENING:
        return s->retry_at;
    case PHASE_STANDBY:
        return s->own_at;
    case PHASE_RUNNING:
        return running_wake(s);
    case PHASE_ENDED:
        break;
    }
    return s->now;
}

static void wait_round(struct shard *s)
{
    struct pollfd fds[3] = {{.fd = s->wake_fd, .events = POLLIN},
                            {.fd = -1, .events = POLLIN},
                            {.fd = -1, .events = POLLIN}};
    if (s->phase == PHASE_RUNNING) {
        fds[1].fd = s->conf->sink->wait_fd(s->sink);
        if (s->settle_open ||
            (wants_claim(s) && !s->claim_ready && (!s->source_down || shard_looking(s))))
            fds[2].fd = s->conf->source->wait_fd(s->source);
    }
    int64_t at = wake_at(s), wait_ms = at > s->now ? at - s->now : 0;
    ob__shard_stage(s, "wait");
    int timeout = wait_ms > 1000 ? 1000 : (int)wait_ms; /* a round a second, for the watchdog */
    int n = poll(fds, 3, timeout);
    if (n > 0 && fds[0].revents) {
        uint64_t count;
        ssize_t got = read(s->wake_fd, &count, sizeof(count));
        (void)got;
    }
    s->now = ob_clock_mono_ms(s->clock);
    if (s->phase != PHASE_RUNNING)
        return;
    if ((n > 0 && fds[2].revents) || s->now >= s->conf->source->wake_at(s->source))
        s->claim_ready = true;
}

static void check_stop(struct shard *s)
{
    int stop = atomic_load(&s->stop);
    if (stop == 0)
        return;
    if (s->phase != PHASE_RUNNING) {
        finish(s, s->relay->opts.once ? OB_DOWN : OB_OK);
        return;
    }
    if (s->stop_at == 0)
        s->stop_at = s->now + s->conf->grace_ms;
    if (quiet(s))
        end_running(s, 0, OB_OK);
    else if (stop > 1 || s->now >= s->stop_at)
        end_running(s, 0, OB_DOWN); /* unsettled ones are delivered again by the next owner */
}

/* `once` waits for an owner or a source that is down no longer than the grace period. */
static void check_once_waiting(struct shard *s)
{
    if (s->relay->opts.once && (s->phase == PHASE_OPENING || s->phase == PHASE_STANDBY) &&
        s->now - s->progress_ms > s->conf->grace_ms)
        finish(s, OB_DOWN);
}

void *ob__shard_main(void *arg)
{
    struct shard *s = arg;
    s->now = s->progress_ms = ob_clock_mono_ms(s->clock);
    while (s->phase != PHASE_ENDED) {
        atomic_store_explicit(&s->round_ms, s->now, memory_order_relaxed);
        if (s->phase == PHASE_OPENING)
            phase_opening(s);
        if (s->phase == PHASE_STANDBY)
            phase_standby(s);
        if (s->phase == PHASE_RUNNING)
            phase_running(s);
        check_once_waiting(s);
        if (s->phase != PHASE_ENDED)
            check_stop(s);
        if (s->phase != PHASE_ENDED)
            wait_round(s);
    }
    ob__shard_close_source(s);
    atomic_fetch_add(&s->relay->ended, 1);
    uint64_t one = 1;
    ssize_t put = write(s->relay->wake_fd, &one, sizeof(one));
    (void)put;
    return NULL;
}
