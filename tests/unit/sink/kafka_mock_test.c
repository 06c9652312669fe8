/* SPDX-License-Identifier: Apache-2.0 */
/* kafka_mock_test - codes of a broker, one class after the other, on librdkafka's mock cluster:
 * what the events get, and that nothing is lost or overtakes. */
#include "kafka_place.h"

#include <stdio.h>
#include <stdlib.h>

#define PRODUCE 0 /* the protocol's number of that request */
#define INIT_PRODUCER 22

struct run {
    struct kafka_place k;
    struct kafka_conf conf;
    struct watched w;
};

static int begin(void **state)
{
    struct run *r = calloc(1, sizeof(*r));
    assert_non_null(r);
    kafka_place_open(&r->k, true);
    kafka_place_conf(&r->k, &r->conf);
    *state = r;
    return 0;
}

static int end(void **state)
{
    struct run *r = *state;
    kafka_place_close(&r->k);
    free(r);
    return 0;
}

static void open_up(struct run *r)
{
    watched_open(&r->w, &ob_sink_kafka, &r->conf);
    assert_true(watched_until_state(&r->w, 1));
}

/* The mock cluster does not look at sequence numbers and takes what stands behind a refused
 * request; a broker does not. One request at a time shows the same. */
static void one_at_a_time(struct run *r)
{
    static const char *key = "max.in.flight", *value = "1";
    r->conf.properties = (struct ob_opt_map){&key, &value, NULL, 1};
}

/* The next n produce requests are answered so. */
static void inject(struct run *r, rd_kafka_resp_err_t code, size_t n)
{
    rd_kafka_resp_err_t codes[64];
    for (size_t i = 0; i < n && i < 64; i++)
        codes[i] = code;
    rd_kafka_mock_push_request_errors_array(r->k.mock, PRODUCE, n, codes);
}

static bool each_is(const struct watched *w, enum ob_verdict v)
{
    for (size_t i = 0; i < w->n_tokens; i++)
        if (w->tokens[i].verdict != v)
            return false;
    return true;
}

/* Delivered in the order of each key, counting first deliveries. */
static void in_order(const struct watched *w, unsigned keys)
{
    uint64_t last[8] = {0};
    for (size_t i = 0; i < w->n_order; i++) {
        uint64_t *before = &last[(w->order[i] - 1) % keys];
        assert_true(w->order[i] > *before);
        *before = w->order[i];
    }
}

/* Codes that the library retries inside: no verdict but delivered. */
static void retried_inside(void **state)
{
    static const rd_kafka_resp_err_t codes[] = {
        RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION, RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE,
        RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS,      RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT,
        RD_KAFKA_RESP_ERR_KAFKA_STORAGE_ERROR,
    };
    struct run *r = *state;
    open_up(r);
    for (size_t c = 0; c < sizeof(codes) / sizeof(codes[0]); c++) {
        inject(r, codes[c], 2);
        uint64_t first = watched_add_many(&r->w, 50, 4);
        assert_true(watched_deliver(&r->w, first, 50));
    }
    assert_true(each_is(&r->w, OB_V_DELIVERED));
    assert_int_equal(r->w.count[OB_V_RETRY] + r->w.count[OB_V_REJECT], 0);
    in_order(&r->w, 4);
    watched_close(&r->w, 0);
}

/* A code about the bytes, for a request with several: nobody is rejected for a neighbour. */
static void too_large_among_others(void **state)
{
    struct run *r = *state;
    one_at_a_time(r);
    open_up(r);
    uint64_t first = watched_add_many(&r->w, 20, 4);
    assert_true(watched_deliver(&r->w, first, 20));
    inject(r, RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE, 1);
    first = watched_add_many(&r->w, 200, 4);
    assert_true(watched_deliver(&r->w, first, 200));
    assert_true(each_is(&r->w, OB_V_DELIVERED));
    assert_int_equal(r->w.count[OB_V_REJECT] + r->w.count[OB_V_RETRY], 0);
    assert_true(r->w.count[OB_V_RETURNED] > 0);
    in_order(&r->w, 4);
    watched_close(&r->w, 0);
}

