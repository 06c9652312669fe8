/* SPDX-License-Identifier: Apache-2.0 */
/* mapping - finds another system's table in the catalog and says what does not fit. */
#include "source/postgres/mapping.h"

#include "config/load.h"
#include "source/postgres/check.h"

#include <stdio.h>

/* What a column of a role may be. */
#define K(kind) (1u << PG_KIND_##kind)
#define ANY_TEXT (K(TEXT) | K(UUID) | K(INT) | K(ENUM))
static const struct {
    unsigned kinds;
    const char *what;
} roles[OB_MAP_N] = {
    [OB_MAP_ID] = {~0u, ""},
    [OB_MAP_ORDER] = {~(K(BOOL) | K(JSON) | K(BYTES)), "a number or a time"},
    [OB_MAP_TYPE] = {ANY_TEXT, "text"},
    [OB_MAP_AGGREGATE_TYPE] = {ANY_TEXT, "text"},
    [OB_MAP_AGGREGATE_ID] = {ANY_TEXT | K(NUMBER), "text, a uuid or a number"},
    [OB_MAP_KEY] = {ANY_TEXT | K(NUMBER), "text, a uuid or a number"},
    [OB_MAP_TENANT] = {ANY_TEXT, "text or a uuid"},
    [OB_MAP_TOPIC] = {ANY_TEXT, "text"},
    [OB_MAP_STREAM] = {ANY_TEXT, "text"},
    [OB_MAP_PAYLOAD] = {K(JSON) | K(TEXT) | K(BYTES), "json, jsonb, text or bytea"},
    [OB_MAP_HEADERS] = {K(JSON) | K(TEXT), "json, jsonb or text"},
    [OB_MAP_METADATA] = {K(JSON) | K(TEXT), "json, jsonb or text"},
    [OB_MAP_ENTITY_VERSION] = {K(INT), "an integer"},
    [OB_MAP_SCHEMA_VERSION] = {K(INT), "an integer"},
    [OB_MAP_CREATED] = {K(TIME), "a timestamp"},
    [OB_MAP_DONE] = {K(BOOL) | K(TIME), "a boolean or a timestamp"},
    [OB_MAP_DONE_AT] = {K(TIME), "a timestamp"},
    [OB_MAP_STATUS] = {K(TEXT) | K(INT) | K(ENUM), "text, an enum or an integer"},
    [OB_MAP_ATTEMPTS] = {K(INT), "an integer"},
    [OB_MAP_MAX_ATTEMPTS] = {K(INT), "an integer"},
    [OB_MAP_ERROR] = {K(TEXT), "text"},
    [OB_MAP_ERROR_AT] = {K(TIME), "a timestamp"},
    [OB_MAP_CLAIMED_AT] = {K(TIME), "a timestamp"},
    [OB_MAP_LOCKED_BY] = {K(TEXT), "text"},
    [OB_MAP_LOCKED_UNTIL] = {K(TIME), "a timestamp"},
};

enum ob_status ob_pg_map_check(const struct ob_mapping *conf, struct ob_err *err)
{
    const char *const *col = conf->col;
    if (!conf->table)
        return ob_err_set(err, OB_FATAL,
                          "mapping.table is missing: this mode reads a table of your own; name it, "
                          "or take a profile");
    if (!col[OB_MAP_ID])
        return ob_err_set(err, OB_FATAL, "mapping.id is missing: the column of the primary key");
    if (!col[OB_MAP_DONE] && !col[OB_MAP_STATUS])
        return ob_err_set(
            err, OB_FATAL,
            "mapping needs `done` or `status`: how a row shows that it was delivered");
    if (col[OB_MAP_DONE] && col[OB_MAP_STATUS])
        return ob_err_set(err, OB_FATAL, "mapping has both `done` and `status`; keep one of them");
    if (col[OB_MAP_STATUS] && (conf->pending.n == 0 || conf->done.n == 0))
        return ob_err_set(err, OB_FATAL, "mapping.status needs `status_pending` and `status_done`");
    if (!col[OB_MAP_STATUS] && conf->pending.n + conf->claimed.n + conf->done.n + conf->failed.n)
        return ob_err_set(err, OB_FATAL, "mapping has values of a status, but no `status`");
    if (conf->dead_attempts > 0 && !col[OB_MAP_ATTEMPTS])
        return ob_err_set(err, OB_FATAL, "mapping.dead_attempts needs `attempts`");
    if (conf->error_holds && !col[OB_MAP_ERROR])
        return ob_err_set(err, OB_FATAL, "mapping.error_holds needs `error`");
    if (conf->error_holds && conf->error_on != OB_MAP_ERROR_DEAD)
        return ob_err_set(err, OB_FATAL,
                          "mapping.error_holds needs `error_on: dead`: a row that is tried again "
                          "must stay pending");
    if (!col[OB_MAP_LOCKED_BY] != !col[OB_MAP_LOCKED_UNTIL])
        return ob_err_set(err, OB_FATAL, "mapping: `locked_by` and `locked_until` belong together");
    return OB_OK;
}

