/* SPDX-License-Identifier: Apache-2.0 */
/* cli - one invocation: find the command, read its options, run it. */
#include "cli/cli.h"
#include "cli/commands.h"

static int usage_error(const struct ob_cli *cli, const char *text)
{
    struct ob_buf usage;
    ob_buf_init(&usage, 0);
    ob_help_usage(&usage, cli->cmd);
    ob_cli_fail(cli, OB_EXIT_USAGE, "%s", text);
    fprintf(cli->err, "usage: %s\n       outbox %s --help shows options and examples\n",
            ob_buf_z(&usage), cli->cmd->name);
    ob_buf_clear(&usage);
    return OB_EXIT_USAGE;
}

static int unknown_command(const struct ob_cli *cli, const struct ob_cmd *group, const char *word)
{
    const char *near = ob_cmd_nearest(cli->cmds, group ? group->name : NULL, word);
    const char *g = group ? group->name : "", *sp = group ? " " : "";
    fprintf(cli->err, "outbox: unknown %s '%s%s%s'", word[0] == '-' ? "option" : "command", g, sp,
            word);
    if (near)
        fprintf(cli->err, "; did you mean '%s%s%s'?", g, sp, near);
    fprintf(cli->err, "\n        outbox help shows all commands\n");
    return OB_EXIT_USAGE;
}

static int show_help(struct ob_cli *cli)
{
    struct ob_buf out;
    ob_buf_init(&out, 0);
    if (cli->cmd)
        ob_help_command(&out, cli->cmds, cli->cmd, &cli->term);
    else
        ob_help_all(&out, cli->cmds, &cli->term);
    return ob_cli_put(cli, &out);
}

static bool is_help(const char *word)
{
    return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

/* The command that the words name; *used: how many words that took. NULL: *code is the end. */
static const struct ob_cmd *choose(struct ob_cli *cli, int argc, char **argv, int *used, int *code)
{
    const char *word = argc > 1 ? argv[1] : NULL;
    if (!word || is_help(word)) {
        *code = show_help(cli);
        return NULL;
    }
    if (strcmp(word, "--version") == 0 || strcmp(word, "-V") == 0)
        word = "version";
    const struct ob_cmd *cmd = ob_cmd_find(cli->cmds, word, NULL);
    *used = 2;
    if (!cmd || strchr(word, ' ')) {
        *code = unknown_command(cli, NULL, word);
        return NULL;
    }
    if (cmd->run)
        return cmd;
    cli->cmd = cmd;
    if (argc < 3 || is_help(argv[2])) {
        *code = show_help(cli);
        if (argc < 3)
            *code = OB_EXIT_USAGE;
        return NULL;
    }
    const struct ob_cmd *sub = ob_cmd_find(cli->cmds, word, argv[2]);
    *used = 3;
    if (!sub)
        *code = unknown_command(cli, cmd, argv[2]);
    return sub;
}

int ob_cli_main(const struct ob_cmd *const *cmds, int argc, char **argv)
{
    struct ob_cli cli = {.cmds = cmds, .out = stdout, .err = stderr};
    struct ob_err err;
    int code = OB_EXIT_USAGE, used = 0;
    ob_term_init(&cli.term, stdout);
    cli.cmd = choose(&cli, argc, argv, &used, &code);
    if (cli.cmd) {
        enum ob_status st = ob_cli_parse(&cli, argc - used, argv + used, &err);
        if (st != OB_OK)
            code = usage_error(&cli, err.text);
        else
            code = cli.help ? show_help(&cli) : cli.cmd->run(&cli);
    }
    /* A full disk behind standard output is a failure, not a success with half the lines. */
    if ((fflush(stdout) != 0 || ferror(stdout)) && code == OB_EXIT_OK) {
        fprintf(stderr, "outbox: cannot write to standard output\n");
        code = OB_EXIT_FAILURE;
    }
    return code;
}
