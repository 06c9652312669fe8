-- Mode wal: the slot of a shard is recorded, so that "no slot was ever created" is a fact and not the absence of a value.
--     never      no slot was ever created for this shard
--     creating   a slot is about to be created; nothing was read through it yet
--     created    `slot` is the slot, lsn and rows_done are the position in it (NULL: the table is read, or the position is lost)
--     moving     the number of shards or the name of the slot was changed: the new slot is to be copied from one in outbox.past,
--                or from `slot`
ALTER TABLE outbox.cursor
    ADD COLUMN slot text,
    ADD COLUMN slot_state text NOT NULL DEFAULT 'never' CHECK (slot_state IN ('never', 'creating', 'created', 'moving')),
    ADD COLUMN native boolean NOT NULL DEFAULT true;  -- the pipeline reads outbox.event; false: another table, or messages
UPDATE outbox.cursor SET slot_state = 'created' WHERE wal IS NOT NULL;
UPDATE outbox.cursor SET native = false
    WHERE mode = 'rows' OR (mode = 'wal' AND wal IS NOT NULL AND pos = 0 AND snap::text = '3:3:');

-- Where the shards were in the stream before their number was changed, and in which slot.
ALTER TABLE outbox.past
    ADD COLUMN lsn pg_lsn,
    ADD COLUMN rows_done bigint NOT NULL DEFAULT 0,
    ADD COLUMN slot text;

-- A pipeline that does not read outbox.event keeps its cursor at 0: it counts neither here nor for retirement.
CREATE OR REPLACE FUNCTION outbox.pending() RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT greatest(0, CASE WHEN s.is_called THEN s.last_value ELSE 0 END
        - coalesce((SELECT min(c.pos) FROM outbox.cursor AS c WHERE c.native), 0)) FROM outbox.event_seq_seq AS s
$$;

CREATE OR REPLACE FUNCTION outbox.old_part() RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT p.name FROM outbox.part AS p, outbox.meta AS m
    WHERE m.name = 'keep_hours' AND m.value <> 'off' AND p.emptied_at IS NULL AND p.closed_xid IS NOT NULL
        AND p.closed_at < clock_timestamp() - CASE WHEN m.value = 'off' THEN NULL ELSE m.value::double precision END * interval '1 hour'
        AND EXISTS (SELECT 1 FROM outbox.cursor AS c WHERE c.native)
        AND NOT EXISTS (SELECT 1 FROM outbox.cursor AS c WHERE c.native AND (c.adopt_pos IS NOT NULL OR c.pos < p.hi - 1
            OR pg_snapshot_xmin(c.snap) <= p.closed_xid OR pg_snapshot_xmin(c.late_snap) <= p.closed_xid))
        AND NOT EXISTS (SELECT 1 FROM outbox.parked AS w WHERE w.seq >= p.lo AND w.seq < p.hi AND w.event IS NULL)
    ORDER BY p.lo LIMIT 1
$$;

-- Another number of shards. In the native table the new cursors start at the lowest position and the oldest snapshot: snapshots are
-- rising in time, so what these two show is settled by every old shard. Where only the stream has the events, they start at the
-- lowest position in the stream, and their slots are copied from an old one that holds everything from there (outbox.move_slots).
CREATE OR REPLACE FUNCTION outbox.reshard(p text, n integer) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    old outbox.cursor;
    sums record;
    stream record;
BEGIN
    -- A slot that was being created has no position in the cursor yet: it holds everything from its own.
    UPDATE outbox.cursor AS c SET lsn = r.confirmed_flush_lsn, rows_done = 0, slot_state = 'created'
        FROM pg_replication_slots AS r
        WHERE c.pipeline = p AND c.mode = 'wal' AND NOT c.native AND c.slot_state = 'creating' AND r.slot_name = c.slot;
    INSERT INTO outbox.past (pipeline, generation, shard, shards, pos, snap, late_pos, late_snap, base, lsn, rows_done, slot)
        SELECT c.pipeline, 1 + coalesce((SELECT max(g.generation) FROM outbox.past AS g WHERE g.pipeline = p), 0), c.shard, c.shards,
            c.pos, c.snap, c.late_pos, c.late_snap, c.base, CASE WHEN NOT c.native THEN c.lsn END, c.rows_done,
            CASE WHEN NOT c.native THEN c.slot END
        FROM outbox.cursor AS c WHERE c.pipeline = p;
    SELECT c.* INTO old FROM outbox.cursor AS c WHERE c.pipeline = p
        ORDER BY pg_snapshot_xmax(c.snap), (SELECT count(*) FROM pg_snapshot_xip(c.snap)) DESC LIMIT 1;
    SELECT min(c.pos) AS pos, max(c.base) AS base, max(c.epoch) AS epoch, sum(c.published) AS published, sum(c.failed) AS failed,
        bool_or(c.slot_state <> 'never') AS had_slot
        INTO sums FROM outbox.cursor AS c WHERE c.pipeline = p;
    -- No row, or no position: the start finds out what is lost, if anything. Two publications count as a changed one.
    SELECT c.lsn, c.rows_done, (SELECT CASE count(DISTINCT o.wal) WHEN 1 THEN min(o.wal) ELSE '' END FROM outbox.cursor AS o
            WHERE o.pipeline = p AND o.lsn IS NOT NULL) AS wal
        INTO stream FROM outbox.cursor AS c
        WHERE c.pipeline = p AND old.mode = 'wal' AND NOT old.native AND c.lsn IS NOT NULL
            AND NOT EXISTS (SELECT 1 FROM outbox.cursor AS o
                WHERE o.pipeline = p AND o.lsn IS NULL AND o.slot_state IN ('created', 'moving'))
        ORDER BY c.lsn, c.rows_done LIMIT 1;
    DELETE FROM outbox.cursor AS c WHERE c.pipeline = p;
    INSERT INTO outbox.cursor (pipeline, shard, shards, mode, pos, snap, base, fence, timeline, system_id, db_oid, epoch, published,
        failed, lsn, rows_done, wal, slot_state, native)
        SELECT p, i, n, old.mode, sums.pos, old.snap, sums.base, old.fence, old.timeline, old.system_id, old.db_oid, sums.epoch + 1,
            CASE i WHEN 0 THEN sums.published ELSE 0 END, CASE i WHEN 0 THEN sums.failed ELSE 0 END, stream.lsn,
            coalesce(stream.rows_done, 0), coalesce(stream.wal, old.wal),
            CASE WHEN stream.lsn IS NOT NULL THEN 'moving' WHEN sums.had_slot THEN 'created' ELSE 'never' END, old.native
        FROM generate_series(0, n - 1) AS i;
