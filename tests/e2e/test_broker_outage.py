# SPDX-License-Identifier: Apache-2.0
"""test_broker_outage - NATS and RabbitMQ that die, hang, refuse and come back while a writer goes on. The ledger is what the
writer's own commits returned. Nothing lost, no attempt spent, order kept, memory flat, and the rest is caught up quickly.

OUTBOX_TEST_OUTAGE: seconds that a broker hangs (`make scenario-outages`: 45)."""

import datetime
import json
import os
import pathlib
import signal
import socket
import threading
import time

import pytest

from helpers import SLOW, counted, wait_until
from proxies import Confirms, Refuse, Slow
from test_relay import Writer, insert

STOP = float(os.environ.get("OUTBOX_TEST_OUTAGE", "8"))
KEYS = [f"k{i}" for i in range(8)]

CONFIG = """
log: {{level: info}}
pipelines:
  p:
    source: {{type: sqlite, path: app.db}}
    sink: {sink}
    envelope: none
    publish_timeout: {timeout}
    routes: [{{topic: "{topic}"}}]
{more}
"""


class NatsSide:
    def __init__(self, own_nats):
        self.server = own_nats()
        self.stream = self.server.stream(None)
        self.topic = f"{self.stream}.x"
        self.sink = f'{{type: nats, url: "{self.server.url}", ping_interval: 1s}}'

    def pids(self):
        return self.server.pids

    def seen(self):
        return [m.json() for m in self.server.read(self.stream)]

    def stop(self):
        self.server.stop(kill=True)

    def start(self):
        self.server.start()


class RabbitSide:
    def __init__(self, own_rabbit):
        self.server = own_rabbit()
        exchange, self.queue = self.server.exchange()
        self.topic = "x"
        self.sink = f'{{type: rabbitmq, url: "{self.server.url}", exchange: {exchange}, heartbeat: 2s}}'
        self.got = []

    def pids(self):
        return [self.server.pid]

    def seen(self):
        self.got += [json.loads(body) for _, _, body in self.server.read(self.queue)]
        return self.got

    def stop(self):
        self.server.stop(kill=True)

    def start(self):
        self.server.start()


@pytest.fixture(params=["nats", "rabbitmq"])
def side(request):
    if request.param == "nats":
        return NatsSide(request.getfixturevalue("own_nats"))
    return RabbitSide(request.getfixturevalue("own_rabbit"))


def memory(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1])
    return 0


def begin(outbox, side, timeout="30s", more=""):
    outbox.write("outbox.yaml", CONFIG.format(sink=side.sink, topic=side.topic, timeout=timeout, more=more))
    outbox.run("schema", "--apply")
    writer = Writer(outbox, KEYS, pause=0.005)
    writer.start()
    return writer, outbox.start("run")


def caught_up(side, writer, deadline=60):
    want = {n for ns in writer.ledger.values() for n in ns}
    wait_until(lambda: {v["n"] for v in side.seen()} >= want, deadline, "everything arrived", every=0.2)
    return side.seen()


def check(outbox, side, writer, seen):
    """First arrivals of each key are the writer's commits, in order; nothing that was rolled back; nobody's attempt was spent."""
    first = {k: [] for k in KEYS}
    known = set()
    for v in seen:
        assert v["n"] not in writer.undone
        if v["n"] not in known:
            known.add(v["n"])
            first[v["key"]].append(v["n"])
    assert first == writer.ledger
    status = outbox.json("status", "--json")[0]
    assert status["dead"] == 0 and status["failed"] == 0
    assert outbox.json("dead", "list", "--json") == []


def up_since(p):
    """When the sink came up for the last time, by the relay's own log."""
    line = [x for x in p.err.splitlines() if "msg=sink.up" in x][-1]
    return datetime.datetime.fromisoformat(line.split("ts=")[1].split()[0].replace("Z", "+00:00")).timestamp()


