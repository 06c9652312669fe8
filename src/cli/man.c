/* SPDX-License-Identifier: Apache-2.0 */
/* man - man pages in roff, made of the table of commands. */
#include "cli/cli.h"
#include "ob_build.h"

/* Text of a roff line: '\' and '-' are escaped, a leading '.' or '\'' is hidden from roff. */
static void roff(struct ob_buf *out, const char *text)
{
    bool line_start = true;
    for (; *text; text++) {
        if (line_start && (*text == '.' || *text == '\''))
            ob_buf_c(out, "\\&");
        if (*text == '\\')
            ob_buf_c(out, "\\e");
        else if (*text == '-')
            ob_buf_c(out, "\\-");
        else
            ob_buf_char(out, *text);
        line_start = *text == '\n';
    }
}

/* An empty line between paragraphs becomes .PP */
static void roff_paragraphs(struct ob_buf *out, const char *text)
{
    const char *gap;
    while ((gap = strstr(text, "\n\n"))) {
        struct ob_buf part;
        ob_buf_init(&part, 0);
        ob_buf_put(&part, text, (size_t)(gap - text));
        roff(out, ob_buf_z(&part));
        ob_buf_clear(&part);
        ob_buf_c(out, "\n.PP\n");
        text = gap + 2;
    }
    roff(out, text);
    ob_buf_char(out, '\n');
}

static void roff_title(struct ob_buf *out, const char *name, const char *summary)
{
    ob_buf_c(out, ".TH OUTBOX");
    for (const char *p = name; *p; p++)
        ob_buf_char(out, *p == ' ' ? '-' : (char)(*p >= 'a' && *p <= 'z' ? *p - 32 : *p));
    ob_buf_printf(out, " 1 \"\" \"outbox %s\" \"Outbox\"\n.SH NAME\noutbox", OB_VERSION);
    struct ob_buf page;
    ob_buf_init(&page, 0);
    for (const char *p = name; *p; p++)
        ob_buf_char(&page, *p == ' ' ? '-' : *p);
    roff(out, ob_buf_z(&page));
    ob_buf_clear(&page);
    ob_buf_c(out, " \\- ");
    roff(out, summary);
    ob_buf_char(out, '\n');
}

static void roff_options(struct ob_buf *out, const struct ob_cmd *cmd)
{
    const struct ob_cli_opt *o;
    struct ob_buf tmp;
    ob_buf_init(&tmp, 0);
    for (size_t i = 0; (o = ob_cmd_opt(cmd, i)); i++) {
        ob_buf_reset(&tmp);
        ob_help_opt_names(&tmp, o);
        ob_buf_c(out, ".TP\n.B ");
        roff(out, ob_buf_z(&tmp));
        ob_buf_char(out, '\n');
        roff(out, o->help);
        ob_buf_char(out, '\n');
        if (o->def) {
            ob_buf_c(out, "Default: ");
            roff(out, o->def);
            ob_buf_c(out, ".\n");
        }
    }
    ob_buf_clear(&tmp);
}

static void roff_examples(struct ob_buf *out, const struct ob_cmd *cmd)
{
    for (const struct ob_cli_example *e = cmd->examples; e && e->what; e++) {
        ob_buf_c(out, ".PP\n");
        roff(out, e->what);
        ob_buf_c(out, "\n.PP\n.nf\n.RS\n");
        roff(out, e->command);
        ob_buf_c(out, "\n.RE\n.fi\n");
    }
}

static void roff_ends(struct ob_buf *out)
{
    ob_buf_c(out, ".SH EXIT STATUS\n");
    for (const struct ob_cli_exit_text *e = ob_cli_exits; e->what; e++) {
        ob_buf_printf(out, ".TP\n.B %d\n", e->code);
        roff(out, e->what);
        ob_buf_char(out, '\n');
    }
    ob_buf_c(out, ".SH ENVIRONMENT\n");
    for (const struct ob_cli_env_text *e = ob_cli_envs; e->name; e++) {
        ob_buf_c(out, ".TP\n.B ");
        roff(out, e->name);
        ob_buf_char(out, '\n');
        roff(out, e->what);
        ob_buf_char(out, '\n');
    }
}

static void roff_usage(struct ob_buf *out, const struct ob_cmd *cmd)
{
    struct ob_buf tmp;
    ob_buf_init(&tmp, 0);
    ob_help_usage(&tmp, cmd);
    ob_buf_c(out, ".SH SYNOPSIS\n.B ");
    roff(out, ob_buf_z(&tmp));
    ob_buf_char(out, '\n');
    ob_buf_clear(&tmp);
}

static void man_command(struct ob_buf *out, const struct ob_cmd *const *cmds,
                        const struct ob_cmd *cmd)
{
    struct ob_buf name;
    ob_buf_init(&name, 0);
    ob_buf_printf(&name, " %s", cmd->name);
    roff_title(out, ob_buf_z(&name), cmd->summary);
    ob_buf_clear(&name);
    roff_usage(out, cmd);
    ob_buf_c(out, ".SH DESCRIPTION\n");
    roff_paragraphs(out, cmd->about);
    if (cmd->run) {
        ob_buf_c(out, ".SH OPTIONS\n");
        roff_options(out, cmd);
    }
    for (; *cmds && !cmd->run; cmds++) {
        if (!ob_cmd_inside(*cmds, cmd))
            continue;
        ob_buf_c(out, ".SH OUTBOX ");
        for (const char *p = (*cmds)->name; *p; p++)
            ob_buf_char(out, (char)(*p >= 'a' && *p <= 'z' ? *p - 32 : *p));
        ob_buf_char(out, '\n');
        roff_paragraphs(out, (*cmds)->about);
        roff_options(out, *cmds);
        roff_examples(out, *cmds);
    }
    if (cmd->examples) {
        ob_buf_c(out, ".SH EXAMPLES\n");
        roff_examples(out, cmd);
    }
    roff_ends(out);
    ob_buf_c(out, ".SH SEE ALSO\n.BR outbox (1)\n");
}

void ob_man(struct ob_buf *out, const struct ob_cmd *const *cmds, const struct ob_cmd *cmd)
{
    if (cmd) {
        man_command(out, cmds, cmd);
        return;
    }
    roff_title(out, "", "moves events committed in a database to a message broker");
    ob_buf_c(out, ".SH SYNOPSIS\n.B outbox COMMAND [options]\n.SH DESCRIPTION\n");
    roff_paragraphs(out, "Outbox reads events that an application wrote in its own transactions "
                         "and publishes them: nothing committed is lost, nothing uncommitted "
                         "escapes, events of one key stay in order.");
    ob_buf_c(out, ".SH COMMANDS\n");
    for (; *cmds; cmds++) {
        if (strchr((*cmds)->name, ' '))
            continue;
        ob_buf_c(out, ".TP\n.B outbox ");
        roff(out, (*cmds)->name);
        ob_buf_char(out, '\n');
        roff(out, (*cmds)->summary);
        ob_buf_printf(out, ". See\n.BR outbox\\-%s (1).\n", (*cmds)->name);
    }
    roff_ends(out);
}
