-- Version 3. The rules that assign events to the shards of a pipeline: a fingerprint of the key expressions in its routes. When they
-- change, all shards start again from the position of the slowest.

ALTER TABLE outbox_pipeline ADD COLUMN key_rules INTEGER;   -- NULL: not known
