-- What a writer may put into an event: sizes for all writers, and names for each role.

-- Limits in bytes, 0: none; below 1024 they count as 1024, so that small events cost no query. Checked by emit(), emit_many() and
-- emit_batch(), where the writer sees the error; the relay has limits of its own for rows that were inserted directly.
INSERT INTO outbox.meta (name, value) VALUES
    ('max_text_bytes', '65536'),       -- each of type, aggregate_type, aggregate_id, key, tenant and topic
    ('max_json_bytes', '1048576')      -- each of headers and metadata
ON CONFLICT (name) DO NOTHING;

CREATE FUNCTION outbox.check_sizes(type text, aggregate_type text, aggregate_id text, key text,
    tenant text, topic text, headers json, metadata json) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    text_max bigint := (SELECT greatest(m.value::bigint, 1024) FROM outbox.meta AS m WHERE m.name = 'max_text_bytes' AND m.value <> '0');
    json_max bigint := (SELECT greatest(m.value::bigint, 1024) FROM outbox.meta AS m WHERE m.name = 'max_json_bytes' AND m.value <> '0');
    bad record;
BEGIN
    SELECT c.name, c.size, c.setting, c.lim INTO bad FROM (VALUES
        ('type', octet_length(type), 'max_text_bytes', text_max),
        ('aggregate_type', octet_length(aggregate_type), 'max_text_bytes', text_max),
        ('aggregate_id', octet_length(aggregate_id), 'max_text_bytes', text_max),
        ('key', octet_length(key), 'max_text_bytes', text_max),
        ('tenant', octet_length(tenant), 'max_text_bytes', text_max),
        ('topic', octet_length(topic), 'max_text_bytes', text_max),
        ('headers', octet_length(headers::text), 'max_json_bytes', json_max),
        ('metadata', octet_length(metadata::text), 'max_json_bytes', json_max)) AS c(name, size, setting, lim)
        WHERE c.size > c.lim LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'outbox: % has % bytes, the limit is %', bad.name, bad.size, bad.lim USING ERRCODE = 'program_limit_exceeded',
            HINT = format('Large data belongs into the payload. The limit is the row %s of outbox.meta; the relay has its own (limits).',
                bad.setting);
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION outbox.put(type text, payload bytea, payload_kind "char", aggregate_type text, aggregate_id text, key text,
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
        tenant := coalesce(tenant, stamped ->> 'tenantId');
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
    IF greatest(octet_length(type), octet_length(aggregate_type), octet_length(aggregate_id), octet_length(key), octet_length(tenant),
            octet_length(topic), octet_length(headers::text), octet_length(stamped::text)) > 1024 THEN -- else no limit is near
        PERFORM outbox.check_sizes(type, aggregate_type, aggregate_id, key, tenant, topic, headers, stamped);
    END IF;
    IF serialize THEN
        PERFORM pg_advisory_xact_lock(hashtextextended(coalesce(nullif(key, ''), aggregate_id, ''), 7305));
    END IF;
    PERFORM pg_current_xact_id();
    INSERT INTO outbox.event (id, type, aggregate_type, aggregate_id, key, tenant, topic, payload, payload_kind, headers, metadata,
        entity_version, schema_version, max_attempts)
    VALUES (made, type, coalesce(aggregate_type, ''), coalesce(aggregate_id, ''), key, tenant, topic, payload,
        payload_kind, headers, stamped, entity_version, schema_version, max_attempts);
    RETURN made;
END
$$;

CREATE OR REPLACE FUNCTION outbox.emit_batch(types text[], payloads bytea[] DEFAULT NULL, kinds text[] DEFAULT NULL,
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
    PERFORM outbox.check_sizes(e.type, e.aggregate_type, e.aggregate_id, e.key, e.tenant, e.topic, e.h, e.m)
        FROM (SELECT u.type, u.aggregate_type, u.aggregate_id, u.key, u.topic, u.h,
                  CASE WHEN stamps THEN outbox.stamp(u.m) ELSE u.m END AS m,
                  coalesce(u.tenant, u.m ->> 'tenantId', CASE WHEN stamps THEN current_setting('outbox.context')::json ->> 'tenantId' END)
                      AS tenant
              FROM unnest(types, aggregate_types, aggregate_ids, keys, tenants, topics, headers, metadata)
                  AS u(type, aggregate_type, aggregate_id, key, tenant, topic, h, m)) AS e
        WHERE greatest(octet_length(e.type), octet_length(e.aggregate_type), octet_length(e.aggregate_id), octet_length(e.key),
                octet_length(e.tenant), octet_length(e.topic), octet_length(e.h::text), octet_length(e.m::text)) > 1024;
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

-- Who may write what. Empty: every role that may emit may use any tenant, topic and key. Once there is a row, an event is accepted only
-- if a row of the writer's role (or of a role that it is a member of) matches all of it; superusers and the owner of the schema are
-- exempt. Globs: * any characters, ? one; NULL: anything. An event without a topic passes `topics`: the relay's routes choose its topic.
CREATE TABLE outbox.writer (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    role name NOT NULL,
    tenant text,
    topics text[],
    keys text[]                -- of the key, or of aggregate_id where there is no key
);

CREATE FUNCTION outbox.matches(value text, globs text[]) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    SELECT globs IS NULL OR EXISTS (SELECT 1 FROM unnest(globs) AS g WHERE value LIKE
        replace(replace(replace(replace(replace(g, '\', '\\'), '%', '\%'), '_', '\_'), '*', '%'), '?', '_'))
$$;

-- The writer is the role that logged in, or the one that SET ROLE chose: both are checked by the server and survive functions that run
-- with other rights, in which current_user is their owner.
CREATE FUNCTION outbox.check_writer() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    me name := CASE current_setting('role') WHEN 'none' THEN session_user ELSE current_setting('role')::name END;
    event_key text := coalesce(nullif(NEW.key, ''), NEW.aggregate_id);
    fit record;
BEGIN
    IF me = current_user OR (SELECT r.rolsuper FROM pg_roles AS r WHERE r.rolname = me) THEN
        RETURN NEW;
    END IF;
    SELECT count(*) AS n, bool_or(t.tenant AND t.topic AND t.key) AS fits, bool_or(t.tenant) AS tenant, bool_or(t.topic) AS topic,
        bool_or(t.key) AS key INTO fit
        FROM (SELECT outbox.matches(coalesce(NEW.tenant, ''), ARRAY[w.tenant]) OR w.tenant IS NULL AS tenant,
                  NEW.topic IS NULL OR NEW.topic = '' OR outbox.matches(NEW.topic, w.topics) AS topic,
                  outbox.matches(event_key, w.keys) AS key
              FROM outbox.writer AS w JOIN pg_roles AS r ON r.rolname = w.role WHERE pg_has_role(me, r.oid, 'MEMBER')) AS t;
    IF fit.fits THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'outbox: role % may not write %', quote_ident(me),
        CASE WHEN fit.n = 0 THEN 'events: it has no row in outbox.writer'
             WHEN NOT fit.tenant THEN format('tenant %L', left(NEW.tenant, 200))
             WHEN NOT fit.topic THEN format('topic %L', left(NEW.topic, 200))
             WHEN NOT fit.key THEN format('key %L', left(event_key, 200))
             ELSE format('tenant %L, topic %L and key %L in one event', left(NEW.tenant, 200), left(NEW.topic, 200), left(event_key, 200))
        END
        USING ERRCODE = 'insufficient_privilege', HINT = format('An administrator can allow it: INSERT INTO outbox.writer (role, tenant, '
            'topics, keys) VALUES (%L, ...); or change a row of that role.', me);
END
$$;

-- The trigger exists only while outbox.writer has rows: an empty table costs writers nothing. The lock is held until the end of the
-- transaction, so that of two that add and remove rows the second sees what the first has committed.
CREATE FUNCTION outbox.switch_writer() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    there boolean;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'outbox: outbox.writer is changed in a transaction of isolation READ COMMITTED only'
            USING ERRCODE = 'feature_not_supported';
    END IF;
    LOCK TABLE outbox.guard IN SHARE UPDATE EXCLUSIVE MODE;
    there := EXISTS (SELECT 1 FROM pg_trigger AS t WHERE t.tgrelid = 'outbox.event'::regclass AND t.tgname = 'event_writer');
    IF EXISTS (SELECT 1 FROM outbox.writer) THEN
        IF NOT there THEN
            CREATE TRIGGER event_writer BEFORE INSERT ON outbox.event FOR EACH ROW EXECUTE FUNCTION outbox.check_writer();
        END IF;
    ELSIF there THEN
        DROP TRIGGER event_writer ON outbox.event;
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER writer_switch AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON outbox.writer
    FOR EACH STATEMENT EXECUTE FUNCTION outbox.switch_writer();

-- True if rows of outbox.writer are not enforced. For `check`, whose role cannot read the table.
CREATE FUNCTION outbox.writer_open() RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (SELECT 1 FROM outbox.writer) AND NOT EXISTS (SELECT 1 FROM pg_trigger AS t
        WHERE t.tgrelid = 'outbox.event'::regclass AND t.tgname = 'event_writer')
$$;
