/* SPDX-License-Identifier: Apache-2.0 */
/* units - numbers, durations, sizes and shares as people write them. */
#include "config/units.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

struct unit {
    const char *name;
    int64_t scale;
};

/* Rising; the first that is found wins. */
static const struct unit ms_units[] = {{"", 1},        {"ms", 1},       {"s", 1000}, {"m", 60000},
                                       {"h", 3600000}, {"d", 86400000}, {NULL, 0}};
static const struct unit byte_units[] = {{"", 1},          {"k", 1 << 10}, {"K", 1 << 10},
                                         {"KiB", 1 << 10}, {"M", 1 << 20}, {"m", 1 << 20},
                                         {"MiB", 1 << 20}, {"G", 1 << 30}, {"g", 1 << 30},
                                         {"GiB", 1 << 30}, {NULL, 0}};
static const struct unit pct_units[] = {{"", 100}, {"%", 1}, {NULL, 0}};
static const struct unit no_units[] = {{"", 1}, {NULL, 0}};

static const struct unit *units_of(enum ob_opt_type type)
{
    if (type == OB_OPT_MS)
        return ms_units;
    if (type == OB_OPT_BYTES)
        return byte_units;
    return type == OB_OPT_PCT ? pct_units : no_units;
}

static bool digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Digits "12" and "345" of 12.345, without the point: value 12345, ten_power 1000. */
static enum ob_units read_digits(const char **text, int64_t *value, int64_t *ten_power)
{
    const char *p = *text;
    bool point = false;
    enum ob_units result = OB_UNITS_OK;
    *value = 0;
    *ten_power = 1;
    if (!digit(*p))
        return OB_UNITS_FORM;
    for (; digit(*p) || (*p == '.' && !point && digit(p[1])); p++) {
        if (*p == '.') {
            point = true;
            continue;
        }
        if (__builtin_mul_overflow(*value, 10, value) ||
            __builtin_add_overflow(*value, *p - '0', value) ||
            (point && __builtin_mul_overflow(*ten_power, 10, ten_power))) {
            result = OB_UNITS_RANGE;
            *value = 0;
            *ten_power = 1;
        }
    }
    *text = p;
    return result;
}

enum ob_units ob_units_parse(enum ob_opt_type type, const char *text, int64_t *out)
{
    bool negative = *text == '-';
    int64_t value, ten_power;
    const char *p = text + (negative || *text == '+');
    enum ob_units result = read_digits(&p, &value, &ten_power);
    if (result == OB_UNITS_FORM)
        return result;
    const struct unit *u = units_of(type);
    while (u->name && strcmp(u->name, p) != 0)
        u++;
    if (!u->name)
        return OB_UNITS_FORM;
    if (result != OB_UNITS_OK || __builtin_mul_overflow(value, u->scale, &value))
        return OB_UNITS_RANGE;
    if (value % ten_power != 0 || (type == OB_OPT_INT && ten_power != 1))
        return OB_UNITS_FORM; /* 1.5 of something that is not divisible */
    value /= ten_power;
    *out = negative ? -value : value;
    return OB_UNITS_OK;
}

const char *ob_units_show(enum ob_opt_type type, int64_t value, char out[OB_UNITS_MAX])
{
    if (type == OB_OPT_PCT) {
        snprintf(out, OB_UNITS_MAX, "%" PRId64 "%%", value);
        return out;
    }
    const struct unit *best = NULL;
    for (const struct unit *u = units_of(type); u->name; u++)
        if (value != 0 && value % u->scale == 0 &&
            (!best || u->scale > best->scale || (u->scale == 1 && type == OB_OPT_MS)))
            best = u;
    if (!best)
        snprintf(out, OB_UNITS_MAX, "%" PRId64, value);
    else
        snprintf(out, OB_UNITS_MAX, "%" PRId64 "%s", value / best->scale, best->name);
    return out;
}

bool ob_bool_parse(const char *text, bool *out)
{
    static const char *const yes[] = {"true", "yes", "on"}, *const no[] = {"false", "no", "off"};
    for (size_t i = 0; i < 3; i++) {
        if (strcasecmp(text, yes[i]) == 0 || strcasecmp(text, no[i]) == 0) {
            *out = strcasecmp(text, yes[i]) == 0;
            return true;
        }
    }
    return false;
}

int ob_choice_find(const char *choices, const char *text)
{
    size_t n = strlen(text);
    for (int i = 0;; i++) {
        size_t len = strcspn(choices, "|");
        if (len == n && memcmp(choices, text, n) == 0)
            return i;
        if (!choices[len])
            return -1;
        choices += len + 1;
    }
}
