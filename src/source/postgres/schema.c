/* SPDX-License-Identifier: Apache-2.0 */
/* schema - the migrations of the schema outbox: numbered, applied once, by one at a time. */
#include "source/postgres/schema.h"

#include <stdio.h>
#include <stdlib.h>

#define APPLY "run `outbox schema --apply`"
#define LOCK_TRIES 5

static enum ob_status no_right(const struct pg_session *conn, struct ob_err *err)
{
    return ob_err_set(err, OB_FATAL,
                      "user %s may not use the schema outbox: GRANT outbox_relay TO \"%s\"; for a "
                      "person outbox_operator",
                      PQuser(conn->c), PQuser(conn->c));
}

enum ob_status ob_pg_schema_version(struct pg_session *conn, unsigned *version, struct ob_err *err)
{
    PGresult *res = NULL;
    enum ob_status st = ob_pg_query(
        conn,
        "select to_regnamespace('outbox') is not null, to_regclass('outbox.meta') is not null and "
        "to_regclass('outbox.cursor') is not null",
        NULL, 0, true, &res, err);
    if (st == OB_FATAL && strstr(err->text, "42501"))
        return no_right(conn, err);
    if (st != OB_OK)
        return st;
    bool schema = ob_pg_bool(res, 0, 0), ours = ob_pg_bool(res, 0, 1);
    PQclear(res);
    if (!schema) {
        *version = 0;
        return OB_OK;
    }
    res = NULL;
    if (ours)
        st = ob_pg_query(conn, "select value from outbox.meta where name = 'version'", NULL, 0,
                         true, &res, err);
    if (st == OB_FATAL && strstr(err->text, "42501"))
        return no_right(conn, err);
    if (st != OB_OK)
        return st;
    long v = res && PQntuples(res) == 1 ? strtol(PQgetvalue(res, 0, 0), NULL, 10) : 0;
    PQclear(res);
    if (v < 1)
        return ob_err_set(err, OB_FATAL,
                          "the database has a schema named outbox that this program did not make; "
                          "rename it, or use another database");
    if (v > (long)ob_pg_schema_newest())
        return ob_err_set(err, OB_FATAL,
                          "the outbox schema has version %ld, this program knows only %u: use the "
                          "newer program",
                          v, ob_pg_schema_newest());
    *version = (unsigned)v;
    return OB_OK;
}

enum ob_status ob_pg_schema_need(struct pg_session *conn, struct ob_err *err)
{
    unsigned version = 0;
    enum ob_status st = ob_pg_schema_version(conn, &version, err);
    if (st != OB_OK)
        return st;
    if (version == 0)
        return ob_err_set(err, OB_FATAL, "the database has no schema outbox yet: " APPLY);
    if (version < ob_pg_schema_newest())
        return ob_err_set(err, OB_FATAL,
                          "the schema outbox has version %u, this program needs %u: " APPLY,
                          version, ob_pg_schema_newest());
    return OB_OK;
}

static enum ob_status apply(struct pg_session *conn, unsigned from, struct ob_err *err)
{
    char sql[160];
    enum ob_status st = OB_OK;
    for (unsigned i = from; i < ob_pg_n_migrations && st == OB_OK; i++) {
        st = ob_pg_exec(conn, ob_pg_guards[0], err);
        if (st == OB_OK)
            st = ob_pg_exec(conn, ob_pg_migrations[i], err);
        if (st != OB_OK)
            ob_err_prefix(err, "%s", ob_pg_migration_names[i]);
    }
    if (st != OB_OK)
        return st;
    snprintf(sql, sizeof(sql),
             "insert into outbox.meta (name, value) values ('version', '%u') "
             "on conflict (name) do update set value = excluded.value",
             ob_pg_schema_newest());
    return ob_pg_exec(conn, sql, err);
}

/* Lets one process at a time migrate, by locks that no other role can hold: on a table of the
 * schema or, where there is none yet, on the schema's name in the catalog. *version is read again
 * under the lock. OB_AGAIN: another process has just made the schema. */
static enum ob_status lock_schema(struct pg_session *conn, unsigned *version, struct ob_err *err)
{
    PGresult *res = NULL;
    enum ob_status st = ob_pg_query(conn, "select to_regclass('outbox.meta') is not null", NULL, 0,
                                    true, &res, err);
    bool there = st == OB_OK && ob_pg_bool(res, 0, 0);
    PQclear(res);
    if (st != OB_OK)
        return st;
    if (there) {
        st = ob_pg_exec(conn, "lock table outbox.meta in share update exclusive mode", err);
        return st == OB_OK ? ob_pg_schema_version(conn, version, err) : st;
    }
    st = ob_pg_exec(conn, "create schema outbox", err);
    if (st != OB_OK && (strstr(err->text, "42P06") || strstr(err->text, "23505")))
        st = OB_AGAIN; /* duplicate schema, unique violation in the catalog */
    return st;
}

static enum ob_status begin_migration(struct pg_session *conn, unsigned *version,
                                      struct ob_err *err)
{
    enum ob_status st = OB_AGAIN;
    for (int i = 0; i < LOCK_TRIES && st == OB_AGAIN; i++) {
        st = ob_pg_exec(conn,
                        "begin; set local lock_timeout = '60s'; set local client_min_messages = "
                        "warning",
                        err);
        if (st == OB_OK)
            st = lock_schema(conn, version, err);
        if (st != OB_OK)
            ob_pg_rollback(conn);
    }
    return st;
}

enum ob_status ob_pg_schema_migrate(struct pg_session *conn, bool dry, struct ob_buf *out,
                                    unsigned *changed, struct ob_err *err)
{
    unsigned version = 0;
    enum ob_status st = ob_pg_schema_version(conn, &version, err);
    bool apply_now = !dry && version < ob_pg_schema_newest();
    if (st == OB_OK && apply_now)
        st = begin_migration(conn, &version, err);
    for (unsigned i = version; out && st == OB_OK && i < ob_pg_schema_newest(); i++)
        ob_buf_printf(out, "%s\n", ob_pg_migration_names[i]);
    if (st == OB_OK && apply_now && version < ob_pg_schema_newest())
        st = apply(conn, version, err);
    if (st == OB_OK && apply_now)
        st = ob_pg_exec(conn, "commit", err);
    ob_pg_rollback(conn);
    if (st == OB_OK)
        *changed = ob_pg_schema_newest() - version;
    return st;
}

void ob_pg_schema_print(struct ob_buf *out)
{
    ob_buf_c(out, "BEGIN;\n");
    for (unsigned i = 0; i < ob_pg_n_migrations; i++)
        ob_buf_printf(out, "%s%s", ob_pg_guards[0], ob_pg_migrations[i]);
    ob_buf_printf(out,
                  "INSERT INTO outbox.meta (name, value) VALUES ('version', '%u')"
                  " ON CONFLICT (name) DO UPDATE SET value = excluded.value;\nCOMMIT;\n",
                  ob_pg_schema_newest());
}
