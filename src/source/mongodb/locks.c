/* SPDX-License-Identifier: Apache-2.0 */
/* locks - locks of what this worker has in its memory: the window, and pages that were not handed
 * out. Documents are named by their `_id`, so that the cost follows what is in memory and not all
 * that is locked (tests/e2e/test_mongodb_locks.py). */
#include "source/mongodb/mongo.h"

#include <stdlib.h>

#define CHUNK 5000 /* ids of one statement */

/* An update of many documents, a chunk at a time. */
struct chunks {
    struct ob_source *s;
    mongoc_collection_t *coll;
    const bson_t *also, *update; /* also: what else must hold of a document */
    const char *what;
    const bson_value_t **ids;
    size_t n;
};

static enum ob_status flush_chunk(struct chunks *k, struct ob_err *err)
{
    bson_t filter;
    if (k->n == 0)
        return OB_OK;
    bson_init(&filter);
    ob_mongo_in(&filter, "_id", k->ids, k->n);
    bson_concat(&filter, k->also);
    enum ob_status st = ob_mongo_update_many(k->coll, &filter, k->update, k->s->conf->timeout_ms,
                                             NULL, NULL, k->what, err);
    bson_destroy(&filter);
    k->n = 0;
    return st;
}

static enum ob_status add_id(struct chunks *k, const bson_value_t *id, struct ob_err *err)
{
    k->ids[k->n++] = id;
    return k->n == CHUNK ? flush_chunk(k, err) : OB_OK;
}

/* Every document of the window. */
static enum ob_status add_window(struct chunks *k, struct ob_err *err)
{
    enum ob_status st = OB_OK;
    for (size_t i = 0; st == OB_OK && i < k->s->window.cap; i++)
        if (k->s->window.at[i].ref)
            st = add_id(k, &k->s->window.at[i].id, err);
    return st;
}

static enum ob_status add_page(struct chunks *k, const struct mongo_page *page, struct ob_err *err)
{
    enum ob_status st = OB_OK;
    for (size_t i = page ? page->next : 0; st == OB_OK && page && i < page->n; i++)
        st = add_id(k, &page->ids[i], err);
    return st;
}

static enum ob_status update_ours(struct chunks *k, bool pages, struct ob_err *err)
{
    k->ids = calloc(CHUNK, sizeof(*k->ids));
    if (!k->ids)
        return ob_err_set(err, OB_RETRY, "no memory");
    k->coll = ob_mongo_coll(k->s, k->s->model->events);
    enum ob_status st = add_window(k, err);
    if (st == OB_OK && pages)
        st = add_page(k, k->s->page, err);
    if (st == OB_OK && pages)
        st = add_page(k, ob_mongo_reader_found(k->s->reader), err);
    if (st == OB_OK)
        st = flush_chunk(k, err);
    free(k->ids);
    mongoc_collection_destroy(k->coll);
    return st;
}

enum ob_status ob_mongo_renew_locks(struct ob_source *s, struct ob_err *err)
{
    const struct mongo_model *m = s->model;
    bson_t *also = BCON_NEW(m->f[OB_MAP_STATUS], BCON_UTF8(m->claimed), m->f[OB_MAP_LOCKED_BY],
                            BCON_UTF8(s->owner));
    struct chunks k = {.s = s, .also = also, .update = m->u_renew, .what = "renewing locks"};
    enum ob_status st = update_ours(&k, true, err);
    bson_destroy(also);
    return st;
}

enum ob_status ob_mongo_claim_again(struct ob_source *s, struct ob_err *err)
{
    const struct mongo_model *m = s->model;
    bson_t *also = BCON_NEW(m->f[OB_MAP_STATUS], "{", "$in", "[", BCON_UTF8(m->pending),
                            BCON_UTF8(m->failed), "]", "}", m->f[OB_MAP_LOCKED_BY], BCON_NULL);
    struct chunks k = {.s = s, .also = also, .update = m->u_claim, .what = "claiming again"};
    enum ob_status st = update_ours(&k, false, err);
    bson_destroy(also);
    if (st == OB_OK) {
        s->shown_back = false;
        ob_mongo_reader_go(s->reader, false);
    }
    return st;
}
