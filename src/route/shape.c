/* SPDX-License-Identifier: Apache-2.0 */
/* shape - a JSON template compiled, and rendered for one event. */
#include "route/shape.h"

#include "core/jscan.h"
#include "core/json.h"

#define MERGE_MAX 16 /* objects in one $merge */

enum kind { CONST, VALUE, TEXT, OBJECT, LIST, MERGE };

struct ob_shape {
    enum kind kind;
    struct ob_str json;         /* CONST */
    struct ob_tmpl tmpl;        /* VALUE (its one expression), TEXT */
    const struct ob_str *keys;  /* OBJECT: "key": with quotes and colon */
    const struct ob_shape *sub; /* OBJECT, LIST, MERGE */
    size_t n;
};

/* ---- compiling ---- */

struct compiler {
    struct ob_arena *arena;
    struct ob_buf buf; /* for constant text */
    struct ob_err *err;
};

static enum ob_status compile(struct compiler *c, const struct ob_node *node, struct ob_shape *out);

static enum ob_status no_memory(struct compiler *c)
{
    return ob_err_set(c->err, OB_FATAL, "routes: no memory left for a JSON template");
}

/* What stands in the buffer becomes constant text. */
static enum ob_status take(struct compiler *c, struct ob_str *out)
{
    *out = ob_arena_copy(c->arena, ob_buf_view(&c->buf));
    enum ob_status st = c->buf.failed || out->p == NULL ? no_memory(c) : OB_OK;
    ob_buf_reset(&c->buf);
    return st;
}

static enum ob_status quote(struct compiler *c, struct ob_str text, const char *after,
                            struct ob_str *out)
{
    ob_buf_char(&c->buf, '"');
    ob_json_escape(&c->buf, text);
    ob_buf_c(&c->buf, "\"");
    ob_buf_c(&c->buf, after);
    return take(c, out);
}

/* A scalar without quotes that JSON can write without quotes. */
static bool is_plain(const struct ob_node *node, struct ob_str *json)
{
    enum ob_jtype type;
    *json = ob_str_c(node->text);
    if (node->quoted)
        return false;
    if (json->n == 0 || ob_str_eqc(*json, "~") || ob_str_eqc(*json, "null")) {
        *json = OB_STR("null");
        return true;
    }
    return ob_json_check(*json, &type, NULL) == OB_OK &&
           (type == OB_J_NUMBER || type == OB_J_TRUE || type == OB_J_FALSE);
}

static enum ob_status compile_scalar(struct compiler *c, const struct ob_node *node,
                                     struct ob_shape *out)
{
    struct ob_str plain;
    if (is_plain(node, &plain)) {
        out->kind = CONST;
        out->json = ob_arena_copy(c->arena, plain);
        return out->json.p != NULL ? OB_OK : no_memory(c);
    }
    enum ob_status st = ob_tmpl_compile(c->arena, node->text, node, &out->tmpl, c->err);
    if (st != OB_OK)
        return st;
    const struct ob_tmpl *t = &out->tmpl;
    if (t->n == 0 || (t->n == 1 && t->parts[0].expr == NULL)) {
        out->kind = CONST;
        return quote(c, t->n ? t->parts[0].lit : OB_STR(""), "", &out->json);
    }
    out->kind = ob_tmpl_single(t) != NULL ? VALUE : TEXT;
    return OB_OK;
}

/* All parts constant: so is the whole. */
static enum ob_status fold(struct compiler *c, struct ob_shape *s)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->sub[i].kind != CONST)
            return OB_OK;
    ob_buf_char(&c->buf, s->kind == OBJECT ? '{' : '[');
    for (size_t i = 0; i < s->n; i++) {
        ob_buf_c(&c->buf, i > 0 ? "," : "");
        if (s->kind == OBJECT)
            ob_buf_str(&c->buf, s->keys[i]);
        ob_buf_str(&c->buf, s->sub[i].json);
    }
    ob_buf_char(&c->buf, s->kind == OBJECT ? '}' : ']');
    s->kind = CONST;
    return take(c, &s->json);
}

