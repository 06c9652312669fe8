/* SPDX-License-Identifier: Apache-2.0 */
/* admin_events - the documents of a collection with what became of them.
 *
 * They are read by the index that the relay reads by: each status for itself, merged. A document's
 * number is the server's for native ones; for others it is its time of creation and, among those of
 * the same millisecond, its place. Payloads are read one by one: with what is looked up beside
 * it a document of 16 MB would be larger than an answer may be. */
#include "source/mongodb/admin.h"

#include <stdlib.h>

#define PLACE_BITS 20 /* of those with one time of creation */
#define PARKED "_outbox_parked"
#define DEAD "_outbox_dead"
#define OVER "_outbox_over"

/* ---- the query ---- */

static void key_condition(const struct mongo_model *m, const char *glob, bson_t *to)
{
    const char *key = m->f[OB_MAP_KEY], *id = m->f[OB_MAP_AGGREGATE_ID];
    bson_t either, one;
    if (!key || !id || strcmp(key, id) == 0) {
        ob_mongo_glob(to, key ? key : id ? id : m->f[OB_MAP_ID], glob);
        return;
    }
    BSON_APPEND_ARRAY_BEGIN(to, "$or", &either);
    BSON_APPEND_DOCUMENT_BEGIN(&either, "0", &one);
    ob_mongo_glob(&one, key, glob);
    bson_append_document_end(&either, &one);
    BSON_APPEND_DOCUMENT_BEGIN(&either, "1", &one);
    BSON_APPEND_NULL(&one, key);
    ob_mongo_glob(&one, id, glob);
    bson_append_document_end(&either, &one);
    bson_append_array_end(to, &either);
}

static void after_condition(const struct mongo_model *m, uint64_t after, bson_t *to)
{
    bson_t range;
    BSON_APPEND_DOCUMENT_BEGIN(to, m->first, &range);
    if (m->native)
        BSON_APPEND_TIMESTAMP(&range, "$gt", (uint32_t)(after >> 32), (uint32_t)after);
    else /* those of the same time are passed over by their place */
        BSON_APPEND_DATE_TIME(&range, "$gte", (int64_t)(after >> PLACE_BITS));
    bson_append_document_end(to, &range);
}

/* One document of the list of conditions. */
static void begin(bson_t *list, uint32_t *n, bson_t *one)
{
    const char *at;
    char text[16];
    size_t len = bson_uint32_to_string((*n)++, &at, text, sizeof(text));
    bson_append_document_begin(list, at, (int)len, one);
}

static void conditions(const struct mongo_model *m, const struct ob_filter *f, bson_t *match)
{
    bson_t list, one;
    uint32_t n = 0;
    BCON_APPEND(match, m->f[OB_MAP_STATUS], "{", "$in", "[", BCON_UTF8(m->pending),
                BCON_UTF8(m->claimed), BCON_UTF8(m->done), BCON_UTF8(m->failed), "]", "}");
    if (!f->id && !f->type && !f->key && !f->tenant && !f->since_us && !f->until_us && !f->after)
        return;
    BSON_APPEND_ARRAY_BEGIN(match, "$and", &list);
    if (f->id) {
        begin(&list, &n, &one);
        ob_mongo_id(&one, m->f[OB_MAP_ID], f->id);
        bson_append_document_end(&list, &one);
    }
    if (f->type) {
        begin(&list, &n, &one);
        ob_mongo_glob(&one, m->f[OB_MAP_TYPE], f->type);
        bson_append_document_end(&list, &one);
    }
    if (f->tenant) { /* without the field nothing has a tenant */
        begin(&list, &n, &one);
        ob_mongo_glob(&one, m->f[OB_MAP_TENANT] ? m->f[OB_MAP_TENANT] : "_id.tenant", f->tenant);
        bson_append_document_end(&list, &one);
    }
    if (f->key) {
        begin(&list, &n, &one);
        key_condition(m, f->key, &one);
        bson_append_document_end(&list, &one);
    }
    if (f->since_us || f->until_us) {
        begin(&list, &n, &one);
        ob_mongo_since(&one, m->f[OB_MAP_CREATED], f->since_us, f->until_us);
        bson_append_document_end(&list, &one);
    }
    if (f->after) {
        begin(&list, &n, &one);
        after_condition(m, f->after, &one);
        bson_append_document_end(&list, &one);
    }
    bson_append_array_end(match, &list);
}

