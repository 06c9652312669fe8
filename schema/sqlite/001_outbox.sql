-- The native outbox in SQLite, version 1. Everything that belongs to it starts with outbox_.
--
-- Writers insert into outbox_event, inside their own transaction, and need to give no more than
-- type, aggregate_type, aggregate_id and payload. All other tables are the relay's.

CREATE TABLE outbox_meta (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;

-- AUTOINCREMENT is what makes the cursor exact: without it a number is used again after the row
-- with the highest one was deleted, and a cursor that has passed it would skip the new event for
-- ever.
CREATE TABLE outbox_event (
    seq INTEGER PRIMARY KEY AUTOINCREMENT CHECK (seq > 0),
    -- A UUID of version 7: 48 bits of Unix milliseconds, the rest is random.
    id TEXT NOT NULL UNIQUE DEFAULT (printf('%08x-%04x-7%03x-%x%03x-%012x',
        CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) >> 16,
        CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) & 65535,
        random() & 4095, 8 + (random() & 3), random() & 4095, random() & 281474976710655)),
    type TEXT NOT NULL,
    aggregate_type TEXT NOT NULL DEFAULT '',
    aggregate_id TEXT NOT NULL DEFAULT '',
    key TEXT,                -- what order is kept for; NULL: aggregate_id
    tenant TEXT,
    topic TEXT,
    payload,                 -- text, blob or NULL, kept as it was given
    -- NULL: text is JSON, a blob is bytes
    payload_kind TEXT CHECK (payload_kind IN ('json', 'text', 'bytes')),
    headers TEXT,            -- a JSON object, or NULL
    metadata TEXT,           -- a JSON object, or NULL
    entity_version INTEGER,  -- order within the entity
    schema_version INTEGER,  -- of the payload; never mixed with the above
    max_attempts INTEGER,    -- NULL: the pipeline's
    created_at INTEGER NOT NULL  -- milliseconds since 1970, UTC
        DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER))
        CHECK (typeof(created_at) = 'integer')
);

-- One row per pipeline and shard. pos: all numbers up to it are settled (delivered, parked or
-- dead). epoch: raised by every owner; a write under an older one changes no row.
CREATE TABLE outbox_cursor (
    pipeline TEXT NOT NULL,
    shard INTEGER NOT NULL,
    shards INTEGER NOT NULL,
    pos INTEGER NOT NULL DEFAULT 0,
    epoch INTEGER NOT NULL DEFAULT 0,
    owner TEXT NOT NULL DEFAULT '',
    beat INTEGER NOT NULL DEFAULT 0,       -- counts up while the owner lives
    beat_at INTEGER,                       -- the same as time, for people
    state TEXT NOT NULL DEFAULT 'stopped',
    settle_no INTEGER NOT NULL DEFAULT 0,
    published INTEGER NOT NULL DEFAULT 0,  -- for ever
    failed INTEGER NOT NULL DEFAULT 0,     -- spent attempts, for ever
    in_flight INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (pipeline, shard)
) WITHOUT ROWID;

-- Where shards stood before their number was changed: what lies at or below the position of its
-- old shard is settled already, although the new cursors start lower.
CREATE TABLE outbox_past (
    pipeline TEXT NOT NULL,
    generation INTEGER NOT NULL,
    shard INTEGER NOT NULL,
    shards INTEGER NOT NULL,
    pos INTEGER NOT NULL,
    PRIMARY KEY (pipeline, generation, shard)
) WITHOUT ROWID;

CREATE TABLE outbox_pipeline (
    name TEXT PRIMARY KEY,
    paused INTEGER NOT NULL DEFAULT 0,
    last_n INTEGER NOT NULL DEFAULT 0,  -- the last number given to a parked or dead event
    parked INTEGER NOT NULL DEFAULT 0,  -- rows in outbox_parked; kept by triggers
    dead INTEGER NOT NULL DEFAULT 0     -- rows in outbox_dead that are dead; kept by triggers
) WITHOUT ROWID;

-- Events that wait. n: the order among them; within a hash it is the order of delivery.
CREATE TABLE outbox_parked (
    pipeline TEXT NOT NULL,
    n INTEGER NOT NULL,
    hash INTEGER NOT NULL,              -- of the key
    seq INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    due_ms INTEGER NOT NULL,            -- Unix milliseconds
    blocked_dest INTEGER NOT NULL,      -- 0: waits only for due_ms
    reason TEXT NOT NULL,
    history TEXT NOT NULL DEFAULT '[]', -- JSON: [{"at":…,"attempt":…,"error":…}]
    destination TEXT NOT NULL,
    parked_at INTEGER NOT NULL,
    PRIMARY KEY (pipeline, n)
) WITHOUT ROWID;
CREATE INDEX outbox_parked_hash ON outbox_parked (pipeline, hash, n);
CREATE UNIQUE INDEX outbox_parked_seq ON outbox_parked (pipeline, seq);

