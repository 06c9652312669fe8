# SPDX-License-Identifier: Apache-2.0
"""test_postgres_log - the relay as a process, from PostgreSQL to a file, with everything that goes wrong around it."""

import json
import os
import signal
import threading
import time

import pytest

from helpers import SLOW, memory_mb, read_jsonl, wait_until
from pg import ONE, ROWS, Writer, all_there, check_ledger, config, delivered, emit, insert, rows_table


@pytest.fixture
def cur(db):
    return lambda: db.connect().cursor()


def test_order_bytes_and_rollback(outbox, db):
    config(outbox, db)
    relay = outbox.start("run")
    writer = Writer(db, [f"k{i}" for i in range(5)])
    writer.start()
    wait_until(lambda: writer.total() > 500, 30, "events written")
    writer.stop()
    out = outbox.path("out/events.jsonl")
    wait_until(all_there(writer, out), 20, "all delivered")
    assert relay.stop() == 0
    assert check_ledger(writer, delivered(out), False) == 0
    assert '"value":{"key": "k1", "n": 1}' in out.read_text().splitlines()[0], "the payload's own bytes"
    assert db.one("select sum(n_tup_upd + n_tup_del)::int from pg_stat_user_tables where relname like 'event_%'") == 0


def test_kill_9_again_and_again(outbox, db):
    config(outbox, db)
    writer = Writer(db, [f"k{i}" for i in range(5)], pause=0.001)
    writer.start()
    out = outbox.path("out/events.jsonl")
    for _ in range(5):
        relay = outbox.start("run")
        before = len(delivered(out))
        wait_until(lambda: len(delivered(out)) > before + 50, 30, "progress")
        relay.kill()
    writer.stop()
    relay = outbox.start("run")
    wait_until(all_there(writer, out), 20, "all delivered")
    assert relay.stop() == 0
    check_ledger(writer, delivered(out), True)


def test_a_clean_stop_repeats_nothing(outbox, db):
    config(outbox, db)
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


@pytest.mark.parametrize("mode", ["log", "rows"])
def test_a_notify_ends_the_wait(outbox, db, mode):
    """Idle, the relay looks after 2 ms, 4 ms, … 4 s. A NOTIFY in the writer's own transaction makes it look at once."""
    source = 'poll_max: 60s, wake: notify, channel: "The \\"Bell\\""'
    if mode == "rows":
        rows_table(db)
    config(outbox, db, source=f"{source}, {ROWS}" if mode == "rows" else source)
    relay = outbox.start("run")
    looked = lambda: db.one("select extract(epoch from max(state_change))::float8 from pg_stat_activity where application_name = 'outbox reader' "
                            "and datname = current_database()")
    wait_until(looked, 30, "it reads")
    last, gap = looked(), 0.0

    def waits_long():
        nonlocal last, gap
        now = looked()
        last, gap = now, now - last if now != last else gap
        return gap > 1.5

    wait_until(waits_long, 60, "it looks rarely")  # and now not for twice as long
    con = db.connect(autocommit=False)
    cur = con.cursor()
    (insert if mode == "rows" else emit)(cur, "k", 1)
    cur.execute('notify "The ""Bell"""')
    con.commit()
    at = time.time()
    wait_until(lambda: len(delivered(outbox.path("out/events.jsonl"))) == 1, 30, "delivered")
    assert time.time() - at < 1.5, "it was not woken"
    assert relay.stop() == 0


def test_an_outage_of_the_sink_costs_only_time(outbox, db):
    config(outbox, db)
    relay = outbox.start("run")
    writer = Writer(db, ["a", "b", "c"], pause=0.001)
    writer.start()
    out = outbox.path("out/events.jsonl")
    wait_until(lambda: len(delivered(out)) > 50, 20, "progress")
    os.rename(outbox.path("out"), outbox.path("away"))
    outbox.write("out", "not a folder")
    wait_until(lambda: "sink.down" in relay.err, 20, "the sink is down")
    at = writer.total()
    wait_until(lambda: writer.total() > at + 300, 20, "writers go on")
    os.remove(outbox.path("out"))
    os.rename(outbox.path("away"), outbox.path("out"))
    wait_until(lambda: "sink.up" in relay.err, 30, "the sink is back")
    writer.stop()
    files = lambda: sorted(outbox.path("out").glob("events.jsonl*"), key=lambda p: p.stat().st_mtime)
    wait_until(lambda: all_there(writer, *files())(), 30, "all delivered")
    assert relay.stop() == 0
    check_ledger(writer, delivered(*files()), True)
    status = outbox.json("status", "--json")[0]
    assert status["dead"] == 0 and status["parked"] == 0 and status["failed"] == 0


