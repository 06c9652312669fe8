/* SPDX-License-Identifier: Apache-2.0 */
/* buf_test - growth, the ceiling, and what is left after a failed append. */
#include "core/buf.h"

#include "../rows.h"

static void test_append(void **state)
{
    struct ob_buf buf;

    (void)state;
    ob_buf_init(&buf, 0);
    assert_string_equal(ob_buf_z(&buf), "");
    assert_int_equal(ob_buf_view(&buf).n, 0);
    ob_buf_put(&buf, NULL, 0);
    ob_buf_c(&buf, NULL);
    ob_buf_printf(&buf, "%s", "");
    assert_null(buf.p);
    ob_buf_str(&buf, OB_STR("a\0b"));
    ob_buf_c(&buf, "-c");
    ob_buf_char(&buf, '\0');
    ob_buf_printf(&buf, "%05d", 42);
    assert_int_equal(buf.n, 11);
    assert_memory_equal(ob_buf_z(&buf), "a\0b-c\00000042", 12);
    assert_false(buf.failed);
    ob_buf_clear(&buf);
    assert_null(buf.p);
    ob_buf_clear(&buf);
}

static void test_ceiling(void **state)
{
    static const struct {
        const char *name;
        size_t ceiling, first, second;
        bool failed;
    } cases[] = {
        {"exactly full", 100, 60, 40, false},         {"one too many", 100, 60, 41, true},
        {"full at once", 100, 100, 0, false},         {"one byte", 1, 1, 0, false},
        {"one byte and one", 1, 1, 1, true},          {"less than the least", 10, 4, 6, false},
        {"crosses a doubling", 300, 129, 171, false},
    };
    char bytes[512];

    (void)state;
    memset(bytes, 'x', sizeof(bytes));
    for (size_t i = 0; i < ROWS(cases); i++) {
        struct ob_buf buf;

        ob_buf_init(&buf, cases[i].ceiling);
        ob_buf_put(&buf, bytes, cases[i].first);
        ob_buf_put(&buf, bytes, cases[i].second);
        row_int(cases[i].name, "failed", buf.failed, cases[i].failed);
        row_int(cases[i].name, "n", (int64_t)buf.n,
                (int64_t)(cases[i].first + (cases[i].failed ? 0 : cases[i].second)));
        ROW_TRUE(cases[i].name, buf.cap <= cases[i].ceiling);
        row_int(cases[i].name, "z", (int64_t)strlen(ob_buf_z(&buf)), (int64_t)buf.n);
        ob_buf_clear(&buf);
    }
}

/* A writer checks once at the end: nothing may slip in behind a part that did not fit. */
static void test_failed_stays_failed(void **state)
{
    struct ob_buf buf;

    (void)state;
    ob_buf_init(&buf, 8);
    ob_buf_c(&buf, "12345");
    ob_buf_c(&buf, "67890");
    ob_buf_char(&buf, 'x');
    ob_buf_printf(&buf, "%d", 1);
    ob_buf_c(&buf, "y");
    assert_true(buf.failed);
    assert_string_equal(ob_buf_z(&buf), "12345");
    ob_buf_reset(&buf);
    assert_false(buf.failed);
    ob_buf_c(&buf, "12345678");
    assert_false(buf.failed);
    assert_string_equal(ob_buf_z(&buf), "12345678");
    ob_buf_clear(&buf);
}

static void test_printf_at_the_edge(void **state)
{
    (void)state;
    for (size_t before = 0; before < 140; before++)
        for (size_t n = 0; n < 140; n += 3) {
            struct ob_buf buf;
            char text[200];

            memset(text, 'y', n);
            text[n] = '\0';
            ob_buf_init(&buf, 200);
            for (size_t i = 0; i < before; i++)
                ob_buf_char(&buf, 'x');
            ob_buf_printf(&buf, "%s", text);
            assert_int_equal(buf.failed, before + n > 200);
            assert_int_equal(strlen(ob_buf_z(&buf)), buf.failed ? before : before + n);
            ob_buf_clear(&buf);
        }
}

static void test_default_ceiling(void **state)
{
    static char mega[1 << 20];
    struct ob_buf buf, zero = {0};

    (void)state;
    ob_buf_init(&buf, 0);
    for (int i = 0; i < 64; i++)
        ob_buf_put(&buf, mega, sizeof(mega));
    assert_false(buf.failed);
    ob_buf_char(&buf, 'x');
    assert_true(buf.failed);
    ob_buf_clear(&buf);
    ob_buf_c(&zero, "a zeroed buffer is an empty one");
    assert_false(zero.failed);
    ob_buf_put(&zero, mega, SIZE_MAX);
    assert_true(zero.failed);
    ob_buf_clear(&zero);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_append),
        cmocka_unit_test(test_ceiling),
        cmocka_unit_test(test_failed_stays_failed),
        cmocka_unit_test(test_printf_at_the_edge),
        cmocka_unit_test(test_default_ceiling),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
