/* SPDX-License-Identifier: Apache-2.0 */
/* show - events and dead events as rows for people or as JSON lines. */
#include "cli/show.h"

#include "core/clock.h"
#include "core/jscan.h"
#include "core/json.h"

#include <inttypes.h>

#define PAYLOAD_COLUMNS 120

static void json_time(struct ob_json *j, const char *key, int64_t us)
{
    char text[OB_RFC3339_MAX];
    struct ob_str s = {text, ob_rfc3339(us, text)};
    ob_json_keyc(j, key);
    ob_json_str(j, s);
}

static void json_opt(struct ob_json *j, const char *key, struct ob_str s)
{
    ob_json_keyc(j, key);
    if (s.n)
        ob_json_str(j, s);
    else
        ob_json_null(j);
}

/* A JSON value as it is; what is none although it should be, as text. */
static void json_value(struct ob_json *j, const char *key, struct ob_str s)
{
    struct ob_err err;
    enum ob_jtype type;
    ob_json_keyc(j, key);
    if (!s.n)
        ob_json_null(j);
    else if (ob_json_check(s, &type, &err) == OB_OK && !memchr(s.p, '\n', s.n))
        ob_json_raw(j, s);
    else
        ob_json_str(j, s);
}

static void json_payload(struct ob_json *j, const struct ob_event *ev)
{
    if (ev->payload_kind == OB_PAYLOAD_NULL) {
        ob_json_keyc(j, "payload");
        ob_json_null(j);
    } else if (ev->payload_kind == OB_PAYLOAD_BYTES || !ob_utf8_valid(ev->payload)) {
        struct ob_buf b64;
        ob_buf_init(&b64, 0);
        ob_base64(&b64, ev->payload);
        ob_json_keyc(j, "payload_base64");
        ob_json_str(j, ob_buf_view(&b64));
        ob_buf_clear(&b64);
    } else if (ev->payload_kind == OB_PAYLOAD_JSON) {
        json_value(j, "payload", ev->payload);
    } else {
        ob_json_keyc(j, "payload");
        ob_json_str(j, ev->payload);
    }
}

static void json_version(struct ob_json *j, const char *key, int64_t v)
{
    ob_json_keyc(j, key);
    if (v == OB_NO_VERSION)
        ob_json_null(j);
    else
        ob_json_int(j, v);
}

static struct ob_str key_of(const struct ob_event *ev)
{
    return ev->key.n ? ev->key : ev->aggregate_id;
}

static void event_fields(struct ob_json *j, const struct ob_event *ev, bool payload)
{
    ob_json_keyc(j, "n");
    ob_json_uint(j, ev->ref);
    ob_json_keyc(j, "id");
    ob_json_str(j, ev->id);
    json_opt(j, "key", key_of(ev));
    ob_json_keyc(j, "type");
    ob_json_str(j, ev->type);
    json_opt(j, "aggregate_type", ev->aggregate_type);
    json_opt(j, "aggregate_id", ev->aggregate_id);
    json_opt(j, "tenant", ev->tenant);
    json_opt(j, "topic", ev->topic);
    json_version(j, "entity_version", ev->entity_version);
    json_version(j, "schema_version", ev->schema_version);
    json_time(j, "created", ev->created_us);
    if (!payload)
        return;
    json_value(j, "headers", ev->headers);
    json_value(j, "metadata", ev->metadata);
    json_payload(j, ev);
}

void ob_show_event_json(struct ob_buf *out, const char *pipeline, const struct ob_event *ev,
                        const char *state, bool payload)
{
    struct ob_json j;
    ob_json_init(&j, out);
    ob_json_open(&j, '{');
    ob_json_keyc(&j, "pipeline");
    ob_json_strc(&j, pipeline);
    ob_json_keyc(&j, "state");
    ob_json_strc(&j, state);
    event_fields(&j, ev, payload);
    ob_json_close(&j, '}');
    ob_buf_char(out, '\n');
}

/* A cell of at least width columns. */
static void cell(struct ob_buf *out, struct ob_str s, size_t width)
{
    size_t before = out->n;
    ob_term_text(out, s, width);
    for (size_t n = out->n - before; n <= width; n++)
        ob_buf_char(out, ' ');
}

static void time_cell(struct ob_buf *out, int64_t us)
{
    char text[OB_RFC3339_MAX];
    cell(out, (struct ob_str){text, ob_rfc3339(us, text)}, 24);
}

static void payload_line(struct ob_buf *out, const struct ob_term *t, const struct ob_event *ev)
{
    ob_buf_printf(out, "           %s", ob_term_c(t, OB_C_DIM));
    if (ev->payload_kind == OB_PAYLOAD_NULL)
        ob_buf_c(out, "(null)");
    else if (ev->payload_kind == OB_PAYLOAD_BYTES || !ob_utf8_valid(ev->payload))
        ob_buf_printf(out, "(%zu bytes)", ev->payload.n);
    else
        ob_term_text(out, ev->payload, PAYLOAD_COLUMNS);
    ob_buf_printf(out, "%s\n", ob_term_c(t, OB_C_RESET));
}

