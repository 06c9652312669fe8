# SPDX-License-Identifier: Apache-2.0
"""BSON of every type through a server and the relay: what the sink gets is what tests/golden/bson says, byte for byte, and
what pymongo reads from it is what was stored."""

import json
import math

import pytest

import mongo as m
from helpers import ROOT

ROWS = json.loads((ROOT / "tests" / "golden" / "bson" / "values.json").read_text())
FORMS = ("plain", "relaxed", "canonical")
CONFIG = """
pipelines:
  users:
    source: {{type: mongodb, uri: "{uri}", database: {name}, payload_json: {form}}}
    sink: {{type: file, path: events.jsonl}}
    envelope: none
"""


def payload(row):
    """{"v": the value} as BSON."""
    body = bytes.fromhex(row[1]) + b"v\0" + bytes.fromhex(row[2].replace(" ", ""))
    return (len(body) + 5).to_bytes(4, "little") + body + b"\0"


def store(mdb, rows):
    from bson import Timestamp
    from bson.raw_bson import RawBSONDocument

    for i, row in enumerate(rows):
        doc = {
            "_id": f"e{i}", "seq": Timestamp(0, 0), "type": "t", "aggregate_id": str(i), "key": str(i),
            "payload": RawBSONDocument(payload(row)), "status": "pending", "created_at": m.now(),
        }
        mdb["outbox_events"].insert_one(doc)


def values(outbox):
    """The value of each event, by its id, as the bytes that the sink wrote."""
    out = {}
    for line in outbox.path("events.jsonl").read_bytes().splitlines():
        start, end = line.index(b'"value":') + len(b'"value":'), line.rindex(b"}")
        depth = json.JSONDecoder().raw_decode(line[start:].decode())[1]
        text = line[start:].decode()[:depth]
        assert start + len(text.encode()) <= end
        out[json.loads(line)["id"]] = text
    return out


@pytest.mark.parametrize("form", FORMS)
def test_every_type_goes_through_a_server(outbox, mdb, form):
    store(mdb, ROWS)
    outbox.write("outbox.yaml", CONFIG.format(uri=mdb.uri, name=mdb.name, form=form))
    outbox.run("run", "--once")
    got = values(outbox)
    for i, row in enumerate(ROWS):
        assert got[f"e{i}"] == '{"v":' + row[3 + FORMS.index(form)] + "}", row[0]
    assert len(got) == len(ROWS)


def same(a, b):
    if isinstance(a, float) and isinstance(b, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    return type(a) is type(b) and a == b


# pymongo has no dates outside the years 1 to 9999, and no value of its own for these.
UNLIKE = {"09", "06", "0c", "0e", "0f"}


def test_pymongo_reads_what_was_stored(outbox, mdb):
    from bson import decode, json_util

    rows = [r for r in ROWS if r[1] not in UNLIKE and "UTF-8" not in r[0] and "twice" not in r[0] and "34 digits are" not in r[0]
            and "always more" not in r[0]]
    store(mdb, rows)
    outbox.write("outbox.yaml", CONFIG.format(uri=mdb.uri, name=mdb.name, form="canonical"))
    outbox.run("run", "--once")
    got = values(outbox)
    for i, row in enumerate(rows):
        read, stored = json_util.loads(got[f"e{i}"])["v"], decode(payload(row))["v"]
        assert same(read, stored), row[0]
    assert len(rows) > 60
