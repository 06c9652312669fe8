# SPDX-License-Identifier: Apache-2.0
"""test_postgres_stress - the log cursor under writers that do everything that makes other cursors lose or reorder events.

Writers are processes of their own; each writes a ledger of what the server told it was committed. Four pipelines with pages of 1 to
1,000 events read the same outbox at the same time. What their files have is compared with the ledgers, never with the table."""

import os
import subprocess
import sys
import time

import pytest

from helpers import SLOW, read_jsonl, wait_until
from pg import emit

WRITERS = 8
PAGES = (1, 3, 60, 1000)
OPEN = 200  # events of a transaction that is open for the whole run: late, and more than most pages
# OUTBOX_STRESS_SECONDS=600 for a long run.
SECONDS = float(os.environ.get("OUTBOX_STRESS_SECONDS", "6"))
HERE = os.path.dirname(__file__)


def make_world(outbox, db):
    lines = ["pipelines:"]
    for page in PAGES:
        lines.append(
            f'  p{page}: {{source: {{type: postgres, dsn: "{db.dsn}", page: {page}}}, '
            f"sink: {{type: file, path: p{page}.jsonl}}, envelope: none}}"
        )
    outbox.write("outbox.yaml", "\n".join(lines) + "\n")
    outbox.run("schema", "--apply", "-p", "p1")
    db.sql("create table counter (key text primary key, n bigint not null default 0)")
    db.sql("insert into counter (key) select 'k' || lpad(i::text, 2, '0') from generate_series(0, 11) i")


def run_writers(outbox, db, *more):
    writers = []
    for i in range(WRITERS):
        argv = [sys.executable, f"{HERE}/pg_writer.py", db.dsn, str(1000 + i), str(SECONDS), str(outbox.path(f"ledger-{i}"))]
        writers.append(subprocess.Popen([*argv, *more], stdin=subprocess.DEVNULL))
    return writers


def ledger(outbox):
    """Tags of each key, in the order in which their transactions held the key's lock."""
    want = {}
    for i in range(WRITERS):
        for line in outbox.path(f"ledger-{i}").read_text().splitlines():
            key, n, tag = line.split()
            assert want.setdefault(key, {}).setdefault(int(n), tag) == tag, "two have committed the same counter"
    return {key: [tags[n] for n in sorted(tags)] for key, tags in want.items()}


def delivered(outbox, page):
    got = {}
    for m in read_jsonl(outbox.path(f"p{page}.jsonl")):
        if m["value"]["key"] != "open":
            got.setdefault(m["value"]["key"], []).append(m["value"]["tag"])
    return got


def compare(want, got, page):
    assert set(got) == set(want)
    for key, tags in want.items():
        have = got[key]
        missing = set(tags) - set(have)
        assert not missing, f"page {page}, {key}: {len(missing)} missing of {len(tags)}: {sorted(missing)[:10]}"
        assert len(have) == len(set(have)), f"page {page}, {key}: delivered twice"
        assert set(have) == set(tags), f"page {page}, {key}: phantoms {sorted(set(have) - set(tags))[:10]}"
        wrong = sum(a != b for a, b in zip(have, tags))
        assert wrong == 0, f"page {page}, {key}: {wrong} of {len(tags)} out of order"


def count(outbox, page):
    path = outbox.path(f"p{page}.jsonl")
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.slow
@pytest.mark.parametrize("how", ["locks", "serialize"])
def test_nothing_missing_twice_or_out_of_order(outbox, db, how):
    make_world(outbox, db)
    # An unrelated writer is open from before the first event to behind the last one, and so is one with events.
    idle = db.connect(autocommit=False).cursor()
    idle.execute("select pg_current_xact_id()")
    opened = db.connect(autocommit=False)
    for n in range(OPEN):
        emit(opened.cursor(), "open", n)
    relay = outbox.start("run")
    writers = run_writers(outbox, db, *(["serialize"] if how == "serialize" else []))
    for w in writers:
        assert w.wait(SECONDS + 60 * SLOW) == 0
    want = ledger(outbox)
    total = sum(map(len, want.values()))
    assert total > 20 * SECONDS / SLOW, "the writers have written next to nothing"
    for page in PAGES:
        wait_until(lambda: count(outbox, page) >= total, 60, f"page {page}: all delivered", every=0.1)
    opened.commit()
    for page in PAGES:
        wait_until(lambda: count(outbox, page) >= total + OPEN, 30, f"page {page}: the late ones", every=0.1)
    time.sleep(0.2)  # what would come twice would come now
    assert relay.stop() == 0
    for page in PAGES:
        compare(want, delivered(outbox, page), page)
        late = [m["value"]["n"] for m in read_jsonl(outbox.path(f"p{page}.jsonl")) if m["value"]["key"] == "open"]
        assert late == list(range(OPEN)), f"page {page}: a late transaction of many pages"
    assert db.one("select sum(n_tup_upd + n_tup_del)::int from pg_stat_user_tables where relname like 'event_%'") == 0


@pytest.mark.slow
def test_the_same_with_relays_that_are_killed(outbox, db):
    make_world(outbox, db)
    writers = run_writers(outbox, db)
    while any(w.poll() is None for w in writers):
        relay = outbox.start("run")
        before = count(outbox, 1000)
        wait_until(lambda: count(outbox, 1000) > before + 20 or all(w.poll() is not None for w in writers), 30, "progress")
        relay.kill()
    want = ledger(outbox)
    relay = outbox.start("run")

    for page in PAGES:
        wait_until(
            lambda: all(set(delivered(outbox, page).get(k, [])) >= set(tags) for k, tags in want.items()),
            60, f"page {page}: all delivered", every=0.2,
        )
    assert relay.stop() == 0
    for page in PAGES:  # repeats are allowed after a kill; the first deliveries are in order
        compare(want, {k: list(dict.fromkeys(tags)) for k, tags in delivered(outbox, page).items()}, page)
