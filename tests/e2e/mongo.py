# SPDX-License-Identifier: Apache-2.0
"""mongo - what the MongoDB tests share: documents of the profile `sc`, failures on command, step-downs and a write that is
rolled back. Everything is done by pymongo or by signals, never by the program under test."""

import contextlib
import datetime
import signal
import struct
import uuid

import bson
from bson import Timestamp

from helpers import SLOW, wait_until
from proxies import Proxy, Way


def now():
    return datetime.datetime.now(datetime.timezone.utc)


def sc_document(entity, version=1, **more):
    """An outbox document as the sc services write it; `more` replaces fields."""
    event_id = str(uuid.uuid4())
    doc = {
        "event_id": event_id, "event_type": "user.created", "entity_type": "user", "entity_id": entity, "entity_version": version,
        "topic": "sc.domain.user", "partition_key": entity,
        "payload": {"event_id": event_id, "event_type": "user.created", "entity_version": version, "data": {"n": version}},
        "status": "pending", "retry_count": 0, "max_retries": 5, "last_error": None, "last_error_at": None, "created_at": now(),
        "processing_started_at": None, "published_at": None, "locked_by": None, "locked_until": None,
    }
    doc.update(more)
    return doc


def native_document(entity, n=1, **more):
    """An event as the documentation tells writers to insert it."""
    doc = {"_id": str(uuid.uuid4()), "seq": Timestamp(0, 0), "type": "user.created", "aggregate_type": "user", "aggregate_id": entity,
           "key": entity, "payload": {"n": n}, "status": "pending", "created_at": now()}
    doc.update(more)
    return doc


def profiled(mdb):
    """The server notes every command on the database from now on, and forgets none."""
    mdb.db.create_collection("system.profile", capped=True, size=64 << 20)
    mdb.db.command("profile", 2)


def room_for_large(mdb):
    """A server that was just started refuses a first document of 16 MB (its cache is small, and empty) unless a smaller one
    was there before."""
    mdb["small"].insert_one({"p": "x" * (8 << 20)})


@contextlib.contextmanager
def failing(server, commands, times="alwaysOn", node=0, **data):
    """The server's own fail point: these commands fail as `data` says (errorCode=…, errorLabels=[…], closeConnection=True,
    writeConcernError={…}, blockConnection=True and blockTimeMS=…); `times`: a number, or until the block ends."""
    mode = times if isinstance(times, str) else {"times": times}
    data = {"failCommands": list(commands), **data}
    server.command("configureFailPoint", "failCommand", node=node, mode=mode, data=data)
    try:
        yield
    finally:
        server.command("configureFailPoint", "failCommand", node=node, mode="off")


def step_down(server, seconds=10, catch_up=5):
    """The primary of a set steps down; gives the number of the next one. A set of one comes back by itself."""
    node = server.primary()
    force = len(server.ports) == 1
    seconds = 1 if force else seconds
    errors = server.pymongo.errors

    def stepped():
        try:
            server.command("replSetStepDown", seconds, node=node, secondaryCatchUpPeriodSecs=0 if force else catch_up, force=force)
        except errors.AutoReconnect:
            pass  # it closes its connections
        except errors.OperationFailure as e:
            if e.code != 262:  # no other can be elected yet: those that stepped down wait for `seconds`
                raise
            return False
        return True

    wait_until(stepped, 60, "a primary that steps down", every=0.1)
    return server.primary()


def last_op(server, node):
    """What a node has applied."""
    return server.command("replSetGetStatus", node=node)["optimes"]["appliedOpTime"]


def caught_up(server, within=60):
    """Waits until every node has applied what the primary has."""

    def same():
        times = [last_op(server, n + 1)["ts"] for n in range(len(server.ports))]
        return max(times) == min(times)

    wait_until(same, within, "every node has the same", every=0.1)


def rollbacks(server, node):
    """How often that node has undone writes of its own since it was made."""
    return server.command("replSetGetRBID", node=node)["rbid"]


