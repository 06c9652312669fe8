/* SPDX-License-Identifier: Apache-2.0 */
/* mapping - another system's table, found in the catalog, and the statements that read and mark it.
 *
 * A struct ob_mapping (event/mapping.h) says what the config file says; a struct pg_map is that
 * table as it is: every column exists and has a type that fits its role. Statements are built once,
 * identifiers and values quoted; the table has the alias t. */
#ifndef OB_SOURCE_POSTGRES_MAPPING_H
#define OB_SOURCE_POSTGRES_MAPPING_H

#include "event/event.h"
#include "event/limits.h"
#include "event/mapping.h"
#include "source/postgres/conn.h"

enum pg_kind {
    PG_KIND_TEXT,
    PG_KIND_INT,
    PG_KIND_NUMBER, /* numeric, float */
    PG_KIND_BOOL,
    PG_KIND_TIME,
    PG_KIND_JSON,
    PG_KIND_BYTES,
    PG_KIND_UUID,
    PG_KIND_ENUM,
    PG_KIND_OTHER
};

struct pg_column {
    const char *name;  /* as in the catalog */
    const char *ident; /* "name" */
    const char *type;  /* as format_type() writes it, for a cast that cuts nothing off */
    enum pg_kind kind;
    int64_t max_chars; /* of varchar(n) and char(n); 0: any number */
    bool not_null, has_default;
    bool padded; /* char(n): a cast to text takes its spaces off, the stream does not */
};

enum pg_map_sql {
    PG_MAP_IDS,       /* $1 limit: ids of what may be published, in order */
    PG_MAP_IDS_NEXT,  /* $1 limit, $2 the last id: the next ones, in the same snapshot */
    PG_MAP_SIDE,      /* the same two where rows are parked or dead: and whether it was dead */
    PG_MAP_SIDE_NEXT, /* */
    PG_MAP_READ,      /* $1 ids: whole events */
    PG_MAP_FETCH,     /* the same, claimed if claims are shown: then also $2 shard, $3 epoch */
    PG_MAP_THERE,     /* $1 ids: places of those whose row is there, ready or not */
    PG_MAP_STILL,     /* $1 ids: places of those that still may be published */
    PG_MAP_WHOLE,     /* $1 id, $2 to $4 limits: columns of one that are within them, and sizes */
    PG_MAP_DONE,      /* $1 ids */
    PG_MAP_RETRY,     /* $1 ids, $2 reasons; "" if nothing is shown */
    PG_MAP_BACK,      /* $1 ids, $2 shard, $3 epoch: claimed no more; "" if claims are not shown */
    PG_MAP_AGAIN,     /* the same parameters: claimed (again), or for longer; "" likewise */
    PG_MAP_DEAD,      /* $1 ids, $2 reasons, $3 failed too often (bool[]); "" likewise */
    PG_MAP_RELEASE,   /* $1 ids as text: dead no more; "" likewise */
    PG_MAP_LIST,    /* whole events, a number and a state; conditions follow behind `where true` */
    PG_MAP_PENDING, /* $1 limit: how many, at least; age of the oldest in ms */
    PG_MAP_SQL_N
};

/* Columns of PG_MAP_READ and PG_MAP_FETCH, in binary; those of `more` follow. */
enum pg_map_field {
    PG_F_PLACE, /* bigint, from 1: of the id in $1 */
    PG_F_ID,
    PG_F_SEQ,
    PG_F_TYPE,
    PG_F_AGGREGATE_TYPE,
    PG_F_AGGREGATE_ID,
    PG_F_KEY,
    PG_F_TENANT,
    PG_F_TOPIC,
    PG_F_STREAM,
    PG_F_PAYLOAD, /* NULL when it is large: then PG_MAP_WHOLE */
    PG_F_SIZE,    /* int; NULL: no payload */
    PG_F_HEADERS,
    PG_F_METADATA,
    PG_F_ENTITY_VERSION,
    PG_F_SCHEMA_VERSION,
    PG_F_CREATED, /* timestamp(tz) */
    PG_F_ATTEMPTS,
    PG_F_MAX_ATTEMPTS,
    PG_F_N
};

