/* SPDX-License-Identifier: Apache-2.0 */
/* pg_table - a table of another system as the catalog knows it. */
#include "event/pg_table.h"

#include "event/pg_column.h"

#include <libpq-fe.h>
#include <stdlib.h>

const char *const ob_pg_field_names[OB_PG_FIELDS] = {
    [OB_PG_ID] = "id",
    [OB_PG_TYPE] = "type",
    [OB_PG_AGGREGATE_TYPE] = "aggregate_type",
    [OB_PG_AGGREGATE_ID] = "aggregate_id",
    [OB_PG_KEY] = "key",
    [OB_PG_TENANT] = "tenant",
    [OB_PG_TOPIC] = "topic",
    [OB_PG_STREAM] = "stream",
    [OB_PG_PAYLOAD] = "payload",
    [OB_PG_HEADERS] = "headers",
    [OB_PG_METADATA] = "metadata",
    [OB_PG_ENTITY_VERSION] = "entity_version",
    [OB_PG_SCHEMA_VERSION] = "schema_version",
    [OB_PG_MAX_ATTEMPTS] = "max_attempts",
    [OB_PG_CREATED] = "created",
    [OB_PG_STATUS] = "status",
    [OB_PG_DONE] = "done",
    [OB_PG_ATTEMPTS] = "attempts",
};

/* Of several values the first that fits: a number for a column of numbers. */
static void describe_status(const struct ob_opt_list *pending, struct ob_pg_table_conf *out)
{
    for (size_t i = pending->n; i-- > 0;) {
        const char *v = pending->values[i];
        if (v[strspn(v, "-0123456789")] == '\0')
            out->pending_number = v;
        else
            out->pending = v;
    }
    if (!out->pending)
        out->pending = out->pending_number;
}

void ob_pg_table_describe(const struct ob_mapping *m, struct ob_pg_stream *streams,
                          struct ob_pg_table_conf *out)
{
    static const enum ob_map_role roles[OB_PG_FIELDS] = {
        [OB_PG_ID] = OB_MAP_ID,
        [OB_PG_TYPE] = OB_MAP_TYPE,
        [OB_PG_AGGREGATE_TYPE] = OB_MAP_AGGREGATE_TYPE,
        [OB_PG_AGGREGATE_ID] = OB_MAP_AGGREGATE_ID,
        [OB_PG_KEY] = OB_MAP_KEY,
        [OB_PG_TENANT] = OB_MAP_TENANT,
        [OB_PG_TOPIC] = OB_MAP_TOPIC,
        [OB_PG_STREAM] = OB_MAP_STREAM,
        [OB_PG_PAYLOAD] = OB_MAP_PAYLOAD,
        [OB_PG_HEADERS] = OB_MAP_HEADERS,
        [OB_PG_METADATA] = OB_MAP_METADATA,
        [OB_PG_ENTITY_VERSION] = OB_MAP_ENTITY_VERSION,
        [OB_PG_SCHEMA_VERSION] = OB_MAP_SCHEMA_VERSION,
        [OB_PG_MAX_ATTEMPTS] = OB_MAP_MAX_ATTEMPTS,
        [OB_PG_CREATED] = OB_MAP_CREATED,
        [OB_PG_STATUS] = OB_MAP_STATUS,
        [OB_PG_DONE] = OB_MAP_DONE,
        [OB_PG_ATTEMPTS] = OB_MAP_ATTEMPTS,
    };
    *out = (struct ob_pg_table_conf){.schema = m->schema,
                                     .table = m->table,
                                     .payload_json = m->payload_kind == OB_MAP_PAYLOAD_JSON,
                                     .streams = streams,
                                     .n_streams = m->streams.n};
    for (size_t f = 0; f < OB_PG_FIELDS; f++)
        out->column[f] = m->col[roles[f]];
    /* One column that is read as both is written once. */
    if (out->column[OB_PG_TYPE] && out->column[OB_PG_TOPIC] &&
        strcmp(out->column[OB_PG_TYPE], out->column[OB_PG_TOPIC]) == 0)
        out->column[OB_PG_TYPE] = NULL;
    for (size_t i = 0; i < m->streams.n; i++)
        streams[i] = (struct ob_pg_stream){m->streams.keys[i], m->streams.values[i]};
    describe_status(&m->pending, out);
}

static void put_ident(struct ob_buf *out, const char *name)
{
    ob_buf_char(out, '"');
    for (const char *p = name; *p; p++) {
        if (*p == '"')
            ob_buf_char(out, '"');
        ob_buf_char(out, *p);
    }
    ob_buf_char(out, '"');
}

