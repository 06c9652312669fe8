# SPDX-License-Identifier: Apache-2.0
"""test_mongodb_check - `outbox check` on MongoDB: each fault is made, the printed statement is run, and the fault is gone."""

import datetime
import json
import re

import pytest
from bson import Timestamp, json_util

from helpers import wait_until
from mongo import now, profiled, sc_document
from test_mongodb_cli import Pipe


def problems(outbox):
    """{what: fix} of the findings of the source that are none of them well."""
    found = outbox.json("check", "--json", check=None)
    return {f["what"]: f["fix"] for f in found if f["pipeline"] and not f["ok"]}


def run_statement(server, database, text):
    """What mongosh would do with a statement, as far as check prints such."""
    text = re.sub(r"new Date\((-?\d+)\)", r'{"$date": {"$numberLong": "\1"}}', text.split(" //")[0].strip())
    first, then, rest = text.partition("); db.")
    if then:
        run_statement(server, database, first + ");")
        return run_statement(server, database, "db." + rest)
    call = re.fullmatch(r"db(?:\.getSiblingDB\(\"(\w+)\"\))?(?:\.getCollection\(\"([\w.]+)\"\))?\.(\w+)\((.*)\);", text, re.S)
    assert call, text
    sibling, coll, verb, args = call.groups()
    args = json_util.loads(f"[{args}]", json_options=json_util.JSONOptions(tz_aware=True))
    with server.client("admin" if server.auth else None) as client:
        db = client[sibling or database]
        if verb == "createIndex":
            db.command("createIndexes", coll, indexes=[{"key": args[0], "name": "_".join(args[0]), **args[1]}])
        elif verb == "createCollection":
            db.command("create", args[0], **(args[1] if len(args) > 1 else {}))
        elif verb == "grantRolesToUser":
            db.command("grantRolesToUser", args[0], roles=args[1])
        elif verb == "adminCommand":
            client.admin.command(args[0])
        elif verb == "updateMany":
            db[coll].update_many(*args)
        else:
            pytest.fail(f"no such statement: {verb}")
    return None


def mend(outbox, mdb, want, n=1):
    """There is such a problem; its statement ends it."""
    before = problems(outbox)
    hits = {what: fix for what, fix in before.items() if want in what}
    assert len(hits) == n, before
    for fix in set(hits.values()):
        run_statement(mdb.server, mdb.name, fix)
    left = problems(outbox)
    assert not set(left) & set(hits), left
    return left


@pytest.fixture(params=["native", "sc"])
def pipe(request, outbox, mdb):
    p = Pipe(outbox, mdb, request.param)
    assert problems(outbox) == {}
    return p


def test_all_is_well_and_said_so(pipe, outbox):
    said = outbox.run("check").out
    for want in ("member of a replica set", "clock agrees", "wait for a majority", "reads in a snapshot", "with their indexes"):
        assert want in said, want


@pytest.mark.slow
def test_each_missing_index(pipe, outbox, mdb):
    for coll in [pipe.coll, *pipe.side.values()]:
        n = len(coll.index_information()) - 1
        if n == 0:
            continue
        coll.drop_indexes()
        assert mend(outbox, mdb, f"an index of {coll.name} is missing", n) == {}


@pytest.mark.slow
def test_an_index_that_does_not_serve(pipe, outbox, mdb):
    """A partial, sparse or hidden one holds not all documents."""
    keys = [("status", 1), ("seq" if pipe.model == "native" else "created_at", 1)]
    name = next(n for n, v in pipe.coll.index_information().items() if v["key"] == keys)
    for options in ({"partialFilterExpression": {"status": "pending"}}, {"sparse": True}, {"hidden": True}):
        pipe.coll.drop_index(name)
        pipe.coll.create_index(keys, name=name, **options)
        assert any("an index of" in what for what in problems(outbox)), options
    pipe.coll.drop_index(name)
    pipe.coll.create_index([*keys, ("type", 1)], name="by_another_name")
    assert problems(outbox) == {}, "one with more fields does"


