/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_json - the JSON scanner and pointers, compared with jansson.
 *
 * Input: a JSON text. If it begins with '/', the first line is a pointer and the rest the text. */
#include "core/jscan.h"
#include "core/json.h"
#include "event/bson_json.h"
#include "event/bson_write.h"
#include "fuzz.h"

#include "../unit/core/jansson_agree.h"

static bool inside(struct ob_str part, struct ob_str whole)
{
    return part.p >= whole.p && part.p + part.n <= whole.p + whole.n;
}

/* A string says the same after its escapes were resolved and written anew. */
static void check_string(const struct ob_jtok *tok, struct ob_buf *a, struct ob_buf *b)
{
    struct ob_buf again;

    ob_buf_init(&again, 0);
    ob_buf_reset(a);
    ob_buf_reset(b);
    ob_jscan_unescape(a, tok->text);
    FUZZ_CHECK(ob_utf8_valid(ob_buf_view(a)));
    FUZZ_CHECK(tok->escaped || ob_str_eq(ob_buf_view(a), tok->text));
    ob_json_escape(b, ob_buf_view(a));
    ob_jscan_unescape(&again, ob_buf_view(b));
    FUZZ_CHECK(ob_str_eq(ob_buf_view(&again), ob_buf_view(a)));
    ob_buf_clear(&again);
}

/* Every token is a slice of the text, behind the one before, and what is copied out is whole. */
static enum ob_status walk(struct ob_str text)
{
    struct ob_buf a, b;
    struct ob_jscan s;
    struct ob_jtok tok = {.raw = {text.p, 0}};
    enum ob_status st;
    unsigned deepest = 0;

    ob_buf_init(&a, 0);
    ob_buf_init(&b, 0);
    ob_jscan_init(&s, text);
    for (;;) {
        const char *behind = tok.raw.p + tok.raw.n;

        st = ob_jscan_next(&s, &tok, NULL);
        if (st != OB_OK || tok.type == OB_J_END)
            break;
        FUZZ_CHECK(inside(tok.raw, text) && tok.raw.p >= behind && inside(tok.text, tok.raw));
        if (tok.type == OB_J_KEY || tok.type == OB_J_STRING)
            check_string(&tok, &a, &b);
        deepest = s.depth > deepest ? s.depth : deepest;
    }
    FUZZ_CHECK(deepest <= OB_JSCAN_DEPTH);
    FUZZ_CHECK(st == OB_REJECT || s.depth == 0);
    FUZZ_CHECK(st == OB_OK || ob_jscan_next(&s, &tok, NULL) == OB_REJECT);
    ob_buf_clear(&a);
    ob_buf_clear(&b);
    return st;
}

/* As a document of MongoDB and back it is JSON again; or there is a reason. */
static void as_bson(struct ob_str text)
{
    struct ob_bson_writer w;
    struct ob_buf doc, back;
    struct ob_err err = {.text = ""};
    enum ob_status st;

    ob_buf_init(&doc, 0);
    ob_buf_init(&back, 0);
    ob_bsonw_init(&w, &doc);
    ob_bsonw_open(&w, (struct ob_str){0}, false);
    st = ob_bsonw_json(&w, OB_STR("v"), text, &err);
    if (st == OB_OK) {
        ob_bsonw_close(&w);
        FUZZ_CHECK(!doc.failed && w.depth == 0);
        FUZZ_CHECK(ob_bson_check(ob_buf_view(&doc), &err) == OB_OK);
        FUZZ_CHECK(ob_bson_json(ob_buf_view(&doc), OB_BSON_PLAIN, &back, &err) == OB_OK);
        FUZZ_CHECK(ob_json_check(ob_buf_view(&back), NULL, &err) == OB_OK);
    } else {
        FUZZ_CHECK(st == OB_REJECT && err.text[0]);
    }
    ob_buf_clear(&doc);
    ob_buf_clear(&back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct ob_str text = {(const char *)data, n}, pointer = {"", 0}, raw;
    struct ob_err err = {.text = ""};
    const char *line_end = n && data[0] == '/' ? memchr(data, '\n', n) : NULL;
    enum ob_jtype type, again;
    enum ob_status st, found;

    if (line_end) {
        pointer = (struct ob_str){text.p, (size_t)(line_end - text.p)};
        text = (struct ob_str){line_end + 1, n - pointer.n - 1};
    }
    st = walk(text);
    as_bson(text);
    FUZZ_CHECK(ob_json_check(text, &type, &err) == st);
    FUZZ_CHECK(st == OB_OK || strncmp(err.text, "byte ", 5) == 0);
    FUZZ_CHECK(jansson_agrees(text, st, &err));
    found = ob_json_pointer(text, pointer, &raw, &type, &err);
    FUZZ_CHECK(found == OB_FATAL || (found == OB_REJECT) == (st == OB_REJECT));
    if (found == OB_AGAIN)
        FUZZ_CHECK(jansson_same_at(text, pointer, (struct ob_str){NULL, 0}));
    if (found == OB_OK) {
        FUZZ_CHECK(inside(raw, text));
        FUZZ_CHECK(ob_json_check(raw, &again, &err) == OB_OK && again == type);
        FUZZ_CHECK(jansson_same_at(text, pointer, raw));
    }
    return 0;
}
