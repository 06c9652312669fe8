/* SPDX-License-Identifier: Apache-2.0 */
/* sqlite_test - the public calls that write events: inside a transaction or not at all. */
#include "outbox/produce.h"
#include "rows.h"

#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct bench {
    char dir[64], path[96];
    sqlite3 *db;
};

static int setup(void **state)
{
    struct bench *b = calloc(1, sizeof(*b));
    const char *tmp = getenv("TMPDIR");
    struct outbox_error err;

    snprintf(b->dir, sizeof(b->dir), "%.40s/obprodXXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(b->dir));
    snprintf(b->path, sizeof(b->path), "%s/app.db", b->dir);
    assert_int_equal(sqlite3_open(b->path, &b->db), SQLITE_OK);
    if (outbox_sqlite_schema(b->db, &err) != OUTBOX_OK)
        fail_msg("%s", err.text);
    sqlite3_exec(b->db, "CREATE TABLE orders (id INTEGER PRIMARY KEY)", NULL, NULL, NULL);
    *state = b;
    return 0;
}

static int teardown(void **state)
{
    struct bench *b = *state;

    assert_int_equal(sqlite3_close(b->db), SQLITE_OK); /* no statement was left open */
    unlink(b->path);
    rmdir(b->dir);
    free(b);
    return 0;
}

static void sql(struct bench *b, const char *text)
{
    char *why = NULL;

    if (sqlite3_exec(b->db, text, NULL, NULL, &why) != SQLITE_OK)
        fail_msg("%s: %s", text, why);
}

static const char *one(struct bench *b, const char *query)
{
    static char out[512];
    sqlite3_stmt *st = NULL;

    out[0] = '\0';
    if (sqlite3_prepare_v2(b->db, query, -1, &st, NULL) != SQLITE_OK)
        fail_msg("%s", sqlite3_errmsg(b->db));
    if (sqlite3_step(st) == SQLITE_ROW)
        snprintf(out, sizeof(out), "%s", (const char *)sqlite3_column_text(st, 0));
    sqlite3_finalize(st);
    return out;
}

static const struct outbox_event placed = {.type = "order.placed",
                                           .aggregate_type = "order",
                                           .aggregate_id = "42",
                                           .payload = "{\"total\":3}"};

static void refused_outside_a_transaction(void **state)
{
    struct bench *b = *state;
    struct outbox_error err;
    struct outbox_collector *c = outbox_collector_new();

    assert_int_equal(outbox_sqlite_emit(b->db, NULL, &placed, NULL, &err), OUTBOX_REJECT);
    assert_int_equal(err.status, OUTBOX_REJECT);
    assert_non_null(strstr(err.text, "no transaction"));
    assert_int_equal(outbox_collector_raise(c, &placed, NULL, &err), OUTBOX_OK);
    assert_int_equal(outbox_sqlite_write(b->db, NULL, c, NULL), OUTBOX_REJECT);
    assert_int_equal(outbox_collector_count(c), 1);
    assert_string_equal(one(b, "SELECT count(*) FROM outbox_event"), "0");
    outbox_collector_free(c);
}

static void emitted_with_the_change_or_not_at_all(void **state)
{
    struct bench *b = *state;
    struct outbox_error err;
    char id[OUTBOX_ID_SIZE], gone[OUTBOX_ID_SIZE];
    bool there;

    sql(b, "BEGIN; INSERT INTO orders VALUES (1)");
    assert_int_equal(outbox_sqlite_emit(b->db, NULL, &placed, gone, &err), OUTBOX_OK);
    assert_int_equal(outbox_sqlite_exists(b->db, gone, &there, &err), OUTBOX_OK);
    assert_true(there);
    sql(b, "ROLLBACK");
    assert_int_equal(outbox_sqlite_exists(b->db, gone, &there, &err), OUTBOX_OK);
    assert_false(there);
    sql(b, "BEGIN; INSERT INTO orders VALUES (1)");
    assert_int_equal(outbox_sqlite_emit(b->db, NULL, &placed, id, &err), OUTBOX_OK);
    sql(b, "COMMIT");
    assert_int_equal(strlen(id), 36);
    assert_int_equal(id[14], '7');
    assert_true(strcmp(gone, id) < 0); /* ids rise */
    assert_string_equal(one(b, "SELECT id FROM outbox_event"), id);
    assert_string_equal(
        one(b, "SELECT type || aggregate_type || aggregate_id || payload || payload_kind ||"
               " typeof(metadata) || typeof(entity_version) FROM outbox_event"),
        "order.placedorder42{\"total\":3}jsonnullnull");
}

static void all_fields(void **state)
{
    struct bench *b = *state;
    const int64_t entity = 0, schema = 3;
    const struct outbox_event e = {.type = "t",
                                   .id = "my-id",
                                   .key = "k",
                                   .tenant = "ten",
                                   .topic = "top",
                                   .payload = "abcd",
                                   .payload_size = 3,
                                   .payload_kind = OUTBOX_TEXT,
                                   .headers = "{\"h\":1}",
                                   .metadata = "{\"m\":1}",
                                   .entity_version = &entity,
                                   .schema_version = &schema,
                                   .max_attempts = 4};

    sql(b, "BEGIN");
    assert_int_equal(outbox_sqlite_emit(b->db, NULL, &e, NULL, NULL), OUTBOX_OK);
    sql(b, "COMMIT");
    assert_string_equal(
        one(b, "SELECT id || key || tenant || topic || payload || payload_kind || headers ||"
               " metadata || entity_version || schema_version || max_attempts FROM outbox_event"),
        "my-idktentopabctext{\"h\":1}{\"m\":1}034");
}

static void payload_kinds(void **state)
{
    static const struct {
        const char *name;
        const void *payload;
        size_t size;
        enum outbox_payload kind;
        enum outbox_status st;
        const char *want;
    } rows[] = {
        {"JSON", "[1]", 0, OUTBOX_JSON, OUTBOX_OK, "text:json:5B315D"},
        {"a part of it", "[1]]", 3, OUTBOX_JSON, OUTBOX_OK, "text:json:5B315D"},
        {"broken JSON", "{a", 0, OUTBOX_JSON, OUTBOX_REJECT, NULL},
        {"empty JSON", "", 0, OUTBOX_JSON, OUTBOX_REJECT, NULL},
        {"JSON that is not UTF-8", "\"\xff\"", 0, OUTBOX_JSON, OUTBOX_REJECT, NULL},
        {"empty text", "", 0, OUTBOX_TEXT, OUTBOX_OK, "text:text:"},
        {"text with NUL", "a\0b", 3, OUTBOX_TEXT, OUTBOX_OK, "blob:text:610062"},
        {"text that is not UTF-8", "a\xff", 0, OUTBOX_TEXT, OUTBOX_OK, "blob:text:61FF"},
        {"bytes", "\0\x01", 2, OUTBOX_BYTES, OUTBOX_OK, "blob:bytes:0001"},
        {"no bytes", "x", 0, OUTBOX_BYTES, OUTBOX_OK, "blob:bytes:"},
        {"null", NULL, 0, OUTBOX_JSON, OUTBOX_OK, "null::"},
        {"null as said", "ignored", 0, OUTBOX_NULL, OUTBOX_OK, "null::"},
        {"no such kind", "x", 1, (enum outbox_payload)9, OUTBOX_REJECT, NULL},
        {"a document of MongoDB", "\x05\0\0\0", 0, OUTBOX_BSON, OUTBOX_REJECT, NULL},
        {"no document of MongoDB", "\x05\0\0\0x", 5, OUTBOX_BSON, OUTBOX_REJECT, NULL},
    };
    struct bench *b = *state;

    for (size_t i = 0; i < ROWS(rows); i++) {
        struct outbox_event e = {.type = "t",
                                 .payload = rows[i].payload,
                                 .payload_size = rows[i].size,
                                 .payload_kind = rows[i].kind};
        struct outbox_error err = {.text = ""};
        sql(b, "BEGIN");
        row_int(rows[i].name, "status", outbox_sqlite_emit(b->db, NULL, &e, NULL, &err),
                rows[i].st);
        ROW_TRUE(rows[i].name, (rows[i].st == OUTBOX_OK) == (err.text[0] == '\0'));
        sql(b, "COMMIT");
        if (rows[i].want)
            row_str(rows[i].name, "stored",
                    ob_str_c(one(b, "SELECT typeof(payload) || ':' || coalesce(payload_kind, '') ||"
                                    " ':' || hex(payload) FROM outbox_event"
                                    " ORDER BY seq DESC LIMIT 1")),
                    ob_str_c(rows[i].want));
    }
}

static void large_payload(void **state)
{
    struct bench *b = *state;
    char *bytes = calloc(1, 16 << 20);
    const struct outbox_event e = {
        .type = "t", .payload = bytes, .payload_size = 16 << 20, .payload_kind = OUTBOX_BYTES};

    sql(b, "BEGIN");
    assert_int_equal(outbox_sqlite_emit(b->db, NULL, &e, NULL, NULL), OUTBOX_OK);
    sql(b, "COMMIT");
    assert_string_equal(one(b, "SELECT length(payload) FROM outbox_event"), "16777216");
    free(bytes);
}

static void refused_events(void **state)
{
    static const struct {
        const char *name;
        struct outbox_event e;
        const char *text;
    } rows[] = {
        {"no type", {.payload = "{}"}, "type"},
        {"headers no JSON", {.type = "t", .headers = "{"}, "headers"},
        {"headers no object", {.type = "t", .headers = "[1]"}, "object"},
        {"metadata no JSON", {.type = "t", .metadata = "nope"}, "metadata"},
        {"id twice", {.type = "t", .id = "same"}, "UNIQUE"},
        {"id too long",
         {.type = "t", .id = "0123456789012345678901234567890123456789012345678901234567890123"},
         "63"},
    };
    struct bench *b = *state;
    struct outbox_error err;
    const struct outbox_event same = {.type = "t", .id = "same"};

    sql(b, "BEGIN");
    assert_int_equal(outbox_sqlite_emit(b->db, NULL, &same, NULL, &err), OUTBOX_OK);
    for (size_t i = 0; i < ROWS(rows); i++) {
        err.text[0] = '\0';
        row_int(rows[i].name, "status", outbox_sqlite_emit(b->db, NULL, &rows[i].e, NULL, &err),
                OUTBOX_REJECT);
        ROW_TRUE(rows[i].name, strstr(err.text, rows[i].text) != NULL);
    }
    sql(b, "COMMIT"); /* the transaction goes on, without the refused ones */
    assert_string_equal(one(b, "SELECT count(*) FROM outbox_event"), "1");
}

static void many_in_order_all_or_none(void **state)
{
    struct bench *b = *state;
    struct outbox_event events[50];
    char ids[50][OUTBOX_ID_SIZE], types[50][8];
    struct outbox_error err;

    for (int i = 0; i < 50; i++) {
        snprintf(types[i], sizeof(types[i]), "t%d", i);
        events[i] = (struct outbox_event){.type = types[i]};
    }
    sql(b, "BEGIN; INSERT INTO orders VALUES (1)");
    events[30].metadata = "broken";
    assert_int_equal(outbox_sqlite_emit_many(b->db, NULL, events, 50, ids, &err), OUTBOX_REJECT);
    assert_non_null(strstr(err.text, "event 31 of 50"));
    assert_string_equal(one(b, "SELECT count(*) FROM outbox_event"), "0");
    events[30].metadata = NULL;
    assert_int_equal(outbox_sqlite_emit_many(b->db, NULL, events, 50, ids, &err), OUTBOX_OK);
    assert_int_equal(outbox_sqlite_emit_many(b->db, NULL, events, 0, NULL, &err), OUTBOX_OK);
    sql(b, "COMMIT");
    assert_string_equal(one(b, "SELECT count(*) FROM orders"), "1");
    for (int i = 0; i < 50; i++) {
        char query[160];
        snprintf(query, sizeof(query), "SELECT type FROM outbox_event WHERE id = '%.63s'", ids[i]);
        assert_string_equal(one(b, query), types[i]);
        assert_true(i == 0 || strcmp(ids[i - 1], ids[i]) < 0);
    }
    assert_string_equal(one(b, "SELECT group_concat(type) = (SELECT group_concat('t' || (value))"
                               " FROM (WITH RECURSIVE n (value) AS (SELECT 0 UNION ALL SELECT value"
                               " + 1 FROM n WHERE value < 49) SELECT value FROM n)) FROM (SELECT"
                               " type FROM outbox_event ORDER BY seq)"),
                        "1");
}

static void context_is_stamped(void **state)
{
    static const struct {
        const char *name, *metadata, *query, *want;
    } rows[] = {
        {"all of it", NULL,
         "SELECT json_extract(metadata, '$.tenantId') || json_extract(metadata, '$.userId') ||"
         " json_extract(metadata, '$.correlationId') || json_extract(metadata, '$.traceparent') ||"
         " coalesce(json_extract(metadata, '$.source'), '-') || tenant",
         "tenuse\"rcor00-1-2-01-ten"},
        {"the time, now", "{}",
         "SELECT abs(strftime('%s', json_extract(metadata, '$.timestamp')) - strftime('%s')) < 5"
         " AND json_extract(metadata, '$.timestamp') LIKE '____-__-__T__:__:__.___Z'",
         "1"},
        {"beside the event's own", " { \"a\" : [1, 2] }\n",
         "SELECT json_extract(metadata, '$.a[1]') || json_extract(metadata, '$.userId')"
         " || (instr(metadata, '\"a\" : [1, 2]') > 0)",
         "2use\"r1"},
        {"the event's own wins", "{\"userId\":\"root\",\"timestamp\":\"then\"}",
         "SELECT json_extract(metadata, '$.userId') || json_extract(metadata, '$.timestamp') ||"
         " (SELECT count(*) FROM json_each(metadata))",
         "rootthen5"},
    };
    struct bench *b = *state;
    struct outbox_ctx *ctx = outbox_ctx_new();
    struct outbox_event e = {.type = "t"};

    assert_int_equal(outbox_ctx_set(ctx, OUTBOX_CTX_TENANT, "ten"), OUTBOX_OK);
    assert_int_equal(outbox_ctx_set(ctx, OUTBOX_CTX_USER, "first"), OUTBOX_OK);
    assert_int_equal(outbox_ctx_set(ctx, OUTBOX_CTX_USER, "use\"r"), OUTBOX_OK);
    assert_int_equal(outbox_ctx_set(ctx, OUTBOX_CTX_CORRELATION_ID, "cor"), OUTBOX_OK);
    assert_int_equal(outbox_ctx_set(ctx, OUTBOX_CTX_TRACEPARENT, "00-1-2-01"), OUTBOX_OK);
    assert_int_equal(outbox_ctx_set(ctx, OUTBOX_CTX_SOURCE, "shop"), OUTBOX_OK);
    assert_int_equal(outbox_ctx_set(ctx, OUTBOX_CTX_SOURCE, NULL), OUTBOX_OK);
    assert_int_equal(outbox_ctx_set(ctx, (enum outbox_ctx_field)77, "x"), OUTBOX_REJECT);
    for (size_t i = 0; i < ROWS(rows); i++) {
        char query[600];
        e.metadata = rows[i].metadata;
        sql(b, "BEGIN");
        row_int(rows[i].name, "status", outbox_sqlite_emit(b->db, ctx, &e, NULL, NULL), OUTBOX_OK);
        sql(b, "COMMIT");
        snprintf(query, sizeof(query), "%s FROM outbox_event ORDER BY seq DESC LIMIT 1",
                 rows[i].query);
        row_str(rows[i].name, "metadata", ob_str_c(one(b, query)), ob_str_c(rows[i].want));
    }
    e.tenant = "its own";
    sql(b, "BEGIN");
    assert_int_equal(outbox_sqlite_emit(b->db, ctx, &e, NULL, NULL), OUTBOX_OK);
    sql(b, "COMMIT");
    assert_string_equal(one(b, "SELECT tenant FROM outbox_event ORDER BY seq DESC LIMIT 1"),
                        "its own");
    outbox_ctx_free(ctx);
    outbox_ctx_free(NULL);
}

/* ---- transaction helper and collector ---- */

struct work {
    struct outbox_collector *c;
    enum outbox_status answer;
    bool commits, speaks;
};

static enum outbox_status place(struct sqlite3 *db, void *user, struct outbox_error *err)
{
    struct work *w = user;
    struct outbox_event inside = {.type = "inside"};

    sqlite3_exec(db, "INSERT INTO orders VALUES (NULL)", NULL, NULL, NULL);
    if (w->c && outbox_collector_raise(w->c, &inside, NULL, err) != OUTBOX_OK)
        return OUTBOX_FATAL;
    if (w->commits)
        sqlite3_exec(db, "COMMIT", NULL, NULL, NULL);
    if (w->speaks)
        snprintf(err->text, sizeof(err->text), "out of stock");
    return w->answer;
}

static void transaction_commits_all(void **state)
{
    struct bench *b = *state;
    struct outbox_collector *c = outbox_collector_new();
    struct work w = {.c = c};
    struct outbox_error err;
    char id[OUTBOX_ID_SIZE];
    const int64_t version = 9;
    struct outbox_event before = {
        .type = "before", .payload = "\"a\"", .entity_version = &version, .aggregate_id = "7"};

    assert_int_equal(outbox_collector_raise(c, &before, id, &err), OUTBOX_OK);
    before.type = "changed since"; /* it was copied */
    assert_int_equal(outbox_sqlite_transaction(b->db, NULL, c, place, &w, &err), OUTBOX_OK);
    assert_int_equal(outbox_collector_count(c), 0);
    assert_int_equal(sqlite3_get_autocommit(b->db), 1);
    assert_string_equal(one(b, "SELECT count(*) FROM orders"), "1");
    assert_string_equal(one(b, "SELECT group_concat(type) FROM (SELECT * FROM outbox_event"
                               " ORDER BY seq)"),
                        "before,inside");
    assert_string_equal(one(b, "SELECT id FROM outbox_event WHERE entity_version = 9 AND"
                               " aggregate_id = '7' AND payload = '\"a\"'"),
                        id);
    assert_int_equal(outbox_sqlite_transaction(b->db, NULL, NULL, place, &(struct work){0}, &err),
                     OUTBOX_OK);
    outbox_collector_free(c);
}

static void transaction_rolls_all_back(void **state)
{
    static const struct {
        const char *name;
        struct work w;
        enum outbox_status st;
        const char *text;
    } rows[] = {
        {"gives up", {.answer = OUTBOX_REJECT, .speaks = true}, OUTBOX_REJECT, "out of stock"},
        {"gives up in silence", {.answer = OUTBOX_RETRY}, OUTBOX_RETRY, "gave up"},
    };
    struct bench *b = *state;
    struct outbox_collector *c = outbox_collector_new();
    struct outbox_error err;
    char id[OUTBOX_ID_SIZE];

    assert_int_equal(outbox_collector_raise(c, &placed, id, &err), OUTBOX_OK);
    for (size_t i = 0; i < ROWS(rows); i++) {
        struct work w = rows[i].w;
        w.c = c;
        row_int(rows[i].name, "status", outbox_sqlite_transaction(b->db, NULL, c, place, &w, &err),
                rows[i].st);
        ROW_TRUE(rows[i].name, strstr(err.text, rows[i].text) != NULL);
        row_int(rows[i].name, "kept", (int64_t)outbox_collector_count(c), 1);
        row_str(rows[i].name, "orders", ob_str_c(one(b, "SELECT count(*) FROM orders")),
                OB_STR("0"));
        row_str(rows[i].name, "events", ob_str_c(one(b, "SELECT count(*) FROM outbox_event")),
                OB_STR("0"));
        ROW_TRUE(rows[i].name, sqlite3_get_autocommit(b->db));
    }
    /* Tried again with success: the same id, once; what fn raised before is not there twice. */
    struct work fine = {.c = c};
    assert_int_equal(outbox_sqlite_transaction(b->db, NULL, c, place, &fine, &err), OUTBOX_OK);
    assert_string_equal(one(b, "SELECT count(*) FROM outbox_event"), "2");
    assert_string_equal(one(b, "SELECT id FROM outbox_event WHERE type = 'order.placed'"), id);
    outbox_collector_free(c);
}

/* Written, but the commit fails: the collector keeps everything. */
static int refuse(void *user)
{
    (void)user;
    return 1;
}

static void failed_commit_keeps_the_collector(void **state)
{
    struct bench *b = *state;
    struct outbox_collector *c = outbox_collector_new();
    struct work w = {0};
    struct outbox_error err;

    assert_int_equal(outbox_collector_raise(c, &placed, NULL, &err), OUTBOX_OK);
    sqlite3_commit_hook(b->db, refuse, NULL);
    assert_int_not_equal(outbox_sqlite_transaction(b->db, NULL, c, place, &w, &err), OUTBOX_OK);
    assert_int_equal(outbox_collector_count(c), 1);
    sqlite3_commit_hook(b->db, NULL, NULL);
    assert_string_equal(one(b, "SELECT count(*) FROM orders"), "0");
    assert_int_equal(outbox_sqlite_transaction(b->db, NULL, c, place, &w, &err), OUTBOX_OK);
    assert_int_equal(outbox_collector_count(c), 0);
    assert_string_equal(one(b, "SELECT count(*) FROM outbox_event"), "1");
    outbox_collector_free(c);
}

static void transaction_misused(void **state)
{
    struct bench *b = *state;
    struct outbox_collector *c = outbox_collector_new();
    struct work w = {.commits = true};
    struct outbox_error err;

    sql(b, "BEGIN");
    assert_int_equal(outbox_sqlite_transaction(b->db, NULL, c, place, &w, &err), OUTBOX_REJECT);
    assert_int_equal(outbox_sqlite_schema(b->db, &err), OUTBOX_REJECT);
    sql(b, "COMMIT");
    assert_int_equal(outbox_collector_raise(c, &placed, NULL, &err), OUTBOX_OK);
    assert_int_equal(outbox_sqlite_transaction(b->db, NULL, c, place, &w, &err), OUTBOX_FATAL);
    assert_non_null(strstr(err.text, "ended the transaction"));
    assert_int_equal(outbox_collector_count(c), 1);
    outbox_collector_free(c);
}

static void own_transaction_with_a_collector(void **state)
{
    struct bench *b = *state;
    struct outbox_collector *c = outbox_collector_new();
    struct outbox_error err;

    assert_int_equal(outbox_collector_raise(c, &placed, NULL, &err), OUTBOX_OK);
    sql(b, "BEGIN");
    assert_int_equal(outbox_sqlite_write(b->db, NULL, c, &err), OUTBOX_OK);
    sql(b, "ROLLBACK");
    assert_int_equal(outbox_collector_count(c), 1);
    sql(b, "BEGIN");
    assert_int_equal(outbox_sqlite_write(b->db, NULL, c, &err), OUTBOX_OK);
    sql(b, "COMMIT");
    outbox_collector_clear(c);
    assert_int_equal(outbox_collector_count(c), 0);
    assert_string_equal(one(b, "SELECT count(*) FROM outbox_event"), "1");
    outbox_collector_free(c);
    outbox_collector_free(NULL);
}

static void collector_has_a_ceiling(void **state)
{
    struct outbox_collector *c = outbox_collector_new();
    char *bytes = calloc(1, 16 << 20);
    const struct outbox_event large = {
        .type = "t", .payload = bytes, .payload_size = 16 << 20, .payload_kind = OUTBOX_BYTES};
    const struct outbox_event bad = {.type = ""};
    struct outbox_error err;

    (void)state;
    for (int i = 0; i < 3; i++)
        assert_int_equal(outbox_collector_raise(c, &large, NULL, &err), OUTBOX_OK);
    assert_int_equal(outbox_collector_raise(c, &large, NULL, &err), OUTBOX_REJECT);
    assert_non_null(strstr(err.text, "full"));
    assert_int_equal(outbox_collector_raise(c, &bad, NULL, &err), OUTBOX_REJECT);
    assert_int_equal(outbox_collector_count(c), 3);
    outbox_collector_clear(c);
    assert_int_equal(outbox_collector_raise(c, &large, NULL, &err), OUTBOX_OK);
    outbox_collector_free(c);
    free(bytes);
}

static void columns_over_their_limit(void **state)
{
    struct bench *b = *state;
    char *text = calloc(1, 65538);
    struct outbox_event ev = {.type = "t", .topic = text};
    struct outbox_error err;

    sql(b, "BEGIN IMMEDIATE");
    memset(text, 'x', 65537);
    assert_int_equal(outbox_sqlite_emit(b->db, NULL, &ev, NULL, &err), OUTBOX_REJECT);
    assert_string_equal(err.text, "topic is too large: 65537 bytes, the limit is 65536");
    text[65536] = '\0';
    assert_int_equal(outbox_sqlite_emit(b->db, NULL, &ev, NULL, &err), OUTBOX_OK);
    sql(b, "ROLLBACK");
    free(text);
}

static void busy_is_retry(void **state)
{
    struct bench *b = *state;
    struct outbox_error err;
    struct work w = {0};
    sqlite3 *other;

    assert_int_equal(sqlite3_open(b->path, &other), SQLITE_OK);
    assert_int_equal(sqlite3_exec(other, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(outbox_sqlite_transaction(b->db, NULL, NULL, place, &w, &err), OUTBOX_RETRY);
    sql(b, "BEGIN");
    assert_int_equal(outbox_sqlite_emit(b->db, NULL, &placed, NULL, &err), OUTBOX_RETRY);
    sql(b, "ROLLBACK");
    sqlite3_close(other);
    assert_int_equal(outbox_sqlite_transaction(b->db, NULL, NULL, place, &w, &err), OUTBOX_OK);
}

static void no_tables(void **state)
{
    struct bench *b = *state;
    struct outbox_error err;
    bool there;
    sqlite3 *empty;

    (void)b;
    assert_int_equal(sqlite3_open(":memory:", &empty), SQLITE_OK);
    assert_int_equal(outbox_sqlite_exists(empty, "x", &there, &err), OUTBOX_FATAL);
    assert_non_null(strstr(err.text, "outbox schema --apply"));
    sqlite3_exec(empty, "BEGIN", NULL, NULL, NULL);
    assert_int_equal(outbox_sqlite_emit(empty, NULL, &placed, NULL, &err), OUTBOX_FATAL);
    assert_non_null(strstr(err.text, "outbox schema --apply"));
    sqlite3_close(empty);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(refused_outside_a_transaction),
        T(emitted_with_the_change_or_not_at_all),
        T(all_fields),
        T(payload_kinds),
        T(large_payload),
        T(refused_events),
        T(many_in_order_all_or_none),
        T(context_is_stamped),
        T(transaction_commits_all),
        T(transaction_rolls_all_back),
        T(failed_commit_keeps_the_collector),
        T(transaction_misused),
        T(own_transaction_with_a_collector),
        T(collector_has_a_ceiling),
        T(columns_over_their_limit),
        T(busy_is_retry),
        T(no_tables),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
