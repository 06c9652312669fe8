# SPDX-License-Identifier: Apache-2.0
"""actions - what an operator does to a running system in the scenario: signals, changed files, commands. Each do_… is a task: it takes the
random numbers of its step and yields the seconds until it goes on. One action runs at a time, `once` aside; faults strike in between."""

import json
import signal
import subprocess
import time

import relays
import verdict

ACTIONS = ("reload", "broken", "shards", "pause", "dead", "key", "rename", "wrong-topic", "stop", "term", "handover", "sink-down", "once")
KEY_EXPRESSIONS = ("${aggregate_id}", "${payload:/key}", "x-${aggregate_id}")
BROKEN = ("pipelines: [", "pipelines:\n  orders: {source: {type: nothing}}\n", "pipelines:\n  others:\n    source: {type: sqlite, path: x}\n    sink: {type: 'null'}\n")


class Routes:
    """What the routes of the config file are at present."""

    def __init__(self):
        self.version, self.key, self.special = 1, 0, True
        self.topics = {"counted": "events.counted", "special": "events.special"}

    def text(self):
        key = KEY_EXPRESSIONS[self.key]
        return "".join(
            f'      - {{match: {{type: {kind}}}, topic: {topic}, key: "{key}", headers: {{x-version: "{self.version}"}}}}\n'
            for kind, topic in self.topics.items() if kind != "special" or self.special
        )


