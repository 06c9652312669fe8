/* SPDX-License-Identifier: Apache-2.0 */
/* pass - one look for work, in one snapshot that a majority has: a page of documents by creation
 * gives the entities; a second query brings every open document of these, lowest version first;
 * of each entity those are claimed that stand before the first that cannot be claimed now. So an
 * event never overtakes one that waits, is locked by others or stands among the parked
 * (tests/e2e/test_mongodb_rows.py::test_nothing_is_claimed_behind_one_that_waits), and a write that
 * can still be rolled back is not seen (tests/e2e/test_mongodb_rollback.py).
 *
 * The page (pass_page.c) goes on until something can be claimed: documents that wait hide nothing.
 *
 * Where the change stream has named the entities of what was written there is no page: the second
 * query is the same, so the order is as safe, and a round trip is saved. */
#include "source/mongodb/pass.h"

#include <stdlib.h>

#define SLICE 128                     /* entities of the first query */
#define PER_ENTITY 1000               /* documents of one entity in one look */
#define DOCS_MAX 16                   /* documents of one slice, in pages: memory has a bound … */
#define DOCS_BYTES ((size_t)16 << 20) /* of their ids */
#define DOCS_WANTED 4                 /* … and what is read a reason */

/* ---- documents ---- */

void ob_mongo_list_clear(struct mongo_list *l)
{
    for (size_t i = 0; i < l->n; i++) {
        bson_value_destroy(&l->at[i].id);
        bson_value_destroy(&l->at[i].entity);
    }
    l->n = l->bytes = 0;
}

size_t ob_mongo_value_bytes(const bson_value_t *v)
{
    switch (v->value_type) {
    case BSON_TYPE_UTF8:
        return v->value.v_utf8.len;
    case BSON_TYPE_BINARY:
        return v->value.v_binary.data_len;
    case BSON_TYPE_DOCUMENT:
    case BSON_TYPE_ARRAY:
        return v->value.v_doc.data_len;
    default:
        return 0;
    }
}

static void list_free(struct mongo_list *l)
{
    ob_mongo_list_clear(l);
    free(l->at);
}

struct mongo_candidate *ob_mongo_list_new(struct mongo_list *l)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 256;
        struct mongo_candidate *more = realloc(l->at, cap * sizeof(*more));
        if (!more)
            return NULL;
        l->at = more;
        l->cap = cap;
    }
    l->at[l->n] = (struct mongo_candidate){0};
    return &l->at[l->n++];
}

static bool is_true(bson_iter_t *it)
{
    return BSON_ITER_HOLDS_BOOL(it) && bson_iter_bool(it);
}

/* From a document of the projection `meta`. False: no memory. */
static bool read_meta(const struct mongo_look *k, const bson_t *doc, struct mongo_list *to)
{
    struct mongo_candidate *c = ob_mongo_list_new(to);
    bson_iter_t it;
    bool locked_by_us = false, claimed = false;
    if (!c)
        return false;
    for (bool ok = bson_iter_init(&it, doc); ok && bson_iter_next(&it);) {
        const char *key = bson_iter_key(&it);
        if (strcmp(key, "_id") == 0)
            bson_value_copy(bson_iter_value(&it), &c->id);
        else if (strcmp(key, META_ENTITY) == 0)
            ob_mongo_hash(bson_iter_value(&it), c->entity_hash);
        else if (strcmp(key, META_READY) == 0)
            c->ready = is_true(&it);
        else if (strcmp(key, META_DEAD) == 0)
            c->dead = is_true(&it);
        else if (strcmp(key, META_SIZE) == 0)
            c->size = (size_t)bson_iter_as_int64(&it);
        else if (strcmp(key, META_OWNER) == 0 && BSON_ITER_HOLDS_UTF8(&it))
            locked_by_us = strcmp(bson_iter_utf8(&it, NULL), k->s->owner) == 0;
        else if (strcmp(key, META_STATUS) == 0 && BSON_ITER_HOLDS_UTF8(&it))
            claimed = strcmp(bson_iter_utf8(&it, NULL), k->m->claimed) == 0,
            c->pending = strcmp(bson_iter_utf8(&it, NULL), k->m->pending) == 0;
    }
    c->mine = locked_by_us && claimed;
    ob_mongo_hash(&c->id, c->id_hash);
    to->bytes += ob_mongo_value_bytes(&c->id);
    return true;
}

