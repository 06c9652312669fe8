/* SPDX-License-Identifier: Apache-2.0 */
/* bson_write - making BSON documents in a buffer, without a library. A failed append sets the
 * buffer's `failed` and later ones do nothing: look once at the end. */
#ifndef OB_EVENT_BSON_WRITE_H
#define OB_EVENT_BSON_WRITE_H

#include "core/buf.h"
#include "event/bson.h"

/* A server takes no more. */
#define OB_BSON_WRITE_DEPTH 180

struct ob_bson_writer {
    struct ob_buf *buf;
    unsigned depth;
    size_t open[OB_BSON_WRITE_DEPTH];   /* where each open document starts */
    uint32_t next[OB_BSON_WRITE_DEPTH]; /* of an array: the next name */
    bool array[OB_BSON_WRITE_DEPTH];
};

void ob_bsonw_init(struct ob_bson_writer *w, struct ob_buf *buf);
/* The first open() is the document itself: its name is not looked at. Names of an array's values
 * are not looked at either. */
void ob_bsonw_open(struct ob_bson_writer *w, struct ob_str name, bool array);
void ob_bsonw_close(struct ob_bson_writer *w);
void ob_bsonw_text(struct ob_bson_writer *w, struct ob_str name, struct ob_str text);
void ob_bsonw_bytes(struct ob_bson_writer *w, struct ob_str name, struct ob_str bytes);
/* The shorter type that holds it. */
void ob_bsonw_int(struct ob_bson_writer *w, struct ob_str name, int64_t v);
void ob_bsonw_double(struct ob_bson_writer *w, struct ob_str name, double v);
void ob_bsonw_bool(struct ob_bson_writer *w, struct ob_str name, bool v);
void ob_bsonw_null(struct ob_bson_writer *w, struct ob_str name);
void ob_bsonw_date(struct ob_bson_writer *w, struct ob_str name, int64_t ms);
void ob_bsonw_timestamp(struct ob_bson_writer *w, struct ob_str name, uint32_t t, uint32_t i);
/* A whole value of this type, as BSON has it. */
void ob_bsonw_raw(struct ob_bson_writer *w, struct ob_str name, unsigned char type,
                  struct ob_str value);
/* A JSON value: whole numbers as int32 or int64 where they fit, others as doubles; names that look
 * like Extended JSON are names. OB_REJECT: it is no JSON, is nested too deep, has a NUL in a name
 * or a number that no double comes near. */
enum ob_status ob_bsonw_json(struct ob_bson_writer *w, struct ob_str name, struct ob_str json,
                             struct ob_err *err) OB_MUST_CHECK;

#endif
