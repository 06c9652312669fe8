/* SPDX-License-Identifier: Apache-2.0 */
/* limits - how many bytes each column of an event may have. */
#include "event/limits.h"

#include "core/utf8.h"
#include "event/row.h"

#include <inttypes.h>
#include <stdio.h>

#define TEXT_DEFAULT "64k"
#define JSON_DEFAULT "1M"
#define PAYLOAD_DEFAULT "64M"
#define UNFIT_TIMES 3
#define LIMIT_MAX (INT64_C(1) << 30) /* no database column holds more */

const struct ob_limits ob_limits_default = {.text = 64 << 10, .json = 1 << 20, .payload = 64 << 20};

const struct ob_opt ob_limits_opts[] = {
    {.type = OB_OPT_BYTES,
     .name = "text",
     .def = TEXT_DEFAULT,
     .min = 256,
     .max = LIMIT_MAX,
     .offset = offsetof(struct ob_limits, text),
     .help = "Maximum size of each of id, type, aggregate_type, aggregate_id, key, tenant, topic "
             "and stream."},
    {.type = OB_OPT_BYTES,
     .name = "json",
     .def = JSON_DEFAULT,
     .min = 256,
     .max = LIMIT_MAX,
     .offset = offsetof(struct ob_limits, json),
     .help = "Maximum size of headers, of metadata, and of each further column that templates "
             "read."},
    {.type = OB_OPT_BYTES,
     .name = "payload",
     .def = PAYLOAD_DEFAULT,
     .min = 256,
     .max = LIMIT_MAX,
     .offset = offsetof(struct ob_limits, payload),
     .help = "Maximum size of the payload. The sink may accept less."},
    {0},
};

const struct ob_limits ob_limits_shown = {.text = 1 << 20, .json = 1 << 20, .payload = LIMIT_MAX};

static const struct {
    const char *name;
    size_t offset;
} columns[OB_LIMITED_N] = {
    [OB_LIMITED_ID] = {"id", offsetof(struct ob_event, id)},
    [OB_LIMITED_TYPE] = {"type", offsetof(struct ob_event, type)},
    [OB_LIMITED_AGGREGATE_TYPE] = {"aggregate_type", offsetof(struct ob_event, aggregate_type)},
    [OB_LIMITED_AGGREGATE_ID] = {"aggregate_id", offsetof(struct ob_event, aggregate_id)},
    [OB_LIMITED_KEY] = {"key", offsetof(struct ob_event, key)},
    [OB_LIMITED_TENANT] = {"tenant", offsetof(struct ob_event, tenant)},
    [OB_LIMITED_TOPIC] = {"topic", offsetof(struct ob_event, topic)},
    [OB_LIMITED_STREAM] = {"stream", offsetof(struct ob_event, stream)},
    [OB_LIMITED_HEADERS] = {"headers", offsetof(struct ob_event, headers)},
    [OB_LIMITED_METADATA] = {"metadata", offsetof(struct ob_event, metadata)},
    [OB_LIMITED_PAYLOAD] = {"payload", offsetof(struct ob_event, payload)},
};

const char *ob_limited_name(enum ob_limited column)
{
    return columns[column].name;
}

size_t ob_limit_of(const struct ob_limits *limits, enum ob_limited column)
{
    return (size_t)(column == OB_LIMITED_PAYLOAD   ? limits->payload
                    : column >= OB_LIMITED_HEADERS ? limits->json
                                                   : limits->text);
}

static const char *option_of(enum ob_limited column)
{
    return column == OB_LIMITED_PAYLOAD   ? "payload"
           : column >= OB_LIMITED_HEADERS ? "json"
                                          : "text";
}

/* The first fault of an event stays. */
static bool set_fault(struct ob_event *ev, struct ob_arena *arena, struct ob_str name,
                      uint64_t size, uint64_t limit, const char *option)
{
    if (ev->fault.n > 0)
        return true;
    char *text = ob_arena_printf(
        arena, "%.*s is too large: %" PRIu64 " bytes, the limit is %" PRIu64 " (limits.%s)",
        OB_STR_ARG(name), size, limit, option);
    if (!text)
        return false;
    ev->fault = ob_str_c(text);
    return true;
}

/* The beginning of a text and its size. */
static bool cut_text(struct ob_str *value, uint64_t size, struct ob_arena *arena)
{
    size_t n = value->n > OB_LIMIT_KEEP ? ob_utf8_cut(value->p, OB_LIMIT_KEEP) : value->n;
    char *text = ob_arena_printf(arena, "%.*s... (%" PRIu64 " bytes)", (int)n,
                                 value->p ? value->p : "", size);
    if (!text)
        return false;
    *value = ob_str_c(text);
    return true;
}

bool ob_limits_check_size(const struct ob_limits *limits, struct ob_event *ev,
                          enum ob_limited column, uint64_t size, struct ob_arena *arena)
{
    struct ob_str *value = (struct ob_str *)(void *)((char *)ev + columns[column].offset);
    size_t limit = ob_limit_of(limits, column);

