/* SPDX-License-Identifier: Apache-2.0 */
/* nats_test - what an answer of JetStream means, and which subjects a pattern takes. */
#include "harness.h"
#include "sink/nats/nats.h"

static const struct {
    const char *name, *answer;
    bool no_responders;
    enum ob_verdict verdict;
    int code;
} answers[] = {
    {"stored", "{\"stream\":\"S\", \"seq\":7}", false, OB_V_DELIVERED, 0},
    {"a duplicate", "{\"stream\":\"S\",\"seq\":7,\"duplicate\":true}", false, OB_V_DELIVERED, 0},
    {"an odd name", "{\"stream\":\"a\\\"b\",\"seq\":7}", false, OB_V_DELIVERED, 0},
    {"cut short", "{\"stream\":\"S\",\"seq\":7", false, OB_V_BLOCKED, 0},
    {"a number that is none", "{\"stream\":\"S\",\"seq\":\"7\"}", false, OB_V_BLOCKED, 0},
    {"an error behind it",
     "{\"stream\":\"S\",\"seq\":7,\"error\":{\"code\":400,\"err_code\":10054}}", false, OB_V_REJECT,
     10054},
    {"no responders", "", true, OB_V_BLOCKED, 0},
    {"an API answer",
     "{\"type\":\"io.nats.jetstream.api.v1.stream_delete_response\",\"success\":true}", false,
     OB_V_REJECT, 0},
    {"an API answer with an error",
     "{\"type\":\"io.nats.jetstream.api.v1.stream_delete_response\",\"error\":{\"code\":503,"
     "\"err_code\":10008}}",
     false, OB_V_REJECT, 0},
    {"an API answer like an acknowledgement",
     "{\"stream\":\"S\",\"seq\":7,\"type\":\"io.nats.jetstream.api.v1.x\"}", false, OB_V_REJECT, 0},
    {"the type in front", "{\"type\":\"io.nats.jetstream.api.v1.x\",\"stream\":\"S\",\"seq\":7}",
     false, OB_V_REJECT, 0},
    {"a foreign type", "{\"type\":\"x\",\"stream\":\"S\",\"seq\":7}", false, OB_V_BLOCKED, 0},
    {"a name with the text of an acknowledgement", "{\"stream\":{\"stream\":\"S\",\"seq\":7}}",
     false, OB_V_BLOCKED, 0},
    {"a sequence of 0", "{\"stream\":\"S\",\"seq\":0}", false, OB_V_BLOCKED, 0},
    {"a negative sequence", "{\"stream\":\"S\",\"seq\":-7}", false, OB_V_BLOCKED, 0},
    {"a fraction", "{\"stream\":\"S\",\"seq\":7.5}", false, OB_V_BLOCKED, 0},
    {"an exponent", "{\"stream\":\"S\",\"seq\":7e3}", false, OB_V_BLOCKED, 0},
    {"a sequence that is too long", "{\"stream\":\"S\",\"seq\":111111111111111111111}", false,
     OB_V_BLOCKED, 0},
    {"no name", "{\"stream\":\"\",\"seq\":7}", false, OB_V_BLOCKED, 0},
    {"only a name", "{\"stream\":\"S\"}", false, OB_V_BLOCKED, 0},
    {"a list", "[{\"stream\":\"S\",\"seq\":7}]", false, OB_V_BLOCKED, 0},
    {"more behind it", "{\"stream\":\"S\",\"seq\":7}}", false, OB_V_BLOCKED, 0},
    {"two of them", "{\"stream\":\"S\",\"seq\":7}{\"stream\":\"S\",\"seq\":7}", false, OB_V_BLOCKED,
     0},
    {"the end alone", "{\"stream\":\"S\",\"seq\":}", false, OB_V_BLOCKED, 0},
    {"with its domain", "{\"stream\":\"S\",\"domain\":\"d\",\"seq\":7}", false, OB_V_DELIVERED, 0},
    {"of newer servers", "{\"stream\":\"S\",\"seq\":7,\"val\":\"1\",\"batch\":\"b\"}", false,
     OB_V_DELIVERED, 0},
    {"not an answer of a stream", "{\"ok\":true}", false, OB_V_BLOCKED, 0},
    {"not JSON", "+OK", false, OB_V_BLOCKED, 0},
    {"nothing", "", false, OB_V_BLOCKED, 0},
    {"another stream", "{\"error\":{\"code\":400,\"err_code\":10060,\"description\":\"x\"}}", false,
     OB_V_BLOCKED, 10060},
    {"full", "{\"error\":{\"code\":503,\"err_code\":10077,\"description\":\"maximum\"}}", false,
     OB_V_BLOCKED, 10077},
    {"too large", "{\"error\":{\"code\":400,\"err_code\":10054}}", false, OB_V_REJECT, 10054},
    {"another last id", "{\"error\":{\"code\":400,\"err_code\":10070}}", false, OB_V_RETRY, 10070},
    {"another last number", "{\"error\":{\"code\":400,\"err_code\":10071}}", false, OB_V_RETRY,
     10071},
    {"its last number in newer servers", "{\"error\":{\"code\":400,\"err_code\":10164}}", false,
     OB_V_RETRY, 10164},
    {"limits of the stream", "{\"error\":{\"code\":500,\"err_code\":10053}}", false, OB_V_BLOCKED,
     10053},
    {"headers too large", "{\"error\":{\"code\":400,\"err_code\":10097}}", false, OB_V_REJECT,
     10097},
    {"the id is being stored", "{\"error\":{\"code\":409,\"err_code\":10158}}", false, OB_V_BLOCKED,
     10158},
    {"too many requests", "{\"error\":{\"code\":429,\"err_code\":10167}}", false, OB_V_BLOCKED,
     10167},
    {"unknown, too many requests", "{\"error\":{\"code\":429,\"err_code\":1}}", false, OB_V_BLOCKED,
     1},
    {"unknown conflict", "{\"error\":{\"code\":409,\"err_code\":1}}", false, OB_V_RETRY, 1},
    {"unknown, not available", "{\"error\":{\"code\":503,\"err_code\":1}}", false, OB_V_BLOCKED, 1},
    {"unknown", "{\"error\":{\"code\":500,\"err_code\":1}}", false, OB_V_RETRY, 1},
};

