# SPDX-License-Identifier: Apache-2.0
"""test_mongodb_cli - schema, emit, events, tail, status, dead and pause on MongoDB: native documents and those of the profile
sc. Documents are looked at by pymongo."""

import json
import re

import pytest
from bson import Timestamp

from helpers import ROOT, read_jsonl, wait_until
from mongo import now, sc_document
from profiles import FILE, REFUSE

FAST = "    retry: {first: 50ms, max: 100ms}"


class Pipe:
    """The program on a database of its own. model: native, or sc with the collection as the services make it."""

    def __init__(self, outbox, mdb, model, sink=FILE, more="", schema=True):
        self.outbox, self.mdb, self.model = outbox, mdb, model
        self.coll = mdb["outbox" if model == "sc" else "outbox_events"]
        self.side = {name: mdb[f"{self.coll.name}_{name}"] for name in ("lease", "parked", "held", "dead")}
        outbox.path("out").mkdir(exist_ok=True)
        self.config(sink, more)
        if schema:
            outbox.run("schema", "--apply", *(["--profile", "sc"] if model == "sc" else []))

    def config(self, sink=FILE, more="", uri=None, source=""):
        kind = "profile: sc" if self.model == "sc" else "max_attempts: 5"
        source = f'{{type: mongodb, uri: "{uri or self.mdb.uri}", database: {self.mdb.name}{source}}}'
        self.outbox.write("outbox.yaml", f"pipelines:\n  users:\n    {kind}\n    source: {source}\n    sink: {sink}\n{more}\n")
        self.outbox.path("outbox.yaml").chmod(0o600)  # it may have a password

    def emit(self, entity, version=1, **more):
        argv = ["emit", "--type", more.get("type", "user.created"), "--aggregate-type", "user", "--aggregate-id", entity,
                "--entity-version", str(version), "--payload", more.get("payload", '{"n": %d}' % version)]
        return self.outbox.run(*argv).out.split()[-1]

    def refuse(self, *lines):
        p = self.outbox.path("refuse.tmp")
        p.write_text("".join(f"{line}\n" for line in lines))
        p.rename(self.outbox.path("refuse.txt"))

    def lines(self):
        return read_jsonl(self.outbox.path("out/events.jsonl"))

    def states(self, *args):
        return [e["state"] for e in self.outbox.json("events", "--json", *args)]

    def dead(self):
        return self.outbox.json("dead", "list", "--json")

    def find(self, event_id):
        return self.coll.find_one({"event_id" if self.model == "sc" else "_id": event_id})


@pytest.fixture(params=["native", "sc"])
def model(request):
    return request.param


# ---- schema ----

def indexes(coll):
    return {tuple(v["key"]): {k: v[k] for k in ("unique", "partialFilterExpression") if k in v}
            for v in coll.index_information().values()}


def printed(text):
    """Collections and indexes of a printed schema, by another reader than the program's."""
    made = {}
    for name in re.findall(r'^db\.createCollection\("(\w+)"', text, re.M):
        made[name] = {(("_id", 1),): {}}
    for name, args in re.findall(r'^db\.getCollection\("(\w+)"\)\.createIndex\((.*)\);$', text, re.M):
        key, options = json.loads(f"[{args}]")
        made[name][tuple(key.items())] = {k: v for k, v in options.items() if k != "name"}
    return made


def test_what_is_printed_is_what_is_made(outbox, mdb, model):
    p = Pipe(outbox, mdb, model, schema=False)
    which = ["--profile", "sc"] if model == "sc" else []
    dry = outbox.run("schema", "--dry-run", *which).out
    assert mdb.db.list_collection_names() == [] and f"collection {p.coll.name}" in dry
    first = outbox.run("schema", "--apply", *which).out
    assert "index" in first
    text = outbox.run("schema", "--print", *(which or ["--source", "mongodb"])).out
    file = ROOT / "schema" / ("profiles/sc.js" if model == "sc" else "mongodb/001_outbox.js")
    assert text == file.read_text()
    for name, want in printed(text).items():
        assert indexes(mdb[name]) == want, name
    again = outbox.run("schema", "--apply", *which).out
    assert "nothing to do" in again and "index " not in again
    if model == "sc":
        assert "outbox is there, and has its indexes" in again and "processed_events is there" in again
    outbox.run("check")


