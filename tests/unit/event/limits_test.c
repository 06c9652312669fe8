/* SPDX-License-Identifier: Apache-2.0 */
/* limits_test - a column over its limit makes the event dead, and its bytes are not kept. */
#include "event/limits.h"

#include "../rows.h"

#include "event/row.h"

#include <stdio.h>

static const struct ob_limits small = {.text = 1000, .json = 2000, .payload = 4000};
static char bytes[8192];

static struct ob_str *column_of(struct ob_event *ev, enum ob_limited c)
{
    struct ob_str *const all[OB_LIMITED_N] = {
        [OB_LIMITED_ID] = &ev->id,
        [OB_LIMITED_TYPE] = &ev->type,
        [OB_LIMITED_AGGREGATE_TYPE] = &ev->aggregate_type,
        [OB_LIMITED_AGGREGATE_ID] = &ev->aggregate_id,
        [OB_LIMITED_KEY] = &ev->key,
        [OB_LIMITED_TENANT] = &ev->tenant,
        [OB_LIMITED_TOPIC] = &ev->topic,
        [OB_LIMITED_STREAM] = &ev->stream,
        [OB_LIMITED_HEADERS] = &ev->headers,
        [OB_LIMITED_METADATA] = &ev->metadata,
        [OB_LIMITED_PAYLOAD] = &ev->payload,
    };
    return all[c];
}

static void test_every_column(void **state)
{
    (void)state;
    for (int c = 0; c < OB_LIMITED_N; c++) {
        const char *name = ob_limited_name((enum ob_limited)c);
        size_t limit = ob_limit_of(&small, (enum ob_limited)c);
        struct ob_arena *arena = ob_arena_new(4096, 0);
        struct ob_event ev = {.ref = 1};
        char reason[64];

        *column_of(&ev, (enum ob_limited)c) = (struct ob_str){bytes, limit};
        ROW_TRUE(name, ob_limits_check(&small, &ev, arena));
        row_int(name, "fault at the limit", (long)ev.fault.n, 0);
        row_int(name, "value at the limit", (long)column_of(&ev, (enum ob_limited)c)->n,
                (long)limit);

        *column_of(&ev, (enum ob_limited)c) = (struct ob_str){bytes, limit + 1};
        ROW_TRUE(name, ob_limits_check(&small, &ev, arena));
        snprintf(reason, sizeof(reason), "%s is too large: %zu bytes, the limit is %zu", name,
                 limit + 1, limit);
        ROW_TRUE(name, ev.fault.n > strlen(reason));
        ROW_TRUE(name, memcmp(ev.fault.p, reason, strlen(reason)) == 0);
        ROW_TRUE(name, column_of(&ev, (enum ob_limited)c)->n < OB_LIMIT_KEEP + 32);
        ROW_TRUE(name, ob_arena_used(arena) < 512); /* nothing of the value was copied */
        ob_arena_unref(arena);
    }
}

static void test_values_that_were_not_fetched(void **state)
{
    struct ob_arena *arena = ob_arena_new(4096, 0);
    struct ob_event ev = {.topic = OB_STR("shop.orders")};

    (void)state;
    assert_true(ob_limits_check_size(&small, &ev, OB_LIMITED_TOPIC, 10485760, arena));
    assert_string_equal(ev.topic.p, "shop.orders... (10485760 bytes)");
    assert_string_equal(ev.fault.p,
                        "topic is too large: 10485760 bytes, the limit is 1000 (limits.text)");
    assert_true(ob_limits_check_size(&small, &ev, OB_LIMITED_KEY, 10485761, arena));
    assert_string_equal(ev.key.p, "... (10485761 bytes)");
    assert_non_null(strstr(ev.fault.p, "topic")); /* the first reason stays */
    ob_arena_unref(arena);
}

static void test_a_character_is_not_split(void **state)
{
    struct ob_arena *arena = ob_arena_new(4096, 0);
    struct ob_event ev = {0};
    char text[2000];

    (void)state;
    memset(text, 'a', 63);
    for (size_t i = 63; i + 1 < sizeof(text); i += 2)
        memcpy(text + i, "\xc3\xa4", 2);
    ev.key = (struct ob_str){text, 1999};
    assert_true(ob_limits_check(&small, &ev, arena));
    assert_int_equal(ev.key.n, 63 + strlen("... (1999 bytes)"));
    ob_arena_unref(arena);
}