/* ---- entities ---- */

/* Of a slice of the page, those entities that no query has passed yet. */
static size_t entities_of(const struct mongo_look *k, size_t from, size_t to,
                          const struct mongo_set *done, const bson_value_t **out)
{
    size_t n = 0;
    for (size_t i = from; i < to; i++)
        if (ob_mongo_has_entity(&k->page.at[i]) &&
            !ob_mongo_set_has(done, k->page.at[i].entity_hash, NULL))
            out[n++] = &k->page.at[i].entity;
    return n;
}

/* Documents of a slice that have no entity. */
static enum ob_status read_single(struct mongo_look *k, size_t from, size_t to,
                                  const bson_value_t **ids, struct ob_err *err)
{
    bson_t filter;
    const bson_t *doc;
    size_t n = 0;
    for (size_t i = from; i < to; i++)
        if (!ob_mongo_has_entity(&k->page.at[i]))
            ids[n++] = &k->page.at[i].id;
    if (n == 0)
        return OB_OK;
    bson_init(&filter);
    ob_mongo_in(&filter, "_id", ids, n);
    mongoc_cursor_t *c = ob_mongo_look_find(k, &filter, NULL, k->m->meta, 0);
    enum ob_status st = OB_OK;
    while (st == OB_OK && mongoc_cursor_next(c, &doc)) {
        if (!read_meta(k, doc, &k->docs))
            st = ob_err_set(err, OB_DOWN, "no memory for documents");
        else if (!ob_mongo_set_has(&k->groups, k->docs.at[k->docs.n - 1].id_hash,
                                   &k->docs.at[k->docs.n - 1].group))
            k->docs.at[k->docs.n - 1].ready = false; /* cannot be: it was asked for */
    }
    if (st == OB_OK)
        st = ob_mongo_cursor(c, "looking for documents", err);
    mongoc_cursor_destroy(c);
    bson_destroy(&filter);
    return st;
}

static size_t docs_max(const struct mongo_look *k)
{
    return PER_ENTITY + DOCS_MAX * k->p->max;
}

/* One query over these entities. It stops early when one of them has too many documents: *again,
 * or all have: k->crowded. Entities that it has passed are put into `done`. */
static enum ob_status read_entities(struct mongo_look *k, const bson_value_t *const *entities,
                                    size_t n, struct mongo_set *done, bool *again,
                                    struct ob_err *err)
{
    bson_t filter;
    const bson_t *doc;
    uint64_t at[2] = {0, 0};
    size_t in_entity = 0;
    enum ob_status st = OB_OK;
    *again = false;
    bson_init(&filter);
    ob_mongo_in(&filter, k->m->entity, entities, n);
    bson_concat(&filter, k->m->q_open);
    mongoc_cursor_t *c = ob_mongo_look_find(k, &filter, k->m->sort_order, k->m->meta, 0);
    while (st == OB_OK && !*again && !k->crowded && mongoc_cursor_next(c, &doc)) {
        if (!read_meta(k, doc, &k->docs)) {
            st = ob_err_set(err, OB_DOWN, "no memory for documents");
            break;
        }
        struct mongo_candidate *d = &k->docs.at[k->docs.n - 1];
        if (memcmp(at, d->entity_hash, sizeof(at)) != 0) {
            memcpy(at, d->entity_hash, sizeof(at));
            in_entity = 0;
            if (ob_mongo_set_add(done, at, 0) < 0)
                st = ob_err_set(err, OB_DOWN, "no memory for documents");
        }
        if (!ob_mongo_set_has(&k->groups, d->entity_hash, &d->group))
            d->group = 0; /* cannot be: it was asked for */
        *again = ++in_entity >= PER_ENTITY + k->p->max;
        k->crowded = n > 1 && (k->docs.n >= docs_max(k) || k->docs.bytes > DOCS_BYTES);
    }
    if (st == OB_OK)
        st = ob_mongo_cursor(c, "looking for the documents of entities", err);
    mongoc_cursor_destroy(c);
    bson_destroy(&filter);
    return st;
}