@pytest.mark.slow
def test_several_at_once(outbox, mdb, model):
    p = Pipe(outbox, mdb, model, schema=False)
    runs = [outbox.start("schema", "--apply", *(["--profile", "sc"] if model == "sc" else [])) for _ in range(4)]
    assert [r.wait() for r in runs] == [0] * 4, [r.err for r in runs]
    assert len(indexes(p.coll)) == (6 if model == "sc" else 4)
    outbox.run("check")


def test_a_collection_that_is_there_is_only_looked_at(outbox, mdb):
    mdb["outbox"].create_index([("status", 1), ("created_at", 1)])
    Pipe(outbox, mdb, "sc", schema=False)
    said = outbox.run("schema", "--profile", "sc", "--apply").out
    assert 'db.getCollection("outbox").createIndex({ "locked_until" : 1 }' in said, said
    assert len(indexes(mdb["outbox"])) == 2, "nothing was made"
    assert "processed_events" in mdb.db.list_collection_names()


def test_the_validator_of_native_documents(outbox, mdb):
    p = Pipe(outbox, mdb, "native")
    failure = mdb.server.pymongo.errors.WriteError
    good = {"_id": "1", "seq": Timestamp(0, 0), "type": "a", "status": "pending", "created_at": now()}
    for name, value in (("_id", 7), ("seq", 5), ("type", ""), ("status", "new"), ("created_at", "today"), ("key", 7),
                        ("headers", [1]), ("entity_version", "1"), ("payload_kind", "xml")):
        with pytest.raises(failure):
            p.coll.insert_one({**good, name: value})
    for name in ("seq", "type", "status", "created_at"):
        with pytest.raises(failure):
            p.coll.insert_one({k: v for k, v in good.items() if k != name})
    p.coll.insert_one(good)
    mdb.db.command("collMod", p.coll.name, validator={})
    assert "validator of outbox_events" in outbox.run("schema", "--apply").out
    with pytest.raises(failure):
        p.coll.insert_one({**good, "_id": "2", "status": "new"})


def test_another_name(outbox, mdb):
    outbox.write("outbox.yaml", f"""pipelines:
  a:
    source: {{type: mongodb, uri: "{mdb.uri}", database: {mdb.name}, collection: shop}}
    sink: {{type: file, path: x.jsonl}}
""")
    outbox.run("schema", "--apply")
    assert sorted(mdb.db.list_collection_names()) == ["shop", "shop_dead", "shop_held", "shop_keys", "shop_lease", "shop_parked"]
    outbox.run("emit", "--type", "a")
    outbox.run("run", "--once")
    assert mdb["shop"].find_one()["status"] == "published"


def test_init_needs_only_two_addresses_and_a_name(outbox, mdb):
    outbox.run("init", "--profile", "sc", "--source", mdb.uri, "--sink", "where:1234", "--service", "cards")
    text = outbox.path("outbox.yaml").read_text()
    assert 'profile: "sc"' in text and 'brokers: "where:1234"' in text and mdb.uri in text
    assert outbox.path("outbox.yaml").stat().st_mode & 0o777 == 0o600, "it may hold passwords"
    text = text.replace('      brokers: "where:1234"', "      type: file\n      path: x.jsonl")
    outbox.write("outbox.yaml", text.replace("    source:\n", f"    source:\n      database: {mdb.name}\n"))
    outbox.run("schema", "--profile", "sc", "--apply")
    outbox.run("check")
    outbox.run("emit", "--type", "user.created", "--aggregate-type", "user", "--aggregate-id", "1", "--entity-version", "1")
    outbox.run("run", "--once")
    (line,) = read_jsonl(outbox.path("x.jsonl"))
    assert line["topic"] == "sc.domain.user" and line["key"] == "1" and line["headers"]["entity_version"] == "1"


# ---- emit, events, tail, status, pause ----

