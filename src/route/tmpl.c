/* SPDX-License-Identifier: Apache-2.0 */
/* tmpl - compiling: text with ${…} into parts. Rendering is in render.c. */
#include "route/tmpl.h"

#include "core/jscan.h"

#include <stdio.h>

#define DEPTH_MAX 16          /* defaults within defaults */
#define TEXT_MAX (64u * 1024) /* bytes of one template */

static const struct {
    const char *name;
    bool pointer; /* may take :/pointer */
} fields[] = {
    [OB_F_ID] = {"id", false},
    [OB_F_TYPE] = {"type", false},
    [OB_F_AGGREGATE_TYPE] = {"aggregate_type", false},
    [OB_F_AGGREGATE_ID] = {"aggregate_id", false},
    [OB_F_KEY] = {"key", false},
    [OB_F_TENANT] = {"tenant", false},
    [OB_F_TOPIC] = {"topic", false},
    [OB_F_STREAM] = {"stream", false},
    [OB_F_SERVICE] = {"service", false},
    [OB_F_PAYLOAD] = {"payload", true},
    [OB_F_HEADERS] = {"headers", true},
    [OB_F_METADATA] = {"metadata", true},
    [OB_F_ENTITY_VERSION] = {"entity_version", false},
    [OB_F_SCHEMA_VERSION] = {"schema_version", false},
    [OB_F_SEQ] = {"seq", false},
    [OB_F_CREATED] = {"created", false},
    [OB_F_NOW] = {"now", false},
    [OB_F_COL] = {"col", false},
};
#define N_FIELDS (sizeof fields / sizeof fields[0])

struct compiler {
    struct ob_arena *arena;
    const struct ob_node *scalar; /* NULL: from the code */
    const char *text;             /* a copy in the arena: `written` points into it */
    size_t i, n;
    char *pool; /* room for all literal bytes: never more than the text has */
    struct ob_err *err;
};

const char *ob_route_nearest(char buf[OB_NEAREST_MAX], const char *const *names, size_t n,
                             struct ob_str name)
{
    const char *best = NULL;
    unsigned least = name.n < 4 ? 2 : 4; /* the first distance that is too far */
    for (size_t i = 0; i < n; i++) {
        unsigned d = ob_distance(ob_str_c(names[i]), name, least);
        if (d < least) {
            least = d;
            best = names[i];
        }
    }
    buf[0] = '\0';
    if (best != NULL)
        snprintf(buf, OB_NEAREST_MAX, " (did you mean \"%s\"?)", best);
    return buf;
}

/* The place of byte `at`. Only where the scalar stands on one line can it be pointed into. */
static struct ob_opt_pos place(const struct compiler *c, size_t at)
{
    struct ob_opt_pos pos = {0};
    if (c->scalar == NULL)
        return pos;
    pos = c->scalar->pos;
    if (memchr(c->text, '\n', c->n) == NULL)
        pos.column += (unsigned)at + (c->scalar->quoted ? 1 : 0);
    return pos;
}

static enum ob_status bad(const struct compiler *c, size_t at, const char *fmt, ...)
    OB_PRINTF(3, 4);
static enum ob_status bad(const struct compiler *c, size_t at, const char *fmt, ...)
{
    struct ob_err why;
    va_list ap;
    va_start(ap, fmt);
    ob_err_vset(&why, OB_FATAL, fmt, ap);
    va_end(ap);
    struct ob_opt_pos pos = place(c, at);
    if (pos.file == NULL && pos.line == 0)
        return ob_err_set(c->err, OB_FATAL, "template \"%.100s\": %s", c->text, why.text);
    return ob_node_err(&pos, c->err, "%s", why.text);
}

static enum ob_status no_memory(const struct compiler *c)
{
    return ob_err_set(c->err, OB_FATAL, "routes: no memory left for a template");
}

static bool at_default(const struct compiler *c)
{
    return c->i + 1 < c->n && c->text[c->i] == ':' && c->text[c->i + 1] == '-';
}

