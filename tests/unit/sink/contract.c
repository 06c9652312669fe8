/* SPDX-License-Identifier: Apache-2.0 */
/* contract - what sink.h promises, tested alike for every sink. */
#include "contract_cases.h"
#include "proxy.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

void contract_open(struct run *r)
{
    watched_open(&r->w, r->sink->driver, r->conf);
}

void contract_close_and_read(struct run *r)
{
    r->w.driver->close(r->w.sink, 0);
    r->w.sink = NULL;
    if (r->sink->read) {
        r->sink->read(r->data, &r->read);
        readback_holds(&r->read, &r->w);
    }
    for (size_t i = 0; i < r->w.n_tokens; i++)
        message_free(r->w.tokens[i].m);
    free(r->w.tokens);
    free(r->w.order);
}

void contract_all_delivered(const struct run *r)
{
    assert_int_equal(r->w.in_flight, 0);
    for (size_t i = 0; i < r->w.n_tokens; i++)
        assert_int_equal(r->w.tokens[i].verdict, OB_V_DELIVERED);
}

/* ---- cases ---- */

static void accepted_is_not_delivered(struct run *r)
{
    contract_open(r);
    uint64_t first = watched_add_many(&r->w, 10, 1);
    size_t taken = 0;
    while (taken < 10) { /* on_done() refuses a verdict outside poll() */
        taken += watched_submit(&r->w, first + taken, 10 - taken, NULL);
        if (taken < 10)
            watched_wait(&r->w, 1000);
    }
    assert_int_equal(r->w.count[OB_V_DELIVERED] + r->w.in_flight, 10);
    assert_true(watched_until_idle(&r->w));
    assert_int_equal(r->w.count[OB_V_DELIVERED], 10);
    contract_all_delivered(r);
    contract_close_and_read(r);
}

static void one_verdict_each_in_order(struct run *r)
{
    contract_open(r);
    uint64_t first = watched_add_many(&r->w, 5000, 7);
    assert_true(watched_deliver(&r->w, first, 5000));
    contract_all_delivered(r);
    assert_int_equal(r->w.n_order, 5000);
    uint64_t last[7] = {0};
    for (size_t i = 0; i < r->w.n_order && r->w.caps.ordered; i++) {
        uint64_t *before = &last[(r->w.order[i] - 1) % 7];
        assert_true(r->w.order[i] > *before);
        *before = r->w.order[i];
    }
    assert_int_not_equal(r->w.state, -1);
    contract_close_and_read(r);
}

static void bursts_beyond_the_window(struct run *r)
{
    contract_open(r);
    size_t n = r->w.caps.max_in_flight * 2 + 17;
    uint64_t first = watched_add_many(&r->w, n, 5);
    size_t sent = 0;
    int64_t since = ob_clock_mono_ms(&ob_clock_system);
    while (sent < n && ob_clock_mono_ms(&ob_clock_system) - since < WAIT_MS) {
        /* watched_submit() checks that no more than max_in_flight are under way */
        size_t taken = watched_submit(&r->w, first + sent, n - sent, NULL);
        sent += taken;
        if (taken == 0)
            watched_wait(&r->w, 1000);
    }
    assert_true(watched_until_idle(&r->w));
    assert_int_equal(sent, n);
    contract_all_delivered(r);
    contract_close_and_read(r);
}

static void close_with_messages_in_flight(struct run *r)
{
    for (int round = 0; round < 20; round++) {
        contract_open(r);
        size_t n = 100 + (size_t)round * 150;
        uint64_t first = watched_add_many(&r->w, n, 3);
        size_t taken = watched_submit(&r->w, first, n, NULL);
        if (round % 3 == 1 && taken > 0)
            watched_wait(&r->w, 1000); /* some are over, some in the middle */
        if (round % 5 == 2)
            r->w.driver->reset(r->w.sink);
        /* Frees each message right after: whoever still looks is found by the sanitizer. */
        watched_close(&r->w, round % 4 == 3 ? 1000 : 0);
    }
    contract_open(r); /* and the next owner finds everything usable */
    r->w.base = 1000000;
    uint64_t first = watched_add_many(&r->w, 50, 2);
    assert_true(watched_deliver(&r->w, first, 50));
    contract_all_delivered(r);
    contract_close_and_read(r);
}

