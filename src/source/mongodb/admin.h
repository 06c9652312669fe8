/* SPDX-License-Identifier: Apache-2.0 */
/* admin - inside of what people do to a MongoDB source. */
#ifndef OB_SOURCE_MONGODB_ADMIN_H
#define OB_SOURCE_MONGODB_ADMIN_H

#include "source/mongodb/mongo.h"

struct ob_admin {
    const struct mongo_conf *conf;
    const struct ob_clock *clock;
    struct mongo_model *model;
    mongoc_client_pool_t *pool;
    mongoc_client_t *client;
    char *pipeline;
    bool looked; /* the server is one that can do this */
};

/* Connects, and sees that the server can do this. */
enum ob_status ob_mongo_admin_need(struct ob_admin *a, struct ob_err *err) OB_MUST_CHECK;
mongoc_collection_t *ob_mongo_admin_coll(const struct ob_admin *a, const char *name);
/* The cursor's error, if it has one. Destroys it. */
enum ob_status ob_mongo_cursor_end(mongoc_cursor_t *c, const char *what, struct ob_err *err);

/* ---- filters ---- */

/* Appends one condition {field: {$regex: …}} for a glob over the whole text. */
void ob_mongo_glob(bson_t *b, const char *field, const char *glob);
/* Appends one condition for an id as people write it: text in either case, an ObjectId, a UUID. */
void ob_mongo_id(bson_t *b, const char *field, const char *id);
/* Appends a condition on a time; 0: none. */
void ob_mongo_since(bson_t *b, const char *field, int64_t since_us, int64_t until_us);

/* ---- what they do ---- */

enum ob_status ob_mongo_admin_emit(struct ob_admin *a, const struct ob_emit *events, size_t n,
                                   char (*ids)[64], struct ob_err *err);
enum ob_status ob_mongo_events(struct ob_admin *a, const struct ob_filter *f, bool payload,
                               ob_event_fn *fn, void *user, struct ob_err *err);
/* The document as an event with its payload. *found false: it is gone. */
enum ob_status ob_mongo_whole(struct ob_admin *a, const bson_value_t *ref, struct ob_arena *arena,
                              struct ob_event *ev, bool *found, struct ob_err *err) OB_MUST_CHECK;
enum ob_status ob_mongo_dead_list(struct ob_admin *a, const struct ob_filter *f, bool full,
                                  ob_dead_fn *fn, void *user, struct ob_err *err);
enum ob_status ob_mongo_dead_do(struct ob_admin *a, enum ob_dead_action action,
                                const struct ob_filter *f, bool dry, size_t *n, struct ob_err *err);
enum ob_status ob_mongo_dlt_done(struct ob_admin *a, const int64_t *numbers, size_t n,
                                 struct ob_err *err);
enum ob_status ob_mongo_check(struct ob_admin *a,
                              void (*found)(void *user, bool ok, const char *what, const char *fix),
                              void *user, struct ob_err *err);

/* ---- schema.c ---- */

/* One statement of a schema's text. */
struct mongo_statement {
    bool index;      /* createIndex, else createCollection */
    const char *on;  /* collection, as configured */
    const char *own; /* the name that the text has for it */
    bson_t *args;    /* of an index: key, options; of a collection: its name, options */
};

struct mongo_schema {
    struct ob_arena *arena;
    struct mongo_statement *at;
    size_t n;
};

/* Reads a text; `name` takes the place of the collection `own` in it, also at the start of longer
 * names. */
enum ob_status ob_mongo_schema_read(const char *text, const char *own, const char *name,
                                    struct mongo_schema *out, struct ob_err *err) OB_MUST_CHECK;
void ob_mongo_schema_clear(struct mongo_schema *s);
/* Is the collection there, and with this validator? */
enum ob_status ob_mongo_schema_collection(mongoc_client_t *client, const char *database,
                                          const struct mongo_statement *st, bool *there, bool *same,
                                          struct ob_err *err) OB_MUST_CHECK;
/* Makes it if it is missing, or only says so. out may be NULL. */
enum ob_status ob_mongo_schema_one(mongoc_client_t *client, const char *database,
                                   const struct mongo_statement *s, int64_t timeout_ms, bool dry,
                                   struct ob_buf *out, unsigned *changed,
                                   struct ob_err *err) OB_MUST_CHECK;
/* Is what it makes there already? */
enum ob_status ob_mongo_schema_has(mongoc_client_t *client, const char *database,
                                   const struct mongo_statement *st, bool *there,
                                   struct ob_err *err) OB_MUST_CHECK;
/* As mongosh takes it. */
void ob_mongo_schema_text(const struct mongo_statement *st, struct ob_buf *out);
extern const char ob_mongo_schema_own[]; /* the collection's name in the native text */
const char *ob_mongo_schema_native(void);
enum ob_status ob_mongo_schema(struct ob_admin *a, bool dry, struct ob_buf *out, unsigned *changed,
                               struct ob_err *err);
void ob_mongo_schema_print(struct ob_buf *out);
enum ob_status ob_mongo_profile_print(const char *name, struct ob_buf *out, struct ob_err *err);
enum ob_status ob_mongo_profile_apply(struct ob_admin *a, const char *name, bool dry,
                                      struct ob_buf *out, unsigned *changed, struct ob_err *err);

#endif
