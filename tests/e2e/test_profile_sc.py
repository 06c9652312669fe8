# SPDX-License-Identifier: Apache-2.0
"""test_profile_sc - MongoDB to Kafka as the sc services have it; Kafka is read by a client that is not ours."""

import base64
import json
import random

import pytest
from bson import json_util

from helpers import SLOW, wait_until
from mongo import now, sc_document
from profiles import REFUSE, golden
from sc import Sc, ago, stays, versions

on_kafka = pytest.mark.skipif(SLOW > 1, reason="skipped: a JVM beside a sanitizer")


def load(path):
    """Numbers and dates as the services write them."""
    g = json.loads(path.read_text())
    options = json_util.JSONOptions(tz_aware=True, json_mode=json_util.JSONMode.RELAXED)
    return json_util.loads(json.dumps(g["document"]), json_options=options), g["message"]


def test_golden_messages_by_the_file_sink(outbox, mdb):
    s = Sc(outbox, mdb)
    for i, path in enumerate(golden("sc")):
        doc, want = load(path)
        s.config(f"{{type: file, path: out/{i}.jsonl}}")
        s.put(doc)
        outbox.run("run", "--once")
        (line,) = outbox.path(f"out/{i}.jsonl").read_text().splitlines()
        m = json.loads(line)
        assert (m["topic"], m["key"], m["headers"]) == (want["topic"], want["key"], want["headers"])
        if "body_base64" in want:
            assert m["value_base64"] == want["body_base64"]
            continue
        body = m["value_text"] if "value_text" in m else line[line.index('"value":') + 8:-1]
        assert body == want["body"]


@on_kafka
def test_golden_messages_on_kafka(outbox, mdb, kafka):
    s = Sc(outbox, mdb, f'{{brokers: "{kafka.brokers}"}}')
    cases = [load(p) for p in golden("sc")]
    for _, want in cases:
        kafka.topic(name=want["topic"])
    s.put(*[doc for doc, _ in cases])
    outbox.run("run", "--once", timeout=60)
    s.all_published()
    for _, want in cases:
        (m,) = kafka.read(want["topic"])
        body = base64.b64decode(want["body_base64"]) if "body_base64" in want else want["body"].encode()
        assert m.key.decode() == want["key"] and m.value == body
        assert {k: v.decode() for k, v in m.headers} == want["headers"]
        kafka.delete(want["topic"])


@on_kafka
def test_order_of_entities_failed_stale_and_dead_letters(outbox, mdb, kafka):
    """Three partitions; creation disagrees with versions; one document is too large for the broker."""
    topic = kafka.topic(partitions=3)
    kafka.topic(name=f"{topic}.dlt")
    s = Sc(outbox, mdb, f'{{brokers: "{kafka.brokers}"}}', more="    retry: {first: 100ms, max: 1s}")
    docs = [d for e in range(30) for d in versions(f"e{e}", 20, topic=topic)]
    for d in docs:
        d["created_at"] = ago(random.uniform(1, 5000))
    docs[0].update(status="failed", retry_count=2, last_error="broker", last_error_at=ago(60))  # e0, version 1
    docs[21].update(status="processing", locked_by="dead worker", locked_until=ago(5), processing_started_at=ago(65))
    large = sc_document("e2", 21, topic=topic, payload={"pad": "x" * 3_000_000})
    after = sc_document("e2", 22, topic=topic)
    random.shuffle(docs)
    s.put(*docs)
    dead, last = s.put(large, after)
    relay = s.start()
    s.wait(last, status="published", deadline=60)
    s.wait(dead, status="failed", retry_count=5, deadline=60)
    wait_until(lambda: s.coll.count_documents({"status": "published"}) == 601, 60, "all others", every=0.05)
    letters = wait_until(lambda: kafka.read(f"{topic}.dlt"), 60, "the letter")
    assert relay.stop() == 0
    got, seen = {}, []
    for m in kafka.read(topic):
        h = {k: v.decode() for k, v in m.headers}
        got.setdefault(m.key.decode(), []).append(int(h["entity_version"]))
        seen.append(h["event_id"])
    assert sorted(seen) == sorted([d["event_id"] for d in docs] + [after["event_id"]]), "each once"
    assert all(v == sorted(v) for v in got.values()) and got["e2"] == [*range(1, 21), 22]
    (letter,) = letters
    body = json.loads(letter.value)
    assert list(body) == ["eventId", "originalEvent", "errorMessage", "failedAt", "consumerService"]
    assert body["eventId"] == large["event_id"] and body["consumerService"] == "outbox/users"
    assert mdb["outbox_dead"].find_one()["dlt"] is False, "it was sent"
    assert s.doc(dead)["last_error"] == body["errorMessage"] and s.doc(dead)["locked_by"] is None


