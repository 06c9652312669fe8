/* SPDX-License-Identifier: Apache-2.0 */
/* native - rows of outbox.event as events. */
#ifndef OB_SOURCE_POSTGRES_NATIVE_H
#define OB_SOURCE_POSTGRES_NATIVE_H

#include "event/event.h"
#include "source/postgres/conn.h"

/* Larger payloads are fetched one by one, so that a page has a size that is known. */
#define PG_INLINE_MAX "8192"
/* Of a row `e`, with any expression for the payload. */
#define PG_EVENT_COLUMNS_WITH(payload)                                                             \
    "e.seq, e.id, e.type, e.aggregate_type, e.aggregate_id, e.key, e.tenant, e.topic, " payload    \
    ", octet_length(e.payload), e.payload_kind, e.headers, e.metadata, e.entity_version, "         \
    "e.schema_version, e.max_attempts, e.created_at, e.xid"
#define PG_EVENT_COLUMNS                                                                           \
    PG_EVENT_COLUMNS_WITH("case when octet_length(e.payload) <= " PG_INLINE_MAX                    \
                          " then e.payload end")
#define PG_EVENT_WHOLE PG_EVENT_COLUMNS_WITH("e.payload")
#define PG_EVENT_BARE PG_EVENT_COLUMNS_WITH("null::bytea") /* without payload */
#define PG_EVENT_N 18                                      /* columns */

/* Fills ev from columns `first`… of a binary result. Slices point into the result; only the id is
 * made in the arena. False: no memory. */
bool ob_pg_event(const PGresult *res, int row, int first, struct ob_arena *arena,
                 struct ob_event *ev) OB_MUST_CHECK;
/* Has it a payload that is not in the row? */
bool ob_pg_event_big(const PGresult *res, int row, int first);
size_t ob_pg_event_size(const PGresult *res, int row, int first); /* of the payload */
uint64_t ob_pg_event_xid(const PGresult *res, int row, int first);
/* Fetches such a payload into the arena. OB_AGAIN: the row is gone. */
enum ob_status ob_pg_event_fetch(struct pg_session *conn, int64_t seq, struct ob_arena *arena,
                                 struct ob_event *ev, struct ob_err *err) OB_MUST_CHECK;

#endif
