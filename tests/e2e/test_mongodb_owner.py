# SPDX-License-Identifier: Apache-2.0
"""test_mongodb_owner - one worker of a collection: stand-bys, take-over, a sleeper that wakes."""

import signal
import time

import pytest

from helpers import SLOW, wait_until
from mongo import failing, sc_document
from profiles import REFUSE
from sc import Sc, ahead, in_order, versions


def two(outbox, mdb, sink="{{type: file, path: out/{}.jsonl}}", **kw):
    s = Sc(outbox, mdb, sink.format("a"), **kw)
    s.config(sink.format("b"), name="b.yaml", **kw)
    a = s.started()
    b = outbox.start("run", "-c", "b.yaml")
    wait_until(lambda: "relay.standby" in b.err, 30, "the second stands by")
    assert "is worked on by" in b.err
    return s, a, b


def test_a_stand_by_takes_over_from_one_that_is_killed(outbox, mdb):
    s, a, b = two(outbox, mdb)
    s.put(*versions("e", 50))
    s.all_published()
    epoch = mdb["outbox_lease"].find_one()["epoch"]
    a.kill()
    began = time.monotonic()
    (last,) = s.put(sc_document("e", 51))
    s.wait(last, status="published")
    assert time.monotonic() - began < 8 * SLOW, "the lease is 5 s"
    assert mdb["outbox_lease"].find_one()["epoch"] == epoch + 1
    assert b.stop() == 0
    assert len(s.lines("out/a.jsonl")) == 50 and len(s.lines("out/b.jsonl")) == 1


def test_a_clean_stop_hands_over_at_once_and_repeats_nothing(outbox, mdb):
    s, a, b = two(outbox, mdb)
    s.put(*[d for e in range(10) for d in versions(f"e{e}", 30)])
    wait_until(lambda: len(s.lines("out/a.jsonl")) > 0, 30)
    assert a.stop() == 0
    assert s.coll.count_documents({"status": "processing", "locked_by": {"$ne": None}}) == 0 or "relay.start" in b.err
    s.all_published()
    assert b.stop() == 0
    both = s.lines("out/a.jsonl") + s.lines("out/b.jsonl")
    assert len(both) == 300 and len(in_order(both)) == 300


def test_what_a_killed_worker_had_locked_is_taken_back_at_once(outbox, mdb):
    """Not after the documents' own lock of a minute."""
    s, a, b = two(outbox, mdb, sink='{{type: "null", latency_us: 1000000}}')
    ids = s.put(*versions("e", 3))
    s.wait(ids[0], status="processing")
    a.kill()
    began = time.monotonic()
    s.wait(ids[2], status="published", deadline=40)
    assert time.monotonic() - began < 30 * SLOW
    assert "source.taken_back" in b.err
    assert b.stop() == 0


@pytest.mark.threads
def test_a_sleeper_marks_nothing_when_it_wakes(outbox, mdb):
    """SIGSTOP while documents are in flight: another takes over; the sleeper's marks change nothing."""
    s, a, b = two(outbox, mdb, sink='{{type: "null", latency_us: 1500000}}')
    ids = s.put(*versions("e", 2), *versions("f", 2))
    s.wait(ids[0], status="processing")
    a.signal(signal.SIGSTOP)
    wait_until(lambda: "relay.start" in b.err, 30, "the second takes over")
    for i in ids:
        s.wait(i, status="published", deadline=40)
    owner = mdb["outbox_lease"].find_one()["owner"]
    before = [s.doc(i) for i in ids]
    a.signal(signal.SIGCONT)
    wait_until(lambda: "relay.fenced" in a.err, 30, "it finds out")
    wait_until(lambda: a.err.count("relay.standby") > 0, 30, "it stands by")
    assert mdb["outbox_lease"].find_one()["owner"] == owner
    assert [s.doc(i) for i in ids] == before, "the sleeper changed nothing"
    (more,) = s.put(sc_document("g", 1))
    s.wait(more, status="published")
    assert s.doc(more)["locked_by"] is None
    assert b.stop() == 0 and a.stop() == 0


def test_what_was_claimed_before_the_lease_ran_out_is_not_handed_out_after(outbox, own_mongo):
    """The mark of the first event does not come back until another has taken over; the second was claimed meanwhile."""
    server = own_mongo()
    db = server.database()
    s = Sc(outbox, db, "{type: stdout}", source=", lease: 2s, page: 1", more="    window: 1", uri=db.uri + "&appName=sleeper")
    s.config(name="b.yaml", source=", lease: 2s")
    a = s.started()
    with failing(server, ["update"], times=1, appName="sleeper", blockConnection=True, blockTimeMS=7000):
        ids = s.put(*versions("e", 5))
        s.wait(ids[1], status="processing")
        b = outbox.start("run", "-c", "b.yaml")
        s.wait(ids[4], status="published")
        wait_until(lambda: "relay.fenced" in a.err, 30)
        wait_until(lambda: "relay.standby" in a.err.split("relay.fenced")[-1], 30)
    assert b.stop() == 0 and a.stop() == 0
    assert [m["headers"]["entity_version"] for m in s.lines()] == ["1", "2", "3", "4", "5"]
    assert len(a.out.splitlines()) == 1, "the second one was not ours any more"
    db.close()


def test_killed_again_and_again(outbox, mdb):
    s = Sc(outbox, mdb, source=", lease: 2s")
    docs = [d for e in range(8) for d in versions(f"e{e}", 40)]
    s.put(*docs[:160])
    for round_ in range(4):
        relay = s.start()
        at = len(s.lines())
        wait_until(lambda n=at: len(s.lines()) > n or s.coll.count_documents({"status": {"$ne": "published"}}) == 0, 60)
        relay.kill()
        s.put(*docs[160 + round_ * 40:200 + round_ * 40])
    relay = s.start()
    s.all_published()
    assert relay.stop() == 0
    assert in_order(s.lines()) == {d["event_id"] for d in docs}, "nothing is lost"


