# SPDX-License-Identifier: Apache-2.0
"""Partitions are made ahead and retired behind, and no writer waits for either. How long a writer waits for a lock is what
the server says: it logs every wait of more than 50 ms, whatever else the machine does."""

import re
import threading
import time

import pytest

import pg
import services
from helpers import read_jsonl, wait_until

pytestmark = pytest.mark.slow  # nearly all of it is SQL: once is enough


@pytest.fixture(scope="module")
def watching():
    """A server that logs each wait for a lock of more than 50 ms; writers are the role app."""
    server = services.Postgres(conf=["log_lock_waits = on", "deadlock_timeout = 50ms"])
    services.with_connection(server, "create role app login")
    yield server
    server.close()


@pytest.fixture
def watched(watching, outbox):
    db = watching.database()
    pg.config(outbox, db)
    db.sql("grant outbox_writer to app")
    yield db
    db.close()


def waits(db):
    """Lines of the server's log that tell of a writer who waited too long for a table. Writers also wait for each
    other, when the file grows: that is not meant."""
    with open(f"{db.server.dir}/log", encoding="utf-8", errors="replace") as f:
        pattern = rf"app@{db.name} .*(still waiting for|acquired) \w+ on relation"
        return [line for line in f if re.search(pattern, line)]


class Busy(threading.Thread):
    """A writer that never rests and remembers its longest statement."""

    def __init__(self, db, n=10**9):
        super().__init__(daemon=True)
        self.db, self.n, self.go, self.longest, self.count, self.error = db, n, True, 0.0, 0, None

    def run(self):
        try:
            c = self.db.server.connect(self.db.name, "app", autocommit=False)
            with c.cursor() as cur:
                while self.go and self.count < self.n:
                    at = time.monotonic()
                    cur.execute("select outbox.emit_batch(types => '{a,b,c,d,e}')")
                    c.commit()
                    self.longest = max(self.longest, time.monotonic() - at)
                    self.count += 5
            c.close()
        except Exception as e:  # the test looks at it
            self.error = e


def settle_all(outbox):
    outbox.run("run", "--once", timeout=60)


def parts(db):
    return [name for (name,) in db.sql("select name from outbox.part order by lo")]


def test_no_writer_waits_for_upkeep(watched, outbox):
    """Busy writers, writers that sit idle in a transaction in which they wrote, a reader idle in his; partitions of
    4,000 numbers are made, emptied, detached and dropped all the while."""
    pg.small_partitions(watched, 4000)
    busy = [Busy(watched) for _ in range(3)]
    for b in busy:
        b.start()
    relay = outbox.start("run")
    done, idle = [], []
    while sum(b.count for b in busy) < 12000 and not any(b.error for b in busy):
        c = watched.connect("app", autocommit=False)
        c.cursor().execute("select outbox.emit('idle', '{}')")  # holds its locks until it is closed below
        idle.append(c)
        if len(idle) > 3:
            idle.pop(0).rollback()
        done += pg.maintain(watched)
        time.sleep(0.02)
    for b in busy:
        b.go = False
        b.join()
        assert b.error is None
    for c in idle:
        c.rollback()
    assert waits(watched) == []
    assert any(d.startswith("made") for d in done)
    # With nobody in the way the rest is retired, too.
    wait_until(
        lambda: watched.one("select min(pos) from outbox.cursor") >= watched.one("select last_value from outbox.event_seq_seq"),
        deadline=60, what="all is settled",
    )

    def all_retired():
        pg.maintain(watched)
        return watched.one("select count(*) from outbox.part where hi <= (select last_value from outbox.event_seq_seq)") == 0

    wait_until(all_retired, deadline=60, what="every old partition is gone")
    assert relay.stop() == 0
    assert watched.one("select count(*) from outbox.event_default") == 0
    n = len(read_jsonl(outbox.path("out/events.jsonl")))
    assert n == sum(b.count for b in busy)


def test_an_idle_writer_holds_up_a_drop_and_nobody_else(watched, outbox):
    """Trap: a waiting DROP of an old partition would block every writer behind it."""
    pg.small_partitions(watched, 10)
    watched.sql("select outbox.emit('t') from generate_series(1, 25)")
    settle_all(outbox)
    idle = watched.connect("app", autocommit=False)
    idle.cursor().execute("select outbox.emit('idle')")
    steps = pg.maintain(watched)
    assert "emptied event_1" in steps and not [s for s in steps if s.startswith(("detached", "dropped"))]
    busy = Busy(watched, n=200)
    busy.start()
    while busy.is_alive():
        pg.maintain(watched)
    busy.join()
    assert busy.error is None and busy.count == 200
    assert waits(watched) == []
    assert "event_1" in parts(watched)
    idle.commit()
    assert {"detached event_1", "dropped event_1"} <= set(pg.maintain(watched))
    assert "event_1" not in parts(watched)


