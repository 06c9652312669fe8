/* SPDX-License-Identifier: Apache-2.0 */
/* jsonl - events to be emitted, from JSON lines: one object per line with the fields of the table
 * below. Payload bytes are taken as they stand in the line. */
#include "cli/jsonl.h"

#include "core/jscan.h"

#include <errno.h>
#include <stdlib.h>

#define MAX_EVENTS 1000000

enum field_kind { TEXT, NUMBER, OBJECT, PAYLOAD, PAYLOAD_TEXT };

static const struct field {
    const char *name;
    enum field_kind kind;
    size_t offset;
} fields[] = {
    {"id", TEXT, offsetof(struct ob_emit, id)},
    {"type", TEXT, offsetof(struct ob_emit, type)},
    {"aggregate_type", TEXT, offsetof(struct ob_emit, aggregate_type)},
    {"aggregate_id", TEXT, offsetof(struct ob_emit, aggregate_id)},
    {"key", TEXT, offsetof(struct ob_emit, key)},
    {"tenant", TEXT, offsetof(struct ob_emit, tenant)},
    {"topic", TEXT, offsetof(struct ob_emit, topic)},
    {"headers", OBJECT, offsetof(struct ob_emit, headers)},
    {"metadata", OBJECT, offsetof(struct ob_emit, metadata)},
    {"entity_version", NUMBER, offsetof(struct ob_emit, entity_version)},
    {"schema_version", NUMBER, offsetof(struct ob_emit, schema_version)},
    {"payload", PAYLOAD, 0},
    {"payload_text", PAYLOAD_TEXT, 0},
};
#define N_FIELDS (sizeof fields / sizeof *fields)

static enum ob_status unknown_field(struct ob_str name, struct ob_err *err)
{
    const char *best = NULL;
    unsigned best_d = 4;
    for (size_t i = 0; i < N_FIELDS; i++) {
        unsigned d = ob_distance(ob_str_c(fields[i].name), name, 3);
        if (d < best_d) {
            best_d = d;
            best = fields[i].name;
        }
    }
    return ob_err_set(err, OB_REJECT, "unknown field \"%.*s\"%s%s%s",
                      (int)(name.n > 64 ? 64 : name.n), name.p, best ? "; did you mean \"" : "",
                      best ? best : "", best ? "\"?" : "");
}

/* The inside of a JSON string; a copy only if it has escapes. */
static enum ob_status string_value(struct ob_jsonl *out, struct ob_str raw, struct ob_str *to,
                                   struct ob_err *err)
{
    enum ob_status st = OB_OK;
    struct ob_str inside = {raw.p + 1, raw.n - 2};
    struct ob_buf buf;
    if (!memchr(inside.p, '\\', inside.n)) {
        *to = inside;
        return OB_OK;
    }
    ob_buf_init(&buf, 0);
    ob_jscan_unescape(&buf, inside);
    *to = ob_arena_copy(out->arena, ob_buf_view(&buf));
    if (buf.failed || !to->p)
        st = ob_err_set(err, OB_REJECT, "too large");
    ob_buf_clear(&buf);
    return st;
}

static enum ob_status number_value(struct ob_str raw, int64_t *to, struct ob_err *err)
{
    char text[32], *end;
    if (raw.n >= sizeof text)
        return ob_err_set(err, OB_REJECT, "is not a whole number");
    memcpy(text, raw.p, raw.n);
    text[raw.n] = 0;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (errno || *end)
        return ob_err_set(err, OB_REJECT, "is not a whole number");
    *to = v;
    return OB_OK;
}

static enum ob_status set_field(struct ob_jsonl *out, struct ob_emit *e, const struct field *f,
                                struct ob_str raw, enum ob_jtype type, struct ob_err *err)
{
    char *at = (char *)e + f->offset;
    if (f->kind == PAYLOAD) {
        e->payload = raw;
        e->payload_kind = OB_PAYLOAD_JSON;
        return OB_OK;
    }
    if (type == OB_J_NULL)
        return OB_OK;
    if (f->kind == OBJECT) {
        if (type != OB_J_OBJECT)
            return ob_err_set(err, OB_REJECT, "must be an object");
        *(struct ob_str *)(void *)at = raw;
        return OB_OK;
    }
    if (f->kind == NUMBER) {
        if (type != OB_J_NUMBER)
            return ob_err_set(err, OB_REJECT, "must be a number");
        return number_value(raw, (int64_t *)(void *)at, err);
    }
    if (type != OB_J_STRING)
        return ob_err_set(err, OB_REJECT, "must be a string");
    if (f->kind == PAYLOAD_TEXT) {
        e->payload_kind = OB_PAYLOAD_TEXT;
        return string_value(out, raw, &e->payload, err);
    }
    return string_value(out, raw, (struct ob_str *)(void *)at, err);
}

