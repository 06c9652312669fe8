# SPDX-License-Identifier: Apache-2.0
"""test_hostile_writer - a role that may write events, and nothing else, against the relay, the broker and the other writers.

One stage for all tests: a victim writes all the time, and three pipelines relay the native outbox, in mode log (woken by NOTIFY) and
mode wal to files, and to NATS. Every attack states what the server must answer; then the victim's events must still flow while the attack
lasts. At the end the victim's own ledger is compared with what each sink got: nothing missing, nothing forged, nothing out of order."""

import contextlib
import json
import random
import threading
import time

import pytest

import helpers
import pg
from helpers import SLOW, memory_mb, wait_until

COLUMNS = ("id, type, aggregate_type, aggregate_id, key, tenant, topic, payload, payload_kind, headers, metadata, entity_version, "
           "schema_version, max_attempts")
KEYS = ["a", "b", "c", "d"]


class Victim(pg.Writer):
    """Writes as its own role; each event has the topic of the stage."""

    def __init__(self, stage):
        super().__init__(stage.db, KEYS, pause=0.02, emit=lambda cur, key, n: pg.emit(cur, key, n, topic=stage.topic))
        self.user = stage.victim

    def run(self):
        try:
            self.write(self.db.server.connect(self.db.name, self.user, autocommit=False))
        except Exception as e:  # the stage looks at it
            self.error = e


class Stage:
    def __init__(self, outbox, db, nats):
        self.outbox, self.db, self.nats = outbox, db, nats
        self.hostile, self.victim, self.carrier = (f"{name}_{db.name}" for name in ("hostile", "victim", "carrier"))
        self.stream = nats.stream()
        self.topic = f"{self.stream}.victim"
        self.files = [outbox.path("log.jsonl"), outbox.path("wal.jsonl")]
        self.config(db.dsn)
        outbox.run("schema", "--apply", "-p", "log")
        for role in (self.hostile, self.victim, self.carrier):
            db.sql(f"create role {role} login")
        db.sql(f"grant outbox_writer to {self.hostile}, {self.victim}; grant outbox_relay to {self.carrier}; "
               f"alter role {self.carrier} replication; grant usage on schema outbox to {self.hostile}; "
               f"grant insert ({COLUMNS}) on outbox.event to {self.hostile}; revoke create on schema public from public")
        self.config(db.dsn_of(self.carrier))
        self.relay = outbox.start("run")
        wait_until(lambda: self.relay.err.count("relay.start") == 3 and "wal.stream" in self.relay.err, 30, "three pipelines run")
        self.writer = Victim(self)
        self.writer.start()

    def config(self, dsn):
        self.outbox.write("outbox.yaml", f"""
log: {{level: debug}}
pipelines:
  log:
    source: {{type: postgres, dsn: "{dsn}", wake: notify}}
    sink: {{type: file, path: log.jsonl}}
    envelope: none
    window_bytes: 8M
  wal:
    source: {{type: postgres, dsn: "{dsn}", mode: wal}}
    sink: {{type: file, path: wal.jsonl}}
    envelope: none
    window_bytes: 8M
  nats:
    source: {{type: postgres, dsn: "{dsn}"}}
    sink: {{type: nats, url: "{self.nats.url}", topics: ["{self.stream}.*", "missing.*"]}}
    envelope: none
    window_bytes: 8M
    blocked_max: 3s
""")

    def connect(self, autocommit=True):
        return self.db.server.connect(self.db.name, self.hostile, autocommit)

    def run(self, query, *params):
        with contextlib.closing(self.connect()) as c, c.cursor() as cur:
            cur.execute(query, params or None)
            return cur.fetchall() if cur.description else None

    def refused(self, query, *params):
        """The statement must fail, for want of rights or because of a limit."""
        errors = self.db.server.psycopg2.errors
        with pytest.raises((errors.InsufficientPrivilege, errors.ProgramLimitExceeded)):
            self.run(query, *params)

    def seen(self, path):
        return [m["value"] for m in helpers.read_jsonl(path) if m["topic"] == self.topic]

    def flows(self, deadline=20):
        """What the victim commits from now on arrives."""
        at = self.writer.total()
        wait_until(lambda: self.writer.total() > at + 20 or not self.writer.is_alive(), deadline, "the victim commits")
        assert self.writer.is_alive(), self.writer.error
        want = {n for ns in list(self.writer.ledger.values()) for n in list(ns)}
        for path in self.files:
            wait_until(lambda path=path: {v["n"] for v in self.seen(path)} >= want, deadline, f"the victim's events in {path.name}", every=0.1)
        assert self.relay.alive, self.relay.err[-2000:]

    def finish(self):
        self.writer.stop()
        for path in self.files:
            wait_until(lambda path=path: len(self.seen(path)) >= self.writer.total(), 30, f"all in {path.name}", every=0.2)
            pg.check_ledger(self.writer, self.seen(path), repeats_allowed=True)
        got = lambda: [json.loads(m.data) for m in self.nats.read(self.stream) if m.subject == self.topic]  # noqa: E731
        wait_until(lambda: len(got()) >= self.writer.total(), 30, "all in NATS", every=0.5)
        pg.check_ledger(self.writer, got(), repeats_allowed=True)
        assert self.relay.stop(30) == 0, self.relay.err[-2000:]

    def close(self):
        self.writer.go = False
        self.writer.join()
        self.outbox.close()
        for (gid,) in self.db.sql("select gid from pg_prepared_xacts where database = current_database()"):
            self.db.sql(f"rollback prepared '{gid}'")
        for (slot,) in self.db.sql("select slot_name from pg_replication_slots where database = current_database()"):
            wait_until(lambda slot=slot: not self.db.one("select active from pg_replication_slots where slot_name = %s", slot), 20, "slot")
            self.db.sql("select pg_drop_replication_slot(%s)", slot)
        for role in (self.hostile, self.victim, self.carrier):
            self.db.sql(f"drop owned by {role} cascade; drop role {role}")