def test_poison_is_dead_with_its_reason_and_stops_nobody(outbox, db, cur):
    config(outbox, db, more="    routes: [{topic: t, envelope: cloudevents-structured}]")
    c = cur()
    emit(c, "good", 1)
    c.execute("insert into outbox.event (type, aggregate_id, payload) values ('x', 'bad', '{not json')")
    emit(c, "bad", 3)
    emit(c, "good", 4)
    relay = outbox.start("run")
    out = outbox.path("out/events.jsonl")
    wait_until(lambda: len(read_jsonl(out)) == 3, 10, "the neighbours are delivered")
    dead = wait_until(lambda: outbox.json("dead", "list", "--json"), 10, "one is dead")
    assert len(dead) == 1
    assert dead[0]["pipeline"] == "orders" and dead[0]["key"] == "bad"
    assert "JSON" in dead[0]["error"], dead[0]
    relay.kill()
    outbox.run("run", "--once")
    assert len(outbox.json("dead", "list", "--json")) == 1
    assert len(read_jsonl(out)) <= 6
    shown = outbox.run("dead", "show", dead[0]["id"]).out
    assert "{not json" in shown
    outbox.run("dead", "discard", dead[0]["id"], "--yes")
    assert outbox.json("dead", "list", "--json") == []
    states = {e["key"]: e["state"] for e in outbox.json("events", "--json")}
    assert states["good"] == "published"


def test_on_dead_park_holds_the_key_until_a_person_speaks(outbox, db, cur):
    config(outbox, db, more="    on_dead: park\n    routes: [{topic: t, envelope: cloudevents-structured}]")
    c = cur()
    c.execute("insert into outbox.event (type, aggregate_id, payload) values ('x', 'bad', '{')")
    for n in range(2, 12):
        emit(c, "bad", n)
    emit(c, "good", 20)
    outbox.run("run", "--once")
    out = outbox.path("out/events.jsonl")
    assert [m["key"] for m in read_jsonl(out)] == ["good"]
    relay = outbox.start("run")
    for n in range(12, 15):
        emit(c, "bad", n)
    emit(c, "good", 21)
    wait_until(lambda: len(read_jsonl(out)) == 2, 10, "the other key flows")
    wait_until(lambda: outbox.json("status", "--json")[0]["parked"] == 13, 10, "the key waits")
    dead = outbox.json("dead", "list", "--json")
    outbox.run("dead", "discard", dead[0]["id"], "--yes")
    wait_until(lambda: len(read_jsonl(out)) == 15, 20, "released")
    assert [m["value"]["data"]["n"] for m in read_jsonl(out)[2:]] == list(range(2, 15))
    wait_until(lambda: outbox.json("status", "--json")[0]["parked"] == 0, 10, "nothing waits")
    assert relay.stop() == 0


def test_a_retried_event_is_delivered_when_its_fault_is_gone(outbox, db, cur):
    config(outbox, db, more="    routes: [{topic: t, envelope: cloudevents-structured}]")
    c = cur()
    c.execute("insert into outbox.event (type, aggregate_id, payload) values ('x', 'bad', '{\"n\": 1')")
    outbox.run("run", "--once")
    (dead,) = outbox.json("dead", "list", "--json")
    config(outbox, db, more="    routes: [{topic: t, envelope: none}]")
    c.execute("update outbox.event set payload_kind = 't' where seq = 1")
    assert "1" in outbox.run("dead", "retry", dead["id"], "--yes").out
    outbox.run("run", "--once")
    assert [m["id"] for m in read_jsonl(outbox.path("out/events.jsonl"))] == [dead["id"]]
    assert outbox.json("dead", "list", "--json") == []


def test_hup_takes_new_routes_and_rereads_nothing_that_is_settled(outbox, db, cur):
    config(outbox, db, more="    routes: [{topic: first}]")
    relay = outbox.start("run")
    c = cur()
    out = outbox.path("out/events.jsonl")
    emit(c, "a", 1)
    wait_until(lambda: len(read_jsonl(out)) == 1, 10, "delivered")
    config(outbox, db, more="    routes: [{topic: second}]", apply=False)
    relay.signal(signal.SIGHUP)
    wait_until(lambda: "relay.reload" in relay.err and "ok=true" in relay.err, 10, "reloaded")
    emit(c, "a", 2)
    wait_until(lambda: len(read_jsonl(out)) == 2, 10, "delivered")
    assert [m["topic"] for m in read_jsonl(out)] == ["first", "second"]
    assert relay.stop() == 0


