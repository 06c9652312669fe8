-- Mode wal. The cursor's lsn and rows_done are the position in the stream: all transactions whose commit record stands below lsn,
-- and the first rows_done rows of the one that stands at it. lsn NULL: the table is read.
ALTER TABLE outbox.cursor ADD COLUMN wal text;  -- the publication as it was when the slot was made; NULL: there never was one

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
