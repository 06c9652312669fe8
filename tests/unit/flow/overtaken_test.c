/* SPDX-License-Identifier: Apache-2.0 */
/* overtaken_test - what counts as overtaken: an event that was delivered before an earlier one of
 * its key that goes again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "flow/flow.h"

#include <string.h>

#define W 16

/* Events 0 to 3 are of one key and in flight together (as far as the order lets them), then the
 * verdicts come: the number of the event and d elivered, t ried again, b locked, r eturned,
 * x rejected; `s` is a settle, and what may go again after that is submitted. */
static const struct {
    const char *name, *verdicts;
    enum ob_order order;
    bool ordered_sink;
    uint64_t want;
} cases[] = {
    {"all in order", "0d 1d 2d 3d", OB_ORDER_PIPELINED, false, 0},
    {"answers in another order", "3d 1d 2d 0d", OB_ORDER_PIPELINED, false, 0},
    {"a failure, then those behind it", "0d 1t 2d 3d", OB_ORDER_PIPELINED, false, 2},
    {"those behind it, then the failure", "2d 3d 0d 1t", OB_ORDER_PIPELINED, false, 2},
    {"some before and some after", "3d 1t 2d 0d", OB_ORDER_PIPELINED, false, 2},
    {"the last one fails", "0d 1d 2d 3t", OB_ORDER_PIPELINED, false, 0},
    {"blocked", "0b 1d 2d 3b", OB_ORDER_PIPELINED, false, 2},
    {"given back", "0r 1r 2d 3r", OB_ORDER_PIPELINED, false, 1},
    {"two fail: each of the others counts once", "0t 1d 2t 3d", OB_ORDER_PIPELINED, false, 2},
    {"past a dead one", "0x 1d 2d 3d", OB_ORDER_PIPELINED, false, 0},
    {"past a dead one and one that failed", "3d 2d 1x 0t", OB_ORDER_PIPELINED, false, 2},
    {"it goes again and is delivered", "0b 1d 2d 3d s 0d", OB_ORDER_PIPELINED, false, 3},
    {"it fails again, alone", "0b 1d 2d 3d s 0b", OB_ORDER_PIPELINED, false, 3},
    {"what stands before is not overtaken", "1t s 0d 2b 3b", OB_ORDER_PIPELINED, false, 0},
    {"strict: one at a time", "0t", OB_ORDER_STRICT, false, 0},
    {"strict: an ordered sink gives back all", "0d 1r 2r 3r", OB_ORDER_STRICT, true, 0},
};

static enum ob_verdict verdict_of(char c)
{
    return c == 'd'   ? OB_V_DELIVERED
           : c == 't' ? OB_V_RETRY
           : c == 'b' ? OB_V_BLOCKED
           : c == 'r' ? OB_V_RETURNED
                      : OB_V_REJECT;
}

static void settle_and_submit(struct ob_flow *f, int64_t *now)
{
    struct ob_settle_op ops[W];
    struct ob_settle s = {.ops = ops};
    uint64_t tokens[W];
    *now += 1000; /* also the time of a destination's probe */
    ob_flow_tick(f, *now);
    if (ob_flow_settle_begin(f, *now, &s)) {
        for (size_t i = 0; i < s.n; i++)
            if (s.ops[i].kind != OB_SETTLE_PUBLISHED && s.ops[i].park_n == 0)
                s.ops[i].park_n = (int64_t)i + 100;
        ob_flow_settle_end(f, *now, OB_OK, &s, NULL, 0);
    }
    ob_flow_accepted(f, *now, ob_flow_submit(f, *now, tokens, W));
}

static void what_overtakes_is_counted_once(void **state)
{
    (void)state;
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        struct ob_flow_conf conf = {.window_events = W,
                                    .window_bytes = 1 << 20,
                                    .max_in_flight = W,
                                    .order = cases[c].order,
                                    .ordered_sink = cases[c].ordered_sink,
                                    .log_source = true,
                                    .max_attempts = 9,
                                    .retry = {.first_ms = 1000, .factor_pct = 200, .max_ms = 60000},
                                    .probe = {.first_ms = 100, .factor_pct = 200, .max_ms = 1000},
                                    .park_after_ms = 2000,
                                    .publish_timeout_ms = 30000,
                                    .settle_every_ms = 10,
                                    .held_max = 8,
                                    .dest_max = 8};
        struct ob_err err;
        struct ob_flow *f = ob_flow_new(&conf, &err);
        struct ob_claimed claimed[4];
        uint64_t tokens[4], out[W];
        int64_t now = 1000;
        assert_non_null(f);
        ob_flow_parked_empty(f);
        for (unsigned i = 0; i < 4; i++)
            claimed[i] = (struct ob_claimed){.ref = i + 1, .hash = 1, .dest = 7, .bytes = 10};
        ob_flow_claim(f, now, claimed, 4, tokens);
        ob_flow_accepted(f, now, ob_flow_submit(f, now, out, W));
        for (const char *p = cases[c].verdicts; *p; p += strspn(p, " ")) {
            if (*p == 's') {
                settle_and_submit(f, &now);
                p++;
                continue;
            }
            struct ob_flow_verdict v = {tokens[*p - '0'], verdict_of(p[1])};
            ob_flow_verdicts(f, now, &v, 1);
            p += 2;
        }
        struct ob_flow_stats st;
        ob_flow_stats(f, &st);
        if (st.overtaken != cases[c].want || st.late != 0)
            fail_msg("%s: %llu overtaken, wanted %llu; %llu late", cases[c].name,
                     (unsigned long long)st.overtaken, (unsigned long long)cases[c].want,
                     (unsigned long long)st.late);
        ob_flow_free(f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_overtakes_is_counted_once)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
