/* SPDX-License-Identifier: Apache-2.0 */
/* profile_test - profiles under the user's values: found, merged, refused. */
#include "conf_fixture.h"

static void test_profile(void **state)
{
    (void)state;
    struct folder f;
    enter(&f);
    put_file("mine/orion.yaml", "service: rfq\n"
                                "source: {type: db, path: base.db, page: 100}\n"
                                "sink: {type: out, props: {acks: all, linger.ms: 5}, max: 3k}\n"
                                "routes: [{topic: \"orion.${type}\"}, {topic: d}]\n"
                                "max_attempts: 5\n"
                                "retry: {first: 2s, jitter: 0}\n");
    struct ob_config *c = parse("pipelines:\n"
                                "  rfq:\n"
                                "    profile: orion\n"
                                "    source: {path: mine.db}\n"
                                "    sink: {props: {linger.ms: 0}}\n"
                                "    routes: [{topic: own}]\n"
                                "    max_attempts: ~\n"
                                "    retry: {first: 3s}\n");
    const struct ob_pipeline_conf *p = ob_config_pipeline(c, "rfq");
    const struct db_conf *s = p->source_conf;
    const struct out_conf *o = p->sink_conf;
    assert_string_equal(p->profile, "orion");
    assert_string_equal(p->service, "rfq");
    assert_string_equal(s->path, "mine.db");
    assert_int_equal(s->page, 100);
    assert_int_equal(o->props.n, 2);
    assert_string_equal(o->props.keys[1], "linger.ms");
    assert_string_equal(o->props.values[1], "0");
    assert_int_equal(o->max, 3072);
    assert_int_equal(p->route.routes->n, 1); /* lists replace */
    assert_int_equal(p->max_attempts, 10);   /* taken away: the default */
    assert_int_equal(p->retry_first_ms, 3000);
    assert_int_equal(p->retry_jitter_pct, 0);
    struct ob_buf out;
    ob_buf_init(&out, 0);
    ob_config_explain(c, &out);
    const char *z = ob_buf_z(&out);
    assert_non_null(
        strstr(z, "page: 100                              # from mine/orion.yaml:2:41\n"));
    assert_non_null(strstr(z, "path: mine.db                          # from f:4:20\n"));
    assert_non_null(
        strstr(z, "service: rfq                             # from mine/orion.yaml:1:10\n"));
    ob_buf_clear(&out);
    ob_config_free(c);
    leave(&f);
}

static void test_profile_of_another_type(void **state)
{
    (void)state;
    struct folder f;
    enter(&f);
    put_file("mine/p.yaml", "source: {type: db, path: x}\nsink: {type: out, max: 3k}\n");
    struct ob_config *c = parse("pipelines: {a: {profile: p, sink: {type: bare}}}\n");
    assert_ptr_equal(ob_config_pipeline(c, "a")->sink, &bare);
    ob_config_free(c);
    c = parse("pipelines: {a: {profile: p, sink: {type: out}}}\n");
    assert_int_equal(((const struct out_conf *)c->pipelines[0].sink_conf)->max, 3072);
    ob_config_free(c);
    leave(&f);
}

/* A secret of the profile yields to the user's file; both from the user are an error. */
static void test_profile_secret(void **state)
{
    (void)state;
    struct folder f;
    enter(&f);
    put_file("mine/p.yaml", "source: {type: db, path: x, password: weak}\nsink: {type: out}\n");
    put_file("secret", "strong\n");
    struct ob_config *c = parse("pipelines: {a: {profile: p, source: {password_file: secret}}}\n");
    assert_string_equal(((const struct db_conf *)c->pipelines[0].source_conf)->password, "strong");
    struct ob_buf out;
    ob_buf_init(&out, 0);
    ob_config_explain(c, &out);
    assert_null(strstr(ob_buf_z(&out), "strong"));
    assert_null(strstr(ob_buf_z(&out), "weak"));
    assert_non_null(strstr(ob_buf_z(&out), "password_file: secret "));
    ob_buf_clear(&out);
    ob_config_free(c);
    struct ob_err err = {0};
    assert_int_equal(ob_config_parse("f",
                                     OB_STR("pipelines: {a: {profile: p, source: {password: a, "
                                            "password_file: secret}}}\n"),
                                     &c, NULL, &err),
                     OB_FATAL);
    assert_string_equal(err.text, "f:1:66: pipelines.a.source.password and password_file are both "
                                  "given; keep one of them");
    leave(&f);
}

