/* SPDX-License-Identifier: Apache-2.0 */
/* pg_insert - the one statement that writes all events of a batch, in order. */
#include "event/pg_column.h"
#include "event/pg_table.h"

#include <arpa/inet.h>

#define OID_BYTEA 17
#define OID_TEXT 25

/* One dimension, may have NULLs, type of the elements, how many, numbered from 1. */
static void finish_array(struct ob_buf *buf, uint32_t oid, size_t n)
{
    const uint32_t head[OB_PG_ARRAY_HEAD / 4] = {htonl(1), htonl(1), htonl(oid), htonl((uint32_t)n),
                                                 htonl(1)};
    if (!buf->failed)
        memcpy(buf->p, head, OB_PG_ARRAY_HEAD);
}

/* Adds an array as a parameter; its number in the statement. */
static int param(struct ob_pg_call *call, const struct ob_buf *array)
{
    call->value[call->n] = array ? array->p : NULL;
    call->length[call->n] = array ? (int)array->n : 0;
    call->format[call->n] = 1;
    return ++call->n;
}

static void native_sql(struct ob_pg_batch *b, bool serialize, struct ob_pg_call *call)
{
    static const struct {
        enum ob_pg_field f;
        const char *name, *cast;
    } args[] = {
        {OB_PG_ID, "ids", "::pg_catalog.uuid[]"},
        {OB_PG_TYPE, "types", ""},
        {OB_PG_AGGREGATE_TYPE, "aggregate_types", ""},
        {OB_PG_AGGREGATE_ID, "aggregate_ids", ""},
        {OB_PG_KEY, "keys", ""},
        {OB_PG_TENANT, "tenants", ""},
        {OB_PG_TOPIC, "topics", ""},
        {OB_PG_HEADERS, "headers", "::pg_catalog.json[]"},
        {OB_PG_METADATA, "metadata", "::pg_catalog.json[]"},
        {OB_PG_ENTITY_VERSION, "entity_versions", "::pg_catalog.int8[]"},
        {OB_PG_SCHEMA_VERSION, "schema_versions", "::pg_catalog.int8[]"},
        {OB_PG_MAX_ATTEMPTS, "max_attempts", "::pg_catalog.int4[]"},
    };
    finish_array(&b->kind, OID_TEXT, b->n);
    ob_buf_printf(&b->sql, "select outbox.emit_batch(kinds => $%d::pg_catalog.text[]",
                  param(call, &b->kind));
    if (b->any[OB_PG_PAYLOAD])
        ob_buf_printf(&b->sql, ", payloads => $%d::pg_catalog.bytea[]",
                      param(call, &b->value[OB_PG_PAYLOAD]));
    for (size_t i = 0; i < sizeof(args) / sizeof(args[0]); i++)
        if (b->any[args[i].f])
            ob_buf_printf(&b->sql, ", %s => $%d::pg_catalog.text[]%s", args[i].name,
                          param(call, &b->value[args[i].f]), args[i].cast);
    ob_buf_c(&b->sql, serialize ? ", serialize => true)" : ")");
}

static void put_literal(struct ob_buf *out, const char *z)
{
    ob_buf_c(out, " E'");
    for (const char *p = z; *p; p++) {
        if (*p == '\'' || *p == '\\')
            ob_buf_char(out, *p);
        ob_buf_char(out, *p);
    }
    ob_buf_char(out, '\'');
}

/* How a new row starts, in the columns that no event fills. False: leave it to the table. */
static bool put_start(struct ob_buf *out, const struct ob_pg_table *t, enum ob_pg_field f)
{
    const struct ob_pg_column *c = &t->col[f];
    const char *status = c->name && c->category == 'N' ? t->pending_number : t->pending;

    if (!c->name || (f == OB_PG_STATUS ? !status : c->usual != NULL))
        return false;
    if (f == OB_PG_STATUS) {
        put_literal(out, status);
        ob_buf_printf(out, "::%s", c->type);
        return true;
    }
    if (f == OB_PG_CREATED && (c->category == 'D' || ob_pg_is(c, "int8"))) {
        ob_buf_c(out, ob_pg_is(c, "timestamp")
                          ? " pg_catalog.timezone('UTC', pg_catalog.clock_timestamp())"
                      : c->category == 'D' ? " pg_catalog.clock_timestamp()"
                                           : " (extract(epoch from pg_catalog.clock_timestamp()) * "
                                             "1000)::pg_catalog.int8");
        return true;
    }
    if ((f == OB_PG_DONE && c->category == 'B') || (f == OB_PG_ATTEMPTS && c->category == 'N')) {
        ob_buf_c(out, f == OB_PG_DONE ? " false" : " 0");
        return true;
    }
    return false;
}

