/* SPDX-License-Identifier: Apache-2.0 */
/* load - an option table and a YAML map give a filled struct, or a list of what is wrong. */
#include "config/load.h"

#include "config/secret.h"
#include "config/units.h"

#include <stdio.h>

/* One option being read. */
struct one {
    struct ob_loader *l;
    const struct ob_opt *opt;
    const char *path; /* of the option itself */
    unsigned depth;
    struct ob_opt_pos pos; /* file NULL: the default */
    void *field;
};

static const char *kind_name(enum ob_node_kind kind)
{
    static const char *const names[] = {"text", "a map", "a list"};
    return names[kind];
}

static void no_memory(struct ob_loader *l)
{
    ob_problem_add(l->problems, NULL, "no memory for the config; it is too large");
}

static bool limited(const struct ob_opt *opt)
{
    return opt->min != 0 || opt->max != 0;
}

/* A secret's value is never part of a message. */
static const char *show_value(const struct one *o, const char *text, char out[OB_SHOW_MAX])
{
    return o->opt->flags & OB_OPT_SECRET ? "(hidden)" : ob_node_show(out, text);
}

static const char *form_of(enum ob_opt_type type)
{
    switch (type) {
    case OB_OPT_MS:
        return "no duration; write 250ms, 5s, 2m, 1h or 7d";
    case OB_OPT_BYTES:
        return "no size; write 4096, 64k, 16M or 1G";
    case OB_OPT_PCT:
        return "no share; write 20% or a factor like 1.5";
    default:
        return "no whole number";
    }
}

static void set_number(const struct one *o, const char *text)
{
    const struct ob_opt *opt = o->opt;
    int64_t value = 0;
    char show[OB_SHOW_MAX], lo[OB_UNITS_MAX], hi[OB_UNITS_MAX];
    const char *shown = show_value(o, text, show);
    enum ob_units result = ob_units_parse(opt->type, text, &value);
    if (result == OB_UNITS_FORM) {
        ob_problem_add(o->l->problems, &o->pos, "%s: '%s' is %s", o->path, shown,
                       form_of(opt->type));
    } else if (limited(opt) && (result == OB_UNITS_RANGE || value < opt->min || value > opt->max)) {
        ob_problem_add(o->l->problems, &o->pos, "%s: %s is out of range; allowed is %s to %s",
                       o->path, shown, ob_units_show(opt->type, opt->min, lo),
                       ob_units_show(opt->type, opt->max, hi));
    } else if (result == OB_UNITS_RANGE) {
        ob_problem_add(o->l->problems, &o->pos, "%s: %s is too large", o->path, shown);
    } else {
        memcpy(o->field, &value, sizeof(value));
    }
}

#define CHOICES_MAX 32

static void set_choice(const struct one *o, const char *text)
{
    int at = ob_choice_find(o->opt->choices, text);
    if (at >= 0) {
        memcpy(o->field, &at, sizeof(at));
        return;
    }
    char copy[256], show[OB_SHOW_MAX];
    const char *names[CHOICES_MAX];
    size_t n = 0;
    snprintf(copy, sizeof(copy), "%s", o->opt->choices);
    char *rest = copy;
    for (char *name; n < CHOICES_MAX && (name = strsep(&rest, "|")) != NULL;)
        names[n++] = name;
    const char *near = ob_nearest(text, names, n);
    ob_problem_add(o->l->problems, &o->pos, "%s: '%s' is none of %s%s%s%s", o->path,
                   show_value(o, text, show), o->opt->choices, near ? "; did you mean '" : "",
                   near ? near : "", near ? "'?" : "");
}

static void set_bool(const struct one *o, const char *text)
{
    bool value = false;
    char show[OB_SHOW_MAX];
    if (ob_bool_parse(text, &value))
        memcpy(o->field, &value, sizeof(value));
    else
        ob_problem_add(o->l->problems, &o->pos, "%s: '%s' is neither true nor false", o->path,
                       show_value(o, text, show));
}

