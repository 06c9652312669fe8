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
        enum ob_verdict v = ob_nats_answer(answers[i].answer, strlen(answers[i].answer),
                                           answers[i].no_responders, &code, why);
        if (v != answers[i].verdict || code != answers[i].code)
            fail_msg("%s: %s, code %d", answers[i].name, ob_verdict_name(v), code);
        assert_int_equal(v == OB_V_DELIVERED, why[0] == '\0');
    }
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
        cmocka_unit_test(a_pattern_takes_its_subjects),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
