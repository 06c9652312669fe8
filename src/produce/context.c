/* SPDX-License-Identifier: Apache-2.0 */
/* context - who and why: set once, stamped into every event's metadata with the time. */
#include "core/clock.h"
#include "core/jscan.h"
#include "core/json.h"
#include "event/bson.h"
#include "produce/produce.h"

#include <stdlib.h>

#define FIELDS 5

static const char *const names[FIELDS] = {
    [OUTBOX_CTX_TENANT] = "tenantId",
    [OUTBOX_CTX_USER] = "userId",
    [OUTBOX_CTX_CORRELATION_ID] = "correlationId",
    [OUTBOX_CTX_TRACEPARENT] = "traceparent",
    [OUTBOX_CTX_SOURCE] = "source",
};

struct outbox_ctx {
    char *value[FIELDS];
};

_Static_assert(sizeof(((struct ob_err *)0)->text) == sizeof(((struct outbox_error *)0)->text),
               "the two texts have the same size");

enum outbox_status ob_produce_give(enum ob_status status, const struct ob_err *from,
                                   struct outbox_error *to)
{
    if (status != OB_OK && to) {
        to->status = (enum outbox_status)status;
        memcpy(to->text, from->text, sizeof(to->text));
    }
    return (enum outbox_status)status;
}

struct outbox_ctx *outbox_ctx_new(void)
{
    return calloc(1, sizeof(struct outbox_ctx));
}

enum outbox_status outbox_ctx_set(struct outbox_ctx *ctx, enum outbox_ctx_field field,
                                  const char *value)
{
    char *copy = NULL;

    if ((unsigned)field >= FIELDS)
        return OUTBOX_REJECT;
    if (value) {
        copy = strdup(value);
        if (!copy)
            return OUTBOX_DOWN;
    }
    free(ctx->value[field]);
    ctx->value[field] = copy;
    return OUTBOX_OK;
}

void outbox_ctx_free(struct outbox_ctx *ctx)
{
    if (!ctx)
        return;
    for (size_t i = 0; i < FIELDS; i++)
        free(ctx->value[i]);
    free(ctx);
}

/* Does the event's own metadata have this key? */
static bool has(struct ob_str metadata, const char *name)
{
    char pointer[32] = "/";
    struct ob_str raw;
    enum ob_jtype type;

    memcpy(pointer + 1, name, strlen(name) + 1);
    return metadata.n && ob_json_pointer(metadata, ob_str_c(pointer), &raw, &type, NULL) == OB_OK;
}

/* What stands between the braces. metadata is known to be an object. */
static struct ob_str inside(struct ob_str object)
{
    static const char space[] = " \t\r\n";

    while (object.n && memchr(space, *object.p, 4)) {
        object.p++;
        object.n--;
    }
    while (object.n && memchr(space, object.p[object.n - 1], 4))
        object.n--;
    object.p++;
    object.n -= 2;
    while (object.n && memchr(space, *object.p, 4)) {
        object.p++;
        object.n--;
    }
    return object;
}

/* The trace id of a W3C traceparent, "00-<32 hex>-<16 hex>-<2 hex>"; empty: it has none. */
static struct ob_str trace_id_of(const char *traceparent)
{
    static const char hex[] = "0123456789abcdef";
    const size_t n = 55;

    if (!traceparent || strlen(traceparent) < n || traceparent[2] != '-' ||
        strspn(traceparent + 3, hex) != 32 || traceparent[35] != '-')
        return (struct ob_str){0};
    return (struct ob_str){traceparent + 3, 32};
}

/* The context's fields first, then the event's own, byte for byte. */
static void stamp(const struct outbox_ctx *ctx, struct ob_str own, struct ob_buf *out)
{
    struct ob_json j;
    char now[OB_RFC3339_MAX];
    struct ob_str rest = own.n ? inside(own) : own;
    struct ob_str trace = trace_id_of(ctx->value[OUTBOX_CTX_TRACEPARENT]);

    ob_json_init(&j, out);
    ob_json_open(&j, '{');
    for (size_t i = 0; i < FIELDS; i++)
        if (ctx->value[i] && !has(own, names[i])) {
            ob_json_keyc(&j, names[i]);
            ob_json_strc(&j, ctx->value[i]);
        }
    if (trace.n && !has(own, "traceId")) {
        ob_json_keyc(&j, "traceId");
        ob_json_str(&j, trace);
    }
    if (!has(own, "timestamp")) {
        ob_json_keyc(&j, "timestamp");
        ob_json_str(&j, (struct ob_str){now, ob_rfc3339(ob_clock_wall_us(&ob_clock_system), now)});
    }
    if (rest.n) {
        if (out->n && out->p[out->n - 1] != '{')
            ob_buf_char(out, ',');
        ob_buf_str(out, rest);
    }
    ob_buf_char(out, '}');
}

