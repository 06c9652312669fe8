# SPDX-License-Identifier: Apache-2.0
"""test_limits - columns of any size on every source: an event over a limit is dead with its reason and costs no memory, large ones
within the limits are delivered, and the memory of the relay has a bound."""

import resource
import signal

import pytest

from helpers import SLOW, memory_mb, read_jsonl, wait_until
from pg import config
from wal import on_stream

TEXTS = ("type", "aggregate_type", "aggregate_id", "key", "tenant", "topic")
JSONS = ("headers", "metadata")
MB = 1 << 20

SQLITE = """
log: {{level: debug}}
pipelines:
  orders:
    source: {{type: sqlite, path: app.db}}
    sink: {{type: file, path: out/events.jsonl}}
    envelope: none
{more}
"""


class Sqlite:
    """Rows written by INSERT into the native table."""

    columns = TEXTS + JSONS + ("payload",)
    row_mb = 0  # of the largest row, where the source has to read it whole
    stream = False  # only what is written while the relay runs

    def __init__(self, outbox, more=""):
        self.outbox = outbox
        outbox.path("out").mkdir(exist_ok=True)
        outbox.write("outbox.yaml", SQLITE.format(more=more))
        outbox.run("schema", "--apply")
        self.db = outbox.sqlite("app.db")

    def begin(self, relay):
        pass

    def insert(self, name, count=1, **sizes):
        """Events whose named columns have these sizes, the others short values."""
        names = {"type": "'t'", "aggregate_id": f"'{name}'", "payload": f"'{{\"n\":\"{name}\"}}'"}
        for column, n in sizes.items():
            text = f"replace(hex(zeroblob({n // 2 - 8})), '00', 'xy')"
            names[column] = f"'{{\"x\":\"' || {text} || '\"}}'" if column in JSONS + ("payload",) else text
        rows = f"with recursive n(i) as (select 1 union all select i + 1 from n where i < {count}) select {', '.join(names.values())} from n"
        self.db.execute(f"insert into outbox_event ({', '.join(names)}) {rows}")

    def settled(self):
        at = self.db.execute("select min(pos) from outbox_cursor").fetchone()[0] or 0
        return at >= (self.db.execute("select max(seq) from outbox_event").fetchone()[0] or 0)


class Log:
    columns = TEXTS + JSONS + ("payload",)
    row_mb = 0
    stream = False
    source = "mode: log"
    table = "outbox.event"

    def __init__(self, outbox, db, more=""):
        self.outbox, self.db = outbox, db
        config(outbox, db, source=self.source, more=more)

    def begin(self, relay):
        pass

    def value(self, column, n):
        if column == "payload":
            return f"convert_to('{{\"x\":\"' || repeat('xy', {n // 2}) || '\"}}', 'UTF8')"
        if column in JSONS:
            return f"('{{\"x\":\"' || repeat('xy', {n // 2}) || '\"}}')::json"
        return f"repeat('xy', {n // 2})"

    def insert(self, name, count=1, **sizes):
        names = {"type": "'t'", "aggregate_id": f"'{name}'", "payload": f"'{{\"n\":\"{name}\"}}'"}
        names.update({c: self.value(c, n) for c, n in sizes.items()})
        self.db.sql(f"insert into {self.table} ({', '.join(names)}) select {', '.join(names.values())} from generate_series(1, {count})")


class Rows(Log):
    """A table of its own, with every column that a mapping can name, and one more for templates."""

    columns = TEXTS + ("stream",) + JSONS + ("payload", "extra")
    source = ("mode: rows, mapping: {table: jobs, id: id, order: no, done: done, columns: [extra], "
              + ", ".join(f"{c}: {c}" for c in TEXTS + ("stream",) + JSONS + ("payload",)) + "}")
    table = "jobs"

    def __init__(self, outbox, db, more=""):
        db.sql("create table jobs (id uuid primary key default gen_random_uuid(), no bigserial, done timestamptz, extra text, "
               + ", ".join(f"{c} text" for c in TEXTS + ("stream",)) + ", headers jsonb, metadata json, payload json)")
        super().__init__(outbox, db, more)

    def value(self, column, n):
        if column in ("payload",) + JSONS:
            return f"('{{\"x\":\"' || repeat('xy', {n // 2}) || '\"}}')::json"
        return f"repeat('xy', {n // 2})"


class Wal(Log):
    row_mb = 10  # a row of the stream comes as one message
    stream = True
    source = "mode: wal"

    def begin(self, relay):
        on_stream(relay)


class WalMapped(Rows):
    row_mb = 10
    stream = True
    source = Rows.source.replace("mode: rows", "mode: wal")

    def begin(self, relay):
        on_stream(relay)


class Message(Wal):
    columns = TEXTS + JSONS + ("payload",)
    source = "mode: wal, message_prefix: outbox"

    def insert(self, name, **sizes):
        parts = {"type": '"t"', "aggregate_id": f'"{name}"', "payload": f'{{"n":"{name}"}}'}
        for column, n in sizes.items():
            text = f"\"' || repeat('xy', {n // 2}) || '\""
            parts[column] = f'{{"x":{text}}}' if column in JSONS + ("payload",) else text
        content = ", ".join(f'"{k}": {v}' for k, v in parts.items())
        self.db.sql(f"select pg_logical_emit_message(true, 'outbox', '{{{content}}}'::text)")


SOURCES = {"sqlite": Sqlite, "log": Log, "rows": Rows, "wal": Wal, "wal-mapped": WalMapped, "message": Message}


@pytest.fixture(params=SOURCES)
def source(request, outbox):
    kind = SOURCES[request.param]

    def make(more=""):
        if kind is Sqlite:
            return kind(outbox, more)
        return kind(outbox, request.getfixturevalue("db"), more)

    return make


