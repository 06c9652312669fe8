/* SPDX-License-Identifier: Apache-2.0 */
/* native - rows of outbox.event as events. */
#include "source/postgres/native.h"

#include "core/uuid.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    C_SEQ,
    C_ID,
    C_TYPE,
    C_AGGREGATE_TYPE,
    C_AGGREGATE_ID,
    C_KEY,
    C_TENANT,
    C_TOPIC,
    C_PAYLOAD,
    C_SIZE,
    C_KIND,
    C_HEADERS,
    C_METADATA,
    C_ENTITY_VERSION,
    C_SCHEMA_VERSION,
    C_MAX_ATTEMPTS,
    C_CREATED,
    C_XID,
    N_COLUMNS
};
_Static_assert(N_COLUMNS == PG_EVENT_N, "PG_EVENT_COLUMNS and this list are the same");

static int64_t version(const PGresult *res, int row, int col)
{
    return ob_pg_null(res, row, col) ? OB_NO_VERSION : ob_pg_i64(res, row, col);
}

static enum ob_payload_kind kind(const PGresult *res, int row, int first)
{
    if (ob_pg_null(res, row, first + C_PAYLOAD) && ob_pg_null(res, row, first + C_SIZE))
        return OB_PAYLOAD_NULL;
    switch (PQgetvalue(res, row, first + C_KIND)[0]) {
    case 'j':
        return OB_PAYLOAD_JSON;
    case 't':
        return OB_PAYLOAD_TEXT;
    default:
        return OB_PAYLOAD_BYTES;
    }
}

bool ob_pg_event(const PGresult *res, int row, int first, struct ob_arena *arena,
                 struct ob_event *ev)
{
    char *id = ob_arena_alloc(arena, OB_UUID_TEXT);
    int64_t max = ob_pg_null(res, row, first + C_MAX_ATTEMPTS)
                      ? 0
                      : ob_pg_i64(res, row, first + C_MAX_ATTEMPTS);
    if (!id)
        return false;
    ob_uuid_format((const uint8_t *)PQgetvalue(res, row, first + C_ID), id);
    *ev = (struct ob_event){
        .seq = (uint64_t)ob_pg_i64(res, row, first + C_SEQ),
        .id = {id, OB_UUID_TEXT - 1},
        .type = ob_pg_text(res, row, first + C_TYPE),
        .aggregate_type = ob_pg_text(res, row, first + C_AGGREGATE_TYPE),
        .aggregate_id = ob_pg_text(res, row, first + C_AGGREGATE_ID),
        .key = ob_pg_text(res, row, first + C_KEY),
        .tenant = ob_pg_text(res, row, first + C_TENANT),
        .topic = ob_pg_text(res, row, first + C_TOPIC),
        .payload = ob_pg_text(res, row, first + C_PAYLOAD),
        .payload_kind = kind(res, row, first),
        .headers = ob_pg_text(res, row, first + C_HEADERS),
        .metadata = ob_pg_text(res, row, first + C_METADATA),
        .entity_version = version(res, row, first + C_ENTITY_VERSION),
        .schema_version = version(res, row, first + C_SCHEMA_VERSION),
        .max_attempts = max > 0 ? (uint32_t)max : 0,
        .created_us = ob_pg_time_us(res, row, first + C_CREATED),
    };
    return true;
}

/* Columns whose value is in the page only if it is small. */
static const struct {
    int column, small;
    enum ob_limited limited;
} bounded[] = {
    {C_TYPE, PG_SMALL_TEXT, OB_LIMITED_TYPE},
    {C_AGGREGATE_TYPE, PG_SMALL_TEXT, OB_LIMITED_AGGREGATE_TYPE},
    {C_AGGREGATE_ID, PG_SMALL_TEXT, OB_LIMITED_AGGREGATE_ID},
    {C_KEY, PG_SMALL_TEXT, OB_LIMITED_KEY},
    {C_TENANT, PG_SMALL_TEXT, OB_LIMITED_TENANT},
    {C_TOPIC, PG_SMALL_TEXT, OB_LIMITED_TOPIC},
    {C_HEADERS, PG_SMALL_JSON, OB_LIMITED_HEADERS},
    {C_METADATA, PG_SMALL_JSON, OB_LIMITED_METADATA},
};
#define N_BOUNDED (sizeof(bounded) / sizeof(bounded[0]))

bool ob_pg_event_partial(const PGresult *res, int row, int first, bool payload)
{
    for (size_t i = 0; i < N_BOUNDED; i++)
        if (PQgetlength(res, row, first + bounded[i].column) > bounded[i].small)
            return true;
    return payload && ob_pg_null(res, row, first + C_PAYLOAD) &&
           !ob_pg_null(res, row, first + C_SIZE);
}

size_t ob_pg_event_size(const PGresult *res, int row, int first, const struct ob_limits *limits)
{
    size_t all = (size_t)PQgetlength(res, row, first + C_PAYLOAD);
    if (!ob_pg_null(res, row, first + C_SIZE)) {
        size_t n = (size_t)ob_pg_i64(res, row, first + C_SIZE);
        all += n <= ob_limit_of(limits, OB_LIMITED_PAYLOAD) ? n : 0;
    }
    for (size_t i = 0; i < N_BOUNDED; i++) {
        int column = first + bounded[i].column;
        size_t n = (size_t)PQgetlength(res, row, column);
        if (n > (size_t)bounded[i].small) { /* its size, in digits */
            n = strtoul(PQgetvalue(res, row, column), NULL, 10);
            n = n <= ob_limit_of(limits, bounded[i].limited) ? n : OB_LIMIT_KEEP;
        }
        all += n;
    }
    return all;
}

