/* SPDX-License-Identifier: Apache-2.0 */
/* bson_json - BSON as JSON. One pass with a stack of its own; nothing is allocated but the text. */
#include "event/bson_json.h"

#include "core/json.h"

#include <math.h>
#include <stdio.h>

struct walk {
    enum ob_bson_form form;
    struct ob_buf *out;
    unsigned depth;
    struct level {
        struct ob_bson_iter it;
        bool array, scope; /* scope: of a code; it closes an object of ours too */
        bool first;
    } level[OB_BSON_DEPTH];
};

bool ob_bson_form_named(const char *name, enum ob_bson_form *out)
{
    static const char *const names[] = {"plain", "relaxed", "canonical"};

    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(names[i], name) == 0) {
            *out = (enum ob_bson_form)i;
            return true;
        }
    }
    return false;
}

/* ---- pieces ---- */

static void quoted(struct ob_buf *out, struct ob_str text)
{
    ob_buf_char(out, '"');
    ob_json_escape(out, text);
    ob_buf_char(out, '"');
}

/* {"$name":"text"} of a text that needs no escape */
static void wrapped(struct ob_buf *out, const char *name, const char *text, size_t n)
{
    ob_buf_put(out, "{\"$", 3);
    ob_buf_c(out, name);
    ob_buf_put(out, "\":\"", 3);
    ob_buf_put(out, text, n);
    ob_buf_put(out, "\"}", 2);
}

static void bare(struct ob_buf *out, const char *text, size_t n)
{
    ob_buf_char(out, '"');
    ob_buf_put(out, text, n);
    ob_buf_char(out, '"');
}

static void integer(const struct walk *w, const char *name, int64_t v)
{
    char text[24];
    size_t n = (size_t)snprintf(text, sizeof(text), "%lld", (long long)v);

    if (w->form == OB_BSON_CANONICAL)
        wrapped(w->out, name, text, n);
    else
        ob_buf_put(w->out, text, n);
}

static void number(const struct walk *w, double v)
{
    char text[OB_BSON_TEXT_MAX];
    size_t n = ob_bson_double_text(v, w->form == OB_BSON_PLAIN, text);

    if (w->form == OB_BSON_CANONICAL || (w->form == OB_BSON_RELAXED && !isfinite(v)))
        wrapped(w->out, "numberDouble", text, n);
    else if (!isfinite(v))
        ob_buf_put(w->out, "null", 4); /* JSON has no such numbers */
    else
        ob_buf_put(w->out, text, n);
}

static void decimal(const struct walk *w, const char *bytes)
{
    char text[OB_BSON_TEXT_MAX];
    size_t n = ob_bson_decimal_text(bytes, text);

    if (w->form == OB_BSON_PLAIN)
        bare(w->out, text, n);
    else
        wrapped(w->out, "numberDecimal", text, n);
}

static void date(const struct walk *w, int64_t ms)
{
    char text[OB_BSON_TEXT_MAX];
    size_t n;

    if (w->form == OB_BSON_PLAIN) {
        n = ob_bson_date_text(ms, false, text);
        bare(w->out, text, n);
    } else if (w->form == OB_BSON_RELAXED && ms >= 0 && ms <= OB_BSON_DATE_MAX) {
        n = ob_bson_date_text(ms, true, text);
        wrapped(w->out, "date", text, n);
    } else {
        ob_buf_printf(w->out, "{\"$date\":{\"$numberLong\":\"%lld\"}}", (long long)ms);
    }
}

static void oid(const struct walk *w, const char *bytes, bool plain)
{
    static const char hex[] = "0123456789abcdef";
    char text[24];

    for (int i = 0; i < 12; i++) {
        text[i * 2] = hex[(unsigned char)bytes[i] >> 4];
        text[i * 2 + 1] = hex[(unsigned char)bytes[i] & 15];
    }
    if (plain)
        bare(w->out, text, sizeof(text));
    else
        wrapped(w->out, "oid", text, sizeof(text));
}

static enum ob_status binary(const struct walk *w, struct ob_str value, struct ob_err *err)
{
    struct ob_str bytes;
    unsigned char subtype;

    if (!ob_bson_bytes(value, &bytes, &subtype))
        return ob_err_set(err, OB_REJECT, "the second length of a binary is wrong");
    if (w->form == OB_BSON_PLAIN) {
        ob_buf_char(w->out, '"');
        ob_base64(w->out, bytes);
        ob_buf_char(w->out, '"');
        return OB_OK;
    }
    ob_buf_c(w->out, "{\"$binary\":{\"base64\":\"");
    ob_base64(w->out, bytes);
    ob_buf_printf(w->out, "\",\"subType\":\"%02x\"}}", subtype);
    return OB_OK;
}

