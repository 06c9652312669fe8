# SPDX-License-Identifier: Apache-2.0
"""test_dlt - dead events in the dead-letter topic: recorded first, then published in its five keys with where they came from."""

import json
import re

import pytest

import pg
from helpers import SLOW, read_jsonl, wait_until

KEYS = ["eventId", "originalEvent", "errorMessage", "failedAt", "consumerService"]


def lite(outbox, sink, more="    dlt: on"):
    outbox.write("outbox.yaml", f"""
log: {{level: debug}}
pipelines:
  shop:
    source: {{type: sqlite, path: app.db}}
    sink: {sink}
    routes: [{{topic: "shop.${{type}}"}}]
    envelope: none
{more}
""")
    outbox.run("schema", "--apply")
    return outbox.sqlite("app.db")


def insert(db, id, key, payload, type="placed", kind="json"):
    db.execute("insert into outbox_event(id, type, aggregate_id, payload, payload_kind) values (?, ?, ?, ?, ?)", (id, type, key, payload, kind))


def pending(db):
    return db.execute("select count(*) from outbox_dlt").fetchone()[0]


def test_a_dead_event_is_published_in_five_keys(outbox):
    db = lite(outbox, '{type: file, path: events.jsonl, max_line: 4k}')
    insert(db, "e1", "k", json.dumps({"n": 1}))
    insert(db, "e2", "k", json.dumps({"n": 2, "pad": "x" * 3600}))  # it fits, but not with what a letter adds
    insert(db, "e3", "k", json.dumps({"n": 3, "pad": "x" * 8000}))
    insert(db, "e4", "k", json.dumps({"n": 4}))
    outbox.run("run", "--once")
    lines = {m["id"]: m for m in read_jsonl(outbox.path("events.jsonl"))}
    assert set(lines) == {"e1", "e2", "e4", "e3.dlt"}
    m = lines["e3.dlt"]
    assert m["topic"] == "shop.placed.dlt" and m["key"] == "k" and m["content_type"] == "application/json"
    assert list(m["value"]) == KEYS
    assert m["value"]["eventId"] == "e3" and m["value"]["consumerService"] == "outbox/shop"
    assert m["value"]["originalEvent"] is None  # with it the letter would be refused too
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", m["value"]["failedAt"])
    (dead,) = outbox.json("dead", "list", "--json")
    assert dead["id"] == "e3" and dead["error"] == m["value"]["errorMessage"] == m["headers"]["outbox-error"]
    assert m["headers"]["outbox-origin-topic"] == "shop.placed" and m["headers"]["outbox-origin-key"] == "k"
    assert m["headers"]["outbox-attempts"] == str(dead["attempts"]) and m["headers"]["outbox-event-type"] == "placed"
    assert pending(db) == 0
    outbox.run("run", "--once")
    assert len(read_jsonl(outbox.path("events.jsonl"))) == 4  # once


def test_off_publishes_nothing(outbox):
    db = lite(outbox, '{type: file, path: events.jsonl, max_line: 4k}', more="")
    insert(db, "e1", "k", json.dumps({"pad": "x" * 8000}))
    outbox.run("run", "--once")
    assert not read_jsonl(outbox.path("events.jsonl")) and pending(db) == 0
    lite(outbox, '{type: file, path: events.jsonl, max_line: 4k}')
    outbox.run("run", "--once")
    assert not read_jsonl(outbox.path("events.jsonl"))  # what died before was never meant for it
    insert(db, "e2", "k", json.dumps({"pad": "x" * 8000}))
    outbox.run("run", "--once")
    assert [m["id"] for m in read_jsonl(outbox.path("events.jsonl"))] == ["e2.dlt"]


