-- Ownership that no other role can obstruct. Any role that can connect may take any advisory lock, so an advisory lock may
-- speed up a decision and prove that a session is alive, but must not decide.

-- Locked by maintain(), adopt() and publish(). A table lock needs rights on the table, which only the schema's owner has; SHARE
-- UPDATE EXCLUSIVE assigns no transaction id, and the table is never vacuumed because it never changes.
CREATE TABLE outbox.guard (
    one boolean
);

-- True for roles that can act as a relay: members of a role that may update the cursor. Membership counts, not inheritance, so
-- that a login role that uses SET ROLE is recognised.
CREATE FUNCTION outbox.is_relay(role oid) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (SELECT 1 FROM pg_class AS c, aclexplode(coalesce(c.relacl, acldefault('r', c.relowner))) AS a
        WHERE c.oid = 'outbox.cursor'::regclass AND a.privilege_type = 'UPDATE'
            AND (a.grantee = 0 OR pg_has_role(role, a.grantee, 'MEMBER')))
$$;

-- The session that matters most to a process that wants a shard, other than the caller's own; no pid and no prepared transaction:
-- there is none. lock_key: the shard's advisory lock; member_key: first half of the pipeline's member locks.
--   owns   the cursor row names the session, which is alive: it still holds an advisory lock of the pipeline. A session in a
--          pooler outlives its client, its advisory locks do not.
--   holds  a relay's session holds the shard's lock: it is about to write itself into the cursor row.
-- Neither: a session of another role, or a prepared transaction, holds the shard's lock; it does not count.
-- backend_start and client_addr of other roles' sessions are visible to members of pg_read_all_stats only; a pid that was reused
-- is then recognised by the beat, which does not advance.
CREATE FUNCTION outbox.shard_holder(p text, s integer, lock_key bigint, member_key oid, OUT owner text, OUT epoch bigint,
    OUT beat bigint, OUT owns boolean, OUT holds boolean, OUT pid integer, OUT started bigint, OUT active boolean, OUT who text)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    WITH held AS MATERIALIZED (
        SELECT l.pid, l.virtualtransaction, bool_or(l.objsubid = 1) AS shard FROM pg_locks AS l
        WHERE l.locktype = 'advisory' AND l.granted AND l.pid IS DISTINCT FROM pg_backend_pid()
            AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
            AND (l.objsubid = 1 AND (l.classid::bigint << 32 | l.objid::bigint) = lock_key
                OR l.objsubid = 2 AND l.classid = member_key)
        GROUP BY l.pid, l.virtualtransaction),
    session AS MATERIALIZED (
        SELECT h.shard, h.virtualtransaction, h.pid, a.usename, a.application_name, a.client_addr, a.client_port, a.backend_start,
            a.state, coalesce(outbox.is_relay(a.usesysid), false) AS relay
        FROM held AS h LEFT JOIN pg_stat_activity AS a ON a.pid = h.pid)
    SELECT c.owner, coalesce(c.epoch, 0), coalesce(c.beat, 0), coalesce(r.owns, false), coalesce(r.holds, false), r.pid,
        coalesce((extract(epoch FROM r.backend_start) * 1000000)::bigint, 0), coalesce(r.state, 'active') = 'active',
        CASE WHEN r.pid IS NULL AND r.virtualtransaction IS NOT NULL THEN format('prepared transaction %s of user %s',
                (SELECT x.gid FROM pg_prepared_xacts AS x WHERE '-1/' || x.transaction::text = r.virtualtransaction),
                (SELECT x.owner FROM pg_prepared_xacts AS x WHERE '-1/' || x.transaction::text = r.virtualtransaction))
            WHEN r.pid IS NOT NULL THEN format('backend %s, user %s, application %s, client %s', r.pid, coalesce(r.usename, '?'),
                coalesce(nullif(r.application_name, ''), '?'),
                CASE WHEN r.client_addr IS NOT NULL THEN host(r.client_addr) WHEN r.client_port = -1 THEN 'local' ELSE '?' END) END
    FROM (VALUES (1)) AS one
    LEFT JOIN outbox.cursor AS c ON c.pipeline = p AND c.shard = s
    LEFT JOIN LATERAL (
        SELECT x.*, coalesce(x.relay AND c.state <> 'stopped' AND c.backend_pid = x.pid
                AND coalesce(x.backend_start = c.backend_start, true), false) AS owns, x.relay AND x.shard AS holds
        FROM session AS x) AS r ON r.shard OR r.owns
    ORDER BY r.owns DESC NULLS LAST, r.holds DESC NULLS LAST, r.pid LIMIT 1
