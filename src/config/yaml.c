/* SPDX-License-Identifier: Apache-2.0 */
/* yaml - libyaml's events to a tree. Recursion is bounded by OB_YAML_MAX_LEVELS. */
#include "config/expand.h"
#include "config/file.h"
#include "config/node.h"

#include <stdlib.h>
#include <yaml.h>

struct builder {
    struct ob_arena *arena;
    const char *file;
    struct ob_str text;
    const struct ob_yaml_env *env;
    yaml_parser_t parser;
    size_t nodes;
    const char *path[OB_YAML_MAX_LEVELS + 1]; /* keys from the top; NULL for an item of a list */
    size_t depth;
    bool literal; /* inside one of env->no_expand */
};

/* While a map or list is read its items are a chain; their number is not known yet. */
struct item {
    struct item *next;
    struct ob_node *node;
    const char *key;
    struct ob_opt_pos key_pos;
};

struct chain {
    struct item *first, **last;
    size_t n;
};

static struct ob_opt_pos pos_of(const struct builder *b, const yaml_mark_t *mark)
{
    return (struct ob_opt_pos){b->file, (unsigned)mark->line + 1, (unsigned)mark->column + 1};
}

static struct ob_opt_pos pos_of_offset(const struct builder *b, size_t offset)
{
    struct ob_opt_pos pos = {b->file, 1, 1};
    for (size_t i = 0; i < offset && i < b->text.n; i++) {
        unsigned char c = (unsigned char)b->text.p[i];
        if (c == '\n') {
            pos.line++;
            pos.column = 1;
        } else if ((c & 0xc0) != 0x80) {
            pos.column++;
        }
    }
    return pos;
}

static enum ob_status no_memory(const struct builder *b, struct ob_err *err)
{
    return ob_err_set(err, OB_FATAL, "%s: no memory for the config; it is too large", b->file);
}

static enum ob_status parser_err(const struct builder *b, struct ob_err *err)
{
    const yaml_parser_t *p = &b->parser;
    const char *problem = p->problem ? p->problem : "unknown problem";
    if (p->error == YAML_MEMORY_ERROR)
        return no_memory(b, err);
    if (p->error == YAML_READER_ERROR) {
        struct ob_opt_pos at = pos_of_offset(b, p->problem_offset);
        return ob_node_err(&at, err, "this is not UTF-8 text (%s)", problem);
    }
    struct ob_opt_pos at = pos_of(b, &p->problem_mark);
    if (strstr(problem, "cannot start any token") && p->problem_mark.column == 0)
        return ob_node_err(&at, err, "not valid YAML: %s; indent with spaces, not tabs", problem);
    if (!p->context)
        return ob_node_err(&at, err, "not valid YAML: %s", problem);
    return ob_node_err(&at, err, "not valid YAML: %s (%s, line %u)", problem, p->context,
                       (unsigned)p->context_mark.line + 1);
}

static enum ob_status next_event(struct builder *b, yaml_event_t *ev, struct ob_err *err)
{
    return yaml_parser_parse(&b->parser, ev) ? OB_OK : parser_err(b, err);
}

/* Anchors and tags would make the tree say something else than the text does. */
static enum ob_status refuse(const struct builder *b, const yaml_event_t *ev, struct ob_err *err)
{
    struct ob_opt_pos at = pos_of(b, &ev->start_mark);
    const yaml_char_t *anchor = NULL, *tag = NULL;
    char show[OB_SHOW_MAX];
    switch (ev->type) {
    case YAML_ALIAS_EVENT:
        return ob_node_err(&at, err, "aliases ('*%s') are not supported; write the value out",
                           ob_node_show(show, (const char *)ev->data.alias.anchor));
    case YAML_SCALAR_EVENT:
        anchor = ev->data.scalar.anchor;
        tag = ev->data.scalar.tag;
        break;
    case YAML_MAPPING_START_EVENT:
        anchor = ev->data.mapping_start.anchor;
        tag = ev->data.mapping_start.tag;
        break;
    case YAML_SEQUENCE_START_EVENT:
        anchor = ev->data.sequence_start.anchor;
        tag = ev->data.sequence_start.tag;
        break;
    default:
        break;
    }
    if (anchor)
        return ob_node_err(&at, err, "anchors ('&%s') are not supported; remove it",
                           ob_node_show(show, (const char *)anchor));
    if (tag)
        return ob_node_err(&at, err, "tags ('%s') are not supported; remove it",
                           ob_node_show(show, (const char *)tag));
    return OB_OK;
}

static bool path_is(const struct builder *b, const char *pattern)
{
    for (size_t i = 0; i < b->depth; i++) {
        size_t n = strcspn(pattern, ".");
        bool any = n == 1 && pattern[0] == '*';
        if (!b->path[i] || n == 0)
            return false;
        if (!any && (strlen(b->path[i]) != n || memcmp(b->path[i], pattern, n) != 0))
            return false;
        pattern += n + (pattern[n] == '.');
    }
    return *pattern == '\0';
}

