# SPDX-License-Identifier: Apache-2.0
"""test_profile_brokers - microdao to NATS and farmwise to RabbitMQ, on real servers and seen by clients that are not ours."""

import json
import uuid

import pytest

from helpers import wait_until
from profiles import Profile, golden
from proxies import Confirms, Proxy

STREAMS = "streams: [{name: STREAM_PAYOUT, subjects: ['payout.>']}, {name: STREAM_AGENT_RUN, subjects: ['agent.run.>']}]"
NAME = "Farm.FieldCreated, Farm.Domain, Version=1.0.0.0, Culture=neutral, PublicKeyToken=null"


def insert(db, table, row):
    names = ", ".join(f'"{k}"' for k in row)
    db.sql(f"insert into {table} ({names}) values ({', '.join(['%s'] * len(row))})", *row.values())


# ---- microdao → NATS ----


def nats_sink(server, more=""):
    return f'{{url: "{server.url}", declare: create, {STREAMS}{more}}}'


def payout(db, event, n=0):
    insert(db, "outbox_events", {"id": event, "stream": "STREAM_PAYOUT", "topic": "payout.generated", "payload": json.dumps({"n": n})})


def ids(server, stream="STREAM_PAYOUT"):
    with server.client() as c:
        return [m.id for m in c.read(stream)] if "error" not in c.stream_info(stream, check=False) else []


def test_microdao_messages(outbox, db, own_nats):
    """Golden messages, seen in the stream."""
    server = own_nats()
    p = Profile(outbox, db, "microdao", nats_sink(server))
    for path in golden("microdao"):
        g = json.loads(path.read_text())
        own = g.get("config", {})
        p.config(nats_sink(server), more=f"    routes: {own['routes']}" if "routes" in own else "")
        insert(db, "outbox_events", g["row"])
        outbox.run("run", "--once")
        want = g["message"]
        m = server.read(want["stream"])[-1]
        assert m.subject == want["topic"] and m.data.decode() == want["body"]
        properties = {k: v for k, v in want["properties"].items() if k.startswith("Nats-")}
        assert dict(m.headers) == {**properties, **want["headers"]}


def test_microdao_worker_crash(outbox, db, own_nats):
    """Killed in the middle: each event is in the stream once, because its id is Nats-Msg-Id."""
    server = own_nats()
    p = Profile(outbox, db, "microdao", nats_sink(server))
    for n in range(500):
        payout(db, f"e{n:04}", n)
    for _ in range(3):
        before = len(ids(server))
        relay = p.start()
        wait_until(lambda: len(ids(server)) > min(before + 20, 499), 20)
        relay.kill()
    relay = p.start()
    p.wait("select count(*) from outbox_events where not processed", want=0, deadline=30)
    assert relay.stop() == 0
    assert ids(server) == [f"e{n:04}" for n in range(500)]


def test_microdao_nats_down(outbox, db, own_nats):
    server = own_nats()
    p = Profile(outbox, db, "microdao", nats_sink(server))
    relay = p.start()
    payout(db, "a")
    wait_until(lambda: ids(server) == ["a"], 20)
    server.stop(kill=True)
    for n in range(20):
        payout(db, f"b{n:02}")
    wait_until(lambda: "sink.down" in relay.err, 20)
    assert db.one("select count(*) from outbox_events where not processed and error is null") == 20
    server.start()
    p.wait("select count(*) from outbox_events where not processed", want=0, deadline=30)
    assert ids(server) == ["a", *(f"b{n:02}" for n in range(20))] and p.dead() == []
    assert relay.stop() == 0


def test_microdao_database_down(outbox, own_postgres, own_nats):
    server, postgres = own_nats(), own_postgres()
    db = postgres.database()
    p = Profile(outbox, db, "microdao", nats_sink(server))
    relay = p.start()
    payout(db, "a")
    wait_until(lambda: ids(server) == ["a"], 20)
    postgres.restart("immediate")
    wait_until(lambda: payout(db, "b") is None, 20)
    wait_until(lambda: ids(server) == ["a", "b"], 30)
    p.wait("select count(*) from outbox_events where not processed", want=0)
    assert relay.stop() == 0


def test_microdao_corrupt_payload_and_release(outbox, db, own_nats):
    """Too large for the server: dead as `invalid payload`; released by UPDATE after it was mended."""
    server = own_nats()
    p = Profile(outbox, db, "microdao", nats_sink(server, ", max_payload: 4k"))
    relay = p.start()
    payout(db, "big", "x" * 5000)
    payout(db, "next")
    p.wait("select error from outbox_events where id = 'big'", want="invalid payload")
    p.wait("select processed from outbox_events where id = 'next'")
    assert ids(server) == ["next"] and len(p.dead()) == 1
    db.sql("update outbox_events set payload = '{}', error = null where id = 'big'")
    p.wait("select processed from outbox_events where id = 'big'")
    assert ids(server) == ["next", "big"] and relay.stop() == 0


