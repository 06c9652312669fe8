# SPDX-License-Identifier: Apache-2.0
"""test_nats - from SQLite to NATS JetStream on a real server, read back by a client written from the protocol."""

import json
import os
import pathlib
import time

import pytest

from helpers import SLOW, wait_until
from proxies import Refuse

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


ORDERS = {
    "Nats-Expected-Last-Sequence": "77", "nats-expected-last-msg-id": "nobody", "Nats-Expected-Stream": "OTHER", "Nats-Msg-Id": "taken",
    "Nats-Rollup": "all", "NATS-TTL": "1s", "Nats-Expected-Last-Subject-Sequence": "9",
}


@pytest.mark.parametrize("chain", [False, True])
def test_headers_of_the_server_are_left_out(outbox, nats, chain):
    """What begins with Nats- is an order: to wait for another message, to drop all before it, to be a duplicate of another. From a row or a
    route it is not sent, and each name is told once."""
    stream = nats.stream(None, allow_rollup_hdrs=True)
    sink = chained(stream) if chain else ""
    db = prepare(outbox, nats.url, f"{stream}.x", sink=sink, route="headers: {Nats-Rollup: sub, x-route: r}")
    for n in range(20):
        insert(db, f"k{n % 4}", n, headers=json.dumps({**ORDERS, "x-row": str(n)}))
    r = outbox.run("run", "--once")
    got = nats.read(stream)
    assert sorted(numbers(got)) == list(range(20))
    for m in got:
        headers = [h for h in m.headers if not (chain and h[0].startswith("Nats-Expected-"))]
        assert sorted(headers) == [("Nats-Msg-Id", m.id), ("x-route", "r"), ("x-row", str(m.json()["n"]))] and m.id != "taken"
    told = [line for line in r.err.splitlines() if "sink.nats.header" in line]
    assert sorted(line.split("header=")[1].split()[0] for line in told) == sorted(ORDERS)
    assert outbox.json("status", "--json")[0]["failed"] == 0 and dead(outbox) == []


@pytest.mark.parametrize("code", [10070, 10071])
def test_what_expects_another_message_is_an_attempt(outbox, nats, code):
    """Nobody asked for a chain, so it is an error of this event as any other: it spends attempts, says why and is dead in the end."""
    stream = nats.stream()
    proxy = Refuse(nats.ports[0], lambda frame: {"code": 400, "err_code": code, "description": "wrong last"} if b'"n": 3' in frame else None)
    more = "    retry: {first: 50ms, max: 50ms}\n    max_attempts: 3"
    db = prepare(outbox, f"nats://127.0.0.1:{proxy.address}", f"{stream}.x", more=more)
    for n in range(6):
        insert(db, f"k{n}", n)
    p = outbox.start("run")
    (row,) = wait_until(lambda: dead(outbox), 20, "it is dead", every=0.1)
    assert p.stop() == 0
    proxy.close()
    assert row["attempts"] == 3 and str(code) in row["error"]
    assert sorted(numbers(nats.read(stream))) == [0, 1, 2, 4, 5]


@pytest.mark.parametrize("error", [{"code": 409, "err_code": 10158}, {"code": 429, "err_code": 10167}, {"code": 429, "err_code": 19999}], ids=str)
def test_a_server_that_is_busy_costs_no_attempt(outbox, nats, error):
    """The same id is just being stored, or there are too many requests: it goes again when that is over."""
    stream = nats.stream()
    left = [4]

    def decide(frame):
        if b'"n": 3' in frame and left[0] > 0:
            left[0] -= 1
            return {**error, "description": "busy"}
        return None

    proxy = Refuse(nats.ports[0], decide)
    db = prepare(outbox, f"nats://127.0.0.1:{proxy.address}", f"{stream}.x", more="    max_attempts: 2")
    for n in range(6):
        insert(db, "a", n)
    p = outbox.start("run")
    wait_until(lambda: len(nats.read(stream)) == 6, 30, "all of them", every=0.1)
    assert p.stop() == 0 and left == [0]
    proxy.close()
    assert numbers(nats.read(stream)) == list(range(6))
    assert outbox.json("status", "--json")[0]["failed"] == 0 and dead(outbox) == []


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