def test_postgres_and_a_relay_that_died_between(outbox, db):
    """The death is recorded, the process is gone: the next one sends the letter."""
    pg.config(outbox, db, more="    dlt: on", path="out/events.jsonl")
    text = outbox.path("outbox.yaml").read_text()
    outbox.write("outbox.yaml", text.replace("type: file,", "type: file, max_line: 4k,"))
    c = db.connect()
    with c.cursor() as cur:
        good = pg.emit(cur, "k", 1)
        bad = pg.emit(cur, "k", 2, payload=json.dumps({"key": "k", "n": 2, "pad": "x" * 8000}))
    outbox.run("run", "--once")
    got = {m["id"]: m for m in read_jsonl(outbox.path("out/events.jsonl"))}
    assert set(got) == {str(good), f"{bad}.dlt"} and list(got[f"{bad}.dlt"]["value"]) == KEYS
    assert db.one("select count(*) from outbox.dlt") == 0
    db.sql("insert into outbox.dlt select pipeline, n from outbox.dead")
    outbox.run("run", "--once")
    assert [m["id"] for m in read_jsonl(outbox.path("out/events.jsonl"))].count(f"{bad}.dlt") == 2


def to_nats(outbox, nats, topic="${type}", more="", sink=""):
    outbox.write("outbox.yaml", f"""
log: {{level: debug}}
pipelines:
  shop:
    source: {{type: sqlite, path: app.db}}
    sink: {{type: nats, url: "{nats.url}"{sink}}}
    routes: [{{topic: "{topic}", headers: {{tenant: t-7}}}}]
    envelope: none
    dlt: on
{more}
""")
    outbox.run("schema", "--apply")
    return outbox.sqlite("app.db")


def letters(nats, stream):
    return [m for m in nats.read(stream) if m.subject.endswith(".dlt")]


def test_letters_that_wait_hide_no_other(outbox, nats):
    """Forty letters whose subject no stream takes stand before one that can be sent, and before those that die later."""
    a, b = nats.stream().lower(), nats.stream().lower()
    stream = nats.stream(None, a, b, f"{b}.dlt", max_msg_size=5000)
    db = to_nats(outbox, nats)
    relay = outbox.start("run")
    big = json.dumps({"pad": "x" * 9000})
    for n in range(40):
        insert(db, f"a{n}", f"k{n}", big, type=a)
    wait_until(lambda: pending(db) == 40 and "dlt.waits" in relay.err, 20, "they wait")
    for n in range(3):
        insert(db, f"b{n}", "k", big, type=b)
    wait_until(lambda: len(letters(nats, stream)) == 3, 20, "the others pass")
    insert(db, "fine", "k1", "{}", type=a)
    wait_until(lambda: any(m.subject == a for m in nats.read(stream)), 20, "and events flow")
    assert pending(db) == 40 and relay.err.count("level=warn event=dlt.waits") <= 1
    m = letters(nats, stream)[0]
    headers = dict(m.headers)
    assert headers["tenant"] == "t-7" and headers["outbox-origin-topic"] == b and m.id == "b0.dlt"
    with nats.client() as c:
        c.update(stream, subjects=[a, f"{a}.dlt", b, f"{b}.dlt"], max_msg_size=5000)
    wait_until(lambda: pending(db) == 0, 40, "until somebody takes them")
    assert sorted(m.id for m in letters(nats, stream)) == sorted([f"a{n}.dlt" for n in range(40)] + [f"b{n}.dlt" for n in range(3)])


def test_more_places_wait_than_are_remembered(outbox, nats):
    """A hundred letters, each with a subject of its own that no stream takes, stand before one that can be sent."""
    many, b = nats.stream().lower(), nats.stream().lower()
    stream = nats.stream(None, f"{many}.*", b, f"{b}.dlt", max_msg_size=5000)
    db = to_nats(outbox, nats)
    relay = outbox.start("run")
    big = json.dumps({"pad": "x" * 9000})
    for n in range(100):
        insert(db, f"a{n}", f"k{n}", big, type=f"{many}.t{n}")
    wait_until(lambda: pending(db) == 100 and relay.err.count("dlt.waits") >= 64, 20, "they wait")
    insert(db, "b0", "k", big, type=b)
    wait_until(lambda: len(letters(nats, stream)) == 1, 20, "the other passes")
    assert pending(db) == 100 and letters(nats, stream)[0].id == "b0.dlt"
    with nats.client() as c:
        c.update(stream, subjects=[f"{many}.>", b, f"{b}.dlt"], max_msg_size=5000)
    wait_until(lambda: pending(db) == 0, 40, "until somebody takes them")
    assert len({m.id for m in letters(nats, stream)}) == 101


