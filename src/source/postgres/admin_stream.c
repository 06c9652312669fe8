/* SPDX-License-Identifier: Apache-2.0 */
/* admin_stream - pipelines whose events no table keeps: messages, and mapped tables without state.
 * What waits or is dead is listed; an event is emitted as a message. */
#include "source/postgres/admin.h"
#include "source/postgres/whole.h"

#include "core/json.h"
#include "core/uuid.h"

#include <stdio.h>

#define PAGE "500"

bool ob_pg_admin_stream(const struct ob_admin *a)
{
    return a->conf->mode == PG_WAL &&
           (a->conf->message_prefix[0] || (a->conf->mapping.table && !ob_pg_admin_mapped(a)));
}

static bool fits(const struct ob_filter *f, const struct ob_event *ev)
{
    struct ob_str key = ev->key.n ? ev->key : ev->aggregate_id;
    return (!f->id || ob_glob(ob_str_c(f->id), ev->id)) &&
           (!f->type || ob_glob(ob_str_c(f->type), ev->type)) &&
           (!f->key || ob_glob(ob_str_c(f->key), key)) &&
           (!f->tenant || ob_glob(ob_str_c(f->tenant), ev->tenant)) &&
           (!f->since_us || ev->created_us >= f->since_us) &&
           (!f->until_us || ev->created_us < f->until_us);
}

/* What waits and what is dead have their numbers from one counter. */
#define EVENTS(compare, order)                                                                     \
    "select n, event::text, payload, 'parked' from outbox.parked where pipeline = $1 and "         \
    "n " compare                                                                                   \
    " $2::bigint and event is not null union all select n, event::text, payload, state "           \
    "from outbox.dead where pipeline = $1 and n " compare " $2::bigint and event is not null and " \
    "state in ('dead', 'discarded') order by 1 " order " limit " PAGE

/* Each that fits the filter, upwards from behind `from` or down from below it; at most
 * the filter's limit. */
static enum ob_status walk(struct ob_admin *a, const struct ob_filter *f, bool down, int64_t from,
                           bool payload, ob_event_fn *fn, void *user, struct ob_err *err)
{
    struct ob_arena *arena = ob_arena_new(4096, 0);
    size_t left = f->limit ? f->limit : SIZE_MAX;
    int rows = 1;
    enum ob_status st = arena ? OB_OK : ob_err_set(err, OB_DOWN, "no memory");
    while (st == OB_OK && left > 0 && rows > 0) {
        char at[24];
        PGresult *res = NULL;
        snprintf(at, sizeof(at), "%lld", (long long)from);
        const struct pg_param p[] = {PG_TEXT(a->pipeline), PG_TEXT(at)};
        st = ob_pg_query(&a->db, down ? EVENTS("<", "desc") : EVENTS(">", ""), p, 2, true, &res,
                         err);
        rows = st == OB_OK ? PQntuples(res) : 0;
        for (int i = 0; i < rows && st == OB_OK && left > 0; i++) {
            struct ob_event ev;
            char state[16];
            struct ob_str s = ob_pg_str(res, i, 3);
            ob_arena_reset(arena);
            snprintf(state, sizeof(state), "%.*s", OB_STR_ARG(s));
            st = ob_pg_whole_unpack(ob_pg_str(res, i, 1),
                                    payload ? ob_pg_str(res, i, 2) : (struct ob_str){0},
                                    ob_pg_null(res, i, 2), arena, &ev, err);
            from = ob_pg_i64(res, i, 0);
            ev.ref = (uint64_t)from;
            if (st == OB_OK && fits(f, &ev))
                left = fn(user, &ev, state) ? left - 1 : 0;
        }
        PQclear(res);
    }
    ob_arena_unref(arena);
    return st;
}

static bool note_lowest(void *user, const struct ob_event *ev, const char *state)
{
    (void)state;
    *(int64_t *)user = (int64_t)ev->ref - 1;
    return true;
}

enum ob_status ob_pg_stream_events(struct ob_admin *a, const struct ob_filter *f, bool payload,
                                   ob_event_fn *fn, void *user, struct ob_err *err)
{
    int64_t after = (int64_t)f->after;
    enum ob_status st = OB_OK;
    if (f->limit && !f->after) /* no place to go on from: the newest ones */
        st = walk(a, f, true, INT64_MAX, false, note_lowest, &after, err);
    return st == OB_OK ? walk(a, f, false, after, payload, fn, user, err) : st;
}

static void text(struct ob_json *j, const char *name, struct ob_str s)
{
    if (s.n == 0)
        return;
    ob_json_keyc(j, name);
    ob_json_str(j, s);
}

static void raw(struct ob_json *j, const char *name, struct ob_str s)
{
    if (s.n == 0)
        return;
    ob_json_keyc(j, name);
    ob_json_raw(j, s);
}

static void version(struct ob_json *j, const char *name, int64_t v)
{
    if (v == OB_NO_VERSION)
        return;
    ob_json_keyc(j, name);
    ob_json_int(j, v);
}

static void payload_of(struct ob_json *j, struct ob_buf *out, const struct ob_emit *e)
{
    ob_json_keyc(j, "kind");
    ob_json_strc(j, e->payload_kind == OB_PAYLOAD_TEXT    ? "text"
                    : e->payload_kind == OB_PAYLOAD_BYTES ? "bytes"
                                                          : "json");
    ob_json_keyc(j, "payload");
    if (e->payload_kind == OB_PAYLOAD_NULL) {
        ob_json_null(j);
    } else if (e->payload_kind == OB_PAYLOAD_JSON) {
        ob_json_raw(j, e->payload);
    } else if (e->payload_kind == OB_PAYLOAD_TEXT) {
        ob_json_str(j, e->payload);
    } else {
        struct ob_buf b64;
        ob_buf_init(&b64, 0);
        ob_base64(&b64, e->payload);
        ob_json_str(j, ob_buf_view(&b64));
        out->failed = out->failed || b64.failed;
        ob_buf_clear(&b64);
    }
}

enum ob_status ob_pg_stream_emit(struct ob_admin *a, const struct ob_emit *e, char *id,
                                 struct ob_err *err)
{
    char made[OB_UUID_TEXT];
    struct ob_buf out;
    struct ob_json j;
    ob_uuid7_text(made);
    ob_buf_init(&out, (size_t)256 << 20);
    ob_json_init(&j, &out);
    ob_json_open(&j, '{');
    text(&j, "id", e->id.n ? e->id : ob_str_c(made));
    text(&j, "type", e->type);
    text(&j, "aggregate_type", e->aggregate_type);
    text(&j, "aggregate_id", e->aggregate_id);
    text(&j, "key", e->key);
    text(&j, "tenant", e->tenant);
    text(&j, "topic", e->topic);
    raw(&j, "headers", e->headers);
    raw(&j, "metadata", e->metadata);
    version(&j, "entity_version", e->entity_version);
    version(&j, "schema_version", e->schema_version);
    payload_of(&j, &out, e);
    ob_json_close(&j, '}');
    const struct pg_param p[] = {PG_TEXT(a->conf->message_prefix), PG_TEXT(ob_buf_z(&out))};
    enum ob_status st =
        out.failed ? ob_err_set(err, OB_REJECT, "the event is too large")
                   : ob_pg_query(&a->db, "select pg_logical_emit_message(true, $1, $2::text)", p, 2,
                                 false, NULL, err);
    if (st == OB_OK && id)
        snprintf(id, 64, "%.*s", OB_STR_ARG(e->id.n ? e->id : ob_str_c(made)));
    ob_buf_clear(&out);
    return st;
}
