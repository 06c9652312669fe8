/* SPDX-License-Identifier: Apache-2.0 */
/* term - what the terminal can show: colours, width, a progress bar. All of it is silent when the
 * output is no terminal. */
#ifndef OB_CLI_TERM_H
#define OB_CLI_TERM_H

#include "core/buf.h"

#include <stdint.h>
#include <stdio.h>

enum ob_color { OB_C_RESET, OB_C_BOLD, OB_C_DIM, OB_C_RED, OB_C_GREEN, OB_C_YELLOW };

struct ob_term {
    bool tty;   /* output is a terminal that can move its cursor */
    bool color; /* tty, and NO_COLOR is not set */
    unsigned width;
};

void ob_term_init(struct ob_term *term, FILE *out);
/* The escape sequence, or "" without colour. */
const char *ob_term_c(const struct ob_term *term, enum ob_color color);
/* Text from a database for people's eyes: at most max columns, control bytes become '?'. max 0: all
 * of it. */
void ob_term_text(struct ob_buf *out, struct ob_str s, size_t max);
/* "3 ms", "1.2 s", "4 m 10 s", "2 h 5 m"; "-" below 0. */
void ob_term_duration(struct ob_buf *out, int64_t ms);

/* A bar that is redrawn in place, at most ten times a second. total 0: unknown. */
struct ob_progress {
    FILE *out;
    struct ob_term term;
    const char *what;
    uint64_t total;
    int64_t drawn_ms; /* monotonic */
    bool shown;
};
void ob_progress_init(struct ob_progress *p, FILE *out, const char *what, uint64_t total);
void ob_progress_set(struct ob_progress *p, uint64_t done);
/* Takes the bar off the screen. */
void ob_progress_end(struct ob_progress *p);
/* Just the drawing, for tests and for those that have the line already. */
void ob_progress_draw(struct ob_buf *out, const char *what, uint64_t done, uint64_t total,
                      unsigned width);

#endif
