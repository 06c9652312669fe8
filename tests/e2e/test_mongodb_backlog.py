# SPDX-License-Identifier: Apache-2.0
"""test_mongodb_backlog - what a look costs where many documents wait or are dead, by the server's own count."""

import pytest

from helpers import wait_until
from mongo import now, profiled, sc_document
from sc import Sc, ago, ahead

WAITING = 16_500  # more than a look remembers


def scanned(mdb):
    return mdb.db.command("serverStatus")["metrics"]["queryExecutor"]["scannedObjects"]


@pytest.mark.slow
def test_waiting_documents_at_the_head_are_passed_over_once(outbox, mdb):
    """Each second document stands behind one that another worker has locked."""
    s = Sc(outbox, mdb, '{type: "null"}', source=", page: 50")
    until, head = ahead(3600), []
    for n in range(WAITING):
        wait = {"event_id": f"i{n}", "event_type": "t", "entity_type": "user", "entity_id": f"w{n}", "payload": "", "created_at": ago(900)}
        head += [dict(wait, entity_version=1, status="processing", locked_by="x", locked_until=until),
                 dict(wait, entity_version=2, status="pending")]
    s.coll.insert_many(head, ordered=False)
    good = s.put(*[sc_document(f"g{n}", 1) for n in range(600)])
    before = scanned(mdb)
    relay = s.start()
    wait_until(lambda: s.coll.count_documents({"_id": {"$in": good}, "status": "published"}) == 600, 60, "all others", every=0.2)
    cost = scanned(mdb) - before
    assert relay.stop() == 0
    assert s.coll.count_documents({"status": "pending"}) == WAITING
    assert cost < 20 * WAITING, f"{cost / WAITING:.1f} documents read for each that waits"


def test_dead_documents_are_looked_at_by_slices(outbox, mdb):
    s = Sc(outbox, mdb)
    dead = {"event_type": "t", "entity_type": "user", "payload": "", "status": "failed", "retry_count": 5, "max_retries": 5}
    s.coll.insert_many([dict(dead, event_id=f"d{n}", entity_id=f"d{n}", entity_version=1, created_at=ago(9000)) for n in range(2500)]
                       + [dict(dead, event_id=f"e{n}", entity_id=f"e{n}", entity_version=1, created_at=ago(8000 - n / 10))
                          for n in range(9500)], ordered=False)
    odd = dict(dead, event_id="odd", entity_id="odd", entity_version=1)  # without a time: it stands before all
    (first,) = s.put(dict(odd, retry_count=1))
    (last,) = s.put(sc_document("f", 1, status="failed", retry_count=1, last_error_at=ago(900)))
    outbox.run("run", "--once")
    assert s.doc(first)["status"] == s.doc(last)["status"] == "published", "both ends were looked at"
    profiled(mdb)
    relay = s.started()
    (again,) = s.put(sc_document("g", 1, status="failed", retry_count=1, last_error_at=ago(900), created_at=now()))
    s.wait(again, status="published", deadline=60)
    asked = {"ns": f"{mdb.name}.outbox", "appName": "outbox", "planSummary": {"$regex": "status: 1, created_at: 1"}}
    wait_until(lambda: mdb["system.profile"].count_documents(dict(asked, docsExamined={"$gt": 900})) > 2, 60, "some looks")
    assert relay.stop() == 0
    mdb.db.command("profile", 0)
    looks = {}
    for op in mdb["system.profile"].find(asked):
        which = op.get("cursorid") or str(op["ts"])
        looks[which] = looks.get(which, 0) + op["docsExamined"]
    assert 900 < max(looks.values()) <= 5000, looks
