/* SPDX-License-Identifier: Apache-2.0 */
/* admin_map - what people see of a mapped table, and do to it: rows as events with their state,
 * dead ones released in their own columns, numbers, and what is wrong with it. */
#include "source/postgres/admin.h"
#include "source/postgres/mapping.h"

#include <inttypes.h>
#include <stdio.h>

#define PAGE 500           /* rows of one statement */
#define STATUS_MAX "10001" /* pending rows are counted up to here */
#define AT_NUMBER(map) ((int)(PG_F_N + (map)->n_more))
#define AT_STATE(map) (AT_NUMBER(map) + 1)

bool ob_pg_admin_mapped(const struct ob_admin *a)
{
    const struct ob_mapping *m = &a->conf->mapping;
    /* In mode wal a table may have no state. */
    return m->table && (a->conf->mode != PG_WAL || m->col[OB_MAP_DONE] || m->col[OB_MAP_STATUS]);
}

/* The table as it is now; looked at once. */
static enum ob_status need_map(struct ob_admin *a, struct ob_err *err)
{
    if (a->map)
        return OB_OK;
    if (!ob_pg_admin_mapped(a)) /* without a state: only its columns matter */
        return ob_pg_map_open_stream(&a->db, &a->conf->mapping, a->pipeline, NULL, &a->map, err);
    return ob_pg_map_open(&a->db, &a->conf->mapping, a->pipeline, NULL, &a->map, err);
}

/* ---- listing ---- */

static const char *column(const struct pg_map *m, enum ob_map_role role, char out[160])
{
    snprintf(out, 160, "coalesce(t.%s::text, '')", m->col[role]->ident);
    return out;
}

static void glob(struct ob_admin *a, struct pg_where *w, enum ob_map_role role, const char *text)
{
    char expression[160];
    if (!text)
        return;
    if (a->map->col[role])
        ob_pg_where_glob(a, w, column(a->map, role, expression), text);
    else
        ob_pg_where_glob(a, w, "''", text);
}

static void created(struct ob_admin *a, struct pg_where *w, const char *op, int64_t us)
{
    const struct pg_column *c = a->map->col[OB_MAP_CREATED];
    if (us && c)
        ob_buf_printf(&a->sql, " and t.%s %s to_timestamp($%zu::numeric / 1000000)%s", c->ident, op,
                      ob_pg_where_num(w, us),
                      strstr(c->type, "without") ? " at time zone 'UTC'" : "");
}

static void filter(struct ob_admin *a, struct pg_where *w, const struct ob_filter *f)
{
    const struct pg_map *m = a->map;
    enum ob_map_role key = m->col[OB_MAP_KEY]            ? OB_MAP_KEY
                           : m->col[OB_MAP_AGGREGATE_ID] ? OB_MAP_AGGREGATE_ID
                                                         : OB_MAP_ID;
    if (f->id) {
        size_t p = ob_pg_where_text(w, f->id);
        ob_buf_printf(&a->sql, " and t.%s::text in ($%zu, lower($%zu))", m->col[OB_MAP_ID]->ident,
                      p, p);
    }
    glob(a, w, OB_MAP_TYPE, f->type);
    glob(a, w, key, f->key);
    glob(a, w, OB_MAP_TENANT, f->tenant);
    created(a, w, ">=", f->since_us);
    created(a, w, "<", f->until_us);
    if (f->after)
        ob_buf_printf(&a->sql, " and %s > $%zu::bigint", m->number,
                      ob_pg_where_num(w, (int64_t)f->after));
}

/* Behind the row of this id, in the order of the table. */
static void behind(struct ob_admin *a, struct pg_where *w, const char *last)
{
    const struct pg_map *m = a->map;
    ob_buf_printf(&a->sql, " and (%s) > (select %s from %s o where o.%s = $%zu::text::%s)",
                  m->order, m->order_o, m->table, m->col[OB_MAP_ID]->ident,
                  ob_pg_where_text(w, last), m->col[OB_MAP_ID]->type);
}

