# SPDX-License-Identifier: Apache-2.0
"""test_postgres_wal_rows - mode wal of tables of other systems: with state columns, which are written as in mode rows, and without."""

import io
import os
import threading
import time

import pytest

from helpers import read_jsonl, wait_until
from wal import on_stream, slot_of, slots, wal_config

ORDERS = """create table outbox_rows (id uuid primary key default gen_random_uuid(), k text not null, n int not null,
    payload jsonb not null, done_at timestamptz, tries int not null default 0, error text)"""
ROWS = ("mapping: {table: outbox_rows, id: id, key: k, payload: payload, done: done_at, attempts: tries, dead_attempts: 3, "
        "error: error, order: n}")
STATUS = """create table outbox_status (id bigserial primary key, k text, payload json, status text not null default 'Pending',
    tries int not null default 0, error text)"""
CLAIMED = ("mapping: {table: outbox_status, id: id, order: id, key: k, payload: payload, status: status, "
           "status_pending: [Pending], status_claimed: [Processing], status_done: [Processed], status_failed: [Failed], "
           "attempts: tries, error: error}")


def insert(cur, n, k="k"):
    cur.execute("insert into outbox_rows (k, n, payload) values (%s, %s, json_build_object('n', %s::int))", (k, n, n))


def ns(outbox):
    files = sorted(outbox.path("out").glob("events.jsonl*"), key=lambda p: p.stat().st_mtime)
    return [m["value"]["n"] for f in files for m in read_jsonl(f)]


def start(outbox, db, table=ORDERS, mapping=ROWS, source="", **kw):
    db.sql(table)
    wal_config(outbox, db, source=mapping + source, **kw)
    relay = outbox.start("run")
    on_stream(relay)
    return relay


def test_rows_come_in_order_of_commits_and_are_marked(outbox, db):
    relay = start(outbox, db)
    a, b = db.connect(autocommit=False), db.connect(autocommit=False)
    insert(a.cursor(), 2)
    insert(b.cursor(), 1)
    b.commit()
    a.commit()
    insert(a.cursor(), 99)
    a.rollback()
    c = db.connect().cursor()
    c.execute("insert into outbox_rows (k, n, payload) select 'k', n, json_build_object('n', n) from generate_series(3, 200) n")
    wait_until(lambda: ns(outbox) == list(range(1, 201)), 20, "delivered")
    wait_until(lambda: db.one("select count(*) from outbox_rows where done_at is null") == 0, 10, "marked")
    wait_until(lambda: db.one("select lsn >= (select pg_current_wal_insert_lsn() - 100000) from outbox.cursor"), 10, "the position moves")
    assert relay.stop() == 0
    assert db.one("select fenced from outbox.cursor") == 0


def test_rows_older_than_the_slot_and_rows_released(outbox, db):
    db.sql(ORDERS)
    c = db.connect().cursor()
    for n in range(1, 6):
        insert(c, n)
    c.execute("update outbox_rows set done_at = now() where n = 3")
    wal_config(outbox, db, source=ROWS)
    relay = outbox.start("run")
    on_stream(relay)
    wait_until(lambda: sorted(ns(outbox)) == [1, 2, 4, 5], 10, "what waited before the slot")
    insert(c, 6)
    wait_until(lambda: ns(outbox)[-1] == 6, 10, "delivered")
    c.execute("update outbox_rows set done_at = null where n = 3")
    wait_until(lambda: ns(outbox)[-1] == 3, 20, "released by SQL")
    c.execute("update outbox_rows set done_at = null where n = 6")
    wait_until(lambda: ns(outbox).count(6) == 2, 20, "and one that the stream had brought")
    wait_until(lambda: db.one("select count(*) from outbox_rows where done_at is null") == 0, 10, "marked")
    assert relay.stop() == 0
    assert sorted(ns(outbox)) == [1, 2, 3, 4, 5, 6, 6]


class Writer(threading.Thread):
    def __init__(self, db, pause=0.001):
        super().__init__(daemon=True)
        self.c, self.go, self.sent, self.pause = db.server.connect(db.name, autocommit=False), True, [], pause

    def run(self):
        cur, n = self.c.cursor(), 0
        while self.go:
            n += 1
            insert(cur, n, f"k{n % 3}")
            if n % 7:
                self.c.commit()
                self.sent.append(n)
            else:
                self.c.rollback()
            time.sleep(self.pause)
        self.c.close()


