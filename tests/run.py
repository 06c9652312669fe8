#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""run - builds every variant, runs every test and counts them.

    tests/run.py [--jobs N] [--only PHASE[,PHASE…]] [--list]

A test case is one TAP line of a unit test, one program of another meson suite, or one pytest test.
Up to six end-to-end tests that failed beside others are run once more alone; what passes then is listed as
"unsteady" and is a fault of the test or of the program all the same. A build that fails is a failed
case, and so is a phase that ran no test. The last line is
"N passed, N failed, N skipped"; the exit code is 1 if anything failed.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET

ROOT = pathlib.Path(__file__).resolve().parents[1]
PYTHON = "/usr/bin/python3"
E2E_AT_ONCE = 4  # these tests mostly wait
PARTS = 12  # of the tests of a folder; each is one process
UNSTEADY_MAX = 6
PYTEST_SECONDS = 900  # a file of tests that takes longer hangs

# Build folder, compiler, meson options, how much slower than the plain build, environment.
SAN = ["-Db_lundef=false", "-Dbuildtype=debugoptimized", "-Dtests=enabled"]
VARIANTS = {
    "gcc": ("build", "gcc", ["-Dtests=enabled"], 1, {}),
    "clang": ("build-clang", "clang", ["-Dtests=enabled"], 1, {}),
    "asan": (
        "build-asan",
        "gcc",
        ["-Db_sanitize=address,undefined", *SAN],
        3,
        {
            "ASAN_OPTIONS": "detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1",
            "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
        },
    ),
    "tsan": (
        "build-tsan",
        "gcc",
        ["-Db_sanitize=thread", *SAN],
        5,
        {"TSAN_OPTIONS": f"halt_on_error=1:second_deadlock_stack=1:suppressions={ROOT}/tests/tsan.supp"},
    ),
}


class Count:
    def __init__(self):
        self.passed = 0
        self.failed = []  # (name, why)
        self.skipped = []
        self.unsteady = []  # failed beside others, passed alone; (name, why it failed)
        self.times = []
        self.odd = 0  # programs that meson says failed and that only skipped

    def add(self, other):
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.unsteady += other.unsteady
        self.times += other.times

    @property
    def total(self):
        return self.passed + len(self.failed) + len(self.skipped)

    def line(self):
        return f"{self.passed} passed, {len(self.failed)} failed, {len(self.skipped)} skipped"


def say(text):
    print(text, flush=True)


def build(variant, jobs, nice=0):
    """Compiles everything of a variant, warnings are errors. Returns the text of a failure."""
    folder, cc, options, _, _ = VARIANTS[variant]
    env = dict(os.environ)
    if variant != "gcc":  # the plain folder is that of `make`, with whatever CC it was made
        env["CC"] = cc
    for argv in (
        [str(ROOT / "tools" / "configure"), folder, *options],
        ["nice", "-n", str(nice), "ninja", "-C", str(ROOT / folder), "-j", str(jobs)],
    ):
        r = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
        if r.returncode != 0:
            lines = (r.stdout + r.stderr).splitlines()
            return "\n".join(lines[-60:])
        warnings = [x for x in r.stdout.splitlines() if ": warning: " in x]
        if warnings:
            return "\n".join(warnings)
    return None


class Builder:
    """Builds the later variants one by one beside the tests of the first, which mostly wait; behind
    them in priority, so that it disturbs no clock of theirs."""

    def __init__(self, variants, jobs):
        self.pool = concurrent.futures.ThreadPoolExecutor(1)
        self.results = {v: self.pool.submit(build, v, jobs, 15) for v in variants}

    def wait(self, variant, jobs):
        if variant in self.results:
            return self.results[variant].result()
        return build(variant, jobs)


TAP = re.compile(r"^(not )?ok\b\s*(\d+)?\s*(?:- )?([^#]*?)\s*(?:#\s*(SKIP|TODO)\b\s*(.*))?$", re.I)


