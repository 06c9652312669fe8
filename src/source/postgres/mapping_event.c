/* SPDX-License-Identifier: Apache-2.0 */
/* mapping_event - rows of a mapped table as events. */
#include "source/postgres/mapping.h"

#include <stdio.h>
#include <stdlib.h>

static int64_t number(const PGresult *res, int row, int col, int64_t none)
{
    return ob_pg_null(res, row, col) ? none : ob_pg_i64(res, row, col);
}

static enum ob_col_kind col_kind(enum pg_kind kind)
{
    switch (kind) {
    case PG_KIND_INT:
    case PG_KIND_NUMBER:
        return OB_COL_NUMBER;
    case PG_KIND_BOOL:
        return OB_COL_BOOL;
    case PG_KIND_JSON:
        return OB_COL_JSON;
    default:
        return OB_COL_TEXT;
    }
}

/* NaN and Infinity are numbers to PostgreSQL and none to JSON. */
static bool json_number(struct ob_str s)
{
    return s.n > 0 && (s.p[s.n - 1] >= '0' && s.p[s.n - 1] <= '9');
}

static bool fill_cols(const struct pg_map *map, const PGresult *res, int row,
                      struct ob_arena *arena, struct ob_event *ev)
{
    if (map->n_more == 0)
        return true;
    ev->cols = ob_arena_alloc(arena, map->n_more * sizeof(*ev->cols));
    if (!ev->cols)
        return false;
    ev->n_cols = map->n_more;
    for (size_t i = 0; i < map->n_more; i++) {
        const struct pg_column *c = map->more[i];
        int at = PG_F_N + (int)i;
        struct ob_str value = ob_pg_text(res, row, at);
        enum ob_col_kind kind = col_kind(c->kind);
        if (kind == OB_COL_NUMBER && !json_number(value))
            kind = OB_COL_TEXT;
        ev->cols[i] = (struct ob_col){.name = ob_str_c(c->name),
                                      .value = value,
                                      .kind = ob_pg_null(res, row, at) ? OB_COL_NULL : kind};
    }
    return true;
}

bool ob_pg_map_event(const struct pg_map *map, const PGresult *res, int row, struct ob_arena *arena,
                     struct ob_event *ev)
{
    int64_t attempts = number(res, row, PG_F_ATTEMPTS, 0);
    int64_t max = number(res, row, PG_F_MAX_ATTEMPTS, 0);
    *ev = (struct ob_event){
        .seq = (uint64_t)number(res, row, PG_F_SEQ, 0),
        .id = ob_pg_text(res, row, PG_F_ID),
        .type = ob_pg_text(res, row, PG_F_TYPE),
        .aggregate_type = ob_pg_text(res, row, PG_F_AGGREGATE_TYPE),
        .aggregate_id = ob_pg_text(res, row, PG_F_AGGREGATE_ID),
        .key = ob_pg_text(res, row, PG_F_KEY),
        .tenant = ob_pg_text(res, row, PG_F_TENANT),
        .topic = ob_pg_text(res, row, PG_F_TOPIC),
        .stream = ob_pg_text(res, row, PG_F_STREAM),
        .payload = ob_pg_text(res, row, PG_F_PAYLOAD),
        .payload_kind = ob_pg_null(res, row, PG_F_SIZE) ? OB_PAYLOAD_NULL : map->payload_kind,
        .headers = ob_pg_text(res, row, PG_F_HEADERS),
        .metadata = ob_pg_text(res, row, PG_F_METADATA),
        .entity_version = number(res, row, PG_F_ENTITY_VERSION, OB_NO_VERSION),
        .schema_version = number(res, row, PG_F_SCHEMA_VERSION, OB_NO_VERSION),
        .created_us =
            ob_pg_null(res, row, PG_F_CREATED) ? 0 : ob_pg_time_us(res, row, PG_F_CREATED),
        .attempts = ob_pg_attempts(attempts),
        .max_attempts = ob_pg_attempts(max),
    };
    return fill_cols(map, res, row, arena, ev);
}

