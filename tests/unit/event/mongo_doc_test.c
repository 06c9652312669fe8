/* SPDX-License-Identifier: Apache-2.0 */
/* mongo_doc_test - JSON as BSON, and an event as a new document: native, sc, and what is refused.
 */
#include "event/mongo_doc.h"

#include "../rows.h"
#include "event/bson_json.h"
#include "event/bson_write.h"

#include <stdio.h>
#include <stdlib.h>

#define NOW INT64_C(1356351330500)

static struct ob_row row_of(const char *payload)
{
    return (struct ob_row){.id = OB_STR("i-1"),
                           .type = OB_STR("user.created"),
                           .aggregate_type = OB_STR("user"),
                           .aggregate_id = OB_STR("56e1fc72e0c917e9c4714161"),
                           .payload = ob_str_c(payload),
                           .payload_kind = payload ? OB_PAYLOAD_JSON : OB_PAYLOAD_NULL,
                           .entity_version = 3,
                           .schema_version = OB_NO_VERSION};
}

/* {"v": the JSON} as BSON, in canonical form. */
static enum ob_status convert(const char *json, struct ob_buf *out, struct ob_err *err)
{
    struct ob_buf doc;
    struct ob_bson_writer w;
    enum ob_status st;

    ob_buf_init(&doc, 0);
    ob_bsonw_init(&w, &doc);
    ob_bsonw_open(&w, (struct ob_str){0}, false);
    st = ob_bsonw_json(&w, OB_STR("v"), ob_str_c(json), err);
    ob_bsonw_close(&w);
    if (st == OB_OK)
        st = ob_bson_json(ob_buf_view(&doc), OB_BSON_CANONICAL, out, err);
    ob_buf_clear(&doc);
    return st;
}

static void test_json_becomes_bson(void **state)
{
    static const struct {
        const char *name, *json, *want;
    } cases[] = {
        {"a small number", "42", "{\"$numberInt\":\"42\"}"},
        {"the least small one", "-2147483648", "{\"$numberInt\":\"-2147483648\"}"},
        {"a long one", "2147483648", "{\"$numberLong\":\"2147483648\"}"},
        {"the longest", "9223372036854775807", "{\"$numberLong\":\"9223372036854775807\"}"},
        {"longer is a double", "9223372036854775808",
         "{\"$numberDouble\":\"9.223372036854776e+18\"}"},
        {"a fraction", "1.50", "{\"$numberDouble\":\"1.5\"}"},
        {"a whole number with a fraction stays a double", "1.0", "{\"$numberDouble\":\"1.0\"}"},
        {"an exponent", "1E3", "{\"$numberDouble\":\"1000.0\"}"},
        {"minus zero", "-0", "{\"$numberDouble\":\"-0.0\"}"},
        {"zero", "0", "{\"$numberInt\":\"0\"}"},
        {"text with escapes", "\"a\\u0000\\n\\ud83c\\udf23\"", "\"a\\u0000\\n\xf0\x9f\x8c\xa3\""},
        {"literals", "[true,false,null]", "[true,false,null]"},
        {"nested, in order", "{\"b\":{\"x\":[{}]},\"a\":[[],\"\"]}",
         "{\"b\":{\"x\":[{}]},\"a\":[[],\"\"]}"},
        {"names like Extended JSON are names", "{\"$oid\":\"x\",\"a.b\":{\"$date\":1},\"\":2}",
         "{\"$oid\":\"x\",\"a.b\":{\"$date\":{\"$numberInt\":\"1\"}},\"\":{\"$numberInt\":\"2\"}}"},
        {"an escaped name", "{\"a\\\"\\u00e9\":1}", "{\"a\\\"\xc3\xa9\":{\"$numberInt\":\"1\"}}"},
        {"a name twice", "{\"a\":null,\"a\":true}", "{\"a\":null,\"a\":true}"},
    };
    struct ob_buf out, want;

    (void)state;
    ob_buf_init(&out, 0);
    ob_buf_init(&want, 0);
    for (size_t i = 0; i < ROWS(cases); i++) {
        struct ob_err err = {.text = ""};
        ob_buf_reset(&out);
        ob_buf_reset(&want);
        ob_buf_printf(&want, "{\"v\":%s}", cases[i].want);
        if (convert(cases[i].json, &out, &err) != OB_OK)
            fail_msg("row '%s': %s", cases[i].name, err.text);
        row_str(cases[i].name, "document", ob_buf_view(&out), ob_buf_view(&want));
    }
    ob_buf_clear(&out);
    ob_buf_clear(&want);
}