static void put_name(struct ob_buf *out, const char *schema, const char *name)
{
    if (schema) {
        put_ident(out, schema);
        ob_buf_char(out, '.');
    }
    put_ident(out, name);
}

void ob_pg_table_lookup(const struct ob_pg_table_conf *conf, struct ob_buf *name,
                        struct ob_pg_call *call)
{
    ob_buf_reset(name);
    put_name(name, conf->schema, conf->table);
    *call = (struct ob_pg_call){
        .sql = "select n.nspname, c.relname, a.attname, tn.nspname, t.typname, t.typcategory, "
               "a.attnotnull and not a.atthasdef and a.attidentity = '', "
               "pg_catalog.pg_get_expr(d.adbin, d.adrelid) from pg_catalog.pg_class c join "
               "pg_catalog.pg_namespace n on n.oid = c.relnamespace join pg_catalog.pg_attribute a "
               "on a.attrelid = c.oid join pg_catalog.pg_type t on t.oid = a.atttypid join "
               "pg_catalog.pg_namespace tn on tn.oid = t.typnamespace left join "
               "pg_catalog.pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum where c.oid = "
               "pg_catalog.to_regclass($1::pg_catalog.text) and a.attnum > 0 and not "
               "a.attisdropped",
        .n = 1,
        .value = {ob_buf_z(name)},
    };
}

static const char *copy(struct ob_arena *arena, const char *z)
{
    return z ? ob_arena_copy(arena, (struct ob_str){z, strlen(z) + 1}).p : NULL;
}

/* "schema"."name", or "name". NULL: no memory. */
static const char *qualified(struct ob_arena *arena, const char *schema, const char *name)
{
    struct ob_buf b;
    const char *z;
    ob_buf_init(&b, 1024);
    put_name(&b, schema, name);
    z = b.failed ? NULL : copy(arena, ob_buf_z(&b));
    ob_buf_clear(&b);
    return z;
}

static bool take(struct ob_pg_table *t, const PGresult *res, int row, struct ob_pg_column *c)
{
    c->name = copy(t->arena, PQgetvalue(res, row, 2));
    c->ident = qualified(t->arena, NULL, PQgetvalue(res, row, 2));
    c->type = qualified(t->arena, PQgetvalue(res, row, 3), PQgetvalue(res, row, 4));
    c->typname = copy(t->arena, PQgetvalue(res, row, 4));
    c->category = PQgetvalue(res, row, 5)[0];
    c->needed = PQgetvalue(res, row, 6)[0] == 't';
    c->usual = PQgetisnull(res, row, 7) ? NULL : copy(t->arena, PQgetvalue(res, row, 7));
    return c->name && c->ident && c->type && c->typname && (c->usual || PQgetisnull(res, row, 7));
}

static enum ob_status columns(struct ob_pg_table *t, const struct ob_pg_table_conf *conf,
                              const PGresult *res, struct ob_err *err)
{
    for (size_t f = 0; f < OB_PG_FIELDS; f++) {
        struct ob_str name = ob_str_c(conf->column[f]);
        bool optional = name.n > 1 && name.p[name.n - 1] == '?';
        int row = 0;
        if (!name.n)
            continue;
        name.n -= optional;
        while (row < PQntuples(res) && !ob_str_eqc(name, PQgetvalue(res, row, 2)))
            row++;
        if (row < PQntuples(res) && !take(t, res, row, &t->col[f]))
            return ob_err_set(err, OB_DOWN, "no memory");
        if (row == PQntuples(res) && !optional)
            return ob_err_set(err, OB_FATAL, "table %s has no column %s (for %s)", t->name,
                              conf->column[f], ob_pg_field_names[f]);
    }
    if (!t->col[OB_PG_ID].name || !t->col[OB_PG_PAYLOAD].name)
        return ob_err_set(err, OB_FATAL, "table %s: columns for id and payload are needed",
                          t->name);
    if (!t->col[OB_PG_TYPE].name && !t->col[OB_PG_TOPIC].name)
        return ob_err_set(err, OB_FATAL, "table %s: a column for type or for topic is needed",
                          t->name);
    return OB_OK;
}