static enum ob_status parse_name(struct compiler *c, struct ob_expr *e)
{
    size_t from = c->i;
    while (c->i < c->n && c->text[c->i] != ':' && c->text[c->i] != '}' && c->text[c->i] != '%')
        c->i++;
    struct ob_str name = {c->text + from, c->i - from};
    for (size_t f = 0; f < N_FIELDS; f++) {
        if (ob_str_eqc(name, fields[f].name)) {
            e->field = (enum ob_field)f;
            return OB_OK;
        }
    }
    if (c->i >= c->n)
        return bad(c, from, "${ has no closing }; write $${ for a literal ${");
    if (name.n == 0)
        return bad(c, from, "${} names no field; write $${ for a literal ${");
    const char *names[N_FIELDS];
    for (size_t f = 0; f < N_FIELDS; f++)
        names[f] = fields[f].name;
    char near[OB_NEAREST_MAX];
    ob_route_nearest(near, names, N_FIELDS, name);
    return bad(c, from, "unknown field \"%.*s\"%s%s", OB_STR_ARG(name), near,
               near[0] ? ""
                       : "; known are id, type, aggregate_type, aggregate_id, key, tenant, topic, "
                         "stream, service, payload, headers, metadata, entity_version, "
                         "schema_version, seq, created, now, col:NAME");
}

/* A pointer starts with '/' and '~' stands only before 0 or 1 (RFC 6901). */
static enum ob_status check_pointer(const struct compiler *c, size_t at, struct ob_str p)
{
    if (p.n > 0 && p.p[0] != '/')
        return bad(c, at, "\"%.*s\" is no JSON pointer: it starts with /", OB_STR_ARG(p));
    for (size_t i = 0; i < p.n; i++)
        if (p.p[i] == '~' && (i + 1 >= p.n || (p.p[i + 1] != '0' && p.p[i + 1] != '1')))
            return bad(c, at, "\"%.*s\" is no JSON pointer: write ~0 for ~ and ~1 for /",
                       OB_STR_ARG(p));
    return OB_OK;
}

static enum ob_status parse_argument(struct compiler *c, struct ob_expr *e)
{
    const char *name = fields[e->field].name;
    if (c->i >= c->n || c->text[c->i] != ':' || at_default(c))
        return e->field == OB_F_COL ? bad(c, c->i, "col wants a column's name: ${col:NAME}")
                                    : OB_OK;
    size_t at = ++c->i;
    if (e->field != OB_F_COL && !fields[e->field].pointer)
        return bad(c, at, "%s takes no argument; a default is written ${%s:-…}", name, name);
    char *arg = c->pool;
    size_t n = 0;
    while (c->i < c->n && c->text[c->i] != '}' && !at_default(c)) {
        if (c->text[c->i] == '\\' && c->i + 1 < c->n)
            c->i++;
        arg[n++] = c->text[c->i++];
    }
    c->pool += n;
    e->arg = (struct ob_str){arg, n};
    e->pointer = e->field != OB_F_COL;
    if (e->pointer)
        return check_pointer(c, at, e->arg);
    return n == 0 ? bad(c, at, "col wants a column's name: ${col:NAME}") : OB_OK;
}

static bool starts(const struct compiler *c, const char *what)
{
    size_t n = strlen(what);
    return c->n - c->i >= n && memcmp(c->text + c->i, what, n) == 0;
}

/* As in a shell: %%TEXT* takes everything from the first TEXT on away. */
static enum ob_status parse_cut(struct compiler *c, struct ob_expr *e)
{
    size_t at = c->i;
    if (c->i >= c->n || c->text[c->i] != '%')
        return OB_OK;
    if (e->field > OB_F_SERVICE)
        return bad(c, at, "%s is no text that could be cut", fields[e->field].name);
    if (!starts(c, "%%"))
        return bad(c, at, "write %%%%TEXT* to take away all from the first TEXT on");
    c->i += 2;
    char *cut = c->pool;
    size_t n = 0;
    while (c->i < c->n && c->text[c->i] != '}' && c->text[c->i] != '*') {
        if (c->text[c->i] == '\\' && c->i + 1 < c->n)
            c->i++;
        cut[n++] = c->text[c->i++];
    }
    if (n == 0 || c->i >= c->n || c->text[c->i] != '*')
        return bad(c, at, "write %%%%TEXT* to take away all from the first TEXT on");
    c->i++; /* the * */
    c->pool += n;
    e->cut = (struct ob_str){cut, n};
    return OB_OK;
}

static enum ob_status parse(struct compiler *c, unsigned depth, struct ob_tmpl *out);

