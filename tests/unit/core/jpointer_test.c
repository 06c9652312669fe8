/* SPDX-License-Identifier: Apache-2.0 */
/* jpointer_test - RFC 6901: tokens and their escapes, indexes, keys that stand twice. */
#include "core/jscan.h"

#include "../rows.h"

#include <stdlib.h>

#include "jansson_agree.h"

/* The document of RFC 6901, section 5. */
#define RFC                                                                                        \
    "{\"foo\":[\"bar\",\"baz\"],\"\":0,\"a/b\":1,\"c%d\":2,\"e^f\":3,\"g|h\":4,\"i\\\\j\":5,"      \
    "\"k\\\"l\":6,\" \":7,\"m~n\":8}"

static void test_pointer(void **state)
{
    static const struct {
        const char *name, *text, *pointer, *want; /* want NULL: nothing is there */
    } cases[] = {
        {"whole", RFC, "", RFC},
        {"array", RFC, "/foo", "[\"bar\",\"baz\"]"},
        {"element", RFC, "/foo/0", "\"bar\""},
        {"empty key", RFC, "/", "0"},
        {"escaped slash", RFC, "/a~1b", "1"},
        {"per cent", RFC, "/c%d", "2"},
        {"circumflex", RFC, "/e^f", "3"},
        {"bar", RFC, "/g|h", "4"},
        {"backslash", RFC, "/i\\j", "5"},
        {"quote", RFC, "/k\"l", "6"},
        {"space", RFC, "/ ", "7"},
        {"escaped tilde", RFC, "/m~0n", "8"},
        {"not there", RFC, "/nope", NULL},
        {"index behind the end", RFC, "/foo/2", NULL},
        {"index with leading zero", RFC, "/foo/00", NULL},
        {"index with leading zero, not zero", RFC, "/foo/01", NULL},
        {"index minus", RFC, "/foo/-", NULL},
        {"index negative", RFC, "/foo/-1", NULL},
        {"index with plus", RFC, "/foo/+1", NULL},
        {"index with letters", RFC, "/foo/1x", NULL},
        {"index empty", RFC, "/foo/", NULL},
        {"index of 2^64 and 1", RFC, "/foo/18446744073709551617", NULL},
        {"below a number", RFC, "/a~1b/x", NULL},
        {"below a string", RFC, "/foo/0/x", NULL},
        {"number is a key in an object", "{\"0\":[{\"1\":true}]}", "/0/0/1", "true"},
        {"leading zero is a key in an object", "{\"01\":1}", "/01", "1"},
        {"two tokens deep", "{\"a\":{\"b\":{\"c\":[10,20]}}}", "/a/b/c/1", "20"},
        {"white space kept", "{\"a\": { \"b\" : [ 1 ] } }", "/a", "{ \"b\" : [ 1 ] }"},
        {"white space around not", " [ 1 , 2 ] ", "/1", "2"},
        {"top in white space", "  null ", "", "null"},
        {"key escaped in the text", "{\"\\u0061\\/\\u00e9\":1}", "/a~1\xc3\xa9", "1"},
        {"key escaped, pair", "{\"\\ud83d\\ude00\":1}", "/\xf0\x9f\x98\x80", "1"},
        {"key escaped, shorter", "{\"\\u0061\":1}", "/ab", NULL},
        {"key escaped, longer", "{\"\\u0061b\":1}", "/a", NULL},
        {"tilde one is not a slash and one", "{\"/1\":1,\"~1\":2}", "/~01", "2"},
        {"tilde zero one", "{\"~01\":1}", "/~001", "1"},
        {"twice: the last", "{\"a\":1,\"a\":2,\"a\":3}", "/a", "3"},
        {"twice: the last, deeper", "{\"a\":{\"b\":1},\"a\":{\"b\":2}}", "/a/b", "2"},
        {"twice: not in the last", "{\"a\":{\"b\":1},\"a\":{\"c\":2}}", "/a/b", NULL},
        {"twice: the last is no object", "{\"a\":{\"b\":1},\"a\":7}", "/a/b", NULL},
        {"twice: the last is an array", "{\"a\":{\"0\":1},\"a\":[5]}", "/a/0", "5"},
        {"twice: one of them escaped", "{\"a\":1,\"\\u0061\":2}", "/a", "2"},
        {"same key elsewhere", "{\"x\":{\"a\":1},\"a\":2,\"y\":[{\"a\":3}]}", "/a", "2"},
        {"same key below", "{\"a\":{\"a\":{\"a\":1}}}", "/a/a", "{\"a\":1}"},
        {"two slashes", "{\"a\":{\"\":{\"b\":1}}}", "/a//b", "1"},
        {"slash at the end", "{\"a\":{\"\":1}}", "/a/", "1"},
        {"empty array", "[]", "/0", NULL},
        {"empty object", "{}", "/a", NULL},
        {"in a scalar", "5", "/a", NULL},
    };

    (void)state;
    for (size_t i = 0; i < ROWS(cases); i++) {
        struct ob_str raw = {NULL, 0}, text = ob_str_c(cases[i].text);
        struct ob_str pointer = ob_str_c(cases[i].pointer);
        enum ob_jtype type, again;
        struct ob_err err;
        enum ob_status st = ob_json_pointer(text, pointer, &raw, &type, &err);

        row_int(cases[i].name, "status", st, cases[i].want ? OB_OK : OB_AGAIN);
        ROW_TRUE(cases[i].name, jansson_same_at(text, pointer, raw));
        if (!cases[i].want)
            continue;
        row_str(cases[i].name, "value", raw, ob_str_c(cases[i].want));
        row_int(cases[i].name, "check", ob_json_check(raw, &again, &err), OB_OK);
        row_int(cases[i].name, "type", (int)type, (int)again);
    }
}

