# SPDX-License-Identifier: Apache-2.0
"""test_postgres_wal - mode wal end to end: the native table through logical replication to a file."""

import json
import re
import signal

import pytest

from helpers import read_jsonl, wait_until
from pg import Writer, all_there, check_ledger, config, delivered, emit
from wal import on_stream, slot_of, slots, wal_config


def test_order_bytes_and_rollback(outbox, db):
    wal_config(outbox, db)
    c = db.connect().cursor()
    emit(c, "early", 0)  # before there is a slot
    relay = outbox.start("run")
    on_stream(relay)
    writer = Writer(db, [f"k{i}" for i in range(5)])
    writer.start()
    wait_until(lambda: writer.total() > 500, 30, "events written")
    writer.stop()
    out = outbox.path("out/events.jsonl")
    wait_until(all_there(writer, out), 20, "all delivered")
    assert relay.stop() == 0
    seen = delivered(out)
    assert seen[0] == {"key": "early", "n": 0}
    assert check_ledger(writer, seen[1:], False) == 0
    assert '"value":{"key": "k1", "n": 1}' in out.read_text().splitlines()[1], "the payload's own bytes"
    assert db.one("select sum(n_tup_upd + n_tup_del)::int from pg_stat_user_tables where relname like 'event_%'") == 0


def test_all_fields_and_kinds(outbox, db):
    """The same row gives the same message by table and by stream."""
    wal_config(outbox, db)
    config(outbox, db, name="log.yaml", path="out/log.jsonl", apply=False)
    outbox.path("log.yaml").write_text(outbox.path("log.yaml").read_text().replace("orders:", "copy:"))
    relay = outbox.start("run")
    on_stream(relay)
    c = db.connect().cursor()
    c.execute(
        "select outbox.emit(type => 't.full', payload => %s::json, aggregate_type => 'a', aggregate_id => 'i', key => 'k', "
        "tenant => 'ten', topic => 'top', headers => '{\"h\": 1}', metadata => '{\"m\": \"x\"}', entity_version => -7, "
        "schema_version => 3, max_attempts => 4)",
        (json.dumps({"ü": "\U0001f600", "big": "y" * 100000}),),
    )
    c.execute("select outbox.emit('t.bytes', %s::bytea, aggregate_id => 'i')", (b"\x00\xff\x01",))
    c.execute("select outbox.emit('t.text', %s::bytea, aggregate_id => 'i', kind => 'text')", ("snow ☃".encode(),))
    c.execute("select outbox.emit('t.none', null::json, aggregate_id => 'i')")
    out = outbox.path("out/events.jsonl")
    wait_until(lambda: len(read_jsonl(out)) == 4, 10, "delivered")
    assert relay.stop() == 0
    outbox.run("run", "--once", "-c", "log.yaml")
    assert read_jsonl(out) == read_jsonl(outbox.path("out/log.jsonl"))
    assert len(read_jsonl(out)[0]["value"]["big"]) == 100000


def test_a_clean_stop_repeats_nothing(outbox, db):
    wal_config(outbox, db)
    writer = Writer(db, ["a", "b", "c"], pause=0.001)
    writer.start()
    out = outbox.path("out/events.jsonl")
    for _ in range(4):
        relay = outbox.start("run")
        before = len(delivered(out))
        wait_until(lambda: len(delivered(out)) > before + 50, 30, "progress")
        assert relay.stop() == 0
    writer.stop()
    outbox.run("run", "--once")
    assert check_ledger(writer, delivered(out), False) == 0


def test_kill_9_again_and_again(outbox, db):
    wal_config(outbox, db)
    writer = Writer(db, [f"k{i}" for i in range(5)], pause=0.001)
    writer.start()
    out = outbox.path("out/events.jsonl")
    for _ in range(6):
        relay = outbox.start("run")
        before = len(delivered(out))
        wait_until(lambda: len(delivered(out)) > before + 50, 30, "progress")
        relay.kill()
    writer.stop()
    relay = outbox.start("run")
    wait_until(lambda: "relay.start" in relay.err, 20, "started")
    wait_until(all_there(writer, out), 20, "all delivered")
    assert relay.stop() == 0
    check_ledger(writer, delivered(out), True)
    assert len(slots(db)) == 1


