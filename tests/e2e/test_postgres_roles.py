# SPDX-License-Identifier: Apache-2.0
"""Who may do what: real roles, each with nothing but what it uses, and what a hostile one can reach."""

import json
import signal

import pytest

import pg
from helpers import read_jsonl, wait_until

ROLES = ("app", "carrier", "nurse", "mallory")


@pytest.fixture
def roles(outbox, db):
    """app may emit, carrier runs relays, nurse looks after dead events, mallory may nothing."""
    pg.config(outbox, db)
    for name in ROLES:
        db.sql(f"create role {name} login")
    db.sql("grant outbox_writer to app; grant outbox_relay to carrier; grant outbox_operator to nurse")
    db.sql("revoke create on schema public from public")
    yield db
    for name in ROLES:
        db.sql(f"drop owned by {name} cascade; drop role {name}")


def denied(db, user, query):
    c = db.connect(user)
    try:
        with c.cursor() as cur:
            cur.execute(query)
    except db.server.psycopg2.errors.InsufficientPrivilege:
        return True
    finally:
        c.close()
    return False


EMIT = "select outbox.emit(type => 't', payload => '{}'::json)"


def test_a_writer_can_emit_and_nothing_else(roles):
    with roles.connect("app") as c, c.cursor() as cur:
        for query in (
            EMIT,
            "select outbox.emit(type => 't', payload => 'x'::bytea, serialize => true)",
            "select outbox.emit_many('[{\"type\":\"t\"}]')",
            "select outbox.emit_batch(types => array['t'])",
            "select outbox.set_context(tenant => 'x')",
            "select * from outbox.pressure()",
            "select outbox.admit()",
            "select outbox.has_event(outbox.gen_id())",
        ):
            cur.execute(query)
    assert roles.one("select count(*) from outbox.event") == 4
    for query in (
        "select * from outbox.event",
        "select * from outbox.events",
        "select * from outbox.event_default",
        "select last_value from outbox.event_seq_seq",
        "select nextval('outbox.event_seq_seq')",
        "insert into outbox.event (type) values ('t')",
        "update outbox.event set type = 'x'",
        "delete from outbox.event",
        "truncate outbox.event",
        "select * from outbox.cursor",
        "update outbox.meta set value = '1'",
        "select * from outbox.dead",
        "select outbox.maintain()",
        "select outbox.put('t', null, 'j', '', '', null, null, null, null, null, null, null, null, null, false)",
        "select outbox.grant_to('app', 'app')",
        "create table outbox.mine ()",
    ):
        assert denied(roles, "app", query), query


def test_who_was_granted_nothing_can_do_nothing(roles):
    for query in (EMIT, "select outbox.gen_id()", "select * from outbox.events", "select outbox.pending()"):
        assert denied(roles, "mallory", query), query
    # Whatever is added later: nothing in the schema is for everybody.
    public = roles.sql(
        """select p.oid::regprocedure::text from pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
           where p.pronamespace = 'outbox'::regnamespace and a.grantee = 0"""
    )
    assert public == []
    public = roles.sql(
        """select c.oid::regclass::text from pg_class c, aclexplode(c.relacl) a
           where c.relnamespace = 'outbox'::regnamespace and a.grantee = 0"""
    )
    assert public == []


def test_plain_inserts_work_where_columns_are_granted(roles, outbox):
    """For an ORM that inserts: never xid and seq, on which the order rests."""
    roles.sql("grant usage on schema outbox to app; grant insert (id, type, key, payload) on outbox.event to app")
    with roles.connect("app") as c, c.cursor() as cur:
        cur.execute("insert into outbox.event (type, key, payload) values ('t', 'k', '{}')")
    for column, value in (("xid", "'3'"), ("seq", "1"), ("created_at", "now()")):
        insert = f"insert into outbox.event (type, {column}) overriding system value values ('t', {value})"
        assert denied(roles, "app", insert)
    outbox.run("run", "--once")
    assert [e["key"] for e in read_jsonl(outbox.path("out/events.jsonl"))] == ["k"]


