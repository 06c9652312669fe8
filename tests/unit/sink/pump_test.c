/* SPDX-License-Identifier: Apache-2.0 */
/* pump_test - the queue and the thread behind it, with a broker that does what the test says. */
#include "harness.h"
#include "sink/pump.h"

#include <pthread.h>
#include <stdlib.h>

#define CAP 8

static struct {
    pthread_mutex_t lock;
    struct ob_pump *pump;
    uint64_t sent[4096];
    uint64_t number[4096];
    size_t n_sent, room;      /* of what may be sent */
    bool refuse, lose, fence; /* no connection; the next turn loses it */
    bool answer;              /* each is delivered as it is sent */
    unsigned connects;
} broker = {.lock = PTHREAD_MUTEX_INITIALIZER};

static enum ob_status connect_op(void *user, struct ob_err *err)
{
    (void)user;
    pthread_mutex_lock(&broker.lock);
    bool refuse = broker.refuse;
    broker.connects += !refuse;
    pthread_mutex_unlock(&broker.lock);
    return refuse ? ob_err_set(err, OB_DOWN, "refused") : OB_OK;
}

static void disconnect_op(void *user)
{
    (void)user;
}

static enum ob_status send_op(void *user, uint64_t ticket, const struct ob_msg *m,
                              struct ob_err *err)
{
    (void)user;
    (void)err;
    enum ob_status st = OB_AGAIN;
    pthread_mutex_lock(&broker.lock);
    if (broker.room > 0) {
        broker.room--;
        broker.sent[broker.n_sent] = ticket;
        broker.number[broker.n_sent++] = strtoull(m->id.p + 3, NULL, 10);
        st = OB_OK;
    }
    bool answer = st == OB_OK && broker.answer;
    pthread_mutex_unlock(&broker.lock);
    if (answer)
        ob_pump_done(broker.pump, ticket, OB_V_DELIVERED, NULL);
    return st;
}

static enum ob_status turn_op(void *user, struct ob_err *err)
{
    (void)user;
    pthread_mutex_lock(&broker.lock);
    bool lose = broker.lose, fence = broker.fence;
    broker.lose = broker.fence = false;
    pthread_mutex_unlock(&broker.lock);
    if (fence)
        ob_pump_fence(broker.pump, "behind");
    return lose ? ob_err_set(err, OB_DOWN, "lost") : OB_OK;
}

static void wait_op(void *user, struct pollfd *fd, int64_t *until_ms)
{
    (void)user;
    (void)fd;
    *until_ms = ob_pump_now_ms() + 5;
}

static const struct ob_pump_ops ops = {connect_op, disconnect_op, send_op,
                                       turn_op,    wait_op,       OB_PUMP_HAND};

/* A driver around the pump, so that the harness can watch it. */
static enum ob_status open_sink(const struct ob_sink_env *env, const void *conf,
                                struct ob_sink **out, struct ob_sink_caps *caps, struct ob_err *err)
{
    (void)conf;
    enum ob_status st = ob_pump_open(env, &ops, &broker, CAP, &broker.pump, err);
    *caps = (struct ob_sink_caps){.max_in_flight = CAP};
    *out = (struct ob_sink *)broker.pump;
    return st;
}

static int wait_fd(const struct ob_sink *s)
{
    return ob_pump_fd((const struct ob_pump *)s);
}

static int64_t wake_at(const struct ob_sink *s)
{
    (void)s;
    return INT64_MAX;
}

static enum ob_status submit(struct ob_sink *s, const struct ob_msg *const *msgs,
                             const uint64_t *tokens, size_t *n, struct ob_err *err)
{
    return ob_pump_submit((struct ob_pump *)s, msgs, tokens, n, err);
}

static void poll_sink(struct ob_sink *s)
{
    ob_pump_poll((struct ob_pump *)s);
}

static void cancel(struct ob_sink *s, uint64_t token)
{
    ob_pump_cancel((struct ob_pump *)s, token);
}

static void reset(struct ob_sink *s)
{
    ob_pump_reset((struct ob_pump *)s);
}

static void close_sink(struct ob_sink *s, int grace_ms)
{
    ob_pump_close((struct ob_pump *)s, grace_ms);
}

static const struct ob_sink_driver driver = {.name = "pump",
                                             .open = open_sink,
                                             .wait_fd = wait_fd,
                                             .wake_at = wake_at,
                                             .submit = submit,
                                             .poll = poll_sink,
                                             .cancel = cancel,
                                             .reset = reset,
                                             .close = close_sink};

