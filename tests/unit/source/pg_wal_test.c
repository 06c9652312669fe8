/* SPDX-License-Identifier: Apache-2.0 */
/* pg_wal_test - the pure parts of mode wal: rows of the native table in both forms, messages,
 * events packed beside their parked rows, places in the stream, what is settled ahead of them. */
#include "rows.h"
#include "source/postgres/wal.h"
#include "source/postgres/whole.h"

#include <stdlib.h>

static const char *const columns[] = {
    "xid",          "seq",       "id",       "type",           "aggregate_type",
    "aggregate_id", "key",       "tenant",   "topic",          "payload",
    "payload_kind", "headers",   "metadata", "entity_version", "schema_version",
    "max_attempts", "created_at"};

static void relation(struct pgo_column *out, struct pgo_msg *m, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = (struct pgo_column){.name = ob_str_c(columns[i])};
    *m = (struct pgo_msg){.kind = PGO_RELATION, .relation = 7, .columns = out, .n = n};
}

#define T(z)                                                                                       \
    {                                                                                              \
        PGO_TEXT,                                                                                  \
        {                                                                                          \
            (z), sizeof(z) - 1                                                                     \
        }                                                                                          \
    }
#define B(z)                                                                                       \
    {                                                                                              \
        PGO_BINARY,                                                                                \
        {                                                                                          \
            (z), sizeof(z) - 1                                                                     \
        }                                                                                          \
    }
#define NIL                                                                                        \
    {                                                                                              \
        PGO_NULL,                                                                                  \
        {                                                                                          \
            NULL, 0                                                                                \
        }                                                                                          \
    }

static void test_both_forms_give_the_same_event(void **state)
{
    static const struct pgo_value text[] = {T("731"),
                                            T("42"),
                                            T("0190a6e0-1111-7abc-8def-0123456789ab"),
                                            T("t"),
                                            T("a"),
                                            T("i"),
                                            NIL,
                                            NIL,
                                            T("top"),
                                            T("\\x007fff"),
                                            T("b"),
                                            T("{}"),
                                            NIL,
                                            T("-5"),
                                            NIL,
                                            T("3"),
                                            T("2000-01-01 00:00:01.5+00")};
    static const struct pgo_value binary[] = {
        B("\0\0\0\0\0\0\2\xdb"),
        B("\0\0\0\0\0\0\0\x2a"),
        B("\x01\x90\xa6\xe0\x11\x11\x7a\xbc\x8d\xef\x01\x23\x45\x67\x89\xab"),
        B("t"),
        B("a"),
        B("i"),
        NIL,
        NIL,
        B("top"),
        B("\x00\x7f\xff"),
        B("b"),
        B("{}"),
        NIL,
        B("\xff\xff\xff\xff\xff\xff\xff\xfb"),
        NIL,
        B("\0\0\0\3"),
        B("\0\0\0\0\0\x16\xe3\x60")};
    struct ob_arena *arena = ob_arena_new(0, 0);
    struct pgo_column cols[17];
    struct pgo_msg rel, row = {.kind = PGO_INSERT, .n = 17};
    struct wal_table table = {0};
    struct ob_err err;
    (void)state;
    relation(cols, &rel, 17);
    assert_int_equal(ob_pg_wal_map_native(&table, &rel, &err), OB_OK);
    for (int form = 0; form < 2; form++) {
        const char *name = form ? "binary" : "text";
        struct ob_event ev;
        row.values = form ? binary : text;
        row_int(name, "status",
                ob_pg_wal_native(&table, &row, &ob_limits_default, arena, &ev, &err), OB_OK);
        row_int(name, "seq", (int64_t)ev.seq, 42);
        row_str(name, "id", ev.id, OB_STR("0190a6e0-1111-7abc-8def-0123456789ab"));
        row_str(name, "type", ev.type, OB_STR("t"));
        row_str(name, "topic", ev.topic, OB_STR("top"));
        row_str(name, "payload", ev.payload, OB_STR("\x00\x7f\xff"));
        row_int(name, "kind", ev.payload_kind, OB_PAYLOAD_BYTES);
        row_int(name, "entity_version", ev.entity_version, -5);
        row_int(name, "schema_version", ev.schema_version, OB_NO_VERSION);
        row_int(name, "max_attempts", ev.max_attempts, 3);
        row_int(name, "created", ev.created_us, 946684801500000);
        ROW_TRUE(name, ev.key.n == 0 && ev.tenant.n == 0);
    }
    ob_arena_unref(arena);
}

