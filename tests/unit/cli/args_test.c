/* SPDX-License-Identifier: Apache-2.0 */
/* args_test - command lines, right and wrong, against a small table. */
#include "cli/cli.h"

#include "texts.h"

#include <stdlib.h>

static int nothing(struct ob_cli *cli)
{
    (void)cli;
    return 0;
}

static const struct ob_cli_opt opts[] = {
    {"name", 'n', OB_CLI_STR, "NAME", NULL, 0, 0, NULL, "A name."},
    {"quick", 'q', OB_CLI_FLAG, NULL, NULL, 0, 0, NULL, "Quickly."},
    {"count", 0, OB_CLI_INT, "N", NULL, 1, 10, NULL, "A count."},
    {"since", 0, OB_CLI_TIME, "TIME", NULL, 0, 0, NULL, "A time."},
    {"mode", 'm', OB_CLI_CHOICE, "MODE", "slow|fast", 0, 0, NULL, "A mode."},
    {0}};
static const struct ob_cmd work = {.name = "work",
                                   .operands = "ID [ID]",
                                   .min_operands = 1,
                                   .max_operands = 2,
                                   .opts = opts,
                                   .shared = OB_CLI_OPTS_JSON,
                                   .run = nothing};
static const struct ob_cmd plain = {.name = "plain", .run = nothing};
static const struct ob_cmd shell = {.name = "shell",
                                    .operands = "bash|fish",
                                    .operand_choices = "bash|fish",
                                    .max_operands = 1,
                                    .run = nothing};
static const struct ob_cmd dead = {.name = "dead"};
static const struct ob_cmd dead_list = {.name = "dead list", .run = nothing};
static const struct ob_cmd *const table[] = {&work, &plain, &shell, &dead, &dead_list, NULL};

static enum ob_status parse(struct ob_cli *cli, const struct ob_cmd *cmd, char *words,
                            struct ob_err *err)
{
    char *argv[16];
    int n = 0;
    *cli = (struct ob_cli){.cmds = table, .cmd = cmd};
    *err = (struct ob_err){0};
    for (char *save, *w = strtok_r(words, " ", &save); w; w = strtok_r(NULL, " ", &save))
        argv[n++] = w;
    return ob_cli_parse(cli, n, argv, err);
}

static void test_wrong(void **state)
{
    static const struct {
        const char *name;
        const struct ob_cmd *cmd;
        const char *words, *want;
    } cases[] = {
        {"unknown option", &work, "a --nmae x", "unknown option --nmae; did you mean --name?"},
        {"far from all", &work, "a --zzzzzz", "unknown option --zzzzzz"},
        {"unknown letter", &work, "a -z", "unknown option -z"},
        {"no value", &work, "a --name", "--name needs a value (NAME)"},
        {"no value of a letter", &work, "a -n", "-n needs a value (NAME)"},
        {"value of a flag", &work, "a --quick=1", "--quick takes no value"},
        {"twice", &work, "a -n x --name y", "--name is given twice"},
        {"no number", &work, "a --count 3x", "--count: '3x' is not a whole number"},
        {"too small", &work, "a --count 0", "--count: 0 is outside 1 to 10"},
        {"too large", &work, "a --count 11", "--count: 11 is outside 1 to 10"},
        {"far too large", &work, "a --count 99999999999999999999",
         "--count: '99999999999999999999' is not a whole number"},
        {"no time", &work, "a --since yesterday",
         "--since: 'yesterday' is no time; write 2026-01-31T12:00:00Z, or 15m, 2h, 7d for so long "
         "ago"},
        {"no choice", &work, "a --mode fas", "--mode: 'fas' is not one of slow|fast"},
        {"operand missing", &work, "--quick", "needs ID [ID]"},
        {"operand too many", &work, "a b c", "one operand too many: 'c'"},
        {"operand of none", &plain, "x", "takes no operand, but 'x' was given"},
        {"operand not among", &shell, "ksh", "'ksh' is not one of bash|fish"},
        {"shared option elsewhere", &plain, "--json", "unknown option --json"},
    };
    (void)state;
    for (size_t i = 0; i < ROWS(cases); i++) {
        struct ob_cli cli;
        struct ob_err err;
        char words[128];
        snprintf(words, sizeof words, "%s", cases[i].words);
        row_int(cases[i].name, "status", parse(&cli, cases[i].cmd, words, &err), OB_REJECT);
        row_text(cases[i].name, "text", err.text, cases[i].want);
    }
}

