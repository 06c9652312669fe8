/* SPDX-License-Identifier: Apache-2.0 */
/* properties - a Java properties file: names and values, in order. */
#ifndef OB_CLI_PROPERTIES_H
#define OB_CLI_PROPERTIES_H

#include "core/arena.h"
#include "core/err.h"

struct ob_properties {
    struct ob_arena *arena;
    struct ob_property {
        const char *name, *value;
    } * of;
    size_t n;
};

/* OB_REJECT: the file cannot be read. */
enum ob_status ob_properties_read(const char *path, struct ob_properties *out,
                                  struct ob_err *err) OB_MUST_CHECK;
void ob_properties_clear(struct ob_properties *p);
/* The last one of that name, or NULL. */
const char *ob_properties_get(const struct ob_properties *p, const char *name);

#endif
