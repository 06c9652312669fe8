# SPDX-License-Identifier: Apache-2.0
"""test_mongodb_limits - fields of any size in MongoDB documents that were inserted directly: one over its limit is dead with its
reason, large ones within the limits are delivered, and the memory of the relay has a bound."""

import pytest

from helpers import memory_mb, wait_until
from mongo import native_document, room_for_large
from test_mongodb_cli import Pipe

MB = 1 << 20
TEXTS = ("type", "aggregate_type", "aggregate_id", "key", "tenant", "topic")
JSONS = ("headers", "metadata")
BOUND = 32 + 4 * 16  # MB: the relay, its window, and a few times the largest document, which comes as one message


def large(name, **sizes):
    """A native document whose named fields have these sizes."""
    text = {c: "x" * n for c, n in sizes.items() if c in TEXTS}
    data = {c: {"x": "y" * (n - 8)} for c, n in sizes.items() if c not in TEXTS}
    return native_document(name, **text, **data)


def dead(outbox):
    return outbox.json("dead", "list", "--json")


@pytest.mark.slow
def test_a_field_over_its_limit_is_dead_with_field_size_and_limit(outbox, mdb):
    p = Pipe(outbox, mdb, "native")
    p.config(more="    limits: {payload: 4M}")
    room_for_large(mdb)
    fields = TEXTS + JSONS + ("payload",)
    first = native_document("first")
    p.coll.insert_one(first)
    for field in fields:
        p.coll.insert_one(large(f"over-{field}", **{field: 6 * MB}))
    last = native_document("last")
    p.coll.insert_one(last)
    relay = outbox.start("run")
    wait_until(lambda: p.coll.count_documents({"status": "published"}) == 2, 60, "both are delivered")
    wait_until(lambda: mdb["outbox_events_dead"].count_documents({}) == len(fields), 60, "the others are dead")
    assert memory_mb(relay, "VmHWM") <= BOUND
    assert relay.stop() == 0
    errors = {d["error"].split(" ")[0]: d["error"] for d in dead(outbox)}
    for field in fields:
        limit = 65536 if field in TEXTS else MB if field in JSONS else 4 * MB
        assert f"{field} is too large: {6 * MB} bytes, the limit is {limit} " in errors[field]
    for d in dead(outbox):
        assert all(len(str(v)) < 2000 for v in d.values()), d["error"]
    for d in mdb["outbox_events_dead"].find():
        assert all(len(str(v)) < 2000 for v in d.values())
    (topic,) = [d["id"] for d in dead(outbox) if d["error"].startswith("topic")]
    outbox.run("dead", "retry", topic, "--yes")
    relay = outbox.start("run")
    wait_until(lambda: mdb["outbox_events_dead"].count_documents({"state": "dead"}) == len(fields), 60, "dead again")
    assert relay.stop() == 0


@pytest.mark.slow
@pytest.mark.parametrize("field", ["key", "topic"])
def test_memory_does_not_follow_what_a_writer_puts_into_a_field(outbox, mdb, field):
    """120 MB, through a window of 8 MB. A test server has no cache for transactions on larger index keys."""
    p = Pipe(outbox, mdb, "native")
    room_for_large(mdb)
    for n in range(60):
        p.coll.insert_one(large(f"k{n}", **{field: 2 * MB}))
    relay = outbox.start("run")
    wait_until(lambda: p.coll.count_documents({"status": "failed"}) == 60, 120, "all are dead", every=0.5)
    assert memory_mb(relay, "VmHWM") <= BOUND
    assert relay.stop() == 0


@pytest.mark.slow
def test_every_field_at_its_limit_is_delivered_within_the_memory_bound(outbox, mdb):
    """30 documents of about 2.5 MB pass through a window of 8 MB."""
    p = Pipe(outbox, mdb, "native")
    p.config(sink='{type: "null"}')
    room_for_large(mdb)
    sizes = {c: 65000 for c in TEXTS} | {c: MB - 100 for c in JSONS} | {"payload": MB, "topic": 30000, "headers": 60000}
    for n in range(30):
        p.coll.insert_one(dict(large(f"k{n}", **sizes), key=f"{n:04}" + "k" * 65000))
    relay = outbox.start("run")
    wait_until(lambda: p.coll.count_documents({"status": {"$in": ["pending", "processing"]}}) == 0, 100, "all are settled", every=0.2)
    assert p.coll.count_documents({"status": "published"}) == 30, p.coll.distinct("last_error")
    assert memory_mb(relay, "VmHWM") <= BOUND
    assert relay.stop() == 0 and dead(outbox) == []