/* The id behind which the newest `limit` start; *last stays empty if these are all. */
static enum ob_status find_newest(struct ob_admin *a, const struct ob_filter *f,
                                  struct ob_buf *last, struct ob_err *err)
{
    struct pg_where w = {0};
    PGresult *res = NULL;
    ob_buf_reset(&a->sql);
    ob_buf_printf(&a->sql, "select t.%s::text from %s t where true", a->map->col[OB_MAP_ID]->ident,
                  a->map->table);
    filter(a, &w, f);
    ob_buf_printf(&a->sql, " order by %s offset $%zu::bigint limit 1", a->map->order_desc,
                  ob_pg_where_num(&w, (int64_t)f->limit));
    enum ob_status st = ob_pg_query(&a->db, ob_buf_z(&a->sql), w.p, w.n, true, &res, err);
    if (st == OB_OK && PQntuples(res) == 1)
        ob_buf_str(last, ob_pg_str(res, 0, 0));
    PQclear(res);
    return st;
}

static enum ob_status read_page(struct ob_admin *a, const struct ob_filter *f, struct ob_buf *last,
                                int64_t limit, PGresult **out, struct ob_err *err)
{
    struct pg_where w = {0};
    ob_buf_reset(&a->sql);
    ob_buf_c(&a->sql, a->map->sql[PG_MAP_LIST]);
    filter(a, &w, f);
    if (last->n > 0)
        behind(a, &w, ob_buf_z(last));
    ob_buf_printf(&a->sql, " order by %s limit $%zu::bigint", a->map->order,
                  ob_pg_where_num(&w, limit));
    return ob_pg_query(&a->db, ob_buf_z(&a->sql), w.p, w.n, true, out, err);
}

static enum ob_status show_row(struct ob_admin *a, const PGresult *res, int row,
                               struct ob_arena *arena, struct pg_show *show, struct ob_err *err)
{
    struct ob_event ev;
    char state[16];
    struct ob_str s = ob_pg_str(res, row, AT_STATE(a->map));
    enum ob_status st = OB_OK;
    ob_arena_reset(arena);
    if (!ob_pg_map_event(a->map, res, row, arena, &ev))
        return ob_err_set(err, OB_DOWN, "no memory");
    if (ob_pg_map_event_partial(a->map, res, row, show->payload))
        st = ob_pg_map_event_read(&a->db, a->map, show->payload, &ob_limits_shown, arena, &ev, err);
    ev.ref = ob_pg_null(res, row, AT_NUMBER(a->map))
                 ? 0
                 : (uint64_t)ob_pg_i64(res, row, AT_NUMBER(a->map));
    ev.seq = ev.ref;
    snprintf(state, sizeof(state), "%.*s", OB_STR_ARG(s));
    if (st == OB_OK)
        show->more = show->fn(show->user, &ev, state);
    return st;
}

static enum ob_status show_rows(struct ob_admin *a, const PGresult *res, struct pg_show *show,
                                struct ob_err *err)
{
    struct ob_arena *arena = ob_arena_new(4096, 0);
    enum ob_status st = arena ? OB_OK : ob_err_set(err, OB_DOWN, "no memory");
    for (int i = 0; i < PQntuples(res) && st == OB_OK && show->more; i++)
        st = show_row(a, res, i, arena, show, err);
    ob_arena_unref(arena);
    return st;
}

