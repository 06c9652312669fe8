/* SPDX-License-Identifier: Apache-2.0 */
/* check_table - the questions of `outbox check`, each with the statement that mends what it finds.
 * One row, one question: a new one is a row here, and one in tests/unit/source/pg_check_test.c. */
#include "source/postgres/check.h"

/* A session as people find it again. */
#define WHO                                                                                        \
    "format('backend %s (user %s, application %s, %s, %s since %s)', a.pid, coalesce(a.usename, "  \
    "'?'), coalesce(nullif(a.application_name, ''), 'without a name'), "                           \
    "coalesce(host(a.client_addr), 'local'), coalesce(a.state, '?'), date_trunc('second', "        \
    "coalesce(a.xact_start, a.backend_start)))"
#define END "format('SELECT pg_terminate_backend(%s);', a.pid)"
/* How long something may take before it is told of. */
#define OLD                                                                                        \
    "coalesce((select value::interval from outbox.meta where name = 'old_transaction'), '1 hour')"

/* What the relay uses: object, privileges. */
#define TABLES                                                                                     \
    "(values ('meta', 'SELECT'), ('part', 'SELECT'), ('event', 'SELECT'), ('event_default', "      \
    "'SELECT'), ('events', 'SELECT'), ('event_seq_seq', 'SELECT'), ('cursor', 'SELECT'), "         \
    "('cursor', 'INSERT'), ('cursor', 'UPDATE'), ('cursor', 'DELETE'), ('past', 'SELECT'), "       \
    "('past', 'INSERT'), ('past', 'UPDATE'), ('past', 'DELETE'), ('pipeline', 'SELECT'), "         \
    "('pipeline', 'INSERT'), "                                                                     \
    "('pipeline', 'UPDATE'), ('parked', 'SELECT'), ('parked', 'INSERT'), ('parked', 'UPDATE'), "   \
    "('parked', 'DELETE'), ('parked_key', 'SELECT'), ('parked_key', 'INSERT'), ('parked_key', "    \
    "'UPDATE'), ('parked_key', 'DELETE'), ('dead', 'SELECT'), ('dead', 'INSERT'), ('dead', "       \
    "'UPDATE'))"
#define FUNCTIONS                                                                                  \
    "'{rekey,settled,unpack,maintain,adopt,reshard,move_slots,pending,publish,is_relay,"           \
    "shard_holder,writer_open,month_bounds,month_table,months_missing,month_default_used,"         \
    "months_ahead}'"

/* Tables that a pipeline needs, without a lock on them: c is one of ours, or another one that is
 * read, or a partition of that. */
#define READ                                                                                       \
    "(c.relnamespace = (select oid from pg_namespace where nspname = 'outbox') or c.oid in (with " \
    "recursive m(oid) as (select k.oid from pg_class k join pg_namespace s on s.oid = "            \
    "k.relnamespace where s.nspname = $1 and k.relname = $2 union all select i.inhrelid from "     \
    "pg_inherits i join m on i.inhparent = m.oid) select m.oid from m))"

