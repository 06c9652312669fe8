/* SPDX-License-Identifier: Apache-2.0 */
/* event_read - one event by its number, in bounded memory.
 *
 * SQLite reads a value whole. While events are read, the connection refuses values of more than
 * READ_MAX bytes (SQLITE_TOOBIG, before it takes memory for them); such a row is read column by
 * column as incremental blobs, whose size is known first. */
#include "source/sqlite/sqlite.h"

#include <limits.h>

enum { S_SEQ, S_KIND, S_ENTITY_VERSION, S_SCHEMA_VERSION, S_MAX_ATTEMPTS, S_CREATED, S_FIRST };

/* In the order of the statement. */
static const struct {
    const char *name;
    enum ob_limited limited;
    size_t offset;
} columns[] = {
    {"payload", OB_LIMITED_PAYLOAD, offsetof(struct ob_event, payload)},
    {"id", OB_LIMITED_ID, offsetof(struct ob_event, id)},
    {"type", OB_LIMITED_TYPE, offsetof(struct ob_event, type)},
    {"aggregate_type", OB_LIMITED_AGGREGATE_TYPE, offsetof(struct ob_event, aggregate_type)},
    {"aggregate_id", OB_LIMITED_AGGREGATE_ID, offsetof(struct ob_event, aggregate_id)},
    {"key", OB_LIMITED_KEY, offsetof(struct ob_event, key)},
    {"tenant", OB_LIMITED_TENANT, offsetof(struct ob_event, tenant)},
    {"topic", OB_LIMITED_TOPIC, offsetof(struct ob_event, topic)},
    {"headers", OB_LIMITED_HEADERS, offsetof(struct ob_event, headers)},
    {"metadata", OB_LIMITED_METADATA, offsetof(struct ob_event, metadata)},
};
#define N_COLUMNS (sizeof(columns) / sizeof(columns[0]))
#define PAYLOAD 0

/* One row under way. */
struct large {
    struct db *db;
    const struct ob_limits *limits;
    sqlite3_stmt *st;
    sqlite3_blob *blob[N_COLUMNS]; /* NULL: the value is in the statement's row, or none */
    size_t size[N_COLUMNS], keep[N_COLUMNS];
    size_t total;
};

void ob_sqlite_bound_reads(struct db *db, bool on)
{
    sqlite3_limit(db->h, SQLITE_LIMIT_LENGTH, on ? READ_MAX : INT_MAX);
}

bool ob_sqlite_too_large(int rc)
{
    return (rc & 0xff) == SQLITE_TOOBIG || (rc & 0xff) == SQLITE_NOMEM;
}

/* Opens the column and notes how much of it is kept. */
static enum ob_status open_column(struct large *l, size_t i, struct ob_err *err)
{
    int at = S_FIRST + 2 * (int)i;
    const char *type = (const char *)sqlite3_column_text(l->st, at);
    size_t limit = ob_limit_of(l->limits, columns[i].limited);
    bool bytes = type && (strcmp(type, "text") == 0 || strcmp(type, "blob") == 0);

    if (bytes) {
        int rc = sqlite3_blob_open(l->db->h, "main", "outbox_event", columns[i].name,
                                   sqlite3_column_int64(l->st, S_SEQ), 0, &l->blob[i]);
        if (rc != SQLITE_OK)
            return ob_sqlite_fail(err, l->db->h, rc, "reading an event");
        l->size[i] = (size_t)sqlite3_blob_bytes(l->blob[i]);
    } else {
        (void)sqlite3_column_text(l->st, at + 1); /* a number as text */
        l->size[i] = (size_t)sqlite3_column_bytes(l->st, at + 1);
    }
    l->keep[i] = l->size[i] <= limit                       ? l->size[i]
                 : columns[i].limited < OB_LIMITED_HEADERS ? OB_LIMIT_KEEP
                                                           : 0;
    l->total += l->keep[i];
    return OB_OK;
}

