/* SPDX-License-Identifier: Apache-2.0 */
/* sqlite_claim_test - what a writer inserts is what comes out, once, in order. */
#include "sqlite_harness.h"

#include <stdio.h>
#include <stdlib.h>

static void plain_insert_has_defaults(void **state)
{
    struct bench b;
    struct ob_source *s;
    struct ob_batch *batch;
    const struct ob_event *ev;

    (void)state;
    bench_init(&b);
    sql(&b, "INSERT INTO outbox_event (type, aggregate_type, aggregate_id, payload)"
            " VALUES ('order.placed', 'order', 42, '{}')");
    s = open_own(&b);
    batch = claim(s, 10, OB_OK);
    assert_int_equal(batch->n, 1);
    ev = &batch->events[0];
    assert_int_equal(ev->ref, 1);
    assert_int_equal(ev->id.n, 36);
    assert_int_equal(ev->id.p[14], '7');
    assert_non_null(strchr("89ab", ev->id.p[19]));
    assert_string_equal(ev->aggregate_id.p, "42");
    assert_int_equal(ev->payload_kind, OB_PAYLOAD_JSON);
    assert_true(ev->entity_version == OB_NO_VERSION && ev->schema_version == OB_NO_VERSION);
    assert_int_equal(ev->max_attempts, 0);
    assert_int_equal(ev->attempts, 0);
    assert_int_equal(ev->park_n, 0);
    /* The id's time and created_at are the same milliseconds, and they are now. */
    {
        char hex[13] = {0};
        memcpy(hex, ev->id.p, 8);
        memcpy(hex + 8, ev->id.p + 9, 4);
        assert_int_equal(strtoll(hex, NULL, 16) * 1000, ev->created_us);
        assert_in_range(ev->created_us / 1000000, (uintmax_t)num(&b, "SELECT strftime('%%s')") - 5,
                        (uintmax_t)num(&b, "SELECT strftime('%%s')") + 1);
    }
    ob_batch_unref(batch);
    ob_source_sqlite.close(s);
    bench_clear(&b);
}

static void all_columns(void **state)
{
    struct bench b;
    struct ob_source *s;
    struct ob_batch *batch;
    const struct ob_event *ev;

    (void)state;
    bench_init(&b);
    sql(&b, "INSERT INTO outbox_event (id, type, aggregate_type, aggregate_id, key, tenant, topic,"
            " payload, headers, metadata, entity_version, schema_version, max_attempts, created_at)"
            " VALUES ('my-id', 't', 'at', 'ai', 'k', 'ten', 'top', '1', '{\"h\":1}',"
            " '{\"m\":2}', 7, 3, 5, 1700000000123)");
    s = open_own(&b);
    batch = claim(s, 10, OB_OK);
    ev = &batch->events[0];
    const struct {
        const char *name;
        struct ob_str got, want;
    } rows[] = {
        {"id", ev->id, OB_STR("my-id")},
        {"type", ev->type, OB_STR("t")},
        {"agg", ev->aggregate_type, OB_STR("at")},
        {"aggid", ev->aggregate_id, OB_STR("ai")},
        {"key", ev->key, OB_STR("k")},
        {"tenant", ev->tenant, OB_STR("ten")},
        {"topic", ev->topic, OB_STR("top")},
        {"payload", ev->payload, OB_STR("1")},
        {"headers", ev->headers, OB_STR("{\"h\":1}")},
        {"metadata", ev->metadata, OB_STR("{\"m\":2}")},
    };
    for (size_t i = 0; i < ROWS(rows); i++)
        row_str(rows[i].name, "value", rows[i].got, rows[i].want);
    assert_int_equal(ev->entity_version, 7);
    assert_int_equal(ev->schema_version, 3);
    assert_int_equal(ev->max_attempts, 5);
    assert_int_equal(ev->created_us, 1700000000123000);
    ob_batch_unref(batch);
    ob_source_sqlite.close(s);
    bench_clear(&b);
}