END
$$;

-- After a change of the number of shards or of their slots' names, where only the stream has the events: every shard gets a slot that
-- holds everything from the lowest position, and only then the old slots are dropped. All in one statement, so that a caller who hangs changes nothing, and
-- under a lock that needs a right on the table. `names`: of the new slots, shard 0 first. held: a slot that is in use and has to be
-- released first; lost: no slot holds the WAL from that position any more. Neither: done.
-- A slot cannot be copied in a transaction that has written: nothing is written before.
CREATE FUNCTION outbox.move_slots(p text, names text[], OUT held text, OUT lost boolean)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    moving integer[];
    low pg_lsn;
    old name[];
    source name;
    i integer;
    slot record;
BEGIN
    lost := false;
    LOCK TABLE outbox.past IN SHARE ROW EXCLUSIVE MODE;
    SELECT array_agg(c.shard), min(c.lsn), array_agg(c.slot) INTO moving, low, old FROM outbox.cursor AS c
        WHERE c.pipeline = p AND c.slot_state = 'moving';
    IF low IS NULL THEN
        RETURN; -- another shard was faster
    END IF;
    old := old || ARRAY(SELECT g.slot::name FROM outbox.past AS g WHERE g.pipeline = p);
    old := array_remove(old, NULL);
    SELECT r.slot_name INTO source FROM pg_replication_slots AS r
        WHERE r.slot_name = ANY (old) AND r.database = current_database() AND r.plugin = 'pgoutput' AND r.restart_lsn IS NOT NULL
            AND r.wal_status <> 'lost' AND r.confirmed_flush_lsn <= low
        ORDER BY r.confirmed_flush_lsn DESC LIMIT 1;
    FOREACH i IN ARRAY moving LOOP
        SELECT r.slot_name, r.active_pid, r.restart_lsn IS NOT NULL AND r.wal_status <> 'lost' AND r.confirmed_flush_lsn <= low
                AND r.database = current_database() AND r.plugin = 'pgoutput' AS fits
            INTO slot FROM pg_replication_slots AS r WHERE r.slot_name = names[i + 1];
        IF FOUND AND slot.fits THEN
            CONTINUE;
        ELSIF FOUND AND slot.slot_name <> ALL (old) THEN
            RAISE EXCEPTION 'outbox: slot % exists and is not recorded as a slot of this pipeline: drop it, or configure another name '
                'with `slot`', names[i + 1];
        ELSIF source IS NULL THEN
            lost := true;
            RETURN;
        ELSIF FOUND AND slot.active_pid IS NOT NULL THEN
            held := slot.slot_name;
            RETURN;
        ELSIF FOUND THEN
            PERFORM pg_drop_replication_slot(slot.slot_name); -- `source` holds all that it holds, and more
        END IF;
        PERFORM pg_copy_logical_replication_slot(source, names[i + 1]);
    END LOOP;
    FOR slot IN SELECT r.slot_name, r.active_pid FROM pg_replication_slots AS r WHERE r.slot_name = ANY (old)
            AND r.slot_name <> ALL (names) AND r.database = current_database() AND r.plugin = 'pgoutput' LOOP
        IF slot.active_pid IS NOT NULL THEN
            held := slot.slot_name;
            RETURN;
        END IF;
        PERFORM pg_drop_replication_slot(slot.slot_name);
    END LOOP;
    UPDATE outbox.cursor AS c SET slot_state = 'created', slot = names[c.shard + 1]
        WHERE c.pipeline = p AND c.slot_state = 'moving' AND c.shard = ANY (moving);
    UPDATE outbox.past AS g SET slot = NULL WHERE g.pipeline = p AND g.slot IS NOT NULL;
END
$$;
REVOKE ALL ON FUNCTION outbox.move_slots(text, text[]) FROM PUBLIC;
