# SPDX-License-Identifier: Apache-2.0
"""test_services - the servers of the tests leave no process and no folder behind, in whatever way they end."""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile

import pytest

from helpers import wait_until
from services import SCRIPTS

NAMES = ["postgres", "pgbouncer", "nats", "rabbitmq", "mongodb", "kafka"]


class Place:
    """A folder for temporary files by which everything that was started from here is known."""

    def __init__(self):
        self.dir = tempfile.mkdtemp(prefix="outbox-services.")
        os.chmod(self.dir, 0o755)  # PostgreSQL runs as another user

    def processes(self):
        """pid: command of every process that has the folder in its arguments or its environment."""
        found = {}
        for p in pathlib.Path("/proc").iterdir():
            try:
                text = (p / "cmdline").read_bytes()
                if p.name.isdigit() and int(p.name) != os.getpid() and self.dir.encode() in text + (p / "environ").read_bytes():
                    state = (p / "stat").read_text().rsplit(")", 1)[1].split()[0]
                    found.update({int(p.name): text.replace(b"\0", b" ").decode()} if state != "Z" else {})
            except OSError:
                pass  # it has ended
        return found

    def watched(self, script):
        """Whether somebody of the script who is not of its group any more will end what it starts."""
        for pid, command in self.processes().items():
            with contextlib.suppress(ProcessLookupError):
                if "/services/" in command and os.getpgid(pid) != script.pid:
                    return True
        return False

    def gone(self):
        return not self.processes() and not os.listdir(self.dir)

    def start(self, name, *args):
        if name == "pgbouncer":
            args = ("--server", 1, "--mode", "session", *args)
        return subprocess.Popen(
            [str(SCRIPTS / name), "start", *map(str, args)], env={**os.environ, "TMPDIR": self.dir},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )


def output(script):
    out, _ = script.communicate(timeout=200)
    if script.returncode == 77:
        pytest.skip(out.strip())
    assert script.returncode == 0, out
    return dict(line.split("=", 1) for line in out.splitlines() if "=" in line)


@pytest.fixture
def place():
    p = Place()
    yield p
    for pid in p.processes():  # only after a failure
        os.kill(pid, signal.SIGKILL)
    shutil.rmtree(p.dir, ignore_errors=True)


@pytest.fixture
def wanted():
    """The process that wants a server."""
    p = subprocess.Popen(["sleep", "600"])
    yield p
    p.kill()
    p.wait()


def server_pids(place, name):
    word = {
        "postgres": "/bin/postgres -D", "pgbouncer": "/usr/sbin/pgbouncer", "nats": "nats-server -c", "rabbitmq": "beam.smp",
        "mongodb": "/mongod-", "kafka": " kafka.Kafka ",
    }[name]
    return [pid for pid, command in place.processes().items() if word in command]


def stop(name, env):
    folder = next(v for k, v in env.items() if k.endswith("DIR"))
    how = ["--kill"] if name == "rabbitmq" else []  # a polite end of that takes long
    subprocess.run([str(SCRIPTS / name), "stop", folder, *how], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_stopped(place, name):
    env = output(place.start(name))
    assert server_pids(place, name)
    stop(name, env)
    wait_until(place.gone, 30, "nothing left")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_its_process_was_killed(place, wanted, name):
    """Also when the server is stopped, as some tests leave it."""
    nodes = 3 if name == "kafka" else 1  # a cluster ends as a whole
    output(place.start(name, *(["--nodes", nodes] if nodes > 1 else []), "--while", wanted.pid))
    servers = server_pids(place, name)
    assert len(servers) >= nodes
    for pid in servers:
        os.kill(pid, signal.SIGSTOP)
    wanted.kill()  # a zombie until it is waited for: dead all the same
    wait_until(place.gone, 60, "nothing left")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["with everything of its group, and its process later", "by a signal that it sees"])
@pytest.mark.parametrize("name", NAMES)
def test_the_script_was_ended_in_mid_start(place, wanted, name, how):
    by_group = how.startswith("with")
    script = place.start(name, *(["--while", wanted.pid] if by_group else []))
    # something of the server is there besides the script, and who watches over it does not belong to the script any more
    wait_until(lambda: (len(place.processes()) > (2 if by_group else 1) and (place.watched(script) or not by_group)) or script.poll() is not None, 60)
    if script.poll() == 77:
        pytest.skip(script.stdout.read().strip())
    with contextlib.suppress(ProcessLookupError):  # it may be faster than we are
        if by_group:
            os.killpg(script.pid, signal.SIGKILL)
        else:
            os.kill(script.pid, signal.SIGTERM)
    wanted.kill()
    if script.wait() == 0 and not by_group:
        stop(name, output(script))
    wait_until(place.gone, 60, "nothing left")
