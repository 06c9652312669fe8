# SPDX-License-Identifier: Apache-2.0
"""test_profile_cli - the commands on tables of other systems: init, schema, check, emit, events, tail, status, pause."""

import json
import os
import stat

import pytest

from helpers import ROOT, wait_until
from profiles import Profile

TABLES = {"orion": "outbox", "polyshop": "outbox_events", "microdao": "outbox_events", "farmwise": '"OutboxMessage"'}
KEY = ["--aggregate-id", "11111111-1111-1111-1111-111111111111"]
EMIT = {
    "orion": ["--type", "payout.generated", "--aggregate-type", "thing", "--tenant", "22222222-2222-2222-2222-222222222222", *KEY],
    "polyshop": ["--type", "payout.generated", *KEY],
    "microdao": ["--type", "payout.generated"],  # the stream goes by its prefix
    "farmwise": ["--type", "payout.generated"],
}
SINK = {"orion": "brokers", "polyshop": "brokers", "microdao": "url", "farmwise": "url"}


@pytest.mark.parametrize("name", sorted(TABLES))
def test_init_needs_only_two_addresses_and_a_name(outbox, db, name):
    where = "amqp://where:1234" if name == "farmwise" else "where:1234"
    outbox.run("init", "--profile", name, "--source", db.dsn, "--sink", where, "--service", "my 'service'")
    path = outbox.path("outbox.yaml")
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600, "it may hold passwords"
    text = path.read_text()
    assert f"profile: \"{name}\"" in text and f"{SINK[name]}: \"{where}\"" in text
    # with a sink that every build has it is a config that runs
    outbox.write("outbox.yaml", text.replace(f"      {SINK[name]}: \"{where}\"", "      {type: file, path: x.jsonl}".replace("{", "").replace("}", "").replace(", ", "\n      ")))
    outbox.run("schema", "--profile", name, "--apply")
    assert db.one(f"select count(*)::int from {TABLES[name]}") == 0
    again = outbox.run("schema", "--profile", name, "--apply").out
    assert "its columns fit" in again, "a table that is there is only looked at"
    found = outbox.run("check", check=None).out
    assert "its columns fit" in found and "ok      " + name + ": \"public\"" in found and "has an index for rows that wait" in found, found


def test_init_without_a_terminal_takes_the_environment(outbox):
    outbox.run("init", "--profile", "orion")
    assert 'dsn: "${DATABASE_URL:-' in outbox.path("outbox.yaml").read_text()
    assert "no profile" in outbox.run("init", "x.yaml", "--profile", "orionn", check=1).err


SOURCE, SINK_URL = "postgres://app:s3cret-Pa55@db/shop", "nats://relay:s3cret-Pa55@nats:4222"


@pytest.mark.parametrize("how", ["argument", "stdin", "file"])
def test_init_stores_no_password(outbox, how):
    """A password given to init is never in the file: a variable, or the name of another file, stands for it. As an argument it would be
    visible to other users, which is a warning."""
    outbox.write("source.txt", SOURCE + "\n")
    outbox.write("sink.txt", SINK_URL + "\n")
    args = {"argument": ["--source", SOURCE, "--sink", SINK_URL], "stdin": ["--source", "-", "--sink", "-"],
            "file": ["--source-file", "source.txt", "--sink-file", "sink.txt"]}[how]
    r = outbox.run("init", "--profile", "microdao", *args, stdin=f"{SOURCE}\n{SINK_URL}\n" if how == "stdin" else "")
    text = outbox.path("outbox.yaml").read_text()
    assert "s3cret" not in text + r.out + r.err
    assert ("other users" in r.err) == (how == "argument")
    if how == "file":
        assert 'dsn_file: "source.txt"' in text and 'url_file: "sink.txt"' in text
    else:
        assert 'dsn: "${DATABASE_URL}"' in text and 'url: "${NATS_URL}"' in text and "DATABASE_URL" in r.err and "NATS_URL" in r.err
    env = {} if how == "file" else {"DATABASE_URL": SOURCE, "NATS_URL": SINK_URL}
    shown = outbox.run("check", "--explain", check=None, env=env)
    assert "s3cret" not in shown.out + shown.err and "could not" not in shown.err
    assert outbox.run("init", "x.yaml", "--profile", "orion", "--source", "-", check=1).err.count("standard input") == 1


