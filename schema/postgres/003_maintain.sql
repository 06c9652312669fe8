-- Partitions of outbox.event: made ahead of the writers, retired behind the readers, and never a writer waits for either.

-- Makes the partition of [lo, hi). CREATE TABLE ... PARTITION OF would take a lock that waits for every writer; a table that has
-- its constraint and its indexes already is attached under SHARE UPDATE EXCLUSIVE, which no writer notices. (The default
-- partition is locked for a moment. Nobody writes to it.)
CREATE FUNCTION outbox.add_part(lo bigint, hi bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    name text := format('event_%s', lo);
BEGIN
    EXECUTE format('CREATE TABLE outbox.%I (LIKE outbox.event INCLUDING DEFAULTS INCLUDING CONSTRAINTS, '
        'CONSTRAINT bounds CHECK (seq IS NOT NULL AND seq >= %s AND seq < %s))', name, lo, hi);
    EXECUTE format('CREATE UNIQUE INDEX %I ON outbox.%I (seq)', name || '_seq', name);
    EXECUTE format('CREATE INDEX %I ON outbox.%I (xid, seq)', name || '_xid', name);
    EXECUTE format('CREATE UNIQUE INDEX %I ON outbox.%I (id)', name || '_id', name);
    EXECUTE format('ALTER TABLE outbox.event ATTACH PARTITION outbox.%I FOR VALUES FROM (%s) TO (%s)', name, lo, hi);
    EXECUTE format('ALTER TABLE outbox.%I DROP CONSTRAINT bounds', name);
    INSERT INTO outbox.part (name, lo, hi) VALUES (name, lo, hi);
    -- The default partition is ours until the commit. Is the new one still well ahead of the writers (outbox.next_part)?
    IF (SELECT s.is_called AND s.last_value + (hi - lo) / 8 >= lo FROM outbox.event_seq_seq AS s) THEN
        RAISE EXCEPTION 'outbox: the writers are too near' USING ERRCODE = 'check_violation';
    END IF;
END
$$;

-- Does nothing but read: where the next partition starts, if one is due. Never so near that a writer could reach it meanwhile: a
-- statement that began before and has a number of the new partition finds neither that partition nor a place in the default one, and
-- fails. So where the writers are close to the last partition's end, or past it, the next one starts well ahead of them, and the
-- default partition takes what is between; further ahead still (distance) where that was not enough.
CREATE FUNCTION outbox.next_part(distance bigint DEFAULT 1, OUT lo bigint, OUT hi bigint)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    rows bigint := (SELECT greatest(1, m.value::bigint) FROM outbox.meta AS m WHERE m.name = 'partition_rows');
    ahead bigint := (SELECT greatest(1, m.value::bigint) FROM outbox.meta AS m WHERE m.name = 'partitions_ahead');
    last bigint := (SELECT CASE WHEN s.is_called THEN s.last_value ELSE 0 END FROM outbox.event_seq_seq AS s);
    top bigint := coalesce((SELECT max(p.hi) FROM outbox.part AS p WHERE p.name <> 'event_default'), 1);
BEGIN
    IF last > 0 AND last + rows / 4 >= top THEN
        top := last + distance * rows + 1;
    ELSIF top > last + 1 + ahead * rows THEN
        RETURN;
    END IF;
    lo := top;
    hi := top + rows;
END
$$;

-- One partition that every pipeline has done with and that may be emptied. All of it is in the cursors: pos has passed it, and
-- the snapshot shows every transaction that could have written to it (closed_xid).
CREATE FUNCTION outbox.old_part() RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT p.name FROM outbox.part AS p, outbox.meta AS m
    WHERE m.name = 'keep_hours' AND m.value <> 'off' AND p.emptied_at IS NULL AND p.closed_xid IS NOT NULL
        AND p.closed_at < clock_timestamp() - CASE WHEN m.value = 'off' THEN NULL ELSE m.value::double precision END * interval '1 hour'
        AND EXISTS (SELECT 1 FROM outbox.cursor AS c WHERE c.mode <> 'rows')
        AND NOT EXISTS (SELECT 1 FROM outbox.cursor AS c WHERE c.mode <> 'rows' AND (c.adopt_pos IS NOT NULL OR c.pos < p.hi - 1
            OR pg_snapshot_xmin(c.snap) <= p.closed_xid OR pg_snapshot_xmin(c.late_snap) <= p.closed_xid))
        AND NOT EXISTS (SELECT 1 FROM outbox.parked AS w WHERE w.seq >= p.lo AND w.seq < p.hi AND w.event IS NULL)
    ORDER BY p.lo LIMIT 1
$$;

-- Dead events outlive their partition: what a person may want to see or retry is copied first.
CREATE FUNCTION outbox.keep_dead(lo bigint, hi bigint) RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    UPDATE outbox.dead AS d SET payload = e.payload, event = jsonb_strip_nulls(jsonb_build_object('id', e.id, 'type', e.type,
        'aggregate_type', e.aggregate_type, 'aggregate_id', e.aggregate_id, 'key', e.key, 'tenant', e.tenant, 'topic', e.topic,
        'payload_kind', e.payload_kind, 'headers', e.headers::text, 'metadata', e.metadata::text,
        'entity_version', e.entity_version, 'schema_version', e.schema_version, 'max_attempts', e.max_attempts,
        'created_us', (extract(epoch FROM e.created_at) * 1000000)::bigint))
    FROM outbox.event AS e
    WHERE d.seq >= lo AND d.seq < hi AND d.state = 'dead' AND d.event IS NULL AND e.seq = d.seq AND e.seq >= lo AND e.seq < hi
$$;

-- A partition beyond the last one. The default partition is read once meanwhile, with nobody else in it: where it has more events
-- than can be read in a moment, and those who write to it would wait, only a person says so (force).
CREATE FUNCTION outbox.make_part(force boolean) RETURNS text
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    part record;
BEGIN
    FOR i IN 1..4 LOOP
        SELECT n.lo, n.hi INTO part FROM outbox.next_part(1 << (2 * i - 2)) AS n WHERE n.lo IS NOT NULL;
        IF NOT FOUND OR (NOT force AND pg_relation_size('outbox.event_default') > 8388608) THEN
            RETURN NULL;
        END IF;
        BEGIN
            PERFORM outbox.add_part(part.lo, part.hi);
            RETURN format('made event_%s', part.lo);
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            PERFORM pg_sleep(0.01 * i);
        WHEN check_violation THEN
            NULL; -- the writers were faster
        END;
    END LOOP;
    RETURN NULL;
END
$$;

-- Empties a partition that nobody needs any more. Everything that was asked before is asked again when nobody else is in it: an
-- operator may have retried a dead event meanwhile, and the default partition may have got a row beyond what is known of it.
CREATE FUNCTION outbox.empty_part() RETURNS text
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    part record;
    more boolean;
BEGIN
    SELECT p.* INTO part FROM outbox.part AS p WHERE p.name = outbox.old_part();
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    EXECUTE format('LOCK TABLE ONLY outbox.%I IN ACCESS EXCLUSIVE MODE', part.name);
    PERFORM outbox.keep_dead(part.lo, part.hi);
    EXECUTE format('SELECT EXISTS (SELECT 1 FROM ONLY outbox.%I AS e WHERE e.seq < $1 OR e.seq >= $2)', part.name)
        INTO more USING part.lo, part.hi;
    IF more OR outbox.old_part() IS DISTINCT FROM part.name THEN
        RETURN NULL;
    END IF;
    EXECUTE format('TRUNCATE ONLY outbox.%I', part.name);
    UPDATE outbox.part AS p SET emptied_at = clock_timestamp() WHERE p.name = part.name;
    RETURN format('emptied %s', part.name);
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    RETURN NULL;
END
$$;

-- Takes an empty partition out. This needs the parent's own lock, which every writer holds: it is only ever taken when it is free, a
-- waiting one would stop every writer behind it. For the same reason the table is dropped in a transaction of its own: a commit
-- that drops one waits for the disk, and this one need not.
CREATE FUNCTION outbox.drop_part() RETURNS text
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    part record;
BEGIN
    SELECT p.* INTO part FROM outbox.part AS p WHERE p.detached_at IS NOT NULL ORDER BY p.lo LIMIT 1;
    IF FOUND THEN
        BEGIN
            EXECUTE format('DROP TABLE IF EXISTS outbox.%I', part.name);
            DELETE FROM outbox.part AS p WHERE p.name = part.name;
            RETURN format('dropped %s', part.name);
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            RETURN NULL;
        END;
    END IF;
    SELECT p.* INTO part FROM outbox.part AS p WHERE p.emptied_at IS NOT NULL AND p.name <> 'event_default' ORDER BY p.lo LIMIT 1;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    PERFORM set_config('synchronous_commit', 'off', true);
    FOR i IN 1..5 LOOP
        BEGIN
            EXECUTE format('LOCK TABLE ONLY outbox.event, ONLY outbox.event_default, ONLY outbox.%I IN ACCESS EXCLUSIVE MODE NOWAIT',
                part.name);
            EXECUTE format('ALTER TABLE outbox.event DETACH PARTITION outbox.%I', part.name);
            UPDATE outbox.part AS p SET detached_at = clock_timestamp() WHERE p.name = part.name;
            RETURN format('detached %s', part.name);
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            PERFORM pg_sleep(0.002 * i);
        END;
    END LOOP;
    RETURN NULL;
END
$$;

-- One step of upkeep, called about every ten seconds by a relay; each is a transaction of its own. Gives what was done, or NULL.
-- A lock that is not there within 50 ms is tried again next time.
CREATE FUNCTION outbox.maintain(force boolean DEFAULT false) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms'
SET client_min_messages = warning AS $$
DECLARE
    last bigint;
    done text;
BEGIN
    -- What is said below of closed_xid holds only for a transaction that has no id yet.
    IF pg_current_xact_id_if_assigned() IS NOT NULL OR current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'outbox: maintain() must be called by itself, not in a transaction that has written or keeps a snapshot'
            USING ERRCODE = 'active_sql_transaction';
    END IF;
    IF NOT pg_try_advisory_xact_lock(7305, 1) THEN
        RETURN NULL;
    END IF;
    -- The number is read before this transaction has an id: then every writer below hi has a lower one.
    SELECT CASE WHEN s.is_called THEN s.last_value ELSE 0 END INTO last FROM outbox.event_seq_seq AS s;
    UPDATE outbox.part AS p SET closed_xid = pg_current_xact_id(), closed_at = clock_timestamp()
        WHERE p.closed_xid IS NULL AND p.hi <= last;
    done := coalesce(outbox.make_part(force), outbox.empty_part(), outbox.drop_part());
    IF done IS NOT NULL THEN
        RETURN done;
    END IF;
    -- Events that came into the default partition are retired like those of any other.
    INSERT INTO outbox.part AS p (name, lo, hi) SELECT 'event_default', d.lo, d.hi FROM
        (SELECT (SELECT e.seq FROM ONLY outbox.event_default AS e ORDER BY e.seq LIMIT 1) AS lo,
                (SELECT e.seq + 1 FROM ONLY outbox.event_default AS e ORDER BY e.seq DESC LIMIT 1) AS hi) AS d WHERE d.lo IS NOT NULL
        ON CONFLICT (name) DO UPDATE SET lo = excluded.lo, hi = excluded.hi, closed_xid = NULL, closed_at = NULL, emptied_at = NULL
        WHERE p.hi <> excluded.hi OR p.emptied_at IS NOT NULL;
    RETURN NULL;
END
$$;

DO $$
DECLARE
    part record;
BEGIN
    LOOP
        SELECT n.lo, n.hi INTO part FROM outbox.next_part() AS n;
        EXIT WHEN part.lo IS NULL;
        PERFORM outbox.add_part(part.lo, part.hi);
    END LOOP;
END
$$;
