#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""mongodb - the relay on a real MongoDB beside the same statements by libmongoc alone, in one run.

    bench/mongodb.py [--events 50000] [--rounds 3] [--wakes 200] [--pending 1000000] [--only drain,wake,rss]

It starts a replica set of one node of its own (tests/services/mongodb) and touches nothing else. Raw and ours run in turn, figures
are medians; the last lines are `bench name=… ours=… limit=… ratio=…`. Compiled by `make bench-mongodb`, which calls it.
"""

import argparse
import datetime
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import pymongo

ROOT = pathlib.Path(__file__).resolve().parents[1]
INDEXES = (("status", "created_at"), ("status", "published_at"), ("locked_until",), ("event_id",), ("entity_id", "entity_version"))


def say(text):
    print(f"bench: {text}", file=sys.stderr, flush=True)


def document(n, entities):
    return {
        "event_id": f"event-{n}", "event_type": "user.changed", "entity_type": "user", "entity_id": f"e{n % entities}",
        "entity_version": n // entities + 1, "topic": "sc.domain.user", "partition_key": f"e{n % entities}",
        "payload": {"n": n, "pad": "x" * 260}, "status": "pending", "retry_count": 0, "max_retries": 5, "last_error": None,
        "last_error_at": None, "created_at": datetime.datetime.utcnow(), "processing_started_at": None, "published_at": None,
        "locked_by": None, "locked_until": None,
    }


def resident(pid, field):
    """In MB. VmRSS: now; VmHWM: the most there ever was."""
    with open(f"/proc/{pid}/status", encoding="utf-8") as f:
        return next(int(line.split()[1]) for line in f if line.startswith(field)) / 1024


class Server:
    def __init__(self):
        r = subprocess.run([ROOT / "tests/services/mongodb", "start", "--while", str(os.getpid())], capture_output=True, text=True,
                           check=False)
        if r.returncode:
            sys.exit(f"{r.stdout}{r.stderr}")
        env = dict(x.split("=", 1) for x in r.stdout.splitlines() if "=" in x)
        self.dir, self.uri, self.n = env["MONGODB_DIR"], env["MONGODB_URI"], 0
        self.client = pymongo.MongoClient(self.uri)

    def database(self, events, entities):
        """A new one with so many that wait."""
        self.n += 1
        name = f"bench{self.n}"
        coll = self.client[name]["outbox"]
        for keys in INDEXES:
            coll.create_index([(k, 1) for k in keys])
        for at in range(0, events, 5000):
            coll.insert_many([document(n, entities) for n in range(at, min(events, at + 5000))], ordered=False)
        return name

    def filled(self, events, entities):
        """The same, made by the server itself: a million take seconds. Of an entity the versions rise with creation."""
        self.n += 1
        name = f"bench{self.n}"
        db, each = self.client[name], 1000
        if events:
            db["seed"].insert_many([{"_id": i} for i in range(-(-events // each))])
            fields = document(0, 1)
            fields.update(event_id={"$concat": ["event-", {"$toString": "$n"}]}, entity_version={"$add": [1, {"$floor": {"$divide": ["$n", entities]}}]},
                          created_at={"$add": [fields["created_at"], "$n"]}, payload={"n": "$n", "pad": "x" * 260})
            for field in ("entity_id", "partition_key"):
                fields[field] = {"$concat": ["e", {"$toString": {"$mod": ["$n", entities]}}]}
            for field in ("max_retries", "retry_count"):
                fields[field] = {"$literal": fields[field]}
            db["seed"].aggregate([
                {"$project": {"_id": 0, "n": {"$range": [{"$multiply": ["$_id", each]}, {"$multiply": [{"$add": ["$_id", 1]}, each]}]}}},
                {"$unwind": "$n"}, {"$match": {"n": {"$lt": events}}}, {"$project": fields}, {"$out": "outbox"}])
            db["seed"].drop()
        db["outbox"].create_indexes([pymongo.IndexModel([(k, 1) for k in keys]) for keys in INDEXES])
        return name

    def drop(self, name):
        self.client.drop_database(name)

    def close(self):
        self.client.close()
        subprocess.run([ROOT / "tests/services/mongodb", "stop", self.dir, "--kill"], check=False, capture_output=True)


class Bench:
    def __init__(self, args):
        self.args, self.server, self.lines = args, Server(), []
        self.bare = str(pathlib.Path(args.build) / "bench/mongo-bench")
        self.outbox = str(pathlib.Path(args.build) / "outbox")
        self.folder = tempfile.TemporaryDirectory()

    def config(self, name, sink, poll="10s"):
        path = pathlib.Path(self.folder.name) / "outbox.yaml"
        path.write_text(f"""log: {{level: warn}}
pipelines:
  bench:
    profile: sc
    source: {{uri: "{self.server.uri}", database: {name}, poll_max: {poll}}}
    sink: {sink}
