/* SPDX-License-Identifier: Apache-2.0 */
/* tmpl - text with ${…} in it, compiled once into parts, rendered per event.
 *
 *   template = { text | "$${" (a literal "${") | "${" expr "}" }
 *   expr     = name [ "%%" text "*" ] [ ":" argument ] [ ":-" template ]
 * Inside ${…} a backslash takes the next character literally, and braces in a default are counted,
 * so that ${metadata:-{}} is what it looks like. */
#ifndef OB_ROUTE_TMPL_H
#define OB_ROUTE_TMPL_H

#include "config/node.h"
#include "core/arena.h"
#include "core/buf.h"
#include "core/clock.h"
#include "event/event.h"

enum ob_field {
    OB_F_ID,
    OB_F_TYPE,
    OB_F_AGGREGATE_TYPE,
    OB_F_AGGREGATE_ID,
    OB_F_KEY,
    OB_F_TENANT,
    OB_F_TOPIC,
    OB_F_STREAM,
    OB_F_SERVICE, /* up to here: text by nature, and so is a default given for it */
    OB_F_PAYLOAD,
    OB_F_HEADERS,
    OB_F_METADATA,
    OB_F_ENTITY_VERSION,
    OB_F_SCHEMA_VERSION,
    OB_F_SEQ,
    OB_F_CREATED,
    OB_F_NOW,
    OB_F_COL,
};

struct ob_tmpl;

struct ob_expr {
    enum ob_field field;
    bool pointer;               /* arg is a JSON pointer */
    struct ob_str arg;          /* the pointer, or a column's name */
    struct ob_str cut;          /* a text field ends before the first of these; empty: whole */
    const struct ob_tmpl *dflt; /* NULL: none */
    struct ob_str dflt_json;    /* the default where it is JSON and the field is not text */
    struct ob_str written;      /* "${…}", for messages */
};

/* A template is a short array of these. */
struct ob_part {
    struct ob_str lit;
    const struct ob_expr *expr; /* NULL: lit */
};

struct ob_tmpl {
    const struct ob_part *parts;
    size_t n;
};

enum ob_value_kind {
    OB_VAL_MISSING,
    OB_VAL_NULL,   /* found, and it is JSON's null */
    OB_VAL_TEXT,   /* bytes as they are */
    OB_VAL_STRING, /* a JSON string with its quotes */
    OB_VAL_JSON,   /* any other whole JSON value */
    OB_VAL_BYTES,
};

struct ob_value {
    enum ob_value_kind kind;
    struct ob_str s;
    bool passing; /* s lives only as long as the ob_rctx */
};

#define OB_NUMBER_MAX 24

enum ob_missing { OB_MISSING_NULL, OB_MISSING_OMIT, OB_MISSING_REJECT };

/* One event on its way. On the caller's stack; never leaves ob_route_event(). */
struct ob_rctx {
    const struct ob_event *ev;
    int64_t now_us;
    struct ob_arena *arena;
    struct ob_buf *scratch; /* used as a stack: whoever appends cuts it back to where it was */
    struct ob_str service;
    bool epoch_ms;
    enum ob_missing missing;
    struct ob_value payload; /* once it was checked to be JSON; until then missing */
    size_t now_n, created_n;
    char now[OB_RFC3339_MAX], created[OB_RFC3339_MAX];
    char number[5][OB_NUMBER_MAX]; /* of entity_version, schema_version, seq, now, created */
};

/* pos: of the scalar, NULL if it comes from the code. Errors are OB_FATAL and name the place. */
enum ob_status ob_tmpl_compile(struct ob_arena *arena, const char *text,
                               const struct ob_node *scalar, struct ob_tmpl *out,
                               struct ob_err *err) OB_MUST_CHECK;
/* The expression, if the template is exactly one ${…}; else NULL. */
static inline const struct ob_expr *ob_tmpl_single(const struct ob_tmpl *t)
{
    return t->n == 1 ? t->parts[0].expr : NULL;
}

/* The value with its own type, after defaults. OB_REJECT: what should be JSON is not. */
enum ob_status ob_expr_eval(struct ob_rctx *c, const struct ob_expr *e, struct ob_value *out,
                            struct ob_err *err) OB_MUST_CHECK;
/* As text: no copy where it is one slice of the event or of the template; else from the arena.
 * *missing (may be NULL) says that the template is one ${…} that found nothing. Where c->missing is
 * OB_MISSING_REJECT that is OB_REJECT, else no text. OB_RETRY: no memory. */
enum ob_status ob_tmpl_text(struct ob_rctx *c, const struct ob_tmpl *t, struct ob_str *out,
                            bool *missing, struct ob_err *err) OB_MUST_CHECK;
/* Appends to the scratch buffer. */
enum ob_status ob_tmpl_append(struct ob_rctx *c, const struct ob_tmpl *t,
                              struct ob_err *err) OB_MUST_CHECK;
/* Takes what stands in the scratch buffer from `mark` on into the arena and cuts the buffer back.
 */
enum ob_status ob_rctx_take(struct ob_rctx *c, size_t mark, struct ob_str *out,
                            struct ob_err *err) OB_MUST_CHECK;
/* The scratch buffer ran over: OB_REJECT if the event made too much of it, OB_RETRY if memory did.
 */
enum ob_status ob_rctx_overrun(struct ob_rctx *c, struct ob_err *err);
enum ob_status ob_rctx_nomem(struct ob_err *err);
/* Decimal digits, somewhere in text. */
struct ob_str ob_number(char text[OB_NUMBER_MAX], int64_t i);
/* RFC 3339, made once per event. */
struct ob_str ob_rctx_now(struct ob_rctx *c);
struct ob_str ob_rctx_created(struct ob_rctx *c);

/* " (did you mean \"x\"?)" or "" when none of names is near. Lives in buf. */
#define OB_NEAREST_MAX 96
const char *ob_route_nearest(char buf[OB_NEAREST_MAX], const char *const *names, size_t n,
                             struct ob_str name);

#endif