void ob_show_event_head(struct ob_buf *out, const struct ob_term *t)
{
    ob_buf_printf(out, "%s%10s %-24s %-9s %-36s %-24s %s%s\n", ob_term_c(t, OB_C_BOLD), "NUMBER",
                  "CREATED", "STATE", "ID", "TYPE", "KEY", ob_term_c(t, OB_C_RESET));
}

void ob_show_event_row(struct ob_buf *out, const struct ob_term *t, const struct ob_event *ev,
                       const char *state, bool payload)
{
    ob_buf_printf(out, "%10" PRIu64 " ", ev->ref);
    time_cell(out, ev->created_us);
    cell(out, ob_str_c(state), 9);
    cell(out, ev->id, 36);
    cell(out, ev->type, 24);
    ob_term_text(out, key_of(ev), 40);
    ob_buf_char(out, '\n');
    if (payload)
        payload_line(out, t, ev);
}

void ob_show_dead_json(struct ob_buf *out, const char *pipeline, const struct ob_dead *d, bool full)
{
    struct ob_json j;
    ob_json_init(&j, out);
    ob_json_open(&j, '{');
    ob_json_keyc(&j, "pipeline");
    ob_json_strc(&j, pipeline);
    ob_json_keyc(&j, "id");
    ob_json_str(&j, d->id);
    json_opt(&j, "key", d->key);
    ob_json_keyc(&j, "type");
    ob_json_str(&j, d->type);
    ob_json_keyc(&j, "attempts");
    ob_json_uint(&j, d->attempts);
    ob_json_keyc(&j, "error");
    ob_json_str(&j, d->error);
    json_time(&j, "at", d->at_us);
    if (full) {
        json_opt(&j, "destination", d->destination);
        json_value(&j, "history", d->history);
        if (d->event) {
            ob_json_keyc(&j, "event");
            ob_json_open(&j, '{');
            event_fields(&j, d->event, true);
            ob_json_close(&j, '}');
        }
    }
    ob_json_close(&j, '}');
    ob_buf_char(out, '\n');
}

void ob_show_dead_head(struct ob_buf *out, const struct ob_term *t)
{
    ob_buf_printf(out, "%s%-24s %-12s %-36s %-20s %-16s %8s %s%s\n", ob_term_c(t, OB_C_BOLD), "AT",
                  "PIPELINE", "ID", "TYPE", "KEY", "ATTEMPTS", "ERROR", ob_term_c(t, OB_C_RESET));
}

void ob_show_dead_row(struct ob_buf *out, const struct ob_term *t, const char *pipeline,
                      const struct ob_dead *d)
{
    (void)t;
    time_cell(out, d->at_us);
    cell(out, ob_str_c(pipeline), 12);
    cell(out, d->id, 36);
    cell(out, d->type, 20);
    cell(out, d->key, 16);
    ob_buf_printf(out, "%8u ", d->attempts);
    ob_term_text(out, d->error, 80);
    ob_buf_char(out, '\n');
}

static void field(struct ob_buf *out, const struct ob_term *t, const char *name, struct ob_str v)
{
    if (!v.n)
        return;
    ob_buf_printf(out, "%s%-15s%s ", ob_term_c(t, OB_C_BOLD), name, ob_term_c(t, OB_C_RESET));
    ob_term_text(out, v, 0);
    ob_buf_char(out, '\n');
}

void ob_show_dead_full(struct ob_buf *out, const struct ob_term *t, const char *pipeline,
                       const struct ob_dead *d)
{
    char text[OB_RFC3339_MAX], number[32];
    struct ob_str at = {text, ob_rfc3339(d->at_us, text)};
    snprintf(number, sizeof number, "%u", d->attempts);
    field(out, t, "pipeline", ob_str_c(pipeline));
    field(out, t, "id", d->id);
    field(out, t, "type", d->type);
    field(out, t, "key", d->key);
    field(out, t, "destination", d->destination);
    field(out, t, "died", at);
    field(out, t, "attempts", ob_str_c(number));
    field(out, t, "error", d->error);
    field(out, t, "history", d->history);
    if (!d->event)
        return;
    field(out, t, "aggregate type", d->event->aggregate_type);
    field(out, t, "aggregate id", d->event->aggregate_id);
    field(out, t, "tenant", d->event->tenant);
    field(out, t, "headers", d->event->headers);
    field(out, t, "metadata", d->event->metadata);
    ob_buf_printf(out, "%s%-15s%s\n", ob_term_c(t, OB_C_BOLD), "payload", ob_term_c(t, OB_C_RESET));
    if (d->event->payload_kind == OB_PAYLOAD_BYTES || !ob_utf8_valid(d->event->payload))
        ob_buf_printf(out, "(%zu bytes; --json shows them)", d->event->payload.n);
    else
        ob_term_text(out, d->event->payload, 0);
    ob_buf_char(out, '\n');
}
