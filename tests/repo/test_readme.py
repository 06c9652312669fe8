# SPDX-License-Identifier: Apache-2.0
"""What README.md tells a newcomer to do is done here, word by word."""

import json
import re
import sqlite3
import subprocess

import pytest


@pytest.fixture
def readme(root):
    return (root / "README.md").read_text()


@pytest.fixture
def run(build, tmp_path):
    def call(*args, check=True):
        return subprocess.run(
            [str(build / "outbox"), *args], cwd=tmp_path, capture_output=True, text=True, check=check
        )

    return call


def blocks(text, language):
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```", text, re.M | re.S)
    assert found, f"README has no {language}"
    return [re.sub(rf"^{indent}", "", body, flags=re.M) for indent, body in found]


def test_own_database_in_two_minutes(readme, run, tmp_path):
    (tmp_path / "outbox.yaml").write_text(blocks(readme, "yaml")[0])
    run("schema", "--apply")
    db = sqlite3.connect(tmp_path / "app.db", isolation_level=None)
    db.execute("create table orders (id integer primary key, total integer)")
    db.executescript(blocks(readme, "sql")[0])
    db.close()
    run("run", "--once")
    (line,) = (tmp_path / "events.jsonl").read_text().splitlines()
    assert json.loads(line)["value"] == {"id": 7, "total": 4200}
    assert "shop" in run("status").stdout
    assert run("check").returncode == 0


def test_init_writes_a_config_that_works(run, tmp_path):
    run("init")
    assert (tmp_path / "outbox.yaml").exists()
    run("schema", "--apply")
    run("run", "--once")


def test_every_command_exists(readme, run):
    commands = set(re.findall(r"build/outbox ([a-z]+)", readme))
    commands |= set(re.findall(r"`outbox ([a-z]+)", readme))
    assert len(commands) > 5
    known = set(re.findall(r"^  ([a-z]+) ", run("--help").stdout, re.M))
    assert commands <= known


def test_exit_codes_are_those_of_the_program(readme, run):
    def table(text):
        return re.findall(r"^\| (\d+) \| (.*?) \|$", text, re.M)

    assert table(readme) and table(readme) == table(run("help", "--markdown").stdout)


def test_every_make_target_exists(root, readme):
    makefile = (root / "Makefile").read_text()
    for text in (readme, (root / "CONTRIBUTING.md").read_text()):
        for target in set(re.findall(r"\bmake ([a-z]+)\b(?! (?:up|sure))", text)):
            assert re.search(rf"^{target}:.*##", makefile, re.M), f"no make {target}"
