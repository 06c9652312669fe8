-- Who may do what. outbox_writer: an application's role, it may emit and nothing else. outbox_relay: the relay's role. Neither can
-- log in: grant them to those who do. Roles belong to the whole cluster, so they may be there already; who may not create
-- roles does without them and grants the same by hand.
DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['outbox_writer', 'outbox_relay'] LOOP
        IF NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = name) THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', name);
            EXCEPTION WHEN duplicate_object OR unique_violation OR insufficient_privilege THEN
                NULL; -- another database's migration was faster, or we may not
            END;
        END IF;
    END LOOP;
END
$$;

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA outbox FROM PUBLIC;
REVOKE ALL ON SCHEMA outbox FROM PUBLIC;

-- What a table of another kind than the native one needs is granted by its own page of the documentation.
CREATE FUNCTION outbox.grant_to(writer text, relay text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog AS $$
DECLARE
    f regprocedure;
BEGIN
    IF writer IS NOT NULL THEN
        EXECUTE format('GRANT USAGE ON SCHEMA outbox TO %I', writer);
        FOR f IN SELECT p.oid::regprocedure FROM pg_proc AS p WHERE p.pronamespace = 'outbox'::regnamespace
                 AND p.proname IN ('emit', 'emit_many', 'emit_batch', 'has_event', 'set_context', 'pressure', 'pending', 'admit', 'gen_id') LOOP
            EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', f, writer);
        END LOOP;
    END IF;
    IF relay IS NOT NULL THEN
        EXECUTE format('GRANT USAGE ON SCHEMA outbox TO %I', relay);
        EXECUTE format('GRANT SELECT ON outbox.meta, outbox.part, outbox.event, outbox.events, outbox.event_seq_seq TO %I', relay);
        EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON outbox.cursor, outbox.past, outbox.pipeline, outbox.parked, '
            'outbox.parked_key, outbox.dead TO %I', relay);
        FOR f IN SELECT p.oid::regprocedure FROM pg_proc AS p WHERE p.pronamespace = 'outbox'::regnamespace
                 AND p.proname IN ('rekey', 'settled', 'maintain', 'adopt', 'reshard', 'pending', 'publish', 'unpack') LOOP
            EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', f, relay);
        END LOOP;
    END IF;
END
$$;
REVOKE ALL ON FUNCTION outbox.grant_to(text, text) FROM PUBLIC;

SELECT outbox.grant_to((SELECT rolname FROM pg_roles WHERE rolname = 'outbox_writer'),
    (SELECT rolname FROM pg_roles WHERE rolname = 'outbox_relay'));
