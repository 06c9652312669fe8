/* SPDX-License-Identifier: Apache-2.0 */
/* check_rights - what the user of the relay may do, as the server itself tells it. */
#include "source/mongodb/check.h"

static bool has_action(const bson_iter_t *privilege, const char *action)
{
    bson_iter_t it, in;
    if (!bson_iter_recurse(privilege, &it) || !bson_iter_find(&it, "actions") ||
        !bson_iter_recurse(&it, &in))
        return false;
    while (bson_iter_next(&in))
        if (BSON_ITER_HOLDS_UTF8(&in) && (strcmp(bson_iter_utf8(&in, NULL), action) == 0 ||
                                          strcmp(bson_iter_utf8(&in, NULL), "anyAction") == 0))
            return true;
    return false;
}

static bool names(const bson_iter_t *resource, const char *field, const char *want)
{
    bson_iter_t it;
    return bson_iter_recurse(resource, &it) && bson_iter_find(&it, field) &&
           BSON_ITER_HOLDS_UTF8(&it) &&
           (*bson_iter_utf8(&it, NULL) == 0 || strcmp(bson_iter_utf8(&it, NULL), want) == 0);
}

static bool covers(const bson_iter_t *privilege, const char *database, const char *coll)
{
    bson_iter_t it, any;
    if (!bson_iter_recurse(privilege, &it) || !bson_iter_find(&it, "resource"))
        return false;
    if (bson_iter_recurse(&it, &any) && bson_iter_find(&any, "anyResource"))
        return true;
    return names(&it, "db", database) && names(&it, "collection", coll);
}

static bool may(const bson_t *status, const char *database, const char *coll, const char *action)
{
    bson_iter_t it, at, list;
    if (!bson_iter_init(&it, status) ||
        !bson_iter_find_descendant(&it, "authInfo.authenticatedUserPrivileges", &at) ||
        !bson_iter_recurse(&at, &list))
        return true;
    while (bson_iter_next(&list))
        if (has_action(&list, action) && covers(&list, database, coll))
            return true;
    return false;
}

/* A privilege on the whole deployment. */
static bool may_cluster(const bson_t *status, const char *action)
{
    bson_iter_t it, at, list, field, any;
    if (!bson_iter_init(&it, status) ||
        !bson_iter_find_descendant(&it, "authInfo.authenticatedUserPrivileges", &at) ||
        !bson_iter_recurse(&at, &list))
        return true;
    while (bson_iter_next(&list))
        if (has_action(&list, action) && bson_iter_recurse(&list, &field) &&
            bson_iter_find(&field, "resource") && bson_iter_recurse(&field, &any) &&
            bson_iter_next(&any) &&
            (strcmp(bson_iter_key(&any), "cluster") == 0 ||
             strcmp(bson_iter_key(&any), "anyResource") == 0))
            return true;
    return false;
}

/* {user, db} of the first; false: nobody is logged in. */
static bool who(const bson_t *status, const char **user, const char **db)
{
    bson_iter_t it, at, list, one;
    *user = *db = "";
    if (!bson_iter_init(&it, status) ||
        !bson_iter_find_descendant(&it, "authInfo.authenticatedUsers", &at) ||
        !bson_iter_recurse(&at, &list) || !bson_iter_next(&list) || !bson_iter_recurse(&list, &one))
        return false;
    while (bson_iter_next(&one)) {
        if (strcmp(bson_iter_key(&one), "user") == 0 && BSON_ITER_HOLDS_UTF8(&one))
            *user = bson_iter_utf8(&one, NULL);
        else if (strcmp(bson_iter_key(&one), "db") == 0 && BSON_ITER_HOLDS_UTF8(&one))
            *db = bson_iter_utf8(&one, NULL);
    }
    return true;
}

bool ob_mongo_check_user(struct mongo_checking *k)
{
    bson_t reply;
    bson_error_t e;
    bool ok = ob_mongo_check_ask(
        k, k->a->conf->database,
        BCON_NEW("listCollections", BCON_INT32(1), "nameOnly", BCON_BOOL(true)), &reply, &e);
    bool known = ok || !strstr(e.message, "requires authentication");
    if (!known) {
        ob_buf_c(&k->what, e.message);
        ob_buf_c(&k->fix, "put a user into the uri: mongodb://USER:PASSWORD@HOST/");
        ob_mongo_check_tell(k, false);
    }
    bson_destroy(&reply);
    return known;
}

