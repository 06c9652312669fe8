/* SPDX-License-Identifier: Apache-2.0 */
/* lines_test - the bytes of a line, and where a batch ends. */
#include "harness.h"
#include "sink/lines.h"

#include <stdio.h>
#include <stdlib.h>

/* All parts of the batch as one text. The caller frees. */
static char *join(struct ob_lines *l, size_t *n_parts)
{
    const struct iovec *iov = ob_lines_iov(l, n_parts);
    char *text = malloc(l->bytes + 1);
    assert_non_null(text);
    size_t n = 0;
    for (size_t i = 0; i < *n_parts; i++) {
        assert_true(n + iov[i].iov_len <= l->bytes);
        memcpy(text + n, iov[i].iov_base, iov[i].iov_len);
        n += iov[i].iov_len;
    }
    assert_int_equal(n, l->bytes);
    text[n] = '\0';
    return text;
}

static void init(struct ob_lines *l, size_t limit, size_t max_line)
{
    struct ob_err err = {0};
    assert_int_equal(ob_lines_init(l, limit, max_line, &err), OB_OK);
}

static struct ob_event at_time = {.created_us = 1770091506789999};
static struct ob_header headers[] = {{{"a", 1}, {"1", 1}}, {{"b\"", 2}, {"", 0}}};

static const struct {
    const char *name;
    struct ob_msg msg;
    const char *want;
} lines[] = {
    {"least",
     {.value = {"1", 1}},
     "{\"id\":\"\",\"topic\":\"\",\"key\":\"\",\"headers\":{},\"time\":null,\"value\":1}\n"},
    {"most",
     {.event = &at_time,
      .id = {"i", 1},
      .topic = {"t", 1},
      .stream = {"s", 1},
      .key = {"k\xc3\xa4", 3},
      .content_type = {"c/t", 3},
      .headers = headers,
      .n_headers = 2,
      .value = {"{ \"x\":\t[] }", 11}},
     "{\"id\":\"i\",\"topic\":\"t\",\"stream\":\"s\",\"key\":\"k\xc3\xa4\",\"headers\":{\"a\":"
     "\"1\","
     "\"b\\\"\":\"\"},\"content_type\":\"c/t\",\"time\":\"2026-02-03T04:05:06.789Z\","
     "\"value\":{ \"x\":\t[] }}\n"},
    {"no value",
     {.value_null = true, .value = {"ignored", 7}},
     "{\"id\":\"\",\"topic\":\"\",\"key\":\"\",\"headers\":{},\"time\":null,\"value\":null}\n"},
    {"text",
     {.value = {"say \"hi\"\n\x01", 10}},
     "{\"id\":\"\",\"topic\":\"\",\"key\":\"\",\"headers\":{},\"time\":null,"
     "\"value_text\":\"say \\\"hi\\\"\\n\\u0001\"}\n"},
    {"bytes",
     {.key = {"\xff", 1}, .value = {"\xff\x00", 2}},
     "{\"id\":\"\",\"topic\":\"\",\"key\":\"\xef\xbf\xbd\",\"key_base64\":\"/w==\",\"headers\":{},"
     "\"time\":null,\"value_base64\":\"/wA=\"}\n"},
};

static void bytes_of_a_line(void **state)
{
    (void)state;
    struct ob_lines l;
    init(&l, 1 << 20, 1 << 20);
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        size_t size, parts;
        assert_int_equal(ob_lines_add(&l, &lines[i].msg, &size), OB_OK);
        assert_int_equal(size, strlen(lines[i].want));
        char *text = join(&l, &parts);
        if (strcmp(text, lines[i].want) != 0)
            fail_msg("%s: %s", lines[i].name, text);
        free(text);
        ob_lines_reset(&l);
    }
    ob_lines_clear(&l);
}

static const struct {
    int64_t us;
    const char *want;
} times[] = {
    {0, "1970-01-01T00:00:00.000Z"},
    {999, "1970-01-01T00:00:00.000Z"},
    {999999, "1970-01-01T00:00:00.999Z"},
    {1000000, "1970-01-01T00:00:01.000Z"},
    {-1, "1969-12-31T23:59:59.999Z"},
    {-1000000, "1969-12-31T23:59:59.000Z"},
    {-1000001, "1969-12-31T23:59:58.999Z"},
    {1770091506789000, "2026-02-03T04:05:06.789Z"},
    {1770091506001000, "2026-02-03T04:05:06.001Z"}, /* the same second again */
    {1770091507001000, "2026-02-03T04:05:07.001Z"},
};

static void times_of_a_line(void **state)
{
    (void)state;
    struct ob_lines l;
    init(&l, 1 << 20, 1 << 20);
    for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++) {
        struct ob_event event = {.created_us = times[i].us};
        struct ob_msg msg = {.event = &event, .value_null = true};
        size_t size, parts;
        assert_int_equal(ob_lines_add(&l, &msg, &size), OB_OK);
        char *text = join(&l, &parts);
        if (!strstr(text, times[i].want))
            fail_msg("%s is not in %s", times[i].want, text);
        free(text);
        ob_lines_reset(&l);
    }
    static const int64_t ends[] = {INT64_MIN, INT64_MAX};
    for (size_t i = 0; i < 2; i++) { /* whatever they are called, the line stays whole */
        struct ob_event event = {.created_us = ends[i]};
        struct ob_msg msg = {.event = &event, .value_null = true};
        size_t size, parts;
        assert_int_equal(ob_lines_add(&l, &msg, &size), OB_OK);
        free(join(&l, &parts));
    }
    ob_lines_clear(&l);
}

