# SPDX-License-Identifier: Apache-2.0
"""test_kafka_order - one event in the middle fails while many are in flight: what a consumer saw, strict and pipelined; and
the profile polyshop around a crash, a temporary and a permanent error, on a real broker."""

import base64
import json
import os
import signal
import time
import uuid
import zlib

import pytest

from helpers import SLOW, counted, wait_until
from profiles import Profile
from test_dlt import KEYS
from test_kafka import by_key, config, emit, status

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(SLOW > 1, reason="skipped: a JVM beside a sanitizer; the unit tests use the mock cluster there"),
]


@pytest.mark.parametrize("order", ["strict", "pipelined"])
def test_order_around_a_refusal(outbox, kafka, order):
    """Requests of ten events, five in flight; the broker refuses the one that has an event larger than it takes since a moment.
    Strict: first deliveries are in order, always. Pipelined: nothing is lost and nobody else is dead; what stood behind the
    refused request may come first (with this library it rarely does: the producer that was refused something is emptied)."""
    topic = kafka.topic(max_message_bytes=1000000)
    config(outbox, kafka, topic, sink="properties: {batch.num.messages: 10}", more=f"    envelope: none\n    order: {order}")
    db = outbox.sqlite("app.db")
    relay = outbox.start("run")
    emit(db, "first", '{"n": -1}')
    wait_until(lambda: kafka.read(topic), 30, "the first one")
    kafka.set_config(topic, max_message_bytes=20000)
    db.execute("begin")
    for n in range(400):
        emit(db, f"k{n % 4}", json.dumps({"n": n, "pad": "x" * (30000 if n in (101, 250) else 10)}))
    db.execute("commit")
    left = [n for n in range(400) if n not in (101, 250)]
    got = wait_until(lambda: (lambda g: g if {n for ns in g.values() for n in ns} >= set(left) else None)(by_key(kafka.read(topic))), 40)
    wait_until(lambda: status(outbox)["dead"] == 2, 20)
    late = 0
    for k in range(4):
        want = [n for n in left if n % 4 == k]
        seen = list(dict.fromkeys(got[f"k{k}"]))
        assert sorted(seen) == want
        late += sum(a > b for a, b in zip(seen, seen[1:]))
    assert relay.alive and {d["key"] for d in outbox.json("dead", "list", "--json")} == {"k1", "k2"}
    assert relay.stop() == 0
    overtaken = counted(relay.err, "overtaken")
    assert late == overtaken == 0 if order == "strict" else late == 0 or overtaken > 0


def test_a_partitioner_of_the_library(outbox, kafka):
    """`consistent`: the library chooses. A key stays in one partition and in order, also around an event that the broker refuses."""
    topic = kafka.topic(partitions=3, max_message_bytes=1000000)
    config(outbox, kafka, topic, sink="properties: {partitioner: consistent, batch.num.messages: 10}", more="    envelope: none")
    db = outbox.sqlite("app.db")
    relay = outbox.start("run")
    emit(db, "first", '{"n": -1}')
    wait_until(lambda: kafka.read(topic), 30, "the first one")
    kafka.set_config(topic, max_message_bytes=20000)
    db.execute("begin")
    for n in range(400):
        emit(db, f"k{n % 7}", json.dumps({"n": n, "pad": "x" * (30000 if n == 150 else 10)}))
    db.execute("commit")
    wait_until(lambda: {json.loads(r.value)["n"] for r in kafka.read(topic)} == {n for n in range(-1, 400) if n != 150}, 40)
    wait_until(lambda: status(outbox)["dead"] == 1, 20)
    records = kafka.read(topic)
    for r in records:
        assert r.partition == zlib.crc32(r.key) % 3
    assert len({r.partition for r in records}) == 3
    for k, ns in by_key(records).items():
        assert list(dict.fromkeys(ns)) == sorted(set(ns)), k
    assert relay.alive


@pytest.mark.parametrize("name", ["compression.type", "compression.codec"])
def test_an_event_that_may_be_too_large(outbox, kafka, name):
    """With compression only the broker can tell. 2 MB of one letter are taken by a topic with a limit of 1 MB, 2 MB of noise are
    not: that one is dead alone, its neighbours pass and stay in order."""
    topic = kafka.topic(partitions=2)
    config(outbox, kafka, topic, sink=f"properties: {{{name}: gzip}}", more="    envelope: none")
    db = outbox.sqlite("app.db")
    pads = {60: "x" * (2 << 20), 120: base64.b64encode(os.urandom(2 << 20)).decode()}
    db.execute("begin")
    for n in range(200):
        emit(db, f"k{n % 3}", json.dumps({"n": n, "pad": pads.get(n, "x")}))
    db.execute("commit")
    relay = outbox.start("run")
    wait_until(lambda: status(outbox)["dead"] == 1 and status(outbox)["pending"] == 0, 60, "all are decided")
    got = by_key(kafka.read(topic))
    for k in range(3):
        assert list(dict.fromkeys(got[f"k{k}"])) == [n for n in range(200) if n != 120 and n % 3 == k]
    (dead,) = outbox.json("dead", "list", "--json")
    assert dead["key"] == "k0" and "MSG_SIZE_TOO_LARGE" in dead["error"], dead
    (large,) = [r for r in kafka.read(topic) if len(r.value) > 2 << 20]
    assert json.loads(large.value) == {"n": 60, "pad": pads[60]} and relay.alive
    assert status(outbox)["parked"] == 0 and "kafka.renew" not in relay.err, "each went alone: nobody else was given back"


