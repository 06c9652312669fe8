/* SPDX-License-Identifier: Apache-2.0 */
/* mongo_doc - an event as a new document of an outbox collection. */
#include "event/mongo_doc.h"

#include "core/jscan.h"
#include "core/uuid.h"
#include "event/bson_write.h"
#include "event/mongo_native.h"

#include <stdio.h>

static const char *sc_pending[] = {"pending"};

/* The fields of profiles/sc.yaml, in the order in which the sc services write them. */
static const struct ob_mapping sc = {
    .table = "outbox",
    .col = {[OB_MAP_ID] = "event_id",
            [OB_MAP_TYPE] = "event_type",
            [OB_MAP_AGGREGATE_TYPE] = "entity_type",
            [OB_MAP_AGGREGATE_ID] = "entity_id",
            [OB_MAP_ENTITY_VERSION] = "entity_version",
            [OB_MAP_TOPIC] = "topic",
            [OB_MAP_KEY] = "partition_key",
            [OB_MAP_PAYLOAD] = "payload",
            [OB_MAP_STATUS] = "status",
            [OB_MAP_ATTEMPTS] = "retry_count",
            [OB_MAP_MAX_ATTEMPTS] = "max_retries",
            [OB_MAP_ERROR] = "last_error",
            [OB_MAP_ERROR_AT] = "last_error_at",
            [OB_MAP_CREATED] = "created_at",
            [OB_MAP_CLAIMED_AT] = "processing_started_at",
            [OB_MAP_DONE_AT] = "published_at",
            [OB_MAP_LOCKED_BY] = "locked_by",
            [OB_MAP_LOCKED_UNTIL] = "locked_until"},
    .pending = {.values = sc_pending, .n = 1},
    .dead_attempts = 5,
    .topic_prefix = "sc.domain.",
};

const struct ob_mongo_shape ob_mongo_shape_native = {.map = &ob_mongo_native, .native = true};
const struct ob_mongo_shape ob_mongo_shape_sc = {
    .map = &sc, .document = true, .nulls = true, .strict = true};

/* One document on its way. */
struct making {
    const struct ob_mongo_shape *shape;
    const struct ob_row *row;
    struct ob_bson_writer w;
    enum ob_status st;
    struct ob_err *err;
};

static struct ob_str name_of(const struct making *k, enum ob_map_role role)
{
    struct ob_str name = ob_str_c(k->shape->map->col[role]);

    if (name.n && name.p[name.n - 1] == '?') /* may be missing: a document takes it */
        name.n--;
    return name;
}

enum ob_status ob_mongo_shape_check(const struct ob_mongo_shape *shape, struct ob_err *err)
{
    static const enum ob_map_role needed[] = {OB_MAP_ID, OB_MAP_TYPE, OB_MAP_PAYLOAD, OB_MAP_STATUS,
                                              OB_MAP_CREATED};

    for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]); i++)
        if (ob_str_c(shape->map->col[needed[i]]).n == 0)
            return ob_err_set(err, OB_REJECT, "documents need a field for %s",
                              ob_map_role_name(needed[i]));
    for (int role = 0; role < OB_MAP_N; role++) {
        const char *name = shape->map->col[role];
        if (name && (name[0] == '$' || strchr(name, '.')))
            return ob_err_set(err, OB_REJECT,
                              "%s: '%.64s' stands inside another field: it can be read and not "
                              "written",
                              ob_map_role_name((enum ob_map_role)role), name);
    }
    return shape->map->pending.n == 0 ? ob_err_set(err, OB_REJECT, "no status of a new document")
                                      : OB_OK;
}

struct ob_str ob_mongo_key(const struct ob_row *row)
{
    return row->key.n ? row->key : row->aggregate_id;
}

static void fail(struct making *k, const char *what, const char *why)
{
    if (k->st == OB_OK)
        k->st = ob_err_set(k->err, OB_REJECT, "%s %s", what, why);
}

/* A value that the event has; refused where there is no field for it. context: nobody but a context
 * gave it. */
