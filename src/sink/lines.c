/* SPDX-License-Identifier: Apache-2.0 */
/* lines - a batch of messages as JSON lines, ready for one writev(2). */
#include "sink/lines.h"

#include "core/clock.h"
#include "core/jscan.h"
#include "core/json.h"

#include <stdlib.h>

/* From this size on a payload is cheaper to refer to than to copy. Twice OB_LINES_PARTS of them do
 * not fit into any sensible batch, so a batch seldom ends for want of parts. */
#define BORROW_FROM ((size_t)16 * 1024)
/* Memory beyond a usual batch is given back after a batch that needed it. */
#define KEEP_FACTOR 2
#define SLACK ((size_t)1 << 20)

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

/* ---- fields ---- */

static void put_string(struct ob_buf *b, struct ob_str s)
{
    ob_buf_char(b, '"');
    ob_json_escape(b, s);
    ob_buf_char(b, '"');
}

static void put_field(struct ob_buf *b, struct ob_str name, struct ob_str value)
{
    ob_buf_str(b, name);
    put_string(b, value);
}

static void put_headers(struct ob_buf *b, const struct ob_msg *msg)
{
    ob_buf_str(b, OB_STR(",\"headers\":{"));
    for (size_t i = 0; i < msg->n_headers; i++) {
        if (i)
            ob_buf_char(b, ',');
        put_string(b, msg->headers[i].name);
        ob_buf_char(b, ':');
        put_string(b, msg->headers[i].value);
    }
    ob_buf_char(b, '}');
}

/* Events come in runs of one second: only the milliseconds are written anew. */
static void put_time(struct ob_lines *l, const struct ob_event *event)
{
    if (!event) {
        ob_buf_str(&l->buf, OB_STR(",\"time\":null"));
        return;
    }
    int64_t us = event->created_us;
    int64_t second = us >= 0 ? us / 1000000 : -((-us + 999999) / 1000000);
    if (second != l->second) {
        char text[OB_RFC3339_MAX];
        size_t n = ob_rfc3339(second * 1000000, text);
        if (n != 24) { /* a year that is not four digits */
            put_field(&l->buf, OB_STR(",\"time\":"), (struct ob_str){text, n});
            return;
        }
        memcpy(l->stamp, text, sizeof(l->stamp));
        l->second = second;
    }
    unsigned ms = (unsigned)((us - second * 1000000) / 1000);
    l->stamp[20] = (char)('0' + ms / 100);
    l->stamp[21] = (char)('0' + ms / 10 % 10);
    l->stamp[22] = (char)('0' + ms % 10);
    put_field(&l->buf, OB_STR(",\"time\":"), (struct ob_str){l->stamp, sizeof(l->stamp)});
}

/* ---- the value ---- */

enum shape { RAW, TEXT, BASE64 };

/* JSON that may stand inside a line: one level is left for the line's own object, so that whoever
 * checks the line with the same limit takes it. */
static bool is_json(struct ob_str text)
{
    struct ob_jscan scan;
    struct ob_jtok tok = {.type = OB_J_NULL};
    ob_jscan_init(&scan, text);
    while (tok.type != OB_J_END) {
        if (ob_jscan_next(&scan, &tok, NULL) != OB_OK || scan.depth >= OB_JSCAN_DEPTH)
            return false;
    }
    return true;
}

static enum shape shape_of(struct ob_str value)
{
    /* A line break is white space to JSON but ends a line; '\r' ends one for some readers. */
    if (value.n > 0 && !memchr(value.p, '\n', value.n) && !memchr(value.p, '\r', value.n) &&
        is_json(value))
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
        ob_buf_str(b, OB_STR(",\"value\":null"));
    } else if (shape == TEXT) {
        put_field(b, OB_STR(",\"value_text\":"), msg->value);
    } else if (shape == BASE64) {
        ob_buf_str(b, OB_STR(",\"value_base64\":\""));
        ob_base64(b, msg->value);
        ob_buf_char(b, '"');
    } else {
        ob_buf_str(b, OB_STR(",\"value\":"));
        if (msg->value.n < BORROW_FROM) {
            ob_buf_str(b, msg->value);
            return 0;
        }
        close_part(l);
        l->parts[l->n_parts++] = (struct ob_lines_part){msg->value.p, 0, msg->value.n};
        return msg->value.n;
    }
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

static size_t put_line(struct ob_lines *l, const struct ob_msg *msg, enum shape shape)
{
    struct ob_buf *b = &l->buf;
    put_field(b, OB_STR("{\"id\":"), msg->id);
    put_field(b, OB_STR(",\"topic\":"), msg->topic);
    if (msg->stream.n > 0)
        put_field(b, OB_STR(",\"stream\":"), msg->stream);
    put_field(b, OB_STR(",\"key\":"), msg->key);
    if (!ob_utf8_valid(msg->key)) {
        ob_buf_str(b, OB_STR(",\"key_base64\":\""));
        ob_base64(b, msg->key);
        ob_buf_char(b, '"');
    }
    put_headers(b, msg);
    if (msg->content_type.n > 0)
        put_field(b, OB_STR(",\"content_type\":"), msg->content_type);
    put_time(l, msg->event);
    size_t borrowed = put_value(l, msg, shape);
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
    size_t line = put_line(l, msg, shape);
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
        l->iov[i] = (struct iovec){.iov_base = (void *)(uintptr_t)p, .iov_len = l->parts[i].n};
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
