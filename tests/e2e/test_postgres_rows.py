# SPDX-License-Identifier: Apache-2.0
"""test_postgres_rows - mode rows on tables of many shapes: nothing lost, nothing twice without a reason, order per key."""

import json
import threading
import time

import pytest

from helpers import ROOT, SLOW, read_jsonl, wait_until
from profiles import FILE, REFUSE, Profile

TENANT = "6a1f7e2c-0d3b-4a58-9a11-0242ac120002"


class Writer(threading.Thread):
    """Commits rows into orion's table in order per key, rolls some back, and remembers what it committed."""

    def __init__(self, db, keys, pause=0.0005):
        super().__init__(daemon=True)
        self.db, self.keys, self.pause = db, keys, pause
        self.ledger = {k: [] for k in keys}
        self.go, self.error = True, None

    def run(self):
        try:
            c = self.db.server.connect(self.db.name, autocommit=False)
            cur, n = c.cursor(), 0
            while self.go:
                n += 1
                key = self.keys[n % len(self.keys)]
                cur.execute("insert into outbox (tenant_id, aggregate_type, aggregate_id, event_type, payload) "
                            "values (%s, 'rfq', %s, 'rfq.created', %s)", (TENANT, key, json.dumps({"n": n})))
                if n % 7 == 0:
                    c.rollback()
                else:
                    c.commit()
                    self.ledger[key].append(n)
                time.sleep(self.pause)
            c.close()
        except Exception as e:  # the test looks at it
            self.error = e

    def stop(self):
        self.go = False
        self.join()
        if self.error:
            raise self.error


def keys(n):
    return [f"00000000-0000-0000-0000-{i:012d}" for i in range(n)]


def seen(paths):
    got = []
    for p in paths:
        got += [(m["key"], m["value"]["payload"]["n"]) for m in read_jsonl(p)]
    return got


def check(ledger, got):
    """Nothing missing, nothing phantom, first deliveries in order. Gives the number of repeats."""
    first = {k: [] for k in ledger}
    repeats = 0
    for key, n in got:
        if n in first[key]:
            repeats += 1
        else:
            first[key].append(n)
    assert first == ledger
    return repeats


def all_there(ledger, paths):
    want = {(k, n) for k, ns in ledger.items() for n in ns}
    return lambda: set(seen(paths)) >= want


def test_kill_9_again_and_again(outbox, db):
    Profile(outbox, db, "orion", source="page: 50", more="    window: 200")
    writer = Writer(db, keys(5))
    writer.start()
    out = [outbox.path("out/events.jsonl")]
    for _ in range(4):
        relay = outbox.start("run")
        before = len(seen(out))
        wait_until(lambda: len(seen(out)) > before + 50, 30, "progress")
        relay.kill()
    writer.stop()
    relay = outbox.start("run")
    wait_until(all_there(writer.ledger, out), 30, "all delivered")
    assert relay.stop() == 0
    check(writer.ledger, seen(out))
    assert db.one("select count(*)::int from outbox where processed_at is null") == 0


def test_a_clean_stop_repeats_nothing(outbox, db):
    Profile(outbox, db, "orion")
    writer = Writer(db, keys(3))
    writer.start()
    out = [outbox.path("out/events.jsonl")]
    for _ in range(3):
        relay = outbox.start("run")
        before = len(seen(out))
        wait_until(lambda: len(seen(out)) > before + 50, 30, "progress")
        assert relay.stop() == 0
    writer.stop()
    outbox.run("run", "--once")
    assert check(writer.ledger, seen(out)) == 0


def test_shards_keep_the_order_of_each_key(outbox, db):
    """Each shard reads all rows and leaves those of the others; their number may be changed."""
    writer = Writer(db, keys(20))
    p = Profile(outbox, db, "orion", more="    shards: 3")
    writer.start()
    out = [outbox.path(f"out/events.jsonl.{i}") for i in range(3)] + [outbox.path("out/events.jsonl")]
    relay = outbox.start("run")
    wait_until(lambda: len(seen(out)) > 300, 30, "progress")
    assert relay.stop() == 0
    assert all(read_jsonl(o) for o in out[:3]), "each has its part"
    p.config(FILE)
    relay = outbox.start("run")
    wait_until(lambda: read_jsonl(out[3]), 30)
    writer.stop()
    wait_until(all_there(writer.ledger, out), 30, "all delivered")
    assert relay.stop() == 0
    assert check(writer.ledger, seen(out)) == 0


