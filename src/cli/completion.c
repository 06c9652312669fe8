/* SPDX-License-Identifier: Apache-2.0 */
/* completion - completions for bash, zsh and fish, made of the table of commands. */
#include "cli/cli.h"
#include "cli/commands.h"

static bool top(const struct ob_cmd *cmd)
{
    return strchr(cmd->name, ' ') == NULL;
}

/* Text inside '…' of a shell; zsh also gives [ ] and : a meaning there. */
static void quoted(struct ob_buf *out, const char *text, bool zsh)
{
    for (; *text; text++) {
        if (*text == '\'')
            ob_buf_c(out, "'\\''");
        else if (zsh && strchr("[]:", *text))
            ob_buf_printf(out, "\\%c", *text);
        else
            ob_buf_char(out, *text);
    }
}

static void words_of(struct ob_buf *out, const char *choices)
{
    for (; *choices; choices++)
        ob_buf_char(out, *choices == '|' ? ' ' : *choices);
}

/* The words that may follow a command: options, and what its operands can be. */
static void words(struct ob_buf *out, const struct ob_cmd *const *cmds, const struct ob_cmd *cmd)
{
    const struct ob_cli_opt *o;
    if (!cmd->run) {
        for (; *cmds; cmds++)
            if (ob_cmd_inside(*cmds, cmd))
                ob_buf_printf(out, "%s ", strchr((*cmds)->name, ' ') + 1);
        ob_buf_c(out, "--help");
        return;
    }
    if (cmd->operand_choices) {
        words_of(out, cmd->operand_choices);
        ob_buf_char(out, ' ');
    }
    for (size_t i = 0; (o = ob_cmd_opt(cmd, i)); i++)
        ob_buf_printf(out, "%s--%s", i ? " " : "", o->name);
}

static void bash_values(struct ob_buf *out, const struct ob_cmd *cmd)
{
    const struct ob_cli_opt *o;
    for (size_t i = 0; (o = ob_cmd_opt(cmd, i)); i++) {
        if (o->kind == OB_CLI_FLAG)
            continue;
        ob_buf_printf(out, "    '%s/--%s'", cmd->name, o->name);
        if (o->letter)
            ob_buf_printf(out, " | '%s/-%c'", cmd->name, o->letter);
        if (o->kind == OB_CLI_FILE) {
            ob_buf_c(out, ") COMPREPLY=($(compgen -f -- \"$cur\")); return ;;\n");
        } else {
            ob_buf_c(out, ") COMPREPLY=($(compgen -W '");
            if (o->choices)
                words_of(out, o->choices);
            ob_buf_c(out, "' -- \"$cur\")); return ;;\n");
        }
    }
}

static void bash(struct ob_buf *out, const struct ob_cmd *const *cmds)
{
    ob_buf_c(out, "# bash completion for outbox\n"
                  "# shellcheck shell=bash disable=SC2207\n"
                  "_outbox() {\n"
                  "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}\n"
                  "  local cmd=${COMP_WORDS[1]} words=''\n"
                  "  COMPREPLY=()\n"
                  "  if ((COMP_CWORD == 1)); then\n    words='");
    for (const struct ob_cmd *const *c = cmds; *c; c++)
        if (top(*c))
            ob_buf_printf(out, "%s ", (*c)->name);
    ob_buf_c(out, "--help --version'\n"
                  "    COMPREPLY=($(compgen -W \"$words\" -- \"$cur\")); return\n  fi\n");
    for (const struct ob_cmd *const *c = cmds; *c; c++)
        if (!(*c)->run)
            ob_buf_printf(out,
                          "  if [[ $cmd == %s ]] && ((COMP_CWORD > 2)); then cmd=\"%s "
                          "${COMP_WORDS[2]}\"; fi\n",
                          (*c)->name, (*c)->name);
    ob_buf_c(out, "  case \"$cmd/$prev\" in\n");
    for (const struct ob_cmd *const *c = cmds; *c; c++)
        if ((*c)->run)
            bash_values(out, *c);
    ob_buf_c(out, "  esac\n  case \"$cmd\" in\n");
    for (const struct ob_cmd *const *c = cmds; *c; c++) {
        ob_buf_printf(out, "    '%s') words='", (*c)->name);
        words(out, cmds, *c);
        ob_buf_c(out, "' ;;\n");
    }
    ob_buf_c(out, "  esac\n"
                  "  COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
                  "}\n"
                  "complete -o bashdefault -F _outbox outbox\n");
}

static void zsh_command(struct ob_buf *out, const struct ob_cmd *cmd)
{
    const struct ob_cli_opt *o;
    ob_buf_printf(out, "    '%s')\n      _arguments -s", cmd->name);
    for (size_t i = 0; (o = ob_cmd_opt(cmd, i)); i++) {
        ob_buf_c(out, " \\\n        ");
        if (o->letter)
            ob_buf_printf(out, "'(-%c --%s)'{-%c,--%s}", o->letter, o->name, o->letter, o->name);
        else
            ob_buf_printf(out, "--%s", o->name);
        ob_buf_c(out, "'[");
        quoted(out, o->help, true);
        ob_buf_char(out, ']');
        if (o->kind == OB_CLI_FILE) {
            ob_buf_c(out, ":file:_files");
        } else if (o->kind == OB_CLI_CHOICE) {
            ob_buf_printf(out, ":%s:(", o->name);
            words_of(out, o->choices);
            ob_buf_char(out, ')');
        } else if (o->kind != OB_CLI_FLAG) {
            ob_buf_printf(out, ":%s: ", o->name);
        }
        ob_buf_char(out, '\'');
    }
    if (cmd->operand_choices) {
        ob_buf_c(out, " \\\n        '1:operand:(");
        words_of(out, cmd->operand_choices);
        ob_buf_c(out, ")'");
    }
    ob_buf_c(out, " ;;\n");
}