static enum ob_status compile_items(struct compiler *c, const struct ob_node *node,
                                    struct ob_shape *out)
{
    struct ob_shape *sub = ob_arena_zalloc(c->arena, (node->n + 1) * sizeof *sub);
    if (sub == NULL)
        return no_memory(c);
    out->sub = sub;
    out->n = node->n;
    enum ob_status st = OB_OK;
    for (size_t i = 0; i < node->n && st == OB_OK; i++)
        st = compile(c, node->items[i], &sub[i]);
    return st;
}

static enum ob_status compile_keys(struct compiler *c, const struct ob_node *node,
                                   struct ob_shape *out)
{
    struct ob_str *keys = ob_arena_zalloc(c->arena, (node->n + 1) * sizeof *keys);
    if (keys == NULL)
        return no_memory(c);
    out->keys = keys;
    enum ob_status st = OB_OK;
    for (size_t i = 0; i < node->n && st == OB_OK; i++) {
        const char *key = node->keys[i];
        if (strstr(key, "${") != NULL)
            return ob_node_err(&node->key_pos[i], c->err,
                               "keys are literal: ${…} is replaced in values only");
        if (key[0] == '$' && ob_distance(ob_str_c(key), OB_STR("$merge"), 1) <= 1)
            return ob_node_err(&node->key_pos[i], c->err,
                               strcmp(key, "$merge") == 0
                                   ? "$merge must be the only key of its map; put further keys "
                                     "into an object of its list"
                                   : "unknown key (did you mean \"$merge\"?)");
        st = quote(c, ob_str_c(key), ":", &keys[i]);
    }
    return st;
}

/* What can only be a string, number or list can never be merged: say so now. */
static bool mergeable(const struct ob_shape *s)
{
    return s->kind == OBJECT || s->kind == MERGE || s->kind == VALUE ||
           (s->kind == CONST && (s->json.p[0] == '{' || ob_str_eqc(s->json, "null")));
}

static enum ob_status compile_merge(struct compiler *c, const struct ob_node *list,
                                    struct ob_shape *out)
{
    if (list->kind != OB_NODE_LIST || list->n == 0 || list->n > MERGE_MAX)
        return ob_node_err(&list->pos, c->err, "$merge wants a list of 1 to %d objects", MERGE_MAX);
    out->kind = MERGE;
    enum ob_status st = compile_items(c, list, out);
    for (size_t i = 0; i < list->n && st == OB_OK; i++)
        if (!mergeable(&out->sub[i]))
            st = ob_node_err(&list->items[i]->pos, c->err,
                             "$merge takes objects: a map, or one ${…} that is an object");
    return st;
}

static enum ob_status compile(struct compiler *c, const struct ob_node *node, struct ob_shape *out)
{
    if (node->kind == OB_NODE_SCALAR)
        return compile_scalar(c, node, out);
    if (node->kind == OB_NODE_MAP && node->n == 1 && strcmp(node->keys[0], "$merge") == 0)
        return compile_merge(c, node->items[0], out);
    out->kind = node->kind == OB_NODE_MAP ? OBJECT : LIST;
    enum ob_status st = compile_items(c, node, out);
    if (st == OB_OK && out->kind == OBJECT)
        st = compile_keys(c, node, out);
    return st == OB_OK ? fold(c, out) : st;
}

enum ob_status ob_shape_compile(struct ob_arena *arena, const struct ob_node *tree,
                                const struct ob_shape **out, struct ob_err *err)
{
    struct compiler c = {.arena = arena, .err = err};
    ob_buf_init(&c.buf, 0);
    struct ob_shape *s = ob_arena_zalloc(arena, sizeof *s);
    enum ob_status st = s != NULL ? compile(&c, tree, s) : no_memory(&c);
    if (st == OB_OK)
        *out = s;
    ob_buf_clear(&c.buf);
    return st;
}

/* ---- rendering ---- */

static void put_string(struct ob_buf *b, struct ob_str s)
{
    ob_buf_char(b, '"');
    ob_json_escape(b, s);
    ob_buf_char(b, '"');
}

