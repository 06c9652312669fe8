# SPDX-License-Identifier: Apache-2.0
"""test_postgres_reconnect - servers that stop, crash, are full, locked, or set up against us. After each the relay goes on by itself,
nothing is lost or out of order, and the log has a few lines and not a storm."""

import os
import pwd
import signal
import subprocess
import time

import pytest

from helpers import read_jsonl, wait_until
from pg import ROWS, StubbornWriter, Writer, all_there, check_ledger, config, delivered, emit, insert, rows_table

KEYS = [f"k{i}" for i in range(4)]


def noise(relay):
    """Lines that somebody would be woken up by, or that fill a disk."""
    return [x for x in relay.err.splitlines() if " level=debug " not in x and "relay.batch" not in x]


def running(outbox, db, kind=StubbornWriter, write=emit, **more):
    """A relay and a writer at work."""
    config(outbox, db, **more)
    out = outbox.path("out/events.jsonl")
    relay = outbox.start("run")
    writer = kind(db, KEYS, pause=0.002, emit=write)
    writer.start()
    wait_until(lambda: len(delivered(out)) > 50, 30, "progress")
    return relay, writer, out


def goes_on(writer, out, n=100, deadline=30):
    at = max(v["n"] for v in delivered(out))
    wait_until(lambda: max(v["n"] for v in delivered(out)) > at + n, deadline, "goes on")


def finish(relay, writer, out, repeats=True):
    writer.stop()
    wait_until(all_there(writer, out), 30, "all delivered")
    assert relay.stop() == 0
    return check_ledger(writer, delivered(out), repeats)


@pytest.mark.slow
def test_restarts_of_the_server(outbox, own_postgres):
    """Stopped in order, stopped at once, killed, and away for a while."""
    server = own_postgres(conf=["fsync = on"])
    db = server.database()
    relay, writer, out = running(outbox, db)
    server.restart("fast")
    goes_on(writer, out)
    server.restart("immediate")
    goes_on(writer, out)
    server.kill()
    server.start()
    goes_on(writer, out)
    server.stop("fast")
    wait_until(lambda: relay.err.count("source.own") >= 1, 20, "noticed")
    time.sleep(3)  # is there a storm?
    server.start()
    goes_on(writer, out)
    finish(relay, writer, out)
    lines = noise(relay)
    assert len(lines) <= 30, f"a storm of {len(lines)} lines: {lines}"
    assert all(x.startswith("ts=") for x in relay.err.splitlines()), "no line that is not ours"
    assert "relay.start" in [x for x in lines if any(w in x for w in ("relay.start", "relay.fenced", "source.own"))][-1], "it is back"
    assert db.one("select dead + parked from outbox.pipeline") == 0


@pytest.mark.slow
def test_backends_that_are_terminated_twice_a_second(outbox, db):
    relay, writer, out = running(outbox, db, Writer)
    since = time.monotonic()
    at, ended, c = len(delivered(out)), 0, db.connect().cursor()

    def enough():
        nonlocal ended
        c.execute(
            "select count(pg_terminate_backend(pid)) from (select pid from pg_stat_activity where application_name "
            "like 'outbox%' and datname = current_database() order by random() limit 1) x"
        )
        ended += c.fetchone()[0]
        return time.monotonic() > since + 8 and ended >= 8 and len(delivered(out)) > at + 100

    wait_until(enough, 60, "progress in spite of it", every=0.5)
    finish(relay, writer, out)
    lines = noise(relay)
    assert len(lines) <= 12, f"a storm of {len(lines)} lines: {lines}"


