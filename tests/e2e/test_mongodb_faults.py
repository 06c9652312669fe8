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
