# SPDX-License-Identifier: Apache-2.0
"""test_nats_subjects - rows that name subjects of the server's own: no event administers NATS or answers in the server's place."""

import json

import pytest

from helpers import wait_until
from test_nats import dead, insert, numbers, prepare


def fill(nats):
    """A stream with one message, which an attacker wants to remove."""
    stream = nats.stream(None, duplicate_window=3600 * 10**9)
    with nats.client() as c:
        c.publish(f"{stream}.x", json.dumps({"key": "a", "n": -1}).encode(), headers={"Nats-Msg-Id": f"{stream}-kept"})
        wait_until(lambda: c.stream_info(stream)["state"]["messages"] == 1, 10)
    return stream


HOSTILE = [
    "$JS.API.STREAM.DELETE.{stream}", "$JS.API.STREAM.PURGE.{stream}", "$JS.API.STREAM.MSG.DELETE.{stream}", "$JS.ACK.{stream}.c.1.1.1.1.1",
    "$SYS.REQ.SERVER.PING", "$KV.bucket.key", "$anything", "_INBOX.x", "_INBOX", "_INBOX_other.x", "_R_.x", "_GR_.x", "answers.here", "answers.here.x",
    "{stream}.*", "{stream}.>", ">", "{stream}..x", ".{stream}.x", "{stream}.", "{stream}.a b", "{stream}.a\r\nPUB {stream}.x 1\r\n1", "{stream}.\t",
]


@pytest.mark.parametrize("dlt", [False, True])
def test_an_event_does_not_administer_the_server(outbox, nats, dlt):
    """Each hostile row is dead with its reason, also as a dead letter; the others are delivered and the stream keeps what it had."""
    stream = fill(nats)
    more = "    dlt: on" if dlt else ""
    db = prepare(outbox, nats.url, "${topic}", sink="inbox_prefix: answers.here", more=more)
    for n, topic in enumerate(HOSTILE):
        insert(db, f"h{n}", n, topic=topic.format(stream=stream))
    with nats.client() as c:
        for spy in ("$SYS.>", "$KV.>", "$anything", "_INBOX.x", "_INBOX_other.>", "_R_.>", "_GR_.>", "answers.here", "answers.here.x"):
            c.subscribe(spy)
        insert(db, "good", 100, topic=f"{stream}.x")
        p = outbox.start("run")
        wait_until(lambda: len(dead(outbox)) == len(HOSTILE), 30, "all of them dead", every=0.1)
        wait_until(lambda: len(nats.read(stream)) == 2, 20, "the good one", every=0.1)
        if dlt:
            wait_until(lambda: "dlt.waits" in p.err, 20, "the dead letters are refused too")
        assert p.stop() == 0
        c.publish("$anything", b"end")
        assert c.next().data == b"end"  # nothing else reached a subject of the server
    assert numbers(nats.read(stream)) == [-1, 100]
    for row in dead(outbox):
        topic, error = HOSTILE[int(row["key"][1:])], row["error"]
        reserved = topic.startswith(("$", "_", "answers."))
        assert ("allow_subjects" in error) == reserved, (topic, error)
        assert reserved or "NATS subject" in error or "control character" in error, (topic, error)


@pytest.mark.parametrize("route", ["$JS.API.STREAM.${type}.%s", "${type}"])
def test_templates_are_checked_too(outbox, nats, route):
    stream = fill(nats)
    db = prepare(outbox, nats.url, route % stream if "%s" in route else route)
    insert(db, "a", 1, type="DELETE" if "%s" in route else f"$JS.API.STREAM.DELETE.{stream}")
    outbox.run("run", "--once")
    (row,) = dead(outbox)
    assert "allow_subjects" in row["error"]
    assert numbers(nats.read(stream)) == [-1]


def test_check_does_not_administer_the_server(outbox, nats):
    """`check` asks for rights with an empty message, which would be a request to the API."""
    stream = fill(nats)
    topic = f"$JS.API.STREAM.DELETE.{stream}"
    for sink, problems in (("name: x", 1), (f"allow_subjects: ['{topic}']", 0)):
        prepare(outbox, nats.url, topic, sink=sink)
        r = outbox.run("check", check=None)
        assert ("is reserved" in r.out) == bool(problems) and numbers(nats.read(stream)) == [-1]


def test_an_allowed_request_is_sent_once(outbox, nats):
    """Its answer is no acknowledgement: the event is dead, and is not sent again."""
    stream, other = fill(nats), fill(nats)
    purge = f"$JS.API.STREAM.PURGE.{stream}"
    db = prepare(outbox, nats.url, "${topic}", sink=f"allow_subjects: ['$JS.API.STREAM.PURGE.{stream}', '$KV.>']")
    insert(db, "a", 1, topic=purge, payload="{}")
    insert(db, "b", 2, topic=f"$JS.API.STREAM.PURGE.{other}", payload="{}")
    with nats.client() as c:
        c.subscribe(purge)
        c.stream(f"KV_{stream}", f"$KV.{stream}.>")
        insert(db, "c", 3, topic=f"$KV.{stream}.price")
        outbox.run("run", "--once")
        assert c.next().data == b"{}"
        c.publish(purge + ".end", b"")
        assert [numbers(nats.read(s)) for s in (stream, other, f"KV_{stream}")] == [[], [-1], [3]]
        with pytest.raises(OSError):
            c.sock.settimeout(0.3)
            c.next()
    errors = {row["key"]: row["error"] for row in dead(outbox)}
    assert sorted(errors) == ["a", "b"]
    assert "io.nats.jetstream.api.v1.stream_purge_response" in errors["a"] and "allow_subjects" in errors["b"]


@pytest.mark.parametrize("chain", [False, True])
def test_a_stream_of_a_row_is_a_name(outbox, nats, chain):
    """single_writer asks the API for the stream by its name: a name with spaces or dots would be another request."""
    stream = fill(nats)
    streams = [f"{stream} x 0", f"{stream}.x", f"{stream}\r\nx: y", ">", "*", "a/b", "x" * 300]
    db = prepare(outbox, nats.url, f"{stream}.x", sink="single_writer: true" if chain else "", route="stream: '${tenant}'")
    for n, name in enumerate(streams):
        insert(db, f"h{n}", n, tenant=name)
    insert(db, "good", 100, tenant=stream)
    outbox.run("run", "--once")
    assert len(dead(outbox)) == len(streams) and all("stream" in row["error"] for row in dead(outbox))
    assert numbers(nats.read(stream)) == [-1, 100]


def test_an_inbox_prefix_is_checked_when_the_file_is_read(outbox, nats):
    for prefix in ("a..b", "a.*", "a b", "x" * 41, "$JS.API"):
        outbox.write("outbox.yaml", outbox_yaml(nats.url, prefix))
        r = outbox.run("check", check=78)
        assert "outbox.yaml:5:" in r.err and "inbox_prefix" in r.err


def outbox_yaml(url, prefix):
    return f"""
pipelines:
  p:
    source: {{type: sqlite, path: app.db}}
    sink: {{type: nats, url: "{url}", inbox_prefix: "{prefix}"}}
"""