static void test_json_that_no_document_can_have(void **state)
{
    char deep[2 * 300 + 1];
    const struct {
        const char *name, *json, *want;
    } cases[] = {
        {"no JSON", "{\"a\":}", "byte 5"},
        {"a number without bounds", "1e999", "1e999 is too large"},
        {"a NUL in a name", "{\"a\\u0000b\":1}", "a name with a NUL"},
        {"deeper than a server takes", deep, "nested deeper than 180"},
    };
    struct ob_buf out;

    (void)state;
    memset(deep, '[', 300);
    memset(deep + 300, ']', 300);
    deep[600] = '\0';
    ob_buf_init(&out, 0);
    for (size_t i = 0; i < ROWS(cases); i++) {
        struct ob_err err = {.text = ""};
        row_int(cases[i].name, "status", convert(cases[i].json, &out, &err), OB_REJECT);
        if (!strstr(err.text, cases[i].want))
            fail_msg("row '%s': %s", cases[i].name, err.text);
    }
    ob_buf_clear(&out);
}

/* The document of a row in canonical form, or the error's text. */
static void made(const struct ob_mongo_shape *shape, const struct ob_row *row, struct ob_buf *out)
{
    struct ob_buf doc;
    struct ob_err err = {.text = ""};
    char id[64];
    enum ob_status st;

    ob_buf_init(&doc, (size_t)64 << 20);
    ob_buf_reset(out);
    st = ob_mongo_doc(shape, row, NOW, &doc, id, &err);
    if (st == OB_OK)
        assert_int_equal(ob_bson_json(ob_buf_view(&doc), OB_BSON_CANONICAL, out, &err), OB_OK);
    else {
        assert_int_equal(st, OB_REJECT);
        assert_int_equal(doc.n, 0);
        ob_buf_c(out, err.text);
    }
    ob_buf_clear(&doc);
}

#define SC_HEAD                                                                                    \
    "{\"event_id\":\"i-1\",\"event_type\":\"user.created\",\"entity_type\":\"user\","              \
    "\"entity_id\":\"56e1fc72e0c917e9c4714161\",\"entity_version\":{\"$numberInt\":\"3\"},"
#define SC_TAIL                                                                                    \
    "\"last_error\":null,\"last_error_at\":null,"                                                  \
    "\"created_at\":{\"$date\":{\"$numberLong\":\"1356351330500\"}},"                              \
    "\"processing_started_at\":null,\"published_at\":null,\"locked_by\":null,"                     \
    "\"locked_until\":null}"

static void test_sc_documents(void **state)
{
    struct ob_row row = row_of("{\"a\":1.5,\"b\":[]}");
    struct ob_buf out;

    (void)state;
    ob_buf_init(&out, 0);
    made(&ob_mongo_shape_sc, &row, &out);
    assert_string_equal(
        ob_buf_z(&out), SC_HEAD
        "\"topic\":\"sc.domain.user\",\"partition_key\":\"56e1fc72e0c917e9c4714161\","
        "\"payload\":{\"a\":{\"$numberDouble\":\"1.5\"},\"b\":[]},\"status\":\"pending\","
        "\"retry_count\":{\"$numberInt\":\"0\"},\"max_retries\":{\"$numberInt\":\"5\"}," SC_TAIL);
    row.topic = OB_STR("other");
    row.key = OB_STR("k");
    row.max_attempts = 7;
    row.payload_kind = OB_PAYLOAD_TEXT;
    row.metadata = OB_STR("{\"userId\":\"anna\"}"); /* of a context: there is no field for it */
    row.metadata_of_context = true;
    row.tenant = OB_STR("t");
    row.tenant_of_context = true;
    made(&ob_mongo_shape_sc, &row, &out);
    assert_string_equal(
        ob_buf_z(&out), SC_HEAD
        "\"topic\":\"other\",\"partition_key\":\"k\",\"payload\":\"{\\\"a\\\":1.5,\\\"b\\\":[]}\","
        "\"status\":\"pending\",\"retry_count\":{\"$numberInt\":\"0\"},"
        "\"max_retries\":{\"$numberInt\":\"7\"}," SC_TAIL);
    ob_buf_clear(&out);
}

