/* SPDX-License-Identifier: Apache-2.0 */
/* lines - a batch of messages as JSON lines, ready for one writev(2). */
#include "sink/lines.h"

#include "core/clock.h"
#include "core/jscan.h"
#include "core/json.h"
#include "core/utf8.h"
#include "sink/jcheck.h"

#include <stdlib.h>

/* From this size on a payload is cheaper to refer to than to copy. Twice OB_LINES_PARTS of them do
 * not fit into any sensible batch, so a batch seldom ends for want of parts. */
#define BORROW_FROM ((size_t)16 * 1024)
/* Memory beyond a usual batch is given back after a batch that needed it. */
#define KEEP_FACTOR 2
#define SLACK ((size_t)1 << 20)
/* At least what a line has beside its texts: names, quotes, time; and of each header. */
#define FIXED 256
#define HEADER 8

enum ob_status ob_lines_init(struct ob_lines *l, size_t limit, size_t max_line, struct ob_err *err)
{
    *l = (struct ob_lines){.limit = limit, .max_line = max_line, .second = INT64_MIN};
    ob_buf_init(&l->buf, limit + max_line + SLACK);
    l->parts = calloc(OB_LINES_PARTS, sizeof(*l->parts));
    l->iov = calloc(OB_LINES_PARTS, sizeof(*l->iov));
    if (!l->parts || !l->iov) {
        ob_lines_clear(l);
        return ob_err_set(err, OB_FATAL, "no memory for a batch of lines");
    }
    return OB_OK;
}

void ob_lines_clear(struct ob_lines *l)
{
    ob_buf_clear(&l->buf);
    free(l->parts);
    free(l->iov);
    l->parts = NULL;
    l->iov = NULL;
}

void ob_lines_reset(struct ob_lines *l)
{
    if (l->buf.cap > KEEP_FACTOR * l->limit) {
        size_t ceiling = l->buf.ceiling;
        ob_buf_clear(&l->buf);
        ob_buf_init(&l->buf, ceiling);
    }
    ob_buf_reset(&l->buf);
    l->bytes = l->n_parts = l->open = 0;
}

/* ---- fields ----
 *
 * Room for a whole line without escapes is made once (reserve), then its parts are put without
 * asking. A string that needs escapes goes the slow way and makes room again. */

static void reserve(struct ob_buf *b, size_t need)
{
    static const char zeros[4096];
    size_t n = b->n;
    while (b->cap - n < need && !b->failed) {
        size_t more = need - (b->n - n);
        ob_buf_put(b, zeros, more < sizeof(zeros) ? more : sizeof(zeros));
    }
    b->n = n;
}

static inline void put(struct ob_buf *b, const char *p, size_t n)
{
    memcpy(b->p + b->n, p, n);
    b->n += n;
}

#define PUT(b, lit) put((b), (lit), sizeof(lit) - 1)

/* Copies s if it may stand in a JSON string as it is. */
static inline bool put_plain(struct ob_buf *b, struct ob_str s)
{
    char *out = b->p + b->n;
    size_t i = 0;
    for (; i + 8 <= s.n; i += 8) {
        if (ob_json_special8(s.p + i))
            return false;
        memcpy(out + i, s.p + i, 8);
    }
    for (; i < s.n; i++) {
        unsigned char c = (unsigned char)s.p[i];
        if (c < 0x20 || c >= 0x80 || c == '"' || c == '\\')
            return false;
        out[i] = (char)c;
    }
    b->n += s.n;
    return true;
}

/* With its closing quote. False: it had to be escaped. */
static bool put_string(struct ob_lines *l, struct ob_str s)
{
    struct ob_buf *b = &l->buf;
    bool as_is = put_plain(b, s);
    if (!as_is) {
        ob_json_escape(b, s);
        reserve(b, l->need);
    }
    if (!b->failed)
        PUT(b, "\"");
    return as_is;
}

static void put_headers(struct ob_lines *l, const struct ob_msg *msg)
{
    struct ob_buf *b = &l->buf;
    PUT(b, ",\"headers\":{");
    for (size_t i = 0; i < msg->n_headers && !b->failed; i++) {
        if (i)
            PUT(b, ",");
        PUT(b, "\"");
        put_string(l, msg->headers[i].name);
        if (b->failed)
            return;
        PUT(b, ":\"");
        put_string(l, msg->headers[i].value);
    }
    if (!b->failed)
        PUT(b, "}");
}

