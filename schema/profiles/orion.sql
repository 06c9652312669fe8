-- orion: the table as its owner has it, for a user who has none; then the index that the relay reads by.
CREATE TABLE outbox (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    tenant_id uuid NOT NULL,
    aggregate_type varchar(100) NOT NULL,
    aggregate_id uuid NOT NULL,
    event_type varchar(100) NOT NULL,
    payload jsonb NOT NULL,
    metadata jsonb NOT NULL DEFAULT '{}',
    created_at timestamptz NOT NULL DEFAULT now(),
    processed_at timestamptz,
    retry_count int NOT NULL DEFAULT 0,
    last_error text,
    sequence_number bigserial
);
CREATE INDEX idx_outbox_pending ON outbox (created_at) WHERE processed_at IS NULL;
CREATE INDEX idx_outbox_aggregate ON outbox (aggregate_type, aggregate_id, sequence_number);
CREATE INDEX idx_outbox_cleanup ON outbox (processed_at) WHERE processed_at IS NOT NULL;
CREATE INDEX idx_outbox_relay ON outbox (sequence_number) WHERE processed_at IS NULL;
