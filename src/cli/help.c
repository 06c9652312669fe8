/* SPDX-License-Identifier: Apache-2.0 */
/* help - help texts and docs/cli.md, made of the table of commands. */
#include "cli/cli.h"

#define OPT_COLUMN 28

const struct ob_cli_exit_text ob_cli_exits[] = {
    {OB_EXIT_OK, "Done."},
    {OB_EXIT_FAILURE, "It could not be done, a check found a problem, or nothing matched."},
    {OB_EXIT_USAGE, "The command line is wrong: unknown command or option, bad value."},
    {OB_EXIT_TEMPORARY, "Not now: the database is locked, or not there. Try again later."},
    {OB_EXIT_CONFIG, "The configuration file is missing or wrong."},
    {OB_EXIT_INTERRUPTED, "Ended by Ctrl-C."},
    {0, NULL}};

const struct ob_cli_env_text ob_cli_envs[] = {
    {"OUTBOX_CONFIG", "The configuration file, where -c is not given."},
    {"OUTBOX_PROFILES", "The folder with profiles."},
    {"NO_COLOR", "Not empty: no colours. There are none either where output is no terminal."},
    {"TMPDIR", "Where demo puts its temporary folder (default /tmp)."},
    {"NOTIFY_SOCKET, WATCHDOG_USEC",
     "Set by systemd: run then reports READY, RELOADING, STOPPING and WATCHDOG."},
    {NULL, NULL}};

static void spaces(struct ob_buf *out, size_t n)
{
    while (n--)
        ob_buf_char(out, ' ');
}

void ob_help_wrap(struct ob_buf *out, const char *text, unsigned indent, unsigned width)
{
    size_t col = 0;
    for (const char *p = text; *p;) {
        if (p[0] == '\n' && p[1] == '\n') {
            ob_buf_c(out, "\n\n");
            col = 0;
            p += 2;
            continue;
        }
        if (*p == ' ' || *p == '\n') {
            p++;
            continue;
        }
        size_t n = strcspn(p, " \n");
        if (col && indent + col + 1 + n > width) {
            ob_buf_char(out, '\n');
            col = 0;
        }
        if (col)
            ob_buf_char(out, ' ');
        else
            spaces(out, indent);
        ob_buf_put(out, p, n);
        col += n + (col ? 1 : 0);
        p += n;
    }
    ob_buf_char(out, '\n');
}

void ob_help_usage(struct ob_buf *out, const struct ob_cmd *cmd)
{
    ob_buf_printf(out, "outbox %s %s", cmd->name, cmd->run ? "[options]" : "COMMAND");
    if (cmd->operands)
        ob_buf_printf(out, " %s", cmd->operands);
}

void ob_help_opt_names(struct ob_buf *out, const struct ob_cli_opt *o)
{
    if (o->letter)
        ob_buf_printf(out, "-%c, ", o->letter);
    ob_buf_printf(out, "--%s", o->name);
    if (o->kind == OB_CLI_CHOICE)
        ob_buf_printf(out, " %s", o->choices);
    else if (o->kind != OB_CLI_FLAG)
        ob_buf_printf(out, " %s", o->meta);
}

static void heading(struct ob_buf *out, const struct ob_term *t, const char *text)
{
    ob_buf_printf(out, "\n%s%s%s\n", ob_term_c(t, OB_C_BOLD), text, ob_term_c(t, OB_C_RESET));
}

/* A name and, from a column on, its text. */
static void two_columns(struct ob_buf *out, struct ob_str name, const char *text, unsigned column,
                        unsigned width)
{
    struct ob_buf tmp;
    ob_buf_init(&tmp, 0);
    ob_help_wrap(&tmp, text, column, width);
    ob_buf_c(out, "  ");
    ob_buf_str(out, name);
    if (name.n + 4 > column) {
        ob_buf_char(out, '\n');
        ob_buf_str(out, ob_buf_view(&tmp));
    } else if (tmp.n > column) {
        spaces(out, column - 2 - name.n);
        ob_buf_put(out, tmp.p + column, tmp.n - column);
    }
    ob_buf_clear(&tmp);
}

static void opt_text(struct ob_buf *out, const struct ob_cli_opt *o)
{
    ob_buf_c(out, o->help);
    if (o->def)
        ob_buf_printf(out, " Default: %s.", o->def);
}

static void opt_list(struct ob_buf *out, const struct ob_cmd *cmd, unsigned width)
{
    const struct ob_cli_opt *o;
    struct ob_buf name, text;
    ob_buf_init(&name, 0);
    ob_buf_init(&text, 0);
    for (size_t i = 0; (o = ob_cmd_opt(cmd, i)); i++) {
        ob_buf_reset(&name);
        ob_buf_reset(&text);
        if (!o->letter)
            ob_buf_c(&name, "    ");
        ob_help_opt_names(&name, o);
        opt_text(&text, o);
        two_columns(out, ob_buf_view(&name), ob_buf_z(&text), OPT_COLUMN, width);
    }
    ob_buf_clear(&name);
    ob_buf_clear(&text);
}

static unsigned help_width(const struct ob_term *t)
{
    return t->width > 100 ? 100 : t->width;
}

