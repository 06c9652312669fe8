#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""postgres - the relay on a real PostgreSQL beside the raw limits of the same machine, in one run.

    bench/postgres.py [--events 300000] [--rounds 3] [--modes log,wal,rows] [--only drain,latency,idle,memory]

It starts a server of its own (tests/services/postgres) and touches nothing else. Raw and ours run in turn, figures are medians;
the last lines are `bench name=… ours=… limit=… ratio=…`. Compiled by `make bench-postgres`, which calls it.
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import psycopg2

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAYLOAD = 300
PAGE = 1000
TICKS = os.sysconf("SC_CLK_TCK")
CONF = (
    "wal_level = logical", "max_replication_slots = 60", "max_wal_senders = 60", "max_connections = 100",
    "shared_buffers = 512MB", "max_wal_size = 16GB", "checkpoint_timeout = 1h", "fsync = on",
)


def say(text):
    print(f"bench: {text}", file=sys.stderr, flush=True)


class Server:
    def __init__(self):
        argv = [ROOT / "tests/services/postgres", "start", "--while", str(os.getpid())]
        for line in CONF:
            argv += ["--conf", line]
        r = subprocess.run(argv, capture_output=True, text=True, check=False)
        if r.returncode:
            sys.exit(f"{r.stdout}{r.stderr}")
        self.env = dict(x.split("=", 1) for x in r.stdout.splitlines() if "=" in x)
        self.n = 0
        c = self.connect("postgres")
        cur = c.cursor()
        cur.execute("show server_version")
        self.version = cur.fetchone()[0]
        c.close()

    def dsn(self, db):
        return f"host=127.0.0.1 port={self.env['PGPORT']} user=postgres dbname={db}"

    def connect(self, db):
        c = psycopg2.connect(self.dsn(db))
        c.autocommit = True
        return c

    def sql(self, db, text, *params):
        c = self.connect(db)
        try:
            with c.cursor() as cur:
                cur.execute(text, params or None)
                return cur.fetchall() if cur.description else []
        finally:
            c.close()

    def database(self):
        self.n += 1
        name = f"bench{self.n}"
        self.sql("postgres", f"create database {name}")
        return name

    def drop(self, db):
        for (slot,) in self.sql(db, "select slot_name from pg_replication_slots where database = current_database()"):
            self.sql(db, "select pg_drop_replication_slot(%s)", slot)
        self.sql("postgres", f"drop database {db} with (force)")

    def cpu(self):
        """Seconds of all its processes, also of those that have ended."""
        pid = int((pathlib.Path(self.env["PGDIR"]) / "data/postmaster.pid").read_text().split()[0])
        total = 0
        for p in [pid, *children(pid)]:
            try:
                f = pathlib.Path(f"/proc/{p}/stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            total += int(f[11]) + int(f[12]) + (int(f[13]) + int(f[14]) if p == pid else 0)
        return total / TICKS

    def stop(self):
        subprocess.run([ROOT / "tests/services/postgres", "stop", self.env["PGDIR"], "immediate"], check=False, capture_output=True)


def children(pid):
    text = "".join(p.read_text() for p in pathlib.Path(f"/proc/{pid}/task").glob("*/children"))
    return [int(x) for x in text.split()]


class Run:
    """What a process took."""

    def __init__(self, argv, env=None, out=subprocess.DEVNULL):
        self.start = time.monotonic()
        self.p = subprocess.Popen([str(x) for x in argv], stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE, env=env)
        self.argv = argv

    def wait(self):
        err = self.p.stderr.read()
        _, status, ru = os.wait4(self.p.pid, 0)
        self.p.returncode = os.waitstatus_to_exitcode(status)
        self.seconds = time.monotonic() - self.start
        self.cpu = ru.ru_utime + ru.ru_stime
        self.peak_mb = ru.ru_maxrss / 1024
        if self.p.returncode:
            sys.exit(f"{self.argv}: exit code {self.p.returncode}\n{err.decode(errors='replace')[-3000:]}")
        return self


class Bench:
    def __init__(self, args):
        self.args = args
        self.events = args.events
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="outbox-bench-"))
        self.outbox = ROOT / args.build / "outbox"
        self.raw = ROOT / args.build / "bench/pg-bench"
        self.server = Server()
        self.file = self.dir / "events.jsonl"
        self.lines = []

    def line(self, name, ours, limit, more=""):
        """ours and limit in events a second."""
        text = f"bench name={name} ours={ours:.0f} limit={limit:.0f} ratio={ours / limit:.2f}{more}"
        self.lines.append(text)
        print(text, flush=True)

    def note(self, name, value, limit, unit, more=""):
        text = f"bench name={name} ours={value:.2f} limit={limit:.2f} ratio={value / limit:.2f} unit={unit}{more}"
        self.lines.append(text)
        print(text, flush=True)

    # ---- the relay ----

    def config(self, db, pipeline, mode, sink="null", source="", more=""):
        path = self.dir / f"{pipeline}.yaml"
        to = '{type: "null"}' if sink == "null" else f"{{type: file, path: {self.file}}}"
        path.write_text(
            f"log: {{level: error}}\npipelines:\n  {pipeline}:\n"
            f"    source: {{type: postgres, dsn: \"{self.server.dsn(db)}\", mode: {mode}{source}}}\n"
            f"    sink: {to}\n    envelope: none\n{more}"
        )
        return path

    def schema(self, path):
        Run([self.outbox, "schema", "--apply", "-c", path]).wait()

    def once(self, path):
        return Run([self.outbox, "run", "--once", "-c", path]).wait()

    # ---- events ----

    def native(self, db, n, per_tx, size=PAYLOAD):
        """n events in transactions of so many. Partitions are made ahead, as the relay does."""
        say(f"{n} events of {size} bytes in transactions of {per_tx}")
        c = self.server.connect(db)
        cur = c.cursor()
        cur.execute("set synchronous_commit = off")
        cur.execute(f"""do $$ declare pad text := repeat('x', {size - 12}); begin
            for i in 0..{(n + per_tx - 1) // per_tx - 1} loop
                insert into outbox.event (type, aggregate_type, aggregate_id, payload)
                select 'order.placed', 'order', 'order-' || (i * {per_tx} + k) % 10000, convert_to('{{"order":"' || pad || '"}}', 'UTF8')
                from generate_series(1, least({per_tx}, {n} - i * {per_tx})) k;
                commit;
            end loop; end $$""")
        cur.execute("checkpoint")
        cur.execute("vacuum analyze outbox.event")
        c.close()

    def fresh_native(self):
        db = self.server.database()
        self.schema(self.config(db, "none", "log"))
        return db

    # ---- drains ----

    def rounds(self, name, raw, ours, more=lambda: ""):
        """Raw and ours in turn; medians."""
        got = []
        for i in range(self.args.rounds):
            r = raw(i)
            o = ours(i)
            got.append((o.seconds, r, o.cpu, o.peak_mb))
        med = lambda k: statistics.median(x[k] for x in got)
        ratios = sorted(x[1] / x[0] for x in got)
        text = (f"bench name={name} ours={self.events / med(0):.0f} limit={self.events / med(1):.0f} ratio={statistics.median(ratios):.2f}"
                f" rounds={len(got)} ratio_min={ratios[0]:.2f} ratio_max={ratios[-1]:.2f}"
                f" cpu_s_per_million={med(2) * 1e6 / self.events:.2f} peak_mb={max(x[3] for x in got):.1f}{more()}")
        self.lines.append(text)
        print(text, flush=True)

    def with_file(self, argv, sink, env=None):
        """Seconds of a raw end; for the file sink beside a bare writer: the slower of both."""
        runs = [Run(argv, env)]
        if sink == "file":
            runs.append(Run([self.raw, "write", self.dir / "raw.out", self.events, self.line_bytes]))
        took = max(r.wait().seconds for r in runs)
        (self.dir / "raw.out").unlink(missing_ok=True)
        return took

    def sized(self, run, sink):
        if sink == "file":
            self.line_bytes = self.file.stat().st_size // self.events
            self.file.unlink()
        return run

    def drain_log(self, per_tx):
        db = self.fresh_native()
        self.native(db, self.events, per_tx)
        dsn = self.server.dsn(db)
        self.line_bytes = PAYLOAD + 250
        for sink in ("null", "file"):
            self.rounds(
                f"postgres-log-{sink}-tx{per_tx}",
                lambda i: self.with_file([self.raw, "page", dsn, PAGE], sink),
                lambda i: self.sized(self.once(self.config(db, f"log-{sink}-{i}", "log", sink)), sink),
            )
        self.dead_tuples(db, per_tx)
        self.server.drop(db)

    def dead_tuples(self, db, per_tx):
        self.server.sql(db, "create extension if not exists pgstattuple")
        parts = self.server.sql(db, "select inhrelid::regclass::text from pg_inherits where inhparent = 'outbox.event'::regclass")
        dead = sum(self.server.sql(db, "select dead_tuple_count from pgstattuple(%s)", p)[0][0] for (p,) in parts)
        text = f"bench name=postgres-log-dead-tuples-tx{per_tx} ours={dead} limit=0 ratio={0 if dead == 0 else 'inf'}"
        self.lines.append(text)
        print(text, flush=True)

    def drain_wal(self, per_tx):
        """Slots of all rounds, raw and ours, are made before the events: each has all of them before it."""
        db = self.fresh_native()
        sinks = ("null", "file")
        plan = {}
        for sink in sinks:
            for i in range(self.args.rounds):
                path = self.config(db, f"wal-{sink}-{i}", "wal", sink, ", catch_up: 0, wal_budget: 0")
                self.once(path)
                slot = f"raw_{db}_{sink}_{i}"
                self.server.sql(db, "select pg_create_logical_replication_slot(%s, 'pgoutput')", slot)
                pub = self.server.sql(db, "select pubname from pg_publication order by oid desc limit 1")[0][0]
                plan[sink, i] = (path, slot, pub)
        self.file.unlink(missing_ok=True)
        self.native(db, self.events, per_tx)
        end = self.server.sql(db, "select pg_current_wal_flush_lsn()::text")[0][0]
        env = {**os.environ, "PGHOST": "127.0.0.1", "PGPORT": self.server.env["PGPORT"], "PGUSER": "postgres"}
        self.line_bytes = PAYLOAD + 250
        for sink in sinks:
            recv = lambda i: [
                f"{self.server.env['PGBIN']}/pg_recvlogical", "-d", db, "--slot", plan[sink, i][1], "--start", "--no-loop", "-f", "/dev/null",
                "-o", "proto_version=1", "-o", f"publication_names={plan[sink, i][2]}", "--endpos", end, "-F", "0", "-s", "10"]
            self.rounds(
                f"postgres-wal-{sink}-tx{per_tx}",
                lambda i: self.with_file(recv(i), sink, env),
                lambda i: self.sized(self.once(plan[sink, i][0]), sink),
            )
        self.server.drop(db)

    def drain_rows(self, per_tx, index):
        """orion's table, filled again before each run: a run marks every row."""
        db = self.fresh_native()
        dsn = self.server.dsn(db)
        sql = lambda text: self.server.sql(db, text)
        sql("""create table public.outbox (id uuid primary key default gen_random_uuid(), tenant_id uuid not null,
            aggregate_type varchar(100) not null, aggregate_id uuid not null, event_type varchar(100) not null, payload jsonb not null,
            metadata jsonb not null default '{}', created_at timestamptz not null default now(), processed_at timestamptz,
            retry_count int not null default 0, last_error text, sequence_number bigserial)""")
        sql("create index idx_outbox_pending on public.outbox (created_at) where processed_at is null")
        sql("create index idx_outbox_aggregate on public.outbox (aggregate_type, aggregate_id, sequence_number)")
        sql("create index idx_outbox_cleanup on public.outbox (processed_at) where processed_at is not null")
        if index:
            sql("create index outbox_pending_number on public.outbox (sequence_number) where processed_at is null")
        sql(f"""create table public.stock as select gen_random_uuid() id, gen_random_uuid() tenant_id, 'order' aggregate_type,
            md5((k % 10000)::text)::uuid aggregate_id, 'order.created' event_type,
            jsonb_build_object('order', repeat('x', {PAYLOAD - 12})) payload, k n from generate_series(1, {self.events}) k""")

        def fill():
            sql("truncate public.outbox")
            c = self.server.connect(db)
            cur = c.cursor()
            cur.execute("set synchronous_commit = off")
            cur.execute(f"""do $$ begin for i in 0..{(self.events + per_tx - 1) // per_tx - 1} loop
                insert into public.outbox (id, tenant_id, aggregate_type, aggregate_id, event_type, payload)
                select id, tenant_id, aggregate_type, aggregate_id, event_type, payload from public.stock
                where n > i * {per_tx} and n <= (i + 1) * {per_tx} order by n; commit; end loop; end $$""")
            cur.execute("vacuum analyze public.outbox")
            cur.execute("checkpoint")
            c.close()

        sql("create index on public.stock (n)")
        self.line_bytes = PAYLOAD + 400
        for sink in ("null", "file"):
            def raw(i):
                fill()
                return self.with_file([self.raw, "rows", dsn, PAGE], sink)

            def ours(i):
                fill()
                path = self.config(db, f"rows-{sink}-{i}", "rows", sink, ROWS)
                return self.sized(self.once(path), sink)

            self.rounds(f"postgres-rows-{sink}-tx{per_tx}{'' if index else '-own-index'}", raw, ours)
        self.server.drop(db)

    # ---- the rest ----

    def fsync(self, value):
        self.server.sql("postgres", f"alter system set fsync = {value}")
        self.server.sql("postgres", "select pg_reload_conf()")

    def latency(self, mode):
        db = self.fresh_native()
        path = self.config(db, f"latency-{mode}", mode)
        self.once(path)
        self.fsync("off")  # the writer's own wait for its disk is not what is measured
        r = Run([self.raw, "latency", path, self.server.dsn(db), 1000, 10], out=subprocess.PIPE)
        out = r.p.stdout.read().decode()
        r.wait()
        self.fsync("on")
        got = dict(x.split("=") for x in out.split())
        limit = {"wal": 2, "log": 12}.get(mode, 100)
        self.note(f"postgres-{mode}-latency-p50", float(got["p50_ms"]), limit, "ms", f" p99_ms={got['p99_ms']} max_ms={got['max_ms']} events={got['events']}")
        if mode == "wal":
            self.note("postgres-wal-latency-p99", float(got["p99_ms"]), 10, "ms")
        self.server.drop(db)

    def idle(self, mode):
        """Relay and server together, at the default poll, with nothing to do."""
        db = self.fresh_native()
        path = self.config(db, f"idle-{mode}", mode)
        p = subprocess.Popen([self.outbox, "run", "-c", path], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        time.sleep(5)
        before, at = self.server.cpu() + cpu_of(p.pid), time.monotonic()
        time.sleep(20)
        used, took = self.server.cpu() + cpu_of(p.pid) - before, time.monotonic() - at
        p.terminate()
        p.wait()
        self.note(f"postgres-{mode}-idle", 100 * used / took, 2, "percent-of-a-core")
        self.server.drop(db)

    def memory(self, mode, n, per_tx, what):
        db = self.fresh_native()
        path = self.config(db, f"memory-{mode}", mode, "null", ", catch_up: 0, wal_budget: 0" if mode == "wal" else "")
        self.once(path)
        self.native(db, n, per_tx)
        r = self.once(path)
        self.note(f"postgres-{mode}-rss-{what}", r.peak_mb, 32, "MB", f" events={n} seconds={r.seconds:.1f}")
        self.server.drop(db)

    def run(self):
        a = self.args
        for mode in a.modes:
            for per_tx in a.tx if "drain" in a.only else ():
                say(f"mode {mode}, transactions of {per_tx}")
                if mode == "rows":
                    self.drain_rows(per_tx, True)
                    if per_tx == max(a.tx):
                        self.drain_rows(per_tx, False)
                else:
                    (self.drain_log if mode == "log" else self.drain_wal)(per_tx)
            if mode == "rows":
                continue
            if "latency" in a.only:
                self.latency(mode)
            if "idle" in a.only:
                self.idle(mode)
            if "memory" in a.only:
                self.memory(mode, 1000000, 1000, "million")
                self.memory(mode, 3500000, 3500000, "1gb-transaction")
        print(f"\nserver {self.server.version}, {os.cpu_count()} cores, {a.events} events, {a.rounds} rounds; all results again:")
        for text in self.lines:
            print(text)


ROWS = (
    ", mapping: {table: outbox, id: id, order: sequence_number, type: event_type, aggregate_type: aggregate_type, "
    "aggregate_id: aggregate_id, tenant: tenant_id, payload: payload, metadata: metadata, created: created_at, done: processed_at, "
    "attempts: retry_count, error: last_error}"
)


def cpu_of(pid):
    f = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(f[11]) + int(f[12])) / TICKS


def main():
    parts = "drain,latency,idle,memory"
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--events", type=int, default=300000)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--modes", type=lambda s: s.split(","), default=["log", "wal", "rows"])
    p.add_argument("--tx", type=lambda s: [int(x) for x in s.split(",")], default=[1, 1000])
    p.add_argument("--only", type=lambda s: s.split(","), default=parts.split(","))
    p.add_argument("--build", default="build")
    b = Bench(p.parse_args())
    try:
        b.run()
    finally:
        b.server.stop()
        subprocess.run(["rm", "-rf", str(b.dir)], check=False)


if __name__ == "__main__":
    main()
