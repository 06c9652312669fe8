# SPDX-License-Identifier: Apache-2.0
"""test_cli_events - commands that write and look at events: init, schema, check, emit, events, tail, status."""

import base64
import json
import os
import re
import signal
import sqlite3
import subprocess

import pytest

from helpers import BIN, read_jsonl, wait_until
from test_cli import on_terminal

CONFIG = """pipelines:
  local:
    source: {type: sqlite, path: app.db}
    sink: {type: file, path: out.jsonl}
    envelope: none
"""


@pytest.fixture
def shop(outbox):
    outbox.write("outbox.yaml", CONFIG)
    outbox.run("schema", "--apply")
    return outbox


def rows(outbox, columns="type", where="1"):
    db = outbox.sqlite("app.db")
    try:
        return db.execute(f"select {columns} from outbox_event where {where} order by seq").fetchall()
    finally:
        db.close()


def json_lines(process):
    return [json.loads(line) for line in process.out.split("\n")[:-1]]


# -- init --


def test_init_writes_what_the_other_commands_take(outbox):
    r = outbox.run("init")
    assert "wrote outbox.yaml" in r.out
    text = outbox.path("outbox.yaml").read_text()
    assert text.count("#") > 5 and "type: sqlite" in text
    outbox.run("schema", "--apply")
    outbox.run("check")
    outbox.run("emit", "--type", "hello", "--payload", "{}")
    outbox.run("run", "--once")
    assert read_jsonl(outbox.path("events.jsonl"))[0]["value"] == {}


def test_init_leaves_a_file_alone(outbox):
    outbox.write("outbox.yaml", "mine")
    r = outbox.run("init", check=1)
    assert "--force" in r.err and outbox.path("outbox.yaml").read_text() == "mine"
    assert outbox.run("init", "--force", "--json").out == '{"file":"outbox.yaml"}\n'
    assert "pipelines" in outbox.path("outbox.yaml").read_text()
    assert sorted(p.name for p in outbox.dir.iterdir()) == ["outbox.yaml"]


def test_init_with_names_that_need_care(outbox):
    outbox.run("init", "my.yaml", "--db", 'a "quoted" ${HOME} \\ ä.db', "--out", "x: y # z", "--name", "shop.1")
    explained = outbox.run("check", "--explain", "-c", "my.yaml").out
    assert "shop.1" in explained
    outbox.run("schema", "--apply", "-c", "my.yaml")
    assert outbox.path('a "quoted" ${HOME} \\ ä.db').exists()


def test_init_refuses_what_run_would_refuse(outbox):
    r = outbox.run("init", "--name", "a b", check=1)
    assert "a b" in r.err
    r = outbox.run("init", "--profile", "nope", check=1)
    assert "nope" in r.err
    assert list(outbox.dir.iterdir()) == []
    assert "nowhere" in outbox.run("init", "nowhere/outbox.yaml", check=1).err


# -- schema --


def test_schema_applies_once_and_a_dry_run_changes_nothing(outbox):
    outbox.write("outbox.yaml", CONFIG)
    r = outbox.run("schema", "--dry-run")
    assert "to apply" in r.out and not outbox.path("app.db").exists()
    r = outbox.json("schema", "--apply", "--json")[0]
    assert r["changes"] >= 1 and r["dry_run"] is False
    assert "nothing to do" in outbox.run("schema", "--apply").out
    assert outbox.json("schema", "--dry-run", "--json")[0]["changes"] == 0


def test_the_printed_schema_works_by_hand(outbox):
    text = outbox.run("schema", "--print", "--source", "sqlite").out
    outbox.write("outbox.yaml", CONFIG)
    assert outbox.run("schema").out == text
    db = outbox.sqlite("app.db")
    db.executescript(text)
    db.close()
    assert "nothing to do" in outbox.run("schema", "--apply").out
    outbox.run("check")


# -- check --


def test_check_tells_the_problem_and_the_fix(outbox):
    outbox.write("outbox.yaml", CONFIG)
    r = outbox.run("check", check=1)
    assert "problem" in r.out and "fix:" in r.out and "app.db" in r.out
    bad = [f for f in outbox.json("check", "--json", check=1) if not f["ok"]]
    assert bad and all(f["fix"] and f["pipeline"] == "local" for f in bad)
    outbox.run("schema", "--apply")
    found = outbox.json("check", "--json")
    assert found and all(f["ok"] for f in found)


def test_check_explains_where_values_come_from(shop):
    text = shop.run("check", "--explain").out
    assert re.search(r"path: .*app\.db.*outbox\.yaml:3:\d+", text), text
    assert re.search(r"max_attempts: 10 .*default", text)


