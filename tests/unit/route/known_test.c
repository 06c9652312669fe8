/* SPDX-License-Identifier: Apache-2.0 */
/* known_test - which topics and streams can be told from the routes alone. */
#include "fixture.h"

static const struct {
    const char *name, *yaml, *topics, *streams;
    bool all, row_streams;
} known[] = {
    {"plain", "routes: [{topic: a, stream: s}]", "a ", "s ", true, false},
    {"no routes", "", "", "", false, true},
    {"types of the match", "routes: [{match: {type: [x, y]}, topic: 'o.${type}', stream: s}]",
     "o.x o.y ", "s ", true, false},
    {"every combination",
     "routes: [{match: {type: [x, y], tenant: [t, u]}, topic: '${tenant}.${type}', stream: ''}]",
     "t.x u.x t.y u.y ", "", true, false},
    {"only those listed word for word",
     "routes: [{match: {type: [x, 'y*']}, topic: '${type}', stream: '${type}-s'}]", "x ", "x-s ",
     false, false},
    {"another field", "routes: [{match: {type: x}, topic: '${type}.${aggregate_type}', stream: s}]",
     "", "s ", false, false},
    {"each once",
     "routes: [{match: {type: [a.b, a.c]}, topic: '${type%%.*}'}, {topic: a, stream: '${stream}'}]",
     "a ", "", true, true},
    {"the service", "routes: [{topic: '${service}.all', stream: s}]", "shop.all ", "s ", true,
     false},
    {"a default is no answer", "routes: [{topic: '${topic:-t}', stream: s}]", "", "s ", false,
     false},
    {"of the payload", "routes: [{match: {type: x}, topic: '${payload:/type}', stream: s}]", "",
     "s ", false, false},
};

static void names_to_text(char *text, size_t size, const struct ob_names *names)
{
    size_t at = 0;
    text[0] = '\0';
    for (size_t i = 0; i < names->n; i++)
        at += (size_t)snprintf(text + at, size - at, "%s ", names->list[i]);
}

static void addresses_known_without_an_event(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        const char *name = known[i].name;
        char text[200];
        struct fixture f;
        struct ob_known got;
        fixture_init(&f);
        assert_int_equal(fixture_load(&f, known[i].yaml, "shop"), OB_OK);
        assert_int_equal(ob_routes_known(f.routes, f.arena, &got, &f.err), OB_OK);
        names_to_text(text, sizeof text, &got.topics);
        assert_text(ob_str_c(text), known[i].topics);
        names_to_text(text, sizeof text, &got.streams);
        assert_text(ob_str_c(text), known[i].streams);
        if (got.all_topics != known[i].all || got.row_streams != known[i].row_streams)
            fail_msg("%s: all %d, row_streams %d", name, got.all_topics, got.row_streams);
        fixture_clear(&f);
    }
}

/* Topics with the stream that goes with them, and whether a route leaves it to the sink. */
static void places_known_without_an_event(void **state)
{
    static const struct {
        const char *yaml, *places;
        bool streamless;
    } rows[] = {
        {"routes: [{match: {type: q}, topic: a, stream: s}, {match: {type: r}, topic: a, stream: "
         "s}, {topic: a}]",
         "a@s a@ ", true},
        {"routes: [{match: {type: [x, y]}, topic: 't.${type}', stream: 's.${type}'}]",
         "t.x@s.x t.y@s.y ", false},
        {"routes: [{match: {type: [x, y]}, topic: t, stream: 's.${type}'}]", "t@s.x t@s.y ", false},
        {"routes: [{topic: t, stream: '${type}'}]", "", false},
        {"routes: [{topic: '${type}', stream: s}]", "", false},
        {"routes: [{topic: t, stream: 's.${stream}'}]", "", false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const char *name = rows[i].yaml;
        char text[200] = "";
        size_t at = 0;
        struct fixture f;
        struct ob_known got;
        fixture_init(&f);
        assert_int_equal(fixture_load(&f, rows[i].yaml, "shop"), OB_OK);
        assert_int_equal(ob_routes_known(f.routes, f.arena, &got, &f.err), OB_OK);
        for (size_t k = 0; k < got.n_places; k++)
            at += (size_t)snprintf(text + at, sizeof text - at, "%s@%s ", got.places[k].topic,
                                   got.places[k].stream ? got.places[k].stream : "");
        assert_text(ob_str_c(text), rows[i].places);
        if (got.streamless != rows[i].streamless)
            fail_msg("%s: streamless %d", name, got.streamless);
        fixture_clear(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(places_known_without_an_event),
        cmocka_unit_test(addresses_known_without_an_event),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
