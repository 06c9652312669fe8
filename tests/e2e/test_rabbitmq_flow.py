# SPDX-License-Identifier: Apache-2.0
"""test_rabbitmq_flow - what one message, exchange or host may cost the others: confirms that never come, many exchanges, one that
nobody may publish to, silence, several hosts. Proxies stand between the relay and a real server."""

import socket
import threading
import time

import pytest

from helpers import SLOW, wait_until
from proxies import ConfirmWay, Confirms, Proxy, Way
from test_rabbitmq import dead, insert, numbers, poisoned, prepare, status


def through(proxy):
    return f"amqp://guest:guest@127.0.0.1:{proxy.address}/"


def passes(seconds):
    until = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() > until, seconds + 10)


class FrameWay(ConfirmWay):
    """Whole frames in both directions, each as keep(ours, frame) wants it."""

    def __init__(self, keep):
        super().__init__(None)
        self.keep = keep

    def sent(self, data):
        self.out += data
        first = b""
        if self.head:
            if len(self.out) < 8:
                return b""
            first, self.out, self.head = self.out[:8], self.out[8:], False
        found, self.out = self.frames(self.out)
        return first + b"".join(f for f in found if self.keep(True, f))

    def answered(self, data):
        self.back += data
        found, self.back = self.frames(self.back)
        return b"".join(f for f in found if self.keep(False, f))


class Frames(Proxy):
    """keep(ours, frame): whether a frame of the relay (ours), or of the server, is passed on."""

    def __init__(self, port, keep):
        self.keep = keep
        super().__init__(port)

    def way(self, client, server):
        return FrameWay(self.keep)


def is_method(frame, cls, method):
    return frame[0] == 1 and frame[7:11] == bytes([0, cls, 0, method])


def swallowing(word, times):
    """decide() of a proxy: the confirms of messages with this word are lost, so often."""
    left = [times]

    def decide(body):
        if word not in body or left[0] == 0:
            return None
        left[0] -= 1
        return "drop"

    return decide, left


def test_a_confirm_that_never_comes_holds_up_nobody_else(outbox, rabbit):
    """Far more than a window of others pass while it is waited for, on the same connection; it is sent again in the end."""
    exchange, queue = rabbit.exchange()
    decide, left = swallowing(b'"key": "stuck"', 1)
    proxy = Confirms(rabbit.port, decide)
    db = prepare(outbox, through(proxy), f"exchange: {exchange}, window: 16", more=f"    publish_timeout: {int(12 * SLOW)}s")
    db.execute("begin")
    for n in range(400):
        insert(db, "stuck" if n in (0, 399) else f"k{n % 40}", n, type="stuck" if n in (0, 399) else "placed")
    db.execute("commit")
    p = outbox.start("run")
    wait_until(lambda: rabbit.depth(queue) == 399, 9, "all others", every=0.1)
    got = rabbit.read(queue)
    assert left[0] == 0 and numbers(got, "stuck") == [0], "its followers wait"
    for key in range(40):
        assert numbers(got, f"k{key}") == [n for n in range(1, 399) if n % 40 == key]
    wait_until(lambda: rabbit.depth(queue) == 2, 40, "sent again, and what waited for it", every=0.1)
    assert numbers(rabbit.read(queue)) == [0, 399]
    for n in range(400, 600):
        insert(db, f"k{n % 40}", n)
    wait_until(lambda: rabbit.depth(queue) == 200, 9, "what was given up is in nobody's way", every=0.1)
    assert "msg=sink.down" not in p.err and "msg=sink.reset" not in p.err
    assert p.stop() == 0 and dead(outbox) == []
    proxy.close()