def watch_catching_up(outbox, p, writer, since, begun):
    """What came since `begun` (a count of the writer's) waits, and the writer goes on. From the moment at which the sink is up it
    is worked off at three times the rate of arrival at least: at that rate half of the time that it piled up for is enough."""
    rate = (writer.total() - begun) / (time.time() - since)
    wait_until(lambda: outbox.json("status", "--json")[0]["pending"] < max(20, rate / 2), 60, "caught up", every=0.05)
    done, piled = time.time(), up_since(p) - since
    assert done - up_since(p) < piled / 2 + SLOW, f"{rate:.0f}/s for {piled:.1f} s took {done - up_since(p):.1f} s"


def flat(p, start):
    assert memory(p.pid) - start < 8_000, f"memory is flat: {start} kB, then {memory(p.pid)} kB"


@pytest.mark.slow
def test_killed_and_restarted_five_times(outbox, side):
    """Trap 45: an outage spends nobody's attempts."""
    writer, p = begin(outbox, side)
    wait_until(lambda: len(side.seen()) > 100, 30)
    start = memory(p.pid)
    for _ in range(5):
        at = writer.total()
        side.stop()
        wait_until(lambda: writer.total() > at + 50, 20, "the writer does not wait for a broker")
        side.start()
        n = len(side.seen())
        wait_until(lambda: len(side.seen()) > n, 60, "it flows again", every=0.2)
    flat(p, start)
    writer.stop()
    seen = caught_up(side, writer)
    assert p.stop() == 0
    check(outbox, side, writer, seen)
    assert p.err.count("msg=sink.down") >= 5 and p.err.count("msg=sink.up") >= 5


@pytest.mark.slow
def test_stopped_and_continued(outbox, side):
    """Trap 19: a broker that takes no bytes is down; nothing hangs."""
    writer, p = begin(outbox, side)
    wait_until(lambda: len(side.seen()) > 100, 30)
    start = memory(p.pid)
    at, since = writer.total(), time.time()
    for pid in side.pids():
        os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: "msg=sink.down" in p.err, 60, "it is seen that nothing is taken")
    wait_until(lambda: time.time() - since > STOP, STOP * 2 + 10)
    assert writer.total() > at
    ups = p.err.count("msg=sink.up")
    for pid in side.pids():
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: p.err.count("msg=sink.up") > ups, 60, "up again")
    watch_catching_up(outbox, p, writer, since, at)
    flat(p, start)
    writer.stop()
    seen = caught_up(side, writer)
    assert p.stop() == 0
    check(outbox, side, writer, seen)