static bool is_literal(const struct builder *b)
{
    if (b->literal || !b->env || !b->env->expand)
        return true;
    for (const char *const *p = b->env->no_expand; p && *p; p++)
        if (path_is(b, *p))
            return true;
    return false;
}

static enum ob_status scalar_text(struct builder *b, const yaml_event_t *ev, struct ob_str *out,
                                  struct ob_err *err)
{
    struct ob_opt_pos at = pos_of(b, &ev->start_mark);
    struct ob_str raw = {(const char *)ev->data.scalar.value, ev->data.scalar.length};
    if (raw.n && memchr(raw.p, '\0', raw.n))
        return ob_node_err(&at, err, "a NUL character is not allowed");
    *out = ob_arena_copy(b->arena, raw);
    return out->p ? OB_OK : no_memory(b, err);
}

static enum ob_status build_scalar(struct builder *b, const yaml_event_t *ev, struct ob_node *node,
                                   struct ob_err *err)
{
    struct ob_str raw, text;
    enum ob_status st = scalar_text(b, ev, &raw, err);
    if (st != OB_OK)
        return st;
    text = raw;
    if (!is_literal(b))
        st = ob_expand(b->arena, b->env, &node->pos, raw, &text, err);
    node->kind = OB_NODE_SCALAR;
    node->text = text.p;
    node->quoted = ev->data.scalar.style != YAML_PLAIN_SCALAR_STYLE || text.p != raw.p;
    node->variable = text.p != raw.p;
    return st;
}

struct key_ref {
    const char *key;
    size_t at;
};

static int by_key(const void *a, const void *b)
{
    const struct key_ref *x = a, *y = b;
    int c = strcmp(x->key, y->key);
    return c ? c : (x->at > y->at) - (x->at < y->at);
}

static enum ob_status refuse_duplicates(const struct builder *b, const struct ob_node *map,
                                        struct ob_err *err)
{
    if (map->n < 2)
        return OB_OK;
    struct key_ref *refs = calloc(map->n, sizeof(*refs));
    if (!refs)
        return no_memory(b, err);
    for (size_t i = 0; i < map->n; i++)
        refs[i] = (struct key_ref){map->keys[i], i};
    qsort(refs, map->n, sizeof(*refs), by_key);
    size_t first = SIZE_MAX, again = SIZE_MAX;
    for (size_t i = 1; i < map->n; i++)
        if (strcmp(refs[i].key, refs[i - 1].key) == 0 && refs[i].at < again) {
            first = refs[i - 1].at;
            again = refs[i].at;
        }
    free(refs);
    if (again == SIZE_MAX)
        return OB_OK;
    char show[OB_SHOW_MAX];
    return ob_node_err(
        &map->key_pos[again], err, "duplicate key '%s'; it is already at line %u, column %u",
        ob_node_show(show, map->keys[again]), map->key_pos[first].line, map->key_pos[first].column);
}

static enum ob_status flatten(struct builder *b, const struct chain *chain, struct ob_node *node,
                              struct ob_err *err)
{
    size_t room = chain->n + 1;
    node->items = ob_arena_alloc(b->arena, room * sizeof(*node->items));
    bool ok = node->items != NULL;
    if (node->kind == OB_NODE_MAP) {
        node->keys = ob_arena_alloc(b->arena, room * sizeof(*node->keys));
        node->key_pos = ob_arena_alloc(b->arena, room * sizeof(*node->key_pos));
        ok = ok && node->keys && node->key_pos;
    }
    if (!ok)
        return no_memory(b, err);
    for (const struct item *it = chain->first; it; it = it->next) {
        node->items[node->n] = it->node;
        if (node->kind == OB_NODE_MAP) {
            node->keys[node->n] = it->key;
            node->key_pos[node->n] = it->key_pos;
        }
        node->n++;
    }
    return node->kind == OB_NODE_MAP ? refuse_duplicates(b, node, err) : OB_OK;
}

static enum ob_status build(struct builder *b, const yaml_event_t *ev, struct ob_node **out,
                            struct ob_err *err);

static enum ob_status read_key(struct builder *b, const yaml_event_t *ev, struct item *it,
                               struct ob_err *err)
{
    enum ob_status st = refuse(b, ev, err);
    if (st != OB_OK)
        return st;
    it->key_pos = pos_of(b, &ev->start_mark);
    if (ev->type != YAML_SCALAR_EVENT)
        return ob_node_err(&it->key_pos, err, "a key must be text, not a map or a list");
    struct ob_str key;
    st = scalar_text(b, ev, &key, err);
    if (st == OB_OK)
        it->key = key.p;
    return st;
}

