/* SPDX-License-Identifier: Apache-2.0 */
/* postgres_transaction_test - the transaction helper and the collector over libpq: all of it is
 * committed, or nothing. */
#include "outbox/postgres.h"
#include "pg_harness.h"

#include <stdio.h>
#include <stdlib.h>

static struct bench shared; /* one database for all: each test starts with clean tables */

static int setup(void **state)
{
    struct bench *b = *state = &shared;

    sql(b, "truncate outbox.event restart identity; drop table if exists orders, counter");
    sql(b, "create table orders (id int generated always as identity, n int unique deferrable "
           "initially deferred)");
    return 0;
}

static const struct outbox_event placed = {
    .type = "order.placed", .aggregate_id = "42", .payload = "{}"};

#define EVENTS "select count(*) from outbox.event"
#define ORDERS "select count(*) from orders"

struct work {
    struct outbox_collector *c;
    enum outbox_status answer;
    const char *also; /* a statement */
    bool speaks, fails, pipeline, copy, cuts;
    int calls, good_at; /* answers OUTBOX_OK in its n-th call */
};

static enum outbox_status place(PGconn *conn, void *user, struct outbox_error *err)
{
    struct work *w = user;
    struct outbox_event inside = {.type = "inside"};

    w->calls++;
    PQclear(PQexec(conn, "insert into orders (n) values (1)"));
    if (w->c && outbox_collector_raise(w->c, &inside, NULL, err) != OUTBOX_OK)
        return OUTBOX_FATAL;
    if (w->also)
        PQclear(PQexec(conn, w->also));
    if (w->speaks)
        snprintf(err->text, sizeof(err->text), "out of stock");
    if (w->pipeline && (!PQenterPipelineMode(conn) ||
                        !PQsendQueryParams(conn, "select 1", 0, NULL, NULL, NULL, NULL, 0)))
        return OUTBOX_FATAL;
    if (w->copy && !PQsendQuery(conn, "copy orders (n) from stdin"))
        return OUTBOX_FATAL;
    return w->calls == w->good_at ? OUTBOX_OK : w->answer;
}

static void assert_idle(struct bench *b)
{
    assert_int_equal(PQtransactionStatus(b->app), PQTRANS_IDLE);
    assert_int_equal(PQpipelineStatus(b->app), PQ_PIPELINE_OFF);
}

static void commits_all(void **state)
{
    struct bench *b = *state;
    struct outbox_collector *c = outbox_collector_new();
    struct work w = {.c = c};
    struct outbox_error err;
    char id[OUTBOX_ID_SIZE], got[128];
    const int64_t version = 9;
    struct outbox_event before = {
        .type = "before", .payload = "\"a\"", .entity_version = &version, .aggregate_id = "7"};

    assert_int_equal(outbox_collector_raise(c, &before, id, &err), OUTBOX_OK);
    before.type = "changed since"; /* it was copied */
    if (outbox_pg_transaction(b->app, NULL, NULL, c, NULL, place, &w, &err) != OUTBOX_OK)
        fail_msg("%s", err.text);
    assert_int_equal(outbox_collector_count(c), 0);
    assert_idle(b);
    assert_int_equal(num(b, ORDERS), 1);
    text(b, got, sizeof(got), "select string_agg(type, ',' order by seq) from outbox.event");
    assert_string_equal(got, "before,inside");
    text(b, got, sizeof(got),
         "select id from outbox.event where entity_version = 9 and aggregate_id = '7' and payload "
         "= '\"a\"'");
    assert_string_equal(got, id);
    sql(b, "truncate orders");
    assert_int_equal(
        outbox_pg_transaction(b->app, NULL, NULL, NULL, NULL, place, &(struct work){0}, &err),
        OUTBOX_OK);
    outbox_collector_free(c);
}