@pytest.fixture(scope="module")
def stage(postgres, nats, tmp_path_factory):
    db = postgres.database()
    s = Stage(helpers.Outbox(tmp_path_factory.mktemp("hostile")), db, nats)
    yield s
    s.close()
    db.close()


# ---- what it may not do at all ----

DENIED = {
    "read": ["select * from outbox.event", "select * from outbox.events", "select * from outbox.dead", "select * from outbox.cursor",
             "copy outbox.event to stdout", "select * from outbox.meta", "select * from outbox.writer"],
    "change": ["update outbox.event set payload = null", "delete from outbox.event", "truncate outbox.event", "truncate outbox.cursor",
               "update outbox.cursor set pos = 999999999999", "update outbox.cursor set epoch = epoch + 1", "delete from outbox.parked",
               "insert into outbox.dead select * from outbox.dead", "update outbox.meta set value = '1' where name = 'hard_limit'",
               "insert into outbox.writer (role) values (current_user)"],
    "numbers of its own": ["insert into outbox.event (type, seq) overriding system value values ('t', 1)",
                           "insert into outbox.event (type, seq) overriding system value values ('t', 9223372036854775807)",
                           "insert into outbox.event (type, xid) values ('t', '3')",
                           "insert into outbox.event (type, created_at) values ('t', '1970-01-01')",
                           "select setval('outbox.event_seq_seq', 1)", "select nextval('outbox.event_seq_seq')",
                           "alter sequence outbox.event_seq_seq restart 1",
                           "select outbox.put('t', null, 'j', '', '', null, null, null, null, null, null, null, null, null, false)"],
    "lock": ["begin; lock table outbox.event in access exclusive mode", "begin; lock table outbox.event in share mode", "begin; lock table outbox.cursor",
             "begin; lock table outbox.guard in share update exclusive mode", "begin; lock table outbox.meta in exclusive mode",
             "begin; lock table outbox.pipeline in row exclusive mode"],
    "replace": ["create or replace function outbox.put(a int) returns int language sql as 'select 1'", "create table outbox.mine ()",
                "create type outbox.text as enum ('a')", "alter function outbox.gen_id() rename to x", "drop function outbox.gen_id()",
                "alter table outbox.event add column x int", "alter schema outbox rename to x", "drop schema outbox cascade",
                "create trigger t before insert on outbox.event for each row execute function suppress_redundant_updates_trigger()",
                "create rule r as on insert to outbox.event do instead nothing", "create table public.x () inherits (outbox.event)",
                "alter table outbox.event disable trigger all", "create index on outbox.event (type)", "create schema mine",
                "create table public.fk (id bigint references outbox.event (seq))", "alter table outbox.event enable row level security"],
    "stop": ["select pg_terminate_backend(backend_pid) from outbox.cursor", "select pg_reload_conf()", "select pg_switch_wal()",
             "alter system set max_connections = 5", "checkpoint", "set session_replication_role = replica",
             "select outbox.maintain()", "select outbox.adopt('1', 1)", "select outbox.reshard('log', 3)", "select outbox.publish('p')",
             "create publication p for table outbox.event", "drop publication outbox",
             "select pg_create_logical_replication_slot('s', 'pgoutput')"],
}