class Actions:
    """A part of Scenario."""

    # ---- means ----

    def command(self, *argv, check=True):
        """An outbox command as an operator runs it: again while the server is away. Its output, or None."""
        end, first = time.monotonic() + 60, True
        while True:
            try:
                r = subprocess.run([self.outbox, *argv, "-c", str(self.config)], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=60)
                if r.returncode == 0:
                    return r.stdout
                why = f"exit {r.returncode}: {r.stderr.strip()}"
            except subprocess.TimeoutExpired:
                r, why = None, "no end after 60 s"
            if argv[:2] == ("dead", "discard"):
                self.discard_unsure = True
            if time.monotonic() > end or not check:
                if check:
                    self.problem(f"outbox {' '.join(argv)}: {why}")
                return None
            if first:
                self.say(f"outbox {' '.join(argv)}: {why}; again")
            first = False
            time.sleep(0.3)

    def reload(self, name="reload"):
        """SIGHUP to every relay, and waits until each that can has read the file."""
        asked = []
        for r in self.relays:
            r.wait_ready()
            if r.alive:
                asked.append((r, r.starts, r.lines("config.reload")))
                r.signal(signal.SIGHUP)
        self.disturb(name, until=time.monotonic() + 15, clean=True)
        end = time.monotonic() + 30
        for r, starts, lines in asked:
            while r.alive and r.starts == starts and not r.frozen and r.lines("config.reload") <= lines:
                if time.monotonic() > end:
                    self.problem(f"relay {r.number} has not read its file 30 s after SIGHUP")
                    break
                yield 0.05

    def stop_relays(self, which, name):
        """A clean stop of these; whatever a fault kills meanwhile is stopped too."""
        for r in which:
            self.thaw(r)
            r.wait_ready()
            r.away = True
        self.disturb(name, until=time.monotonic() + 15, clean=True)
        for r in which:
            r.signal(signal.SIGTERM)
        end = time.monotonic() + 45
        while any(r.alive for r in which) and time.monotonic() < end:
            yield 0.05
        for r in which:
            if r.alive:
                self.problem(f"relay {r.number} still runs 45 s after SIGTERM")
                r.signal(signal.SIGKILL)
                r.p.wait()
            elif r.p.returncode not in (0, -signal.SIGKILL):
                self.problem(f"relay {r.number} ended with {r.p.returncode} after SIGTERM")
        self.disturb(name, until=time.monotonic() + 12, clean=True)

    def stop_all(self, name):
        self.held = True
        yield from self.stop_relays(list(self.relays), name)

    def start_all(self):
        self.held = False
        for r in self.relays:
            r.start()

    def sink_up(self):
        while self.sink_down:
            yield 0.1

    def topic_call(self, call, topic):
        """Of the broker's own tool; again while the broker is away. True when it was done."""
        end = time.monotonic() + 30
        while True:
            yield from self.sink_up()
            try:
                return call(topic) is not False
            except Exception as e:  # of any of the clients
                if time.monotonic() > end:
                    self.say(f"{topic}: {e!r}")
                    return False
            yield 0.3

    # ---- files and signals ----

    def do_reload(self, _):
        self.routes.version += 1
        self.write_config()
        self.say(f"reload with version {self.routes.version}")
        yield from self.reload()

    def do_broken(self, rng):
        """The file cannot be used; the relays go on with what they have."""
        text = rng.choice(BROKEN)
        self.say("reload of a broken file")
        self.held = True
        for r in self.relays:
            r.wait_ready()
        self.config.write_text(text)
        yield from self.reload("reload of a broken file")
        yield rng.uniform(0, 1)
        for r in self.relays:
            if not r.alive and not r.away:
                self.problem(f"relay {r.number} ended with {r.p.returncode} on a broken file")
        self.write_config()
        if rng.random() < 0.5:
            yield from self.reload()
        self.start_all()

    def do_stop(self, rng):
        wait = rng.uniform(0, 2)
        self.say(f"SIGTERM of all relays, start after {wait:.1f} s")
        yield from self.stop_all("stop of all")
        yield wait
        self.start_all()

    def do_term(self, rng):
        r = self.victim(rng)
        if r:
            self.say(f"SIGTERM of relay {r.number}, and a new process")
            yield from self.stop_relays([r], "SIGTERM")
            r.start()

    def do_handover(self, rng):
        """The owner goes for a while, or a further replica comes and goes."""
        wait, more = rng.uniform(1, 5), rng.random() < 0.5
        if more:
            r = relays.Relay(self.next_relay, self)
            self.next_relay += 1
            self.relays.append(r)
            self.say(f"relay {r.number} joins for {wait:.1f} s")
            self.disturb("hand-over", until=time.monotonic() + 15, clean=True)
            r.start()
            yield wait
            yield from self.stop_relays([r], "hand-over")
            self.relays.remove(r)
            return
        r = self.victim(rng)
        if r:
            self.say(f"relay {r.number} hands over for {wait:.1f} s")
            yield from self.stop_relays([r], "hand-over")
            yield wait
            r.start()

    def do_once(self, _):
        """`run --once` beside the relays: it waits for an owner no longer than the grace period."""
        path = self.dir / f"once-{len(self.journal)}.log"
        self.say("run --once beside the relays")
        self.disturb("run --once", until=time.monotonic() + 15, clean=True)
        with open(path, "wb") as log:
            p = subprocess.Popen([self.outbox, "run", "--once", "-c", str(self.config)], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.others.append(p)
        end = time.monotonic() + 90
        while p.poll() is None and time.monotonic() < end:
            yield 0.1
        if p.poll() is None:
            self.say("run --once still has work after 90 s: SIGTERM")
            p.send_signal(signal.SIGTERM)
            p.wait(60)
        if p.returncode not in (0, 1, 75):
            self.problem(f"run --once ended with {p.returncode}: {path}")
        self.disturb("run --once", until=time.monotonic() + 12, clean=True)
        self.say(f"run --once ended with {p.returncode}")

    # ---- shards ----

    def do_shards(self, rng):
        """Stop all, change the number, start; or one with the old number stays a while, which the others must wait for."""
        steps = (2, 1, 4, 1)
        number = steps[self.resharded] if self.resharded < len(steps) else rng.choice([n for n in (1, 2, 3, 4) if n != self.shards])
        late = rng.random() < 0.3 and len(self.relays) > 1
        self.resharded += 1
        self.say(f"shards {self.shards} → {number}{', one relay stops late' if late else ''}")
        self.held = True
        keeper = self.relays[0] if late else None
        yield from self.stop_relays([r for r in self.relays if r is not keeper], "shards")
        self.shards = number
        self.write_config()
        self.sink.mark()
        self.start_all()
        if keeper:
            yield rng.uniform(0.5, 3)
            yield from self.stop_relays([keeper], "shards")
            keeper.start()

    # ---- routes ----

    def apply_routes(self, by_restart, name):
        if not by_restart:
            self.write_config()
            yield from self.reload(name)
            return
        yield from self.stop_all(name)
        self.write_config()
        self.start_all()

    def do_key(self, rng):
        """Another key expression: events of one key have another key from then on, and with several shards another shard."""
        by_restart = rng.random() < 0.5
        self.routes.key = (self.routes.key + rng.choice((1, 2))) % len(KEY_EXPRESSIONS)
        self.say(f"key {KEY_EXPRESSIONS[self.routes.key]} by {'restart' if by_restart else 'reload'}")
        at = time.monotonic()
        if self.shards > 1:  # the shards start from the position of the slowest
            self.disturb("key change", at=at, until=at + 30, reach=20)
        yield from self.apply_routes(by_restart, "key change")
        self.key_changes.append((at, time.monotonic() + 15))

    def do_rename(self, rng):
        """A topic gets another name; the old one stays, or is deleted when nothing more comes."""
        kind, by_restart, delete = rng.choice(("counted", "counted", "special")), rng.random() < 0.4, rng.random() < 0.5
        old, self.renamed = self.routes.topics[kind], self.renamed + 1
        new = f"events.{kind}{self.renamed}"
        if not (yield from self.topic_call(self.sink.add_topic, new)):
            return
        self.routes.topics[kind] = new
        self.say(f"topic {old} → {new} by {'restart' if by_restart else 'reload'}{', the old one is deleted' if delete else ''}")
        yield from self.apply_routes(by_restart, "rename")
        if delete and self.sink.removes:
            yield from self.remove_when_quiet(old)

    def remove_when_quiet(self, topic):
        """As an operator does who watches the topic: nothing for two seconds, while others go on."""
        end = time.monotonic() + 20
        while time.monotonic() < end:
            if self.sink.removes and not self.sink_down:
                before, others = self.sink.amounts(topic)
                yield 2
                now, more = self.sink.amounts(topic)
                if now == before and more > others and not any(r.frozen for r in self.relays):
                    yield from self.topic_call(self.sink.remove_topic, topic)
                    self.say(f"topic {topic} is deleted")
                    return
            yield 0.2

    def do_wrong_topic(self, rng):
        """A route to a topic that does not exist, corrected by a second reload."""
        kind, wait = rng.choice(("counted", "special")), rng.uniform(0.3, 4)
        right = self.routes.topics[kind]
        self.routes.topics[kind] = "events.missing"
        self.say(f"{kind} events to a topic that does not exist, for {wait:.1f} s")
        yield from self.apply_routes(False, "wrong topic")
        yield wait
        self.routes.topics[kind] = right
        yield from self.apply_routes(rng.random() < 0.3, "wrong topic")

    # ---- the sink is down at start ----

    def do_sink_down(self, rng):
        """All relays start while the sink is down; SIGHUP; the sink comes back."""
        up, back, again = rng.uniform(1, 3), rng.uniform(0.5, 3), rng.random() < 0.3
        yield from self.sink_up()
        self.say(f"start with the sink down, SIGHUP after {up:.1f} s, sink up after {back:.1f} s")
        yield from self.stop_all("sink down at start")
        yield from self.sink_up()
        yield from self.lower_sink()
        self.start_all()
        yield up
        yield from self.do_reload(rng)
        if again:
            yield from self.do_reload(rng)
        yield back
        yield from self.raise_sink()

    def lower_sink(self):
        self.sink_down, self.down_at = True, time.monotonic()
        yield from self.beside(lambda: self.sink.outage(True))

    def raise_sink(self):
        yield from self.beside(lambda: self.sink.outage(False))
        self.disturb("outage", at=self.down_at, until=time.monotonic() + 15)
        self.sink_down = False

    # ---- pause, dead events ----

    def do_pause(self, rng):
        wait = rng.uniform(0.5, 4)
        self.say(f"pause for {wait:.1f} s")
        self.disturb("pause", until=time.monotonic() + wait + 12, clean=True)
        self.command("pause")
        yield wait
        self.command("resume")

    def do_dead(self, rng):
        """The route of the special events is lost in one version of the file: they die. The operator corrects it, and decides."""
        wait, decision, single = rng.uniform(0.5, 3), rng.choice(("retry", "retry", "discard")), rng.random() < 0.5
        self.say(f"no route for special events, for {wait:.1f} s")
        at = time.monotonic()
        self.routes.special = False
        yield from self.apply_routes(False, "reload")
        yield wait
        self.routes.special = True
        yield from self.apply_routes(rng.random() < 0.2, "reload")
        if self.routes.key != 0:  # an event without a route has the key of its row, not that of the expression
            self.key_changes.append((at, time.monotonic() + 15))
        if self.shards > 1:  # and the shards start from the position of the slowest
            self.disturb("key change", at=at, until=time.monotonic() + 15, reach=20)
        yield 0.5
        dead = [json.loads(line) for line in (self.command("dead", "list", "--json") or "").splitlines()]
        tags = self.tags_by_id()
        known = [d for d in dead if d["id"] in tags]
        if not known:
            self.say("no dead event")
            return
        one = rng.choice(known)
        self.decide(rng, decision, single, one, tags[one["id"]])

    def decide(self, rng, decision, single, one, tag_and_key):
        tag, key = tag_and_key
        if single:
            argv, chosen = [one["id"]], lambda t, k: t == tag
        elif decision == "retry":
            argv, chosen = rng.choice((["--all"], ["--type", "special"], ["--key", one["key"]], ["--reason", "*route*"])), None
        else:
            argv, chosen = ["--key", one["key"]], lambda t, k: k == key
        out = self.command("dead", decision, *argv, "--yes", "--json")
        n = sum(json.loads(line)["events"] for line in (out or "").splitlines())
        self.say(f"dead {decision} {' '.join(argv)}: {n} events")
        if decision == "discard":
            self.discards.append((time.monotonic(), chosen))
            self.discarded += n

    def tags_by_id(self):
        ledger = verdict.Ledger([p for p in self.ledgers if p.exists()])
        return {self.world.event_id(t): (t, kn[0]) for t, kn in {**ledger.maybe, **ledger.sure}.items()}

    def action_kinds(self):
        """name → (the task, how often beside the others)."""
        kinds = {"reload": (self.do_reload, 2), "broken": (self.do_broken, 1), "pause": (self.do_pause, 1), "dead": (self.do_dead, 2), "key": (self.do_key, 1),
                 "rename": (self.do_rename, 2), "stop": (self.do_stop, 2), "term": (self.do_term, 2), "handover": (self.do_handover, 2),
                 "sink-down": (self.do_sink_down, 1), "once": (self.do_once, 1)}
        if min(self.world.max_shards, self.sink.max_shards) > 1:
            kinds["shards"] = (self.do_shards, 3)
        if self.sink.removes:
            kinds["wrong-topic"] = (self.do_wrong_topic, 1)
        return kinds
