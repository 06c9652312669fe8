/* SPDX-License-Identifier: Apache-2.0 */
/* pg_batch - events as arrays: checked against the table that they are for. */
#include "event/pg_table.h"

#include "core/uuid.h"
#include "event/pg_column.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <stdio.h>

#define PAYLOADS_MAX ((size_t)512 << 20) /* the protocol ends at 1 GiB a message */

void ob_pg_batch_init(struct ob_pg_batch *b, const struct ob_pg_table *table)
{
    *b = (struct ob_pg_batch){.table = table};
    for (size_t f = 0; f < OB_PG_VALUES; f++) {
        ob_buf_init(&b->value[f], f == OB_PG_PAYLOAD ? PAYLOADS_MAX : 0);
        b->all[f] = true;
    }
    ob_buf_init(&b->kind, 0);
    ob_buf_init(&b->lock, 0);
    ob_buf_init(&b->sql, 0);
}

void ob_pg_batch_clear(struct ob_pg_batch *b)
{
    for (size_t f = 0; f < OB_PG_VALUES; f++)
        ob_buf_clear(&b->value[f]);
    ob_buf_clear(&b->kind);
    ob_buf_clear(&b->lock);
    ob_buf_clear(&b->sql);
}

/* ---- what may be written ---- */

static bool has(const struct ob_pg_batch *b, enum ob_pg_field f)
{
    return b->table ? b->table->col[f].name != NULL : f != OB_PG_STREAM;
}

static bool texts_valid(const struct ob_row *row, struct ob_err *err)
{
    const struct {
        enum ob_pg_field f;
        struct ob_str s;
    } texts[] = {
        {OB_PG_ID, row->id},         {OB_PG_TYPE, row->type},
        {OB_PG_KEY, row->key},       {OB_PG_AGGREGATE_TYPE, row->aggregate_type},
        {OB_PG_TENANT, row->tenant}, {OB_PG_AGGREGATE_ID, row->aggregate_id},
        {OB_PG_TOPIC, row->topic},
    };
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        if (texts[i].s.n && (memchr(texts[i].s.p, 0, texts[i].s.n) || !ob_utf8_valid(texts[i].s))) {
            ob_err_set(err, OB_REJECT, "%s is not UTF-8 text", ob_pg_field_names[texts[i].f]);
            return false;
        }
    return true;
}

static enum ob_status payload_check(const struct ob_pg_batch *b, const struct ob_row *row,
                                    struct ob_err *err)
{
    const struct ob_pg_column *c = b->table ? &b->table->col[OB_PG_PAYLOAD] : NULL;
    struct ob_str p = row->payload;
    bool json = c && (b->table->payload_json || ob_pg_is(c, "json") || ob_pg_is(c, "jsonb"));

    if (row->payload_kind == OB_PAYLOAD_NULL)
        return OB_OK;
    if (json && row->payload_kind != OB_PAYLOAD_JSON)
        return ob_err_set(err, OB_REJECT, "the payload of this table is JSON");
    if (c && row->payload_kind == OB_PAYLOAD_BYTES && !ob_pg_is(c, "bytea"))
        return ob_err_set(err, OB_REJECT, "the payload of this table is text, not bytes");
    if (row->payload_kind == OB_PAYLOAD_TEXT && !(c && ob_pg_is(c, "bytea")) && p.n &&
        (memchr(p.p, 0, p.n) || !ob_utf8_valid(p)))
        return ob_err_set(err, OB_REJECT, "payload is not UTF-8 text: send it as bytes");
    return OB_OK;
}

