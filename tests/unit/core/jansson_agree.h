/* SPDX-License-Identifier: Apache-2.0 */
/* jansson_agree - a second opinion on JSON: where jansson may differ from the scanner, and why.
 *
 * jansson refuses what RFC 8259 allows: numbers that do not fit its types (1e400, integers of 64
 * bits and more), \u escapes of a surrogate without its other half, NUL in keys. It takes depths up
 * to 2048, and a NUL behind a value for the end of the text. */
#ifndef OB_TESTS_JANSSON_AGREE_H
#define OB_TESTS_JANSSON_AGREE_H

#include "core/jscan.h"

#include <jansson.h>
#include <stdio.h>

#define JANSSON_KEY_MAX 8192
#define JANSSON_FLAGS (JSON_DECODE_ANY | JSON_ALLOW_NUL)

static inline bool jansson_may_refuse(const json_error_t *e)
{
    return json_error_code(e) == json_error_numeric_overflow ||
           json_error_code(e) == json_error_null_byte_in_key ||
           strstr(e->text, "invalid Unicode") != NULL;
}

/* Whether jansson thinks of text what the scanner thought of it (st, err). */
static inline bool jansson_agrees(struct ob_str text, enum ob_status st, const struct ob_err *err)
{
    json_error_t e = {.text = ""};
    json_t *doc = json_loadb(text.p ? text.p : "", text.n, JANSSON_FLAGS, &e);
    bool agrees;

    if (doc)
        agrees = st == OB_OK || strstr(err->text, "nested too deep") ||
                 (text.n && (text.p && memchr(text.p, 0, text.n)));
    else
        agrees = st != OB_OK || jansson_may_refuse(&e);
    if (!agrees)
        fprintf(stderr, "scanner: %s (%s); jansson: %s\n", ob_status_name(st),
                st == OB_OK ? "" : err->text, doc ? "ok" : e.text);
    json_decref(doc);
    return agrees;
}

/* jansson's value at a pointer shorter than JANSSON_KEY_MAX; NULL: not there. */
static inline json_t *jansson_at(json_t *value, struct ob_str pointer)
{
    const char *p = pointer.p, *end = pointer.p + pointer.n;

    while (value && p < end) {
        char key[JANSSON_KEY_MAX];
        size_t n = 0;

        for (p++; p < end && *p != '/'; p++) {
            if (*p == '~')
                key[n++] = *++p == '0' ? '~' : '/';
            else
                key[n++] = *p;
        }
        key[n] = '\0';
        if (json_is_object(value))
            value = json_object_getn(value, key, n);
        else if (json_is_array(value) && n && strspn(key, "0123456789") == n &&
                 (n == 1 || key[0] != '0'))
            value = json_array_get(value, strtoul(key, NULL, 10));
        else
            value = NULL;
    }
    return value;
}

/* Whether raw is, for jansson too, the value at pointer in text (raw.p NULL: nothing is there).
 * True if jansson has no opinion. */
static inline bool jansson_same_at(struct ob_str text, struct ob_str pointer, struct ob_str raw)
{
    json_t *doc = json_loadb(text.p, text.n, JANSSON_FLAGS, NULL);
    json_t *part = raw.p ? json_loadb(raw.p, raw.n, JANSSON_FLAGS, NULL) : NULL;
    bool same = true;

    if (doc && pointer.n < JANSSON_KEY_MAX)
        same = raw.p ? json_equal(jansson_at(doc, pointer), part) : !jansson_at(doc, pointer);

    json_decref(doc);
    json_decref(part);
    return same;
}

#endif