@pytest.mark.skipif(SLOW > 1, reason="skipped: heavy, in the plain build only")
def test_a_backlog_of_more_than_a_page(outbox, db):
    """More pending rows than a page of ids, and a window that is smaller than what is in flight."""
    Profile(outbox, db, "orion", '{type: "null"}')
    db.sql("insert into outbox (tenant_id, aggregate_type, aggregate_id, event_type, payload) select %s, 'rfq', "
           "gen_random_uuid(), 'rfq.created', '{}' from generate_series(1, 60000)", TENANT)
    outbox.run("run", "--once", timeout=120)
    assert db.one("select count(*)::int from outbox where processed_at is null") == 0
    assert db.one("select published::int from outbox.cursor") == 60000, "none twice"


@pytest.mark.skipif(SLOW > 1, reason="skipped: heavy, in the plain build only")
def test_others_rows_beyond_a_page_of_ids_hide_nothing(outbox, db):
    """A shard whose rows stand behind more than a page of another shard's looks further, in one snapshot."""
    p = Profile(outbox, db, "orion", '{type: "null"}', more="    shards: 2")
    db.sql("insert into outbox (tenant_id, aggregate_type, aggregate_id, event_type, payload) select %s, 'rfq', "
           "%s, 'rfq.created', '{}' from generate_series(1, 52000)", TENANT, keys(1)[0])
    db.sql("insert into outbox (tenant_id, aggregate_type, aggregate_id, event_type, payload) select %s, 'rfq', "
           "gen_random_uuid(), 'rfq.created', '{}' from generate_series(1, 100)", TENANT)
    outbox.run("run", "--once", timeout=120)
    p.wait("select count(*)::int from outbox where processed_at is null", want=0)
    assert db.one("select sum(published)::int from outbox.cursor") == 52100


ANY = """
log: {{level: debug}}
pipelines:
  any:
    source: {{type: postgres, dsn: "{dsn}", mode: rows, poll_max: 50ms, mapping: {mapping}}}
    sink: {sink}
    envelope: none
    routes: [{{topic: "${{type:-t}}"}}]
{more}
"""


def any_table(outbox, db, ddl, mapping, sink=FILE, more=""):
    outbox.path("out").mkdir(exist_ok=True)
    db.sql(ddl)
    outbox.write("outbox.yaml", ANY.format(dsn=db.dsn, mapping=mapping, sink=sink, more=more))
    outbox.run("schema", "--apply")


def test_a_table_with_a_lease(outbox, db):
    any_table(outbox, db,
              "create table jobs (id bigint primary key, body text, state text not null default 'new', owner text, until timestamptz, "
              "taken timestamptz, tries int, most int, err text, err_at timestamptz, finished timestamptz)",
              "{table: jobs, id: id, order: id, payload: body, status: state, status_pending: new, status_claimed: busy, "
              "status_done: ok, status_failed: bad, locked_by: owner, locked_until: until, claimed_at: taken, attempts: tries, "
              "max_attempts: most, error: err, error_at: err_at, done_at: finished}", '{type: "null", refuse: refuse.txt}',
              "    retry: {first: 20ms, max: 20ms}")
    outbox.write("refuse.txt", "retry 3\n")
    db.sql("insert into jobs (id, body, most) select i, 'x', 2 from generate_series(1, 3) i")
    db.sql("insert into jobs (id, body, state, owner, until) values (4, 'x', 'busy', 'other', now() + interval '1 hour'), "
           "(5, 'x', 'busy', 'gone', now() - interval '1 second')")
    outbox.run("run", "--once")
    rows = {r[0]: r[1:] for r in db.sql("select id, state, owner, until, tries, err is not null, finished is not null from jobs")}
    assert rows[1] == ("ok", None, None, None, False, True) and rows[5][0] == "ok"
    assert rows[4][:2] == ("busy", "other"), "another worker's row is left alone"
    assert rows[3] == ("bad", None, None, 2, True, False), "its own number of attempts"


def test_entity_versions_are_the_order_within_a_key(outbox, db):
    any_table(outbox, db, "create table ev (id int primary key, k text, v int, done bool not null default false, body json)",
              "{table: ev, id: id, order: id, key: k, entity_version: v, done: done, payload: body}")
    db.sql("insert into ev (id, k, v, body) values (1, 'a', 2, '2'), (2, 'b', 1, '1'), (3, 'a', 1, '1'), (4, 'a', 3, '3')")
    outbox.run("run", "--once")
    got = read_jsonl(outbox.path("out/events.jsonl"))
    assert [m["value"] for m in got if m["key"] == "a"] == [1, 2, 3]


def test_marks_that_somebody_else_overtook_are_counted(outbox, db):
    any_table(outbox, db, "create table ev (id int primary key, done bool not null default false, body json)",
              "{table: ev, id: id, order: id, done: done, payload: body}", '{type: "null", latency_us: 6000000}')
    db.sql("insert into ev (id, body) values (1, '1'), (2, '2')")
    relay = outbox.start("run")
    wait_until(lambda: outbox.json("status", "--json")[0]["in_flight"] == 2, 20)
    db.sql("update ev set done = true where id = 1")
    wait_until(lambda: db.one("select fenced::int from outbox.cursor") == 1, 20)
    assert "source.fenced" in relay.err and db.one("select bool_and(done) from ev")
    assert relay.stop() == 0


