/* SPDX-License-Identifier: Apache-2.0 */
/* trace - the last steps of a schedule as text. Only made when a failed seed is run again. */
#include "sim.h"

#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>

#define LINES 160
#define LINE 200

struct sim_trace {
    bool all; /* print each line at once */
    uint64_t n;
    char line[LINES][LINE];
};

/* Shared memory: the process that runs the schedule may die of it. */
struct sim_trace *sim_trace_new(bool all)
{
    struct sim_trace *t =
        mmap(NULL, sizeof *t, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (t == MAP_FAILED)
        return NULL;
    t->all = all;
    return t;
}

void sim_trace_free(struct sim_trace *t)
{
    if (t)
        munmap(t, sizeof *t);
}

void sim_trace_add(struct sim *w, const char *fmt, ...)
{
    struct sim_trace *t = w->trace;
    char *line = t->line[t->n++ % LINES];
    struct ob_err text;
    va_list ap;
    va_start(ap, fmt);
    ob_err_vset(&text, OB_OK, fmt, ap);
    va_end(ap);
    snprintf(line, LINE, "%9lld ms  %.180s", (long long)w->now, text.text);
    if (t->all) {
        puts(line);
        fflush(stdout);
    }
}

void sim_trace_print(const struct sim_trace *t)
{
    if (t->all)
        return;
    uint64_t from = t->n > LINES ? t->n - LINES : 0;
    if (from)
        printf("  (%llu earlier steps: run with --trace SEED)\n", (unsigned long long)from);
    for (uint64_t i = from; i < t->n; i++)
        printf("  %s\n", t->line[i % LINES]);
}

static void print_backoff(const char *name, const struct ob_backoff *b)
{
    printf("  %s first %u ms, x%u %%, max %u ms, jitter %u %%\n", name, b->first_ms, b->factor_pct,
           b->max_ms, b->jitter_pct);
}

void sim_conf_print(const struct sim_conf *c)
{
    const struct ob_flow_conf *f = &c->flow;
    printf("  source %s, sink %s, order %s, on_dead %s\n", f->log_source ? "log" : "rows",
           !f->ordered_sink ? "unordered"
           : c->fifo_key    ? "ordered by key and destination"
                            : "ordered by destination",
           f->order == OB_ORDER_STRICT ? "strict" : "pipelined",
           f->on_dead == OB_ON_DEAD_PARK ? "park" : "continue");
    printf("  window %u events %llu bytes, in flight %u, held_max %u, dest_max %u\n",
           f->window_events, (unsigned long long)f->window_bytes, f->max_in_flight, f->held_max,
           f->dest_max);
    printf("  max_attempts %u, park_after %u ms, publish_timeout %u ms, settle_every %u ms\n",
           f->max_attempts, f->park_after_ms, f->publish_timeout_ms, f->settle_every_ms);
    print_backoff("retry", &f->retry);
    print_backoff("probe", &f->probe);
    printf("  events %u+%u, keys %u (hash %u bits), destinations %u, shards %u, page %u, per key "
           "%u, poll %lld ms\n",
           c->events, c->late_events, c->keys, c->hash_bits, c->dests, c->shards, c->page,
           c->per_key, c->poll_ms == SIM_NEVER ? -1 : (long long)c->poll_ms);
    printf("  latency %u ms, quantum %u ms; per mille: rollback %u poison %u oversize %u flaky %u "
           "hopeless %u fail %u\n",
           c->latency_ms, c->quantum_ms, c->rollback, c->poison, c->oversize, c->flaky, c->hopeless,
           c->fail);
    printf("  lost ack %u late ack %u stored but failed %u ghost %u echo %u settle fails %u "
           "unknown %u slow %u; crash %u ppm\n",
           c->lost_ack, c->late_ack, c->stored_fail, c->ghost, c->echo, c->settle_fail,
           c->settle_unknown, c->settle_slow, c->crash_ppm);
    printf("  faults %u of kinds 0x%x within %lld ms%s%s\n", c->faults, c->fault_kinds,
           (long long)c->chaos_ms, c->dedupe ? ", broker dedupes" : "",
           c->neighbours ? ", neighbours of a blocked destination watched" : "");
}