static void test_further_columns(void **state)
{
    struct ob_arena *arena = ob_arena_new(4096, 0);
    struct ob_col cols[] = {{.name = OB_STR("region"), .value = {bytes, 2000}},
                            {.name = OB_STR("notes"), .value = {bytes, 2001}}};
    struct ob_event ev = {.cols = cols, .n_cols = 2};

    (void)state;
    assert_true(ob_limits_check(&small, &ev, arena));
    assert_string_equal(ev.fault.p,
                        "notes is too large: 2001 bytes, the limit is 2000 (limits.json)");
    assert_int_equal(cols[0].value.n, 2000);
    assert_int_equal(cols[1].value.n, 0);
    assert_int_equal(cols[1].kind, OB_COL_NULL);
    ob_arena_unref(arena);
}

static void test_no_memory(void **state)
{
    struct ob_arena *arena = ob_arena_new(256, 300); /* the arena's ceiling */
    struct ob_event ev = {.topic = {bytes, 2000}};

    (void)state;
    assert_non_null(ob_arena_alloc(arena, 290));
    assert_false(ob_limits_check(&small, &ev, arena));
    ob_arena_unref(arena);
}

static void test_event_that_does_not_fit(void **state)
{
    struct ob_arena *arena = ob_arena_new(4096, 0);
    struct ob_event ev = {.ref = 7,
                          .seq = 9,
                          .id = OB_STR("id"),
                          .key = OB_STR("k"),
                          .park_n = 3,
                          .payload = {bytes, 4000}};

    (void)state;
    assert_true(ob_limits_no_memory(&ev, 4000, arena));
    assert_int_equal(ev.ref, 7);
    assert_int_equal(ev.seq, 9);
    assert_int_equal(ev.park_n, 3);
    assert_string_equal(ev.id.p, "id");
    assert_int_equal(ev.payload.n, 0);
    assert_non_null(strstr(ev.fault.p, "no memory for this event alone: 4000 bytes"));
    ob_arena_unref(arena);
}

static void test_bytes_of_an_event(void **state)
{
    struct ob_col cols[] = {{.name = OB_STR("region"), .value = {bytes, 5}}};
    struct ob_event ev = {.cols = cols, .n_cols = 1};

    (void)state;
    for (int c = 0; c < OB_LIMITED_N; c++)
        *column_of(&ev, (enum ob_limited)c) = (struct ob_str){bytes, (size_t)1 << c};
    assert_int_equal(ob_event_bytes(&ev), (1 << OB_LIMITED_N) - 1 + 5);
}

static void test_rows_to_be_written(void **state)
{
    static const struct {
        const char *name;
        struct ob_row row;
        const char *reason; /* NULL: accepted */
    } cases[] = {
        {"at the limit", {.type = {bytes, 1000}, .headers = {bytes, 2000}}, NULL},
        {"type", {.type = {bytes, 1001}}, "type is too large: 1001 bytes, the limit is 1000"},
        {"key", {.key = {bytes, 1001}}, "key is too large: 1001 bytes, the limit is 1000"},
        {"tenant", {.tenant = {bytes, 1001}}, "tenant is too large: 1001 bytes"},
        {"topic", {.topic = {bytes, 1001}}, "topic is too large: 1001 bytes"},
        {"aggregate_type", {.aggregate_type = {bytes, 1001}}, "aggregate_type is too large"},
        {"aggregate_id", {.aggregate_id = {bytes, 1001}}, "aggregate_id is too large"},
        {"headers", {.headers = {bytes, 2001}}, "headers is too large: 2001 bytes"},
        {"metadata", {.metadata = {bytes, 2001}}, "metadata is too large: 2001 bytes"},
        {"payload", {.payload = {bytes, 4001}}, "payload is too large: 4001 bytes"},
    };
    (void)state;
    for (size_t i = 0; i < ROWS(cases); i++) {
        struct ob_err err = {.text = ""};
        enum ob_status st = ob_limits_check_row(&small, &cases[i].row, &err);
        row_int(cases[i].name, "status", st, cases[i].reason ? OB_REJECT : OB_OK);
        ROW_TRUE(cases[i].name, strstr(err.text, cases[i].reason ? cases[i].reason : "") != NULL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_column),
        cmocka_unit_test(test_values_that_were_not_fetched),
        cmocka_unit_test(test_a_character_is_not_split),
        cmocka_unit_test(test_further_columns),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_event_that_does_not_fit),
        cmocka_unit_test(test_bytes_of_an_event),
        cmocka_unit_test(test_rows_to_be_written),
    };
    memset(bytes, 'x', sizeof(bytes));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
