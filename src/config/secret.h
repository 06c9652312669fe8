/* SPDX-License-Identifier: Apache-2.0 */
/* secret - a value kept in a file of its own. */
#ifndef OB_CONFIG_SECRET_H
#define OB_CONFIG_SECRET_H

#include "core/arena.h"
#include "core/err.h"

#include <stdbool.h>

#define OB_SECRET_MAX (64u << 10)

/* The file's text without one newline at its end. */
enum ob_status ob_secret_read(struct ob_arena *arena, const char *file, const char **out,
                              struct ob_err *err) OB_MUST_CHECK;

#define OB_SECRET_PLACES_MAX 32

/* Files that hold secrets as plain text, each with one option whose secret is there. */
struct ob_secret_places {
    const char *file[OB_SECRET_PLACES_MAX], *option[OB_SECRET_PLACES_MAX];
    size_t n;
};

/* Notes a file once; texts are borrowed. places may be NULL. */
void ob_secret_note(struct ob_secret_places *places, const char *file, const char *option);
/* Whether the text of an option is a secret: a connection string only if it has a password. */
bool ob_secret_is_plain(const char *option, const char *text);
/* Whether every user of the machine can read the file. */
bool ob_secret_is_exposed(const char *file);

#endif