static struct ob_str payload_of(const struct outbox_event *e)
{
    if (!e->payload)
        return (struct ob_str){0};
    if (e->payload_kind == OUTBOX_BSON && e->payload_size == 0) /* a document has its own length */
        return (struct ob_str){e->payload, ob_bson_u32(e->payload)};
    if (e->payload_size == 0 && e->payload_kind != OUTBOX_BYTES)
        return ob_str_c(e->payload);
    return (struct ob_str){e->payload, e->payload_size};
}

enum ob_status ob_produce_row(const struct outbox_ctx *ctx, const struct outbox_event *e,
                              struct ob_buf *metadata, struct ob_row *row, struct ob_err *err)
{
    static const enum ob_payload_kind kinds[] = {
        [OUTBOX_JSON] = OB_PAYLOAD_JSON,   [OUTBOX_TEXT] = OB_PAYLOAD_TEXT,
        [OUTBOX_BYTES] = OB_PAYLOAD_BYTES, [OUTBOX_NULL] = OB_PAYLOAD_NULL,
        [OUTBOX_BSON] = OB_PAYLOAD_BYTES,
    };
    enum ob_status st;

    if ((unsigned)e->payload_kind > OUTBOX_BSON)
        return ob_err_set(err, OB_REJECT, "payload_kind %d is none", (int)e->payload_kind);
    *row = (struct ob_row){
        .id = ob_str_c(e->id),
        .type = ob_str_c(e->type),
        .aggregate_type = ob_str_c(e->aggregate_type),
        .aggregate_id = ob_str_c(e->aggregate_id),
        .key = ob_str_c(e->key),
        .tenant = ob_str_c(e->tenant),
        .topic = ob_str_c(e->topic),
        .payload = payload_of(e),
        .headers = ob_str_c(e->headers),
        .metadata = ob_str_c(e->metadata),
        .payload_kind = e->payload ? kinds[e->payload_kind] : OB_PAYLOAD_NULL,
        .entity_version = e->entity_version ? *e->entity_version : OB_NO_VERSION,
        .schema_version = e->schema_version ? *e->schema_version : OB_NO_VERSION,
        .max_attempts = e->max_attempts,
        .bson = e->payload && e->payload_kind == OUTBOX_BSON,
    };
    st = ob_row_check_bson(row, err); /* who has no BSON refuses it when it is written */
    if (st != OB_OK || !ctx)
        return st;
    if (row->tenant.n == 0) {
        row->tenant = ob_str_c(ctx->value[OUTBOX_CTX_TENANT]);
        row->tenant_of_context = true;
    }
    row->metadata_of_context = row->metadata.n == 0;
    ob_buf_reset(metadata);
    stamp(ctx, row->metadata, metadata);
    if (metadata->failed)
        return ob_err_set(err, OB_REJECT, "the metadata is too large");
    row->metadata = ob_buf_view(metadata);
    return OB_OK;
}

/* Where the context goes in the payload: its member "metadata" as it is, or (n 0) none there yet.
 * False: the payload has no place for it. */
static bool find_metadata(struct ob_str payload, struct ob_str *own)
{
    enum ob_jtype type;
    struct ob_err err;

    *own = (struct ob_str){0};
    if (ob_json_check(payload, &type, &err) != OB_OK || type != OB_J_OBJECT)
        return false;
    if (ob_json_pointer(payload, OB_STR("/metadata"), own, &type, NULL) != OB_OK) {
        *own = (struct ob_str){0};
        return true;
    }
    return type == OB_J_OBJECT;
}

enum ob_status ob_produce_context_payload(const struct outbox_ctx *ctx, struct ob_buf *payload,
                                          struct ob_row *row, struct ob_err *err)
{
    struct ob_str own;

    if (!ctx || !row->metadata_of_context || row->payload_kind != OB_PAYLOAD_JSON ||
        !find_metadata(row->payload, &own))
        return OB_OK;
    ob_buf_reset(payload);
    if (own.n) {
        size_t before = (size_t)(own.p - row->payload.p);
        ob_buf_put(payload, row->payload.p, before);
        stamp(ctx, own, payload);
        ob_buf_put(payload, own.p + own.n, row->payload.n - before - own.n);
    } else {
        struct ob_str rest = inside(row->payload);
        ob_buf_c(payload, "{\"metadata\":");
        stamp(ctx, own, payload);
        if (rest.n)
            ob_buf_char(payload, ',');
        ob_buf_str(payload, rest);
        ob_buf_char(payload, '}');
    }
    if (payload->failed)
        return ob_err_set(err, OB_REJECT, "the payload with its context is too large");
    row->payload = ob_buf_view(payload);
    return OB_OK;
}
