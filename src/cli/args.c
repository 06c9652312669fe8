/* SPDX-License-Identifier: Apache-2.0 */
/* args - finds a command and reads the words behind it by its option table. */
#include "cli/cli.h"
#include "core/clock.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

static const struct ob_cli_opt config_opts[] = {
    {"config", 'c', OB_CLI_FILE, "FILE", NULL, 0, 0,
     "$OUTBOX_CONFIG, ./outbox.yaml, /etc/outbox/outbox.yaml", "The configuration file."},
    {0}};
static const struct ob_cli_opt pipeline_opts[] = {
    {"pipeline", 'p', OB_CLI_STR, "NAME", NULL, 0, 0, NULL,
     "Only this pipeline; needed where the file has several and one is meant."},
    {0}};
static const struct ob_cli_opt json_opts[] = {
    {"json", 'j', OB_CLI_FLAG, NULL, NULL, 0, 0, NULL, "Print JSON, one object per line."}, {0}};
static const struct ob_cli_opt dead_opts[] = {
    {"type", 't', OB_CLI_STR, "GLOB", NULL, 0, 0, NULL, "Only events whose type matches."},
    {"key", 'k', OB_CLI_STR, "GLOB", NULL, 0, 0, NULL, "Only events whose key matches."},
    {"tenant", 0, OB_CLI_STR, "GLOB", NULL, 0, 0, NULL, "Only events whose tenant matches."},
    {"reason", 0, OB_CLI_STR, "GLOB", NULL, 0, 0, NULL, "Only events whose error matches."},
    {"since", 0, OB_CLI_TIME, "TIME", NULL, 0, 0, NULL,
     "Only events that died at or after this time: RFC 3339, or 15m, 2h, 7d ago."},
    {"until", 0, OB_CLI_TIME, "TIME", NULL, 0, 0, NULL, "Only events that died before this time."},
    {0}};
static const struct ob_cli_opt apply_opts[] = {
    {"all", 'a', OB_CLI_FLAG, NULL, NULL, 0, 0, NULL, "Every dead event of the pipeline."},
    {"dry-run", 'n', OB_CLI_FLAG, NULL, NULL, 0, 0, NULL, "Only count; change nothing."},
    {"yes", 'y', OB_CLI_FLAG, NULL, NULL, 0, 0, NULL,
     "Do not ask; needed when standard input is no terminal."},
    {0}};
static const struct ob_cli_opt help_opts[] = {
    {"help", 'h', OB_CLI_FLAG, NULL, NULL, 0, 0, NULL, "Show this help."}, {0}};

static const struct {
    unsigned bit;
    const struct ob_cli_opt *opts;
} shared_opts[] = {
    {OB_CLI_OPTS_DEAD, dead_opts},     {OB_CLI_OPTS_APPLY, apply_opts},
    {OB_CLI_OPTS_CONFIG, config_opts}, {OB_CLI_OPTS_PIPELINE, pipeline_opts},
    {OB_CLI_OPTS_JSON, json_opts},     {~0u, help_opts},
};

const struct ob_cli_opt *ob_cmd_opt(const struct ob_cmd *cmd, size_t i)
{
    for (const struct ob_cli_opt *o = cmd->opts; o && o->name; o++)
        if (i-- == 0)
            return o;
    for (size_t k = 0; k < sizeof shared_opts / sizeof *shared_opts; k++) {
        if (!(cmd->shared & shared_opts[k].bit) && shared_opts[k].bit != ~0u)
            continue;
        for (const struct ob_cli_opt *o = shared_opts[k].opts; o->name; o++)
            if (i-- == 0)
                return o;
    }
    return NULL;
}

/* Position of an option by name (n bytes of it), or by letter if name is NULL. -1: none. */
static int opt_index(const struct ob_cmd *cmd, struct ob_str name, char letter)
{
    const struct ob_cli_opt *o;
    for (size_t i = 0; (o = ob_cmd_opt(cmd, i)); i++)
        if (name.p ? ob_str_eqc(name, o->name) : o->letter == letter)
            return (int)i;
    return -1;
}

bool ob_cmd_inside(const struct ob_cmd *cmd, const struct ob_cmd *group)
{
    size_t n = strlen(group->name);
    return strncmp(cmd->name, group->name, n) == 0 && cmd->name[n] == ' ';
}

const struct ob_cmd *ob_cmd_find(const struct ob_cmd *const *cmds, const char *word,
                                 const char *second)
{
    for (; *cmds; cmds++) {
        const char *name = (*cmds)->name, *space = strchr(name, ' ');
        if (!second ? strcmp(name, word) == 0
                    : space && ob_str_eqc((struct ob_str){name, (size_t)(space - name)}, word) &&
                          strcmp(space + 1, second) == 0)
            return *cmds;
    }
    return NULL;
}

