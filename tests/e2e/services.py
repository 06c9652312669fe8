# SPDX-License-Identifier: Apache-2.0
"""services - real servers as fixtures. Each is started by its script in tests/services, in a
temporary folder and on a free port, and ends with the process that started it."""

import fcntl
import os
import pwd
import shutil
import signal
import subprocess
import tempfile

import pytest

import natsraw
from helpers import ROOT, SLOW, wait_until

SCRIPTS = ROOT / "tests" / "services"


def call(script, *args, timeout=120):
    """The output of a script as a dict of its NAME=value lines. What cannot be had is skipped."""
    r = subprocess.run(
        [str(SCRIPTS / script), *map(str, args)],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=timeout * SLOW,
    )
    if r.returncode == 77:
        pytest.skip(r.stdout.strip())
    assert r.returncode == 0, f"{script} {' '.join(map(str, args))}: {r.stdout}\n{r.stderr}"
    return dict(line.split("=", 1) for line in r.stdout.splitlines() if "=" in line)


class Postgres:
    """A cluster of its own."""

    def __init__(self, conf=(), hba=(), source=None):
        self.psycopg2 = pytest.importorskip("psycopg2", reason="skipped: there is no python3-psycopg2")
        args = ["start", "--while", os.getpid()]
        for line in conf:
            args += ["--conf", line]
        for line in hba:
            args += ["--hba", line]
        if source:
            args += ["--from", source]
        self.env = call("postgres", *args)
        self.dir, self.bin = self.env["PGDIR"], self.env["PGBIN"]
        self.databases = 0

    @property
    def port(self):
        return int(self.env["PGPORT"])

    def dsn(self, dbname="postgres", user="postgres", **more):
        parts = {"host": "127.0.0.1", "port": self.port, "user": user, "dbname": dbname, **more}
        return " ".join(f"{k}={v}" for k, v in parts.items())

    def connect(self, dbname="postgres", user="postgres", autocommit=True, **more):
        c = self.psycopg2.connect(self.dsn(dbname, user, **more))
        c.autocommit = autocommit
        return c

    def database(self):
        """A new, empty database."""
        self.databases += 1
        return Database(self, f"t{os.getpid()}_{self.databases}")

    def stop(self, mode="fast", keep=True):
        call("postgres", "stop", self.dir, mode, *(["--keep"] if keep else []))

    def start(self, *conf):
        args = ["start", "--dir", self.dir]
        for line in conf:
            args += ["--conf", line]
        self.env = call("postgres", *args)

    def restart(self, mode="fast"):
        self.stop(mode)
        self.start()

    def write(self, path, data):
        """A file of the server's user, with no rights for others."""
        with open(path, "wb") as f:
            f.write(data)
        if os.getuid() == 0:
            user = pwd.getpwnam("postgres")
            os.chown(path, user.pw_uid, user.pw_gid)
        os.chmod(path, 0o600)

    def pids(self):
        """The postmaster and all its children."""
        with open(f"{self.dir}/data/postmaster.pid") as f:
            top = int(f.readline())
        r = subprocess.run(["ps", "--ppid", str(top), "-o", "pid="], capture_output=True, text=True, check=False)
        return [top, *map(int, r.stdout.split())]

    def kill(self):
        """SIGKILL of the postmaster and all its children: what a loss of power is."""
        pids = self.pids()
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        wait_until(lambda: not any(map(lives, pids)), 20, "killed")
        for name in ("data/postmaster.pid", f".s.PGSQL.{self.port}.lock"):  # where nobody reaps them they would count as alive
            os.remove(f"{self.dir}/{name}")

    def one(self, query, dbname="postgres"):
        c = self.connect(dbname)
        try:
            with c.cursor() as cur:
                cur.execute(query)
                return cur.fetchone()[0]
        finally:
            c.close()

    def one_sql(self, statement):
        with_connection(self, statement)

    def tool(self, name, *args, check=True):
        """A program of the server's version as the server's user, against this server."""
        argv = [f"{self.bin}/{name}", *map(str, args)]
        if os.getuid() == 0:
            argv = ["runuser", "-u", "postgres", "--", *argv]
        env = {**os.environ, "PGHOST": "127.0.0.1", "PGPORT": str(self.port), "PGUSER": "postgres"}
        r = subprocess.run(argv, cwd="/", env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        assert not check or r.returncode == 0, f"{name}: {r.stdout}\n{r.stderr}"
        return r

    def close(self):
        subprocess.run([str(SCRIPTS / "postgres"), "stop", self.dir, "immediate"], check=False, capture_output=True)


def lives(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Database:
    """One database of a cluster; gone when it is closed."""

    def __init__(self, server, name):
        self.server, self.name = server, name
        with_connection(server, f"create database {name}")
        self.opened = []

    @property
    def dsn(self):
        return self.server.dsn(self.name)

    def dsn_of(self, user, **more):
        return self.server.dsn(self.name, user, **more)

    def connect(self, user="postgres", autocommit=True, **more):
        """A session; closed with the database."""
        c = self.server.connect(self.name, user, autocommit, **more)
        self.opened.append(c)
        return c

    def sql(self, query, *params):
        """Runs a statement in a session of its own and gives its rows."""
        c = self.server.connect(self.name)
        try:
            with c.cursor() as cur:
                cur.execute(query, params or None)
                return cur.fetchall() if cur.description else []
        finally:
            c.close()

    def one(self, query, *params):
        return self.sql(query, *params)[0][0]

    def close(self):
        for c in self.opened:
            c.close()
        try:
            with_connection(self.server, f"drop database if exists {self.name} with (force)")
        except self.server.psycopg2.Error:
            pass  # a server that a test left stopped, or a prepared transaction: it goes with its folder


def with_connection(server, sql):
    c = server.connect()
    try:
        with c.cursor() as cur:
            cur.execute(sql)
    finally:
        c.close()


class Pgbouncer:
    """A pooler before a server."""

    def __init__(self, server, mode, *conf):
        args = ["start", "--server", server.port, "--mode", mode, "--while", os.getpid()]
        for line in conf:
            args += ["--conf", line]
        self.env = call("pgbouncer", *args)
        self.server = server

    def dsn(self, dbname):
        return f"host=127.0.0.1 port={self.env['PGPORT']} user=postgres dbname={dbname}"

    def close(self):
        call("pgbouncer", "stop", self.env["PGDIR"])


class Kafka:
    """A broker, or a cluster of three. Looked at by clients that are not ours: kafka-python and kcat."""

    def __init__(self, nodes=1, secure=False, conf=(), disk=None, proxied=0):
        self.client = pytest.importorskip("kafka", reason="skipped: there is no python3-kafka")
        if not shutil.which("kcat"):
            pytest.skip("skipped: there is no kcat")
        args = ["start", "--nodes", nodes, "--while", os.getpid()]
        for line in conf:
            args += ["--conf", line]
        args += ["--disk", disk] if disk else []
        args += ["--proxied", proxied] if proxied else []
        self.env = call("kafka", *args, *(["--secure"] if secure else []), timeout=400)
        self.dir, self.brokers = self.env["KAFKA_DIR"], self.env["KAFKA_BROKERS"]
        self.topics = 0

    def admin(self):
        return self.client.KafkaAdminClient(bootstrap_servers=self.brokers.split(","), api_version=(2, 5, 0))

    def topic(self, partitions=1, replicas=-1, name=None, assignment=None, **config):
        """A new topic; its name."""
        from kafka.admin import NewTopic

        self.topics += 1
        name = name or f"t{os.getpid()}-{self.topics}"
        if assignment:
            partitions = replicas = -1
        config = {k.replace("_", "."): str(v) for k, v in config.items()}
        a = self.admin()
        try:
            a.create_topics([NewTopic(name, partitions, replicas, assignment or ([] if replicas == -1 else None), config)])
        finally:
            a.close()
        return name

    def delete(self, name):
        a = self.admin()
        try:
            a.delete_topics([name])
        finally:
            a.close()

    def set_config(self, topic, **config):
        from kafka.admin import ConfigResource, ConfigResourceType

        a = self.admin()
        try:
            values = {k.replace("_", "."): str(v) for k, v in config.items()}
            a.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, values)])
        finally:
            a.close()

    def read(self, *topics):
        """Everything that is in these topics now, in the order of each partition."""
        c = self.client.KafkaConsumer(
            bootstrap_servers=self.brokers.split(","), api_version=(2, 5, 0), enable_auto_commit=False,
            auto_offset_reset="earliest", max_partition_fetch_bytes=64 << 20, fetch_max_bytes=64 << 20,
        )
        try:
            known = lambda: all(c.partitions_for_topic(t) for t in topics)  # asks again; a leader may just be voted for
            wait_until(known, 30, f"the partitions of {topics}", every=0.2)
            parts = [self.client.TopicPartition(t, p) for t in topics for p in sorted(c.partitions_for_topic(t))]
            ends = c.end_offsets(parts)
            c.assign(parts)
            got, left = [], {p for p in parts if ends[p] > 0}
            c.seek_to_beginning(*parts)
            while left:
                for part, records in c.poll(1000).items():
                    got += [r for r in records if r.offset < ends[part]]
                left = {p for p in left if c.position(p) < ends[p]}
            return got
        finally:
            c.close(autocommit=False)

    def kcat(self, *args, brokers=None, check=True):
        r = subprocess.run(
            ["kcat", "-b", brokers or self.brokers, "-m", "10", *map(str, args)],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=60 * SLOW,
        )
        assert not check or r.returncode == 0, f"kcat {args}: {r.stdout}\n{r.stderr}"
        return r.stdout

    def pids(self):
        return [int(p) for p in call("kafka", "env", self.dir)["KAFKA_PIDS"].split(",")]

    def kill(self, node=0):
        call("kafka", "stop", self.dir, "--kill", "--keep", *(["--node", node] if node else []))

    def start(self):
        call("kafka", "start", "--dir", self.dir, timeout=400)

    def signal(self, sig, node=0):
        for i, pid in enumerate(self.pids()):
            if node in (0, i + 1):
                os.kill(pid, sig)

    def close(self):
        subprocess.run([str(SCRIPTS / "kafka"), "stop", self.dir, "--kill"], check=False, capture_output=True)


