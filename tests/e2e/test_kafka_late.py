# SPDX-License-Identifier: Apache-2.0
"""test_kafka_late - requests of a producer that was given up reach the broker later: before those of the one that follows it,
between them, or behind. What they store is stored twice, with the same id; first deliveries of a key stay in order."""

import json

import pytest

import proxies
import services
from helpers import SLOW, wait_until
from test_kafka import by_key, config, emit, status

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(SLOW > 1, reason="skipped: a JVM beside a sanitizer; the unit tests use the mock cluster there"),
]
MARK = "slow-boat"


class Harbour:
    """Requests with the mark, of the first connection that has one, are kept back; let go before the `at`-th of others (0: never)."""

    def __init__(self):
        self.proxy = proxies.Late(self.decide)
        self.kafka = services.Kafka(proxied=self.proxy.address)
        self.proxy.port = int(self.kafka.env["KAFKA_PROXIED_PORT"])
        self.begin(-1)

    def begin(self, at):
        self.old, self.at, self.others, self.kept = None, at, 0, 0

    def decide(self, way, request):
        if self.at < 0 or MARK.encode() not in request:
            return False
        self.old = self.old or way
        if way is self.old:
            self.kept += 1
            return True
        self.others += 1
        if self.others == self.at:
            self.old.release()
        return False


@pytest.fixture(scope="module")
def harbour():
    h = Harbour()
    yield h
    h.proxy.close()
    h.kafka.close()


@pytest.mark.parametrize("others_flow", [True, False])
@pytest.mark.parametrize("at", [1, 2, 5, 0])
def test_what_an_old_producer_wrote_arrives_late(outbox, harbour, at, others_flow):
    """Others are acknowledged meanwhile: the destination is blocked and its first event cancelled. Nothing is: the sink is reset."""
    kafka = harbour.kafka
    slow, other = kafka.topic(), kafka.topic()
    config(outbox, kafka, routes=f"[{{match: {{type: 'slow.*'}}, topic: {slow}}}, {{topic: {other}}}]",
           sink="properties: {batch.num.messages: 5}", brokers=f"127.0.0.1:{harbour.proxy.address}",
           more="    envelope: none\n    publish_timeout: 3s")
    db = outbox.sqlite("app.db")
    relay = outbox.start("run")
    harbour.begin(-1)
    for kind in ("slow.zero", "order.zero"):
        emit(db, "first", '{"n": -1}', type=kind)
    wait_until(lambda: kafka.read(slow) and kafka.read(other), 30, "it flows")
    harbour.begin(at)

    def write(numbers):
        db.execute("begin")
        for n in numbers:
            emit(db, f"s{n % 3}", json.dumps({"n": n, "mark": MARK}), type="slow.one")
        db.execute("commit")

    def given_up():
        if others_flow:
            emit(db, "o", '{"n": 0}')
        return "kafka.renew" in relay.err

    for n in range(4):
        write([n])
        wait_until(lambda: harbour.kept > n, 20, "several requests are on their way")
    write(range(4, 40))
    wait_until(given_up, 30, "the producer is replaced", every=0.05)
    write(range(40, 60))
    seen = lambda: [json.loads(r.value)["n"] for r in kafka.read(slow)][1:]
    wait_until(lambda: set(seen()) == set(range(60)), 60, "all are there", every=0.1)
    assert at == 0 or harbour.others >= at
    if at == 0:
        assert len(seen()) == 60
        harbour.old.release()
    late = wait_until(lambda: len(seen()) - 60, 20, "what was late is stored too")
    assert late >= 4
    for key, ns in by_key(kafka.read(slow)).items():
        assert list(dict.fromkeys(ns)) == sorted(set(ns)), key
    ids = {}
    for r in kafka.read(slow):
        ids.setdefault(json.loads(r.value)["n"], set()).add(dict(r.headers)["id"])
    assert all(len(x) == 1 for x in ids.values()), "a repeat has the same id"
    wait_until(lambda: status(outbox)["pending"] == 0, 20, "all is settled")
    assert status(outbox)["dead"] == 0 and status(outbox)["failed"] == 0 and relay.alive
