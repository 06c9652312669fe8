# SPDX-License-Identifier: Apache-2.0
"""pg - what the PostgreSQL tests share: a config, writers with a ledger of their own, and the comparison of that ledger with
what the sink got. The ledger is what the writers' commits returned, never the outbox table."""

import json
import threading
import time

from helpers import read_jsonl

ONE = """
log: {{level: debug}}
pipelines:
  orders:
    source: {{type: postgres, dsn: "{dsn}"{source}}}
    sink: {{type: file, path: {path}}}
    envelope: none
    stuck_after: 1s
{more}
"""


def config(outbox, db, path="out/events.jsonl", more="", source="", name="outbox.yaml", dsn=None, apply=True):
    outbox.path("out").mkdir(exist_ok=True)
    text = ONE.format(dsn=dsn or db.dsn, path=path, more=more, source=f", {source}" if source else "")
    outbox.write(name, text)
    if apply:
        outbox.run("schema", "--apply", "-c", name)


def emit(cur, key, n, **args):
    """One event through outbox.emit, in whatever transaction the cursor is in."""
    named = {"type": "order.placed", "aggregate_type": "order", "aggregate_id": key}
    named["payload"] = json.dumps({"key": key, "n": n})
    named.update(args)
    call = ", ".join(f"{k} => %({k})s" for k in named)
    cur.execute(f"select outbox.emit({call})", named)
    return cur.fetchone()[0]


# A table with a state column, for mode rows: what the sink gets is the same.
ROWS = "mode: rows, mapping: {table: jobs, id: id, order: no, type: type, aggregate_id: key, payload: payload, done: done}"


def rows_table(db):
    db.sql("create table jobs (id uuid primary key default gen_random_uuid(), no bigserial, type text not null, key text not null, "
           "payload json not null, done timestamptz); create index on jobs (no) where done is null")


def insert(cur, key, n):
    """The same event into that table."""
    cur.execute("insert into jobs (type, key, payload) values ('order.placed', %s, %s)", (key, json.dumps({"key": key, "n": n})))


class Writer(threading.Thread):
    """Commits events in order per key, rolls some back, and remembers what it committed."""

    def __init__(self, db, keys, pause=0.0005, emit=emit):
        super().__init__(daemon=True)
        self.db, self.keys, self.pause, self.emit = db, keys, pause, emit
        self.ledger = {k: [] for k in keys}
        self.undone = set()
        self.unknown = set()
        self.go = True
        self.error = None

    def run(self):
        try:
            self.write(self.db.server.connect(self.db.name, autocommit=False))
        except Exception as e:  # the test looks at it
            self.error = e

    def write(self, c):
        n = 0
        cur = c.cursor()
        while self.go:
            n += 1
            key = self.keys[n % len(self.keys)]
            self.emit(cur, key, n)
            if n % 7 == 0:
                c.rollback()
                self.undone.add(n)
            else:
                c.commit()
                self.ledger[key].append(n)
            time.sleep(self.pause)
        c.close()

    def stop(self):
        self.go = False
        self.join()
        if self.error:
            raise self.error

    def total(self):
        return sum(map(len, self.ledger.values()))


class StubbornWriter(Writer):
    """Goes on when its server goes away. A commit whose answer was lost may or may not be there."""

    def write(self, c):
        n, cur = 0, c.cursor()
        lost = (self.db.server.psycopg2.OperationalError, self.db.server.psycopg2.InterfaceError)
        while self.go:
            n += 1
            key = self.keys[n % len(self.keys)]
            try:
                self.emit(cur, key, n)
            except lost:
                c, cur = self.again()
                continue
            try:
                c.commit()
                self.ledger[key].append(n)
            except lost:
                self.unknown.add(n)
                c, cur = self.again()
            time.sleep(self.pause)
        c.close()

    def again(self):
        while True:
            try:
                c = self.db.server.connect(self.db.name, autocommit=False)
                return c, c.cursor()
            except self.db.server.psycopg2.OperationalError:
                time.sleep(0.05)


def delivered(*paths):
    seen = []
    for p in paths:
        seen += [m["value"] for m in read_jsonl(p)]
    return seen


def check_ledger(writer, seen, repeats_allowed):
    """Nothing missing, nothing phantom, first deliveries in key order. Gives the number of repeats."""
    first, repeats = {k: [] for k in writer.ledger}, 0
    known = {k: set() for k in writer.ledger}
    for value in seen:
        key, n = value["key"], value["n"]
        assert n not in writer.undone, f"phantom: {n} was rolled back"
        if n in known[key]:
            repeats += 1
        else:
            known[key].add(n)
            if n not in writer.unknown:
                first[key].append(n)
    for key, want in writer.ledger.items():
        missing = set(want) - known[key]
        assert not missing, f"key {key}: missing {sorted(missing)[:20]} of {len(want)}"
        assert first[key] == want, f"key {key}: out of order, or phantoms"
    if not repeats_allowed:
        assert repeats == 0
    return repeats


def all_there(writer, *paths):
    def ready():
        seen = {v["n"] for v in delivered(*paths)}
        return seen >= {n for ns in writer.ledger.values() for n in ns}

    return ready


def small_partitions(db, rows, ahead=3, keep_hours=0):
    """The outbox of a fresh schema with partitions of so many numbers. Nothing may have been emitted yet."""
    db.sql(
        """do $$
        declare p text;
        begin
            for p in select name from outbox.part loop execute format('drop table outbox.%I', p); end loop;
            delete from outbox.part;
        end $$"""
    )
    for name, value in (("partition_rows", rows), ("partitions_ahead", ahead), ("keep_hours", keep_hours)):
        db.sql("update outbox.meta set value = %s where name = %s", str(value), name)
    maintain(db)


def maintain(db, user="postgres"):
    """Upkeep until there is nothing more to do; what was done."""
    c, done = db.connect(user), []
    with c.cursor() as cur:
        while True:
            cur.execute("select outbox.maintain()")
            step = cur.fetchone()[0]
            if step is None:
                break
            done.append(step)
    c.close()
    return done
