# SPDX-License-Identifier: Apache-2.0
"""test_rabbitmq - from SQLite to RabbitMQ on a real server, read back by pika."""

import json
import re
import time

import pytest

from helpers import counted, wait_until
from proxies import Rename, Silent

CONFIG = """
log: {{level: debug}}
pipelines:
  p:
    source: {{type: sqlite, path: app.db}}
    sink: {{type: rabbitmq, url: "{url}", {sink}}}
    envelope: none
    routes: {routes}
{more}
"""


def prepare(outbox, url, sink, routes='[{topic: "${type}"}]', more=""):
    outbox.write("outbox.yaml", CONFIG.format(url=url, sink=sink, routes=routes, more=more))
    outbox.run("schema", "--apply")
    return outbox.sqlite("app.db")


def insert(db, key, n, **columns):
    row = {"type": "placed", "aggregate_id": key, "payload": json.dumps({"key": key, "n": n}), **columns}
    marks = ", ".join("?" for _ in row)
    db.execute(f"insert into outbox_event({', '.join(row)}) values ({marks})", list(row.values()))


def numbers(got, key=None):
    bodies = [json.loads(body) for _, _, body in got]
    return [b["n"] for b in bodies if key is None or b["key"] == key]


def dead(outbox):
    return outbox.json("dead", "list", "--json")


def status(outbox):
    return outbox.json("status", "--json")[0]


def test_a_message_has_its_properties(outbox, rabbit):
    exchange, queue = rabbit.exchange("placed")
    routes = '[{topic: "${type}", headers: {x-correlation-id: c-7, priority: "3", tenant: "${tenant}"}}]'
    db = prepare(outbox, rabbit.url, f"exchange: {exchange}, app_id: shop", routes)
    insert(db, "a", 1, tenant="t1", created_at=1_770_000_000_123)
    (event_id,) = db.execute("select id from outbox_event").fetchone()
    outbox.run("run", "--once")
    ((method, p, body),) = rabbit.read(queue)
    assert (method.exchange, method.routing_key) == (exchange, "placed")
    assert json.loads(body) == {"key": "a", "n": 1}
    assert (p.message_id, p.type, p.app_id, p.correlation_id) == (event_id, "placed", "shop", "c-7")
    assert (p.content_type, p.delivery_mode, p.priority, p.timestamp) == ("application/json", 2, 3, 1_770_000_000)
    assert p.headers == {"x-correlation-id": "c-7", "priority": "3", "tenant": "t1"}


def test_order_per_key(outbox, rabbit):
    exchange, queue = rabbit.exchange()
    db = prepare(outbox, rabbit.url, f"exchange: {exchange}")
    for n in range(300):
        insert(db, f"k{n % 7}", n)
    outbox.run("run", "--once")
    got = rabbit.read(queue)
    for key in range(7):
        assert numbers(got, f"k{key}") == list(range(key, 300, 7))


@pytest.mark.parametrize("meaning", ["reject", "retry", "deliver"])
def test_unroutable(outbox, rabbit, meaning):
    """Trap 18: an unroutable message is acknowledged, and a return comes before."""
    exchange, queue = rabbit.exchange("bound")
    more = "    retry: {first: 10ms, max: 20ms}\n    max_attempts: 3"
    db = prepare(outbox, rabbit.url, f"exchange: {exchange}, unroutable: {meaning}", more=more)
    insert(db, "a", 1, type="nobody")
    insert(db, "b", 2, type="bound")
    insert(db, "c", 3, type="nobody")
    r = outbox.run("run", "--once")
    assert numbers(rabbit.read(queue)) == [2]
    if meaning == "deliver":
        assert dead(outbox) == [] and r.err.count("sink.rabbitmq.unroutable") == 1
        assert counted(r.err, "unroutable") == 2 and counted(r.err, "published") == 3
        return
    if meaning == "retry":
        outbox.start("run")
        wait_until(lambda: len(dead(outbox)) == 2, 20, "both dead")
    rows = dead(outbox)
    assert [row["attempts"] for row in rows] == [1 if meaning == "reject" else 3] * 2
    assert all("no queue is bound" in row["error"] and "nobody" in row["error"] for row in rows)


