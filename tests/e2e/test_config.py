# SPDX-License-Identifier: Apache-2.0
"""test_config - what the program makes of config files: good, bad and absurd ones."""

import json

import pytest

GOOD = """\
pipelines:
  local:
    service: ${SHOP:-shop}
    source: {type: sqlite, path: ./app.db}
    sink: {type: file, path: ./events.jsonl}
    routes: [{topic: "shop.${type}"}]
"""

ABSURD = {
    "empty": (b"", "the file is empty"),
    "only comments": (b"# nothing here\n", "the file is empty"),
    "binary": (bytes(range(256)) * 64, "this is not UTF-8 text"),
    "NUL bytes": (b"\0" * 4096, "this is not UTF-8 text"),
    "ten megabytes": (b"# 16 bytes here\n" * (10 << 16), "larger than 1 MiB; this cannot be a config"),
    "deeply nested": (b"pipelines: " + b"[" * 100_000, "nested deeper than 64 levels"),
    "many values": (b"pipelines:\n" + b"- a\n" * 150_000, "more than 100000 values"),
    "one long line": (b"pipelines: " + b"x" * 1_000_000, "pipelines: needs a map with at least one name"),
    "aliases that would grow": (b"a: &a [x]\nb: [*a, *a]\n", "anchors ('&a') are not supported"),
}


@pytest.mark.parametrize("name", ABSURD)
@pytest.mark.parametrize("command", ["check", "run"])
def test_absurd_files_are_refused(outbox, name, command):
    data, want = ABSURD[name]
    outbox.path("outbox.yaml").write_bytes(data)
    done = outbox.run(command, check=78)
    assert want in done.err
    assert "outbox.yaml" in done.err


def test_every_problem_has_its_line(outbox):
    outbox.write("c.yaml", "log: {level: loud}\npipelines:\n  a:\n    source: {type: sqlite, pth: x}\n    sink: {type: fil}\n")
    lines = outbox.run("check", "-c", "c.yaml", check=78).err.splitlines()
    places = [line.split(": ")[1] for line in lines]
    assert places == ["c.yaml:1:14", "c.yaml:4:13", "c.yaml:4:28", "c.yaml:5:18"]
    assert "did you mean 'path'?" in lines[2]
    assert "did you mean 'file'?" in lines[3]


def test_explain_says_where_values_come_from(outbox):
    outbox.write("outbox.yaml", GOOD)
    text = outbox.run("check", "--explain", env={"SHOP": "corner"}).out
    rows = {line.split("#")[0].strip(): line.split("# ")[1] for line in text.splitlines() if "#" in line}
    assert rows["service: corner"] == "from outbox.yaml:3:14"
    assert rows["max_attempts: 10"] == "default"
    assert rows['- topic: "shop.${type}"'] == "from outbox.yaml:6:22"
    outbox.write("again.yaml", text)
    again = outbox.run("check", "--explain", "-c", "again.yaml").out
    assert [line.split(" #")[0] for line in again.splitlines()] == [line.split(" #")[0] for line in text.splitlines()]


def test_explain_as_json(outbox):
    outbox.write("outbox.yaml", GOOD)
    rows = {row["path"]: row for row in json.loads(outbox.run("check", "--explain", "--json").out)}
    assert rows["pipelines.local.shards"] == {"path": "pipelines.local.shards", "value": 1, "from": "default"}
    assert rows["pipelines.local.routes[0].topic"]["value"] == "shop.${type}"
    assert rows["pipelines.local.source.path"]["from"] == "outbox.yaml:4:34"


def test_a_profile_stands_under_the_users_values(outbox):
    outbox.path("mine").mkdir()
    outbox.write("mine/shop.yaml", "source: {type: sqlite, path: base.db}\nsink: {type: file, path: base.jsonl}\nmax_attempts: 3\n")
    outbox.write("outbox.yaml", "pipelines: {a: {profile: shop, sink: {path: own.jsonl}}}\n")
    rows = json.loads(outbox.run("check", "--explain", "--json", env={"OUTBOX_PROFILES": "mine"}).out)
    found = {row["path"]: (row["value"], row["from"]) for row in rows}
    assert found["pipelines.a.sink.path"] == ("own.jsonl", "outbox.yaml:1:45")
    assert found["pipelines.a.source.path"] == ("base.db", "mine/shop.yaml:1:30")
    assert found["pipelines.a.max_attempts"] == (3, "mine/shop.yaml:3:15")


def test_an_unset_variable_names_itself_and_its_place(outbox):
    outbox.write("outbox.yaml", GOOD.replace("${SHOP:-shop}", "${NO_SUCH_VARIABLE}"))
    err = outbox.run("run", "--once", check=78).err
    assert "outbox.yaml:3:14: environment variable NO_SUCH_VARIABLE is not set" in err


def test_null_without_quotes_is_explained(outbox):
    """`type: null` is no text for YAML, although a sink has this name."""
    text = 'pipelines:\n  p:\n    source: {type: sqlite, path: app.db}\n    sink: {type: %s}\n'
    outbox.write("outbox.yaml", text % "null")
    r = outbox.run("check", check=78)
    assert "outbox.yaml:4:18: pipelines.p.sink.type has no value" in r.err and 'write "null"' in r.err
    outbox.write("outbox.yaml", text % '"null"')
    outbox.run("schema", "--apply")
    outbox.run("check")
