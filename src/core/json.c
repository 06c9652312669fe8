/* SPDX-License-Identifier: Apache-2.0 */
/* json - writing JSON into a buffer. */
#include "core/json.h"

#include "core/utf8.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define DEPTH_MAX 64u

void ob_json_init(struct ob_json *j, struct ob_buf *buf)
{
    *j = (struct ob_json){.buf = buf};
}

/* ob_buf_put for many small parts. */
static inline void put(struct ob_buf *buf, const char *p, size_t n)
{
    if (!buf->failed && n <= buf->cap - buf->n && buf->p) {
        memcpy(buf->p + buf->n, p, n);
        buf->n += n;
    } else {
        ob_buf_put(buf, p, n);
    }
}

/* Before a value or a key: a comma, unless it is the first here or stands behind its key. Values at
 * the top stand side by side (the caller puts what is between them, for example line ends). */
static void separate(struct ob_json *j)
{
    uint64_t bit;

    if (j->after_key || j->depth == 0) {
        j->after_key = false;
        return;
    }
    bit = UINT64_C(1) << (j->depth - 1);
    if (!(j->first & bit))
        ob_buf_char(j->buf, ',');
    j->first &= ~bit;
}

void ob_json_open(struct ob_json *j, char bracket)
{
    separate(j);
    if (j->depth == DEPTH_MAX) {
        j->buf->failed = true;
        return;
    }
    j->first |= UINT64_C(1) << j->depth++;
    ob_buf_char(j->buf, bracket);
}

void ob_json_close(struct ob_json *j, char bracket)
{
    if (j->depth == 0) {
        j->buf->failed = true;
        return;
    }
    j->depth--;
    ob_buf_char(j->buf, bracket);
}

static void quoted(struct ob_buf *buf, struct ob_str s)
{
    put(buf, "\"", 1);
    ob_json_escape(buf, s);
    put(buf, "\"", 1);
}

void ob_json_key(struct ob_json *j, struct ob_str key)
{
    separate(j);
    quoted(j->buf, key);
    ob_buf_char(j->buf, ':');
    j->after_key = true;
}

void ob_json_keyc(struct ob_json *j, const char *key)
{
    ob_json_key(j, ob_str_c(key));
}

void ob_json_str(struct ob_json *j, struct ob_str s)
{
    separate(j);
    quoted(j->buf, s);
}

void ob_json_strc(struct ob_json *j, const char *z)
{
    if (!z)
        ob_json_null(j);
    else
        ob_json_str(j, ob_str_c(z));
}

/* Digits from the end; 20 are enough for 64 bits, and one for a sign. */
static void put_uint(struct ob_buf *buf, uint64_t v, bool minus)
{
    char text[21], *end = text + sizeof(text), *p = end;

    do {
        *--p = (char)('0' + v % 10);
        v /= 10;
    } while (v);
    if (minus)
        *--p = '-';
    ob_buf_put(buf, p, (size_t)(end - p));
}

void ob_json_int(struct ob_json *j, int64_t v)
{
    separate(j);
    put_uint(j->buf, v < 0 ? -(uint64_t)v : (uint64_t)v, v < 0);
}

void ob_json_uint(struct ob_json *j, uint64_t v)
{
    separate(j);
    put_uint(j->buf, v, false);
}

/* The shortest of 15 to 17 digits that reads back as the same number. */
void ob_json_double(struct ob_json *j, double v)
{
    char text[40];
    int n = 0;

    if (!isfinite(v)) {
        ob_json_null(j);
        return;
    }
    separate(j);
    for (int digits = 15; digits <= 17; digits++) {
        n = snprintf(text, sizeof(text), "%.*g", digits, v);
        if (strtod(text, NULL) == v) /* the same locale both ways */
            break;
    }
    for (int i = 0; i < n; i++)
        if (!strchr("0123456789+-e", text[i]))
            text[i] = '.'; /* the locale's decimal point */
    ob_buf_put(j->buf, text, (size_t)n);
}

void ob_json_bool(struct ob_json *j, bool v)
{
    separate(j);
    ob_buf_c(j->buf, v ? "true" : "false");
}

void ob_json_null(struct ob_json *j)
{
    separate(j);
    ob_buf_put(j->buf, "null", 4);
}

void ob_json_raw(struct ob_json *j, struct ob_str value)
{
    separate(j);
    ob_buf_str(j->buf, value);
}

static void escape_char(struct ob_buf *buf, unsigned char c)
{
    static const char hex[] = "0123456789abcdef";
    static const char shorts[128] = {['"'] = '"',  ['\\'] = '\\', ['\b'] = 'b', ['\f'] = 'f',
                                     ['\n'] = 'n', ['\r'] = 'r',  ['\t'] = 't'};
    char text[6] = {'\\', 'u', '0', '0', hex[c >> 4 & 15], hex[c & 15]};

    if (shorts[c & 127]) {
        text[1] = shorts[c & 127];
        put(buf, text, 2);
    } else {
        put(buf, text, 6);
    }
}

void ob_json_escape(struct ob_buf *buf, struct ob_str s)
{
    const char *p = s.n ? s.p : "", *end = p + s.n, *run = p;

    for (;;) {
        int step;

        p = ob_json_plain(p, end);
        if (p == end)
            break;
        step = ob_utf8_step(p, end);
        if (step > 1) {
            p += step;
            continue;
        }
        put(buf, run, (size_t)(p - run));
        if (step == 1) {
            escape_char(buf, (unsigned char)*p++);
        } else {
            ob_buf_c(buf, OB_UTF8_REPLACEMENT);
            p -= step;
        }
        run = p;
    }
    put(buf, run, (size_t)(p - run));
}

void ob_base64(struct ob_buf *buf, struct ob_str s)
{
    static const char abc[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *p = (const unsigned char *)s.p;
    char out[4 * 256];
    size_t n = 0, i = 0;

    for (; i + 3 <= s.n; i += 3) {
        unsigned v = (unsigned)p[i] << 16 | (unsigned)p[i + 1] << 8 | p[i + 2];

        out[n++] = abc[v >> 18];
        out[n++] = abc[v >> 12 & 63];
        out[n++] = abc[v >> 6 & 63];
        out[n++] = abc[v & 63];
        if (n == sizeof(out)) {
            ob_buf_put(buf, out, n);
            n = 0;
        }
    }
    if (i < s.n) {
        bool two = i + 2 == s.n;
        unsigned v = (unsigned)p[i] << 16 | (two ? (unsigned)p[i + 1] << 8 : 0);

        out[n++] = abc[v >> 18];
        out[n++] = abc[v >> 12 & 63];
        out[n++] = two ? abc[v >> 6 & 63] : '=';
        out[n++] = '=';
    }
    ob_buf_put(buf, out, n);
}

void ob_json_texts(struct ob_buf *buf, const char *const *texts, size_t n)
{
    struct ob_json j;
    ob_json_init(&j, buf);
    ob_json_open(&j, '[');
    for (size_t i = 0; i < n; i++)
        ob_json_strc(&j, texts[i]);
    ob_json_close(&j, ']');
}
