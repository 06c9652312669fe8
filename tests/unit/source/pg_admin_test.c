/* SPDX-License-Identifier: Apache-2.0 */
/* pg_admin_test - the schema in PostgreSQL. */
#include "pg_harness.h"
#include "source/postgres/schema.h"

static void schema_is_idempotent(void **state)
{
    struct bench b;
    struct ob_admin *a;
    struct ob_buf out;
    struct ob_err err;
    unsigned changed = 99;

    (void)state;
    bench_empty(&b);
    a = open_admin(&b);
    ob_buf_init(&out, 0);
    assert_int_equal(ob_pg_admin.schema(a, true, &out, &changed, &err), OB_OK);
    assert_int_equal(changed, ob_pg_schema_newest());
    assert_non_null(strstr(ob_buf_z(&out), "001_outbox"));
    assert_int_equal(num(&b, "select count(*) from pg_namespace where nspname = 'outbox'"), 0);
    assert_int_equal(ob_pg_admin.schema(a, false, &out, &changed, &err), OB_OK);
    assert_int_equal(changed, ob_pg_schema_newest());
    ob_buf_reset(&out);
    assert_int_equal(ob_pg_admin.schema(a, true, &out, &changed, &err), OB_OK);
    assert_int_equal(changed, 0);
    assert_int_equal(out.n, 0);
    assert_int_equal(ob_pg_admin.schema(a, false, &out, &changed, &err), OB_OK);
    assert_int_equal(changed, 0);

    /* The printed text makes the same. */
    sql(&b, "set client_min_messages = error; drop schema outbox cascade");
    ob_buf_reset(&out);
    ob_pg_admin.schema_print(&out);
    PGresult *res = PQexec(b.app, ob_buf_z(&out));
    if (PQresultStatus(res) != PGRES_COMMAND_OK)
        fail_msg("%s", PQerrorMessage(b.app));
    PQclear(res);
    assert_int_equal(ob_pg_admin.schema(a, true, &out, &changed, &err), OB_OK);
    assert_int_equal(changed, 0);
    ob_buf_clear(&out);
    ob_pg_admin.close(a);
    bench_clear(&b);
}

static void schemas_that_are_not_ours(void **state)
{
    static const struct {
        const char *name, *sql, *says;
    } rows[] = {
        {"missing", "drop schema outbox cascade", "outbox schema --apply"},
        {"foreign", "drop schema outbox cascade; create schema outbox", "did not make"},
        {"older", "update outbox.meta set value = '1' where name = 'version'", "has version 1"},
        {"newer", "update outbox.meta set value = '99' where name = 'version'", "newer program"},
    };

    (void)state;
    for (size_t i = 0; i < ROWS(rows); i++) {
        struct bench b;
        struct ob_admin *a;
        struct ob_err err = {.text = ""};
        struct ob_shard_status st;
        size_t n;
        bench_init(&b);
        sql(&b, "set client_min_messages = error; %s", rows[i].sql);
        a = open_admin(&b);
        row_int(rows[i].name, "status", ob_pg_admin.status(a, &st, 1, &n, &err), OB_FATAL);
        if (!strstr(err.text, rows[i].says))
            fail_msg("row '%s': %s", rows[i].name, err.text);
        ob_pg_admin.close(a);
        bench_clear(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schema_is_idempotent),
        cmocka_unit_test(schemas_that_are_not_ours),
    };

    if (server_missing())
        return 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
