# SPDX-License-Identifier: Apache-2.0
"""test_relay - the relay as a process, from SQLite to a file, with everything that goes wrong around it. The ledger is what the
writers' own commits returned, never the outbox table."""

import json
import os
import signal
import threading
import time

import pytest

from helpers import SLOW, memory_mb, read_jsonl, stop_outside_a_transaction, wait_until

ONE = """
log: {{level: debug}}
pipelines:
  orders:
    source: {{type: sqlite, path: app.db}}
    sink: {{type: file, path: {path}}}
    envelope: none
    stuck_after: 1s
{more}
"""


def config(outbox, path="out/events.jsonl", more="", name="outbox.yaml"):
    outbox.path("out").mkdir(exist_ok=True)
    outbox.write(name, ONE.format(path=path, more=more))
    outbox.run("schema", "--apply", "-c", name)


def insert(db, key, n, **columns):
    names = {"type": "order.placed", "aggregate_type": "order", "aggregate_id": key}
    names["payload"] = json.dumps({"key": key, "n": n})
    names.update(columns)
    marks = ", ".join("?" for _ in names)
    db.execute(f"insert into outbox_event({', '.join(names)}) values ({marks})", list(names.values()))


class Writer(threading.Thread):
    """Commits events in order per key, rolls some back, and remembers what it committed."""

    def __init__(self, outbox, keys, pause=0.0005):
        super().__init__(daemon=True)  # a test that failed must not wait for it
        self.outbox, self.keys, self.pause = outbox, keys, pause
        self.ledger = {k: [] for k in keys}
        self.undone = set()
        self.go = True
        self.error = None

    def run(self):
        try:
            db = self.outbox.sqlite("app.db")
            n = 0
            while self.go:
                n += 1
                key = self.keys[n % len(self.keys)]
                db.execute("begin immediate")
                insert(db, key, n)
                if n % 7 == 0:
                    db.execute("rollback")
                    self.undone.add(n)
                else:
                    db.execute("commit")
                    self.ledger[key].append(n)
                time.sleep(self.pause)
            db.close()
        except Exception as e:  # the test looks at it
            self.error = e

    def stop(self):
        self.go = False
        self.join()
        if self.error:
            raise self.error

    def total(self):
        return sum(map(len, self.ledger.values()))


def delivered(*paths):
    seen = []
    for p in paths:
        seen += [m["value"] for m in read_jsonl(p)]
    return seen


def check_ledger(writer, seen, repeats_allowed):
    first, repeats = {}, 0
    for value in seen:
        key, n = value["key"], value["n"]
        assert n not in writer.undone, f"phantom: {n} was rolled back"
        got = first.setdefault(key, [])
        if n in got[-2000:] or n in got:
            repeats += 1
        else:
            got.append(n)
    for key, want in writer.ledger.items():
        assert first.get(key, []) == want, f"key {key}: lost or out of order"
    if not repeats_allowed:
        assert repeats == 0
    return repeats


def all_there(writer, *paths):
    def ready():
        seen = {v["n"] for v in delivered(*paths)}
        return seen >= {n for ns in writer.ledger.values() for n in ns}

    return ready


def test_order_bytes_and_rollback(outbox):
    config(outbox)
    relay = outbox.start("run")
    writer = Writer(outbox, [f"k{i}" for i in range(5)])
    writer.start()
    wait_until(lambda: writer.total() > 500, 30, "events written")
    writer.stop()
    wait_until(all_there(writer, outbox.path("out/events.jsonl")), 20, "all delivered")
    assert relay.stop() == 0
    assert check_ledger(writer, delivered(outbox.path("out/events.jsonl")), False) == 0
    line = outbox.path("out/events.jsonl").read_text().splitlines()[0]
    assert '"value":{"key": "k1", "n": 1}' in line, "the payload's own bytes, spaces and all"


def test_kill_9_again_and_again(outbox):
    config(outbox)
    writer = Writer(outbox, [f"k{i}" for i in range(5)], pause=0.001)
    writer.start()
    out = outbox.path("out/events.jsonl")
    for _ in range(6):
        relay = outbox.start("run")
        before = len(delivered(out))
        wait_until(lambda: len(delivered(out)) > before + 50, 30, "progress")
        relay.kill()
    writer.stop()
    relay = outbox.start("run")
    wait_until(all_there(writer, out), 20, "all delivered")
    assert relay.stop() == 0
    check_ledger(writer, delivered(out), True)


