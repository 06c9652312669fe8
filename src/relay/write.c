/* SPDX-License-Identifier: Apache-2.0 */
/* write - from the flow to the sink and back to the source: submit, verdicts, settle. */
#include "relay/shard.h"

#include "core/jscan.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* The trace id of the traceparent in a JSON object, or nothing. */
static struct ob_str trace_in(struct ob_str object)
{
    struct ob_str raw;
    enum ob_jtype type;
    struct ob_err err;
    if (object.n == 0 ||
        ob_json_pointer(object, OB_STR("/traceparent"), &raw, &type, &err) != OB_OK ||
        type != OB_J_STRING || raw.n < 37)
        return (struct ob_str){0};
    return (struct ob_str){raw.p + 4, 32}; /* "00-<32 hex>-… with its quote before */
}

/* The row's own, else what the producer's context stamped. */
static struct ob_str trace_id(const struct ob_event *ev)
{
    struct ob_str id = trace_in(ev->headers);
    return id.n > 0 ? id : trace_in(ev->metadata);
}

static void on_done(void *user, uint64_t token, enum ob_verdict verdict, const struct ob_err *why)
{
    struct shard *s = user;
    if (token & DLT_TOKEN) {
        ob__shard_dlt_done(s, token, verdict, why);
        return;
    }
    struct entry *e = entry_of(s, token);
    if (s->n_verdicts < s->window)
        s->verdicts[s->n_verdicts++] = (struct ob_flow_verdict){.token = token, .verdict = verdict};
    if (!e->msg)
        return;
    if (verdict == OB_V_DELIVERED) {
        int64_t age;
        if (__builtin_sub_overflow(s->wall_us, e->msg->event->created_us, &age))
            age = 0; /* a row can claim any time */
        ob_hist_add(&s->latency_us, age > 0 ? (uint64_t)age : 0);
        ob_hist_bump(&s->delivered, 1);
        if (why)
            ob_hist_bump(&s->unroutable, 1);
        return;
    }
    free(e->reason);
    e->reason = strdup(why && why->text[0] ? why->text : ob_verdict_name(verdict));
    if (verdict != OB_V_RETRY && verdict != OB_V_REJECT)
        return;
    ob_hist_bump(&s->failed, 1);
    ob_log(&s->log, OB_LOG_WARN, verdict == OB_V_RETRY ? "sink.retry" : "sink.reject",
           OB_KC("sink", s->conf->sink->name), OB_KS("event", e->msg->id),
           OB_KS("trace", trace_id(e->msg->event)), OB_KS("destination", e->msg->destination),
           OB_KC("error", e->reason));
}

static void on_state(void *user, enum ob_sink_state state, uint64_t dest, const struct ob_err *why)
{
    struct shard *s = user;
    bool up = state == OB_SINK_UP;
    if (dest != 0) {
        ob_log(&s->log, up ? OB_LOG_INFO : OB_LOG_WARN, up ? "dest.free" : "dest.blocked",
               OB_KI("dest", dest), OB_KC("error", why ? why->text : ""));
        ob_flow_dest(s->flow, s->now, dest, up);
        return;
    }
    if (up == s->sink_down) {
        ob_log(&s->log, up ? OB_LOG_INFO : OB_LOG_WARN, up ? "sink.up" : "sink.down",
               OB_KC("sink", s->conf->sink->name), OB_KC("error", !up && why ? why->text : ""));
        s->sink_down = !up;
    }
    if (why && !up)
        s->sink_why = *why;
    ob_flow_sink(s->flow, s->now, up);
}

const struct ob_sink_events ob__shard_sink_events = {.done = on_done, .state = on_state};

/* What is given back or blocked is no progress: the probes of an outage would hide it from the
 * watchdog. */
static bool something_moved(const struct shard *s)
{
    for (size_t i = 0; i < s->n_verdicts; i++)
        if (s->verdicts[i].verdict != OB_V_RETURNED && s->verdicts[i].verdict != OB_V_BLOCKED)
            return true;
    return false;
}

