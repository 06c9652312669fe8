/* SPDX-License-Identifier: Apache-2.0 */
/* postgres_target - the connection that a producer brings, what its server's answers mean, and the
 * table that is written. */
#include "produce/postgres.h"

#include <stdlib.h>

/* By SQLSTATE; the first that is a prefix counts. */
static const struct {
    const char *prefix;
    enum ob_status status;
    const char *more;
} meanings[] = {
    {"40", OB_RETRY, ""},    /* serialization failure, deadlock */
    {"55P03", OB_RETRY, ""}, /* lock time-out */
    {"57014", OB_RETRY, ""}, /* statement time-out, cancelled */
    {"53400", OB_RETRY, ""}, /* the hard limit of the outbox */
    {"25006", OB_REJECT, "; begin the transaction READ WRITE, on a primary"},
    {"25P02", OB_REJECT, "; roll back first"},
    {"57P", OB_DOWN, ""},
    {"08", OB_DOWN, ""},
    {"53", OB_DOWN, ""},
    {"58", OB_DOWN, ""},
    {"XX", OB_DOWN, ""},
    {"3F000", OB_FATAL, "; run `outbox schema --apply`"},
    {"42883", OB_FATAL, "; run `outbox schema --apply`"},
    {"42501", OB_FATAL, "; who writes events needs the role outbox_writer, or INSERT on the table"},
    {"22", OB_REJECT, ""},
    {"23", OB_REJECT, ""},
    {"54", OB_REJECT, ""},
    {"", OB_FATAL, ""},
};

/* One line; never DETAIL or CONTEXT, where values of the row stand. */
static enum ob_status failed(const PGresult *res, const char *state, struct ob_err *err)
{
    const char *text = PQresultErrorField(res, PG_DIAG_MESSAGE_PRIMARY);
    const char *hint = PQresultErrorField(res, PG_DIAG_MESSAGE_HINT);
    size_t i = 0;

    while (strncmp(state, meanings[i].prefix, strlen(meanings[i].prefix)) != 0)
        i++;
    return ob_err_set(err, meanings[i].status, "%s (SQLSTATE %s)%s%s%s", text ? text : "it failed",
                      state, hint ? ". " : "", hint ? hint : "", meanings[i].more);
}

enum ob_status ob_produce_pg_meaning(const PGconn *conn, const PGresult *res, struct ob_err *err)
{
    const char *state = res ? PQresultErrorField(res, PG_DIAG_SQLSTATE) : NULL;
    ExecStatusType got = res ? PQresultStatus(res) : PGRES_FATAL_ERROR;
    char text[256];

    if (got != PGRES_FATAL_ERROR && got != PGRES_BAD_RESPONSE)
        return OB_OK;
    if (state && PQstatus(conn) == CONNECTION_OK)
        return failed(res, state, err);
    snprintf(text, sizeof(text), "%s", PQerrorMessage(conn));
    text[strcspn(text, "\n")] = '\0';
    return ob_err_set(err, OB_DOWN, "%s", text[0] ? text : "the connection is lost");
}

enum outbox_status outbox_pg_result(const PGconn *conn, const PGresult *result,
                                    struct outbox_error *err)
{
    struct ob_err why = {.text = ""};
    return ob_produce_give(ob_produce_pg_meaning(conn, result, &why), &why, err);
}

static enum ob_status encoding(PGconn *conn, struct ob_err *err)
{
    const char *name = PQparameterStatus(conn, "client_encoding");

    if (name && strcmp(name, "UTF8") == 0)
        return OB_OK;
    return ob_err_set(err, OB_REJECT,
                      "the connection's client_encoding is %s and events are UTF-8: call "
                      "PQsetClientEncoding(conn, \"UTF8\")",
                      name ? name : "unknown");
}

enum ob_status ob_produce_pg_ready(PGconn *conn, bool transaction, struct ob_err *err)
{
    const char *standby;

    if (!conn || PQstatus(conn) != CONNECTION_OK)
        return ob_err_set(err, OB_DOWN, "there is no connection");
    if (PQpipelineStatus(conn) != PQ_PIPELINE_OFF)
        return ob_err_set(err, OB_REJECT,
                          "the connection is in pipeline mode: leave it with PQexitPipelineMode()");
    switch (PQtransactionStatus(conn)) {
    case PQTRANS_ACTIVE:
        return ob_err_set(err, OB_REJECT,
                          "another statement or COPY is running on the connection: take all of its "
                          "results first");
    case PQTRANS_INERROR:
        return ob_err_set(err, OB_REJECT, "the transaction has failed: roll back first");
    case PQTRANS_IDLE:
        if (transaction)
            return ob_err_set(err, OB_REJECT,
                              "no transaction is open: begin one, so that the event is committed "
                              "together with the change that it tells of");
        break;
    case PQTRANS_INTRANS:
        break;
    default:
        return ob_err_set(err, OB_DOWN, "the connection is lost");
    }
    standby = PQparameterStatus(conn, "in_hot_standby");
    if (transaction && standby && strcmp(standby, "on") == 0)
        return ob_err_set(err, OB_DOWN,
                          "the server is a stand-by: connect with target_session_attrs=read-write");
    return encoding(conn, err);
}