def lines(outbox):
    return read_jsonl(outbox.path("out/events.jsonl"))


def dead(outbox):
    return outbox.json("dead", "list", "--json")


def limit_of(column):
    return 65536 if column in TEXTS + ("stream",) else MB if column in JSONS + ("extra",) else 64 * MB


@pytest.mark.slow
def test_a_column_over_its_limit_is_dead_with_column_size_and_limit(outbox, source):
    src = source("    limits: {payload: 4M}")
    relay = outbox.start("run")
    src.begin(relay)
    src.insert("first")
    for column in src.columns:
        src.insert(f"over-{column}", **{column: 10 * MB})
    src.insert("last")
    wait_until(lambda: len(lines(outbox)) >= 2, 60, "both delivered")
    wait_until(lambda: len(dead(outbox)) == len(src.columns), 30, "the others are dead")
    assert memory_mb(relay, "VmHWM") <= 32 + 8 + 4 * src.row_mb
    assert relay.stop() == 0
    errors = [d["error"] for d in dead(outbox)]
    for column in src.columns:
        limit = 4 * MB if column == "payload" else limit_of(column)
        (error,) = [e for e in errors if e.startswith(f"{column} is too large: ")]
        size = int(error.split(": ")[1].split()[0])
        assert 10 * MB - 64 <= size <= 10 * MB + 64 and f"the limit is {limit} " in error
    # What people see of them is short, and a retry has the same end.
    for d in dead(outbox):
        assert all(len(str(v)) < 2000 for v in d.values()), d["error"]
        if "payload" not in d["error"]:
            shown = outbox.run("dead", "show", d["id"])
            assert b"too large" in shown.stdout and len(shown.stdout) < 3 * MB
    assert outbox.run("dead", "retry", "--all", "--yes").returncode == 0
    relay = outbox.start("run")
    wait_until(lambda: len(dead(outbox)) == len(src.columns), 60, "dead again")
    assert memory_mb(relay, "VmHWM") <= 32 + 8 + 4 * src.row_mb
    assert relay.stop() == 0


@pytest.mark.slow
def test_every_column_at_its_limit_is_delivered_within_the_memory_bound(outbox, source):
    """80 events of more than 1 MB pass through a window of 8 MB."""
    src = source()
    relay = src.stream and outbox.start("run")
    src.begin(relay)
    sizes = {c: limit_of(c) - 64 for c in src.columns if c != "payload"}
    sizes |= {"payload": 2000, "topic": 30000, "headers": 60000} | ({"stream": 30000} if "stream" in sizes else {})
    largest = sum(sizes.values()) / MB
    for n in range(80):
        src.insert(f"k{n}", **{k: v for k, v in sizes.items() if k not in ("aggregate_id",)})
    relay = relay or outbox.start("run")
    out = outbox.path("out/events.jsonl")
    wait_until(lambda: out.exists() and out.read_bytes().count(b"\n") >= 80 or dead(outbox), 20, "delivered", every=0.2)
    assert dead(outbox) == []
    assert memory_mb(relay, "VmHWM") <= 32 + 8 + 4 * largest
    assert relay.stop() == 0
    assert dead(outbox) == []


def squeeze(relay, more_mb):
    """From now on the relay may have this much more data than it has."""
    limit = int(memory_mb(relay, "VmData") + more_mb) << 20
    resource.prlimit(relay.pid, resource.RLIMIT_DATA, (limit, limit))


@pytest.mark.slow
@pytest.mark.skipif(SLOW > 1, reason="a sanitizer needs the memory for itself")
@pytest.mark.parametrize("source", ["sqlite", "log", "rows"], indirect=True)
def test_an_event_that_does_not_fit_into_memory_is_dead_and_the_cursor_moves_on(outbox, source):
    src = source()
    relay = outbox.start("run")
    src.insert("first")
    wait_until(lambda: len(lines(outbox)) == 1, 20, "the relay runs")
    squeeze(relay, 30)
    src.insert("large", payload=60 * MB)
    src.insert("last")
    wait_until(lambda: len(lines(outbox)) == 2, 60, "the last is delivered")
    (event,) = wait_until(lambda: dead(outbox), 10, "the large one is dead")
    assert event["error"].startswith("no memory for this event alone: ")
    # With more memory it can be delivered.
    assert relay.stop() == 0
    outbox.run("dead", "retry", "--all", "--yes")
    relay = outbox.start("run")
    wait_until(lambda: outbox.path("out/events.jsonl").read_bytes().count(b"\n") == 3, 30, "the large one is delivered")
    assert relay.stop() == 0


@pytest.mark.slow
@pytest.mark.skipif(SLOW > 1, reason="a sanitizer needs the memory for itself")
@pytest.mark.parametrize("source", ["sqlite", "log", "rows"], indirect=True)
def test_a_page_that_does_not_fit_into_memory_is_read_in_parts(outbox, source, request):
    src = source("    window_bytes: 1M")  # what the sink holds is small beside a page
    relay = outbox.start("run")
    src.insert("first")
    wait_until(lambda: len(lines(outbox)) == 1, 20, "the relay runs")
    relay.signal(signal.SIGSTOP)
    src.insert("many", count=1000, payload=8000, type=1000, aggregate_type=1000, topic=1000, key=1000, tenant=1000, metadata=4000)
    squeeze(relay, 14)
    relay.signal(signal.SIGCONT)
    out = outbox.path("out/events.jsonl")
    wait_until(lambda: out.read_bytes().count(b"\n") == 1001, 60, "all are delivered")
    assert dead(outbox) == []
    assert relay.stop() == 0
    if request.node.callspec.params["source"] != "sqlite":  # which has no pages of its own
        assert "source.page" in relay.err
