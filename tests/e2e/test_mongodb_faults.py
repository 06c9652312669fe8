# SPDX-License-Identifier: Apache-2.0
"""test_mongodb_faults - commands of the MongoDB source that fail, hang or are answered by nobody, by the server's own fail point:
order stays, an attempt is counted once, and nothing is left locked."""

import pytest

from helpers import SLOW, wait_until
from mongo import failing, sc_document
from profiles import REFUSE
from sc import Sc, in_order, versions


def only(mdb, name):
    """A URI, and what limits a fail point to who has it and to the collection."""
    return mdb.uri + f"&appName={name}", {"appName": name, "namespace": f"{mdb.name}.outbox"}


@pytest.mark.slow
def test_a_reader_that_does_not_rest_in_time(outbox, mdb):
    """The sink is down for a moment while a look hangs for longer than it is waited for: the work is begun anew, not forgotten."""
    uri, where = only(mdb, "hung")
    s = Sc(outbox, mdb, source=f", timeout: {int(2000 * SLOW)}ms", uri=uri)
    relay = s.started()

    def once(n):
        """False: the outage was noticed before the look that hangs began."""
        before = relay.err.count("relay.fenced")
        over = s.outage()
        (one,) = s.put(sc_document(f"a{n}", 1))
        s.wait(one, status="processing")
        slow = ["find", "update", "findAndModify"]
        with failing(mdb.server, slow, blockConnection=True, blockTimeMS=int(1700 * SLOW), **where):
            with mdb.client.start_session() as session, session.start_transaction():
                two, three = s.coll.insert_many(versions(f"b{n}", 2), session=session).inserted_ids
            wait_until(lambda: mdb["outbox_lease"].find_one()["state"] == "down", 30, "the beat that tells of it")
            over()
            hung = s.doc(one)["status"] != "pending"
            if hung:
                wait_until(lambda: relay.err.count("relay.fenced") > before, 30, "it ends its work")
        for i in (one, two, three):
            s.wait(i, status="published")
        return hung

    assert any(once(n) for n in range(5))
    (last,) = s.put(sc_document("c", 1))
    s.wait(last, status="published")
    assert relay.stop() == 0


UNSURE = [{"writeConcernError": {"code": 64, "errmsg": "no majority"}}, {"closeConnection": True}]


@pytest.mark.parametrize("fault", UNSURE)
def test_a_claim_of_many_whose_outcome_is_not_known(outbox, mdb, fault):
    """So of giving back what it may have locked. Nothing was handed out: each is sent once."""
    uri, where = only(mdb, "claims")
    s = Sc(outbox, mdb, uri=uri)
    docs = [d for e in range(5) for d in versions(f"e{e}", 100)]
    s.put(*docs)
    with failing(mdb.server, ["update"], times=4, **where, **fault):  # the client tries each twice
        relay = s.start()
        s.all_published()
    (more,) = s.put(sc_document("e0", 101))
    s.wait(more, status="published")
    assert relay.stop() == 0
    assert "claiming" in relay.err, "no claim has failed"
    assert len(s.ids()) == 501 and len(in_order(s.lines())) == 501
    assert s.coll.count_documents({"status": "published", "locked_by": None, "retry_count": 0}) == 501


@pytest.mark.parametrize("fault", [*UNSURE, {"errorCode": 251}])
def test_a_settle_whose_outcome_is_not_known(outbox, mdb, fault):
    """One topic fails and three commits do: each attempt is counted once, in the document and in the dead row's history."""
    s = Sc(outbox, mdb, REFUSE, more="    retry: {first: 50ms, max: 100ms}", uri=only(mdb, "settles")[0])
    s.refuse("retry bad.topic")
    bad = s.put(*[sc_document(f"e{e}", 1, topic="bad.topic", max_retries=3) for e in range(4)])
    good = s.put(*[d for e in range(4) for d in versions(f"e{e}", 5, first=2)])
    relay = s.started()
    for _ in range(2):
        with failing(mdb.server, ["commitTransaction"], times=3, appName="settles", **fault):
            for i in bad:
                s.wait(i, status="failed", retry_count=3)
        for i in good:
            s.wait(i, status="published")
        dead = list(mdb["outbox_dead"].find({"ref": {"$in": bad}}))
        assert [(d["attempts"], [h["attempt"] for h in d["history"]]) for d in dead] == [(3, [1, 2, 3])] * 4
        bad = s.put(*[sc_document(f"f{e}", 1, topic="bad.topic", max_retries=3) for e in range(4)])
        good = s.put(*[d for e in range(4) for d in versions(f"f{e}", 5, first=2)])
    for i in [*bad, *good]:
        wait_until(lambda one=i: s.doc(one)["status"] in ("published", "failed"), 30)
    wait_until(lambda: mdb["outbox_parked"].count_documents({}) == mdb["outbox_held"].count_documents({}) == 0, 30, "nothing waits")
    assert relay.stop() == 0
    assert s.coll.count_documents({"status": "processing"}) == 0 == s.coll.count_documents({"locked_by": {"$ne": None}})
    assert all(s.doc(i)["status"] == "failed" for i in bad) and mdb["outbox_dead"].count_documents({}) == 12
