/* SPDX-License-Identifier: Apache-2.0 */
/* demo_view - a demo under way, as it is shown. */
#include "cli/demo_view.h"

#include "core/clock.h"
#include "core/json.h"

#include <inttypes.h>

#define VIEW_LINES 8
#define LINE_EVERY_MS 1000

static const char *relay_text(const struct ob_demo *d)
{
    return d->step == OB_DEMO_KILLED ? "killed" : "running";
}

static const char *sink_text(const struct ob_demo *d)
{
    return d->step == OB_DEMO_SINK_AWAY ? "down" : "up";
}

/* Age of the oldest event that is committed and not published. */
static int64_t lag_of(const struct ob_demo *d)
{
    int64_t now = ob_clock_mono_ms(&ob_clock_system), lag = 0;
    for (unsigned k = 0; k < OB_DEMO_KEYS; k++) {
        int64_t when = ob_demo_writer_when(d->writer, k, d->follow.by_key[k] + 1);
        if (when && now - when > lag)
            lag = now - when;
    }
    return lag;
}

static void draw(const struct ob_demo *d)
{
    const struct ob_term *t = &d->cli->term;
    const char *bold = ob_term_c(t, OB_C_BOLD), *off = ob_term_c(t, OB_C_RESET);
    const char *red = ob_term_c(t, OB_C_RED), *green = ob_term_c(t, OB_C_GREEN);
    bool order = d->follow.gaps == 0, sink = d->step != OB_DEMO_SINK_AWAY;
    struct ob_buf out, lag, bar;
    ob_buf_init(&out, 0);
    ob_buf_init(&lag, 64);
    ob_buf_init(&bar, 4096);
    ob_term_duration(&lag, d->lag_ms);
    ob_progress_draw(&bar, "published", d->follow.published, d->counts.events, t->width - 4);
    ob_buf_printf(&out, "\x1b[K%soutbox demo%s  %.1f of %" PRId64 " s\n", bold, off,
                  (double)d->elapsed_ms / 1000.0, d->seconds);
    ob_buf_printf(&out, "\x1b[K  orders written    %8" PRIu64 "   in %" PRIu64 " transactions\n",
                  d->counts.orders, d->counts.transactions);
    ob_buf_printf(&out, "\x1b[K  rolled back       %8" PRIu64 "   transactions\n",
                  d->counts.rolled_back);
    ob_buf_printf(&out, "\x1b[K  events committed  %8" PRIu64 "\n", d->counts.events);
    ob_buf_printf(&out, "\x1b[K  %s\n", ob_buf_z(&bar));
    ob_buf_printf(&out, "\x1b[K  in order          %8s   repeats %" PRIu64 "\n",
                  order ? "yes" : "NO", d->follow.repeats);
    ob_buf_printf(&out, "\x1b[K  lag               %8s\n", ob_buf_z(&lag));
    ob_buf_printf(&out, "\x1b[K  relay %s%s%s, sink %s%s%s\n",
                  d->step == OB_DEMO_KILLED ? red : green, relay_text(d), off, sink ? green : red,
                  sink_text(d), off);
    fwrite(out.p, 1, out.n, d->cli->out);
    fflush(d->cli->out);
    ob_buf_clear(&out);
    ob_buf_clear(&lag);
    ob_buf_clear(&bar);
}

static void up(const struct ob_demo *d)
{
    fprintf(d->cli->out, "\x1b[%dA\r", VIEW_LINES);
}

void ob_demo_view_start(struct ob_demo *d)
{
    d->shown_ms = -LINE_EVERY_MS;
    ob_demo_writer_counts(d->writer, &d->counts);
    if (d->json)
        return;
    if (d->cli->term.tty) {
        draw(d);
        d->live = true;
    } else {
        fprintf(d->cli->out, "demo in %s\n", d->world.dir);
        fflush(d->cli->out);
    }
}

void ob_demo_look(struct ob_demo *d)
{
    ob_demo_writer_counts(d->writer, &d->counts);
    ob_demo_follow(&d->follow, &d->world);
    d->lag_ms = lag_of(d);
    if (d->lag_ms > d->max_lag_ms)
        d->max_lag_ms = d->lag_ms;
    if (d->live) {
        up(d);
        draw(d);
    } else if (!d->json && d->elapsed_ms - d->shown_ms >= LINE_EVERY_MS) {
        d->shown_ms = d->elapsed_ms;
        fprintf(d->cli->out,
                "t=%.1fs orders=%" PRIu64 " rolled_back=%" PRIu64 " committed=%" PRIu64
                " published=%" PRIu64 " in_order=%s repeats=%" PRIu64 " lag_ms=%" PRId64
                " relay=%s sink=%s\n",
                (double)d->elapsed_ms / 1000.0, d->counts.orders, d->counts.rolled_back,
                d->counts.events, d->follow.published, d->follow.gaps ? "no" : "yes",
                d->follow.repeats, d->lag_ms, relay_text(d), sink_text(d));
        fflush(d->cli->out);
    }
}

