/* SPDX-License-Identifier: Apache-2.0 */
/* term - colours, width and a progress bar. */
#include "cli/term.h"

#include "core/clock.h"

#include <inttypes.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define REDRAW_MS 100

void ob_term_init(struct ob_term *term, FILE *out)
{
    const char *name = getenv("TERM"), *no_color = getenv("NO_COLOR"), *cols = getenv("COLUMNS");
    struct winsize ws = {0};
    int fd = fileno(out);
    *term = (struct ob_term){.width = 80};
    term->tty = fd >= 0 && isatty(fd) && !(name && strcmp(name, "dumb") == 0);
    term->color = term->tty && !(no_color && *no_color);
    if (term->tty && ioctl(fd, TIOCGWINSZ, &ws) == 0 && ws.ws_col > 0)
        term->width = ws.ws_col;
    else if (cols && atoi(cols) > 0)
        term->width = (unsigned)atoi(cols);
    if (term->width < 40)
        term->width = 40;
}

const char *ob_term_c(const struct ob_term *term, enum ob_color color)
{
    static const char *const codes[] = {
        [OB_C_RESET] = "\x1b[0m", [OB_C_BOLD] = "\x1b[1m",   [OB_C_DIM] = "\x1b[2m",
        [OB_C_RED] = "\x1b[31m",  [OB_C_GREEN] = "\x1b[32m", [OB_C_YELLOW] = "\x1b[33m",
    };
    return term->color ? codes[color] : "";
}

void ob_term_text(struct ob_buf *out, struct ob_str s, size_t max)
{
    bool cut = max && s.n > max;
    size_t n = cut ? max - 1 : s.n;
    /* Never cut inside a UTF-8 character. */
    while (cut && n > 0 && ((unsigned char)s.p[n] & 0xc0) == 0x80)
        n--;
    bool utf8 = ob_utf8_valid((struct ob_str){s.p, n});
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s.p[i];
        /* C1 controls are c2 80..9f in UTF-8. */
        bool c1 = c == 0xc2 && i + 1 < n && (unsigned char)s.p[i + 1] < 0xa0;
        if (c1)
            i++;
        ob_buf_char(out, c < 0x20 || c == 0x7f || c1 || (!utf8 && c >= 0x80) ? '?' : (char)c);
    }
    if (cut)
        ob_buf_c(out, "~");
}

void ob_term_duration(struct ob_buf *out, int64_t ms)
{
    int64_t s = ms / 1000;
    if (ms < 0)
        ob_buf_c(out, "-");
    else if (ms < 1000)
        ob_buf_printf(out, "%" PRId64 " ms", ms);
    else if (s < 60)
        ob_buf_printf(out, "%" PRId64 ".%" PRId64 " s", s, ms % 1000 / 100);
    else if (s < 3600)
        ob_buf_printf(out, "%" PRId64 " m %" PRId64 " s", s / 60, s % 60);
    else if (s < 86400)
        ob_buf_printf(out, "%" PRId64 " h %" PRId64 " m", s / 3600, s % 3600 / 60);
    else
        ob_buf_printf(out, "%" PRId64 " d %" PRId64 " h", s / 86400, s % 86400 / 3600);
}

void ob_progress_draw(struct ob_buf *out, const char *what, uint64_t done, uint64_t total,
                      unsigned width)
{
    char tail[64];
    if (done > total && total)
        done = total;
    if (!total) {
        ob_buf_printf(out, "%s %" PRIu64, what, done);
        return;
    }
    unsigned pct = (unsigned)((double)done / (double)total * 100.0);
    int tn = snprintf(tail, sizeof tail, " %3u %% %" PRIu64 "/%" PRIu64, pct, done, total);
    size_t taken = strlen(what) + (size_t)tn + 4;
    size_t bar = width > taken + 10 ? width - taken : 10;
    if (bar > 50)
        bar = 50;
    size_t full = (size_t)((double)done / (double)total * (double)bar);
    ob_buf_printf(out, "%s [", what);
    for (size_t i = 0; i < bar; i++)
        ob_buf_char(out, i < full ? '#' : '.');
    ob_buf_printf(out, "]%s", tail);
}

void ob_progress_init(struct ob_progress *p, FILE *out, const char *what, uint64_t total)
{
    *p = (struct ob_progress){.out = out, .what = what, .total = total, .drawn_ms = INT64_MIN};
    ob_term_init(&p->term, out);
}

void ob_progress_set(struct ob_progress *p, uint64_t done)
{
    struct ob_buf line;
    int64_t now = ob_clock_mono_ms(&ob_clock_system);
    if (!p->term.tty || (p->shown && now - p->drawn_ms < REDRAW_MS))
        return;
    p->drawn_ms = now;
    p->shown = true;
    ob_buf_init(&line, 4096);
    ob_progress_draw(&line, p->what, done, p->total, p->term.width);
    fprintf(p->out, "\r\x1b[K%s", ob_buf_z(&line));
    fflush(p->out);
    ob_buf_clear(&line);
}

void ob_progress_end(struct ob_progress *p)
{
    if (p->shown) {
        fputs("\r\x1b[K", p->out);
        fflush(p->out);
    }
    p->shown = false;
}