def test_a_poison_beside_a_confirm_that_never_comes(outbox, rabbit):
    """The channel is closed for one that the server does not name: it is found, and the others flow, although one of those that
    are sent one at a time is never confirmed."""
    exchange, queue = rabbit.exchange()
    decide, _ = swallowing(b'"key": "stuck"', 1000)
    poison = poisoned(rabbit.port)
    proxy = Confirms(poison.address, decide)
    routes = '[{match: {type: poison}, topic: x, headers: {qq: somebody}}, {topic: "${type}"}]'
    db = prepare(outbox, through(proxy), f"exchange: {exchange}", routes, more=f"    publish_timeout: {int(30 * SLOW)}s")
    db.execute("begin")
    for n in range(100):
        word = {5: "stuck", 50: "poison"}.get(n)
        insert(db, word or f"k{n}", n, type=word or "placed")
    db.execute("commit")
    p = outbox.start("run")
    wait_until(lambda: {n for n in range(100) if n != 50} <= set(numbers(rabbit.read(queue, keep=True))), 12, "all others", every=0.1)
    (row,) = wait_until(lambda: dead(outbox), 9, "the poison")
    assert row["key"] == "poison" and "406 PRECONDITION_FAILED" in row["error"]
    assert p.alive and "msg=sink.down" not in p.err
    proxy.close()
    poison.close()


def test_an_exchange_is_looked_for_once(outbox, rabbit):
    """Many of them in turn: each costs one question on a connection, not one with every message."""
    names, queue = [rabbit.name("many") for _ in range(150)], rabbit.exchange()[1]
    c = rabbit.connect()
    ch = c.channel()
    for name in names:
        ch.exchange_declare(name, "topic", durable=True)
        ch.queue_bind(queue, name, "#")
    c.close()
    looks = []

    def keep(ours, frame):
        if ours and is_method(frame, 40, 10):
            looks.append(frame[14 : 14 + frame[13]].decode())
        return True

    proxy = Frames(rabbit.port, keep)
    db = prepare(outbox, through(proxy), "declare: off", '[{topic: x, stream: "${type}"}]')
    p = outbox.start("run")
    for turn in range(3):
        db.execute("begin")
        for n, name in enumerate(names):
            insert(db, f"k{n}", n, type=name)
        db.execute("commit")
        wait_until(lambda: rabbit.depth(queue) == 150 * (turn + 1), 30, "all of them", every=0.1)
    assert p.stop() == 0
    assert sorted(looks) == sorted(names)
    proxy.close()


def test_an_exchange_that_takes_no_publishes(outbox, rabbit):
    """An internal exchange is there and may be written to, as far as can be asked; only a publish is refused. It closes the channel
    once: then it is tried beside the traffic."""
    exchange, queue = rabbit.exchange()
    inner = rabbit.name("inner")
    c = rabbit.connect()
    c.channel().exchange_declare(inner, "topic", durable=True, internal=True)
    c.close()
    db = prepare(outbox, rabbit.url, f"exchange: {exchange}", f'[{{match: {{type: inside}}, topic: x, stream: {inner}}}, {{topic: y}}]')
    insert(db, "in", 0, type="inside")
    p = outbox.start("run")
    wait_until(lambda: f"cannot publish to internal exchange '{inner}'" in p.err, 20, "refused")
    n, until = 1, time.monotonic() + 8
    while time.monotonic() < until:
        insert(db, f"k{n}", n)
        insert(db, f"in{n}", -n, type="inside")
        wait_until(lambda: rabbit.depth(queue) >= n, 20, "others flow")
        n += 1
    wait_until(lambda: status(outbox)["parked"] >= n, 20, "its own wait")
    assert p.err.count("channel_closed") == 1 and numbers(rabbit.read(queue)) == list(range(1, n))
    assert dead(outbox) == [] and status(outbox)["failed"] == 0
    c = rabbit.connect()
    ch = c.channel()
    ch.exchange_delete(inner)
    ch.exchange_declare(inner, "topic", durable=True)
    ch.queue_bind(queue, inner, "#")
    c.close()
    wait_until(lambda: rabbit.depth(queue) == n, 60, "it goes on when it is another", every=0.1)
    assert p.stop() == 0 and sorted(numbers(rabbit.read(queue))) == [-i for i in reversed(range(1, n))] + [0]


