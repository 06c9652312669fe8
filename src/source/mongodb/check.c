/* SPDX-License-Identifier: Apache-2.0 */
/* check - the questions of `outbox check` to MongoDB, each with the statement that mends what it
 * finds. Statements are for mongosh, in the database of the events unless they name another. */
#include "source/mongodb/check.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define CLOCK_MS 2000 /* how far apart clocks may be */
#define ENTITIES 20   /* how many are looked at, the latest */
#define MANY 1000     /* documents of one */

void ob_mongo_check_tell(struct mongo_checking *k, bool ok)
{
    k->found(k->user, ok, ob_buf_z(&k->what), ok ? "" : ob_buf_z(&k->fix));
    ob_buf_reset(&k->what);
    ob_buf_reset(&k->fix);
}

bool ob_mongo_check_ask(struct mongo_checking *k, const char *database, bson_t *command,
                        bson_t *reply, bson_error_t *e)
{
    bool ok =
        mongoc_client_read_command_with_opts(k->a->client, database, command, NULL, NULL, reply, e);
    bson_destroy(command);
    return ok;
}

/* ---- the server ---- */

static void check_tls(struct mongo_checking *k)
{
    const char *fix, *weak = ob_mongo_weak_tls(k->a->conf->uri, &fix);
    if (!weak)
        return;
    ob_buf_c(&k->what, weak);
    ob_buf_c(&k->fix, fix);
    ob_mongo_check_tell(k, false);
}

/* False: nothing else can be asked. */
static bool check_server(struct mongo_checking *k)
{
    struct ob_err err = {.text = ""};
    enum ob_status st = ob_mongo_server(k->a->client, k->a->conf->database, &err);
    if (st == OB_OK) {
        ob_buf_c(&k->what, "the server is a member of a replica set, or a router");
    } else {
        ob_buf_c(&k->what, err.text);
        const char *advice = ob_mongo_advice(err.text);
        if (strstr(err.text, "replica set"))
            advice = "start it with `mongod --replSet rs0 …`, then once in mongosh: rs.initiate();";
        ob_buf_c(&k->fix, advice ? advice
                                 : "see that the server is there and can be reached: host and port "
                                   "of the uri, replicaSet, tls");
    }
    ob_mongo_check_tell(k, st == OB_OK);
    return st == OB_OK;
}

/* By the time on the way there and back; leases go by the server's clock, back-offs by ours. */
static void check_clock(struct mongo_checking *k)
{
    bson_t reply;
    bson_error_t e;
    bson_iter_t it;
    int64_t before = ob_clock_wall_us(k->a->clock) / 1000;
    bool ok =
        ob_mongo_check_ask(k, k->a->conf->database, BCON_NEW("hello", BCON_INT32(1)), &reply, &e);
    int64_t after = ob_clock_wall_us(k->a->clock) / 1000;
    if (ok && bson_iter_init_find(&it, &reply, "localTime") && BSON_ITER_HOLDS_DATE_TIME(&it)) {
        int64_t server = bson_iter_date_time(&it), apart = 0;
        if (server < before)
            apart = before - server;
        else if (server > after)
            apart = server - after;
        bool same = apart <= CLOCK_MS;
        if (same)
            ob_buf_c(&k->what, "this machine's clock agrees with the server's");
        else
            ob_buf_printf(&k->what,
                          "this machine's clock is %" PRId64 " ms %s the server's: attempts come "
                          "%s than they should",
                          apart, server > after ? "behind" : "ahead of",
                          server > after ? "later" : "earlier");
        ob_buf_c(&k->fix, "chronyc makestep  # on the machine that is wrong; `chronyc tracking` "
                          "tells which");
        ob_mongo_check_tell(k, same);
    }
    bson_destroy(&reply);
}

/* ---- safety ---- */

/* What a writer gets who asks for nothing. */
static void check_default(struct mongo_checking *k)
{
    bson_t reply;
    bson_error_t e;
    bson_iter_t it, w;
    bool ok =
        ob_mongo_check_ask(k, "admin", BCON_NEW("getDefaultRWConcern", BCON_INT32(1)), &reply, &e);
    if (!ok) {
        ob_buf_printf(&k->what, "the cluster's default write concern cannot be looked at (%.200s)",
                      e.message);
        ob_mongo_check_tell(k, true);
    } else {
        bool majority = true;
        if (bson_iter_init(&it, &reply) &&
            bson_iter_find_descendant(&it, "defaultWriteConcern.w", &w))
            majority = BSON_ITER_HOLDS_UTF8(&w);
        ob_buf_c(&k->what, majority ? "writers wait for a majority unless they ask for less"
                                    : "the cluster's default write concern is not majority: what a "
                                      "writer commits can be undone when a primary fails, and its "
                                      "event is then never published");
        ob_buf_c(&k->fix, "db.adminCommand({\"setDefaultRWConcern\": 1, \"defaultWriteConcern\": "
                          "{\"w\": \"majority\"}});");
        ob_mongo_check_tell(k, majority);
    }
    bson_destroy(&reply);
}

