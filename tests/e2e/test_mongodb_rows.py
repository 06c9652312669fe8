# SPDX-License-Identifier: Apache-2.0
"""test_mongodb_rows - the MongoDB source: what is claimed, in which order, and what documents show of it. Everything is
written and looked at by pymongo."""

import random
import time

import pytest
from bson import ObjectId, Timestamp

from helpers import wait_until
from mongo import native_document, now, sc_document
from profiles import REFUSE
from sc import Sc, ago, ahead, in_order, stays, versions


def test_published_in_order_of_the_entity_and_marked(outbox, mdb):
    s = Sc(outbox, mdb)
    docs = [d for e in range(20) for d in versions(f"e{e}", 30)]
    for d in docs:  # creation disagrees with the version
        d["created_at"] = ago(random.uniform(1, 1000))
    random.shuffle(docs)
    ids = s.put(*docs)
    relay = s.start()
    s.all_published()
    assert relay.stop() == 0
    assert sorted(s.ids()) == sorted(d["event_id"] for d in docs), "each once"
    in_order(s.lines())
    d = s.doc(ids[0])
    assert (d["locked_by"], d["locked_until"], d["retry_count"], d["last_error"]) == (None, None, 0, None)
    assert d["processing_started_at"] and d["published_at"] >= d["processing_started_at"]
    lease = mdb["outbox_lease"].find_one()
    assert lease["published"] == 600 and lease["state"] == "stopped" and lease["fenced"] == 0


def test_two_documents_with_one_event_id(outbox, mdb):
    s = Sc(outbox, mdb)
    one = sc_document("e", 1)
    ids = s.put(one, sc_document("e", 2, event_id=one["event_id"]), sc_document("e", 3))
    outbox.run("run", "--once")
    assert [s.doc(i)["status"] for i in ids] == ["published"] * 3
    assert s.ids().count(one["event_id"]) == 2 and len(s.ids()) == 3


def test_nothing_is_claimed_behind_one_that_waits(outbox, mdb):
    s = Sc(outbox, mdb, more="    retry: {first: 10m, max: 10m}")
    failed = sc_document("a", 1, status="failed", retry_count=1, last_error_at=now())
    locked = sc_document("b", 1, status="processing", locked_by="another", locked_until=ahead(600))
    dead = sc_document("c", 1, status="failed", retry_count=5, last_error_at=now())
    a2, b2, c2, d1 = (sc_document("a", 2), sc_document("b", 2), sc_document("c", 2), sc_document("d", 1))
    ids = s.put(failed, locked, dead, a2, b2, c2, d1)
    relay = s.start()
    s.wait(ids[6], status="published")
    s.wait(ids[5], status="published")  # a dead one holds up nobody
    assert [s.doc(i)["status"] for i in ids[:5]] == ["failed", "processing", "failed", "pending", "pending"]
    s.coll.update_one({"_id": ids[1]}, {"$set": {"locked_until": ago(1)}})
    s.wait(ids[4], status="published")
    assert s.doc(ids[0])["status"] == "failed" and s.doc(ids[3])["status"] == "pending", "its back-off is not over"
    s.coll.update_one({"_id": ids[0]}, {"$set": {"last_error_at": ago(601)}})
    s.wait(ids[3], status="published")
    assert relay.stop() == 0
    in_order(s.lines())
    assert s.doc(ids[2])["status"] == "failed"


def test_failed_ones_wait_for_their_back_off(outbox, mdb):
    s = Sc(outbox, mdb, more="    retry: {first: 2s, factor: 2, max: 60s, jitter: 0%}")
    soon = sc_document("a", 1, status="failed", retry_count=1, last_error_at=now())
    later = sc_document("b", 1, status="failed", retry_count=3, last_error_at=now())
    ids = s.put(soon, later)
    began = time.monotonic()
    relay = s.start()
    s.wait(ids[0], status="published")
    assert time.monotonic() - began >= 1.9
    s.wait(ids[1], status="published")
    assert time.monotonic() - began >= 7.9
    assert relay.stop() == 0