const char *ob_pg_literal(struct ob_arena *arena, const char *text)
{
    size_t n = strlen(text), k = 0;
    char *out = ob_arena_alloc(arena, 2 * n + 4);
    if (!out)
        return NULL;
    /* A backslash needs the escape form whatever standard_conforming_strings says. */
    bool escapes = strchr(text, '\\') != NULL;
    if (escapes)
        out[k++] = 'E';
    out[k++] = '\'';
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '\'' || text[i] == '\\')
            out[k++] = text[i];
        out[k++] = text[i];
    }
    out[k++] = '\'';
    out[k] = '\0';
    return out;
}

static const char *ident(struct ob_arena *arena, const char *name)
{
    struct ob_buf buf;
    ob_buf_init(&buf, 4096);
    ob_pg_ident(&buf, name);
    const char *out = buf.failed ? NULL : ob_arena_copy(arena, ob_buf_view(&buf)).p;
    ob_buf_clear(&buf);
    return out;
}

/* ---- the catalog ---- */

/* A name in another case, or with its schema in front, is what people write most. */
static enum ob_status no_table(struct pg_session *conn, const struct pg_map *map,
                               struct ob_err *err)
{
    const struct ob_mapping *c = map->conf;
    PGresult *res = NULL;
    const struct pg_param p[] = {PG_TEXT(c->schema), PG_TEXT(c->table)};
    enum ob_status st = ob_pg_query(
        conn,
        "select format('; did you mean schema: %s, table: %s?', n.nspname, c.relname) from "
        "pg_class c join pg_namespace n on n.oid = c.relnamespace where c.relkind in ('r', 'p') "
        "and (lower(c.relname) = lower($2) or lower(n.nspname || '.' || c.relname) = lower($2)) "
        "order by n.nspname <> $1, n.nspname, c.relname limit 1",
        p, 2, false, &res, err);
    if (st == OB_OK)
        st = ob_err_set(err, OB_FATAL,
                        "there is no table %s: see mapping.schema and mapping.table, and which "
                        "database the dsn names%s",
                        map->table, PQntuples(res) == 1 ? PQgetvalue(res, 0, 0) : "");
    PQclear(res);
    return st;
}

static enum ob_status find_table(struct pg_session *conn, struct pg_map *map, struct ob_err *err)
{
    const struct ob_mapping *c = map->conf;
    PGresult *res = NULL;
    const struct pg_param p[] = {PG_TEXT(c->schema), PG_TEXT(c->table)};
    enum ob_status st = ob_pg_query(
        conn,
        "select c.oid, c.relkind::text, row_security_active(c.oid), exists (select 1 from " PG_FED(
            "c.oid") "), has_schema_privilege(n.oid, 'USAGE'), "
                     "has_table_privilege(c.oid, 'SELECT'), quote_ident(current_user) from "
                     "pg_class c join "
                     "pg_namespace n on n.oid = c.relnamespace where n.nspname = $1 and c.relname "
                     "= $2",
        p, 2, true, &res, err);
    if (st != OB_OK)
        return st;
    if (PQntuples(res) == 0) {
        st = no_table(conn, map, err);
        goto done;
    }
    char kind = PQgetvalue(res, 0, 1)[0];
    char user[160];
    struct ob_str name = ob_pg_str(res, 0, 6);
    snprintf(user, sizeof(user), "%.*s", OB_STR_ARG(name));
    map->oid = ob_pg_i64(res, 0, 0);
    map->partitioned = kind == 'p';
    map->row_security = ob_pg_bool(res, 0, 2);
    if (kind != 'r' && kind != 'p')
        st = ob_err_set(err, OB_FATAL, "%s is %s; a table is needed, where rows can be marked",
                        map->table,
                        kind == 'v'   ? "a view"
                        : kind == 'm' ? "a materialized view"
                        : kind == 'f' ? "a foreign table"
                                      : "no table");
    else if (ob_pg_bool(res, 0, 3))
        st = ob_err_set(err, OB_FATAL,
                        "%s is written by a subscription: relay from the server that it is "
                        "replicated from",
                        map->table);
    else if (!map->stream && !ob_pg_bool(res, 0, 4))
        st = ob_err_set(err, OB_FATAL,
                        "%s may not look into the schema of %s: GRANT USAGE ON SCHEMA %s TO %s;",
                        user, map->table, map->schema, user);
    else if (!map->stream && !ob_pg_bool(res, 0, 5))
        st = ob_err_set(err, OB_FATAL, "%s may not read %s: GRANT SELECT ON %s TO %s;", user,
                        map->table, map->table, user);
done:
    PQclear(res);
    return st;
}

