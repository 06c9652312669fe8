/* SPDX-License-Identifier: Apache-2.0 */
/* texts - rows whose values are NUL-terminated. */
#ifndef OB_TESTS_CLI_TEXTS_H
#define OB_TESTS_CLI_TEXTS_H

#include "../rows.h"

static inline void row_text(const char *row, const char *what, const char *got, const char *want)
{
    row_str(row, what, ob_str_c(got), ob_str_c(want));
}

#endif
