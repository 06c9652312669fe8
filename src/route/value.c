/* SPDX-License-Identifier: Apache-2.0 */
/* value - what a ${…} stands for in one event, with its own type. */
#include "route/tmpl.h"

#include "core/jscan.h"

#include <stdio.h>

enum ob_status ob_rctx_nomem(struct ob_err *err)
{
    return ob_err_set(err, OB_RETRY, "no memory left to route this event");
}

struct ob_str ob_rctx_now(struct ob_rctx *c)
{
    if (c->now_n == 0)
        c->now_n = ob_rfc3339(c->now_us, c->now);
    return (struct ob_str){c->now, c->now_n};
}

struct ob_str ob_rctx_created(struct ob_rctx *c)
{
    if (c->created_n == 0)
        c->created_n = ob_rfc3339(c->ev->created_us, c->created);
    return (struct ob_str){c->created, c->created_n};
}

static void of_text(struct ob_value *v, struct ob_str s)
{
    v->kind = s.n > 0 ? OB_VAL_TEXT : OB_VAL_MISSING;
    v->s = s;
}

/* Written from the end; faster than printf, which shows: most events have a version. */
static struct ob_str digits(char text[OB_NUMBER_MAX], uint64_t magnitude, bool negative)
{
    char *p = text + OB_NUMBER_MAX;
    do {
        *--p = (char)('0' + magnitude % 10);
        magnitude /= 10;
    } while (magnitude > 0);
    if (negative)
        *--p = '-';
    return (struct ob_str){p, (size_t)(text + OB_NUMBER_MAX - p)};
}

struct ob_str ob_number(char text[OB_NUMBER_MAX], int64_t i)
{
    return digits(text, i < 0 ? 0 - (uint64_t)i : (uint64_t)i, i < 0);
}

static void of_int(struct ob_value *v, char text[OB_NUMBER_MAX], int64_t i)
{
    *v = (struct ob_value){OB_VAL_JSON, ob_number(text, i), true};
}

static void of_version(struct ob_value *v, char text[OB_NUMBER_MAX], int64_t version)
{
    if (version != OB_NO_VERSION)
        of_int(v, text, version);
}

/* Microseconds to whole milliseconds, downwards also before 1970. */
static int64_t floor_ms(int64_t us)
{
    return us / 1000 - (us % 1000 < 0);
}

static void of_time(struct ob_rctx *c, struct ob_value *v, bool now)
{
    int64_t us = now ? c->now_us : c->ev->created_us;
    if (!now && us == 0)
        return; /* the source knows no time of creation */
    if (c->epoch_ms)
        of_int(v, c->number[now ? 3 : 4], floor_ms(us));
    else
        *v = (struct ob_value){OB_VAL_TEXT, now ? ob_rctx_now(c) : ob_rctx_created(c), true};
}

static void of_json(struct ob_value *v, struct ob_str raw, enum ob_jtype type)
{
    v->s = raw;
    v->kind = type == OB_J_NULL ? OB_VAL_NULL : type == OB_J_STRING ? OB_VAL_STRING : OB_VAL_JSON;
}

static enum ob_status invalid(struct ob_err *err, const char *what, const struct ob_err *why)
{
    return ob_err_set(err, OB_REJECT, "%s is not valid JSON: %s", what, why->text);
}

/* The whole of a JSON column or payload, checked. A string keeps its quotes and any white space
 * around it: bytes are copied as they are. */
static enum ob_status of_document(struct ob_value *v, struct ob_str text, const char *what,
                                  struct ob_err *err)
{
    enum ob_jtype type;
    struct ob_err why;
    if (ob_json_check(text, &type, &why) != OB_OK)
        return invalid(err, what, &why);
    of_json(v, text, type);
    return OB_OK;
}

static enum ob_status of_pointer(struct ob_value *v, struct ob_str text, const struct ob_expr *e,
                                 const char *what, bool promised, struct ob_err *err)
{
    enum ob_jtype type;
    struct ob_str raw;
    struct ob_err why;
    enum ob_status st = ob_json_pointer(text, e->arg, &raw, &type, &why);
    if (st == OB_OK)
        of_json(v, raw, type);
    else if (st != OB_AGAIN && promised)
        return invalid(err, what, &why);
    return OB_OK; /* not there, or a text that never was said to be JSON */
}

static enum ob_status of_payload(struct ob_rctx *c, const struct ob_expr *e, struct ob_value *v,
                                 struct ob_err *err)
{
    const struct ob_event *ev = c->ev;
    enum ob_status st = OB_OK;
    if (ev->payload_kind == OB_PAYLOAD_NULL)
        return OB_OK;
    if (e->pointer)
        return of_pointer(v, ev->payload, e, "payload", ev->payload_kind == OB_PAYLOAD_JSON, err);
    switch (ev->payload_kind) {
    case OB_PAYLOAD_JSON:
        if (c->payload.kind == OB_VAL_MISSING)
            st = of_document(&c->payload, ev->payload, "payload", err);
        if (st == OB_OK && c->payload.kind == OB_VAL_STRING)
            c->payload.kind = OB_VAL_JSON; /* as text it keeps its quotes: verbatim */
        *v = c->payload;
        break;
    case OB_PAYLOAD_TEXT:
        *v = (struct ob_value){OB_VAL_TEXT, ev->payload, false};
        break;
    case OB_PAYLOAD_BYTES:
    case OB_PAYLOAD_NULL:
        *v = (struct ob_value){OB_VAL_BYTES, ev->payload, false};
        break;
    }
    return st;
}

