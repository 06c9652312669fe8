-- Mode wal. The cursor's lsn and rows_done are the position in the stream: all transactions whose commit record stands below lsn,
-- and the first rows_done rows of the one that stands at it. lsn NULL: the table is read.
ALTER TABLE outbox.cursor ADD COLUMN wal text;  -- the publication as it was when the slot was made; NULL: there never was one

-- As before; and an event of a table whose ids are no UUIDs has one made of it here.
CREATE OR REPLACE FUNCTION outbox.unpack(e jsonb, payload bytea, seq bigint) RETURNS outbox.event
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog AS $$
    SELECT ROW('3'::xid8, seq, CASE WHEN e ->> 'id' ~ '^[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}$' THEN (e ->> 'id')::uuid
            ELSE md5(e ->> 'id')::uuid END, e ->> 'type', coalesce(e ->> 'aggregate_type', ''),
        coalesce(e ->> 'aggregate_id', ''), e ->> 'key', e ->> 'tenant', e ->> 'topic', payload,
        (e ->> 'payload_kind')::"char", (e ->> 'headers')::json, (e ->> 'metadata')::json, (e ->> 'entity_version')::bigint,
        (e ->> 'schema_version')::bigint, (e ->> 'max_attempts')::integer,
        to_timestamp((e ->> 'created_us')::numeric / 1000000))::outbox.event
$$;

-- Makes the publication of outbox.event for a relay, which does not own the table.
CREATE FUNCTION outbox.publish(name text) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(7305, 3);
    IF NOT EXISTS (SELECT 1 FROM pg_publication AS p WHERE p.pubname = name) THEN
        EXECUTE format('CREATE PUBLICATION %I FOR TABLE outbox.event WITH (publish = ''insert'', publish_via_partition_root = true)',
            name);
    END IF;
END
$$;
REVOKE ALL ON FUNCTION outbox.publish(text) FROM PUBLIC;
DO $$
BEGIN
    IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'outbox_relay') THEN
        GRANT EXECUTE ON FUNCTION outbox.publish(text) TO outbox_relay;
    END IF;
END
$$;
