# SPDX-License-Identifier: Apache-2.0
"""test_sink_topics - which topics events may reach: `sink.topics` of every sink, `create_topics_max` of Kafka."""

import json
import uuid

import pytest

import test_nats
from helpers import wait_until
from test_kafka import config, emit, status

CONFIG = """
pipelines:
  p:
    source: {{type: sqlite, path: app.db}}
    routes: [{{topic: "${{topic:-default}}"}}]
    envelope: none
    sink: {{{sink}}}
"""


def insert(db, topic, n):
    test_nats.insert(db, f"k{n}", n, topic=topic)


@pytest.mark.parametrize("sink", ["type: file, path: out.jsonl", "type: stdout", 'type: "null"'])
def test_other_topics_are_dead_with_the_reason(outbox, sink):
    outbox.write("outbox.yaml", CONFIG.format(sink=sink + ", topics: [shop.*, exact]"))
    outbox.run("schema", "--apply")
    db = outbox.sqlite("app.db")
    topics = ["shop.a", "shop.a.b", "exact", "shop", "exact.dlt", "other", "EXACT", "my.shop.a"]
    for n, topic in enumerate(topics):
        insert(db, topic, n)
    outbox.run("run", "--once")
    rows = {row["key"]: row["error"] for row in test_nats.dead(outbox)}
    assert sorted(rows) == [f"k{n}" for n in range(3, len(topics))]
    for key, error in rows.items():
        assert f"'{topics[int(key[1:])]}'" in error and "sink.topics" in error
    assert status(outbox)["published"] == 3


@pytest.mark.parametrize("broker", ["nats", "rabbitmq", "kafka"])
def test_brokers_see_only_allowed_topics(outbox, request, broker):
    """The broker is asked by another client, and has nothing on the topic that is not listed."""
    server = request.getfixturevalue({"rabbitmq": "rabbit"}.get(broker, broker))
    if broker == "nats":
        name = server.stream()
        good, bad, sink = f"{name}.good", f"{name}.bad", f'type: nats, url: "{server.url}"'
        read = lambda: [m.subject for m in server.read(name)]
    elif broker == "rabbitmq":
        exchange, queue = server.exchange()
        good, bad, sink = "good", "bad", f'type: rabbitmq, url: "{server.url}", exchange: {exchange}'
        read = lambda: [json.loads(body)["n"] for _, _, body in server.read(queue)]
    else:
        good, bad, sink = server.topic(), server.topic(), f'type: kafka, brokers: "{server.brokers}"'
        read = lambda: [r.topic for topic in (good, bad) for r in server.read(topic)]
    outbox.write("outbox.yaml", CONFIG.format(sink=f"{sink}, topics: ['{good}']"))
    outbox.run("schema", "--apply")
    db = outbox.sqlite("app.db")
    insert(db, bad, 1)
    insert(db, good, 2)
    outbox.run("run", "--once")
    assert read() == ([2] if broker == "rabbitmq" else [good])
    (row,) = test_nats.dead(outbox)
    assert row["key"] == "k1" and "sink.topics" in row["error"]


def test_check_names_routes_that_lead_nowhere(outbox):
    outbox.write("outbox.yaml", CONFIG.format(sink='type: "null", topics: [shop.*]').replace("${topic:-default}", "shpo.x"))
    outbox.run("schema", "--apply")
    r = outbox.run("check", check=1)
    assert "topic shpo.x is not allowed by sink.topics" in r.out


def test_dead_letters_follow_their_topic(outbox, nats):
    """The dead letter of an allowed topic is sent, although no glob names it; one of another topic is not."""
    stream = nats.stream()
    text = CONFIG.format(sink=f'type: nats, url: "{nats.url}", max_payload: 2000, topics: [{stream}.good]') + "    dlt: on\n"
    outbox.write("outbox.yaml", text)
    outbox.run("schema", "--apply")
    db = outbox.sqlite("app.db")
    insert(db, f"{stream}.bad", 1)
    test_nats.insert(db, "k2", 2, topic=f"{stream}.good", payload=json.dumps({"n": 2, "x": "y" * 3000}))
    p = outbox.start("run")
    wait_until(lambda: len(nats.read(stream)) == 1, 20, "the dead letter")
    wait_until(lambda: "dlt.waits" in p.err, 20, "the other one waits")
    assert p.stop() == 0
    (letter,) = nats.read(stream)
    assert letter.subject == f"{stream}.good.dlt"
    (line,) = [line for line in p.err.splitlines() if "dlt.waits" in line]
    assert f"{stream}.bad.dlt" in line and "sink.topics" in line


def test_a_process_creates_so_many_topics(outbox, kafka):
    """After create_topics_max the next missing topic is not created; its events wait, and go on when the topic exists."""
    base = f"max-{uuid.uuid4().hex[:8]}"
    config(outbox, kafka, routes='[{topic: "${topic}"}]', sink="create_topics: on, create_topics_max: 2")
    db = outbox.sqlite("app.db")
    p = outbox.start("run")
    ours = lambda: sorted(t for t in kafka.admin().list_topics() if t.startswith(base))
    for n in range(3):
        emit(db, f"k{n}", json.dumps({"n": n}), topic=f"{base}-{n}")
        if n < 2:
            wait_until(lambda: len(ours()) == n + 1, 30, "the topic")
    wait_until(lambda: "create_topics_max" in p.err, 30, "the limit is reached")
    assert ours() == [f"{base}-0", f"{base}-1"]
    emit(db, "k9", json.dumps({"n": 9}), topic=f"{base}-1")
    wait_until(lambda: len(kafka.read(f"{base}-1")) == 2, 30, "existing topics are written to")
    kafka.topic(name=f"{base}-2")
    wait_until(lambda: len(kafka.read(f"{base}-2")) == 1, 60, "the events that waited", every=0.2)
    assert p.stop() == 0 and test_nats.dead(outbox) == [] and status(outbox)["failed"] == 0
