/* SPDX-License-Identifier: Apache-2.0 */
/* flow - the rules: order, retry, breaker, parking, window. Pure.
 *
 * No I/O, no clock of its own, no threads, no globals, no payload bytes; all memory is taken in
 * ob_flow_new(). Arrays in (claimed, verdicts, states), arrays out (submit, cancel, settle, freed),
 * wake_at. Time is a monotonic number of milliseconds that the caller passes and that never falls.
 *
 * The caller's round, in this order:
 *     ob_flow_verdicts(), ob_flow_sink(), ob_flow_dest()   what the sink said
 *     ob_flow_tick()                                       time passed
 *     ob_flow_settle_begin() … source … ob_flow_settle_end()   when ob_flow_settle_at() is reached
 *     ob_flow_claim()                                      up to ob_flow_room(); drained rows
 * likewise ob_flow_submit() … sink … ob_flow_accepted() ob_flow_cancel(), ob_flow_wants_reset(),
 * ob_flow_freed() wait until ob_flow_wake_at()
 *
 * A token names one event from its claim until it comes out of ob_flow_freed(); tokens are never
 * used twice, and a verdict for a token that is not in flight (a late one after a reset) changes
 * nothing and is counted. */
#ifndef OB_FLOW_FLOW_H
#define OB_FLOW_FLOW_H

#include "core/backoff.h"
#include "core/err.h"
#include "event/settle.h"

struct ob_flow;

/* Which of the window's places (0 .. window_events-1) a token stands for, until it comes out of
 * ob_flow_freed(). */
#define OB_FLOW_SLOT_BITS 20
#define OB_FLOW_SLOT(token) ((uint32_t)((token) & ((1u << OB_FLOW_SLOT_BITS) - 1)))

enum ob_order { OB_ORDER_STRICT, OB_ORDER_PIPELINED };
enum ob_on_dead { OB_ON_DEAD_CONTINUE, OB_ON_DEAD_PARK };

struct ob_flow_conf {
    uint32_t window_events; /* slots: everything claimed and not yet settled */
    uint64_t window_bytes; /* sum of sizes; one event larger than this is still let in when alone */
    uint32_t max_in_flight; /* accepted by the sink and without verdict */
    enum ob_order order;
    enum ob_on_dead on_dead;
    bool ordered_sink;     /* the sink stays in order by itself: many in flight per key within one
                              destination */
    bool log_source;       /* a cursor moves over a settled prefix (else each event is marked) */
    uint32_t max_attempts; /* unless the event has its own */
    uint32_t max_attempts_cap;   /* largest number that an event's own counts as; 0: any */
    struct ob_backoff retry;     /* per event */
    struct ob_backoff probe;     /* of a broken sink and of a blocked destination */
    uint32_t park_after_ms;      /* 2000 */
    uint32_t publish_timeout_ms; /* 30000 */
    int64_t blocked_max_ms; /* an event whose destination is blocked for longer is dead; 0: never */
    uint32_t settle_every_ms; /* settles are at least so far apart */
    uint32_t ahead_max;       /* refs ahead of the cursor that one settle records, unless the
                                 flow is closing: then all */
    uint32_t held_max;        /* cache of held hashes beyond those in the window */
    uint32_t dest_max;        /* blocked destinations remembered beyond those in the window */
    uint64_t seed;            /* of the jitter */
};

struct ob_flow *ob_flow_new(const struct ob_flow_conf *conf, struct ob_err *err);
void ob_flow_free(struct ob_flow *flow);
/* Forgets everything (after being fenced, or before a reload): every token comes out of
 * ob_flow_freed() and is void. The sink must have been reset. `complete`: the source's parked table
 * is known to be empty. */
void ob_flow_reset(struct ob_flow *flow);

/* ---- in: what was claimed ---- */

enum {
    OB_CLAIM_HELD = 1, /* its hash has parked rows (asked for when ob_flow_needs_lookup()) */
    OB_CLAIM_SKIP = 2, /* not for us (another shard's): only the cursor passes it */
    OB_CLAIM_POISON =
        4, /* routing refused it: it dies when its turn comes, in the order of its key */
    OB_CLAIM_PASSED = 8, /* settled before, ahead of the cursor: only the cursor passes it, and it
                            stays recorded until then */
};

struct ob_claimed {
    uint64_t ref;  /* the source's, rising; unused for drained rows */
    uint64_t hash; /* of the key */
    uint64_t dest; /* of the destination; not 0 */
    uint32_t bytes;
    uint32_t attempts, max_attempts; /* max 0: the configured one */
    int64_t park_n;                  /* drained rows: their number; else 0 */
    int64_t blocked_ms;              /* rows that wait for this destination: for how long; else 0 */
    unsigned flags;
};

/* How many events may be claimed now, and how many bytes. 0 when the window is full, or the sink is
 * down and half of it is. */
size_t ob_flow_room(const struct ob_flow *flow, uint64_t *bytes);
/* True: the held cache is not complete; look each claimed page up at the source and set
 * OB_CLAIM_HELD. True after ob_flow_new() and ob_flow_reset() until ob_flow_parked_empty(). */
bool ob_flow_needs_lookup(const struct ob_flow *flow);
/* The source's parked table is empty now, and no settle is under way. */
void ob_flow_parked_empty(struct ob_flow *flow);
/* Takes n <= room fresh events in claim order. tokens[i] is set for each. */
void ob_flow_claim(struct ob_flow *flow, int64_t now, const struct ob_claimed *c, size_t n,
                   uint64_t *tokens);

