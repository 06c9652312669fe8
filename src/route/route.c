/* SPDX-License-Identifier: Apache-2.0 */
/* route - one event through the rules: the first that matches gives address, value and headers. */
#include "route/rule.h"

#include <stdio.h>

#define SCRATCH_KEPT ((size_t)1 << 20) /* more than this is given back after a large event */
#define SHOWN_MAX 256                  /* bytes of a destination that is too long */

static bool pattern_matches(const struct ob_pattern *p, struct ob_str text)
{
    switch (p->kind) {
    case OB_PAT_EXACT:
        return ob_str_eq(p->text, text);
    case OB_PAT_PREFIX:
        return text.n >= p->text.n && memcmp(text.p ? text.p : "", p->text.p, p->text.n) == 0;
    case OB_PAT_GLOB:
        return ob_glob(p->text, text);
    }
    return false;
}

static bool field_matches(const struct ob_patterns *list, struct ob_str text)
{
    for (size_t i = 0; i < list->n; i++)
        if (pattern_matches(&list->any_of[i], text))
            return true;
    return list->n == 0;
}

static const struct ob_rule *pick(const struct ob_routes *r, const struct ob_event *ev)
{
    for (size_t i = 0; i < r->n; i++) {
        const struct ob_rule *rule = &r->rules[i];
        if (rule->any ||
            (field_matches(&rule->match[OB_MATCH_TYPE], ev->type) &&
             field_matches(&rule->match[OB_MATCH_AGGREGATE_TYPE], ev->aggregate_type) &&
             field_matches(&rule->match[OB_MATCH_TENANT], ev->tenant) &&
             field_matches(&rule->match[OB_MATCH_TOPIC], ev->topic)))
            return rule;
    }
    return NULL;
}

static struct ob_str own_key(const struct ob_event *ev)
{
    return ev->key.n > 0 ? ev->key : ev->aggregate_id.n > 0 ? ev->aggregate_id : ev->id;
}

static struct ob_str own_topic(const struct ob_event *ev)
{
    return ev->topic.n > 0 ? ev->topic : OB_STR("outbox");
}

/* A part of the address as wanted: not too long, nothing that a line protocol would stumble on. */
static enum ob_status check_name(struct ob_str s, size_t most, const char *what, struct ob_err *err)
{
    if (s.n > most)
        return ob_err_set(err, OB_REJECT, "%s has %zu bytes; at most %zu", what, s.n, most);
    if (ob_has_control(s))
        return ob_err_set(err, OB_REJECT, "%s has a control character", what);
    return OB_OK;
}

static enum ob_status make_topic(struct ob_rctx *c, const struct ob_rule *rule, struct ob_msg *msg,
                                 struct ob_err *err)
{
    /* A hole in a topic's name would send the event where nobody looks for it. */
    c->missing = OB_MISSING_REJECT;
    enum ob_status st = ob_tmpl_text(c, &rule->topic, &msg->topic, NULL, err);
    c->missing = rule->missing;
    if (st != OB_OK) {
        msg->topic = own_topic(c->ev);
        ob_err_prefix(err, "topic");
        return st;
    }
    if (msg->topic.n == 0) {
        msg->topic = own_topic(c->ev);
        return ob_err_set(err, OB_REJECT, "topic is empty");
    }
    return check_name(msg->topic, OB_ROUTE_TOPIC_MAX, "topic", err);
}

static enum ob_status make_stream(struct ob_rctx *c, const struct ob_rule *rule, struct ob_msg *msg,
                                  struct ob_err *err)
{
    enum ob_status st = ob_tmpl_text(c, &rule->stream, &msg->stream, NULL, err);
    if (st != OB_OK) {
        msg->stream = c->ev->stream;
        ob_err_prefix(err, "stream");
        return st;
    }
    return check_name(msg->stream, OB_ROUTE_TOPIC_MAX, "stream", err);
}

static enum ob_status make_key(struct ob_rctx *c, const struct ob_rule *rule, struct ob_msg *msg,
                               struct ob_err *err)
{
    enum ob_status st = OB_OK;
    msg->key = own_key(c->ev);
    if (rule->own_key)
        st = ob_tmpl_text(c, &rule->key, &msg->key, NULL, err);
    if (st != OB_OK) {
        ob_err_prefix(err, "key"); /* and its own key stands */
    } else if (msg->key.n > OB_ROUTE_KEY_MAX) {
        st = ob_err_set(err, OB_REJECT, "key has %zu bytes; at most %d", msg->key.n,
                        OB_ROUTE_KEY_MAX);
    }
    return st;
}

static enum ob_status make_destination(struct ob_rctx *c, struct ob_msg *msg, struct ob_err *err)
{
    enum ob_status st = OB_OK;
    struct ob_str t = msg->topic, s = msg->stream;
    msg->destination = t;
    if (t.n > OB_ROUTE_TOPIC_MAX || s.n > OB_ROUTE_TOPIC_MAX) {
        msg->destination.n = t.n < SHOWN_MAX ? t.n : SHOWN_MAX;
    } else if (s.n > 0) {
        char *p = ob_arena_alloc(c->arena, s.n + 1 + t.n);
        if (p != NULL) {
            memcpy(p, s.p, s.n);
            p[s.n] = '/';
            memcpy(p + s.n + 1, t.p, t.n);
            msg->destination = (struct ob_str){p, s.n + 1 + t.n};
        } else {
            st = ob_rctx_nomem(err);
        }
    }
    uint64_t h = ob_hash64(msg->destination.p, msg->destination.n);
    /* 0 is "the whole broker" and UINT64_MAX "behind a dead event": neither is a destination. */
    msg->dest_hash = h == 0 ? 1 : h == UINT64_MAX ? UINT64_MAX - 1 : h;
    return st;
}

