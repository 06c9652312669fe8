# SPDX-License-Identifier: Apache-2.0
"""test_profile_golden - every row of tests/golden becomes its message, byte for byte, through the file sink."""

import datetime
import json
import re

import pytest

from profiles import Profile, golden

TABLES = {"orion": "outbox", "polyshop": "outbox_events", "microdao": "outbox_events", "farmwise": '"OutboxMessage"'}


def insert(db, table, row):
    names = ", ".join(f'"{k}"' for k in row)
    db.sql(f"insert into {table} ({names}) values ({', '.join(['%s'] * len(row))})", *row.values())


def check(line, want):
    m = json.loads(line)
    body = line[line.index('"value":') + 8 : -1]
    now = re.search(r'"timestamp":"([^"]*)"', body) if "<now>" in want["body"] else None
    if now:
        age = datetime.datetime.now(datetime.timezone.utc) - datetime.datetime.fromisoformat(now[1].replace("Z", "+00:00"))
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", now[1]) and abs(age.total_seconds()) < 300
        body = body.replace(now[1], "<now>")
    assert body == want["body"]
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
        insert(db, TABLES[name], g["row"])
        outbox.run("run", "--once")
        (line,) = outbox.path(f"out/{i}.jsonl").read_text().splitlines()
        check(line, g["message"])
