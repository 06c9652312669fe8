/* SPDX-License-Identifier: Apache-2.0 */
/* tail - where the whole lines of a file end. */
#include "sink/file/tail.h"

#include "core/jscan.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#define BLOCK ((off_t)64 << 10)

static enum ob_status read_at(int fd, char *p, off_t from, off_t n, struct ob_err *err)
{
    off_t done = 0;
    while (done < n) {
        ssize_t got = pread(fd, p + done, (size_t)(n - done), from + done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return ob_err_set(err, OB_DOWN, "cannot read its end: %s",
                              got < 0 ? strerror(errno) : "it became shorter");
        done += got;
    }
    return OB_OK;
}

/* *start: the first byte of the line that byte `at` belongs to. */
static enum ob_status line_start(int fd, off_t at, off_t *start, struct ob_err *err)
{
    static const off_t most = OB_TAIL_LINE_MAX;
    char *block = malloc((size_t)BLOCK);
    enum ob_status st = block ? OB_OK : ob_err_set(err, OB_DOWN, "no memory");
    const char *found = NULL;
    off_t to = at;
    while (st == OB_OK && to > 0 && !found) {
        off_t from = to > BLOCK ? to - BLOCK : 0;
        st = read_at(fd, block, from, to - from, err);
        if (st == OB_OK)
            found = memrchr(block, '\n', (size_t)(to - from));
        if (found)
            *start = from + (found - block) + 1;
        else if (at - from > most)
            st = ob_err_set(err, OB_REJECT, "its last line is longer than any line of ours");
        to = from;
    }
    if (st == OB_OK && !found)
        *start = 0;
    free(block);
    return st;
}

static size_t whole_lines(struct ob_str text)
{
    size_t good = 0;
    while (good < text.n) {
        const char *line = text.p + good;
        const char *end = memchr(line, '\n', text.n - good);
        enum ob_jtype type = OB_J_NULL;
        if (!end ||
            ob_json_check((struct ob_str){line, (size_t)(end - line)}, &type, NULL) != OB_OK ||
            type != OB_J_OBJECT)
            break;
        good = (size_t)(end + 1 - text.p);
    }
    return good;
}

enum ob_status ob_tail_good(int fd, off_t size, off_t window, off_t *good, struct ob_err *err)
{
    if (size == 0) {
        *good = 0;
        return OB_OK;
    }
    char first;
    off_t start = 0;
    char *text = NULL;
    enum ob_status st = read_at(fd, &first, 0, 1, err);
    /* After a loss of power the first batch may be a hole; nothing else of ours starts otherwise.
     */
    if (st == OB_OK && first != '{' && first != '\0')
        st = ob_err_set(err, OB_REJECT, "it holds something else than JSON lines");
    if (st == OB_OK && size > window)
        st = line_start(fd, size - window, &start, err);
    if (st == OB_OK) {
        text = malloc((size_t)(size - start));
        st = text ? read_at(fd, text, start, size - start, err)
                  : ob_err_set(err, OB_DOWN, "no memory to check its end");
    }
    if (st == OB_OK)
        *good = start + (off_t)whole_lines((struct ob_str){text, (size_t)(size - start)});
    free(text);
    return st;
}
