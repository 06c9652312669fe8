/* SPDX-License-Identifier: Apache-2.0 */
/* mongodb_target - the session that a producer brings, what its server's answers mean, and the
 * collection that is written. */
#include "produce/mongodb.h"

#include "event/mongo_native.h"

/* By the server's code. */
static const struct {
    uint32_t code;
    enum ob_status status;
    const char *more;
} meanings[] = {
    {11000, OB_REJECT, ""}, /* duplicate key */
    {121, OB_REJECT, ""},   /* a validator */
    {2, OB_REJECT, ""},     /* bad value */
    {9, OB_REJECT, ""},     /* failed to parse */
    {14, OB_REJECT, ""},    /* type mismatch */
    {15, OB_REJECT, ""},    /* overflow */
    {52, OB_REJECT, ""},    /* a name with a dollar */
    {56, OB_REJECT, ""},    /* an empty name */
    {57, OB_REJECT, ""},    /* a name with a dot */
    {263, OB_REJECT, ""},   /* not inside a transaction */
    {10334, OB_REJECT, ""}, /* too large */
    {17280, OB_REJECT, ""}, /* a key too long for its index */
    {112, OB_RETRY, ""},    /* write conflict */
    {24, OB_RETRY, ""},     /* lock time-out */
    {50, OB_RETRY, ""},     /* time-out of an operation */
    {246, OB_RETRY, ""},    /* the snapshot is not to be had */
    {251, OB_RETRY, ""},    /* no such transaction: the server has aborted it */
    {290, OB_RETRY, ""},    /* the transaction is older than its limit */
    {20, OB_FATAL, "; transactions need a replica set: one node is enough to be one"},
    {13, OB_FATAL, "; who writes events needs readWrite on the database"},
    {18, OB_FATAL, ""},   /* authentication failed */
    {8000, OB_FATAL, ""}, /* and so it says elsewhere */
    {6, OB_DOWN, ""},     /* host unreachable */
    {7, OB_DOWN, ""},     /* host not found */
    {89, OB_DOWN, ""},    /* network time-out */
    {91, OB_DOWN, ""},    /* shutdown in progress */
    {189, OB_DOWN, ""},   /* the primary stepped down */
    {262, OB_DOWN, ""},   /* exceeded time limit */
    {9001, OB_DOWN, ""},  /* socket */
    {10058, OB_DOWN, ""}, /* not primary, of old */
    {10107, OB_DOWN, ""}, /* not writable primary */
    {11600, OB_DOWN, ""}, /* interrupted at shutdown */
    {11602, OB_DOWN, ""}, /* interrupted: the state of the replica set changed */
    {13435, OB_DOWN, ""}, /* not primary, no secondary reads */
    {13436, OB_DOWN, ""}, /* not primary or secondary */
};

static bool labelled(const bson_t *reply, const char *label)
{
    return reply && mongoc_error_has_label(reply, label);
}

/* One line, without the values of a document that a duplicate key is told with. */
static enum ob_status tell(const bson_error_t *e, enum ob_status st, const char *more,
                           struct ob_err *err)
{
    char text[sizeof(e->message)];
    char *values;

    snprintf(text, sizeof(text), "%s", e->message);
    text[strcspn(text, "\n")] = '\0';
    values = strstr(text, " dup key: ");
    if (values)
        *values = '\0';
    return ob_err_set(err, st, "%s (code %u)%s", text[0] ? text : "it failed", e->code, more);
}

/* Labels come first: they say what the server knows of the whole transaction. */
enum ob_status ob_produce_mongo_meaning(const bson_error_t *e, const bson_t *reply,
                                        struct ob_err *err)
{
    if (labelled(reply, "TransientTransactionError"))
        return tell(e, OB_RETRY, "", err);
    if (labelled(reply, "UnknownTransactionCommitResult"))
        return tell(e, OB_DOWN, "", err);
    switch (e->domain) {
    case MONGOC_ERROR_STREAM:
    case MONGOC_ERROR_SERVER_SELECTION:
        return tell(e, OB_DOWN, "", err);
    case MONGOC_ERROR_BSON:
    case MONGOC_ERROR_TRANSACTION:
        return tell(e, OB_REJECT, "", err);
    default:
        break;
    }
    for (size_t i = 0; i < sizeof(meanings) / sizeof(meanings[0]); i++)
        if (meanings[i].code == e->code)
            return tell(e, meanings[i].status, meanings[i].more, err);
    return tell(e, OB_FATAL, "", err);
}

enum outbox_status outbox_mongo_result(const bson_error_t *error, const bson_t *reply,
                                       struct outbox_error *err)
{
    struct ob_err why = {.text = ""};

    return ob_produce_give(ob_produce_mongo_meaning(error, reply, &why), &why, err);
}

bool ob_produce_mongo_started(const mongoc_client_session_t *session)
{
    switch (mongoc_client_session_get_transaction_state(session)) {
    case MONGOC_TRANSACTION_STARTING:
    case MONGOC_TRANSACTION_IN_PROGRESS:
        return true;
    default:
        return false;
    }
}

