/* SPDX-License-Identifier: Apache-2.0 */
/* rows - checks for tables of cases: a failure names the row. */
#ifndef OB_TESTS_ROWS_H
#define OB_TESTS_ROWS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/str.h"

#define ROWS(table) (sizeof(table) / sizeof((table)[0]))

#define ROW_TRUE(row, x)                                                                           \
    do {                                                                                           \
        if (!(x))                                                                                  \
            fail_msg("row '%s': %s", (row), #x);                                                   \
    } while (0)

static inline void row_int(const char *row, const char *what, int64_t got, int64_t want)
{
    if (got != want)
        fail_msg("row '%s': %s is %lld, not %lld", row, what, (long long)got, (long long)want);
}

static inline void row_str(const char *row, const char *what, struct ob_str got, struct ob_str want)
{
    if (!ob_str_eq(got, want))
        fail_msg("row '%s': %s is '%.*s', not '%.*s'", row, what, OB_STR_ARG(got),
                 OB_STR_ARG(want));
}

#endif
