-- Tables of other systems that are partitioned by month (profile orion): partitions are created ahead of the writers, and no writer
-- waits for it. Everything runs with the rights of the role that calls it: the relay's role must be a member of the table's owner.

-- The partitions of a table by their bounds; those without two finite bounds are left out.
CREATE FUNCTION outbox.month_bounds(tab oid, OUT part oid, OUT lo timestamptz, OUT hi timestamptz) RETURNS SETOF record
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO' AS $$
    SELECT c.oid, b.m[1]::timestamptz, b.m[2]::timestamptz FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid,
        regexp_match(pg_get_expr(c.relpartbound, c.oid), '^FOR VALUES FROM \(''([^'']+)''\) TO \(''([^'']+)''\)$') AS b(m)
    WHERE i.inhparent = tab AND b.m IS NOT NULL
$$;

-- A table that is partitioned by month: its column, the time zone in which its partitions begin and end with a month (UTC, or that of
-- the database), and its default partition. zone NULL: it is not such a table, and nothing is done to it.
CREATE FUNCTION outbox.month_table(tab oid, OUT zone text, OUT col name, OUT fallback oid)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    last record;
    z text;
BEGIN
    SELECT a.attname, nullif(p.partdefid, 0) INTO col, fallback FROM pg_partitioned_table AS p
        JOIN pg_attribute AS a ON a.attrelid = p.partrelid AND a.attnum = p.partattrs[0]
        WHERE p.partrelid = tab AND p.partstrat = 'r' AND p.partnatts = 1 AND a.atttypid = 'timestamptz'::regtype;
    IF NOT FOUND OR EXISTS (SELECT 1 FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
            WHERE i.inhparent = tab AND pg_get_expr(c.relpartbound, c.oid) LIKE '%MAXVALUE%') THEN
        RETURN;
    END IF;
    SELECT b.lo, b.hi INTO last FROM outbox.month_bounds(tab) AS b ORDER BY b.hi DESC LIMIT 1;
    FOR z IN SELECT 'UTC' UNION ALL SELECT s.reset_val FROM pg_settings AS s WHERE s.name = 'TimeZone' LOOP
        IF zone IS NULL AND date_trunc('month', last.lo AT TIME ZONE z) = last.lo AT TIME ZONE z
                AND last.hi AT TIME ZONE z = (last.lo AT TIME ZONE z) + interval '1 month' THEN
            zone := z;
        END IF;
    END LOOP;
END
$$;

-- Months that have no partition, of this one and the next ones.
CREATE FUNCTION outbox.months_missing(tab oid, months integer, OUT lo timestamptz, OUT hi timestamptz, OUT name text)
RETURNS SETOF record
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT w.lo, w.hi, left(c.relname, 55) || w.suffix FROM outbox.month_table(tab) AS t
        JOIN pg_class AS c ON c.oid = tab,
        LATERAL (SELECT m.at AT TIME ZONE t.zone AS lo, (m.at + interval '1 month') AT TIME ZONE t.zone AS hi, to_char(m.at, '_YYYY_MM')
            AS suffix FROM generate_series(0, months) AS i, LATERAL (SELECT date_trunc('month', now() AT TIME ZONE t.zone)
                + make_interval(months => i)) AS m(at)) AS w
    WHERE t.zone IS NOT NULL AND NOT EXISTS (SELECT 1 FROM outbox.month_bounds(tab) AS b WHERE b.lo < w.hi AND b.hi > w.lo)
    ORDER BY w.lo
$$;

-- Whether the default partition has rows: months whose rows it has cannot be given a partition. Without the right to read it by
-- itself, whether it has ever had some.
CREATE FUNCTION outbox.month_default_used(tab oid) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    fallback oid := (SELECT t.fallback FROM outbox.month_table(tab) AS t WHERE t.zone IS NOT NULL);
    used boolean := false;
BEGIN
    IF fallback IS NULL THEN
        RETURN false;
    ELSIF NOT has_table_privilege(fallback, 'SELECT') THEN
        RETURN pg_relation_size(fallback) > 0;
    END IF;
    EXECUTE format('SELECT EXISTS (SELECT 1 FROM ONLY %s)', fallback::regclass) INTO used;
    RETURN used;
END
$$;

-- Creates one partition that is missing, in a transaction of its own; the relay calls it until it gives NULL. The partition is
-- created as a table with its bounds as a constraint and then attached, under SHARE UPDATE EXCLUSIVE, which no writer notices. The
-- default partition is locked and read meanwhile: not if it is large, and for 50 ms at most. A month whose rows are in it is passed over.
CREATE FUNCTION outbox.months_ahead(tab oid, months integer DEFAULT 3) RETURNS text
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms' SET client_min_messages = warning AS $$
DECLARE
    own record;
    miss record;
BEGIN
    SELECT t.*, n.nspname, c.relowner, n.oid AS space INTO own FROM outbox.month_table(tab) AS t, pg_class AS c
        JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = tab AND t.zone IS NOT NULL;
    IF NOT FOUND OR (own.fallback IS NOT NULL AND pg_relation_size(own.fallback) > 8388608) THEN
        RETURN NULL;
    END IF;
    FOR miss IN SELECT m.* FROM outbox.months_missing(tab, months) AS m LOOP
        IF NOT pg_has_role(own.relowner, 'USAGE') OR NOT has_schema_privilege(own.space, 'CREATE') THEN
            RAISE EXCEPTION 'role % may not create partitions of %', quote_ident(current_user), tab::regclass
                USING ERRCODE = 'insufficient_privilege', HINT = '`outbox check` has the statement.';
        END IF;
        CONTINUE WHEN to_regclass(format('%I.%I', own.nspname, miss.name)) IS NOT NULL;
        BEGIN
            EXECUTE format('CREATE TABLE %1$I.%2$I (LIKE %3$s INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING GENERATED INCLUDING '
                'STORAGE, CONSTRAINT month_bounds CHECK (%4$I IS NOT NULL AND %4$I >= %5$L AND %4$I < %6$L))',
                own.nspname, miss.name, tab::regclass, own.col, miss.lo, miss.hi);
            IF NOT EXISTS (SELECT 1 FROM pg_roles AS r WHERE r.oid = own.relowner AND r.rolname = current_user) THEN
                EXECUTE format('ALTER TABLE %I.%I OWNER TO %I', own.nspname, miss.name, pg_get_userbyid(own.relowner));
            END IF;
            EXECUTE format('ALTER TABLE %s ATTACH PARTITION %I.%I FOR VALUES FROM (%L) TO (%L)', tab::regclass, own.nspname, miss.name,
                miss.lo, miss.hi);
            EXECUTE format('ALTER TABLE %I.%I DROP CONSTRAINT month_bounds', own.nspname, miss.name);
            RETURN format('created partition %I.%I', own.nspname, miss.name);
        EXCEPTION WHEN check_violation THEN
            NULL; -- the default partition has rows of this month
        WHEN lock_not_available OR deadlock_detected THEN
            RETURN NULL;
        END;
    END LOOP;
    RETURN NULL;
END
$$;