class Nats:
    """A server with JetStream, or a cluster of three. Looked at by natsraw, which is not the library of
    the sink."""

    def __init__(self, *options, conf=(), nodes=1):
        args = ["start", "--nodes", nodes, "--while", os.getpid(), *options]
        for line in conf:
            args += ["--conf", line]
        self.env = call("nats", *args)
        self.dir, self.url, self.streams = self.env["NATS_DIR"], self.env["NATS_URL"], 0

    @property
    def ports(self):
        return [int(p) for p in self.env["NATS_PORTS"].split(",")]

    @property
    def pids(self):
        return [int(p) for p in self.env["NATS_PIDS"].split(",")]

    def client(self, node=0, **kw):
        return natsraw.Client(self.ports[node], tls=self.env.get("NATS_TLS"), **kw)

    def stream(self, name=None, *subjects, **config):
        """A new stream S<n> of the subjects S<n>.>, or as told; its name."""
        self.streams += 1
        name = name or f"S{os.getpid()}_{self.streams}"
        with self.client() as c:
            c.stream(name, *subjects, **config)
        return name

    def read(self, stream, node=0):
        with self.client(node) as c:
            return c.read(stream)

    def stop(self, node=0, kill=False):
        """One node (from 1) or all."""
        args = ["stop", self.dir, "--keep", *(["--kill"] if kill else [])]
        call("nats", *args, *(["--node", node] if node else []))

    def start(self, *options, conf=()):
        args = ["start", "--dir", self.dir, *options]
        for line in conf:
            args += ["--conf", line]
        self.env = call("nats", *args)

    def close(self):
        subprocess.run([str(SCRIPTS / "nats"), "stop", self.dir, "--kill"], check=False, capture_output=True)