enum ob_status ob_produce_mongo_ready(const mongoc_client_session_t *session, struct ob_err *err)
{
    if (!session)
        return ob_err_set(err, OB_REJECT, "there is no session");
    if (!ob_produce_mongo_started(session))
        return ob_err_set(err, OB_REJECT,
                          "no transaction is started: start one on the session, so that the event "
                          "is committed together with the change that it tells of");
    return OB_OK;
}

enum ob_status ob_produce_mongo_collection(const mongoc_client_session_t *session,
                                           const struct outbox_mongo_target *target,
                                           const char *suffix, mongoc_collection_t **out,
                                           struct ob_err *err)
{
    mongoc_client_t *client = mongoc_client_session_get_client(session);
    const char *database = target->database
                               ? target->database
                               : mongoc_uri_get_database(mongoc_client_get_uri(client));
    char name[256];

    if (!database || !*database)
        return ob_err_set(err, OB_REJECT,
                          "the client's URI names no database: open a target with one");
    snprintf(name, sizeof(name), "%s%s", target->collection, suffix);
    *out = mongoc_client_get_collection(client, database, name);
    return OB_OK;
}

/* ---- target ---- */

const struct outbox_mongo_target ob_produce_mongo_native = {
    .shape = {.map = &ob_mongo_native, .native = true}, .collection = OB_MONGO_NATIVE};

static enum ob_status keep(struct ob_arena *arena, const char *text, const char **out,
                           struct ob_err *err)
{
    *out = text ? ob_arena_copy(arena, ob_str_c(text)).p : NULL;
    return text && !*out ? ob_err_set(err, OB_DOWN, "no memory") : OB_OK;
}

static enum ob_status set_fields(const struct outbox_mongo_options *o,
                                 struct outbox_mongo_target *t, struct ob_err *err)
{
    enum ob_status st = OB_OK;

    for (size_t i = 0; i < o->n_fields && st == OB_OK; i++) {
        const char *field = o->fields[i].field ? o->fields[i].field : "";
        int role = 0;
        while (role < OB_MAP_N && strcmp(ob_map_role_name((enum ob_map_role)role), field) != 0)
            role++;
        if (role == OB_MAP_N)
            return ob_err_set(err, OB_REJECT, "an event has no field '%.64s'", field);
        st = keep(t->arena, o->fields[i].name, &t->map.col[role], err);
    }
    return st;
}

static enum ob_status set_pending(const char *pending, struct outbox_mongo_target *t,
                                  struct ob_err *err)
{
    const char **values = ob_arena_alloc(t->arena, sizeof(*values));

    if (!values)
        return ob_err_set(err, OB_DOWN, "no memory");
    t->map.pending.values = values;
    t->map.pending.n = 1;
    return keep(t->arena, pending, values, err);
}

static enum ob_status describe(const struct outbox_mongo_options *o, struct outbox_mongo_target *t,
                               struct ob_err *err)
{
    enum ob_status st;
    bool native = !o->profile;

    if (o->profile && strcmp(o->profile, "sc") != 0)
        return ob_err_set(err, OB_REJECT, "there is no profile '%.64s'; there is sc", o->profile);
    if (o->flags & ~(unsigned)(OUTBOX_MONGO_SERIALIZE | OUTBOX_MONGO_DOCUMENT))
        return ob_err_set(err, OB_REJECT, "flags %#x are not all known", o->flags);
    t->shape = native ? ob_mongo_shape_native : ob_mongo_shape_sc;
    t->map = *t->shape.map;
    t->shape.map = &t->map;
    t->shape.document = t->shape.document || (o->flags & OUTBOX_MONGO_DOCUMENT);
    t->serialize = o->flags & OUTBOX_MONGO_SERIALIZE;
    st = set_fields(o, t, err);
    if (st == OB_OK && o->pending)
        st = set_pending(o->pending, t, err);
    if (st == OB_OK)
        st = keep(t->arena, o->database, &t->database, err);
    if (st == OB_OK)
        st = keep(t->arena, o->collection ? o->collection : t->map.table, &t->collection, err);
    if (st == OB_OK && (!t->collection || !*t->collection || strlen(t->collection) > 200))
        st = ob_err_set(err, OB_REJECT, "a collection's name has 1 to 200 bytes");
    return st == OB_OK ? ob_mongo_shape_check(&t->shape, err) : st;
}

enum outbox_status outbox_mongo_target_open(const struct outbox_mongo_options *o,
                                            struct outbox_mongo_target **out,
                                            struct outbox_error *err)
{
    struct ob_err why = {.text = ""};
    struct ob_arena *arena = ob_arena_new(4096, (size_t)1 << 20);
    struct outbox_mongo_target *t = arena ? ob_arena_zalloc(arena, sizeof(*t)) : NULL;
    enum ob_status st = t ? OB_OK : ob_err_set(&why, OB_DOWN, "no memory");

    if (st == OB_OK) {
        t->arena = arena;
        st = describe(o, t, &why);
    }
    if (st == OB_OK)
        *out = t;
    else
        ob_arena_unref(arena);
    return ob_produce_give(st, &why, err);
}

void outbox_mongo_target_close(struct outbox_mongo_target *t)
{
    if (t)
        ob_arena_unref(t->arena);
}
