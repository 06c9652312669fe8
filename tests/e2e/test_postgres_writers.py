# SPDX-License-Identifier: Apache-2.0
"""test_postgres_writers - what a writer may put into an event: sizes of columns, and outbox.writer, which allows roles their tenants,
topics and keys."""

import json
import time

import pytest

import pg
from helpers import SLOW, read_jsonl, wait_until


@pytest.fixture
def roles(outbox, db):
    """Two writers; a group that both can be in; a login that is nothing without SET ROLE."""
    pg.config(outbox, db)
    made = {name: f"{name}_{db.name}" for name in ("shop", "bank", "group", "login")}
    for name, role in made.items():
        db.sql(f"create role {role} {'nologin' if name == 'group' else 'login'} {'noinherit' if name == 'login' else ''}")
    db.sql("grant outbox_writer to {shop}, {bank}; grant {shop}, {bank} to {login}; grant {group} to {shop}".format(**made))
    yield made
    for role in made.values():
        db.sql(f"drop owned by {role} cascade")
    for role in made.values():
        db.sql(f"drop role {role}")


def refused(db, user, query, *params, error=None):
    """The error of a statement that must fail."""
    c = db.connect(user)
    try:
        with c.cursor() as cur, pytest.raises(error or db.server.psycopg2.errors.InsufficientPrivilege) as e:
            cur.execute(query, params)
        return f"{e.value} {e.value.diag.message_hint}"
    finally:
        c.close()


def run(db, user, query, *params):
    c = db.connect(user)
    with c.cursor() as cur:
        cur.execute(query, params)
    c.close()


def emit(**args):
    """(statement, parameters) of an emit."""
    args = {"type": "t", "payload": "{}", **args}
    casts = {"headers": "::json", "metadata": "::json"}
    return "select outbox.emit(" + ", ".join(f"{k} => %s{casts.get(k, '')}" for k in args) + ")", *args.values()


# ---- sizes ----

TEXTS = ("type", "aggregate_type", "aggregate_id", "key", "tenant", "topic")


@pytest.mark.parametrize("column", TEXTS + ("headers", "metadata"))
def test_every_column_has_a_limit_in_every_way_to_emit(roles, db, column):
    wide = column in ("headers", "metadata")
    limit = 1048576 if wide else 65536
    fits, large = ("x" * limit, "x" * (limit + 1)) if not wide else (json.dumps({"a": "x" * (limit - 9)}), json.dumps({"a": "x" * (limit - 8)}))
    assert len(fits) == limit and len(large) == limit + 1
    error = db.server.psycopg2.errors.ProgramLimitExceeded
    what = f"{column} has {limit + 1} bytes, the limit is {limit}"
    run(db, roles["shop"], *emit(**{column: fits}))
    assert what in refused(db, roles["shop"], *emit(**{column: large}), error=error)
    many = lambda value: json.dumps([{"type": "t"}, {"type": "t", column: json.loads(value) if wide else value}])  # noqa: E731
    run(db, roles["shop"], "select outbox.emit_many(%s)", many(fits))
    assert what in refused(db, roles["shop"], "select outbox.emit_many(%s)", many(large), error=error)
    plural = column if wide else f"{column}s"
    types = "" if column == "type" else "types => array['t', 't'], "
    batch = f"select outbox.emit_batch({types}{plural} => array['{{}}', %s]{'::json[]' if wide else ''})"
    run(db, roles["shop"], batch, fits)
    text = refused(db, roles["shop"], batch, large, error=error)
    assert what in text and ("max_json_bytes" if wide else "max_text_bytes") in text, text
    assert db.one("select count(*) from outbox.event") == 5


def test_limits_are_settings_and_count_what_the_context_adds(roles, db):
    error = db.server.psycopg2.errors.ProgramLimitExceeded
    db.sql("update outbox.meta set value = '2000' where name = 'max_text_bytes'")
    assert "the limit is 2000" in refused(db, roles["shop"], *emit(key="ä" * 1001), error=error)
    run(db, roles["shop"], *emit(key="ä" * 1000))
    assert "tenant has 2001 bytes" in refused(
        db, roles["shop"], "select outbox.set_context(tenant => repeat('x', 2001)), outbox.emit('t')", error=error)
    assert "tenant has 2001 bytes" in refused(
        db, roles["shop"], "select outbox.set_context(tenant => repeat('x', 2001)), outbox.emit_batch(array['t'])", error=error)
    assert "metadata has" in refused(
        db, roles["shop"], "select outbox.set_context(source => repeat('x', 1048576)), outbox.emit_batch(array['t'])", error=error)
    db.sql("update outbox.meta set value = '0' where name = 'max_text_bytes'")
    run(db, roles["shop"], *emit(key="x" * 100000))


