/* SPDX-License-Identifier: Apache-2.0 */
/* ahead - a sorted array, written as blocks of one `hi` each:
 *
 *     'A' hi lo kind n …      numbers are varints, lo is the first member
 *     kind 0: n runs          length, then n - 1 times gap and length
 *     kind 1: n bytes         a bit per number from lo on
 *
 * Each block takes the shorter form. A run never covers a number that is not a member. */
#include "source/ahead.h"

#include <stdlib.h>
#include <string.h>

#define MARK 'A'
/* Bytes of one block: a bit for each event of the largest window. */
#define BITMAP_MAX ((uint64_t)1 << 20)

enum { RUNS = 0, BITMAP = 1 };

void ob_ahead_free(struct ob_ahead *set)
{
    free(set->at);
    *set = (struct ob_ahead){0};
}

void ob_ahead_reset(struct ob_ahead *set)
{
    set->n = 0;
}

bool ob_ahead_add(struct ob_ahead *set, uint64_t hi, uint64_t lo, uint64_t ref)
{
    if (set->n == set->cap) {
        size_t cap = set->cap ? 2 * set->cap : 256;
        struct ob_ahead_at *at = realloc(set->at, cap * sizeof(*at));
        if (!at)
            return false;
        set->at = at;
        set->cap = cap;
    }
    set->at[set->n++] = (struct ob_ahead_at){hi, lo, ref};
    return true;
}

static int compare(const void *a, const void *b)
{
    const struct ob_ahead_at *x = a, *y = b;
    if (x->hi != y->hi)
        return x->hi < y->hi ? -1 : 1;
    return (x->lo > y->lo) - (x->lo < y->lo);
}

void ob_ahead_sort(struct ob_ahead *set)
{
    size_t i = 1, n = 0;
    while (i < set->n && compare(&set->at[i - 1], &set->at[i]) < 0)
        i++;
    if (i >= set->n)
        return;
    qsort(set->at, set->n, sizeof(*set->at), compare);
    for (i = 0; i < set->n; i++) {
        if (n > 0 && compare(&set->at[n - 1], &set->at[i]) == 0) {
            if (set->at[i].ref > set->at[n - 1].ref)
                set->at[n - 1].ref = set->at[i].ref;
            continue;
        }
        set->at[n++] = set->at[i];
    }
    set->n = n;
}

struct ob_ahead_at *ob_ahead_find(const struct ob_ahead *set, uint64_t hi, uint64_t lo)
{
    const struct ob_ahead_at want = {hi, lo, 0};
    return set->n ? bsearch(&want, set->at, set->n, sizeof(want), compare) : NULL;
}

void ob_ahead_unclaimed(struct ob_ahead *set)
{
    for (size_t i = 0; i < set->n; i++)
        set->at[i].ref = 0;
}

/* ---- writing ---- */

static size_t varint_size(uint64_t v)
{
    size_t n = 1;
    for (; v >= 128; v >>= 7)
        n++;
    return n;
}

static void put_varint(struct ob_buf *out, uint64_t v)
{
    for (; v >= 128; v >>= 7)
        ob_buf_char(out, (char)(v | 128));
    ob_buf_char(out, (char)v);
}

/* The end of the run of consecutive members that begins at `from`. */
static size_t run_end(const struct ob_ahead *set, size_t from, size_t to)
{
    size_t i = from + 1;
    while (i < to && set->at[i].lo == set->at[i - 1].lo + 1)
        i++;
    return i;
}

/* Runs of one block, and the bytes that they take. */
static uint64_t count_runs(const struct ob_ahead *set, size_t from, size_t to, uint64_t *bytes)
{
    uint64_t runs = 0;
    *bytes = 0;
    for (size_t i = from, end; i < to; i = end, runs++) {
        end = run_end(set, i, to);
        if (i > from)
            *bytes += varint_size(set->at[i].lo - set->at[i - 1].lo);
        *bytes += varint_size(end - i);
    }
    return runs;
}

static void write_runs(const struct ob_ahead *set, size_t from, size_t to, struct ob_buf *out)
{
    for (size_t i = from, end; i < to; i = end) {
        end = run_end(set, i, to);
        if (i > from)
            put_varint(out, set->at[i].lo - set->at[i - 1].lo);
        put_varint(out, end - i);
    }
}

