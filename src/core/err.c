/* SPDX-License-Identifier: Apache-2.0 */
/* err - a status says what to do next; the text says what happened. */
#include "core/err.h"

#include "core/utf8.h"

#include <stdio.h>
#include <string.h>

/* A cut may fall inside a character: what is shown and stored stays UTF-8. */
static void put(struct ob_err *err, const char *text)
{
    size_t n = ob_utf8_cut(text, strlen(text));

    memcpy(err->text, text, n);
    err->text[n] = '\0';
}

enum ob_status ob_err_vset(struct ob_err *err, enum ob_status status, const char *fmt, va_list ap)
{
    char text[sizeof(err->text)]; /* the arguments may point into err->text */

    if (!err)
        return status;
    if (vsnprintf(text, sizeof(text), fmt, ap) < 0)
        text[0] = '\0';
    put(err, text);
    err->status = status;
    return status;
}

enum ob_status(ob_err_set)(struct ob_err *err, enum ob_status status, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    ob_err_vset(err, status, fmt, ap);
    va_end(ap);
    return status;
}

void ob_err_prefix(struct ob_err *err, const char *fmt, ...)
{
    char text[sizeof(err->text)];
    size_t n, rest;
    va_list ap;
    int wanted;

    if (!err)
        return;
    va_start(ap, fmt);
    wanted = vsnprintf(text, sizeof(text) - 2, fmt, ap);
    va_end(ap);
    if (wanted < 0)
        return;
    n = strlen(text);
    text[n++] = ':';
    text[n++] = ' ';
    rest = strlen(err->text);
    if (rest > sizeof(text) - 1 - n)
        rest = sizeof(text) - 1 - n;
    memcpy(text + n, err->text, rest);
    text[n + rest] = '\0';
    put(err, text);
}

const char *ob_status_name(enum ob_status status)
{
    static const char *const names[] = {
        [OB_OK] = "ok",     [OB_AGAIN] = "again",   [OB_RETRY] = "retry", [OB_REJECT] = "reject",
        [OB_DOWN] = "down", [OB_FENCED] = "fenced", [OB_FATAL] = "fatal",
    };

    return (size_t)status < sizeof(names) / sizeof(names[0]) ? names[status] : "unknown";
}
