# SPDX-License-Identifier: Apache-2.0
"""test_postgres_wal_messages - an outbox without a table: transactional pg_logical_emit_message calls with a prefix."""

import base64
import json
import os
import re
import threading
import time

import pytest

from helpers import read_jsonl, wait_until
from wal import on_stream, slot_of, slots, wal_config

PREFIX = "message_prefix: outbox"


def send(cur, prefix="outbox", transactional=True, content=None, **fields):
    content = json.dumps(fields) if content is None else content
    cur.execute("select pg_logical_emit_message(%s, %s, %s::text)", (transactional, prefix, content))


def lines(outbox):
    return read_jsonl(outbox.path("out/events.jsonl"))


def ns(outbox):
    return [m["value"]["n"] for m in lines(outbox)]


def test_fields_kinds_and_what_is_no_event(outbox, db):
    wal_config(outbox, db, source=PREFIX)
    relay = outbox.start("run")
    on_stream(relay)
    c = db.connect(autocommit=False)
    cur = c.cursor()
    given = "0190a6e0-1111-7abc-8def-0123456789ab"
    send(cur, id=given, type="t.full", payload={"n": 1, "ü": "\u00e4"}, aggregate_type="a", aggregate_id="i", key="k", tenant="ten",
         topic="top", headers={"h": "1"}, metadata={"m": 1}, entity_version=7, schema_version=2, max_attempts=3)
    send(cur, type="t.text", kind="text", payload='say "hi"\n', key="k")
    send(cur, type="t.bytes", kind="bytes", payload=base64.b64encode(b"\x00\xff\x01").decode(), key="k")
    send(cur, type="t.none", payload=None, key="k")
    send(cur, prefix="others", type="t.other", payload=1)
    c.commit()
    send(cur, type="t.undone", payload=1)
    c.rollback()
    send(cur, type="t.plain", payload=1, transactional=False)
    c.rollback()
    send(cur, type="t.last", payload={"n": 2}, key="k")
    c.commit()
    wait_until(lambda: len(lines(outbox)) == 5, 10, "delivered")
    assert relay.stop() == 0
    seen = lines(outbox)
    assert seen[0]["id"] == given and seen[0]["topic"] == "top" and seen[0]["key"] == "k"
    assert seen[0]["value"] == {"n": 1, "ü": "\u00e4"} and seen[0]["headers"]["h"] == "1"
    assert seen[1]["value_text"] == 'say "hi"\n'
    assert base64.b64decode(seen[2]["value_base64"]) == b"\x00\xff\x01"
    assert seen[3]["value"] is None and seen[4]["value"] == {"n": 2}
    ids = [m["id"] for m in seen]
    assert len(set(ids)) == 5 and all(re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", i) for i in ids)
    assert "not transactional" in relay.err
    assert db.one("select count(*) from outbox.event") == 0


def test_what_cannot_be_read_is_dead_with_its_bytes(outbox, db):
    wal_config(outbox, db, source=PREFIX)
    relay = outbox.start("run")
    on_stream(relay)
    c = db.connect().cursor()
    bad = ["{not json", "[1]", '{"payload": 1}', '{"type": "x", "id": "seven"}', '{"type": "x", "extra": 1}',
           '{"type": "x", "kind": "bytes", "payload": "*"}', '{"type": "x", "entity_version": 1.5}', '{"type": "x"} {}', ""]
    for content in bad:
        send(c, content=content)
    send(c, type="x", payload={"n": 1}, key="k")
    wait_until(lambda: ns(outbox) == [1], 10, "the good one is delivered")
    dead = wait_until(lambda: len(d := outbox.json("dead", "list", "--json")) == len(bad) and d, 10, "the others are dead")
    assert all(d["error"] for d in dead)
    (shown,) = outbox.json("dead", "show", dead[0]["id"], "--json")
    assert base64.b64encode(b"{not json").decode() in json.dumps(shown)
    outbox.run("dead", "retry", dead[0]["id"], "--yes")
    wait_until(lambda: len(outbox.json("dead", "list", "--json")) == len(bad), 10, "it stays dead")
    relay.kill()
    relay = outbox.start("run")
    send(c, type="x", payload={"n": 2}, key="k")
    wait_until(lambda: ns(outbox)[-1] == 2, 10, "goes on")
    assert relay.stop() == 0
    assert len(outbox.json("dead", "list", "--json")) == len(bad), "not twice"


def test_parked_messages_keep_all_of_the_event(outbox, db):
    """on_dead: park. The key's later events wait in the side table; no other table has them."""
    wal_config(outbox, db, source=PREFIX, more="    on_dead: park")
    relay = outbox.start("run")
    on_stream(relay)
    c = db.connect().cursor()
    send(c, type="x", payload={"n": 1}, key="bad", topic="a\x01b")
    for n in range(2, 6):
        send(c, type="x", payload={"n": n, "text": "snow \u2603"}, key="bad", headers={"a": "b"}, topic=f"t{n}")
    send(c, type="x", payload={"n": 6}, key="good")
    wait_until(lambda: ns(outbox) == [6], 10, "the other key flows")
    (dead,) = wait_until(lambda: outbox.json("dead", "list", "--json"), 10, "dead")
    assert "control character" in dead["error"]
    wait_until(lambda: outbox.json("status", "--json")[0]["parked"] == 4, 20, "they wait")
    events = outbox.json("events", "--json", "--payload")
    assert {e["state"] for e in events} == {"dead", "parked"}
    assert outbox.json("events", "--json", "--payload", "--limit", "2") == events[-2:], "the newest"
    assert outbox.json("events", "--json", "--payload", "--limit", "2", "--type", "y") == []
    relay.kill()
    relay = outbox.start("run")
    outbox.run("dead", "discard", dead["id"], "--yes")
    wait_until(lambda: ns(outbox) == [6, 2, 3, 4, 5], 20, "released")
    assert lines(outbox)[1]["value"]["text"] == "snow \u2603"
    assert lines(outbox)[1]["headers"] == {"a": "b"}
    assert [m["topic"] for m in lines(outbox)[1:]] == ["t2", "t3", "t4", "t5"]
    assert relay.stop() == 0


class Sender(threading.Thread):
    def __init__(self, db):
        super().__init__(daemon=True)
        self.c, self.go, self.sent = db.server.connect(db.name, autocommit=False), True, []

    def run(self):
        cur, n = self.c.cursor(), 0
        while self.go:
            n += 1
            send(cur, type="x", payload={"n": n}, key=f"k{n % 3}")
            if n % 7:
                self.c.commit()
                self.sent.append(n)
            else:
                self.c.rollback()
            time.sleep(0.001)
        self.c.close()


def test_kill_9_again_and_again(outbox, db):
    wal_config(outbox, db, source=PREFIX)
    outbox.run("run", "--once")
    sender = Sender(db)
    sender.start()
    for _ in range(4):
        relay = outbox.start("run")
        at = len(lines(outbox))
        wait_until(lambda: len(lines(outbox)) > at + 50, 20, "progress")
        relay.kill()
    sender.go = False
    sender.join()
    outbox.run("run", "--once")
    ids = {}
    for m in lines(outbox):
        ids.setdefault(m["value"]["n"], set()).add(m["id"])
    assert sorted(ids) == sender.sent
    assert all(len(i) == 1 for i in ids.values()), "a repeat has the same id"
    for key in range(3):
        seen = list(dict.fromkeys(n for n in ns(outbox) if n % 3 == key))
        assert seen == sorted(seen)


def test_a_lost_slot_is_told_and_only_passed_when_a_person_says_so(outbox, db):
    wal_config(outbox, db, source=PREFIX)
    outbox.run("run", "--once")
    c = db.connect().cursor()
    send(c, type="x", payload={"n": 1}, key="k")
    outbox.run("run", "--once")
    confirmed = db.one("select lsn::text from outbox.cursor")
    wait_until(lambda: db.sql("select 1 from pg_replication_slots where slot_name = %s and not active", slot_of(db)), 10)
    db.sql("select pg_drop_replication_slot(%s)", slot_of(db))
    send(c, type="x", payload={"n": 2}, key="k")
    r = outbox.run("run", "--once", check=None)
    assert r.returncode != 0 and f"from LSN {confirmed} to " in r.err and "--accept-loss" in r.err, r.err
    relay = outbox.start("run")
    wait_until(lambda: "are lost" in relay.err, 10, "a running one says it too")
    assert slots(db) == [], "and does nothing"
    assert relay.stop() == 0
    relay = outbox.start("run", "--accept-loss")
    on_stream(relay)
    assert f"from={confirmed}" in relay.err
    send(c, type="x", payload={"n": 3}, key="k")
    wait_until(lambda: ns(outbox) == [1, 3], 10, "goes on behind the gap")
    assert relay.stop() == 0
    send(c, type="x", payload={"n": 4}, key="k")
    outbox.run("run", "--once")
    assert ns(outbox) == [1, 3, 4], "and without the word from then on"


def test_over_budget_is_said_and_nothing_is_dropped(outbox, db):
    wal_config(outbox, db, source=PREFIX + ", wal_budget: 1M", more="    window: 10")
    relay = outbox.start("run")
    on_stream(relay)
    os.rename(outbox.path("out"), outbox.path("away"))
    outbox.write("out", "not a folder")
    c = db.connect().cursor()
    for n in range(1, 40):
        send(c, type="x", payload={"n": n}, key="k")
    db.sql("create table filler (t text)")
    db.sql("insert into filler select repeat('x', 1000) from generate_series(1, 3000)")
    wait_until(lambda: "wal.budget" in relay.err, 20, "said")
    assert len(slots(db)) == 1
    os.remove(outbox.path("out"))
    os.rename(outbox.path("away"), outbox.path("out"))
    files = lambda: sorted(outbox.path("out").glob("events.jsonl*"), key=lambda p: p.stat().st_mtime)
    seen = lambda: list(dict.fromkeys(m["value"]["n"] for f in files() for m in read_jsonl(f)))
    wait_until(lambda: seen() == list(range(1, 40)), 20, "all there")
    assert relay.stop() == 0


def test_emit_status_check_and_events(outbox, db):
    wal_config(outbox, db, source=PREFIX)
    relay = outbox.start("run")
    on_stream(relay)
    outbox.run("emit", "--type", "t", "--key", "k", "--payload", '{"n": 1}')
    outbox.run("emit", "--type", "t", "--key", "k", "--payload", '{"n": 2}')
    wait_until(lambda: ns(outbox) == [1, 2], 10, "delivered")
    assert outbox.json("status", "--json")[0]["published"] >= 0
    assert outbox.json("events", "--json") == []
    shown = outbox.run("check", check=None)
    assert "wal_level is logical" in shown.out and slot_of(db) in shown.out, shown.out
    assert relay.stop() == 0


def test_check_names_the_function_that_every_role_may_call(outbox, db):
    """pg_logical_emit_message is granted to PUBLIC: with a prefix, every role that can connect writes events."""
    wal_config(outbox, db, source=PREFIX)
    fixes = [f"REVOKE EXECUTE ON FUNCTION pg_catalog.pg_logical_emit_message(boolean,text,{kind}) FROM PUBLIC;" for kind in ("text", "bytea")]
    shown = outbox.run("check", check=None).out
    assert all(fix in shown for fix in fixes) and "every role may write events" in shown, shown
    writer = f"writer_{db.name}"
    db.sql(f"create role {writer} login")
    try:
        for fix in fixes:
            db.sql(fix)
        assert "every role may write events" not in outbox.run("check", check=None).out
        c = db.connect(writer)
        with c.cursor() as cur, pytest.raises(db.server.psycopg2.errors.InsufficientPrivilege):
            cur.execute("select pg_logical_emit_message(true, 'outbox', '{}')")
        c.close()
    finally:
        db.sql(f"drop role {writer}")
    wal_config(outbox, db)  # a table is read: messages do not matter
    for fix in fixes:
        db.sql(fix.replace("REVOKE", "GRANT").replace("FROM", "TO"))
    assert "every role may write events" not in outbox.run("check", check=None).out
