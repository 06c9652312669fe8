# SPDX-License-Identifier: Apache-2.0
"""test_mongodb_flow - keys behind a dead event and behind a destination that takes nothing, on MongoDB."""

from helpers import wait_until
from mongo import sc_document
from profiles import REFUSE
from sc import Sc, ago, stays, versions

RETRY = "    retry: {first: 50ms, max: 100ms}"


def published(s, ids):
    """They are, one after the other."""
    at = [s.wait(i, status="published")["published_at"] for i in ids]
    assert at == sorted(at), at


def test_what_stands_behind_a_dead_event_waits_for_it(outbox, mdb):
    """on_dead: park, released by `dead retry` and by a plain update."""
    s = Sc(outbox, mdb, REFUSE, more=f"{RETRY}\n    on_dead: park")
    s.refuse("reject worse.topic")
    by_retry, by_update = ([sc_document(e, 1, topic="worse.topic"), *versions(e, 3, first=2)] for e in ("a", "b"))
    a, b = s.put(*by_retry), s.put(*by_update)
    (other,) = s.put(sc_document("c", 1))
    relay = s.start()
    s.wait(other, status="published")
    wait_until(lambda: mdb["outbox_dead"].count_documents({"hold": True}) == 2, 30, "both hold their key")
    behind = {"_id": {"$in": a[1:] + b[1:]}, "status": "pending"}
    stays(lambda: s.coll.count_documents(behind) == 6, 1.5)
    s.refuse()
    s.coll.update_one({"_id": b[0]}, {"$set": {"status": "pending", "retry_count": 0}})
    published(s, b)
    assert s.coll.count_documents(dict(behind, _id={"$in": a[1:]})) == 3, "the other one still waits"
    outbox.run("dead", "retry", "--all", "--yes")
    published(s, a)
    assert relay.stop() == 0
    assert mdb["outbox_held"].count_documents({}) == 0 == mdb["outbox_parked"].count_documents({})
    assert sorted(d["state"] for d in mdb["outbox_dead"].find()) == ["released", "retried"]


def test_a_blocked_destination_holds_up_only_its_own(outbox, mdb):
    s = Sc(outbox, mdb, REFUSE, more=RETRY)
    s.refuse("blocked shut.topic")
    shut = [s.put(*versions(f"s{n}", 5, topic="shut.topic", created_at=ago(60))) for n in range(4)]
    free = s.put(*[d for n in range(20) for d in versions(f"f{n}", 5)])
    relay = s.start()
    wait_until(lambda: s.coll.count_documents({"_id": {"$in": free}, "status": "published"}) == 100, 30, "the others flow")
    waits = {"topic": "shut.topic", "status": "pending", "retry_count": 0, "last_error": None}
    wait_until(lambda: s.coll.count_documents(waits) == 20, 30, "they wait, and no attempt is spent")
    s.refuse()
    for ids in shut:
        published(s, ids)
    assert relay.stop() == 0
    assert s.coll.count_documents({"topic": "shut.topic", "retry_count": 0}) == 20
    assert mdb["outbox_held"].count_documents({}) == 0 == mdb["outbox_dead"].count_documents({})