/* May parked rows be drained now (sink up, room)? At most that many. */
size_t ob_flow_drain_room(const struct ob_flow *flow);
/* True: rows of this hash must not be drained now (some are in the window or on their way to the
 * source). */
bool ob_flow_drain_skip(const struct ob_flow *flow, uint64_t hash);
/* Destinations to drain from now, most urgent first: free ones with rows left, then blocked ones
 * that want one row as a probe. Returns how many; *one says that dests[i] wants a single row. */
size_t ob_flow_drain_dests(struct ob_flow *flow, int64_t now, uint64_t *dests, bool *one,
                           size_t max);
/* The source had nothing (that may be drained) for this destination. */
void ob_flow_drain_none(struct ob_flow *flow, int64_t now, uint64_t dest);
/* Rows of one drained batch, in order of park_n within a hash; `drained` tells for each hash
 * whether rows are left behind. A refused row has token 0 and stays parked. */
void ob_flow_drained(struct ob_flow *flow, int64_t now, const struct ob_claimed *c, size_t n,
                     const struct ob_drained *drained, size_t n_drained, uint64_t *tokens);
/* At start: a destination that parked keys wait for. Returns false when there is no place (ask
 * again later). */
bool ob_flow_dest_parked(struct ob_flow *flow, int64_t now, uint64_t dest);

/* ---- in: what the sink said ---- */

struct ob_flow_verdict {
    uint64_t token;
    enum ob_verdict verdict;
};

void ob_flow_verdicts(struct ob_flow *flow, int64_t now, const struct ob_flow_verdict *v, size_t n);
void ob_flow_sink(struct ob_flow *flow, int64_t now, bool up);
void ob_flow_dest(struct ob_flow *flow, int64_t now, uint64_t dest, bool up);
void ob_flow_tick(struct ob_flow *flow, int64_t now);

/* ---- out: what to send ---- */

/* Up to max tokens that may be given to the sink now, in order. Nothing changes until
 * ob_flow_accepted(). */
size_t ob_flow_submit(struct ob_flow *flow, int64_t now, uint64_t *tokens, size_t max);
/* The first n of the last ob_flow_submit() were taken by the sink. Call it also with 0. */
void ob_flow_accepted(struct ob_flow *flow, int64_t now, size_t n);
/* Tokens whose acknowledgement is overdue while later ones of their destination came: ask the sink
 * to cancel. */
size_t ob_flow_cancel(struct ob_flow *flow, uint64_t *tokens, size_t max);
/* True once: nothing at all is acknowledged any more; reset the sink. */
bool ob_flow_wants_reset(struct ob_flow *flow);

/* ---- out: what to record ---- */

/* Before a stop, a reload or a hand-over, while nothing more is submitted: the next settle records
 * everything that is settled ahead of the cursor. May be called again with the same value. */
void ob_flow_close(struct ob_flow *flow, bool closing);

/* When there is something to settle: the earliest time to do it. INT64_MAX: nothing. */
int64_t ob_flow_settle_at(const struct ob_flow *flow);
/* Fills s (s->ops has place for window_events ops). Returns false if there is nothing. One at a
 * time; due_ms of the ops is monotonic. */
bool ob_flow_settle_begin(struct ob_flow *flow, int64_t now, struct ob_settle *s);
/* OB_OK: committed, with the hashes that the source found released; ops carry the park_n that were
 * given. OB_RETRY, OB_DOWN: nothing was recorded; the same will be offered again. (OB_FENCED: call
 * ob_flow_reset().) */
void ob_flow_settle_end(struct ob_flow *flow, int64_t now, enum ob_status status,
                        const struct ob_settle *s, const uint64_t *released, size_t n_released);
/* Tokens that are over: payloads and messages may be freed. */
size_t ob_flow_freed(struct ob_flow *flow, uint64_t *tokens, size_t max);

int64_t ob_flow_wake_at(const struct ob_flow *flow, int64_t now);
/* Nothing claimed is unsettled (parked rows at the source do not count). */
bool ob_flow_idle(const struct ob_flow *flow);

/* ---- to look at ---- */

struct ob_flow_stats {
    uint64_t claimed, drained, accepted, delivered, settled; /* four different things, and drains */
    uint64_t retried, rejected, dead, parked, returned;      /* dead: recorded as such */
    uint64_t blocked, overtaken, late, cancelled, resets;
    /* overtaken: delivered before an earlier one of its key that came back and goes again; 0 in
     * strict order. late: verdicts for a token not in flight */
    uint64_t returned_often; /* parked because the sink, which is up, returned them max_attempts
                                times in a row */
    uint64_t returned_token; /* the last of these */
    uint32_t in_window, in_flight, held, blocked_dests;
    uint64_t window_bytes;
    bool down;
};

void ob_flow_stats(const struct ob_flow *flow, struct ob_flow_stats *out);

/* The states an event goes through, as a table; docs/flow.md has a copy that a test compares. */
struct ob_buf;
void ob_flow_print_states(struct ob_buf *out);

#ifdef OB_FLOW_MUTANTS
/* Deliberate bugs, for the test that shows that the simulation finds them. 0: none. */
extern unsigned ob_flow_mutant;
#endif

#endif
