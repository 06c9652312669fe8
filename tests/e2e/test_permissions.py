# SPDX-License-Identifier: Apache-2.0
"""test_permissions - what other users of the machine can reach: lock files, the memory of the relay, secrets in files."""

import fcntl
import os
import pathlib
import stat
import subprocess
import tempfile

import pytest

from helpers import BIN, SLOW, wait_until

NOBODY = 65534
ONE = """
pipelines:
  p:
    source: {type: sqlite, path: app.db}
    sink: {type: "null"}
"""


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


@pytest.mark.parametrize("db,lock", [(0o600, 0o600), (0o644, 0o600), (0o664, 0o660), (0o666, 0o666)])
def test_a_lock_file_can_be_locked_by_who_can_write_the_database(outbox, db, lock):
    """A lock needs no more than an open file: one that every user can read is one that every user can hold."""
    outbox.write("outbox.yaml", ONE)
    outbox.run("schema", "--apply")
    os.chmod(outbox.path("app.db"), db)
    file = outbox.path("app.db-outbox-p-0.lock")
    file.touch()
    os.chmod(file, 0o644)  # of an older version
    outbox.run("run", "--once")
    assert mode(file) == lock
    file.unlink()
    outbox.run("run", "--once")
    assert mode(file) == lock


@pytest.mark.skipif(os.geteuid() != 0, reason="skipped: only root can give files to other users")
def test_a_lock_file_of_another_user_is_refused(outbox):
    outbox.write("outbox.yaml", ONE)
    outbox.run("schema", "--apply")
    file = outbox.path("app.db-outbox-p-0.lock")
    file.touch()
    os.chown(file, NOBODY, NOBODY)
    with open(file) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        r = outbox.run("run", "--once", check=1)
    assert "app.db-outbox-p-0.lock belongs to user 65534" in r.err and "remove it" in r.err
    file.unlink()
    outbox.run("run", "--once")


def test_a_lock_file_that_is_another_file_is_refused(outbox):
    """A user who can write the folder must not have the relay open a file of its own for everyone."""
    outbox.write("outbox.yaml", ONE)
    outbox.run("schema", "--apply")
    os.chmod(outbox.path("app.db"), 0o666)
    other, file = outbox.path("secret"), outbox.path("app.db-outbox-p-0.lock")
    other.write_text("secret")
    os.chmod(other, 0o600)
    for link in (os.link, os.symlink):
        link(other, file)
        r = outbox.run("run", "--once", check=None)
        assert r.returncode != 0 and "app.db-outbox-p-0.lock" in r.err and mode(other) == 0o600, r.err
        file.unlink()
    outbox.run("run", "--once")


@pytest.mark.skipif(SLOW > 1, reason="skipped: a sanitizer attaches to its own process")
@pytest.mark.skipif(os.geteuid() != 0, reason="skipped: only root can start a program as another user")
@pytest.mark.parametrize("allowed", [False, True])
def test_no_core_dump(allowed):
    """Not dumpable: the kernel writes no core, and /proc/PID belongs to root instead of the relay's own user."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        os.chown(folder, NOBODY, NOBODY)
        (folder / "outbox.yaml").write_text(ONE)
        program = folder / "outbox"
        program.write_bytes(pathlib.Path(BIN).read_bytes())
        program.chmod(0o755)
        user = {"user": NOBODY, "group": NOBODY, "cwd": folder}
        env = {"OUTBOX_CORE": "1" if allowed else "", "PATH": "/usr/bin:/bin"}
        limit = ["/bin/sh", "-c", 'ulimit -c unlimited; exec "$@"', "sh"]
        subprocess.run([program, "schema", "--apply"], check=True, capture_output=True, env=env, **user)
        p = subprocess.Popen([*limit, program, "run"], stderr=subprocess.PIPE, env=env, **user)
        try:
            lines = iter(p.stderr.readline, b"")  # ends when the program does
            assert any(b"relay.start" in line for line in lines), "the program ended before the relay started"
            limits = pathlib.Path(f"/proc/{p.pid}/limits").read_text()
            core = next(line for line in limits.splitlines() if line.startswith("Max core file size")).split()[4]
            assert (core, os.stat(f"/proc/{p.pid}/stat").st_uid) == (("unlimited", NOBODY) if allowed else ("0", 0))
        finally:
            p.terminate()
            p.wait(20)
            p.stderr.close()


SECRETS = {  # source, sink, and the option that is named; None: nothing is a secret in plain text
    "password in the url": ("{type: sqlite, path: app.db}", '{type: rabbitmq, url: "amqp://u:pw@127.0.0.1:1/"}', "sink.url"),
    "password of its own": ("{type: sqlite, path: app.db}", '{type: kafka, brokers: "127.0.0.1:1", password: pw}', "sink.password"),
    "password in a dsn": ('{type: postgres, dsn: "host=127.0.0.1 port=1 password=pw"}', '{type: "null"}', "source.dsn"),
    "a file that all can read": ('{type: postgres, dsn_file: dsn.txt}', '{type: "null"}', "source.dsn"),
    "from the environment": ('{type: postgres, dsn: "host=127.0.0.1 port=1 password=${PW}"}', '{type: "null"}', None),
    "no password": ('{type: postgres, dsn: "host=127.0.0.1 port=1"}', '{type: rabbitmq, url: "amqp://127.0.0.1:1/"}', None),
}


@pytest.mark.parametrize("case", SECRETS)
def test_a_secret_that_every_user_can_read_is_a_warning(outbox, case):
    source, sink, option = SECRETS[case]
    outbox.write("outbox.yaml", f"pipelines:\n  p:\n    source: {source}\n    sink: {sink}\n")
    config = outbox.path("outbox.yaml")
    secret = outbox.path("dsn.txt") if "dsn_file" in source else config
    outbox.write("dsn.txt", "host=127.0.0.1 port=1 password=pw\n")
    for readable in (True, False):
        os.chmod(config, 0o644 if readable and secret == config else 0o600)
        os.chmod(secret, 0o644 if readable else 0o600)
        r = outbox.run("check", check=None, env={"PW": "pw"})
        warned = f"every user of this machine can read {secret.name}, which holds pipelines.p.{option}"
        assert (warned in r.err) == (readable and option is not None), r.err
        assert "pw" not in r.out.replace("127.0.0.1", "") + r.err
        p = outbox.start("run", env={"PW": "pw"})
        wait_until(lambda: "\n" in p.err, 20, "the relay has started")
        assert ("config.exposed" in p.err.splitlines()[0]) == (readable and option is not None), p.err
        p.kill()
