/* SPDX-License-Identifier: Apache-2.0 */
/* check_wal - is this server fit for mode wal? Settings, rights, publication, slots and who holds
 * them; each finding with the statement that fixes it. */
#include "source/postgres/admin.h"
#include "source/postgres/wal.h"

#include <stdio.h>
#include <stdlib.h>

/* Before each of them: what they are about. slots: names, in the order of shards; tab: NULL where
 * there is none; shards: 0: never run. */
#define ABOUT                                                                                      \
    "with v(pub, tab, slots, budget, shards) as (values ($1::text, $2::text, $3::text[], "         \
    "$4::bigint, $5::int)) "

/* Rows of: fine, what was found, the fix. */
static const char *const checks[] = {
    ABOUT "select setting = 'logical', format('wal_level is %s', setting), 'ALTER SYSTEM SET "
          "wal_level = logical; -- and restart the server' from pg_settings where name = "
          "'wal_level'",
    ABOUT
    "select setting::int > n, format('%s of %s max_replication_slots are taken', n, setting), "
    "'ALTER SYSTEM SET max_replication_slots = 20; -- and restart the server' from v, "
    "pg_settings, (select count(*) as n from pg_replication_slots) s where name = "
    "'max_replication_slots' and not exists (select 1 from pg_replication_slots where "
    "slot_name = any (v.slots))",
    ABOUT "select setting::int > n, format('%s of %s max_wal_senders are taken', n, setting), "
          "'ALTER SYSTEM SET max_wal_senders = 20; -- and restart the server' from pg_settings, "
          "(select count(*) as n from pg_stat_replication) s where name = 'max_wal_senders'",
    ABOUT "select rolreplication or rolsuper, format('%s may replicate', rolname), format('ALTER "
          "ROLE %I REPLICATION;', rolname) from pg_roles where rolname = current_user",
    /* the publication */
    ABOUT
    "select has_database_privilege(current_database(), 'CREATE'), format('there is no "
    "publication %s yet', v.pub), format('CREATE PUBLICATION %I%s WITH (publish = "
    "''insert'', publish_via_partition_root = true);', v.pub, coalesce(' FOR TABLE ' || "
    "v.tab, '')) from v where not exists (select 1 from pg_publication where pubname = v.pub)",
    ABOUT "select p.pubinsert and p.pubviaroot and (p.puballtables or exists (select 1 from "
          "pg_publication_rel r where r.prpubid = p.oid and r.prrelid = to_regclass(v.tab) and "
          "to_jsonb(r) ->> 'prqual' is null and to_jsonb(r) ->> 'prattrs' is null)), "
          "format('publication %s has all inserts of %s', v.pub, v.tab), format('ALTER PUBLICATION "
          "%I SET (publish = ''insert'', publish_via_partition_root = true); ALTER PUBLICATION %I "
          "SET TABLE %s;', v.pub, v.pub, v.tab) from v join pg_publication p on p.pubname = v.pub "
          "where v.tab is not null",
    /* messages: whoever may write one writes events */
    ABOUT
    "select false, format('every role may write events: %s is for PUBLIC', "
    "p.oid::regprocedure), format('REVOKE EXECUTE ON FUNCTION pg_catalog.%s FROM PUBLIC; -- "
    "then GRANT EXECUTE to the roles that write events', p.oid::regprocedure) from v, pg_proc "
    "p where v.tab is null and p.pronamespace = 'pg_catalog'::regnamespace and p.proname = "
    "'pg_logical_emit_message' and exists (select 1 from aclexplode(coalesce(p.proacl, "
    "acldefault('f', p.proowner))) a where a.grantee = 0 and a.privilege_type = 'EXECUTE')",
    /* slots */
    ABOUT "select s.wal_status is distinct from 'lost', format('slot %s is %s: it holds %s of "
          "WAL', s.slot_name, coalesce(s.wal_status, 'lost'), "
          "pg_size_pretty(coalesce(pg_wal_lsn_diff(pg_current_wal_insert_lsn(), s.restart_lsn), "
          "0))), 'the relay makes a new one when it runs' from v join pg_replication_slots s on "
          "s.slot_name = any (v.slots)",
    ABOUT "select false, format('slot %s holds more than wal_budget', s.slot_name), format('SELECT "
          "pg_drop_replication_slot(%L); -- or start the relay', s.slot_name) from v join "
          "pg_replication_slots s on s.slot_name = any (v.slots) where v.budget > 0 and "
          "pg_wal_lsn_diff(pg_current_wal_insert_lsn(), s.restart_lsn) > v.budget",
    ABOUT "select false, format('slot %s is of a shard that is no more, and nobody reads it: it "
          "holds %s of WAL', s.slot_name, pg_size_pretty(coalesce(pg_wal_lsn_diff("
          "pg_current_wal_insert_lsn(), s.restart_lsn), 0))), format('SELECT "
          "pg_drop_replication_slot(%L);', s.slot_name) from v join pg_replication_slots s on "
          "s.slot_name = any (v.slots) where v.shards > 0 and array_position(v.slots, "
          "s.slot_name::text) > v.shards and not s.active and s.database = current_database()",
    ABOUT "select a.application_name = 'outbox wal', format('slot %s is held by backend %s (%s, "
          "%s, %s)', s.slot_name, s.active_pid, a.usename, coalesce(nullif(a.application_name, "
          "''), 'no name'), coalesce(host(a.client_addr), 'local')), format('SELECT "
          "pg_terminate_backend(%s);', s.active_pid) from v join pg_replication_slots s on "
          "s.slot_name = any (v.slots) join pg_stat_activity a on a.pid = s.active_pid",
    ABOUT "select setting <> '-1', format('max_slot_wal_keep_size is %s', case setting when '-1' "
          "then 'unlimited: a slot that nobody reads fills the disk' else "
          "pg_size_pretty(setting::bigint * 1024 * 1024) end), 'ALTER SYSTEM SET "
          "max_slot_wal_keep_size = ''50GB''; SELECT pg_reload_conf();' from pg_settings where "
          "name = 'max_slot_wal_keep_size'",
    /* what a new slot would wait for */
    ABOUT "select false, format('a new slot waits for backend %s (%s, %s): its transaction is open "
          "for %s', pid, usename, coalesce(nullif(application_name, ''), 'no name'), "
          "date_trunc('second', clock_timestamp() - xact_start)), format('SELECT "
          "pg_terminate_backend(%s);', pid) from v, pg_stat_activity where backend_xid is not null "
          "and xact_start < clock_timestamp() - interval '1 minute' and not exists (select 1 from "
          "pg_replication_slots where slot_name = any (v.slots))",
    ABOUT "select false, format('a new slot waits for the prepared transaction %s', gid), "
          "format('COMMIT PREPARED %L; -- or ROLLBACK PREPARED', gid) from v, pg_prepared_xacts "
          "where not exists (select 1 from pg_replication_slots where slot_name = any (v.slots))",
};

