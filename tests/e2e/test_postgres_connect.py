# SPDX-License-Identifier: Apache-2.0
"""test_postgres_connect - all ways to a server: forms of the connection string, TLS, passwords, poolers, several hosts; each
refusal names the pipeline and the way out, and nothing ever shows a password."""

import os
import signal
import socket
import subprocess
import threading

import pytest

import services
from helpers import BIN, read_jsonl, wait_until
from netns import Host
from pg import config, emit
from services import Pgbouncer
from tls import Authority
from wal import on_stream, wal_config

SECRET = "s3cret-Pa55"
WRONG = "wr0ng-Pa55"


def shows_no_secret(*texts):
    for text in texts:
        assert SECRET not in text and WRONG not in text, "a password is in the output"


def try_it(outbox, db, dsn, env=None, extra="dsn", check=True):
    """Delivers one event over this connection string; gives the text of the failure, or None. Looks through all output and the log
    for passwords."""
    outbox.path("out").mkdir(exist_ok=True)
    outbox.write(
        "outbox.yaml",
        f"log: {{level: debug}}\npipelines:\n  orders:\n    source: {{type: postgres, {extra}: '{dsn}', timeout: 5s}}\n"
        "    sink: {type: file, path: out/events.jsonl}\n    envelope: none\n    grace: 1s\n",
    )
    event = emit(db.connect().cursor(), "a", 1)
    r = outbox.run("run", "--once", check=None, env=env)
    shows_no_secret(r.out, r.err)
    if check:
        c = outbox.run("check", check=None, env=env)
        shows_no_secret(c.out, c.err)
        assert (c.returncode != 0 or r.returncode == 0) and "orders" in c.out + c.err, c.out
    if r.returncode == 0:
        assert event in [m["id"] for m in read_jsonl(outbox.path("out/events.jsonl"))]
        return None
    assert "pipeline=orders" in r.err and "pipeline orders" in r.err, "the pipeline is named"
    return r.err


@pytest.fixture(scope="module")
def secure(tmp_path_factory):
    """A server with TLS, a user with a password and one with a certificate, and the CA."""
    folder = tmp_path_factory.mktemp("tls")
    ca = Authority(folder)
    other = Authority(folder, "other")
    good, expired = ca.sign("server", "localhost"), ca.sign("expired", "localhost", days=-1)
    ca.sign("app", "app")
    ca.sign("stranger", "stranger")
    server = services.Postgres(
        conf=["ssl = off"],
        hba=[
            "hostssl all app 127.0.0.1/32 cert",
            "hostssl all scram 127.0.0.1/32 scram-sha-256",
            "hostnossl all scram 127.0.0.1/32 reject",
            "local all scram scram-sha-256",
        ],
    )

    def use(pair):
        """The server presents this certificate."""
        for path, name in zip(pair, ("server.crt", "server.key")):
            with open(path, "rb") as f:
                server.write(f"{server.dir}/data/{name}", f.read())
        c = server.connect(sslmode="prefer")
        cur = c.cursor()
        for setting in ("ssl = on", f"ssl_ca_file = '{server.dir}/data/ca.crt'"):
            cur.execute(f"alter system set {setting}")
        cur.execute("select pg_reload_conf()")
        c.close()

        def served():
            s = socket.create_connection(("127.0.0.1", server.port), 5)
            with s:
                s.sendall(b"\0\0\0\x08\x04\xd2\x16\x2f")
                return s.recv(1) == b"S"

        wait_until(served, 20, "TLS is on")

    with open(ca.crt, "rb") as f:
        server.write(f"{server.dir}/data/ca.crt", f.read())
    use(good)
    db = server.database()
    db.sql("create role app login in role pg_monitor")
    db.sql(f"create role scram login password '{SECRET}'")
    (folder / "outbox.yaml").write_text(
        f"pipelines:\n  orders: {{source: {{type: postgres, dsn: '{db.dsn}'}}, sink: {{type: file, path: x}}, envelope: none}}\n"
    )
    subprocess.run([BIN, "schema", "--apply"], cwd=folder, check=True, capture_output=True)
    db.sql("grant outbox_relay to app, scram")
    yield type("Secure", (), {"db": db, "ca": ca, "other": other, "dir": folder, "use": use, "good": good, "expired": expired})
    db.close()
    server.close()