static enum ob_status read_slice(struct mongo_look *k, size_t from, size_t to, struct ob_err *err)
{
    struct mongo_set done = {0};
    bool again = true;
    const bson_value_t **values = calloc(to - from + 1, sizeof(*values));
    enum ob_status st = values ? OB_OK : ob_err_set(err, OB_DOWN, "no memory for a page");
    ob_mongo_list_clear(&k->docs);
    k->crowded = false;
    while (st == OB_OK && again && !k->crowded) {
        size_t n = entities_of(k, from, to, &done, values);
        again = false;
        if (n > 0)
            st = read_entities(k, values, n, &done, &again, err);
    }
    if (st == OB_OK && !k->crowded)
        st = read_single(k, from, to, values, err);
    ob_mongo_set_clear(&done);
    free(values);
    return st;
}

/* Parked rows of these documents, and dead ones: {ref} and {ref, state}. */
static mongoc_cursor_t *rows_aside(const struct mongo_look *k, const bson_value_t *const *ids,
                                   size_t n)
{
    bson_t pipeline = BSON_INITIALIZER, opts = BSON_INITIALIZER, list, stage, match, with, inner;
    bson_error_t e;
    BSON_APPEND_ARRAY_BEGIN(&pipeline, "pipeline", &list);
    BSON_APPEND_DOCUMENT_BEGIN(&list, "0", &stage);
    BSON_APPEND_DOCUMENT_BEGIN(&stage, "$match", &match);
    ob_mongo_in(&match, "ref", ids, n);
    bson_append_document_end(&stage, &match);
    bson_append_document_end(&list, &stage);
    BSON_APPEND_DOCUMENT_BEGIN(&list, "1", &stage);
    BCON_APPEND(&stage, "$project", "{", "ref", BCON_INT32(1), "}");
    bson_append_document_end(&list, &stage);
    BSON_APPEND_DOCUMENT_BEGIN(&list, "2", &stage);
    BSON_APPEND_DOCUMENT_BEGIN(&stage, "$unionWith", &with);
    BSON_APPEND_UTF8(&with, "coll", k->m->dead);
    BSON_APPEND_ARRAY_BEGIN(&with, "pipeline", &inner);
    bson_t first, wanted;
    BSON_APPEND_DOCUMENT_BEGIN(&inner, "0", &first);
    BSON_APPEND_DOCUMENT_BEGIN(&first, "$match", &wanted);
    ob_mongo_in(&wanted, "ref", ids, n);
    BSON_APPEND_UTF8(&wanted, "state", "dead");
    bson_append_document_end(&first, &wanted);
    bson_append_document_end(&inner, &first);
    BSON_APPEND_DOCUMENT_BEGIN(&inner, "1", &first);
    BCON_APPEND(&first, "$project", "{", "ref", BCON_INT32(1), "state", BCON_INT32(1), "}");
    bson_append_document_end(&inner, &first);
    bson_append_array_end(&with, &inner);
    bson_append_document_end(&stage, &with);
    bson_append_document_end(&list, &stage);
    bson_append_array_end(&pipeline, &list);
    BSON_APPEND_INT32(&opts, "batchSize", 1000);
    if (!mongoc_client_session_append(k->session, &opts, &e))
        bson_reinit(&opts);
    mongoc_cursor_t *c =
        mongoc_collection_aggregate(k->parked, MONGOC_QUERY_NONE, &pipeline, &opts, NULL);
    bson_destroy(&pipeline);
    bson_destroy(&opts);
    return c;
}