@pytest.mark.threads
def test_retry_dead_and_what_documents_show(outbox, mdb):
    s = Sc(outbox, mdb, REFUSE, more="    retry: {first: 50ms, max: 100ms}")
    s.refuse("retry bad.topic", "reject worse.topic")
    ids = s.put(sc_document("a", 1, topic="bad.topic", max_retries=3), sc_document("a", 2),
                sc_document("b", 1, topic="worse.topic"), sc_document("b", 2), sc_document("c", 1))
    relay = s.start()
    s.wait(ids[4], status="published")
    d = s.wait(ids[0], status="failed", retry_count=3)
    assert "refused" in d["last_error"] and d["last_error_at"] and d["locked_by"] is None and d["locked_until"] is None
    d = s.wait(ids[2], status="failed", retry_count=5)  # else it would be claimed again
    s.wait(ids[1], status="published")
    s.wait(ids[3], status="published")
    assert relay.stop() == 0
    dead = {d["ref"]: d for d in mdb["outbox_dead"].find()}
    assert set(dead) == {ids[0], ids[2]} and len(dead[ids[0]]["history"]) == 3 and dead[ids[0]]["attempts"] == 3
    assert mdb["outbox_parked"].count_documents({}) == 0 and mdb["outbox_held"].count_documents({}) == 0


def test_a_uri_that_is_made_for_an_application(outbox, mdb):
    """Reads from secondaries and one connection are not for a relay: it takes the primary, and as many as it has threads."""
    s = Sc(outbox, mdb, REFUSE, more="    retry: {first: 50ms, max: 100ms}",
           uri=mdb.uri + "&readPreference=secondaryPreferred&maxPoolSize=1&readConcernLevel=local")
    s.refuse("retry bad.topic")
    bad, behind = s.put(sc_document("a", 1, topic="bad.topic", max_retries=2), sc_document("a", 2))
    outbox.run("run", "--once")
    assert (s.doc(bad)["status"], s.doc(bad)["retry_count"]) == ("failed", 2) and s.doc(behind)["status"] == "published"


def test_documents_in_back_off_do_not_hide_the_next(outbox, mdb):
    s = Sc(outbox, mdb, REFUSE, more="    retry: {first: 10m, max: 10m}", source=", page: 50")
    s.refuse("retry bad.topic")
    s.put(*[d for e in range(120) for d in versions(f"e{e}", 3, topic="bad.topic")])
    relay = s.start()
    wait_until(lambda: s.coll.count_documents({"retry_count": 1}) == 120, 60, "all were tried")
    (after,) = s.put(sc_document("good", 1))
    s.wait(after, status="published")
    assert relay.stop() == 0
    relay = s.start()  # a restart never resets an attempt, and does not try them early
    (after,) = s.put(sc_document("good", 2))
    s.wait(after, status="published")
    assert relay.stop() == 0
    assert s.coll.count_documents({"retry_count": 1}) == 120 and s.coll.count_documents({"retry_count": {"$gt": 1}}) == 0
    assert s.coll.count_documents({"status": "processing"}) == 0


def test_entities_with_more_documents_than_one_look_holds(outbox, mdb):
    """Few documents are claimed at once and entities have many: the look asks for fewer entities, the oldest first."""
    s = Sc(outbox, mdb, source=", page: 10")
    docs = [d for e in range(12) for d in versions(f"e{e:02}", 200)]
    oldest = versions("z", 5)
    for n, d in enumerate(oldest + docs):
        d["created_at"] = ago(5000 - n)
    s.put(*random.sample(docs + oldest, len(docs) + 5))
    outbox.run("run", "--once", timeout=120)
    assert in_order(s.lines()) == {d["event_id"] for d in docs + oldest}
    assert [m["headers"]["entity_id"] for m in s.lines()[:5]] == ["z"] * 5, "not by the entity's name"


def test_dead_documents_do_not_hide_the_next_of_their_entity(outbox, mdb):
    s = Sc(outbox, mdb, source=", page: 10")
    s.put(*versions("e", 1100, status="failed", retry_count=5, last_error_at=ago(900)))
    (last,) = s.put(sc_document("e", 1101))
    outbox.run("run", "--once")
    assert s.doc(last)["status"] == "published" and len(s.lines()) == 1


