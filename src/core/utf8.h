/* SPDX-License-Identifier: Apache-2.0 */
/* utf8 - stepping through bytes that should be UTF-8, and through long runs that need no look. */
#ifndef OB_CORE_UTF8_H
#define OB_CORE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define OB_UTF8_REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */

/* p < end. Length of the well-formed character at p (1 to 4), or minus the length of the part that
 * is to be replaced by one U+FFFD (the longest start of a character, else one byte). */
static inline int ob_utf8_step(const char *at, const char *end)
{
    const unsigned char *p = (const unsigned char *)at;
    ptrdiff_t left = end - at;
    unsigned char lo = 0x80, hi = 0xbf;
    int more;

    if (p[0] < 0x80)
        return 1;
    if (p[0] < 0xc2 || p[0] > 0xf4)
        return -1;
    more = p[0] < 0xe0 ? 1 : p[0] < 0xf0 ? 2 : 3;
    if (p[0] == 0xe0)
        lo = 0xa0; /* shorter would do: overlong */
    else if (p[0] == 0xed)
        hi = 0x9f; /* surrogates */
    else if (p[0] == 0xf0)
        lo = 0x90; /* overlong */
    else if (p[0] == 0xf4)
        hi = 0x8f; /* above U+10FFFF */
    for (int i = 1; i <= more; i++) {
        if (i >= left || p[i] < lo || p[i] > hi)
            return -i;
        lo = 0x80;
        hi = 0xbf;
    }
    return more + 1;
}

/* Length of the text without a character that was cut off at its end. */
static inline size_t ob_utf8_cut(const char *p, size_t n)
{
    size_t start = n;

    while (start > 0 && n - start < 4 && ((unsigned char)p[start - 1] & 0xc0) == 0x80)
        start--;
    if (start == 0 || n - start >= 4 || (unsigned char)p[start - 1] < 0xc0)
        return n; /* ends with ASCII, or is no UTF-8 anyway */
    start--;
    return ob_utf8_step(p + start, p + n) < 0 ? start : n;
}

/* A bit set in each of eight bytes that is a control, a quote, a backslash or not ASCII. Bytes
 * above the lowest such one may be marked by mistake (a borrow), none is missed. */
static inline uint64_t ob_json_special8(const char *p)
{
    const uint64_t ones = 0x0101010101010101u, high = 0x8080808080808080u;
    uint64_t w, quote, slash;

    memcpy(&w, p, sizeof(w));
    quote = w ^ (ones * '"');
    slash = w ^ (ones * '\\');
    return (w | (w - ones * 0x20) | (quote - ones) | (slash - ones)) & high;
}

/* The first byte in p..end that is a control, a quote, a backslash or not ASCII; or end. */
static inline const char *ob_json_plain(const char *p, const char *end)
{
    for (; end - p >= 8; p += 8) {
        uint64_t special = ob_json_special8(p);

        if (!special)
            continue;
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
        return p + __builtin_ctzll(special) / 8;
#else
        break;
#endif
    }
    while (p < end && (unsigned char)*p >= 0x20 && (unsigned char)*p < 0x80 && *p != '"' &&
           *p != '\\')
        p++;
    return p;
}

#endif
