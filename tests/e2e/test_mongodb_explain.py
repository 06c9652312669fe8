# SPDX-License-Identifier: Apache-2.0
"""test_mongodb_explain - what the relay asks the server, as the server's own profiler saw it: each time by an index, in the
index's order, and without reading what was published."""

import pytest

from helpers import wait_until
from mongo import native_document, profiled, sc_document
from profiles import REFUSE
from test_mongodb_cli import Pipe

OLD = 3000
PARKED = 300


def asks_for_nothing(op):
    """A look whether there is anything at all names no field."""
    command = op.get("originatingCommand") or op.get("command", {})
    return not command.get("filter") and not command.get("q") and "pipeline" not in command


@pytest.mark.parametrize("model", ["sc", "native"])
def test_every_query_uses_its_index(outbox, mdb, model):
    p = Pipe(outbox, mdb, model, REFUSE, "    retry: {first: 300ms, max: 500ms}")
    p.refuse("retry bad.topic")
    make, tries, most = ((sc_document, "retry_count", "max_retries") if model == "sc" else
                         (native_document, "attempts", "max_attempts"))
    for at in range(0, OLD, 1000):  # an entity has ten
        p.coll.insert_many([make(f"old{(at + n) // 10}", n, status="published") for n in range(1000)])
    profiled(mdb)
    p.coll.insert_many([make(f"e{n // 4}", n) for n in range(200)]
                       + [make(f"bad{n}", 1, topic="bad.topic", **{most: 2}) for n in range(PARKED)]
                       + [make("f", 1, status="failed", **{tries: 1}), make("g", 1, status="processing", locked_by="x")])
    relay = outbox.start("run")
    wait_until(lambda: p.side["dead"].count_documents({}) == PARKED, 60, "all that is refused is dead", every=0.1)
    open_ = {"status": {"$in": ["pending", "processing"]}}
    wait_until(lambda: p.coll.count_documents(open_) == 0, 60, "all are done", every=0.1)
    assert relay.stop() == 0
    mdb.db.command("profile", 0)
    plans, bad = {}, []
    for op in mdb["system.profile"].find({"appName": "outbox"}):
        name, plan = op["ns"].split(".", 1)[1], op.get("planSummary", "")
        if "$changeStream" in str(op.get("originatingCommand", "")) or "$changeStream" in str(op.get("command", "")):
            continue  # reads the server's log, not the collection
        if not name.startswith(p.coll.name):
            continue
        plans.setdefault(name, set()).add(plan)
        scans = "COLLSCAN" in plan and op.get("docsExamined", 0) > 0 and not asks_for_nothing(op)
        if scans or op.get("hasSortStage") or op.get("docsExamined", 0) >= OLD:
            bad.append((name, op["op"], plan, op.get("hasSortStage"), op.get("docsExamined"), str(op.get("command"))[:400]))
    assert not bad, bad[:5]
    by = {"sc": ("{ status: 1, created_at: 1 }", "{ entity_id: 1, entity_version: 1 }"),
          "native": ("{ status: 1, seq: 1 }", "{ key: 1, seq: 1, status: 1 }")}[model]
    for index in (*by, "{ _id: 1 }"):
        assert any(index in plan for plan in plans[p.coll.name]), plans