def test_a_missing_partition_never_fails_a_writer(watched, outbox):
    """Nobody made any for too long: events go to the default partition, are delivered and retired from there."""
    pg.small_partitions(watched, 1000, ahead=1)
    watched.sql("select outbox.emit('t', aggregate_id => i::text) from generate_series(1, 2500) i")
    assert watched.one("select count(*) from outbox.event_default") > 400
    busy = Busy(watched)
    busy.start()
    try:
        made = pg.maintain(watched)  # while somebody writes to the default partition
        wait_until(lambda: busy.count > 200, what="more events")
    finally:
        busy.go = False
        busy.join()
    assert busy.error is None
    made += pg.maintain(watched)
    assert watched.one("select max(hi) > (select last_value from outbox.event_seq_seq) from outbox.part")
    assert any(m.startswith("made") for m in made)
    # Who waits behind maintain() for the default partition waits for its 50 ms at most, and then for its look at the rows.
    for line in waits(watched):
        took = re.search(r"after (\d+)\.", line)
        assert int(took.group(1)) < 150, line
    watched.sql("select outbox.emit('t') from generate_series(1, 1500)")  # into the new one
    relay = outbox.start("run")
    n = 4000 + busy.count
    wait_until(lambda: len(read_jsonl(outbox.path("out/events.jsonl"))) == n, deadline=30, what="all events")

    def emptied():
        pg.maintain(watched)
        return watched.one("select count(*) from outbox.event_default") == 0

    wait_until(emptied, deadline=60, what="the default partition is empty again")
    assert relay.stop() == 0


def test_a_full_default_partition_is_not_read_while_writers_wait(watched):
    """Attaching a partition reads the default one with nobody else in it; where that takes long, a person decides."""
    pg.small_partitions(watched, 100, ahead=1)
    watched.sql("select outbox.emit('t', payload => repeat('x', 1800), kind => 'text') from generate_series(1, 6000)")
    assert watched.one("select pg_relation_size('outbox.event_default')") > 8388608
    assert [s for s in pg.maintain(watched) if s.startswith("made")] == []
    assert watched.one("select outbox.maintain(true)").startswith("made")


def test_only_what_every_pipeline_has_passed_is_removed(db, outbox):
    other = """
  slow:
    source: {type: postgres, dsn: "%s"}
    sink: {type: file, path: out/slow.jsonl}
""" % db.dsn
    pg.config(outbox, db, more=other)
    pg.small_partitions(db, 10)
    outbox.run("run", "--once")  # both have a cursor
    db.sql("select outbox.emit('t', aggregate_id => i::text) from generate_series(1, 35) i")
    outbox.run("run", "--once", "--pipeline", "orders")
    assert [s for s in pg.maintain(db) if s.startswith("emptied")] == []
    assert db.one("select count(*) from outbox.event") == 35
    outbox.run("run", "--once", "--pipeline", "slow")
    assert {"emptied event_1", "emptied event_11", "emptied event_21"} <= set(pg.maintain(db))
    assert len(read_jsonl(outbox.path("out/slow.jsonl"))) == 35
    # Nor what is younger than it is to be kept.
    db.sql("update outbox.meta set value = '1' where name = 'keep_hours'")
    db.sql("select outbox.emit('t', aggregate_id => i::text) from generate_series(1, 35) i")
    outbox.run("run", "--once")
    assert [s for s in pg.maintain(db) if s.startswith("emptied")] == []
    db.sql("update outbox.meta set value = 'off' where name = 'keep_hours'")
    db.sql("update outbox.part set closed_at = closed_at - interval '9 years'")
    assert [s for s in pg.maintain(db) if s.startswith("emptied")] == []
    left = parts(db)
    db.sql("update outbox.meta set value = '1' where name = 'keep_hours'")
    outbox.start("run")
    wait_until(lambda: pg.maintain(db) or set(left) - set(parts(db)), 30, "an old partition is retired")


def test_a_writer_that_is_still_open_keeps_its_partition(db, outbox):
    """Its number is below the position, its row is not there yet: closed_xid waits for it."""
    pg.config(outbox, db)
    pg.small_partitions(db, 10)
    late = db.connect(autocommit=False)
    late.cursor().execute("select outbox.emit('late', aggregate_id => 'late')")
    db.sql("select outbox.emit('t', aggregate_id => i::text) from generate_series(1, 25) i")
    outbox.run("run", "--once")
    assert len(read_jsonl(outbox.path("out/events.jsonl"))) == 25
    assert [s for s in pg.maintain(db) if s.startswith("emptied")] == []
    late.commit()
    outbox.run("run", "--once")
    assert read_jsonl(outbox.path("out/events.jsonl"))[-1]["key"] == "late"

    outbox.start("run")
    wait_until(lambda: "emptied event_1" in pg.maintain(db) or "event_1" not in parts(db), 30, "the partition is emptied")


