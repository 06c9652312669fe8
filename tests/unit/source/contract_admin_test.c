/* SPDX-License-Identifier: Apache-2.0 */
/* contract_admin_test - what people do beside a running relay, whatever the source. */
#include "world.h"

#include <stdio.h>

struct seen {
    struct bench *b;
    char text[8192]; /* one line per call */
    size_t n;
    size_t stop_after;
};

static bool add_event(void *user, const struct ob_event *ev, const char *state)
{
    struct seen *s = user;
    size_t at = strlen(s->text);

    assert_true(ev->ref == ref_of(s->b, number_of(ev)));
    snprintf(s->text + at, sizeof(s->text) - at, "%d:%.*s:%s:%zu ", (int)number_of(ev),
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
        {.id = OB_STR(ID(9)),
         .type = OB_STR("b"),
         .payload = OB_STR("{broken"),
         .entity_version = OB_NO_VERSION,
         .schema_version = OB_NO_VERSION},
    };

    (void)state;
    bench_init(&b);
    a = open_admin(&b);
    assert_int_equal(ADMIN.emit(a, events, 2, ids, &err), OB_REJECT);
    assert_non_null(strstr(err.text, "event 2"));
    assert_int_equal(n_events(&b), 0);
    events[1].payload_kind = OB_PAYLOAD_TEXT;
    assert_int_equal(ADMIN.emit(a, events, 2, ids, &err), OB_OK);
    assert_string_equal(ids[1], ID(9));
    struct stored first = stored_event(&b, ids[0]), second = stored_event(&b, ids[1]);
    assert_true(first.there && !first.text && first.entity_version == 4);
    assert_true(second.there && second.text && second.entity_version == OB_NO_VERSION);
    assert_int_equal(n_events(&b), 2);
    assert_int_equal(ADMIN.emit(a, &events[1], 1, ids, &err), OB_REJECT); /* id twice */
    ADMIN.close(a);
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
        emit_numbered(b, i);
    s = open_own(b);
    batch = claim(s, 5, OB_OK);
    settling_reset(&g);
    pass(&batch->events[0], 1);
    pass(&batch->events[1], 2);
    op_add(&g, OB_SETTLE_PARK, &batch->events[2], 3);
    op_add(&g, OB_SETTLE_DEAD, &batch->events[3], 4)->attempts = 7;
    op_add(&g, OB_SETTLE_DEAD, &batch->events[4], 5)->reason = "timed out at noon";
    g.s.moved = true;
    g.s.ref = 5;
    assert_int_equal(settle(s, &g), OB_OK);
    ob_batch_unref(batch);
    a = open_admin(b);
    assert_int_equal(ADMIN.dead_do(a, OB_DEAD_DISCARD, &f, false, &n, &err), OB_OK);
    assert_int_equal(n, 1);
    ADMIN.close(a);
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
        {"with payload", {.id = ID(3)}, true, "3:t3:parked:4 "},
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
        struct seen seen = {.b = &b};
        struct ob_err err = {.text = ""};
        struct ob_filter f = rows[i].f;
        if (f.after)
            f.after = ref_of(&b, f.after);
        enum ob_status st = ADMIN.events(a, &f, rows[i].payload, add_event, &seen, &err);
        if (st != OB_OK || strcmp(seen.text, rows[i].want) != 0)
            fail_msg("row '%s': %s: '%s' %s", rows[i].name, ob_status_name(st), seen.text,
                     err.text);
    }
    {
        struct seen seen = {.b = &b, .stop_after = 2};
        struct ob_err err;
        const struct ob_filter all = {0};
        assert_int_equal(ADMIN.events(a, &all, false, add_event, &seen, &err), OB_OK);
        assert_int_equal(seen.n, 2);
    }
    ADMIN.close(a);
    SOURCE.close(s);
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
        {"by id", {.id = ID(4)}, false, "2:t4:k4:7:it failed:- "},
        {"by another id", {.id = ID(3)}, false, ""},
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
        enum ob_status st = ADMIN.dead_list(a, &rows[i].f, rows[i].full, add_dead, &seen, &err);
        if (st != OB_OK || strcmp(seen.text, rows[i].want) != 0)
            fail_msg("row '%s': %s: '%s' %s", rows[i].name, ob_status_name(st), seen.text,
                     err.text);
    }
    ADMIN.close(a);
    SOURCE.close(s);
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
        else
            pass(&batch->events[i], 1);
    g.s.moved = true;
    g.s.ref = 8;
    assert_int_equal(settle(s, &g), OB_OK);
    a = open_admin(&b);
    assert_int_equal(ADMIN.dead_do(a, OB_DEAD_RETRY, &all, true, &n, &err), OB_OK);
    assert_int_equal(n, 3);
    assert_int_equal(n_dead(&b, "dead"), 3);
    assert_int_equal(ADMIN.dead_do(a, OB_DEAD_RETRY, &all, false, &n, &err), OB_OK);
    assert_int_equal(n, 3);
    assert_side_tables(&b);
    assert_int_equal(SOURCE.drain(s, 0, INT64_C(1) << 49, 100, 100, NULL, NULL, &got, &next, &err),
                     OB_OK);
    assert_int_equal(got->n, 4);
    for (size_t i = 0; i < 4; i++) {
        static const uint64_t want[] = {1, 4, 5, 7};
        assert_int_equal(number_of(&got->events[i]), want[i]);
        assert_int_equal(got->events[i].attempts, 0);
    }
    assert_int_equal(ADMIN.dead_do(a, OB_DEAD_RETRY, &all, false, &n, &err), OB_OK);
    assert_int_equal(n, 0); /* not twice */
    /* Delivered: nothing is left, nothing is dead; the rows tell what happened. */
    settling_reset(&g);
    for (size_t i = 0; i < 4; i++)
        op_add(&g, OB_SETTLE_PUBLISHED, &got->events[i], 1);
    assert_int_equal(settle(s, &g), OB_OK);
    assert_true(released(&g, 1));
    assert_int_equal(n_dead(&b, "retried"), 3);
    assert_side_tables(&b);
    ob_batch_unref(got);
    ob_batch_unref(batch);
    ADMIN.close(a);
    SOURCE.close(s);
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
    assert_int_equal(ADMIN.dead_do(a, OB_DEAD_DISCARD, &all, false, &n, &err), OB_OK);
    assert_int_equal(n, 2);
    assert_side_tables(&b);
    assert_int_equal(n_held(&b), 1);
    assert_int_equal(SOURCE.drain(s, 0, INT64_C(1) << 49, 100, 100, NULL, NULL, &got, &next, &err),
                     OB_OK);
    assert_int_equal(number_of(&got->events[0]), 2);
    ob_batch_unref(got);
    ob_batch_unref(batch);
    ADMIN.close(a);
    SOURCE.close(s);
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
    assert_int_equal(ADMIN.status(a, st, 4, &n, &err), OB_OK);
    assert_int_equal(n, 1); /* never ran */
    assert_string_equal(st[0].state, "stopped");
    assert_int_equal(st[0].source.pending, 5);
    assert_int_equal(st[0].beat_age_ms, -1);
    ADMIN.close(a);
    bench_clear(&b);

    s = mixed(&b);
    beat(s); /* some count only then */
    a = open_admin(&b);
    assert_int_equal(ADMIN.status(a, st, 4, &n, &err), OB_OK);
    assert_int_equal(n, 1);
    assert_memory_equal(st[0].owner, HAS_CURSOR ? "me" : "me-",
                        3); /* MongoDB: and what is its own */
    assert_string_equal(st[0].state, "running");
    assert_in_range(st[0].beat_age_ms, 0, 9000);
    assert_int_equal(st[0].published, 2);
    assert_int_equal(st[0].source.pending, 1);
    assert_int_equal(st[0].source.parked, 1);
    assert_int_equal(st[0].source.dead, 1);
    /* The parked one is from 1970. */
    assert_in_range(st[0].source.lag_ms, INT64_C(1500000000000), INT64_C(4000000000000));
    grow_silent(&b);
    assert_int_equal(ADMIN.status(a, st, 4, &n, &err), OB_OK);
    assert_string_equal(st[0].state, "stopped"); /* silent for too long */
    ADMIN.close(a);
    SOURCE.close(s);
    bench_clear(&b);
}

