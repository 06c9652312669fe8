/* SPDX-License-Identifier: Apache-2.0 */
/* flow_test - the rules one by one; tests/sim looks for what nobody thought of. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "core/buf.h"
#include "flow/flow.h"

#include <stdio.h>
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

static uint64_t claim(struct fix *x, uint64_t key, uint64_t dest, unsigned flags)
{
    uint64_t t = 0;
    struct ob_claimed c = {.ref = ++x->ref, .hash = key, .dest = dest, .bytes = 10, .flags = flags};
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

static void one_in_flight_per_key(void **state)
{
    (void)state;
    struct fix *x = open_with(conf());
    uint64_t a = claim(x, 1, 7, 0), b = claim(x, 1, 7, 0), c = claim(x, 2, 7, 0);
    assert_int_equal(submit(x), 2);
    assert_true(x->tok[0] == a && x->tok[1] == c);
    verdict(x, a, OB_V_DELIVERED);
    assert_int_equal(submit(x), 1);
    assert_true(x->tok[0] == b);
    end(x);
}

static void many_in_flight_on_an_ordered_sink_within_one_destination(void **state)
{
    (void)state;
    struct ob_flow_conf c = conf();
    c.ordered_sink = true;
    struct fix *x = open_with(c);
    uint64_t a = claim(x, 1, 7, 0);
    claim(x, 1, 7, 0);
    uint64_t other = claim(x, 1, 8, 0);
    assert_int_equal(submit(x), 2);
    assert_true(x->tok[0] == a);
    uint64_t b = x->tok[1];
    verdict(x, a, OB_V_DELIVERED);
    assert_int_equal(submit(x), 0); /* b is not acknowledged: the other destination waits */
    verdict(x, b, OB_V_DELIVERED);
    assert_int_equal(submit(x), 1);
    assert_true(x->tok[0] == other);
    end(x);
}

static void the_cursor_waits_for_the_first_unsettled(void **state)
{
    (void)state;
    struct fix *x = open_with(conf());
    uint64_t a = claim(x, 1, 7, 0), b = claim(x, 2, 7, 0), c = claim(x, 3, 7, 0);
    submit(x);
    verdict(x, b, OB_V_DELIVERED);
    verdict(x, c, OB_V_DELIVERED);
    assert_true(settle(x, OB_OK, NULL, 0)); /* a is only accepted */
    assert_false(x->s.moved);
    assert_int_equal(x->s.n_ahead, 2);
    assert_true(x->s.ahead[0] == 2 && x->s.ahead[1] == 3 && x->s.claimed == 3);
    assert_false(settle(x, OB_OK, NULL, 0)); /* that is recorded */
    verdict(x, a, OB_V_DELIVERED);
    assert_true(settle(x, OB_OK, NULL, 0));
    assert_true(x->s.moved);
    assert_int_equal(x->s.ref, 3);
    assert_int_equal(x->s.n, 0);
    assert_true(ob_flow_idle(x->f));
    end(x);
}

/* Refs 1 to 7: 1 waits for its acknowledgement, 2 is another shard's, 3 was settled by an earlier
 * owner, 4 dies, 5 and 6 are delivered, 7 is ready and never sent. */
static void settled_ahead_of_the_cursor(void **state)
{
    (void)state;
    struct ob_flow_conf c = conf();
    c.ahead_max = 2;
    struct fix *x = open_with(c);
    uint64_t slow = claim(x, 1, 7, 0);
    claim(x, 2, 7, OB_CLAIM_SKIP);
    claim(x, 3, 7, OB_CLAIM_PASSED);
    uint64_t bad = claim(x, 4, 7, 0), e = claim(x, 5, 7, 0), f = claim(x, 6, 7, 0);
    submit(x);
    claim(x, 7, 7, 0);
    verdict(x, bad, OB_V_REJECT);
    verdict(x, e, OB_V_DELIVERED);
    verdict(x, f, OB_V_DELIVERED);
    assert_true(settle(x, OB_DOWN, NULL, 0));
    x->now += 1000;
    assert_true(settle(x, OB_OK, NULL, 0));
    assert_int_equal(x->s.n_ahead, 2); /* ahead_max */
    assert_true(x->s.ahead[0] == 3 && x->s.ahead[1] == 4);
    assert_false(settle(x, OB_OK, NULL, 0));
    ob_flow_close(x->f, true); /* before a stop all are recorded */
    assert_true(settle(x, OB_OK, NULL, 0));
    assert_int_equal(x->s.n_ahead, 4);
    assert_true(x->s.ahead[2] == 5 && x->s.ahead[3] == 6 && x->s.claimed == 7 && !x->s.moved);
    assert_false(settle(x, OB_OK, NULL, 0));
    verdict(x, slow, OB_V_DELIVERED);
    assert_true(settle(x, OB_OK, NULL, 0));
    assert_true(x->s.moved && x->s.ref == 6 && x->s.n_ahead == 0);
    end(x);
}