def test_each_unroutable_event_has_its_own_reason(outbox, rabbit):
    """Returns come before confirms, and one confirm may be for many."""
    exchange, _ = rabbit.exchange("bound")
    db = prepare(outbox, rabbit.url, f"exchange: {exchange}")
    db.execute("begin")
    for n in range(2000):
        insert(db, f"k{n}", n, type=f"nobody.{n}")
    db.execute("commit")
    outbox.run("run", "--once")
    rows = dead(outbox)
    assert len(rows) == 2000
    for row in rows:
        assert f"for routing key nobody.{row['key'][1:]}" in row["error"] + " ", row


def test_a_missing_exchange_blocks_only_its_own_events(outbox, rabbit):
    """Traps 22, 61: the server closes the channel; the others flow, nothing is dead, and it goes on by itself."""
    exchange, queue = rabbit.exchange()
    missing = rabbit.name("missing")
    routes = f'[{{match: {{type: lost}}, topic: x, stream: {missing}}}, {{topic: y}}]'
    db = prepare(outbox, rabbit.url, f"exchange: {exchange}", routes)
    for n in range(200):
        insert(db, f"k{n}", n, type="lost" if n % 20 == 5 else "fine")
    p = outbox.start("run")
    wait_until(lambda: rabbit.depth(queue) == 190, 30, "all others")
    assert p.alive and dead(outbox) == []
    assert f"NOT_FOUND - no exchange '{missing}'" in p.err
    c = rabbit.connect()
    ch = c.channel()
    ch.exchange_declare(missing, "topic", durable=True)
    ch.queue_bind(queue, missing, "x")
    c.close()
    wait_until(lambda: rabbit.depth(queue) == 200, 40, "the blocked ones too")
    assert p.stop() == 0
    assert sorted(numbers(rabbit.read(queue))) == list(range(200))


def test_an_exchange_deleted_while_running_blocks_its_events(outbox, rabbit):
    """Trap 22: 404 closes the channel in mid-stream; what was not confirmed goes again, nothing is lost or dead."""
    exchange, queue = rabbit.exchange()
    second, second_queue = rabbit.exchange()
    routes = f'[{{match: {{type: second}}, topic: x, stream: {second}}}, {{topic: y}}]'
    db = prepare(outbox, rabbit.url, f"exchange: {exchange}", routes)
    insert(db, "a", 0, type="second")
    p = outbox.start("run")
    wait_until(lambda: rabbit.depth(second_queue) == 1, 30, "the first")
    c = rabbit.connect()
    c.channel().exchange_delete(second)
    c.close()
    db.execute("begin")
    for n in range(1, 300):
        insert(db, f"k{n}", n, type="second" if n % 50 == 7 else "fine")
    db.execute("commit")
    wait_until(lambda: rabbit.depth(queue) >= 293, 40, "all others")
    assert p.alive and dead(outbox) == []
    assert "sink.rabbitmq.channel_closed" in p.err and f"no exchange '{second}'" in p.err
    c = rabbit.connect()
    ch = c.channel()
    ch.exchange_declare(second, "topic", durable=True)
    ch.queue_bind(second_queue, second, "#")
    c.close()
    wait_until(lambda: rabbit.depth(second_queue) >= 7, 40, "the blocked ones too")
    assert p.stop() == 0
    assert set(numbers(rabbit.read(queue))) == {n for n in range(1, 300) if n % 50 != 7}
    assert set(numbers(rabbit.read(second_queue))) == {0, *(n for n in range(1, 300) if n % 50 == 7)}


