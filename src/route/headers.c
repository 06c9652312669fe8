/* SPDX-License-Identifier: Apache-2.0 */
/* headers - message headers: the envelope's, the route's, the row's.
 *
 * Some protocols write headers as lines. A name with a control character would let a row forge
 * further ones, so it is refused; in a value each becomes a space. */
#include "core/jscan.h"
#include "route/rule.h"

#define ONES 0x0101010101010101u
#define HIGH 0x8080808080808080u

/* A byte below 0x20, or 0x7f. Eight at a time: headers are looked at for every event. */
bool ob_has_control(struct ob_str s)
{
    size_t i = 0;
    for (; i + 8 <= s.n; i += 8) {
        uint64_t w, del;
        memcpy(&w, s.p + i, 8);
        del = w ^ (ONES * 0x7f);
        if ((((w - ONES * 0x20) & ~w) | ((del - ONES) & ~del)) & HIGH)
            return true;
    }
    for (; i < s.n; i++)
        if ((unsigned char)s.p[i] < 0x20 || s.p[i] == 0x7f)
            return true;
    return false;
}

static enum ob_status clean(struct ob_rctx *c, struct ob_str *value, struct ob_err *err)
{
    if (!ob_has_control(*value))
        return OB_OK;
    char *p = ob_arena_alloc(c->arena, value->n);
    if (p == NULL)
        return ob_rctx_nomem(err);
    for (size_t i = 0; i < value->n; i++) {
        unsigned char b = (unsigned char)value->p[i];
        p[i] = b < 0x20 || b == 0x7f ? ' ' : value->p[i];
    }
    value->p = p;
    return OB_OK;
}

static struct ob_header *find(struct ob_header_list *list, struct ob_str name)
{
    for (size_t i = 0; i < list->n; i++)
        if (ob_str_eq(list->h[i].name, name))
            return &list->h[i];
    return NULL;
}

/* The value as it may go: checked, without control characters. */
static enum ob_status check(struct ob_rctx *c, struct ob_str name, struct ob_str *value,
                            struct ob_err *err)
{
    if (name.n == 0)
        return ob_err_set(err, OB_REJECT, "a header has no name");
    if (ob_has_control(name))
        return ob_err_set(err, OB_REJECT, "a header's name has a control character");
    if (name.n > OB_ROUTE_HEADER_NAME_MAX)
        return ob_err_set(err, OB_REJECT, "a header's name has %zu bytes; at most %d", name.n,
                          OB_ROUTE_HEADER_NAME_MAX);
    if (value->n > OB_ROUTE_HEADER_MAX)
        return ob_err_set(err, OB_REJECT, "header %.*s has %zu bytes; at most %d", OB_STR_ARG(name),
                          value->n, OB_ROUTE_HEADER_MAX);
    return clean(c, value, err);
}

enum ob_status ob_header_add(struct ob_rctx *c, struct ob_header_list *list, struct ob_str name,
                             struct ob_str value, struct ob_err *err)
{
    enum ob_status st = check(c, name, &value, err);
    if (st == OB_OK && list->n == OB_HEADERS_MAX)
        st = ob_err_set(err, OB_REJECT, "more than %d headers", OB_HEADERS_MAX);
    if (st == OB_OK)
        list->h[list->n++] = (struct ob_header){name, value};
    return st;
}

enum ob_status ob_header_set(struct ob_rctx *c, struct ob_header_list *list, struct ob_str name,
                             struct ob_str value, struct ob_err *err)
{
    struct ob_header *h = find(list, name);
    if (h == NULL)
        return ob_header_add(c, list, name, value, err);
    enum ob_status st = check(c, name, &value, err);
    if (st == OB_OK)
        h->value = value;
    return st;
}

static enum ob_status add_route(struct ob_rctx *c, const struct ob_rule *rule,
                                struct ob_header_list *list, struct ob_err *err)
{
    enum ob_status st = OB_OK;
    for (size_t i = 0; i < rule->n_headers && st == OB_OK; i++) {
        const struct ob_rule_header *h = &rule->headers[i];
        struct ob_str value;
        bool missing;
        st = ob_tmpl_text(c, &h->value, &value, &missing, err);
        if (st != OB_OK)
            ob_err_prefix(err, "header %.*s", OB_STR_ARG(h->name));
        else if (!missing || c->missing != OB_MISSING_OMIT)
            st = ob_header_set(c, list, h->name, value, err);
    }
    return st;
}

/* A string's text, anything else as its JSON. */
static enum ob_status text_of(struct ob_rctx *c, struct ob_str raw, enum ob_jtype type,
                              struct ob_str *out, struct ob_err *err)
{
    *out = raw;
    if (type != OB_J_STRING)
        return OB_OK;
    *out = (struct ob_str){raw.p + 1, raw.n - 2};
    if (memchr(out->p, '\\', out->n) == NULL)
        return OB_OK;
    size_t mark = c->scratch->n;
    ob_jscan_unescape(c->scratch, *out);
    return ob_rctx_take(c, mark, out, err);
}

