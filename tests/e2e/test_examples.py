# SPDX-License-Identifier: Apache-2.0
"""The examples do what they say, built against the shared library."""

import contextlib
import os
import pathlib
import signal
import sqlite3
import subprocess

import pytest

from helpers import BIN, SLOW, read_jsonl, wait_until

BUILD = pathlib.Path(BIN).parent
CONFIG = """
pipelines:
  shop:
    source: {type: sqlite, path: app.db}
    sink: {type: file, path: events.jsonl}
"""


def example(name):
    path = BUILD / "examples" / name
    assert os.access(path, os.X_OK), f"{path} is not built"
    return str(path)


@pytest.fixture
def shop(outbox):
    outbox.write("outbox.yaml", CONFIG)
    outbox.run("schema", "--apply")
    return outbox


def emit(outbox, n):
    for i in range(n):
        outbox.run("emit", "--type", "order.placed", "--aggregate-id", f"{i}", "--payload", "{}")


def test_every_example_is_run():
    """An example that no test names would rot."""
    here = pathlib.Path(__file__).read_text()
    folder = pathlib.Path(__file__).resolve().parents[2] / "examples"
    names = [p.stem for p in folder.glob("*.c")]
    assert names
    assert [n for n in names if f'example("{n}")' not in here] == []


@pytest.mark.threads
def test_embed_once_relays_what_is_there(shop):
    emit(shop, 3)
    p = shop.start(argv=[example("embed"), "outbox.yaml", "--once"])
    assert p.wait() == 0, p.err
    assert p.out == "relay ended: ok\n"
    assert len(read_jsonl(shop.path("events.jsonl"))) == 3


@pytest.mark.threads
def test_embed_runs_reloads_and_stops(shop):
    p = shop.start(argv=[example("embed"), "outbox.yaml"])
    emit(shop, 2)
    wait_until(lambda: len(read_jsonl(shop.path("events.jsonl"))) == 2, what="two events")
    shop.write("outbox.yaml", "pipelines: {shop: {nonsense: 1}}\n")
    p.signal(signal.SIGHUP)
    wait_until(lambda: "nonsense" in p.err, what="the bad config is reported")
    shop.write("outbox.yaml", CONFIG.replace("    sink:", "    routes: [{topic: moved}]\n    sink:"))
    p.signal(signal.SIGHUP)
    wait_until(lambda: reloaded(shop), deadline=20, what="an event with the new topic")
    assert p.stop() == 0, p.err
    assert p.out == "relay ended: ok\n"


def reloaded(shop):
    emit(shop, 1)
    return any(line.get("topic") == "moved" for line in read_jsonl(shop.path("events.jsonl")))


def test_embed_reports_a_bad_config(outbox):
    outbox.write("outbox.yaml", "pipelines: 1\n")
    r = subprocess.run(
        [example("embed"), "outbox.yaml"], cwd=outbox.dir, capture_output=True, text=True,
        timeout=20 * SLOW, check=False,
    )
    assert r.returncode == 1
    assert "outbox.yaml:1:" in r.stderr


def run_example(name, outbox):
    return subprocess.run(
        [example(name), "app.db"], cwd=outbox.dir, capture_output=True, text=True,
        timeout=20 * SLOW, check=False,
    )


def rows(outbox, query):
    with contextlib.closing(sqlite3.connect(outbox.path("app.db"))) as db:
        return db.execute(query).fetchall()


def test_orders_commit_with_their_events(outbox):
    outbox.write("outbox.yaml", CONFIG)
    r = run_example(pathlib.Path(example("orders")).name, outbox)
    assert (r.returncode, r.stderr) == (0, "")
    assert [line.split(":")[0] for line in r.stdout.splitlines()] == ["placed", "refused", "placed"]
    assert rows(outbox, "select pieces from orders order by id") == [(3,), (2,)]
    events = rows(
        outbox,
        "select type, aggregate_id, json_extract(payload, '$.pieces'), entity_version,"
        " json_extract(metadata, '$.userId'), json_extract(metadata, '$.source')"
        " from outbox_event order by seq",
    )
    ids = [str(i) for (i,) in rows(outbox, "select id from orders order by id")]
    assert events == [
        ("order.placed", ids[0], 3, 1, "anna", "shop"),
        ("order.placed", ids[1], 2, 1, "anna", "shop"),
    ]
    outbox.run("run", "--once")
    assert [e["key"] for e in read_jsonl(outbox.path("events.jsonl"))] == ids


def test_collect_writes_all_or_nothing(outbox):
    r = run_example(pathlib.Path(example("collect")).name, outbox)
    assert (r.returncode, r.stderr) == (0, "")
    assert r.stdout.splitlines() == [
        "moved 700",
        "not moved: account a is overdrawn; 2 events are still collected",
        "moved 100",
    ]
    assert rows(outbox, "select id, cents from account order by id") == [("a", 400), ("b", 600)]
    assert rows(
        outbox,
        "select type, aggregate_id, json_extract(payload, '$.cents') from outbox_event order by seq",
    ) == [
        ("account.debited", "a", 700),
        ("account.credited", "b", 700),
        ("account.debited", "b", 100),
        ("account.credited", "a", 100),
    ]
