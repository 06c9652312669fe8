# SPDX-License-Identifier: Apache-2.0
"""test_rabbitmq_flow - what one message, exchange or host may cost the others: confirms that never come, many exchanges, one that
nobody may publish to, silence, several hosts. Proxies stand between the relay and a real server."""

import socket
import time

import pytest

from helpers import SLOW, wait_until
from proxies import ConfirmWay, Confirms, Proxy
from test_rabbitmq import dead, insert, numbers, prepare, status


def through(proxy):
    return f"amqp://guest:guest@127.0.0.1:{proxy.address}/"


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
