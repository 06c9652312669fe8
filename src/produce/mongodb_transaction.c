/* SPDX-License-Identifier: Apache-2.0 */
/* mongodb_transaction - a transaction with its events, tried again as MongoDB's drivers do it: the
 * whole when the server says so, the commit alone when its outcome is not known. */
#include "produce/mongodb.h"

#include "core/backoff.h"
#include "core/clock.h"

#include <time.h>

#define LIMIT_MS 120000 /* the drivers' own */
#define UNKNOWN "UnknownTransactionCommitResult"
#define CODE_MAX_TIME 50 /* the server took longer than it was given: again would be no better */

struct work {
    const struct outbox_mongo_target *target;
    const struct outbox_ctx *ctx;
    struct outbox_collector *collector;
    outbox_mongo_fn *fn;
    void *user;
    mongoc_transaction_opt_t *opts;
    int64_t end_ms; /* monotonic: nothing is begun again after it */
};

static bool time_left(const struct work *w)
{
    return ob_clock_mono_ms(&ob_clock_system) < w->end_ms;
}

static enum ob_status call(mongoc_client_session_t *session, const struct work *w,
                           struct ob_err *err)
{
    struct outbox_error theirs = {.text = ""};
    enum ob_status st = (enum ob_status)w->fn(session, w->user, &theirs);

    if (st != OB_OK)
        return ob_err_set(err, st, "%s",
                          theirs.text[0] ? theirs.text : "the transaction's function gave up");
    if (!ob_produce_mongo_started(session))
        return ob_err_set(err, OB_FATAL,
                          "the transaction's function ended the transaction: nothing of it may "
                          "start, commit or abort");
    return OB_OK;
}

/* OB_RETRY: nothing is committed and the whole may be tried again. OB_DOWN with an unknown outcome
 * leaves the session as it is: there is nothing that could be aborted. */
static enum ob_status commit(mongoc_client_session_t *session, const struct work *w,
                             struct ob_err *err)
{
    enum ob_status st;
    bool unknown;

    do {
        bson_t reply;
        bson_error_t e;
        if (mongoc_client_session_commit_transaction(session, &reply, &e)) {
            bson_destroy(&reply);
            return OB_OK;
        }
        st = ob_produce_mongo_meaning(&e, &reply, err);
        unknown = mongoc_error_has_label(&reply, UNKNOWN);
        bson_destroy(&reply);
        if (unknown && e.code == CODE_MAX_TIME)
            break;
    } while (unknown && time_left(w));
    if (unknown) {
        st = OB_DOWN;
        ob_err_prefix(err, "the transaction may or may not be committed");
    }
    return st;
}

/* *none: there was no server to start with. */
static enum ob_status once(mongoc_client_session_t *session, const struct work *w, bool *none,
                           struct ob_err *err)
{
    size_t before = w->collector ? outbox_collector_count(w->collector) : 0;
    bson_error_t e;
    enum ob_status st;

    if (!mongoc_client_session_start_transaction(session, w->opts, &e)) {
        st = ob_produce_mongo_meaning(&e, NULL, err);
        *none = st == OB_DOWN;
        return st;
    }
    st = call(session, w, err);
    if (st == OB_OK && w->collector)
        st = ob_produce_mongo_collected(session, w->target, w->ctx, w->collector, err);
    if (st == OB_OK)
        st = commit(session, w, err);
    if (st != OB_OK && ob_produce_mongo_started(session))
        (void)mongoc_client_session_abort_transaction(session, &e); /* else its time runs out */
    if (w->collector)
        ob_collector_cut(w->collector, st == OB_OK ? 0 : before);
    return st;
}

static void rest(unsigned failures)
{
    static const struct ob_backoff pace = {5, 500, 200, 50};
    struct ob_rand r = {(uint64_t)ob_clock_mono_ms(&ob_clock_system)};
    long ms = (long)ob_backoff_ms(&pace, failures, &r);
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};

    nanosleep(&t, NULL);
}

static mongoc_transaction_opt_t *transaction_options(const struct outbox_mongo_begin *begin)
{
    mongoc_transaction_opt_t *opts = mongoc_transaction_opts_new();
    mongoc_read_concern_t *snapshot = mongoc_read_concern_new();
    mongoc_write_concern_t *majority = mongoc_write_concern_new();
    mongoc_read_prefs_t *primary = mongoc_read_prefs_new(MONGOC_READ_PRIMARY);

    mongoc_read_concern_set_level(snapshot, MONGOC_READ_CONCERN_LEVEL_SNAPSHOT);
    mongoc_write_concern_set_wmajority(majority, -1);
    mongoc_transaction_opts_set_read_concern(opts, snapshot);
    mongoc_transaction_opts_set_write_concern(opts, majority);
    mongoc_transaction_opts_set_read_prefs(opts, primary);
    if (begin && begin->max_commit_ms)
        mongoc_transaction_opts_set_max_commit_time_ms(opts, begin->max_commit_ms);
    mongoc_read_concern_destroy(snapshot);
    mongoc_write_concern_destroy(majority);
    mongoc_read_prefs_destroy(primary);
    return opts;
}

enum outbox_status
outbox_mongo_transaction(mongoc_client_session_t *session, const struct outbox_mongo_target *target,
                         const struct outbox_ctx *ctx, struct outbox_collector *collector,
                         const struct outbox_mongo_begin *begin, outbox_mongo_fn *fn, void *user,
                         struct outbox_error *err)
{
    struct work w = {.target = target, .ctx = ctx, .collector = collector, .fn = fn, .user = user};
    struct ob_err why = {.text = ""};
    enum ob_status st;

    if (!session || ob_produce_mongo_started(session)) {
        st = ob_err_set(&why, OB_REJECT,
                        session ? "a transaction is started already" : "there is no session");
        return ob_produce_give(st, &why, err);
    }
    w.opts = transaction_options(begin);
    w.end_ms = ob_clock_mono_ms(&ob_clock_system) +
               (begin && begin->limit_ms ? (int64_t)begin->limit_ms : LIMIT_MS);
    for (unsigned attempt = 0;; attempt++) {
        bool none = false;
        st = once(session, &w, &none, &why);
        if ((st != OB_RETRY && !none) || !time_left(&w))
            break;
        rest(attempt + 1);
    }
    mongoc_transaction_opts_destroy(w.opts);
    return ob_produce_give(st, &why, err);
}
