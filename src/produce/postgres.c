/* SPDX-License-Identifier: Apache-2.0 */
/* postgres - writing events into the transaction that is open on the caller's libpq connection.
 * Outside of one they are refused: an event that is committed by itself tells of a change that may
 * never be. */
#include "produce/postgres.h"

#include "core/backoff.h"
#include "core/clock.h"

#include <time.h>

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

static enum ob_status add_all(struct ob_pg_batch *b, const struct outbox_ctx *ctx,
                              const struct input *in, struct ob_err *err)
{
    struct ob_buf metadata, payload;
    enum ob_status st = OB_OK;

    ob_buf_init(&metadata, 0);
    ob_buf_init(&payload, 0);
    for (size_t i = 0; i < in->n && st == OB_OK; i++) {
        struct ob_row row;
        st = ob_produce_row(ctx, event_of(in, i), &metadata, &row, err);
        if (st == OB_OK && ob_pg_table_context_in_payload(b->table))
            st = ob_produce_context_payload(ctx, &payload, &row, err);
        if (st == OB_OK)
            st = ob_pg_batch_add(b, &row, err);
        if (st != OB_OK && in->n > 1)
            ob_err_prefix(err, "event %zu of %zu", i + 1, in->n);
    }
    ob_buf_clear(&metadata);
    ob_buf_clear(&payload);
    return st;
}

static enum ob_status emit(PGconn *conn, const struct outbox_pg_target *target,
                           const struct outbox_ctx *ctx, const struct input *in,
                           char (*ids)[OUTBOX_ID_SIZE], struct ob_err *err)
{
    struct ob_pg_batch b;
    struct ob_pg_call call;
    enum ob_status st = ob_produce_pg_ready(conn, true, err);

    if (st != OB_OK || in->n == 0)
        return st;
    ob_pg_batch_init(&b, target ? target->table : NULL);
    st = add_all(&b, ctx, in, err);
    if (st == OB_OK)
        st = ob_pg_batch_call(&b, target && target->serialize, &call, err);
    if (st == OB_OK)
        st = ob_produce_pg_run(conn, &call, NULL, err);
    if (st == OB_OK && ids)
        ob_pg_batch_ids(&b, ids);
    ob_pg_batch_clear(&b);
    return st;
}

enum outbox_status outbox_pg_emit_many(PGconn *conn, const struct outbox_pg_target *target,
                                       const struct outbox_ctx *ctx,
                                       const struct outbox_event *events, size_t n,
                                       char (*ids)[OUTBOX_ID_SIZE], struct outbox_error *err)
{
    const struct input in = {.events = events, .n = n};
    struct ob_err why = {.text = ""};

    return ob_produce_give(emit(conn, target, ctx, &in, ids, &why), &why, err);
}

enum outbox_status outbox_pg_emit(PGconn *conn, const struct outbox_pg_target *target,
                                  const struct outbox_ctx *ctx, const struct outbox_event *event,
                                  char *id, struct outbox_error *err)
{
    return outbox_pg_emit_many(conn, target, ctx, event, 1, (char(*)[OUTBOX_ID_SIZE])(void *)id,
                               err);
}

static enum ob_status exists(PGconn *conn, const struct ob_pg_table *table, const char *id,
                             bool *found, struct ob_err *err)
{
    struct ob_pg_call call;
    struct ob_buf sql;
    PGresult *res = NULL;
    enum ob_status st = ob_produce_pg_ready(conn, false, err);

    ob_buf_init(&sql, 4096);
    if (st == OB_OK)
        st = ob_pg_table_exists(table, id, &sql, &call, err);
    if (st == OB_OK)
        st = ob_produce_pg_run(conn, &call, &res, err);
    if (st == OB_OK)
        *found = PQgetvalue(res, 0, 0)[0] == 't';
    PQclear(res);
    ob_buf_clear(&sql);
    return st;
}

enum outbox_status outbox_pg_exists(PGconn *conn, const struct outbox_pg_target *target,
                                    const char *id, bool *found, struct outbox_error *err)
{
    struct ob_err why = {.text = ""};

    return ob_produce_give(exists(conn, target ? target->table : NULL, id, found, &why), &why, err);
}

static enum ob_status write_collected(PGconn *conn, const struct outbox_pg_target *target,
                                      const struct outbox_ctx *ctx,
                                      const struct outbox_collector *c, struct ob_err *err)
{
    const struct input in = {.collector = c, .n = outbox_collector_count(c)};

    return emit(conn, target, ctx, &in, NULL, err);
}

enum outbox_status outbox_pg_write(PGconn *conn, const struct outbox_pg_target *target,
                                   const struct outbox_ctx *ctx,
                                   const struct outbox_collector *collector,
                                   struct outbox_error *err)
{
    struct ob_err why = {.text = ""};

    return ob_produce_give(write_collected(conn, target, ctx, collector, &why), &why, err);
}

/* ---- transaction ---- */

static enum ob_status exec(PGconn *conn, const char *sql, struct ob_err *err)
{
    PGresult *res = PQexec(conn, sql);
    enum ob_status st = ob_produce_pg_meaning(conn, res, err);

    PQclear(res);
    return st;
}

