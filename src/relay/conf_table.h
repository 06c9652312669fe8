/* SPDX-License-Identifier: Apache-2.0 */
/* conf_table - the option tables of the config file outside the drivers. */
#ifndef OB_RELAY_CONF_TABLE_H
#define OB_RELAY_CONF_TABLE_H

#include "event/limits.h"
#include "relay/conf.h"

/* The sections of the top level. */
struct ob_top_nodes {
    const struct ob_node *log, *pipelines;
};

/* The sections of a pipeline that are read by others. */
struct ob_pipeline_nodes {
    const struct ob_node *source, *sink, *retry;
};

struct ob_end_type {
    const char *type;
};

extern const struct ob_opt ob_top_opts[];            /* struct ob_top_nodes */
extern const struct ob_opt ob_log_opts[];            /* struct ob_config */
extern const struct ob_opt ob_pipeline_opts[];       /* struct ob_pipeline_conf */
extern const struct ob_opt ob_pipeline_node_opts[];  /* struct ob_pipeline_nodes */
extern const struct ob_opt ob_pipeline_route_opts[]; /* struct ob_route_conf */
extern const struct ob_opt ob_retry_opts[];          /* struct ob_pipeline_conf */
extern const struct ob_opt ob_source_type_opts[];    /* struct ob_end_type */
extern const struct ob_opt ob_sink_type_opts[];      /* struct ob_pipeline_conf */

#endif