static void lookup(bson_t *list, uint32_t *n, const char *from, const char *as)
{
    bson_t stage;
    begin(list, n, &stage);
    BCON_APPEND(&stage, "$lookup", "{", "from", BCON_UTF8(from), "localField", "_id",
                "foreignField", "ref", "as", BCON_UTF8(as), "pipeline", "[", "{", "$project", "{",
                "state", BCON_INT32(1), "}", "}", "]", "}");
    bson_append_document_end(list, &stage);
}

static void sort(bson_t *list, uint32_t *n, const struct mongo_model *m, int direction, bool whole)
{
    bson_t stage, by;
    begin(list, n, &stage);
    BSON_APPEND_DOCUMENT_BEGIN(&stage, "$sort", &by);
    BSON_APPEND_INT32(&by, m->first, direction);
    if (whole)
        BSON_APPEND_INT32(&by, "_id", direction);
    bson_append_document_end(&stage, &by);
    bson_append_document_end(list, &stage);
}

static mongoc_cursor_t *ask(struct ob_admin *a, mongoc_collection_t *coll,
                            const struct ob_filter *f)
{
    const struct mongo_model *m = a->model;
    bool newest = f->limit && !f->after;
    bson_t all, list, stage, match, fields,
        *over = ob_mongo_bson("%s", m->x_dead),
        *opts =
            BCON_NEW("allowDiskUse", BCON_BOOL(true), "readConcern", "{", "level", "majority", "}");
    uint32_t n = 0;
    bson_init(&all);
    BSON_APPEND_ARRAY_BEGIN(&all, "pipeline", &list);
    begin(&list, &n, &stage);
    BSON_APPEND_DOCUMENT_BEGIN(&stage, "$match", &match);
    conditions(m, f, &match);
    bson_append_document_end(&stage, &match);
    bson_append_document_end(&list, &stage);
    sort(&list, &n, m, newest ? -1 : 1, false);
    if (newest) {
        begin(&list, &n, &stage);
        BSON_APPEND_INT64(&stage, "$limit", (int64_t)f->limit);
        bson_append_document_end(&list, &stage);
    }
    begin(&list, &n, &stage);
    BSON_APPEND_DOCUMENT_BEGIN(&stage, "$project", &fields);
    BSON_APPEND_INT32(&fields, m->f[OB_MAP_PAYLOAD], 0);
    bson_append_document_end(&stage, &fields);
    bson_append_document_end(&list, &stage);
    if (newest)
        sort(&list, &n, m, 1, true);
    begin(&list, &n, &stage);
    BSON_APPEND_DOCUMENT_BEGIN(&stage, "$set", &fields);
    if (over)
        BSON_APPEND_DOCUMENT(&fields, OVER, over);
    bson_append_document_end(&stage, &fields);
    bson_append_document_end(&list, &stage);
    lookup(&list, &n, m->parked, PARKED);
    lookup(&list, &n, m->dead, DEAD);
    bson_append_array_end(&all, &list);
    mongoc_cursor_t *c = mongoc_collection_aggregate(coll, MONGOC_QUERY_NONE, &all, opts, NULL);
    bson_destroy(&all);
    bson_destroy(over);
    bson_destroy(opts);
    return c;
}

/* ---- one document ---- */

static bool any_in(const bson_t *doc, const char *field)
{
    bson_iter_t it, in;
    return bson_iter_init_find(&it, doc, field) && BSON_ITER_HOLDS_ARRAY(&it) &&
           bson_iter_recurse(&it, &in) && bson_iter_next(&in);
}

/* Has one of its dead rows this state? */
static bool dead_is(const bson_t *doc, const char *state)
{
    bson_iter_t it, in, row;
    if (!bson_iter_init_find(&it, doc, DEAD) || !BSON_ITER_HOLDS_ARRAY(&it) ||
        !bson_iter_recurse(&it, &in))
        return false;
    while (bson_iter_next(&in))
        if (bson_iter_recurse(&in, &row) && bson_iter_find(&row, "state") &&
            BSON_ITER_HOLDS_UTF8(&row) && strcmp(bson_iter_utf8(&row, NULL), state) == 0)
            return true;
    return false;
}

