/* SPDX-License-Identifier: Apache-2.0 */
/* explain - the resulting config, row by row in the order shown, each with where it came from. */
#include "config/explain.h"

#include "core/json.h"

#include <stdio.h>

#define COMMENT_COLUMN 44

void ob_explain_init(struct ob_explain *e, struct ob_arena *arena)
{
    *e = (struct ob_explain){.arena = arena, .last = &e->first};
}

void ob_explain_add(struct ob_explain *e, const struct ob_explain_row *row)
{
    if (!e || e->failed)
        return;
    struct ob_explain_row *r = ob_arena_alloc(e->arena, sizeof(*r));
    struct ob_str path = ob_arena_copy(e->arena, ob_str_c(row->path));
    struct ob_str key = row->key ? ob_arena_copy(e->arena, ob_str_c(row->key)) : OB_STR("");
    if (!r || !path.p || !key.p) {
        e->failed = true;
        return;
    }
    *r = *row;
    r->next = NULL;
    r->path = path.p;
    r->key = row->key ? key.p : NULL;
    *e->last = r;
    e->last = &r->next;
}

struct dump {
    struct ob_explain *e;
    struct ob_buf path; /* of the node being shown */
    const char *hide;
    bool literal, hidden;
};

/* Whether a key has one of the words, which stand as "password|secret". */
static bool hides(const char *words, const char *key)
{
    char word[64];
    while (words && *words) {
        size_t n = strcspn(words, "|");
        snprintf(word, sizeof(word), "%.*s", (int)n, words);
        if (strcasestr(key, word))
            return true;
        words += n + (words[n] == '|');
    }
    return false;
}

static void dump_node(struct dump *d, const char *key, unsigned depth, unsigned dashes,
                      const struct ob_node *node, const struct ob_opt_pos *pos);

static void dump_map(struct dump *d, unsigned depth, unsigned dashes, const struct ob_node *node)
{
    size_t path_n = d->path.n;
    bool hidden = d->hidden;
    for (size_t i = 0; i < node->n; i++) {
        ob_buf_printf(&d->path, ".%.64s", node->keys[i]); /* many rows may share a long key */
        d->hidden = hidden || hides(d->hide, node->keys[i]);
        dump_node(d, node->keys[i], depth, i == 0 ? dashes : 0, node->items[i], &node->key_pos[i]);
        d->hidden = hidden;
        d->path.n = path_n;
    }
}

/* An item stands one level deeper than its dash. */
static void dump_list(struct dump *d, unsigned depth, unsigned dashes, const struct ob_node *node)
{
    size_t path_n = d->path.n;
    for (size_t i = 0; i < node->n; i++) {
        ob_buf_printf(&d->path, "[%zu]", i);
        dump_node(d, NULL, depth + 1, (i == 0 ? dashes : 0) + 1, node->items[i],
                  &node->items[i]->pos);
        d->path.n = path_n;
    }
}

static void dump_node(struct dump *d, const char *key, unsigned depth, unsigned dashes,
                      const struct ob_node *node, const struct ob_opt_pos *pos)
{
    struct ob_explain_row row = {.path = ob_buf_z(&d->path),
                                 .key = key,
                                 .depth = depth,
                                 .dashes = dashes,
                                 .literal = d->literal,
                                 .pos = node->pos};
    if (node->kind == OB_NODE_SCALAR) {
        row.kind = OB_EXPLAIN_TEXT;
        row.value = node->text;
        if (d->hidden) {
            row.kind = OB_EXPLAIN_HIDDEN;
        } else if (ob_node_is_null(node)) {
            row.kind = OB_EXPLAIN_UNSET;
            row.value = NULL; /* a missing value, `~` and `null` are the same */
        } else if (!node->quoted) {
            row.kind = OB_EXPLAIN_PLAIN;
        }
        ob_explain_add(d->e, &row);
        return;
    }
    bool map = node->kind == OB_NODE_MAP;
    if (node->n == 0)
        row.kind = map ? OB_EXPLAIN_EMPTY_MAP : OB_EXPLAIN_EMPTY_LIST;
    if (key || node->n == 0) {
        row.pos = *pos;
        ob_explain_add(d->e, &row);
        if (key) {
            depth++;
            dashes = 0;
        }
    }
    if (map)
        dump_map(d, depth, dashes, node);
    else
        dump_list(d, depth, dashes, node);
}

