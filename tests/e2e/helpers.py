# SPDX-License-Identifier: Apache-2.0
"""helpers - processes, conditions with a deadline, JSON lines. What every end-to-end test uses."""

import json
import os
import pathlib
import re
import signal
import sqlite3
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = os.environ.get("OUTBOX_BIN", str(ROOT / "build" / "outbox"))
# Sanitizer builds are slower: every deadline is multiplied.
SLOW = float(os.environ.get("OUTBOX_TEST_SLOW", "1"))
SANITIZER_WORDS = (
    "ERROR: AddressSanitizer",
    "ERROR: LeakSanitizer",
    "WARNING: ThreadSanitizer",
    "runtime error:",
)


def wait_until(condition, deadline=10.0, what="", every=0.01):
    """Calls condition() until it is true and returns what it gave. An assertion fails after
    `deadline` seconds; an AssertionError or OSError inside counts as "not yet"."""
    end = time.monotonic() + deadline * SLOW
    last = None
    while True:
        try:
            last = condition()
            if last:
                return last
        except (AssertionError, OSError, sqlite3.OperationalError) as e:
            last = e
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline * SLOW:g} s: {what or condition}: {last!r}")
        time.sleep(every)


def read_jsonl(path):
    """All whole lines of a file as objects; [] if there is no file. A last line without its line
    feed is left out: its writer has not finished it."""
    try:
        data = pathlib.Path(path).read_bytes()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in data.split(b"\n")[:-1] if line]


def stop_outside_a_transaction(process, db):
    """SIGSTOP, but not while the process has SQLite's write lock: then every writer is kept out, the
    application too, and nobody can do anything. db: a connection of the test."""

    def stopped():
        process.signal(signal.SIGSTOP)
        db.execute("pragma busy_timeout = 100")
        try:
            db.execute("begin immediate")
            db.execute("rollback")
            return True
        except sqlite3.OperationalError:
            process.signal(signal.SIGCONT)
            return False
        finally:
            db.execute(f"pragma busy_timeout = {int(20000 * SLOW)}")

    wait_until(stopped, 20, "stopped while it writes nothing")


def sanitizer_report(text):
    """The part of a log that a sanitizer wrote, or None."""
    for word in SANITIZER_WORDS:
        at = text.find(word)
        if at >= 0:
            return text[max(0, at - 200) : at + 6000]
    return None


def counted(log, what):
    """A total of relay.stop; the lines relay.batch before it have parts of it."""
    (stop,) = [line for line in log.splitlines() if "msg=relay.stop" in line]
    total, parts = (
        [int(m) for line in lines for m in re.findall(rf" {what}=(\d+)", line)]
        for lines in ([stop], [line for line in log.splitlines() if "msg=relay.batch" in line])
    )
    assert len(total) == 1 and sum(parts) <= total[0], (what, total, parts)
    return total[0]


class Process:
    """A program that runs beside the test. Its output goes to files. Ended by pid."""

    def __init__(self, argv, cwd, env, name):
        self.argv = argv
        self.out_path = pathlib.Path(cwd) / f"{name}.out"
        self.err_path = pathlib.Path(cwd) / f"{name}.err"
        with open(self.out_path, "wb") as out, open(self.err_path, "wb") as err:
            self.popen = subprocess.Popen(
                argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err
            )
        self.pid = self.popen.pid

    @property
    def out(self):
        return self.out_path.read_text(errors="replace")

    @property
    def err(self):
        return self.err_path.read_text(errors="replace")

    @property
    def alive(self):
        return self.popen.poll() is None

    def signal(self, sig):
        if self.alive:
            os.kill(self.pid, sig)

    def hears(self, sig):
        try:
            lines = open(f"/proc/{self.pid}/status", encoding="ascii", errors="replace").read().splitlines()
        except OSError:
            return True
        masks = [int(x.split()[1], 16) for x in lines if x.startswith(("SigBlk:", "SigCgt:"))]
        return any(mask >> (sig - 1) & 1 for mask in masks)

    def wait(self, deadline=20.0):
        """The exit code (negative: the signal)."""
        try:
            return self.popen.wait(deadline * SLOW)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"still running after {deadline * SLOW:g} s: {self.argv}\n{self.err[-4000:]}"
            ) from None

    def stop(self, deadline=20.0):
        """SIGTERM, then waits. The exit code. A program that has just been started is let come as far as hearing it."""
        until = time.monotonic() + 5 * SLOW
        while self.alive and not self.hears(signal.SIGTERM) and time.monotonic() < until:
            time.sleep(0.01)
        self.signal(signal.SIGTERM)
        return self.wait(deadline)

    def kill(self):
        """SIGKILL: what a crash is."""
        self.signal(signal.SIGKILL)
        return self.popen.wait()


class Outbox:
    """The program under test in a folder of its own."""

    def __init__(self, folder):
        self.dir = pathlib.Path(folder)
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("OUTBOX_")}
        self.env["NO_COLOR"] = "1"
        self.started = []
        self.texts = []

    def path(self, name):
        return self.dir / name

    def write(self, name, text):
        """A file in the folder; bytes or text. Its path as a string."""
        p = self.dir / name
        p.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(p)

    def run(self, *args, check=0, stdin=None, timeout=30.0, env=None):
        """Runs `outbox args…` to its end. check: the exit code that it must have, None: any."""
        r = subprocess.run(
            [BIN, *map(str, args)],
            cwd=self.dir,
            env={**self.env, **(env or {})},
            input=stdin if stdin is None or isinstance(stdin, bytes) else stdin.encode(),
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            timeout=timeout * SLOW,
            check=False,
        )
        r.out = r.stdout.decode(errors="replace")
        r.err = r.stderr.decode(errors="replace")
        self.texts.append(r.err)
        if check is not None:
            assert r.returncode == check, (
                f"outbox {' '.join(map(str, args))}: exit {r.returncode}, wanted {check}\n"
                f"{r.out[-2000:]}\n{r.err[-4000:]}"
            )
        return r

    def json(self, *args, **kw):
        """The output of a command as a list of objects, one per line."""
        return [json.loads(line) for line in self.run(*args, **kw).out.splitlines() if line]

    def start(self, *args, env=None, argv=None):
        """Starts `outbox args…` (or argv) and returns the Process; it is killed after the test."""
        p = Process(
            argv or [BIN, *map(str, args)],
            self.dir,
            {**self.env, **(env or {})},
            f"process-{len(self.started) + 1}",
        )
        self.started.append(p)
        return p

    def sqlite(self, name):
        """A connection to a database file in the folder, in autocommit: write BEGIN yourself."""
        db = sqlite3.connect(self.dir / name, timeout=20 * SLOW, isolation_level=None)
        db.execute("pragma journal_mode=wal")
        return db

    def close(self):
        for p in self.started:
            p.signal(signal.SIGCONT)
            p.kill()
            self.texts.append(p.err)
        for text in self.texts:
            report = sanitizer_report(text)
            assert report is None, report


def memory_mb(process, name):
    """VmRSS, VmHWM … of a process."""
    for line in open(f"/proc/{process.pid}/status"):
        if line.startswith(name):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"no {name}")
