/* SPDX-License-Identifier: Apache-2.0 */
/* jpointer - escapes of JSON strings resolved, and values found by RFC 6901 pointers. */
#include "core/jscan.h"

#include "core/utf8.h"

static int hex4(const char *p)
{
    int v = 0;

    for (int i = 0; i < 4; i++) {
        char c = p[i];
        int d = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;

        if (d < 0)
            return -1;
        v = v * 16 + d;
    }
    return v;
}

static size_t encode(uint32_t c, char out[4])
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xc0 | c >> 6);
        out[1] = (char)(0x80 | (c & 63));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (char)(0xe0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 63));
        out[2] = (char)(0x80 | (c & 63));
        return 3;
    }
    out[0] = (char)(0xf0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 63));
    out[2] = (char)(0x80 | (c >> 6 & 63));
    out[3] = (char)(0x80 | (c & 63));
    return 4;
}

/* The escape at *p (a backslash) as 1 to 4 bytes; *p moves behind it. What is no escape, and a
 * surrogate without its other half, becomes U+FFFD. */
static size_t resolve(const char **p, const char *end, char out[4])
{
    static const char shorts[] = "\"\"\\\\//b\bf\fn\nr\rt\t"; /* pairs: letter, and what it is */
    const char *at = *p;
    int c, low;

    *p = end - at < 2 ? end : at + 2;
    if (end - at >= 2 && at[1] != 'u')
        for (size_t i = 0; i + 1 < sizeof(shorts); i += 2)
            if (shorts[i] == at[1]) {
                out[0] = shorts[i + 1];
                return 1;
            }
    c = end - at >= 6 && at[1] == 'u' ? hex4(at + 2) : -1;
    if (c < 0)
        return encode(0xfffd, out);
    *p = at + 6;
    if (c < 0xd800 || c > 0xdfff)
        return encode((uint32_t)c, out);
    low = end - *p >= 6 && (*p)[0] == '\\' && (*p)[1] == 'u' ? hex4(*p + 2) : -1;
    if (c > 0xdbff || low < 0xdc00 || low > 0xdfff)
        return encode(0xfffd, out);
    *p += 6;
    return encode(0x10000 + ((uint32_t)(c - 0xd800) << 10) + (uint32_t)(low - 0xdc00), out);
}

void ob_jscan_unescape(struct ob_buf *buf, struct ob_str text)
{
    const char *p = text.p, *end = text.n ? text.p + text.n : text.p;

    while (p < end) {
        const char *slash = memchr(p, '\\', (size_t)(end - p));
        char out[4];

        if (!slash)
            slash = end;
        ob_buf_put(buf, p, (size_t)(slash - p));
        p = slash;
        if (p < end)
            ob_buf_put(buf, out, resolve(&p, end, out));
    }
}

/* Whether a key of the text is the reference token of the pointer, each with its own escapes. */
static bool key_is(const struct ob_jtok *key, struct ob_str token, bool tilde)
{
    const char *k = key->text.p, *k_end = k + key->text.n;
    const char *t = token.p, *t_end = t + token.n;

    if (!key->escaped && !tilde)
        return ob_str_eq(key->text, token);
    while (k < k_end) {
        char out[4] = {*k};
        size_t n = 1;

        if (*k == '\\')
            n = resolve(&k, k_end, out);
        else
            k++;
        for (size_t i = 0; i < n; i++) {
            char c;

            if (t == t_end)
                return false;
            c = *t++;
            if (c == '~')
                c = *t++ == '0' ? '~' : '/'; /* checked: 0 or 1 follows */
            if (c != out[i])
                return false;
        }
    }
    return t == t_end;
}

/* "0", or digits without a leading zero. SIZE_MAX: no index that an array could have. */
static size_t index_of(struct ob_str token)
{
    size_t v = 0;

    if (token.n == 0 || token.n > 18 || (token.n > 1 && token.p[0] == '0'))
        return SIZE_MAX;
    for (size_t i = 0; i < token.n; i++) {
        if (token.p[i] < '0' || token.p[i] > '9')
            return SIZE_MAX;
        v = v * 10 + (size_t)(token.p[i] - '0');
    }
    return v;
}