@pytest.mark.parametrize("lost", ["none", "ours", "the server's"])
def test_heartbeats_of_an_idle_connection(outbox, rabbit, lost):
    """Nothing else is sent. Without ours the server ends the connection, without the server's we do."""
    exchange, queue = rabbit.exchange()
    beats, swallow = {True: 0, False: 0}, {"none": None, "ours": True, "the server's": False}[lost]

    def keep(ours, frame):
        beats[ours] += frame[0] == 8
        return frame[0] != 8 or ours is not swallow

    proxy = Frames(rabbit.port, keep)
    db = prepare(outbox, through(proxy), f"exchange: {exchange}, heartbeat: 1s")
    insert(db, "a", 0)
    p = outbox.start("run")
    wait_until(lambda: rabbit.depth(queue) == 1, 20, "it works")
    if lost == "none":
        passes(8)
        assert "msg=sink.down" not in p.err and beats[True] >= 4 and beats[False] >= 4
    else:
        wait_until(lambda: "msg=sink.down" in p.err, 12, "the connection ends")
    insert(db, "a", 1)
    wait_until(lambda: set(numbers(rabbit.read(queue, keep=True))) == {0, 1}, 30, "it goes on")
    proxy.close()


class MuteWay(Way):
    def __init__(self, talks):
        self.talks = talks

    def answered(self, data):
        self.talks.wait()
        return data


class Mute(Proxy):
    """While `talks` is not set nothing comes from the server, not even its end."""

    def __init__(self, port):
        self.talks = threading.Event()
        self.talks.set()
        super().__init__(port)

    def way(self, client, server):
        return MuteWay(self.talks)


def test_silence_is_told_with_nothing_in_flight(outbox, rabbit):
    exchange, queue = rabbit.exchange()
    proxy = Mute(rabbit.port)
    db = prepare(outbox, through(proxy), f"exchange: {exchange}, heartbeat: 1s, connect_timeout: 1s")
    insert(db, "a", 0)
    p = outbox.start("run")
    wait_until(lambda: rabbit.depth(queue) == 1 and status(outbox)["pending"] == 0, 20, "it works")
    proxy.talks.clear()
    wait_until(lambda: "msg=sink.down" in p.err, 4.5, "told")
    proxy.talks.set()
    insert(db, "a", 1)
    wait_until(lambda: numbers(rabbit.read(queue, keep=True)) == [0, 1], 30, "it goes on")
    assert p.stop() == 0
    proxy.close()


def hosts(*ports):
    return ",".join(f"amqp://guest:guest@127.0.0.1:{port}/" for port in ports)


def test_from_host_to_host_and_back(outbox, rabbit):
    """The relay is at the last one, goes to the first when that ends, and back past one that accepts and never answers."""
    exchange, queue = rabbit.exchange()
    first, last = Proxy(rabbit.port), Proxy(rabbit.port)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        first.off()
        url = hosts(first.address, mute.getsockname()[1], last.address)
        db = prepare(outbox, url, f"exchange: {exchange}, connect_timeout: 1s")
        p = outbox.start("run")
        for n, (off, on) in enumerate([(first, last), (last, first), (first, last)]):
            on.on()
            off.off()
            insert(db, "a", n)
            wait_until(lambda: set(numbers(rabbit.read(queue, keep=True))) == set(range(n + 1)), 20, f"{n}: at the other", every=0.1)
            assert on.open and not off.open
        assert p.stop() == 0
    first.close()
    last.close()


def test_past_a_host_that_answers_no_more_than_a_login(outbox, rabbit):
    exchange, queue = rabbit.exchange()
    half, whole = Frames(rabbit.port, lambda ours, frame: not is_method(frame, 20, 10)), Proxy(rabbit.port)
    db = prepare(outbox, hosts(half.address, whole.address), f"exchange: {exchange}, connect_timeout: 1s, declare: off")
    insert(db, "a", 0)
    p = outbox.start("run")
    wait_until(lambda: rabbit.depth(queue) == 1, 20, "at the other one")
    assert p.stop() == 0 and half.open
    for proxy in (half, whole):
        proxy.close()
