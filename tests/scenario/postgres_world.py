# SPDX-License-Identifier: Apache-2.0
"""postgres_world - the PostgreSQL server, the tables and the source of each PostgreSQL mode:

    log, wal        the native table
    rows            a table with state columns (that of profile orion)
    wal-rows        the same table, read from the WAL
    wal-debezium    the table of profile debezium: no state columns, rows are deleted by the transaction that inserts them
    wal-message     pg_logical_emit_message, no table at all
"""

import os
import pathlib
import subprocess
import sys
import time

import psycopg2

from events import KEYS, event_id

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
STATE = ("mapping: {table: outbox, id: id, order: sequence_number, type: event_type, aggregate_type: aggregate_type, aggregate_id: aggregate_id, "
         "tenant: tenant_id, payload: payload, metadata: metadata, created: created_at, done: processed_at, attempts: retry_count, error: last_error}")
OPTIONS = {
    "log": "mode: log",
    "wal": "mode: wal",
    "rows": f"mode: rows, poll_max: 50ms, {STATE}",
    "wal-rows": f"mode: wal, {STATE}",
    "wal-debezium": "mode: wal, mapping: {table: outbox, id: id, aggregate_type: aggregatetype, aggregate_id: aggregateid, type: type, payload: payload}",
    "wal-message": "mode: wal, message_prefix: outbox",
}
TABLES = {"rows": "orion", "wal-rows": "orion", "wal-debezium": "debezium", "wal-message": "message"}
ORION = """create table public.outbox (id uuid primary key default gen_random_uuid(), tenant_id uuid not null,
    aggregate_type varchar(100) not null, aggregate_id uuid not null, event_type varchar(100) not null, payload jsonb not null,
    metadata jsonb not null default '{}', created_at timestamptz not null default now(), processed_at timestamptz,
    retry_count int not null default 0, last_error text, sequence_number bigserial)"""


class PostgresWorld:
    """Another source is another class with these methods."""

    modes = tuple(OPTIONS)
    event_id = staticmethod(event_id)

    def __init__(self, mode, folder, args):
        self.mode, self.dir, self.args = mode, folder, args
        self.table = TABLES.get(mode, "native")
        self.max_shards = 1 if mode == "wal-rows" else 4
        self.slot_first = mode in ("wal-debezium", "wal-message")  # events before the slot are not events
        self.has_sessions, self.can_lose_slot = True, mode in ("wal", "wal-rows")  # elsewhere a lost slot is a loss
        self.writer = HERE / "writer.py"
        self.env = self.service("start", "--while", os.getpid(), "--conf", "wal_sender_timeout = 10s")

    def service(self, *args):
        r = subprocess.run([str(ROOT / "tests/services/postgres"), *map(str, args)], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if r.returncode:
            sys.exit(f"{r.stdout}{r.stderr}")
        return dict(x.split("=", 1) for x in r.stdout.splitlines() if "=" in x)

    @property
    def dsn(self):
        return f"host=127.0.0.1 port={self.env['PGPORT']} user=postgres dbname=postgres"

    def sql(self, text):
        c = psycopg2.connect(self.dsn, connect_timeout=5)
        try:
            c.autocommit = True
            with c.cursor() as cur:
                cur.execute(text)
                return cur.fetchall() if cur.description else []
        finally:
            c.close()

    def variants(self):
        """Options of the source of which the seed chooses one: a small catch_up reads the table at every start."""
        return ["", "catch_up: 1k", "catch_up: 1k, wal_budget: 1M"] if self.mode == "wal" else [""]

    def source(self, variant):
        more = f", {variant}" if variant else ""
        return f'{{type: postgres, dsn: "{self.dsn}", {OPTIONS[self.mode]}{more}}}'

    def prepare(self):
        self.sql("create table counter (key text primary key, n bigint not null default 0)")
        self.sql(f"insert into counter (key) select 'k' || lpad(i::text, 2, '0') from generate_series(0, {KEYS - 1}) i")
        if self.table == "orion":
            self.sql(ORION)
            self.sql("create index on public.outbox (sequence_number) where processed_at is null")
        elif self.table == "debezium":
            self.sql("create table public.outbox (id uuid primary key, aggregatetype varchar(255) not null, aggregateid varchar(255) not null, "
                     "type varchar(255) not null, payload jsonb)")

    def more(self):
        """Further lines of the pipeline."""
        return ""

    def apply(self):
        """Further arguments of `outbox schema --apply`."""
        return []

    def wait_for_slot(self):
        end = time.monotonic() + 60
        while not self.sql("select 1 from pg_replication_slots where confirmed_flush_lsn is not null"):
            if time.monotonic() > end:
                sys.exit("no replication slot after 60 s")
            time.sleep(0.05)

    def owner(self):
        """pid of the process that owns the first shard, or None."""
        try:
            rows = self.sql("select split_part(owner, ':', 2)::int from outbox.cursor where state <> 'stopped' order by shard limit 1")
            return rows[0][0] if rows else None
        except (psycopg2.Error, ValueError):
            return None

    def dead(self):
        """id → state of every event that was ever dead."""
        return dict(self.sql("select id, state from outbox.dead"))

    # ---- faults ----

    def server_faults(self):
        return ["immediate", "fast"]

    def restart(self, how):
        self.service("stop", self.env["PGDIR"], how, "--keep")
        self.env = self.service("start", "--dir", self.env["PGDIR"])

    def drop_slots(self):
        """As a fail-over without its slots does."""
        for name, pid in self.sql("select slot_name, active_pid from pg_replication_slots where database = current_database()"):
            for _ in range(50):
                try:
                    self.sql(f"select pg_terminate_backend({pid or 0}); select pg_drop_replication_slot('{name}')")
                    break
                except psycopg2.Error:
                    pid = ([r[0] for r in self.sql(f"select active_pid from pg_replication_slots where slot_name = '{name}'")] or [0])[0]
                    time.sleep(0.02)

    def end_sessions(self):
        """The relays' sessions, not those of the writers."""
        self.sql("select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid() and application_name like 'outbox%'")

    def may_freeze(self):
        return True

    def close(self):
        self.service("stop", self.env["PGDIR"], "immediate")
