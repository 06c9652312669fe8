/* SPDX-License-Identifier: Apache-2.0 */
/* node - a YAML document as a tree that remembers line and column. Every scalar is text. */
#ifndef OB_CONFIG_NODE_H
#define OB_CONFIG_NODE_H

#include "core/arena.h"
#include "core/err.h"
#include "core/opt.h"

enum ob_node_kind { OB_NODE_SCALAR, OB_NODE_MAP, OB_NODE_LIST };

struct ob_node {
    enum ob_node_kind kind;
    struct ob_opt_pos pos; /* of the value */
    const char *text;      /* SCALAR: NUL-terminated, after ${VAR:-default} */
    bool quoted;   /* SCALAR: written in quotes or with a variable in it (then `null` and `~`
                      are text) */
    bool variable; /* SCALAR: its text came out of a ${VAR} */
    /* MAP and LIST: */
    struct ob_node **items;
    const char **keys;          /* MAP */
    struct ob_opt_pos *key_pos; /* MAP */
    size_t n;
};

#define OB_YAML_MAX_BYTES (1u << 20) /* of a file, and of a value after its variables */
#define OB_YAML_MAX_LEVELS 64
#define OB_YAML_MAX_NODES 100000

/* Where variables come from. A NULL pointer to it: nothing is replaced. */
struct ob_yaml_env {
    const char *(*getenv_fn)(void *user, const char *name); /* NULL: the environment */
    void *user;
    bool expand; /* replace ${VAR} and ${VAR:-default} in values ($${ is a literal ${) */
    /* Paths below which nothing is replaced, because ${field} belongs to templates there; a `*`
     * stands for any one key: "pipelines.*.routes". NULL-terminated; NULL: none. */
    const char *const *no_expand;
};

/* At most 1 MiB, 64 levels, 100,000 nodes; no aliases, no tags, one document; duplicate keys are
 * errors. Errors: "file:line:column: what, and what to do". All memory from arena. */
enum ob_status ob_yaml_parse(struct ob_arena *arena, const char *file, struct ob_str text,
                             const struct ob_yaml_env *env, struct ob_node **out,
                             struct ob_err *err) OB_MUST_CHECK;
enum ob_status ob_yaml_load(struct ob_arena *arena, const char *file, const struct ob_yaml_env *env,
                            struct ob_node **out, struct ob_err *err) OB_MUST_CHECK;
/* NULL if there is none (or map is NULL or no map). */
const struct ob_node *ob_node_get(const struct ob_node *map, const char *key);
/* The place of a key that is there; NULL like ob_node_get(). */
const struct ob_opt_pos *ob_node_key_pos(const struct ob_node *map, const char *key);
/* Nothing, `~` or `null` without quotes: as if the key were not there. */
bool ob_node_is_null(const struct ob_node *node);
/* What a null value means, for an error: NULL if node is not there. */
const char *ob_node_why_null(const struct ob_node *node);
/* "file:line:column: " + text. */
enum ob_status ob_node_err(const struct ob_opt_pos *pos, struct ob_err *err, const char *fmt, ...)
    OB_PRINTF(3, 4);
/* A user's value wins over base's; maps are merged deeply, lists and scalars replaced. Nodes are
 * shared. NULL: no memory (or both are NULL). */
struct ob_node *ob_node_merge(struct ob_arena *arena, const struct ob_node *base,
                              const struct ob_node *user);

#define OB_SHOW_MAX 80
/* Text from outside for a message: one line, cut at about 60 bytes, control characters as '?'. */
const char *ob_node_show(char out[OB_SHOW_MAX], const char *text);

#ifdef __clang_analyzer__
#define ob_node_err(pos, err, ...) ob_err_same((ob_node_err)((pos), (err), __VA_ARGS__), OB_FATAL)
#endif

#endif
