# SPDX-License-Identifier: Apache-2.0
"""proxies - what stands between the relay and a broker and spoils a little: cuts connections, swallows or turns the answer to one
message, keeps a request back. They read the protocols from their descriptions; a message is known by a word in its body."""

import json
import socket
import struct
import threading
import time


class Proxy(threading.Thread):
    """Passes everything; `off()` refuses and cuts, `on()` passes again."""

    def __init__(self, port):
        super().__init__(daemon=True)
        self.port, self.up, self.open = port, True, []
        self.lock = threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = self.listener.getsockname()[1]
        self.start()

    def run(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            if not self.up:
                client.close()
                continue
            server = socket.create_connection(("127.0.0.1", self.port))
            with self.lock:
                self.open += [client, server]
            way = self.way(client, server)
            for source, target, through in ((client, server, way.sent), (server, client, way.answered)):
                threading.Thread(target=self.copy, args=(source, target, through), daemon=True).start()

    def way(self, client, server):
        """Of one connection: what becomes of bytes in each direction."""
        return Way()

    def copy(self, source, target, through):
        try:
            while data := source.recv(65536):
                data = through(data)
                if data:
                    target.sendall(data)
        except OSError:
            pass
        self.shut(source, target)

    @staticmethod
    def shut(*sockets):
        for s in sockets:
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def off(self):
        self.up = False
        self.cut()

    def cut(self):
        with self.lock:
            self.shut(*self.open)
            self.open.clear()

    def on(self):
        self.up = True

    def close(self):
        self.listener.close()
        self.off()


class Way:
    def sent(self, data):
        return data

    def answered(self, data):
        return data


class SlowWay(Way):
    def __init__(self, proxy):
        self.proxy = proxy

    def answered(self, data):
        time.sleep(self.proxy.delay)
        return data


class Slow(Proxy):
    """What the server says comes `delay` seconds late."""

    delay = 0.0

    def way(self, client, server):
        return SlowWay(self)


class SilentWay(Way):
    """Passes bytes until its proxy falls silent; then it never passes a byte again, and stays open."""

    def __init__(self, proxy):
        self.proxy, self.dead = proxy, False

    def sent(self, data):
        self.dead = self.dead or self.proxy.silent
        return b"" if self.dead else data

    answered = sent


class Silent(Proxy):
    """Half-open connections: while `silent`, every byte of every connection is dropped and none is closed. Connections that
    dropped a byte stay dead afterwards; new ones work."""

    silent = False

    def __init__(self, port=0):
        self.times = []
        super().__init__(port)

    def way(self, client, server):
        self.times.append(time.monotonic())
        return SilentWay(self)


class RenameWay(Way):
    def __init__(self, old, new):
        self.old, self.new = old, new

    def sent(self, data):
        return data.replace(self.old, self.new)


class Rename(Proxy):
    """Bytes that are sent as `old` arrive as `new`, of the same length."""

    def __init__(self, port, old, new):
        self.old, self.new = old, new
        super().__init__(port)

    def way(self, client, server):
        return RenameWay(self.old, self.new)


class ConfirmWay(Way):
    """AMQP: counts publishes, as the server does, and looks at every confirm."""

    ACK, NACK = 80, 120

    def __init__(self, decide):
        self.decide, self.head = decide, True
        self.out, self.back = b"", b""
        self.begin()

    def begin(self):
        """A channel that was closed and opened again counts anew."""
        self.tag, self.low, self.bodies, self.over = 0, 1, {}, set()

    def frames(self, data):
        """Whole frames at the start of data, and the rest."""
        found = []
        while len(data) >= 8 and len(data) >= (n := struct.unpack(">I", data[3:7])[0] + 8):
            found.append(data[:n])
            data = data[n:]
        return found, data

    def sent(self, data):
        self.out += data
        if self.head:  # "AMQP" and a version come before the first frame
            if len(self.out) < 8:
                return data
            self.out, self.head = self.out[8:], False
        found, self.out = self.frames(self.out)
        for f in (f for f in found if f[1:3] == b"\0\1"):  # the channel that publishes
            if f[0] == 1 and f[7:11] == b"\0\x14\0\x0a":  # channel.open
                self.begin()
            elif f[0] == 1 and f[7:11] == b"\0\x3c\0\x28":  # basic.publish
                self.tag += 1
                self.bodies[self.tag] = b""
            elif f[0] == 3:
                self.bodies[self.tag] = self.bodies.get(self.tag, b"") + f[7:-1]
        return data

    def answered(self, data):
        self.back += data
        found, self.back = self.frames(self.back)
        return b"".join(self.confirm(f) if f[0] == 1 and f[7:11] == b"\0\x3c\0\x50" else f for f in found)

    def confirm(self, f):
        """One ack, which may be for many, as single ones."""
        (tag,) = struct.unpack(">Q", f[11:19])
        tags = range(self.low, tag + 1) if f[19] & 1 else [tag]
        out = b""
        for t in tags:
            if t in self.over:
                continue
            self.over.add(t)
            what = self.decide(self.bodies.pop(t, b""))
            if what != "drop":
                method = self.NACK if what == "nack" else self.ACK
                out += b"\x01\0\x01" + struct.pack(">IHHQB", 13, 60, method, t, 0) + b"\xce"
        while self.low in self.over:
            self.over.discard(self.low)
            self.low += 1
        return out


class Confirms(Proxy):
    """decide(body) for every confirmed message: "drop" its confirm, make it a "nack", or None."""

    def __init__(self, port, decide):
        self.decide = decide
        super().__init__(port)

    def way(self, client, server):
        return ConfirmWay(self.decide)


class NatsWay(Way):
    """Publishes one by one: through(words of the line, headers and body) is false where one does not go on."""

    def __init__(self):
        self.out = b""

    def sent(self, data):
        self.out += data
        through = b""
        while (end := self.out.find(b"\r\n")) >= 0:
            words = self.out[:end].split()
            size = int(words[-1]) + 2 if words and words[0] in (b"PUB", b"HPUB") else 0
            if len(self.out) < end + 2 + size:
                break
            frame, self.out = self.out[: end + 2 + size], self.out[end + 2 + size :]
            if self.through(words, frame[end + 2 :] if size else None):
                through += frame
        return through


class RefuseWay(NatsWay):
    def __init__(self, client, decide):
        super().__init__()
        self.client, self.decide, self.sid = client, decide, b"1"

    def through(self, words, body):
        if words and words[0] == b"SUB":
            self.sid = words[-1]
        error = self.decide(body) if body else None
        if error:
            answer = json.dumps({"error": error}).encode()
            self.client.sendall(b"MSG %s %s %d\r\n%s\r\n" % (words[2], self.sid, len(answer), answer))
        return not error


class SwallowWay(NatsWay):
    def __init__(self, decide):
        super().__init__()
        self.decide = decide

    def through(self, words, body):
        return body is None or not self.decide(words[1].decode())


class Swallow(Proxy):
    """NATS: what is published to a subject for which decide(subject) is true never arrives, and nobody answers."""

    def __init__(self, port, decide):
        self.decide = decide
        super().__init__(port)

    def way(self, client, server):
        return SwallowWay(self.decide)


class Refuse(Proxy):
    """NATS: decide(headers and body) of every publish gives the error that the stream would answer with, or None."""

    def __init__(self, port, decide):
        self.decide = decide
        super().__init__(port)

    def way(self, client, server):
        return RefuseWay(client, self.decide)


class LateWay(Way):
    def __init__(self, proxy, server):
        self.proxy, self.server = proxy, server
        self.out, self.back, self.kept = b"", b"", []
        self.asked = self.answers = 0

    def frames(self, data):
        """Whole requests or answers at the start of data, and the rest."""
        found = []
        while len(data) >= 4 and len(data) >= (n := struct.unpack(">I", data[:4])[0] + 4):
            found.append(data[:n])
            data = data[n:]
        return found, data

    def sent(self, data):
        found, self.out = self.frames(self.out + data)
        through = b""
        for f in found:
            if f[4:6] == b"\0\0" and self.proxy.decide(self, f):  # Produce
                self.kept.append(f)
            else:
                self.asked += 1
                through += f
        return through

    def answered(self, data):
        found, self.back = self.frames(self.back + data)
        self.answers += len(found)
        return data

    def release(self):
        """The server gets what was kept back, and has answered when this returns."""
        self.asked += len(self.kept)
        self.server.sendall(b"".join(self.kept))
        self.kept = []
        until = time.monotonic() + 20
        while self.answers < self.asked and time.monotonic() < until:
            time.sleep(0.01)


class Late(Proxy):
    """Kafka: decide(way, request) of every Produce keeps that request back until way.release(), also when its sender has gone."""

    def __init__(self, decide):
        self.decide = decide
        super().__init__(0)  # the port is known when the server has been told ours

    def way(self, client, server):
        return LateWay(self, server)

    def copy(self, source, target, through):
        way = through.__self__
        try:
            while data := source.recv(65536):
                data = through(data)
                try:
                    target.sendall(data)
                except OSError:
                    if not way.kept and way.answers >= way.asked:
                        break
        except OSError:
            pass
        if not way.kept:
            self.shut(source, target)