/* ---- columns of any size ---- */

#define SMALL_TEXT 1024 /* as in mapping_sql.c */
#define SMALL_JSON 4096

const struct pg_map_sized ob_pg_map_sized[PG_MAP_SIZED] = {
    {OB_MAP_TYPE, PG_F_TYPE, OB_LIMITED_TYPE, offsetof(struct ob_event, type)},
    {OB_MAP_AGGREGATE_TYPE, PG_F_AGGREGATE_TYPE, OB_LIMITED_AGGREGATE_TYPE,
     offsetof(struct ob_event, aggregate_type)},
    {OB_MAP_AGGREGATE_ID, PG_F_AGGREGATE_ID, OB_LIMITED_AGGREGATE_ID,
     offsetof(struct ob_event, aggregate_id)},
    {OB_MAP_KEY, PG_F_KEY, OB_LIMITED_KEY, offsetof(struct ob_event, key)},
    {OB_MAP_TENANT, PG_F_TENANT, OB_LIMITED_TENANT, offsetof(struct ob_event, tenant)},
    {OB_MAP_TOPIC, PG_F_TOPIC, OB_LIMITED_TOPIC, offsetof(struct ob_event, topic)},
    {OB_MAP_STREAM, PG_F_STREAM, OB_LIMITED_STREAM, offsetof(struct ob_event, stream)},
    {OB_MAP_HEADERS, PG_F_HEADERS, OB_LIMITED_HEADERS, offsetof(struct ob_event, headers)},
    {OB_MAP_METADATA, PG_F_METADATA, OB_LIMITED_METADATA, offsetof(struct ob_event, metadata)},
};

bool ob_pg_column_unbounded(const struct pg_column *column)
{
    switch (column->kind) {
    case PG_KIND_INT:
    case PG_KIND_BOOL:
    case PG_KIND_TIME:
    case PG_KIND_UUID:
    case PG_KIND_ENUM:
        return false;
    case PG_KIND_TEXT:
    case PG_KIND_NUMBER:
    case PG_KIND_JSON:
    case PG_KIND_BYTES:
    case PG_KIND_OTHER:
        break;
    }
    return true;
}

static int small_of(size_t i)
{
    return i < PG_MAP_SIZED && ob_pg_map_sized[i].limited < OB_LIMITED_HEADERS ? SMALL_TEXT
                                                                               : SMALL_JSON;
}

/* The field of the i-th column that may have any size. */
static int field_of(size_t i)
{
    return i < PG_MAP_SIZED ? (int)ob_pg_map_sized[i].field : PG_F_N + (int)(i - PG_MAP_SIZED);
}

static bool is_unbounded(const struct pg_map *map, size_t i)
{
    const struct pg_column *c =
        i < PG_MAP_SIZED ? map->col[ob_pg_map_sized[i].role] : map->more[i - PG_MAP_SIZED];
    return c && ob_pg_column_unbounded(c);
}

bool ob_pg_map_event_partial(const struct pg_map *map, const PGresult *res, int row, bool payload)
{
    for (size_t i = 0; i < PG_MAP_SIZED + map->n_more; i++)
        if (PQgetlength(res, row, field_of(i)) > small_of(i) && is_unbounded(map, i))
            return true;
    return payload && ob_pg_null(res, row, PG_F_PAYLOAD) && !ob_pg_null(res, row, PG_F_SIZE);
}

size_t ob_pg_map_event_size(const struct pg_map *map, const PGresult *res, int row,
                            const struct ob_limits *limits)
{
    size_t all = ob_pg_null(res, row, PG_F_SIZE) ? 0 : (size_t)ob_pg_i64(res, row, PG_F_SIZE);
    if (all > (size_t)limits->payload)
        all = 0;
    for (size_t i = 0; i < PG_MAP_SIZED + map->n_more; i++) {
        size_t n = (size_t)PQgetlength(res, row, field_of(i));
        if (n > (size_t)small_of(i) && is_unbounded(map, i)) { /* its size, in digits */
            int64_t limit = small_of(i) == SMALL_TEXT ? limits->text : limits->json;
            n = strtoul(PQgetvalue(res, row, field_of(i)), NULL, 10);
            n = n <= (size_t)limit ? n : OB_LIMIT_KEEP;
        }
        all += n;
    }
    return all;
}

