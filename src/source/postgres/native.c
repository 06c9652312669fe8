/* SPDX-License-Identifier: Apache-2.0 */
/* native - rows of outbox.event as events. */
#include "source/postgres/native.h"

#include "core/uuid.h"

#include <inttypes.h>
#include <stdio.h>

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
    if (ob_pg_null(res, row, first + C_SIZE))
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

bool ob_pg_event_big(const PGresult *res, int row, int first)
{
    return ob_pg_null(res, row, first + C_PAYLOAD) && !ob_pg_null(res, row, first + C_SIZE);
}

size_t ob_pg_event_size(const PGresult *res, int row, int first)
{
    return ob_pg_null(res, row, first + C_SIZE) ? 0 : (size_t)ob_pg_i64(res, row, first + C_SIZE);
}

uint64_t ob_pg_event_xid(const PGresult *res, int row, int first)
{
    return (uint64_t)ob_pg_i64(res, row, first + C_XID);
}

enum ob_status ob_pg_event_fetch(struct pg_session *conn, int64_t seq, struct ob_arena *arena,
                                 struct ob_event *ev, struct ob_err *err)
{
    char number[24];
    PGresult *res = NULL;
    snprintf(number, sizeof(number), "%" PRId64, seq);
    const struct pg_param p[] = {PG_TEXT(number)};
    enum ob_status st = ob_pg_query(conn, "select payload from outbox.event where seq = $1::bigint",
                                    p, 1, true, &res, err);
    if (st != OB_OK)
        return st;
    if (PQntuples(res) == 1) {
        ev->payload = ob_arena_copy(arena, ob_pg_str(res, 0, 0));
        if (!ev->payload.p)
            st = ob_err_set(err, OB_DOWN, "no memory for a payload of %d bytes",
                            PQgetlength(res, 0, 0));
    } else {
        st = ob_err_set(err, OB_AGAIN, "the row of event %s is gone", number);
    }
    PQclear(res);
    return st;
}