@pytest.mark.slow
def test_an_alarm_blocks_and_never_hangs(outbox, own_rabbit):
    """Trap 19: connection.blocked is an outage: no attempt is spent, SIGTERM ends the relay at once, and it goes on afterwards. First
    for memory, with a new relay that finds the alarm on; then for the disk."""
    side = RabbitSide(own_rabbit)
    writer, p = begin(outbox, side)
    wait_until(lambda: len(side.seen()) > 20, 30)
    for resource in ("memory", "disk"):
        at, since, start = writer.total(), time.time(), memory(p.pid)
        side.server.alarm(True, resource)
        wait_until(lambda: f"RabbitMQ blocks publishers: low on {resource}" in p.err, 30, "it was told")
        wait_until(lambda: writer.total() > at + 100, 20)
        if resource == "memory":
            conf = outbox.path("outbox.yaml").read_text().replace("heartbeat: 2s", "heartbeat: 2s, connect_timeout: 3s")
            checking = outbox.start("check", "--config", outbox.write("check.yaml", conf))
            asked = time.monotonic()
            assert p.stop() == 0
            assert time.monotonic() - asked < 15 * SLOW
            p = outbox.start("run")
            wait_until(lambda: "RabbitMQ blocks publishers" in p.err, 30, "the next one is told too")
            start = memory(p.pid)
            assert checking.wait() == 1 and "no answer for routing key x" in checking.out and "alarm" in checking.out
        side.server.alarm(False, resource)
        wait_until(lambda: "msg=sink.up" in p.err.split("RabbitMQ blocks publishers")[-1], 30, "up again")
        watch_catching_up(outbox, p, writer, since, at)
        flat(p, start)
    writer.stop()
    seen = caught_up(side, writer)
    assert p.stop() == 0
    check(outbox, side, writer, seen)


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["stream", "server"])
def test_a_limit_is_reached_while_a_writer_goes_on(outbox, own_nats, limit):
    """A full stream, or a server without room for any: what cannot be stored waits, and goes on when there is room."""
    if limit == "server":
        server = own_nats("--store", "24K")
        stream = server.stream()
    else:
        server = own_nats()
        stream = server.stream(None, max_msgs=150, discard="new")  # by bytes the server drops some old ones
    side = type("Side", (), {"topic": f"{stream}.x", "sink": f'{{type: nats, url: "{server.url}"}}'})
    kept = []
    side.seen = lambda: kept + [m.json() for m in server.read(stream)]
    writer, p = begin(outbox, side)
    wait_until(lambda: outbox.json("status", "--json")[0]["parked"] > 50, 40, "it is full", every=0.1)
    at = len(side.seen())
    wait_until(lambda: outbox.json("status", "--json")[0]["parked"] > 200, 40, "the writer goes on", every=0.1)
    assert len(side.seen()) == at and outbox.json("dead", "list", "--json") == []
    if limit == "server":
        server.stop()
        server.start("--store", "100M")
    else:
        with server.client() as c:
            c.update(stream, max_msgs=1000000)
    writer.stop()
    seen = caught_up(side, writer, 150)  # a destination that was blocked for long is probed once a minute
    assert p.stop() == 0
    check(outbox, side, writer, seen)


def test_storage_full_is_blocked(outbox, nats):
    """A stream that is full refuses; no attempt is spent, nothing is dead, and it goes on when there is room."""
    stream = nats.stream(None, max_msgs=30, discard="new")
    side = type("Side", (), {"topic": f"{stream}.x", "sink": f'{{type: nats, url: "{nats.url}"}}'})
    outbox.write("outbox.yaml", CONFIG.format(sink=side.sink, topic=side.topic, timeout="30s", more=""))
    outbox.run("schema", "--apply")
    db = outbox.sqlite("app.db")
    for n in range(100):
        insert(db, "a", n)
    p = outbox.start("run")
    wait_until(lambda: len(nats.read(stream)) == 30, 20)
    wait_until(lambda: outbox.json("status", "--json")[0]["parked"] > 0, 20)
    assert outbox.json("dead", "list", "--json") == []
    with nats.client() as c:
        c.update(stream, max_msgs=1000)
    wait_until(lambda: len(nats.read(stream)) == 100, 40, "the rest", every=0.1)
    assert p.stop() == 0
    assert [m.json()["n"] for m in nats.read(stream)] == list(range(100))
    assert outbox.json("status", "--json")[0]["failed"] == 0


class Swallow(threading.Thread):
    """A proxy that passes everything but, once, one acknowledgement frame from the server."""

    def __init__(self, port, drop):
        super().__init__(daemon=True)
        self.port, self.drop, self.dropped = port, drop, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = self.listener.getsockname()[1]
        self.start()

    def run(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self.port))
            threading.Thread(target=self.copy, args=(client, server, None), daemon=True).start()
            threading.Thread(target=self.copy, args=(server, client, self.drop), daemon=True).start()

    def copy(self, source, target, drop):
        try:
            while data := source.recv(65536):
                if drop:
                    data = drop(self, data)
                if data:
                    target.sendall(data)
        except OSError:
            pass
        source.close()
        target.close()

    def close(self):
        self.listener.close()


