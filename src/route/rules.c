/* SPDX-License-Identifier: Apache-2.0 */
/* rules - `routes:` compiled, with the place of everything that is wrong. */
#include "route/rule.h"

#include <stdio.h>
#include <stdlib.h>

#define CONF_MEMORY ((size_t)64 << 20)
#define HEADERS_MAX 64 /* of one route */
#define DEBEZIUM_KEY "${aggregate_id:-${key:-${id}}}"

static const char *const route_keys[] = {"match",   "topic",    "key",        "stream",
                                         "headers", "envelope", "missing",    "content_type",
                                         "time",    "trace_id", "row_headers"};
enum route_key {
    KEY_MATCH,
    KEY_TOPIC,
    KEY_KEY,
    KEY_STREAM,
    KEY_HEADERS,
    KEY_ENVELOPE,
    KEY_MISSING,
    KEY_CONTENT_TYPE,
    KEY_TIME,
    KEY_TRACE_ID,
    KEY_ROW_HEADERS,
    N_ROUTE_KEYS
};

static const char *const match_keys[OB_MATCH_N] = {"type", "aggregate_type", "tenant", "topic"};

enum ob_status ob_compile_nomem(struct ob_route_compiler *c)
{
    return ob_err_set(c->err, OB_FATAL, "routes: no memory left; they are too large");
}

int ob_known_key(struct ob_route_compiler *c, const struct ob_node *map, size_t i,
                 const char *const *names, size_t n, const char *where)
{
    for (size_t k = 0; k < n; k++)
        if (strcmp(map->keys[i], names[k]) == 0)
            return (int)k;
    char near[OB_NEAREST_MAX], list[200] = "";
    ob_route_nearest(near, names, n, ob_str_c(map->keys[i]));
    for (size_t k = 0, at = 0; near[0] == '\0' && k < n && at < sizeof list - 1; k++)
        at += (size_t)snprintf(list + at, sizeof list - at, "%s%s", k ? ", " : "; known are ",
                               names[k]);
    ob_node_err(&map->key_pos[i], c->err, "unknown key \"%.60s\" in %s%s%s", map->keys[i], where,
                near, list);
    return -1;
}

enum ob_status ob_scalar_compile(struct ob_route_compiler *c, const struct ob_node *node,
                                 const char *what, struct ob_tmpl *out)
{
    if (node->kind != OB_NODE_SCALAR)
        return ob_node_err(&node->pos, c->err, "%s wants one text, like \"orders.${type}\"", what);
    return ob_tmpl_compile(c->arena, node->text, node, out, c->err);
}

/* ---- match ---- */

static enum ob_status compile_pattern(struct ob_route_compiler *c, const struct ob_node *node,
                                      const char *what, struct ob_pattern *out)
{
    if (node->kind != OB_NODE_SCALAR)
        return ob_node_err(&node->pos, c->err, "match: %s wants a glob or a list of globs", what);
    struct ob_str t = ob_arena_copy(c->arena, ob_str_c(node->text));
    if (t.p == NULL)
        return ob_compile_nomem(c);
    size_t special = strcspn(t.p, "*?\\");
    out->kind = OB_PAT_GLOB;
    out->text = t;
    if (special == t.n) {
        out->kind = OB_PAT_EXACT;
    } else if (special == t.n - 1 && t.p[special] == '*') {
        out->kind = OB_PAT_PREFIX;
        out->text.n--;
    }
    return OB_OK;
}

static enum ob_status compile_patterns(struct ob_route_compiler *c, const struct ob_node *node,
                                       const char *what, struct ob_patterns *out)
{
    size_t n = node->kind == OB_NODE_LIST ? node->n : 1;
    if (n == 0)
        return ob_node_err(&node->pos, c->err, "match: %s has an empty list, which matches nothing",
                           what);
    struct ob_pattern *list = ob_arena_zalloc(c->arena, n * sizeof *list);
    if (list == NULL)
        return ob_compile_nomem(c);
    enum ob_status st = OB_OK;
    for (size_t i = 0; i < n && st == OB_OK; i++)
        st = compile_pattern(c, node->kind == OB_NODE_LIST ? node->items[i] : node, what, &list[i]);
    *out = (struct ob_patterns){list, n};
    return st;
}

