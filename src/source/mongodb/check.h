/* SPDX-License-Identifier: Apache-2.0 */
/* check - one run of `outbox check` on MongoDB. */
#ifndef OB_SOURCE_MONGODB_CHECK_H
#define OB_SOURCE_MONGODB_CHECK_H

#include "source/mongodb/admin.h"

struct mongo_checking {
    struct ob_admin *a;
    void (*found)(void *user, bool ok, const char *what, const char *fix);
    void *user;
    struct ob_buf what, fix; /* of the next finding */
};

/* Tells what stands in the buffers, and empties them. */
void ob_mongo_check_tell(struct mongo_checking *k, bool ok);
/* A command that only reads; destroys it. False: it failed. reply is always initialised. */
bool ob_mongo_check_ask(struct mongo_checking *k, const char *database, bson_t *command,
                        bson_t *reply, bson_error_t *e);

/* ---- check_rights.c ---- */

/* Does the server know who asks, if it wants to? */
bool ob_mongo_check_user(struct mongo_checking *k);
/* False: so much is missing that other questions would fail. */
bool ob_mongo_check_rights(struct mongo_checking *k);

#endif
