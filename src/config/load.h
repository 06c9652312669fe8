/* SPDX-License-Identifier: Apache-2.0 */
/* load - an option table and a YAML map give a filled struct, or a list of what is wrong. */
#ifndef OB_CONFIG_LOAD_H
#define OB_CONFIG_LOAD_H

#include "config/explain.h"
#include "config/problems.h"
#include "config/secret.h"

/* A table and the struct that its offsets point into. The struct is zeroed by the caller. */
struct ob_opt_part {
    const struct ob_opt *table; /* {0}-terminated */
    void *out;
};

struct ob_loader {
    struct ob_arena *arena; /* owns every text that the structs point to */
    struct ob_problems *problems;
    struct ob_explain *explain; /* may be NULL */
    const char *base_file;      /* of the profile, or NULL: its `x` yields to the user's `x_file` */
    struct ob_secret_places *secrets; /* may be NULL */
};

/* Fills the structs of all parts from one map (NULL or null: defaults). What is wrong goes to
 * l->problems; then the structs are not to be used. path: "pipelines.orders.sink", or "" at the
 * top; where: a place to name when the map is not there, may be NULL. A value without text (`key:`,
 * `~`) counts as not given. NODE options are stored, not explained: their reader does that. */
void ob_load_parts(struct ob_loader *l, const char *path, unsigned depth, const struct ob_node *map,
                   const struct ob_opt_pos *where, const struct ob_opt_part *parts, size_t n);
/* The same for one table. OB_FATAL: up to ten problems, one per line. */
enum ob_status ob_opt_load(const struct ob_opt *table, const struct ob_node *map, void *out,
                           struct ob_arena *arena, struct ob_err *err) OB_MUST_CHECK;

/* The nearest of n names to what was written, or NULL if none is near. */
const char *ob_nearest(const char *text, const char *const *names, size_t n);

#endif