enum ob_status ob_value_append(struct ob_rctx *c, const struct ob_value *v, struct ob_err *err)
{
    struct ob_buf *b = c->scratch;
    switch (v->kind) {
    case OB_VAL_MISSING:
    case OB_VAL_NULL:
        ob_buf_c(b, "null");
        break;
    case OB_VAL_STRING:
    case OB_VAL_JSON:
        ob_buf_str(b, v->s);
        break;
    case OB_VAL_TEXT:
        if (v->s.p == c->ev->payload.p && !ob_utf8_valid(v->s))
            return ob_err_set(err, OB_REJECT,
                              "payload is text but not UTF-8; JSON cannot hold it as a string");
        put_string(b, v->s);
        break;
    case OB_VAL_BYTES:
        ob_buf_char(b, '"');
        ob_base64(b, v->s);
        ob_buf_char(b, '"');
        break;
    }
    return OB_OK;
}

static enum ob_status render(struct ob_rctx *c, const struct ob_shape *s, bool *missing,
                             struct ob_err *err);

static enum ob_status render_value(struct ob_rctx *c, const struct ob_shape *s, bool *missing,
                                   struct ob_err *err)
{
    const struct ob_expr *e = s->tmpl.parts[0].expr;
    struct ob_value v;
    enum ob_status st = ob_expr_eval(c, e, &v, err);
    if (st != OB_OK)
        return st;
    *missing = v.kind == OB_VAL_MISSING;
    if (*missing && c->missing == OB_MISSING_REJECT)
        return ob_err_set(err, OB_REJECT, "%.*s finds nothing in this event and has no default",
                          OB_STR_ARG(e->written));
    return ob_value_append(c, &v, err);
}

static enum ob_status render_text(struct ob_rctx *c, const struct ob_shape *s, struct ob_err *err)
{
    struct ob_str text;
    enum ob_status st = ob_tmpl_text(c, &s->tmpl, &text, NULL, err);
    if (st == OB_OK)
        put_string(c->scratch, text);
    return st;
}

static enum ob_status render_items(struct ob_rctx *c, const struct ob_shape *s, struct ob_err *err)
{
    struct ob_buf *b = c->scratch;
    bool first = true;
    enum ob_status st = OB_OK;
    ob_buf_char(b, s->kind == OBJECT ? '{' : '[');
    for (size_t i = 0; i < s->n && st == OB_OK; i++) {
        size_t mark = b->n;
        bool missing = false;
        if (!first)
            ob_buf_char(b, ',');
        if (s->kind == OBJECT)
            ob_buf_str(b, s->keys[i]);
        st = render(c, &s->sub[i], &missing, err);
        if (missing && c->missing == OB_MISSING_OMIT)
            b->n = mark;
        else
            first = false;
    }
    ob_buf_char(b, s->kind == OBJECT ? '}' : ']');
    return st;
}

static enum ob_status render_merge(struct ob_rctx *c, const struct ob_shape *s, struct ob_err *err)
{
    size_t mark = c->scratch->n, ends[MERGE_MAX];
    enum ob_status st = OB_OK;
    for (size_t i = 0; i < s->n && st == OB_OK; i++) {
        bool missing = false;
        st = render(c, &s->sub[i], &missing, err);
        ends[i] = c->scratch->n;
    }
    return st == OB_OK ? ob_merge(c, mark, ends, s->n, err) : st;
}

/* Depth is that of the YAML tree: bounded by its parser. */
static enum ob_status render(struct ob_rctx *c, const struct ob_shape *s, bool *missing,
                             struct ob_err *err)
{
    switch (s->kind) {
    case CONST:
        ob_buf_str(c->scratch, s->json);
        return OB_OK;
    case VALUE:
        return render_value(c, s, missing, err);
    case TEXT:
        return render_text(c, s, err);
    case OBJECT:
    case LIST:
        return render_items(c, s, err);
    case MERGE:
        return render_merge(c, s, err);
    }
    return OB_OK;
}

enum ob_status ob_shape_append(struct ob_rctx *c, const struct ob_shape *shape, struct ob_err *err)
{
    bool missing;
    return render(c, shape, &missing, err);
}
