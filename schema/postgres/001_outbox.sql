-- The native outbox in PostgreSQL, version 1. Everything that belongs to it is in the schema outbox.
--
-- Writers call outbox.emit(...) inside their own transaction and need no right but that. All tables are
-- the relay's. Functions have pg_temp last in their search_path: left out it is searched first, for types
-- too, and whoever makes a type there would have his code run by our owner.

CREATE SCHEMA IF NOT EXISTS outbox;
COMMENT ON SCHEMA outbox IS 'Transactional outbox';

-- Settings of this outbox, and the version of its schema.
CREATE TABLE outbox.meta (
    name text PRIMARY KEY,
    value text NOT NULL
);
INSERT INTO outbox.meta (name, value) VALUES
    ('partition_rows', '1000000'),  -- numbers of one partition
    ('partitions_ahead', '3'),      -- empty ones behind the one that is written
    ('keep_hours', '168'),          -- a partition that all pipelines have passed stays so long; 'off': for ever
    ('soft_limit', '1000000'),      -- pending events at which pressure() is 1
    ('hard_limit', '0');            -- pending events at which emit() refuses; 0: never

-- A UUID of version 7: 48 bits of Unix milliseconds, the rest is random.
CREATE FUNCTION outbox.gen_id() RETURNS uuid
LANGUAGE sql VOLATILE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    SELECT encode(
        set_bit(set_bit(
            overlay(uuid_send(gen_random_uuid())
                    PLACING substring(int8send((extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3)
                    FROM 1 FOR 6),
            52, 1), 53, 1), 'hex')::uuid
$$;

-- Append-only: nothing here is ever updated. xid is declared BEFORE seq because defaults are evaluated in the order
-- of columns: a transaction has its id before it draws a number, and the cursor's proof rests on that (docs/sources/postgres.md).
CREATE TABLE outbox.event (
    xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    seq bigint GENERATED ALWAYS AS IDENTITY (CACHE 1),
    id uuid NOT NULL DEFAULT outbox.gen_id(),
    type text NOT NULL,
    aggregate_type text NOT NULL DEFAULT '',
    aggregate_id text NOT NULL DEFAULT '',
    key text,                -- what order is kept for; NULL: aggregate_id
    tenant text,
    topic text,
    payload bytea,           -- as it was given, never re-encoded; NULL: no payload
    payload_kind "char" NOT NULL DEFAULT 'j' CHECK (payload_kind IN ('j', 't', 'b')),  -- JSON, text, bytes
    headers json,            -- an object, or NULL
    metadata json,           -- an object, or NULL
    entity_version bigint,   -- order within the entity
    schema_version bigint,   -- of the payload; never mixed with the above
    max_attempts integer,    -- NULL: the pipeline's
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
) PARTITION BY RANGE (seq);
CREATE UNIQUE INDEX event_seq ON outbox.event (seq);
CREATE INDEX event_xid ON outbox.event (xid, seq);

-- A missing partition must never fail a writer. This one stays empty while a relay runs outbox.maintain().
CREATE TABLE outbox.event_default (LIKE outbox.event INCLUDING DEFAULTS INCLUDING CONSTRAINTS);
CREATE UNIQUE INDEX event_default_seq ON outbox.event_default (seq);
CREATE INDEX event_default_xid ON outbox.event_default (xid, seq);
CREATE UNIQUE INDEX event_default_id ON outbox.event_default (id);
ALTER TABLE outbox.event ATTACH PARTITION outbox.event_default DEFAULT;

CREATE TABLE outbox.part (
    name text PRIMARY KEY,
    lo bigint NOT NULL,              -- first number
    hi bigint NOT NULL,              -- first number of the next
    closed_xid xid8,                 -- noted after the sequence passed hi: every writer of this partition has a lower one
    closed_at timestamptz,
    emptied_at timestamptz,          -- truncated; detached and dropped later
    detached_at timestamptz
);

-- One row per pipeline and shard. The settled set is: rows visible in snap with seq <= pos, and rows visible in
-- late_snap with seq <= late_pos. epoch: raised by every owner; a write under an older one changes no row.
CREATE TABLE outbox.cursor (
    pipeline text NOT NULL,
    shard integer NOT NULL,
    shards integer NOT NULL,
    mode text NOT NULL DEFAULT 'log',
    pos bigint NOT NULL DEFAULT 0,
    snap pg_snapshot NOT NULL DEFAULT '3:3:',      -- nothing is visible in it but what was frozen
    late_pos bigint NOT NULL DEFAULT 0,
    late_snap pg_snapshot,                         -- NULL: as snap
    base bigint NOT NULL DEFAULT 0,                -- LATE looks only above it
    adopt_pos bigint,                              -- not NULL: the snapshots are of another cluster; what they do not show is read once, up to pos
    fence xid8,                                    -- of the transaction that stored the cursor
    lsn pg_lsn,                                    -- wal: confirmed
    rows_done bigint NOT NULL DEFAULT 0,           -- wal: of the transaction behind lsn
    timeline integer,
    system_id text,                                -- of the cluster that gave xids and LSNs
    db_oid oid,
    epoch bigint NOT NULL DEFAULT 0,
    owner text NOT NULL DEFAULT '',
    backend_pid integer,
    backend_start timestamptz,
    beat bigint NOT NULL DEFAULT 0,
    beat_at timestamptz,
    state text NOT NULL DEFAULT 'stopped',
    settle_no bigint NOT NULL DEFAULT 0,
    published bigint NOT NULL DEFAULT 0,           -- for ever
    failed bigint NOT NULL DEFAULT 0,              -- spent attempts, for ever
    in_flight bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (pipeline, shard)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Where shards stood before their number was changed: what an old shard had settled is not delivered again, although the
-- new cursors start lower.
CREATE TABLE outbox.past (
    pipeline text NOT NULL,
    generation integer NOT NULL,
    shard integer NOT NULL,
    shards integer NOT NULL,
    pos bigint NOT NULL,
    snap pg_snapshot NOT NULL,
    late_pos bigint NOT NULL,
    late_snap pg_snapshot,
    base bigint NOT NULL,
    PRIMARY KEY (pipeline, generation, shard)
);

CREATE TABLE outbox.pipeline (
    name text PRIMARY KEY,
    paused boolean NOT NULL DEFAULT false,
    last_n bigint NOT NULL DEFAULT 0,   -- the last number given to a parked or dead event
    parked bigint NOT NULL DEFAULT 0,   -- rows in outbox.parked
    dead bigint NOT NULL DEFAULT 0      -- rows in outbox.dead that are dead
);

-- Events that wait. n: the order among them; within a hash it is the order of delivery. ref points to the event in its table:
-- the number in outbox.event, or the id in a table of another system. Where no table keeps the event, `event` has all of it.
CREATE TABLE outbox.parked (
    pipeline text NOT NULL,
    n bigint NOT NULL,
    hash bigint NOT NULL,               -- of the key
    ref text NOT NULL,
    seq bigint,                         -- the event's number, where it has one
    event jsonb,
    payload bytea,
    attempts integer NOT NULL,
    due_at timestamptz NOT NULL,
    blocked_dest bigint NOT NULL DEFAULT 0,  -- 0: waits only for due_at
    reason text NOT NULL,
    history jsonb NOT NULL DEFAULT '[]',     -- [{"at":...,"attempt":...,"error":...}]
    destination text NOT NULL,
    parked_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (pipeline, n)
) WITH (autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX parked_hash ON outbox.parked (pipeline, hash, n);
CREATE UNIQUE INDEX parked_ref ON outbox.parked (pipeline, ref);
CREATE INDEX parked_seq ON outbox.parked (pipeline, seq);

-- One row per hash that is held: what its first row (lowest n) waits for; -1: a dead event.
CREATE TABLE outbox.parked_key (
    pipeline text NOT NULL,
    hash bigint NOT NULL,
    blocked_dest bigint NOT NULL,
    due_at timestamptz NOT NULL,
    PRIMARY KEY (pipeline, hash)
);
CREATE INDEX parked_key_due ON outbox.parked_key (pipeline, blocked_dest, due_at);

CREATE TABLE outbox.dead (
    pipeline text NOT NULL,
    n bigint NOT NULL,
    ref text NOT NULL,
    seq bigint,
    hash bigint NOT NULL,
    id text NOT NULL,
    type text NOT NULL,
    key text NOT NULL,
    tenant text NOT NULL,
    event jsonb,
    payload bytea,
    attempts integer NOT NULL,
    error text NOT NULL,
    history jsonb NOT NULL DEFAULT '[]',
    destination text NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    hold boolean NOT NULL DEFAULT false,   -- the later events of its key wait behind it
    state text NOT NULL CHECK (state IN ('dead', 'retried', 'discarded', 'released')),
    PRIMARY KEY (pipeline, n)
);
CREATE INDEX dead_ref ON outbox.dead (pipeline, ref);
CREATE INDEX dead_seq ON outbox.dead (pipeline, seq);
CREATE INDEX dead_hold ON outbox.dead (pipeline, hash, n) WHERE hold;
CREATE INDEX dead_state ON outbox.dead (pipeline, n) WHERE state = 'dead';
CREATE INDEX dead_id ON outbox.dead (id);

-- Has the owner of this cursor settled the event of this number? Without a search_path of its own, so that it can be inlined:
-- hence the names of its operators.
CREATE FUNCTION outbox.settled(c outbox.cursor, seq bigint, xid xid8) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT seq OPERATOR(pg_catalog.<=) c.pos
        AND (CASE WHEN c.adopt_pos IS NULL THEN seq OPERATOR(pg_catalog.<=) c.base ELSE seq OPERATOR(pg_catalog.<=) c.adopt_pos END
        OR pg_catalog.pg_visible_in_snapshot(xid, c.snap)
        OR (c.late_snap IS NOT NULL AND seq OPERATOR(pg_catalog.<=) c.late_pos
            AND pg_catalog.pg_visible_in_snapshot(xid, c.late_snap)))
$$;

-- An event that outlived its row, as a row.
CREATE FUNCTION outbox.unpack(e jsonb, payload bytea, seq bigint) RETURNS outbox.event
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    SELECT ROW('3'::xid8, seq, (e ->> 'id')::uuid, e ->> 'type', coalesce(e ->> 'aggregate_type', ''),
        coalesce(e ->> 'aggregate_id', ''), e ->> 'key', e ->> 'tenant', e ->> 'topic', payload,
        (e ->> 'payload_kind')::"char", (e ->> 'headers')::json, (e ->> 'metadata')::json, (e ->> 'entity_version')::bigint,
        (e ->> 'schema_version')::bigint, (e ->> 'max_attempts')::integer,
        to_timestamp((e ->> 'created_us')::numeric / 1000000))::outbox.event
$$;

-- Derives the row of each of these hashes in outbox.parked_key again; gives back those that nothing holds any more.
CREATE FUNCTION outbox.rekey(p text, hashes bigint[]) RETURNS SETOF bigint
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    WITH first AS MATERIALIZED (
        SELECT h.hash, w.n, w.due_at, w.blocked_dest, d.n AS holder
        FROM (SELECT DISTINCT u AS hash FROM unnest(hashes) AS u) AS h
        LEFT JOIN LATERAL (SELECT x.n, x.due_at, x.blocked_dest FROM outbox.parked AS x
            WHERE x.pipeline = p AND x.hash = h.hash ORDER BY x.n LIMIT 1) AS w ON true
        LEFT JOIN LATERAL (SELECT x.n FROM outbox.dead AS x
            WHERE x.pipeline = p AND x.hash = h.hash AND x.hold ORDER BY x.n LIMIT 1) AS d ON true),
    gone AS (
        DELETE FROM outbox.parked_key AS k USING first AS f
        WHERE k.pipeline = p AND k.hash = f.hash AND f.n IS NULL AND f.holder IS NULL),
    kept AS (
        INSERT INTO outbox.parked_key AS k (pipeline, hash, blocked_dest, due_at)
        SELECT p, f.hash, CASE WHEN behind THEN -1 ELSE f.blocked_dest END, CASE WHEN behind THEN 'infinity' ELSE f.due_at END
        FROM (SELECT *, holder IS NOT NULL AND (n IS NULL OR holder < n) AS behind FROM first) AS f
        WHERE f.n IS NOT NULL OR f.holder IS NOT NULL
        ON CONFLICT (pipeline, hash) DO UPDATE SET blocked_dest = excluded.blocked_dest, due_at = excluded.due_at
        WHERE (k.blocked_dest, k.due_at) IS DISTINCT FROM (excluded.blocked_dest, excluded.due_at))
    SELECT f.hash FROM first AS f WHERE f.n IS NULL AND f.holder IS NULL
$$;

-- Counts for `status`, kept by triggers on statements so that nobody counts a big table.
CREATE FUNCTION outbox.count_rows() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_TABLE_NAME = 'parked' THEN
        IF TG_OP = 'INSERT' THEN
            UPDATE outbox.pipeline AS p SET parked = p.parked + c.n
                FROM (SELECT pipeline, count(*) AS n FROM changed GROUP BY 1) AS c WHERE p.name = c.pipeline;
        ELSE
            UPDATE outbox.pipeline AS p SET parked = p.parked - c.n
                FROM (SELECT pipeline, count(*) AS n FROM changed GROUP BY 1) AS c WHERE p.name = c.pipeline;
        END IF;
    ELSIF TG_OP = 'INSERT' THEN
        UPDATE outbox.pipeline AS p SET dead = p.dead + c.n
            FROM (SELECT pipeline, count(*) AS n FROM changed WHERE state = 'dead' GROUP BY 1) AS c
            WHERE p.name = c.pipeline;
    ELSIF TG_OP = 'DELETE' THEN
        UPDATE outbox.pipeline AS p SET dead = p.dead - c.n
            FROM (SELECT pipeline, count(*) AS n FROM changed WHERE state = 'dead' GROUP BY 1) AS c
            WHERE p.name = c.pipeline;
    ELSE
        UPDATE outbox.pipeline AS p SET dead = p.dead + c.n
            FROM (SELECT a.pipeline, count(*) FILTER (WHERE a.state = 'dead')
                    - (SELECT count(*) FROM before AS b WHERE b.pipeline = a.pipeline AND b.state = 'dead') AS n
                  FROM changed AS a GROUP BY a.pipeline) AS c
            WHERE p.name = c.pipeline AND c.n <> 0;
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER parked_in AFTER INSERT ON outbox.parked REFERENCING NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION outbox.count_rows();
CREATE TRIGGER parked_out AFTER DELETE ON outbox.parked REFERENCING OLD TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION outbox.count_rows();
CREATE TRIGGER dead_in AFTER INSERT ON outbox.dead REFERENCING NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION outbox.count_rows();
CREATE TRIGGER dead_out AFTER DELETE ON outbox.dead REFERENCING OLD TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION outbox.count_rows();
CREATE TRIGGER dead_change AFTER UPDATE ON outbox.dead REFERENCING OLD TABLE AS before NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION outbox.count_rows();

-- The database was restored into another cluster (dump and restore, upgrade): its transaction ids mean nothing here. What a
-- pipeline has not read is decided by the old numbers, once: rows up to its position that its snapshots do not show. Rows above
-- every position get an id that every snapshot shows, else this cluster's counter reaches the foreign numbers one day.
CREATE FUNCTION outbox.adopt(system text, db oid) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    top bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(7305, 2);
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

-- Another number of shards. The new cursors start at the lowest position and the oldest snapshot: snapshots are rising in time,
-- so what these two show is settled by every old shard.
CREATE FUNCTION outbox.reshard(p text, n integer) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    old outbox.cursor;
    sums record;
BEGIN
    INSERT INTO outbox.past (pipeline, generation, shard, shards, pos, snap, late_pos, late_snap, base)
        SELECT c.pipeline, 1 + coalesce((SELECT max(g.generation) FROM outbox.past AS g WHERE g.pipeline = p), 0), c.shard, c.shards,
            c.pos, c.snap, c.late_pos, c.late_snap, c.base
        FROM outbox.cursor AS c WHERE c.pipeline = p;
    SELECT c.* INTO old FROM outbox.cursor AS c WHERE c.pipeline = p
        ORDER BY pg_snapshot_xmax(c.snap), (SELECT count(*) FROM pg_snapshot_xip(c.snap)) DESC LIMIT 1;
    SELECT min(c.pos) AS pos, max(c.base) AS base, max(c.epoch) AS epoch, sum(c.published) AS published, sum(c.failed) AS failed
        INTO sums FROM outbox.cursor AS c WHERE c.pipeline = p;
    DELETE FROM outbox.cursor AS c WHERE c.pipeline = p;
    INSERT INTO outbox.cursor (pipeline, shard, shards, mode, pos, snap, base, fence, timeline, system_id, db_oid, epoch, published,
        failed, lsn, rows_done)
        SELECT p, i, n, old.mode, sums.pos, old.snap, sums.base, old.fence, old.timeline, old.system_id, old.db_oid, sums.epoch + 1,
            CASE i WHEN 0 THEN sums.published ELSE 0 END, CASE i WHEN 0 THEN sums.failed ELSE 0 END, NULL, 0
        FROM generate_series(0, n - 1) AS i;
END
$$;