/* Which of them stand among the parked, and which were dead? */
static enum ob_status find_aside(struct mongo_look *k, struct ob_err *err)
{
    if (!atomic_load(&k->s->side) || k->docs.n == 0)
        return OB_OK;
    const bson_value_t **ids = calloc(k->docs.n, sizeof(*ids));
    struct mongo_set places = {0};
    const bson_t *doc;
    bson_iter_t it;
    enum ob_status st = ids ? OB_OK : ob_err_set(err, OB_DOWN, "no memory for a page");
    for (size_t i = 0; st == OB_OK && i < k->docs.n; i++) {
        ids[i] = &k->docs.at[i].id;
        if (ob_mongo_set_add(&places, k->docs.at[i].id_hash, (uint32_t)i) < 0)
            st = ob_err_set(err, OB_DOWN, "no memory for a page");
    }
    if (st == OB_OK) {
        mongoc_cursor_t *c = rows_aside(k, ids, k->docs.n);
        while (mongoc_cursor_next(c, &doc)) {
            uint64_t h[2];
            uint32_t place;
            if (!bson_iter_init_find(&it, doc, "ref"))
                continue;
            ob_mongo_hash(bson_iter_value(&it), h);
            if (!ob_mongo_set_has(&places, h, &place))
                continue;
            if (bson_has_field(doc, "state"))
                k->docs.at[place].was_dead = true;
            else
                k->docs.at[place].parked = true;
        }
        st = ob_mongo_cursor(c, "looking for parked documents", err);
        mongoc_cursor_destroy(c);
    }
    ob_mongo_set_clear(&places);
    free(ids);
    return st;
}

/* By entity in the order of the page; within one as the server sorted them. */
static int by_group(const void *a, const void *b)
{
    const struct mongo_candidate *x = a, *y = b;
    if (x->group != y->group)
        return x->group < y->group ? -1 : 1;
    return x->place < y->place ? -1 : x->place > y->place;
}

static bool move(struct mongo_candidate *d, struct mongo_list *to)
{
    struct mongo_candidate *t = ob_mongo_list_new(to);
    if (t) {
        *t = *d;
        d->id.value_type = d->entity.value_type = BSON_TYPE_NULL; /* moved */
    }
    return t != NULL;
}

/* Of each entity those before the first that cannot be claimed now. */
static enum ob_status choose(struct mongo_look *k, struct ob_err *err)
{
    uint32_t shut = UINT32_MAX;
    for (size_t i = 0; i < k->docs.n; i++)
        k->docs.at[i].place = (uint32_t)i;
    if (k->docs.n > 0)
        qsort(k->docs.at, k->docs.n, sizeof(*k->docs.at), by_group);
    for (size_t i = 0; i < k->docs.n && k->take.n < k->p->max; i++) {
        struct mongo_candidate *d = &k->docs.at[i];
        if (d->group == shut || d->dead)
            continue;
        if ((!d->parked && (d->mine || d->pending) && ob_mongo_ours_has(&k->s->ours, d->id_hash)) ||
            ob_mongo_set_has(k->p->refused, d->id_hash, NULL))
            continue; /* in the window: the flow keeps the order */
        if (!d->ready || d->parked) {
            shut = d->group;
            if (d->mine && !d->parked && !move(d, &k->stray))
                return ob_err_set(err, OB_DOWN, "no memory for a page");
            continue;
        }
        k->bytes += d->size;
        k->full = k->take.n > 0 && k->bytes > k->p->max_bytes;
        if (k->full)
            break;
        k->plain = k->plain && d->pending;
        if (!move(d, &k->take))
            return ob_err_set(err, OB_DOWN, "no memory for a page");
    }
    k->full = k->full || k->take.n >= k->p->max;
    return OB_OK;
}

/* How many entities the next query asks for, after one over n that gave `got`: about as many as it
 * takes to have enough documents, and fewer where each has many. */
static size_t next_slice(const struct mongo_look *k, size_t n, size_t got)
{
    size_t each = (got + n - 1) / n, docs = (k->docs.n + n - 1) / n, max = k->p->max;
    size_t enough = max / (each ? each : 1) + SLICE / 4;
    size_t most = DOCS_WANTED * max / (docs ? docs : 1) + 1;
    return enough < most ? enough : most;
}