/* The document's own status is right where the collections beside it say otherwise. */
static const char *state_of(const struct mongo_model *m, const bson_t *doc)
{
    bson_iter_t it, at;
    const char *status = bson_iter_init(&it, doc) &&
                                 bson_iter_find_descendant(&it, m->f[OB_MAP_STATUS], &at) &&
                                 BSON_ITER_HOLDS_UTF8(&at)
                             ? bson_iter_utf8(&at, NULL)
                             : "";
    bool done = strcmp(status, m->done) == 0, failed = strcmp(status, m->failed) == 0;
    if (done && m->conf->on_permanent != OB_MAP_MARK_PROCESSED)
        return "published";
    if (!done && any_in(doc, PARKED))
        return "parked";
    if ((done || failed) && dead_is(doc, "dead"))
        return "dead";
    if ((done || failed) && dead_is(doc, "discarded"))
        return "discarded";
    if (done)
        return "published";
    return bson_iter_init_find(&it, doc, OVER) && bson_iter_as_bool(&it) ? "dead" : "pending";
}

enum ob_status ob_mongo_whole(struct ob_admin *a, const bson_value_t *ref, struct ob_arena *arena,
                              struct ob_event *ev, bool *found, struct ob_err *err)
{
    mongoc_collection_t *coll = ob_mongo_admin_coll(a, a->model->events);
    bson_t filter;
    const bson_t *doc;
    enum ob_status st = OB_OK;
    bson_init(&filter);
    BSON_APPEND_VALUE(&filter, "_id", ref);
    mongoc_cursor_t *c = mongoc_collection_find_with_opts(coll, &filter, NULL, NULL);
    *found = mongoc_cursor_next(c, &doc);
    if (*found && !ob_mongo_event(a->model, a->conf->payload_json, doc, arena, ev))
        st = ob_err_set(err, OB_DOWN, "no memory");
    enum ob_status end = ob_mongo_cursor_end(c, "reading a document", err);
    bson_destroy(&filter);
    mongoc_collection_destroy(coll);
    return st == OB_OK ? end : st;
}

struct listing {
    struct ob_admin *a;
    struct ob_arena *arena;
    bool payload;
    uint64_t skip_at, skip; /* of those at this time so many were shown before */
    uint64_t at, place;
};

/* The number of the next document. False: it was shown before. */
static bool number_of(struct listing *l, const bson_t *doc, uint64_t *out)
{
    bson_iter_t it, at;
    uint32_t t = 0, i = 0;
    const struct mongo_model *m = l->a->model;
    bool found = bson_iter_init(&it, doc) && bson_iter_find_descendant(&it, m->first, &at);
    if (m->native) {
        if (found && BSON_ITER_HOLDS_TIMESTAMP(&at))
            bson_iter_timestamp(&at, &t, &i);
        *out = (uint64_t)t << 32 | i;
        return true;
    }
    int64_t ms = found && BSON_ITER_HOLDS_DATE_TIME(&at) ? bson_iter_date_time(&at) : 0;
    uint64_t when = ms > 0 ? (uint64_t)ms : 0;
    l->place = when == l->at ? l->place + 1 : 0;
    l->at = when;
    *out = when << PLACE_BITS | (l->place < (1u << PLACE_BITS) ? l->place : (1u << PLACE_BITS) - 1);
    return !(when == l->skip_at && l->place < l->skip);
}

static enum ob_status show(struct listing *l, const bson_t *doc, uint64_t number, ob_event_fn *fn,
                           void *user, bool *more, struct ob_err *err)
{
    struct ob_event ev = {0};
    bson_iter_t it;
    bool found = true;
    enum ob_status st = OB_OK;
    const char *state = state_of(l->a->model, doc);
    ob_arena_reset(l->arena);
    if (l->payload && bson_iter_init_find(&it, doc, "_id"))
        st = ob_mongo_whole(l->a, bson_iter_value(&it), l->arena, &ev, &found, err);
    if (st == OB_OK && (!l->payload || !found) &&
        !ob_mongo_event(l->a->model, l->a->conf->payload_json, doc, l->arena, &ev))
        st = ob_err_set(err, OB_DOWN, "no memory");
    ev.ref = ev.seq = number;
    if (st == OB_OK)
        *more = fn(user, &ev, state);
    return st;
}

