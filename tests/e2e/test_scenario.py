# SPDX-License-Identifier: Apache-2.0
"""test_scenario - a short run of `make scenario` in each mode and to each broker, with faults and operator actions, and that its verdict can fail."""

import os
import subprocess
import sys

import pytest

from helpers import BIN, ROOT, SLOW

SCENARIO = ROOT / "tests" / "scenario"
sys.path.insert(0, str(SCENARIO))
import verdict  # noqa: E402
from verdict import Delivery, Fault  # noqa: E402


def scenario(*args, timeout=300):
    return subprocess.run(
        [sys.executable, str(SCENARIO / "scenario.py"), *map(str, args)],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=timeout * SLOW, env={**os.environ, "OUTBOX_BIN": BIN},
    )


SHORT = [
    *((mode, "file") for mode in ("log", "wal", "rows", "wal-rows", "wal-debezium", "wal-message", "mongodb", "mongodb-native", "sqlite")),
    ("wal", "nats"), ("log", "nats-chain"), ("log", "rabbitmq"), ("rows", "kafka"),
]


@pytest.mark.slow
@pytest.mark.parametrize("mode,sink", SHORT)
def test_short_scenario(mode, sink):
    seed = os.environ.get("OUTBOX_SCENARIO_SEED", "4")
    r = scenario("--mode", mode, "--sink", sink, "--seconds", 8, "--seed", seed, "--settled", 20, "--actions", "all,-once")
    if "skipped: " in r.stdout + r.stderr:
        pytest.skip((r.stdout + r.stderr).strip().splitlines()[-1])
    assert r.returncode == 0, f"{r.stdout[-8000:]}\n{r.stderr[-3000:]}"
    assert "nothing missing, nothing phantom, order kept, every repeat explained" in r.stdout


@pytest.mark.slow
@pytest.mark.parametrize("mode,sink", [("log", "file"), ("rows", "file"), ("sqlite", "file"), ("log", "nats")])
def test_clean_actions_repeat_nothing(mode, sink):
    """What is settled ahead of the cursor is stored with it: stops, reloads, hand-overs and changes of shards deliver nothing twice."""
    r = scenario("--mode", mode, "--sink", sink, "--seconds", 6, "--seed", 7, "--faults", "none", "--strict",
                 "--actions", "reload,broken,stop,term,handover,pause,rename,shards")
    if "skipped: " in r.stdout + r.stderr:
        pytest.skip((r.stdout + r.stderr).strip().splitlines()[-1])
    assert r.returncode == 0, f"{r.stdout[-8000:]}\n{r.stderr[-3000:]}"


@pytest.mark.parametrize(
    "args,runs",
    [
        ("", "log file,wal file,rows file,wal-rows file,wal-debezium file,wal-message file,mongodb file,mongodb-native file,sqlite file,"
             "rows kafka,wal nats,log nats-chain,log rabbitmq"),
        ("--mode wal", "wal file"),
        ("--sink nats --mode log --mode wal", "log nats,wal nats"),
        ("--mode rows --sink kafka --sink file", "rows kafka,rows file"),
    ],
)
def test_what_runs(args, runs):
    """Every mode and every broker is included unless the command line names some."""
    r = scenario("--list", *args.split())
    assert sorted(r.stdout.splitlines()) == sorted(runs.split(","))


@pytest.mark.parametrize("args,word", [("--actions relod", "unknown: relod"), ("--faults kill,-freze", "unknown: -freze")])
def test_an_unknown_name_is_refused(args, word):
    r = scenario("--list", *args.split())
    assert r.returncode == 2 and word in r.stderr


def test_actions_can_be_left_out():
    import scenario as program

    assert program.named("all,-b", ("a", "b", "c")) == ["a", "c"]
    assert program.named("c,a", ("a", "b", "c")) == ["a", "c"]
    assert program.named("none", ("a", "b", "c")) == []


def test_a_seed_chooses_the_same_steps_again():
    import scenario as program

    def steps(seed):
        taken = []
        kinds = {name: (lambda rng, name=name: taken.append((name, rng.random())), weight) for name, weight in (("a", 1), ("b", 3), ("c", 2))}
        plan = program.Plan(seed, kinds, (0, 1))
        for _ in range(20):
            plan.step()
        return taken

    assert steps("7-actions") == steps("7-actions") != steps("8-actions")
    assert {name for name, _ in steps("7-actions")[:3]} == {"a", "b", "c"}


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


