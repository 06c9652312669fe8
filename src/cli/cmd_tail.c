/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_tail - `outbox tail`: follow new events as they are committed. */
#include "cli/commands.h"
#include "cli/show.h"
#include "core/clock.h"
#include "relay/conf.h"

#include <stdlib.h>
#include <time.h>

#define LOOK_EVERY_MS 200
#define PAGE 1000

struct tail {
    struct ob_cli *cli;
    const char *pipeline;
    const char *type;
    bool json, payload;
    uint64_t from;    /* where to begin */
    uint64_t after;   /* last number seen */
    uint64_t in_page; /* events that the last look brought */
    int64_t left;     /* still to be shown */
    int code;
};

/* The type is looked at here and not by the source: `after` must pass over the others too. */
static bool show_event(void *user, const struct ob_event *ev, const char *state)
{
    struct tail *t = user;
    struct ob_buf out;
    t->after = ev->ref;
    t->in_page++;
    if (t->type && !ob_glob(ob_str_c(t->type), ev->type))
        return t->in_page < PAGE;
    ob_buf_init(&out, 0);
    if (t->json)
        ob_show_event_json(&out, t->pipeline, ev, state, t->payload);
    else
        ob_show_event_row(&out, &t->cli->term, ev, state, t->payload);
    t->code = ob_cli_put(t->cli, &out);
    return --t->left > 0 && t->in_page < PAGE && t->code == OB_EXIT_OK;
}

static bool note_number(void *user, const struct ob_event *ev, const char *state)
{
    (void)state;
    *(uint64_t *)user = ev->ref;
    return true;
}

static int follow(struct ob_cli *cli, const struct ob_cli_pipe *pipe, struct tail *t)
{
    struct ob_err err = {0};
    int64_t end_ms = ob_clock_mono_ms(&ob_clock_system) + ob_cli_int(cli, "seconds", 0) * 1000;
    bool ends = ob_cli_flag(cli, "seconds"), begins = pipe->ops->tail;
    while (t->left > 0 && t->code == OB_EXIT_OK) {
        /* From the very start a limit would mean the newest ones: show_event() stops instead. */
        struct ob_filter f = {.after = t->after, .limit = t->after ? PAGE : 0};
        t->in_page = 0;
        enum ob_status st =
            pipe->ops->tail ? pipe->ops->tail(pipe->admin, t->from, t->payload, show_event, t, &err)
                            : pipe->ops->events(pipe->admin, &f, t->payload, show_event, t, &err);
        /* A writer that holds the lock is no reason to stop following. */
        if (st != OB_OK && (begins || ob_cli_exit_of(st) != OB_EXIT_TEMPORARY))
            return ob_cli_fail_err(cli, t->pipeline, &err);
        begins = false;
        if (fflush(cli->out) != 0)
            return OB_EXIT_FAILURE;
        if (ends && ob_clock_mono_ms(&ob_clock_system) >= end_ms)
            break;
        if (t->in_page < PAGE && t->left > 0)
            nanosleep(&(struct timespec){.tv_nsec = LOOK_EVERY_MS * 1000000L}, NULL);
    }
    return t->code;
}

static int tail(struct ob_cli *cli, const struct ob_cli_pipe *pipe, void *user)
{
    (void)user;
    const char *from = ob_cli_str(cli, "from");
    struct ob_err err = {0};
    struct tail t = {.cli = cli,
                     .pipeline = pipe->conf->name,
                     .type = ob_cli_str(cli, "type"),
                     .json = ob_cli_flag(cli, "json"),
                     .payload = ob_cli_flag(cli, "payload"),
                     .left = ob_cli_int(cli, "limit", INT64_MAX)};
    if (!from || strcmp(from, "now") == 0) {
        struct ob_filter newest = {.limit = 1};
        t.from = OB_TAIL_NOW;
        if (!pipe->ops->tail &&
            pipe->ops->events(pipe->admin, &newest, false, note_number, &t.after, &err) != OB_OK)
            return ob_cli_fail_err(cli, t.pipeline, &err);
    } else if (strcmp(from, "start") != 0) {
        char *end;
        t.from = t.after = strtoull(from, &end, 10);
        if (*from < '0' || *from > '9' || *end)
            return ob_cli_fail(cli, OB_EXIT_USAGE, "--from: '%s' is not now, start or a number",
                               from);
        t.after -= t.after ? 1 : 0;
    }
    return follow(cli, pipe, &t);
}

static int run(struct ob_cli *cli)
{
    return ob_cli_with_pipelines(cli, OB_CLI_ONE, tail, NULL);
}

const struct ob_cmd ob_cmd_tail = {
    .name = "tail",
    .summary = "Follow new events as they are committed",
    .about = "Shows events as they appear at the source, until Ctrl-C, --limit or --seconds. It "
             "reads beside the relay and moves no cursor. In PostgreSQL one that is committed late "
             "is shown when it is there, behind higher numbers.",
    .opts =
        (const struct ob_cli_opt[]){
            {"from", 'f', OB_CLI_STR, "WHERE", NULL, 0, 0, "now",
             "Where to begin: now, start, or the number of an event."},
            {"type", 't', OB_CLI_STR, "GLOB", NULL, 0, 0, NULL, "Only events whose type matches."},
            {"limit", 'l', OB_CLI_INT, "N", NULL, 1, INT64_MAX, "no end",
             "End after so many events."},
            {"seconds", 0, OB_CLI_INT, "N", NULL, 0, 86400, "no end", "End after so many seconds."},
            {"payload", 0, OB_CLI_FLAG, NULL, NULL, 0, 0, NULL,
             "Also show headers, metadata and payload."},
            {0}},
    .shared = OB_CLI_OPTS_CONFIG | OB_CLI_OPTS_PIPELINE | OB_CLI_OPTS_JSON,
    .examples =
        (const struct ob_cli_example[]){
            {"Watch orders come in", "outbox tail --type 'order.*'"},
            {"All that is there, and then what comes", "outbox tail --from start --json"},
            {0}},
    .run = run,
};
