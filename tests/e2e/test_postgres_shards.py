# SPDX-License-Identifier: Apache-2.0
"""test_postgres_shards - several processes share the shards of one pipeline. They come, go, are killed and hang while writers in
processes of their own go on; what the files have is compared with the ledgers of the writers' own commits, never with the table.

A file per shard is shared by all processes, so its lines are the order of delivery. Every repeat must be explained: lines that come
again come in runs, and a run begins only where a shard got a new owner, which its epoch counts."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest

from helpers import read_jsonl, wait_until

HERE = os.path.dirname(__file__)
WRITERS = 4
# OUTBOX_CHAOS_SECONDS=600 for a long run; OUTBOX_CHAOS_SEED for the same choices again.
SECONDS = float(os.environ.get("OUTBOX_CHAOS_SECONDS", "24"))
SEED = int(os.environ.get("OUTBOX_CHAOS_SEED", "7"))


class World:
    """One pipeline, its writers and its relays. A change of the number of shards begins a new generation of files."""

    def __init__(self, outbox, db, shards):
        self.outbox, self.db, self.generations = outbox, db, []
        outbox.path("out").mkdir()
        self.relays, self.writers, self.epochs = [], [], 0
        self.role = f"r_{db.name}"  # the relays have the rights of outbox_relay and no more
        self.reshard(shards, db.dsn)
        outbox.run("schema", "--apply")
        db.sql(f"create role {self.role} login in role outbox_relay")
        self.generations.pop()
        self.reshard(shards)
        db.sql("create table counter (key text primary key, n bigint not null default 0)")
        db.sql("insert into counter (key) select 'k' || lpad(i::text, 2, '0') from generate_series(0, 11) i")

    def reshard(self, shards, dsn=None):
        """Only while no relay runs."""
        self.generations.append(f"g{len(self.generations)}")
        if len(self.generations) > 1:
            self.epochs += self.db.one("select sum(epoch - 1)::int from outbox.cursor")
        self.outbox.write(
            "outbox.yaml",
            f"""
log: {{level: debug}}
pipelines:
  orders:
    source: {{type: postgres, dsn: "{dsn or self.db.dsn_of(self.role)}"}}
    sink: {{type: file, path: out/{self.generations[-1]}}}
    envelope: none
    shards: {shards}
    grace: 5s
""",
        )

    def write(self, seconds):
        for i in range(WRITERS):
            path = str(self.outbox.path(f"ledger-{i}"))
            argv = [sys.executable, f"{HERE}/pg_writer.py", self.db.dsn, str(2000 + i), str(seconds), path]
            self.writers.append(subprocess.Popen(argv, stdin=subprocess.DEVNULL))

    def wait_for_writers(self):
        for w in self.writers:
            assert w.wait(600) == 0

    def start(self):
        self.relays.append(self.outbox.start("run"))
        return self.relays[-1]

    def owners(self):
        """How many shards each living process has."""
        rows = self.db.sql("select split_part(owner, ':', 2)::int, count(*) from outbox.cursor where state <> 'stopped' group by 1")
        return {pid: n for pid, n in rows}

    def ledger(self):
        """Tags of each key, in the order in which their transactions held the key's lock."""
        want = {}
        for i in range(WRITERS):
            for line in self.outbox.path(f"ledger-{i}").read_text().splitlines():
                key, n, tag = line.split()
                assert want.setdefault(key, {}).setdefault(int(n), tag) == tag, "two have committed the same counter"
        return {key: [tags[n] for n in sorted(tags)] for key, tags in want.items()}

    def streams(self):
        """What each shard has delivered, in order: files that were set aside first, by their time."""
        out = []
        for generation in self.generations:
            names = sorted(p.name for p in self.outbox.path("out").glob(f"{generation}.*"))
            for shard in sorted({n.split(".")[1] for n in names}):
                mine = [n for n in names if n.split(".")[1] == shard]
                mine.sort(key=lambda n: (n == f"{generation}.{shard}", n))
                values = []
                for name in mine:
                    values += [m["value"] for m in read_jsonl(self.outbox.path(f"out/{name}"))]
                out.append(values)
        return out

    def all_there(self, want):
        seen = {v["tag"] for values in self.streams() for v in values}
        return seen >= {tag for tags in want.values() for tag in tags}

    def check(self):
        """Nothing missing, nothing phantom, first deliveries in key order; gives (repeats, runs of repeats)."""
        want = self.ledger()
        first, seen, repeats, runs = {k: [] for k in want}, set(), 0, 0
        for values in self.streams():
            again = False
            for v in values:
                if v["tag"] in seen:
                    repeats += 1
                    runs += not again
                    again = True
                else:
                    seen.add(v["tag"])
                    first[v["key"]].append(v["tag"])
                    again = False
        for key, tags in want.items():
            missing = set(tags) - set(first[key])
            assert not missing, f"{key}: {len(missing)} missing of {len(tags)}: {sorted(missing)[:10]}"
            assert set(first[key]) == set(tags), f"{key}: phantoms {sorted(set(first[key]) - set(tags))[:10]}"
            wrong = sum(a != b for a, b in zip(first[key], tags))
            assert wrong == 0, f"{key}: {wrong} of {len(tags)} out of order"
        return repeats, runs

    def changes(self):
        """How often a shard got another owner."""
        return self.epochs + self.db.one("select sum(epoch - 1)::int from outbox.cursor")

    def close(self):
        for w in self.writers:
            w.kill()
            w.wait()
        for r in self.relays:
            r.signal(signal.SIGCONT)
            r.kill()
        self.db.sql(f"drop owned by {self.role}")
        self.db.sql(f"drop role {self.role}")


