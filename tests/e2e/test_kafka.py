# SPDX-License-Identifier: Apache-2.0
"""test_kafka - events in Kafka as clients that are not ours see them: key, partition, headers, order around an event that
is refused, topics that are missing, profiles, TLS and logins."""

import json
import re
import time

import pytest

import pg
from helpers import SLOW, wait_until
from profiles import Profile, golden
from test_profile_golden import TABLES, insert

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(SLOW > 1, reason="skipped: a JVM beside a sanitizer; the unit tests use the mock cluster there"),
]

ONE = """
log: {{level: debug}}
pipelines:
  shop:
    source: {{type: sqlite, path: app.db}}
    sink: {{type: kafka, brokers: "{brokers}"{sink}}}
    routes: {routes}
    stuck_after: 1s
{more}
"""


def config(outbox, kafka, topic=None, routes=None, sink="", more="", brokers=None):
    outbox.write("outbox.yaml", ONE.format(
        brokers=brokers or kafka.brokers, routes=routes or f"[{{topic: {topic}}}]", sink=f", {sink}" if sink else "", more=more,
    ))
    outbox.run("schema", "--apply")


def emit(db, key, payload, **more):
    row = {"type": "order.placed", "aggregate_type": "order", "aggregate_id": key, "payload": payload, **more}
    marks = ", ".join("?" * len(row))
    db.execute(f"insert into outbox_event({', '.join(row)}) values ({marks})", list(row.values()))


def by_key(records):
    got = {}
    for r in records:
        got.setdefault(r.key.decode(), []).append(json.loads(r.value)["n"])
    return got


def status(outbox):
    return outbox.json("status", "--json")[0]


def test_message_as_strangers_see_it(outbox, kafka):
    from kafka.partitioner.default import murmur2

    topic = kafka.topic(partitions=7)
    config(outbox, kafka, topic, more="    envelope: none")
    db = outbox.sqlite("app.db")
    keys = [f"order-{i}" for i in range(40)] + ["Zoë", "21", "foobar"]
    for i, key in enumerate(keys):
        emit(db, key, json.dumps({"n": i}), headers=json.dumps({"trace": f"t{i}"}))
    emit(db, "gone", None)
    outbox.run("run", "--once")
    records = kafka.read(topic)
    assert {r.key.decode() for r in records} == {*keys, "gone"}
    ids = dict(db.execute("select aggregate_id, id from outbox_event"))
    for r in records:
        headers = dict(r.headers)
        assert r.partition == (murmur2(r.key) & 0x7FFFFFFF) % 7  # as a Java client would choose
        assert headers["id"].decode() == ids[r.key.decode()]
        if r.key == b"gone":
            assert r.value is None  # a tombstone
        else:
            assert headers["content-type"] == b"application/json"
            assert json.loads(r.value) == {"n": keys.index(r.key.decode())}
    lines = [json.loads(x) for x in kafka.kcat("-C", "-t", topic, "-e", "-q", "-J").splitlines()]
    assert len(lines) == len(records)
    one = next(x for x in lines if x["key"] == "order-3")
    assert one["payload"] == '{"n": 3}' and ids["order-3"] in one["headers"]


def test_log_of_postgres(outbox, kafka, db):
    """Writers with a ledger of their own; the relay is killed and started again in the middle."""
    topic = kafka.topic(partitions=3)
    outbox.write("outbox.yaml", f"""
pipelines:
  orders:
    source: {{type: postgres, dsn: "{db.dsn}"}}
    sink: {{type: kafka, brokers: "{kafka.brokers}"}}
    routes: [{{topic: {topic}}}]
    envelope: none
""")
    outbox.run("schema", "--apply")
    relay = outbox.start("run")
    writer = pg.Writer(db, [f"k{i}" for i in range(9)])
    writer.start()
    wait_until(lambda: writer.total() > 300, 30)
    relay.kill()
    outbox.start("run")
    wait_until(lambda: writer.total() > 900, 30)
    writer.stop()

    def seen():
        values = [json.loads(r.value) for r in kafka.read(topic)]
        return values if {v["n"] for v in values} >= {n for ns in writer.ledger.values() for n in ns} else None

    pg.check_ledger(writer, wait_until(seen, 30, "everything is there"), repeats_allowed=True)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("on_dead", ["continue", "park"])
