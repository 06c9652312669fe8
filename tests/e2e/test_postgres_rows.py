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
    # the last that was killed may have delivered some without a mark: they come again
    wait_until(lambda: db.one("select count(*)::int from outbox where processed_at is null") == 0, 30, "all marked")
    assert relay.stop() == 0
    check(writer.ledger, seen(out))


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
    p = Profile(outbox, db, "orion", more="    shards: 3", source="mapping: {claim_stuck: 5s}")
    writer.start()
    out = [outbox.path(f"out/events.jsonl.{i}") for i in range(3)] + [outbox.path("out/events.jsonl")]
    relay = outbox.start("run")
    begun = time.monotonic()
    wait_until(lambda: len(seen(out)) > 300 and time.monotonic() > begun + 7, 30, "progress")
    assert relay.stop() == 0
    assert "source.stuck" not in relay.err, "rows of the others are not held by anybody here"
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
    """A shard whose rows stand behind more than a page of another shard's looks further, in one snapshot. The other shard's owner
    delivers nothing for a minute."""
    insert = ("insert into outbox (tenant_id, aggregate_type, aggregate_id, event_type, payload) select %s, 'rfq', "
              "{key}, 'rfq.created', '{{}}' from generate_series(1, %s)")
    p = Profile(outbox, db, "orion", '{type: "null", latency_us: 60000000}', more="    shards: 2\n    grace: 1s")
    slow = p.start()
    wait_until(lambda: slow.err.count("relay.start") == 2, 20, "it has both")
    outbox.write("fast.yaml", outbox.path("outbox.yaml").read_text().replace(", latency_us: 60000000", ""))
    fast = outbox.start("run", "-c", "fast.yaml")
    wait_until(lambda: "relay.start" in fast.err, 30, "each has one")
    done = lambda key: db.one("select processed_at is not null from outbox where aggregate_id = %s limit 1", key)
    for key in keys(40):  # until one is of the slow shard
        db.sql(insert.format(key="%s"), TENANT, key, 1)
        deadline = time.monotonic() + 2
        while not done(key) and time.monotonic() < deadline:
            time.sleep(0.02)
        if not done(key):
            break
    db.sql(insert.format(key="%s"), TENANT, key, 52000)
    db.sql(insert.format(key="gen_random_uuid()"), TENANT, 100)
    p.wait("select count(*) >= 20 from outbox where processed_at is not null and sequence_number > 52000", deadline=40,
           what="those behind are delivered")
    assert not done(key), "those in front still wait"
    slow.kill()
    assert fast.stop() == 0


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
    any_table(outbox, db, "create table ev (id int primary key, done timestamp, body jsonb, n numeric, ok bool, doc jsonb, \"O d\" text, "
              "at timestamptz default '2024-03-01 12:00:00+05')",
              "{table: ev, id: id, done: done, payload: body}",
              more="")
    text = outbox.path("outbox.yaml").read_text()
    outbox.write("outbox.yaml", text.replace("envelope: none", 'envelope: {template: {n: "${col:n}", ok: "${col:ok}", doc: "${col:doc}", '
                 'odd: "${col:O d}", at: "${col:at}", none: "${col:nope}"}}'))
    db.sql(f"alter database {db.name} set datestyle = 'German'")
    db.sql(f"alter database {db.name} set timezone = 'Asia/Kathmandu'")
    db.sql("insert into ev (id, body, n, ok, doc, \"O d\") values (1, '{}', 12.50, true, '[1]', 'x')")
    outbox.run("run", "--once")
    line = outbox.path("out/events.jsonl").read_text()
    assert '"value":{"n":12.50,"ok":true,"doc":[1],"odd":"x","at":"2024-03-01 07:00:00+00","none":null}' in line


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
    db.sql("alter table ev add column more text; alter table ev alter column id type text")
    db.sql("insert into ev (id, body) values ('2', '2')")
    wait_until(lambda: len(read_jsonl(out)) == 2, 30)
    db.sql("alter table ev rename to gone")
    time.sleep(0.5)
    db.sql("alter table gone rename to ev; insert into ev (id, body) values ('3', '3')")
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


def test_an_id_of_fixed_length(outbox, db):
    """A ULID in char(26), and one that is shorter: a cast to `character` would cut it to its first letter."""
    any_table(outbox, db, "create table ev (id char(26) primary key, done bool not null default false, body json)",
              "{table: ev, id: id, done: done, payload: body}")
    db.sql("insert into ev (id, body) values ('01HZ0000000000000000000001', '1'), ('01HZ0000000000000000000002', '2'), ('short', '3')")
    outbox.run("run", "--once")
    assert [m["value"] for m in read_jsonl(outbox.path("out/events.jsonl"))] == [1, 2, 3]
    assert db.one("select bool_and(done) from ev")