static enum pg_kind kind_of(int64_t oid, char category, char typtype)
{
    switch (oid) {
    case 20:
    case 21:
    case 23:
        return PG_KIND_INT;
    case 114:
    case 3802:
        return PG_KIND_JSON;
    case 17:
        return PG_KIND_BYTES;
    case 2950:
        return PG_KIND_UUID;
    case 1114:
    case 1184:
        return PG_KIND_TIME;
    }
    if (typtype == 'e')
        return PG_KIND_ENUM;
    return category == 'S'   ? PG_KIND_TEXT
           : category == 'N' ? PG_KIND_NUMBER
           : category == 'B' ? PG_KIND_BOOL
                             : PG_KIND_OTHER;
}

static enum ob_status no_memory(struct ob_err *err)
{
    return ob_err_set(err, OB_DOWN, "no memory for a mapping");
}

/* Domains count as what they are made of. */
static enum ob_status read_columns(struct pg_session *conn, struct pg_map *map, struct ob_err *err)
{
    char oid[24];
    PGresult *res = NULL;
    snprintf(oid, sizeof(oid), "%lld", (long long)map->oid);
    const struct pg_param p[] = {PG_TEXT(oid)};
    enum ob_status st = ob_pg_query(
        conn,
        "select a.attname::text, format_type(a.atttypid, -1), coalesce(nullif(t.typbasetype, 0), "
        "t.oid), t.typcategory::text, t.typtype::text, a.attnotnull, a.atthasdef or a.attidentity "
        "<> '', case when coalesce(nullif(t.typbasetype, 0), t.oid) in (1042, 1043) then "
        "greatest(a.atttypmod, t.typtypmod, 4) - 4 else 0 end from pg_attribute a join pg_type t "
        "on t.oid = a.atttypid where a.attrelid = $1::oid "
        "and a.attnum > 0 and not a.attisdropped order by a.attnum",
        p, 1, true, &res, err);
    if (st != OB_OK)
        return st;
    int n = PQntuples(res);
    map->columns = ob_arena_zalloc(map->arena, ((size_t)n + 1) * sizeof(*map->columns));
    map->more = ob_arena_zalloc(map->arena, ((size_t)n + 1) * sizeof(*map->more));
    if (!map->columns || !map->more)
        st = no_memory(err);
    for (int i = 0; st == OB_OK && i < n; i++) {
        struct pg_column *c = &map->columns[map->n_columns++];
        c->name = ob_arena_copy(map->arena, ob_pg_str(res, i, 0)).p;
        c->type = ob_arena_copy(map->arena, ob_pg_str(res, i, 1)).p;
        c->ident = c->name ? ident(map->arena, c->name) : NULL;
        c->kind = kind_of(ob_pg_i64(res, i, 2), PQgetvalue(res, i, 3)[0], PQgetvalue(res, i, 4)[0]);
        c->not_null = ob_pg_bool(res, i, 5);
        c->has_default = ob_pg_bool(res, i, 6);
        c->max_chars = ob_pg_i64(res, i, 7);
        c->padded = ob_pg_i64(res, i, 2) == 1042;
        if (!c->name || !c->type || !c->ident)
            st = no_memory(err);
    }
    PQclear(res);
    return st;
}

static const struct pg_column *find(const struct pg_map *map, const char *name, size_t n)
{
    for (size_t i = 0; i < map->n_columns; i++)
        if (ob_str_eq(ob_str_c(map->columns[i].name), (struct ob_str){name, n}))
            return &map->columns[i];
    return NULL;
}

#define NAMES_MAX 256

