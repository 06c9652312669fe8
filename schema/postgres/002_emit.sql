-- The write side: outbox.emit(...) and what belongs to it. All of it runs inside the caller's transaction and never executes
-- NOTIFY, which would serialise commits and forbid two-phase commit.

-- Who and why, for the rest of the transaction; stamped into the metadata of every event. Names that are left out are unset.
CREATE FUNCTION outbox.set_context(tenant text DEFAULT NULL, "user" text DEFAULT NULL, correlation_id text DEFAULT NULL,
    traceparent text DEFAULT NULL, source text DEFAULT NULL) RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    SELECT set_config('outbox.context', json_strip_nulls(json_build_object('tenantId', tenant, 'userId', "user",
        'correlationId', correlation_id, 'traceparent', traceparent, 'source', source))::text, true)
$$;

-- The context's fields that the event's own metadata does not have, the time, then the event's own, unchanged.
CREATE FUNCTION outbox.stamp(own json) RETURNS json
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    context text := current_setting('outbox.context', true);
    stamped text;
    inside text;
BEGIN
    IF own IS NOT NULL AND json_typeof(own) IS DISTINCT FROM 'object' THEN
        RAISE EXCEPTION 'outbox: metadata must be a JSON object' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF context IS NULL OR context = '' THEN
        RETURN own;
    END IF;
    SELECT string_agg(to_json(c.key)::text || ':' || c.value::text, ',' ORDER BY c.place) INTO stamped
        FROM (SELECT e.key, e.value, e.place FROM json_each(context::json) WITH ORDINALITY AS e(key, value, place)
              UNION ALL
              SELECT 'timestamp', to_json(to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')), 1000) AS c
        WHERE own IS NULL OR (own -> c.key) IS NULL;
    inside := btrim(coalesce(own::text, '{}'), E' \t\r\n');
    inside := btrim(substr(inside, 2, length(inside) - 2), E' \t\r\n');
    RETURN ('{' || concat_ws(',', stamped, nullif(inside, '')) || '}')::json;
END
$$;

-- How many events are not settled yet: at least so many, by the pipeline that is furthest behind.
CREATE FUNCTION outbox.pending() RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT greatest(0, CASE WHEN s.is_called THEN s.last_value ELSE 0 END
        - coalesce((SELECT min(c.pos) FROM outbox.cursor AS c WHERE c.mode <> 'rows'), 0)) FROM outbox.event_seq_seq AS s
$$;

-- 0: nothing waits; 1: soft_limit events or more do. Cheap: nothing is counted.
CREATE FUNCTION outbox.pressure(OUT pressure double precision, OUT pending bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT least(1.0, p.n / greatest(1, (SELECT m.value::double precision FROM outbox.meta AS m WHERE m.name = 'soft_limit'))), p.n
    FROM (SELECT outbox.pending() AS n) AS p
$$;

-- For the start of a transaction, before it holds any lock: true when the pressure is below 1, waiting for it at most so long.
CREATE FUNCTION outbox.admit(wait interval DEFAULT '0') RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    until timestamptz := clock_timestamp() + wait;
BEGIN
    LOOP
        IF (SELECT p.pressure FROM outbox.pressure() AS p) < 1 THEN
            RETURN true;
        END IF;
        EXIT WHEN clock_timestamp() >= until;
        PERFORM pg_sleep(least(0.05, extract(epoch FROM until - clock_timestamp())));
    END LOOP;
    RETURN false;
END
$$;

-- emit can only refuse: a wait would hold the caller's locks.
CREATE FUNCTION outbox.check_limit() RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    hard bigint := (SELECT m.value::bigint FROM outbox.meta AS m WHERE m.name = 'hard_limit');
BEGIN
    IF hard > 0 AND outbox.pending() >= hard THEN
        RAISE EXCEPTION 'outbox: % events or more are pending, the hard limit is %', outbox.pending(), hard
            USING ERRCODE = 'configuration_limit_exceeded', HINT = 'Is the relay running? See outbox status.';
    END IF;
END
$$;

-- Writes one event. The transaction has its id before it draws a number, and the number is drawn last: under every lock that the
-- caller took before, and under the key's own lock where `serialize` asks for it.
CREATE FUNCTION outbox.put(type text, payload bytea, payload_kind "char", aggregate_type text, aggregate_id text, key text,
    id uuid, tenant text, topic text, headers json, metadata json, entity_version bigint, schema_version bigint,
    max_attempts integer, serialize boolean) RETURNS uuid
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    made uuid := coalesce(id, outbox.gen_id());
    stamped json;
BEGIN
    IF metadata IS NOT NULL OR coalesce(current_setting('outbox.context', true), '') <> '' THEN
        stamped := outbox.stamp(metadata);
    END IF;
    IF type IS NULL OR type = '' THEN
        RAISE EXCEPTION 'outbox: an event needs a type' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF headers IS NOT NULL AND json_typeof(headers) IS DISTINCT FROM 'object' THEN
        RAISE EXCEPTION 'outbox: headers must be a JSON object' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF EXISTS (SELECT 1 FROM outbox.meta AS m WHERE m.name = 'hard_limit' AND m.value <> '0') THEN
        PERFORM outbox.check_limit();
    END IF;
    IF serialize THEN
        PERFORM pg_advisory_xact_lock(hashtextextended(coalesce(nullif(key, ''), aggregate_id, ''), 7305));
    END IF;
    PERFORM pg_current_xact_id();
    INSERT INTO outbox.event (id, type, aggregate_type, aggregate_id, key, tenant, topic, payload, payload_kind, headers, metadata,
        entity_version, schema_version, max_attempts)
    VALUES (made, type, coalesce(aggregate_type, ''), coalesce(aggregate_id, ''), key, coalesce(tenant, stamped ->> 'tenantId'),
        topic, payload, payload_kind, headers, stamped, entity_version, schema_version, max_attempts);
    RETURN made;
END
$$;

-- emit, once per type of payload. All arguments have names; only type is needed. Gives the event's id.
-- kind: json (checked), text or bytes. Text is JSON unless it says otherwise.
CREATE FUNCTION outbox.kind(kind text, usual "char") RETURNS "char"
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF kind IS NULL THEN
        RETURN usual;
    ELSIF kind IN ('json', 'text', 'bytes') THEN
        RETURN left(kind, 1)::"char";
    END IF;
    RAISE EXCEPTION 'outbox: kind is json, text or bytes, not %', kind USING ERRCODE = 'invalid_parameter_value';
END
$$;

CREATE FUNCTION outbox.emit(type text, payload text DEFAULT NULL, aggregate_type text DEFAULT '', aggregate_id text DEFAULT '',
    key text DEFAULT NULL, id uuid DEFAULT NULL, tenant text DEFAULT NULL, topic text DEFAULT NULL, headers json DEFAULT NULL,
    metadata json DEFAULT NULL, entity_version bigint DEFAULT NULL, schema_version bigint DEFAULT NULL,
    max_attempts integer DEFAULT NULL, serialize boolean DEFAULT false, kind text DEFAULT NULL) RETURNS uuid
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    k "char" := outbox.kind(kind, 'j');
BEGIN
    IF k = 'j' AND payload IS NOT NULL THEN
        PERFORM payload::json; -- bad JSON fails here, where its writer can see it
    END IF;
    RETURN outbox.put(type, convert_to(payload, 'UTF8'), k, aggregate_type, aggregate_id, key, id, tenant, topic, headers, metadata,
        entity_version, schema_version, max_attempts, serialize);
END
$$;

CREATE FUNCTION outbox.emit(type text, payload json, aggregate_type text DEFAULT '', aggregate_id text DEFAULT '',
    key text DEFAULT NULL, id uuid DEFAULT NULL, tenant text DEFAULT NULL, topic text DEFAULT NULL, headers json DEFAULT NULL,
    metadata json DEFAULT NULL, entity_version bigint DEFAULT NULL, schema_version bigint DEFAULT NULL,
    max_attempts integer DEFAULT NULL, serialize boolean DEFAULT false, kind text DEFAULT NULL) RETURNS uuid
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT outbox.put(type, convert_to(payload::text, 'UTF8'), outbox.kind(kind, 'j'), aggregate_type, aggregate_id, key, id, tenant,
        topic, headers, metadata, entity_version, schema_version, max_attempts, serialize)
$$;

CREATE FUNCTION outbox.emit(type text, payload jsonb, aggregate_type text DEFAULT '', aggregate_id text DEFAULT '',
    key text DEFAULT NULL, id uuid DEFAULT NULL, tenant text DEFAULT NULL, topic text DEFAULT NULL, headers json DEFAULT NULL,
    metadata json DEFAULT NULL, entity_version bigint DEFAULT NULL, schema_version bigint DEFAULT NULL,
    max_attempts integer DEFAULT NULL, serialize boolean DEFAULT false, kind text DEFAULT NULL) RETURNS uuid
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT outbox.put(type, convert_to(payload::text, 'UTF8'), outbox.kind(kind, 'j'), aggregate_type, aggregate_id, key, id, tenant,
        topic, headers, metadata, entity_version, schema_version, max_attempts, serialize)
$$;

CREATE FUNCTION outbox.emit(type text, payload bytea, aggregate_type text DEFAULT '', aggregate_id text DEFAULT '',
    key text DEFAULT NULL, id uuid DEFAULT NULL, tenant text DEFAULT NULL, topic text DEFAULT NULL, headers json DEFAULT NULL,
    metadata json DEFAULT NULL, entity_version bigint DEFAULT NULL, schema_version bigint DEFAULT NULL,
    max_attempts integer DEFAULT NULL, serialize boolean DEFAULT false, kind text DEFAULT NULL) RETURNS uuid
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    k "char" := outbox.kind(kind, 'b');
BEGIN
    IF k = 'j' THEN
        PERFORM convert_from(payload, 'UTF8')::json;
    ELSIF k = 't' THEN
        PERFORM convert_from(payload, 'UTF8');
    END IF;
    RETURN outbox.put(type, payload, k, aggregate_type, aggregate_id, key, id, tenant, topic, headers, metadata, entity_version,
        schema_version, max_attempts, serialize);
END
$$;

-- Many events in order: a JSON array of objects with the names of emit's arguments. A payload is any JSON value; with "kind":
-- "text" it is a string that goes as text, with "bytes" a string in base64. Gives the ids in the same order.
CREATE FUNCTION outbox.emit_many(events json, serialize boolean DEFAULT false) RETURNS SETOF uuid
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    e json;
    k "char";
    lock_key bigint;
    name text;
BEGIN
    IF json_typeof(events) IS DISTINCT FROM 'array' THEN
        RAISE EXCEPTION 'outbox: emit_many takes a JSON array' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF serialize THEN -- all of them first, and always in the same order: else two callers wait for each other
        FOR lock_key IN SELECT DISTINCT hashtextextended(coalesce(nullif(a ->> 'key', ''), a ->> 'aggregate_id', ''), 7305) AS h
                        FROM json_array_elements(events) AS a ORDER BY h LOOP
            PERFORM pg_advisory_xact_lock(lock_key);
        END LOOP;
    END IF;
    FOR e IN SELECT a FROM json_array_elements(events) WITH ORDINALITY AS t(a, i) ORDER BY i LOOP
        IF json_typeof(e) <> 'object' THEN
            RAISE EXCEPTION 'outbox: emit_many takes a JSON array of objects' USING ERRCODE = 'invalid_parameter_value';
        END IF;
        SELECT f INTO name FROM json_object_keys(e) AS f WHERE f NOT IN ('type', 'payload', 'aggregate_type', 'aggregate_id', 'key',
            'id', 'tenant', 'topic', 'headers', 'metadata', 'entity_version', 'schema_version', 'max_attempts', 'kind') LIMIT 1;
        IF name IS NOT NULL THEN
            RAISE EXCEPTION 'outbox: an event has no field %', name USING ERRCODE = 'invalid_parameter_value';
        END IF;
        k := outbox.kind(e ->> 'kind', 'j');
        RETURN NEXT outbox.put(e ->> 'type',
            CASE k WHEN 'j' THEN convert_to(nullif((e -> 'payload')::text, 'null'), 'UTF8')
                   WHEN 't' THEN convert_to(e ->> 'payload', 'UTF8')
                   ELSE decode(e ->> 'payload', 'base64') END,
            k, e ->> 'aggregate_type', e ->> 'aggregate_id', e ->> 'key', (e ->> 'id')::uuid, e ->> 'tenant', e ->> 'topic',
            CASE WHEN json_typeof(e -> 'headers') <> 'null' THEN e -> 'headers' END,
            CASE WHEN json_typeof(e -> 'metadata') <> 'null' THEN e -> 'metadata' END,
            (e ->> 'entity_version')::bigint, (e ->> 'schema_version')::bigint, (e ->> 'max_attempts')::integer, false);
    END LOOP;
END
$$;

-- Many events in order, a column of them per argument: for drivers, in one statement. What is NULL as a whole is NULL for each.
-- Gives the ids in the same order.
CREATE FUNCTION outbox.emit_batch(types text[], payloads bytea[] DEFAULT NULL, kinds text[] DEFAULT NULL,
    aggregate_types text[] DEFAULT NULL, aggregate_ids text[] DEFAULT NULL, keys text[] DEFAULT NULL, ids uuid[] DEFAULT NULL,
    tenants text[] DEFAULT NULL, topics text[] DEFAULT NULL, headers json[] DEFAULT NULL, metadata json[] DEFAULT NULL,
    entity_versions bigint[] DEFAULT NULL, schema_versions bigint[] DEFAULT NULL, max_attempts integer[] DEFAULT NULL,
    serialize boolean DEFAULT false) RETURNS uuid[]
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    made uuid[];
    lock_key bigint;
    step CONSTANT integer := 50000;
    z integer;
    stamps boolean := coalesce(current_setting('outbox.context', true), '') <> '';
BEGIN
    SELECT array_agg(coalesce(e.id, outbox.gen_id()) ORDER BY e.i) INTO made
        FROM unnest(ids, types) WITH ORDINALITY AS e(id, type, i);
    IF EXISTS (SELECT 1 FROM unnest(made, types) AS e(id, type) WHERE e.type IS NULL OR e.type = '') THEN
        RAISE EXCEPTION 'outbox: an event needs a type' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF EXISTS (SELECT 1 FROM unnest(headers) AS h WHERE json_typeof(h) <> 'object') THEN
        RAISE EXCEPTION 'outbox: headers must be a JSON object' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF EXISTS (SELECT 1 FROM unnest(metadata) AS m WHERE json_typeof(m) <> 'object') THEN
        RAISE EXCEPTION 'outbox: metadata must be a JSON object' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM outbox.kind(k, 'j') FROM (SELECT DISTINCT u AS k FROM unnest(kinds) AS u) AS d;
    PERFORM CASE coalesce(e.kind, 'json') WHEN 'json' THEN convert_from(e.payload, 'UTF8')::json::text
                                          WHEN 'text' THEN convert_from(e.payload, 'UTF8') END
        FROM unnest(payloads, kinds) AS e(payload, kind); -- a bad payload fails here, where its writer can see it
    PERFORM outbox.check_limit();
    IF serialize THEN -- all of them first, and always in the same order: else two callers wait for each other
        FOR lock_key IN SELECT DISTINCT hashtextextended(coalesce(nullif(e.key, ''), e.aggregate_id, ''), 7305) AS h
                        FROM unnest(made, keys, aggregate_ids) AS e(id, key, aggregate_id) ORDER BY h LOOP
            PERFORM pg_advisory_xact_lock(lock_key);
        END LOOP;
    END IF;
    PERFORM pg_current_xact_id();
    FOR a IN 1..coalesce(cardinality(made), 0) BY step LOOP -- no statement draws so many numbers that it runs past new partitions
    z := a + step - 1;
    INSERT INTO outbox.event (id, type, aggregate_type, aggregate_id, key, tenant, topic, payload, payload_kind, headers, metadata,
        entity_version, schema_version, max_attempts)
    SELECT e.id, e.type, coalesce(e.aggregate_type, ''), coalesce(e.aggregate_id, ''), e.key,
        coalesce(e.tenant, e.stamped ->> 'tenantId'), e.topic, e.payload, left(coalesce(e.kind, 'json'), 1)::"char",
        e.headers, e.stamped,
        e.entity_version, e.schema_version, e.max_attempts
    FROM (SELECT u.*, CASE WHEN stamps THEN outbox.stamp(u.metadata) ELSE u.metadata END AS stamped
          FROM unnest(made[a:z], types[a:z], aggregate_types[a:z], aggregate_ids[a:z], keys[a:z], tenants[a:z], topics[a:z],
                      payloads[a:z], kinds[a:z], headers[a:z], metadata[a:z], entity_versions[a:z], schema_versions[a:z],
                      max_attempts[a:z]) WITH ORDINALITY
          AS u(id, type, aggregate_type, aggregate_id, key, tenant, topic, payload, kind, headers, metadata, entity_version,
               schema_version, max_attempts, i)) AS e
    ORDER BY e.i;
    END LOOP;
    RETURN coalesce(made, '{}');
END
$$;

-- Is there an event of this id? For writers, who may not look into the table: a caller whose commit got no answer asks this.
CREATE FUNCTION outbox.has_event(id uuid) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (SELECT 1 FROM outbox.event AS e WHERE e.id = has_event.id)
$$;

-- Events as people read them: bytes in base64, everything else as text.
CREATE VIEW outbox.events AS
SELECT e.seq, e.id, e.type, e.aggregate_type, e.aggregate_id, coalesce(nullif(e.key, ''), e.aggregate_id) AS key, e.tenant, e.topic,
    CASE e.payload_kind WHEN 'j' THEN 'json' WHEN 't' THEN 'text' ELSE 'bytes' END AS kind,
    CASE e.payload_kind WHEN 'b' THEN encode(e.payload, 'base64') ELSE convert_from(e.payload, 'UTF8') END AS payload,
    e.headers, e.metadata, e.entity_version, e.schema_version, e.created_at, e.xid
FROM outbox.event AS e;
