# SPDX-License-Identifier: Apache-2.0
"""test_clean_stop - SIGTERM, SIGHUP and a hand-over under load repeat nothing, and kill -9 repeats only what was delivered since
the last settle. Keys span topics, so that events are delivered ahead of others that were claimed and not sent, and one topic of Kafka
is missing until the end, so that its events are parked ahead of the cursor. Read by a client of the broker that is not ours."""

import json
import signal
import threading
import time

import pytest

from helpers import SLOW, wait_until
from pg import emit
from proxies import Confirms
from test_relay import insert

pytestmark = pytest.mark.slow

KEYS = 23
CONFIG = """
pipelines:
  orders:
    source: {source}
    sink: {sink}
    envelope: none
    park_after: 200ms
    shards: {shards}
    routes: [{{topic: "${{topic}}"}}]
"""


class KafkaSide:
    def __init__(self, kafka):
        self.server = kafka
        self.topics = [kafka.topic(partitions=2, message_timestamp_type="LogAppendTime") for _ in range(3)]
        self.missing = f"{self.topics[0]}-late"
        self.sink = f'{{type: kafka, brokers: "{kafka.brokers}"}}'
        self.made = False

    def make(self):
        self.server.topic(name=self.missing, message_timestamp_type="LogAppendTime")
        self.made = True

    def seen(self):
        got = self.server.read(*self.topics, *([self.missing] if self.made else []))
        return [json.loads(r.value) for r in sorted(got, key=lambda r: r.timestamp)]

    ties = True  # two of a key within a millisecond may stand either way


class RabbitSide:
    def __init__(self, rabbit):
        self.server = rabbit
        self.exchange, self.queue = rabbit.exchange("a", "b", "c")
        self.topics, self.missing = ["a", "b", "c"], "a"  # without a queue it would be rejected, not wait
        self.sink = f'{{type: rabbitmq, url: "{rabbit.url}", exchange: {self.exchange}}}'
        self.got = []

    def make(self):
        pass

    def seen(self):
        self.got += [json.loads(body) for _, _, body in self.server.read(self.queue)]
        return self.got

    ties = False