const struct pg_check ob_pg_checks_first[] = {
    {"select not pg_is_in_recovery(), case when pg_is_in_recovery() then 'the server is a "
     "stand-by, and the relay writes its cursor' else 'the server is a primary' end, 'SELECT "
     "pg_promote(); -- or add target_session_attrs=read-write, and the primary''s host, to the "
     "connection string'",
     PG_CHECK_ALWAYS},
    {"select setting = 'off', case setting when 'off' then 'transactions may write' else "
     "'transactions are read-only here (default_transaction_read_only)' end, "
     "format(case when exists (select 1 from pg_db_role_setting s, unnest(s.setconfig) c where c = "
     "'default_transaction_read_only=on' and s.setrole = 0) then 'SET "
     "default_transaction_read_only = off; ALTER DATABASE %1$I RESET "
     "default_transaction_read_only;' when exists (select 1 from pg_db_role_setting s, "
     "unnest(s.setconfig) c where c = 'default_transaction_read_only=on') then 'SET "
     "default_transaction_read_only = off; ALTER ROLE %2$I RESET default_transaction_read_only;' "
     "else 'ALTER SYSTEM RESET "
     "default_transaction_read_only; SELECT pg_reload_conf();' end, current_database(), "
     "current_user) from pg_settings where name = 'default_transaction_read_only'",
     PG_CHECK_ALWAYS},
    /* rights: the schema first, nothing in it can be seen without */
    {"select has_schema_privilege(n.oid, 'USAGE'), case when has_schema_privilege(n.oid, 'USAGE') "
     "then 'may use the schema outbox' else format('user %s may not use the schema outbox', "
     "current_user) end, format(case when exists (select 1 from pg_roles where rolname = "
     "'outbox_relay') then 'GRANT outbox_relay TO %1$I;' else 'SELECT outbox.grant_to(null, "
     "%1$L);' end, current_user) from pg_namespace n where n.nspname = 'outbox'",
     PG_CHECK_ALWAYS},
    {"select false, format('user %s may not %s %s', current_user, lower(string_agg(v.p, ', ' order "
     "by v.p)), c.oid::regclass), format('GRANT %s ON %s TO %I;', string_agg(v.p, ', ' order by "
     "v.p), c.oid::regclass, current_user) from " TABLES
     " v(t, p), pg_class c, pg_namespace n where n.nspname = 'outbox' and c.relnamespace = n.oid "
     "and c.relname = v.t and has_schema_privilege(n.oid, 'USAGE') and not "
     "has_table_privilege(c.oid, v.p) group by c.oid",
     PG_CHECK_ALWAYS},
    {"select false, format('user %s may not call %s', current_user, p.oid::regprocedure), "
     "format('GRANT EXECUTE ON FUNCTION %s TO %I;', p.oid::regprocedure, current_user) from "
     "pg_proc "
     "p, pg_namespace n where n.nspname = 'outbox' and p.pronamespace = n.oid and p.proname = any "
     "(" FUNCTIONS ") and has_schema_privilege(n.oid, 'USAGE') and not "
     "has_function_privilege(p.oid, 'EXECUTE')",
     PG_CHECK_ALWAYS},
    /* owners: the owner of a function, or of the schema that it is in, runs code as its callers */
    {"select o.bad is null, coalesce(o.bad, format('the schema outbox and everything in it belong "
     "to role %I', pg_get_userbyid(n.nspowner))), format('ALTER %s %s OWNER TO %I; -- after a look "
     "at what it does: its owner could change it', o.kind, o.name, pg_get_userbyid(n.nspowner)) "
     "from pg_namespace n left join lateral (select format('the %s %s belongs to role %I, not to "
     "the owner of the schema', lower(x.kind), x.name, pg_get_userbyid(x.owner)) as bad, x.kind, "
     "x.name from (select case c.relkind when 'S' then 'SEQUENCE' when 'v' then 'VIEW' else "
     "'TABLE' end as kind, format('outbox.%I', c.relname) as name, c.relowner as owner from "
     "pg_class c where c.relnamespace = n.oid and c.relkind in ('r', 'p', 'S', 'v', 'm', 'f') "
     "union all select 'FUNCTION', p.oid::regprocedure::text, p.proowner from pg_proc p where "
     "p.pronamespace = n.oid) x where x.owner <> n.nspowner) o on true where n.nspname = 'outbox'",
     PG_CHECK_ALWAYS},
    {"select false, format('role %s may create objects in the schema outbox', case a.grantee when "
     "0 then 'PUBLIC' else quote_ident(pg_get_userbyid(a.grantee)) end), format('REVOKE CREATE ON "
     "SCHEMA outbox FROM %s;', case a.grantee when 0 then 'PUBLIC' else "
     "quote_ident(pg_get_userbyid(a.grantee)) end) from pg_namespace n, aclexplode(n.nspacl) a "
     "where n.nspname = 'outbox' and a.privilege_type = 'CREATE' and a.grantee <> n.nspowner",
     PG_CHECK_ALWAYS},
    {"select false, format('the function %s runs with its owner''s rights and the caller''s "
     "search_path', p.oid::regprocedure), format('ALTER FUNCTION %s SET search_path = pg_catalog, "
     "pg_temp;', p.oid::regprocedure) from pg_proc p join pg_namespace n on n.oid = p.pronamespace "
     "where n.nspname = 'outbox' and p.prosecdef and not coalesce(p.proconfig, '{}') @> "
     "array['search_path=pg_catalog, pg_temp']",
     PG_CHECK_ALWAYS},
    /* who holds a lock that stops us: asked of the lock table, which needs none of them */
    {"select false, format('%s holds %s on %s: nobody else can %s it', case when x.gid is null "
     "then " WHO " else format('the prepared transaction %s (of %s, since %s)', x.gid, x.owner, "
     "date_trunc('second', x.prepared)) end, l.mode, c.oid::regclass, case l.mode when "
     "'AccessExclusiveLock' then 'read or write' else 'write' end), case when x.gid is null "
     "then " END
     " else format('ROLLBACK PREPARED %L; -- or COMMIT PREPARED', x.gid) end from pg_locks l join "
     "pg_class c on c.oid = l.relation and " READ
     " left join pg_stat_activity a on a.pid = l.pid left join pg_prepared_xacts x on "
     "l.pid is null and l.virtualtransaction = '-1/' || x.transaction::text where l.granted and "
     "c.relkind in ('r', 'p') and l.database = (select oid from pg_database where datname = "
     "current_database()) and l.mode in ('AccessExclusiveLock', 'ExclusiveLock', "
     "'ShareRowExclusiveLock', 'ShareLock') and l.pid is distinct from pg_backend_pid() and "
     "(x.gid is not null or coalesce(clock_timestamp() - a.xact_start > interval '2 s', true))",
     PG_CHECK_TABLES},
    {"select true, format('sessions of other users are seen in part only; GRANT pg_read_all_stats "
     "TO %I; shows since when they are there', current_user), '' where not "
     "pg_has_role('pg_read_all_stats', 'USAGE')",
     PG_CHECK_ALWAYS},
    {0},
};

