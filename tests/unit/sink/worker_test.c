/* SPDX-License-Identifier: Apache-2.0 */
/* worker_test - order and give-back of the hidden threads, with a store that fails at will. */
#include "core/rand.h"
#include "harness.h"
#include "sink/worker.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define CAP 64
#define BATCH 8

/* Seen by the hidden threads; all under the lock. */
struct fake {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    uint64_t batch[OB_WORKER_BATCHES][BATCH];
    size_t n[OB_WORKER_BATCHES];
    uint64_t written[100000];
    size_t n_written;
    int committing, fail_next, fail_percent, probe_fails, probes, releases;
    int hold, held; /* in commit */
    int hold_release;
    struct ob_rand rand;
};

static void nap(long us)
{
    struct timespec ts = {.tv_nsec = us * 1000};
    nanosleep(&ts, NULL);
}

static enum ob_status prepare(void *user, unsigned batch, struct ob_worker_item *items, size_t *n,
                              struct ob_err *err)
{
    struct fake *f = user;
    (void)err;
    size_t i = 0;
    for (; i < *n && f->n[batch] < BATCH; i++) {
        f->batch[batch][f->n[batch]++] = items[i].token + (uint64_t)(items[i].msg->value.n * 0);
        items[i].verdict = OB_V_DELIVERED;
    }
    *n = i;
    return OB_OK;
}

static void discard(void *user, unsigned batch)
{
    struct fake *f = user;
    f->n[batch] = 0;
}

static enum ob_status commit(void *user, unsigned batch, struct ob_err *err)
{
    struct fake *f = user;
    enum ob_status st = OB_OK;
    pthread_mutex_lock(&f->lock);
    f->committing++;
    if (f->committing != 1)
        abort(); /* never two at once */
    f->held = f->hold;
    pthread_cond_broadcast(&f->cond);
    while (f->hold)
        pthread_cond_wait(&f->cond, &f->lock);
    f->held = 0;
    bool bad = f->fail_next > 0 || (int)ob_rand_below(&f->rand, 100) < f->fail_percent;
    if (f->fail_next > 0)
        f->fail_next--;
    long us = (long)ob_rand_below(&f->rand, 200);
    pthread_mutex_unlock(&f->lock);
    nap(us);
    pthread_mutex_lock(&f->lock);
    if (bad) {
        st = ob_err_set(err, OB_DOWN, "made to fail");
    } else {
        for (size_t i = 0; i < f->n[batch]; i++)
            f->written[f->n_written++] = f->batch[batch][i];
        f->n[batch] = 0;
    }
    f->committing--;
    pthread_mutex_unlock(&f->lock);
    return st;
}

static enum ob_status probe(void *user, struct ob_err *err)
{
    struct fake *f = user;
    pthread_mutex_lock(&f->lock);
    bool bad = f->probe_fails > 0;
    f->probe_fails -= bad;
    f->probes++;
    pthread_cond_broadcast(&f->cond);
    if (f->committing)
        abort();
    pthread_mutex_unlock(&f->lock);
    return bad ? ob_err_set(err, OB_DOWN, "still down") : OB_OK;
}

static void release(void *user)
{
    struct fake *f = user;
    pthread_mutex_lock(&f->lock);
    while (f->hold_release)
        pthread_cond_wait(&f->cond, &f->lock);
    f->releases++;
    pthread_mutex_unlock(&f->lock);
}

static const struct ob_worker_ops ops = {prepare, discard, commit, probe, release};

/* ---- a driver around it, so that it is watched like any sink ---- */

struct ob_sink {
    struct ob_worker *w;
};

static enum ob_status fake_open(const struct ob_sink_env *env, const void *conf,
                                struct ob_sink **out, struct ob_sink_caps *caps, struct ob_err *err)
{
    struct fake *f = *(struct fake *const *)conf;
    struct ob_sink *s = calloc(1, sizeof(*s));
    *caps = (struct ob_sink_caps){.ordered = true, .max_in_flight = CAP};
    *out = s;
    return ob_worker_open(env, &ops, f, CAP, &s->w, err);
}

