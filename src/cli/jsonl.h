/* SPDX-License-Identifier: Apache-2.0 */
/* jsonl - events to be emitted, from JSON lines. */
#ifndef OB_CLI_JSONL_H
#define OB_CLI_JSONL_H

#include "core/arena.h"
#include "core/buf.h"
#include "source/admin.h"

struct ob_jsonl {
    struct ob_arena *arena; /* what had to be unescaped */
    struct ob_emit *events; /* slices into the text and the arena */
    size_t n, cap;
};

/* Reads every line of text; progress may be NULL. Errors: "name:line: …" (OB_REJECT). text must
 * outlive out, which is always to be cleared. */
enum ob_status ob_jsonl_read(struct ob_jsonl *out, const char *name, struct ob_str text,
                             void (*progress)(void *user, size_t bytes), void *user,
                             struct ob_err *err) OB_MUST_CHECK;
void ob_jsonl_clear(struct ob_jsonl *out);
/* Checks what the command line or a line gave: type is there, JSON is JSON, texts are UTF-8. */
enum ob_status ob_jsonl_check(const struct ob_emit *e, struct ob_err *err) OB_MUST_CHECK;

#endif
