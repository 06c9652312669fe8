/* SPDX-License-Identifier: Apache-2.0 */
/* fit - can what a cursor rests on be trusted here? Asked by each new owner before it reads. */
#include "source/postgres/check.h"
#include "source/postgres/pg.h"

/* A cursor would pass over rows that row-level security hides, and nobody would ever know. */
static enum ob_status see_all(struct ob_source *s, struct ob_err *err)
{
    PGresult *res = NULL;
    enum ob_status st =
        ob_pg_query(&s->sql,
                    "select c.oid::regclass::text, quote_ident(current_user) from pg_class c where "
                    "c.relnamespace = 'outbox'::regnamespace and c.relkind in ('r', 'p') and "
                    "row_security_active(c.oid) limit 1",
                    NULL, 0, false, &res, err);
    if (st == OB_OK && PQntuples(res) == 1)
        st = ob_err_set(err, OB_FATAL,
                        "row-level security may hide rows of %s from %s, and they would be passed "
                        "over: ALTER TABLE %s DISABLE ROW LEVEL SECURITY; or ALTER ROLE %s "
                        "BYPASSRLS;",
                        PQgetvalue(res, 0, 0), PQgetvalue(res, 0, 1), PQgetvalue(res, 0, 0),
                        PQgetvalue(res, 0, 1));
    PQclear(res);
    return st;
}

/* The cursor compares transaction ids, and those of rows that were replicated to here are of
 * another server: events would be passed over. (tests/e2e/test_postgres_subscription.py) */
static enum ob_status own_ids(struct ob_source *s, struct ob_err *err)
{
    PGresult *res = NULL;
    if (s->conf->mapping.table || s->conf->message_prefix[0]) /* mapping.c has looked */
        return OB_OK;
    enum ob_status st = ob_pg_query(
        &s->sql,
        "select f.srrelid::regclass::text from " PG_FED("'outbox.event'::regclass::oid") " limit 1",
        NULL, 0, false, &res, err);
    if (st == OB_OK && PQntuples(res) == 1)
        st = ob_err_set(err, OB_FATAL,
                        "a subscription writes %s, so its transaction ids are another server's: "
                        "relay from the server that it is replicated from",
                        PQgetvalue(res, 0, 0));
    PQclear(res);
    return st;
}

enum ob_status ob_pg_fit(struct ob_source *s, struct ob_err *err)
{
    enum ob_status st = see_all(s, err);
    return st == OB_OK ? own_ids(s, err) : st;
}