@pytest.mark.parametrize("what", DENIED)
def test_denied(stage, what):
    for query in DENIED[what]:
        errors = stage.db.server.psycopg2.errors
        with pytest.raises((errors.InsufficientPrivilege, errors.UndefinedObject)) as e:
            stage.run(query)
        if isinstance(e.value, errors.UndefinedObject):
            assert "publication" in str(e.value), query
    stage.flows()


def test_sessions_and_slots_of_the_relay(stage):
    """It sees their pids and names, and may neither end nor use them."""
    pids = [p for (p,) in stage.db.sql("select pid from pg_stat_activity where usename = %s", stage.carrier)]
    assert len(pids) >= 5
    for pid in pids:
        stage.refused("select pg_terminate_backend(%s)", pid)
        stage.refused("select pg_cancel_backend(%s)", pid)
    for (slot,) in stage.db.sql("select slot_name from pg_replication_slots where database = current_database()"):
        stage.refused("select pg_drop_replication_slot(%s)", slot)
        stage.refused("select pg_replication_slot_advance(%s, pg_current_wal_lsn())", slot)
        stage.refused("select * from pg_logical_slot_get_binary_changes(%s, null, null)", slot)
    stage.flows()


# ---- what it may do ----


def test_search_path_and_temporary_objects(stage):
    """None of its own functions, operators, types and tables is used by what runs with other rights."""
    c = stage.connect()
    with contextlib.closing(c), c.cursor() as cur:
        cur.execute("""create function pg_temp.evil(anyelement) returns boolean language plpgsql as $$
            begin if current_user <> session_user then raise exception 'evil ran as %', current_user; end if; return true; end $$""")
        for kind in ("json", "text", "uuid", "bytea", "int8"):
            cur.execute(f"create domain pg_temp.{kind} as pg_catalog.{kind} check (pg_temp.evil(value))")
        cur.execute("create temp table event (like pg_class); create temp table meta (name pg_catalog.text, value pg_catalog.text)")
        cur.execute("""create function pg_temp.octet_length(pg_catalog.text) returns pg_catalog.int4 language plpgsql as
            $$ begin raise exception 'evil ran'; end $$""")
        cur.execute("set search_path = pg_temp, pg_catalog")
        for query in ("select outbox.emit('t', '{}'::pg_catalog.json, key => repeat('k', 2000))",
                      "select outbox.emit_batch(types => array['t'::pg_catalog.text], keys => array[repeat('k', 2000)])",
                      "select outbox.emit_many('[{\"type\": \"t\"}]'::pg_catalog.json)", "select outbox.admit()"):
            cur.execute(query)
    stage.flows()