static bool wanted(struct making *k, enum ob_map_role role, bool has, bool context)
{
    if (!has || k->st != OB_OK)
        return false;
    if (name_of(k, role).n)
        return true;
    if (!context)
        fail(k, ob_map_role_name(role), "has no field in the documents of this collection");
    return false;
}

static void text(struct making *k, enum ob_map_role role, struct ob_str v, bool context)
{
    if (!wanted(k, role, v.n > 0, context))
        return;
    if (!ob_utf8_valid(v))
        fail(k, ob_map_role_name(role), "is not UTF-8");
    else
        ob_bsonw_text(&k->w, name_of(k, role), v);
}

static void number(struct making *k, enum ob_map_role role, int64_t v, bool has)
{
    if (wanted(k, role, has, false))
        ob_bsonw_int(&k->w, name_of(k, role), v);
}

/* As a document. */
static void object(struct making *k, enum ob_map_role role, struct ob_str json, bool context)
{
    if (wanted(k, role, json.n > 0, context)) {
        k->st = ob_bsonw_json(&k->w, name_of(k, role), json, k->err);
        if (k->st != OB_OK)
            ob_err_prefix(k->err, "%s", ob_map_role_name(role));
    }
}

/* Text is a string where a document can have it so, else bytes. */
static void verbatim(struct making *k, struct ob_str name, bool bytes)
{
    if (bytes || !ob_utf8_valid(k->row->payload))
        ob_bsonw_bytes(&k->w, name, k->row->payload);
    else
        ob_bsonw_text(&k->w, name, k->row->payload);
}

static void payload(struct making *k)
{
    const struct ob_row *r = k->row;
    struct ob_str name = name_of(k, OB_MAP_PAYLOAD);
    const char *kind = NULL;

    if (k->st != OB_OK)
        return;
    if (r->payload_kind == OB_PAYLOAD_NULL) {
        ob_bsonw_null(&k->w, name);
    } else if (r->bson) {
        ob_bsonw_raw(&k->w, name, OB_BSON_DOCUMENT, r->payload);
    } else if (r->payload_kind == OB_PAYLOAD_JSON && k->shape->document) {
        k->st = ob_bsonw_json(&k->w, name, r->payload, k->err);
        if (k->st != OB_OK)
            ob_err_prefix(k->err, "payload");
    } else {
        verbatim(k, name, r->payload_kind == OB_PAYLOAD_BYTES);
        kind = r->payload_kind == OB_PAYLOAD_JSON   ? "json"
               : r->payload_kind == OB_PAYLOAD_TEXT ? "text"
                                                    : "bytes";
    }
    if (kind && k->shape->native)
        ob_bsonw_text(&k->w, OB_STR("payload_kind"), ob_str_c(kind));
}

static void topic(struct making *k)
{
    char made[256];
    const struct ob_row *r = k->row;
    const char *prefix = k->shape->map->topic_prefix;

    if (r->topic.n || !prefix || !*prefix) {
        text(k, OB_MAP_TOPIC, r->topic, false);
        return;
    }
    if (r->aggregate_type.n == 0 || r->aggregate_type.n + strlen(prefix) >= sizeof(made)) {
        fail(k, "topic", "is made of the aggregate's type: the event needs one, or a topic");
        return;
    }
    snprintf(made, sizeof(made), "%s%.*s", prefix, (int)r->aggregate_type.n, r->aggregate_type.p);
    text(k, OB_MAP_TOPIC, ob_str_c(made), false);
}

static void nulls(struct making *k, const enum ob_map_role *roles, size_t n)
{
    for (size_t i = 0; k->shape->nulls && i < n; i++)
        if (name_of(k, roles[i]).n)
            ob_bsonw_null(&k->w, name_of(k, roles[i]));
}

