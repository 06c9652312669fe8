# SPDX-License-Identifier: Apache-2.0
"""faults - what goes wrong by itself in the scenario: processes, the server, the broker. Each do_… is a task: it takes the random numbers of
its step and yields the seconds until it goes on."""

import signal
import threading
import time

FAULTS = ("kill", "freeze", "outage", "server", "sessions", "slot", "broker-kill", "broker-hang")


class Faults:
    """A part of Scenario."""

    def victim(self, rng):
        """The owner mostly, else any relay that is not frozen."""
        pick, chance = rng.random(), rng.random()
        ready = [r for r in self.relays if r.alive and not r.frozen]
        owner = self.world.owner() if chance < 0.7 else None
        mine = [r for r in ready if r.p.pid == owner]
        among = mine or ready
        return among[int(pick * len(among))] if among else None

    def do_kill(self, rng):
        wait, r = rng.uniform(0, 4), self.victim(rng)
        if not r:
            return
        r.away = True
        r.signal(signal.SIGKILL)
        r.p.wait()
        self.disturb("kill -9")
        self.say(f"kill -9 of relay {r.number}, restart in {wait:.1f} s")
        yield wait
        r.start()

    def do_freeze(self, rng):
        """For less or for longer than a take-over takes."""
        long = rng.uniform(0.2, 6) if rng.random() < 0.5 else rng.uniform(11, 20)
        long, r = min(long, self.args.seconds / 3), self.victim(rng)
        if not r or sum(x.frozen is not None for x in self.relays) >= len(self.relays) - 1:
            return
        r.signal(signal.SIGSTOP)
        if not self.world.may_freeze():
            r.signal(signal.SIGCONT)
            return
        r.frozen, started = time.monotonic(), r.starts
        self.disturb("SIGSTOP")
        self.say(f"SIGSTOP of relay {r.number} for {long:.1f} s")
        yield long
        if r.starts == started:
            self.thaw(r)

    def thaw(self, r):
        """What the relay had passed to its sink may arrive now, long after another owner delivered it."""
        if r.frozen:
            self.disturb("SIGCONT", reach=time.monotonic() - r.frozen, until=time.monotonic() + 30)
            r.thaw()

    def do_server(self, rng):
        how = rng.choice(self.world.server_faults())
        self.say(f"restart of the server, {how}")
        at = time.monotonic()
        self.world.restart(how)
        self.disturb(f"restart {how}", at=at, until=time.monotonic() + 15)
        self.say(f"the server is back after {time.monotonic() - at:.1f} s")
        yield 0

    def do_sessions(self, _):
        self.world.end_sessions()
        self.say("the relays' sessions are terminated")
        self.disturb("sessions", until=time.monotonic() + 5)
        yield 0

    def do_slot(self, _):
        self.world.drop_slots()
        self.say("the replication slots are dropped")
        self.disturb("slot dropped", until=time.monotonic() + 15, reach=20)
        yield 0

    def beside(self, call):
        """A call that may take seconds, in a thread, while other tasks go on."""
        thread = threading.Thread(target=call)
        thread.start()
        while thread.is_alive():
            yield 0.02

    def sink_fault(self, name, long, text, begin, end, after=15):
        """One at a time."""
        long = min(long, self.args.seconds / 4)
        if self.sink_down:
            return
        self.say(f"{text} for {long:.1f} s")
        at, self.sink_down = time.monotonic(), True
        yield from self.beside(begin)
        self.disturb(name, at=at, until=time.monotonic() + long + after)
        yield long
        yield from self.beside(end)
        self.disturb(name, at=at, until=time.monotonic() + after)
        self.sink_down = False
        self.say(f"the sink is back after {time.monotonic() - at:.1f} s")

    def do_outage(self, rng):
        yield from self.sink_fault("outage", rng.uniform(1, 8), "outage of the sink", lambda: self.sink.outage(True), lambda: self.sink.outage(False))

    def do_broker_kill(self, rng):
        yield from self.sink_fault("broker kill -9", rng.uniform(0, 6), "kill -9 of the broker", self.sink.kill, self.sink.start)

    def do_broker_hang(self, rng):
        """For less or for longer than the relay waits for an answer."""
        long = rng.uniform(0.2, 5) if rng.random() < 0.5 else rng.uniform(8, 20)
        yield from self.sink_fault("broker SIGSTOP", long, "SIGSTOP of the broker", lambda: self.sink.hang(True), lambda: self.sink.hang(False), 30)

    def fault_kinds(self):
        """name → (the task, how often beside the others)."""
        kinds = {"kill": (self.do_kill, 5), "freeze": (self.do_freeze, 4), "outage": (self.do_outage, 2)}
        if self.world.server_faults():
            kinds["server"] = (self.do_server, 3)
        if self.world.has_sessions:
            kinds["sessions"] = (self.do_sessions, 2)
        if self.world.can_lose_slot:
            kinds["slot"] = (self.do_slot, 1)
        if self.sink.kill:
            kinds["broker-kill"] = (self.do_broker_kill, 3)
            kinds["broker-hang"] = (self.do_broker_hang, 3)
        return kinds
