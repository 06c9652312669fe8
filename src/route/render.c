/* SPDX-License-Identifier: Apache-2.0 */
/* render - a template as text, for one event. No heap: slices, the scratch buffer, the arena. */
#include "core/jscan.h"
#include "route/tmpl.h"

#include <stdlib.h>

enum ob_status ob_rctx_overrun(struct ob_rctx *c, struct ob_err *err)
{
    /* The buffer does not tell which of the two it was. An event that is only unlucky must not
     * become a dead one, so ask whether the memory is there. */
    size_t ceiling = c->scratch->ceiling;
    void *volatile probe = malloc(ceiling); /* volatile: or the compiler leaves it out */
    bool memory = probe != NULL;
    free(probe);
    ob_buf_reset(c->scratch);
    if (!memory)
        return ob_rctx_nomem(err);
    return ob_err_set(err, OB_REJECT, "the message would be larger than %zu bytes", ceiling);
}

enum ob_status ob_rctx_take(struct ob_rctx *c, size_t mark, struct ob_str *out, struct ob_err *err)
{
    struct ob_buf *b = c->scratch;
    if (b->failed)
        return ob_rctx_overrun(c, err);
    struct ob_str made = {b->p != NULL ? b->p + mark : "", b->n - mark};
    struct ob_str copy = ob_arena_copy(c->arena, made);
    b->n = mark;
    if (copy.p == NULL)
        return ob_rctx_nomem(err);
    *out = copy;
    return OB_OK;
}

static enum ob_status nothing_there(const struct ob_expr *e, struct ob_err *err)
{
    return ob_err_set(err, OB_REJECT, "%.*s finds nothing in this event and has no default",
                      OB_STR_ARG(e->written));
}

/* A JSON string without its quotes and white space around them; *escaped: has escapes. */
static struct ob_str string_inside(struct ob_str raw, bool *escaped)
{
    const char *from = memchr(raw.p, '"', raw.n);
    const char *to = memrchr(raw.p, '"', raw.n);
    struct ob_str s = {from + 1, (size_t)(to - from - 1)};
    *escaped = memchr(s.p, '\\', s.n) != NULL;
    return s;
}

static enum ob_status append_expr(struct ob_rctx *c, const struct ob_expr *e, struct ob_err *err)
{
    struct ob_value v;
    enum ob_status st = ob_expr_eval(c, e, &v, err);
    if (st != OB_OK)
        return st;
    if (v.kind == OB_VAL_MISSING && c->missing == OB_MISSING_REJECT)
        return nothing_there(e, err);
    if (v.kind == OB_VAL_MISSING || v.kind == OB_VAL_NULL)
        return OB_OK;
    bool escaped = false;
    if (v.kind == OB_VAL_STRING)
        v.s = string_inside(v.s, &escaped);
    if (escaped)
        ob_jscan_unescape(c->scratch, v.s);
    else
        ob_buf_str(c->scratch, v.s);
    return OB_OK;
}

enum ob_status ob_tmpl_append(struct ob_rctx *c, const struct ob_tmpl *t, struct ob_err *err)
{
    enum ob_status st = OB_OK;
    for (size_t i = 0; i < t->n && st == OB_OK; i++) {
        if (t->parts[i].expr != NULL)
            st = append_expr(c, t->parts[i].expr, err);
        else
            ob_buf_str(c->scratch, t->parts[i].lit);
    }
    return st;
}

/* A field that is text by nature, with nothing or a literal as its default, needs no value: most
 * addresses are such. */
static bool plain_text(const struct ob_rctx *c, const struct ob_expr *e, struct ob_str *out)
{
    static const size_t at[] = {
        [OB_F_ID] = offsetof(struct ob_event, id),
        [OB_F_TYPE] = offsetof(struct ob_event, type),
        [OB_F_AGGREGATE_TYPE] = offsetof(struct ob_event, aggregate_type),
        [OB_F_AGGREGATE_ID] = offsetof(struct ob_event, aggregate_id),
        [OB_F_KEY] = offsetof(struct ob_event, key),
        [OB_F_TENANT] = offsetof(struct ob_event, tenant),
        [OB_F_TOPIC] = offsetof(struct ob_event, topic),
        [OB_F_STREAM] = offsetof(struct ob_event, stream),
    };
    if ((size_t)e->field >= sizeof(at) / sizeof(at[0]) || e->cut.n > 0)
        return false;
    const struct ob_str *s = (const void *)((const char *)c->ev + at[e->field]);
    if (s->n > 0) {
        *out = *s;
        return true;
    }
    const struct ob_tmpl *d = e->dflt;
    if (d == NULL || d->n != 1 || d->parts[0].expr != NULL || d->parts[0].lit.n == 0)
        return false;
    *out = d->parts[0].lit;
    return true;
}

/* One ${…}: mostly a slice of the event itself. */
static enum ob_status text_of_single(struct ob_rctx *c, const struct ob_expr *e, struct ob_str *out,
                                     bool *missing, struct ob_err *err)
{
    struct ob_value v;
    bool escaped = false;
    if (plain_text(c, e, out))
        return OB_OK;
    enum ob_status st = ob_expr_eval(c, e, &v, err);
    if (st != OB_OK)
        return st;
    if (v.kind == OB_VAL_MISSING && c->missing == OB_MISSING_REJECT)
        return nothing_there(e, err);
    *missing = v.kind == OB_VAL_MISSING;
    if (v.kind == OB_VAL_MISSING || v.kind == OB_VAL_NULL)
        v.s = OB_STR("");
    if (v.kind == OB_VAL_STRING)
        v.s = string_inside(v.s, &escaped);
    if (!escaped && !v.passing) {
        *out = v.s;
        return OB_OK;
    }
    size_t mark = c->scratch->n;
    if (escaped)
        ob_jscan_unescape(c->scratch, v.s);
    else
        ob_buf_str(c->scratch, v.s);
    return ob_rctx_take(c, mark, out, err);
}

enum ob_status ob_tmpl_text(struct ob_rctx *c, const struct ob_tmpl *t, struct ob_str *out,
                            bool *missing, struct ob_err *err)
{
    bool unused;
    if (missing == NULL)
        missing = &unused;
    *missing = false;
    if (t->n == 0) {
        *out = OB_STR("");
        return OB_OK;
    }
    if (t->n == 1 && t->parts[0].expr == NULL) {
        *out = t->parts[0].lit;
        return OB_OK;
    }
    if (t->n == 1)
        return text_of_single(c, t->parts[0].expr, out, missing, err);
    size_t mark = c->scratch->n;
    enum ob_status st = ob_tmpl_append(c, t, err);
    if (st == OB_OK)
        st = ob_rctx_take(c, mark, out, err);
    return st;
}