static int fake_fd(const struct ob_sink *s)
{
    return ob_worker_fd(s->w);
}

static int64_t fake_wake_at(const struct ob_sink *s)
{
    (void)s;
    return INT64_MAX;
}

static enum ob_status fake_submit(struct ob_sink *s, const struct ob_msg *const *msgs,
                                  const uint64_t *tokens, size_t *n, struct ob_err *err)
{
    return ob_worker_submit(s->w, msgs, tokens, n, err);
}

static void fake_poll(struct ob_sink *s)
{
    ob_worker_poll(s->w);
}

static void fake_reset(struct ob_sink *s)
{
    ob_worker_reset(s->w);
}

static void fake_close(struct ob_sink *s, int grace_ms)
{
    ob_worker_close(s->w, grace_ms);
    free(s);
}

static const struct ob_sink_driver driver = {
    .name = "fake",
    .open = fake_open,
    .wait_fd = fake_fd,
    .wake_at = fake_wake_at,
    .submit = fake_submit,
    .poll = fake_poll,
    .reset = fake_reset,
    .close = fake_close,
};

static struct fake *fake_new(void)
{
    struct fake *f = calloc(1, sizeof(*f));
    assert_non_null(f);
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->cond, NULL);
    f->rand.state = 7;
    return f;
}

static void fake_free(struct fake *f)
{
    pthread_cond_destroy(&f->cond);
    pthread_mutex_destroy(&f->lock);
    free(f);
}

static void set(struct fake *f, int *what, int value)
{
    pthread_mutex_lock(&f->lock);
    *what = value;
    pthread_cond_broadcast(&f->cond);
    pthread_mutex_unlock(&f->lock);
}

static int get(struct fake *f, const int *what)
{
    pthread_mutex_lock(&f->lock);
    int value = *what;
    pthread_mutex_unlock(&f->lock);
    return value;
}

static void wait_held(struct fake *f)
{
    pthread_mutex_lock(&f->lock);
    while (!f->held)
        pthread_cond_wait(&f->cond, &f->lock);
    pthread_mutex_unlock(&f->lock);
}

/* ---- tests ---- */

/* Commits fail at random while more is submitted all the time and resets come in between: what was
 * written is 1, 2, 3, … without a gap, where a number may only be repeated after a failure. */
static void nothing_overtakes_a_failed_batch(void **state)
{
    (void)state;
    struct fake *f = fake_new();
    struct watched w;
    f->fail_percent = 20;
    watched_open(&w, &driver, &f);
    struct ob_rand r = {3};
    const size_t n = 3000;
    uint64_t first = watched_add_many(&w, n, 1);
    assert_int_equal(first, 1);
    uint64_t next = 1; /* the lowest that is neither under way nor delivered */
    int64_t since = ob_clock_mono_ms(&ob_clock_system);
    unsigned resets = 0;
    while (w.n_order < n) {
        assert_true(ob_clock_mono_ms(&ob_clock_system) - since < WAIT_MS);
        if (ob_clock_mono_ms(&ob_clock_system) - since > 3000)
            set(f, &f->fail_percent, 0); /* back-off makes failures slow; enough of them */
        while (next <= n && w.tokens[next - 1].verdicts > 0 &&
               w.tokens[next - 1].verdict == OB_V_DELIVERED)
            next++;
        uint64_t from = next;
        while (from <= n && w.tokens[from - 1].accepted)
            from++;
        size_t want = (size_t)ob_rand_below(&r, 40) + 1;
        if (from <= n)
            watched_submit(&w, from, want < n - from + 1 ? want : n - from + 1, NULL);
        if (ob_rand_below(&r, 200) == 0) {
            driver.reset(w.sink);
            resets++;
        }
        watched_wait(&w, (int)ob_rand_below(&r, 2));
    }
    assert_true(watched_until_idle(&w));
    driver.close(w.sink, 0);
    uint64_t last = 0;
    for (size_t i = 0; i < f->n_written; i++) {
        assert_true(f->written[i] <= last + 1); /* no gap: nothing in front is missing */
        last = f->written[i] > last ? f->written[i] : last;
    }
    assert_int_equal(last, n);
    assert_true(w.downs >= 2 && w.ups >= w.downs);
    assert_true(resets > 0);
    for (size_t i = 0; i < w.n_tokens; i++)
        message_free(w.tokens[i].m);
    free(w.tokens);
    free(w.order);
    fake_free(f);
}

