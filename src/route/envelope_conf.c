/* SPDX-License-Identifier: Apache-2.0 */
/* envelope_conf - `envelope:` compiled: a name, or a map of one name to its options. */
#include "route/rule.h"

#define EXT_NAME_MAX 20 /* CloudEvents: lower case letters and digits, at most so many */

static const char *const envelope_names[] = {"none",     "cloudevents", "cloudevents-structured",
                                             "debezium", "template",    "json"};
#define N_ENVELOPES (sizeof envelope_names / sizeof envelope_names[0])

const char *const ob_ce_names[OB_CE_N] = {
    [OB_CE_SPECVERSION] = "specversion",
    [OB_CE_ID] = "id",
    [OB_CE_SOURCE] = "source",
    [OB_CE_TYPE] = "type",
    [OB_CE_SUBJECT] = "subject",
    [OB_CE_TIME] = "time",
    [OB_CE_AGGREGATETYPE] = "aggregatetype",
    [OB_CE_ENTITYVERSION] = "entityversion",
    [OB_CE_SCHEMAVERSION] = "schemaversion",
    [OB_CE_TENANT] = "tenant",
    [OB_CE_CORRELATIONID] = "correlationid",
};

static enum ob_status join(struct ob_route_compiler *c, const char *prefix, const char *name,
                           struct ob_str *out)
{
    *out = ob_str_c(ob_arena_printf(c->arena, "%s%s", prefix, name));
    return out->p != NULL ? OB_OK : ob_compile_nomem(c);
}

static enum ob_status check_ext_name(struct ob_route_compiler *c, const struct ob_opt_pos *pos,
                                     const char *name)
{
    static const char *const taken[] = {"data", "data_base64", "datacontenttype", "traceparent",
                                        "tracestate"};
    size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789");
    if (n == 0 || n > EXT_NAME_MAX || name[n] != '\0')
        return ob_node_err(pos, c->err,
                           "an extension's name is 1 to %d lower case letters and digits",
                           EXT_NAME_MAX);
    for (size_t i = 0; i < OB_CE_N; i++)
        if (strcmp(name, ob_ce_names[i]) == 0)
            return ob_node_err(pos, c->err, "\"%s\" is set already", name);
    for (size_t i = 0; i < sizeof taken / sizeof taken[0]; i++)
        if (strcmp(name, taken[i]) == 0)
            return ob_node_err(pos, c->err, "\"%s\" is set already", name);
    return OB_OK;
}

static enum ob_status compile_extensions(struct ob_route_compiler *c, const struct ob_node *map,
                                         struct ob_ce *ce)
{
    enum ob_status st = ob_headers_compile(c, map, &ce->ext, &ce->n_ext);
    for (size_t i = 0; st == OB_OK && i < ce->n_ext; i++)
        st = check_ext_name(c, &map->key_pos[i], map->keys[i]);
    return st;
}

/* The prefix stands in the names of headers, made once. */
static enum ob_status name_headers(struct ob_route_compiler *c, const char *prefix,
                                   struct ob_ce *ce)
{
    enum ob_status st = OB_OK;
    for (size_t i = 0; i < OB_CE_N && st == OB_OK; i++)
        st = join(c, prefix, ob_ce_names[i], &ce->names[i]);
    ce->ext_bare = ob_arena_zalloc(c->arena, (ce->n_ext + 1) * sizeof *ce->ext_bare);
    if (ce->ext_bare == NULL)
        return ob_compile_nomem(c);
    for (size_t i = 0; i < ce->n_ext && st == OB_OK; i++) {
        ce->ext_bare[i] = ce->ext[i].name;
        st = join(c, prefix, ce->ext_bare[i].p, &ce->ext[i].name);
    }
    return st;
}

static enum ob_status compile_prefix(struct ob_route_compiler *c, const struct ob_node *node,
                                     const char **out)
{
    if (node->kind != OB_NODE_SCALAR || strlen(node->text) > 32 ||
        ob_has_control(ob_str_c(node->text)))
        return ob_node_err(&node->pos, c->err, "prefix is a short text, like ce_ or ce-");
    *out = node->text;
    return OB_OK;
}

