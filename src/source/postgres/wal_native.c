/* SPDX-License-Identifier: Apache-2.0 */
/* wal_native - rows of outbox.event as they come through the stream: columns are found by name, so
 * that a column more, or another order, changes nothing. Values are binary where the server can
 * (14 and later), else text. */
#include "source/postgres/wal.h"

#include "core/clock.h"
#include "core/uuid.h"

#include <stdlib.h>

#define EPOCH_2000_US 946684800000000LL

static const struct {
    const char *name;
    bool needed;
} fields[N_FIELDS] = {
    [F_XID] = {"xid", false},
    [F_SEQ] = {"seq", true},
    [F_ID] = {"id", true},
    [F_TYPE] = {"type", true},
    [F_AGGREGATE_TYPE] = {"aggregate_type", false},
    [F_AGGREGATE_ID] = {"aggregate_id", true},
    [F_KEY] = {"key", true},
    [F_TENANT] = {"tenant", false},
    [F_TOPIC] = {"topic", false},
    [F_PAYLOAD] = {"payload", true},
    [F_KIND] = {"payload_kind", true},
    [F_HEADERS] = {"headers", false},
    [F_METADATA] = {"metadata", false},
    [F_ENTITY_VERSION] = {"entity_version", false},
    [F_SCHEMA_VERSION] = {"schema_version", false},
    [F_MAX_ATTEMPTS] = {"max_attempts", false},
    [F_CREATED] = {"created_at", true},
};

enum ob_status ob_pg_wal_map_native(struct wal_table *t, const struct pgo_msg *relation,
                                    struct ob_err *err)
{
    for (int f = 0; f < N_FIELDS; f++) {
        t->at[f] = -1;
        for (size_t i = 0; i < relation->n; i++)
            if (ob_str_eqc(relation->columns[i].name, fields[f].name))
                t->at[f] = (int)i;
        if (t->at[f] < 0 && fields[f].needed)
            return ob_err_set(err, OB_FATAL, "outbox.event has no column %s any more",
                              fields[f].name);
    }
    t->relation = relation->relation;
    t->n = relation->n;
    t->known = true;
    return OB_OK;
}

static const struct pgo_value *get(const struct wal_table *t, const struct pgo_msg *row,
                                   enum wal_field f)
{
    static const struct pgo_value none = {.form = PGO_NULL};
    return t->at[f] >= 0 && (size_t)t->at[f] < row->n ? &row->values[t->at[f]] : &none;
}

static struct ob_str text(const struct wal_table *t, const struct pgo_msg *row, enum wal_field f)
{
    return get(t, row, f)->v;
}

int64_t ob_pg_wal_number(const struct pgo_value *v, int64_t none)
{
    int64_t n = 0;
    char digits[24];
    if (v->form == PGO_BINARY && v->v.n <= 8) {
        uint64_t u = 0;
        for (size_t i = 0; i < v->v.n; i++)
            u = u << 8 | (unsigned char)v->v.p[i];
        n = v->v.n == 4 ? (int32_t)u : v->v.n == 2 ? (int16_t)u : (int64_t)u;
        return n;
    }
    if (v->form != PGO_TEXT || v->v.n >= sizeof(digits))
        return none;
    memcpy(digits, v->v.p, v->v.n);
    digits[v->v.n] = '\0';
    return strtoll(digits, NULL, 10);
}

/* "2026-02-03 04:05:06.789+00" */
static int64_t time_us(const struct pgo_value *v)
{
    char whole[64];
    int64_t us = 0;
    if (v->form == PGO_BINARY) /* 'infinity' is the highest number */
        return __builtin_add_overflow(ob_pg_wal_number(v, 0), EPOCH_2000_US, &us) ? INT64_MAX : us;
    if (v->form != PGO_TEXT || v->v.n < 3 || v->v.n + 4 > sizeof(whole))
        return 0;
    memcpy(whole, v->v.p, v->v.n);
    size_t n = v->v.n;
    if (whole[n - 3] == '+' || whole[n - 3] == '-') {
        memcpy(whole + n, ":00", 3);
        n += 3;
    }
    return ob_rfc3339_parse(whole, n, &us) == 0 ? us : 0;
}

