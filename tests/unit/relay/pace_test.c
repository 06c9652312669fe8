/* SPDX-License-Identifier: Apache-2.0 */
/* pace_test - a source that gives its events in crumbs is left alone for a millisecond at a time,
 * and no other one is. Time is made by the test: a steady stream of events, claimed as soon as the
 * pace allows. */
#include "relay/pace.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define PAGE 1000
#define RUN_MS 2000
#define LOOKS 50 /* so often a millisecond the relay could look */

struct stream {
    const char *name;
    size_t per_ms;   /* events that come in a millisecond */
    size_t together; /* so many at once; else one by one */
    size_t from, to; /* events of a claim, on the average, behind the first 100 ms */
    bool paused;     /* are there pauses in the end? */
};

static const struct stream streams[] = {
    {"a trickle: each event is claimed when it comes", 1, 1, 1, 1, false},
    {"two a millisecond", 2, 1, 1, 1, false},
    {"ten a millisecond, one by one: gathered", 10, 1, 8, 12, true},
    {"forty a millisecond, one by one: gathered", 40, 1, 32, 44, true},
    {"as many in large transactions: pages are large already", 600, 600, 600, 600, false},
    {"pages that are more than half full, ten a millisecond", 6000, 600, 600, 600, false},
};

/* Events that came up to a look are claimed by it. */
static void run(const struct stream *f)
{
    struct ob_pace p = {0};
    size_t waiting = 0, claims = 0, events = 0, come = 0;
    bool paused = false;
    for (int64_t ms = 1; ms <= RUN_MS; ms++) {
        for (size_t look = 0; look < LOOKS; look++) {
            size_t due = (size_t)(ms - 1) * f->per_ms + f->per_ms * (look + 1) / LOOKS;
            due -= due % f->together;
            waiting += due - come;
            come = due;
            if (waiting == 0 || ms < p.until)
                continue;
            ob_pace_note(&p, ms, waiting, PAGE);
            if (ms > 100) {
                claims++;
                events += waiting;
                paused = p.until > ms;
            }
            waiting = 0;
        }
    }
    size_t mean = events / claims;
    if (mean < f->from || mean > f->to || paused != f->paused)
        fail_msg("%s: %zu events a claim, %s", f->name, mean, paused ? "paused" : "not paused");
}

static void only_crumbs_are_gathered(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(streams) / sizeof(streams[0]); i++)
        run(&streams[i]);
}

/* It ends when it is no use: a stream that has become a trickle is read at once again. */
static void it_ends_when_it_is_no_use(void **state)
{
    struct ob_pace p = {0};
    (void)state;
    for (int64_t ms = 1; ms < 20; ms++)
        for (int i = 0; i < 5; i++)
            ob_pace_note(&p, ms, 1, PAGE);
    assert_true(p.on);
    assert_int_equal(p.until, 20);
    for (int64_t ms = 21; ms <= 60; ms += 2)
        ob_pace_note(&p, ms, 1, PAGE);
    assert_false(p.on);
    assert_int_equal(p.until, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_crumbs_are_gathered),
        cmocka_unit_test(it_ends_when_it_is_no_use),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
