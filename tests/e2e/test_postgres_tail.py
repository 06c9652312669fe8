# SPDX-License-Identifier: Apache-2.0
"""test_postgres_tail - `outbox tail` shows every event that is committed, once, whatever its number and whoever commits first."""

import json

import pytest

from helpers import read_jsonl, wait_until
from pg import ROWS, config, emit, insert, rows_table
from profiles import Profile
from wal import on_stream

MANY = "insert into outbox.event (type, aggregate_id, payload) select 't', 'k', convert_to(json_build_object('n', %s + i)::text, 'UTF8') " \
       "from generate_series(1, %s) i"


def shown(tail):
    return [json.loads(line)["payload"]["n"] for line in tail.out.splitlines() if line.endswith("}")]


def follow(outbox, *args):
    return outbox.start("tail", "--json", "--payload", *args)


def begun(db, n, query):
    """n sessions have read the table. The server shows the first 1,024 bytes of a query."""
    wait_until(lambda: db.one("select count(*)::int from pg_stat_activity where application_name = 'outbox admin' and query ~ %s "
                              "and datname = current_database()", query) == n, 20, f"{n} sessions read the table")


@pytest.mark.parametrize("mode", ["log", "wal"])
def test_who_commits_late_is_shown(outbox, db, mode):
    config(outbox, db, source=f"mode: {mode}")
    early, late, many = (db.connect(autocommit=False) for _ in range(3))
    emit(early.cursor(), "k", 1)
    c = db.connect().cursor()
    emit(c, "k", 2)
    tail = follow(outbox, "--from", "start", "--limit", "1206")
    wait_until(lambda: shown(tail) == [2], 20, "what is there")
    emit(late.cursor(), "k", 3)  # its transaction began behind that look
    many.cursor().execute(MANY, (1000, 1200))  # more than a page
    emit(c, "k", 4)
    wait_until(lambda: shown(tail) == [2, 4], 20, "who commits first")
    now = follow(outbox, "--limit", "1203")
    relay = outbox.start("run")
    if mode == "wal":
        late.commit()  # a slot waits for those that are open
        early.commit()
        many.commit()
        on_stream(relay)
    begun(db, 2, r"outbox\.event|e\.seq, e\.id,")
    emit(c, "k", 5)
    wait_until(lambda: 5 in shown(tail), 20, "and after that")
    early.commit()
    wait_until(lambda: 1 in shown(tail), 20, "the late one")
    late.commit()
    many.commit()
    emit(c, "k", 6)
    assert tail.wait() == 0
    got = shown(tail)
    assert sorted(got) == [*range(1, 7), *range(1001, 2201)], "each once"
    assert [n for n in got if n > 1000] == list(range(1001, 2201)), "in order"
    if mode == "log":
        emit(c, "k", 7)
        assert now.wait() == 0
        assert set(shown(now)) >= {1, 3, *range(1001, 2201)}, "those that were open when it began, too"
    # pause: the relay stands, and what is written waits
    delivered = lambda: {m["value"]["n"] for m in read_jsonl(outbox.path("out/events.jsonl"))}
    wait_until(lambda: delivered() >= set(got), 20, "delivered")
    outbox.run("pause")
    wait_until(lambda: outbox.json("status", "--json")[0]["state"] == "paused", 20)
    emit(c, "k", 8)
    beat = db.one("select beat from outbox.cursor")
    wait_until(lambda: db.one("select beat from outbox.cursor") >= beat + 2, 20, "it lives")
    assert 8 not in delivered() and outbox.json("events", "--json", "--limit", "1")[0]["state"] == "pending"
    outbox.run("resume")
    wait_until(lambda: 8 in delivered(), 20, "resumed")
    assert relay.stop() == 0


def test_a_table_with_a_number(outbox, db):
    rows_table(db)
    config(outbox, db, source=ROWS)
    late, c = db.connect(autocommit=False), db.connect().cursor()
    insert(late.cursor(), "k", 1)
    insert(c, "k", 2)
    tail = follow(outbox, "--from", "start", "--limit", "3")
    wait_until(lambda: shown(tail) == [2], 20)
    relay = outbox.start("run")  # a mark changes the row; that is no new event
    wait_until(lambda: db.one("select count(*)::int from jobs where done is null") == 0, 20, "marked")
    late.commit()
    insert(c, "k", 3)
    assert tail.wait() == 0 and sorted(shown(tail)) == [1, 2, 3]
    assert relay.stop() == 0


def test_a_table_with_nothing_but_times(outbox, db):
    """Rows of one transaction have one time: a page must not end among them."""
    Profile(outbox, db, "microdao")
    row = "insert into outbox_events (id, stream, topic, payload) select %s || i, 's', 't', json_build_object('n', %s + i) " \
          "from generate_series(1, %s) i"
    late, c = db.connect(autocommit=False), db.connect().cursor()
    late.cursor().execute(row, ("late", 10000, 1))
    c.execute(row, ("a", 0, 2500))
    tail = follow(outbox, "--from", "start", "--limit", "5001")
    wait_until(lambda: len(shown(tail)) == 2500, 20, "all of one time")
    now = follow(outbox, "--limit", "2500")
    begun(db, 2, "outbox_events")
    c.execute(row, ("b", 2500, 2500))
    wait_until(lambda: len(shown(tail)) == 5000, 20, "and of another")
    late.commit()  # by its time it stands before all of them, farther back than is looked at again
    assert now.wait() == 0 and sorted(shown(now)) == list(range(2501, 5001))
    assert sorted(shown(tail)) == list(range(1, 5001))


def test_what_no_table_keeps_cannot_be_followed(outbox, db):
    config(outbox, db, source="mode: wal, message_prefix: outbox")
    for start in ([], ["--from", "start"], ["--from", "7"]):
        r = outbox.run("tail", "--seconds", "0", *start, check=1)
        assert "cannot be followed" in r.err and "outbox events" in r.err, r.err