def test_check_looks_at_the_sink_and_takes_nothing(shop):
    shop.write("outbox.yaml", CONFIG.replace("out.jsonl", "away/out.jsonl"))
    r = shop.run("check", check=1)
    assert "away/out.jsonl" in r.out and "fix:" in r.out
    shop.path("away").mkdir()
    shop.run("check")
    assert list(shop.path("away").iterdir()) == []
    shop.write("away/out.jsonl", "my notes\n")
    assert "something else than JSON lines" in shop.run("check", check=1).out
    shop.path("away/out.jsonl").unlink()
    relay = shop.start("run")
    for n in range(3):
        shop.run("emit", "--type", "t", "--payload", n)
        wait_until(lambda n=n: len(read_jsonl(shop.path("away/out.jsonl"))) == n + 1, 10, "delivered")
        shop.run("check")
    assert relay.stop() == 0
    assert [p.name for p in shop.path("away").iterdir()] == ["out.jsonl"], "nothing was set aside"


def test_check_sees_bad_routes_with_their_place(outbox):
    outbox.write("outbox.yaml", CONFIG + '    routes: [{topic: "${nope}"}]\n')
    r = outbox.run("check", check=None)
    assert r.returncode in (1, 78) and re.search(r"outbox\.yaml:6:\d+: .*nope", r.out + r.err)


# -- databases that are not as they should be --


def make_missing(o):
    o.path("app.db").unlink(missing_ok=True)
    return "app.db"


def make_foreign(o):
    db = sqlite3.connect(o.path("app.db"))
    db.execute("create table mine(x)")
    db.commit()
    db.close()
    return "schema"


def make_garbage(o):
    o.write("app.db", b"this is not a database at all " * 100)
    return "not a database"


def make_folder(o):
    o.path("app.db").mkdir()
    return "app.db"


@pytest.mark.parametrize("make", [make_missing, make_foreign, make_garbage, make_folder])
@pytest.mark.parametrize(
    "args", [["status"], ["emit", "--type", "t"], ["events"], ["dead", "list"], ["pause"], ["check"], ["tail", "--seconds", "0"]]
)
def test_a_database_that_is_none(outbox, make, args):
    outbox.write("outbox.yaml", CONFIG)
    says = make(outbox)
    before = outbox.path("app.db").is_file() and outbox.path("app.db").read_bytes()
    # One that is not there may come: the application makes it.
    later = make is make_missing and args != ["check"]
    r = outbox.run(*args, check=75 if later else 1)
    assert says in r.err + r.out, r.err + r.out
    assert (outbox.path("app.db").is_file() and outbox.path("app.db").read_bytes()) == before


def test_a_locked_database_is_for_later(shop):
    db = shop.sqlite("app.db")
    db.execute("begin exclusive")
    try:
        r = shop.run("emit", "--type", "t", check=75)
        assert "locked" in r.err or "busy" in r.err
        shop.run("events")  # readers are not held up
    finally:
        db.close()
    shop.run("emit", "--type", "t")


# -- emit --


def test_emit_by_options(shop):
    r = shop.run(
        *["emit", "--type", "order.placed", "--aggregate-type", "order", "--aggregate-id", "17", "--key", "k"],
        *["--tenant", "acme", "--topic", "orders", "--payload", '{"a": [1, 2.50]}', "--headers", '{"h":"1"}'],
        *["--metadata", '{"m":2}', "--entity-version", "3", "--schema-version", "4", "--id", "my-id"],
    )
    assert r.out == "my-id\n"
    columns = "id, type, aggregate_type, aggregate_id, key, tenant, topic, payload, headers, metadata, entity_version, schema_version"
    assert rows(shop, columns) == [
        ("my-id", "order.placed", "order", "17", "k", "acme", "orders", '{"a": [1, 2.50]}', '{"h":"1"}', '{"m":2}', 3, 4)
    ]
    r = shop.run("emit", "--type", "t", "--id", "my-id", check=1)
    assert "outbox_event.id" in r.err
    assert len(rows(shop)) == 1


def test_emit_gives_new_ids_in_order(shop):
    ids = [shop.json("emit", "--type", "t", "--json")[0]["id"] for _ in range(3)]
    assert ids == sorted(ids) and len(set(ids)) == 3
    assert rows(shop, "id, payload") == [(i, None) for i in ids]


@pytest.mark.parametrize("how", ["file", "stdin", "dash"])
def test_emit_payload_bytes_stay_as_they_are(shop, how):
    payload = bytes(range(256)) * 3
    name = shop.write("payload.bin", payload)
    args = {"file": ["--payload-file", name], "stdin": ["--payload-file", "-"], "dash": ["--payload", "-"]}[how]
    shop.run("emit", "--type", "t", "--kind", "bytes", *args, stdin=None if how == "file" else payload)
    assert rows(shop, "payload") == [(payload,)]
    shown = shop.json("events", "--payload", "--json")[0]
    assert base64.b64decode(shown["payload_base64"]) == payload
    shop.run("run", "--once")
    assert base64.b64decode(read_jsonl(shop.path("out.jsonl"))[0]["value_base64"]) == payload