static void rolls_all_back(void **state)
{
    static const struct {
        const char *name;
        struct work w;
        enum outbox_status st;
        const char *text;
    } rows[] = {
        {"gives up", {.answer = OUTBOX_REJECT, .speaks = true}, OUTBOX_REJECT, "out of stock"},
        {"gives up in silence", {.answer = OUTBOX_RETRY}, OUTBOX_RETRY, "gave up"},
        {"a failed statement that it hides", {.also = "select 1/0"}, OUTBOX_REJECT, "has failed"},
        {"a constraint at the commit",
         {.also = "insert into orders (n) values (1)"},
         OUTBOX_REJECT,
         "23505"},
        {"leaves a pipeline", {.pipeline = true}, OUTBOX_REJECT, "pipeline"},
        {"leaves a COPY", {.copy = true}, OUTBOX_REJECT, "COPY"},
        {"gives up in a pipeline", {.pipeline = true, .answer = OUTBOX_FATAL}, OUTBOX_FATAL, ""},
        {"ends the transaction", {.also = "rollback"}, OUTBOX_FATAL, "ended the transaction"},
        {"makes it read-only", {.also = "set transaction read only"}, OUTBOX_REJECT, "READ WRITE"},
    };
    struct bench *b = *state;
    struct outbox_collector *c = outbox_collector_new();
    struct outbox_error err;
    char id[OUTBOX_ID_SIZE], got[64];

    assert_int_equal(outbox_collector_raise(c, &placed, id, &err), OUTBOX_OK);
    for (size_t i = 0; i < ROWS(rows); i++) {
        struct work w = rows[i].w;
        w.c = c;
        row_int(rows[i].name, "status",
                outbox_pg_transaction(b->app, NULL, NULL, c, NULL, place, &w, &err), rows[i].st);
        if (!strstr(err.text, rows[i].text))
            fail_msg("row '%s': %s", rows[i].name, err.text);
        row_int(rows[i].name, "kept", (int64_t)outbox_collector_count(c), 1);
        row_int(rows[i].name, "calls", w.calls, 1);
        assert_idle(b);
        row_int(rows[i].name, "orders", num(b, ORDERS), 0);
        row_int(rows[i].name, "events", num(b, EVENTS), 0);
    }
    /* Tried again with success: the same id, once; what fn raised before is not there twice. */
    struct work fine = {.c = c};
    assert_int_equal(outbox_pg_transaction(b->app, NULL, NULL, c, NULL, place, &fine, &err),
                     OUTBOX_OK);
    assert_int_equal(num(b, EVENTS), 2);
    text(b, got, sizeof(got), "select id from outbox.event where type = 'order.placed'");
    assert_string_equal(got, id);
    outbox_collector_free(c);
}

static void tries_again_as_often_as_told(void **state)
{
    struct bench *b = *state;
    const struct outbox_pg_begin begin = {.isolation = OUTBOX_PG_SERIALIZABLE, .retries = 3};
    struct outbox_collector *c = outbox_collector_new();
    struct work w = {.c = c, .answer = OUTBOX_RETRY, .good_at = 4};
    struct work never = {.answer = OUTBOX_RETRY};
    struct work fatal = {.answer = OUTBOX_FATAL};
    struct outbox_error err;

    assert_int_equal(outbox_collector_raise(c, &placed, NULL, &err), OUTBOX_OK);
    assert_int_equal(outbox_pg_transaction(b->app, NULL, NULL, c, &begin, place, &w, &err),
                     OUTBOX_OK);
    assert_int_equal(w.calls, 4);
    assert_int_equal(num(b, EVENTS), 2); /* inside: once, although it was raised four times */
    assert_int_equal(num(b, ORDERS), 1);
    assert_int_equal(outbox_pg_transaction(b->app, NULL, NULL, NULL, &begin, place, &never, &err),
                     OUTBOX_RETRY);
    assert_int_equal(never.calls, 4);
    assert_int_equal(outbox_pg_transaction(b->app, NULL, NULL, NULL, &begin, place, &fatal, &err),
                     OUTBOX_FATAL);
    assert_int_equal(fatal.calls, 1);
    outbox_collector_free(c);
}