enum ob_status ob_produce_pg_run(PGconn *conn, const struct ob_pg_call *call, PGresult **out,
                                 struct ob_err *err)
{
    PGresult *res =
        PQexecParams(conn, call->sql, call->n, NULL, call->value, call->length, call->format, 0);
    enum ob_status st = ob_produce_pg_meaning(conn, res, err);

    if (st == OB_OK && out)
        *out = res;
    else
        PQclear(res);
    return st;
}

/* ---- target ---- */

static enum ob_status set_columns(const struct outbox_pg_options *o, struct ob_pg_table_conf *conf,
                                  struct ob_err *err)
{
    for (size_t i = 0; i < o->n_columns; i++) {
        size_t f = 0;
        const char *name = o->columns[i].field ? o->columns[i].field : "";
        while (f < OB_PG_FIELDS && strcmp(ob_pg_field_names[f], name) != 0)
            f++;
        if (f == OB_PG_FIELDS)
            return ob_err_set(err, OB_REJECT, "an event has no field '%.64s'", name);
        conf->column[f] = o->columns[i].column;
    }
    return OB_OK;
}

static enum ob_status describe(const struct outbox_pg_options *o, struct ob_pg_stream *streams,
                               struct ob_pg_table_conf *conf, struct ob_err *err)
{
    const struct ob_pg_table_conf *profile = o->profile ? ob_produce_pg_profile(o->profile) : NULL;

    *conf = (struct ob_pg_table_conf){0};
    if (o->profile && !profile)
        return ob_err_set(err, OB_REJECT, "there is no profile '%.64s'; there are %s", o->profile,
                          ob_produce_pg_profile_names);
    if (profile)
        *conf = *profile;
    conf->schema = o->schema;
    if (o->table)
        conf->table = o->table;
    if (!conf->table)
        return ob_err_set(err, OB_REJECT, "columns without a profile need a table");
    if (o->pending)
        conf->pending = conf->pending_number = o->pending;
    for (size_t i = 0; i < o->n_streams; i++) {
        if (!o->streams[i].prefix || !o->streams[i].stream)
            return ob_err_set(err, OB_REJECT, "a stream needs a prefix and a name");
        streams[i] = (struct ob_pg_stream){o->streams[i].prefix, o->streams[i].stream};
    }
    if (o->n_streams) {
        conf->streams = streams;
        conf->n_streams = o->n_streams;
    }
    return set_columns(o, conf, err);
}

static enum ob_status look_up(PGconn *conn, const struct outbox_pg_options *o,
                              struct ob_pg_table **out, struct ob_err *err)
{
    struct ob_pg_stream *streams = calloc(o->n_streams + 1, sizeof(*streams));
    struct ob_pg_table_conf conf;
    struct ob_pg_call call;
    struct ob_buf name;
    PGresult *res = NULL;
    enum ob_status st =
        streams ? describe(o, streams, &conf, err) : ob_err_set(err, OB_DOWN, "no memory");

    ob_buf_init(&name, 1024);
    if (st == OB_OK)
        st = ob_produce_pg_ready(conn, false, err);
    if (st == OB_OK) {
        ob_pg_table_lookup(&conf, &name, &call);
        st = name.failed ? ob_err_set(err, OB_REJECT, "the name of the table is too long")
                         : ob_produce_pg_run(conn, &call, &res, err);
    }
    if (st == OB_OK)
        st = ob_pg_table_new(&conf, res, out, err);
    PQclear(res);
    ob_buf_clear(&name);
    free(streams);
    return st;
}

enum outbox_status outbox_pg_target_open(PGconn *conn, const struct outbox_pg_options *o,
                                         struct outbox_pg_target **out, struct outbox_error *err)
{
    struct ob_err why = {.text = ""};
    struct outbox_pg_target *t = calloc(1, sizeof(*t));
    enum ob_status st = t ? OB_OK : ob_err_set(&why, OB_DOWN, "no memory");

    if (st == OB_OK && (o->flags & ~(unsigned)OUTBOX_PG_SERIALIZE))
        st = ob_err_set(&why, OB_REJECT, "flags %#x are not all known", o->flags);
    if (st == OB_OK) {
        t->serialize = o->flags & OUTBOX_PG_SERIALIZE;
        if (o->profile || o->table || o->n_columns)
            st = look_up(conn, o, &t->table, &why);
    }
    if (st == OB_OK)
        *out = t;
    else
        free(t);
    return ob_produce_give(st, &why, err);
}

void outbox_pg_target_close(struct outbox_pg_target *t)
{
    if (!t)
        return;
    ob_pg_table_free(t->table);
    free(t);
}
