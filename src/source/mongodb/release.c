/* SPDX-License-Identifier: Apache-2.0 */
/* release - a dead document that somebody made pending again, by a plain update, is alive: its dead
 * row is closed, its attempts are 0, and its key waits for it no longer
 * (tests/e2e/test_mongodb_cli.py::test_a_dead_document_is_released_by_a_plain_update). Where later
 * events of its key stand behind it, it is put before them among the parked, under its own number,
 * and not handed out here (tests/e2e/test_mongodb_flow.py).
 *
 * Seen by the look that claims it (pass.c), done before it is handed out. */
#include "source/mongodb/mongo.h"

#include <stdlib.h>

struct release {
    struct ob_source *s;
    struct mongo_page *page;
    int64_t *numbers, *hashes;
    size_t n, cap;
    bson_t *refs; /* an array */
    bson_t *held; /* an array: of those that hold a key, the row that they get */
};

/* The row of an event that others wait for, to be parked. */
static void note_held(struct release *r, const bson_t *doc)
{
    static const char *const copied[] = {"_id", "ref", "hash", "id", "destination", "history"};
    bson_iter_t it;
    bson_t row;
    if (!bson_iter_init_find(&it, doc, "hold") || !bson_iter_as_bool(&it))
        return;
    bson_append_document_begin(r->held, "0", 1, &row);
    for (size_t i = 0; i < sizeof(copied) / sizeof(copied[0]); i++)
        if (bson_iter_init_find(&it, doc, copied[i]))
            bson_append_iter(&row, copied[i], -1, &it);
    BCON_APPEND(&row, "attempts", BCON_INT64(0), "due_at",
                BCON_DATE_TIME(ob_clock_wall_us(r->s->clock) / 1000), "blocked_dest", BCON_INT64(0),
                "reason", "made pending by a person");
    bson_append_document_end(r->held, &row);
}

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
    bson_reinit(r->held);
    bson_init(&filter);
    bson_init(&opts);
    BSON_APPEND_DOCUMENT_BEGIN(&filter, "ref", &in);
    BSON_APPEND_ARRAY_BEGIN(&in, "$in", &list);
    for (size_t i = 0; i < r->page->n; i++)
        bson_append_value(&list, "0", 1, &r->page->ids[i]);
    bson_append_array_end(&in, &list);
    bson_append_document_end(&filter, &in);
    BSON_APPEND_UTF8(&filter, "state", "dead");
    if (session && !mongoc_client_session_append(session, &opts, &e))
        st = ob_mongo_fail(err, "released documents", &e, NULL);
    mongoc_cursor_t *c = mongoc_collection_find_with_opts(coll, &filter, &opts, NULL);
    while (st == OB_OK && r->n < r->cap && mongoc_cursor_next(c, &doc)) {
        r->numbers[r->n] = ob_mongo_i64(doc, "_id", 0);
        r->hashes[r->n++] = ob_mongo_i64(doc, "hash", 0);
        if (bson_iter_init_find(&it, doc, "ref"))
            bson_append_iter(r->refs, "0", 1, &it);
        note_held(r, doc);
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

/* Before those that stand behind them; one that has a row already keeps it. */
static enum ob_status park_held(struct release *r, mongoc_client_session_t *session,
                                struct ob_err *err)
{
    mongoc_collection_t *coll = ob_mongo_coll(r->s, r->s->model->parked);
    bson_error_t e;
    bson_iter_t it, ref;
    enum ob_status st = OB_OK;
    for (bool ok = bson_iter_init(&it, r->held); ok && st == OB_OK && bson_iter_next(&it);) {
        bson_t filter, update, opts, reply, row;
        uint32_t len;
        const uint8_t *data;
        bson_iter_document(&it, &len, &data);
        if (!bson_init_static(&row, data, len) || !bson_iter_init_find(&ref, &row, "ref"))
            continue;
        bson_init(&filter);
        bson_init(&update);
        bson_append_iter(&filter, "ref", -1, &ref);
        BSON_APPEND_DOCUMENT(&update, "$setOnInsert", &row);
        ob_mongo_write_opts(&opts, r->s->conf->timeout_ms, session);
        BSON_APPEND_BOOL(&opts, "upsert", true);
        if (!mongoc_collection_update_one(coll, &filter, &update, &opts, &reply, &e))
            st = ob_mongo_fail(err, "released documents", &e, &reply);
        bson_destroy(&reply);
        bson_destroy(&opts);
        bson_destroy(&filter);
        bson_destroy(&update);
    }
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
        st = park_held(r, session, err);
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

static bool is_held(const struct release *r, const bson_value_t *id)
{
    bson_iter_t it, ref;
    uint64_t want[2], got[2];
    ob_mongo_hash(id, want);
    for (bool ok = bson_iter_init(&it, r->held); ok && bson_iter_next(&it);) {
        if (!bson_iter_recurse(&it, &ref) || !bson_iter_find(&ref, "ref"))
            continue;
        ob_mongo_hash(bson_iter_value(&ref), got);
        if (want[0] == got[0] && want[1] == got[1])
            return true;
    }
    return false;
}

/* They stay locked by us, and come back as parked ones. */
static void leave_held(struct release *r)
{
    struct mongo_page *page = r->page;
    size_t n = 0;
    for (size_t i = 0; i < page->n; i++) {
        if (is_held(r, &page->ids[i])) {
            bson_value_destroy(&page->ids[i]);
            continue;
        }
        page->ids[n] = page->ids[i];
        page->batch->events[n++] = page->batch->events[i];
    }
    page->n = page->batch->n = n;
}

enum ob_status ob_mongo_release(struct ob_source *s, struct mongo_page *page, struct ob_err *err)
{
    struct release r = {.s = s, .page = page, .cap = page->n};
    r.numbers = calloc(r.cap, sizeof(*r.numbers));
    r.hashes = calloc(r.cap, sizeof(*r.hashes));
    r.refs = bson_new();
    r.held = bson_new();
    enum ob_status st =
        r.numbers && r.hashes ? find(&r, NULL, err) : ob_err_set(err, OB_DOWN, "no memory");
    if (st == OB_OK && r.n > 0) {
        struct mongo_txn t = {.client = s->client,
                              .session = s->session,
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
            leave_held(&r);
            ob_log(s->log, OB_LOG_INFO, "source.released", OB_KI("documents", r.n));
        }
    }
    bson_destroy(r.refs);
    bson_destroy(r.held);
    free(r.numbers);
    free(r.hashes);
    return st;
}
