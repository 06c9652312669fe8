/* SPDX-License-Identifier: Apache-2.0 */
/* demo_view - a demo under way, as it is shown: redrawn in place on a terminal, else plain lines.
 */
#ifndef OB_CLI_DEMO_VIEW_H
#define OB_CLI_DEMO_VIEW_H

#include "cli/cli.h"
#include "cli/demo_verify.h"
#include "cli/demo_world.h"

enum ob_demo_step {
    OB_DEMO_RUNNING,
    OB_DEMO_SINK_AWAY,
    OB_DEMO_SINK_BACK,
    OB_DEMO_KILLED,
    OB_DEMO_RESTARTED,
    OB_DEMO_DRAINING,
};

struct ob_demo {
    struct ob_cli *cli;
    bool json, keep;
    int64_t seconds;
    struct ob_demo_world world;
    struct ob_demo_writer *writer;
    struct ob_demo_follow follow;
    struct ob_demo_counts counts;
    enum ob_demo_step step;
    int64_t elapsed_ms;
    int64_t drain_from_ms; /* what the wait for the last events counts from */
    int64_t lag_ms, max_lag_ms;
    int64_t shown_ms; /* when the last plain line was */
    bool live;        /* a view is on the screen */
};

void ob_demo_view_start(struct ob_demo *d);
/* Counts again and shows; call often. */
void ob_demo_look(struct ob_demo *d);
/* Something happened. */
void ob_demo_say(struct ob_demo *d, const char *text);
void ob_demo_view_end(struct ob_demo *d);
void ob_demo_summary(struct ob_demo *d, const struct ob_demo_report *r, bool stopped, bool holds);

#endif
