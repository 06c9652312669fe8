-- As before, with the locks in the order in which writers take them: the table, then its partitions. DROP TRIGGER locks the partitions
-- first, and a writer that had the table and waited for its partition was in a deadlock with it.
CREATE OR REPLACE FUNCTION outbox.switch_writer() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '3s' AS $$
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
            LOCK TABLE outbox.event IN SHARE ROW EXCLUSIVE MODE;
            CREATE TRIGGER event_writer BEFORE INSERT ON outbox.event FOR EACH ROW EXECUTE FUNCTION outbox.check_writer();
        END IF;
    ELSIF there THEN
        LOCK TABLE outbox.event IN ACCESS EXCLUSIVE MODE;
        DROP TRIGGER event_writer ON outbox.event;
    END IF;
    RETURN NULL;
EXCEPTION WHEN lock_not_available THEN
    RAISE EXCEPTION 'outbox: outbox.event is in use by an open transaction' USING ERRCODE = 'lock_not_available',
        HINT = 'Try again, or end the session: SELECT pid, usename, xact_start FROM pg_stat_activity ORDER BY xact_start.';
END
$$;