static enum ob_status read_line(struct ob_jsonl *out, struct ob_str line, struct ob_emit *e,
                                struct ob_err *err)
{
    struct ob_jscan s;
    struct ob_jtok tok;
    enum ob_status st;
    unsigned seen = 0;
    *e = (struct ob_emit){.payload_kind = OB_PAYLOAD_NULL,
                          .entity_version = OB_NO_VERSION,
                          .schema_version = OB_NO_VERSION};
    ob_jscan_init(&s, line);
    if ((st = ob_jscan_next(&s, &tok, err)) != OB_OK)
        return st;
    if (tok.type != OB_J_OBJECT)
        return ob_err_set(err, OB_REJECT, "must be a JSON object");
    while ((st = ob_jscan_next(&s, &tok, err)) == OB_OK && tok.type == OB_J_KEY) {
        struct ob_str raw;
        enum ob_jtype type;
        size_t i = 0;
        while (i < N_FIELDS && !ob_str_eqc(tok.text, fields[i].name))
            i++;
        if (i == N_FIELDS)
            return unknown_field(tok.text, err);
        if (seen & (1u << i))
            return ob_err_set(err, OB_REJECT, "field \"%s\" is there twice", fields[i].name);
        seen |= 1u << i;
        if ((st = ob_jscan_value(&s, &raw, &type, err)) != OB_OK)
            return st;
        if ((st = set_field(out, e, &fields[i], raw, type, err)) != OB_OK) {
            ob_err_prefix(err, "\"%s\"", fields[i].name);
            return st;
        }
    }
    if (st == OB_OK)
        st = ob_jscan_next(&s, &tok, err); /* nothing may follow */
    return st == OB_OK ? ob_jsonl_check(e, err) : st;
}

static struct ob_emit *grow(struct ob_jsonl *out, struct ob_err *err)
{
    if (out->n < out->cap)
        return &out->events[out->n];
    size_t cap = out->cap ? out->cap * 2 : 64;
    if (out->n >= MAX_EVENTS) {
        ob_err_set(err, OB_REJECT, "more than %d events; split the file", MAX_EVENTS);
        return NULL;
    }
    struct ob_emit *events = realloc(out->events, cap * sizeof *events);
    if (!events) {
        ob_err_set(err, OB_FATAL, "no memory for %zu events", cap);
        return NULL;
    }
    out->events = events;
    out->cap = cap;
    return &out->events[out->n];
}

static bool blank(struct ob_str line)
{
    for (size_t i = 0; i < line.n; i++)
        if (!strchr(" \t\r", line.p[i]) || !line.p[i])
            return false;
    return true;
}

enum ob_status ob_jsonl_read(struct ob_jsonl *out, const char *name, struct ob_str text,
                             void (*progress)(void *user, size_t bytes), void *user,
                             struct ob_err *err)
{
    const char *p = text.p, *end = text.p + text.n;
    *out = (struct ob_jsonl){.arena = ob_arena_new(64 << 10, 0)};
    if (!out->arena)
        return ob_err_set(err, OB_FATAL, "no memory");
    for (unsigned long number = 1; p < end; number++) {
        const char *nl = memchr(p, '\n', (size_t)(end - p));
        struct ob_str line = {p, (size_t)((nl ? nl : end) - p)};
        p = nl ? nl + 1 : end;
        if (blank(line))
            continue;
        struct ob_emit *e = grow(out, err);
        enum ob_status st = e ? read_line(out, line, e, err) : err->status;
        if (st != OB_OK) {
            ob_err_prefix(err, "%s:%lu", name, number);
            return st;
        }
        out->n++;
        if (progress && out->n % 1024 == 0)
            progress(user, (size_t)(p - text.p));
    }
    return OB_OK;
}

void ob_jsonl_clear(struct ob_jsonl *out)
{
    ob_arena_unref(out->arena);
    free(out->events);
    *out = (struct ob_jsonl){0};
}

enum ob_status ob_jsonl_check(const struct ob_emit *e, struct ob_err *err)
{
    const struct {
        const char *name;
        struct ob_str s;
        bool object;
    } texts[] = {
        {"id", e->id, false},
        {"type", e->type, false},
        {"key", e->key, false},
        {"aggregate_type", e->aggregate_type, false},
        {"tenant", e->tenant, false},
        {"aggregate_id", e->aggregate_id, false},
        {"topic", e->topic, false},
        {"headers", e->headers, true},
        {"metadata", e->metadata, true},
    };
    enum ob_jtype type;
    if (!e->type.n)
        return ob_err_set(err, OB_REJECT, "type is missing");
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        if (!texts[i].s.n)
            continue;
        if (!ob_utf8_valid(texts[i].s))
            return ob_err_set(err, OB_REJECT, "%s is not UTF-8", texts[i].name);
        if (!texts[i].object)
            continue;
        if (ob_json_check(texts[i].s, &type, err) != OB_OK || type != OB_J_OBJECT)
            return ob_err_set(err, OB_REJECT, "%s must be a JSON object", texts[i].name);
    }
    if (e->payload_kind == OB_PAYLOAD_JSON && ob_json_check(e->payload, &type, err) != OB_OK) {
        ob_err_prefix(err, "payload is not JSON");
        return OB_REJECT;
    }
    if (e->payload_kind == OB_PAYLOAD_TEXT && !ob_utf8_valid(e->payload))
        return ob_err_set(err, OB_REJECT, "payload is not UTF-8; say --kind bytes");
    return OB_OK;
}