/* How many have the time at which the newest ones begin, so that their places are right. */
static enum ob_status first_place(struct listing *l, mongoc_collection_t *coll,
                                  const struct ob_filter *f, const bson_t *doc, size_t shown,
                                  struct ob_err *err)
{
    bson_iter_t it, at;
    bson_t filter, list, one, *opts = BCON_NEW("limit", BCON_INT64(INT64_C(1) << PLACE_BITS));
    bson_error_t e;
    uint32_t n = 0;
    if (l->a->model->native || !bson_iter_init(&it, doc) ||
        !bson_iter_find_descendant(&it, l->a->model->first, &at) ||
        !BSON_ITER_HOLDS_DATE_TIME(&at)) {
        bson_destroy(opts);
        return OB_OK;
    }
    bson_init(&filter);
    BSON_APPEND_ARRAY_BEGIN(&filter, "$and", &list);
    begin(&list, &n, &one);
    conditions(l->a->model, f, &one);
    bson_append_document_end(&list, &one);
    begin(&list, &n, &one);
    BSON_APPEND_DATE_TIME(&one, l->a->model->first, bson_iter_date_time(&at));
    bson_append_document_end(&list, &one);
    bson_append_array_end(&filter, &list);
    int64_t all = mongoc_collection_count_documents(coll, &filter, opts, NULL, NULL, &e);
    bson_destroy(&filter);
    bson_destroy(opts);
    if (all < 0)
        return ob_mongo_fail(err, "events", &e, NULL);
    l->at = (uint64_t)bson_iter_date_time(&at);
    l->place = (uint64_t)all - shown - 1; /* of the one before: it wraps to the first place */
    return OB_OK;
}

/* How many of the first documents have one time. They are few: the newest that were asked for. */
static size_t same_time(const struct mongo_model *m, bson_t *const *docs, size_t n)
{
    bson_iter_t it, a, b;
    size_t i = 0;
    while (i < n && bson_iter_init(&it, docs[0]) && bson_iter_find_descendant(&it, m->first, &a) &&
           bson_iter_init(&it, docs[i]) && bson_iter_find_descendant(&it, m->first, &b) &&
           BSON_ITER_HOLDS_DATE_TIME(&a) && BSON_ITER_HOLDS_DATE_TIME(&b) &&
           bson_iter_date_time(&a) == bson_iter_date_time(&b))
        i++;
    return i;
}

#define AHEAD 1000 /* of the newest, to find out how many begin at one time */

static enum ob_status show_newest(struct listing *l, mongoc_collection_t *coll, mongoc_cursor_t *c,
                                  const struct ob_filter *f, ob_event_fn *fn, void *user,
                                  bool *more, struct ob_err *err)
{
    bson_t **docs = calloc(AHEAD, sizeof(*docs));
    const bson_t *doc;
    size_t n = 0;
    enum ob_status st = docs ? OB_OK : ob_err_set(err, OB_DOWN, "no memory");
    while (st == OB_OK && n < AHEAD && mongoc_cursor_next(c, &doc))
        docs[n++] = bson_copy(doc);
    if (st == OB_OK && n > 0)
        st = first_place(l, coll, f, docs[0], same_time(l->a->model, docs, n), err);
    for (size_t i = 0; i < n; i++) {
        uint64_t number;
        if (st == OB_OK && *more && number_of(l, docs[i], &number))
            st = show(l, docs[i], number, fn, user, more, err);
        bson_destroy(docs[i]);
    }
    free(docs);
    *more = *more && n == AHEAD; /* a cursor that is over must not be asked again */
    return st;
}

enum ob_status ob_mongo_events(struct ob_admin *a, const struct ob_filter *f, bool payload,
                               ob_event_fn *fn, void *user, struct ob_err *err)
{
    struct listing l = {.a = a, .arena = ob_arena_new(4096, 0), .payload = payload};
    enum ob_status st =
        l.arena ? ob_mongo_admin_need(a, err) : ob_err_set(err, OB_DOWN, "no memory");
    const bson_t *doc;
    bool more = true;
    size_t left = f->limit ? f->limit : SIZE_MAX;
    l.at = UINT64_MAX;
    if (f->after && !a->model->native) {
        l.skip_at = f->after >> PLACE_BITS;
        l.skip = (f->after & ((1u << PLACE_BITS) - 1)) + 1;
    }
    if (st == OB_OK) {
        mongoc_collection_t *coll = ob_mongo_admin_coll(a, a->model->events);
        mongoc_cursor_t *c = ask(a, coll, f);
        if (f->limit && !f->after)
            st = show_newest(&l, coll, c, f, fn, user, &more, err);
        while (st == OB_OK && more && left > 0 && mongoc_cursor_next(c, &doc)) {
            uint64_t number;
            if (!number_of(&l, doc, &number))
                continue;
            st = show(&l, doc, number, fn, user, &more, err);
            left--;
        }
        enum ob_status end = ob_mongo_cursor_end(c, "events", err);
        st = st == OB_OK ? end : st;
        mongoc_collection_destroy(coll);
    }
    ob_arena_unref(l.arena);
    return st;
}
