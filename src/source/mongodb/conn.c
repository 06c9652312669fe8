/* SPDX-License-Identifier: Apache-2.0 */
/* conn - clients of libmongoc with deadlines, and what its errors mean for us. */
#include "config/address.h"
#include "config/wire.h"
#include "source/mongodb/mongo.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <xxhash.h>

#define SELECT_MS 2000 /* how long a call waits for a primary */
#define POOL_MIN 4     /* the shard, the reader and the stream have one client each */

static pthread_once_t once = PTHREAD_ONCE_INIT;

/* The library prints to stderr unless told otherwise. It is never cleaned up: other threads of the
 * process may use it too. */
static void library_init(void)
{
    mongoc_init();
    mongoc_log_set_handler(NULL, NULL);
}

static void set_option(mongoc_uri_t *uri, const char *name, int64_t value)
{
    if (!mongoc_uri_has_option(uri, name))
        mongoc_uri_set_option_as_int32(uri, name, (int32_t)value);
}

/* What an application's own string may say and a relay cannot live with: a secondary can be behind
 * what was claimed a moment ago, and takes no transaction
 * (tests/e2e/test_mongodb_stream.py::test_step_downs_of_three_nodes_lose_nothing); a pool smaller
 * than our threads are many would never give one of them a client. */
static void overrule(mongoc_uri_t *uri)
{
    mongoc_read_prefs_t *primary = mongoc_read_prefs_new(MONGOC_READ_PRIMARY);
    mongoc_read_concern_t *none = mongoc_read_concern_new();
    mongoc_uri_set_read_prefs_t(uri, primary);
    mongoc_uri_set_read_concern(uri, none); /* each query that needs one has its own */
    if (mongoc_uri_get_option_as_int32(uri, MONGOC_URI_MAXPOOLSIZE, 100) < POOL_MIN)
        mongoc_uri_set_option_as_int32(uri, MONGOC_URI_MAXPOOLSIZE, POOL_MIN);
    mongoc_uri_set_option_as_bool(uri, MONGOC_URI_RETRYWRITES, true);
    mongoc_read_concern_destroy(none);
    mongoc_read_prefs_destroy(primary);
}

/* The library quotes a password that it refuses, and values of options. */
static enum ob_status bad_uri(const bson_error_t *e, struct ob_err *err)
{
    const char *value = strstr(e->message, "\": \"");
    int n = value ? (int)(value - e->message) + 1 : (int)strlen(e->message);
    if (strncmp(e->message, "Password", strlen("Password")) == 0)
        return ob_err_set(err, OB_FATAL,
                          "uri: the password has a character that must be escaped; write %%3A for "
                          "':', %%25 for '%%'");
    return ob_err_set(err, OB_FATAL, "uri: %.*s", n, e->message);
}

enum ob_status ob_mongo_pool(const struct mongo_conf *conf, mongoc_client_pool_t **out,
                             struct ob_err *err)
{
    bson_error_t e;
    pthread_once(&once, library_init);
    /* The library would take what follows the first '@' for the host, and resolve and show it. */
    if (ob_address_is_ambiguous(conf->uri))
        return ob_err_set(err, OB_FATAL,
                          "uri: the user or password has an '@' or '/' that is not escaped; write "
                          "%%40 or %%2F");
    mongoc_uri_t *uri = mongoc_uri_new_with_error(conf->uri, &e);
    if (!uri)
        return bad_uri(&e, err);
    set_option(uri, MONGOC_URI_SOCKETTIMEOUTMS, conf->timeout_ms);
    set_option(uri, MONGOC_URI_CONNECTTIMEOUTMS, conf->timeout_ms < 5000 ? conf->timeout_ms : 5000);
    set_option(uri, MONGOC_URI_SERVERSELECTIONTIMEOUTMS,
               conf->timeout_ms < SELECT_MS ? conf->timeout_ms : SELECT_MS);
    set_option(uri, MONGOC_URI_HEARTBEATFREQUENCYMS, 2000);
    overrule(uri);
    if (!mongoc_uri_get_appname(uri))
        mongoc_uri_set_appname(uri, "outbox");
    mongoc_client_pool_t *pool = mongoc_client_pool_new_with_error(uri, &e);
    mongoc_uri_destroy(uri);
    if (!pool)
        return ob_err_set(err, OB_FATAL, "uri: %s", e.message);
    mongoc_client_pool_set_error_api(pool, MONGOC_ERROR_API_VERSION_2);
    *out = pool;
    return OB_OK;
}

