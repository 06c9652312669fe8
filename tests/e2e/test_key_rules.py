# SPDX-License-Identifier: Apache-2.0
"""test_key_rules - other key expressions assign events to other shards. An event that one shard has not delivered yet must not be lost because
it now belongs to a shard that has passed it."""

import signal

import pytest

from helpers import read_jsonl, wait_until

N = 40


@pytest.fixture(params=["sqlite", "log", "wal"])
def source(request, outbox):
    """(config of the source, the number of events that each shard's cursor has passed)"""
    if request.param == "sqlite":
        def passed():
            db = outbox.sqlite("app.db")
            try:
                return dict(db.execute("select shard, pos from outbox_cursor"))
            finally:
                db.close()
        return "{type: sqlite, path: app.db}", passed
    db = request.getfixturevalue("db")

    def passed_in_log():
        if request.param == "log":
            return dict(db.sql("select shard, pos from outbox.cursor"))
        last = db.one("select max(xid::text::bigint) from outbox.event")
        rows = db.sql("select shard, pg_snapshot_xmin(snap)::text::bigint from outbox.cursor")
        return {shard: N if xmin > last else 0 for shard, xmin in rows}

    return f'{{type: postgres, dsn: "{db.dsn}", mode: {request.param}}}', passed_in_log


def write_config(outbox, source, key):
    outbox.write("outbox.yaml", f"""
pipelines:
  orders:
    source: {source}
    sink: {{type: file, path: out/events}}
    shards: 2
    envelope: none
    routes: [{{topic: t, key: "{key}"}}]
""")


def delivered(outbox):
    return [m["id"] for shard in (0, 1) if outbox.path(f"out/events.{shard}").is_file() for m in read_jsonl(outbox.path(f"out/events.{shard}"))]


@pytest.mark.parametrize("how", ["restart", "reload"])
def test_other_keys_lose_nothing(outbox, source, how):
    text, passed = source
    write_config(outbox, text, "${aggregate_id}")
    outbox.run("schema", "--apply")
    outbox.path("out").mkdir()
    outbox.path("out/events.0").mkdir()  # shard 0 cannot deliver
    relay = outbox.start("run")
    ids = [f"0190a6e0-0000-7abc-8def-{i:012}" for i in range(N)]
    outbox.run("emit", "--jsonl", "-", stdin="".join(f'{{"id": "{i}", "type": "t", "aggregate_id": "k{i[-4:]}", "payload": 1}}\n' for i in ids))
    wait_until(lambda: passed().get(1, 0) >= N, 20, "shard 1 has passed all events")
    before = delivered(outbox)
    assert 0 < len(before) < N
    if how == "restart":
        assert relay.stop() == 0
    outbox.path("out/events.0").rmdir()
    write_config(outbox, text, "x-${aggregate_id}")
    if how == "restart":
        relay = outbox.start("run")
    else:
        relay.signal(signal.SIGHUP)
    wait_until(lambda: set(delivered(outbox)) == set(ids), 30, "every event is delivered")
    assert relay.stop() == 0
    repeated = [i for i in ids if delivered(outbox).count(i) > 1]
    assert set(repeated) <= set(before)


def test_another_topic_moves_no_shard(outbox):
    """Only keys count: a new topic is taken by a reload that keeps the owners, and repeats nothing."""
    write_config(outbox, "{type: sqlite, path: app.db}", "${aggregate_id}")
    outbox.run("schema", "--apply")
    outbox.path("out").mkdir()
    relay = outbox.start("run")
    wait_until(lambda: relay.err.count("msg=relay.start") == 2, 10, "both shards run")
    outbox.run("emit", "--type", "t", "--aggregate-id", "a", "--payload", "1")
    wait_until(lambda: len(delivered(outbox)) == 1, 10, "delivered")
    text = outbox.path("outbox.yaml").read_text()
    outbox.write("outbox.yaml", text.replace("topic: t,", "topic: u,"))
    relay.signal(signal.SIGHUP)
    wait_until(lambda: relay.err.count("msg=relay.reload") == 2, 10, "both shards have the new routes")
    outbox.run("emit", "--type", "t", "--aggregate-id", "a", "--payload", "2")
    wait_until(lambda: len(delivered(outbox)) == 2, 10, "delivered")
    assert relay.err.count("msg=relay.start") == 2 and "keys_changed=true" not in relay.err
    assert relay.stop() == 0
