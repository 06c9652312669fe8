-- Events that are settled ahead of the cursor: they are not delivered again after a stop or a crash.
ALTER TABLE outbox_cursor ADD COLUMN ahead BLOB;                        -- NULL: none; the format is in src/source/ahead.c
ALTER TABLE outbox_cursor ADD COLUMN ahead_n INTEGER NOT NULL DEFAULT 0; -- how many
