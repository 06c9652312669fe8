/* SPDX-License-Identifier: Apache-2.0 */
/* problems - what is wrong with a config: several at once, each with its place. */
#ifndef OB_CONFIG_PROBLEMS_H
#define OB_CONFIG_PROBLEMS_H

#include "core/buf.h"
#include "core/err.h"
#include "core/opt.h"

#define OB_PROBLEMS_MAX 10

struct ob_problem {
    struct ob_opt_pos pos;
    bool placed; /* the text has its place already */
    char text[400];
};

struct ob_problems {
    struct ob_problem list[OB_PROBLEMS_MAX]; /* the first ones found */
    size_t n;
    size_t more; /* found and not kept */
};

/* pos may be NULL: nowhere in a file. */
void ob_problem_add(struct ob_problems *p, const struct ob_opt_pos *pos, const char *fmt, ...)
    OB_PRINTF(3, 4);
/* A text that begins with its own place; pos only sorts it. */
void ob_problem_add_placed(struct ob_problems *p, const struct ob_opt_pos *pos, const char *text);
/* OB_OK if there is none. Else OB_FATAL: one line per problem, in the order of the file. err gets
 * as many whole lines as fit (at least the first) and how many are left out; all (may be NULL) gets
 * every one. */
enum ob_status ob_problems_end(struct ob_problems *p, struct ob_buf *all,
                               struct ob_err *err) OB_MUST_CHECK;

#endif