/* A COMMIT of a failed transaction is answered with a friendly ROLLBACK. */
static enum ob_status commit(PGconn *conn, struct ob_err *err)
{
    PGresult *res = PQexec(conn, "COMMIT");
    enum ob_status st = ob_produce_pg_meaning(conn, res, err);

    if (st == OB_OK && strcmp(PQcmdStatus(res), "COMMIT") != 0)
        st = ob_err_set(err, OB_REJECT, "the transaction had failed and was rolled back");
    else if (st == OB_DOWN && PQstatus(conn) != CONNECTION_OK)
        ob_err_prefix(err, "the transaction may or may not be committed");
    PQclear(res);
    return st;
}

static enum ob_status call(PGconn *conn, outbox_pg_fn *fn, void *user, struct ob_err *err)
{
    struct outbox_error theirs = {.text = ""};
    enum ob_status st = (enum ob_status)fn(conn, user, &theirs);

    if (st != OB_OK)
        return ob_err_set(err, st, "%s",
                          theirs.text[0] ? theirs.text : "the transaction's function gave up");
    if (PQstatus(conn) == CONNECTION_OK && PQtransactionStatus(conn) == PQTRANS_IDLE)
        return ob_err_set(err, OB_FATAL,
                          "the transaction's function ended the transaction: nothing of it may "
                          "begin, commit or roll back");
    return OB_OK;
}

/* Leaves the connection outside of any transaction, whatever fn left on it. */
static void roll_back(PGconn *conn)
{
    if (PQpipelineStatus(conn) != PQ_PIPELINE_OFF)
        (void)PQpipelineSync(conn); /* results of what has no sync behind it never come */
    while (PQpipelineStatus(conn) != PQ_PIPELINE_OFF && PQstatus(conn) == CONNECTION_OK) {
        PQclear(PQgetResult(conn));
        (void)PQexitPipelineMode(conn);
    }
    /* PQexec() also ends a COPY and takes the results that nobody took. */
    if (PQstatus(conn) == CONNECTION_OK && PQtransactionStatus(conn) != PQTRANS_IDLE)
        PQclear(PQexec(conn, "ROLLBACK"));
}

struct work {
    const struct outbox_pg_target *target;
    const struct outbox_ctx *ctx;
    struct outbox_collector *collector;
    outbox_pg_fn *fn;
    void *user;
};

static enum ob_status once(PGconn *conn, const struct work *w, enum outbox_pg_isolation isolation,
                           struct ob_err *err)
{
    static const char *const begin[] = {
        [OUTBOX_PG_DEFAULT] = "BEGIN",
        [OUTBOX_PG_READ_COMMITTED] = "BEGIN ISOLATION LEVEL READ COMMITTED",
        [OUTBOX_PG_REPEATABLE_READ] = "BEGIN ISOLATION LEVEL REPEATABLE READ",
        [OUTBOX_PG_SERIALIZABLE] = "BEGIN ISOLATION LEVEL SERIALIZABLE",
    };
    size_t before = w->collector ? outbox_collector_count(w->collector) : 0;
    enum ob_status st = exec(conn, begin[isolation], err);

    if (st != OB_OK)
        return st;
    st = call(conn, w->fn, w->user, err);
    if (st == OB_OK && w->collector)
        st = write_collected(conn, w->target, w->ctx, w->collector, err);
    if (st == OB_OK)
        st = ob_produce_pg_ready(conn, true, err);
    if (st == OB_OK)
        st = commit(conn, err);
    if (st != OB_OK)
        roll_back(conn);
    if (w->collector)
        ob_collector_cut(w->collector, st == OB_OK ? 0 : before);
    return st;
}

static void rest(unsigned failures)
{
    static const struct ob_backoff pace = {5, 200, 200, 50};
    struct ob_rand r = {(uint64_t)ob_clock_mono_ms(&ob_clock_system)};
    long ms = (long)ob_backoff_ms(&pace, failures, &r);
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};

    nanosleep(&t, NULL);
}

enum outbox_status outbox_pg_transaction(PGconn *conn, const struct outbox_pg_target *target,
                                         const struct outbox_ctx *ctx,
                                         struct outbox_collector *collector,
                                         const struct outbox_pg_begin *begin, outbox_pg_fn *fn,
                                         void *user, struct outbox_error *err)
{
    const struct work w = {target, ctx, collector, fn, user};
    enum outbox_pg_isolation isolation = begin ? begin->isolation : OUTBOX_PG_DEFAULT;
    unsigned retries = begin ? begin->retries : 0;
    struct ob_err why = {.text = ""};
    enum ob_status st = ob_produce_pg_ready(conn, false, &why);

    if (st == OB_OK && PQtransactionStatus(conn) != PQTRANS_IDLE)
        st = ob_err_set(&why, OB_REJECT, "a transaction is open already");
    if (st == OB_OK && (unsigned)isolation > OUTBOX_PG_SERIALIZABLE)
        st = ob_err_set(&why, OB_REJECT, "isolation %d is none", (int)isolation);
    if (st != OB_OK)
        return ob_produce_give(st, &why, err);
    for (unsigned attempt = 0;; attempt++) {
        st = once(conn, &w, isolation, &why);
        if (st != OB_RETRY || attempt >= retries || PQstatus(conn) != CONNECTION_OK)
            break;
        rest(attempt + 1);
    }
    return ob_produce_give(st, &why, err);
}
