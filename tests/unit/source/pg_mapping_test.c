/* SPDX-License-Identifier: Apache-2.0 */
/* pg_mapping_test - a mapped table is found in the catalog, what does not fit is said, and every
 * statement that is built is one that the server takes. */
#include "config/load.h"
#include "pg_harness.h"
#include "source/postgres/mapping.h"

#include <stdio.h>

#define ORION                                                                                      \
    "create table o (id uuid primary key, tenant uuid, kind varchar(100), agg uuid, payload "      \
    "jsonb, meta jsonb, at timestamptz, done timestamptz, tries int not null default 0, err "      \
    "text, "                                                                                       \
    "no bigserial)"
#define EF                                                                                         \
    "create table \"Out\"\"Box\" (\"Id\" uuid primary key, \"Status\" %s, \"Payload\" text, "      \
    "\"CreatedAt\" timestamp, extra numeric)"
#define EF_MAP                                                                                     \
    "{table: 'Out\"Box', id: Id, status: Status, payload: Payload, created: CreatedAt, "           \
    "payload_kind: json, status_pending: [Pending, '0'], status_claimed: [Processing, '1'], "      \
    "status_done: [Processed, '2'], status_failed: [Failed, '3']}"

/* A mapping from YAML, opened against the bench's database. */
struct mapped {
    struct ob_arena *arena;
    struct ob_mapping conf;
    struct pg_session conn;
    struct pg_map *map;
    struct ob_err err;
};

static enum ob_status open_map(struct bench *b, const char *yaml, struct mapped *m)
{
    struct ob_node *root = NULL;
    *m = (struct mapped){.arena = ob_arena_new(4096, 0)};
    assert_int_equal(ob_yaml_parse(m->arena, "map", ob_str_c(yaml), NULL, &root, &m->err), OB_OK);
    enum ob_status st = ob_opt_load(ob_mapping_opts, root, &m->conf, m->arena, &m->err);
    if (st != OB_OK)
        return st;
    assert_int_equal(ob_pg_connect(&m->conn, b->dsn, "t", false, &ob_clock_system, 10000, &m->err),
                     OB_OK);
    return ob_pg_map_open(&m->conn, &m->conf, "it's", "me\\", &m->map, &m->err);
}

static void close_map(struct mapped *m)
{
    ob_pg_map_close(m->map);
    ob_pg_close(&m->conn);
    ob_arena_unref(m->arena);
}