def test_a_configured_worker_id_fences_by_the_epoch(outbox, mdb):
    s = Sc(outbox, mdb, source=', worker_id: "$w.1"')
    ids = s.put(*versions("e", 3))
    relay = s.start()
    s.all_published()
    assert relay.stop() == 0
    lease = mdb["outbox_lease"].find_one()
    assert lease["worker"] == "$w.1" != lease["owner"] and s.doc(ids[0])["locked_by"] is None and lease["settles"] >= 1


@pytest.mark.slow
def test_two_processes_with_one_worker_id(outbox, mdb):
    """They are two workers all the same: one stands by. The other's locks last as long as it publishes, by the server's clock."""
    s, a, b = two(outbox, mdb, sink='{{type: "null", latency_us: 7000000}}', source=", worker_id: w, mapping: {lease: 5s}")
    (one,) = s.put(sc_document("e", 1))
    s.wait(one, status="processing")
    at_first = mdb["outbox_lease"].find_one()

    def holds():
        lease, d, now = mdb["outbox_lease"].find_one(), s.doc(one), mdb.db.command("hello")["localTime"]
        if d["status"] == "published":
            return True
        assert (lease["owner"], lease["epoch"], lease["worker"]) == (at_first["owner"], at_first["epoch"], "w")
        assert d["locked_by"] == "w" and d["locked_until"] > now and (d["locked_until"] - now).total_seconds() <= 5
        return False

    until = time.monotonic() + 30 * SLOW
    while not holds():
        assert time.monotonic() < until, "it is never published"
        time.sleep(0.02)
    assert (s.doc(one)["published_at"] - s.doc(one)["processing_started_at"]).total_seconds() > 6.9
    (two_,) = s.put(sc_document("e", 2))
    s.wait(two_, status="processing")
    a.kill()
    began = time.monotonic()
    wait_until(lambda: "source.taken_back" in b.err, 30)
    assert time.monotonic() - began < 8 * SLOW, "the lease is 5 s"
    lease = mdb["outbox_lease"].find_one()
    assert lease["owner"] != at_first["owner"] and lease["epoch"] == at_first["epoch"] + 1


@pytest.mark.slow
def test_a_lock_that_nobody_knows_of_is_given_back(outbox, mdb):
    """The find behind a claim does not see a document that is locked: what stands behind that is not sent first. One that has our
    name on it and stands alone is found too."""
    s = Sc(outbox, mdb, source=", mapping: {lease: 5s}", uri=mdb.uri + "&appName=claimer")
    relay = s.started()
    us = mdb["outbox_lease"].find_one()["worker"]
    mdb.db.command("profile", 2)
    asked = lambda op, **q: mdb.db["system.profile"].find_one({"op": op, "ns": f"{mdb.name}.outbox", "appName": "claimer", **q})
    docs = versions("e", 3)
    with failing(mdb.server, ["find", "update"], appName="claimer", namespace=f"{mdb.name}.outbox", blockConnection=True,
                 blockTimeMS=int(1000 * SLOW)):
        with mdb.client.start_session() as session, session.start_transaction():
            first = s.coll.insert_many(docs, session=session).inserted_ids[0]
        s.wait(first, status="processing")
        s.coll.update_one({"_id": first}, {"$set": {"locked_by": "another"}})
        fetch = {"command.filter._id": {"$exists": True}, "command.filter.locked_by": us}
        read = wait_until(lambda: asked("query", **fetch), 30, "the find behind the claim")
        s.coll.update_one({"_id": first}, {"$set": {"locked_by": us}})
        wait_until(lambda: s.doc(first)["status"] == "pending", 30, "it is given back")
    mdb.db.command("profile", 0)
    assert "afterClusterTime" in read["command"]["readConcern"] and read["nreturned"] == 2
    s.all_published()
    (alone,) = s.put(sc_document("alone", 1, status="processing", locked_by=us, locked_until=ahead(3600)))
    s.wait(alone, status="published")
    assert relay.stop() == 0
    assert [m["headers"]["entity_version"] for m in s.lines()] == ["1", "2", "3", "1"] and "source.taken_back" in relay.err


def test_a_lease_that_is_dropped_is_made_anew_above_the_old_one(outbox, mdb):
    s = Sc(outbox, mdb, REFUSE, more="    retry: {first: 10m, max: 10m}")
    s.refuse("retry bad.topic")
    relay = s.started()
    parked = lambda: [d["_id"] for d in mdb["outbox_parked"].find().sort("_id", 1)]
    s.put(sc_document("a", 1, topic="bad.topic"))
    wait_until(lambda: parked() == [1], 30, "the first is parked")
    epochs = [mdb["outbox_lease"].find_one()["epoch"]]
    mdb["outbox_lease"].drop()
    s.put(sc_document("b", 1, topic="bad.topic"))
    wait_until(lambda: parked() == [1, 2], 30, "numbers go on")
    epochs.append(mdb["outbox_lease"].find_one()["epoch"])
    mdb.client.drop_database(mdb.name)
    wait_until(lambda: mdb["outbox_lease"].count_documents({"epoch": {"$gt": epochs[1]}}), 30, "a lease again")
    (last,) = s.put(sc_document("c", 1))
    s.wait(last, status="published")
    epochs.append(mdb["outbox_lease"].find_one()["epoch"])
    assert relay.stop() == 0
    assert epochs[0] < epochs[1] < epochs[2], "who worked before is not taken for one of now"