enum ob_status ob_mongo_server(mongoc_client_t *client, const char *database, struct ob_err *err)
{
    bson_t reply, *hello = BCON_NEW("hello", BCON_INT32(1));
    bson_error_t e;
    bson_iter_t it;
    enum ob_status st = OB_OK;
    bool ok = mongoc_client_read_command_with_opts(client, database, hello, NULL, NULL, &reply, &e);
    if (!ok)
        st = ob_mongo_fail(err, "hello", &e, &reply);
    else if (!bson_iter_init_find(&it, &reply, "setName") &&
             !bson_iter_init_find(&it, &reply, "msg")) /* a router says isdbgrid */
        st = ob_err_set(err, OB_FATAL,
                        "the server is not a member of a replica set: transactions and change "
                        "streams need one (mongod --replSet NAME, then rs.initiate())");
    else if (ob_mongo_i64(&reply, "maxWireVersion", 0) < 13)
        st = ob_err_set(err, OB_FATAL, "MongoDB 5.0 or later is needed");
    bson_destroy(&reply);
    bson_destroy(hello);
    return st;
}

/* ---- TLS ---- */

/* Has the string a user, or a certificate that stands for one? */
static bool has_credentials(const mongoc_uri_t *uri)
{
    const char *user = mongoc_uri_get_username(uri), *how = mongoc_uri_get_auth_mechanism(uri);
    return (user && *user) || (how && *how);
}

static const char *weak_tls(const mongoc_uri_t *uri, const char **fix)
{
    static const char *const skipped[] = {MONGOC_URI_TLSINSECURE,
                                          MONGOC_URI_TLSALLOWINVALIDCERTIFICATES,
                                          MONGOC_URI_TLSALLOWINVALIDHOSTNAMES};
    if (mongoc_uri_get_tls(uri)) {
        *fix = "remove tlsInsecure, tlsAllowInvalidCertificates and tlsAllowInvalidHostnames from "
               "the uri; tlsCAFile=FILE names the CA of the server";
        for (size_t i = 0; i < sizeof(skipped) / sizeof(skipped[0]); i++)
            if (mongoc_uri_get_option_as_bool(uri, skipped[i], false))
                return "the uri turns off the verification of the server's certificate: any "
                       "host on the network can pose as the server";
        return NULL;
    }
    *fix = "tls=true and tlsCAFile=FILE in the uri";
    for (const mongoc_host_list_t *h = mongoc_uri_get_hosts(uri); h; h = h->next)
        if (!ob_host_is_local(h->host) && has_credentials(uri))
            return "the uri has credentials and no TLS, and a host that is not this machine: the "
                   "connection is plain text";
    return NULL;
}

const char *ob_mongo_weak_tls(const char *uri, const char **fix)
{
    bson_error_t e;
    mongoc_uri_t *parsed = mongoc_uri_new_with_error(uri, &e);
    const char *weak = parsed ? weak_tls(parsed, fix) : NULL;
    mongoc_uri_destroy(parsed);
    return weak;
}

/* ---- errors ---- */

bool ob_mongo_transient(const bson_t *reply)
{
    return reply && mongoc_error_has_label(reply, "TransientTransactionError");
}

bool ob_mongo_too_large(const bson_error_t *e)
{
    /* BSONObjectTooLarge, and two without a name for what an update would make. */
    return e->code == 10334 || e->code == 17419 || e->code == 17420;
}

