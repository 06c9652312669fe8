/* SPDX-License-Identifier: Apache-2.0 */
/* envelope - which bytes an event becomes. */
#include "core/jscan.h"
#include "core/json.h"
#include "route/rule.h"

/* 32 bits: the largest integer that CloudEvents has; others go as text. */
#define CE_INT_MAX INT64_C(2147483647)

static struct ob_str default_type(enum ob_payload_kind kind)
{
    switch (kind) {
    case OB_PAYLOAD_JSON:
        return OB_STR("application/json");
    case OB_PAYLOAD_TEXT:
        return OB_STR("text/plain; charset=utf-8");
    case OB_PAYLOAD_BYTES:
        return OB_STR("application/octet-stream");
    case OB_PAYLOAD_NULL:
        break;
    }
    return OB_STR("");
}

static enum ob_status content_type(struct ob_rctx *c, const struct ob_rule *rule,
                                   struct ob_str dflt, struct ob_str *out, struct ob_err *err)
{
    *out = dflt;
    if (!rule->own_content_type)
        return OB_OK;
    enum ob_status st = ob_tmpl_text(c, &rule->content_type, out, NULL, err);
    if (st == OB_OK && (ob_has_control(*out) || out->n > OB_ROUTE_HEADER_NAME_MAX))
        st = ob_err_set(err, OB_REJECT, "longer than %d bytes or with a control character",
                        OB_ROUTE_HEADER_NAME_MAX);
    if (st != OB_OK)
        ob_err_prefix(err, "content_type");
    return st;
}

static void verbatim(const struct ob_event *ev, struct ob_msg *msg)
{
    msg->value = ev->payload;
    msg->value_null = ev->payload_kind == OB_PAYLOAD_NULL;
}

static enum ob_status checked(const struct ob_event *ev, struct ob_err *err)
{
    struct ob_err why;
    if (ev->payload_kind == OB_PAYLOAD_NULL)
        return ob_err_set(err, OB_REJECT, "payload is not valid JSON: there is none");
    if (ob_json_check(ev->payload, NULL, &why) != OB_OK)
        return ob_err_set(err, OB_REJECT, "payload is not valid JSON: %s", why.text);
    return OB_OK;
}

/* ---- CloudEvents: attributes first, then either headers or one JSON object ---- */

struct attrs {
    struct ob_str v[OB_CE_N];
    struct ob_trace trace;
};

static enum ob_status number(struct ob_rctx *c, int64_t version, struct ob_str *out,
                             struct ob_err *err)
{
    char text[OB_NUMBER_MAX];
    if (version == OB_NO_VERSION)
        return OB_OK;
    *out = ob_arena_copy(c->arena, ob_number(text, version));
    return out->p != NULL ? OB_OK : ob_rctx_nomem(err);
}

static enum ob_status required(struct ob_rctx *c, const struct ob_tmpl *t, const char *what,
                               struct ob_str *out, struct ob_err *err)
{
    enum ob_status st = ob_tmpl_text(c, t, out, NULL, err);
    if (st == OB_OK && out->n == 0)
        st = ob_err_set(err, OB_REJECT, "CloudEvents need a %s and this event has none", what);
    return st;
}