def test_a_reason_that_is_longer_than_its_column(outbox, db):
    """It is cut: a mark that the server refuses would stop every neighbour."""
    any_table(outbox, db, "create table ev (id int primary key, done bool not null default false, body json, err varchar(10), tries int)",
              "{table: ev, id: id, order: id, done: done, payload: body, error: err, attempts: tries}",
              '{type: "null", refuse: refuse.txt}', "    retry: {first: 20ms, max: 20ms}\n    max_attempts: 2")
    outbox.write("refuse.txt", "retry 2\n")
    db.sql("insert into ev (id, body) select i, '1' from generate_series(1, 3) i")
    outbox.run("run", "--once")
    rows = {r[0]: r[1:] for r in db.sql("select id, done, length(err), tries from ev")}
    assert rows == {1: (True, None, None), 2: (False, 10, 2), 3: (True, None, None)}
    assert len(outbox.json("dead", "list", "--json")[0]["error"]) > 10, "all of it is in outbox.dead"


def test_a_row_that_cannot_be_marked(outbox, db):
    """A constraint or a trigger of the table refuses the mark of one row: it is told, its neighbours go on and it is not sent again
    and again. Where no row at all can be marked nothing goes on."""
    any_table(outbox, db, "create table ev (id int primary key, state text not null default 'new' check (state in ('new', 'sent')), "
              "done_at timestamptz check (id <> 2 or done_at is null), body json)",
              "{table: ev, id: id, order: id, status: state, status_pending: new, status_done: sent, status_failed: failed, "
              "done_at: done_at, payload: body}")
    db.sql("create function no() returns trigger language plpgsql as $$ begin if new.id = 4 then raise 'not this one'; end if; "
           "return new; end $$; create trigger no before update on ev for each row execute function no()")
    text = outbox.path("outbox.yaml").read_text()
    outbox.write("outbox.yaml", text.replace('"${type:-t}"', '"${payload:/t}"'))
    db.sql("insert into ev (id, body) select i, case when i = 6 then '{}' else '{\"t\": \"t\"}' end::json from generate_series(1, 7) i")
    relay = outbox.start("run")
    out = outbox.path("out/events.jsonl")
    p = lambda: {r[0]: r[1] for r in db.sql("select id, state from ev")}
    wait_until(lambda: p() == {1: "sent", 2: "new", 3: "sent", 4: "new", 5: "sent", 6: "new", 7: "sent"}, 20, "the others are marked")
    db.sql("insert into ev (id, body) values (8, '{\"t\": \"t\"}')")
    wait_until(lambda: p()[8] == "sent", 20, "and those that come later")
    told = {m: relay.err.count(f"msg=source.refused pipeline=any event={m} ") for m in (2, 4, 6)}
    assert all(told.values()), relay.err
    assert [d["id"] for d in outbox.json("dead", "list", "--json")] == ["6"]
    assert relay.stop() == 0
    sent = [m["id"] for m in read_jsonl(out)]
    assert sorted(sent) == ["1", "2", "3", "4", "5", "7", "8"], "none twice"
    # all of them
    db.sql("alter table ev disable trigger no; alter table ev add check (id < 100 or state = 'new')")
    db.sql("insert into ev (id, body) select i, '{\"t\": \"t\"}' from generate_series(101, 400) i")
    relay = outbox.start("run")
    wait_until(lambda: relay.err.count("source.down") >= 2, 30, "it waits for somebody to mend it")
    time.sleep(1)
    assert len(set(m["id"] for m in read_jsonl(out))) <= 7 + 300 and db.one("select count(*)::int from ev where id > 100 and state = 'new'") == 300
    db.sql("do $$ declare c text; begin for c in select conname from pg_constraint where conrelid = 'ev'::regclass and contype = 'c' "
           "and conname not like 'ev_state%' loop execute format('alter table ev drop constraint %I', c); end loop; end $$")
    wait_until(lambda: db.one("select count(*)::int from ev where id > 100 and state = 'sent'") >= 200, 30, "goes on")
    assert relay.stop() == 0


@pytest.mark.parametrize("how", ["row-level security", "a trigger"])
def test_marks_that_are_thrown_away_repeat_nothing(outbox, db, how):
    """An UPDATE that changes nothing and says nothing: the row still waits, and would be sent for ever."""
    any_table(outbox, db, "create table ev (id int primary key, done bool not null default false, body json)",
              "{table: ev, id: id, order: id, done: done, payload: body}")
    role = f"r_{db.name}"
    db.sql(f"create role {role} login in role outbox_relay; grant select, update on ev to {role}")
    try:
        if how == "a trigger":
            db.sql("create function no() returns trigger language plpgsql as $$ begin return case when new.id <> 2 then new end; end $$; "
                   "create trigger no before update on ev for each row execute function no()")
        else:
            db.sql("alter table ev enable row level security; create policy s on ev for select using (true); "
                   "create policy u on ev for update using (id <> 2)")
        text = outbox.path("outbox.yaml").read_text()
        outbox.write("outbox.yaml", text.replace(db.dsn, db.dsn_of(role)))
        db.sql("insert into ev (id, body) select i, '1' from generate_series(1, 3) i")
        relay = outbox.start("run")
        wait_until(lambda: "msg=source.refused pipeline=any event=2 " in relay.err, 20, "told")
        db.sql("insert into ev (id, body) values (4, '1')")
        wait_until(lambda: [r[0] for r in db.sql("select id from ev where done order by 1")] == [1, 3, 4], 20, "the others are marked")
        time.sleep(0.5)  # some passes
        assert relay.stop() == 0
        assert sorted(m["id"] for m in read_jsonl(outbox.path("out/events.jsonl"))) == ["1", "2", "3", "4"], "none twice"
        assert "source.fenced" not in relay.err
    finally:
        db.sql(f"drop owned by {role}; drop role {role}")