def drop_rabbit_ack(proxy, data):
    """Cuts the first whole basic.ack frame (class 60, method 80, 13 bytes) for one tag only."""
    frame = b"\x01\x00\x01\x00\x00\x00\x0d\x00\x3c\x00\x50"
    at = data.find(frame)
    if proxy.dropped == 0 and at >= 0 and len(data) >= at + 21 and data[at + 19] == 0:
        proxy.dropped = 1
        return data[:at] + data[at + 21 :]
    return data


def test_a_confirm_that_is_lost_is_retried(outbox, rabbit):
    """The proxy swallows one confirm while others pass: that event is tried again, and only that one."""
    exchange, queue = rabbit.exchange()
    proxy = Swallow(rabbit.port, drop_rabbit_ack)
    url = f"amqp://guest:guest@127.0.0.1:{proxy.address}/"
    outbox.write(
        "outbox.yaml",
        CONFIG.format(
            sink=f'{{type: rabbitmq, url: "{url}", exchange: {exchange}}}', topic="x", timeout="2s",
            more="    retry: {first: 100ms}",
        ),
    )
    outbox.run("schema", "--apply")
    db = outbox.sqlite("app.db")
    p = outbox.start("run")
    got = []
    n = 0

    def arrived():
        nonlocal n
        insert(db, f"k{n}", n)
        n += 1
        got.extend(json.loads(body)["n"] for _, _, body in rabbit.read(queue))
        return proxy.dropped and len(got) > len(set(got))

    wait_until(arrived, 40, "the one that was not confirmed came twice", every=0.1)
    proxy.close()
    assert p.stop() == 0
    assert len(got) == len(set(got)) + 1
    status = outbox.json("status", "--json")[0]
    assert status["dead"] == 0


def drop_nats_ack(proxy, data):
    """Cuts the first whole answer of a stream; a block that ends inside it is left alone."""
    at = data.find(b"MSG _INBOX")
    if proxy.dropped == 0 and at >= 0 and (at == 0 or data[at - 2 : at] == b"\r\n"):
        line = data.find(b"\r\n", at)
        end = line + 4 + int(data[at:line].split()[-1]) if line > 0 else len(data) + 1
        if end <= len(data) and b'"seq"' in data[line:end]:
            proxy.dropped = 1
            return data[:at] + data[end:]
    return data


def test_an_ack_that_is_lost_is_stored_once(outbox, nats):
    """Trap 26: a publish that timed out was stored; it is sent again, and the stream knows its id."""
    stream = nats.stream()
    proxy = Swallow(nats.ports[0], drop_nats_ack)
    sink = f'{{type: nats, url: "nats://127.0.0.1:{proxy.address}"}}'
    outbox.write("outbox.yaml", CONFIG.format(sink=sink, topic=f"{stream}.x", timeout="2s", more="    retry: {first: 100ms}"))
    outbox.run("schema", "--apply")
    db = outbox.sqlite("app.db")
    p = outbox.start("run")
    n = 0

    def retried():
        nonlocal n
        insert(db, f"k{n}", n)
        n += 1
        return proxy.dropped and outbox.json("status", "--json")[0]["failed"] == 1

    wait_until(retried, 40, "the one that was not acknowledged is tried again", every=0.1)
    wait_until(lambda: outbox.json("status", "--json")[0]["pending"] == 0 and len(nats.read(stream)) == n, 30)
    wait_until(lambda: outbox.json("status", "--json")[0]["parked"] == 0, 30)
    proxy.close()
    assert p.stop() == 0
    assert sorted(m.json()["n"] for m in nats.read(stream)) == list(range(n))


