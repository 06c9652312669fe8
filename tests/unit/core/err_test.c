/* SPDX-License-Identifier: Apache-2.0 */
/* err_test - error texts are cut, never overflowed, and may be made of themselves. */
#include "core/err.h"

#include "../rows.h"

#include <stdio.h>

static void test_set(void **state)
{
    struct ob_err err;

    (void)state;
    assert_int_equal(ob_err_set(&err, OB_RETRY, "row %d: %s", 7, "busy"), OB_RETRY);
    assert_int_equal(err.status, OB_RETRY);
    assert_string_equal(err.text, "row 7: busy");
    assert_int_equal(ob_err_set(NULL, OB_FATAL, "nobody listens"), OB_FATAL);
}

static void test_cut(void **state)
{
    static const struct {
        const char *name;
        size_t fill; /* ASCII before the euro sign (3 bytes) */
        size_t want; /* bytes kept */
    } cases[] = {
        {"fits", 500, 503},
        {"cut in the character, 2 bytes left", 501, 501},
        {"cut in the character, 1 byte left", 502, 502},
        {"cut before the character", 503, 503},
        {"cut long before", 600, 503},
    };
    char text[700];
    struct ob_err err;

    (void)state;
    for (size_t i = 0; i < ROWS(cases); i++) {
        memset(text, 'a', sizeof(text));
        strcpy(text + cases[i].fill, "\xe2\x82\xac");
        assert_int_equal(ob_err_set(&err, OB_REJECT, "%s", text), OB_REJECT);
        row_int(cases[i].name, "length", (int64_t)strlen(err.text), (int64_t)cases[i].want);
        ROW_TRUE(cases[i].name, ob_utf8_valid(ob_str_c(err.text)));
    }
}

static void test_of_itself(void **state)
{
    struct ob_err err;

    (void)state;
    (void)ob_err_set(&err, OB_DOWN, "refused");
    (void)ob_err_set(&err, OB_FATAL, "connect: %s (%s)", err.text, err.text);
    assert_string_equal(err.text, "connect: refused (refused)");
}

static void test_prefix(void **state)
{
    char longer[1000];
    struct ob_err err;

    (void)state;
    (void)ob_err_set(&err, OB_DOWN, "refused");
    ob_err_prefix(&err, "sink %s", "file");
    assert_string_equal(err.text, "sink file: refused");
    assert_int_equal(err.status, OB_DOWN);
    ob_err_prefix(&err, "%s", err.text);
    assert_string_equal(err.text, "sink file: refused: sink file: refused");
    memset(longer, 'x', sizeof(longer));
    longer[sizeof(longer) - 1] = '\0';
    ob_err_prefix(&err, "%s", longer);
    assert_int_equal(strlen(err.text), sizeof(err.text) - 1);
    assert_int_equal(err.text[0], 'x');
    ob_err_prefix(NULL, "nobody listens");
}

static void test_names(void **state)
{
    (void)state;
    assert_string_equal(ob_status_name(OB_OK), "ok");
    assert_string_equal(ob_status_name(OB_FENCED), "fenced");
    assert_string_equal(ob_status_name(OB_FATAL), "fatal");
    assert_string_equal(ob_status_name((enum ob_status)99), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_set),       cmocka_unit_test(test_cut),
        cmocka_unit_test(test_of_itself), cmocka_unit_test(test_prefix),
        cmocka_unit_test(test_names),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
