#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""scenario - writers, relays, a server and an operator under random faults; at the end a verdict from the writers' ledgers.

    tests/scenario/scenario.py --mode wal --sink kafka --seconds 60 --seed 7 --actions reload,shards --faults kill

Faults (faults.py) happen to processes, server and broker; actions (actions.py) are what an operator does: reload, change of the number of shards,
pause, decisions on dead events, changed routes, clean stops, hand-overs. Both are chosen at random from the seed, which is printed: the same
seed chooses the same steps in the same order; what the machine makes of them is its own. `--actions` and `--faults` take names, `all`,
`all,-name` or `none`, so that a failing combination can be narrowed down. `actions.jsonl` in the run's folder has every step with its time.

Exit code 0 only if nothing is missing, nothing is a phantom, the first deliveries of each key are in order and every repeat is
explained (verdict.py). 77: every run was skipped.
"""

import argparse
import json
import os
import pathlib
import random
import shlex
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
import actions  # noqa: E402
import brokers  # noqa: E402
import faults  # noqa: E402
import verdict  # noqa: E402
from file_sink import FileSink  # noqa: E402
from mongo_world import MongoWorld  # noqa: E402
from postgres_world import PostgresWorld  # noqa: E402
from relays import Relay  # noqa: E402
from sqlite_world import SqliteWorld  # noqa: E402
from verdict import Fault  # noqa: E402

WORLDS = {mode: world for world in (PostgresWorld, MongoWorld, SqliteWorld) for mode in world.modes}
SINKS = {"file": FileSink, **brokers.SINKS}
GOOD = "nothing missing, nothing phantom, order kept, every repeat explained"


class Plan:
    """The steps of one kind, from the seed alone: each chosen task once at least, then at random."""

    def __init__(self, seed, kinds, gap):
        self.rng, self.kinds, self.gap, self.number = random.Random(seed), kinds, gap, 0
        self.first = sorted(kinds)
        self.rng.shuffle(self.first)
        self.next_at = time.monotonic() + self.rng.uniform(*gap)

    def step(self):
        """(name, task)"""
        self.number += 1
        names = sorted(self.kinds)
        name = self.first.pop() if self.first else self.rng.choices(names, [self.kinds[n][1] for n in names])[0]
        task = self.kinds[name][0](random.Random(self.rng.random()))
        return name, task

    def wait(self):
        self.next_at = time.monotonic() + self.rng.uniform(*self.gap)


class Scenario(faults.Faults, actions.Actions):
    def __init__(self, mode, args, folder, world, sink):
        self.mode, self.args, self.dir, self.world, self.sink = mode, args, folder, world, sink
        self.outbox = os.environ.get("OUTBOX_BIN", str(ROOT / "build" / "outbox"))
        self.config = folder / "outbox.yaml"
        rng = random.Random(f"{args.seed}-{mode}-{args.to}")
        self.variant = rng.choice(world.variants())
        self.on_dead = rng.choice(("continue", "park"))
        self.begin_down = rng.random() < 0.5
        self.disturbances, self.journal, self.problems = [], [], []
        self.start_at, self.watching = time.monotonic(), True
        self.count, self.tasks = {}, []  # tasks: [due, generator, name]
        self.routes, self.shards = actions.Routes(), min(args.shards, world.max_shards, sink.max_shards)
        self.resharded = self.renamed = self.discarded = 0
        self.key_changes, self.discards, self.discard_unsure = [], [], False
        self.held = self.sink_down = False
        self.relays, self.others, self.writers, self.ledgers = [], [], [], []
        self.next_relay = args.relays

    # ---- set-up ----

    def write_config(self):
        """In one step: a relay that starts now reads the old file or the new one."""
        text = (f"log: {{level: info}}\npipelines:\n  orders:\n{self.world.more()}    source: {self.world.source(self.variant)}\n    sink: {self.sink.config()}\n"
                f"    envelope: none\n    dlt: off\n    on_dead: {self.on_dead}\n    shards: {self.shards}\n    grace: 10s\n    routes:\n{self.routes.text()}")
        new = self.dir / "outbox.yaml.new"
        new.write_text(text)
        new.rename(self.config)

    def prepare(self):
        for topic in self.routes.topics.values():
            self.sink.add_topic(topic)
        self.world.prepare()
        self.write_config()
        subprocess.run([self.outbox, "schema", "--apply", *self.world.apply(), "-c", str(self.config)], check=True, stdout=subprocess.DEVNULL)
        self.relays = [Relay(i, self) for i in range(self.args.relays)]
        threading.Thread(target=self.watch, daemon=True).start()
        if "sink-down" in self.chosen_actions() and self.begin_down:
            self.tasks.append([0, self.begin_with_sink_down(), "sink-down"])
            return
        self.start_all()
        if self.world.slot_first:
            self.world.wait_for_slot()
        self.start_writers()

    def begin_with_sink_down(self):
        """The first start of all."""
        self.record("action", "sink-down")
        self.say("first start, with the sink down")
        yield from self.lower_sink()
        if not self.world.slot_first:
            self.start_writers()
            yield 1
        self.start_all()
        if self.world.slot_first:
            self.world.wait_for_slot()
            self.start_writers()
        yield 1.5
        yield from self.do_reload(None)
        yield 1
        yield from self.raise_sink()
        self.say("the sink is up")

    def start_writers(self):
        for i in range(self.args.writers):
            self.ledgers.append(self.dir / f"ledger-{i}")
            argv = [sys.executable, self.world.writer, self.world.dsn, self.args.seed * 100 + i, self.ledgers[-1], self.world.table]
            self.writers.append(subprocess.Popen([str(x) for x in argv], stdin=subprocess.DEVNULL))

    def watch(self):
        while self.watching:
            self.sink.mark()
            time.sleep(0.02)

    # ---- what happened ----

    def say(self, text):
        self.record("note", text)
        print(f"{time.monotonic() - self.start_at:7.1f} s  {text}", flush=True)

    def record(self, kind, text):
        entry = {"t": round(time.monotonic() - self.start_at, 3), "monotonic": round(time.monotonic(), 3), "kind": kind, "text": text}
        self.journal.append(entry)
        with open(self.dir / "actions.jsonl", "a") as f:
            f.write(json.dumps(entry) + "\n")

    def problem(self, text):
        self.record("problem", text)
        self.problems.append(text)

    def disturb(self, name, until=None, reach=0.0, at=None, clean=False):
        now = time.monotonic()
        self.disturbances.append(Fault(at or now, until or now, name, reach + self.args.settled, clean))
        self.count[name] = self.count.get(name, 0) + 1

    # ---- the run ----

    def chosen(self, text, kinds, known):
        """The kinds that `--actions` or `--faults` name, as far as this mode and sink have them."""
        return {n: kinds[n] for n in named(text, known) if n in kinds}

    def chosen_actions(self):
        return self.chosen(self.args.actions, self.action_kinds(), actions.ACTIONS)

    def advance(self):
        """Goes on with every task that is due."""
        for task in list(self.tasks):
            if task[0] > time.monotonic():
                continue
            try:
                task[0] = time.monotonic() + (next(task[1]) or 0)
            except StopIteration:
                self.tasks.remove(task)

    def begin(self, plan, kind):
        name, task = plan.step()
        self.record(kind, name)
        self.tasks.append([0, task, name])
        plan.wait()

    def watch_relays(self):
        for r in self.relays:
            if not r.alive and not r.away and not self.held:
                self.problem(f"relay {r.number} ended by itself with {r.p.returncode}: {r.log}")
                r.start()

    def trouble(self):
        short = self.args.seconds < 60
        fault_kinds = self.chosen(self.args.faults, self.fault_kinds(), faults.FAULTS)
        plans = [(Plan(f"{self.args.seed}-faults", fault_kinds, (1, 3) if short else (2, 10)), "fault"),
                 (Plan(f"{self.args.seed}-actions", self.chosen_actions(), (0.3, 1.5) if short else (1, 6)), "action")]
        end, progress_at = self.start_at + self.args.seconds, time.monotonic() + 10
        while time.monotonic() < end:
            self.advance()
            acting = {name for _, _, name in self.tasks} & (set(actions.ACTIONS) - {"once"})
            for plan, kind in plans:
                if plan.kinds and time.monotonic() >= plan.next_at and not (kind == "action" and acting):
                    self.begin(plan, kind)
            if time.monotonic() >= progress_at:
                self.progress()
                progress_at = time.monotonic() + 10
            self.watch_relays()
            time.sleep(0.01)

    def progress(self):
        committed = sum(p.read_bytes().count(b"\n+") for p in self.ledgers if p.exists())
        self.say(f"{committed} committed, {self.sink.count()} delivered, {len(self.journal)} entries in the journal")

    # ---- the end ----

    def settle_down(self):
        """Nothing more happens; writers end, everything is delivered, dead events are retried, relays end in order."""
        while self.tasks:
            self.advance()
            self.watch_relays()
            time.sleep(0.01)
        self.start_all()
        for w in self.writers:
            w.terminate()
        for w in self.writers:
            if w.wait(60) != 0:
                self.problem("a writer failed")
        self.say("the writers have ended")
        ledger = verdict.Ledger(self.ledgers)
        self.wait_for_delivery(ledger)
        time.sleep(1)  # what comes twice comes now
        self.check_status()
        for r in self.relays:
            r.away = True
            r.signal(signal.SIGTERM)
        for r in self.relays:
            try:
                if r.p.wait(40) not in (0, -signal.SIGTERM):
                    self.problem(f"relay {r.number} ended with {r.p.returncode}")
            except subprocess.TimeoutExpired:
                self.problem(f"relay {r.number} still runs 40 s after SIGTERM")
        self.sink.mark()
        self.watching = False
        return ledger

    def wait_for_delivery(self, ledger):
        """Until nothing is missing, or nothing has come for as long as the slowest recovery may take."""
        quiet, before = time.monotonic(), None
        while time.monotonic() < quiet + self.args.patience:
            if self.command("dead", "list", "--json"):
                self.command("dead", "retry", "--all", "--yes", "--json")
            operator = self.operator(ledger)
            left = len(verdict.missing(ledger, self.sink.tags(), operator))
            if not left and "dead" not in operator.dead.values():
                return
            if left != before:
                quiet, before = time.monotonic(), left
            time.sleep(0.3)

    def check_status(self):
        """`outbox status` agrees that nothing waits, within a few seconds."""
        end = time.monotonic() + 15
        while True:
            rows = [json.loads(x) for x in (self.command("status", "--json") or "").splitlines()]
            left = {k: sum(r.get(k) or 0 for r in rows) for k in ("pending", "parked", "dead")}
            if not any(left.values()):
                return
            if time.monotonic() > end:
                self.problem(f"status: {left} after everything is delivered")
                return
            time.sleep(0.3)

    def operator(self, ledger):
        ids = {self.world.event_id(t): t for t in (*ledger.sure, *ledger.maybe)}
        dead = {ids.get(i, i): state for i, state in self.world.dead().items()}
        discarded = sum(s == "discarded" for s in dead.values()) if self.discard_unsure else self.discarded
        return verdict.Operator(dead, self.discards, discarded, self.on_dead == "park", self.key_changes)

    def run(self):
        print(f"        mode {self.mode}, sink {self.args.to}, seed {self.args.seed}: {self.args.writers} writers, {self.args.relays} relays, {self.args.seconds:g} s, "
              f"on_dead {self.on_dead}{', ' + self.variant if self.variant else ''}", flush=True)
        self.prepare()
        self.trouble()
        ledger = self.settle_down()
        self.disturbances.sort(key=lambda f: f.at)
        problems, counted = verdict.judge(ledger, self.sink.deliveries(), self.disturbances, self.operator(ledger), self.sink.slack, self.args.strict)
        problems += self.problems
        if ledger.total() < self.args.seconds * 2:
            problems.append(f"only {ledger.total()} events were committed: that shows nothing")
        self.report(problems, counted)
        return not problems

    def report(self, problems, counted):
        happened = ", ".join(f"{n} x {name}" for name, n in sorted(self.count.items())) or "nothing"
        why, clean = (", ".join(f"{n} after {name}" for name, n in sorted(counted[k].items())) or "none" for k in ("repeats_by", "clean"))
        print(f"\nscenario mode={self.mode} sink={self.args.to} seed={self.args.seed} seconds={self.args.seconds:g}\n"
              f"  happened:    {happened}\n"
              f"  committed:   {counted['committed']}; {counted['rolled_back']} rolled back; {counted['unknown']} whose commit was not answered, "
              f"{counted['unknown_delivered']} of them delivered\n"
              f"  delivered:   {counted['delivered']}; {counted['died']} had died, {counted['discarded']} of them discarded; the longest wait was "
              f"{counted['wait'][0]:.1f} s ({counted['wait'][1]})\n"
              f"  repeats:     {counted['repeats']} ({why}); after clean actions alone: {sum(counted['clean'].values())} ({clean})", flush=True)
        for text in problems[:20]:
            print(f"  WRONG: {text}", flush=True)
        if len(problems) > 20:
            print(f"  … and {len(problems) - 20} more", flush=True)
        if problems:
            for entry in self.journal[-15:]:
                print(f"  at {entry['t']:7.2f} s: {entry['kind']} {entry['text']}", flush=True)
            print(f"  replay:      {replay(self.mode, self.args)}", flush=True)
        print(f"  verdict:     {'FAILED' if problems else GOOD}\n", flush=True)

    def close(self):
        self.watching = False
        for p in self.writers + self.others:
            p.kill()
            p.wait()
        for r in self.relays:
            if r.alive:
                r.signal(signal.SIGCONT)
                r.signal(signal.SIGKILL)
                r.p.wait()
        self.world.close()
        self.sink.close()


def replay(mode, args):
    argv = ["tests/scenario/scenario.py", "--mode", mode, "--sink", args.to, "--seconds", f"{args.seconds:g}", "--seed", str(args.seed), "--writers",
            str(args.writers), "--relays", str(args.relays), "--shards", str(args.shards), "--actions", args.actions, "--faults", args.faults,
            "--settled", f"{args.settled:g}"]
    return shlex.join(argv + (["--strict"] if args.strict else []))


def one(mode, sink, args):
    """True, False, or None where there is no such server to be had."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix=f"outbox-scenario-{mode}-{sink}-"))
    os.chmod(folder, 0o755)
    args.to = sink
    try:
        to = FileSink(folder) if sink == "file" else brokers.SINKS[sink]()
        try:
            world = WORLDS[mode](mode, folder, args)
        except BaseException:
            to.close()
            raise
    except SystemExit as e:
        if not str(e.code).startswith("skipped: "):
            raise
        print(e.code, flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        return None
    s = Scenario(mode, args, folder, world, to)
    ok = False
    try:
        ok = s.run()
    finally:
        s.close()
        if ok and not args.keep:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            print(f"ledgers, logs, files and actions.jsonl: {folder}", flush=True)
    return ok


def chosen(modes, sinks):
    """What was asked for; else each mode to a file, and each broker behind one of them."""
    if not modes and not sinks:
        to_brokers = {"kafka": "rows", "nats": "wal"}
        return [(mode, "file") for mode in WORLDS] + [(to_brokers.get(sink, "log"), sink) for sink in brokers.SINKS]
    return [(mode, sink) for sink in sinks or ["file"] for mode in modes or WORLDS]


def named(text, known):
    """`all`, `none`, or names; one with `-` before it is left out: `all,-shards`."""
    words = text.split(",")
    without = {w[1:] for w in words if w.startswith("-")}
    return [n for n in known if (n in words or "all" in words) and n not in without]


def checked(known):
    def check(text):
        unknown = [n for n in text.split(",") if n.lstrip("-") not in (*known, "all", "none")]
        if unknown:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; known are all, none, {', '.join(known)}")
        return text

    return check


def end(*_):
    sys.exit("ended by SIGTERM")


def main():
    signal.signal(signal.SIGTERM, end)  # so that everything that was started is ended too
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--mode", action="append", choices=list(WORLDS))
    p.add_argument("--sink", action="append", choices=list(SINKS))
    p.add_argument("--seconds", type=float, default=600)
    p.add_argument("--seed", type=int, default=None)
    p.add_argument("--writers", type=int, default=4)
    p.add_argument("--relays", type=int, default=3)
    p.add_argument("--shards", type=int, default=1, help="at the start")
    p.add_argument("--actions", type=checked(actions.ACTIONS), default="all", help=f"all, none, all,-NAME, or some of {','.join(actions.ACTIONS)}")
    p.add_argument("--faults", type=checked(faults.FAULTS), default="all", help=f"all, none, all,-NAME, or some of {','.join(faults.FAULTS)}")
    p.add_argument("--strict", action="store_true", help="a repeat that only a clean action explains fails the run")
    p.add_argument("--settled", type=float, default=5, help="seconds within which a delivery is settled; more on an overloaded machine")
    p.add_argument("--patience", type=float, default=100, help="seconds without a delivery after which what is missing is lost")
    p.add_argument("--keep", action="store_true", help="keep the folder of a good run too")
    p.add_argument("--list", action="store_true", help="only print what would run: mode and sink, one a line")
    args = p.parse_args()
    if args.seed is None:
        args.seed = random.SystemRandom().randrange(1, 1000000)
    runs = chosen(args.mode, args.sink)
    if args.list:
        print("\n".join(f"{mode} {sink}" for mode, sink in runs))
        return
    results = [(mode, sink, one(mode, sink, args)) for mode, sink in runs]
    for mode, sink, ok in results:
        args.to = sink
        print(f"scenario {mode} to {sink}: {'skipped' if ok is None else 'ok' if ok else 'FAILED'} ({replay(mode, args)})")
    if all(ok is None for *_, ok in results):
        sys.exit(77)
    sys.exit(1 if any(ok is False for *_, ok in results) else 0)


if __name__ == "__main__":
    main()
