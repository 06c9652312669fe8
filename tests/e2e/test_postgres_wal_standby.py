# SPDX-License-Identifier: Apache-2.0
"""test_postgres_wal_standby - mode wal beside real stand-by servers: commits that nobody sees yet, a promoted server, another
cluster."""

import os
import subprocess
import threading

import pytest

import services
from helpers import read_jsonl, wait_until
from pg import config, emit
from wal import on_stream, slots, stand_by, wal_config


def ns(outbox, name="out/events.jsonl"):
    return [m["value"]["n"] for m in read_jsonl(outbox.path(name))]


def first(seen):
    return list(dict.fromkeys(seen))


@pytest.mark.slow
def test_a_commit_that_nobody_sees_is_not_delivered(outbox, own_postgres):
    """The synchronous stand-by is stopped: decoding sees the commit, SQL does not, until it is back."""
    server = own_postgres()
    db = server.database()
    wal_config(outbox, db)
    config(outbox, db, name="off.yaml", path="out/off.jsonl", source="mode: wal, wait_visible: off", apply=False)
    outbox.path("off.yaml").write_text(outbox.path("off.yaml").read_text().replace("orders:", "eager:"))
    other = stand_by(own_postgres, server, "sync")
    server.connect().cursor().execute("alter system set synchronous_standby_names = 'sync'")
    server.connect().cursor().execute("select pg_reload_conf()")
    wait_until(lambda: db.one("select count(*) from pg_stat_replication where sync_state = 'sync'") == 1, 20, "synchronous")
    relay, eager = outbox.start("run"), outbox.start("run", "-c", "off.yaml")
    on_stream(relay)
    on_stream(eager)
    c = db.connect().cursor()
    emit(c, "k", 1)
    wait_until(lambda: ns(outbox) == [1] and ns(outbox, "out/off.jsonl") == [1], 10, "delivered")
    other.stop("fast")
    done = threading.Event()

    def write():
        emit(db.connect().cursor(), "k", 2)
        done.set()

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    wait_until(lambda: ns(outbox, "out/off.jsonl") == [1, 2], 20, "decoding sees it")
    beat = db.one("select beat from outbox.cursor where pipeline = 'orders'")
    wait_until(lambda: db.one("select beat from outbox.cursor where pipeline = 'orders'") > beat + 2, 20, "the relay lives")
    assert not done.is_set() and db.one("select count(*) from outbox.event where aggregate_id = 'k'") == 1
    assert ns(outbox) == [1], "not delivered before anybody sees it"
    wait_until(lambda: "wal.invisible" in relay.err, 20, "and it says why")
    shown = outbox.run("check", check=None).out
    assert "synchronous_standby_names = 'sync' asks for 1 stand-by(s) and 0 are there (connected: " in shown, shown
    assert "outbox wal async" in shown and "ALTER SYSTEM RESET synchronous_standby_names; SELECT pg_reload_conf();" in shown, shown
    other.start()
    wait_until(lambda: ns(outbox) == [1, 2], 20, "and now it is")
    writer.join()
    wait_until(lambda: "1 synchronous stand-by(s) of synchronous_standby_names = 'sync'" in outbox.run("check", check=None).out, 20)
    assert relay.stop() == 0 and eager.stop() == 0
    assert relay.err.count("wal.invisible") == 1 and "synchronous_standby_names" in relay.err, "said once"
    assert "wal.invisible" not in eager.err


@pytest.mark.slow
def test_a_promoted_stand_by(outbox, own_postgres):
    """It has the tables but no slot: the table is read from the anchor, and our position is of another timeline."""
    server = own_postgres()
    db = server.database()
    wal_config(outbox, db)
    other = stand_by(own_postgres, server, "next")
    relay = outbox.start("run")
    on_stream(relay)
    c = db.connect().cursor()
    for n in range(1, 20):
        emit(c, "k", n)
    wait_until(lambda: ns(outbox) == list(range(1, 20)), 10, "delivered")
    assert relay.stop() == 0
    for n in range(20, 25):
        emit(c, "k", n)
    wait_until(lambda: other_sees(other, db.name, 24), 20, "replicated")
    server.stop("immediate")
    other.tool("pg_ctl", "promote", "-D", f"{other.dir}/data", "-w")
    moved = services.Database.__new__(services.Database)
    moved.server, moved.name, moved.opened = other, db.name, []
    wal_config(outbox, moved, apply=False)
    relay = outbox.start("run")
    on_stream(relay)
    assert "promoted" in relay.err
    emit(moved.connect().cursor(), "k", 25)
    wait_until(lambda: first(ns(outbox)) == list(range(1, 26)), 20, "nothing is skipped")
    assert relay.stop() == 0
    assert len(slots(moved)) == 1


def other_sees(server, name, n):
    c = server.connect(name)
    try:
        cur = c.cursor()
        cur.execute("select count(*) from outbox.event")
        return cur.fetchone()[0] == n
    finally:
        c.close()


@pytest.mark.slow
def test_another_cluster(outbox, own_postgres):
    """Dumped and restored: neither LSN nor transaction ids mean anything there."""
    server, other = own_postgres(), own_postgres()
    db = server.database()
    wal_config(outbox, db)
    c = db.connect().cursor()
    outbox.run("run", "--once")
    for n in range(1, 10):
        emit(c, "k", n)
    outbox.run("run", "--once")
    for n in range(10, 15):
        emit(c, "k", n)
    new = other.database()
    dump = server.tool("pg_dump", "-d", db.name).stdout
    c2 = other.connect()
    for (role,) in db.sql("select rolname from pg_roles where rolname like 'outbox%'"):
        c2.cursor().execute(f"create role {role} nologin")
    restore(other, new, dump)
    wal_config(outbox, new, apply=False)
    relay = outbox.start("run")
    on_stream(relay)
    emit(new.connect().cursor(), "k", 15)
    wait_until(lambda: first(ns(outbox)) == list(range(1, 16)), 20, "nothing is skipped")
    assert relay.stop() == 0


def restore(server, db, dump):
    env = {**os.environ, "PGHOST": "127.0.0.1", "PGPORT": str(server.port), "PGUSER": "postgres"}
    r = subprocess.run([f"{server.bin}/psql", "-q", "-v", "ON_ERROR_STOP=1", "-d", db.name], input=dump, env=env, text=True,
                       capture_output=True, check=False)
    assert r.returncode == 0, r.stderr
