/* SPDX-License-Identifier: Apache-2.0 */
/* schema - collections, indexes and validators, from texts that mongosh takes as well: what is
 * printed is what is applied. Only what is missing is made, so that a user without the right to
 * make anything is well where all is there; several at once do no harm, because the server makes
 * each thing once. */
#include "source/mongodb/admin.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

/* schema/mongodb, made into C by the build. */
extern const char *const ob_mongo_migrations[];
extern const char *const ob_mongo_migration_names[];
extern const unsigned ob_mongo_n_migrations;

#define STATEMENTS_MAX 64
#define NOT_THERE 26     /* NamespaceNotFound */
#define THERE_ALREADY 48 /* NamespaceExists */

const char ob_mongo_schema_own[] = "outbox_events";

const char *ob_mongo_schema_native(void)
{
    return ob_mongo_migrations[0];
}

/* ---- reading ---- */

/* `own` or a longer name that begins with it and '_', with `name` in its place. */
static const char *renamed(struct ob_arena *arena, struct ob_str found, const char *own,
                           const char *name)
{
    size_t n = strlen(own);
    if (found.n >= n && memcmp(found.p, own, n) == 0 && (found.n == n || found.p[n] == '_'))
        return ob_arena_printf(arena, "%s%.*s", name, (int)(found.n - n), found.p + n);
    return ob_arena_copy(arena, found).p;
}

static bson_t *arguments(const char *from, const char *to)
{
    return ob_mongo_bson("[%.*s]", (int)(to - from), from);
}

/* The statement that begins at p; *end behind it. False: it is none. */
static bool read_one(const char *p, struct mongo_schema *s, const char *own, const char *name,
                     const char **end)
{
    static const char create[] = "db.createCollection(", get[] = "db.getCollection(\"",
                      index[] = "\").createIndex(";
    struct mongo_statement *st = &s->at[s->n];
    const char *stop = strstr(p, ");\n"), *from;
    struct ob_str coll;
    if (!stop)
        return false;
    *st = (struct mongo_statement){.index = strncmp(p, get, sizeof(get) - 1) == 0};
    if (st->index) {
        coll.p = p + sizeof(get) - 1;
        coll.n = strcspn(coll.p, "\"");
        from = coll.p + coll.n;
        if (strncmp(from, index, sizeof(index) - 1) != 0)
            return false;
        from += sizeof(index) - 1;
    } else {
        if (strncmp(p, create, sizeof(create) - 1) != 0)
            return false;
        from = p + sizeof(create) - 1;
        coll.p = from + 1;
        coll.n = strcspn(coll.p, "\"");
    }
    st->on = renamed(s->arena, coll, own, name);
    st->own = ob_arena_copy(s->arena, coll).p;
    st->args = arguments(from, stop);
    *end = stop + 3;
    s->n += st->args != NULL;
    return st->on && st->own && st->args;
}

enum ob_status ob_mongo_schema_read(const char *text, const char *own, const char *name,
                                    struct mongo_schema *out, struct ob_err *err)
{
    struct mongo_schema s = {.arena = ob_arena_new(4096, 1 << 20)};
    s.at = s.arena ? ob_arena_zalloc(s.arena, STATEMENTS_MAX * sizeof(*s.at)) : NULL;
    bool ok = s.at != NULL;
    for (const char *p = text; ok && *p;) {
        const char *end = strchr(p, '\n');
        if (strncmp(p, "db.", 3) == 0)
            ok = s.n < STATEMENTS_MAX && read_one(p, &s, own, name, &end);
        else
            end = end ? end + 1 : p + strlen(p);
        p = end;
    }
    if (!ok) {
        ob_mongo_schema_clear(&s);
        return ob_err_set(err, OB_FATAL, "a statement of the schema cannot be read");
    }
    *out = s;
    return OB_OK;
}

