# SPDX-License-Identifier: Apache-2.0
"""sc - the profile `sc` through the relay, for the tests of it and of the MongoDB source."""

import datetime
import os
import time

from helpers import read_jsonl, wait_until
from mongo import now, sc_document
from profiles import FILE

INDEXES = [[("status", 1), ("created_at", 1)], [("status", 1), ("published_at", 1)], [("locked_until", 1)], [("event_id", 1)],
           [("entity_id", 1), ("entity_version", 1)]]


class Sc:
    """The program on a database of its own with the collection as the services make it."""

    def __init__(self, outbox, mdb, sink=FILE, more="", source="", uri=None):
        self.outbox, self.mdb, self.coll = outbox, mdb, mdb["outbox"]
        outbox.path("out").mkdir(exist_ok=True)
        for keys in INDEXES:
            self.coll.create_index(keys)
        self.config(sink, more, source, uri=uri)

    def config(self, sink=FILE, more="", source="", name="outbox.yaml", uri=None):
        text = "pipelines:\n  users:\n    profile: sc\n"
        text += f'    source: {{uri: "{uri or self.mdb.uri}", database: {self.mdb.name}{source}}}\n    sink: {sink}\n'
        self.outbox.write(name, text + (more + "\n" if more else ""))

    def refuse(self, *lines):
        """Which messages the sink refuses from now on."""
        p = self.outbox.path("refuse.tmp")
        p.write_text("".join(f"{line}\n" for line in lines))
        p.rename(self.outbox.path("refuse.txt"))

    def start(self, *args):
        return self.outbox.start("run", *args)

    def started(self, *args):
        relay = self.start(*args)
        wait_until(lambda: "relay.start" in relay.err, 30, "the relay is at work")
        return relay

    def put(self, *docs):
        return self.coll.insert_many(list(docs)).inserted_ids

    def lines(self, path="out/events.jsonl"):
        return read_jsonl(self.outbox.path(path))

    def outage(self):
        """The sink is down until what this gives is called."""
        os.rename(self.outbox.path("out"), self.outbox.path("away"))
        self.outbox.write("out", "not a folder")

        def over():
            os.remove(self.outbox.path("out"))
            os.rename(self.outbox.path("away"), self.outbox.path("out"))

        return over

    def ids(self, path="out/events.jsonl"):
        return [m["id"] for m in self.lines(path)]

    def doc(self, _id):
        return self.coll.find_one({"_id": _id})

    def wait(self, _id, deadline=30, **fields):
        """Until the document has these fields."""

        def ready():
            d = self.doc(_id)
            return d if all(d.get(k) == v for k, v in fields.items()) else None

        return wait_until(ready, deadline, f"document with {fields}: {self.doc(_id)}", every=0.02)

    def all_published(self, deadline=60):
        left = {"status": {"$ne": "published"}}
        wait_until(lambda: self.coll.count_documents(left) == 0, deadline, "all are published", every=0.05)


def stays(condition, seconds=3):
    """It holds for as long: beats, which are a second apart, do not change it."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert condition(), "it does not stay"
        time.sleep(0.02)


def versions(entity, n, first=1, **more):
    return [sc_document(entity, first + i, **more) for i in range(n)]


def ago(seconds):
    return now() - datetime.timedelta(seconds=seconds)


def ahead(seconds):
    return now() + datetime.timedelta(seconds=seconds)


def in_order(lines):
    """First deliveries of each entity rise by version."""
    last, seen = {}, set()
    for m in lines:
        if m["id"] in seen:
            continue
        seen.add(m["id"])
        entity, version = m["headers"]["entity_id"], int(m["headers"]["entity_version"])
        assert version >= last.get(entity, 0), f"{entity}: {version} behind {last[entity]}"
        last[entity] = version
    return seen