/* What is in flight, or was tried and waits, is as old as it is. */
static void lag_is_of_the_oldest_that_is_not_settled(void **state)
{
    struct bench b;
    struct ob_source *s;
    struct ob_batch *batch;
    struct ob_settle_op *op;
    struct ob_source_status st;
    struct ob_err err;

    (void)state;
    bench_init(&b);
    emit_numbered(&b, 1);
    s = open_own(&b);
    batch = claim(s, 1, OB_OK);
    assert_int_equal(SOURCE.status(s, &st, &err), OB_OK);
    assert_int_equal(st.pending, 1);
    assert_in_range(st.lag_ms, INT64_C(1500000000000), INT64_C(4000000000000));
    settling_reset(&g);
    op = park(&batch->events[0], 1, 0, DUE);
    op->attempts = 1;
    op->spent = true;
    g.s.moved = true;
    g.s.ref = 1;
    ok(s);
    assert_int_equal(SOURCE.status(s, &st, &err), OB_OK);
    assert_true(st.pending == 0 && st.parked == 1);
    assert_in_range(st.lag_ms, INT64_C(1500000000000), INT64_C(4000000000000));
    int64_t n = op->park_n;
    settling_reset(&g);
    op_add(&g, OB_SETTLE_PUBLISHED, &batch->events[0], 1)->park_n = n;
    ok(s);
    assert_int_equal(SOURCE.status(s, &st, &err), OB_OK);
    assert_true(st.pending == 0 && st.parked == 0 && st.lag_ms == 0 && !st.held);
    ob_batch_unref(batch);
    SOURCE.close(s);
    bench_clear(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(emit_all_or_none),
        cmocka_unit_test(events_with_their_state),
        cmocka_unit_test(dead_ones_are_listed),
        cmocka_unit_test(dead_retry_keeps_the_order_of_a_key),
        cmocka_unit_test(discard_releases_a_held_key),
        cmocka_unit_test(status_of_shards),
        cmocka_unit_test(lag_is_of_the_oldest_that_is_not_settled),
    };

    if (server_missing())
        return 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