@pytest.mark.slow
def test_init_declares_the_streams_of_microdao(outbox, db, own_nats):
    """One commented block; uncommented it creates the four streams on a cluster, and events of each prefix arrive."""
    server = own_nats(nodes=3)
    outbox.run("init", "--profile", "microdao", "--source", db.dsn, "--sink", server.url)
    text = outbox.path("outbox.yaml").read_text()
    block = [line for line in text.splitlines() if line.startswith("      # ") and not line.startswith("      # Un") and "cluster" not in line]
    assert len(block) == 6, text
    outbox.write("outbox.yaml", "\n".join(line.replace("# ", "", 1) if line in block else line for line in text.splitlines()) + "\n")
    outbox.run("schema", "--profile", "microdao", "--apply")
    topics = {"agent.run.started": "STREAM_AGENT_RUN", "embassy.opened": "STREAM_EMBASSY", "rwa.inventory.updated": "STREAM_RWA",
              "payout.generated": "STREAM_PAYOUT"}
    for topic in topics:
        outbox.run("emit", "--type", topic, "--payload", "{}")
    outbox.run("run", "--once")
    for topic, stream in topics.items():
        with server.client() as c:
            info = c.stream_info(stream)["config"]
        assert info["num_replicas"] == 3 and info["storage"] == "file" and info["subjects"] == [topic.rsplit(".", 1)[0] + ".*"]
        assert [m.subject for m in server.read(stream)] == [topic]


def test_init_from_appsettings(outbox):
    outbox.write("appsettings.json", """{
  // what .NET takes and JSON does not
  "ConnectionStrings": {"DefaultConnection": "Host=db;Port=5433;Database=farm;User Id=u;Password=p'w"},
  "Outbox": {"BatchSize": 20, "IntervalSeconds": 3, "MaxRetryAttempts": 4, "RetryDelaySeconds": 7,}, /* and this */
  "RabbitMQ": {"HostName": "mq", "Port": 5673, "UserName": "a b", "Password": "p@\\"\\\\", "ExchangeName": "my.ex", "ExchangeType": "topic"}
}""")
    outbox.run("init", "--from", "appsettings.json")
    text = outbox.path("outbox.yaml").read_text()
    for want in ('profile: "farmwise"', "dsn: \"host='db' port='5433' dbname='farm' user='u' password='p\\\\'w'\"", "page: 20",
                 "poll_max: 3s", 'url: "amqp://a%20b:p%40%22%5C@mq:5673/"', "max_attempts: 4",
                 "retry: {first: 7s, factor: 1, max: 7s, jitter: 0%}", 'exchange: "my.ex"'):
        assert want in text, want
    for size, page in ((50, 50), (51, 51), (20000, 10000)):  # as the file says, whatever it says
        outbox.write("appsettings.json", json.dumps({"Outbox": {"BatchSize": size}}))
        outbox.run("init", "--from", "appsettings.json", "--force")
        assert f"page: {page} #" in outbox.path("outbox.yaml").read_text()


def test_init_from_what_it_does_not_know(outbox):
    outbox.write("a.json", '{"Outbox": {"BatchSize": "many"}}')
    assert "BatchSize" in outbox.run("init", "--from", "a.json", check=1).err
    outbox.write("b.json", '{"RabbitMQ": {"ExchangeType": "fanout"}}')
    assert "fanout" in outbox.run("init", "--from", "b.json", check=1).err
    outbox.write("c.json", "{nope")
    assert "c.json" in outbox.run("init", "--from", "c.json", check=1).err
    outbox.write("c.toml", "")
    assert "appsettings.json" in outbox.run("init", "--from", "c.toml", check=1).err
    assert not outbox.path("outbox.yaml").exists()
    outbox.write("d.json", "{}")
    outbox.run("init", "--from", "d.json")
    text = outbox.path("outbox.yaml").read_text()
    assert "poll_max: 5s" in text and "max_attempts: 3" in text and "first: 10s" in text and "page" not in text


def test_schema_prints_without_a_config(outbox):
    for name in TABLES:
        assert outbox.run("schema", "--profile", name, "--print").out == (ROOT / "schema" / "profiles" / f"{name}.sql").read_text()
    assert "PARTITION BY RANGE" in outbox.run("schema", "--profile", "orion", "--partitioned", "--print").out
    assert "polyshop" in outbox.run("schema", "--profile", "polyshop", "--partitioned", "--print", check=2).err


def test_schema_says_what_does_not_fit(outbox, db):
    db.sql("create table outbox_events (id text primary key, stream text, topic text, payload int, processed bool)")
    p = Profile(outbox, db, "microdao", ddl=False)
    r = outbox.run("schema", "--profile", "microdao", "--apply", check=None)
    assert r.returncode != 0 and "payload" in r.err and "integer" in r.err
    r = outbox.run("run", "--once", check=None)
    assert r.returncode != 0 and "payload" in r.err


