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
    shop.write("outbox.yaml", CONFIG.replace("    sink:", "    nonsense: 1\n    sink:"))
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


POSTGRES = """
pipelines:
  shop:
    source: {{type: postgres, dsn: "{dsn}"}}
    sink: {{type: file, path: events.jsonl}}
"""
POLYSHOP = """create table outbox_events (id uuid primary key, aggregate_id text not null,
    event_type text not null, version int not null default 1, payload jsonb not null,
    created_at timestamptz not null default now(), processed boolean not null default false,
    processed_at timestamptz, error_message text)"""


def run_postgres(outbox, *args):
    return subprocess.run(
        [example("postgres"), *args], cwd=outbox.dir, capture_output=True, text=True,
        timeout=20 * SLOW, check=False,
    )


def test_postgres_commits_orders_with_their_events(outbox, db):
    """As a role that may emit and nothing else of the outbox."""
    outbox.write("outbox.yaml", POSTGRES.format(dsn=db.dsn))
    outbox.run("schema", "--apply")
    db.sql("create role shop_app login in role outbox_writer; grant create on schema public to shop_app")
    try:
        r = run_postgres(outbox, db.dsn_of("shop_app"))
        assert (r.returncode, r.stderr) == (0, "")
        assert r.stdout.splitlines() == ["placed: o-1", "refused: o-2", "placed: o-3"]
        assert db.sql("select id, pieces from orders order by id") == [("o-1", 3), ("o-3", 2)]
        outbox.run("run", "--once")
        events = read_jsonl(outbox.path("events.jsonl"))
        assert [(e["key"], e["value"]["pieces"]) for e in events] == [("o-1", 3), ("o-3", 2)]
        assert db.sql("select distinct metadata ->> 'userId' from outbox.event") == [("anna",)]
    finally:
        db.sql("drop owned by shop_app; drop role shop_app")


def test_postgres_writes_the_table_of_an_existing_system(outbox, db):
    r = run_postgres(outbox, db.dsn, "polyshop")
    assert r.returncode == 1 and "outbox_events" in r.stderr
    db.sql(POLYSHOP)
    r = run_postgres(outbox, db.dsn, "polyshop")
    assert r.returncode == 0, r.stderr
    assert r.stdout.splitlines() == ["placed: o-1", "refused: o-2", "placed: o-3"]
    assert db.sql("select aggregate_id, event_type, version, payload - 'metadata', processed from outbox_events order by 1") == [
        ("o-1", "order.placed", 1, {"order": "o-1", "pieces": 3}, False),
        ("o-3", "order.placed", 1, {"order": "o-3", "pieces": 2}, False),
    ]
    # The table has no column `metadata`: the context is in the payload.
    assert db.sql("select distinct payload #>> '{metadata,userId}' from outbox_events") == [("anna",)]


MONGODB = """
pipelines:
  shop:
    source: {{type: mongodb, uri: "{uri}", database: {name}}}
    sink: {{type: file, path: events.jsonl}}
"""


def run_mongodb(outbox, mdb, *args):
    uri = mdb.uri.replace("/?", f"/{mdb.name}?")
    return subprocess.run(
        [example("mongodb"), uri, *args], cwd=outbox.dir, capture_output=True, text=True, timeout=60 * SLOW, check=False,
    )


def test_mongodb_commits_orders_with_their_events(outbox, mdb):
    r = run_mongodb(outbox, mdb)
    assert r.stdout.splitlines() == ["placed: o-1", "refused: o-1", "placed: o-2"], r.stderr
    assert r.returncode == 0
    assert list(mdb["orders"].find().sort("_id")) == [{"_id": "o-1", "pieces": 3}, {"_id": "o-2", "pieces": 2}]
    assert mdb["outbox_events"].count_documents({"metadata.userId": "anna", "status": "pending"}) == 2
    outbox.write("outbox.yaml", MONGODB.format(uri=mdb.uri, name=mdb.name))
    outbox.run("run", "--once")
    assert [(e["key"], e["value"]["pieces"]) for e in read_jsonl(outbox.path("events.jsonl"))] == [("o-1", 3), ("o-2", 2)]
    assert mdb["outbox_events"].count_documents({"status": "published"}) == 2


def test_mongodb_writes_the_documents_of_an_existing_system(outbox, mdb):
    r = run_mongodb(outbox, mdb, "orion")
    assert r.returncode == 1 and "there is sc" in r.stderr
    r = run_mongodb(outbox, mdb, "sc")
    assert r.returncode == 0, r.stderr
    docs = list(mdb["outbox"].find({}, {"_id": 0, "event_id": 0, "created_at": 0}).sort("entity_id"))
    assert [d["entity_id"] for d in docs] == ["o-1", "o-2"]
    assert docs[0] == {
        "event_type": "order.placed", "entity_type": "order", "entity_id": "o-1", "entity_version": 1, "topic": "sc.domain.order",
        "partition_key": "o-1", "payload": {"order": "o-1", "pieces": 3}, "status": "pending", "retry_count": 0, "max_retries": 5,
        "last_error": None, "last_error_at": None, "processing_started_at": None, "published_at": None, "locked_by": None,
        "locked_until": None,
    }
