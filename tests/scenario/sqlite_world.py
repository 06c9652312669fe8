# SPDX-License-Identifier: Apache-2.0
"""sqlite_world - a SQLite database file with the native tables for the scenario."""

import os
import pathlib
import sqlite3

from events import KEYS, event_id

HERE = pathlib.Path(__file__).resolve().parent


class SqliteWorld:
    modes = ("sqlite",)
    event_id = staticmethod(event_id)
    max_shards, slot_first, has_sessions, can_lose_slot = 4, False, False, False

    def __init__(self, mode, folder, args):
        self.mode, self.dir, self.args = mode, folder, args
        self.dsn, self.table = folder / "app.db", "native"
        self.writer = HERE / "sqlite_writer.py"

    def connect(self, timeout=10.0):
        return sqlite3.connect(self.dsn, timeout=timeout, isolation_level=None)

    def rows(self, text):
        db = self.connect()
        try:
            return db.execute(text).fetchall()
        finally:
            db.close()

    def variants(self):
        return [""]

    def source(self, _):
        return f"{{type: sqlite, path: {self.dsn}}}"

    def prepare(self):
        db = self.connect()
        db.execute("pragma journal_mode = wal")
        db.execute("create table counter (key text primary key, n integer not null)")
        db.executemany("insert into counter values (?, 0)", [(f"k{i:02}",) for i in range(KEYS)])
        db.close()

    def more(self):
        return ""

    def apply(self):
        return []

    def owner(self):
        try:
            rows = self.rows("select owner from outbox_cursor where owner <> '' order by shard limit 1")
            return int(rows[0][0].split(":")[1]) if rows else None
        except (sqlite3.Error, ValueError, IndexError, AttributeError):
            return None

    def dead(self):
        return dict(self.rows("select id, state from outbox_dead"))

    # ---- faults ----

    def server_faults(self):
        return []

    def may_freeze(self):
        """False: the process that was just stopped holds the write lock, so that no writer can go on."""
        db = self.connect(0.1)
        try:
            db.execute("begin immediate")
            db.execute("rollback")
            return True
        except sqlite3.OperationalError:
            return False
        finally:
            db.close()

    def close(self):
        for name in os.listdir(self.dir):
            if name.startswith("app.db-outbox"):
                os.unlink(self.dir / name)
