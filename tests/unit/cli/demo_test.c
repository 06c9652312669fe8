/* SPDX-License-Identifier: Apache-2.0 */
/* demo_test - the verification of the demo must fail when the output was tampered with. */
#include "cli/demo_verify.h"
#include "cli/demo_world.h"

#include "../rows.h"

#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Two orders of two customers: a has two events, b has one. */
static const char tables[] =
    "CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT, version INTEGER);"
    "CREATE TABLE outbox_event (seq INTEGER PRIMARY KEY, id TEXT, aggregate_id TEXT, key TEXT,"
    " payload TEXT);"
    "INSERT INTO orders VALUES (1, 'a', 2), (2, 'b', 1);"
    "INSERT INTO outbox_event VALUES (1, 'e1', '1', 'a', '{\"no\":1}'),"
    " (2, 'e2', '2', 'b', '{\"no\":1}'), (4, 'e4', '1', 'a', '{\"no\":2}');";

#define L1 "{\"id\":\"e1\",\"key\":\"a\",\"value\":{\"no\":1}}\n"
#define L2 "{\"id\":\"e2\",\"key\":\"b\",\"value\":{\"no\":1}}\n"
#define L4 "{\"id\":\"e4\",\"key\":\"a\",\"value\":{\"no\":2}}\n"

struct place {
    char dir[64], db[80], out[80], old[96];
};

