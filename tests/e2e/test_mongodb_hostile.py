# SPDX-License-Identifier: Apache-2.0
"""test_mongodb_hostile - documents that nobody expects: none stops the others."""

import datetime
import time

import bson
import pytest
from bson import Binary, Code, Decimal128, Int64, MaxKey, ObjectId, Regex, Timestamp

from helpers import SLOW
from mongo import room_for_large, sc_document
from sc import Sc, ago, versions


def nested(depth):
    d = {"end": 1}
    for _ in range(depth):
        d = {"d": d}
    return d


def put_raw(s, doc):
    """Without pymongo's own check of names."""
    doc["_id"] = ObjectId()
    s.mdb.db.command("insert", "outbox", documents=[doc])
    return doc["_id"]


def test_contents_of_every_kind(outbox, mdb):
    s = Sc(outbox, mdb)
    payloads = {
        "dots": {"a": {"b.c": 1, "$x": {"$y": "$z"}}}, "nul": {"text": "a\0b", "more": "\u2028\"\\\n"}, "deep": nested(90),
        "types": {"oid": ObjectId("5f1e1f1e1f1e1f1e1f1e1f1e"), "dec": Decimal128("1.10"), "bin": Binary(b"\0\xff"), "long": Int64(2 ** 60),
                  "re": Regex("^a"), "code": Code("x"), "ts": Timestamp(1, 2), "max": MaxKey(), "none": None,
                  "date": datetime.datetime(2026, 2, 3, 4, 5, 6, 789000)},
        "array": [1, [2, {"c": []}]], "empty": {}, "number": 7,
    }
    ids = {}
    for name, payload in payloads.items():
        ids[name] = put_raw(s, sc_document(name, 1, payload=payload))
    (ids["string"],) = s.put(sc_document("string", 1, payload="not \0 JSON at all"))
    (ids["bytes"],) = s.put(sc_document("bytes", 1, payload=Binary(bytes(range(256)))))
    outbox.run("run", "--once")
    assert {n: s.doc(i)["status"] for n, i in ids.items()} == {n: "published" for n in ids}
    lines = {m["key"]: m for m in s.lines()}
    assert lines["dots"]["value"] == {"a": {"b.c": 1, "$x": {"$y": "$z"}}}
    assert lines["nul"]["value"]["text"] == "a\0b"
    assert lines["deep"]["value"] == nested(90)
    assert lines["types"]["value"]["oid"] == "5f1e1f1e1f1e1f1e1f1e1f1e" and lines["types"]["value"]["long"] == 2 ** 60
    assert lines["types"]["value"]["date"] == "2026-02-03T04:05:06.789Z" and lines["types"]["value"]["dec"] == "1.10"
    assert lines["array"]["value"] == [1, [2, {"c": []}]] and lines["number"]["value"] == 7
    assert lines["string"]["value_text"] == "not \0 JSON at all"


class Far(int):
    """A date in ms that Python's have no place for."""


def set_far(s, ids, field, value):
    """The server makes it."""
    s.coll.update_many({"_id": {"$in": ids}}, [{"$set": {field: {"$toDate": Int64(value)}}}])


ODD = [
    ("retry_count", "many"), ("max_retries", {"a": 1}), ("max_retries", None), ("last_error_at", "yesterday"), ("created_at", "now"),
    ("entity_version", "seven"), ("entity_version", None), ("entity_id", None), ("entity_id", {"in": 1}), ("entity_id", ""),
    ("locked_until", 17), ("locked_by", 3), ("event_type", 5), ("event_id", None), ("topic", None), ("partition_key", 9),
    ("created_at", Far(2 ** 62)), ("created_at", Far(-2 ** 63)), ("partition_key", Far(2 ** 62)),
    ("last_error_at", Far(2 ** 63 - 1)), ("last_error_at", Far(-2 ** 63)), ("locked_until", Far(-2 ** 63)),
    ("retry_count", float("nan")), ("retry_count", Decimal128("NaN")), ("retry_count", -2 ** 63), ("retry_count", float("-inf")),
    ("max_retries", 1e300), ("max_retries", float("nan")), ("entity_version", 1e300),
]


def test_fields_of_a_wrong_type(outbox, mdb):
    """A query with expressions fails as a whole if one document makes it fail: none does."""
    s = Sc(outbox, mdb)
    odd = []
    for n, (field, value) in enumerate(ODD):
        pending = sc_document(f"a{n}", 1, **{field: value})
        failed = sc_document(f"b{n}", 1, status="failed", retry_count=1, last_error_at=ago(90))
        stale = sc_document(f"c{n}", 1, status="processing", locked_by="x", locked_until=ago(9))
        failed[field] = stale[field] = value
        far = isinstance(value, Far)
        if far:
            pending[field] = failed[field] = stale[field] = None
        ids = s.put(pending, failed, stale)
        if far:
            set_far(s, ids, field, value)
        odd += ids[:1]
    (good,) = s.put(sc_document("good", 1))
    outbox.run("run", "--once", timeout=60)
    assert s.doc(good)["status"] == "published"
    published = {d["_id"] for d in s.coll.find({"status": "published"}, {"_id": 1})}
    left = {(f, v) for (f, v), i in zip([(f, str(v)) for f, v in ODD], odd) if i not in published}
    assert not left, left


def test_documents_of_16_mb(outbox, mdb):
    s = Sc(outbox, mdb)
    limit = 16 * 1024 * 1024
    big = sc_document("big", 1, payload={"p": ""})
    big["payload"]["p"] = "x" * (limit - len(bson.encode(dict(big, _id=ObjectId()))) - 300)
    full = sc_document("full", 1, payload={"p": ""})
    full["payload"]["p"] = "y" * (limit - len(bson.encode(dict(full, _id=ObjectId()))))
    after = [sc_document("big", 2), sc_document("full", 2), sc_document("small", 1)]
    room_for_large(mdb)
    (one,) = s.put(big)
    (two,) = s.put(full)
    ids = s.put(*after)
    relay = s.start()
    for i in (one, *ids):
        s.wait(i, status="published", deadline=60)
    d = s.wait(two, status="failed", deadline=60)  # it has no room for a lock
    assert d["retry_count"] == d["max_retries"]
    assert relay.stop() == 0
    (dead,) = mdb["outbox_dead"].find()
    assert dead["ref"] == two and "so large" in dead["error"]
    lines = [m for m in s.lines() if not m["topic"].endswith(".dlt")]
    assert [len(m["value"]["p"]) for m in lines if m["id"] == big["event_id"]] == [len(big["payload"]["p"])]
    assert sorted((m["key"], m["headers"]["entity_version"]) for m in lines) == [("big", "1"), ("big", "2"), ("full", "2"),
                                                                                 ("small", "1")]


@pytest.mark.skipif(SLOW > 1, reason="skipped: memory of a sanitizer is not ours")
def test_many_large_documents_do_not_fill_the_memory(outbox, mdb):
    s = Sc(outbox, mdb, '{type: "null"}', more="    window_bytes: 8M")
    for n in range(40):
        s.put(*versions(f"e{n}", 1, payload={"p": "x" * 2_000_000}))
    relay = s.start()
    peak = 0
    while s.coll.count_documents({"status": {"$ne": "published"}}):
        assert relay.alive
        time.sleep(0.02)
        with open(f"/proc/{relay.pid}/status", encoding="utf-8") as f:
            peak = max([peak] + [int(line.split()[1]) for line in f if line.startswith("VmHWM")])
    assert relay.stop() == 0
    assert 0 < peak < 40 * 1024, f"{peak} kB with 80 MB of documents: 32 MB and four of the largest are allowed"
