# SPDX-License-Identifier: Apache-2.0
"""test_hostile_headers - names and values of headers from rows and templates, on every broker: no row forges a header, a command or a property,
and none keeps its own dead letter from being sent."""

import json

import pytest

import test_nats
from helpers import wait_until

CONFIG = """
pipelines:
  p:
    source: {{type: sqlite, path: app.db}}
    routes: [{{topic: "{topic}", headers: {{x-type: "${{type}}", x-tenant: "${{tenant:-none}}"}}}}]
    envelope: none
    sink: {{{sink}}}
    dlt: {dlt}
"""

BREAK = "a\r\nNats-Rollup: all\r\nx-forged: yes\n\0end"
PLAIN = BREAK.translate({10: " ", 13: " ", 0: " "})
# Names that no broker gets: each row is dead.
NAMES = ["x\r\nNats-Rollup", "x\n", "x\0y", "", "\x7f"]
# Names that only the lines of NATS cannot hold.
LINES = ["x: y", "x y", "ü"]


class Broker:
    """One broker as its outside client sees it: messages as (topic, headers, number or None)."""

    def __init__(self, request, kind):
        self.kind = kind
        self.server = server = request.getfixturevalue({"rabbitmq": "rabbit"}.get(kind, kind))
        if kind == "nats":
            self.name = server.stream(None, allow_rollup_hdrs=True)
            self.topic, self.sink = f"{self.name}.x", f'type: nats, url: "{server.url}", max_payload: 8000'
        elif kind == "rabbitmq":
            exchange, self.name = server.exchange()
            self.topic, self.sink = "x", f'type: rabbitmq, url: "{server.url}", exchange: {exchange}, max_message: 8000'
            self.got = []
        else:
            self.topic = server.topic()
            server.topic(name=f"{self.topic}.dlt")
            self.sink = f'type: kafka, brokers: "{server.brokers}", max_message: 8000'

    def read(self):
        if self.kind == "nats":
            return [(m.subject, m.headers, m.json()) for m in self.server.read(self.name)]
        if self.kind == "rabbitmq":
            for method, properties, body in self.server.read(self.name):
                self.got.append((method.routing_key, list((properties.headers or {}).items()), json.loads(body)))
            return self.got
        records = self.server.read(self.topic) + self.server.read(f"{self.topic}.dlt")
        return [(r.topic, [(k, v.decode()) for k, v in r.headers], json.loads(r.value)) for r in records]


@pytest.fixture(params=["nats", "rabbitmq", "kafka"])
def broker(request):
    return Broker(request, request.param)


def prepare(outbox, broker, dlt="off"):
    outbox.write("outbox.yaml", CONFIG.format(topic=broker.topic, sink=broker.sink, dlt=dlt))
    outbox.run("schema", "--apply")
    return outbox.sqlite("app.db")


def names(headers):
    return sorted(name for name, _ in headers)


def test_no_row_forges_a_header(outbox, broker):
    """Line breaks in a value become spaces, also through a template; a name with one rejects the event."""
    db = prepare(outbox, broker)
    test_nats.insert(db, "value", 0, headers=json.dumps({"x-row": BREAK, "Nats-Rollup": "all", "nats-msg-id": "taken"}))
    test_nats.insert(db, "template", 1, tenant=BREAK.replace("\0", "\n"))
    for n, name in enumerate(NAMES):
        test_nats.insert(db, f"name{n}", 10 + n, headers=json.dumps({name: "v"}))
    for n, name in enumerate(LINES):
        test_nats.insert(db, f"line{n}", 20 + n, headers=json.dumps({name: "v"}))
    outbox.run("run", "--once")
    got = {value["n"]: dict(headers) for _, headers, value in broker.read()}
    lines = set() if broker.kind == "nats" else {20 + n for n in range(len(LINES))}
    assert set(got) == {0, 1} | lines
    ours = {"nats": {"Nats-Msg-Id"}, "kafka": {"id"}, "rabbitmq": set()}[broker.kind]
    passed = set() if broker.kind == "nats" else {"Nats-Rollup", "nats-msg-id"}  # plain names elsewhere
    assert set(got[0]) - {"content-type"} == {"x-row", "x-type", "x-tenant"} | ours | passed and got[0]["x-row"] == PLAIN
    assert set(got[1]) - {"content-type"} == {"x-type", "x-tenant"} | ours and got[1]["x-tenant"] == PLAIN.replace("\0", " ")
    for n in lines:
        assert got[n][LINES[n - 20]] == "v"
    assert len(test_nats.dead(outbox)) == len(NAMES) + len(LINES) - len(lines)
    assert all("header" in row["error"] for row in test_nats.dead(outbox))


def test_dead_letters_forge_nothing_and_are_sent(outbox, broker):
    """A dead letter has headers of its own from key, type and error of the row. Those of the row that the broker cannot carry are left out."""
    db = prepare(outbox, broker, dlt="on")
    big = json.dumps({"n": 0, "x": "y" * 9000})
    test_nats.insert(db, f" {BREAK} ".replace("\0", ""), 0, type=f"t{BREAK} ".replace("\0", ""), payload=big, headers=json.dumps({"Nats-Rollup": "all", "x-row": BREAK}))
    test_nats.insert(db, "id", 1, id="e\r\nx-forged: yes")
    rows = 2 + len(NAMES) + len(LINES)
    for n, name in enumerate(NAMES + LINES):
        test_nats.insert(db, f"name{n}", 10 + n, headers=json.dumps({name: "v"}), payload=json.dumps({"n": 10 + n, "x": "y" * 9000}))
    p = outbox.start("run")
    wait_until(lambda: len(broker.read()) == rows, 40, "all dead letters", every=0.2)
    assert p.stop() == 0
    for topic, headers, value in broker.read():
        assert topic == f"{broker.topic}.dlt" and value["eventId"]
        assert "x-forged" not in dict(headers) and not any("\r" in text or "\n" in text for pair in headers for text in pair)
        if broker.kind == "nats":
            assert [name for name in names(headers) if name.lower().startswith("nats-")] == ["Nats-Msg-Id"]
        found = dict(headers)
        assert found["outbox-origin-topic"] == broker.topic and found["outbox-attempts"]
    keys = {dict(headers)["outbox-origin-key"] for _, headers, _ in broker.read()}
    assert PLAIN.replace("  end", " end") in keys
