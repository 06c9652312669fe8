# SPDX-License-Identifier: Apache-2.0
"""test_kafka_check - what `check` and the relay say of topics that cannot be made."""

import time

import pytest

from helpers import SLOW, wait_until
from test_kafka import config, emit, status

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(SLOW > 1, reason="skipped: a JVM beside a sanitizer; the unit tests use the mock cluster there"),
]


def problems(outbox):
    """Each problem that `check` tells, with its fix."""
    found = outbox.json("check", "--json", check=1)
    return [(x["what"], x["fix"]) for x in found if not x["ok"]]


def test_a_topic_that_cannot_be_made(outbox, kafka):
    """More replicas than brokers: who asked for the topic is told what the broker said, not to ask for it."""
    there, never = kafka.topic(), f"never-{time.time_ns()}"
    routes = f"[{{match: {{type: 'never.*'}}, topic: {never}}}, {{topic: {there}}}]"
    config(outbox, kafka, routes=routes, sink="create_topics: on, replicas: 3", more="    envelope: none")
    [(what, fix)] = problems(outbox)
    assert f"topic {never}" in what and "cannot be made: " in what and "eplication factor" in what
    assert "replicas" in fix and "create_topics: on" not in fix
    assert f'"{never}"' not in kafka.kcat("-L")  # asked, not made
    db = outbox.sqlite("app.db")
    emit(db, "n", '{"n": 1}', type="never.one")
    emit(db, "k", '{"n": 2}')
    relay = outbox.start("run")
    wait_until(lambda: len(kafka.read(there)) == 1, 20, "the other flows")
    wait_until(lambda: status(outbox)["parked"] == 1, 20, "it waits")
    (line,) = {x for x in relay.err.splitlines() if "dest.blocked" in x and never in x}
    assert "eplication factor" in line and "create_topics: on" not in line
    config(outbox, kafka, routes=routes, sink="create_topics: on", more="    envelope: none")
    assert relay.stop() == 0
    assert f"topic {never} is not there yet and will be made" in outbox.run("check").out
    outbox.start("run")
    wait_until(lambda: f'"{never}"' in kafka.kcat("-L"), 30, "as many as there can be")
    wait_until(lambda: len(kafka.read(never)) == 1, 30, "it arrives")