static void retry_parks_with_its_followers_in_claim_order(void **state)
{
    (void)state;
    struct fix *x = open_with(conf());
    uint64_t a = claim(x, 1, 7, 0);
    claim(x, 1, 7, 0);
    submit(x);
    verdict(x, a, OB_V_RETRY);
    claim(x, 1, 7, 0); /* comes while its key is held */
    assert_int_equal(submit(x), 0);
    assert_true(settle(x, OB_OK, NULL, 0));
    assert_int_equal(x->s.n, 3);
    assert_int_equal(x->s.ops[0].attempts, 1);
    assert_true(x->s.ops[0].spent);
    assert_int_equal(x->s.ops[0].due_ms, 2000); /* failed at 1000, first back-off 1 s */
    for (int i = 0; i < 3; i++)
        assert_int_equal(x->s.ops[i].kind, OB_SETTLE_PARK);
    assert_true(x->s.ops[0].token < x->s.ops[1].token && x->s.ops[1].token < x->s.ops[2].token);
    assert_int_equal(x->s.ref, 3); /* the cursor passes what is parked */
    end(x);
}

/* More rows in back-off than the window has places, and the one behind them goes out at once. */
static void rows_in_back_off_do_not_hide_the_next(void **state)
{
    (void)state;
    struct fix *x = open_with(conf());
    uint64_t key = 0, failed = 0;
    while (key < 10 * W) {
        size_t room = ob_flow_room(x->f, NULL);
        assert_true(room > 0);
        for (size_t i = 0; i < room; i++)
            claim(x, ++key, 7, 0);
        for (size_t n; (n = submit(x)) > 0; failed += n)
            for (size_t i = 0; i < n; i++)
                verdict(x, x->tok[i], OB_V_RETRY);
        assert_true(settle(x, OB_OK, NULL, 0));
    }
    assert_int_equal(failed, key); /* all of them wait for their second attempt */
    uint64_t next = claim(x, ++key, 7, 0);
    assert_int_equal(submit(x), 1);
    assert_true(x->tok[0] == next);
    end(x);
}

static void last_attempt_is_dead_and_the_key_goes_on_when_that_is_recorded(void **state)
{
    (void)state;
    struct ob_flow_conf c = conf();
    c.max_attempts = 1;
    struct fix *x = open_with(c);
    uint64_t a = claim(x, 1, 7, 0);
    claim(x, 1, 7, 0);
    submit(x);
    verdict(x, a, OB_V_RETRY);
    assert_int_equal(submit(x), 0); /* dead only when recorded */
    assert_true(settle(x, OB_OK, NULL, 0));
    assert_int_equal(x->s.n, 1);
    assert_int_equal(x->s.ops[0].kind, OB_SETTLE_DEAD);
    assert_false(x->s.ops[0].hold);
    assert_int_equal(submit(x), 1);
    end(x);
}

static void on_dead_park_holds_the_key(void **state)
{
    (void)state;
    struct ob_flow_conf c = conf();
    c.on_dead = OB_ON_DEAD_PARK;
    struct fix *x = open_with(c);
    uint64_t a = claim(x, 1, 7, 0);
    claim(x, 1, 7, 0);
    submit(x);
    verdict(x, a, OB_V_REJECT);
    assert_true(settle(x, OB_OK, NULL, 0));
    assert_int_equal(x->s.n, 2);
    assert_int_equal(x->s.ops[0].kind, OB_SETTLE_DEAD);
    assert_true(x->s.ops[0].hold);
    assert_int_equal(x->s.ops[1].kind, OB_SETTLE_PARK);
    claim(x, 1, 7, 0);
    assert_int_equal(submit(x), 0);
    end(x);
}