def test_microdao_check_looks_at_every_stream(outbox, db, own_nats):
    """The streams that rows may name, by the prefixes of topics: also those that nobody declares."""
    server = own_nats()
    Profile(outbox, db, "microdao", nats_sink(server))
    hour = 3600 * 10**9
    server.stream("STREAM_AGENT_RUN", "agent.run.>", duplicate_window=hour)
    server.stream("STREAM_EMBASSY", "embassy.>", duplicate_window=120 * 10**9)
    told = outbox.run("check", check=1).out
    assert "problem events: stream STREAM_RWA: there is none\n" in told, told
    assert "problem events: stream STREAM_EMBASSY forgets message ids after 120 s" in told and "STREAM_AGENT_RUN forgets" not in told, told
    assert "ok      events: stream STREAM_PAYOUT: there is none; it will be made" in told, told
    server.stream("STREAM_RWA", "rwa.inventory.>", duplicate_window=hour)
    with server.client() as c:
        c.update("STREAM_EMBASSY", duplicate_window=hour)
    told = outbox.run("check", check=None).out
    assert "problem events: stream" not in told and "stream STREAM_RWA is there" in told, told


# ---- farmwise → RabbitMQ ----


@pytest.fixture
def bus(rabbit):
    """The exchange of the profile's form under a name of this test's own, and a queue."""
    exchange, queue = rabbit.exchange()
    return type("Bus", (), {"exchange": exchange, "queue": queue, "server": rabbit})


def bus_sink(bus, proxy=None):
    url = f"amqp://guest:guest@127.0.0.1:{proxy.address}/" if proxy else bus.server.url
    return f'{{url: "{url}", exchange: {bus.exchange}}}'


def field(db, payload='{"FieldId": 1}', name=NAME):
    event = str(uuid.uuid4())
    insert(db, '"OutboxMessage"', {"Id": event, "EventType": name, "Payload": payload})
    return event


def row(db, event):
    return db.sql('select "Status", "RetryCount", "Error" from "OutboxMessage" where "Id" = %s', event)[0]


def test_farmwise_messages(outbox, db, rabbit):
    """Golden messages, with the profile's own exchange, which it makes where there is none."""
    server = rabbit
    p = Profile(outbox, db, "farmwise", f'{{url: "{server.url}"}}')
    files = golden("farmwise")
    outbox.run("run", "--once")  # makes the exchange
    c = server.connect()
    c.channel().queue_declare("seen", durable=True)
    wait_until(lambda: c.channel().queue_bind("seen", "farmwise.events", "#"), 20)
    c.close()
    for path in files:
        g = json.loads(path.read_text())
        own = g.get("config", {})
        p.config(f'{{url: "{server.url}"}}', more=f"    routes: {own['routes']}" if "routes" in own else "")
        insert(db, '"OutboxMessage"', g["row"])
        outbox.run("run", "--once")
        ((method, properties, body),) = server.read("seen")
        want = g["message"]
        assert (method.exchange, method.routing_key) == (want["properties"]["exchange"], want["topic"])
        assert body.decode() == want["body"] and properties.content_type == want["content_type"]
        assert (properties.headers or {}) == want["headers"]
        q = want["properties"]
        assert (properties.message_id, properties.type, properties.delivery_mode) == (q["message_id"], q["type"], q["delivery_mode"])
        assert properties.timestamp == 1767323045 and q["timestamp"].startswith("2026-01-02T03:04:05")


@pytest.mark.parametrize("relay_stops", [False, True], ids=["the relay runs on", "the relay is stopped meanwhile"])
def test_farmwise_broker_down_rows_stay_pending(outbox, db, bus, relay_stops):
    """The broker goes away and refuses; the rows stay Pending with their RetryCount, and are sent when it is there again."""
    proxy = Proxy(bus.server.port)
    p = Profile(outbox, db, "farmwise", bus_sink(bus, proxy), source="poll_max: 100ms")
    relay = p.start()
    first = field(db)
    p.wait('select "Status" from "OutboxMessage" where "Id" = %s', first, want="Processed")
    proxy.off()
    events = [field(db) for _ in range(5)]
    wait_until(lambda: "sink.down" in relay.err, 20)
    wait_until(lambda: {row(db, e) for e in events} == {("Pending", 0, None)}, 20)
    assert p.dead() == []
    if relay_stops:
        assert relay.stop() == 0
        assert {row(db, e) for e in events} == {("Pending", 0, None)}, "also when the relay stops meanwhile"
    proxy.on()
    if relay_stops:
        relay = p.start()
    for e in events:
        p.wait('select "Status" from "OutboxMessage" where "Id" = %s', e, want="Processed")
    assert {row(db, e)[1] for e in events} == {0} and relay.stop() == 0
    proxy.close()
    seen = [q.message_id for _, q, _ in bus.server.read(bus.queue)]
    assert seen[0] == first and sorted(seen[1:]) == sorted(events)