def test_a_pipeline_that_cannot_start_does_not_stop_the_others(outbox, db):
    outbox.path("out").mkdir()
    outbox.write(
        "outbox.yaml",
        f"""
pipelines:
  fine: {{source: {{type: postgres, dsn: "{db.dsn}"}}, sink: {{type: file, path: out/fine.jsonl}}, envelope: none}}
  late: {{source: {{type: postgres, dsn: "{db.dsn}x"}}, sink: {{type: file, path: out/late.jsonl}}, envelope: none}}
""",
    )
    outbox.run("schema", "--apply", "-p", "fine")
    relay = outbox.start("run")
    emit(db.connect().cursor(), "a", 1)
    wait_until(lambda: len(read_jsonl(outbox.path("out/fine.jsonl"))) == 1, 10, "the fine one works")
    wait_until(lambda: f'"{db.name}x\\" does not exist' in relay.err, 10, "the other one says what is wrong")
    db.sql(f"create database {db.name}x")
    try:
        wait_until(lambda: "no schema outbox" in relay.err, 20, "and then what is missing")
        outbox.run("schema", "--apply", "-p", "late")
        c = db.server.connect(f"{db.name}x")
        emit(c.cursor(), "b", 1)
        c.close()
        wait_until(lambda: len(read_jsonl(outbox.path("out/late.jsonl"))) == 1, 30, "it starts by itself")
        assert relay.err.count("source.open") <= 4, "said once, not a storm"
        assert relay.stop() == 0
    finally:
        db.sql(f"drop database {db.name}x with (force)")


def test_two_pipelines_read_one_outbox(outbox, db):
    outbox.path("out").mkdir()
    outbox.write(
        "outbox.yaml",
        f"""
pipelines:
  one: {{source: {{type: postgres, dsn: "{db.dsn}"}}, sink: {{type: file, path: out/one.jsonl}}, envelope: none}}
  two: {{source: {{type: postgres, dsn: "{db.dsn}"}}, sink: {{type: file, path: out/two.jsonl}}, envelope: none}}
""",
    )
    outbox.run("schema", "--apply", "-p", "one")
    c = db.connect().cursor()
    for n in range(100):
        emit(c, f"k{n % 3}", n)
    outbox.run("run", "--once")
    for name in ("one", "two"):
        assert [m["value"]["n"] for m in read_jsonl(outbox.path(f"out/{name}.jsonl"))] == list(range(100))


def test_pause_and_resume(outbox, db, cur):
    config(outbox, db)
    relay = outbox.start("run")
    out = outbox.path("out/events.jsonl")
    c = cur()
    emit(c, "a", 1)
    wait_until(lambda: len(read_jsonl(out)) == 1, 10, "delivered")
    outbox.run("pause")
    wait_until(lambda: "relay.paused" in relay.err, 10, "paused")
    emit(c, "a", 2)
    wait_until(lambda: outbox.json("status", "--json")[0]["pending"] >= 1, 10, "pending")
    wait_until(lambda: outbox.json("status", "--json")[0]["state"] == "paused", 10, "shown")
    assert len(read_jsonl(out)) == 1
    outbox.run("resume")
    wait_until(lambda: len(read_jsonl(out)) == 2, 10, "goes on")
    assert relay.stop() == 0


def test_shards_keep_the_order_of_each_key_and_may_be_changed(outbox, db, cur):
    config(outbox, db, more="    shards: 4")
    c = cur()
    for n in range(400):
        emit(c, f"k{n % 10}", n)
    for shards in (4, 3, 1):
        config(outbox, db, path=f"out/s{shards}.jsonl", more=f"    shards: {shards}", apply=False)
        for n in range(100):
            emit(c, f"k{n % 10}", 1000 * shards + n)
        outbox.run("run", "--once", timeout=60)
    seen = delivered(*sorted(outbox.path("out").glob("s*.jsonl*"), reverse=True))
    assert len(seen) == len({v["n"] for v in seen}) == 700
    files = {s: delivered(*outbox.path("out").glob(f"s{s}.jsonl*")) for s in (4, 3, 1)}
    for values in files.values():
        for key in {v["key"] for v in values}:
            ns = [v["n"] for v in values if v["key"] == key]
            assert ns == sorted(ns), f"{key} out of order"


