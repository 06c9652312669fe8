# SPDX-License-Identifier: Apache-2.0
"""test_postgres_wal_failures - what happens to slots, publications, tables and servers under a relay in mode wal. The ledger is
what the writers' commits returned; nothing may be missing, phantom or out of order, and repeats only where the table was read."""

import os
import re

import pytest

import services
from helpers import SLOW, read_jsonl, wait_until
from pg import StubbornWriter, Writer, all_there, check_ledger, delivered, emit
from wal import on_stream, slot_of, slots, wal_config


@pytest.fixture(scope="module")
def strict_server():
    """Takes a silent relay for dead after four seconds, and keeps little WAL for a slot."""
    server = services.Postgres(conf=["wal_sender_timeout = 4s", "max_slot_wal_keep_size = 1MB", "min_wal_size = 32MB"])
    yield server
    server.close()


@pytest.fixture
def strict(strict_server):
    d = strict_server.database()
    yield d
    d.close()


def ns(outbox):
    return [m["value"]["n"] for m in read_jsonl(outbox.path("out/events.jsonl"))]


def first(seen):
    return list(dict.fromkeys(seen))


def drop_slot(db):
    """Away under the relay's hands."""

    def gone():
        db.sql("select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = %s and active", slot_of(db))
        try:
            db.sql("select pg_drop_replication_slot(%s)", slot_of(db))
        except db.server.psycopg2.Error:
            return False
        return True

    wait_until(gone, 20, "dropped", every=0)


def test_slot_dropped_while_it_is_read(outbox, db):
    wal_config(outbox, db)
    relay = outbox.start("run")
    on_stream(relay)
    writer = Writer(db, ["a", "b", "c"], pause=0.001)
    writer.start()
    wait_until(lambda: writer.total() > 100, 20, "progress")
    drop_slot(db)
    on_stream(relay, times=2)
    wait_until(lambda: "the slot is gone" in relay.err, 10, "said")
    writer.stop()
    out = outbox.path("out/events.jsonl")
    wait_until(all_there(writer, out), 20, "all delivered")
    assert relay.stop() == 0
    check_ledger(writer, delivered(out), True)
    assert len(slots(db)) == 1


def test_slot_dropped_or_moved_while_nobody_reads(outbox, db):
    wal_config(outbox, db)
    c = db.connect().cursor()
    outbox.run("run", "--once")
    n = 0
    for what in ("pg_drop_replication_slot(%s)", "pg_replication_slot_advance(%s, pg_current_wal_insert_lsn())"):
        for _ in range(3):
            n += 1
            emit(c, "k", n)
        wait_until(lambda: db.sql("select 1 from pg_replication_slots where slot_name = %s and not active", slot_of(db)), 10)
        db.sql("select " + what, slot_of(db))
        outbox.run("run", "--once")
        assert first(ns(outbox)) == list(range(1, n + 1))


@pytest.mark.slow
def test_slot_invalidated_by_the_server(outbox, strict):
    wal_config(outbox, strict)
    c = strict.connect().cursor()
    outbox.run("run", "--once")
    for n in range(1, 4):
        emit(c, "k", n)
    strict.sql("create table filler (t text)")

    def lost():
        strict.sql("insert into filler select repeat('x', 1000) from generate_series(1, 20000)")
        strict.sql("checkpoint")
        return strict.one("select wal_status from pg_replication_slots where slot_name = %s", slot_of(strict)) == "lost"

    wait_until(lost, 30, "the server gives the slot up")
    relay = outbox.start("run")
    on_stream(relay)
    assert "max_slot_wal_keep_size" in relay.err
    emit(c, "k", 4)
    wait_until(lambda: first(ns(outbox)) == [1, 2, 3, 4], 10, "all there")
    assert relay.stop() == 0


@pytest.mark.slow
def test_wal_budget_drops_the_slot_and_the_table_goes_on(outbox, db):
    """The sink is away and others fill the WAL: the server's disk is worth more than the stream."""
    wal_config(outbox, db, source="wal_budget: 4M", more="    window: 10")
    relay = outbox.start("run")
    on_stream(relay)
    c = db.connect().cursor()
    emit(c, "k", 1)
    wait_until(lambda: ns(outbox) == [1], 10, "delivered")
    os.rename(outbox.path("out"), outbox.path("away"))
    outbox.write("out", "not a folder")
    for n in range(2, 60):
        emit(c, "k", n)
    db.sql("create table filler (t text)")
    db.sql("insert into filler select repeat('x', 1000) from generate_series(1, 8000)")
    wait_until(lambda: "wal_budget is" in relay.err, 20, "over the budget")
    wait_until(lambda: slots(db) == [], 20, "the slot is dropped")
    os.remove(outbox.path("out"))
    os.rename(outbox.path("away"), outbox.path("out"))
    on_stream(relay, times=2)
    emit(c, "k", 60)
    files = lambda: sorted(outbox.path("out").glob("events.jsonl*"), key=lambda p: p.stat().st_mtime)
    wait_until(lambda: first([v["n"] for v in delivered(*files())]) == list(range(1, 61)), 20, "all there, in order")
    assert relay.stop() == 0