/* Ours is majority whatever the string says; but the same string is often the writers' too. */
static void check_uri(struct mongo_checking *k)
{
    bson_error_t e;
    mongoc_uri_t *uri = mongoc_uri_new_with_error(k->a->conf->uri, &e);
    const mongoc_write_concern_t *wc = uri ? mongoc_uri_get_write_concern(uri) : NULL;
    int32_t w = wc ? mongoc_write_concern_get_w(wc) : MONGOC_WRITE_CONCERN_W_DEFAULT;
    if (w != MONGOC_WRITE_CONCERN_W_DEFAULT && w != MONGOC_WRITE_CONCERN_W_MAJORITY &&
        w != MONGOC_WRITE_CONCERN_W_TAG) {
        ob_buf_printf(&k->what,
                      "the uri says w=%d: the relay waits for a majority all the same, but what a "
                      "writer commits so can be undone",
                      (int)w);
        ob_buf_c(&k->fix, "w=majority in the uri of the writers and in this one");
        ob_mongo_check_tell(k, false);
    }
    mongoc_uri_destroy(uri);
}

/* The relay reads in snapshots that a majority has. */
static void check_snapshot(struct mongo_checking *k)
{
    bson_t reply;
    bson_error_t e;
    bool ok = ob_mongo_check_ask(k, k->a->conf->database,
                                 BCON_NEW("find", BCON_UTF8(k->a->model->events), "limit",
                                          BCON_INT32(1), "projection", "{", "_id", BCON_INT32(1),
                                          "}", "readConcern", "{", "level", "snapshot", "}"),
                                 &reply, &e);
    if (ok)
        ob_buf_c(&k->what, "reads in a snapshot of what a majority has");
    else
        ob_buf_printf(&k->what, "cannot read in a snapshot: %.300s", e.message);
    ob_buf_c(&k->fix,
             "db.adminCommand({\"setFeatureCompatibilityVersion\": \"5.0\"}); // or later; "
             "and every node with enableMajorityReadConcern");
    ob_mongo_check_tell(k, ok);
    bson_destroy(&reply);
}

/* ---- collections and indexes ---- */

static void name_index(const struct mongo_statement *s, struct ob_buf *out)
{
    bson_iter_t it, key;
    const char *between = "";
    ob_buf_printf(out, "an index of %s is missing: ", s->on);
    if (!bson_iter_init_find(&it, s->args, "0") || !bson_iter_recurse(&it, &key))
        return;
    for (; bson_iter_next(&key); between = ", ")
        ob_buf_printf(out, "%s%s", between, bson_iter_key(&key));
}

static enum ob_status check_statement(struct mongo_checking *k, const struct mongo_statement *s,
                                      unsigned *missing, struct ob_err *err)
{
    bool there = false;
    enum ob_status st = ob_mongo_schema_has(k->a->client, k->a->conf->database, s, &there, err);
    if (st != OB_OK || there)
        return st;
    (*missing)++;
    if (s->index)
        name_index(s, &k->what);
    else
        ob_buf_printf(&k->what, "collection %s is not there, or its validator is another", s->on);
    ob_mongo_schema_text(s, &k->fix);
    ob_mongo_check_tell(k, false);
    return OB_OK;
}

/* A collection of its owner: what each query of ours goes by. */
static enum ob_status check_mapped(struct mongo_checking *k, unsigned *missing, struct ob_err *err)
{
    const struct mongo_model *m = k->a->model;
    const char *status = m->f[OB_MAP_STATUS];
    const char *keys[][2] = {{status, m->f[OB_MAP_CREATED]},
                             {m->f[OB_MAP_DONE_AT] ? status : NULL, m->f[OB_MAP_DONE_AT]},
                             {m->f[OB_MAP_LOCKED_UNTIL], NULL},
                             {m->f[OB_MAP_ID], NULL},
                             {m->entity, m->order}};
    struct mongo_statement coll = {.on = m->events, .args = BCON_NEW("0", BCON_UTF8(m->events))};
    enum ob_status st = check_statement(k, &coll, missing, err);
    bson_destroy(coll.args);
    for (size_t i = 0; st == OB_OK && *missing == 0 && i < 5; i++) {
        struct mongo_statement s = {.index = true, .on = m->events};
        bson_t key;
        if (!keys[i][0] || strcmp(keys[i][0], "_id") == 0)
            continue;
        s.args = bson_new();
        BSON_APPEND_DOCUMENT_BEGIN(s.args, "0", &key);
        BSON_APPEND_INT32(&key, keys[i][0], 1);
        if (keys[i][1])
            BSON_APPEND_INT32(&key, keys[i][1], 1);
        bson_append_document_end(s.args, &key);
        unsigned one = 0;
        st = check_statement(k, &s, &one, err);
        bson_destroy(s.args);
    }
    return st;
}

