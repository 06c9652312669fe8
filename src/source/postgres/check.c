/* SPDX-License-Identifier: Apache-2.0 */
/* check - is this database fit to be relayed? Each finding comes with the statement that fixes it.
 */
#include "source/postgres/admin.h"

#include <stdio.h>
#include <stdlib.h>

struct findings {
    void (*found)(void *user, bool ok, const char *what, const char *fix);
    void *user;
};

static void say(const struct findings *f, bool ok, const char *what, const char *fix)
{
    f->found(f->user, ok, what, ok ? "" : fix);
}

/* One row of texts: whether it is as it should be, what was found, the fix. Each statement gives
 * its own findings, so that a new one is a row in this table. */
static const char *const checks[] = {
    /* rights */
    "select has_table_privilege(t, p), format('may %s %s', lower(p), t), "
    "format('GRANT outbox_relay TO %I;', current_user) "
    "from (values ('outbox.event', 'SELECT'), ('outbox.cursor', 'INSERT'), "
    "('outbox.cursor', 'UPDATE'), ('outbox.parked', 'INSERT'), ('outbox.dead', 'INSERT')) v(t, p)",
    "select has_function_privilege('outbox.maintain(boolean)', 'EXECUTE'), 'may keep the "
    "partitions', "
    "format('GRANT outbox_relay TO %I;', current_user)",
    /* rows that we would not see */
    "select not bool_or(row_security_active(c.oid)), 'row-level security hides no row of "
    "outbox.event', 'ALTER TABLE outbox.event DISABLE ROW LEVEL SECURITY;' from pg_class c where "
    "c.oid = 'outbox.event'::regclass",
    "select not exists (select 1 from pg_subscription_rel where srrelid = "
    "'outbox.event'::regclass), 'no subscription writes outbox.event', 'its transaction ids are "
    "another server''s: relay from that server'",
    /* what the cursor's proof rests on */
    "select seqcache = 1, format('the sequence of outbox.event gives numbers one by one (CACHE "
    "%s)', seqcache), 'ALTER TABLE outbox.event ALTER COLUMN seq SET CACHE 1;' from pg_sequence "
    "where seqrelid = 'outbox.event_seq_seq'::regclass",
    "select (select attnum from pg_attribute where attrelid = 'outbox.event'::regclass and attname "
    "= 'xid') < (select attnum from pg_attribute where attrelid = 'outbox.event'::regclass and "
    "attname = 'seq'), 'a writer has its transaction id before its number', 'the column xid must "
    "stand before seq: see `outbox schema --print`'",
    "select count(*) = 2, 'the indexes of outbox.event are there', 'make them again from `outbox "
    "schema --print`' from pg_index where indrelid = 'outbox.event'::regclass and indisvalid",
    /* partitions */
    "select not exists (select 1 from outbox.event_default), 'the default partition is empty', "
    "'no relay has run outbox.maintain() for a long time; the events in it are delivered and "
    "retired all the same'",
    "select max(hi) > (select last_value from outbox.event_seq_seq), 'there are partitions ahead "
    "of the writers', 'SELECT outbox.maintain();' from outbox.part",
    /* old cursors keep old partitions */
    "select false, format('pipeline %s has not run since %s and keeps every event since then', "
    "pipeline, date_trunc('second', max(beat_at))), format('DELETE FROM outbox.cursor WHERE "
    "pipeline = %L; -- if it is gone for good', pipeline) from outbox.cursor where mode <> 'rows' "
    "group by pipeline having max(beat_at) < clock_timestamp() - interval '3 days'",
    /* settings */
    "select setting = 'on', format('autovacuum is %s', setting), 'ALTER SYSTEM SET autovacuum = "
    "on;' from "
    "pg_settings where name = 'autovacuum'",
    "select setting <> 'off', format('synchronous_commit is %s', setting), 'a crash of the server "
    "can lose a commit whose event was already delivered: ALTER SYSTEM SET synchronous_commit = "
    "on;' from pg_settings where name = 'synchronous_commit'",
    "select setting = 'on', format('fsync is %s', setting), 'ALTER SYSTEM SET fsync = on;' from "
    "pg_settings where "
    "name = 'fsync'",
    "select not pg_is_in_recovery(), 'the server is a primary', 'the relay writes its cursor: add "
    "target_session_attrs=read-write to the connection string'",
    /* what stands in the way of upkeep */
    "select false, format('backend %s (%s, %s) has had a transaction open for %s: old partitions "
    "stay as long', pid, usename, coalesce(nullif(application_name, ''), 'no name'), "
    "date_trunc('second', clock_timestamp() - xact_start)), format('SELECT "
    "pg_terminate_backend(%s);', pid) from pg_stat_activity where xact_start < clock_timestamp() - "
    "interval '1 hour' and backend_type = 'client backend' and backend_xid is not null",
    "select false, format('the prepared transaction %s waits since %s', gid, date_trunc('second', "
    "prepared)), format('COMMIT PREPARED %L; -- or ROLLBACK PREPARED', gid) from pg_prepared_xacts "
    "where database = current_database() and prepared < clock_timestamp() - interval '1 hour'",
};

static enum ob_status run(struct ob_admin *a, const struct findings *f, const char *sql,
                          struct ob_err *err)
{
    PGresult *res = NULL;
    enum ob_status st = ob_pg_query(&a->db, sql, NULL, 0, false, &res, err);
    for (int i = 0; st == OB_OK && i < PQntuples(res); i++)
        say(f, PQgetvalue(res, i, 0)[0] == 't', PQgetvalue(res, i, 1), PQgetvalue(res, i, 2));
    PQclear(res);
    return st;
}

enum ob_status ob_pg_check(struct ob_admin *a,
                           void (*found)(void *user, bool ok, const char *what, const char *fix),
                           void *user, struct ob_err *err)
{
    const struct findings f = {found, user};
    struct ob_err why;
    (void)err; /* what cannot be checked is a finding */
    if (ob_pg_admin_need(a, &why) != OB_OK) {
        say(&f, false, why.text, "see the message");
        return OB_OK;
    }
    say(&f, true, "the database is there, with the newest outbox schema", "");
    const char *weak = ob_pg_weak_tls(&a->db);
    if (weak)
        say(&f, false, weak, "sslmode=verify-full sslrootcert=FILE in the connection string");
    if (ob_pg_admin_mapped(a) && ob_pg_map_checks(a, found, user, &why) != OB_OK)
        say(&f, false, why.text, "see the message");
    if (ob_pg_check_wal(a, found, user, &why) != OB_OK)
        say(&f, false, why.text, "see the message");
    for (size_t i = 0; i < sizeof(checks) / sizeof(checks[0]); i++)
        if (run(a, &f, checks[i], &why) != OB_OK)
            say(&f, false, why.text, "GRANT outbox_relay to the role of the connection string");
    return OB_OK;
}