@pytest.mark.slow
def test_time_outs_and_limits_of_a_role(outbox, db):
    """Whatever the role or the database sets, our sessions have their own: names are those of the system, waiting for a lock has
    our limit, and no transaction is serializable."""
    role = f"r_{db.name}"
    config(outbox, db)
    db.sql(f"create role {role} login in role outbox_relay")
    db.sql("create schema trap; create function trap.pg_try_advisory_lock(bigint) returns bool language sql as 'select false'; "
           "grant usage on schema trap to public")
    try:
        for setting in (
            "statement_timeout = '40ms'", "lock_timeout = '1ms'", "idle_in_transaction_session_timeout = '1ms'",
            "idle_session_timeout = '300ms'", "default_transaction_isolation = 'serializable'", "search_path = trap, pg_catalog",
            "timezone = 'Asia/Kathmandu'", "datestyle = 'German'", "bytea_output = 'escape'", "plan_cache_mode = force_custom_plan",
            "default_transaction_deferrable = on",
        ):
            db.sql(f"alter role {role} in database {db.name} set {setting}")
        relay, writer, out = running(outbox, db, Writer, dsn=db.dsn_of(role), apply=False)
        outbox.run("pause")
        wait_until(lambda: "relay.paused" in relay.err, 10, "paused: the reader's session idles")
        time.sleep(1)
        outbox.run("resume")
        goes_on(writer, out)
        holder = db.connect(autocommit=False)
        holder.cursor().execute("lock table outbox.cursor in access exclusive mode")
        wait_until(lambda: db.one("select count(*)::int from pg_locks where not granted and database = (select oid from pg_database "
                                  "where datname = current_database())") > 0, 20, "somebody waits for the lock")
        time.sleep(0.3)  # longer than the time-outs of the role
        holder.commit()
        serializable = 0
        for _ in range(30):
            serializable += db.one("select count(*)::int from pg_locks l join pg_stat_activity a using (pid) where l.mode = 'SIReadLock' "
                                   "and a.usename = %s", role)
            time.sleep(0.02)
        assert serializable == 0
        goes_on(writer, out)
        assert finish(relay, writer, out, False) == 0
        assert "relay.fenced" not in relay.err and "source.down" not in relay.err, relay.err[-3000:]
        assert "SQLSTATE" not in relay.err, "nothing was cancelled"
    finally:
        db.sql(f"drop owned by {role}")
        db.sql(f"drop role {role}")


@pytest.mark.slow
@pytest.mark.parametrize("table", ["outbox.event", "outbox.cursor", "public.jobs"])
def test_a_table_that_somebody_locks(outbox, db, table):
    """ALTER TABLE in an open transaction: everybody waits. It costs time and a line, not the ownership."""
    rows_table(db)
    relay, writer, out = running(outbox, db, **({"source": ROWS, "write": insert} if table == "public.jobs" else {}))
    ddl = db.connect(autocommit=False).cursor()
    ddl.execute("set local lock_timeout = 0")
    ddl.execute(f"alter table {table} add column more int")
    wait_until(lambda: "source.down" in relay.err, 30, "noticed")
    pid = ddl.connection.info.backend_pid
    told = outbox.run("check", check=None).out
    assert f"pg_terminate_backend({pid})" in told and table in told, told
    time.sleep(2)
    ddl.connection.rollback()
    goes_on(writer, out)
    assert "relay.fenced" not in relay.err, "its session was there all the time"
    assert finish(relay, writer, out) == 0, "nothing was thrown away, so nothing comes again"
    assert relay.err.count("source.down") == 1 and "lock" in relay.err, "\n".join(noise(relay))
    db.sql(f"vacuum full {table}")
    db.sql("alter table jobs set (autovacuum_enabled = off)")
    told = outbox.run("check", check=None).out
    assert ("ALTER TABLE public.jobs RESET (autovacuum_enabled);" in told) == (table == "public.jobs"), told


@pytest.mark.slow
def test_vacuum_full_while_it_runs(outbox, db):
    relay, writer, out = running(outbox, db)
    c = db.connect().cursor()
    for table in ("outbox.cursor", "outbox.event", "outbox.pipeline", "outbox.parked") * 2:
        c.execute(f"vacuum full {table}")
    goes_on(writer, out)
    assert finish(relay, writer, out) == 0
    assert "relay.fenced" not in relay.err


@pytest.mark.slow
def test_a_server_without_a_free_connection(outbox, own_postgres):
    server = own_postgres(conf=["max_connections = 12", "superuser_reserved_connections = 1", "max_wal_senders = 2"])
    db = server.database()
    config(outbox, db)
    db.sql("create role relay login in role outbox_relay")
    config(outbox, db, dsn=db.dsn_of("relay"), apply=False)
    emit(db.connect().cursor(), "a", 1)
    others = []
    try:
        while len(others) < 20:
            others.append(server.connect(db.name, "relay"))
    except server.psycopg2.OperationalError:
        pass
    relay = outbox.start("run")
    wait_until(lambda: "source.open" in relay.err, 20, "it cannot connect")
    assert "raise max_connections" in relay.err
    time.sleep(2)
    assert relay.err.count("source.open") == 1, "said once"
    for c in others:
        c.close()
    wait_until(lambda: len(read_jsonl(outbox.path("out/events.jsonl"))) == 1, 30, "it goes on when there is one")
    assert relay.stop() == 0


