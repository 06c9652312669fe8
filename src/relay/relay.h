/* SPDX-License-Identifier: Apache-2.0 */
/* relay - joins the ends: one thread per shard, pipelines isolated from each other. */
#ifndef OB_RELAY_RELAY_H
#define OB_RELAY_RELAY_H

#include "core/hist.h"
#include "relay/conf.h"

struct ob_relay;

struct ob_relay_opts {
    bool once;                    /* drain, settle, end */
    bool accept_loss;             /* go on where a source has lost events and says which */
    const char *only;             /* one pipeline by name; NULL: all */
    const struct ob_clock *clock; /* NULL: the system's */
    const struct ob_log *log;
};

/* Borrows config until ob_relay_free(). */
enum ob_status ob_relay_new(const struct ob_config *config, const struct ob_relay_opts *opts,
                            struct ob_relay **out, struct ob_err *err) OB_MUST_CHECK;
/* Starts the threads and waits until all have ended: stopped, or with `once` drained. OB_OK;
 * OB_FATAL: at least one pipeline could not do its work (`once` only; otherwise it keeps trying).
 */
enum ob_status ob_relay_run(struct ob_relay *relay, struct ob_err *err) OB_MUST_CHECK;
/* Drain and settle within the grace period, then end. Async-signal-safe; the second call ends at
 * once. */
void ob_relay_stop(struct ob_relay *relay);
/* Takes the routes of a newly loaded config at a drained flow. `config` must live until the next
 * reload or free. Any thread. */
enum ob_status ob_relay_reload(struct ob_relay *relay, const struct ob_config *config,
                               struct ob_err *err);
/* For people and benchmarks; any thread. */
struct ob_relay_stats {
    uint64_t delivered, failed;
    uint64_t overtaken;        /* delivered before an earlier one of its key that failed */
    uint64_t unroutable;       /* delivered to nobody: `unroutable: deliver` */
    size_t running;            /* shards that this process owns */
    struct ob_hist latency_us; /* created to delivered */
};
void ob_relay_stats(const struct ob_relay *relay, struct ob_relay_stats *out);
/* True while no thread hangs inside a call for longer than its stuck_after: what a process watchdog
 * asks. */
bool ob_relay_turns(const struct ob_relay *relay);
void ob_relay_free(struct ob_relay *relay);

#endif
