/* SPDX-License-Identifier: Apache-2.0 */
/* session - sessions of transactions, and how another process ends one.
 *
 * A transaction belongs to a session of the server, not to a connection. When its client is killed
 * or hangs, the server keeps the transaction open for transactionLifetimeLimitSeconds (60 s), and
 * every other write to a document that it changed waits. So each session that runs transactions
 * under the lease is named in the lease document before it begins: the worker's as `session`, those
 * of `outbox dead` in `admin`. A relay that takes over ends the worker's session first; a relay
 * that finds the lease document locked ends those in `admin`
 * (tests/e2e/test_mongodb_orphans.py).
 *
 * A user may end its own sessions without any privilege. The sessions of another user need
 * killAnySession. */
#include "source/mongodb/mongo.h"

#define UNAUTHORIZED 13

mongoc_client_session_t *ob_mongo_session_new(mongoc_client_t *client, int64_t timeout_ms,
                                              struct ob_err *err)
{
    mongoc_session_opt_t *opts = mongoc_session_opts_new();
    mongoc_transaction_opt_t *txn = mongoc_transaction_opts_new();
    mongoc_read_concern_t *rc = mongoc_read_concern_new();
    mongoc_write_concern_t *wc = mongoc_write_concern_new();
    mongoc_read_prefs_t *primary = mongoc_read_prefs_new(MONGOC_READ_PRIMARY);
    bson_error_t e;
    mongoc_read_concern_set_level(rc, MONGOC_READ_CONCERN_LEVEL_SNAPSHOT);
    mongoc_write_concern_set_wmajority(wc, (int32_t)timeout_ms);
    mongoc_transaction_opts_set_read_concern(txn, rc);
    mongoc_transaction_opts_set_write_concern(txn, wc);
    mongoc_transaction_opts_set_read_prefs(txn, primary);
    mongoc_session_opts_set_default_transaction_opts(opts, txn);
    mongoc_client_session_t *session = mongoc_client_start_session(client, opts, &e);
    if (!session)
        ob_mongo_fail(err, "a session", &e, NULL);
    mongoc_transaction_opts_destroy(txn);
    mongoc_session_opts_destroy(opts);
    mongoc_read_concern_destroy(rc);
    mongoc_write_concern_destroy(wc);
    mongoc_read_prefs_destroy(primary);
    return session;
}

/* ---- names ---- */

/* Copies {_id: {id, uid}, user} of the first document of a cursor's reply. */
static bool copy_name(const bson_t *reply, bson_t *out)
{
    bson_iter_t it, at, field;
    if (!bson_iter_init(&it, reply) ||
        !bson_iter_find_descendant(&it, "cursor.firstBatch.0._id", &at) ||
        !bson_iter_recurse(&at, &field))
        return false;
    while (bson_iter_next(&field))
        bson_append_iter(out, bson_iter_key(&field), -1, &field);
    if (bson_iter_init(&it, reply) &&
        bson_iter_find_descendant(&it, "cursor.firstBatch.0.user", &at))
        bson_append_iter(out, "user", -1, &at);
    return true;
}

