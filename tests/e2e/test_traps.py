# SPDX-License-Identifier: Apache-2.0
"""Traps that other relays fell into (docs/traps.md), where no other test shows it."""

import json
import os
import signal
import time

import pytest

from helpers import BIN, SLOW, read_jsonl, stop_outside_a_transaction, wait_until

CONFIG = """
pipelines:
  shop:
    source: {type: sqlite, path: app.db}
    sink: {type: file, path: out/events.jsonl}
    envelope: none
    stuck_after: 1s
"""


def prepare(outbox, more="", config=CONFIG):
    outbox.path("out").mkdir(exist_ok=True)
    outbox.write("outbox.yaml", config + more)
    outbox.run("schema", "--apply")
    return outbox.sqlite("app.db")


def insert(db, key, n, payload=None, **columns):
    row = {"type": "t", "aggregate_id": key, "payload": json.dumps(payload or {"n": n}), **columns}
    marks = ", ".join("?" for _ in row)
    db.execute(f"insert into outbox_event({', '.join(row)}) values ({marks})", list(row.values()))


def values(outbox, key=None):
    lines = read_jsonl(outbox.path("out/events.jsonl"))
    return [line["value"]["n"] for line in lines if key is None or line["key"] == key]


def test_order_is_the_number_and_not_the_clock(outbox):
    """Trap 6: a writer whose clock runs behind does not come first."""
    db = prepare(outbox)
    for n in range(20):
        insert(db, "a", n, created_at=1_700_000_000_000 - n * 60_000)
    outbox.run("run", "--once")
    assert values(outbox) == list(range(20))


ENOUGH = 20000 * 100  # bytes: all of the events below


def test_repeats_after_a_crash_carry_the_same_id(outbox):
    """Trap 11: nothing recalls a message that was sent; its id tells that it is a repeat."""
    db = prepare(outbox)
    db.execute("begin")
    for n in range(20000):
        insert(db, f"k{n % 10}", n)
    db.execute("commit")
    ids = dict(db.execute("select seq - 1, id from outbox_event"))
    for _ in range(3):
        out = outbox.path("out/events.jsonl")
        had = out.stat().st_size if out.exists() else 0
        relay = outbox.start("run")
        wait_until(lambda: had >= ENOUGH or out.stat().st_size > had, 20, "progress", every=0.001)
        relay.kill()
    outbox.run("run", "--once", timeout=60)
    lines = read_jsonl(outbox.path("out/events.jsonl"))
    assert {line["value"]["n"] for line in lines} == set(range(20000))
    assert all(line["id"] == ids[line["value"]["n"]] for line in lines)


def test_a_stuck_sink_is_named(outbox):
    """Trap 48: a relay that does not move says so, and which stage it is; then it goes on."""
    db = prepare(outbox, config=CONFIG.replace("{type: file, path: out/events.jsonl}", "{type: stdout}"))
    for n in range(200):
        insert(db, "a", n, {"n": n, "fill": "x" * 5000})
    fifo = outbox.path("pipe")
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        relay = outbox.start(argv=["/bin/sh", "-c", f"exec '{BIN}' run >pipe"])
        named = lambda: [x for x in relay.err.splitlines() if 'stage="sink: no acknowledgement comes"' in x]
        wait_until(named, 20, "the watchdog speaks")
        assert len(named()) == 1 and "relay.stuck" in named()[0]
        got = b""

        def drained():
            nonlocal got
            try:
                got += os.read(reader, 1 << 20)
            except BlockingIOError:
                pass
            return got.count(b"\n") == 200

        wait_until(drained, 20, "all lines, once somebody reads")
        assert relay.stop() == 0
    finally:
        os.close(reader)


@pytest.mark.parametrize("what", ["no database", "a locked database", "no folder of the sink"])
def test_the_log_is_quiet_while_something_is_away(outbox, what):
    """Trap 53: an end that is away for a while does not fill the disk with log lines; and
    trap 56: when it is back everything goes on by itself."""
    db = prepare(outbox)
    if what == "no database":
        db.close()
        outbox.path("app.db").rename(outbox.path("app.db.away"))
        for rest in outbox.dir.glob("app.db-*"):
            rest.unlink()
    elif what == "a locked database":
        db.execute("begin exclusive")
    else:
        outbox.path("out").rmdir()
        insert(db, "a", 1)
    relay = outbox.start("run")
    wait_until(lambda: "error=" in relay.err, 20, "it says that something is wrong")
    until = time.monotonic() + 3
    while time.monotonic() < until:  # the time that passes is what is tested
        assert relay.alive
        time.sleep(0.1)
    lines = relay.err.splitlines()
    assert len(lines) < 25, "\n".join(lines)
    if what == "no database":
        outbox.path("app.db.away").rename(outbox.path("app.db"))
        db = outbox.sqlite("app.db")
        insert(db, "a", 1)
    elif what == "a locked database":
        db.execute("rollback")
        insert(db, "a", 1)
    else:
        outbox.path("out").mkdir()
    wait_until(lambda: values(outbox) == [1], 40, "it goes on by itself")
    assert relay.stop() == 0


