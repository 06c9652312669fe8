# SPDX-License-Identifier: Apache-2.0
"""test_nats - from SQLite to NATS JetStream on a real server, read back by a client written from the protocol."""

import json
import os
import signal
import time

import pytest

from helpers import SLOW, wait_until

CONFIG = """
log: {{level: debug}}
pipelines:
  p:
    source: {{type: sqlite, path: app.db}}
    sink: {{type: nats, url: "{url}"{sink}}}
    {envelope}
    routes: [{{topic: "{topic}"{route}}}]
{more}
"""


def prepare(outbox, url, topic, sink="", route="", more="", envelope="envelope: none"):
    sink = ", " + sink if sink else ""
    route = ", " + route if route else ""
    outbox.write("outbox.yaml", CONFIG.format(url=url, topic=topic, sink=sink, route=route, more=more, envelope=envelope))
    outbox.run("schema", "--apply")
    return outbox.sqlite("app.db")


def insert(db, key, n, **columns):
    row = {"type": "placed", "aggregate_id": key, "payload": json.dumps({"key": key, "n": n}), **columns}
    marks = ", ".join("?" for _ in row)
    db.execute(f"insert into outbox_event({', '.join(row)}) values ({marks})", list(row.values()))


def numbers(messages, key=None):
    return [m.json()["n"] for m in messages if key is None or m.json()["key"] == key]


def test_a_message_arrives_as_it_was_written(outbox, nats):
    stream = nats.stream()
    db = prepare(outbox, nats.url, f"{stream}.${{type}}", route=f"stream: {stream}, headers: {{x-key: '${{aggregate_id}}'}}")
    for n in range(50):
        insert(db, f"k{n % 5}", n)
    ids = [r[0] for r in db.execute("select id from outbox_event order by seq")]
    outbox.run("run", "--once")
    got = nats.read(stream)
    assert sorted(m.id for m in got) == sorted(ids)
    for m in got:
        assert m.subject == f"{stream}.placed"
        assert sorted(m.headers) == [("Nats-Expected-Stream", stream), ("Nats-Msg-Id", m.id), ("x-key", m.json()["key"])]
    for key in range(5):
        assert numbers(got, f"k{key}") == list(range(key, 50, 5))


def test_a_cloud_event_has_its_headers_and_type(outbox, nats):
    stream = nats.stream()
    db = prepare(outbox, nats.url, f"{stream}.x", envelope="")
    insert(db, "a", 1)
    outbox.run("run", "--once")
    (m,) = nats.read(stream)
    headers = dict(m.headers)
    assert headers["Content-Type"] == "application/json"
    assert headers["ce_type"] == "placed" and headers["ce_id"] == m.id


def test_a_repeat_is_a_duplicate_for_the_stream(outbox, nats):
    """Trap 27: duplicate=true is success."""
    stream = nats.stream()
    db = prepare(outbox, nats.url, f"{stream}.x")
    for n in range(20):
        insert(db, "a", n)
    outbox.run("run", "--once")
    rows = db.execute("select id, type, aggregate_id, payload from outbox_event order by seq").fetchall()
    db.close()
    for suffix in ("", "-wal", "-shm"):
        outbox.path("app.db" + suffix).unlink(missing_ok=True)
    outbox.run("schema", "--apply")
    db = outbox.sqlite("app.db")
    for row in rows:
        db.execute("insert into outbox_event(id, type, aggregate_id, payload) values (?, ?, ?, ?)", row)
    outbox.run("run", "--once")
    assert outbox.json("status", "--json")[0]["pending"] == 0
    assert len(nats.read(stream)) == 20
