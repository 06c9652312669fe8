# SPDX-License-Identifier: Apache-2.0
"""brokers - Kafka, NATS and RabbitMQ as sinks of the scenario: a real server each, and a client that is not ours which tells what came,
in which order and when. Each has the methods of FileSink in scenario.py, and faults of its own."""

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


CLOCKS = time.monotonic() - time.time()  # looked at once, so that equal times stay equal


def monotonic(wall):
    """A broker's time, on the clock that the faults are noted by."""
    return wall + CLOCKS


class Broker:
    """Started and stopped by its script. `pull()` of each kind reads what is new and appends it to `got`."""

    script, prefix = "", ""

    def __init__(self, *options):
        self.got, self.seen = [], set()
        self.env = self.call("start", "--while", os.getpid(), *options)
        self.folder = self.env[f"{self.prefix}_DIR"]

    def call(self, *args):
        r = subprocess.run([str(SERVICES / self.script), *map(str, args)], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if r.returncode:
            sys.exit(f"{r.stdout}{r.stderr}")
        return dict(x.split("=", 1) for x in r.stdout.splitlines() if "=" in x)

    def note(self, at, body):
        value = json.loads(body)
        self.got.append(Delivery(at, value["key"], value["tag"]))
        self.seen.add(value["tag"])

    def topic(self):
        return "events"

    def mark(self):
        pass

    def pull(self):
        raise NotImplementedError

    def look(self):
        """As far as the broker answers."""
        try:
            self.pull()
        except Exception as e:  # it is down, or hangs: what it has is read later
            self.trouble = e

    def count(self):
        self.look()
        return len(self.got)

    def tags(self):
        self.look()
        return self.seen

    def deliveries(self):
        self.look()
        return sorted(self.got, key=lambda d: d.at) if self.by_time else self.got

    by_time = False

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
    """Its duplicate window is so short that what came twice is seen twice."""

    script, prefix = "nats", "NATS"

    def __init__(self, chain=False):
        super().__init__()
        self.chain, self.next = chain, 1
        with self.client() as c:
            c.stream("EVENTS", "events", duplicate_window=100_000_000)

    def client(self):
        return natsraw.Client(int(self.env["NATS_PORTS"]), timeout=5)

    def config(self):
        more = ", single_writer: true, stream_prefixes: {events: EVENTS}" if self.chain else ""
        return f'{{type: nats, url: "{self.env["NATS_URL"]}", ping_interval: 1s{more}}}'

    def pull(self):
        with self.client() as c:
            for m in c.read("EVENTS", self.next):
                self.next = m.seq + 1
                self.note(monotonic(m.time), m.data)


class Rabbit(Broker):
    """Consumed while it runs. What the consumer had and could not acknowledge comes again to it by its own fault, with a flag."""

    script, prefix = "rabbitmq", "RABBITMQ"

    def __init__(self):
        import pika

        self.pika = pika
        super().__init__()
        c = self.connect()
        ch = c.channel()
        ch.exchange_declare("scenario", "topic", durable=True)
        ch.queue_declare("events", durable=True)
        ch.queue_bind("events", "scenario", "#")
        c.close()
        self.going = True
        self.thread = threading.Thread(target=self.consume, daemon=True)
        self.thread.start()

    def connect(self):
        return self.pika.BlockingConnection(self.pika.URLParameters(self.env["RABBITMQ_URL"] + "?heartbeat=4&socket_timeout=5"))

    def config(self):
        return f'{{type: rabbitmq, url: "{self.env["RABBITMQ_URL"]}", exchange: scenario, heartbeat: 2s}}'

    def consume(self):
        while self.going:
            try:
                c = self.connect()
                ch = c.channel()
                ch.basic_qos(prefetch_count=500)
                for method, _, body in ch.consume("events", inactivity_timeout=0.2):
                    if method and not (method.redelivered and json.loads(body)["tag"] in self.seen):
                        self.note(time.monotonic(), body)
                    if method:
                        ch.basic_ack(method.delivery_tag)
                    if not self.going:
                        break
                c.close()
            except Exception:  # it is down, or hangs
                time.sleep(0.1)

    def pull(self):
        pass  # the consumer does

    def close(self):
        self.going = False
        self.thread.join(20)
        super().close()


class Kafka(Broker):
    """Three partitions, with the broker's own time on every record."""

    script, prefix = "kafka", "KAFKA"
    by_time = True

    def __init__(self):
        import kafka
        from kafka.admin import NewTopic

        self.kafka = kafka
        super().__init__()
        self.at = {}
        admin = kafka.KafkaAdminClient(bootstrap_servers=self.env["KAFKA_BROKERS"], api_version=(2, 5, 0))
        admin.create_topics([NewTopic("events", 3, 1, topic_configs={"message.timestamp.type": "LogAppendTime"})])
        admin.close()

    def config(self):
        return f'{{type: kafka, brokers: "{self.env["KAFKA_BROKERS"]}"}}'

    def pull(self):
        c = self.kafka.KafkaConsumer(
            bootstrap_servers=self.env["KAFKA_BROKERS"], api_version=(2, 5, 0), enable_auto_commit=False, request_timeout_ms=5000,
            session_timeout_ms=4000, heartbeat_interval_ms=1000, fetch_max_wait_ms=200,
        )
        try:
            parts = [self.kafka.TopicPartition("events", p) for p in range(3)]
            ends = c.end_offsets(parts)
            c.assign(parts)
            for part in parts:
                c.seek(part, self.at.get(part, 0))
            until = time.monotonic() + 20
            while any(self.at.get(p, 0) < ends[p] for p in parts) and time.monotonic() < until:
                for part, records in c.poll(500).items():
                    for r in records:
                        self.note(monotonic(r.timestamp / 1000), r.value)
                        self.at[part] = r.offset + 1
        finally:
            c.close(autocommit=False)


SINKS = {"kafka": Kafka, "nats": Nats, "nats-chain": lambda: Nats(chain=True), "rabbitmq": Rabbit}
