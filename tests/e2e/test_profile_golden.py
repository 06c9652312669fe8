# SPDX-License-Identifier: Apache-2.0
"""test_profile_golden - every row of tests/golden becomes its message, byte for byte, through the file sink."""

import json
import time

import pytest

from profiles import Profile, golden, without_now

TABLES = {"orion": "outbox", "polyshop": "outbox_events", "microdao": "outbox_events", "farmwise": '"OutboxMessage"'}


def insert(db, table, row):
    names = ", ".join(f'"{k}"' for k in row)
    db.sql(f"insert into {table} ({names}) values ({', '.join(['%s'] * len(row))})", *row.values())


def check(line, want, since):
    m = json.loads(line)
    assert without_now(line[line.index('"value":') + 8 : -1], want["body"], since) == want["body"]
    assert m["topic"] == want["topic"] and m.get("key", "") == want["key"] and m.get("stream", "") == want.get("stream", "")
    assert m["headers"] == want["headers"] and m["content_type"] == want["content_type"]
    assert m["id"] == want["properties"]["id"]
    if "timestamp" in want["properties"]:
        assert m["time"] == want["properties"]["timestamp"]


@pytest.mark.parametrize("name", sorted(TABLES))
def test_messages(outbox, db, name):
    files = golden(name)
    assert files
    p = Profile(outbox, db, name)
    for i, path in enumerate(files):
        g = json.loads(path.read_text())
        own = g.get("config", {})
        p.config(f"{{type: file, path: out/{i}.jsonl}}", service=own.get("service", "order-service"),
                 more=f"    routes: {own['routes']}" if "routes" in own else "")
        since = time.time()
        insert(db, TABLES[name], g["row"])
        outbox.run("run", "--once")
        (line,) = outbox.path(f"out/{i}.jsonl").read_text().splitlines()
        check(line, g["message"], since)