/* The store is well again before anybody heard that it was not: what comes now must not pass those
 * that are on their way back. */
static void nothing_is_taken_before_the_failure_is_heard(void **state)
{
    (void)state;
    struct fake *f = fake_new();
    struct watched w;
    watched_open(&w, &driver, &f);
    assert_true(watched_until_state(&w, 1));
    int probes = get(f, &f->probes);
    set(f, &f->fail_next, 1);
    uint64_t first = watched_add_many(&w, 10, 1);
    assert_int_equal(watched_submit(&w, first, 5, NULL), 5);
    pthread_mutex_lock(&f->lock);
    while (f->probes == probes)
        pthread_cond_wait(&f->cond, &f->lock);
    pthread_mutex_unlock(&f->lock);
    for (int i = 0; i < 20; i++) { /* the result of the probe needs a moment to be known */
        enum ob_status st;
        assert_int_equal(watched_submit(&w, first + 5, 5, &st), 0);
        assert_int_equal(st, OB_DOWN);
        nap(1000);
    }
    assert_true(watched_until_idle(&w));
    assert_int_equal(w.count[OB_V_RETURNED], 5);
    assert_true(watched_deliver(&w, first, 10));
    watched_close(&w, 0);
    fake_free(f);
}

static void nothing_is_taken_while_a_reset_is_under_way(void **state)
{
    (void)state;
    struct fake *f = fake_new();
    struct watched w;
    watched_open(&w, &driver, &f);
    assert_true(watched_until_state(&w, 1));
    set(f, &f->hold_release, 1);
    driver.reset(w.sink);
    uint64_t first = watched_add_many(&w, 10, 1);
    enum ob_status st;
    assert_int_equal(watched_submit(&w, first, 10, &st), 0);
    assert_int_equal(st, OB_OK);
    set(f, &f->hold_release, 0);
    assert_true(watched_deliver(&w, first, 10));
    assert_int_equal(w.count[OB_V_RETURNED], 0);
    watched_close(&w, 0);
    fake_free(f);
}

static void what_was_submitted_meanwhile_is_one_batch(void **state)
{
    (void)state;
    struct fake *f = fake_new();
    struct watched w;
    watched_open(&w, &driver, &f);
    assert_true(watched_until_state(&w, 1));
    set(f, &f->hold, 1);
    uint64_t first = watched_add_many(&w, 7, 1);
    assert_int_equal(watched_submit(&w, first, 1, NULL), 1);
    wait_held(f);
    for (uint64_t t = first + 1; t < first + 7; t++) /* one by one, while the first is in commit */
        assert_int_equal(watched_submit(&w, t, 1, NULL), 1);
    assert_false(watched_wait(&w, 20)); /* no verdict before its commit */
    assert_int_equal(w.count[OB_V_DELIVERED], 0);
    set(f, &f->hold, 0);
    assert_true(watched_until_idle(&w));
    assert_int_equal(w.count[OB_V_DELIVERED], 7);
    watched_close(&w, 0);
    fake_free(f);
}

