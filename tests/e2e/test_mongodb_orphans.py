# SPDX-License-Identifier: Apache-2.0
"""test_mongodb_orphans - transactions whose client is gone: the server keeps them open for a minute, with every document that they
changed locked. Nothing else may wait for that."""

import os
import signal
import time

import pytest

from helpers import SLOW, wait_until
from mongo import Transactions, sc_document
from profiles import REFUSE
from sc import Sc
from test_mongodb_check import problems, run_statement

RETRY = "    retry: {first: 50ms, max: 100ms}"


class Pair:
    """A worker behind a proxy, and a relay on standby, on a database of their own."""

    def __init__(self, outbox, mongo, n, fault=signal.SIGKILL, uri=None, **kw):
        self.mdb, self.died, self.with_signal = mongo.database(), 0.0, fault
        self.proxy = Transactions(self.mdb, at=self.fault, **kw)
        self.s = Sc(outbox, self.mdb, REFUSE, more=RETRY)
        for name, where in (("a", self.proxy.uri), ("b", uri or self.mdb.uri)):
            self.s.config(REFUSE, RETRY, name=f"{name}{n}.yaml", uri=where)
        self.a = outbox.start("run", "-c", f"a{n}.yaml")
        self.start_b = lambda: outbox.start("run", "-c", f"b{n}.yaml")

    def fault(self, _name):
        self.a.signal(self.with_signal)
        self.died = time.monotonic()

    def begin(self):
        wait_until(lambda: "relay.start" in self.a.err, 30, "the worker")
        self.b = self.start_b()
        wait_until(lambda: "relay.standby" in self.b.err, 30, "the standby")
        (self.bad,) = self.s.put(sc_document("e", 1, topic="bad.topic", max_retries=2))

    def is_dead_once(self):
        """The document that fails is dead after two attempts, each recorded once, and holds up nothing."""
        self.s.wait(self.bad, status="failed", retry_count=2)
        wait_until(lambda: self.mdb["outbox_dead"].count_documents({}) == 1, 30, "it is dead")
        dead = self.mdb["outbox_dead"].find_one()
        assert dead["attempts"] == 2 and [h["attempt"] for h in dead["history"]] == [1, 2]
        assert self.mdb["outbox_parked"].count_documents({}) == self.mdb["outbox_held"].count_documents({}) == 0

    def close(self):
        assert self.b.stop() == 0
        self.proxy.close()
        self.mdb.close()


def statements(outbox, mongo):
    """What the two transactions consist of that settle a document which fails twice."""
    p = Pair(outbox, mongo, 0)
    p.begin()
    wait_until(lambda: len(p.proxy.seen) > 2, 30, "both transactions")
    assert p.a.stop() == 0
    p.close()
    return p.proxy.seen[:2]


@pytest.mark.slow
@pytest.mark.parametrize("which, fault, each", [(1, signal.SIGKILL, 1), (2, signal.SIGKILL, 1), (2, signal.SIGSTOP, 3)])
def test_a_worker_that_ends_at_any_statement_of_a_settle(outbox, mongo, which, fault, each):
    """The take-over takes as long as after any other kill; nothing is lost, and each attempt is recorded once. A worker that
    was only stopped records nothing more when it goes on."""
    outbox.path("out").mkdir(exist_ok=True)
    outbox.write("refuse.txt", "retry bad.topic\n")
    names = statements(outbox, mongo)[which - 1]
    assert len(names) > 5 and names[-1] == "commitTransaction"
    at = range(1, len(names) + 1, each)
    pairs = [Pair(outbox, mongo, n, fault, which=which, last=n) for n in at]
    for p in pairs:
        p.begin()
    for p in pairs:
        wait_until(lambda x=p: x.died, 30, "the statement is executed")
        (p.good,) = p.s.put(sc_document("f", 1))
    took = {}
    while len(took) < len(pairs):
        for n, p in zip(at, pairs):
            if n not in took and p.s.doc(p.good)["status"] == "published":
                took[n] = time.monotonic() - p.died
            assert n in took or time.monotonic() - p.died < 40 * SLOW, f"{n} {names[n - 1]}: no take-over"
        time.sleep(0.02)
    slow = {f"{n} {names[n - 1]}": round(t, 1) for n, t in took.items() if t > 8 * SLOW}
    assert not slow, "the lease is 5 s"
    for p in pairs:
        p.is_dead_once()
        if fault == signal.SIGSTOP:
            p.a.signal(signal.SIGCONT)
            wait_until(lambda x=p: "relay.standby" in x.a.err, 30, "it has lost the lease")
            p.is_dead_once()
            assert p.a.stop() == 0
        p.close()