def check(writer, seen, repeats):
    assert set(seen) == set(writer.sent)
    for key in range(3):
        mine = list(dict.fromkeys(n for n in seen if n % 3 == key))
        assert mine == sorted(mine), "out of order"
    assert repeats or len(seen) == len(writer.sent)


@pytest.mark.slow
def test_kill_9_slot_dropped_and_walsender_terminated(outbox, db):
    relay = start(outbox, db)
    writer = Writer(db)
    writer.start()
    for what in ("kill", "terminate", "drop", "kill"):
        at = len(ns(outbox))
        wait_until(lambda: len(ns(outbox)) > at + 50, 20, "progress")
        if what == "kill":
            relay.kill()
            relay = outbox.start("run")
            continue
        db.sql("select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = %s and active", slot_of(db))
        if what == "drop":
            def gone():
                db.sql("select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = %s and active", slot_of(db))
                try:
                    db.sql("select pg_drop_replication_slot(%s)", slot_of(db))
                except db.server.psycopg2.Error:
                    return False
                return True
            wait_until(gone, 20, "dropped", every=0)
    at = len(ns(outbox))
    wait_until(lambda: len(ns(outbox)) > at + 50, 20, "progress")
    writer.go = False
    writer.join()
    wait_until(lambda: set(ns(outbox)) >= set(writer.sent), 20, "all delivered")
    wait_until(lambda: db.one("select count(*) from outbox_rows where done_at is null") == 0, 20, "all marked")
    assert relay.stop() == 0
    check(writer, ns(outbox), True)


def test_a_clean_stop_repeats_nothing(outbox, db):
    relay = start(outbox, db)
    writer = Writer(db)
    writer.start()
    for _ in range(3):
        at = len(ns(outbox))
        wait_until(lambda: len(ns(outbox)) > at + 50, 20, "progress")
        assert relay.stop() == 0
        relay = outbox.start("run")
    writer.go = False
    writer.join()
    wait_until(lambda: set(ns(outbox)) >= set(writer.sent), 20, "all delivered")
    assert relay.stop() == 0
    check(writer, ns(outbox), False)


def test_attempts_dead_and_retry(outbox, db):
    relay = start(outbox, db, more="    routes: [{topic: \"${payload:/t:-t}\"}]\n    max_attempts: 3")
    c = db.connect().cursor()
    insert(c, 1)
    c.execute("insert into outbox_rows (k, n, payload) values ('bad', 2, '{\"n\": 2, \"t\": \"a\\u0001b\"}')")
    insert(c, 3)
    wait_until(lambda: ns(outbox) == [1, 3], 10, "the others flow")
    (dead,) = wait_until(lambda: outbox.json("dead", "list", "--json"), 10, "dead")
    assert "control character" in dead["error"]
    assert db.sql("select tries, done_at is null, error is not null from outbox_rows where n = 2") == [(3, True, True)]
    c.execute("update outbox_rows set payload = '{\"n\": 2}' where n = 2")
    c.execute("update outbox_rows set tries = 0, error = null where n = 2")
    wait_until(lambda: ns(outbox) == [1, 3, 2], 20, "released by its columns")
    wait_until(lambda: db.one("select count(*) from outbox_rows where done_at is null") == 0, 10, "marked")
    assert relay.stop() == 0


def test_claims_are_shown_and_taken_back(outbox, db):
    relay = start(outbox, db, table=STATUS, mapping=CLAIMED)
    c = db.connect().cursor()
    put = lambda n: c.execute("insert into outbox_status (k, payload) values ('k', json_build_object('n', %s::int))", (n,))
    put(1)
    wait_until(lambda: db.one("select status from outbox_status where id = 1") == "Processed", 10, "marked")
    os.rename(outbox.path("out"), outbox.path("away"))
    outbox.write("out", "not a folder")
    put(2)
    wait_until(lambda: "sink.down" in relay.err, 10, "down")
    wait_until(lambda: db.one("select status from outbox_status where id = 2") == "Pending", 10, "shown as waiting")
    put(3)
    os.remove(outbox.path("out"))
    os.rename(outbox.path("away"), outbox.path("out"))
    wait_until(lambda: db.one("select count(*) from outbox_status where status = 'Processed'") == 3, 20, "all marked")
    assert list(dict.fromkeys(ns(outbox))) == [1, 2, 3]
    assert relay.stop() == 0


