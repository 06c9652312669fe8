# SPDX-License-Identifier: Apache-2.0
"""test_cli_dead - dead events from the command line: counted first, changed only when agreed, order kept."""

import json

import pytest

from helpers import BIN, read_jsonl, wait_until
from test_cli import on_terminal

# The payload promises JSON that it is not: in this envelope it can never be sent.
STRICT = """pipelines:
  local:
    source: {type: sqlite, path: app.db}
    sink: {type: file, path: out.jsonl}
    envelope: cloudevents-structured
"""
PLAIN = STRICT.replace("cloudevents-structured", "none")


@pytest.fixture
def dead(outbox):
    """Six dead events of two keys and two types, and two that were delivered."""
    outbox.write("outbox.yaml", STRICT)
    outbox.run("schema", "--apply")
    db = outbox.sqlite("app.db")
    for n in range(8):
        db.execute(
            "insert into outbox_event(id, type, aggregate_id, tenant, payload, payload_kind) values (?, ?, ?, ?, ?, 'json')",
            (f"e{n}", f"t{n % 2}.x", f"k{n % 2}", f"tenant{n // 4}", "{broken" if n < 6 else "{}"),
        )
    db.close()
    outbox.run("run", "--once")
    assert len(read_jsonl(outbox.path("out.jsonl"))) == 2
    return outbox


def listed(o, *args):
    return [d["id"] for d in o.json("dead", "list", "--json", *args)]


def test_list_has_what_was_promised(dead):
    rows = dead.json("dead", "list", "--json")
    assert [r["id"] for r in rows] == [f"e{n}" for n in range(6)]
    for r in rows:
        assert set(r) == {"pipeline", "id", "key", "type", "attempts", "error", "at"}
        assert r["pipeline"] == "local" and "JSON" in r["error"] and r["at"].endswith("Z")
    text = dead.run("dead", "list").out
    assert len(text.splitlines()) == 7 and "e5" in text and "e6" not in text


@pytest.mark.parametrize(
    "args, want",
    [
        (["--type", "t1.*"], "e1 e3 e5"),
        (["--key", "k0"], "e0 e2 e4"),
        (["--tenant", "tenant1"], "e4 e5"),
        (["--key", "k0", "--tenant", "tenant0"], "e0 e2"),
        (["--reason", "*JSON*"], "e0 e1 e2 e3 e4 e5"),
        (["--reason", "nothing like it"], ""),
        (["--since", "1h"], "e0 e1 e2 e3 e4 e5"),
        (["--until", "1h"], ""),
        (["--limit", "2"], "e0 e1"),
    ],
)
def test_filters(dead, args, want):
    assert listed(dead, *args) == want.split()
    if "--limit" not in args:
        counted = dead.json("dead", "retry", "--dry-run", "--json", *args)
        assert counted == [{"pipeline": "local", "action": "retry", "dry_run": True, "events": len(want.split())}]
        assert len(listed(dead)) == 6


def test_show(dead):
    d = dead.json("dead", "show", "e3", "--json")[0]
    assert d["event"]["payload"] == "{broken" and d["event"]["tenant"] == "tenant0"
    assert isinstance(d["history"], list)
    text = dead.run("dead", "show", "e3").out
    assert "{broken" in text and "tenant0" in text and d["error"] in text
    assert "no dead event has the id e7" in dead.run("dead", "show", "e7", check=1).err


@pytest.mark.parametrize("action", ["retry", "discard"])
def test_nothing_is_changed_unless_agreed(dead, action):
    r = dead.run("dead", action, "--all", check=2)
    assert "6 events would be" in r.err and "--yes" in r.err
    env = {**dead.env, "TERM": "xterm"}
    code, shown = on_terminal([BIN, "dead", action, "--key", "k1"], dead.dir, env, answer=b"n\n")
    assert code == 1 and f"{action} 3 dead events of local? [y/N]" in shown and "nothing was changed" in shown
    assert len(listed(dead)) == 6
    code, shown = on_terminal([BIN, "dead", action, "--key", "k1"], dead.dir, env, answer=b"y\n")
    assert code == 0 and "3 events" in shown
    assert listed(dead) == ["e0", "e2", "e4"]


def test_an_id_that_is_not_dead(dead):
    for action in ("retry", "discard"):
        assert "no dead event has the id e7" in dead.run("dead", action, "e7", "--yes", check=1).err
    assert len(listed(dead)) == 6
    r = dead.run("dead", "show", "\x1b[2Jx", check=1)
    assert "\x1b" not in r.err and "[2Jx" in r.err


def test_discard_gives_up_for_good(dead):
    r = dead.run("dead", "discard", "e0", "--yes")
    assert r.out == "local: 1 event discarded\n"
    assert listed(dead) == [f"e{n}" for n in range(1, 6)]
    dead.json("dead", "discard", "--all", "--yes", "--json")
    assert listed(dead) == []
    dead.write("outbox.yaml", PLAIN)
    dead.run("run", "--once")
    assert len(read_jsonl(dead.path("out.jsonl"))) == 2


def test_retry_keeps_the_order_of_each_key(dead):
    dead.write("outbox.yaml", PLAIN)
    relay = dead.start("run")
    r = dead.json("dead", "retry", "--all", "--yes", "--json")
    assert r == [{"pipeline": "local", "action": "retry", "dry_run": False, "events": 6}]
    out = dead.path("out.jsonl")
    wait_until(lambda: len(read_jsonl(out)) == 8, 20, "retried ones are delivered")
    ids = [m["id"] for m in read_jsonl(out)[2:]]
    assert [i for i in ids if int(i[1]) % 2 == 0] == ["e0", "e2", "e4"]
    assert [i for i in ids if int(i[1]) % 2 == 1] == ["e1", "e3", "e5"]
    assert listed(dead) == []
    assert relay.stop() == 0


def test_a_retried_one_that_fails_again_is_dead_again(dead):
    dead.run("dead", "retry", "e2", "--yes")
    dead.run("run", "--once")
    wait_until(lambda: sorted(listed(dead)) == [f"e{n}" for n in range(6)], 10, "dead again")


def test_dead_of_all_pipelines_unless_one_is_named(outbox):
    two = STRICT + STRICT.split("\n", 1)[1].replace("local:", "other:").replace("out.jsonl", "other.jsonl")
    outbox.write("outbox.yaml", two)
    outbox.run("schema", "--apply")
    db = outbox.sqlite("app.db")
    db.execute("insert into outbox_event(id, type, payload, payload_kind) values ('e', 't', '{', 'json')")
    db.close()
    outbox.run("run", "--once")
    assert [(d["pipeline"], d["id"]) for d in outbox.json("dead", "list", "--json")] == [("local", "e"), ("other", "e")]
    assert "which pipeline?" in outbox.run("dead", "discard", "e", "--yes", check=2).err
    outbox.run("dead", "discard", "e", "--yes", "-p", "other")
    assert [d["pipeline"] for d in outbox.json("dead", "list", "--json")] == ["local"]
    assert json.loads(outbox.run("dead", "list", "-jp", "local").out)["id"] == "e"
