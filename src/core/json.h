/* SPDX-License-Identifier: Apache-2.0 */
/* json - writing JSON into a buffer. Raw parts are copied byte for byte, never re-encoded. No
 * spaces. */
#ifndef OB_CORE_JSON_H
#define OB_CORE_JSON_H

#include "core/buf.h"

/* Writes into a caller's buffer; commas are its own business. Depth at most 64 (then buf->failed).
 */
struct ob_json {
    struct ob_buf *buf;
    unsigned depth;
    bool after_key;
    uint64_t first; /* bit per depth: nothing written there yet */
};

void ob_json_init(struct ob_json *j, struct ob_buf *buf);
void ob_json_open(struct ob_json *j, char bracket);  /* '{' or '[' */
void ob_json_close(struct ob_json *j, char bracket); /* '}' or ']' */
void ob_json_key(struct ob_json *j, struct ob_str key);
void ob_json_keyc(struct ob_json *j, const char *key);
/* A string; bytes that are not UTF-8 become U+FFFD. */
void ob_json_str(struct ob_json *j, struct ob_str s);
void ob_json_strc(struct ob_json *j, const char *z); /* NULL writes null */
void ob_json_int(struct ob_json *j, int64_t v);
void ob_json_uint(struct ob_json *j, uint64_t v);
void ob_json_double(struct ob_json *j, double v); /* not finite: null */
void ob_json_bool(struct ob_json *j, bool v);
void ob_json_null(struct ob_json *j);
/* A whole JSON value that is known to be one. */
void ob_json_raw(struct ob_json *j, struct ob_str value);
/* An array of strings. */
void ob_json_texts(struct ob_buf *buf, const char *const *texts, size_t n);
/* Only the inside of a string, escaped, without quotes and commas. */
void ob_json_escape(struct ob_buf *buf, struct ob_str s);
/* Bytes as base64 (standard alphabet, padded), without quotes. */
void ob_base64(struct ob_buf *buf, struct ob_str s);

#endif