static enum ob_status read_attrs(struct ob_rctx *c, const struct ob_ce *ce, struct attrs *a,
                                 struct ob_err *err)
{
    const struct ob_event *ev = c->ev;
    *a = (struct attrs){0};
    a->v[OB_CE_SPECVERSION] = OB_STR("1.0");
    a->v[OB_CE_ID] = ev->id;
    a->v[OB_CE_AGGREGATETYPE] = ev->aggregate_type;
    a->v[OB_CE_TENANT] = ev->tenant;
    if (ev->id.n == 0)
        return ob_err_set(err, OB_REJECT, "CloudEvents need an id and this event has none");
    enum ob_status st = required(c, &ce->source, "source", &a->v[OB_CE_SOURCE], err);
    if (st == OB_OK)
        st = required(c, &ce->type, "type", &a->v[OB_CE_TYPE], err);
    if (st == OB_OK)
        st = ob_tmpl_text(c, &ce->subject, &a->v[OB_CE_SUBJECT], NULL, err);
    if (st == OB_OK)
        st = number(c, ev->entity_version, &a->v[OB_CE_ENTITYVERSION], err);
    if (st == OB_OK)
        st = number(c, ev->schema_version, &a->v[OB_CE_SCHEMAVERSION], err);
    if (st == OB_OK)
        st = ob_trace_read(c, &a->trace, err);
    a->v[OB_CE_CORRELATIONID] = a->trace.correlation;
    if (st == OB_OK && ev->created_us != 0) {
        a->v[OB_CE_TIME] = ob_arena_copy(c->arena, ob_rctx_created(c));
        if (a->v[OB_CE_TIME].p == NULL)
            st = ob_rctx_nomem(err);
    }
    return st;
}

static enum ob_status put_header(struct ob_rctx *c, struct ob_header_list *h, struct ob_str name,
                                 struct ob_str value, struct ob_err *err)
{
    return value.n > 0 ? ob_header_add(c, h, name, value, err) : OB_OK;
}

static enum ob_status ce_binary(struct ob_rctx *c, const struct ob_ce *ce, struct ob_header_list *h,
                                struct ob_err *err)
{
    struct attrs a;
    enum ob_status st = read_attrs(c, ce, &a, err);
    for (size_t i = 0; i < OB_CE_N && st == OB_OK; i++)
        st = put_header(c, h, ce->names[i], a.v[i], err);
    for (size_t i = 0; i < ce->n_ext && st == OB_OK; i++) {
        struct ob_str value;
        st = ob_tmpl_text(c, &ce->ext[i].value, &value, NULL, err);
        if (st == OB_OK)
            st = put_header(c, h, ce->ext[i].name, value, err);
    }
    if (st == OB_OK && a.trace.parent.n > 0)
        st = ob_header_set(c, h, OB_STR("traceparent"), a.trace.parent, err);
    if (st == OB_OK && a.trace.state.n > 0)
        st = ob_header_set(c, h, OB_STR("tracestate"), a.trace.state, err);
    return st;
}

static void put_attr(struct ob_buf *b, struct ob_str name, struct ob_str value)
{
    if (value.n == 0 || b->failed)
        return;
    if (b->p[b->n - 1] != '{')
        ob_buf_char(b, ',');
    ob_buf_char(b, '"');
    ob_buf_str(b, name);
    ob_buf_c(b, "\":\"");
    ob_json_escape(b, value);
    ob_buf_char(b, '"');
}

static void put_version(struct ob_buf *b, const char *name, int64_t v, struct ob_str text)
{
    if (v == OB_NO_VERSION || v > CE_INT_MAX || v < -CE_INT_MAX - 1) {
        put_attr(b, ob_str_c(name), text);
        return;
    }
    ob_buf_printf(b, ",\"%s\":%.*s", name, OB_STR_ARG(text));
}

static enum ob_status put_data(struct ob_rctx *c, struct ob_err *err)
{
    static const struct ob_expr payload = {.field = OB_F_PAYLOAD};
    const struct ob_event *ev = c->ev;
    struct ob_buf *b = c->scratch;
    struct ob_value v;
    if (ev->payload_kind == OB_PAYLOAD_NULL)
        return OB_OK;
    enum ob_status st = ob_expr_eval(c, &payload, &v, err);
    if (st != OB_OK)
        return st;
    if (v.kind == OB_VAL_TEXT && !ob_utf8_valid(v.s))
        v.kind = OB_VAL_BYTES; /* no JSON string can hold it unchanged */
    ob_buf_c(b, v.kind == OB_VAL_BYTES ? ",\"data_base64\":" : ",\"data\":");
    return ob_value_append(c, &v, err);
}