/* Does one of the entities that were published last have many documents? */
static enum ob_status many_of_one(struct mongo_checking *k, bool *many, struct ob_err *err)
{
    const struct mongo_model *m = k->a->model;
    mongoc_collection_t *coll = ob_mongo_admin_coll(k->a, m->events);
    bson_t *filter = BCON_NEW(m->f[OB_MAP_STATUS], BCON_UTF8(m->done)),
           *opts = BCON_NEW("sort", "{", m->f[OB_MAP_CREATED], BCON_INT32(-1), "}", "limit",
                            BCON_INT64(ENTITIES), "projection", "{", m->entity, BCON_INT32(1), "}"),
           *most = BCON_NEW("limit", BCON_INT64(MANY));
    bson_t one[ENTITIES];
    size_t n = 0;
    const bson_t *doc;
    bson_error_t e;
    bson_iter_t it, at;
    mongoc_cursor_t *c = mongoc_collection_find_with_opts(coll, filter, opts, NULL);
    while (n < ENTITIES && mongoc_cursor_next(c, &doc))
        if (bson_iter_init(&it, doc) && bson_iter_find_descendant(&it, m->entity, &at)) {
            bson_init(&one[n]);
            bson_append_iter(&one[n++], m->entity, -1, &at);
        }
    enum ob_status st = ob_mongo_cursor_end(c, "entities", err);
    for (size_t i = 0; i < n; i++) {
        int64_t found = st == OB_OK && !*many
                            ? mongoc_collection_count_documents(coll, &one[i], most, NULL, NULL, &e)
                            : 0;
        if (found < 0)
            st = ob_mongo_fail(err, "entities", &e, NULL);
        *many = *many || found >= MANY;
        bson_destroy(&one[i]);
    }
    bson_destroy(filter);
    bson_destroy(opts);
    bson_destroy(most);
    mongoc_collection_destroy(coll);
    return st;
}

/* With the status in the index the server need not read what an entity has published. */
static enum ob_status check_entities(struct mongo_checking *k, struct ob_err *err)
{
    const struct mongo_model *m = k->a->model;
    struct mongo_statement s = {.index = true, .on = m->events};
    bool many = false, there = false;
    if (!m->entity || strcmp(m->entity, "_id") == 0)
        return OB_OK;
    s.args = BCON_NEW("0", "{", m->entity, BCON_INT32(1), m->order, BCON_INT32(1),
                      m->f[OB_MAP_STATUS], BCON_INT32(1), "}");
    enum ob_status st = ob_mongo_schema_has(k->a->client, k->a->conf->database, &s, &there, err);
    if (st == OB_OK && !there)
        st = many_of_one(k, &many, err);
    if (st == OB_OK && many) {
        ob_buf_printf(&k->what,
                      "entities of %s have %d documents or more, and every look at one reads all "
                      "that it has published",
                      m->events, MANY);
        ob_mongo_schema_text(&s, &k->fix);
        ob_buf_printf(&k->fix, " // and drop the index of %s and %s alone: this one serves for it",
                      m->entity, m->order);
        ob_mongo_check_tell(k, false);
    }
    bson_destroy(s.args);
    return st;
}

static enum ob_status check_collections(struct mongo_checking *k, struct ob_err *err)
{
    const struct mongo_model *m = k->a->model;
    struct mongo_schema s;
    unsigned missing = 0, side = 0;
    enum ob_status st =
        ob_mongo_schema_read(ob_mongo_schema_native(), ob_mongo_schema_own, m->events, &s, err);
    if (st != OB_OK)
        return st;
    if (!m->native)
        st = check_mapped(k, &missing, err);
    if (st == OB_OK && !m->native && missing == 0)
        st = check_entities(k, err);
    for (size_t i = 0; st == OB_OK && i < s.n; i++) {
        bool events = strcmp(s.at[i].own, ob_mongo_schema_own) == 0;
        if (strcmp(s.at[i].own, "outbox_events_keys") != 0 && (m->native || !events))
            st = check_statement(k, &s.at[i], &side, err);
    }
    if (st == OB_OK && missing + side == 0) {
        ob_buf_printf(&k->what, "collection %s and those beside it are there, with their indexes",
                      m->events);
        ob_mongo_check_tell(k, true);
    }
    ob_mongo_schema_clear(&s);
    return st;
}

