# SPDX-License-Identifier: Apache-2.0
"""test_profile_farmwise - an EF Core table through the relay, with status as text and as integers."""

import uuid

import pytest

from helpers import ROOT, wait_until
from profiles import FILE, REFUSE, Profile

NAME = "FarmManagement.Fields.FieldCreated, FarmManagement.Domain, Version=1.0.0.0, Culture=neutral, PublicKeyToken=null"
TEXT = ("Pending", "Processing", "Processed", "Failed")
NUMBERS = (0, 1, 2, 3)
FAST = "    retry: {first: 50ms, max: 50ms}"
POLL = "poll_max: 100ms"


def table(numbers):
    sql = (ROOT / "schema" / "profiles" / "farmwise.sql").read_text()
    if numbers:
        sql = sql.replace("\"Status\" text NOT NULL DEFAULT 'Pending'", '"Status" int NOT NULL DEFAULT 0')
        sql = sql.replace("('Pending', 'Processing')", "(0, 1)")
    return sql


def insert(db, payload='{"FieldId": 1}', status=None, name=NAME):
    event = str(uuid.uuid4())
    if status is None:
        db.sql('insert into "OutboxMessage" ("Id", "EventType", "Payload") values (%s, %s, %s)', event, name, payload)
    else:
        db.sql('insert into "OutboxMessage" ("Id", "EventType", "Payload", "Status") values (%s, %s, %s, %s)', event, name, payload, status)
    return event


def row(db, event):
    return db.sql('select "Status", "ProcessedAt" is not null, "RetryCount", "Error" from "OutboxMessage" where "Id" = %s', event)[0]


def wait_status(p, event, status):
    p.wait('select "Status" from "OutboxMessage" where "Id" = %s', event, want=status)


@pytest.mark.parametrize("states", [TEXT, NUMBERS], ids=["text", "integers"])
def test_every_transition(outbox, db, states):
    pending, _, processed, failed = states
    p = Profile(outbox, db, "farmwise", REFUSE, more=FAST, source=POLL, ddl=table(states is NUMBERS))
    p.refuse("retry Farm.Bad")
    good, bad, broken = insert(db), insert(db, name="Farm.Bad, Farm"), insert(db, payload="{nope")
    relay = p.start()
    wait_status(p, good, processed)
    assert row(db, good) == (processed, True, 0, None)
    wait_status(p, broken, failed)
    assert row(db, broken)[2] == 0 and "not valid JSON" in row(db, broken)[3], "at once, without a retry"
    wait_status(p, bad, failed)
    assert row(db, bad)[2] == 3 and "refused" in row(db, bad)[3]
    assert len(wait_until(lambda: len(p.dead()) == 2 and p.dead(), 10)) == 2
    p.refuse()
    outbox.run("dead", "retry", bad, "--yes")
    wait_status(p, bad, processed)
    assert row(db, bad)[:3] == (processed, True, 0)
    # by SQL: the status alone says that it waits again
    db.sql('update "OutboxMessage" set "Status" = %s, "Payload" = %s where "Id" = %s', pending, "{}", broken)
    wait_status(p, broken, processed)
    # and one whose attempts were spent begins anew: it fails three times more before it is Failed again
    p.refuse("retry Farm.Bad")
    spent = insert(db, name="Farm.Bad, Farm")
    wait_status(p, spent, failed)
    wait_until(lambda: len(p.dead()) == 1, 10)
    assert row(db, spent)[2] == 3
    first = db.one("select at from outbox.dead where ref = %s and state = 'dead'", spent)
    db.sql('update "OutboxMessage" set "Status" = %s where "Id" = %s', pending, spent)
    again = "select history from outbox.dead where ref = %s and state = 'dead' and at > %s"
    ((history,),) = wait_until(lambda: db.sql(again, spent, first), 20, "dead once more")
    assert [h["attempt"] for h in history] == [1, 2, 3, 1, 2, 3]
    assert row(db, spent)[0] == failed and row(db, spent)[2] == 3
    p.refuse()
    db.sql('update "OutboxMessage" set "Status" = %s where "Id" = %s', pending, spent)
    wait_status(p, spent, processed)
    assert row(db, spent)[:3] == (processed, True, 0)
    assert not p.dead()
    assert relay.stop() == 0


