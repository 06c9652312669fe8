/* SPDX-License-Identifier: Apache-2.0 */
/* sqlite_insert - writing an event into the native table. Values are parameters, never text of the
 * statement. */
#include "core/uuid.h"
#include "event/sqlite_table.h"

#include <sqlite3.h>

enum ob_status ob_sqlite_insert_prepare(sqlite3 *db, sqlite3_stmt **out, struct ob_err *err)
{
    int rc = sqlite3_prepare_v2(
        db,
        "INSERT INTO outbox_event (id, type, aggregate_type, aggregate_id, key, tenant, topic,"
        " payload, payload_kind, headers, metadata, entity_version, schema_version, max_attempts)"
        " VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)",
        -1, out, NULL);

    return rc == SQLITE_OK ? OB_OK : ob_sqlite_fail(err, db, rc, "inserting an event");
}

static int bind_text(sqlite3_stmt *st, int i, struct ob_str s)
{
    return sqlite3_bind_text64(st, i, s.p ? s.p : "", s.n, SQLITE_STATIC, SQLITE_UTF8);
}

static int bind_optional(sqlite3_stmt *st, int i, struct ob_str s)
{
    return s.n ? bind_text(st, i, s) : sqlite3_bind_null(st, i);
}

static int bind_version(sqlite3_stmt *st, int i, int64_t v)
{
    return v == OB_NO_VERSION ? sqlite3_bind_null(st, i) : sqlite3_bind_int64(st, i, v);
}

/* Text with NUL bytes or bytes that are not UTF-8 is stored as a blob, so that no tool cuts or
 * changes it; payload_kind says what it is. */
static int bind_payload(sqlite3_stmt *st, int i, const struct ob_row *row)
{
    struct ob_str p = row->payload;

    if (row->payload_kind == OB_PAYLOAD_NULL)
        return sqlite3_bind_null(st, i);
    if (row->payload_kind == OB_PAYLOAD_BYTES || (p.n && memchr(p.p, 0, p.n)) || !ob_utf8_valid(p))
        return sqlite3_bind_blob64(st, i, p.n ? p.p : "", p.n, SQLITE_STATIC);
    return bind_text(st, i, p);
}

enum ob_status ob_sqlite_insert(sqlite3_stmt *st, const struct ob_row *row, char id[64],
                                struct ob_err *err)
{
    static const char *const kinds[] = {"json", "text", "bytes", NULL};
    char made[OB_UUID_TEXT];
    struct ob_str given = row->id;
    enum ob_status ret = ob_row_check(row, err);
    int rc;

    if (ret != OB_OK)
        return ret;
    if (given.n == 0) {
        ob_uuid7_text(made);
        given = ob_str_c(made);
    }
    rc = bind_text(st, 1, given);
    rc = rc ? rc : bind_text(st, 2, row->type);
    rc = rc ? rc : bind_text(st, 3, row->aggregate_type);
    rc = rc ? rc : bind_text(st, 4, row->aggregate_id);
    rc = rc ? rc : bind_optional(st, 5, row->key);
    rc = rc ? rc : bind_optional(st, 6, row->tenant);
    rc = rc ? rc : bind_optional(st, 7, row->topic);
    rc = rc ? rc : bind_payload(st, 8, row);
    rc = rc ? rc : sqlite3_bind_text(st, 9, kinds[row->payload_kind], -1, SQLITE_STATIC);
    rc = rc ? rc : bind_optional(st, 10, row->headers);
    rc = rc ? rc : bind_optional(st, 11, row->metadata);
    rc = rc ? rc : bind_version(st, 12, row->entity_version);
    rc = rc ? rc : bind_version(st, 13, row->schema_version);
    rc = rc ? rc
            : (row->max_attempts ? sqlite3_bind_int64(st, 14, row->max_attempts)
                                 : sqlite3_bind_null(st, 14));
    rc = rc ? rc : sqlite3_step(st);
    if (rc != SQLITE_DONE)
        ret = ob_sqlite_fail(err, sqlite3_db_handle(st), rc, "inserting an event");
    else if (id) {
        memcpy(id, given.p, given.n);
        id[given.n] = '\0';
    }
    sqlite3_reset(st);
    sqlite3_clear_bindings(st);
    return ret;
}
