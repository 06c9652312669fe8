/* SPDX-License-Identifier: Apache-2.0 */
/* pgoutput - decoding. A reader that ran over the end stays there and gives zeros, so each message
 * checks once. */
#include "source/postgres/pgoutput.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define EPOCH_2000_US 946684800000000LL

struct reader {
    const unsigned char *start, *p, *end;
    const char *bad; /* what was wrong first; NULL: nothing */
};

static void fail(struct reader *r, const char *what)
{
    if (!r->bad)
        r->bad = what;
    r->end = r->p; /* nothing more is read */
}

static struct ob_str take(struct reader *r, size_t n)
{
    if ((size_t)(r->end - r->p) < n) {
        fail(r, "the message is cut off");
        return (struct ob_str){0};
    }
    struct ob_str s = {(const char *)r->p, n};
    r->p += n;
    return s;
}

static uint64_t number(struct reader *r, size_t n)
{
    struct ob_str s = take(r, n);
    uint64_t v = 0;
    for (size_t i = 0; i < s.n; i++)
        v = v << 8 | (unsigned char)s.p[i];
    return v;
}

static uint8_t u8(struct reader *r)
{
    return (uint8_t)number(r, 1);
}

static uint16_t u16(struct reader *r)
{
    return (uint16_t)number(r, 2);
}

static uint32_t u32(struct reader *r)
{
    return (uint32_t)number(r, 4);
}

static uint64_t u64(struct reader *r)
{
    return number(r, 8);
}

static int64_t time_us(struct reader *r)
{
    int64_t v = (int64_t)u64(r), out;
    return __builtin_add_overflow(v, EPOCH_2000_US, &out) ? INT64_MAX : out;
}

static struct ob_str text(struct reader *r)
{
    const unsigned char *z = r->p < r->end ? memchr(r->p, 0, (size_t)(r->end - r->p)) : NULL;
    if (!z) {
        fail(r, "a name has no end");
        return (struct ob_str){0};
    }
    struct ob_str s = {(const char *)r->p, (size_t)(z - r->p)};
    r->p = z + 1;
    return s;
}

static void value(struct reader *r, struct pgo_value *out)
{
    uint8_t form = u8(r);
    switch (form) {
    case PGO_NULL:
    case PGO_UNCHANGED:
        *out = (struct pgo_value){.form = form == PGO_NULL ? PGO_NULL : PGO_UNCHANGED};
        return;
    case PGO_TEXT:
    case PGO_BINARY:
        *out = (struct pgo_value){.form = form == PGO_TEXT ? PGO_TEXT : PGO_BINARY};
        out->v = take(r, u32(r));
        return;
    default:
        fail(r, "a value has a form that is not known");
    }
}

static size_t tuple(struct reader *r, struct pgo_value *out)
{
    size_t n = u16(r);
    if (n > PGO_COLUMNS_MAX) {
        fail(r, "a row has too many columns");
        return 0;
    }
    for (size_t i = 0; i < n && !r->bad; i++)
        value(r, &out[i]);
    return n;
}

/* An old row may stand before the new one: 'K' its key, 'O' all of it. */
static void update(struct reader *r, struct pgo_room *room, struct pgo_msg *out)
{
    uint8_t which = u8(r);
    if (which == 'K' || which == 'O') {
        tuple(r, room->values);
        which = u8(r);
    }
    if (which != 'N')
        fail(r, "an update has no new row");
    out->n = tuple(r, room->values);
}

static void relation(struct reader *r, struct pgo_room *room, struct pgo_msg *out)
{
    out->relation = u32(r);
    out->space = text(r);
    out->name = text(r);
    u8(r); /* replica identity */
    out->n = u16(r);
    if (out->n > PGO_COLUMNS_MAX)
        fail(r, "a table has too many columns");
    for (size_t i = 0; i < out->n && !r->bad; i++) {
        struct pgo_column *c = &room->columns[i];
        c->key = (u8(r) & 1) != 0;
        c->name = text(r);
        c->type = u32(r);
        c->typmod = (int32_t)u32(r);
    }
}

static void row(struct reader *r, struct pgo_room *room, struct pgo_msg *out)
{
    out->relation = u32(r);
    if (out->kind == PGO_UPDATE) {
        update(r, room, out);
        return;
    }
    uint8_t which = u8(r);
    if (out->kind == PGO_INSERT ? which != 'N' : which != 'K' && which != 'O')
        fail(r, "the row is not of the kind that its message says");
    out->n = tuple(r, room->values);
}

static void message(struct reader *r, struct pgo_msg *out)
{
    out->transactional = (u8(r) & 1) != 0;
    out->lsn = u64(r);
    out->name = text(r);
    out->content = take(r, u32(r));
}