/* A row that was parked stays under its hash although routes may have changed since. A message
 * without a key waits for nobody. */
static void hash_key(const struct ob_event *ev, struct ob_msg *msg)
{
    struct ob_str by = msg->key.n > 0 ? msg->key : ev->id;
    msg->key_hash = ev->park_n != 0 ? ev->park_hash : ob_hash64(by.p, by.n);
}

/* All four are made, whatever fails; err tells the first failure. */
static enum ob_status address(struct ob_rctx *c, const struct ob_rule *rule, struct ob_msg *msg,
                              struct ob_err *err)
{
    enum ob_status st = make_topic(c, rule, msg, err), next;
    next = make_stream(c, rule, msg, st == OB_OK ? err : NULL);
    st = st == OB_OK ? next : st;
    next = make_key(c, rule, msg, st == OB_OK ? err : NULL);
    st = st == OB_OK ? next : st;
    next = make_destination(c, msg, st == OB_OK ? err : NULL);
    st = st == OB_OK ? next : st;
    hash_key(c->ev, msg);
    return st;
}

#define SHOW(s) (int)((s).n < 80 ? (s).n : 80), ((s).p ? (s).p : "")

static enum ob_status unrouted(struct ob_rctx *c, struct ob_msg *msg, struct ob_err *err)
{
    const struct ob_event *ev = c->ev;
    msg->topic = own_topic(ev);
    msg->stream = ev->stream;
    msg->key = own_key(ev);
    enum ob_status st = make_destination(c, msg, err);
    hash_key(ev, msg);
    if (st != OB_OK)
        return st;
    return ob_err_set(err, OB_REJECT,
                      "no route matches type \"%.*s\" (aggregate_type \"%.*s\", tenant \"%.*s\", "
                      "topic \"%.*s\"); a route without match takes the rest",
                      SHOW(ev->type), SHOW(ev->aggregate_type), SHOW(ev->tenant), SHOW(ev->topic));
}

static enum ob_status fill(struct ob_rctx *c, const struct ob_rule *rule, struct ob_msg *msg,
                           struct ob_err *err)
{
    struct ob_header_list headers;
    headers.n = 0;
    c->missing = rule->missing;
    c->epoch_ms = rule->epoch_ms;
    enum ob_status st = address(c, rule, msg, err);
    if (st == OB_OK && ob_has_control(msg->id))
        st = ob_err_set(err, OB_REJECT, "id has a control character");
    if (st == OB_OK)
        st = ob_envl_fill(c, rule, msg, &headers, err);
    if (st == OB_OK)
        st = ob_headers_fill(c, rule, msg, &headers, err);
    return st;
}

static void begin(struct ob_rctx *c, const struct ob_routes *r, const struct ob_event *ev,
                  int64_t now_us, struct ob_arena *arena, struct ob_buf *scratch)
{
    /* Field by field: the text buffers need no zeros. */
    c->ev = ev;
    c->now_us = now_us;
    c->arena = arena;
    c->scratch = scratch;
    c->service = r->service;
    c->epoch_ms = false;
    c->missing = OB_MISSING_NULL;
    c->payload.kind = OB_VAL_MISSING;
    c->payload.passing = false;
    c->now_n = c->created_n = 0;
    ob_buf_reset(scratch);
}

enum ob_status ob_route_event(const struct ob_routes *r, const struct ob_event *ev, int64_t now_us,
                              struct ob_arena *arena, struct ob_buf *scratch, struct ob_msg *msg,
                              struct ob_err *err)
{
    struct ob_rctx c;
    begin(&c, r, ev, now_us, arena, scratch);
    *msg = (struct ob_msg){.event = ev, .id = ev->id};
    const struct ob_rule *rule = pick(r, ev);
    enum ob_status st = rule != NULL ? fill(&c, rule, msg, err) : unrouted(&c, msg, err);
    if (scratch->cap > SCRATCH_KEPT)
        ob_buf_clear(scratch);
    return st;
}

/* "00-", a trace id of 32 hex digits, "-…" (W3C Trace Context). */
static struct ob_str id_of_traceparent(struct ob_str t)
{
    if (t.n < 55 || t.p[2] != '-' || t.p[35] != '-')
        return OB_STR("");
    for (size_t i = 3; i < 35; i++)
        if (t.p[i] == '\0' || strchr("0123456789abcdef", t.p[i]) == NULL)
            return OB_STR("");
    return (struct ob_str){t.p + 3, 32};
}

struct ob_str ob_route_trace_id(const struct ob_routes *r, const struct ob_event *ev,
                                int64_t now_us, struct ob_arena *arena, struct ob_buf *scratch)
{
    struct ob_rctx c;
    struct ob_str id = OB_STR("");
    struct ob_trace trace;
    begin(&c, r, ev, now_us, arena, scratch);
    const struct ob_rule *rule = pick(r, ev);
    if (rule != NULL && rule->own_trace_id) {
        if (ob_tmpl_text(&c, &rule->trace_id, &id, NULL, NULL) != OB_OK)
            id = OB_STR("");
    } else if (ob_trace_read(&c, &trace, NULL) == OB_OK) {
        id = id_of_traceparent(trace.parent);
    }
    return id;
}