def tap_cases(name, text, count):
    """One case per TAP line. Returns how many failed."""
    failed = 0
    notes = []
    for line in text.splitlines():
        m = TAP.match(line)
        if not m:
            notes.append(line)
            continue
        bad, number, title, directive, why = m.groups()
        title = f"{name}: {title or number}"
        if directive and directive.upper() == "SKIP":
            count.skipped.append((title, why or "no reason given"))
        elif bad and not directive:
            count.failed.append((title, "\n".join(notes[-20:])))
            failed += 1
        else:
            count.passed += 1
        notes = []
    return failed


def meson_case(result, count, prefix):
    name = f"{prefix}{result['name']}"
    count.times.append((result.get("duration") or 0.0, name))
    state = result["result"]
    stdout = result.get("stdout", "")
    is_tap = re.search(r"^(not )?ok\b", stdout, re.M) is not None
    tail = "\n".join((stdout + "\n" + result.get("stderr", "")).splitlines()[-40:])
    if is_tap:
        failed = tap_cases(name, stdout, count)
        # cmocka says "not ok … # SKIP" for what it skips, which meson takes for a failure.
        odd = state == "FAIL" and result.get("returncode") == 0 and re.search(r"^not ok\b.*# *SKIP", stdout, re.M | re.I)
        count.odd += bool(odd)
        # A program that died, hung or broke off has a failure that no TAP line tells.
        if state in ("FAIL", "ERROR", "TIMEOUT", "INTERRUPT") and not failed and not odd:
            count.failed.append((name, f"{state}, exit code {result.get('returncode')}\n{tail}"))
    elif state in ("OK", "EXPECTEDFAIL"):
        count.passed += 1
    elif state == "SKIP":
        why = stdout.strip().splitlines()
        count.skipped.append((name, why[-1] if why else "no reason given"))
    else:
        count.failed.append((name, f"{state}, exit code {result.get('returncode')}\n{tail}"))


def meson_tests(variant, suites, jobs):
    """Runs meson test suites of a variant."""
    folder, _, _, slow, extra = VARIANTS[variant]
    count = Count()
    env = {**os.environ, **extra, "OUTBOX_TEST_SLOW": str(slow)}
    argv = ["meson", "test", "-C", str(ROOT / folder), "--no-rebuild", "--num-processes", str(jobs)]
    argv += ["--timeout-multiplier", str(slow), "--quiet"]
    for suite in suites:
        argv += ["--suite", suite]
    log = ROOT / folder / "meson-logs" / "testlog.json"
    log.unlink(missing_ok=True)
    r = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    prefix = "" if variant == "gcc" else f"{variant}: "
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    for line in lines:
        meson_case(json.loads(line), count, prefix)
    if r.returncode != 0 and not count.failed and not count.odd:
        count.failed.append((f"{prefix}meson test {' '.join(suites)}", (r.stdout + r.stderr)[-4000:]))
    return count


def junit_cases(path, count, prefix):
    for case in ET.parse(path).getroot().iter("testcase"):
        name = f"{prefix}{case.get('classname', '')}::{case.get('name', '')}"
        count.times.append((float(case.get("time") or 0), name))
        skipped = case.find("skipped")
        problem = case.find("failure") if case.find("failure") is not None else case.find("error")
        if problem is not None:
            text = f"{problem.get('message', '')}\n{problem.text or ''}"
            count.failed.append((name, "\n".join(text.splitlines()[-25:])))
        elif skipped is not None:
            count.skipped.append((name, skipped.get("message", "no reason given")))
        else:
            count.passed += 1