def test_far_behind_reads_the_table(outbox, db):
    wal_config(outbox, db, source="catch_up: 1M")
    relay = outbox.start("run")
    on_stream(relay)
    assert relay.stop() == 0
    c = db.connect().cursor()
    emit(c, "k", 1)
    db.sql("create table filler (t text)")
    db.sql("insert into filler select repeat('x', 1000) from generate_series(1, 3000)")
    relay = outbox.start("run")
    on_stream(relay)
    assert "farther behind than catch_up" in relay.err
    wait_until(lambda: ns(outbox) == [1], 10, "delivered")
    assert relay.stop() == 0


PUBLICATION_CHANGES = {
    "dropped": ("drop publication outbox_orders", None),
    "without the table": ("alter publication outbox_orders drop table outbox.event", "does not have the table"),
    "without inserts": ("alter publication outbox_orders set (publish = 'update')", "does not publish inserts"),
    "partitions": ("alter publication outbox_orders set (publish_via_partition_root = false)", "names partitions"),
    "a filter": ("alter publication outbox_orders set table outbox.event where (type <> 'order.placed')", "has a filter"),
}


@pytest.mark.parametrize("change", PUBLICATION_CHANGES)
def test_publication_changed(outbox, db, change):
    """Rows that a changed publication left out of the stream are found in the table. The statement that mends it is in the message."""
    away, said = PUBLICATION_CHANGES[change]
    wal_config(outbox, db)
    relay = outbox.start("run")
    on_stream(relay)
    c = db.connect().cursor()
    emit(c, "k", 1)
    wait_until(lambda: ns(outbox) == [1], 10, "delivered")
    c.execute(away)
    emit(c, "k", 2)
    if said:
        wait_until(lambda: said in relay.err, 20, "said what is wrong")
    emit(c, "k", 3)
    if said:
        c.execute(re.search(r"ALTER PUBLICATION .*?;", relay.err.replace('\\"', '"')).group(0))
    emit(c, "k", 4)
    wait_until(lambda: first(ns(outbox)) == [1, 2, 3, 4], 30, "all there")
    on_stream(relay, times=2)
    emit(c, "k", 5)
    wait_until(lambda: first(ns(outbox)) == [1, 2, 3, 4, 5], 10, "all there")
    assert relay.stop() == 0


def test_publication_changed_for_a_moment(outbox, db):
    """Changed and changed back between two looks, with a row in between, also while nobody reads."""
    wal_config(outbox, db)
    relay = outbox.start("run")
    on_stream(relay)
    c = db.connect().cursor()
    emit(c, "k", 1)
    for n in (2, 3):
        c.execute("alter publication outbox_orders drop table outbox.event")
        emit(c, "k", n)
        c.execute("alter publication outbox_orders add table outbox.event")
        if n == 2:
            wait_until(lambda: first(ns(outbox)) == [1, 2], 20, "all there")
            on_stream(relay, times=2)
            assert relay.stop() == 0
    outbox.run("run", "--once")
    assert first(ns(outbox)) == [1, 2, 3]


def test_rows_may_be_changed_deleted_and_truncated(outbox, db):
    """Nothing but inserts are events, also with a publication that has all there is, and other tables."""
    db.sql("create table other (t text primary key)")
    wal_config(outbox, db)
    db.sql("create publication outbox_orders for table outbox.event, other with (publish_via_partition_root = true)")
    db.sql("alter table outbox.event replica identity full")
    for part in db.sql("select format('%s', inhrelid::regclass) from pg_inherits where inhparent = 'outbox.event'::regclass"):
        db.sql(f"alter table {part[0]} replica identity full")
    relay = outbox.start("run")
    on_stream(relay)
    c = db.connect().cursor()
    for n in (1, 2, 3):
        emit(c, "k", n)
    c.execute("insert into other values ('x')")
    c.execute("update other set t = 'y'")
    wait_until(lambda: ns(outbox) == [1, 2, 3], 10, "delivered")
    c.execute("update outbox.event set tenant = 'other'")
    c.execute("delete from outbox.event where seq = 1")
    emit(c, "k", 4)
    wait_until(lambda: ns(outbox) == [1, 2, 3, 4], 10, "delivered")
    c.execute("truncate outbox.event")
    c.execute("truncate other")
    emit(c, "k", 5)
    wait_until(lambda: ns(outbox) == [1, 2, 3, 4, 5], 10, "delivered")
    assert relay.stop() == 0


