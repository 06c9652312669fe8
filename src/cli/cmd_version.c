/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_version - `outbox version`: what this binary is and which drivers are in it. */
#include "cli/commands.h"
#include "core/json.h"
#include "ob_build.h"
#include "relay/drivers.h"

static void version_json(struct ob_buf *out)
{
    struct ob_json j;
    ob_json_init(&j, out);
    ob_json_open(&j, '{');
    ob_json_keyc(&j, "version");
    ob_json_strc(&j, OB_VERSION);
    ob_json_keyc(&j, "sources");
    ob_json_open(&j, '[');
    for (size_t i = 0; ob_source_drivers[i]; i++)
        ob_json_strc(&j, ob_source_drivers[i]->name);
    ob_json_close(&j, ']');
    ob_json_keyc(&j, "sinks");
    ob_json_open(&j, '[');
    for (size_t i = 0; ob_sink_drivers[i]; i++)
        ob_json_strc(&j, ob_sink_drivers[i]->name);
    ob_json_close(&j, ']');
    ob_json_close(&j, '}');
    ob_buf_char(out, '\n');
}

static int run(struct ob_cli *cli)
{
    struct ob_buf out;
    ob_buf_init(&out, 0);
    if (ob_cli_flag(cli, "json")) {
        version_json(&out);
        return ob_cli_put(cli, &out);
    }
    ob_buf_printf(&out, "outbox %s\nsources:", OB_VERSION);
    for (size_t i = 0; ob_source_drivers[i]; i++)
        ob_buf_printf(&out, " %s", ob_source_drivers[i]->name);
    ob_buf_c(&out, "\nsinks:");
    for (size_t i = 0; ob_sink_drivers[i]; i++)
        ob_buf_printf(&out, " %s", ob_sink_drivers[i]->name);
    ob_buf_char(&out, '\n');
    return ob_cli_put(cli, &out);
}

const struct ob_cmd ob_cmd_version = {
    .name = "version",
    .summary = "Show the version and the drivers in this binary",
    .about = "Shows the version of this binary and which sources and sinks were built into it.",
    .shared = OB_CLI_OPTS_JSON,
    .examples =
        (const struct ob_cli_example[]){
            {"Only the number", "outbox version --json | jq -r .version"}, {0}},
    .run = run,
};
