/* SPDX-License-Identifier: Apache-2.0 */
/* mark - what became of documents, written into their fields.
 *
 * Delivered ones outside a transaction go by `_id` and locked_by alone, and only where nobody else
 * can have our name: whoever took over has cleared it, so that a sleeper's mark changes nothing and
 * is counted as fenced. Everything else is marked inside a transaction that began with the epoch;
 * there a document may also stand unlocked, because a parked one is given back while it waits. */
#include "source/mongodb/mongo.h"

#include "core/utf8.h"
#include "event/mongo_doc.h"

#include <inttypes.h>
#include <stdlib.h>

#define CHUNK 5000 /* ids of one statement */
#define REASON_MAX 1000

enum which { DONE, RETRIED, BACK, DEAD };

static bool is(const struct ob_settle_op *op, enum which which)
{
    switch (which) {
    case DONE:
        return op->kind == OB_SETTLE_PUBLISHED;
    case RETRIED:
        return op->kind == OB_SETTLE_PARK && op->spent;
    case BACK:
        return op->kind == OB_SETTLE_PARK && !op->spent;
    case DEAD:
        return op->kind == OB_SETTLE_DEAD;
    }
    return false;
}

/* Ours: locked by us or, inside a transaction with our epoch, by nobody. */
static void append_ours(const struct ob_source *s, bson_t *filter, bool in_transaction)
{
    const struct mongo_model *m = s->model;
    bson_t either, one;
    if (!in_transaction) {
        BSON_APPEND_UTF8(filter, m->f[OB_MAP_STATUS], m->claimed);
        BSON_APPEND_UTF8(filter, m->f[OB_MAP_LOCKED_BY], s->owner);
        return;
    }
    BSON_APPEND_ARRAY_BEGIN(filter, "$or", &either);
    BSON_APPEND_DOCUMENT_BEGIN(&either, "0", &one);
    BSON_APPEND_UTF8(&one, m->f[OB_MAP_STATUS], m->claimed);
    BSON_APPEND_UTF8(&one, m->f[OB_MAP_LOCKED_BY], s->owner);
    bson_append_document_end(&either, &one);
    BSON_APPEND_DOCUMENT_BEGIN(&either, "1", &one);
    BCON_APPEND(&one, m->f[OB_MAP_STATUS], "{", "$in", "[", BCON_UTF8(m->pending),
                BCON_UTF8(m->failed), "]", "}", m->f[OB_MAP_LOCKED_BY], BCON_NULL);
    bson_append_document_end(&either, &one);
    bson_append_array_end(filter, &either);
}

/* All of one kind that are marked alike. */
static enum ob_status mark_alike(struct ob_source *s, const struct ob_settle *settle,
                                 enum which which, const bson_t *update,
                                 mongoc_client_session_t *session, size_t *missed,
                                 struct ob_err *err)
{
    mongoc_collection_t *coll = ob_mongo_coll(s, s->model->events);
    enum ob_status st = OB_OK;
    for (size_t i = 0; st == OB_OK && i < settle->n;) {
        size_t n = 0, matched = 0;
        bson_t filter, in, list;
        bson_init(&filter);
        BSON_APPEND_DOCUMENT_BEGIN(&filter, "_id", &in);
        BSON_APPEND_ARRAY_BEGIN(&in, "$in", &list);
        for (; i < settle->n && n < CHUNK; i++) {
            bson_iter_t id;
            char text[16];
            const char *at;
            if (!is(&settle->ops[i], which) || !ob_mongo_ref(settle->ops[i].event, &id))
                continue;
            size_t len = bson_uint32_to_string((uint32_t)n++, &at, text, sizeof(text));
            bson_append_iter(&list, at, (int)len, &id);
        }
        bson_append_array_end(&in, &list);
        bson_append_document_end(&filter, &in);
        append_ours(s, &filter, session != NULL);
        if (n > 0)
            st = ob_mongo_update_many(coll, &filter, update, s->conf->timeout_ms, session, &matched,
                                      "marking", err);
        bson_destroy(&filter);
        if (st == OB_OK && matched < n)
            *missed += n - matched;
    }
    mongoc_collection_destroy(coll);
    return st;
}

void ob_mongo_count_fenced(struct ob_source *s, size_t n)
{
    if (n == 0)
        return;
    s->fenced += n;
    ob_log(s->log, OB_LOG_WARN, "source.fenced", OB_KI("marks", n),
           OB_KC("error", "documents were changed by others while they were published"));
}

enum ob_status ob_mongo_mark_done(struct ob_source *s, const struct ob_settle *settle,
                                  struct ob_err *err)
{
    size_t missed = 0;
    enum ob_status st = mark_alike(s, settle, DONE, s->model->u_done, NULL, &missed, err);
    if (st == OB_OK && !s->unsure) /* after a lost answer those that were marked do not match */
        ob_mongo_count_fenced(s, missed);
    s->unsure = st != OB_OK;
    return st;
}