static void an_outage_spends_no_attempt_and_parks_nothing(void **state)
{
    (void)state;
    struct fix *x = open_with(conf());
    uint64_t a = claim(x, 1, 7, 0), b = claim(x, 2, 7, 0);
    submit(x);
    ob_flow_sink(x->f, x->now, false);
    verdict(x, a, OB_V_RETURNED);
    verdict(x, b, OB_V_RETURNED);
    assert_int_equal(submit(x), 0);
    for (int i = 0; i < 100; i++) {
        x->now += 1000;
        ob_flow_tick(x->f, x->now);
        size_t n = submit(x);
        assert_true(n <= 1); /* a probe */
        if (n == 1)
            verdict(x, x->tok[0], OB_V_RETURNED);
        assert_false(settle(x, OB_OK, NULL, 0));
    }
    assert_int_equal(stats(x).retried + stats(x).parked + stats(x).dead, 0);
    ob_flow_sink(x->f, x->now, true);
    assert_int_equal(submit(x), 2);
    end(x);
}

static void a_probe_that_is_delivered_closes_the_breaker(void **state)
{
    (void)state;
    struct fix *x = open_with(conf());
    claim(x, 1, 7, 0);
    claim(x, 2, 7, 0);
    ob_flow_sink(x->f, x->now, false);
    assert_int_equal(submit(x), 0);
    x->now = ob_flow_wake_at(x->f, x->now);
    assert_int_equal(submit(x), 1);
    verdict(x, x->tok[0], OB_V_DELIVERED);
    assert_false(stats(x).down);
    assert_int_equal(submit(x), 1);
    end(x);
}

static void a_blocked_destination_is_parked_and_does_not_stop_others(void **state)
{
    (void)state;
    struct fix *x = open_with(conf());
    uint64_t a = claim(x, 1, 7, 0);
    submit(x);
    verdict(x, a, OB_V_BLOCKED);
    assert_false(settle(x, OB_OK, NULL, 0)); /* it may be over soon */
    uint64_t b = claim(x, 2, 8, 0);
    assert_int_equal(submit(x), 1);
    assert_true(x->tok[0] == b);
    verdict(x, b, OB_V_DELIVERED);
    x->now += 2000;
    ob_flow_tick(x->f, x->now);
    assert_true(settle(x, OB_OK, NULL, 0));
    assert_int_equal(x->s.n, 1);
    assert_int_equal(x->s.ops[0].blocked_dest, 7);
    assert_int_equal(x->s.ops[0].attempts, 0);
    assert_int_equal(x->s.ref, 2);
    uint64_t dest;
    bool one;
    x->now += 5000;
    assert_int_equal(ob_flow_drain_dests(x->f, x->now, &dest, &one, 1), 1);
    assert_true(dest == 7 && one);
    end(x);
}

static void a_probe_row_frees_its_destination(void **state)
{
    (void)state;
    struct fix *x = open_with(conf());
    assert_true(ob_flow_dest_parked(x->f, x->now, 7));
    struct ob_claimed row = {.hash = 1, .dest = 7, .bytes = 1, .park_n = 5};
    struct ob_drained more = {.hash = 1, .more = false};
    uint64_t t;
    ob_flow_drained(x->f, x->now, &row, 1, &more, 1, &t);
    uint64_t fresh = claim(x, 1, 7, 0); /* waits in the window behind the last page */
    assert_int_equal(submit(x), 1);
    assert_true(x->tok[0] == t);
    verdict(x, t, OB_V_DELIVERED);
    assert_int_equal(stats(x).blocked_dests, 0);
    assert_int_equal(submit(x), 1);
    assert_true(x->tok[0] == fresh);
    const uint64_t released[] = {1};
    assert_true(settle(x, OB_OK, released, 1));
    assert_int_equal(x->s.n, 1);
    assert_int_equal(x->s.ops[0].kind, OB_SETTLE_PUBLISHED);
    assert_int_equal(x->s.ops[0].park_n, 5);
    end(x);
}

/* An event that the sink returns each time is not sent again without end; an outage in between
 * begins the count anew. */
