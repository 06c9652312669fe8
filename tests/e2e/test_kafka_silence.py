# SPDX-License-Identifier: Apache-2.0
"""test_kafka_silence - half-open connections: the network drops every byte and closes nothing, as when a peer vanishes or a
firewall forgets a connection. Delivery resumes within 15 s of the moment at which a new connection would work."""

import json
import time

import pytest

import proxies
import services
from helpers import SLOW, wait_until
from test_kafka import by_key, config, emit, status

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(SLOW > 1, reason="skipped: a JVM beside a sanitizer; the unit tests use the mock cluster there"),
]
RESUMES_S = 15
RETRIES_S = 8  # interval between connection attempts while every connection is silent


@pytest.fixture(scope="module")
def silent():
    """A broker behind a proxy, and the proxy."""
    proxy = proxies.Silent()
    kafka = services.Kafka(proxied=proxy.address)
    proxy.port = int(kafka.env["KAFKA_PROXIED_PORT"])
    yield kafka, proxy
    proxy.close()
    kafka.close()


def delivered(kafka, topic, n):
    """The highest offset is enough to see progress; reading everything each time would slow the test down."""
    return sum(int(line.rsplit(":", 1)[1]) for line in kafka.kcat(
        "-Q", "-t", f"{topic}:0:-1", "-t", f"{topic}:1:-1").replace(" offset ", ":").splitlines()) >= n


@pytest.mark.parametrize("seconds", [0, 20])
def test_a_half_open_connection(outbox, silent, seconds):
    """0: only the connections of that moment are dead. 20: also those that are opened during the next 20 s."""
    kafka, proxy = silent
    topic = kafka.topic(partitions=2)
    config(outbox, kafka, topic, brokers=f"127.0.0.1:{proxy.address}", more="    envelope: none")
    db, n = outbox.sqlite("app.db"), 0

    def write(count):
        nonlocal n
        db.execute("begin")
        for i in range(n, n + count):
            emit(db, f"k{i % 5}", json.dumps({"n": i}))
        db.execute("commit")
        n += count

    relay = outbox.start("run")
    write(50)
    wait_until(lambda: delivered(kafka, topic, 50), 60, "events are delivered", every=0.2)
    opened = len(proxy.times)
    proxy.silent = True
    write(50)
    began = time.monotonic()
    if seconds:
        wait_until(lambda: "sink.down" in relay.err, 20, "the relay reports the outage")
        wait_until(lambda: time.monotonic() - began > seconds, seconds + 5, "the outage lasts")
        attempts = [began, *proxy.times[opened:], time.monotonic()]
        gaps = [b - a for a, b in zip(attempts, attempts[1:])]
        assert max(gaps) < RETRIES_S, gaps
    else:
        wait_until(lambda: time.monotonic() - began > 1, 5, "the requests are sent and dropped")
    proxy.silent = False
    back = time.monotonic()
    write(50)
    wait_until(lambda: delivered(kafka, topic, 150), RESUMES_S - (1 if not seconds else 0), "delivery resumes", every=0.2)
    print(f"resumed after {time.monotonic() - back:.1f} s")
    got = by_key(kafka.read(topic))
    for key, ns in got.items():
        assert list(dict.fromkeys(ns)) == list(range(int(key[1:]), n, 5)), key
    wait_until(lambda: status(outbox)["pending"] == 0, 20, "all events are settled")
    assert status(outbox)["dead"] == 0 and status(outbox)["failed"] == 0 and relay.alive
