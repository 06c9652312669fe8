# SPDX-License-Identifier: Apache-2.0
"""test_postgres_wal_handover - operator actions around the slot in mode wal. Every committed event must be delivered."""

import os
import signal

from helpers import read_jsonl, wait_until
from pg import emit
from wal import on_stream, slot_of, slots, wal_config


def ns(outbox):
    return [m["value"]["n"] for f in sorted(outbox.path("out").glob("*.jsonl*")) for m in read_jsonl(f)]


class Outage:
    """The folder of the sink is a file for a while."""

    def __init__(self, outbox):
        self.outbox = outbox

    def __enter__(self):
        os.rename(self.outbox.path("out"), self.outbox.path("away"))
        self.outbox.write("out", "not a folder")
        return self

    def __exit__(self, *_):
        os.remove(self.outbox.path("out"))
        os.rename(self.outbox.path("away"), self.outbox.path("out"))


def test_reload_before_the_stream(outbox, db):
    """The likely way there: a start with a broken sink, the mistake corrected, SIGHUP."""
    wal_config(outbox, db)
    c = db.connect().cursor()
    for n in range(501):
        emit(c, f"k{n % 20}", n)
    with Outage(outbox):
        relay = outbox.start("run")
        wait_until(lambda: "sink.down" in relay.err, 20, "down")
        wait_until(lambda: slots(db) == [slot_of(db)], 20, "the slot is there")
        for n in range(501, 1001):
            emit(c, f"k{n % 20}", n)
        for times in (1, 2):
            relay.signal(signal.SIGHUP)
            wait_until(lambda t=times: relay.err.count("relay.reload") >= t, 20, "reloaded")
    wait_until(lambda: set(ns(outbox)) == set(range(1001)), 20, "everything is delivered")
    on_stream(relay)
    emit(c, "k1", 1001)
    wait_until(lambda: 1001 in ns(outbox), 20, "the stream is read")
    assert relay.stop() == 0
    assert outbox.json("status", "--json")[0]["pending"] <= 1