static void test_a_column_that_is_gone(void **state)
{
    struct pgo_column cols[17];
    struct pgo_msg rel;
    struct wal_table table = {0};
    struct ob_err err;
    (void)state;
    relation(cols, &rel, 9); /* ends before the payload */
    assert_int_equal(ob_pg_wal_map_native(&table, &rel, &err), OB_FATAL);
    assert_non_null(strstr(err.text, "payload"));
    assert_false(table.known);
}

static void test_messages(void **state)
{
    static const struct {
        const char *name, *content, *fault, *payload;
        enum ob_payload_kind kind;
    } cases[] = {
        {"json", "{\"type\": \"t\", \"payload\": [1, 2]}", "", "[1, 2]", OB_PAYLOAD_JSON},
        {"text", "{\"type\": \"t\", \"kind\": \"text\", \"payload\": \"a\\nb\"}", "", "a\nb",
         OB_PAYLOAD_TEXT},
        {"bytes", "{\"type\": \"t\", \"kind\": \"bytes\", \"payload\": \"aGk=\"}", "", "hi",
         OB_PAYLOAD_BYTES},
        {"kind behind the payload", "{\"payload\": \"aGk\", \"kind\": \"bytes\", \"type\": \"t\"}",
         "", "hi", OB_PAYLOAD_BYTES},
        {"none", "{\"type\": \"t\"}", "", "", OB_PAYLOAD_NULL},
        {"null", "{\"type\": \"t\", \"payload\": null}", "", "", OB_PAYLOAD_NULL},
        {"no type", "{}", "no type", "{}", OB_PAYLOAD_BYTES},
        {"no object", "[]", "no JSON object", "[]", OB_PAYLOAD_BYTES},
        {"nothing", "", "byte 0", "", OB_PAYLOAD_BYTES},
        {"two", "{\"type\": \"t\"}{}", "", "{\"type\": \"t\"}{}", OB_PAYLOAD_BYTES},
        {"unknown field", "{\"type\": \"t\", \"x\": 1}", "does not have",
         "{\"type\": \"t\", \"x\": 1}", OB_PAYLOAD_BYTES},
        {"headers are no object", "{\"type\": \"t\", \"headers\": 1}", "are objects",
         "{\"type\": \"t\", \"headers\": 1}", OB_PAYLOAD_BYTES},
    };
    (void)state;
    for (size_t i = 0; i < ROWS(cases); i++) {
        struct ob_arena *arena = ob_arena_new(0, 0);
        struct pgo_msg m = {.kind = PGO_MESSAGE,
                            .lsn = 0x1234560,
                            .transactional = true,
                            .content = ob_str_c(cases[i].content)};
        struct ob_event ev, again;
        struct ob_err err;
        row_int(cases[i].name, "status",
                ob_pg_wal_message(&m, 5, &ob_limits_default, arena, &ev, &err), OB_OK);
        row_int(cases[i].name, "again",
                ob_pg_wal_message(&m, 5, &ob_limits_default, arena, &again, &err), OB_OK);
        bool poison = cases[i].kind == OB_PAYLOAD_BYTES && cases[i].payload == cases[i].content;
        poison = poison || strcmp(cases[i].payload, cases[i].content) == 0;
        row_int(cases[i].name, "poison", ev.fault.n > 0, poison);
        if (!strstr(ev.fault.p ? ev.fault.p : "", cases[i].fault))
            fail_msg("row '%s': %.*s", cases[i].name, OB_STR_ARG(ev.fault));
        row_str(cases[i].name, "payload", ev.payload, ob_str_c(cases[i].payload));
        row_int(cases[i].name, "kind", ev.payload_kind, cases[i].kind);
        row_str(cases[i].name, "the same id", again.id, ev.id);
        row_int(cases[i].name, "seq", (int64_t)ev.seq, 0x1234560);
        m.lsn += 4096;
        row_int(cases[i].name, "elsewhere",
                ob_pg_wal_message(&m, 5, &ob_limits_default, arena, &again, &err), OB_OK);
        ROW_TRUE(cases[i].name, !ob_str_eq(again.id, ev.id));
        ob_arena_unref(arena);
    }
}