static void put(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void open_place(struct place *p, const char *extra)
{
    sqlite3 *db;
    strcpy(p->dir, "/tmp/outbox-verify-XXXXXX");
    assert_non_null(mkdtemp(p->dir));
    snprintf(p->db, sizeof p->db, "%s/db", p->dir);
    snprintf(p->out, sizeof p->out, "%s/out.jsonl", p->dir);
    snprintf(p->old, sizeof p->old, "%s.2026.000.aside", p->out);
    assert_int_equal(sqlite3_open(p->db, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, tables, NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, extra ? extra : "", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
}

static void close_place(struct place *p)
{
    unlink(p->db);
    unlink(p->out);
    unlink(p->old);
    assert_int_equal(rmdir(p->dir), 0);
}

static void test_verdicts(void **state)
{
    static const struct {
        const char *name, *sql, *old, *out;
        bool holds;
        uint64_t repeats, missing, uncommitted, out_of_order, altered, damaged, astray;
    } cases[] = {
        {"as it should be", NULL, NULL, L1 L2 L4, true, 0, 0, 0, 0, 0, 0, 0},
        {"keys in another order", NULL, NULL, L2 L1 L4, true, 0, 0, 0, 0, 0, 0, 0},
        {"repeats are allowed", NULL, NULL, L1 L2 L1 L4 L4, true, 2, 0, 0, 0, 0, 0, 0},
        {"a repeat of an older one", NULL, NULL, L1 L4 L1 L2, true, 1, 0, 0, 0, 0, 0, 0},
        {"in two files", NULL, L1 L2, L4, true, 0, 0, 0, 0, 0, 0, 0},
        {"one is missing", NULL, NULL, L1 L2, false, 0, 1, 0, 0, 0, 0, 0},
        {"nothing there", NULL, NULL, "", false, 0, 3, 0, 0, 0, 0, 0},
        {"one was never committed", NULL, NULL,
         L1 L2 L4 "{\"id\":\"e3\",\"key\":\"a\",\"value\":{\"no\":2}}\n", false, 0, 0, 1, 0, 0, 0,
         0},
        {"order of a key", NULL, NULL, L4 L2 L1, false, 0, 0, 0, 1, 0, 0, 0},
        {"order between files", NULL, L4, L1 L2, false, 0, 0, 0, 1, 0, 0, 0},
        {"another payload", NULL, NULL,
         L1 L2 "{\"id\":\"e4\",\"key\":\"a\",\"value\":{\"no\":3}}\n", false, 0, 0, 0, 0, 1, 0, 0},
        {"another key", NULL, NULL, L1 L2 "{\"id\":\"e4\",\"key\":\"b\",\"value\":{\"no\":2}}\n",
         false, 0, 0, 0, 0, 1, 0, 0},
        {"torn line", NULL, NULL, L1 L2 L4 "{\"id\":\"e", false, 0, 0, 0, 0, 0, 1, 0},
        {"torn in the middle", NULL, NULL, L1 "{\"id\":\"e" L2 L4, false, 0, 1, 0, 0, 0, 1, 0},
        {"no id", NULL, NULL, L1 L2 L4 "{\"key\":\"a\"}\n", false, 0, 0, 0, 0, 0, 1, 0},
        {"an order without its event", "UPDATE orders SET version = 3 WHERE id = 1", NULL, L1 L2 L4,
         false, 0, 0, 0, 0, 0, 0, 1},
        {"an event without its order", "DELETE FROM orders WHERE id = 2", NULL, L1 L2 L4, false, 0,
         0, 0, 0, 0, 0, 1},
        {"no orders at all", "DELETE FROM orders; DELETE FROM outbox_event", NULL, "", false, 0, 0,
         0, 0, 0, 0, 0},
    };
    (void)state;
    for (size_t i = 0; i < ROWS(cases); i++) {
        struct place p;
        struct ob_demo_report r;
        struct ob_err err = {0};
        const char *name = cases[i].name;
        open_place(&p, cases[i].sql);
        put(p.out, cases[i].out);
        if (cases[i].old)
            put(p.old, cases[i].old);
        row_int(name, "status", ob_demo_verify(p.db, p.out, &r, &err), OB_OK);
        row_int(name, "holds", ob_demo_holds(&r), cases[i].holds);
        row_int(name, "repeats", (int64_t)r.repeats, (int64_t)cases[i].repeats);
        row_int(name, "missing", (int64_t)r.missing, (int64_t)cases[i].missing);
        row_int(name, "uncommitted", (int64_t)r.uncommitted, (int64_t)cases[i].uncommitted);
        row_int(name, "out of order", (int64_t)r.out_of_order, (int64_t)cases[i].out_of_order);
        row_int(name, "altered", (int64_t)r.altered, (int64_t)cases[i].altered);
        row_int(name, "damaged", (int64_t)r.damaged, (int64_t)cases[i].damaged);
        row_int(name, "astray", (int64_t)r.astray, (int64_t)cases[i].astray);
        row_int(name, "problem is named", r.problem[0] != 0,
                !cases[i].holds && strcmp(name, "no orders at all") != 0);
        close_place(&p);
    }
}

static void test_not_there(void **state)
{
    struct place p;
    struct ob_demo_report r;
    struct ob_err err = {0};
    (void)state;
    open_place(&p, NULL);
    assert_int_not_equal(ob_demo_verify(p.db, p.out, &r, &err), OB_OK);
    assert_non_null(strstr(err.text, "out.jsonl"));
    put(p.out, "");
    assert_int_not_equal(ob_demo_verify("/nowhere/db", p.out, &r, &err), OB_OK);
    close_place(&p);
}

static void test_follow(void **state)
{
    static const struct {
        const char *name, *line;
        uint64_t published, repeats, gaps;
    } cases[] = {
        {"first", "{\"key\":\"c3\",\"value\":{\"no\":1}}", 1, 0, 0},
        {"next", "{\"key\":\"c3\",\"value\":{\"no\":2}}", 2, 0, 0},
        {"again", "{\"key\":\"c3\",\"value\":{\"no\":1}}", 2, 1, 0},
        {"another key", "{\"key\":\"c19\",\"value\":{\"no\":1}}", 3, 1, 0},
        {"a gap", "{\"key\":\"c3\",\"value\":{\"no\":4}}", 4, 1, 1},
        {"unknown key", "{\"key\":\"c20\",\"value\":{\"no\":1}}", 4, 1, 2},
        {"no number", "{\"key\":\"c3\",\"value\":{}}", 4, 1, 3},
        {"no JSON", "xx", 4, 1, 4},
    };
    struct ob_demo_follow f = {0};
    (void)state;
    for (size_t i = 0; i < ROWS(cases); i++) {
        ob_demo_follow_line(&f, cases[i].line, strlen(cases[i].line));
        row_int(cases[i].name, "published", (int64_t)f.published, (int64_t)cases[i].published);
        row_int(cases[i].name, "repeats", (int64_t)f.repeats, (int64_t)cases[i].repeats);
        row_int(cases[i].name, "gaps", (int64_t)f.gaps, (int64_t)cases[i].gaps);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_verdicts),
        cmocka_unit_test(test_not_there),
        cmocka_unit_test(test_follow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
