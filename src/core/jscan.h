/* SPDX-License-Identifier: Apache-2.0 */
/* jscan - a pull scanner for JSON (RFC 8259) that gives slices of the input and copies nothing.
 * Depth at most OB_JSCAN_DEPTH. Strings must be UTF-8. */
#ifndef OB_CORE_JSCAN_H
#define OB_CORE_JSCAN_H

#include "core/buf.h"
#include "core/err.h"
#include "core/str.h"

#define OB_JSCAN_DEPTH 512

enum ob_jtype {
    OB_J_END = 0, /* the one top value ended and only white space followed */
    OB_J_OBJECT,  /* '{' */
    OB_J_OBJECT_END,
    OB_J_ARRAY,
    OB_J_ARRAY_END,
    OB_J_KEY,    /* text: between the quotes, escapes not resolved */
    OB_J_STRING, /* likewise */
    OB_J_NUMBER, /* text: as written */
    OB_J_TRUE,
    OB_J_FALSE,
    OB_J_NULL,
};

struct ob_jtok {
    enum ob_jtype type;
    struct ob_str raw;  /* the token with its quotes; of an opening bracket only itself */
    struct ob_str text; /* strings and keys: the inside */
    bool escaped;       /* text has escapes: resolve with ob_jscan_unescape */
};

struct ob_jscan {
    const char *start, *p, *end;
    unsigned depth;
    unsigned char state;
    uint64_t object[OB_JSCAN_DEPTH / 64]; /* bit per depth: object, else array */
};

void ob_jscan_init(struct ob_jscan *s, struct ob_str text);
/* OB_OK, or OB_REJECT with "byte N: what was wrong" (N from 0); after that always OB_REJECT. */
enum ob_status ob_jscan_next(struct ob_jscan *s, struct ob_jtok *tok,
                             struct ob_err *err) OB_MUST_CHECK;
/* The next whole value (with its nested values) as one raw slice; type is its first token's. Where
 * no value comes but a key, a closing bracket or the end, that token is given. */
enum ob_status ob_jscan_value(struct ob_jscan *s, struct ob_str *raw, enum ob_jtype *type,
                              struct ob_err *err) OB_MUST_CHECK;
/* The value that began with the token just read, to its end. */
enum ob_status ob_jscan_rest(struct ob_jscan *s, const struct ob_jtok *first, struct ob_str *raw,
                             struct ob_err *err) OB_MUST_CHECK;
/* Whole text is exactly one JSON value. type may be NULL. */
enum ob_status ob_json_check(struct ob_str text, enum ob_jtype *type,
                             struct ob_err *err) OB_MUST_CHECK;
/* Resolves escapes into buf. Lone surrogates become U+FFFD. */
void ob_jscan_unescape(struct ob_buf *buf, struct ob_str text);
/* RFC 6901. Finds the raw value at pointer ("" is the whole). OB_OK; OB_AGAIN: not there;
 * OB_REJECT: text is not JSON; OB_FATAL: pointer is none. Where an object has a key twice the last
 * one counts. Indexes of arrays have no leading zeros; "-" is never there. */
enum ob_status ob_json_pointer(struct ob_str text, struct ob_str pointer, struct ob_str *raw,
                               enum ob_jtype *type, struct ob_err *err) OB_MUST_CHECK;

#endif