void ob_mongo_schema_clear(struct mongo_schema *s)
{
    for (size_t i = 0; i < s->n; i++)
        bson_destroy(s->at[i].args);
    ob_arena_unref(s->arena);
    *s = (struct mongo_schema){0};
}

/* An argument that is a document; empty where there is none. */
static void argument(const struct mongo_statement *st, const char *at, bson_t *out)
{
    bson_iter_t it;
    uint32_t len = 0;
    const uint8_t *data = NULL;
    if (bson_iter_init_find(&it, st->args, at) && BSON_ITER_HOLDS_DOCUMENT(&it))
        bson_iter_document(&it, &len, &data);
    if (!data || !bson_init_static(out, data, len))
        bson_init(out);
}

void ob_mongo_schema_text(const struct mongo_statement *st, struct ob_buf *out)
{
    bson_t key, opts;
    argument(st, st->index ? "0" : "1", &key);
    argument(st, "1", &opts);
    char *k = bson_as_relaxed_extended_json(&key, NULL),
         *o = bson_as_relaxed_extended_json(&opts, NULL);
    if (st->index)
        ob_buf_printf(out, "db.getCollection(\"%s\").createIndex(%s, %s);", st->on, k ? k : "",
                      o ? o : "");
    else if (bson_empty(&key))
        ob_buf_printf(out, "db.createCollection(\"%s\");", st->on);
    else
        ob_buf_printf(out, "db.createCollection(\"%s\", %s);", st->on, k ? k : "");
    bson_free(k);
    bson_free(o);
    bson_destroy(&key);
    bson_destroy(&opts);
}

/* ---- what is there ---- */

static bool flag(const bson_t *doc, const char *name)
{
    bson_iter_t it;
    return bson_iter_init_find(&it, doc, name) && bson_iter_as_bool(&it);
}

/* Names and directions; who made it may have sent other kinds of numbers. One with further fields
 * serves as well, unless it is to be unique. */
static bool same_key(const bson_t *a, const bson_t *b, bool unique)
{
    bson_iter_t x, y;
    uint32_t n = bson_count_keys(a), m = bson_count_keys(b);
    if (m < n || (unique && m != n) || !bson_iter_init(&x, a) || !bson_iter_init(&y, b))
        return false;
    while (bson_iter_next(&x) && bson_iter_next(&y))
        if (strcmp(bson_iter_key(&x), bson_iter_key(&y)) != 0 || !BSON_ITER_HOLDS_NUMBER(&y) ||
            bson_iter_as_int64(&x) != bson_iter_as_int64(&y))
            return false;
    return true;
}

/* An index of all documents serves as well as one of some. */
static bool serves(const bson_t *have, const bson_t *key, const bson_t *opts)
{
    bson_iter_t it;
    bson_t has;
    uint32_t len;
    const uint8_t *data;
    if (!bson_iter_init_find(&it, have, "key") || !BSON_ITER_HOLDS_DOCUMENT(&it))
        return false;
    bson_iter_document(&it, &len, &data);
    if (!bson_init_static(&has, data, len) || !same_key(key, &has, flag(opts, "unique")))
        return false;
    if (bson_has_field(have, "partialFilterExpression") &&
        !bson_has_field(opts, "partialFilterExpression"))
        return false;
    return !flag(have, "hidden") && !flag(have, "sparse") &&
           (!flag(opts, "unique") || flag(have, "unique"));
}

static enum ob_status has_index(mongoc_client_t *client, const char *database,
                                const struct mongo_statement *st, bool *there, struct ob_err *err)
{
    mongoc_collection_t *coll = mongoc_client_get_collection(client, database, st->on);
    mongoc_cursor_t *c = mongoc_collection_find_indexes_with_opts(coll, NULL);
    bson_t key, opts;
    bson_error_t e;
    const bson_t *doc;
    enum ob_status ok = OB_OK;
    argument(st, "0", &key);
    argument(st, "1", &opts);
    *there = false;
    while (!*there && mongoc_cursor_next(c, &doc))
        *there = serves(doc, &key, &opts);
    if (!*there && mongoc_cursor_error(c, &e) && e.code != NOT_THERE)
        ok = ob_mongo_fail(err, "looking at indexes", &e, NULL);
    mongoc_cursor_destroy(c);
    mongoc_collection_destroy(coll);
    bson_destroy(&key);
    bson_destroy(&opts);
    return ok;
}

