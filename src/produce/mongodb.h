/* SPDX-License-Identifier: Apache-2.0 */
/* mongodb - shared by the files of produce/ that write to MongoDB. */
#ifndef OB_PRODUCE_MONGODB_H
#define OB_PRODUCE_MONGODB_H

#include "event/mongo_doc.h"
#include "outbox/mongodb.h"
#include "produce/produce.h"

#include <mongoc/mongoc.h>

struct outbox_mongo_target {
    struct ob_arena *arena; /* has all texts */
    struct ob_mapping map;
    struct ob_mongo_shape shape;
    const char *database; /* NULL: the client's */
    const char *collection;
    bool serialize;
};

/* The one that NULL stands for. */
extern const struct outbox_mongo_target ob_produce_mongo_native;

/* Is a transaction started on the session, so that the next write is part of it? */
bool ob_produce_mongo_started(const mongoc_client_session_t *session);
/* OB_REJECT: it is not, or there is no session. */
enum ob_status ob_produce_mongo_ready(const mongoc_client_session_t *session,
                                      struct ob_err *err) OB_MUST_CHECK;
/* The target's collection with this at the end of its name; the caller destroys it. */
enum ob_status ob_produce_mongo_collection(const mongoc_client_session_t *session,
                                           const struct outbox_mongo_target *target,
                                           const char *suffix, mongoc_collection_t **out,
                                           struct ob_err *err) OB_MUST_CHECK;
/* What a failed call means; never OB_OK. reply may be NULL. */
enum ob_status ob_produce_mongo_meaning(const bson_error_t *e, const bson_t *reply,
                                        struct ob_err *err);
enum ob_status ob_produce_mongo_collected(mongoc_client_session_t *session,
                                          const struct outbox_mongo_target *target,
                                          const struct outbox_ctx *ctx,
                                          const struct outbox_collector *c,
                                          struct ob_err *err) OB_MUST_CHECK;

#endif
