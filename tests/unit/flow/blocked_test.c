/* SPDX-License-Identifier: Apache-2.0 */
/* blocked_test - what bounds how long one event holds its key: blocked_max, the cap of an event's
 * own max_attempts, returns without end. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "flow/flow.h"

#include <stdlib.h>

#define W 16

struct fix {
    struct ob_flow *f;
    struct ob_flow_conf c;
    int64_t now;
    uint64_t ref;
    uint64_t tok[W * 2];
    struct ob_settle_op ops[W];
    struct ob_settle s;
};

static struct ob_flow_conf conf(void)
{
    return (struct ob_flow_conf){
        .window_events = W,
        .window_bytes = 1 << 20,
        .max_in_flight = W,
        .log_source = true,
        .max_attempts = 3,
        .retry = {.first_ms = 1000, .factor_pct = 200, .max_ms = 60000},
        .probe = {.first_ms = 100, .factor_pct = 200, .max_ms = 1000},
        .park_after_ms = 2000,
        .publish_timeout_ms = 30000,
        .settle_every_ms = 10,
        .ahead_max = 4,
        .held_max = 8,
        .dest_max = 8,
    };
}

static struct fix *open_with(struct ob_flow_conf c)
{
    struct fix *x = calloc(1, sizeof(*x));
    struct ob_err err;
    x->c = c;
    x->now = 1000;
    x->s.ops = x->ops;
    x->f = ob_flow_new(&c, &err);
    assert_non_null(x->f);
    ob_flow_parked_empty(x->f);
    return x;
}

static void end(struct fix *x)
{
    ob_flow_free(x->f);
    free(x);
}

static uint64_t claim(struct fix *x, uint64_t key, uint64_t dest)
{
    uint64_t t = 0;
    struct ob_claimed c = {.ref = ++x->ref, .hash = key, .dest = dest, .bytes = 10};
    ob_flow_claim(x->f, x->now, &c, 1, &t);
    return t;
}

/* Gives everything that may go to the sink. */
static size_t submit(struct fix *x)
{
    size_t n = ob_flow_submit(x->f, x->now, x->tok, W);
    ob_flow_accepted(x->f, x->now, n);
    return n;
}

static void verdict(struct fix *x, uint64_t token, enum ob_verdict v)
{
    struct ob_flow_verdict one = {.token = token, .verdict = v};
    ob_flow_verdicts(x->f, x->now, &one, 1);
}

static bool settle(struct fix *x, enum ob_status st, const uint64_t *released, size_t n)
{
    static int64_t park_n = 100;
    x->now += x->c.settle_every_ms;
    if (!ob_flow_settle_begin(x->f, x->now, &x->s))
        return false;
    for (size_t i = 0; st == OB_OK && i < x->s.n; i++)
        if (x->s.ops[i].kind != OB_SETTLE_PUBLISHED && x->s.ops[i].park_n == 0)
            x->s.ops[i].park_n = ++park_n;
    ob_flow_settle_end(x->f, x->now, st, &x->s, released, n);
    uint64_t freed[W];
    while (ob_flow_freed(x->f, freed, W) > 0)
        ;
    return true;
}

static struct ob_flow_stats stats(const struct fix *x)
{
    struct ob_flow_stats s;
    ob_flow_stats(x->f, &s);
    return s;
}

/* The only row of a destination, drained as its probe and found blocked. */
static void probe_blocked(struct fix *x, int64_t blocked_ms)
{
    struct ob_claimed row = {
        .hash = 1, .dest = 7, .bytes = 1, .park_n = 5, .blocked_ms = blocked_ms};
    struct ob_drained more = {.hash = 1, .more = false};
    uint64_t t;
    ob_flow_drained(x->f, x->now, &row, 1, &more, 1, &t);
    assert_int_equal(submit(x), 1);
    assert_true(x->tok[0] == t);
    verdict(x, t, OB_V_BLOCKED);
}

/* blocked_max: the event of the blocked destination is dead, the next one of its key goes on. The
 * row keeps since when it is blocked, so that a restart does not begin anew. */
