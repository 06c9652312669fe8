/* SPDX-License-Identifier: Apache-2.0 */
/* admin_emit - events written by people, as the library writes them: native documents, or those of
 * the mapped collection. */
#include "event/bson.h"
#include "event/mongo_doc.h"
#include "source/mongodb/admin.h"

#include <stdlib.h>

#define DUPLICATE 11000
#define INVALID 121 /* DocumentValidationFailure */

struct emitting {
    struct ob_admin *a;
    struct ob_buf bytes; /* documents, one behind the other */
    bson_t *docs;
    const bson_t **list;
    size_t n;
    struct ob_err why; /* what the server did not take */
};

static enum ob_status make(struct emitting *m, const struct ob_emit *events, size_t n,
                           char (*ids)[64], struct ob_err *err)
{
    struct ob_mongo_shape shape = {.map = m->a->model->conf,
                                   .native = m->a->model->native,
                                   .document = !m->a->model->native,
                                   .nulls = !m->a->model->native,
                                   .strict = m->a->model->entity && !m->a->model->native &&
                                             m->a->model->f[OB_MAP_ENTITY_VERSION]};
    int64_t now_ms = ob_clock_wall_us(m->a->clock) / 1000;
    char unused[64] = "";
    enum ob_status st = ob_mongo_shape_check(&shape, err);
    for (size_t i = 0; i < n && st == OB_OK; i++) {
        const struct ob_emit *e = &events[i];
        const struct ob_row row = {.id = e->id,
                                   .type = e->type,
                                   .aggregate_type = e->aggregate_type,
                                   .aggregate_id = e->aggregate_id,
                                   .key = e->key,
                                   .tenant = e->tenant,
                                   .topic = e->topic,
                                   .payload = e->payload,
                                   .headers = e->headers,
                                   .metadata = e->metadata,
                                   .payload_kind = e->payload_kind,
                                   .entity_version = e->entity_version,
                                   .schema_version = e->schema_version};
        st = ob_mongo_doc(&shape, &row, now_ms, &m->bytes, ids ? ids[i] : unused, err);
        if (st != OB_OK && n > 1)
            ob_err_prefix(err, "event %zu", i + 1);
    }
    return st;
}

static enum ob_status list(struct emitting *m, struct ob_err *err)
{
    size_t at = 0;
    for (size_t i = 0; i < m->n; i++) {
        size_t n = ob_bson_u32(m->bytes.p + at);
        if (!bson_init_static(&m->docs[i], (const uint8_t *)m->bytes.p + at, n))
            return ob_err_set(err, OB_FATAL, "libbson does not take document %zu", i);
        m->list[i] = &m->docs[i];
        at += n;
    }
    return OB_OK;
}

static bool insert(mongoc_client_session_t *session, void *user, bson_t **reply, bson_error_t *e)
{
    struct emitting *m = user;
    mongoc_collection_t *coll = ob_mongo_admin_coll(m->a, m->a->model->events);
    bson_t opts = BSON_INITIALIZER, said;
    bool ok = mongoc_client_session_append(session, &opts, e);
    BSON_APPEND_BOOL(&opts, "validate", false); /* names of a payload may be empty */
    if (ok) {
        ok = mongoc_collection_insert_many(coll, m->list, m->n, &opts, &said, e);
        *reply = bson_copy(&said); /* the caller's */
        bson_destroy(&said);
    }
    if (!ok && e->code == DUPLICATE)
        m->why.status = ob_err_set(&m->why, OB_REJECT, "an event with this id is there already");
    else if (!ok && e->code == INVALID)
        m->why.status =
            ob_err_set(&m->why, OB_REJECT, "the collection's validator does not take the document");
    bson_destroy(&opts);
    mongoc_collection_destroy(coll);
    return ok;
}

static enum ob_status write_all(struct emitting *m, struct ob_err *err)
{
    mongoc_transaction_opt_t *opts = mongoc_transaction_opts_new();
    mongoc_write_concern_t *wc = mongoc_write_concern_new();
    bson_error_t e = {0};
    bson_t reply;
    enum ob_status st = OB_OK;
    mongoc_write_concern_set_wmajority(wc, (int32_t)m->a->conf->timeout_ms);
    mongoc_transaction_opts_set_write_concern(opts, wc);
    mongoc_client_session_t *session = mongoc_client_start_session(m->a->client, NULL, &e);
    m->why.status = OB_OK;
    if (!session)
        st = ob_mongo_fail(err, "a session", &e, NULL);
    else if (!mongoc_client_session_with_transaction(session, insert, opts, m, &reply, &e))
        st = m->why.status != OB_OK ? ob_err_set(err, m->why.status, "%s", m->why.text)
                                    : ob_mongo_fail(err, "emit", &e, &reply);
    if (session) {
        bson_destroy(&reply);
        mongoc_client_session_destroy(session);
    }
    mongoc_transaction_opts_destroy(opts);
    mongoc_write_concern_destroy(wc);
    return st;
}

enum ob_status ob_mongo_admin_emit(struct ob_admin *a, const struct ob_emit *events, size_t n,
                                   char (*ids)[64], struct ob_err *err)
{
    struct emitting m = {.a = a, .n = n};
    enum ob_status st = ob_mongo_admin_need(a, err);
    if (st != OB_OK || n == 0)
        return st;
    ob_buf_init(&m.bytes, (size_t)512 << 20);
    m.docs = aligned_alloc(_Alignof(bson_t), n * sizeof(*m.docs));
    m.list = calloc(n, sizeof(*m.list));
    st = m.docs && m.list ? make(&m, events, n, ids, err) : ob_err_set(err, OB_DOWN, "no memory");
    if (st == OB_OK)
        st = list(&m, err);
    if (st == OB_OK)
        st = write_all(&m, err);
    free(m.docs);
    free(m.list);
    ob_buf_clear(&m.bytes);
    return st;
}