/* A column that must have a value which nobody gives would fail every insert. */
static enum ob_status unmapped(const struct ob_pg_table *t, const PGresult *res, struct ob_err *err)
{
    for (int row = 0; row < PQntuples(res); row++) {
        const char *name = PQgetvalue(res, row, 2);
        size_t f = 0;
        if (PQgetvalue(res, row, 6)[0] != 't')
            continue;
        while (f < OB_PG_FIELDS && !(t->col[f].name && strcmp(t->col[f].name, name) == 0))
            f++;
        if (f == OB_PG_FIELDS)
            return ob_err_set(err, OB_FATAL,
                              "table %s: column %s must have a value, has no DEFAULT and stands "
                              "for no field of an event",
                              t->name, name);
    }
    return OB_OK;
}

static bool copy_rest(struct ob_pg_table *t, const struct ob_pg_table_conf *conf)
{
    t->payload_json = conf->payload_json;
    t->context_in_payload = conf->context_in_payload;
    t->pending = copy(t->arena, conf->pending);
    t->pending_number = copy(t->arena, conf->pending_number);
    if ((conf->pending && !t->pending) || (conf->pending_number && !t->pending_number))
        return false;
    if (conf->n_streams == 0)
        return true;
    t->streams = ob_arena_alloc(t->arena, conf->n_streams * sizeof(*t->streams));
    for (size_t i = 0; t->streams && i < conf->n_streams; i++) {
        t->streams[i].prefix = copy(t->arena, conf->streams[i].prefix);
        t->streams[i].stream = copy(t->arena, conf->streams[i].stream);
        if (!t->streams[i].prefix || !t->streams[i].stream)
            return false;
    }
    t->n_streams = conf->n_streams;
    return t->streams != NULL;
}

enum ob_status ob_pg_table_new(const struct ob_pg_table_conf *conf, const PGresult *res,
                               struct ob_pg_table **out, struct ob_err *err)
{
    struct ob_pg_table *t;
    enum ob_status st;

    if (PQntuples(res) == 0)
        return ob_err_set(err, OB_FATAL, "there is no table %s%s%s%s",
                          conf->schema ? conf->schema : "", conf->schema ? "." : "", conf->table,
                          conf->schema ? "" : " in the schemas of search_path");
    t = calloc(1, sizeof(*t));
    if (t)
        t->arena = ob_arena_new(4096, 1 << 20);
    if (t && t->arena)
        t->name = qualified(t->arena, PQgetvalue(res, 0, 0), PQgetvalue(res, 0, 1));
    if (!t || !t->name || !copy_rest(t, conf)) {
        ob_pg_table_free(t);
        return ob_err_set(err, OB_DOWN, "no memory");
    }
    st = columns(t, conf, res, err);
    if (st == OB_OK)
        st = unmapped(t, res, err);
    if (st == OB_OK)
        *out = t;
    else
        ob_pg_table_free(t);
    return st;
}

bool ob_pg_table_context_in_payload(const struct ob_pg_table *table)
{
    return table && table->context_in_payload && !table->col[OB_PG_METADATA].name;
}

void ob_pg_table_free(struct ob_pg_table *t)
{
    if (!t)
        return;
    ob_arena_unref(t->arena);
    free(t);
}

bool ob_pg_uuid_valid(struct ob_str s)
{
    if (s.n != 36)
        return false;
    for (size_t i = 0; i < 36; i++) {
        bool dash = i == 8 || i == 13 || i == 18 || i == 23;
        if (dash ? s.p[i] != '-' : !strchr("0123456789abcdefABCDEF", s.p[i]) || s.p[i] == '\0')
            return false;
    }
    return true;
}

enum ob_status ob_pg_table_exists(const struct ob_pg_table *t, const char *id, struct ob_buf *sql,
                                  struct ob_pg_call *call, struct ob_err *err)
{
    bool uuid = !t || ob_pg_is(&t->col[OB_PG_ID], "uuid");

    if (uuid && !ob_pg_uuid_valid(ob_str_c(id)))
        return ob_err_set(err, OB_REJECT, "ids of this table are UUIDs, and this is none");
    ob_buf_reset(sql);
    if (!t)
        ob_buf_c(sql, "select outbox.has_event($1::pg_catalog.uuid)");
    else
        ob_buf_printf(sql, "select exists (select from %s where %s = $1::%s)", t->name,
                      t->col[OB_PG_ID].ident, t->col[OB_PG_ID].type);
    *call = (struct ob_pg_call){.sql = ob_buf_z(sql), .n = 1, .value = {id}};
    return sql->failed ? ob_err_set(err, OB_DOWN, "no memory") : OB_OK;
}
