/* SPDX-License-Identifier: Apache-2.0 */
/* problems - what is wrong with a config: several at once, each with its place. */
#include "config/problems.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct ob_problem *next_place(struct ob_problems *p, const struct ob_opt_pos *pos)
{
    if (p->n == OB_PROBLEMS_MAX) {
        p->more++;
        return NULL;
    }
    struct ob_problem *one = &p->list[p->n++];
    *one = (struct ob_problem){.pos = pos ? *pos : (struct ob_opt_pos){NULL, 0, 0}};
    return one;
}

void ob_problem_add(struct ob_problems *p, const struct ob_opt_pos *pos, const char *fmt, ...)
{
    struct ob_problem *one = next_place(p, pos);
    if (!one)
        return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(one->text, sizeof(one->text), fmt, ap);
    va_end(ap);
}

void ob_problem_add_placed(struct ob_problems *p, const struct ob_opt_pos *pos, const char *text)
{
    struct ob_problem *one = next_place(p, pos);
    if (!one)
        return;
    one->placed = true;
    snprintf(one->text, sizeof(one->text), "%s", text);
}

/* By file (those without one first), line, column. */
static int compare(const struct ob_problem *a, const struct ob_problem *b)
{
    int c = strcmp(a->pos.file ? a->pos.file : "", b->pos.file ? b->pos.file : "");
    if (c)
        return c;
    if (a->pos.line != b->pos.line)
        return a->pos.line < b->pos.line ? -1 : 1;
    return (a->pos.column > b->pos.column) - (a->pos.column < b->pos.column);
}

/* Insertion: at most ten, and equal ones stay as they were found (qsort promises neither). */
static void sort(struct ob_problems *p)
{
    for (size_t i = 1; i < p->n; i++)
        for (size_t k = i; k > 0 && compare(&p->list[k], &p->list[k - 1]) < 0; k--) {
            struct ob_problem other = p->list[k];
            p->list[k] = p->list[k - 1];
            p->list[k - 1] = other;
        }
}

static void put_line(struct ob_buf *out, const struct ob_problem *one)
{
    if (out->n > 0)
        ob_buf_char(out, '\n');
    if (one->pos.file && !one->placed)
        ob_buf_printf(out, "%s:%u:%u: ", one->pos.file, one->pos.line, one->pos.column);
    ob_buf_c(out, one->text);
}

static void put_more(struct ob_buf *out, size_t more)
{
    if (more > 0)
        ob_buf_printf(out, "\n(and %zu more)", more);
}

static size_t more_len(size_t more)
{
    return more ? (size_t)snprintf(NULL, 0, "\n(and %zu more)", more) : 0;
}

enum ob_status ob_problems_end(struct ob_problems *p, struct ob_buf *all, struct ob_err *err)
{
    if (p->n == 0)
        return OB_OK;
    sort(p);
    struct ob_buf line, text;
    ob_buf_init(&line, 0);
    ob_buf_init(&text, 0);
    size_t fit = 0;
    bool room = true;
    for (size_t i = 0; i < p->n; i++) {
        ob_buf_reset(&line);
        put_line(&line, &p->list[i]);
        if (all) {
            if (all->n > 0)
                ob_buf_char(all, '\n');
            ob_buf_str(all, ob_buf_view(&line));
        }
        size_t with = text.n + (i > 0) + line.n + more_len(p->n - i - 1 + p->more);
        room = room && (i == 0 || !err || with < sizeof(err->text));
        if (room) {
            if (i > 0)
                ob_buf_char(&text, '\n');
            ob_buf_str(&text, ob_buf_view(&line));
            fit++;
        }
    }
    put_more(&text, p->n - fit + p->more);
    if (all)
        put_more(all, p->more);
    enum ob_status st = ob_err_set(err, OB_FATAL, "%s", ob_buf_z(&text));
    ob_buf_clear(&line);
    ob_buf_clear(&text);
    return st;
}
