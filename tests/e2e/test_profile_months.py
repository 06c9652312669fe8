# SPDX-License-Identifier: Apache-2.0
"""test_profile_months - orion's table with a partition per month: the relay creates partitions ahead of the writers, who notice
nothing; `check` reports a month without one, rows in the default partition, and a missing right, each with a statement."""

import json
import os
import re

import pytest

from helpers import ROOT, wait_until
from profiles import Profile

DDL = (ROOT / "schema" / "profiles" / "orion-partitioned.sql").read_text()
MONTHS = """select array_agg(to_char(b.lo at time zone t.zone, 'YYYY-MM') order by b.lo) from outbox.month_table('outbox'::regclass) t,
            outbox.month_bounds('outbox'::regclass) b"""
WANTED = """select array_agg(to_char(date_trunc('month', now() at time zone t.zone) + make_interval(months => i), 'YYYY-MM') order by i)
            from outbox.month_table('outbox'::regclass) t, generate_series(0, %s) i"""
INSERT = """insert into outbox (tenant_id, aggregate_type, aggregate_id, event_type, payload, created_at)
            values (gen_random_uuid(), 'rfq', gen_random_uuid(), 'rfq.created', '{}', now() + %s::interval) returning id::text"""


@pytest.fixture(params=["UTC"])
def ends_this_month(outbox, db, request):
    """The table as it is when nobody has called outbox_months_ahead() for months."""
    db.sql(f"alter database {db.name} set timezone = '{request.param}'")
    db.sql(DDL)
    p = Profile(outbox, db, "orion", ddl=False)
    for (part,) in db.sql("select part::regclass::text from outbox.month_bounds('outbox'::regclass) where lo > now()"):
        db.sql(f"drop table {part}")
    assert db.one(MONTHS) == db.one(WANTED, 0) and db.one("select zone from outbox.month_table('outbox'::regclass)") == request.param
    return p


def findings(outbox):
    return [f for f in map(json.loads, outbox.run("check", "--json", check=None).out.splitlines()) if "partition" in f["what"]]


@pytest.mark.parametrize("ends_this_month", ["UTC", "America/New_York"], indirect=True)
def test_months_are_created_ahead_of_writers(outbox, db, ends_this_month):
    """A transaction that has written to the table stays open meanwhile, and goes on writing."""
    (f,) = findings(outbox)
    assert not f["ok"], f
    assert "has no partition for the months from" in f["what"] and "may not" not in f["what"]
    c = db.connect(autocommit=False)
    cur = c.cursor()
    cur.execute(INSERT, ("0",))
    relay = ends_this_month.start()
    wait_until(lambda: db.one(MONTHS) == db.one(WANTED, 3), 60, "three months ahead")
    cur.execute("set lock_timeout = '2s'")
    for days in (0, 32, 64):
        cur.execute(INSERT, (f"{days} days",))
    c.commit()
    assert db.one("select count(*)::int from only outbox_default") == 0
    ends_this_month.wait("select count(*)::int from outbox where processed_at is null", want=0)
    assert [f["ok"] for f in findings(outbox)] == [True]
    names = [r[0] for r in db.sql("select part::regclass::text from outbox.month_bounds('outbox'::regclass) order by lo desc limit 3")]
    for name in names:  # as those that the owner made: indexes, no constraint left, the same owner
        assert db.one("select count(*)::int from pg_index where indrelid = %s::regclass", name) == 5
        assert db.one("select count(*)::int from pg_constraint where conrelid = %s::regclass and contype = 'c'", name) == 0
    assert relay.err.count("created partition") == 3 and relay.stop() == 0


def test_months_that_the_default_partition_has_rows_of(outbox, db, ends_this_month):
    """Such a month is passed over; the statement of `check` moves the rows into a partition of their own."""
    event = db.sql(INSERT, "1 month")[0][0]
    relay = ends_this_month.start()
    wait_until(lambda: len(db.one(MONTHS)) == 3, 60, "the other months")
    want = db.one(WANTED, 3)
    assert db.one(MONTHS) == [want[0], *want[2:]]
    missing, used = findings(outbox)
    assert not missing["ok"] and not used["ok"] and "outbox_default has rows" in used["what"]
    assert relay.stop() == 0
    db.sql(re.sub(" -- .*", "", used["fix"]))
    assert db.one(MONTHS) == want and db.one("select tableoid::regclass::text from outbox where id = %s", event) != "outbox_default"
    assert [f["ok"] for f in findings(outbox)] == [True]
    outbox.run("run", "--once")
    assert db.one("select processed_at is not null from outbox where id = %s", event)


def test_months_without_the_right_to_create_them(outbox, db, ends_this_month):
    owner, carrier = f"owner_{os.getpid()}", f"carrier_{os.getpid()}"
    try:
        db.sql(f"create role {owner}; create role {carrier} login; grant outbox_relay to {carrier}")
        db.sql(f"alter table outbox owner to {owner}; alter table outbox_default owner to {owner}; grant create, usage on schema public to {owner}")
        db.sql(f"grant select, update on outbox to {carrier}; grant create on schema public to {carrier}")
        text = outbox.path("outbox.yaml").read_text()
        outbox.write("outbox.yaml", text.replace(db.dsn, db.dsn_of(carrier)))
        relay = ends_this_month.start()
        wait_until(lambda: "source.partitions" in relay.err, 30, "the relay reports it")
        line = next(x for x in relay.err.splitlines() if "source.partitions" in x)
        assert f"role {carrier} may not create partitions of public.outbox" in line and "check" in line
        (event,) = db.sql(INSERT, "0")[0]
        ends_this_month.wait("select processed_at is not null from outbox where id = %s", event)
        (f,) = findings(outbox)
        assert not f["ok"] and f"user {carrier} may not create it" in f["what"] and f"GRANT {owner} TO {carrier}" in f["fix"]
        db.sql(f"set role {owner}; " + re.sub(" -- .*", "", f["fix"]))
        assert [f["ok"] for f in findings(outbox)] == [True]
        db.sql(f"grant {owner} to {carrier}")
        assert relay.stop() == 0
        ends_this_month.start()
        wait_until(lambda: db.one(MONTHS) == db.one(WANTED, 3), 60, "the relay creates the others")
        assert {r[0] for r in db.sql("select pg_get_userbyid(relowner)::text from outbox.month_bounds('outbox'::regclass) b join pg_class c "
                                     "on c.oid = b.part where b.lo > now()")} == {owner}
    finally:
        for p in outbox.started:
            p.kill()
        db.sql(f"drop owned by {owner}, {carrier} cascade; drop role {owner}, {carrier}")
