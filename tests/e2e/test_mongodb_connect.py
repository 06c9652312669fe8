# SPDX-License-Identifier: Apache-2.0
"""test_mongodb_connect - TLS and SCRAM of the MongoDB source: what is refused, what the error says to do, and that no secret is
shown anywhere."""

import contextlib
import socket
import threading

import pytest

import services
import tls
from helpers import SLOW
from mongo import sc_document
from test_mongodb_check import problems
from test_mongodb_cli import Pipe


@pytest.fixture(scope="module")
def secure():
    """One node that speaks only TLS, with users."""
    server = services.Mongo("--tls", "--auth")
    yield server
    server.close()


@pytest.fixture
def pipe(outbox, secure):
    mdb = secure.database()
    p = Pipe(outbox, mdb, "sc")
    p.coll.insert_one(sc_document("e", 1))
    yield p
    mdb.close()


def refused(p, uri, *wanted, said_by_all=True, quick=False):
    """Nothing runs with this URI; every command says why and what to do, and so does check."""
    p.config(uri=f"{uri}&serverSelectionTimeoutMS={int(2500 * SLOW)}")
    for command in (["run", "--once"],) if quick else (["events"],):
        r = p.outbox.run(*command, check=None)
        assert r.returncode != 0, command
        said = r.err + r.out
        assert not said_by_all or all(w in said for w in wanted), (command, said)
        assert "secret" not in said and "wr0ng" not in said, "a password is shown"
    ((what, fix),) = problems(p.outbox).items()
    assert wanted[-1] in fix, (what, fix)
    assert p.coll.find_one()["status"] == "pending"


def test_good(pipe, outbox, secure):
    pipe.config(uri=secure.uri("app"))
    assert problems(outbox) == {}
    relay = outbox.run("run", "--once")
    assert pipe.coll.find_one()["status"] == "published"
    assert "secret" not in relay.err + relay.out
    explained = outbox.run("check", "--explain").out
    assert "secret" not in explained, "the URI is shown with its password"


@pytest.mark.slow
def test_a_wrong_ca(pipe, secure, tmp_path):
    refused(pipe, secure.uri("app", tlsCAFile=tls.Authority(tmp_path).crt), "verify failed", "tlsCAFile")


@pytest.mark.slow
def test_without_the_ca(pipe, secure):
    uri = "&".join(w for w in secure.uri("app").split("&") if not w.startswith("tlsCAFile"))
    refused(pipe, uri, "verify failed", "tlsCAFile")


class Elsewhere:
    """The server at another address of this machine, byte for byte."""

    def __init__(self, port):
        self.port, self.listener = port, socket.create_server(("127.0.0.2", 0))
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self.port))
            for a, b in ((client, server), (server, client)):
                threading.Thread(target=self.pump, args=(a, b), daemon=True).start()

    def pump(self, a, b):
        with contextlib.suppress(OSError):
            while data := a.recv(65536):
                b.sendall(data)
        with contextlib.suppress(OSError):
            b.shutdown(socket.SHUT_WR)


@pytest.mark.slow
def test_a_wrong_name(pipe, secure):
    """The certificate is of 127.0.0.1 and localhost; at another address the same server is refused."""
    there = Elsewhere(secure.ports[0])
    uri = secure.uri("app").replace(f"127.0.0.1:{secure.ports[0]}", f"127.0.0.2:{there.listener.getsockname()[1]}")
    refused(pipe, uri.replace("replicaSet=rs0", "directConnection=true"), "verify failed", "certificate")
    there.listener.close()


@pytest.mark.slow
def test_plain_where_tls_is_needed(pipe, secure):
    uri = f"mongodb://app:secret@127.0.0.1:{secure.ports[0]}/?replicaSet=rs0"
    refused(pipe, uri, "tls=true", said_by_all=False)  # a server that hung up may have another reason


def test_a_wrong_password(pipe, secure):
    refused(pipe, secure.uri("app", password="wr0ng"), "uthentication failed", "password", quick=True)


def test_an_unknown_user(pipe, secure):
    refused(pipe, secure.uri("nobody"), "uthentication failed", "password", quick=True)


def test_without_a_user(pipe, secure):
    refused(pipe, secure.uri(), "requires authentication", "USER", quick=True)
