# SPDX-License-Identifier: Apache-2.0
"""test_nats_silence - a server that hangs: its connections stay, and nothing comes."""

import os
import signal

import pytest

from helpers import wait_until
from test_nats import dead, insert, numbers, prepare


@pytest.mark.parametrize("idle", [True, False])
def test_a_silent_server_is_told_by_its_pings(outbox, own_nats, idle):
    """It hangs and its connections stay: without an answer to two pings it is down, whether something is in flight or not, and long before
    publish_timeout."""
    server = own_nats()
    stream = server.stream()
    db = prepare(outbox, server.url, f"{stream}.x", sink="ping_interval: 500ms, connect_timeout: 500ms", more="    publish_timeout: 10m")
    insert(db, "a", 1)
    p = outbox.start("run")
    wait_until(lambda: outbox.json("status", "--json")[0]["published"] == 1, 20, "it flows")
    for pid in server.pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        if not idle:
            insert(db, "a", 2)
        wait_until(lambda: "msg=sink.down" in p.err, 20, "it is down")
    finally:
        for pid in server.pids:
            os.kill(pid, signal.SIGCONT)
    wait_until(lambda: "msg=sink.up" in p.err, 20, "it is up again")
    if idle:
        insert(db, "a", 2)
    wait_until(lambda: outbox.json("status", "--json")[0]["published"] == 2, 20, "and flows")
    assert p.stop() == 0 and numbers(server.read(stream)) == [1, 2]
    assert outbox.json("status", "--json")[0]["failed"] == 0 and dead(outbox) == []
