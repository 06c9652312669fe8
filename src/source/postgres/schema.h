/* SPDX-License-Identifier: Apache-2.0 */
/* schema - the migrations of the schema outbox. */
#ifndef OB_SOURCE_POSTGRES_SCHEMA_H
#define OB_SOURCE_POSTGRES_SCHEMA_H

#include "core/buf.h"
#include "source/postgres/conn.h"

/* Made from schema/postgres. The last one is no step but run behind all others whenever there was
 * one: rights, of everything that is there. */
extern const char *const ob_pg_migrations[];
extern const char *const ob_pg_migration_names[];
extern const unsigned ob_pg_n_migrations;
/* schema/postgres/guard.sql, which runs before each of them. */
extern const char *const ob_pg_guards[];
/* The version that the newest schema has. */
static inline unsigned ob_pg_schema_newest(void)
{
    return ob_pg_n_migrations - 1;
}

/* 0: there is none. OB_FATAL: a schema of that name is not ours, or newer than this program. */
enum ob_status ob_pg_schema_version(struct pg_session *conn, unsigned *version,
                                    struct ob_err *err) OB_MUST_CHECK;
/* OB_FATAL unless it is there and the newest, with the fix. */
enum ob_status ob_pg_schema_need(struct pg_session *conn, struct ob_err *err) OB_MUST_CHECK;
/* Applies what is missing, in one transaction; several at once wait for each other. dry: only
 * writes one line per migration into out. */
enum ob_status ob_pg_schema_migrate(struct pg_session *conn, bool dry, struct ob_buf *out,
                                    unsigned *changed, struct ob_err *err) OB_MUST_CHECK;
void ob_pg_schema_print(struct ob_buf *out);

#endif
