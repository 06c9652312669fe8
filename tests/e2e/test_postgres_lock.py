# SPDX-License-Identifier: Apache-2.0
"""test_postgres_lock - advisory locks of sessions that are not a relay's. Any role that can connect may take any advisory lock; that
must neither keep a relay from its shards nor make two relays own one."""

import signal
import threading
import time

import pytest

import pg
from helpers import SLOW, wait_until

KEYS = ["a", "b", "c"]


@pytest.fixture
def mallory(outbox, db):
    """A role that may connect and nothing else, beside a role for relays."""
    pg.config(outbox, db)
    name, carrier = f"mallory_{db.name}", f"carrier_{db.name}"
    db.sql(f"create role {name} login; create role {carrier} login in role outbox_relay")
    yield Mallory(db, name, carrier)
    db.sql(f"drop owned by {carrier}; drop role {name}; drop role {carrier}")


class Mallory:
    """Holds locks in sessions of its own."""

    def __init__(self, db, name, carrier):
        self.db, self.name, self.carrier, self.sessions = db, name, carrier, []

    def lock(self, *calls, sessions=1):
        for _ in range(sessions):
            c = self.db.server.connect(self.db.name, self.name, application_name="harmless")
            self.sessions.append(c)
            with c.cursor() as cur:
                for call in calls:
                    cur.execute(f"select {call}")

    def release(self):
        for c in self.sessions:
            c.close()
        self.sessions.clear()


def shard_locks(db):
    """(key) of the exclusive locks that relays hold."""
    return [k for (k,) in db.sql(
        "select classid::bigint << 32 | objid::bigint from pg_locks where locktype = 'advisory' and objsubid = 1 and "
        "database = (select oid from pg_database where datname = current_database())")]


def member_locks(db):
    return db.sql("select distinct classid::bigint::bit(32)::int, objid::bigint::bit(32)::int from pg_locks where locktype = 'advisory' "
                  "and objsubid = 2 and database = (select oid from pg_database where datname = current_database())")


def learn_keys(outbox, db, carrier, more=""):
    """The keys are in pg_locks for everyone to see."""
    pg.config(outbox, db, dsn=db.dsn_of(carrier), more=more, apply=False)
    relay = outbox.start("run")
    wait_until(lambda: "relay.start" in relay.err, 20, "runs")
    keys = wait_until(lambda: shard_locks(db), 10, "the shard's lock")
    members = member_locks(db)
    assert relay.stop() == 0
    return keys, members


def start_pair(outbox, db, carrier):
    for name in "abc":
        pg.config(outbox, db, dsn=db.dsn_of(carrier), path=f"out/{name}.jsonl", name=f"{name}.yaml", apply=False)
    return [outbox.start("run", "-c", f"{name}.yaml") for name in "ab"]


def owner_of(relays):
    """(owner, the others) once exactly one relay has started."""
    started = [r for r in relays if r.err.count("relay.start") > r.err.count("relay.fenced") + r.err.count("relay.yield")]
    return (started[0], [r for r in relays if r is not started[0]]) if len(started) == 1 else None


@pytest.mark.parametrize("how", ["exclusive", "shared", "many"])
def test_a_foreign_lock_does_not_keep_the_relay_off(outbox, db, mallory, how):
    (key,), members = learn_keys(outbox, db, mallory.carrier)
    call = f"pg_advisory_lock({key})" if how == "exclusive" else f"pg_advisory_lock_shared({key})"
    more = [f"pg_advisory_lock({a}, {b})" for a, b in members] if how == "exclusive" else []
    mallory.lock(call, *more, sessions=5 if how == "many" else 1)
    db.sql("select outbox.emit('t', '{}')")
    since = time.monotonic()
    relay = outbox.start("run")
    out = outbox.path("out/events.jsonl")
    wait_until(lambda: pg.delivered(out), 15, "delivered although the lock is taken")
    assert time.monotonic() - since < 15 * SLOW
    (line,) = [x for x in relay.err.splitlines() if "owner.foreign_lock" in x]
    pids = [c.info.backend_pid for c in mallory.sessions]
    assert any(f"backend {pid}, user {mallory.name}, application harmless" in line for pid in pids), line
    mallory.release()
    wait_until(lambda: "msg=owner.lock" in relay.err, 20, "the lock is taken as soon as it is free")
    assert relay.stop() == 0