enum ob_status ob_mongo_session_name(mongoc_client_t *client, const char *database,
                                     mongoc_client_session_t *session, bson_t *out,
                                     struct ob_err *err)
{
    const bson_t *lsid = mongoc_client_session_get_lsid(session);
    bson_iter_t id;
    bson_error_t e;
    bson_t command, list, stage, match, opts, reply, none;
    bson_init(out);
    if (!lsid || !bson_iter_init_find(&id, lsid, "id"))
        return ob_err_set(err, OB_DOWN, "a session has no id");
    bson_init(&command);
    bson_init(&opts);
    bson_init(&none);
    BSON_APPEND_INT32(&command, "aggregate", 1);
    BSON_APPEND_ARRAY_BEGIN(&command, "pipeline", &list);
    BSON_APPEND_DOCUMENT_BEGIN(&list, "0", &stage);
    BSON_APPEND_DOCUMENT(&stage, "$listLocalSessions", &none);
    bson_append_document_end(&list, &stage);
    BSON_APPEND_DOCUMENT_BEGIN(&list, "1", &stage);
    BSON_APPEND_DOCUMENT_BEGIN(&stage, "$match", &match);
    bson_append_iter(&match, "_id.id", -1, &id);
    bson_append_document_end(&stage, &match);
    bson_append_document_end(&list, &stage);
    bson_append_array_end(&command, &list);
    BSON_APPEND_DOCUMENT(&command, "cursor", &none);
    bool ok =
        mongoc_client_session_append(session, &opts, &e) && /* so that the server knows it */
        mongoc_client_read_command_with_opts(client, database, &command, NULL, &opts, &reply, &e);
    enum ob_status st = ok ? OB_OK : ob_mongo_fail(err, "a session", &e, NULL);
    if (ok && !copy_name(&reply, out))
        bson_append_iter(out, "id", -1, &id); /* this user's own can be ended by the id alone */
    if (ok)
        bson_destroy(&reply);
    bson_destroy(&command);
    bson_destroy(&opts);
    return st;
}

/* ---- ending one ---- */

/* The digest of its user, as the server has it. */
static struct ob_str uid_of(const bson_t *name)
{
    bson_iter_t it;
    bson_subtype_t type;
    uint32_t n = 0;
    const uint8_t *data = NULL;
    if (bson_iter_init_find(&it, name, "uid") && BSON_ITER_HOLDS_BINARY(&it))
        bson_iter_binary(&it, &type, &n, &data);
    return (struct ob_str){(const char *)data, n};
}

static bool same_user(const bson_t *a, const bson_t *b)
{
    struct ob_str x = uid_of(a), y = uid_of(b);
    return x.n == 0 || y.n == 0 || (x.n == y.n && memcmp(x.p, y.p, x.n) == 0);
}

static enum ob_status kill_failed(const bson_t *name, const bson_error_t *e, struct ob_err *err)
{
    bson_iter_t it;
    if (e->code != UNAUTHORIZED)
        return ob_mongo_fail(err, "ending a session", e, NULL);
    bool known = bson_iter_init_find(&it, name, "user") && BSON_ITER_HOLDS_UTF8(&it);
    return ob_err_set(err, OB_DOWN,
                      "ending a session of user %.100s needs the privilege killAnySession: grant "
                      "it, or run all relays of a collection as one user",
                      known ? bson_iter_utf8(&it, NULL) : "unknown");
}

enum ob_status ob_mongo_session_kill(mongoc_client_t *client, const bson_t *name, const bson_t *own,
                                     struct ob_err *err)
{
    bool ours = same_user(name, own);
    bson_iter_t id, it;
    bson_error_t e;
    bson_t command, list, one, lsid, reply;
    if (!bson_iter_init_find(&id, name, "id"))
        return OB_OK;
    bson_init(&command);
    BSON_APPEND_ARRAY_BEGIN(&command, ours ? "killSessions" : "killAllSessionsByPattern", &list);
    BSON_APPEND_DOCUMENT_BEGIN(&list, "0", &one);
    if (ours) {
        bson_append_iter(&one, "id", -1, &id);
    } else {
        BSON_APPEND_DOCUMENT_BEGIN(&one, "lsid", &lsid);
        bson_append_iter(&lsid, "id", -1, &id);
        if (bson_iter_init_find(&it, name, "uid"))
            bson_append_iter(&lsid, "uid", -1, &it);
        bson_append_document_end(&one, &lsid);
    }
    bson_append_document_end(&list, &one);
    bson_append_array_end(&command, &list);
    enum ob_status st = OB_OK;
    if (!mongoc_client_read_command_with_opts(client, "admin", &command, NULL, NULL, &reply, &e))
        st = kill_failed(name, &e, err);
    bson_destroy(&reply);
    bson_destroy(&command);
    return st;
}
