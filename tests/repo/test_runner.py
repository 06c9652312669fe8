# SPDX-License-Identifier: Apache-2.0
"""The runner counts what ran, and does not take a crash, a hang or an empty phase for success."""

import json
import subprocess

import pytest


def meson(name, result, stdout, code=0):
    return {"name": name, "result": result, "stdout": stdout, "returncode": code}


TAP = "1..3\nok 1 - a\nok 2 - b # SKIP no sqlite\nok 3 - c\n"
CASES = [
    ("all good", meson("t", "OK", TAP), (2, 0, 1)),
    ("one bad", meson("t", "FAIL", "1..2\nok 1 - a\nnot ok 2 - b\n", 1), (1, 1, 0)),
    ("died after the last line", meson("t", "ERROR", TAP, -11), (2, 1, 1)),
    ("broke off", meson("t", "ERROR", "1..3\nok 1 - a\n", 1), (1, 1, 0)),
    ("hangs", meson("t", "TIMEOUT", ""), (0, 1, 0)),
    ("a program without TAP", meson("t", "OK", "hello\n"), (1, 0, 0)),
    ("a program without TAP fails", meson("t", "FAIL", "hello\n", 1), (0, 1, 0)),
    ("a case that cmocka skipped", meson("t", "FAIL", "1..2\nok 1 - a\nnot ok 2 # SKIP b\n"), (1, 0, 1)),
    ("one that it skipped, and died", meson("t", "FAIL", "1..2\nok 1 - a\nnot ok 2 # SKIP b\n", 1), (1, 1, 1)),
    ("skipped as a whole", meson("t", "SKIP", "no cmocka\n", 77), (0, 0, 1)),
]


@pytest.mark.parametrize("result,want", [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_count_of_a_meson_test(runner, result, want):
    count = runner.Count()
    runner.meson_case(result, count, "")
    assert (count.passed, len(count.failed), len(count.skipped)) == want


def test_reason_of_a_skip_is_kept(runner):
    count = runner.Count()
    runner.meson_case(meson("t", "OK", TAP), count, "")
    assert count.skipped == [("t: b", "no sqlite")]


def test_count_of_pytest(runner, tmp_path):
    (tmp_path / "test_x.py").write_text(
        "import pytest\n"
        "def test_good(): assert 1\n"
        "def test_bad(): assert 0\n"
        "@pytest.mark.skip(reason='not here')\n"
        "def test_skipped(): pass\n"
    )
    count = runner.pytest_part([tmp_path / "test_x.py"], "", None, "")
    assert (count.passed, len(count.failed)) == (1, 1)
    ((name, why),) = count.skipped
    assert name.endswith("test_x::test_skipped") and why == "not here"


def test_a_file_that_cannot_be_imported_fails(runner, tmp_path):
    (tmp_path / "test_x.py").write_text("import no_such_module\n")
    count = runner.pytest_part([tmp_path / "test_x.py"], "", None, "")
    assert len(count.failed) == 1


def test_a_phase_that_ran_nothing_fails(runner, monkeypatch):
    monkeypatch.setattr(runner, "pytests", lambda *a: runner.Count())
    count = runner.run_phase(("e2e", "", "gcc", ("pytest", "e2e", "")), 1, set(), None)
    assert count.failed == [("e2e", "ran no test")]


def test_a_failed_build_fails_its_phases(runner, monkeypatch):
    monkeypatch.setattr(runner, "build", lambda *a: "x.c:1: error")
    broken = set()
    builder = runner.Builder(["asan"], 1)
    count = runner.run_phase(("asan", "", "asan", None), 1, broken, builder)
    assert count.failed == [("build asan", "x.c:1: error")]
    count = runner.run_phase(("build", "", "gcc", None), 1, broken, builder)
    assert count.failed == [("build gcc", "x.c:1: error")]
    count = runner.run_phase(("unit", "", "gcc", ("meson", ["unit"])), 1, broken, builder)
    assert len(count.failed) == 1


def test_last_line(runner):
    count = runner.Count()
    count.passed = 3
    count.failed.append(("a", "b"))
    assert count.line() == "3 passed, 1 failed, 0 skipped"


def test_every_meson_suite_has_its_phase(runner, build):
    tests = json.loads((build / "meson-info" / "intro-tests.json").read_text())
    suites = {s.split(":")[-1] for t in tests for s in t["suite"]}
    run = {s for p in runner.PHASES if p[3] and p[3][0] == "meson" for s in p[3][1]}
    assert suites and suites <= run, f"never run by make test: {suites - run}"


def test_names_of_meson_tests_are_unique(build):
    names = [t["name"] for t in json.loads((build / "meson-info" / "intro-tests.json").read_text())]
    assert len(names) == len(set(names))


def test_the_list_of_phases(root):
    r = subprocess.run(
        [str(root / "tests" / "run.py"), "--list"], capture_output=True, text=True, check=True
    )
    for word in ("unit", "e2e", "sim", "fuzz", "clang", "asan-unit", "tsan-unit"):
        assert word in r.stdout.split()
