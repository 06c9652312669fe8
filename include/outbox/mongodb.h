/* SPDX-License-Identifier: Apache-2.0 */
/* mongodb - events into your own transaction on a session of libmongoc. The native collection of
 * `outbox schema --apply`, or the collection of a system that exists.
 *
 * Every call takes part in the transaction that you have started on the session, with the client
 * that the session is of. It refuses (OUTBOX_REJECT) where there is none. What is at fault in an
 * event itself is found before anything is sent, and leaves the transaction as it was; what the
 * server refuses (an id that is there already, a validator, a missing right) aborts the
 * transaction, as any failed write does in MongoDB.
 *
 * Only there when the library was built with libmongoc (meson -Dmongodb=enabled). Handles are not
 * for several threads at once; a target may be shared by threads that only use it. */
#ifndef OUTBOX_MONGODB_H
#define OUTBOX_MONGODB_H

#include "outbox/produce.h"

#ifdef __cplusplus
extern "C" {
#endif

struct _mongoc_client_session_t; /* libmongoc: mongoc_client_session_t */
struct _bson_t;                  /* libbson: bson_t */
struct _bson_error_t;            /* libbson: bson_error_t */

/* ---- target: which collection ---- */

struct outbox_mongo_target; /* opaque */

enum {
    /* Takes the turn of each key (key, else aggregate_id) before the events get their numbers, by
     * an update of its document in <collection>_keys: for those who emit before they change what
     * the key stands for. Of two transactions that want the same turn one is aborted and has to be
     * tried again (OUTBOX_RETRY). */
    OUTBOX_MONGO_SERIALIZE = 1,
    /* Native: JSON is stored as a document, which can be queried, and not as the text that it is.
     * Spaces go, numbers become the nearest int32, int64 or double. */
    OUTBOX_MONGO_DOCUMENT = 2,
};

/* A field of the documents, by the name of the event's field: id, type, aggregate_type,
 * aggregate_id, key, tenant, topic, payload, headers, metadata, entity_version, schema_version,
 * max_attempts; created, status and attempts get what a new document starts with. name NULL: the
 * documents have none. */
struct outbox_mongo_field {
    const char *field, *name;
};

/* Set what you need and leave the rest zero. */
struct outbox_mongo_options {
    const char *profile;    /* sc; NULL: native, or documents that are described by fields alone */
    const char *database;   /* NULL: the one in the URI of the client */
    const char *collection; /* NULL: the profile's, or outbox_events */
    const struct outbox_mongo_field *fields; /* where they differ from the profile or the native */
    size_t n_fields;
    const char *pending; /* the status of a new document; NULL: the profile's */
    unsigned flags;
    const void *reserved[8]; /* leave NULL */
};

/* Sends nothing: collections have no catalog. The target may be used with any client. *out is set
 * on OUTBOX_OK only. */
OUTBOX_API enum outbox_status outbox_mongo_target_open(const struct outbox_mongo_options *options,
                                                       struct outbox_mongo_target **out,
                                                       struct outbox_error *err);
OUTBOX_API void outbox_mongo_target_close(struct outbox_mongo_target *target);

/* ---- writing ---- */

/* Writes one event into the transaction that is started on session. target NULL: the native
 * collection in the database of the client's URI. ctx may be NULL. id: OUTBOX_ID_SIZE bytes, or
 * NULL. A field that the documents have no field for is refused, so that nothing is lost in
 * silence; what a context alone says is left out there. OUTBOX_RETRY: abort, and try the whole
 * transaction again. */
OUTBOX_API enum outbox_status outbox_mongo_emit(struct _mongoc_client_session_t *session,
                                                const struct outbox_mongo_target *target,
                                                const struct outbox_ctx *ctx,
                                                const struct outbox_event *event, char *id,
                                                struct outbox_error *err);
/* Writes n events in order, all or none, in one insert; 512 MiB together at most. ids: n of
 * OUTBOX_ID_SIZE bytes, or NULL. */
OUTBOX_API enum outbox_status outbox_mongo_emit_many(struct _mongoc_client_session_t *session,
                                                     const struct outbox_mongo_target *target,
                                                     const struct outbox_ctx *ctx,
                                                     const struct outbox_event *events, size_t n,
                                                     char (*ids)[OUTBOX_ID_SIZE],
                                                     struct outbox_error *err);
/* Is there an event of this id? As the transaction sees it that is started on session; where there
 * is none, as a majority of the nodes has it. */
OUTBOX_API enum outbox_status outbox_mongo_exists(struct _mongoc_client_session_t *session,
                                                  const struct outbox_mongo_target *target,
                                                  const char *id, bool *exists,
                                                  struct outbox_error *err);
/* Writes what was collected into the transaction that is started on session. Clears nothing: call
 * outbox_collector_clear() when you have committed. */
OUTBOX_API enum outbox_status outbox_mongo_write(struct _mongoc_client_session_t *session,
                                                 const struct outbox_mongo_target *target,
                                                 const struct outbox_ctx *ctx,
                                                 const struct outbox_collector *collector,
                                                 struct outbox_error *err);

/* What a failed call of your own means: OUTBOX_RETRY where the server says that the whole
 * transaction may be tried again (TransientTransactionError), OUTBOX_REJECT for a duplicate key, a
 * validator or a bad value, OUTBOX_DOWN when no server is there or a commit's outcome is not known,
 * else OUTBOX_FATAL. reply: what the call gave beside the error; without it (NULL) nobody can tell
 * what may be tried again. */
OUTBOX_API enum outbox_status outbox_mongo_result(const struct _bson_error_t *error,
                                                  const struct _bson_t *reply,
                                                  struct outbox_error *err);

/* ---- transaction ---- */

/* Anything but OUTBOX_OK aborts. Must not start, commit or abort a transaction. It is called again
 * when the whole is tried again: what it does outside of the database must bear that. */
typedef enum outbox_status outbox_mongo_fn(struct _mongoc_client_session_t *session, void *user,
                                           struct outbox_error *err);

struct outbox_mongo_begin {
    /* How long the whole may take with all its tries, in ms. 0: 120,000, as MongoDB's drivers have
     * it. What is under way then is still ended. */
    unsigned limit_ms;
    unsigned max_commit_ms;  /* how long the server may take for a commit; 0: as long as it likes */
    const void *reserved[4]; /* leave NULL */
};

/* Starts a transaction (snapshot, majority), fn, the collected events (collector may be NULL),
 * commits. Tries the whole again when fn, the events or the commit answer that this may help
 * (TransientTransactionError, OUTBOX_RETRY), after 5 ms, doubling to 500 ms; and the commit alone
 * when its outcome is not known (UnknownTransactionCommitResult). The collector is cleared only
 * when committed; when aborted, what it held before stays and what fn raised is taken back.
 * OUTBOX_DOWN with "may or may not be committed": the outcome was still not known at the end of the
 * time; outbox_mongo_exists() of a collected event's id tells. */
OUTBOX_API enum outbox_status
outbox_mongo_transaction(struct _mongoc_client_session_t *session,
                         const struct outbox_mongo_target *target, const struct outbox_ctx *ctx,
                         struct outbox_collector *collector, const struct outbox_mongo_begin *begin,
                         outbox_mongo_fn *fn, void *user, struct outbox_error *err);

#ifdef __cplusplus
}
#endif

#endif
