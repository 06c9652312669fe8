/* SPDX-License-Identifier: Apache-2.0 */
/* term_test - text that cannot harm a terminal, durations, the bar. */
#include "cli/term.h"

#include "texts.h"

#include <stdlib.h>
#include <unistd.h>

static void test_text(void **state)
{
    static const struct {
        const char *name;
        struct ob_str s;
        size_t max;
        const char *want;
    } cases[] = {
        {"as it is", {"abc", 3}, 0, "abc"},
        {"escape sequence", {"\x1b[2Jx", 5}, 0, "?[2Jx"},
        {"line break", {"a\nb\r", 4}, 0, "a?b?"},
        {"NUL", {"a\0b", 3}, 0, "a?b"},
        {"DEL", {"\x7f", 1}, 0, "?"},
        {"C1 control",
         {"\xc2\x9b"
          "2J",
          4},
         0,
         "?2J"},
        {"UTF-8 stays", {"\xc3\xa4", 2}, 0, "\xc3\xa4"},
        {"not UTF-8", {"a\xff", 2}, 0, "a?"},
        {"cut", {"abcdef", 6}, 4, "abc~"},
        {"not inside a character",
         {"ab\xc3\xa4"
          "cd",
          6},
         4,
         "ab~"},
        {"fits exactly", {"abcd", 4}, 4, "abcd"},
    };
    (void)state;
    for (size_t i = 0; i < ROWS(cases); i++) {
        struct ob_buf out;
        ob_buf_init(&out, 0);
        ob_term_text(&out, cases[i].s, cases[i].max);
        row_text(cases[i].name, "text", ob_buf_z(&out), cases[i].want);
        ob_buf_clear(&out);
    }
}

static void test_duration(void **state)
{
    static const struct {
        const char *name;
        int64_t ms;
        const char *want;
    } cases[] = {
        {"not known", -1, "-"},
        {"none", 0, "0 ms"},
        {"below a second", 999, "999 ms"},
        {"seconds", 1250, "1.2 s"},
        {"minutes", 250000, "4 m 10 s"},
        {"hours", 7500000, "2 h 5 m"},
        {"days", 93600000, "1 d 2 h"},
    };
    (void)state;
    for (size_t i = 0; i < ROWS(cases); i++) {
        struct ob_buf out;
        ob_buf_init(&out, 0);
        ob_term_duration(&out, cases[i].ms);
        row_text(cases[i].name, "text", ob_buf_z(&out), cases[i].want);
        ob_buf_clear(&out);
    }
}

static void test_progress(void **state)
{
    static const struct {
        const char *name;
        uint64_t done, total;
        const char *want;
    } cases[] = {
        {"nothing yet", 0, 10, "x [..........]   0 % 0/10"},
        {"half", 5, 10, "x [#####.....]  50 % 5/10"},
        {"all", 10, 10, "x [##########] 100 % 10/10"},
        {"more than all", 11, 10, "x [##########] 100 % 10/10"},
        {"unknown", 7, 0, "x 7"},
    };
    (void)state;
    for (size_t i = 0; i < ROWS(cases); i++) {
        struct ob_buf out;
        ob_buf_init(&out, 0);
        ob_progress_draw(&out, "x", cases[i].done, cases[i].total, 10);
        row_text(cases[i].name, "bar", ob_buf_z(&out), cases[i].want);
        ob_buf_clear(&out);
    }
}

/* A pipe is no terminal: no colour, no bar. */
static void test_no_terminal(void **state)
{
    int fd[2];
    char got[8];
    struct ob_progress p;
    (void)state;
    assert_int_equal(pipe(fd), 0);
    FILE *f = fdopen(fd[1], "w");
    ob_progress_init(&p, f, "x", 10);
    ob_progress_set(&p, 5);
    ob_progress_end(&p);
    assert_false(p.term.tty);
    assert_string_equal(ob_term_c(&p.term, OB_C_RED), "");
    fclose(f);
    assert_int_equal(read(fd[0], got, sizeof got), 0);
    close(fd[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_duration),
        cmocka_unit_test(test_progress),
        cmocka_unit_test(test_no_terminal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