def test_a_row_that_comes_late_to_the_default_partition_is_not_lost(db, outbox):
    """What is known of the default partition ends before it: it is looked at again when nobody else is in it."""
    pg.config(outbox, db)
    pg.small_partitions(db, 100, ahead=1)
    db.sql("select outbox.emit('t') from generate_series(1, 400)")
    pg.maintain(db)  # the next partition lies ahead
    lo = db.one("select max(lo) from outbox.part where name <> 'event_default'")
    db.sql("select outbox.emit('t') from generate_series(1, %s - (select last_value from outbox.event_seq_seq)) i", lo - 2)
    late = db.connect(autocommit=False)
    late.cursor().execute("select outbox.emit('late', aggregate_id => 'late')")
    db.sql("select outbox.emit('t') from generate_series(1, 3)")
    pg.maintain(db)
    pg.maintain(db)
    late.commit()
    # The worst of all positions: right behind what is known of it, with a snapshot that sees everything.
    db.sql("""insert into outbox.cursor (pipeline, shard, shards, pos, snap, system_id, db_oid) select 'orders', 0, 1, p.hi - 1,
        pg_current_snapshot(), (select system_identifier::text from pg_control_system()),
        (select oid from pg_database where datname = current_database()) from outbox.part p where name = 'event_default'""")
    db.sql("update outbox.part set closed_xid = '3', closed_at = now() where name = 'event_default'")
    assert db.one("select hi <= (select max(seq) from only outbox.event_default) from outbox.part where name = 'event_default'")
    assert "emptied event_default" not in pg.maintain(db)
    outbox.run("run", "--once")
    assert "late" in [e["key"] for e in read_jsonl(outbox.path("out/events.jsonl"))]


def test_dead_and_parked_events_outlive_their_partition(db, outbox):
    routes = '    routes: [{match: {type: bad}, topic: "${payload:/topic}"}, {topic: t}]'
    pg.config(outbox, db, more=routes)
    pg.small_partitions(db, 10)
    db.sql("""select outbox.emit('bad', '{"n": 1}', aggregate_id => 'x', metadata => '{"m": 2}')""")
    db.sql("select outbox.emit('t', aggregate_id => i::text) from generate_series(1, 25) i")
    outbox.run("run", "--once")
    assert {"emptied event_1", "dropped event_1"} <= set(pg.maintain(db))
    dead = outbox.json("dead", "list", "--json")
    assert [d["type"] for d in dead] == ["bad"]
    outbox.write("outbox.yaml", outbox.path("outbox.yaml").read_text().replace("${payload:/topic}", "mended"))
    outbox.run("dead", "retry", "--yes", dead[0]["id"])
    outbox.run("run", "--once")
    last = read_jsonl(outbox.path("out/events.jsonl"))[-1]
    assert (last["topic"], last["value"], last["key"]) == ("mended", {"n": 1}, "x")


def waiting(db):
    return db.one("select count(*)::int from pg_locks l join pg_stat_activity a using (pid) where not l.granted and a.datname = "
                  "current_database()")


@pytest.mark.parametrize("first", ["upkeep", "retry"])
def test_a_dead_event_is_retried_while_its_partition_is_emptied(db, outbox, first):
    """Either the retry finds the copy, or the upkeep finds that somebody needs the partition: never a reference to nothing. Each is
    held in the middle of its transaction until the other one has come."""
    pg.config(outbox, db, more='    routes: [{match: {type: bad}, topic: "${payload:/topic}"}, {topic: t}]')
    pg.small_partitions(db, 10)
    db.sql("""select outbox.emit('bad', '{"n": 1}', aggregate_id => 'x')""")
    db.sql("select outbox.emit('t', aggregate_id => i::text) from generate_series(1, 25) i")
    outbox.run("run", "--once")
    outbox.write("outbox.yaml", outbox.path("outbox.yaml").read_text().replace("${payload:/topic}", "mended"))
    for _ in range(20):  # all of the steps before the one that matters
        db.sql("select outbox.maintain()")
        if db.one("select outbox.old_part() = 'event_1' and (select n.lo is null from outbox.next_part() n)"):
            break
    upkeep = db.connect(autocommit=False).cursor()
    if first == "upkeep":
        upkeep.execute("select outbox.maintain()")
        assert upkeep.fetchone() == ("emptied event_1",)
        retry = outbox.start("dead", "retry", "--all", "--yes")
        wait_until(lambda: waiting(db) > 0, 20, "the retry waits for what is copied")
        upkeep.connection.commit()
        assert retry.wait() == 0
        assert db.one("select event is not null from outbox.parked"), "it has the copy"
    else:
        holder = db.connect(autocommit=False).cursor()
        holder.execute("lock table outbox.parked_key in access exclusive mode")
        retry = outbox.start("dead", "retry", "--all", "--yes")
        wait_until(lambda: waiting(db) > 0, 20, "the retry has written, and is not committed")
        upkeep.execute("select outbox.maintain()")
        assert upkeep.fetchone() != ("emptied event_1",)
        upkeep.connection.commit()
        holder.connection.commit()
        assert retry.wait() == 0
        assert "emptied event_1" not in pg.maintain(db), "a reference points into it"
    outbox.run("run", "--once")
    last = read_jsonl(outbox.path("out/events.jsonl"))[-1]
    assert (last["topic"], last["value"], last["key"]) == ("mended", {"n": 1}, "x")
    assert "emptied event_1" in pg.maintain(db) or first == "upkeep"