def test_a_clean_stop_repeats_nothing(outbox):
    config(outbox)
    writer = Writer(outbox, ["a", "b", "c"], pause=0.001)
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


@pytest.mark.parametrize("how, limit", [(signal.SIGKILL, 5), (signal.SIGSTOP, 15)])
def test_stand_by_takes_over(outbox, how, limit):
    config(outbox)
    writer = Writer(outbox, ["a", "b", "c"], pause=0.002)
    first = outbox.start("run")
    wait_until(lambda: "relay.start" in first.err, 10, "the first is active")
    second = outbox.start("run")
    wait_until(lambda: "relay.standby" in second.err, 10, "the second stands by")
    writer.start()
    out = outbox.path("out/events.jsonl")
    wait_until(lambda: len(delivered(out)) > 100, 20, "progress")
    if how == signal.SIGSTOP:
        stop_outside_a_transaction(first, outbox.sqlite("app.db"))
    else:
        first.kill()
    start = time.monotonic()
    wait_until(lambda: "relay.start" in second.err, limit + 5, "the second takes over")
    assert time.monotonic() - start <= limit * SLOW
    time.sleep(0.2)  # lets the new owner get ahead of the zombie
    if how == signal.SIGSTOP:
        first.signal(signal.SIGCONT)
        wait_until(lambda: "relay.fenced" in first.err, 10, "the zombie is fenced")
    files = lambda: sorted(outbox.path("out").glob("events.jsonl*"), key=lambda p: p.stat().st_mtime)
    wait_until(lambda: writer.total() > 500, 30, "events written")
    writer.stop()
    wait_until(lambda: all_there(writer, *files())(), 20, "all delivered")
    seen = delivered(*[p for p in files() if p != out], out)
    check_ledger(writer, seen, True)
    assert second.stop() == 0


def test_an_outage_of_the_sink_costs_only_time(outbox):
    config(outbox)
    relay = outbox.start("run")
    writer = Writer(outbox, ["a", "b", "c"], pause=0.001)
    writer.start()
    out = outbox.path("out/events.jsonl")
    wait_until(lambda: len(delivered(out)) > 50, 20, "progress")
    os.rename(outbox.path("out"), outbox.path("away"))
    outbox.write("out", "not a folder")
    wait_until(lambda: "sink.down" in relay.err, 20, "the sink is down")
    wait_until(lambda: 'stage="sink: down"' in relay.err, 60, "the watchdog names the stage")
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
    assert relay.err.count("sink.down") <= 3, "one line, not a storm"


def test_poison_is_dead_with_its_reason_and_stops_nobody(outbox):
    config(outbox, more="    routes: [{topic: t, envelope: cloudevents-structured}]")
    db = outbox.sqlite("app.db")
    insert(db, "good", 1)
    insert(db, "bad", 2, payload="{not json", payload_kind="json")
    insert(db, "bad", 3)
    insert(db, "good", 4)
    db.close()
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
    outbox.run("dead", "discard", dead[0]["id"], "--yes")
    assert outbox.json("dead", "list", "--json") == []


def test_on_dead_park_holds_the_key_until_a_person_speaks(outbox):
    config(outbox, more="    on_dead: park\n    routes: [{topic: t, envelope: cloudevents-structured}]")
    db = outbox.sqlite("app.db")
    insert(db, "bad", 1, payload="{", payload_kind="json")
    for n in range(2, 12):
        insert(db, "bad", n)
    insert(db, "good", 20)
    outbox.run("run", "--once")
    out = outbox.path("out/events.jsonl")
    assert [m["key"] for m in read_jsonl(out)] == ["good"]
    relay = outbox.start("run")
    for n in range(12, 15):
        insert(db, "bad", n)
    insert(db, "good", 21)
    db.close()
    wait_until(lambda: len(read_jsonl(out)) == 2, 10, "the other key flows")
    wait_until(lambda: outbox.json("status", "--json")[0]["parked"] == 13, 10, "the key waits")
    dead = outbox.json("dead", "list", "--json")
    outbox.run("dead", "discard", dead[0]["id"], "--yes")
    wait_until(lambda: len(read_jsonl(out)) == 15, 20, "released")
    assert [m["value"]["data"]["n"] for m in read_jsonl(out)[2:]] == list(range(2, 15))
    wait_until(lambda: outbox.json("status", "--json")[0]["parked"] == 0, 10, "nothing waits")
    assert relay.stop() == 0