# ---- names ----


def allow(db, role, tenant=None, topics=None, keys=None):
    db.sql("insert into outbox.writer (role, tenant, topics, keys) values (%s, %s, %s, %s)", role, tenant, topics, keys)


def test_an_empty_table_restricts_nobody_and_costs_nothing(roles, db):
    run(db, roles["shop"], *emit(topic="any", tenant="any", key="any"))
    assert db.one("select count(*) from pg_trigger where tgrelid = 'outbox.event'::regclass and not tgisinternal") == 0
    allow(db, roles["shop"])
    assert db.one("select count(*) from pg_trigger where tgrelid = 'outbox.event'::regclass and not tgisinternal") == 1
    db.sql("delete from outbox.writer")
    assert db.one("select count(*) from pg_trigger where tgrelid = 'outbox.event'::regclass and not tgisinternal") == 0
    allow(db, roles["shop"])
    db.sql("truncate outbox.writer")
    run(db, roles["bank"], *emit())


def test_a_writer_keeps_to_its_tenant_topics_and_keys(roles, db, outbox):
    shop, bank = roles["shop"], roles["bank"]
    allow(db, shop, "acme", ["shop.*", "audit"], ["order-?", "100%_*"])
    run(db, shop, *emit(tenant="acme", topic="shop.orders", key="order-1"))
    run(db, shop, *emit(tenant="acme", topic="audit", aggregate_id="order-2"))
    run(db, shop, *emit(tenant="acme", key="100%_x"))  # without a topic: the routes choose it
    for args, what in (
        ({"tenant": "evil", "key": "order-1"}, "tenant 'evil'"),
        ({"key": "order-1"}, "tenant NULL"),
        ({"tenant": "acme", "topic": "shop", "key": "order-1"}, "topic 'shop'"),
        ({"tenant": "acme", "topic": "$JS.API.X", "key": "order-1"}, "topic '$JS.API.X'"),
        ({"tenant": "acme", "key": "order-10"}, "key 'order-10'"),
        ({"tenant": "acme", "key": "100 percent"}, "key '100 percent'"),
        ({"tenant": "acme", "aggregate_id": "other"}, "key 'other'"),
        ({"tenant": "acme", "key": "other", "aggregate_id": "order-1"}, "key 'other'"),
    ):
        text = refused(db, shop, *emit(**args))
        assert f"role {shop} may not write {what}" in text and "INSERT INTO outbox.writer" in text, text
    # Tenants of the context and of the metadata count like those of the argument.
    assert "tenant 'evil'" in refused(db, shop, "select outbox.set_context(tenant => 'evil'), outbox.emit('t', key => 'order-1')")
    assert "tenant 'evil'" in refused(db, shop, *emit(key="order-1", metadata='{"tenantId": "evil"}'))
    # All ways to write.
    assert "topic 'x'" in refused(db, shop, "select outbox.emit_batch(types => array['t'], tenants => array['acme'], "
                                  "topics => array['x'], keys => array['order-1'])")
    assert "topic 'x'" in refused(db, shop, "select outbox.emit_many(%s)",
                                  json.dumps([{"type": "t", "tenant": "acme", "topic": "x", "key": "order-1"}]))
    db.sql(f"grant usage on schema outbox to {shop}; grant insert (type, tenant, topic, key) on outbox.event, outbox.event_default to {shop}")
    for table in ("event", "event_default"):
        assert "topic 'x'" in refused(
            db, shop, f"insert into outbox.{table} (type, tenant, topic, key) values ('t', 'acme', 'x', 'order-1')")
    run(db, shop, "insert into outbox.event (type, tenant, topic, key) values ('t', 'acme', 'audit', 'order-4')")
    # Another role without a row, and one with two rows that must not be mixed.
    assert "it has no row in outbox.writer" in refused(db, bank, *emit())
    allow(db, bank, "x", ["a"])
    allow(db, bank, "y", ["b"])
    run(db, bank, *emit(tenant="x", topic="a"))
    assert "in one event" in refused(db, bank, *emit(tenant="x", topic="b"))
    # The owner is not restricted; new partitions are.
    db.sql(*emit(topic="anything"))
    pg.maintain(db)
    outbox.run("run", "--once")
    assert len(read_jsonl(outbox.path("out/events.jsonl"))) == 6


