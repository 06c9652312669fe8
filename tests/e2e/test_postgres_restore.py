# SPDX-License-Identifier: Apache-2.0
"""test_postgres_restore - a database that comes back as another one: dump and restore, a promoted stand-by, a point-in-time restore.
Each is noticed and said once, nothing that the restored database holds is skipped, and what comes again is what it had not settled.

Writers are threads with a ledger of their own commits. What a restore has lost the ledger has too: it is cut at the mark that the
test set before, never by looking into the outbox."""

import os
import re
import shutil

import pytest

from helpers import read_jsonl, wait_until
from pg import StubbornWriter, Writer, all_there, check_ledger, config, delivered, emit
from services import Database

KEYS = [f"k{i}" for i in range(4)]


def numbers(path):
    return [v["n"] for v in delivered(path)]


@pytest.mark.slow
@pytest.mark.parametrize("shards", [1, 3])
def test_a_dump_restored_into_another_cluster(outbox, own_postgres, db, shards):
    """The position is behind events of transactions that were open when the dump was made, and behind some that had just been
    committed; the new cluster's transaction ids say nothing about them."""
    more = f"    shards: {shards}" if shards > 1 else ""
    config(outbox, db, path="out/old", more=more)
    relay = outbox.start("run")
    late, lost = db.connect(autocommit=False), db.connect(autocommit=False)
    for n in range(10):
        emit(late.cursor(), f"late{n}", 1000 + n)
    emit(lost.cursor(), "lost", 2000)  # open for ever: the dump does not have it
    cur = db.connect().cursor()
    for n in range(100):
        emit(cur, KEYS[n % 4], n)
    old = lambda: [v["n"] for p in outbox.path("out").glob("old*") for v in delivered(p)]
    wait_until(lambda: len(old()) == 100, 20, "the first hundred are delivered")
    wait_until(lambda: db.one("select min(pos) from outbox.cursor") >= 111, 20, "and settled, past the open ones")
    assert relay.stop() == 0
    late.commit()  # below the position, and no relay has seen them
    for n in range(100, 120):
        emit(cur, KEYS[n % 4], n)
    dump = outbox.path("dump.sql")
    other = own_postgres()
    shutil.copy(write_dump(db, dump), dump)
    # Transaction ids of the new cluster run ahead of the old ones or behind them; both must do.
    new = other.database()
    r = other.tool("psql", "-q", "-v", "ON_ERROR_STOP=1", "-f", db.server.dir + "/dump.sql", new.name, check=False)
    assert r.returncode == 0, r.stderr
    config(outbox, new, path="out/new", more=more, apply=False)
    relay = outbox.start("run")
    got = lambda: [v["n"] for p in outbox.path("out").glob("new*") for v in delivered(p)]
    wait_until(lambda: len(got()) >= 30, 30, "what was not settled is delivered")
    writer = Writer(new, KEYS, pause=0.001)
    writer.start()
    wait_until(lambda: writer.total() > 300, 30, "life goes on")
    writer.stop()
    wait_until(lambda: len(got()) >= 30 + writer.total(), 30, "all delivered")
    assert relay.stop() == 0
    assert sorted(got())[-10:] == list(range(1000, 1010)), "those that were open, once"
    assert set(range(100, 120)) <= set(got())
    assert len(got()) == 30 + writer.total(), "nothing that was settled comes again"
    told = re.findall(r"msg=source\.restored pipeline=orders (?:shard=(\d+))?", relay.err)
    assert told and len(told) == len(set(told)), "each shard says it once"
    assert "another cluster" in relay.err
    # Once adopted it is like any other: a further run says nothing and reads nothing.
    r = outbox.run("run", "--once")
    assert "source.restored" not in r.err and len(got()) == 30 + writer.total()


def write_dump(db, path):
    """A dump as the server's user writes it, readable by all."""
    target = f"{db.server.dir}/dump.sql"
    db.server.tool("pg_dump", "--no-owner", "--no-privileges", "-f", target, db.name)
    os.chmod(target, 0o644)
    return target


