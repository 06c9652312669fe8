# SPDX-License-Identifier: Apache-2.0
"""test_nats - from SQLite to NATS JetStream on a real server, read back by a client written from the protocol."""

import json
import os
import pathlib

import pytest

from helpers import wait_until

CONFIG = """
log: {{level: debug}}
pipelines:
  p:
    source: {{type: sqlite, path: app.db}}
    sink: {{type: nats, url: "{url}"{sink}}}
    {envelope}
    routes: [{{topic: "{topic}"{route}}}]
{more}
"""


def prepare(outbox, url, topic, sink="", route="", more="", envelope="envelope: none"):
    sink = ", " + sink if sink else ""
    route = ", " + route if route else ""
    outbox.write("outbox.yaml", CONFIG.format(url=url, topic=topic, sink=sink, route=route, more=more, envelope=envelope))
    outbox.run("schema", "--apply")
    return outbox.sqlite("app.db")


def insert(db, key, n, **columns):
    row = {"type": "placed", "aggregate_id": key, "payload": json.dumps({"key": key, "n": n}), **columns}
    marks = ", ".join("?" for _ in row)
    db.execute(f"insert into outbox_event({', '.join(row)}) values ({marks})", list(row.values()))


def numbers(messages, key=None):
    return [m.json()["n"] for m in messages if key is None or m.json()["key"] == key]


def test_a_message_arrives_as_it_was_written(outbox, nats):
    stream = nats.stream()
    db = prepare(outbox, nats.url, f"{stream}.${{type}}", route=f"stream: {stream}, headers: {{x-key: '${{aggregate_id}}'}}")
    for n in range(50):
        insert(db, f"k{n % 5}", n)
    ids = [r[0] for r in db.execute("select id from outbox_event order by seq")]
    outbox.run("run", "--once")
    got = nats.read(stream)
    assert sorted(m.id for m in got) == sorted(ids)
    for m in got:
        assert m.subject == f"{stream}.placed"
        assert sorted(m.headers) == [("Nats-Expected-Stream", stream), ("Nats-Msg-Id", m.id), ("x-key", m.json()["key"])]
    for key in range(5):
        assert numbers(got, f"k{key}") == list(range(key, 50, 5))


def test_a_cloud_event_has_its_headers_and_type(outbox, nats):
    stream = nats.stream()
    db = prepare(outbox, nats.url, f"{stream}.x", envelope="")
    insert(db, "a", 1)
    outbox.run("run", "--once")
    (m,) = nats.read(stream)
    headers = dict(m.headers)
    assert headers["Content-Type"] == "application/json"
    assert headers["ce_type"] == "placed" and headers["ce_id"] == m.id


def test_a_repeat_is_a_duplicate_for_the_stream(outbox, nats):
    """Trap 27: duplicate=true is success."""
    stream = nats.stream()
    db = prepare(outbox, nats.url, f"{stream}.x")
    for n in range(20):
        insert(db, "a", n)
    outbox.run("run", "--once")
    rows = db.execute("select id, type, aggregate_id, payload from outbox_event order by seq").fetchall()
    db.close()
    for suffix in ("", "-wal", "-shm"):
        outbox.path("app.db" + suffix).unlink(missing_ok=True)
    outbox.run("schema", "--apply")
    db = outbox.sqlite("app.db")
    for row in rows:
        db.execute("insert into outbox_event(id, type, aggregate_id, payload) values (?, ?, ?, ?)", row)
    outbox.run("run", "--once")
    assert outbox.json("status", "--json")[0]["pending"] == 0
    assert len(nats.read(stream)) == 20


def parked(outbox):
    return outbox.json("status", "--json")[0]["parked"]


def dead(outbox):
    return outbox.json("dead", "list", "--json")


def test_no_responders_blocks_only_its_own_events(outbox, nats):
    """Traps 25, 61: no stream is not poison; the others flow, and it goes on when the stream is there."""
    stream = nats.stream()
    routes = f'match: {{type: fine}}}}, {{topic: "NONE_{stream}.x"'
    db = prepare(outbox, nats.url, f"{stream}.x", route=routes)
    for n in range(100):
        insert(db, f"k{n}", n, type="lost" if n % 10 == 3 else "fine")
    p = outbox.start("run")
    wait_until(lambda: len(nats.read(stream)) == 90, 20, "all others")
    wait_until(lambda: parked(outbox) == 10, 20, "the others wait")
    assert p.alive and dead(outbox) == []
    nats.stream(f"NONE_{stream}")
    wait_until(lambda: len(nats.read(f"NONE_{stream}")) == 10, 40, "the blocked ones too", every=0.1)
    assert p.stop() == 0
    assert outbox.json("status", "--json")[0]["failed"] == 0


