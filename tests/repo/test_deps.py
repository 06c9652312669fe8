# SPDX-License-Identifier: Apache-2.0
"""tools/deps: silent when all is there, prints only with OUTBOX_NO_INSTALL, installs what is named.

A folder with a few commands is the whole PATH, so that nothing of the machine is seen or changed.
"""

import os
import pathlib
import shutil
import stat
import subprocess

import pytest

NEEDED = ["sh", "sed", "id", "mktemp", "rm", "cat", "env", "printf"]


class Machine:
    def __init__(self, root, folder):
        self.root = root
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.log = folder / "log"
        for name in NEEDED:
            path = shutil.which(name, path="/usr/bin:/bin")
            if path:
                (self.bin / name).symlink_to(path)

    def command(self, name, text="exit 0"):
        p = self.bin / name
        p.write_text(f"#!/bin/sh\necho {name} \"$@\" >>'{self.log}'\n{text}\n")
        p.chmod(p.stat().st_mode | stat.S_IXUSR)

    def deps(self, *args, **env):
        return subprocess.run(
            [str(self.root / "tools" / "deps"), *args],
            env={"PATH": str(self.bin), "TMPDIR": os.environ.get("TMPDIR", "/tmp"), **env},
            capture_output=True, text=True, check=False,
        )

    def calls(self, word):
        text = self.log.read_text() if self.log.exists() else ""
        return [line for line in text.splitlines() if line.startswith(word)]

    def as_root(self):
        (self.bin / "id").unlink()
        self.command("id", "echo 0")

    def as_user(self):
        (self.bin / "id").unlink()
        self.command("id", "echo 1000")


@pytest.fixture
def machine(root, tmp_path):
    return Machine(root, tmp_path)


def test_silent_when_all_is_there(machine):
    for name in ("clang", "clang-format", "clang-tidy", "cppcheck", "shellcheck", "apt-get"):
        machine.command(name)
    r = machine.deps("lint")
    assert (r.returncode, r.stdout, r.stderr) == (0, "", "")
    assert machine.calls("apt-get") == []


def test_no_install_prints_and_fails(machine):
    machine.command("apt-get")
    machine.command("clang")
    r = machine.deps("lint", OUTBOX_NO_INSTALL="1")
    assert r.returncode == 1
    assert "cppcheck: static analysis" in r.stdout
    assert "clang:" not in r.stdout
    assert machine.calls("apt-get") == []


def test_installs_what_is_missing_and_says_why(machine):
    machine.as_root()
    for name in ("clang", "clang-format", "clang-tidy", "shellcheck", "apt-get"):
        machine.command(name)
    r = machine.deps("lint")
    assert r.returncode == 0, r.stderr
    assert "cppcheck: static analysis" in r.stdout
    (call,) = machine.calls("apt-get")
    assert "install -y" in call and call.endswith(" cppcheck")


def test_updates_the_lists_only_when_the_first_try_fails(machine):
    machine.as_root()
    marker = machine.bin.parent / "updated"
    machine.command(
        "apt-get",
        f"case \" $* \" in *' update '*) echo >'{marker}';; *) [ -e '{marker}' ] || exit 100;; esac",
    )
    (machine.bin / "test").symlink_to("/usr/bin/test")
    r = machine.deps("lint")
    assert r.returncode == 0, r.stderr
    kinds = ["update" if " update" in c else "install" for c in machine.calls("apt-get")]
    assert kinds == ["install", "update", "install"]


def test_a_failed_installation_is_a_failure(machine):
    machine.as_root()
    machine.command("apt-get", "echo no such package; exit 100")
    r = machine.deps("lint")
    assert r.returncode != 0
    assert "no such package" in r.stderr


def test_uses_sudo_when_not_root(machine):
    machine.as_user()
    machine.command("apt-get")
    machine.command("sudo", '"$@"')
    r = machine.deps("lint")
    assert r.returncode == 0, r.stderr
    assert machine.calls("sudo") and machine.calls("apt-get")


def test_without_sudo_says_what_root_must_do(machine):
    machine.as_user()
    machine.command("apt-get")
    r = machine.deps("lint")
    assert r.returncode == 1
    assert "run as root: apt-get install" in r.stderr
    assert machine.calls("apt-get") == []


def test_the_demo_needs_no_test_package(root):
    build = subprocess.run(
        [str(root / "tools" / "deps"), "--list", "build"], capture_output=True, text=True, check=True
    ).stdout
    assert "libsqlite3-dev" in build
    for name in ("cmocka", "clang", "pytest", "cppcheck"):
        assert name not in build


def test_an_unknown_set_is_refused(machine):
    assert machine.deps("nonsense").returncode == 64
    assert machine.deps().returncode == 64


def test_scripts_are_executable(root):
    for name in ("tools/deps", "tools/configure", ".ci/run", "tests/run.py"):
        assert os.access(root / name, os.X_OK), name
    assert pathlib.Path(root / ".ci" / "run").read_text().startswith("#!/bin/bash")
