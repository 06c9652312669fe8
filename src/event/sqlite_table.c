/* SPDX-License-Identifier: Apache-2.0 */
/* sqlite_table - the native outbox table in SQLite: its migrations, and what SQLite's result codes
 * mean. */
#include "event/sqlite_table.h"

#include <sqlite3.h>
#include <stdlib.h>

#define APPLY "outbox schema --apply"

static enum ob_status meaning(int rc, const char **fix)
{
    switch (rc & 0xff) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        *fix = "";
        return OB_RETRY;
    case SQLITE_SCHEMA:
    case SQLITE_INTERRUPT:
    case SQLITE_ABORT:
        *fix = "";
        return OB_RETRY;
    case SQLITE_FULL:
        *fix = "; free some space on its disk";
        return OB_DOWN;
    case SQLITE_CANTOPEN:
        *fix = "; check that the file, its folder and their permissions are there";
        return OB_DOWN;
    case SQLITE_IOERR:
    case SQLITE_NOMEM:
    case SQLITE_PROTOCOL:
        *fix = "";
        return OB_DOWN;
    case SQLITE_PERM:
    case SQLITE_READONLY:
        *fix = "; the relay writes its cursor into it: let its user write the file and its folder";
        return OB_FATAL;
    case SQLITE_NOTADB:
        *fix = "; it is no SQLite database (or encrypted): check the path";
        return OB_FATAL;
    case SQLITE_CORRUPT:
        *fix =
            "; the file is damaged: stop its writers, then restore a backup or use `sqlite3 FILE "
            ".recover`";
        return OB_FATAL;
    case SQLITE_CONSTRAINT:
    case SQLITE_TOOBIG:
    case SQLITE_MISMATCH:
        *fix = "";
        return OB_REJECT;
    default:
        *fix = "; if the outbox tables are missing or old: " APPLY;
        return OB_FATAL;
    }
}

enum ob_status ob_sqlite_fail(struct ob_err *err, sqlite3 *db, int rc, const char *what)
{
    const char *fix;
    enum ob_status st = meaning(rc, &fix);
    const char *text =
        db && (sqlite3_errcode(db) & 0xff) == (rc & 0xff) ? sqlite3_errmsg(db) : sqlite3_errstr(rc);

    return ob_err_set(err, st, "%s: %s%s", what, text, fix);
}

enum ob_status ob_sqlite_exec(sqlite3 *db, const char *sql, struct ob_err *err)
{
    int rc = sqlite3_exec(db, sql, NULL, NULL, NULL);

    return rc == SQLITE_OK ? OB_OK : ob_sqlite_fail(err, db, rc, sql);
}

/* First column of the first row as a number. OB_AGAIN: no row. */
static enum ob_status one_number(sqlite3 *db, const char *sql, int64_t *out, struct ob_err *err)
{
    sqlite3_stmt *st = NULL;
    enum ob_status ret = OB_OK;
    int rc = sqlite3_prepare_v2(db, sql, -1, &st, NULL);

    if (rc == SQLITE_OK)
        rc = sqlite3_step(st);
    if (rc == SQLITE_ROW)
        *out = sqlite3_column_int64(st, 0);
    else if (rc == SQLITE_DONE)
        ret = OB_AGAIN;
    else
        ret = ob_sqlite_fail(err, db, rc, "reading the schema");
    sqlite3_finalize(st);
    return ret;
}

enum ob_status ob_sqlite_table_version(sqlite3 *db, unsigned *version, struct ob_err *err)
{
    int64_t tables = 0, v = 0;
    enum ob_status st;