static enum ob_status check_pointer(struct ob_str pointer, struct ob_err *err)
{
    if (pointer.n && pointer.p[0] != '/')
        return ob_err_set(err, OB_FATAL, "JSON pointer must begin with '/'");
    for (size_t i = 0; i < pointer.n; i++)
        if (pointer.p[i] == '~' &&
            (i + 1 == pointer.n || (pointer.p[i + 1] != '0' && pointer.p[i + 1] != '1')))
            return ob_err_set(err, OB_FATAL, "JSON pointer: '~' must be '~0' or '~1'");
    return OB_OK;
}

/* Takes the first token off: "/a/b" gives "a", rest "/b". */
static struct ob_str first_token(struct ob_str *rest)
{
    const char *from = rest->p + 1, *end = rest->p + rest->n;
    const char *slash = memchr(from, '/', (size_t)(end - from));
    const char *to = slash ? slash : end;

    *rest = (struct ob_str){to, (size_t)(end - to)};
    return (struct ob_str){from, (size_t)(to - from)};
}

struct finder {
    struct ob_jscan scan;
    struct ob_str raw;
    enum ob_jtype type;
    bool found;
};

static enum ob_status find(struct finder *f, const struct ob_jtok *first, struct ob_str rest,
                           struct ob_err *err);

static enum ob_status find_in_object(struct finder *f, struct ob_str rest, struct ob_err *err)
{
    struct ob_str token = first_token(&rest), skipped;
    bool tilde = memchr(token.p, '~', token.n) != NULL;

    for (;;) {
        struct ob_jtok tok;
        enum ob_status st = ob_jscan_next(&f->scan, &tok, err);
        bool match;

        if (st != OB_OK || tok.type == OB_J_OBJECT_END)
            return st;
        match = key_is(&tok, token, tilde);
        st = ob_jscan_next(&f->scan, &tok, err);
        if (st == OB_OK && match) {
            f->found = false; /* whatever an earlier key of this name had in it */
            st = find(f, &tok, rest, err);
        } else if (st == OB_OK) {
            st = ob_jscan_rest(&f->scan, &tok, &skipped, err);
        }
        if (st != OB_OK)
            return st;
    }
}

static enum ob_status find_in_array(struct finder *f, struct ob_str rest, struct ob_err *err)
{
    size_t wanted = index_of(first_token(&rest));

    for (size_t i = 0;; i++) {
        struct ob_str skipped;
        struct ob_jtok tok;
        enum ob_status st = ob_jscan_next(&f->scan, &tok, err);

        if (st != OB_OK || tok.type == OB_J_ARRAY_END)
            return st;
        st = i == wanted ? find(f, &tok, rest, err) : ob_jscan_rest(&f->scan, &tok, &skipped, err);
        if (st != OB_OK)
            return st;
    }
}

/* Reads the value that begins with `first` to its end and looks in it for the rest of the pointer.
 * Goes as deep as the pointer has tokens, at most OB_JSCAN_DEPTH. */
static enum ob_status find(struct finder *f, const struct ob_jtok *first, struct ob_str rest,
                           struct ob_err *err)
{
    if (rest.n == 0) {
        f->type = first->type;
        f->found = true;
        return ob_jscan_rest(&f->scan, first, &f->raw, err);
    }
    if (first->type == OB_J_OBJECT)
        return find_in_object(f, rest, err);
    if (first->type == OB_J_ARRAY)
        return find_in_array(f, rest, err);
    return OB_OK;
}

enum ob_status ob_json_pointer(struct ob_str text, struct ob_str pointer, struct ob_str *raw,
                               enum ob_jtype *type, struct ob_err *err)
{
    struct finder f = {.found = false};
    struct ob_jtok tok;
    enum ob_status st = check_pointer(pointer, err);

    if (st != OB_OK)
        return st;
    ob_jscan_init(&f.scan, text);
    st = ob_jscan_next(&f.scan, &tok, err);
    if (st == OB_OK)
        st = find(&f, &tok, pointer, err);
    if (st == OB_OK)
        st = ob_jscan_next(&f.scan, &tok, err); /* END, or something follows */
    if (st != OB_OK)
        return st;
    if (!f.found)
        return ob_err_set(err, OB_AGAIN, "nothing at %.*s", OB_STR_ARG(pointer));
    *raw = f.raw;
    *type = f.type;
    return OB_OK;
}
