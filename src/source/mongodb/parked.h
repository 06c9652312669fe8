/* SPDX-License-Identifier: Apache-2.0 */
/* parked - parked events that are being brought back: parked.c, and parked_close.c for those that
 * need not be. */
#ifndef OB_SOURCE_MONGODB_PARKED_H
#define OB_SOURCE_MONGODB_PARKED_H

#include "source/mongodb/mongo.h"

#define MONGO_KEYS 512 /* keys looked at in one query */

struct mongo_row {
    int64_t n, hash, dest, due_ms;
    uint32_t attempts;
    bson_value_t ref;
    size_t size;
    /* DEAD: others have made it so, in its own fields. */
    enum { ROW_GONE, ROW_SETTLED, ROW_DEAD, ROW_BUSY, ROW_READY } state;
    bool use;     /* chosen, and claimed */
    bool refused; /* chosen, and so large that it cannot be locked */
};

struct mongo_drain {
    struct ob_source *s;
    size_t max, per_key;
    int64_t keys[MONGO_KEYS], due[MONGO_KEYS];
    bool more[MONGO_KEYS]; /* rows are left behind */
    int64_t holder[MONGO_KEYS];
    size_t n_keys;
    struct mongo_row *rows;
    size_t n_rows;
};

/* Rows whose document is gone, was settled by others or made dead by them are parked no more.
 * parked_close.c */
enum ob_status ob_mongo_close_rows(struct mongo_drain *d, struct ob_err *err) OB_MUST_CHECK;

#endif
