# SPDX-License-Identifier: Apache-2.0
"""writer - one writer process of the scenario on PostgreSQL: writer.py DSN SEED LEDGER TABLE

Runs until SIGTERM, through restarts of the server. The work of a transaction is that of tests/e2e/pg_writer.py: it locks
the rows of one to three keys, raises their counters and emits an event per change; savepoints, roll-backs, early transaction ids.

The ledger gets a line per event once its outcome is known, from the answer to COMMIT alone, with the time of that answer:
    + key n tag time    committed
    ? key n tag time    the connection was lost before the answer: committed or not
    - key n tag time    rolled back, or the connection was lost before COMMIT was sent
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
from events import event_id, event_type  # noqa: E402

GONE = (psycopg2.OperationalError, psycopg2.InterfaceError)


def body(key, tag):
    return json.dumps({"key": key, "tag": tag})


def emit_native(cur, key, tag):
    cur.execute("select outbox.emit(id => %s, type => %s, aggregate_id => %s, payload => %s)", (event_id(tag), event_type(tag), key, body(key, tag)))


def emit_orion(cur, key, tag):
    cur.execute(
        "insert into public.outbox (id, tenant_id, aggregate_type, aggregate_id, event_type, payload) "
        "values (%s, md5('tenant')::uuid, 'counter', md5(%s)::uuid, %s, %s)",
        (event_id(tag), key, event_type(tag), body(key, tag)),
    )


def emit_debezium(cur, key, tag):
    """Every second row is deleted in the transaction that inserts it."""
    cur.execute(
        "insert into public.outbox (id, aggregatetype, aggregateid, type, payload) values (%s, 'counter', %s, %s, %s)",
        (event_id(tag), key, event_type(tag), body(key, tag)),
    )
    if event_id(tag)[0] in "01234567":
        cur.execute("delete from public.outbox where id = %s", (event_id(tag),))


def emit_message(cur, key, tag):
    text = json.dumps({"id": event_id(tag), "type": event_type(tag), "aggregate_id": key, "payload": {"key": key, "tag": tag}})
    cur.execute("select pg_logical_emit_message(true, 'outbox', %s::text)", (text,))


EMIT = {"native": emit_native, "orion": emit_orion, "debezium": emit_debezium, "message": emit_message}


class Recorder:
    """Remembers what a transaction emitted, also where it is rolled back later."""

    def __init__(self, emit):
        self.emit, self.tags = emit, []

    def __call__(self, cur, key, tag, **_):
        self.tags.append((key, tag))
        self.emit(cur, key, tag)


class Writer:
    def __init__(self, dsn, seed, ledger, table):
        self.dsn, self.seed, self.ledger = dsn, seed, ledger
        self.rng = random.Random(seed)
        self.emitted = Recorder(EMIT[table])
        pg_writer.emit = self.emitted
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
        now = time.monotonic()
        for line in lines:
            self.ledger.write(f"{sign} {line.strip()} {now:.3f}\n")

    def undone(self, kept=()):
        """Everything that was emitted and is not in `kept` was rolled back."""
        tags = {line.split()[2] for line in kept}
        self.note("-", [f"{key} 0 {tag}" for key, tag in self.emitted.tags if tag not in tags])

    def once(self, number):
        self.emitted.tags = []
        try:
            self.cur.execute("begin")
            done = pg_writer.transaction(self.cur, self.rng, f"{self.seed}-{number}", False)
        except pg_writer.Undone:
            self.undone()
            self.cur.execute("rollback")
            return
        except psycopg2.Error:  # before COMMIT was sent: nothing was committed
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
                pass  # also "the server is shutting down" inside a transaction: a new connection and a new number
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
