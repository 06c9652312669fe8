/* SPDX-License-Identifier: Apache-2.0 */
/* wire_test - servers of an option, TLS of all or none, and credentials that nothing protects. */
#include "config/wire.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static const struct ob_url_scheme schemes[] = {{"nats", false}, {"tls", true}, {NULL, false}};

static const struct {
    const char *text;
    size_t n; /* 0: refused */
    bool tls, userinfo;
    const char *first, *host; /* of the first entry */
    const char *error;
} lists[] = {
    {"nats://a", 1, false, false, "nats://a", "a", NULL},
    {"tls://a:4222", 1, true, false, "tls://a:4222", "a", NULL},
    {"TLS://a", 1, true, false, "tls://a", "a", NULL},
    {"  tLs://a  ", 1, true, false, "tls://a", "a", NULL},
    {"\ttls://a\n", 1, true, false, "tls://a", "a", NULL},
    {"tls://a, TLS://b ,tls://c", 3, true, false, "tls://a", "a", NULL},
    {"tls://a tls://b", 2, true, false, "tls://a", "a", NULL},
    {",,nats://a,,", 1, false, false, "nats://a", "a", NULL},
    {"a:4222", 1, false, false, "a:4222", "a", NULL},
    {"u:p@a:4222", 1, false, true, "u:p@a:4222", "a", NULL},
    {"nats://u:p%2F@a:4222", 1, false, true, "nats://u:p%2F@a:4222", "a", NULL},
    {"nats://u:p@secret@a", 0, false, false, NULL, NULL, "not escaped"},
    {"tls://[::1]:4222", 1, true, false, "tls://[::1]:4222", "::1", NULL},
    {"nats://a/path", 1, false, false, "nats://a/path", "a", NULL},
    {"nats://:4222", 1, false, false, "nats://:4222", "", NULL},
    {"nats://a,tls://b", 0, false, false, NULL, NULL, "entry 2 uses TLS and entry 1 does not"},
    {"tls://a,nats://b", 0, false, false, NULL, NULL, "entry 1 uses TLS and entry 2 does not"},
    {"tls://a,b", 0, false, false, NULL, NULL, "entry 1 uses TLS and entry 2 does not"},
    {"a,TLS://b", 0, false, false, NULL, NULL, "entry 2 uses TLS and entry 1 does not"},
    {"http://a", 0, false, false, NULL, NULL, "entry 1 must begin with nats:// or tls://"},
    {"nats://a,tlss://b", 0, false, false, NULL, NULL, "entry 2 must begin with"},
    {"://a", 0, false, false, NULL, NULL, "entry 1 must begin with"},
    {"", 0, false, false, NULL, NULL, "at least one server"},
    {" , ", 0, false, false, NULL, NULL, "at least one server"},
    {"nats://u:p/secret@a", 0, false, false, NULL, NULL, "not escaped"},
    {"tls://[::1", 0, false, false, NULL, NULL, "entry 1 is not"},
};

static void lists_are_all_or_nothing(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        struct ob_urls u;
        struct ob_err err = {.text = ""};
        enum ob_status st = ob_urls_parse(&u, lists[i].text, schemes, true, &err);
        if ((st == OB_OK) != (lists[i].n > 0))
            fail_msg("'%s': %s", lists[i].text, err.text);
        if (st == OB_OK &&
            (u.n != lists[i].n || u.tls != lists[i].tls || u.userinfo != lists[i].userinfo ||
             strcmp(u.list[0].text, lists[i].first) != 0 ||
             strcmp(u.list[0].host, lists[i].host) != 0))
            fail_msg("'%s': %zu, %s, %s", lists[i].text, u.n, u.list[0].text, u.list[0].host);
        if (st != OB_OK && (!strstr(err.text, lists[i].error) || strstr(err.text, "secret")))
            fail_msg("'%s': %s", lists[i].text, err.text);
        ob_urls_clear(&u);
    }
}

static void a_scheme_can_be_required(void **state)
{
    (void)state;
    struct ob_urls u;
    struct ob_err err;
    assert_int_equal(ob_urls_parse(&u, "a:4222", schemes, false, &err), OB_FATAL);
    ob_urls_clear(&u);
    char many[33 * 10 + 1] = "";
    for (int i = 0; i < 33; i++)
        strcat(many, "nats://ab,");
    assert_int_equal(ob_urls_parse(&u, many, schemes, false, &err), OB_FATAL);
    ob_urls_clear(&u);
}

static const struct {
    const char *host;
    bool local;
} hosts[] = {
    {"localhost", true},  {"LOCALHOST", true},
    {"localhost.", true}, {"127.0.0.1", true},
    {"127.9.9.9", true},  {"::1", true},
    {"", true},           {"/run/postgresql", true},
    {"@abstract", true},  {"::ffff:127.0.0.1", true},
    {"0.0.0.0", false},   {"127.0.0.1.example", false},
    {"10.0.0.1", false},  {"localhost.example", false},
    {"db", false},        {"::2", false},
    {"fe80::1", false},   {"::ffff:10.0.0.1", false},
    {"128.0.0.1", false},
};

static void loopback_is_known(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(hosts) / sizeof(hosts[0]); i++)
        if (ob_host_is_local(hosts[i].host) != hosts[i].local)
            fail_msg("%s", hosts[i].host);
}

static void exposed_credentials_are_found(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool tls, credentials, exposed;
    } rows[] = {
        {"nats://127.0.0.1,nats://broker", false, true, true},
        {"nats://127.0.0.1,nats://localhost", false, true, false},
        {"nats://broker", false, false, false},
        {"nats://broker", true, true, false},
        {"tls://broker", true, true, false},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct ob_urls u;
        struct ob_err err;
        struct ob_wire w;
        char what[400] = "";
        assert_int_equal(ob_urls_parse(&u, rows[i].text, schemes, true, &err), OB_OK);
        ob_wire_set(&w, &u, rows[i].tls, rows[i].credentials);
        ob_urls_clear(&u);
        if (ob_wire_exposed(&w, what, sizeof(what)) != rows[i].exposed)
            fail_msg("%s", rows[i].text);
        assert_true(!rows[i].exposed || strstr(what, "broker"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_are_all_or_nothing),
        cmocka_unit_test(a_scheme_can_be_required),
        cmocka_unit_test(loopback_is_known),
        cmocka_unit_test(exposed_credentials_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