enum ob_status ob_pg_map_events(struct ob_admin *a, const struct ob_filter *f, bool payload,
                                ob_event_fn *fn, void *user, struct ob_err *err)
{
    struct pg_show show = {payload, fn, user, true};
    struct ob_buf last;
    int64_t left = f->limit ? (int64_t)f->limit : INT64_MAX;
    enum ob_status st = need_map(a, err);
    ob_buf_init(&last, 1 << 20);
    if (st == OB_OK && f->limit && !f->after)
        st = find_newest(a, f, &last, err);
    while (st == OB_OK && show.more && left > 0) {
        PGresult *res = NULL;
        int64_t page = left < PAGE ? left : PAGE;
        st = read_page(a, f, &last, page, &res, err);
        int rows = st == OB_OK ? PQntuples(res) : 0;
        if (rows > 0)
            st = show_rows(a, res, &show, err);
        ob_buf_reset(&last);
        if (rows > 0)
            ob_buf_str(&last, ob_pg_str(res, rows - 1, PG_F_ID));
        left -= rows;
        show.more = show.more && rows == page;
        PQclear(res);
    }
    ob_buf_clear(&last);
    return st;
}

/* ---- following ---- */

static enum ob_status need_number(struct ob_admin *a, struct ob_err *err)
{
    enum ob_status st = need_map(a, err);
    if (st == OB_OK && !a->map->col[OB_MAP_CREATED] &&
        !(a->map->col[OB_MAP_ORDER] && a->map->col[OB_MAP_ORDER]->kind == PG_KIND_INT))
        return ob_err_set(err, OB_REJECT,
                          "rows of %s have neither a number nor a time, so nobody knows which are "
                          "new: see mapping.order and mapping.created",
                          a->map->table);
    return st;
}

enum ob_status ob_pg_map_newest(struct ob_admin *a, int64_t limit, PGresult **out,
                                struct ob_err *err)
{
    struct pg_where w = {0};
    enum ob_status st = need_number(a, err);
    if (st != OB_OK)
        return st;
    ob_buf_reset(&a->sql);
    ob_buf_printf(&a->sql, "select t.%s::text, %s from %s t order by %s limit $%zu::bigint",
                  a->map->col[OB_MAP_ID]->ident, a->map->number, a->map->table, a->map->order_desc,
                  ob_pg_where_num(&w, limit));
    return ob_pg_query(&a->db, ob_buf_z(&a->sql), w.p, w.n, true, out, err);
}

enum ob_status ob_pg_map_numbers(struct ob_admin *a, int64_t floor, struct ob_buf *last,
                                 int64_t limit, PGresult **out, struct ob_err *err)
{
    struct pg_where w = {0};
    enum ob_status st = need_number(a, err);
    if (st != OB_OK)
        return st;
    ob_buf_reset(&a->sql);
    ob_buf_printf(&a->sql, "select t.%s::text, %s from %s t where %s >= $%zu::bigint",
                  a->map->col[OB_MAP_ID]->ident, a->map->number, a->map->table, a->map->number,
                  ob_pg_where_num(&w, floor));
    if (last->n > 0)
        behind(a, &w, ob_buf_z(last));
    ob_buf_printf(&a->sql, " order by %s limit $%zu::bigint", a->map->order,
                  ob_pg_where_num(&w, limit));
    return ob_pg_query(&a->db, ob_buf_z(&a->sql), w.p, w.n, true, out, err);
}

enum ob_status ob_pg_map_show(struct ob_admin *a, const char *ids, struct pg_show *show,
                              struct ob_err *err)
{
    struct pg_where w = {0};
    PGresult *res = NULL;
    ob_buf_reset(&a->sql);
    ob_buf_c(&a->sql, a->map->sql[PG_MAP_LIST]);
    ob_buf_printf(&a->sql, " and t.%s = any ($%zu::text[]::%s[]) order by %s",
                  a->map->col[OB_MAP_ID]->ident, ob_pg_where_text(&w, ids),
                  a->map->col[OB_MAP_ID]->type, a->map->order);
    enum ob_status st = ob_pg_query(&a->db, ob_buf_z(&a->sql), w.p, w.n, true, &res, err);
    if (st == OB_OK)
        st = show_rows(a, res, show, err);
    PQclear(res);
    return st;
}

/* ---- dead events ---- */

