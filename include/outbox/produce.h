/* SPDX-License-Identifier: Apache-2.0 */
/* produce - events into your own transaction: they are committed with the change that they tell of,
 * or not at all.
 *
 * Nothing here is for several threads at once, but different handles may be used by different
 * threads. err may be NULL everywhere. Text is UTF-8. */
#ifndef OUTBOX_PRODUCE_H
#define OUTBOX_PRODUCE_H

#include "outbox/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OUTBOX_ID_SIZE 64 /* an id of at most 63 bytes, and a NUL */

enum outbox_payload {
    OUTBOX_JSON = 0, /* is checked to be JSON */
    OUTBOX_TEXT = 1,
    OUTBOX_BYTES = 2,
    OUTBOX_NULL = 3, /* no payload */
    OUTBOX_BSON = 4, /* a BSON document, for MongoDB alone; payload_size 0: its own length */
};

/* Set what you need and leave the rest zero:
 *     {.type = "order.placed", .aggregate_type = "order", .aggregate_id = "42", .payload = "{}"} */
struct outbox_event {
    const char *type;           /* needed */
    const char *aggregate_type; /* what changed: order */
    const char *aggregate_id;   /* which one: 42. Order is kept for it unless key is set */
    const void *payload;        /* NULL: no payload */
    size_t payload_size;        /* JSON and TEXT: 0 means up to the NUL */
    enum outbox_payload payload_kind;
    const char *id; /* NULL: a UUID of version 7 is made. SQLite and MongoDB store an id once;
                     * PostgreSQL's native outbox once per partition, see outbox/postgres.h */
    const char *key, *tenant, *topic;
    const char *headers, *metadata; /* JSON objects */
    const int64_t *entity_version;  /* order within the aggregate; NULL: none */
    const int64_t *schema_version;  /* of the payload; NULL: none */
    unsigned max_attempts;          /* 0: the pipeline's */
    const void *reserved[4];        /* leave NULL */
};

/* ---- context: who and why, set once and stamped into every event's metadata ---- */

struct outbox_ctx; /* opaque */

enum outbox_ctx_field {
    OUTBOX_CTX_TENANT = 0,         /* metadata tenantId; also the event's tenant if it has none */
    OUTBOX_CTX_USER = 1,           /* userId */
    OUTBOX_CTX_CORRELATION_ID = 2, /* correlationId */
    OUTBOX_CTX_TRACEPARENT = 3,    /* traceparent; also traceId, where it is W3C's form */
    OUTBOX_CTX_SOURCE = 4,         /* source: the service that speaks */
};

/* NULL: no memory. */
OUTBOX_API struct outbox_ctx *outbox_ctx_new(void);
/* Copies value; NULL takes it away. What an event's own metadata says is never overwritten. The
 * time is stamped as "timestamp". */
OUTBOX_API enum outbox_status outbox_ctx_set(struct outbox_ctx *ctx, enum outbox_ctx_field field,
                                             const char *value);
OUTBOX_API void outbox_ctx_free(struct outbox_ctx *ctx);

/* ---- collector: events that are raised before there is any transaction ---- */

struct outbox_collector; /* opaque */

/* NULL: no memory. */
OUTBOX_API struct outbox_collector *outbox_collector_new(void);
/* Copies the event and gives it its id now, so that it is the same in every try. id: OUTBOX_ID_SIZE
 * bytes, or NULL. OUTBOX_REJECT: the event is at fault, or more than 64 MiB or 100,000 events
 * are held. */
OUTBOX_API enum outbox_status outbox_collector_raise(struct outbox_collector *collector,
                                                     const struct outbox_event *event, char *id,
                                                     struct outbox_error *err);
OUTBOX_API size_t outbox_collector_count(const struct outbox_collector *collector);
/* After a commit of your own; outbox_sqlite_transaction() does it itself. */
OUTBOX_API void outbox_collector_clear(struct outbox_collector *collector);
OUTBOX_API void outbox_collector_free(struct outbox_collector *collector);

/* ---- SQLite ---- */

struct sqlite3;

/* Makes or updates the outbox tables and enters WAL mode; nothing if all is there. Not inside a
 * transaction. The same as `outbox schema --apply`. */
OUTBOX_API enum outbox_status outbox_sqlite_schema(struct sqlite3 *db, struct outbox_error *err);

/* Writes one event into the transaction that is open on db. ctx may be NULL. id: OUTBOX_ID_SIZE
 * bytes, or NULL. OUTBOX_REJECT: no transaction is open, or the event is at fault; OUTBOX_RETRY:
 * the database is busy, roll back and try again. */
OUTBOX_API enum outbox_status outbox_sqlite_emit(struct sqlite3 *db, const struct outbox_ctx *ctx,
                                                 const struct outbox_event *event, char *id,
                                                 struct outbox_error *err);
/* Writes n events in order, all or none. ids: n of OUTBOX_ID_SIZE bytes, or NULL. */
OUTBOX_API enum outbox_status outbox_sqlite_emit_many(struct sqlite3 *db,
                                                      const struct outbox_ctx *ctx,
                                                      const struct outbox_event *events, size_t n,
                                                      char (*ids)[OUTBOX_ID_SIZE],
                                                      struct outbox_error *err);
/* Is there an event of this id, as the open transaction (or else the database) sees it? */
OUTBOX_API enum outbox_status outbox_sqlite_exists(struct sqlite3 *db, const char *id, bool *exists,
                                                   struct outbox_error *err);
/* Writes what was collected into the transaction that is open on db. Clears nothing: call
 * outbox_collector_clear() when you have committed. */
OUTBOX_API enum outbox_status outbox_sqlite_write(struct sqlite3 *db, const struct outbox_ctx *ctx,
                                                  const struct outbox_collector *collector,
                                                  struct outbox_error *err);

/* Anything but OUTBOX_OK rolls back. Must not begin or end a transaction. */
typedef enum outbox_status outbox_sqlite_fn(struct sqlite3 *db, void *user,
                                            struct outbox_error *err);

/* BEGIN IMMEDIATE, fn, the collected events (collector may be NULL), COMMIT. The collector is
 * cleared only when committed; when rolled back, what it held before stays and what fn raised is
 * taken back, so that the whole may be tried again. OUTBOX_RETRY: the database is busy. */
OUTBOX_API enum outbox_status outbox_sqlite_transaction(struct sqlite3 *db,
                                                        const struct outbox_ctx *ctx,
                                                        struct outbox_collector *collector,
                                                        outbox_sqlite_fn *fn, void *user,
                                                        struct outbox_error *err);

#ifdef __cplusplus
}
#endif

#endif
