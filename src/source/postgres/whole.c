/* SPDX-License-Identifier: Apache-2.0 */
/* whole - events that no table keeps, beside their parked and dead rows. */
#include "source/postgres/whole.h"

#include "core/jscan.h"
#include "core/json.h"

#include <stdlib.h>

#define FETCH_BYTES ((size_t)8 << 20) /* of parked events that come into memory at once */

/* Texts of an event by name; the names are those that outbox.unpack() knows. */
static struct ob_str *place(struct ob_event *ev, size_t i, const char **name)
{
    struct {
        const char *name;
        struct ob_str *at;
    } all[] = {
        {"id", &ev->id},
        {"type", &ev->type},
        {"aggregate_type", &ev->aggregate_type},
        {"aggregate_id", &ev->aggregate_id},
        {"key", &ev->key},
        {"tenant", &ev->tenant},
        {"topic", &ev->topic},
        {"stream", &ev->stream},
        {"headers", &ev->headers},
        {"metadata", &ev->metadata},
        {"fault", &ev->fault},
    };
    if (i >= sizeof(all) / sizeof(all[0]))
        return NULL;
    *name = all[i].name;
    return all[i].at;
}

/* A text in jsonb cannot hold NUL; a settle that the server refuses would be tried for ever. */
static void add_text(struct ob_json *j, struct ob_str s)
{
    struct ob_buf clean;
    if (!s.n || !memchr(s.p, 0, s.n)) {
        ob_json_str(j, s);
        return;
    }
    ob_buf_init(&clean, 0);
    for (size_t i = 0; i < s.n; i++)
        ob_buf_char(&clean, s.p[i] ? s.p[i] : '?');
    ob_json_str(j, ob_buf_view(&clean));
    ob_buf_clear(&clean);
}

static void add_number(struct ob_json *j, const char *name, int64_t v, int64_t none)
{
    if (v == none)
        return;
    ob_json_keyc(j, name);
    ob_json_int(j, v);
}

static void add_cols(struct ob_json *j, const struct ob_event *ev)
{
    if (ev->n_cols == 0)
        return;
    ob_json_keyc(j, "cols");
    ob_json_open(j, '[');
    for (size_t i = 0; i < ev->n_cols; i++) {
        add_text(j, ev->cols[i].name);
        add_text(j, ev->cols[i].value);
        ob_json_int(j, (int64_t)ev->cols[i].kind);
    }
    ob_json_close(j, ']');
}

void ob_pg_whole_pack(const struct ob_event *ev, struct ob_buf *out)
{
    static const char *const kinds[] = {[OB_PAYLOAD_JSON] = "j",
                                        [OB_PAYLOAD_TEXT] = "t",
                                        [OB_PAYLOAD_BYTES] = "b",
                                        [OB_PAYLOAD_NULL] = "b"};
    struct ob_event copy = *ev;
    struct ob_json j;
    const char *name = NULL;
    const struct ob_str *at;
    ob_json_init(&j, out);
    ob_json_open(&j, '{');
    for (size_t i = 0; (at = place(&copy, i, &name)) != NULL; i++) {
        if (!at->p)
            continue;
        ob_json_keyc(&j, name);
        add_text(&j, *at);
    }
    ob_json_keyc(&j, "payload_kind");
    ob_json_strc(&j, kinds[ev->payload_kind]);
    add_number(&j, "entity_version", ev->entity_version, OB_NO_VERSION);
    add_number(&j, "schema_version", ev->schema_version, OB_NO_VERSION);
    add_number(&j, "max_attempts", ev->max_attempts, 0);
    add_number(&j, "created_us", ev->created_us, -1);
    add_number(&j, "seq", (int64_t)ev->seq, 0);
    add_cols(&j, ev);
    ob_json_close(&j, '}');
}

/* ---- back ---- */

struct unpack {
    struct ob_arena *arena;
    struct ob_event *ev;
    bool failed;
};

static struct ob_str text(struct unpack *u, const struct ob_jtok *tok)
{
    struct ob_buf buf;
    ob_buf_init(&buf, 0);
    ob_jscan_unescape(&buf, tok->text);
    struct ob_str s = ob_arena_copy(u->arena, ob_buf_view(&buf));
    u->failed = u->failed || buf.failed || !s.p;
    ob_buf_clear(&buf);
    return s;
}

static int64_t number(const struct ob_jtok *tok)
{
    char digits[24] = "";
    memcpy(digits, tok->raw.p, tok->raw.n < sizeof(digits) ? tok->raw.n : 0);
    return strtoll(digits, NULL, 10);
}

static enum ob_status cols(struct unpack *u, struct ob_str raw, struct ob_err *err)
{
    struct ob_jscan s;
    struct ob_jtok tok;
    size_t n = 0;
    ob_jscan_init(&s, raw);
    enum ob_status st = ob_jscan_next(&s, &tok, err);
    for (; st == OB_OK && tok.type != OB_J_END; n++)
        st = ob_jscan_next(&s, &tok, err);
    u->ev->cols = ob_arena_zalloc(u->arena, (n / 3 + 1) * sizeof(*u->ev->cols));
    if (!u->ev->cols)
        return ob_err_set(err, OB_DOWN, "no memory");
    ob_jscan_init(&s, raw);
    if (st == OB_OK)
        st = ob_jscan_next(&s, &tok, err);
    for (;;) {
        struct ob_col *c = &u->ev->cols[u->ev->n_cols];
        if (st == OB_OK)
            st = ob_jscan_next(&s, &tok, err);
        if (st != OB_OK || tok.type != OB_J_STRING)
            return st;
        c->name = text(u, &tok);
        st = ob_jscan_next(&s, &tok, err);
        if (st == OB_OK && tok.type == OB_J_STRING)
            c->value = text(u, &tok);
        if (st == OB_OK)
            st = ob_jscan_next(&s, &tok, err);
        if (st == OB_OK && tok.type == OB_J_NUMBER)
            c->kind = (enum ob_col_kind)(number(&tok) & 7);
        u->ev->n_cols++;
    }
}

