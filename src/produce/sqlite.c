/* SPDX-License-Identifier: Apache-2.0 */
/* sqlite - writing events into the transaction that is open on the caller's connection. Outside of
 * one they are refused: an event that is committed by itself tells of a change that may never
 * be. */
#include "event/sqlite_table.h"
#include "produce/produce.h"

#include <sqlite3.h>

enum outbox_status outbox_sqlite_schema(sqlite3 *db, struct outbox_error *err)
{
    struct ob_err why = {.text = ""};
    unsigned changed;

    return ob_produce_give(ob_sqlite_table_migrate(db, false, NULL, &changed, &why), &why, err);
}

/* events or collector. */
struct input {
    const struct outbox_event *events;
    const struct outbox_collector *collector;
    size_t n;
};

static const struct outbox_event *event_of(const struct input *in, size_t i)
{
    return in->collector ? ob_collector_event(in->collector, i) : &in->events[i];
}

static enum ob_status insert_all(sqlite3 *db, const struct outbox_ctx *ctx, const struct input *in,
                                 char (*ids)[OUTBOX_ID_SIZE], struct ob_err *err)
{
    sqlite3_stmt *insert = NULL;
    struct ob_buf metadata;
    enum ob_status st = ob_sqlite_insert_prepare(db, &insert, err);

    ob_buf_init(&metadata, 0);
    for (size_t i = 0; i < in->n && st == OB_OK; i++) {
        struct ob_row row;
        st = ob_produce_row(ctx, event_of(in, i), &metadata, &row, err);
        if (st == OB_OK)
            st = ob_sqlite_insert(insert, &row, ids ? ids[i] : NULL, err);
        if (st != OB_OK && in->n > 1)
            ob_err_prefix(err, "event %zu of %zu", i + 1, in->n);
    }
    sqlite3_finalize(insert);
    ob_buf_clear(&metadata);
    return st;
}

/* All or none: a savepoint takes back the first ones when a later one fails. */
static enum ob_status emit(sqlite3 *db, const struct outbox_ctx *ctx, const struct input *in,
                           char (*ids)[OUTBOX_ID_SIZE], struct ob_err *err)
{
    enum ob_status st;

    if (sqlite3_get_autocommit(db))
        return ob_err_set(err, OB_REJECT,
                          "no transaction is open: begin one, so that the event is committed "
                          "together with the change that it tells of");
    if (in->n == 0)
        return OB_OK;
    st = ob_sqlite_exec(db, "SAVEPOINT outbox_emit", err);
    if (st != OB_OK)
        return st;
    st = insert_all(db, ctx, in, ids, err);
    /* Some failures (a full disk) roll the whole transaction back by themselves. */
    if (st != OB_OK && !sqlite3_get_autocommit(db))
        sqlite3_exec(db, "ROLLBACK TO outbox_emit", NULL, NULL, NULL);
    if (!sqlite3_get_autocommit(db))
        sqlite3_exec(db, "RELEASE outbox_emit", NULL, NULL, NULL);
    return st;
}

enum outbox_status outbox_sqlite_emit_many(sqlite3 *db, const struct outbox_ctx *ctx,
                                           const struct outbox_event *events, size_t n,
                                           char (*ids)[OUTBOX_ID_SIZE], struct outbox_error *err)
{
    const struct input in = {.events = events, .n = n};
    struct ob_err why = {.text = ""};

    return ob_produce_give(emit(db, ctx, &in, ids, &why), &why, err);
}

enum outbox_status outbox_sqlite_emit(sqlite3 *db, const struct outbox_ctx *ctx,
                                      const struct outbox_event *event, char *id,
                                      struct outbox_error *err)
{
    return outbox_sqlite_emit_many(db, ctx, event, 1, (char(*)[OUTBOX_ID_SIZE])(void *)id, err);
}

static enum ob_status exists(sqlite3 *db, const char *id, bool *found, struct ob_err *err)
{
    sqlite3_stmt *st = NULL;
    enum ob_status ret = OB_OK;
    int rc = sqlite3_prepare_v2(db, "SELECT 1 FROM outbox_event WHERE id = ?1", -1, &st, NULL);

    if (rc == SQLITE_OK)
        rc = sqlite3_bind_text(st, 1, id, -1, SQLITE_STATIC);
    if (rc == SQLITE_OK)
        rc = sqlite3_step(st);
    if (rc == SQLITE_ROW || rc == SQLITE_DONE)
        *found = rc == SQLITE_ROW;
    else
        ret = ob_sqlite_fail(err, db, rc, "looking for an event");
    sqlite3_finalize(st);
    return ret;
}

enum outbox_status outbox_sqlite_exists(sqlite3 *db, const char *id, bool *found,
                                        struct outbox_error *err)
{
    struct ob_err why = {.text = ""};

    return ob_produce_give(exists(db, id, found, &why), &why, err);
}

static enum ob_status write_collected(sqlite3 *db, const struct outbox_ctx *ctx,
                                      const struct outbox_collector *c, struct ob_err *err)
{
    const struct input in = {.collector = c, .n = outbox_collector_count(c)};

    return emit(db, ctx, &in, NULL, err);
}

enum outbox_status outbox_sqlite_write(sqlite3 *db, const struct outbox_ctx *ctx,
                                       const struct outbox_collector *collector,
                                       struct outbox_error *err)
{
    struct ob_err why = {.text = ""};

    return ob_produce_give(write_collected(db, ctx, collector, &why), &why, err);
}

static enum ob_status call(sqlite3 *db, outbox_sqlite_fn *fn, void *user, struct ob_err *err)
{
    struct outbox_error theirs = {.text = ""};
    enum ob_status st = (enum ob_status)fn(db, user, &theirs);

    if (st != OB_OK)
        return ob_err_set(err, st, "%s",
                          theirs.text[0] ? theirs.text : "the transaction's function gave up");
    if (sqlite3_get_autocommit(db))
        return ob_err_set(err, OB_FATAL,
                          "the transaction's function ended the transaction: nothing of it may "
                          "begin, commit or roll back");
    return OB_OK;
}

enum outbox_status outbox_sqlite_transaction(sqlite3 *db, const struct outbox_ctx *ctx,
                                             struct outbox_collector *collector,
                                             outbox_sqlite_fn *fn, void *user,
                                             struct outbox_error *err)
{
    struct ob_err why = {.text = ""};
    size_t before = collector ? outbox_collector_count(collector) : 0;
    enum ob_status st;

    if (!sqlite3_get_autocommit(db))
        st = ob_err_set(&why, OB_REJECT, "a transaction is open already");
    else
        st = ob_sqlite_exec(db, "BEGIN IMMEDIATE", &why);
    if (st != OB_OK)
        return ob_produce_give(st, &why, err);
    st = call(db, fn, user, &why);
    if (st == OB_OK && collector)
        st = write_collected(db, ctx, collector, &why);
    if (st == OB_OK)
        st = ob_sqlite_exec(db, "COMMIT", &why);
    if (st != OB_OK && !sqlite3_get_autocommit(db))
        sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL);
    if (collector)
        ob_collector_cut(collector, st == OB_OK ? 0 : before);
    return ob_produce_give(st, &why, err);
}
