/* SPDX-License-Identifier: Apache-2.0 */
/* tail - where the whole lines of a file end. */
#ifndef OB_SINK_FILE_TAIL_H
#define OB_SINK_FILE_TAIL_H

#include "core/err.h"

#include <sys/types.h>

/* Longest line that is looked for; the ceiling of max_line is the same. */
#define OB_TAIL_LINE_MAX ((off_t)1 << 30)

/* Checks the lines of the last `window` bytes (and the whole line that reaches into them).
 * *good: the end of the last line before the first that is not a JSON object with its line break.
 * OB_REJECT: the file does not start as JSON lines do; OB_DOWN: it cannot be read. */
enum ob_status ob_tail_good(int fd, off_t size, off_t window, off_t *good,
                            struct ob_err *err) OB_MUST_CHECK;

#endif