/* A default of a field that has no type of its own is JSON where it reads as JSON. */
static void type_default(struct ob_expr *e)
{
    const struct ob_tmpl *d = e->dflt;
    if (e->field <= OB_F_SERVICE || d->n != 1 || d->parts[0].expr != NULL)
        return;
    if (ob_json_check(d->parts[0].lit, NULL, NULL) == OB_OK)
        e->dflt_json = d->parts[0].lit;
}

/* After "${". Leaves the position behind "}". */
static enum ob_status parse_expr(struct compiler *c, unsigned depth, struct ob_expr *e)
{
    size_t from = c->i - 2;
    enum ob_status st = parse_name(c, e);
    if (st == OB_OK)
        st = parse_cut(c, e);
    if (st == OB_OK)
        st = parse_argument(c, e);
    if (st == OB_OK && at_default(c)) {
        c->i += 2;
        struct ob_tmpl *d = ob_arena_zalloc(c->arena, sizeof *d);
        if (d == NULL)
            return no_memory(c);
        st = parse(c, depth + 1, d);
        e->dflt = d;
        if (st == OB_OK)
            type_default(e);
    }
    if (st != OB_OK)
        return st;
    if (c->i >= c->n)
        return bad(c, from, "${ has no closing }; write $${ for a literal ${");
    c->i++; /* the } */
    e->written = (struct ob_str){c->text + from, c->i - from};
    return OB_OK;
}

/* Literal text up to the next ${ or, within a default (depth > 0), its closing }. *open counts the
 * braces that the default itself has opened. */
static struct ob_str parse_text(struct compiler *c, unsigned depth, size_t *open)
{
    struct ob_str lit = {c->pool, 0};
    while (c->i < c->n && !starts(c, "${")) {
        char ch = c->text[c->i];
        if (starts(c, "$${")) {
            *c->pool++ = '$';
            *c->pool++ = '{';
            c->i += 3;
            continue;
        }
        if (depth > 0 && ch == '}') {
            if (*open == 0)
                break;
            (*open)--;
        }
        if (depth > 0 && ch == '{')
            (*open)++;
        if (depth > 0 && ch == '\\' && c->i + 1 < c->n)
            ch = c->text[++c->i];
        *c->pool++ = ch;
        c->i++;
    }
    lit.n = (size_t)(c->pool - lit.p);
    return lit;
}

/* Room for one more: doubled, what was outgrown stays in the arena. */
static struct ob_part *grow(struct ob_arena *arena, struct ob_part *parts, size_t n)
{
    if (n > 0 && (n & (n - 1)) != 0)
        return parts;
    struct ob_part *more = ob_arena_zalloc(arena, (n ? n * 2 : 1) * sizeof *more);
    if (more != NULL && n > 0)
        memcpy(more, parts, n * sizeof *more);
    return more;
}

static enum ob_status parse(struct compiler *c, unsigned depth, struct ob_tmpl *out)
{
    if (depth > DEPTH_MAX)
        return bad(c, c->i, "defaults nested more than %d deep", DEPTH_MAX);
    struct ob_part *parts = NULL;
    size_t n = 0, open = 0;
    enum ob_status st = OB_OK;
    while (st == OB_OK && c->i < c->n && !(depth > 0 && open == 0 && c->text[c->i] == '}')) {
        parts = grow(c->arena, parts, n);
        struct ob_expr *e = starts(c, "${") ? ob_arena_zalloc(c->arena, sizeof *e) : NULL;
        if (parts == NULL || (e == NULL && starts(c, "${")))
            return no_memory(c);
        if (e != NULL) {
            c->i += 2;
            st = parse_expr(c, depth, e);
            parts[n++].expr = e;
        } else {
            parts[n++].lit = parse_text(c, depth, &open);
        }
    }
    *out = (struct ob_tmpl){parts, n};
    return st;
}

enum ob_status ob_tmpl_compile(struct ob_arena *arena, const char *text,
                               const struct ob_node *scalar, struct ob_tmpl *out,
                               struct ob_err *err)
{
    struct compiler c = {.arena = arena, .scalar = scalar, .text = text, .err = err};
    c.n = strlen(text);
    if (c.n > TEXT_MAX)
        return bad(&c, 0, "a template is at most %u bytes", TEXT_MAX);
    c.text = ob_arena_copy(arena, (struct ob_str){text, c.n}).p;
    c.pool = ob_arena_alloc(arena, c.n + 1);
    if (c.text == NULL || c.pool == NULL)
        return ob_err_set(err, OB_FATAL, "routes: no memory left for a template");
    return parse(&c, 0, out);
}