def test_an_exchange_with_other_properties_blocks_only_its_own_events(outbox, rabbit):
    """406 when it is declared: nothing is routed in another way than was asked for, the others flow, and it goes on by itself."""
    other, other_queue = rabbit.exchange()
    exchange, queue = rabbit.name("typed"), rabbit.name("typedq")
    c = rabbit.connect()
    c.channel().exchange_declare(exchange, "direct", durable=True)
    c.close()
    routes = f'[{{match: {{type: other}}, topic: x, stream: {other}}}, {{topic: "a.b"}}]'
    sink = f"exchange: {exchange}, declare: create, queues: [{{name: {queue}, bind: ['a.*']}}]"
    db = prepare(outbox, rabbit.url, sink, routes)
    text = f"inequivalent arg 'type' for exchange '{exchange}' in vhost '/': received 'topic' but current is 'direct'"
    r = outbox.run("check", check=1)
    assert f"exchange {exchange}: 406 PRECONDITION_FAILED - {text}" in r.out and "exchange_type" in r.out
    for n in range(60):
        insert(db, f"o{n % 3}" if n % 2 else f"k{n % 3}", n, type="other" if n % 2 else "placed")
    p = outbox.start("run")
    wait_until(lambda: rabbit.depth(other_queue) == 30, 30, "all others")
    wait_until(lambda: text in p.err, 10, "said")
    wait_until(lambda: status(outbox)["parked"] >= 30, 20, "its own wait")
    assert p.alive and dead(outbox) == [] and status(outbox)["failed"] == 0 and rabbit.depth(queue) == 0
    assert p.err.count("sink.rabbitmq.refused") == 1, "one line, however often it is looked at"
    c = rabbit.connect()
    c.channel().exchange_delete(exchange)
    c.close()
    wait_until(lambda: rabbit.depth(queue) == 30, 40, "made anew, with its bindings")
    assert p.stop() == 0 and dead(outbox) == []
    got = rabbit.read(queue)
    for key in range(3):
        assert numbers(got, f"k{key}") == [n for n in range(key, 60, 3) if n % 2 == 0]


def test_a_queue_with_other_properties_is_said_and_bound(outbox, rabbit):
    """406 when it is declared: without its bindings events would be unroutable, and dead at once."""
    exchange, queue = rabbit.name("ex"), rabbit.name("otherq")
    c = rabbit.connect()
    c.channel().queue_declare(queue, durable=True, arguments={"x-message-ttl": 600000})
    c.close()
    sink = f"exchange: {exchange}, declare: create, queues: [{{name: {queue}, bind: ['#']}}]"
    db = prepare(outbox, rabbit.url, sink)
    for n in range(20):
        insert(db, "a", n)
    p = outbox.start("run")
    wait_until(lambda: rabbit.depth(queue) == 20, 30, "they arrive")
    assert f"inequivalent arg 'x-message-ttl' for queue '{queue}'" in p.err
    assert p.stop() == 0 and dead(outbox) == []
    assert numbers(rabbit.read(queue)) == list(range(20))
    r = outbox.run("check", check=1)
    assert f"queue {queue}: 406 PRECONDITION_FAILED" in r.out and "x-message-ttl" in r.out


def poisoned(port):
    """The server refuses a header CC that is not a list. The sink never sends one: the proxy makes it of the header qq."""
    return Rename(port, b"\x02qq", b"\x02CC")


RESERVED = ["CC", "BCC", "cc", "x-death", "X-First-Death-Queue", "x-last-death-reason", "x-received-from"]


def test_headers_of_the_server_are_left_out(outbox, rabbit):
    """Headers on which RabbitMQ acts: CC and BCC route to further queues or close the channel. From a row or a route they are not
    sent, with one warning per name, and the event arrives."""
    exchange, queue = rabbit.exchange("y")
    other = rabbit.exchange("somebody")[1]
    routes = '[{topic: y, headers: {BCC: somebody, x-route: r}}]'
    db = prepare(outbox, rabbit.url, f"exchange: {exchange}", routes)
    for n in range(20):
        insert(db, f"k{n}", n, headers=json.dumps({**{name: "somebody" for name in RESERVED}, "x-delay": "5", "x-row": str(n)}))
    r = outbox.run("run", "--once")
    got = rabbit.read(queue)
    assert sorted(numbers(got)) == list(range(20)) and rabbit.depth(other) == 0
    for _, p, body in got:
        assert p.headers == {"x-delay": "5", "x-route": "r", "x-row": str(json.loads(body)["n"])}
    told = [line.split("header=")[1].split()[0] for line in r.err.splitlines() if "sink.rabbitmq.header" in line]
    assert sorted(told) == sorted(RESERVED) and "channel_closed" not in r.err
    assert dead(outbox) == [] and status(outbox)["failed"] == 0


