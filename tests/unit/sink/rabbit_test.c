/* SPDX-License-Identifier: Apache-2.0 */
/* rabbit_test - confirms of a broker that the test plays: which message each one belongs to. */
#include "harness.h"
#include "sink/rabbitmq/rabbit.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#define N 16

static struct ob_sink_rabbit_conf conf = {.url = "amqp://x", .window = N};
static struct ob_sink *rabbit;
static uint64_t published;

static enum ob_status connect_op(void *user, struct ob_err *err)
{
    (void)user;
    (void)err;
    return OB_OK;
}

static void disconnect_op(void *user)
{
    (void)user;
}

/* Like a publish, without a socket. */
static enum ob_status send_op(void *user, uint64_t ticket, const struct ob_msg *m,
                              struct ob_err *err)
{
    (void)err;
    const struct rabbit_sent one = {
        .ticket = ticket, .dest = m->dest_hash, .id_hash = ob_rabbit_hash(m->id)};
    ob_rabbit_sent_add(user, &one);
    __atomic_add_fetch(&published, 1, __ATOMIC_SEQ_CST);
    return OB_OK;
}

static enum ob_status turn_op(void *user, struct ob_err *err)
{
    (void)user;
    (void)err;
    return OB_OK;
}

static void wait_op(void *user, struct pollfd *fd, int64_t *until_ms)
{
    (void)user;
    (void)fd;
    (void)until_ms;
}

static const struct ob_pump_ops ops = {connect_op, disconnect_op, send_op,
                                       turn_op,    wait_op,       OB_PUMP_HAND};

static enum ob_status open_sink(const struct ob_sink_env *env, const void *c, struct ob_sink **out,
                                struct ob_sink_caps *caps, struct ob_err *err)
{
    (void)c;
    rabbit = calloc(1, sizeof(*rabbit));
    assert_non_null(rabbit);
    rabbit->conf = &conf;
    published = 0;
    assert_int_equal(ob_rabbit_sent_init(rabbit, N, err), OB_OK);
    *caps = (struct ob_sink_caps){.max_in_flight = N};
    *out = rabbit;
    return ob_pump_open(env, &ops, rabbit, N, &rabbit->pump, err);
}

static void close_sink(struct ob_sink *s, int grace_ms)
{
    ob_pump_close(s->pump, grace_ms);
    ob_rabbit_sent_clear(s);
    free(s);
}

static int wait_fd(const struct ob_sink *s)
{
    return ob_pump_fd(s->pump);
}

static int64_t wake_at(const struct ob_sink *s)
{
    (void)s;
    return INT64_MAX;
}

static enum ob_status submit(struct ob_sink *s, const struct ob_msg *const *msgs,
                             const uint64_t *tokens, size_t *n, struct ob_err *err)
{
    return ob_pump_submit(s->pump, msgs, tokens, n, err);
}

static void poll_sink(struct ob_sink *s)
{
    ob_pump_poll(s->pump);
}

static void cancel(struct ob_sink *s, uint64_t token)
{
    ob_pump_cancel(s->pump, token);
}

static const struct ob_sink_driver driver = {.name = "rabbit",
                                             .open = open_sink,
                                             .wait_fd = wait_fd,
                                             .wake_at = wake_at,
                                             .submit = submit,
                                             .poll = poll_sink,
                                             .cancel = cancel,
                                             .close = close_sink};

/* New ones: the first of them, when all are sent. */
static uint64_t publish(struct watched *w, size_t n)
{
    uint64_t want = published + n, first = watched_add_many(w, n, 1);
    assert_int_equal(watched_submit(w, first, n, NULL), n);
    for (int i = 0; i < WAIT_MS && __atomic_load_n(&published, __ATOMIC_SEQ_CST) < want; i++)
        watched_wait(w, 1);
    assert_int_equal(__atomic_load_n(&published, __ATOMIC_SEQ_CST), want);
    return first;
}

static void begin(struct watched *w, size_t n)
{
    watched_open(w, &driver, NULL);
    publish(w, n);
}

/* What each of the messages became: d elivered, b locked, t ried again, - nothing yet. */
static void expect(struct watched *w, const char *want)
{
    static const char letters[] = "dtxb";
    while (watched_wait(w, 20))
        continue;
    for (size_t i = 0; want[i]; i++) {
        char got = w->tokens[i].verdicts ? letters[w->tokens[i].verdict] : '-';
        if (got != want[i])
            fail_msg("message %zu: %c, wanted %c", i, got, want[i]);
    }
}