@pytest.mark.parametrize("how", ["held", "waiting", "prepared"])
def test_advisory_locks(stage, how):
    """All that relays use, as they are in pg_locks for everyone to see, and those of emit(serialize => true)."""
    locks = lambda: stage.db.sql("select distinct classid::bigint, objid::bigint, objsubid from pg_locks where locktype = 'advisory' and database = "
                                 "(select oid from pg_database where datname = current_database())")  # noqa: E731
    wait_until(lambda: len(locks()) >= 6, 20, "the lock of each shard, and the member locks")
    signed = lambda n: n - (1 << 32) if n >= 1 << 31 else n  # noqa: E731
    calls = []
    for a, b, sub in locks():
        key = a << 32 | b
        calls.append(f"({key - (1 << 64) if key >= 1 << 63 else key})" if sub == 1 else f"({signed(a)}, {signed(b)})")
    calls += [f"(7305, {i})" for i in range(5)] + [f"(hashtextextended('{key}', 7305))" for key in KEYS]
    sessions, threads = [], []
    try:
        if how == "prepared":
            c = stage.connect()
            with contextlib.closing(c), c.cursor() as cur:
                cur.execute("begin")
                for call in calls:
                    cur.execute(f"select pg_try_advisory_xact_lock{call}")
                cur.execute(f"prepare transaction 'hostile_{stage.db.name}'")
        else:
            for call in calls:
                sessions.append(stage.connect())
                query = f"select pg_try_advisory_lock{call}" if how == "held" else f"select pg_advisory_lock{call}"
                if how == "held":
                    with sessions[-1].cursor() as cur:
                        cur.execute(query)
                else:
                    threads.append(threading.Thread(target=ignore_errors, args=(sessions[-1], query), daemon=True))
                    threads[-1].start()
        # The relay loses its sessions while the locks are taken, and comes back.
        stage.db.sql("select pg_terminate_backend(pid) from pg_stat_activity where usename = %s and application_name = 'outbox'", stage.carrier)
        since = time.monotonic()
        stage.flows(30)
        assert time.monotonic() - since < 25 * SLOW
    finally:
        if how == "prepared":
            stage.db.sql(f"rollback prepared 'hostile_{stage.db.name}'")
        stage.db.sql("select pg_terminate_backend(pid) from pg_stat_activity where usename = %s", stage.hostile)
        for t in threads:
            t.join()
        for c in sessions:
            c.close()


def ignore_errors(session, query):
    try:
        with session.cursor() as cur:
            cur.execute(query)
    except Exception:  # its session is terminated
        pass


@pytest.mark.parametrize("kind", ["open", "snapshot", "prepared", "subtransactions"])
def test_long_transactions(stage, kind):
    """An event in a transaction that stays open is not delivered, and holds up nobody else."""
    c = stage.connect(autocommit=False)
    gid = f"hostile_{kind.replace(' ', '_')}_{stage.db.name}"
    try:
        with c.cursor() as cur:
            if kind == "snapshot":
                cur.execute("set transaction isolation level repeatable read")
            if kind == "table lock":  # as much as INSERT allows
                cur.execute("begin; lock table outbox.event in row exclusive mode")
            for i in range(50 if kind == "subtransactions" else 1):
                cur.execute(f"savepoint s{i}")
                cur.execute("select outbox.emit('phantom', '{}', key => 'hostile', topic => 'phantom')")
                if kind == "subtransactions":
                    cur.execute(f"rollback to s{i}" if i % 2 else f"release s{i}")
            if kind == "prepared":
                cur.execute(f"prepare transaction '{gid}'")
        stage.flows()
        stage.db.sql("select outbox.maintain()")
        stage.flows()
    finally:
        if kind == "prepared":
            stage.db.sql(f"rollback prepared '{gid}'")
        else:
            c.rollback()
        c.close()
    for path in stage.files:
        assert not [m for m in helpers.read_jsonl(path) if m["topic"] == "phantom"]


def dead_of(stage, pipeline):
    return {d["key"]: d for d in stage.outbox.json("dead", "list", "--json", "-p", pipeline)}