@pytest.mark.parametrize("failure", ["refused", "silent", "dns", "password", "vhost", "ca"])
def test_what_may_pass_is_down_and_tried_again(outbox, rabbit, failure):
    """Only a mistake in the configuration file is fatal. Each of these is reported with its reason, spends no attempt, and delivery
    begins when it is over."""
    exchange, queue = rabbit.exchange()
    user, vhost = rabbit.name("user"), rabbit.name("vhost")
    rabbit.ctl("add_user", user, "before")
    rabbit.ctl("set_permissions", user, ".*", ".*", ".*")
    proxy = Silent(rabbit.port)
    proxy.up, proxy.silent = failure != "refused", failure == "silent"
    login = f"{user}:after" if failure == "password" else "guest:guest"
    host = "outbox.invalid" if failure == "dns" else f"127.0.0.1:{proxy.address}"
    path = vhost if failure == "vhost" else ""
    url = f"amqp{'s' if failure == 'ca' else ''}://{login}@{host}/{path}"
    sink = "exchange: '', declare: off" if failure == "vhost" else f"exchange: {exchange}"
    db = prepare(outbox, url, f"{sink}, connect_timeout: 1s{', ca: missing.pem' if failure == 'ca' else ''}",
                 routes=f'[{{topic: {queue}}}]')
    insert(db, "a", 1)
    p = outbox.start("run")
    reason = {"refused": "RabbitMQ at 127.0.0.1", "silent": "timed out", "dns": "outbox.invalid", "password": "403 ACCESS_REFUSED",
              "vhost": "530 NOT_ALLOWED", "ca": "ca: missing.pem cannot be read"}[failure]
    wait_until(lambda: "msg=sink.down" in p.err, 20, "the sink is down")
    line = next(x for x in p.err.splitlines() if "msg=sink.down" in x)
    assert reason in line and "after" not in line, line
    assert failure != "password" or "check user and password" in line
    proxy.up, proxy.silent = True, False
    if failure == "password":
        rabbit.ctl("change_password", user, "after")
    if failure == "vhost":
        rabbit.ctl("add_vhost", vhost)
        rabbit.ctl("set_permissions", "-p", vhost, "guest", ".*", ".*", ".*")
        wait_until(lambda: "msg=sink.up" in p.err, 30, "the sink is up")
    elif failure not in ("dns", "ca"):
        wait_until(lambda: rabbit.depth(queue) == 1, 30, "delivered")
    assert p.alive and dead(outbox) == [] if failure != "vhost" else p.alive
    assert failure == "vhost" or status(outbox)["failed"] == 0
    proxy.close()


def test_a_publish_that_closes_the_channel_with_406_is_the_only_one_dead(outbox, rabbit):
    """The server refuses a header CC that is no list: that event never can be taken. The others are found not guilty."""
    exchange, queue = rabbit.exchange()
    proxy = poisoned(rabbit.port)
    routes = '[{match: {type: poison}, topic: x, headers: {qq: somebody}}, {topic: y}]'
    db = prepare(outbox, f"amqp://guest:guest@127.0.0.1:{proxy.address}/", f"exchange: {exchange}", routes, more="    order: pipelined")
    for n in range(200):
        insert(db, f"k{n}", n, type="poison" if n == 77 else "fine")
    outbox.run("run", "--once")
    (row,) = dead(outbox)
    assert "406 PRECONDITION_FAILED" in row["error"] and "CC" in row["error"] and row["attempts"] == 1
    assert set(numbers(rabbit.read(queue))) == set(range(200)) - {77}
    proxy.close()


def test_a_routing_key_that_may_not_be_written_blocks_itself_alone(outbox, rabbit):
    """403 by topic permissions: the channel is closed, others of the same exchange flow, and it goes on when it is allowed."""
    exchange, queue = rabbit.exchange(name=rabbit.name("app.topics"))
    rabbit.ctl("set_topic_permissions", "app", exchange, "^ok[.]", ".*")
    db = prepare(outbox, rabbit.url.replace("guest:guest", "app:secret"), f"exchange: {exchange}")
    for n in range(100):
        insert(db, f"k{n}", n, type="no.one" if n % 10 == 3 else "ok.one")
    p = outbox.start("run")
    wait_until(lambda: rabbit.depth(queue) >= 90, 30, "all others")
    wait_until(lambda: status(outbox)["parked"] == 10, 20, "its own wait")
    assert p.alive and dead(outbox) == [] and status(outbox)["failed"] == 0
    assert f"access to topic 'no.one' in exchange '{exchange}'" in p.err
    at = p.err.count("channel_closed")
    insert(db, "z", 100, type="ok.one")
    wait_until(lambda: 100 in numbers(rabbit.read(queue, keep=True)), 20)
    until = time.monotonic() + 4
    wait_until(lambda: time.monotonic() > until, 10, "asked for several times")
    rabbit.ctl("clear_topic_permissions", "app", exchange)
    wait_until(lambda: status(outbox)["parked"] == 0, 40, "the blocked ones too")
    assert p.err.count("channel_closed") == at <= 2, "it is asked beside the traffic"
    assert p.stop() == 0
    assert set(numbers(rabbit.read(queue))) == set(range(101))


