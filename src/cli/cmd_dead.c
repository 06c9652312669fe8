/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_dead - `outbox dead list|show|retry|discard`: events that wait for a person's decision. */
#include "cli/commands.h"
#include "cli/show.h"
#include "core/clock.h"
#include "core/json.h"
#include "relay/conf.h"

#include <unistd.h>

static struct ob_filter filter_of(const struct ob_cli *cli)
{
    int64_t now = ob_clock_wall_us(&ob_clock_system);
    return (struct ob_filter){.id = cli->n_operands ? cli->operands[0] : NULL,
                              .type = ob_cli_str(cli, "type"),
                              .key = ob_cli_str(cli, "key"),
                              .tenant = ob_cli_str(cli, "tenant"),
                              .reason = ob_cli_str(cli, "reason"),
                              .since_us = ob_cli_time(cli, "since", now),
                              .until_us = ob_cli_time(cli, "until", now)};
}

static bool chooses(const struct ob_filter *f)
{
    return f->id || f->type || f->key || f->tenant || f->reason || f->since_us || f->until_us;
}

struct listing {
    struct ob_cli *cli;
    const char *pipeline;
    size_t shown;
    bool full, head;
    int code;
};

static bool show_dead(void *user, const struct ob_dead *d)
{
    struct listing *l = user;
    struct ob_buf out;
    ob_buf_init(&out, 0);
    if (ob_cli_flag(l->cli, "json"))
        ob_show_dead_json(&out, l->pipeline, d, l->full);
    else if (l->full)
        ob_show_dead_full(&out, &l->cli->term, l->pipeline, d);
    else if (!l->head)
        ob_show_dead_head(&out, &l->cli->term);
    if (!ob_cli_flag(l->cli, "json") && !l->full) {
        l->head = true;
        ob_show_dead_row(&out, &l->cli->term, l->pipeline, d);
    }
    l->shown++;
    l->code = ob_cli_put(l->cli, &out);
    return l->code == OB_EXIT_OK;
}

static int list(struct ob_cli *cli, const struct ob_cli_pipe *pipe, void *user)
{
    struct listing *l = user;
    struct ob_filter f = filter_of(cli);
    struct ob_err err = {0};
    f.limit = (size_t)ob_cli_int(cli, "limit", 0);
    l->pipeline = pipe->conf->name;
    if (pipe->ops->dead_list(pipe->admin, &f, l->full, show_dead, l, &err) != OB_OK)
        return ob_cli_fail_err(cli, l->pipeline, &err);
    return l->code;
}

static int run_list(struct ob_cli *cli)
{
    struct listing l = {.cli = cli};
    int code = ob_cli_with_pipelines(cli, OB_CLI_EACH, list, &l);
    if (code == OB_EXIT_OK && !l.shown && !ob_cli_flag(cli, "json"))
        fprintf(cli->out, "no dead events\n");
    return code;
}

static int run_show(struct ob_cli *cli)
{
    struct listing l = {.cli = cli, .full = true};
    int code = ob_cli_with_pipelines(cli, OB_CLI_EACH, list, &l);
    if (code == OB_EXIT_OK && !l.shown)
        code = ob_cli_fail(cli, OB_EXIT_FAILURE, "no dead event has the id %s", cli->operands[0]);
    return code;
}

static const char *past(const char *verb)
{
    return strcmp(verb, "retry") == 0 ? "retried" : "discarded";
}

/* "y" on a terminal, or --yes. */
static int agreed(const struct ob_cli *cli, const char *verb, size_t n, const char *pipeline)
{
    char line[16] = "";
    if (ob_cli_flag(cli, "yes"))
        return OB_EXIT_OK;
    if (!isatty(STDIN_FILENO))
        return ob_cli_fail(cli, OB_EXIT_USAGE,
                           "%zu event%s would be %s; say --yes, because nobody can be asked here",
                           n, n == 1 ? "" : "s", past(verb));
    fprintf(cli->err, "%s %zu dead event%s of %s? [y/N] ", verb, n, n == 1 ? "" : "s", pipeline);
    fflush(cli->err);
    if (!fgets(line, sizeof line, stdin) || (line[0] != 'y' && line[0] != 'Y'))
        return ob_cli_fail(cli, OB_EXIT_FAILURE, "nothing was changed");
    return OB_EXIT_OK;
}

static int tell_done(const struct ob_cli *cli, const char *pipeline, const char *verb, size_t n,
                     bool dry)
{
    struct ob_buf out;
    ob_buf_init(&out, 0);
    if (ob_cli_flag(cli, "json")) {
        struct ob_json j;
        ob_json_init(&j, &out);
        ob_json_open(&j, '{');
        ob_json_keyc(&j, "pipeline");
        ob_json_strc(&j, pipeline);
        ob_json_keyc(&j, "action");
        ob_json_strc(&j, verb);
        ob_json_keyc(&j, "dry_run");
        ob_json_bool(&j, dry);
        ob_json_keyc(&j, "events");
        ob_json_uint(&j, n);
        ob_json_close(&j, '}');
        ob_buf_char(&out, '\n');
    } else {
        ob_buf_printf(&out, "%s: %zu event%s %s%s\n", pipeline, n, n == 1 ? "" : "s",
                      dry ? "would be " : "", past(verb));
    }
    return ob_cli_put(cli, &out);
}

