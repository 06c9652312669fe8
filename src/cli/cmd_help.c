/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_help - `outbox help`, `man` and `completion`: the texts made of the table. */
#include "cli/commands.h"

/* The command that the operands name. -1: there is none, which has been told. */
static int named(struct ob_cli *cli, const struct ob_cmd **out)
{
    const char *first = cli->n_operands > 0 ? cli->operands[0] : NULL;
    const char *second = cli->n_operands > 1 ? cli->operands[1] : NULL;
    *out = first ? ob_cmd_find(cli->cmds, first, second) : NULL;
    if (first && !*out) {
        const struct ob_cmd *group = second ? ob_cmd_find(cli->cmds, first, NULL) : NULL;
        const char *near = group ? ob_cmd_nearest(cli->cmds, first, second)
                                 : ob_cmd_nearest(cli->cmds, NULL, first);
        ob_cli_fail(cli, OB_EXIT_USAGE, "there is no command '%s%s%s'%s%s%s", first,
                    second ? " " : "", second ? second : "", near ? "; did you mean '" : "",
                    near ? near : "", near ? "'?" : "");
        return -1;
    }
    return 0;
}

static int run_help(struct ob_cli *cli)
{
    const struct ob_cmd *cmd;
    struct ob_buf out;
    if (named(cli, &cmd) != 0)
        return OB_EXIT_USAGE;
    ob_buf_init(&out, 0);
    if (ob_cli_flag(cli, "markdown"))
        ob_help_markdown(&out, cli->cmds);
    else if (cmd)
        ob_help_command(&out, cli->cmds, cmd, &cli->term);
    else
        ob_help_all(&out, cli->cmds, &cli->term);
    return ob_cli_put(cli, &out);
}

static int run_man(struct ob_cli *cli)
{
    const struct ob_cmd *cmd;
    struct ob_buf out;
    if (named(cli, &cmd) != 0)
        return OB_EXIT_USAGE;
    ob_buf_init(&out, 0);
    ob_man(&out, cli->cmds, cmd);
    return ob_cli_put(cli, &out);
}

static int run_completion(struct ob_cli *cli)
{
    struct ob_buf out;
    ob_buf_init(&out, 0);
    ob_completion(&out, cli->cmds, cli->operands[0]);
    return ob_cli_put(cli, &out);
}

const struct ob_cmd ob_cmd_help = {
    .name = "help",
    .summary = "Show all commands, or the options and examples of one",
    .about = "Shows the same text as --help behind a command.",
    .operands = "[COMMAND [COMMAND]]",
    .max_operands = 2,
    .opts = (const struct ob_cli_opt[]){{"markdown", 0, OB_CLI_FLAG, NULL, NULL, 0, 0, NULL,
                                         "Print the page of all commands (docs/cli.md)."},
                                        {0}},
    .examples =
        (const struct ob_cli_example[]){{"How to retry dead events", "outbox help dead retry"},
                                        {0}},
    .run = run_help,
};

const struct ob_cmd ob_cmd_man = {
    .name = "man",
    .summary = "Print a man page",
    .about = "Prints a man page in roff on standard output: of outbox, or of one command.",
    .operands = "[COMMAND [COMMAND]]",
    .max_operands = 2,
    .examples =
        (const struct ob_cli_example[]){
            {"Read the page of run", "outbox man run | man -l -"},
            {"Install the main page", "outbox man > /usr/local/share/man/man1/outbox.1"},
            {0}},
    .run = run_man,
};

const struct ob_cmd ob_cmd_completion = {
    .name = "completion",
    .summary = "Print completions for a shell",
    .about = "Prints a script on standard output with which bash, zsh or fish completes commands, "
             "options and their values.",
    .operands = "bash|zsh|fish",
    .operand_choices = "bash|zsh|fish",
    .min_operands = 1,
    .max_operands = 1,
    .examples =
        (const struct ob_cli_example[]){{"In this bash", "source <(outbox completion bash)"},
                                        {"For fish, for good",
                                         "outbox completion fish > "
                                         "~/.config/fish/completions/outbox.fish"},
                                        {0}},
    .run = run_completion,
};
