/* SPDX-License-Identifier: Apache-2.0 */
/* pg_admin_test - what people do beside a running relay. */
#include "pg_harness.h"
#include "source/postgres/schema.h"

#include <stdio.h>
#include <stdlib.h>

static struct settling g;

struct seen {
    char text[8192]; /* one line per call */
    size_t n;
    size_t stop_after;
};

static bool add_event(void *user, const struct ob_event *ev, const char *state)
{
    struct seen *s = user;
    size_t at = strlen(s->text);

    snprintf(s->text + at, sizeof(s->text) - at, "%d:%.*s:%s:%zu ", (int)ev->ref,
             OB_STR_ARG(ev->type), state, ev->payload.n);
    return ++s->n != s->stop_after;
}

static bool add_dead(void *user, const struct ob_dead *d)
{
    struct seen *s = user;
    size_t at = strlen(s->text);

    snprintf(s->text + at, sizeof(s->text) - at, "%d:%.*s:%.*s:%u:%.*s:%.*s ", (int)d->n,
             OB_STR_ARG(d->type), OB_STR_ARG(d->key), d->attempts, OB_STR_ARG(d->error),
             OB_STR_ARG(d->event ? d->event->payload : OB_STR("-")));
    return ++s->n != s->stop_after;
}

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

static void emit_all_or_none(void **state)
{
    struct bench b;
    struct ob_admin *a;
    struct ob_err err;
    char ids[2][64];
    struct ob_emit events[2] = {
        {.type = OB_STR("a"),
         .aggregate_id = OB_STR("1"),
         .payload = OB_STR("{}"),
         .entity_version = 4,
         .schema_version = OB_NO_VERSION},
        {.id = OB_STR("01234567-89ab-7def-8123-456789abcdef"),
         .type = OB_STR("b"),
         .payload = OB_STR("{broken"),
         .entity_version = OB_NO_VERSION,
         .schema_version = OB_NO_VERSION},
    };

    (void)state;
    bench_init(&b);
    a = open_admin(&b);
    assert_int_equal(ob_pg_admin.emit(a, events, 2, ids, &err), OB_REJECT);
    assert_non_null(strstr(err.text, "event 2"));
    assert_int_equal(num(&b, "SELECT count(*) FROM outbox.event"), 0);
    events[1].payload_kind = OB_PAYLOAD_TEXT;
    assert_int_equal(ob_pg_admin.emit(a, events, 2, ids, &err), OB_OK);
    assert_int_equal(
        num(&b, "SELECT count(*) FROM outbox.event WHERE id = '%s' AND entity_version = 4", ids[0]),
        1);
    assert_string_equal(ids[1], "01234567-89ab-7def-8123-456789abcdef");
    assert_string_equal(ids[1], "01234567-89ab-7def-8123-456789abcdef");
    assert_int_equal(num(&b, "SELECT count(*) FROM outbox.event WHERE payload_kind = 't' AND"
                             " entity_version IS NULL"),
                     1);
    assert_int_equal(ob_pg_admin.emit(a, &events[1], 1, ids, &err), OB_REJECT); /* id twice */
    ob_pg_admin.close(a);
    bench_clear(&b);
}

/* Events 1..6: published, published, parked, dead, discarded, pending. */
static struct ob_source *mixed(struct bench *b)
{
    struct ob_source *s;
    struct ob_batch *batch;
    struct ob_admin *a;
    struct ob_err err;
    struct ob_filter f = {.type = "t5"};
    size_t n;

