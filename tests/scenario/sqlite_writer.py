# SPDX-License-Identifier: Apache-2.0
"""sqlite_writer - one writer process of the scenario on SQLite: sqlite_writer.py FILE SEED LEDGER TABLE

Runs until SIGTERM. A transaction raises the counters of one to three keys and inserts an event for each; some use savepoints that are
rolled back, some are rolled back altogether. The ledger has the lines of writer.py; a COMMIT is always answered here."""

import json
import random
import signal
import sqlite3
import sys
import time

from events import KEYS, event_id, event_type


class Writer:
    def __init__(self, path, seed, ledger):
        self.db = sqlite3.connect(path, timeout=30, isolation_level=None)
        self.seed, self.ledger, self.rng, self.go = seed, ledger, random.Random(seed), True

    def note(self, sign, events):
        now = time.monotonic()
        for key, n, tag in events:
            self.ledger.write(f"{sign} {key} {n} {tag} {now:.3f}\n")

    def change(self, key, tag):
        self.db.execute("update counter set n = n + 1 where key = ?", (key,))
        (n,) = self.db.execute("select n from counter where key = ?", (key,)).fetchone()
        self.db.execute("insert into outbox_event (id, type, aggregate_id, payload) values (?, ?, ?, ?)",
                        (event_id(tag), event_type(tag), key, json.dumps({"key": key, "tag": tag})))
        return key, n, tag

    def once(self, number):
        kept, undone = [], []
        self.db.execute("begin immediate")
        for k in self.rng.sample(range(KEYS), self.rng.choice((1, 1, 1, 2, 3))):
            self.db.execute("savepoint s")
            event = self.change(f"k{k:02}", f"{self.seed}-{number}-{k}")
            if self.rng.random() < 0.15:
                self.db.execute("rollback to s")
                undone.append(event)
            else:
                kept.append(event)
            self.db.execute("release s")
        if self.rng.random() < 0.1:
            self.db.execute("rollback")
            self.note("-", kept + undone)
            return
        self.db.execute("commit")
        self.note("+", kept)
        self.note("-", undone)

    def run(self):
        number = 0
        while self.go:
            number += 1
            try:
                self.once(number)
            except sqlite3.OperationalError:  # the write lock was not free for 30 s
                if self.db.in_transaction:
                    self.db.execute("rollback")
            time.sleep(0.005 + self.rng.random() * 0.02)


def main():
    path, seed, ledger_path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    with open(ledger_path, "w", buffering=1) as ledger:
        w = Writer(path, seed, ledger)

        def stop(*_):
            w.go = False

        signal.signal(signal.SIGTERM, stop)
        w.run()


if __name__ == "__main__":
    main()
