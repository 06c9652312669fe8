/* SPDX-License-Identifier: Apache-2.0 */
/* log - one line per decision: an event name and key/values, as logfmt or JSON.
 * Never payloads, never secrets. Thread-safe: a line is one write(2). */
#ifndef OB_CORE_LOG_H
#define OB_CORE_LOG_H

#include "core/clock.h"
#include "core/str.h"

enum ob_log_level { OB_LOG_DEBUG, OB_LOG_INFO, OB_LOG_WARN, OB_LOG_ERROR, OB_LOG_OFF };
enum ob_log_format { OB_LOG_LOGFMT, OB_LOG_JSON };

struct ob_log {
    int fd;
    enum ob_log_level level;
    enum ob_log_format format;
    const struct ob_clock *clock; /* NULL: the system's */
    const char *pipeline;         /* put into every line if set */
    int shard;                    /* likewise if >= 0 */
};

struct ob_kv {
    const char *key;
    enum { OB_KV_STR, OB_KV_INT, OB_KV_BOOL } kind;
    struct ob_str s;
    int64_t i;
};

#define OB_KS(k, v) ((struct ob_kv){.key = (k), .kind = OB_KV_STR, .s = (v)})
#define OB_KC(k, v) ((struct ob_kv){.key = (k), .kind = OB_KV_STR, .s = ob_str_c(v)})
#define OB_KI(k, v) ((struct ob_kv){.key = (k), .kind = OB_KV_INT, .i = (int64_t)(v)})
#define OB_KB(k, v) ((struct ob_kv){.key = (k), .kind = OB_KV_BOOL, .i = (v)})

/* log may be NULL: nothing. A line is at most 8 KiB; values are cut at 1 KiB. */
void ob_log_write(const struct ob_log *log, enum ob_log_level level, const char *event,
                  const struct ob_kv *kv, size_t n);
/* ob_log(log, OB_LOG_INFO, "relay.start", OB_KC("pipeline", name), OB_KI("shard", 0)) */
#define ob_log(log, level, event, ...)                                                             \
    ob_log_write((log), (level), (event), (const struct ob_kv[]){__VA_ARGS__},                     \
                 sizeof((const struct ob_kv[]){__VA_ARGS__}) / sizeof(struct ob_kv))
int ob_log_level_parse(const char *name, enum ob_log_level *out); /* 0 or -1 */

#endif