static void test_packed_events_come_back_whole(void **state)
{
    struct ob_arena *arena = ob_arena_new(0, 0);
    struct ob_col cols[] = {{OB_STR("n"), OB_STR("1.5"), OB_COL_NUMBER},
                            {OB_STR("quote\""), OB_STR("a\\b"), OB_COL_TEXT}};
    const struct ob_event ev = {.id = OB_STR("id-1"),
                                .type = OB_STR("t"),
                                .aggregate_id = OB_STR("snow \xe2\x98\x83"),
                                .key = OB_STR("k"),
                                .topic = OB_STR("top"),
                                .stream = OB_STR("s"),
                                .headers = OB_STR("{\"h\": \"1\"}"),
                                .payload_kind = OB_PAYLOAD_TEXT,
                                .entity_version = 7,
                                .schema_version = OB_NO_VERSION,
                                .created_us = 1234567,
                                .max_attempts = 3,
                                .seq = 99,
                                .fault = OB_STR("why"),
                                .cols = cols,
                                .n_cols = 2};
    struct ob_event back;
    struct ob_buf json;
    struct ob_err err = {.text = ""};
    (void)state;
    ob_buf_init(&json, 0);
    ob_pg_whole_pack(&ev, &json);
    assert_false(json.failed);
    assert_int_equal(
        ob_pg_whole_unpack(ob_buf_view(&json), OB_STR("body"), false, arena, &back, &err), OB_OK);
    row_str("packed", "id", back.id, ev.id);
    row_str("packed", "aggregate_id", back.aggregate_id, ev.aggregate_id);
    row_str("packed", "stream", back.stream, ev.stream);
    row_str("packed", "headers", back.headers, ev.headers);
    row_str("packed", "fault", back.fault, ev.fault);
    row_str("packed", "payload", back.payload, OB_STR("body"));
    row_int("packed", "kind", back.payload_kind, OB_PAYLOAD_TEXT);
    row_int("packed", "entity_version", back.entity_version, 7);
    row_int("packed", "schema_version", back.schema_version, OB_NO_VERSION);
    row_int("packed", "created", back.created_us, 1234567);
    row_int("packed", "max_attempts", back.max_attempts, 3);
    row_int("packed", "seq", (int64_t)back.seq, 99);
    assert_int_equal(back.n_cols, 2);
    row_str("packed", "column", back.cols[1].name, cols[1].name);
    row_str("packed", "value", back.cols[1].value, cols[1].value);
    row_int("packed", "column's kind", back.cols[0].kind, OB_COL_NUMBER);
    /* A text with NUL cannot stand in jsonb: the settle would be refused for ever. */
    ob_buf_reset(&json);
    struct ob_event nul = {.id = OB_STR("a\0b"), .type = OB_STR("t")};
    ob_pg_whole_pack(&nul, &json);
    assert_null(strstr(ob_buf_z(&json), "u0000"));
    for (size_t n = 0; n < json.n; n++) {
        struct ob_str cut = {json.p, n};
        assert_int_not_equal(ob_pg_whole_unpack(cut, OB_STR(""), false, arena, &back, &err), OB_OK);
    }
    ob_buf_clear(&json);
    ob_arena_unref(arena);
}

