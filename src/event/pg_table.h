/* SPDX-License-Identifier: Apache-2.0 */
/* pg_table - writing events to PostgreSQL: the native outbox, or a table of another system that is
 * described by its columns. Makes statements with parameters; who has a connection runs them. Used
 * by those who write events and by those who read them; neither knows the other.
 *
 * One statement per batch: every field is an array, in binary, so that no byte of an event is ever
 * text of a statement. */
#ifndef OB_EVENT_PG_TABLE_H
#define OB_EVENT_PG_TABLE_H

#include "core/buf.h"
#include "event/mapping.h"
#include "event/row.h"

struct pg_result; /* libpq: PGresult */

enum ob_pg_field {
    OB_PG_ID,
    OB_PG_TYPE,
    OB_PG_AGGREGATE_TYPE,
    OB_PG_AGGREGATE_ID,
    OB_PG_KEY,
    OB_PG_TENANT,
    OB_PG_TOPIC,
    OB_PG_STREAM,
    OB_PG_PAYLOAD,
    OB_PG_HEADERS,
    OB_PG_METADATA,
    OB_PG_ENTITY_VERSION,
    OB_PG_SCHEMA_VERSION,
    OB_PG_MAX_ATTEMPTS,
    OB_PG_VALUES, /* those above come from an event, those below are how a new row starts */
    OB_PG_CREATED = OB_PG_VALUES,
    OB_PG_STATUS,
    OB_PG_DONE,
    OB_PG_ATTEMPTS,
    OB_PG_FIELDS
};
/* "id", "type", … as the config names them. */
extern const char *const ob_pg_field_names[OB_PG_FIELDS];

struct ob_pg_stream {
    const char *prefix, *stream;
};

/* Everything is copied. */
struct ob_pg_table_conf {
    const char *schema, *table; /* schema NULL: by the session's search_path */
    /* NULL: there is none. A name that ends in '?' is left out if the table has no such column. */
    const char *column[OB_PG_FIELDS];
    const struct ob_pg_stream *streams;
    size_t n_streams;
    const char *pending, *pending_number; /* the status of a new row: in a text column, in a
                                             number column */
    bool payload_json;                    /* takes nothing but JSON, whatever its column could */
    bool context_in_payload; /* without a metadata column a context goes to the payload's /metadata
                              */
};

/* The same from a config file; streams: room for mapping->streams.n of them. */
void ob_pg_table_describe(const struct ob_mapping *mapping, struct ob_pg_stream *streams,
                          struct ob_pg_table_conf *out);

#define OB_PG_CALL_MAX 16

/* A statement as PQexecParams() takes it; everything lives in what made it. */
struct ob_pg_call {
    const char *sql;
    int n;
    const char *value[OB_PG_CALL_MAX]; /* NULL: NULL */
    int length[OB_PG_CALL_MAX], format[OB_PG_CALL_MAX];
};

struct ob_pg_table; /* a table as the catalog knows it */

/* The question to the catalog; name is where it lives. */
void ob_pg_table_lookup(const struct ob_pg_table_conf *conf, struct ob_buf *name,
                        struct ob_pg_call *call);
/* The answer. *out belongs to the caller. OB_FATAL: no such table, a column is missing. */
enum ob_status ob_pg_table_new(const struct ob_pg_table_conf *conf, const struct pg_result *res,
                               struct ob_pg_table **out, struct ob_err *err) OB_MUST_CHECK;
void ob_pg_table_free(struct ob_pg_table *table);
/* Whether a context belongs into the payload. table may be NULL. */
bool ob_pg_table_context_in_payload(const struct ob_pg_table *table);
/* Is there a row of this id? One row with one boolean. table NULL: the native outbox. OB_REJECT: no
 * such id can be. sql is where the statement lives. */
enum ob_status ob_pg_table_exists(const struct ob_pg_table *table, const char *id,
                                  struct ob_buf *sql, struct ob_pg_call *call,
                                  struct ob_err *err) OB_MUST_CHECK;

/* Events on their way. */
struct ob_pg_batch {
    const struct ob_pg_table *table;   /* NULL: the native outbox */
    size_t n;                          /* events in it */
    struct ob_buf value[OB_PG_VALUES]; /* arrays */
    struct ob_buf kind, lock, sql;     /* payload kinds; what serialize locks; the statement */
    bool any[OB_PG_VALUES], all[OB_PG_VALUES]; /* has some event it, has every one? */
};

void ob_pg_batch_init(struct ob_pg_batch *b, const struct ob_pg_table *table);
void ob_pg_batch_clear(struct ob_pg_batch *b);
/* Checks and copies. OB_REJECT: the event is at fault, or has what the table has no column for. */
enum ob_status ob_pg_batch_add(struct ob_pg_batch *b, const struct ob_row *row,
                               struct ob_err *err) OB_MUST_CHECK;
/* The statement that writes all of them in order, or none. At least one event. */
enum ob_status ob_pg_batch_call(struct ob_pg_batch *b, bool serialize, struct ob_pg_call *call,
                                struct ob_err *err) OB_MUST_CHECK;
/* The ids of its events, as given or made. */
void ob_pg_batch_ids(const struct ob_pg_batch *b, char (*ids)[64]);

#endif
