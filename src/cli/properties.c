/* SPDX-License-Identifier: Apache-2.0 */
/* properties - lines of `name=value` or `name: value`; # and ! begin a comment, a backslash at the
 * end goes on in the next line, elsewhere it takes the next character literally. */
#include "cli/properties.h"

#include "core/buf.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>

#define FILE_MAX ((size_t)4 << 20)
#define LINES_MAX 20000

static enum ob_status read_file(const char *path, struct ob_buf *out, struct ob_err *err)
{
    FILE *in = fopen(path, "rb");
    char part[8192];
    size_t n;
    if (!in)
        return ob_err_set(err, OB_REJECT, "%s: %s", path, strerror(errno));
    while ((n = fread(part, 1, sizeof(part), in)) > 0)
        ob_buf_put(out, part, n);
    bool bad = ferror(in) != 0;
    fclose(in);
    if (bad || out->failed)
        return ob_err_set(err, OB_REJECT, "%s: cannot be read, or is larger than 4 MiB", path);
    return OB_OK;
}

/* One line with its continuations, white space before it left out. False: the end. */
static bool next_line(struct ob_str *text, struct ob_buf *line)
{
    ob_buf_reset(line);
    bool more = text->n > 0;
    while (more) {
        const char *end = memchr(text->p, '\n', text->n);
        size_t n = end ? (size_t)(end - text->p) : text->n, from = 0, back = 0;
        size_t next = end ? n + 1 : n;
        while (n > 0 && text->p[n - 1] == '\r')
            n--;
        while (from < n && isspace((unsigned char)text->p[from]))
            from++;
        while (back < n - from && text->p[n - 1 - back] == '\\')
            back++;
        more = back % 2 == 1 && text->n > next;
        ob_buf_put(line, text->p + from, n - from - back % 2);
        text->p += next;
        text->n -= next;
        if (!more)
            return true;
    }
    return false;
}

/* Up to an unescaped character of `stop`; escapes resolved. */
static const char *take(struct ob_arena *arena, const char **p, const char *stop)
{
    struct ob_buf out;
    ob_buf_init(&out, 0);
    for (; **p && !(stop && strchr(stop, **p)); (*p)++) {
        if (**p == '\\' && (*p)[1]) {
            (*p)++;
            ob_buf_char(&out, **p == 'n' ? '\n' : **p == 't' ? '\t' : **p);
        } else {
            ob_buf_char(&out, **p);
        }
    }
    while (!stop && out.n > 0 && isspace((unsigned char)out.p[out.n - 1]))
        out.n--;
    const char *s = out.failed ? NULL : ob_arena_copy(arena, ob_buf_view(&out)).p;
    ob_buf_clear(&out);
    return s;
}

static bool add(struct ob_properties *p, const char *line)
{
    const char *name = take(p->arena, &line, "=: \t");
    line += strspn(line, " \t");
    if (*line == '=' || *line == ':')
        line++;
    line += strspn(line, " \t");
    const char *value = take(p->arena, &line, NULL);
    if (!name || !value)
        return false;
    p->of[p->n++] = (struct ob_property){name, value};
    return true;
}

enum ob_status ob_properties_read(const char *path, struct ob_properties *out, struct ob_err *err)
{
    struct ob_buf file, line;
    struct ob_properties p = {.arena = ob_arena_new(16384, (size_t)64 << 20)};
    ob_buf_init(&file, FILE_MAX);
    ob_buf_init(&line, FILE_MAX);
    p.of = p.arena ? ob_arena_alloc(p.arena, LINES_MAX * sizeof(*p.of)) : NULL;
    enum ob_status st =
        p.of ? read_file(path, &file, err) : ob_err_set(err, OB_DOWN, "no memory for %s", path);
    struct ob_str text = ob_buf_view(&file);
    while (st == OB_OK && next_line(&text, &line)) {
        const char *z = ob_buf_z(&line);
        if (*z == '\0' || *z == '#' || *z == '!')
            continue;
        if (p.n == LINES_MAX || !add(&p, z))
            st = ob_err_set(err, OB_REJECT, "%s: too many lines", path);
    }
    ob_buf_clear(&file);
    ob_buf_clear(&line);
    if (st == OB_OK)
        *out = p;
    else
        ob_arena_unref(p.arena);
    return st;
}

void ob_properties_clear(struct ob_properties *p)
{
    ob_arena_unref(p->arena);
    *p = (struct ob_properties){0};
}

const char *ob_properties_get(const struct ob_properties *p, const char *name)
{
    const char *found = NULL;
    for (size_t i = 0; i < p->n; i++)
        if (strcmp(p->of[i].name, name) == 0)
            found = p->of[i].value;
    return found;
}
