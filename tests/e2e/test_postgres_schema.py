# SPDX-License-Identifier: Apache-2.0
"""The schema: applied by several at once, twice, by hand, by an older program; and `check` on servers of other kinds."""

import concurrent.futures

import pytest

import pg
from helpers import read_jsonl

CATALOG = """
    select 'table ' || c.relname || ' ' || coalesce(string_agg(a.attname || ' ' || format_type(a.atttypid, a.atttypmod), ', '
        order by a.attnum), '') from pg_class c left join pg_attribute a on a.attrelid = c.oid and a.attnum > 0
        and not a.attisdropped where c.relnamespace = 'outbox'::regnamespace group by c.oid, c.relname
    union all select 'function ' || p.oid::regprocedure || coalesce(p.proacl::text, '') || coalesce(p.proconfig::text, '')
        || md5(p.prosrc) from pg_proc p where p.pronamespace = 'outbox'::regnamespace
    union all select 'setting ' || name || '=' || value from outbox.meta
    order by 1"""


def test_eight_at_once_and_once_more(outbox, db):
    pg.config(outbox, db, apply=False)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        runs = list(pool.map(lambda _: outbox.run("schema", "--apply", timeout=120), range(8)))
    assert sorted("up to date" in r.out for r in runs) == [False] + [True] * 7
    first = db.sql(CATALOG)
    assert "up to date" in outbox.run("schema", "--apply").out
    assert db.sql(CATALOG) == first
    # In several databases at once, which share the roles.
    others = [db.server.database() for _ in range(3)]
    for i, other in enumerate(others):
        pg.config(outbox, other, name=f"{i}.yaml", apply=False)
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda i: outbox.run("schema", "--apply", "-c", f"{i}.yaml", timeout=120), range(3)))
    for other in others:
        assert other.sql(CATALOG) == first
        other.close()


def test_a_dry_run_changes_nothing_and_print_is_the_same(outbox, db):
    pg.config(outbox, db, apply=False)
    r = outbox.run("schema", "--dry-run")
    assert "001_outbox" in r.out and "to apply" in r.out
    assert db.one("select count(*) from pg_namespace where nspname = 'outbox'") == 0
    other = db.server.database()
    other.sql(outbox.run("schema", "--print").out)
    outbox.run("schema", "--apply")
    assert other.sql(CATALOG) == db.sql(CATALOG)
    assert "up to date" in outbox.run("schema", "--dry-run").out
    other.close()


def test_a_newer_schema_is_left_alone(outbox, db):
    pg.config(outbox, db)
    db.sql("update outbox.meta set value = '77' where name = 'version'")
    before = db.sql(CATALOG)
    for args in (["schema", "--apply"], ["schema", "--dry-run"], ["status"], ["emit", "--type", "t"]):
        r = outbox.run(*args, check=None)
        assert r.returncode != 0 and "version 77" in r.out + r.err and "newer program" in r.out + r.err, args
    r = outbox.run("check", check=None)
    assert r.returncode != 0 and "version 77" in r.out
    assert db.sql(CATALOG) == before
    db.sql("update outbox.meta set value = '1' where name = 'version'")
    r = outbox.run("status", check=None)
    assert r.returncode != 0 and "outbox schema --apply" in r.out + r.err


def test_a_schema_of_somebody_else_is_left_alone(outbox, db):
    db.sql("create schema outbox; create table outbox.letters (id int)")
    pg.config(outbox, db, apply=False)
    r = outbox.run("schema", "--apply", check=None)
    assert r.returncode != 0 and "rename it" in r.err
    assert db.sql("select relname from pg_class where relnamespace = 'outbox'::regnamespace") == [("letters",)]


@pytest.fixture
def mallory(db):
    """A role that may create schemas in the database, and nothing else."""
    name = f"mallory_{db.name}"
    db.sql(f"create role {name} login; grant create on database {db.name} to {name}")
    yield name
    db.sql(f"drop owned by {name} cascade; drop role {name}")


def as_role(db, user, query):
    c = db.connect(user)
    with c.cursor() as cur:
        cur.execute(query)
    c.close()


EVIL_PUT = """create function outbox.{name} returns {returns} language plpgsql as $$
    begin execute 'alter role ' || quote_ident(session_user) || ' superuser'; return null; end $$"""


@pytest.mark.parametrize("before", [
    "create schema outbox",
    "create schema outbox; create table outbox.letters ()",
    "create schema outbox; create type outbox.kind as enum ('a')",
    "create schema outbox; " + EVIL_PUT.format(name="stamp(json)", returns="json"),
])
def test_a_schema_made_beforehand_by_another_role_is_refused(outbox, db, mallory, before):
    """Its owner could replace what a definer's function calls, and run code as the role that applied it."""
    pg.config(outbox, db, apply=False)
    as_role(db, mallory, before)
    objects = "select count(*) from pg_class where relnamespace = 'outbox'::regnamespace"
    count = db.one(objects)
    with pytest.raises(db.server.psycopg2.errors.InsufficientPrivilege) as e:
        db.sql(outbox.run("schema", "--print").out)
    assert mallory in str(e.value) and "belongs to role" in str(e.value) and "SET ROLE" in str(e.value)
    r = outbox.run("schema", "--apply", check=None)
    assert r.returncode != 0
    assert db.one(objects) == count, "nothing was added"


