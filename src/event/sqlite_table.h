/* SPDX-License-Identifier: Apache-2.0 */
/* sqlite_table - the native outbox table in SQLite: its migrations (schema/sqlite/), inserting into
 * it, and what SQLite's result codes mean. Used by those who write events and by those who read
 * them; neither knows the other. */
#ifndef OB_EVENT_SQLITE_TABLE_H
#define OB_EVENT_SQLITE_TABLE_H

#include "core/buf.h"
#include "core/err.h"
#include "event/row.h"

struct sqlite3;
struct sqlite3_stmt;

/* schema/sqlite/NNN_*.sql in order, made into C by the build. Migration i leads to version i + 1.
 */
extern const char *const ob_sqlite_migrations[];
extern const char *const ob_sqlite_migration_names[];
extern const unsigned ob_sqlite_n_migrations;

/* Sets err from the connection's last failure and says what to do: OB_RETRY busy, OB_DOWN it may
 * come back by itself, OB_REJECT the values are at fault, OB_FATAL a person is needed (the text has
 * the fix). */
enum ob_status ob_sqlite_fail(struct ob_err *err, struct sqlite3 *db, int rc, const char *what);
enum ob_status ob_sqlite_exec(struct sqlite3 *db, const char *sql,
                              struct ob_err *err) OB_MUST_CHECK;

/* *version 0: no outbox in this database. OB_FATAL: tables of that name which are not ours, or made
 * by a newer program. */
enum ob_status ob_sqlite_table_version(struct sqlite3 *db, unsigned *version,
                                       struct ob_err *err) OB_MUST_CHECK;
/* Brings the schema to the newest version in one transaction, and the database into WAL mode. Not
 * inside a transaction. *changed: how many migrations were applied, or with dry would be; then one
 * line for each goes into out (may be NULL). */
enum ob_status ob_sqlite_table_migrate(struct sqlite3 *db, bool dry, struct ob_buf *out,
                                       unsigned *changed, struct ob_err *err) OB_MUST_CHECK;

enum ob_status ob_sqlite_insert_prepare(struct sqlite3 *db, struct sqlite3_stmt **out,
                                        struct ob_err *err) OB_MUST_CHECK;
/* Checks, inserts; id (64 bytes, may be NULL) receives the id. */
enum ob_status ob_sqlite_insert(struct sqlite3_stmt *insert, const struct ob_row *row, char id[64],
                                struct ob_err *err) OB_MUST_CHECK;

#endif