static enum ob_status missing(const struct pg_map *map, const char *option, const char *name,
                              struct ob_err *err)
{
    const char *names[NAMES_MAX];
    size_t n = 0;
    for (; n < map->n_columns && n < NAMES_MAX; n++)
        names[n] = map->columns[n].name;
    const char *near = ob_nearest(name, names, n);
    return ob_err_set(err, OB_FATAL, "mapping.%s: %s has no column '%s'%s%s%s", option, map->table,
                      name, near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
}

static enum ob_status match_roles(struct pg_map *map, struct ob_err *err)
{
    for (int r = 0; r < OB_MAP_N; r++) {
        const char *name = map->conf->col[r], *option = ob_map_role_name((enum ob_map_role)r);
        if (!name || !*name)
            continue;
        size_t n = strlen(name);
        bool optional = n > 1 && name[n - 1] == '?';
        const struct pg_column *c = find(map, name, optional ? n - 1 : n);
        if (!c && optional)
            continue;
        if (!c)
            return missing(map, option, name, err);
        if (!(roles[r].kinds & 1u << c->kind))
            return ob_err_set(err, OB_FATAL, "mapping.%s: column %s of %s is %s; it must be %s",
                              option, c->ident, map->table, c->type, roles[r].what);
        map->col[r] = c;
    }
    return OB_OK;
}

static bool is_mapped(const struct pg_map *map, const struct pg_column *c)
{
    for (int r = 0; r < OB_MAP_N; r++)
        if (map->col[r] == c)
            return true;
    return false;
}

static enum ob_status match_columns(struct pg_map *map, struct ob_err *err)
{
    const struct ob_opt_list *list = &map->conf->columns;
    if (!list->values) {
        for (size_t i = 0; i < map->n_columns; i++)
            if (!is_mapped(map, &map->columns[i]))
                map->more[map->n_more++] = &map->columns[i];
        return OB_OK;
    }
    for (size_t i = 0; i < list->n && map->n_more < map->n_columns; i++) {
        const struct pg_column *c = find(map, list->values[i], strlen(list->values[i]));
        if (!c)
            return missing(map, "columns", list->values[i], err);
        map->more[map->n_more++] = c;
    }
    return OB_OK;
}

static void choose_payload(struct pg_map *map)
{
    static const enum ob_payload_kind kinds[] = {[OB_MAP_PAYLOAD_JSON] = OB_PAYLOAD_JSON,
                                                 [OB_MAP_PAYLOAD_TEXT] = OB_PAYLOAD_TEXT,
                                                 [OB_MAP_PAYLOAD_BYTES] = OB_PAYLOAD_BYTES};
    const struct pg_column *c = map->col[OB_MAP_PAYLOAD];
    if (map->conf->payload_kind != OB_MAP_PAYLOAD_AUTO)
        map->payload_kind = kinds[map->conf->payload_kind];
    else
        map->payload_kind = !c || c->kind == PG_KIND_JSON ? OB_PAYLOAD_JSON
                            : c->kind == PG_KIND_TEXT     ? OB_PAYLOAD_TEXT
                                                          : OB_PAYLOAD_BYTES;
}

static enum ob_status map_open(struct pg_session *conn, const struct ob_mapping *conf,
                               const char *pipeline, const char *owner, bool stream,
                               struct pg_map **out, struct ob_err *err)
{
    enum ob_status st = OB_OK;
    struct ob_arena *arena = ob_arena_new(16384, (size_t)16 << 20);
    struct pg_map *map = arena ? ob_arena_zalloc(arena, sizeof(*map)) : NULL;
    if (!map) {
        ob_arena_unref(arena);
        return no_memory(err);
    }
    map->arena = arena;
    map->conf = conf;
    map->stream = stream;
    map->pipeline = ob_pg_literal(arena, pipeline);
    map->owner = ob_pg_literal(arena, owner ? owner : "");
    const char *table = ident(arena, conf->table);
    map->schema = ident(arena, conf->schema);
    map->table = map->schema && table ? ob_arena_printf(arena, "%s.%s", map->schema, table) : NULL;
    if (!map->pipeline || !map->owner || !map->table)
        st = no_memory(err);
    if (st == OB_OK)
        st = find_table(conn, map, err);
    if (st == OB_OK)
        st = read_columns(conn, map, err);
    if (st == OB_OK)
        st = match_roles(map, err);
    if (st == OB_OK)
        st = match_columns(map, err);
    if (st == OB_OK && !stream)
        st = ob_pg_map_key(conn, map, err);
    if (st == OB_OK)
        st = ob_pg_map_values(conn, map, err);
    if (st == OB_OK && !stream)
        st = ob_pg_map_marks(conn, map, err);
    if (st == OB_OK)
        choose_payload(map);
    if (st == OB_OK && !stream && !ob_pg_map_build(map))
        st = no_memory(err);
    if (st != OB_OK) {
        ob_arena_unref(arena);
        return st;
    }
    *out = map;
    return OB_OK;
}

enum ob_status ob_pg_map_open(struct pg_session *conn, const struct ob_mapping *conf,
                              const char *pipeline, const char *owner, struct pg_map **out,
                              struct ob_err *err)
{
    enum ob_status st = ob_pg_map_check(conf, err);
    return st == OB_OK ? map_open(conn, conf, pipeline, owner, false, out, err) : st;
}

enum ob_status ob_pg_map_open_stream(struct pg_session *conn, const struct ob_mapping *conf,
                                     const char *pipeline, const char *owner, struct pg_map **out,
                                     struct ob_err *err)
{
    if (!conf->table || !conf->col[OB_MAP_ID])
        return ob_err_set(err, OB_FATAL, "mapping needs `table` and `id`");
    return map_open(conn, conf, pipeline, owner, true, out, err);
}

void ob_pg_map_close(struct pg_map *map)
{
    if (map)
        ob_arena_unref(map->arena); /* it is in it */
}
