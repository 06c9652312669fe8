/* SPDX-License-Identifier: Apache-2.0 */
/* lines - a batch of messages as JSON lines, ready for one writev(2).
 *
 * {"id":…,"topic":…,"stream":…,"key":…,"headers":{…},"content_type":…,"time":…,"value":…}
 * stream and content_type are left out when empty; key_base64 follows a key that is not UTF-8.
 * The value is `value` with the payload's own bytes if they are JSON without a line break, else
 * `value_text`, or `value_base64` if they are not UTF-8. A message without a value: "value":null.
 * Large payloads are referred to, not copied: they must live until the batch is written or reset.
 * Thread: one at a time. */
#ifndef OB_SINK_LINES_H
#define OB_SINK_LINES_H

#include "core/buf.h"
#include "core/clock.h"
#include "core/err.h"
#include "sink/worker.h"

#include <sys/uio.h>

/* Parts of one batch; not above IOV_MAX. */
#define OB_LINES_PARTS 1024

struct ob_lines {
    struct ob_buf buf; /* all bytes that are not borrowed */
    size_t limit;      /* a batch ends before this many bytes, unless one line alone is longer */
    size_t max_line;   /* longest line, with its line break */
    size_t bytes;      /* of all lines in the batch */
    struct ob_lines_part {
        const char *p; /* a payload's own memory; NULL: at off in buf */
        size_t off, n;
    } * parts;
    size_t n_parts;
    size_t open; /* where the part under way starts in buf */
    struct iovec *iov;
    size_t need;    /* room that the line under way takes without escapes */
    int64_t second; /* whose text is in stamp */
    size_t n_stamp;
    char stamp[OB_RFC3339_MAX];
};

enum ob_status ob_lines_init(struct ob_lines *l, size_t limit, size_t max_line, struct ob_err *err);
void ob_lines_clear(struct ob_lines *l);
/* Empties it; memory is kept unless it is much more than a usual batch needs. */
void ob_lines_reset(struct ob_lines *l);
/* OB_OK: added. OB_AGAIN: the batch is full. OB_REJECT: the line would be longer than max_line.
 * OB_DOWN: no memory. *size: bytes of the line (REJECT: at least). Only OB_OK changes the batch. */
enum ob_status ob_lines_add(struct ob_lines *l, const struct ob_msg *msg,
                            size_t *size) OB_MUST_CHECK;
/* What to write; *n is 0 when there is nothing. Valid until the next add or reset. */
const struct iovec *ob_lines_iov(struct ob_lines *l, size_t *n);
/* Adds items as ob_worker_ops.prepare() does. */
enum ob_status ob_lines_take(struct ob_lines *l, struct ob_worker_item *items, size_t *n,
                             struct ob_err *err) OB_MUST_CHECK;

#endif