static void explain_value(const struct one *o, const char *value)
{
    bool plain = o->opt->type == OB_OPT_INT || o->opt->type == OB_OPT_BOOL;
    struct ob_explain_row row = {.kind = plain ? OB_EXPLAIN_PLAIN : OB_EXPLAIN_TEXT,
                                 .path = o->path,
                                 .key = o->opt->name,
                                 .value = value,
                                 .depth = o->depth,
                                 .pos = o->pos};
    if (!value)
        row.kind = OB_EXPLAIN_UNSET;
    else if (o->opt->flags & OB_OPT_SECRET)
        row.kind = OB_EXPLAIN_HIDDEN;
    ob_explain_add(o->l->explain, &row);
}

static void set_scalar(const struct one *o, const char *text)
{
    switch (o->opt->type) {
    case OB_OPT_STR:
        memcpy(o->field, &text, sizeof(text));
        break;
    case OB_OPT_BOOL:
        set_bool(o, text);
        break;
    case OB_OPT_ENUM:
        set_choice(o, text);
        break;
    default:
        set_number(o, text);
        break;
    }
    explain_value(o, text);
}

/* The items of a list or map as arrays of text and places. */
static bool copy_texts(const struct one *o, const struct ob_node *node, const char ***values,
                       struct ob_opt_pos **pos)
{
    *values = ob_arena_alloc(o->l->arena, (node->n + 1) * sizeof(**values));
    *pos = ob_arena_alloc(o->l->arena, (node->n + 1) * sizeof(**pos));
    if (!*values || !*pos) {
        no_memory(o->l);
        return false;
    }
    for (size_t i = 0; i < node->n; i++) {
        const struct ob_node *item = node->items[i];
        char show[OB_SHOW_MAX];
        (*pos)[i] = item->pos;
        (*values)[i] = item->text;
        if (item->kind == OB_NODE_SCALAR)
            continue;
        if (node->kind == OB_NODE_MAP)
            ob_problem_add(o->l->problems, &item->pos, "%s.%s: needs text, here is %s", o->path,
                           ob_node_show(show, node->keys[i]), kind_name(item->kind));
        else
            ob_problem_add(o->l->problems, &item->pos, "%s[%zu]: needs text, here is %s", o->path,
                           i, kind_name(item->kind));
        (*values)[i] = "";
    }
    return true;
}

static void set_map(const struct one *o, const struct ob_node *node)
{
    struct ob_opt_map map = {.n = node->n, .keys = node->keys};
    if (copy_texts(o, node, &map.values, &map.pos))
        memcpy(o->field, &map, sizeof(map));
}

/* A value alone is a list of one. */
static void set_list(const struct one *o, const struct ob_node *node)
{
    struct ob_node *alone = (struct ob_node *)node;
    const struct ob_node wrapped = {.kind = OB_NODE_LIST, .items = &alone, .n = 1};
    const struct ob_node *from = node->kind == OB_NODE_SCALAR ? &wrapped : node;
    struct ob_opt_list list = {.n = from->n};
    if (copy_texts(o, from, &list.values, &list.pos))
        memcpy(o->field, &list, sizeof(list));
}

static void set_node(const struct one *o, const struct ob_node *node)
{
    const struct ob_opt *opt = o->opt;
    const char *hide = opt->flags & OB_OPT_SECRET ? "" : opt->hide;
    if (opt->type == OB_OPT_NODE) {
        memcpy(o->field, &node, sizeof(node));
        return;
    }
    bool map = opt->type == OB_OPT_MAP, list = opt->type == OB_OPT_LIST;
    if (map ? node->kind != OB_NODE_MAP
            : node->kind != OB_NODE_SCALAR && (!list || node->kind != OB_NODE_LIST)) {
        ob_problem_add(o->l->problems, &o->pos, "%s: needs %s, here is %s", o->path,
                       map    ? "a map"
                       : list ? "a list"
                              : "text",
                       kind_name(node->kind));
    } else if (map || list) {
        if (map)
            set_map(o, node);
        else
            set_list(o, node);
        ob_explain_node(o->l->explain, o->path, opt->name, o->depth, node, false, hide);
    } else {
        set_scalar(o, node->text);
    }
}

static const struct ob_node *given(const struct ob_node *map, const char *key)
{
    const struct ob_node *node = ob_node_get(map, key);
    return ob_node_is_null(node) ? NULL : node;
}

static bool from_base(const struct ob_loader *l, const struct ob_node *node)
{
    return l->base_file && node->pos.file && strcmp(l->base_file, node->pos.file) == 0;
}

