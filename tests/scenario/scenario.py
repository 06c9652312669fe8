#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""scenario - writers, relays and a server under random faults; at the end a verdict from the writers' ledgers.

    tests/scenario/scenario.py [--mode log|wal|rows|mongodb|mongodb-native]… [--sink file|kafka|nats|nats-chain|rabbitmq]… [--seconds 600] [--seed N] [--writers 4] [--relays 3] [--shards 1] [--keep]

Faults: kill -9, SIGSTOP (for longer or shorter than a take-over takes), SIGTERM and a new process, a restart of the server (fast and
immediate), an outage of the sink; a broker is also killed with -9 and started again, and stopped (SIGSTOP) for longer or shorter than the
relay waits for it. The choice of faults comes from the seed, which is printed: the same seed chooses the same faults at the same
times, what the machine makes of them is its own. Exit code 0 only if nothing is missing, nothing is a phantom, the first deliveries of
each key are in order and every repeat is explained (verdict.py says how).
"""

import argparse
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))
import brokers  # noqa: E402
import mongo_world  # noqa: E402
import verdict  # noqa: E402
from verdict import Delivery, Fault  # noqa: E402

import psycopg2  # noqa: E402

KEYS = 12


class PostgresWorld:
    """The server, the tables and the config of a mode. Another source is another class with these methods."""

    def __init__(self, mode, folder, args):
        self.mode, self.dir, self.args = mode, folder, args
        self.table = "orion" if mode == "rows" else "native"
        self.writer = HERE / "writer.py"
        self.env = self.service("start", "--while", os.getpid(), "--conf", "wal_sender_timeout = 10s")

    def service(self, *args):
        r = subprocess.run([str(ROOT / "tests/services/postgres"), *map(str, args)], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if r.returncode:
            sys.exit(f"{r.stdout}{r.stderr}")
        return dict(x.split("=", 1) for x in r.stdout.splitlines() if "=" in x)

    @property
    def dsn(self):
        return f"host=127.0.0.1 port={self.env['PGPORT']} user=postgres dbname=postgres"

    def sql(self, text):
        c = psycopg2.connect(self.dsn, connect_timeout=5)
        try:
            c.autocommit = True
            with c.cursor() as cur:
                cur.execute(text)
                return cur.fetchall() if cur.description else []
        finally:
            c.close()

    def source(self):
        if self.mode != "rows":
            return f'{{type: postgres, dsn: "{self.dsn}", mode: {self.mode}}}'
        return (f'{{type: postgres, dsn: "{self.dsn}", mode: rows, poll_max: 50ms, mapping: {{table: outbox, id: id, order: sequence_number, '
                "type: event_type, aggregate_type: aggregate_type, aggregate_id: aggregate_id, tenant: tenant_id, payload: payload, "
                "metadata: metadata, created: created_at, done: processed_at, attempts: retry_count, error: last_error}}")

    def prepare(self):
        self.sql("create table counter (key text primary key, n bigint not null default 0)")
        self.sql(f"insert into counter (key) select 'k' || lpad(i::text, 2, '0') from generate_series(0, {KEYS - 1}) i")
        if self.mode == "rows":
            self.sql("""create table public.outbox (id uuid primary key default gen_random_uuid(), tenant_id uuid not null,
                aggregate_type varchar(100) not null, aggregate_id uuid not null, event_type varchar(100) not null, payload jsonb not null,
                metadata jsonb not null default '{}', created_at timestamptz not null default now(), processed_at timestamptz,
                retry_count int not null default 0, last_error text, sequence_number bigserial)""")
            self.sql("create index on public.outbox (sequence_number) where processed_at is null")

    def more(self):
        """Further lines of the pipeline."""
        return ""

    def apply(self):
        """Further arguments of `outbox schema --apply`."""
        return []

    def kinds(self, s):
        """What can go wrong with the server, and how often beside the others."""
        return [(lambda: s.do_restart("immediate"), 1.5), (lambda: s.do_restart("fast"), 1.5)]

    def owner(self):
        """pid of the process that has the first shard, or None."""
        try:
            rows = self.sql("select split_part(owner, ':', 2)::int from outbox.cursor where state <> 'stopped' order by shard limit 1")
            return rows[0][0] if rows else None
        except psycopg2.Error:
            return None

    def restart(self, how):
        self.service("stop", self.env["PGDIR"], how, "--keep")
        self.env = self.service("start", "--dir", self.env["PGDIR"])

    def close(self):
        self.service("stop", self.env["PGDIR"], "immediate")


class FileSink:
    """All relays write one file, whose lines are the order of delivery; one that a hung process holds is set aside by the next owner. Another
    sink is another class with these methods."""

    def __init__(self, folder):
        self.dir, self.away = folder / "out", folder / "away"
        self.dir.mkdir()
        self.kill = self.hang = None
        self.marks = []  # (time, bytes of all files by then)

    def config(self):
        return f"{{type: file, path: {self.dir / 'events.jsonl'}}}"

    def files(self):
        """In the order in which they were begun."""
        try:
            names = os.listdir(self.dir)
        except OSError:
            return []
        paths = [self.dir / n for n in names if n.startswith("events.jsonl")]
        return sorted(paths, key=lambda p: (re.fullmatch(r"events\.jsonl(\.\d+)?", p.name) is not None, p.name))

    def mark(self):
        """When did which byte come? Looked at every few milliseconds."""
        sizes = {}
        for p in self.files():
            try:
                st = p.stat()
                sizes[st.st_ino] = st.st_size
            except OSError:
                continue
        if sizes and (not self.marks or self.marks[-1][1] != sizes):
            self.marks.append((time.monotonic(), sizes))

    def outage(self, begin):
        if begin:
            os.rename(self.dir, self.away)
            self.dir.write_text("not a folder")
        else:
            self.dir.unlink()
            os.rename(self.away, self.dir)

    def deliveries(self):
        """With the time of each line, as far as the looks tell."""
        out = []
        for p in self.files():
            ino, at, k = p.stat().st_ino, 0, 0
            for line in p.read_bytes().split(b"\n")[:-1]:
                at += len(line) + 1
                while k < len(self.marks) - 1 and self.marks[k][1].get(ino, 0) < at:
                    k += 1
                value = json.loads(line)["value"]
                out.append(Delivery(self.marks[k][0], value["key"], value["tag"]))
        return out

    def tags(self):
        return {d.tag for d in self.deliveries()}

    def topic(self):
        return "events"

    def count(self):
        lines = 0
        for p in self.files():
            try:
                lines += p.read_bytes().count(b"\n")
            except OSError:
                pass
        return lines

    def close(self):
        pass


class Relay:
    def __init__(self, number, scenario):
        self.number, self.s, self.starts, self.p = number, scenario, 0, None
        self.stopped = None

    def start(self):
        self.starts += 1
        log = open(self.s.dir / f"relay-{self.number}-{self.starts}.log", "wb")
        self.p = subprocess.Popen([self.s.outbox, "run", "-c", str(self.s.config)], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        log.close()

    @property
    def alive(self):
        return self.p.poll() is None

    def signal(self, sig):
        if self.alive:
            os.kill(self.p.pid, sig)


class Scenario:
    def __init__(self, mode, args, folder, world, sink):
        self.mode, self.args, self.dir, self.world, self.sink = mode, args, folder, world, sink
        self.outbox = os.environ.get("OUTBOX_BIN", str(ROOT / "build" / "outbox"))
        self.config = folder / "outbox.yaml"
        self.rng = random.Random(f"{args.seed}-{mode}")
        self.faults, self.later = [], []  # later: (time, what to call)
        self.start_at = time.monotonic()
        self.watching = True
        self.count = {}
        self.exits = []

    # ---- the world ----

    def prepare(self):
        self.config.write_text(
            f"log: {{level: info}}\npipelines:\n  orders:\n{self.world.more()}    source: {self.world.source()}\n    sink: {self.sink.config()}\n"
            f"    envelope: none\n    shards: {self.args.shards}\n    grace: 10s\n    routes: [{{topic: {self.sink.topic()}}}]\n"
        )
        self.world.prepare()
        subprocess.run([self.outbox, "schema", "--apply", *self.world.apply(), "-c", str(self.config)], check=True, stdout=subprocess.DEVNULL)
        self.relays = [Relay(i, self) for i in range(self.args.relays)]
        for r in self.relays:
            r.start()
        self.writers, self.ledgers = [], []
        for i in range(self.args.writers):
            self.ledgers.append(self.dir / f"ledger-{i}")
            argv = [sys.executable, self.world.writer, self.world.dsn, self.args.seed * 100 + i, self.ledgers[-1], self.world.table]
            self.writers.append(subprocess.Popen([str(x) for x in argv], stdin=subprocess.DEVNULL))
        threading.Thread(target=self.watch, daemon=True).start()

    def watch(self):
        while self.watching:
            self.sink.mark()
            time.sleep(0.02)

    # ---- faults ----

    def say(self, text):
        print(f"{time.monotonic() - self.start_at:7.1f} s  {text}", flush=True)

    def fault(self, name, until=None, reach=0.0, at=None):
        now = time.monotonic()
        self.faults.append(Fault(at or now, until or now, name, reach + self.args.settled))
        self.count[name] = self.count.get(name, 0) + 1

    def victim(self):
        """The owner mostly, else anybody who is not stopped."""
        pick, chance = self.rng.random(), self.rng.random()
        ready = [r for r in self.relays if r.alive and not r.stopped]
        owner = self.world.owner() if chance < 0.7 else None
        mine = [r for r in ready if r.p.pid == owner]
        return (mine or ready or [None])[int(pick * len(mine or ready or [None]))]

    def do_kill(self):
        r, wait = self.victim(), self.rng.uniform(0, 4)
        if not r:
            return
        r.signal(signal.SIGKILL)
        r.p.wait()
        self.fault("kill -9")
        self.say(f"kill -9 of relay {r.number}, back in {wait:.1f} s")
        self.later.append((time.monotonic() + wait, r.start))

    def do_stop(self):
        r, long = self.victim(), self.rng.uniform(0.2, 6) if self.rng.random() < 0.5 else self.rng.uniform(11, 20)
        long = min(long, self.args.seconds / 3)
        if not r or sum(x.stopped is not None for x in self.relays) >= len(self.relays) - 1:
            return
        r.signal(signal.SIGSTOP)
        r.stopped = time.monotonic()
        self.fault("SIGSTOP")
        self.say(f"SIGSTOP of relay {r.number} for {long:.1f} s")
        self.later.append((time.monotonic() + long, lambda: self.resume(r)))

    def resume(self, r):
        """What it had handed to its sink may come now, long after another owner delivered it."""
        self.fault("SIGCONT", reach=time.monotonic() - r.stopped, until=time.monotonic() + 30)
        r.stopped = None
        r.signal(signal.SIGCONT)

    def do_term(self):
        r = self.victim()
        if not r:
            return
        self.fault("SIGTERM", until=time.monotonic() + 12)
        self.say(f"SIGTERM of relay {r.number}, and a new process")
        r.signal(signal.SIGTERM)
        try:
            self.exits.append(r.p.wait(40))
        except subprocess.TimeoutExpired:
            self.exits.append("hangs")
            r.signal(signal.SIGKILL)
            r.p.wait()
        r.start()

    def do_restart(self, how):
        self.say(f"restart of the server, {how}")
        at = time.monotonic()
        self.world.restart(how)
        self.fault(f"restart {how}", at=at, until=time.monotonic() + 15)
        self.say(f"the server is back after {time.monotonic() - at:.1f} s")

    def do_outage(self):
        long = min(self.rng.uniform(1, 8), self.args.seconds / 4)
        self.say(f"outage of the sink for {long:.1f} s")
        at = time.monotonic()
        self.sink.outage(True)
        time.sleep(long)
        self.sink.outage(False)
        self.fault("outage", at=at, until=time.monotonic() + 15)

    def do_broker_kill(self):
        long = min(self.rng.uniform(0, 6), self.args.seconds / 4)
        self.say(f"kill -9 of the broker, back in {long:.1f} s")
        at = time.monotonic()
        self.sink.kill()
        time.sleep(long)
        self.sink.start()
        self.fault("broker kill -9", at=at, until=time.monotonic() + 15)
        self.say(f"the broker is back after {time.monotonic() - at:.1f} s")

    def do_broker_hang(self):
        long = self.rng.uniform(0.2, 5) if self.rng.random() < 0.5 else self.rng.uniform(8, 20)
        long = min(long, self.args.seconds / 4)
        self.say(f"SIGSTOP of the broker for {long:.1f} s")
        at = time.monotonic()
        self.sink.hang(True)
        time.sleep(long)
        self.sink.hang(False)
        self.fault("broker SIGSTOP", at=at, until=time.monotonic() + 30)

    def kinds(self):
        """What can go wrong, and how often beside the others."""
        own = [(self.do_broker_kill, 3), (self.do_broker_hang, 3)] if self.sink.kill else []
        return [
            (self.do_kill, 5), (self.do_stop, 4), (self.do_term, 3), (self.do_outage, 2), *self.world.kinds(self), *own,
        ]

    def one_fault(self):
        kinds = self.kinds()
        self.rng.choices([k[0] for k in kinds], [k[1] for k in kinds])[0]()

    def due(self, all_of_it=False):
        for item in sorted(self.later, key=lambda x: x[0]):
            if all_of_it or item[0] <= time.monotonic():
                self.later.remove(item)
                item[1]()

    def progress(self):
        committed = sum(p.read_bytes().count(b"\n+") for p in self.ledgers if p.exists())
        self.say(f"{committed} committed, {self.sink.count()} delivered, {len(self.faults)} faults")

    def trouble(self):
        """Each sort of fault once at least, then at random."""
        end = self.start_at + self.args.seconds
        every = [k[0] for k in self.kinds()]
        self.rng.shuffle(every)
        next_at, progress_at = time.monotonic() + 2, time.monotonic() + 10
        gap = (1, 3) if self.args.seconds < 60 else (2, 10)
        while time.monotonic() < end:
            self.due()
            if time.monotonic() >= next_at:
                (every.pop() if every else self.one_fault)()
                next_at = time.monotonic() + self.rng.uniform(*gap)
            if time.monotonic() >= progress_at:
                self.progress()
                progress_at = time.monotonic() + 10
            for r in self.relays:
                if not r.alive and not any(f == r.start for _, f in self.later):
                    self.exits.append(f"relay {r.number} ended by itself with {r.p.returncode}")
                    r.start()
            time.sleep(0.02)

    # ---- the end ----

    def settle_down(self):
        """No more faults; writers end, everything is delivered, relays end in order."""
        self.due(all_of_it=True)
        for w in self.writers:
            w.terminate()
        for w in self.writers:
            if w.wait(60) != 0:
                self.exits.append("a writer failed")
        self.say("the writers have ended")
        ledger = verdict.Ledger(self.ledgers)
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and verdict.missing(ledger, self.sink.tags()):
            time.sleep(0.3)
        time.sleep(1)  # what would come twice would come now
        self.dead = self.dead_events()
        for r in self.relays:
            r.signal(signal.SIGTERM)
        for r in self.relays:
            try:
                self.exits.append(r.p.wait(40))
            except subprocess.TimeoutExpired:
                self.exits.append("hangs")
        self.sink.mark()
        self.watching = False
        return ledger

    def dead_events(self):
        r = subprocess.run([self.outbox, "dead", "list", "--json", "-c", str(self.config)], capture_output=True, text=True, check=False)
        return [f"dead: {line}" for line in r.stdout.splitlines()] + ([f"dead list: {r.stderr}"] if r.returncode else [])

    def run(self):
        self.say(f"mode {self.mode}, sink {self.args.to}, seed {self.args.seed}: {self.args.writers} writers, {self.args.relays} relays, {self.args.seconds:g} s")
        self.prepare()
        self.trouble()
        ledger = self.settle_down()
        self.faults.sort(key=lambda f: f.at)
        problems, counted = verdict.judge(ledger, self.sink.deliveries(), self.faults)
        problems += self.dead
        problems += [f"a process ended badly: {x}" for x in self.exits if x not in (0, -signal.SIGTERM)]
        if ledger.total() < self.args.seconds * 2:
            problems.append(f"only {ledger.total()} events were committed: that shows nothing")
        faults = ", ".join(f"{n} x {name}" for name, n in sorted(self.count.items()))
        why = ", ".join(f"{n} after {name}" for name, n in sorted(counted["repeats_by"].items())) or "none"
        print(f"\nscenario mode={self.mode} sink={self.args.to} seed={self.args.seed} seconds={self.args.seconds:g}\n"
              f"  faults:      {faults}\n"
              f"  committed:   {counted['committed']}; {counted['rolled_back']} rolled back; {counted['unknown']} whose commit was not answered, "
              f"{counted['unknown_delivered']} of them delivered\n"
              f"  delivered:   {counted['delivered']}\n"
              f"  repeats:     {counted['repeats']} ({why})", flush=True)
        for text in problems[:20]:
            print(f"  WRONG: {text}", flush=True)
        if len(problems) > 20:
            print(f"  … and {len(problems) - 20} more", flush=True)
        print(f"  verdict:     {'FAILED' if problems else 'nothing missing, nothing phantom, order kept, every repeat explained'}\n", flush=True)
        return not problems

    def close(self):
        self.watching = False
        for w in getattr(self, "writers", []):
            w.kill()
            w.wait()
        for r in getattr(self, "relays", []):
            if r.p and r.alive:
                r.signal(signal.SIGCONT)
                r.signal(signal.SIGKILL)
                r.p.wait()
        self.world.close()
        self.sink.close()


MODES = ("log", "wal", "rows")


def one(mode, sink, args):
    """True, False, or None where there is no such broker to be had."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix=f"outbox-scenario-{mode}-{sink}-"))
    os.chmod(folder, 0o755)
    args.to = sink
    world = mongo_world.MongoWorld if mode.startswith("mongodb") else PostgresWorld
    try:
        to = FileSink(folder) if sink == "file" else brokers.SINKS[sink]()
    except SystemExit as e:
        if not str(e.code).startswith("skipped: "):
            raise
        print(e.code, flush=True)
        folder.rmdir()
        return None
    s = Scenario(mode, args, folder, world(mode, folder, args), to)
    ok = False
    try:
        ok = s.run()
    finally:
        s.close()
        if ok and not args.keep:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            print(f"ledgers, logs and files: {folder}", flush=True)
    return ok