@pytest.mark.parametrize("order", ["strict", "pipelined"])
@pytest.mark.parametrize("broker", ["nats", "rabbitmq"])
def test_one_in_the_middle_fails(outbox, request, broker, order):
    """The sixth of a key cannot be taken at first, and the ninth never: strict shows the key's order, pipelined may overtake."""
    server = request.getfixturevalue("nats" if broker == "nats" else "rabbit")
    if broker == "nats":
        first = server.stream()
        sink, topic, late = f'{{type: nats, url: "{server.url}", max_payload: 4k}}', f"{first}.x", f"LATE_{first}"
    else:
        exchange, queue = server.exchange("x")
        sink, topic, late = f'{{type: rabbitmq, url: "{server.url}", exchange: {exchange}, unroutable: retry, max_message: 4k}}', "x", "late"
    more = f"    order: {order}\n    retry: {{first: 300ms, max: 300ms}}\n    max_attempts: 100"
    text = CONFIG.format(sink=sink, topic=topic, timeout="30s", more=more)
    text = text.replace("routes: [", f'routes: [{{match: {{type: late}}, topic: "{late}.x"}}, ')
    outbox.write("outbox.yaml", text)
    outbox.run("schema", "--apply")
    db = outbox.sqlite("app.db")
    db.execute("begin")
    for n in range(12):
        insert(db, "a", n, type="late" if n == 5 else "order.placed",
               **({"payload": json.dumps({"key": "a", "n": n, "x": "y" * 5000})} if n == 8 else {}))
        insert(db, "b", n)
    db.execute("commit")
    p = outbox.start("run")
    seen = []

    def arrived(wanted):
        def ready():
            if broker == "nats":
                both = [m for s in (first, late) for m in (server.read(s) if s == first or made else [])]
                seen[:] = [m.json() for m in sorted(both, key=lambda m: int(m.reply.split(".")[7]))]
            else:
                seen.extend(json.loads(body) for _, _, body in server.read(queue))
            return wanted <= {(v["key"], v["n"]) for v in seen}
        return ready

    made = False
    everything = {("b", n) for n in range(12)} | {("a", n) for n in range(12) if n != 8}
    wait_until(arrived({("b", n) for n in range(12)} | {("a", n) for n in range(5)}), 30, "what is not behind it")
    if order == "strict":
        assert [v["n"] for v in seen if v["key"] == "a"] == [0, 1, 2, 3, 4]
    if broker == "nats":
        server.stream(late)
        made = True
    else:
        c = server.connect()
        c.channel().queue_bind(queue, exchange, "late.x")
        c.close()
    wait_until(arrived(everything), 40, "the rest", every=0.1)
    assert p.stop() == 0
    got = [v["n"] for v in seen if v["key"] == "a"]
    assert [v["n"] for v in seen if v["key"] == "b"] == list(range(12))
    if order == "strict":
        assert got == [0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 11]
    assert sorted(got) == [0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 11]
    (row,) = outbox.json("dead", "list", "--json")
    assert "too large" in row["error"]


def refusing(word, error, times):
    """decide() of a proxy: that one message is refused so often."""
    left = [times]

    def decide(body):
        if word not in body or left[0] == 0:
            return None
        left[0] -= 1
        return error

    return decide, left