    /* Bit 1: outbox_meta, bit 2: outbox_event, bit 4: outbox_cursor. */
    st = one_number(db,
                    "SELECT coalesce(sum(CASE name WHEN 'outbox_meta' THEN 1"
                    " WHEN 'outbox_event' THEN 2 WHEN 'outbox_cursor' THEN 4 END), 0)"
                    " FROM sqlite_master WHERE type = 'table'",
                    &tables, err);
    if (st != OB_OK)
        return st;
    if (tables == 0) {
        *version = 0;
        return OB_OK;
    }
    if (tables == 7)
        st = one_number(db, "SELECT value FROM outbox_meta WHERE name = 'version'", &v, err);
    if (st == OB_RETRY || st == OB_DOWN)
        return st;
    if (tables != 7 || st != OB_OK || v < 1)
        return ob_err_set(err, OB_FATAL,
                          "the database has tables named outbox_… that this program did not make; "
                          "rename them, or use another database");
    if (v > (int64_t)ob_sqlite_n_migrations)
        return ob_err_set(err, OB_FATAL,
                          "the outbox schema has version %lld, this program knows only %u: use the "
                          "newer program",
                          (long long)v, ob_sqlite_n_migrations);
    *version = (unsigned)v;
    return OB_OK;
}

/* WAL mode is kept in the file. It cannot be entered inside a transaction. */
static enum ob_status enter_wal(sqlite3 *db, struct ob_err *err)
{
    sqlite3_stmt *st = NULL;
    const char *mode = NULL;
    enum ob_status ret = OB_OK;
    int rc = sqlite3_prepare_v2(db, "PRAGMA journal_mode = WAL", -1, &st, NULL);

    if (rc == SQLITE_OK)
        rc = sqlite3_step(st);
    if (rc != SQLITE_ROW) {
        ret = ob_sqlite_fail(err, db, rc, "entering WAL mode");
        goto done;
    }
    mode = (const char *)sqlite3_column_text(st, 0);
    if (!mode || sqlite3_stricmp(mode, "wal") != 0)
        ret = ob_err_set(err, OB_FATAL,
                         "the database cannot use WAL mode (it stays in mode %s); it must be a "
                         "file on a local disk",
                         mode ? mode : "unknown");
done:
    sqlite3_finalize(st);
    return ret;
}

static enum ob_status apply(sqlite3 *db, unsigned from, struct ob_err *err)
{
    char sql[96];
    enum ob_status st = OB_OK;

    for (unsigned i = from; i < ob_sqlite_n_migrations && st == OB_OK; i++) {
        int rc = sqlite3_exec(db, ob_sqlite_migrations[i], NULL, NULL, NULL);
        if (rc != SQLITE_OK)
            st = ob_sqlite_fail(err, db, rc, ob_sqlite_migration_names[i]);
    }
    if (st != OB_OK)
        return st;
    sqlite3_snprintf((int)sizeof(sql), sql,
                     "INSERT OR REPLACE INTO outbox_meta (name, value) VALUES ('version', '%u')",
                     ob_sqlite_n_migrations);
    return ob_sqlite_exec(db, sql, err);
}

enum ob_status ob_sqlite_table_migrate(sqlite3 *db, bool dry, struct ob_buf *out, unsigned *changed,
                                       struct ob_err *err)
{
    unsigned version = 0;
    enum ob_status st;

    if (!sqlite3_get_autocommit(db))
        return ob_err_set(err, OB_REJECT, "the schema cannot be applied inside a transaction");
    if (!dry) {
        st = enter_wal(db, err);
        if (st == OB_OK)
            st = ob_sqlite_exec(db, "BEGIN IMMEDIATE", err);
        if (st != OB_OK)
            return st;
    }
    st = ob_sqlite_table_version(db, &version, err);
    for (unsigned i = version; out && st == OB_OK && i < ob_sqlite_n_migrations; i++)
        ob_buf_printf(out, "%s\n", ob_sqlite_migration_names[i]);
    if (!dry && st == OB_OK && version < ob_sqlite_n_migrations)
        st = apply(db, version, err);
    if (!dry && st == OB_OK)
        st = ob_sqlite_exec(db, "COMMIT", err);
    if (!dry && !sqlite3_get_autocommit(db))
        sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL);
    if (st == OB_OK)
        *changed = ob_sqlite_n_migrations - version;
    return st;
}
