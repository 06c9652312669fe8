/* SPDX-License-Identifier: Apache-2.0 */
/* bson_text - doubles, decimals and dates as text. */
#include "event/bson_json.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define DIGITS_MAX 17 /* that always read back as the same double */

struct digits {
    char d[40]; /* without zeros at the end; "0" */
    int n;
    int exp; /* of the first digit: d[0].d[1]… times ten to this */
};

/* ---- doubles ---- */

/* Reads what printf("%.*e") gave; whatever the locale has for a point is passed over. */
static void take(const char *text, struct digits *out)
{
    const char *p = text;

    out->n = 0;
    for (; *p && *p != 'e'; p++)
        if (*p >= '0' && *p <= '9' && out->n < DIGITS_MAX)
            out->d[out->n++] = *p;
    out->exp = *p ? (int)strtol(p + 1, NULL, 10) : 0;
    while (out->n > 1 && out->d[out->n - 1] == '0')
        out->n--;
}

static bool same(double v, int precision, char text[64])
{
    snprintf(text, 64, "%.*e", precision - 1, v);
    return strtod(text, NULL) == v;
}

/* The last digit of 16 one up or down, where that needs no carry: at a power of two the nearest 16
 * digits may miss although their neighbour does not. */
static bool neighbour(double v, int step, char text[64])
{
    char *last;

    snprintf(text, 64, "%.15e", v);
    last = strchr(text, 'e');
    if (!last || (step > 0 ? last[-1] == '9' : last[-1] == '0'))
        return false;
    last[-1] = (char)(last[-1] + step);
    return strtod(text, NULL) == v;
}

/* v > 0 and finite. Every number of 15 digits is a double of its own, unless that is denormal. */
static void shortest(double v, struct digits *out)
{
    char text[64];
    int precision = v < DBL_MIN ? 1 : 15;

    while (precision <= 16 && !same(v, precision, text))
        precision++;
    if (precision == 17 && !neighbour(v, 1, text) && !neighbour(v, -1, text))
        snprintf(text, sizeof(text), "%.16e", v);
    take(text, out);
}

static size_t put(char *out, size_t at, const char *p, int n)
{
    memcpy(out + at, p, (size_t)n);
    return at + (size_t)n;
}

static size_t zeros(char *out, size_t at, int n)
{
    memset(out + at, '0', (size_t)n);
    return at + (size_t)n;
}

static size_t positional(const struct digits *d, bool js, char *out, size_t at)
{
    if (d->exp < 0) {
        at = put(out, at, "0.", 2);
        at = zeros(out, at, -d->exp - 1);
        return put(out, at, d->d, d->n);
    }
    if (d->n > d->exp + 1) {
        at = put(out, at, d->d, d->exp + 1);
        out[at++] = '.';
        return put(out, at, d->d + d->exp + 1, d->n - d->exp - 1);
    }
    at = put(out, at, d->d, d->n);
    at = zeros(out, at, d->exp + 1 - d->n);
    return js ? at : put(out, at, ".0", 2);
}

size_t ob_bson_double_text(double v, bool js, char out[OB_BSON_TEXT_MAX])
{
    struct digits d = {.d = "0", .n = 1};
    size_t at = 0;

    if (isnan(v))
        return (size_t)snprintf(out, OB_BSON_TEXT_MAX, "NaN");
    if (signbit(v))
        out[at++] = '-';
    if (isinf(v))
        at = put(out, at, "Infinity", 8);
    else if (v == 0.0)
        at = put(out, at, js ? "0" : "0.0", js ? 1 : 3);
    else {
        shortest(fabs(v), &d);
        if (d.exp >= (js ? -7 : -4) && d.exp < (js ? 21 : 16)) {
            at = positional(&d, js, out, at);
        } else {
            out[at++] = d.d[0];
            if (d.n > 1)
                out[at++] = '.';
            at = put(out, at, d.d + 1, d.n - 1);
            at += (size_t)snprintf(out + at, OB_BSON_TEXT_MAX - at, js ? "e%+d" : "e%+03d", d.exp);
        }
    }
    out[at] = '\0';
    return at;
}

/* ---- decimals ---- */

/* A number of 113 bits in four parts, highest first, divided by a thousand million. */
static uint32_t divide(uint32_t part[4])
{
    uint64_t rest = 0;

    for (int i = 0; i < 4; i++) {
        rest = rest << 32 | part[i];
        part[i] = (uint32_t)(rest / 1000000000);
        rest %= 1000000000;
    }
    return (uint32_t)rest;
}

