/* SPDX-License-Identifier: Apache-2.0 */
/* pass_page - where a look (pass.c) finds the entities to look at: documents by creation, page
 * after page, or those that the change stream has named.
 *
 * Many documents may wait: for a back-off, a lock, a destination. A look passes over them and
 * leaves the place behind which the next one begins, so that they are not read again and again; who
 * asks begins at the first one from time to time. Failed and locked documents are read a slice at a
 * time, and those that cannot be claimed are left out here and not by the server: so no query takes
 * longer than a slice, however many are dead or being processed (tests/e2e/test_mongodb_backlog.py,
 * test_mongodb_locks.py). */
#include "source/mongodb/pass.h"

#include <stdlib.h>

#define SEEN_MAX ((size_t)1 << 14)   /* entities of one look that are remembered */
#define PAGE_BYTES ((size_t)4 << 20) /* of ids and entities */
#define SLICE_MAX 2000               /* documents of one look that are failed or locked */

mongoc_cursor_t *ob_mongo_look_find(const struct mongo_look *k, const bson_t *filter,
                                    const bson_t *sort, const bson_t *projection,
                                    int64_t max_time_ms)
{
    bson_t opts;
    bson_error_t e;
    bson_init(&opts);
    if (projection)
        BSON_APPEND_DOCUMENT(&opts, "projection", projection);
    if (sort)
        BSON_APPEND_DOCUMENT(&opts, "sort", sort);
    if (max_time_ms)
        BSON_APPEND_INT64(&opts, "maxTimeMS", max_time_ms);
    BSON_APPEND_INT32(&opts, "batchSize", 1000);
    if (!k->session)
        BCON_APPEND(&opts, "readConcern", "{", "level", BCON_UTF8("majority"), "}");
    else if (!mongoc_client_session_append(k->session, &opts, &e))
        bson_reinit(&opts);
    mongoc_cursor_t *c = mongoc_collection_find_with_opts(k->events, filter, &opts, NULL);
    bson_destroy(&opts);
    return c;
}

/* ---- the place ---- */

void ob_mongo_place_clear(struct mongo_place *place)
{
    bson_value_destroy(&place->at);
    *place = (struct mongo_place){0};
}

void ob_mongo_value_move(bson_value_t *to, const bson_value_t *from)
{
    bson_value_destroy(to);
    *to = (bson_value_t){0};
    if (from->value_type != BSON_TYPE_EOD)
        bson_value_copy(from, to);
}

/* A document without such a field has no place: it stands before all others. */
static bool is_place(const bson_value_t *v)
{
    return v->value_type != BSON_TYPE_EOD && v->value_type != BSON_TYPE_NULL;
}

bool ob_mongo_page_placed(const struct mongo_look *k)
{
    return k->p->place && is_place(&k->p->place->at);
}

bool ob_mongo_page_moved(const struct mongo_look *k)
{
    uint64_t a[2], b[2];
    if (!is_place(&k->at))
        return false;
    if (!ob_mongo_page_placed(k))
        return true;
    ob_mongo_hash(&k->at, a);
    ob_mongo_hash(&k->p->place->at, b);
    return memcmp(a, b, sizeof(a)) != 0;
}

void ob_mongo_page_keep(struct mongo_look *k)
{
    if (!k->p->place)
        return;
    k->p->partly = k->enough;
    if (k->take.n > 0)
        ob_mongo_value_move(&k->p->place->at, &k->page_at); /* there may be more in the page */
    else if (k->enough)
        ob_mongo_value_move(&k->p->place->at, &k->at);
    else
        ob_mongo_place_clear(k->p->place);
}

/* ---- pages ---- */

mongoc_cursor_t *ob_mongo_page_open(struct mongo_look *k)
{
    const struct mongo_model *m = k->m;
    const bson_t *const filters[] = {[MONGO_PENDING] = m->q_pending,
                                     [MONGO_LOCKED] = m->q_claimed,
                                     [MONGO_FAILED] = m->q_failed,
                                     [MONGO_SWEPT] = m->q_claimed};
    const bson_t *const projections[] = {[MONGO_PENDING] = m->page,
                                         [MONGO_LOCKED] = m->page_ready,
                                         [MONGO_FAILED] = m->page_ready,
                                         [MONGO_SWEPT] = m->page_locks};
    bool pending = k->p->kind == MONGO_PENDING;
    bson_t filter, expr, list;
    bson_copy_to(filters[k->p->kind], &filter);
    if (ob_mongo_page_placed(k)) { /* an expression: values of every type are behind it */
        char *path = bson_strdup_printf("$%s", m->first);
        bson_t literal;
        BSON_APPEND_DOCUMENT_BEGIN(&filter, "$expr", &expr);
        BSON_APPEND_ARRAY_BEGIN(&expr, "$gte", &list);
        BSON_APPEND_UTF8(&list, "0", path);
        BSON_APPEND_DOCUMENT_BEGIN(&list, "1", &literal);
        BSON_APPEND_VALUE(&literal, "$literal", &k->p->place->at);
        bson_append_document_end(&list, &literal);
        bson_append_array_end(&expr, &list);
        bson_append_document_end(&filter, &expr);
        bson_free(path);
        ob_mongo_value_move(&k->page_at, &k->p->place->at);
        ob_mongo_value_move(&k->at, &k->p->place->at);
    }
    mongoc_cursor_t *c = ob_mongo_look_find(k, &filter, m->sort_page, projections[k->p->kind],
                                            pending ? 0 : k->s->conf->timeout_ms);
    bson_destroy(&filter);
    return c;
}