static void payloads(void **state)
{
    static const struct {
        const char *name, *value, *kind_sql;
        struct ob_str want;
        enum ob_payload_kind kind;
    } rows[] = {
        {"text is JSON", "'{\"a\":1}'", "NULL", OB_STR("{\"a\":1}"), OB_PAYLOAD_JSON},
        {"blob is bytes", "x'00ff00'", "NULL", OB_STR("\0\xff\0"), OB_PAYLOAD_BYTES},
        {"null", "NULL", "NULL", OB_STR(""), OB_PAYLOAD_NULL},
        {"null stays null", "NULL", "'json'", OB_STR(""), OB_PAYLOAD_NULL},
        {"empty text", "''", "'text'", OB_STR(""), OB_PAYLOAD_TEXT},
        {"empty blob", "x''", "NULL", OB_STR(""), OB_PAYLOAD_BYTES},
        {"said to be text", "'hello'", "'text'", OB_STR("hello"), OB_PAYLOAD_TEXT},
        {"blob said to be JSON", "x'7b7d'", "'json'", OB_STR("{}"), OB_PAYLOAD_JSON},
        {"NUL in text", "CAST(x'610062' AS TEXT)", "'text'", OB_STR("a\0b"), OB_PAYLOAD_TEXT},
        {"not UTF-8", "CAST(x'61ff62' AS TEXT)", "'text'",
         OB_STR("a\xff"
                "b"),
         OB_PAYLOAD_TEXT},
        {"a number", "42", "NULL", OB_STR("42"), OB_PAYLOAD_JSON},
    };
    struct bench b;
    struct ob_source *s;
    struct ob_batch *batch;

    (void)state;
    bench_init(&b);
    for (size_t i = 0; i < ROWS(rows); i++)
        sql(&b, "INSERT INTO outbox_event (type, payload, payload_kind) VALUES ('t', %s, %s)",
            rows[i].value, rows[i].kind_sql);
    s = open_own(&b);
    batch = claim(s, 100, OB_OK);
    assert_int_equal(batch->n, ROWS(rows));
    for (size_t i = 0; i < ROWS(rows); i++) {
        row_str(rows[i].name, "payload", batch->events[i].payload, rows[i].want);
        row_int(rows[i].name, "kind", batch->events[i].payload_kind, rows[i].kind);
    }
    ob_batch_unref(batch);
    ob_source_sqlite.close(s);
    bench_clear(&b);
}

static void utf16_database(void **state)
{
    struct bench b;
    struct ob_admin *a;
    struct ob_source *s;
    struct ob_batch *batch;
    struct ob_buf out;
    struct ob_err err;
    unsigned changed;

    (void)state;
    bench_dir(&b);
    assert_int_equal(sqlite3_open(b.path, &b.app), SQLITE_OK);
    sql(&b, "PRAGMA encoding = 'UTF-16le'; CREATE TABLE x (y)");
    a = open_admin(&b);
    ob_buf_init(&out, 0);
    assert_int_equal(ob_sqlite_admin.schema(a, false, &out, &changed, &err), OB_OK);
    ob_sqlite_admin.close(a);
    ob_buf_clear(&out);
    sql(&b, "INSERT INTO outbox_event (type, aggregate_id, payload) VALUES ('t', 'schl\xc3\xbc"
            "ssel', '{\"a\":\"\xc3\xa4\"}'), ('t', 'k', x'0102')");
    s = open_own(&b);
    batch = claim(s, 10, OB_OK);
    assert_int_equal(batch->n, 2);
    row_str("utf16", "key", batch->events[0].aggregate_id, OB_STR("schl\xc3\xbcssel"));
    row_str("utf16", "payload", batch->events[0].payload, OB_STR("{\"a\":\"\xc3\xa4\"}"));
    row_str("utf16", "bytes", batch->events[1].payload, OB_STR("\x01\x02"));
    ob_batch_unref(batch);
    ob_source_sqlite.close(s);
    bench_clear(&b);
}