    bench_init(b);
    for (int i = 1; i <= 6; i++)
        sql(b,
            "INSERT INTO outbox.event (id, type, aggregate_id, tenant, payload, created_at)"
            " VALUES ('00000000-0000-7000-8000-00000000000%d', 't%d', 'k%d', 'ten%d', '\"p%d\"',"
            " to_timestamp(%d))",
            i, i, i, i, i, i);
    s = open_own(b);
    batch = claim(s, 5, OB_OK);
    settling_reset(&g);
    op_add(&g, OB_SETTLE_PARK, &batch->events[2], 3);
    op_add(&g, OB_SETTLE_DEAD, &batch->events[3], 4)->attempts = 7;
    op_add(&g, OB_SETTLE_DEAD, &batch->events[4], 5)->reason = "timed out at noon";
    g.s.moved = true;
    g.s.ref = 5;
    g.s.delivered = 2;
    assert_int_equal(settle(s, &g), OB_OK);
    ob_batch_unref(batch);
    a = open_admin(b);
    assert_int_equal(ob_pg_admin.dead_do(a, OB_DEAD_DISCARD, &f, false, &n, &err), OB_OK);
    assert_int_equal(n, 1);
    ob_pg_admin.close(a);
    return s;
}

static void events_with_their_state(void **state)
{
    static const struct {
        const char *name;
        struct ob_filter f;
        bool payload;
        const char *want;
    } rows[] = {
        {"all",
         {0},
         false,
         "1:t1:published:0 2:t2:published:0 3:t3:parked:0 4:t4:dead:0 5:t5:discarded:0 "
         "6:t6:pending:0 "},
        {"with payload", {.id = "00000000-0000-7000-8000-000000000003"}, true, "3:t3:parked:4 "},
        {"the newest", {.limit = 2}, false, "5:t5:discarded:0 6:t6:pending:0 "},
        {"going on", {.limit = 2, .after = 2}, false, "3:t3:parked:0 4:t4:dead:0 "},
        {"type glob", {.type = "t[34]"}, false, ""},
        {"type glob with star", {.type = "*4"}, false, "4:t4:dead:0 "},
        {"key", {.key = "k?", .tenant = "ten2"}, false, "2:t2:published:0 "},
        {"since until",
         {.since_us = 2000000, .until_us = 4000000},
         false,
         "2:t2:published:0 3:t3:parked:0 "},
    };
    struct bench b;
    struct ob_source *s;
    struct ob_admin *a;

    (void)state;
    s = mixed(&b);
    a = open_admin(&b);
    for (size_t i = 0; i < ROWS(rows); i++) {
        struct seen seen = {.n = 0};
        struct ob_err err = {.text = ""};
        enum ob_status st =
            ob_pg_admin.events(a, &rows[i].f, rows[i].payload, add_event, &seen, &err);
        if (st != OB_OK || strcmp(seen.text, rows[i].want) != 0)
            fail_msg("row '%s': %s: '%s' %s", rows[i].name, ob_status_name(st), seen.text,
                     err.text);
    }
    {
        struct seen seen = {.stop_after = 2};
        struct ob_err err;
        const struct ob_filter all = {0};
        assert_int_equal(ob_pg_admin.events(a, &all, false, add_event, &seen, &err), OB_OK);
        assert_int_equal(seen.n, 2);
    }
    ob_pg_admin.close(a);
    ob_source_postgres.close(s);
    bench_clear(&b);
}

static void dead_ones_are_listed(void **state)
{
    static const struct {
        const char *name;
        struct ob_filter f;
        bool full;
        const char *want;
    } rows[] = {
        {"all", {0}, false, "2:t4:k4:7:it failed:- "},
        {"full", {0}, true, "2:t4:k4:7:it failed:\"p4\" "},
        {"by id", {.id = "00000000-0000-7000-8000-000000000004"}, false, "2:t4:k4:7:it failed:- "},
        {"by another id", {.id = "00000000-0000-7000-8000-000000000003"}, false, ""},
        {"by reason", {.reason = "*fail*"}, false, "2:t4:k4:7:it failed:- "},
        {"by another reason", {.reason = "timed*"}, false, ""},
        {"too early", {.until_us = 1000}, false, ""},
        {"by key and tenant", {.key = "k4", .tenant = "ten*"}, false, "2:t4:k4:7:it failed:- "},
    };
    struct bench b;
    struct ob_source *s;
    struct ob_admin *a;

    (void)state;
    s = mixed(&b);
    a = open_admin(&b);
    for (size_t i = 0; i < ROWS(rows); i++) {
        struct seen seen = {.n = 0};
        struct ob_err err = {.text = ""};
        enum ob_status st =
            ob_pg_admin.dead_list(a, &rows[i].f, rows[i].full, add_dead, &seen, &err);
        if (st != OB_OK || strcmp(seen.text, rows[i].want) != 0)
            fail_msg("row '%s': %s: '%s' %s", rows[i].name, ob_status_name(st), seen.text,
                     err.text);
    }
    ob_pg_admin.close(a);
    ob_source_postgres.close(s);
    bench_clear(&b);
}

