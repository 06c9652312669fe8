# SPDX-License-Identifier: Apache-2.0
"""What a primary took with w:1 and a new primary undoes is never published: only what a majority has is an event."""

import uuid

import pytest

import mongo as m
from helpers import SLOW, read_jsonl, wait_until

pytestmark = pytest.mark.skipif(SLOW > 1, reason="skipped: three servers beside a sanitizer; the plain build shows it")

CONFIG = """
pipelines:
  users:
    source: {{type: mongodb, uri: "{uri}", database: shop, poll_max: 50ms}}
    sink: {{type: file, path: out/events.jsonl}}
    envelope: none
"""


def event(name, key="k"):
    from bson import Timestamp

    return {
        "_id": f"{name}-{uuid.uuid4()}", "seq": Timestamp(0, 0), "type": name, "aggregate_id": key, "key": key, "payload": {"name": name},
        "status": "pending", "created_at": m.now(),
    }


def looks(client):
    """How many queries that node has answered."""
    commands = client.admin.command("serverStatus")["metrics"]["commands"]
    return sum(int(commands[c]["total"]) for c in ("find", "aggregate"))


def test_a_write_that_is_undone_is_never_published(outbox, own_mongo):
    s = own_mongo(nodes=3)
    outbox.path("out").mkdir()
    outbox.write("outbox.yaml", CONFIG.format(uri=s.uri()))
    types = lambda: [e["value"]["name"] for e in read_jsonl(outbox.path("out/events.jsonl"))]
    majority = s.pymongo.WriteConcern("majority")
    with s.client() as c:
        events = c["shop"].get_collection("outbox_events", write_concern=majority)
        events.insert_one(event("before"))
        relay = outbox.start("run")
        wait_until(lambda: types() == ["before"], 60, "the first event")
        with m.Isolated(s) as cut:
            alone = cut.client["shop"]["outbox_events"]
            for i in range(20):
                alone.insert_one(event("undone", key=f"k{i % 3}"))
            assert alone.count_documents({"type": "undone"}) == 20  # acknowledged, and there for who asks this node alone
            seen = looks(cut.client)
            wait_until(lambda: looks(cut.client) >= seen + 5, 60, "the relay looks at the collection that has them")
            assert types() == ["before"]
        assert events.count_documents({"type": "undone"}) == 0
        events.insert_one(event("after"))
        wait_until(lambda: types()[-1:] == ["after"], 90, "the relay goes on with the new primary")
    assert set(types()) == {"before", "after"}
    assert relay.stop() == 0, relay.err
