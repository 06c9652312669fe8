# SPDX-License-Identifier: Apache-2.0
"""test_postgres_wal_handover - operator actions around the slot in mode wal. Every committed event must be delivered."""

import os
import signal
from pathlib import Path

import pytest

from helpers import read_jsonl, wait_until
from pg import config, emit, small_partitions
from wal import on_stream, slot_of, slots, wal_config

PLAIN = "create table events_out (id text, kind text, ref text, body jsonb)"
BARE = "mapping: {table: events_out, id: id, type: kind, key: ref, payload: body}"


class Messages:
    source = "message_prefix: outbox"

    @staticmethod
    def prepare(db):
        pass

    @staticmethod
    def write(cur, first, last, keys=20):
        cur.execute("select pg_logical_emit_message(true, 'outbox', json_build_object('type', 't', 'key', 'k' || n %% %s, "
                    "'payload', json_build_object('n', n))::text) from generate_series(%s, %s) n", (keys, first, last))


class Table:
    source = BARE

    @staticmethod
    def prepare(db):
        db.sql(PLAIN)

    @staticmethod
    def write(cur, first, last, keys=20):
        cur.execute("insert into events_out select n::text, 't', 'k' || n %% %s, jsonb_build_object('n', n) "
                    "from generate_series(%s, %s) n", (keys, first, last))


KINDS = {"messages": Messages, "table": Table}


def ns(outbox):
    return [m["value"]["n"] for f in sorted(outbox.path("out").glob("*.jsonl*")) for m in read_jsonl(f)]


class Outage:
    """The folder of the sink is a file for a while."""

    def __init__(self, outbox):
        self.outbox = outbox

    def __enter__(self):
        os.rename(self.outbox.path("out"), self.outbox.path("away"))
        self.outbox.write("out", "not a folder")
        return self

    def __exit__(self, *_):
        os.remove(self.outbox.path("out"))
        os.rename(self.outbox.path("away"), self.outbox.path("out"))


NAMED = ", slot: events"
CHANGES = [("messages", 1, 3, ""), ("messages", 3, 1, NAMED), ("messages", 2, 3, ""), ("table", 1, 2, NAMED), ("table", 3, 1, "")]


@pytest.mark.parametrize("kind, old, new, slot", CHANGES)
def test_shards_changed_where_no_table_serves(outbox, db, kind, old, new, slot):
    """1,000 committed events, half of them delivered, the relay stopped, the rest written, `shards` changed."""
    k = KINDS[kind]
    wal_config(outbox, db, source=k.source + slot, more=f"    shards: {old}", apply=True)
    k.prepare(db)
    c = db.connect().cursor()
    outbox.run("run", "--once")
    k.write(c, 1, 500)
    outbox.run("run", "--once")
    assert sorted(ns(outbox)) == list(range(1, 501))
    k.write(c, 501, 1000)
    wal_config(outbox, db, source=k.source + slot, more=f"    shards: {new}", path="out/later.jsonl", apply=False)
    shown = outbox.run("run", "--once")
    assert sorted(ns(outbox)) == list(range(1, 1001)), shown.err[-3000:]
    name = (lambda i: f"events_{i}" if new > 1 else "events") if slot else (lambda i: f"outbox_{db.name}_orders_{i}")
    assert slots(db) == [name(i) for i in range(new)], "the slots of the old shards are dropped, the new ones are there"


def of_shards(outbox, kind, shards, extra="", **kw):
    wal_config(outbox, kw.pop("db"), source=KINDS[kind].source + extra, more=f"    shards: {shards}", apply=False, **kw)


def half_delivered(outbox, db, kind="messages", shards=2):
    """1,000 events written, the first half delivered."""
    k = KINDS[kind]
    wal_config(outbox, db, source=k.source, more=f"    shards: {shards}")
    k.prepare(db)
    c = db.connect().cursor()
    outbox.run("run", "--once")
    k.write(c, 1, 500)
    outbox.run("run", "--once")
    k.write(c, 501, 1000)
    return c


