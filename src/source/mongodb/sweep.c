/* SPDX-License-Identifier: Apache-2.0 */
/* sweep - finds documents that have this worker's name on them and are not in its memory, and gives
 * them back. A document that no other one of its entity follows is in no look, and its lock would
 * never end where `worker_id` is shared. All locked documents are read, a page at a time, so that
 * the cost of one query does not follow their number (tests/e2e/test_mongodb_locks.py). */
#include "source/mongodb/pass.h"

#include <stdlib.h>

#define PAGE_MAX 5000  /* documents of one page */
#define STRAY_MAX 1000 /* given back by one page, and remembered of one round */

/* One page of a round. */
struct sweeping {
    struct mongo_look look; /* for its cursor and place */
    struct mongo_sweep *w;
    bson_value_t found[STRAY_MAX];
    size_t n;
};

/* A lock that is seen for the first time may be on its way into the window. False: no memory. */
static bool note_lock(struct sweeping *g, const bson_t *doc)
{
    const struct ob_source *s = g->look.s;
    bson_iter_t it, by;
    uint64_t h[2];
    if (!bson_iter_init(&it, doc) ||
        !bson_iter_find_descendant(&it, s->model->f[OB_MAP_LOCKED_BY], &by) ||
        !BSON_ITER_HOLDS_UTF8(&by) || strcmp(bson_iter_utf8(&by, NULL), s->owner) != 0 ||
        !bson_iter_init_find(&it, doc, "_id"))
        return true;
    ob_mongo_hash(bson_iter_value(&it), h);
    if (ob_mongo_ours_has(&g->look.s->ours, h))
        return true;
    if (!ob_mongo_set_has(&g->w->seen, h, NULL))
        return g->w->now.n >= STRAY_MAX || ob_mongo_set_add(&g->w->now, h, 0) >= 0;
    if (g->n < STRAY_MAX)
        bson_value_copy(bson_iter_value(&it), &g->found[g->n++]);
    return true;
}

static enum ob_status read_page(struct sweeping *g, bool *more, struct ob_err *err)
{
    struct mongo_look *k = &g->look;
    const bson_t *doc;
    bson_iter_t it, at;
    enum ob_status st = OB_OK;
    mongoc_cursor_t *c = ob_mongo_page_open(k);
    *more = false;
    while (st == OB_OK && !*more && mongoc_cursor_next(c, &doc)) {
        if (bson_iter_init(&it, doc) && bson_iter_find_descendant(&it, k->m->first, &at))
            ob_mongo_value_move(&k->at, bson_iter_value(&at));
        if (!note_lock(g, doc))
            st = ob_err_set(err, OB_DOWN, "no memory for locks");
        *more = ++k->scanned >= PAGE_MAX && ob_mongo_page_moved(k);
    }
    if (st == OB_OK)
        st = ob_mongo_cursor(c, "reading locks", err);
    mongoc_cursor_destroy(c);
    return st;
}

static void end_round(struct mongo_sweep *w)
{
    ob_mongo_set_clear(&w->seen);
    w->seen = w->now;
    w->now = (struct mongo_set){0};
    ob_mongo_place_clear(&w->place);
}

enum ob_status ob_mongo_sweep(const struct mongo_pass *p, struct mongo_sweep *w, bool *more,
                              struct ob_err *err)
{
    struct mongo_pass pass = {
        .s = p->s, .client = p->client, .kind = MONGO_SWEPT, .place = &w->place};
    struct sweeping *g = calloc(1, sizeof(*g));
    const bson_value_t **ids = calloc(STRAY_MAX, sizeof(*ids));
    size_t given = 0;
    enum ob_status st = g && ids ? OB_OK : ob_err_set(err, OB_DOWN, "no memory for locks");
    if (st == OB_OK) {
        g->w = w;
        g->look = (struct mongo_look){.p = &pass, .s = p->s, .m = p->s->model};
        g->look.events =
            mongoc_client_get_collection(p->client, p->s->conf->database, p->s->model->events);
        st = read_page(g, more, err);
        for (size_t i = 0; i < g->n; i++)
            ids[i] = &g->found[i];
        if (st == OB_OK)
            st = ob_mongo_claim_back(p->s, p->client, ids, g->n, &given, err);
        if (st == OB_OK && given > 0)
            ob_log(p->s->log, OB_LOG_INFO, "source.taken_back", OB_KI("documents", given));
        if (st == OB_OK && *more)
            ob_mongo_value_move(&w->place.at, &g->look.at);
        else if (st == OB_OK)
            end_round(w);
        for (size_t i = 0; i < g->n; i++)
            bson_value_destroy(&g->found[i]);
        bson_value_destroy(&g->look.at);
        bson_value_destroy(&g->look.page_at);
        mongoc_collection_destroy(g->look.events);
    }
    free(ids);
    free(g);
    return st;
}

void ob_mongo_sweep_clear(struct mongo_sweep *w)
{
    ob_mongo_set_clear(&w->seen);
    ob_mongo_set_clear(&w->now);
    ob_mongo_place_clear(&w->place);
}
