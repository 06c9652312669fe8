# SPDX-License-Identifier: Apache-2.0
"""relays - one relay process of the scenario: started, signalled, stopped, and what its log has."""

import os
import signal
import subprocess
import time


class Relay:
    def __init__(self, number, scenario):
        self.number, self.s, self.starts, self.p = number, scenario, 0, None
        self.frozen = None  # since when
        self.away = True  # not started yet, or stopped or killed on purpose

    def start(self):
        """Unless an operator's action keeps the relays stopped, which then starts all of them."""
        if self.s.held or self.alive or self not in self.s.relays:  # one that only joined for a while may be gone
            return
        self.away, self.frozen = False, None
        self.starts += 1
        self.log = self.s.dir / f"relay-{self.number}-{self.starts}.log"
        with open(self.log, "wb") as log:
            self.p = subprocess.Popen([self.s.outbox, "run", "-c", str(self.s.config)], stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    @property
    def alive(self):
        return self.p is not None and self.p.poll() is None

    def signal(self, sig):
        if self.alive:
            os.kill(self.p.pid, sig)

    def ready(self):
        """Signals are handled: before that SIGHUP would end the process."""
        try:
            with open(f"/proc/{self.p.pid}/status", encoding="ascii", errors="replace") as f:
                masks = [int(x.split()[1], 16) for x in f.read().splitlines() if x.startswith("SigBlk:")]
        except OSError:
            return False
        return any(mask >> (signal.SIGHUP - 1) & 1 for mask in masks)

    def wait_ready(self):
        end = time.monotonic() + 20
        while self.alive and not self.frozen and not self.ready() and time.monotonic() < end:
            time.sleep(0.01)

    def lines(self, word):
        return self.log.read_bytes().count(word.encode())

    def thaw(self):
        if self.frozen:
            self.signal(signal.SIGCONT)
            self.frozen = None