@pytest.mark.parametrize("steps", [(3,), (5, 1, 3)])
def test_a_crash_after_the_shards_were_changed(outbox, db, steps):
    """The cursors are written, the slots are not copied yet; perhaps the number is changed again before they are."""
    half_delivered(outbox, db)
    for n in steps:
        db.sql("select outbox.reshard('orders', %s)", n)
    assert {r[0] for r in db.sql("select slot_state from outbox.cursor")} == {"moving"}
    of_shards(outbox, "messages", 3, db=db, path="out/later.jsonl")
    assert "has no slot yet" in outbox.run("status").out
    outbox.run("run", "--once")
    assert sorted(ns(outbox)) == list(range(1, 1001))
    assert slots(db) == [f"outbox_{db.name}_orders_{i}" for i in range(3)]


def test_shards_changed_with_slots_of_an_older_program(outbox, db):
    """Its cursors have no name of a slot."""
    half_delivered(outbox, db)
    db.sql("update outbox.cursor set slot = null")
    of_shards(outbox, "messages", 1, db=db, path="out/later.jsonl")
    outbox.run("run", "--once")
    assert sorted(ns(outbox)) == list(range(1, 1001))


def test_shards_changed_right_after_an_upgrade(outbox, db):
    """A database of the program that recorded no slots, with one shard on messages."""
    schema = Path(__file__).parents[2] / "schema" / "postgres"
    before = sorted(f for f in schema.glob("0*.sql") if f.name < "010")
    for f in [*before, schema / "roles.sql"]:
        db.sql(f.read_text(encoding="utf-8"))
    db.sql("insert into outbox.meta (name, value) values ('version', %s)", str(len(before)))
    db.sql("create publication outbox_orders")
    db.sql("select pg_create_logical_replication_slot(%s, 'pgoutput')", slot_of(db))
    db.sql("insert into outbox.cursor (pipeline, shard, shards, mode, lsn, wal, timeline, system_id, db_oid, epoch) select 'orders', 0, 1, "
           "'wal', confirmed_flush_lsn, 'x', 1, (select system_identifier::text from pg_control_system()), (select oid from pg_database "
           "where datname = current_database()), 3 from pg_replication_slots where slot_name = %s", slot_of(db))
    Messages.write(db.connect().cursor(), 1, 300)
    wal_config(outbox, db, source=Messages.source, more="    shards: 2")
    assert db.sql("select slot_state, native from outbox.cursor") == [("created", False)]
    outbox.run("run", "--once")
    assert sorted(ns(outbox)) == list(range(1, 301))


@pytest.mark.slow
def test_what_an_old_shard_had_settled_is_not_repeated(outbox, db):
    """One shard is far ahead of the other when the number is changed."""
    wal_config(outbox, db, source=Messages.source, more="    shards: 2")
    outbox.run("run", "--once")
    c = db.connect().cursor()
    blocker = db.connect(autocommit=False).cursor()
    relay = outbox.start("run")
    wait_until(lambda: relay.err.count("relay.start") == 2, 20, "started")
    Messages.write(c, 1, 200)
    written = db.one("select pg_current_wal_insert_lsn()")
    wait_until(lambda: db.one("select min(lsn) >= %s::pg_lsn from outbox.cursor", written), 20, "delivered and settled")
    blocker.execute("select 1 from outbox.cursor where shard = 1 for update")
    Messages.write(c, 201, 400)
    written = db.one("select pg_current_wal_insert_lsn()")
    wait_until(lambda: db.one("select lsn >= %s::pg_lsn from outbox.cursor where shard = 0", written), 20, "shard 0 has settled")
    relay.kill()
    mine = "from pg_stat_activity where application_name = 'outbox' and datname = current_database()"
    db.sql("select pg_terminate_backend(pid) " + mine)  # else the statement that waits is carried out
    wait_until(lambda: db.one("select count(*) " + mine) == 0, 20, "its sessions have ended")
    blocker.connection.close()
    assert db.one("select max(lsn) <> min(lsn) from outbox.cursor")
    ahead = [m["value"]["n"] for m in read_jsonl(outbox.path("out/events.jsonl.0"))]
    assert max(ahead) > 200 and len(ahead) < 400, "the keys of shard 0"
    of_shards(outbox, "messages", 3, db=db, path="out/later.jsonl")
    outbox.run("run", "--once")
    seen = ns(outbox)
    assert set(seen) == set(range(1, 401))
    assert not [n for n in ahead if seen.count(n) > 1], "the shard that was ahead repeats nothing"
    Messages.write(c, 401, 460)
    outbox.run("run", "--once")
    outbox.run("run", "--once")
    assert db.one("select count(*) from outbox.past") == 0, "what every shard has passed is forgotten"


