/* SPDX-License-Identifier: Apache-2.0 */
/* tables_test - every option table of this build is sound; the example config loads. */
#include "config/load.h"
#include "ob_build.h"
#include "relay/conf_table.h"
#include "relay/drivers.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static size_t size_of(enum ob_opt_type type)
{
    switch (type) {
    case OB_OPT_BOOL:
        return sizeof(bool);
    case OB_OPT_ENUM:
        return sizeof(int);
    case OB_OPT_MAP:
        return sizeof(struct ob_opt_map);
    case OB_OPT_LIST:
        return sizeof(struct ob_opt_list);
    case OB_OPT_STR:
    case OB_OPT_NODE:
        return sizeof(void *);
    default:
        return sizeof(int64_t);
    }
}

/* What a reader of the struct relies on: a number, a bool or a choice always has a value. */
static bool needs_default(const struct ob_opt *opt)
{
    return opt->type != OB_OPT_STR && opt->type != OB_OPT_MAP && opt->type != OB_OPT_LIST &&
           opt->type != OB_OPT_NODE && opt->type != OB_OPT_GROUP;
}

static void check_one(const struct ob_opt *opt, size_t conf_size)
{
    struct ob_opt alone[] = {*opt, {0}};
    struct ob_arena *arena = ob_arena_new(1024, 1 << 20);
    struct ob_err err = {0};
    void *conf = calloc(1, conf_size + 1);
    assert_non_null(conf);
    assert_true(opt->offset + size_of(opt->type) <= conf_size);
    assert_true(opt->help && *opt->help && opt->help[strlen(opt->help) - 1] != ' ');
    assert_true((opt->type == OB_OPT_ENUM) == (opt->choices != NULL));
    assert_false((opt->flags & OB_OPT_REQUIRED) && opt->def);
    if (needs_default(opt))
        assert_true((opt->flags & OB_OPT_REQUIRED) || opt->def);
    alone[0].flags &= ~(unsigned)OB_OPT_REQUIRED;
    enum ob_status st = ob_opt_load(alone, NULL, conf, arena, &err);
    assert_string_equal(err.text, ""); /* its default is allowed */
    assert_int_equal(st, OB_OK);
    free(conf);
    ob_arena_unref(arena);
}

static void check_table(const char *name, const struct ob_opt *table, size_t conf_size)
{
    for (const struct ob_opt *opt = table; opt && opt->type != OB_OPT_END; opt++) {
        print_message("# %s.%s\n", name, opt->name);
        for (const struct ob_opt *other = table; other != opt; other++)
            assert_string_not_equal(other->name, opt->name);
        check_one(opt, conf_size);
        if (opt->type == OB_OPT_GROUP) /* its fields lie behind its own offset */
            check_table(opt->name, opt->group, conf_size - opt->offset);
    }
}

static void test_own_tables(void **state)
{
    (void)state;
    check_table("top", ob_top_opts, sizeof(struct ob_top_nodes));
    check_table("log", ob_log_opts, sizeof(struct ob_config));
    check_table("pipeline", ob_pipeline_opts, sizeof(struct ob_pipeline_conf));
    check_table("pipeline", ob_pipeline_node_opts, sizeof(struct ob_pipeline_nodes));
    check_table("pipeline", ob_pipeline_route_opts, sizeof(struct ob_route_conf));
    check_table("retry", ob_retry_opts, sizeof(struct ob_pipeline_conf));
    check_table("source", ob_source_type_opts, sizeof(struct ob_end_type));
    check_table("sink", ob_sink_type_opts, sizeof(struct ob_pipeline_conf));
}

static void check_no_type(const struct ob_opt *table)
{
    for (; table && table->type != OB_OPT_END; table++)
        assert_string_not_equal(table->name, "type"); /* that is the driver's own name */
}

static void test_drivers(void **state)
{
    (void)state;
    const char *why = NULL;
    for (size_t i = 0; ob_source_drivers[i]; i++) {
        const struct ob_source_driver *d = ob_source_drivers[i];
        check_table(d->name, d->opts, d->conf_size);
        check_no_type(d->opts);
        assert_true(d->summary && *d->summary);
        assert_ptr_equal(ob_source_driver_find(d->name, &why), d);
    }
    for (size_t i = 0; ob_sink_drivers[i]; i++) {
        const struct ob_sink_driver *d = ob_sink_drivers[i];
        check_table(d->name, d->opts, d->conf_size);
        check_no_type(d->opts);
        assert_true(d->summary && *d->summary);
        assert_ptr_equal(ob_sink_driver_find(d->name, &why), d);
    }
    assert_null(ob_source_driver_find("nope", &why));
    assert_string_equal(why, "there is no such type");
    why = NULL;
    assert_null(ob_sink_driver_find("nope", &why));
    assert_string_equal(why, "there is no such type");
}

static void test_registry(void **state)
{
    (void)state;
    const char *why = NULL;
    assert_non_null(ob_sink_driver_find("file", &why));
    assert_non_null(ob_sink_driver_find("stdout", &why));
    assert_non_null(ob_sink_driver_find("null", &why));
#if OB_HAVE_SQLITE
    assert_non_null(ob_source_driver_find("sqlite", &why));
#else
    assert_null(ob_source_driver_find("sqlite", &why));
    assert_non_null(strstr(why, "built without SQLite"));
#endif
}

#if OB_HAVE_SQLITE
static void test_example(void **state)
{
    (void)state;
    struct ob_config *c = NULL;
    struct ob_err err = {0};
    unsetenv("OUTBOX_DB");
    unsetenv("OUTBOX_FILE");
    enum ob_status st = ob_config_load(getenv("OB_EXAMPLE"), &c, &err);
    assert_string_equal(err.text, "");
    assert_int_equal(st, OB_OK);
    assert_string_equal(c->pipelines[0].name, "orders");
    assert_string_equal(c->pipelines[0].service, "shop");
    ob_config_free(c);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_own_tables),
        cmocka_unit_test(test_drivers),
        cmocka_unit_test(test_registry),
#if OB_HAVE_SQLITE
        cmocka_unit_test(test_example),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
