# SPDX-License-Identifier: Apache-2.0
"""test_mongodb_large - documents near 16 MB, and fields that are larger than that as JSON: each gets what it has room for, and
none stops its neighbours."""

import bson
import pytest
from bson import ObjectId

from helpers import wait_until
from mongo import room_for_large, sc_document
from profiles import REFUSE
from sc import Sc

LIMIT = 16 * 1024 * 1024


def large(entity, free, without=(), **more):
    """With so many bytes left."""
    doc = dict(sc_document(entity, 1, payload={"p": ""}, **more), _id=ObjectId())
    for name in without:
        del doc[name]
    doc["payload"]["p"] = "x" * (LIMIT - free - len(bson.encode(doc)))
    assert len(bson.encode(doc)) == LIMIT - free
    return doc


@pytest.mark.slow
def test_no_room_for_what_becomes_of_them(outbox, mdb):
    s = Sc(outbox, mdb, REFUSE, source=", worker_id: w", more="    retry: {first: 30ms, max: 50ms}")
    s.refuse("reject never", "retry later")
    room_for_large(mdb)
    lock = ("locked_by", "locked_until")
    docs = [
        large("rejected", 30, topic="never"), large("tried", 30, topic="later", max_retries=2),
        large("full", 0, lock), large("bare", 0, (*lock, "retry_count", "max_retries")),
        large("behind", 0, entity_id="first", entity_version=2),
    ]
    for d in docs:
        s.put(d)
    near = s.put(*[sc_document(d["entity_id"], 3) for d in docs], sc_document("first", 1, topic="later", max_retries=2))
    relay = s.start()
    for i in near[:-1]:
        s.wait(i, status="published", deadline=60)
    got = {d["partition_key"]: s.wait(d["_id"], status="failed", deadline=60) for d in docs}
    wait_until(lambda: mdb["outbox_dead"].count_documents({"state": "dead"}) == len(docs) + 1, 30, "all are recorded")
    assert relay.stop() == 0
    assert {n: d.get("retry_count") for n, d in got.items()} == {"rejected": 5, "tried": 2, "full": 5, "bare": None, "behind": 5}
    assert not any(d.get("last_error") or d.get("locked_by") or d.get("locked_until") for d in got.values())
    dead = {d["ref"]: d["error"] for d in mdb["outbox_dead"].find()}
    assert {d["partition_key"] for d in docs if "so large" in dead[d["_id"]]} == {"full", "bare", "behind"}
    relay = s.started()  # a document that cannot show it is dead all the same
    (after,) = s.put(sc_document("bare", 4))
    s.wait(after, status="published")
    assert relay.stop() == 0
    assert mdb["outbox_dead"].count_documents({}) == len(docs) + 1


def test_a_field_that_is_too_large_as_json(outbox, mdb):
    s = Sc(outbox, mdb)
    bad, after, other = s.put(sc_document("a", 1, entity_type={"a": "\x01" * 12_000_000}), sc_document("a", 2), sc_document("b", 1))
    outbox.run("run", "--once", timeout=60)
    assert [s.doc(i)["status"] for i in (bad, after, other)] == ["failed", "published", "published"]
    d = s.doc(bad)
    assert "'entity_type'" in d["last_error"] and d["last_error_at"] and d["retry_count"] == 5
    assert mdb["outbox_dead"].find_one()["error"] == d["last_error"]