@pytest.mark.parametrize("shards", [1, 2])
def test_the_slot_gets_another_name(outbox, db, shards):
    half_delivered(outbox, db, shards=shards)
    for name in ("events", "events2"):
        of_shards(outbox, "messages", shards, f", slot: {name}", db=db, path=f"out/{name}.jsonl")
        outbox.run("run", "--once")
        assert sorted(ns(outbox)) == list(range(1, 1001))
        assert slots(db) == ([f"{name}_0", f"{name}_1"] if shards > 1 else [name])


def test_a_slot_of_another_program_is_neither_dropped_nor_read(outbox, db):
    """It has the name that a new shard would use."""
    half_delivered(outbox, db)
    other = f"outbox_{db.name}_orders_2"
    db.sql("select pg_create_logical_replication_slot(%s, 'pgoutput')", other)
    at = db.one("select confirmed_flush_lsn from pg_replication_slots where slot_name = %s", other)
    of_shards(outbox, "messages", 3, db=db, path="out/later.jsonl")
    r = outbox.run("run", "--once", check=None)
    assert r.returncode != 0 and f"slot {other} exists and is not recorded" in r.err
    assert db.one("select confirmed_flush_lsn from pg_replication_slots where slot_name = %s", other) == at
    db.sql("select pg_drop_replication_slot(%s)", other)
    outbox.run("run", "--once")
    assert sorted(ns(outbox)) == list(range(1, 1001))


def test_shards_changed_as_the_role_of_the_relay(outbox, db):
    """No superuser: a member of outbox_relay that may replicate."""
    role = f"relay_{db.name}"
    half_delivered(outbox, db)
    db.sql(f"create role {role} login replication; grant outbox_relay to {role}")
    of_shards(outbox, "messages", 3, db=db, path="out/later.jsonl", dsn=db.dsn_of(role))
    outbox.run("run", "--once")
    assert sorted(ns(outbox)) == list(range(1, 1001))
    assert "may not" not in outbox.run("check", check=None).out


def test_a_lost_slot_is_never_passed_by_a_change_of_shards(outbox, db):
    c = half_delivered(outbox, db)
    for name in slots(db):
        wait_until(lambda n=name: db.one("select not active from pg_replication_slots where slot_name = %s", n), 10)
        db.sql("select pg_drop_replication_slot(%s)", name)
    of_shards(outbox, "messages", 1, db=db, path="out/later.jsonl")
    r = outbox.run("run", "--once", check=None)
    assert r.returncode != 0 and "are lost" in r.err and "--accept-loss" in r.err
    assert slots(db) == [] and sorted(ns(outbox)) == list(range(1, 501))
    outbox.run("run", "--once", "--accept-loss")
    Messages.write(c, 1001, 1010)
    outbox.run("run", "--once")
    assert sorted(ns(outbox)) == [*range(1, 501), *range(1001, 1011)]


def test_a_slot_without_a_record_is_read_not_replaced(outbox, db):
    """First start is a recorded fact: without the record a slot of ours is read from where it is."""
    half_delivered(outbox, db, shards=1)
    db.sql("delete from outbox.cursor")
    shown = outbox.run("check", check=None).out
    assert f"slot {slot_of(db)} exists, and no record of its creation" in shown and "outbox run" in shown, shown
    assert "no record of its creation" in outbox.json("status", "--json")[0]["finding"]
    r = outbox.run("run", "--once")
    assert "wal.adopt" in r.err
    assert sorted(set(ns(outbox))) == list(range(1, 1001))
    assert "no record" not in outbox.run("check", check=None).out
    assert outbox.json("status", "--json")[0]["finding"] is None


