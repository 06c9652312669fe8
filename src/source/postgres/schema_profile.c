/* SPDX-License-Identifier: Apache-2.0 */
/* schema_profile - the tables of profiles, for users who have none. A table that is there is only
 * looked at: it is its owner's. */
#include "source/postgres/admin.h"
#include "source/postgres/schema.h"

#include <stdio.h>

/* schema/profiles/NAME.sql, made into C by the build. */
extern const char *const ob_pg_profile_texts[];
extern const char *const ob_pg_profile_text_names[];
extern const unsigned ob_pg_profile_n_texts;

static const char *find(const char *name)
{
    for (unsigned i = 0; i < ob_pg_profile_n_texts; i++)
        if (strcmp(ob_pg_profile_text_names[i], name) == 0)
            return ob_pg_profile_texts[i];
    return NULL;
}

enum ob_status ob_pg_profile_print(const char *name, struct ob_buf *out, struct ob_err *err)
{
    const char *sql = find(name);
    if (!sql) {
        ob_err_set(err, OB_REJECT, "there is no table of a profile '%.64s'", name);
        return OB_REJECT;
    }
    ob_buf_c(out, sql);
    return OB_OK;
}

static enum ob_status is_there(struct ob_admin *a, bool *there, struct ob_err *err)
{
    const struct ob_mapping *m = &a->conf->mapping;
    PGresult *res = NULL;
    const struct pg_param p[] = {PG_TEXT(m->schema), PG_TEXT(m->table)};
    enum ob_status st =
        ob_pg_query(&a->db,
                    "select exists (select 1 from pg_class c join pg_namespace n on "
                    "n.oid = c.relnamespace where n.nspname = $1 and c.relname = "
                    "$2)",
                    p, 2, true, &res, err);
    if (st == OB_OK)
        *there = ob_pg_bool(res, 0, 0);
    PQclear(res);
    return st;
}

static enum ob_status create(struct ob_admin *a, const char *sql, struct ob_err *err)
{
    struct ob_buf set;
    ob_buf_init(&set, 4096);
    ob_buf_c(&set, "begin; set local search_path = ");
    ob_pg_ident(&set, a->conf->mapping.schema);
    enum ob_status st = ob_pg_exec(&a->db, ob_buf_z(&set), err);
    ob_buf_clear(&set);
    if (st == OB_OK)
        st = ob_pg_exec(&a->db, sql, err);
    if (st == OB_OK)
        st = ob_pg_exec(&a->db, "commit", err);
    ob_pg_rollback(&a->db);
    return st;
}

/* What stands in the way of an existing table is an error, with the fix in it. */
static enum ob_status look(struct ob_admin *a, struct ob_buf *out, struct ob_err *err)
{
    struct pg_map *map = NULL;
    enum ob_status st =
        ob_pg_admin_mapped(a)
            ? ob_pg_map_open(&a->db, &a->conf->mapping, a->pipeline, NULL, &map, err)
            : ob_pg_map_open_stream(&a->db, &a->conf->mapping, a->pipeline, NULL, &map, err);
    if (st == OB_OK)
        ob_buf_printf(out, "%s is there, and its columns fit\n", map->table);
    ob_pg_map_close(map);
    return st;
}

enum ob_status ob_pg_profile_apply(struct ob_admin *a, const char *name, bool dry,
                                   struct ob_buf *out, unsigned *changed, struct ob_err *err)
{
    const char *sql = find(name);
    bool there = false;
    if (!sql || !a->conf->mapping.table)
        return ob_err_set(err, OB_REJECT, "there is no table of a profile '%.64s'", name);
    enum ob_status st = ob_pg_admin_connect(a, err);
    if (st == OB_OK)
        st = is_there(a, &there, err);
    if (st != OB_OK)
        return st;
    *changed = !there;
    if (there)
        return look(a, out, err);
    ob_buf_printf(out, "%s.sql\n", name);
    return dry ? OB_OK : create(a, sql, err);
}