/* Trap: a bulk retry that breaks the order of a key. Events 1, 4, 7 of a key are dead, 5 waits;
 * whatever is retried goes in by its own number. */
static void dead_retry_keeps_the_order_of_a_key(void **state)
{
    struct bench b;
    struct ob_source *s;
    struct ob_batch *batch, *got = NULL;
    struct ob_admin *a;
    struct ob_err err;
    const struct ob_filter all = {.type = "order.*"};
    size_t n = 0;
    int64_t next;

    (void)state;
    bench_init(&b);
    emit(&b, 8, 1);
    s = open_own(&b);
    batch = claim(s, 10, OB_OK);
    settling_reset(&g);
    for (size_t i = 0; i < 8; i++)
        if (i == 0 || i == 3 || i == 6)
            op_add(&g, OB_SETTLE_DEAD, &batch->events[i], 1)->attempts = 10;
        else if (i == 4)
            op_add(&g, OB_SETTLE_PARK, &batch->events[i], 1)->due_ms = INT64_C(1) << 50;
    g.s.moved = true;
    g.s.ref = 8;
    assert_int_equal(settle(s, &g), OB_OK);
    a = open_admin(&b);
    assert_int_equal(ob_pg_admin.dead_do(a, OB_DEAD_RETRY, &all, true, &n, &err), OB_OK);
    assert_int_equal(n, 3);
    assert_int_equal(num(&b, "SELECT count(*) FROM outbox.dead WHERE state = 'dead'"), 3);
    assert_int_equal(ob_pg_admin.dead_do(a, OB_DEAD_RETRY, &all, false, &n, &err), OB_OK);
    assert_int_equal(n, 3);
    assert_side_tables(&b);
    assert_int_equal(
        ob_source_postgres.drain(s, 0, INT64_C(1) << 49, 100, 100, NULL, NULL, &got, &next, &err),
        OB_OK);
    assert_int_equal(got->n, 4);
    for (size_t i = 0; i < 4; i++) {
        static const uint64_t want[] = {1, 4, 5, 7};
        assert_int_equal(got->events[i].seq, want[i]);
        assert_int_equal(got->events[i].attempts, 0);
    }
    assert_int_equal(ob_pg_admin.dead_do(a, OB_DEAD_RETRY, &all, false, &n, &err), OB_OK);
    assert_int_equal(n, 0); /* not twice */
    /* Delivered: nothing is left, nothing is dead; the rows tell what happened. */
    settling_reset(&g);
    for (size_t i = 0; i < 4; i++)
        op_add(&g, OB_SETTLE_PUBLISHED, &got->events[i], 1);
    assert_int_equal(settle(s, &g), OB_OK);
    assert_true(released(&g, 1));
    assert_int_equal(num(&b, "SELECT count(*) FROM outbox.dead WHERE state = 'retried'"), 3);
    assert_side_tables(&b);
    ob_batch_unref(got);
    ob_batch_unref(batch);
    ob_pg_admin.close(a);
    ob_source_postgres.close(s);
    bench_clear(&b);
}