static const struct {
    const char *name, *ddl, *yaml, *want;
} bad[] = {
    {"unknown option", "", "{table: o, idd: id}", "did you mean 'id'"},
    {"no table named", "", "{id: id, done: d}", "mapping.table is missing"},
    {"no id", "", "{table: o, done: d}", "mapping.id is missing"},
    {"no state", "", "{table: o, id: id}", "`done` or `status`"},
    {"two states", "", "{table: o, id: id, done: a, status: b}", "keep one"},
    {"status without values", "", "{table: o, id: id, status: b}", "status_pending"},
    {"dead_attempts without attempts", "", "{table: o, id: id, done: d, dead_attempts: 5}",
     "needs `attempts`"},
    {"an error that holds and is written on retries", "",
     "{table: o, id: id, done: d, error: e, error_holds: true}", "error_on: dead"},
    {"half a lease", "", "{table: o, id: id, done: d, locked_by: l}", "belong together"},
    {"missing table", "", "{table: o, id: id, done: d}", "no table \"public\".\"o\""},
    {"missing column", ORION, "{table: o, id: id, done: doen}", "did you mean 'done'"},
    {"wrong type", ORION, "{table: o, id: id, done: payload}",
     "mapping.done: column \"payload\" of \"public\".\"o\" is jsonb; it must be a boolean"},
    {"view", "create table x (id int primary key, d bool); create view o as select * from x",
     "{table: o, id: id, done: d}", "is a view"},
    {"no key", "create table o (id int, d bool)", "{table: o, id: id, done: d}", "ADD PRIMARY KEY"},
    {"a partial key is none",
     "create table o (id int, d bool); create unique index on o (id) where d",
     "{table: o, id: id, done: d}", "no primary key"},
    {"further column is missing", ORION, "{table: o, id: id, done: done, columns: [nope]}",
     "no column 'nope'"},
    {"quotes in a name find nothing else", "create table o (id int primary key, d bool)",
     "{table: 'o\" where true; --', id: id, done: d}", "no table"},
    {"a name in another case", "create table o (id int primary key, d bool)",
     "{table: O, id: id, done: d}", "did you mean schema: public, table: o?"},
    {"a name with its schema", "create table o (id int primary key, d bool)",
     "{table: public.o, id: id, done: d}", "did you mean schema: public, table: o?"},
    {"no value of an enum",
     "create type st as enum ('a', 'b'); create table o (id int primary key, s st)",
     "{table: o, id: id, status: s, status_pending: a, status_done: c}",
     "mapping.status_done: 'c' is no value of column \"s\""},
    {"no number", "create table o (id int primary key, s int)",
     "{table: o, id: id, status: s, status_pending: Pending, status_done: '1'}",
     "mapping.status_pending: 'Pending' is no value of column \"s\", which is integer"},
    {"a number that is too large", "create table o (id int primary key, s smallint)",
     "{table: o, id: id, status: s, status_pending: '0', status_done: '70000'}",
     "mapping.status_done: '70000'"},
    {"a word that is too long", "create table o (id int primary key, s varchar(4))",
     "{table: o, id: id, status: s, status_pending: new, status_done: delivered}", "and shorter"},
    {"a worker's name that is too long",
     "create table o (id int primary key, d bool, lb varchar(2), lu timestamptz)",
     "{table: o, id: id, done: d, locked_by: lb, locked_until: lu}",
     "mapping.locked_by: column \"lb\" has room for 2 characters"},
};

static void fresh(struct bench *b)
{
    sql(b, "set client_min_messages = error; drop schema public cascade; create schema public");
}

static void what_does_not_fit_is_said(void **state)
{
    struct bench b;

    (void)state;
    bench_init(&b);
    for (size_t i = 0; i < ROWS(bad); i++) {
        struct mapped m;
        fresh(&b);
        if (*bad[i].ddl)
            sql(&b, "%s", bad[i].ddl);
        assert_int_equal(open_map(&b, bad[i].yaml, &m), OB_FATAL);
        if (!strstr(m.err.text, bad[i].want))
            fail_msg("%s: %s", bad[i].name, m.err.text);
        close_map(&m);
    }
    bench_clear(&b);
}

static const struct {
    const char *name, *ddl, *yaml;
} good[] = {
    {"done is a boolean", "create table o (id text primary key, d bool, p bytea, t timestamptz)",
     "{table: o, id: id, done: d, payload: p, created: t}"},
    {"done is a time", ORION "; create index on o (no) where done is null",
     "{table: o, id: id, order: \"no\", done: done, key: agg, type: kind, tenant: tenant, payload: "
     "payload, metadata: meta, created: at, attempts: tries, error: err, dead_attempts: 5}"},
    {"entity versions", "create table o (id bigint primary key, k text, v int, d bool)",
     "{table: o, id: id, key: k, entity_version: v, done: d}"},
    {"a lease",
     "create table o (id int primary key, d bool, lb text, lu timestamptz, ca timestamp, tries "
     "int, most int)",
     "{table: o, id: id, done: d, locked_by: lb, locked_until: lu, claimed_at: ca, attempts: "
     "tries, max_attempts: most, dead_attempts: 3}"},
    {"dead rows are marked as done",
     "create table o (id int primary key, d bool, t timestamptz, e text)",
     "{table: o, id: id, done: d, done_at: t, error: e, on_permanent: mark_processed, "
     "error_exhausted: it's over}"},
    {"optional columns", "create table o (id int primary key, d bool, m json)",
     "{table: o, id: id, done: d, metadata: 'm?', headers: 'h?'}"},
    {"partitioned",
     "create table o (id uuid, at timestamptz, d bool, primary key (id, at)) partition by range "
     "(at)",
     "{table: o, id: id, done: d, created: at}"},
    {"an id of fixed length", "create table o (id char(26) primary key, d bool, e varchar(20))",
     "{table: o, id: id, done: d, error: e}"},
    {"negative numbers", "create table o (id int primary key, s int)",
     "{table: o, id: id, status: s, status_pending: '-1', status_done: '1'}"},
    {"a column named like ours", "create table o (id int primary key, i int, s text, outbox text)",
     "{table: o, id: id, status: s, status_pending: new, status_claimed: busy, status_done: ok}"},
};