@pytest.mark.parametrize(
    "name, args, says",
    [
        ("not JSON", ["--payload", "{x"], "payload is not JSON"),
        ("empty and JSON", ["--payload", ""], "payload is not JSON"),
        ("not UTF-8", ["--kind", "text", "--payload", b"\xff"], "payload is not UTF-8"),
        ("headers are no object", ["--headers", "[]"], "headers must be a JSON object"),
        ("key is not UTF-8", ["--key", b"\xff"], "key is not UTF-8"),
        ("no such file", ["--payload-file", "nowhere"], "nowhere"),
        ("a folder", ["--payload-file", "/"], "directory"),
    ],
)
def test_emit_refuses(shop, name, args, says):
    r = subprocess.run(
        [BIN, "emit", "--type", "t", *args], cwd=shop.dir, env=shop.env, capture_output=True, check=False
    )
    assert r.returncode == 1 and says in r.stderr.decode(), r.stderr
    assert rows(shop) == []


def test_emit_of_extremes(shop):
    big = shop.write("big.json", json.dumps("x" * (16 << 20)))
    shop.run("emit", "--type", "big", "--payload-file", big)
    shop.run("emit", "--type", "long-key", "--key", "k" * 65536, "--payload", "1")
    shop.run("emit", "--type", "empty", "--kind", "text", "--payload", "")
    shop.run("run", "--once")
    out = read_jsonl(shop.path("out.jsonl"))
    dead = shop.json("dead", "list", "--json")
    assert len(out) + len(dead) == 3
    assert len(out[0]["value"]) == 16 << 20
    assert all(d["error"] for d in dead)


def test_emit_many_is_all_or_nothing(shop):
    good = [{"type": f"t{n}", "key": "k", "payload": {"n": n}} for n in range(2000)]
    lines = "".join(json.dumps(e) + "\n" for e in good)
    bad = lines + '{"type":"t", "payload": {}, "tennant": "x"}\n'
    r = shop.run("emit", "--jsonl", "-", stdin=bad, check=1)
    assert "-:2001: " in r.err and '"tenant"' in r.err and "nothing was written" in r.err
    assert rows(shop) == []
    r = shop.run("emit", "--jsonl", shop.write("events.jsonl", lines))
    assert len(r.out.split()) == 2000
    assert [t for (t,) in rows(shop)] == [e["type"] for e in good]
    # One of them is refused by the database itself: none is there.
    again = json.dumps({"type": "new"}) + "\n" + json.dumps({"type": "x", "id": r.out.split()[0]}) + "\n"
    r = shop.run("emit", "--jsonl", "-", stdin=again, check=1)
    assert "event 2" in r.err
    assert len(rows(shop)) == 2000
    assert shop.run("emit", "--jsonl", "-", stdin="").out == ""


def test_emit_of_a_long_file_shows_a_bar_on_a_terminal(shop):
    name = shop.write("many.jsonl", '{"type":"t"}\n' * 3000)
    code, shown = on_terminal([BIN, "emit", "--jsonl", name], shop.dir, {**shop.env, "TERM": "xterm"})
    assert code == 0 and "reading [" in shown
    assert "reading" not in shop.run("emit", "--jsonl", name).err
    assert len(rows(shop)) == 6000


# -- events --


def test_events_are_filtered_and_paged(shop):
    lines = [
        {"type": f"{'order' if n % 2 else 'user'}.made", "key": f"k{n % 3}", "tenant": f"t{n % 2}"} for n in range(30)
    ]
    shop.run("emit", "--jsonl", "-", stdin="".join(json.dumps(e) + "\n" for e in lines))
    numbers = lambda *args: [e["n"] for e in shop.json("events", "--json", *args)]
    everything = numbers()
    assert len(everything) == 30 and everything == sorted(everything)
    assert numbers("--limit", 4) == everything[-4:]
    assert numbers("--limit", 4, "--after", everything[9]) == everything[10:14]
    assert numbers("--after", everything[25]) == everything[26:]
    assert numbers("--type", "order.*") == everything[1::2]
    assert numbers("-k", "k1", "--tenant", "t0") == [everything[n] for n in range(30) if n % 3 == 1 and n % 2 == 0]
    assert numbers("--since", "1h") == everything and numbers("--until", "1h") == []
    assert numbers("--state", "published") == [] and numbers("--state", "pending", "--limit", 5) == everything[-5:]
    assert numbers("--state", "pending", "--limit", 5, "--after", everything[1]) == everything[2:7]
    one = shop.json("events", "--json")[7]
    assert [e["id"] for e in shop.json("events", one["id"], "--json")] == [one["id"]]
    assert "payload" not in one
    shop.run("run", "--once")
    assert numbers("--state", "published") == everything