void ob_demo_say(struct ob_demo *d, const char *text)
{
    if (d->json)
        return;
    if (d->live)
        up(d);
    fprintf(d->cli->out, "%st=%.1fs %s%s%s\n", d->live ? "\x1b[K" : "",
            (double)d->elapsed_ms / 1000.0, ob_term_c(&d->cli->term, OB_C_YELLOW), text,
            ob_term_c(&d->cli->term, OB_C_RESET));
    if (d->live)
        draw(d);
    fflush(d->cli->out);
}

void ob_demo_view_end(struct ob_demo *d)
{
    d->live = false;
}

static void summary_json(const struct ob_demo *d, const struct ob_demo_report *r, bool stopped,
                         bool holds, struct ob_buf *out)
{
    const struct {
        const char *name;
        uint64_t v;
    } rows[] = {
        {"orders", r->orders},
        {"transactions", d->counts.transactions},
        {"rolled_back", d->counts.rolled_back},
        {"committed", r->committed},
        {"keys", r->keys},
        {"lines", r->lines},
        {"delivered", r->delivered},
        {"repeats", r->repeats},
        {"missing", r->missing},
        {"uncommitted", r->uncommitted},
        {"out_of_order", r->out_of_order},
        {"altered", r->altered},
        {"damaged", r->damaged},
        {"astray", r->astray},
        {"max_lag_ms", (uint64_t)d->max_lag_ms},
    };
    struct ob_json j;
    ob_json_init(&j, out);
    ob_json_open(&j, '{');
    ob_json_keyc(&j, "holds");
    ob_json_bool(&j, holds);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ob_json_keyc(&j, rows[i].name);
        ob_json_uint(&j, rows[i].v);
    }
    ob_json_keyc(&j, "stopped_well");
    ob_json_bool(&j, stopped);
    ob_json_keyc(&j, "problem");
    ob_json_strc(&j, r->problem[0] ? r->problem : NULL);
    ob_json_keyc(&j, "folder");
    ob_json_strc(&j, d->world.dir);
    ob_json_close(&j, '}');
    ob_buf_char(out, '\n');
}

static void row(struct ob_buf *out, const char *name, uint64_t v, const char *what)
{
    ob_buf_printf(out, "  %-18s %8" PRIu64 "%s%s\n", name, v, *what ? "   " : "", what);
}

/* A count that must be zero. */
static void zero(struct ob_buf *out, const struct ob_term *t, const char *name, uint64_t v,
                 const char *what)
{
    ob_buf_printf(out, "  %-18s %s%8" PRIu64 "%s   %s\n", name,
                  ob_term_c(t, v ? OB_C_RED : OB_C_GREEN), v, ob_term_c(t, OB_C_RESET), what);
}

void ob_demo_summary(struct ob_demo *d, const struct ob_demo_report *r, bool stopped, bool holds)
{
    const struct ob_term *t = &d->cli->term;
    struct ob_buf out;
    ob_buf_init(&out, 0);
    if (d->json) {
        summary_json(d, r, stopped, holds, &out);
        ob_cli_put(d->cli, &out);
        return;
    }
    ob_buf_printf(&out, "\n%sBoth files read again and compared%s\n", ob_term_c(t, OB_C_BOLD),
                  ob_term_c(t, OB_C_RESET));
    row(&out, "orders", r->orders, "in the application's table");
    row(&out, "rolled back", d->counts.rolled_back, "transactions, most with an event in them");
    ob_buf_printf(&out, "  %-18s %8" PRIu64 "   events, of %" PRIu64 " keys\n", "committed",
                  r->committed, r->keys);
    row(&out, "delivered", r->delivered, "of them are in the sink's file");
    row(&out, "repeats", r->repeats,
        r->repeats ? "written again because the relay was killed before it had recorded them;"
                     " same id"
                   : "the kill hit between two batches");
    zero(&out, t, "missing", r->missing, "committed and not delivered");
    zero(&out, t, "uncommitted", r->uncommitted, "delivered and never committed");
    zero(&out, t, "out of order", r->out_of_order, "first deliveries within a key");
    zero(&out, t, "altered, damaged", r->altered + r->damaged, "lines that are not as committed");
    zero(&out, t, "astray", r->astray, "orders whose changes and events differ in number");
    ob_buf_printf(&out, "  %-18s ", "longest lag");
    ob_term_duration(&out, d->max_lag_ms);
    ob_buf_printf(&out, ", while the sink or the relay was away\n\n%s%s%s\n",
                  ob_term_c(t, holds ? OB_C_GREEN : OB_C_RED),
                  holds ? "verified: nothing lost, nothing uncommitted, every key in order"
                        : "NOT VERIFIED",
                  ob_term_c(t, OB_C_RESET));
    if (r->problem[0])
        ob_buf_printf(&out, "first problem: %s\n", r->problem);
    if (!stopped)
        ob_buf_c(&out, "the relay did not stop by itself with exit code 0\n");
    ob_buf_printf(&out, "files: %s%s\n", d->world.dir,
                  d->keep || !holds ? "" : " (removed now; --keep leaves them)");
    ob_cli_put(d->cli, &out);
}
