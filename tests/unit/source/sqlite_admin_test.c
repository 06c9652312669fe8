/* SPDX-License-Identifier: Apache-2.0 */
/* sqlite_admin_test - the schema in SQLite, and what check finds. */
#include "sqlite_harness.h"

#include <stdio.h>
#include <unistd.h>

struct seen {
    char text[8192]; /* one line per finding */
    size_t n;
};

static void count_finding(void *user, bool ok, const char *what, const char *fix)
{
    struct seen *s = user;

    assert_true(what[0] != '\0' && (ok || fix[0] != '\0'));
    if (!ok) {
        size_t at = strlen(s->text);
        snprintf(s->text + at, sizeof(s->text) - at, "%s; ", what);
    }
    s->n++;
}

static void schema_is_idempotent(void **state)
{
    struct bench b;
    struct ob_admin *a;
    struct ob_buf out;
    struct ob_err err;
    unsigned changed = 9;

    (void)state;
    bench_dir(&b);
    a = open_admin(&b);
    ob_buf_init(&out, 0);
    assert_int_equal(ob_sqlite_admin.schema(a, true, &out, &changed, &err), OB_OK);
    assert_int_equal(changed, ob_sqlite_n_migrations);
    assert_non_null(strstr(ob_buf_z(&out), "001_outbox"));
    assert_int_not_equal(access(b.path, F_OK), 0); /* dry: nothing was made */
    assert_int_equal(ob_sqlite_admin.schema(a, false, &out, &changed, &err), OB_OK);
    assert_int_equal(changed, ob_sqlite_n_migrations);
    ob_buf_reset(&out);
    assert_int_equal(ob_sqlite_admin.schema(a, true, &out, &changed, &err), OB_OK);
    assert_int_equal(changed, 0);
    assert_int_equal(out.n, 0);
    assert_int_equal(ob_sqlite_admin.schema(a, false, &out, &changed, &err), OB_OK);
    assert_int_equal(changed, 0);
    ob_sqlite_admin.close(a);

    /* The printed text makes the same database. */
    ob_buf_reset(&out);
    ob_sqlite_admin.schema_print(&out);
    snprintf(b.path, sizeof(b.path), "%s/printed.db", b.dir);
    assert_int_equal(sqlite3_open(b.path, &b.app), SQLITE_OK);
    assert_int_equal(sqlite3_exec(b.app, ob_buf_z(&out), NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(try_open(&b, &err), OB_OK);
    ob_buf_clear(&out);
    bench_clear(&b);
}

/* The application's own tables and a transaction that is open meanwhile are left alone. */
static void schema_beside_an_application(void **state)
{
    struct bench b;
    struct ob_admin *a;
    struct ob_buf out;
    struct ob_err err;
    unsigned changed;

    (void)state;
    bench_dir(&b);
    assert_int_equal(sqlite3_open(b.path, &b.app), SQLITE_OK);
    sql(&b, "CREATE TABLE orders (id); INSERT INTO orders VALUES (1)");
    a = open_admin(&b);
    ob_buf_init(&out, 0);
    assert_int_equal(ob_sqlite_admin.schema(a, false, &out, &changed, &err), OB_OK);
    assert_int_equal(num(&b, "SELECT count(*) FROM orders"), 1);
    ob_buf_clear(&out);
    ob_sqlite_admin.close(a);
    bench_clear(&b);
}

static void check_finds(void **state)
{
    struct bench b;
    struct ob_admin *a;
    struct seen seen = {.n = 0};
    struct ob_err err;

    (void)state;
    bench_init(&b);
    a = open_admin(&b);
    assert_int_equal(ob_sqlite_admin.check(a, count_finding, &seen, &err), OB_OK);
    assert_string_equal(seen.text, "");
    assert_true(seen.n >= 6);
    sql(&b, "DROP TRIGGER outbox_event_number");
    assert_int_equal(ob_sqlite_admin.check(a, count_finding, &seen, &err), OB_OK);
    assert_non_null(strstr(seen.text, "triggers"));
    ob_sqlite_admin.close(a);
    assert_int_equal(unlink(b.path), 0);
    a = open_admin(&b);
    seen.text[0] = '\0';
    assert_int_equal(ob_sqlite_admin.check(a, count_finding, &seen, &err), OB_OK);
    assert_non_null(strstr(seen.text, "no such file"));
    ob_sqlite_admin.close(a);
    bench_clear(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schema_is_idempotent),
        cmocka_unit_test(schema_beside_an_application),
        cmocka_unit_test(check_finds),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
