# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the end-to-end tests."""

import os
import signal

import pytest

import helpers
import services


def pytest_configure(config):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what it starts in the background
    if not os.access(helpers.BIN, os.X_OK):
        pytest.exit(f"no program at {helpers.BIN}: run make, or set OUTBOX_BIN", returncode=3)


@pytest.fixture
def outbox(tmp_path):
    """The program in a temporary folder; everything it started is ended afterwards, and a report of
    a sanitizer fails the test."""
    o = helpers.Outbox(tmp_path)
    yield o
    o.close()


@pytest.fixture(scope="session")
def postgres():
    """A PostgreSQL server for all tests of the run."""
    server = services.Postgres()
    yield server
    server.close()


@pytest.fixture
def db(postgres):
    """A database of its own."""
    d = postgres.database()
    yield d
    d.close()


@pytest.fixture
def own_postgres():
    """Starts further clusters, e.g. own_postgres(conf=["wal_level = replica"])."""
    servers = []

    def start(**kw):
        servers.append(services.Postgres(**kw))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture(scope="session")
def kafka():
    """A Kafka broker for all tests of the run."""
    server = services.Kafka(conf=["message.max.bytes=1048588"])
    yield server
    server.close()


@pytest.fixture
def own_kafka():
    """Starts further brokers, e.g. own_kafka(nodes=3)."""
    servers = []

    def start(**kw):
        servers.append(services.Kafka(**kw))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture(scope="session")
def nats():
    """A NATS server with JetStream for all tests of the run."""
    server = services.Nats(conf=["max_payload: 1MB"])
    yield server
    server.close()


@pytest.fixture
def own_nats():
    """Starts further servers, e.g. own_nats("--mtls", nodes=3)."""
    servers = []

    def start(*options, **kw):
        servers.append(services.Nats(*options, **kw))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture(scope="session")
def rabbit():
    """A RabbitMQ server for all tests of the run."""
    server = services.Rabbit("--tls", shared=True)
    yield server
    server.close()


@pytest.fixture
def own_rabbit():
    """Starts a RabbitMQ server that a test may stop and kill."""
    servers = []

    def start(*options, **kw):
        servers.append(services.Rabbit(*options, **kw))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture(scope="session")
def mongo():
    """A MongoDB replica set of one node for all tests of the run."""
    server = services.Mongo()
    yield server
    server.close()


@pytest.fixture
def mdb(mongo):
    """A database of its own in it."""
    d = mongo.database()
    yield d
    d.close()


@pytest.fixture
def own_mongo():
    """Starts further sets, e.g. own_mongo("--auth", nodes=3)."""
    servers = []

    def start(*options, **kw):
        servers.append(services.Mongo(*options, **kw))
        return servers[-1]

    yield start
    for server in servers:
        server.close()