/* The next member of an object: *more is false at its end. Null values are left out. */
static enum ob_status next_member(struct ob_rctx *c, struct ob_jscan *scan, struct ob_str *name,
                                  struct ob_str *value, bool *more, struct ob_err *err)
{
    struct ob_jtok key;
    enum ob_jtype type = OB_J_NULL;
    enum ob_status st = OB_OK;
    *more = true;
    while (st == OB_OK && type == OB_J_NULL) {
        st = ob_jscan_next(scan, &key, err);
        if (st == OB_OK && key.type != OB_J_KEY) {
            *more = false;
            return ob_jscan_next(scan, &key, err); /* nothing may follow */
        }
        if (st == OB_OK)
            st = ob_jscan_value(scan, value, &type, err);
    }
    if (st == OB_OK)
        st = text_of(c, *value, type, value, err);
    if (st == OB_OK)
        st = text_of(c, key.raw, OB_J_STRING, name, err);
    return st;
}

/* *object: it is one; null is none. */
static enum ob_status open_object(struct ob_jscan *scan, struct ob_str text, const char *what,
                                  bool *object, struct ob_err *err)
{
    struct ob_jtok tok;
    *object = false;
    if (text.n == 0)
        return OB_OK;
    ob_jscan_init(scan, text);
    enum ob_status st = ob_jscan_next(scan, &tok, err);
    if (st != OB_OK || tok.type == OB_J_NULL)
        return st;
    *object = tok.type == OB_J_OBJECT;
    return *object ? OB_OK : ob_err_set(err, OB_REJECT, "%s is JSON but no object", what);
}

static enum ob_status invalid(struct ob_err *err, enum ob_status st, const char *what)
{
    if (st == OB_REJECT && err != NULL && strncmp(err->text, "byte ", 5) == 0)
        ob_err_prefix(err, "%s is not valid JSON", what);
    return st;
}

/* What the envelope and the route have set stays. */
static enum ob_status add_row(struct ob_rctx *c, struct ob_header_list *list, struct ob_err *err)
{
    struct ob_jscan scan;
    bool more;
    size_t own = list->n;
    enum ob_status st = open_object(&scan, c->ev->headers, "headers", &more, err);
    while (st == OB_OK && more) {
        struct ob_str name, value;
        st = next_member(c, &scan, &name, &value, &more, err);
        if (st != OB_OK || !more)
            break;
        struct ob_header *h = find(list, name);
        if (h == NULL || h >= list->h + own)
            st = ob_header_set(c, list, name, value, err);
    }
    return invalid(err, st, "headers");
}

enum ob_status ob_headers_fill(struct ob_rctx *c, const struct ob_rule *rule, struct ob_msg *msg,
                               struct ob_header_list *list, struct ob_err *err)
{
    enum ob_status st = add_route(c, rule, list, err);
    if (st == OB_OK && rule->row_headers && c->ev->headers.n > 0)
        st = add_row(c, list, err);
    if (st != OB_OK || list->n == 0)
        return st;
    msg->headers = ob_arena_alloc(c->arena, list->n * sizeof *msg->headers);
    if (msg->headers == NULL)
        return ob_rctx_nomem(err);
    memcpy(msg->headers, list->h, list->n * sizeof *msg->headers);
    msg->n_headers = list->n;
    return OB_OK;
}

static enum ob_status read_trace(struct ob_rctx *c, struct ob_str text, const char *what,
                                 bool metadata, struct ob_trace *t, struct ob_err *err)
{
    struct ob_jscan scan;
    struct ob_trace here = {0};
    bool more;
    enum ob_status st = open_object(&scan, text, what, &more, err);
    while (st == OB_OK && more) {
        struct ob_str name, value;
        st = next_member(c, &scan, &name, &value, &more, err);
        if (st != OB_OK || !more)
            break;
        if (ob_str_eq(name, OB_STR("traceparent")))
            here.parent = value;
        else if (ob_str_eq(name, OB_STR("tracestate")))
            here.state = value;
        else if (metadata && (ob_str_eq(name, OB_STR("correlationId")) ||
                              ob_str_eq(name, OB_STR("correlation_id"))))
            here.correlation = value;
    }
    if (t->parent.n == 0) { /* the two belong together */
        t->parent = here.parent;
        t->state = here.state;
    }
    if (t->correlation.n == 0)
        t->correlation = here.correlation;
    return invalid(err, st, what);
}

enum ob_status ob_trace_read(struct ob_rctx *c, struct ob_trace *out, struct ob_err *err)
{
    *out = (struct ob_trace){0};
    enum ob_status st = read_trace(c, c->ev->headers, "headers", false, out, err);
    if (st == OB_OK)
        st = read_trace(c, c->ev->metadata, "metadata", true, out, err);
    return st;
}