def test_padded_columns_are_the_same_by_table_and_by_stream(outbox, db):
    """char(n): one id and one key for a row, however it is read."""
    db.sql("create table padded (id char(10) primary key, k char(5), c char(4), body json, done bool not null default false)")
    insert_row = "insert into padded (id, k, c, body) values (%s, 'k', 'c', '{\"n\": 1}')"
    db.sql(insert_row, "table")  # before there is a slot
    mapping = "mapping: {table: padded, id: id, key: k, payload: body, done: done}"
    wal_config(outbox, db, source=mapping, more='    routes: [{topic: t, headers: {c: "${col:c}"}}]')
    relay = outbox.start("run")
    on_stream(relay)
    db.sql(insert_row, "stream")
    wait_until(lambda: db.one("select bool_and(done) from padded"), 20, "both marked")
    assert relay.stop() == 0
    got = read_jsonl(outbox.path("out/events.jsonl"))
    assert [(m["id"], m["key"], m["headers"]["c"]) for m in got] == [("table", "k", "c"), ("stream", "k", "c")]


def test_more_than_one_shard_is_refused(outbox, db):
    db.sql(ORDERS)
    wal_config(outbox, db, source=ROWS, more="    shards: 2")
    relay = outbox.start("run")
    wait_until(lambda: "has one shard" in relay.err, 10, "said")
    assert relay.stop() == 0


PLAIN = """create table events_out (id text, kind text, ref int, body {body}, at timestamptz default clock_timestamp(),
    flag boolean, amount numeric, extra jsonb)"""
BARE = "mapping: {table: events_out, id: id, type: kind, key: ref, payload: body, created: at}"


@pytest.mark.parametrize("body", ["jsonb", "text", "bytea"])
def test_a_table_without_state(outbox, db, body):
    """Rows may be deleted in the transaction that wrote them: what travels is what was inserted. Ids need not be unique."""
    shape = ('    routes: [{topic: "t.${type}", headers: {flag: "${col:flag}", amount: "${col:amount}", '
             'in: "${col:extra}", at: "${created}"}}]')
    relay = start(outbox, db, table=PLAIN.format(body=body), mapping=BARE, more=shape)
    c = db.connect(autocommit=False)
    cur = c.cursor()
    for n in range(1, 4):
        cur.execute("insert into events_out values ('same', 'k', %s, %s, '2026-01-02 03:04:05.678+02', %s, 1.50, %s)",
                    (n % 2, '{"n": %d}' % n, n == 1, '{"a": [1]}' if n == 1 else None))
        cur.execute("delete from events_out")
        c.commit()
    line = lambda n: f"c{n}\tk\t1\t" + ('{"n": %d}' % n if body != "bytea" else r"\\x" + (b'{"n": %d}' % n).hex()) + "\n"
    db.connect().cursor().copy_expert(
        "copy events_out (id, kind, ref, body) from stdin", io.StringIO("".join(map(line, range(4, 54)))))
    out = outbox.path("out/events.jsonl")
    wait_until(lambda: len(read_jsonl(out)) == 53, 10, "delivered")
    assert relay.stop() == 0
    seen = read_jsonl(out)
    assert [m["key"] for m in seen[:3]] == ["1", "0", "1"] and seen[0]["topic"] == "t.k" and seen[0]["id"] == "same"
    assert seen[0]["headers"] == {"flag": "true", "amount": "1.50", "in": '{"a": [1]}', "at": "2026-01-02T01:04:05.678Z"}
    assert [m["value"]["n"] for m in seen] == list(range(1, 54))
    assert seen[0]["content_type"] == {"jsonb": "application/json", "text": "text/plain; charset=utf-8"}.get(
        body, "application/octet-stream")


def test_a_table_without_state_says_what_is_lost(outbox, db):
    relay = start(outbox, db, table=PLAIN.format(body="jsonb"), mapping=BARE)
    c = db.connect().cursor()
    c.execute("insert into events_out values ('a', 'k', 1, '{\"n\": 1}')")
    wait_until(lambda: ns(outbox) == [1], 10, "delivered")
    c.execute("alter publication outbox_orders drop table events_out")
    c.execute("insert into events_out values ('b', 'k', 1, '{\"n\": 2}')")
    wait_until(lambda: "does not have the table" in relay.err, 20, "said")
    c.execute("alter publication outbox_orders add table events_out")
    wait_until(lambda: "are lost" in relay.err, 20, "said")
    assert relay.stop() == 0
    relay = outbox.start("run", "--accept-loss")
    on_stream(relay)
    c.execute("insert into events_out values ('c', 'k', 1, '{\"n\": 3}')")
    wait_until(lambda: ns(outbox) == [1, 3], 10, "goes on")
    assert relay.stop() == 0
    assert len(slots(db)) == 1