def test_the_writer_is_the_login_or_the_role_that_it_set(roles, db):
    """Not current_user, which is the owner inside emit, and the owner of any function around it."""
    shop, bank, group, login = (roles[x] for x in ("shop", "bank", "group", "login"))
    allow(db, group, "acme")
    run(db, shop, *emit(tenant="acme"))  # by its group
    assert "no row" in refused(db, bank, *emit(tenant="acme"))
    allow(db, bank, "bank")
    run(db, login, f"set role {shop}; select outbox.emit('t', tenant => 'acme')")
    assert f"role {shop} may not write tenant 'bank'" in refused(db, login, f"set role {shop}; select outbox.emit('t', tenant => 'bank')")
    run(db, login, f"set role {bank}; select outbox.emit('t', tenant => 'bank')")
    assert "permission denied to set role" in refused(db, bank, f"set role {shop}")
    # A definer's function of another role does not lend its rows, and cannot take the caller's.
    db.sql(f"create schema lent authorization {bank}; grant usage on schema lent to public")
    run(db, bank, "create function lent.emit(tenant text) returns uuid language sql security definer as "
                  "$$ select outbox.emit('t', tenant => tenant) $$")
    assert f"role {shop} may not write tenant 'bank'" in refused(db, shop, "select lent.emit('bank')")
    run(db, bank, "select lent.emit('bank')")
    # Nobody lifts the restriction by himself.
    for query in ("delete from outbox.writer", "insert into outbox.writer (role) values (current_user)",
                  "alter table outbox.event disable trigger event_writer", "set session_replication_role = replica",
                  "drop trigger event_writer on outbox.event", "select outbox.switch_writer()"):
        refused(db, bank, query)


def test_an_open_transaction_stops_the_change_and_no_writer(roles, db):
    """The trigger needs a lock that waits for open writers: the change gives up after 3 s, and writers wait no longer."""
    c = db.server.connect(db.name, roles["bank"], autocommit=False)
    with c.cursor() as cur:
        cur.execute(*emit()[:1], emit()[1:])
        writer = pg.Writer(db, ["a"])
        writer.start()
        since = time.monotonic()
        with pytest.raises(db.server.psycopg2.errors.LockNotAvailable) as e:
            allow(db, roles["shop"])
        assert "open transaction" in str(e.value) and time.monotonic() - since < 10 * SLOW
        at = writer.total()
        wait_until(lambda: writer.total() > at + 10, 10, "writers go on")
        c.rollback()
    c.close()
    allow(db, roles["shop"])
    writer.stop()


def test_rows_that_come_and_go_fail_no_writer(roles, db):
    """Adding the first row and removing the last take the locks in the order of the writers: no deadlock."""
    pg.small_partitions(db, 100000)
    writers = [pg.Writer(db, [f"k{i}"], pause=0) for i in range(3)]
    for w in writers:
        w.start()
    changes, until = 0, time.monotonic() + 60 * SLOW
    while changes < 40 and time.monotonic() < until:
        for query in ("insert into outbox.writer (role) values ('nobody')", "delete from outbox.writer"):
            try:
                db.sql(query)
                changes += 1
            except db.server.psycopg2.errors.LockNotAvailable:
                pass
    db.sql("truncate outbox.writer")
    for w in writers:
        w.stop()  # raises what a writer met
    assert changes >= 20


def test_check_names_a_missing_trigger(roles, db, outbox):
    allow(db, roles["shop"])
    db.sql("drop trigger event_writer on outbox.event")
    fix = "UPDATE outbox.writer SET role = role;"
    r = outbox.run("check", check=None)
    assert fix in r.out, r.out
    db.sql(fix)
    assert fix not in outbox.run("check", check=None).out
    db.sql("alter table outbox.event disable trigger event_writer")
    fix = "ALTER TABLE outbox.event ENABLE TRIGGER event_writer;"
    assert fix in outbox.run("check", check=None).out
    db.sql(fix)
    assert fix not in outbox.run("check", check=None).out
