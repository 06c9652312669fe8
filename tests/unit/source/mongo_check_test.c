/* SPDX-License-Identifier: Apache-2.0 */
/* mongo_check_test - what `check` says of clocks that disagree. All else that it finds is in
 * tests/e2e/test_mongodb_check.py. */
#include "../produce/mongo_harness.h"

#include "source/mongodb/mongo.h"

#include <stdio.h>

static int64_t mono(void *user)
{
    (void)user;
    return ob_clock_system.mono_us(ob_clock_system.user);
}

static int64_t wall(void *user)
{
    return ob_clock_wall_us(&ob_clock_system) + *(const int64_t *)user;
}

struct said {
    unsigned n, wrong;
    char what[300], fix[300];
};

static void note(void *user, bool ok, const char *what, const char *fix)
{
    struct said *s = user;

    if (!strstr(what, "clock"))
        return;
    s->n++;
    s->wrong += !ok;
    snprintf(s->what, sizeof(s->what), "%s", what);
    snprintf(s->fix, sizeof(s->fix), "%s", fix);
}

static void clocks_that_disagree(void **state)
{
    static const struct {
        const char *name;
        int64_t off_ms;
        const char *said;
    } rows[] = {
        {"the same", 0, NULL},
        {"an hour ahead", 3600000, "ahead of"},
        {"an hour behind", -3600000, "behind"},
        {"a little ahead", 700, NULL},
        {"three seconds behind", -3000, "behind"},
    };

    (void)state;
    for (size_t i = 0; i < ROWS(rows); i++) {
        int64_t off = rows[i].off_ms * 1000;
        const struct ob_clock clock = {mono, wall, &off};
        struct bench b;
        struct ob_admin *a = NULL;
        struct ob_err err = {.text = ""};
        struct said said = {.n = 0};
        char uri[512];
        bench_init(&b);
        server_uri(b.name, uri, sizeof(uri));
        const struct mongo_conf conf = {.uri = uri,
                                        .database = b.name,
                                        .collection = "outbox_events",
                                        .timeout_ms = 10000,
                                        .lease_ms = 5000,
                                        .page = 100};
        ROW_TRUE(rows[i].name, ob_mongo_admin.open("p", &conf, &clock, &a, &err) == OB_OK);
        ROW_TRUE(rows[i].name, ob_mongo_admin.check(a, note, &said, &err) == OB_OK);
        ob_mongo_admin.close(a);
        row_int(rows[i].name, "findings", said.n, 1);
        row_int(rows[i].name, "problems", said.wrong, rows[i].said != NULL);
        ROW_TRUE(rows[i].name, !rows[i].said || (strstr(said.what, rows[i].said) &&
                                                 strstr(said.fix, "chronyc makestep")));
        bench_clear(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(clocks_that_disagree)};

    server_start("");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