def test_a_user_who_may_write_and_nothing_else(outbox, rabbit):
    """The right is asked for with the name of another exchange, of which this one's name is a part."""
    _, queue = rabbit.exchange(name="topic")
    user = rabbit.name("writer")  # the server outlives this run of the tests
    rabbit.ctl("add_user", user, "secret")
    rabbit.ctl("set_permissions", user, "^$", "^topic$", "^$")
    db = prepare(outbox, rabbit.url.replace("guest:guest", f"{user}:secret"), "exchange: topic, declare: off")
    for n in range(20):
        insert(db, f"k{n}", n)
    outbox.run("run", "--once")
    assert sorted(numbers(rabbit.read(queue))) == list(range(20))


def test_no_rights_on_the_default_exchange(outbox, rabbit):
    db = prepare(outbox, rabbit.url.replace("guest:guest", "app:secret"), "declare: check", '[{topic: anywhere}]')
    insert(db, "a", 1)
    p = outbox.start("run")
    wait_until(lambda: "sink.rabbitmq.refused" in p.err and "amq.default" in p.err, 20, "blocked, and why")
    wait_until(lambda: status(outbox)["parked"] == 1, 20, "it waits")
    assert p.alive and dead(outbox) == [] and p.err.count("channel_closed") <= 3


def test_a_missing_exchange_with_a_long_name(outbox, rabbit):
    exchange = rabbit.name("x" * 220)
    db = prepare(outbox, rabbit.url, f"exchange: {exchange}")
    insert(db, "a", 1)
    p = outbox.start("run")
    wait_until(lambda: "sink.rabbitmq.refused" in p.err, 20, "blocked")
    queue = rabbit.exchange(name=exchange)[1]
    wait_until(lambda: rabbit.depth(queue) == 1, 30, "found when it is there")
    assert p.stop() == 0 and dead(outbox) == []


def test_headers_that_no_frame_can_carry_are_rejected_alone(outbox, rabbit):
    exchange, queue = rabbit.exchange()
    routes = '[{match: {type: large}, topic: x, headers: {x: "${payload}", y: "${payload}", z: "${payload}"}}, {topic: y}]'
    db = prepare(outbox, rabbit.url, f"exchange: {exchange}", routes)
    insert(db, "a", 1)
    insert(db, "b", 2, type="large", payload=json.dumps({"key": "b", "n": 2, "pad": "x" * 60_000}))
    insert(db, "c", 3)
    outbox.run("run", "--once")
    assert sorted(numbers(rabbit.read(queue))) == [1, 3]
    (row,) = dead(outbox)
    assert "headers" in row["error"]


def test_no_rights_on_an_exchange_blocks_it_with_the_servers_text(outbox, rabbit):
    exchange, queue = rabbit.exchange()
    url = rabbit.url.replace("guest:guest", "app:secret")
    db = prepare(outbox, url, f"exchange: {exchange}")
    insert(db, "a", 1)
    p = outbox.start("run")
    wait_until(lambda: "403 ACCESS_REFUSED" in p.err, 20, "told")
    assert p.alive and dead(outbox) == [] and rabbit.depth(queue) == 0


def test_a_full_queue_blocks_and_goes_on(outbox, rabbit):
    """A nack: the queue refuses what is beyond its length; nothing is dead, nothing overtakes."""
    exchange, queue = rabbit.exchange(arguments={"x-max-length": 10, "x-overflow": "reject-publish"})
    db = prepare(outbox, rabbit.url, f"exchange: {exchange}")
    for n in range(60):
        insert(db, "a", n)
    p = outbox.start("run")
    got = []

    def more():
        got.extend(rabbit.read(queue))
        return len(set(numbers(got))) == 60

    wait_until(more, 60, "all of them", every=0.1)
    assert p.stop() == 0 and dead(outbox) == []
    assert numbers(got) == list(range(60))