/* Has the collection the validator that it should have? */
static bool same_validator(const bson_t *info, const bson_t *opts)
{
    bson_iter_t a, b, at;
    if (!bson_iter_init_find(&b, opts, "validator"))
        return true;
    return bson_iter_init(&at, info) && bson_iter_find_descendant(&at, "options.validator", &a) &&
           BSON_ITER_HOLDS_DOCUMENT(&a) && BSON_ITER_HOLDS_DOCUMENT(&b) &&
           bson_iter_value(&a)->value.v_doc.data_len == bson_iter_value(&b)->value.v_doc.data_len &&
           memcmp(bson_iter_value(&a)->value.v_doc.data, bson_iter_value(&b)->value.v_doc.data,
                  bson_iter_value(&b)->value.v_doc.data_len) == 0;
}

enum ob_status ob_mongo_schema_collection(mongoc_client_t *client, const char *database,
                                          const struct mongo_statement *st, bool *there, bool *same,
                                          struct ob_err *err)
{
    mongoc_database_t *db = mongoc_client_get_database(client, database);
    bson_t *opts = BCON_NEW("filter", "{", "name", BCON_UTF8(st->on), "}"), want;
    mongoc_cursor_t *c = mongoc_database_find_collections_with_opts(db, opts);
    const bson_t *doc;
    argument(st, "1", &want);
    *there = mongoc_cursor_next(c, &doc);
    *same = *there && same_validator(doc, &want);
    enum ob_status ok = OB_OK;
    if (*there)
        mongoc_cursor_destroy(c);
    else
        ok = ob_mongo_cursor_end(c, "looking at collections", err);
    bson_destroy(opts);
    bson_destroy(&want);
    mongoc_database_destroy(db);
    return ok;
}

enum ob_status ob_mongo_schema_has(mongoc_client_t *client, const char *database,
                                   const struct mongo_statement *st, bool *there,
                                   struct ob_err *err)
{
    bool collection = false;
    if (st->index)
        return has_index(client, database, st, there, err);
    enum ob_status ok = ob_mongo_schema_collection(client, database, st, &collection, there, err);
    return ok;
}

/* ---- making it ---- */

static enum ob_status command(mongoc_client_t *client, const char *database, bson_t *cmd,
                              int64_t timeout_ms, uint32_t harmless, struct ob_err *err)
{
    bson_t reply, opts;
    bson_error_t e;
    enum ob_status st = OB_OK;
    ob_mongo_write_opts(&opts, timeout_ms, NULL);
    if (!mongoc_client_write_command_with_opts(client, database, cmd, &opts, &reply, &e) &&
        e.code != harmless)
        st = ob_mongo_fail(err, "making collections and indexes", &e, &reply);
    bson_destroy(&reply);
    bson_destroy(&opts);
    return st;
}

static enum ob_status make_index(mongoc_client_t *client, const char *database,
                                 const struct mongo_statement *s, int64_t timeout_ms,
                                 struct ob_err *err)
{
    bson_t cmd, key, opts, list, one;
    argument(s, "0", &key);
    argument(s, "1", &opts);
    bson_init(&cmd);
    BSON_APPEND_UTF8(&cmd, "createIndexes", s->on);
    BSON_APPEND_ARRAY_BEGIN(&cmd, "indexes", &list);
    BSON_APPEND_DOCUMENT_BEGIN(&list, "0", &one);
    BSON_APPEND_DOCUMENT(&one, "key", &key);
    bson_concat(&one, &opts);
    bson_append_document_end(&list, &one);
    bson_append_array_end(&cmd, &list);
    enum ob_status st = command(client, database, &cmd, timeout_ms, 0, err);
    bson_destroy(&cmd);
    bson_destroy(&key);
    bson_destroy(&opts);
    return st;
}