@pytest.mark.slow
def test_a_dump_restored_into_the_same_cluster(outbox, db):
    """Another database of the same server: its ids would look familiar."""
    config(outbox, db)
    cur = db.connect().cursor()
    for n in range(20):
        emit(cur, "a", n)
    outbox.run("run", "--once")
    for n in range(20, 25):
        emit(cur, "a", n)
    write_dump(db, None)
    new = db.server.database()
    try:
        db.server.tool("psql", "-q", "-v", "ON_ERROR_STOP=1", "-f", db.server.dir + "/dump.sql", new.name)
        config(outbox, new, path="out/new.jsonl", apply=False)
        r = outbox.run("run", "--once")
        assert numbers(outbox.path("out/new.jsonl")) == list(range(20, 25))
        assert r.err.count("source.restored") == 1
    finally:
        new.close()


def standby_of(server, own_postgres, *conf):
    """A streaming replica."""
    folder = f"{server.dir}/backup{len(os.listdir(server.dir))}"
    server.tool("pg_basebackup", "-D", folder, "-R", "-X", "stream", "-c", "fast")
    return own_postgres(source=folder, conf=list(conf))


@pytest.mark.slow
def test_a_promoted_stand_by(outbox, own_postgres):
    """The primary dies by SIGKILL, the replica is promoted; relay and writer have both in their connection string."""
    primary = own_postgres()
    db = primary.database()
    config(outbox, db)
    replica = standby_of(primary, own_postgres)
    both = Both(primary, replica, db)
    dsn = both.dsn
    config(outbox, db, dsn=dsn, apply=False)
    out = outbox.path("out/events.jsonl")
    relay = outbox.start("run")
    writer = StubbornWriter(both, KEYS, pause=0.002)
    writer.start()
    wait_until(lambda: len(delivered(out)) > 200, 30, "progress")
    # From here on every commit waits for the replica, so that the ledger knows what survives.
    db.sql("alter system set synchronous_standby_names = '*'")
    db.sql("select pg_reload_conf()")
    wait_until(lambda: db.one("select count(*) from pg_stat_replication where sync_state = 'sync'") == 1, 20, "synchronous")
    at = writer.total()
    wait_until(lambda: writer.total() > at + 100, 30, "progress in step")
    primary.kill()
    replica.tool("pg_ctl", "promote", "-w", "-D", f"{replica.dir}/data")
    at = len(delivered(out))
    wait_until(lambda: len(delivered(out)) > at + 100, 30, "goes on with the other one")
    writer.stop()
    wait_until(all_there(writer, out), 30, "all delivered")
    assert relay.stop() == 0
    check_ledger(writer, delivered(out), True)
    assert relay.err.count("source.timeline") == 1, "the new timeline is said once"
    assert "from=1 to=2" in relay.err
    noise = [x for x in relay.err.splitlines() if "level=error" in x or "level=warn" in x]
    assert len(noise) <= 8, f"a storm: {noise}"


@pytest.mark.slow
def test_a_primary_that_becomes_read_only(outbox, own_postgres):
    """Demoted without a restart: its sessions live on, but nothing can be recorded there. The connection string says nothing of
    target_session_attrs: of several hosts the relay takes one that can be written to."""
    primary = own_postgres()
    db = primary.database()
    config(outbox, db)
    replica = standby_of(primary, own_postgres)
    dsn = f"host=127.0.0.1,127.0.0.1 port={replica.port},{primary.port} user=postgres dbname={db.name}"
    config(outbox, db, dsn=dsn, apply=False)
    out = outbox.path("out/events.jsonl")
    relay = outbox.start("run")
    emit(db.connect().cursor(), "a", 1)
    wait_until(lambda: numbers(out) == [1], 30, "the primary is found")
    db.sql("alter system set default_transaction_read_only = on")
    db.sql("select pg_reload_conf()")
    wait_until(lambda: "read-only" in relay.err, 20, "noticed")
    replica.tool("pg_ctl", "promote", "-w", "-D", f"{replica.dir}/data")
    c = replica.connect(db.name)
    emit(c.cursor(), "a", 2)
    c.close()
    wait_until(lambda: 2 in numbers(out), 30, "goes on with the other one")
    assert relay.stop() == 0
    assert relay.err.count("source.timeline") == 1


