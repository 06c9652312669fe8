/* SPDX-License-Identifier: Apache-2.0 */
/* mongodb_stepdown_test - three nodes, whose primary goes in the middle of transactions: each order
 * has exactly one event, and the server's numbers keep the order of the commits. */
#include "mongo_harness.h"
#include "outbox/mongodb.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define EVENTS "outbox_events"
#define STEP_DOWNS 2 /* at any time; and one inside a transaction */
#define BETWEEN 15   /* commits between two of them */
#define ORDERS_MAX 100000
#define STEP_DOWN "{\"replSetStepDown\":5,\"secondaryCatchUpPeriodSecs\":4}"

struct world {
    struct bench b, second; /* the second is the other thread's */
    struct outbox_collector *collector;
    _Atomic unsigned committed, stepped;
    atomic_bool go;
    unsigned order, calls; /* of the transaction that runs; of all */
    bool inside;           /* a primary went inside a transaction */
};

static void rest(void)
{
    const struct timespec t = {.tv_nsec = 2000000};

    nanosleep(&t, NULL);
}

/* The thread that takes the primary away, again and again, while commits go on. */
static void *stepper(void *arg)
{
    struct world *w = arg;
    unsigned next = BETWEEN;

    while (atomic_load(&w->go) && atomic_load(&w->stepped) < STEP_DOWNS) {
        if (atomic_load(&w->committed) < next) {
            rest();
            continue;
        }
        if (admin(&w->second, STEP_DOWN)) {
            next = atomic_load(&w->committed) + BETWEEN;
            atomic_fetch_add(&w->stepped, 1);
        } else {
            rest(); /* nobody has caught up, or nobody is primary */
        }
    }
    return NULL;
}

static enum outbox_status save(mongoc_client_session_t *session, void *user,
                               struct outbox_error *err)
{
    struct world *w = user;
    char json[96], id[16], payload[32];
    struct outbox_event placed = {.type = "order.placed", .aggregate_id = id, .key = "all"};
    bson_error_t e;
    bson_t reply;
    enum outbox_status st = OUTBOX_OK;

    (void)session;
    w->calls++;
    snprintf(id, sizeof(id), "%u", w->order);
    snprintf(payload, sizeof(payload), "{\"n\":%u}", w->order);
    snprintf(json, sizeof(json), "{\"_id\":%u}", w->order);
    placed.payload = payload;
    if (!put(&w->b, "orders", json, &e, &reply))
        st = outbox_mongo_result(&e, &reply, err);
    bson_destroy(&reply);
    if (st == OUTBOX_OK && w->order >= 5 && !w->inside)
        w->inside = admin(&w->b, STEP_DOWN); /* what was written a moment ago is gone */
    return st == OUTBOX_OK ? outbox_collector_raise(w->collector, &placed, NULL, err) : st;
}

static void each_order_has_its_one_event(void **state)
{
    static struct world w;
    struct outbox_error err = {.text = ""};
    pthread_t thread;
    char text[32], want[32];

    (void)state;
    bench_init(&w.b);
    bench_init(&w.second);
    w.collector = outbox_collector_new();
    atomic_store(&w.go, true);
    assert_int_equal(pthread_create(&thread, NULL, stepper, &w), 0);
    while ((atomic_load(&w.stepped) < STEP_DOWNS ||
            atomic_load(&w.committed) < (STEP_DOWNS + 1) * BETWEEN) &&
           w.order < ORDERS_MAX) {
        enum outbox_status st =
            outbox_mongo_transaction(w.b.session, NULL, NULL, w.collector, NULL, save, &w, &err);
        if (st != OUTBOX_OK)
            break;
        w.order++;
        atomic_fetch_add(&w.committed, 1);
    }
    atomic_store(&w.go, false);
    pthread_join(thread, NULL);
    assert_string_equal(err.text, "");
    assert_int_equal(atomic_load(&w.stepped), STEP_DOWNS);
    assert_true(w.inside);
    assert_true(w.calls > w.order); /* some were tried again, or this shows nothing */
    assert_int_equal(count(&w.b, "orders", "{}"), w.order);
    assert_int_equal(count(&w.b, EVENTS, "{}"), w.order);
    for (unsigned i = 0; i < w.order; i++) {
        field_of(&w.b, EVENTS, "{\"seq\":1}", i, "aggregate_id", text, sizeof(text));
        snprintf(want, sizeof(want), "%u", i);
        assert_string_equal(text, want);
    }
    outbox_collector_free(w.collector);
    bench_clear(&w.b);
    bench_clear(&w.second);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_order_has_its_one_event)};
    int failed;

    server_start("--nodes 3");
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    server_end();
    mongoc_cleanup();
    return failed;
}
