# SPDX-License-Identifier: Apache-2.0
"""natsraw - a client of NATS and JetStream written from the protocol's description alone, so that what
is read was not read by the library that wrote it."""

import base64
import json
import pathlib
import socket
import ssl
import subprocess
import tempfile
import time


class Message:
    def __init__(self, subject, reply, headers, data):
        self.subject, self.reply, self.headers, self.data = subject, reply, headers, data

    @property
    def id(self):
        return dict(self.headers).get("Nats-Msg-Id")

    @property
    def seq(self):
        return int(self.reply.split(".")[5])

    @property
    def time(self):
        """When the stream stored it, in seconds."""
        return int(self.reply.split(".")[7]) / 1e9

    @property
    def pending(self):
        return int(self.reply.split(".")[8])

    def json(self):
        return json.loads(self.data)


def parse_headers(block):
    """All headers in order, and the status of the first line ("503" or "")."""
    lines = block.decode("utf-8", "surrogateescape").split("\r\n")
    status = lines[0].removeprefix("NATS/1.0").strip()
    return [tuple(line.split(":", 1)) for line in lines[1:] if ":" in line], status


def signed(creds, nonce):
    """The JWT of a credentials file, and the server's nonce signed with the key that lies beside it."""
    jwt = pathlib.Path(creds).read_text().splitlines()[1]
    with tempfile.NamedTemporaryFile() as f:
        f.write(nonce.encode())
        f.flush()
        key = str(creds).replace(".creds", ".pem")
        sig = subprocess.run(["openssl", "pkeyutl", "-sign", "-rawin", "-inkey", key, "-in", f.name], capture_output=True, check=True).stdout
    return {"jwt": jwt, "sig": base64.urlsafe_b64encode(sig).decode().rstrip("=")}


class Client:
    """One connection; blocking."""

    def __init__(self, port, user=None, password=None, tls=None, token=None, creds=None, timeout=20.0):
        self.sock = socket.create_connection(("127.0.0.1", port), timeout)
        self.sock.settimeout(timeout)
        self.buf = b""
        self.info = json.loads(self.line().removeprefix(b"INFO "))
        if tls:
            context = ssl.create_default_context(cafile=f"{tls}/ca.crt")
            context.load_cert_chain(f"{tls}/client.crt", f"{tls}/client.key")
            self.sock = context.wrap_socket(self.sock, server_hostname="localhost")
        options = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True, "name": "test", "lang": "raw", "version": "1"}
        if user:
            options.update(user=user, **{"pass": password})
        if token:
            options["auth_token"] = token
        if creds:
            options.update(signed(creds, self.info["nonce"]))
        self.send(b"CONNECT " + json.dumps(options).encode() + b"\r\nPING\r\n")
        while True:
            line = self.line()
            if line == b"PONG":
                break
            assert not line.startswith(b"-ERR"), line
        self.sid = 0
        self.inbox = f"_INBOX.raw{time.monotonic_ns()}"

    def close(self):
        self.sock.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def send(self, data):
        self.sock.sendall(data)

    def fill(self):
        more = self.sock.recv(1 << 20)
        if not more:
            raise ConnectionError("the server closed the connection")
        self.buf += more

    def line(self):
        while b"\r\n" not in self.buf:
            self.fill()
        line, self.buf = self.buf.split(b"\r\n", 1)
        return line

    def exactly(self, n):
        while len(self.buf) < n:
            self.fill()
        data, self.buf = self.buf[:n], self.buf[n:]
        return data

    def next(self):
        """The next message for one of our subscriptions."""
        while True:
            words = self.line().split()
            if words[0] == b"PING":
                self.send(b"PONG\r\n")
            elif words[0] == b"-ERR":
                raise AssertionError(words)
            elif words[0] in (b"MSG", b"HMSG"):
                break
        sizes = 2 if words[0] == b"HMSG" else 1
        total = int(words[-1])
        head = int(words[-2]) if sizes == 2 else 0
        reply = words[3].decode() if len(words) == 4 + sizes else ""
        data = self.exactly(total + 2)[:total]
        headers, status = parse_headers(data[:head]) if head else ([], "")
        message = Message(words[1].decode(), reply, [(k, v.strip()) for k, v in headers], data[head:])
        message.status = status
        return message

    def subscribe(self, subject):
        self.sid += 1
        self.send(f"SUB {subject} {self.sid}\r\n".encode())
        return self.sid

    def publish(self, subject, data=b"", reply="", headers=None):
        if headers:
            block = "".join(["NATS/1.0\r\n", *(f"{k}: {v}\r\n" for k, v in headers.items()), "\r\n"]).encode()
            self.send(f"HPUB {subject} {reply} {len(block)} {len(block) + len(data)}\r\n".encode() + block + data + b"\r\n")
        else:
            self.send(f"PUB {subject} {reply} {len(data)}\r\n".encode() + data + b"\r\n")

    def request(self, subject, body=None, check=True):
        """The answer of the JetStream API as an object."""
        data = b"" if body is None else json.dumps(body).encode()
        sid = self.subscribe(f"{self.inbox}.{self.sid}")
        self.send(f"UNSUB {sid} 1\r\n".encode())
        self.publish(subject, data, f"{self.inbox}.{sid - 1}")
        answer = self.next()
        assert answer.status == "", (subject, answer.status)
        r = answer.json()
        assert not check or "error" not in r, (subject, r["error"])
        return r

    def stream(self, name, *subjects, **config):
        """Makes a stream."""
        base = {"name": name, "subjects": subjects or [f"{name}.>"], "storage": "file", "num_replicas": 1}
        return self.request(f"$JS.API.STREAM.CREATE.{name}", {**base, **config})

    def update(self, name, **config):
        now = self.request(f"$JS.API.STREAM.INFO.{name}")["config"]
        return self.request(f"$JS.API.STREAM.UPDATE.{name}", {**now, **config})

    def delete(self, name):
        return self.request(f"$JS.API.STREAM.DELETE.{name}")

    def stream_info(self, name, check=True):
        return self.request(f"$JS.API.STREAM.INFO.{name}", check=check)

    def read(self, stream, first=1):
        """Every message of a stream from that number on, in its order."""
        state = self.stream_info(stream)["state"]
        if state["messages"] == 0 or state["last_seq"] < first:
            return []
        self.sid += 1
        inbox = f"{self.inbox}.read{self.sid}"
        sid = self.subscribe(inbox)
        config = {"deliver_subject": inbox, "ack_policy": "none", "deliver_policy": "all", "inactive_threshold": 5_000_000_000}
        if first > 1:
            config.update(deliver_policy="by_start_sequence", opt_start_seq=first)
        answer = f"{inbox}a"
        self.subscribe(answer)
        self.publish(f"$JS.API.CONSUMER.CREATE.{stream}", json.dumps({"stream_name": stream, "config": config}).encode(), answer)
        got = []
        while True:
            m = self.next()
            if m.subject == answer:
                assert "error" not in m.json(), m.json()
                continue
            got.append(m)
            if m.pending == 0:
                break
        self.send(f"UNSUB {sid}\r\n".encode())
        return got
