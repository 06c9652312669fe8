# SPDX-License-Identifier: Apache-2.0
"""test_kafka_outage - brokers that are not there yet, slow, killed, hang, come back and lose leaders while a writer goes on. Its
ledger is the truth: nothing lost, no attempt spent, nothing dead, order kept, memory flat, and the backlog is caught up.

OUTBOX_TEST_OUTAGE: seconds that a broker hangs (`make scenario-outages`: 45)."""

import json
import os
import pathlib
import signal
import subprocess
import threading
import time

import pytest

from helpers import SLOW, wait_until
from services import lives
from test_kafka import ONE, by_key, emit, status

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(SLOW > 1, reason="skipped: a JVM beside a sanitizer; the unit tests use the mock cluster there"),
]
DISK_MB = 48
HANGS = float(os.environ.get("OUTBOX_TEST_OUTAGE", "8"))


class Writer(threading.Thread):
    """Some hundred events a second, in order per key; knows what it committed and when."""

    def __init__(self, outbox, keys, pause=0.003):
        super().__init__(daemon=True)
        self.outbox, self.keys, self.pause = outbox, keys, pause
        self.ledger = {k: [] for k in keys}
        self.go, self.n, self.error = True, 0, None

    def run(self):
        try:
            db = self.outbox.sqlite("app.db")
            while self.go:
                key = self.keys[self.n % len(self.keys)]
                emit(db, key, json.dumps({"n": self.n}))
                self.ledger[key].append(self.n)
                self.n += 1
                time.sleep(self.pause)
            db.close()
        except Exception as e:  # the test looks at it
            self.error = e

    def stop(self):
        self.go = False
        self.join()
        if self.error:
            raise self.error


def rss(process):
    text = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    return int(next(x for x in text.splitlines() if x.startswith("VmRSS")).split()[1])


def begin(outbox, kafka, topic, keys=12, routes=None, more=""):
    outbox.write("outbox.yaml", ONE.format(
        brokers=kafka.brokers, routes=routes or f"[{{topic: {topic}}}]", sink="", more=f"    envelope: none\n{more}",
    ))
    outbox.run("schema", "--apply")
    writer = Writer(outbox, [f"k{i}" for i in range(keys)])
    relay = outbox.start("run")
    writer.start()
    return relay, writer


def ended(outbox, kafka, relay, writer, topic, deadline=60):
    """All of the ledger is there, in order, and nobody is to blame."""
    writer.stop()

    def all_there():
        got = by_key(kafka.read(topic))
        return got if all(set(got.get(k, ())) >= set(ns) for k, ns in writer.ledger.items()) else None

    got = wait_until(all_there, deadline, "everything is there", every=0.3)
    for key, want in writer.ledger.items():
        assert list(dict.fromkeys(got[key])) == want, f"{key}: out of order, or phantoms"
    s = wait_until(lambda: (lambda x: x if x["parked"] == 0 and x["pending"] == 0 else None)(status(outbox)), 30, "all is settled")
    assert s["dead"] == 0 and s["failed"] == 0 and relay.alive, s
    return got


def test_killed_restarted_and_hung(outbox, own_kafka):
    kafka = own_kafka()
    topic = kafka.topic(partitions=3, message_timestamp_type="LogAppendTime")
    kafka.kill()
    relay, writer = begin(outbox, kafka, topic)
    wait_until(lambda: "sink.down" in relay.err, 20, "nobody is there at first")
    kafka.start()
    wait_until(lambda: len(kafka.read(topic)) > 100, 30, "it flows")
    memory = rss(relay)
    for _ in range(10):  # a broker that is slow
        for how, seconds in ((signal.SIGSTOP, 0.2), (signal.SIGCONT, 0.1)):
            kafka.signal(how)
            until = time.monotonic() + seconds
            wait_until(lambda u=until: time.monotonic() > u, 5)
    assert status(outbox)["failed"] == 0
    for _ in range(5):
        kafka.kill()
        at = writer.n
        wait_until(lambda: writer.n > at + 50, 20, "the writer goes on")
        kafka.start()
        at = len(kafka.read(topic))
        wait_until(lambda: len(kafka.read(topic)) > at, 40, "it flows again")
    kafka.signal(signal.SIGSTOP)
    hung, at = time.monotonic(), writer.n
    wait_until(lambda: time.monotonic() - hung > HANGS, HANGS + 5)
    waiting = writer.n - at
    kafka.signal(signal.SIGCONT)
    wait_until(lambda: status(outbox)["pending"] < 100, 60, "caught up", every=0.1)
    ended(outbox, kafka, relay, writer, topic)
    assert rss(relay) < memory + 16384, "memory follows the backlog"
    assert "sink.down" in relay.err and "sink.up" in relay.err
    times = {}  # what was committed while it hung, and when the broker took it
    for r in kafka.read(topic):
        n = json.loads(r.value)["n"]
        if at < n < at + waiting:
            times.setdefault(n, r.timestamp / 1000)
    took = max(times.values()) - min(times.values())
    assert len(times) / max(took, 0.001) >= 3 * waiting / HANGS, f"{len(times)} in {took} s; {waiting / HANGS} a second arrive"


