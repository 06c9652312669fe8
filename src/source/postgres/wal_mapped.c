/* SPDX-License-Identifier: Apache-2.0 */
/* wal_mapped - rows of another system's table as they come through the stream. The mapping is the
 * one of mode rows; columns are found by name in what the stream says of the table. Values are
 * text.
 *
 * A row's number is where it stands in the WAL: the position of its record, and one more for each
 * further row of the same record. A record has at least a byte for each of its rows, so no two rows
 * have the same number, and the same row has the same one whenever it is read. */
#include "source/postgres/wal.h"

#include "core/clock.h"

static int find(const struct pgo_msg *relation, const char *name)
{
    for (size_t i = 0; i < relation->n; i++)
        if (ob_str_eqc(relation->columns[i].name, name))
            return (int)i;
    return -1;
}

enum ob_status ob_pg_wal_map_table(struct wal_state *w, const struct pgo_msg *relation,
                                   struct ob_err *err)
{
    const struct pg_map *map = w->map;
    struct wal_table *t = &w->table;
    for (int r = 0; r < OB_MAP_N; r++) {
        const struct pg_column *c = map->col[r];
        w->map_at[r] = c ? find(relation, c->name) : -1;
        if (c && w->map_at[r] < 0)
            return ob_err_set(err, OB_FATAL, "%s has no column %s any more", map->table, c->ident);
    }
    for (size_t i = 0; i < map->n_more; i++)
        w->more_at[i] = find(relation, map->more[i]->name);
    t->relation = relation->relation;
    t->n = relation->n;
    t->known = true;
    return OB_OK;
}

static const struct pgo_value *value(const struct pgo_msg *row, int at)
{
    static const struct pgo_value none = {.form = PGO_NULL};
    return at >= 0 && (size_t)at < row->n ? &row->values[at] : &none;
}

/* Times without a zone are taken for UTC. */
static int64_t time_us(const struct pgo_value *v)
{
    char text[64];
    int64_t us = 0;
    if (v->form != PGO_TEXT || v->v.n < 10 || v->v.n + 4 > sizeof(text))
        return 0;
    memcpy(text, v->v.p, v->v.n);
    size_t n = v->v.n;
    if (text[n - 3] == '+') /* "+00" */
        n -= 3;
    text[n++] = 'Z';
    return ob_rfc3339_parse(text, n, &us) == 0 ? us : 0;
}

/* As SQL shows it: else the same row would have another id and another key by stream and by table.
 */
static struct ob_str unpadded(const struct pg_column *c, struct ob_str v)
{
    while (c && c->padded && v.n > 0 && v.p[v.n - 1] == ' ')
        v.n--;
    return v;
}

static bool fill_cols(const struct wal_state *w, const struct pgo_msg *row, struct ob_arena *arena,
                      struct ob_event *ev)
{
    const struct pg_map *map = w->map;
    if (map->n_more == 0)
        return true;
    ev->cols = ob_arena_alloc(arena, map->n_more * sizeof(*ev->cols));
    if (!ev->cols)
        return false;
    ev->n_cols = map->n_more;
    for (size_t i = 0; i < map->n_more; i++) {
        const struct pgo_value *v = value(row, w->more_at[i]);
        struct ob_col c = {.name = ob_str_c(map->more[i]->name),
                           .value = unpadded(map->more[i], v->v)};
        switch (map->more[i]->kind) {
        case PG_KIND_INT:
        case PG_KIND_NUMBER:
            c.kind = v->v.n && v->v.p[v->v.n - 1] >= '0' && v->v.p[v->v.n - 1] <= '9'
                         ? OB_COL_NUMBER
                         : OB_COL_TEXT;
            break;
        case PG_KIND_BOOL:
            c.kind = OB_COL_BOOL;
            c.value = v->v.n && v->v.p[0] == 't' ? OB_STR("true") : OB_STR("false");
            break;
        case PG_KIND_JSON:
            c.kind = OB_COL_JSON;
            break;
        default:
            c.kind = OB_COL_TEXT;
        }
        if (v->form == PGO_NULL)
            c = (struct ob_col){.name = c.name, .kind = OB_COL_NULL};
        ev->cols[i] = c;
    }
    return true;
}

static struct ob_str text(const struct wal_state *w, const struct pgo_msg *row,
                          enum ob_map_role role)
{
    return unpadded(w->map->col[role], value(row, w->map_at[role])->v);
}

static bool payload(const struct wal_state *w, const struct pgo_msg *row,
                    const struct ob_limits *limits, struct ob_arena *arena, struct ob_event *ev)
{
    const struct pg_map *map = w->map;
    const struct pgo_value *v = value(row, w->map_at[OB_MAP_PAYLOAD]);
    ev->payload_kind = v->form == PGO_NULL ? OB_PAYLOAD_NULL : map->payload_kind;
    ev->payload = v->v;
    if (v->form == PGO_NULL || map->col[OB_MAP_PAYLOAD]->kind != PG_KIND_BYTES)
        return true;
    return ob_pg_wal_bytes(v, limits->payload, arena, &ev->payload);
}

enum ob_status ob_pg_wal_mapped(struct wal_state *w, const struct pgo_msg *row,
                                const struct ob_limits *limits, struct ob_arena *arena,
                                struct ob_event *ev, struct ob_err *err)
{
    *ev = (struct ob_event){
        .seq = w->rows ? (uint64_t)ob_pg_wal_number(value(row, w->map_at[OB_MAP_ORDER]), 0)
                       : w->row_lsn + w->row_no,
        .id = text(w, row, OB_MAP_ID),
        .type = text(w, row, OB_MAP_TYPE),
        .aggregate_type = text(w, row, OB_MAP_AGGREGATE_TYPE),
        .aggregate_id = text(w, row, OB_MAP_AGGREGATE_ID),
        .key = text(w, row, OB_MAP_KEY),
        .tenant = text(w, row, OB_MAP_TENANT),
        .topic = text(w, row, OB_MAP_TOPIC),
        .stream = text(w, row, OB_MAP_STREAM),
        .headers = text(w, row, OB_MAP_HEADERS),
        .metadata = text(w, row, OB_MAP_METADATA),
        .entity_version =
            ob_pg_wal_number(value(row, w->map_at[OB_MAP_ENTITY_VERSION]), OB_NO_VERSION),
        .schema_version =
            ob_pg_wal_number(value(row, w->map_at[OB_MAP_SCHEMA_VERSION]), OB_NO_VERSION),
        .created_us = w->map_at[OB_MAP_CREATED] >= 0
                          ? time_us(value(row, w->map_at[OB_MAP_CREATED]))
                          : w->txn_time_us,
    };
    int64_t attempts = ob_pg_wal_number(value(row, w->map_at[OB_MAP_ATTEMPTS]), 0);
    int64_t most = ob_pg_wal_number(value(row, w->map_at[OB_MAP_MAX_ATTEMPTS]), 0);
    ev->attempts = ob_pg_attempts(attempts);
    ev->max_attempts = ob_pg_attempts(most);
    if (!payload(w, row, limits, arena, ev) || !fill_cols(w, row, arena, ev))
        return ob_err_set(err, OB_DOWN, "no memory for an event");
    if (ev->id.n == 0) {
        ev->fault = OB_STR("the row has no id");
        ev->id = OB_STR("-");
    }
    return OB_OK;
}
