# SPDX-License-Identifier: Apache-2.0
"""test_profile_polyshop - a polyshop service's own table through the relay."""

import json
import uuid

import pytest

from helpers import wait_until
from profiles import REFUSE, Profile

FAST = "    retry: {first: 50ms, max: 100ms}\n    max_attempts: 3"


def insert(db, kind="order.order.placed.v1", agg="order-1", payload=None):
    event = str(uuid.uuid4())
    db.sql("insert into outbox_events (id, aggregate_id, event_type, payload) values (%s, %s, %s, %s)",
           event, agg, kind, json.dumps(payload or {"a": 1}))
    return event


def row(db, event):
    return db.sql("select processed, processed_at is not null, error_message from outbox_events where id = %s", event)[0]


def test_delivered_retried_dead_and_released(outbox, db):
    p = Profile(outbox, db, "polyshop", REFUSE, more=FAST)
    p.refuse("retry order.bad")
    bad, good = insert(db, "order.bad", "b"), insert(db)
    relay = p.start()
    p.wait("select processed from outbox_events where id = %s", good)
    assert row(db, good) == (True, True, None)
    p.wait("select error_message is not null from outbox_events where id = %s", bad)
    assert row(db, bad)[0] is False, "it stays unprocessed while it is tried"
    (dead,) = wait_until(p.dead, 20)
    assert dead["id"] == bad and dead["attempts"] == 3
    assert row(db, bad)[:2] == (False, False) and "refused" in row(db, bad)[2]
    p.refuse()
    outbox.run("dead", "retry", "--all", "--yes")
    p.wait("select processed from outbox_events where id = %s", bad)
    assert row(db, bad) == (True, True, None), "delivered: without an error"
    # released by SQL
    p.refuse("reject order.bad")
    second = insert(db, "order.bad", "b")
    wait_until(p.dead, 20)
    p.refuse()
    db.sql("update outbox_events set error_message = null where id = %s", second)
    p.wait("select processed from outbox_events where id = %s", second)
    assert not p.dead()
    assert relay.stop() == 0


def test_a_row_that_failed_and_is_delivered_has_no_error_any_more(outbox, db):
    p = Profile(outbox, db, "polyshop", REFUSE, more="    retry: {first: 1s, max: 1s}")
    p.refuse("retry order.bad")
    event = insert(db, "order.bad")
    relay = p.start()
    p.wait("select error_message is not null from outbox_events where id = %s", event)
    p.refuse()
    p.wait("select processed from outbox_events where id = %s", event)
    assert row(db, event) == (True, True, None)
    assert relay.stop() == 0


def test_a_dead_row_stays_out_after_a_restart_and_when_discarded(outbox, db):
    p = Profile(outbox, db, "polyshop", REFUSE, more=FAST)
    p.refuse("reject order.bad")
    bad = insert(db, "order.bad")
    outbox.run("run", "--once")
    p.refuse()
    good = insert(db)
    outbox.run("run", "--once")
    assert row(db, good)[0] is True and row(db, bad)[0] is False
    (dead,) = p.dead()
    outbox.run("dead", "discard", dead["id"], "--yes")
    outbox.run("run", "--once")
    assert row(db, bad)[0] is False and not p.dead()
    assert [e["state"] for e in outbox.json("events", "--json")] == ["discarded", "published"]


def test_mark_processed(outbox, db):
    p = Profile(outbox, db, "polyshop", REFUSE, more=FAST, source="mapping: {on_permanent: mark_processed}")
    p.refuse("reject order.bad")
    bad = insert(db, "order.bad")
    outbox.run("run", "--once")
    assert row(db, bad)[:2] == (True, True) and "refused" in row(db, bad)[2]
    p.refuse()
    outbox.run("dead", "retry", "--all", "--yes")
    assert row(db, bad)[0] is False
    outbox.run("run", "--once")
    assert row(db, bad)[0] is True and not p.dead()


@pytest.mark.parametrize("aggregate, payload", [("uuid", "json"), ("text", "json"), ("uuid", "jsonb")])
def test_variants_of_the_table(outbox, db, aggregate, payload):
    ddl = f"""create table outbox_events (id uuid primary key, aggregate_id {aggregate} not null, event_type text not null,
        version int not null default 1, payload {payload} not null, created_at timestamptz not null default now(),
        processed boolean not null default false, processed_at timestamptz, error_message text, metadata jsonb)"""
    p = Profile(outbox, db, "polyshop", ddl=ddl)
    agg = "0b7a3c1e-5d2f-4e61-8f00-000000000001"
    event = str(uuid.uuid4())
    db.sql("insert into outbox_events (id, aggregate_id, event_type, payload, metadata) values (%s, %s, 't', %s, %s)",
           event, agg, '{"b":1, "a":2.50}', '{"traceId": "t-1", "correlationId": "c", "idempotencyKey": "ik", "userId": "u"}')
    outbox.run("run", "--once")
    (m,) = p.lines()
    assert m["key"] == agg
    assert list(m["value"]) == ["eventId", "timestamp", "eventType", "version", "source", "data", "metadata"]
    assert m["value"]["metadata"] == {"traceId": "t-1", "correlationId": "c", "idempotencyKey": "ik", "userId": "u"}
    line = outbox.path("out/events.jsonl").read_text()
    assert ('"data":{"b":1, "a":2.50}' if payload == "json" else '"data":{"a": 2.50, "b": 1}') in line


def test_order_of_one_transaction_and_of_later_ones(outbox, db):
    p = Profile(outbox, db, "polyshop")
    c = db.connect(autocommit=False)
    want = []
    with c.cursor() as cur:
        for t in range(3):
            for n in range(40):
                event = str(uuid.uuid4())
                cur.execute("insert into outbox_events (id, aggregate_id, event_type, payload) values (%s, 'k', 't', '{}')", (event,))
                want.append(event)
            c.commit()
    outbox.run("run", "--once")
    assert [m["id"] for m in p.lines()] == want