def test_three_nodes(outbox, own_kafka):
    """A leader is killed and another takes over; then a partition whose only replica is gone waits alone."""
    kafka = own_kafka(nodes=3, conf=["min.insync.replicas=2"])
    topic = kafka.topic(partitions=3, replicas=3)
    lonely = kafka.topic(assignment={0: [1], 1: [2], 2: [3]}, min_insync_replicas=1)
    routes = f"[{{match: {{type: 'lonely.*'}}, topic: {lonely}}}, {{topic: {topic}}}]"
    relay, writer = begin(outbox, kafka, topic, routes=routes)
    db = outbox.sqlite("app.db")
    wait_until(lambda: len(kafka.read(topic)) > 100, 60, "it flows")
    kafka.kill(node=3)
    at = len(kafka.read(topic))
    wait_until(lambda: len(kafka.read(topic)) > at + 300, 60, "new leaders")
    for n in range(60):
        emit(db, f"l{n % 20}", json.dumps({"n": n}), type="lonely.one")

    def others():
        got = kafka.kcat("-C", "-t", lonely, "-p", "0", "-e", "-q", "-f", "%k\n").split()
        got += kafka.kcat("-C", "-t", lonely, "-p", "1", "-e", "-q", "-f", "%k\n").split()
        return got if len(got) >= 30 else None

    passed = wait_until(others, 60, "partitions that have a leader take theirs", every=0.3)
    wait_until(lambda: len(passed) + status(outbox)["parked"] >= 60, 40, "the others wait")
    at = len(kafka.read(topic))
    wait_until(lambda: len(kafka.read(topic)) > at + 50, 30, "and hold up nobody")
    assert status(outbox)["dead"] == 0 and status(outbox)["failed"] == 0
    kafka.start()
    wait_until(lambda: sum(map(len, by_key(kafka.read(lonely)).values())) >= 60, 60, "the leader is back", every=0.3)
    for ns in by_key(kafka.read(lonely)).values():
        assert list(dict.fromkeys(ns)) == sorted(set(ns))
    ended(outbox, kafka, relay, writer, topic)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of DISK_MB; gone after the brokers that use it."""
    folder = tmp_path / "disk"
    folder.mkdir()
    argv = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m,mode=755", "tmpfs", str(folder)]
    r = subprocess.run(argv, capture_output=True, text=True, check=False)
    if r.returncode:
        pytest.skip(f"skipped: no small file system can be mounted here: {r.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=False)


def fill(folder):
    """Somebody else takes all the room that is left."""
    block = b"x" * 65536
    fd = os.open(folder / "ballast", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        while block:
            try:
                os.write(fd, block)
            except OSError:
                block = block[: len(block) // 2]
    finally:
        os.close(fd)


def test_the_disk_is_full(outbox, small_disk, own_kafka):
    """A broker whose only disk fails ends by itself. That is an outage like others: nothing lost, nobody's attempt."""
    kafka = own_kafka(disk=small_disk)
    topic = kafka.topic(partitions=3)
    relay, writer = begin(outbox, kafka, topic)
    wait_until(lambda: len(kafka.read(topic)) > 100, 60, "it flows")
    memory, at = rss(relay), writer.n
    fill(small_disk)
    gone = lambda: not any(map(lives, kafka.pids()))
    wait_until(gone, 60, "the broker ends by itself", every=0.1)
    log = (pathlib.Path(kafka.dir) / "node1" / "log").read_text(errors="replace")
    assert "No space left on device" in log, log[-2000:]
    wait_until(lambda: "sink.down" in relay.err, 60, "the relay says so")
    line = next(x for x in relay.err.splitlines() if "sink.down" in x)
    assert "127.0.0.1" in line and "error=" in line, line
    wait_until(lambda: writer.n > at + 1500, 60, "the writer goes on")
    s = status(outbox)
    assert relay.alive and s["state"] == "down", s
    assert s["dead"] == 0 and s["failed"] == 0 and s["pending"] > 500, s
    assert rss(relay) < memory + 8192, "memory follows the backlog"
    (small_disk / "ballast").unlink()
    kafka.start()
    ended(outbox, kafka, relay, writer, topic, deadline=90)
    assert "sink.up" in relay.err and rss(relay) < memory + 16384
