# SPDX-License-Identifier: Apache-2.0
"""test_mongodb_connect - TLS and SCRAM of the MongoDB source: what is refused, what the error says to do, and that no secret is
shown anywhere."""

import contextlib
import select
import socket
import ssl
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


class Certified:
    """A TLS server with this certificate in front of the real one. The real one does not start with a certificate that has
    expired, and has only one name."""

    def __init__(self, port, crt, key):
        self.port, self.context = port, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(crt, key)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, plain):
        inside = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        inside.check_hostname, inside.verify_mode = False, ssl.CERT_NONE
        with contextlib.suppress(OSError):  # a client that refuses the certificate hangs up
            client = self.context.wrap_socket(plain, server_side=True)
            server = inside.wrap_socket(socket.create_connection(("127.0.0.1", self.port)))
            pair = [client, server]
            client.setblocking(False)
            server.setblocking(False)
            while True:
                ready = select.select(pair, [], [], 60)[0]
                for a in ready:
                    b = pair[1 - pair.index(a)]
                    with contextlib.suppress(ssl.SSLWantReadError):
                        while data := a.recv(65536):
                            b.setblocking(True)
                            b.sendall(data)
                            b.setblocking(False)
                        return


CERTIFICATES = {
    "good": ("localhost", 2, False, ()),
    "expired": ("localhost", -1, False, ("expired", "renew")),
    "wrong name": ("elsewhere.example.com", 2, False, ("mismatch", "certificate")),
    "unknown CA": ("localhost", 2, True, ("verify failed", "tlsCAFile")),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CERTIFICATES)
def test_certificates_of_the_server(pipe, secure, tmp_path, case):
    name, days, other_ca, wanted = CERTIFICATES[case]
    ca, other = tls.Authority(tmp_path), tls.Authority(tmp_path, "other")
    front = Certified(secure.ports[0], *(other if other_ca else ca).sign("server", name, days))
    uri = f"mongodb://app:secret@localhost:{front.address}/?directConnection=true&tls=true&tlsCAFile={ca.crt}"
    if wanted:
        refused(pipe, uri, *wanted)
    else:
        pipe.config(uri=uri)
        assert problems(pipe.outbox) == {}
        pipe.outbox.run("run", "--once")
        assert pipe.coll.find_one()["status"] == "published"
    front.listener.close()


@pytest.mark.parametrize("option", ["tlsAllowInvalidCertificates", "tlsInsecure", "tlsAllowInvalidHostnames"])
def test_verification_that_is_turned_off_is_reported(pipe, secure, option):
    pipe.config(uri=secure.uri("app") + f"&{option}=true")
    ((what, fix),) = problems(pipe.outbox).items()
    assert "verification" in what and option in fix
    relay = pipe.outbox.run("run", "--once")
    assert pipe.coll.find_one()["status"] == "published"
    assert "source.tls" in relay.err and "secret" not in relay.err + relay.out


def test_credentials_in_plain_text_are_reported(outbox, own_mongo):
    """Off this machine, that is: the second host of the uri is not reached, and is not needed."""
    server = own_mongo("--auth")
    mdb = server.database()
    p = Pipe(outbox, mdb, "sc")
    p.config(uri=server.uri("app"))
    assert problems(outbox) == {}
    p.coll.insert_one(sc_document("e", 1))
    p.config(uri=server.uri("app").replace(f":{server.ports[0]}/", f":{server.ports[0]},db.example.com:27017/"))
    ((what, fix),) = problems(outbox).items()
    assert "plain text" in what and "tls=true" in fix
    relay = outbox.run("run", "--once")
    assert p.coll.find_one()["status"] == "published"
    assert "source.tls" in relay.err and "secret" not in relay.err + relay.out
    mdb.close()


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


@pytest.mark.parametrize("uri", ["mongodb://user:Xyz@Zyx@127.0.0.1:1/db", "mongodb://user:Xyz/Zyx@127.0.0.1:1/db", "mongodb://user:Xyz:Zyx@127.0.0.1:1/db",
                                 "mongodb://user:Xyz%Zyx@127.0.0.1:1/db", "mongodb://user:x@127.0.0.1:1/db?authMechanismProperties=XyzZyx",
                                 "mongodb://user:x@127.0.0.1:1/db?tlsCertificateKeyFilePassword=XyzZyx&tls=XyzZyx"])
def test_a_uri_that_is_not_understood_is_not_shown(outbox, uri):
    """The library quotes what it refuses, and takes a part of a password with '@' for a host that it resolves."""
    outbox.write("outbox.yaml", f'pipelines: {{p: {{source: {{type: mongodb, uri: "{uri}"}}, sink: {{type: "null"}}}}}}\n')
    for args in (["check"], ["status"], ["run", "--once"]):
        r = outbox.run(*args, check=None)
        shown = (r.out + r.err).lower()
        assert r.returncode != 0 and "xyz" not in shown and "zyx" not in shown, shown
