-- polyshop: a service's table as its owner has it, for a user who has none; the index that the relay reads by; and the table
-- of its consumers.
CREATE TABLE outbox_events (
    id uuid PRIMARY KEY,
    aggregate_id text NOT NULL,
    event_type text NOT NULL,
    version int NOT NULL DEFAULT 1,
    payload jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    processed boolean NOT NULL DEFAULT false,
    processed_at timestamptz,
    error_message text
);
CREATE INDEX idx_outbox_events_pending ON outbox_events (created_at) WHERE processed = false;

CREATE TABLE processed_events (
    event_id uuid PRIMARY KEY,
    processed_at timestamptz NOT NULL DEFAULT now(),
    event_type text,
    source text
);