    if (size <= limit)
        return true;
    if (!set_fault(ev, arena, ob_str_c(columns[column].name), size, limit, option_of(column)))
        return false;
    if (column < OB_LIMITED_HEADERS)
        return cut_text(value, size, arena);
    *value = (struct ob_str){NULL, 0};
    return true;
}

bool ob_limits_check_col(const struct ob_limits *limits, struct ob_event *ev, struct ob_col *col,
                         uint64_t size, struct ob_arena *arena)
{
    if (size <= (uint64_t)limits->json)
        return true;
    col->value = (struct ob_str){NULL, 0};
    col->kind = OB_COL_NULL;
    return set_fault(ev, arena, col->name, size, (uint64_t)limits->json, "json");
}

static bool check_values(const struct ob_limits *limits, struct ob_event *ev,
                         struct ob_arena *arena)
{
    for (int c = 0; c < OB_LIMITED_N; c++) {
        const struct ob_str *value =
            (const struct ob_str *)(const void *)((const char *)ev + columns[c].offset);
        if (!ob_limits_check_size(limits, ev, (enum ob_limited)c, value->n, arena))
            return false;
    }
    for (size_t i = 0; i < ev->n_cols; i++)
        if (!ob_limits_check_col(limits, ev, &ev->cols[i], ev->cols[i].value.n, arena))
            return false;
    return true;
}

size_t ob_event_bytes(const struct ob_event *ev)
{
    size_t n = ev->id.n + ev->type.n + ev->aggregate_type.n + ev->aggregate_id.n + ev->key.n +
               ev->tenant.n + ev->topic.n + ev->stream.n + ev->headers.n + ev->metadata.n +
               ev->payload.n;
    for (size_t i = 0; i < ev->n_cols; i++)
        n += ev->cols[i].value.n;
    return n;
}

bool ob_limits_check(const struct ob_limits *limits, struct ob_event *ev, struct ob_arena *arena)
{
    /* Almost every event is smaller than any limit. */
    uint64_t least = (uint64_t)(limits->text < limits->json ? limits->text : limits->json);
    least = least < (uint64_t)limits->payload ? least : (uint64_t)limits->payload;
    return ob_event_bytes(ev) <= least || check_values(limits, ev, arena);
}

bool ob_limits_no_memory(struct ob_event *ev, uint64_t bytes, struct ob_arena *arena)
{
    struct ob_event left = {.ref = ev->ref,
                            .seq = ev->seq,
                            .id = ev->id,
                            .payload_kind = OB_PAYLOAD_NULL,
                            .entity_version = OB_NO_VERSION,
                            .schema_version = OB_NO_VERSION,
                            .created_us = ev->created_us,
                            .attempts = ev->attempts,
                            .park_n = ev->park_n,
                            .park_hash = ev->park_hash};
    char *text = ob_arena_printf(arena,
                                 "no memory for this event alone: %" PRIu64
                                 " bytes; raise the memory limit of the relay or lower `limits`",
                                 bytes);
    if (!text)
        return false;
    *ev = left;
    ev->fault = ob_str_c(text);
    return true;
}

bool ob_unfit_is(const struct ob_unfit *unfit, struct ob_str id)
{
    return unfit->times >= UNFIT_TIMES && unfit->hash == ob_hash64(id.p, id.n);
}

bool ob_unfit_note(struct ob_unfit *unfit, struct ob_str id)
{
    uint64_t hash = ob_hash64(id.p, id.n);
    unfit->times = unfit->hash == hash ? unfit->times + 1 : 1;
    unfit->hash = hash;
    return unfit->times >= UNFIT_TIMES;
}

enum ob_status ob_limits_check_row(const struct ob_limits *limits, const struct ob_row *row,
                                   struct ob_err *err)
{
    const struct {
        enum ob_limited column;
        size_t n;
    } given[] = {
        {OB_LIMITED_TYPE, row->type.n},
        {OB_LIMITED_AGGREGATE_TYPE, row->aggregate_type.n},
        {OB_LIMITED_AGGREGATE_ID, row->aggregate_id.n},
        {OB_LIMITED_KEY, row->key.n},
        {OB_LIMITED_TENANT, row->tenant.n},
        {OB_LIMITED_TOPIC, row->topic.n},
        {OB_LIMITED_HEADERS, row->headers.n},
        {OB_LIMITED_METADATA, row->metadata.n},
        {OB_LIMITED_PAYLOAD, row->payload.n},
    };
    for (size_t i = 0; i < sizeof(given) / sizeof(given[0]); i++)
        if (given[i].n > ob_limit_of(limits, given[i].column))
            return ob_err_set(err, OB_REJECT, "%s is too large: %zu bytes, the limit is %zu",
                              ob_limited_name(given[i].column), given[i].n,
                              ob_limit_of(limits, given[i].column));
    return OB_OK;
}
