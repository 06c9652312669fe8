/* SPDX-License-Identifier: Apache-2.0 */
/* pg_column - inside of a table as the catalog knows it: for pg_table.c, pg_batch.c and pg_insert.c
 * only. */
#ifndef OB_EVENT_PG_COLUMN_H
#define OB_EVENT_PG_COLUMN_H

#include "event/pg_table.h"

#define OB_PG_ARRAY_HEAD 20 /* bytes before the first element of an array in binary */

struct ob_pg_column {
    const char *name;    /* NULL: the table has none */
    const char *ident;   /* quoted */
    const char *type;    /* quoted, with its schema and without its length */
    const char *typname; /* bare */
    const char *usual;   /* its DEFAULT as an expression, or NULL */
    char category;       /* pg_type.typcategory */
    bool needed;         /* NOT NULL and no DEFAULT */
};

struct ob_pg_table {
    struct ob_arena *arena;
    const char *name; /* "schema"."table" */
    struct ob_pg_column col[OB_PG_FIELDS];
    struct ob_pg_stream *streams;
    size_t n_streams;
    const char *pending, *pending_number;
    bool payload_json, context_in_payload;
};

static inline bool ob_pg_is(const struct ob_pg_column *c, const char *typname)
{
    return strcmp(c->typname, typname) == 0;
}

/* The 36 characters of a UUID, as the type uuid prints them; no other spelling. */
bool ob_pg_uuid_valid(struct ob_str s);

#endif
