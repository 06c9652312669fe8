# SPDX-License-Identifier: Apache-2.0
"""test_profile_debezium - the table of Debezium's event router through the relay, and its settings as ours."""

import json

import pytest

from helpers import wait_until
from profiles import Profile, golden


def insert(cur, row):
    cur.execute("insert into outbox (id, aggregatetype, aggregateid, type, payload) values (%(id)s, %(aggregatetype)s, "
                "%(aggregateid)s, %(type)s, %(payload)s)", row)


def test_messages_as_its_router_makes_them(outbox, db):
    """Each row is deleted in the transaction that writes it, as many applications do."""
    p = Profile(outbox, db, "debezium")
    relay = p.start()
    wait_until(lambda: "wal.stream" in relay.err, 20, "the stream is read")
    files = [json.loads(f.read_text()) for f in golden("debezium")]
    assert len(files) == 3
    c = db.connect(autocommit=False)
    for g in files:
        insert(c.cursor(), g["row"])
        c.cursor().execute("delete from outbox")
        c.commit()
    wait_until(lambda: len(p.lines()) == 3, 10, "delivered")
    assert relay.stop() == 0
    raw = outbox.path("out/events.jsonl").read_text().splitlines()
    for line, g in zip(sorted(raw), files):  # by id: keys may overtake each other
        m, want = json.loads(line), g["message"]
        assert line[line.index('"value":') + 8 : -1] == want["body"]
        assert (m["topic"], m["key"], m["headers"], m.get("content_type"), m["id"]) == (
            want["topic"], want["key"], want["headers"], want["content_type"], want["properties"]["id"])


def test_schema_and_check_know_the_table(outbox, db):
    """A table without state columns: made for who has none, looked at where there is one."""
    Profile(outbox, db, "debezium", ddl=False)
    told = outbox.run("check", check=None).out
    assert 'there is no table "public"."outbox"' in told, told
    assert "debezium" in outbox.run("schema", "--profile", "debezium", "--dry-run").out
    assert "created" in outbox.run("schema", "--profile", "debezium", "--apply").out
    assert "its columns fit" in outbox.run("schema", "--profile", "debezium", "--apply").out
    told = outbox.run("check", check=None).out
    assert '"public"."outbox" is there, and its columns fit' in told and "CACHE 1" not in told, told
    db.sql("alter table outbox rename payload to body")
    r = outbox.run("schema", "--profile", "debezium", "--apply", check=None)
    assert r.returncode != 0 and "no column 'payload'" in r.err
    assert "no column 'payload'" in outbox.run("check", check=None).out


PROPERTIES = r"""
# Debezium Server
debezium.sink.type=kafka
debezium.sink.kafka.producer.bootstrap.servers=broker1:9092,broker2:9092
debezium.source.connector.class=io.debezium.connector.postgresql.PostgresConnector
debezium.source.database.hostname = db.example.com
debezium.source.database.port: 5433
debezium.source.database.user=shop
debezium.source.database.password=s3cret
debezium.source.database.dbname=it's
debezium.source.table.include.list=sales.outbox_event
debezium.transforms=outbox
debezium.transforms.outbox.type=io.debezium.transforms.outbox.EventRouter
debezium.transforms.outbox.table.field.event.id=event_id
debezium.transforms.outbox.table.field.event.key=aggregate_id
debezium.transforms.outbox.table.field.event.type=event_type
debezium.transforms.outbox.table.field.event.payload=body
debezium.transforms.outbox.route.by.field=aggregate
debezium.transforms.outbox.route.topic.replacement=shop.${routedByValue}.\
    events
debezium.transforms.outbox.table.expand.json.payload=true
debezium.transforms.outbox.table.fields.additional.placement=event_type:header:eventType,tenant:header,region:envelope:where
"""


def test_init_from_properties(outbox, db):
    outbox.write("application.properties", PROPERTIES)
    outbox.run("init", "--from", "application.properties", "--name", "orders")
    text = outbox.path("outbox.yaml").read_text()
    assert "s3cret" not in text
    for part in ("profile: debezium", "host='db.example.com' port='5433' user='shop' dbname='it\\\\'s' ", 'schema: "sales"',
                 'table: "outbox_event"', 'brokers: "broker1:9092,broker2:9092"', 'topic: "shop.${aggregate_type}.events"'):
        assert part in text, text
    db.sql("create schema sales")
    db.sql("create table sales.outbox_event (event_id uuid primary key, aggregate text, aggregate_id text, event_type text, "
           "body text, tenant text, region text)")
    dsn = next(line for line in text.splitlines() if "dsn:" in line)
    text = text.replace(dsn, f'      dsn: "{db.dsn}"')
    text = text[: text.index("    sink:")] + "    sink: {type: file, path: ./events.jsonl}\n"
    outbox.write("outbox.yaml", text)
    outbox.run("schema", "--apply")
    relay = outbox.start("run")
    wait_until(lambda: "wal.stream" in relay.err, 20, "the stream is read")
    event = "406c07f3-26f0-4eea-a50c-109940640001"
    db.sql("insert into sales.outbox_event values (%s, 'order', 'o-1', 'placed', %s, 'acme', 'eu')", event, '{"n": 1}')
    lines = lambda: [json.loads(x) for x in outbox.path("events.jsonl").read_text().splitlines()]
    wait_until(lambda: len(lines()) == 1, 10, "delivered")
    assert relay.stop() == 0
    (m,) = lines()
    assert m["topic"] == "shop.order.events" and m["key"] == "o-1" and m["id"] == event
    assert m["value"] == {"payload": {"n": 1}, "where": "eu"}
    assert m["headers"] == {"id": event, "eventType": "placed", "tenant": "acme"}


