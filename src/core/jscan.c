/* SPDX-License-Identifier: Apache-2.0 */
/* jscan - a pull scanner for JSON (RFC 8259) that gives slices of the input and copies nothing.
 *
 * What may come next is one of a few states; which bracket is open at a depth is one bit. A key is
 * taken together with its colon. */
#include "core/jscan.h"

#include "core/utf8.h"

enum {
    S_VALUE,        /* a value must come */
    S_VALUE_OR_END, /* behind '[' */
    S_KEY,          /* behind ',' in an object */
    S_KEY_OR_END,   /* behind '{' */
    S_AFTER,        /* behind a value: ',' or the closing bracket, or the end */
    S_END,
    S_BROKEN, /* an error was reported */
};

void ob_jscan_init(struct ob_jscan *s, struct ob_str text)
{
    s->start = s->p = text.n ? text.p : "";
    s->end = s->p + text.n;
    s->depth = 0;
    s->state = S_VALUE;
    memset(s->object, 0, sizeof(s->object));
}

static enum ob_status wrong(struct ob_jscan *s, const char *at, struct ob_err *err,
                            const char *what)
{
    s->state = S_BROKEN;
    return ob_err_set(err, OB_REJECT, "byte %zu: %s", (size_t)(at - s->start), what);
}

static inline void skip_space(struct ob_jscan *s)
{
    while (s->p < s->end && (*s->p == ' ' || *s->p == '\n' || *s->p == '\r' || *s->p == '\t'))
        s->p++;
}

static inline bool in_object(const struct ob_jscan *s)
{
    unsigned at = s->depth - 1;

    return s->object[at / 64] >> (at % 64) & 1;
}

static inline bool is_digit(const char *p, const char *end)
{
    return p < end && *p >= '0' && *p <= '9';
}