def test_columns_come_and_go(outbox, db):
    wal_config(outbox, db)
    relay = outbox.start("run")
    on_stream(relay)
    c = db.connect().cursor()
    emit(c, "k", 1)
    c.execute("alter table outbox.event add column note text default 'x'")
    emit(c, "k", 2)
    c.execute("alter table outbox.event add column more int")
    c.execute("alter table outbox.event drop column note")
    emit(c, "k", 3)
    wait_until(lambda: ns(outbox) == [1, 2, 3], 10, "delivered")
    assert relay.stop() == 0
    assert "relay.fenced" not in relay.err


def test_prepared_transactions_rollbacks_and_savepoints(outbox, db):
    wal_config(outbox, db)
    relay = outbox.start("run")
    on_stream(relay)
    c = db.connect(autocommit=False)
    cur = c.cursor()
    emit(cur, "k", 1)
    cur.execute("savepoint a")
    emit(cur, "k", 100)
    cur.execute("rollback to savepoint a")
    cur.execute("savepoint b")
    emit(cur, "k", 2)
    cur.execute("release savepoint b")
    c.commit()
    emit(cur, "k", 101)
    c.rollback()
    other = db.connect().cursor()
    other.execute("begin")
    emit(other, "p", 4)
    other.execute("prepare transaction 'outbox_wal'")
    emit(cur, "k", 3)
    c.commit()
    wait_until(lambda: ns(outbox) == [1, 2, 3], 10, "the prepared one is not there")
    other.execute("commit prepared 'outbox_wal'")
    wait_until(lambda: ns(outbox) == [1, 2, 3, 4], 10, "and now it is")
    other.execute("begin")
    emit(other, "p", 102)
    other.execute("prepare transaction 'outbox_wal2'")
    other.execute("rollback prepared 'outbox_wal2'")
    emit(cur, "k", 5)
    c.commit()
    wait_until(lambda: ns(outbox) == [1, 2, 3, 4, 5], 10, "delivered")
    assert relay.stop() == 0


def test_order_is_the_order_of_commits(outbox, db):
    """An ORM that writes the outbox row first: by number the other way round."""
    wal_config(outbox, db)
    relay = outbox.start("run")
    on_stream(relay)
    a, b = db.connect(autocommit=False), db.connect(autocommit=False)
    emit(a.cursor(), "k", 2)
    emit(b.cursor(), "k", 1)
    b.commit()
    a.commit()
    wait_until(lambda: ns(outbox) == [1, 2], 10, "delivered")
    assert relay.stop() == 0


def test_walsender_terminated_again_and_again(outbox, db):
    """The stream goes on where it was read: not even a repeat."""
    wal_config(outbox, db)
    relay = outbox.start("run")
    on_stream(relay)
    writer = Writer(db, ["a", "b", "c"], pause=0.0005)
    writer.start()
    out = outbox.path("out/events.jsonl")
    for _ in range(8):
        at = len(delivered(out))
        wait_until(lambda: len(delivered(out)) > at + 40, 20, "progress")
        db.sql("select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = %s and active", slot_of(db))
    writer.stop()
    wait_until(all_there(writer, out), 20, "all delivered")
    assert relay.stop() == 0
    assert check_ledger(writer, delivered(out), False) == 0
    assert "wal.ended" in relay.err and "relay.fenced" not in relay.err


@pytest.mark.slow
def test_sink_down_for_longer_than_wal_sender_timeout(outbox, strict):
    """The window is full and nothing is read, but the server hears from us."""
    wal_config(outbox, strict, more="    window: 16")
    relay = outbox.start("run")
    on_stream(relay)
    c = strict.connect().cursor()
    emit(c, "k", 1)
    wait_until(lambda: ns(outbox) == [1], 10, "delivered")
    pid = strict.one("select active_pid from pg_replication_slots where slot_name = %s", slot_of(strict))
    os.rename(outbox.path("out"), outbox.path("away"))
    outbox.write("out", "not a folder")
    strict.sql("insert into outbox.event (type, aggregate_id, payload) select 'x', 'k', convert_to(json_build_object('key', 'k', "
               "'n', n + 1, 'x', repeat('y', 5000))::text, 'UTF8') from generate_series(1, 1000) n")
    wait_until(lambda: "sink.down" in relay.err, 10, "down")
    since = strict.one("select clock_timestamp()")
    wait_until(lambda: strict.one("select clock_timestamp() - %s > interval '9 s'", since), 20, "longer than the time-out", every=0.2)
    now = strict.one("select active_pid from pg_replication_slots where slot_name = %s", slot_of(strict))
    os.remove(outbox.path("out"))
    os.rename(outbox.path("away"), outbox.path("out"))
    files = lambda: sorted(outbox.path("out").glob("events.jsonl*"), key=lambda p: p.stat().st_mtime)
    wait_until(lambda: first([v["n"] for v in delivered(*files())]) == list(range(1, 1002)), 30, "all there, in order")
    assert relay.stop() == 0
    assert now == pid, "the walsender lived"


