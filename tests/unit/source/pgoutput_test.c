/* SPDX-License-Identifier: Apache-2.0 */
/* pgoutput_test - each kind of message from bytes made by hand; every cut and thousands of changed
 * bytes are a clean error. The bytes stand in memory of exactly their size, so that a sanitizer
 * sees a byte too far. */
#include "source/postgres/pgoutput.h"

#include "../rows.h"

#include "core/rand.h"

#include <stdlib.h>

#define B(lit)                                                                                     \
    {                                                                                              \
        (lit), sizeof(lit) - 1                                                                     \
    }
#define LSN1 "\0\0\0\1\0\0\0\x10"
#define LSN2 "\0\0\0\1\0\0\0\x40"
#define TIME "\0\0\0\0\0\x0f\x42\x40" /* a second after 2000 */

static struct pgo_room room;

static const struct {
    const char *name;
    struct ob_str bytes;
} messages[] = {
    {"begin", B("B" LSN1 TIME "\0\0\x02\xda")},
    {"commit", B("C\0" LSN1 LSN2 TIME)},
    {"origin", B("O" LSN1 "elsewhere\0")},
    {"relation", B("R\0\0\x40\x01"
                   "outbox\0"
                   "event\0"
                   "d\0\2"
                   "\1id\0\0\0\x0b\x86\xff\xff\xff\xff"
                   "\0payload\0\0\0\0\x11\0\0\0\7")},
    {"type", B("Y\0\0\x50\x02"
               "public\0"
               "mood\0")},
    {"insert", B("I\0\0\x40\x01N\0\4"
                 "t\0\0\0\5hello"
                 "nb\0\0\0\2\x01\x02"
                 "t\0\0\0\0")},
    {"update, only the new row", B("U\0\0\x40\x01N\0\2ut\0\0\0\1x")},
    {"update, old key", B("U\0\0\x40\x01K\0\1t\0\0\0\1aN\0\1t\0\0\0\1b")},
    {"update, old row", B("U\0\0\x40\x01O\0\2nnN\0\1n")},
    {"delete, key", B("D\0\0\x40\x01K\0\1t\0\0\0\1a")},
    {"delete, row", B("D\0\0\x40\x01O\0\1n")},
    {"truncate", B("T\0\0\0\2\1\0\0\x40\x01\0\0\x40\x02")},
    {"message", B("M\1" LSN1 "outbox\0"
                  "\0\0\0\2{}")},
    {"message of nothing", B("M\0" LSN1 "\0"
                             "\0\0\0\0")},
};

static const struct ob_str *bytes_of(const char *name)
{
    for (size_t i = 0; i < ROWS(messages); i++)
        if (strcmp(messages[i].name, name) == 0)
            return &messages[i].bytes;
    fail_msg("no message '%s'", name);
    return NULL;
}

static struct pgo_msg decode(const char *name)
{
    struct pgo_msg m;
    struct ob_err err = {.text = ""};
    if (ob_pgo_decode(*bytes_of(name), &room, &m, &err) != OB_OK)
        fail_msg("%s: %s", name, err.text);
    return m;
}

static void test_transactions(void **state)
{
    struct pgo_msg m = decode("begin");
    (void)state;
    assert_int_equal(m.kind, PGO_BEGIN);
    assert_int_equal(m.lsn, 0x100000010);
    assert_int_equal(m.xid, 730);
    assert_int_equal(m.time_us, 946684801000000);
    m = decode("commit");
    assert_int_equal(m.lsn, 0x100000010);
    assert_int_equal(m.end_lsn, 0x100000040);
    m = decode("origin");
    row_str("origin", "name", m.name, OB_STR("elsewhere"));
}

static void test_tables(void **state)
{
    struct pgo_msg m = decode("relation");
    (void)state;
    assert_int_equal(m.relation, 0x4001);
    row_str("relation", "schema", m.space, OB_STR("outbox"));
    row_str("relation", "name", m.name, OB_STR("event"));
    assert_int_equal(m.n, 2);
    assert_true(m.columns[0].key);
    row_str("relation", "column", m.columns[0].name, OB_STR("id"));
    assert_int_equal(m.columns[0].type, 2950);
    assert_int_equal(m.columns[0].typmod, -1);
    assert_false(m.columns[1].key);
    assert_int_equal(m.columns[1].typmod, 7);
    m = decode("type");
    assert_int_equal(m.relation, 0x5002);
    row_str("type", "name", m.name, OB_STR("mood"));
    m = decode("truncate");
    assert_int_equal(m.n_relations, 2);
    assert_int_equal(ob_pgo_truncated(&m, 0), 0x4001);
    assert_int_equal(ob_pgo_truncated(&m, 1), 0x4002);
}

