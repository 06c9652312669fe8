/* SPDX-License-Identifier: Apache-2.0 */
/* help_test - texts made of a table: line breaks, roff, shells. */
#include "cli/cli.h"

#include "texts.h"

static int nothing(struct ob_cli *cli)
{
    (void)cli;
    return 0;
}

static const struct ob_cmd work = {
    .name = "work",
    .summary = "Do it's work",
    .about = ".First paragraph with a back\\slash.\n\nSecond one.",
    .opts =
        (const struct ob_cli_opt[]){
            {"mode", 'm', OB_CLI_CHOICE, "MODE", "slow|fast", 0, 0, "slow", "The mode: [a] or b."},
            {"file", 0, OB_CLI_FILE, "FILE", NULL, 0, 0, NULL, "It's a file."},
            {0}},
    .examples = (const struct ob_cli_example[]){{"Work fast", "outbox work -m fast"}, {0}},
    .run = nothing};
static const struct ob_cmd *const table[] = {&work, NULL};

static void test_wrap(void **state)
{
    static const struct {
        const char *name, *text, *want;
        unsigned indent, width;
    } cases[] = {
        {"fits", "one two", "one two\n", 0, 10},
        {"breaks", "one two three", "one two\nthree\n", 0, 9},
        {"exactly", "one two", "one two\n", 0, 7},
        {"one too many", "one two", "one\ntwo\n", 0, 6},
        {"indent", "one two three", "  one two\n  three\n", 2, 10},
        {"paragraphs", "one\n\ntwo", "one\n\ntwo\n", 0, 10},
        {"a word longer than the line", "abcdefghijkl x", "abcdefghijkl\nx\n", 0, 5},
        {"empty", "", "\n", 0, 10},
    };
    (void)state;
    for (size_t i = 0; i < ROWS(cases); i++) {
        struct ob_buf out;
        ob_buf_init(&out, 0);
        ob_help_wrap(&out, cases[i].text, cases[i].indent, cases[i].width);
        row_text(cases[i].name, "text", ob_buf_z(&out), cases[i].want);
        ob_buf_clear(&out);
    }
}

static void has(struct ob_buf *out, const char *what)
{
    if (!strstr(ob_buf_z(out), what))
        fail_msg("missing \"%s\" in:\n%s", what, ob_buf_z(out));
}

static void test_command(void **state)
{
    struct ob_term term = {.width = 70};
    struct ob_buf out;
    (void)state;
    ob_buf_init(&out, 0);
    ob_help_command(&out, table, &work, &term);
    has(&out, "Usage: outbox work [options]\n");
    has(&out, "  -m, --mode slow|fast      The mode: [a] or b. Default: slow.\n");
    has(&out, "      --file FILE           It's a file.\n");
    has(&out, "  Work fast\n    outbox work -m fast\n");
    assert_null(strchr(ob_buf_z(&out), '\x1b'));
    ob_buf_reset(&out);
    term.color = true;
    ob_help_command(&out, table, &work, &term);
    has(&out, "\x1b[1mOptions\x1b[0m");
    ob_buf_clear(&out);
}

static void test_markdown(void **state)
{
    struct ob_buf out;
    (void)state;
    ob_buf_init(&out, 0);
    ob_help_markdown(&out, table);
    has(&out, "| 78 | The configuration file is missing or wrong. |\n");
    has(&out, "| `-m, --mode slow\\|fast` | The mode: [a] or b. Default: slow. |\n");
    has(&out, "```sh\n# Work fast\noutbox work -m fast\n```\n");
    ob_buf_clear(&out);
}

static void test_man(void **state)
{
    struct ob_buf out;
    (void)state;
    ob_buf_init(&out, 0);
    ob_man(&out, table, &work);
    has(&out, ".TH OUTBOX-WORK 1 ");
    has(&out, "outbox\\-work \\- Do it's work\n");
    /* A line that begins with a dot would be a request. */
    has(&out, "\\&.First paragraph with a back\\eslash.\n.PP\nSecond one.\n");
    has(&out, ".TP\n.B \\-m, \\-\\-mode slow|fast\n");
    has(&out, ".SH EXIT STATUS\n");
    ob_buf_reset(&out);
    ob_man(&out, table, NULL);
    has(&out, ".B outbox work\n");
    ob_buf_clear(&out);
}

static void test_completion(void **state)
{
    struct ob_buf out;
    (void)state;
    ob_buf_init(&out, 0);
    ob_completion(&out, table, "bash");
    has(&out, "'work/--mode' | 'work/-m') COMPREPLY=($(compgen -W 'slow fast' -- \"$cur\"))");
    has(&out, "'work') words='--mode --file --help' ;;");
    ob_buf_reset(&out);
    ob_completion(&out, table, "zsh");
    has(&out, "'(-m --mode)'{-m,--mode}'[The mode\\: \\[a\\] or b.]:mode:(slow fast)'");
    has(&out, "--file'[It'\\''s a file.]:file:_files'");
    ob_buf_reset(&out);
    ob_completion(&out, table, "fish");
    has(&out, "-l mode -s m -x -a 'slow fast' -d 'The mode: [a] or b.'");
    has(&out, "-a work -d 'Do it'\\''s work'");
    ob_buf_clear(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrap),       cmocka_unit_test(test_command),
        cmocka_unit_test(test_markdown),   cmocka_unit_test(test_man),
        cmocka_unit_test(test_completion),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
