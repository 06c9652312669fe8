# SPDX-License-Identifier: Apache-2.0
"""test_postgres_owner - who relays: take-over from an owner that was killed, hangs, or whose host has vanished; a zombie that
wakes up changes nothing. The limits are those that the documentation promises."""

import signal
import time

import pytest

from helpers import BIN, SLOW, wait_until
from netns import Host
from pg import ROWS, StubbornWriter, Writer, all_there, check_ledger, config, delivered, emit, insert, rows_table

KEYS = [f"k{i}" for i in range(5)]
MODES = {"log": "mode: log", "wal": "mode: wal", "rows": ROWS}  # a pipeline each: what is promised is promised for all


@pytest.fixture
def host():
    h = Host()
    yield h
    h.close()


def pair(outbox, db, argv=None, dsn=None):
    """An owner that writes out/a.MODE.jsonl and a stand-by that would write out/b.MODE.jsonl."""
    config(outbox, db)
    rows_table(db)
    for name, where in (("a", dsn or db.dsn), ("b", db.dsn)):
        outbox.write(f"{name}.yaml", "log: {level: debug}\npipelines:\n" + "".join(f"""
  {mode}:
    source: {{type: postgres, dsn: "{where}", {source}}}
    sink: {{type: file, path: out/{name}.{mode}.jsonl}}
    envelope: none
""" for mode, source in MODES.items()))
    a = outbox.start("run", "-c", "a.yaml", argv=argv)
    wait_until(lambda: a.err.count("relay.start") == 3 and "wal.stream" in a.err, 20, "the first one owns the shards")
    b = outbox.start("run", "-c", "b.yaml")
    wait_until(lambda: b.err.count("relay.standby") == 3, 20, "the second one stands by")
    return a, b


def got(outbox, name):
    """By mode, what one of them has delivered."""
    return {mode: delivered(outbox.path(f"out/{name}.{mode}.jsonl")) for mode in MODES}


def number(outbox, name):
    return {mode: len(seen) for mode, seen in got(outbox, name).items()}


class Writers:
    """One for the native table, which two pipelines read, and one for the other table."""

    def __init__(self, db, outbox):
        self.native, self.rows = Writer(db, KEYS, pause=0.004), Writer(db, KEYS, pause=0.004, emit=insert)
        for w in (self.native, self.rows):
            w.start()
        wait_until(lambda: min(number(outbox, "a").values()) > 50, 30, "the first one delivers")

    def of(self, mode):
        return self.rows if mode == "rows" else self.native

    def total(self):
        return min(self.native.total(), self.rows.total())

    def stop(self):
        self.native.stop()
        self.rows.stop()


def takes_over(outbox, since, limit):
    """The slowest of the modes."""
    wait_until(lambda: min(number(outbox, "b").values()) > 0, limit * 3, "the second one delivers")
    took = time.monotonic() - since
    assert took <= limit * SLOW, f"took over after {took:.1f} s; {limit} are promised"
    return took


def finish(outbox, writers, relay):
    """The repeats of all modes."""
    writers.stop()
    files = {mode: [outbox.path(f"out/{name}.{mode}.jsonl") for name in "ab"] for mode in MODES}
    for mode, paths in files.items():
        wait_until(all_there(writers.of(mode), *paths), 30, f"all delivered: {mode}")
    assert relay.stop() == 0
    return sum(check_ledger(writers.of(mode), delivered(*paths), True) for mode, paths in files.items())


@pytest.mark.slow
def test_a_killed_owner_is_followed_within_5_s(outbox, db):
    a, b = pair(outbox, db)
    writer = Writers(db, outbox)
    since = time.monotonic()
    a.kill()
    takes_over(outbox, since, 5)
    finish(outbox, writer, b)
    assert b.err.count("relay.standby") == 3, "said once by each"


@pytest.mark.slow
def test_a_stopped_owner_is_followed_at_once(outbox, db):
    """SIGTERM: everything in flight is settled first, so that nothing comes twice."""
    a, b = pair(outbox, db)
    writer = Writers(db, outbox)
    since = time.monotonic()
    assert a.stop() == 0
    takes_over(outbox, since, 5)
    assert finish(outbox, writer, b) == 0


@pytest.mark.slow
def test_a_hung_owner_that_nobody_follows_is_named_by_check(outbox, db):
    config(outbox, db)
    relay = outbox.start("run")
    wait_until(lambda: "relay.start" in relay.err, 20, "runs")
    relay.signal(signal.SIGSTOP)
    pid = db.one("select backend_pid from outbox.cursor")
    db.sql("update outbox.cursor set beat_at = beat_at - interval '1 minute'")  # what time would do
    told = outbox.run("check", check=None).out
    assert "owns shard 0 of pipeline orders and has not been heard of" in told and f"pg_terminate_backend({pid})" in told, told
    relay.signal(signal.SIGCONT)
    assert relay.stop() == 0