/* `<name>_file` in place of `<name>`. Returns true when the option was given that way. */
static bool load_from_file(struct one *o, const struct ob_node *map, const struct ob_node **value)
{
    char key[128];
    snprintf(key, sizeof(key), "%s_file", o->opt->name);
    const struct ob_node *file = given(map, key);
    if (!file || o->opt->type != OB_OPT_STR)
        return false;
    if (*value && from_base(o->l, *value) != from_base(o->l, file)) {
        if (from_base(o->l, file))
            return false;
        *value = NULL; /* the user's file wins over the profile's text */
    }
    o->pos = file->pos;
    if (file->kind != OB_NODE_SCALAR || *value) {
        if (*value)
            ob_problem_add(o->l->problems, &file->pos, "%s and %s are both given; keep one of them",
                           o->path, key);
        else
            ob_problem_add(o->l->problems, &file->pos, "%s_file: needs text, here is %s", o->path,
                           kind_name(file->kind));
        return true;
    }
    struct ob_err err;
    const char *text = NULL;
    if (ob_secret_read(o->l->arena, file->text, &text, &err) != OB_OK)
        ob_problem_add(o->l->problems, &file->pos, "%s_file: %s", o->path, err.text);
    else
        memcpy(o->field, &text, sizeof(text));
    ob_secret_note(o->l->secrets, file->text, o->path);
    struct ob_explain_row row = {.kind = OB_EXPLAIN_TEXT,
                                 .path = ob_arena_printf(o->l->arena, "%s_file", o->path),
                                 .key = key,
                                 .value = file->text,
                                 .depth = o->depth,
                                 .pos = file->pos};
    if (row.path)
        ob_explain_add(o->l->explain, &row);
    return true;
}

static void load_default(struct one *o)
{
    const struct ob_opt *opt = o->opt;
    o->pos = (struct ob_opt_pos){NULL, 0, 0};
    if (opt->type == OB_OPT_NODE)
        return;
    if (!opt->def) {
        explain_value(o, NULL);
        return;
    }
    struct ob_node text = {.kind = OB_NODE_SCALAR, .text = opt->def, .quoted = true};
    set_node(o, &text);
}

/* A table in a table. One that is not given has its defaults and is not shown. */
static void load_group(const struct one *o, const struct ob_node *map,
                       const struct ob_opt_pos *where)
{
    struct ob_loader l = *o->l;
    const struct ob_opt_part part = {o->opt->group, o->field};
    if (map) {
        struct ob_explain_row row = {
            .kind = OB_EXPLAIN_GROUP, .path = o->path, .key = o->opt->name, .pos = map->pos};
        row.depth = o->depth;
        ob_explain_add(l.explain, &row);
    } else {
        l.explain = NULL;
    }
    ob_load_parts(&l, o->path, o->depth + 1, map, where, &part, 1);
}

static void load_one(struct ob_loader *l, const char *path, unsigned depth,
                     const struct ob_node *map, const struct ob_opt_pos *where,
                     const struct ob_opt *opt, void *out)
{
    char *own = *path ? ob_arena_printf(l->arena, "%s.%s", path, opt->name)
                      : ob_arena_printf(l->arena, "%s", opt->name);
    if (!own) {
        no_memory(l);
        return;
    }
    struct one o = {l, opt, own, depth, {NULL, 0, 0}, (char *)out + opt->offset};
    const struct ob_node *value = given(map, opt->name);
    if ((opt->flags & OB_OPT_SECRET) && load_from_file(&o, map, &value))
        return;
    if (opt->type == OB_OPT_GROUP) {
        load_group(&o, value, where);
    } else if (value) {
        o.pos = value->pos;
        set_node(&o, value);
        if ((opt->flags & OB_OPT_SECRET) && value->kind == OB_NODE_SCALAR && !value->variable &&
            ob_secret_is_plain(opt->name, value->text))
            ob_secret_note(l->secrets, value->pos.file, own);
    } else if (opt->flags & OB_OPT_REQUIRED) {
        const struct ob_node *null = ob_node_get(map, opt->name);
        if (null)
            ob_problem_add(l->problems, &null->pos, "%s %s: %s", own, ob_node_why_null(null),
                           opt->help ? opt->help : "");
        else
            ob_problem_add(l->problems, where, "%s%s'%s' is missing: %s", path, *path ? ": " : "",
                           opt->name, opt->help ? opt->help : "");
    } else {
        load_default(&o);
    }
}

