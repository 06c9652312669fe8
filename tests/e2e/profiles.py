# SPDX-License-Identifier: Apache-2.0
"""profiles - what the tests of profiles share: the table of a profile, a config, rows and what became of them."""

import datetime
import pathlib
import re
import time

from helpers import ROOT, read_jsonl, wait_until

FILE = "{type: file, path: out/events.jsonl}"
REFUSE = '{type: "null", refuse: refuse.txt}'


class Profile:
    """A profile on its own table in a database of its own."""

    def __init__(self, outbox, db, name, sink=FILE, more="", source="", ddl=None, table=None, service="order-service"):
        self.outbox, self.db, self.name = outbox, db, name
        outbox.path("out").mkdir(exist_ok=True)
        if ddl is not False:
            db.sql(ddl or (ROOT / "schema" / "profiles" / f"{name}.sql").read_text())
        self.config(sink, more, source, service)
        outbox.run("schema", "--apply")

    def config(self, sink=FILE, more="", source="", service="order-service"):
        self.outbox.write("outbox.yaml", f"""
log: {{level: debug}}
pipelines:
  events:
    profile: {self.name}
    service: {service}
    source: {{dsn: "{self.db.dsn}"{", " + source if source else ""}}}
    sink: {sink}
{more}
""")

    def refuse(self, *lines):
        """Which messages the sink refuses from now on. Replaced in one step: the sink may be reading it."""
        p = self.outbox.path("refuse.tmp")
        p.write_text("".join(f"{line}\n" for line in lines))
        p.rename(self.outbox.path("refuse.txt"))

    def start(self):
        return self.outbox.start("run")

    def lines(self):
        return read_jsonl(self.outbox.path("out/events.jsonl"))

    def dead(self):
        return self.outbox.json("dead", "list", "--json")

    def wait(self, query, *params, want=True, deadline=20, what=""):
        """Until the query's first value is `want`."""
        def ready():
            got = self.db.one(query, *params)
            assert got == want, got
            return True

        return wait_until(ready, deadline, what or query)


def golden(name):
    """The messages of a profile, written by hand: tests/golden/NAME/*.json."""
    return sorted((ROOT / "tests" / "golden" / name).glob("*.json"))


def without_now(body, want, since=None):
    """A body with its time of publishing replaced as in the golden message, after a look at that time."""
    if "<now>" not in want:
        return body
    now = re.search(r'"timestamp":"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z)"', body)[1]
    at = datetime.datetime.fromisoformat(now.replace("Z", "+00:00")).timestamp()
    assert (since or time.time() - 300) - 0.001 <= at <= time.time(), (now, since)
    return body.replace(now, "<now>")


# Seconds without an event, after which a relay looks for one as seldom as it ever does (poll_max up to a second), each time
# at another moment of its round.
IDLE = (1.1, 1.3, 1.5, 1.7)


def stay_idle(seconds):
    until = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() > until, seconds + 5, "idle")


def text(path):
    return pathlib.Path(path).read_text()


def now():
    return time.time()
