/* SPDX-License-Identifier: Apache-2.0 */
/* buf - a growing byte buffer with a ceiling. Memory is always one byte more than cap, so that a
 * NUL fits behind a full buffer. */
#include "core/buf.h"

#include <stdio.h>
#include <stdlib.h>

#define CEILING_DEFAULT ((size_t)64 << 20)
#define CAP_LEAST 64u

void ob_buf_init(struct ob_buf *buf, size_t ceiling)
{
    *buf = (struct ob_buf){.ceiling = ceiling ? ceiling : CEILING_DEFAULT};
}

void ob_buf_clear(struct ob_buf *buf)
{
    free(buf->p);
    *buf = (struct ob_buf){.ceiling = buf->ceiling};
}

void ob_buf_reset(struct ob_buf *buf)
{
    buf->n = 0;
    buf->failed = false;
}

bool ob_buf_grow(struct ob_buf *buf, size_t n)
{
    size_t ceiling = buf->ceiling ? buf->ceiling : CEILING_DEFAULT;
    size_t need, cap;
    char *p;

    if (!buf->failed && n <= buf->cap - buf->n)
        return true;
    if (buf->failed || n > ceiling || buf->n > ceiling - n) {
        buf->failed = true;
        return false;
    }
    need = buf->n + n;
    cap = buf->cap < CAP_LEAST ? CAP_LEAST : buf->cap;
    while (cap < need)
        cap = cap > ceiling / 2 ? ceiling : cap * 2;
    if (cap > ceiling)
        cap = ceiling;
    p = cap < SIZE_MAX ? realloc(buf->p, cap + 1) : NULL;
    if (!p) {
        buf->failed = true;
        return false;
    }
    buf->p = p;
    buf->cap = cap;
    return true;
}

void ob_buf_put(struct ob_buf *buf, const void *p, size_t n)
{
    if (n == 0 || !ob_buf_grow(buf, n))
        return;
    memcpy(buf->p + buf->n, p, n);
    buf->n += n;
}

void ob_buf_str(struct ob_buf *buf, struct ob_str s)
{
    ob_buf_put(buf, s.p, s.n);
}

void ob_buf_c(struct ob_buf *buf, const char *z)
{
    ob_buf_put(buf, z, z ? strlen(z) : 0);
}

void ob_buf_char(struct ob_buf *buf, char c)
{
    if (!ob_buf_grow(buf, 1))
        return;
    buf->p[buf->n++] = c;
}

void ob_buf_printf(struct ob_buf *buf, const char *fmt, ...)
{
    size_t left = buf->p ? buf->cap - buf->n + 1 : 0; /* the NUL has its own byte */
    va_list ap;
    int n;

    if (buf->failed)
        return;
    va_start(ap, fmt);
    n = vsnprintf(left ? buf->p + buf->n : NULL, left, fmt, ap);
    va_end(ap);
    if (n < 0) {
        buf->failed = true;
        return;
    }
    if ((size_t)n >= left) {
        if (n == 0 || !ob_buf_grow(buf, (size_t)n))
            return;
        va_start(ap, fmt);
        vsnprintf(buf->p + buf->n, (size_t)n + 1, fmt, ap);
        va_end(ap);
    }
    buf->n += (size_t)n;
}

const char *ob_buf_z(struct ob_buf *buf)
{
    if (!buf->p)
        return "";
    buf->p[buf->n] = '\0';
    return buf->p;
}
