/* SPDX-License-Identifier: Apache-2.0 */
/* mongodb_transaction_test - the helper that starts, calls, writes, commits and tries again. What
 * fails is told by the server's own fail points. */
#include "mongo_harness.h"
#include "outbox/mongodb.h"

#include <stdio.h>
#include <stdlib.h>

#define EVENTS "outbox_events"
#define BY_SEQ "{\"seq\":1}"

/* What the function does, and what was done. */
struct work {
    struct bench *b;
    struct outbox_collector *collector;
    unsigned calls;
    unsigned fail_first;       /* so many calls answer `answer` */
    enum outbox_status answer; /* after everything else */
    bool ends, raises;
    const char *command; /* by the second client, in the first call */
};

struct bench shared;
static struct outbox_mongo_begin quick = {.limit_ms = 60000};

static int setup(void **state)
{
    bench_init(&shared);
    *state = &shared;
    return 0;
}

static int teardown(void **state)
{
    admin(*state, "{\"configureFailPoint\":\"failCommand\",\"mode\":\"off\"}");
    bench_clear(*state);
    return 0;
}

static const struct outbox_event placed = {
    .type = "order.placed", .aggregate_id = "42", .payload = "{}"};

static enum outbox_status save(mongoc_client_session_t *session, void *user,
                               struct outbox_error *err)
{
    struct work *w = user;
    char json[64];
    bson_error_t e;
    bson_t reply;
    enum outbox_status st = OUTBOX_OK;

    assert_ptr_equal(session, w->b->session);
    snprintf(json, sizeof(json), "{\"_id\":1,\"call\":%u}", w->calls++);
    if (!put(w->b, "orders", json, &e, &reply))
        st = outbox_mongo_result(&e, &reply, err);
    bson_destroy(&reply);
    if (st == OUTBOX_OK && w->calls == 1 && w->command)
        assert_true(admin(w->b, w->command));
    if (st == OUTBOX_OK && w->raises)
        st = outbox_collector_raise(w->collector, &placed, NULL, err);
    if (w->ends)
        undo(w->b);
    return st == OUTBOX_OK && w->calls <= w->fail_first ? w->answer : st;
}

static enum outbox_status run(struct work *w, const struct outbox_mongo_begin *begin_,
                              struct outbox_error *err)
{
    return outbox_mongo_transaction(w->b->session, NULL, NULL, w->collector, begin_, save, w, err);
}

static struct work work_of(void *state)
{
    return (struct work){.b = state, .collector = outbox_collector_new()};
}

static void done(struct work *w)
{
    outbox_collector_free(w->collector);
}

static void is_ok(enum outbox_status st, const struct outbox_error *err)
{
    if (st != OUTBOX_OK)
        fail_msg("%d: %s", (int)st, err->text);
}

static void commits_both(void **state)
{
    struct work w = work_of(*state);
    struct outbox_error err;

    is_ok(outbox_collector_raise(w.collector, &placed, NULL, &err), &err);
    w.raises = true;
    is_ok(run(&w, NULL, &err), &err);
    assert_int_equal(w.calls, 1);
    assert_int_equal(outbox_collector_count(w.collector), 0);
    assert_int_equal(count(w.b, EVENTS, "{}"), 2);
    assert_int_equal(count(w.b, "orders", "{}"), 1);
    is_ok(outbox_mongo_transaction(w.b->session, NULL, NULL, NULL, NULL, save,
                                   &(struct work){.b = w.b, .answer = OUTBOX_REJECT},
                                   &err) == OUTBOX_REJECT
              ? OUTBOX_OK
              : OUTBOX_FATAL,
          &err); /* no collector: a duplicate order */
    done(&w);
}

static void aborts_both(void **state)
{
    struct work w = work_of(*state);
    struct outbox_error err;

    is_ok(outbox_collector_raise(w.collector, &placed, NULL, &err), &err);
    w.raises = true;
    w.fail_first = 9;
    w.answer = OUTBOX_REJECT;
    assert_int_equal(run(&w, NULL, &err), OUTBOX_REJECT);
    assert_string_equal(err.text, "the transaction's function gave up");
    assert_int_equal(w.calls, 1);
    assert_int_equal(outbox_collector_count(w.collector), 1); /* the function's own is taken back */
    assert_int_equal(count(w.b, EVENTS, "{}"), 0);
    assert_int_equal(count(w.b, "orders", "{}"), 0);
    w.fail_first = 0;
    is_ok(run(&w, NULL, &err), &err);
    assert_int_equal(count(w.b, EVENTS, "{}"), 2);
    done(&w);
}