@pytest.mark.slow
def test_a_hung_owner_is_followed_within_15_s_and_wakes_up_fenced(outbox, db):
    a, b = pair(outbox, db)
    writer = Writers(db, outbox)
    since = time.monotonic()
    a.signal(signal.SIGSTOP)
    took = takes_over(outbox, since, 15)
    assert took > 5, "a pause is no death: the beat must stand for 10 s"
    assert "owner.terminate" in b.err
    # What the zombie had in hand when it was stopped it may still have written; nothing more when it wakes.
    mine = number(outbox, "a")
    window = 1000
    a.signal(signal.SIGCONT)
    wait_until(lambda: a.err.count("relay.fenced") == 3, 20, "the zombie learns that it is one")
    wait_until(lambda: a.err.count("relay.standby") == 3, 20, "and stands by")
    for epoch, owner in db.sql("select epoch, owner from outbox.cursor"):
        assert epoch == 2 and f":{b.pid}:" in owner, "the zombie has changed nothing"
    grown = number(outbox, "a")
    assert all(grown[mode] - mine[mode] <= window for mode in MODES)
    at = writer.total()
    wait_until(lambda: writer.total() > at + 200, 20, "more events")
    assert number(outbox, "a") == grown, "the zombie delivers nothing more"
    finish(outbox, writer, b)
    # And it is a good stand-by again.
    c = db.connect().cursor()
    emit(c, "k0", -1)
    insert(c, "k0", -1)
    wait_until(lambda: all(n > grown[mode] for mode, n in number(outbox, "a").items()), 15, "the first one is owner again")
    assert a.stop() == 0


def far_server(own_postgres, host):
    """A server that also listens on the cable."""
    return own_postgres(
        conf=[f"listen_addresses = '127.0.0.1,{host.outside}'"], hba=[f"host all all {host.inside}/32 trust"]
    )


def far_dsn(db, host):
    return f"host={host.outside} port={db.server.port} user=postgres dbname={db.name} sslmode=disable"


@pytest.mark.slow
@pytest.mark.skipif(SLOW > 1, reason="measures; the sanitizers have nothing to see here")
def test_the_owner_of_a_vanished_host_is_followed_within_10_s(outbox, own_postgres, host):
    db = far_server(own_postgres, host).database()
    a, b = pair(outbox, db, argv=host.argv(BIN, "run", "-c", "a.yaml"), dsn=far_dsn(db, host))
    assert db.sql("select distinct host(client_addr) from pg_stat_activity where application_name like 'outbox%%'") != []
    writer = Writers(db, outbox)
    since = time.monotonic()
    host.vanish()
    takes_over(outbox, since, 10)
    assert "owner.terminate" not in b.err, "the server itself has noticed"
    wait_until(lambda: a.err.count("relay.fenced") == 3, 20, "so has the lost one")
    grown = number(outbox, "a")
    host.back()
    wait_until(lambda: a.err.count("relay.standby") == 3, 30, "it comes back as a stand-by")
    assert db.sql("select distinct epoch from outbox.cursor") == [(2,)]
    finish(outbox, writer, b)
    assert all(n in (grown[mode], grown[mode] + 1) for mode, n in number(outbox, "a").items()), "it has delivered nothing more"
    assert a.stop() == 0


@pytest.mark.slow
@pytest.mark.skipif(SLOW > 1, reason="measures; the sanitizers have nothing to see here")
def test_a_vanished_server_is_noticed_in_seconds_and_found_again(outbox, own_postgres, host):
    db = far_server(own_postgres, host).database()
    config(outbox, db, dsn=far_dsn(db, host), apply=False)
    config(outbox, db, name="near.yaml")
    out = outbox.path("out/events.jsonl")
    relay = outbox.start(argv=host.argv(BIN, "run"))
    writer = StubbornWriter(db, KEYS, pause=0.002)
    writer.start()
    wait_until(lambda: len(delivered(out)) > 50, 30, "progress")
    since = time.monotonic()
    host.cut()
    wait_until(lambda: "relay.fenced" in relay.err, 30, "noticed")
    took = time.monotonic() - since
    assert took <= 10, f"noticed after {took:.1f} s"
    wait_until(lambda: "source.own" in relay.err, 30, "cannot connect")
    at = len(delivered(out))
    time.sleep(3)  # an outage of some length: is it a storm?
    host.back()
    since = time.monotonic()
    wait_until(lambda: len(delivered(out)) > at, 30, "found again")
    took = time.monotonic() - since
    assert took <= 15, f"found again after {took:.1f} s"
    writer.stop()
    wait_until(all_there(writer, out), 30, "all delivered")
    assert relay.stop() == 0
    check_ledger(writer, delivered(out), True)
    lines = [x for x in relay.err.splitlines() if "level=error" in x or "level=warn" in x]
    assert len(lines) <= 8, f"a storm: {lines}"
