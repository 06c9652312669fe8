# SPDX-License-Identifier: Apache-2.0
"""writer - one writer process of the scenario: writer.py DSN SEED LEDGER TABLE

Goes on until it gets SIGTERM, and through restarts of the server. The work of a transaction is that of tests/e2e/pg_writer.py: it locks
the rows of one to three keys, raises their counters and emits an event per change; savepoints, roll-backs, early transaction ids.

The ledger gets a line per event once its fate is known, from the answer to COMMIT alone:
    + key n tag    committed
    ? key n tag    the server went away before it answered: committed or not
    - key n tag    rolled back, or the server went away before COMMIT was sent
"""

import json
import pathlib
import random
import signal
import sys
import time

import psycopg2

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
import pg_writer  # noqa: E402

GONE = (psycopg2.OperationalError, psycopg2.InterfaceError)


def emit_row(cur, key, tag, **_):
    """Into orion's table in place of outbox.emit."""
    cur.execute(
        "insert into public.outbox (tenant_id, aggregate_type, aggregate_id, event_type, payload) "
        "values (md5('tenant')::uuid, 'counter', md5(%s)::uuid, 'counted', %s)",
        (key, json.dumps({"key": key, "tag": tag})),
    )


class Told:
    """Notes what a transaction emitted, also where it is rolled back later."""

    def __init__(self, emit):
        self.emit, self.tags = emit, []

    def __call__(self, cur, key, tag, **more):
        self.tags.append((key, tag))
        self.emit(cur, key, tag, **more)


class Writer:
    def __init__(self, dsn, seed, ledger, table):
        self.dsn, self.seed, self.ledger = dsn, seed, ledger
        self.rng = random.Random(seed)
        self.told = Told(emit_row if table == "orion" else pg_writer.emit)
        pg_writer.emit = self.told
        self.go = True
        self.c = self.cur = None

    def connect(self):
        while self.go:
            try:
                self.c = psycopg2.connect(self.dsn, connect_timeout=5)
                self.c.autocommit = True
                self.cur = self.c.cursor()
                return True
            except GONE:
                time.sleep(0.05)
        return False

    def note(self, sign, lines):
        for line in lines:
            self.ledger.write(f"{sign} {line.strip()}\n")

    def undone(self, kept=()):
        """Everything that was emitted and is not in `kept` was rolled back."""
        tags = {line.split()[2] for line in kept}
        self.note("-", [f"{key} 0 {tag}" for key, tag in self.told.tags if tag not in tags])

    def once(self, number):
        self.told.tags = []
        try:
            self.cur.execute("begin")
            done = pg_writer.transaction(self.cur, self.rng, f"{self.seed}-{number}", False)
        except pg_writer.Undone:
            self.undone()
            self.cur.execute("rollback")
            return
        except psycopg2.Error:  # before COMMIT was sent: nothing of it can be there
            self.undone()
            raise
        try:
            self.cur.execute("commit")
        except GONE:
            self.note("?", done)
            self.undone(done)
            raise
        self.note("+", done)
        self.undone(done)

    def run(self):
        number = 0
        while self.connect():
            try:
                while self.go:
                    number += 1
                    self.once(number)
                    time.sleep(self.rng.random() * 0.01)
            except psycopg2.Error:
                pass  # also "the server is shutting down" in the middle: another connection, another number
            finally:
                self.c.close()


def main():
    dsn, seed, path, table = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
    with open(path, "w", buffering=1) as ledger:
        w = Writer(dsn, seed, ledger, table)

        def stop(*_):
            w.go = False

        signal.signal(signal.SIGTERM, stop)
        w.run()


if __name__ == "__main__":
    main()
