# SPDX-License-Identifier: Apache-2.0
"""test_nats_streams - declared streams beside those that the server has: what `check` says, what the relay says, and what it changes."""

import json
import time

import pytest

from helpers import SLOW, wait_until
from proxies import Swallow
from test_nats import insert, numbers, prepare

# One stream each that is not as declared: how it was made, how it is declared, and what is said of it.
DIFFERS = {
    "subjects": ({}, {"subjects": ["{}.>", "{}Other.x"]}, "stream {} does not take subject {}Other.x"),
    "replicas": ({}, {"replicas": 3}, "stream {} has 1 replica, 3 are declared"),
    "window": ({"duplicate_window": 90 * 10**9}, {"duplicate_window": "5m"}, "stream {} forgets message ids after 90 s, 300 s are declared"),
    "storage": ({"storage": "memory"}, {"storage": "file"}, "stream {} is stored in memory, file is declared"),
    "all": (
        {"storage": "file", "duplicate_window": 90 * 10**9},
        {"storage": "memory", "replicas": 2, "duplicate_window": "5m"},
        "stream {} is stored in files, memory is declared|stream {} has 1 replica, 2 are declared|stream {} forgets message ids after 90 s",
    ),
}


class Declared:
    """A stream that is missing, then one that is right, then all of the table; in this order in the config."""

    def __init__(self, nats):
        self.nats = nats
        self.missing, self.right = f"{nats.stream()}Missing", nats.stream()
        self.declared = [{"name": self.missing, "subjects": [f"{self.missing}.x"]}, {"name": self.right, "subjects": [f"{self.right}.>"]}]
        self.says = []
        for made, declared, says in DIFFERS.values():
            name = nats.stream(None, **made)
            fields = {"name": name, "subjects": ["{}.>"], **declared}
            fields["subjects"] = [s.replace("{}", name) for s in fields["subjects"]]
            self.declared.append(fields)
            self.says += says.replace("{}", name).split("|")

    def sink(self, declare, more=""):
        return f"outage: 0s, declare: {declare}, streams: {json.dumps(self.declared)}{more}"

    def configs(self):
        with self.nats.client() as c:
            return {d["name"]: c.stream_info(d["name"], check=False).get("config") for d in self.declared}


@pytest.fixture
def declared(nats):
    return Declared(nats)


@pytest.mark.parametrize("declare", ["off", "check", "create"])
def test_check_says_all_that_is_not_as_declared(outbox, nats, declared, declare):
    prepare(outbox, nats.url, f"{declared.right}.x", sink=declared.sink(declare))
    before = declared.configs()
    r = outbox.run("check", check=1)
    assert declared.configs() == before and before[declared.missing] is None
    assert ("stream %s: there is none; it will be made" % declared.missing in r.out) == (declare == "create")
    assert f"stream {declared.missing}: there is none" in r.out
    for says in declared.says:
        assert (says in r.out) == (declare != "off"), says
    problems = len(declared.says) * (declare != "off") + (declare != "create")
    assert f"{problems} problem" in r.out, r.out


@pytest.mark.parametrize("declare", ["off", "check", "create"])
def test_the_relay_warns_once_and_changes_nothing(outbox, nats, declared, declare):
    db = prepare(outbox, nats.url, f"{declared.right}.x", sink=declared.sink(declare))
    before = declared.configs()
    insert(db, "a", 1)
    r = outbox.run("run", "--once")
    assert numbers(nats.read(declared.right)) == [1]
    warned = [line for line in r.err.splitlines() if "sink.nats.stream" in line and "level=warn" in line]
    for says in declared.says:
        assert sum(says in line for line in warned) == (declare != "off"), says
    assert any(f"stream {declared.missing}: there is none" in line for line in warned) == (declare == "check")
    assert len(warned) == len(declared.says) * (declare != "off") + (declare == "check")
    after = declared.configs()
    assert (after.pop(declared.missing) is not None) == (declare == "create") and before.pop(declared.missing) is None
    assert after == before


def test_a_stream_that_nobody_will_make_is_a_problem(outbox, nats, declared):
    """`declare: create` makes what is declared, not what a prefix names."""
    only = f"{declared.missing}Prefix"
    declared.declared = declared.declared[:2]
    prepare(outbox, nats.url, f"{declared.right}.x", sink=declared.sink("create", f", stream_prefixes: {{q: {only}}}"))
    r = outbox.run("check", check=1)
    assert f"stream {only}: there is none" in r.out and f"stream {only}: there is none; it will be made" not in r.out
    assert f"stream {declared.missing}: there is none; it will be made" in r.out and "1 problem" in r.out


def with_silent(nats, n, *more):
    """A proxy behind which nobody answers for n streams, and a list that declares these first."""
    right = nats.stream()
    silent = [f"{right}Silent{i}" for i in range(n)]
    proxy = Swallow(nats.ports[0], lambda subject: subject.startswith("$JS.API.STREAM.INFO.") and subject.split(".")[-1] in silent)
    declared = [{"name": s, "subjects": [f"{s}.x"]} for s in (*silent, *(f"{right}{m}" for m in more), right)]
    declared[-1]["subjects"] = [f"{right}.>"]
    return right, proxy, json.dumps(declared)


def test_streams_that_do_not_answer_have_a_short_time_together(outbox, nats):
    """While streams are asked nothing is sent: five that are silent (their servers are down) hold up the others for two seconds, not for five each."""
    right, proxy, declared = with_silent(nats, 5)
    db = prepare(outbox, f"nats://127.0.0.1:{proxy.address}", f"{right}.x", sink=f"declare: check, streams: {declared}")
    insert(db, "a", 1)
    since = time.monotonic()
    outbox.start("run")
    wait_until(lambda: numbers(nats.read(right)) == [1], 40, "it arrives", every=0.1)
    assert time.monotonic() - since < 8 * SLOW
    proxy.close()


def test_a_silent_stream_keeps_no_other_from_being_made(outbox, nats):
    """And what can be sent is sent between the times at which streams are asked."""
    right, proxy, declared = with_silent(nats, 1, "Missing")
    routes = f'match: {{type: fine}}}}, {{topic: "{right}Missing.x"'
    db = prepare(outbox, f"nats://127.0.0.1:{proxy.address}", f"{right}.x", sink=f"declare: create, streams: {declared}", route=routes)
    insert(db, "a", 0, type="lost")
    relay = outbox.start("run")
    n = 0

    def made():
        nonlocal n
        n += 1
        insert(db, f"k{n}", n, type="fine")
        wait_until(lambda: len(nats.read(right)) == n, 6, "one that can be sent")
        with nats.client() as c:
            return c.stream_info(f"{right}Missing", check=False).get("config")

    wait_until(made, 40, "the one behind it is made", every=0.2)
    wait_until(lambda: numbers(nats.read(f"{right}Missing")) == [0], 60, "and has its event", every=0.2)
    assert relay.stop() == 0 and outbox.json("status", "--json")[0]["failed"] == 0
    proxy.close()