def test_a_slot_that_was_being_created_is_used(outbox, db):
    """A crash after the slot was created and before its position was recorded."""
    wal_config(outbox, db, source=Messages.source)
    outbox.run("run", "--once")
    Messages.write(db.connect().cursor(), 1, 10)
    db.sql("update outbox.cursor set lsn = null, wal = null, slot_state = 'creating'")
    outbox.run("run", "--once")
    assert sorted(set(ns(outbox))) == list(range(1, 11))


@pytest.mark.parametrize("kind", ["messages", "native"])
def test_a_slot_that_another_program_moved(outbox, db, kind):
    c = db.connect().cursor()
    write = (lambda a, b: Messages.write(c, a, b)) if kind == "messages" else (
        lambda a, b: [emit(c, "k", n) for n in range(a, b + 1)])
    wal_config(outbox, db, source=Messages.source if kind == "messages" else "")
    outbox.run("run", "--once")
    write(1, 3)
    wait_until(lambda: db.one("select not active from pg_replication_slots where slot_name = %s", slot_of(db)), 10)
    db.sql("select pg_replication_slot_advance(%s, pg_current_wal_insert_lsn())", slot_of(db))
    shown = outbox.run("check", check=None).out
    assert "is behind its confirmed position" in shown, shown
    assert "--accept-loss" in shown if kind == "messages" else "the table is read" in shown
    assert "is behind its confirmed position" in outbox.run("status").out
    r = outbox.run("run", "--once", check=None)
    if kind == "messages":
        assert r.returncode != 0 and "moved by another program" in r.err
    else:
        assert sorted(ns(outbox)) == [1, 2, 3]


def test_several_shards_of_a_table_with_state_are_refused_unchanged(outbox, db):
    db.sql("create table jobs (id uuid primary key default gen_random_uuid(), no bigserial, type text, key text, payload json, "
           "done timestamptz)")
    source = "mapping: {table: jobs, id: id, order: no, type: type, aggregate_id: key, payload: payload, done: done}"
    wal_config(outbox, db, source=source)
    outbox.run("run", "--once")
    before = db.sql("select shard, shards, lsn, wal, slot, slot_state, epoch from outbox.cursor"), slots(db)
    wal_config(outbox, db, source=source, more="    shards: 2", apply=False)
    r = outbox.run("run", "--once", check=None)
    assert r.returncode != 0 and "set `shards: 1`" in r.err, r.err
    assert (db.sql("select shard, shards, lsn, wal, slot, slot_state, epoch from outbox.cursor"), slots(db)) == before


def test_loss_is_reported_from_what_is_settled(outbox, db):
    """The publication is changed while events are in flight: they are part of the range."""
    Table.prepare(db)
    wal_config(outbox, db, source=Table.source)
    relay = outbox.start("run")
    on_stream(relay)
    c = db.connect().cursor()
    Table.write(c, 1, 10)
    wait_until(lambda: len(ns(outbox)) == 10, 20, "delivered")
    written = db.one("select pg_current_wal_insert_lsn()")
    wait_until(lambda: db.one("select lsn >= %s from outbox.cursor", written), 20, "settled")
    with Outage(outbox):
        Table.write(c, 11, 20)
        wait_until(lambda: "sink.down" in relay.err, 20, "down")
        settled = db.one("select lsn from outbox.cursor")
        c.execute("create table filler as select repeat('x', 1000) from generate_series(1, 100)")
        beat = db.one("select beat from outbox.cursor")
        wait_until(lambda: db.one("select beat > %s + 2 from outbox.cursor", beat), 20, "the publication was seen to be well")
        c.execute("alter publication outbox_orders drop table events_out")
        c.execute("alter publication outbox_orders add table events_out")
        wait_until(lambda: "are lost" in relay.err, 20, "reported")
    assert f"from LSN {settled} to" in relay.err
    assert relay.stop() == 0