/* The same in the other modes: a slot that was left behind holds WAL for ever. */
static const char *const left[] = {
    ABOUT
    "select false, format('slot %s is of this pipeline and nobody reads it: it holds %s of "
    "WAL', slot_name, pg_size_pretty(coalesce(pg_wal_lsn_diff(pg_current_wal_insert_lsn(), "
    "restart_lsn), 0))), format('SELECT pg_drop_replication_slot(%L);', slot_name) from v "
    "join pg_replication_slots s on s.slot_name = any (v.slots) where not active and database = "
    "current_database()",
};

/* Of this pipeline and no other: a name that a person gave has one slot for each shard that there
 * is; one that was made has the pipeline's name in it, whatever number follows. */
static enum ob_status names(struct ob_admin *a, unsigned shards, struct ob_buf *slots,
                            char publication[WAL_NAME], struct ob_err *err)
{
    struct wal_state w = {0};
    struct ob_source s = {.conf = a->conf, .pipeline = a->pipeline, .shards = 2, .wal = &w};
    unsigned n = shards ? shards : 1;
    s.sql = a->db;
    enum ob_status st = ob_pg_wal_names(&s, err);
    if (st == OB_OK && a->conf->slot[0])
        ob_pg_wal_slots_of(&s, 0, n, n, slots);
    else if (st == OB_OK)
        ob_pg_wal_slots_of(&s, 0, WAL_SHARDS_MAX, n, slots);
    snprintf(publication, WAL_NAME, "%s", w.publication);
    return st;
}

