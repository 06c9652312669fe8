/* SPDX-License-Identifier: Apache-2.0 */
/* release - a dead document that somebody made pending again, by a plain update, is alive: its dead
 * row is closed, its attempts are 0, and its key waits for it no longer
 * (tests/e2e/test_mongodb_cli.py::test_a_dead_document_is_released_by_a_plain_update).
 *
 * Seen by the look that claims it (pass.c), done before it is handed out. */
#include "source/mongodb/mongo.h"

#include <stdlib.h>

struct release {
    struct ob_source *s;
    const struct mongo_page *page;
    int64_t *numbers, *hashes;
    size_t n, cap;
    bson_t *refs; /* an array */
};

/* Dead rows of what was claimed. */
static enum ob_status find(struct release *r, mongoc_client_session_t *session, struct ob_err *err)
{
    mongoc_collection_t *coll = ob_mongo_coll(r->s, r->s->model->dead);
    bson_t filter, in, list, opts;
    bson_error_t e;
    bson_iter_t it;
    const bson_t *doc;
    enum ob_status st = OB_OK;
    r->n = 0;
    bson_reinit(r->refs);
    bson_init(&filter);
    bson_init(&opts);
    BSON_APPEND_DOCUMENT_BEGIN(&filter, "ref", &in);
    BSON_APPEND_ARRAY_BEGIN(&in, "$in", &list);
    for (size_t i = 0; i < r->page->n; i++)
        bson_append_value(&list, "0", 1, &r->page->ids[i]);
    bson_append_array_end(&in, &list);
    bson_append_document_end(&filter, &in);
    BSON_APPEND_UTF8(&filter, "state", "dead");
    BCON_APPEND(&opts, "projection", "{", "ref", BCON_INT32(1), "hash", BCON_INT32(1), "}");
    if (session && !mongoc_client_session_append(session, &opts, &e))
        st = ob_mongo_fail(err, "released documents", &e, NULL);
    mongoc_cursor_t *c = mongoc_collection_find_with_opts(coll, &filter, &opts, NULL);
    while (st == OB_OK && r->n < r->cap && mongoc_cursor_next(c, &doc)) {
        r->numbers[r->n] = ob_mongo_i64(doc, "_id", 0);
        r->hashes[r->n++] = ob_mongo_i64(doc, "hash", 0);
        if (bson_iter_init_find(&it, doc, "ref"))
            bson_append_iter(r->refs, "0", 1, &it);
    }
    if (st == OB_OK && mongoc_cursor_error(c, &e))
        st = ob_mongo_fail(err, "released documents", &e, NULL);
    mongoc_cursor_destroy(c);
    bson_destroy(&filter);
    bson_destroy(&opts);
    mongoc_collection_destroy(coll);
    return st;
}

static enum ob_status close_rows(struct release *r, mongoc_client_session_t *session,
                                 struct ob_err *err)
{
    mongoc_collection_t *coll = ob_mongo_coll(r->s, r->s->model->dead);
    bson_t filter, in, list, opts, reply,
        *update = BCON_NEW("$set", "{", "state", "released", "hold", BCON_BOOL(false), "dlt",
                           BCON_BOOL(false), "}");
    bson_error_t e;
    enum ob_status st = OB_OK;
    bson_init(&filter);
    BSON_APPEND_DOCUMENT_BEGIN(&filter, "_id", &in);
    BSON_APPEND_ARRAY_BEGIN(&in, "$in", &list);
    for (size_t i = 0; i < r->n; i++)
        bson_append_int64(&list, "0", 1, r->numbers[i]);
    bson_append_array_end(&in, &list);
    bson_append_document_end(&filter, &in);
    ob_mongo_write_opts(&opts, r->s->conf->timeout_ms, session);
    if (!mongoc_collection_update_many(coll, &filter, update, &opts, &reply, &e))
        st = ob_mongo_fail(err, "released documents", &e, &reply);
    bson_destroy(&reply);
    bson_destroy(&opts);
    bson_destroy(&filter);
    bson_destroy(update);
    mongoc_collection_destroy(coll);
    return st;
}