uint64_t ob_pg_event_xid(const PGresult *res, int row, int first)
{
    return (uint64_t)ob_pg_i64(res, row, first + C_XID);
}

/* ---- one row by itself ---- */

#define SIZED_TEXT(x)                                                                              \
    "octet_length(" x "), case when octet_length(" x ") <= $1::bigint then " x " else left(" x     \
    ", " PG_QUOTE(OB_LIMIT_KEEP) ") end, "
#define SIZED_JSON(x)                                                                              \
    "octet_length(" x "::text), case when octet_length(" x "::text) <= $2::bigint then " x         \
    "::text end, "

/* The order is that of `bounded`, then the payload. */
#define SIZED                                                                                      \
    SIZED_TEXT("e.type")                                                                           \
    SIZED_TEXT("e.aggregate_type")                                                                 \
    SIZED_TEXT("e.aggregate_id")                                                                   \
    SIZED_TEXT("e.key")                                                                            \
    SIZED_TEXT("e.tenant")                                                                         \
    SIZED_TEXT("e.topic")                                                                          \
    SIZED_JSON("e.headers")                                                                        \
    SIZED_JSON("e.metadata")                                                                       \
    "octet_length(e.payload), case when octet_length(e.payload) <= "                               \
    "$3::bigint then e.payload "                                                                   \
    "end "

static bool take_column(const PGresult *res, size_t i, enum ob_limited column, struct ob_str *value,
                        const struct ob_limits *limits, struct ob_arena *arena, struct ob_event *ev)
{
    int at = 2 * (int)i;
    *value = ob_pg_text(res, 0, at + 1);
    if (ob_pg_null(res, 0, at))
        return true;
    return ob_limits_check_size(limits, ev, column, (uint64_t)ob_pg_i64(res, 0, at), arena);
}

static bool take_columns(const PGresult *res, bool payload, const struct ob_limits *limits,
                         struct ob_arena *arena, struct ob_event *ev)
{
    struct ob_str *const values[N_BOUNDED] = {&ev->type,    &ev->aggregate_type, &ev->aggregate_id,
                                              &ev->key,     &ev->tenant,         &ev->topic,
                                              &ev->headers, &ev->metadata};
    for (size_t i = 0; i < N_BOUNDED; i++)
        if (!take_column(res, i, bounded[i].limited, values[i], limits, arena, ev))
            return false;
    return !payload ||
           take_column(res, N_BOUNDED, OB_LIMITED_PAYLOAD, &ev->payload, limits, arena, ev);
}

static void drop_result(void *res)
{
    PQclear(res);
}

enum ob_status ob_pg_event_read(struct pg_session *conn, const struct pg_event_from *from,
                                bool payload, const struct ob_limits *limits,
                                struct ob_arena *arena, struct ob_event *ev, struct ob_err *err)
{
    char sql[2048], max[3][24];
    struct pg_param p[5];
    PGresult *res = NULL;
    snprintf(sql, sizeof(sql), "select " SIZED "from %s", from->sql);
    snprintf(max[0], sizeof(max[0]), "%" PRId64, limits->text);
    snprintf(max[1], sizeof(max[1]), "%" PRId64, limits->json);
    snprintf(max[2], sizeof(max[2]), "%" PRId64, payload ? limits->payload : -1);
    for (size_t i = 0; i < 3; i++)
        p[i] = PG_TEXT(max[i]);
    for (size_t i = 0; i < from->n; i++)
        p[3 + i] = PG_TEXT(from->params[i]);
    enum ob_status st = ob_pg_query(conn, sql, p, 3 + from->n, true, &res, err);
    if (st != OB_OK)
        return ob_pg_no_memory(err) ? OB_REJECT : st;
    if (PQntuples(res) != 1) {
        PQclear(res);
        return ob_err_set(err, OB_AGAIN, "the row of event %.*s is gone", OB_STR_ARG(ev->id));
    }
    if (!ob_arena_keep(arena, drop_result, res, PQresultMemorySize(res))) {
        PQclear(res);
        return ob_err_set(err, OB_REJECT, "no memory for an event");
    }
    return take_columns(res, payload, limits, arena, ev)
               ? OB_OK
               : ob_err_set(err, OB_REJECT, "no memory for an event");
}

enum ob_status ob_pg_event_fetch(struct pg_session *conn, int64_t seq, bool payload,
                                 const struct ob_limits *limits, struct ob_arena *arena,
                                 struct ob_event *ev, struct ob_err *err)
{
    char number[24];
    snprintf(number, sizeof(number), "%" PRId64, seq);
    const struct pg_event_from from = {
        .sql = "outbox.event e where e.seq = $4::bigint", .params = {number}, .n = 1};
    return ob_pg_event_read(conn, &from, payload, limits, arena, ev, err);
}