@pytest.mark.parametrize("name", sorted(TABLES))
def test_every_command_works(outbox, db, name):
    p = Profile(outbox, db, name)
    emit = ["emit", "--payload", '{"n": 1}', *EMIT[name]]
    outbox.run(*emit)
    outbox.run(*emit)
    (s,) = outbox.json("status", "--json")
    assert s["pending"] == 2 and s["dead"] == 0
    events = outbox.json("events", "--json", "--payload")
    assert [e["state"] for e in events] == ["pending", "pending"] and events[0]["payload"] == {"n": 1}
    assert len(outbox.json("events", "--json", "--limit", "1")) == 1
    assert len(outbox.json("events", "--json", events[0]["id"])) == 1
    assert len(outbox.json("events", "--json", "--type", "payout.*")) == 2 and not outbox.json("events", "--json", "--type", "x*")
    tail = outbox.start("tail", "--json", "--from", "start", "--limit", "3")
    wait_until(lambda: len(tail.out.splitlines()) == 2, 20)
    relay = p.start()
    wait_until(lambda: [e["state"] for e in outbox.json("events", "--json")] == ["published"] * 2, 20)
    outbox.run("pause")
    wait_until(lambda: outbox.json("status", "--json")[0]["state"] == "paused", 20)
    outbox.run(*emit)
    assert tail.wait() == 0
    assert [e["state"] for e in outbox.json("events", "--json")] == ["published", "published", "pending"]
    outbox.run("resume")
    wait_until(lambda: len(p.lines()) == 3, 20)
    (s,) = outbox.json("status", "--json")
    assert s["published"] >= 2 and relay.stop() == 0


def test_a_table_without_state(outbox, db):
    """debezium: the stream is all there is; events are those that wait or are dead, and nothing can be followed."""
    p = Profile(outbox, db, "debezium", more="    on_dead: park")
    outbox.run("init", "d.yaml", "--profile", "debezium", "--source", db.dsn, "--sink", "where:1234")
    assert outbox.run("schema", "--profile", "debezium", "--print").out == (ROOT / "schema" / "profiles" / "debezium.sql").read_text()
    assert "its columns fit" in outbox.run("check", check=None).out
    r = outbox.run("tail", "--from", "start", "--seconds", "0", check=1)
    assert "cannot be followed" in r.err, r.err
    relay = p.start()
    wait_until(lambda: "wal.stream" in relay.err, 20, "the stream is read")
    emit = ["emit", "--type", "t", "--aggregate-id", "7", "--payload", '{"n": 1}', "--aggregate-type"]
    outbox.run(*emit, "order")
    wait_until(lambda: len(p.lines()) == 1, 20, "delivered")
    assert outbox.json("events", "--json") == []
    for kind in ("bad\x01", "a", "b", "c"):  # no topic can be called so: dead, and the others of its key wait
        outbox.run(*emit, kind)
    wait_until(lambda: [e["state"] for e in outbox.json("events", "--json")] == ["dead", "parked", "parked", "parked"], 20)
    assert [e["aggregate_type"] for e in outbox.json("events", "--json", "--limit", "2")] == ["b", "c"], "the newest"
    outbox.run("pause")
    wait_until(lambda: outbox.json("status", "--json")[0]["state"] == "paused", 20)
    outbox.run("resume")
    outbox.run("dead", "discard", "--all", "--yes")
    wait_until(lambda: len(p.lines()) == 4, 20, "released")
    assert relay.stop() == 0


def test_check_advises_the_index_and_sees_row_level_security(outbox, db):
    ddl = (ROOT / "schema" / "profiles" / "orion.sql").read_text()
    p = Profile(outbox, db, "orion", ddl="\n".join(line for line in ddl.splitlines() if "idx_outbox_relay" not in line))
    r = outbox.run("check", check=None)
    fix = 'CREATE INDEX CONCURRENTLY ON "public"."outbox" ("sequence_number") WHERE "processed_at" IS NULL;'
    assert fix in r.out + r.err
    db.sql(fix)
    r = outbox.run("check", check=None)
    assert "CREATE INDEX" not in r.out + r.err
    db.sql("create role r login in role outbox_relay; grant select, insert, update on outbox to r; "
           "grant usage on schema public to r; alter table outbox enable row level security")
    p.outbox.write("outbox.yaml", p.outbox.path("outbox.yaml").read_text().replace(db.dsn, db.dsn_of("r")))
    try:
        r = outbox.run("check", check=None)
        assert "row-level security" in r.out + r.err and "BYPASSRLS" in r.out + r.err
    finally:
        db.sql("drop owned by r; drop role r")