@pytest.mark.slow
@pytest.mark.parametrize("column", ["type", "aggregate_type", "aggregate_id", "key", "tenant", "topic", "headers", "metadata"])
def test_large_columns(stage, column):
    """emit() refuses them; inserted directly they are dead with the reason, and memory does not follow them."""
    wide = column in ("headers", "metadata")
    value = json.dumps({"a": "x" * (10 << 20)}) if wide else "x" * (10 << 20)
    stage.refused(f"select outbox.emit(type => %s, {column} => %s{'::json' if wide else ''})" if column != "type" else
                  "select outbox.emit(type => %s, key => %s)", *(["t", value] if column != "type" else [value, "k"]))
    marks = [f"large-{column}-{i}" for i in range(3)]
    for mark in marks:
        named = {"type": "t", "key": mark, "topic": f"{stage.stream}.hostile", column: value}
        stage.run(f"insert into outbox.event ({', '.join(named)}) values ({', '.join(['%s'] * len(named))})", *named.values())
    stage.flows(40)
    if column != "key":
        wait_until(lambda: set(marks) <= set(dead_of(stage, "log")), 30, "dead", every=0.3)
        row = dead_of(stage, "log")[marks[0]]
        assert column in row["error"] and "limit" in row["error"], row
    assert memory_mb(stage.relay, "VmHWM") < 400 * SLOW, "three pipelines with windows of 8 MB"


STRANGE = ["", " ", ".", "..", "../../etc/passwd", "/etc/passwd", "a b", "a\nb", "a\r\nPUB x 1\r\n1", "\x01\x7f", "*", ">", "a.*", "a..b", "$JS.API.INFO",
           "$SYS.x", "_INBOX.x", "%s%n%n", "${payload:/x}", "'; drop table outbox.event; --", "\u202e\ufeff\U0001f4a3", "x" * 5000, "outbox", "null"]


@pytest.mark.parametrize("column", ["topic", "key", "tenant", "type", "aggregate_id", "aggregate_type", "payload"])
def test_strange_values(stage, column):
    for i, value in enumerate(STRANGE):
        if column == "type" and value == "":
            continue
        named = {"type": "t", "key": f"strange-{i}", "topic": f"{stage.stream}.hostile", "payload": "{}", column: value}
        extra = ", kind => 'text'" if column == "payload" else ""
        stage.run(f"select outbox.emit({', '.join(f'{k} => %s' for k in named)}{extra})", *named.values())
    stage.flows(30)
    assert stage.db.one("select count(*) from outbox.event") > 0


def nested(depth):
    return '{"a":' * depth + "1" + "}" * depth


HEADERS = ['{"Nats-Msg-Id": "victim"}', '{"Nats-Rollup": "all"}', '{"Nats-Expected-Stream": "x"}', '{"a\\r\\nNats-Rollup": "all"}', '{"a": "b\\r\\nX: y"}',
           '{"": ""}', '{":": ":"}', '{"a": null}', '{"a": {"b": [1, 2]}}', '{"a": 1e400}', '{"a": 1, "a": 2}', '{"outbox-origin-id": "x"}',
           '{"CC": ["q"], "BCC": ["q"]}', '{"content-type": "x"}', '{"ce_id": "x", "ce_type": ""}', '{"\\u0001": "\\u0002"}', nested(5000),
           json.dumps({f"h{i}": "v" for i in range(5000)})]


@pytest.mark.parametrize("column", ["headers", "metadata", "payload"])
def test_strange_json(stage, column):
    for i, value in enumerate(HEADERS):
        named = {"type": "t", "key": f"json-{i}", "topic": f"{stage.stream}.hostile", column: value}
        try:
            stage.run(f"select outbox.emit({', '.join(f'{k} => %s' + ('::json' if k == column else '') for k in named)})", *named.values())
        except stage.db.server.psycopg2.Error:  # refused where its writer sees it
            pass
    stage.flows(30)


def test_numbers_at_their_ends(stage):
    for i, (column, value) in enumerate((c, v) for c, kind in (("entity_version", 63), ("schema_version", 63), ("max_attempts", 31))
                                        for v in (-(1 << kind), -1, 0, (1 << kind) - 1)):
        stage.run(f"select outbox.emit('t', '{{}}', key => %s, topic => %s, {column} => %s)", f"number-{i}", f"{stage.stream}.hostile", value)
    stage.flows()


