/* SPDX-License-Identifier: Apache-2.0 */
/* limits - how many bytes each column of an event may have. One table of options and one check for
 * every source and for the write side.
 *
 * An event with a larger column is dead, with a reason that names the column, its size and the
 * limit. The value itself is neither kept in memory nor copied into the dead row: of a text its
 * first OB_LIMIT_KEEP bytes and its size remain, of headers, metadata, a payload and a further
 * column nothing does. */
#ifndef OB_EVENT_LIMITS_H
#define OB_EVENT_LIMITS_H

#include "core/opt.h"
#include "event/event.h"

struct ob_limits {
    int64_t text; /* id, type, aggregate_type, aggregate_id, key, tenant, topic, stream: each */
    int64_t json; /* headers, metadata, and each further column of a mapped table */
    int64_t payload;
};

#define OB_LIMIT_KEEP 64

enum ob_limited {
    OB_LIMITED_ID,
    OB_LIMITED_TYPE,
    OB_LIMITED_AGGREGATE_TYPE,
    OB_LIMITED_AGGREGATE_ID,
    OB_LIMITED_KEY,
    OB_LIMITED_TENANT,
    OB_LIMITED_TOPIC,
    OB_LIMITED_STREAM,
    OB_LIMITED_HEADERS,
    OB_LIMITED_METADATA,
    OB_LIMITED_PAYLOAD,
    OB_LIMITED_N
};

struct ob_row;

extern const struct ob_opt ob_limits_opts[]; /* struct ob_limits; {0}-terminated */
extern const struct ob_limits ob_limits_default;
extern const struct ob_limits ob_limits_shown; /* what the command line shows at most */

/* The name of a column, as it appears in reasons. */
const char *ob_limited_name(enum ob_limited column);
size_t ob_limit_of(const struct ob_limits *limits, enum ob_limited column);

/* Checks every column of ev whose value is present. Values over their limit are replaced by what a
 * dead event keeps, and ev->fault is set. False: no memory. */
bool ob_limits_check(const struct ob_limits *limits, struct ob_event *ev,
                     struct ob_arena *arena) OB_MUST_CHECK;
/* For a source that knows the size of a column without having its value: over the limit does the
 * same, where the column of ev holds nothing or the beginning of the value. */
bool ob_limits_check_size(const struct ob_limits *limits, struct ob_event *ev,
                          enum ob_limited column, uint64_t size,
                          struct ob_arena *arena) OB_MUST_CHECK;
/* The same for a further column, which has the limit `json`. */
bool ob_limits_check_col(const struct ob_limits *limits, struct ob_event *ev, struct ob_col *col,
                         uint64_t size, struct ob_arena *arena) OB_MUST_CHECK;
/* The event cannot be held in memory: only its id stays. */
bool ob_limits_no_memory(struct ob_event *ev, uint64_t bytes, struct ob_arena *arena) OB_MUST_CHECK;

/* The event that there was no memory for, and how often in a row. A source gives the window time to
 * drain before it declares such an event dead. */
struct ob_unfit {
    uint64_t hash;
    unsigned times;
};
/* There was no memory for this event alone. True: so often in a row that it is dead now. */
bool ob_unfit_note(struct ob_unfit *unfit, struct ob_str id);
/* True: that was so already, and the event must not be read again. */
bool ob_unfit_is(const struct ob_unfit *unfit, struct ob_str id);

/* For the write side. OB_REJECT: a column is over its limit; err names it. */
enum ob_status ob_limits_check_row(const struct ob_limits *limits, const struct ob_row *row,
                                   struct ob_err *err) OB_MUST_CHECK;

/* Bytes that all columns of the event have together. */
size_t ob_event_bytes(const struct ob_event *ev);

#endif
