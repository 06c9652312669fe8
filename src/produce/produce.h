/* SPDX-License-Identifier: Apache-2.0 */
/* produce - shared by the files of produce/ only. */
#ifndef OB_PRODUCE_PRODUCE_H
#define OB_PRODUCE_PRODUCE_H

#include "core/buf.h"
#include "event/row.h"
#include "outbox/produce.h"

/* Turns the inner result into the public one. */
enum outbox_status ob_produce_give(enum ob_status status, const struct ob_err *from,
                                   struct outbox_error *to);
/* The event as a row; slices are borrowed from it, from ctx and from metadata (reset first). */
enum ob_status ob_produce_row(const struct outbox_ctx *ctx, const struct outbox_event *event,
                              struct ob_buf *metadata, struct ob_row *row,
                              struct ob_err *err) OB_MUST_CHECK;
/* For a table without a metadata column: what the context alone says goes into the member
 * "metadata" of a JSON object; what is there already stays. The payload is then borrowed from buf
 * (reset first). */
enum ob_status ob_produce_context_payload(const struct outbox_ctx *ctx, struct ob_buf *buf,
                                          struct ob_row *row, struct ob_err *err) OB_MUST_CHECK;

/* Collected events, in the order in which they were raised. */
const struct outbox_event *ob_collector_event(const struct outbox_collector *c, size_t i);
/* Forgets all but the first n. */
void ob_collector_cut(struct outbox_collector *c, size_t n);

#endif