class Isolated:
    """A primary of three that the others do not follow: what is written to it with w:1 will be undone.

        with Isolated(server) as cut:
            cut.client["db"]["c"].insert_one({…})    # acknowledged, and lost when the block ends

    The other two stay up and vote but fetch nothing (a fail point), so that this node remains primary and takes writes. At
    the end of the block it is frozen (SIGSTOP); the others choose one of themselves, who writes; when the first wakes it
    finds a newer history than its own and undoes what nobody else has. Needs the user admin where there are users."""

    def __init__(self, server, pause="stopReplProducer"):
        assert len(server.ports) == 3, "a majority must be able to go on without one"
        self.server, self.pause, self.client = server, pause, None
        self.node = self.next = 0

    def __enter__(self):
        s = self.server
        self.node = s.primary()
        self.others = [n for n in (1, 2, 3) if n != self.node]
        caught_up(s)
        self.before = rollbacks(s, self.node)
        for n in self.others:  # they stay up and vote, and get nothing
            s.command("configureFailPoint", self.pause, node=n, mode="alwaysOn")
        self.client = s.client(node=self.node, w=1)
        return self

    def __exit__(self, *error):
        s = self.server
        self.client.close()
        s.signal(signal.SIGSTOP, self.node)
        try:
            for n in self.others:
                s.command("configureFailPoint", self.pause, node=n, mode="off")
            self.next = wait_until(self.chosen, 90, "the others choose a primary", every=0.1)
            with s.client(node=self.next) as c:  # a newer history than what will be undone
                c["outbox_tests"]["history"].insert_one({"after": self.node})
        finally:
            s.signal(signal.SIGCONT, self.node)
        if error[0] is None:
            wait_until(lambda: rollbacks(s, self.node) > self.before, 90, "what it wrote alone is undone", every=0.1)
            caught_up(s)

    def chosen(self):
        for n in self.others:
            try:
                if self.server.says(n).get("isWritablePrimary"):
                    return n
            except self.server.pymongo.errors.PyMongoError:
                pass
        return 0


def within(seconds):
    """A limit in ms for the server or the client on this machine."""
    return int(seconds * 1000 * SLOW)


class TransactionWay(Way):
    """One connection of a MongoDB client, message by message (OP_MSG): the proxy sees every answer to a statement of a
    transaction before the client does."""

    def __init__(self, proxy):
        self.proxy, self.out, self.back, self.open = proxy, b"", b"", {}

    @staticmethod
    def messages(data):
        found = []
        while len(data) >= 4 and len(data) >= (n := struct.unpack("<i", data[:4])[0]):
            found.append(data[:n])
            data = data[n:]
        return found, data

    def sent(self, data):
        self.out += data
        found, self.out = self.messages(self.out)
        for m in found:
            _, request, _, op = struct.unpack("<iiii", m[:16])
            if op != 2013 or m[20] != 0:
                continue
            command = bson.decode(m[21:21 + struct.unpack("<i", m[21:25])[0]])
            if command.get("autocommit") is False:
                name = next(iter(command))
                self.open[request] = name if name.endswith("Transaction") else f"{name} {command[name]}"
        return data

    def answered(self, data):
        self.back += data
        found, self.back = self.messages(self.back)
        for m in found:
            name = self.open.pop(struct.unpack("<iiii", m[:16])[2], None)
            if name:
                self.proxy.statement(name)
        return b"".join(found)


class Transactions(Proxy):
    """Calls at(name) when the server has executed statement `last` of transaction `which` (both from 1), and before the client
    knows of it. `seen` has the names of the statements, one list per transaction. A client uses `uri`."""

    def __init__(self, mdb, which=0, last=0, at=None, user=None):
        self.which, self.last, self.at, self.seen = which, last, at, [[]]
        super().__init__(mdb.server.ports[mdb.server.primary() - 1])
        self.uri = f"mongodb://{user + ':secret@' if user else ''}127.0.0.1:{self.address}/?directConnection=true"

    def way(self, client, server):
        return TransactionWay(self)

    def statement(self, name):
        with self.lock:
            self.seen[-1].append(name)
            here = len(self.seen) == self.which and len(self.seen[-1]) == self.last
            if name.endswith("Transaction"):
                self.seen.append([])
        if here:
            self.at(name)