static void test_right(void **state)
{
    static const struct {
        const char *name, *words, *option, *value, *operand;
    } cases[] = {
        {"long", "--name x a", "name", "x", "a"},
        {"long with =", "--name=x=y a", "name", "x=y", "a"},
        {"empty value", "--name= a", "name", "", "a"},
        {"letter", "-n x a", "name", "x", "a"},
        {"letter with its value", "-nx a", "name", "x", "a"},
        {"flag", "-q a", "quick", "", "a"},
        {"flags together", "-qj a", "json", "", "a"},
        {"flag and value together", "a -qnx", "name", "x", "a"},
        {"behind the operand", "a --mode fast", "mode", "fast", "a"},
        {"a dash is an operand", "- -q", "quick", "", "-"},
        {"nothing is an option behind --", "-q -- --name", "quick", "", "--name"},
        {"value that looks like an option", "--name -q a", "name", "-q", "a"},
        {"duration", "--since 15m a", "since", "15m", "a"},
        {"time", "--since 2026-01-31T12:00:00Z a", "since", "2026-01-31T12:00:00Z", "a"},
    };
    (void)state;
    for (size_t i = 0; i < ROWS(cases); i++) {
        struct ob_cli cli;
        struct ob_err err;
        char words[128];
        snprintf(words, sizeof words, "%s", cases[i].words);
        row_int(cases[i].name, "status", parse(&cli, &work, words, &err), OB_OK);
        row_text(cases[i].name, "value", ob_cli_str(&cli, cases[i].option), cases[i].value);
        row_text(cases[i].name, "operand", cli.operands[0], cases[i].operand);
    }
}

static void test_help_wins(void **state)
{
    struct ob_cli cli;
    struct ob_err err;
    char words[] = "--help --nonsense";
    (void)state;
    assert_int_equal(parse(&cli, &work, words, &err), OB_OK);
    assert_true(cli.help);
}

static void test_nearest(void **state)
{
    static const struct {
        const char *name, *group, *word, *want;
    } cases[] = {
        {"letters swapped", NULL, "wrok", "work"}, {"beginning", NULL, "pla", "plain"},
        {"nothing near", NULL, "zzzzz", NULL},     {"inside a group", "dead", "lst", "list"},
        {"not of a group", NULL, "list", NULL},    {"one letter is too little", NULL, "x", NULL},
    };
    (void)state;
    for (size_t i = 0; i < ROWS(cases); i++) {
        const char *got = ob_cmd_nearest(table, cases[i].group, cases[i].word);
        row_text(cases[i].name, "nearest", got ? got : "(none)",
                 cases[i].want ? cases[i].want : "(none)");
    }
    assert_ptr_equal(ob_cmd_find(table, "dead", "list"), &dead_list);
    assert_ptr_equal(ob_cmd_find(table, "dead", NULL), &dead);
    assert_null(ob_cmd_find(table, "list", NULL));
    assert_null(ob_cmd_find(table, "work", "list"));
}

static void test_time(void **state)
{
    static const struct {
        const char *name, *text;
        int rc;
        int64_t want;
    } cases[] = {
        {"seconds ago", "90s", 0, 1000000000 - 90000000},
        {"minutes ago", "2m", 0, 1000000000 - 120000000},
        {"hours ago", "1h", 0, 1000000000 - 3600000000LL},
        {"days ago", "1d", 0, 1000000000 - 86400000000LL},
        {"a time", "1970-01-01T00:00:01Z", 0, 1000000},
        {"no unit", "90", -1, 0},
        {"unknown unit", "9w", -1, 0},
        {"negative", "-5m", -1, 0},
        {"empty", "", -1, 0},
        {"too long ago", "9999999d", -1, 0},
    };
    (void)state;
    for (size_t i = 0; i < ROWS(cases); i++) {
        int64_t got = 0;
        row_int(cases[i].name, "rc", ob_cli_time_parse(cases[i].text, 1000000000, &got),
                cases[i].rc);
        row_int(cases[i].name, "time", got, cases[i].want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrong),   cmocka_unit_test(test_right),
        cmocka_unit_test(test_nearest), cmocka_unit_test(test_help_wins),
        cmocka_unit_test(test_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
