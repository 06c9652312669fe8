# SPDX-License-Identifier: Apache-2.0
"""mongo_world - a MongoDB replica set of three nodes for the scenario: mode `mongodb` has documents of the profile sc, `mongodb-native` native ones."""

import os
import pathlib
import subprocess
import sys
import threading
import time

from events import KEYS

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DATABASE = "scenario"


class MongoWorld:
    modes = ("mongodb", "mongodb-native")
    max_shards, slot_first, has_sessions, can_lose_slot = 1, False, False, False

    def __init__(self, mode, folder, args):
        try:
            import pymongo
        except ImportError:
            sys.exit("skipped: there is no python3-pymongo")
        self.pymongo, self.mode, self.dir, self.args = pymongo, mode, folder, args
        self.table = "native" if mode == "mongodb-native" else "sc"
        self.writer = HERE / "mongo_writer.py"
        self.env = self.service("start", "--nodes", 3, "--election", 3000, "--set", "shutdownTimeoutMillisForSignaledShutdown=2000",
                                "--while", os.getpid())
        self.returning = None

    def service(self, *args):
        r = subprocess.run([str(ROOT / "tests/services/mongodb"), *map(str, args)], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if r.returncode:
            sys.exit(f"{r.stdout}{r.stderr}")
        return dict(x.split("=", 1) for x in r.stdout.splitlines() if "=" in x)

    @property
    def dsn(self):
        return self.env["MONGODB_URI"].strip("'\"")

    def client(self, port=None):
        if port:
            return self.pymongo.MongoClient("127.0.0.1", port, directConnection=True, serverSelectionTimeoutMS=1000, socketTimeoutMS=3000)
        return self.pymongo.MongoClient(self.dsn, serverSelectionTimeoutMS=3000, socketTimeoutMS=10000)

    @staticmethod
    def event_id(tag):
        return tag

    def variants(self):
        return [""]

    def source(self, _):
        return f'{{type: mongodb, uri: "{self.dsn}", database: {DATABASE}}}'

    def more(self):
        return "" if self.table == "native" else "    profile: sc\n"

    def prepare(self):
        with self.client() as c:
            c[DATABASE]["counter"].insert_many([{"_id": f"k{i:02}", "n": 0} for i in range(KEYS)])

    def apply(self):
        """Further arguments of `outbox schema --apply`."""
        return [] if self.table == "native" else ["--profile", "sc"]

    def owner(self):
        """pid of the worker, or None."""
        name = "outbox_events" if self.table == "native" else "outbox"
        try:
            with self.client() as c:
                lease = c[DATABASE][f"{name}_lease"].find_one({"_id": "lease", "state": {"$ne": "stopped"}})
            return int(lease["owner"].split(":")[1]) if lease and lease.get("owner") else None
        except (self.pymongo.errors.PyMongoError, ValueError, IndexError):
            return None

    def primary(self):
        """Its number (from 1), waited for."""
        end = time.monotonic() + 90
        while time.monotonic() < end:
            for i, port in enumerate(self.env["MONGODB_PORTS"].strip("'\"").split(",")):
                try:
                    with self.client(int(port)) as c:
                        if c.admin.command("hello").get("isWritablePrimary"):
                            return i + 1
                except self.pymongo.errors.PyMongoError:
                    pass
            time.sleep(0.1)
        sys.exit("the set has no primary after 90 s")

    # ---- faults ----

    def server_faults(self):
        return ["step-down", "primary kill -9", "primary SIGTERM", "secondary kill -9"]

    def may_freeze(self):
        return True

    def dead(self):
        """id → state of every event that was ever dead."""
        name = "outbox_events" if self.table == "native" else "outbox"
        with self.client() as c:
            return {str(d["id"]): d["state"] for d in c[DATABASE][f"{name}_dead"].find({}, {"id": 1, "state": 1})}

    def back(self):
        """Waits for the node that is down, if any: two of them would leave no majority."""
        if self.returning:
            self.returning.join()
        self.returning = None

    def start(self, node):
        self.service("start", "--dir", self.env["MONGODB_DIR"].strip("'\""), "--node", node)

    def restart(self, how):
        """Returns when there is a primary again; the stopped node is started in the background."""
        self.back()
        node = self.primary()
        if how == "step-down":
            port = int(self.env["MONGODB_PORTS"].strip("'\"").split(",")[node - 1])
            try:
                with self.client(port) as c:
                    c.admin.command("replSetStepDown", 8, secondaryCatchUpPeriodSecs=5)
            except self.pymongo.errors.PyMongoError:
                pass  # it closes its connections
            self.primary()
            return
        if how.startswith("secondary"):
            node = node % 3 + 1
        self.service("stop", self.env["MONGODB_DIR"].strip("'\""), "--node", node, "--keep", *(["--kill"] if "kill" in how else []))
        if how.startswith("primary"):
            self.primary()
        self.returning = threading.Thread(target=self.start, args=(node,))
        self.returning.start()

    def close(self):
        self.back()
        self.service("stop", self.env["MONGODB_DIR"].strip("'\""), "--kill")
