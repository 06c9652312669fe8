/* SPDX-License-Identifier: Apache-2.0 */
/* fixture - a config text and an event in, a message out. */
#ifndef OB_TESTS_ROUTE_FIXTURE_H
#define OB_TESTS_ROUTE_FIXTURE_H

#include "config/node.h"
#include "core/clock.h"
#include "core/jscan.h"
#include "route/route.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>
#include <jansson.h>

/* Initialises a struct ob_str from a literal, NUL bytes included. */
#define S(lit)                                                                                     \
    {                                                                                              \
        lit, sizeof(lit) - 1                                                                       \
    }

#define NOW_US INT64_C(1770091506789123)     /* 2026-02-03T04:05:06.789Z */
#define CREATED_US INT64_C(1770091505001999) /* 2026-02-03T04:05:05.001Z */

struct fixture {
    struct ob_arena *conf, *arena;
    struct ob_buf scratch;
    struct ob_routes *routes;
    struct ob_msg msg;
    struct ob_err err;
};

static inline void fixture_init(struct fixture *f)
{
    *f = (struct fixture){.conf = ob_arena_new(4096, 0), .arena = ob_arena_new(4096, 0)};
    assert_non_null(f->conf);
    assert_non_null(f->arena);
    ob_buf_init(&f->scratch, 0);
}

static inline void fixture_clear(struct fixture *f)
{
    ob_routes_free(f->routes);
    ob_arena_unref(f->conf);
    ob_arena_unref(f->arena);
    ob_buf_clear(&f->scratch);
}

/* yaml: `routes:` and `envelope:` as they stand in a pipeline. "": neither. */
static inline enum ob_status fixture_load(struct fixture *f, const char *yaml, const char *service)
{
    struct ob_node *top = NULL;
    struct ob_route_conf conf = {.service = service};
    if (yaml[0] != '\0')
        assert_int_equal(ob_yaml_parse(f->conf, "f", ob_str_c(yaml), NULL, &top, &f->err), OB_OK);
    conf.routes = ob_node_get(top, "routes");
    conf.envelope = ob_node_get(top, "envelope");
    return ob_routes_new(&conf, &f->routes, &f->err);
}

static inline enum ob_status fixture_route(struct fixture *f, const struct ob_event *ev)
{
    return ob_route_event(f->routes, ev, NOW_US, f->arena, &f->scratch, &f->msg, &f->err);
}

/* The event that most tables start from. */
static inline struct ob_event order_event(void)
{
    return (struct ob_event){
        .ref = 42,
        .seq = 42,
        .id = S("0194c9a7-0000-7000-8000-000000000001"),
        .type = S("order.placed"),
        .aggregate_type = S("order"),
        .aggregate_id = S("o-7"),
        .tenant = S("acme"),
        .payload = S("{\"orderId\": 7,\"total\":12.50,\"note\":\"a\\u0062\"}"),
        .metadata = S("{\"traceId\":\"t-1\",\"userId\":null,\"n\":3}"),
        .entity_version = 3,
        .schema_version = OB_NO_VERSION,
        .created_us = CREATED_US,
    };
}

static inline struct ob_str header_of(const struct ob_msg *msg, const char *name)
{
    for (size_t i = 0; i < msg->n_headers; i++)
        if (ob_str_eqc(msg->headers[i].name, name))
            return msg->headers[i].value;
    return (struct ob_str){NULL, 0};
}

/* The whole message as one text: address, headers, an empty line, the value. */
static inline const char *dump(struct fixture *f)
{
    const struct ob_msg *m = &f->msg;
    struct ob_buf b;
    ob_buf_init(&b, 0);
    ob_buf_printf(&b, "%.*s", OB_STR_ARG(m->topic));
    if (m->stream.n > 0)
        ob_buf_printf(&b, " stream=%.*s", OB_STR_ARG(m->stream));
    ob_buf_printf(&b, " key=%.*s type=%.*s\n", OB_STR_ARG(m->key), OB_STR_ARG(m->content_type));
    for (size_t i = 0; i < m->n_headers; i++)
        ob_buf_printf(&b, "%.*s: %.*s\n", OB_STR_ARG(m->headers[i].name),
                      OB_STR_ARG(m->headers[i].value));
    ob_buf_c(&b, "\n");
    if (m->value_null)
        ob_buf_c(&b, "(null)");
    else
        ob_buf_str(&b, m->value);
    const char *text = ob_arena_copy(f->conf, ob_buf_view(&b)).p;
    ob_buf_clear(&b);
    return text;
}

/* jansson reads it too. */
static inline void assert_json(struct ob_str text)
{
    json_error_t e;
    json_t *doc = json_loadb(text.p, text.n, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &e);
    if (doc == NULL)
        fail_msg("jansson: %s in %.*s", e.text, OB_STR_ARG(text));
    json_decref(doc);
}

#define assert_text(got, want) fixture_assert_text((got), (want), name, __LINE__)

static inline void fixture_assert_text(struct ob_str got, const char *want, const char *name,
                                       int line)
{
    if (!ob_str_eqc(got, want))
        fail_msg("%s (line %d):\n got  %.*s\n want %s", name, line, OB_STR_ARG(got), want);
}

/* Part of an error's text. */
#define assert_says(err, want) fixture_assert_says((err), (want), name, __LINE__)

static inline void fixture_assert_says(const struct ob_err *err, const char *want, const char *name,
                                       int line)
{
    if (strstr(err->text, want) == NULL)
        fail_msg("%s (line %d):\n says %s\n want %s", name, line, err->text, want);
}

#endif
