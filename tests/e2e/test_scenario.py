# SPDX-License-Identifier: Apache-2.0
"""test_scenario - a short run of `make scenario` in each mode, and that its verdict can say no."""

import os
import subprocess
import sys

import pytest

from helpers import BIN, ROOT, SLOW

SCENARIO = ROOT / "tests" / "scenario"
sys.path.insert(0, str(SCENARIO))
import verdict  # noqa: E402
from verdict import Delivery, Fault  # noqa: E402


@pytest.mark.slow
@pytest.mark.parametrize("mode,sink", [("log", "file"), ("wal", "file"), ("rows", "file"), ("mongodb", "file"), ("wal", "nats"), ("log", "nats-chain"), ("log", "rabbitmq"), ("rows", "kafka")])
def test_short_scenario(mode, sink):
    seed = os.environ.get("OUTBOX_SCENARIO_SEED", "4")
    argv = [str(SCENARIO / "scenario.py"), "--mode", mode, "--sink", sink, "--seconds", "15", "--seed", seed, "--settled", "20"]
    r = subprocess.run(
        [sys.executable, *argv],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=300 * SLOW, env={**os.environ, "OUTBOX_BIN": BIN},
    )
    if "skipped: " in r.stdout + r.stderr:
        pytest.skip((r.stdout + r.stderr).strip().splitlines()[-1])
    assert r.returncode == 0, f"{r.stdout[-6000:]}\n{r.stderr[-3000:]}"
    assert "nothing missing, nothing phantom, order kept, every repeat explained" in r.stdout


@pytest.mark.parametrize(
    "args,runs",
    [
        ("", "log file,wal file,rows file,rows kafka,wal nats,log nats-chain,log rabbitmq"),
        ("--mode wal", "wal file"),
        ("--sink nats", "log nats,wal nats,rows nats"),
        ("--mode rows --sink kafka --sink file", "rows kafka,rows file"),
    ],
)
def test_what_runs(args, runs):
    """Every broker has its turn unless something was asked for."""
    r = subprocess.run([sys.executable, str(SCENARIO / "scenario.py"), "--list", *args.split()], capture_output=True, text=True, check=True)
    assert sorted(r.stdout.splitlines()) == sorted(runs.split(","))


KILL = [Fault(at=10, until=10, name="kill", reach=5)]
LEDGER = ["+ a 1 t1", "+ a 2 t2", "+ b 1 u1", "- a 0 gone", "? b 2 u2"]


def delivered(*tags, start=8.0, step=0.1):
    return [Delivery(start + i * step, tag[0].replace("t", "a").replace("u", "b"), tag) for i, tag in enumerate(tags)]


@pytest.mark.parametrize(
    "name,deliveries,word",
    [
        ("all there", delivered("t1", "t2", "u1"), None),
        ("an unknown one that was committed", delivered("t1", "t2", "u1", "u2"), None),
        ("other keys in between", delivered("u1", "t1", "t2"), None),
        ("repeated over a kill", delivered("t1", "t2", "u1") + [Delivery(12, "a", "t2")], None),
        ("missing", delivered("t1", "u1"), "missing"),
        ("a phantom that was rolled back", delivered("t1", "t2", "u1", "gone"), "rolled back"),
        ("a phantom of nobody", delivered("t1", "t2", "u1", "x9"), "phantom"),
        ("out of order", delivered("t2", "t1", "u1"), "out of order"),
        ("repeated with no reason", delivered("t1", "t2", "u1", "t2"), "nothing in between explains it"),
        ("repeated after a kill that was over", delivered("t1", "t2", "u1", start=11.5) + [Delivery(12, "a", "t2")], "explains it"),
        ("repeated long after it must have been settled", delivered("t1", "t2", "u1", start=1) + [Delivery(12, "a", "t2")], "explains it"),
    ],
)
def test_the_verdict(tmp_path, name, deliveries, word):
    path = tmp_path / "ledger"
    path.write_text("\n".join(LEDGER) + "\n")
    problems, _ = verdict.judge(verdict.Ledger([path]), deliveries, KILL)
    assert (not problems) if word is None else any(word in p for p in problems), f"{name}: {problems}"


def test_a_commit_without_an_answer_leaves_a_gap_when_it_is_lost(tmp_path):
    """The next writer of that key has seen its number: it was committed, and must be there."""
    path = tmp_path / "ledger"
    path.write_text("+ b 1 u1\n? b 2 u2\n+ b 3 u3\n")
    problems, _ = verdict.judge(verdict.Ledger([path]), delivered("u1", "u3"), [])
    assert any("never delivered" in p for p in problems), problems


def test_two_commits_of_one_number_are_a_phantom(tmp_path):
    path = tmp_path / "ledger"
    path.write_text("+ b 1 u1\n? b 2 u2\n+ b 2 u9\n")
    problems, _ = verdict.judge(verdict.Ledger([path]), delivered("u1", "u2", "u9"), [])
    assert any("phantom" in p for p in problems), problems
