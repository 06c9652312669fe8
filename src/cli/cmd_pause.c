/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_pause - `outbox pause` and `outbox resume`: recorded at the source, so that they outlive the
 * relay. */
#include "cli/commands.h"
#include "core/json.h"
#include "relay/conf.h"
#include "source/admin.h"

static int set_paused(struct ob_cli *cli, const struct ob_cli_pipe *pipe, void *user)
{
    const bool *paused = user;
    struct ob_err err = {0};
    struct ob_buf out;
    if (pipe->ops->pause(pipe->admin, *paused, &err) != OB_OK)
        return ob_cli_fail_err(cli, pipe->conf->name, &err);
    ob_buf_init(&out, 0);
    if (ob_cli_flag(cli, "json")) {
        struct ob_json j;
        ob_json_init(&j, &out);
        ob_json_open(&j, '{');
        ob_json_keyc(&j, "pipeline");
        ob_json_strc(&j, pipe->conf->name);
        ob_json_keyc(&j, "paused");
        ob_json_bool(&j, *paused);
        ob_json_close(&j, '}');
        ob_buf_char(&out, '\n');
    } else {
        ob_buf_printf(&out, "%s: %s\n", pipe->conf->name, *paused ? "paused" : "resumed");
    }
    return ob_cli_put(cli, &out);
}

static int run_pause(struct ob_cli *cli)
{
    bool paused = true;
    return ob_cli_with_pipelines(cli, OB_CLI_ONE, set_paused, &paused);
}

static int run_resume(struct ob_cli *cli)
{
    bool paused = false;
    return ob_cli_with_pipelines(cli, OB_CLI_ONE, set_paused, &paused);
}

const struct ob_cmd ob_cmd_pause = {
    .name = "pause",
    .summary = "Stop a pipeline from publishing until it is resumed",
    .about = "Records at the source that the pipeline is paused. A running relay sees it within "
             "about a second, lets what is in flight settle and claims nothing more; events keep "
             "being collected. It stays paused when the relay is restarted.",
    .shared = OB_CLI_OPTS_CONFIG | OB_CLI_OPTS_PIPELINE | OB_CLI_OPTS_JSON,
    .examples =
        (const struct ob_cli_example[]){
            {"Pause before maintenance of the broker", "outbox pause -p orders"}, {0}},
    .run = run_pause,
};

const struct ob_cmd ob_cmd_resume = {
    .name = "resume",
    .summary = "Let a paused pipeline publish again",
    .about = "Takes back what pause recorded. A running relay goes on within about a second, where "
             "it stopped.",
    .shared = OB_CLI_OPTS_CONFIG | OB_CLI_OPTS_PIPELINE | OB_CLI_OPTS_JSON,
    .examples = (const struct ob_cli_example[]){{"Go on", "outbox resume -p orders"}, {0}},
    .run = run_resume,
};