def test_a_parked_row_that_is_done_by_hand_is_not_published(outbox, db):
    any_table(outbox, db, "create table ev (id int primary key, done bool not null default false, body json)",
              "{table: ev, id: id, order: id, done: done, payload: body}", '{type: "null", refuse: refuse.txt}',
              "    retry: {first: 1s, max: 1s}")
    outbox.write("refuse.txt", "retry 1\n")
    db.sql("insert into ev (id, body) values (1, '1')")
    relay = outbox.start("run")
    wait_until(lambda: db.one("select count(*)::int from outbox.parked") == 1, 20)
    db.sql("update ev set done = true")
    outbox.write("refuse.txt", "")
    wait_until(lambda: db.one("select count(*)::int from outbox.parked") == 0, 20)
    assert db.one("select published::int from outbox.cursor") == 0 and not outbox.json("dead", "list", "--json")
    assert relay.stop() == 0


def test_columns_for_templates(outbox, db):
    any_table(outbox, db, "create table ev (id int primary key, done timestamp, body jsonb, n numeric, ok bool, doc jsonb, \"O d\" text)",
              "{table: ev, id: id, done: done, payload: body}",
              more="")
    text = outbox.path("outbox.yaml").read_text()
    outbox.write("outbox.yaml", text.replace("envelope: none", 'envelope: {template: {n: "${col:n}", ok: "${col:ok}", doc: "${col:doc}", '
                 'odd: "${col:O d}", none: "${col:nope}"}}'))
    db.sql("insert into ev (id, body, n, ok, doc, \"O d\") values (1, '{}', 12.50, true, '[1]', 'x')")
    outbox.run("run", "--once")
    line = outbox.path("out/events.jsonl").read_text()
    assert '"value":{"n":12.50,"ok":true,"doc":[1],"odd":"x","none":null}' in line


def test_large_payloads_come_one_by_one(outbox, db):
    any_table(outbox, db, "create table ev (id int primary key, done bool not null default false, body text)",
              "{table: ev, id: id, done: done, payload: body}")
    db.sql("insert into ev (id, body) select i, repeat(chr(65 + i), 3000000) from generate_series(1, 8) i")
    outbox.run("run", "--once")
    assert [m["value_text"][0] for m in read_jsonl(outbox.path("out/events.jsonl"))] == list("BCDEFGHI")


def test_a_table_that_changes_under_the_relay(outbox, db):
    any_table(outbox, db, "create table ev (id int primary key, done bool not null default false, body json)",
              "{table: ev, id: id, done: done, payload: body}")
    db.sql("insert into ev (id, body) values (1, '1')")
    relay = outbox.start("run")
    out = outbox.path("out/events.jsonl")
    wait_until(lambda: len(read_jsonl(out)) == 1, 20)
    db.sql("alter table ev add column more text; alter table ev alter column id type bigint")
    db.sql("insert into ev (id, body) values (2, '2')")
    wait_until(lambda: len(read_jsonl(out)) == 2, 30)
    db.sql("alter table ev rename to gone")
    time.sleep(0.5)
    db.sql("alter table gone rename to ev; insert into ev (id, body) values (3, '3')")
    wait_until(lambda: len(read_jsonl(out)) == 3, 30)
    assert relay.stop() == 0


def test_the_partitioned_form(outbox, db):
    p = Profile(outbox, db, "orion", ddl=(ROOT / "schema" / "profiles" / "orion-partitioned.sql").read_text())
    writer = Writer(db, keys(3))
    writer.start()
    relay = p.start()
    out = [outbox.path("out/events.jsonl")]
    wait_until(lambda: len(seen(out)) > 100, 30)
    writer.stop()
    wait_until(all_there(writer.ledger, out), 30)
    assert relay.stop() == 0 and check(writer.ledger, seen(out)) == 0


def test_refused_tables(outbox, db):
    db.sql("create table real (id int primary key, done bool); create view v as select * from real")
    outbox.path("out").mkdir()
    for mapping, want in (("{table: v, id: id, done: done}", "is a view"), ("{table: nope, id: id, done: done}", "no table"),
                          ("{table: real, id: id, done: dne}", "did you mean 'done'")):
        outbox.write("outbox.yaml", ANY.format(dsn=db.dsn, mapping=mapping, sink=FILE, more=""))
        outbox.run("schema", "--apply")
        r = outbox.run("run", "--once", check=None)
        assert r.returncode not in (0, -11) and want in r.err, r.err
        assert want in outbox.run("check", check=None).out