/* Events come in runs of one second: only the milliseconds are written anew. */
static void put_time(struct ob_lines *l, const struct ob_event *event)
{
    struct ob_buf *b = &l->buf;
    if (!event) {
        PUT(b, ",\"time\":null");
        return;
    }
    int64_t us = event->created_us, rest = us % 1000000;
    int64_t second = us / 1000000 - (rest < 0);
    if (second != l->second) {
        l->n_stamp = ob_rfc3339(us, l->stamp);
        l->second = second;
    }
    unsigned ms = (unsigned)((rest < 0 ? rest + 1000000 : rest) / 1000);
    char *at = l->stamp + l->n_stamp - 4; /* …SS.mmmZ */
    at[0] = (char)('0' + ms / 100);
    at[1] = (char)('0' + ms / 10 % 10);
    at[2] = (char)('0' + ms % 10);
    PUT(b, ",\"time\":\"");
    put(b, l->stamp, l->n_stamp);
    PUT(b, "\"");
}

/* ---- the value ---- */

enum shape { RAW, TEXT, BASE64 };

static enum shape shape_of(struct ob_str value)
{
    /* A line break is white space to JSON but ends a line. One level is left for the line's own
     * object, so that whoever checks the line with the same limit takes it. */
    if (ob_jcheck_line(value, OB_JSCAN_DEPTH - 1))
        return RAW;
    return ob_utf8_valid(value) ? TEXT : BASE64;
}

/* Upper bound of the escaped length: exact enough to refuse before anything is built. */
static size_t text_length(struct ob_str s)
{
    size_t n = s.n;
    for (size_t i = 0; i < s.n; i++) {
        unsigned char c = (unsigned char)s.p[i];
        if (c == '"' || c == '\\')
            n += 1;
        else if (c < 0x20)
            n += (c == '\n' || c == '\r' || c == '\t' || c == '\b' || c == '\f') ? 1 : 5;
    }
    return n;
}

static void close_part(struct ob_lines *l)
{
    if (l->buf.n > l->open)
        l->parts[l->n_parts++] = (struct ob_lines_part){NULL, l->open, l->buf.n - l->open};
    l->open = l->buf.n;
}

/* Returns how many bytes were borrowed. */
static size_t put_value(struct ob_lines *l, const struct ob_msg *msg, enum shape shape)
{
    struct ob_buf *b = &l->buf;
    if (msg->value_null) {
        PUT(b, ",\"value\":null");
        return 0;
    }
    if (shape == RAW) {
        PUT(b, ",\"value\":");
        if (msg->value.n < BORROW_FROM) {
            put(b, msg->value.p, msg->value.n);
            return 0;
        }
        close_part(l);
        l->parts[l->n_parts++] = (struct ob_lines_part){msg->value.p, 0, msg->value.n};
        return msg->value.n;
    }
    if (shape == TEXT) {
        PUT(b, ",\"value_text\":\"");
        ob_json_escape(b, msg->value);
    } else {
        PUT(b, ",\"value_base64\":\"");
        ob_base64(b, msg->value);
    }
    ob_buf_char(b, '"');
    return 0;
}

/* ---- a line ---- */

/* Everything but the value, before escapes. */
static size_t frame_size(const struct ob_msg *msg)
{
    size_t n = msg->id.n + msg->topic.n + msg->stream.n + msg->key.n + msg->content_type.n;
    for (size_t i = 0; i < msg->n_headers; i++)
        n += msg->headers[i].name.n + msg->headers[i].value.n;
    return n;
}