""", encoding="utf-8")
        return str(path)

    def run(self, *argv, **kw):
        return subprocess.Popen([self.outbox, *argv], env={**os.environ, "OUTBOX_PROFILES": str(ROOT / "profiles")}, **kw)

    def result(self, name, ours, limit, digits=0, inverse=False):
        ratio = limit / ours if inverse else ours / limit
        self.lines.append(f"bench name={name} ours={ours:.{digits}f} limit={limit:.{digits}f} ratio={ratio:.2f}")

    # ---- drain ----

    def drain_bare(self):
        name = self.server.database(self.args.events, self.args.entities)
        out = subprocess.run([self.bare, "drain", self.server.uri, name], check=True, capture_output=True, text=True).stdout.split()
        self.server.drop(name)
        return int(out[0]) / float(out[1])

    def drain_ours(self):
        """From the first claim to the last mark, by the documents' own times."""
        name = self.server.database(self.args.events, self.args.entities)
        p = self.run("run", "--once", "-c", self.config(name, '{type: "null"}'))
        if p.wait() != 0:
            sys.exit("bench: the relay failed")
        (t,) = self.server.client[name]["outbox"].aggregate([{"$match": {"status": "published"}}, {"$group": {
            "_id": None, "n": {"$sum": 1}, "a": {"$min": "$processing_started_at"}, "b": {"$max": "$published_at"}}}])
        assert t["n"] == self.args.events, t
        self.server.drop(name)
        return t["n"] / (t["b"] - t["a"]).total_seconds()

    def drain(self):
        raw, ours = [], []
        for i in range(self.args.rounds):
            raw.append(self.drain_bare())
            ours.append(self.drain_ours())
            say(f"claim and mark, round {i + 1}: bare {raw[-1]:.0f}/s, ours {ours[-1]:.0f}/s")
        self.result("mongodb-claim-mark", statistics.median(ours), statistics.median(raw))

    # ---- wake ----

    def wakes(self, process, coll, pick):
        """Milliseconds from before an insert until the line with its id is read."""
        seen, arrived = {}, threading.Event()

        def read():
            for line in process.stdout:
                seen[pick(line)] = time.monotonic()
                arrived.set()

        threading.Thread(target=read, daemon=True).start()
        took = []
        for n in range(self.args.wakes):
            time.sleep(0.05)
            doc = document(n, 10 ** 9)
            arrived.clear()
            began = time.monotonic()
            coll.insert_one(doc)
            while doc["event_id"] not in seen:
                arrived.wait(10)
                arrived.clear()
            took.append((seen[doc["event_id"]] - began) * 1000)
        return took

    def wake(self):
        raw, ours = [], []
        for _ in range(self.args.rounds):
            name = self.server.database(0, 1)
            p = subprocess.Popen([self.bare, "watch", self.server.uri, name], stdout=subprocess.PIPE, text=True)
            assert p.stdout.readline() == "ready\n"
            raw += self.wakes(p, self.server.client[name]["outbox"], str.strip)
            p.kill()
            p.wait()
            self.server.drop(name)
            name = self.server.database(0, 1)
            p = self.run("run", "-c", self.config(name, "{type: stdout}"), stdout=subprocess.PIPE, text=True)
            time.sleep(2)
            ours += self.wakes(p, self.server.client[name]["outbox"], lambda line: line.split('"id":"', 1)[1].split('"', 1)[0])
            p.send_signal(signal.SIGTERM)
            p.wait()
            self.server.drop(name)
        a, b = statistics.median(raw), statistics.median(ours)
        say(f"insert to seen: bare stream p50 {a:.1f} ms, ours (claimed and written) p50 {b:.1f} ms: {b - a:+.1f} ms")
        self.result("mongodb-wake-ms", b, a + 5, digits=1, inverse=True)

    # ---- memory ----

    def bare_rss(self):
        """What libmongoc needs by itself: a client with an open change stream."""
        name = self.server.database(0, 1)
        p = subprocess.Popen([self.bare, "watch", self.server.uri, name], stdout=subprocess.PIPE, text=True)
        assert p.stdout.readline() == "ready\n"
        mb = resident(p.pid, "VmHWM")
        p.kill()
        p.wait()
        self.server.drop(name)
        return mb

    def rss_of(self, pending, entities):
        """The relay's peak, with so many pending in so many entities, over its first 20,000."""
        name = self.server.filled(pending, entities)
        coll = self.server.client[name]["outbox"]
        p = self.run("run", "-c", self.config(name, '{type: "null"}'))
        enough, began, at_work = min(pending, 20000), time.monotonic(), 0
        while time.monotonic() - began < 3 or coll.count_documents({"status": "published"}, limit=max(1, enough)) < enough:
            time.sleep(0.05)
            at_work = max(at_work, resident(p.pid, "VmRSS")) if time.monotonic() - began > 1 else 0
        mb, took = resident(p.pid, "VmHWM"), time.monotonic() - began
        p.send_signal(signal.SIGTERM)
        p.wait()
        self.server.drop(name)
        say(f"{pending} pending in {entities} entities: peak {mb:.1f} MB, at work {at_work:.1f} MB, {enough} published within {took:.1f} s")
        return mb

    def rss(self):
        pending = self.args.pending
        say(f"a bare client with a change stream: {self.bare_rss():.1f} MB")
        self.rss_of(0, 1)
        for name, entities in (("", max(1, pending // 20)), ("-few-entities", max(1, pending // 2000))):
            self.result(f"mongodb-rss{name}-mb", self.rss_of(pending, entities), 32, digits=1, inverse=True)


def main():
    a = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    a.add_argument("--build", default="build")
    a.add_argument("--events", type=int, default=50000)
    a.add_argument("--entities", type=int, default=5000)
    a.add_argument("--rounds", type=int, default=3)
    a.add_argument("--wakes", type=int, default=100)
    a.add_argument("--pending", type=int, default=1000000)
    a.add_argument("--only", default="drain,wake,rss")
    b = Bench(a.parse_args())
    try:
        for what in b.args.only.split(","):
            getattr(b, what)()
    finally:
        b.server.close()
    print("\n".join(b.lines))


if __name__ == "__main__":
    main()
