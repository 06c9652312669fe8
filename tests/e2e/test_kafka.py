# SPDX-License-Identifier: Apache-2.0
"""test_kafka - events in Kafka as clients that are not ours see them: key, partition, headers, order around an event that
is refused, topics that are missing, profiles, TLS and logins."""

import json
import pathlib
import re
import subprocess
import time

import pytest

import pg
from helpers import SLOW, wait_until
from profiles import IDLE, Profile, golden, stay_idle, without_now
from test_dlt import KEYS, insert as letter, pending
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


def test_what_the_readme_tells_is_done(outbox, kafka, db):
    """PostgreSQL to Kafka word by word as README.md has it; only the two addresses are ours."""
    text = (pathlib.Path(__file__).parents[2] / "README.md").read_text().split("## Your PostgreSQL database")[1]
    block = lambda language: re.search(rf"```{language}\n(.*?)```", text, re.S)[1]
    for topic in ("shop.order.placed", "shop.events"):
        kafka.topic(name=topic)
    outbox.write("outbox.yaml", block("yaml").replace("127.0.0.1:9092", kafka.brokers))
    outbox.env["DATABASE_URL"] = db.dsn
    assert "build/outbox schema --apply " in text and "build/outbox check " in text
    outbox.run("schema", "--apply")
    problems = [x for x in outbox.run("check", check=1).out.splitlines() if x.startswith("problem")]
    assert len(problems) == 1 and "fsync is off" in problems[0]  # which is true of the tests' server
    with db.connect() as c, c.cursor() as cur:
        cur.execute("create table orders (id int, total int)")
        cur.execute(block("sql"))
    outbox.run("run", "--once")
    [event] = kafka.read("shop.order.placed")
    assert (event.key, json.loads(event.value)) == (b"7", {"id": 7, "total": 4200})


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


def make_topics(kafka, names):
    for name in sorted(set(names)):
        try:
            kafka.topic(name=name)
        except kafka.client.errors.TopicAlreadyExistsError:
            pass


def same(record, want, since):
    """Value, key and headers, in their order and none twice."""
    if want["body"] == "null":
        assert record.value is None  # a tombstone
    else:
        assert without_now(record.value.decode(), want["body"], since) == want["body"]
    assert record.key.decode() == want["key"]
    assert [(k, v.decode()) for k, v in record.headers] == list(want["headers"].items())


@pytest.mark.parametrize("name", ["orion", "polyshop"])
def test_profiles(outbox, kafka, db, name):
    files = [json.loads(f.read_text()) for f in golden(name)]
    make_topics(kafka, [g["message"]["topic"] for g in files])
    p = Profile(outbox, db, name)
    for g in files:
        own, want = g.get("config", {}), g["message"]
        p.config(f'{{brokers: "{kafka.brokers}"}}', service=own.get("service", "order-service"),
                 more=f"    routes: {own['routes']}" if "routes" in own else "")
        since = time.time()
        insert(db, TABLES[name], g["row"])
        before = len(kafka.read(want["topic"]))
        outbox.run("run", "--once")
        records = kafka.read(want["topic"])
        assert len(records) == before + 1
        same(records[-1], want, since)


@pytest.mark.parametrize("how", ["profile", "init"])
def test_debezium(outbox, kafka, db, how):
    """As its router makes them, by the profile and by what is made of its settings; a row without payload is a tombstone."""
    files = [json.loads(f.read_text()) for f in golden("debezium")]
    topics = sorted({g["message"]["topic"] for g in files})
    make_topics(kafka, topics)
    before = len(kafka.read(*topics))
    p = Profile(outbox, db, "debezium", f'{{brokers: "{kafka.brokers}"}}')
    if how == "init":
        at = {"hostname": "127.0.0.1", "port": db.server.port, "user": "postgres", "dbname": db.name}
        outbox.write("x.properties", f"transforms=o\ntransforms.o.type=EventRouter\nbootstrap.servers={kafka.brokers}\n"
                     + "".join(f"database.{k}={v}\n" for k, v in at.items()))
        outbox.run("init", "--from", "x.properties", "--force")
    relay = p.start()
    wait_until(lambda: "wal.stream" in relay.err, 20, "the stream is read")
    since = time.time()
    for g in files:
        insert(db, "outbox", g["row"])
    wait_until(lambda: len(kafka.read(*topics)) == before + len(files), 20, "delivered")
    assert relay.stop() == 0
    got = {dict(r.headers)["id"].decode(): r for r in kafka.read(*topics)}  # the last of each
    for g in files:
        record = got[g["row"]["id"]]
        assert record.topic == g["message"]["topic"]
        same(record, g["message"], since)


