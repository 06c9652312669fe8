/* SPDX-License-Identifier: Apache-2.0 */
/* pg_rows_test - mode rows, step by step: what chance would have to hit in the end-to-end tests. */
#include "pg_harness.h"
#include "source/postgres/rows.h"

#include <unistd.h>

static void rows_bench(struct bench *b, int rows)
{
    bench_init(b);
    sql(b, "create table public.ev (id int primary key, k text, done bool not null default false, "
           "tries int not null default 0, body json)");
    sql(b,
        "insert into public.ev (id, k, body) select i, 'k' || i, '{}' from generate_series(1, "
        "%d) i",
        rows);
    b->conf.mode = PG_ROWS;
    b->conf.mapping = (struct ob_mapping){.schema = "public", .table = "ev", .lease_ms = 60000};
    b->conf.mapping.claim_stuck_ms = 300000;
    b->conf.mapping.col[OB_MAP_ID] = b->conf.mapping.col[OB_MAP_ORDER] = "id";
    b->conf.mapping.col[OB_MAP_KEY] = "k";
    b->conf.mapping.col[OB_MAP_DONE] = "done";
    b->conf.mapping.col[OB_MAP_ATTEMPTS] = "tries";
    b->conf.mapping.col[OB_MAP_PAYLOAD] = "body";
}

/* Claims until something comes; NULL: nothing within a second of looking. */
static struct ob_batch *take(struct ob_source *s)
{
    struct ob_err err = {.text = ""};
    struct ob_batch *batch = NULL;
    for (int i = 0; i < 1000; i++) {
        enum ob_status st = ob_source_postgres.claim(s, 1000, (size_t)8 << 20, &batch, &err);
        if (st == OB_OK)
            return batch;
        if (st != OB_AGAIN)
            fail_msg("%s", err.text);
        usleep(1000);
    }
    return NULL;
}

static void add_all(struct settling *one, enum ob_settle_kind kind, struct ob_batch *batch)
{
    for (size_t i = 0; i < batch->n; i++)
        op_add(one, kind, &batch->events[i], 1000 + i);
}

/* A pass that the server has answered before a settle, and that is looked at after it, shows rows
 * as waiting that are not. */
static void settled_while_a_pass_is_under_way(void **state)
{
    struct bench b;
    struct ob_err err = {.text = ""};
    struct ob_batch *none = NULL;

    (void)state;
    rows_bench(&b, 3);
    struct ob_source *s = open_own(&b);
    struct ob_batch *batch = take(s);
    assert_non_null(batch);
    assert_int_equal(batch->n, 3);
    struct rows_state *r = s->state;
    for (int i = 0; i < 10000 && r->asked != ASKED_IDS; i++) {
        r->poll_at = 0;
        assert_int_equal(ob_source_postgres.claim(s, 1000, 1 << 20, &none, &err), OB_AGAIN);
    }
    assert_int_equal(r->asked, ASKED_IDS);
    usleep(300000); /* the answer is on its way: its snapshot is taken */
    settling_reset(&g);
    struct ob_settle_op *park = op_add(&g, OB_SETTLE_PARK, &batch->events[0], 1);
    park->attempts = 1;
    park->spent = true;
    park->reason = "waits now, and its columns say nothing of it";
    park->due_ms = INT64_C(4000000000000);
    for (size_t i = 1; i < batch->n; i++)
        op_add(&g, OB_SETTLE_PUBLISHED, &batch->events[i], 1000 + i);
    assert_int_equal(settle(s, &g), OB_OK);
    assert_int_equal(num(&b, "select count(*) from public.ev where done"), 2);
    assert_null(take(s));
    assert_int_equal(r->taken.n, 0); /* and nothing is remembered for ever */
    ob_batch_unref(batch);
    ob_source_postgres.close(s);
    bench_clear(&b);
}

/* What is in the window comes once; a rewind brings it again. */
static void a_row_is_claimed_once(void **state)
{
    struct bench b;

    (void)state;
    rows_bench(&b, 5);
    struct ob_source *s = open_own(&b);
    struct ob_batch *batch = take(s);
    assert_non_null(batch);
    assert_int_equal(batch->n, 5);
    assert_null(take(s));
    sql(&b, "insert into public.ev (id, k, body) values (6, 'k', '{}')");
    struct ob_batch *next = take(s);
    assert_non_null(next);
    assert_int_equal(next->n, 1);
    ob_source_postgres.rewind(s);
    struct ob_batch *again = take(s);
    assert_non_null(again);
    assert_int_equal(again->n, 6);
    ob_batch_unref(batch);
    ob_batch_unref(next);
    ob_batch_unref(again);
    ob_source_postgres.close(s);
    bench_clear(&b);
}