static void prepare_all(struct mapped *m, const char *name)
{
    char no[16];
    for (int i = 0; i < PG_MAP_SQL_N; i++) {
        assert_non_null(m->map->sql[i]);
        snprintf(no, sizeof(no), "s%d", i);
        if (*m->map->sql[i] && ob_pg_prepare(&m->conn, no, m->map->sql[i], &m->err) != OB_OK)
            fail_msg("%s: %s\n%s", name, m->err.text, m->map->sql[i]);
    }
}

static void every_statement_is_taken(void **state)
{
    struct bench b;

    (void)state;
    bench_init(&b);
    for (size_t i = 0; i < ROWS(good); i++) {
        struct mapped m;
        fresh(&b);
        sql(&b, "%s", good[i].ddl);
        if (open_map(&b, good[i].yaml, &m) != OB_OK)
            fail_msg("%s: %s", good[i].name, m.err.text);
        prepare_all(&m, good[i].name);
        close_map(&m);
    }
    bench_clear(&b);
}

/* Text, integers and enums, in quoted names: the value that fits the column is taken. */
static void a_status_fits_its_column(void **state)
{
    static const struct {
        const char *type, *want;
    } rows[] = {{"text", "'Pending'"}, {"int", "'0'"}, {"smallint", "'0'"}, {"st", "'Pending'"}};
    struct bench b;

    (void)state;
    bench_init(&b);
    for (size_t i = 0; i < ROWS(rows); i++) {
        struct mapped m;
        fresh(&b);
        sql(&b, "create type st as enum ('Pending', 'Processing', 'Processed', 'Failed')");
        sql(&b, EF, rows[i].type);
        if (open_map(&b, EF_MAP, &m) != OB_OK)
            fail_msg("%s: %s", rows[i].type, m.err.text);
        assert_string_equal(m.map->v_pending, rows[i].want);
        assert_true(m.map->claims);
        assert_int_equal(m.map->payload_kind, OB_PAYLOAD_JSON);
        assert_int_equal(m.map->n_more, 1);
        prepare_all(&m, rows[i].type);
        close_map(&m);
    }
    bench_clear(&b);
}

static void literals_are_quoted(void **state)
{
    static const struct {
        const char *text, *want;
    } rows[] = {{"a", "'a'"}, {"it's", "'it''s'"}, {"\\'", "E'\\\\'''"}, {"", "''"}};
    struct ob_arena *arena = ob_arena_new(1024, 0);

    (void)state;
    for (size_t i = 0; i < ROWS(rows); i++)
        assert_string_equal(ob_pg_literal(arena, rows[i].text), rows[i].want);
    ob_arena_unref(arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_does_not_fit_is_said),
        cmocka_unit_test(every_statement_is_taken),
        cmocka_unit_test(a_status_fits_its_column),
        cmocka_unit_test(literals_are_quoted),
    };
    return server_missing() ? 0 : cmocka_run_group_tests(tests, NULL, NULL);
}