@pytest.mark.slow
def test_a_database_that_is_dropped_and_made_again(outbox, db):
    config(outbox, db)
    relay = outbox.start("run")
    out = outbox.path("out/events.jsonl")
    emit(db.connect().cursor(), "a", 1)
    wait_until(lambda: len(read_jsonl(out)) == 1, 20, "delivered")
    for c in db.opened:
        c.close()
    admin = db.server.connect()
    admin.cursor().execute(f"drop database {db.name} with (force)")
    wait_until(lambda: "does not exist" in relay.err, 20, "noticed")
    admin.cursor().execute(f"create database {db.name}")
    wait_until(lambda: "no schema outbox" in relay.err, 20, "what is missing is said")
    outbox.run("schema", "--apply")
    event = emit(db.connect().cursor(), "a", 2)
    wait_until(lambda: event in [m["id"] for m in read_jsonl(out)], 30, "the new one is relayed from its first event")
    assert relay.stop() == 0
    assert len(noise(relay)) <= 12, noise(relay)
    admin.close()


@pytest.fixture
def small_disk():
    """A file system of 24 MB for the server's user."""
    if os.getuid() != 0:
        pytest.skip("skipped: only root can make a small file system")
    path = f"/tmp/outbox-small-{os.getpid()}"
    os.makedirs(path, exist_ok=True)
    r = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", path], capture_output=True, text=True, check=False)
    if r.returncode != 0:
        os.rmdir(path)
        pytest.skip(f"skipped: no small file system: {r.stderr.strip()}")
    user = pwd.getpwnam("postgres")
    os.chown(path, user.pw_uid, user.pw_gid)
    yield path
    subprocess.run(["umount", "-l", path], check=False)
    os.rmdir(path)


@pytest.mark.slow
def test_a_full_disk_at_the_server(outbox, own_postgres, small_disk):
    """The relay's own tables cannot grow: nothing can be recorded, nothing is lost, and it goes on when there is room."""
    server = own_postgres()
    server.one_sql(f"create tablespace small location '{small_disk}'")
    try:
        db = server.database()
        config(outbox, db, more="    routes: [{topic: t, envelope: cloudevents-structured}]")
        db.sql("alter table outbox.cursor set tablespace small")
        for table in ("outbox.dead", "outbox.parked"):
            db.sql(f"alter table {table} set tablespace small")
        out = outbox.path("out/events.jsonl")
        cur = db.connect().cursor()
        for n in range(3):
            emit(cur, "good", n)
        relay = outbox.start("run")
        wait_until(lambda: len(read_jsonl(out)) == 3, 20, "all is well")
        full = os.path.join(small_disk, "filler")
        with open(full, "wb") as f:
            try:
                while True:
                    f.write(b"\0" * 8192)
                    f.flush()
            except OSError:
                pass
        cur.execute(
            "insert into outbox.event (type, aggregate_id, payload) "
            "select 'x', 'bad' || i, convert_to('{not json', 'UTF8') from generate_series(1, 300) i"
        )
        wait_until(lambda: "No space left" in relay.err, 30, "the full disk is named")
        time.sleep(2)
        assert relay.err.count("No space left") <= 4, "said once, not a storm"
        os.remove(full)
        wait_until(lambda: len(outbox.json("dead", "list", "--json", "--limit", "1000")) == 300, 30, "recorded when there is room")
        emit(cur, "good", 3)
        wait_until(lambda: {m["value"]["data"]["n"] for m in read_jsonl(out)} == {0, 1, 2, 3}, 30, "and goes on")
        assert relay.stop() == 0
    finally:
        server.close()


@pytest.mark.slow
def test_the_reader_comes_back_when_its_backend_hangs(outbox, db):
    """One backend of ours stops answering while the server lives: only a deadline can tell."""
    relay, writer, out = running(outbox, db, source="timeout: 1s")
    pid = db.one("select pid from pg_stat_activity where application_name = 'outbox reader' and datname = current_database()")
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: "relay.fenced" in relay.err, 30, "noticed")
        goes_on(writer, out)
    finally:
        os.kill(pid, signal.SIGCONT)
    finish(relay, writer, out)
