# SPDX-License-Identifier: Apache-2.0
"""test_mongodb_explain - what the relay asks the server, as the server's own profiler saw it, uses an index each time."""

from helpers import wait_until
from mongo import sc_document
from profiles import REFUSE
from sc import Sc, versions


def test_every_query_uses_its_index(outbox, mdb):
    s = Sc(outbox, mdb, REFUSE, more="    retry: {first: 50ms, max: 100ms}")
    s.refuse("retry bad.topic")
    s.put(*[d for e in range(300) for d in versions(f"old{e}", 10, status="published")])
    mdb.db.command("profile", 2)
    s.put(*[d for e in range(50) for d in versions(f"e{e}", 4)], sc_document("bad", 1, topic="bad.topic", max_retries=2))
    s.put(sc_document("f", 1, status="failed", retry_count=1), sc_document("g", 1, status="processing", locked_by="x"))
    relay = s.start()
    open_ = {"status": {"$in": ["pending", "processing"]}}
    wait_until(lambda: s.coll.count_documents(open_) == 0, 60, "all are done", every=0.1)
    wait_until(lambda: mdb["outbox_dead"].count_documents({}) == 1, 30)
    assert relay.stop() == 0
    mdb.db.command("profile", 0)
    seen, scanned = set(), []
    for op in mdb["system.profile"].find({"appName": "outbox"}):
        plan = op.get("planSummary", "")
        name = op["ns"].split(".", 1)[1]
        if "$changeStream" in str(op.get("originatingCommand", "")) or "$changeStream" in str(op.get("command", "")):
            continue  # reads the server's log, not the collection
        if name == "outbox" or op["op"] in ("query", "update"):
            seen.add((name, plan))
        if "COLLSCAN" in plan and name.startswith("outbox"):
            scanned.append((name, op["op"], op.get("command")))
    # A look whether a small collection beside the events has anything in it at all names no field.
    scanned = [x for x in scanned if not (x[0] in ("outbox_parked", "outbox_dead", "outbox_held"))]
    assert not scanned, scanned
    plans = " ".join(plan for name, plan in seen if name == "outbox")
    for index in ("{ status: 1, created_at: 1 }", "{ entity_id: 1, entity_version: 1 }", "{ _id: 1 }"):
        assert index in plans, plans
