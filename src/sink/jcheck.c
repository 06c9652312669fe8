/* SPDX-License-Identifier: Apache-2.0 */
/* jcheck - is this one JSON value on one line? */
#include "sink/jcheck.h"

#include "core/utf8.h"

/* The first byte that is a control, a quote, a backslash or not ASCII; or end. */
static inline const char *plain_end(const char *p, const char *end)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    const uint64_t ones = 0x0101010101010101u, high = 0x8080808080808080u;
    while (end - p >= 8) {
        uint64_t w;
        memcpy(&w, p, sizeof(w));
        uint64_t quote = w ^ (ones * '"'), slash = w ^ (ones * '\\');
        /* A borrow only makes bytes behind the first hit look like hits. */
        uint64_t hit = (w | (w - ones * 0x20) | (quote - ones) | (slash - ones)) & high;
        if (hit)
            return p + __builtin_ctzll(hit) / 8;
        p += 8;
    }
#endif
    return ob_json_plain(p, end);
}

static inline bool digit(const char *p, const char *end)
{
    return p < end && (unsigned char)(*p - '0') <= 9;
}

static bool hex4(const char *p)
{
    for (int i = 0; i < 4; i++) {
        unsigned char c = (unsigned char)p[i], low = c | 0x20;
        if ((unsigned char)(c - '0') > 9 && (unsigned char)(low - 'a') > 5)
            return false;
    }
    return true;
}

/* p is behind the opening quote. Returns behind the closing one; NULL: not a string. */
static inline const char *string(const char *p, const char *end)
{
    for (;;) {
        p = plain_end(p, end);
        if (p == end)
            return NULL;
        if (*p == '"')
            return p + 1;
        if (*p == '\\') {
            if (end - p >= 2 && p[1] && strchr("\"\\/bfnrt", p[1]))
                p += 2;
            else if (end - p >= 6 && p[1] == 'u' && hex4(p + 2))
                p += 6;
            else
                return NULL;
        } else {
            int n = ob_utf8_step(p, end);
            if (n <= 1)
                return NULL;
            p += n;
        }
    }
}

static inline const char *digits(const char *p, const char *end)
{
    if (!digit(p, end))
        return NULL;
    while (digit(p, end))
        p++;
    return p;
}

static inline const char *number(const char *p, const char *end)
{
    if (*p == '-')
        p++;
    if (p < end && *p == '0')
        p++;
    else
        p = digits(p, end);
    if (p && p < end && *p == '.')
        p = digits(p + 1, end);
    if (p && p < end && (*p | 0x20) == 'e') {
        p++;
        if (p < end && (*p == '+' || *p == '-'))
            p++;
        p = digits(p, end);
    }
    return p;
}

static inline const char *word(const char *p, const char *end, const char *z, size_t n)
{
    return (size_t)(end - p) >= n && memcmp(p, z, n) == 0 ? p + n : NULL;
}

/* A value that opens no bracket; p < end. */
static inline const char *scalar(const char *p, const char *end)
{
    switch (*p) {
    case '"':
        return string(p + 1, end);
    case 't':
        return word(p, end, "true", 4);
    case 'f':
        return word(p, end, "false", 5);
    case 'n':
        return word(p, end, "null", 4);
    default:
        return number(p, end);
    }
}

static inline const char *space(const char *p, const char *end)
{
    while (p < end && (*p == ' ' || *p == '\t'))
        p++;
    return p;
}

/* p is where a key must be. Returns where its value must be; NULL: there is no key with a colon. */
static inline const char *key(const char *p, const char *end)
{
    p = p < end && *p == '"' ? string(p + 1, end) : NULL;
    p = p ? space(p, end) : NULL;
    return p && p < end && *p == ':' ? space(p + 1, end) : NULL;
}

struct nest {
    unsigned depth;
    bool object;                         /* the innermost bracket, if depth > 0 */
    uint64_t bits[OB_JCHECK_DEPTH / 64]; /* those outside it */
};

static inline void nest_open(struct nest *n, bool object)
{
    uint64_t bit = UINT64_C(1) << (n->depth % 64);
    if (n->object)
        n->bits[n->depth / 64] |= bit;
    else
        n->bits[n->depth / 64] &= ~bit;
    n->depth++;
    n->object = object;
}

static inline void nest_close(struct nest *n)
{
    n->depth--;
    n->object = n->bits[n->depth / 64] >> (n->depth % 64) & 1;
}

/* Behind a value: takes closing brackets and one comma. Returns where the next value must be, or
 * end with depth 0; NULL: neither. */
static inline const char *after(struct nest *n, const char *p, const char *end)
{
    p = space(p, end);
    while (p < end && n->depth > 0 && *p == (n->object ? '}' : ']')) {
        nest_close(n);
        p = space(p + 1, end);
    }
    if (n->depth == 0)
        return p == end ? p : NULL;
    if (p == end || *p != ',')
        return NULL;
    p = space(p + 1, end);
    return n->object ? key(p, end) : p;
}

bool ob_jcheck_line(struct ob_str text, unsigned max_depth)
{
    struct nest n = {.depth = 0};
    if (text.n == 0)
        return false;
    const char *end = text.p + text.n, *p = space(text.p, end);
    do {
        if (p == end)
            return false;
        if (*p != '{' && *p != '[') {
            p = scalar(p, end);
        } else {
            bool object = *p == '{';
            if (n.depth == max_depth)
                return false;
            nest_open(&n, object);
            p = space(p + 1, end);
            if (p < end && *p == (object ? '}' : ']')) {
                nest_close(&n);
                p++;
            } else {
                p = object ? key(p, end) : p;
                if (!p)
                    return false;
                continue; /* to its first value */
            }
        }
        p = p ? after(&n, p, end) : NULL;
    } while (p && n.depth > 0);
    return p == end;
}
