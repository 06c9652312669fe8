# SPDX-License-Identifier: Apache-2.0
"""test_demo - the demo ends by itself, verifies what it did, and leaves nothing behind."""

import json
import os
import pathlib
import re
import shutil
import signal

import pytest

from helpers import BIN, SLOW, read_jsonl, wait_until
from test_cli import on_terminal


@pytest.fixture
def place(outbox):
    """A folder for the demo's own folder, so that its end can be seen."""
    outbox.path("tmp").mkdir()
    outbox.env["TMPDIR"] = str(outbox.path("tmp"))
    return outbox


def left(place):
    return list(place.path("tmp").iterdir())


def test_plain_lines_and_a_verified_end(place):
    r = place.run("demo", "--seconds", "4", timeout=120)
    lines = r.out.splitlines()
    assert "\x1b" not in r.out and "\r" not in r.out
    assert any(re.match(r"t=\S+ orders=\d+ rolled_back=\d+ committed=\d+ published=\d+ in_order=yes", x) for x in lines)
    for step in ("the sink fails", "the sink is back", "the relay is killed", "the relay is started again"):
        assert step in r.out
    assert "verified: nothing lost, nothing uncommitted, every key in order" in lines
    assert left(place) == []


def test_json_and_what_is_kept(place):
    r = place.run("demo", "--seconds", "3", "--json", "--keep", "--seed", "7", timeout=120)
    s = json.loads(r.out)
    assert s["holds"] is True and s["stopped_well"] is True and s["problem"] is None
    assert s["committed"] == s["delivered"] > 100 and s["rolled_back"] > 5 and s["keys"] == 20
    assert s["missing"] == s["uncommitted"] == s["out_of_order"] == s["altered"] == s["damaged"] == s["astray"] == 0
    assert s["max_lag_ms"] >= 400, "the sink was away for 0.6 s"
    folder = pathlib.Path(s["folder"])
    assert left(place) == [folder]
    # Read once more, by nothing of ours.
    lines = [x for p in sorted((folder / "out").iterdir()) for x in read_jsonl(p)]
    assert len(lines) == s["lines"] == s["delivered"] + s["repeats"]
    db = place.sqlite(folder / "shop.db")
    committed = {i: (k, n) for i, k, n in db.execute("select id, key, seq from outbox_event")}
    db.close()
    assert {x["id"] for x in lines} == set(committed)
    seen, last = set(), {}
    for x in lines:
        key, n = committed[x["id"]]
        if x["id"] not in seen:
            assert n > last.get(key, 0)
            seen.add(x["id"])
            last[key] = n
    log = (folder / "relay.log").read_text()
    assert log.count("relay.start") == 2 and log.count("relay.stop") == 1, "killed once, stopped once"
    assert "sink.down" in log, "the outage was real"
    shutil.rmtree(folder)


def test_the_live_view_on_a_terminal(place):
    env = {**place.env, "TERM": "xterm"}
    del env["NO_COLOR"]
    code, shown = on_terminal([BIN, "demo", "--seconds", "3"], place.dir, env, deadline=120)
    assert code == 0, shown[-2000:]
    assert shown.count("\x1b[8A") > 10, "redrawn in place"
    assert "orders written" in shown and "verified" in shown and "\x1b[32m" in shown
    assert left(place) == []


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_cleans_up(place, sig):
    demo = place.start("demo", "--seconds", "60")
    wait_until(lambda: "published=" in demo.out and "t=1." in demo.out, 30, "under way")
    relays = relays_of(demo.pid)
    assert len(relays) == 1
    demo.signal(sig)
    assert demo.wait(30) == 130
    assert left(place) == []
    assert not os.path.exists(f"/proc/{relays[0]}")


def test_killed_it_leaves_no_relay(place):
    demo = place.start("demo", "--seconds", "60")
    wait_until(lambda: "t=1." in demo.out, 30, "under way")
    relays = relays_of(demo.pid)
    assert len(relays) == 1
    demo.kill()
    wait_until(lambda: not os.path.exists(f"/proc/{relays[0]}") or is_zombie(relays[0]), 10, "the relay is gone too")


def test_a_relay_that_ends_by_itself_is_a_failure(place):
    demo = place.start("demo", "--seconds", "60")
    wait_until(lambda: "t=1." in demo.out, 30, "under way")
    os.kill(relays_of(demo.pid)[0], signal.SIGTERM)
    assert demo.wait(60) == 1
    assert "ended by itself" in demo.err
    folder = re.search(r"the files are in (\S+)", demo.err).group(1)
    assert left(place) == [pathlib.Path(folder)], "what failed can be looked at"


def test_tampered_output_fails(place):
    """One digit of a line in the sink's file is changed while the demo runs: its end must not be 'verified'."""
    demo = place.start("demo", "--seconds", str(int(5 * max(1, SLOW / 2))))
    wait_until(lambda: "started again" in demo.out, 60, "the relay works on the file that it will not cut any more")
    out = next(place.path("tmp").glob("*/out/events.jsonl"))
    size = out.stat().st_size
    wait_until(lambda: out.stat().st_size > size, 30, "it has taken the file")
    at = out.read_bytes().index(b'"version":') + len(b'"version":')
    with open(out, "r+b") as f:
        f.seek(at)
        f.write(b"9")
    assert demo.wait(120) == 1
    assert "NOT VERIFIED" in demo.out and "first problem: not what was committed" in demo.out


def relays_of(pid):
    """Children of a process, of all its threads."""
    text = "".join(p.read_text() for p in pathlib.Path(f"/proc/{pid}/task").glob("*/children"))
    return [int(x) for x in text.split()]


def is_zombie(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True