def test_entities_that_have_published_much(outbox, mdb):
    """The advised index spares the server reading it at every look. Others that are open keep it from going by the status."""
    p = Pipe(outbox, mdb, "sc")
    docs = [sc_document("one", n, status="published", payload="") for n in range(3000)]
    p.coll.insert_many(docs[:900])
    assert problems(outbox) == {}
    until = now() + datetime.timedelta(minutes=5)
    p.coll.insert_many(docs[900:] + [sc_document(f"e{n}", 1, status="processing", locked_by="x", locked_until=until) for n in range(7000)])
    profiled(mdb)

    def examined(version):
        """Documents that a look at the entity reads."""
        p.coll.insert_one(sc_document("one", version))
        began = now()
        outbox.run("run", "--once")
        looks = mdb["system.profile"].find({"appName": "outbox", "ns": p.coll.full_name, "command.filter.entity_id": {"$exists": True},
                                            "ts": {"$gte": began}})
        return max(op["docsExamined"] for op in looks)

    assert examined(3001) > 1000
    assert mend(outbox, mdb, "have 1000 documents or more") == {}
    keys = [("entity_id", 1), ("entity_version", 1)]
    p.coll.drop_index(next(n for n, v in p.coll.index_information().items() if v["key"] == keys))  # as the statement's comment says
    assert problems(outbox) == {} and examined(3002) < 100


@pytest.mark.slow
def test_missing_collections(pipe, outbox, mdb):
    for name in ("lease", "parked"):
        pipe.side[name].drop()
    for _ in range(5):
        left = problems(outbox)
        for fix in left.values():
            run_statement(mdb.server, mdb.name, fix)
    assert problems(outbox) == {}
    pipe.coll.drop()
    assert any(f"collection {pipe.coll.name} is not there" in what for what in problems(outbox))
    outbox.run("schema", "--apply", *(["--profile", "sc"] if pipe.model == "sc" else []))
    assert problems(outbox) == {}


@pytest.mark.slow
def test_default_write_concern(own_mongo, outbox):
    server = own_mongo()
    mdb = server.database()
    Pipe(outbox, mdb, "sc")
    server.command("setDefaultRWConcern", 1, defaultWriteConcern={"w": 1, "wtimeout": 0})
    assert mend(outbox, mdb, "default write concern is not majority") == {}
    mdb.close()


def test_write_concern_of_the_uri(outbox, mdb):
    p = Pipe(outbox, mdb, "sc")
    p.config(uri=mdb.uri + "&w=1")
    ((what, fix),) = problems(outbox).items()
    assert "w=1" in what and "w=majority" in fix
    p.config(uri=mdb.uri + "&w=majority")
    assert problems(outbox) == {}


def test_a_silent_worker(pipe, outbox):
    pipe.side["lease"].delete_many({})
    past = now() - datetime.timedelta(seconds=90)
    pipe.side["lease"].insert_one({"_id": "lease", "owner": "gone:1:2", "pipeline": "users", "epoch": 3, "until": past,
                                   "beat_at": past, "state": "running", "previous": [], "last_n": 0, "published": 0,
                                   "failed": 0, "fenced": 0})
    ((what, fix),) = problems(outbox).items()
    assert "gone:1:2" in what and "nobody took over" in what and fix == "outbox run -p users"
    relay = outbox.start(*fix.split()[1:])
    wait_until(lambda: problems(outbox) == {}, 60, "it is worked on")
    assert relay.stop() == 0
    assert problems(outbox) == {}, "a worker that stopped is no problem"


def test_locks_that_never_end(outbox, mdb):
    p = Pipe(outbox, mdb, "sc")
    far = now() + datetime.timedelta(days=400)
    p.coll.insert_one(sc_document("e", 1, status="processing", locked_by="x", locked_until=far))
    assert mend(outbox, mdb, "locked for longer than a lock lasts") == {}
    outbox.run("run", "--once")
    assert p.coll.find_one()["status"] == "published"


@pytest.mark.slow
def test_a_standalone_server_is_refused(own_mongo, outbox):
    server = own_mongo("--alone")
    outbox.write("outbox.yaml", f"""pipelines:
  users: {{source: {{type: mongodb, uri: "{server.uri()}"}}, sink: {{type: file, path: x.jsonl}}}}
""")
    ((what, fix),) = problems(outbox).items()
    assert "not a member of a replica set" in what and "--replSet" in fix and "rs.initiate()" in fix
    for command in (["run", "--once"], ["status"], ["schema", "--apply"], ["emit", "--type", "a"]):
        r = outbox.run(*command, check=None)
        assert r.returncode != 0 and "replica set" in r.err + r.out, command