/* ---- failures ---- */

static void append_literal(bson_t *b, const char *field, const char *text)
{
    bson_t lit;
    struct ob_str t = ob_str_c(text);
    if (t.n > REASON_MAX)
        t.n = ob_utf8_cut(t.p, REASON_MAX);
    BSON_APPEND_DOCUMENT_BEGIN(b, field, &lit);
    if (ob_utf8_valid(t) && !memchr(t.p, 0, t.n))
        bson_append_utf8(&lit, "$literal", -1, t.p, (int)t.n);
    else
        BSON_APPEND_UTF8(&lit, "$literal", "the reason is not text");
    bson_append_document_end(b, &lit);
}

static void append_json(bson_t *b, const char *field, const char *json)
{
    bson_t *x = ob_mongo_bson("%s", json);
    if (x)
        BSON_APPEND_DOCUMENT(b, field, x);
    bson_destroy(x);
}

/* {field: {$cond: [the document can grow by so many bytes, …: "1" and "2" are the caller's. */
static void begin_room(bson_t *set, const char *field, size_t bytes, bson_t *cond, bson_t *list)
{
    bson_t compare, pair;
    BSON_APPEND_DOCUMENT_BEGIN(set, field, cond);
    BSON_APPEND_ARRAY_BEGIN(cond, "$cond", list);
    BSON_APPEND_DOCUMENT_BEGIN(list, "0", &compare);
    BSON_APPEND_ARRAY_BEGIN(&compare, "$lte", &pair);
    BCON_APPEND(&pair, "0", "{", "$bsonSize", "$$ROOT", "}", "1",
                BCON_INT64((int64_t)(OB_MONGO_DOC_MAX - bytes)));
    bson_append_array_end(&compare, &pair);
    bson_append_document_end(list, &compare);
}

static void end_room(bson_t *set, bson_t *cond, bson_t *list)
{
    bson_append_array_end(cond, list);
    bson_append_document_end(set, cond);
}

/* What the field has already, as an expression. */
static void append_same(bson_t *b, const char *at, const char *field)
{
    char *path = bson_strdup_printf("$%s", field);
    BSON_APPEND_UTF8(b, at, path);
    bson_free(path);
}

/* A number of attempts. In a document without room for another field only one that is there, and as
 * the kind of number that it is. */
static void append_attempts(const struct mongo_model *m, bson_t *set, bool dead)
{
    const char *field = m->f[OB_MAP_ATTEMPTS];
    bson_t cond, list;
    if (!field || (dead && !m->f[OB_MAP_MAX_ATTEMPTS] && m->conf->dead_attempts <= 0))
        return;
    char *now = dead ? bson_strdup_printf("{\"$max\":[%s,%s]}", m->x_attempts, m->x_max)
                     : bson_strdup_printf("{\"$add\":[%s,1]}", m->x_attempts);
    char *small = bson_strdup_printf(
        "{\"$cond\":[{\"$isNumber\":\"$%s\"},{\"$convert\":{\"input\":%s,\"to\":{"
        "\"$type\":\"$%s\"},\"onError\":\"$%s\"}},\"$%s\"]}",
        field, now, field, field, field);
    begin_room(set, field, strlen(field) + 32, &cond, &list);
    append_json(&list, "1", now);
    append_json(&list, "2", small);
    end_room(set, &cond, &list);
    bson_free(now);
    bson_free(small);
}

/* How much longer a status can get. */
static size_t status_growth(const struct mongo_model *m)
{
    size_t least = strlen(m->pending), claimed = strlen(m->claimed), failed = strlen(m->failed);
    least = claimed < least ? claimed : least;
    return failed > least ? failed - least : 0;
}

/* What is written of a failure. A document that was nearly as large as a document can be gets only
 * what it has room for: with the text, without it, without a new field; and where nothing fits it
 * stays as it is (tests/e2e/test_mongodb_large.py). */
