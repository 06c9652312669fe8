/* SPDX-License-Identifier: Apache-2.0 */
/* bson_write - making BSON documents in a buffer. */
#include "event/bson_write.h"

#include "core/jscan.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static void put32(struct ob_buf *buf, uint32_t v)
{
    const char b[4] = {(char)v, (char)(v >> 8), (char)(v >> 16), (char)(v >> 24)};

    ob_buf_put(buf, b, sizeof(b));
}

static void put64(struct ob_buf *buf, uint64_t v)
{
    put32(buf, (uint32_t)v);
    put32(buf, (uint32_t)(v >> 32));
}

void ob_bsonw_init(struct ob_bson_writer *w, struct ob_buf *buf)
{
    w->buf = buf;
    w->depth = 0;
}

/* Type and name. A name with a NUL would be another one. */
static void head(struct ob_bson_writer *w, struct ob_str name, unsigned char type)
{
    unsigned at = w->depth - 1;
    char number[16];

    if (w->depth == 0) {
        w->buf->failed = true;
        return;
    }
    if (w->array[at])
        name = (struct ob_str){
            number, (size_t)snprintf(number, sizeof(number), "%lu", (unsigned long)w->next[at]++)};
    else if (name.n && memchr(name.p, '\0', name.n))
        w->buf->failed = true;
    ob_buf_char(w->buf, (char)type);
    ob_buf_put(w->buf, name.p, name.n);
    ob_buf_char(w->buf, '\0');
}

void ob_bsonw_open(struct ob_bson_writer *w, struct ob_str name, bool array)
{
    if (w->depth == OB_BSON_WRITE_DEPTH) {
        w->buf->failed = true;
        return;
    }
    if (w->depth)
        head(w, name, array ? OB_BSON_ARRAY : OB_BSON_DOCUMENT);
    w->open[w->depth] = w->buf->n;
    w->next[w->depth] = 0;
    w->array[w->depth++] = array;
    put32(w->buf, 0);
}

void ob_bsonw_close(struct ob_bson_writer *w)
{
    size_t at, n;

    if (w->depth == 0)
        return;
    at = w->open[--w->depth];
    ob_buf_char(w->buf, '\0');
    if (w->buf->failed)
        return;
    n = w->buf->n - at;
    if (n > INT32_MAX) {
        w->buf->failed = true;
        return;
    }
    for (size_t i = 0; i < 4; i++)
        w->buf->p[at + i] = (char)(n >> 8 * i);
}

void ob_bsonw_text(struct ob_bson_writer *w, struct ob_str name, struct ob_str text)
{
    head(w, name, OB_BSON_STRING);
    if (text.n >= INT32_MAX)
        w->buf->failed = true;
    put32(w->buf, (uint32_t)text.n + 1);
    ob_buf_put(w->buf, text.p, text.n);
    ob_buf_char(w->buf, '\0');
}

void ob_bsonw_bytes(struct ob_bson_writer *w, struct ob_str name, struct ob_str bytes)
{
    head(w, name, OB_BSON_BINARY);
    if (bytes.n >= INT32_MAX)
        w->buf->failed = true;
    put32(w->buf, (uint32_t)bytes.n);
    ob_buf_char(w->buf, '\0');
    ob_buf_put(w->buf, bytes.p, bytes.n);
}

void ob_bsonw_int(struct ob_bson_writer *w, struct ob_str name, int64_t v)
{
    bool small = v >= INT32_MIN && v <= INT32_MAX;

    head(w, name, small ? OB_BSON_INT32 : OB_BSON_INT64);
    if (small)
        put32(w->buf, (uint32_t)v);
    else
        put64(w->buf, (uint64_t)v);
}

void ob_bsonw_double(struct ob_bson_writer *w, struct ob_str name, double v)
{
    uint64_t bits;

    memcpy(&bits, &v, sizeof(bits));
    head(w, name, OB_BSON_DOUBLE);
    put64(w->buf, bits);
}

void ob_bsonw_bool(struct ob_bson_writer *w, struct ob_str name, bool v)
{
    head(w, name, OB_BSON_BOOL);
    ob_buf_char(w->buf, v ? '\1' : '\0');
}

void ob_bsonw_null(struct ob_bson_writer *w, struct ob_str name)
{
    head(w, name, OB_BSON_NULL);
}

void ob_bsonw_date(struct ob_bson_writer *w, struct ob_str name, int64_t ms)
{
    head(w, name, OB_BSON_DATE);
    put64(w->buf, (uint64_t)ms);
}

void ob_bsonw_timestamp(struct ob_bson_writer *w, struct ob_str name, uint32_t t, uint32_t i)
{
    head(w, name, OB_BSON_TIMESTAMP);
    put32(w->buf, i);
    put32(w->buf, t);
}