@pytest.mark.slow
@pytest.mark.skipif(SLOW > 1, reason="a sanitizer's memory is not the program's")
def test_memory_does_not_follow_the_backlog(outbox, db):
    config(outbox, db)
    db.sql(
        """insert into outbox.event (type, aggregate_id, payload)
           select 'x', 'k' || i % 100, convert_to(json_build_object('n', i, 'x', repeat('y', 250))::text, 'UTF8')
           from generate_series(1, 200000) i"""
    )
    relay = outbox.start("run")
    out = outbox.path("out/events.jsonl")

    wait_until(lambda: out.exists() and out.read_bytes().count(b"\n") >= 200000, 60, "drained", every=0.2)
    assert memory_mb(relay, "VmHWM") <= 32
    assert relay.stop() == 0


@pytest.mark.parametrize(
    "name, columns",
    [
        ("empty", {"payload": b""}),
        ("NUL bytes", {"payload": b"a\0b\0"}),
        ("invalid UTF-8", {"payload": b"\xff\xfe\x80"}),
        ("16 MB", {"payload": b"x" * (16 << 20)}),
        ("invalid JSON", {"payload": b"{oops", "payload_kind": "j"}),
        ("no payload", {"payload": None}),
        ("key of 64 KB", {"aggregate_id": "k" * 65536}),
        ("topic of 64 KB", {"topic": "t" * 65536}),
    ],
)
def test_hostile_events_are_delivered_or_dead_with_a_reason(outbox, db, cur, name, columns):
    config(outbox, db)
    c = cur()
    emit(c, "before", 1)
    row = {"type": "x", "aggregate_id": "odd", "payload": b"{}", "payload_kind": "b", **columns}
    marks = ", ".join(f"%({k})s" for k in row)
    c.execute(f"insert into outbox.event ({', '.join(row)}) values ({marks})", row)
    emit(c, "after", 3)
    outbox.run("run", "--once", timeout=60)
    lines = read_jsonl(outbox.path("out/events.jsonl"))
    dead = outbox.json("dead", "list", "--json")
    keys = [m["key"] for m in lines]
    assert "before" in keys and "after" in keys
    assert len(lines) + len(dead) == 3, name
    for d in dead:
        assert d["error"], name
    if "KB" in name:
        assert len(dead) == 1


def test_emit_tail_and_events_from_the_command_line(outbox, db):
    config(outbox, db)
    lines = "".join(json.dumps({"type": "t", "aggregate_id": "k", "payload": {"n": n}}) + "\n" for n in range(5))
    ids = outbox.run("emit", "--jsonl", "-", stdin=lines).out.split()
    assert len(ids) == len(set(ids)) == 5
    got = outbox.json("events", "--json")
    assert [e["id"] for e in got] == ids
    assert {e["state"] for e in got} == {"pending"}
    bad = outbox.run("emit", "--type", "t", "--payload", "{oops", check=None)
    assert bad.returncode != 0 and "JSON" in bad.err
    assert len(outbox.json("events", "--json")) == 5, "nothing of a refused event is left"


def test_pressure_and_admit(outbox, db):
    """What an application asks before it writes: by how much the pipeline that is furthest behind fills the outbox."""
    config(outbox, db)
    db.sql("update outbox.meta set value = '100' where name = 'soft_limit'")
    c, last = db.connect().cursor(), 0
    for n, pressure in ((0, 0.0), (25, 0.25), (99, 0.99), (100, 1.0), (250, 1.0)):
        for i in range(last, n):
            emit(c, "k", i)
        last = n
        assert db.sql("select pressure, pending from outbox.pressure()") == [(pressure, n)]
        assert db.one("select outbox.admit()") == (n < 100)
    since = time.monotonic()
    assert db.one("select outbox.admit('300 ms')") is False
    assert time.monotonic() - since >= 0.3, "it waits as long as it is told to"
    admitted = []
    waiting = threading.Thread(target=lambda: admitted.append(db.one("select outbox.admit('60 s')")), daemon=True)
    waiting.start()
    wait_until(lambda: db.one("select count(*)::int from pg_stat_activity where query like 'select outbox.admit(%%60 s%%' and "
                              "state = 'active' and datname = current_database()") == 1, 20, "it waits")
    assert not admitted
    relay = outbox.start("run")
    wait_until(lambda: admitted == [True], 20, "let in when the relay has drained it")
    wait_until(lambda: db.sql("select pressure, pending from outbox.pressure()") == [(0.0, 0)], 20, "empty again")
    assert relay.stop() == 0
    emit(c, "k", last)
    assert db.sql("select pressure, pending from outbox.pressure()") == [(0.01, 1)]