def test_a_relay_that_dies_between(outbox, nats):
    """Killed after the death was recorded and before the letter could be sent; and, with the same id, killed before it was
    marked."""
    a = nats.stream().lower()
    stream = nats.stream(None, a, max_msg_size=5000)
    db = to_nats(outbox, nats)
    relay = outbox.start("run")
    insert(db, "e1", "k", json.dumps({"pad": "x" * 9000}), type=a)
    wait_until(lambda: pending(db) == 1, 20, "recorded")
    assert outbox.json("dead", "list", "--json")[0]["id"] == "e1"
    relay.kill()
    with nats.client() as c:
        c.update(stream, subjects=[a, f"{a}.dlt"], max_msg_size=5000)
    outbox.start("run")
    wait_until(lambda: len(letters(nats, stream)) == 1 and pending(db) == 0, 20, "sent by the next one")
    db.execute("insert into outbox_dlt select pipeline, n from outbox_dead")
    outbox.started[-1].kill()
    outbox.start("run")
    wait_until(lambda: pending(db) == 0, 20, "sent again")
    assert [m.id for m in letters(nats, stream)] == ["e1.dlt"]  # with its id, which the stream knows


@pytest.mark.parametrize("where", ["own", "same", "other"])
def test_letters_beside_a_chain(outbox, nats, where):
    """single_writer: a letter goes outside the chain, or where its stream has one (that of the event or another), as a link of it:
    nobody is taken for a foreign writer, and the events around it stay in order."""
    a, b = nats.stream().lower(), nats.stream().lower()
    streams = {name: nats.stream(None, *subjects, *([f"{a}.dlt"] if name == where else []), **more)
               for name, subjects, more in (("same", [a], {"max_msg_size": 5000}), ("other", [b], {}), ("own", [f"{a}.none"], {}))}
    db = to_nats(outbox, nats, sink=f", single_writer: true, stream_prefixes: {{{a}: {streams['same']}, {b}: {streams['other']}}}")
    relay = outbox.start("run")
    big = json.dumps({"pad": "x" * 9000})
    for lot in range(3):
        for n in range(20):
            for kind in (a, b):
                payload = big if n == 10 and kind == a else json.dumps({"n": lot * 20 + n})
                insert(db, f"{kind}-{lot}-{n}", "k", payload, type=kind)
        wait_until(lambda: len(letters(nats, streams[where])) == lot + 1 and pending(db) == 0, 30, "a letter")
    wait_until(lambda: outbox.json("status", "--json")[0]["pending"] == 0, 30, "all of them")
    assert relay.stop() == 0 and "sink.nats.foreign" not in relay.err
    got = letters(nats, streams[where])
    assert [m.id for m in got] == [f"{a}-{lot}-10.dlt" for lot in range(3)]
    assert ["Nats-Expected-Last-Sequence" in dict(m.headers) for m in got] == [where != "own"] * 3
    for stream, kind in ((streams["same"], a), (streams["other"], b)):
        seen = [m.json()["n"] for m in nats.read(stream) if m.subject == kind]
        assert seen == [n for n in range(60) if kind == b or n % 20 != 10]
    status = outbox.json("status", "--json")[0]
    assert status["dead"] == status["failed"] == 3  # no other attempt was spent


def test_what_is_retried_or_discarded_has_no_letter(outbox, nats):
    a = nats.stream().lower()
    stream = nats.stream(None, a, max_msg_size=5000)
    db = to_nats(outbox, nats)
    for n in range(2):
        insert(db, f"e{n}", f"k{n}", json.dumps({"pad": "x" * 9000}), type=a)
    outbox.run("run", "--once")
    assert pending(db) == 2
    outbox.run("dead", "discard", "e0", "--yes")
    outbox.run("dead", "retry", "e1", "--yes")
    assert pending(db) == 0
    outbox.run("run", "--once")
    assert pending(db) == 1  # it died again
    with nats.client() as c:
        c.update(stream, subjects=[a, f"{a}.dlt"], max_msg_size=5000)
    outbox.run("run", "--once")
    assert [m.id for m in letters(nats, stream)] == ["e1.dlt"]


