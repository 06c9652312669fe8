/* SPDX-License-Identifier: Apache-2.0 */
/* admin_dead - dead events: listed, retried, discarded. A retried one goes back among the parked
 * with its own number, and its document is pending with no attempt spent, so that within a key the
 * order stays what it was
 * (tests/e2e/test_mongodb_cli.py::test_dead_retry_keeps_the_order_of_a_key).
 *
 * Many are done by the thousand, lowest numbers first, each thousand in a transaction of its own:
 * one for all would keep the relay from its lease document for as long as it takes. */
#include "event/bson_json.h"
#include "source/mongodb/admin.h"

#include <inttypes.h>
#include <stdlib.h>

#define CHUNK 1000

static void where(const struct ob_filter *f, bson_t *filter)
{
    BSON_APPEND_UTF8(filter, "state", "dead");
    if (f->id)
        ob_mongo_id(filter, "id", f->id);
    if (f->type)
        ob_mongo_glob(filter, "type", f->type);
    if (f->key)
        ob_mongo_glob(filter, "key", f->key);
    if (f->tenant)
        ob_mongo_glob(filter, "tenant", f->tenant);
    if (f->reason)
        ob_mongo_glob(filter, "error", f->reason);
    ob_mongo_since(filter, "at", f->since_us, f->until_us);
    if (f->dlt)
        BSON_APPEND_BOOL(filter, "dlt", true);
    if (f->n_not_to > 0) {
        bson_t in, list;
        BSON_APPEND_DOCUMENT_BEGIN(filter, "destination", &in);
        BSON_APPEND_ARRAY_BEGIN(&in, "$nin", &list);
        for (size_t i = 0; i < f->n_not_to; i++) {
            const char *at;
            char text[16];
            size_t len = bson_uint32_to_string((uint32_t)i, &at, text, sizeof(text));
            bson_append_utf8(&list, at, (int)len, f->not_to[i], -1);
        }
        bson_append_array_end(&in, &list);
        bson_append_document_end(filter, &in);
    }
}

/* ---- listing ---- */

static struct ob_str text_in(const bson_t *doc, const char *field)
{
    bson_iter_t it;
    uint32_t n = 0;
    if (!bson_iter_init_find(&it, doc, field) || !BSON_ITER_HOLDS_UTF8(&it))
        return (struct ob_str){0};
    const char *p = bson_iter_utf8(&it, &n);
    return (struct ob_str){p, n};
}

static enum ob_status show(struct ob_admin *a, const bson_t *doc, bool full, struct ob_arena *arena,
                           struct ob_buf *history, ob_dead_fn *fn, void *user, bool *more,
                           struct ob_err *err)
{
    struct ob_event ev = {0};
    struct ob_bson field;
    struct ob_err ignored;
    bson_iter_t it;
    bool found = false;
    enum ob_status st = OB_OK;
    struct ob_str whole = ob_mongo_raw(doc);
    struct ob_dead d = {.n = ob_mongo_i64(doc, "_id", 0),
                        .id = text_in(doc, "id"),
                        .key = text_in(doc, "key"),
                        .type = text_in(doc, "type"),
                        .destination = text_in(doc, "destination"),
                        .error = text_in(doc, "error"),
                        .attempts = (uint32_t)ob_mongo_i64(doc, "attempts", 0)};
    if (bson_iter_init_find(&it, doc, "at") && BSON_ITER_HOLDS_DATE_TIME(&it))
        d.at_us = bson_iter_date_time(&it) * 1000;
    ob_buf_reset(history);
    if (ob_bson_find(whole, "history", &field, &ignored) == OB_OK &&
        ob_bson_json_value(&field, OB_BSON_PLAIN, history, &ignored) == OB_OK)
        d.history = ob_buf_view(history);
    ob_arena_reset(arena);
    if (full && bson_iter_init_find(&it, doc, "ref"))
        st = ob_mongo_whole(a, bson_iter_value(&it), arena, &ev, &found, err);
    ev.attempts = d.attempts;
    d.event = found ? &ev : NULL;
    if (st == OB_OK)
        *more = fn(user, &d);
    return st;
}

