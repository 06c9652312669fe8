/* SPDX-License-Identifier: Apache-2.0 */
/* bson_json - BSON as JSON, in the order of its fields and without spaces. docs/bson.md has every
 * type in every form. */
#ifndef OB_EVENT_BSON_JSON_H
#define OB_EVENT_BSON_JSON_H

#include "core/buf.h"
#include "event/bson.h"
#include "event/event.h"

enum ob_bson_form {
    OB_BSON_PLAIN,     /* what an application would write: numbers, texts, RFC 3339 */
    OB_BSON_RELAXED,   /* MongoDB's Extended JSON 2, relaxed */
    OB_BSON_CANONICAL, /* and canonical: every type can be told again */
};

/* "plain", "relaxed", "canonical". False: none of them. */
bool ob_bson_form_named(const char *name, enum ob_bson_form *out);

/* Appends a whole document. On failure what was appended is taken back. OB_REJECT: it is no BSON,
 * with "byte N: …", or nested too deep; OB_DOWN: the buffer's ceiling or memory is reached. */
enum ob_status ob_bson_json(struct ob_str doc, enum ob_bson_form form, struct ob_buf *out,
                            struct ob_err *err) OB_MUST_CHECK;
/* The same of a field's value. */
enum ob_status ob_bson_json_value(const struct ob_bson *field, enum ob_bson_form form,
                                  struct ob_buf *out, struct ob_err *err) OB_MUST_CHECK;

/* A field as the payload of an event: a string or a binary as it is (a slice of the value), null
 * and undefined as none, all else as JSON, appended to scratch (*payload is then a slice of that).
 * *kind: a string is JSON, a binary is bytes, unless whoever wrote the event says otherwise. */
enum ob_status ob_bson_payload(const struct ob_bson *field, enum ob_bson_form form,
                               struct ob_buf *scratch, struct ob_str *payload,
                               enum ob_payload_kind *kind, struct ob_err *err) OB_MUST_CHECK;

/* ---- numbers and times as text (bson_text.c) ---- */

#define OB_BSON_TEXT_MAX 48

/* The fewest digits that read back as the same number. js: as ECMAScript writes it (1, 1e+21), but
 * -0 keeps its sign; else it can be told from an integer (1.0, 1e+16). Not finite: NaN, Infinity,
 * -Infinity. Returns the length. */
size_t ob_bson_double_text(double v, bool js, char out[OB_BSON_TEXT_MAX]);
/* 16 bytes as they stand in BSON, as IEEE 754 writes them (1.20E+7, NaN, -Infinity). */
size_t ob_bson_decimal_text(const char *bytes, char out[OB_BSON_TEXT_MAX]);
/* Milliseconds since 1970 as RFC 3339 (always three digits of fraction, or none where they are 0
 * and `short_` is set); before year 0 and after 9999 the year has a sign and six digits or more. */
size_t ob_bson_date_text(int64_t ms, bool short_, char out[OB_BSON_TEXT_MAX]);
/* The last millisecond of year 9999. */
#define OB_BSON_DATE_MAX INT64_C(253402300799999)

#endif