void ob_explain_node(struct ob_explain *e, const char *path, const char *key, unsigned depth,
                     const struct ob_node *node, bool literal, const char *hide)
{
    if (!e)
        return;
    struct dump d = {.e = e, .hide = hide, .literal = literal, .hidden = hide && !*hide};
    ob_buf_init(&d.path, 0);
    ob_buf_c(&d.path, path);
    dump_node(&d, key, depth, 0, node, &node->pos);
    ob_buf_clear(&d.path);
}

/* Text that reads back as itself without quotes. */
static bool plain_safe(const char *text)
{
    static const char safe[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./"
                               "-+%@";
    size_t n = strlen(text);
    bool negative = text[0] == '-' && text[1] >= '0' && text[1] <= '9';
    bool opens = n > 0 && (negative || strchr("-%@", text[0]) == NULL);
    return opens && strspn(text, safe) == n && strcmp(text, "null") != 0 &&
           strcmp(text, "Null") != 0 && strcmp(text, "NULL") != 0;
}

/* Characters that YAML takes for line ends or does not allow as they are: U+007F to U+009F, U+2028,
 * U+2029, U+FFFE, U+FFFF. Returns the length of the one at p and its number, or 0. */
static size_t odd_char(const char *p, unsigned *number)
{
    const unsigned char *u = (const unsigned char *)p;
    if (u[0] == 0x7f) {
        *number = 0x7f;
        return 1;
    }
    if (u[0] == 0xc2 && u[1] >= 0x80 && u[1] <= 0x9f) {
        *number = u[1];
        return 2;
    }
    bool line = u[0] == 0xe2 && u[1] == 0x80 && (u[2] == 0xa8 || u[2] == 0xa9);
    bool none = u[0] == 0xef && u[1] == 0xbf && (u[2] == 0xbe || u[2] == 0xbf);
    if (line || none)
        *number = (line ? 0x2000u : 0xffc0u) | (u[2] & 0x3fu);
    return line || none ? 3 : 0;
}

static void put_escaped(struct ob_buf *out, struct ob_str s)
{
    size_t from = 0;
    for (size_t i = 0; i < s.n; i++) {
        unsigned number = 0;
        size_t n = odd_char(s.p + i, &number); /* s ends with NUL or "${": not read beyond */
        if (n == 0)
            continue;
        ob_json_escape(out, (struct ob_str){s.p + from, i - from});
        ob_buf_printf(out, "\\u%04x", number);
        i += n - 1;
        from = i + 1;
    }
    ob_json_escape(out, (struct ob_str){s.p + from, s.n - from});
}

/* In double quotes where needed; `${` is written so that it is not taken for a variable. */
static void put_text(struct ob_buf *out, const char *text, bool quote, bool literal)
{
    if (!quote && plain_safe(text)) {
        ob_buf_c(out, text);
        return;
    }
    ob_buf_char(out, '"');
    for (const char *at; !literal && (at = strstr(text, "${")) != NULL; text = at + 2) {
        put_escaped(out, (struct ob_str){text, (size_t)(at - text)});
        ob_buf_c(out, "$${");
    }
    put_escaped(out, ob_str_c(text));
    ob_buf_char(out, '"');
}

static void put_value(struct ob_buf *out, const struct ob_explain_row *r)
{
    switch (r->kind) {
    case OB_EXPLAIN_TEXT: /* in a template "1" and 1 are not the same */
        put_text(out, r->value, r->literal, r->literal);
        break;
    case OB_EXPLAIN_PLAIN: /* written without quotes, but it may need them on one line */
        put_text(out, r->value, false, r->literal);
        break;
    case OB_EXPLAIN_UNSET:
        ob_buf_char(out, '~');
        break;
    case OB_EXPLAIN_HIDDEN:
        ob_buf_c(out, "(hidden)");
        break;
    case OB_EXPLAIN_EMPTY_MAP:
        ob_buf_c(out, "{}");
        break;
    case OB_EXPLAIN_EMPTY_LIST:
        ob_buf_c(out, "[]");
        break;
    case OB_EXPLAIN_GROUP:
        break;
    }
}

static void put_from(struct ob_buf *out, const struct ob_explain_row *r)
{
    if (r->pos.file)
        ob_buf_printf(out, "%s:%u:%u", r->pos.file, r->pos.line, r->pos.column);
    else
        ob_buf_c(out, r->kind == OB_EXPLAIN_UNSET ? "not set" : "default");
}

void ob_explain_yaml(const struct ob_explain *e, struct ob_buf *out)
{
    for (const struct ob_explain_row *r = e->first; r; r = r->next) {
        size_t start = out->n;
        for (unsigned i = r->dashes; i < r->depth; i++)
            ob_buf_c(out, "  ");
        for (unsigned i = 0; i < r->dashes; i++)
            ob_buf_c(out, "- ");
        if (r->key) {
            put_text(out, r->key, false, true);
            ob_buf_c(out, r->kind == OB_EXPLAIN_GROUP ? ":" : ": ");
        }
        put_value(out, r);
        if (r->kind != OB_EXPLAIN_GROUP) {
            do
                ob_buf_char(out, ' ');
            while (!out->failed && out->n - start < COMMENT_COLUMN);
            ob_buf_c(out, r->pos.file ? " # from " : " # ");
            put_from(out, r);
        }
        ob_buf_char(out, '\n');
    }
}

static bool json_number(const char *text)
{
    size_t n = strspn(text + (*text == '-'), "0123456789");
    const char *digits = text + (*text == '-');
    return n > 0 && n < 16 && digits[n] == '\0' && (digits[0] != '0' || n == 1);
}

static void json_value(struct ob_json *j, const struct ob_explain_row *r)
{
    bool plain = r->kind == OB_EXPLAIN_PLAIN;
    if (plain && (strcmp(r->value, "true") == 0 || strcmp(r->value, "false") == 0))
        ob_json_bool(j, r->value[0] == 't');
    else if (plain && json_number(r->value))
        ob_json_raw(j, ob_str_c(r->value));
    else if (r->kind == OB_EXPLAIN_EMPTY_MAP || r->kind == OB_EXPLAIN_EMPTY_LIST)
        ob_json_raw(j, r->kind == OB_EXPLAIN_EMPTY_MAP ? OB_STR("{}") : OB_STR("[]"));
    else if (r->kind == OB_EXPLAIN_UNSET)
        ob_json_null(j);
    else
        ob_json_strc(j, r->kind == OB_EXPLAIN_HIDDEN ? "(hidden)" : r->value);
}

void ob_explain_json(const struct ob_explain *e, struct ob_buf *out)
{
    struct ob_json j;
    struct ob_buf from;
    ob_buf_init(&from, 0);
    ob_json_init(&j, out);
    ob_json_open(&j, '[');
    for (const struct ob_explain_row *r = e->first; r; r = r->next) {
        if (r->kind == OB_EXPLAIN_GROUP)
            continue;
        ob_buf_reset(&from);
        put_from(&from, r);
        ob_json_open(&j, '{');
        ob_json_keyc(&j, "path");
        ob_json_strc(&j, r->path);
        ob_json_keyc(&j, "value");
        json_value(&j, r);
        ob_json_keyc(&j, "from");
        ob_json_strc(&j, ob_buf_z(&from));
        ob_json_close(&j, '}');
    }
    ob_json_close(&j, ']');
    ob_buf_clear(&from);
}
