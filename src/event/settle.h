/* SPDX-License-Identifier: Apache-2.0 */
/* settle - verdicts of a sink, and what is then recorded at the source. Shared by flow, sources and
 * sinks. */
#ifndef OB_EVENT_SETTLE_H
#define OB_EVENT_SETTLE_H

#include "event/event.h"

enum ob_verdict {
    OB_V_DELIVERED, /* the broker has it; "it was a duplicate" counts */
    OB_V_RETRY,     /* this event failed and may succeed later: an attempt is spent */
    OB_V_REJECT,    /* this event never will be taken */
    OB_V_BLOCKED,   /* its destination cannot take it now: no attempt is spent */
    OB_V_RETURNED,  /* given back by a purge or a lost connection, outcome unknown or untried: no
                       attempt is spent */
};

const char *ob_verdict_name(enum ob_verdict v);

enum ob_settle_kind {
    OB_SETTLE_PUBLISHED, /* mark it; if park_n, delete that parked row */
    OB_SETTLE_PARK, /* insert a parked row, or with park_n update it: attempts, due, blocked_dest,
                       reason */
    OB_SETTLE_DEAD, /* insert a dead row with its history; if park_n, delete that parked row */
};

/* blocked_dest of a key that stands behind a dead event (on_dead: park). */
#define OB_DEST_DEAD UINT64_MAX

struct ob_settle_op {
    enum ob_settle_kind kind;
    uint64_t token;               /* flow's */
    const struct ob_event *event; /* filled in by the relay */
    uint64_t hash;                /* of the key */
    int64_t park_n;    /* in: the row it has, or 0. After PARK and DEAD the source puts the row's
                          number here */
    uint32_t attempts; /* PARK, DEAD: spent so far */
    int64_t due_ms; /* PARK: not before (flow: monotonic; the relay turns it into wall time). With
                       blocked_dest: since when it waits for that, if blocked_max is set */
    uint64_t blocked_dest; /* PARK: waits for this destination; 0: only for due_ms */
    bool spent;     /* PARK, DEAD: this op records a new failed attempt (goes into the history) */
    bool hold;      /* DEAD: on_dead is park, the key stays held */
    bool exhausted; /* DEAD: it failed too often; else it was refused for good */
    int64_t
        blocked_ms; /* DEAD: blocked_max is exceeded, its destination was blocked so long; else 0 */
    const char *reason;        /* PARK, DEAD; filled in by the relay. Not NULL there */
    struct ob_str destination; /* filled in by the relay, for people */
};

/* One transaction at the source. Ops are in claim order; numbers of parked rows are given in that
 * order. */
struct ob_settle {
    struct ob_settle_op *ops;
    size_t n;
    bool moved;   /* log-type: the cursor moves to `ref` */
    uint64_t ref; /* ref of the last event of the settled prefix */
    /* Log-type: refs beyond the prefix, rising, whose events are delivered, parked or dead once
     * this settle is committed. The source stores them beside the cursor, in place of those that it
     * stored before, and marks them as `settled` when it claims them again. Events in between are
     * not settled. Memory of the flow, valid until ob_flow_settle_end(). */
    const uint64_t *ahead;
    size_t n_ahead;
    uint64_t claimed; /* ref of the last event that the flow has claimed, 0: none. What the source
                         has stored about later ones still holds */
    uint64_t
        delivered; /* how many were delivered since the last settle: for the pipeline's counters */
};

/* What a committed settle found out. Arrays are the caller's, big enough for one entry per op. */
struct ob_settled {
    uint64_t *released; /* hashes touched by this settle of which no parked row is left and nothing
                           holds */
    size_t n_released;
    int64_t next_due_ms; /* wall time of the earliest parked row that waits only for time;
                            INT64_MAX: none */
};

#endif