def test_check_knows_the_topics_of_a_profile(outbox, kafka, db):
    """Those that its routes make of the types which they list; all but one are there."""
    types = ["rfq.created", "rfq.quoted", "rfq.executed", "trade.executed", "trade.confirmed", "order.created"]
    topics = [*(f"orion.{t}" for t in types), "orion.tenant.events", "orion.instrument.events", "orion.events.default"]
    make_topics(kafka, topics)
    Profile(outbox, db, "orion", sink=f'{{brokers: "{kafka.brokers}"}}')
    told = outbox.run("check", check=1).out
    problems = [line for line in told.splitlines() if line.startswith("problem") and "topic" in line]
    assert len(problems) == 1 and "topic orion.order.filled: " in problems[0], told
    assert "make topic orion.order.filled" in told and "further topics" not in told
    for topic in topics:
        assert f"topic {topic}: this user may write to it" in told, told
    config(outbox, kafka, "'${type}'")
    assert "ok      shop: further topics are made of what is in an event" in outbox.run("check").out


def test_orion_within_half_a_second(outbox, kafka, db):
    """A plain INSERT, by somebody who knows nothing of the relay, until a consumer has it."""
    topic = "orion.events.default"
    make_topics(kafka, [topic])
    p = Profile(outbox, db, "orion", sink=f'{{brokers: "{kafka.brokers}"}}')
    part = kafka.client.TopicPartition(topic, 0)
    reader = kafka.client.KafkaConsumer(bootstrap_servers=kafka.brokers.split(","), api_version=(2, 5, 0), enable_auto_commit=False)
    reader.assign([part])
    reader.seek_to_end(part)
    reader.position(part)  # asks for it now
    p.start()
    took = []
    c = db.connect()
    for seconds in (0, *IDLE):
        stay_idle(seconds)
        began = time.monotonic()
        with c.cursor() as cur:
            cur.execute(
                "insert into outbox (tenant_id, aggregate_type, aggregate_id, event_type, payload) values "
                "(gen_random_uuid(), 'x', gen_random_uuid(), 'x.y', '{}') returning id")
            event = cur.fetchone()[0]
        arrived = lambda: [r for rs in reader.poll(1000).values() for r in rs if json.loads(r.value)["eventId"] == event]
        wait_until(arrived, 20, "it arrives", every=0)
        took.append(time.monotonic() - began)
        p.wait("select processed_at is not null from outbox where id = %s", event)
    reader.close(autocommit=False)
    assert max(took[1:]) < 0.5, took  # the first also connects


def logins(kafka, encrypted):
    """Each option of a secure connection: where to, with what, and what `check` says if it cannot be (None: it can)."""
    tls = kafka.env["KAFKA_TLS"]
    ca = f'tls: true, ca_file: "{tls}/ca.crt"'
    own = f'cert_file: "{tls}/client.crt", key_file: "{{}}"'
    refused = "uthentication"
    rows = {
        "no certificate": ("MTLS", ca, "alert"),
        "our certificate": ("MTLS", f"{ca}, {own.format(tls + '/client.key')}", None),
        "a key with a password": ("MTLS", f"{ca}, {own.format(encrypted)}, key_password: opensesame", None),
        "another password": ("MTLS", f"{ca}, {own.format(encrypted)}, key_password: other", "ssl.key.location failed"),
        "another key": ("MTLS", f"{ca}, {own.format(tls + '/server.key')}", "mismatch"),
        "another name": ("TLS", ca, "certificate verify failed"),
        "a CA alone": ("TLS", f'ca_file: "{tls}/ca.crt"', None),
        "an unknown user": ("SASL_TLS", f"{ca}, sasl: plain, username: nobody, password: secret", refused),
    }
    for mechanism in ("plain", "scram-sha-256", "scram-sha-512"):
        login = f"sasl: {mechanism}, username: {mechanism}, password: "
        rows[f"{mechanism}, right"] = ("SASL_TLS", f"{ca}, {login}secret", None)
        rows[f"{mechanism}, without TLS"] = ("SASL", f"{login}secret", None)
        rows[f"{mechanism}, wrong"] = ("SASL_TLS", f"{ca}, {login}secreT", refused)
    return rows


