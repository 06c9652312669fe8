# SPDX-License-Identifier: Apache-2.0
"""test_sink_wire - the network side of every broker's options: TLS is never dropped silently, a mix of plain and TLS is refused, and
credentials that cross a network without TLS are a warning."""

import pytest

import test_kafka
import test_nats
import test_rabbitmq
from helpers import wait_until
from tls import Authority

CONFIG = """
pipelines:
  p:
    source: {{type: sqlite, path: app.db}}
    routes: [{{topic: t.x}}]
    sink: {{{sink}}}
"""


def write(outbox, sink):
    outbox.write("outbox.yaml", CONFIG.format(sink=sink))
    outbox.run("schema", "--apply", check=None)


# Sinks whose options contradict themselves, the column of what is wrong, and what the error says.
WRONG = {
    "nats, mixed": ('type: nats, url: "nats://u:hunter7@a,tls://h"', "url", "entry 2 uses TLS and entry 1 does not"),
    "nats, bare and TLS": ('type: nats, url: "a:4222, TLS://h"', "url", "entry 2 uses TLS and entry 1 does not"),
    "nats, scheme": ('type: nats, url: "http://u:hunter7@a"', "url", "must begin with nats:// or tls://"),
    "nats, denied": ('type: nats, url: "tls://a", tls: false', "tls", "contradicts a tls:// url"),
    "nats, denied with ca": ('type: nats, url: "nats://a", tls: no, ca: x.crt', "tls", "contradicts ca"),
    "rabbitmq, mixed": ('type: rabbitmq, url: "amqps://u:hunter7@a/,amqp://b/"', "url", "entry 1 uses TLS and entry 2 does not"),
    "rabbitmq, scheme": ('type: rabbitmq, url: "u:hunter7@a:5672"', "url", "must begin with amqp:// or amqps://"),
    "rabbitmq, ca": ('type: rabbitmq, url: "AMQP://a/", ca: x.crt', "ca", "write amqps://"),
    "rabbitmq, cert": ('type: rabbitmq, url: "amqp://a/", cert: x.crt, key: x.key', "cert", "write amqps://"),
    "kafka, mixed": ('type: kafka, brokers: "a:9092,SSL://b:9093"', "brokers", "entry 2 uses TLS and entry 1 does not"),
    "kafka, denied": ('type: kafka, brokers: "a:9092", tls: false, ca_file: x.crt', "tls", "contradicts ca_file"),
    "kafka, property": (
        'type: kafka, brokers: "a:9092", ca_file: x.crt, properties: {security.protocol: sasl_plaintext}', "security.protocol",
        "has no TLS and contradicts ca_file"),
    "nats, required": ('type: nats, url: "nats://127.0.0.1:4222", require_tls: true', "require_tls", "does not use TLS"),
    "rabbitmq, required": ('type: rabbitmq, url: "amqp://127.0.0.1/", require_tls: true', "require_tls", "does not use TLS"),
    "kafka, required": ('type: kafka, brokers: "127.0.0.1:9092", require_tls: true', "require_tls", "does not use TLS"),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("command", ["run", "check"])
def test_contradictions_are_refused_with_their_position(outbox, name, command):
    sink, option, says = WRONG[name]
    write(outbox, sink)
    line = outbox.path("outbox.yaml").read_text().splitlines()[5]
    column = line.index(f"{option}: ") + len(f"{option}: ") + 1
    r = outbox.run(command, check=78)
    assert f"outbox.yaml:6:{column}: " in r.err and says in r.err, r.err
    assert "hunter7" not in r.out + r.err


REQUIRED = [
    'type: nats, url: " TLS://a"', 'type: nats, url: "nats://a", ca: x.crt', 'type: rabbitmq, url: "AMQPS://a/"', 'type: kafka, brokers: a, tls: true',
    'type: kafka, brokers: "ssl://a"', 'type: kafka, brokers: a, properties: {security.protocol: SASL_SSL}', "type: file, path: x.jsonl",
]


@pytest.mark.parametrize("sink", REQUIRED)
def test_what_uses_tls_may_require_it(outbox, sink):
    write(outbox, sink + ", require_tls: true")
    outbox.run("check", "--explain")


# Sinks that log in at a host which is not this machine, and the same where nothing is exposed.
EXPOSED = [
    'type: nats, url: "nats://u:hunter7@broker.invalid"', "type: nats, url: nats://broker.invalid, user: u, password: hunter7",
    "type: nats, url: 'nats://127.0.0.1:1,nats://broker.invalid', token: hunter7", 'type: rabbitmq, url: "amqp://u:hunter7@broker.invalid/"',
    'type: kafka, brokers: "broker.invalid:9092", sasl: scram-sha-256, username: u, password: hunter7',
]
COVERED = [
    'type: nats, url: "tls://u:hunter7@broker.invalid"', 'type: nats, url: "nats://u:hunter7@127.0.0.1:1"', "type: nats, url: nats://broker.invalid",
    'type: rabbitmq, url: "amqps://u:hunter7@broker.invalid/"', 'type: rabbitmq, url: "amqp://u:hunter7@localhost:1/"',
    'type: kafka, brokers: "broker.invalid:9092", tls: true, sasl: plain, username: u, password: hunter7',
]


@pytest.mark.parametrize("sink", EXPOSED + COVERED)
def test_credentials_without_tls_are_a_warning(outbox, sink):
    """In `check`, and once in the log of every start; whatever the broker, and without the credentials."""
    write(outbox, sink)
    checking, p = outbox.start("check"), outbox.start("run")
    wait_until(lambda: "sink.down" in p.err, 30, "it has tried to connect")
    assert checking.wait(60) == 1
    p.kill()
    text = "credentials are sent to broker.invalid without TLS"
    expected = 1 if sink in EXPOSED else 0
    assert p.err.count(text) == expected and checking.out.count(text) == expected
    assert ("warning" in checking.out) == ("sink.plaintext" in p.err) == (sink in EXPOSED)
    assert "hunter7" not in checking.out + checking.err + p.out + p.err


@pytest.mark.parametrize("scheme", ["tls://", "TLS://", " tls://", "\\ttLs://"])
def test_nats_speaks_tls_however_it_is_written(outbox, own_nats, nats, scheme):
    """To a server without TLS there is no connection, to one with TLS there is; a certificate for another name is refused."""
    plain = scheme + nats.url.split("://")[1]
    test_nats.prepare(outbox, plain, "s.x")
    assert "cannot connect" in outbox.run("check", check=1).out
    server = own_nats("--mtls")
    tls = server.env["NATS_TLS"]
    own = f"ca: '{tls}/ca.crt', cert: '{tls}/client.crt', key: '{tls}/client.key', declare: create, streams: [{{name: S, subjects: [s.x], duplicate_window: 1h}}]"
    secure = scheme + server.url.split("://")[1]
    db = test_nats.prepare(outbox, secure, "s.x", sink=own)
    test_nats.insert(db, "a", 1)
    outbox.run("run", "--once")
    assert test_nats.numbers(server.read("S")) == [1]
    elsewhere = secure.replace("127.0.0.1", "127.1").replace("localhost", "127.1")  # the same server, and no name of its certificate
    test_nats.prepare(outbox, elsewhere, "s.x", sink=own)
    r = outbox.run("check", check=1)
    assert "cannot connect" in r.out and "mismatch" in r.out


def test_rabbitmq_speaks_tls_however_it_is_written(outbox, rabbit):
    exchange, queue = rabbit.exchange()
    port, ca = rabbit.env["RABBITMQ_TLS_PORT"], f"exchange: {exchange}, ca: {rabbit.env['RABBITMQ_TLS']}/ca.crt"
    db = test_rabbitmq.prepare(outbox, f" AMQPS://guest:guest@localhost:{port}/", ca)
    test_rabbitmq.insert(db, "a", 1)
    outbox.run("run", "--once")
    assert test_rabbitmq.numbers(rabbit.read(queue)) == [1]
    test_rabbitmq.prepare(outbox, f"amqps://guest:guest@127.1:{port}/", ca)
    assert "hostname verification failed" in outbox.run("check", check=1).out
    test_rabbitmq.prepare(outbox, f"amqps://guest:guest@localhost:{rabbit.port}/", ca)
    assert "cannot connect" in outbox.run("check", check=1).out


def test_kafka_with_a_ca_has_tls(outbox, kafka):
    """A listener without TLS: `ca_file` alone connected in plain text."""
    topic = kafka.topic()
    ca = outbox.path("ca.crt")
    Authority(outbox.dir)
    for sink in (f"ca_file: '{ca}'", f"properties: {{ssl.ca.location: '{ca}'}}"):
        test_kafka.config(outbox, kafka, topic, sink=sink)
        assert outbox.run("check", check=1, timeout=60).out.count("kafka at ") == 1
    test_kafka.config(outbox, kafka, topic, brokers=f" SSL://{kafka.brokers}")
    assert outbox.run("check", check=1, timeout=60).out.count("kafka at ") == 1
    test_kafka.config(outbox, kafka, topic, brokers=f" PLAINTEXT://{kafka.brokers}")
    outbox.run("check")
