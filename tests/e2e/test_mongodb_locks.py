# SPDX-License-Identifier: Apache-2.0
"""test_mongodb_locks - what locks cost where very many documents are being processed, by the server's own count of documents
examined; and that a lock which is over is found among them."""

import pytest

from mongo import profiled, sc_document
from sc import Sc, ago, ahead

PROCESSING = 100_000
SLICE = 6_000  # documents of one query, whatever there is: a look reads 2,000, a sweep 5,000


@pytest.mark.slow
def test_a_hundred_thousand_documents_that_are_being_processed(outbox, mdb):
    s = Sc(outbox, mdb, source=", worker_id: w, mapping: {lease: 5s}", uri=mdb.uri + "&appName=locks")
    doc = {"event_type": "t", "entity_type": "user", "entity_version": 1, "payload": "", "status": "processing", "locked_by": "x",
           "locked_until": ahead(3600), "retry_count": 0, "max_retries": 5}
    for at in range(0, PROCESSING, 10_000):
        s.coll.insert_many([dict(doc, event_id=f"i{n}", entity_id=f"w{n}", created_at=ago(200_000 - n)) for n in range(at, at + 10_000)],
                           ordered=False)
    first, last = s.put(*[sc_document(f"over{n}", 1, status="processing", locked_by="x", locked_until=ago(5), created_at=ago(at),
                                      topic="t") for n, at in enumerate((300_000, 1))])
    (stray,) = s.put(sc_document("stray", 1, status="processing", locked_by="w", locked_until=ahead(3600), created_at=ago(400_000)))
    profiled(mdb)
    relay = s.started()
    (one,) = s.put(sc_document("e", 1))
    s.wait(one, status="published")
    s.wait(first, status="published")
    s.wait(last, status="published", deadline=60)  # it stands behind all the others
    s.wait(stray, status="published", deadline=120)  # in the second round that sees it
    assert relay.stop() == 0
    mdb.db.command("profile", 0)
    asked = {"ns": f"{mdb.name}.outbox", "appName": "locks", "docsExamined": {"$gt": 0}}
    cost = {}
    for op in mdb["system.profile"].find(asked):
        if op["op"] == "update" and isinstance(op["command"]["q"].get("locked_by"), dict):
            continue  # once, when the lease is taken or given up: what the worker has locked
        which = op.get("cursorid") or str(op["ts"]) + str(op["command"])[:300]
        cost[which] = cost.get(which, 0) + op["docsExamined"]
    assert {q: n for q, n in cost.items() if n > SLICE} == {}
    assert sum(n > 1000 for n in cost.values()) > 20, "it was read in slices"