static void oversize_is_rejected_alone(struct run *r)
{
    contract_open(r);
    size_t limit = r->w.caps.max_bytes;
    size_t n = (limit ? limit : CONTRACT_MAX) + 1;
    char *big = malloc(n);
    assert_non_null(big);
    memset(big, 'x', n);
    struct ob_str value = {big, n};
    watched_add_many(&r->w, 5, 1);
    uint64_t oversize = watched_add(&r->w, message_new(5, OB_STR("k0"), &value));
    free(big);
    watched_add_many(&r->w, 5, 1);
    assert_true(watched_deliver(&r->w, 1, 11));
    for (uint64_t t = 1; t <= 11; t++)
        assert_int_equal(r->w.tokens[t - 1].verdict,
                         t == oversize && limit ? OB_V_REJECT : OB_V_DELIVERED);
    assert_int_not_equal(r->w.state, -1);
    contract_close_and_read(r);
}

void contract_put(struct ob_str *at, struct ob_str s)
{
    free((void *)at->p);
    char *p = malloc(s.n ? s.n : 1);
    assert_non_null(p);
    if (s.n)
        memcpy(p, s.p, s.n);
    *at = (struct ob_str){p, s.n};
}

static const struct {
    const char *name;
    struct ob_str text;
} hostile[] = {
    {"quotes", {"a\"b\\c", 5}},
    {"line breaks", {"a\nb\rc\r\n", 7}},
    {"NUL", {"a\0b", 3}},
    {"controls", {"\x01\x1f\x7f\t\b\f", 6}},
    {"a closing object", {"\"},{\"id\":\"", 10}},
    {"line separator", {"\xe2\x80\xa8\xe2\x80\xa9\xc2\x85", 8}},
    {"four bytes", {"\xf0\x9f\x93\xa6", 4}},
    {"empty", {"", 0}},
};

static const struct {
    const char *name;
    struct ob_str text;
} not_utf8[] = {
    {"lone continuation", {"a\x80z", 3}}, {"overlong", {"\xc0\xaf", 2}},
    {"surrogate", {"\xed\xa0\x80", 3}},   {"cut off", {"abc\xe2\x82", 5}},
    {"all high", {"\xff\xfe\xfd", 3}},
};

/* Names as hostile as they come: each has a verdict, and what is delivered is read back. */
static void hostile_names(struct run *r)
{
    contract_open(r);
    size_t n = sizeof(hostile) / sizeof(hostile[0]), m = sizeof(not_utf8) / sizeof(not_utf8[0]);
    for (size_t i = 0; i < n; i++) {
        struct message *msg = message_new(i, hostile[i].text, NULL);
        contract_put(&msg->msg.topic, hostile[i].text);
        contract_put(&msg->header[0].name, hostile[i].text);
        contract_put(&msg->header[0].value, hostile[i].text);
        contract_put(&msg->msg.content_type, hostile[i].text);
        watched_add(&r->w, msg);
    }
    for (size_t i = 0; i < m; i++) { /* the key must survive, whatever it is */
        struct message *msg = message_new(n + i, not_utf8[i].text, NULL);
        contract_put(&msg->header[0].name, not_utf8[i].text);
        contract_put(&msg->header[0].value, not_utf8[i].text);
        watched_add(&r->w, msg);
    }
    char *kib64 = malloc(65536);
    assert_non_null(kib64);
    memset(kib64, '"', 65536);
    struct message *msg = message_new(n + m, (struct ob_str){kib64, 65536}, NULL);
    contract_put(&msg->msg.topic, (struct ob_str){kib64, 65536});
    watched_add(&r->w, msg);
    free(kib64);
    watched_add_many(&r->w, 3, 1); /* the neighbours are unharmed */
    assert_true(watched_deliver(&r->w, 1, n + m + 4));
    assert_int_not_equal(r->w.state, -1);
    for (uint64_t t = n + m + 2; t <= n + m + 4; t++)
        assert_int_equal(r->w.tokens[t - 1].verdict, OB_V_DELIVERED);
    contract_close_and_read(r);
    for (size_t i = 0; r->sink->read && i < n; i++) {
        char id[40];
        snprintf(id, sizeof(id), "id-%010zu", i);
        ptrdiff_t at = readback_find(&r->read, id, 0);
        if (at < 0)
            continue; /* rejected; readback_holds() has looked for the delivered ones */
        assert_int_equal(r->read.got[at].n_headers, 1);
        if (!ob_str_eq(r->read.got[at].header[0].name, hostile[i].text) ||
            !ob_str_eq(r->read.got[at].header[0].value, hostile[i].text))
            fail_msg("header with %s did not survive", hostile[i].name);
    }
}