@pytest.mark.slow
def test_the_relay_runs_with_what_it_was_granted(roles, outbox):
    """Everything a relay does: delivery, upkeep of partitions, take-over from a hung and from a killed owner."""
    pg.small_partitions(roles, 100)
    paths = [outbox.path(f"out/{i}.jsonl") for i in range(3)]
    for i in range(3):
        pg.config(outbox, roles, path=f"out/{i}.jsonl", dsn=roles.dsn_of("carrier"), name=f"{i}.yaml", apply=False)
    writer = pg.Writer(roles, ["a", "b", "c"])
    writer.start()
    relays = [outbox.start("run", "-c", "0.yaml")]
    for i, how in ((1, signal.SIGSTOP), (2, signal.SIGKILL)):
        wait_until(lambda i=i: len(read_jsonl(paths[i - 1])) > 100, deadline=40, what="a hundred events")
        relays.append(outbox.start("run", "-c", f"{i}.yaml"))
        wait_until(lambda: "relay.standby" in relays[-1].err, what="a stand-by")
        relays[-2].signal(how)
    wait_until(lambda: len(read_jsonl(paths[2])) > 100, deadline=40, what="events of the last one")
    writer.stop()
    wait_until(pg.all_there(writer, *paths), deadline=30, what="everything")
    relays[0].signal(signal.SIGCONT)
    pg.check_ledger(writer, pg.delivered(*paths), repeats_allowed=True)
    wait_until(lambda: roles.one("select min(lo) from outbox.part") > 1, deadline=60, what="an old partition is gone")
    assert relays[-1].stop() == 0, relays[-1].err
    for relay in relays:
        assert "permission denied" not in relay.err
    assert outbox.json("status", "--json", "-c", "0.yaml")
    assert "permission denied" not in outbox.run("check", "-c", "0.yaml", check=None).out


def test_check_lists_the_roles_that_can_act_as_a_relay(roles, outbox):
    """Roles belong to the cluster and may have members before the schema is applied."""
    line = "login roles that can act as a relay, besides superusers: "
    shown = outbox.run("check", check=None).out
    (found,) = [x.split(line)[1] for x in shown.splitlines() if line in x]
    assert "carrier" in found.split(", ") and "app" not in found and "mallory" not in found, found
    roles.sql("grant carrier to mallory")
    assert "mallory" in outbox.run("check", check=None).out


def test_rows_that_row_level_security_hides_are_never_passed_over(roles, outbox):
    """The cursor would move over them: the relay does not start, and says the statement."""
    db = roles
    db.sql("select outbox.emit('t', '1')")
    pg.config(outbox, db, dsn=db.dsn_of("carrier"), apply=False)
    db.sql("alter table outbox.event enable row level security")
    r = outbox.run("run", "--once", check=None)
    assert r.returncode != 0 and "row-level security" in r.err, r.err
    fix = "ALTER TABLE outbox.event DISABLE ROW LEVEL SECURITY;"
    assert fix in r.err and db.one("select pos from outbox.cursor") == 0
    assert fix in outbox.run("check", check=None).out
    db.sql(fix)
    outbox.run("run", "--once")
    assert len(read_jsonl(outbox.path("out/events.jsonl"))) == 1


