/* SPDX-License-Identifier: Apache-2.0 */
/* shard - one thread, one source, one flow, one sink. Shared by the files of relay/ only.
 *
 * Life: open the source, stand by until owner, open the sink, run; fenced or asked to stop: sink
 * closed, flow forgotten, shard given up. Everything but `stop`, `reload`, `stats` and the
 * watchdog's fields belongs to the shard's thread. */
#ifndef OB_RELAY_SHARD_H
#define OB_RELAY_SHARD_H

#include "core/hist.h"
#include "flow/flow.h"
#include "relay/pace.h"
#include "relay/relay.h"

#include <pthread.h>
#include <stdatomic.h>

/* Claimed together, freed together. `live`: events of it that are in the window, and one while it
 * is read. */
struct page {
    struct ob_batch *batch;
    struct ob_msg *msgs; /* in the batch's arena, one per event */
    size_t live, bytes;
};

/* What the relay keeps of an event in the window; index: low bits of its token. */
struct entry {
    struct page *page;
    const struct ob_msg *msg;
    char *reason; /* of the last verdict that was not delivered; malloc'd */
    bool expired; /* blocked_max is exceeded, and `reason` has that */
};

enum shard_phase { PHASE_OPENING, PHASE_STANDBY, PHASE_RUNNING, PHASE_ENDED };

struct shard {
    bool warned_exposed; /* credentials without TLS: logged if so */
    struct ob_relay *relay;
    const struct ob_pipeline_conf *conf;
    unsigned no;
    struct ob_log log;
    const struct ob_clock *clock;
    char owner[96];
    pthread_t thread;
    bool started;
    int wake_fd;

    /* From other threads. */
    _Atomic int stop;                         /* 1: drain and settle; 2: at once */
    _Atomic(const struct ob_config *) reload; /* routes to take */
    _Atomic(const char *) stage;              /* what the thread is doing */
    _Atomic int64_t round_ms;                 /* when the last round began */
    _Atomic uint64_t delivered, failed;       /* for people; since start */
    _Atomic uint64_t overtaken, unroutable;   /* likewise: delivered, but out of order; to nobody */
    struct ob_hist latency_us;                /* created to delivered */
    _Atomic int phase_seen;

    enum shard_phase phase;
    struct ob_source *source;
    struct ob_source_caps source_caps;
    struct ob_sink *sink;
    struct ob_sink_caps sink_caps;
    struct ob_flow *flow;
    struct ob_routes *routes;
    struct ob_buf scratch;
    struct ob_rand rand;

    size_t window;
    struct entry *entries;
    struct ob_claimed *claimed;
    uint64_t *tokens, *hashes, *released;
    bool *held;
    struct ob_flow_verdict *verdicts;
    size_t n_verdicts;
    const struct ob_msg **msgs;
    struct ob_settle_op *ops;
    struct ob_settle settle;
    bool settle_open;      /* handed to the source, not finished */
    size_t pinned;         /* bytes of pages in memory */
    struct ob_batch *kept; /* claimed, not yet taken by the flow */
    unsigned no_memory;    /* pages in a row that could not be routed for lack of memory */

    int64_t now;
    int64_t wall_us;  /* at the last poll of the sink */
    int64_t retry_at; /* opening, or a source that is down */
    unsigned failures;
    int64_t beat_at, scan_at, due_at, own_at, stop_at, yield_at, report_at;
    int64_t progress_ms; /* when something last moved */
    struct ob_pace pace; /* of a source that gives its events in crumbs */
    bool claim_ready, paused, sink_down, source_down;
    unsigned stuck_said; /* a bit per stage that was named since something last moved */
    bool yielding;     /* another process waits for this shard: no new work, then it is given up */
    int64_t fenced_ms; /* when it last was; 0: never */
    uint64_t said[8];  /* hashes of the failures that were logged last */
    size_t n_said;
    bool loud; /* a trouble was logged, and not yet that it is over */
    struct shard_told {
        uint64_t delivered, failed, overtaken, unroutable;
    } told;                  /* in the last relay.batch */
    uint64_t flow_overtaken; /* of this flow, as last looked at */
    uint64_t flow_returned;  /* likewise: events that the sink returned too often */
    enum ob_status result;   /* `once`: how it ended */
    struct ob_err last;      /* why it waits; also the text that was logged last */
    struct ob_err sink_why;
    struct dlt *dlt; /* NULL: off */
};

