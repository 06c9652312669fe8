-- Events that are settled ahead of the cursor: delivered, parked or dead while an earlier one is not. They are stored with the cursor, and
-- not delivered again after a stop or a crash.
ALTER TABLE outbox.cursor ADD COLUMN ahead bytea;                     -- NULL: none; the format is in src/source/ahead.c
ALTER TABLE outbox.cursor ADD COLUMN ahead_n bigint NOT NULL DEFAULT 0; -- how many

-- As before; numbers stay what they are in another cluster, positions in its log do not.
CREATE OR REPLACE FUNCTION outbox.adopt(system text, db oid) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    top bigint;
BEGIN
    LOCK TABLE outbox.guard IN SHARE UPDATE EXCLUSIVE MODE;
    IF NOT EXISTS (SELECT 1 FROM outbox.cursor AS c WHERE c.system_id <> system OR c.db_oid <> db) THEN
        RETURN;
    END IF;
    SELECT max(c.pos) INTO top FROM outbox.cursor AS c;
    UPDATE outbox.event AS e SET xid = '3' WHERE e.seq > top;
    UPDATE outbox.cursor AS c SET system_id = system, db_oid = db, adopt_pos = 0, base = top, fence = NULL, lsn = NULL,
        rows_done = 0, epoch = c.epoch + 1, ahead = CASE WHEN c.lsn IS NULL THEN c.ahead END,
        ahead_n = CASE WHEN c.lsn IS NULL THEN c.ahead_n ELSE 0 END WHERE c.system_id <> system OR c.db_oid <> db;
    UPDATE outbox.part AS p SET closed_xid = NULL, closed_at = NULL WHERE p.closed_xid IS NOT NULL;
END
$$;