def test_ids_of_others(stage):
    """An id that the victim used is refused, or an event of its own: the victim's is not replaced."""
    event, key = stage.db.sql("select id, key from outbox.event where topic = %s limit 1", stage.topic)[0]
    with pytest.raises(stage.db.server.psycopg2.errors.UniqueViolation):
        stage.run("select outbox.emit('t', '{}', id => %s, key => %s)", str(event), key)
    stage.run("select outbox.has_event(%s)", str(event))
    stage.flows()


def test_a_context_of_its_own(stage):
    c = stage.connect()
    with contextlib.closing(c), c.cursor() as cur:
        for context in ("{broken", "[]", nested(3000), '{"tenantId": ' + json.dumps("x" * 100000) + "}", '"text"'):
            cur.execute("select set_config('outbox.context', %s, false)", (context,))
            with contextlib.suppress(stage.db.server.psycopg2.Error):
                cur.execute("select outbox.emit('t', '{}', key => 'context', topic => %s)", (f"{stage.stream}.hostile",))
    stage.flows()


def test_a_serialized_key_that_is_kept(stage):
    """serialize makes writers of one key wait for each other, if they ask for it; the victim does not."""
    c = stage.connect(autocommit=False)
    with contextlib.closing(c), c.cursor() as cur:
        for key in KEYS:
            cur.execute("select outbox.emit('t', '{}', key => %s, topic => %s, serialize => true)", (key, f"{stage.stream}.hostile"))
        stage.flows()
        c.rollback()


def test_notifications(stage):
    """A storm of NOTIFY on the channel of `wake: notify`, with large payloads, from several sessions."""
    go = time.monotonic() + 4

    def storm():
        with contextlib.closing(stage.connect()) as c, c.cursor() as cur:
            while time.monotonic() < go:
                cur.execute("select pg_notify('outbox', repeat(md5(i::text), 200) || i) from generate_series(1, 200) i")

    threads = [threading.Thread(target=storm) for _ in range(2)]
    for t in threads:
        t.start()
    stage.flows(30)
    for t in threads:
        t.join()
    stage.flows()
    assert memory_mb(stage.relay, "VmRSS") < 400 * SLOW


def test_messages_in_the_wal(stage):
    """pg_logical_emit_message is for PUBLIC: a pipeline that reads a table ignores messages of any prefix and size."""
    event = json.dumps({"type": "forged", "payload": {"key": "a", "n": 1}, "topic": stage.topic})
    for prefix in ("outbox", "", "x" * 60):
        for transactional in (True, False):
            stage.run("select pg_logical_emit_message(%s, %s, %s)", transactional, prefix, event)
    stage.run("select pg_logical_emit_message(true, 'outbox', repeat('x', 20000000))")
    stage.flows(30)
    assert memory_mb(stage.relay, "VmHWM") < 400 * SLOW


def test_many_events_in_one_statement(stage):
    """The victim's events wait their turn, and no longer."""
    stage.run("select cardinality(outbox.emit_batch(types => array_fill('t'::text, array[20000]), topics => array_fill(%s::text, array[20000]), "
              "keys => (select array_agg('many-' || i) from generate_series(1, 20000) i)))", f"{stage.stream}.hostile")
    stage.flows(60)


ODD = ["types => '[5:6]={t,t}'", "types => '{{t,t},{t,t}}'", "types => '[-99999:-99998]={t,t}'", "types => '{t}', keys => array_fill('k'::text, array[100])",
       "types => '{t}', ids => array[null, null]::uuid[]", "types => array_fill('t'::text, array[2, 2, 2]), keys => '{a}'", "types => '{}', keys => '{a}'",
       # the payload is checked as text and stored as JSON
       r"""types => '{t,t}', payloads => '[0:1]={"\\x7b7d","\\x7b62"}'::bytea[], kinds => '{json,text}'"""]