/* A worker that is killed inside a transaction is followed within its lease only if its session can
 * be ended: by the same user, or with a privilege. */
static void check_sessions(struct mongo_checking *k, const bson_t *status, const char *user,
                           const char *db)
{
    const struct mongo_model *m = k->a->model;
    mongoc_collection_t *coll = ob_mongo_admin_coll(k->a, m->lease);
    bson_t *filter = BCON_NEW("_id", BCON_UTF8("lease"));
    bson_iter_t it, at;
    const bson_t *doc;
    char *own = bson_strdup_printf("%s@%s", user, db);
    mongoc_cursor_t *c = mongoc_collection_find_with_opts(coll, filter, NULL, NULL);
    if (mongoc_cursor_next(c, &doc) && bson_iter_init(&it, doc) &&
        bson_iter_find_descendant(&it, "session.user", &at) && BSON_ITER_HOLDS_UTF8(&at) &&
        strcmp(bson_iter_utf8(&at, NULL), own) != 0 && !may_cluster(status, "killAnySession")) {
        ob_buf_printf(&k->what,
                      "the worker of collection %s is user %.100s, and user %s may not end its "
                      "sessions: if it is killed inside a transaction, a take-over waits until the "
                      "server ends that (transactionLifetimeLimitSeconds, 60 s)",
                      m->events, bson_iter_utf8(&at, NULL), own);
        ob_buf_printf(&k->fix,
                      "db.adminCommand({\"createRole\": \"outboxTakeOver\", \"privileges\": "
                      "[{\"resource\": {\"cluster\": true}, \"actions\": [\"killAnySession\"]}], "
                      "\"roles\": []}); "
                      "db.getSiblingDB(\"%s\").grantRolesToUser(\"%s\", [{\"role\": "
                      "\"outboxTakeOver\", \"db\": \"admin\"}]); // or run all relays of the "
                      "collection as one user",
                      db, user);
        ob_mongo_check_tell(k, false);
    }
    mongoc_cursor_destroy(c);
    bson_free(own);
    bson_destroy(filter);
    mongoc_collection_destroy(coll);
}

bool ob_mongo_check_rights(struct mongo_checking *k)
{
    const struct mongo_model *m = k->a->model;
    const struct {
        const char *coll;
        const char *actions[6];
    } needed[] = {
        {m->events, {"find", "update", "changeStream", "listIndexes"}},
        {m->lease, {"find", "insert", "update"}},
        {m->parked, {"find", "insert", "update", "remove"}},
        {m->held, {"find", "insert", "update", "remove"}},
        {m->dead, {"find", "insert", "update"}},
    };
    const char *user, *db, *base = k->a->conf->database;
    bson_t reply;
    bson_error_t e;
    bool all = true, reads = true;
    bool ok = ob_mongo_check_ask(
        k, "admin", BCON_NEW("connectionStatus", BCON_INT32(1), "showPrivileges", BCON_BOOL(true)),
        &reply, &e);
    if (ok && who(&reply, &user, &db)) {
        for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]); i++) {
            struct ob_buf *what = &k->what;
            size_t n = 0;
            for (size_t j = 0; needed[i].actions[j]; j++) {
                const char *action = needed[i].actions[j];
                bool missing = (k->a->conf->change_stream || strcmp(action, "changeStream") != 0) &&
                               !may(&reply, base, needed[i].coll, action);
                if (!missing)
                    continue;
                reads = reads && strcmp(action, "find") != 0 && strcmp(action, "listIndexes") != 0;
                if (n++ == 0)
                    ob_buf_printf(what, "user %s may not %s", user, action);
                else
                    ob_buf_printf(what, ", %s", action);
            }
            if (n == 0)
                continue;
            all = false;
            ob_buf_printf(what, " %s.%s", base, needed[i].coll);
            ob_buf_printf(&k->fix,
                          "db.getSiblingDB(\"%s\").grantRolesToUser(\"%s\", [{\"role\": "
                          "\"readWrite\", \"db\": \"%s\"}]);",
                          db, user, base);
            ob_mongo_check_tell(k, false);
        }
        if (all) {
            ob_buf_printf(&k->what, "user %s has the rights that the relay needs", user);
            ob_mongo_check_tell(k, true);
        }
        if (reads)
            check_sessions(k, &reply, user, db);
    }
    bson_destroy(&reply);
    return reads;
}