def test_an_operator_retries_the_dead_and_moves_no_cursor(roles, outbox):
    routes = '    routes: [{match: {type: bad}, topic: "${payload:/topic}"}, {topic: t}]'
    pg.config(outbox, roles, dsn=roles.dsn_of("carrier"), apply=False, more=routes)
    with roles.connect("app") as c, c.cursor() as cur:
        cur.execute("select outbox.emit(type => 'bad', key => 'k', payload => '{}'::json)")
        cur.execute("select outbox.emit(type => 'good', key => 'k', payload => '{}'::json)")
    outbox.run("run", "--once")
    text = outbox.path("outbox.yaml").read_text()
    outbox.write("nurse.yaml", text.replace("user=carrier", "user=nurse"))
    dead = outbox.json("dead", "list", "--json", "-c", "nurse.yaml")
    assert [d["type"] for d in dead] == ["bad"]
    for args in (["dead", "show", dead[0]["id"]], ["events"], ["status"], ["pause"], ["resume"],
                 ["dead", "retry", "--yes", dead[0]["id"]]):
        outbox.run(*args, "-c", "nurse.yaml")
    outbox.write("outbox.yaml", text.replace("${payload:/topic}", "mended"))
    outbox.run("run", "--once")
    assert sorted(e["topic"] for e in read_jsonl(outbox.path("out/events.jsonl"))) == ["mended", "t"]
    for query in (
        "update outbox.cursor set pos = 0",
        "delete from outbox.dead",
        "delete from outbox.parked",
        "update outbox.event set type = 'x'",
        "select outbox.maintain()",
        "select outbox.adopt('1', 1)",
        EMIT,
    ):
        assert denied(roles, "nurse", query), query
    for query in (
        "insert into outbox.event (type) values ('t')",
        "update outbox.event set type = 'x'",
        "delete from outbox.event",
        "update outbox.meta set value = '1'",
        "select outbox.grant_to('carrier', null)",
        EMIT,
    ):
        assert denied(roles, "carrier", query), query


def test_roles_of_ones_own_where_none_may_be_made(outbox, own_postgres):
    """The schema is applied by the owner of a database, who may not create roles; he names his own."""
    server = own_postgres()
    db = server.database()
    db.sql("create role owner login; create role app login; create role carrier login")
    db.sql(f"grant create on database {db.name} to owner")
    pg.config(outbox, db, dsn=db.dsn_of("owner"))
    assert not db.sql("select 1 from pg_roles where rolname like 'outbox%'")
    assert denied(db, "app", EMIT)
    with db.connect("owner") as c, c.cursor() as cur:
        cur.execute("select outbox.grant_to('app', 'carrier')")
    pg.config(outbox, db, dsn=db.dsn_of("carrier"), apply=False)
    with db.connect("app") as c, c.cursor() as cur:
        cur.execute(EMIT)
    outbox.run("run", "--once")
    assert len(read_jsonl(outbox.path("out/events.jsonl"))) == 1


# ---- hostile ones ----

EVIL = """create function {schema}.evil(anyelement) returns boolean language plpgsql as $$
    begin
        if current_user <> session_user then execute 'grant postgres to mallory'; end if;
        return true;
    end $$"""


def test_every_function_sets_its_search_path(roles):
    """pg_temp last: left out it is searched first, for types too, and whoever makes a type there has his code run."""
    loose = roles.sql(
        """select p.oid::regprocedure::text, p.prosecdef from pg_proc p where p.pronamespace = 'outbox'::regnamespace
           and not coalesce(p.proconfig, '{}') @> '{"search_path=pg_catalog, pg_temp"}'"""
    )
    # This one is inlined into statements; its operators are named with their schema.
    assert [(name.split("(")[0], definer) for name, definer in loose] == [("outbox.settled", False)]
    # And each of them is the owner's, who is who applied the schema.
    assert roles.sql("select distinct proowner from pg_proc where pronamespace = 'outbox'::regnamespace") == roles.sql(
        "select nspowner from pg_namespace where nspname = 'outbox'"
    )


@pytest.mark.parametrize("kind", ["json", "text", "uuid", "bytea", '"char"', "xid8"])
def test_types_of_ones_own_in_pg_temp_are_not_used(roles, kind):
    roles.sql("grant outbox_writer to mallory")
    c = roles.connect("mallory")
    with c.cursor() as cur:
        cur.execute("set search_path = pg_catalog")
        cur.execute(EVIL.format(schema="pg_temp"))
        cur.execute(f"create domain pg_temp.{kind} as pg_catalog.{kind} check (pg_temp.evil(value))")
        cur.execute("set search_path = pg_temp, pg_catalog")
        for query in (
            "select outbox.emit('t', '{\"a\":1}'::pg_catalog.text)",
            "select outbox.emit('t', '{\"a\":1}'::pg_catalog.json)",
            "select outbox.emit('t', '{\"a\":1}'::pg_catalog.bytea, kind => 'json')",
            "select outbox.emit_many('[{\"type\":\"t\",\"id\":\"01920000-0000-7000-8000-000000000001\"}]')",
            "select outbox.emit_batch(types => array['t'::pg_catalog.text], payloads => array['{}'::pg_catalog.bytea])",
            "select outbox.set_context(tenant => 'x'), outbox.emit('t')",
            "select outbox.pressure(), outbox.admit(), outbox.has_event(outbox.gen_id())",
        ):
            try:
                cur.execute(query)
            except roles.server.psycopg2.Error as e:  # not found among what he shadows: fine
                assert "evil" not in str(e), query
    c.close()
    assert roles.one("select pg_has_role('mallory', 'postgres', 'member')") is False
    assert roles.one("select rolsuper from pg_roles where rolname = 'mallory'") is False