static void test_native_documents(void **state)
{
    struct ob_row row = row_of("{\"a\" : 1.50}");
    struct ob_mongo_shape document = ob_mongo_shape_native;
    struct ob_buf out;

    (void)state;
    ob_buf_init(&out, 0);
    made(&ob_mongo_shape_native, &row, &out);
    assert_string_equal(
        ob_buf_z(&out),
        "{\"_id\":\"i-1\",\"seq\":{\"$timestamp\":{\"t\":0,\"i\":0}},\"type\":\"user.created\","
        "\"aggregate_type\":\"user\",\"aggregate_id\":\"56e1fc72e0c917e9c4714161\","
        "\"entity_version\":{\"$numberInt\":\"3\"},\"key\":\"56e1fc72e0c917e9c4714161\","
        "\"payload\":\"{\\\"a\\\" : 1.50}\",\"payload_kind\":\"json\",\"status\":\"pending\","
        "\"attempts\":{\"$numberInt\":\"0\"},"
        "\"created_at\":{\"$date\":{\"$numberLong\":\"1356351330500\"}}}");
    document.document = true;
    row.entity_version = OB_NO_VERSION;
    row.schema_version = 2;
    row.aggregate_type = row.aggregate_id = (struct ob_str){0};
    row.tenant = OB_STR("t");
    row.topic = OB_STR("x");
    row.headers = OB_STR("{\"h\":\"1\"}");
    row.metadata = OB_STR("{\"m\":1}");
    row.max_attempts = 4;
    made(&document, &row, &out);
    assert_string_equal(
        ob_buf_z(&out),
        "{\"_id\":\"i-1\",\"seq\":{\"$timestamp\":{\"t\":0,\"i\":0}},\"type\":\"user.created\","
        "\"schema_version\":{\"$numberInt\":\"2\"},\"topic\":\"x\",\"tenant\":\"t\","
        "\"payload\":{\"a\":{\"$numberDouble\":\"1.5\"}},\"headers\":{\"h\":\"1\"},"
        "\"metadata\":{\"m\":{\"$numberInt\":\"1\"}},\"status\":\"pending\","
        "\"attempts\":{\"$numberInt\":\"0\"},\"max_attempts\":{\"$numberInt\":\"4\"},"
        "\"created_at\":{\"$date\":{\"$numberLong\":\"1356351330500\"}}}");
    ob_buf_clear(&out);
}

static void test_payloads_of_every_kind(void **state)
{
    static const struct {
        const char *name;
        struct ob_str payload;
        enum ob_payload_kind kind;
        bool bson;
        const char *want;
    } cases[] = {
        {"text",
         {"a\0b", 3},
         OB_PAYLOAD_TEXT,
         false,
         "\"payload\":\"a\\u0000b\",\"payload_kind\":\"text\""},
        {"text that is no UTF-8",
         {"a\xff", 2},
         OB_PAYLOAD_TEXT,
         false,
         "\"payload\":{\"$binary\":{\"base64\":\"Yf8=\",\"subType\":\"00\"}},"
         "\"payload_kind\":\"text\""},
        {"bytes",
         {"abc", 3},
         OB_PAYLOAD_BYTES,
         false,
         "\"payload\":{\"$binary\":{\"base64\":\"YWJj\",\"subType\":\"00\"}},"
         "\"payload_kind\":\"bytes\""},
        {"none", {NULL, 0}, OB_PAYLOAD_NULL, false, "\"payload\":null,\"status\""},
        {"BSON",
         {"\x0c\0\0\0\x10x\0\x2a\0\0\0\0", 12},
         OB_PAYLOAD_BYTES,
         true,
         "\"payload\":{\"x\":{\"$numberInt\":\"42\"}},\"status\""},
    };
    struct ob_buf out;

    (void)state;
    ob_buf_init(&out, 0);
    for (size_t i = 0; i < ROWS(cases); i++) {
        struct ob_row row = row_of(NULL);
        row.payload = cases[i].payload;
        row.payload_kind = cases[i].kind;
        row.bson = cases[i].bson;
        made(&ob_mongo_shape_native, &row, &out);
        if (!strstr(ob_buf_z(&out), cases[i].want))
            fail_msg("row '%s': %s", cases[i].name, ob_buf_z(&out));
    }
    ob_buf_clear(&out);
}

