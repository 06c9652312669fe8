/* SPDX-License-Identifier: Apache-2.0 */
/* postgres - events into your own transaction on a libpq connection. The native outbox of `outbox
 * schema --apply`, or the table of a system that exists.
 *
 * Every call is one round trip on your connection and inside the transaction that you have begun on
 * it. It refuses (OUTBOX_REJECT) where there is none, in one that has failed or is read-only, while
 * another statement runs, and in pipeline mode. What is at fault in an event itself is found before
 * anything is sent, and leaves the transaction as it was; what the server refuses (an id that is
 * there already, a missing right) fails the transaction, as any statement does: roll back, or to a
 * savepoint of yours.
 *
 * Ids: the native outbox is partitioned by number, and an id is unique within one partition only
 * (1,000,000 events by default). The server refuses an id that the partition of the moment has
 * already. Written again when the writers have gone on to another partition, it is stored and
 * published a second time, with the same id: outbox_pg_exists() first, and consumers that remember
 * ids. A table of another system has the constraints that its owner gave it.
 *
 * Only there when the library was built with libpq (meson -Dpostgres=enabled). Handles are not for
 * several threads at once; a target may be shared by threads that only use it. */
#ifndef OUTBOX_POSTGRES_H
#define OUTBOX_POSTGRES_H

#include "outbox/produce.h"

#ifdef __cplusplus
extern "C" {
#endif

struct pg_conn;   /* libpq: PGconn */
struct pg_result; /* libpq: PGresult */

/* ---- target: which table. NULL everywhere below: the native outbox ---- */

struct outbox_pg_target; /* opaque */

enum {
    /* Takes a lock on each key (key, else aggregate_id) to the end of the transaction, before the
     * event gets its number: for those who emit before they lock what the key stands for. */
    OUTBOX_PG_SERIALIZE = 1,
};

/* A column of the table, by the name of the event's field: id, type, aggregate_type, aggregate_id,
 * key, tenant, topic, stream, payload, headers, metadata, entity_version, schema_version,
 * max_attempts; created, status, done and attempts get the value that a new row starts with.
 * column NULL: the table has none; "name?": it may be missing. */
struct outbox_pg_column {
    const char *field, *column;
};

/* Where events whose topic is prefix, or starts with prefix and a dot, go. */
struct outbox_pg_stream {
    const char *prefix, *stream;
};

/* Set what you need and leave the rest zero. */
struct outbox_pg_options {
    const char *profile; /* polyshop, orion, microdao, farmwise, debezium; NULL: native, or a table
                          * that is described by columns alone */
    const char *schema;  /* NULL: by the connection's search_path */
    const char *table;   /* NULL: the profile's */
    const struct outbox_pg_column *columns; /* where it differs from the profile */
    size_t n_columns;
    const struct outbox_pg_stream *streams; /* instead of the profile's */
    size_t n_streams;
    const char *pending; /* the status of a new row; NULL: the profile's */
    unsigned flags;
    const void *reserved[8]; /* leave NULL */
};

/* Reads the catalog once: which columns there are, and of which types. Needs no transaction, and
 * not inside a failed one. The target may then be used with any connection to that database. *out
 * is set on OUTBOX_OK only. OUTBOX_FATAL: no such table, or it lacks a column. */
OUTBOX_API enum outbox_status outbox_pg_target_open(struct pg_conn *conn,
                                                    const struct outbox_pg_options *options,
                                                    struct outbox_pg_target **out,
                                                    struct outbox_error *err);
OUTBOX_API void outbox_pg_target_close(struct outbox_pg_target *target);

/* ---- writing ---- */

/* Writes one event into the transaction that is open on conn. target and ctx may be NULL. id:
 * OUTBOX_ID_SIZE bytes, or NULL. A field that the table has no column for is refused, so that
 * nothing is lost in silence; what a context alone says is left out there, except with polyshop and
 * microdao, whose messages carry it: there it goes into the payload's member "metadata". */
OUTBOX_API enum outbox_status outbox_pg_emit(struct pg_conn *conn,
                                             const struct outbox_pg_target *target,
                                             const struct outbox_ctx *ctx,
                                             const struct outbox_event *event, char *id,
                                             struct outbox_error *err);
/* Writes n events in order, all or none, in one round trip; 512 MiB together at most. ids: n of
 * OUTBOX_ID_SIZE bytes, or NULL. */
OUTBOX_API enum outbox_status
outbox_pg_emit_many(struct pg_conn *conn, const struct outbox_pg_target *target,
                    const struct outbox_ctx *ctx, const struct outbox_event *events, size_t n,
                    char (*ids)[OUTBOX_ID_SIZE], struct outbox_error *err);
/* Is there an event of this id, as the open transaction (or else the database) sees it? */
OUTBOX_API enum outbox_status outbox_pg_exists(struct pg_conn *conn,
                                               const struct outbox_pg_target *target,
                                               const char *id, bool *exists,
                                               struct outbox_error *err);
/* Writes what was collected into the transaction that is open on conn. Clears nothing: call
 * outbox_collector_clear() when you have committed. */
OUTBOX_API enum outbox_status outbox_pg_write(struct pg_conn *conn,
                                              const struct outbox_pg_target *target,
                                              const struct outbox_ctx *ctx,
                                              const struct outbox_collector *collector,
                                              struct outbox_error *err);

/* What a failed result of your own statement means: OUTBOX_RETRY for a serialization failure, a
 * deadlock or a time-out, OUTBOX_REJECT for a constraint or a bad value, OUTBOX_DOWN when the
 * server is not there, else OUTBOX_FATAL; OUTBOX_OK for a good one. result NULL: the connection's
 * last error. */
OUTBOX_API enum outbox_status outbox_pg_result(const struct pg_conn *conn,
                                               const struct pg_result *result,
                                               struct outbox_error *err);

/* ---- transaction ---- */

/* Anything but OUTBOX_OK rolls back. Must not begin or end a transaction; savepoints are fine. */
typedef enum outbox_status outbox_pg_fn(struct pg_conn *conn, void *user, struct outbox_error *err);

enum outbox_pg_isolation {
    OUTBOX_PG_DEFAULT = 0, /* the session's */
    OUTBOX_PG_READ_COMMITTED = 1,
    OUTBOX_PG_REPEATABLE_READ = 2,
    OUTBOX_PG_SERIALIZABLE = 3,
};

struct outbox_pg_begin {
    enum outbox_pg_isolation isolation;
    /* How often the whole is tried again, fn included, when fn or the commit answers OUTBOX_RETRY
     * (see outbox_pg_result()); after 5 ms, doubling to 200 ms. */
    unsigned retries;
    const void *reserved[4]; /* leave NULL */
};

/* BEGIN, fn, the collected events (collector may be NULL), COMMIT. The collector is cleared only
 * when committed; when rolled back, what it held before stays and what fn raised is taken back.
 * begin NULL: the session's isolation, no retries. OUTBOX_DOWN with "may or may not be committed":
 * the connection was lost while committing; outbox_pg_exists() of a collected event's id tells. */
OUTBOX_API enum outbox_status
outbox_pg_transaction(struct pg_conn *conn, const struct outbox_pg_target *target,
                      const struct outbox_ctx *ctx, struct outbox_collector *collector,
                      const struct outbox_pg_begin *begin, outbox_pg_fn *fn, void *user,
                      struct outbox_error *err);

#ifdef __cplusplus
}
#endif

#endif