static void regex(const struct walk *w, struct ob_str value)
{
    size_t first = strlen(value.p); /* both end with a NUL: bson.c has looked */
    struct ob_str pattern = {value.p, first};
    struct ob_str options = {value.p + first + 1, value.n - first - 2};

    if (w->form == OB_BSON_PLAIN) {
        ob_buf_put(w->out, "\"/", 2);
        ob_json_escape(w->out, pattern);
        ob_buf_char(w->out, '/');
        ob_json_escape(w->out, options);
        ob_buf_char(w->out, '"');
        return;
    }
    ob_buf_c(w->out, "{\"$regularExpression\":{\"pattern\":");
    quoted(w->out, pattern);
    ob_buf_c(w->out, ",\"options\":");
    quoted(w->out, options);
    ob_buf_put(w->out, "}}", 2);
}

static void pointer(const struct walk *w, struct ob_str value)
{
    bool plain = w->form == OB_BSON_PLAIN;

    ob_buf_c(w->out, plain ? "{\"$ref\":" : "{\"$dbPointer\":{\"$ref\":");
    quoted(w->out, (struct ob_str){value.p + 4, value.n - 4 - 1 - 12});
    ob_buf_c(w->out, ",\"$id\":");
    oid(w, value.p + value.n - 12, plain);
    ob_buf_c(w->out, plain ? "}" : "}}");
}

/* Code and symbols: plain, they are texts. */
static void named_text(const struct walk *w, const char *name, struct ob_str value)
{
    bool plain = w->form == OB_BSON_PLAIN;

    if (!plain)
        ob_buf_printf(w->out, "{\"$%s\":", name);
    quoted(w->out, ob_bson_text(value));
    if (!plain)
        ob_buf_char(w->out, '}');
}

static void timestamp(const struct walk *w, struct ob_str value)
{
    bool plain = w->form == OB_BSON_PLAIN;

    ob_buf_printf(w->out, "%s{\"t\":%lu,\"i\":%lu}%s",
                  plain ? "" : "{\"$timestamp\":", (unsigned long)ob_bson_u32(value.p + 4),
                  (unsigned long)ob_bson_u32(value.p), plain ? "" : "}");
}

/* ---- the walk ---- */

static enum ob_status enter(struct walk *w, const struct ob_bson_iter *parent, struct ob_str doc,
                            bool array, bool scope, struct ob_err *err)
{
    struct level *l;

    if (w->depth == OB_BSON_DEPTH)
        return ob_err_set(err, OB_REJECT, "byte %zu: documents are nested deeper than %d",
                          (size_t)(doc.p - parent->base), OB_BSON_DEPTH);
    l = &w->level[w->depth++];
    l->array = array;
    l->scope = scope;
    l->first = true;
    ob_buf_char(w->out, array ? '[' : '{');
    return ob_bson_enter(&l->it, parent, doc, err);
}

static enum ob_status code_with_scope(struct walk *w, const struct ob_bson_iter *parent,
                                      struct ob_str value, struct ob_err *err)
{
    struct ob_str code = {value.p + 4, 4 + ob_bson_u32(value.p + 4)};
    struct ob_str scope = {code.p + code.n, value.n - 4 - code.n};

    ob_buf_c(w->out, "{\"$code\":");
    quoted(w->out, ob_bson_text(code));
    ob_buf_c(w->out, ",\"$scope\":");
    return enter(w, parent, scope, false, true, err);
}

static void literal(const struct walk *w, const char *plain, const char *extended)
{
    ob_buf_c(w->out, w->form == OB_BSON_PLAIN ? plain : extended);
}

/* What is one value and holds no document. */
static enum ob_status scalar(const struct walk *w, const struct ob_bson *f, struct ob_err *err)
{
    const char *p = f->value.p;