/* ---- a real serialization failure, a real deadlock ---- */

struct rival {
    PGconn *other;
    int calls;
    bool deadlock;
};

static enum outbox_status conflict(PGconn *conn, void *user, struct outbox_error *err)
{
    struct rival *r = user;
    PGresult *res = PQexec(conn, "select n from counter");
    enum outbox_status st;

    PQclear(res);
    if (r->calls++ == 0) /* somebody else is faster, once */
        sql_on(r->other, "update counter set n = n + 10");
    res = PQexec(conn, "update counter set n = n + 1");
    st = outbox_pg_result(conn, res, err);
    PQclear(res);
    return st;
}

static void serialization_failure_is_tried_again(void **state)
{
    struct bench *b = *state;
    const struct outbox_pg_begin begin = {.isolation = OUTBOX_PG_REPEATABLE_READ, .retries = 5};
    struct outbox_collector *c = outbox_collector_new();
    struct rival r = {.other = session(b)};
    struct outbox_error err;

    sql(b, "create table counter as select 0 as n");
    assert_int_equal(outbox_collector_raise(c, &placed, NULL, &err), OUTBOX_OK);
    if (outbox_pg_transaction(b->app, NULL, NULL, c, &begin, conflict, &r, &err) != OUTBOX_OK)
        fail_msg("%s", err.text);
    assert_int_equal(r.calls, 2);
    assert_int_equal(num(b, "select n from counter"), 11);
    assert_int_equal(num(b, EVENTS), 1);
    PQfinish(r.other);
    outbox_collector_free(c);
}

/* Under SERIALIZABLE it is the commit that may fail. */
static enum outbox_status skew(PGconn *conn, void *user, struct outbox_error *err)
{
    struct rival *r = user;

    (void)err;
    PQclear(PQexec(conn, "select sum(n) from counter where side = 1"));
    PQclear(PQexec(conn, "insert into counter values (0, 1)"));
    if (r->calls++ == 0) {
        sql_on(r->other, "begin isolation level serializable; select sum(n) from counter where "
                         "side = 0; insert into counter values (1, 1); commit");
    }
    return OUTBOX_OK;
}

static void failed_commit_is_tried_again(void **state)
{
    struct bench *b = *state;
    const struct outbox_pg_begin begin = {.isolation = OUTBOX_PG_SERIALIZABLE, .retries = 5};
    struct outbox_collector *c = outbox_collector_new();
    struct rival r = {.other = session(b)};
    struct outbox_error err;

    sql(b, "create table counter (side int, n int)");
    assert_int_equal(outbox_collector_raise(c, &placed, NULL, &err), OUTBOX_OK);
    if (outbox_pg_transaction(b->app, NULL, NULL, c, &begin, skew, &r, &err) != OUTBOX_OK)
        fail_msg("%s", err.text);
    assert_int_equal(r.calls, 2);
    assert_int_equal(num(b, EVENTS), 1);
    assert_int_equal(num(b, "select count(*) from counter"), 2);
    PQfinish(r.other);
    outbox_collector_free(c);
}

static enum outbox_status cut(PGconn *conn, void *user, struct outbox_error *err)
{
    struct rival *r = user;

    (void)err;
    PQclear(PQexec(conn, "insert into orders (n) values (1)"));
    sql_on(r->other, "select pg_terminate_backend(%d)", PQbackendPID(conn));
    return OUTBOX_OK;
}