enum ob_status ob_mongo_dead_list(struct ob_admin *a, const struct ob_filter *f, bool full,
                                  ob_dead_fn *fn, void *user, struct ob_err *err)
{
    struct ob_arena *arena = ob_arena_new(4096, 0);
    struct ob_buf history;
    bson_t filter, *opts = BCON_NEW("sort", "{", "_id", BCON_INT32(1), "}");
    const bson_t *doc;
    bool more = true;
    enum ob_status st = arena ? ob_mongo_admin_need(a, err) : ob_err_set(err, OB_DOWN, "no memory");
    ob_buf_init(&history, 1 << 24);
    bson_init(&filter);
    where(f, &filter);
    if (f->after)
        BCON_APPEND(&filter, "_id", "{", "$gt", BCON_INT64((int64_t)f->after), "}");
    if (f->limit)
        BSON_APPEND_INT64(opts, "limit", (int64_t)f->limit);
    if (st == OB_OK) {
        mongoc_collection_t *coll = ob_mongo_admin_coll(a, a->model->dead);
        mongoc_cursor_t *c = mongoc_collection_find_with_opts(coll, &filter, opts, NULL);
        while (st == OB_OK && more && mongoc_cursor_next(c, &doc))
            st = show(a, doc, full, arena, &history, fn, user, &more, err);
        enum ob_status end = ob_mongo_cursor_end(c, "dead events", err);
        st = st == OB_OK ? end : st;
        mongoc_collection_destroy(coll);
    }
    bson_destroy(&filter);
    bson_destroy(opts);
    ob_buf_clear(&history);
    ob_arena_unref(arena);
    return st;
}

/* ---- doing ---- */

/* One transaction of it. */
struct act {
    struct ob_admin *a;
    const struct ob_filter *f;
    enum ob_dead_action action;
    size_t max, n;
    int64_t after; /* numbers up to this one are done */
    int64_t last;
    bson_t *rows[CHUNK];
    int64_t hashes[CHUNK];
};

static void act_reset(struct act *x)
{
    for (size_t i = 0; i < x->n; i++)
        bson_destroy(x->rows[i]);
    x->n = 0;
}

static enum ob_status find(struct act *x, mongoc_client_session_t *session, struct ob_err *err)
{
    mongoc_collection_t *coll = ob_mongo_admin_coll(x->a, x->a->model->dead);
    bson_t filter, opts;
    bson_error_t e;
    const bson_t *doc;
    enum ob_status st = OB_OK;
    bson_init(&filter);
    bson_init(&opts);
    where(x->f, &filter);
    BCON_APPEND(&filter, "_id", "{", "$gt", BCON_INT64(x->after), "}");
    BCON_APPEND(&opts, "sort", "{", "_id", BCON_INT32(1), "}", "limit",
                BCON_INT64((int64_t)x->max));
    if (!mongoc_client_session_append(session, &opts, &e))
        st = ob_mongo_fail(err, "dead events", &e, NULL);
    mongoc_cursor_t *c = mongoc_collection_find_with_opts(coll, &filter, &opts, NULL);
    while (st == OB_OK && x->n < x->max && mongoc_cursor_next(c, &doc)) {
        x->last = ob_mongo_i64(doc, "_id", 0);
        x->hashes[x->n] = ob_mongo_i64(doc, "hash", 0);
        x->rows[x->n++] = bson_copy(doc);
    }
    enum ob_status end = ob_mongo_cursor_end(c, "dead events", err);
    bson_destroy(&filter);
    bson_destroy(&opts);
    mongoc_collection_destroy(coll);
    return st == OB_OK ? end : st;
}