/* A mark by an owner that was fenced changes no row. */
static void a_stale_owner_marks_nothing(void **state)
{
    struct bench b;

    (void)state;
    rows_bench(&b, 2);
    struct ob_source *s = open_own(&b);
    struct ob_batch *batch = take(s);
    assert_non_null(batch);
    sql(&b, "update outbox.cursor set epoch = epoch + 1");
    settling_reset(&g);
    add_all(&g, OB_SETTLE_PUBLISHED, batch);
    assert_int_equal(settle(s, &g), OB_FENCED);
    assert_int_equal(num(&b, "select count(*) from public.ev where done"), 0);
    ob_batch_unref(batch);
    ob_source_postgres.close(s);
    bench_clear(&b);
}

/* Attempts of the table are the truth; rows that wait or are dead are left out, in a restart too.
 */
static void failures_are_in_the_table_and_beside_it(void **state)
{
    struct bench b;

    (void)state;
    rows_bench(&b, 3);
    struct ob_source *s = open_own(&b);
    struct ob_batch *batch = take(s);
    assert_non_null(batch);
    settling_reset(&g);
    struct ob_settle_op *park = op_add(&g, OB_SETTLE_PARK, &batch->events[0], 1);
    park->attempts = 1;
    park->spent = true;
    park->reason = "no";
    park->due_ms = INT64_C(4000000000000);
    struct ob_settle_op *dead = op_add(&g, OB_SETTLE_DEAD, &batch->events[1], 2);
    dead->attempts = 1;
    dead->spent = dead->exhausted = true;
    dead->reason = "never";
    op_add(&g, OB_SETTLE_PUBLISHED, &batch->events[2], 3);
    assert_int_equal(settle(s, &g), OB_OK);
    assert_int_equal(num(&b, "select sum(tries) from public.ev"), 2);
    assert_int_equal(num(&b, "select count(*) from public.ev where done"), 1);
    assert_null(take(s));
    ob_batch_unref(batch);
    ob_source_postgres.close(s);
    s = open_own(&b);
    assert_null(take(s));
    ob_source_postgres.close(s);
    assert_side_tables(&b);
    bench_clear(&b);
}

/* The set moves what stands behind a removed one, also around its end. */
static void taken_sets(void **state)
{
    struct taken_set set = {0};
    char id[16];
    uint64_t h[2];

    (void)state;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 5000; i++) {
            snprintf(id, sizeof(id), "%d", i);
            ob_pg_taken_hash(ob_str_c(id), h);
            struct taken *t = ob_pg_taken_add(&set, h);
            assert_non_null(t);
            t->state = i % 3 ? TAKEN_OURS : TAKEN_SETTLED;
            t->pass = (uint32_t)i;
        }
        assert_int_equal(set.n, 5000);
        ob_pg_taken_purge(&set, TAKEN_SETTLED, UINT32_MAX);
        ob_pg_taken_purge(&set, TAKEN_OURS, 2500);
        for (int i = 0; i < 5000; i++) {
            snprintf(id, sizeof(id), "%d", i);
            ob_pg_taken_hash(ob_str_c(id), h);
            struct taken *t = ob_pg_taken_find(&set, h);
            assert_true((t != NULL) == (i % 3 != 0 && i >= 2500));
            if (t && i % 2)
                ob_pg_taken_remove(&set, t);
        }
    }
    ob_pg_taken_clear(&set);
    assert_null(ob_pg_taken_find(&set, h));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(settled_while_a_pass_is_under_way),
        cmocka_unit_test(a_row_is_claimed_once),
        cmocka_unit_test(a_stale_owner_marks_nothing),
        cmocka_unit_test(failures_are_in_the_table_and_beside_it),
        cmocka_unit_test(taken_sets),
    };
    return server_missing() ? 0 : cmocka_run_group_tests(tests, NULL, NULL);
}
