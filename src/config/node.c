/* SPDX-License-Identifier: Apache-2.0 */
/* node - looking things up in a tree, and merging two of them. */
#include "config/node.h"

#include <stdio.h>

static size_t find_key(const struct ob_node *map, const char *key)
{
    if (!map || map->kind != OB_NODE_MAP)
        return SIZE_MAX;
    for (size_t i = 0; i < map->n; i++)
        if (strcmp(map->keys[i], key) == 0)
            return i;
    return SIZE_MAX;
}

const struct ob_node *ob_node_get(const struct ob_node *map, const char *key)
{
    size_t i = find_key(map, key);
    return i == SIZE_MAX ? NULL : map->items[i];
}

const struct ob_opt_pos *ob_node_key_pos(const struct ob_node *map, const char *key)
{
    size_t i = find_key(map, key);
    return i == SIZE_MAX ? NULL : &map->key_pos[i];
}

bool ob_node_is_null(const struct ob_node *node)
{
    if (!node)
        return true;
    if (node->kind != OB_NODE_SCALAR || node->quoted)
        return false;
    return node->text[0] == '\0' || strcmp(node->text, "~") == 0 ||
           strcmp(node->text, "null") == 0 || strcmp(node->text, "Null") == 0 ||
           strcmp(node->text, "NULL") == 0;
}

const char *ob_node_why_null(const struct ob_node *node)
{
    if (!node)
        return NULL;
    return node->text[0] == '\0' || node->text[0] == '~'
               ? "has no value"
               : "has no value: null without quotes is YAML's null; write \"null\" for the text";
}

enum ob_status(ob_node_err)(const struct ob_opt_pos *pos, struct ob_err *err, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    ob_err_vset(err, OB_FATAL, fmt, ap);
    va_end(ap);
    if (pos && pos->file && err) {
        struct ob_err inner = *err;
        ob_err_set(err, OB_FATAL, "%s:%u:%u: %s", pos->file, pos->line, pos->column, inner.text);
    }
    return OB_FATAL;
}

const char *ob_node_show(char out[OB_SHOW_MAX], const char *text)
{
    size_t n = 0;
    for (; n < 60 && text[n]; n++) {
        unsigned char c = (unsigned char)text[n];
        out[n] = c < 0x20 || c == 0x7f ? '?' : text[n];
    }
    if (text[n]) {
        while (n > 0 && ((unsigned char)text[n] & 0xc0) == 0x80)
            n--; /* do not cut a character in two */
        memcpy(out + n, "...", 3);
        n += 3;
    }
    out[n] = '\0';
    return out;
}

static bool map_alloc(struct ob_arena *arena, struct ob_node *map, size_t room)
{
    map->items = ob_arena_alloc(arena, room * sizeof(*map->items));
    map->keys = ob_arena_alloc(arena, room * sizeof(*map->keys));
    map->key_pos = ob_arena_alloc(arena, room * sizeof(*map->key_pos));
    return map->items && map->keys && map->key_pos;
}

static void map_put(struct ob_node *map, const struct ob_node *from, size_t i, struct ob_node *item)
{
    map->items[map->n] = item;
    map->keys[map->n] = from->keys[i];
    map->key_pos[map->n] = from->key_pos[i];
    map->n++;
}

/* Depth is bounded by that of the parsed trees. */
struct ob_node *ob_node_merge(struct ob_arena *arena, const struct ob_node *base,
                              const struct ob_node *user)
{
    if (!user || !base || base->kind != OB_NODE_MAP || user->kind != OB_NODE_MAP)
        return (struct ob_node *)(user ? user : base);
    struct ob_node *map = ob_arena_zalloc(arena, sizeof(*map));
    if (!map || !map_alloc(arena, map, base->n + user->n + 1))
        return NULL;
    map->kind = OB_NODE_MAP;
    map->pos = user->pos;
    for (size_t i = 0; i < base->n; i++) {
        size_t u = find_key(user, base->keys[i]);
        if (u == SIZE_MAX) {
            map_put(map, base, i, base->items[i]);
            continue;
        }
        struct ob_node *item = ob_node_merge(arena, base->items[i], user->items[u]);
        if (!item)
            return NULL;
        map_put(map, user, u, item);
    }
    for (size_t u = 0; u < user->n; u++)
        if (find_key(base, user->keys[u]) == SIZE_MAX)
            map_put(map, user, u, user->items[u]);
    return map;
}