/* Digits of the coefficient without zeros in front; "0". More than 34 are no decimal: then 0. */
static void coefficient(uint64_t high, uint64_t low, struct digits *out)
{
    uint32_t part[4] = {(uint32_t)(high >> 32), (uint32_t)high, (uint32_t)(low >> 32),
                        (uint32_t)low};
    char text[48];
    int skip = 0, n = 36;

    for (int i = 3; i >= 0; i--) {
        uint32_t nine = divide(part);
        for (int k = 8; k >= 0; k--, nine /= 10)
            text[i * 9 + k] = (char)('0' + nine % 10);
    }
    while (skip < n - 1 && text[skip] == '0')
        skip++;
    if (n - skip > 34) {
        text[n - 1] = '0';
        skip = n - 1;
    }
    out->n = n - skip;
    memcpy(out->d, text + skip, (size_t)out->n);
}

size_t ob_bson_decimal_text(const char *bytes, char out[OB_BSON_TEXT_MAX])
{
    uint64_t low = ob_bson_u64(bytes), high = ob_bson_u64(bytes + 8);
    unsigned kind = (unsigned)(high >> 58) & 0x1f;
    bool large = kind >> 3 == 3; /* its first bits would be over 34 digits: it is 0 */
    int exponent;
    size_t at = 0;
    struct digits d;

    if (kind == 0x1f)
        return (size_t)snprintf(out, OB_BSON_TEXT_MAX, "NaN");
    if (kind == 0x1e)
        return (size_t)snprintf(out, OB_BSON_TEXT_MAX, high >> 63 ? "-Infinity" : "Infinity");
    exponent = (int)(high >> (large ? 47 : 49) & 0x3fff) - 6176;
    coefficient(large ? 0 : high & 0x1ffffffffffff, large ? 0 : low, &d);
    d.exp = exponent + d.n - 1;
    if (high >> 63)
        out[at++] = '-';
    if (exponent <= 0 && d.exp >= -6) { /* no exponent is needed */
        if (d.exp < 0) {
            at = put(out, at, "0.", 2);
            at = zeros(out, at, -d.exp - 1);
            at = put(out, at, d.d, d.n);
        } else {
            at = put(out, at, d.d, d.exp + 1);
            if (exponent < 0)
                out[at++] = '.';
            at = put(out, at, d.d + d.exp + 1, d.n - d.exp - 1);
        }
    } else {
        out[at++] = d.d[0];
        if (d.n > 1)
            out[at++] = '.';
        at = put(out, at, d.d + 1, d.n - 1);
        at += (size_t)snprintf(out + at, OB_BSON_TEXT_MAX - at, "E%+d", d.exp);
    }
    out[at] = '\0';
    return at;
}

/* ---- dates ---- */

/* Days since 1970-01-01 as a date of the Gregorian calendar, also before it was made. Eras of 400
 * years; a year is counted from March, so that the leap day is its last. */
static void civil(int64_t days, int64_t *year, unsigned *month, unsigned *day)
{
    int64_t z = days + 719468;
    int64_t era = (z >= 0 ? z : z - 146096) / 146097;
    unsigned doe = (unsigned)(z - era * 146097);
    unsigned yoe = (doe - doe / 1460 + doe / 36524 - doe / 146096) / 365;
    unsigned doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    unsigned mp = (5 * doy + 2) / 153;

    *day = doy - (153 * mp + 2) / 5 + 1;
    *month = mp < 10 ? mp + 3 : mp - 9;
    *year = (int64_t)yoe + era * 400 + (*month <= 2);
}

size_t ob_bson_date_text(int64_t ms, bool short_, char out[OB_BSON_TEXT_MAX])
{
    int64_t days = ms / 86400000, year;
    int rest = (int)(ms % 86400000), n;
    unsigned month, day;

    if (rest < 0) {
        rest += 86400000;
        days--;
    }
    civil(days, &year, &month, &day);
    n = snprintf(out, OB_BSON_TEXT_MAX, year >= 0 && year <= 9999 ? "%04lld" : "%+07lld",
                 (long long)year);
    n += snprintf(out + n, OB_BSON_TEXT_MAX - (size_t)n, "-%02u-%02uT%02d:%02d:%02d", month, day,
                  rest / 3600000, rest / 60000 % 60, rest / 1000 % 60);
    if (!short_ || rest % 1000)
        n += snprintf(out + n, OB_BSON_TEXT_MAX - (size_t)n, ".%03d", rest % 1000);
    n += snprintf(out + n, OB_BSON_TEXT_MAX - (size_t)n, "Z");
    return (size_t)n;
}