def chosen(modes, sinks):
    """What was asked for; else each mode to a file, and each broker behind one of them."""
    if not modes and not sinks:
        to_brokers = {"kafka": "rows", "nats": "wal"}
        return [(mode, "file") for mode in MODES] + [(to_brokers.get(sink, "log"), sink) for sink in brokers.SINKS]
    return [(mode, sink) for sink in sinks or ["file"] for mode in modes or MODES]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--mode", action="append", choices=["log", "wal", "rows", "mongodb", "mongodb-native"])
    p.add_argument("--sink", action="append", choices=["file", *brokers.SINKS])
    p.add_argument("--seconds", type=float, default=600)
    p.add_argument("--seed", type=int, default=None)
    p.add_argument("--writers", type=int, default=4)
    p.add_argument("--relays", type=int, default=3)
    p.add_argument("--shards", type=int, default=1)
    p.add_argument("--settled", type=float, default=5, help="seconds within which a delivery is settled; more on an overloaded machine")
    p.add_argument("--keep", action="store_true")
    p.add_argument("--list", action="store_true", help="only say what would run: mode and sink, one a line")
    args = p.parse_args()
    if args.seed is None:
        args.seed = random.SystemRandom().randrange(1, 1000000)
    runs = chosen(args.mode, args.sink)
    if args.list:
        print("\n".join(f"{mode} {sink}" for mode, sink in runs))
        return
    results = [(mode, sink, one(mode, sink, args)) for mode, sink in runs]
    for mode, sink, ok in results:
        print(f"scenario {mode} to {sink}: {'skipped' if ok is None else 'ok' if ok else 'FAILED'} (--mode {mode} --sink {sink} --seed {args.seed} --seconds {args.seconds:g})")
    if all(ok is None for *_, ok in results):
        sys.exit(77)
    sys.exit(1 if any(ok is False for *_, ok in results) else 0)


if __name__ == "__main__":
    main()