static void failed_fields(const struct ob_source *s, const struct ob_settle_op *op, bson_t *set,
                          const char *text)
{
    const struct mongo_model *m = s->model;
    bool dead = op->kind == OB_SETTLE_DEAD;
    const char *status = m->f[OB_MAP_STATUS], *error = m->f[OB_MAP_ERROR],
               *at = m->f[OB_MAP_ERROR_AT];
    size_t room = strnlen(text, REASON_MAX) + 24;
    bson_t cond, list;
    room += (error ? strlen(error) : 0) + (at ? strlen(at) : 0);
    if (!dead) /* it is locked again */
        room += strlen(s->owner) + 64;
    begin_room(set, status, status_growth(m), &cond, &list);
    append_literal(&list, "1", m->failed);
    append_same(&list, "2", status);
    end_room(set, &cond, &list);
    append_attempts(m, set, dead);
    if (error && (dead || m->conf->error_on == OB_MAP_ERROR_RETRY)) {
        begin_room(set, error, room, &cond, &list);
        append_literal(&list, "1", text);
        append_same(&list, "2", error);
        end_room(set, &cond, &list);
    }
    if (at) {
        begin_room(set, at, room, &cond, &list);
        BSON_APPEND_UTF8(&list, "1", "$$NOW");
        append_same(&list, "2", at);
        end_room(set, &cond, &list);
    }
    append_json(set, m->f[OB_MAP_LOCKED_BY], m->x_free);
    append_json(set, m->f[OB_MAP_LOCKED_UNTIL], m->x_free);
}

static void failed_update(const struct ob_source *s, const struct ob_settle_op *op, bson_t *out)
{
    const struct ob_mapping *conf = s->model->conf;
    bson_t stage, set;
    const char *text = op->reason;
    if (op->kind == OB_SETTLE_DEAD && op->exhausted && conf->error_exhausted)
        text = conf->error_exhausted;
    else if (op->kind == OB_SETTLE_DEAD && !op->exhausted && conf->error_rejected)
        text = conf->error_rejected;
    bson_init(out);
    BSON_APPEND_DOCUMENT_BEGIN(out, "0", &stage);
    BSON_APPEND_DOCUMENT_BEGIN(&stage, "$set", &set);
    failed_fields(s, op, &set, text ? text : "");
    bson_append_document_end(&stage, &set);
    bson_append_document_end(out, &stage);
}

static enum ob_status mark_failed(struct ob_source *s, const struct ob_settle *settle,
                                  enum which which, mongoc_client_session_t *session,
                                  size_t *missed, struct ob_err *err)
{
    const struct mongo_model *m = s->model;
    mongoc_collection_t *coll = ob_mongo_coll(s, m->events);
    enum ob_status st = OB_OK;
    bson_t opts, none = BSON_INITIALIZER, reply;
    bson_error_t e;
    size_t n = 0;
    ob_mongo_write_opts(&opts, s->conf->timeout_ms, session);
    BSON_APPEND_BOOL(&opts, "ordered", false);
    mongoc_bulk_operation_t *bulk = mongoc_collection_create_bulk_operation_with_opts(coll, &opts);
    for (size_t i = 0; i < settle->n; i++) {
        const struct ob_settle_op *op = &settle->ops[i];
        bson_iter_t id;
        bson_t filter, update;
        if (!is(op, which) || !ob_mongo_ref(op->event, &id))
            continue;
        bson_init(&filter);
        bson_append_iter(&filter, "_id", -1, &id);
        append_ours(s, &filter, true);
        failed_update(s, op, &update);
        mongoc_bulk_operation_update_one_with_opts(bulk, &filter, &update, &none, NULL);
        bson_destroy(&filter);
        bson_destroy(&update);
        n++;
    }
    if (n > 0) {
        if (!mongoc_bulk_operation_execute(bulk, &reply, &e))
            st = ob_mongo_fail(err, "marking", &e, &reply);
        else if ((size_t)ob_mongo_i64(&reply, "nMatched", 0) < n)
            *missed += n - (size_t)ob_mongo_i64(&reply, "nMatched", 0);
        bson_destroy(&reply);
    }
    mongoc_bulk_operation_destroy(bulk);
    bson_destroy(&opts);
    mongoc_collection_destroy(coll);
    return st;
}

static bool any(const struct ob_settle *settle, enum which which)
{
    for (size_t i = 0; i < settle->n; i++)
        if (is(&settle->ops[i], which))
            return true;
    return false;
}

enum ob_status ob_mongo_mark(struct ob_source *s, const struct ob_settle *settle,
                             mongoc_client_session_t *session, size_t *missed, struct ob_err *err)
{
    size_t given_back = 0;
    const struct mongo_model *m = s->model;
    enum ob_status st = OB_OK;
    if (any(settle, DONE))
        st = mark_alike(s, settle, DONE, m->u_done, session, missed, err);
    if (st == OB_OK && any(settle, BACK))
        st = mark_alike(s, settle, BACK, m->u_back, session, &given_back, err);
    if (st == OB_OK && any(settle, RETRIED))
        st = mark_failed(s, settle, RETRIED, session, missed, err);
    if (st == OB_OK && any(settle, DEAD))
        st = m->conf->on_permanent == OB_MAP_MARK_PROCESSED
                 ? mark_alike(s, settle, DEAD, m->u_done, session, missed, err)
                 : mark_failed(s, settle, DEAD, session, missed, err);
    return st;
}
