-- Who may do what. outbox_writer: an application's role, it may emit and nothing else. outbox_relay: the relay's role.
-- outbox_operator: looks at everything, pauses, retries and discards dead events. None can log in: grant them to those who do.
-- Roles belong to the whole cluster, so they may be there already; who may not create roles does without them and calls
-- outbox.grant_to(...) for roles of his own. This is no migration but run behind each: it sees every function and table.
DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['outbox_writer', 'outbox_relay', 'outbox_operator'] LOOP
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

-- What a table of another kind than the native one needs is granted by its own page of the documentation.
CREATE OR REPLACE FUNCTION outbox.grant_to(writer text, relay text, operator text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    f record;
BEGIN
    FOR f IN SELECT DISTINCT r FROM unnest(ARRAY[writer, relay, operator]) AS r WHERE r IS NOT NULL LOOP
        EXECUTE format('GRANT USAGE ON SCHEMA outbox TO %I', f.r);
    END LOOP;
    FOR f IN SELECT p.oid::regprocedure AS name, g.to_whom FROM pg_proc AS p,
                 (VALUES (writer, ARRAY['emit', 'emit_many', 'emit_batch', 'has_event', 'set_context', 'pressure', 'pending', 'admit', 'gen_id']),
                         (relay, ARRAY['rekey', 'settled', 'unpack', 'maintain', 'adopt', 'reshard', 'move_slots', 'pending', 'publish',
                             'is_relay', 'shard_holder', 'writer_open', 'month_bounds', 'month_table', 'months_missing',
                             'month_default_used', 'months_ahead']),
                         (operator, ARRAY['rekey', 'settled', 'unpack', 'pending', 'pressure', 'writer_open', 'month_bounds',
                             'month_table', 'months_missing', 'month_default_used'])) AS g(to_whom, names)
             WHERE p.pronamespace = 'outbox'::regnamespace AND p.proname = ANY (g.names) AND g.to_whom IS NOT NULL LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', f.name, f.to_whom);
    END LOOP;
    IF relay IS NOT NULL THEN
        EXECUTE format('GRANT SELECT ON outbox.meta, outbox.part, outbox.event, outbox.event_default, outbox.events, '
            'outbox.event_seq_seq TO %I', relay);
        EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON outbox.cursor, outbox.past, outbox.pipeline, outbox.parked, '
            'outbox.parked_key, outbox.dead, outbox.dlt TO %I', relay);
    END IF;
    IF operator IS NOT NULL THEN
        EXECUTE format('GRANT SELECT ON ALL TABLES IN SCHEMA outbox TO %I', operator);
        EXECUTE format('GRANT SELECT ON outbox.event_seq_seq TO %I', operator);
        EXECUTE format('GRANT INSERT, UPDATE ON outbox.pipeline TO %I', operator);
        EXECUTE format('GRANT INSERT ON outbox.parked TO %I', operator);
        EXECUTE format('GRANT INSERT, UPDATE, DELETE ON outbox.parked_key TO %I', operator);
        EXECUTE format('GRANT UPDATE ON outbox.dead TO %I', operator);
        EXECUTE format('GRANT DELETE ON outbox.dlt TO %I', operator);
    END IF;
END
$$;

-- A function that forgot where pg_temp belongs.
DO $$
DECLARE
    f regprocedure;
BEGIN
    FOR f IN SELECT p.oid FROM pg_proc AS p WHERE p.pronamespace = 'outbox'::regnamespace
             AND p.proconfig @> '{search_path=pg_catalog}' LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path = pg_catalog, pg_temp', f);
    END LOOP;
END
$$;

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA outbox FROM PUBLIC;
REVOKE ALL ON SCHEMA outbox FROM PUBLIC;
SELECT outbox.grant_to((SELECT rolname FROM pg_roles WHERE rolname = 'outbox_writer'),
    (SELECT rolname FROM pg_roles WHERE rolname = 'outbox_relay'), (SELECT rolname FROM pg_roles WHERE rolname = 'outbox_operator'));