static enum ob_status read_columns(struct large *l, char *p, struct ob_event *ev,
                                   struct ob_err *err)
{
    for (size_t i = 0; i < N_COLUMNS; i++) {
        struct ob_str *to = (struct ob_str *)(void *)((char *)ev + columns[i].offset);
        int rc = SQLITE_OK;
        if (l->blob[i])
            rc = sqlite3_blob_read(l->blob[i], p, (int)l->keep[i], 0);
        else if (l->keep[i])
            memcpy(p, sqlite3_column_text(l->st, S_FIRST + 2 * (int)i + 1), l->keep[i]);
        if (rc != SQLITE_OK)
            return ob_sqlite_fail(err, l->db->h, rc, "reading an event");
        p[l->keep[i]] = '\0';
        *to = (struct ob_str){p, l->keep[i]};
        p += l->keep[i] + 1;
    }
    return OB_OK;
}

static void take_numbers(const struct large *l, struct ob_event *ev)
{
    const char *stored = (const char *)sqlite3_column_text(l->st, S_FIRST);
    const char *kind = (const char *)sqlite3_column_text(l->st, S_KIND);
    int64_t max = sqlite3_column_int64(l->st, S_MAX_ATTEMPTS);
    bool blob = stored && strcmp(stored, "blob") == 0;

    ev->ref = ev->seq = (uint64_t)sqlite3_column_int64(l->st, S_SEQ);
    ev->payload_kind = stored && strcmp(stored, "null") == 0 ? OB_PAYLOAD_NULL
                       : kind                                ? (*kind == 'b'   ? OB_PAYLOAD_BYTES
                                                                : *kind == 't' ? OB_PAYLOAD_TEXT
                                                                               : OB_PAYLOAD_JSON)
                       : blob                                ? OB_PAYLOAD_BYTES
                                                             : OB_PAYLOAD_JSON;
    ev->entity_version = sqlite3_column_type(l->st, S_ENTITY_VERSION) == SQLITE_NULL
                             ? OB_NO_VERSION
                             : sqlite3_column_int64(l->st, S_ENTITY_VERSION);
    ev->schema_version = sqlite3_column_type(l->st, S_SCHEMA_VERSION) == SQLITE_NULL
                             ? OB_NO_VERSION
                             : sqlite3_column_int64(l->st, S_SCHEMA_VERSION);
    ev->max_attempts = max < 0 ? 0 : max > UINT32_MAX ? UINT32_MAX : (uint32_t)max;
    ev->created_us = ob_us_of_ms(sqlite3_column_int64(l->st, S_CREATED));
}

static enum ob_status fill_event(struct large *l, bool payload, size_t most, struct ob_arena *arena,
                                 struct ob_event *ev, struct ob_err *err)
{
    enum ob_status ret = OB_OK;
    bool ok = true;

    for (size_t i = payload ? PAYLOAD : PAYLOAD + 1; ret == OB_OK && i < N_COLUMNS; i++)
        ret = open_column(l, i, err);
    if (ret == OB_OK && l->total > most)
        return OB_AGAIN;
    if (ret != OB_OK)
        return ret;
    take_numbers(l, ev);
    char *p = ob_arena_alloc(arena, l->total + N_COLUMNS);
    if (!p) {
        ev->payload.n = l->total;
        return ob_err_set(err, OB_REJECT, "no memory for an event of %zu bytes", l->total);
    }
    ret = read_columns(l, p, ev, err);
    for (size_t i = 0; ret == OB_OK && ok && i < N_COLUMNS; i++)
        ok = ob_limits_check_size(l->limits, ev, columns[i].limited, l->size[i], arena);
    return ok ? ret : ob_err_set(err, OB_REJECT, "no memory for an event");
}

static enum ob_status read_large(struct db *db, const struct ob_limits *limits, uint64_t seq,
                                 bool payload, size_t most, struct ob_arena *arena,
                                 struct ob_event *ev, struct ob_err *err)
{
    struct large l = {.db = db, .limits = limits, .st = db->st[ST_SHAPE]};
    enum ob_status ret = OB_OK;
    int rc;