@pytest.mark.parametrize("order", ["strict", "pipelined"])
@pytest.mark.parametrize("how", ["nats 503", "nats error", "rabbitmq nack"])
def test_one_of_the_same_destination_is_refused(outbox, request, how, order):
    """All of a key go to one place, and the broker refuses the sixth three times. In strict order nothing of that key is seen
    before it was taken; pipelined shows that it was overtaken, so this test can tell the two."""
    broker, what = how.split()
    word = b'"key": "a", "n": 5}'
    if broker == "nats":
        server = request.getfixturevalue("nats")
        stream = server.stream()
        error = {"code": 503, "err_code": 10023, "description": "insufficient resources"} if what == "503" else {"code": 400, "err_code": 19999, "description": "told by the test"}
        decide, left = refusing(word, error, 3)
        proxy = Refuse(server.ports[0], decide)
        sink, topic = f'{{type: nats, url: "nats://127.0.0.1:{proxy.address}"}}', f"{stream}.x"
    else:
        server = request.getfixturevalue("rabbit")
        exchange, queue = server.exchange()
        decide, left = refusing(word, "nack", 3)
        proxy = Confirms(server.port, decide)
        sink, topic = f'{{type: rabbitmq, url: "amqp://guest:guest@127.0.0.1:{proxy.address}/", exchange: {exchange}}}', "x"
    more = f"    order: {order}\n    retry: {{first: 300ms, max: 300ms}}"
    outbox.write("outbox.yaml", CONFIG.format(sink=sink, topic=topic, timeout="30s", more=more))
    outbox.run("schema", "--apply")
    db = outbox.sqlite("app.db")
    db.execute("begin")
    for n in range(12):
        for key in "ab":
            insert(db, key, n)
    db.execute("commit")
    p = outbox.start("run")
    seen = []

    def arrived():
        if broker == "nats":
            seen[:] = [m.json() for m in server.read(stream)]
        else:
            seen.extend(json.loads(body) for _, _, body in server.read(queue))
        return left[0] == 0 and len({(v["key"], v["n"]) for v in seen}) == 24 and outbox.json("status", "--json")[0]["parked"] == 0

    wait_until(arrived, 60, "all of them", every=0.1)
    assert p.stop() == 0 and outbox.json("dead", "list", "--json") == []
    proxy.close()
    got = [v["n"] for v in seen if v["key"] == "a"]
    assert [v["n"] for v in seen if v["key"] == "b"] == list(range(12))
    taken = len(got) - 1 - got[::-1].index(5)  # a refused one may have been stored all the same
    if order == "strict":
        assert got[:5] == [0, 1, 2, 3, 4] and got[taken + 1 :] == [6, 7, 8, 9, 10, 11] and set(got[5 : taken + 1]) == {5}
        assert counted(p.err, "overtaken") == 0
    else:
        assert got.index(6) < taken, "overtaken"
        assert counted(p.err, "overtaken") == len({n for n in got[:taken] if n > 5})
    if what == "503":
        assert outbox.json("status", "--json")[0]["failed"] == 0, "blocked spends no attempt"


@pytest.mark.slow
@pytest.mark.parametrize("broker", ["nats", "rabbitmq"])
def test_down_at_first_then_slow_then_a_storm_of_reconnects(outbox, request, broker):
    """The broker is not there when the relay starts; then every answer of it is late; then connections are cut again and again. Nothing
    is lost, nobody's attempt is spent, order is kept."""
    if broker == "nats":
        server = request.getfixturevalue("nats")
        stream = server.stream()
        proxy = Slow(server.ports[0])
        sink, topic = f'{{type: nats, url: "nats://127.0.0.1:{proxy.address}"}}', f"{stream}.x"
    else:
        server = request.getfixturevalue("rabbit")
        exchange, queue = server.exchange()
        proxy = Slow(server.port)
        sink, topic = f'{{type: rabbitmq, url: "amqp://guest:guest@127.0.0.1:{proxy.address}/", exchange: {exchange}}}', "x"
    proxy.off()
    got = []

    def seen():
        if broker == "nats":
            return [m.json() for m in server.read(stream)]
        got.extend(json.loads(body) for _, _, body in server.read(queue))
        return got

    side = type("Side", (), {"sink": sink, "topic": topic, "seen": staticmethod(seen)})
    writer, p = begin(outbox, side)
    wait_until(lambda: "msg=sink.down" in p.err and writer.total() > 30, 20)
    assert seen() == []
    proxy.delay = 0.1
    proxy.on()
    wait_until(lambda: len(seen()) > 60, 40, "slowly")
    downs = p.err.count("msg=sink.down")
    proxy.delay = 0
    for _ in range(6):
        ups, n = p.err.count("msg=sink.up"), len(seen())
        proxy.cut()
        wait_until(lambda: p.err.count("msg=sink.up") > ups and len(seen()) > n, 30, "it flows again", every=0.05)
    writer.stop()
    everything = caught_up(side, writer)
    assert p.stop() == 0
    proxy.close()
    check(outbox, side, writer, everything)
    assert p.err.count("msg=sink.down") - downs >= 6 and downs == 1, "late answers are no outage, cuts are"
