/* SPDX-License-Identifier: Apache-2.0 */
/* expand - ${VAR} and ${VAR:-default} in a value. */
#ifndef OB_CONFIG_EXPAND_H
#define OB_CONFIG_EXPAND_H

#include "config/node.h"

/* *out is `in` itself when there is nothing to replace, else a copy in arena. A default stands for
 * a variable that is unset or empty and cannot hold another ${…}; $${ gives ${. */
enum ob_status ob_expand(struct ob_arena *arena, const struct ob_yaml_env *env,
                         const struct ob_opt_pos *pos, struct ob_str in, struct ob_str *out,
                         struct ob_err *err) OB_MUST_CHECK;

#endif
