/* SPDX-License-Identifier: Apache-2.0 */
/* route - 2 DECIDE: where an event goes and which bytes it becomes. Compiled once, then pure and
 * thread-safe. */
#ifndef OB_ROUTE_ROUTE_H
#define OB_ROUTE_ROUTE_H

#include "core/arena.h"
#include "core/buf.h"
#include "core/err.h"
#include "core/opt.h"
#include "event/msg.h"

struct ob_routes;

enum ob_envelope {
    OB_ENV_NONE,
    OB_ENV_CLOUDEVENTS,
    OB_ENV_CLOUDEVENTS_STRUCTURED,
    OB_ENV_DEBEZIUM,
    OB_ENV_TEMPLATE,
    OB_ENV_JSON, /* verbatim, but nothing that is no JSON */
};

/* Ceilings; what is longer is rejected with the reason. */
#define OB_ROUTE_TOPIC_MAX 32767
#define OB_ROUTE_KEY_MAX 65535
#define OB_ROUTE_HEADER_NAME_MAX 255
#define OB_ROUTE_HEADER_MAX 65535
#define OB_ROUTE_VALUE_MAX ((size_t)64 << 20) /* of a value that an envelope makes */

struct ob_route_conf {
    const struct ob_node *routes;   /* `routes:` list, may be NULL: one default route */
    const struct ob_node *envelope; /* `envelope:` of the pipeline: a name or a map {template: …};
                                       NULL: cloudevents */
    const char *service;            /* ${service} and the CloudEvents source */
    const char *default_topic;      /* of the default route when routes has none: a template,
                                       "${topic:-outbox}" if NULL */
    bool log_key;                   /* default key is ${key:-${aggregate_id:-${id}}}: always */
};

/* Compiles. Errors name file:line:column and, for an unknown field, the nearest known one. */
enum ob_status ob_routes_new(const struct ob_route_conf *conf, struct ob_routes **out,
                             struct ob_err *err) OB_MUST_CHECK;
void ob_routes_free(struct ob_routes *r);

#define OB_NAMES_MAX 256

/* Each once, in the order of the routes. */
struct ob_names {
    const char *list[OB_NAMES_MAX];
    size_t n;
};

/* What can be told of the addresses before there is an event. */
struct ob_known {
    struct ob_names topics, streams;
    struct ob_place places[OB_NAMES_MAX]; /* topics whose stream is known too; each once */
    size_t n_places;
    bool streamless;  /* some route names no stream */
    bool all_topics;  /* no event makes another one */
    bool row_streams; /* some route takes the stream that the row names */
};

/* Names are the arena's. OB_RETRY: no memory. */
enum ob_status ob_routes_known(const struct ob_routes *r, struct ob_arena *arena,
                               struct ob_known *out, struct ob_err *err) OB_MUST_CHECK;

/* A fingerprint of the rules that make the key of an event; never 0. Where it is the same, every
 * event has the same key and belongs to the same shard. A change of topics, headers or envelopes
 * does not change it. */
uint64_t ob_routes_key_rules(const struct ob_routes *r);

/* Fills *msg. Its slices are the event's, arena's or r's own: r must live as long as msg. New bytes
 * are taken from arena (scratch is reused between calls). now_us is ${now}. OB_OK; OB_REJECT: this
 * event cannot be routed or enveloped, with the reason (then msg->key_hash, dest_hash and
 * destination are still set as well as they can be, so that its key's order holds); OB_RETRY: no
 * memory, or arena is at its ceiling: not the event's fault, nothing is spent. */
enum ob_status ob_route_event(const struct ob_routes *r, const struct ob_event *ev, int64_t now_us,
                              struct ob_arena *arena, struct ob_buf *scratch, struct ob_msg *msg,
                              struct ob_err *err) OB_MUST_CHECK;
/* The trace id for log lines and spans: what the route's `trace_id:` gives, else that of the row's
 * traceparent. Empty: none. */
struct ob_str ob_route_trace_id(const struct ob_routes *r, const struct ob_event *ev,
                                int64_t now_us, struct ob_arena *arena, struct ob_buf *scratch);

#endif