static void blocked_for_too_long_is_dead(void **state)
{
    (void)state;
    struct ob_flow_conf c = conf();
    c.blocked_max_ms = 60000;
    struct fix *x = open_with(c);
    uint64_t a = claim(x, 1, 7);
    submit(x);
    verdict(x, a, OB_V_BLOCKED); /* at 1000 */
    x->now += 2000;
    ob_flow_tick(x->f, x->now);
    assert_true(settle(x, OB_OK, NULL, 0));
    assert_int_equal(x->s.ops[0].blocked_dest, 7);
    assert_int_equal(x->s.ops[0].due_ms, 1000);
    end(x);

    x = open_with(c); /* after a restart */
    assert_true(ob_flow_dest_parked(x->f, x->now, 7));
    x->now += 2000;
    probe_blocked(x, 61000);
    uint64_t next = claim(x, 1, 8);
    assert_int_equal(submit(x), 0); /* dead only when recorded */
    assert_true(settle(x, OB_OK, (const uint64_t[]){1}, 1));
    assert_int_equal(x->s.n, 1);
    assert_int_equal(x->s.ops[0].kind, OB_SETTLE_DEAD);
    assert_int_equal(x->s.ops[0].park_n, 5);
    assert_int_equal(x->s.ops[0].blocked_ms, 61000);
    assert_false(x->s.ops[0].spent || x->s.ops[0].exhausted);
    assert_int_equal(submit(x), 1);
    assert_true(x->tok[0] == next);
    end(x);
}

static void blocked_for_too_long_needs_more_than_age(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int64_t max, age, wait;
        bool outage;
    } rows[] = {
        {"off", 0, 61000, 2000, false},
        {"not yet", 60000, 50000, 2000, false},
        {"blocked only now", 60000, 61000, 0, false},
        {"an outage", 60000, 61000, 2000, true},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct ob_flow_conf c = conf();
        c.blocked_max_ms = rows[i].max;
        struct fix *x = open_with(c);
        assert_true(ob_flow_dest_parked(x->f, x->now, 7));
        if (rows[i].outage) {
            ob_flow_sink(x->f, x->now, false);
            x->now += 20000;
            ob_flow_sink(x->f, x->now, true);
        }
        x->now += rows[i].wait;
        probe_blocked(x, rows[i].age);
        bool recorded = settle(x, OB_OK, NULL, 0);
        if (recorded && x->s.n > 0 && x->s.ops[0].kind == OB_SETTLE_DEAD)
            fail_msg("%s: the event is dead", rows[i].name);
        end(x);
    }
}

static void attempts_of_the_event_are_capped(void **state)
{
    (void)state;
    static const struct {
        uint32_t own, cap, want;
    } rows[] = {{0, 5, 3}, {2, 5, 2}, {1000000, 5, 5}, {7, 0, 7}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct ob_flow_conf c = conf();
        c.max_attempts_cap = rows[i].cap;
        struct fix *x = open_with(c);
        uint64_t t;
        struct ob_claimed e = {.ref = 1, .hash = 1, .dest = 7, .max_attempts = rows[i].own};
        e.attempts = rows[i].want - 2; /* the attempt after the next is the last */
        ob_flow_claim(x->f, x->now, &e, 1, &t);
        submit(x);
        verdict(x, t, OB_V_RETRY);
        assert_true(settle(x, OB_OK, NULL, 0));
        assert_int_equal(x->s.ops[0].kind, OB_SETTLE_PARK);
        end(x);
        x = open_with(c);
        e.attempts = rows[i].want - 1;
        ob_flow_claim(x->f, x->now, &e, 1, &t);
        submit(x);
        verdict(x, t, OB_V_RETRY);
        assert_true(settle(x, OB_OK, NULL, 0));
        assert_int_equal(x->s.ops[0].kind, OB_SETTLE_DEAD);
        assert_true(x->s.ops[0].exhausted);
        end(x);
    }
}

/* A probe that the sink returns each time proves nothing about its destination. */
static void a_returned_probe_does_not_block_its_destination(void **state)
{
    (void)state;
    struct fix *x = open_with(conf());
    assert_true(ob_flow_dest_parked(x->f, x->now, 7));
    struct ob_claimed row = {.hash = 1, .dest = 7, .bytes = 1, .park_n = 5};
    struct ob_drained more = {.hash = 1, .more = false};
    uint64_t t;
    ob_flow_drained(x->f, x->now, &row, 1, &more, 1, &t);
    for (int i = 0; i < 3; i++) { /* max_attempts */
        assert_int_equal(stats(x).blocked_dests, 1);
        x->now += 2000;
        assert_int_equal(submit(x), 1);
        verdict(x, t, OB_V_RETURNED);
    }
    assert_int_equal(stats(x).blocked_dests, 0);
    assert_int_equal(stats(x).returned_often, 1);
    end(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocked_for_too_long_is_dead),
        cmocka_unit_test(blocked_for_too_long_needs_more_than_age),
        cmocka_unit_test(attempts_of_the_event_are_capped),
        cmocka_unit_test(a_returned_probe_does_not_block_its_destination),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
