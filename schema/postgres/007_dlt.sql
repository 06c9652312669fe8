-- Dead events that are still to be published to the dead-letter topic. Written by triggers, so that it happens in the
-- transaction that records the death, whoever records it. One that is retried or discarded before has no letter to send.

ALTER TABLE outbox.pipeline ADD COLUMN dlt boolean NOT NULL DEFAULT false;   -- `dlt: on`

CREATE TABLE outbox.dlt (
    pipeline text NOT NULL,
    n bigint NOT NULL,                  -- of outbox.dead
    PRIMARY KEY (pipeline, n)
);

CREATE FUNCTION outbox.dead_dlt() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO outbox.dlt (pipeline, n) SELECT NEW.pipeline, NEW.n FROM outbox.pipeline AS p
        WHERE p.name = NEW.pipeline AND p.dlt ON CONFLICT DO NOTHING;
    RETURN NULL;
END
$$;
CREATE TRIGGER dead_dlt AFTER INSERT ON outbox.dead FOR EACH ROW WHEN (NEW.state = 'dead') EXECUTE FUNCTION outbox.dead_dlt();
CREATE TRIGGER dead_dlt_again AFTER UPDATE OF state ON outbox.dead FOR EACH ROW
    WHEN (NEW.state = 'dead' AND OLD.state IS DISTINCT FROM 'dead') EXECUTE FUNCTION outbox.dead_dlt();

CREATE FUNCTION outbox.dead_no_dlt() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM outbox.dlt WHERE pipeline = OLD.pipeline AND n = OLD.n;
    RETURN NULL;
END
$$;
CREATE TRIGGER dead_no_dlt AFTER UPDATE OF state ON outbox.dead FOR EACH ROW
    WHEN (NEW.state <> 'dead' AND OLD.state = 'dead') EXECUTE FUNCTION outbox.dead_no_dlt();
CREATE TRIGGER dead_gone_no_dlt AFTER DELETE ON outbox.dead FOR EACH ROW
    WHEN (OLD.state = 'dead') EXECUTE FUNCTION outbox.dead_no_dlt();
