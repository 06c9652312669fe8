/* SPDX-License-Identifier: Apache-2.0 */
/* mapping_check - does a mapped table have a key to find rows by, may its state be written, and can
 * its columns hold what is written? Asked at start: a mark that the server refuses would stop
 * everything later. */
#include "core/buf.h"
#include "source/postgres/mapping.h"

#include <stdio.h>

static int64_t characters(const char *text)
{
    int64_t n = 0;
    for (; *text; text++)
        n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

/* Rows are found again by their id: one index probe each, and no other row. */
enum ob_status ob_pg_map_key(struct pg_session *conn, struct pg_map *map, struct ob_err *err)
{
    char oid[24];
    PGresult *res = NULL;
    snprintf(oid, sizeof(oid), "%lld", (long long)map->oid);
    const struct pg_param p[] = {PG_TEXT(oid), PG_TEXT(map->col[OB_MAP_ID]->name)};
    enum ob_status st = ob_pg_query(
        conn,
        "select count(*), coalesce(bool_or(i.indnkeyatts = 1 or c.relkind = 'p'), false) from "
        "pg_index i join pg_class c on c.oid = i.indrelid join pg_attribute a on a.attrelid = "
        "c.oid "
        "and a.attnum = i.indkey[0] where i.indrelid = $1::oid and i.indisunique and i.indisvalid "
        "and i.indpred is null and a.attname = $2",
        p, 2, true, &res, err);
    if (st != OB_OK)
        return st;
    if (!ob_pg_bool(res, 0, 1))
        st = ob_err_set(err, OB_FATAL,
                        "%s has no primary key or unique index on %s: ALTER TABLE %s ADD PRIMARY "
                        "KEY (%s)",
                        map->table, map->col[OB_MAP_ID]->ident, map->table,
                        map->col[OB_MAP_ID]->ident);
    PQclear(res);
    return st;
}

/* What is marked must be ours to change; rights on single columns will do. */
enum ob_status ob_pg_map_marks(struct pg_session *conn, struct pg_map *map, struct ob_err *err)
{
    static const enum ob_map_role marked[] = {
        OB_MAP_DONE,     OB_MAP_DONE_AT,    OB_MAP_STATUS,    OB_MAP_ATTEMPTS,    OB_MAP_ERROR,
        OB_MAP_ERROR_AT, OB_MAP_CLAIMED_AT, OB_MAP_LOCKED_BY, OB_MAP_LOCKED_UNTIL};
    struct ob_buf names;
    char oid[24];
    PGresult *res = NULL;
    ob_buf_init(&names, 65536);
    ob_pg_array_begin(&names);
    for (size_t i = 0; i < sizeof(marked) / sizeof(marked[0]); i++)
        if (map->col[marked[i]])
            ob_pg_array_add(&names, ob_str_c(map->col[marked[i]]->name));
    snprintf(oid, sizeof(oid), "%lld", (long long)map->oid);
    const struct pg_param p[] = {PG_TEXT(oid), PG_TEXT(ob_pg_array_end(&names))};
    enum ob_status st = ob_pg_query(
        conn,
        "select string_agg(quote_ident(attname), ', ' order by attnum), quote_ident(current_user) "
        "from pg_attribute where attrelid = $1::oid and attname = any($2::text[]) and attnum > 0 "
        "and not has_column_privilege(attrelid, attnum, 'UPDATE')",
        p, 2, false, &res, err);
    if (st == OB_OK && !PQgetisnull(res, 0, 0))
        st = ob_err_set(err, OB_FATAL, "%s may not mark rows of %s: GRANT UPDATE (%s) ON %s TO %s;",
                        PQgetvalue(res, 0, 1), map->table, PQgetvalue(res, 0, 0), map->table,
                        PQgetvalue(res, 0, 1));
    const struct pg_column *by = map->col[OB_MAP_LOCKED_BY];
    int64_t n = characters(map->owner) - 2; /* its quotes */
    if (st == OB_OK && by && by->max_chars > 0 && by->max_chars < n)
        st = ob_err_set(err, OB_FATAL,
                        "mapping.locked_by: column %s has room for %lld characters, and the name "
                        "of a worker has %lld",
                        by->ident, (long long)by->max_chars, (long long)n);
    PQclear(res);
    ob_buf_clear(&names);
    return st;
}

static bool whole_number(const char *text)
{
    text += *text == '-';
    size_t n = strspn(text, "0123456789");
    return n > 0 && text[n] == '\0';
}

/* The server knows which values a number or an enum can have. */
static enum ob_status check_value(struct pg_session *conn, const struct pg_map *map,
                                  const char *option, const char *value, struct ob_err *err)
{
    const struct pg_column *c = map->col[OB_MAP_STATUS];
    struct ob_buf sql;
    enum ob_status st = OB_OK;
    bool fits = c->max_chars == 0 || characters(value) <= c->max_chars;
    ob_buf_init(&sql, 4096);
    ob_buf_printf(&sql, "select $1::text::%s", c->type);
    const struct pg_param p[] = {PG_TEXT(value)};
    if (c->kind != PG_KIND_TEXT)
        st = ob_pg_query(conn, ob_buf_z(&sql), p, 1, false, NULL, err);
    ob_buf_clear(&sql);
    if (st == OB_REJECT || !fits)
        st = ob_err_set(err, OB_FATAL, "mapping.%s: '%s' is no value of column %s, which is %s%s",
                        option, value, c->ident, c->type, fits ? "" : " and shorter");
    return st;
}

/* Of several values the first that fits the column's type. */
static enum ob_status choose_value(struct pg_session *conn, struct pg_map *map,
                                   const struct ob_opt_list *list, const char *option,
                                   const char **out, struct ob_err *err)
{
    const struct pg_column *c = map->col[OB_MAP_STATUS];
    *out = NULL;
    if (!c || list->n == 0)
        return OB_OK;
    for (size_t i = 0; i < list->n; i++) {
        if (whole_number(list->values[i]) != (c->kind == PG_KIND_INT) && list->n > 1)
            continue;
        *out = ob_pg_literal(map->arena, list->values[i]);
        return *out ? check_value(conn, map, option, list->values[i], err)
                    : ob_err_set(err, OB_DOWN, "no memory for a mapping");
    }
    return ob_err_set(err, OB_FATAL, "mapping.%s: no value fits column %s, which is %s", option,
                      c->ident, c->type);
}

enum ob_status ob_pg_map_values(struct pg_session *conn, struct pg_map *map, struct ob_err *err)
{
    const struct ob_mapping *c = map->conf;
    enum ob_status st =
        choose_value(conn, map, &c->pending, "status_pending", &map->v_pending, err);
    if (st == OB_OK)
        st = choose_value(conn, map, &c->claimed, "status_claimed", &map->v_claimed, err);
    if (st == OB_OK)
        st = choose_value(conn, map, &c->done, "status_done", &map->v_done, err);
    if (st == OB_OK)
        st = choose_value(conn, map, &c->failed, "status_failed", &map->v_failed, err);
    return st;
}
