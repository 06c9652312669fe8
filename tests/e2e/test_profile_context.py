# SPDX-License-Identifier: Apache-2.0
"""test_profile_context - what a producer sets once in its context (trace, correlation, user) is in the messages of polyshop and
microdao, on the real broker, whether or not the table has a metadata column."""

import json

import pytest

import produce
from helpers import SLOW
from profiles import Profile
from test_profile_brokers import nats_sink

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
CONTEXT = {"user": "anna", "correlation_id": "c-9", "traceparent": PARENT}


def table(db, column):
    if column:
        db.sql("alter table outbox_events add column metadata jsonb")


@pytest.mark.slow
@pytest.mark.skipif(SLOW > 1, reason="skipped: a JVM beside a sanitizer")
@pytest.mark.parametrize("column", [False, True])
def test_polyshop(outbox, db, kafka, column):
    topic = kafka.topic()
    p = Profile(outbox, db, "polyshop")
    p.config(f'{{brokers: "{kafka.brokers}"}}', service="order-service")
    table(db, column)
    event = produce.emit(db.dsn, "polyshop", CONTEXT, type=topic, aggregate_id="7", payload='{"total": 5}')
    outbox.run("run", "--once")
    (r,) = kafka.read(topic)
    value = json.loads(r.value)
    assert value["metadata"] == {"traceId": TRACE, "correlationId": "c-9", "idempotencyKey": event, "userId": "anna"}
    data = value["data"]
    assert data.pop("metadata", {}).get("traceparent") == (None if column else PARENT) and data == {"total": 5}


@pytest.mark.parametrize("column", [False, True])
def test_microdao(outbox, db, own_nats, column):
    server = own_nats()
    Profile(outbox, db, "microdao", nats_sink(server))
    table(db, column)
    event = produce.emit(db.dsn, "microdao", CONTEXT, type="payout.generated", payload='{"n": 5}')
    outbox.run("run", "--once")
    (m,) = server.read("STREAM_PAYOUT")
    headers = {k: v for k, v in m.headers if not k.startswith("Nats-")}
    assert headers == {"traceparent": PARENT, "trace_id": TRACE, "x-correlation-id": "c-9", "x-user-id": "anna"} and m.id == event
    body = m.json()
    assert body.pop("metadata", {}).get("userId") == (None if column else "anna") and body == {"n": 5}