void ob_help_command(struct ob_buf *out, const struct ob_cmd *const *cmds, const struct ob_cmd *cmd,
                     const struct ob_term *t)
{
    unsigned width = help_width(t);
    ob_buf_printf(out, "%soutbox %s%s - %s\n\nUsage: ", ob_term_c(t, OB_C_BOLD), cmd->name,
                  ob_term_c(t, OB_C_RESET), cmd->summary);
    ob_help_usage(out, cmd);
    ob_buf_c(out, "\n\n");
    ob_help_wrap(out, cmd->about, 0, width);
    if (!cmd->run) {
        heading(out, t, "Commands");
        for (; *cmds; cmds++)
            if (ob_cmd_inside(*cmds, cmd))
                two_columns(out, ob_str_c((*cmds)->name), (*cmds)->summary, 18, width);
    } else {
        heading(out, t, "Options");
        opt_list(out, cmd, width);
    }
    heading(out, t, "Examples");
    for (const struct ob_cli_example *e = cmd->examples; e && e->what; e++) {
        ob_help_wrap(out, e->what, 2, width);
        ob_buf_printf(out, "    %s\n", e->command);
    }
}

void ob_help_all(struct ob_buf *out, const struct ob_cmd *const *cmds, const struct ob_term *t)
{
    unsigned width = help_width(t);
    ob_buf_printf(out,
                  "%soutbox%s - moves events committed in a database to a message broker\n\n"
                  "Usage: outbox COMMAND [options]\n",
                  ob_term_c(t, OB_C_BOLD), ob_term_c(t, OB_C_RESET));
    heading(out, t, "Commands");
    for (; *cmds; cmds++)
        if (!strchr((*cmds)->name, ' '))
            two_columns(out, ob_str_c((*cmds)->name), (*cmds)->summary, 14, width);
    heading(out, t, "Exit codes");
    for (const struct ob_cli_exit_text *e = ob_cli_exits; e->what; e++) {
        char code[8];
        snprintf(code, sizeof code, "%d", e->code);
        two_columns(out, ob_str_c(code), e->what, 14, width);
    }
    heading(out, t, "Start here");
    ob_buf_c(out, "  outbox demo                see it work, in 15 seconds\n"
                  "  outbox init                write a configuration file\n"
                  "  outbox help COMMAND        options and examples of a command\n");
}

/* Text for a table cell: a bar would end the cell. */
static void md_cell(struct ob_buf *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '|')
            ob_buf_char(out, '\\');
        ob_buf_char(out, *text);
    }
}

static void md_options(struct ob_buf *out, const struct ob_cmd *cmd)
{
    const struct ob_cli_opt *o;
    struct ob_buf tmp;
    ob_buf_init(&tmp, 0);
    ob_buf_c(out, "\n| option | meaning |\n|---|---|\n");
    for (size_t i = 0; (o = ob_cmd_opt(cmd, i)); i++) {
        ob_buf_reset(&tmp);
        ob_help_opt_names(&tmp, o);
        ob_buf_c(out, "| `");
        md_cell(out, ob_buf_z(&tmp));
        ob_buf_c(out, "` | ");
        ob_buf_reset(&tmp);
        opt_text(&tmp, o);
        md_cell(out, ob_buf_z(&tmp));
        ob_buf_c(out, " |\n");
    }
    ob_buf_clear(&tmp);
}

static void md_command(struct ob_buf *out, const struct ob_cmd *cmd)
{
    ob_buf_printf(out, "\n%s outbox %s\n\n%s.\n\n```\n", strchr(cmd->name, ' ') ? "###" : "##",
                  cmd->name, cmd->summary);
    ob_help_usage(out, cmd);
    ob_buf_c(out, "\n```\n\n");
    ob_help_wrap(out, cmd->about, 0, 100);
    if (cmd->run)
        md_options(out, cmd);
    if (cmd->examples)
        ob_buf_c(out, "\n```sh\n");
    for (const struct ob_cli_example *e = cmd->examples; e && e->what; e++)
        ob_buf_printf(out, "# %s\n%s\n", e->what, e->command);
    if (cmd->examples)
        ob_buf_c(out, "```\n");
}

void ob_help_markdown(struct ob_buf *out, const struct ob_cmd *const *cmds)
{
    ob_buf_c(out,
             "<!-- Written by `outbox help --markdown`; do not edit. -->\n"
             "# The command line\n\n"
             "One binary, `outbox`. Every command has `--help` with examples. Where `--json` is "
             "offered, output\nis one JSON object per line on standard output; messages for "
             "people go to standard error.\n\n## Exit codes\n\n| code | meaning |\n|---|---|\n");
    for (const struct ob_cli_exit_text *e = ob_cli_exits; e->what; e++)
        ob_buf_printf(out, "| %d | %s |\n", e->code, e->what);
    ob_buf_c(out, "\n## Environment\n\n| variable | meaning |\n|---|---|\n");
    for (const struct ob_cli_env_text *e = ob_cli_envs; e->name; e++)
        ob_buf_printf(out, "| `%s` | %s |\n", e->name, e->what);
    for (; *cmds; cmds++)
        md_command(out, *cmds);
}