static const struct {
    const char *name;
    struct ob_str value;
} values[] = {
    {"0 bytes", {"", 0}},
    {"JSON with a line break", {"{\n\"a\": 1}", 9}},
    {"JSON with a carriage return", {"[1,\r2]", 6}},
    {"JSON with spaces", {" {\"a\" : [1, 2.50, -0e1]} ", 25}},
    {"JSON with the field names of a line", {"{\"value\":1,\"value\":{\"value\":2}}", 31}},
    {"null as JSON is a value like no value", {"null", 4}},
    {"a number", {"12345678901234567890.5", 22}},
    {"broken JSON", {"{\"a\":", 5}},
    {"two values", {"1 2", 3}},
    {"text", {"hello \"world\"\n", 14}},
    {"NUL bytes", {"\0\0\0", 3}},
    {"not UTF-8", {"\xff\x00\xfe\n", 4}},
    {"JSON with a string that is not UTF-8", {"\"\xff\"", 3}},
    {"escaped line break", {"\"a\\nb\"", 6}},
};

static void values_arrive_as_they_are(struct run *r)
{
    contract_open(r);
    size_t n = sizeof(values) / sizeof(values[0]);
    for (size_t i = 0; i < n; i++)
        watched_add(&r->w, message_new(i, OB_STR("k"), &values[i].value));
    struct message *none = message_new(n, OB_STR("k"), NULL);
    none->msg.value_null = true;
    contract_put(&none->msg.value, OB_STR(""));
    watched_add(&r->w, none);
    /* As deep as the scanner goes, and one deeper than that together with the line. */
    char deep[1030];
    for (size_t depth = 511; depth <= 513; depth++) {
        memset(deep, '[', depth);
        memset(deep + depth, ']', depth);
        struct ob_str value = {deep, depth * 2};
        watched_add(&r->w, message_new(r->w.n_tokens, OB_STR("k"), &value));
    }
    assert_true(watched_deliver(&r->w, 1, n + 4));
    /* "null" cannot be told from no value in a line: its bytes are compared here, not below. */
    contract_put(&r->w.tokens[5].m->msg.value, OB_STR(""));
    contract_all_delivered(r);
    contract_close_and_read(r);
}

static void sixteen_megabytes(struct run *r)
{
    contract_open(r);
    for (int kind = 0; kind < 3; kind++) { /* JSON, text, bytes */
        char *big = malloc(CONTRACT_VALUE);
        assert_non_null(big);
        memset(big, 'y', CONTRACT_VALUE);
        if (kind == 0)
            big[0] = big[CONTRACT_VALUE - 1] = '"';
        else if (kind == 1)
            big[CONTRACT_VALUE / 2] = '\n';
        else
            big[CONTRACT_VALUE / 2] = '\xff';
        struct ob_str value = {big, CONTRACT_VALUE};
        watched_add(&r->w, message_new(r->w.n_tokens, OB_STR("k0"), &value));
        free(big);
        watched_add_many(&r->w, 2, 1);
    }
    assert_true(watched_deliver(&r->w, 1, 9));
    contract_all_delivered(r);
    contract_close_and_read(r);
}

static void reset_gives_back(struct run *r)
{
    contract_open(r);
    size_t n = r->w.caps.max_in_flight < 3000 ? r->w.caps.max_in_flight : 3000;
    uint64_t first = watched_add_many(&r->w, n, 4);
    for (int round = 0; round < 3; round++) {
        watched_submit(&r->w, first, n, NULL);
        if (round == 1)
            watched_wait(&r->w, 1000);
        r->w.driver->reset(r->w.sink);
        assert_true(watched_until_idle(&r->w)); /* each has a verdict */
        assert_int_equal(r->w.count[OB_V_REJECT] + r->w.count[OB_V_RETRY], 0);
        /* Ordered: what is delivered is what stood in front, in each key. */
        bool returned[4] = {false};
        for (uint64_t t = first; t < first + n && r->w.caps.ordered; t++) {
            const struct token_state *s = &r->w.tokens[t - 1];
            bool *back = &returned[(t - 1) % 4];
            *back = *back || (s->verdicts > 0 && s->verdict == OB_V_RETURNED);
            if (*back && s->verdicts > 0)
                assert_int_equal(s->verdict, OB_V_RETURNED);
        }
        /* The rest goes again, in order. */
        assert_true(watched_deliver(&r->w, first, n));
        first = watched_add_many(&r->w, n, 4);
    }
    r->w.driver->reset(r->w.sink); /* with nothing in flight */
    assert_true(watched_deliver(&r->w, first, n));
    contract_all_delivered(r);
    contract_close_and_read(r);
}

/* A relay waits for the descriptor and wake_at and for nothing else. */
static void waiting(struct run *r)
{
    contract_open(r);
    uint64_t first = watched_add_many(&r->w, 300, 2);
    for (size_t i = 0; i < 300; i += 100) {
        assert_int_equal(watched_submit(&r->w, first + i, 100, NULL), 100);
        assert_true(watched_until_idle(&r->w));
        /* Silent again, at the latest after what was said is heard. */
        int heard = 0;
        while (watched_wait(&r->w, 0) && heard < 10)
            heard++;
        assert_true(heard < 10);
        assert_false(watched_wait(&r->w, 20));
    }
    contract_all_delivered(r);
    contract_close_and_read(r);
}