def test_an_oversize_event_in_the_middle(outbox, kafka, known, on_dead):
    """The limit is known: refused before it is sent. It was lowered meanwhile: the broker refuses the whole request, and
    only the event at fault is dead; what is behind it in its key passes or, with park, waits for a person."""
    topic = kafka.topic(partitions=2, max_message_bytes=20000 if known else 1000000)
    config(outbox, kafka, topic, more=f"    envelope: none\n    on_dead: {on_dead}")
    db = outbox.sqlite("app.db")
    relay = outbox.start("run")
    emit(db, "first", '{"n": 0}')
    wait_until(lambda: kafka.read(topic), 20, "the first one")
    if not known:
        kafka.set_config(topic, max_message_bytes=20000)
    db.execute("begin")
    for n in range(300):
        emit(db, f"k{n % 3}", json.dumps({"n": n, "pad": "x" * (30000 if n == 100 else 10)}))
    db.execute("commit")
    left = [n for n in range(300) if n != 100 and not (on_dead == "park" and n % 3 == 1 and n > 100)]
    wait_until(lambda: len(kafka.read(topic)) > len(left), 30, "all that may pass")
    wait_until(lambda: status(outbox)["dead"] == 1, 10)
    assert relay.alive
    got = by_key(kafka.read(topic))
    for k in range(3):
        seen = list(dict.fromkeys(got[f"k{k}"]))  # first deliveries
        assert seen == [n for n in left if n % 3 == k]
    (dead,) = outbox.json("dead", "list", "--json")
    assert dead["key"] == "k1" and "too large" in dead["error"], dead
    if on_dead == "park":
        wait_until(lambda: status(outbox)["parked"] > 0, 10, "the key waits")
        outbox.run("dead", "discard", "--all", "--yes", check=None)


def test_a_missing_topic_holds_up_nobody_else(outbox, kafka):
    there, missing = kafka.topic(), f"later-{time.time_ns()}"
    config(outbox, kafka, routes=f"[{{match: {{type: 'late.*'}}, topic: {missing}}}, {{topic: {there}}}]", more="    envelope: none")
    db = outbox.sqlite("app.db")
    for n in range(100):
        emit(db, f"k{n % 5}-{n % 2}", json.dumps({"n": n}), type="late.one" if n % 2 else "order.placed")
    outbox.start("run")
    wait_until(lambda: len(kafka.read(there)) == 50, 20, "the others flow")
    wait_until(lambda: status(outbox)["parked"] == 50, 20, "they wait where they are safe")
    assert status(outbox)["dead"] == 0 and status(outbox)["failed"] == 0
    report = outbox.run("check", check=1).out
    assert missing in report and "create_topics: on" in report
    kafka.topic(name=missing)
    wait_until(lambda: len(kafka.read(missing)) == 50, 30, "and arrive when it is there")
    wait_until(lambda: status(outbox)["parked"] == 0, 10)
    for ns in by_key(kafka.read(missing)).values():
        assert ns == sorted(ns)


def test_topics_are_made_if_wanted(outbox, kafka):
    topic = f"made-{time.time_ns()}"
    config(outbox, kafka, topic, sink="create_topics: on, partitions: 4")
    emit(outbox.sqlite("app.db"), "k", "{}")
    assert "will be made" in outbox.run("check").out
    outbox.run("run", "--once")
    assert len(kafka.read(topic)) == 1
    assert f'topic "{topic}" with 4 partitions' in kafka.kcat("-L", "-t", topic)


def test_properties_are_checked_when_read(outbox):
    outbox.write("outbox.yaml", ONE.format(brokers="x:1", routes="[{topic: t}]", more="", sink="""
      , properties:
        {linger.msec: 5}""").replace('"x:1"\n', '"x:1"'))
    r = outbox.run("check", check=78)
    assert re.search(r"outbox\.yaml:\d+:\d+: properties\.linger\.msec: .*did you mean 'linger\.ms'", r.err), r.err
    outbox.write("outbox.yaml", ONE.format(brokers="x:1", routes="[{topic: t}]", more="", sink=", properties: {acks: 1}"))
    assert "an acknowledged event can be lost" in outbox.run("check", check=78).err


def test_check_names_what_does_not_answer(outbox):
    config(outbox, None, "t", brokers="127.0.0.1:1")
    r = outbox.run("check", check=1)
    assert "127.0.0.1:1" in r.out and "problem" in r.out