static void begin(struct watched *w, size_t room, bool answer)
{
    pthread_mutex_lock(&broker.lock);
    broker.n_sent = 0;
    broker.room = room;
    broker.answer = answer;
    broker.refuse = broker.lose = false;
    broker.connects = 0;
    pthread_mutex_unlock(&broker.lock);
    watched_open(w, &driver, NULL);
}

static void give_room(size_t n, bool answer)
{
    pthread_mutex_lock(&broker.lock);
    broker.room = n;
    broker.answer = answer;
    pthread_mutex_unlock(&broker.lock);
}

static size_t sent(void)
{
    pthread_mutex_lock(&broker.lock);
    size_t n = broker.n_sent;
    pthread_mutex_unlock(&broker.lock);
    return n;
}

static void until_sent(struct watched *w, size_t n)
{
    for (int i = 0; i < WAIT_MS && sent() < n; i++)
        watched_wait(w, 1);
    assert_int_equal(sent(), n);
}

static void verdicts_come_in_any_order(void **state)
{
    (void)state;
    struct watched w;
    begin(&w, 100, false);
    uint64_t first = watched_add_many(&w, 4, 1);
    assert_int_equal(watched_submit(&w, first, 4, NULL), 4);
    until_sent(&w, 4);
    assert_true(ob_pump_done(broker.pump, broker.sent[3], OB_V_DELIVERED, NULL));
    assert_true(ob_pump_done(broker.pump, broker.sent[0], OB_V_REJECT, "too bad"));
    assert_true(ob_pump_done(broker.pump, broker.sent[2], OB_V_BLOCKED, "full"));
    assert_false(ob_pump_done(broker.pump, broker.sent[2], OB_V_DELIVERED, NULL)); /* is over */
    assert_true(ob_pump_done(broker.pump, broker.sent[1], OB_V_DELIVERED, NULL));
    assert_true(watched_until_idle(&w));
    static const enum ob_verdict want[] = {OB_V_REJECT, OB_V_DELIVERED, OB_V_BLOCKED,
                                           OB_V_DELIVERED};
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(w.tokens[i].verdict, want[i]);
    watched_close(&w, 0);
}

static void what_is_given_back_is_not_overtaken(void **state)
{
    (void)state;
    struct watched w;
    begin(&w, 3, false); /* three are sent, the rest waits in the thread's hand */
    uint64_t first = watched_add_many(&w, CAP, 1);
    assert_int_equal(watched_submit(&w, first, CAP, NULL), CAP);
    until_sent(&w, 3);
    pthread_mutex_lock(&broker.lock);
    broker.lose = broker.refuse = true;
    pthread_mutex_unlock(&broker.lock);
    uint64_t more = watched_add_many(&w, 1, 1);
    assert_true(watched_until_state(&w, -1));
    assert_int_equal(w.in_flight, 0);
    assert_int_equal(w.count[OB_V_RETURNED], CAP);
    enum ob_status st;
    assert_int_equal(watched_submit(&w, more, 1, &st), 0);
    assert_int_equal(st, OB_DOWN);
    pthread_mutex_lock(&broker.lock);
    broker.refuse = false;
    broker.room = 100;
    broker.answer = true;
    pthread_mutex_unlock(&broker.lock);
    assert_true(watched_until_state(&w, 1));
    assert_true(watched_deliver(&w, first, CAP + 1));
    for (size_t i = 0; i < CAP + 1; i++)
        assert_int_equal(broker.number[3 + i], i);
    watched_close(&w, 0);
}

/* What is in flight stays so; the rest comes back in order before anything new is taken. */
static void a_fence_gives_back_what_was_not_sent(void **state)
{
    (void)state;
    struct watched w;
    begin(&w, 3, false); /* three are sent, the rest waits in the thread's hand */
    uint64_t first = watched_add_many(&w, CAP, 1);
    assert_int_equal(watched_submit(&w, first, CAP, NULL), CAP);
    until_sent(&w, 3);
    pthread_mutex_lock(&broker.lock);
    broker.fence = true;
    pthread_mutex_unlock(&broker.lock);
    for (int i = 0; i < 2000 && w.count[OB_V_RETURNED] == 0; i++)
        watched_wait(&w, 10);
    assert_int_equal(w.count[OB_V_RETURNED], CAP - 3);
    assert_int_equal(w.in_flight, 3);
    for (size_t i = 0; i < 3; i++)
        assert_true(ob_pump_done(broker.pump, broker.sent[i], OB_V_DELIVERED, NULL));
    give_room(100, true);
    assert_true(watched_deliver(&w, first + 3, CAP - 3));
    for (size_t i = 0; i < CAP; i++)
        assert_int_equal(broker.number[i], i);
    watched_close(&w, 0);
}