def pytest_part(tests, marks, env, prefix):
    """One pytest process for some tests (a file, or names of tests), so that parts run at once."""
    count = Count()
    with tempfile.TemporaryDirectory(prefix="outbox-test-") as tmp:
        xml = pathlib.Path(tmp) / "junit.xml"
        argv = [PYTHON, "-m", "pytest", "-q", "--tb=short", f"--junit-xml={xml}"]
        argv += [f"--basetemp={tmp}/t", *map(str, tests)]
        if marks:
            argv += ["-m", marks]
        try:
            r = subprocess.run(
                argv, cwd=ROOT / "tests", env=env, capture_output=True, text=True, check=False,
                timeout=PYTEST_SECONDS,
            )
            code, output = r.returncode, r.stdout + r.stderr
        except subprocess.TimeoutExpired as e:
            code, output = -1, f"hangs: {(e.stdout or b'').decode(errors='replace')}"
        if xml.exists():
            junit_cases(xml, count, prefix)
        if code not in (0, 5) and not count.failed:  # 5: the marks left nothing
            name = ", ".join(str(t) for t in tests)
            count.failed.append((f"{prefix}{name}", f"pytest: {code}\n{output[-4000:]}"))
    return count


def pytest_names(folder, marks, env):
    """The tests of a folder, as pytest names them; or the text of what went wrong."""
    argv = [PYTHON, "-m", "pytest", "-q", "--collect-only", folder]
    if marks:
        argv += ["-m", marks]
    r = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    if r.returncode not in (0, 5):
        return [], (r.stdout + r.stderr)[-4000:]
    return [line for line in r.stdout.splitlines() if "::" in line], None


def pytests(variant, folder, marks):
    bin_folder, _, _, slow, extra = VARIANTS[variant]
    env = {**os.environ, **extra, "OUTBOX_TEST_SLOW": str(slow), "PYTHONDONTWRITEBYTECODE": "1",
           "OUTBOX_TEST_RUN": str(os.getpid())}  # whose processes share the servers that start slowly
    env["OUTBOX_BIN"] = str(ROOT / bin_folder / "outbox")
    env["OUTBOX_BUILD"] = str(ROOT / bin_folder)
    prefix = "" if variant == "gcc" else f"{variant}: "
    count = Count()
    names, problem = pytest_names(f"tests/{folder}", marks, env)
    if problem:
        count.failed.append((f"{prefix}tests/{folder}", problem))
        return count
    if folder == "e2e":  # neighbours go to different parts: long tests stand together
        # but a broker that takes long to start is started once
        shared = [n for n in names if "/test_kafka" in n]
        names_left = [n for n in names if n not in shared]
        parts = [[n for n in shared if n.startswith(f"{f}::")] for f in sorted({n.split("::")[0] for n in shared})]
        parts = [p for p in parts + [names_left[i::PARTS] for i in range(PARTS)] if p]
    else:  # files have something in common that is made once
        parts = [[f] for f in sorted({n.split("::")[0] for n in names})]
    with concurrent.futures.ThreadPoolExecutor(E2E_AT_ONCE) as pool:
        for one in pool.map(lambda part: pytest_part(part, "", env, prefix), parts):
            count.add(one)
    if folder == "e2e":
        alone(count, names, env, prefix)
    if count.total < len(names):
        count.failed.append((f"{prefix}tests/{folder}", f"{len(names)} tests, {count.total} ran"))
    return count


def alone(count, names, env, prefix):
    """End-to-end tests share two cores with each other and with builds. A few that failed are run once more, by themselves;
    what passes then counts as passed and is listed as unsteady. More than a few are no accident."""
    by_title = {}
    for node in names:  # e2e/test_x.py::test_y is e2e.test_x::test_y in a report
        file, test = node.split("::", 1)
        by_title[f"{prefix}{file.removesuffix('.py').replace('/', '.')}::{test}"] = node
    failed, count.failed = count.failed, []
    for title, why in failed:
        node = by_title.get(title)
        one = pytest_part([node], "", env, prefix) if node and len(failed) <= UNSTEADY_MAX else None
        if one and one.passed == 1 and not one.failed:
            count.passed += 1
            count.unsteady.append((title, why))
        else:
            count.failed.append((title, why))