/* Indexes: name, statement. */
#define INDEXES                                                                                    \
    "(values ('event_seq', 'CREATE UNIQUE INDEX event_seq ON outbox.event (seq)'), ('event_xid', " \
    "'CREATE INDEX event_xid ON outbox.event (xid, seq)'), ('parked_hash', 'CREATE INDEX "         \
    "parked_hash ON outbox.parked (pipeline, hash, n)'), ('parked_ref', 'CREATE UNIQUE INDEX "     \
    "parked_ref ON outbox.parked (pipeline, ref)'), ('parked_seq', 'CREATE INDEX parked_seq ON "   \
    "outbox.parked (pipeline, seq)'), ('parked_key_due', 'CREATE INDEX parked_key_due ON "         \
    "outbox.parked_key (pipeline, blocked_dest, due_at)'), ('dead_ref', 'CREATE INDEX dead_ref "   \
    "ON outbox.dead (pipeline, ref)'), ('dead_seq', 'CREATE INDEX dead_seq ON outbox.dead "        \
    "(pipeline, seq)'), ('dead_hold', 'CREATE INDEX dead_hold ON outbox.dead (pipeline, hash, n) " \
    "WHERE hold'), ('dead_state', 'CREATE INDEX dead_state ON outbox.dead (pipeline, n) WHERE "    \
    "state = ''dead'''), ('dead_id', 'CREATE INDEX dead_id ON outbox.dead (id)'))"

/* Tables of ours, without a lock on them. */
#define OURS                                                                                       \
    "pg_class c where c.relnamespace = (select oid from pg_namespace where nspname = 'outbox') "   \
    "and c.relkind in ('r', 'p')"