@on_kafka
def test_a_letter_when_no_attempt_is_left(outbox, mdb, kafka):
    """Every attempt failed, and the letter could not be sent either: Kafka gets it when it can."""
    topic = kafka.topic()
    kafka.topic(name=f"{topic}.dlt")
    s = Sc(outbox, mdb, REFUSE, more="    retry: {first: 30ms, max: 50ms}")
    s.refuse(f"retry {topic}", f"retry {topic}.dlt")
    doc = sc_document("a", 1, topic=topic, max_retries=2)
    (dead,) = s.put(doc)
    relay = s.start()
    s.wait(dead, status="failed", retry_count=2)
    wait_until(lambda: mdb["outbox_dead"].find_one({"ref": dead, "dlt": True}), 30, "its letter waits")
    assert relay.stop() == 0
    s.config(f'{{brokers: "{kafka.brokers}"}}')
    (after,) = s.put(sc_document("a", 2, topic=topic))
    relay = s.start()
    s.wait(after, status="published", deadline=60)
    (letter,) = wait_until(lambda: kafka.read(f"{topic}.dlt"), 60, "the letter")
    wait_until(lambda: mdb["outbox_dead"].find_one({"ref": dead, "dlt": False}), 30, "it was sent")
    assert relay.stop() == 0
    body, d = json.loads(letter.value), s.doc(dead)
    assert body["eventId"] == doc["event_id"] and body["errorMessage"] == d["last_error"] and letter.key == b"a"
    assert (d["status"], d["retry_count"], d["locked_by"]) == ("failed", 2, None)
    assert [dict(m.headers)["entity_version"] for m in kafka.read(topic)] == [b"2"]


@on_kafka
def test_a_broker_that_is_down_costs_only_time(outbox, mdb, own_kafka):
    kafka = own_kafka()
    topic = kafka.topic()
    s = Sc(outbox, mdb, f'{{brokers: "{kafka.brokers}"}}')
    s.put(*versions("a", 10, topic=topic))
    relay = s.started()
    s.all_published()
    kafka.kill()
    s.put(*versions("a", 10, first=11, topic=topic))
    wait_until(lambda: "sink.down" in relay.err, 60)
    back = {"status": "pending", "locked_by": None, "retry_count": 0}
    wait_until(lambda: s.coll.count_documents(back) == 10, 30, "back to the status they had", every=0.1)
    stays(lambda: s.coll.count_documents(back) == 10)
    kafka.start()
    s.all_published(deadline=90)
    assert relay.stop() == 0
    assert s.coll.count_documents({"retry_count": 0, "last_error": None}) == 20
    order = [int(dict(m.headers)["entity_version"]) for m in kafka.read(topic)]
    assert sorted(set(order)) == list(range(1, 21)) and [v for i, v in enumerate(order) if v not in order[:i]] == list(range(1, 21))


def test_the_documents_own_number_of_retries(outbox, mdb):
    s = Sc(outbox, mdb, REFUSE, more="    retry: {first: 30ms, max: 50ms}")
    s.refuse("retry bad")
    ids = s.put(*[sc_document(f"e{n}", 1, topic="bad", max_retries=n) for n in (1, 2, 7, 0, -3)], sc_document("e", 1, topic="bad"))
    plain = sc_document("none", 1, topic="bad")
    del plain["max_retries"]
    ids += s.put(plain)
    relay = s.start()
    tries = (1, 2, 7, 1, 1, 5, 5)  # one that says none has the one that was made
    for i, n in zip(ids, (1, 2, 7, 0, 0, 5, 5)):
        d = s.wait(i, status="failed", retry_count=n)
        assert d["last_error"] and d["last_error_at"] <= now().replace(tzinfo=None)
    wait_until(lambda: mdb["outbox_dead"].count_documents({}) == 7, 30)
    assert {d["ref"]: d["attempts"] for d in mdb["outbox_dead"].find()} == dict(zip(ids, tries))
    assert relay.stop() == 0


def test_emit_writes_the_document_that_the_library_writes(outbox, mdb):
    """Each field, its type and its place (tests/unit/event/mongo_doc_test.c::sc_documents has the library's)."""
    s = Sc(outbox, mdb)
    cases = [
        (["--aggregate-id", "56e1fc72e0c917e9c4714161", "--aggregate-type", "card"], "sc.domain.card", "56e1fc72e0c917e9c4714161"),
        (["--aggregate-id", "e1", "--aggregate-type", "user", "--topic", "other", "--key", "k"], "other", "k"),
    ]
    for argv, topic, key in cases:
        event_id = outbox.run("emit", "--type", "user.created", "--entity-version", "3", "--payload", '{"b":1,"a":2}', *argv).out.split()[-1]
        doc = s.coll.find_one({"event_id": event_id})
        want = sc_document(argv[1], 3, event_id=event_id, entity_type=argv[3], topic=topic, partition_key=key, payload={"b": 1, "a": 2},
                           created_at=doc["created_at"])
        del doc["_id"]
        assert list(doc.items()) == list(want.items()) and [type(v) for v in doc.values()] == [
            type(v) if k != "created_at" else type(now()) for k, v in want.items()]
        assert list(doc["payload"]) == ["b", "a"] and abs((now().replace(tzinfo=None) - doc["created_at"]).total_seconds()) < 60
    r = outbox.run("emit", "--type", "a", "--aggregate-id", "1", "--entity-version", "1", check=None)
    assert r.returncode != 0 and "the aggregate's type" in r.err and s.coll.count_documents({}) == 2