def test_a_parked_document_that_others_made_dead(outbox, mdb):
    """Its own fields are right: it is not sent again, and what stands behind it goes on."""
    s = Sc(outbox, mdb, REFUSE, more="    retry: {first: 2s, max: 2s, jitter: 0%}")
    s.refuse("retry bad.topic")
    first, second = s.put(sc_document("a", 1, topic="bad.topic"), sc_document("a", 2))
    relay = s.start()
    s.wait(first, status="failed", retry_count=1)
    wait_until(lambda: mdb["outbox_parked"].find_one({"ref": first}), 10, "it is parked")
    s.refuse()
    s.coll.update_one({"_id": first}, {"$set": {"retry_count": 5}})
    s.wait(second, status="published")
    assert relay.stop() == 0
    d, (dead,) = s.doc(first), mdb["outbox_dead"].find()
    assert (d["status"], d["retry_count"], d["published_at"]) == ("failed", 5, None)
    assert dead["ref"] == first and dead["state"] == "dead" and "others" in dead["error"] and len(dead["history"]) == 1
    assert dead["id"] == d["event_id"] and mdb["outbox_parked"].count_documents({}) == 0 == mdb["outbox_held"].count_documents({})


@pytest.mark.threads
def test_an_outage_gives_claims_back_and_spends_nothing(outbox, mdb):
    s = Sc(outbox, mdb)
    s.put(*versions("a", 5))
    relay = s.started()
    s.all_published()
    over = s.outage()
    s.put(*versions("a", 20, first=6), *versions("b", 20))
    wait_until(lambda: "sink.down" in relay.err, 30)
    waits = {"status": "pending", "locked_by": None, "locked_until": None, "retry_count": 0, "last_error": None}
    wait_until(lambda: s.coll.count_documents(waits) == 40, 30, "all are back to the status they had", every=0.05)
    stays(lambda: s.coll.count_documents(waits) == 40)
    over()
    s.all_published()
    assert relay.stop() == 0
    assert in_order(s.lines()) == {d["event_id"] for d in s.coll.find()}
    assert mdb["outbox_lease"].find_one()["fenced"] == 0 and s.coll.count_documents({"retry_count": 0}) == 45


RETRIED = [("pending", 2), ("pending", 5), ("failed", 4), ("failed", 0)]  # a person makes pending by the status alone


def retried():
    """Documents of which attempts were spent, some or all."""
    return [sc_document(f"r{n}", 1, status=status, retry_count=count, last_error="away", last_error_at=ago(900))
            for n, (status, count) in enumerate(RETRIED)]


def as_they_were(s, ids):
    docs = [s.doc(i) for i in ids]
    return [(d["status"], d["retry_count"]) for d in docs] == RETRIED and all(d["locked_by"] is None for d in docs)


def test_an_outage_leaves_documents_as_they_were(outbox, mdb):
    s = Sc(outbox, mdb)
    (first,) = s.put(sc_document("a", 1))
    relay = s.started()
    s.wait(first, status="published")
    over = s.outage()
    ids = s.put(*retried())
    wait_until(lambda: "source.taken_back" in relay.err, 30)
    wait_until(lambda: as_they_were(s, ids), 30, "all are back to the status they had", every=0.05)
    stays(lambda: as_they_were(s, ids))
    over()
    for one in ids:
        s.wait(one, status="published")
    assert relay.stop() == 0
    assert mdb["outbox_dead"].count_documents({}) == 0
    assert [s.doc(i)["retry_count"] for i in ids] == [count for _, count in RETRIED]


def test_a_take_over_leaves_documents_as_they_were(outbox, mdb):
    """The worker that claimed them is killed; who comes after it is paused and only gives them back."""
    s = Sc(outbox, mdb, '{type: "null", latency_us: 25000000}', source=", mapping: {lease: 6s}")
    ids = s.put(*retried())
    relay = s.start()
    wait_until(lambda: s.coll.count_documents({"status": "processing"}) == 4, 30, "all are claimed")
    locks = [s.doc(i)["locked_until"] for i in ids]
    wait_until(lambda: all(s.doc(i)["locked_until"] > old for i, old in zip(ids, locks)), 30, "the locks are renewed", every=0.1)
    relay.kill()
    outbox.run("pause")
    relay = s.start()
    wait_until(lambda: "source.taken_back" in relay.err, 30)
    wait_until(lambda: as_they_were(s, ids), 30, "all are back to the status they had", every=0.05)
    stays(lambda: as_they_were(s, ids))
    assert relay.stop() == 0