struct pg_map {
    struct ob_arena *arena; /* has everything below, and this */
    const struct ob_mapping *conf;
    const char *pipeline; /* quoted, as all of these are */
    const char *owner;
    const char *schema; /* "schema" */
    const char *table;  /* "schema"."table" */
    int64_t oid;
    bool partitioned, row_security;
    bool stream;               /* only read as it is written: no statements, nothing is marked */
    struct pg_column *columns; /* all of them */
    size_t n_columns;
    const struct pg_column *col[OB_MAP_N]; /* NULL: not mapped */
    const struct pg_column **more;         /* for ${col:name} */
    size_t n_more;
    enum ob_payload_kind payload_kind;
    /* Chosen values of the status column, quoted; NULL: none. */
    const char *v_pending, *v_claimed, *v_done, *v_failed;
    /* Conditions on t. */
    const char *pending;  /* its columns say that it waits */
    const char *ready;    /* or is claimed by nobody else: may be published by us */
    const char *ours;     /* may be marked by us */
    const char *released; /* of a dead row that is ready: it was released; "false": never */
    bool dead_hides;      /* a dead row is not pending by its columns */
    bool claims;          /* claims are shown in the table */
    const char *fence;    /* $2 shard and $3 epoch are ours */
    const char *order;    /* ORDER BY list */
    const char *order_o, *order_desc;   /* the same of alias o, and backwards */
    const char *number;                 /* of a row, for people: a bigint */
    const char *index_on, *index_where; /* of the index to read by, without alias */
    const char *sql[PG_MAP_SQL_N];
};

/* What does not need the server to be seen. OB_FATAL with the option's name. */
enum ob_status ob_pg_map_check(const struct ob_mapping *conf, struct ob_err *err) OB_MUST_CHECK;
/* Finds the table. OB_FATAL: it is missing, a view, fed by a subscription, without a key, or a
 * column is missing or of a wrong type. pipeline, owner: whose rows; owner may be NULL if nothing
 * is claimed. The map keeps conf. */
enum ob_status ob_pg_map_open(struct pg_session *conn, const struct ob_mapping *conf,
                              const char *pipeline, const char *owner, struct pg_map **out,
                              struct ob_err *err) OB_MUST_CHECK;
/* For mode wal: a table whose rows have no state, and need no key. */
enum ob_status ob_pg_map_open_stream(struct pg_session *conn, const struct ob_mapping *conf,
                                     const char *pipeline, const char *owner, struct pg_map **out,
                                     struct ob_err *err) OB_MUST_CHECK;
void ob_pg_map_close(struct pg_map *map);

/* Fills ev from a row of PG_MAP_FETCH. Slices point into the result; columns for templates are made
 * in the arena. False: no memory. */
bool ob_pg_map_event(const struct pg_map *map, const PGresult *res, int row, struct ob_arena *arena,
                     struct ob_event *ev) OB_MUST_CHECK;
/* The same for one row by itself, each column only if it is within its limit; what is not makes the
 * event's fault. ev was filled by ob_pg_map_event(). Afterwards no slice points into that result.
 * OB_AGAIN: the row is gone. OB_REJECT: no memory for it. */
enum ob_status ob_pg_map_event_read(struct pg_session *conn, const struct pg_map *map, bool payload,
                                    const struct ob_limits *limits, struct ob_arena *arena,
                                    struct ob_event *ev, struct ob_err *err) OB_MUST_CHECK;
/* True: some column of the row is not in the result (see native.h), or with payload its payload. */
bool ob_pg_map_event_partial(const struct pg_map *map, const PGresult *res, int row, bool payload);
/* Bytes of all columns that an event within the limits has in memory. */
size_t ob_pg_map_event_size(const struct pg_map *map, const PGresult *res, int row,
                            const struct ob_limits *limits);
/* A row can hold any number of attempts; outbox.parked and outbox.dead hold 32 bits, and add to it.
 */
static inline uint32_t ob_pg_attempts(int64_t n)
{
    return n < 0 ? 0 : n > 1000000 ? 1000000 : (uint32_t)n;
}
/* May a value of this column have any size? */
bool ob_pg_column_unbounded(const struct pg_column *column);
/* Roles of text and JSON columns in an event, in the order of PG_MAP_WHOLE; those of `more` and the
 * payload follow. */
#define PG_MAP_SIZED 9
extern const struct pg_map_sized {
    enum ob_map_role role;
    enum pg_map_field field;
    enum ob_limited limited;
    size_t offset; /* into struct ob_event */
} ob_pg_map_sized[PG_MAP_SIZED];

/* mapping_check.c, for ob_pg_map_open(). OB_FATAL: what is wrong, and how to mend it. */
enum ob_status ob_pg_map_key(struct pg_session *conn, struct pg_map *map,
                             struct ob_err *err) OB_MUST_CHECK;
enum ob_status ob_pg_map_marks(struct pg_session *conn, struct pg_map *map,
                               struct ob_err *err) OB_MUST_CHECK;
enum ob_status ob_pg_map_values(struct pg_session *conn, struct pg_map *map,
                                struct ob_err *err) OB_MUST_CHECK;
/* mapping_sql.c, for ob_pg_map_open(). False: no memory. */
bool ob_pg_map_build(struct pg_map *map) OB_MUST_CHECK;
/* Text in single quotes, in the arena. NULL: no memory. */
const char *ob_pg_literal(struct ob_arena *arena, const char *text);

#endif
