# SPDX-License-Identifier: Apache-2.0
"""test_profile_extremes - values at the ends of their types in a table of another system: the row is delivered or dead, and neither the
other rows nor the commands suffer."""

import uuid

import pytest

from profiles import REFUSE, Profile

POLL = "poll_max: 50ms"


def insert(db, name, created="2026-01-02 03:04:05+00", attempts=0):
    event = str(uuid.uuid4())
    db.sql('insert into "OutboxMessage" ("Id", "EventType", "Payload", "CreatedAt", "RetryCount") values (%s, %s, \'{}\', %s, %s)',
           event, name, created, attempts)
    return event


@pytest.mark.parametrize("created", ["infinity", "-infinity", "294276-12-31 23:59:59+00", "4713-01-01 00:00:00+00 BC"])
def test_times(outbox, db, created):
    p = Profile(outbox, db, "farmwise", REFUSE, source=POLL)
    p.refuse("retry Farm.Bad")
    bad = insert(db, "Farm.Bad", created)
    assert outbox.json("status", "--json")[0]["pending"] == 1
    assert [e["id"] for e in outbox.json("events", "--json")] == [bad]
    relay = p.start()
    p.wait('select "RetryCount" from "OutboxMessage" where "Id" = %s', bad, want=1)
    good = insert(db, "Farm.Good")
    p.wait('select "Status" from "OutboxMessage" where "Id" = %s', good, want="Processed")
    assert relay.stop() == 0, relay.err[-2000:]


@pytest.mark.parametrize("kind, attempts", [("int", 2147483647), ("int", -2147483648), ("smallint", 32767), ("bigint", (1 << 63) - 1)])
def test_attempts(outbox, db, kind, attempts):
    """The relay adds to a number that a writer chose: at its end it stays."""
    p = Profile(outbox, db, "farmwise", REFUSE, source=POLL + ", mapping: {dead_attempts: 0}")
    db.sql(f'alter table "OutboxMessage" alter "RetryCount" type {kind}')
    p.refuse("retry Farm.Bad")
    bad = insert(db, "Farm.Bad", attempts=attempts)
    relay = p.start()
    p.wait("select count(*) from outbox.parked p full join outbox.dead d using (ref) where ref = %s", bad, want=1)
    good = insert(db, "Farm.Good")
    p.wait('select "Status" from "OutboxMessage" where "Id" = %s', good, want="Processed")
    assert db.one('select "RetryCount" from "OutboxMessage" where "Id" = %s', bad) == min(attempts + 1, abs(attempts))
    assert relay.stop() == 0, relay.err[-2000:]