static int act(struct ob_cli *cli, const struct ob_cli_pipe *pipe, void *user)
{
    const enum ob_dead_action *action = user;
    const char *verb = *action == OB_DEAD_RETRY ? "retry" : "discard";
    struct ob_filter f = filter_of(cli);
    struct ob_err err = {0};
    size_t n = 0;
    bool dry = ob_cli_flag(cli, "dry-run");
    if (pipe->ops->dead_do(pipe->admin, *action, &f, true, &n, &err) != OB_OK)
        return ob_cli_fail_err(cli, pipe->conf->name, &err);
    if (f.id && !n)
        return ob_cli_fail(cli, OB_EXIT_FAILURE, "no dead event has the id %s", f.id);
    if (n && !dry) {
        int code = agreed(cli, verb, n, pipe->conf->name);
        if (code != OB_EXIT_OK)
            return code;
        if (pipe->ops->dead_do(pipe->admin, *action, &f, false, &n, &err) != OB_OK)
            return ob_cli_fail_err(cli, pipe->conf->name, &err);
    }
    return tell_done(cli, pipe->conf->name, verb, n, dry);
}

static int run_action(struct ob_cli *cli, enum ob_dead_action action)
{
    struct ob_filter f = filter_of(cli);
    bool all = ob_cli_flag(cli, "all");
    if (!chooses(&f) && !all)
        return ob_cli_fail(cli, OB_EXIT_USAGE, "which events? give an ID, a filter, or --all");
    if (f.id && (all || f.type || f.key || f.tenant || f.reason || f.since_us || f.until_us))
        return ob_cli_fail(cli, OB_EXIT_USAGE, "give either an ID or a filter, not both");
    return ob_cli_with_pipelines(cli, OB_CLI_ONE, act, &action);
}

static int run_retry(struct ob_cli *cli)
{
    return run_action(cli, OB_DEAD_RETRY);
}

static int run_discard(struct ob_cli *cli)
{
    return run_action(cli, OB_DEAD_DISCARD);
}

const struct ob_cmd ob_cmd_dead = {
    .name = "dead",
    .summary = "List, show, retry or discard dead events",
    .about = "An event is dead when its sink rejected it for good or it failed max_attempts times. "
             "It keeps its payload, error and history, and nothing happens to it until a person "
             "decides.",
    .examples = (const struct ob_cli_example[]){{"Which are there?", "outbox dead list"},
                                                {"Try all of one type again",
                                                 "outbox dead retry --type 'order.*'"},
                                                {0}},
};

const struct ob_cmd ob_cmd_dead_list = {
    .name = "dead list",
    .summary = "List dead events",
    .about = "One row per dead event, of all pipelines or of one. With --json: pipeline, id, key, "
             "type, attempts, error, at.",
    .opts = (const struct ob_cli_opt[]){{"limit", 'l', OB_CLI_INT, "N", NULL, 1, 1000000000,
                                         "no limit", "At most so many of each pipeline."},
                                        {0}},
    .shared = OB_CLI_OPTS_DEAD | OB_CLI_OPTS_CONFIG | OB_CLI_OPTS_PIPELINE | OB_CLI_OPTS_JSON,
    .examples = (const struct ob_cli_example[]){{"Since yesterday", "outbox dead list --since 1d"},
                                                {"Count by error",
                                                 "outbox dead list --json | jq -r .error | sort | "
                                                 "uniq -c"},
                                                {0}},
    .run = run_list,
};

const struct ob_cmd ob_cmd_dead_show = {
    .name = "dead show",
    .summary = "Show one dead event with payload and history",
    .about = "Shows everything that is known of a dead event: its fields, payload, last error and "
             "each failed attempt.",
    .operands = "ID",
    .min_operands = 1,
    .max_operands = 1,
    .shared = OB_CLI_OPTS_CONFIG | OB_CLI_OPTS_PIPELINE | OB_CLI_OPTS_JSON,
    .examples =
        (const struct ob_cli_example[]){
            {"Why did it fail?", "outbox dead show 0190b6c2-7f1e-7abc-8def-0123456789ab"}, {0}},
    .run = run_show,
};

const struct ob_cmd ob_cmd_dead_retry = {
    .name = "dead retry",
    .summary = "Give dead events to the relay again",
    .about = "Counts the events that are meant and asks before anything is changed; --yes answers, "
             "--dry-run only counts. All are handed over in one transaction and events of one key "
             "keep their order. They start with fresh attempts.",
    .operands = "[ID]",
    .max_operands = 1,
    .shared = OB_CLI_OPTS_DEAD | OB_CLI_OPTS_APPLY | OB_CLI_OPTS_CONFIG | OB_CLI_OPTS_PIPELINE |
              OB_CLI_OPTS_JSON,
    .examples =
        (const struct ob_cli_example[]){
            {"One", "outbox dead retry 0190b6c2-7f1e-7abc-8def-0123456789ab"},
            {"How many would it be?", "outbox dead retry --reason '*too large*' --dry-run"},
            {"All of the last hour, from a script", "outbox dead retry -p orders --since 1h --yes"},
            {0}},
    .run = run_retry,
};

const struct ob_cmd ob_cmd_dead_discard = {
    .name = "dead discard",
    .summary = "Give dead events up for good",
    .about =
        "Removes dead events: they will not be published. Keys that wait behind them (on_dead: "
        "park) go on. Counts and asks like retry.",
    .operands = "[ID]",
    .max_operands = 1,
    .shared = OB_CLI_OPTS_DEAD | OB_CLI_OPTS_APPLY | OB_CLI_OPTS_CONFIG | OB_CLI_OPTS_PIPELINE |
              OB_CLI_OPTS_JSON,
    .examples =
        (const struct ob_cli_example[]){
            {"Everything of a test tenant", "outbox dead discard --tenant test-*"}, {0}},
    .run = run_discard,
};