static void a_function_that_ends_the_transaction(void **state)
{
    struct work w = work_of(*state);
    struct outbox_error err;

    w.ends = w.raises = true;
    assert_int_equal(run(&w, NULL, &err), OUTBOX_FATAL);
    assert_non_null(strstr(err.text, "ended the transaction"));
    assert_int_equal(count(w.b, EVENTS, "{}"), 0);
    begin(w.b);
    assert_int_equal(run(&w, NULL, &err), OUTBOX_REJECT);
    assert_non_null(strstr(err.text, "started already"));
    undo(w.b);
    assert_int_equal(outbox_mongo_transaction(NULL, NULL, NULL, NULL, NULL, save, &w, &err),
                     OUTBOX_REJECT);
    done(&w);
}

#define FAIL(times, data)                                                                          \
    "{\"configureFailPoint\":\"failCommand\",\"mode\":{\"times\":" times "},\"data\":{" data "}}"

/* The server says that the whole may be tried again. */
static void the_whole_again(void **state)
{
    static const struct {
        const char *name, *command;
        unsigned calls;
    } cases[] = {
        {"an insert",
         FAIL("3", "\"failCommands\":[\"insert\"],\"errorCode\":112,"
                   "\"errorLabels\":[\"TransientTransactionError\"]"),
         4},
        {"a connection", FAIL("1", "\"failCommands\":[\"insert\"],\"closeConnection\":true"), 2},
        {"a commit",
         FAIL("2", "\"failCommands\":[\"commitTransaction\"],\"errorCode\":251,"
                   "\"errorLabels\":[\"TransientTransactionError\"]"),
         3},
    };

    for (size_t i = 0; i < ROWS(cases); i++) {
        struct work w = work_of(*state);
        struct outbox_error err = {.text = ""};
        char id[OUTBOX_ID_SIZE], text[64];
        assert_int_equal(outbox_collector_raise(w.collector, &placed, id, &err), OUTBOX_OK);
        w.raises = true;
        assert_true(admin(w.b, cases[i].command));
        if (run(&w, &quick, &err) != OUTBOX_OK)
            fail_msg("row '%s': %s", cases[i].name, err.text);
        row_int(cases[i].name, "calls", w.calls, cases[i].calls);
        row_int(cases[i].name, "orders", count(w.b, "orders", "{}"), 1);
        row_int(cases[i].name, "events", count(w.b, EVENTS, "{}"), 2);
        field_of(w.b, EVENTS, BY_SEQ, 0, "_id", text, sizeof(text)); /* the same in every try */
        row_str(cases[i].name, "id", ob_str_c(text), ob_str_c(id));
        row_int(cases[i].name, "collected", (int64_t)outbox_collector_count(w.collector), 0);
        done(&w);
        teardown(state);
        setup(state);
    }
}

/* The outcome of a commit is not known: the commit again, and nothing else. */
static void the_commit_again(void **state)
{
    static const struct {
        const char *name, *command;
    } cases[] = {
        {"the connection is lost before it", FAIL("2", "\"failCommands\":[\"commitTransaction\"],"
                                                       "\"closeConnection\":true")},
        {"the primary goes", FAIL("2", "\"failCommands\":[\"commitTransaction\"],"
                                       "\"errorCode\":11602,\"errorLabels\":"
                                       "[\"UnknownTransactionCommitResult\"]")},
        {"it is done and not everywhere", FAIL("2", "\"failCommands\":[\"commitTransaction\"],"
                                                    "\"writeConcernError\":{\"code\":64,"
                                                    "\"codeName\":\"WriteConcernFailed\","
                                                    "\"errmsg\":\"waiting\"}")},
    };

    for (size_t i = 0; i < ROWS(cases); i++) {
        struct work w = work_of(*state);
        struct outbox_error err = {.text = ""};
        w.raises = true;
        assert_true(admin(w.b, cases[i].command));
        if (run(&w, &quick, &err) != OUTBOX_OK)
            fail_msg("row '%s': %s", cases[i].name, err.text);
        row_int(cases[i].name, "calls", w.calls, 1);
        row_int(cases[i].name, "orders", count(w.b, "orders", "{}"), 1);
        row_int(cases[i].name, "events", count(w.b, EVENTS, "{}"), 1);
        done(&w);
        teardown(state);
        setup(state);
    }
}