CLEAN = [Fault(at=10, until=10, name="stop", reach=5, clean=True)]


def judge(tmp_path, lines, deliveries, faults=(), **kw):
    path = tmp_path / "ledger"
    path.write_text("".join(f"{line}\n" for line in lines))
    return verdict.judge(verdict.Ledger([path]), deliveries, list(faults), **kw)


def test_a_repeat_after_a_clean_action_is_counted_or_fails(tmp_path):
    twice = delivered("t1", "t2", "u1") + [Delivery(12, "a", "t2")]
    problems, counted = judge(tmp_path, LEDGER, twice, CLEAN)
    assert not problems and counted["clean"] == {"stop": 1}
    problems, _ = judge(tmp_path, LEDGER, twice, CLEAN, strict=True)
    assert any("only a clean action explains" in p for p in problems), problems
    problems, counted = judge(tmp_path, LEDGER, twice, KILL + CLEAN, strict=True)
    assert not problems and counted["repeats_by"] == {"kill": 1} and not counted["clean"]


@pytest.mark.parametrize(
    "name,operator,deliveries,word",
    [
        ("discarded by a command", verdict.Operator({"t2": "discarded"}, [(9, lambda tag, _: tag == "t2")], 1), delivered("t1", "u1"), None),
        ("discarded, but by no command", verdict.Operator({"t2": "discarded"}, [(9, lambda tag, _: tag == "t9")], 1), delivered("t1", "u1"), "1 missing"),
        ("more discarded than reported", verdict.Operator({"t2": "discarded"}, [(9, lambda *_: True)], 0), delivered("t1", "u1"), "reported 0"),
        ("discarded, then delivered", verdict.Operator({"t2": "discarded"}, [(5, lambda *_: True)], 1), delivered("t1", "u1", "t2"), "after they were discarded"),
        ("delivered, then dead and discarded", verdict.Operator({"t2": "discarded"}, [(9, lambda *_: True)], 1), delivered("t1", "u1", "t2"), None),
        ("still dead", verdict.Operator({"t2": "dead"}), delivered("t1", "u1"), "are dead at the end"),
        ("retried behind its key", verdict.Operator({"t1": "retried"}), delivered("t2", "u1", "t1"), None),
        ("retried behind a key that was to wait", verdict.Operator({"t1": "retried"}, parks=True), delivered("t2", "u1", "t1"), "out of order"),
        ("another key expression", verdict.Operator(key_changes=[(7, 9)]), delivered("t2", "t1", "u1"), None),
        ("another key expression, much later", verdict.Operator(key_changes=[(20, 21)]), delivered("t2", "t1", "u1"), "out of order"),
    ],
)
def test_the_verdict_on_what_an_operator_did(tmp_path, name, operator, deliveries, word):
    problems, _ = judge(tmp_path, [f"{line} 7.5" for line in LEDGER], deliveries, KILL, operator=operator)
    assert (not problems) if word is None else any(word in p for p in problems), f"{name}: {problems}"


@pytest.mark.parametrize("later,wrong", [(8.5, True), (8.05, False)])
def test_order_across_topics_goes_by_time(tmp_path, later, wrong):
    """A key that goes to two topics, or to a topic that was renamed, has two lanes, whose clocks may differ by the slack."""
    deliveries = [Delivery(8.0, "a", "t2", "new", "new"), Delivery(later, "a", "t1", "old", "old"), Delivery(9, "b", "u1", "old", "old")]
    problems, _ = judge(tmp_path, LEDGER, deliveries, slack=0.1)
    assert any("out of order" in p for p in problems) == wrong, problems


def test_order_within_a_topic_goes_by_place(tmp_path):
    deliveries = [Delivery(8.0, "a", "t2", "new", "new"), Delivery(8.0, "a", "t1", "new", "new"), Delivery(9, "b", "u1", "old", "old")]
    problems, _ = judge(tmp_path, LEDGER, deliveries, slack=5)
    assert any("t2 (new) before t1 (new)" in p for p in problems), problems
