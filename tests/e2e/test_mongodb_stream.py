# SPDX-License-Identifier: Apache-2.0
"""test_mongodb_stream - the change stream wakes, and whatever ends it costs nothing but time. Idle looks are 10 s apart in
these tests: what is published sooner was woken."""

import itertools
import signal
import threading
import time

import pytest

from helpers import SLOW, wait_until
from mongo import failing, now, sc_document, step_down
from sc import Sc, ago, ahead, in_order, versions


heavy = pytest.mark.skipif(SLOW > 1, reason="skipped: takes long; run in the plain build")


def idle(s, relay):
    """Until looks are far apart."""
    wait_until(lambda: "relay.start" in relay.err, 30)
    (one,) = s.put(sc_document("idle", int(time.time() * 1000)))
    s.wait(one, status="published")
    time.sleep(6)  # 2 ms, doubling: the next look by itself is seconds away


def woken(s, entity="woken", version=1):
    began = time.monotonic()
    (one,) = s.put(sc_document(entity, version))
    s.wait(one, status="published")
    took = time.monotonic() - began
    assert took < 2 * SLOW, f"{took:.1f} s: a look by itself and not the stream"


def test_an_idle_worker_is_woken(outbox, mdb):
    s = Sc(outbox, mdb)
    relay = s.start()
    idle(s, relay)
    woken(s)
    # also by a document that others set to pending again
    (held,) = s.put(sc_document("x", 1, status="on hold"))
    time.sleep(3)
    began = time.monotonic()
    s.coll.update_one({"_id": held}, {"$set": {"status": "pending"}})
    s.wait(held, status="published")
    assert time.monotonic() - began < 2 * SLOW
    assert relay.stop() == 0


def test_without_a_stream_it_looks_by_itself(outbox, mdb):
    """Less and less often while nothing comes, and within 10 s, which is what the profile says."""
    s = Sc(outbox, mdb, source=", change_stream: false")
    relay = s.started()
    mdb.db.command("profile", 2)
    page = {"ns": f"{mdb.name}.outbox", "op": "query", "command.filter": {"status": "pending"}}

    def gaps():
        at = [d["ts"] for d in mdb.db["system.profile"].find(page).sort("ts", 1)]
        return [(b - a).total_seconds() for a, b in zip(at, at[1:])]

    wait_until(lambda: max(gaps(), default=0) > 1.9, 30, "seconds between two looks", every=0.1)
    mdb.db.command("profile", 0)
    long = [g for g in gaps() if g > 0.2]
    assert len(gaps()) < 20 and all(b > 1.5 * a for a, b in zip(long, long[1:])), gaps()
    began = time.monotonic()
    (one,) = s.put(sc_document("e", 1))
    s.wait(one, status="published")
    assert time.monotonic() - began < 11 * SLOW
    assert relay.stop() == 0


@pytest.mark.threads
def test_a_dropped_and_a_renamed_collection(outbox, mdb):
    s = Sc(outbox, mdb)
    relay = s.start()
    idle(s, relay)
    s.coll.drop()
    wait_until(lambda: "stream.down" in relay.err, 30)
    wait_until(lambda: "stream.up" in relay.err.split("stream.down")[-1], 30, "back by itself")
    woken(s)
    s.coll.rename("away")
    wait_until(lambda: relay.err.count("stream.down") >= 2, 30)
    wait_until(lambda: "stream.up" in relay.err.split("stream.down")[-1], 30, "back by itself")
    woken(s, "again")
    assert relay.stop() == 0


@heavy
def test_a_stream_whose_history_is_lost(outbox, own_mongo):
    """What the server says to a resume token that is too old, and to one that it does not like."""
    server = own_mongo()
    db = server.database()
    s = Sc(outbox, db)
    relay = s.start()
    idle(s, relay)
    for code in (286, 280, 222):  # ChangeStreamHistoryLost, ChangeStreamFatalError, CloseChangeStream
        downs = relay.err.count("stream.down")
        with failing(server, ["getMore"], times=1, errorCode=code, errorLabels=[]):
            wait_until(lambda n=downs: relay.err.count("stream.down") > n, 30, f"code {code}")
        wait_until(lambda: "stream.up" in relay.err.split("stream.down")[-1], 30, "back by itself")
        woken(s, f"code{code}")
    assert relay.stop() == 0
    db.close()