/* One key and value, or one item of a list, starting with event ev. */
static enum ob_status build_item(struct builder *b, bool map, const yaml_event_t *ev,
                                 struct chain *chain, struct ob_err *err)
{
    struct item *it = ob_arena_zalloc(b->arena, sizeof(*it));
    if (!it)
        return no_memory(b, err);
    enum ob_status st = OB_OK;
    yaml_event_t value;
    if (map) {
        st = read_key(b, ev, it, err);
        if (st == OB_OK)
            st = next_event(b, &value, err);
        if (st != OB_OK)
            return st;
    }
    bool was_literal = b->literal;
    b->path[b->depth++] = it->key;
    b->literal = is_literal(b);
    st = build(b, map ? &value : ev, &it->node, err);
    b->literal = was_literal;
    b->depth--;
    if (map)
        yaml_event_delete(&value);
    *chain->last = it;
    chain->last = &it->next;
    chain->n++;
    return st;
}

static enum ob_status build_items(struct builder *b, struct ob_node *node, struct ob_err *err)
{
    struct chain chain = {.first = NULL, .last = &chain.first};
    bool map = node->kind == OB_NODE_MAP;
    if (b->depth >= OB_YAML_MAX_LEVELS)
        return ob_node_err(&node->pos, err, "nested deeper than %d levels", OB_YAML_MAX_LEVELS);
    for (;;) {
        yaml_event_t ev;
        enum ob_status st = next_event(b, &ev, err);
        if (st != OB_OK)
            return st;
        bool end = ev.type == (map ? YAML_MAPPING_END_EVENT : YAML_SEQUENCE_END_EVENT);
        if (!end)
            st = build_item(b, map, &ev, &chain, err);
        yaml_event_delete(&ev);
        if (st != OB_OK)
            return st;
        if (end)
            return flatten(b, &chain, node, err);
    }
}

static enum ob_status build(struct builder *b, const yaml_event_t *ev, struct ob_node **out,
                            struct ob_err *err)
{
    enum ob_status st = refuse(b, ev, err);
    if (st != OB_OK)
        return st;
    struct ob_node *node = ob_arena_zalloc(b->arena, sizeof(*node));
    if (!node)
        return no_memory(b, err);
    node->pos = pos_of(b, &ev->start_mark);
    if (++b->nodes > OB_YAML_MAX_NODES)
        return ob_node_err(&node->pos, err, "more than %d values", OB_YAML_MAX_NODES);
    *out = node;
    if (ev->type == YAML_SCALAR_EVENT)
        return build_scalar(b, ev, node, err);
    node->kind = ev->type == YAML_MAPPING_START_EVENT ? OB_NODE_MAP : OB_NODE_LIST;
    return build_items(b, node, err);
}

/* The events of a whole stream: start, at most one document, end. */
static enum ob_status build_stream(struct builder *b, struct ob_node **out, struct ob_err *err)
{
    *out = NULL;
    for (;;) {
        yaml_event_t ev;
        enum ob_status st = next_event(b, &ev, err);
        if (st != OB_OK)
            return st;
        yaml_event_type_t type = ev.type;
        struct ob_opt_pos at = pos_of(b, &ev.start_mark);
        if (type == YAML_DOCUMENT_START_EVENT && *out)
            st = ob_node_err(&at, err, "a second document; only one is read");
        else if (type != YAML_STREAM_START_EVENT && type != YAML_STREAM_END_EVENT &&
                 type != YAML_DOCUMENT_START_EVENT && type != YAML_DOCUMENT_END_EVENT)
            st = build(b, &ev, out, err);
        yaml_event_delete(&ev);
        if (st != OB_OK)
            return st;
        if (type == YAML_STREAM_END_EVENT)
            break;
    }
    return *out ? OB_OK : ob_err_set(err, OB_FATAL, "%s: the file is empty", b->file);
}

enum ob_status ob_yaml_parse(struct ob_arena *arena, const char *file, struct ob_str text,
                             const struct ob_yaml_env *env, struct ob_node **out,
                             struct ob_err *err)
{
    struct builder b = {.arena = arena, .text = text, .env = env};
    b.file = ob_arena_copy(arena, ob_str_c(file)).p;
    if (!b.file)
        return ob_err_set(err, OB_FATAL, "%s: no memory for the config", file);
    if (text.n > OB_YAML_MAX_BYTES)
        return ob_err_set(err, OB_FATAL, "%s: larger than 1 MiB; this cannot be a config", file);
    if (!yaml_parser_initialize(&b.parser))
        return no_memory(&b, err);
    yaml_parser_set_encoding(&b.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&b.parser, (const unsigned char *)(text.p ? text.p : ""), text.n);
    struct ob_node *root;
    enum ob_status st = build_stream(&b, &root, err);
    yaml_parser_delete(&b.parser);
    if (st == OB_OK)
        *out = root;
    return st;
}

enum ob_status ob_yaml_load(struct ob_arena *arena, const char *file, const struct ob_yaml_env *env,
                            struct ob_node **out, struct ob_err *err)
{
    char *p = NULL;
    size_t n = 0;
    enum ob_status st = ob_file_read(file, OB_YAML_MAX_BYTES, &p, &n, err);
    if (st == OB_OK)
        st = ob_yaml_parse(arena, file, (struct ob_str){p, n}, env, out, err);
    free(p);
    return st;
}
