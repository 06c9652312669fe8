/* SPDX-License-Identifier: Apache-2.0 */
/* claim - locking what a look has chosen, with majority. An updateMany by ids that are still
 * claimable; a find by ids and locked_by tells which are ours. Both are of one session, so that the
 * find never sees less than the update did, not even at a new primary. A miss is given back, with
 * what stands behind it: it may be locked all the same. One document alone is locked and read by
 * one findAndModify: what it returns is committed by the same majority. */
#include "source/mongodb/pass.h"

#include <stdlib.h>

#define ALONE_MAX ((size_t)1 << 20) /* bytes: larger ones may not have room for their lock */

static bool lease_over(const struct mongo_look *k)
{
    return ob_clock_mono_ms(k->s->clock) >= atomic_load(&k->s->lease_until);
}

static enum ob_status lock_all(struct mongo_look *k, const bson_value_t *const *ids, size_t n,
                               struct ob_err *err)
{
    bson_t filter;
    bson_init(&filter);
    ob_mongo_in(&filter, "_id", ids, n);
    bson_concat(&filter, k->plain ? k->m->q_pending : k->m->q_ready);
    enum ob_status st =
        ob_mongo_update_many(k->events, &filter, k->m->u_claim, k->s->conf->timeout_ms, k->session,
                             NULL, "claiming", err);
    bson_destroy(&filter);
    return st;
}

/* One of them is so large that its lock does not fit: each by itself. Those that cannot be locked
 * are handed out as events that cannot be delivered, and die with that reason. */
static enum ob_status lock_each(struct mongo_look *k, const bson_value_t *const *ids, size_t n,
                                bool *refused, struct ob_err *err)
{
    enum ob_status st = OB_OK;
    for (size_t i = 0; st == OB_OK && i < n; i++) {
        st = lock_all(k, &ids[i], 1, err);
        refused[i] = st == OB_REJECT;
        if (st == OB_REJECT)
            st = ob_mongo_set_add(k->p->refused, k->take.at[i].id_hash, 0) < 0
                     ? ob_err_set(err, OB_DOWN, "no memory")
                     : OB_OK;
    }
    return st;
}

static bool note_event(struct mongo_look *k, const bson_t *doc, const struct mongo_set *places,
                       struct ob_batch *batch, bool *ours, struct ob_err *err)
{
    bson_iter_t it;
    uint64_t h[2];
    uint32_t place;
    if (!bson_iter_init_find(&it, doc, "_id"))
        return true;
    ob_mongo_hash(bson_iter_value(&it), h);
    if (!ob_mongo_set_has(places, h, &place))
        return true;
    if (!ob_mongo_event(k->m, k->s->conf->payload_json, doc, batch->arena, &batch->events[place])) {
        *k->p->no_memory = k->take.n > 1;
        if (k->take.n > 1 || !ob_mongo_event_too_large(doc, batch->arena, &batch->events[place])) {
            ob_err_set(err, OB_DOWN, "no memory for %zu events", k->take.n);
            return false;
        }
    }
    ours[place] = true;
    return true;
}

static void append_our_name(const struct ob_source *s, bson_t *filter)
{
    BSON_APPEND_UTF8(filter, s->model->f[OB_MAP_STATUS], s->model->claimed);
    BSON_APPEND_UTF8(filter, s->model->f[OB_MAP_LOCKED_BY], s->owner);
}

/* The documents that are ours, as events at the places of k->take. */
static enum ob_status fetch(struct mongo_look *k, const bson_value_t *const *ids,
                            const struct mongo_set *places, struct ob_batch *batch, bool *ours,
                            const bool *refused, struct ob_err *err)
{
    bson_t filter, *opts = BCON_NEW("readConcern", "{", "level", BCON_UTF8("majority"), "}",
                                    "batchSize", BCON_INT32(1000));
    const bson_t *doc;
    bson_error_t e;
    if (!mongoc_client_session_append(k->session, opts, &e)) {
        bson_destroy(opts);
        return ob_mongo_fail(err, "a session", &e, NULL);
    }
    bson_init(&filter);
    ob_mongo_in(&filter, "_id", ids, k->take.n);
    if (!refused) {
        append_our_name(k->s, &filter);
    }
    mongoc_cursor_t *c = mongoc_collection_find_with_opts(k->events, &filter, opts, NULL);
    enum ob_status st = OB_OK;
    while (st == OB_OK && mongoc_cursor_next(c, &doc))
        if (!note_event(k, doc, places, batch, ours, err))
            st = OB_DOWN;
    if (st == OB_OK)
        st = ob_mongo_cursor(c, "reading what was claimed", err);
    for (size_t i = 0; st == OB_OK && refused && i < k->take.n; i++) {
        if (refused[i] && k->take.at[i].was_dead) /* and it has no room to show it */
            ours[i] = false;
        if (refused[i] && ours[i])
            batch->events[i].fault = OB_STR(MONGO_NO_ROOM);
    }
    mongoc_cursor_destroy(c);
    bson_destroy(&filter);
    bson_destroy(opts);
    return st;
}