static enum ob_status forget_attempts(struct release *r, mongoc_client_session_t *session,
                                      struct ob_err *err)
{
    const struct mongo_model *m = r->s->model;
    if (!m->f[OB_MAP_ATTEMPTS])
        return OB_OK;
    mongoc_collection_t *coll = ob_mongo_coll(r->s, m->events);
    bson_t filter, in,
        *update = BCON_NEW("0", "{", "$set", "{", m->f[OB_MAP_ATTEMPTS], BCON_INT32(0), "}", "}");
    bson_init(&filter);
    BSON_APPEND_DOCUMENT_BEGIN(&filter, "_id", &in);
    BSON_APPEND_ARRAY(&in, "$in", r->refs);
    bson_append_document_end(&filter, &in);
    BCON_APPEND(&filter, m->f[OB_MAP_ATTEMPTS], "{", "$gt", BCON_INT32(0), "}");
    enum ob_status st = ob_mongo_update_many(coll, &filter, update, r->s->conf->timeout_ms, session,
                                             NULL, "released documents", err);
    bson_destroy(&filter);
    bson_destroy(update);
    mongoc_collection_destroy(coll);
    return st;
}

static enum ob_status run(void *user, mongoc_client_session_t *session, int64_t first,
                          struct ob_err *err)
{
    struct release *r = user;
    size_t released = 0;
    (void)first;
    enum ob_status st = find(r, session, err);
    if (st == OB_OK && r->n > 0)
        st = close_rows(r, session, err);
    if (st == OB_OK && r->n > 0)
        st = forget_attempts(r, session, err);
    if (st == OB_OK && r->n > 0)
        st = ob_mongo_rekey(r->s->client, r->s->conf->database, r->s->model, r->s->conf->timeout_ms,
                            session, r->hashes, r->n, NULL, 0, &released, err);
    return st;
}

/* The events of the page know of it too. */
static void tell_events(const struct release *r)
{
    for (size_t i = 0; i < r->page->n; i++) {
        bson_iter_t it;
        uint64_t want[2], got[2];
        ob_mongo_hash(&r->page->ids[i], want);
        for (bool ok = bson_iter_init(&it, r->refs); ok && bson_iter_next(&it);) {
            ob_mongo_hash(bson_iter_value(&it), got);
            if (want[0] == got[0] && want[1] == got[1])
                r->page->batch->events[i].attempts = 0;
        }
    }
}

enum ob_status ob_mongo_release(struct ob_source *s, const struct mongo_page *page,
                                struct ob_err *err)
{
    struct release r = {.s = s, .page = page, .cap = page->n};
    r.numbers = calloc(r.cap, sizeof(*r.numbers));
    r.hashes = calloc(r.cap, sizeof(*r.hashes));
    r.refs = bson_new();
    enum ob_status st =
        r.numbers && r.hashes ? find(&r, NULL, err) : ob_err_set(err, OB_DOWN, "no memory");
    if (st == OB_OK && r.n > 0) {
        struct mongo_txn t = {.client = s->client,
                              .conf = s->conf,
                              .model = s->model,
                              .clock = s->clock,
                              .epoch = s->epoch,
                              .owner = s->token,
                              .run = run,
                              .user = &r};
        st = ob_mongo_transaction(&t, err);
        if (st == OB_FENCED)
            ob_mongo_lost(s);
        if (st == OB_FATAL) /* may be over when a person has looked at it; nothing is lost */
            st = err->status = OB_DOWN;
        if (st == OB_OK) {
            tell_events(&r);
            ob_log(s->log, OB_LOG_INFO, "source.released", OB_KI("documents", r.n));
        }
    }
    bson_destroy(r.refs);
    free(r.numbers);
    free(r.hashes);
    return st;
}
