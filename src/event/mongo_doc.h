/* SPDX-License-Identifier: Apache-2.0 */
/* mongo_doc - an event as a new document of an outbox collection, by the fields of a mapping. Used
 * by those who write events; makes BSON, and who has a connection inserts it. */
#ifndef OB_EVENT_MONGO_DOC_H
#define OB_EVENT_MONGO_DOC_H

#include "core/buf.h"
#include "event/mapping.h"
#include "event/row.h"

/* The largest that a server takes. */
#define OB_MONGO_DOC_MAX ((size_t)16 << 20)

struct ob_mongo_shape {
    const struct ob_mapping *map;
    bool native;   /* the server numbers each document, and it says what kind of payload it has */
    bool document; /* native: JSON is stored as a document, not as the text that it is */
    bool nulls;    /* every field is there from the start */
    bool strict;   /* an entity's id and version are needed: order goes by them */
};

/* Its own documents, and those of the profile sc. */
extern const struct ob_mongo_shape ob_mongo_shape_native, ob_mongo_shape_sc;

/* Is every field a name that can be written? */
enum ob_status ob_mongo_shape_check(const struct ob_mongo_shape *shape,
                                    struct ob_err *err) OB_MUST_CHECK;
/* Appends the document; id receives the event's id, given or made. now_ms: wall clock. OB_REJECT:
 * the event is at fault, or has what the collection has no field for. */
enum ob_status ob_mongo_doc(const struct ob_mongo_shape *shape, const struct ob_row *row,
                            int64_t now_ms, struct ob_buf *out, char id[64],
                            struct ob_err *err) OB_MUST_CHECK;
/* What order is kept for: the key, else the aggregate's id. */
struct ob_str ob_mongo_key(const struct ob_row *row);

#endif