/* Not known to the end of the time: told, and what was collected is kept. The server did commit. */
static void an_outcome_that_stays_unknown(void **state)
{
    static const struct outbox_mongo_begin soon = {.limit_ms = 300};
    struct work w = work_of(*state);
    struct outbox_error err;
    char id[OUTBOX_ID_SIZE];
    bool there = false;

    is_ok(outbox_collector_raise(w.collector, &placed, id, &err), &err);
    assert_true(admin(w.b,
                      "{\"configureFailPoint\":\"failCommand\",\"mode\":\"alwaysOn\",\"data\":{"
                      "\"failCommands\":[\"commitTransaction\"],\"writeConcernError\":{"
                      "\"code\":64,\"codeName\":\"WriteConcernFailed\",\"errmsg\":\"w\"}}}"));
    assert_int_equal(run(&w, &soon, &err), OUTBOX_DOWN);
    assert_non_null(strstr(err.text, "may or may not be committed"));
    assert_int_equal(outbox_collector_count(w.collector), 1);
    assert_true(admin(w.b, "{\"configureFailPoint\":\"failCommand\",\"mode\":\"off\"}"));
    is_ok(outbox_mongo_exists(w.b->session, NULL, id, &there, &err), &err);
    assert_true(there); /* so it is to be cleared; a second try could not write it twice: */
    assert_int_equal(run(&w, &soon, &err), OUTBOX_REJECT);
    assert_int_equal(count(w.b, EVENTS, "{}"), 1);
    done(&w);
}

static void a_function_that_wants_another_try(void **state)
{
    static const struct outbox_mongo_begin soon = {.limit_ms = 200};
    struct work w = work_of(*state);
    struct outbox_error err;

    w.raises = true;
    w.fail_first = 3;
    w.answer = OUTBOX_RETRY;
    is_ok(run(&w, &quick, &err), &err);
    assert_int_equal(w.calls, 4);
    assert_int_equal(count(w.b, EVENTS, "{}"), 1);
    done(&w);
    teardown(state);
    setup(state);
    w = work_of(*state);
    w.fail_first = 1000000; /* never better: it ends with the time */
    w.answer = OUTBOX_RETRY;
    assert_int_equal(run(&w, &soon, &err), OUTBOX_RETRY);
    assert_true(w.calls > 1);
    assert_int_equal(count(w.b, "orders", "{}"), 0);
    done(&w);
}

/* The server's own time for a commit is over: again would be no better. */
static void a_commit_that_takes_too_long(void **state)
{
    static const struct outbox_mongo_begin begin_ = {.limit_ms = 60000, .max_commit_ms = 1000};
    struct work w = work_of(*state);
    struct outbox_error err;

    w.raises = true;
    assert_true(
        admin(w.b, FAIL("1", "\"failCommands\":[\"commitTransaction\"],\"writeConcernError\":{"
                             "\"code\":50,\"codeName\":\"MaxTimeMSExpired\",\"errmsg\":\"m\"}")));
    assert_int_equal(run(&w, &begin_, &err), OUTBOX_DOWN);
    assert_non_null(strstr(err.text, "may or may not be committed"));
    assert_int_equal(w.calls, 1);
    done(&w);
}

/* A set of one: the primary goes in the middle of the function and comes back. */
static void a_step_down_in_the_middle(void **state)
{
    struct work w = work_of(*state);
    struct outbox_error err;

    w.raises = true;
    w.command = "{\"replSetStepDown\":1,\"secondaryCatchUpPeriodSecs\":0,\"force\":true}";
    is_ok(run(&w, NULL, &err), &err);
    assert_true(w.calls > 1);
    assert_int_equal(count(w.b, "orders", "{}"), 1);
    assert_int_equal(count(w.b, EVENTS, "{}"), 1);
    done(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define ONE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
        ONE(commits_both),
        ONE(aborts_both),
        ONE(a_function_that_ends_the_transaction),
        ONE(the_whole_again),
        ONE(the_commit_again),
        ONE(an_outcome_that_stays_unknown),
        ONE(a_function_that_wants_another_try),
        ONE(a_commit_that_takes_too_long),
        ONE(a_step_down_in_the_middle),
    };
    int failed;

    server_start("");
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    server_end();
    mongoc_cleanup();
    return failed;
}
