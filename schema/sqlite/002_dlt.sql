-- Dead events that are still to be published to the dead-letter topic, version 2. Written by triggers, so that it happens in
-- the transaction that records the death, whoever records it. One that is retried or discarded before has no letter to send.

ALTER TABLE outbox_pipeline ADD COLUMN dlt INTEGER NOT NULL DEFAULT 0;   -- 1: `dlt: on`

CREATE TABLE outbox_dlt (
    pipeline TEXT NOT NULL,
    n INTEGER NOT NULL,                 -- of outbox_dead
    PRIMARY KEY (pipeline, n)
) WITHOUT ROWID;

CREATE TRIGGER outbox_dead_dlt AFTER INSERT ON outbox_dead
WHEN new.state = 'dead' AND EXISTS (SELECT 1 FROM outbox_pipeline WHERE name = new.pipeline AND dlt = 1)
BEGIN
    INSERT INTO outbox_dlt (pipeline, n) VALUES (new.pipeline, new.n) ON CONFLICT DO NOTHING;
END;
CREATE TRIGGER outbox_dead_dlt_again AFTER UPDATE OF state ON outbox_dead
WHEN new.state = 'dead' AND old.state <> 'dead'
    AND EXISTS (SELECT 1 FROM outbox_pipeline WHERE name = new.pipeline AND dlt = 1)
BEGIN
    INSERT INTO outbox_dlt (pipeline, n) VALUES (new.pipeline, new.n) ON CONFLICT DO NOTHING;
END;
CREATE TRIGGER outbox_dead_no_dlt AFTER UPDATE OF state ON outbox_dead
WHEN new.state <> 'dead' AND old.state = 'dead'
BEGIN
    DELETE FROM outbox_dlt WHERE pipeline = old.pipeline AND n = old.n;
END;
CREATE TRIGGER outbox_dead_gone_no_dlt AFTER DELETE ON outbox_dead WHEN old.state = 'dead'
BEGIN
    DELETE FROM outbox_dlt WHERE pipeline = old.pipeline AND n = old.n;
END;