const char *ob_cmd_nearest(const struct ob_cmd *const *cmds, const char *group, const char *word)
{
    const char *best = NULL;
    unsigned best_d = 3; /* two edits at most: further away is another word */
    for (; *cmds; cmds++) {
        const char *space = strchr((*cmds)->name, ' ');
        if (group ? !space || strlen(group) != (size_t)(space - (*cmds)->name) ||
                        strncmp((*cmds)->name, group, strlen(group)) != 0
                  : space != NULL)
            continue;
        const char *name = group ? space + 1 : (*cmds)->name;
        bool begins = strlen(word) >= 2 && strncmp(name, word, strlen(word)) == 0;
        unsigned d = begins ? 0 : ob_distance(ob_str_c(name), ob_str_c(word), 2);
        if (d < best_d && d < strlen(name)) {
            best_d = d;
            best = name;
        }
    }
    return best;
}

static enum ob_status unknown_option(const struct ob_cmd *cmd, struct ob_str name,
                                     struct ob_err *err)
{
    const struct ob_cli_opt *o, *best = NULL;
    unsigned best_d = 3;
    for (size_t i = 0; (o = ob_cmd_opt(cmd, i)); i++) {
        unsigned d = ob_distance(ob_str_c(o->name), name, 2);
        if (d < best_d) {
            best_d = d;
            best = o;
        }
    }
    if (best)
        return ob_err_set(err, OB_REJECT, "unknown option --%.*s; did you mean --%s?",
                          OB_STR_ARG(name), best->name);
    return ob_err_set(err, OB_REJECT, "unknown option --%.*s", OB_STR_ARG(name));
}

static bool in_choices(const char *choices, const char *value)
{
    size_t n = strlen(value);
    for (const char *c = choices; c; c = strchr(c, '|') ? strchr(c, '|') + 1 : NULL)
        if (strncmp(c, value, n) == 0 && (c[n] == '|' || !c[n]) && n > 0)
            return true;
    return false;
}

static int int_parse(const char *text, int64_t *out)
{
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (errno || end == text || *end || *text == ' ')
        return -1;
    *out = v;
    return 0;
}

int ob_cli_time_parse(const char *text, int64_t now_us, int64_t *out)
{
    static const struct {
        const char *unit;
        int64_t us;
    } units[] = {
        {"s", 1000000}, {"m", 60 * 1000000LL}, {"h", 3600 * 1000000LL}, {"d", 86400 * 1000000LL}};
    char *end;
    if (ob_rfc3339_parse(text, strlen(text), out) == 0)
        return 0;
    if (*text < '0' || *text > '9')
        return -1;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (errno || v > 1000000)
        return -1;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (strcmp(end, units[i].unit) == 0) {
            *out = now_us - v * units[i].us;
            return 0;
        }
    return -1;
}

static enum ob_status check_value(const struct ob_cli_opt *o, const char *value, struct ob_err *err)
{
    int64_t v;
    if (o->kind == OB_CLI_INT) {
        if (int_parse(value, &v) != 0)
            return ob_err_set(err, OB_REJECT, "--%s: '%s' is not a whole number", o->name, value);
        if ((o->min || o->max) && (v < o->min || v > o->max))
            return ob_err_set(err, OB_REJECT, "--%s: %s is outside %" PRId64 " to %" PRId64,
                              o->name, value, o->min, o->max);
    }
    if (o->kind == OB_CLI_TIME && ob_cli_time_parse(value, 0, &v) != 0)
        return ob_err_set(err, OB_REJECT,
                          "--%s: '%s' is no time; write 2026-01-31T12:00:00Z, or 15m, 2h, 7d for "
                          "so long ago",
                          o->name, value);
    if (o->kind == OB_CLI_CHOICE && !in_choices(o->choices, value))
        return ob_err_set(err, OB_REJECT, "--%s: '%s' is not one of %s", o->name, value,
                          o->choices);
    return OB_OK;
}

static enum ob_status take(struct ob_cli *cli, size_t i, const char *value, struct ob_err *err)
{
    const struct ob_cli_opt *o = ob_cmd_opt(cli->cmd, i);
    if (i >= OB_CLI_MAX_OPTS)
        return ob_err_set(err, OB_FATAL, "too many options in the table");
    if (cli->values[i] && o->kind != OB_CLI_FLAG)
        return ob_err_set(err, OB_REJECT, "--%s is given twice", o->name);
    cli->values[i] = value;
    return check_value(o, value, err);
}