@pytest.mark.slow
def test_every_command_works(outbox, mdb, model):
    p = Pipe(outbox, mdb, model)
    first, second = p.emit("u1", 1), p.emit("u1", 2, payload='{"n": [2.5, "x", {"é": null}]}')
    (s,) = outbox.json("status", "--json")
    assert (s["pending"], s["dead"], s["state"], s["owner"]) == (2, 0, "stopped", None)
    events = outbox.json("events", "--json", "--payload")
    assert [e["id"] for e in events] == [first, second] and [e["state"] for e in events] == ["pending"] * 2
    assert [e["payload"] for e in events] == [{"n": 1}, {"n": [2.5, "x", {"é": None}]}]
    assert events[0]["n"] < events[1]["n"]
    assert len(outbox.json("events", "--json", "--limit", "1")) == 1
    assert outbox.json("events", "--json", "--limit", "1")[0]["id"] == second, "the newest"
    assert len(outbox.json("events", "--json", second.upper())) == 1
    for glob, n in (("user.*", 2), ("user.creat?d", 2), ("user*x", 0), ("user.created", 2), ("userXcreated", 0), (".*", 0)):
        assert len(outbox.json("events", "--json", "--type", glob)) == n, glob
    assert len(outbox.json("events", "--json", "--key", "u?")) == 2 and not outbox.json("events", "--json", "--key", "x*")
    assert len(outbox.json("events", "--json", "--since", "1h")) == 2 and not outbox.json("events", "--json", "--until", "1h")
    tail = outbox.start("tail", "--json", "--from", "start", "--limit", "3")
    wait_until(lambda: len(tail.out.splitlines()) == 2, 30)
    relay = outbox.start("run")
    wait_until(lambda: p.states() == ["published"] * 2, 30)
    (s,) = outbox.json("status", "--json")
    assert s["state"] == "running" and s["owner"] and s["beat_age_ms"] >= 0
    outbox.run("pause")
    wait_until(lambda: outbox.json("status", "--json")[0]["state"] == "paused", 30)
    third = p.emit("u1", 3)
    assert tail.wait() == 0
    assert json.loads(tail.out.splitlines()[2])["id"] == third
    assert p.states() == ["published", "published", "pending"]
    outbox.run("resume")
    wait_until(lambda: len(p.lines()) == 3, 30)
    wait_until(lambda: outbox.json("status", "--json")[0]["published"] == 3, 30)
    assert relay.stop() == 0
    (s,) = outbox.json("status", "--json")
    assert (s["state"], s["pending"], s["parked"], s["dead"], s["in_flight"]) == ("stopped", 0, 0, 0, 0)


def test_emit_is_all_or_nothing_and_says_why(outbox, mdb, model):
    p = Pipe(outbox, mdb, model)
    one = {"type": "a", "aggregate_type": "user", "aggregate_id": "1", "entity_version": 1, "payload": {"a": 1}}
    lines = "".join(json.dumps({**one, "id": f"id-{i}"}) + "\n" for i in range(5))
    outbox.run("emit", "--jsonl", "-", stdin=lines)
    assert p.coll.count_documents({}) == 5
    r = outbox.run("emit", "--jsonl", "-", stdin=lines.replace("id-0", "id-9").replace('"type": "a"', '"type": ""', 1), check=None)
    assert r.returncode != 0 and p.coll.count_documents({}) == 5
    if model == "native":
        r = outbox.run("emit", "--type", "a", "--id", "id-1", check=None)
        assert r.returncode != 0 and "this id is there already" in r.err
    else:
        r = outbox.run("emit", "--type", "a", "--aggregate-id", "1", check=None)
        assert r.returncode != 0 and "entity_version" in r.err, "order goes by it"
    order = [e["id"] for e in outbox.json("events", "--json")]
    assert order == [f"id-{i}" for i in range(5)]