static void returned_again_and_again_is_parked(void **state)
{
    (void)state;
    struct fix *x = open_with(conf());
    uint64_t a = claim(x, 1, 7, 0), b = claim(x, 1, 7, 0), other = claim(x, 2, 7, 0);
    (void)b;
    submit(x);
    verdict(x, other, OB_V_DELIVERED);
    verdict(x, a, OB_V_RETURNED);
    assert_int_equal(submit(x), 1);
    ob_flow_sink(x->f, x->now, false);
    verdict(x, a, OB_V_RETURNED);
    ob_flow_sink(x->f, x->now, true);
    for (int i = 0; i < 3; i++) { /* max_attempts */
        assert_int_equal(submit(x), 1);
        assert_true(x->tok[0] == a);
        verdict(x, a, OB_V_RETURNED);
    }
    assert_int_equal(submit(x), 0);
    assert_true(settle(x, OB_OK, NULL, 0));
    assert_int_equal(x->s.n, 2); /* and its follower */
    assert_int_equal(x->s.ops[0].kind, OB_SETTLE_PARK);
    assert_int_equal(x->s.ops[0].attempts, 0);
    assert_false(x->s.ops[0].spent);
    assert_true(x->s.ops[0].due_ms > x->now);
    assert_int_equal(stats(x).returned_often, 1);
    assert_true(stats(x).returned_token == a);
    end(x);
}

static void an_overdue_one_is_parked_in_flight_and_a_late_ack_deletes_the_row(void **state)
{
    (void)state;
    struct fix *x = open_with(conf());
    uint64_t a = claim(x, 1, 7, 0);
    submit(x);
    x->now += 1000;
    uint64_t b = claim(x, 2, 7, 0);
    submit(x);
    verdict(x, b, OB_V_DELIVERED);
    x->now += 1500;
    ob_flow_tick(x->f, x->now);
    assert_true(settle(x, OB_OK, NULL, 0));
    assert_int_equal(x->s.ops[0].kind, OB_SETTLE_PARK);
    assert_true(x->s.ops[0].due_ms <= x->now); /* the next owner does not wait for it */
    assert_int_equal(x->s.ref, 2);
    int64_t n = x->s.ops[0].park_n;
    assert_int_equal(stats(x).in_flight, 1);
    assert_true(ob_flow_drain_skip(x->f, 1)); /* never submitted again before its verdict */
    verdict(x, a, OB_V_DELIVERED);
    assert_true(settle(x, OB_OK, (const uint64_t[]){1}, 1));
    assert_int_equal(x->s.ops[0].kind, OB_SETTLE_PUBLISHED);
    assert_int_equal(x->s.ops[0].park_n, n);
    end(x);
}

static void a_time_out_blames_the_sink_the_destination_or_the_event(void **state)
{
    (void)state;
    struct fix *x = open_with(conf());
    uint64_t t[W];
    claim(x, 1, 7, 0);
    submit(x);
    x->now += 30001;
    ob_flow_tick(x->f, x->now);
    assert_true(ob_flow_wants_reset(x->f)); /* nothing at all was acknowledged */
    assert_false(ob_flow_wants_reset(x->f));
    end(x);

    x = open_with(conf());
    uint64_t a = claim(x, 1, 7, 0);
    submit(x);
    x->now += 1;
    uint64_t b = claim(x, 2, 8, 0);
    submit(x);
    x->now += 1;
    verdict(x, b, OB_V_DELIVERED);
    x->now += 30001;
    ob_flow_tick(x->f, x->now);
    assert_int_equal(stats(x).blocked_dests, 1); /* nothing of its destination was */
    assert_int_equal(ob_flow_cancel(x->f, t, W), 1);
    settle(x, OB_OK, NULL, 0);
    verdict(x, a, OB_V_RETRY); /* the sink's answer to the cancel is nobody's attempt */
    assert_int_equal(stats(x).retried, 0);
    end(x);

    x = open_with(conf());
    a = claim(x, 1, 7, 0);
    submit(x);
    x->now += 1;
    b = claim(x, 2, 7, 0);
    submit(x);
    x->now += 1;
    verdict(x, b, OB_V_DELIVERED);
    x->now += 30001;
    ob_flow_tick(x->f, x->now);
    assert_int_equal(ob_flow_cancel(x->f, t, W), 1);
    assert_true(t[0] == a);
    assert_int_equal(stats(x).blocked_dests, 0);
    settle(x, OB_OK, NULL, 0);
    verdict(x, a, OB_V_RETRY);
    assert_int_equal(stats(x).retried, 1);
    end(x);
}