static void a_cancelled_one_is_over_and_its_late_answer_is_nobodys(void **state)
{
    (void)state;
    struct watched w;
    begin(&w, 1, false); /* one is sent, one in the hand */
    uint64_t first = watched_add_many(&w, 2, 1);
    assert_int_equal(watched_submit(&w, first, 2, NULL), 2);
    until_sent(&w, 1);
    uint64_t late = broker.sent[0];
    w.driver->cancel(w.sink, first);
    w.driver->cancel(w.sink, first + 1);
    assert_true(watched_until_idle(&w));
    assert_int_equal(w.count[OB_V_RETRY], 2);
    assert_false(ob_pump_done(broker.pump, late, OB_V_DELIVERED, NULL));
    give_room(100, true);
    uint64_t next = watched_add_many(&w, CAP, 1);
    assert_true(watched_deliver(&w, next, CAP));
    assert_int_equal(sent(), 1 + CAP); /* what was cancelled in the hand was never sent */
    watched_close(&w, 0);
}

static void held_is_down_and_keeps_what_is_in_flight(void **state)
{
    (void)state;
    struct watched w;
    begin(&w, 100, false);
    uint64_t first = watched_add_many(&w, 3, 1);
    assert_int_equal(watched_submit(&w, first, 2, NULL), 2);
    until_sent(&w, 2);
    struct ob_err why;
    ob_err_set(&why, OB_DOWN, "blocked: memory");
    ob_pump_hold(broker.pump, &why);
    assert_true(watched_until_state(&w, -1));
    assert_string_equal(w.why, "blocked: memory");
    assert_int_equal(w.in_flight, 2);
    enum ob_status st;
    assert_int_equal(watched_submit(&w, first + 2, 1, &st), 0);
    assert_int_equal(st, OB_DOWN);
    ob_pump_done(broker.pump, broker.sent[0], OB_V_DELIVERED, NULL);
    ob_pump_unhold(broker.pump);
    assert_true(watched_until_state(&w, 1));
    ob_pump_done(broker.pump, broker.sent[1], OB_V_DELIVERED, NULL);
    give_room(100, true);
    assert_true(watched_deliver(&w, first + 2, 1));
    assert_int_equal(w.count[OB_V_RETURNED], 0);
    assert_int_equal(broker.connects, 1);
    watched_close(&w, 0);
}

static void a_reset_while_held_gives_back_and_connects_anew(void **state)
{
    (void)state;
    struct watched w;
    begin(&w, 100, false);
    uint64_t first = watched_add_many(&w, 3, 1);
    assert_int_equal(watched_submit(&w, first, 3, NULL), 3);
    until_sent(&w, 3);
    struct ob_err why;
    ob_err_set(&why, OB_DOWN, "blocked");
    ob_pump_hold(broker.pump, &why);
    assert_true(watched_until_state(&w, -1));
    w.driver->reset(w.sink);
    assert_true(watched_until_state(&w, 1));
    assert_int_equal(w.count[OB_V_RETURNED], 3);
    give_room(100, true);
    assert_true(watched_deliver(&w, first, 3));
    assert_int_equal(broker.connects, 2);
    watched_close(&w, 0);
}

static void close_waits_for_what_is_under_way(void **state)
{
    (void)state;
    struct watched w;
    begin(&w, 0, true);
    uint64_t first = watched_add_many(&w, 3, 1);
    assert_int_equal(watched_submit(&w, first, 3, NULL), 3);
    give_room(100, true);
    watched_close(&w, WAIT_MS);
    assert_int_equal(sent(), 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(verdicts_come_in_any_order),
        cmocka_unit_test(what_is_given_back_is_not_overtaken),
        cmocka_unit_test(a_fence_gives_back_what_was_not_sent),
        cmocka_unit_test(a_cancelled_one_is_over_and_its_late_answer_is_nobodys),
        cmocka_unit_test(held_is_down_and_keeps_what_is_in_flight),
        cmocka_unit_test(a_reset_while_held_gives_back_and_connects_anew),
        cmocka_unit_test(close_waits_for_what_is_under_way),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
