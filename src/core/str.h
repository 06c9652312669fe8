/* SPDX-License-Identifier: Apache-2.0 */
/* str - a borrowed slice of bytes. Not NUL-terminated; may hold NUL bytes. p may be NULL if n is 0.
 */
#ifndef OB_CORE_STR_H
#define OB_CORE_STR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct ob_str {
    const char *p;
    size_t n;
};

/* For literals only. */
#define OB_STR(lit) ((struct ob_str){(lit), sizeof(lit) - 1})
/* printf: "%.*s", OB_STR_ARG(s) */
#define OB_STR_ARG(s) ((int)((s).n > 4096 ? 4096 : (s).n)), ((s).p ? (s).p : "")

static inline struct ob_str ob_str_c(const char *z)
{
    return (struct ob_str){z, z ? strlen(z) : 0};
}

static inline bool ob_str_eq(struct ob_str a, struct ob_str b)
{
    return a.n == b.n && (a.n == 0 || memcmp(a.p, b.p, a.n) == 0);
}

static inline bool ob_str_eqc(struct ob_str a, const char *z)
{
    return ob_str_eq(a, ob_str_c(z));
}

/* 64-bit hash of bytes: stable for ever (it is stored at the source), the same on every machine. */
uint64_t ob_hash64(const void *p, size_t n);
/* The same for tables in memory with names that others choose: different in each process, so that
 * nobody can choose names that share a place. */
uint64_t ob_hash64_secret(const void *p, size_t n);
/* True if all bytes are well-formed UTF-8 (no surrogates, no overlong forms). */
bool ob_utf8_valid(struct ob_str s);
/* Glob over the whole text: '*' any run of bytes, '?' one byte, '\' takes the next literally. */
bool ob_glob(struct ob_str pattern, struct ob_str text);
/* Edit distance, at most max (else max + 1): for "did you mean". */
unsigned ob_distance(struct ob_str a, struct ob_str b, unsigned max);

#endif
