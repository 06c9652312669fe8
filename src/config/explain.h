/* SPDX-License-Identifier: Apache-2.0 */
/* explain - the resulting config, row by row in the order shown, each with where it came from. */
#ifndef OB_CONFIG_EXPLAIN_H
#define OB_CONFIG_EXPLAIN_H

#include "config/node.h"
#include "core/buf.h"

enum ob_explain_kind {
    OB_EXPLAIN_GROUP, /* what follows one level deeper is inside */
    OB_EXPLAIN_TEXT,
    OB_EXPLAIN_PLAIN, /* a number or a bool: JSON shows it without quotes */
    OB_EXPLAIN_UNSET,
    OB_EXPLAIN_HIDDEN,
    OB_EXPLAIN_EMPTY_MAP,
    OB_EXPLAIN_EMPTY_LIST,
};

struct ob_explain_row {
    struct ob_explain_row *next;
    enum ob_explain_kind kind;
    const char *path;      /* pipelines.orders.routes[0].topic */
    const char *key;       /* NULL: an item of a list */
    const char *value;     /* TEXT and PLAIN */
    unsigned depth;        /* levels of indentation */
    unsigned dashes;       /* it opens so many items of lists */
    bool literal;          /* ${ stands for itself: a template */
    struct ob_opt_pos pos; /* file NULL: a default */
};

struct ob_explain {
    struct ob_arena *arena;
    struct ob_explain_row *first, **last;
    bool failed; /* no memory: rows are missing */
};

void ob_explain_init(struct ob_explain *e, struct ob_arena *arena);
/* The row is filled from *row; path and key are copied, value is not. e may be NULL: nothing. */
void ob_explain_add(struct ob_explain *e, const struct ob_explain_row *row);
/* A whole subtree under `key`. hide: of what is under a key that has one of these words only the
 * keys are shown, "" all, NULL none. */
void ob_explain_node(struct ob_explain *e, const char *path, const char *key, unsigned depth,
                     const struct ob_node *node, bool literal, const char *hide);
/* YAML: "key: value  # from file:line:column". What is not hidden can be read back. */
void ob_explain_yaml(const struct ob_explain *e, struct ob_buf *out);
/* [{"path":…,"value":…,"from":"file:line:column"|"default"},…] without the groups. */
void ob_explain_json(const struct ob_explain *e, struct ob_buf *out);

#endif
