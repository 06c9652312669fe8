/* SPDX-License-Identifier: Apache-2.0 */
/* opt - an option table: one row names an option, its type, default, place in a struct and help.
 * Validation, defaults, `--explain` and docs/config.md all come from these rows. */
#ifndef OB_CORE_OPT_H
#define OB_CORE_OPT_H

#include <stddef.h>
#include <stdint.h>

enum ob_opt_type {
    OB_OPT_END = 0,
    OB_OPT_STR,   /* const char *: NULL when not set and without default */
    OB_OPT_BOOL,  /* bool: true|false|yes|no|on|off */
    OB_OPT_INT,   /* int64_t within min..max */
    OB_OPT_MS,    /* int64_t milliseconds: 250, 250ms, 5s, 2m, 1h, 7d; within min..max */
    OB_OPT_BYTES, /* int64_t bytes: 4096, 64k, 16M, 1G (powers of 1024); within min..max */
    OB_OPT_ENUM,  /* int: index into choices */
    OB_OPT_MAP,   /* struct ob_opt_map: free keys to text, in file order */
    OB_OPT_LIST,  /* struct ob_opt_list: a sequence of text */
    OB_OPT_NODE,  /* const struct ob_node *: the YAML subtree as it is, checked by its reader */
    OB_OPT_PCT,   /* int64_t percent: 20%, or a factor: 1.5 is 150; within min..max */
    OB_OPT_GROUP, /* a struct: the rows of `group`, one level down */
};

enum {
    OB_OPT_REQUIRED = 1,
    OB_OPT_SECRET = 2, /* hidden wherever it is shown; `<name>_file` is accepted in its place */
    OB_OPT_RELOAD = 4, /* takes effect on SIGHUP */
};

struct ob_opt {
    enum ob_opt_type type;
    const char *name;
    const char *def;     /* as it would stand in the file; NULL: none */
    size_t offset;       /* into the conf struct */
    int64_t min, max;    /* INT, MS, BYTES; both 0: no limits */
    const char *choices; /* ENUM: "log|wal|rows" */
    const char *help;    /* one sentence */
    unsigned flags;
    const struct ob_opt *group; /* GROUP: its table, {0}-terminated */
    const char *hide; /* MAP: "password|secret": values whose key has one of these are hidden */
};

/* Where a value came from. Columns and lines from 1. */
struct ob_opt_pos {
    const char *file; /* NULL: a default */
    unsigned line, column;
};

struct ob_opt_map {
    const char **keys, **values;
    struct ob_opt_pos *pos;
    size_t n;
};

struct ob_opt_list {
    const char **values;
    struct ob_opt_pos *pos;
    size_t n;
};

struct ob_node;

#endif
