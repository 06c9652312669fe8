/* SPDX-License-Identifier: Apache-2.0 */
/* merge - several JSON objects as one. A key stands where it was first seen, with the value that
 * came last; keys and values are copied byte for byte. A hash table keeps hostile input (many keys)
 * from costing more than its length. */
#include "core/jscan.h"
#include "route/shape.h"

#define KEYS_MAX 16384u
#define KEYS_FEW 16u /* so many fit without the arena */

struct member {
    struct ob_str name; /* escapes resolved: what is compared */
    struct ob_str key;  /* as written, with quotes */
    struct ob_str value;
};

struct merger {
    struct ob_rctx *c;
    struct member *members;
    uint32_t *slots; /* index + 1, 0 is free; twice as many as cap, a power of two */
    size_t n, cap;
};

static size_t find_slot(const struct merger *m, struct ob_str name)
{
    size_t mask = m->cap * 2 - 1, i = (size_t)ob_hash64_secret(name.p, name.n) & mask;
    while (m->slots[i] != 0 && !ob_str_eq(m->members[m->slots[i] - 1].name, name))
        i = (i + 1) & mask;
    return i;
}

static enum ob_status grow(struct merger *m, struct ob_err *err)
{
    size_t cap = m->cap * 2;
    if (cap > KEYS_MAX)
        return ob_err_set(err, OB_REJECT, "$merge: more than %u keys", KEYS_MAX);
    struct member *members = ob_arena_alloc(m->c->arena, cap * sizeof *members);
    uint32_t *slots = ob_arena_zalloc(m->c->arena, cap * 2 * sizeof *slots);
    if (members == NULL || slots == NULL)
        return ob_rctx_nomem(err);
    memcpy(members, m->members, m->n * sizeof *members);
    *m = (struct merger){m->c, members, slots, m->n, cap};
    for (size_t i = 0; i < m->n; i++)
        slots[find_slot(m, members[i].name)] = (uint32_t)i + 1;
    return OB_OK;
}

static enum ob_status add(struct merger *m, const struct ob_jtok *key, struct ob_str value,
                          struct ob_err *err)
{
    struct ob_str name = key->text;
    enum ob_status st = OB_OK;
    if (key->escaped) {
        size_t mark = m->c->scratch->n;
        ob_jscan_unescape(m->c->scratch, key->text);
        st = ob_rctx_take(m->c, mark, &name, err);
    }
    if (st != OB_OK)
        return st;
    size_t slot = find_slot(m, name);
    if (m->slots[slot] != 0) {
        m->members[m->slots[slot] - 1].value = value;
        return OB_OK;
    }
    if (m->n == m->cap) {
        st = grow(m, err);
        if (st != OB_OK)
            return st;
        slot = find_slot(m, name);
    }
    m->members[m->n] = (struct member){name, key->raw, value};
    m->slots[slot] = (uint32_t)++m->n;
    return OB_OK;
}

static enum ob_status add_object(struct merger *m, struct ob_str text, size_t part,
                                 struct ob_err *err)
{
    struct ob_jscan scan;
    struct ob_jtok tok;
    ob_jscan_init(&scan, text);
    enum ob_status st = ob_jscan_next(&scan, &tok, err);
    if (st != OB_OK || tok.type == OB_J_NULL)
        return st;
    if (tok.type != OB_J_OBJECT)
        return ob_err_set(err, OB_REJECT, "$merge: part %zu is not an object but %s", part + 1,
                          tok.type == OB_J_ARRAY    ? "an array"
                          : tok.type == OB_J_STRING ? "a string"
                          : tok.type == OB_J_NUMBER ? "a number"
                                                    : "a boolean");
    while ((st = ob_jscan_next(&scan, &tok, err)) == OB_OK && tok.type == OB_J_KEY) {
        struct ob_str value;
        enum ob_jtype type;
        st = ob_jscan_value(&scan, &value, &type, err);
        if (st == OB_OK)
            st = add(m, &tok, value, err);
        if (st != OB_OK)
            return st;
    }
    return st;
}

enum ob_status ob_merge(struct ob_rctx *c, size_t mark, const size_t *ends, size_t n,
                        struct ob_err *err)
{
    struct member few[KEYS_FEW];
    uint32_t slots[KEYS_FEW * 2] = {0};
    struct merger m = {c, few, slots, 0, KEYS_FEW};
    struct ob_str all;
    enum ob_status st = ob_rctx_take(c, mark, &all, err); /* out of the buffer: that may move */
    size_t from = 0;
    for (size_t i = 0; i < n && st == OB_OK; i++) {
        size_t to = ends[i] - mark;
        st = add_object(&m, (struct ob_str){all.p + from, to - from}, i, err);
        from = to;
    }
    if (st != OB_OK)
        return st;
    ob_buf_char(c->scratch, '{');
    for (size_t i = 0; i < m.n; i++) {
        ob_buf_c(c->scratch, i > 0 ? "," : "");
        ob_buf_str(c->scratch, m.members[i].key);
        ob_buf_char(c->scratch, ':');
        ob_buf_str(c->scratch, m.members[i].value);
    }
    ob_buf_char(c->scratch, '}');
    return OB_OK;
}
