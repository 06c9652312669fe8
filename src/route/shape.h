/* SPDX-License-Identifier: Apache-2.0 */
/* shape - a JSON template: a YAML tree compiled into JSON text with holes.
 *
 * Keys come out in the order written, without spaces. A string that is exactly one ${…} becomes
 * that value with its own type; with text around it, a string. Scalars without quotes that read as
 * a number, true, false or null become that. {$merge: [objects]}: a key stands where it was first
 * seen and has the value that was last given. What is JSON already is copied byte for byte. */
#ifndef OB_ROUTE_SHAPE_H
#define OB_ROUTE_SHAPE_H

#include "route/tmpl.h"

struct ob_shape;

/* OB_FATAL with the place. */
enum ob_status ob_shape_compile(struct ob_arena *arena, const struct ob_node *tree,
                                const struct ob_shape **out, struct ob_err *err) OB_MUST_CHECK;
/* Appends to the scratch buffer. A missing value becomes null, leaves its key out or is OB_REJECT,
 * as c->missing says. */
enum ob_status ob_shape_append(struct ob_rctx *c, const struct ob_shape *shape,
                               struct ob_err *err) OB_MUST_CHECK;
/* Appends a value as JSON. OB_REJECT: text payload that is not UTF-8. */
enum ob_status ob_value_append(struct ob_rctx *c, const struct ob_value *v,
                               struct ob_err *err) OB_MUST_CHECK;

/* The objects that stand one after another in the scratch buffer, ends[i] being where object i
 * ends, are replaced by their merge. An empty one or null counts as {}. */
enum ob_status ob_merge(struct ob_rctx *c, size_t mark, const size_t *ends, size_t n,
                        struct ob_err *err) OB_MUST_CHECK;

#endif