class Rabbit:
    """A RabbitMQ server. Looked at by pika."""

    def __init__(self, *options, conf=(), shared=False):
        self.pika = pytest.importorskip("pika", reason="skipped: there is no python3-pika")
        run = os.environ.get("OUTBOX_TEST_RUN") if shared else None
        args = ["start", "--while", run or os.getpid(), *options]
        for line in conf:
            args += ["--conf", line]
        self.shared = bool(run)
        if run:  # one server for all processes of a run: it takes many seconds to start
            folder = f"{tempfile.gettempdir()}/outbox-rabbit-run-{run}"
            with open(f"{folder}.lock", "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                self.env = call("rabbitmq", *args, "--dir", folder, timeout=300)
        else:
            self.env = call("rabbitmq", *args, timeout=300)
        self.dir, self.url, self.names = self.env["RABBITMQ_DIR"], self.env["RABBITMQ_URL"], 0

    @property
    def port(self):
        return int(self.env["RABBITMQ_PORT"])

    @property
    def pid(self):
        return int(self.env["RABBITMQ_PID"])

    def connect(self):
        return self.pika.BlockingConnection(self.pika.URLParameters(self.url + "?blocked_connection_timeout=60"))

    def name(self, prefix):
        self.names += 1
        return f"{prefix}{os.getpid()}.{self.names}"

    def exchange(self, *bindings, queue=None, arguments=None, kind="topic", name=None):
        """A new durable exchange with one durable queue bound by these keys; (exchange, queue)."""
        exchange = name or self.name("ex")
        queue = queue or self.name("q")
        c = self.connect()
        ch = c.channel()
        ch.exchange_declare(exchange, kind, durable=True)
        ch.queue_declare(queue, durable=True, arguments=arguments)
        for key in bindings or ("#",):
            ch.queue_bind(queue, exchange, key)
        c.close()
        return exchange, queue

    def read(self, queue, keep=False):
        """All messages that are in a queue now, as (method, properties, body); they are taken."""
        c = self.connect()
        ch = c.channel()
        got = []
        while True:
            method, properties, body = ch.basic_get(queue, auto_ack=not keep)
            if method is None:
                break
            got.append((method, properties, body))
        c.close()
        return got

    def depth(self, queue):
        c = self.connect()
        n = c.channel().queue_declare(queue, passive=True).method.message_count
        c.close()
        return n

    def ctl(self, *args):
        return call("rabbitmq", "ctl", self.dir, *args)

    def alarm(self, on, resource="memory"):
        call("rabbitmq", "alarm", self.dir, "on" if on else "off", resource)

    def stop(self, kill=False):
        call("rabbitmq", "stop", self.dir, "--keep", *(["--kill"] if kill else []))

    def start(self):
        self.env = call("rabbitmq", "start", "--dir", self.dir, timeout=240)

    def close(self):
        if self.shared:
            return  # ends with the run
        subprocess.run([str(SCRIPTS / "rabbitmq"), "stop", self.dir, "--kill"], check=False, capture_output=True)


class Mongo:
    """A MongoDB replica set of one node, or of three. Looked at by pymongo, which is not the library of
    the source."""

    def __init__(self, *options, nodes=1, conf=()):
        self.pymongo = pytest.importorskip("pymongo", reason="skipped: there is no python3-pymongo")
        self.auth, self.mtls = "--auth" in options, "--mtls" in options
        args = ["start", "--nodes", nodes, "--while", os.getpid(), *options]
        for line in conf:
            args += ["--set", line]
        self.env = call("mongodb", *args, timeout=400)
        self.dir, self.databases = self.env["MONGODB_DIR"], 0

    @property
    def ports(self):
        return [int(p) for p in self.env["MONGODB_PORTS"].split(",")]

    @property
    def pids(self):
        return [int(p) for p in call("mongodb", "env", self.dir)["MONGODB_PIDS"].split(",")]

    def uri(self, user=None, password="secret", node=0, **more):
        """How a client reaches the set, or one node (from 1) of it directly; with TLS the CA is in it."""
        who = f"{user}:{password}@" if user else ""
        ports = self.ports if not node else [self.ports[node - 1]]
        options = {} if node or "?" not in self.env["MONGODB_URI"] else {"replicaSet": "rs0"}
        if node:
            options["directConnection"] = "true"
        if "MONGODB_TLS" in self.env:
            options.update(tls="true", tlsCAFile=self.env["MONGODB_TLS"] + "/ca.crt")
            if self.mtls:
                options["tlsCertificateKeyFile"] = self.env["MONGODB_TLS"] + "/client.pem"
        options.update(more)
        query = "&".join(f"{k}={v}" for k, v in options.items())
        return f"mongodb://{who}{','.join(f'127.0.0.1:{p}' for p in ports)}/" + (f"?{query}" if query else "")

    def client(self, user=None, node=0, **more):
        """A client of the set, or of one node (from 1); the caller closes it. With --auth: as admin."""
        user = user or ("admin" if self.auth else None)
        more.setdefault("serverSelectionTimeoutMS", int(30000 * SLOW))
        return self.pymongo.MongoClient(self.uri(user, node=node), **more)

    def command(self, name, value=1, node=0, user=None, db="admin", **more):
        with self.client(user, node) as c:
            return c[db].command(name, value, **more)

    def database(self):
        """A new, empty database."""
        self.databases += 1
        return MongoDatabase(self, f"t{os.getpid()}_{self.databases}")

    def primary(self, within=30):
        """The number (from 1) of the node that is primary now, waited for."""

        def find():
            for node in range(1, len(self.ports) + 1):
                try:
                    if self.says(node).get("isWritablePrimary"):
                        return node
                except self.pymongo.errors.PyMongoError:
                    pass
            return 0

        return wait_until(find, within, "a primary", every=0.1)

    def says(self, node, within_ms=1000):
        """What one node answers to `hello`; an exception if it does not answer."""
        limit = int(within_ms * SLOW)
        with self.client(node=node, serverSelectionTimeoutMS=limit, socketTimeoutMS=limit) as c:
            return c.admin.command("hello")

    def signal(self, sig, node=0):
        for i, pid in enumerate(self.pids):
            if node in (0, i + 1):
                os.kill(pid, sig)

    def stop(self, node=0, kill=False):
        """One node (from 1) or all."""
        args = ["stop", self.dir, "--keep", *(["--kill"] if kill else [])]
        call("mongodb", *args, *(["--node", node] if node else []))

    def start(self, node=0):
        self.env = call("mongodb", "start", "--dir", self.dir, *(["--node", node] if node else []), timeout=400)

    def close(self):
        subprocess.run([str(SCRIPTS / "mongodb"), "stop", self.dir, "--kill"], check=False, capture_output=True)


class MongoDatabase:
    """One database of a set; gone when it is closed."""

    def __init__(self, server, name):
        self.server, self.name = server, name
        self.client = server.client()

    def __getitem__(self, collection):
        return self.client[self.name][collection]

    @property
    def db(self):
        return self.client[self.name]

    @property
    def uri(self):
        return self.server.uri("admin" if self.server.auth else None)

    def close(self):
        try:
            self.client.drop_database(self.name)
        except self.server.pymongo.errors.PyMongoError:
            pass  # a set that a test left without a primary goes with its folder
        self.client.close()