static enum ob_status ce_structured(struct ob_rctx *c, const struct ob_rule *rule,
                                    struct ob_msg *msg, struct ob_err *err)
{
    const struct ob_ce *ce = rule->env.ce;
    struct ob_buf *b = c->scratch;
    struct attrs a;
    struct ob_str type = OB_STR("");
    enum ob_status st = read_attrs(c, ce, &a, err);
    if (st == OB_OK)
        st = content_type(c, rule, default_type(c->ev->payload_kind), &type, err);
    if (st != OB_OK)
        return st;
    size_t mark = b->n;
    ob_buf_char(b, '{');
    for (size_t i = 0; i < OB_CE_N; i++) {
        if (i == OB_CE_ENTITYVERSION)
            put_version(b, ob_ce_names[i], c->ev->entity_version, a.v[i]);
        else if (i == OB_CE_SCHEMAVERSION)
            put_version(b, ob_ce_names[i], c->ev->schema_version, a.v[i]);
        else
            put_attr(b, ob_str_c(ob_ce_names[i]), a.v[i]);
    }
    for (size_t i = 0; i < ce->n_ext && st == OB_OK; i++) {
        struct ob_str value;
        st = ob_tmpl_text(c, &ce->ext[i].value, &value, NULL, err);
        if (st == OB_OK)
            put_attr(b, ce->ext_bare[i], value);
    }
    put_attr(b, OB_STR("traceparent"), a.trace.parent);
    put_attr(b, OB_STR("tracestate"), a.trace.state);
    put_attr(b, OB_STR("datacontenttype"), type);
    if (st == OB_OK)
        st = put_data(c, err);
    ob_buf_char(b, '}');
    return st == OB_OK ? ob_rctx_take(c, mark, &msg->value, err) : st;
}

static enum ob_status shaped(struct ob_rctx *c, const struct ob_rule *rule, struct ob_msg *msg,
                             struct ob_err *err)
{
    size_t mark = c->scratch->n;
    enum ob_status st = ob_shape_append(c, rule->env.shape, err);
    if (st == OB_OK)
        st = ob_rctx_take(c, mark, &msg->value, err);
    if (st == OB_OK && msg->value.n > OB_ROUTE_VALUE_MAX)
        st = ob_err_set(err, OB_REJECT, "the message has %zu bytes; at most %zu", msg->value.n,
                        OB_ROUTE_VALUE_MAX);
    return st;
}

enum ob_status ob_envl_fill(struct ob_rctx *c, const struct ob_rule *rule, struct ob_msg *msg,
                            struct ob_header_list *h, struct ob_err *err)
{
    const struct ob_event *ev = c->ev;
    struct ob_str type = default_type(ev->payload_kind);
    enum ob_status st = OB_OK;
    switch (rule->env.kind) {
    case OB_ENV_JSON:
        st = checked(ev, err);
        type = OB_STR("application/json");
        verbatim(ev, msg);
        break;
    case OB_ENV_NONE:
        verbatim(ev, msg);
        break;
    case OB_ENV_CLOUDEVENTS:
        verbatim(ev, msg);
        st = ce_binary(c, rule->env.ce, h, err);
        break;
    case OB_ENV_CLOUDEVENTS_STRUCTURED:
        msg->content_type = OB_STR("application/cloudevents+json");
        return ce_structured(c, rule, msg, err); /* content_type is that of the data */
    case OB_ENV_DEBEZIUM:
        verbatim(ev, msg);
        st = ob_header_set(c, h, OB_STR("id"), ev->id, err);
        break;
    case OB_ENV_TEMPLATE:
        type = OB_STR("application/json");
        st = shaped(c, rule, msg, err);
        break;
    }
    return st == OB_OK ? content_type(c, rule, type, &msg->content_type, err) : st;
}