static enum ob_status field(struct unpack *u, struct ob_str key, const struct ob_jtok *tok,
                            struct ob_str raw, struct ob_err *err)
{
    struct ob_event *ev = u->ev;
    const char *name = NULL;
    struct ob_str *at;
    for (size_t i = 0; tok->type == OB_J_STRING && (at = place(ev, i, &name)) != NULL; i++) {
        if (ob_str_eqc(key, name)) {
            *at = text(u, tok);
            return OB_OK;
        }
    }
    if (ob_str_eqc(key, "cols") && tok->type == OB_J_ARRAY)
        return cols(u, raw, err);
    if (ob_str_eqc(key, "payload_kind") && tok->text.n == 1)
        ev->payload_kind = tok->text.p[0] == 'j'   ? OB_PAYLOAD_JSON
                           : tok->text.p[0] == 't' ? OB_PAYLOAD_TEXT
                                                   : OB_PAYLOAD_BYTES;
    if (tok->type != OB_J_NUMBER)
        return OB_OK;
    if (ob_str_eqc(key, "entity_version"))
        ev->entity_version = number(tok);
    else if (ob_str_eqc(key, "schema_version"))
        ev->schema_version = number(tok);
    else if (ob_str_eqc(key, "max_attempts"))
        ev->max_attempts = (uint32_t)number(tok);
    else if (ob_str_eqc(key, "created_us"))
        ev->created_us = number(tok);
    else if (ob_str_eqc(key, "seq"))
        ev->seq = (uint64_t)number(tok);
    return OB_OK;
}

enum ob_status ob_pg_whole_unpack(struct ob_str json, struct ob_str payload, bool null_payload,
                                  struct ob_arena *arena, struct ob_event *ev, struct ob_err *err)
{
    struct unpack u = {.arena = arena, .ev = ev};
    struct ob_jscan s;
    struct ob_jtok tok;
    *ev = (struct ob_event){.entity_version = OB_NO_VERSION, .schema_version = OB_NO_VERSION};
    ob_jscan_init(&s, json);
    enum ob_status st = ob_jscan_next(&s, &tok, err);
    if (st == OB_OK && tok.type != OB_J_OBJECT)
        return ob_err_set(err, OB_REJECT, "it is no object");
    while (st == OB_OK) {
        struct ob_str key, raw;
        st = ob_jscan_next(&s, &tok, err);
        if (st != OB_OK || tok.type == OB_J_OBJECT_END)
            break;
        key = tok.text;
        st = ob_jscan_next(&s, &tok, err);
        if (st == OB_OK)
            st = ob_jscan_rest(&s, &tok, &raw, err);
        if (st == OB_OK)
            st = field(&u, key, &tok, raw, err);
    }
    ev->payload = payload;
    if (null_payload)
        ev->payload_kind = OB_PAYLOAD_NULL;
    if (st == OB_OK && u.failed)
        st = ob_err_set(err, OB_DOWN, "no memory for an event");
    return st;
}

static void result_drop(void *res)
{
    PQclear(res);
}

enum ob_status ob_pg_whole_fetch(struct ob_source *s, const struct ob_str *refs, size_t n,
                                 struct ob_batch *batch, struct ob_err *err)
{
    PGresult *res = NULL;
    size_t bytes = 0;
    for (size_t i = 0; i < n; i++)
        batch->events[i] = (struct ob_event){0};
    ob_pg_array_begin(&s->array[0]);
    for (size_t i = 0; i < n; i++)
        ob_pg_array_add(&s->array[0], refs[i]);
    const struct pg_param p[] = {PG_TEXT(s->pipeline), PG_TEXT(ob_pg_array_end(&s->array[0]))};
    enum ob_status st = ob_pg_query(
        &s->sql,
        "select t.i, p.event::text, p.payload from unnest($2::text[]) with ordinality as t(ref, i) "
        "join outbox.parked p on p.pipeline = $1 and p.ref = t.ref and p.event is not null order "
        "by t.i",
        p, 2, true, &res, err);
    if (st != OB_OK)
        return st;
    if (!ob_arena_keep(batch->arena, result_drop, res, PQresultMemorySize(res))) {
        PQclear(res);
        return ob_err_set(err, OB_DOWN, "no memory for a page of events");
    }
    for (int row = 0; st == OB_OK && row < PQntuples(res) && batch->n == 0; row++) {
        size_t at = (size_t)ob_pg_i64(res, row, 0);
        struct ob_event *ev = &batch->events[at - 1];
        st = ob_pg_whole_unpack(ob_pg_str(res, row, 1), ob_pg_str(res, row, 2),
                                ob_pg_null(res, row, 2), batch->arena, ev, err);
        bytes += ev->payload.n;
        if (bytes >= FETCH_BYTES && row + 1 < PQntuples(res))
            batch->n = at;
    }
    return st == OB_REJECT ? ob_err_set(err, OB_FATAL, "a parked event cannot be read") : st;
}