enum ob_status ob_mongo_claim_back(struct ob_source *s, mongoc_client_t *client,
                                   const bson_value_t *const *ids, size_t n, size_t *given,
                                   struct ob_err *err)
{
    const struct mongo_model *m = s->model;
    bson_t filter;
    if (n == 0)
        return OB_OK;
    mongoc_collection_t *events =
        mongoc_client_get_collection(client, s->conf->database, m->events);
    bson_init(&filter);
    ob_mongo_in(&filter, "_id", ids, n);
    append_our_name(s, &filter);
    enum ob_status st = ob_mongo_update_many(events, &filter, m->u_back, s->conf->timeout_ms, NULL,
                                             given, "giving back", err);
    bson_destroy(&filter);
    mongoc_collection_destroy(events);
    return st;
}

/* Leaves out what is not ours and, of the same entity, what stands behind it. */
static enum ob_status squeeze(struct mongo_look *k, struct mongo_page *page, const bool *ours,
                              struct ob_err *err)
{
    struct ob_batch *batch = page->batch;
    const bson_value_t **back = calloc(k->take.n, sizeof(*back));
    size_t n_back = 0;
    uint32_t shut = UINT32_MAX;
    if (!back)
        return ob_err_set(err, OB_DOWN, "no memory for a page");
    for (size_t i = 0; i < k->take.n; i++) {
        struct mongo_candidate *t = &k->take.at[i];
        if (!ours[i] || t->group == shut) {
            shut = t->group;
            back[n_back++] = &t->id;
            continue;
        }
        batch->events[batch->n++] = batch->events[i];
        page->ids[page->n++] = t->id;
        page->was_dead = page->was_dead || t->was_dead;
        t->id.value_type = BSON_TYPE_NULL; /* moved */
    }
    enum ob_status st = ob_mongo_claim_back(k->s, k->p->client, back, n_back, NULL, err);
    free(back);
    return st;
}

static void note_unsure(struct mongo_look *k)
{
    bson_t *out = k->p->unsure;
    char text[16];
    bson_reinit(out);
    for (size_t i = 0; i < k->take.n; i++) {
        const char *at;
        size_t len = bson_uint32_to_string((uint32_t)i, &at, text, sizeof(text));
        if (k->take.at[i].id.value_type != BSON_TYPE_NULL)
            bson_append_value(out, at, (int)len, &k->take.at[i].id);
    }
}

/* What is being claimed. */
struct claim {
    struct mongo_look *k;
    struct mongo_page *page;
    const bson_value_t **ids;
    bool *ours, *refused; /* one each per document */
    struct mongo_set places;
};

static enum ob_status prepare(struct claim *c, size_t n, struct ob_err *err)
{
    c->ids = calloc(n, sizeof(*c->ids));
    c->ours = calloc(2 * n, sizeof(*c->ours));
    c->refused = c->ours ? c->ours + n : NULL;
    c->page = calloc(1, sizeof(*c->page));
    if (c->page) {
        c->page->batch = ob_batch_new(n, (size_t)2 << 30);
        c->page->ids = calloc(n, sizeof(*c->page->ids));
    }
    if (!c->ids || !c->ours || !c->page || !c->page->batch || !c->page->ids)
        return ob_err_set(err, OB_DOWN, "no memory for %zu events", n);
    for (size_t i = 0; i < n; i++) {
        c->ids[i] = &c->k->take.at[i].id;
        if (ob_mongo_set_add(&c->places, c->k->take.at[i].id_hash, (uint32_t)i) < 0)
            return ob_err_set(err, OB_DOWN, "no memory for %zu events", n);
    }
    return OB_OK;
}

static enum ob_status lock_many(struct claim *c, struct ob_err *err)
{
    struct mongo_look *k = c->k;
    size_t n = k->take.n;
    bson_error_t e;
    k->session = mongoc_client_start_session(k->p->client, NULL, &e); /* causally consistent */
    if (!k->session)
        return ob_mongo_fail(err, "a session", &e, NULL);
    enum ob_status st = lock_all(k, c->ids, n, err);
    bool each = st == OB_REJECT;
    if (each)
        st = lock_each(k, c->ids, n, c->refused, err);
    if (st == OB_OK)
        st = fetch(k, c->ids, &c->places, c->page->batch, c->ours, each ? c->refused : NULL, err);
    mongoc_client_session_destroy(k->session);
    k->session = NULL;
    return st;
}