/* As a turn does that finds this frame alone. */
static void confirm(uint64_t tag, bool multiple, bool ok)
{
    ob_rabbit_confirm(rabbit, tag, multiple, ok);
    ob_rabbit_tell(rabbit);
}

static void confirms_come_multiple_and_out_of_order(void **state)
{
    (void)state;
    struct watched w;
    begin(&w, 8);
    confirm(5, false, true);
    expect(&w, "----d---");
    confirm(3, true, true);
    expect(&w, "ddd-d---");
    confirm(3, true, true); /* again, and one that was never sent */
    confirm(99, false, true);
    expect(&w, "ddd-d---");
    confirm(7, true, true);
    expect(&w, "ddddddd-");
    confirm(0, true, true); /* all */
    expect(&w, "dddddddd");
    watched_close(&w, 0);
}

static void a_nack_is_blocked_unless_a_later_one_was_taken(void **state)
{
    (void)state;
    struct watched w;
    begin(&w, 6);
    confirm(4, false, true);
    confirm(2, false, false); /* 4, of the same key, was taken: it is this one */
    confirm(6, false, false); /* nothing behind it was taken */
    expect(&w, "-t-d-b");
    confirm(6, true, true);
    expect(&w, "dtdddb");
    watched_close(&w, 0);
}

static enum ob_verdict verdict_of(const struct watched *w, uint64_t token)
{
    assert_int_equal(w->tokens[token - 1].verdicts, 1);
    return w->tokens[token - 1].verdict;
}

/* Until so many of them have a verdict. */
static void until_over(struct watched *w, uint64_t first, size_t n)
{
    size_t over = 0;
    for (int i = 0; i < WAIT_MS && over < n; i++) {
        watched_wait(w, 1);
        over = 0;
        for (size_t k = 0; k < n; k++)
            over += w->tokens[first - 1 + k].verdicts;
    }
    assert_int_equal(over, n);
}

/* Others are published and confirmed until the ring has come round so often. */
static void go_round(struct watched *w, size_t times)
{
    for (uint64_t i = 0; i < times * rabbit->n_sent; i++) {
        uint64_t token = publish(w, 1);
        confirm(rabbit->next - 1, false, true);
        until_over(w, token, 1);
        assert_int_equal(verdict_of(w, token), OB_V_DELIVERED);
    }
}

/* Ring after ring is published while all but one of the window wait for confirms. These come in the
 * end, each to its own: one, one that was refused, and the rest together. */
static void confirms_that_are_late_find_their_messages(void **state)
{
    (void)state;
    struct watched w;
    begin(&w, N - 1);
    go_round(&w, 5);
    expect(&w, "---------------");
    snprintf(rabbit->return_text, sizeof(rabbit->return_text), "nobody wants it");
    ob_rabbit_returned(rabbit, ob_rabbit_bytes(w.tokens[3].m->msg.id));
    confirm(2, false, true);
    confirm(9, false, false);
    expect(&w, "-d------t------");
    confirm(4, true, true);
    expect(&w, "dddx----t------");
    confirm(0, true, true);
    expect(&w, "dddxddddtdddddd");
    watched_close(&w, 0);
}

/* Messages that are given up one after the other leave nothing behind, however many. */
static void what_is_cancelled_makes_place(void **state)
{
    (void)state;
    struct watched w;
    begin(&w, 1);
    uint64_t tag = 0, given_up = 0;
    for (uint64_t i = 0; i < 3 * rabbit->n_sent; i++) {
        given_up = publish(&w, 4);
        tag = rabbit->next - 4;
        for (uint64_t k = 0; k < 4; k++)
            w.driver->cancel(w.sink, given_up + k);
        until_over(&w, given_up, 4);
        assert_true(rabbit->n_late <= N);
    }
    uint64_t token = publish(&w, 1);
    confirm(rabbit->next - 1, false, true);
    confirm(tag, false, true); /* nobody's any more */
    until_over(&w, token, 1);
    assert_int_equal(verdict_of(&w, token), OB_V_DELIVERED);
    assert_int_equal(verdict_of(&w, given_up), OB_V_RETRY);
    confirm(1, false, true); /* the first of all was waited for */
    expect(&w, "d");
    watched_close(&w, 0);
}

