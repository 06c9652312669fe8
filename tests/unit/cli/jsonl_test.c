/* SPDX-License-Identifier: Apache-2.0 */
/* jsonl_test - events from JSON lines: kept byte by byte, or refused with the line's number. */
#include "cli/jsonl.h"

#include "texts.h"

#include <stdlib.h>

static void test_wrong(void **state)
{
    static const struct {
        const char *name, *text, *want;
    } cases[] = {
        {"no type", "{\"key\":\"a\"}\n", "f:1: type is missing"},
        {"empty type", "{\"type\":\"\"}\n", "f:1: type is missing"},
        {"unknown field", "\n{\"type\":\"t\",\"tenat\":\"x\"}\n",
         "f:2: unknown field \"tenat\"; did you mean \"tenant\"?"},
        {"twice", "{\"type\":\"t\",\"type\":\"u\"}\n", "f:1: field \"type\" is there twice"},
        {"array", "[1]\n", "f:1: must be a JSON object"},
        {"number as text", "{\"type\":5}\n", "f:1: \"type\": must be a string"},
        {"text as number", "{\"type\":\"t\",\"entity_version\":\"5\"}\n",
         "f:1: \"entity_version\": must be a number"},
        {"fraction", "{\"type\":\"t\",\"entity_version\":5.5}\n",
         "f:1: \"entity_version\": is not a whole number"},
        {"too large a number", "{\"type\":\"t\",\"entity_version\":99999999999999999999}\n",
         "f:1: \"entity_version\": is not a whole number"},
        {"headers are no object", "{\"type\":\"t\",\"headers\":[]}\n",
         "f:1: \"headers\": must be an object"},
    };
    (void)state;
    for (size_t i = 0; i < ROWS(cases); i++) {
        struct ob_jsonl lines;
        struct ob_err err = {0};
        enum ob_status st = ob_jsonl_read(&lines, "f", ob_str_c(cases[i].text), NULL, NULL, &err);
        row_int(cases[i].name, "status", st, OB_REJECT);
        row_text(cases[i].name, "text", err.text, cases[i].want);
        ob_jsonl_clear(&lines);
    }
}

/* Whatever the scanner says, the line is named and nothing is taken. */
static void test_damaged(void **state)
{
    static const char *const cases[] = {"{\"type\":\"t\"",   "{\"type\":\"t\"} x",
                                        "{\"type\":\"t\",}", "{",
                                        "nonsense",          "{\"type\":\"\xff\"}"};
    (void)state;
    for (size_t i = 0; i < ROWS(cases); i++) {
        struct ob_jsonl lines;
        struct ob_err err = {0};
        row_int(cases[i], "status",
                ob_jsonl_read(&lines, "f", ob_str_c(cases[i]), NULL, NULL, &err), OB_REJECT);
        assert_memory_equal(err.text, "f:1: ", 5);
        ob_jsonl_clear(&lines);
    }
}

static void same(struct ob_str got, const char *want)
{
    assert_int_equal(got.n, strlen(want));
    assert_memory_equal(got.p, want, got.n);
}

static void test_right(void **state)
{
    const char *text =
        "{\"type\":\"order.placed\",\"aggregate_id\":\"a\\u00e4\",\"payload\":{ \"x\" : 1.0 },"
        "\"entity_version\":-3,\"metadata\":{\"m\":1}}\n"
        "   \r\n"
        "{\"type\":\"t2\",\"payload_text\":\"two\\nlines\",\"key\":null}\n"
        "{\"type\":\"t3\"}";
    struct ob_jsonl lines;
    struct ob_err err = {0};
    (void)state;
    assert_int_equal(ob_jsonl_read(&lines, "f", ob_str_c(text), NULL, NULL, &err), OB_OK);
    assert_int_equal(lines.n, 3);
    same(lines.events[0].type, "order.placed");
    same(lines.events[0].aggregate_id, "a\xc3\xa4");
    same(lines.events[0].payload, "{ \"x\" : 1.0 }"); /* as written */
    assert_int_equal(lines.events[0].payload_kind, OB_PAYLOAD_JSON);
    assert_true(lines.events[0].entity_version == -3);
    assert_true(lines.events[0].schema_version == OB_NO_VERSION);
    same(lines.events[0].metadata, "{\"m\":1}");
    same(lines.events[1].payload, "two\nlines");
    assert_int_equal(lines.events[1].payload_kind, OB_PAYLOAD_TEXT);
    assert_int_equal(lines.events[1].key.n, 0);
    assert_int_equal(lines.events[2].payload_kind, OB_PAYLOAD_NULL);
    ob_jsonl_clear(&lines);
}

static void test_check(void **state)
{
    static const struct {
        const char *name;
        struct ob_emit e;
        const char *want;
    } cases[] = {
        {"payload is not JSON",
         {.type = {"t", 1}, .payload = {"{x", 2}, .payload_kind = OB_PAYLOAD_JSON},
         "payload is not JSON"},
        {"payload is empty",
         {.type = {"t", 1}, .payload_kind = OB_PAYLOAD_JSON},
         "payload is not JSON"},
        {"text is not UTF-8",
         {.type = {"t", 1}, .payload = {"\xff", 1}, .payload_kind = OB_PAYLOAD_TEXT},
         "payload is not UTF-8; say --kind bytes"},
        {"key is not UTF-8",
         {.type = {"t", 1}, .key = {"\xff", 1}, .payload_kind = OB_PAYLOAD_NULL},
         "key is not UTF-8"},
        {"headers",
         {.type = {"t", 1}, .headers = {"[]", 2}, .payload_kind = OB_PAYLOAD_NULL},
         "headers must be a JSON object"},
    };
    struct ob_err err;
    (void)state;
    for (size_t i = 0; i < ROWS(cases); i++) {
        row_int(cases[i].name, "status", ob_jsonl_check(&cases[i].e, &err), OB_REJECT);
        err.text[strlen(cases[i].want)] = 0; /* the scanner's own words may follow */
        row_text(cases[i].name, "text", err.text, cases[i].want);
    }
    struct ob_emit bytes = {
        .type = {"t", 1}, .payload = {"\0\xff", 2}, .payload_kind = OB_PAYLOAD_BYTES};
    assert_int_equal(ob_jsonl_check(&bytes, &err), OB_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrong),
        cmocka_unit_test(test_damaged),
        cmocka_unit_test(test_right),
        cmocka_unit_test(test_check),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