static enum ob_status lock_one(struct claim *c, struct ob_err *err)
{
    struct mongo_look *k = c->k;
    bson_t command = BSON_INITIALIZER, query, reply, doc;
    bson_iter_t it;
    BSON_APPEND_UTF8(&command, "findAndModify", k->m->events);
    BSON_APPEND_DOCUMENT_BEGIN(&command, "query", &query);
    BSON_APPEND_VALUE(&query, "_id", c->ids[0]);
    bson_concat(&query, k->plain ? k->m->q_pending : k->m->q_ready);
    bson_append_document_end(&command, &query);
    BSON_APPEND_ARRAY(&command, "update", k->m->u_claim);
    BSON_APPEND_BOOL(&command, "new", true);
    enum ob_status st = ob_mongo_write(k->p->client, k->s->conf->database, &command,
                                       k->s->conf->timeout_ms, NULL, &reply, "claiming", err);
    if (st == OB_OK && bson_iter_init_find(&it, &reply, "value") && BSON_ITER_HOLDS_DOCUMENT(&it)) {
        uint32_t len;
        const uint8_t *data;
        bson_iter_document(&it, &len, &data);
        if (bson_init_static(&doc, data, len) &&
            !note_event(k, &doc, &c->places, c->page->batch, c->ours, err))
            st = OB_DOWN;
    }
    bson_destroy(&reply);
    bson_destroy(&command);
    return st;
}

/* What a claim that failed may have locked stays in the list of unsure ones. */
static void keep_unsure(struct claim *c)
{
    for (size_t i = 0; i < c->page->n; i++) { /* those that were moved out of k->take */
        char text[16];
        const char *at;
        size_t len = bson_uint32_to_string((uint32_t)(c->k->take.n + i), &at, text, sizeof(text));
        bson_append_value(c->k->p->unsure, at, (int)len, &c->page->ids[i]);
    }
}

/* Before anybody can see the page. */
static enum ob_status note_ours(struct claim *c, struct ob_err *err)
{
    c->page->ours = &c->k->s->ours;
    for (size_t i = 0; i < c->page->n; i++)
        if (!ob_mongo_ours_add(c->page->ours, &c->page->ids[i]))
            return ob_err_set(err, OB_DOWN, "no memory for %zu events", c->page->n);
    return OB_OK;
}

static enum ob_status lock(struct claim *c, struct ob_err *err)
{
    struct mongo_look *k = c->k;
    bool alone = k->take.n == 1 && k->take.at[0].size <= ALONE_MAX;
    if (lease_over(k))
        return ob_err_set(err, OB_DOWN, "the lease ran out while work was looked for");
    note_unsure(k); /* until all is well */
    enum ob_status st = alone ? lock_one(c, err) : lock_many(c, err);
    if (st == OB_OK)
        st = squeeze(k, c->page, c->ours, err);
    if (st == OB_OK)
        st = note_ours(c, err);
    if (st == OB_OK && lease_over(k))
        st = ob_err_set(err, OB_DOWN, "the lease ran out while documents were claimed");
    if (st == OB_OK)
        bson_reinit(k->p->unsure);
    else
        keep_unsure(c);
    return st;
}

enum ob_status ob_mongo_claim(struct mongo_look *k, struct mongo_page **out, struct ob_err *err)
{
    struct claim c = {.k = k};
    enum ob_status st = prepare(&c, k->take.n, err);
    if (st == OB_OK)
        st = lock(&c, err);
    if (st == OB_OK && c.page->n == 0)
        st = OB_AGAIN;
    if (st == OB_OK)
        *out = c.page;
    else
        ob_mongo_page_free(c.page);
    ob_mongo_set_clear(&c.places);
    free(c.ids);
    free(c.ours);
    return st;
}

/* ---- strays ---- */

enum ob_status ob_mongo_strays(struct mongo_look *k, struct ob_err *err)
{
    size_t given = 0;
    const bson_value_t **ids = calloc(k->stray.n + 1, sizeof(*ids));
    enum ob_status st = ids ? OB_OK : ob_err_set(err, OB_DOWN, "no memory for a page");
    for (size_t i = 0; ids && i < k->stray.n; i++)
        ids[i] = &k->stray.at[i].id;
    if (st == OB_OK)
        st = ob_mongo_claim_back(k->s, k->p->client, ids, k->stray.n, &given, err);
    if (st == OB_OK && given > 0)
        ob_log(k->s->log, OB_LOG_INFO, "source.taken_back", OB_KI("documents", given));
    free(ids);
    return st;
}
