-- debezium: the table that Debezium's event router reads by default, for a user who has none. Rows may be deleted in the
-- transaction that writes them: the relay reads what was inserted.
CREATE TABLE outbox (
    id uuid PRIMARY KEY,
    aggregatetype varchar(255) NOT NULL,
    aggregateid varchar(255) NOT NULL,
    type varchar(255) NOT NULL,
    payload jsonb
);
