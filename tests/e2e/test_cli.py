# SPDX-License-Identifier: Apache-2.0
"""test_cli - what every command has in common: help, suggestions, exit codes, texts made of the table."""

import os
import pty
import re
import select
import shlex
import shutil
import subprocess
import time

import pytest

from helpers import BIN, ROOT, SLOW


def text_of(*args):
    return subprocess.run([BIN, *args], capture_output=True, text=True, check=True).stdout


MARKDOWN = text_of("help", "--markdown")
COMMANDS = re.findall(r"^###? outbox (.+)$", MARKDOWN, re.M)
# A command that needs a config, with what it needs besides.
WITH_CONFIG = [
    ["schema", "--apply"],
    ["check"],
    ["run", "--once"],
    ["status"],
    ["emit", "--type", "t"],
    ["tail", "--seconds", "0"],
    ["events"],
    ["dead", "list"],
    ["dead", "show", "x"],
    ["dead", "retry", "--all", "--yes"],
    ["dead", "discard", "--all", "--yes"],
    ["pause"],
    ["resume"],
]
GOOD = "pipelines: {local: {source: {type: sqlite, path: app.db}, sink: {type: file, path: out.jsonl}}}\n"


def on_terminal(argv, cwd, env, answer=None, deadline=20.0):
    """Runs a program on a terminal of its own. (exit code, what it showed)."""
    pid, fd = pty.fork()
    if pid == 0:
        os.chdir(cwd)
        os.execve(argv[0], argv, env)
    shown, asked, end = b"", False, time.monotonic() + deadline * SLOW
    try:
        while time.monotonic() < end:
            if select.select([fd], [], [], 0.1)[0]:
                try:
                    part = os.read(fd, 65536)
                except OSError:  # the other end is gone
                    break
                if not part:
                    break
                shown += part
            if answer and not asked and b"[y/N]" in shown:
                os.write(fd, answer)
                asked = True
        else:
            os.kill(pid, 9)
        _, status = os.waitpid(pid, 0)
    finally:
        os.close(fd)
    return os.waitstatus_to_exitcode(status), shown.decode(errors="replace")


def test_the_page_of_commands_is_fresh():
    assert (ROOT / "docs" / "cli.md").read_text() == MARKDOWN, (
        "docs/cli.md is stale: outbox help --markdown > docs/cli.md"
    )


def test_there_are_the_commands_that_people_are_told_of():
    wanted = "demo init schema check run status emit tail events dead pause resume bench completion man help version"
    assert set(wanted.split()) <= set(COMMANDS)
    assert {"dead list", "dead show", "dead retry", "dead discard"} <= set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_usage_and_an_example(command):
    shown = text_of(*command.split(), "--help")
    assert f"Usage: outbox {command}" in shown
    examples = shown.split("\nExamples\n")[1]
    assert re.search(r"^    .*outbox " + command.split()[0], examples, re.M), examples
    assert text_of("help", *command.split()) == shown
    assert max(map(len, shown.split("\nExamples\n")[0].splitlines()[1:])) <= 80


def examples():
    lines = re.findall(r"```sh\n(.*?)```", MARKDOWN, re.S)
    return [x for block in lines for x in block.splitlines() if not x.startswith("#")]


@pytest.mark.parametrize("line", examples())
def test_every_example_is_a_command_line_that_is_taken(line):
    """--help behind it: the words before it are read, and refused if they are wrong."""
    for part in re.split(r"[|<>()]", line):
        words = shlex.split(part) if "outbox" in part else []
        if words[:1] != ["outbox"]:
            continue
        r = subprocess.run([BIN, *words[1:], "--help"], capture_output=True, text=True, check=False)
        assert r.returncode == 0, r.stderr
        return
    pytest.fail(f"no outbox in {line}")


@pytest.mark.parametrize(
    "args, says",
    [
        (["stauts"], "unknown command 'stauts'; did you mean 'status'?"),
        (["dead", "lst"], "unknown command 'dead lst'; did you mean 'dead list'?"),
        (["xyzzy"], "unknown command 'xyzzy'"),
        (["-c", "x", "status"], "unknown option '-c'"),
        (["status", "--jsn"], "unknown option --jsn; did you mean --json?"),
        (["status", "--every", "0"], "--every: 0 is outside 1 to 3600"),
        (["status", "extra"], "takes no operand"),
        (["events", "--state", "lost"], "is not one of pending|published|parked|dead|discarded"),
        (["events", "--since", "soon"], "is no time"),
        (["tail", "--from"], "--from needs a value"),
        (["dead", "show"], "needs ID"),
        (["dead", "retry"], "which events?"),
        (["dead", "discard", "x", "--all"], "either an ID or a filter"),
        (["completion", "ksh"], "'ksh' is not one of bash|zsh|fish"),
        (["emit"], "--type is needed"),
        (["emit", "--jsonl", "f", "--type", "t"], "--type is too much"),
        (["emit", "--type", "t", "--payload", "1", "--payload-file", "f"], "choose one of"),
        (["schema", "--apply", "--dry-run"], "choose one of"),
        (["schema", "--source", "oracle"], "oracle"),
        (["help", "stats"], "did you mean 'status'?"),
        (["demo", "--seconds", "1"], "outside 3 to 600"),
    ],
)
def test_wrong_command_lines(outbox, args, says):
    r = outbox.run(*args, check=2)
    assert says in r.err and r.out == ""


def test_a_group_alone_shows_its_commands(outbox):
    r = outbox.run("dead", check=2)
    assert "dead retry" in r.out
    assert "dead retry" in outbox.run("dead", "--help").out


