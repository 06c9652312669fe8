/* SPDX-License-Identifier: Apache-2.0 */
/* commands - what each cmd_*.c gives to the table in main.c. */
#ifndef OB_CLI_COMMANDS_H
#define OB_CLI_COMMANDS_H

#include "cli/cli.h"

extern const struct ob_cmd ob_cmd_demo, ob_cmd_init, ob_cmd_schema, ob_cmd_run, ob_cmd_check,
    ob_cmd_emit, ob_cmd_tail, ob_cmd_status, ob_cmd_events, ob_cmd_dead, ob_cmd_dead_list,
    ob_cmd_dead_show, ob_cmd_dead_retry, ob_cmd_dead_discard, ob_cmd_pause, ob_cmd_resume,
    ob_cmd_bench, ob_cmd_completion, ob_cmd_man, ob_cmd_help, ob_cmd_version;

#endif