def test_rabbitmq_letters(outbox, rabbit):
    """In the same exchange, under the routing key with .dlt; where no queue is bound they wait."""
    exchange, queue = rabbit.exchange("none")
    outbox.write("outbox.yaml", f"""
pipelines:
  shop:
    source: {{type: sqlite, path: app.db}}
    sink: {{type: rabbitmq, url: "{rabbit.url}", exchange: {exchange}}}
    routes: [{{topic: "${{type}}"}}]
    envelope: none
    dlt: on
""")
    outbox.run("schema", "--apply")
    db = outbox.sqlite("app.db")
    outbox.start("run")
    insert(db, "e1", "k", '{"n": 1}', type="nobody")
    wait_until(lambda: pending(db) == 1, 20, "recorded")
    c = rabbit.connect()
    c.channel().queue_bind(queue, exchange, "*.dlt")
    c.close()
    wait_until(lambda: pending(db) == 0, 30, "sent when somebody listens")
    ((method, p, body),) = rabbit.read(queue)
    assert (method.exchange, method.routing_key, p.message_id) == (exchange, "nobody.dlt", "e1.dlt")
    value = json.loads(body)
    assert list(value) == KEYS and value["originalEvent"] == {"n": 1} and "no queue is bound" in value["errorMessage"]
    assert p.headers["outbox-origin-topic"] == "nobody" and p.content_type == "application/json"


def test_rabbitmq_letters_that_nobody_takes_wait(outbox, rabbit):
    """`unroutable: deliver` is about events. A letter that no queue took would be gone: it waits, which is said."""
    exchange, queue = rabbit.exchange("none")
    outbox.write("outbox.yaml", f"""
pipelines:
  shop:
    source: {{type: sqlite, path: app.db}}
    sink: {{type: rabbitmq, url: "{rabbit.url}", exchange: {exchange}, unroutable: deliver, max_message: 2k}}
    routes: [{{topic: "${{type}}"}}]
    envelope: none
    dlt: on
""")
    outbox.run("schema", "--apply")
    db = outbox.sqlite("app.db")
    p = outbox.start("run")
    insert(db, "e1", "k", json.dumps({"pad": "x" * 3000}), type="large")
    wait_until(lambda: "msg=dlt.waits" in p.err or "msg=dlt.sent" in p.err, 20, "told")
    assert "no queue is bound" in p.err.split("msg=dlt.waits")[1] and pending(db) == 1
    c = rabbit.connect()
    c.channel().queue_bind(queue, exchange, "*.dlt")
    c.close()
    wait_until(lambda: pending(db) == 0, 30, "sent when somebody listens")
    ((method, properties, body),) = rabbit.read(queue)
    assert (method.routing_key, properties.message_id) == ("large.dlt", "e1.dlt") and "too large" in json.loads(body)["errorMessage"]


OURS = ["outbox-origin-topic", "outbox-origin-key", "outbox-event-type", "outbox-attempts", "outbox-error", "outbox-failed-at"]


def one_letter(broker, server):
    """(sink, topic of events, function that reads the headers of the dead letters) on that broker, for events over 2 KB."""
    if broker == "kafka":
        topic = server.topic()
        server.topic(name=f"{topic}.dlt")
        return f'{{type: kafka, brokers: "{server.brokers}", max_message: 2k}}', topic, lambda: [
            [(k, v.decode()) for k, v in r.headers] for r in server.read(f"{topic}.dlt")]
    if broker == "nats":
        topic = server.stream().lower()
        stream = server.stream(None, topic, f"{topic}.dlt")
        return f'{{type: nats, url: "{server.url}", max_payload: 2k}}', topic, lambda: [
            list(m.headers) for m in letters(server, stream)]
    exchange, queue = server.exchange("#")
    return f'{{type: rabbitmq, url: "{server.url}", exchange: {exchange}, max_message: 2k}}', "large", lambda: [
        list(p.headers.items()) for _, p, _ in server.read(queue, keep=True)]