/* One line "name:summary" per command of a group, or of the top. */
static void zsh_list(struct ob_buf *out, const struct ob_cmd *const *cmds,
                     const struct ob_cmd *group)
{
    ob_buf_c(out, "local -a commands; commands=(");
    for (; *cmds; cmds++) {
        if (group ? !ob_cmd_inside(*cmds, group) : !top(*cmds))
            continue;
        ob_buf_printf(out, " '%s:", group ? strchr((*cmds)->name, ' ') + 1 : (*cmds)->name);
        quoted(out, (*cmds)->summary, true);
        ob_buf_char(out, '\'');
    }
    ob_buf_c(out, " ); _describe command commands; return\n");
}

static void zsh(struct ob_buf *out, const struct ob_cmd *const *cmds)
{
    ob_buf_c(out, "#compdef outbox\n_outbox() {\n"
                  "  if ((CURRENT == 2)); then\n    ");
    zsh_list(out, cmds, NULL);
    ob_buf_c(out, "  fi\n  local cmd=$words[2]\n");
    for (const struct ob_cmd *const *c = cmds; *c; c++) {
        if ((*c)->run)
            continue;
        ob_buf_printf(out, "  if [[ $cmd == %s ]]; then\n    if ((CURRENT == 3)); then\n      ",
                      (*c)->name);
        zsh_list(out, cmds, *c);
        ob_buf_printf(out, "    fi\n    cmd=\"%s $words[3]\"; shift words; ((CURRENT--))\n  fi\n",
                      (*c)->name);
    }
    ob_buf_c(out, "  shift words; ((CURRENT--))\n  case \"$cmd\" in\n");
    for (const struct ob_cmd *const *c = cmds; *c; c++)
        if ((*c)->run)
            zsh_command(out, *c);
    ob_buf_c(out, "  esac\n}\n"
                  "if [ \"$funcstack[1]\" = _outbox ]; then _outbox \"$@\"; else compdef _outbox "
                  "outbox; fi\n");
}

static void fish_command(struct ob_buf *out, const struct ob_cmd *cmd)
{
    const struct ob_cli_opt *o;
    const char *space = strchr(cmd->name, ' ');
    struct ob_buf when;
    ob_buf_init(&when, 0);
    if (space)
        ob_buf_printf(&when, "__fish_seen_subcommand_from %.*s; and __fish_seen_subcommand_from %s",
                      (int)(space - cmd->name), cmd->name, space + 1);
    else
        ob_buf_printf(&when, "__fish_seen_subcommand_from %s", cmd->name);
    for (size_t i = 0; cmd->run && (o = ob_cmd_opt(cmd, i)); i++) {
        ob_buf_printf(out, "complete -c outbox -n '%s' -l %s", ob_buf_z(&when), o->name);
        if (o->letter)
            ob_buf_printf(out, " -s %c", o->letter);
        if (o->kind == OB_CLI_FILE)
            ob_buf_c(out, " -r -F");
        else if (o->kind != OB_CLI_FLAG)
            ob_buf_c(out, " -x");
        if (o->choices) {
            ob_buf_c(out, " -a '");
            words_of(out, o->choices);
            ob_buf_char(out, '\'');
        }
        ob_buf_c(out, " -d '");
        quoted(out, o->help, false);
        ob_buf_c(out, "'\n");
    }
    if (cmd->operand_choices) {
        ob_buf_printf(out, "complete -c outbox -n '%s' -a '", ob_buf_z(&when));
        words_of(out, cmd->operand_choices);
        ob_buf_c(out, "'\n");
    }
    ob_buf_clear(&when);
}

static void fish(struct ob_buf *out, const struct ob_cmd *const *cmds)
{
    ob_buf_c(out, "# fish completion for outbox\ncomplete -c outbox -f\n");
    for (const struct ob_cmd *const *c = cmds; *c; c++) {
        const char *space = strchr((*c)->name, ' ');
        if (space)
            ob_buf_printf(out, "complete -c outbox -n '__fish_seen_subcommand_from %.*s' -a %s",
                          (int)(space - (*c)->name), (*c)->name, space + 1);
        else
            ob_buf_printf(out, "complete -c outbox -n __fish_use_subcommand -a %s", (*c)->name);
        ob_buf_c(out, " -d '");
        quoted(out, (*c)->summary, false);
        ob_buf_c(out, "'\n");
    }
    for (const struct ob_cmd *const *c = cmds; *c; c++)
        fish_command(out, *c);
}

void ob_completion(struct ob_buf *out, const struct ob_cmd *const *cmds, const char *shell)
{
    if (strcmp(shell, "bash") == 0)
        bash(out, cmds);
    else if (strcmp(shell, "zsh") == 0)
        zsh(out, cmds);
    else
        fish(out, cmds);
}
