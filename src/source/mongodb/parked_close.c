/* SPDX-License-Identifier: Apache-2.0 */
/* parked_close - parked rows without a document that waits: it was published by other hands, made
 * dead by them (tests/e2e/test_mongodb_rows.py::test_a_parked_document_that_others_made_dead), or
 * is gone from the collection. What is known of a dead one is taken over from its row. */
#include "source/mongodb/parked.h"

#include <stdlib.h>

static bool to_close(const struct mongo_row *row)
{
    return row->state == ROW_GONE || row->state == ROW_SETTLED || row->state == ROW_DEAD;
}

/* Removes the row; *reply has it as `value`, and is always initialised. */
static enum ob_status take_row(struct mongo_drain *d, const struct mongo_row *row,
                               mongoc_client_session_t *session, bson_t *reply, struct ob_err *err)
{
    bson_t *command = BCON_NEW("findAndModify", BCON_UTF8(d->s->model->parked), "query", "{", "_id",
                               BCON_INT64(row->n), "}", "remove", BCON_BOOL(true));
    enum ob_status st =
        ob_mongo_write(d->s->client, d->s->conf->database, command, d->s->conf->timeout_ms, session,
                       reply, "closing parked events", err);
    bson_destroy(command);
    return st;
}

static enum ob_status bury(struct mongo_drain *d, const struct mongo_row *row, const bson_t *taken,
                           mongoc_client_session_t *session, struct ob_err *err)
{
    mongoc_collection_t *dead = ob_mongo_coll(d->s, d->s->model->dead);
    bson_t *filter = BCON_NEW("_id", BCON_INT64(row->n)), update = BSON_INITIALIZER, set, opts,
           reply;
    bson_error_t e;
    bson_iter_t it, field;
    enum ob_status st = OB_OK;
    BSON_APPEND_DOCUMENT_BEGIN(&update, "$set", &set);
    BSON_APPEND_VALUE(&set, "ref", &row->ref);
    BSON_APPEND_INT64(&set, "hash", row->hash);
    BSON_APPEND_UTF8(&set, "error",
                     row->state == ROW_GONE ? "its document is gone from the collection"
                                            : "others have marked its document as failed, with no "
                                              "attempt left");
    BSON_APPEND_INT64(&set, "attempts", row->attempts);
    BSON_APPEND_DATE_TIME(&set, "at", ob_clock_wall_us(d->s->clock) / 1000);
    BSON_APPEND_BOOL(&set, "hold", false);
    BSON_APPEND_UTF8(&set, "state", "dead");
    if (bson_iter_init_find(&it, taken, "value") && BSON_ITER_HOLDS_DOCUMENT(&it) &&
        bson_iter_recurse(&it, &field))
        while (bson_iter_next(&field)) {
            const char *name = bson_iter_key(&field);
            if (strcmp(name, "id") == 0 || strcmp(name, "history") == 0 ||
                strcmp(name, "destination") == 0)
                bson_append_iter(&set, name, -1, &field);
        }
    bson_append_document_end(&update, &set);
    ob_mongo_write_opts(&opts, d->s->conf->timeout_ms, session);
    BSON_APPEND_BOOL(&opts, "upsert", true);
    if (!mongoc_collection_update_one(dead, filter, &update, &opts, &reply, &e))
        st = ob_mongo_fail(err, "closing parked events", &e, &reply);
    bson_destroy(&reply);
    bson_destroy(&opts);
    bson_destroy(&update);
    bson_destroy(filter);
    mongoc_collection_destroy(dead);
    return st;
}

static enum ob_status run(void *user, mongoc_client_session_t *session, int64_t first,
                          struct ob_err *err)
{
    struct mongo_drain *d = user;
    size_t n_released = 0, n_hashes = 0;
    uint64_t released[1];
    int64_t *hashes = calloc(d->n_rows + 1, sizeof(*hashes));
    enum ob_status st = hashes ? OB_OK : ob_err_set(err, OB_RETRY, "no memory");
    (void)first;
    for (size_t i = 0; st == OB_OK && i < d->n_rows; i++) {
        const struct mongo_row *row = &d->rows[i];
        bson_t taken;
        if (!to_close(row))
            continue;
        hashes[n_hashes++] = row->hash;
        st = take_row(d, row, session, &taken, err);
        if (st == OB_OK && row->state != ROW_SETTLED)
            st = bury(d, row, &taken, session, err);
        bson_destroy(&taken);
    }
    if (st == OB_OK)
        st = ob_mongo_rekey(d->s->client, d->s->conf->database, d->s->model, d->s->conf->timeout_ms,
                            session, hashes, n_hashes, released, 0, &n_released, err);
    free(hashes);
    return st;
}

enum ob_status ob_mongo_close_rows(struct mongo_drain *d, struct ob_err *err)
{
    size_t gone = 0, settled = 0, dead = 0;
    for (size_t i = 0; i < d->n_rows; i++) {
        gone += d->rows[i].state == ROW_GONE;
        settled += d->rows[i].state == ROW_SETTLED;
        dead += d->rows[i].state == ROW_DEAD;
    }
    if (gone + settled + dead == 0)
        return OB_OK;
    ob_log(d->s->log, gone ? OB_LOG_ERROR : OB_LOG_INFO, gone ? "source.gone" : "source.closed",
           OB_KI("gone", gone), OB_KI("settled_by_others", settled), OB_KI("dead_by_others", dead));
    struct mongo_txn t = {.client = d->s->client,
                          .session = d->s->session,
                          .conf = d->s->conf,
                          .model = d->s->model,
                          .clock = d->s->clock,
                          .epoch = d->s->epoch,
                          .owner = d->s->token,
                          .run = run,
                          .user = d};
    enum ob_status st = ob_mongo_transaction(&t, err);
    if (st == OB_FENCED)
        ob_mongo_lost(d->s);
    return st;
}
