/* SPDX-License-Identifier: Apache-2.0 */
/* known - the addresses that routes name before there is any event: where a template needs nothing,
 * or only what the route's match lists word for word. For `check`. */
#include "route/rule.h"

#define SCRATCH_MAX ((size_t)1 << 20)

struct expanding {
    struct ob_rctx c;
    struct ob_event ev;
    const struct ob_rule *rule;
    const struct ob_tmpl *tmpl;
    bool used[OB_MATCH_N]; /* fields of the match that the template reads */
    struct ob_names *out;
};

/* The event's field that a match is about, as a template names it. */
static int match_of(const struct ob_expr *e)
{
    static const enum ob_field fields[OB_MATCH_N] = {OB_F_TYPE, OB_F_AGGREGATE_TYPE, OB_F_TENANT,
                                                     OB_F_TOPIC};
    for (int k = 0; !e->pointer && k < OB_MATCH_N; k++)
        if (e->field == fields[k])
            return k;
    return -1;
}

static struct ob_str *field_of(struct ob_event *ev, int k)
{
    struct ob_str *const fields[OB_MATCH_N] = {&ev->type, &ev->aggregate_type, &ev->tenant,
                                               &ev->topic};
    return fields[k];
}

static size_t exact_ones(const struct ob_patterns *list)
{
    size_t n = 0;
    for (size_t i = 0; i < list->n; i++)
        n += list->any_of[i].kind == OB_PAT_EXACT;
    return n;
}

/* Whether some names can be made; *all: no others will come. */
static bool can_expand(struct expanding *x, bool *all)
{
    for (size_t i = 0; i < x->tmpl->n; i++) {
        const struct ob_expr *e = x->tmpl->parts[i].expr;
        if (e == NULL || (e->field == OB_F_SERVICE && !e->pointer))
            continue;
        int k = match_of(e);
        size_t n = k < 0 ? 0 : exact_ones(&x->rule->match[k]);
        *all = *all && n > 0 && n == x->rule->match[k].n;
        if (n == 0)
            return false;
        x->used[k] = true;
    }
    return true;
}

static enum ob_status add(struct expanding *x, struct ob_err *err)
{
    struct ob_str name;
    x->c.missing = OB_MISSING_REJECT;
    enum ob_status st = ob_tmpl_text(&x->c, x->tmpl, &name, NULL, err);
    if (st == OB_REJECT || (st == OB_OK && (name.n == 0 || ob_has_control(name))))
        return OB_OK; /* such an event would be rejected */
    for (size_t i = 0; st == OB_OK && i < x->out->n; i++)
        if (ob_str_eqc(name, x->out->list[i]))
            return OB_OK;
    if (st != OB_OK || x->out->n == OB_NAMES_MAX)
        return st;
    const char *copy = ob_arena_copy(x->c.arena, name).p;
    if (copy == NULL)
        return ob_rctx_nomem(err);
    x->out->list[x->out->n++] = copy;
    return OB_OK;
}

/* Every combination of what the match lists for the fields from k on. */
static enum ob_status expand(struct expanding *x, int k, struct ob_err *err)
{
    while (k < OB_MATCH_N && !x->used[k])
        k++;
    if (k == OB_MATCH_N)
        return add(x, err);
    enum ob_status st = OB_OK;
    const struct ob_patterns *list = &x->rule->match[k];
    for (size_t i = 0; i < list->n && st == OB_OK && x->out->n < OB_NAMES_MAX; i++) {
        if (list->any_of[i].kind != OB_PAT_EXACT)
            continue;
        *field_of(&x->ev, k) = list->any_of[i].text;
        st = expand(x, k + 1, err);
    }
    return st;
}

static enum ob_status expand_tmpl(const struct ob_routes *r, const struct ob_rule *rule,
                                  const struct ob_tmpl *tmpl, struct ob_arena *arena,
                                  struct ob_buf *scratch, struct ob_names *out, bool *all,
                                  struct ob_err *err)
{
    struct expanding x = {.rule = rule, .tmpl = tmpl, .out = out};
    x.c = (struct ob_rctx){.ev = &x.ev, .arena = arena, .scratch = scratch, .service = r->service};
    return can_expand(&x, all) ? expand(&x, 0, err) : OB_OK;
}

static bool reads_stream(const struct ob_tmpl *t)
{
    for (size_t i = 0; i < t->n; i++)
        if (t->parts[i].expr != NULL && t->parts[i].expr->field == OB_F_STREAM)
            return true;
    return false;
}

enum ob_status ob_routes_known(const struct ob_routes *r, struct ob_arena *arena,
                               struct ob_known *out, struct ob_err *err)
{
    struct ob_buf scratch;
    enum ob_status st = OB_OK;
    bool all_streams = true;
    *out = (struct ob_known){.all_topics = true};
    ob_buf_init(&scratch, SCRATCH_MAX);
    for (size_t i = 0; i < r->n && st == OB_OK; i++) {
        const struct ob_rule *rule = &r->rules[i];
        st = expand_tmpl(r, rule, &rule->topic, arena, &scratch, &out->topics, &out->all_topics,
                         err);
        if (st == OB_OK)
            st = expand_tmpl(r, rule, &rule->stream, arena, &scratch, &out->streams, &all_streams,
                             err);
        out->row_streams = out->row_streams || reads_stream(&rule->stream);
    }
    ob_buf_clear(&scratch);
    return st;
}
