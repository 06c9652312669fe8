/* SPDX-License-Identifier: Apache-2.0 */
/* admin_emit - events written by people: into the native outbox, or into the mapped table. */
#include "event/pg_table.h"
#include "source/postgres/admin.h"

#include <stdlib.h>

/* By the same statements as the library's: outbox.emit_batch(), or an insert into the table. */
static enum ob_status write_batch(struct ob_admin *a, struct ob_pg_batch *b, struct ob_err *err)
{
    struct pg_param p[OB_PG_CALL_MAX];
    struct ob_pg_call call;
    enum ob_status st = ob_pg_batch_call(b, false, &call, err);
    for (int i = 0; st == OB_OK && i < call.n; i++)
        p[i] = (struct pg_param){call.value[i], call.length[i], call.format[i] != 0};
    if (st == OB_OK)
        st = ob_pg_query(&a->db, call.sql, p, (size_t)call.n, false, NULL, err);
    return st;
}

static enum ob_status add_events(struct ob_pg_batch *b, const struct ob_emit *events, size_t n,
                                 struct ob_err *err)
{
    enum ob_status st = OB_OK;
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
        st = ob_pg_batch_add(b, &row, err);
        if (st != OB_OK && n > 1)
            ob_err_prefix(err, "event %zu", i + 1);
    }
    return st;
}

/* The table that the config describes; *out stays NULL for the native one. */
static enum ob_status find_table(struct ob_admin *a, struct ob_pg_table **out, struct ob_err *err)
{
    const struct ob_mapping *m = &a->conf->mapping;
    struct ob_pg_table_conf conf;
    struct ob_pg_call call;
    struct ob_buf name;
    PGresult *res = NULL;
    struct ob_pg_stream *streams = calloc(m->streams.n + 1, sizeof(*streams));
    if (!streams)
        return ob_err_set(err, OB_DOWN, "no memory");
    ob_pg_table_describe(m, streams, &conf);
    ob_buf_init(&name, 1024);
    ob_pg_table_lookup(&conf, &name, &call);
    const struct pg_param p = PG_TEXT(call.value[0]);
    enum ob_status st = ob_pg_query(&a->db, call.sql, &p, 1, false, &res, err);
    if (st == OB_OK)
        st = ob_pg_table_new(&conf, res, out, err);
    PQclear(res);
    ob_buf_clear(&name);
    free(streams);
    return st;
}

/* Where no table has them: messages of the WAL. */
static enum ob_status emit_messages(struct ob_admin *a, const struct ob_emit *events, size_t n,
                                    char (*ids)[64], struct ob_err *err)
{
    enum ob_status st = ob_pg_exec(&a->db, "begin", err);
    for (size_t i = 0; i < n && st == OB_OK; i++)
        st = ob_pg_stream_emit(a, &events[i], ids ? ids[i] : NULL, err);
    if (st == OB_OK)
        st = ob_pg_exec(&a->db, "commit", err);
    ob_pg_rollback(&a->db);
    return st;
}

enum ob_status ob_pg_admin_emit(struct ob_admin *a, const struct ob_emit *events, size_t n,
                                char (*ids)[64], struct ob_err *err)
{
    struct ob_pg_table *table = NULL;
    struct ob_pg_batch b;
    enum ob_status st = ob_pg_admin_need(a, err);
    if (st == OB_OK && a->conf->mode == PG_WAL && a->conf->message_prefix[0])
        return emit_messages(a, events, n, ids, err);
    if (st == OB_OK && a->conf->mapping.table)
        st = find_table(a, &table, err);
    if (st != OB_OK)
        return st;
    ob_pg_batch_init(&b, table);
    st = add_events(&b, events, n, err);
    if (st == OB_OK && n > 0)
        st = write_batch(a, &b, err);
    if (st == OB_OK && n > 0 && ids)
        ob_pg_batch_ids(&b, ids);
    ob_pg_batch_clear(&b);
    ob_pg_table_free(table);
    return st;
}