TLS_ROWS = {
    "verify-full": ("host=localhost hostaddr=127.0.0.1 sslmode=verify-full sslrootcert={ca}", None),
    "verify-ca": ("host=127.0.0.1 sslmode=verify-ca sslrootcert={ca}", None),
    "a wrong CA": (
        "host=localhost hostaddr=127.0.0.1 sslmode=verify-full sslrootcert={other}",
        "is not signed by the CA in sslrootcert",
    ),
    "a wrong host name": ("host=127.0.0.1 sslmode=verify-full sslrootcert={ca}", "connect by a name that the server"),
    "no CA": (
        "host=localhost hostaddr=127.0.0.1 sslmode=verify-full sslrootcert={dir}/none.crt",
        "give the CA of the server with sslrootcert",
    ),
}


@pytest.mark.parametrize("name", TLS_ROWS)
def test_certificates_of_the_server(outbox, secure, name):
    dsn, want = TLS_ROWS[name]
    dsn = dsn.format(ca=secure.ca.crt, other=secure.other.crt, dir=secure.dir)
    got = try_it(outbox, secure.db, f"{dsn} port={secure.db.server.port} user=postgres dbname={secure.db.name}")
    if want is None:
        assert got is None, got
    else:
        assert got and want in got, got


def test_an_expired_certificate_is_refused(outbox, secure):
    secure.use(secure.expired)
    try:
        dsn = f"host=localhost hostaddr=127.0.0.1 sslmode=verify-full sslrootcert={secure.ca.crt} port={secure.db.server.port}"
        got = wait_until(
            lambda: try_it(outbox, secure.db, f"{dsn} user=postgres dbname={secure.db.name}"), 20, "refused"
        )
        assert "expired" in got, got
    finally:
        secure.use(secure.good)


def test_the_replication_connection_has_tls_too(outbox, secure):
    """Mode wal: what the walsender sends is as secret as what SQL shows. The role is let in by TLS only."""
    db = secure.db
    db.sql("alter role scram replication; grant create on database " + db.name + " to scram")
    dsn = (f"host=localhost hostaddr=127.0.0.1 port={db.server.port} user=scram password={SECRET} dbname={db.name} "
           f"sslmode=verify-full sslrootcert={secure.ca.crt}")
    wal_config(outbox, db, dsn=dsn, apply=False)
    relay = outbox.start("run")
    try:
        on_stream(relay)
        event = emit(db.connect().cursor(), "a", 1)
        wait_until(lambda: event in [m["id"] for m in read_jsonl(outbox.path("out/events.jsonl"))], 20, "delivered by the stream")
        seen = db.sql("select s.ssl, s.cipher is not null from pg_stat_ssl s join pg_stat_replication r using (pid) "
                      "where r.application_name = 'outbox wal'")
        assert seen == [(True, True)]
        assert relay.stop() == 0
        shows_no_secret(relay.err)
        outbox.write("outbox.yaml", outbox.path("outbox.yaml").read_text().replace(secure.ca.crt, secure.other.crt))
        r = outbox.run("check", check=None)
        assert r.returncode == 1 and "is not signed by the CA" in r.out, r.out
    finally:
        relay.kill()
        db.sql("select pg_drop_replication_slot(slot_name) from pg_replication_slots where not active")
        db.sql("drop publication if exists outbox_orders; delete from outbox.cursor")


def password_files(secure, folder):
    port, name = secure.db.server.port, secure.db.name
    for file, password in (("pass", SECRET), ("bad-pass", WRONG)):
        path = folder / file
        path.write_text(f"*:{port}:{name}:scram:{password}\n")
        path.chmod(0o600)
    (folder / "services").write_text(
        f"[shop]\nhost=127.0.0.1\nport={port}\nuser=scram\ndbname={name}\npassword={SECRET}\nsslmode=require\n"
    )


