/* SPDX-License-Identifier: Apache-2.0 */
/* check - what `outbox check` asks the server. */
#ifndef OB_SOURCE_POSTGRES_CHECK_H
#define OB_SOURCE_POSTGRES_CHECK_H

#include <stddef.h>

/* Tables that a subscription writes: of this one (an oid) and all its partitions, from the catalog
 * and without a lock on any. Transaction ids in them are another server's. */
#define PG_FED(table)                                                                              \
    "pg_subscription_rel f where f.srrelid in (with recursive t(oid) as (select " table            \
    " union all select i.inhrelid from pg_inherits i join t on i.inhparent = t.oid) select "       \
    "t.oid from t)"

/* A statement whose rows are findings: whether all is well (bool), what was found, the fix (texts).
 * Statements that mend something stand first in a fix, a remark behind `--`. */
struct pg_check {
    const char *sql; /* NULL: the end */
    /* NATIVE: only where the native table is read. TABLES: always, with $1 and $2: schema and name
     * of another table that is read, or NULL. */
    enum { PG_CHECK_ALWAYS, PG_CHECK_NATIVE, PG_CHECK_TABLES } when;
};

/* Before the schema is looked at: what kind of server, rights, locks. They need no right and take
 * no lock of ours. */
extern const struct pg_check ob_pg_checks_first[];
/* With the newest schema. */
extern const struct pg_check ob_pg_checks[];

#endif
