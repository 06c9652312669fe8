/* SPDX-License-Identifier: Apache-2.0 */
/* secret - a value kept in a file of its own. */
#ifndef OB_CONFIG_SECRET_H
#define OB_CONFIG_SECRET_H

#include "core/arena.h"
#include "core/err.h"

#define OB_SECRET_MAX (64u << 10)

/* The file's text without one newline at its end. */
enum ob_status ob_secret_read(struct ob_arena *arena, const char *file, const char **out,
                              struct ob_err *err) OB_MUST_CHECK;

#endif
