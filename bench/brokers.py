#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""brokers - each sink beside a bare loop on its own client library, and the way from PostgreSQL to a broker beside both raw
ends, in one run.

    bench/brokers.py [--events 200000] [--rounds 3] [--sinks kafka,nats,rabbitmq] [--only sink,drain,latency,naive]

It starts servers of its own (tests/services) and touches nothing else. Raw and ours run in turn, figures are medians; the last
lines are `bench name=… ours=… limit=… ratio=…`. Compiled by `make bench-brokers`, which calls it. Another sink is another class
with the methods of Kafka below.
"""

import argparse
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import psycopg2

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAYLOAD = 300
POLLED = 20000  # events of the backlog of a poller, and of ours beside it


def say(text):
    print(f"bench: {text}", file=sys.stderr, flush=True)


def service(name, *args):
    argv = [str(ROOT / "tests" / "services" / name), "start", "--while", str(os.getpid()), *args]
    r = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if r.returncode == 77:
        say(f"{name}: {r.stdout.strip()}")
        return None
    if r.returncode:
        sys.exit(f"{r.stdout}{r.stderr}")
    return dict(x.split("=", 1) for x in r.stdout.splitlines() if "=" in x)


def gated(argv):
    """A bare loop that has made its messages and waits for a line to send them."""
    p = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    if p.stdout.readline() != "ready\n":
        sys.exit(f"{argv}: exit code {p.wait()}")
    return p


class Kafka:
    name = "kafka"
    more = 5  # its loops are over too soon to be measured with as many events as the others

    def __init__(self, build):
        self.env = service("kafka")
        self.bin = build / "bench" / "kafka-bench"
        self.n = 0

    def place(self):
        """A new topic whose leaders answer."""
        from kafka import KafkaAdminClient
        from kafka.admin import NewTopic
        from kafka.errors import KafkaError

        self.n += 1
        a = KafkaAdminClient(bootstrap_servers=self.env["KAFKA_BROKERS"], api_version=(2, 5, 0))
        a.create_topics([NewTopic(f"bench-{self.n}", 3, -1, [])])
        a.close()
        for _ in range(100):
            try:
                self.count(f"bench-{self.n}")
                break
            except (KafkaError, TypeError):  # no leader, or not known yet
                time.sleep(0.1)
        return f"bench-{self.n}"

    def loop(self, how, events, rate=0):
        """raw or ours: what the program measured."""
        argv = [self.bin, how, self.env["KAFKA_BROKERS"], self.place(), str(events), *([str(rate)] if rate else [])]
        r = subprocess.run(argv, capture_output=True, text=True, check=True)
        return {k: float(v) for k, v in (x.split("=") for x in r.stdout.split())}

    def start_raw(self, events):
        return gated([self.bin, "gate", self.env["KAFKA_BROKERS"], self.place(), str(events)])

    def sink(self, place):
        return f'{{type: kafka, brokers: "{self.env["KAFKA_BROKERS"]}"}}', place

    def poller(self, topic):
        """What a straightforward poller sends with: some at once, then it waits for the acknowledgements."""
        from kafka import KafkaProducer

        p = KafkaProducer(bootstrap_servers=self.env["KAFKA_BROKERS"], api_version=(2, 5, 0), acks="all")
        p.partitions_for(topic)

        def send(rows):
            for f in [p.send(topic, key=key.encode(), value=value.encode()) for key, value in rows]:
                f.get(30)

        return send

    def count(self, topic):
        from kafka import KafkaConsumer, TopicPartition

        c = KafkaConsumer(bootstrap_servers=self.env["KAFKA_BROKERS"], api_version=(2, 5, 0))
        ends = c.end_offsets([TopicPartition(topic, p) for p in c.partitions_for_topic(topic)])
        c.close()
        return sum(ends.values())


class Nats:
    name = "nats"
    more = 1

    def __init__(self, build):
        self.env = service("nats")
        self.bin = build / "bench" / "nats-bench"
        self.n = 0

    def place(self):
        """A new stream; those before are not needed any more, and cost the server memory."""
        sys.path.insert(0, str(ROOT / "tests" / "e2e"))
        import natsraw

        self.n += 1
        with natsraw.Client(int(self.env["NATS_PORTS"])) as c:
            if self.n > 1:
                c.delete(f"B{self.n - 1}")
            c.stream(f"B{self.n}", f"b{self.n}.>")
        return f"b{self.n}.x"

    def loop(self, how, events, rate=0):
        argv = [self.bin, how, self.env["NATS_URL"], self.place(), str(events), *([str(rate)] if rate else [])]
        r = subprocess.run(argv, capture_output=True, text=True, check=True)
        return {k: float(v) for k, v in (x.split("=") for x in r.stdout.split())}

    def start_raw(self, events):
        return gated([self.bin, "gate", self.env["NATS_URL"], self.place(), str(events)])

    def sink(self, place):
        return f'{{type: nats, url: "{self.env["NATS_URL"]}"}}', place

    poller = None


class Rabbit:
    name = "rabbitmq"
    more = 1

    def __init__(self, build):
        self.env = service("rabbitmq")
        self.bin = build / "bench" / "rabbit-bench"
        self.n = 0

    def place(self):
        """A new queue; the one before is not needed any more, and costs the server memory."""
        import pika

        self.n += 1
        c = pika.BlockingConnection(pika.URLParameters(self.env["RABBITMQ_URL"]))
        ch = c.channel()
        ch.exchange_declare("bench", "topic", durable=True)
        ch.queue_delete(f"b{self.n - 1}")
        ch.queue_declare(f"b{self.n}", durable=True)
        ch.queue_bind(f"b{self.n}", "bench", f"b{self.n}")
        c.close()
        return f"b{self.n}"

    def loop(self, how, events, rate=0):
        argv = [self.bin, how, self.env["RABBITMQ_URL"], self.place(), str(events), *([str(rate)] if rate else [])]
        r = subprocess.run(argv, capture_output=True, text=True, check=True)
        return {k: float(v) for k, v in (x.split("=") for x in r.stdout.split())}

    def start_raw(self, events):
        return gated([self.bin, "gate", self.env["RABBITMQ_URL"], self.place(), str(events)])

    def sink(self, place):
        return f'{{type: rabbitmq, url: "{self.env["RABBITMQ_URL"]}", exchange: bench}}', place

    poller = None


SINKS = {"kafka": Kafka, "nats": Nats, "rabbitmq": Rabbit}


class Postgres:
    def __init__(self):
        conf = ["wal_level = logical", "shared_buffers = 256MB", "max_wal_size = 8GB", "checkpoint_timeout = 1h", "fsync = on"]
        self.env = service("postgres", *(x for line in conf for x in ("--conf", line)))
        self.n = 0

    def dsn(self, db):
        return f"host=127.0.0.1 port={self.env['PGPORT']} user=postgres dbname={db}"

    def connect(self, db):
        c = psycopg2.connect(self.dsn(db))
        c.autocommit = True
        return c

    def database(self):
        self.n += 1
        self.connect("postgres").cursor().execute(f"create database b{self.n}")
        return f"b{self.n}"

    def drop(self, db):
        cur = self.connect(db).cursor()
        cur.execute("select count(pg_drop_replication_slot(slot_name)) from pg_replication_slots where database = current_database()")
        self.connect("postgres").cursor().execute(f"drop database {db} with (force)")

    def client_env(self):
        return {**os.environ, "PGHOST": "127.0.0.1", "PGPORT": self.env["PGPORT"], "PGUSER": "postgres"}

    def raw_reader(self, build, db, mode):
        """Before the events: what reads them with nothing of ours; called after them."""
        if mode == "log":
            return lambda: [str(build / "bench" / "pg-bench"), "page", self.dsn(db), "1000"]
        cur = self.connect(db).cursor()
        cur.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (f"raw_{db}",))
        cur.execute("select pubname from pg_publication order by oid desc limit 1")
        publication = cur.fetchone()[0]

        def argv():
            cur.execute("select pg_current_wal_flush_lsn()::text")
            return [f"{self.env['PGBIN']}/pg_recvlogical", "-d", db, "--slot", f"raw_{db}", "--start", "--no-loop", "-f", "/dev/null",
                    "-o", "proto_version=1", "-o", f"publication_names={publication}", "--endpos", cur.fetchone()[0], "-F", "0", "-s", "10"]

        return argv


class Relay:
    """The program on a database of its own."""

    def __init__(self, build, pg, sink, topic, mode="log", source="", db=None):
        self.bin, self.pg, self.db = build / "outbox", pg, db or pg.database()
        self.dir = tempfile.mkdtemp(prefix="outbox-bench.")
        self.source, self.sink = f'{{type: postgres, dsn: "{pg.dsn(self.db)}", mode: {mode}{source}}}', sink
        self.to(topic)
        self.run("schema", "--apply")
        if mode == "wal":  # the slot is there before the first event
            self.run("run", "--once")

    def to(self, topic):
        pathlib.Path(self.dir, "outbox.yaml").write_text(f"""