ROUTER = "transforms=o\ntransforms.o.type=io.debezium.transforms.outbox.EventRouter\ntransforms.o."


@pytest.mark.parametrize("given, said", [
    ("a=b\n", "no transform is an outbox EventRouter"),
    (ROUTER + "route.topic.regex=(?<a>.)_(?<b>.*)\n", "route.topic.regex"),
    (ROUTER + "route.topic.replacement=x.${other}\n", "names another group"),
    (ROUTER + "table.fields.additional.placement=a:partition\n", "a:partition has no counterpart"),
    (ROUTER + "table.op.invalid.behavior=fatal\n", "table.op.invalid.behavior=fatal has no counterpart: here it is as with warn"),
    (ROUTER + "table.json.payload.null.behavior=x\n", "table.json.payload.null.behavior=x has no counterpart"),
    (ROUTER + "table.fields.additional.error.on.missing=false\n", "error.on.missing=false has no counterpart"),
    (ROUTER + "tracing.span.context.field=span\n", "tracing.span.context.field=span has no counterpart"),
    (ROUTER + "tracing.operation.name=x\n", "tracing.operation.name=x has no counterpart"),
    (ROUTER + "tracing.with.context.field.only=true\n", "only=true has no counterpart"),
    (ROUTER + "predicate=isOutbox\n", "transforms.o.predicate has no counterpart"),
    (ROUTER + "table.field.event.nobody.knows=x\n", "table.field.event.nobody.knows has no counterpart"),
    (ROUTER.replace("=o\n", "=o, unwrap\n", 1) + "route.by.field=x\n", "the transform unwrap has no counterpart"),
    (ROUTER + "route.by.field=x\ntable.include.list=public.a,public.b\n", "a pipeline reads one table"),
    (ROUTER + "route.by.field=x\ntable.include.list=public.outbox_.*\n", "a pipeline reads one table"),
    (ROUTER + "route.by.field=x\ntable.exclude.list=public.a\n", "table.exclude.list=public.a has no counterpart"),
    (ROUTER + "route.by.field=x\ncolumn.exclude.list=public.outbox.x\n", "column.exclude.list"),
    (ROUTER + "route.by.field=x\nbinary.handling.mode=base64\n", "binary.handling.mode=base64 has no counterpart"),
    (ROUTER + "route.by.field=x\nconnector.class=io.debezium.connector.mysql.MySqlConnector\n", "MySqlConnector has no counterpart"),
])
def test_init_refuses_by_name_what_has_no_counterpart(outbox, given, said):
    outbox.write("x.properties", given)
    r = outbox.run("init", "--from", "x.properties", check=1)
    assert said in r.err
    assert not outbox.path("outbox.yaml").exists()


def test_init_says_what_it_leaves_out(outbox):
    """What makes no other message is named in a comment; what is as by default is not worth a word."""
    outbox.write("x.properties", ROUTER + r"""table.expand.json.payload=true
transforms.o.route.tombstone.on.empty.payload=true
transforms.o.table.op.invalid.behavior=error
transforms.o.tracing.operation.name=debezium-read
database.hostname=db
database.sslmode=verify-full
database.sslrootcert=/etc/ca.crt
table.include.list=public\\.outbox
slot.name=mine
predicates=p
debezium.sink.kafka.producer.security.protocol=SSL
bootstrap.servers=b:9092
""")
    outbox.run("init", "--from", "x.properties")
    text = outbox.path("outbox.yaml").read_text()
    said = [line for line in text.split("pipelines:")[0].splitlines()[1:] if line]
    assert said == [
        "# transforms.o.route.tombstone.on.empty.payload: a payload that is null is a tombstone, one that is empty has an empty value",
        "# slot.name: not taken over",
        "# predicates: not taken over",
        "# debezium.sink.kafka.producer.security.protocol: not taken over",
        "# table.json.payload.null.behavior: fields that are null are kept",
    ]
    assert "host='db' sslmode='verify-full' sslrootcert='/etc/ca.crt' " in text and 'schema: "public"' in text and 'table: "outbox"' in text