static void drop_result(void *res)
{
    PQclear(res);
}

/* Copies what stays of the row's first result, which is small. */
static bool own_small(const struct pg_map *map, struct ob_arena *arena, struct ob_event *ev)
{
    struct ob_event copy = *ev;
    copy.payload = (struct ob_str){NULL, 0};
    copy.n_cols = map->n_more;
    if (!ob_event_own(&copy, arena))
        return false;
    *ev = copy;
    return true;
}

static bool take_sized(const struct pg_map *map, const PGresult *res, bool payload,
                       const struct ob_limits *limits, struct ob_arena *arena, struct ob_event *ev)
{
    bool ok = true;
    for (size_t i = 0; ok && i < PG_MAP_SIZED; i++) {
        struct ob_str *to = (struct ob_str *)(void *)((char *)ev + ob_pg_map_sized[i].offset);
        if (!is_unbounded(map, i) || ob_pg_null(res, 0, 2 * (int)i))
            continue;
        *to = ob_pg_text(res, 0, 2 * (int)i + 1);
        ok = ob_limits_check_size(limits, ev, ob_pg_map_sized[i].limited,
                                  (uint64_t)ob_pg_i64(res, 0, 2 * (int)i), arena);
    }
    for (size_t i = 0; ok && i < map->n_more; i++) {
        int at = 2 * (int)(PG_MAP_SIZED + i);
        if (!ob_pg_column_unbounded(map->more[i]) || ob_pg_null(res, 0, at))
            continue;
        ev->cols[i].value = ob_pg_text(res, 0, at + 1);
        ok = ob_limits_check_col(limits, ev, &ev->cols[i], (uint64_t)ob_pg_i64(res, 0, at), arena);
    }
    int at = 2 * (int)(PG_MAP_SIZED + map->n_more);
    if (!ok || !payload || ob_pg_null(res, 0, at))
        return ok;
    ev->payload = ob_pg_text(res, 0, at + 1);
    return ob_limits_check_size(limits, ev, OB_LIMITED_PAYLOAD, (uint64_t)ob_pg_i64(res, 0, at),
                                arena);
}

enum ob_status ob_pg_map_event_read(struct pg_session *conn, const struct pg_map *map, bool payload,
                                    const struct ob_limits *limits, struct ob_arena *arena,
                                    struct ob_event *ev, struct ob_err *err)
{
    char max[3][24];
    PGresult *res = NULL;
    if (!own_small(map, arena, ev))
        return ob_err_set(err, OB_REJECT, "no memory for an event");
    snprintf(max[0], sizeof(max[0]), "%lld", (long long)limits->text);
    snprintf(max[1], sizeof(max[1]), "%lld", (long long)limits->json);
    snprintf(max[2], sizeof(max[2]), "%lld", payload ? (long long)limits->payload : -1);
    const struct pg_param p[] = {PG_TEXT(ev->id.p), PG_TEXT(max[0]), PG_TEXT(max[1]),
                                 PG_TEXT(max[2])};
    enum ob_status st = ob_pg_query(conn, map->sql[PG_MAP_WHOLE], p, 4, true, &res, err);
    if (st != OB_OK)
        return ob_pg_no_memory(err) ? OB_REJECT : st;
    if (PQntuples(res) != 1) {
        PQclear(res);
        return ob_err_set(err, OB_AGAIN, "the row of event %s is gone", ev->id.p);
    }
    if (!ob_arena_keep(arena, drop_result, res, PQresultMemorySize(res))) {
        PQclear(res);
        return ob_err_set(err, OB_REJECT, "no memory for an event");
    }
    return take_sized(map, res, payload, limits, arena, ev)
               ? OB_OK
               : ob_err_set(err, OB_REJECT, "no memory for an event");
}
