/* SPDX-License-Identifier: Apache-2.0 */
/* conf - the config file as structs: pipelines with their drivers' own structs filled from the
 * option tables. */
#ifndef OB_RELAY_CONF_H
#define OB_RELAY_CONF_H

#include "config/explain.h"
#include "config/node.h"
#include "config/secret.h"
#include "core/log.h"
#include "route/route.h"
#include "sink/sink.h"
#include "source/source.h"

struct ob_pipeline_conf {
    const char *name;
    struct ob_opt_pos pos;
    const char *profile; /* NULL: none */
    const struct ob_source_driver *source;
    const void *source_conf;
    const struct ob_sink_driver *sink;
    const void *sink_conf;
    const char *sink_type;
    bool require_tls;          /* refuse a sink whose connections do not use TLS */
    struct ob_opt_list topics; /* globs that events may be sent to; empty: all */
    struct ob_route_conf route;
    const char *service; /* default: the pipeline's name */
    int64_t shards;
    int64_t window, window_bytes;
    struct ob_limits limits;
    int64_t max_attempts, max_attempts_cap;
    int64_t retry_first_ms, retry_max_ms, retry_factor_pct, retry_jitter_pct;
    int64_t publish_timeout_ms, park_after_ms, blocked_max_ms, stuck_after_ms, grace_ms;
    int order;   /* enum ob_order: strict|pipelined */
    bool dlt;    /* dead events also go to {topic}.dlt */
    int on_dead; /* enum ob_on_dead: continue|park */
};

struct ob_config {
    struct ob_arena *arena; /* owns everything */
    const char *file;
    int log_format, log_level;
    struct ob_pipeline_conf *pipelines;
    size_t n;
    struct ob_explain explain;
    struct ob_secret_places secrets; /* files that hold secrets as plain text */
};

#define OB_PIPELINES_MAX 256

/* file NULL: $OUTBOX_CONFIG, ./outbox.yaml, /etc/outbox/outbox.yaml. OB_FATAL with
 * "file:line:column: …": one problem per line, as many as fit. `profile: NAME` merges NAME.yaml of
 * $OUTBOX_PROFILES, the installed profiles or ./profiles under the user's values. */
enum ob_status ob_config_load(const char *file, struct ob_config **out,
                              struct ob_err *err) OB_MUST_CHECK;
/* The same; problems (may be NULL) gets up to ten, one per line, however long they are. */
enum ob_status ob_config_load_all(const char *file, struct ob_config **out, struct ob_buf *problems,
                                  struct ob_err *err) OB_MUST_CHECK;
/* The same from memory; name stands for the file in messages. */
enum ob_status ob_config_parse(const char *name, struct ob_str text, struct ob_config **out,
                               struct ob_buf *problems, struct ob_err *err) OB_MUST_CHECK;
void ob_config_free(struct ob_config *c);
/* NULL if there is none of that name; name NULL: the only one, or NULL if there are several. */
const struct ob_pipeline_conf *ob_config_pipeline(const struct ob_config *c, const char *name);
/* Whether `sink.topics` allows events (letter: dead letters) to be sent to this topic. A
 * dead-letter topic is allowed where its origin, without `.dlt`, is. */
bool ob_pipeline_allows(const struct ob_pipeline_conf *conf, struct ob_str topic, bool letter);
/* The resulting config, every value with where it came from; secrets hidden. */
void ob_config_explain(const struct ob_config *c, struct ob_buf *out);
void ob_config_explain_json(const struct ob_config *c, struct ob_buf *out);
/* docs/config.md, from the option tables. */
void ob_config_docs(struct ob_buf *out);

#endif
