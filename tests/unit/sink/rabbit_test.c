/* SPDX-License-Identifier: Apache-2.0 */
/* rabbit_test - confirms of a broker that the test plays: which message each one belongs to. */
#include "harness.h"
#include "sink/rabbitmq/rabbit.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define N 16

static struct ob_sink_rabbit_conf conf = {.url = "amqp://x", .window = N};
static struct ob_sink *rabbit;

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
    struct ob_sink *s = user;
    s->sent[s->next & (s->n_sent - 1)] = (struct rabbit_sent){.tag = s->next,
                                                              .ticket = ticket,
                                                              .dest = m->dest_hash,
                                                              .id_hash = ob_rabbit_hash(m->id),
                                                              .live = true};
    __atomic_add_fetch(&s->next, 1, __ATOMIC_SEQ_CST);
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
    rabbit->n_sent = 64;
    rabbit->sent = calloc(64, sizeof(*rabbit->sent));
    rabbit->low = rabbit->next = 1;
    *caps = (struct ob_sink_caps){.max_in_flight = N};
    *out = rabbit;
    return ob_pump_open(env, &ops, rabbit, N, &rabbit->pump, err);
}

static void close_sink(struct ob_sink *s, int grace_ms)
{
    ob_pump_close(s->pump, grace_ms);
    free(s->sent);
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

static const struct ob_sink_driver driver = {.name = "rabbit",
                                             .open = open_sink,
                                             .wait_fd = wait_fd,
                                             .wake_at = wake_at,
                                             .submit = submit,
                                             .poll = poll_sink,
                                             .close = close_sink};

static void begin(struct watched *w, size_t n)
{
    watched_open(w, &driver, NULL);
    uint64_t first = watched_add_many(w, n, 1);
    assert_int_equal(watched_submit(w, first, n, NULL), n);
    for (int i = 0; i < WAIT_MS && __atomic_load_n(&rabbit->next, __ATOMIC_SEQ_CST) <= n; i++)
        watched_wait(w, 1);
    assert_int_equal(rabbit->next, n + 1);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(confirms_come_multiple_and_out_of_order),
        cmocka_unit_test(a_nack_is_blocked_unless_a_later_one_was_taken),
        cmocka_unit_test(a_return_has_its_own_reason),
        cmocka_unit_test(each_unroutable_key_is_named_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