/* The collector keeps its events and their ids: whoever does not know asks for one of them. */
static void lost_connection_keeps_the_collector(void **state)
{
    struct bench *b = *state;
    const struct outbox_pg_begin begin = {.retries = 5};
    struct outbox_collector *c = outbox_collector_new();
    struct rival r = {.other = session(b)};
    struct work w = {0};
    struct outbox_error err;
    char id[OUTBOX_ID_SIZE];
    bool there = true;
    PGconn *mine = session(b);

    assert_int_equal(outbox_collector_raise(c, &placed, id, &err), OUTBOX_OK);
    assert_int_equal(outbox_pg_transaction(mine, NULL, NULL, c, &begin, cut, &r, &err),
                     OUTBOX_DOWN);
    assert_int_equal(outbox_pg_transaction(mine, NULL, NULL, c, &begin, cut, &r, &err),
                     OUTBOX_DOWN);
    PQfinish(mine);
    mine = session(b);
    assert_int_equal(outbox_pg_transaction(mine, NULL, NULL, NULL, NULL, cut, &r, &err),
                     OUTBOX_DOWN);
    assert_non_null(strstr(err.text, "may or may not be committed"));
    assert_int_equal(outbox_collector_count(c), 1);
    assert_int_equal(outbox_pg_exists(b->app, NULL, id, &there, &err), OUTBOX_OK);
    assert_false(there);
    assert_int_equal(outbox_pg_transaction(b->app, NULL, NULL, c, &begin, place, &w, &err),
                     OUTBOX_OK);
    assert_int_equal(outbox_pg_exists(b->app, NULL, id, &there, &err), OUTBOX_OK);
    assert_true(there);
    assert_int_equal(num(b, ORDERS), 1);
    PQfinish(mine);
    PQfinish(r.other);
    outbox_collector_free(c);
}

static void misused(void **state)
{
    struct bench *b = *state;
    const struct outbox_pg_begin bad = {.isolation = (enum outbox_pg_isolation)7};
    struct work w = {0};
    struct outbox_error err;

    sql(b, "begin");
    assert_int_equal(outbox_pg_transaction(b->app, NULL, NULL, NULL, NULL, place, &w, &err),
                     OUTBOX_REJECT);
    assert_non_null(strstr(err.text, "open already"));
    assert_int_equal(PQtransactionStatus(b->app), PQTRANS_INTRANS); /* it is the caller's */
    sql(b, "commit");
    assert_int_equal(outbox_pg_transaction(b->app, NULL, NULL, NULL, &bad, place, &w, &err),
                     OUTBOX_REJECT);
    assert_int_equal(w.calls, 0);
}

static void own_transaction_with_a_collector(void **state)
{
    struct bench *b = *state;
    struct outbox_collector *c = outbox_collector_new();
    struct outbox_error err;

    assert_int_equal(outbox_collector_raise(c, &placed, NULL, &err), OUTBOX_OK);
    sql(b, "begin");
    assert_int_equal(outbox_pg_write(b->app, NULL, NULL, c, &err), OUTBOX_OK);
    sql(b, "rollback");
    assert_int_equal(outbox_collector_count(c), 1);
    sql(b, "begin");
    assert_int_equal(outbox_pg_write(b->app, NULL, NULL, c, &err), OUTBOX_OK);
    sql(b, "commit");
    outbox_collector_clear(c);
    assert_int_equal(num(b, EVENTS), 1);
    outbox_collector_free(c);
}

/* Emitting never notifies, so it can be prepared. */
static void two_phase_commit(void **state)
{
    struct bench *b = *state;
    struct outbox_error err;

    sql(b, "begin");
    assert_int_equal(outbox_pg_emit(b->app, NULL, NULL, &placed, NULL, &err), OUTBOX_OK);
    sql(b, "prepare transaction 'two-%s'", b->name);
    assert_int_equal(num(b, EVENTS), 0);
    sql(b, "commit prepared 'two-%s'", b->name);
    assert_int_equal(num(b, EVENTS), 1);
}

#define T(name) cmocka_unit_test_setup(name, setup)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(commits_all),
        T(rolls_all_back),
        T(tries_again_as_often_as_told),
        T(serialization_failure_is_tried_again),
        T(failed_commit_is_tried_again),
        T(lost_connection_keeps_the_collector),
        T(misused),
        T(own_transaction_with_a_collector),
        T(two_phase_commit),
    };

    if (server_missing())
        return 0;
    bench_init(&shared);
    sql(&shared, "set client_min_messages = warning");
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    bench_clear(&shared);
    return failed;
}