static enum ob_status run_bulk(mongoc_bulk_operation_t *bulk, mongoc_collection_t *coll,
                               struct ob_err *err)
{
    bson_t reply;
    bson_error_t e;
    enum ob_status st = OB_OK;
    if (!mongoc_bulk_operation_execute(bulk, &reply, &e))
        st = ob_mongo_fail(err, "dead events", &e, &reply);
    bson_destroy(&reply);
    mongoc_bulk_operation_destroy(bulk);
    mongoc_collection_destroy(coll);
    return st;
}

static mongoc_bulk_operation_t *bulk_on(struct act *x, const char *name,
                                        mongoc_client_session_t *session,
                                        mongoc_collection_t **coll)
{
    bson_t opts;
    *coll = ob_mongo_admin_coll(x->a, name);
    ob_mongo_write_opts(&opts, x->a->conf->timeout_ms, session);
    mongoc_bulk_operation_t *bulk = mongoc_collection_create_bulk_operation_with_opts(*coll, &opts);
    bson_destroy(&opts);
    return bulk;
}

static enum ob_status close_rows(struct act *x, mongoc_client_session_t *session,
                                 struct ob_err *err)
{
    mongoc_collection_t *coll;
    mongoc_bulk_operation_t *bulk = bulk_on(x, x->a->model->dead, session, &coll);
    bson_t filter, in, list,
        *update = BCON_NEW("$set", "{", "state",
                           BCON_UTF8(x->action == OB_DEAD_RETRY ? "retried" : "discarded"), "hold",
                           BCON_BOOL(false), "}");
    bson_init(&filter);
    BSON_APPEND_DOCUMENT_BEGIN(&filter, "_id", &in);
    BSON_APPEND_ARRAY_BEGIN(&in, "$in", &list);
    for (size_t i = 0; i < x->n; i++)
        bson_append_int64(&list, "0", 1, ob_mongo_i64(x->rows[i], "_id", 0));
    bson_append_array_end(&in, &list);
    bson_append_document_end(&filter, &in);
    mongoc_bulk_operation_update_many_with_opts(bulk, &filter, update, NULL, NULL);
    bson_destroy(&filter);
    bson_destroy(update);
    return run_bulk(bulk, coll, err);
}

/* Among the parked, due now. One that is there already keeps its row. */
static enum ob_status park_rows(struct act *x, mongoc_client_session_t *session, struct ob_err *err)
{
    mongoc_collection_t *coll;
    mongoc_bulk_operation_t *bulk = bulk_on(x, x->a->model->parked, session, &coll);
    bson_t *upsert = BCON_NEW("upsert", BCON_BOOL(true));
    for (size_t i = 0; i < x->n; i++) {
        static const char *const copied[] = {"_id", "hash", "id", "history", "destination"};
        bson_t filter, update, set;
        bson_iter_t it;
        bson_init(&filter);
        bson_init(&update);
        if (bson_iter_init_find(&it, x->rows[i], "ref"))
            bson_append_iter(&filter, "ref", -1, &it);
        BSON_APPEND_DOCUMENT_BEGIN(&update, "$setOnInsert", &set);
        for (size_t k = 0; k < sizeof(copied) / sizeof(copied[0]); k++)
            if (bson_iter_init_find(&it, x->rows[i], copied[k]))
                bson_append_iter(&set, copied[k], -1, &it);
        BCON_APPEND(&set, "attempts", BCON_INT64(0), "due_at",
                    BCON_DATE_TIME(ob_clock_wall_us(x->a->clock) / 1000), "blocked_dest",
                    BCON_INT64(0), "reason", "retried by a person");
        bson_append_document_end(&update, &set);
        mongoc_bulk_operation_update_one_with_opts(bulk, &filter, &update, upsert, NULL);
        bson_destroy(&filter);
        bson_destroy(&update);
    }
    bson_destroy(upsert);
    return run_bulk(bulk, coll, err);
}

