/* SPDX-License-Identifier: Apache-2.0 */
/* main - the table of commands. */
#include "cli/commands.h"
#include "ob_build.h"

/* In the order in which they are shown. */
static const struct ob_cmd *const commands[] = {
/* clang-format off */
#if OB_HAVE_SQLITE
    &ob_cmd_demo,
#endif
    &ob_cmd_init,
    &ob_cmd_schema,
    &ob_cmd_check,
    &ob_cmd_run,
    &ob_cmd_status,
    &ob_cmd_emit,
    &ob_cmd_tail,
    &ob_cmd_events,
    &ob_cmd_dead,
    &ob_cmd_dead_list,
    &ob_cmd_dead_show,
    &ob_cmd_dead_retry,
    &ob_cmd_dead_discard,
    &ob_cmd_pause,
    &ob_cmd_resume,
#if OB_HAVE_SQLITE
    &ob_cmd_bench,
#endif
    &ob_cmd_completion,
    &ob_cmd_man,
    &ob_cmd_help,
    &ob_cmd_version,
    NULL,
    /* clang-format on */
};

int main(int argc, char **argv)
{
    return ob_cli_main(commands, argc, argv);
}