/* Refused again when it is alone: rejected, and only it. */
static void too_large_alone(void **state)
{
    struct run *r = *state;
    open_up(r);
    inject(r, RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE, 2); /* with others or not, then alone */
    uint64_t first = watched_add_many(&r->w, 1, 1);
    assert_true(watched_deliver(&r->w, first, 1));
    assert_int_equal(r->w.tokens[0].verdict, OB_V_REJECT);
    assert_non_null(strstr(r->w.reason, "MSG_SIZE_TOO_LARGE"));
    assert_int_equal(r->w.count[OB_V_RETURNED], 1); /* the first time it could have been another */
    first = watched_add_many(&r->w, 30, 3);
    assert_true(watched_deliver(&r->w, first, 30));
    for (size_t i = 1; i < r->w.n_tokens; i++)
        assert_int_equal(r->w.tokens[i].verdict, OB_V_DELIVERED);
    watched_close(&r->w, 0);
}

/* A code that is in no table: an attempt, when alone. */
static void odd_alone(void **state)
{
    struct run *r = *state;
    open_up(r);
    inject(r, (rd_kafka_resp_err_t)97, 2);
    uint64_t first = watched_add_many(&r->w, 1, 1);
    assert_true(watched_deliver(&r->w, first, 1));
    assert_int_equal(r->w.tokens[0].verdict, OB_V_RETRY);
    watched_close(&r->w, 0);
}

static void forbidden_is_blocked(void **state)
{
    struct run *r = *state;
    open_up(r);
    inject(r, RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED, 1);
    uint64_t first = watched_add_many(&r->w, 1, 1);
    assert_true(watched_deliver(&r->w, first, 1));
    assert_int_equal(r->w.tokens[0].verdict, OB_V_BLOCKED);
    assert_int_equal(r->w.count[OB_V_RETRY] + r->w.count[OB_V_REJECT], 0);
    watched_close(&r->w, 0);
}

static void survives(struct run *r, rd_kafka_resp_err_t code)
{
    inject(r, code, 1);
    uint64_t first = watched_add_many(&r->w, 100, 4);
    assert_true(watched_deliver(&r->w, first, 100));
    assert_true(each_is(&r->w, OB_V_DELIVERED));
    assert_int_equal(r->w.count[OB_V_RETRY] + r->w.count[OB_V_REJECT], 0);
}

/* The producer's numbers are refused: a new one is made and everything is sent again, in order. */
static void fatal_is_survived(void **state)
{
    struct run *r = *state;
    one_at_a_time(r);
    open_up(r);
    survives(r, RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER);
    assert_true(r->w.count[OB_V_RETURNED] > 0);
    survives(r, RD_KAFKA_RESP_ERR_UNKNOWN_PRODUCER_ID);
    in_order(&r->w, 4);
    watched_close(&r->w, 0);
}

/* Codes that a producer with an id of its own never gets: nothing is lost. */
static void foreign_numbers(void **state)
{
    struct run *r = *state;
    open_up(r);
    survives(r, RD_KAFKA_RESP_ERR_INVALID_PRODUCER_EPOCH);
    survives(r, RD_KAFKA_RESP_ERR_INVALID_PRODUCER_ID_MAPPING);
    watched_close(&r->w, 0);
}

/* "Cluster authorization failed" for the producer's id is fatal to the library: down, not dead. */
static void no_producer_id_is_down(void **state)
{
    struct run *r = *state;
    rd_kafka_resp_err_t codes[4] = {
        RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED,
        RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED,
        RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED,
        RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED,
    };
    rd_kafka_mock_push_request_errors_array(r->k.mock, INIT_PRODUCER, 4, codes);
    watched_open(&r->w, &ob_sink_kafka, &r->conf);
    uint64_t first = watched_add_many(&r->w, 10, 2);
    assert_true(watched_deliver(&r->w, first, 10));
    assert_true(each_is(&r->w, OB_V_DELIVERED));
    assert_int_equal(r->w.count[OB_V_RETRY] + r->w.count[OB_V_REJECT], 0);
    watched_close(&r->w, 0);
}

