# SPDX-License-Identifier: Apache-2.0
"""test_cli_run - `outbox run` as a service: signals, what systemd is told, exit codes, pause."""

import os
import re
import signal
import socket

import pytest

from helpers import BIN, SLOW, read_jsonl, wait_until
from test_cli import on_terminal

CONFIG = """pipelines:
  local:
    source: {type: sqlite, path: app.db}
    sink: {type: file, path: out/events.jsonl}
    envelope: none
"""


@pytest.fixture
def shop(outbox):
    outbox.path("out").mkdir()
    outbox.write("outbox.yaml", CONFIG)
    outbox.run("schema", "--apply")
    return outbox


class Systemd:
    """The socket that a service manager listens on."""

    def __init__(self, name):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(name)
        self.socket.settimeout(20 * SLOW)

    def next(self, but=()):
        while True:
            text = self.socket.recv(4096).decode()
            if text not in but:
                return text


@pytest.mark.parametrize("abstract", [False, True])
@pytest.mark.threads
def test_systemd_is_told(shop, abstract):
    name = f"\0outbox-test-{os.getpid()}" if abstract else str(shop.path("notify"))
    systemd = Systemd(name)
    env = {"NOTIFY_SOCKET": name.replace("\0", "@"), "WATCHDOG_USEC": "200000"}
    relay = shop.start("run", env=env)
    assert systemd.next() == "READY=1"
    assert systemd.next() == "WATCHDOG=1"
    assert systemd.next() == "WATCHDOG=1"
    relay.signal(signal.SIGHUP)
    assert re.fullmatch(r"RELOADING=1\nMONOTONIC_USEC=\d+", systemd.next(but=["WATCHDOG=1"]))
    assert systemd.next(but=["WATCHDOG=1"]) == "READY=1"
    relay.signal(signal.SIGTERM)
    assert systemd.next(but=["WATCHDOG=1"]) == "STOPPING=1"
    assert relay.wait() == 0


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.threads
def test_a_signal_settles_and_ends(shop, sig):
    relay = shop.start("run")
    shop.run("emit", "--type", "t", "--payload", "1")
    wait_until(lambda: len(read_jsonl(shop.path("out/events.jsonl"))) == 1, 10, "delivered")
    relay.signal(sig)
    assert relay.wait() == 0
    assert shop.json("status", "--json")[0]["pending"] == 0


def test_the_second_signal_ends_at_once(shop):
    shop.write("outbox.yaml", CONFIG + "    grace: 1h\n")
    shop.path("out").rmdir()
    shop.run("emit", "--type", "t", "--payload", "1")
    relay = shop.start("run")
    wait_until(lambda: "sink.down" in relay.err, 10, "the sink is down")
    relay.signal(signal.SIGTERM)
    wait_until(lambda: "relay.signal" in relay.err, 10, "the first is seen")
    relay.signal(signal.SIGTERM)
    relay.wait(10)
    shop.path("out").mkdir()
    shop.run("run", "--once")
    assert len(read_jsonl(shop.path("out/events.jsonl"))) == 1


@pytest.mark.threads
def test_many_reloads_leave_a_working_relay(shop):
    relay = shop.start("run")
    wait_until(lambda: "relay.start" in relay.err, 10, "started")
    for n in range(5):
        relay.signal(signal.SIGHUP)
        wait_until(lambda n=n: relay.err.count("config.reloaded") >= n + 1, 10, "reloaded")
    shop.write("outbox.yaml", "pipelines: [")
    relay.signal(signal.SIGHUP)
    wait_until(lambda: re.search(r"config.reload_failed.*outbox\.yaml:\d+:\d+: ", relay.err), 10, "told with its place")
    shop.run("emit", "--type", "t", "--payload", "1", "-c", shop.write("good.yaml", CONFIG))
    wait_until(lambda: len(read_jsonl(shop.path("out/events.jsonl"))) == 1, 10, "goes on")
    assert relay.stop() == 0


def test_once_of_one_pipeline(shop):
    shop.write(
        "outbox.yaml", CONFIG + CONFIG.split("\n", 1)[1].replace("local:", "other:").replace("events.jsonl", "other.jsonl")
    )
    shop.run("emit", "--type", "t", "--payload", "1", "-p", "local")
    shop.run("run", "--once", "-p", "other")
    assert read_jsonl(shop.path("out/events.jsonl")) == []
    assert len(read_jsonl(shop.path("out/other.jsonl"))) == 1


def test_once_says_when_it_could_not(outbox):
    outbox.write("outbox.yaml", CONFIG + "    grace: 500ms\n")
    r = outbox.run("run", "--once", check=None)
    assert r.returncode in (1, 75) and "app.db" in r.err
    assert not outbox.path("app.db").exists()


def test_once_on_a_terminal_shows_a_bar_or_nothing_but_ends(shop):
    shop.run("emit", "--jsonl", "-", stdin='{"type":"t","payload":1}\n' * 3000)
    code, shown = on_terminal([BIN, "run", "--once"], shop.dir, {**shop.env, "TERM": "xterm"}, deadline=60)
    assert code == 0, shown
    assert "relay.start" not in shown, "a person looks at a bar, not at lines"
    assert len(read_jsonl(shop.path("out/events.jsonl"))) == 3000


def test_logs_are_as_the_config_says(shop):
    shop.write("outbox.yaml", "log: {format: json, level: info}\n" + CONFIG)
    r = shop.run("run", "--once")
    assert r.err.startswith("{") and '"relay.start"' in r.err
    shop.write("outbox.yaml", "log: {level: off}\n" + CONFIG)
    assert shop.run("run", "--once").err == ""


def test_pause_and_resume(shop):
    assert shop.run("pause").out == "local: paused\n"
    shop.run("emit", "--type", "t", "--payload", "1")
    relay = shop.start("run")
    wait_until(lambda: shop.json("status", "--json")[0]["state"] == "paused", 10, "it stays paused")
    assert read_jsonl(shop.path("out/events.jsonl")) == []
    assert shop.json("resume", "--json") == [{"pipeline": "local", "paused": False}]
    wait_until(lambda: len(read_jsonl(shop.path("out/events.jsonl"))) == 1, 10, "it goes on")
    assert relay.stop() == 0
