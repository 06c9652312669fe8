# SPDX-License-Identifier: Apache-2.0
"""test_postgres_subscription - an outbox that logical replication feeds from another cluster: the relay refuses it, because
transaction ids in it are of the other server."""

import pytest

from helpers import ROOT, wait_until
from pg import config, emit
from profiles import Profile


@pytest.fixture
def fed(outbox, db, own_postgres):
    """A database whose tables can be fed from `db`, and how: feed(table, option) makes publication and subscription."""
    here = own_postgres().database()
    names = []

    def feed(table, **options):
        name = f"s{len(names)}_{db.name}"
        names.append(name)
        with_ = f" with ({', '.join(f'{k} = {v}' for k, v in options.items())})" if options else ""
        db.sql(f"create publication {name} for table {table}{with_}")
        here.sql(f"create subscription {name} connection '{db.dsn}' publication {name} with (copy_data = false)")
        return name

    here.feed = feed
    yield here
    for name in names:
        here.sql(f"drop subscription if exists {name}")  # and its slot on the other server


def refused(outbox, *parts):
    r = outbox.run("run", "--once", check=None)
    assert r.returncode != 0, r.err
    told = outbox.run("check", check=None).out
    for part in parts:
        assert part in r.err, r.err
        assert part in told, told


def test_the_native_table_is_refused(outbox, db, fed):
    """Also when the subscription has only its partitions, as it has unless it publishes by the root."""
    config(outbox, db)
    config(outbox, fed)
    outbox.run("run", "--once")
    at = fed.sql("select pos, snap::text from outbox.cursor")
    for options, table in (({}, "outbox.event_"), ({"publish_via_partition_root": "true"}, "outbox.event,")):
        name = fed.feed("outbox.event", **options)
        rows = fed.sql("select srrelid::regclass::text from pg_subscription_rel")
        assert ("outbox.event",) in rows if options else ("outbox.event",) not in rows and rows, rows
        emit(db.connect().cursor(), "k", len(options))
        wait_until(lambda n=len(options): fed.one("select count(*)::int from outbox.event") == n + 1, 20, "replicated")
        for mode in ("log", "wal"):
            config(outbox, fed, source=f"mode: {mode}", apply=False)
            refused(outbox, "a subscription writes " + table.rstrip(","), "transaction ids are another server's",
                    "relay from the server that it is replicated from")
        assert fed.sql("select pos, snap::text from outbox.cursor") == at, "nothing was passed over"
        fed.sql(f"drop subscription {name}")
    assert not outbox.path("out/events.jsonl").exists(), "and nothing delivered"
    # an outbox without a table does not mind
    fed.feed("outbox.event")
    config(outbox, fed, source="mode: wal, message_prefix: outbox", apply=False)
    assert "subscription" not in outbox.run("check", check=None).out
    outbox.run("run", "--once")


def test_a_mapped_table_is_refused(outbox, db, fed):
    for name in ("orion", "orion-partitioned"):
        ddl = (ROOT / "schema" / "profiles" / f"{name}.sql").read_text()
        db.sql(ddl)
        Profile(outbox, fed, "orion", ddl=ddl)
        subscription = fed.feed("outbox")
        refused(outbox, '"public"."outbox" is written by a subscription', "relay from the server that it is replicated from")
        fed.sql(f"drop subscription {subscription}")
        outbox.run("run", "--once")
        for d in (db, fed):
            d.sql("drop table outbox")