static void up_is_said_at_the_start_and_after_a_reset(struct run *r)
{
    contract_open(r);
    assert_true(watched_until_state(&r->w, 1));
    for (unsigned ups = 1; ups <= 3; ups++) {
        assert_int_equal(r->w.ups, ups);
        uint64_t first = watched_add_many(&r->w, 100, 2);
        watched_submit(&r->w, first, 100, NULL);
        r->w.driver->reset(r->w.sink);
        r->w.state = 0;
        assert_true(watched_until_state(&r->w, 1));
        assert_int_equal(r->w.in_flight, 0); /* after all that was given back */
        assert_true(watched_deliver(&r->w, first, 100));
    }
    assert_int_equal(r->w.downs, 0);
    contract_close_and_read(r);
}

static void submit_of_nothing(struct run *r)
{
    contract_open(r);
    size_t n = 0;
    struct ob_err err = {0};
    assert_int_equal(r->w.driver->submit(r->w.sink, NULL, NULL, &n, &err), OB_OK);
    assert_int_equal(n, 0);
    r->w.in_poll = true;
    r->w.driver->poll(r->w.sink);
    r->w.in_poll = false;
    contract_close_and_read(r);
}

static const struct contract_case cases[] = {
    {"accepted is not delivered", accepted_is_not_delivered},
    {"one verdict each, in order of the key", one_verdict_each_in_order},
    {"bursts beyond the window", bursts_beyond_the_window},
    {"close with messages in flight", close_with_messages_in_flight},
    {"oversize is rejected alone", oversize_is_rejected_alone},
    {"hostile names", hostile_names},
    {"values arrive as they are", values_arrive_as_they_are},
    {"values of 16 MB", sixteen_megabytes},
    {"reset gives back", reset_gives_back},
    {"waiting for descriptor and wake_at", waiting},
    {"up is said at the start and after a reset", up_is_said_at_the_start_and_after_a_reset},
    {"submit of nothing", submit_of_nothing},
};

/* ---- running them ---- */

struct cell {
    const struct contract_sink *sink;
    const struct contract_case *what;
    bool outage;
    char name[128];
};

static void run_cell(void **state)
{
    const struct cell *cell = *state;
    const char *why_not = NULL;
    struct run r = {.sink = cell->sink};
    r.conf = calloc(1, cell->sink->driver->conf_size + 1);
    assert_non_null(r.conf);
    r.data = cell->sink->begin(r.conf, &why_not);
    if (!why_not && cell->outage)
        r.proxy = cell->sink->through(r.data, r.conf, &why_not);
    if (why_not) {
        if (r.data)
            cell->sink->end(r.data);
        free(r.conf);
        print_message("%s: skipped: %s\n", cell->name, why_not);
        skip();
    }
    cell->what->fn(&r);
    readback_free(&r.read);
    cell->sink->end(r.data);
    free(r.conf);
}

static size_t add(struct cell *cells, size_t n, const struct contract_sink *sink,
                  const struct contract_case *what, bool outage)
{
    cells[n] = (struct cell){.sink = sink, .what = what, .outage = outage};
    snprintf(cells[n].name, sizeof(cells[n].name), "%s: %s", sink->name, what->name);
    return n + 1;
}

int contract_run(const struct contract_sink *const *sinks, size_t n)
{
    size_t n_cases = sizeof(cases) / sizeof(cases[0]), n_cells = 0, n_outages = 0;
    while (contract_outages[n_outages].name)
        n_outages++;
    struct cell *cells = calloc(n * (n_cases + n_outages), sizeof(*cells));
    struct CMUnitTest *tests = calloc(n * (n_cases + n_outages), sizeof(*tests));
    if (!cells || !tests) {
        free(cells);
        free(tests);
        return 1;
    }
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < n_cases; k++)
            n_cells = add(cells, n_cells, sinks[i], &cases[k], false);
        for (size_t k = 0; k < n_outages && sinks[i]->through; k++)
            n_cells = add(cells, n_cells, sinks[i], &contract_outages[k], true);
    }
    for (size_t i = 0; i < n_cells; i++)
        tests[i] = (struct CMUnitTest){cells[i].name, run_cell, NULL, NULL, &cells[i]};
    int failed = _cmocka_run_group_tests("contract", tests, n_cells, NULL, NULL);
    free(tests);
    free(cells);
    return failed;
}