static void discard_releases_a_held_key(void **state)
{
    struct bench b;
    struct ob_source *s;
    struct ob_batch *batch, *got = NULL;
    struct ob_admin *a;
    struct ob_err err;
    const struct ob_filter all = {0};
    size_t n;
    int64_t next;

    (void)state;
    bench_init(&b);
    emit(&b, 3, 1);
    s = open_own(&b);
    batch = claim(s, 10, OB_OK);
    settling_reset(&g);
    op_add(&g, OB_SETTLE_DEAD, &batch->events[0], 1)->hold = true;
    op_add(&g, OB_SETTLE_PARK, &batch->events[1], 1);
    op_add(&g, OB_SETTLE_DEAD, &batch->events[2], 2)->hold = true;
    g.s.moved = true;
    g.s.ref = 3;
    assert_int_equal(settle(s, &g), OB_OK);
    a = open_admin(&b);
    assert_int_equal(ob_pg_admin.dead_do(a, OB_DEAD_DISCARD, &all, false, &n, &err), OB_OK);
    assert_int_equal(n, 2);
    assert_side_tables(&b);
    assert_int_equal(num(&b, "SELECT count(*) FROM outbox.parked_key"), 1);
    assert_int_equal(
        ob_source_postgres.drain(s, 0, INT64_C(1) << 49, 100, 100, NULL, NULL, &got, &next, &err),
        OB_OK);
    assert_int_equal(got->events[0].seq, 2);
    ob_batch_unref(got);
    ob_batch_unref(batch);
    ob_pg_admin.close(a);
    ob_source_postgres.close(s);
    bench_clear(&b);
}

static void status_of_shards(void **state)
{
    struct bench b;
    struct ob_source *s;
    struct ob_admin *a;
    struct ob_shard_status st[4];
    struct ob_err err;
    size_t n;

    (void)state;
    bench_init(&b);
    emit(&b, 5, 1);
    a = open_admin(&b);
    assert_int_equal(ob_pg_admin.status(a, st, 4, &n, &err), OB_OK);
    assert_int_equal(n, 1); /* never ran */
    assert_string_equal(st[0].state, "stopped");
    assert_int_equal(st[0].source.pending, 5);
    assert_int_equal(st[0].beat_age_ms, -1);
    ob_pg_admin.close(a);
    bench_clear(&b);

    s = mixed(&b);
    a = open_admin(&b);
    assert_int_equal(ob_pg_admin.status(a, st, 4, &n, &err), OB_OK);
    assert_int_equal(n, 1);
    assert_string_equal(st[0].owner, "me");
    assert_string_equal(st[0].state, "running");
    assert_in_range(st[0].beat_age_ms, 0, 9000);
    assert_int_equal(st[0].published, 2);
    assert_int_equal(st[0].source.pending, 1);
    assert_int_equal(st[0].source.parked, 1);
    assert_int_equal(st[0].source.dead, 1);
    /* The parked one is from 1970. */
    assert_in_range(st[0].source.lag_ms, INT64_C(1500000000000), INT64_C(4000000000000));
    sql(&b, "update outbox.cursor set beat_at = beat_at - interval '20 s'");
    assert_int_equal(ob_pg_admin.status(a, st, 4, &n, &err), OB_OK);
    assert_string_equal(st[0].state, "stopped"); /* silent for too long */
    ob_pg_admin.close(a);
    ob_source_postgres.close(s);
    bench_clear(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schema_is_idempotent),
        cmocka_unit_test(schemas_that_are_not_ours),
        cmocka_unit_test(emit_all_or_none),
        cmocka_unit_test(events_with_their_state),
        cmocka_unit_test(dead_ones_are_listed),
        cmocka_unit_test(dead_retry_keeps_the_order_of_a_key),
        cmocka_unit_test(discard_releases_a_held_key),
        cmocka_unit_test(status_of_shards),
    };

    if (server_missing())
        return 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