def test_times_as_order_keep_the_order_of_one_transaction(outbox, db):
    """All rows of a transaction have the same now(). An index gives them in another order."""
    any_table(outbox, db, "create table ev (id uuid primary key default gen_random_uuid(), at timestamptz default now(), k text, "
              "n int, done bool not null default false); create index on ev (at, id) where done = false",
              "{table: ev, id: id, order: at, key: k, payload: 'nothing?', done: done, columns: [n]}")
    text = outbox.path("outbox.yaml").read_text()
    outbox.write("outbox.yaml", text.replace("envelope: none", 'envelope: {template: {n: "${col:n}"}}'))
    c = db.connect(autocommit=False)
    for n in range(200):
        c.cursor().execute("insert into ev (k, n) values ('k', %s)", (n,))
    c.commit()
    for scan in ("seqscan", "bitmapscan"):
        db.sql(f"alter database {db.name} set enable_{scan} = off")
    outbox.run("run", "--once")
    assert [int(m["value"]["n"]) for m in read_jsonl(outbox.path("out/events.jsonl"))] == list(range(200))


def test_rights_on_single_columns_will_do(outbox, db):
    any_table(outbox, db, "create table ev (id int primary key, done bool not null default false, done_at timestamptz, body json)",
              "{table: ev, id: id, done: done, done_at: done_at, payload: body}")
    role = f"r_{db.name}"
    db.sql(f"create role {role} login in role outbox_relay")
    try:
        text = outbox.path("outbox.yaml").read_text()
        outbox.write("outbox.yaml", text.replace(db.dsn, db.dsn_of(role)))
        db.sql("insert into ev (id, body) values (1, '1')")
        for right in ('SELECT ON "public"."ev"', 'UPDATE (done, done_at) ON "public"."ev"'):
            grant = f"GRANT {right} TO {role};"
            assert grant in outbox.run("run", "--once", check=None).err
            told = outbox.run("check", check=None).out
            assert f"fix: {grant}" in told, told
            db.sql(grant)
        outbox.run("run", "--once")
        assert db.one("select done and done_at is not null from ev")
    finally:
        db.sql(f"drop owned by {role}; drop role {role}")


def test_a_row_without_a_state_is_told(outbox, db):
    any_table(outbox, db, "create table ev (id int primary key, done bool, body json)", "{table: ev, id: id, done: done, payload: body}")
    db.sql("insert into ev (id, body) values (1, '1')")
    outbox.run("run", "--once")
    assert [e["state"] for e in outbox.json("events", "--json")] == ["pending"], "it was not published"
    told = outbox.run("check", check=None).out
    fix = [x.split("fix: ")[1] for x in told.splitlines() if "SET DEFAULT" in x]
    assert "never published" in told and len(fix) == 1
    db.sql(fix[0])
    assert "never published" not in outbox.run("check", check=None).out
    outbox.run("run", "--once")
    assert [e["state"] for e in outbox.json("events", "--json")] == ["published"]


def test_a_relay_that_cannot_start_does_not_look_as_if_it_ran(outbox, db):
    any_table(outbox, db, "create table ev (id int primary key, done bool not null, body json)", "{table: ev, id: id, done: dne}")
    assert outbox.run("run", "--once", check=None).returncode != 0
    text = outbox.path("outbox.yaml").read_text()
    outbox.write("outbox.yaml", text.replace("dne", "done"))
    assert outbox.json("status", "--json")[0]["state"] == "stopped"


def test_one_name_for_two_tables_is_told(outbox, db):
    any_table(outbox, db, "create table ev (id int primary key, done bool not null default false, body json)",
              "{table: ev, id: id, done: done, payload: body}")
    assert "source.mode" not in outbox.run("run", "--once").err + outbox.run("run", "--once").err
    outbox.write("outbox.yaml", f"pipelines: {{any: {{source: {{type: postgres, dsn: '{db.dsn}'}}, sink: {FILE}}}}}\n")
    r = outbox.run("run", "--once")
    assert "msg=source.mode" in r.err and "from=rows to=log" in r.err
    assert "source.mode" not in outbox.run("run", "--once").err, "once"


def test_ids_that_only_the_table_can_give(outbox, db):
    any_table(outbox, db, "create table ev (id bigserial primary key, type text, done bool not null default false, body json)",
              "{table: ev, id: id, type: type, done: done, payload: body}")
    r = outbox.run("emit", "--type", "t", "--payload", "{}", check=None)
    assert r.returncode != 0 and "are numbers" in r.err
    assert outbox.run("emit", "--type", "t", "--payload", "{}", "--id", "77").out.strip() == "77"


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
