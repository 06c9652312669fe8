/* SPDX-License-Identifier: Apache-2.0 */
/* known - the addresses that routes name before there is any event: where a template needs nothing,
 * or only what the route's match lists word for word. For `check`. */
#include "route/rule.h"

#define SCRATCH_MAX ((size_t)1 << 20)

struct expanding {
    struct ob_rctx c;
    struct ob_event ev;
    const struct ob_rule *rule;
    bool topic, stream;    /* can be made */
    bool used[OB_MATCH_N]; /* fields of the match that they read */
    struct ob_known *out;
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
static bool can_expand(struct expanding *x, const struct ob_tmpl *tmpl, bool *all)
{
    bool used[OB_MATCH_N] = {false};
    for (size_t i = 0; i < tmpl->n; i++) {
        const struct ob_expr *e = tmpl->parts[i].expr;
        if (e == NULL || (e->field == OB_F_SERVICE && !e->pointer))
            continue;
        int k = match_of(e);
        size_t n = k < 0 ? 0 : exact_ones(&x->rule->match[k]);
        *all = *all && n > 0 && n == x->rule->match[k].n;
        if (n == 0)
            return false;
        used[k] = true;
    }
    for (int k = 0; k < OB_MATCH_N; k++)
        x->used[k] = x->used[k] || used[k];
    return true;
}

/* *name: NULL where an event would be rejected, or for the empty one; else the list's own. */
static enum ob_status add(struct expanding *x, const struct ob_tmpl *tmpl, struct ob_names *out,
                          const char **name, struct ob_err *err)
{
    struct ob_str text;
    *name = NULL;
    x->c.missing = OB_MISSING_REJECT;
    enum ob_status st = ob_tmpl_text(&x->c, tmpl, &text, NULL, err);
    if (st == OB_REJECT || (st == OB_OK && (text.n == 0 || ob_has_control(text))))
        return OB_OK;
    for (size_t i = 0; st == OB_OK && i < out->n && !*name; i++)
        if (ob_str_eqc(text, out->list[i]))
            *name = out->list[i];
    if (st != OB_OK || *name || out->n == OB_NAMES_MAX)
        return st;
    *name = ob_arena_copy(x->c.arena, text).p;
    if (*name == NULL)
        return ob_rctx_nomem(err);
    out->list[out->n++] = *name;
    return OB_OK;
}

static bool reads_stream(const struct ob_tmpl *t)
{
    for (size_t i = 0; i < t->n; i++)
        if (t->parts[i].expr != NULL && t->parts[i].expr->field == OB_F_STREAM)
            return true;
    return false;
}

/* The stream is what the row says, if it says one: so it is in a route that does not name it. */
static bool may_have_none(const struct ob_tmpl *t)
{
    return t->n == 0 || (t->n == 1 && reads_stream(t));
}

/* One combination: the match's fields are those of x->ev. */
static enum ob_status add_both(struct expanding *x, struct ob_err *err)
{
    struct ob_known *k = x->out;
    struct ob_place p = {0};
    enum ob_status st = OB_OK;
    if (x->topic)
        st = add(x, &x->rule->topic, &k->topics, &p.topic, err);
    if (st == OB_OK && x->stream)
        st = add(x, &x->rule->stream, &k->streams, &p.stream, err);
    if (st != OB_OK || !p.topic || (!p.stream && !may_have_none(&x->rule->stream)))
        return st;
    for (size_t i = 0; i < k->n_places; i++) /* names are compared by their one place */
        if (k->places[i].topic == p.topic && k->places[i].stream == p.stream)
            return OB_OK;
    if (k->n_places < OB_NAMES_MAX)
        k->places[k->n_places++] = p;
    return OB_OK;
}

/* Every combination of what the match lists for the fields from k on. */
static enum ob_status expand(struct expanding *x, int k, struct ob_err *err)
{
    while (k < OB_MATCH_N && !x->used[k])
        k++;
    if (k == OB_MATCH_N)
        return add_both(x, err);
    enum ob_status st = OB_OK;
    const struct ob_patterns *list = &x->rule->match[k];
    for (size_t i = 0; i < list->n && st == OB_OK && x->out->topics.n < OB_NAMES_MAX; i++) {
        if (list->any_of[i].kind != OB_PAT_EXACT)
            continue;
        *field_of(&x->ev, k) = list->any_of[i].text;
        st = expand(x, k + 1, err);
    }
    return st;
}

enum ob_status ob_routes_known(const struct ob_routes *r, struct ob_arena *arena,
                               struct ob_known *out, struct ob_err *err)
{
    struct ob_buf scratch;
    enum ob_status st = OB_OK;
    *out = (struct ob_known){.all_topics = true};
    ob_buf_init(&scratch, SCRATCH_MAX);
    for (size_t i = 0; i < r->n && st == OB_OK; i++) {
        const struct ob_rule *rule = &r->rules[i];
        struct expanding x = {.rule = rule, .out = out};
        bool all_streams = true;
        x.c = (struct ob_rctx){
            .ev = &x.ev, .arena = arena, .scratch = &scratch, .service = r->service};
        x.topic = can_expand(&x, &rule->topic, &out->all_topics);
        x.stream = can_expand(&x, &rule->stream, &all_streams);
        if (x.topic || x.stream)
            st = expand(&x, 0, err);
        out->row_streams = out->row_streams || reads_stream(&rule->stream);
        out->streamless = out->streamless || may_have_none(&rule->stream);
    }
    ob_buf_clear(&scratch);
    return st;
}
