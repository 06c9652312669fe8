/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_bson - documents as a server might send them: what is read lies inside what was given, and
 * what is written is JSON.
 *
 * Input: a document. */
#include "core/jscan.h"
#include "event/bson_json.h"
#include "fuzz.h"

#include <jansson.h>

static void check_form(struct ob_str doc, enum ob_bson_form form)
{
    struct ob_buf out;
    struct ob_err err = {.text = ""};
    enum ob_status st;

    ob_buf_init(&out, (size_t)64 << 20);
    ob_buf_c(&out, "x");
    st = ob_bson_json(doc, form, &out, &err);
    FUZZ_CHECK(!out.failed && out.p[0] == 'x');
    if (st == OB_OK) {
        struct ob_str json = {out.p + 1, out.n - 1};
        json_error_t why;
        json_t *theirs = json_loadb(json.p, json.n, JSON_ALLOW_NUL, &why);
        FUZZ_CHECK(ob_json_check(json, NULL, &err) == OB_OK);
        FUZZ_CHECK(theirs != NULL || json_error_code(&why) == json_error_numeric_overflow);
        json_decref(theirs);
    } else {
        FUZZ_CHECK(st == OB_REJECT && out.n == 1);
        FUZZ_CHECK(strstr(err.text, "byte ") || strstr(err.text, "second length"));
    }
    ob_buf_clear(&out);
}

static void check_fields(struct ob_str doc)
{
    struct ob_bson_iter it;
    struct ob_bson f;
    struct ob_err err;
    const char *last = doc.p;

    if (ob_bson_open(&it, doc, &err) != OB_OK)
        return;
    while (ob_bson_next(&it, &f, &err) == OB_OK) {
        FUZZ_CHECK(f.name.p > last && f.name.p + f.name.n < f.value.p);
        FUZZ_CHECK(f.value.p + f.value.n < doc.p + doc.n);
        last = f.value.p + f.value.n - 1;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct ob_str doc = {(const char *)data, n};

    check_fields(doc);
    for (int form = 0; form < 3; form++)
        check_form(doc, (enum ob_bson_form)form);
    return 0;
}