class Load:
    """Events whose key goes to another topic each time; one key of many also to the topic that is missing."""

    def __init__(self, side):
        self.side, self.n = side, 0
        self.ledger = {f"k{i}": [] for i in range(KEYS)}

    def next(self):
        self.n += 1
        i = self.n % KEYS
        topic = self.side.missing if i == 3 and self.n % 2 else self.side.topics[(self.n // KEYS) % 3]
        self.ledger[f"k{i}"].append(self.n)
        return f"k{i}", self.n, topic

    def events(self):
        return {n for ns in self.ledger.values() for n in ns}


class SqliteSource:
    conf = "{type: sqlite, path: app.db}"

    def __init__(self, outbox):
        self.outbox = outbox

    def fill(self, load, n):
        c = self.outbox.sqlite("app.db")
        c.execute("begin immediate")
        for _ in range(n):
            key, k, topic = load.next()
            insert(c, key, k, topic=topic)
        c.execute("commit")
        c.close()


class PostgresSource:
    def __init__(self, db, mode):
        self.db = db
        self.conf = f'{{type: postgres, dsn: "{db.dsn}", mode: {mode}}}'

    def fill(self, load, n):
        c = self.db.connect(autocommit=False)
        cur = c.cursor()
        for _ in range(n):
            key, k, topic = load.next()
            emit(cur, key, k, topic=topic)
            if k % 10 == 0:
                c.commit()
        c.commit()
        c.close()


class StreamSource(PostgresSource):
    """Mode wal, and a slot exists before the first event. kind: the native table, one without state, or messages."""

    OPTIONS = {
        "native": "",
        "mapped": ", mapping: {table: events_out, id: id, type: kind, key: ref, payload: body, topic: topic}",
        "messages": ", message_prefix: outbox",
    }

    def __init__(self, db, kind):
        self.db, self.kind = db, kind
        self.conf = f'{{type: postgres, dsn: "{db.dsn}", mode: wal{self.OPTIONS[kind]}}}'
        if kind == "mapped":
            db.sql("create table events_out (id text, kind text, ref text, body jsonb, topic text)")

    def fill(self, load, n):
        if self.kind == "native":
            super().fill(load, n)
            return
        c = self.db.connect(autocommit=False)
        cur = c.cursor()
        for _ in range(n):
            key, k, topic = load.next()
            body = json.dumps({"key": key, "n": k})
            if self.kind == "mapped":
                cur.execute("insert into events_out values (%s, 't', %s, %s, %s)", (str(k), key, body, topic))
            else:
                message = {"type": "t", "key": key, "topic": topic, "payload": {"key": key, "n": k}}
                cur.execute("select pg_logical_emit_message(true, 'outbox', %s)", (json.dumps(message),))
            if k % 10 == 0:
                c.commit()
        c.commit()
        c.close()


STREAMS = {"wal": "native", "wal_mapped": "mapped", "wal_messages": "messages"}


@pytest.fixture(params=["sqlite-rabbitmq", "log-kafka", "log-rabbitmq", "wal-rabbitmq", "wal_messages-rabbitmq"])
def world(request, outbox):
    source, broker = request.param.split("-")
    side = KafkaSide(request.getfixturevalue("kafka")) if broker == "kafka" else RabbitSide(request.getfixturevalue("rabbit"))
    return make_source(request, outbox, source), side


def make_source(request, outbox, name):
    if name == "sqlite":
        return SqliteSource(outbox)
    db = request.getfixturevalue("db")
    return StreamSource(db, STREAMS[name]) if name in STREAMS else PostgresSource(db, name)


def make_slot(outbox, source):
    if isinstance(source, StreamSource):
        outbox.run("run", "--once")


def begin(outbox, source, side, shards=1):
    outbox.write("outbox.yaml", CONFIG.format(source=source.conf, sink=side.sink, shards=shards))
    outbox.run("schema", "--apply")
    make_slot(outbox, source)
    return Load(side)


def finish(outbox, side, load):
    """All arrived; gives the repeats. First arrivals of a key are in order."""
    side.make()
    relay = outbox.start("run")
    wait_until(lambda: {v["n"] for v in side.seen()} >= load.events(), 90, "everything arrived", every=0.5)
    assert relay.stop() == 0
    first, repeats, known = {k: [] for k in load.ledger}, [], set()
    for v in side.seen():
        if v["n"] in known:
            repeats.append(v["n"])
            continue
        known.add(v["n"])
        first[v["key"]].append(v["n"])
    assert known == load.events()
    if not side.ties:
        assert first == load.ledger
    return repeats


class Feeder(threading.Thread):
    """Writes until it is stopped."""

    def __init__(self, source, load):
        super().__init__(daemon=True)
        self.source, self.load, self.go, self.error = source, load, True, None
        self.start()

    def run(self):
        try:
            while self.go:
                self.source.fill(self.load, 10)
                time.sleep(0.02)
        except Exception as e:  # the test looks at it
            self.error = e

    def stop(self):
        self.go = False
        self.join()
        assert self.error is None, self.error


def progress(side, n=60):
    before = len(side.seen())
    wait_until(lambda: len(side.seen()) > before + n, 40, "progress", every=0.05)


def test_stop_and_reload_under_load(outbox, world):
    source, side = world
    load = begin(outbox, source, side)
    feeder = Feeder(source, load)
    for _ in range(4):
        relay = outbox.start("run")
        progress(side)
        relay.signal(signal.SIGHUP)
        wait_until(lambda: "relay.reload" in relay.err, 30, "reloaded")
        progress(side)
        assert relay.stop() == 0
    feeder.stop()
    assert finish(outbox, side, load) == []


def test_kill_repeats_what_was_delivered_since_the_last_settle(outbox, world):
    source, side = world
    load = begin(outbox, source, side)
    feeder = Feeder(source, load)
    rounds = 5
    for _ in range(rounds):
        relay = outbox.start("run")
        progress(side)
        relay.kill()
    feeder.stop()
    repeats = finish(outbox, side, load)
    # A settle is about 0.1 s old when the process ends, and each key has one event in flight.
    assert len(repeats) <= rounds * 4 * KEYS, f"{len(repeats)} of {len(load.events())}"


@pytest.mark.parametrize("broker", ["kafka", "rabbitmq"])
def test_a_shard_that_is_handed_over(outbox, db, request, broker):
    side = KafkaSide(request.getfixturevalue("kafka")) if broker == "kafka" else RabbitSide(request.getfixturevalue("rabbit"))
    source = PostgresSource(db, "log")
    load = begin(outbox, source, side, shards=4)
    feeder = Feeder(source, load)
    first = outbox.start("run")
    progress(side)
    second = outbox.start("run")
    wait_until(lambda: second.err.count("relay.start") >= 2, 40, "shards are handed over")
    progress(side)
    assert first.stop() == 0
    progress(side)
    assert second.stop() == 0
    feeder.stop()
    assert finish(outbox, side, load) == []


PLAIN = """
pipelines:
  orders:
    source: {source}
    sink: {{type: rabbitmq, url: "amqp://guest:guest@127.0.0.1:{port}/", exchange: {exchange}}}
    envelope: none
    grace: 300ms
    park_after: {park_after}
    routes: [{{topic: x}}]
"""


@pytest.fixture(params=["sqlite", "log", *STREAMS])
def lost(request, outbox, rabbit):
    """A relay to a server whose confirm of the first event of key k1 is lost, and the events that arrived."""
    exchange, queue = rabbit.exchange()
    source = make_source(request, outbox, request.param)
    first = []

    def decide(body):
        if json.loads(body)["key"] == "k1" and not first:
            first.append(json.loads(body)["n"])
            return "drop"
        return None

    proxy = Confirms(rabbit.port, decide)
    got = []

    def seen():
        got.extend(json.loads(body) for _, _, body in rabbit.read(queue))
        return got

    def begin(park_after):
        outbox.write("outbox.yaml", PLAIN.format(source=source.conf, port=proxy.address, exchange=exchange, park_after=park_after))
        outbox.run("schema", "--apply")
        make_slot(outbox, source)
        return Load(type("Side", (), {"missing": "x", "topics": ["x"] * 3}))

    yield source, begin, seen, first
    proxy.close()


def settled_ahead(outbox, source):
    table = "outbox_cursor" if isinstance(source, SqliteSource) else "outbox.cursor"
    sql = f"select sum(ahead_n) from {table}"
    if isinstance(source, SqliteSource):
        c = outbox.sqlite("app.db")
        (n,) = c.execute(sql).fetchone()
        c.close()
        return n
    return source.db.sql(sql)[0][0]


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_only_what_was_not_acknowledged_comes_again(outbox, lost, how):
    source, begin, seen, first = lost
    load = begin("60s")
    source.fill(load, 400)
    relay = outbox.start("run")
    behind = {n for k, ns in load.ledger.items() if k != "k1" for n in ns}
    wait_until(lambda: {v["n"] for v in seen()} >= behind, 30, "all other keys are delivered", every=0.05)
    wait_until(lambda: settled_ahead(outbox, source) >= len(behind), 10, "a settle")
    relay.signal(how)
    relay.wait()
    relay = outbox.start("run")
    wait_until(lambda: {v["n"] for v in seen()} >= load.events(), 40, "all are delivered", every=0.1)
    assert relay.stop() == 0
    numbers = [v["n"] for v in seen()]
    assert sorted(numbers) == sorted([*load.events(), *first])
    assert [v["n"] for v in seen() if v["key"] == "k1"] == [*first, *load.ledger["k1"]]


def test_a_key_without_acknowledgement_goes_on_after_a_crash(outbox, lost):
    """Its first event is parked as overdue: the next owner sends it within 5 s, not after publish_timeout."""
    source, begin, seen, _ = lost
    load = begin("200ms")
    source.fill(load, 200)
    relay = outbox.start("run")
    wait_until(lambda: outbox.json("status", "--json")[0]["parked"] == len(load.ledger["k1"]), 20, "the key is parked", every=0.05)
    relay.kill()
    start = time.monotonic()
    relay = outbox.start("run")
    wait_until(lambda: {v["n"] for v in seen()} >= load.events(), 40, "all are delivered", every=0.1)
    assert time.monotonic() - start < 5 * SLOW
    assert relay.stop() == 0