def log_in_every_way(outbox, kafka):
    """With the right values an event arrives, with wrong ones `check` says why; all at once, because a refusal is waited for."""
    topic = kafka.topic()
    encrypted = str(outbox.path("client.enc.key"))
    argv = ["openssl", "pkcs8", "-topk8", "-in", kafka.env["KAFKA_TLS"] + "/client.key", "-out", encrypted, "-passout", "pass:opensesame"]
    subprocess.run(argv, check=True, capture_output=True)
    rows, started = logins(kafka, encrypted), {}
    for i, (name, (where, sink, wrong)) in enumerate(rows.items()):
        brokers = kafka.env[f"KAFKA_{where}_BROKERS"]
        if name == "another name":  # the same place, and no name of the certificate
            brokers = brokers.replace("127.0.0.1", "127.1")
        config(outbox, kafka, topic, sink=sink, brokers=brokers)
        path = outbox.write(f"{i}.yaml", outbox.path("outbox.yaml").read_text().replace("app.db", f"{i}.db"))
        outbox.run("schema", "--apply", "-c", path)
        emit(outbox.sqlite(f"{i}.db"), name, json.dumps({"n": i}))
        started[name] = outbox.start(*(["check"] if wrong else ["run", "--once"]), "-c", path)
    for name, p in started.items():
        wrong = rows[name][2]
        said = f"{name}: exit {p.wait(30)}: {p.out[-1000:]}{p.err[-1000:]}"
        assert p.popen.returncode == (1 if wrong else 0) and (wrong or "") in said, said
        assert not any(word in p.out + p.err for word in ("opensesame", "secreT")), said
    assert by_key(kafka.read(topic)) == {name: [i] for i, (name, row) in enumerate(rows.items()) if not row[2]}


def test_tls_and_logins(outbox, own_kafka):
    """Every option of a secure connection does what it says. Certificates are verified, a wrong password is an outage and no verdict, a forbidden topic is a blocked one."""
    from kafka.admin import ACL, ACLOperation, ACLPermissionType, ResourcePattern, ResourceType

    kafka = own_kafka(secure=True)
    log_in_every_way(outbox, kafka)
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


def test_a_limit_that_was_raised_holds_at_once(outbox, kafka):
    """What a topic takes was asked for a while ago: before an event is dead for its size it is asked for again."""
    topic = kafka.topic(max_message_bytes=5000)
    config(outbox, kafka, topic, more="    envelope: none")
    db = outbox.sqlite("app.db")
    relay = outbox.start("run")
    emit(db, "k", '{"n": 1}')
    emit(db, "k", json.dumps({"n": 2, "pad": "x" * 9000}))
    emit(db, "k", '{"n": 3}')
    wait_until(lambda: status(outbox)["dead"] == 1, 20, "too large")
    kafka.set_config(topic, max_message_bytes=20000)
    until = time.monotonic() + 1.2
    wait_until(lambda: time.monotonic() > until, 5, "what was asked for is not fresh any more")
    emit(db, "k", json.dumps({"n": 4, "pad": "x" * 9000}))
    emit(db, "k", '{"n": 5}')
    outbox.run("dead", "retry", "--all", "--yes")
    wait_until(lambda: len(kafka.read(topic)) == 5, 20, "all of them")
    wait_until(lambda: status(outbox)["dead"] == 0, 10)
    assert relay.alive and status(outbox)["failed"] == 1
    got = by_key(kafka.read(topic))["k"]
    assert [n for n in got if n != 2] == [1, 3, 4, 5] and 2 in got


