/* SPDX-License-Identifier: Apache-2.0 */
/* native - rows of outbox.event as events.
 *
 * A page holds the columns of a row only where they are small, so that its size has a bound. A
 * larger text is replaced by its size, padded to more bytes than a small one has; a row with such a
 * column, or with a large payload, is read by itself, each column only if it is within its limit
 * (event/limits.h). */
#ifndef OB_SOURCE_POSTGRES_NATIVE_H
#define OB_SOURCE_POSTGRES_NATIVE_H

#include "event/event.h"
#include "event/limits.h"
#include "source/postgres/conn.h"

/* Most bytes of a column in a page. */
#define PG_SMALL_TEXT 1024
#define PG_SMALL_JSON 4096
#define PG_SMALL_PAYLOAD 8192
#define PG_QUOTE_(x) #x
#define PG_QUOTE(x) PG_QUOTE_(x)
/* Laid out by hand: clang-format breaks strings between macros into pieces. */
/* clang-format off */
#define PG_SMALL(x, max) \
    "case when octet_length(" x ") <= " PG_QUOTE(max) " then " x \
    " else rpad(octet_length(" x ")::text, 1 + " PG_QUOTE(max) ") end"
#define PG_SMALL_T(x) PG_SMALL(x, PG_SMALL_TEXT)
#define PG_SMALL_J(x) PG_SMALL(x "::text", PG_SMALL_JSON)

/* Of a row `e`: a payload (or NULL), and the size of one that is not there. */
#define PG_EVENT_COLUMNS_WITH(payload, size) \
    "e.seq, e.id, " \
    PG_SMALL_T("e.type") ", " \
    PG_SMALL_T("e.aggregate_type") ", " \
    PG_SMALL_T("e.aggregate_id") ", " \
    PG_SMALL_T("e.key") ", " \
    PG_SMALL_T("e.tenant") ", " \
    PG_SMALL_T("e.topic") ", " \
    payload ", " size ", e.payload_kind, " \
    PG_SMALL_J("e.headers") ", " \
    PG_SMALL_J("e.metadata") ", " \
    "e.entity_version, e.schema_version, e.max_attempts, e.created_at, e.xid"
#define PG_EVENT_COLUMNS \
    PG_EVENT_COLUMNS_WITH( \
        "case when octet_length(e.payload) <= " PG_QUOTE(PG_SMALL_PAYLOAD) " then e.payload end", \
        "case when octet_length(e.payload) > " PG_QUOTE(PG_SMALL_PAYLOAD) \
        " then octet_length(e.payload) end")
/* Without payload. */
#define PG_EVENT_BARE PG_EVENT_COLUMNS_WITH("null::bytea", "octet_length(e.payload)")
/* clang-format on */
#define PG_EVENT_N 18 /* columns */

/* Fills ev from columns `first`... of a binary result. Slices point into the result; only the id is
 * made in the arena. False: no memory. */
bool ob_pg_event(const PGresult *res, int row, int first, struct ob_arena *arena,
                 struct ob_event *ev) OB_MUST_CHECK;
/* True: some text of the row is not in the result (or, with payload, its payload is not): read it
 * with ob_pg_event_read(). */
bool ob_pg_event_partial(const PGresult *res, int row, int first, bool payload);
/* Bytes of all columns that an event within the limits has in memory. */
size_t ob_pg_event_size(const PGresult *res, int row, int first, const struct ob_limits *limits);
uint64_t ob_pg_event_xid(const PGresult *res, int row, int first);

/* Where one row is read from: what follows `from`, with parameters from $4 on. */
struct pg_event_from {
    const char *sql;
    const char *params[2];
    size_t n;
};
/* Reads the columns of one row that are within the limits; what is not makes the event's fault.
 * The result belongs to the arena. payload false: all but the payload. OB_AGAIN: the row is gone.
 * OB_REJECT: no memory for it. */
enum ob_status ob_pg_event_read(struct pg_session *conn, const struct pg_event_from *from,
                                bool payload, const struct ob_limits *limits,
                                struct ob_arena *arena, struct ob_event *ev,
                                struct ob_err *err) OB_MUST_CHECK;
/* The same by the number of a row of outbox.event. */
enum ob_status ob_pg_event_fetch(struct pg_session *conn, int64_t seq, bool payload,
                                 const struct ob_limits *limits, struct ob_arena *arena,
                                 struct ob_event *ev, struct ob_err *err) OB_MUST_CHECK;

#endif
