# SPDX-License-Identifier: Apache-2.0
"""test_profile_microdao - microdao's own table through the relay."""

import json

from helpers import wait_until
from profiles import REFUSE, Profile


def insert(db, event, topic="payout.generated", stream="STREAM_PAYOUT", payload=None):
    db.sql("insert into outbox_events (id, stream, topic, payload) values (%s, %s, %s, %s)", event, stream, topic,
           json.dumps(payload or {"payout_id": "p"}))


def row(db, event):
    return db.sql("select processed, processed_at is not null, error from outbox_events where id = %s", event)[0]


def test_delivered_unrecoverable_invalid_and_released(outbox, db):
    p = Profile(outbox, db, "microdao", REFUSE, more="    retry: {first: 20ms, max: 50ms}\n    max_attempts: 3")
    p.refuse("retry payout.bad", "reject payout.worse")
    insert(db, "Good-1")
    insert(db, "Bad-1", "payout.bad", "STREAM_A")
    insert(db, "Worse-1", "payout.worse", "STREAM_B")
    relay = p.start()
    p.wait("select processed from outbox_events where id = 'Good-1'")
    assert row(db, "Good-1") == (True, True, None)
    p.wait("select error from outbox_events where id = 'Bad-1'", want="unrecoverable")
    p.wait("select error from outbox_events where id = 'Worse-1'", want="invalid payload")
    assert row(db, "Bad-1")[0] is False and row(db, "Worse-1")[0] is False
    reasons = {d["id"]: (d["attempts"], d["error"]) for d in wait_until(lambda: len(p.dead()) == 2 and p.dead(), 10)}
    assert reasons["Bad-1"][0] == 3 and "refused" in reasons["Bad-1"][1] and "refused" in reasons["Worse-1"][1]
    p.refuse()
    outbox.run("dead", "retry", "Bad-1", "--yes")
    p.wait("select processed from outbox_events where id = 'Bad-1'")
    assert row(db, "Bad-1") == (True, True, None)
    db.sql("update outbox_events set error = null where id = 'Worse-1'")
    p.wait("select processed from outbox_events where id = 'Worse-1'")
    assert not p.dead()
    assert relay.stop() == 0


def test_a_retry_shows_no_error_and_survives_a_restart(outbox, db):
    p = Profile(outbox, db, "microdao", REFUSE, more="    retry: {first: 10m, max: 10m}")
    p.refuse("retry payout.*")
    insert(db, "1")
    relay = p.start()
    p.wait("select max(attempts) from outbox.parked where ref = '1'", want=1)
    assert row(db, "1") == (False, False, None)
    assert relay.stop() == 0
    insert(db, "2", stream="STREAM_OTHER")
    relay = p.start()
    p.wait("select max(attempts) from outbox.parked where ref = '2'", want=1)
    assert db.one("select max(attempts) from outbox.parked where ref = '1'") == 1
    assert relay.stop() == 0


def test_the_schedule_has_no_jitter(outbox, db):
    """1, 2, 4, 8, 16, 32, 60, 60 … s, as the resulting config has it."""
    Profile(outbox, db, "microdao")
    rows = {r["path"].split(".", 2)[2]: r["value"] for r in json.loads(outbox.run("check", "--explain", "--json", check=None).out)
            if r["path"].startswith("pipelines.events.retry")}
    assert rows == {"retry.first": "1s", "retry.max": "60s", "retry.factor": "2", "retry.jitter": "0%"}


def test_order_is_per_stream(outbox, db):
    p = Profile(outbox, db, "microdao")
    for i in range(30):
        insert(db, f"e{i}", stream=f"S{i % 3}")
    outbox.run("run", "--once")
    got = p.lines()
    for s in range(3):
        assert [m["id"] for m in got if m["stream"] == f"S{s}"] == [f"e{i}" for i in range(30) if i % 3 == s]
    assert all(m["key"] == m["stream"] for m in got)