enum ob_status ob_pg_map_whole(struct ob_admin *a, const struct ob_filter *f, struct ob_str ref,
                               struct ob_arena *arena, struct ob_event *ev, bool *found,
                               struct ob_err *err)
{
    struct pg_where w = {0};
    PGresult *res = NULL;
    enum ob_status st = need_map(a, err);
    struct ob_str id = ob_arena_copy(arena, ref);
    *found = false;
    if (st != OB_OK || !id.p)
        return st == OB_OK ? ob_err_set(err, OB_DOWN, "no memory") : st;
    ob_buf_reset(&a->sql);
    ob_buf_c(&a->sql, a->map->sql[PG_MAP_LIST]);
    ob_buf_printf(&a->sql, " and t.%s = $%zu::text::%s", a->map->col[OB_MAP_ID]->ident,
                  ob_pg_where_text(&w, id.p), a->map->col[OB_MAP_ID]->type);
    st = ob_pg_query(&a->db, ob_buf_z(&a->sql), w.p, w.n, true, &res, err);
    *found = st == OB_OK && PQntuples(res) > 0;
    if (*found && (!ob_pg_map_event(a->map, res, 0, arena, ev) || !ob_event_own(ev, arena)))
        st = ob_err_set(err, OB_DOWN, "no memory");
    if (*found && st == OB_OK && ob_pg_map_event_partial(a->map, res, 0, true))
        st = ob_pg_map_event_read(&a->db, a->map, true, ob_filter_limits(f), arena, ev, err);
    PQclear(res);
    return st;
}

enum ob_status ob_pg_map_release(struct ob_admin *a, const char *refs, struct ob_err *err)
{
    const struct pg_param p[] = {PG_TEXT(refs)};
    enum ob_status st = need_map(a, err);
    if (st == OB_OK && *a->map->sql[PG_MAP_RELEASE])
        st = ob_pg_query(&a->db, a->map->sql[PG_MAP_RELEASE], p, 1, false, NULL, err);
    return st;
}

/* ---- numbers ---- */

enum ob_status ob_pg_map_status(struct ob_admin *a, struct ob_source_status *out,
                                struct ob_err *err)
{
    PGresult *res = NULL;
    const struct pg_param p[] = {PG_TEXT(STATUS_MAX)};
    enum ob_status st = need_map(a, err);
    if (st == OB_OK)
        st = ob_pg_query(&a->db, a->map->sql[PG_MAP_PENDING], p, 1, true, &res, err);
    if (st == OB_OK) {
        out->pending = ob_pg_i64(res, 0, 0);
        out->lag_ms = ob_pg_null(res, 0, 1) ? 0 : ob_pg_i64(res, 0, 1);
    }
    PQclear(res);
    return st;
}

/* ---- check ---- */

/* Is there a partial index that a pass can walk in its order? */
static enum ob_status find_index(struct ob_admin *a, bool *there, struct ob_err *err)
{
    const struct pg_map *m = a->map;
    const struct pg_column *first = m->col[OB_MAP_ORDER]     ? m->col[OB_MAP_ORDER]
                                    : m->col[OB_MAP_CREATED] ? m->col[OB_MAP_CREATED]
                                                             : m->col[OB_MAP_ID];
    const struct pg_column *state =
        m->col[OB_MAP_STATUS] ? m->col[OB_MAP_STATUS] : m->col[OB_MAP_DONE];
    char oid[24];
    PGresult *res = NULL;
    snprintf(oid, sizeof(oid), "%" PRId64, m->oid);
    const struct pg_param p[] = {PG_TEXT(oid), PG_TEXT(first->name), PG_TEXT(state->name)};
    enum ob_status st = ob_pg_query(
        &a->db,
        "select exists (select 1 from pg_index i join pg_attribute a on a.attrelid = i.indrelid "
        "and "
        "a.attnum = i.indkey[0] where i.indrelid = $1::oid and a.attname = $2 and i.indisvalid and "
        "i.indpred is not null and exists (select 1 from pg_depend d join pg_attribute s on "
        "s.attrelid = d.refobjid and s.attnum = d.refobjsubid where d.classid = "
        "'pg_class'::regclass and d.objid = i.indexrelid and d.refobjid = i.indrelid and s.attname "
        "= $3))",
        p, 3, true, &res, err);
    if (st == OB_OK)
        *there = ob_pg_bool(res, 0, 0);
    PQclear(res);
    return st;
}