/* How far off a name may be: one letter in three, at most three. */
static unsigned reach(const char *text)
{
    size_t n = strlen(text);
    return n < 4 ? 1 : n < 7 ? 2 : 3;
}

const char *ob_nearest(const char *text, const char *const *names, size_t n)
{
    const char *best = NULL;
    unsigned max = reach(text), best_d = max + 1;
    if (strlen(text) > 64)
        return NULL;
    for (size_t i = 0; i < n; i++) {
        unsigned d = ob_distance(ob_str_c(text), ob_str_c(names[i]), max);
        if (d < best_d) {
            best = names[i];
            best_d = d;
        }
    }
    return best;
}

#define NAMES_MAX 128

struct names {
    const char *list[NAMES_MAX];
    size_t n;
};

static void put_name(struct names *names, const char *name)
{
    if (name && names->n < NAMES_MAX)
        names->list[names->n++] = name;
}

/* Every key that may stand in the map. */
static void known_names(struct ob_arena *arena, const struct ob_opt_part *parts, size_t n,
                        struct names *names)
{
    for (size_t i = 0; i < n; i++)
        for (const struct ob_opt *opt = parts[i].table; opt->type != OB_OPT_END; opt++) {
            put_name(names, opt->name);
            if (opt->flags & OB_OPT_SECRET && opt->type == OB_OPT_STR)
                put_name(names, ob_arena_printf(arena, "%s_file", opt->name));
        }
}

static void unknown_key(struct ob_loader *l, const char *path, const struct ob_node *map, size_t i,
                        const struct names *names)
{
    char show[OB_SHOW_MAX], list[256] = "";
    const char *near = ob_nearest(map->keys[i], names->list, names->n);
    size_t len = 0;
    for (size_t k = 0; !near && k < names->n && len < sizeof(list); k++)
        len +=
            (size_t)snprintf(list + len, sizeof(list) - len, "%s%s", k ? ", " : "", names->list[k]);
    ob_problem_add(l->problems, &map->key_pos[i], "unknown key '%s'%s%s%s%s%s",
                   ob_node_show(show, map->keys[i]), *path ? " in " : "", path,
                   near ? "; did you mean '" : "; known: ", near ? near : list, near ? "'?" : "");
}

static void check_keys(struct ob_loader *l, const char *path, const struct ob_node *map,
                       const struct ob_opt_part *parts, size_t n)
{
    struct names names = {.n = 0};
    known_names(l->arena, parts, n, &names);
    for (size_t i = 0; i < map->n; i++) {
        size_t k = 0;
        while (k < names.n && strcmp(names.list[k], map->keys[i]) != 0)
            k++;
        if (k == names.n)
            unknown_key(l, path, map, i, &names);
    }
}

void ob_load_parts(struct ob_loader *l, const char *path, unsigned depth, const struct ob_node *map,
                   const struct ob_opt_pos *where, const struct ob_opt_part *parts, size_t n)
{
    if (ob_node_is_null(map))
        map = NULL;
    if (map && map->kind != OB_NODE_MAP) {
        ob_problem_add(l->problems, &map->pos, "%s%sneeds a map, here is %s", path,
                       *path ? ": " : "", kind_name(map->kind));
        return;
    }
    if (map)
        check_keys(l, path, map, parts, n);
    for (size_t i = 0; i < n; i++)
        for (const struct ob_opt *opt = parts[i].table; opt->type != OB_OPT_END; opt++)
            load_one(l, path, depth, map, map ? &map->pos : where, opt, parts[i].out);
}

enum ob_status ob_opt_load(const struct ob_opt *table, const struct ob_node *map, void *out,
                           struct ob_arena *arena, struct ob_err *err)
{
    struct ob_problems problems = {.n = 0};
    struct ob_loader l = {.arena = arena, .problems = &problems};
    const struct ob_opt_part part = {table, out};
    ob_load_parts(&l, "", 0, map, NULL, &part, 1);
    return ob_problems_end(&problems, NULL, err);
}