@pytest.mark.slow
def test_two_relays_and_a_foreign_lock_have_exactly_one_owner(outbox, db, mallory):
    """Start, kill -9, hang, wake up and release of the lock: one owner at any time, and the documented times."""
    (key,), _ = learn_keys(outbox, db, mallory.carrier)
    mallory.lock(f"pg_advisory_lock({key})")
    writer = pg.Writer(db, KEYS, pause=0.004)
    writer.start()
    relays = start_pair(outbox, db, mallory.carrier)
    owner, (standby,) = wait_until(lambda: owner_of(relays), 20, "one of them is the owner")
    wait_until(lambda: "relay.standby" in standby.err, 20, "the other one waits")
    assert f"user {mallory.carrier}" in standby.err, "the stand-by names the owner, not the foreign session"
    # A release does not move the shard: the owner has it by its cursor row.
    mallory.release()
    wait_until(lambda: "msg=owner.lock" in owner.err, 20, "locked")
    assert db.sql("select epoch from outbox.cursor") == [(2,)]
    # A session that waits for the lock gets it when the owner dies, before any stand-by does.
    waiter = threading.Thread(target=mallory.lock, args=(f"pg_advisory_lock({key})",), daemon=True)
    waiter.start()
    wait_until(lambda: db.one("select count(*) from pg_locks where locktype = 'advisory' and not granted"), 10, "waits")
    since = time.monotonic()
    owner.kill()
    waiter.join(10 * SLOW)
    assert not waiter.is_alive(), "the foreign session got the lock"
    names = ("a", "b", "c") if owner is relays[0] else ("b", "a", "c")  # in the order of ownership
    outputs = [outbox.path(f"out/{name}.jsonl") for name in names]
    wait_until(lambda: pg.delivered(outputs[1]), 15, "take-over")
    took = time.monotonic() - since
    assert took <= 5 * SLOW, f"took over after {took:.1f} s"
    # The owner by epoch hangs: its stand-by follows within 15 s, and the zombie changes nothing.
    third = outbox.start("run", "-c", "c.yaml")
    wait_until(lambda: "relay.standby" in third.err, 20, "a new stand-by")
    epoch = db.one("select epoch from outbox.cursor")
    since = time.monotonic()
    standby.signal(signal.SIGSTOP)
    wait_until(lambda: db.one("select epoch from outbox.cursor") == epoch + 1, 30, "followed")
    took = time.monotonic() - since
    assert 5 < took <= 15 * SLOW, f"followed after {took:.1f} s"
    standby.signal(signal.SIGCONT)
    wait_until(lambda: "relay.fenced" in standby.err, 20, "the zombie is fenced")
    writer.stop()
    wait_until(pg.all_there(writer, *outputs), 30, "all delivered")
    assert db.one("select epoch from outbox.cursor") == epoch + 1
    assert third.stop() == 0 and standby.stop() == 0
    pg.check_ledger(writer, pg.delivered(*outputs), True)


def test_relays_of_two_roles_one_hangs_and_cannot_be_terminated(outbox, db, mallory):
    """The stand-by may not end the backend of another role: the epoch passes it all the same."""
    other = f"other_{db.name}"
    db.sql(f"create role {other} login in role outbox_relay")
    try:
        pg.config(outbox, db, dsn=db.dsn_of(other), path="out/a.jsonl", name="a.yaml", apply=False)
        pg.config(outbox, db, dsn=db.dsn_of(mallory.carrier), path="out/b.jsonl", name="b.yaml", apply=False)
        a = outbox.start("run", "-c", "a.yaml")
        wait_until(lambda: "relay.start" in a.err, 20, "the first one owns the shard")
        b = outbox.start("run", "-c", "b.yaml")
        wait_until(lambda: "relay.standby" in b.err, 20, "the second one waits")
        since = time.monotonic()
        a.signal(signal.SIGSTOP)
        db.sql("select outbox.emit('t', '{}')")
        wait_until(lambda: pg.delivered(outbox.path("out/b.jsonl")), 30, "followed")
        assert 5 < time.monotonic() - since <= 15 * SLOW
        a.signal(signal.SIGCONT)
        wait_until(lambda: "relay.fenced" in a.err and "relay.standby" in a.err, 20, "the zombie is fenced")
        wait_until(lambda: "msg=owner.lock" in b.err, 20, "and its lock passes on")
        assert a.stop() == 0 and b.stop() == 0
    finally:
        db.sql(f"drop role {other}")


@pytest.mark.slow
def test_foreign_members_take_no_share(outbox, db, mallory):
    """Locks that look like those of a hundred processes: a relay keeps all its shards."""
    keys, members = learn_keys(outbox, db, mallory.carrier, more="    shards: 4")
    assert len(keys) == 4
    pipeline = members[0][0]
    mallory.lock(*[f"pg_advisory_lock_shared({pipeline}, {i})" for i in range(100)], *[f"pg_advisory_lock({k})" for k in keys[:2]])
    relay = outbox.start("run")
    wait_until(lambda: relay.err.count("relay.start") == 4, 15, "all shards")
    for i in range(40):
        db.sql("select outbox.emit('t', '{}', key => %s)", f"k{i}")
    wait_until(lambda: sum(len(pg.delivered(p)) for p in outbox.path("out").glob("events.jsonl*")) == 40, 20, "all delivered")
    time.sleep(2.5)  # longer than an owner's interval between two looks at the shares
    assert "relay.yield" not in relay.err
    assert relay.stop() == 0


def test_upkeep_and_migrations_ignore_advisory_locks(outbox, db, mallory):
    mallory.lock("pg_advisory_lock(7305, 0)", "pg_advisory_lock(7305, 1)", "pg_advisory_lock(7305, 2)", "pg_advisory_lock(7305, 3)")
    pg.small_partitions(db, 10)  # asserts nothing: makes what maintain() makes
    assert db.one("select count(*) from outbox.part") >= 3
    db.sql("select outbox.publish('p1')")
    assert db.one("select count(*) from pg_publication where pubname = 'p1'") == 1
    other = db.server.database()
    try:
        c = db.server.connect(other.name, mallory.name)
        with c.cursor() as cur:
            cur.execute("select pg_advisory_lock(7305, 0)")
        pg.config(outbox, other, name="other.yaml", apply=False)
        since = time.monotonic()
        outbox.run("schema", "--apply", "-c", "other.yaml")
        other.sql("update outbox.meta set value = '1' where name = 'version'")
        r = outbox.run("schema", "--apply", "-c", "other.yaml", check=None)
        assert time.monotonic() - since < 20 * SLOW, "waited for a foreign lock"
        assert "lock" not in r.err, r.err
        c.close()
    finally:
        other.close()