static void a_failed_settle_is_offered_again(void **state)
{
    (void)state;
    struct fix *x = open_with(conf());
    uint64_t a = claim(x, 1, 7, 0), b = claim(x, 2, 7, 0);
    submit(x);
    verdict(x, a, OB_V_DELIVERED);
    verdict(x, b, OB_V_REJECT);
    assert_true(settle(x, OB_DOWN, NULL, 0));
    assert_int_equal(x->s.n, 1);
    x->now += 1000;
    assert_true(settle(x, OB_OK, NULL, 0));
    assert_int_equal(x->s.n, 1);
    assert_int_equal(x->s.ops[0].kind, OB_SETTLE_DEAD);
    assert_int_equal(x->s.ref, 2);
    assert_int_equal(x->s.delivered, 1);
    assert_true(ob_flow_idle(x->f));
    end(x);
}

static void the_window_bounds_events_and_bytes(void **state)
{
    (void)state;
    struct ob_flow_conf c = conf();
    c.window_bytes = 25;
    struct fix *x = open_with(c);
    uint64_t bytes;
    assert_int_equal(ob_flow_room(x->f, &bytes), W);
    assert_int_equal(bytes, 25);
    claim(x, 1, 7, 0);
    claim(x, 2, 7, 0);
    assert_int_equal(ob_flow_room(x->f, &bytes), W - 2);
    assert_int_equal(bytes, 5);
    claim(x, 3, 7, 0);
    assert_int_equal(ob_flow_room(x->f, NULL), 0);
    end(x);
}

static void a_held_cache_that_overflows_asks_for_lookups(void **state)
{
    (void)state;
    struct fix *x = open_with(conf());
    for (uint64_t key = 1; key <= 10; key++) { /* held_max is 8 */
        uint64_t t = claim(x, key, 7, 0);
        submit(x);
        verdict(x, t, OB_V_RETRY);
        settle(x, OB_OK, NULL, 0);
    }
    assert_true(ob_flow_needs_lookup(x->f));
    claim(x, 10, 7, OB_CLAIM_HELD);
    assert_int_equal(submit(x), 0);
    assert_true(settle(x, OB_OK, NULL, 0));
    assert_int_equal(x->s.ops[0].kind, OB_SETTLE_PARK);
    end(x);
}

static void tokens_of_before_a_reset_find_nobody(void **state)
{
    (void)state;
    struct fix *x = open_with(conf());
    uint64_t a = claim(x, 1, 7, 0), freed[W];
    submit(x);
    ob_flow_reset(x->f);
    assert_int_equal(ob_flow_freed(x->f, freed, W), 1);
    assert_true(freed[0] == a);
    assert_true(ob_flow_idle(x->f));
    for (int i = 0; i < W; i++)
        claim(x, (uint64_t)i, 7, 0);
    submit(x);
    verdict(x, a, OB_V_DELIVERED);
    assert_int_equal(stats(x).late, 1);
    assert_int_equal(stats(x).delivered, 0);
    end(x);
}

static void poison_dies_in_the_order_of_its_key(void **state)
{
    (void)state;
    struct fix *x = open_with(conf());
    uint64_t a = claim(x, 1, 7, 0);
    claim(x, 1, 7, OB_CLAIM_POISON);
    claim(x, 1, 7, 0);
    assert_int_equal(submit(x), 1);
    assert_false(settle(x, OB_OK, NULL, 0));
    verdict(x, a, OB_V_DELIVERED);
    assert_int_equal(submit(x), 0);
    assert_true(settle(x, OB_OK, NULL, 0));
    assert_int_equal(x->s.ops[0].kind, OB_SETTLE_DEAD);
    assert_int_equal(x->s.ops[0].attempts, 0);
    assert_int_equal(submit(x), 1);
    end(x);
}

static void what_is_not_ours_only_moves_the_cursor(void **state)
{
    (void)state;
    struct fix *x = open_with(conf());
    assert_int_equal(claim(x, 1, 7, OB_CLAIM_SKIP), 0);
    assert_int_equal(submit(x), 0);
    assert_true(settle(x, OB_OK, NULL, 0));
    assert_int_equal(x->s.ref, 1);
    end(x);
}

