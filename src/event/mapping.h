/* SPDX-License-Identifier: Apache-2.0 */
/* mapping - another system's outbox table as the config file describes it: which column is what,
 * and how its columns show what became of a row. Columns and values only; who writes such a table
 * (produce) and who reads it (source) turn it into statements. */
#ifndef OB_EVENT_MAPPING_H
#define OB_EVENT_MAPPING_H

#include "core/opt.h"

#include <stdbool.h>

/* What a column is. */
enum ob_map_role {
    OB_MAP_ID, /* primary key, and the event's id */
    OB_MAP_ORDER,
    OB_MAP_TYPE,
    OB_MAP_AGGREGATE_TYPE,
    OB_MAP_AGGREGATE_ID,
    OB_MAP_KEY,
    OB_MAP_TENANT,
    OB_MAP_TOPIC,
    OB_MAP_STREAM,
    OB_MAP_PAYLOAD,
    OB_MAP_HEADERS,
    OB_MAP_METADATA,
    OB_MAP_ENTITY_VERSION,
    OB_MAP_SCHEMA_VERSION,
    OB_MAP_CREATED,
    /* what became of it */
    OB_MAP_DONE,    /* boolean: true when done; a time: not null when done */
    OB_MAP_DONE_AT, /* written together with it */
    OB_MAP_STATUS,  /* text, enum or integer */
    OB_MAP_ATTEMPTS,
    OB_MAP_MAX_ATTEMPTS,
    OB_MAP_ERROR,
    OB_MAP_ERROR_AT,
    OB_MAP_CLAIMED_AT,
    OB_MAP_LOCKED_BY,
    OB_MAP_LOCKED_UNTIL,
    OB_MAP_N
};

enum ob_map_payload {
    OB_MAP_PAYLOAD_AUTO,
    OB_MAP_PAYLOAD_JSON,
    OB_MAP_PAYLOAD_TEXT,
    OB_MAP_PAYLOAD_BYTES
};
enum ob_map_error { OB_MAP_ERROR_RETRY, OB_MAP_ERROR_DEAD };
enum ob_map_permanent { OB_MAP_LEAVE, OB_MAP_MARK_PROCESSED };

/* Filled from the config file. Names are as in the catalog, without quotes. */
struct ob_mapping {
    const char *schema, *table; /* table NULL: the native one */
    /* NULL: there is none. A name that ends in '?' is left out if the table has no such column. */
    const char *col[OB_MAP_N];
    /* For ${col:name}. values NULL: every column that is not mapped. */
    struct ob_opt_list columns;
    int payload_kind; /* enum ob_map_payload */
    /* Values of the status column. Several: the first that fits the column's type. */
    struct ob_opt_list pending, claimed, done, failed;
    int64_t dead_attempts; /* 0: none. Rows with so many attempts are dead, and dead ones get it */
    int error_on;          /* enum ob_map_error: which failures are written to the error column */
    bool error_clear;      /* delivered: error null */
    bool error_holds;      /* a row is pending only while error is null */
    const char *error_exhausted, *error_rejected; /* texts in place of the reason; NULL: it */
    int on_permanent;                             /* enum ob_map_permanent */
    int64_t lease_ms, claim_stuck_ms;
    /* Which stream a new row of a topic gets: prefix of the topic, up to a dot. */
    struct ob_opt_map streams;
    /* The topic of a new document that is given none: this and the aggregate's type. NULL: none. */
    const char *topic_prefix;
};

/* Options of a struct ob_mapping; {0}-terminated. */
extern const struct ob_opt ob_mapping_opts[];
/* The mapping in a driver's conf, found by its option table; NULL: it has none. */
const struct ob_mapping *ob_mapping_in(const struct ob_opt *opts, const void *conf);
/* The option's name of a role. */
const char *ob_map_role_name(enum ob_map_role role);

#endif