def test_an_idle_outbox_does_not_hold_the_wal(outbox, db):
    """Nothing of ours is written, but others write: the slot moves on, without heartbeat rows."""
    wal_config(outbox, db)
    relay = outbox.start("run")
    on_stream(relay)
    db.sql("create table other (t text)")
    for _ in range(2):
        at = db.one("select pg_current_wal_insert_lsn()")
        db.sql("insert into other select repeat('x', 1000) from generate_series(1, 1000)")
        wait_until(
            lambda: db.one("select confirmed_flush_lsn > %s::pg_lsn from pg_replication_slots where slot_name = %s", at, slot_of(db)),
            20,
            "the slot moves",
        )
    assert relay.stop() == 0


def test_a_stand_by_takes_over(outbox, db):
    wal_config(outbox, db)
    first = outbox.start("run")
    on_stream(first)
    second = outbox.start("run")
    wait_until(lambda: "relay.standby" in second.err, 10, "the second stands by")
    writer = Writer(db, ["a", "b"], pause=0.001)
    writer.start()
    out = outbox.path("out/events.jsonl")
    wait_until(lambda: len(delivered(out)) > 50, 20, "progress")
    first.kill()
    at = len(delivered(out))
    wait_until(lambda: len(delivered(out)) > at + 50, 20, "taken over")
    writer.stop()
    wait_until(all_there(writer, out), 20, "all delivered")
    assert second.stop() == 0
    check_ledger(writer, delivered(out), True)


@pytest.mark.slow
def test_a_hung_owner_is_fenced_and_its_slot_taken(outbox, db):
    """SIGSTOP: its walsender and its session live on. The stand-by ends both."""
    wal_config(outbox, db)
    first = outbox.start("run")
    on_stream(first)
    second = outbox.start("run")
    wait_until(lambda: "relay.standby" in second.err, 10, "the second stands by")
    c = db.connect().cursor()
    emit(c, "a", 1)
    out = outbox.path("out/events.jsonl")
    wait_until(lambda: len(read_jsonl(out)) == 1, 10, "delivered")

    def sender():
        c.execute("select active_pid from pg_replication_slots where database = current_database() and active")
        row = c.fetchone()
        return row and row[0]

    hung = sender()
    first.signal(signal.SIGSTOP)
    try:
        emit(c, "a", 2)
        wait_until(lambda: 2 in {m["value"]["n"] for m in read_jsonl(out)}, 40, "taken over")
        assert wait_until(sender, 20, "the slot is in use") != hung, "the stopped process still has it"
    finally:
        first.signal(signal.SIGCONT)
    wait_until(lambda: "relay.fenced" in first.err, 10, "fenced")
    emit(c, "a", 3)
    wait_until(lambda: 3 in {m["value"]["n"] for m in read_jsonl(out)}, 10, "delivered")
    assert [m["value"]["n"] for m in read_jsonl(out)].count(3) == 1
    assert first.stop() == 0
    assert second.stop() == 0


@pytest.mark.slow
def test_shards_share_the_keys_and_may_be_changed(outbox, db):
    """A slot for each shard; those of shards that are no more are dropped."""
    c = db.connect().cursor()
    files = {}
    for shards in (3, 2, 1):
        wal_config(outbox, db, path=f"out/s{shards}.jsonl", more=f"    shards: {shards}")
        relay = outbox.start("run")
        on_stream(relay, shards)
        for n in range(100):
            emit(c, f"k{n % 10}", 1000 * shards + n)
        files[shards] = lambda s=shards: delivered(*outbox.path("out").glob(f"s{s}.jsonl*"))
        want = {1000 * shards + n for n in range(100)}
        wait_until(lambda s=shards, w=want: {v["n"] for v in files[s]()} >= w, 20, "delivered")
        assert relay.stop() == 0
        wait_until(lambda s=shards: len(slots(db)) == s, 10, "a slot for each")
    first = {}  # what the table gave again was settled behind the last anchor
    for shards in (3, 2, 1):
        for v in files[shards]():
            ns = first.setdefault(v["key"], [])
            if v["n"] not in ns:
                ns.append(v["n"])
    for key, ns in first.items():
        assert ns == [1000 * s + n for s in (3, 2, 1) for n in range(100) if f"k{n % 10}" == key], f"{key} out of order"