static void test_rows(void **state)
{
    struct pgo_msg m = decode("insert");
    (void)state;
    assert_int_equal(m.relation, 0x4001);
    assert_int_equal(m.n, 4);
    assert_int_equal(m.values[0].form, PGO_TEXT);
    row_str("insert", "text", m.values[0].v, OB_STR("hello"));
    assert_int_equal(m.values[1].form, PGO_NULL);
    assert_int_equal(m.values[2].form, PGO_BINARY);
    row_str("insert", "binary", m.values[2].v, OB_STR("\x01\x02"));
    assert_int_equal(m.values[3].form, PGO_TEXT);
    assert_int_equal(m.values[3].v.n, 0);
    m = decode("update, only the new row");
    assert_int_equal(m.values[0].form, PGO_UNCHANGED);
    row_str("update", "value", m.values[1].v, OB_STR("x"));
    m = decode("update, old key");
    assert_int_equal(m.n, 1);
    row_str("update", "the new row", m.values[0].v, OB_STR("b"));
    m = decode("update, old row");
    assert_int_equal(m.n, 1);
    m = decode("delete, key");
    row_str("delete", "key", m.values[0].v, OB_STR("a"));
}

static void test_messages(void **state)
{
    struct pgo_msg m = decode("message");
    (void)state;
    assert_true(m.transactional);
    assert_int_equal(m.lsn, 0x100000010);
    row_str("message", "prefix", m.name, OB_STR("outbox"));
    row_str("message", "content", m.content, OB_STR("{}"));
    m = decode("message of nothing");
    assert_false(m.transactional);
    assert_int_equal(m.content.n, 0);
}

/* In memory of its own. */
static enum ob_status decode_copy(const char *bytes, size_t n, struct ob_err *err)
{
    struct pgo_msg m;
    char *copy = malloc(n ? n : 1);
    assert_non_null(copy);
    memcpy(copy, bytes, n);
    enum ob_status st = ob_pgo_decode((struct ob_str){copy, n}, &room, &m, err);
    free(copy);
    return st;
}

static void test_every_cut_and_every_byte_more(void **state)
{
    char longer[256];
    (void)state;
    for (size_t i = 0; i < ROWS(messages); i++) {
        struct ob_str b = messages[i].bytes;
        struct ob_err err = {.text = ""};
        for (size_t n = 0; n < b.n; n++) {
            row_int(messages[i].name, "a cut", decode_copy(b.p, n, &err), OB_REJECT);
            ROW_TRUE(messages[i].name, strstr(err.text, "byte ") != NULL);
        }
        memcpy(longer, b.p, b.n);
        longer[b.n] = 0;
        row_int(messages[i].name, "a byte more", decode_copy(longer, b.n + 1, &err), OB_REJECT);
        row_int(messages[i].name, "whole", decode_copy(b.p, b.n, &err), OB_OK);
    }
}

static void test_changed_bytes(void **state)
{
    struct ob_rand rand = {7};
    char bytes[256];
    size_t refused = 0;
    (void)state;
    for (int round = 0; round < 20000; round++) {
        struct ob_str b = messages[ob_rand_next(&rand) % ROWS(messages)].bytes;
        struct ob_err err;
        memcpy(bytes, b.p, b.n);
        for (uint64_t k = ob_rand_next(&rand) % 4; k < 4; k++)
            bytes[ob_rand_next(&rand) % b.n] = (char)(ob_rand_next(&rand) & 255);
        enum ob_status st = decode_copy(bytes, b.n, &err);
        assert_true(st == OB_OK || st == OB_REJECT);
        refused += st == OB_REJECT;
    }
    assert_true(refused > 5000);
}