# name, what it says, variant, what it runs: ("meson", suites) or ("pytest", folder, marks).
PHASES = [
    ("build", "build with gcc", "gcc", None),
    ("unit", "unit tests", "gcc", ("meson", ["unit"])),
    ("fuzz", "replay of the fuzz corpora", "gcc", ("meson", ["fuzz"])),
    ("sim", "simulation of the flow", "gcc", ("meson", ["sim"])),
    ("repo", "tools, documentation and installation", "gcc", ("pytest", "repo", "")),
    ("e2e", "end-to-end tests", "gcc", ("pytest", "e2e", "")),
    ("clang", "build with clang", "clang", None),
    ("asan", "build with ASan and UBSan", "asan", None),
    ("asan-unit", "unit tests under ASan and UBSan", "asan", ("meson", ["unit", "fuzz"])),
    ("asan-e2e", "end-to-end tests under ASan and UBSan", "asan", ("pytest", "e2e", "not slow")),
    ("tsan", "build with TSan", "tsan", None),
    ("tsan-unit", "unit tests under TSan", "tsan", ("meson", ["unit"])),
    ("tsan-e2e", "end-to-end tests of what has threads under TSan", "tsan",
     ("pytest", "e2e", "threads")),
]


def run_phase(phase, jobs, broken, builder):
    name, _, variant, what = phase
    count = Count()
    if what is None:
        problem = builder.wait(variant, jobs)
        if problem:
            broken.add(variant)
            count.failed.append((f"build {variant}", problem))
    elif variant in broken:
        count.failed.append((name, f"not run: the {variant} build failed"))
    elif what[0] == "meson":
        count = meson_tests(variant, what[1], jobs)
    else:
        count = pytests(variant, what[1], what[2])
    if what is not None and count.total == 0:
        count.failed.append((name, "ran no test"))
    return count


def report(total, started):
    if total.skipped:
        say("\nskipped:")
        for name, why in total.skipped:
            say(f"  {name}: {why}")
    for title, cases in (("unsteady: failed beside others, passed alone", total.unsteady), ("failed", total.failed)):
        if cases:
            say(f"\n{title}:")
        for name, why in cases:
            say(f"  {name}")
            for line in why.splitlines():
                say(f"    {line}")
    for name, _ in total.failed:  # once more, at the end of what may be a long text
        say(f"failed: {name}")
    say(f"\ntook {time.monotonic() - started:.0f} s")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--only", default="", help="phases, with commas between")
    parser.add_argument("--times", action="store_true", help="show the slowest tests of each phase")
    parser.add_argument("--list", action="store_true", help="list the phases")
    args = parser.parse_args()
    if args.list:
        for name, title, _, _ in PHASES:
            say(f"{name:10} {title}")
        return 0
    wanted = [p for p in args.only.split(",") if p]
    unknown = set(wanted) - {p[0] for p in PHASES}
    if unknown or not shutil.which("meson"):
        parser.error(f"no such phase: {', '.join(sorted(unknown))}" if unknown else "no meson")

    started = time.monotonic()
    total = Count()
    broken = set()
    phases = [p for p in PHASES if not wanted or p[0] in wanted]
    builder = Builder([], args.jobs)
    for number, phase in enumerate(phases, 1):
        say(f"[{number}/{len(phases)}] {phase[1]} …")
        at = time.monotonic()
        count = run_phase(phase, args.jobs, broken, builder)
        total.add(count)
        if phase[0] == "build" and not broken:
            builder = Builder([p[2] for p in phases[number:] if p[3] is None], args.jobs)
        result = "ok" if phase[3] is None and not count.failed else count.line()
        say(f"      {result} ({time.monotonic() - at:.0f} s)")
        for word, cases in (("failed", count.failed), ("unsteady", count.unsteady)):
            for name, _ in cases:
                say(f"      {word}: {name}")
        if args.times:
            for seconds, name in sorted(count.times, reverse=True)[:10]:
                say(f"      {seconds:6.1f} s {name}")
    report(total, started)
    (ROOT / "build").mkdir(exist_ok=True)
    (ROOT / "build" / "test-summary").write_text(total.line() + "\n")
    say(total.line())
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main())