def test_what_is_in_flight_is_never_confirmed(outbox, db):
    """Read, not delivered, and the relay dies: beats in between must not have told the server that it may forget."""
    wal_config(outbox, db)
    relay = outbox.start("run")
    on_stream(relay)
    c = db.connect().cursor()
    emit(c, "k", 1)
    wait_until(lambda: ns(outbox) == [1], 10, "delivered")
    os.rename(outbox.path("out"), outbox.path("away"))
    outbox.write("out", "not a folder")
    for n in range(2, 30):
        emit(c, "k", n)
    wait_until(lambda: "sink.down" in relay.err, 10, "down")
    beat = db.one("select beat from outbox.cursor")
    wait_until(lambda: db.one("select beat from outbox.cursor") >= beat + 3, 20, "it lives")
    relay.kill()
    os.remove(outbox.path("out"))
    os.rename(outbox.path("away"), outbox.path("out"))
    relay = outbox.start("run")
    files = lambda: sorted(outbox.path("out").glob("events.jsonl*"), key=lambda p: p.stat().st_mtime)
    wait_until(lambda: first([v["n"] for v in delivered(*files())]) == list(range(1, 30)), 20, "all there, in order")
    assert relay.stop() == 0


@pytest.mark.slow
def test_server_crashes_and_restarts(outbox, own_postgres):
    server = own_postgres()
    db = server.database()
    wal_config(outbox, db)
    relay = outbox.start("run")
    on_stream(relay)
    writer = StubbornWriter(db, ["a", "b", "c"], pause=0.001)
    writer.start()
    out = outbox.path("out/events.jsonl")
    for mode in ("immediate", "fast", "immediate"):
        at = len(delivered(out))
        wait_until(lambda: len(delivered(out)) > at + 50, 30, "progress")
        server.restart(mode)
    at = len(delivered(out))
    wait_until(lambda: len(delivered(out)) > at + 50, 30, "progress")
    writer.stop()
    wait_until(all_there(writer, out), 30, "all delivered")
    assert relay.stop() == 0
    check_ledger(writer, delivered(out), True)
    assert relay.err.count("wal.table") == 1, "the slot was followed all the time"


def peak_mb(pid):
    return int(re.search(r"VmHWM:\s+(\d+)", open(f"/proc/{pid}/status", encoding="ascii").read()).group(1)) / 1024


@pytest.mark.slow
def test_a_large_transaction(outbox, db):
    """OUTBOX_TEST_TXN_MB=1000 for a gigabyte. Killed in the middle it goes on in the middle."""
    mb = int(os.environ.get("OUTBOX_TEST_TXN_MB", "40"))
    rows = mb * 1000
    wal_config(outbox, db, source="catch_up: 0, wal_budget: 0")
    relay = outbox.start("run")
    on_stream(relay)
    c = db.connect().cursor()
    c.execute("insert into outbox.event (type, aggregate_id, payload) select 'x', 'k' || n %% 100, convert_to("
              "json_build_object('n', n, 'x', repeat('y', 970))::text, 'UTF8') from generate_series(1, %s) n", (rows,))
    out = outbox.path("out/events.jsonl")

    def lines():
        with open(out, "rb") as f:
            return sum(chunk.count(b"\n") for chunk in iter(lambda: f.read(1 << 20), b""))

    wait_until(lambda: out.exists() and lines() > rows // 3, 600, "the first third", every=0.2)
    if SLOW == 1:
        assert peak_mb(relay.pid) < 32, "less than the transaction has"
    relay.kill()
    killed_at = lines()
    relay = outbox.start("run")
    wait_until(lambda: db.one("select rows_done = 0 and confirmed_flush_lsn is not null and active from outbox.cursor, "
                              "pg_replication_slots where slot_name = %s", slot_of(db)) and lines() >= rows, 600, "all there", every=0.2)
    if SLOW == 1:
        assert peak_mb(relay.pid) < 32, "less than the transaction has"
    assert relay.stop() == 0
    seen = {}
    count = 0
    with open(out, "rb") as f:
        for line in f:
            count += 1
            n = int(re.search(rb'"n" : (\d+)', line).group(1))
            seen.setdefault(n % 100, {})[n] = None
    assert sum(map(len, seen.values())) == rows
    assert all(list(v) == sorted(v) for v in seen.values())
    assert count - rows < min(20000, killed_at), "repeats: at most a window, not all from the start"
