-- microdao: the table as its owner has it, for a user who has none, and the index that the relay reads by.
CREATE TABLE outbox_events (
    id text PRIMARY KEY,
    stream text NOT NULL,
    topic text NOT NULL,
    payload jsonb NOT NULL,
    created_at timestamptz DEFAULT now(),
    processed bool DEFAULT false,
    processed_at timestamptz,
    error text
);
CREATE INDEX idx_outbox_events_pending ON outbox_events (created_at) WHERE processed = false AND error IS NULL;
