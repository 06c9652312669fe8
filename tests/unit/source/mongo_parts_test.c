/* SPDX-License-Identifier: Apache-2.0 */
/* mongo_parts_test - the parts of the MongoDB source that need no server. */
#include "event/mongo_native.h"
#include "rows.h"
#include "source/mongodb/mongo.h"

static bson_value_t text_id(const char *text)
{
    bson_value_t v = {.value_type = BSON_TYPE_UTF8};
    v.value.v_utf8.str = bson_strdup(text);
    v.value.v_utf8.len = (uint32_t)strlen(text);
    return v;
}

/* A ref rises, names its document until it is settled, and never another one. */
static void a_window(void **state)
{
    struct mongo_window w = {0};
    uint64_t refs[3000], last = 0;
    (void)state;
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < 3000; i++) {
            bson_value_t id = text_id("x");
            refs[i] = ob_mongo_window_add(&w, &id, 0);
            assert_true(refs[i] > last);
            last = refs[i];
        }
        assert_int_equal(w.n, 3000);
        for (size_t i = 0; i < 3000; i++) {
            assert_non_null(ob_mongo_window_find(&w, refs[i]));
            ob_mongo_window_remove(&w, refs[i]);
            assert_null(ob_mongo_window_find(&w, refs[i]));
            ob_mongo_window_remove(&w, refs[i]); /* once more changes nothing */
        }
        assert_int_equal(w.n, 0);
    }
    bson_value_t id = text_id("y");
    uint64_t ref = ob_mongo_window_add(&w, &id, 0);
    ob_mongo_window_clear(&w);
    assert_null(ob_mongo_window_find(&w, ref));
    id = text_id("z");
    assert_true(ob_mongo_window_add(&w, &id, 0) > ref);
    ob_mongo_window_clear(&w);
}

static void sets_and_hashes(void **state)
{
    struct mongo_set set = {0};
    uint64_t a[2], b[2], c[2];
    uint32_t value = 0;
    bson_value_t v = {.value_type = BSON_TYPE_INT32}, w = {.value_type = BSON_TYPE_INT64},
                 d = {.value_type = BSON_TYPE_DOUBLE};
    (void)state;
    for (int i = 0; i < 5000; i++) {
        v.value.v_int32 = i;
        ob_mongo_hash(&v, a);
        assert_int_equal(ob_mongo_set_add(&set, a, (uint32_t)i), 1);
        assert_int_equal(ob_mongo_set_add(&set, a, 7), 0);
    }
    for (int i = 0; i < 5000; i++) { /* the server takes equal numbers for one */
        w.value.v_int64 = i;
        d.value.v_double = i;
        ob_mongo_hash(&w, b);
        ob_mongo_hash(&d, c);
        assert_true(ob_mongo_set_has(&set, b, &value));
        assert_int_equal(value, i);
        assert_memory_equal(b, c, sizeof(b));
    }
    d.value.v_double = 0.5;
    ob_mongo_hash(&d, c);
    assert_false(ob_mongo_set_has(&set, c, NULL));
    ob_mongo_set_clear(&set);
    assert_false(ob_mongo_set_has(&set, a, NULL));
}

/* ---- mappings ---- */

/* What is taken out leaves no hole that hides another. */
static void out_of_a_set(void **state)
{
    struct mongo_set set = {0};
    uint64_t h[2] = {0, 1};
    (void)state;
    for (uint64_t round = 0; round < 3; round++) {
        for (uint64_t i = 0; i < 900; i++) {
            h[0] = i / 7 + (i % 3 ? 0 : 1020); /* many at one place, some around the end */
            h[1] = i + 1;
            assert_int_equal(ob_mongo_set_add(&set, h, (uint32_t)i), 1);
        }
        for (uint64_t pass = 0; pass < 2; pass++)
            for (uint64_t i = 0; i < 900; i++) {
                uint32_t value = 0;
                h[0] = i / 7 + (i % 3 ? 0 : 1020);
                h[1] = i + 1;
                bool there = pass == 0 || i % 2 == 1;
                assert_int_equal(ob_mongo_set_has(&set, h, &value), there);
                assert_true(!there || value == i);
                if (i % 2 == 0 || pass == 1)
                    ob_mongo_set_remove(&set, h);
            }
        assert_int_equal(set.n, 0);
    }
    ob_mongo_set_clear(&set);
}