def test_marks_of_others_win(outbox, mdb):
    """A document that others changed while it was published is left alone, and counted."""
    s = Sc(outbox, mdb, '{type: "null", latency_us: 6000000}')
    (slow,) = s.put(sc_document("a", 1))
    relay = s.started()
    wait_until(lambda: mdb["outbox_lease"].find_one()["in_flight"] == 1, 5, "it was handed out")
    s.coll.update_one({"_id": slow}, {"$set": {"status": "processing", "locked_by": "somebody else"}})
    wait_until(lambda: "source.fenced" in relay.err, 30)
    assert s.doc(slow)["status"] == "processing" and s.doc(slow)["locked_by"] == "somebody else"
    assert relay.stop() == 0
    assert mdb["outbox_lease"].find_one()["fenced"] == 1


def test_any_names_by_mapping(outbox, mdb):
    outbox.path("out").mkdir()
    outbox.write("outbox.yaml", f"""pipelines:
  own:
    source:
      type: mongodb
      uri: "{mdb.uri}"
      database: {mdb.name}
      mapping:
        table: my-events
        id: nr
        type: kind
        aggregate_id: meta.of
        payload: body
        entity_version: meta.v
        created: at
        status: state
        status_pending: [new]
        status_claimed: [busy]
        status_done: [sent]
        status_failed: [bad]
        locked_by: who
        locked_until: until
    sink: {{type: file, path: out/events.jsonl}}
""")
    coll = mdb["my-events"]
    of = ObjectId()
    ids = [coll.insert_one({"nr": n, "kind": "k", "meta": {"of": of, "v": v}, "body": "as it is", "at": now(),
                            "state": "new"}).inserted_id for n, v in ((7, 3), (8, 1), (9, 2))]
    outbox.run("run", "--once")
    lines = Sc.lines(type("P", (), {"outbox": outbox}))
    assert [m["id"] for m in lines] == ["8", "9", "7"] and lines[0]["key"] == str(of) and lines[0]["value_text"] == "as it is"
    assert [coll.find_one({"_id": i})["state"] for i in ids] == ["sent"] * 3
    assert mdb["my-events_lease"].find_one()["pipeline"] == "own"


def test_native_documents(outbox, mdb):
    outbox.path("out").mkdir()
    outbox.write("outbox.yaml", f'pipelines: {{p: {{source: {{type: mongodb, uri: "{mdb.uri}", database: {mdb.name}}}, '
                                "sink: {type: file, path: out/events.jsonl}}}\n")
    coll = mdb["outbox_events"]
    for n in range(30):
        coll.insert_one({"_id": f"id-{n}", "seq": Timestamp(0, 0), "type": "order.placed", "aggregate_type": "order",
                         "aggregate_id": f"o{n % 3}", "key": f"o{n % 3}", "payload": {"n": n}, "status": "pending",
                         "created_at": now()})
    outbox.run("run", "--once")
    lines = Sc.lines(type("P", (), {"outbox": outbox}))
    assert sorted(m["id"] for m in lines) == sorted(f"id-{n}" for n in range(30))
    for key in ("o0", "o1", "o2"):
        mine = [m["value"]["n"] for m in lines if m["key"] == key]
        assert mine == sorted(mine) and len(mine) == 10
    assert coll.count_documents({"status": "published", "published_at": {"$type": "date"}}) == 30


def test_native_documents_have_a_key(outbox, mdb):
    """What order is kept for is in one field, or the validator refuses it; what stands behind a locked one waits."""
    outbox.path("out").mkdir()
    outbox.write("outbox.yaml", f'pipelines: {{p: {{source: {{type: mongodb, uri: "{mdb.uri}", database: {mdb.name}}}, '
                                "sink: {type: file, path: out/events.jsonl}}}\n")
    outbox.run("schema", "--apply")
    coll = mdb["outbox_events"]
    for key in ({"key": None}, {"key": ""}, {}):
        doc = native_document("o1")
        del doc["key"]
        with pytest.raises(mdb.server.pymongo.errors.WriteError, match="validation"):
            coll.insert_one(dict(doc, **key))
    none = native_document("x")
    del none["key"], none["aggregate_id"]
    locked = native_document("o1", status="processing", locked_by="another", locked_until=ahead(600))
    behind, other = native_document("o1", 2), native_document("o1", 3, key="k")
    for doc in (none, dict(native_document("", 4), key=None), locked, behind, other):
        coll.insert_one(doc)
    outbox.run("run", "--once")
    assert {d["_id"] for d in coll.find({"status": {"$ne": "published"}})} == {locked["_id"], behind["_id"]}