def test_no_words_show_all_commands(outbox):
    r = outbox.run()
    assert "Commands" in r.out and "Exit codes" in r.out
    assert outbox.run("--help").out == r.out


def test_version(outbox):
    assert outbox.run("--version").out.startswith("outbox 0.")
    v = outbox.json("version", "--json")[0]
    assert re.fullmatch(r"\d+\.\d+\.\d+", v["version"])
    assert "sqlite" in v["sources"] and "file" in v["sinks"]


@pytest.mark.parametrize("args", WITH_CONFIG, ids=lambda a: a[0] + " " + a[1] if len(a) > 1 else a[0])
class TestBadConfig:
    def test_missing(self, outbox, args):
        r = outbox.run(*args, "-c", "nowhere.yaml", check=78)
        assert "nowhere.yaml" in r.err

    def test_none_found(self, outbox, args):
        r = outbox.run(*args, check=78)
        assert "outbox.yaml" in r.err

    def test_unknown_key(self, outbox, args):
        outbox.write("outbox.yaml", GOOD.replace("sink:", "max_atempts: 3, sink:"))
        r = outbox.run(*args, check=78)
        assert re.search(r"outbox\.yaml:1:\d+: .*max_atempts.*max_attempts", r.err), r.err

    def test_binary(self, outbox, args):
        outbox.write("outbox.yaml", bytes(range(256)) * 40)
        r = outbox.run(*args, check=78)
        assert "outbox.yaml" in r.err
        assert not re.search(r"[\x00-\x09\x0b-\x1f]", r.err), "control bytes reach the terminal"

    def test_unknown_pipeline(self, outbox, args):
        outbox.write("outbox.yaml", GOOD)
        r = outbox.run(*args, "-p", "lokal", check=2)
        assert "local" in r.err


def test_a_config_from_the_environment(outbox):
    outbox.write("other.yaml", GOOD)
    r = outbox.run("schema", "--apply", env={"OUTBOX_CONFIG": "other.yaml"})
    assert "local" in r.out and outbox.path("app.db").exists()


def test_which_pipeline_must_be_said(outbox):
    outbox.write(
        "outbox.yaml",
        """pipelines:
  one: {source: {type: sqlite, path: a.db}, sink: {type: "null"}}
  two: {source: {type: sqlite, path: b.db}, sink: {type: "null"}}
""",
    )
    outbox.run("schema", "--apply")
    r = outbox.run("emit", "--type", "t", check=2)
    assert "one, two" in r.err
    outbox.run("emit", "--type", "t", "-p", "two")
    assert [(s["pipeline"], s["pending"]) for s in outbox.json("status", "--json")] == [("one", 0), ("two", 1)]
    assert [s["pipeline"] for s in outbox.json("status", "-jp", "two")] == ["two"]


def test_a_full_disk_behind_standard_output_is_a_failure():
    with open("/dev/full", "wb") as full:
        r = subprocess.run([BIN, "help"], stdout=full, stderr=subprocess.PIPE, check=False)
    assert r.returncode == 1 and b"standard output" in r.stderr


def test_colours_only_on_a_terminal_and_never_with_no_color(outbox):
    env = {**outbox.env, "TERM": "xterm"}
    del env["NO_COLOR"]
    assert "\x1b[" not in outbox.run("help").out
    code, shown = on_terminal([BIN, "help"], outbox.dir, env)
    assert code == 0 and "\x1b[1m" in shown
    code, shown = on_terminal([BIN, "help"], outbox.dir, {**env, "NO_COLOR": "1"})
    assert code == 0 and "\x1b[" not in shown
    code, shown = on_terminal([BIN, "help"], outbox.dir, {**env, "TERM": "dumb"})
    assert code == 0 and "\x1b[" not in shown


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_man_pages_have_their_parts(command):
    page = text_of("man", *command.split())
    assert page.startswith(".TH OUTBOX")
    for part in ("NAME", "SYNOPSIS", "DESCRIPTION", "EXIT STATUS"):
        assert f"\n.SH {part}\n" in page
    if shutil.which("groff"):
        r = subprocess.run(
            ["groff", "-Kutf8", "-man", "-Tutf8", "-ww", "-z"], input=page, capture_output=True, text=True, check=True
        )
        assert r.stderr == "", r.stderr


@pytest.mark.parametrize(
    "line, wanted",
    [
        ("outbox sta", ["status"]),
        ("outbox dead ", ["list", "show", "retry", "discard", "--help"]),
        ("outbox dead retry --dry", ["--dry-run"]),
        ("outbox events --state p", ["pending", "published", "parked"]),
        ("outbox events -s d", ["dead", "discarded"]),
        ("outbox completion ", ["bash", "zsh", "fish", "--help"]),
        ("outbox status -c out", ["outbox.yaml"]),
    ],
)
def test_bash_completes(outbox, line, wanted):
    outbox.write("outbox.yaml", GOOD)
    words = line.split(" ")
    script = (
        f"source <({BIN} completion bash); COMP_WORDS=({' '.join(w or chr(39) * 2 for w in words)});"
        f" COMP_CWORD={len(words) - 1}; _outbox; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    r = subprocess.run(["bash", "-c", script], cwd=outbox.dir, capture_output=True, text=True, check=True)
    assert r.stdout.split() == wanted, r.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completions_name_every_command(shell):
    script = text_of("completion", shell)
    for command in COMMANDS:
        assert re.search(rf"\b{command.split()[-1]}\b", script), command
    if shutil.which(shell):
        r = subprocess.run([shell, "-n"], input=script, capture_output=True, text=True, check=False)
        assert r.returncode == 0 and r.stderr == "", r.stderr