class Writer(threading.Thread):
    """Writes versions of entities with majority until it is told to stop, whatever happens to the primary."""

    def __init__(self, mdb, entities=6):
        super().__init__(daemon=True)
        self.mdb, self.entities, self.done, self.wrote = mdb, entities, threading.Event(), []

    def run(self):
        from pymongo import WriteConcern
        from pymongo.errors import DuplicateKeyError, PyMongoError

        coll = self.mdb["outbox"].with_options(write_concern=WriteConcern("majority"))
        n = 0
        while not self.done.is_set():
            doc = sc_document(f"e{n % self.entities}", n // self.entities + 1)
            doc["_id"] = f"doc{n}"
            while True:
                try:
                    coll.insert_one(doc)
                    break
                except DuplicateKeyError:
                    break
                except PyMongoError:
                    time.sleep(0.1)
            self.wrote.append(doc["event_id"])
            n += 1
            time.sleep(0.005)


@heavy
def test_step_downs_of_three_nodes_lose_nothing(outbox, own_mongo):
    """Also with a string that sends an application's reads to secondaries, which are behind."""
    server = own_mongo("--election", "2000", nodes=3)
    db = server.database()
    s = Sc(outbox, db, uri=db.uri + "&readPreference=secondaryPreferred")
    before = [d for e in range(5) for d in versions(f"b{e}", 100)]
    s.put(*before)
    relay = s.started()
    s.all_published()
    assert in_order(s.lines()) == {d["event_id"] for d in before} and "source.taken_back" not in relay.err
    writer = Writer(db)
    writer.start()
    for _ in range(3):
        at = len(writer.wrote)
        wait_until(lambda n=at: len(writer.wrote) > n + 100, 60, "writers go on")
        step_down(server)
    at = len(writer.wrote)
    wait_until(lambda: len(writer.wrote) > at + 100, 60)
    writer.done.set()
    writer.join()
    s.all_published(deadline=90)
    assert in_order(s.lines()) == set(writer.wrote) | {d["event_id"] for d in before}, "nothing is lost, nothing is made up"
    idle(s, relay)
    woken(s)
    assert relay.stop() == 0
    db.close()


@heavy
def test_a_server_that_is_cut_off_and_comes_back(outbox, own_mongo):
    server = own_mongo()
    db = server.database()
    s = Sc(outbox, db, source=", timeout: 2s")
    relay = s.started()
    s.put(*versions("e", 20))
    s.all_published()
    server.signal(signal.SIGSTOP, 1)  # connected, and no answer comes
    wait_until(lambda: "relay.fenced" in relay.err or "source.down" in relay.err, 30)
    server.signal(signal.SIGCONT, 1)
    s.put(*versions("e", 20, first=21))
    s.all_published()
    server.stop(kill=True)
    server.start()
    s.put(*versions("e", 20, first=41))
    s.all_published()
    idle(s, relay)
    woken(s)
    assert relay.stop() == 0
    assert len(in_order(s.lines())) == s.coll.count_documents({})
    db.close()


def commands(mdb):
    """What was asked of the collection since the profiler was set, in order."""
    seen = list(mdb.db["system.profile"].find({"ns": f"{mdb.name}.outbox"}).sort("ts", 1))
    return [(d["op"], d["command"]) for d in seen if d["op"] != "getmore"]


@pytest.mark.threads
def test_a_woken_worker_looks_at_the_entity_alone_and_keeps_its_order(outbox, mdb):
    """The short way from the stream: what stands behind one that waits stays, whether that waits in the collection or aside."""
    s = Sc(outbox, mdb, more="    retry: {first: 10m, max: 10m}")
    locked, failed = s.put(sc_document("a", 1, status="processing", locked_by="another", locked_until=ahead(600)),
                           sc_document("b", 1, status="failed", retry_count=1, last_error_at=now()))
    relay = s.start()
    idle(s, relay)
    mdb.db.command("profile", 2)
    behind = s.put(sc_document("a", 2), sc_document("b", 2))
    numbers = itertools.count(1)

    def short():
        """A busy machine may look of its own accord just before the stream tells: then there is another chance."""
        woken(s, version=next(numbers))
        asked = commands(mdb)
        named = any(op == "query" and "woken" in c["filter"].get("entity_id", {}).get("$in", []) for op, c in asked)
        return named and any(op == "command" and "findAndModify" in c for op, c in asked)

    wait_until(short, 60, "named by the stream, locked and read at once")
    mdb.db.command("profile", 0)
    assert [s.doc(i)["status"] for i in behind] == ["pending", "pending"]
    s.coll.update_one({"_id": locked}, {"$set": {"status": "published", "locked_by": None, "locked_until": None}})
    s.coll.update_one({"_id": failed}, {"$set": {"last_error_at": ago(601)}})
    s.put(sc_document("a", 3), sc_document("b", 3))
    s.all_published()
    assert relay.stop() == 0
    in_order(s.lines())


@heavy
@pytest.mark.parametrize("fault", [{"writeConcernError": {"code": 64, "errmsg": "no majority"}}, {"closeConnection": True},
                                   {"errorCode": 11602, "errorLabels": ["RetryableWriteError"]}, {"errorCode": 50}])
def test_a_claim_of_one_whose_outcome_is_not_known(outbox, own_mongo, fault):
    """It is given back, claimed again and sent once."""
    server = own_mongo()
    db = server.database()
    s = Sc(outbox, db)
    relay = s.start()
    idle(s, relay)
    for n in range(3):
        with failing(server, ["findAndModify"], times=2, namespace=f"{db.name}.outbox", **fault):
            (one,) = s.put(sc_document(f"e{n}", 1))
            s.wait(one, status="published")
    assert relay.stop() == 0
    if "writeConcernError" in fault or fault.get("errorCode") == 50:
        assert "claiming" in relay.err, "not taken for claimed"
    assert len(s.ids()) == len(set(s.ids())) == 4 and s.coll.count_documents({"locked_by": None, "retry_count": 0}) == 4
    db.close()