static void longest_line(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        char fill;
        size_t expands; /* bytes in the line for one of the value */
    } cases[] = {{"digits", '7', 1}, {"text", 'x', 1}, {"quotes", '"', 2}, {"controls", 1, 6}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct ob_lines l;
        init(&l, 1 << 20, 5000);
        char value[6000];
        memset(value, cases[i].fill, sizeof(value));
        size_t size, longest = 0;
        for (size_t n = 1; n <= sizeof(value); n++) {
            struct ob_msg msg = {.value = {value, n}};
            enum ob_status st = ob_lines_add(&l, &msg, &size);
            if (st == OB_OK) {
                assert_true(size <= 5000);
                longest = n;
            } else {
                assert_int_equal(st, OB_REJECT);
                assert_true(longest == n - 1 || n > longest + 1);
            }
            ob_lines_reset(&l);
        }
        if (longest < (5000 - 100) / cases[i].expands || longest > 5000 / cases[i].expands)
            fail_msg("%s: %zu", cases[i].name, longest);
        ob_lines_clear(&l);
    }
}

/* A message that is refused leaves no trace in the batch. */
static void refused_leaves_no_trace(void **state)
{
    (void)state;
    struct ob_lines l;
    init(&l, 3000, 2000);
    char quotes[1500];
    memset(quotes, '"', sizeof(quotes));
    struct ob_msg good = {.value = {"1", 1}};
    struct ob_msg bad = {.value = {"1", 1}, .key = {quotes, sizeof(quotes)}}; /* known late */
    size_t size, parts;
    assert_int_equal(ob_lines_add(&l, &good, &size), OB_OK);
    size_t before = l.bytes;
    assert_int_equal(ob_lines_add(&l, &bad, &size), OB_REJECT);
    assert_true(size > 2000);
    assert_int_equal(l.bytes, before);
    assert_int_equal(ob_lines_add(&l, &good, &size), OB_OK);
    char *text = join(&l, &parts);
    assert_int_equal(parts, 1);
    assert_int_equal(strlen(text), 2 * before);
    assert_memory_equal(text, text + before, before);
    free(text);
    ob_lines_clear(&l);
}

static void a_batch_ends_at_its_limit(void **state)
{
    (void)state;
    struct ob_lines l;
    init(&l, 100000, 1 << 20);
    char *big = malloc(40000);
    assert_non_null(big);
    memset(big, '5', 40000);
    struct ob_msg msg = {.value = {big, 40000}};
    size_t size, parts;
    assert_int_equal(ob_lines_add(&l, &msg, &size), OB_OK);
    assert_int_equal(ob_lines_add(&l, &msg, &size), OB_OK);
    assert_int_equal(ob_lines_add(&l, &msg, &size), OB_AGAIN);
    const struct iovec *iov = ob_lines_iov(&l, &parts);
    assert_int_equal(parts, 5);             /* frame, payload, frame, payload, end */
    assert_ptr_equal(iov[1].iov_base, big); /* referred to, not copied */
    assert_ptr_equal(iov[3].iov_base, big);
    free(join(&l, &parts));
    ob_lines_reset(&l);
    char *huge = malloc(300000);
    assert_non_null(huge);
    memset(huge, 'x', 300000);
    struct ob_msg alone = {.value = {huge, 300000}};
    assert_int_equal(ob_lines_add(&l, &alone, &size), OB_OK); /* longer than a batch: by itself */
    assert_int_equal(ob_lines_add(&l, &msg, &size), OB_AGAIN);
    assert_true(l.buf.cap >= 300000);
    ob_lines_reset(&l);
    assert_true(l.buf.cap <= 200000); /* and its memory is given back */
    ob_lines_clear(&l);
    free(huge);
    free(big);
}

static void a_batch_ends_at_the_most_parts(void **state)
{
    (void)state;
    struct ob_lines l;
    init(&l, (size_t)1 << 30, 1 << 20);
    char *big = malloc(20000);
    assert_non_null(big);
    memset(big, '5', 20000);
    struct ob_msg msg = {.value = {big, 20000}};
    size_t size, n = 0, parts;
    while (n < 2000 && ob_lines_add(&l, &msg, &size) == OB_OK)
        n++;
    ob_lines_iov(&l, &parts);
    assert_true(parts <= OB_LINES_PARTS && parts > OB_LINES_PARTS - 8);
    assert_true(n < 2000);
    ob_lines_clear(&l);
    free(big);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_of_a_line),
        cmocka_unit_test(times_of_a_line),
        cmocka_unit_test(longest_line),
        cmocka_unit_test(refused_leaves_no_trace),
        cmocka_unit_test(a_batch_ends_at_its_limit),
        cmocka_unit_test(a_batch_ends_at_the_most_parts),
    };
    return cmocka_run_group_tests_name("lines", tests, NULL, NULL);
}