def test_reload_before_the_stream(outbox, db):
    """The likely way there: a start with a broken sink, the mistake corrected, SIGHUP."""
    wal_config(outbox, db)
    c = db.connect().cursor()
    for n in range(501):
        emit(c, f"k{n % 20}", n)
    with Outage(outbox):
        relay = outbox.start("run")
        wait_until(lambda: "sink.down" in relay.err, 20, "down")
        wait_until(lambda: slots(db) == [slot_of(db)], 20, "the slot is there")
        for n in range(501, 1001):
            emit(c, f"k{n % 20}", n)
        for times in (1, 2):
            relay.signal(signal.SIGHUP)
            wait_until(lambda t=times: relay.err.count("relay.reload") >= t, 20, "reloaded")
    wait_until(lambda: set(ns(outbox)) == set(range(1001)), 20, "everything is delivered")
    on_stream(relay)
    emit(c, "k1", 1001)
    wait_until(lambda: 1001 in ns(outbox), 20, "the stream is read")
    assert relay.stop() == 0
    assert outbox.json("status", "--json")[0]["pending"] <= 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_pipeline_that_does_not_read_the_native_table_holds_nothing_of_it(outbox, db, kind):
    """Its cursor stays at 0 in outbox.cursor: neither retirement nor pressure counts it."""
    two = """
pipelines:
  orders: {{source: {{type: postgres, dsn: "{dsn}"}}, sink: {{type: file, path: out/native.jsonl}}}}
  other: {{source: {{type: postgres, dsn: "{dsn}", mode: wal, {source}}}, sink: {{type: file, path: out/other.jsonl}}}}
"""
    k = KINDS[kind]
    config(outbox, db)
    k.prepare(db)
    outbox.write("outbox.yaml", two.format(dsn=db.dsn, source=k.source))
    small_partitions(db, 100)
    db.sql("update outbox.meta set value = '50' where name = 'soft_limit'")
    outbox.run("run", "--once")
    c = db.connect().cursor()
    k.write(c, 1, 3)
    for n in range(250):
        emit(c, "k", n)
    assert db.one("select pressure from outbox.pressure()") == 1 and not db.one("select outbox.admit()")
    relay = outbox.start("run")
    first = db.one("select min(lo) from outbox.part")
    wait_until(lambda: db.one("select pressure from outbox.pressure()") < 1 and db.one("select outbox.admit()"), 20, "pressure falls")
    assert db.one("select pos from outbox.cursor where pipeline = 'other'") == 0
    wait_until(lambda: db.one("select min(lo) from outbox.part where emptied_at is null") > first, 30, "retired")
    assert relay.stop() == 0


def test_mode_log_leaves_no_position_in_the_stream(outbox, db):
    """From wal to log and back in the middle of a backlog: the cursor of mode log sees transactions that it has not read. The
    stream must not go on at its old position and skip them."""
    config(outbox, db, source="mode: wal")
    c = db.connect().cursor()
    outbox.run("run", "--once")
    c.execute("select outbox.emit(type => 't', aggregate_type => 'a', aggregate_id => 'k' || n % 20, payload => json_build_object("
              "'n', n)) from generate_series(1, 3000) n")
    outbox.write("outbox.yaml", f"""
pipelines:
  orders:
    window: 100
    source: {{type: postgres, dsn: "{db.dsn}", mode: log, page: 100}}
    sink: {{type: "null", latency_us: 1000000}}
""")
    relay = outbox.start("run")
    wait_until(lambda: 0 < db.one("select pos from outbox.cursor"), 20, "mode log has settled a part")
    relay.kill()
    settled = db.one("select count(*)::int from outbox.event where seq <= (select pos from outbox.cursor)")
    assert settled < 3000
    config(outbox, db, source="mode: wal", apply=False)
    outbox.run("run", "--once")
    assert set(range(settled + 1, 3001)) <= set(ns(outbox))