/* Those that are given up when they were late already, too. */
static void what_is_late_and_cancelled_makes_place(void **state)
{
    (void)state;
    struct watched w;
    begin(&w, N - 1);
    go_round(&w, 2);
    for (uint64_t token = 1; token < N; token++)
        w.driver->cancel(w.sink, token);
    until_over(&w, 1, N - 1);
    uint64_t tag = rabbit->next, first = publish(&w, N - 1);
    go_round(&w, 2);
    for (uint64_t i = 0; i < N - 1; i++)
        confirm(tag + i, false, true);
    until_over(&w, first, N - 1);
    for (uint64_t i = 0; i < N - 1; i++)
        assert_int_equal(verdict_of(&w, first + i), OB_V_DELIVERED);
    watched_close(&w, 0);
}

static void exchanges_are_known_until_they_are_forgotten(void **state)
{
    (void)state;
    struct rabbit_known k = {0};
    assert_false(ob_rabbit_knows(&k, 7));
    for (uint64_t i = 0; i < 1000; i++)
        ob_rabbit_learn(&k, (i * 37 % 1000 + 1) * 64); /* in no order, and all the same modulo 64 */
    ob_rabbit_learn(&k, 64);
    assert_int_equal(k.n, 1000);
    for (uint64_t i = 1; i <= 1000; i++)
        assert_true(ob_rabbit_knows(&k, i * 64) && !ob_rabbit_knows(&k, i * 64 + 1));
    for (uint64_t i = 1; i <= 1000; i += 2)
        ob_rabbit_forget(&k, i * 64);
    ob_rabbit_forget(&k, 65);
    for (uint64_t i = 1; i <= 1000; i++)
        assert_int_equal(ob_rabbit_knows(&k, i * 64), i % 2 == 0);
    for (uint64_t i = 1; i < 200000; i++)
        ob_rabbit_learn(&k, i * 3);
    assert_true(k.cap <= 65536 && ob_rabbit_knows(&k, 199999 * 3));
    free(k.hashes);
}

/* What was sent behind the last question, before its answer came, is still a suspect; and an answer
 * that is not the last says nothing. */
static void an_answer_clears_what_stood_before_its_question(void **state)
{
    (void)state;
    struct watched w;
    begin(&w, 2);
    rabbit->asked = 2;
    rabbit->asked_tag = 2;
    publish(&w, 1);
    ob_rabbit_outlived(rabbit);
    assert_false(ob_rabbit_sent_at(rabbit, 1)->cleared);
    ob_rabbit_outlived(rabbit);
    assert_true(ob_rabbit_sent_at(rabbit, 1)->cleared && ob_rabbit_sent_at(rabbit, 2)->cleared);
    assert_false(ob_rabbit_sent_at(rabbit, 3)->cleared);
    watched_close(&w, 0);
}

/* Two returns, then one confirm for both: each has its own reason. */
static void a_return_has_its_own_reason(void **state)
{
    (void)state;
    struct watched w;
    begin(&w, 3);
    for (size_t i = 0; i < 2; i++) {
        snprintf(rabbit->return_text, sizeof(rabbit->return_text), "nobody wants %zu", i);
        ob_rabbit_returned(rabbit, ob_rabbit_bytes(w.tokens[i].m->msg.id));
    }
    confirm(1, true, true);
    expect(&w, "x--");
    assert_non_null(strstr(w.reason, "nobody wants 0"));
    confirm(3, true, true);
    expect(&w, "xxd");
    assert_non_null(strstr(w.reason, "nobody wants 1"));
    watched_close(&w, 0);
}

/* Lines of the log that contain a text. */
static size_t logged(int fd, const char *text)
{
    static char lines[1 << 20];
    size_t n = 0;
    ssize_t got = pread(fd, lines, sizeof(lines) - 1, 0);
    assert_true(got >= 0);
    lines[got] = '\0';
    for (const char *p = lines; (p = strstr(p, text)); p++)
        n++;
    return n;
}

static void nobody_takes(uint64_t dest, const char *name)
{
    struct rabbit_sent *e = &rabbit->sent[1];
    e->dest = dest;
    e->id_hash = ob_rabbit_hash(OB_STR("x"));
    e->returned = false;
    snprintf(rabbit->return_text, sizeof(rabbit->return_text), "nobody takes %s.", name);
    ob_rabbit_returned(rabbit, ob_rabbit_bytes(OB_STR("x")));
}