/* A document of a page's projection. False: no memory. *skip: it cannot be claimed now. */
static bool read_page(struct mongo_look *k, const bson_t *doc, bool *skip)
{
    struct mongo_candidate *c = ob_mongo_list_new(&k->page);
    bson_iter_t it, at;
    if (!c)
        return false;
    *skip = k->p->kind != MONGO_PENDING &&
            !(bson_iter_init_find(&it, doc, PAGE_READY) && bson_iter_as_bool(&it));
    if (bson_iter_init(&it, doc) && bson_iter_find_descendant(&it, k->m->first, &at))
        ob_mongo_value_move(&k->at, bson_iter_value(&at));
    if (*skip)
        return true;
    if (bson_iter_init_find(&it, doc, "_id"))
        bson_value_copy(bson_iter_value(&it), &c->id);
    if (bson_iter_init_find(&it, doc, PAGE_ENTITY))
        bson_value_copy(bson_iter_value(&it), &c->entity);
    ob_mongo_hash(&c->id, c->id_hash);
    if (c->entity.value_type != BSON_TYPE_EOD)
        ob_mongo_hash(&c->entity, c->entity_hash);
    return true;
}

static const uint64_t *group_of(const struct mongo_candidate *c)
{
    return ob_mongo_has_entity(c) ? c->entity_hash : c->id_hash;
}

/* Adds the document's entity to the page unless it was looked at. */
static enum ob_status add(struct mongo_look *k, const bson_t *doc, struct ob_err *err)
{
    bool skip = false;
    if (!read_page(k, doc, &skip))
        return ob_err_set(err, OB_DOWN, "no memory for a page");
    struct mongo_candidate *c = &k->page.at[k->page.n - 1];
    bool old = skip || ob_mongo_set_has(&k->seen, group_of(c), NULL);
    int added = old ? 0 : ob_mongo_set_add(&k->groups, group_of(c), (uint32_t)(k->page.n - 1));
    if (added < 0)
        return ob_err_set(err, OB_DOWN, "no memory for a page");
    if (added == 0) { /* its entity is looked at as a whole */
        bson_value_destroy(&c->id);
        bson_value_destroy(&c->entity);
        k->page.n--;
    } else {
        k->page.bytes += ob_mongo_value_bytes(&c->id) + ob_mongo_value_bytes(&c->entity);
    }
    return OB_OK;
}

enum ob_status ob_mongo_page_next(struct mongo_look *k, mongoc_cursor_t *cursor, struct ob_err *err)
{
    const bson_t *doc;
    enum ob_status st = OB_OK;
    ob_mongo_list_clear(&k->page);
    ob_mongo_set_clear(&k->groups);
    if (k->seen.n >= SEEN_MAX) /* the oldest are looked at once more: that costs only time */
        ob_mongo_set_clear(&k->seen);
    ob_mongo_value_move(&k->page_at, &k->at);
    k->page_over = false;
    for (size_t n = 0;
         st == OB_OK && (n < k->p->max || k->page.n == 0) && k->page.bytes < PAGE_BYTES; n++) {
        k->enough =
            k->p->kind != MONGO_PENDING && k->scanned >= SLICE_MAX && ob_mongo_page_moved(k);
        if (k->enough)
            break;
        k->page_over = !mongoc_cursor_next(cursor, &doc);
        if (k->page_over)
            break;
        k->scanned++;
        st = add(k, doc, err);
    }
    for (size_t i = 0; st == OB_OK && i < k->page.n; i++)
        if (ob_mongo_set_add(&k->seen, group_of(&k->page.at[i]), 0) < 0)
            st = ob_err_set(err, OB_DOWN, "no memory for a page");
    return st == OB_OK ? ob_mongo_cursor(cursor, "looking for documents", err) : st;
}

enum ob_status ob_mongo_page_named(struct mongo_look *k, struct ob_err *err)
{
    k->page_over = true;
    for (size_t i = 0; i < k->p->n_entities; i++) {
        struct mongo_candidate *c = ob_mongo_list_new(&k->page);
        if (!c)
            return ob_err_set(err, OB_DOWN, "no memory for a page");
        bson_value_copy(&k->p->entities[i], &c->entity);
        ob_mongo_hash(&c->entity, c->entity_hash);
        int added = ob_mongo_set_add(&k->groups, c->entity_hash, (uint32_t)(k->page.n - 1));
        if (added < 0)
            return ob_err_set(err, OB_DOWN, "no memory for a page");
        if (added == 0) {
            bson_value_destroy(&c->entity);
            k->page.n--;
        }
    }
    return OB_OK;
}