static enum ob_status of_column(const struct ob_event *ev, struct ob_str name, struct ob_value *v,
                                struct ob_err *err)
{
    const struct ob_col *col = NULL;
    enum ob_jtype type;
    for (size_t i = 0; i < ev->n_cols && col == NULL; i++)
        if (ob_str_eq(ev->cols[i].name, name))
            col = &ev->cols[i];
    if (col == NULL || col->kind == OB_COL_NULL)
        return OB_OK;
    v->s = col->value;
    v->kind = OB_VAL_TEXT;
    if (col->kind == OB_COL_JSON) {
        char what[80];
        snprintf(what, sizeof what, "column %.*s", (int)(name.n < 64 ? name.n : 64), name.p);
        return of_document(v, col->value, what, err);
    }
    /* A number that JSON cannot write (NaN, Infinity) stays text. */
    if (col->kind == OB_COL_NUMBER && ob_json_check(col->value, &type, NULL) == OB_OK &&
        type == OB_J_NUMBER)
        v->kind = OB_VAL_JSON;
    if (col->kind == OB_COL_BOOL) {
        v->kind = OB_VAL_JSON;
        v->s = ob_str_eqc(col->value, "true") ? OB_STR("true") : OB_STR("false");
    }
    return OB_OK;
}

static enum ob_status of_object(struct ob_value *v, struct ob_str text, const struct ob_expr *e,
                                const char *what, struct ob_err *err)
{
    if (text.n == 0)
        return OB_OK;
    return e->pointer ? of_pointer(v, text, e, what, true, err) : of_document(v, text, what, err);
}

static enum ob_status of_field(struct ob_rctx *c, const struct ob_expr *e, struct ob_value *v,
                               struct ob_err *err)
{
    const struct ob_event *ev = c->ev;
    *v = (struct ob_value){OB_VAL_MISSING, {NULL, 0}, false};
    switch (e->field) {
    case OB_F_ID:
        of_text(v, ev->id);
        break;
    case OB_F_TYPE:
        of_text(v, ev->type);
        break;
    case OB_F_AGGREGATE_TYPE:
        of_text(v, ev->aggregate_type);
        break;
    case OB_F_AGGREGATE_ID:
        of_text(v, ev->aggregate_id);
        break;
    case OB_F_KEY:
        of_text(v, ev->key);
        break;
    case OB_F_TENANT:
        of_text(v, ev->tenant);
        break;
    case OB_F_TOPIC:
        of_text(v, ev->topic);
        break;
    case OB_F_STREAM:
        of_text(v, ev->stream);
        break;
    case OB_F_SERVICE:
        of_text(v, c->service);
        break;
    case OB_F_PAYLOAD:
        return of_payload(c, e, v, err);
    case OB_F_HEADERS:
        return of_object(v, ev->headers, e, "headers", err);
    case OB_F_METADATA:
        return of_object(v, ev->metadata, e, "metadata", err);
    case OB_F_ENTITY_VERSION:
        of_version(v, c->number[0], ev->entity_version);
        break;
    case OB_F_SCHEMA_VERSION:
        of_version(v, c->number[1], ev->schema_version);
        break;
    case OB_F_SEQ:
        *v = (struct ob_value){OB_VAL_JSON, digits(c->number[2], ev->seq, false), true};
        break;
    case OB_F_CREATED:
    case OB_F_NOW:
        of_time(c, v, e->field == OB_F_NOW);
        break;
    case OB_F_COL:
        return of_column(ev, e->arg, v, err);
    }
    if (e->cut.n > 0) {
        const char *at = v->s.n > 0 ? memmem(v->s.p, v->s.n, e->cut.p, e->cut.n) : NULL;
        if (at)
            of_text(v, (struct ob_str){v->s.p, (size_t)(at - v->s.p)});
    }
    return OB_OK;
}

/* As in a shell, ":-" stands for what is missing or empty; null counts as missing. */
static bool wants_default(const struct ob_value *v)
{
    switch (v->kind) {
    case OB_VAL_MISSING:
    case OB_VAL_NULL:
        return true;
    case OB_VAL_TEXT:
    case OB_VAL_BYTES:
        return v->s.n == 0;
    case OB_VAL_STRING:
        return v->s.n == 2; /* only its quotes */
    case OB_VAL_JSON:
        return false;
    }
    return false;
}

static enum ob_status of_default(struct ob_rctx *c, const struct ob_expr *e, struct ob_value *v,
                                 struct ob_err *err)
{
    const struct ob_tmpl *d = e->dflt;
    if (ob_tmpl_single(d) != NULL)
        return ob_expr_eval(c, ob_tmpl_single(d), v, err);
    *v = (struct ob_value){OB_VAL_TEXT, {"", 0}, false};
    if (e->dflt_json.p != NULL) {
        enum ob_jtype type = OB_J_NULL;
        enum ob_status st = ob_json_check(e->dflt_json, &type, err);
        of_json(v, e->dflt_json, type);
        return st; /* checked when it was compiled */
    }
    return ob_tmpl_text(c, d, &v->s, NULL, err);
}

enum ob_status ob_expr_eval(struct ob_rctx *c, const struct ob_expr *e, struct ob_value *out,
                            struct ob_err *err)
{
    struct ob_value v;
    enum ob_status st = of_field(c, e, &v, err);
    if (st == OB_OK && e->dflt != NULL && wants_default(&v))
        st = of_default(c, e, &v, err);
    if (st == OB_OK)
        *out = v;
    return st;
}