/* One partition without a leader: its messages are blocked, the others pass. */
static void one_partition_without_leader(void **state)
{
    struct run *r = *state;
    rd_kafka_mock_partition_set_leader(r->k.mock, "orders", 1, -1);
    open_up(r);
    unsigned blocked = 0, delivered = 0;
    uint64_t first = watched_add_many(&r->w, 8, 8);
    assert_int_equal(watched_submit(&r->w, first, 8, NULL), 8);
    assert_true(watched_until_idle(&r->w));
    for (size_t i = 0; i < 8; i++) {
        struct ob_str key = r->w.tokens[i].m->msg.key;
        bool at_one = (ob__kafka_murmur2(key.p, key.n) & 0x7fffffff) % KAFKA_PARTS == 1;
        assert_int_equal(r->w.tokens[i].verdict, at_one ? OB_V_BLOCKED : OB_V_DELIVERED);
        blocked += at_one;
        delivered += !at_one;
    }
    assert_true(blocked > 0 && delivered > 0);
    watched_close(&r->w, 0);
}

static void all_brokers_down_and_back(void **state)
{
    struct run *r = *state;
    open_up(r);
    rd_kafka_mock_broker_set_down(r->k.mock, 1);
    uint64_t first = watched_add_many(&r->w, 100, 4);
    watched_submit(&r->w, first, 100, NULL);
    assert_true(watched_until_state(&r->w, -1));
    rd_kafka_mock_broker_set_up(r->k.mock, 1);
    assert_true(watched_until_state(&r->w, 1));
    assert_true(watched_until_idle(&r->w));
    assert_true(watched_deliver(&r->w, first, 100));
    assert_true(each_is(&r->w, OB_V_DELIVERED));
    assert_int_equal(r->w.count[OB_V_RETURNED] + r->w.count[OB_V_RETRY], 0);
    watched_close(&r->w, 0);
}

/* Its messages come back, and only a new producer makes that possible. */
static void cancel_gives_back(void **state)
{
    struct run *r = *state;
    open_up(r);
    uint64_t first = watched_add_many(&r->w, 10, 2);
    assert_true(watched_deliver(&r->w, first, 10));
    rd_kafka_mock_broker_set_rtt(r->k.mock, 1, 20000);
    first = watched_add_many(&r->w, 10, 2);
    assert_int_equal(watched_submit(&r->w, first, 10, NULL), 10);
    ob_sink_kafka.cancel(r->w.sink, first);
    assert_true(watched_until_idle(&r->w));
    assert_int_equal(r->w.count[OB_V_RETURNED], 10);
    rd_kafka_mock_broker_set_rtt(r->k.mock, 1, 0);
    assert_true(watched_deliver(&r->w, first, 10));
    assert_true(each_is(&r->w, OB_V_DELIVERED));
    watched_close(&r->w, 0);
}

/* What comes while the side lane is emptied goes as soon as there is a new one, and not when the
 * scout has next something to tell. */
static void what_waits_for_the_side_lane(void **state)
{
    struct run *r = *state;
    open_up(r);
    uint64_t first = watched_add_many(&r->w, 12, 4);
    assert_true(watched_deliver(&r->w, first, 12));
    struct ob_sink *s = r->w.sink;
    for (int p = 0; p < s->topics[0]->n_parts; p++)
        s->topics[0]->parts[p].solo = 100; /* one by one */
    rd_kafka_mock_broker_set_rtt(r->k.mock, 1, 20000);
    first = watched_add_many(&r->w, 1, 1);
    assert_int_equal(watched_submit(&r->w, first, 1, NULL), 1);
    assert_int_equal(s->side.n, 1);
    ob_sink_kafka.cancel(s, first);
    assert_int_equal(s->side.state, KAFKA_L_PURGE);
    uint64_t second = watched_add_many(&r->w, 8, 8);
    assert_int_equal(watched_submit(&r->w, second, 8, NULL), 8);
    while (s->side.state == KAFKA_L_PURGE)
        watched_wait(&r->w, 20);
    assert_int_equal(s->side.state, KAFKA_L_RUN);
    assert_true(s->side.n > 0);
    rd_kafka_mock_broker_set_rtt(r->k.mock, 1, 0);
    assert_true(watched_until_idle(&r->w));
    watched_close(&r->w, 0);
}