def test_a_plain_responder_is_not_a_stream(outbox, nats):
    """Somebody who answers on the subject has not stored it: 'delivered' would lose the event."""
    db = prepare(outbox, nats.url, "service.echo")
    insert(db, "a", 1)
    with nats.client() as c:
        c.subscribe("service.echo")
        p = outbox.start("run")
        for _ in range(3):  # blocked, and probed with the same event again and again
            m = c.next()
            assert m.json()["n"] == 1
            c.publish(m.reply, b'{"ok":true}')
    assert p.stop() == 0
    assert outbox.json("status", "--json")[0]["published"] == 0


def test_a_deleted_stream_is_made_again(outbox, nats):
    stream = nats.stream()
    declared = f"declare: create, streams: [{{name: {stream}, subjects: ['{stream}.>'], duplicate_window: 5m}}]"
    db = prepare(outbox, nats.url, f"{stream}.x", sink=declared)
    p = outbox.start("run")
    insert(db, "a", 1)
    wait_until(lambda: len(nats.read(stream)) == 1, 20)
    with nats.client() as c:
        c.delete(stream)
    insert(db, "a", 2)
    wait_until(lambda: numbers(nats.read(stream)) == [2], 40, "in the new one", every=0.1)
    with nats.client() as c:
        assert c.stream_info(stream)["config"]["duplicate_window"] == 300 * 10**9
    assert p.stop() == 0 and dead(outbox) == []


def test_streams_from_json_files(outbox, nats):
    name = f"FILE{os.getpid()}"
    path = outbox.write("stream.json", json.dumps({"name": name, "subjects": [f"{name}.*"], "replicas": 1, "storage": "memory"}))
    db = prepare(outbox, nats.url, f"{name}.x", sink=f"stream_files: ['{path}'], declare: create")
    insert(db, "a", 1)
    outbox.run("run", "--once")
    with nats.client() as c:
        config = c.stream_info(name)["config"]
    assert config["storage"] == "memory" and config["subjects"] == [f"{name}.*"]
    assert numbers(nats.read(name)) == [1]


def test_a_stream_with_an_unknown_field_is_refused(outbox, nats):
    path = outbox.write("stream.json", '{"name": "X", "subjects": ["x"], "replica": 3}')
    prepare(outbox, nats.url, "x", sink=f"stream_files: ['{path}'], declare: create")
    r = outbox.run("run", "--once", check=None)
    assert r.returncode != 0 and "stream.json:1:" in r.err and "replica" in r.err


def test_another_stream_than_expected_is_blocked(outbox, nats):
    stream, other = nats.stream(), nats.stream()
    db = prepare(outbox, nats.url, f"{stream}.x", route=f"stream: {other}")
    insert(db, "a", 1)
    p = outbox.start("run")
    wait_until(lambda: parked(outbox) == 1, 20)
    assert p.stop() == 0 and dead(outbox) == [] and nats.read(stream) == []


def test_the_stream_of_a_prefix(outbox, nats):
    stream = nats.stream()
    db = prepare(outbox, nats.url, f"{stream}.a.b", sink=f"stream_prefixes: {{{stream}: WRONG, {stream}.a: {stream}}}")
    insert(db, "a", 1)
    outbox.run("run", "--once")
    (m,) = nats.read(stream)
    assert dict(m.headers)["Nats-Expected-Stream"] == stream


def test_larger_than_max_payload_is_rejected_before_it_is_sent(outbox, nats):
    stream = nats.stream()
    db = prepare(outbox, nats.url, f"{stream}.x")
    insert(db, "a", 1)
    insert(db, "a", 2, payload=json.dumps({"key": "a", "n": 2, "x": "y" * (1 << 20)}))
    insert(db, "a", 3)
    r = outbox.run("run", "--once")
    assert numbers(nats.read(stream)) == [1, 3]
    (row,) = dead(outbox)
    assert "max_payload" in row["error"] and "sink.down" not in r.err