static enum ob_status compile_match(struct ob_route_compiler *c, const struct ob_node *node,
                                    struct ob_rule *rule)
{
    if (node->kind != OB_NODE_MAP || node->n == 0)
        return ob_node_err(&node->pos, c->err,
                           "match wants a map like {type: \"order.*\"}; leave it out for the "
                           "default route");
    enum ob_status st = OB_OK;
    for (size_t i = 0; i < node->n && st == OB_OK; i++) {
        int k = ob_known_key(c, node, i, match_keys, OB_MATCH_N, "match");
        st = k < 0 ? OB_FATAL : compile_patterns(c, node->items[i], match_keys[k], &rule->match[k]);
    }
    rule->any = false;
    return st;
}

/* ---- the rest of a route ---- */

enum ob_status ob_headers_compile(struct ob_route_compiler *c, const struct ob_node *map,
                                  struct ob_rule_header **out, size_t *n)
{
    if (map->kind != OB_NODE_MAP || map->n > HEADERS_MAX)
        return ob_node_err(&map->pos, c->err,
                           "headers wants a map of names to templates, at most %d", HEADERS_MAX);
    struct ob_rule_header *list = ob_arena_zalloc(c->arena, (map->n + 1) * sizeof *list);
    if (list == NULL)
        return ob_compile_nomem(c);
    enum ob_status st = OB_OK;
    for (size_t i = 0; i < map->n && st == OB_OK; i++) {
        struct ob_str name = ob_arena_copy(c->arena, ob_str_c(map->keys[i]));
        if (name.p == NULL)
            return ob_compile_nomem(c);
        if (name.n == 0 || name.n > OB_ROUTE_HEADER_NAME_MAX || ob_has_control(name))
            return ob_node_err(&map->key_pos[i], c->err,
                               "a header's name has 1 to %d bytes and no control characters",
                               OB_ROUTE_HEADER_NAME_MAX);
        list[i].name = name;
        st = ob_scalar_compile(c, map->items[i], "a header", &list[i].value);
    }
    *out = list;
    *n = map->n;
    return st;
}

static int choose(const struct ob_node *node, const char *const *names, int n)
{
    for (int i = 0; node->kind == OB_NODE_SCALAR && i < n; i++)
        if (strcmp(node->text, names[i]) == 0)
            return i;
    return -1;
}

static enum ob_status compile_missing(struct ob_route_compiler *c, const struct ob_node *node,
                                      struct ob_rule *rule)
{
    static const char *const names[] = {"null", "omit", "reject", "~", ""};
    int k = choose(node, names, 5);
    if (k < 0)
        return ob_node_err(&node->pos, c->err, "missing is null, omit or reject");
    rule->missing = k < 3 ? (enum ob_missing)k : OB_MISSING_NULL;
    return OB_OK;
}

static enum ob_status compile_time(struct ob_route_compiler *c, const struct ob_node *node,
                                   struct ob_rule *rule)
{
    static const char *const names[] = {"rfc3339", "epoch_ms"};
    int k = choose(node, names, 2);
    rule->epoch_ms = k == 1;
    return k < 0 ? ob_node_err(&node->pos, c->err, "time is rfc3339 or epoch_ms") : OB_OK;
}

static enum ob_status compile_row_headers(struct ob_route_compiler *c, const struct ob_node *node,
                                          struct ob_rule *rule)
{
    static const char *const names[] = {"true", "yes", "on", "false", "no", "off"};
    int k = choose(node, names, 6);
    rule->row_headers = k < 3;
    return k < 0 ? ob_node_err(&node->pos, c->err, "row_headers is true or false") : OB_OK;
}

static enum ob_status compile_key(struct ob_route_compiler *c, enum route_key key,
                                  const struct ob_node *v, struct ob_rule *rule, bool *own_topic)
{
    switch (key) {
    case KEY_MATCH:
        return compile_match(c, v, rule);
    case KEY_TOPIC:
        *own_topic = true;
        return ob_scalar_compile(c, v, "topic", &rule->topic);
    case KEY_KEY:
        rule->own_key = true;
        if (v->kind == OB_NODE_SCALAR)
            rule->key_text = ob_arena_copy(c->arena, ob_str_c(v->text));
        return ob_scalar_compile(c, v, "key", &rule->key);
    case KEY_STREAM:
        return ob_scalar_compile(c, v, "stream", &rule->stream);
    case KEY_HEADERS:
        return ob_headers_compile(c, v, &rule->headers, &rule->n_headers);
    case KEY_ENVELOPE:
        return ob_envl_compile(c, v, &rule->env);
    case KEY_MISSING:
        return compile_missing(c, v, rule);
    case KEY_CONTENT_TYPE:
        rule->own_content_type = true;
        return ob_scalar_compile(c, v, "content_type", &rule->content_type);
    case KEY_TIME:
        return compile_time(c, v, rule);
    case KEY_TRACE_ID:
        rule->own_trace_id = true;
        return ob_scalar_compile(c, v, "trace_id", &rule->trace_id);
    case KEY_ROW_HEADERS:
        return compile_row_headers(c, v, rule);
    case N_ROUTE_KEYS:
        break;
    }
    return OB_OK;
}

