# SPDX-License-Identifier: Apache-2.0
"""pg_writer - one writer process of the stress of the log cursor: pg_writer.py DSN SEED SECONDS LEDGER [serialize]

Each transaction locks the rows of one to three keys, raises their counters and emits an event per change. Some take their
transaction id early, use savepoints, roll back, or prepare and commit in two phases. The ledger gets a line per event, after
the server has said that the transaction is committed: `key n tag`. The counter of a key is raised under its lock, so its committed
values are 1, 2, 3 … in the order in which the transactions held that lock.

With `serialize` the event comes before the row, as an ORM may do it: emit(serialize => true) locks the key, then the counter
is raised. The event has only its tag; the ledger tells which counter that was.
"""

import json
import random
import sys
import time

import psycopg2

KEYS = 12


class Undone(Exception):
    """This one was rolled back on purpose."""


def emit(cur, key, tag, **more):
    args = {"type": "counted", "aggregate_id": key, "payload": json.dumps({"key": key, "tag": tag}), **more}
    cur.execute(f"select outbox.emit({', '.join(f'{k} => %({k})s' for k in args)})", args)


def change(cur, rng, key, tag, serialize):
    """Raises a counter and emits an event for it; gives the line of the ledger."""
    if serialize:
        emit(cur, key, tag, serialize=True)
    cur.execute("update counter set n = n + 1 where key = %s returning n", (key,))
    n = cur.fetchone()[0]
    if rng.random() < 0.2:
        time.sleep(rng.random() * 0.005)
    if not serialize:
        emit(cur, key, tag)
    return f"{key} {n} {tag}\n"


def transaction(cur, rng, tag, serialize):
    """One transaction's work; what it emitted. Locks are taken in the order of keys, so that nobody waits in a circle."""
    done = []
    if rng.random() < 0.5:
        cur.execute("select pg_current_xact_id()")
        time.sleep(rng.random() * 0.01)
    for key in sorted(rng.sample(range(KEYS), rng.choice((1, 1, 1, 2, 3)))):
        name = f"k{key:02}"
        if rng.random() < 0.3:
            cur.execute("savepoint s")
            got = change(cur, rng, name, f"{tag}-{key}", serialize)
            if rng.random() < 0.5:
                cur.execute("rollback to savepoint s")
            else:
                cur.execute("release savepoint s")
                done.append(got)
        else:
            done.append(change(cur, rng, name, f"{tag}-{key}", serialize))
    if rng.random() < 0.1:
        raise Undone
    return done


def finish(cur, rng, gid):
    if rng.random() < 0.1:
        cur.execute(f"prepare transaction '{gid}'")
        time.sleep(rng.random() * 0.02)
        if rng.random() < 0.2:
            cur.execute(f"rollback prepared '{gid}'")
            raise Undone
        cur.execute(f"commit prepared '{gid}'")
    else:
        cur.execute("commit")


def main():
    dsn, seed, seconds, path = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
    rng = random.Random(seed)
    c = psycopg2.connect(dsn)
    c.autocommit = True
    cur = c.cursor()
    end = time.monotonic() + seconds
    number = 0
    with open(path, "w", buffering=1) as ledger:
        while time.monotonic() < end:
            number += 1
            cur.execute("begin")
            try:
                done = transaction(cur, rng, f"{seed}-{number}", "serialize" in sys.argv[5:])
                finish(cur, rng, f"w{seed}-{number}")
            except Undone:
                cur.execute("rollback")
                continue
            ledger.writelines(done)
            time.sleep(rng.random() * 0.005)


if __name__ == "__main__":
    main()
