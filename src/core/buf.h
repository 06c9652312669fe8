/* SPDX-License-Identifier: Apache-2.0 */
/* buf - a growing byte buffer with a ceiling. A failed append sets `failed` and later ones do
 * nothing, so a writer checks once at the end. */
#ifndef OB_CORE_BUF_H
#define OB_CORE_BUF_H

#include "core/str.h"

#include <stdarg.h>

struct ob_buf {
    char *p;
    size_t n, cap, ceiling;
    bool failed; /* ceiling or memory reached: what is inside is not whole */
};

void ob_buf_init(struct ob_buf *buf, size_t ceiling); /* ceiling 0: 64 MiB */
void ob_buf_clear(struct ob_buf *buf);                /* frees */
void ob_buf_reset(struct ob_buf *buf); /* empties, keeps the memory, forgets failed */
/* Room for n more bytes, or failed: then false. */
bool ob_buf_grow(struct ob_buf *buf, size_t n);
void ob_buf_put(struct ob_buf *buf, const void *p, size_t n);
void ob_buf_str(struct ob_buf *buf, struct ob_str s);
void ob_buf_c(struct ob_buf *buf, const char *z);
void ob_buf_char(struct ob_buf *buf, char c);
void ob_buf_printf(struct ob_buf *buf, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static inline struct ob_str ob_buf_view(const struct ob_buf *buf)
{
    return (struct ob_str){buf->p, buf->n};
}
/* NUL-terminated (not counted). Never NULL: "" when empty or out of memory. */
const char *ob_buf_z(struct ob_buf *buf);

#endif