static enum ob_status ce_option(struct ob_route_compiler *c, const struct ob_node *opts, size_t i,
                                const char **prefix, struct ob_ce *ce)
{
    static const char *const names[] = {"prefix", "source", "type", "subject", "extensions"};
    const struct ob_node *v = opts->items[i];
    switch (ob_known_key(c, opts, i, names, 5, "the options of cloudevents")) {
    case 0:
        return compile_prefix(c, v, prefix);
    case 1:
        return ob_scalar_compile(c, v, "source", &ce->source);
    case 2:
        return ob_scalar_compile(c, v, "type", &ce->type);
    case 3:
        return ob_scalar_compile(c, v, "subject", &ce->subject);
    case 4:
        return compile_extensions(c, v, ce);
    default:
        return OB_FATAL;
    }
}

/* opts NULL: none given. */
static enum ob_status compile_ce(struct ob_route_compiler *c, const struct ob_node *opts,
                                 struct ob_envl *out)
{
    const char *prefix = "ce_";
    struct ob_ce *ce = ob_arena_zalloc(c->arena, sizeof *ce);
    if (ce == NULL)
        return ob_compile_nomem(c);
    enum ob_status st = ob_tmpl_compile(c->arena, "${service}", NULL, &ce->source, c->err);
    if (st == OB_OK)
        st = ob_tmpl_compile(c->arena, "${type:-}", NULL, &ce->type, c->err);
    if (st == OB_OK)
        st = ob_tmpl_compile(c->arena, "${aggregate_id:-}", NULL, &ce->subject, c->err);
    if (st == OB_OK && opts != NULL && opts->kind != OB_NODE_MAP)
        st = ob_node_err(&opts->pos, c->err, "cloudevents wants a map of options");
    for (size_t i = 0; opts != NULL && st == OB_OK && i < opts->n; i++)
        st = ce_option(c, opts, i, &prefix, ce);
    if (st == OB_OK)
        st = name_headers(c, prefix, ce);
    out->ce = ce;
    return st;
}

static enum ob_status compile_kind(struct ob_route_compiler *c, const struct ob_node *node,
                                   const struct ob_node *opts, struct ob_envl *out)
{
    switch (out->kind) {
    case OB_ENV_CLOUDEVENTS:
    case OB_ENV_CLOUDEVENTS_STRUCTURED:
        return compile_ce(c, opts, out);
    case OB_ENV_TEMPLATE:
        if (opts == NULL)
            return ob_node_err(&node->pos, c->err,
                               "envelope: template wants its JSON shape: {template: {…}}");
        return ob_shape_compile(c->arena, opts, &out->shape, c->err);
    case OB_ENV_NONE:
    case OB_ENV_JSON:
    case OB_ENV_DEBEZIUM:
        if (opts != NULL)
            return ob_node_err(&opts->pos, c->err, "envelope: %s has no options",
                               envelope_names[out->kind]);
        break;
    }
    return OB_OK;
}

enum ob_status ob_envl_compile(struct ob_route_compiler *c, const struct ob_node *node,
                               struct ob_envl *out)
{
    *out = (struct ob_envl){.kind = OB_ENV_CLOUDEVENTS};
    if (ob_node_is_null(node))
        return compile_kind(c, NULL, NULL, out);
    if (node->kind == OB_NODE_MAP && node->n == 1) {
        int k = ob_known_key(c, node, 0, envelope_names, N_ENVELOPES, "envelope");
        if (k < 0)
            return OB_FATAL;
        out->kind = (enum ob_envelope)k;
        return compile_kind(c, node, node->items[0], out);
    }
    if (node->kind != OB_NODE_SCALAR)
        return ob_node_err(&node->pos, c->err,
                           "envelope wants one name, or a map of one name to its options");
    for (size_t k = 0; k < N_ENVELOPES; k++) {
        if (strcmp(node->text, envelope_names[k]) == 0) {
            out->kind = (enum ob_envelope)k;
            return compile_kind(c, node, NULL, out);
        }
    }
    char near[OB_NEAREST_MAX];
    return ob_node_err(&node->pos, c->err,
                       "unknown envelope \"%.60s\"%s; known are none, cloudevents, "
                       "cloudevents-structured, debezium, template, json",
                       node->text,
                       ob_route_nearest(near, envelope_names, N_ENVELOPES, ob_str_c(node->text)));
}