static void an_answer_has_its_verdict(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(answers) / sizeof(answers[0]); i++) {
        int code;
        char why[256];
        enum ob_verdict v = ob_nats_answer(ob_str_c(answers[i].answer), answers[i].no_responders,
                                           false, &code, why);
        if (v != answers[i].verdict || code != answers[i].code)
            fail_msg("%s: %s, code %d", answers[i].name, ob_verdict_name(v), code);
        assert_int_equal(v == OB_V_DELIVERED, why[0] == '\0');
    }
}

/* A request that must not be repeated: what is not of a stream rejects it, a stream's own error is
 * as ever. */
static void a_reserved_subject_is_requested_once(void **state)
{
    (void)state;
    int code;
    char why[256];
    assert_int_equal(ob_nats_answer(OB_STR("{\"server\":{}}"), false, true, &code, why),
                     OB_V_REJECT);
    assert_int_equal(ob_nats_answer(OB_STR("+OK"), false, true, &code, why), OB_V_REJECT);
    assert_int_equal(ob_nats_answer(OB_STR(""), true, true, &code, why), OB_V_BLOCKED);
    assert_int_equal(ob_nats_answer(OB_STR("{\"error\":{\"code\":503,\"err_code\":10077}}"), false,
                                    true, &code, why),
                     OB_V_BLOCKED);
    assert_int_equal(
        ob_nats_answer(OB_STR("{\"stream\":\"KV_a\",\"seq\":1}"), false, true, &code, why),
        OB_V_DELIVERED);
}

static const struct {
    const char *subject;
    bool reserved, allowed;
} reserved[] = {
    {"$JS.API.STREAM.DELETE.S", true, false},
    {"$KV.prices.a", true, true},
    {"$KV.other.a", true, false},
    {"$KV.prices", true, false},
    {"$", true, false},
    {"_INBOX", true, false},
    {"_INBOX.a", true, true},
    {"_INBOX_app.a", true, false},
    {"_R_.a", true, false},
    {"_GR_.a", true, false},
    {"our.inbox", true, false},
    {"our.inbox.a", true, false},
    {"our.inboxes", false, false},
    {"our", false, false},
    {"a.$JS.API", false, false},
    {"_private.a", false, false},
    {"", false, false},
};

static void reserved_subjects_are_known(void **state)
{
    (void)state;
    const char *allow[] = {"$KV.prices.>", "_INBOX.a"};
    const struct ob_sink_nats_conf c = {.inbox_prefix = "our.inbox",
                                        .allow_subjects = {.values = allow, .n = 2}};
    for (size_t i = 0; i < sizeof(reserved) / sizeof(reserved[0]); i++) {
        struct ob_str t = ob_str_c(reserved[i].subject);
        if (ob_nats_subject_reserved(&c, t) != reserved[i].reserved ||
            ob_nats_subject_allowed(&c, t) != reserved[i].allowed)
            fail_msg("%s", reserved[i].subject);
    }
}

static void a_stream_has_a_name(void **state)
{
    (void)state;
    static const char *const bad[] = {"a b",  "a.b",    "*",    ">",   "a/b",
                                      "a\\b", "a\r\nb", "a\tb", "\x7f"};
    char lengthy[257];
    memset(lengthy, 'x', sizeof(lengthy));
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        if (ob_nats_stream_fits(ob_str_c(bad[i])))
            fail_msg("%s", bad[i]);
    assert_true(ob_nats_stream_fits(OB_STR("")));
    assert_true(ob_nats_stream_fits(OB_STR("ORDERS_2-x")));
    assert_true(ob_nats_stream_fits((struct ob_str){lengthy, 255}));
    assert_false(ob_nats_stream_fits((struct ob_str){lengthy, 256}));
    assert_false(ob_nats_stream_fits((struct ob_str){"a\0b", 3}));
}

static const struct {
    const char *pattern, *subject;
    bool taken;
} subjects[] = {
    {"a.b", "a.b", true},      {"a.b", "a.c", false}, {"a.b", "a.b.c", false},
    {"a.*", "a.b", true},      {"a.*", "a", false},   {"a.*", "a.b.c", false},
    {"a.>", "a.b.c", true},    {"a.>", "a", false},   {">", "a", true},
    {"*.b", "a.b", true},      {"*.b", "a.c", false}, {"a.*.c", "a.b.c", true},
    {"a.*.c", "a.b.d", false}, {"ab", "a", false},    {"a", "ab", false},
    {"a.>", "a.b", true},      {"*", "", false},
};

static void a_pattern_takes_its_subjects(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(subjects) / sizeof(subjects[0]); i++)
        if (ob_nats_subject_match(subjects[i].pattern, ob_str_c(subjects[i].subject)) !=
            subjects[i].taken)
            fail_msg("%s %s", subjects[i].pattern, subjects[i].subject);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_answer_has_its_verdict),
        cmocka_unit_test(a_reserved_subject_is_requested_once),
        cmocka_unit_test(reserved_subjects_are_known),
        cmocka_unit_test(a_stream_has_a_name),
        cmocka_unit_test(a_pattern_takes_its_subjects),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