static void body(struct reader *r, struct pgo_room *room, struct pgo_msg *out)
{
    switch (out->kind) {
    case PGO_BEGIN:
        out->lsn = u64(r);
        out->time_us = time_us(r);
        out->xid = u32(r);
        return;
    case PGO_COMMIT:
        u8(r); /* flags, none so far */
        out->lsn = u64(r);
        out->end_lsn = u64(r);
        out->time_us = time_us(r);
        return;
    case PGO_ORIGIN:
        out->lsn = u64(r);
        out->name = text(r);
        return;
    case PGO_RELATION:
        relation(r, room, out);
        return;
    case PGO_TYPE:
        out->relation = u32(r);
        out->space = text(r);
        out->name = text(r);
        return;
    case PGO_INSERT:
    case PGO_UPDATE:
    case PGO_DELETE:
        row(r, room, out);
        return;
    case PGO_TRUNCATE:
        out->n_relations = u32(r);
        u8(r); /* cascade, restart identity */
        out->content = take(r, (size_t)out->n_relations * 4);
        return;
    case PGO_MESSAGE:
        message(r, out);
        return;
    }
    fail(r, "a message of a kind that is not known");
}

static enum ob_status result(const struct reader *r, const char *what, char kind,
                             struct ob_err *err)
{
    if (!r->bad)
        return OB_OK;
    bool shown = kind > ' ' && kind < 127;
    return ob_err_set(err, OB_REJECT, "%s %c: byte %zu: %s", what, shown ? kind : '?',
                      (size_t)(r->p - r->start), r->bad);
}

static struct reader reader(struct ob_str bytes)
{
    const unsigned char *p = (const unsigned char *)bytes.p;
    return (struct reader){.start = p, .p = p, .end = p ? p + bytes.n : p};
}

enum ob_status ob_pgo_decode(struct ob_str bytes, struct pgo_room *room, struct pgo_msg *out,
                             struct ob_err *err)
{
    struct reader r = reader(bytes);
    *out = (struct pgo_msg){.kind = (enum pgo_kind)u8(&r)};
    body(&r, room, out);
    out->values = room->values;
    out->columns = room->columns;
    if (!r.bad && r.p != r.end)
        r.bad = "the message goes on behind its end";
    return result(&r, "message", bytes.n ? bytes.p[0] : '?', err);
}

uint32_t ob_pgo_truncated(const struct pgo_msg *msg, uint32_t i)
{
    const unsigned char *p = (const unsigned char *)msg->content.p + (size_t)i * 4;
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

enum ob_status ob_pgo_frame(struct ob_str bytes, struct pgo_frame *out, struct ob_err *err)
{
    struct reader r = reader(bytes);
    char kind = (char)u8(&r);
    *out = (struct pgo_frame){.keepalive = kind == 'k'};
    if (kind == 'k') {
        out->end = u64(&r);
        time_us(&r);
        out->reply = u8(&r) != 0;
    } else if (kind == 'w') {
        out->start = u64(&r);
        out->end = u64(&r);
        time_us(&r);
        out->data = take(&r, (size_t)(r.end - r.p));
    } else {
        fail(&r, "neither data nor a sign of life");
    }
    if (!r.bad && r.p != r.end)
        r.bad = "it goes on behind its end";
    return result(&r, "frame", kind, err);
}

static char *put64(char *p, uint64_t v)
{
    for (int i = 7; i >= 0; i--)
        *p++ = (char)(v >> (8 * i) & 255);
    return p;
}

void ob_pgo_status(uint64_t written, uint64_t flushed, int64_t now_us, bool reply,
                   char out[PGO_STATUS_SIZE])
{
    *out++ = 'r';
    out = put64(out, written);
    out = put64(out, flushed);
    out = put64(out, flushed); /* applied */
    out = put64(out, (uint64_t)(now_us - EPOCH_2000_US));
    *out = reply ? 1 : 0;
}

void ob_pgo_lsn_format(uint64_t lsn, char out[PGO_LSN_TEXT])
{
    snprintf(out, PGO_LSN_TEXT, "%" PRIX32 "/%" PRIX32, (uint32_t)(lsn >> 32), (uint32_t)lsn);
}

bool ob_pgo_lsn_parse(const char *s, uint64_t *out)
{
    static const char hex[] = "0123456789abcdefABCDEF";
    size_t high = strspn(s, hex), low = s[high] == '/' ? strspn(s + high + 1, hex) : 0;
    if (high == 0 || high > 8 || low == 0 || low > 8 || s[high + 1 + low] != '\0')
        return false;
    *out = (uint64_t)strtoul(s, NULL, 16) << 32 | strtoul(s + high + 1, NULL, 16);
    return true;
}

uint64_t ob_pgo_xid(uint32_t xid, uint64_t near)
{
    int32_t away = (int32_t)(xid - (uint32_t)near);
    if (away < 0 && (uint64_t) - (int64_t)away > near)
        return xid;
    return near + (uint64_t)(int64_t)away;
}