/* Ordinals of transactions that are in flight, and the position behind each. */
static void test_positions(void **state)
{
    struct wal_txn of[] = {{.first = 1, .last = 1, .lsn = 100, .end_lsn = 110},
                           {.first = 2, .last = 4, .lsn = 200, .end_lsn = 230, .rows = 5},
                           {.first = 5, .last = 6, .lsn = 300}};
    struct wal_state *w = test_calloc(1, sizeof(*w));
    static const struct {
        const char *name;
        uint64_t ref, lsn, rows;
    } cases[] = {
        {"a whole transaction", 1, 110, 0},
        {"inside, behind rows that were done", 2, 200, 6},
        {"inside", 3, 200, 7},
        {"its end", 4, 230, 0},
        {"one that is still read", 6, 300, 2},
    };
    struct wal_pos at;
    (void)state;
    w->ring = (struct wal_ring){.of = of, .cap = 3, .n = 3};
    for (size_t i = 0; i < ROWS(cases); i++) {
        ROW_TRUE(cases[i].name, ob_pg_wal_at(w, cases[i].ref, &at));
        row_int(cases[i].name, "lsn", (int64_t)at.lsn, (int64_t)cases[i].lsn);
        row_int(cases[i].name, "rows", (int64_t)at.rows, (int64_t)cases[i].rows);
    }
    assert_false(ob_pg_wal_at(w, 7, &at));
    ob_pg_wal_settled(w, 3); /* inside the second: it stays */
    assert_int_equal(w->ring.n, 2);
    assert_true(ob_pg_wal_at(w, 4, &at));
    ob_pg_wal_settled(w, 6);
    assert_int_equal(w->ring.n, 1); /* the last one's commit was not read yet */
    test_free(w);
}

/* When a slot may be created, used or dropped: no row may drop what nothing else has. */
static void test_the_rule_of_slots(void **state)
{
    static const struct {
        const char *name;
        struct wal_slot_case c;
        enum wal_slot_verdict want;
    } cases[] = {
        {"first start", {.record = SLOT_NEVER}, SLOT_CREATE},
        {"first start went down", {.record = SLOT_CREATING}, SLOT_CREATE},
        {"created, then went down",
         {.there = true, .ours = true, .record = SLOT_CREATING},
         SLOT_USE},
        {"no record", {.there = true, .ours = true, .record = SLOT_NEVER}, SLOT_USE},
        {"no record, loss accepted",
         {.there = true, .ours = true, .record = SLOT_NEVER, .accept_loss = true},
         SLOT_USE},
        {"no record, WAL lost",
         {.there = true, .ours = true, .lost = true, .record = SLOT_NEVER},
         SLOT_KEEP},
        {"in use", {.there = true, .ours = true, .record = SLOT_CREATED}, SLOT_KEEP},
        {"gone", {.record = SLOT_CREATED}, SLOT_KEEP},
        {"gone, loss accepted", {.record = SLOT_CREATED, .accept_loss = true}, SLOT_CREATE},
        {"in use, loss accepted",
         {.there = true, .ours = true, .record = SLOT_CREATED, .accept_loss = true},
         SLOT_REPLACE},
        {"not moved yet", {.record = SLOT_MOVING}, SLOT_KEEP},
        {"not moved yet, there", {.there = true, .ours = true, .record = SLOT_MOVING}, SLOT_KEEP},
        {"a table has the events",
         {.there = true, .ours = true, .table = true, .at_table = true, .record = SLOT_CREATED},
         SLOT_REPLACE},
        {"a table, the cursor is in the stream",
         {.there = true, .ours = true, .table = true, .record = SLOT_CREATED},
         SLOT_KEEP},
        {"a table, no slot",
         {.table = true, .at_table = true, .record = SLOT_CREATED},
         SLOT_CREATE},
        {"foreign", {.there = true, .record = SLOT_NEVER, .accept_loss = true}, SLOT_FOREIGN},
        {"foreign and lost", {.there = true, .lost = true, .table = true}, SLOT_FOREIGN},
    };
    (void)state;
    for (size_t i = 0; i < ROWS(cases); i++)
        row_int(cases[i].name, "verdict", ob_slot_rule(&cases[i].c), cases[i].want);
    row_int("never", "record", ob_slot_record(ob_str_c("never")), SLOT_NEVER);
    row_int("moving", "record", ob_slot_record(ob_str_c("moving")), SLOT_MOVING);
    row_int("unknown", "record", ob_slot_record(ob_str_c("?")), SLOT_CREATED);
}

/* ---- settled ahead of the position ---- */

