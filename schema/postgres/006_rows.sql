-- Tables of other systems: marks that changed no row because somebody else had changed it.
ALTER TABLE outbox.cursor ADD COLUMN fenced bigint NOT NULL DEFAULT 0;