ROUTE = """    routes: [{topic: "%s"}]
"""


def test_a_bulk_retry_keeps_the_order_of_each_key(outbox):
    """Traps 50 and 57: dead events can be listed, retried and discarded; those of a key come back
    in their order, before what was written later."""
    db = prepare(outbox, ROUTE % "${payload:/topic}")
    for n in range(40):
        insert(db, f"k{n % 4}", n)
    outbox.run("run", "--once", check=None)
    assert values(outbox) == []
    dead = outbox.json("dead", "list", "--json")
    assert len(dead) == 40 and all("topic" in d["error"] for d in dead)
    outbox.run("dead", "discard", "--key", "k3", "--yes")
    assert len(outbox.json("dead", "list", "--json")) == 30
    outbox.write("outbox.yaml", CONFIG)
    r = outbox.run("dead", "retry", "--all", "--dry-run")
    assert "30" in r.out + r.err
    assert len(outbox.json("dead", "list", "--json")) == 30
    outbox.run("dead", "retry", "--all", "--yes")
    for n in range(40, 43):
        insert(db, f"k{n % 4}", n)
    relay = outbox.start("run")
    wait_until(lambda: len(values(outbox)) == 33, 20, "all retried ones and the new ones")
    for key in range(3):
        want = [n for n in range(43) if n % 4 == key]
        assert values(outbox, f"k{key}") == want
    assert values(outbox, "k3") == []
    wait_until(lambda: outbox.json("status", "--json")[0]["dead"] == 0, 10, "nothing is dead")
    assert relay.stop() == 0


def test_schema_version_is_never_the_entity_version(outbox):
    """Trap 64: a newer event with an older schema is no old event."""
    shape = '    envelope: {template: {n: "${payload:/n}", e: "${entity_version}", s: "${schema_version}"}}'
    db = prepare(outbox, config=CONFIG.replace("    envelope: none", shape))
    rows = [(1, 1, 9), (2, 2, 3), (3, 3, 1), (4, 4, None)]
    for n, entity, schema in rows:
        insert(db, "a", n, entity_version=entity, schema_version=schema)
    outbox.run("run", "--once")
    lines = [line["value"] for line in read_jsonl(outbox.path("out/events.jsonl"))]
    assert [(v["n"], v["e"], v["s"]) for v in lines] == rows


def test_a_gap_in_the_numbers_is_not_waited_for(outbox):
    """Trap 4: numbers of rolled-back transactions never come."""
    db = prepare(outbox)
    relay = outbox.start("run")
    for n in range(30):
        db.execute("begin immediate")
        insert(db, "a", n)
        db.execute("rollback" if n % 3 else "commit")
        if n % 5 == 0:  # deleting the newest leaves a gap that AUTOINCREMENT does not fill
            insert(db, "b", 100 + n)
            db.execute("delete from outbox_event where aggregate_id = 'b'")
    want = [n for n in range(30) if n % 3 == 0]
    wait_until(lambda: values(outbox, "a") == want, 10, "what was committed, and no waiting")
    assert relay.stop() == 0


@pytest.mark.slow
def test_a_hung_owner_is_fenced_when_it_wakes(outbox):
    """Traps 9, 10 and 12: a stopped process loses its shard to another within 15 s and, awake
    again, records nothing."""
    db = prepare(outbox)
    first = outbox.start("run")
    insert(db, "a", 1)
    wait_until(lambda: values(outbox) == [1], 10, "the first one works")
    stop_outside_a_transaction(first, db)
    second = outbox.start("run")
    insert(db, "a", 2)
    # The new owner may write to a new file beside the old one, which the stopped process holds.
    def everywhere():
        found = []
        for path in outbox.path("out").glob("events.jsonl*"):
            if not path.name.endswith(".lock"):
                found += [line["value"]["n"] for line in read_jsonl(path)]
        return set(found)

    wait_until(lambda: everywhere() == {1, 2}, 15 + 3 / SLOW, "the other one takes over")
    epoch = db.execute("select epoch, pos from outbox_cursor").fetchone()
    first.signal(signal.SIGCONT)
    wait_until(lambda: "fenced" in first.err or "standby" in first.err, 20, "it sees that it lost")
    insert(db, "a", 3)
    wait_until(lambda: everywhere() == {1, 2, 3}, 10, "the second one goes on")
    after = db.execute("select epoch, pos from outbox_cursor").fetchone()
    assert after[0] == epoch[0]
    assert second.stop() == 0
    assert first.stop() == 0