def test_events_show_nothing_that_moves_the_cursor_of_a_terminal(shop):
    shop.run("emit", "--type", "a\x1b[2Jb", "--key", "k\r\n", "--payload", '"\x7f"', "--kind", "text")
    r = shop.run("events", "--payload")
    assert "\x1b" not in r.out and "\r" not in r.out and "\x7f" not in r.out
    assert len(r.out.splitlines()) == 3


# -- tail --


def test_tail_follows_what_is_committed(shop):
    shop.run("emit", "--type", "before")
    tail = shop.start("tail", "--json", "--type", "order.*", "--limit", "3", "--payload")
    all_from_start = shop.start("tail", "--from", "start", "--limit", "6", "--json")
    # It has found the end of the table before anything new is there.
    wait_until(lambda: json_lines(all_from_start), 10, "the old one is shown")
    for n in range(5):
        shop.run("emit", "--type", "order.placed" if n != 1 else "user.made", "--payload", n)
    assert all_from_start.wait() == 0
    assert [e["type"] for e in json_lines(all_from_start)][:2] == ["before", "order.placed"]
    if tail.alive:  # it started late and missed some: it must get the next ones
        for n in range(5, 9):
            shop.run("emit", "--type", "order.placed", "--payload", n)
    assert tail.wait() == 0
    shown = json_lines(tail)
    assert len(shown) == 3 and {e["type"] for e in shown} == {"order.placed"}
    numbers = [e["payload"] for e in shown]
    assert numbers == sorted(numbers)


def test_tail_shows_a_long_table_from_its_start(shop):
    shop.run("emit", "--jsonl", "-", stdin='{"type":"t"}\n' * 2500)
    shown = shop.json("tail", "--from", "start", "--limit", "2500", "--json")
    assert [e["n"] for e in shown] == list(range(1, 2501))


def test_tail_from_a_number_and_its_end(shop):
    for n in range(4):
        shop.run("emit", "--type", f"t{n}")
    numbers = [e["n"] for e in shop.json("events", "--json")]
    shown = shop.json("tail", "--from", numbers[2], "--json", "--seconds", "0")
    assert [e["type"] for e in shown] == ["t2", "t3"]
    assert shop.run("tail", "--seconds", "0").out == ""
    assert "not now, start or a number" in shop.run("tail", "--from", "x", check=2).err
    follower = shop.start("tail", "--from", "start")
    wait_until(lambda: "t3" in follower.out, 10, "shown")
    follower.signal(signal.SIGINT)
    assert follower.wait() == -signal.SIGINT


# -- status --

FIELDS = {"state", "pending", "lag_ms", "published", "failed", "dead", "parked", "in_flight", "owner"}


def test_status_before_while_and_after(shop):
    s = shop.json("status", "--json")
    assert len(s) == 1 and FIELDS <= set(s[0]) and s[0]["pipeline"] == "local"
    assert s[0]["state"] == "stopped" and s[0]["owner"] is None and s[0]["pending"] == 0
    for _ in range(3):
        shop.run("emit", "--type", "t")
    s = shop.json("status", "--json")[0]
    assert s["pending"] == 3 and s["lag_ms"] >= 0 and s["published"] == 0
    relay = shop.start("run")
    s = wait_until(lambda: [x for x in shop.json("status", "--json") if x["published"] == 3], 10, "published")[0]
    assert s["state"] == "running" and str(relay.pid) in s["owner"] and s["pending"] == 0
    assert "running" in shop.run("status").out
    assert relay.stop() == 0
    assert shop.json("status", "--json")[0]["state"] == "stopped"


def test_status_again_and_again(shop):
    r = shop.run("status", "--watch", "--rounds", "2", "--json")
    assert len(r.out.splitlines()) == 2
    assert shop.run("status", "--watch", "--rounds", "1").out.count("PIPELINE") == 1


def test_status_of_a_pipeline_that_cannot_be_asked(outbox):
    outbox.write("outbox.yaml", CONFIG + CONFIG.split("\n", 1)[1].replace("local:", "gone:").replace("app.db", "gone.db"))
    outbox.run("schema", "--apply", "-p", "local")
    s = outbox.json("status", "--json", check=75)
    assert [x["state"] for x in s] == ["stopped", "error"]
    assert "gone.db" in s[1]["error"]
    assert "gone.db" in outbox.run("status", check=75).out


def test_the_folder_is_not_changed_by_looking(shop):
    shop.run("emit", "--type", "t")
    seen = lambda: {p.name for p in shop.dir.iterdir() if not p.name.startswith("app.db-")}
    before = seen()
    for args in (["status"], ["events"], ["dead", "list"], ["check"], ["check", "--explain"]):
        shop.run(*args)
    assert seen() == before
    assert os.path.getsize(shop.path("app.db")) > 0