static void put_values(struct ob_pg_batch *b)
{
    const struct ob_pg_table *t = b->table;
    const char *comma = "";
    for (enum ob_pg_field f = 0; f < OB_PG_FIELDS; f++) {
        const struct ob_pg_column *c = &t->col[f];
        size_t before = b->sql.n;
        ob_buf_c(&b->sql, comma);
        if (f >= OB_PG_VALUES ? !put_start(&b->sql, t, f) : !b->any[f]) {
            b->sql.n = before;
            continue;
        }
        comma = ", ";
        if (f >= OB_PG_VALUES)
            continue;
        if (c->usual && !b->all[f])
            ob_buf_printf(&b->sql, "coalesce(r.f%d::%s, %s)", (int)f, c->type, c->usual);
        else
            ob_buf_printf(&b->sql, "r.f%d::%s", (int)f, c->type);
    }
}

static void put_columns(struct ob_pg_batch *b)
{
    const char *comma = "";
    struct ob_buf ignored;
    ob_buf_init(&ignored, 4096);
    for (enum ob_pg_field f = 0; f < OB_PG_FIELDS; f++) {
        if (f >= OB_PG_VALUES ? !put_start(&ignored, b->table, f) : !b->any[f])
            continue;
        ob_buf_printf(&b->sql, "%s%s", comma, b->table->col[f].ident);
        comma = ", ";
    }
    ob_buf_clear(&ignored);
}

/* Length and precision of a column's type are checked by the assignment: a cast would cut. */
static void table_sql(struct ob_pg_batch *b, bool serialize, struct ob_pg_call *call)
{
    const char *comma = "";
    if (serialize) { /* all of them first, and always in the same order */
        finish_array(&b->lock, OID_TEXT, b->n);
        ob_buf_printf(&b->sql,
                      "with l as materialized (select pg_catalog.pg_advisory_xact_lock(k.h) from "
                      "(select distinct pg_catalog.hashtextextended(u.k, 7305) as h from "
                      "pg_catalog.unnest($%d::pg_catalog.text[]) as u(k) order by 1) as k) ",
                      param(call, &b->lock));
    }
    ob_buf_printf(&b->sql, "insert into %s (", b->table->name);
    put_columns(b);
    ob_buf_c(&b->sql, ") select ");
    put_values(b);
    ob_buf_c(&b->sql, " from unnest(");
    for (int f = 0; f < OB_PG_VALUES; f++) {
        bool bytes = f == OB_PG_PAYLOAD && ob_pg_is(&b->table->col[f], "bytea");
        if (!b->any[f])
            continue;
        ob_buf_printf(&b->sql, "%s$%d::pg_catalog.%s[]", comma, param(call, &b->value[f]),
                      bytes ? "bytea" : "text");
        comma = ", ";
    }
    ob_buf_c(&b->sql, ") with ordinality as r(");
    for (int f = 0; f < OB_PG_VALUES; f++)
        if (b->any[f])
            ob_buf_printf(&b->sql, "f%d, ", f);
    ob_buf_printf(&b->sql, "i)%s order by r.i",
                  serialize ? " where (select pg_catalog.count(*) from l) >= 0" : "");
}

enum ob_status ob_pg_batch_call(struct ob_pg_batch *b, bool serialize, struct ob_pg_call *call,
                                struct ob_err *err)
{
    *call = (struct ob_pg_call){0};
    for (size_t f = 0; f < OB_PG_VALUES; f++)
        if (b->any[f]) {
            bool bytes = f == OB_PG_PAYLOAD && (!b->table || ob_pg_is(&b->table->col[f], "bytea"));
            finish_array(&b->value[f], bytes ? OID_BYTEA : OID_TEXT, b->n);
        }
    ob_buf_reset(&b->sql);
    if (b->table)
        table_sql(b, serialize, call);
    else
        native_sql(b, serialize, call);
    call->sql = ob_buf_z(&b->sql);
    return b->sql.failed || b->kind.failed || b->lock.failed
               ? ob_err_set(err, OB_REJECT, "too many events for one statement")
               : OB_OK;
}
