# SPDX-License-Identifier: Apache-2.0
"""test_blocked_max - an event whose destination stays blocked is dead after `blocked_max`, on a real NATS server."""

import json

import pytest

from helpers import wait_until
from test_nats import dead, insert, numbers, parked, prepare


@pytest.mark.slow
def test_an_event_blocked_for_too_long_is_dead(outbox, nats):
    """blocked_max: the event without a stream is dead with the reason, also across a restart; its key goes on in order."""
    stream = nats.stream()
    routes = f'match: {{type: fine}}}}, {{topic: "NONE_{stream}.x"'
    db = prepare(outbox, nats.url, f"{stream}.x", route=routes, more="    blocked_max: 4s\n    park_after: 500ms")
    for n, kind in enumerate(["fine", "lost", "fine", "lost", "fine"]):
        insert(db, "k", n, type=kind)
    insert(db, "other", 9, type="fine")
    p = outbox.start("run")
    wait_until(lambda: parked(outbox) >= 1 and len(nats.read(stream)) == 2, 20, "its key waits, the other does not")
    assert dead(outbox) == []
    assert p.stop() == 0
    p = outbox.start("run")
    wait_until(lambda: numbers(nats.read(stream), "k") == [0, 2, 4], 60, "the key goes on in order", every=0.1)
    gone = dead(outbox)
    assert len(gone) == 2
    for d in gone:
        assert f"NONE_{stream}.x' was blocked for" in json.dumps(d) and "blocked_max" in json.dumps(d), d
        assert d["attempts"] == 0
    assert p.err.count("event.dead") == 2
    assert p.stop() == 0
