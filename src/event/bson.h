/* SPDX-License-Identifier: Apache-2.0 */
/* bson - reading BSON documents field by field, without a library and without copies. What is read
 * is never trusted: every length is checked against the document that it stands in. */
#ifndef OB_EVENT_BSON_H
#define OB_EVENT_BSON_H

#include "core/err.h"
#include "core/str.h"

/* Documents within documents; a server keeps at most 200. */
#define OB_BSON_DEPTH 250

enum ob_bson_type {
    OB_BSON_DOUBLE = 0x01,
    OB_BSON_STRING = 0x02,
    OB_BSON_DOCUMENT = 0x03,
    OB_BSON_ARRAY = 0x04,
    OB_BSON_BINARY = 0x05,
    OB_BSON_UNDEFINED = 0x06,
    OB_BSON_OID = 0x07,
    OB_BSON_BOOL = 0x08,
    OB_BSON_DATE = 0x09,
    OB_BSON_NULL = 0x0a,
    OB_BSON_REGEX = 0x0b,
    OB_BSON_DBPOINTER = 0x0c,
    OB_BSON_CODE = 0x0d,
    OB_BSON_SYMBOL = 0x0e,
    OB_BSON_CODE_SCOPE = 0x0f,
    OB_BSON_INT32 = 0x10,
    OB_BSON_TIMESTAMP = 0x11,
    OB_BSON_INT64 = 0x12,
    OB_BSON_DECIMAL = 0x13,
    OB_BSON_MAXKEY = 0x7f,
    OB_BSON_MINKEY = 0xff,
};

/* One field; slices of the document. */
struct ob_bson {
    unsigned char type;  /* enum ob_bson_type */
    struct ob_str name;  /* has no NUL; may be empty, and may be no UTF-8 */
    struct ob_str value; /* all bytes of the value, as its type says: whole and within bounds */
};

struct ob_bson_iter {
    const char *base; /* places in messages count from here */
    const char *p, *end;
};

/* OB_REJECT with "byte N: what was wrong" (N from 0) where these bytes are no document; what is in
 * it is looked at by next(). */
enum ob_status ob_bson_open(struct ob_bson_iter *it, struct ob_str doc,
                            struct ob_err *err) OB_MUST_CHECK;
/* The document or array that a field has as its value; places count as in its parent. */
enum ob_status ob_bson_enter(struct ob_bson_iter *it, const struct ob_bson_iter *parent,
                             struct ob_str doc, struct ob_err *err) OB_MUST_CHECK;
/* OB_OK: *out is the next field; OB_AGAIN: there is none; OB_REJECT: this is no BSON. */
enum ob_status ob_bson_next(struct ob_bson_iter *it, struct ob_bson *out,
                            struct ob_err *err) OB_MUST_CHECK;
/* The first field of this name at the top of doc. OB_AGAIN: there is none. */
enum ob_status ob_bson_find(struct ob_str doc, const char *name, struct ob_bson *out,
                            struct ob_err *err) OB_MUST_CHECK;

/* Is all of it BSON, and not nested deeper than OB_BSON_DEPTH? */
enum ob_status ob_bson_check(struct ob_str doc, struct ob_err *err) OB_MUST_CHECK;

/* Numbers of a value, at a place in it. */
uint32_t ob_bson_u32(const char *p);
uint64_t ob_bson_u64(const char *p);
double ob_bson_f64(const char *p);
/* Text of STRING, CODE, SYMBOL; may have NUL in it, and may be no UTF-8. */
struct ob_str ob_bson_text(struct ob_str value);
/* Bytes of BINARY; *subtype may be NULL. The second length of subtype 2 is checked: false where it
 * does not fit. */
bool ob_bson_bytes(struct ob_str value, struct ob_str *bytes, unsigned char *subtype);

#endif