def test_a_message_over_the_limit_is_rejected_alone(outbox, rabbit):
    """Trap 23: refused before it is sent."""
    exchange, queue = rabbit.exchange()
    db = prepare(outbox, rabbit.url, f"exchange: {exchange}, max_message: 2k")
    insert(db, "a", 1)
    insert(db, "a", 2, payload=json.dumps({"key": "a", "n": 2, "x": "y" * 3000}))
    insert(db, "a", 3)
    outbox.run("run", "--once")
    assert numbers(rabbit.read(queue)) == [1, 3]
    (row,) = dead(outbox)
    assert "too large" in row["error"]


def test_tls_is_verified(outbox, rabbit):
    exchange, queue = rabbit.exchange()
    url = f"amqps://guest:guest@localhost:{rabbit.env['RABBITMQ_TLS_PORT']}/"
    db = prepare(outbox, url, f"exchange: {exchange}, ca: {rabbit.env['RABBITMQ_TLS']}/ca.crt")
    insert(db, "a", 1)
    outbox.run("run", "--once")
    assert numbers(rabbit.read(queue)) == [1]
    prepare(outbox, url, f"exchange: {exchange}, verify: true")
    r = outbox.run("check", check=1)
    assert "cannot connect" in r.out


def test_our_certificate_the_hosts_name_and_the_servers_own_limit(outbox, own_rabbit):
    """One server that asks for our certificate and takes less than RabbitMQ usually does (trap 23): the first message that is too
    large closes the channel, and alone is dead; what came with it goes again; the next one is refused before it is sent."""
    server = own_rabbit("--mtls", conf=["max_message_size = 65536"])
    exchange, queue = server.exchange()
    tls, port = server.env["RABBITMQ_TLS"], server.env["RABBITMQ_TLS_PORT"]
    url, ca, own = f"amqps://guest:guest@localhost:{port}/", f"ca: {tls}/ca.crt", f"cert: {tls}/client.crt, key: {tls}/client.key"
    elsewhere = url.replace("localhost", "127.1")  # the same place, and no name of the certificate
    for where, sink, wrong in (
        (url, f"{ca}, {own}", None),
        (url, ca, "SSL error"),  # we show none
        (url, f"{ca}, cert: {tls}/client.crt, key: {tls}/server.key", "cert and key cannot be used"),
        (url, own, "peer cert"),  # of a CA that nobody knows
        (elsewhere, f"{ca}, {own}", "hostname verification failed"),
        (elsewhere, f"{ca}, {own}, verify: false", None),
    ):
        prepare(outbox, where, f"exchange: {exchange}, {sink}")
        r = outbox.run("check", check=1 if wrong else 0)
        assert (wrong or "") in r.out
    db = prepare(outbox, url, f"exchange: {exchange}, {ca}, {own}", more="    order: pipelined")
    big = json.dumps({"key": "k", "n": 25, "x": "y" * 100_000})
    db.execute("begin")
    for n in range(50):
        insert(db, f"k{n}", n, **({"payload": big} if n == 25 else {}))
    db.execute("commit")
    p = outbox.start("run")
    got = []

    def arrived(n):
        got.extend(numbers(server.read(queue)))
        return len(set(got)) == n

    wait_until(lambda: arrived(49), 30, "all others", every=0.1)
    (row,) = wait_until(lambda: dead(outbox), 20)
    assert row["key"] == "k25" and "max size 65536" in row["error"]
    closed = p.err.count("channel_closed")
    insert(db, "k1", 50, payload=big)
    insert(db, "k1", 51)
    wait_until(lambda: len(dead(outbox)) == 2 and arrived(50), 30, "the second one")
    assert p.stop() == 0
    assert sorted(set(got)) == [n for n in range(52) if n not in (25, 50)] and status(outbox)["failed"] == 2
    (row,) = [row for row in dead(outbox) if row["key"] == "k1"]
    assert "too large" in row["error"] and p.err.count("channel_closed") == closed == 1


def test_several_hosts(outbox, rabbit):
    exchange, queue = rabbit.exchange()
    db = prepare(outbox, f"amqp://127.0.0.1:1/,{rabbit.url}", f"exchange: {exchange}")
    insert(db, "a", 1)
    outbox.run("run", "--once")
    assert numbers(rabbit.read(queue)) == [1]


