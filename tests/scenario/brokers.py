# SPDX-License-Identifier: Apache-2.0
"""brokers - Kafka, NATS and RabbitMQ as sinks of the scenario: a real server each, and an independent client that reads what was stored,
in which order and when. Each has the methods of FileSink in file_sink.py, and faults of its own."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))
from verdict import Delivery  # noqa: E402

import natsraw  # noqa: E402

SERVICES = HERE.parent / "services"


CLOCKS = time.monotonic() - time.time()  # read only here, so that equal times stay equal


def monotonic(wall):
    """A broker's time on the clock of the ledgers."""
    return wall + CLOCKS


class Broker:
    """Started and stopped by its script. `pull()` of each kind reads what is new and appends it to `got`."""

    script, prefix = "", ""

    slack = 0.0
    removes = True
    max_shards = 4

    def __init__(self, *options):
        self.got, self.seen, self.topics, self.trouble = [], set(), [], None
        self.reader, self.complete = None, False
        self.env = self.call("start", "--while", os.getpid(), *options)
        self.folder = self.env[f"{self.prefix}_DIR"]

    def call(self, *args):
        r = subprocess.run([str(SERVICES / self.script), *map(str, args)], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if r.returncode:
            sys.exit(f"{r.stdout}{r.stderr}")
        return dict(x.split("=", 1) for x in r.stdout.splitlines() if "=" in x)

    def note(self, at, body, topic, lane=""):
        value = json.loads(body)
        self.got.append(Delivery(at, value["key"], value["tag"], lane, topic))
        self.seen.add(value["tag"])

    def mark(self):
        pass

    def pull(self):
        raise NotImplementedError

    def read_new(self):
        """As far as the broker answers; True if it did. A client that waits for a broker that is down is left to itself: whoever starts the
        broker again must not wait for it."""
        if self.reader is None or not self.reader.is_alive():
            self.complete = False
            self.reader = threading.Thread(target=self.try_pull, daemon=True)
            self.reader.start()
        self.reader.join(10)
        return self.complete

    def try_pull(self):
        try:
            self.pull()
            self.complete = True
        except Exception as e:  # the broker is down or hangs: the rest is read later
            self.trouble = e

    def count(self):
        self.read_new()
        return len(self.got)

    def tags(self):
        self.read_new()
        return self.seen

    def deliveries(self):
        self.read_new()
        return sorted(self.got, key=lambda d: d.at) if self.by_time else self.got

    by_time = False

    # ---- topics ----

    def add_topic(self, topic):
        if topic in self.topics:
            return
        self.topics.append(topic)
        try:
            self.change_topics(added=topic)
        except Exception:
            self.topics.remove(topic)
            raise

    def remove_topic(self, topic):
        """Everything in it is read first; the caller sees to it that nothing more comes."""
        if topic not in self.topics or not self.read_new():
            return False
        self.topics.remove(topic)
        self.change_topics(removed=topic)
        return True

    def change_topics(self, added=None, removed=None):
        raise NotImplementedError

    def amounts(self, topic):
        """Messages of this topic, and of all others."""
        self.read_new()
        mine = sum(d.topic == topic for d in self.got)
        return mine, len(self.got) - mine

    # ---- faults ----

    def pids(self):
        return [int(p) for p in self.env[next(k for k in (f"{self.prefix}_PIDS", f"{self.prefix}_PID") if k in self.env)].split(",")]

    def kill(self):
        self.call("stop", self.folder, "--kill", "--keep")

    def start(self):
        self.env = self.call("start", "--dir", self.folder)

    def hang(self, begin):
        for pid in self.pids():
            os.kill(pid, signal.SIGSTOP if begin else signal.SIGCONT)

    def outage(self, begin):
        if begin:
            self.call("stop", self.folder, "--keep")
        else:
            self.start()

    def close(self):
        self.call("stop", self.folder, "--kill")


class Nats(Broker):
    """One stream for all subjects. Its duplicate window is so short that a message that was sent twice is stored twice."""

    script, prefix = "nats", "NATS"

    def __init__(self, chain=False):
        super().__init__()
        self.chain, self.next = chain, 1
        self.max_shards = 1 if chain else 4
        self.made = False

    def client(self):
        return natsraw.Client(int(self.env["NATS_PORTS"]), timeout=5)

    def config(self):
        more = ", single_writer: true, stream_prefixes: {events: EVENTS}" if self.chain else ""
        return f'{{type: nats, url: "{self.env["NATS_URL"]}", ping_interval: 1s{more}}}'

    def change_topics(self, added=None, removed=None):
        with self.client() as c:
            if self.made:
                c.update("EVENTS", subjects=self.topics)
            else:
                c.stream("EVENTS", *self.topics, duplicate_window=100_000_000)
            self.made = True

    def pull(self):
        with self.client() as c:
            for m in c.read("EVENTS", self.next):
                self.next = m.seq + 1
                self.note(monotonic(m.time), m.data, m.subject)


class Rabbit(Broker):
    """One queue for all routing keys, consumed while it runs. What the consumer could not acknowledge is redelivered to it, with a flag."""

    script, prefix = "rabbitmq", "RABBITMQ"

    def __init__(self):
        import pika

        self.pika = pika
        super().__init__()
        c = self.connect()
        ch = c.channel()
        ch.exchange_declare("scenario", "topic", durable=True)
        ch.queue_declare("events", durable=True)
        c.close()
        self.going = True
        self.thread = threading.Thread(target=self.consume, daemon=True)
        self.thread.start()

    def connect(self):
        return self.pika.BlockingConnection(self.pika.URLParameters(self.env["RABBITMQ_URL"] + "?heartbeat=4&socket_timeout=5"))

    def config(self):
        return f'{{type: rabbitmq, url: "{self.env["RABBITMQ_URL"]}", exchange: scenario, heartbeat: 2s}}'

    def change_topics(self, added=None, removed=None):
        c = self.connect()
        if added:
            c.channel().queue_bind("events", "scenario", added)
        else:
            c.channel().queue_unbind("events", "scenario", removed)
        c.close()

    def consume(self):
        while self.going:
            try:
                c = self.connect()
                ch = c.channel()
                ch.basic_qos(prefetch_count=500)
                for method, _, body in ch.consume("events", inactivity_timeout=0.2):
                    if method and not (method.redelivered and json.loads(body)["tag"] in self.seen):
                        self.note(time.monotonic(), body, method.routing_key)
                    if method:
                        ch.basic_ack(method.delivery_tag)
                    if not self.going:
                        break
                c.close()
            except Exception:  # the broker is down or hangs
                time.sleep(0.1)

    def pull(self):
        pass  # the consumer does

    def close(self):
        self.going = False
        self.thread.join(20)
        super().close()


class Kafka(Broker):
    """Three partitions a topic, with the broker's own time on every record."""

    script, prefix = "kafka", "KAFKA"
    by_time = True
    slack = 0.005

    def __init__(self):
        import kafka

        self.kafka = kafka
        super().__init__()
        self.at = {}

    def change_topics(self, added=None, removed=None):
        from kafka.admin import NewTopic

        admin = self.kafka.KafkaAdminClient(bootstrap_servers=self.env["KAFKA_BROKERS"], api_version=(2, 5, 0))
        try:
            if added:
                admin.create_topics([NewTopic(added, 3, 1, topic_configs={"message.timestamp.type": "LogAppendTime"})])
            else:
                admin.delete_topics([removed])
        finally:
            admin.close()

    def config(self):
        return f'{{type: kafka, brokers: "{self.env["KAFKA_BROKERS"]}"}}'

    def pull(self):
        c = self.kafka.KafkaConsumer(
            bootstrap_servers=self.env["KAFKA_BROKERS"], api_version=(2, 5, 0), enable_auto_commit=False, request_timeout_ms=5000,
            session_timeout_ms=4000, heartbeat_interval_ms=1000, fetch_max_wait_ms=200,
        )
        try:
            parts = [self.kafka.TopicPartition(t, p) for t in self.topics for p in range(3)]
            ends = c.end_offsets(parts)
            c.assign(parts)
            for part in parts:
                c.seek(part, self.at.get(part, 0))
            until = time.monotonic() + 20
            while any(self.at.get(p, 0) < ends[p] for p in parts) and time.monotonic() < until:
                for part, records in c.poll(500).items():
                    for r in records:
                        self.note(monotonic(r.timestamp / 1000), r.value, part.topic, f"{part.topic}/{part.partition}")
                        self.at[part] = r.offset + 1
        finally:
            c.close(autocommit=False)


SINKS = {"kafka": Kafka, "nats": Nats, "nats-chain": lambda: Nats(chain=True), "rabbitmq": Rabbit}