@pytest.mark.slow
def test_many_with_one_time_of_creation(outbox, mdb):
    """Of documents without a number the time of creation is one: those of one millisecond are told apart by their place."""
    p = Pipe(outbox, mdb, "sc")
    at = now()
    p.coll.insert_many([sc_document("e", v, created_at=at) for v in range(2500)])
    tail = outbox.start("tail", "--json", "--from", "start", "--limit", "2500")
    assert tail.wait() == 0
    seen = [json.loads(line)["entity_version"] for line in tail.out.splitlines()]
    assert sorted(seen) == list(range(2500)), "each once"
    newest = outbox.json("events", "--json", "--limit", "3")
    numbers = [e["n"] for e in newest]
    assert numbers == sorted(set(numbers)) and outbox.json("events", "--json", "--after", str(numbers[-1])) == []
    assert len(outbox.json("events", "--json", "--after", str(numbers[0]))) == 2


# ---- dead ----

def test_dead_list_show_retry_discard(outbox, mdb, model):
    p = Pipe(outbox, mdb, model, REFUSE, FAST)
    p.refuse("reject *")
    ids = [p.emit(f"u{i}") for i in range(4)]
    relay = outbox.start("run")
    wait_until(lambda: len(p.dead()) == 4, 60)
    assert p.states() == ["dead"] * 4
    assert {d["id"] for d in p.dead()} == set(ids)
    (one,) = outbox.json("dead", "show", ids[0], "--json")
    assert one["attempts"] >= 1 and one["error"] and one["history"][0]["error"] and one["event"]["payload"] == {"n": 1}
    assert [d["id"] for d in outbox.json("dead", "list", "--json", "--key", "u2")] == [ids[2]]
    assert not outbox.json("dead", "list", "--json", "--type", "x*") and len(outbox.json("dead", "list", "--json", "--reason", "*")) == 4
    d = p.find(ids[0])
    assert d["status"] == "failed" and d["retry_count" if model == "sc" else "attempts"] >= 1
    assert "would be" in outbox.run("dead", "retry", ids[0], "--dry-run").out and len(p.dead()) == 4
    outbox.run("dead", "discard", ids[3], "--yes")
    assert p.states() == ["dead"] * 3 + ["discarded"]
    p.refuse()
    outbox.run("dead", "retry", ids[0], "--yes")
    wait_until(lambda: p.find(ids[0])["status"] == "published", 60)
    assert p.find(ids[0])["retry_count" if model == "sc" else "attempts"] == 0
    outbox.run("dead", "retry", "--all", "--yes")
    wait_until(lambda: p.states() == ["published"] * 3 + ["discarded"], 60)
    assert "no dead event" in outbox.run("dead", "retry", ids[0], "--yes", check=None).err
    assert relay.stop() == 0
    assert p.side["parked"].count_documents({}) == 0 and p.side["held"].count_documents({}) == 0
    assert sorted(d["state"] for d in p.side["dead"].find()) == ["discarded", "retried", "retried", "retried"]


def test_dead_retry_keeps_the_order_of_a_key(outbox, mdb, model):
    p = Pipe(outbox, mdb, model, REFUSE, FAST)
    p.refuse("reject *")
    ids = [p.emit("u", v) for v in range(1, 7)]
    relay = outbox.start("run")
    wait_until(lambda: len(p.dead()) == 6, 60)
    assert relay.stop() == 0
    p.config(FILE, FAST)
    outbox.run("dead", "retry", "--key", "u", "--yes")
    states = {d["status"] for d in p.coll.find()}
    assert states == {"pending"} and p.states() == ["parked"] * 6
    outbox.run("run", "--once")
    assert [m["id"] for m in p.lines()] == ids


@pytest.mark.threads
def test_a_dead_document_is_released_by_a_plain_update(outbox, mdb, model):
    p = Pipe(outbox, mdb, model, REFUSE, FAST)
    p.refuse("reject *")
    ids = [p.emit("u", v) for v in (1, 2)]
    relay = outbox.start("run")
    wait_until(lambda: len(p.dead()) == 2, 60)
    p.refuse()
    p.coll.update_many({}, {"$set": {"status": "pending", "retry_count" if model == "sc" else "attempts": 0}})
    wait_until(lambda: p.states() == ["published"] * 2, 60)
    wait_until(lambda: p.dead() == [], 60, "their dead rows are closed")
    assert {d["state"] for d in p.side["dead"].find()} == {"released"}
    assert relay.stop() == 0 and ids
