# SPDX-License-Identifier: Apache-2.0
"""test_kafka_check - what `check` and the relay say of topics that cannot be made or have no possible
name, take less than we send or have too few replicas; and that no secret of the client library is shown."""

import time

import pytest

from helpers import SLOW, wait_until
from test_kafka import ONE, config, emit, status

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


def test_a_name_that_no_topic_can_have(outbox, kafka):
    topic = kafka.topic()
    config(outbox, kafka, routes=f"[{{match: {{type: 'new.*'}}, topic: orders/new}}, {{topic: {topic}}}]")
    [(what, fix)] = problems(outbox)
    assert "'orders/new' is no name for a topic" in what and "dead" in fix
    assert "can be written to" not in outbox.run("check", check=1).out


def test_limits_and_replicas_on_one_broker(outbox, kafka):
    small, lonely, fine = kafka.topic(max_message_bytes=50000), kafka.topic(partitions=2, min_insync_replicas=2), kafka.topic()
    config(outbox, kafka, small, sink="max_message: 60000")
    assert problems(outbox) == [
        (f"max_message is 60000, topic {small} takes 50000 bytes", f"raise max.message.bytes of {small}, or lower max_message")]
    config(outbox, kafka, small, sink="max_message: 50000")
    outbox.run("check")
    config(outbox, kafka, lonely)
    [(what, fix)] = problems(outbox)
    assert what == f"topic {lonely}: of 2 partitions 0 have no leader, 2 too few replicas in sync" and "start the brokers" in fix
    config(outbox, kafka, fine)  # with one broker one replica is all there is: nothing to say
    outbox.run("check")


def test_secrets_among_the_properties(outbox):
    """Neither the text nor the JSON of what was read shows one, nor what is said of brokers that are not there; what is beside
    them is shown. OAuth needs a library that was built with it: else the property is refused, without its value."""
    outbox.env["THE_SECRET"] = "opensesame"
    several = ("ssl.key.pem", "ssl.keystore.password", "sasl.oauthbearer.config")
    commands = (["check", "--explain"], ["check", "--explain", "--json"], ["check"], ["run", "--once"])
    for names, argv in [(several, c) for c in commands] + [(("sasl.oauthbearer.client.secret",), commands[0])]:
        secrets = ", ".join(f"{name}: '${{THE_SECRET}}'" for name in names)
        outbox.write("outbox.yaml", ONE.format(
            brokers="127.0.0.1:1", routes="[{topic: t}]", more="", sink=f", properties: {{{secrets}, linger.ms: 7}}"))
        p = outbox.start(*argv)
        wait_until(lambda p=p: not p.alive or "sink.down" in p.err, 30, "it ends, or waits for the brokers")
        p.kill()
        assert "opensesame" not in p.out + p.err, argv
        lacking = p.popen.returncode == 78 and len(names) == 1 and "not supported in this build" in p.err
        if "--explain" in argv and not lacking:
            assert all(name in p.out for name in names) and p.out.count("(hidden)") == len(names) and "7" in p.out, p.out + p.err