-- One row per hash that is held: what its first row (lowest n) waits for; -1: a dead event.
CREATE TABLE outbox_parked_key (
    pipeline TEXT NOT NULL,
    hash INTEGER NOT NULL,
    blocked_dest INTEGER NOT NULL,
    due_ms INTEGER NOT NULL,
    PRIMARY KEY (pipeline, hash)
) WITHOUT ROWID;
CREATE INDEX outbox_parked_key_due ON outbox_parked_key (pipeline, blocked_dest, due_ms);

CREATE TABLE outbox_dead (
    pipeline TEXT NOT NULL,
    n INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    hash INTEGER NOT NULL,
    id TEXT NOT NULL,
    type TEXT NOT NULL,
    key TEXT NOT NULL,
    tenant TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    error TEXT NOT NULL,
    history TEXT NOT NULL DEFAULT '[]',
    destination TEXT NOT NULL,
    at INTEGER NOT NULL,                -- Unix milliseconds
    hold INTEGER NOT NULL DEFAULT 0,    -- 1: the later events of its key wait behind it
    state TEXT NOT NULL CHECK (state IN ('dead', 'retried', 'discarded')),
    PRIMARY KEY (pipeline, n)
) WITHOUT ROWID;
CREATE UNIQUE INDEX outbox_dead_seq ON outbox_dead (pipeline, seq);
CREATE INDEX outbox_dead_hold ON outbox_dead (pipeline, hash, n) WHERE hold = 1;
CREATE INDEX outbox_dead_state ON outbox_dead (pipeline, n) WHERE state = 'dead';
CREATE INDEX outbox_dead_id ON outbox_dead (id);

-- A number that a cursor has passed, or that a relay may have read past, would never be seen.
-- (While a statement runs, sqlite_sequence has the last number given before it.)
CREATE TRIGGER outbox_event_number AFTER INSERT ON outbox_event
WHEN new.seq <= coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'outbox_event'), 0)
    OR new.seq <= coalesce((SELECT max(pos) FROM outbox_cursor), 0)
BEGIN
    SELECT raise(ABORT, 'outbox_event: this seq is not above all that were given before, the relay would never see it; leave seq out');
END;
CREATE TRIGGER outbox_event_renumber BEFORE UPDATE OF seq ON outbox_event
WHEN new.seq IS NOT old.seq
BEGIN
    SELECT raise(ABORT, 'outbox_event: seq must not be changed');
END;
-- Who cleans up deletes what he likes: rows that wait or are dead silently stay.
CREATE TRIGGER outbox_event_keep BEFORE DELETE ON outbox_event
WHEN EXISTS (SELECT 1 FROM outbox_pipeline AS p
             JOIN outbox_parked AS w ON w.pipeline = p.name AND w.seq = old.seq)
    OR EXISTS (SELECT 1 FROM outbox_pipeline AS p
               JOIN outbox_dead AS d ON d.pipeline = p.name AND d.seq = old.seq AND d.state = 'dead')
BEGIN
    SELECT raise(IGNORE);
END;

CREATE TRIGGER outbox_parked_more AFTER INSERT ON outbox_parked
BEGIN
    UPDATE outbox_pipeline SET parked = parked + 1 WHERE name = new.pipeline;
END;
CREATE TRIGGER outbox_parked_less AFTER DELETE ON outbox_parked
BEGIN
    UPDATE outbox_pipeline SET parked = parked - 1 WHERE name = old.pipeline;
END;
CREATE TRIGGER outbox_dead_more AFTER INSERT ON outbox_dead WHEN new.state = 'dead'
BEGIN
    UPDATE outbox_pipeline SET dead = dead + 1 WHERE name = new.pipeline;
END;
CREATE TRIGGER outbox_dead_change AFTER UPDATE OF state ON outbox_dead
WHEN (new.state = 'dead') <> (old.state = 'dead')
BEGIN
    UPDATE outbox_pipeline SET dead = dead + (new.state = 'dead') - (old.state = 'dead')
    WHERE name = new.pipeline;
END;
CREATE TRIGGER outbox_dead_less AFTER DELETE ON outbox_dead WHEN old.state = 'dead'
BEGIN
    UPDATE outbox_pipeline SET dead = dead - 1 WHERE name = old.pipeline;
END;