def test_hup_takes_new_routes_and_keeps_old_ones_when_they_are_bad(outbox):
    config(outbox, more="    routes: [{topic: first}]")
    relay = outbox.start("run")
    db = outbox.sqlite("app.db")
    out = outbox.path("out/events.jsonl")
    insert(db, "a", 1)
    wait_until(lambda: len(read_jsonl(out)) == 1, 10, "delivered")
    outbox.write("outbox.yaml", ONE.format(path="out/events.jsonl", more='    routes: [{topic: "${nope}"}]'))
    relay.signal(signal.SIGHUP)
    wait_until(lambda: "nope" in relay.err, 10, "the error is told")
    insert(db, "a", 2)
    wait_until(lambda: len(read_jsonl(out)) == 2, 10, "goes on")
    outbox.write("outbox.yaml", ONE.format(path="out/events.jsonl", more="    routes: [{topic: second}]"))
    relay.signal(signal.SIGHUP)
    wait_until(lambda: "relay.reload" in relay.err and "ok=true" in relay.err, 10, "reloaded")
    insert(db, "a", 3)
    wait_until(lambda: len(read_jsonl(out)) == 3, 10, "delivered")
    assert [m["topic"] for m in read_jsonl(out)] == ["first", "first", "second"]
    assert relay.stop() == 0


def test_a_pipeline_that_cannot_start_does_not_stop_the_others(outbox):
    outbox.path("out").mkdir()
    outbox.write(
        "outbox.yaml",
        """
pipelines:
  fine: {source: {type: sqlite, path: app.db}, sink: {type: file, path: out/fine.jsonl}, envelope: none}
  late: {source: {type: sqlite, path: late.db}, sink: {type: file, path: out/late.jsonl}, envelope: none}
""",
    )
    outbox.run("schema", "--apply", "-p", "fine")
    relay = outbox.start("run")
    db = outbox.sqlite("app.db")
    insert(db, "a", 1)
    db.close()
    wait_until(lambda: len(read_jsonl(outbox.path("out/fine.jsonl"))) == 1, 10, "the fine one works")
    wait_until(lambda: "late.db" in relay.err, 10, "the other one says what is wrong")
    lines = relay.err.count("source.open")
    outbox.run("schema", "--apply", "-p", "late")
    db = outbox.sqlite("late.db")
    insert(db, "b", 1)
    db.close()
    wait_until(lambda: len(read_jsonl(outbox.path("out/late.jsonl"))) == 1, 30, "it starts by itself")
    assert lines <= 2, "said once, not a storm"
    assert relay.stop() == 0


def test_two_pipelines_read_one_outbox(outbox):
    outbox.path("out").mkdir()
    outbox.write(
        "outbox.yaml",
        """
pipelines:
  one: {source: {type: sqlite, path: app.db}, sink: {type: file, path: out/one.jsonl}, envelope: none}
  two: {source: {type: sqlite, path: app.db}, sink: {type: file, path: out/two.jsonl}, envelope: none}
""",
    )
    outbox.run("schema", "--apply", "-p", "one")
    db = outbox.sqlite("app.db")
    for n in range(100):
        insert(db, f"k{n % 3}", n)
    db.close()
    outbox.run("run", "--once")
    for name in ("one", "two"):
        assert [m["value"]["n"] for m in read_jsonl(outbox.path(f"out/{name}.jsonl"))] == list(range(100))


def test_pause_and_resume(outbox):
    config(outbox)
    relay = outbox.start("run")
    out = outbox.path("out/events.jsonl")
    db = outbox.sqlite("app.db")
    insert(db, "a", 1)
    wait_until(lambda: len(read_jsonl(out)) == 1, 10, "delivered")
    outbox.run("pause")
    wait_until(lambda: "relay.paused" in relay.err, 10, "paused")
    insert(db, "a", 2)
    wait_until(lambda: outbox.json("status", "--json")[0]["pending"] >= 1, 10, "pending")
    wait_until(lambda: outbox.json("status", "--json")[0]["state"] == "paused", 10, "shown")
    assert len(read_jsonl(out)) == 1
    outbox.run("resume")
    wait_until(lambda: len(read_jsonl(out)) == 2, 10, "goes on")
    assert relay.stop() == 0