/* Where the router of Debezium sends to, and where we do. */
static enum ob_status default_address(struct ob_route_compiler *c, struct ob_rule *rule,
                                      bool own_topic)
{
    bool debezium = rule->env.kind == OB_ENV_DEBEZIUM;
    const char *topic = c->conf->default_topic != NULL ? c->conf->default_topic
                        : debezium                     ? "outbox.event.${aggregate_type}"
                                                       : "${topic:-outbox}";
    enum ob_status st = OB_OK;
    if (!own_topic)
        st = ob_tmpl_compile(c->arena, topic, NULL, &rule->topic, c->err);
    if (st == OB_OK && debezium && !rule->own_key) {
        rule->own_key = true;
        rule->key_text = ob_str_c(DEBEZIUM_KEY);
        st = ob_tmpl_compile(c->arena, DEBEZIUM_KEY, NULL, &rule->key, c->err);
    }
    return st;
}

/* node NULL: the default route. */
static enum ob_status compile_rule(struct ob_route_compiler *c, const struct ob_node *node,
                                   const struct ob_envl *env, struct ob_rule *rule)
{
    bool own_topic = false;
    *rule = (struct ob_rule){.any = true, .env = *env, .row_headers = true};
    enum ob_status st = ob_tmpl_compile(c->arena, "${stream:-}", NULL, &rule->stream, c->err);
    if (node != NULL && node->kind != OB_NODE_MAP)
        return ob_node_err(&node->pos, c->err,
                           "a route wants a map like {match: {type: \"order.*\"}, topic: orders}");
    for (size_t i = 0; node != NULL && i < node->n && st == OB_OK; i++) {
        int k = ob_known_key(c, node, i, route_keys, N_ROUTE_KEYS, "a route");
        if (k < 0)
            st = OB_FATAL;
        else if (!ob_node_is_null(node->items[i]))
            st = compile_key(c, (enum route_key)k, node->items[i], rule, &own_topic);
    }
    return st == OB_OK ? default_address(c, rule, own_topic) : st;
}

static enum ob_status compile_all(struct ob_route_compiler *c, struct ob_routes *r)
{
    const struct ob_node *list = c->conf->routes;
    struct ob_envl env = {0};
    enum ob_status st = ob_envl_compile(c, c->conf->envelope, &env);
    if (st != OB_OK)
        return st;
    if (list != NULL && ob_node_is_null(list))
        list = NULL;
    if (list != NULL && (list->kind != OB_NODE_LIST || list->n == 0))
        return ob_node_err(&list->pos, c->err,
                           "routes wants a list; leave it out to send everything to one topic");
    r->n = list != NULL ? list->n : 1;
    r->rules = ob_arena_zalloc(c->arena, r->n * sizeof *r->rules);
    if (r->rules == NULL)
        return ob_compile_nomem(c);
    for (size_t i = 0; i < r->n && st == OB_OK; i++) {
        if (i > 0 && r->rules[i - 1].any)
            return ob_node_err(&list->items[i]->pos, c->err,
                               "this route is never reached: the one before it has no match and "
                               "takes everything");
        st = compile_rule(c, list != NULL ? list->items[i] : NULL, &env, &r->rules[i]);
    }
    return st;
}

enum ob_status ob_routes_new(const struct ob_route_conf *conf, struct ob_routes **out,
                             struct ob_err *err)
{
    struct ob_arena *arena = ob_arena_new(8192, CONF_MEMORY);
    struct ob_route_compiler c = {arena, conf, err};
    if (arena == NULL)
        return ob_compile_nomem(&c);
    struct ob_routes *r = ob_arena_zalloc(arena, sizeof *r);
    enum ob_status st = OB_OK;
    if (r != NULL) {
        r->arena = arena;
        const char *service = conf->service;
        r->service = ob_arena_copy(arena, ob_str_c(service && *service ? service : "outbox"));
    }
    if (r == NULL || r->service.p == NULL)
        st = ob_compile_nomem(&c);
    else
        st = compile_all(&c, r);
    if (st == OB_OK)
        *out = r;
    else
        ob_arena_unref(arena);
    return st;
}

void ob_routes_free(struct ob_routes *r)
{
    if (r != NULL)
        ob_arena_unref(r->arena);
}