/* The server writes no other digits. */
static unsigned digit(char c)
{
    return c >= 'a' ? (unsigned)(c - 'a' + 10) & 15 : (unsigned)(c - '0') & 15;
}

/* "\x00ff" */
bool ob_pg_wal_bytes(const struct pgo_value *v, int64_t max, struct ob_arena *arena,
                     struct ob_str *out)
{
    if (v->form != PGO_TEXT) {
        *out = v->v;
        return true;
    }
    size_t n = v->v.n >= 2 ? v->v.n / 2 - 1 : 0;
    if (n > (size_t)max) {
        *out = (struct ob_str){v->v.p, n};
        return true;
    }
    char *p = ob_arena_alloc(arena, n + 1);
    if (!p)
        return false;
    for (size_t i = 0; i < n; i++)
        p[i] = (char)(digit(v->v.p[2 + 2 * i]) << 4 | digit(v->v.p[3 + 2 * i]));
    *out = (struct ob_str){p, n};
    return true;
}

static bool uuid(const struct pgo_value *v, struct ob_arena *arena, struct ob_str *out)
{
    if (v->form != PGO_BINARY || v->v.n != 16) {
        *out = v->v;
        return true;
    }
    char *id = ob_arena_alloc(arena, OB_UUID_TEXT);
    if (!id)
        return false;
    ob_uuid_format((const uint8_t *)v->v.p, id);
    *out = (struct ob_str){id, OB_UUID_TEXT - 1};
    return true;
}

static enum ob_payload_kind kind(const struct wal_table *t, const struct pgo_msg *row)
{
    const struct pgo_value *v = get(t, row, F_KIND);
    if (get(t, row, F_PAYLOAD)->form == PGO_NULL)
        return OB_PAYLOAD_NULL;
    switch (v->v.n ? v->v.p[0] : 'b') {
    case 'j':
        return OB_PAYLOAD_JSON;
    case 't':
        return OB_PAYLOAD_TEXT;
    default:
        return OB_PAYLOAD_BYTES;
    }
}

enum ob_status ob_pg_wal_native(const struct wal_table *t, const struct pgo_msg *row,
                                const struct ob_limits *limits, struct ob_arena *arena,
                                struct ob_event *ev, struct ob_err *err)
{
    int64_t max = ob_pg_wal_number(get(t, row, F_MAX_ATTEMPTS), 0);
    *ev = (struct ob_event){
        .seq = (uint64_t)ob_pg_wal_number(get(t, row, F_SEQ), 0),
        .type = text(t, row, F_TYPE),
        .aggregate_type = text(t, row, F_AGGREGATE_TYPE),
        .aggregate_id = text(t, row, F_AGGREGATE_ID),
        .key = text(t, row, F_KEY),
        .tenant = text(t, row, F_TENANT),
        .topic = text(t, row, F_TOPIC),
        .payload_kind = kind(t, row),
        .headers = text(t, row, F_HEADERS),
        .metadata = text(t, row, F_METADATA),
        .entity_version = ob_pg_wal_number(get(t, row, F_ENTITY_VERSION), OB_NO_VERSION),
        .schema_version = ob_pg_wal_number(get(t, row, F_SCHEMA_VERSION), OB_NO_VERSION),
        .max_attempts = max > 0 ? (uint32_t)max : 0,
        .created_us = time_us(get(t, row, F_CREATED)),
    };
    if (!uuid(get(t, row, F_ID), arena, &ev->id) ||
        !ob_pg_wal_bytes(get(t, row, F_PAYLOAD), limits->payload, arena, &ev->payload))
        return ob_err_set(err, OB_DOWN, "no memory for an event");
    return OB_OK;
}