static void test_what_is_refused(void **state)
{
    struct ob_buf out;
    struct ob_row row;
    char *big = malloc(OB_MONGO_DOC_MAX);

    (void)state;
    assert_non_null(big);
    ob_buf_init(&out, 0);
    row = row_of("{}");
    row.headers = OB_STR("{\"a\":1}");
    made(&ob_mongo_shape_sc, &row, &out);
    assert_string_equal(ob_buf_z(&out), "headers has no field in the documents of this collection");
    row = row_of("{}");
    row.tenant = OB_STR("t");
    made(&ob_mongo_shape_sc, &row, &out);
    assert_string_equal(ob_buf_z(&out), "tenant has no field in the documents of this collection");
    row = row_of("{}");
    row.entity_version = OB_NO_VERSION;
    made(&ob_mongo_shape_sc, &row, &out);
    assert_non_null(strstr(ob_buf_z(&out), "entity_version is needed"));
    row = row_of("{}");
    row.aggregate_id = (struct ob_str){0};
    made(&ob_mongo_shape_sc, &row, &out);
    assert_non_null(strstr(ob_buf_z(&out), "aggregate_id is needed"));
    row = row_of("{}");
    row.aggregate_type = (struct ob_str){0};
    made(&ob_mongo_shape_sc, &row, &out);
    assert_non_null(strstr(ob_buf_z(&out), "needs one, or a topic"));
    row = row_of("{}");
    row.aggregate_id = OB_STR("a\xff");
    made(&ob_mongo_shape_native, &row, &out);
    assert_string_equal(ob_buf_z(&out), "aggregate_id is not UTF-8");
    row = row_of("{");
    made(&ob_mongo_shape_native, &row, &out);
    assert_non_null(strstr(ob_buf_z(&out), "payload is not JSON"));
    row = row_of("\x06\1\1\1");
    row.payload.n = 4;
    row.payload_kind = OB_PAYLOAD_BYTES;
    row.bson = true;
    made(&ob_mongo_shape_native, &row, &out);
    assert_non_null(strstr(ob_buf_z(&out), "payload is not BSON"));
    memset(big, 'x', OB_MONGO_DOC_MAX);
    row = row_of(NULL);
    row.payload = (struct ob_str){big, OB_MONGO_DOC_MAX};
    row.payload_kind = OB_PAYLOAD_BYTES;
    made(&ob_mongo_shape_native, &row, &out);
    assert_non_null(strstr(ob_buf_z(&out), "16 MiB"));
    free(big);
    ob_buf_clear(&out);
}

static void test_fields_that_cannot_be_written(void **state)
{
    struct ob_mapping map = *ob_mongo_shape_sc.map;
    struct ob_mongo_shape shape = ob_mongo_shape_sc;
    struct ob_err err = {.text = ""};

    (void)state;
    assert_int_equal(ob_mongo_shape_check(&ob_mongo_shape_sc, &err), OB_OK);
    assert_int_equal(ob_mongo_shape_check(&ob_mongo_shape_native, &err), OB_OK);
    shape.map = &map;
    map.col[OB_MAP_KEY] = "meta.key";
    assert_int_equal(ob_mongo_shape_check(&shape, &err), OB_REJECT);
    assert_non_null(strstr(err.text, "meta.key"));
    map.col[OB_MAP_KEY] = NULL;
    map.col[OB_MAP_STATUS] = NULL;
    assert_int_equal(ob_mongo_shape_check(&shape, &err), OB_REJECT);
    assert_non_null(strstr(err.text, "status"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json_becomes_bson),
        cmocka_unit_test(test_json_that_no_document_can_have),
        cmocka_unit_test(test_sc_documents),
        cmocka_unit_test(test_native_documents),
        cmocka_unit_test(test_payloads_of_every_kind),
        cmocka_unit_test(test_what_is_refused),
        cmocka_unit_test(test_fields_that_cannot_be_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