def test_a_retry_goes_back_to_pending_and_waits_ten_seconds(outbox, db):
    p = Profile(outbox, db, "farmwise", REFUSE, source=POLL)
    p.refuse("retry Farm.Bad")
    bad = insert(db, name="Farm.Bad, Farm")
    relay = p.start()
    p.wait('select "RetryCount" from "OutboxMessage" where "Id" = %s', bad, want=1)
    assert row(db, bad) == ("Pending", False, 1, None)
    wait = db.one("select extract(epoch from due_at - parked_at)::float8 from outbox.parked where ref = %s", bad)
    assert 9.5 < wait <= 10.01, "fixed, no jitter"
    assert relay.stop() == 0
    assert row(db, bad) == ("Pending", False, 1, None)


@pytest.mark.parametrize("states", [TEXT, NUMBERS], ids=["text", "integers"])
def test_orphaned_processing_rows(outbox, db, states):
    """Rows that a worker left as Processing are published by whoever comes next."""
    _, processing, processed, _ = states
    p = Profile(outbox, db, "farmwise", source=POLL, ddl=table(states is NUMBERS))
    orphans = [insert(db, status=processing) for _ in range(3)]
    outbox.run("run", "--once")
    assert {row(db, e)[0] for e in orphans} == {processed}
    assert len(p.lines()) == 3


def test_claims_are_shown_and_taken_back_while_the_sink_is_down(outbox, db):
    p = Profile(outbox, db, "farmwise", "{type: file, path: gone/events.jsonl}", source=POLL)
    events = [insert(db) for _ in range(5)]
    relay = p.start()
    seen = set()

    def both():
        seen.update(r[0] for r in db.sql('select distinct "Status" from "OutboxMessage"'))
        return "sink.down" in relay.err and seen >= {"Pending"} and {row(db, e)[0] for e in events} == {"Pending"}

    wait_until(both, 20, "back to Pending")
    assert {row(db, e)[2] for e in events} == {0}, "an outage spends no attempt"
    outbox.path("gone").mkdir()
    for e in events:
        wait_status(p, e, "Processed")
    assert relay.stop() == 0


def test_a_retried_row_is_claimed_and_given_back(outbox, db):
    p = Profile(outbox, db, "farmwise", REFUSE, source=POLL, more="    retry: {first: 300ms, max: 300ms}")
    p.refuse("retry Farm.Bad")
    bad = insert(db, name="Farm.Bad, Farm")
    relay = p.start()
    p.wait('select "RetryCount" from "OutboxMessage" where "Id" = %s', bad, want=1)
    relay.kill()
    # the next attempt takes a minute: claimed while it lasts, Pending again when the relay stops
    p.config('{type: "null", latency_us: 60000000}', source=POLL, more="    grace: 300ms")
    relay = p.start()
    wait_status(p, bad, "Processing")
    relay.stop()
    assert row(db, bad)[:3] == ("Pending", False, 1)


def test_a_killed_owner_leaves_processing_rows_for_the_next(outbox, db):
    p = Profile(outbox, db, "farmwise", '{type: "null", latency_us: 60000000}', source=POLL)
    events = [insert(db) for _ in range(5)]
    relay = p.start()
    for e in events:
        wait_status(p, e, "Processing")
    relay.kill()
    assert {row(db, e)[0] for e in events} == {"Processing"}
    p.config(FILE, source=POLL)
    relay = p.start()
    for e in events:
        wait_status(p, e, "Processed")
    assert sorted(m["id"] for m in p.lines()) == sorted(events)
    assert relay.stop() == 0


def test_a_clean_stop_leaves_nothing_claimed(outbox, db):
    p = Profile(outbox, db, "farmwise", '{type: "null", latency_us: 60000000}', source=POLL, more="    grace: 500ms")
    events = [insert(db) for _ in range(5)]
    relay = p.start()
    for e in events:
        wait_status(p, e, "Processing")
    relay.stop()
    assert {row(db, e)[:3] for e in events} == {("Pending", False, 0)}


def test_rows_held_for_too_long_are_reported(outbox, db):
    p = Profile(outbox, db, "farmwise", '{type: "null", latency_us: 60000000}', source=POLL + ", mapping: {claim_stuck: 1s}")
    insert(db)
    relay = p.start()
    wait_until(lambda: "source.stuck" in relay.err and "rows=1" in relay.err, 20)
    relay.kill()