/* docs/flow.md carries the table that the flow moves by. */
/* A source that may settle only now and then holds up nobody. */
static void settles_bound_only_what_is_not_over(void **state)
{
    (void)state;
    struct fix *x = open_with(conf());
    uint64_t freed[W];
    for (int i = 0; i < 100 * W; i++) {
        assert_true(ob_flow_room(x->f, NULL) > 0);
        uint64_t t = claim(x, 1 + (uint64_t)i % 5, 7, 0);
        assert_int_equal(submit(x), 1);
        verdict(x, t, OB_V_DELIVERED);
        ob_flow_tick(x->f, x->now);
        while (ob_flow_freed(x->f, freed, W) > 0)
            ;
    }
    uint64_t waits = claim(x, 1, 7, 0);
    assert_false(ob_flow_idle(x->f));
    assert_true(settle(x, OB_DOWN, NULL, 0)); /* not recorded: offered again */
    assert_true(settle(x, OB_OK, NULL, 0));
    assert_true(x->s.moved && x->s.ref == 100 * W && x->s.delivered == 100 * W);
    assert_int_equal(stats(x).settled, 100 * W);
    assert_false(settle(x, OB_OK, NULL, 0)); /* nothing more: the last one is not delivered */
    submit(x);
    verdict(x, waits, OB_V_DELIVERED);
    assert_true(settle(x, OB_OK, NULL, 0));
    assert_true(x->s.moved && x->s.ref == 100 * W + 1);
    assert_true(ob_flow_idle(x->f));
    end(x);
}

static void documented_states_are_the_real_ones(void **state)
{
    (void)state;
    struct ob_buf want, have;
    ob_buf_init(&want, 0);
    ob_buf_init(&have, 0);
    ob_flow_print_states(&want);
    FILE *in = fopen(OB_SOURCE_ROOT "/docs/flow.md", "r");
    assert_non_null(in);
    char part[4096];
    size_t n;
    while ((n = fread(part, 1, sizeof(part), in)) > 0)
        ob_buf_put(&have, part, n);
    fclose(in);
    if (!strstr(ob_buf_z(&have), ob_buf_z(&want)))
        fail_msg("docs/flow.md is stale; its table should be:\n%s", ob_buf_z(&want));
    ob_buf_clear(&want);
    ob_buf_clear(&have);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_in_flight_per_key),
        cmocka_unit_test(many_in_flight_on_an_ordered_sink_within_one_destination),
        cmocka_unit_test(the_cursor_waits_for_the_first_unsettled),
        cmocka_unit_test(returned_again_and_again_is_parked),
        cmocka_unit_test(settled_ahead_of_the_cursor),
        cmocka_unit_test(retry_parks_with_its_followers_in_claim_order),
        cmocka_unit_test(rows_in_back_off_do_not_hide_the_next),
        cmocka_unit_test(last_attempt_is_dead_and_the_key_goes_on_when_that_is_recorded),
        cmocka_unit_test(on_dead_park_holds_the_key),
        cmocka_unit_test(an_outage_spends_no_attempt_and_parks_nothing),
        cmocka_unit_test(a_probe_that_is_delivered_closes_the_breaker),
        cmocka_unit_test(a_blocked_destination_is_parked_and_does_not_stop_others),
        cmocka_unit_test(a_probe_row_frees_its_destination),
        cmocka_unit_test(an_overdue_one_is_parked_in_flight_and_a_late_ack_deletes_the_row),
        cmocka_unit_test(a_time_out_blames_the_sink_the_destination_or_the_event),
        cmocka_unit_test(a_failed_settle_is_offered_again),
        cmocka_unit_test(the_window_bounds_events_and_bytes),
        cmocka_unit_test(a_held_cache_that_overflows_asks_for_lookups),
        cmocka_unit_test(tokens_of_before_a_reset_find_nobody),
        cmocka_unit_test(poison_dies_in_the_order_of_its_key),
        cmocka_unit_test(what_is_not_ours_only_moves_the_cursor),
        cmocka_unit_test(settles_bound_only_what_is_not_over),
        cmocka_unit_test(documented_states_are_the_real_ones),
    };
    return cmocka_run_group_tests_name("flow", tests, NULL, NULL);
}