/* What a person has to change; all else may be over by itself. */
static bool is_fatal(uint32_t code)
{
    switch (code) {
    case 13: /* Unauthorized */
    case 18: /* AuthenticationFailed */
    case 73: /* InvalidNamespace */
    case 20: /* IllegalOperation: transactions on a standalone server */
        return true;
    default:
        return false;
    }
}

const char *ob_mongo_advice(const char *text)
{
    static const struct {
        const char *in, *advice;
    } rows[] = {
        {"IP address mismatch", "the name in the uri must be one of the certificate's"},
        {"hostname mismatch", "the name in the uri must be one of the certificate's"},
        {"certificate has expired", "renew the certificate of the server, or correct this "
                                    "machine's clock"},
        {"certificate is not yet valid",
         "correct this machine's clock, or the server's certificate"},
        {"ertificate verify failed", "tlsCAFile=FILE in the uri names the CA of the server"},
        {"TLS handshake failed",
         "see that both sides speak TLS: tls=true and tlsCAFile in the uri"},
        {"Failed to read 4 bytes",
         "the server hung up: if it speaks TLS only, tls=true in the uri"},
        {"uthentication failed", "see user, password and authSource of the uri"},
        {"requires authentication", "put a user into the uri: mongodb://USER:PASSWORD@HOST/"},
        {"not authorized", "`outbox check` names the missing right, with the grant"},
        {"onnection refused", "see that the server runs, and where: host and port of the uri"},
        {"ailed to resolve", "see the host's name in the uri"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (strstr(text, rows[i].in))
            return rows[i].advice;
    return NULL;
}

enum ob_status ob_mongo_fail(struct ob_err *err, const char *what, const bson_error_t *e,
                             const bson_t *reply)
{
    enum ob_status st = OB_RETRY;
    if (e->domain == MONGOC_ERROR_CLIENT && e->code == MONGOC_ERROR_CLIENT_AUTHENTICATE)
        st = OB_FATAL;
    else if (e->domain == MONGOC_ERROR_STREAM || e->domain == MONGOC_ERROR_SERVER_SELECTION ||
             e->domain == MONGOC_ERROR_CLIENT || e->domain == MONGOC_ERROR_WRITE_CONCERN)
        st = OB_DOWN;
    else if (is_fatal(e->code))
        st = OB_FATAL;
    else if (reply && (mongoc_error_has_label(reply, "RetryableWriteError") ||
                       mongoc_error_has_label(reply, "TransientTransactionError")))
        st = OB_DOWN;
    ob_err_set(err, st, "%s: %s", what, e->message[0] ? e->message : "no reason is given");
    const char *advice = ob_mongo_advice(err->text);
    if (advice && (st == OB_FATAL || strstr(err->text, "TLS"))) /* a person must do something */
        ob_err_set(err, st, "%s: %.300s: %s", what, e->message, advice);
    return st;
}

/* ---- commands ---- */

void ob_mongo_write_opts(bson_t *opts, int64_t timeout_ms, mongoc_client_session_t *session)
{
    bson_error_t e;
    bson_t wc;
    bson_init(opts);
    if (session && !mongoc_client_session_append(session, opts, &e))
        bson_reinit(opts);
    if (session && mongoc_client_session_in_transaction(session))
        return; /* it has its own */
    BSON_APPEND_DOCUMENT_BEGIN(opts, "writeConcern", &wc);
    BSON_APPEND_UTF8(&wc, "w", "majority");
    BSON_APPEND_INT64(&wc, "wtimeout", timeout_ms);
    bson_append_document_end(opts, &wc);
}

enum ob_status ob_mongo_write(mongoc_client_t *client, const char *database, const bson_t *command,
                              int64_t timeout_ms, mongoc_client_session_t *session, bson_t *reply,
                              const char *what, struct ob_err *err)
{
    bson_t opts;
    bson_error_t e;
    ob_mongo_write_opts(&opts, timeout_ms, session);
    bool ok = mongoc_client_write_command_with_opts(client, database, command, &opts, reply, &e);
    bson_destroy(&opts);
    return ok ? OB_OK : ob_mongo_fail(err, what, &e, reply);
}

enum ob_status ob_mongo_update_many(mongoc_collection_t *coll, const bson_t *filter,
                                    const bson_t *pipeline, int64_t timeout_ms,
                                    mongoc_client_session_t *session, size_t *matched,
                                    const char *what, struct ob_err *err)
{
    bson_t opts, reply;
    bson_error_t e;
    enum ob_status st = OB_OK;
    ob_mongo_write_opts(&opts, timeout_ms, session);
    if (!mongoc_collection_update_many(coll, filter, pipeline, &opts, &reply, &e)) {
        st = ob_mongo_fail(err, what, &e, &reply);
        if (ob_mongo_too_large(&e))
            st = err->status = OB_REJECT;
    } else if (matched) {
        *matched = (size_t)ob_mongo_i64(&reply, "matchedCount", 0);
    }
    bson_destroy(&opts);
    bson_destroy(&reply);
    return st;
}

enum ob_status ob_mongo_cursor(mongoc_cursor_t *c, const char *what, struct ob_err *err)
{
    const bson_t *reply = NULL;
    bson_error_t e;
    return mongoc_cursor_error_document(c, &e, &reply) ? ob_mongo_fail(err, what, &e, reply)
                                                       : OB_OK;
}

void ob_mongo_in(bson_t *b, const char *key, const bson_value_t *const *ids, size_t n)
{
    bson_t in, list;
    char text[16];
    BSON_APPEND_DOCUMENT_BEGIN(b, key, &in);
    BSON_APPEND_ARRAY_BEGIN(&in, "$in", &list);
    for (size_t i = 0; i < n; i++) {
        const char *at;
        size_t len = bson_uint32_to_string((uint32_t)i, &at, text, sizeof(text));
        bson_append_value(&list, at, (int)len, ids[i]);
    }
    bson_append_array_end(&in, &list);
    bson_append_document_end(b, &in);
}

void ob_mongo_hash(const bson_value_t *v, uint64_t hash[2])
{
    bson_value_t n = *v;
    bson_t doc;
    if (v->value_type == BSON_TYPE_INT32) {
        n.value_type = BSON_TYPE_INT64;
        n.value.v_int64 = v->value.v_int32;
    } else if (v->value_type == BSON_TYPE_DOUBLE && v->value.v_double >= -9e15 &&
               v->value.v_double <= 9e15 &&
               !(v->value.v_double < (double)(int64_t)v->value.v_double) &&
               !(v->value.v_double > (double)(int64_t)v->value.v_double)) {
        n.value_type = BSON_TYPE_INT64;
        n.value.v_int64 = (int64_t)v->value.v_double;
    }
    bson_init(&doc);
    BSON_APPEND_VALUE(&doc, "", &n);
    XXH128_hash_t h = XXH3_128bits(bson_get_data(&doc), doc.len);
    hash[0] = h.low64;
    hash[1] = h.high64;
    bson_destroy(&doc);
}

bson_t *ob_mongo_bson(const char *fmt, ...)
{
    bson_error_t e;
    va_list ap;
    char *made = NULL;
    va_start(ap, fmt);
    int n = vasprintf(&made, fmt, ap);
    va_end(ap);
    bson_t *b = n >= 0 ? bson_new_from_json((const uint8_t *)made, n, &e) : NULL;
    if (n >= 0)
        free(made);
    return b;
}

int64_t ob_mongo_i64(const bson_t *doc, const char *field, int64_t otherwise)
{
    bson_iter_t it;
    if (!bson_iter_init_find(&it, doc, field) || !BSON_ITER_HOLDS_NUMBER(&it))
        return otherwise;
    return bson_iter_as_int64(&it);
}
