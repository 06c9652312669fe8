# SPDX-License-Identifier: Apache-2.0
"""test_mongodb_counts - the numbers of `status` against counts that pymongo takes before and after, while events flow, fail, wait
and die."""

import random

import pytest
from pymongo.read_concern import ReadConcern

from helpers import wait_until
from mongo import sc_document
from profiles import REFUSE
from sc import Sc

SETTLED = {"$or": [{"status": "published"}, {"$expr": {"$and": [{"$eq": ["$status", "failed"]}, {"$gte": ["$retry_count", "$max_retries"]}]}}]}


@pytest.mark.slow
def test_each_event_is_counted_once(outbox, mdb):
    """No event is written meanwhile, so the number of those that are not settled only falls: what `status` counts lies between
    the count before and the count after. Documents are sent again all the time, and each try takes a moment."""
    s = Sc(outbox, mdb, '{type: "null", refuse: refuse.txt, latency_us: 100000}', more="    retry: {first: 20ms, max: 40ms}")
    s.refuse("retry later", "reject never")
    rand = random.Random(7)
    docs = [sc_document(f"e{e}", v, topic=rand.choice(["later", "later", "later", "never", "good"]), max_retries=60)
            for e in range(60) for v in range(1, 4)]
    s.put(*docs)
    left = lambda: s.coll.with_options(read_concern=ReadConcern("majority")).count_documents({"$nor": [SETTLED]})
    relay = s.start()
    wait_until(lambda: mdb["outbox_parked"].count_documents({}) > 20, 30, "some wait")
    sent_again = 0
    for _ in range(15):
        before = left()
        got = outbox.json("status", "--json")[0]
        again = {d["ref"] for d in mdb["outbox_parked"].find()}
        sent_again += s.coll.count_documents({"_id": {"$in": list(again)}, "status": "processing"})
        assert left() <= got["pending"] + got["parked"] <= before, got
        assert got["parked"] > 0
    assert sent_again > 5, "nothing was sent again while it was counted"
    s.refuse("reject never")
    wait_until(lambda: left() == 0, 60, "all are settled")
    assert relay.stop() == 0
    got = outbox.json("status", "--json")[0]
    assert (got["pending"], got["parked"]) == (0, 0) and got["dead"] == mdb["outbox_dead"].count_documents({"state": "dead"})
