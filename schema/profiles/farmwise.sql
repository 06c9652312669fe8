-- farmwise: the table as EF Core makes it (status as text), for a user who has none, and the index that the relay reads by.
CREATE TABLE "OutboxMessage" (
    "Id" uuid PRIMARY KEY,
    "EventType" text NOT NULL,
    "Payload" text NOT NULL,
    "Status" text NOT NULL DEFAULT 'Pending',
    "CreatedAt" timestamptz NOT NULL DEFAULT now(),
    "ProcessedAt" timestamptz,
    "RetryCount" int NOT NULL DEFAULT 0,
    "Error" text
);
CREATE INDEX "IX_OutboxMessage_Pending" ON "OutboxMessage" ("CreatedAt") WHERE "Status" IN ('Pending', 'Processing');