static inline bool is_hex(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

/* Length of the escape at p (which is a backslash), or 0. */
static size_t escape_length(const char *p, const char *end)
{
    if (end - p < 2)
        return 0;
    switch (p[1]) {
    case '"':
    case '\\':
    case '/':
    case 'b':
    case 'f':
    case 'n':
    case 'r':
    case 't':
        return 2;
    case 'u':
        return end - p >= 6 && is_hex(p[2]) && is_hex(p[3]) && is_hex(p[4]) && is_hex(p[5]) ? 6 : 0;
    default:
        return 0;
    }
}

static enum ob_status scan_string(struct ob_jscan *s, struct ob_jtok *tok, struct ob_err *err)
{
    const char *open = s->p, *p = open + 1, *end = s->end;
    bool escaped = false;

    for (;;) {
        p = ob_json_plain(p, end);
        if (p == end)
            return wrong(s, open, err, "string without its end");
        if (*p == '"')
            break;
        if (*p == '\\') {
            size_t n = escape_length(p, end);

            if (n == 0)
                return wrong(s, p, err, "bad escape");
            escaped = true;
            p += n;
        } else {
            int n = ob_utf8_step(p, end);

            if (n <= 1)
                return wrong(s, p, err, n == 1 ? "control character in a string" : "not UTF-8");
            p += n;
        }
    }
    tok->type = OB_J_STRING;
    tok->text = (struct ob_str){open + 1, (size_t)(p - open - 1)};
    tok->raw = (struct ob_str){open, (size_t)(p + 1 - open)};
    tok->escaped = escaped;
    s->p = p + 1;
    return OB_OK;
}

static enum ob_status scan_number(struct ob_jscan *s, struct ob_jtok *tok, struct ob_err *err)
{
    const char *p = s->p, *end = s->end;

    if (*p == '-')
        p++;
    if (!is_digit(p, end))
        return wrong(s, p, err, "digit expected");
    if (*p == '0') {
        p++;
        if (is_digit(p, end))
            return wrong(s, p, err, "number with a leading zero");
    }
    while (is_digit(p, end))
        p++;
    if (p < end && *p == '.') {
        p++;
        if (!is_digit(p, end))
            return wrong(s, p, err, "digit expected");
        while (is_digit(p, end))
            p++;
    }
    if (p < end && (*p == 'e' || *p == 'E')) {
        p++;
        if (p < end && (*p == '+' || *p == '-'))
            p++;
        if (!is_digit(p, end))
            return wrong(s, p, err, "digit expected");
        while (is_digit(p, end))
            p++;
    }
    tok->type = OB_J_NUMBER;
    tok->raw = tok->text = (struct ob_str){s->p, (size_t)(p - s->p)};
    tok->escaped = false;
    s->p = p;
    return OB_OK;
}

static inline void plain_token(struct ob_jscan *s, struct ob_jtok *tok, enum ob_jtype type,
                               size_t n)
{
    tok->type = type;
    tok->raw = tok->text = (struct ob_str){s->p, n};
    tok->escaped = false;
    s->p += n;
}

static inline enum ob_status scan_word(struct ob_jscan *s, struct ob_jtok *tok, struct ob_str word,
                                       enum ob_jtype type, struct ob_err *err)
{
    if ((size_t)(s->end - s->p) < word.n || memcmp(s->p, word.p, word.n) != 0)
        return wrong(s, s->p, err, "value expected");
    plain_token(s, tok, type, word.n);
    return OB_OK;
}

static enum ob_status open_bracket(struct ob_jscan *s, struct ob_jtok *tok, bool object,
                                   struct ob_err *err)
{
    uint64_t bit;

    if (s->depth == OB_JSCAN_DEPTH)
        return wrong(s, s->p, err, "nested too deep");
    bit = UINT64_C(1) << (s->depth % 64);
    if (object)
        s->object[s->depth / 64] |= bit;
    else
        s->object[s->depth / 64] &= ~bit;
    s->depth++;
    plain_token(s, tok, object ? OB_J_OBJECT : OB_J_ARRAY, 1);
    s->state = object ? S_KEY_OR_END : S_VALUE_OR_END;
    return OB_OK;
}

static enum ob_status close_bracket(struct ob_jscan *s, struct ob_jtok *tok)
{
    plain_token(s, tok, in_object(s) ? OB_J_OBJECT_END : OB_J_ARRAY_END, 1);
    s->depth--;
    s->state = S_AFTER;
    return OB_OK;
}

static enum ob_status scan_key(struct ob_jscan *s, struct ob_jtok *tok, struct ob_err *err)
{
    struct ob_jtok key;

    if (s->p == s->end || *s->p != '"')
        return wrong(s, s->p, err, "key expected");
    if (scan_string(s, &key, err) != OB_OK)
        return OB_REJECT;
    skip_space(s);
    if (s->p == s->end || *s->p != ':')
        return wrong(s, s->p, err, "':' expected");
    s->p++;
    s->state = S_VALUE;
    key.type = OB_J_KEY;
    *tok = key;
    return OB_OK;
}

static enum ob_status scan_value(struct ob_jscan *s, struct ob_jtok *tok, struct ob_err *err)
{
    enum ob_status st;

    if (s->p == s->end)
        return wrong(s, s->p, err, "value expected, the text ends");
    switch (*s->p) {
    case '{':
        return open_bracket(s, tok, true, err);
    case '[':
        return open_bracket(s, tok, false, err);
    case '"':
        st = scan_string(s, tok, err);
        break;
    case 't':
        st = scan_word(s, tok, OB_STR("true"), OB_J_TRUE, err);
        break;
    case 'f':
        st = scan_word(s, tok, OB_STR("false"), OB_J_FALSE, err);
        break;
    case 'n':
        st = scan_word(s, tok, OB_STR("null"), OB_J_NULL, err);
        break;
    default:
        if (*s->p != '-' && !is_digit(s->p, s->end))
            return wrong(s, s->p, err, "value expected");
        st = scan_number(s, tok, err);
    }
    if (st == OB_OK)
        s->state = S_AFTER;
    return st;
}

/* Behind a value. OB_AGAIN: a comma was taken and the next token is still to come. */
static enum ob_status scan_after(struct ob_jscan *s, struct ob_jtok *tok, struct ob_err *err)
{
    if (s->depth == 0) {
        if (s->p < s->end)
            return wrong(s, s->p, err, "something follows the value");
        plain_token(s, tok, OB_J_END, 0);
        s->state = S_END;
        return OB_OK;
    }
    if (s->p == s->end)
        return wrong(s, s->p, err, "the text ends inside a value");
    if (*s->p == ',') {
        s->p++;
        skip_space(s);
        s->state = in_object(s) ? S_KEY : S_VALUE;
        return OB_AGAIN;
    }
    if (*s->p != (in_object(s) ? '}' : ']'))
        return wrong(s, s->p, err, in_object(s) ? "',' or '}' expected" : "',' or ']' expected");
    return close_bracket(s, tok);
}

enum ob_status ob_jscan_next(struct ob_jscan *s, struct ob_jtok *tok, struct ob_err *err)
{
    enum ob_status st = OB_AGAIN;

    skip_space(s);
    switch (s->state) {
    case S_AFTER:
    case S_END:
        st = scan_after(s, tok, err);
        break;
    case S_KEY_OR_END:
        if (s->p < s->end && *s->p == '}')
            st = close_bracket(s, tok);
        break;
    case S_VALUE_OR_END:
        if (s->p < s->end && *s->p == ']')
            st = close_bracket(s, tok);
        break;
    case S_BROKEN:
        return wrong(s, s->p, err, "read on behind an error");
    default:
        break;
    }
    if (st != OB_AGAIN)
        return st;
    if (s->state == S_KEY || s->state == S_KEY_OR_END)
        return scan_key(s, tok, err);
    return scan_value(s, tok, err);
}

enum ob_status ob_jscan_rest(struct ob_jscan *s, const struct ob_jtok *first, struct ob_str *raw,
                             struct ob_err *err)
{
    const char *from = first->raw.p;
    struct ob_jtok tok = *first;
    enum ob_status st = OB_OK;

    if (first->type == OB_J_OBJECT || first->type == OB_J_ARRAY) {
        unsigned outside = s->depth - 1;

        while (st == OB_OK && s->depth > outside)
            st = ob_jscan_next(s, &tok, err);
    }
    if (st == OB_OK)
        *raw = (struct ob_str){from, (size_t)(tok.raw.p + tok.raw.n - from)};
    return st;
}

enum ob_status ob_jscan_value(struct ob_jscan *s, struct ob_str *raw, enum ob_jtype *type,
                              struct ob_err *err)
{
    struct ob_jtok tok;
    enum ob_status st = ob_jscan_next(s, &tok, err);

    if (st == OB_OK)
        st = ob_jscan_rest(s, &tok, raw, err);
    if (st == OB_OK)
        *type = tok.type;
    return st;
}

enum ob_status ob_json_check(struct ob_str text, enum ob_jtype *type, struct ob_err *err)
{
    struct ob_jscan s;
    struct ob_jtok tok;
    enum ob_jtype first;
    enum ob_status st;

    ob_jscan_init(&s, text);
    st = ob_jscan_next(&s, &tok, err);
    if (st != OB_OK)
        return st;
    first = tok.type;
    while (st == OB_OK && tok.type != OB_J_END)
        st = ob_jscan_next(&s, &tok, err);
    if (st == OB_OK && type)
        *type = first;
    return st;
}