class Both:
    """Stands for a database with two servers before a writer: whichever is primary."""

    def __init__(self, primary, replica, db):
        self.name, self.server = db.name, self
        self.psycopg2 = primary.psycopg2
        self.dsn = (
            f"host=127.0.0.1,127.0.0.1 port={primary.port},{replica.port} user=postgres dbname={db.name} "
            "target_session_attrs=read-write"
        )

    def connect(self, name, autocommit=True):
        c = self.psycopg2.connect(self.dsn, connect_timeout=5)
        c.autocommit = autocommit
        return c


@pytest.mark.slow
def test_a_point_in_time_restore(outbox, own_postgres, tmp_path):
    """Back to a point before the last events. The cursor is of that point too: what was delivered since then and is there again, by
    number or by id, is delivered again and said why; what is written now is not taken for what was there before."""
    first = own_postgres(conf=["archive_mode = on", "archive_command = 'cp %p ../archive-%f'", "wal_level = logical"])
    db = first.database()
    config(outbox, db, path="out/before.jsonl")
    cur = db.connect().cursor()
    for n in range(50):
        emit(cur, KEYS[n % 4], n)
    outbox.run("run", "--once")
    backup = f"{first.dir}/base"
    first.tool("pg_basebackup", "-D", backup, "-X", "fetch", "-c", "fast")
    for n in range(50, 80):
        emit(cur, KEYS[n % 4], n)
    open_writer = db.connect(autocommit=False)
    emit(open_writer.cursor(), "open", 500)
    cur.execute("select pg_create_restore_point('here')")
    for n in range(80, 100):  # after the point: gone with it, but delivered and settled
        emit(cur, KEYS[n % 4], n)
    open_writer.commit()
    outbox.run("run", "--once")
    assert sorted(numbers(outbox.path("out/before.jsonl"))) == [*range(100), 500]
    segment = db.one("select pg_walfile_name(pg_switch_wal() - 1)")  # the last one written to
    wait_until(lambda: db.one("select last_archived_wal >= '" + segment + "' from pg_stat_archiver"), 60, "archived")
    first.stop()
    first.write(f"{backup}/recovery.signal", b"")
    restored = own_postgres(
        source=backup,
        conf=[f"restore_command = 'cp {first.dir}/archive-%f %p'", "recovery_target_name = 'here'",
              "recovery_target_action = promote", "archive_mode = off"],
    )
    wait_until(lambda: not restored.one("select pg_is_in_recovery()"), 30, "restored")
    again = Database.__new__(Database)
    again.server, again.name, again.opened = restored, db.name, []
    cur = again.connect().cursor()
    for n in range(200, 260):  # these get numbers and transaction ids that the lost ones had
        emit(cur, KEYS[n % 4], n)
    config(outbox, again, path="out/after.jsonl", apply=False)
    r = outbox.run("run", "--once")
    got = numbers(outbox.path("out/after.jsonl"))
    assert sorted(got) == [*range(50, 80), *range(200, 260)], "nothing of the restored database is skipped"
    for key in KEYS:
        mine = [v["n"] for v in delivered(outbox.path("out/after.jsonl")) if v["key"] == key]
        assert mine == sorted(mine)
    assert r.err.count("source.timeline") == 1 and "from=1 to=2" in r.err
    ids = {m["value"]["n"]: m["id"] for m in read_jsonl(outbox.path("out/before.jsonl"))}
    assert all(m["id"] == ids[m["value"]["n"]] for m in read_jsonl(outbox.path("out/after.jsonl")) if m["value"]["n"] < 100)
    assert "source.timeline" not in outbox.run("run", "--once").err, "said once"
