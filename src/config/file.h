/* SPDX-License-Identifier: Apache-2.0 */
/* file - a whole small file in memory. */
#ifndef OB_CONFIG_FILE_H
#define OB_CONFIG_FILE_H

#include "core/err.h"

#include <stddef.h>

/* At most max + 1 bytes, so that the caller sees when there are more than max. *p is to be freed.
 */
enum ob_status ob_file_read(const char *file, size_t max, char **p, size_t *n,
                            struct ob_err *err) OB_MUST_CHECK;

#endif
