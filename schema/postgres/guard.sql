-- Runs before every migration, however migrations are applied. Functions of the schema outbox run with the rights of their owner,
-- and the owner of a schema can replace what is in it: a schema, table, type or function that another role made beforehand would
-- give that role the rights of the role that applies the migration.
SET LOCAL search_path = pg_catalog, pg_temp;
DO $$
DECLARE
    me oid := (SELECT r.oid FROM pg_roles AS r WHERE r.rolname = current_user);
    outbox oid := (SELECT n.oid FROM pg_namespace AS n WHERE n.nspname = 'outbox');
    bad record;
BEGIN
    SELECT o.* INTO bad FROM (
        SELECT 'schema' AS kind, 'outbox' AS name, n.nspowner AS owner FROM pg_namespace AS n WHERE n.oid = outbox
        UNION ALL SELECT 'relation', c.oid::regclass::text, c.relowner FROM pg_class AS c WHERE c.relnamespace = outbox
        UNION ALL SELECT 'function', p.oid::regprocedure::text, p.proowner FROM pg_proc AS p WHERE p.pronamespace = outbox
        UNION ALL SELECT 'type', t.oid::regtype::text, t.typowner FROM pg_type AS t WHERE t.typnamespace = outbox) AS o
        WHERE o.owner <> me LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'outbox: the % % belongs to role %, and role % applies the migration', bad.kind, bad.name,
            quote_ident(pg_get_userbyid(bad.owner)), quote_ident(current_user) USING ERRCODE = 'insufficient_privilege',
            HINT = format('If role %1$I owns the outbox on purpose, apply the migration as that role (SET ROLE %1$I). '
                'Otherwise it could run code with your rights: drop or rename what it made.', pg_get_userbyid(bad.owner));
    END IF;
    SELECT pg_get_userbyid(a.grantee) AS name, a.grantee INTO bad FROM pg_namespace AS n, aclexplode(n.nspacl) AS a
        WHERE n.oid = outbox AND a.privilege_type = 'CREATE' AND a.grantee <> n.nspowner LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'outbox: role % may create objects in the schema outbox',
            CASE bad.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(bad.name) END USING ERRCODE = 'insufficient_privilege',
            HINT = format('REVOKE CREATE ON SCHEMA outbox FROM %s;', CASE bad.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(bad.name) END);
    END IF;
END
$$;
