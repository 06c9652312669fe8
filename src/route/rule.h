/* SPDX-License-Identifier: Apache-2.0 */
/* rule - one compiled route: what it matches, and what it makes of an event. */
#ifndef OB_ROUTE_RULE_H
#define OB_ROUTE_RULE_H

#include "route/route.h"
#include "route/shape.h"
#include "route/tmpl.h"

enum ob_match_field {
    OB_MATCH_TYPE,
    OB_MATCH_AGGREGATE_TYPE,
    OB_MATCH_TENANT,
    OB_MATCH_TOPIC,
    OB_MATCH_N
};

struct ob_pattern {
    enum { OB_PAT_EXACT, OB_PAT_PREFIX, OB_PAT_GLOB } kind;
    struct ob_str text; /* PREFIX: without its '*' */
};

struct ob_patterns {
    const struct ob_pattern *any_of;
    size_t n; /* 0: the field does not matter */
};

struct ob_rule_header {
    struct ob_str name;
    struct ob_tmpl value;
};

/* Names of the CloudEvents attributes as headers, with the prefix. */
enum ob_ce_attr {
    OB_CE_SPECVERSION,
    OB_CE_ID,
    OB_CE_SOURCE,
    OB_CE_TYPE,
    OB_CE_SUBJECT,
    OB_CE_TIME,
    /* extensions */
    OB_CE_AGGREGATETYPE,
    OB_CE_ENTITYVERSION,
    OB_CE_SCHEMAVERSION,
    OB_CE_TENANT,
    OB_CE_CORRELATIONID,
    OB_CE_N
};
extern const char *const ob_ce_names[OB_CE_N];

struct ob_ce {
    struct ob_str names[OB_CE_N];
    struct ob_tmpl source, type, subject;
    struct ob_rule_header *ext; /* further extensions; name with the prefix */
    struct ob_str *ext_bare;    /* and without */
    size_t n_ext;
};

struct ob_envl {
    enum ob_envelope kind;
    const struct ob_ce *ce;       /* CLOUDEVENTS, CLOUDEVENTS_STRUCTURED */
    const struct ob_shape *shape; /* TEMPLATE */
};

struct ob_rule {
    bool any; /* no match: the default route */
    struct ob_patterns match[OB_MATCH_N];
    struct ob_tmpl topic, stream;
    bool own_key; /* else key, aggregate_id or id of the row */
    struct ob_tmpl key;
    struct ob_str key_text; /* key as written */
    struct ob_rule_header *headers;
    size_t n_headers;
    struct ob_envl env;
    bool own_content_type;
    struct ob_tmpl content_type;
    bool own_trace_id;
    struct ob_tmpl trace_id;
    enum ob_missing missing;
    bool epoch_ms;
    bool row_headers; /* the row's headers travel too */
};

struct ob_routes {
    struct ob_arena *arena; /* owns everything */
    struct ob_str service;
    struct ob_rule *rules;
    size_t n;
};

/* ---- compiling (rules.c, envelope_conf.c) ---- */

struct ob_route_compiler {
    struct ob_arena *arena;
    const struct ob_route_conf *conf;
    struct ob_err *err;
};

/* node NULL: cloudevents. */
enum ob_status ob_envl_compile(struct ob_route_compiler *c, const struct ob_node *node,
                               struct ob_envl *out) OB_MUST_CHECK;
/* A map of names to templates. */
enum ob_status ob_headers_compile(struct ob_route_compiler *c, const struct ob_node *map,
                                  struct ob_rule_header **out, size_t *n) OB_MUST_CHECK;
enum ob_status ob_scalar_compile(struct ob_route_compiler *c, const struct ob_node *node,
                                 const char *what, struct ob_tmpl *out) OB_MUST_CHECK;
/* Index of map's key i in names; -1 with "unknown key" in err. */
int ob_known_key(struct ob_route_compiler *c, const struct ob_node *map, size_t i,
                 const char *const *names, size_t n, const char *where);
enum ob_status ob_compile_nomem(struct ob_route_compiler *c);

/* ---- per event (envelope.c, headers.c) ---- */

#define OB_HEADERS_MAX 128

struct ob_header_list {
    struct ob_header h[OB_HEADERS_MAX];
    size_t n;
};

/* Value, content type and the envelope's own headers. */
enum ob_status ob_envl_fill(struct ob_rctx *c, const struct ob_rule *rule, struct ob_msg *msg,
                            struct ob_header_list *headers, struct ob_err *err) OB_MUST_CHECK;
/* Adds one whose name is not there yet. Control characters in a value become spaces; in a name
 * they are OB_REJECT. */
enum ob_status ob_header_add(struct ob_rctx *c, struct ob_header_list *list, struct ob_str name,
                             struct ob_str value, struct ob_err *err) OB_MUST_CHECK;
/* Adds, or replaces the one of that name. */
enum ob_status ob_header_set(struct ob_rctx *c, struct ob_header_list *list, struct ob_str name,
                             struct ob_str value, struct ob_err *err) OB_MUST_CHECK;
/* The route's headers, then the row's that are not there yet; then all into msg. */
enum ob_status ob_headers_fill(struct ob_rctx *c, const struct ob_rule *rule, struct ob_msg *msg,
                               struct ob_header_list *headers, struct ob_err *err) OB_MUST_CHECK;
bool ob_has_control(struct ob_str s);

/* traceparent, tracestate: of the row's headers, else of its metadata; correlation id of the
 * metadata. Empty: none. */
struct ob_trace {
    struct ob_str parent, state, correlation;
};
enum ob_status ob_trace_read(struct ob_rctx *c, struct ob_trace *out,
                             struct ob_err *err) OB_MUST_CHECK;

#endif