static void test_refuses(void **state)
{
    static const struct {
        const char *name, *text, *pointer;
        enum ob_status want;
    } cases[] = {
        {"pointer without slash", "{}", "a", OB_FATAL},
        {"pointer, bad tilde", "{}", "/a~2", OB_FATAL},
        {"pointer, tilde at the end", "{}", "/a~", OB_FATAL},
        {"pointer, tilde before slash", "{}", "/~/a", OB_FATAL},
        {"bad pointer and bad text", "{", "a", OB_FATAL},
        {"no text", "", "", OB_REJECT},
        {"broken before", "{\"x\":tru,\"a\":1}", "/a", OB_REJECT},
        {"broken behind", "{\"a\":1,\"x\":tru}", "/a", OB_REJECT},
        {"broken inside", "{\"a\":[1,}", "/a", OB_REJECT},
        {"something follows", "[1] x", "/0", OB_REJECT},
        {"not there and broken", "{\"x\":1", "/a", OB_REJECT},
    };

    (void)state;
    for (size_t i = 0; i < ROWS(cases); i++) {
        struct ob_str raw = OB_STR("as it was");
        enum ob_jtype type = OB_J_TRUE;
        struct ob_err err;

        row_int(
            cases[i].name, "status",
            ob_json_pointer(ob_str_c(cases[i].text), ob_str_c(cases[i].pointer), &raw, &type, &err),
            cases[i].want);
        row_str(cases[i].name, "untouched", raw, OB_STR("as it was"));
        row_int(cases[i].name, "untouched", (int)type, OB_J_TRUE);
    }
}

static void test_as_deep_as_can_be(void **state)
{
    char text[512 * 6 + 16] = "", pointer[512 * 2 + 8] = "";
    struct ob_str raw;
    enum ob_jtype type;

    (void)state;
    for (int i = 0; i < 512; i++) {
        strcat(text, "{\"a\":");
        strcat(pointer, "/a");
    }
    strcat(text, "9");
    for (int i = 0; i < 512; i++)
        strcat(text, "}");
    assert_int_equal(ob_json_pointer(ob_str_c(text), ob_str_c(pointer), &raw, &type, NULL), OB_OK);
    assert_int_equal(raw.n, 1);
    assert_int_equal(raw.p[0], '9');
    strcat(pointer, "/a");
    assert_int_equal(ob_json_pointer(ob_str_c(text), ob_str_c(pointer), &raw, &type, NULL),
                     OB_AGAIN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pointer),
        cmocka_unit_test(test_refuses),
        cmocka_unit_test(test_as_deep_as_can_be),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