def test_a_command_killed_inside_its_transaction(outbox, mongo):
    """`dead retry` has locked the lease document and is gone: the relay keeps its lease and goes on, and the command can be
    repeated."""
    outbox.path("out").mkdir(exist_ok=True)
    outbox.write("refuse.txt", "reject bad.topic\n")
    mdb = mongo.database()
    s = Sc(outbox, mdb, REFUSE, more=RETRY)
    relay = s.started()
    (bad,) = s.put(sc_document("e", 1, topic="bad.topic"))
    s.wait(bad, status="failed")
    before = mdb["outbox_lease"].find_one()
    command = []
    proxy = Transactions(mdb, which=1, last=4, at=lambda _name: command[0].signal(signal.SIGKILL))
    s.config(REFUSE, RETRY, name="behind.yaml", uri=proxy.uri)
    command.append(outbox.start("dead", "retry", "--all", "--yes", "-c", "behind.yaml"))
    wait_until(lambda: len(proxy.seen[0]) >= 4, 30, "the transaction")
    began = time.monotonic()
    outbox.write("refuse.txt", "retry bad.topic\n")
    (other,) = s.put(sc_document("f", 1, topic="bad.topic", max_retries=1))
    s.wait(other, status="failed")  # a transaction of the relay
    assert time.monotonic() - began < 8 * SLOW
    assert mdb["outbox_dead"].count_documents({"state": "dead"}) == 2, "the command has changed nothing"
    outbox.write("refuse.txt", "")
    assert outbox.run("dead", "retry", "--all", "--yes").returncode == 0
    s.wait(bad, status="published")
    s.wait(other, status="published")
    after = mdb["outbox_lease"].find_one()
    assert (after["owner"], after["epoch"]) == (before["owner"], before["epoch"]), "the relay has kept its lease"
    assert relay.stop() == 0
    proxy.close()
    mdb.close()


@pytest.mark.slow
@pytest.mark.parametrize("other", [False, True])
def test_ending_a_session_needs_no_privilege_of_the_same_user(outbox, own_mongo, other):
    """A relay of another user needs one: check names it, with the grant."""
    server = own_mongo("--auth")
    outbox.path("out").mkdir(exist_ok=True)
    outbox.write("refuse.txt", "retry bad.topic\n")
    with server.client("admin") as c:
        for name in ("one", "two"):
            c.admin.command("createUser", name, pwd="secret", roles=[{"role": "readWrite", "db": f"t{os.getpid()}_1"}])
    p = Pair(outbox, server, 0, which=1, last=3, user="one", uri=server.uri("two" if other else "one"))
    outbox.path("b0.yaml").rename(outbox.path("outbox.yaml"))
    p.start_b = lambda: outbox.start("run")
    wait_until(lambda: "relay.start" in p.a.err, 30, "the worker")
    found = problems(outbox)
    assert len(found) == other, found
    for what, fix in found.items():
        assert "user one@admin, and user two@admin may not end its sessions" in what
        run_statement(server, p.mdb.name, fix)
    assert problems(outbox) == {}
    p.begin()
    wait_until(lambda: p.died, 30, "the statement is executed")
    (good,) = p.s.put(sc_document("f", 1))
    p.s.wait(good, status="published", deadline=100)
    assert time.monotonic() - p.died < 8 * SLOW, "the lease is 5 s"
    p.is_dead_once()
    p.close()