/* An event is parked because the sink returned it max_attempts times in a row while it was up. */
static void log_returned(struct shard *s)
{
    struct ob_flow_stats st;
    ob_flow_stats(s->flow, &st);
    uint64_t n = st.returned_often - s->flow_returned;
    s->flow_returned = st.returned_often;
    const struct entry *e = entry_of(s, st.returned_token);
    if (n == 0 || !e->msg)
        return;
    ob_log(&s->log, OB_LOG_WARN, "event.returned", OB_KC("sink", s->conf->sink->name),
           OB_KI("events", n), OB_KS("event", e->msg->id),
           OB_KS("destination", e->msg->destination), OB_KI("times", s->conf->max_attempts),
           OB_KC("error", e->reason ? e->reason : "returned"));
}

void ob__shard_poll_sink(struct shard *s)
{
    ob__shard_stage(s, "sink");
    s->wall_us = ob_clock_wall_us(s->clock); /* one look for all that is delivered now */
    s->conf->sink->poll(s->sink);
    if (s->n_verdicts > 0) {
        if (something_moved(s))
            s->progress_ms = s->now;
        ob_flow_verdicts(s->flow, s->now, s->verdicts, s->n_verdicts);
        s->n_verdicts = 0;
        log_returned(s);
    }
}

void ob__shard_submit(struct shard *s)
{
    const struct ob_sink_driver *d = s->conf->sink;
    ob__shard_stage(s, "submit");
    for (;;) {
        size_t n = ob_flow_submit(s->flow, s->now, s->tokens, s->window), taken = n;
        if (n == 0)
            break;
        for (size_t i = 0; i < n; i++)
            s->msgs[i] = entry_of(s, s->tokens[i])->msg;
        struct ob_err err = {.text = ""};
        enum ob_status st = d->submit(s->sink, s->msgs, s->tokens, &taken, &err);
        if (st != OB_OK)
            taken = 0;
        ob_flow_accepted(s->flow, s->now, taken);
        if (st == OB_DOWN)
            on_state(s, OB_SINK_DOWN, 0, &err);
        if (taken < n)
            break; /* full, or down: its descriptor tells when to go on */
    }
    ob__shard_chase(s);
}

/* Messages whose acknowledgement is overdue: also while nothing more is submitted, else a stop or
 * reload would wait for one that never comes. */
void ob__shard_chase(struct shard *s)
{
    const struct ob_sink_driver *d = s->conf->sink;
    size_t n = ob_flow_cancel(s->flow, s->tokens, s->window);
    for (size_t i = 0; i < n && d->cancel; i++)
        d->cancel(s->sink, s->tokens[i]);
    if (ob_flow_wants_reset(s->flow)) {
        ob_log(&s->log, OB_LOG_WARN, "sink.reset", OB_KC("sink", d->name),
               OB_KC("error", "no acknowledgement within publish_timeout"));
        s->sink_down = true;
        ob_err_set(&s->sink_why, OB_DOWN, "no acknowledgement within publish_timeout");
        d->reset(s->sink);
    }
}

static void log_dead(struct shard *s, const struct ob_settle_op *op)
{
    ob_log(&s->log, OB_LOG_ERROR, "event.dead", OB_KS("event", op->event->id),
           OB_KS("trace", trace_id(op->event)), OB_KS("type", op->event->type),
           OB_KS("destination", op->destination), OB_KI("attempts", op->attempts),
           OB_KC("error", op->reason));
}

/* Its destination was blocked for longer than blocked_max: the reason has that and the sink's. */
static void explain_blocked(struct entry *e, int64_t blocked_ms)
{
    struct ob_err why;
    ob_err_set(
        &why, OB_REJECT, "destination '%.*s' was blocked for %" PRId64 " s (blocked_max): %s",
        OB_STR_ARG(e->msg->destination), blocked_ms / 1000, e->reason ? e->reason : "blocked");
    free(e->reason);
    e->reason = strdup(why.text);
    e->expired = true;
}

