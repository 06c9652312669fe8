/* SPDX-License-Identifier: Apache-2.0 */
/* alloc_test - no memory from the n-th allocation on, for every n: routes are refused, an event is
 * put off and never rejected. malloc and realloc are wrapped by the linker. */
#include "fixture.h"

static int until_failure = -1; /* calls that still succeed; -1: all */

void *__real_malloc(size_t n);
void *__real_realloc(void *p, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_realloc(void *p, size_t n);

static bool fails(void)
{
    if (until_failure > 0)
        until_failure--;
    else if (until_failure == 0)
        return true;
    return false;
}

void *__wrap_malloc(size_t n)
{
    return fails() ? NULL : __real_malloc(n);
}

void *__wrap_realloc(void *p, size_t n)
{
    return fails() ? NULL : __real_realloc(p, n);
}

static const char *const configs[] = {
    "envelope: cloudevents-structured\n"
    "routes: [{topic: 'x.${type}', stream: 's.${type}', headers: {h: '${now} ${created}'}}]\n",
    "envelope: {cloudevents: {extensions: {e: '${now}'}}}\n",
    "envelope: {template: {p: '${payload}', t: 'x ${payload}', m: {$merge: ['${payload}', "
    "'${metadata}', {a: '${payload:/a:-${id} ${type}}'}]}}}\n"
    "routes:\n"
    "  - {match: {type: [a, b, 'c*']}, topic: t, envelope: debezium, key: '${tenant}'}\n"
    "  - {topic: '${payload:/note}', key: '${id} ${seq}', trace_id: '${id}'}\n",
};

static void routes_are_refused(struct fixture *f, const struct ob_route_conf *conf)
{
    enum ob_status st = OB_FATAL;
    int n = 0;
    for (; st != OB_OK; n++) {
        f->err.text[0] = '\0';
        until_failure = n;
        st = ob_routes_new(conf, &f->routes, &f->err);
        until_failure = -1;
        if (st != OB_OK) {
            assert_int_equal(st, OB_FATAL);
            assert_non_null(strstr(f->err.text, "no memory"));
            assert_null(f->routes);
        }
    }
    assert_in_range(n, 2, 1000); /* it did fail */
}

static void event_is_put_off(struct fixture *f, const struct ob_event *ev)
{
    enum ob_status st = OB_RETRY;
    int n = 0;
    for (; st != OB_OK; n++) {
        ob_arena_unref(f->arena);
        f->arena = ob_arena_new(256, 0);
        ob_buf_clear(&f->scratch);
        until_failure = n;
        st = fixture_route(f, ev);
        until_failure = -1;
        if (st != OB_OK && st != OB_RETRY)
            fail_msg("failure %d: %s: %s", n, ob_status_name(st), f->err.text);
        if (st == OB_RETRY)
            assert_non_null(strstr(f->err.text, "no memory"));
        assert_int_not_equal(f->msg.dest_hash, 0);
    }
    assert_in_range(n, 2, 1000);
}

static void no_memory_is_nobodys_fault(void **state)
{
    (void)state;
    struct ob_buf many;
    struct ob_event ev = order_event();
    ob_buf_init(&many, 0);
    for (int i = 0; i < 100; i++)
        ob_buf_printf(&many, "%c\"k\\u0061%d\":\"a \\\"long\\\" value\"", i ? ',' : '{', i);
    ob_buf_c(&many, ",\"note\":\"a\\u0062\"}");
    ev.payload = ev.headers = ob_buf_view(&many);
    for (size_t i = 0; i < sizeof configs / sizeof configs[0]; i++) {
        struct fixture f;
        struct ob_node *top;
        fixture_init(&f);
        assert_int_equal(ob_yaml_parse(f.conf, "f", ob_str_c(configs[i]), NULL, &top, &f.err),
                         OB_OK);
        struct ob_route_conf conf = {.routes = ob_node_get(top, "routes"),
                                     .envelope = ob_node_get(top, "envelope"),
                                     .service = "s"};
        routes_are_refused(&f, &conf);
        event_is_put_off(&f, &ev);
        fixture_clear(&f);
    }
    ob_buf_clear(&many);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_memory_is_nobodys_fault)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