    switch (f->type) {
    case OB_BSON_DOUBLE:
        number(w, ob_bson_f64(p));
        break;
    case OB_BSON_STRING:
        quoted(w->out, ob_bson_text(f->value));
        break;
    case OB_BSON_BINARY:
        return binary(w, f->value, err);
    case OB_BSON_OID:
        oid(w, p, w->form == OB_BSON_PLAIN);
        break;
    case OB_BSON_BOOL:
        ob_buf_c(w->out, *p ? "true" : "false");
        break;
    case OB_BSON_DATE:
        date(w, (int64_t)ob_bson_u64(p));
        break;
    case OB_BSON_REGEX:
        regex(w, f->value);
        break;
    case OB_BSON_DBPOINTER:
        pointer(w, f->value);
        break;
    case OB_BSON_CODE:
        named_text(w, "code", f->value);
        break;
    case OB_BSON_SYMBOL:
        named_text(w, "symbol", f->value);
        break;
    case OB_BSON_INT32:
        integer(w, "numberInt", (int32_t)ob_bson_u32(p));
        break;
    case OB_BSON_INT64:
        integer(w, "numberLong", (int64_t)ob_bson_u64(p));
        break;
    case OB_BSON_TIMESTAMP:
        timestamp(w, f->value);
        break;
    case OB_BSON_DECIMAL:
        decimal(w, p);
        break;
    case OB_BSON_UNDEFINED:
        literal(w, "null", "{\"$undefined\":true}");
        break;
    case OB_BSON_MINKEY:
        ob_buf_c(w->out, "{\"$minKey\":1}");
        break;
    case OB_BSON_MAXKEY:
        ob_buf_c(w->out, "{\"$maxKey\":1}");
        break;
    default: /* NULL */
        ob_buf_put(w->out, "null", 4);
    }
    return OB_OK;
}

static enum ob_status value(struct walk *w, const struct ob_bson_iter *parent,
                            const struct ob_bson *f, struct ob_err *err)
{
    switch (f->type) {
    case OB_BSON_DOCUMENT:
        return enter(w, parent, f->value, false, false, err);
    case OB_BSON_ARRAY:
        return enter(w, parent, f->value, true, false, err);
    case OB_BSON_CODE_SCOPE:
        return code_with_scope(w, parent, f->value, err);
    default:
        return scalar(w, f, err);
    }
}

/* One field of the innermost document, or its end. */
static enum ob_status step(struct walk *w, struct ob_err *err)
{
    struct level *l = &w->level[w->depth - 1];
    struct ob_bson f;
    enum ob_status st = ob_bson_next(&l->it, &f, err);

    if (st == OB_AGAIN) {
        ob_buf_char(w->out, l->array ? ']' : '}');
        if (l->scope)
            ob_buf_char(w->out, '}');
        w->depth--;
        return OB_OK;
    }
    if (st != OB_OK)
        return st;
    if (!l->first)
        ob_buf_char(w->out, ',');
    l->first = false;
    if (!l->array) {
        quoted(w->out, f.name);
        ob_buf_char(w->out, ':');
    }
    return value(w, &l->it, &f, err);
}

enum ob_status ob_bson_json_value(const struct ob_bson *field, enum ob_bson_form form,
                                  struct ob_buf *out, struct ob_err *err)
{
    struct walk w;
    const struct ob_bson_iter top = {.base = field->value.p};
    size_t start = out->n;
    bool failed = out->failed;
    enum ob_status st;

    w.form = form;
    w.out = out;
    w.depth = 0;
    st = value(&w, &top, field, err);
    while (st == OB_OK && w.depth && !out->failed)
        st = step(&w, err);
    if (st == OB_OK && out->failed)
        st = ob_err_set(err, OB_DOWN, "a document is too large as JSON, or there is no memory");
    if (st != OB_OK) {
        out->n = start;
        out->failed = failed;
    }
    return st;
}

enum ob_status ob_bson_json(struct ob_str doc, enum ob_bson_form form, struct ob_buf *out,
                            struct ob_err *err)
{
    const struct ob_bson top = {.type = OB_BSON_DOCUMENT, .value = {doc.p ? doc.p : "", doc.n}};

    return ob_bson_json_value(&top, form, out, err);
}

enum ob_status ob_bson_payload(const struct ob_bson *field, enum ob_bson_form form,
                               struct ob_buf *scratch, struct ob_str *payload,
                               enum ob_payload_kind *kind, struct ob_err *err)
{
    size_t start = scratch->n;
    enum ob_status st = OB_OK;

    switch (field->type) {
    case OB_BSON_NULL:
    case OB_BSON_UNDEFINED:
        *payload = (struct ob_str){NULL, 0};
        *kind = OB_PAYLOAD_NULL;
        break;
    case OB_BSON_STRING:
        *payload = ob_bson_text(field->value);
        *kind = OB_PAYLOAD_JSON;
        break;
    case OB_BSON_BINARY:
        if (!ob_bson_bytes(field->value, payload, NULL))
            return ob_err_set(err, OB_REJECT, "the second length of a binary is wrong");
        *kind = OB_PAYLOAD_BYTES;
        break;
    default:
        st = ob_bson_json_value(field, form, scratch, err);
        if (st == OB_OK) {
            *payload = (struct ob_str){scratch->p + start, scratch->n - start};
            *kind = OB_PAYLOAD_JSON;
        }
    }
    return st;
}
