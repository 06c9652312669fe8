/* SPDX-License-Identifier: Apache-2.0 */
/* mapping_event - rows of a mapped table as events. */
#include "source/postgres/mapping.h"

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
        .attempts = attempts > 0 ? (uint32_t)attempts : 0,
        .max_attempts = max > 0 ? (uint32_t)max : 0,
    };
    return fill_cols(map, res, row, arena, ev);
}

bool ob_pg_map_event_big(const PGresult *res, int row)
{
    return ob_pg_null(res, row, PG_F_PAYLOAD) && !ob_pg_null(res, row, PG_F_SIZE);
}
