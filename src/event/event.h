/* SPDX-License-Identifier: Apache-2.0 */
/* event - the thing that travels, and a batch of it. All slices live in the batch's arena. */
#ifndef OB_EVENT_EVENT_H
#define OB_EVENT_EVENT_H

#include "core/arena.h"
#include "core/err.h"
#include "core/str.h"

enum ob_payload_kind {
    OB_PAYLOAD_JSON, /* promised to be JSON; checked where its bytes are put into an envelope */
    OB_PAYLOAD_TEXT,
    OB_PAYLOAD_BYTES,
    OB_PAYLOAD_NULL, /* no payload: a tombstone where the sink has such a thing */
};

#define OB_NO_VERSION INT64_MIN

enum ob_col_kind { OB_COL_NULL, OB_COL_TEXT, OB_COL_NUMBER, OB_COL_BOOL, OB_COL_JSON };

/* A further column of the source's table, for ${col:name}. */
struct ob_col {
    struct ob_str name, value; /* value as text; BOOL: "true" or "false" */
    enum ob_col_kind kind;
};

struct ob_event {
    uint64_t
        ref; /* the source's own handle of this claim, rising in claim order (SQLite: the number) */
    uint64_t seq; /* the number of its row where the table has one */
    struct ob_str id;
    struct ob_str type, aggregate_type, aggregate_id, tenant;
    struct ob_str key;           /* the row's own key; empty: aggregate_id */
    struct ob_str topic, stream; /* as the row names them, may be empty */
    struct ob_str payload;
    enum ob_payload_kind payload_kind;
    struct ob_str headers;  /* a JSON object, or empty */
    struct ob_str metadata; /* a JSON object, or empty */
    int64_t entity_version; /* OB_NO_VERSION if none; never mixed with the next */
    int64_t schema_version;
    int64_t created_us;
    struct ob_col *cols;
    size_t n_cols;
    struct ob_str fault;   /* not empty: it can never be delivered, and this is why */
    bool settled;          /* recorded before, ahead of the cursor: delivered, parked or dead. Only
                              `ref` is set, and the cursor passes it */
    uint32_t attempts;     /* spent so far, durable */
    uint32_t max_attempts; /* the event's own; 0: the pipeline's */
    /* Only of rows that were drained from the parked table: */
    int64_t park_n; /* their number there; 0: freshly claimed */
    uint64_t
        park_hash; /* key hash they were parked under: holds although routes may have changed */
    uint64_t park_dest;  /* the destination they wait for; 0: none */
    int64_t park_due_ms; /* wall time: due, or with park_dest since when they wait for it */
};

struct ob_batch {
    struct ob_arena *arena;
    struct ob_event *events; /* in the arena */
    size_t n;
    /* Of a drained batch: one row per hash in it, whether more rows of that hash are left behind.
     */
    struct ob_drained {
        uint64_t hash;
        bool more;
    } * drained;
    size_t n_drained;
};

/* cap events at most. ceiling bounds the arena. NULL: no memory. */
struct ob_batch *ob_batch_new(size_t cap, size_t ceiling);
/* The same with events that are not zeroed: each is set as it is taken, while its memory is warm.
 */
struct ob_batch *ob_batch_new_raw(size_t cap, size_t ceiling);
/* A batch is counted: one reference per event that is still needed, and the maker's own. */
struct ob_batch *ob_batch_ref(struct ob_batch *batch);
void ob_batch_unref(struct ob_batch *batch);
/* Copies every slice of the event, and the values of its further columns, into the arena. False: no
 * memory. */
bool ob_event_own(struct ob_event *ev, struct ob_arena *arena);

/* Which shard a key belongs to. The lowest bit is left out so that SQL, which has only signed
 * numbers, does the same sum. */
static inline unsigned ob_shard_of(uint64_t hash, unsigned shards)
{
    return (unsigned)((hash >> 1) % shards);
}

#endif