/* `unroutable: deliver`: two routing keys whose hashes share a place are named once each however
 * they alternate; when there are too many, that is said once. */
static void each_unroutable_key_is_named_once(void **state)
{
    (void)state;
    FILE *file = tmpfile();
    assert_non_null(file);
    struct ob_log log = {.fd = fileno(file), .level = OB_LOG_INFO, .shard = -1};
    struct watched w;
    char name[32];
    begin(&w, 1);
    rabbit->env.log = &log;
    conf.unroutable = OB_RABBIT_DELIVER;
    for (unsigned i = 0; i < 20; i++) {
        nobody_takes(5, "five");
        nobody_takes(5 + RABBIT_SEEN, "another");
        nobody_takes(6, "six");
    }
    assert_int_equal(logged(log.fd, "nobody takes five."), 1);
    assert_int_equal(logged(log.fd, "nobody takes another."), 1);
    assert_int_equal(logged(log.fd, "nobody takes six."), 1);
    for (unsigned round = 0; round < 2; round++)
        for (unsigned i = 0; i < 2 * RABBIT_SEEN; i++) {
            snprintf(name, sizeof(name), "key-%u", i);
            nobody_takes(1000000 + i * 7, name);
        }
    assert_int_equal(logged(log.fd, "sink.rabbitmq.unroutable"), RABBIT_SEEN / 2 + 1);
    assert_int_equal(logged(log.fd, "no more are named"), 1);
    assert_int_equal(logged(log.fd, "nobody takes key-1."), 1);
    confirm(1, false, true); /* it is delivered, and told apart */
    conf.unroutable = OB_RABBIT_REJECT;
    expect(&w, "d");
    assert_int_equal(w.to_nobody, 1);
    watched_close(&w, 0);
    fclose(file);
}

/* Only a mistake in the configuration is fatal; what may pass is tried again. */
static void open_tells_a_mistake_from_a_shortage(void **state)
{
    (void)state;
    static const struct {
        const char *name, *url, *cert;
        rlim_t files; /* 0: as many as usual */
        enum ob_status want;
        const char *text;
    } rows[] = {
        {"no host", "", NULL, 0, OB_FATAL, "url"},
        {"not a url", "http://h/", NULL, 0, OB_FATAL, "url"},
        {"an '@' in the password", "amqp://u:p@ss@h/", NULL, 0, OB_FATAL, "%40"},
        {"certificate without key", "amqps://h/", "c.pem", 0, OB_FATAL, "cert and key"},
        {"no file descriptor", "amqp://127.0.0.1:1/", NULL, 3, OB_DOWN, "Too many open files"},
        {"nobody listens", "amqp://127.0.0.1:1/", NULL, 0, OB_OK, ""},
    };
    struct rlimit usual, few;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &usual), 0);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct ob_sink_rabbit_conf c = {
            .url = rows[i].url, .cert = rows[i].cert, .window = N, .connect_timeout_ms = 1000};
        struct ob_sink *sink = NULL;
        struct ob_sink_caps caps;
        struct ob_err err = {.text = ""};
        struct ob_sink_env env = {.pipeline = "p", .shards = 1};
        few = usual;
        few.rlim_cur = rows[i].files ? rows[i].files : usual.rlim_cur;
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
        enum ob_status st = ob_sink_rabbitmq.open(&env, &c, &sink, &caps, &err);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &usual), 0);
        if (st != rows[i].want || !strstr(err.text, rows[i].text))
            fail_msg("%s: %s, %s", rows[i].name, ob_status_name(st), err.text);
        ob_sink_rabbitmq.close(sink, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(confirms_come_multiple_and_out_of_order),
        cmocka_unit_test(a_nack_is_blocked_unless_a_later_one_was_taken),
        cmocka_unit_test(confirms_that_are_late_find_their_messages),
        cmocka_unit_test(what_is_cancelled_makes_place),
        cmocka_unit_test(what_is_late_and_cancelled_makes_place),
        cmocka_unit_test(exchanges_are_known_until_they_are_forgotten),
        cmocka_unit_test(an_answer_clears_what_stood_before_its_question),
        cmocka_unit_test(a_return_has_its_own_reason),
        cmocka_unit_test(each_unroutable_key_is_named_once),
        cmocka_unit_test(open_tells_a_mistake_from_a_shortage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