def test_objects_of_another_role_stop_every_later_migration_and_check_names_them(outbox, db, mallory):
    pg.config(outbox, db)
    assert "everything in it belong to role postgres" in outbox.run("check", check=None).out
    db.sql(f"grant create on schema outbox to {mallory}")
    r = outbox.run("check", check=None)
    assert r.returncode != 0 and f"REVOKE CREATE ON SCHEMA outbox FROM {mallory};" in r.out, r.out
    db.sql("update outbox.meta set value = %s where name = 'version'", str(int(newest(outbox)) - 1))
    r = outbox.run("schema", "--apply", check=None)
    assert r.returncode != 0 and f"role {mallory} may create objects in the schema outbox" in r.err, r.err
    as_role(db, mallory, "create table outbox.mine ()")
    db.sql(f"revoke create on schema outbox from {mallory}")
    r = outbox.run("schema", "--apply", check=None)
    assert r.returncode != 0 and "outbox.mine" in r.err and mallory in r.err, r.err
    db.sql("update outbox.meta set value = %s where name = 'version'", newest(outbox))
    r = outbox.run("check", check=None)
    assert r.returncode != 0 and "ALTER TABLE outbox.mine OWNER TO postgres;" in r.out, r.out
    db.sql("drop table outbox.mine")
    db.sql("alter function outbox.maintain(boolean) reset search_path")
    fix = "ALTER FUNCTION outbox.maintain(boolean) SET search_path = pg_catalog, pg_temp;"
    r = outbox.run("check", check=None)
    assert r.returncode != 0 and fix in r.out, r.out
    db.sql(fix)
    r = outbox.run("check", check=None)
    assert fix not in r.out and "everything in it belong to role postgres" in r.out, r.out


def newest(outbox):
    return outbox.run("schema", "--print").out.rsplit("VALUES ('version', '", 1)[1].split("'", 1)[0]


def test_the_search_path_of_the_applying_session_is_not_used(outbox, db, mallory):
    """`outbox schema | psql` with functions of another role in public that fit better than those of pg_catalog."""
    pg.config(outbox, db, apply=False)
    as_role(db, mallory, "create schema lair; grant usage on schema lair to public")
    for name, args in (("format", "text, name"), ("quote_ident", "name"), ("pg_get_userbyid", "oid")):
        as_role(db, mallory, f"""create function lair.{name}({args}) returns text language plpgsql as $$
            begin raise exception 'evil was called'; end $$""")
    text = outbox.run("schema", "--print").out
    c = db.connect()
    with c.cursor() as cur:
        cur.execute("set search_path = lair, pg_catalog")
        cur.execute(text)
    c.close()
    assert db.one("select count(*) from outbox.meta") > 0


def test_a_failed_migration_leaves_nothing(outbox, db):
    """All of it is one transaction: here the role has no right to create a schema."""
    db.sql("create role stranger login")
    try:
        pg.config(outbox, db, dsn=db.dsn_of("stranger"), apply=False)
        r = outbox.run("schema", "--apply", check=None)
        assert r.returncode != 0 and "permission denied" in r.err
        assert db.one("select count(*) from pg_namespace where nspname = 'outbox'") == 0
    finally:
        db.sql("drop role stranger")


def test_another_encoding_is_told_of_and_works_within_its_characters(outbox, postgres):
    name = f"latin_{postgres.databases}"
    postgres.databases += 1
    c = postgres.connect()
    with c.cursor() as cur:
        cur.execute(f"create database {name} encoding 'LATIN1' locale 'C' template template0")
    try:
        dsn = postgres.dsn(name)
        pg.config(outbox, None, dsn=dsn)
        outbox.run("emit", "--type", "t", "--key", "schön", "--payload", '{"a":"ü"}')
        outbox.run("run", "--once")
        (event,) = read_jsonl(outbox.path("out/events.jsonl"))
        assert (event["key"], event["value"]) == ("schön", {"a": "ü"})
        r = outbox.run("emit", "--type", "t", "--key", "日本", "--payload", "{}", check=None)
        assert r.returncode != 0
        r = outbox.run("check", check=None)
        assert r.returncode != 0 and "encoding is LATIN1" in r.out and "ENCODING 'UTF8'" in r.out
    finally:
        with c.cursor() as cur:
            cur.execute(f"drop database {name} with (force)")
        c.close()


@pytest.mark.slow
def test_a_stand_by_is_told_of(outbox, own_postgres, tmp_path):
    primary = own_postgres(conf=["synchronous_commit = on"])
    db = primary.database()
    pg.config(outbox, db)
    folder = f"{primary.dir}/copy"
    primary.tool("pg_basebackup", "-D", folder, "-R", "-c", "fast", "-X", "stream", "-h", "127.0.0.1", "-p", primary.port)
    standby = own_postgres(source=folder, conf=["hot_standby = on"])
    pg.config(outbox, db, dsn=standby.dsn(db.name), apply=False)
    r = outbox.run("check", check=None)
    assert r.returncode != 0
    assert "stand-by" in r.out + r.err, r.out
    assert "target_session_attrs=read-write" in r.out + r.err
    c = standby.connect(db.name)
    with c.cursor() as cur:
        cur.execute("select pg_promote()")
    c.close()
    assert "stand-by" not in outbox.run("check", check=None).out
