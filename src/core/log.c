/* SPDX-License-Identifier: Apache-2.0 */
/* log - one line per decision: an event name and key/values, as logfmt or JSON.
 *
 * logfmt: ts=2026-02-03T04:05:06.789Z level=info msg=relay.start pipeline=orders shard=0 n=3
 * JSON:   {"ts":"2026-02-03T04:05:06.789Z","level":"info","msg":"relay.start",...}
 * A value is cut at 1 KiB and then ends with an ellipsis. Pairs that no longer fit the line are
 * left out and the line ends with cut=true. */
#include "core/log.h"

#include "core/json.h"
#include "core/utf8.h"

#include <errno.h>
#include <unistd.h>

#define LINE_MAX_BYTES 8192u
#define VALUE_MAX 1024u
#define TAIL_MAX 16u /* cut=true, the bracket, the line end */
#define ELLIPSIS "\xe2\x80\xa6"

static const char *const level_names[] = {"debug", "info", "warn", "error", "off"};

int ob_log_level_parse(const char *name, enum ob_log_level *out)
{
    for (size_t i = 0; name && i < sizeof(level_names) / sizeof(level_names[0]); i++)
        if (strcmp(name, level_names[i]) == 0) {
            *out = (enum ob_log_level)i;
            return 0;
        }
    return -1;
}

/* Printable ASCII without what logfmt readers cut words at. */
static bool is_word(unsigned char c)
{
    return c > ' ' && c < 0x7f && c != '"' && c != '=' && c != '\\';
}

static bool is_bare(struct ob_str s)
{
    for (size_t i = 0; i < s.n; i++)
        if (!is_word((unsigned char)s.p[i]))
            return false;
    return s.n > 0;
}

static void logfmt_key(struct ob_buf *line, const char *key)
{
    for (const char *p = key; *p; p++)
        ob_buf_char(line, is_word((unsigned char)*p) ? *p : '_');
}

static void put_text(struct ob_buf *line, enum ob_log_format format, struct ob_str s)
{
    bool cut = s.n > VALUE_MAX;
    bool quote;

    if (format == OB_LOG_JSON && !s.p) {
        ob_buf_c(line, "null");
        return;
    }
    if (cut)
        s.n = ob_utf8_cut(s.p, VALUE_MAX);
    quote = format == OB_LOG_JSON || cut || !is_bare(s);
    if (quote)
        ob_buf_char(line, '"');
    ob_json_escape(line, s);
    if (cut)
        ob_buf_c(line, ELLIPSIS);
    if (quote)
        ob_buf_char(line, '"');
}

static void put_pair(struct ob_buf *line, enum ob_log_format format, const struct ob_kv *kv)
{
    if (format == OB_LOG_JSON) {
        ob_buf_c(line, line->n > 1 ? ",\"" : "\"");
        ob_json_escape(line, ob_str_c(kv->key));
        ob_buf_c(line, "\":");
    } else {
        if (line->n)
            ob_buf_char(line, ' ');
        logfmt_key(line, kv->key);
        ob_buf_char(line, '=');
    }
    switch (kv->kind) {
    case OB_KV_STR:
        put_text(line, format, kv->s);
        break;
    case OB_KV_INT:
        ob_buf_printf(line, "%lld", (long long)kv->i);
        break;
    case OB_KV_BOOL:
        ob_buf_c(line, kv->i ? "true" : "false");
        break;
    }
}

static bool has_key(const struct ob_kv *kv, size_t n, const char *key)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(kv[i].key, key) == 0)
            return true;
    return false;
}

/* False when the line is full: then it is as it was before. */
static bool try_pair(struct ob_buf *line, enum ob_log_format format, const struct ob_kv *kv)
{
    size_t before = line->n;

    put_pair(line, format, kv);
    if (!line->failed)
        return true;
    line->n = before;
    line->failed = false;
    return false;
}

static void build(struct ob_buf *line, const struct ob_log *log, enum ob_log_level level,
                  const char *event, const struct ob_kv *kv, size_t n)
{
    const struct ob_clock *clock = log->clock ? log->clock : &ob_clock_system;
    char time[OB_RFC3339_MAX];
    size_t length = ob_rfc3339(ob_clock_wall_us(clock), time);
    struct ob_kv head[5];
    size_t heads = 0;
    bool whole = true;

    head[heads++] = OB_KS("ts", ((struct ob_str){time, length}));
    head[heads++] = OB_KC("level", level_names[level]);
    head[heads++] = OB_KC("msg", event);
    if (log->pipeline && !has_key(kv, n, "pipeline"))
        head[heads++] = OB_KC("pipeline", log->pipeline);
    if (log->shard >= 0 && !has_key(kv, n, "shard"))
        head[heads++] = OB_KI("shard", log->shard);
    if (log->format == OB_LOG_JSON)
        ob_buf_char(line, '{');
    for (size_t i = 0; i < heads && whole; i++)
        whole = try_pair(line, log->format, &head[i]);
    for (size_t i = 0; i < n && whole; i++)
        whole = try_pair(line, log->format, &kv[i]);
    line->ceiling = line->cap = LINE_MAX_BYTES;
    if (!whole)
        put_pair(line, log->format, &OB_KB("cut", true));
    ob_buf_c(line, log->format == OB_LOG_JSON ? "}\n" : "\n");
}

void ob_log_write(const struct ob_log *log, enum ob_log_level level, const char *event,
                  const struct ob_kv *kv, size_t n)
{
    char memory[LINE_MAX_BYTES + 1];
    /* cap is the ceiling: it never grows, so it may stand on the stack. */
    struct ob_buf line = {
        .p = memory, .cap = LINE_MAX_BYTES - TAIL_MAX, .ceiling = LINE_MAX_BYTES - TAIL_MAX};
    int saved = errno;

    if (!log || level < log->level || level >= OB_LOG_OFF)
        return;
    build(&line, log, level, event, kv, n);
    for (const char *p = line.p, *end = line.p + line.n; p < end;) {
        ssize_t done = write(log->fd, p, (size_t)(end - p));

        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            break; /* a log that cannot be written must not stop the relay */
        p += done;
    }
    errno = saved;
}