def test_upkeep_is_refused_where_its_reasoning_would_not_hold(db, outbox):
    pg.config(outbox, db)
    for begin in ("begin; select outbox.emit('t')", "begin isolation level repeatable read; select 1"):
        c = db.connect(autocommit=True)
        with c.cursor() as cur:
            cur.execute(begin)
            with pytest.raises(db.server.psycopg2.errors.ActiveSqlTransaction):
                cur.execute("select outbox.maintain()")
        c.close()


def test_several_at_once_do_not_disturb_each_other(db, outbox):
    pg.config(outbox, db)
    pg.small_partitions(db, 10)
    db.sql("select outbox.emit('t') from generate_series(1, 200)")
    outbox.run("run", "--once")
    errors = []

    def upkeep():
        try:
            for _ in range(5):
                pg.maintain(db)
        except Exception as e:  # the test looks at it
            errors.append(e)

    threads = [threading.Thread(target=upkeep) for _ in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert errors == []
    pg.maintain(db)
    assert db.one("select count(*) from outbox.part where hi <= 200") == 0
    # What the catalog has is what we know of.
    tables = db.sql("select inhrelid::regclass::text from pg_inherits where inhparent = 'outbox.event'::regclass order by 1")
    known = {f"outbox.{name}" for name in parts(db)} | {"outbox.event_default"}
    assert {name for (name,) in tables} == known


def test_the_event_table_has_no_dead_tuples(db, outbox):
    """Mode log never changes a row; nor do parked and dead events, retries and upkeep."""
    routes = '    routes: [{match: {type: bad}, topic: "${payload:/topic}"}, {topic: t}]'
    pg.config(outbox, db, more=routes)
    pg.small_partitions(db, 500)
    relay = outbox.start("run")
    db.sql("select outbox.emit(case when i % 50 = 0 then 'bad' else 't' end, '{}', aggregate_id => (i % 7)::text)"
           " from generate_series(1, 3000) i")
    wait_until(lambda: len(read_jsonl(outbox.path("out/events.jsonl"))) == 2940, deadline=30, what="all events")
    wait_until(lambda: len(outbox.json("dead", "list", "--json")) == 60, what="the dead ones")
    outbox.run("dead", "retry", "--yes", "--type", "bad")
    wait_until(lambda: db.one("select count(*) from outbox.dead where state = 'dead'") == 60, deadline=20, what="dead again")
    assert relay.stop() == 0
    wait_until(
        lambda: db.one("select coalesce(sum(n_tup_ins), 0) from pg_stat_user_tables where schemaname = 'outbox' and relname like 'event%'") >= 3000,
        what="statistics",
    )
    changed = db.sql("select sum(n_dead_tup), sum(n_tup_upd), sum(n_tup_del) from pg_stat_user_tables"
                     " where schemaname = 'outbox' and relname like 'event%'")
    assert changed == [(0, 0, 0)]


def test_an_id_is_unique_within_a_partition_only(outbox, db):
    """The server refuses an id twice in one partition. In the next partition it is stored again, and both are published with that
    id: consumers remember ids (docs/produce.md)."""
    pg.config(outbox, db)
    one = "01920000-0000-7000-8000-000000000001"
    write = f"select outbox.emit('a', id => '{one}')"
    db.sql(write)
    with pytest.raises(db.server.psycopg2.errors.UniqueViolation):
        db.sql(write)
    outbox.run("run", "--once")
    db.sql("select setval('outbox.event_seq_seq', (select hi - 1 from outbox.part where name <> 'event_default' order by lo limit 1))")
    db.sql(write)
    assert db.one(f"select count(distinct tableoid)::int from outbox.event where id = '{one}'") == 2
    outbox.run("run", "--once")
    assert [m["id"] for m in read_jsonl(outbox.path("out/events.jsonl"))] == [one, one]