static void test_profile_variables(void **state)
{
    (void)state;
    struct folder f;
    enter(&f);
    setenv("OB_TEST_SET", "from env", 1);
    put_file("mine/p.yaml",
             "source: {type: db, path: \"${OB_TEST_SET}\"}\nsink: {type: out}\n"
             "routes: [{topic: \"${type}\"}]\nenvelope: {template: {a: \"${id}\"}}\n");
    struct ob_config *c = parse("pipelines: {a: {profile: p}}\n");
    assert_string_equal(((const struct db_conf *)c->pipelines[0].source_conf)->path, "from env");
    const struct ob_node *route = c->pipelines[0].route.routes->items[0];
    assert_string_equal(ob_node_get(route, "topic")->text, "${type}");
    ob_config_free(c);
    leave(&f);
}

static void test_bad_profiles(void **state)
{
    (void)state;
    static const struct {
        const char *name, *file, *want;
    } rows[] = {
        {"unknown key", "source: {type: db, path: x}\nsink: {type: out}\nwindw: 3\n",
         "mine/p.yaml:3:1: unknown key 'windw' in pipelines.a; did you mean 'window'?"},
        {"a bad value", "source: {type: db, path: x, page: no}\nsink: {type: out}\n",
         "mine/p.yaml:1:35: pipelines.a.source.page: 'no' is no whole number"},
        {"no YAML", "a: [\n",
         "mine/p.yaml:2:1: not valid YAML: did not find expected node content (while parsing a "
         "flow "
         "node, line 2)"},
        {"empty", "", "mine/p.yaml: the file is empty"},
        {"a list", "[a]\n", "mine/p.yaml:1:1: a profile is a map, in the shape of a pipeline"},
        {"a profile of a profile", "profile: q\n",
         "mine/p.yaml:1:1: a profile cannot name another profile"},
        {"a route", "source: {type: db, path: x}\nsink: {type: out}\nroutes: x\n",
         "mine/p.yaml:3:9:"},
    };
    struct folder f;
    enter(&f);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct ob_config *c = NULL;
        struct ob_err err = {0};
        print_message("# %s\n", rows[i].name);
        put_file("mine/p.yaml", rows[i].file);
        assert_int_equal(
            ob_config_parse("f", OB_STR("pipelines: {a: {profile: p}}\n"), &c, NULL, &err),
            OB_FATAL);
        err.text[rows[i].want[strlen(rows[i].want) - 1] == ':' ? strlen(rows[i].want)
                                                               : strlen(err.text)] = '\0';
        assert_string_equal(err.text, rows[i].want);
    }
    struct ob_config *c = NULL;
    struct ob_err err = {0};
    put_file("mine/orion.yaml", "x: 1\n");
    assert_int_equal(
        ob_config_parse("f", OB_STR("pipelines: {a: {profile: orin}}\n"), &c, NULL, &err),
        OB_FATAL);
    assert_string_equal(err.text,
                        "f:1:26: pipelines.a.profile: there is no profile 'orin' in mine; "
                        "did you mean 'orion'?");
    unsetenv("OUTBOX_PROFILES");
    assert_int_equal(mkdir("profiles", 0700), 0);
    put_file("profiles/near.yaml", "source: {type: db, path: x}\nsink: {type: out}\n");
    c = parse("pipelines: {a: {profile: near}}\n");
    assert_string_equal(c->pipelines[0].profile, "near");
    ob_config_free(c);
    leave(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_profile),        cmocka_unit_test(test_profile_of_another_type),
        cmocka_unit_test(test_profile_secret), cmocka_unit_test(test_profile_variables),
        cmocka_unit_test(test_bad_profiles),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
