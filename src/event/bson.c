/* SPDX-License-Identifier: Apache-2.0 */
/* bson - reading BSON documents field by field. */
#include "event/bson.h"

#define DOC_MIN 5    /* a length and a NUL */
#define SCOPE_MIN 14 /* a length, an empty string, an empty document */

uint32_t ob_bson_u32(const char *p)
{
    const unsigned char *b = (const unsigned char *)p;
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

uint64_t ob_bson_u64(const char *p)
{
    return (uint64_t)ob_bson_u32(p) | (uint64_t)ob_bson_u32(p + 4) << 32;
}

double ob_bson_f64(const char *p)
{
    uint64_t bits = ob_bson_u64(p);
    double v;

    memcpy(&v, &bits, sizeof(v));
    return v;
}

static enum ob_status bad(const struct ob_bson_iter *it, const char *at, const char *what,
                          struct ob_err *err)
{
    return ob_err_set(err, OB_REJECT, "byte %zu: %s", (size_t)(at - it->base), what);
}

enum ob_status ob_bson_enter(struct ob_bson_iter *it, const struct ob_bson_iter *parent,
                             struct ob_str doc, struct ob_err *err)
{
    *it = (struct ob_bson_iter){.base = parent->base, .p = doc.p, .end = doc.p};
    if (doc.n < DOC_MIN || ob_bson_u32(doc.p) != doc.n)
        return bad(it, doc.p, "the length of a document is wrong", err);
    if (doc.p[doc.n - 1] != '\0')
        return bad(it, doc.p + doc.n - 1, "a document does not end with a NUL", err);
    it->p = doc.p + 4;
    it->end = doc.p + doc.n - 1;
    return OB_OK;
}

enum ob_status ob_bson_open(struct ob_bson_iter *it, struct ob_str doc, struct ob_err *err)
{
    const struct ob_bson_iter top = {.base = doc.p ? doc.p : ""};

    return ob_bson_enter(it, &top, (struct ob_str){top.base, doc.p ? doc.n : 0}, err);
}

/* Length of a string with its own length before it; 0: it does not fit into n bytes. */
static size_t string_size(const char *p, size_t n)
{
    size_t size;

    if (n < 5)
        return 0;
    size = ob_bson_u32(p);
    return size >= 1 && size <= n - 4 && p[4 + size - 1] == '\0' ? 4 + size : 0;
}

static size_t document_size(const char *p, size_t n)
{
    size_t size = n < DOC_MIN ? 0 : ob_bson_u32(p);

    return size >= DOC_MIN && size <= n && p[size - 1] == '\0' ? size : 0;
}

/* Two texts with a NUL behind each. */
static size_t regex_size(const char *p, size_t n)
{
    const char *first = n ? memchr(p, '\0', n) : NULL;
    size_t used = first ? (size_t)(first - p) + 1 : n;
    const char *second = used < n ? memchr(p + used, '\0', n - used) : NULL;

    return second ? (size_t)(second - p) + 1 : 0;
}

static size_t binary_size(const char *p, size_t n)
{
    size_t size = n < 5 ? SIZE_MAX : ob_bson_u32(p);

    return size != SIZE_MAX && size <= n - 5 ? 5 + size : 0;
}

/* A length of all, a string and a document that fill it. */
static size_t scope_size(const char *p, size_t n)
{
    size_t size = n < SCOPE_MIN ? 0 : ob_bson_u32(p), text;

    if (size < SCOPE_MIN || size > n)
        return 0;
    text = string_size(p + 4, size - 4);
    return text && document_size(p + 4 + text, size - 4 - text) == size - 4 - text ? size : 0;
}

static size_t fixed_size(unsigned char type)
{
    switch (type) {
    case OB_BSON_BOOL:
        return 1;
    case OB_BSON_INT32:
        return 4;
    case OB_BSON_OID:
        return 12;
    case OB_BSON_DECIMAL:
        return 16;
    case OB_BSON_DOUBLE:
    case OB_BSON_DATE:
    case OB_BSON_TIMESTAMP:
    case OB_BSON_INT64:
        return 8;
    default: /* UNDEFINED, NULL, MINKEY, MAXKEY */
        return 0;
    }
}

/* How many of n bytes the value takes; SIZE_MAX: it is wrong or too long. */
static size_t value_size(unsigned char type, const char *p, size_t n)
{
    size_t size;

    switch (type) {
    case OB_BSON_STRING:
    case OB_BSON_CODE:
    case OB_BSON_SYMBOL:
        size = string_size(p, n);
        return size ? size : SIZE_MAX;
    case OB_BSON_DOCUMENT:
    case OB_BSON_ARRAY:
        size = document_size(p, n);
        return size ? size : SIZE_MAX;
    case OB_BSON_BINARY:
        size = binary_size(p, n);
        return size ? size : SIZE_MAX;
    case OB_BSON_REGEX:
        size = regex_size(p, n);
        return size ? size : SIZE_MAX;
    case OB_BSON_DBPOINTER:
        size = string_size(p, n);
        return size && n - size >= 12 ? size + 12 : SIZE_MAX;
    case OB_BSON_CODE_SCOPE:
        size = scope_size(p, n);
        return size ? size : SIZE_MAX;
    default:
        size = fixed_size(type);
        return size <= n ? size : SIZE_MAX;
    }
}

static bool known(unsigned char type)
{
    return (type >= OB_BSON_DOUBLE && type <= OB_BSON_DECIMAL) || type == OB_BSON_MINKEY ||
           type == OB_BSON_MAXKEY;
}

enum ob_status ob_bson_next(struct ob_bson_iter *it, struct ob_bson *out, struct ob_err *err)
{
    const char *at = it->p, *nul;
    size_t size;
    struct ob_bson f;

    if (at == it->end)
        return OB_AGAIN;
    f.type = (unsigned char)*at;
    if (!known(f.type))
        return bad(it, at, "there is no such type of value", err);
    nul = memchr(at + 1, '\0', (size_t)(it->end - at) - 1);
    if (!nul)
        return bad(it, at + 1, "the name of a field does not end", err);
    f.name = (struct ob_str){at + 1, (size_t)(nul - at) - 1};
    size = value_size(f.type, nul + 1, (size_t)(it->end - nul) - 1);
    if (size == SIZE_MAX)
        return bad(it, nul + 1, "a value is not whole", err);
    f.value = (struct ob_str){nul + 1, size};
    it->p = nul + 1 + size;
    *out = f;
    return OB_OK;
}

enum ob_status ob_bson_find(struct ob_str doc, const char *name, struct ob_bson *out,
                            struct ob_err *err)
{
    struct ob_bson_iter it;
    struct ob_bson f;
    size_t n = strlen(name);
    enum ob_status st = ob_bson_open(&it, doc, err);

    while (st == OB_OK) {
        st = ob_bson_next(&it, &f, err);
        if (st == OB_OK && f.name.n == n && memcmp(f.name.p, name, n) == 0) {
            *out = f;
            break;
        }
    }
    return st;
}

/* The document inside a value, or none. */
static struct ob_str within(const struct ob_bson *f)
{
    size_t skip;

    if (f->type == OB_BSON_DOCUMENT || f->type == OB_BSON_ARRAY)
        return f->value;
    if (f->type != OB_BSON_CODE_SCOPE)
        return (struct ob_str){NULL, 0};
    skip = 8 + ob_bson_u32(f->value.p + 4);
    return (struct ob_str){f->value.p + skip, f->value.n - skip};
}

enum ob_status ob_bson_check(struct ob_str doc, struct ob_err *err)
{
    struct ob_bson_iter level[OB_BSON_DEPTH];
    unsigned depth = 1;
    enum ob_status st = ob_bson_open(&level[0], doc, err);

    while (st == OB_OK && depth) {
        struct ob_bson f;
        struct ob_str sub;
        st = ob_bson_next(&level[depth - 1], &f, err);
        if (st == OB_AGAIN) {
            depth--;
            st = OB_OK;
            continue;
        }
        sub = st == OB_OK ? within(&f) : (struct ob_str){NULL, 0};
        if (sub.p && depth == OB_BSON_DEPTH)
            return bad(&level[0], sub.p, "documents are nested too deep", err);
        if (sub.p) {
            st = ob_bson_enter(&level[depth], &level[depth - 1], sub, err);
            depth++;
        }
    }
    return st;
}

struct ob_str ob_bson_text(struct ob_str value)
{
    return (struct ob_str){value.p + 4, value.n - 5};
}

bool ob_bson_bytes(struct ob_str value, struct ob_str *bytes, unsigned char *subtype)
{
    unsigned char kind = (unsigned char)value.p[4];
    struct ob_str b = {value.p + 5, value.n - 5};

    if (kind == 0x02) { /* the old one: a length again */
        if (b.n < 4 || ob_bson_u32(b.p) != b.n - 4)
            return false;
        b = (struct ob_str){b.p + 4, b.n - 4};
    }
    if (subtype)
        *subtype = kind;
    *bytes = b;
    return true;
}
