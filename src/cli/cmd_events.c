/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_events - `outbox events`: look at the events of a pipeline, whatever became of them. */
#include "cli/commands.h"
#include "cli/show.h"
#include "core/clock.h"
#include "relay/conf.h"

#include <inttypes.h>

struct listing {
    struct ob_cli *cli;
    const char *pipeline, *state;
    bool json, payload;
    int64_t skip, left;
    int code;
};

static bool count_event(void *user, const struct ob_event *ev, const char *state)
{
    struct listing *l = user;
    (void)ev;
    l->skip += strcmp(l->state, state) == 0 ? 1 : 0;
    return true;
}

static bool show_event(void *user, const struct ob_event *ev, const char *state)
{
    struct listing *l = user;
    struct ob_buf out;
    if (l->state && strcmp(l->state, state) != 0)
        return true;
    if (l->skip > 0) {
        l->skip--;
        return true;
    }
    ob_buf_init(&out, 0);
    if (l->json)
        ob_show_event_json(&out, l->pipeline, ev, state, l->payload);
    else
        ob_show_event_row(&out, &l->cli->term, ev, state, l->payload);
    l->code = ob_cli_put(l->cli, &out);
    return --l->left > 0 && l->code == OB_EXIT_OK;
}

static int list(struct ob_cli *cli, const struct ob_cli_pipe *pipe, void *user)
{
    (void)user;
    int64_t now = ob_clock_wall_us(&ob_clock_system);
    struct ob_err err = {0};
    struct listing l = {.cli = cli,
                        .pipeline = pipe->conf->name,
                        .state = ob_cli_str(cli, "state"),
                        .json = ob_cli_flag(cli, "json"),
                        .payload = ob_cli_flag(cli, "payload"),
                        .left = ob_cli_int(cli, "limit", 100)};
    struct ob_filter f = {.id = cli->n_operands ? cli->operands[0] : NULL,
                          .type = ob_cli_str(cli, "type"),
                          .key = ob_cli_str(cli, "key"),
                          .tenant = ob_cli_str(cli, "tenant"),
                          .since_us = ob_cli_time(cli, "since", now),
                          .until_us = ob_cli_time(cli, "until", now),
                          .after = (uint64_t)ob_cli_int(cli, "after", 0),
                          /* The state is looked at here, so the source cannot count for us. */
                          .limit = l.state ? 0 : (size_t)l.left};
    enum ob_status st = OB_OK;
    if (l.state && !f.after) /* the newest ones: all but the last so many are passed over */
        st = pipe->ops->events(pipe->admin, &f, false, count_event, &l, &err);
    l.skip = l.skip > l.left ? l.skip - l.left : 0;
    if (!l.json) {
        struct ob_buf head;
        ob_buf_init(&head, 0);
        ob_show_event_head(&head, &cli->term);
        ob_cli_put(cli, &head);
    }
    if (st == OB_OK)
        st = pipe->ops->events(pipe->admin, &f, l.payload, show_event, &l, &err);
    if (st != OB_OK)
        return ob_cli_fail_err(cli, l.pipeline, &err);
    return l.code;
}

static int run(struct ob_cli *cli)
{
    return ob_cli_with_pipelines(cli, OB_CLI_ONE, list, NULL);
}

const struct ob_cmd ob_cmd_events = {
    .name = "events",
    .summary = "List events with their state: pending, published, parked or dead",
    .about =
        "Lists the newest events, by rising number, at most --limit of them. With --after those "
        "behind a number, so that a script can go on with the last number shown. Payloads are "
        "shown only with --payload.",
    .operands = "[ID]",
    .max_operands = 1,
    .opts =
        (const struct ob_cli_opt[]){
            {"type", 't', OB_CLI_STR, "GLOB", NULL, 0, 0, NULL, "Only events whose type matches."},
            {"key", 'k', OB_CLI_STR, "GLOB", NULL, 0, 0, NULL, "Only events whose key matches."},
            {"tenant", 0, OB_CLI_STR, "GLOB", NULL, 0, 0, NULL,
             "Only events whose tenant matches."},
            {"state", 's', OB_CLI_CHOICE, "STATE", "pending|published|parked|dead|discarded", 0, 0,
             NULL, "Only events in this state."},
            {"since", 0, OB_CLI_TIME, "TIME", NULL, 0, 0, NULL,
             "Only events written at or after this time: RFC 3339, or 15m, 2h, 7d ago."},
            {"until", 0, OB_CLI_TIME, "TIME", NULL, 0, 0, NULL,
             "Only events written before this time."},
            {"after", 0, OB_CLI_INT, "NUMBER", NULL, 0, INT64_MAX, "0",
             "Only events with a larger number."},
            {"limit", 'l', OB_CLI_INT, "N", NULL, 1, 1000000000, "100", "At most so many."},
            {"payload", 0, OB_CLI_FLAG, NULL, NULL, 0, 0, NULL,
             "Also show headers, metadata and payload."},
            {0}},
    .shared = OB_CLI_OPTS_CONFIG | OB_CLI_OPTS_PIPELINE | OB_CLI_OPTS_JSON,
    .examples =
        (const struct ob_cli_example[]){
            {"What waits?", "outbox events --state pending"},
            {"One order's events, with payload", "outbox events --key order-17 --payload"},
            {"Count by type in the last hour", "outbox events --since 1h --limit 1000000 --json | "
                                               "jq -r .type | sort | uniq -c"},
            {0}},
    .run = run,
};
