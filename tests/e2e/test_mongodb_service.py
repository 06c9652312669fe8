# SPDX-License-Identifier: Apache-2.0
"""The MongoDB servers of the tests are what the tests believe them to be."""

import pytest

import mongo as m
from helpers import wait_until

full = pytest.mark.skipif(m.SLOW > 1, reason="skipped: the servers are the same in every variant")


@full
def test_transactions_and_change_streams_work_on_one_node(mdb):
    c = mdb.client
    with mdb["a"].watch(max_await_time_ms=50) as stream:
        with c.start_session() as s, s.start_transaction():
            mdb["a"].insert_one({"_id": 1}, session=s)
            assert mdb["a"].count_documents({}) == 0
        assert wait_until(stream.try_next, 10, "the change")["documentKey"] == {"_id": 1}


@full
def test_a_failure_on_command(mdb, mongo):
    with m.failing(mongo, ["insert"], times=1, errorCode=112, errorLabels=["TransientTransactionError"]):
        with pytest.raises(mongo.pymongo.errors.OperationFailure) as e:
            mdb["a"].insert_one({"_id": 1})
        assert e.value.has_error_label("TransientTransactionError")
    mdb["a"].insert_one({"_id": 1})


@full
@pytest.mark.parametrize("options", [("--tls",), ("--mtls", "--auth")], ids=lambda o: "".join(o))
def test_tls_and_users(own_mongo, options):
    s = own_mongo(*options)
    errors = s.pymongo.errors
    with s.pymongo.MongoClient("127.0.0.1", s.ports[0], directConnection=True, serverSelectionTimeoutMS=500) as c:
        with pytest.raises(errors.ServerSelectionTimeoutError):
            c.admin.command("ping")
    with s.client() as c:
        c["x"]["a"].insert_one({"_id": 1})
    if not s.auth:
        return
    with s.pymongo.MongoClient(s.uri()) as c, pytest.raises(errors.OperationFailure):
        c["x"]["a"].find_one({})
    with s.client("poor") as c:
        assert c["x"]["a"].find_one({}) == {"_id": 1}
        with pytest.raises(errors.OperationFailure):
            c["x"]["a"].insert_one({})
    with s.pymongo.MongoClient(s.uri(authMechanism="MONGODB-X509", authSource="$external")) as c:
        c["x"]["a"].insert_one({"_id": 2})


@full
def test_three_nodes_vote(own_mongo):
    s = own_mongo("--auth", nodes=3)
    first = s.primary()
    assert m.step_down(s) != first
    with s.client() as c:
        kept = c["x"].get_collection("a", write_concern=s.pymongo.WriteConcern(3))
        kept.insert_one({"_id": "kept"})
    for node in (1, 2, 3):
        with s.client(node=node, readPreference="secondaryPreferred") as c:
            assert [d["_id"] for d in c["x"]["a"].find({})] == ["kept"]
