/* SPDX-License-Identifier: Apache-2.0 */
/* keys_test - the fingerprint of what decides the key of an event. */
#include "fixture.h"

static const struct {
    const char *name, *one, *other;
    bool same;
} pairs[] = {
    {"the same", "routes: [{topic: a, key: '${tenant}'}]", "routes: [{topic: a, key: '${tenant}'}]",
     true},
    {"another topic", "routes: [{topic: a, key: '${tenant}'}]",
     "routes: [{topic: b, key: '${tenant}'}]", true},
    {"headers", "routes: [{topic: a, key: k}]", "routes: [{topic: a, key: k, headers: {h: v}}]",
     true},
    {"keys of the rows, other matches", "routes: [{match: {type: x}, topic: a}, {topic: b}]",
     "routes: [{topic: b}]", true},
    {"no routes, and no key", "", "routes: [{topic: b}]", true},
    {"another key", "routes: [{topic: a, key: '${tenant}'}]",
     "routes: [{topic: a, key: '${type}'}]", false},
    {"a key, and none", "routes: [{topic: a, key: '${tenant}'}]", "routes: [{topic: a}]", false},
    {"another match", "routes: [{match: {type: x}, topic: a, key: k}, {topic: b}]",
     "routes: [{match: {type: y}, topic: a, key: k}, {topic: b}]", false},
    {"a prefix, and its text", "routes: [{match: {type: x}, topic: a, key: k}]",
     "routes: [{match: {type: 'x*'}, topic: a, key: k}]", false},
    {"another field", "routes: [{match: {type: x}, topic: a, key: k}]",
     "routes: [{match: {tenant: x}, topic: a, key: k}]", false},
    {"another order",
     "routes: [{match: {type: x}, topic: a, key: k}, {match: {type: 'x*'}, topic: a}]",
     "routes: [{match: {type: 'x*'}, topic: a}, {match: {type: x}, topic: a, key: k}]", false},
    {"one route less",
     "routes: [{match: {type: x}, topic: a, key: k}, {match: {type: y}, topic: a, key: k}]",
     "routes: [{match: {type: x}, topic: a, key: k}]", false},
    {"what is missing", "routes: [{topic: a, key: '${tenant}'}]",
     "routes: [{topic: a, key: '${tenant}', missing: reject}]", false},
    {"the envelope of debezium has a key", "routes: [{topic: a}]",
     "routes: [{topic: a, envelope: debezium}]", false},
};

static uint64_t rules_of(const char *yaml)
{
    struct fixture f;
    fixture_init(&f);
    assert_int_equal(fixture_load(&f, yaml, "shop"), OB_OK);
    uint64_t got = ob_routes_key_rules(f.routes);
    fixture_clear(&f);
    assert_true(got != 0);
    return got;
}

static void key_rules_change_with_the_keys_alone(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
        if ((rules_of(pairs[i].one) == rules_of(pairs[i].other)) != pairs[i].same)
            fail_msg("%s: %s", pairs[i].name, pairs[i].same ? "differ" : "are the same");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(key_rules_change_with_the_keys_alone)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