/* What was given and would get lost. */
static enum ob_status columns_check(const struct ob_pg_batch *b, const struct ob_row *row,
                                    struct ob_err *err)
{
    const struct {
        enum ob_pg_field f;
        bool given;
    } given[] = {
        {OB_PG_TYPE, row->topic.n && !ob_str_eq(row->topic, row->type)},
        {OB_PG_AGGREGATE_TYPE, row->aggregate_type.n > 0},
        {OB_PG_AGGREGATE_ID, row->aggregate_id.n > 0},
        {OB_PG_KEY, row->key.n > 0 && !ob_str_eq(row->key, row->aggregate_id)},
        {OB_PG_TENANT, row->tenant.n > 0 && !row->tenant_of_context},
        {OB_PG_TOPIC, row->topic.n > 0},
        {OB_PG_HEADERS, row->headers.n > 0},
        {OB_PG_METADATA, row->metadata.n > 0 && !row->metadata_of_context},
        {OB_PG_ENTITY_VERSION, row->entity_version != OB_NO_VERSION},
        {OB_PG_SCHEMA_VERSION, row->schema_version != OB_NO_VERSION},
        {OB_PG_MAX_ATTEMPTS, row->max_attempts > 0},
    };
    for (size_t i = 0; b->table && i < sizeof(given) / sizeof(given[0]); i++)
        if (given[i].given && !has(b, given[i].f))
            return ob_err_set(err, OB_REJECT, "table %s has no column for %s", b->table->name,
                              ob_pg_field_names[given[i].f]);
    return OB_OK;
}

static enum ob_status check(const struct ob_pg_batch *b, const struct ob_row *row,
                            struct ob_err *err)
{
    bool uuid = !b->table || ob_pg_is(&b->table->col[OB_PG_ID], "uuid");
    enum ob_status st = ob_row_check(row, err);

    if (st == OB_OK && !texts_valid(row, err))
        st = OB_REJECT;
    if (st == OB_OK && row->id.n && uuid && !ob_pg_uuid_valid(row->id))
        st = ob_err_set(err, OB_REJECT, "ids of this table are UUIDs, and '%.*s' is none",
                        OB_STR_ARG(row->id));
    if (st == OB_OK && row->max_attempts > INT32_MAX)
        st = ob_err_set(err, OB_REJECT, "max_attempts is too large");
    if (st == OB_OK)
        st = columns_check(b, row, err);
    if (st == OB_OK && !row->id.n && b->table && b->table->col[OB_PG_ID].category == 'N')
        st = ob_err_set(err, OB_REJECT,
                        "ids of table %s are numbers that nobody but its owner can give: say which "
                        "one, or insert the row by SQL",
                        b->table->name);
    return st == OB_OK ? payload_check(b, row, err) : st;
}

/* ---- arrays ---- */

static void put_number(struct ob_buf *buf, uint32_t v)
{
    v = htonl(v);
    ob_buf_put(buf, &v, sizeof(v));
}

static void put_element(struct ob_buf *buf, const struct ob_str *s)
{
    if (buf->n == 0)
        ob_buf_put(buf, (const char[OB_PG_ARRAY_HEAD]){0}, OB_PG_ARRAY_HEAD);
    put_number(buf, s ? (uint32_t)s->n : UINT32_MAX);
    if (s)
        ob_buf_str(buf, *s);
}

static enum ob_status add_value(struct ob_pg_batch *b, enum ob_pg_field f, bool given,
                                struct ob_str s, struct ob_err *err)
{
    const struct ob_pg_column *c = b->table ? &b->table->col[f] : NULL;

    if (!has(b, f))
        return OB_OK;
    if (!given && c && c->needed)
        return ob_err_set(err, OB_REJECT, "column %s of table %s needs a value: set the event's %s",
                          c->name, b->table->name, ob_pg_field_names[f]);
    put_element(&b->value[f], given ? &s : NULL);
    b->any[f] |= given;
    b->all[f] &= given;
    return b->value[f].failed
               ? ob_err_set(err, OB_REJECT, "more than %zu MiB of %s for one statement",
                            b->value[f].ceiling >> 20, ob_pg_field_names[f])
               : OB_OK;
}

static enum ob_status add_version(struct ob_pg_batch *b, enum ob_pg_field f, int64_t v, bool given,
                                  struct ob_err *err)
{
    char text[24];
    int n = snprintf(text, sizeof(text), "%" PRId64, v);
    return add_value(b, f, given, (struct ob_str){text, (size_t)n}, err);
}

/* By the longest prefix, at a dot. */
static enum ob_status stream_of(const struct ob_pg_table *t, struct ob_str topic,
                                struct ob_str *out, struct ob_err *err)
{
    size_t best = 0;