/* An id that leaves while a look is under way counts until that ends: it reads what was before. */
static void ours_and_a_look(void **state)
{
    struct mongo_ours ours = {.looking = false};
    bson_value_t id = text_id("x");
    uint64_t h[2];
    (void)state;
    ob_mongo_hash(&id, h);
    ob_mongo_ours_init(&ours);
    for (int looking = 0; looking < 2; looking++) {
        ob_mongo_ours_look(&ours, looking);
        assert_false(ob_mongo_ours_has(&ours, h));
        assert_true(ob_mongo_ours_add(&ours, &id));
        assert_true(ob_mongo_ours_has(&ours, h));
        ob_mongo_ours_remove(&ours, &id);
        assert_int_equal(ob_mongo_ours_has(&ours, h), looking);
        ob_mongo_ours_look(&ours, false);
        assert_false(ob_mongo_ours_has(&ours, h));
    }
    ob_mongo_ours_clear(&ours);
    bson_value_destroy(&id);
}

static const char *one[] = {"pending"}, *two[] = {"busy"}, *three[] = {"done"}, *four[] = {"bad"};

static struct mongo_conf plain(void)
{
    struct mongo_conf c = {.collection = OB_MONGO_NATIVE};
    c.mapping = ob_mongo_native;
    c.mapping.table = "events";
    c.mapping.pending = (struct ob_opt_list){.values = one, .n = 1};
    c.mapping.claimed = (struct ob_opt_list){.values = two, .n = 1};
    c.mapping.done = (struct ob_opt_list){.values = three, .n = 1};
    c.mapping.failed = (struct ob_opt_list){.values = four, .n = 1};
    return c;
}

static void refused(struct mongo_conf *c, const char *why)
{
    struct mongo_model *m = NULL;
    struct ob_err err = {.text = ""};
    assert_int_equal(ob_mongo_model_new(c, "me", NULL, NULL, &m, &err), OB_FATAL);
    if (!strstr(err.text, why))
        fail_msg("'%s' does not say '%s'", err.text, why);
}

static void mappings_that_cannot_be(void **state)
{
    struct mongo_conf c = plain();
    (void)state;
    c.mapping.col[OB_MAP_STATUS] = NULL;
    refused(&c, "mapping.status");
    c = plain();
    c.mapping.col[OB_MAP_TYPE] = "a$b";
    refused(&c, "mapping.type");
    c = plain();
    c.mapping.col[OB_MAP_DONE] = "done";
    refused(&c, "mapping.done");
    c = plain();
    c.mapping.claimed = c.mapping.pending;
    refused(&c, "mapping.status_claimed");
    c = plain();
    c.mapping.failed.n = 0;
    refused(&c, "mapping.status_failed");
    c = plain();
    c.mapping.table = "system.users";
    refused(&c, "collection");
}

static void mappings_and_their_order(void **state)
{
    static const struct ob_backoff retry = {.first_ms = 1000, .factor_pct = 150, .max_ms = 60000};
    struct mongo_conf c = plain();
    struct mongo_model *m = NULL;
    struct ob_err err = {.text = ""};
    (void)state;
    assert_int_equal(ob_mongo_model_new(&c, "a \"quoted\" $name", &retry, NULL, &m, &err), OB_OK);
    assert_string_equal(m->lease, "events_lease");
    assert_string_equal(m->entity, "aggregate_id"); /* where versions are, they are of an entity */
    assert_string_equal(m->order, "entity_version");
    assert_string_equal(m->first, "created_at");
    ob_mongo_model_free(m);
    c.mapping.table = NULL;
    assert_int_equal(ob_mongo_model_new(&c, "me", NULL, NULL, &m, &err), OB_OK);
    assert_true(m->native);
    assert_string_equal(m->events, OB_MONGO_NATIVE);
    assert_string_equal(m->entity, "key");
    assert_string_equal(m->order, "seq");
    ob_mongo_model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_window),
        cmocka_unit_test(sets_and_hashes),
        cmocka_unit_test(out_of_a_set),
        cmocka_unit_test(ours_and_a_look),
        cmocka_unit_test(mappings_that_cannot_be),
        cmocka_unit_test(mappings_and_their_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
