/* SPDX-License-Identifier: Apache-2.0 */
/* event - a document as an event. Nothing of the document is needed afterwards. */
#include "event/bson_json.h"
#include "source/mongodb/mongo.h"

#include <stdio.h>

#define FIELD_MAX ((size_t)64 << 20)

static void uuid_text(const uint8_t *p, struct ob_buf *out)
{
    for (int i = 0; i < 16; i++)
        ob_buf_printf(out, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", p[i]);
}

#define DATE_MAX (INT64_MAX / 4000) /* ms: times so far apart can still be subtracted in us */

/* A date may be farther away than microseconds can tell. */
static int64_t date_us(int64_t ms)
{
    if (ms > DATE_MAX || ms < -DATE_MAX)
        ms = ms < 0 ? -DATE_MAX : DATE_MAX;
    return ms * 1000;
}

static void date_text(int64_t ms, struct ob_buf *out)
{
    char text[OB_RFC3339_MAX];
    size_t n = ob_rfc3339(date_us(ms), text);
    ob_buf_put(out, text, n);
}

/* As one JSON value. False: it cannot be written. */
static bool value_json(const bson_value_t *v, enum ob_bson_form form, struct ob_buf *out)
{
    bson_t doc;
    struct ob_bson field;
    struct ob_err err;
    bson_init(&doc);
    BSON_APPEND_VALUE(&doc, "v", v);
    bool ok = ob_bson_find((struct ob_str){(const char *)bson_get_data(&doc), doc.len}, "v", &field,
                           &err) == OB_OK &&
              ob_bson_json_value(&field, form, out, &err) == OB_OK;
    bson_destroy(&doc);
    return ok;
}

void ob_mongo_text(const bson_value_t *v, struct ob_buf *out)
{
    char hex[25];
    switch (v->value_type) {
    case BSON_TYPE_UTF8:
        ob_buf_put(out, v->value.v_utf8.str, v->value.v_utf8.len);
        break;
    case BSON_TYPE_SYMBOL:
        ob_buf_put(out, v->value.v_symbol.symbol, v->value.v_symbol.len);
        break;
    case BSON_TYPE_OID:
        bson_oid_to_string(&v->value.v_oid, hex);
        ob_buf_c(out, hex);
        break;
    case BSON_TYPE_DATE_TIME:
        date_text(v->value.v_datetime, out);
        break;
    case BSON_TYPE_BINARY:
        if ((v->value.v_binary.subtype == BSON_SUBTYPE_UUID ||
             v->value.v_binary.subtype == BSON_SUBTYPE_UUID_DEPRECATED) &&
            v->value.v_binary.data_len == 16)
            uuid_text(v->value.v_binary.data, out);
        else
            ob_buf_put(out, v->value.v_binary.data, v->value.v_binary.data_len);
        break;
    case BSON_TYPE_NULL:
    case BSON_TYPE_UNDEFINED:
    case BSON_TYPE_EOD:
        break;
    default:
        if (!value_json(v, OB_BSON_PLAIN, out))
            out->failed = true;
    }
}

/* One event being made. */
struct making {
    const struct mongo_model *m;
    const bson_t *doc;
    struct ob_arena *arena;
    struct ob_buf text;
    enum ob_bson_form form; /* of the payload */
    bool failed;
    struct ob_event *ev;
};

static bool find(const struct making *k, enum ob_map_role role, bson_iter_t *it)
{
    bson_iter_t top;
    const char *name = k->m->f[role];
    if (!name || !bson_iter_init(&top, k->doc))
        return false;
    if (!strchr(name, '.'))
        return bson_iter_find(&top, name) && ((void)(*it = top), true);
    return bson_iter_find_descendant(&top, name, it);
}

static void fault(struct making *k, const char *why)
{
    k->ev->fault = ob_arena_copy(k->arena, ob_str_c(why));
    k->failed = k->failed || !k->ev->fault.p;
}

/* Of the field `name`. What cannot be written as text is the fault of its event, and of no other.
 */
static struct ob_str keep(struct making *k, const char *name)
{
    char why[200];
    if (k->text.failed) {
        snprintf(why, sizeof(why), "field '%.100s' cannot be written as text", name);
        fault(k, why);
        return (struct ob_str){0};
    }
    struct ob_str s = ob_arena_copy(k->arena, ob_buf_view(&k->text));
    k->failed = k->failed || !s.p;
    return s;
}

/* Of a value over its limit only the beginning is copied; its event is dead. */
static void keep_limited(struct making *k, const char *name, enum ob_limited column,
                         struct ob_str *out)
{
    size_t size = k->text.n, limit = ob_limit_of(&k->m->limits, column);
    if (k->text.failed || size <= limit) {
        *out = keep(k, name);
        return;
    }
    *out = ob_arena_copy(k->arena, (struct ob_str){k->text.p, OB_LIMIT_KEEP});
    k->failed =
        k->failed || !out->p || !ob_limits_check_size(&k->m->limits, k->ev, column, size, k->arena);
}

static void take_text(struct making *k, enum ob_map_role role, enum ob_limited column,
                      struct ob_str *out)
{
    bson_iter_t it;
    if (!find(k, role, &it))
        return;
    ob_buf_reset(&k->text);
    ob_mongo_text(bson_iter_value(&it), &k->text);
    if (k->text.n || k->text.failed)
        keep_limited(k, k->m->f[role], column, out);
}

static int64_t number_of(const struct making *k, enum ob_map_role role, int64_t otherwise)
{
    bson_iter_t it;
    if (!find(k, role, &it) || !BSON_ITER_HOLDS_NUMBER(&it))
        return otherwise;
    if (!BSON_ITER_HOLDS_DOUBLE(&it))
        return bson_iter_as_int64(&it);
    double v = bson_iter_double(&it); /* may be more than any integer, or none */
    return v >= 9e15 ? INT64_C(9000000000000000) : v > -9e15 ? (int64_t)v : otherwise;
}

/* A JSON object: a document, or text that is one. */
static void take_object(struct making *k, enum ob_map_role role, enum ob_limited column,
                        struct ob_str *out)
{
    bson_iter_t it;
    if (!find(k, role, &it) || BSON_ITER_HOLDS_NULL(&it))
        return;
    ob_buf_reset(&k->text);
    if (BSON_ITER_HOLDS_UTF8(&it))
        ob_mongo_text(bson_iter_value(&it), &k->text);
    else if (!value_json(bson_iter_value(&it), OB_BSON_PLAIN, &k->text)) {
        fault(k, "headers or metadata cannot be written as JSON");
        return;
    }
    keep_limited(k, k->m->f[role], column, out);
}

/* Of native documents: what their writer says; a string is JSON unless he does. */
static int native_kind(const struct making *k, bool text)
{
    bson_iter_t it;
    const char *kind = bson_iter_init_find(&it, k->doc, "payload_kind") && BSON_ITER_HOLDS_UTF8(&it)
                           ? bson_iter_utf8(&it, NULL)
                           : "";
    if (strcmp(kind, "text") == 0)
        return OB_MAP_PAYLOAD_TEXT;
    if (strcmp(kind, "bytes") == 0)
        return OB_MAP_PAYLOAD_BYTES;
    return strcmp(kind, "json") == 0 || text ? OB_MAP_PAYLOAD_JSON : OB_MAP_PAYLOAD_AUTO;
}

struct ob_str ob_mongo_raw(const bson_t *doc)
{
    const uint8_t *data = bson_get_data(doc);
    uint32_t n;
    memcpy(&n, data, sizeof(n));
    return (struct ob_str){(const char *)data, BSON_UINT32_FROM_LE(n)};
}

/* Without a copy where it stands at the top: it may have 16 MB. */
static bool payload_json(struct making *k, const bson_value_t *v)
{
    const char *name = k->m->f[OB_MAP_PAYLOAD];
    struct ob_bson field;
    struct ob_err err = {.text = ""};
    struct ob_str doc = ob_mongo_raw(k->doc);
    if (strchr(name, '.')) {
        if (value_json(v, k->form, &k->text))
            return true;
    } else if (ob_bson_find(doc, name, &field, &err) == OB_OK &&
               ob_bson_json_value(&field, k->form, &k->text, &err) == OB_OK) {
        return true;
    }
    char why[300];
    snprintf(why, sizeof(why), "the payload cannot be written as JSON: %.200s", err.text);
    fault(k, why);
    return false;
}

static void take_payload(struct making *k)
{
    static const enum ob_payload_kind kinds[] = {OB_PAYLOAD_TEXT, OB_PAYLOAD_JSON, OB_PAYLOAD_TEXT,
                                                 OB_PAYLOAD_BYTES};
    bson_iter_t it;
    int want = k->m->conf->payload_kind;
    if (!find(k, OB_MAP_PAYLOAD, &it) || BSON_ITER_HOLDS_NULL(&it)) {
        k->ev->payload_kind = OB_PAYLOAD_NULL;
        return;
    }
    const bson_value_t *v = bson_iter_value(&it);
    if (k->m->native)
        want = native_kind(k, v->value_type == BSON_TYPE_UTF8);
    ob_buf_reset(&k->text);
    if (v->value_type == BSON_TYPE_UTF8) { /* verbatim */
        ob_buf_put(&k->text, v->value.v_utf8.str, v->value.v_utf8.len);
        k->ev->payload_kind = kinds[want];
    } else if (v->value_type == BSON_TYPE_BINARY) {
        ob_buf_put(&k->text, v->value.v_binary.data, v->value.v_binary.data_len);
        k->ev->payload_kind = want == OB_MAP_PAYLOAD_AUTO ? OB_PAYLOAD_BYTES : kinds[want];
    } else {
        k->ev->payload_kind = OB_PAYLOAD_JSON;
        if (!payload_json(k, v)) {
            ob_buf_reset(&k->text);
            return;
        }
    }
    keep_limited(k, k->m->f[OB_MAP_PAYLOAD], OB_LIMITED_PAYLOAD, &k->ev->payload);
}

static enum ob_col_kind col_kind(bson_type_t type)
{
    switch (type) {
    case BSON_TYPE_NULL:
    case BSON_TYPE_UNDEFINED:
        return OB_COL_NULL;
    case BSON_TYPE_BOOL:
        return OB_COL_BOOL;
    case BSON_TYPE_INT32:
    case BSON_TYPE_INT64:
    case BSON_TYPE_DOUBLE:
        return OB_COL_NUMBER;
    case BSON_TYPE_DOCUMENT:
    case BSON_TYPE_ARRAY:
        return OB_COL_JSON;
    default:
        return OB_COL_TEXT;
    }
}

static bool is_mapped(const struct mongo_model *m, const char *name)
{
    for (int role = 0; role < OB_MAP_N; role++)
        if (m->f[role] && strcmp(m->f[role], name) == 0)
            return true;
    return false;
}

static bool wanted(const struct mongo_model *m, const char *name)
{
    const struct ob_opt_list *list = &m->conf->columns;
    if (!list->values)
        return !is_mapped(m, name);
    for (size_t i = 0; i < list->n; i++)
        if (strcmp(list->values[i], name) == 0)
            return true;
    return false;
}

/* The document's _id as BSON, in a column without a name that no template can ask for: two
 * documents may have one event id, and marks go by `_id`. */
static void take_ref(struct making *k, struct ob_col *col)
{
    bson_iter_t it;
    bson_t id;
    bson_init(&id);
    if (bson_iter_init_find(&it, k->doc, "_id"))
        bson_append_iter(&id, "_id", -1, &it);
    col->kind = OB_COL_NULL;
    col->value = ob_arena_copy(k->arena, (struct ob_str){(const char *)bson_get_data(&id), id.len});
    k->failed = k->failed || !col->value.p;
    bson_destroy(&id);
}

bool ob_mongo_ref(const struct ob_event *ev, bson_iter_t *it)
{
    bson_t doc;
    const struct ob_col *col = ev->n_cols > 0 ? &ev->cols[ev->n_cols - 1] : NULL;
    return col && col->name.n == 0 &&
           bson_init_static(&doc, (const uint8_t *)col->value.p, col->value.n) &&
           bson_iter_init_find(it, &doc, "_id");
}

/* Further fields, for ${col:name}; behind them the document's own name. */
static void take_cols(struct making *k)
{
    bson_iter_t it;
    size_t n = 0;
    bool none = k->m->conf->columns.values && k->m->conf->columns.n == 0;
    for (bool ok = !none && bson_iter_init(&it, k->doc); ok && bson_iter_next(&it);)
        n += wanted(k->m, bson_iter_key(&it));
    k->ev->cols = ob_arena_zalloc(k->arena, (n + 1) * sizeof(*k->ev->cols));
    k->failed = k->failed || !k->ev->cols;
    for (bool ok = !k->failed && n > 0 && bson_iter_init(&it, k->doc); ok && bson_iter_next(&it);) {
        if (!wanted(k->m, bson_iter_key(&it)) || k->ev->n_cols >= n)
            continue;
        struct ob_col *col = &k->ev->cols[k->ev->n_cols++];
        col->name = ob_arena_copy(k->arena, ob_str_c(bson_iter_key(&it)));
        col->kind = col_kind(bson_iter_type(&it));
        ob_buf_reset(&k->text);
        ob_mongo_text(bson_iter_value(&it), &k->text);
        if (k->text.n > (size_t)k->m->limits.json)
            k->failed =
                k->failed || !ob_limits_check_col(&k->m->limits, k->ev, col, k->text.n, k->arena);
        else
            col->value = keep(k, bson_iter_key(&it));
        if (!col->value.p)
            col->kind = OB_COL_NULL;
        k->failed = k->failed || !col->name.p;
    }
    if (!k->failed)
        take_ref(k, &k->ev->cols[k->ev->n_cols++]);
}

static int64_t created_us(const struct making *k)
{
    bson_iter_t it;
    if (find(k, OB_MAP_CREATED, &it) && BSON_ITER_HOLDS_DATE_TIME(&it))
        return date_us(bson_iter_date_time(&it));
    if (bson_iter_init_find(&it, k->doc, "_id") && BSON_ITER_HOLDS_OID(&it))
        return (int64_t)bson_oid_get_time_t(bson_iter_oid(&it)) * 1000000;
    return 0;
}

static void take_id(struct making *k)
{
    bson_iter_t it;
    take_text(k, OB_MAP_ID, OB_LIMITED_ID, &k->ev->id);
    if (k->ev->id.n > 0 || !bson_iter_init_find(&it, k->doc, "_id"))
        return;
    ob_buf_reset(&k->text);
    ob_mongo_text(bson_iter_value(&it), &k->text);
    keep_limited(k, "_id", OB_LIMITED_ID, &k->ev->id);
}

static uint32_t small(int64_t v)
{
    return v < 0 ? 0 : v > 1000000 ? 1000000 : (uint32_t)v;
}

/* Its own number: one below 1 is a single attempt. 0: the configured one. */
static uint32_t max_attempts(const struct making *k)
{
    int64_t own = number_of(k, OB_MAP_MAX_ATTEMPTS, INT64_MAX);
    if (own == INT64_MAX)
        return small(k->m->conf->dead_attempts);
    return own < 1 ? 1 : small(own);
}

bool ob_mongo_event(const struct mongo_model *m, int payload_json, const bson_t *doc,
                    struct ob_arena *arena, struct ob_event *ev)
{
    struct making k = {
        .m = m, .doc = doc, .arena = arena, .form = (enum ob_bson_form)payload_json, .ev = ev};
    ob_buf_init(&k.text, FIELD_MAX);
    *ev = (struct ob_event){0};
    take_id(&k);
    take_text(&k, OB_MAP_TYPE, OB_LIMITED_TYPE, &ev->type);
    take_text(&k, OB_MAP_AGGREGATE_TYPE, OB_LIMITED_AGGREGATE_TYPE, &ev->aggregate_type);
    take_text(&k, OB_MAP_AGGREGATE_ID, OB_LIMITED_AGGREGATE_ID, &ev->aggregate_id);
    take_text(&k, OB_MAP_KEY, OB_LIMITED_KEY, &ev->key);
    take_text(&k, OB_MAP_TENANT, OB_LIMITED_TENANT, &ev->tenant);
    take_text(&k, OB_MAP_TOPIC, OB_LIMITED_TOPIC, &ev->topic);
    take_text(&k, OB_MAP_STREAM, OB_LIMITED_STREAM, &ev->stream);
    take_object(&k, OB_MAP_HEADERS, OB_LIMITED_HEADERS, &ev->headers);
    take_object(&k, OB_MAP_METADATA, OB_LIMITED_METADATA, &ev->metadata);
    ev->entity_version = number_of(&k, OB_MAP_ENTITY_VERSION, OB_NO_VERSION);
    ev->schema_version = number_of(&k, OB_MAP_SCHEMA_VERSION, OB_NO_VERSION);
    ev->created_us = created_us(&k);
    ev->attempts = small(number_of(&k, OB_MAP_ATTEMPTS, 0));
    ev->max_attempts = max_attempts(&k);
    take_payload(&k);
    take_cols(&k);
    ob_buf_clear(&k.text);
    return !k.failed;
}

bool ob_mongo_event_too_large(const bson_t *doc, struct ob_arena *arena, struct ob_event *ev)
{
    struct making k = {.doc = doc, .arena = arena, .ev = ev};
    if (!ob_limits_no_memory(ev, ob_mongo_raw(doc).n, arena))
        return false;
    ev->cols = ob_arena_zalloc(arena, sizeof(*ev->cols));
    if (!ev->cols)
        return false;
    take_ref(&k, &ev->cols[ev->n_cols++]);
    return !k.failed;
}