def test_slots_of_another_pipeline_are_left_alone(outbox, db):
    """Names that begin as ours do, or that `_` of a pattern would match: never dropped, and `check` does not advise it."""
    others = [f"outbox_{db.name}_orders_eu_0", f"outbox_{db.name}xorders_1", "events_2", "events_7"]
    made = f"outbox_{db.name}_orders_9"  # this one is ours, of a shard that is no more
    for name in (*others, made):
        db.sql("select pg_create_logical_replication_slot(%s, 'pgoutput')", name)
    wal_config(outbox, db)

    def advice(source):
        config(outbox, db, source=source, apply=False)
        return re.findall(r"pg_drop_replication_slot\('(\w+)'\)", outbox.run("check", check=None).out)

    for source in ("mode: log", "mode: wal", "mode: wal, wal_budget: 1"):
        assert set(advice(source)) <= {made}, source
    assert advice("mode: log, slot: events") == [] and advice("mode: wal, wal_budget: 1, slot: events") == []
    for mode in ("log", "wal"):  # not a name at all: nothing can be said
        assert advice(f"mode: {mode}, slot: No-Name") == []
    assert "cannot be the name of a slot" in outbox.run("check", check=None).out
    for shards, mine in ((1, ["events"]), (2, ["events_0", "events_1"]), (1, ["events"])):
        wal_config(outbox, db, source="slot: events", more=f"    shards: {shards}", apply=False)
        outbox.run("run", "--once")
        wait_until(lambda m=mine: slots(db) == sorted([*others, made, *m]), 10, "ours and nobody else's", every=0.1)
    wal_config(outbox, db, apply=False)
    assert advice("mode: wal") == [made], "it says so"
    outbox.run("run", "--once")  # a cursor of another slot: the table is read, a slot made, what is ours is tidied up
    wait_until(lambda: made not in slots(db), 10, "gone")
    assert set(others) < set(slots(db))


@pytest.mark.slow
def test_check_names_what_is_missing(outbox, db, own_postgres):
    wal_config(outbox, db)
    relay = outbox.start("run")
    on_stream(relay)
    shown = outbox.run("check", check=None).out
    for part in ("wal_level is logical", "may replicate", "publication outbox_orders has all inserts", f"slot {slot_of(db)} is reserved",
                 f"slot {slot_of(db)} is held by backend", "max_slot_wal_keep_size"):
        assert part in shown, shown
    assert relay.stop() == 0
    db.sql("alter publication outbox_orders set (publish = 'update')")
    assert "ALTER PUBLICATION outbox_orders SET (publish = 'insert'" in outbox.run("check", check=None).out
    config(outbox, db, source="mode: log", apply=False)
    left = f"pg_drop_replication_slot('{slot_of(db)}')"
    wait_until(lambda: left in outbox.run("check", check=None).out, 10, "a slot that another mode left behind")
    other = own_postgres(conf=["wal_level = replica", "max_replication_slots = 0"])
    cold = other.database()
    cold.sql("create role weak login")
    wal_config(outbox, cold)
    wal_config(outbox, cold, dsn=cold.dsn_of("weak"), apply=False)
    cold.sql("grant outbox_relay to weak")
    shown = outbox.run("check", check=None).out
    for part in ("ALTER SYSTEM SET wal_level = logical", "max_replication_slots are taken", "ALTER ROLE weak REPLICATION",
                 "CREATE PUBLICATION outbox_orders FOR TABLE"):
        assert part in shown, shown
    relay = outbox.start("run")
    wait_until(lambda: "relay.start" in relay.err or "source.own" in relay.err, 20, "it says something")
    assert relay.stop() == 0