/* The documents show it: pending, and no attempt spent. */
static enum ob_status release(struct act *x, mongoc_client_session_t *session, struct ob_err *err)
{
    const struct mongo_model *m = x->a->model;
    mongoc_collection_t *coll = ob_mongo_admin_coll(x->a, m->events);
    bson_t filter, in, list, update, stage, set, *status;
    bson_init(&filter);
    BSON_APPEND_DOCUMENT_BEGIN(&filter, "_id", &in);
    BSON_APPEND_ARRAY_BEGIN(&in, "$in", &list);
    for (size_t i = 0; i < x->n; i++) {
        bson_iter_t it;
        if (bson_iter_init_find(&it, x->rows[i], "ref"))
            bson_append_iter(&list, "0", 1, &it);
    }
    bson_append_array_end(&in, &list);
    bson_append_document_end(&filter, &in);
    BCON_APPEND(&filter, m->f[OB_MAP_STATUS], "{", "$in", "[", BCON_UTF8(m->failed),
                BCON_UTF8(m->conf->on_permanent == OB_MAP_MARK_PROCESSED ? m->done : m->failed),
                "]", "}");
    bson_init(&update);
    BSON_APPEND_DOCUMENT_BEGIN(&update, "0", &stage);
    BSON_APPEND_DOCUMENT_BEGIN(&stage, "$set", &set);
    status = BCON_NEW("$literal", BCON_UTF8(m->pending));
    BSON_APPEND_DOCUMENT(&set, m->f[OB_MAP_STATUS], status);
    if (m->f[OB_MAP_ATTEMPTS])
        BSON_APPEND_INT32(&set, m->f[OB_MAP_ATTEMPTS], 0);
    BSON_APPEND_NULL(&set, m->f[OB_MAP_LOCKED_BY]);
    BSON_APPEND_NULL(&set, m->f[OB_MAP_LOCKED_UNTIL]);
    bson_append_document_end(&stage, &set);
    bson_append_document_end(&update, &stage);
    enum ob_status st = ob_mongo_update_many(coll, &filter, &update, x->a->conf->timeout_ms,
                                             session, NULL, "releasing documents", err);
    bson_destroy(status);
    bson_destroy(&update);
    bson_destroy(&filter);
    mongoc_collection_destroy(coll);
    return st;
}

static enum ob_status run(void *user, mongoc_client_session_t *session, int64_t first,
                          struct ob_err *err)
{
    struct act *x = user;
    size_t released = 0;
    (void)first;
    act_reset(x);
    enum ob_status st = find(x, session, err);
    if (st != OB_OK || x->n == 0)
        return st;
    st = close_rows(x, session, err);
    if (st == OB_OK && x->action == OB_DEAD_RETRY)
        st = park_rows(x, session, err);
    if (st == OB_OK && x->action == OB_DEAD_RETRY)
        st = release(x, session, err);
    if (st == OB_OK)
        st = ob_mongo_rekey(x->a->client, x->a->conf->database, x->a->model, x->a->conf->timeout_ms,
                            session, x->hashes, x->n, NULL, 0, &released, err);
    return st;
}

static enum ob_status count(struct ob_admin *a, const struct ob_filter *f, size_t *n,
                            struct ob_err *err)
{
    mongoc_collection_t *coll = ob_mongo_admin_coll(a, a->model->dead);
    bson_t filter, opts;
    bson_error_t e;
    bson_init(&filter);
    bson_init(&opts);
    where(f, &filter);
    if (f->limit)
        BSON_APPEND_INT64(&opts, "limit", (int64_t)f->limit);
    int64_t found = mongoc_collection_count_documents(coll, &filter, &opts, NULL, NULL, &e);
    bson_destroy(&filter);
    bson_destroy(&opts);
    mongoc_collection_destroy(coll);
    if (found < 0)
        return ob_mongo_fail(err, "dead events", &e, NULL);
    *n = (size_t)found;
    return OB_OK;
}

