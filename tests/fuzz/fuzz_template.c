/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_template - routes, templates and envelopes from any config, for any row.
 *
 * Input: up to four parts, each ended by a line "%%": `routes:` and `envelope:` as YAML, then the
 * row's payload, headers and metadata. A first part that starts with '=' is not YAML but one text
 * that is used as topic, key, header and JSON template at once. */
#include "../unit/core/jansson_agree.h"
#include "config/node.h"
#include "fuzz.h"
#include "route/rule.h"

static struct ob_str next_part(struct ob_str *rest)
{
    struct ob_str part = *rest;
    const char *end = rest->n ? memmem(rest->p, rest->n, "\n%%\n", 4) : NULL;
    *rest = (struct ob_str){"", 0};
    if (end != NULL) {
        *rest = (struct ob_str){end + 4, part.n - (size_t)(end + 4 - part.p)};
        part.n = (size_t)(end - part.p);
    }
    return part;
}

/* A tree as the YAML reader would make it, with text in every place that takes a template. */
static struct ob_routes *compile_text(struct ob_arena *arena, struct ob_str text)
{
    static const char *keys[] = {"a", "b", "c"};
    static const char *merge_key[] = {"$merge"};
    static struct ob_opt_pos pos[3];
    static const char *route_keys[] = {"topic", "key", "headers"};
    struct ob_node t = {.text = ob_arena_copy(arena, text).p, .quoted = true};
    struct ob_node plain = {.text = t.text};
    struct ob_node metadata = {.text = "${metadata}", .quoted = true};
    struct ob_node *both[] = {&metadata, &t};
    struct ob_node list = {.kind = OB_NODE_LIST, .items = both, .n = 2};
    struct ob_node *lists[] = {&list};
    struct ob_node merge = {
        .kind = OB_NODE_MAP, .items = lists, .keys = merge_key, .key_pos = pos, .n = 1};
    struct ob_node *values[] = {&t, &plain, &merge};
    struct ob_node shape = {
        .kind = OB_NODE_MAP, .items = values, .keys = keys, .key_pos = pos, .n = 2};
    if (strncmp(t.text, "${", 2) == 0)
        shape.n = 3;
    struct ob_node *texts[] = {&t};
    struct ob_node headers = {
        .kind = OB_NODE_MAP, .items = texts, .keys = keys, .key_pos = pos, .n = 1};
    struct ob_node *outs[] = {&t, &t, &headers};
    struct ob_node route = {
        .kind = OB_NODE_MAP, .items = outs, .keys = route_keys, .key_pos = pos, .n = 3};
    struct ob_node *rules[] = {&route};
    struct ob_node routes = {.kind = OB_NODE_LIST, .items = rules, .n = 1};
    static const char *envelope_key[] = {"template"};
    struct ob_node *shapes[] = {&shape};
    struct ob_node envelope = {
        .kind = OB_NODE_MAP, .items = shapes, .keys = envelope_key, .key_pos = pos, .n = 1};
    struct ob_route_conf conf = {.routes = &routes, .envelope = &envelope, .service = "s"};
    struct ob_routes *r = NULL;
    struct ob_err err;
    if (ob_routes_new(&conf, &r, &err) != OB_OK)
        FUZZ_CHECK(err.status == OB_FATAL && err.text[0] != '\0');
    return r;
}

static struct ob_routes *compile_yaml(struct ob_arena *arena, struct ob_str text)
{
    struct ob_node *top;
    struct ob_routes *r = NULL;
    struct ob_err err;
    if (ob_yaml_parse(arena, "f", text, NULL, &top, &err) != OB_OK)
        return NULL;
    struct ob_route_conf conf = {.routes = ob_node_get(top, "routes"),
                                 .envelope = ob_node_get(top, "envelope"),
                                 .service = "s"};
    if (ob_routes_new(&conf, &r, &err) != OB_OK)
        FUZZ_CHECK(err.status == OB_FATAL && err.text[0] != '\0');
    return r;
}

