/* SPDX-License-Identifier: Apache-2.0 */
/* postgres - shared by the files of produce/ that write to PostgreSQL. */
#ifndef OB_PRODUCE_POSTGRES_H
#define OB_PRODUCE_POSTGRES_H

#include "event/pg_table.h"
#include "outbox/postgres.h"
#include "produce/produce.h"

#include <libpq-fe.h>

struct outbox_pg_target {
    struct ob_pg_table *table; /* NULL: the native outbox */
    bool serialize;
};

/* The description of a profile's table; NULL: there is no such profile. */
const struct ob_pg_table_conf *ob_produce_pg_profile(const char *name);
/* "polyshop, orion, …" for messages. */
extern const char ob_produce_pg_profile_names[];

/* May the connection be asked something now? transaction: inside a transaction that can write. */
enum ob_status ob_produce_pg_ready(PGconn *conn, bool transaction,
                                   struct ob_err *err) OB_MUST_CHECK;
/* Runs it; *out (may be NULL) belongs to the caller. */
enum ob_status ob_produce_pg_run(PGconn *conn, const struct ob_pg_call *call, PGresult **out,
                                 struct ob_err *err) OB_MUST_CHECK;
/* What a result means; OB_OK for a good one. res NULL: the connection's last error. */
enum ob_status ob_produce_pg_meaning(const PGconn *conn, const PGresult *res, struct ob_err *err);

#endif