static enum ob_status act_chunks(struct ob_admin *a, mongoc_client_session_t *session,
                                 enum ob_dead_action action, const struct ob_filter *f,
                                 size_t found, size_t *n, struct ob_err *err)
{
    struct act *x = calloc(1, sizeof(*x));
    enum ob_status st = x ? OB_OK : ob_err_set(err, OB_DOWN, "no memory");
    size_t done = 0;
    for (bool more = true; st == OB_OK && more && done < found;) {
        *x = (struct act){.a = a, .f = f, .action = action, .after = x->last, .last = x->last};
        x->max = found - done < CHUNK ? found - done : CHUNK;
        struct mongo_txn t = {.client = a->client,
                              .session = session,
                              .conf = a->conf,
                              .model = a->model,
                              .clock = &ob_clock_system,
                              .epoch = -1,
                              .run = run,
                              .user = x};
        st = ob_mongo_transaction(&t, err);
        more = st == OB_OK && x->n == x->max;
        done += st == OB_OK ? x->n : 0;
        act_reset(x);
    }
    free(x);
    *n = done;
    return st;
}

/* The session is named in the lease document: a relay ends it if this process is killed in the
 * middle of a transaction. */
static enum ob_status act(struct ob_admin *a, enum ob_dead_action action, const struct ob_filter *f,
                          size_t found, size_t *n, struct ob_err *err)
{
    mongoc_client_session_t *session = ob_mongo_session_new(a->client, a->conf->timeout_ms, err);
    struct ob_err ignored;
    bson_t name;
    if (!session)
        return OB_DOWN;
    enum ob_status st = ob_mongo_session_name(a->client, a->conf->database, session, &name, err);
    if (st == OB_OK)
        st = ob_mongo_lease_admin(a->client, a->conf, a->model, &name, true, err);
    if (st == OB_OK) {
        st = act_chunks(a, session, action, f, found, n, err);
        if (ob_mongo_lease_admin(a->client, a->conf, a->model, &name, false, &ignored) != OB_OK)
            (void)ignored; /* a name without a session does no harm */
    }
    bson_destroy(&name);
    mongoc_client_session_destroy(session);
    return st;
}

enum ob_status ob_mongo_dead_do(struct ob_admin *a, enum ob_dead_action action,
                                const struct ob_filter *f, bool dry, size_t *n, struct ob_err *err)
{
    size_t found = 0;
    enum ob_status st = ob_mongo_admin_need(a, err);
    if (st == OB_OK)
        st = count(a, f, &found, err);
    if (st == OB_OK && !dry && found > 0)
        st = act(a, action, f, found, &found, err);
    if (st == OB_OK)
        *n = found;
    return st;
}

enum ob_status ob_mongo_dlt_done(struct ob_admin *a, const int64_t *numbers, size_t n,
                                 struct ob_err *err)
{
    mongoc_collection_t *coll = ob_mongo_admin_coll(a, a->model->dead);
    bson_t filter, in, list, opts, *update = BCON_NEW("$set", "{", "dlt", BCON_BOOL(false), "}");
    bson_error_t e;
    enum ob_status st = ob_mongo_admin_need(a, err);
    ob_mongo_write_opts(&opts, a->conf->timeout_ms, NULL);
    bson_init(&filter);
    BSON_APPEND_DOCUMENT_BEGIN(&filter, "_id", &in);
    BSON_APPEND_ARRAY_BEGIN(&in, "$in", &list);
    for (size_t i = 0; i < n; i++)
        bson_append_int64(&list, "0", 1, numbers[i]);
    bson_append_array_end(&in, &list);
    bson_append_document_end(&filter, &in);
    if (st == OB_OK && !mongoc_collection_update_many(coll, &filter, update, &opts, NULL, &e))
        st = ob_mongo_fail(err, "dead letters", &e, NULL);
    bson_destroy(&filter);
    bson_destroy(&opts);
    bson_destroy(update);
    mongoc_collection_destroy(coll);
    return st;
}