@pytest.mark.parametrize("limit", ["server", "option", "option, chained"])
def test_the_largest_message_is_as_the_server_says(outbox, nats, limit):
    """One byte less, exactly, and one more: counted with the headers that are sent and no others."""
    stream = nats.stream()
    size = 1 << 20 if limit == "server" else 5000
    sink = "" if limit == "server" else f"max_payload: {size}"
    if limit == "option, chained":
        sink = chained(stream, size)
    db = prepare(outbox, nats.url, f"{stream}.x", sink=sink, route=f"stream: {stream}, headers: {{x-route: r}}")
    id_ = "01900000-0000-7000-8000-00000000000"
    for n in range(3):
        headers = {"Nats-Msg-Id": f"{id_}{n}", "Nats-Expected-Stream": stream, "x-route": "r"}
        if "chained" in limit:
            headers["Nats-Expected-Last-Sequence"] = str(n)
            if n > 0:
                headers["Nats-Expected-Last-Msg-Id"] = f"{id_}{n - 1}"
        head = len("NATS/1.0\r\n\r\n") + sum(len(f"{k}: {v}\r\n") for k, v in headers.items())
        empty = json.dumps({"key": "a", "n": n, "x": ""})
        insert(db, "a", n, id=f"{id_}{n}", payload=empty.replace('""', '"%s"' % ("y" * (size - head - len(empty) + n - 1))))
    outbox.run("run", "--once")
    got = nats.read(stream)
    assert numbers(got) == [0, 1]
    (row,) = dead(outbox)
    assert f"too large: {size + 1} bytes with headers, max_payload is {size}" in row["error"]


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


def test_check_sees_who_may_not_publish(outbox, own_nats):
    """Asked with a message that every stream refuses: nothing is stored, wherever it goes."""
    server = own_nats("--users")
    who = {"user": "app", "password": "secret"}
    with server.client(**who) as c:
        c.stream("OK", "ok.>", "forbidden.>", duplicate_window=3600 * 10**9)
        c.stream("WORK", "work", retention="workqueue", duplicate_window=3600 * 10**9)
    routes = 'match: {type: fine}}, {match: {type: work}, topic: work}, {topic: "forbidden.x"'
    prepare(outbox, server.url, "ok.x", sink="user: reader, password: secret", route=routes)
    r = outbox.run("check", check=1)
    for subject in ("ok.x", "work"):
        assert f"subject {subject}: this user may publish to it" in r.out
    assert 'subject forbidden.x: this user may not publish to it: ' in r.out and "Permissions Violation" in r.out
    assert 'publish: {allow: ["forbidden.x"' in r.out and "1 problem" in r.out and "can be written to" not in r.out
    prepare(outbox, server.url, "ok.x", sink="user: app, password: secret", route=routes)
    r = outbox.run("check")
    assert "subject forbidden.x: this user may publish to it" in r.out
    with server.client(**who) as c:
        for stream in ("OK", "WORK"):
            state = c.stream_info(stream)["state"]
            assert (state["messages"], state["last_seq"]) == (0, 0)


def test_check_sees_who_cannot_hear(outbox, own_nats):
    deaf = 'authorization { users: [{user: app, password: secret}, {user: deaf, password: secret, permissions: {subscribe: ["_INBOX.>"]}}] }'
    server = own_nats(conf=[deaf])
    with server.client(user="app", password="secret") as c:
        c.stream("OK", "ok.>", duplicate_window=3600 * 10**9)
    prepare(outbox, server.url, "ok.x", sink="user: deaf, password: secret, inbox_prefix: _ANSWERS")
    r = outbox.run("check", check=1)
    assert "acknowledgements cannot be heard" in r.out and 'subscribe: {allow: ["_ANSWERS.>"]}' in r.out