    *out = (struct ob_str){0};
    for (size_t i = 0; i < t->n_streams; i++) {
        size_t n = strlen(t->streams[i].prefix);
        if (n <= topic.n && n >= best && memcmp(topic.p, t->streams[i].prefix, n) == 0 &&
            (n == topic.n || n == 0 || topic.p[n] == '.')) {
            *out = ob_str_c(t->streams[i].stream);
            best = n;
        }
    }
    if (out->n)
        return OB_OK;
    return ob_err_set(err, OB_REJECT, "no stream is known for topic '%.*s': add a prefix for it",
                      OB_STR_ARG(topic));
}

static enum ob_status add_texts(struct ob_pg_batch *b, const struct ob_row *row, struct ob_err *err)
{
    bool typed = has(b, OB_PG_TYPE);
    struct ob_str topic = row->topic.n || typed ? row->topic : row->type, stream = {0};
    const struct {
        enum ob_pg_field f;
        struct ob_str s;
    } texts[] = {
        {OB_PG_TYPE, row->type},       {OB_PG_AGGREGATE_TYPE, row->aggregate_type},
        {OB_PG_KEY, row->key},         {OB_PG_AGGREGATE_ID, row->aggregate_id},
        {OB_PG_TENANT, row->tenant},   {OB_PG_TOPIC, topic},
        {OB_PG_HEADERS, row->headers}, {OB_PG_METADATA, row->metadata},
    };
    enum ob_status st = OB_OK;

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]) && st == OB_OK; i++)
        st = add_value(b, texts[i].f, texts[i].s.n > 0, texts[i].s, err);
    if (st == OB_OK && b->table && has(b, OB_PG_STREAM))
        st = stream_of(b->table, topic.n ? topic : row->type, &stream, err);
    if (st == OB_OK)
        st = add_value(b, OB_PG_STREAM, stream.n > 0, stream, err);
    if (st == OB_OK) {
        struct ob_str lock = row->key.n ? row->key : row->aggregate_id;
        lock = lock.n ? lock : stream;
        put_element(&b->lock, &lock);
    }
    return st;
}

enum ob_status ob_pg_batch_add(struct ob_pg_batch *b, const struct ob_row *row, struct ob_err *err)
{
    static const struct ob_str kinds[] = {
        [OB_PAYLOAD_JSON] = {"json", 4},
        [OB_PAYLOAD_TEXT] = {"text", 4},
        [OB_PAYLOAD_BYTES] = {"bytes", 5},
        [OB_PAYLOAD_NULL] = {"json", 4},
    };
    char made[OB_UUID_TEXT];
    struct ob_str id = row->id;
    enum ob_status st = check(b, row, err);

    if (st == OB_OK && id.n == 0) {
        ob_uuid7_text(made);
        id = ob_str_c(made);
    }
    if (st == OB_OK)
        st = add_value(b, OB_PG_ID, true, id, err);
    if (st == OB_OK)
        st = add_texts(b, row, err);
    if (st == OB_OK)
        st = add_value(b, OB_PG_PAYLOAD, row->payload_kind != OB_PAYLOAD_NULL, row->payload, err);
    if (st == OB_OK)
        st = add_version(b, OB_PG_ENTITY_VERSION, row->entity_version,
                         row->entity_version != OB_NO_VERSION, err);
    if (st == OB_OK)
        st = add_version(b, OB_PG_SCHEMA_VERSION, row->schema_version,
                         row->schema_version != OB_NO_VERSION, err);
    if (st == OB_OK)
        st = add_version(b, OB_PG_MAX_ATTEMPTS, row->max_attempts, row->max_attempts > 0, err);
    if (st == OB_OK) {
        put_element(&b->kind, &kinds[row->payload_kind]);
        b->n++;
    }
    return st;
}

void ob_pg_batch_ids(const struct ob_pg_batch *b, char (*ids)[64])
{
    const char *at = b->value[OB_PG_ID].p + OB_PG_ARRAY_HEAD;
    for (size_t i = 0; i < b->n; i++) {
        uint32_t n;
        memcpy(&n, at, sizeof(n));
        n = ntohl(n);
        memcpy(ids[i], at + sizeof(n), n); /* ob_row_check(): at most 63 */
        ids[i][n] = '\0';
        at += sizeof(n) + n;
    }
}