static void fill_ops(struct shard *s)
{
    int64_t wall_ms = ob_clock_wall_us(s->clock) / 1000;
    for (size_t i = 0; i < s->settle.n; i++) {
        struct ob_settle_op *op = &s->settle.ops[i];
        struct entry *e = entry_of(s, op->token);
        if (op->blocked_ms > 0 && !e->expired)
            explain_blocked(e, op->blocked_ms);
        op->event = e->msg->event;
        op->destination = e->msg->destination;
        op->reason = e->reason          ? e->reason
                     : op->blocked_dest ? "its destination is blocked"
                                        : "waits behind an earlier event of its key";
        op->due_ms = wall_ms + (op->due_ms - s->now);
    }
}

static void settle_result(struct shard *s, enum ob_status st, const struct ob_settled *done,
                          const struct ob_err *err)
{
    s->settle_open = st == OB_AGAIN;
    if (st == OB_AGAIN)
        return;
    if (st == OB_FENCED) {
        ob__shard_fenced(s, err);
        return;
    }
    if (st == OB_OK) {
        for (size_t i = 0; i < s->settle.n; i++)
            if (s->settle.ops[i].kind == OB_SETTLE_DEAD) {
                log_dead(s, &s->settle.ops[i]);
                ob__shard_dlt_wake(s);
            }
        if (done->next_due_ms != INT64_MAX) {
            int64_t at = s->now + done->next_due_ms - ob_clock_wall_us(s->clock) / 1000;
            if (at < s->due_at)
                s->due_at = at;
        }
        s->progress_ms = s->now;
        ob__shard_source_fine(s);
    } else {
        ob__shard_source_failed(s, err);
    }
    ob_flow_settle_end(s->flow, s->now, st, &s->settle, done->released, done->n_released);
}

void ob__shard_settle(struct shard *s)
{
    const struct ob_source_driver *d = s->conf->source;
    struct ob_settled done = {.released = s->released, .next_due_ms = INT64_MAX};
    struct ob_err err = {.text = ""};
    if (s->settle_open) {
        ob__shard_stage(s, "settle");
        settle_result(s, d->settle_finish(s->source, &s->settle, &done, &err), &done, &err);
        return;
    }
    if (s->now < ob_flow_settle_at(s->flow))
        return;
    s->settle.ops = s->ops;
    if (!ob_flow_settle_begin(s->flow, s->now, &s->settle))
        return;
    ob__shard_stage(s, "settle");
    fill_ops(s);
    settle_result(s, d->settle(s->source, &s->settle, &done, &err), &done, &err);
}

void ob__shard_count_overtaken(struct shard *s)
{
    struct ob_flow_stats st;
    ob_flow_stats(s->flow, &st);
    ob_hist_bump(&s->overtaken, st.overtaken - s->flow_overtaken);
    s->flow_overtaken = st.overtaken;
}

/* One line a second at most, and only if something happened. */
void ob__shard_report(struct shard *s)
{
    struct shard_told was = s->told;
    if (s->now < s->report_at)
        return;
    ob__shard_count_overtaken(s);
    s->told = (struct shard_told){atomic_load(&s->delivered), atomic_load(&s->failed),
                                  atomic_load(&s->overtaken), atomic_load(&s->unroutable)};
    if (memcmp(&was, &s->told, sizeof(was)) == 0)
        return;
    s->report_at = s->now + 1000;
    uint64_t d = s->told.delivered - was.delivered, f = s->told.failed - was.failed;
    ob_log(&s->log, OB_LOG_INFO, "relay.batch", OB_KI("total", d + f), OB_KI("published", d),
           OB_KI("failed", f), OB_KI("overtaken", s->told.overtaken - was.overtaken),
           OB_KI("unroutable", s->told.unroutable - was.unroutable));
}