/* How a new document starts. */
static void state(struct making *k, int64_t now_ms)
{
    static const enum ob_map_role error[] = {OB_MAP_ERROR, OB_MAP_ERROR_AT};
    static const enum ob_map_role later[] = {OB_MAP_CLAIMED_AT, OB_MAP_DONE_AT, OB_MAP_LOCKED_BY,
                                             OB_MAP_LOCKED_UNTIL};
    const struct ob_mapping *map = k->shape->map;
    int64_t max = k->row->max_attempts ? (int64_t)k->row->max_attempts : map->dead_attempts;

    ob_bsonw_text(&k->w, name_of(k, OB_MAP_STATUS), ob_str_c(map->pending.values[0]));
    if (name_of(k, OB_MAP_ATTEMPTS).n)
        ob_bsonw_int(&k->w, name_of(k, OB_MAP_ATTEMPTS), 0);
    number(k, OB_MAP_MAX_ATTEMPTS, max, k->row->max_attempts || (k->shape->nulls && max));
    nulls(k, error, sizeof(error) / sizeof(error[0]));
    ob_bsonw_date(&k->w, name_of(k, OB_MAP_CREATED), now_ms);
    nulls(k, later, sizeof(later) / sizeof(later[0]));
}

static void needs(struct making *k)
{
    if (!k->shape->strict)
        return;
    if (k->row->aggregate_id.n == 0)
        fail(k, "aggregate_id", "is needed: order is kept for it");
    if (k->row->entity_version == OB_NO_VERSION)
        fail(k, "entity_version", "is needed: order and what consumers skip go by it");
}

static void fields(struct making *k, const char *id, int64_t now_ms)
{
    const struct ob_row *r = k->row;

    ob_bsonw_open(&k->w, (struct ob_str){0}, false);
    ob_bsonw_text(&k->w, name_of(k, OB_MAP_ID), ob_str_c(id));
    if (k->shape->native) /* the server puts its clock here */
        ob_bsonw_timestamp(&k->w, name_of(k, OB_MAP_ORDER), 0, 0);
    text(k, OB_MAP_TYPE, r->type, false);
    text(k, OB_MAP_AGGREGATE_TYPE, r->aggregate_type, false);
    text(k, OB_MAP_AGGREGATE_ID, r->aggregate_id, false);
    number(k, OB_MAP_ENTITY_VERSION, r->entity_version, r->entity_version != OB_NO_VERSION);
    number(k, OB_MAP_SCHEMA_VERSION, r->schema_version, r->schema_version != OB_NO_VERSION);
    topic(k);
    if (r->key.n || name_of(k, OB_MAP_KEY).n) /* where there is a field it is always filled */
        text(k, OB_MAP_KEY, ob_mongo_key(r), false);
    text(k, OB_MAP_TENANT, r->tenant, r->tenant_of_context);
    payload(k);
    object(k, OB_MAP_HEADERS, r->headers, false);
    object(k, OB_MAP_METADATA, r->metadata, r->metadata_of_context);
    if (k->st == OB_OK)
        state(k, now_ms);
    ob_bsonw_close(&k->w);
}

enum ob_status ob_mongo_doc(const struct ob_mongo_shape *shape, const struct ob_row *row,
                            int64_t now_ms, struct ob_buf *out, char id[64], struct ob_err *err)
{
    struct making k = {.shape = shape, .row = row, .err = err};
    size_t start = out->n;

    k.st = ob_row_check_bson(row, err);
    if (k.st != OB_OK)
        return k.st;
    if (row->id.n && !ob_utf8_valid(row->id))
        return ob_err_set(err, OB_REJECT, "id is not UTF-8");
    if (row->id.n)
        snprintf(id, 64, "%.*s", (int)row->id.n, row->id.p);
    else
        ob_uuid7_text(id);
    ob_bsonw_init(&k.w, out);
    needs(&k);
    if (k.st == OB_OK)
        fields(&k, id, now_ms);
    if (k.st == OB_OK && (out->failed || out->n - start > OB_MONGO_DOC_MAX))
        k.st = ob_err_set(err, OB_REJECT, "the event is larger than the 16 MiB of a document");
    if (k.st != OB_OK && !out->failed)
        out->n = start;
    return k.st;
}