/* Everything before the value. */
static void put_frame(struct ob_lines *l, const struct ob_msg *msg)
{
    struct ob_buf *b = &l->buf;
    PUT(b, "{\"id\":\"");
    put_string(l, msg->id);
    if (b->failed)
        return;
    PUT(b, ",\"topic\":\"");
    put_string(l, msg->topic);
    if (msg->stream.n > 0 && !b->failed) {
        PUT(b, ",\"stream\":\"");
        put_string(l, msg->stream);
    }
    if (b->failed)
        return;
    PUT(b, ",\"key\":\"");
    if (!put_string(l, msg->key) && !ob_utf8_valid(msg->key)) {
        ob_buf_c(b, ",\"key_base64\":\"");
        ob_base64(b, msg->key);
        ob_buf_char(b, '"');
        reserve(b, l->need);
    }
    if (!b->failed)
        put_headers(l, msg);
    if (msg->content_type.n > 0 && !b->failed) {
        PUT(b, ",\"content_type\":\"");
        put_string(l, msg->content_type);
    }
    if (!b->failed)
        put_time(l, msg->event);
}

/* Returns how many bytes of the line are not in buf. */
static size_t put_line(struct ob_lines *l, const struct ob_msg *msg, enum shape shape, size_t frame)
{
    struct ob_buf *b = &l->buf;
    size_t borrowed = 0;
    l->need = frame + FIXED + msg->n_headers * HEADER;
    if (shape == RAW && !msg->value_null && msg->value.n < BORROW_FROM)
        l->need += msg->value.n;
    reserve(b, l->need);
    if (!b->failed)
        put_frame(l, msg);
    if (!b->failed)
        borrowed = put_value(l, msg, shape);
    ob_buf_str(b, OB_STR("}\n"));
    return borrowed;
}

enum ob_status ob_lines_add(struct ob_lines *l, const struct ob_msg *msg, size_t *size)
{
    size_t frame = frame_size(msg), value = msg->value_null ? 0 : msg->value.n;
    *size = frame + value;
    if (*size > l->max_line)
        return OB_REJECT;
    if (l->bytes > 0 && (l->bytes + *size > l->limit || l->n_parts + 3 > OB_LINES_PARTS))
        return OB_AGAIN;
    enum shape shape = msg->value_null ? RAW : shape_of(msg->value);
    if (shape != RAW)
        value = shape == TEXT ? text_length(msg->value) : (value + 2) / 3 * 4;
    *size = frame + value;
    if (*size > l->max_line)
        return OB_REJECT;

    size_t n = l->buf.n, n_parts = l->n_parts, open = l->open;
    size_t line = put_line(l, msg, shape, frame);
    line += l->buf.n - n;
    enum ob_status st = OB_OK;
    if (l->buf.failed) /* the ceiling is above max_line: only escapes of the frame get there */
        st = frame * 6 + value > l->max_line ? OB_REJECT : OB_DOWN;
    else if (line > l->max_line)
        st = OB_REJECT;
    else if (l->bytes > 0 && l->bytes + line > l->limit)
        st = OB_AGAIN;
    if (st == OB_OK) {
        l->bytes += line;
        *size = line;
        return OB_OK;
    }
    *size = line > *size ? line : *size;
    l->buf.n = n;
    l->buf.failed = false;
    l->n_parts = n_parts;
    l->open = open;
    return st;
}

const struct iovec *ob_lines_iov(struct ob_lines *l, size_t *n)
{
    close_part(l);
    for (size_t i = 0; i < l->n_parts; i++) {
        const char *p = l->parts[i].p ? l->parts[i].p : l->buf.p + l->parts[i].off;
        /* writev(2) takes no const, and does not write. */
        /* NOLINTNEXTLINE(performance-no-int-to-ptr) */
        l->iov[i] = (struct iovec){.iov_base = (void *)p, .iov_len = l->parts[i].n};
    }
    *n = l->n_parts;
    return l->iov;
}

enum ob_status ob_lines_take(struct ob_lines *l, struct ob_worker_item *items, size_t *n,
                             struct ob_err *err)
{
    size_t i = 0;
    enum ob_status st = OB_OK;
    for (; i < *n; i++) {
        st = ob_lines_add(l, items[i].msg, &items[i].size);
        if (st != OB_OK && st != OB_REJECT)
            break;
        items[i].verdict = st == OB_OK ? OB_V_DELIVERED : OB_V_REJECT;
    }
    *n = i;
    return st == OB_DOWN ? ob_err_set(err, OB_DOWN, "no memory for a batch of lines") : OB_OK;
}