/* --name, --name=value or --name value. *i is moved over a value that was used. */
static enum ob_status parse_long(struct ob_cli *cli, int argc, char **argv, int *i,
                                 struct ob_err *err)
{
    const char *word = argv[*i] + 2, *eq = strchr(word, '=');
    struct ob_str name = {word, eq ? (size_t)(eq - word) : strlen(word)};
    int at = opt_index(cli->cmd, name, 0);
    if (at < 0)
        return unknown_option(cli->cmd, name, err);
    const struct ob_cli_opt *o = ob_cmd_opt(cli->cmd, (size_t)at);
    if (o->kind == OB_CLI_FLAG) {
        if (eq)
            return ob_err_set(err, OB_REJECT, "--%s takes no value", o->name);
        return take(cli, (size_t)at, "", err);
    }
    if (eq)
        return take(cli, (size_t)at, eq + 1, err);
    if (*i + 1 >= argc)
        return ob_err_set(err, OB_REJECT, "--%s needs a value (%s)", o->name, o->meta);
    return take(cli, (size_t)at, argv[++*i], err);
}

/* -j, -jy, -cFILE or -c FILE. */
static enum ob_status parse_short(struct ob_cli *cli, int argc, char **argv, int *i,
                                  struct ob_err *err)
{
    enum ob_status st = OB_OK;
    for (const char *p = argv[*i] + 1; *p && st == OB_OK; p++) {
        int at = opt_index(cli->cmd, (struct ob_str){0}, *p);
        if (at < 0)
            return ob_err_set(err, OB_REJECT, "unknown option -%c", *p);
        const struct ob_cli_opt *o = ob_cmd_opt(cli->cmd, (size_t)at);
        if (o->kind == OB_CLI_FLAG) {
            st = take(cli, (size_t)at, "", err);
            continue;
        }
        if (p[1])
            return take(cli, (size_t)at, p + 1, err);
        if (*i + 1 >= argc)
            return ob_err_set(err, OB_REJECT, "-%c needs a value (%s)", *p, o->meta);
        return take(cli, (size_t)at, argv[++*i], err);
    }
    return st;
}

static enum ob_status parse_operand(struct ob_cli *cli, const char *word, struct ob_err *err)
{
    const struct ob_cmd *cmd = cli->cmd;
    if (cli->n_operands >= cmd->max_operands || cli->n_operands >= OB_CLI_MAX_OPERANDS) {
        if (!cmd->max_operands)
            return ob_err_set(err, OB_REJECT, "takes no operand, but '%s' was given", word);
        return ob_err_set(err, OB_REJECT, "one operand too many: '%s'", word);
    }
    if (cmd->operand_choices && !in_choices(cmd->operand_choices, word))
        return ob_err_set(err, OB_REJECT, "'%s' is not one of %s", word, cmd->operand_choices);
    cli->operands[cli->n_operands++] = word;
    return OB_OK;
}

enum ob_status ob_cli_parse(struct ob_cli *cli, int argc, char **argv, struct ob_err *err)
{
    enum ob_status st = OB_OK;
    bool ended = false;
    for (int i = 0; i < argc && st == OB_OK; i++) {
        if (ended || argv[i][0] != '-' || !argv[i][1])
            st = parse_operand(cli, argv[i], err);
        else if (strcmp(argv[i], "--") == 0)
            ended = true;
        else if (argv[i][1] == '-')
            st = parse_long(cli, argc, argv, &i, err);
        else
            st = parse_short(cli, argc, argv, &i, err);
        if (ob_cli_flag(cli, "help")) {
            cli->help = true;
            return OB_OK;
        }
    }
    if (st == OB_OK && cli->n_operands < cli->cmd->min_operands)
        st = ob_err_set(err, OB_REJECT, "needs %s", cli->cmd->operands);
    return st;
}

const char *ob_cli_str(const struct ob_cli *cli, const char *name)
{
    int at = opt_index(cli->cmd, ob_str_c(name), 0);
    return at >= 0 && at < OB_CLI_MAX_OPTS ? cli->values[at] : NULL;
}

bool ob_cli_flag(const struct ob_cli *cli, const char *name)
{
    return ob_cli_str(cli, name) != NULL;
}

int64_t ob_cli_int(const struct ob_cli *cli, const char *name, int64_t otherwise)
{
    const char *text = ob_cli_str(cli, name);
    int64_t v = otherwise;
    return text && int_parse(text, &v) == 0 ? v : otherwise;
}

int64_t ob_cli_time(const struct ob_cli *cli, const char *name, int64_t now_us)
{
    const char *text = ob_cli_str(cli, name);
    int64_t v = 0;
    return text && ob_cli_time_parse(text, now_us, &v) == 0 ? v : 0;
}