static void large_payload_and_key(void **state)
{
    struct bench b;
    struct ob_source *s;
    struct ob_batch *batch = NULL;
    struct ob_err err;

    (void)state;
    bench_init(&b);
    sql(&b, "INSERT INTO outbox_event (type, aggregate_id, topic, payload) VALUES"
            " ('small', 'a', NULL, '1'),"
            " ('large', printf('%%.*c', 65536, 'k'), printf('%%.*c', 65536, 't'),"
            "  zeroblob(16777216)),"
            " ('small', 'b', NULL, '2')");
    s = open_own(&b);
    /* What does not fit in a page waits for the next, where it is let in alone. */
    assert_int_equal(ob_source_sqlite.claim(s, 100, 1000, &batch, &err), OB_OK);
    assert_int_equal(batch->n, 1);
    ob_batch_unref(batch);
    assert_int_equal(ob_source_sqlite.claim(s, 100, 1000, &batch, &err), OB_OK);
    assert_int_equal(batch->n, 1);
    assert_int_equal(batch->events[0].payload.n, 16777216);
    assert_int_equal(batch->events[0].aggregate_id.n, 65536);
    assert_int_equal(batch->events[0].topic.n, 65536);
    assert_int_equal(batch->events[0].topic.p[65535], 't');
    ob_batch_unref(batch);
    assert_int_equal(ob_source_sqlite.claim(s, 100, 1000, &batch, &err), OB_OK);
    assert_string_equal(batch->events[0].aggregate_id.p, "b");
    ob_batch_unref(batch);
    claim(s, 100, OB_AGAIN);
    ob_source_sqlite.close(s);
    bench_clear(&b);
}

/* A rolled-back insert leaves no gap that is waited for, and an open one is not seen. */
static void rolled_back_and_uncommitted(void **state)
{
    struct bench b;
    struct ob_source *s;
    struct ob_batch *batch;

    (void)state;
    bench_init(&b);
    s = open_own(&b);
    sql(&b, "BEGIN; INSERT INTO outbox_event (type) VALUES ('ghost'); ROLLBACK");
    sql(&b, "INSERT OR IGNORE INTO outbox_event (id, type) VALUES ('x', 'a'), ('x', 'gap'),"
            " ('y', 'b')");
    sql(&b, "BEGIN; INSERT INTO outbox_event (type) VALUES ('open')");
    batch = claim(s, 10, OB_OK);
    assert_int_equal(batch->n, 2);
    assert_string_equal(batch->events[0].type.p, "a");
    assert_string_equal(batch->events[1].type.p, "b");
    ob_batch_unref(batch);
    claim(s, 10, OB_AGAIN);
    sql(&b, "COMMIT");
    batch = claim(s, 10, OB_OK);
    assert_string_equal(batch->events[0].type.p, "open");
    ob_batch_unref(batch);
    ob_source_sqlite.close(s);
    bench_clear(&b);
}

/* Trap: without AUTOINCREMENT the number of a deleted last row is given again. */
static void number_is_not_used_again(void **state)
{
    struct bench b;
    struct ob_source *s;

    (void)state;
    bench_init(&b);
    emit(&b, 5, 2);
    s = open_own(&b);
    assert_int_equal(deliver_all(s), 5);
    sql(&b, "DELETE FROM outbox_event");
    assert_int_equal(num(&b, "SELECT count(*) FROM outbox_event"), 0);
    emit(&b, 2, 2);
    assert_int_equal(num(&b, "SELECT min(seq) FROM outbox_event"), 6);
    assert_int_equal(deliver_all(s), 2);
    ob_source_sqlite.close(s);
    bench_clear(&b);
}

static void hand_given_number(void **state)
{
    static const struct {
        const char *name, *insert;
        bool ok;
    } rows[] = {
        {"at the cursor", "INSERT INTO outbox_event (seq, type) VALUES (3, 't')", false},
        {"below the cursor", "INSERT INTO outbox_event (seq, type) VALUES (1, 't')", false},
        {"negative", "INSERT INTO outbox_event (seq, type) VALUES (-5, 't')", false},
        {"zero", "INSERT INTO outbox_event (seq, type) VALUES (0, 't')", false},
        {"far above", "INSERT INTO outbox_event (seq, type) VALUES (100, 't')", true},
        {"above the cursor, below the last",
         "INSERT INTO outbox_event (seq, type) VALUES (50, 't')", false},
        {"replacing", "INSERT OR REPLACE INTO outbox_event (seq, type) VALUES (100, 'u')", false},
        {"renumbering", "UPDATE outbox_event SET seq = 2 WHERE seq = 100", false},
        {"next one", "INSERT INTO outbox_event (type) VALUES ('t')", true},
    };
    struct bench b;
    struct ob_source *s;

    (void)state;
    bench_init(&b);
    emit(&b, 3, 1);
    s = open_own(&b);
    assert_int_equal(deliver_all(s), 3);
    sql(&b, "DELETE FROM outbox_event");
    for (size_t i = 0; i < ROWS(rows); i++) {
        int rc = sqlite3_exec(b.app, rows[i].insert, NULL, NULL, NULL);
        ROW_TRUE(rows[i].name, (rc == SQLITE_OK) == rows[i].ok);
    }
    assert_int_equal(deliver_all(s), 2);
    ob_source_sqlite.close(s);
    bench_clear(&b);
}