static void write_bitmap(const struct ob_ahead *set, size_t from, size_t to, uint64_t bytes,
                         struct ob_buf *out)
{
    size_t at = out->n;
    if (!ob_buf_grow(out, (size_t)bytes))
        return;
    memset(out->p + at, 0, (size_t)bytes);
    out->n += (size_t)bytes;
    for (size_t i = from; i < to; i++) {
        uint64_t bit = set->at[i].lo - set->at[from].lo;
        out->p[at + bit / 8] = (char)((unsigned char)out->p[at + bit / 8] | 1u << bit % 8);
    }
}

static void write_block(const struct ob_ahead *set, size_t from, size_t to, struct ob_buf *out)
{
    uint64_t runs_bytes, runs = count_runs(set, from, to, &runs_bytes);
    uint64_t bitmap = (set->at[to - 1].lo - set->at[from].lo) / 8 + 1;
    bool bits = bitmap < runs_bytes && bitmap <= BITMAP_MAX;
    ob_buf_char(out, MARK);
    put_varint(out, set->at[from].hi);
    put_varint(out, set->at[from].lo);
    ob_buf_char(out, bits ? BITMAP : RUNS);
    put_varint(out, bits ? bitmap : runs);
    if (bits)
        write_bitmap(set, from, to, bitmap, out);
    else
        write_runs(set, from, to, out);
}

void ob_ahead_write(const struct ob_ahead *set, struct ob_buf *out)
{
    for (size_t i = 0, end; i < set->n; i = end) {
        for (end = i + 1; end < set->n && set->at[end].hi == set->at[i].hi;)
            end++;
        write_block(set, i, end, out);
    }
}

/* ---- reading ---- */

struct reader {
    const unsigned char *p, *end;
    bool bad, no_memory;
};

static uint64_t get_varint(struct reader *r)
{
    uint64_t v = 0;
    for (unsigned shift = 0; shift < 64 && r->p < r->end; shift += 7) {
        unsigned char c = *r->p++;
        v |= (uint64_t)(c & 127) << shift;
        if (c < 128)
            return v;
    }
    r->bad = true;
    return 0;
}

static void add_member(struct reader *r, struct ob_ahead *set, uint64_t hi, uint64_t lo)
{
    r->no_memory = r->no_memory || !ob_ahead_add(set, hi, lo, 0);
}

static void read_bitmap(struct reader *r, struct ob_ahead *set, uint64_t hi, uint64_t lo,
                        uint64_t bytes)
{
    if (bytes > (uint64_t)(r->end - r->p)) {
        r->bad = true;
        return;
    }
    for (uint64_t i = 0; i < bytes * 8 && !r->no_memory; i++)
        if (r->p[i / 8] & 1u << i % 8)
            add_member(r, set, hi, lo + i);
    r->p += bytes;
}

static void read_runs(struct reader *r, struct ob_ahead *set, uint64_t hi, uint64_t lo, uint64_t n)
{
    for (uint64_t i = 0; i < n && !r->bad && !r->no_memory; i++) {
        if (i > 0)
            lo += get_varint(r) - 1;
        uint64_t len = get_varint(r);
        if (len == 0 || len > 8 * BITMAP_MAX)
            r->bad = true;
        for (uint64_t k = 0; k < len && !r->bad && !r->no_memory; k++)
            add_member(r, set, hi, lo + k);
        lo += len;
    }
}

enum ob_status ob_ahead_read(struct ob_ahead *set, struct ob_str bytes, struct ob_err *err)
{
    struct reader r = {.p = (const unsigned char *)bytes.p};
    r.end = r.p + bytes.n;
    while (r.p < r.end && !r.bad && !r.no_memory) {
        if (*r.p++ != MARK) {
            r.bad = true;
            break;
        }
        uint64_t hi = get_varint(&r), lo = get_varint(&r), kind = get_varint(&r);
        uint64_t n = get_varint(&r);
        if (r.bad || kind > BITMAP)
            r.bad = true;
        else if (kind == BITMAP)
            read_bitmap(&r, set, hi, lo, n);
        else
            read_runs(&r, set, hi, lo, n);
    }
    ob_ahead_sort(set);
    if (r.no_memory)
        return ob_err_set(err, OB_DOWN, "no memory for the events settled ahead of the cursor");
    if (r.bad)
        return ob_err_set(err, OB_REJECT,
                          "the stored set of events settled ahead of the cursor is damaged or of "
                          "another version: some of them are delivered again");
    return OB_OK;
}
