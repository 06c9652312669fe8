/* SPDX-License-Identifier: Apache-2.0 */
/* units - numbers, durations, sizes and shares as people write them. */
#ifndef OB_CONFIG_UNITS_H
#define OB_CONFIG_UNITS_H

#include "core/opt.h"

#include <stdbool.h>

enum ob_units {
    OB_UNITS_OK,
    OB_UNITS_FORM,  /* not written like one */
    OB_UNITS_RANGE, /* does not fit 64 bits */
};

/* INT: 42. MS: 250, 250ms, 5s, 2m, 1h, 7d. BYTES: 4096, 64k, 16M, 1G. PCT: 20%, or a factor: 1.5.
 * A fraction is fine where it comes out even (1.5s). *out changes only on OB_UNITS_OK. */
enum ob_units ob_units_parse(enum ob_opt_type type, const char *text, int64_t *out);
#define OB_UNITS_MAX 32
/* The shortest exact form: 5s, 16M, 200%. */
const char *ob_units_show(enum ob_opt_type type, int64_t value, char out[OB_UNITS_MAX]);
/* true|false|yes|no|on|off in any case. */
bool ob_bool_parse(const char *text, bool *out);
/* Index into "a|b|c", or -1. */
int ob_choice_find(const char *choices, const char *text);

#endif