static void test_refused(void **state)
{
    static const struct {
        const char *name;
        struct ob_str bytes;
        const char *want;
    } cases[] = {
        {"unknown kind", B("Z"), "message Z: byte 1: a message of a kind"},
        {"unknown form", B("I\0\0\0\1N\0\1x"), "a form that is not known"},
        {"too many columns", B("I\0\0\0\1N\xff\xff"), "too many columns"},
        {"a length beyond the end", B("I\0\0\0\1N\0\1t\xff\xff\xff\xff..."), "cut off"},
        {"an old row in an insert", B("I\0\0\0\1O\0\0"), "not of the kind"},
        {"a new row in a delete", B("D\0\0\0\1N\0\0"), "not of the kind"},
        {"an update without a row", B("U\0\0\0\1X\0\0"), "no new row"},
        {"tables without number", B("T\xff\xff\xff\xff\0"), "cut off"},
        {"nothing", B(""), "cut off"},
    };
    (void)state;
    for (size_t i = 0; i < ROWS(cases); i++) {
        struct ob_err err = {.text = ""};
        row_int(cases[i].name, "status", decode_copy(cases[i].bytes.p, cases[i].bytes.n, &err),
                OB_REJECT);
        if (!strstr(err.text, cases[i].want))
            fail_msg("row '%s': %s", cases[i].name, err.text);
    }
}

static void test_frames(void **state)
{
    struct pgo_frame f;
    struct ob_err err;
    const struct ob_str data = B("w" LSN1 LSN2 TIME "Bx"), alive = B("k" LSN2 TIME "\1");
    (void)state;
    assert_int_equal(ob_pgo_frame(data, &f, &err), OB_OK);
    assert_false(f.keepalive);
    assert_int_equal(f.start, 0x100000010);
    assert_int_equal(f.end, 0x100000040);
    row_str("data", "message", f.data, OB_STR("Bx"));
    assert_int_equal(ob_pgo_frame(alive, &f, &err), OB_OK);
    assert_true(f.keepalive && f.reply);
    assert_int_equal(f.end, 0x100000040);
    for (size_t n = 0; n < 25; n++)
        assert_int_equal(ob_pgo_frame((struct ob_str){data.p, n}, &f, &err), OB_REJECT);
    for (size_t n = 0; n < alive.n; n++)
        assert_int_equal(ob_pgo_frame((struct ob_str){alive.p, n}, &f, &err), OB_REJECT);
    assert_int_equal(ob_pgo_frame(OB_STR("z"), &f, &err), OB_REJECT);
}

static void test_status(void **state)
{
    char out[PGO_STATUS_SIZE];
    (void)state;
    ob_pgo_status(0x100000040, 0x100000010, 946684801000000, true, out);
    assert_memory_equal(out, "r" LSN2 LSN1 LSN1 TIME "\1", PGO_STATUS_SIZE);
}

static void test_positions(void **state)
{
    static const struct {
        const char *text;
        uint64_t lsn;
        bool ok;
    } cases[] = {
        {"0/0", 0, true},
        {"16/B374D848", 0x16B374D848, true},
        {"1/0", 0x100000000, true},
        {"FFFFFFFF/FFFFFFFF", UINT64_MAX, true},
        {"", 0, false},
        {"1", 0, false},
        {"/1", 0, false},
        {"1/", 0, false},
        {"1/2x", 0, false},
        {"123456789/1", 0, false},
    };
    (void)state;
    for (size_t i = 0; i < ROWS(cases); i++) {
        uint64_t lsn = 0;
        char back[PGO_LSN_TEXT];
        row_int(cases[i].text, "parsed", ob_pgo_lsn_parse(cases[i].text, &lsn), cases[i].ok);
        if (!cases[i].ok)
            continue;
        ROW_TRUE(cases[i].text, lsn == cases[i].lsn);
        ob_pgo_lsn_format(lsn, back);
        ROW_TRUE(cases[i].text, strcmp(back, cases[i].text) == 0);
    }
}

static void test_epochs(void **state)
{
    static const struct {
        const char *name;
        uint32_t xid;
        uint64_t near, want;
    } cases[] = {
        {"same epoch", 1000, 900, 1000},
        {"below", 800, 900, 800},
        {"epoch 1", 1000, 0x100000384, 0x1000003e8},
        {"just before the turn", 0xfffffff0, 0x100000003, 0xfffffff0},
        {"just behind the turn", 3, 0xfffffff0, 0x100000003},
        {"epoch 0 has none before", 0xfffffff0, 10, 0xfffffff0},
    };
    (void)state;
    for (size_t i = 0; i < ROWS(cases); i++)
        ROW_TRUE(cases[i].name, ob_pgo_xid(cases[i].xid, cases[i].near) == cases[i].want);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_transactions),
        cmocka_unit_test(test_tables),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_every_cut_and_every_byte_more),
        cmocka_unit_test(test_changed_bytes),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_frames),
        cmocka_unit_test(test_status),
        cmocka_unit_test(test_positions),
        cmocka_unit_test(test_epochs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