enum ob_status ob_pg_check_shards(struct ob_admin *a, char out[12], struct ob_err *err)
{
    PGresult *res = NULL;
    const struct pg_param p[] = {PG_TEXT(a->pipeline)};
    enum ob_status st = ob_pg_query(
        &a->db, "select coalesce(max(shards), 0) from outbox.cursor where pipeline = $1", p, 1,
        false, &res, err);
    if (st == OB_OK)
        snprintf(out, 12, "%.11s", PQgetvalue(res, 0, 0));
    PQclear(res);
    return st;
}

/* A pooler, pg_hba.conf or a missing right may let sessions through and not this one. */
static void check_connection(struct ob_admin *a,
                             void (*found)(void *user, bool ok, const char *what, const char *fix),
                             void *user)
{
    struct pg_session repl = {0};
    struct ob_err why = {.text = ""};
    enum ob_status st = ob_pg_connect(&repl, a->conf->dsn, "outbox check", true, a->clock,
                                      a->conf->timeout_ms, &why);
    if (st == OB_OK)
        st = ob_pg_exec(&repl, "IDENTIFY_SYSTEM", &why);
    found(user, st == OB_OK, st == OB_OK ? "the replication connection is let in" : why.text,
          st == OB_OK ? ""
                      : "the connection string must lead to PostgreSQL itself, as a role that "
                        "may replicate");
    ob_pg_close(&repl);
}

struct findings {
    void (*found)(void *user, bool ok, const char *what, const char *fix);
    void *user;
};

static void pass_finding(void *user, unsigned shard, const char *what, const char *fix)
{
    const struct findings *to = user;
    (void)shard;
    to->found(to->user, false, what, fix);
}

enum ob_status ob_pg_check_wal(struct ob_admin *a,
                               void (*found)(void *user, bool ok, const char *what,
                                             const char *fix),
                               void *user, struct ob_err *err)
{
    char publication[WAL_NAME], budget[24], shards[12] = "0";
    struct ob_buf table, slots;
    struct ob_err why;
    const struct ob_mapping *m = &a->conf->mapping;
    bool wal = a->conf->mode == PG_WAL;
    enum ob_status st = ob_pg_check_shards(a, shards, err);
    if (st != OB_OK)
        return st;
    ob_buf_init(&slots, 65536);
    if (names(a, (unsigned)strtoul(shards, NULL, 10), &slots, publication, &why) != OB_OK) {
        ob_buf_clear(&slots); /* nothing can be said of slots without their names */
        if (wal)
            found(user, false, why.text, "see slot and publication of the source");
        return OB_OK;
    }
    snprintf(budget, sizeof(budget), "%lld", (long long)a->conf->wal_budget);
    ob_buf_init(&table, 4096);
    ob_pg_ident(&table, m->table ? m->schema : "outbox");
    ob_buf_char(&table, '.');
    ob_pg_ident(&table, m->table ? m->table : "event");
    const struct pg_param p[] = {PG_TEXT(publication),
                                 PG_TEXT(a->conf->message_prefix[0] ? NULL : ob_buf_z(&table)),
                                 PG_TEXT(ob_buf_z(&slots)), PG_TEXT(budget), PG_TEXT(shards)};
    const char *const *list = wal ? checks : left;
    size_t n = wal ? sizeof(checks) / sizeof(checks[0]) : sizeof(left) / sizeof(left[0]);
    for (size_t i = 0; i < n && st == OB_OK; i++) {
        PGresult *res = NULL;
        st = ob_pg_query(&a->db, list[i], p, 5, false, &res, err);
        for (int row = 0; st == OB_OK && row < PQntuples(res); row++) {
            bool ok = PQgetvalue(res, row, 0)[0] == 't';
            found(user, ok, PQgetvalue(res, row, 1), ok ? "" : PQgetvalue(res, row, 2));
        }
        PQclear(res);
    }
    ob_buf_clear(&table);
    ob_buf_clear(&slots);
    struct findings to = {found, user};
    if (wal && st == OB_OK)
        st = ob_pg_check_slots(a, pass_finding, &to, err);
    if (wal && st == OB_OK)
        check_connection(a, found, user);
    return st;
}
