-- orion, partitioned by month. A partition must exist before its month begins: a relay whose role is a member of the table's owner
-- creates them ahead; otherwise call the function, which creates those of this month and the next three, at least once a month.
-- The DEFAULT partition keeps a missing one from failing a writer.
CREATE TABLE outbox (
    id uuid NOT NULL DEFAULT gen_random_uuid(),
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
    sequence_number bigserial,
    PRIMARY KEY (id, created_at)
) PARTITION BY RANGE (created_at);
CREATE INDEX idx_outbox_pending ON outbox (created_at) WHERE processed_at IS NULL;
CREATE INDEX idx_outbox_aggregate ON outbox (aggregate_type, aggregate_id, sequence_number);
CREATE INDEX idx_outbox_cleanup ON outbox (processed_at) WHERE processed_at IS NOT NULL;
CREATE INDEX idx_outbox_relay ON outbox (sequence_number) WHERE processed_at IS NULL;

CREATE TABLE outbox_default PARTITION OF outbox DEFAULT;

CREATE FUNCTION outbox_months_ahead(months int DEFAULT 3) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    month timestamptz;
BEGIN
    FOR i IN 0..months LOOP
        month := date_trunc('month', now()) + make_interval(months => i);
        EXECUTE format('CREATE TABLE IF NOT EXISTS %I PARTITION OF outbox FOR VALUES FROM (%L) TO (%L)',
            'outbox_' || to_char(month, 'YYYY_MM'), month, month + interval '1 month');
    END LOOP;
END
$$;
SELECT outbox_months_ahead();