/* The next row of a transaction of the stream; true: it came as settled. */
static bool read_row(struct ob_source *s, uint64_t lsn, uint64_t seq)
{
    struct wal_state *w = s->wal;
    struct ob_event ev = {.seq = seq, .ref = 1};
    w->given++;
    w->read = (struct wal_pos){lsn, 1};
    assert_true(ob_pg_wal_ahead_note(s, &ev));
    assert_true(ev.settled ? ev.seq == 0 : ev.seq == seq);
    return ev.settled;
}

static size_t store(struct ob_source *s, const struct ob_settle *settle, struct wal_pos at)
{
    struct wal_state *w = s->wal;
    struct pg_cursor out = {0};
    ob_pg_wal_ahead_write(s, settle, at, &out);
    ob_pg_ahead_stored(&w->ahead);
    return out.ahead_n ? (size_t)strtoul(out.ahead_n, NULL, 10) : 0;
}

#define MANY 20000

/* Three transactions of many rows, every second row is settled ahead; then all of it again. */
static void run_rows(bool whole)
{
    struct wal_state w = {.durable = {100, 0}};
    struct ob_source s = {.wal = &w, .whole = whole};
    static uint64_t refs[3 * MANY];
    struct ob_settle settle = {.ahead = refs, .claimed = 3 * MANY};
    for (uint64_t i = 1; i <= 3 * MANY; i++) {
        assert_false(read_row(&s, 200 + i / MANY, 5000 + 3 * i));
        if (i % 2 == 0)
            refs[settle.n_ahead++] = w.given;
    }
    assert_int_equal(store(&s, &settle, w.durable), 3 * MANY / 2);
    ob_pg_wal_ahead_rewind(&w);
    w.settled = w.given;
    /* A settle before the stream has come to any of them again. */
    settle = (struct ob_settle){.ahead = refs, .claimed = w.given};
    assert_int_equal(store(&s, &settle, w.durable), 3 * MANY / 2);
    for (uint64_t i = 1; i <= 3 * MANY; i++)
        assert_int_equal(read_row(&s, 200 + i / MANY, 5000 + 3 * i), i % 2 == 0);
    /* Half of them are claimed and passed by the position, the rest is not claimed yet. */
    settle.claimed = w.settled + 3 * MANY / 2;
    assert_int_equal(store(&s, &settle, (struct wal_pos){201, 7}), 3 * MANY / 4);
    /* The position is beyond all that was read before the rewind. */
    assert_int_equal(store(&s, &settle, (struct wal_pos){300, 0}), 0);
    assert_int_equal(w.ahead.set.n, 0);
    ob_pg_wal_ahead_clear(&w);
}

static void test_settled_ahead(void **state)
{
    (void)state;
    run_rows(false);
    run_rows(true);
}

/* A parked event that an earlier owner left ahead of the position is published before the stream
 * comes to it. Members of another kind of number do not count. */
static void test_settled_ahead_by_drain(void **state)
{
    (void)state;
    struct wal_state w = {.durable = {100, 0}, .ahead_end = 1000};
    struct ob_source s = {.wal = &w};
    const struct ob_event ev = {.seq = 77};
    struct ob_settle_op op = {.kind = OB_SETTLE_PUBLISHED, .park_n = 5, .event = &ev};
    struct ob_settle settle = {.ops = &op, .n = 1};
    assert_true(ob_ahead_add(&w.ahead.set, 1, 78, 0));
    assert_int_equal(store(&s, &settle, w.durable), 1);
    assert_true(read_row(&s, 500, 77));
    assert_false(read_row(&s, 501, 78));
    assert_int_equal(store(&s, &settle, (struct wal_pos){1001, 0}), 0);
    ob_pg_wal_ahead_clear(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_rule_of_slots),
        cmocka_unit_test(test_both_forms_give_the_same_event),
        cmocka_unit_test(test_a_column_that_is_gone),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_packed_events_come_back_whole),
        cmocka_unit_test(test_positions),
        cmocka_unit_test(test_settled_ahead),
        cmocka_unit_test(test_settled_ahead_by_drain),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