def test_farmwise_from_appsettings_makes_its_exchange(outbox, db, rabbit):
    """What `init --from` writes, run as it is against a broker that has no such exchange."""
    exchange = rabbit.name("farm.ex")
    server = {"HostName": "127.0.0.1", "Port": rabbit.port, "ExchangeName": exchange, "ExchangeType": "topic"}
    outbox.write("appsettings.json", json.dumps({"RabbitMQ": server}))
    outbox.run("init", "--from", "appsettings.json", "--source", db.dsn)
    outbox.run("schema", "--profile", "farmwise", "--apply")
    outbox.run("schema", "--apply")
    assert f"exchange {exchange}: is not there yet and will be made" in outbox.run("check", check=None).out
    event = field(db)
    outbox.run("run", "--once")
    assert row(db, event)[0] == "Processed"
    c = rabbit.connect()
    c.channel().exchange_declare(exchange, "topic", durable=True)  # as another program would: the same, or it is refused
    c.close()


def test_farmwise_unreadable_payload_fails_at_once(outbox, db, bus):
    p = Profile(outbox, db, "farmwise", bus_sink(bus), source="poll_max: 100ms")
    bad, good = field(db, "{nope"), field(db)
    relay = p.start()
    p.wait('select "Status" from "OutboxMessage" where "Id" = %s', bad, want="Failed")
    p.wait('select "Status" from "OutboxMessage" where "Id" = %s', good, want="Processed")
    assert row(db, bad)[1] == 0 and "JSON" in row(db, bad)[2]
    assert [q.message_id for _, q, _ in bus.server.read(bus.queue)] == [good] and relay.stop() == 0


@pytest.mark.parametrize("times", [1, 99], ids=["one confirm", "every confirm of one message"])
def test_farmwise_time_out_is_retried_up_to_three_times(outbox, db, bus, times):
    """A proxy swallows the confirm of one message while those of others pass: it is tried again, with its RetryCount; after the
    third time it is Failed."""
    left = [times]

    def decide(body):
        if b"swallowed" not in body or left[0] == 0:
            return None
        left[0] -= 1
        return "drop"

    proxy = Confirms(bus.server.port, decide)
    p = Profile(
        outbox, db, "farmwise", bus_sink(bus, proxy), source="poll_max: 100ms",
        more="    publish_timeout: 1s\n    retry: {first: 200ms, max: 200ms}",
    )
    relay = p.start()
    lost = field(db, '{"FieldId": "swallowed"}')
    events = []

    def over():  # others pass all the time
        events.append(field(db))
        return row(db, lost)[0] in ("Processed", "Failed")

    wait_until(over, 60, every=0.2)
    p.wait("""select count(*) from "OutboxMessage" where "Status" in ('Pending', 'Processing')""", want=0, deadline=30)
    assert relay.stop() == 0
    proxy.close()
    status, count, error = row(db, lost)
    if times == 1:
        assert (status, count) == ("Processed", 1) and p.dead() == []
    else:
        assert (status, count) == ("Failed", 3) and "publish_timeout" in error and len(p.dead()) == 1
    assert {row(db, e)[:2] for e in events} == {("Processed", 0)}, "nobody else's attempts"
    seen = [q.message_id for _, q, _ in bus.server.read(bus.queue)]
    assert seen.count(lost) == (2 if times == 1 else 3), "each attempt reached the broker, which only could not say so"
    assert set(seen) == {lost, *events}


def test_farmwise_rolled_back_transaction_leaves_nothing(outbox, db, bus):
    p = Profile(outbox, db, "farmwise", bus_sink(bus), source="poll_max: 100ms")
    relay = p.start()
    c = db.connect(autocommit=False)
    with c.cursor() as cur:
        cur.execute('insert into "OutboxMessage" ("Id", "EventType", "Payload") values (%s, %s, %s)', (str(uuid.uuid4()), NAME, "{}"))
    c.rollback()
    kept = field(db)
    p.wait('select "Status" from "OutboxMessage" where "Id" = %s', kept, want="Processed")
    assert [q.message_id for _, q, _ in bus.server.read(bus.queue)] == [kept] and relay.stop() == 0


def test_farmwise_nobody_bound_is_delivered_and_logged_once(outbox, db, bus):
    c = bus.server.connect()
    c.channel().queue_unbind(bus.queue, bus.exchange, "#")
    c.close()
    p = Profile(outbox, db, "farmwise", bus_sink(bus), source="poll_max: 100ms")
    events = [field(db) for _ in range(10)]
    relay = p.start()
    for e in events:
        p.wait('select "Status" from "OutboxMessage" where "Id" = %s', e, want="Processed")
    assert relay.err.count("sink.rabbitmq.unroutable") == 1 and relay.stop() == 0