/* A row without a state waits by nobody's rule, and is never published. */
static void check_null(const struct pg_map *m,
                       void (*found)(void *user, bool ok, const char *what, const char *fix),
                       void *user)
{
    const struct pg_column *c = m->col[OB_MAP_STATUS] ? m->col[OB_MAP_STATUS] : m->col[OB_MAP_DONE];
    const char *value = m->col[OB_MAP_STATUS] ? m->v_pending : "false";
    char what[512], fix[1024];
    if (c->kind == PG_KIND_TIME || c->not_null || c->has_default)
        return;
    snprintf(what, sizeof(what),
             "column %s of %s has no default: a row that is written without a value for it is "
             "never published",
             c->ident, m->table);
    snprintf(fix, sizeof(fix),
             "ALTER TABLE %s ALTER COLUMN %s SET DEFAULT %s; UPDATE %s SET %s = %s WHERE %s IS "
             "NULL;",
             m->table, c->ident, value, m->table, c->ident, value, c->ident);
    found(user, false, what, fix);
}

static enum ob_status
found_stream(const struct pg_map *m,
             void (*found)(void *user, bool ok, const char *what, const char *fix), void *user)
{
    char what[512];
    snprintf(what, sizeof(what), "%s is there, and its columns fit", m->table);
    found(user, true, what, "");
    return OB_OK;
}

enum ob_status ob_pg_map_checks(struct ob_admin *a,
                                void (*found)(void *user, bool ok, const char *what,
                                              const char *fix),
                                void *user, struct ob_err *err)
{
    char what[512], fix[1024];
    bool index = false;
    enum ob_status st = need_map(a, err);
    if (st != OB_OK) { /* the statement that mends it stands behind what is wrong */
        char *mend = strstr(err->text, ": GRANT ");
        mend = mend ? mend : strstr(err->text, ": ALTER ");
        snprintf(fix, sizeof(fix), "%s",
                 mend ? mend + 2 : "see mapping in the configuration of the source");
        snprintf(what, sizeof(what), "%.*s", mend ? (int)(mend - err->text) : 500, err->text);
        found(user, false, what, fix);
        return OB_OK;
    }
    const struct pg_map *m = a->map;
    if (m->stream) /* nothing is looked for and nothing marked */
        return found_stream(m, found, user);
    snprintf(what, sizeof(what), "%s is there, and its columns fit", m->table);
    found(user, true, what, "");
    snprintf(what, sizeof(what), "row-level security %s of %s",
             m->row_security ? "may hide rows" : "hides no row", m->table);
    snprintf(fix, sizeof(fix), "ALTER ROLE \"%s\" BYPASSRLS; -- or a policy that shows it all rows",
             PQuser(a->db.c));
    found(user, !m->row_security, what, m->row_security ? fix : "");
    check_null(m, found, user);
    st = find_index(a, &index, err);
    if (st != OB_OK)
        return st;
    snprintf(what, sizeof(what), "%s has %s index for rows that wait", m->table,
             index ? "an" : "no");
    snprintf(fix, sizeof(fix), "CREATE INDEX%s ON %s (%s) WHERE %s;",
             m->partitioned ? "" : " CONCURRENTLY", m->table, m->index_on, m->index_where);
    found(user, index, what, index ? "" : fix);
    if (!m->col[OB_MAP_ORDER] && !m->col[OB_MAP_ENTITY_VERSION])
        found(user, true,
              "without a number column the order within a key is that of the times of creation: "
              "exact only in mode wal",
              "");
    return OB_OK;
}
