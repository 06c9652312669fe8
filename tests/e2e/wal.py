# SPDX-License-Identifier: Apache-2.0
"""wal - what the tests of mode wal share."""

from helpers import wait_until
from pg import config


def wal_config(outbox, db, source="", **kw):
    config(outbox, db, source="mode: wal" + (f", {source}" if source else ""), **kw)


def on_stream(relay, shards=1, times=1):
    """Waits until every shard reads the stream (again)."""
    wait_until(lambda: relay.err.count("wal.stream") >= shards * times, 20, "the stream is read")


def slots(db):
    return [r[0] for r in db.sql("select slot_name from pg_replication_slots where database = current_database() order by 1")]


def slot_of(db):
    return f"outbox_{db.name}_orders_0"


def stand_by(own_postgres, server, name):
    """A physical stand-by of the server, made from a base backup."""
    folder = f"{server.dir}/backup-{name}"
    server.tool("pg_basebackup", "-D", folder, "-R", "-X", "stream", "-c", "fast", "-d", f"application_name={name}")
    return own_postgres(source=folder)
