/* SPDX-License-Identifier: Apache-2.0 */
/* wal_message - a transactional pg_logical_emit_message() as an event. Its content is a JSON object
 * with the names of outbox.emit()'s arguments (docs/sources/postgres.md). What cannot be read is an
 * event all the same, with a fault: it is dead with its bytes and the reason, and stops nobody. */
#include "source/postgres/wal.h"

#include "core/buf.h"
#include "core/jscan.h"
#include "core/uuid.h"

#include <stdlib.h>

struct message {
    const struct ob_limits *limits;
    struct ob_arena *arena;
    struct ob_event *ev;
    struct ob_str payload; /* raw JSON */
    enum ob_jtype payload_type;
    char kind; /* j, t, b */
    const char *fault;
};

/* The same bytes at the same place have the same id: a repeat is known by it. */
static bool make_id(const struct pgo_msg *msg, struct ob_arena *arena, struct ob_str *out)
{
    uint8_t raw[16];
    uint64_t hash = ob_hash64(msg->content.p, msg->content.n) ^ (msg->lsn * 0x9e3779b97f4a7c15u);
    char *id = ob_arena_alloc(arena, OB_UUID_TEXT);
    if (!id)
        return false;
    for (int i = 0; i < 8; i++) {
        raw[i] = (uint8_t)(msg->lsn >> (56 - 8 * i));
        raw[8 + i] = (uint8_t)(hash >> (56 - 8 * i));
    }
    /* A UUID of version 8. The version's four bits are in the way of the LSN, so it is in both
     * halves. */
    raw[6] = (uint8_t)(0x80 | (raw[6] & 15));
    raw[8] = (uint8_t)(0x80 | (raw[8] & 63));
    ob_uuid_format(raw, id);
    *out = (struct ob_str){id, OB_UUID_TEXT - 1};
    return true;
}

/* An escape has at most six bytes for each byte of text: what is still over `max` then is not
 * decoded, because it is rejected for its size. */
static struct ob_str string(struct message *m, const struct ob_jtok *tok, int64_t max)
{
    struct ob_buf buf;
    if (tok->type == OB_J_NULL)
        return (struct ob_str){0};
    if (tok->type != OB_J_STRING && tok->type != OB_J_NUMBER) {
        m->fault = "a field of the message is no text";
        return (struct ob_str){0};
    }
    if (tok->type == OB_J_NUMBER)
        return tok->raw;
    if (!tok->escaped || tok->text.n / 6 > (size_t)max)
        return tok->text;
    ob_buf_init(&buf, 0);
    ob_jscan_unescape(&buf, tok->text);
    struct ob_str s = ob_arena_copy(m->arena, ob_buf_view(&buf));
    if (buf.failed || !s.p)
        m->fault = "no memory";
    ob_buf_clear(&buf);
    return s;
}

static int64_t number(struct message *m, const struct ob_jtok *tok, int64_t none)
{
    char digits[24];
    if (tok->type == OB_J_NULL)
        return none;
    if (tok->type != OB_J_NUMBER || tok->raw.n >= sizeof(digits) ||
        memchr(tok->raw.p, '.', tok->raw.n) || memchr(tok->raw.p, 'e', tok->raw.n) ||
        memchr(tok->raw.p, 'E', tok->raw.n)) {
        m->fault = "a version of the message is no whole number";
        return none;
    }
    memcpy(digits, tok->raw.p, tok->raw.n);
    digits[tok->raw.n] = '\0';
    return strtoll(digits, NULL, 10);
}

static bool is_uuid(struct ob_str s)
{
    for (size_t i = 0; i < s.n; i++) {
        bool dash = i == 8 || i == 13 || i == 18 || i == 23;
        bool hex = (s.p[i] >= '0' && s.p[i] <= '9') || (s.p[i] >= 'a' && s.p[i] <= 'f') ||
                   (s.p[i] >= 'A' && s.p[i] <= 'F');
        if (dash ? s.p[i] != '-' : !hex)
            return false;
    }
    return s.n == 36;
}

static struct ob_str *place(struct ob_event *ev, struct ob_str key)
{
    const struct {
        const char *name;
        struct ob_str *at;
    } texts[] = {
        {"id", &ev->id},
        {"type", &ev->type},
        {"aggregate_type", &ev->aggregate_type},
        {"aggregate_id", &ev->aggregate_id},
        {"key", &ev->key},
        {"tenant", &ev->tenant},
        {"topic", &ev->topic},
    };
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        if (ob_str_eqc(key, texts[i].name))
            return texts[i].at;
    return NULL;
}

static void object(struct message *m, const struct ob_jtok *tok, struct ob_str raw,
                   struct ob_str *out)
{
    if (tok->type == OB_J_OBJECT)
        *out = raw;
    else if (tok->type != OB_J_NULL)
        m->fault = "headers and metadata of a message are objects";
}

