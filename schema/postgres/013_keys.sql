-- The rules that assign events to the shards of a pipeline: a fingerprint of the key expressions in its routes. When they change, all
-- shards start again from the position of the slowest. NULL: not known.
ALTER TABLE outbox.pipeline ADD COLUMN key_rules bigint;