/* The page's entities, a slice at a time. */
static enum ob_status take_page(struct mongo_look *k, struct ob_err *err)
{
    enum ob_status st = OB_OK;
    size_t slice = k->p->slice ? k->p->slice : SLICE;
    for (size_t from = 0; st == OB_OK && from < k->page.n && !k->full;) {
        size_t had = k->take.n, n = k->page.n - from < slice ? k->page.n - from : slice;
        st = read_slice(k, from, from + n, err);
        if (st == OB_OK && k->crowded) { /* once more, with fewer */
            k->p->slice = slice = n / 8 + 1;
            continue;
        }
        if (st == OB_OK)
            st = find_aside(k, err);
        if (st == OB_OK)
            st = choose(k, err);
        k->p->slice = slice = next_slice(k, n, k->take.n - had);
        from += n;
    }
    return st;
}

/* ---- all of it ---- */

/* From k->p->place on, or from the first one. */
static enum ob_status pages(struct mongo_look *k, struct ob_err *err)
{
    enum ob_status st = OB_OK;
    mongoc_cursor_t *cursor = ob_mongo_page_open(k);
    while (st == OB_OK && k->take.n == 0) {
        st = ob_mongo_page_next(k, cursor, err);
        if (st == OB_OK && k->page.n > 0)
            st = take_page(k, err);
        if (k->page_over || k->enough)
            break;
    }
    mongoc_cursor_destroy(cursor);
    return st;
}

static enum ob_status look_through(struct mongo_look *k, struct ob_err *err)
{
    enum ob_status st = OB_OK;
    if (k->p->n_entities > 0) {
        st = ob_mongo_page_named(k, err);
        if (st == OB_OK)
            st = take_page(k, err);
        k->p->more = k->full;
        return st;
    }
    bool from_place = ob_mongo_page_placed(k);
    st = pages(k, err);
    if (st == OB_OK && from_place && k->page_over && k->take.n == 0 &&
        k->p->kind == MONGO_PENDING) { /* what stands before the place was not looked at */
        ob_mongo_place_clear(k->p->place);
        st = pages(k, err);
    }
    if (st == OB_OK)
        ob_mongo_page_keep(k);
    k->p->more = k->full || (k->take.n > 0 && !k->page_over);
    return st;
}

enum ob_status ob_mongo_pass(struct mongo_pass *p, struct mongo_page **out, struct ob_err *err)
{
    const char *db = p->s->conf->database;
    struct mongo_look k = {.p = p, .s = p->s, .m = p->s->model, .plain = true};
    mongoc_session_opt_t *opts = mongoc_session_opts_new();
    bson_error_t e;
    enum ob_status st = OB_OK;
    mongoc_session_opts_set_snapshot(opts, true);
    k.session = mongoc_client_start_session(p->client, opts, &e);
    mongoc_session_opts_destroy(opts);
    if (!k.session)
        return ob_mongo_fail(err, "a session", &e, NULL);
    k.events = mongoc_client_get_collection(p->client, db, k.m->events);
    k.parked = mongoc_client_get_collection(p->client, db, k.m->parked);
    p->more = p->partly = false;
    st = look_through(&k, err);
    mongoc_client_session_destroy(k.session);
    if (st == OB_OK)
        st = ob_mongo_strays(&k, err);
    if (st == OB_OK)
        st = k.take.n > 0 ? ob_mongo_claim(&k, out, err) : OB_AGAIN;
    if (st != OB_OK)
        p->more = false;
    bson_value_destroy(&k.at);
    bson_value_destroy(&k.page_at);
    list_free(&k.page);
    list_free(&k.docs);
    list_free(&k.take);
    list_free(&k.stray);
    ob_mongo_set_clear(&k.seen);
    ob_mongo_set_clear(&k.groups);
    mongoc_collection_destroy(k.events);
    mongoc_collection_destroy(k.parked);
    return st;
}