static void field(struct message *m, struct ob_str key, const struct ob_jtok *tok,
                  struct ob_str raw)
{
    struct ob_event *ev = m->ev;
    struct ob_str *at = place(ev, key);
    if (at) {
        *at = string(m, tok, m->limits->text);
    } else if (ob_str_eqc(key, "payload")) {
        m->payload = raw;
        m->payload_type = tok->type;
    } else if (ob_str_eqc(key, "headers")) {
        object(m, tok, raw, &ev->headers);
    } else if (ob_str_eqc(key, "metadata")) {
        object(m, tok, raw, &ev->metadata);
    } else if (ob_str_eqc(key, "entity_version")) {
        ev->entity_version = number(m, tok, OB_NO_VERSION);
    } else if (ob_str_eqc(key, "schema_version")) {
        ev->schema_version = number(m, tok, OB_NO_VERSION);
    } else if (ob_str_eqc(key, "max_attempts")) {
        int64_t n = number(m, tok, 0);
        ev->max_attempts = n > 0 && n <= UINT32_MAX ? (uint32_t)n : 0;
    } else if (ob_str_eqc(key, "kind")) {
        struct ob_str kind = string(m, tok, m->limits->text);
        m->kind = ob_str_eqc(kind, "text")                  ? 't'
                  : ob_str_eqc(kind, "bytes")               ? 'b'
                  : ob_str_eqc(kind, "json") || kind.n == 0 ? 'j'
                                                            : '?';
        if (m->kind == '?')
            m->fault = "kind is json, text or bytes";
    } else {
        m->fault = "the message has a field that an event does not have";
    }
}

static int digit64(char c)
{
    static const char all[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *p = c ? strchr(all, c) : NULL;
    return p ? (int)(p - all) : -1;
}

static void unbase64(struct message *m, struct ob_str in)
{
    char *out = ob_arena_alloc(m->arena, in.n / 4 * 3 + 3);
    size_t n = 0;
    unsigned bits = 0, have = 0;
    while (in.n > 0 && in.p[in.n - 1] == '=')
        in.n--;
    for (size_t i = 0; out && i < in.n; i++) {
        int d = digit64(in.p[i]);
        if (d < 0) {
            m->fault = "the payload is no base64";
            return;
        }
        bits = bits << 6 | (unsigned)d;
        have += 6;
        if (have >= 8) {
            have -= 8;
            out[n++] = (char)(bits >> have & 255);
        }
    }
    if (!out)
        m->fault = "no memory";
    m->ev->payload = (struct ob_str){out, n};
}

static void payload(struct message *m)
{
    struct ob_event *ev = m->ev;
    if (!m->payload.p || m->payload_type == OB_J_NULL) {
        ev->payload_kind = OB_PAYLOAD_NULL;
        return;
    }
    if (m->kind == 'j') {
        ev->payload_kind = OB_PAYLOAD_JSON;
        ev->payload = m->payload;
        return;
    }
    struct ob_jtok tok = {.type = m->payload_type, .raw = m->payload, .escaped = true};
    if (m->payload_type != OB_J_STRING) {
        m->fault = "a payload of this kind is a string";
        return;
    }
    tok.text = (struct ob_str){m->payload.p + 1, m->payload.n - 2};
    ev->payload = string(m, &tok, m->limits->payload);
    ev->payload_kind = m->kind == 't' ? OB_PAYLOAD_TEXT : OB_PAYLOAD_BYTES;
    if (m->kind == 'b' && ev->payload.n / 6 <= (size_t)m->limits->payload)
        unbase64(m, ev->payload);
}

static enum ob_status scan(struct message *m, struct ob_str content, struct ob_err *err)
{
    struct ob_jscan s;
    struct ob_jtok tok;
    ob_jscan_init(&s, content);
    enum ob_status st = ob_jscan_next(&s, &tok, err);
    if (st == OB_OK && tok.type != OB_J_OBJECT)
        return ob_err_set(err, OB_REJECT, "it is no JSON object");
    while (st == OB_OK && !m->fault) {
        struct ob_str key, raw;
        st = ob_jscan_next(&s, &tok, err);
        if (st != OB_OK || tok.type == OB_J_OBJECT_END)
            break;
        key = tok.text;
        st = ob_jscan_next(&s, &tok, err);
        if (st == OB_OK)
            st = ob_jscan_rest(&s, &tok, &raw, err);
        if (st == OB_OK)
            field(m, key, &tok, raw);
    }
    if (st == OB_OK && !m->fault) {
        st = ob_jscan_next(&s, &tok, err);
        if (st == OB_OK && tok.type != OB_J_END)
            st = ob_err_set(err, OB_REJECT, "something stands behind the object");
    }
    return st;
}

enum ob_status ob_pg_wal_message(const struct pgo_msg *msg, int64_t time_us,
                                 const struct ob_limits *limits, struct ob_arena *arena,
                                 struct ob_event *ev, struct ob_err *err)
{
    struct message m = {.limits = limits, .arena = arena, .ev = ev, .kind = 'j'};
    const struct ob_event empty = {.seq = msg->lsn,
                                   .created_us = time_us,
                                   .entity_version = OB_NO_VERSION,
                                   .schema_version = OB_NO_VERSION};
    *ev = empty;
    enum ob_status st = scan(&m, msg->content, err);
    if (st == OB_OK && !m.fault)
        payload(&m);
    if (st == OB_OK && !m.fault && ev->type.n == 0)
        m.fault = "the message has no type";
    if (st == OB_OK && !m.fault && ev->id.n && !is_uuid(ev->id))
        m.fault = "the id of the message is no UUID";
    if (st != OB_OK || m.fault) {
        *ev = empty;
        ev->fault = ob_arena_copy(arena, ob_str_c(m.fault ? m.fault : err->text));
        ev->payload = msg->content;
        ev->payload_kind = OB_PAYLOAD_BYTES;
    }
    if (!ev->id.n && !make_id(msg, arena, &ev->id))
        return ob_err_set(err, OB_DOWN, "no memory for an event");
    return OB_OK;
}