POLYSHOP = "insert into outbox_events (id, aggregate_id, event_type, payload, created_at) values (%s, %s, %s, %s, clock_timestamp())"


class Shop:
    """polyshop's table, its relay and a topic of its own."""

    def __init__(self, outbox, db, kafka, more="", **topic):
        self.topic, self.db, self.kafka = kafka.topic(**topic), db, kafka
        self.p = Profile(outbox, db, "polyshop", sink=f'{{brokers: "{kafka.brokers}"}}', more=more)
        self.c = db.connect(autocommit=False)
        self.ids = []

    def insert(self, n, pad=lambda i: 10, topic=None, key="k"):
        with self.c.cursor() as cur:
            for i in range(n):
                self.ids.append(str(uuid.uuid4()))
                payload = json.dumps({"n": len(self.ids) - 1, "pad": "x" * pad(i)})
                cur.execute(POLYSHOP, (self.ids[-1], f"{key}{i % 5}", topic or self.topic, payload))
        self.c.commit()

    def events(self):
        return [json.loads(r.value) for r in self.kafka.read(self.topic)]

    def column(self, what):
        return self.db.one(f"select count(*) from outbox_events where {what}")


def test_polyshop_crash_in_the_middle_of_a_batch(outbox, db, kafka):
    """The broker stands still with a batch on its way, the relay is killed, the broker goes on: nothing is lost, what was stored
    without a mark comes again with the same eventId, and first deliveries are in order."""
    shop = Shop(outbox, db, kafka, partitions=2)
    relay = shop.p.start()
    shop.insert(1)
    wait_until(lambda: shop.column("processed") == 1, 30, "it flows")
    kafka.signal(signal.SIGSTOP)
    try:
        shop.insert(400)
        wait_until(lambda: status(outbox)["in_flight"] > 100, 20, "a batch is on its way")
        relay.kill()
    finally:
        kafka.signal(signal.SIGCONT)
    assert shop.column("not processed") == 400
    shop.p.start()
    wait_until(lambda: shop.column("processed and processed_at is not null and error_message is null") == 401, 40, "all are marked")
    seen = list(dict.fromkeys(e["eventId"] for e in shop.events()))
    assert sorted(seen) == sorted(shop.ids)
    assert all(sorted(set(ns)) == list(dict.fromkeys(ns)) for ns in order_by_key(kafka.read(shop.topic)).values())


def order_by_key(records):
    got = {}
    for r in records:
        got.setdefault(r.key, []).append(json.loads(r.value)["data"]["n"])
    return got


def test_polyshop_temporary_error(outbox, db, kafka):
    """Too few replicas, then the broker hangs: rows stay unprocessed, no attempt is spent, others flow; then all arrive."""
    shop = Shop(outbox, db, kafka)
    waits = kafka.topic(min_insync_replicas=2)
    shop.p.start()
    shop.insert(5, topic=waits, key="w")
    shop.insert(20)
    wait_until(lambda: shop.column("processed") == 20, 30, "the others flow")
    wait_until(lambda: status(outbox)["parked"] == 5, 30, "they wait")
    assert status(outbox)["failed"] == 0 and shop.column("processed and event_type <> '%s'" % shop.topic) == 0
    kafka.set_config(waits, min_insync_replicas=1)
    wait_until(lambda: shop.column("processed") == 25, 40, "and arrive when there are enough")
    assert {json.loads(r.value)["eventId"] for r in kafka.read(waits)} == set(shop.ids[:5])
    kafka.signal(signal.SIGSTOP)
    try:
        began = time.monotonic()
        shop.insert(10)
        wait_until(lambda: time.monotonic() - began > 2, 10)
        assert shop.column("not processed") == 10 and status(outbox)["failed"] == 0
    finally:
        kafka.signal(signal.SIGCONT)
    wait_until(lambda: shop.column("processed and error_message is null") == 35, 60, "and when it is back")
    assert status(outbox)["dead"] == 0 and len({e["eventId"] for e in shop.events()}) == 30


def test_polyshop_permanent_error(outbox, db, kafka):
    """An event too large for its topic: the reason is in its row, which stays unprocessed; the dead-letter topic has it in five
    keys, in the envelope of its service; its neighbours pass."""
    shop = Shop(outbox, db, kafka, more="    dlt: on", max_message_bytes=5000)
    kafka.topic(name=f"{shop.topic}.dlt")
    shop.p.start()
    shop.insert(30, pad=lambda i: 9000 if i == 12 else 10)
    wait_until(lambda: shop.column("processed") == 29, 30, "the others pass")
    bad = shop.ids[12]
    reason = wait_until(lambda: db.one("select error_message from outbox_events where id = %s", bad), 20, "its row says why")
    assert "too large" in reason and shop.column("not processed") == 1
    (dead,) = shop.p.dead()
    assert dead["id"] == bad and dead["error"] == reason
    (letter,) = wait_until(lambda: kafka.read(f"{shop.topic}.dlt"), 30, "the letter")
    value = json.loads(letter.value)
    assert list(value) == KEYS and value["eventId"] == bad and value["errorMessage"] == reason
    assert list(value["originalEvent"]) == ["eventId", "timestamp", "eventType", "version", "source", "data", "metadata"]
    assert value["originalEvent"]["data"]["n"] == 12 and value["consumerService"] == "outbox/events"