def test_users_and_permissions(outbox, own_nats):
    """A publish that is not permitted has no answer but an error of the connection: its events wait, the others flow."""
    server = own_nats("--users")
    with server.client(user="app", password="secret") as c:
        c.stream("OK", "ok.>", "forbidden.>")
    routes = 'match: {type: fine}}, {topic: "forbidden.x"'
    db = prepare(outbox, server.url, "ok.x", sink="user: reader, password: secret", route=routes)
    for n in range(20):
        insert(db, f"k{n}", n, type="lost" if n == 5 else "fine")
    p = outbox.start("run")

    def arrived():
        with server.client(user="app", password="secret") as c:
            return len(c.read("OK")) == 19

    wait_until(arrived, 20)
    wait_until(lambda: parked(outbox) == 1, 20)
    assert p.stop() == 0 and dead(outbox) == []
    prepare(outbox, server.url, "ok.x", sink="user: reader, password: wrong")
    r = outbox.run("check", check=1)
    assert "Authorization" in r.out


def test_nkeys_and_mutual_tls(outbox, own_nats):
    server = own_nats("--mtls", "--nkey")
    tls, seed = server.env["NATS_TLS"], server.env["NATS_SEED"]
    public = json.loads((pathlib.Path(server.dir) / "made.json").read_text())["nkey"]
    who = f"nkey: {public}, nkey_seed: '{seed}'"
    full = f"{who}, ca: '{tls}/ca.crt', cert: '{tls}/client.crt', key: '{tls}/client.key'"
    declared = ", declare: create, streams: [{name: S, subjects: [s.x]}]"
    db = prepare(outbox, server.url, "s.x", sink=full + declared)
    insert(db, "a", 1)
    outbox.run("run", "--once")
    assert db.execute("select count(*) from outbox_event").fetchone()[0] == 1
    assert outbox.json("status", "--json")[0]["published"] == 1
    for sink, what in ((who, "the CA is unknown"), (f"{who}, ca: '{tls}/ca.crt'", "no client certificate")):
        prepare(outbox, server.url, "s.x", sink=sink)
        r = outbox.run("check", check=1)
        assert "cannot connect" in r.out, what
    prepare(outbox, server.url.replace("127.0.0.1", "localhost"), "s.x", sink=f"{full}, tls_name: other.example")
    assert "cannot connect" in outbox.run("check", check=1).out


def test_check_says_what_to_fix(outbox, nats):
    """Trap 24: the duplicate window is two minutes unless set: shorter than an outage."""
    stream = nats.stream()
    prepare(outbox, nats.url, f"{stream}.x")
    r = outbox.run("check", check=1)
    assert f"stream {stream} forgets message ids after 120 s" in r.out and "duplicate window" in r.out
    with nats.client() as c:
        c.update(stream, duplicate_window=3600 * 10**9)
    r = outbox.run("check")
    assert f"subject {stream}.x is taken by a stream" in r.out
    prepare(outbox, nats.url, "nobody.x", sink="streams: [{name: NOT_THERE, subjects: [q]}]")
    r = outbox.run("check", check=1)
    assert "stream NOT_THERE: there is none" in r.out and "no stream takes subject nobody.x" in r.out
    prepare(outbox, "nats://127.0.0.1:1", "x")
    assert "cannot connect to NATS" in outbox.run("check", check=1).out


@pytest.mark.slow
def test_the_leader_of_a_cluster_is_killed(outbox, own_nats):
    server = own_nats(nodes=3)
    with server.client() as c:
        wait_until(lambda: "error" not in c.request(
            "$JS.API.STREAM.CREATE.C", {"name": "C", "subjects": ["c.x"], "num_replicas": 3, "storage": "file"}, check=False), 30, "a cluster")
        leader = wait_until(lambda: c.stream_info("C")["cluster"].get("leader"), 20)
    node = int(leader[1:])
    db = prepare(outbox, server.url, "c.x", more="    publish_timeout: 3s")
    p = outbox.start("run")
    for n in range(300):
        insert(db, f"k{n % 4}", n)
        if n == 150:
            server.stop(node=node, kill=True)
    other = 0 if node != 1 else 1
    got = []

    def all_of_them():
        try:
            got[:] = server.read("C", other)
        except TimeoutError:
            pass  # the cluster votes
        return len(got) >= 300

    wait_until(all_of_them, 90, "all of them", every=0.3)
    assert p.stop() == 0 and dead(outbox) == []
    for key in range(4):
        assert numbers(got, f"k{key}") == list(range(key, 300, 4))
