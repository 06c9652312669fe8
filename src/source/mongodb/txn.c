/* SPDX-License-Identifier: Apache-2.0 */
/* txn - a transaction that begins with the lease document: it gives out numbers and, for the
 * worker, is the fence. Tried again where the server says that it may help. */
#include "source/mongodb/mongo.h"

#define TRIES 5

static enum ob_status fence(const struct mongo_txn *t, mongoc_client_session_t *session,
                            int64_t *first, struct ob_err *err)
{
    bson_iter_t it, field;
    bson_t reply, *query = ob_mongo_fence(t->epoch, t->owner);
    bson_t *command = BCON_NEW("findAndModify", BCON_UTF8(t->model->lease), "query",
                               BCON_DOCUMENT(query), "update", "{", "$inc", "{", "last_n",
                               BCON_INT64(t->numbers), "settles", BCON_INT32(1), "}", "}", "new",
                               BCON_BOOL(false), "fields", "{", "last_n", BCON_INT32(1), "}");
    enum ob_status st = ob_mongo_write(t->client, t->conf->database, command, t->conf->timeout_ms,
                                       session, &reply, "settling", err);
    if (st == OB_OK) {
        *first = 0;
        if (!bson_iter_init_find(&it, &reply, "value") || !BSON_ITER_HOLDS_DOCUMENT(&it))
            st = ob_err_set(err, OB_FENCED, "another worker took over: nothing was recorded");
        else if (bson_iter_recurse(&it, &field) && bson_iter_find(&field, "last_n"))
            *first = bson_iter_as_int64(&field);
    }
    bson_destroy(&reply);
    bson_destroy(command);
    bson_destroy(query);
    return st;
}

/* OB_FENCED: it is not known whether it was committed. */
static enum ob_status commit(const struct mongo_txn *t, mongoc_client_session_t *session,
                             bool *again, struct ob_err *err)
{
    int64_t until = ob_clock_mono_ms(t->clock) + t->conf->timeout_ms;
    for (;;) {
        bson_t reply;
        bson_error_t e;
        bool ok = mongoc_client_session_commit_transaction(session, &reply, &e);
        enum ob_status st = ok ? OB_OK : ob_mongo_fail(err, "committing", &e, &reply);
        bool unknown = !ok && mongoc_error_has_label(&reply, "UnknownTransactionCommitResult");
        *again = !ok && ob_mongo_transient(&reply);
        bson_destroy(&reply);
        if (!unknown)
            return st;
        if (ob_clock_mono_ms(t->clock) >= until) {
            ob_err_prefix(err, "it is not known whether this was recorded");
            return OB_FENCED;
        }
    }
}

static enum ob_status try_once(const struct mongo_txn *t, mongoc_client_session_t *session,
                               bool *again, struct ob_err *err)
{
    bson_error_t e;
    int64_t first = 0;
    *again = false;
    if (!mongoc_client_session_start_transaction(session, NULL, &e))
        return ob_mongo_fail(err, "a transaction", &e, NULL);
    enum ob_status st = fence(t, session, &first, err);
    if (st == OB_OK)
        st = t->run(t->user, session, first, err);
    if (st == OB_OK)
        return commit(t, session, again, err);
    *again = st == OB_DOWN || st == OB_RETRY; /* nothing was recorded */
    mongoc_client_session_abort_transaction(session, &e);
    return st;
}

enum ob_status ob_mongo_transaction(const struct mongo_txn *t, struct ob_err *err)
{
    bool again = true;
    enum ob_status st = OB_RETRY;
    for (int i = 0; i < TRIES && again && st != OB_OK; i++)
        st = try_once(t, t->session, &again, err);
    return st;
}