/* ---- workers ---- */

static const char *text_in(const bson_t *doc, const char *field)
{
    bson_iter_t it;
    return bson_iter_init_find(&it, doc, field) && BSON_ITER_HOLDS_UTF8(&it)
               ? bson_iter_utf8(&it, NULL)
               : "";
}

/* Who said that it works and has gone silent. */
static enum ob_status check_worker(struct mongo_checking *k, struct ob_err *err)
{
    const struct mongo_model *m = k->a->model;
    mongoc_collection_t *coll = ob_mongo_admin_coll(k->a, m->lease);
    bson_t *pipe = ob_mongo_bson(
        "{\"pipeline\":[{\"$match\":{\"_id\":\"lease\",\"state\":{\"$nin\":[null,\"stopped\"]},"
        "\"$expr\":{\"$lt\":[\"$until\",\"$$NOW\"]}}},{\"$set\":{\"age\":{\"$subtract\":[\"$$NOW\","
        "\"$until\"]}}}]}");
    const bson_t *doc;
    mongoc_cursor_t *c = mongoc_collection_aggregate(coll, MONGOC_QUERY_NONE, pipe, NULL, NULL);
    if (mongoc_cursor_next(c, &doc)) {
        ob_buf_printf(&k->what,
                      "worker %.100s (pipeline %.100s) of collection %s has been silent since its "
                      "lease ran out %" PRId64 " s ago, and nobody took over",
                      text_in(doc, "owner"), text_in(doc, "pipeline"), m->events,
                      ob_mongo_i64(doc, "age", 0) / 1000);
        ob_buf_printf(&k->fix, "outbox run -p %s", k->a->pipeline);
        ob_mongo_check_tell(k, false);
    }
    enum ob_status st = ob_mongo_cursor_end(c, "the lease", err);
    bson_destroy(pipe);
    mongoc_collection_destroy(coll);
    return st;
}

/* Documents that nobody will let go: locked for much longer than a lock lasts. */
static enum ob_status check_locks(struct mongo_checking *k, struct ob_err *err)
{
    const struct mongo_model *m = k->a->model;
    const char *until = m->f[OB_MAP_LOCKED_UNTIL];
    mongoc_collection_t *coll = ob_mongo_admin_coll(k->a, m->events);
    int64_t limit = ob_clock_wall_us(k->a->clock) / 1000 + 10 * m->conf->lease_ms + 60000;
    bson_t *filter = BCON_NEW(m->f[OB_MAP_STATUS], BCON_UTF8(m->claimed), until, "{", "$gt",
                              BCON_DATE_TIME(limit), "}"),
           *opts = BCON_NEW("limit", BCON_INT64(10001));
    bson_error_t e;
    enum ob_status st = OB_OK;
    int64_t n = mongoc_collection_count_documents(coll, filter, opts, NULL, NULL, &e);
    if (n < 0) {
        st = ob_mongo_fail(err, "locks", &e, NULL);
    } else if (n > 0) {
        ob_buf_printf(&k->what,
                      "%" PRId64 "%s documents of %s are locked for longer than a lock "
                      "lasts: the clock of who did so is wrong",
                      n > 10000 ? 10000 : n, n > 10000 ? " or more" : "", m->events);
        ob_buf_printf(&k->fix,
                      "db.getCollection(\"%s\").updateMany({\"%s\": \"%s\", \"%s\": {\"$gt\": new "
                      "Date(%" PRId64 ")}}, {\"$set\": {\"%s\": new Date(0)}});",
                      m->events, m->f[OB_MAP_STATUS], m->claimed, until, limit, until);
        ob_mongo_check_tell(k, false);
    }
    bson_destroy(filter);
    bson_destroy(opts);
    mongoc_collection_destroy(coll);
    return st;
}

enum ob_status ob_mongo_check(struct ob_admin *a,
                              void (*found)(void *user, bool ok, const char *what, const char *fix),
                              void *user, struct ob_err *err)
{
    struct mongo_checking k = {.a = a, .found = found, .user = user};
    enum ob_status st = OB_OK;
    ob_buf_init(&k.what, 65536);
    ob_buf_init(&k.fix, 65536);
    check_tls(&k);
    if (check_server(&k) && ob_mongo_check_user(&k)) {
        check_clock(&k);
        check_default(&k);
        check_uri(&k);
        if (ob_mongo_check_rights(&k)) {
            check_snapshot(&k);
            st = check_collections(&k, err);
            if (st == OB_OK)
                st = check_worker(&k, err);
            if (st == OB_OK)
                st = check_locks(&k, err);
        }
    }
    ob_buf_clear(&k.what);
    ob_buf_clear(&k.fix);
    return st;
}