@pytest.mark.parametrize("name", ["orion", "polyshop"])
def test_profiles(outbox, kafka, db, name):
    files = [json.loads(f.read_text()) for f in golden(name)]
    for g in files:
        try:
            kafka.topic(name=g["message"]["topic"])
        except kafka.client.errors.TopicAlreadyExistsError:
            pass
    p = Profile(outbox, db, name)
    for g in files:
        own, want = g.get("config", {}), g["message"]
        p.config(f'{{brokers: "{kafka.brokers}"}}', service=own.get("service", "order-service"),
                 more=f"    routes: {own['routes']}" if "routes" in own else "")
        insert(db, TABLES[name], g["row"])
        before = len(kafka.read(want["topic"]))
        outbox.run("run", "--once")
        records = kafka.read(want["topic"])
        assert len(records) == before + 1
        r = records[-1]
        body = r.value.decode()
        if "<now>" in want["body"]:
            body = re.sub(r'"timestamp":"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"', '"timestamp":"<now>"', body)
        assert body == want["body"] and r.key.decode() == want["key"]
        assert {k: v.decode() for k, v in r.headers} == want["headers"]


def test_orion_within_half_a_second(outbox, kafka, db):
    """A plain INSERT, by somebody who knows nothing of the relay."""
    try:
        kafka.topic(name="orion.events.default")
    except kafka.client.errors.TopicAlreadyExistsError:
        pass
    p = Profile(outbox, db, "orion", sink=f'{{brokers: "{kafka.brokers}"}}')
    p.start()
    took = []
    for n in range(6):
        c = db.connect()
        with c.cursor() as cur:
            cur.execute(
                "insert into outbox (tenant_id, aggregate_type, aggregate_id, event_type, payload) values "
                "(gen_random_uuid(), 'x', gen_random_uuid(), 'x.y', '{}') returning id")
            event = cur.fetchone()[0]
        began = time.monotonic()
        p.wait("select processed_at is not null from outbox where id = %s", event)
        took.append(time.monotonic() - began)
    assert sorted(took[1:])[2] < 0.5, took  # the first also connects


def test_tls_and_logins(outbox, own_kafka):
    """Certificates are verified, a wrong password is an outage and no verdict, a forbidden topic is a blocked one."""
    from kafka.admin import ACL, ACLOperation, ACLPermissionType, ResourcePattern, ResourceType

    kafka = own_kafka(secure=True)
    topic, closed, dark = kafka.topic(), kafka.topic(), kafka.topic()
    a = kafka.admin()
    for name, op, may in (
        (closed, ACLOperation.WRITE, ACLPermissionType.DENY), (closed, ACLOperation.DESCRIBE, ACLPermissionType.ALLOW),
        (dark, ACLOperation.ALL, ACLPermissionType.DENY),
    ):
        a.create_acls([ACL("User:app", "*", op, may, ResourcePattern(ResourceType.TOPIC, name))])
    a.close()
    routes = f"[{{match: {{type: 'closed.*'}}, topic: {closed}}}, {{match: {{type: 'dark.*'}}, topic: {dark}}}, {{topic: {topic}}}]"
    tls = f'tls: true, ca_file: "{kafka.env["KAFKA_TLS"]}/ca.crt"'
    login = "sasl: scram-sha-256, username: app, password: {}"
    both = kafka.env["KAFKA_SASL_TLS_BROKERS"]

    config(outbox, kafka, routes=routes, sink=f"{tls}, {login.format('wrong')}", brokers=both)
    db = outbox.sqlite("app.db")
    emit(db, "k", '{"n": 1}')
    emit(db, "c", '{"n": 2}', type="closed.one")
    emit(db, "d", '{"n": 2}', type="dark.one")
    relay = outbox.start("run")
    wait_until(lambda: "sink.down" in relay.err and "uthentication" in relay.err, 20, "down, and why")
    assert "wrong" not in relay.err
    relay.kill()
    assert status(outbox)["failed"] == 0 and status(outbox)["dead"] == 0

    config(outbox, kafka, routes=routes, sink="tls: true", brokers=kafka.env["KAFKA_TLS_BROKERS"])
    assert "certificate" in outbox.run("check", check=1).out
    config(outbox, kafka, routes=routes, sink=f"{tls}, {login.format('secret')}", brokers=both)
    assert f"grant Describe and Write on topic {dark}" in outbox.run("check", check=1).out
    relay = outbox.start("run")
    wait_until(lambda: kafka.read(topic), 20, "delivered")
    wait_until(lambda: status(outbox)["parked"] == 2, 20, "the forbidden ones wait")
    assert status(outbox)["dead"] == 0 and not kafka.read(closed, dark)
    emit(db, "k", '{"n": 3}')
    wait_until(lambda: len(kafka.read(topic)) == 2, 20, "and holds up nobody")