log: {{level: warn}}
pipelines:
  bench:
    source: {self.source}
    sink: {self.sink}
    routes: [{{topic: "{topic}"}}]
    envelope: none
""")

    def run(self, *args):
        subprocess.run([self.bin, *args], cwd=self.dir, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def fill(self, events):
        cur = self.pg.connect(self.db).cursor()
        step = 20000
        for at in range(0, events, step):
            cur.execute(
                "select count(outbox.emit(type => 'bench', aggregate_type => 'b', aggregate_id => 'key-' || (i %% 10000), "
                "payload => %s::json)) from generate_series(1, %s) as i",
                ('"' + "x" * (PAYLOAD - 2) + '"', min(step, events - at)))

    def drain(self):
        start = time.monotonic()
        self.run("run", "--once")
        return time.monotonic() - start

    def left(self):
        """What was parked or given up: then it was not a drain."""
        cur = self.pg.connect(self.db).cursor()
        cur.execute("select (select count(*) from outbox.parked) + (select count(*) from outbox.dead)")
        return int(cur.fetchone()[0])


def medians(rounds, *measures):
    got = [[] for _ in measures]
    for i in range(rounds):
        for k, measure in enumerate(measures):
            got[k].append(measure())
            say(f"round {i + 1}: {got[k][-1]}")
    return [statistics.median(g) for g in got]


class Run:
    def __init__(self, args):
        self.args, self.build, self.lines = args, pathlib.Path(args.build).resolve(), []

    def line(self, name, ours, limit, unit):
        self.lines.append(f"bench name={name} ours={ours:.3f} limit={limit:.3f} ratio={ours / limit if limit else 0:.3f} unit={unit}")
        say(self.lines[-1])

    def sink(self, s):
        raw, ours = medians(self.args.rounds, lambda: s.loop("raw", self.args.events * s.more)["events_s"],
                            lambda: s.loop("ours", self.args.events * s.more)["events_s"])
        self.line(f"{s.name}-sink", ours, raw, "events/s")
        a, b = s.loop("raw", 6000, 1000), s.loop("ours", 6000, 1000)
        self.line(f"{s.name}-sink-p50", b["p50_ms"], a["p50_ms"], "ms")
        self.line(f"{s.name}-sink-p99", b["p99_ms"], a["p99_ms"], "ms")

    def drain(self, s, pg):
        """Ours beside both raw ends at once, not connected: bare paging or pg_recvlogical, and the bare loop. Mode wal is to stream, also
        a backlog that it would rather read from the table."""
        n = self.args.events * s.more
        for mode, source in (("log", ""), ("wal", ", catch_up: 0, wal_budget: 0")):
            def once(mode=mode, source=source):
                r = Relay(self.build, pg, *s.sink("later"), mode, source)
                raw = pg.raw_reader(self.build, r.db, mode)
                r.fill(n)
                sending, argv = s.start_raw(n), raw()
                start = time.monotonic()
                reading = subprocess.Popen(argv, stdout=subprocess.DEVNULL, env=pg.client_env())
                sending.stdin.write("\n")
                sending.stdin.flush()
                if reading.wait():
                    sys.exit(f"{argv}: exit code {reading.returncode}")
                reader = n / (time.monotonic() - start)
                out = sending.communicate()[0]
                writer = float(dict(x.split("=") for x in out.split())["events_s"])
                say(f"raw: {reader:.0f} read, {writer:.0f} sent")
                r.to(s.sink(s.place())[1])
                got = (n / r.drain(), min(reader, writer))
                if r.left():
                    sys.exit(f"{r.left()} of {n} were not delivered")
                pg.drop(r.db)
                return got

            rounds = []
            for i in range(self.args.rounds):
                rounds.append(once())
                say(f"round {i + 1}: ours {rounds[-1][0]:.0f}, limit {rounds[-1][1]:.0f}, ratio {rounds[-1][0] / rounds[-1][1]:.3f}")
            self.line(f"postgres-{mode}-{s.name}", *(statistics.median(r[k] for r in rounds) for k in (0, 1)), "events/s")

    def latency(self, s, pg):
        """From the answer to COMMIT until the relay has heard the acknowledgement, at 1,000 one-row transactions a second; beside
        the bare client at the same rate."""
        raw = s.loop("raw", 6000, 1000)
        for mode in ("wal", "log"):
            sink, topic = s.sink(s.place())
            r = Relay(self.build, pg, sink, topic, mode)
            r.run("run", "--once")
            argv = [self.build / "bench" / "pg-bench", "latency", "outbox.yaml", pg.dsn(r.db), "1000", "10"]
            out = subprocess.run(argv, cwd=r.dir, capture_output=True, text=True, check=True).stdout
            got = {k: float(v) for k, v in (x.split("=") for x in out.split())}
            self.line(f"postgres-{mode}-{s.name}-p50", got["p50_ms"], raw["p50_ms"] + 1.5, "ms")
            self.line(f"postgres-{mode}-{s.name}-p99", got["p99_ms"], raw["p99_ms"] + 8, "ms")

    def naive(self, s, pg):
        """What a user would take instead, beside ours on as many events: select 100 for update skip locked, send, wait for the
        acknowledgements, mark, commit. Ours is the whole run of the program, from its start to its end."""
        n = min(self.args.events, POLLED)
        s.loop("raw", 1000)  # the first number that a new broker gives to a producer takes it half a second

        def poller():
            c = psycopg2.connect(pg.dsn(pg.database()))
            cur = c.cursor()
            cur.execute("create table outbox (id bigserial primary key, key text, payload text, done boolean not null default false)")
            cur.execute("create index on outbox (id) where not done")
            cur.execute("insert into outbox (key, payload) select 'key-' || (i %% 10000), %s from generate_series(1, %s) as i", ("x" * PAYLOAD, n))
            c.commit()
            cur.execute("analyze outbox")
            c.commit()
            topic = s.place()
            send, start, sent = s.poller(topic), time.monotonic(), 0
            while True:
                cur.execute("select id, key, payload from outbox where not done order by id limit 100 for update skip locked")
                rows = cur.fetchall()
                if not rows:
                    break
                send([(key, payload) for _, key, payload in rows])
                cur.execute("update outbox set done = true where id = any(%s)", ([r[0] for r in rows],))
                c.commit()
                sent += len(rows)
            took = time.monotonic() - start
            c.close()
            self.there(s, topic, n)
            return sent / took

        def ours():
            sink, topic = s.sink(s.place())
            r = Relay(self.build, pg, sink, topic)
            r.fill(n)
            took = r.drain()
            self.there(s, topic, n)
            return n / took

        theirs, got = medians(self.args.rounds, poller, ours)
        self.line(f"{s.name}-beside-a-poller", got, theirs, "events/s")

    def there(self, s, topic, n):
        """A rate counts only if everything arrived."""
        if s.count(topic) != n:
            sys.exit(f"{topic} has {s.count(topic)} of {n} events")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", default="build")
    p.add_argument("--events", type=int, default=200000)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--sinks", default=",".join(SINKS))
    p.add_argument("--only", default="sink,drain,latency,naive")
    args = p.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    run, only, pg = Run(args), args.only.split(","), None
    for name in args.sinks.split(","):
        s = SINKS[name](run.build)
        if s.env is None:
            continue
        if "sink" in only:
            run.sink(s)
        if set(only) - {"sink"}:
            pg = pg or Postgres()
        if "drain" in only:
            run.drain(s, pg)
        if "latency" in only:
            run.latency(s, pg)
        if "naive" in only and s.poller:
            run.naive(s, pg)
    print("\n".join(run.lines))


if __name__ == "__main__":
    main()