static void check_message(const struct ob_routes *r, const struct ob_event *ev,
                          const struct ob_msg *m)
{
    enum ob_envelope kind = r->rules[r->n - 1].env.kind;
    FUZZ_CHECK(m->topic.n > 0 && m->topic.n <= OB_ROUTE_TOPIC_MAX);
    FUZZ_CHECK(m->key.n <= OB_ROUTE_KEY_MAX && m->n_headers <= OB_HEADERS_MAX);
    FUZZ_CHECK(!ob_has_control(m->topic) && !ob_has_control(m->stream));
    for (size_t i = 0; i < m->n_headers; i++) {
        FUZZ_CHECK(m->headers[i].name.n > 0 && !ob_has_control(m->headers[i].name));
        FUZZ_CHECK(!ob_has_control(m->headers[i].value));
        for (size_t k = 0; k < i; k++)
            FUZZ_CHECK(!ob_str_eq(m->headers[k].name, m->headers[i].name));
    }
    if (r->n == 1 && (kind == OB_ENV_TEMPLATE || kind == OB_ENV_CLOUDEVENTS_STRUCTURED)) {
        struct ob_err err;
        enum ob_status st = ob_json_check(m->value, NULL, &err);
        /* An envelope around the deepest payload is too deep to be read again. */
        FUZZ_CHECK(st == OB_OK || strstr(err.text, "nested too deep") != NULL);
        FUZZ_CHECK(st != OB_OK || jansson_agrees(m->value, st, &err));
    }
    if (kind == OB_ENV_NONE && r->n == 1)
        FUZZ_CHECK(m->value.p == ev->payload.p);
}

static void route(const struct ob_routes *r, const struct ob_event *ev, struct ob_arena *arena)
{
    struct ob_msg m, again;
    struct ob_err err;
    struct ob_buf scratch;
    ob_buf_init(&scratch, (size_t)1 << 20);
    enum ob_status st = ob_route_event(r, ev, 1770091506789000, arena, &scratch, &m, &err);
    FUZZ_CHECK(st == OB_OK || (st == OB_REJECT && err.text[0] != '\0'));
    FUZZ_CHECK(m.dest_hash != 0 && m.destination.n > 0 && m.event == ev);
    if (st == OB_OK)
        check_message(r, ev, &m);
    FUZZ_CHECK(ob_route_event(r, ev, 1770091506789000, arena, &scratch, &again, &err) == st);
    FUZZ_CHECK(m.key_hash == again.key_hash && m.dest_hash == again.dest_hash);
    FUZZ_CHECK(st != OB_OK || ob_str_eq(m.value, again.value));
    (void)ob_route_trace_id(r, ev, 0, arena, &scratch);
    ob_buf_clear(&scratch);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct ob_str rest = {(const char *)data, n}, config = next_part(&rest);
    struct ob_arena *arena = ob_arena_new(4096, 0);
    struct ob_col col = {OB_STR("c"), {"", 0}, OB_COL_TEXT};
    struct ob_event ev = {.id = OB_STR("id-1"),
                          .type = OB_STR("order.placed"),
                          .aggregate_id = OB_STR("o-7"),
                          .entity_version = 3,
                          .schema_version = OB_NO_VERSION,
                          .created_us = 1770091505001999,
                          .cols = &col,
                          .n_cols = 1};
    struct ob_routes *r;
    if (arena == NULL)
        abort();
    ev.payload = next_part(&rest);
    ev.headers = next_part(&rest);
    ev.metadata = next_part(&rest);
    col.value = ev.payload;
    if (config.n > 0 && config.p[0] == '=')
        r = compile_text(arena, (struct ob_str){config.p + 1, config.n - 1});
    else
        r = compile_yaml(arena, config);
    for (int kind = OB_PAYLOAD_JSON; r != NULL && kind <= OB_PAYLOAD_NULL; kind++) {
        ev.payload_kind = (enum ob_payload_kind)kind;
        col.kind = (enum ob_col_kind)(kind + 1);
        route(r, &ev, arena);
    }
    ob_routes_free(r);
    ob_arena_unref(arena);
    return 0;
}