def test_shards_keep_the_order_of_each_key_and_may_be_changed(outbox):
    config(outbox, more="    shards: 4")
    db = outbox.sqlite("app.db")
    for n in range(400):
        insert(db, f"k{n % 10}", n)
    for shards in (4, 3, 1):
        outbox.write("outbox.yaml", ONE.format(path=f"out/s{shards}.jsonl", more=f"    shards: {shards}"))
        for n in range(100):
            insert(db, f"k{n % 10}", 1000 * shards + n)
        outbox.run("run", "--once", timeout=60)
    db.close()
    seen = delivered(*sorted(outbox.path("out").glob("s*.jsonl*"), reverse=True))
    assert len(seen) == len({v["n"] for v in seen}) == 700
    files = {s: delivered(*outbox.path("out").glob(f"s{s}.jsonl*")) for s in (4, 3, 1)}
    for values in files.values():
        for key in {v["key"] for v in values}:
            ns = [v["n"] for v in values if v["key"] == key]
            assert ns == sorted(ns), f"{key} out of order"


@pytest.mark.skipif(SLOW > 1, reason="a sanitizer's memory is not the program's")
def test_an_idle_relay_is_small(outbox):
    """What loading all client libraries has touched is given back."""
    config(outbox)
    relay = outbox.start("run")
    wait_until(lambda: "relay.start" in relay.err, 20)
    wait_until(lambda: memory_mb(relay, "VmRSS") <= 11, 10, "small")  # 18 MB with all that was loaded
    assert relay.stop() == 0


@pytest.mark.skipif(SLOW > 1, reason="a sanitizer's memory is not the program's")
def test_memory_does_not_follow_the_backlog(outbox):
    config(outbox)
    db = outbox.sqlite("app.db")
    db.execute("begin")
    for n in range(200000):
        insert(db, f"k{n % 100}", n, payload=json.dumps({"n": n, "key": f"k{n % 100}", "x": "y" * 250}))
    db.execute("commit")
    db.close()
    relay = outbox.start("run")
    out = outbox.path("out/events.jsonl")
    want = 200000

    wait_until(lambda: out.exists() and out.read_bytes().count(b"\n") >= want, 60, "drained", every=0.2)
    assert memory_mb(relay, "VmHWM") <= 32
    assert relay.stop() == 0


@pytest.mark.parametrize(
    "name, columns",
    [
        ("empty", {"payload": b"", "payload_kind": "bytes"}),
        ("NUL bytes", {"payload": b"a\0b\0", "payload_kind": "bytes"}),
        ("invalid UTF-8", {"payload": b"\xff\xfe\x80", "payload_kind": "bytes"}),
        ("16 MB", {"payload": b"x" * (16 << 20), "payload_kind": "bytes"}),
        ("invalid JSON", {"payload": "{oops", "payload_kind": "json"}),
        ("no payload", {"payload": None}),
        ("key of 64 KB", {"aggregate_id": "k" * 65536}),
        ("topic of 64 KB", {"topic": "t" * 65536}),
    ],
)
def test_hostile_events_are_delivered_or_dead_with_a_reason(outbox, name, columns):
    config(outbox)
    db = outbox.sqlite("app.db")
    insert(db, "before", 1)
    insert(db, columns.pop("aggregate_id", "odd"), 2, **columns)
    insert(db, "after", 3)
    db.close()
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


def test_an_event_that_the_sink_returns_each_time_is_parked(outbox):
    """It and its key wait with a back-off, the log has the reason once each time it is parked, other keys flow, and a stop is clean."""
    outbox.write("outbox.yaml", """
log: {level: debug}
pipelines:
  p:
    source: {type: sqlite, path: app.db}
    sink: {type: "null", refuse: refuse.txt}
    routes: [{topic: "${type}"}]
    max_attempts: 3
    retry: {first: 1h, max: 1h}
""")
    outbox.run("schema", "--apply")
    outbox.write("refuse.txt", "returned bounced\n")
    db = outbox.sqlite("app.db")
    for key, kind in [("a", "bounced"), ("a", "fine")] + [(f"k{n}", "fine") for n in range(20)]:
        db.execute("insert into outbox_event(type, aggregate_id, payload) values (?, ?, '{}')", (kind, key))
    p = outbox.start("run")

    def status():
        return outbox.json("status", "--json")[0]

    wait_until(lambda: status()["published"] == 20 and status()["parked"] == 2, 20, "the others flow, the key waits")
    assert p.err.count("event.returned") == 1 and "refused, as the file says" in p.err, p.err
    assert outbox.json("dead", "list", "--json") == []
    assert p.stop() == 0
    assert status()["failed"] == 0