const struct pg_check ob_pg_checks[] = {
    /* for people to compare with what they expect: roles may have been there before the schema */
    {"select true, format('login roles that can act as a relay, besides superusers: %s', "
     "string_agg(quote_ident(r.rolname), ', ' order by r.rolname)), '' from pg_roles r where "
     "r.rolcanlogin and not r.rolsuper and outbox.is_relay(r.oid) having count(*) > 0",
     PG_CHECK_ALWAYS},
    /* rows that we would not see */
    {"select false, format('row-level security hides rows of %s from user %s', c.oid::regclass, "
     "current_user), format('ALTER TABLE %s DISABLE ROW LEVEL SECURITY;', c.oid::regclass) "
     "from " OURS " and row_security_active(c.oid)",
     PG_CHECK_ALWAYS},
    {"select count(*) = 0, case when count(*) = 0 then 'no subscription writes outbox.event' else "
     "format('a subscription writes %s: its transaction ids are another server''s', min("
     "f.srrelid::regclass::text)) end, 'relay from the server that it is replicated from' "
     "from " PG_FED("'outbox.event'::regclass::oid"),
     PG_CHECK_NATIVE},
    /* what the cursor's proof rests on */
    {"select seqcache = 1, format('the sequence of outbox.event gives numbers one by one (CACHE "
     "%s)', seqcache), 'ALTER SEQUENCE outbox.event_seq_seq CACHE 1;' from pg_sequence where "
     "seqrelid = 'outbox.event_seq_seq'::regclass",
     PG_CHECK_NATIVE},
    {"select (select attnum from pg_attribute where attrelid = 'outbox.event'::regclass and "
     "attname = 'xid') < (select attnum from pg_attribute where attrelid = "
     "'outbox.event'::regclass "
     "and attname = 'seq'), 'a writer has its transaction id before its number', 'the column xid "
     "must stand before seq: see `outbox schema --print`'",
     PG_CHECK_NATIVE},
    /* indexes: without them everything still works, ever more slowly */
    {"select i.indexrelid is not null and i.indisvalid, format(case when i.indexrelid is null then "
     "'the index outbox.%s is missing' when not i.indisvalid then 'the index outbox.%s is not "
     "valid' else 'index outbox.%s' end, v.name), case when i.indexrelid is null then '' else "
     "format('DROP INDEX outbox.%s; ', v.name) end || v.sql || ';' from " INDEXES
     " v(name, sql) left join pg_class c on c.relname = v.name and c.relnamespace = "
     "'outbox'::regnamespace left join pg_index i on i.indexrelid = c.oid where i.indexrelid is "
     "null or not i.indisvalid",
     PG_CHECK_ALWAYS},
    {"select false, format('the partition %s has no unique index on id: an event could be stored "
     "twice', c.oid::regclass), format('CREATE UNIQUE INDEX ON %s (id);', c.oid::regclass) from "
     "pg_inherits h join pg_class c on c.oid = h.inhrelid where h.inhparent = "
     "'outbox.event'::regclass and not exists (select 1 from pg_index i join pg_attribute t on "
     "t.attrelid = c.oid and t.attname = 'id' where i.indrelid = c.oid and i.indisunique and "
     "i.indisvalid and i.indnatts = 1 and i.indkey[0] = t.attnum)",
     PG_CHECK_NATIVE},
    {"select false, format('the trigger %s of %s is switched off: %s', t.tgname, "
     "t.tgrelid::regclass, case t.tgname when 'event_writer' then 'outbox.writer is not enforced' "
     "else 'counts of `status` are wrong' end), format('ALTER TABLE %s ENABLE TRIGGER %I;', "
     "t.tgrelid::regclass, t.tgname) from pg_trigger t where not t.tgisinternal and t.tgenabled = "
     "'D' and t.tgrelid in ('outbox.parked'::regclass, 'outbox.dead'::regclass, "
     "'outbox.event'::regclass)",
     PG_CHECK_ALWAYS},
    {"select false, 'outbox.writer has rows, and the trigger that enforces them is missing', "
     "'UPDATE outbox.writer SET role = role;' where outbox.writer_open()",
     PG_CHECK_ALWAYS},
    {"select false, format('%s is unlogged: a crash of the server empties it', c.oid::regclass), "
     "format('ALTER TABLE %s SET LOGGED;', c.oid::regclass) from pg_class c where " READ
     " and c.relkind in ('r', 'p') and c.relpersistence = 'u'",
     PG_CHECK_TABLES},
    /* partitions of a table of another system, by month */
    {"select not p.missing, case when p.missing then format('%s has no partition for the months "
     "from %s on: %s%s', p.tab, to_char(p.lo, 'YYYY-MM-DD'), case when p.fallback is null then "
     "'inserts would fail' else format('its rows go to %s', p.fallback::regclass) end, case when "
     "p.may then '' else format('; user %s may not create it', current_user) end) else "
     "format('%s has partitions for this month and the next', p.tab) end, "
     "format('CREATE TABLE %s.%I PARTITION OF %s FOR VALUES FROM (%L) TO (%L);%s', p.space, "
     "p.name, p.tab, p.lo, p.hi, case when p.may then ' -- the relay does so when it runs' else "
     "format(' -- as role %1$I; or let the relay do it: GRANT %1$I TO %2$I;', p.owner, "
     "current_user) end) from (select c.oid::regclass as tab, n.nspname::regnamespace as space, "
     "pg_get_userbyid(c.relowner) as owner, t.fallback, m.lo is not null as missing, m.lo, m.hi, "
     "coalesce(m.name, '') as name, pg_has_role(c.relowner, 'USAGE') and "
     "has_schema_privilege(n.oid, 'CREATE') as may "
     "from pg_class c join pg_namespace n on n.oid = c.relnamespace cross join lateral "
     "outbox.month_table(c.oid) t left join lateral (select * from outbox.months_missing(c.oid, 1) "
     "limit 1) m on true where n.nspname = $1 and c.relname = $2 and t.zone is not null) p",
     PG_CHECK_TABLES},
    {"select false, format('the default partition %s has rows: months that it has rows of get no "
     "partition of their own', t.fallback::regclass), format('BEGIN; ALTER TABLE %1$s DETACH "
     "PARTITION %2$s; SELECT outbox.months_ahead(%3$L::regclass); INSERT INTO %1$s SELECT * FROM "
     "%2$s; TRUNCATE %2$s; ALTER TABLE %1$s ATTACH PARTITION %2$s DEFAULT; COMMIT; -- writers wait "
     "meanwhile; rows of other months need a partition of their own first', c.oid::regclass, "
     "t.fallback::regclass, c.oid::regclass) from pg_class c join pg_namespace n on n.oid = "
     "c.relnamespace cross join lateral outbox.month_table(c.oid) t where n.nspname = $1 and "
     "c.relname = $2 and t.zone is not null and outbox.month_default_used(c.oid)",
     PG_CHECK_TABLES},
    /* partitions */
    {"select max(p.hi) > s.last_value, case when max(p.hi) > s.last_value then 'there are "
     "partitions ahead of the writers' else format('the writers are past the last partition and "
     "write to the default one, which has %s', pg_size_pretty(pg_relation_size("
     "'outbox.event_default'))) end, 'SELECT outbox.maintain(true); -- who writes waits while the "
     "default partition is read once' from outbox.event_seq_seq s left join outbox.part p on "
     "p.name <> 'event_default' group by s.last_value",
     PG_CHECK_NATIVE},
    {"select false, format('%s has looked at outbox.event_default, and holds up new "
     "partitions', " WHO "), " END
     " from pg_locks l join pg_stat_activity a on a.pid = l.pid where l.relation = "
     "'outbox.event_default'::regclass and l.granted and l.mode = 'AccessShareLock' and "
     "a.xact_start < clock_timestamp() - " OLD,
     PG_CHECK_NATIVE},
    {"select false, format('%s owns shard %s of pipeline %s and has not been heard of since "
     "%s', " WHO ", c.shard, c.pipeline, date_trunc('second', c.beat_at)), format('SELECT "
     "pg_terminate_backend(%s); -- a stand-by does that after 10 s', a.pid) from outbox.cursor c "
     "join pg_stat_activity a on a.pid = c.backend_pid and a.backend_start = c.backend_start where "
     "c.state <> 'stopped' and c.beat_at < clock_timestamp() - interval '15 s'",
     PG_CHECK_ALWAYS},
    /* old cursors keep old partitions */
    {"select false, format('pipeline %s has not run since %s and keeps every event since then', "
     "pipeline, date_trunc('second', max(beat_at))), format('DELETE FROM outbox.cursor WHERE "
     "pipeline = %L; -- if it is gone for good', pipeline) from outbox.cursor where mode <> 'rows' "
     "group by pipeline having max(beat_at) < clock_timestamp() - interval '3 days'",
     PG_CHECK_ALWAYS},
    /* settings */
    {"select setting = 'on', format('%s is %s%s', name, setting, case when setting = 'on' then '' "
     "when name = 'fsync' then ': a crash of the machine can damage the database' else ': what "
     "marks and cursors leave behind is never cleaned up' end), format('ALTER SYSTEM SET %s = on; "
     "SELECT pg_reload_conf();', name) from pg_settings where name in ('autovacuum', "
     "'track_counts', 'fsync')",
     PG_CHECK_ALWAYS},
    {"select false, format('autovacuum is switched off for %s', c.oid::regclass), format('ALTER "
     "TABLE %s RESET (autovacuum_enabled);', c.oid::regclass) from pg_class c where " READ
     " and c.relkind in ('r', 'p') and c.reloptions && "
     "'{autovacuum_enabled=false,autovacuum_enabled=off,autovacuum_enabled=0,"
     "autovacuum_enabled=no}'",
     PG_CHECK_TABLES},
    /* Commits wait for stand-bys that are named: who writes hangs, and in mode wal what it wrote is
     * held back, because nobody sees it. A relay's own connection is none, although `*` names it.
     */
    {"select n.have >= n.want, case when n.have >= n.want then format('%s synchronous stand-by(s) "
     "of synchronous_standby_names = %L', n.have, n.names) else format('synchronous_standby_names "
     "= %L asks for %s stand-by(s) and %s are there (connected: %s): every commit waits', n.names, "
     "n.want, n.have, coalesce(n.seen, 'none')) end, 'ALTER SYSTEM RESET "
     "synchronous_standby_names; SELECT pg_reload_conf(); -- or start the stand-by' from (select "
     "g.setting as names, coalesce((regexp_match(g.setting, '^\\s*(?:(?:first|any)\\s+)?(\\d+)"
     "\\s*\\(', 'i'))[1]::int, 1) as want, count(*) filter (where r.sync_state in ('sync', "
     "'quorum') and r.state = 'streaming' and r.application_name <> 'outbox wal') as have, "
     "string_agg(format('%s %s', r.application_name, r.sync_state), ', ') as seen, count(*) filter "
     "(where r.pid is not null and r.sync_state is null) as hidden from pg_settings g left join "
     "pg_stat_replication r on true where g.name = 'synchronous_standby_names' and g.setting <> '' "
     "group by g.setting) n where n.have >= n.want or n.hidden = 0",
     PG_CHECK_ALWAYS},
    {"select reset_val <> 'off', format('synchronous_commit is %s%s', reset_val, case when "
     "reset_val "
     "= 'off' then ': a crash of the server can take back a commit whose event was already "
     "delivered' else '' end), 'ALTER SYSTEM RESET synchronous_commit; SELECT pg_reload_conf(); -- "
     "or set require_flushed: true' from pg_settings where name = 'synchronous_commit' and not "
     "exists (select 1 from pg_db_role_setting s, unnest(s.setconfig) c where c = "
     "'synchronous_commit=off')",
     PG_CHECK_ALWAYS},
    {"select false, format('synchronous_commit is off for %s: a crash of the server can take back "
     "a commit whose event was already delivered', case when r.rolname is null then 'everybody in "
     "this database' else 'role ' || r.rolname end), format(case when s.setrole = 0 then 'ALTER "
     "DATABASE %2$I RESET synchronous_commit;' when s.setdatabase = 0 then 'ALTER ROLE %1$I RESET "
     "synchronous_commit;' else 'ALTER ROLE %1$I IN DATABASE %2$I RESET synchronous_commit;' end, "
     "r.rolname, current_database()) || ' -- or set require_flushed: true' from pg_db_role_setting "
     "s left join pg_roles r on r.oid = s.setrole where 'synchronous_commit=off' = any "
     "(s.setconfig) and s.setdatabase in (0, (select oid from pg_database where datname = "
     "current_database()))",
     PG_CHECK_ALWAYS},
    {"select pg_encoding_to_char(encoding) = 'UTF8', format('the database''s encoding is %s', "
     "pg_encoding_to_char(encoding)), format('characters that it does not have cannot be written: "
     "dump %I and restore it into CREATE DATABASE ... ENCODING ''UTF8'' TEMPLATE template0;', "
     "datname) from pg_database where datname = current_database()",
     PG_CHECK_ALWAYS},
    /* what stands in the way of upkeep */
    {"select false, format('%s has written in a transaction that is still open: old partitions "
     "stay as long', " WHO "), " END " from pg_stat_activity a where a.xact_start < "
     "clock_timestamp() - " OLD " and a.datname = current_database() and a.backend_type = 'client "
     "backend' and a.backend_xid is not null and a.pid <> pg_backend_pid()",
     PG_CHECK_ALWAYS},
    {"select false, format('the prepared transaction %s of %s waits since %s: old partitions stay "
     "as long', gid, owner, date_trunc('second', prepared)), format('ROLLBACK PREPARED %L; -- or "
     "COMMIT PREPARED', gid) from pg_prepared_xacts where database = current_database() and "
     "prepared < clock_timestamp() - " OLD,
     PG_CHECK_ALWAYS},
    {0},
};