$$;

CREATE OR REPLACE FUNCTION outbox.adopt(system text, db oid) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    top bigint;
BEGIN
    LOCK TABLE outbox.guard IN SHARE UPDATE EXCLUSIVE MODE;
    IF NOT EXISTS (SELECT 1 FROM outbox.cursor AS c WHERE c.system_id <> system OR c.db_oid <> db) THEN
        RETURN;
    END IF;
    SELECT max(c.pos) INTO top FROM outbox.cursor AS c;
    UPDATE outbox.event AS e SET xid = '3' WHERE e.seq > top;
    UPDATE outbox.cursor AS c SET system_id = system, db_oid = db, adopt_pos = 0, base = top, fence = NULL, lsn = NULL,
        rows_done = 0, epoch = c.epoch + 1 WHERE c.system_id <> system OR c.db_oid <> db;
    UPDATE outbox.part AS p SET closed_xid = NULL, closed_at = NULL WHERE p.closed_xid IS NOT NULL;
END
$$;

CREATE OR REPLACE FUNCTION outbox.publish(name text) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    LOCK TABLE outbox.guard IN SHARE UPDATE EXCLUSIVE MODE;
    IF NOT EXISTS (SELECT 1 FROM pg_publication AS p WHERE p.pubname = name) THEN
        EXECUTE format('CREATE PUBLICATION %I FOR TABLE outbox.event WITH (publish = ''insert'', publish_via_partition_root = true)',
            name);
    END IF;
END
$$;

-- One step of partition upkeep, called about every ten seconds by a relay; each step is a transaction of its own. Returns what was
-- done, or NULL. A lock that is not free within 50 ms is tried again next time.
CREATE OR REPLACE FUNCTION outbox.maintain(force boolean DEFAULT false) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms'
SET client_min_messages = warning AS $$
DECLARE
    last bigint;
    done text;
BEGIN
    -- The proof of closed_xid below holds only for a transaction that has no id yet.
    IF pg_current_xact_id_if_assigned() IS NOT NULL OR current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'outbox: maintain() must be called by itself, not in a transaction that has written or keeps a snapshot'
            USING ERRCODE = 'active_sql_transaction';
    END IF;
    BEGIN
        LOCK TABLE outbox.guard IN SHARE UPDATE EXCLUSIVE MODE NOWAIT;
    EXCEPTION WHEN lock_not_available THEN
        RETURN NULL;
    END;
    -- The number is read before this transaction has an id: then every writer below hi has a lower one.
    SELECT CASE WHEN s.is_called THEN s.last_value ELSE 0 END INTO last FROM outbox.event_seq_seq AS s;
    UPDATE outbox.part AS p SET closed_xid = pg_current_xact_id(), closed_at = clock_timestamp()
        WHERE p.closed_xid IS NULL AND p.hi <= last;
    done := coalesce(outbox.make_part(force), outbox.empty_part(), outbox.drop_part());
    IF done IS NOT NULL THEN
        RETURN done;
    END IF;
    -- Events in the default partition are retired like those of any other.
    INSERT INTO outbox.part AS p (name, lo, hi) SELECT 'event_default', d.lo, d.hi FROM
        (SELECT (SELECT e.seq FROM ONLY outbox.event_default AS e ORDER BY e.seq LIMIT 1) AS lo,
                (SELECT e.seq + 1 FROM ONLY outbox.event_default AS e ORDER BY e.seq DESC LIMIT 1) AS hi) AS d WHERE d.lo IS NOT NULL
        ON CONFLICT (name) DO UPDATE SET lo = excluded.lo, hi = excluded.hi, closed_xid = NULL, closed_at = NULL, emptied_at = NULL
        WHERE p.hi <> excluded.hi OR p.emptied_at IS NOT NULL;
    RETURN NULL;
END
$$;
