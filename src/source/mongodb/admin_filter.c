/* SPDX-License-Identifier: Apache-2.0 */
/* admin_filter - what people ask for, as conditions of a query. */
#include "source/mongodb/admin.h"

#include <ctype.h>

/* A glob as a regular expression over the whole text; everything else in it is meant literally. */
static void glob_regex(const char *glob, struct ob_buf *out)
{
    ob_buf_char(out, '^');
    for (const char *p = glob; *p; p++) {
        bool literal = *p == '\\' && p[1];
        if (literal)
            p++;
        if (!literal && *p == '*')
            ob_buf_c(out, "[\\s\\S]*");
        else if (!literal && *p == '?')
            ob_buf_c(out, "[\\s\\S]");
        else if (strchr("\\^$.|?*+()[]{}-#/ ", *p))
            ob_buf_printf(out, "\\x%02x", (unsigned)(unsigned char)*p);
        else
            ob_buf_char(out, *p);
    }
    ob_buf_c(out, "$(?!\\n)");
}

void ob_mongo_glob(bson_t *b, const char *field, const char *glob)
{
    struct ob_buf text;
    ob_buf_init(&text, 1 << 20);
    if (!strpbrk(glob, "*?\\")) {
        BSON_APPEND_UTF8(b, field, glob);
    } else {
        glob_regex(glob, &text);
        BCON_APPEND(b, field, "{", "$regex", BCON_UTF8(ob_buf_z(&text)), "}");
    }
    ob_buf_clear(&text);
}

/* 32 hex digits with hyphens anywhere, as bytes. */
static bool uuid_bytes(const char *text, uint8_t out[16])
{
    size_t n = 0;
    for (; *text; text++) {
        if (*text == '-')
            continue;
        if (!isxdigit((unsigned char)*text) || n >= 32)
            return false;
        unsigned v =
            (unsigned)(isdigit((unsigned char)*text) ? *text - '0'
                                                     : tolower((unsigned char)*text) - 'a' + 10);
        out[n / 2] = (uint8_t)(n % 2 ? out[n / 2] | v : v << 4);
        n++;
    }
    return n == 32;
}

void ob_mongo_id(bson_t *b, const char *field, const char *id)
{
    bson_t in, list;
    bson_oid_t oid;
    uint8_t bytes[16] = {0};
    struct ob_buf lower;
    ob_buf_init(&lower, 4096);
    for (const char *p = id; *p; p++)
        ob_buf_char(&lower, (char)tolower((unsigned char)*p));
    BSON_APPEND_DOCUMENT_BEGIN(b, field, &in);
    BSON_APPEND_ARRAY_BEGIN(&in, "$in", &list);
    BSON_APPEND_UTF8(&list, "0", id);
    BSON_APPEND_UTF8(&list, "1", ob_buf_z(&lower));
    if (bson_oid_is_valid(id, strlen(id))) {
        bson_oid_init_from_string(&oid, id);
        BSON_APPEND_OID(&list, "2", &oid);
    }
    if (uuid_bytes(id, bytes))
        BSON_APPEND_BINARY(&list, "3", BSON_SUBTYPE_UUID, bytes, sizeof(bytes));
    bson_append_array_end(&in, &list);
    bson_append_document_end(b, &in);
    ob_buf_clear(&lower);
}

void ob_mongo_since(bson_t *b, const char *field, int64_t since_us, int64_t until_us)
{
    bson_t range;
    if (!since_us && !until_us)
        return;
    BSON_APPEND_DOCUMENT_BEGIN(b, field, &range);
    if (since_us)
        BSON_APPEND_DATE_TIME(&range, "$gte", (since_us + 999) / 1000);
    if (until_us)
        BSON_APPEND_DATE_TIME(&range, "$lt", (until_us + 999) / 1000);
    bson_append_document_end(b, &range);
}