def test_declare_create_and_check(outbox, rabbit):
    exchange, queue = rabbit.name("made"), rabbit.name("madeq")
    sink = f"exchange: {exchange}, queues: [{{name: {queue}, bind: ['#'], max_length: 1000}}]"
    db = prepare(outbox, rabbit.url, sink)
    r = outbox.run("check", check=1)
    assert f"exchange {exchange}: 404 NOT_FOUND" in r.out and "declare: create" in r.out
    insert(db, "a", 1)
    prepare(outbox, rabbit.url, sink + ", declare: create")
    r = outbox.run("check")
    assert f"exchange {exchange}: is not there yet and will be made" in r.out and f"queue {queue}: is not there yet" in r.out
    outbox.run("run", "--once")
    assert numbers(rabbit.read(queue)) == [1]
    assert f"exchange {exchange}: is there" in outbox.run("check").out
    c = rabbit.connect()  # other arguments would be refused
    c.channel().queue_declare(queue, durable=True, arguments={"x-max-length": 1000, "x-overflow": "reject-publish"})
    c.close()


def test_check_sees_who_may_not_write(outbox, rabbit):
    """Asked without a message: what is bound stays bound, nothing arrives."""
    exchange, queue = rabbit.exchange()
    prepare(outbox, rabbit.url.replace("guest:guest", "app:secret"), f"exchange: {exchange}")
    r = outbox.run("check", check=1)
    assert "it must not be written to: 403 ACCESS_REFUSED" in r.out and "set_permissions" in r.out
    own = rabbit.name("app.ex")
    c = rabbit.connect()
    c.channel().exchange_declare(own, "topic", durable=True)
    c.close()
    prepare(outbox, rabbit.url.replace("guest:guest", "app:secret"), f"exchange: {own}")
    assert f"exchange {own}: is there" in outbox.run("check").out
    db = prepare(outbox, rabbit.url, f"exchange: {exchange}")
    assert rabbit.depth(queue) == 0
    outbox.run("check")
    insert(db, "a", 1)
    outbox.run("run", "--once")
    assert numbers(rabbit.read(queue)) == [1]


def test_check_sees_which_routing_key_may_not_be_written(outbox, rabbit):
    """Topic permissions, and exchanges that routes name. Asked with publishes that are undone: nothing arrives."""
    exchange, queue = rabbit.exchange(name=rabbit.name("app.keys"))
    other, other_queue = rabbit.exchange()
    rabbit.ctl("set_topic_permissions", "app", exchange, "^ok[.]", ".*")
    routes = (
        f"[{{match: {{type: a}}, topic: no.one}}, {{match: {{type: b}}, topic: x, stream: {other}}}, "
        "{match: {type: c}, topic: y, stream: app.nowhere}, {match: {type: d*}, topic: z, stream: '${type}'}, {topic: ok.one}]"
    )
    prepare(outbox, rabbit.url.replace("guest:guest", "app:secret"), f"exchange: {exchange}", routes)
    r = outbox.run("check", check=1)
    where = f"of exchange {exchange}"
    assert f"routing key ok.one {where}: this user may publish with it" in r.out
    assert f"routing key no.one {where}: it must not be written to: 403 ACCESS_REFUSED" in r.out
    assert f"fix: rabbitmqctl set_topic_permissions -p '/' 'app' '{exchange}' WRITE READ, where WRITE matches no.one" in r.out
    assert f"exchange {other} of a route: it must not be written to: 403" in r.out
    assert f"fix: rabbitmqctl set_permissions -p '/' 'app' CONFIGURE WRITE READ, where WRITE matches {other}" in r.out
    assert "exchange app.nowhere of a route: 404 NOT_FOUND" in r.out and "3 problems" in r.out
    rabbit.ctl("set_topic_permissions", "app", exchange, "^(ok[.]|no[.]one$)", ".*")
    prepare(outbox, rabbit.url.replace("guest:guest", "app:secret"), f"exchange: {exchange}", "[{topic: no.one}]")
    assert f"routing key no.one {where}: this user may publish with it" in outbox.run("check").out
    assert rabbit.depth(queue) == rabbit.depth(other_queue) == 0