@pytest.fixture
def world(outbox, db):
    made = []

    def make(shards):
        made.append(World(outbox, db, shards))
        return made[0]

    yield make
    for w in made:
        w.close()


def spread(world, *counts):
    return lambda: sorted(world.owners().values()) == sorted(counts)


@pytest.mark.slow
def test_processes_share_the_shards_and_hand_them_over_without_a_repeat(world):
    w = world(4)
    w.write(8)
    a = w.start()
    wait_until(spread(w, 4), 20, "the first one has all")
    b = w.start()
    wait_until(spread(w, 2, 2), 30, "two have two each")
    assert "relay.yield" in a.err
    c = w.start()
    wait_until(lambda: c.err.count("relay.standby") >= 4, 20, "the third one stands by for all")
    assert a.stop() == 0
    wait_until(lambda: w.owners() == {b.pid: 2, c.pid: 2}, 30, "and follows")
    assert b.stop() == 0
    wait_until(lambda: w.owners() == {c.pid: 4}, 30, "one has all again")
    w.wait_for_writers()
    want = w.ledger()
    wait_until(lambda: w.all_there(want), 60, "all delivered", every=0.2)
    assert c.stop() == 0
    assert w.check() == (0, 0), "a shard is given up when all of it is settled"
    assert c.err.count("relay.yield") == 0


def incident(rng, w, stopped):
    """Something happens to one of the relays. stopped: {relay: when it may go on}."""
    running = [r for r in w.relays if r.alive and r not in stopped]
    what = rng.choice(("kill", "kill", "term", "backends", "stop"))
    if what == "stop" and not stopped and len(running) > 1:
        relay = rng.choice(running)
        relay.signal(signal.SIGSTOP)
        stopped[relay] = time.monotonic() + 12
    elif what == "kill":
        rng.choice(running).kill()
    elif what == "term":
        relay = rng.choice(running)
        relay.signal(signal.SIGTERM)
    else:
        w.db.sql(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name like 'outbox%%' "
            "and datname = current_database() order by random() limit 2"
        )


@pytest.mark.slow
def test_processes_that_come_and_go_at_random(world):
    w = world(4)
    rng = random.Random(SEED)
    w.write(SECONDS)
    end = time.monotonic() + SECONDS
    half, stopped, shards = time.monotonic() + SECONDS / 2, {}, 4
    while time.monotonic() < end:
        for relay in [r for r, until in stopped.items() if time.monotonic() > until]:
            relay.signal(signal.SIGCONT)
            del stopped[relay]
        while sum(r.alive for r in w.relays) < 3:
            w.start()
        time.sleep(rng.uniform(0.3, 1.5))
        incident(rng, w, stopped)
        if time.monotonic() > half and shards == 4 and not stopped:  # another number, applied when all have stopped
            shards = 3
            for r in w.relays:
                r.signal(signal.SIGTERM)
            for r in w.relays:
                r.wait(60)
            w.reshard(shards)
    for relay in stopped:
        relay.signal(signal.SIGCONT)
    w.wait_for_writers()
    while sum(r.alive for r in w.relays) < 3:
        w.start()
    want = w.ledger()
    total = sum(map(len, want.values()))
    assert total > 20, "the writers have written next to nothing"
    wait_until(lambda: w.all_there(want), 120, "all delivered", every=0.5)
    living = [r for r in w.relays if r.alive]
    for r in living:
        r.signal(signal.SIGTERM)
    for r in living:
        code = r.wait(60)
        assert code == 0 or (code == -signal.SIGTERM and not r.err), "ends in order, or had not even begun"
    repeats, runs = w.check()
    assert runs <= w.changes(), f"{repeats} repeats in {runs} runs, but only {w.changes()} changes of owner"
    print(f"seed {SEED}: {total} events, {len(w.relays)} processes, {w.changes()} changes of owner, {repeats} repeats in {runs} runs")
