# SPDX-License-Identifier: Apache-2.0
"""test_profile_orion - orion's own table through the relay."""

import json
import time

import pytest

from helpers import ROOT, SLOW, wait_until
from profiles import FILE, IDLE, REFUSE, Profile, stay_idle

TENANT = "6a1f7e2c-0d3b-4a58-9a11-0242ac120002"


def insert(db, kind="rfq.created", agg="11111111-1111-1111-1111-111111111111", payload=None, metadata=None, n=1):
    return [r[0] for r in db.sql(
        "insert into outbox (tenant_id, aggregate_type, aggregate_id, event_type, payload, metadata) "
        "select %s, 'rfq', %s, %s, %s, %s from generate_series(1, %s) returning id::text",
        TENANT, agg, kind, json.dumps(payload or {"a": 1}), json.dumps(metadata or {}), n)]


def row(db, event):
    return db.sql("select processed_at is not null, retry_count, last_error from outbox where id = %s", event)[0]


def test_a_plain_insert_is_published_within_half_a_second(outbox, db):
    p = Profile(outbox, db, "orion")
    p.start()
    (event,) = insert(db)  # the first also connects
    p.wait("select processed_at is not null from outbox where id = %s", event)
    (poll,) = [r["value"] for r in json.loads(outbox.run("check", "--explain", "--json", check=None).out)
               if r["path"] == "pipelines.events.source.poll_max"]
    assert poll == "100ms"
    took = []
    for seconds in IDLE:
        stay_idle(seconds)
        before = time.monotonic()
        (event,) = insert(db)
        wait_until(lambda e=event: any(m["id"] == e for m in p.lines()), 10, every=0.005)
        took.append(time.monotonic() - before)
        p.wait("select processed_at is not null from outbox where id = %s", event)
    assert max(took) < 0.5 * SLOW, took
    assert row(db, event) == (True, 0, None)
    assert outbox.started[0].stop() == 0


def test_retry_dead_and_release(outbox, db):
    p = Profile(outbox, db, "orion", REFUSE, more="    retry: {first: 50ms, max: 100ms}")
    p.refuse("retry orion.rfq.quoted")
    (bad,) = insert(db, "rfq.quoted")
    (good,) = insert(db, "rfq.created", agg="22222222-2222-2222-2222-222222222222")
    relay = p.start()
    p.wait("select processed_at is not null from outbox where id = %s", good)
    p.wait("select retry_count from outbox where id = %s", bad, want=5)
    assert row(db, bad)[0] is False and "refused" in row(db, bad)[2]
    (dead,) = wait_until(p.dead, 10)
    assert dead["id"] == bad and dead["attempts"] == 5
    assert db.one("select jsonb_array_length(history) from outbox.dead") == 5
    # by the command
    p.refuse()
    outbox.run("dead", "retry", "--all", "--yes")
    p.wait("select processed_at is not null from outbox where id = %s", bad)
    assert row(db, bad)[1] == 0 and not p.dead()
    # by SQL
    p.refuse("reject orion.rfq.quoted")
    (second,) = insert(db, "rfq.quoted")
    p.wait("select retry_count from outbox where id = %s", second, want=5)
    wait_until(p.dead, 10)
    p.refuse()
    db.sql("update outbox set retry_count = 4 where id = %s", second)
    p.wait("select processed_at is not null from outbox where id = %s", second)
    assert row(db, second)[1] == 0, "its attempts went to 0"
    assert not p.dead() and db.one("select state from outbox.dead where ref = %s", second) == "released"
    assert relay.stop() == 0


def test_rows_in_back_off_do_not_hide_the_next(outbox, db):
    p = Profile(outbox, db, "orion", REFUSE, more="    retry: {first: 10m, max: 10m}")
    p.refuse("retry orion.rfq.quoted")
    db.sql("insert into outbox (tenant_id, aggregate_type, aggregate_id, event_type, payload) "
           "select %s, 'rfq', gen_random_uuid(), 'rfq.quoted', '{}' from generate_series(1, 150)", TENANT)
    relay = p.start()
    p.wait("select count(*)::int from outbox where retry_count = 1", want=150)
    (event,) = insert(db)
    p.wait("select processed_at is not null from outbox where id = %s", event)
    assert relay.stop() == 0
    # a restart never resets an attempt, and does not try them early
    relay = p.start()
    (event,) = insert(db, agg="33333333-3333-3333-3333-333333333333")
    p.wait("select processed_at is not null from outbox where id = %s", event)
    assert db.one("select min(retry_count) + max(retry_count) from outbox where event_type = 'rfq.quoted'") == 2
    assert relay.stop() == 0