AUTH_ROWS = {
    "password": ("{base} user=scram password={secret} sslmode=require", {}, None),
    "wrong password": ("{base} user=scram password={wrong} sslmode=require", {}, "check user and password"),
    "no password": ("{base} user=scram sslmode=require", {"PGPASSFILE": "/dev/null"}, "give one: password"),
    "PGPASSWORD": ("{base} user=scram sslmode=require", {"PGPASSWORD": SECRET}, None),
    "wrong PGPASSWORD": ("{base} user=scram sslmode=require", {"PGPASSWORD": WRONG}, "check user and password"),
    "passfile": ("{base} user=scram sslmode=require passfile={dir}/pass", {}, None),
    "wrong passfile": ("{base} user=scram sslmode=require passfile={dir}/bad-pass", {}, "check user and password"),
    "service": ("service=shop", {"PGSERVICEFILE": "{dir}/services"}, None),
    "no such service": ("service=none", {"PGSERVICEFILE": "{dir}/services"}, "~/.pg_service.conf"),
    "URI with password": ("postgresql://scram:{secret}@127.0.0.1:{port}/{name}?sslmode=require", {}, None),
    "client certificate": (
        "{base} user=app sslmode=require sslcert={tls}/app.crt sslkey={tls}/app.key",
        {},
        None,
    ),
    "somebody else's certificate": (
        "{base} user=app sslmode=require sslcert={tls}/stranger.crt sslkey={tls}/stranger.key",
        {},
        "must be for the user",
    ),
    "no certificate": ("{base} user=app sslmode=require", {}, "sslcert=FILE"),
    "no such database": ("host=127.0.0.1 port={port} user=postgres dbname=nope", {}, "does not exist"),
    "no such host": ("host=nowhere.invalid user=postgres dbname=x", {}, "could not translate host name"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", AUTH_ROWS)
def test_who_we_are(outbox, secure, name):
    dsn, env, want = AUTH_ROWS[name]
    password_files(secure, outbox.dir)
    port = secure.db.server.port
    names = {
        "base": f"host=127.0.0.1 port={port} dbname={secure.db.name}", "dir": outbox.dir, "tls": secure.dir,
        "secret": SECRET, "wrong": WRONG, "port": port, "name": secure.db.name,
    }
    env = {"HOME": str(outbox.dir), **{k: v.format(**names) for k, v in env.items()}}
    got = try_it(outbox, secure.db, dsn.format(**names), env)
    if want is None:
        assert got is None, got
    else:
        assert got and want in got, got


def test_forms_of_the_connection_string(outbox, db):
    config(outbox, db)
    port, name = db.server.port, db.name
    env = {"PGHOST": "127.0.0.1", "PGPORT": str(port), "PGUSER": "postgres", "PGDATABASE": name}
    rows = [
        (db.dsn, {}),
        (f"postgresql://postgres@127.0.0.1:{port}/{name}", {}),
        (f"postgres://127.0.0.1:{port}/{name}?user=postgres&application_name=mine", {}),
        (f"postgresql://postgres@127.0.0.1:1,127.0.0.1:{port}/{name}?target_session_attrs=read-write", {}),
        (f"host=127.0.0.1,127.0.0.1 port=1,{port} user=postgres dbname={name} target_session_attrs=read-write", {}),
        (f"host={db.server.dir} port={port} user=postgres dbname={name}", {}),
        ("", env),
        (name, env),
        ("${DATABASE_URL}", {"DATABASE_URL": db.dsn}),
    ]
    for dsn, more in rows:
        assert try_it(outbox, db, dsn, more) is None, dsn
    secret = outbox.write("dsn.txt", db.dsn + "\n")
    assert try_it(outbox, db, secret, extra="dsn_file") is None


@pytest.mark.parametrize(
    "dsn",
    [
        f"host=127.0.0.1 password={SECRET} {SECRET}",
        f"host=127.0.0.1 password=x {SECRET}=y",
        f"postgresql://user:{SECRET}@[::1/db",
        f"postgresql://user:{SECRET}@h/db?{SECRET}=1",
        f"postgresql://user:x@h/db?a={SECRET}",
        f'host=127.0.0.1 "x" password="{SECRET}',
        f"postgresql://user:%zz{SECRET}@h/db",
    ],
)
def test_a_bad_connection_string_is_refused_and_not_shown(outbox, db, dsn):
    got = try_it(outbox, db_with_schema(outbox, db), dsn)
    assert got and "no connection string" in got, got


def db_with_schema(outbox, db):
    config(outbox, db)
    return db


def test_a_server_on_another_machine_is_verified_by_default(outbox, own_postgres, tmp_path):
    host = Host()  # an address that is not loopback; nothing runs in it
    try:
        ca = Authority(tmp_path)
        crt, key = ca.sign("server", host.outside)
        server = own_postgres(conf=[f"listen_addresses = '127.0.0.1,{host.outside}'"], hba=[f"host all all {host.outside}/32 trust"])
        db = server.database()
        config(outbox, db)
        far = f"host={host.outside} port={server.port} user=postgres dbname={db.name}"
        for mode in ("", " sslmode=prefer", " sslmode=allow"):
            got = try_it(outbox, db, far + mode)
            assert got and "must say sslmode=disable" in got, got
        assert try_it(outbox, db, far, {"PGSSLMODE": "disable"}) is None, "whoever says so may"
        assert try_it(outbox, db, f"{far} sslmode=disable") is None
        relay = outbox.start("run")
        wait_until(lambda: "source.tls" in relay.err and "sslmode=disable" in relay.err, 20, "but is told")
        assert relay.stop() == 0
        c = outbox.run("check", check=None)
        assert "sslmode=disable" in c.out, c.out
        # With TLS at the server a CA is all it needs; who has none is told.
        for path, name in ((crt, "server.crt"), (key, "server.key")):
            with open(path, "rb") as f:
                server.write(f"{server.dir}/data/{name}", f.read())
        db.sql("alter system set ssl = on")
        server.restart()
        got = try_it(outbox, db, far, {"HOME": str(tmp_path)})
        assert got and "sslrootcert=FILE" in got, got
        assert try_it(outbox, db, f"{far} sslrootcert={ca.crt}") is None
        relay = outbox.start("run")
        wait_until(lambda: "relay.start" in relay.err, 20, "runs")
        assert "source.tls" not in relay.err
        assert relay.stop() == 0
    finally:
        host.close()


# ---- poolers ----


@pytest.fixture
def pooler(db):
    made = []

    def start(mode, *conf):
        made.append(Pgbouncer(db.server, mode, *conf))
        return made[-1].dsn(db.name)

    yield start
    for p in made:
        p.close()


def test_a_pooler_in_session_mode_works(outbox, db, pooler):
    config(outbox, db)
    dsn = pooler("session")
    assert try_it(outbox, db, dsn) is None
    relay = outbox.start("run")
    emit(db.connect().cursor(), "a", 2)
    wait_until(lambda: len(read_jsonl(outbox.path("out/events.jsonl"))) == 2, 20, "delivered through the pooler")
    assert relay.stop() == 0


@pytest.mark.parametrize("mode", ["transaction", "statement"])
def test_a_pooler_in_transaction_mode_is_refused(outbox, db, pooler, mode):
    config(outbox, db)
    got = try_it(outbox, db, pooler(mode))
    assert got and "pool_mode = session" in got and "connect to PostgreSQL directly" in got, got
    assert "relay.start" not in got


def test_check_through_a_pooler(outbox, db, pooler):
    """It says what the relay would: which pools will do, and that none carries the replication of mode wal."""
    config(outbox, db, dsn=pooler("session"), apply=False)
    config_text = outbox.path("outbox.yaml").read_text()
    outbox.run("schema", "--apply")
    told = outbox.run("check", check=None).out
    assert "pool" not in told and "ok      orders: the database is there" in told, told
    outbox.write("outbox.yaml", config_text.replace("type: postgres,", "type: postgres, mode: wal,"))
    r = outbox.run("check", check=None)
    (line,) = [x for x in r.out.splitlines() if "replication" in x and x.startswith("problem")]
    assert r.returncode == 1 and "connect to PostgreSQL directly" in line, r.out
    for mode in ("transaction", "statement"):
        config(outbox, db, dsn=pooler(mode), apply=False)
        r = outbox.run("check", check=None)
        assert r.returncode == 1 and "pool_mode = session" in r.out, r.out
    config(outbox, db, source="mode: wal", apply=False)
    assert "the replication connection is let in" in outbox.run("check", check=None).out


@pytest.mark.slow
def test_a_busy_pooler_in_transaction_mode_is_refused_too(outbox, db, pooler):
    config(outbox, db)
    dsn = pooler("transaction", "server_round_robin = 1")
    go = [True]

    def other():
        c = db.server.psycopg2.connect(dsn)
        c.autocommit = True
        while go[0]:
            c.cursor().execute("select 1")
        c.close()

    others = [threading.Thread(target=other, daemon=True) for _ in range(4)]
    for t in others:
        t.start()
    try:
        for _ in range(3):
            got = try_it(outbox, db, dsn)
            assert got and "pool_mode = session" in got, got
    finally:
        go[0] = False
        for t in others:
            t.join()


# ---- several hosts ----


@pytest.mark.slow
def test_a_host_that_hangs_is_passed_over(outbox, own_postgres):
    """It takes the connection and says nothing, as a stopped server does: the next host of the string is tried."""
    db = own_postgres().database()
    config(outbox, db)
    silent = socket.socket()
    silent.bind(("127.0.0.1", 0))
    silent.listen(8)
    dsn = f"host=127.0.0.1,127.0.0.1,127.0.0.1 port={silent.getsockname()[1]},1,{db.server.port} user=postgres dbname={db.name}"
    assert try_it(outbox, db, f"{dsn} connect_timeout=1", check=False) is None
    uri = f"postgresql://postgres@127.0.0.1:{silent.getsockname()[1]},127.0.0.1:{db.server.port}/{db.name}?connect_timeout=1"
    assert try_it(outbox, db, uri, check=False) is None
    got = try_it(outbox, db, f"host=127.0.0.1 port={silent.getsockname()[1]} dbname=x connect_timeout=1", check=False)
    assert got and "no answer within 1000 ms" in got, got
    silent.close()


@pytest.mark.slow
def test_a_server_that_hangs_is_taken_for_gone(outbox, own_postgres):
    """SIGSTOP of every process of the server: no answer comes and no connection breaks."""
    server = own_postgres()
    db = server.database()
    config(outbox, db, source="timeout: 2s")
    out = outbox.path("out/events.jsonl")
    relay = outbox.start("run")
    emit(db.connect().cursor(), "a", 1)
    wait_until(lambda: len(read_jsonl(out)) == 1, 20, "delivered")
    pids = server.pids()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: "relay.fenced" in relay.err, 20, "noticed")
        wait_until(lambda: "source.own" in relay.err, 20, "and not found again")
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    emit(db.connect().cursor(), "a", 2)
    wait_until(lambda: len(read_jsonl(out)) >= 2, 30, "goes on")
    assert relay.stop() == 0


@pytest.mark.parametrize("url", ["postgres://u:pre@{tail}@127.0.0.1:1/x", "postgres://u:pre/{tail}@127.0.0.1:1/x", "postgresql://u:a?b@{tail}@h.invalid/x"])
def test_a_password_that_is_not_escaped_is_never_shown(outbox, url):
    """libpq takes what follows the first @ or / for the host, and names it in its errors."""
    outbox.write("outbox.yaml", f"""
pipelines:
  orders:
    source: {{type: postgres, dsn: "{url.format(tail=SECRET)}"}}
    sink: {{type: "null"}}
""")
    for command in (["run", "--once"], ["check"], ["status"], ["schema", "--apply"], ["check", "--explain"]):
        r = outbox.run(*command, check=None)
        shows_no_secret(r.out, r.err)
        assert r.returncode != 0 and "%40" in r.out + r.err or "--explain" in command, r.out + r.err