/* Dead letters have tokens that the flow never gives. */
#define DLT_TOKEN (UINT64_C(1) << 63)
#define DLT_MAX 16

static inline struct entry *entry_of(struct shard *s, uint64_t token)
{
    return &s->entries[OB_FLOW_SLOT(token)];
}

/* The source was asked and has not answered yet. */
static inline bool shard_looking(const struct shard *s)
{
    return s->conf->source->looking && s->conf->source->looking(s->source);
}

/* shard.c */
void ob__shard_stage(struct shard *s, const char *stage);
void ob__shard_fenced(struct shard *s, const struct ob_err *why);
/* The source failed with OB_DOWN or OB_RETRY: wait a while; said once. */
void ob__shard_source_failed(struct shard *s, const struct ob_err *err);
void ob__shard_source_fine(struct shard *s);

/* ends.c */
enum ob_status ob__shard_open_source(struct shard *s, struct ob_err *err);
enum ob_status ob__shard_open_sink(struct shard *s, struct ob_err *err);
enum ob_status ob__shard_open_flow(struct shard *s, struct ob_err *err);
void ob__shard_close_source(struct shard *s);
void ob__shard_close_sink(struct shard *s, int grace_ms);
/* Nothing of the window is needed any more: the sink must not hold a message. */
void ob__shard_forget(struct shard *s);

/* read.c: claims and drains */
void ob__shard_claim(struct shard *s);
void ob__shard_drain(struct shard *s);
void ob__shard_scan(struct shard *s); /* what waits for destinations; whether anything is parked */
void ob__shard_collect(struct shard *s);
/* Events that would be claimed now, at most; 0: none. */
size_t ob__shard_claim_room(const struct shard *s, uint64_t *bytes);

/* write.c: verdicts, submits, settles */
extern const struct ob_sink_events ob__shard_sink_events;
void ob__shard_poll_sink(struct shard *s);
void ob__shard_submit(struct shard *s);
void ob__shard_chase(struct shard *s);
void ob__shard_settle(struct shard *s);
void ob__shard_report(struct shard *s);
/* What the flow has counted since it was last asked. */
void ob__shard_count_overtaken(struct shard *s);

/* dlt.c: dead events on their way to the dead-letter topic, beside the flow */
/* Sends what is pending, when it is time; more: not only finishes what is under way. */
void ob__shard_dlt(struct shard *s, bool more);
void ob__shard_dlt_wake(struct shard *s);
void ob__shard_dlt_done(struct shard *s, uint64_t token, enum ob_verdict verdict,
                        const struct ob_err *why);
int64_t ob__shard_dlt_at(const struct shard *s); /* when there is something to do */
bool ob__shard_dlt_quiet(const struct shard *s); /* nothing is under way */
bool ob__shard_dlt_idle(const struct shard *s);  /* nothing that could be done now */
void ob__shard_dlt_forget(struct shard *s);      /* the sink is closed */
void ob__shard_dlt_close(struct shard *s);

/* relay.c calls these */
enum ob_status ob__shard_init(struct shard *s, struct ob_relay *relay,
                              const struct ob_pipeline_conf *conf, unsigned no, struct ob_err *err);
void ob__shard_clear(struct shard *s);
void *ob__shard_main(void *arg);

struct ob_relay {
    const struct ob_config *config;
    struct ob_relay_opts opts;
    struct shard *shards;
    size_t n;
    unsigned id; /* random; with host and pid it names this process */
    int wake_fd;
    _Atomic int stop;
    _Atomic int ended; /* threads that are over */
    /* Held while a shard reads a new config, and while the next one is handed out: whoever gave a
     * config may free it when ob_relay_reload() of the next one has returned. */
    pthread_mutex_t reload_lock;
};

#endif