@pytest.mark.parametrize("broker", [pytest.param("kafka", marks=pytest.mark.slow), "nats", "rabbit"])
def test_headers_of_an_event_cannot_shadow_ours(outbox, request, broker):
    """A row with headers of our names, in any case: a dead letter has each once, with the relay's value; also when it is sent again
    after the relay was killed."""
    if broker == "kafka" and SLOW > 1:
        pytest.skip("skipped: a JVM beside a sanitizer")
    sink, topic, read = one_letter(broker, request.getfixturevalue(broker))
    db = lite(outbox, sink)
    outbox.write("outbox.yaml", outbox.path("outbox.yaml").read_text().replace('"shop.${type}"', '"${type}"'))
    forged = {name: "forged" for name in OURS} | {name.title(): "forged" for name in OURS}
    db.execute("insert into outbox_event(id, type, aggregate_id, payload, headers) values ('e1', ?, 'k', ?, ?)",
               (topic, json.dumps({"pad": "x" * 3000}), json.dumps({**forged, "x-row": "kept"})))
    outbox.run("run", "--once")
    db.execute("insert into outbox_dlt(pipeline, n) select pipeline, n from outbox_dead")  # as if the relay had died before it recorded the sending
    outbox.run("run", "--once")
    got = wait_until(read, 30, "the dead letter")
    assert got
    for headers in got:
        ours = [(k, v) for k, v in headers if k.lower().startswith("outbox-")]
        assert sorted(k for k, _ in ours) == sorted(OURS) and "forged" not in dict(ours).values(), headers
        assert dict(headers)["outbox-origin-topic"] == topic and dict(headers)["x-row"] == "kept"


@pytest.mark.parametrize("broker", ["nats", "rabbit"])
def test_an_event_that_no_message_can_carry_has_a_dead_letter(outbox, request, broker):
    """What the sink refuses in the event (names and values of headers, a long type, a key with a space at its end) would be refused in
    its dead letter too; a page full of such dead letters would hide those of other events with this topic."""
    sink, topic, read = one_letter(broker, request.getfixturevalue(broker))
    db = lite(outbox, sink, more="    dlt: on")
    outbox.write("outbox.yaml", outbox.path("outbox.yaml").read_text().replace('"shop.${type}"', '"${topic}"'))
    types = ["t", "a\r\nb", " t ", "t" * 300, "é" * 30000]
    headers = [{"bad name": "x"}, {"n" * 250: "x"}, {"line": " v "}, {f"h{i}": "v" * 1000 for i in range(90)}]
    events = [(f"e{i}-{k}", t, f" k{i}\t", json.dumps(h)) for i, t in enumerate(types) for k, h in enumerate(headers)]
    for event, kind, key, own in events:
        db.execute("insert into outbox_event(id, type, aggregate_id, topic, payload, headers) values (?, ?, ?, ?, ?, ?)",
                   (event, kind, key, topic, json.dumps({"pad": "x" * 3000}), own))
    relay = outbox.start("run")
    wait_until(lambda: len(read()) == len(events) and pending(db) == 0, 30, "a dead letter of each")
    for letter in read():
        assert dict(letter)["outbox-origin-topic"] == topic and dict(letter)["outbox-error"]
    assert relay.stop() == 0


def test_letters_of_every_shard(outbox, db, nats):
    """Shard 0 sends those of the others too."""
    a = nats.stream().lower()
    stream = nats.stream(None, a, f"{a}.dlt", max_msg_size=5000)
    outbox.write("outbox.yaml", f"""
pipelines:
  shop:
    source: {{type: postgres, dsn: "{db.dsn}"}}
    sink: {{type: nats, url: "{nats.url}"}}
    routes: [{{topic: {a}}}]
    envelope: none
    shards: 2
    dlt: on
""")
    outbox.run("schema", "--apply")
    outbox.start("run")
    cur = db.connect().cursor()
    first = {str(pg.emit(cur, f"k{n}", n)) for n in range(8)}
    wait_until(lambda: len(nats.read(stream)) == len(first), 30, "it flows")
    ids = {str(pg.emit(cur, f"k{n}", n, payload=json.dumps({"n": n, "pad": "x" * 9000}))) for n in range(8)}
    wait_until(lambda: {m.id for m in letters(nats, stream)} == {f"{i}.dlt" for i in ids}, 30, "a letter of each")
    wait_until(lambda: db.one("select count(*) from outbox.dlt") == 0, 10, "and all are marked")