/* A backlog is sent in bulk, and in order: the lane changes over only when it is empty, there and
 * back. */
static void bulk_and_in_order(void **state)
{
    struct run *r = *state;
    enum ob_status st;
    open_up(r);
    uint64_t first = watched_add_many(&r->w, 4, 4);
    assert_true(watched_deliver(&r->w, first, 4)); /* the topic is known */
    first = watched_add_many(&r->w, 1500, 4);
    uint64_t second = watched_add_many(&r->w, 6000, 4);
    assert_int_equal(watched_submit(&r->w, first, 1500, &st), 1500);
    assert_false(r->w.sink->main.bulk);
    assert_int_equal(watched_submit(&r->w, second, 6000, &st), 0); /* behind those in flight */
    assert_int_equal(st, OB_OK);
    assert_true(watched_until_idle(&r->w));
    assert_true(watched_deliver(&r->w, second, 6000));
    assert_true(r->w.sink->main.bulk);
    for (int i = 0; i < 600 && r->w.sink->main.bulk; i++) { /* and without one at once again */
        first = watched_add_many(&r->w, 20, 4);
        assert_true(watched_deliver(&r->w, first, 20));
    }
    assert_false(r->w.sink->main.bulk);
    assert_true(each_is(&r->w, OB_V_DELIVERED));
    in_order(&r->w, 4);
    watched_close(&r->w, 0);
}

/* Messages that hang in the lane do not keep it from taking others for ever. */
static void what_hangs_stops_no_turn(void **state)
{
    struct run *r = *state;
    enum ob_status st;
    open_up(r);
    uint64_t first = watched_add_many(&r->w, 4, 4);
    assert_true(watched_deliver(&r->w, first, 4));
    rd_kafka_mock_broker_set_rtt(r->k.mock, 1, 3000);
    first = watched_add_many(&r->w, 12, 4);
    uint64_t second = watched_add_many(&r->w, 3000, 4);
    assert_int_equal(watched_submit(&r->w, first, 12, &st), 12);
    size_t taken = watched_submit(&r->w, second, 3000, &st);
    assert_true(taken < 3000); /* in parts of 512: until there is a backlog */
    int64_t until = r->w.sink->dry_ms;
    assert_true(until > 0 && ob_sink_kafka.wake_at(r->w.sink) <= until);
    while (ob_clock_mono_ms(&ob_clock_system) < until)
        watched_wait(&r->w, 20);
    assert_int_equal(watched_submit(&r->w, second + taken, 3000 - taken, &st), 3000 - taken);
    rd_kafka_mock_broker_set_rtt(r->k.mock, 1, 0);
    assert_true(watched_until_idle(&r->w));
    in_order(&r->w, 4);
    watched_close(&r->w, 0);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, begin, end)

int main(void)
{
    if (kafka_place_skipped())
        return 0;
    const struct CMUnitTest tests[] = {
        CASE(retried_inside),
        CASE(too_large_among_others),
        CASE(too_large_alone),
        CASE(odd_alone),
        CASE(forbidden_is_blocked),
        CASE(fatal_is_survived),
        CASE(foreign_numbers),
        CASE(no_producer_id_is_down),
        CASE(one_partition_without_leader),
        CASE(all_brokers_down_and_back),
        CASE(cancel_gives_back),
        CASE(what_waits_for_the_side_lane),
        CASE(bulk_and_in_order),
        CASE(what_hangs_stops_no_turn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
