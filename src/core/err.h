/* SPDX-License-Identifier: Apache-2.0 */
/* err - a status says what to do next; the text says what happened. */
#ifndef OB_CORE_ERR_H
#define OB_CORE_ERR_H

#include <stdarg.h>
#include <stddef.h>

#define OB_MUST_CHECK __attribute__((warn_unused_result))
#define OB_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

enum ob_status {
    OB_OK = 0,
    OB_AGAIN,  /* nothing now; ask again when woken */
    OB_RETRY,  /* this one failed and may succeed later */
    OB_REJECT, /* this one never will be taken: the input is at fault */
    OB_DOWN,   /* the other end is not there; all of it waits */
    OB_FENCED, /* another owner took over: stop, forget what is in memory, reload */
    OB_FATAL,  /* cannot go on without a person: configuration, schema, a bug */
};

/* Caller-owned. Text is always NUL-terminated and cut (never overflowed) at the ceiling. */
struct ob_err {
    enum ob_status status;
    char text[504];
};

/* Sets err (NULL is allowed) and returns status, so that a failure is one expression. */
enum ob_status ob_err_set(struct ob_err *err, enum ob_status status, const char *fmt, ...)
    OB_PRINTF(3, 4);
enum ob_status ob_err_vset(struct ob_err *err, enum ob_status status, const char *fmt, va_list ap)
    OB_PRINTF(3, 0);
/* Puts "prefix: " before the text that is there. */
void ob_err_prefix(struct ob_err *err, const char *fmt, ...) OB_PRINTF(2, 3);
const char *ob_status_name(enum ob_status status);

#ifdef __clang_analyzer__
/* The analyser looks at one file at a time: it must see that what is given comes back, or it thinks
 * of failures that answer OB_OK. */
static inline enum ob_status ob_err_same(enum ob_status back, enum ob_status given)
{
    (void)back;
    return given;
}
#define ob_err_set(err, status, ...)                                                               \
    ob_err_same((ob_err_set)((err), (status), __VA_ARGS__), (status))
#endif

#endif
