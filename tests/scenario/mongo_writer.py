# SPDX-License-Identifier: Apache-2.0
"""mongo_writer - one writer process of the scenario on MongoDB: mongo_writer.py URI SEED LEDGER TABLE

Runs until SIGTERM, through step-downs and killed primaries. A transaction raises the counters of one to three keys, which keeps other
writers from them until it ends, and inserts an event for each change; some are rolled back. A failed transaction is not retried.

The ledger gets a line per event once its outcome is known, from the answer to the commit alone, with the time of that answer:
    + key n tag time    committed
    ? key n tag time    no answer: committed or not
    - key n tag time    rolled back, or the commit was never sent
"""

import datetime
import random
import signal
import sys
import time

import pymongo
from bson import Timestamp
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from events import KEYS, event_type

DATABASE = "scenario"


def document(table, key, n, tag):
    now = datetime.datetime.now(datetime.timezone.utc)
    payload = {"key": key, "tag": tag}
    if table == "native":
        return {"_id": tag, "seq": Timestamp(0, 0), "type": event_type(tag), "aggregate_type": "counter", "aggregate_id": key, "key": key,
                "payload": payload, "status": "pending", "created_at": now}
    return {"event_id": tag, "event_type": event_type(tag), "entity_type": "counter", "entity_id": key, "entity_version": n,
            "topic": "events", "partition_key": key, "payload": payload, "status": "pending", "retry_count": 0, "max_retries": 5,
            "last_error": None, "last_error_at": None, "created_at": now, "processing_started_at": None, "published_at": None,
            "locked_by": None, "locked_until": None}


class Writer:
    def __init__(self, uri, seed, ledger, table):
        self.uri, self.seed, self.ledger, self.table = uri, seed, ledger, table
        self.rng = random.Random(seed)
        self.go, self.number = True, 0

    def note(self, sign, events):
        now = time.monotonic()
        for key, n, tag in events:
            self.ledger.write(f"{sign} {key} {n} {tag} {now:.3f}\n")

    def work(self, client, session, events):
        """The changes of one transaction; events is filled before each is sent."""
        db = client[DATABASE]
        coll = db["outbox_events" if self.table == "native" else "outbox"]
        keys = self.rng.sample(range(KEYS), self.rng.choice((1, 1, 2, 3)))
        for i, k in enumerate(keys):
            key, tag = f"k{k:02}", f"{self.seed}-{self.number}-{i}"
            n = db["counter"].find_one_and_update({"_id": key}, {"$inc": {"n": 1}}, return_document=True, session=session)["n"]
            events.append((key, n, tag))
            coll.insert_one(document(self.table, key, n, tag), session=session)

    def once(self, client):
        self.number += 1
        events = []
        with client.start_session() as session:
            session.start_transaction(read_concern=ReadConcern("snapshot"), write_concern=WriteConcern("majority", wtimeout=10000))
            try:
                self.work(client, session, events)
            except pymongo.errors.PyMongoError:  # before the commit was sent: nothing of it can be there
                self.note("-", events)
                session.abort_transaction()
                raise
            if self.rng.random() < 0.15:
                session.abort_transaction()
                self.note("-", events)
                return
            try:
                session.commit_transaction()
            except pymongo.errors.PyMongoError as e:
                gone = e.has_error_label("TransientTransactionError") and not e.has_error_label("UnknownTransactionCommitResult")
                self.note("-" if gone else "?", events)
                raise
        self.note("+", events)

    def run(self):
        while self.go:
            try:
                with pymongo.MongoClient(self.uri, serverSelectionTimeoutMS=2000, socketTimeoutMS=15000) as client:
                    while self.go:
                        try:
                            self.once(client)
                        except pymongo.errors.OperationFailure:
                            pass  # another writer has the key, or the primary is another one
                        time.sleep(self.rng.random() * 0.01)
            except pymongo.errors.PyMongoError:
                time.sleep(0.05)


def main():
    uri, seed, path, table = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
    with open(path, "w", buffering=1) as ledger:
        w = Writer(uri, seed, ledger, table)

        def stop(*_):
            w.go = False

        signal.signal(signal.SIGTERM, stop)
        w.run()


if __name__ == "__main__":
    main()