static void pages_in_order_and_rewind(void **state)
{
    struct bench b;
    struct ob_source *s;
    uint64_t want = 1;

    (void)state;
    bench_init(&b);
    emit(&b, 250, 7);
    s = open_own(&b);
    for (int page = 0; page < 3; page++) {
        struct ob_batch *batch = claim(s, 100, OB_OK);
        assert_int_equal(batch->n, page < 2 ? 100 : 50);
        for (size_t i = 0; i < batch->n; i++)
            assert_int_equal(batch->events[i].ref, want++);
        ob_batch_unref(batch);
    }
    claim(s, 100, OB_AGAIN);
    ob_source_sqlite.rewind(s);
    assert_int_equal(deliver_all(s), 250);
    ob_source_sqlite.rewind(s);
    claim(s, 100, OB_AGAIN);
    assert_int_equal(num(&b, "SELECT pos FROM outbox_cursor"), 250);
    assert_int_equal(num(&b, "SELECT published FROM outbox_cursor"), 250);
    ob_source_sqlite.close(s);
    bench_clear(&b);
}

/* A claim must not keep a read transaction open: checkpoints would starve. */
static void checkpoints_get_through(void **state)
{
    struct bench b;
    struct ob_source *s;
    int in_log = -1, done = -1;

    (void)state;
    bench_init(&b);
    emit(&b, 300, 3);
    s = open_own(&b);
    ob_batch_unref(claim(s, 100, OB_OK));
    assert_int_equal(
        sqlite3_wal_checkpoint_v2(b.app, NULL, SQLITE_CHECKPOINT_TRUNCATE, &in_log, &done),
        SQLITE_OK);
    assert_int_equal(in_log, 0);
    emit(&b, 1, 1);
    assert_int_equal(deliver_all(s), 201);
    ob_source_sqlite.close(s);
    bench_clear(&b);
}

static void several_pipelines(void **state)
{
    struct bench b;
    struct ob_source *s, *t;
    const struct sqlite_conf conf = {.path = b.path};
    struct ob_source_env env = {.pipeline = "other/one", .shards = 1, .owner = "o"};
    struct ob_source_caps caps;
    struct ob_err err;

    (void)state;
    bench_init(&b);
    emit(&b, 10, 2);
    s = open_own(&b);
    assert_int_equal(ob_source_sqlite.open(&env, &conf, &t, &caps, &err), OB_OK);
    assert_int_equal(ob_source_sqlite.own(t, &err), OB_OK);
    assert_int_equal(deliver_all(s), 10);
    assert_int_equal(deliver_all(t), 10);
    assert_true(caps.log && caps.page == 1000 && caps.settle_every_ms == 100);
    ob_source_sqlite.close(s);
    ob_source_sqlite.close(t);
    bench_clear(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_insert_has_defaults),
        cmocka_unit_test(all_columns),
        cmocka_unit_test(payloads),
        cmocka_unit_test(utf16_database),
        cmocka_unit_test(large_payload_and_key),
        cmocka_unit_test(rolled_back_and_uncommitted),
        cmocka_unit_test(number_is_not_used_again),
        cmocka_unit_test(hand_given_number),
        cmocka_unit_test(pages_in_order_and_rewind),
        cmocka_unit_test(checkpoints_get_through),
        cmocka_unit_test(several_pipelines),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