static void reset_waits_for_the_batch_in_commit(void **state)
{
    (void)state;
    struct fake *f = fake_new();
    struct watched w;
    watched_open(&w, &driver, &f);
    assert_true(watched_until_state(&w, 1));
    set(f, &f->hold, 1);
    uint64_t first = watched_add_many(&w, 30, 1);
    assert_int_equal(watched_submit(&w, first, 5, NULL), 5);
    wait_held(f);
    assert_int_equal(watched_submit(&w, first + 5, 20, NULL), 20);
    driver.reset(w.sink);
    assert_int_equal(watched_submit(&w, first + 25, 5, NULL), 0); /* would overtake */
    assert_false(watched_wait(&w, 30)); /* the first five may be written: nothing is said yet */
    assert_int_equal(get(f, &f->releases), 0);
    set(f, &f->hold, 0);
    assert_true(watched_until_idle(&w));
    assert_int_equal(w.count[OB_V_DELIVERED], 5);
    assert_int_equal(w.count[OB_V_RETURNED], 20);
    assert_int_equal(w.downs, 0);
    assert_int_equal(get(f, &f->releases), 1);
    assert_true(watched_deliver(&w, first, 30));
    assert_int_equal(w.count[OB_V_DELIVERED], 30);
    watched_close(&w, 0);
    fake_free(f);
}

static void down_until_the_probe_succeeds(void **state)
{
    (void)state;
    struct fake *f = fake_new();
    struct watched w;
    f->probe_fails = 1; /* down from the start */
    watched_open(&w, &driver, &f);
    assert_true(watched_until_state(&w, -1));
    assert_string_equal(w.why, "still down");
    uint64_t first = watched_add_many(&w, 20, 1);
    enum ob_status st;
    size_t taken = watched_submit(&w, first, 20, &st);
    assert_true((taken == 0 && st == OB_DOWN) || w.state == 1);
    assert_true(watched_until_state(&w, 1));
    set(f, &f->fail_next, 1);
    set(f, &f->probe_fails, 2);
    assert_int_equal(watched_submit(&w, first, 20, &st), 20);
    assert_true(watched_until_idle(&w));
    assert_int_equal(w.count[OB_V_RETURNED], 20);
    assert_int_equal(w.state, -1);
    assert_int_equal(watched_submit(&w, first, 20, &st), 0);
    assert_int_equal(st, OB_DOWN);
    assert_true(watched_until_state(&w, 1)); /* by itself */
    assert_true(watched_deliver(&w, first, 20));
    assert_int_equal(w.downs, 2);
    watched_close(&w, 0);
    fake_free(f);
}

static void close_commits_what_is_queued_within_its_grace(void **state)
{
    (void)state;
    struct fake *f = fake_new();
    struct watched w;
    watched_open(&w, &driver, &f);
    uint64_t first = watched_add_many(&w, 60, 1);
    assert_int_equal(watched_submit(&w, first, 60, NULL), 60);
    watched_close(&w, WAIT_MS);
    assert_int_equal(f->n_written, 60);
    fake_free(f);

    f = fake_new(); /* down: nothing to wait for */
    f->probe_fails = 1000000;
    watched_open(&w, &driver, &f);
    assert_true(watched_until_state(&w, -1));
    int64_t since = ob_clock_mono_ms(&ob_clock_system);
    watched_close(&w, WAIT_MS);
    assert_true(ob_clock_mono_ms(&ob_clock_system) - since < WAIT_MS / 2);
    fake_free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_overtakes_a_failed_batch),
        cmocka_unit_test(nothing_is_taken_before_the_failure_is_heard),
        cmocka_unit_test(nothing_is_taken_while_a_reset_is_under_way),
        cmocka_unit_test(what_was_submitted_meanwhile_is_one_batch),
        cmocka_unit_test(reset_waits_for_the_batch_in_commit),
        cmocka_unit_test(down_until_the_probe_succeeds),
        cmocka_unit_test(close_commits_what_is_queued_within_its_grace),
    };
    return cmocka_run_group_tests_name("worker", tests, NULL, NULL);
}