@pytest.fixture(scope="module")
def auth(request):
    import services

    server = services.Mongo("--auth")
    yield server
    server.close()


def test_missing_rights(auth, outbox):
    """Who may only read is told what is missing, and the grant that check prints is enough."""
    mdb = auth.database()
    p = Pipe(outbox, mdb, "sc")
    with auth.client("admin") as c:
        c.admin.command("createUser", f"u{mdb.name}", pwd="secret", roles=[{"role": "read", "db": mdb.name}])
    p.config(uri=auth.uri(f"u{mdb.name}"))
    found = problems(outbox)
    text = "\n".join(found)
    assert f"user u{mdb.name} may not update {mdb.name}.outbox" in text and "remove" in text, found
    assert all(f'grantRolesToUser("u{mdb.name}", ' in fix for fix in found.values())
    r = outbox.run("run", "--once", check=None)
    assert r.returncode != 0 and "not authorized" in r.err
    run_statement(auth, mdb.name, next(iter(found.values())))
    assert problems(outbox) == {}
    p.emit("u")
    outbox.run("run", "--once")
    assert p.coll.find_one()["status"] == "published"
    mdb.close()


@pytest.mark.slow
def test_a_user_of_a_role_that_makes_nothing(auth, outbox):
    """Where the schema was applied by others, the relay needs no right to make collections or indexes."""
    mdb = auth.database()
    p = Pipe(outbox, mdb, "sc")
    name = f"r{mdb.name}"
    side = [{"resource": {"db": mdb.name, "collection": c.name}, "actions": ["find", "insert", "update", "remove", "listIndexes"]}
            for c in p.side.values()]
    with auth.client("admin") as c:
        c.admin.command("createRole", name, roles=[], privileges=[
            {"resource": {"db": mdb.name, "collection": "outbox"}, "actions": ["find", "update", "changeStream", "listIndexes"]},
            {"resource": {"db": mdb.name, "collection": ""}, "actions": ["listCollections"]}, *side])
        c.admin.command("createUser", name, pwd="secret", roles=[name])
        p.coll.insert_one(sc_document("e", 1))
        p.config(uri=auth.uri(name))
        assert problems(outbox) == {}
        c.admin.command("revokePrivilegesFromRole", name, privileges=[
            {"resource": {"db": mdb.name, "collection": "outbox"}, "actions": ["changeStream"]}])
    (what,) = problems(outbox)
    assert f"may not changeStream {mdb.name}.outbox" in what
    p.config(uri=auth.uri(name), source=", change_stream: false")
    assert problems(outbox) == {}, "who watches nothing needs no right to"
    outbox.run("run", "--once")
    assert p.coll.find_one()["status"] == "published"
    assert json.dumps(outbox.json("status", "--json"))
    mdb.close()


@pytest.mark.slow
def test_commands_go_by_indexes(pipe, outbox, mdb):
    """What people ask beside a relay must not read a large collection from one end to the other: the server's own profile tells."""
    done = {"status": "published", "published_at": now()}
    if pipe.model == "sc":
        pipe.coll.insert_many([sc_document(f"e{i % 50}", i, **done) for i in range(3000)])
    else:
        at = now()
        pipe.coll.insert_many([{"_id": str(i), "seq": Timestamp(1700000000, i + 1), "type": "a", "key": f"e{i % 50}", "created_at": at, **done}
                               for i in range(3000)])
    some = pipe.emit("new", 1)
    mdb.db.command("profile", 2)
    outbox.run("status")
    outbox.run("events", "--limit", "5")
    outbox.run("events", some)
    outbox.run("events", "--limit", "5", "--since", "1h")
    outbox.run("tail", "--seconds", "0")
    outbox.run("dead", "list")
    outbox.run("dead", "retry", "--all", "--yes")
    mdb.db.command("profile", 0)
    seen = list(mdb.db["system.profile"].find({"appName": "outbox", "planSummary": {"$exists": True}}))
    events = [p for p in seen if p["ns"] in (f"{mdb.name}.{pipe.coll.name}", f"{mdb.name}.{pipe.coll.name}_dead")]
    assert len(events) >= 6
    for p in events:
        assert "COLLSCAN" not in p["planSummary"] or p["docsExamined"] == 0, (p["planSummary"], p["command"])
        assert p["docsExamined"] < 200, (p["planSummary"], p["docsExamined"], p["command"])