static enum ob_status make_collection(mongoc_client_t *client, const char *database,
                                      const struct mongo_statement *s, bool there,
                                      int64_t timeout_ms, struct ob_err *err)
{
    bson_t cmd, opts;
    argument(s, "1", &opts);
    bson_init(&cmd);
    BSON_APPEND_UTF8(&cmd, there ? "collMod" : "create", s->on);
    bson_concat(&cmd, &opts);
    enum ob_status st = command(client, database, &cmd, timeout_ms, THERE_ALREADY, err);
    bson_destroy(&cmd);
    bson_destroy(&opts);
    return st;
}

enum ob_status ob_mongo_schema_one(mongoc_client_t *client, const char *database,
                                   const struct mongo_statement *s, int64_t timeout_ms, bool dry,
                                   struct ob_buf *out, unsigned *changed, struct ob_err *err)
{
    bool there = false, fits = false;
    bson_t opts;
    enum ob_status st = s->index
                            ? has_index(client, database, s, &fits, err)
                            : ob_mongo_schema_collection(client, database, s, &there, &fits, err);
    if (st != OB_OK || fits)
        return st;
    (*changed)++;
    argument(s, "1", &opts);
    bson_iter_t it;
    const char *name = bson_iter_init_find(&it, &opts, "name") && BSON_ITER_HOLDS_UTF8(&it)
                           ? bson_iter_utf8(&it, NULL)
                           : "";
    if (out && s->index)
        ob_buf_printf(out, "index %s of %s\n", name, s->on);
    else if (out)
        ob_buf_printf(out, "%s %s\n", there ? "validator of" : "collection", s->on);
    bson_destroy(&opts);
    if (dry)
        return OB_OK;
    return s->index ? make_index(client, database, s, timeout_ms, err)
                    : make_collection(client, database, s, there, timeout_ms, err);
}

/* only_side: not the collection of events, which is its owner's. */
static enum ob_status apply(mongoc_client_t *client, const char *database,
                            const struct mongo_model *m, bool only_side, int64_t timeout_ms,
                            bool dry, struct ob_buf *out, unsigned *changed, struct ob_err *err)
{
    struct mongo_schema s;
    enum ob_status st =
        ob_mongo_schema_read(ob_mongo_schema_native(), ob_mongo_schema_own, m->events, &s, err);
    if (st != OB_OK)
        return st;
    for (size_t i = 0; st == OB_OK && i < s.n; i++) {
        bool own = strcmp(s.at[i].own, ob_mongo_schema_own) == 0 ||
                   strcmp(s.at[i].own, "outbox_events_keys") == 0;
        if (!own || !only_side)
            st =
                ob_mongo_schema_one(client, database, &s.at[i], timeout_ms, dry, out, changed, err);
    }
    ob_mongo_schema_clear(&s);
    return st;
}

enum ob_status ob_mongo_side(mongoc_client_t *client, const char *database,
                             const struct mongo_model *m, int64_t timeout_ms, struct ob_err *err)
{
    unsigned changed = 0;
    return apply(client, database, m, true, timeout_ms, false, NULL, &changed, err);
}

enum ob_status ob_mongo_schema(struct ob_admin *a, bool dry, struct ob_buf *out, unsigned *changed,
                               struct ob_err *err)
{
    *changed = 0;
    enum ob_status st = ob_mongo_admin_need(a, err);
    if (st == OB_OK)
        st = apply(a->client, a->conf->database, a->model, !a->model->native, a->conf->timeout_ms,
                   dry, out, changed, err);
    return st;
}

void ob_mongo_schema_print(struct ob_buf *out)
{
    ob_buf_c(out, ob_mongo_schema_native());
}