def test_operators_and_functions_of_ones_own_are_not_used(roles):
    """In a schema that stands before pg_catalog: nothing of it is called, neither by emit nor by maintain."""
    roles.sql("grant outbox_writer, outbox_relay to mallory; create schema lair authorization mallory")
    c = roles.connect("mallory")
    with c.cursor() as cur:
        cur.execute("create table lair.called (what text)")
        cur.execute("grant all on lair.called to public; grant usage on schema lair to public")
        for left, right in (("text", "text"), ("bigint", "bigint"), ("integer", "integer"), ("xid8", "xid8")):
            for op in ("=", "<>", "<=", ">=", "<", ">"):
                cur.execute(
                    f"""create or replace function lair.op(a {left}, b {right}) returns boolean language plpgsql as $$
                        begin insert into lair.called values ('{op} {left}'); return true; end $$"""
                )
                cur.execute(f"create operator lair.{op} (leftarg = {left}, rightarg = {right}, function = lair.op)")
        for name, args in (("coalesce_", "text"), ("convert_to", "text, name"), ("clock_timestamp", ""),
                           ("pg_current_xact_id", ""), ("gen_random_uuid", ""), ("json_typeof", "json"),
                           ("format", "text, text"), ("greatest_", "bigint")):
            cur.execute(
                f"""create function lair.{name}({args}) returns text language plpgsql as $$
                    begin insert into lair.called values ('{name}'); return 'x'; end $$"""
            )
        cur.execute("set search_path = lair, pg_catalog")
        cur.execute(EMIT)
        cur.execute("select outbox.emit_batch(types => '{t}', serialize => true)")
        cur.execute("select outbox.emit_many('[{\"type\":\"t\",\"key\":\"k\"}]', true)")
        cur.execute("select outbox.maintain()")
        cur.execute("select outbox.settled(c, 1, '3'::pg_catalog.xid8) from outbox.cursor c")
        cur.execute("select outbox.pending(), outbox.pressure(), outbox.admit()")
        cur.execute("select count(*) from lair.called")
        assert cur.fetchone() == (0,)
    c.close()
    assert roles.sql("select * from lair.called") == []


def test_a_table_of_ones_own_in_pg_temp_is_not_written(roles):
    roles.sql("grant outbox_writer to mallory")
    c = roles.connect("mallory")
    with c.cursor() as cur:
        for name in ("event", "meta", "cursor", "part"):
            cur.execute(f"create temp table {name} (name text, value text)")
        cur.execute("insert into meta values ('hard_limit', '1')")
        cur.execute(EMIT)
        cur.execute("select count(*) from pg_temp.event")
        assert cur.fetchone() == (0,)
    c.close()
    assert roles.one("select count(*) from outbox.event") == 1


def test_a_context_that_is_no_json_fails_its_own_event_only(roles):
    with roles.connect("app") as c, c.cursor() as cur:
        cur.execute("set outbox.context = '{broken'")
        with pytest.raises(roles.server.psycopg2.errors.InvalidTextRepresentation):
            cur.execute(EMIT)
    assert not roles.sql("select 1 from outbox.event")
    with roles.connect("app") as c, c.cursor() as cur:
        cur.execute("select outbox.set_context(tenant => '\"}, \"x\": {\"'), outbox.emit('t')")
    assert roles.one("select metadata ->> 'tenantId' from outbox.event") == '"}, "x": {"'
    json.loads(roles.one("select metadata::text from outbox.event"))
