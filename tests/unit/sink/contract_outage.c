/* SPDX-License-Identifier: Apache-2.0 */
/* contract_outage - what sink.h promises when the broker is away, slow, comes and goes, or has no
 * such destination. An outage is a state: nobody is retried or rejected for it. */
#include "contract_cases.h"
#include "proxy.h"

#include <stdlib.h>

#define KEYS 5

static int64_t now_ms(void)
{
    return ob_clock_mono_ms(&ob_clock_system);
}

/* Only an outage: all arrived, nobody failed. */
static void finish(struct run *r)
{
    assert_int_equal(r->w.count[OB_V_RETRY] + r->w.count[OB_V_REJECT] + r->w.count[OB_V_BLOCKED],
                     0);
    contract_all_delivered(r);
    contract_close_and_read(r);
}

static void outage_before(struct run *r)
{
    proxy_open(r->proxy, false);
    contract_open(r); /* a broker that is not there is not a failure of open() */
    uint64_t first = watched_add_many(&r->w, 100, KEYS);
    watched_submit(&r->w, first, 100, NULL);
    assert_true(watched_until_state(&r->w, -1));
    assert_int_equal(r->w.count[OB_V_DELIVERED], 0);
    proxy_open(r->proxy, true);
    assert_true(watched_deliver(&r->w, first, 100));
    assert_true(watched_until_state(&r->w, 1));
    finish(r);
}

static void outage_during(struct run *r)
{
    contract_open(r);
    assert_true(watched_until_state(&r->w, 1));
    proxy_delay(r->proxy, 100); /* so that something is in flight when it comes */
    uint64_t first = watched_add_many(&r->w, 900, KEYS);
    assert_true(watched_submit(&r->w, first, 900, NULL) > 0);
    proxy_open(r->proxy, false);
    assert_true(watched_until_state(&r->w, -1));
    size_t before = r->w.count[OB_V_DELIVERED];
    assert_true(before < 900);
    for (int64_t since = now_ms(); now_ms() - since < 300;)
        watched_wait(&r->w, 50);
    assert_int_equal(r->w.count[OB_V_DELIVERED], before);
    proxy_delay(r->proxy, 0);
    proxy_open(r->proxy, true);
    assert_true(watched_deliver(&r->w, first, 900));
    finish(r);
}

static void outage_after(struct run *r)
{
    contract_open(r);
    uint64_t first = watched_add_many(&r->w, 100, KEYS);
    assert_true(watched_deliver(&r->w, first, 100));
    proxy_open(r->proxy, false); /* nothing is in flight: it may be noticed with the next one */
    first = watched_add_many(&r->w, 100, KEYS);
    watched_submit(&r->w, first, 100, NULL);
    assert_true(watched_until_state(&r->w, -1));
    assert_int_equal(r->w.count[OB_V_DELIVERED], 100);
    proxy_open(r->proxy, true);
    assert_true(watched_deliver(&r->w, first, 100));
    assert_true(watched_until_state(&r->w, 1));
    finish(r);
}

static void slow_broker(struct run *r)
{
    contract_open(r);
    assert_true(watched_until_state(&r->w, 1));
    proxy_delay(r->proxy, 200);
    uint64_t first = watched_add_many(&r->w, 300, KEYS);
    int64_t since = now_ms();
    assert_true(watched_deliver(&r->w, first, 300));
    assert_true(now_ms() - since >= 200);
    assert_int_equal(r->w.downs, 0); /* late is not away */
    finish(r);
}

static void reconnect_storm(struct run *r)
{
    contract_open(r);
    for (int i = 0; i < 4; i++) {
        uint64_t first = watched_add_many(&r->w, 200, KEYS);
        watched_submit(&r->w, first, 200, NULL);
        proxy_cut(r->proxy);
        if (i % 2)
            watched_wait(&r->w, 20);
        proxy_cut(r->proxy);
        assert_true(watched_deliver(&r->w, first, 200));
    }
    assert_int_equal(r->w.n_order, 800); /* none was told twice */
    finish(r);
}

/* Every other message goes where there is nothing yet. */
static void one_destination_blocked(struct run *r)
{
    contract_open(r);
    uint64_t first = watched_add_many(&r->w, 60, 6);
    for (uint64_t t = first; t < first + 60; t += 2)
        r->sink->aim_elsewhere(r->data, r->w.tokens[t - 1].m);
    assert_true(watched_deliver(&r->w, first, 60)); /* each has a verdict */
    for (uint64_t t = first; t < first + 60; t++)
        assert_int_equal(r->w.tokens[t - 1].verdict,
                         (t - first) % 2 ? OB_V_DELIVERED : OB_V_BLOCKED);
    assert_int_not_equal(r->w.state, -1);
    r->sink->make_elsewhere(r->data);
    for (int64_t since = now_ms(); r->w.count[OB_V_DELIVERED] < 60 && now_ms() - since < WAIT_MS;) {
        for (uint64_t t = first; t < first + 60; t += 2)
            if (r->w.tokens[t - 1].verdict != OB_V_DELIVERED) {
                watched_submit(&r->w, t, 1, NULL);
                assert_true(watched_until_idle(&r->w));
            }
        watched_wait(&r->w, 100);
    }
    assert_int_equal(r->w.count[OB_V_DELIVERED], 60);
    assert_int_equal(r->w.count[OB_V_RETRY] + r->w.count[OB_V_REJECT], 0);
    for (uint64_t t = first; t < first + 60; t += 2)
        r->w.tokens[t - 1].verdicts = 0; /* the reader reads the usual place */
    contract_close_and_read(r);
}

const struct contract_case contract_outages[] = {
    {"outage before", outage_before},
    {"outage during", outage_during},
    {"outage after", outage_after},
    {"slow broker", slow_broker},
    {"a storm of reconnects", reconnect_storm},
    {"one destination blocked", one_destination_blocked},
    {0},
};