def test_check_ends_well_while_answers_still_come(outbox, own_nats):
    """The stream is silent and another program answers, with much more than was asked for: libnats is reading it when `check` has
    heard enough. A subscription that goes before the thread which reads ends or hangs the process."""
    server = own_nats(conf=["max_pending: 256MB"])
    prepare(outbox, server.url, "quiet.x")
    # What is freed is spoilt. libnats does not free the half of a message that it has read when it is closed.
    env = {"MALLOC_PERTURB_": "165", "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "").replace("detect_leaks=1", "detect_leaks=0")}
    with server.client() as c, server.client() as other:
        c.stream("QUIET", "quiet.>", no_ack=True, duplicate_window=3600 * 10**9)
        other.subscribe("quiet.x")
        for _ in range(10):
            p = outbox.start("check", env=env)
            inbox = other.next().reply.encode()
            more = b"PUB " + inbox + b" 16000\r\n" + b"x" * 16000 + b"\r\n"
            other.send(b"PUB " + inbox + b" 1\r\nx\r\n" + more * 4000)
            assert p.wait() == 0, p.out + p.err
            assert "no right is missing, as far as is known" in p.out


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


@pytest.mark.parametrize("kind", ["credentials", "token"])
def test_credentials_and_token(outbox, own_nats, kind):
    """A .creds file of a user of an account, and a token; with another one `check` says that the server refuses."""
    server = own_nats(*(["--creds"] if kind == "credentials" else ["--token", "s3cret"]))
    good = f"credentials: '{server.env['NATS_CREDS']}'" if kind == "credentials" else "token: s3cret"
    declared = ", declare: create, streams: [{name: S, subjects: [s.x], duplicate_window: 1h}]"
    db = prepare(outbox, server.url, "s.x", sink=good + declared)
    insert(db, "a", 1)
    outbox.run("run", "--once")
    with server.client(**({"creds": server.env["NATS_CREDS"]} if kind == "credentials" else {"token": "s3cret"})) as c:
        assert numbers(c.read("S")) == [1]
    outbox.run("check")
    if kind == "credentials":  # the JWT of that user, the seed of another
        text = pathlib.Path(server.env["NATS_CREDS"]).read_text()
        seed = (pathlib.Path(server.dir) / "user.seed").read_text()
        other = own_nats("--nkey")
        wrong = outbox.write("other.creds", text.replace(seed, pathlib.Path(other.env["NATS_SEED"]).read_text()))
        bad = f"credentials: '{wrong}'"
    else:
        bad = "token: other"
    for sink in (bad, "name: nobody"):
        prepare(outbox, server.url, "s.x", sink=sink + declared)
        r = outbox.run("check", check=1)
        assert "cannot connect to NATS" in r.out and "Authorization" in r.out
    assert "s3cret" not in r.out


def test_a_password_in_the_url_is_never_shown(outbox, own_nats):
    server = own_nats(conf=["authorization { users: [{user: app, password: hunter77}] }"])
    good = f"nats://app:hunter77@127.0.0.1:{server.ports[0]}"
    declared = "declare: create, streams: [{name: S, subjects: [s.x], duplicate_window: 1h}]"
    db = prepare(outbox, good, "s.x", sink=declared)
    insert(db, "a", 1)
    outbox.run("run", "--once")
    assert outbox.json("status", "--json")[0]["published"] == 1
    said = ""
    for url in (good, good.replace("77@", "78@"), "nats://app:hunter77@127.0.0.1:1", good.replace("127.0.0.1:", "127.0.0.1:x"), "nats://app:hunter77"):
        prepare(outbox, url, "s.x", sink=declared)
        for args in (["check"], ["check", "--explain"], ["check", "--explain", "--json"], ["status"]):
            r = outbox.run(*args, check=None)
            said += r.out + r.err
        p = outbox.start("run")
        wait_until(lambda: url == good or "level=warn" in p.err or "level=error" in p.err or not p.alive, 20)
        p.kill()
        said += p.out + p.err
    assert "hunter7" not in said and "(hidden)" in said and "the url cannot be understood" in said


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
@pytest.mark.parametrize("chain", [False, True])
def test_the_leader_of_a_cluster_is_killed(outbox, own_nats, chain):
    server = own_nats(nodes=3)

    def asked(what, *args, node=0):
        """While a cluster votes nobody answers: asked anew, not waited for."""
        with server.client(node, timeout=2 * SLOW) as c:
            return getattr(c, what)(*args)

    create = {"name": "C", "subjects": ["c.x"], "num_replicas": 3, "storage": "file"}
    wait_until(lambda: asked("request", "$JS.API.STREAM.CREATE.C", create), 60, "a cluster", every=0.2)
    leader = wait_until(lambda: asked("stream_info", "C")["cluster"].get("leader"), 30)
    node = int(leader[1:])
    db = prepare(outbox, server.url, "c.x", sink="single_writer: true, stream_prefixes: {c: C}" if chain else "", more="    publish_timeout: 3s")
    p = outbox.start("run")
    for n in range(300):
        insert(db, f"k{n % 4}", n)
        if n == 150:
            server.stop(node=node, kill=True)
    other = 0 if node != 1 else 1
    wait_until(lambda: asked("stream_info", "C", node=other)["state"]["messages"] >= 300, 90, "all of them", every=0.3)
    got = wait_until(lambda: asked("read", "C", node=other), 60)
    assert p.stop() == 0 and dead(outbox) == []
    assert outbox.json("status", "--json")[0]["failed"] == 0  # nobody's attempt is spent
    for key in range(4):
        assert numbers(got, f"k{key}") == list(range(key, 300, 4))


def chained(stream, max_payload="1M"):
    return f"single_writer: true, max_payload: {max_payload}, stream_prefixes: {{{stream}: {stream}}}"


def test_a_chain_keeps_the_order_of_many_in_flight(outbox, nats):
    """single_writer: each names the one before it."""
    stream = nats.stream()
    db = prepare(outbox, nats.url, f"{stream}.x", sink=chained(stream))
    db.execute("begin")
    for n in range(2000):
        insert(db, f"k{n % 3}", n)
    db.execute("commit")
    outbox.run("run", "--once")
    got = nats.read(stream)
    assert numbers(got) == list(range(2000))
    names = [dict(m.headers) for m in got]
    assert "Nats-Expected-Last-Sequence" in names[0]
    linked = sum(h.get("Nats-Expected-Last-Msg-Id") == before["Nats-Msg-Id"] for before, h in zip(names, names[1:]))
    assert linked > 1000
    assert all(h["Nats-Expected-Last-Sequence"] == str(i) for i, h in enumerate(names))


@pytest.mark.parametrize("window_ms", [100, 120_000])
def test_a_chain_is_not_fooled_by_what_was_sent_before(outbox, nats, window_ms):
    """What an earlier connection left on its way is stored late, when we have just begun, and it is an event from the middle of ours. Those
    before it are neither lost nor overtaken, whether the stream still knows its id or not."""
    stream = nats.stream(None, duplicate_window=window_ms * 1_000_000)
    left = []

    def decide(frame):
        if not left and b"Nats-Msg-Id: " in frame:
            left.append(True)
            with nats.client() as c:
                c.publish(f"{stream}.x", payload.encode(), headers={"Nats-Msg-Id": id_})
                wait_until(lambda: c.stream_info(stream)["state"]["messages"] == 1, 10)
            time.sleep(window_ms / 1000 * 2 if window_ms < 1000 else 0)  # until the id is forgotten

    proxy = Refuse(nats.ports[0], decide)
    db = prepare(outbox, f"nats://127.0.0.1:{proxy.address}", f"{stream}.x", sink=chained(stream))
    db.execute("begin")
    for n in range(40):
        insert(db, "a", n)
    db.execute("commit")
    id_, payload = db.execute("select id, payload from outbox_event order by seq limit 1 offset 7").fetchone()
    p = outbox.start("run")
    wait_until(lambda: outbox.json("status", "--json")[0]["pending"] == 0, 30, every=0.1)
    assert p.stop() == 0 and dead(outbox) == []
    proxy.close()
    assert left and numbers(nats.read(stream)) == [7] + [n for n in range(40) if n != 7]


def test_a_failure_in_mid_chain(outbox, nats):
    """A stream that is full in the middle: what stands behind is not stored, and goes in order when there is room."""
    stream = nats.stream(None, max_msgs=150, discard="new")
    db = prepare(outbox, nats.url, f"{stream}.x", sink=chained(stream))
    db.execute("begin")
    for n in range(400):
        insert(db, "a", n)
    db.execute("commit")
    p = outbox.start("run")
    wait_until(lambda: len(nats.read(stream)) == 150, 20)
    with nats.client() as c:
        c.update(stream, max_msgs=10000)
    wait_until(lambda: len(nats.read(stream)) == 400, 40, "the rest", every=0.1)
    assert p.stop() == 0 and dead(outbox) == []
    assert numbers(nats.read(stream)) == list(range(400))
    assert outbox.json("status", "--json")[0]["failed"] == 0


def test_a_chain_goes_on_behind_one_that_is_rejected(outbox, nats):
    """The server refuses one for its size, and nothing new comes that would set the chain going again."""
    stream = nats.stream(None, max_msg_size=400)
    db = prepare(outbox, nats.url, f"{stream}.x", sink=chained(stream))
    db.execute("begin")
    for n in range(60):
        insert(db, "a", n, **({"payload": json.dumps({"key": "a", "n": n, "x": "y" * 500})} if n == 30 else {}))
    db.execute("commit")
    r = outbox.run("run", "--once")
    assert numbers(nats.read(stream)) == [n for n in range(60) if n != 30]
    assert len(dead(outbox)) == 1 and "sink.nats.foreign" not in r.err
    assert outbox.json("status", "--json")[0]["parked"] == 0


def test_a_chain_with_a_subject_that_is_not_permitted(outbox, own_nats):
    """Its only answer is an error of the connection; what stands behind it in the chain is not stored, and goes again."""
    server = own_nats("--users")
    with server.client(user="app", password="secret") as c:
        c.stream("OK", "ok.>", "forbidden.>")
    sink = "user: reader, password: secret, single_writer: true, stream_prefixes: {ok: OK, forbidden: OK}"
    db = prepare(outbox, server.url, "ok.x", sink=sink, route='match: {type: fine}}, {topic: "forbidden.x"')
    db.execute("begin")
    for n in range(40):
        insert(db, f"k{n}", n, type="lost" if n == 5 else "fine")
    db.execute("commit")
    p = outbox.start("run")

    def arrived():
        with server.client(user="app", password="secret") as c:
            return numbers(c.read("OK"))

    wait_until(lambda: len(arrived()) == 39, 20)
    wait_until(lambda: parked(outbox) == 1, 20)
    assert p.stop() == 0 and dead(outbox) == []
    assert sorted(arrived()) == [n for n in range(40) if n != 5]


@pytest.mark.parametrize("command", ["run", "check"])
def test_a_chain_has_one_shard_and_few_streams(outbox, nats, command):
    """What cannot work whatever the server has is a mistake in the file, told with its place."""
    prepare(outbox, nats.url, "x", sink="single_writer: true")
    text = outbox.path("outbox.yaml").read_text()
    outbox.write("outbox.yaml", text + "    shards: 2\n")
    r = outbox.run(command, check=78)
    assert "outbox.yaml:6:11: pipelines.p.sink: single_writer: " in r.err and "shards: 1" in r.err
    many = ", ".join(f"p{n}: S{n}" for n in range(33))
    outbox.write("outbox.yaml", text.replace("single_writer: true", f"single_writer: true, stream_prefixes: {{{many}, q: S0}}"))
    r = outbox.run(command, check=78)
    assert "at most 32 streams" in r.err and "outbox.yaml:6:" in r.err
    outbox.write("outbox.yaml", text.replace("single_writer: true", f"single_writer: false, stream_prefixes: {{{many}}}") + "    shards: 2\n")
    outbox.run("check", "--explain")


def test_check_sees_what_a_chain_has_no_stream_for(outbox, nats):
    stream = nats.stream(None, duplicate_window=3600 * 10**9)
    routes = f'match: {{type: a}}}}, {{match: {{type: b}}, topic: "{stream}.b", stream: {stream}}}, {{topic: "{stream}.c.x"'
    prepare(outbox, nats.url, f"{stream}.a", sink=f"single_writer: true, stream_prefixes: {{{stream}.c: {stream}}}", route=routes, more="    dlt: on")
    r = outbox.run("check", check=1)
    assert f"single_writer: subject {stream}.a has no stream" in r.out and "stream_prefixes" in r.out and "1 problem" in r.out
    prepare(outbox, nats.url, f"{stream}.${{type}}", sink="single_writer: true")
    r = outbox.run("check", check=1)
    assert "single_writer: a route names no stream" in r.out and "1 problem" in r.out
    prepare(outbox, nats.url, f"{stream}.${{type}}", sink=chained(stream))
    outbox.run("check")
    many = ", ".join(f'{{match: {{type: t{n}}}, topic: "{stream}.x", stream: S{n}}}' for n in range(32))
    prepare(outbox, nats.url, f"{stream}.x", sink="single_writer: true", route=f"stream: {stream}, match: {{type: t}}}}, {many[:-1]}")
    r = outbox.run("check", check=1)
    assert "single_writer: 33 streams; events of more than 32 would wait" in r.out


def test_check_compares_sizes(outbox, nats):
    stream = nats.stream(None, max_msg_size=5000, duplicate_window=3600 * 10**9)
    small = f"stream {stream} takes messages up to 5000 bytes"
    for size, says, code in (("0", f"{small}: larger ones will be rejected", 0), ("6000", f"{small}, max_payload is 6000", 1), ("4000", None, 0)):
        for how in (f"stream_prefixes: {{{stream}: {stream}}}", "name: by-topic"):
            prepare(outbox, nats.url, f"{stream}.x", sink=f"max_payload: {size}, {how}")
            r = outbox.run("check", check=code)
            assert r.out.count(small) == (says is not None) and (says or "") in r.out
    prepare(outbox, nats.url, f"{stream}.x", sink="max_payload: 2M")
    r = outbox.run("check", check=1)
    assert "max_payload is larger than the server's" in r.out and f"{small}, max_payload is 2097152" in r.out


# What a user may ask, what is then said to be out of sight, and whether that hides the stream's duplicate window.
LEAST = {
    "nothing": ([], ["the account's JetStream cannot be looked at", "streams cannot be listed"]),
    "account": (["$JS.API.INFO"], ["streams cannot be listed"]),
    "names": (["$JS.API.INFO", "$JS.API.STREAM.NAMES"], ["stream OK cannot be looked at"]),
    "all": (["$JS.API.INFO", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.INFO.OK"], []),
}


@pytest.mark.parametrize("may", LEAST)
def test_check_says_what_it_cannot_look_at(outbox, own_nats, may):
    """A user with few rights: no stream is said to be missing that only cannot be seen, and one that is missing is found by asking."""
    allowed, hidden = LEAST[may]
    allow = json.dumps(["ok.>", "none.>", *allowed])
    server = own_nats(conf=[f'authorization {{ users: [{{user: app, password: secret}}, {{user: few, password: secret, permissions: {{publish: {allow}}}}}] }}'])
    with server.client(user="app", password="secret") as c:
        c.stream("OK", "ok.>", duplicate_window=3600 * 10**9)
    prepare(outbox, server.url, "ok.x", sink="user: few, password: secret", route='match: {type: a}}, {topic: "none.x"')
    r = outbox.run("check", check=1)
    assert "no stream takes subject none.x" in r.out and "no stream takes subject ok.x" not in r.out
    assert "subject ok.x: this user may publish to it" in r.out
    for what in hidden:
        assert what in r.out
    assert f"{1 + len(hidden)} problem" in r.out and ("subject ok.x is taken by a stream" in r.out) == (not hidden)


def test_a_foreign_writer_is_an_alarm_and_not_a_loss(outbox, nats):
    stream = nats.stream()
    db = prepare(outbox, nats.url, f"{stream}.x", sink=chained(stream))
    p = outbox.start("run")
    for n in range(40):
        insert(db, "a", n)
        if n % 10 == 5:
            wait_until(lambda: len([m for m in nats.read(stream) if m.data != b"other"]) > n - 3, 20)
            with nats.client() as c:
                c.publish(f"{stream}.x", b"other", "")
                c.stream_info(stream)
    wait_until(lambda: len([m for m in nats.read(stream) if m.data != b"other"]) >= 40, 40, every=0.1)
    assert p.stop() == 0 and dead(outbox) == []
    assert numbers([m for m in nats.read(stream) if m.data != b"other"]) == list(range(40))
    assert "sink.nats.foreign" in p.err and outbox.json("status", "--json")[0]["failed"] == 0


@pytest.mark.slow
def test_a_chain_over_restarts_of_server_and_relay(outbox, own_nats):
    server = own_nats()
    stream = server.stream()
    db = prepare(outbox, server.url, f"{stream}.x", sink=chained(stream))
    p = outbox.start("run")
    n = 0
    for what in ("server", "relay", "server", "relay"):
        for _ in range(200):
            insert(db, f"k{n % 3}", n)
            n += 1
        if what == "server":
            server.stop(kill=True)
            server.start()
        else:
            p.kill()
            p = outbox.start("run")
    wait_until(lambda: len(server.read(stream)) >= n, 60, every=0.2)
    assert p.stop() == 0 and dead(outbox) == []
    got = numbers(server.read(stream))
    assert sorted(got) == list(range(n))
    for key in range(3):  # what waited comes back key by key
        assert [i for i in got if i % 3 == key] == list(range(key, n, 3))