    *ev = (struct ob_event){.ref = 0};
    sqlite3_bind_int64(l.st, 1, (int64_t)seq);
    rc = sqlite3_step(l.st);
    if (rc == SQLITE_ROW)
        ret = fill_event(&l, payload, most, arena, ev, err);
    else if (rc != SQLITE_DONE)
        ret = ob_sqlite_fail(err, db->h, rc, "reading an event");
    for (size_t i = 0; i < N_COLUMNS; i++)
        sqlite3_blob_close(l.blob[i]);
    sqlite3_reset(l.st);
    return ret;
}

/* The text of a UTF-16 database has other bytes than its blobs: those only show its size. */
static enum ob_status read_utf16(struct db *db, const struct ob_limits *limits, uint64_t seq,
                                 bool payload, size_t most, struct ob_arena *arena,
                                 struct ob_event *ev, struct ob_err *err)
{
    const struct ob_limits twice = {
        .text = 2 * limits->text, .json = 2 * limits->json, .payload = 2 * limits->payload};
    sqlite3_stmt *st = db->st[payload ? ST_EVENT : ST_EVENT_BARE];
    enum ob_status ret = read_large(db, &twice, seq, payload, SIZE_MAX, arena, ev, err);
    int rc;

    if (ret != OB_OK || ev->fault.n > 0 || !ev->id.p)
        return ret;
    ob_sqlite_bound_reads(db, false);
    sqlite3_bind_int64(st, 1, (int64_t)seq);
    rc = sqlite3_step(st);
    if (rc == SQLITE_ROW)
        ret = ob_sqlite_row_event(db, limits, st, 0, most, arena, ev, err);
    else if (rc != SQLITE_DONE)
        ret = ob_sqlite_fail(err, db->h, rc, "reading an event");
    sqlite3_reset(st);
    return ret;
}

enum ob_status ob_sqlite_read_event(struct db *db, const struct ob_limits *limits, uint64_t seq,
                                    bool payload, size_t most, struct ob_arena *arena,
                                    struct ob_event *ev, struct ob_err *err)
{
    sqlite3_stmt *st = db->st[payload ? ST_EVENT : ST_EVENT_BARE];
    enum ob_status ret = OB_OK;
    int rc;

    *ev = (struct ob_event){.ref = 0};
    sqlite3_bind_int64(st, 1, (int64_t)seq);
    ob_sqlite_bound_reads(db, true);
    rc = sqlite3_step(st);
    if (rc == SQLITE_ROW)
        ret = ob_sqlite_row_event(db, limits, st, 0, most, arena, ev, err);
    sqlite3_reset(st);
    if (ob_sqlite_too_large(rc))
        ret = db->utf16 ? read_utf16(db, limits, seq, payload, most, arena, ev, err)
                        : read_large(db, limits, seq, payload, most, arena, ev, err);
    else if (rc != SQLITE_ROW && rc != SQLITE_DONE)
        ret = ob_sqlite_fail(err, db->h, rc, "reading an event");
    ob_sqlite_bound_reads(db, false);
    return ret;
}

enum ob_status ob_sqlite_unfit(struct ob_source *s, uint64_t seq, struct ob_arena *arena,
                               struct ob_event *ev, struct ob_err *err)
{
    size_t bytes = ev->payload.n;
    struct ob_str number = {(const char *)&seq, sizeof(seq)};
    char *id = NULL;

    if (ob_unfit_note(&s->unfit, number))
        id = ob_arena_printf(arena, "%llu", (unsigned long long)seq);
    *ev = (struct ob_event){.ref = seq, .seq = seq, .id = ob_str_c(id)};
    if (!id || !ob_limits_no_memory(ev, bytes, arena))
        return ob_err_set(err, OB_DOWN, "no memory for event number %llu: %zu bytes",
                          (unsigned long long)seq, bytes);
    return OB_OK;
}