void ob_bsonw_raw(struct ob_bson_writer *w, struct ob_str name, unsigned char type,
                  struct ob_str value)
{
    head(w, name, type);
    ob_buf_put(w->buf, value.p, value.n);
}

/* ---- JSON ---- */

/* Escapes of the key and of the value that are being written. */
struct words {
    struct ob_buf key, value;
};

static struct ob_str resolved(struct ob_buf *buf, const struct ob_jtok *tok)
{
    if (!tok->escaped)
        return tok->text;
    ob_buf_reset(buf);
    ob_jscan_unescape(buf, tok->text);
    return ob_buf_view(buf);
}

static bool whole(struct ob_str text, int64_t *out)
{
    char copy[24];
    char *end;

    if (text.n >= sizeof(copy) || memchr(text.p, '.', text.n) || memchr(text.p, 'e', text.n) ||
        memchr(text.p, 'E', text.n) || (text.n == 2 && memcmp(text.p, "-0", 2) == 0))
        return false;
    memcpy(copy, text.p, text.n);
    copy[text.n] = '\0';
    errno = 0;
    *out = strtoll(copy, &end, 10);
    return errno == 0 && *end == '\0';
}

/* strtod() wants the locale's point: it is asked what that is. */
static bool fraction(struct ob_str text, double *out)
{
    char small[64], point[8], *copy = text.n < sizeof(small) ? small : malloc(text.n + 1), *dot,
                              *end;
    bool ok;

    if (!copy)
        return false;
    memcpy(copy, text.p, text.n);
    copy[text.n] = '\0';
    dot = strchr(copy, '.');
    snprintf(point, sizeof(point), "%.1f", 0.5);
    if (dot)
        *dot = point[1];
    *out = strtod(copy, &end);
    ok = *end == '\0' && isfinite(*out);
    if (copy != small)
        free(copy);
    return ok;
}

static enum ob_status number(struct ob_bson_writer *w, struct ob_str name, struct ob_str text,
                             struct ob_err *err)
{
    int64_t v;
    double d;

    if (whole(text, &v)) {
        ob_bsonw_int(w, name, v);
        return OB_OK;
    }
    if (!fraction(text, &d))
        return ob_err_set(err, OB_REJECT, "the number %.*s is too large for a document",
                          (int)(text.n > 40 ? 40 : text.n), text.p);
    ob_bsonw_double(w, name, d);
    return OB_OK;
}

static enum ob_status value(struct ob_bson_writer *w, struct ob_str name, const struct ob_jtok *tok,
                            struct ob_buf *word, struct ob_err *err)
{
    switch (tok->type) {
    case OB_J_OBJECT:
    case OB_J_ARRAY:
        if (w->depth == OB_BSON_WRITE_DEPTH)
            return ob_err_set(err, OB_REJECT, "a document cannot be nested deeper than %d",
                              OB_BSON_WRITE_DEPTH);
        ob_bsonw_open(w, name, tok->type == OB_J_ARRAY);
        return OB_OK;
    case OB_J_OBJECT_END:
    case OB_J_ARRAY_END:
        ob_bsonw_close(w);
        return OB_OK;
    case OB_J_STRING:
        ob_bsonw_text(w, name, resolved(word, tok));
        return OB_OK;
    case OB_J_NUMBER:
        return number(w, name, tok->text, err);
    case OB_J_TRUE:
    case OB_J_FALSE:
        ob_bsonw_bool(w, name, tok->type == OB_J_TRUE);
        return OB_OK;
    default:
        ob_bsonw_null(w, name);
        return OB_OK;
    }
}

static enum ob_status take(struct ob_bson_writer *w, struct ob_str name, struct ob_str json,
                           struct words *words, struct ob_err *err)
{
    struct ob_jscan scan;
    struct ob_jtok tok;
    enum ob_status st;

    ob_jscan_init(&scan, json);
    for (;;) {
        st = ob_jscan_next(&scan, &tok, err);
        if (st != OB_OK || tok.type == OB_J_END)
            return st;
        if (tok.type == OB_J_KEY) {
            name = resolved(&words->key, &tok);
            if (name.n && memchr(name.p, '\0', name.n))
                return ob_err_set(err, OB_REJECT, "a document cannot have a name with a NUL");
            continue;
        }
        st = value(w, name, &tok, &words->value, err);
        if (st != OB_OK)
            return st;
    }
}

enum ob_status ob_bsonw_json(struct ob_bson_writer *w, struct ob_str name, struct ob_str json,
                             struct ob_err *err)
{
    struct words words;
    enum ob_status st;

    ob_buf_init(&words.key, 0);
    ob_buf_init(&words.value, 0);
    st = take(w, name, json, &words, err);
    if (st == OB_OK && (words.key.failed || words.value.failed))
        st = ob_err_set(err, OB_DOWN, "no memory");
    ob_buf_clear(&words.key);
    ob_buf_clear(&words.value);
    return st;
}