@pytest.mark.parametrize("arrays", ODD)
def test_arrays_of_odd_shapes(stage, arrays):
    with contextlib.suppress(stage.db.server.psycopg2.Error):  # refused where its writer sees it
        stage.run(f"select outbox.emit_batch({arrays})")
    stage.flows()


def test_garbage_by_seed(stage):
    """Random values for all arguments at once."""
    rng = random.Random(11)
    pool = STRANGE + KEYS + [stage.topic + ".x", "\t", "é" * 100]
    for i in range(150):
        named = {"type": rng.choice(pool) or "t", "topic": rng.choice(pool), "aggregate_id": rng.choice(pool), "tenant": rng.choice(pool),
                 "aggregate_type": rng.choice(pool), "payload": rng.choice(pool), "kind": rng.choice(("text", "json", "bytes")),
                 "max_attempts": rng.choice((-1, 0, 1, 2**31 - 1)), "key": f"garbage-{i}"}
        with contextlib.suppress(stage.db.server.psycopg2.Error):
            stage.run(f"select outbox.emit({', '.join(f'{k} => %s' for k in named)})", *named.values())
    stage.flows(30)


def test_a_key_of_the_victim_with_a_topic_that_is_not_allowed(stage):
    """`sink.topics`: the event is dead with the reason instead of blocked, and the victim's key goes on."""
    for key in KEYS:
        stage.run("select outbox.emit('t', '{}', key => %s, topic => 'no.such.stream')", key)
    wait_until(lambda: {d["key"] for d in stage.outbox.json("dead", "list", "--json", "-p", "nats") if "no.such.stream" in json.dumps(d)}
               >= set(KEYS), 30, "dead", every=0.3)
    stage.flows()
    total = stage.writer.total()
    wait_until(lambda: len([m for m in stage.nats.read(stage.stream) if m.subject == stage.topic]) >= total, 30, "the victim's", every=0.5)


def test_a_key_of_the_victim_with_a_missing_topic_and_blocked_max(stage):
    """An allowed topic without a stream holds the victim's keys back for `blocked_max` only."""
    for key in KEYS:
        stage.run("select outbox.emit('t', '{}', key => %s, topic => 'missing.stream', max_attempts => 1000000)", key)
    wait_until(lambda: {d["key"] for d in stage.outbox.json("dead", "list", "--json", "-p", "nats") if "blocked_max" in json.dumps(d)}
               >= set(KEYS), 90, "dead", every=0.3)
    total = stage.writer.total()
    wait_until(lambda: len([m for m in stage.nats.read(stage.stream) if m.subject == stage.topic]) >= total, 30, "the victim's", every=0.5)


def test_a_key_of_the_victim_with_a_topic_that_does_not_exist(stage):
    """Such an event would hold the victim's key back at the broker. Rows of outbox.writer keep the writer to keys of its own."""
    def change(query, *params):
        try:
            stage.db.sql(query, *params)
            return True
        except stage.db.server.psycopg2.errors.LockNotAvailable:  # writers are never kept waiting for long
            return False

    insert = "insert into outbox.writer (role, keys) values (%s, '{hostile-*}'), (%s, null)"
    wait_until(lambda: change(insert, stage.hostile, stage.victim), 30, "rows of outbox.writer")
    try:
        for key in KEYS:
            stage.refused("select outbox.emit('t', '{}', key => %s, topic => 'no.such.stream')", key)
            stage.refused("select outbox.emit('t', '{}', aggregate_id => %s, topic => 'no.such.stream')", key)
            stage.refused("insert into outbox.event (type, key, topic) values ('t', %s, 'no.such.stream')", key)
        stage.run("select outbox.emit('t', '{}', key => 'hostile-1', topic => 'no.such.stream')")
        stage.flows()
    finally:
        wait_until(lambda: change("delete from outbox.writer"), 30, "no rows of outbox.writer")


def test_nothing_of_the_victim_is_lost(stage):
    """The last test: the ledger of the victim beside each of the three sinks."""
    stage.finish()