def test_check_sees_who_may_not_write(outbox, own_kafka):
    """Asked with a record that is larger than the topic takes: refused for one reason or the other, and never stored."""
    from kafka.admin import ACL, ACLOperation as Op, ACLPermissionType, ResourcePattern, ResourceType

    def acl(user, op, may, kind, name):
        a = kafka.admin()
        a.create_acls([ACL(f"User:{user}", "*", op, may, ResourcePattern(kind, name))])
        a.close()

    allow, deny = ACLPermissionType.ALLOW, ACLPermissionType.DENY
    kafka = own_kafka(secure=True)
    topics = fine, closed, dim = kafka.topic(compression_type="zstd"), kafka.topic(), kafka.topic(max_message_bytes=2000)
    for name in (closed, dim):
        acl("app", Op.DESCRIBE, allow, ResourceType.TOPIC, name)
    acl("app", Op.DESCRIBE_CONFIGS, allow, ResourceType.TOPIC, closed)
    routes = f"[{{match: {{type: 'a.*'}}, topic: {closed}}}, {{match: {{type: 'b.*'}}, topic: {dim}}}, {{topic: {fine}}}]"
    sink = "sasl: scram-sha-256, username: {}, password: secret, properties: {{compression.type: zstd}}"
    config(outbox, kafka, routes=routes, sink=sink.format("app"), brokers=kafka.env["KAFKA_SASL_BROKERS"])
    r = outbox.run("check", check=1)
    assert f"topic {fine}: this user may write to it" in r.out
    assert f"topic {closed}: this user may not write to it: TOPIC_AUTHORIZATION_FAILED" in r.out
    assert f"grant Write on topic {closed}" in r.out and "1 problem" in r.out
    assert f"topic {dim}: whether it may be written is not known" in r.out
    for op in (Op.DESCRIBE_CONFIGS, Op.WRITE):
        acl("app", op, allow, ResourceType.TOPIC, dim)
    acl("app", Op.WRITE, allow, ResourceType.TOPIC, closed)
    r = outbox.run("check")
    assert all(f"topic {t}: this user may write to it" in r.out for t in topics)

    for op in (Op.DESCRIBE, Op.DESCRIBE_CONFIGS):
        acl("poor", op, allow, ResourceType.TOPIC, "*")
    acl("poor", Op.WRITE, deny, ResourceType.TOPIC, "*")
    acl("poor", Op.IDEMPOTENT_WRITE, deny, ResourceType.CLUSTER, "kafka-cluster")
    config(outbox, kafka, topic=fine, sink=sink.format("poor"), brokers=kafka.env["KAFKA_SASL_BROKERS"])
    r = outbox.run("check", check=1)
    assert f"topic {fine}: this user may write nothing: CLUSTER_AUTHORIZATION_FAILED" in r.out
    assert "IdempotentWrite" in r.out
    db = outbox.sqlite("app.db")
    emit(db, "k", '{"n": 1}')
    relay = outbox.start("run")
    wait_until(lambda: "CLUSTER_AUTHORIZATION_FAILED" in relay.err, 20, "the relay says the same")
    wait_until(lambda: status(outbox)["state"] != "running", 20, "and that it cannot go on")
    assert relay.alive and status(outbox)["dead"] == 0 and status(outbox)["failed"] == 0
    assert relay.err.count("CLUSTER_AUTHORIZATION_FAILED") < 30, "not a storm"
    c = kafka.client.KafkaConsumer(bootstrap_servers=kafka.brokers, api_version=(2, 5, 0))
    ends = c.end_offsets([kafka.client.TopicPartition(t, 0) for t in topics])
    c.close()
    assert list(ends.values()) == [0, 0, 0], "nothing was stored"


def test_a_blocked_letter_holds_up_nobody(outbox, kafka):
    topic = kafka.topic(max_message_bytes=5000)
    outbox.write("outbox.yaml", f"""
log: {{level: debug}}
pipelines:
  shop:
    source: {{type: sqlite, path: app.db}}
    sink: {{type: kafka, brokers: "{kafka.brokers}"}}
    routes: [{{topic: {topic}}}]
    envelope: none
    dlt: on
""")
    outbox.run("schema", "--apply")
    db = outbox.sqlite("app.db")
    outbox.start("run")
    for n in range(30):
        letter(db, f"e{n}", "k", json.dumps({"n": n, "pad": "x" * (9000 if n % 10 == 5 else 1)}))
    wait_until(lambda: len(kafka.read(topic)) == 27, 30, "the others flow")
    wait_until(lambda: pending(db) == 3, 20, "the letters wait")
    letter(db, "late", "k", '{"n": 99}')
    wait_until(lambda: len(kafka.read(topic)) == 28, 20, "and hold up nobody")
    kafka.topic(name=f"{topic}.dlt")
    wait_until(lambda: len(kafka.read(f"{topic}.dlt")) == 3, 30, "until their topic is there")
    wait_until(lambda: pending(db) == 0, 10)
    for r, n in zip(kafka.read(f"{topic}.dlt"), (5, 15, 25)):
        value = json.loads(r.value)
        assert list(value) == KEYS and value["eventId"] == f"e{n}" and value["originalEvent"]["n"] == n
        headers = {k: v.decode() for k, v in r.headers}
        assert headers["outbox-origin-topic"] == topic and "too large" in headers["outbox-error"] and r.key == b"k"
