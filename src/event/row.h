/* SPDX-License-Identifier: Apache-2.0 */
/* row - an event on its way into a table, before it is known which one. */
#ifndef OB_EVENT_ROW_H
#define OB_EVENT_ROW_H

#include "event/event.h"

/* What is inserted. Empty id: one is made. Empty key, tenant, topic, headers, metadata: NULL. */
struct ob_row {
    struct ob_str id, type, aggregate_type, aggregate_id, key, tenant, topic, payload, headers,
        metadata;
    enum ob_payload_kind payload_kind;
    int64_t entity_version, schema_version; /* OB_NO_VERSION: NULL */
    uint32_t max_attempts;                  /* 0: NULL */
    /* All of it is a context's and nothing the event's own: left out where there is no column. */
    bool tenant_of_context, metadata_of_context;
    bool bson; /* payload is a BSON document (its kind: BYTES); only MongoDB takes it */
};

/* OB_REJECT: no type, a column over its default limit, payload promised to be JSON and is not,
 * headers or metadata no JSON object. */
enum ob_status ob_row_check(const struct ob_row *row, struct ob_err *err) OB_MUST_CHECK;
/* The same where a BSON document is taken. */
enum ob_status ob_row_check_bson(const struct ob_row *row, struct ob_err *err) OB_MUST_CHECK;

#endif