def test_check_sees_who_may_not_write_to_the_default_exchange(outbox, rabbit):
    """It is asked for only where a route goes there; its name in a user's rights is amq.default."""
    queue = rabbit.exchange()[1]
    app = rabbit.url.replace("guest:guest", "app:secret")
    for routes in (f"[{{topic: {queue}}}]", '[{topic: "${type}"}]'):
        prepare(outbox, app, "declare: check", routes)
        r = outbox.run("check", check=1)
        assert "the default exchange: it must not be written to: 403 ACCESS_REFUSED" in r.out and "1 problem" in r.out
        assert "fix: rabbitmqctl set_permissions -p '/' 'app' CONFIGURE WRITE READ, where WRITE matches amq.default" in r.out
    prepare(outbox, app, "declare: check", '[{topic: "${type}", stream: "app.${type}"}]')
    assert "default exchange" not in outbox.run("check").out
    user = rabbit.name("plain")
    rabbit.ctl("add_user", user, "secret")
    rabbit.ctl("set_permissions", user, "^$", "^amq[.]default$", "^$")
    prepare(outbox, rabbit.url.replace("guest:guest", f"{user}:secret"), "declare: check", f"[{{topic: {queue}}}]")
    assert "default exchange" not in outbox.run("check").out
    assert rabbit.depth(queue) == 0


def test_check_looks_at_the_exchanges_of_routes(outbox, rabbit):
    """Those whose names need no event: written out, or made of what the match lists."""
    own, there, gone = rabbit.exchange()[0], rabbit.exchange()[0], rabbit.name("gone")
    closed = rabbit.name("app.ex")
    c = rabbit.connect()
    c.channel().exchange_declare(closed, "topic", durable=True)
    c.close()
    routes = (f"[{{match: {{type: a.b}}, topic: x, stream: {there}}}, {{match: {{type: [one, two]}}, topic: x, stream: '{gone}.${{type}}'}}, "
              "{match: {type: 'c.*'}, topic: x, stream: '${type}'}, {topic: x}]")
    prepare(outbox, rabbit.url, f"exchange: {own}, declare: create", routes)
    told = outbox.run("check", check=1).out
    assert f"ok      p: exchange {there} of a route: is there" in told, told
    for name in ("one", "two"):
        assert f"problem p: exchange {gone}.{name} of a route: 404 NOT_FOUND" in told, told
    assert "`declare: create` makes only that one" in told and "2 problems" in told, told
    prepare(outbox, rabbit.url.replace("guest:guest", "app:secret"), f"exchange: {closed}", f"[{{topic: x, stream: {there}}}]")
    told = outbox.run("check", check=1).out
    assert f"problem p: exchange {there} of a route: it must not be written to: 403 ACCESS_REFUSED" in told and "set_permissions" in told, told


def test_what_cannot_work_is_said_when_the_config_is_read(outbox):
    """By every command, with its place, and without a server."""
    for sink, wrong in (
        ("key: client.key", "cert and key belong together"),
        ("cert: client.crt", "cert and key belong together"),
        ("queues: [{bind: ['#']}]", "a queue needs a name"),
        ("queues: {name: q}", "queues: a list of queues is needed"),
    ):
        outbox.write("outbox.yaml", CONFIG.format(url="amqp://guest@127.0.0.1:1/", sink=sink, routes="[{topic: x}]", more=""))
        for command in (("check",), ("run", "--once")):
            err = outbox.run(*command, check=78).err
            assert re.search(rf"outbox\.yaml:6:\d+: .*{re.escape(wrong)}", err), err
    outbox.write("outbox.yaml", CONFIG.format(url="http://guest:hidden@127.0.0.1:1/", sink="window: 10", routes="[{topic: x}]", more=""))
    err = outbox.run("check", check=78).err
    assert re.search(r"outbox\.yaml:6:\d+: .*url: entry 1 must begin with amqp://", err) and "hidden" not in err, err


def test_wrong_password_is_down_and_said(outbox, rabbit):
    db = prepare(outbox, rabbit.url.replace("guest:guest", "guest:wrong"), "exchange: x")
    insert(db, "a", 1)
    p = outbox.start("run")
    wait_until(lambda: "sink.down" in p.err, 20)
    assert "ACCESS_REFUSED" in p.err or "403" in p.err
    assert p.alive and dead(outbox) == []
